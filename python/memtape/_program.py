"""The program `memtape`, which comes with the package."""

import os
import subprocess
import sys
from typing import List

from memtape._library import MemtapeError, beside


def path() -> str:
    return beside("MEMTAPE", "memtape")


def call(words: List[str]) -> str:
    """Runs the program; returns what it prints. Its message is raised if it fails. Under mpirun it is not one of the ranks:
    this process is."""
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PMI_", "OMPI_COMM_WORLD_"))}
    done = subprocess.run([path(), *words], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8",
                          errors="replace", check=False, env=alone)
    if done.returncode:
        raise MemtapeError(done.stderr.strip() or f"memtape ended with status {done.returncode}")
    return done.stdout


def main() -> None:
    """The command `memtape`: becomes the program."""
    try:
        program = path()
    except MemtapeError as error:
        sys.exit(f"memtape: {error}")
    os.execv(program, ["memtape", *sys.argv[1:]])
