"""sass_planted.py: the check of the machine code finds faults: each is planted in a listing of the kind that
nvdisasm prints."""

import glob
import os
import re
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench", "gpu"))
import sass  # noqa: E402
from sass_kernels import KERNELS, Kernel  # noqa: E402

# A loop that stores 8 elements of 2 bytes with 16 instructions, 2 of which are in an inner loop.
GOOD = ["LDC R1, c[0x0][0x28]", ".L_top", "LDG.E.128 R4, desc[UR4][R2.64]", "FMUL R4, R4, R5",
        ".L_odd", "IADD3 R9, R9, 0x1, RZ", "@P1 BRA `(.L_odd)", *["FFMA R4, R4, R5, R6"] * 10,
        "@!P0 STG.E.128 desc[UR4][R2.64], R4", "@P0 BRA `(.L_top)", "EXIT", ".L_end", "BRA `(.L_end)"]
ELEMENTWISE = Kernel("good", "file", "^good$", 2, n_bytes=4, slots=2)
ROWS = Kernel("rows", "file", "^good$", 2, rows=True)
READER = Kernel("reader", "file", "^good$", 2, n_bytes=2, slots=2, loads=True)
TENSOR = Kernel("products", "file", "^good$", 2, tensor_cores=True)


def listing(lines):
    out, at = [".text.good:"], 0
    for line in lines:
        if line.startswith("."):
            out.append(line + ":")
        else:
            out.append(f"        /*{at:04x}*/                   {line} ;")
            at += 16
    return "\n".join(out)


def faults(lines, kernel=ELEMENTWISE):
    return sass.look([kernel], {"file": sass.parse(listing(lines))})[1]


def swapped(old, *new):
    assert old in GOOD
    at = GOOD.index(old)
    return GOOD[:at] + list(new) + GOOD[at + 1:]


STORE = "@!P0 STG.E.128 desc[UR4][R2.64], R4"
table, found = sass.look([ELEMENTWISE], {"file": sass.parse(listing(GOOD))})
assert not found, found
assert table.splitlines()[1].split() == ["good", "19", "10", "0", "1", "1", "0", "0", "1.8", "100%", "-"], table
for name, got, words in (
        ("a scalar store", faults(swapped(STORE, STORE, "@!P0 STG.E.U16 desc[UR4][R2.64], R4")),
         "1 stores of less than 8 bytes"),
        ("stores in pieces", faults(swapped(STORE, *["STG.E desc[UR4][R2.64], R4"] * 4)), "no vector store"),
        ("a spill", faults(swapped("FMUL R4, R4, R5", "STL [R1], R4", "LDL R4, [R1]")),
         "2 accesses to local memory"),
        ("more instructions", faults(swapped("FMUL R4, R4, R5", *["FMUL R4, R4, R5"] * 4)),
         "2.1 issue slots an element, at most 2"),
        ("no tensor cores", faults(GOOD, TENSOR), "no product on tensor cores"),
        ("rows in pieces", faults(swapped(STORE, "STG.E.U16 desc[UR4][R2.64], R4"), ROWS),
         "no vector loads and stores"),
        ("loads in pieces", faults(swapped("LDG.E.128 R4, desc[UR4][R2.64]", "LDG.E R4, desc[UR4][R2.64]"), READER),
         "no vector load"),
        ("another name", faults(GOOD, Kernel("good", "file", "^better$", 2)), "0 kernels of file.cu")):
    assert any(words in fault for fault in got), (name, got)
    print(f"planted: {name}: found: {got[0]}")
assert not faults(GOOD, ROWS) and not faults(GOOD, READER)
assert not faults(swapped("FMUL R4, R4, R5", "HMMA.16816.F32.BF16 R4, R8, R12, R4"), TENSOR)


def products(*more):
    return sass.products(sass.parse(listing(swapped("FMUL R4, R4, R5", "HMMA.16816.F32.BF16 R4, R8, R12, R4", *more)))
                         ["good"])


assert round(products(), 3) == 0.343, products()  # 14 instructions in 3.5 cycles
assert round(products(*["LDSM.16.M88.4 R8, [R2]"] * 2), 3) == 0.150  # 8 cycles of shared memory


def sources():
    out = ""
    for path in glob.glob(os.path.join(ROOT, "src", "backends", "cuda", "**", "*.*"), recursive=True):
        with open(path, encoding="utf-8") as file:
            out += file.read()
    return out


# Each name that a kernel is known by, of a function or a type, is one of the sources': a renamed one would only be
# missed where nvcc makes machine code.
SOURCES = sources()
for kernel in KERNELS:
    for word in re.findall(r"\b(?!__)[a-z][a-z0-9]*(?:_[a-z0-9]+)+\b", kernel.pattern):
        assert re.search(rf"\b(mti_)?{word}\b", SOURCES), f"{kernel.label}: the CUDA sources have no {word}"
