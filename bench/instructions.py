"""instructions.py PROGRAM: the instructions of a training step of the smallest GPT on one thread, by room of the source
and by file, and what a ledger adds. PROGRAM is memtape_bench, built with debug information (meson setup -Ddebug=true);
valgrind counts, so nothing else on the machine matters. Steps are what more of them add."""

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter

from cases import GPTS
from show import table

STOREY = re.compile(r"^.*/(?:src|models|lab|program)/")
FEW, MORE = 4, 12  # steps
N_FILES = 12
ROOMS = ("optim", "nn", "ops", "autograd", "tensor", "memtrack", "base")


def costs(path):
    """{source file: instructions}, each counted in the file that it was written in, inlined or not."""
    names, out, file, of_call = {}, Counter(), "", False
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            name = re.match(r"(c?)f[lie]=\((\d+)\)(?: (.*))?$", line)
            if name:  # the text follows a number's first use; those with a c name where a call goes to
                known = names.setdefault(name[2], name[3])
                file = file if name[1] else known
            elif line.startswith("calls="):
                of_call = True
            elif re.match(r"[+*\d-]", line):
                if not of_call:
                    out[file] += int(line.split()[1])
                of_call = False
    return out


def count(program, word, n):
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/out"
        got = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", program, "gpt",
             *map(str, GPTS[0].arguments), "1"], input=f"{word} {n}\nend\n", capture_output=True, text=True, check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"})  # valgrind knows no AVX-512
        if got.returncode:
            sys.exit(f"instructions: {program}: status {got.returncode}: {got.stderr[-400:]}")
        return costs(out)


def of_one(program, word):
    few, more = (count(program, word, n) for n in (FEW, MORE))
    return {file: (more[file] - few[file]) / (MORE - FEW) for file in more}


def room_of(file):
    inner = STOREY.split(file)[-1]
    return inner.partition("/")[0] if inner != file else ""


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    plain = of_one(sys.argv[1], "plain")
    pairs = of_one(sys.argv[1], "ledger")  # a step without and one with it
    ledger = {file: pairs[file] - 2 * plain.get(file, 0) for file in pairs}
    rooms = [Counter(), Counter()]
    for step, sums in zip((plain, ledger), rooms):
        for file, n in step.items():
            sums[room_of(file)] += n
    if not rooms[0]["autograd"]:
        sys.exit(f"instructions: {sys.argv[1]} has no debug information; build it with meson setup -Ddebug=true")
    rows = [[room, f"{rooms[0][room]:,.0f}", f"{rooms[1][room]:,.0f}"] for room in ROOMS]
    rows.append(["engine", *(f"{sum(sums[room] for room in ROOMS):,.0f}" for sums in rooms)])
    rest = [sum(n for room, n in sums.items() if room not in ROOMS) for sums in rooms]
    rows.append(["kernels, libraries", *(f"{n:,.0f}" for n in rest)])
    print(f"Instructions of a step of {GPTS[0].name}, and what a ledger adds")
    print(table(["", "step", "ledger"], rows))
    files = sorted((file for file in plain if room_of(file) in ROOMS), key=lambda file: -plain[file])
    print("\nThe files with the most")
    print(table(["", "step", "ledger"], [[STOREY.split(file)[-1], f"{plain[file]:,.0f}", f"{ledger.get(file, 0):,.0f}"]
                                         for file in files[:N_FILES]]))


if __name__ == "__main__":
    main()
