#!/usr/bin/env python3
"""muon.py LIBMEMTAPE_CASES: mt_muon_new beside torch.optim.Muon over five steps, both adjustments: momenta to rounding,
parameters to what Newton and Schulz's steps in bf16 leave open (PyTorch, too, is that far from their values in f64); a stack of
matrices as matrices that are parameters of their own, which are all that PyTorch's takes; and the most bytes that a step requests beside what was there before, which are equal. Exit status 77 without PyTorch."""

import ctypes
import math
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from lifetimes import Lifetimes
from memtape import BOOL, I, REAL
from one_param import OneParam

SHAPES = [(8, 8), (40, 100), (100, 40), (1, 30), (256, 64), (3, 48, 16)]  # the last: three experts' matrices
LR, DECAY, STEPS = 0.02, 0.1, 5
SCALARS = 4  # the norm and its bound, in bf16, which PyTorch has on the device


class Options(ctypes.Structure):
    _fields_ = [("lr", REAL), ("momentum", REAL), ("weight_decay", REAL), ("adjust", I), ("adamw_lr", REAL), ("beta1", REAL),
                ("beta2", REAL), ("eps", REAL), ("decay_matrices_only", BOOL), ("master", BOOL)]


def exact(u):
    """Newton and Schulz's steps in f64."""
    if u.dim() == 3:
        return torch.stack([exact(one) for one in u])
    x = u.double().T if u.size(0) > u.size(1) else u.double()
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        s = x @ x.T
        x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
    return x.T if u.size(0) > u.size(1) else x


def compare(library, meta, dtype, shape, adjust):
    generator, faults = torch.Generator().manual_seed(7), 0
    name = f"{str(dtype)[6:]} {list(shape)} {adjust}"
    start = torch.randn(shape, generator=generator, dtype=torch.float64).mul(0.02).to(dtype)
    matrices = start.clone().view(-1, *shape[-2:])
    each = [torch.nn.Parameter(matrix) for matrix in matrices]  # views of one
    theirs = matrices.view(shape)
    muon = torch.optim.Muon(each, lr=LR, weight_decay=DECAY, adjust_lr_fn=adjust)
    options = {"lr": LR, "weight_decay": DECAY, "adjust": adjust == "match_rms_adamw"}
    ours, imagined = (OneParam(where, "muon_new", start, Options(**options)) for where in (library, meta))
    rate = muon.param_groups[0]["lr"] * (0.2 * math.sqrt(max(shape[-2:])) if adjust == "match_rms_adamw" else
                                         math.sqrt(max(1, shape[-2] / shape[-1])))
    far = [0, 0]  # of theirs from the steps in f64, and of ours from theirs, in shares of a step
    for step in range(STEPS):
        gradient = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) * 10.0 ** (step % 3 - 2)
        for p, g in zip(each, gradient.view(-1, *shape[-2:])):
            p.grad = g
        before = theirs.detach().clone()
        with Lifetimes([theirs, gradient, *[s for p in each for s in muon.state[p].values()]]) as lifetimes:
            muon.step()
        ours.step(gradient)
        imagined_peak = imagined.step(gradient)
        momentum = ours.state()["momentum"]
        wanted = torch.stack([muon.state[p]["momentum_buffer"] for p in each]).view(shape)
        if momentum.dtype != wanted.dtype or not torch.allclose(momentum.double(), wanted.double(), rtol=2 * torch.finfo(
                dtype).eps, atol=1e-9):
            print(f"{name}, step {step + 1}: momentum")
            faults += 1
        if step and not lifetimes.peak - SCALARS <= imagined_peak <= lifetimes.peak:
            print(f"{name}, step {step + 1}: {imagined_peak} bytes beside those from before, PyTorch {lifetimes.peak}")
            faults += 1
        u = gradient.lerp(wanted, 0.95)
        want = before.double() * (1 - LR * DECAY) - rate * exact(u)
        far[0] = max(far[0], (theirs.double() - want).abs().max().item() / rate)
        far[1] = max(far[1], (ours.p.torch().double() - want).abs().max().item() / rate)
        same = theirs.detach().view(torch.uint8).numpy()  # the next step begins with the same values
        library.check(library.mt_copy_from_host(ours.p.pointer, same.ctypes.data, same.nbytes))
    if far[1] > 1.5 * far[0] + 0.01:
        print(f"{name}: {far[1]} of a step away, PyTorch {far[0]}")
        faults += 1
    ours.close(), imagined.close()
    return faults


def main():
    library, meta = memtape.Library(sys.argv[1]), memtape.Library(sys.argv[1])
    meta.device = meta.mt_device_open(b"meta")
    n, faults = 0, 0
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for shape in SHAPES:
            for adjust in ("original", "match_rms_adamw"):
                faults += compare(library, meta, dtype, shape, adjust)
                n += 1
    print(f"{n} matrices compared over {STEPS} steps, {faults} differences")
    sys.exit(faults > 0)


main()
