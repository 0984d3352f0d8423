#!/usr/bin/env python3
"""batch_norm.py LIBMEMTAPE_CASES: the module mt_batch_norm_new beside torch.nn.BatchNorm1d over some training steps
and an evaluation: values, gradients and saved bytes (tests/parity/parity.py has more of these), and the running
statistics after each. Exit status 77 without PyTorch."""

import ctypes
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from memtape import I, I64, P, REAL, TEXT

TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}


def functions(library):
    for name, result, arguments in (("batch_norm_new", P, (P, I, I64, REAL, REAL)), ("module_param", P, (P, TEXT)),
                                    ("module_set_training", None, (P, ctypes.c_bool)), ("forward", P, (P, P)),
                                    ("module_free", None, (P,)), ("module_zero_grad", None, (P,))):
        function = getattr(library.dll, f"mt_{name}")
        function.restype, function.argtypes = result, arguments
        yield name, function


def close(what, ours, theirs, tolerance):
    worst = (ours.to(torch.float64) - theirs.to(torch.float64)).abs().max().item() if theirs.numel() else 0
    if worst <= tolerance:
        return 0
    print(f"{what}: {worst} apart")
    return 1


def compare(library, calls, dtype, shape, momentum):
    theirs = torch.nn.BatchNorm1d(shape[1], momentum=momentum).to(dtype)
    ours = calls["batch_norm_new"](library.device, memtape.DTYPES.index(dtype), shape[1], momentum, 0)
    own = {name: memtape.Tensor(library, calls["module_param"](ours, name.encode()), owned=False)
           for name in ("weight", "bias", "running_mean", "running_var")}
    generator, faults, name = torch.Generator().manual_seed(5), 0, f"{dtype} {list(shape)}"
    for step in range(4):
        training = step < 3
        theirs.zero_grad()
        calls["module_zero_grad"](ours)
        theirs.train(training)
        calls["module_set_training"](ours, training)
        x = (torch.randn(shape, generator=generator, dtype=torch.float64) * (step + 1) + step).to(dtype)
        gradient = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        a, b = library.tensor(x).requires_grad_(), x.clone().requires_grad_()
        with memtape.Ledger(library) as ledger:
            y = memtape.Tensor(library, calls["forward"](ours, a.pointer))
        kept, known = {}, {t.untyped_storage().data_ptr() for t in theirs.parameters()}
        if training:  # autograd's node has no other bytes than the two statistics it makes
            known |= {t.untyped_storage().data_ptr() for t in theirs.buffers()}

        def pack(t):
            if t.untyped_storage().data_ptr() not in known:
                kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            z = theirs(b)
        if ledger.bytes != sum(kept.values()):
            print(f"{name}, step {step}: {ledger.bytes} bytes saved, PyTorch {sum(kept.values())}")
            faults += 1
        y.backward(library.tensor(gradient))
        z.backward(gradient)
        at, tolerance = f"{name}, step {step}: ", TOLERANCE[dtype] * 10
        faults += close(at + "values", y.torch(), z, tolerance)
        faults += close(at + "gradient of x", a.grad.torch(), b.grad, tolerance)
        for what in ("weight", "bias"):
            faults += close(at + f"gradient of {what}", own[what].grad.torch(), getattr(theirs, what).grad,
                            tolerance * 100)
        for what in ("running_mean", "running_var"):
            faults += close(at + what, own[what].torch(), getattr(theirs, what), tolerance)
    del a, y, own
    calls["module_free"](ours)
    return faults


def main():
    library = memtape.Library(sys.argv[1])
    calls, n, faults = dict(functions(library)), 0, 0
    for dtype in TOLERANCE:
        for shape in ((4, 3), (65, 40), (3, 5, 7), (2, 3, 70)):
            for momentum in (0.1, 0.75):
                faults += compare(library, calls, dtype, shape, momentum)
                n += 1
    print(f"{n} modules compared over 4 steps, {faults} differences")
    sys.exit(faults > 0)


main()
