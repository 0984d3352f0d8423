"""Backward, and the release of a graph, take instructions in proportion to its nodes: linear.py TEST_DEEP, counted by valgrind."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile

if not shutil.which("valgrind"):
    print("skipped: there is no valgrind (package valgrind)")
    raise SystemExit(77)
FEW = 500
HERE = {**os.environ, "OMP_NUM_THREADS": "1"}
HERE.pop("OPENBLAS_CORETYPE", None)  # valgrind's processor has no AVX-512


def counts(program):
    """The instructions of each call of `traverse`, in order."""
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "out")
        p = subprocess.run(["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--toggle-collect=traverse",
                            "--dump-after=traverse", program, str(FEW)], capture_output=True, text=True, env=HERE)
        assert p.returncode == 0, p.stdout + p.stderr
        parts = sorted(glob.glob(out + ".*"), key=lambda name: int(name.rpartition(".")[2]))
        found = []
        for name in parts:
            with open(name, encoding="utf-8") as f:
                found.append(int(re.search(r"^(?:totals|summary): (\d+)", f.read(), re.M)[1]))
        return found


found = counts(sys.argv[1])
kinds = [f"{shape}, {what}" for shape in ("chain", "ladder", "fan") for what in ("released", "backward")]
assert len(found) == 3 * len(kinds) and min(found) > 0, found
failed = 0
for i, kind in enumerate(kinds):
    first, twice, four = found[3 * i:3 * i + 3]
    growth = (four - twice) / (twice - first) / 2
    print(f"{kind}: {FEW}, {2 * FEW} and {4 * FEW} nodes: {first:,}, {twice:,} and {four:,} instructions, {growth:.3f} of linear")
    if growth > 1.05:
        failed += 1
        print(f"FAILED: {kind}: {growth:.3f} times as many as in proportion")
print("all passed" if not failed else f"{failed} failed")
raise SystemExit(min(failed, 1))
