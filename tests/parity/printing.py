#!/usr/bin/env python3
"""printing.py LIBMEMTAPE_CASES: compares what mt_print writes below its head with what PyTorch prints, character by
character. PyTorch ignores infinities, NaN and -0 when it looks for the widest number, so its columns are not
aligned with them; blanks are not compared there. Exit status 77 without PyTorch."""

import ctypes
import re
import sys
import tempfile

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape

INDENT = len("tensor(")


def theirs(t):
    """What torch would print with nothing before the values, in lines of 80 characters."""
    torch.set_printoptions(linewidth=80 + INDENT)
    text = str(t)[INDENT:].replace("\n" + " " * INDENT, "\n")
    end = text.rindex("]") + 1 if t.dim() else re.search(r"[,)]", text).start()
    return re.sub(r"\b(True|False)\b", lambda m: m[0].lower().rjust(len(m[0])), text[:end])


def ours(library, t):
    libc = ctypes.CDLL(None)
    libc.fopen.restype, libc.fopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p] * 2
    libc.fclose.argtypes = [ctypes.c_void_p]
    function = library.dll.mt_print
    function.restype, function.argtypes = ctypes.c_int, [ctypes.c_void_p] * 2
    with tempfile.NamedTemporaryFile() as file:
        stream = libc.fopen(file.name.encode(), b"w")
        copy = library.tensor(t)
        status = function(copy.pointer, stream)
        libc.fclose(stream)
        library.check(status)
        return file.read().decode()


def tensors():
    """(name, tensor) for each dtype, rank and style, on both sides of the limits between styles."""
    generator = torch.Generator().manual_seed(3)
    for dtype in memtape.DTYPES:
        for shape in [(), (1,), (7,), (1000,), (1001,), (3, 4), (2, 3, 4), (40, 50), (5, 5, 5, 5, 5), (7, 1, 8, 20),
                      (1,) * 8, (3,) * 6, (0,), (3, 0, 2), (2000, 2), (2, 2000), (9, 7, 2, 9)]:
            drawn = torch.rand(shape, generator=generator, dtype=torch.float64) * 200 - 100
            yield f"{dtype} {list(shape)}", drawn.to(dtype)
    f64 = torch.float64
    for values in [[1, 2.5], [1, 2, 3], [1, 1000], [1, 1001], [1e8, 1e8], [1e8 + 1, 1e8], [1e-4, 2e-4], [9.9e-5],
                   [0.0, -0.0], [0.5, 0], [1e300, -1e-300], [123456.5, 99999], [1e5, 0, -1e5], [5e-324, 1],
                   [0.00005, 0.04], [-0.00004, 0.03]]:
        yield f"{values}", torch.tensor(values, dtype=f64)
    for values in [[float("nan")], [float("inf"), 1], [-float("inf"), 0.5], [float("nan"), 1e-9], [float("nan"), 0]]:
        yield f"{values}", torch.tensor(values, dtype=f64)
    yield "i64", torch.tensor([2**63 - 1, -2**63, 2**53 + 1])


def main():
    library = memtape.Library(sys.argv[1])
    faults, n = 0, 0
    for name, t in tensors():
        head, _, body = ours(library, t).partition("\n")
        body, want = body.removesuffix("\n"), theirs(t)
        wide = t.to(torch.float64)
        if t.is_floating_point() and not (wide.isfinite() & ~((wide == 0) & wide.signbit())).all():
            body, want = re.sub(" ", "", body), re.sub(" ", "", want)
        n += 1
        if body == want and head.endswith(" on cpu"):
            continue
        faults += 1
        print(f"{name}: memtape prints\n{head}\n{body}\nPyTorch\n{want}")
    print(f"{n} tensors printed, {faults} different from PyTorch")
    sys.exit(faults > 0)


main()
