"""libmemtape through ctypes.

The library stays loaded until the process ends. A call lets other Python threads run meanwhile. The library keeps
its last error for each thread, so `check` asks in the thread that called."""

import ctypes
import functools
import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


class MemtapeError(RuntimeError):
    """What memtape refused, or failed to do; its text is the library's or the program's."""


def beside(variable: str, name: str) -> str:
    """The path that the environment variable gives; without it, that of the file beside this module."""
    given = os.environ.get(variable)
    path = Path(given) if given else FOLDER / name
    if not path.is_file():
        raise MemtapeError(f"{variable}={given} is not a file" if given else
                           f"{name} is not in {FOLDER}: install the package with pip, or set {variable}")
    return str(path)


@functools.cache
def library() -> ctypes.CDLL:
    """The library, with the types of the functions that this package calls."""
    path = beside("MEMTAPE_LIBRARY", "libmemtape.so")
    try:
        dll = ctypes.CDLL(path)
    except OSError as error:
        raise MemtapeError(str(error)) from error
    text, status = ctypes.c_char_p, ctypes.c_int
    dll.mt_last_error.restype, dll.mt_last_error.argtypes = text, []
    dll.mt_clear_error.restype, dll.mt_clear_error.argtypes = None, []
    dll.mt_report_write_html.restype = status
    dll.mt_report_write_html.argtypes = [text, text, text]
    return dll


def failure() -> MemtapeError:
    """This thread's last error, which is cleared."""
    text = library().mt_last_error().decode("utf-8", "replace")
    library().mt_clear_error()
    return MemtapeError(text)


def check(status: int) -> None:
    """Raises unless an mt_status is MT_OK."""
    if status:
        raise failure()
