#!/usr/bin/env python3
"""adafactor.py LIBMEMTAPE_CASES: mt_adafactor_new beside torch.optim.Adafactor over ten steps: parameters and moments of
matrices, batches of them and vectors, with and without weight decay, other decays, bounds and thresholds; and the moments'
dtypes, shapes and bytes, which are equal. In f32 and f64 the values agree to rounding. In 16 bits PyTorch rounds after
every operation, memtape once, so there memtape is compared with PyTorch's arithmetic in f32 on the same values, rounded
after each step. Exit status 77 without PyTorch."""

import ctypes
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from memtape import BOOL, I, I64, P, REAL, SIZE, TEXT

SHAPES = [(3, 5), (130, 1), (1, 7), (2, 3, 4), (300, 520), (6,), (1000,), (1,)]
TOLERANCE = {torch.float64: 1e-13, torch.float32: 4e-6, torch.bfloat16: 2 ** -7, torch.float16: 2 ** -8}
STEPS = 10


class Options(ctypes.Structure):
    _fields_ = [("lr", REAL), ("beta2_decay", REAL), ("eps1", REAL), ("eps2", REAL), ("clip", REAL),
                ("weight_decay", REAL), ("decay_matrices_only", BOOL), ("master", BOOL)]


class Entry(ctypes.Structure):
    _fields_ = [("param", TEXT), ("name", TEXT), ("tensor", P), ("step", I64)]


def functions(library):
    for name, result, arguments in (("module_new", P, (TEXT, P, P, P)), ("module_add_param", P, (P, TEXT, P)),
                                    ("module_free", None, (P,)), ("set_grad", I, (P, P)),
                                    ("adafactor_new", P, (P, ctypes.POINTER(Options))), ("optimizer_step", I, (P,)),
                                    ("optimizer_free", None, (P,)), ("optimizer_state_count", SIZE, (P,)),
                                    ("optimizer_state", I, (P, SIZE, ctypes.POINTER(Entry))),
                                    ("adafactor_bytes", I64, (I, I, ctypes.POINTER(I64), BOOL))):
        function = getattr(library.dll, f"mt_{name}")
        function.restype, function.argtypes = result, arguments
        yield name, function


def apart(ours, theirs):
    scale = max(1, theirs.to(torch.float64).abs().max().item())
    return (ours.to(torch.float64) - theirs.to(torch.float64)).abs().max().item() / scale


def close(what, ours, theirs, tolerance):
    worst = apart(ours, theirs)
    if worst <= tolerance:
        return 0
    print(f"{what}: {worst} apart")
    return 1


def states(library, calls, optimizer):
    for i in range(calls["optimizer_state_count"](optimizer)):
        entry = Entry()
        calls["optimizer_state"](optimizer, i, entry)
        yield entry.name.decode(), memtape.Tensor(library, entry.tensor, owned=False)


def round_to(dtype, optimizer, parameter):
    """What a step in f32 leaves in 16 bits."""
    parameter.data.copy_(parameter.data.to(dtype).to(parameter.dtype))
    for name, value in optimizer.state[parameter].items():
        if name != "step":
            value.copy_(value.to(dtype).to(value.dtype))


def compare(library, calls, dtype, shape, options):
    generator, faults = torch.Generator().manual_seed(7), 0
    name = f"{str(dtype)[6:]} {list(shape)} {options}"
    forward = ctypes.CFUNCTYPE(P, P, P)(lambda module, x: None)
    narrow = dtype.itemsize == 2
    start = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    theirs = torch.nn.Parameter(start.to(torch.float32) if narrow else start.clone())
    eps1 = options.get("eps1") or (torch.finfo(dtype).eps if narrow else None)
    adafactor = torch.optim.Adafactor([theirs], lr=options["lr"], beta2_decay=options.get("beta2_decay", -0.8),
                                      eps=(eps1, options.get("eps2", 1e-3)), d=options.get("clip", 1.0),
                                      weight_decay=options.get("weight_decay", 0.0))
    real = torch.nn.Parameter(start.clone())
    itself = torch.optim.Adafactor([real], lr=options["lr"])  # for its state's dtypes, shapes and bytes
    module = calls["module_new"](b"m", forward, None, None)
    made = library.tensor(start)
    made.owned = False  # the module takes it over
    ours = memtape.Tensor(library, calls["module_add_param"](module, b"p", made.pointer), owned=False)
    library.check(library.mt_set_requires_grad(ours.pointer, True))
    optimizer = calls["adafactor_new"](module, Options(**options))
    if not optimizer:
        raise library.error()
    for step in range(STEPS):
        gradient = (torch.randn(shape, generator=generator, dtype=torch.float64) * 10.0 ** (step % 3 - 2)).to(dtype)
        theirs.grad = gradient.to(theirs.dtype)
        adafactor.step()
        if narrow:
            round_to(dtype, adafactor, theirs)
        handed = library.tensor(gradient)
        library.check(calls["set_grad"](ours.pointer, handed.pointer))
        library.check(calls["optimizer_step"](optimizer))
        faults += close(f"{name}, step {step + 1}: parameter", ours.torch(), theirs, TOLERANCE[dtype] * (step + 1))
        for state, value in states(library, calls, optimizer):
            faults += close(f"{name}, step {step + 1}: {state}", value.torch(), adafactor.state[theirs][state],
                            TOLERANCE[dtype] * 2)
    real.grad = gradient
    itself.step()
    want = {key: value for key, value in itself.state[real].items() if key != "step"}
    have = {key: value.torch() for key, value in states(library, calls, optimizer)}
    if {k: (v.dtype, tuple(v.shape)) for k, v in want.items()} != {k: (v.dtype, tuple(v.shape)) for k, v in have.items()}:
        print(f"{name}: state {[(k, v.dtype, list(v.shape)) for k, v in have.items()]}, PyTorch "
              f"{[(k, v.dtype, list(v.shape)) for k, v in want.items()]}")
        faults += 1
    total = sum(v.numel() * v.itemsize for v in want.values())
    formula = calls["adafactor_bytes"](memtape.DTYPES.index(dtype), len(shape), memtape.ints(shape), False)
    if sum(v.numel() * v.itemsize for v in have.values()) != total or formula != total:
        print(f"{name}: the formula has {formula} bytes, PyTorch {total}")
        faults += 1
    del ours
    calls["optimizer_free"](optimizer)
    calls["module_free"](module)
    return faults


def main():
    library = memtape.Library(sys.argv[1])
    calls, n, faults = dict(functions(library)), 0, 0
    several = [{"lr": 0.01}, {"lr": 0.5, "weight_decay": 0.1},
               {"lr": 0.1, "beta2_decay": -0.5, "eps1": 0.1, "eps2": 0.5, "clip": 2.0}]
    for dtype in TOLERANCE:
        for shape in SHAPES:
            for options in several:
                faults += compare(library, calls, dtype, shape, options)
                n += 1
    print(f"{n} parameters compared over {STEPS} steps, {faults} differences")
    sys.exit(faults > 0)


main()
