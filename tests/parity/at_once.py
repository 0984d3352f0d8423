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


def status_of(path):
    """The exit status of the script, which has cleaned up, and whose output is written."""
    status = 0
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code)
    except BaseException:  # as the interpreter would
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def ran(script, arguments):
    """(exit status, output)"""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        sys.stdout.flush()
        pid = os.fork()
        if not pid:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv = [str(HERE / script), *arguments]
            os._exit(status_of(sys.argv[0]))  # to take PyTorch apart takes longer than most scripts
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        return status, output.read()


def main(module, scripts, *arguments):
    module, _, name = module.partition(".")
    try:
        getattr(import_module(module), name or "__name__")
    except ImportError as error:
        print(f"skipped: {error}")
        return 77
    failed = 0
    for script in scripts.split(","):
        status, text = ran(script + ".py", arguments)
        print(f"---- {script}: status {status}\n{text}", end="" if text.endswith("\n") else "\n")
        if status not in (0, 77):
            print(f"FAILED: {script}")
        failed += status not in (0, 77)
        if not OWN_LINE.search(text):
            print(f"{int(status == 0)} passed, {int(status not in (0, 77))} failed, {int(status == 77)} skipped")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
