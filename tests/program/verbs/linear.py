"""What a profile on meta costs grows as the layers do: its instructions, counted by valgrind. (tests/models/memory counts what a budget's
search and simulations grow by.)"""
import os
import re
import shutil
import subprocess
from lib import MEMTAPE, check, done, equal

if not shutil.which("valgrind"):
    print("skipped: there is no valgrind (package valgrind)")
    raise SystemExit(77)
HERE = {**os.environ, "OMP_NUM_THREADS": "1"}
HERE.pop("OPENBLAS_CORETYPE", None)  # valgrind's processor has no AVX-512


def instructions(layers, *options):
    words = ["profile", "gpt", "--device", "meta", "-l", layers, "-s", 64, "-d", 64, *options]
    p = subprocess.run(["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null", MEMTAPE, *map(str, words)],
                       capture_output=True, text=True, env=HERE)
    equal(p.returncode, 0, f"{words}: {p.stderr}")
    return int(re.search(r"I +refs: +([\d,]+)", p.stderr)[1].replace(",", ""))


def grows_in_proportion(few, *options):
    """The start of the program falls out of differences."""
    first, twice, four = (instructions(n, *options) for n in (few, 2 * few, 4 * few))
    growth = (four - twice) / (twice - first) / 2
    print(f"{few}, {2 * few} and {4 * few} layers {options}: {first:,}, {twice:,} and {four:,} instructions, {growth:.3f} of linear")
    check(growth <= 1.03, f"{growth:.3f} times as much as in proportion {options}")


grows_in_proportion(32)
grows_in_proportion(8, "--checkpoint", "full", "--zero", 3, "--dp", 8, "--offload", "cpu")
done()
