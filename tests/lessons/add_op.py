"""A contributor's path: a copy of the tree, in which a script adds the op mish as the lesson on an op of one's own says, is
built, and what looks at every op finds nothing wrong. add_op.py [FOLDER]: leaves the copy there."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# The lesson's lines, with softplus as the neighbour: (file, its line, what comes after it).
LINES = [
    ("src/backends/unary.def", r"^UNARY\(softplus,.*$",
     "UNARY(mish,         24, x * F(tanh)(F(softplus)(x)),\n"
     "      dy * (F(tanh)(F(softplus)(k)) +\n"
     "            k * F(sigmoid)(k) * (1 - F(tanh)(F(softplus)(k)) * F(tanh)(F(softplus)(k)))))"),
    ("src/ops/ops.def", r"^OP\(softplus,.*\n.*$",
     'OP(mish, 1, 0, KEEP(IN0), 0, IN("x"), "y", AUX(0), "y = x tanh(log(1 + exp x))",\n'
     '   "the input: the slope cannot be computed from the output")'),
    ("src/ops/op_cases.def", r"^ROW\(softplus,.*$", "ROW(mish, mt_mish(in[0]), ELEMENTWISE((), X))"),
    ("src/ops/activation.c", r"^mt_tensor \*mt_softplus.*$",
     "\n/* mish: y = x t, t = tanh(softplus(x));  dx = dy (t + x sigmoid(x) (1 - t^2)) */\n"
     "mt_tensor *mt_mish(mt_tensor *x) { return mti_op1(&mti_op_mish, NULL, x); }"),
    ("include/memtape/ops.h", r"^MT_API mt_tensor \*mt_softplus.*$",
     "MT_API mt_tensor *mt_mish(mt_tensor *x);      /* x tanh(log(1 + e^x)) */"),
    ("bench/torch_rows.py", r'^ *"gelu": F\.gelu,.*$', '    "mish": F.mish,'),
]
# All that goes through the rows of the op table. Where PyTorch cannot be imported, the comparison with it is skipped.
TESTS = ["gradcheck", "naive gradcheck", "layouts", "nn autocast", "audit", "backends elementwise", "backends naive",
         "parity with PyTorch", "parity of random graphs with PyTorch"]
CHECKS = ["arrows", "length", "format", "headers", "names", "comments"]


def copy(folder):
    """The tree without what is built or kept by git."""
    shutil.copytree(ROOT, folder, symlinks=True, dirs_exist_ok=True,
                    ignore=lambda where, names: [n for n in names if Path(where) == ROOT and n.startswith((".git", "build", ".tools"))])


def patch(folder):
    for file, line, more in LINES:
        text = (folder / file).read_text()
        found = re.findall(line, text, re.M)
        assert len(found) == 1, (file, found)
        (folder / file).write_text(text.replace(found[0], found[0] + "\n" + more))


def output_of(command, folder, failures):
    ran = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    if ran.returncode not in (0, 77):
        failures.append(f"{' '.join(map(str, command))}: status {ran.returncode}\n{ran.stdout[-4000:]}")
    return ran.stdout


def main():
    failures = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(sys.argv[1] if sys.argv[1:] else scratch)
        copy(folder)
        patch(folder)
        if sys.argv[1:]:
            return 0
        for check in CHECKS:
            output_of([f"tests/repository/{check}.sh"], folder, failures)
        # -O1: half the time to compile.
        output_of(["meson", "setup", "build", "--buildtype=release", "-Doptimization=1", "-Dcuda=disabled", "-Dbench=false"], folder, failures)
        # It builds only what these need. The long form of all ops is not for here, that of this one is.
        os.environ.pop("MTT_LONG", None)
        told = output_of(["meson", "test", "-C", "build", "--print-errorlogs", "--timeout-multiplier", "5", *TESTS], folder, failures)
        output_of(["build/tests/src/gradcheck/test_layouts", "2", "mish"], folder, failures)
        output_of(["ninja", "-C", "build", "memtape"], folder, failures)
        kept = output_of(["build/memtape", "explain", "--expr", "mish(x@w)@v", "--shapes", "x=10x100,w=100x50,v=50x10"], folder, failures)
        if not re.search(r"mish\(x@w\) +mish +x +in +\[10,50\] +f32 +2,000", kept):
            failures.append(f"memtape explain does not know what mish keeps: {kept}")
        ran = re.search(r"^Ok: +(\d+)", told, re.M)
        print(f"mish: {sum(text.count(chr(10)) + 1 for _, _, text in LINES)} lines in {len(LINES)} files; {ran and ran[1]} tests passed")
    print("\n".join(failures) if failures else "all passed")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
