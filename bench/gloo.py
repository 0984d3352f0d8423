"""gloo.py RANK RANKS BYTES ROUNDS FILE: one rank of PyTorch's gloo; the same calls as `memtape_bench ranks`, and
the same lines."""

import sys
import time

import torch
import torch.distributed as dist

rank, ranks, n_bytes, rounds = map(int, sys.argv[1:5])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[5]}", rank=rank, world_size=ranks)
n = n_bytes // 4 // ranks * ranks


def all_reduce():
    y = x.clone()
    dist.all_reduce(y)
    return y


def all_gather():
    y = torch.empty(n)
    dist.all_gather_into_tensor(y, part)
    return y


def reduce_scatter():
    y = torch.empty(n // ranks)
    dist.reduce_scatter_tensor(y, x)
    return y


x, part, tiny = torch.ones(n), torch.ones(n // ranks), torch.zeros(1)
for call, want in ((all_reduce, ranks), (all_gather, 1), (reduce_scatter, ranks)):
    ns = []
    for i in range(-1, rounds):
        dist.all_reduce(tiny)
        began = time.perf_counter_ns()
        y = call()
        if i >= 0:
            ns.append(time.perf_counter_ns() - began)
        elif y.mean().item() != want:
            sys.exit(f"{call.__name__}: wrong result")
    if rank == 0:
        ns.sort()
        print(call.__name__, n * 4, ns[0], ns[rounds // 2])
dist.destroy_process_group()
