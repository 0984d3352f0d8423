#!/usr/bin/env python3
"""special.py LIBMEMTAPE_CASES: every case of the op table beside PyTorch where values are not ordinary: with an
extent of 0, and with zeros of both signs, infinities and NaN among the inputs and the incoming gradients. Equal
shapes, and equal values where they are not finite; what PyTorch refuses is skipped. Exit status 77 without PyTorch."""

import sys
from dataclasses import replace

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from cases import table_cases

torch.set_num_threads(1)
INF, NAN = float("inf"), float("nan")
SPECIAL = (INF, -INF, NAN, 0.0, -0.0)
GENERATOR = torch.Generator().manual_seed(3)


def otherwise(case):
    """Whether PyTorch has other special values: its flash attention on the CPU turns the NaN of a row into 0, and
    masked_fill keeps the NaN of a row from the gradients of masked columns. Dropout's mask is read from our result."""
    return case.row in ("flash_attention", "dropout") or (case.row == "softmax" and "causal" in case.note)


def theirs_of(case, values, gradient):
    """PyTorch's result and gradients, or None where it refuses."""
    inputs = [t.clone().requires_grad_(t.is_floating_point()) for t in values]
    try:
        out = case.theirs(*inputs)
        dy = gradient(out)
        out.backward(dy)
    except (RuntimeError, IndexError, ValueError, AssertionError, NotImplementedError):
        return None
    return dy, [out.detach(), *(t.grad for t in inputs)]


def ours_of(library, case, values, dy):
    inputs = [library.tensor(t) for t in values]
    for t, value in zip(inputs, values):
        if value.is_floating_point():
            t.requires_grad_()
    out = case.ours(library, *inputs)
    result = [out.torch()]
    out.backward(library.tensor(dy))
    return result + [t.grad and t.grad.torch() for t in inputs]


def same(a, b, is_value, tolerance=1e-6):
    """Whether a, ours, is PyTorch's b where that is finite, and is a NaN or an infinity where that is one: which of the
    two depends on the order of sums. A gradient of ours may be finite there, where PyTorch multiplies 0 with it."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape:
        return False
    a, b = a.double(), b.double()
    finite = b.isfinite()
    near = (a - b).abs() <= tolerance * max([1.0, *b[finite].abs().tolist()])
    return bool(torch.where(finite, near, ~a.isfinite() | (not is_value)).all())


def compare(library, case, what, values, gradient):
    """How many comparisons there were, and how many differed."""
    theirs = theirs_of(case, values, gradient)
    if not theirs:
        return 0, 0
    name = f"{case.row}, {case.note or 'plain'}, {what}"
    dy, expected = theirs
    try:
        results = ours_of(library, case, values, dy)
    except memtape.MemtapeError as error:
        print(f"{name}: memtape: {error}")
        return 1, 1
    names = ["values", *(f"gradient of input {i}" for i in range(len(values)))]
    wrong = [f"{name}: {part}: {a if a is None else a.tolist()}, PyTorch {b if b is None else b.tolist()}"
             for part, a, b in zip(names, results, expected) if not same(a, b, part == "values")]
    print(*(line[:600] for line in wrong), sep="\n", end="\n" * bool(wrong))
    return 1, bool(wrong)


def emptied(case):
    """The case's inputs with an extent of 0 instead of one size, wherever that stands."""
    for size in sorted({n for i in case.inputs for n in i.shape}):
        shapes = [tuple(0 if n == size else n for n in i.shape) for i in case.inputs]
        try:
            values = [replace(i, shape=shape).draw(GENERATOR, torch.float32) for i, shape in zip(case.inputs, shapes)]
        except RuntimeError:  # an index below 0
            continue
        yield f"{size} -> 0", values, weights()


def planted(case):
    """The case's inputs with a special value in one of them or, last, in the incoming gradient."""
    values = [i.draw(GENERATOR, torch.float32) for i in case.inputs]
    for which, t in enumerate(values):
        for special in SPECIAL:
            if t.is_floating_point():
                changed = t.clone()
                changed.view(-1)[t.numel() // 2] = special
                yield f"{special} in input {which}", [*values[:which], changed, *values[which + 1:]], weights()
    for special in SPECIAL:
        yield f"{special} in the gradient", values, weights(special)


def weights(special=None):
    """What makes the incoming gradient of a result."""
    def gradient(out):
        dy = torch.linspace(-1, 1, max(out.numel(), 1)).reshape(-1)[:out.numel()].reshape(out.shape) + 0.25
        if out.numel() and special is not None:
            dy.view(-1)[out.numel() // 2] = special
        return dy.to(out.dtype)
    return gradient


def main():
    library = memtape.Library(sys.argv[1])
    n = wrong = 0
    for case in table_cases(library):
        for call in (*emptied(case), *(() if otherwise(case) else planted(case))):
            compared, differed = compare(library, case, *call)
            n, wrong = n + compared, wrong + differed
    print(f"{n} calls compared, {wrong} differ")
    sys.exit(wrong > 0)


main()
