"""cases.py: the shapes that are measured, and what each costs, except the tiny tensors, which src/ops/op_cases.def has.
Inputs are written as ops.c reads them: f:4x8 is a float tensor that requires grad, p: a positive one, i10:4
indices below 10."""

from dataclasses import dataclass, replace

RANDOM = {"dropout"}  # their results differ between engines

# ---- kernels bound by memory ----

MEMORY_ROWS = 16384  # of 1024 elements: 64 MiB, so no tensor fits in a cache
SMOKE_ROWS = 32  # with --smoke


def memory(rows):
    """(op, inputs, elements moved by forward, by forward and backward), in units of [rows,1024]; each element
    counts once for each read and each write."""
    wide = f"f:{rows}x1024"
    return [
        ("clone", wide, 2, None),  # its backward only passes a pointer on
        ("add", f"{wide} {wide}", 3, None),
        ("affine", wide, 2, 4),
        ("relu", wide, 2, 5),
        ("gelu", wide, 2, 5),
        ("layer_norm", f"{wide} f:1024 f:1024", 2, 5),
        ("rms_norm", f"{wide} f:1024", 2, 5),
        ("swiglu", f"{wide} {wide}", 3, 8),
        ("rope", f"f:4x32x{rows // 16}x128", 2, 4),
        ("log_softmax", wide, 2, 5),
        ("cross_entropy", f"{wide} i1024:{rows}", 2, 4),
        ("cross_entropy_lse", f"{wide} i1024:{rows}", 1, 3),
    ]


# ---- GPTs ----


@dataclass(frozen=True)
class Gpt:
    name: str
    layers: int
    d: int
    heads: int
    vocab: int
    b: int
    s: int
    context: int
    act: str
    share: float  # of the time for GPT steps

    @property
    def arguments(self):
        return (self.layers, self.d, self.heads, self.vocab, self.b, self.s, self.context, self.act)

    @property
    def text(self):
        return f"{self.layers} layers, d={self.d}, v={self.vocab}, b={self.b}, s={self.s}"

    @property
    def n_parameters(self):
        block = 12 * self.d * self.d + 13 * self.d
        return self.layers * block + (self.vocab + self.context + 2) * self.d

    def parts(self):
        """(name, times per step, function and inputs, flop of its products, forward + backward)"""
        d, b, s, layers, v = self.d, self.b, self.s, self.layers, self.vocab
        x = f"f:{b}x{s}x{d}"
        wide = f"f:{b}x{s}x{4 * d}"
        token = 6 * b * s
        return [
            ("linear d to 3d", layers, f"linear {x} f:{3 * d}x{d} f:{3 * d}", token * d * 3 * d),
            ("linear d to d", layers, f"linear {x} f:{d}x{d} f:{d}", token * d * d),
            ("linear d to 4d", layers, f"linear {x} f:{4 * d}x{d} f:{4 * d}", token * d * 4 * d),
            ("linear 4d to d", layers, f"linear {wide} f:{d}x{4 * d} f:{d}", token * d * 4 * d),
            ("linear d to v", 1, f"linear {x} f:{v}x{d}", token * d * v),
            # Two products forward and five backward, half of each because of the causal mask.
            ("attention", layers, f"heads/{self.heads} f:{b}x{s}x{3 * d}", 7 * b * s * s * d),
            ("layer norm", 2 * layers + 1, f"layer_norm {x} f:{d} f:{d}", 0),
            (self.act, layers, f"{self.act} {wide}", 0),
            ("residual add", 2 * layers, f"add {x} {x}", 0),
            ("embedding", 1, f"embed i{v}:{b}x{s} f:{v}x{d} f:{s}x{d}", 0),
            ("cross-entropy", 1, f"cross_entropy f:{b}x{s}x{v} i{v}:{b}x{s}", 0),
        ]


GPTS = [
    Gpt("d64-b1-s32", 2, 64, 4, 256, 1, 32, 64, "gelu", 0.07),
    Gpt("d64-b1", 2, 64, 4, 256, 1, 64, 64, "gelu", 0.08),
    Gpt("d64", 2, 64, 4, 256, 8, 64, 64, "gelu", 0.1),
    Gpt("d128-b1", 4, 128, 4, 256, 1, 64, 128, "gelu", 0.1),
    Gpt("d128", 4, 128, 4, 256, 8, 128, 128, "gelu", 0.15),
    Gpt("d384", 6, 384, 6, 256, 4, 256, 256, "gelu", 0.2),
    Gpt("gpt2", 12, 768, 12, 50257, 4, 64, 1024, "gelu_tanh", 0.3),
]

SIZES = {"f32": 4, "bf16": 2}  # bytes of an element


def adamw_bytes(gpt, dtype):
    """By a formula: it reads parameter, gradient and two moments, and writes three of them."""
    return 7 * SIZES[dtype] * gpt.n_parameters


# ---- scaling: of b, s, d and l one changes, the others are as here ----

SCALED = Gpt("scaled", 4, 128, 4, 256, 4, 64, 256, "gelu", 0)
SWEEPS = {"b": (1, 2, 4, 8), "s": (32, 64, 128, 256), "d": (64, 128, 256, 512), "l": (1, 2, 4, 8)}
SMOKE_SWEEPS = {"b": (1, 2), "d": (64, 128)}
BUSY_GPTS = [gpt for gpt in GPTS if gpt.name in ("d64-b1", "d128")]  # beside other work


def swept(name, value):
    more = {"heads": value // (SCALED.d // SCALED.heads)} if name == "d" else {}
    return replace(SCALED, **{"layers" if name == "l" else name: value}, **more)
