"""ddp.py RANK RANKS ddp|fsdp THREADS LAYERS HIDDEN HEADS VOCAB BATCH SEQ ROUNDS FILE: one rank of PyTorch's data
parallelism over gloo: training steps of peer.py's GPT, which `memtape_bench rank_steps` makes, too."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from peer import Gpt, now_ns, status_kib, tokens_of

rank, ranks = map(int, sys.argv[1:3])
kind = sys.argv[3]
threads, layers, d, heads, vocab, batch, seq, rounds = map(int, sys.argv[4:12])
torch.set_num_threads(threads)
dist.init_process_group("gloo", init_method=f"file://{sys.argv[12]}", rank=rank, world_size=ranks)
start = status_kib("VmRSS")
torch.manual_seed(1)
model = Gpt(layers, d, heads, vocab, seq, "none")
if kind == "fsdp":
    mesh = dist.device_mesh.init_device_mesh("cpu", (ranks,))
    for block in model.h:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
elif ranks > 1:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
own = batch // ranks
tokens, targets = (tokens_of(batch, seq, vocab, shift)[rank * own:(rank + 1) * own] for shift in (0, 1))
tiny = torch.zeros(1)


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(tokens).view(-1, vocab), targets.reshape(-1))
    loss.backward()
    optimizer.step()
    return loss.detach()


def mean(loss):
    dist.all_reduce(loss)
    return loss.item() / ranks


def timed(n):
    ns, loss = [], None
    for _ in range(n):
        dist.all_reduce(tiny)
        began = now_ns()
        loss = mean(step())
        ns.append(now_ns() - began)
    return sorted(ns), loss


step()
ns, last = timed(rounds)
print("step", ns[0], ns[rounds // 2])
print("memory", start, status_kib("VmHWM"))
print("loss", last)
if kind == "ddp" and ranks > 1:
    with model.no_sync():
        alone = timed(rounds)[0]
    print("comms", max(0, 1 - alone[rounds // 2] / ns[rounds // 2]))
dist.destroy_process_group()
# Now and then a thread of DDP's outlives what it runs in, and the process ends with "terminate called without an
# active exception" on its way out, after everything was measured. So it ends here.
sys.stdout.flush()
os._exit(0)
