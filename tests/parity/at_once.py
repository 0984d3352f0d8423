"""at_once.py MODULE[.NAME] SCRIPT,... ARGUMENT...: runs scripts of this folder, all with these arguments, each in a process of its
own, which is forked once the module is imported: PyTorch takes seconds to import, Transformers more.

A script counts by its own line, `N passed, N failed, N skipped`, or as one. Exit status 77 if the module is not installed."""

import atexit
import os
import re
import runpy
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
HERE = Path(__file__).resolve().parent
OWN_LINE = re.compile(r"^\d+ passed, \d+ failed, \d+ skipped$", re.M)


def status_of(call):
    """The exit status of what is called, whose output is written."""
    status = 0
    try:
        status = call() or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code)
    except BaseException:  # as the interpreter would
        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def forked(call, folder="."):
    """(exit status, what it prints, what it complains) of a call in a process of its own, which has what this one has imported. For before
    PyTorch computes with several threads: they do not come along."""
    with tempfile.TemporaryFile("w+", errors="replace") as output, tempfile.TemporaryFile("w+", errors="replace") as errors:
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            os.chdir(folder)
            os._exit(status_of(call))  # to take PyTorch apart takes longer than most scripts
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        errors.seek(0)
        return status, output.read(), errors.read()


def script(path, arguments):
    """Runs it as the interpreter would; it has cleaned up."""
    sys.argv, sys.path[0] = [str(path), *arguments], str(path.parent)
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        atexit._run_exitfuncs()


def main(module, scripts, *arguments):
    module, _, name = module.partition(".")
    try:
        getattr(import_module(module), name or "__name__")
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    failed = 0
    for name in scripts.split(","):
        path = (HERE / (name + ".py")).resolve()
        status, *texts = forked(lambda path=path: script(path, arguments))
        text = "".join(texts)
        print(f"---- {name}: status {status}\n{text}", end="" if text.endswith("\n") else "\n")
        if status not in (0, 77):
            print(f"FAILED: {name}")
        failed += status not in (0, 77)
        if not OWN_LINE.search(text):
            print(f"{int(status == 0)} passed, {int(status not in (0, 77))} failed, {int(status == 77)} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
