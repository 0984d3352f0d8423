"""meta.py: the program on the meta device: the cost of measuring a step of a large model. Each figure is a whole
run of `memtape profile`, from start to exit, with its report."""

import os
import subprocess
import time
from statistics import median

from worker import Failed

STEP = ("profile", "gpt3-175b", "-b", "1", "-s", "2048", "--device", "meta", "--optimizer", "adamw")
ROWS = (
    ("96 layers, flash", ()),
    ("96 layers, math", ("--attention", "math")),
    ("96 layers, --timeline", ("--timeline",)),
    ("48 layers", ("--layers", "48")),
    ("192 layers", ("--layers", "192")),
)


def run_once(program, words):
    """Milliseconds of wall-clock and CPU time, the peak resident KiB, and the pages that the system gave."""
    began = time.perf_counter()
    child = subprocess.Popen([program, *STEP, *words], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    wall = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise Failed(f"{program} {' '.join(STEP + words)}: status {child.returncode}")
    return 1e3 * wall, 1e3 * (used.ru_utime + used.ru_stime), used.ru_maxrss, used.ru_minflt


def steps(s):
    program = os.path.join(os.path.dirname(s.program), "..", "memtape")
    if not os.access(program, os.X_OK):
        raise Failed(f"{program} is not built; `./run bench` builds it")
    rows, rounds = [], s.rounds(max(3, round(25 * s.effort)))
    for name, words in ROWS:
        wall, cpu, kib, pages = zip(*(run_once(program, words) for _ in range(rounds)))
        rows.append({"name": name, "min_ms": min(wall), "median_ms": median(wall),
                     "min_cpu_ms": min(cpu), "peak_kib": max(kib), "pages": min(pages)})
    return rows
