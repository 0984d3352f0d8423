"""shapes.py: what `./run gpu` measures. Inputs are written as inputs.c reads them: f:4x8 is a float tensor that
requires grad, i10:4 indices below 10, b:4 a mask. Every list has two sizes: one for a GPU, and a small one for
a dry run, which measures nothing and only shows that the steps work."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """One op. Bytes and flop: the least that forward and backward must move and compute; 0: that direction is
    not measured."""
    name: str  # its label in the table
    function: str  # its name in kernels.c and torch_side.py
    dtype: str
    inputs: str
    forward_bytes: float = 0
    backward_bytes: float = 0
    forward_flop: float = 0
    backward_flop: float = 0
    tolerance: float = 2e-2  # of ||memtape - reference|| / ||reference||; None: results are random


SIZE = {"bf16": 2, "f16": 2, "f32": 4}


def memory_kernels(rows, n, vocab, tokens, rotary):
    """Ops bound by memory, on [rows,n]; rotary: as many elements as [b,a,s,d]. Each read and each write of a
    tensor counts once: 2 is an input and an output, 3 is (kept, dy) -> dx."""
    out = []
    x, wide = f"f:{rows}x{n}", rows * n

    def add(name, function, dtype, inputs, forward, backward, tolerance=2e-2):
        per = wide * SIZE[dtype]
        out.append(Kernel(f"{name} {dtype}", function, dtype, inputs, forward * per,
                          backward * per, tolerance=tolerance))

    add("clone", "clone", "bf16", x, 2, 0)
    add("add", "add", "bf16", f"{x} {x}", 3, 0)
    add("mul", "mul", "bf16", f"{x} {x}", 3, 5)
    add("affine", "affine", "bf16", x, 2, 2)
    for act in ("relu", "gelu", "gelu_tanh", "silu"):
        add(act, act, "bf16", x, 2, 3)
    add("gelu", "gelu", "f32", x, 2, 3, 1e-4)
    add("x^3", "pow", "bf16", x, 2, 3)
    add("swiglu", "swiglu", "bf16", f"{x} {x}", 3, 5)
    add("where", "where", "bf16", f"b:{rows}x{n} {x} {x}", 3.5, 3.5)  # the mask is half an element
    add("to f32", "to_f32", "bf16", x, 3, 3)  # 2 bytes read, 4 written
    add("transposed copy", "contiguous", "bf16", x, 2, 0)
    add("dropout", "dropout", "bf16", x, 2.5, 2.5, None)  # one byte of mask is half an element
    add("softmax", "whole_softmax", "bf16", x, 2, 3)
    add("log_softmax", "log_softmax", "bf16", x, 2, 3, 5e-2)
    add("layer_norm", "layer_norm", "bf16", f"{x} f:{n} f:{n}", 2, 3)
    add("layer_norm", "layer_norm", "f32", f"{x} f:{n} f:{n}", 2, 3, 1e-3)
    add("rms_norm", "rms_norm", "bf16", f"{x} f:{n}", 2, 3)
    add("rope", "rope", "bf16", "f:" + "x".join(map(str, rotary)), 2, 2)
    add("max", "max", "bf16", x, 1, 1)
    add("top 8", "topk/8", "bf16", x, 1, 1, None)  # which of equal ones is free
    channels = 64 if rows >= 4096 else 4  # [b,c,s]; y is written, dx too
    add("batch_norm", "batch_norm", "bf16", f"f:32x{channels}x{rows * n // (32 * channels)} p:{channels} f:{channels}", 2, 3)
    # codes and scales are written and read: 1 + 4/128 bytes per value; 1/2 + 4/64
    add("int8 and back", "through_int8", "bf16", x, 2 + 33 / 32, 0)
    add("nf4 and back", "through_nf4", "bf16", x, 2 + 9 / 16, 0)
    add("sum", "sum", "bf16", x, 1, 0)
    add("sum of rows", "sum_rows", "bf16", x, 1, 0)
    logits = tokens * vocab * 2
    out.append(Kernel("cross-entropy bf16", "cross_entropy", "bf16",
                      f"f:{tokens}x{vocab} i{vocab}:{tokens}", 2 * logits, 2 * logits,
                      tolerance=5e-2))
    rows_read = tokens * n * 2
    out.append(Kernel("embedding bf16", "embedding", "bf16", f"i{vocab}:{tokens} f:{vocab}x{n}",
                      2 * rows_read, rows_read + vocab * n * 2))
    parameters, high = 148, max(1, rows // 256)
    each, count = f"f:{high}x{n}", parameters * high * n  # reads p, g, m, v; writes p, m, v
    out.append(Kernel("AdamW bf16", f"adamw/{parameters}", "bf16", each, 22 * count))
    out.append(Kernel("AdamW f32", f"adamw/{parameters}", "f32", each, 28 * count, tolerance=1e-4))
    return out


def products(shapes):
    """y = x w^T + b: one product in forward, two in backward."""
    return [Kernel(f"{name} {dtype}", "linear", dtype, f"f:{m}x{k} f:{n}x{k} f:{n}",
                   forward_flop=2 * m * n * k, backward_flop=4 * m * n * k,
                   tolerance=1e-3 if dtype == "f32" else 2e-2)
            for name, dtype, m, n, k in shapes]


def fused_losses(shapes):
    """cross_entropy(x w^T, target), compared with linear and cross_entropy: counts the products of a linear,
    without the recomputed logits."""
    return [Kernel(f"loss of {d} to {vocab}, {tokens} tokens bf16", "linear_cross_entropy", "bf16",
                   f"f:{tokens}x{d} f:{vocab}x{d} i{vocab}:{tokens}",
                   forward_flop=2 * tokens * vocab * d, backward_flop=4 * tokens * vocab * d,
                   tolerance=5e-2) for tokens, d, vocab in shapes]


def attentions(shapes):
    """Causal: half of two products in forward, half of five in backward."""
    return [Kernel(f"b={b} a={a} s={s} d={d}{' dropout' if dropout else ''} {dtype}",
                   "flash_dropout" if dropout else "flash_attention", dtype,
                   " ".join([f"f:{b}x{a}x{s}x{d}"] * 3), forward_flop=2 * b * a * s * s * d,
                   backward_flop=5 * b * a * s * s * d, tolerance=None if dropout else 2e-2)
            for b, a, s, d, dtype, dropout in shapes]


@dataclass(frozen=True)
class Gpt:
    name: str
    layers: int
    d: int
    heads: int
    vocab: int
    b: int
    s: int

    @property
    def arguments(self):
        return (self.layers, self.d, self.heads, self.vocab, self.b, self.s)


@dataclass(frozen=True)
class Saved:
    """A figure of the design: the bytes that one model's forward keeps."""
    model: str
    act: str
    b: int
    s: int
    d: int
    heads: int

    @property
    def bytes(self):
        unit = self.b * self.s * self.d * 2
        if self.model == "mlp":
            return unit * {"relu": 5, "gelu": 9}[self.act]
        # Per token: mean and rstd of two layer norms and each head's log-sum-exp, in f32; plus seed and offset.
        per_token = 2 * 8 + 4 * self.heads
        return unit * {"relu": 12, "gelu": 16}[self.act] + self.b * self.s * per_token + 16


@dataclass(frozen=True)
class Curve:
    steps: int
    layers: int
    d: int
    heads: int
    b: int
    s: int

    @property
    def arguments(self):
        return (self.steps, self.layers, self.d, self.heads, self.b, self.s)


@dataclass(frozen=True)
class Plan:
    saved: list
    curve: Curve
    copy_bytes: int
    gemm_side: int
    memory: list
    gemm: list
    attention: list
    gpt: list
    variants: list  # sizes, each plain and then with one option more
    snapshot: Gpt
    offload: Gpt
    in_flight: list  # (storages copied out at the same time, storages copied back in advance), see offload.h
    seconds: float  # for each side of each figure
    gpt_seconds: float


def saved(b, s, d):
    return [Saved(model, act, b, s, d, 2) for model in ("mlp", "block") for act in ("relu", "gelu")]


TOKENS = 32 * 1024

REAL = Plan(
    saved=saved(2, 4096, 1024),
    curve=Curve(50, 2, 64, 4, 8, 64),
    copy_bytes=1 << 30,
    gemm_side=8192,
    memory=memory_kernels(32768, 4096, 50257, 8192, (8, 16, 8192, 128)),
    gemm=products([
        ("768 to 2304, 32768 tokens", "bf16", TOKENS, 2304, 768),
        ("768 to 768", "bf16", TOKENS, 768, 768),
        ("768 to 3072", "bf16", TOKENS, 3072, 768),
        ("3072 to 768", "bf16", TOKENS, 768, 3072),
        ("768 to 50257", "bf16", TOKENS // 2, 50257, 768),
        ("768 to 50304", "bf16", TOKENS // 2, 50304, 768),
        ("4096 to 16384, 8192 tokens", "bf16", 8192, 16384, 4096),
        ("4096 to 16384, 8192 tokens", "f16", 8192, 16384, 4096),
        ("4096 to 4096, 8192 tokens", "f32", 8192, 4096, 4096),
    ]) + fused_losses([(TOKENS // 2, 768, 50257)]),
    attention=attentions([
        (32, 12, 1024, 64, "bf16", False),
        (32, 12, 1024, 64, "bf16", True),
        (4, 16, 8192, 64, "bf16", False),
        (4, 16, 4096, 128, "bf16", False),
        (4, 16, 4096, 128, "f16", False),
        (8, 16, 2048, 96, "bf16", False),
    ]),
    gpt=[Gpt("b=16", 12, 768, 12, 50257, 16, 1024), Gpt("b=64", 12, 768, 12, 50257, 64, 1024),
         Gpt("b=64, v=50304", 12, 768, 12, 50304, 64, 1024)],
    variants=[Gpt("b=16", 12, 768, 12, 50257, 16, 1024), Gpt("4 layers, d=256, b=4", 4, 256, 4, 256, 4, 256)],
    snapshot=Gpt("b=4", 12, 768, 12, 50257, 4, 1024),
    offload=Gpt("b=16", 12, 768, 12, 50257, 16, 1024),
    in_flight=[(2, 2), (4, 4)],
    seconds=0.12,
    gpt_seconds=3,
)

TOY = Plan(
    saved=saved(2, 64, 32),
    curve=Curve(10, 1, 32, 2, 2, 16),
    copy_bytes=1 << 16,
    gemm_side=64,
    memory=memory_kernels(64, 48, 50, 32, (1, 2, 48, 32)),
    gemm=products([("24 to 40, 32 tokens", dtype, 32, 40, 24) for dtype in ("bf16", "f16", "f32")])
    + fused_losses([(32, 24, 50)]),
    attention=attentions([(1, 2, 40, 32, "bf16", False), (1, 2, 40, 32, "bf16", True),
                          (1, 2, 24, 64, "f16", False)]),
    gpt=[Gpt("toy b=1", 1, 32, 2, 64, 1, 16), Gpt("toy b=2", 1, 32, 2, 64, 2, 16)],
    variants=[Gpt("toy b=1", 1, 32, 2, 64, 1, 16)],
    snapshot=Gpt("toy b=4", 6, 512, 4, 1000, 4, 256),  # on meta, which needs no memory
    offload=Gpt("toy b=2", 3, 32, 2, 64, 2, 64),
    in_flight=[(2, 2), (1, -1)],
    seconds=0.02,
    gpt_seconds=0.2,
)
