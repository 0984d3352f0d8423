"""libmemtape through ctypes.

The library stays loaded until the process ends. A call lets other Python threads run meanwhile. The library keeps
its last error for each thread, so `check` asks in the thread that called."""

import ctypes
import functools
import os
import re
from pathlib import Path
from typing import Any, Dict, Tuple

FOLDER = Path(__file__).resolve().parent


_POINTER, _TEXT, _INT = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
_EXTENTS = ctypes.POINTER(ctypes.c_int64)
# The functions that the package calls: (result, arguments...).
SIGNATURES: Dict[str, Tuple[Any, ...]] = {
    "mt_last_error": (_TEXT,), "mt_clear_error": (None,),
    "mt_report_write_html": (_INT, _TEXT, _TEXT, _TEXT),
    "mt_report_write_snapshot": (_INT, _TEXT, ctypes.c_size_t, _TEXT),
    "mt_device_open": (_POINTER, _TEXT), "mt_device_release": (None, _POINTER), "mt_release": (None, _POINTER),
    "mt_empty": (_POINTER, _POINTER, _INT, _INT, _EXTENTS), "mt_dtype_parse": (ctypes.c_bool, _TEXT, ctypes.POINTER(_INT)),
    "mt_category_name": (_TEXT, _INT), "mt_mem_get_stats": (None, _POINTER, _POINTER), "mt_mem_reset_peak": (None, _POINTER),
    "mt_mem_stream_begin": (_INT, _POINTER, _POINTER, _TEXT), "mt_mem_stream_end": (None, _POINTER),
    "mt_mem_get_streams": (_INT, _POINTER, _POINTER),
    "mt_rank": (_INT, _POINTER), "mt_shape": (_EXTENTS, _POINTER), "mt_strides": (_EXTENTS, _POINTER),
    "mt_dtype_of": (_INT, _POINTER), "mt_dtype_name": (_TEXT, _INT), "mt_dtype_size": (ctypes.c_size_t, _INT),
    "mt_to_dlpack": (_POINTER, _POINTER), "mt_from_dlpack": (_POINTER, _POINTER, _POINTER), "mt_dlpack_free": (None, _POINTER),
}


# C0 but for tabs and line ends, DEL, C1; marks, line ends and orders of bidirectional text; halves of characters, and what
# is no character: as the program has it (src/base/text.c).
_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


def printable(text: str) -> str:
    """The text with "?" for what a terminal would obey, or cannot be given."""
    return _OBEYED.sub("?", text)


class MemtapeError(RuntimeError):
    """What memtape refused, or failed to do; its text is the library's or the program's."""

    def __init__(self, text: str = "") -> None:
        super().__init__(printable(text))


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
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(dll, name)
        function.restype, function.argtypes = result, arguments
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
