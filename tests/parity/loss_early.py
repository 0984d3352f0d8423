#!/usr/bin/env python3
"""loss_early.py LIBMEMTAPE_CASES: linear_cross_entropy_early beside PyTorch's chunked F.linear_cross_entropy, in f32: what
stays after forward is equal, and forward's peak is lower by what PyTorch alone makes, the targets once more, a mask, and rows
of the weight for a chunk; backward takes no memory. Exit status 77 without PyTorch."""

import sys

try:
    import torch
    from torch.nn.modules.linear_cross_entropy import _linear_cross_entropy_batch_chunked_accumulator as accumulate
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from lifetimes import Lifetimes
from memtape import P, SIZE

FEW = 256  # bytes of numbers for each row of a chunk, and of scalars


def theirs(x, w, target, chunk):
    with Lifetimes([x, w, target]) as lifetimes:
        result = accumulate(x, w, target, None, None, "mean", -100, 0.0, chunk, "compact", torch.float32, True, True, False)
    return lifetimes.peak, lifetimes.now, result


def ours(meta, x, w, target, chunk):
    peak, stats = meta.dll.mt_mem_reset_peak, (SIZE * 512)()
    peak.argtypes = [P]
    x, w, target = meta.tensor(x).requires_grad_(), meta.tensor(w).requires_grad_(), meta.tensor(target)
    before, seen = meta.requested_bytes(), []
    peak(meta.device)
    loss = meta.call("linear_cross_entropy_early", x, w, target, -100, chunk, 1)
    for run in (lambda: None, lambda: meta.check(meta.mt_backward_with(loss.pointer, None))):
        run()
        meta.mt_mem_get_stats(meta.device, stats)
        seen += [stats[1] - before, stats[0] - before]
        peak(meta.device)
    return seen


def main():
    meta, faults = memtape.Library(sys.argv[1]), 0
    meta.device = meta.mt_device_open(b"meta")
    for n, h, v in ((512, 64, 1000), (256, 32, 4096), (100, 48, 700)):
        options = torch.nn.LinearCrossEntropyOptions()._adjust(n, h, v, torch.float32)
        assert options.acc_policy == "compact"
        chunk = options.batch_chunk_size
        x, w, target = torch.randn(n, h), torch.randn(v, h), torch.randint(0, v, (n,))
        peak, kept, _ = theirs(x, w, target, chunk)
        forward, stays, backward, after = ours(meta, x, w, target, chunk)
        more = peak - forward - 9 * n - 4 * chunk * h
        if stays != kept or not 0 <= more < FEW or backward > kept + 16 or after != kept:
            print(f"{n} rows of {h}, {v} classes: {forward, stays, backward, after}, PyTorch {peak, kept}")
            faults += 1
    print(f"{faults} differences")
    sys.exit(faults > 0)


main()
