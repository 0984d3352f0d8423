"""Models with FSDP2 (fully_shard) on a group that sends nothing, and what PyTorch's own FSDPMemTracker counts of a real step on the CPU."""
import contextlib
import functools
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.testing._internal.distributed.fake_pg import FakeStore

warnings.filterwarnings("ignore", "FSDP2-wrapped module")
B, S, V, D = 2, 16, 64, 32
SGD = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True)
ADAMW = functools.partial(torch.optim.AdamW, foreach=True)


class Block(nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.norms = nn.ModuleList([norm(width) for _ in range(2)])
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (4, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    def __init__(self, width=D, layers=3, norm=nn.LayerNorm):
        super().__init__()
        self.embed, self.layers = nn.Embedding(V, width), nn.ModuleList([Block(width, norm) for _ in range(layers)])
        self.norm, self.head = norm(width), nn.Linear(width, V, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), ids.flatten())


@contextlib.contextmanager
def of_ranks(*ranks):
    """A mesh of a group that sends nothing; of two numbers replicas of shards."""
    n = functools.reduce(lambda a, b: a * b, ranks)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=n)
    try:
        yield dist.init_device_mesh("cpu", ranks, mesh_dim_names=("replicas", "shards")[-len(ranks):])
    finally:
        dist.destroy_process_group()


def sharded(mesh, make=GPT, layers=lambda model: model.layers, **options):
    torch.manual_seed(0)
    model = make()
    for layer in layers(model):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def ids():
    return torch.arange(B * S).view(B, S) % V


def by_pytorch(model, batch, optimizer, n=1, loss=None):
    """[(peak, end) of forward, backward and step] of the second step, by FSDPMemTracker; n: microbatches."""
    from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
    tracker, device = FSDPMemTracker(model, optimizer), torch.device("cpu")
    tracker.track_inputs((batch,))

    def total(which="current"):
        return tracker.get_tracker_snapshot(which)[device]["Total"]

    def begin():
        tracker._peak_mem[device] = total()

    with tracker:
        for _ in range(2):
            figures = []
            for _ in range(n):
                begin()
                out = loss(model, batch) if loss else model(batch)
                if n > 1:
                    out = out / n
                figures.append((tracker._peak_mem[device], total()))
                begin()
                out.backward()
                del out
                figures.append((tracker._peak_mem[device], total()))
                tracker.reset_mod_stats()
            begin()
            optimizer.step()
            peak = tracker._peak_mem[device]
            optimizer.zero_grad()
            figures.append((peak, total()))
    return figures


# In 16 bits without norms, whose statistics the CPU has in 16 bits and CUDA in f32.
SETUPS = {
    "as it comes": {}, "not let go after forward": {"reshard_after_forward": False},
    "16 bits, sums in f32": {"make": functools.partial(GPT, norm=nn.Identity),
                             "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)},
    "16 bits": {"make": functools.partial(GPT, norm=nn.Identity), "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)},
}
