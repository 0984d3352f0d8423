"""What torch.compile keeps of a LLaMA layer: as much as the fused ops here with keys and values copied for each head
(kv-groups=repeated). The layer is written as torchtune and torchtitan write theirs: keys and values expanded before
the fused attention (of one head of keys that would be a view, not a copy), RMS norm in f32, silu(gate) up. Compiled by
AOTAutograd with the partitioner and the decompositions that inductor takes; code for the kernels is not made, as it
does not change what is kept."""
import json
import os
import subprocess
import sys
import warnings

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import torch.nn.functional as F
from torch import nn
from harness import SavedTensors

B, S = 2, 16
GENERATOR = 16  # of flash attention, which PyTorch on the CPU does not have (docs/parity.md)
BACKEND = "aot_eager_decomp_partition"
SHAPES = [(48, 6, 2, 40), (64, 8, 2, 96), (24, 3, 3, 64)]  # width, heads, heads of keys, the MLP's width


def norm(x, weight):
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x) * weight


class Layer(nn.Module):
    def __init__(self, d, a, k, f, dtype):
        super().__init__()
        self.a, self.k, self.width = a, k, d // a
        sizes = {"q": (d, d), "k_": (k * d // a, d), "v": (k * d // a, d), "proj": (d, d), "gate": (f, d), "up": (f, d),
                 "down": (d, f), "ln_1": (d,), "ln_2": (d,)}
        self.w = nn.ParameterDict({n: nn.Parameter(torch.randn(s, dtype=dtype) / 8) for n, s in sizes.items()})
        angle = torch.outer(torch.arange(S), 1e4 ** (-torch.arange(0, self.width, 2) / self.width))
        self.register_buffer("angles", torch.stack([angle.cos(), angle.sin()], -1))

    def turned(self, x):
        pairs = x.float().reshape(*x.shape[:-1], -1, 2)
        cosine, sine = self.angles[:, None, :, 0], self.angles[:, None, :, 1]
        both = [pairs[..., 0] * cosine - pairs[..., 1] * sine, pairs[..., 1] * cosine + pairs[..., 0] * sine]
        return torch.stack(both, -1).flatten(3).type_as(x)

    def repeated(self, x):
        x = x[:, :, :, None].expand(B, S, self.k, self.a // self.k, self.width)
        return x.reshape(B, S, self.a, self.width).transpose(1, 2)

    def forward(self, x):
        n = norm(x, self.w["ln_1"])
        q, k, v = (F.linear(n, self.w[name]).view(B, S, -1, self.width) for name in ("q", "k_", "v"))
        q, k = self.turned(q).transpose(1, 2), self.turned(k)
        y = F.scaled_dot_product_attention(q, self.repeated(k), self.repeated(v), is_causal=True)
        x = x + F.linear(y.transpose(1, 2).reshape(B, S, -1), self.w["proj"])
        n = norm(x, self.w["ln_2"])
        return x + F.linear(F.silu(F.linear(n, self.w["gate"])) * F.linear(n, self.w["up"]), self.w["down"])


def theirs(shape, dtype, compiled):
    """What a second layer keeps besides the first."""
    layers, kept = [Layer(*shape, dtype) for _ in range(2)], []
    if compiled:
        for layer in layers:
            layer.compile(backend=BACKEND)
    for n in (1, 2):
        x = torch.randn(B, S, shape[0], dtype=dtype, requires_grad=True)
        ignored = [t for layer in layers for t in [*layer.parameters(), *layer.buffers()]]
        with SavedTensors(ignored) as saved:
            for layer in layers[:n]:
                x = layer(x)
        kept.append(saved.bytes)
    return kept[1] - kept[0]


def ours(shape, dtype, groups):
    d, a, k, f = shape
    kept = []
    for n in (1, 2):
        words = ["profile", "llama", "-b", B, "-s", S, "-d", d, "-a", a, "--kv-heads", k, "-l", n, "--ffn", f,
                 "--vocab", 32, "--dtype", dtype, "--device", "meta", "--json", "-"]
        p = subprocess.run([sys.argv[2], *map(str, words + (["--recipe", f"plain:kv-groups={groups}"] if k < a else []))],
                           capture_output=True, text=True, check=True)
        kept.append(json.loads(p.stdout)["saved"]["bytes"])
    return kept[1] - kept[0] - GENERATOR


warnings.filterwarnings("ignore")
torch.set_num_threads(1)
DTYPES = [("f32", torch.float32), ("bf16", torch.bfloat16)]
for i, shape in enumerate(SHAPES):
    for name, dtype in DTYPES if os.environ.get("MTT_LONG") == "1" else [DTYPES[i % 2]]:
        is_, wanted, eager = ours(shape, name, "repeated"), theirs(shape, dtype, True), theirs(shape, dtype, False)
        if is_ != wanted:
            sys.exit(f"{shape}, {name}: {is_} bytes a layer here, {wanted} compiled (eager: {eager})")
        if not eager > wanted:
            sys.exit(f"{shape}, {name}: eager keeps {eager}, no more than compiled")
        if shape[2] < shape[1] and ours(shape, name, "shared") == wanted:
            sys.exit(f"{shape}, {name}: copied keys and values make no difference")
        print(f"{shape}, {name}: {wanted} bytes a layer (eager: {eager})")
