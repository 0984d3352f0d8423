#!/usr/bin/env python3
"""torchao_states.py LIBMEMTAPE_CASES: AdamW with torchao's states in 8 bits, FP8 and 4 bits beside their definition, written down in
PyTorch: values over five steps, bytes of the states, and the most bytes that a step requests. Exit status 77 without
PyTorch."""

import ctypes
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from memtape import BOOL, I, REAL
from one_param import OneParam

MOMENTS = {"bf16": 3, "8bit": 4, "fp8": 5, "4bit": 6}  # mt_moments
BLOCK = {"8bit": 256, "fp8": 256, "4bit": 128}
LR, BETAS, EPS, DECAY, STEPS = 0.01, (0.9, 0.95), 1e-8, 0.1, 5


class Options(ctypes.Structure):
    _fields_ = [("lr", REAL), ("beta1", REAL), ("beta2", REAL), ("eps", REAL), ("weight_decay", REAL),
                ("decay_matrices_only", BOOL), ("master", BOOL), ("moments", I), ("paged", BOOL), ("form", I), ("host", BOOL)]


def levels(signed, bits):
    """Dynamic tree quantisation: each decade below 1 is cut into twice as many equal cells as the one below it."""
    if bits == 4 and not signed:
        return [(k + 1) / 16 for k in range(16)]
    decades, least = (3, 1) if bits == 4 else (7, 1 if signed else 2)
    found = [0.0, 1.0]
    for i in range(decades):
        cells = least << i
        middles = [10.0 ** (i - decades + 1) * (0.1 + 0.9 * (k + 0.5) / cells) for k in range(cells)]
        found += middles + [-x for x in middles if signed]
    return sorted(found)


def rounded(kind, signed, x):
    """What a state has of x."""
    blocks = x.reshape(-1, BLOCK[kind])
    largest = blocks.abs().amax(1, keepdim=True).clip(1e-30)
    if kind == "fp8":
        shares = (blocks / (largest / 448)).to(torch.float8_e4m3fn).float()
        return (shares * (largest / 448)).reshape(x.shape)
    table = torch.tensor(levels(signed, int(kind[0])))
    shares = table[(blocks.unsqueeze(-1) / largest.unsqueeze(-1) - table).abs().argmin(-1)]
    return (shares * largest).reshape(x.shape)


def decoded(kind, signed, state, n):
    """A state tensor's values."""
    at = n // 2 if kind == "4bit" else n
    scales = state[at:at + 4 * n // BLOCK[kind]].view(torch.float32).reshape(-1, 1)
    if kind == "fp8":
        values = state[:n].view(torch.float8_e4m3fn).float()
    elif kind == "4bit":
        codes = torch.stack([state[:at] >> 4, state[:at] & 15], 1).reshape(-1).long()
        values = torch.tensor(levels(signed, 4))[codes]
    else:  # ranks, of which m's are of the magnitude (backends/moments.h)
        codes = state[:n].long()
        table = torch.tensor([v for v in levels(signed, 8) if v >= 0])
        negative = (codes > 128) & signed
        values = table[torch.where(negative, codes - 128, codes)] * torch.where(negative, -1.0, 1.0)
    return (values.reshape(-1, BLOCK[kind]) * scales).reshape(-1)


def compare(library, kind, dtype, n):
    generator, faults, name = torch.Generator().manual_seed(3), 0, f"{kind} {str(dtype)[6:]} {n}"
    start = torch.randn(n, generator=generator).to(dtype)
    ours = OneParam(library, "adamw_new", start, Options(LR, *BETAS, EPS, DECAY, False, False, MOMENTS[kind]))
    coded = n >= 4096 and n % BLOCK.get(kind, n + 1) == 0
    plain = dtype if kind != "bf16" else torch.bfloat16
    p, moments, far = start.float(), [torch.zeros(n), torch.zeros(n)], 0
    for t in range(1, STEPS + 1):
        g = torch.randn(n, generator=generator).mul(10.0 ** (t % 3 - 2)).to(dtype)
        g32 = g.float()
        moments = [moments[0].lerp(g32, 1 - BETAS[0]), moments[1].lerp(g32.square(), 1 - BETAS[1])]
        p = p * (1 - LR * DECAY) - LR * (moments[0] / (1 - BETAS[0] ** t)) / (
            moments[1].sqrt() / (1 - BETAS[1] ** t) ** 0.5 + EPS)
        p = p.to(dtype).float()
        moments = [rounded(kind, not k, m) if coded else m.to(plain).float() for k, m in enumerate(moments)]
        peak = ours.step(g)
        state = ours.state()
        have = [decoded(kind, not k, state[key], n) if coded else state[key].float() for k, key in enumerate("mv")]
        for what, mine, wanted in zip("mvp", [*have, ours.p.torch().float()], [*moments, p]):
            # Ties fall one way or the other, by rounding.
            off = (mine - wanted).abs() > 1e-6 * wanted.abs().max() + wanted.abs() * max(2e-6, 2 * torch.finfo(plain).eps * (
                what != "p") * (not coded), (what == "p") * torch.finfo(dtype).eps)
            far = max(far, off.sum().item() / n)
        if far > 0.003:
            print(f"{name}, step {t}: {far} of the values are others")
            faults += 1
        p, moments = ours.p.torch().float(), have  # from which the next step is compared
        if t > 1:
            codes = n // 2 if kind == "4bit" else n
            held = (8 * n + codes + 4 * n * (dtype != torch.float32)) if coded else 0
            faults += equal(name, "most bytes beside those from before", peak, held)
    each = {"8bit": n + n // 64 + 1024, "fp8": n + n // 64, "4bit": n // 2 + n // 32 + 64}[kind] if coded else n * plain.itemsize
    faults += sum(equal(name, f"bytes of {key}", tensor.nbytes, each) for key, tensor in state.items())
    ours.close()
    return faults


def equal(name, what, is_, wanted):
    if is_ == wanted:
        return 0
    print(f"{name}: {what}: {is_}, wanted {wanted}")
    return 1


def main():
    library, n, faults = memtape.Library(sys.argv[1]), 0, 0
    for kind in MOMENTS:
        for dtype in (torch.float32, torch.bfloat16):
            for size in (4096, 4096 + 128, 4000, 20000 - 20000 % 256):
                faults += compare(library, kind, dtype, size)
                n += 1
    print(f"{n} parameters compared over {STEPS} steps, {faults} differences")
    sys.exit(faults > 0)


main()
