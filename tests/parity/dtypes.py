#!/usr/bin/env python3
"""dtypes.py LIBMEMTAPE_CASES: casts between every two dtypes beside PyTorch's, bit by bit: every value of the
dtypes of one and two bytes, and of the wider ones what surrounds the numbers of the target. Values that C, and so
PyTorch, leaves undefined (a float that the whole numbers of the target do not reach) are left out. Exit status 77
without PyTorch."""

import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from memtape import DTYPES


def all_values(dtype):
    n = torch.empty((), dtype=dtype).element_size()
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if n == 1:
        return torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype)
    if n == 2:
        return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)
    return None


def wide_values(dtype):
    """Each number of the narrow floats, the middle of two of them, what lies beside both; powers of two."""
    near = []
    for narrow in (torch.float8_e4m3fn, torch.float8_e5m2, torch.float16, torch.bfloat16):
        known = all_values(narrow).to(torch.float64)
        known = known[known.isfinite()].sort()[0]
        near += [known, (known[1:] + known[:-1]) / 2]
    powers = 2.0 ** torch.arange(0, 63, dtype=torch.float64)
    near = torch.cat(near + [powers - 1, powers, powers + 1, -powers, torch.linspace(-300, 300, 2401, dtype=torch.float64)])
    if not dtype.is_floating_point:
        return near[near.isfinite() & (near.abs() < 2.0 ** (31 if dtype == torch.int32 else 62))].to(dtype)
    x = near.to(dtype)
    ends = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, -0.0], dtype=dtype)
    up, down = (torch.nextafter(x, torch.tensor(end, dtype=dtype)) for end in (float("inf"), float("-inf")))
    return torch.cat([x, up, down, ends])


def defined(x, target):
    """Whether C defines each value's conversion."""
    if not x.is_floating_point() or target.is_floating_point or target == torch.bool:
        return torch.ones(x.shape, dtype=torch.bool)
    limits, wide = torch.iinfo(target), x.to(torch.float64)
    return wide.isfinite() & (wide.trunc() >= limits.min) & (wide < float(limits.max) + (target != torch.int64))


def bits(t):
    return t.contiguous().view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[t.element_size()])


def compare(library, x, target):
    ours = library.call("cast", library.tensor(x), DTYPES.index(target)).torch()
    want = x.to(target)
    differs = bits(ours) != bits(want)
    if target.is_floating_point:  # a NaN may have any payload and sign
        differs &= ~(ours.to(torch.float64).isnan() & want.to(torch.float64).isnan())
    if differs.any():
        at = differs.nonzero()[0].item()
        print(f"{x.dtype} to {target}: {int(differs.sum())} differ; {x[at].item()!r} gives {ours[at].item()!r}, "
              f"PyTorch {want[at].item()!r}")
    return int(differs.any())


def main():
    library = memtape.Library(sys.argv[1])
    faults = n = pairs = 0
    for source in DTYPES:
        values = all_values(source)
        values = wide_values(source) if values is None else values
        for target in DTYPES:
            if source != target:
                x = values[defined(values, target)]
                faults += compare(library, x, target)
                n, pairs = n + len(x), pairs + 1
    print(f"{n} values in {pairs} pairs of dtypes, {faults} pairs differ")
    sys.exit(faults > 0)


main()
