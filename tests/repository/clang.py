#!/usr/bin/env python3
"""clang, too, compiles every C file without a warning: clang.py BUILD_FOLDER.

gcc builds the project, and the two warn of different things. Checks the syntax alone, from the build's own
commands. Exit status 77: no clang, or no libomp-dev for it."""

import concurrent.futures
import json
import os
import shlex
import shutil
import subprocess
import sys


def check(entry):
    words = shlex.split(entry["command"])
    words = words[next(i for i, word in enumerate(words) if word.startswith("-")):]
    at = words.index("-o")
    del words[at:at + 2]
    words.remove("-c")
    done = subprocess.run(["clang", "-fsyntax-only", *words], cwd=entry["directory"], text=True,
                          capture_output=True, check=False)
    return done.stderr if done.returncode else ""


def main():
    probe = ["clang", "-fopenmp", "-fsyntax-only", "-x", "c", "-"]
    if not shutil.which("clang") or \
            subprocess.run(probe, input="#include <omp.h>\n", text=True, capture_output=True, check=False).returncode:
        print("skipped: no clang, or no libomp-dev")
        return 77
    with open(os.path.join(sys.argv[1], "compile_commands.json"), encoding="utf-8") as f:
        entries = [entry for entry in json.load(f) if entry["file"].endswith(".c")]
    assert len(entries) > 300, f"only {len(entries)} C files in compile_commands.json"
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        failed = [text for text in pool.map(check, entries) if text]
    for text in failed:
        print(text)
    print(f"clang.py: {len(entries)} compilations, {len(failed)} with warnings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
