"""barriers.py SOURCES MODULE FILE=PROGRAM...: removes each barrier of the CUDA kernels in turn, and fails if
PROGRAM, which tests FILE's kernels, still passes under every order of the threads. A barrier in a file that
is not listed is a fault, too; `FILE=` says that another test removes FILE's barriers."""

import glob
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

SCHEDULES = ("forward", "reverse", "1", "2")
NOWHERE = "none:0"
LIMIT = 60  # seconds; without a barrier a kernel may run for ever, which counts as a failure


def barriers_of(path):
    with open(path, encoding="utf-8") as lines:
        return [i for i, line in enumerate(lines, 1) if re.match(r"\s*__sync(threads|warp)\(\);", line)]


def passes(program, module, schedule, place):
    environment = os.environ | {"MTT_DEVICE": "cudasim", "MEMTAPE_CUDASIM_MODULE": module,
                                "CUDASIM_SCHEDULE": schedule, "CUDASIM_WITHOUT_BARRIER": place,
                                "CMOCKA_TEST_ABORT": "1"}  # stop at the first failure
    try:
        return subprocess.run([program], env=environment, check=False, timeout=LIMIT,
                              stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def failing_order(program, module, place):
    """The first order of threads in which the program fails without this barrier, or None. With all barriers
    it passes, as other tests show."""
    for schedule in SCHEDULES:
        if not passes(program, module, schedule, place) and (
                schedule == "forward" or passes(program, module, schedule, NOWHERE)):
            return schedule
    return None


def main():
    sources, module, *pairs = sys.argv[1:]
    program_of = dict(pair.split("=", 1) for pair in pairs)
    work, faults = [], []
    for path in sorted(glob.glob(os.path.join(sources, "**", "*.cu*"), recursive=True)):
        file, lines = os.path.basename(path), barriers_of(path)
        if lines and file not in program_of:
            faults.append(f"{file} has barriers and no test")
        elif program_of.get(file):
            work += [(program_of[file], module, f"{file}:{line}") for line in lines]
    with ThreadPoolExecutor(2) as pool:
        for (_, _, place), order in zip(work, pool.map(lambda w: failing_order(*w), work)):
            print(f"{place} is needed ({order})" if order else f"{place} is not needed")
            if not order:
                faults.append(f"{place} can be removed and no test fails")
    print(f"{len(work)} barriers, {len(faults)} faults")
    sys.exit("\n".join(faults) if faults or not work else 0)


if __name__ == "__main__":
    main()
