"""Every row of the op table beside PyTorch's operation."""

import torch
import torch.nn.functional as F

from harness import Case, Input
from memtape import I, ints

X, Y = Input((3, 5, 2)), Input((3, 5, 2))
POSITIVE = Input((3, 5, 2), 0.5, 2)
DENSE = ("dense",)


def unary(row, theirs, *arguments, x=X, **more):
    name = more.pop("name", row)
    for note, spec in (("3x5x2", x), ("1x7", Input((1, 7), x.low, x.high)),
                       ("67", Input((67,), x.low, x.high)), ("a scalar", Input((), x.low, x.high))):
        yield Case(row, note, [spec], lambda m, t: m.call(name, t, *arguments), theirs, **more)


def binary(row, theirs, b_low=-2):
    shapes = {"same shape": ((3, 5), (3, 5)), "row": ((3, 5), (5,)), "column": ((3, 1), (3, 5)),
              "both": ((3, 1, 2), (1, 5, 2)), "scalar": ((2, 3), ()), "scalar first": ((), (2, 3))}
    for note, (a, b) in shapes.items():
        yield Case(row, note, [Input(a), Input(b, b_low, 2)],
                   lambda m, x, y: m.call(row, x, y), theirs)


def elementwise():
    yield from binary("add", torch.add)
    yield from binary("sub", torch.sub)
    yield from binary("mul", torch.mul)
    yield from binary("div", torch.div, b_low=0.5)
    yield from unary("affine", lambda x: x * -1.75 + 0.5, -1.75, 0.5)
    yield from unary("relu", F.relu)
    yield from unary("leaky_relu", lambda x: F.leaky_relu(x, 0.2), 0.2)
    yield from unary("gelu", F.gelu)
    yield from unary("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"))
    yield from unary("silu", F.silu)
    yield from unary("tanh", torch.tanh)
    yield from unary("sigmoid", torch.sigmoid)
    yield from unary("exp", torch.exp)
    yield from unary("log", torch.log, x=POSITIVE)
    yield from unary("sqrt", torch.sqrt, x=POSITIVE)
    for exponent in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.5, -2.25):
        x = POSITIVE if exponent < 0 or exponent % 1 else X
        yield Case("pow", f"exponent {exponent}", [x],
                   lambda m, x, p=exponent: m.call("pow", x, p),
                   lambda x, p=exponent: torch.pow(x, p))
    yield Case("relu_inplace", "of an op's result", [X], our_relu_inplace,
               lambda x: F.relu_(x * 2))
    yield Case("leaky_relu_inplace", "of an op's result", [X], our_leaky_relu_inplace,
               lambda x: F.leaky_relu_(x * 2, 0.2))


BOOLEAN = 7  # mt_dtype


def our_where(m, mask, a, b):
    return m.call("where", m.call("cast", mask, BOOLEAN), a, b)


def swiglu_differences(shape):
    """gate is input 0, up input 1."""
    n = torch.Size(shape).numel()

    def differences(wanted, layout):
        if wanted == 2:
            m = n // shape[-1] * (shape[-1] + 2) if layout == "sliced" else n
            return [("swiglu, gate not wanted", {"n": n, "m": m})]
        return [("swiglu", {"n": n})] if wanted == 3 else []
    return differences


def gates():
    for note, shape in {"3x5x2": (3, 5, 2), "one row": (1, 2), "67x2": (67, 2)}.items():
        yield Case("swiglu", note, [Input(shape), Input(shape)],
                   lambda m, gate, up: m.call("swiglu", gate, up),
                   lambda gate, up: F.silu(gate) * up,
                   differences=swiglu_differences(shape))
    for note, shapes in {"same shape": ((3, 5), (3, 5), (3, 5)),
                         "mask and b repeated": ((5,), (3, 5), (3, 1)),
                         "a and b repeated": ((2, 3, 5), (5,), ())}.items():
        mask, a, b = shapes
        yield Case("where", note, [Input(mask, below=2), Input(a), Input(b)], our_where,
                   lambda mask, a, b: torch.where(mask.bool(), a, b))
    yield Case("where", "masked_fill", [Input((3, 5), below=2), Input((2, 3, 5))],
               lambda m, mask, x: m.call("masked_fill", x, m.call("cast", mask, BOOLEAN), -3),
               lambda mask, x: x.masked_fill(mask.bool(), -3))


def collectives():
    """Of one rank, where all of them are the identity."""
    for row in ("all_gather", "reduce_scatter"):
        yield Case(row, "one rank", [X], lambda m, x, row=row: m.call(row, x, 1, 1), torch.clone)
    for row in ("all_reduce", "replicate", "send", "recv"):
        yield Case(row, "one rank", [X], lambda m, x, row=row: m.call(row, x, 1), torch.clone)


def our_relu_inplace(m, x):
    h = m.call("affine", x, 2, 0)
    m.check(m.mt_relu_inplace(h.pointer))
    return h


def our_leaky_relu_inplace(m, x):
    h = m.call("affine", x, 2, 0)
    m.check(m.mt_leaky_relu_inplace(h.pointer, 0.2))
    return h


def products():
    shapes = {"3x5 by 5x2": ((3, 5), (5, 2)), "1x1": ((1, 1), (1, 1)),
              "row by matrix": ((1, 5), (5, 3)), "batched": ((2, 3, 5), (2, 5, 4)),
              "b broadcast": ((2, 3, 5), (5, 4)),
              "two batch dimensions": ((2, 3, 4, 5), (2, 3, 5, 2))}
    for note, (a, b) in shapes.items():
        yield Case("matmul", note, [Input(a), Input(b)], lambda m, x, y: m.call("matmul", x, y),
                   torch.matmul)
    yield Case("matmul", "a broadcast", [Input((3, 5)), Input((2, 5, 4))],
               lambda m, x, y: m.call("matmul", x, y), torch.matmul,
               differences=lambda wanted, layout:
                   [("product copies", {"n": 2 * 5 * 4, "m": 1, "s": 2 * 5 * 6})]
                   * (layout == "sliced" and wanted & 1))
    # a is repeated 3 times, b twice; each is kept for the other's gradient.
    yield Case("matmul", "both broadcast", [Input((2, 1, 3, 5)), Input((1, 3, 5, 2))],
               lambda m, x, y: m.call("matmul", x, y), torch.matmul, layouts=DENSE,
               differences=lambda wanted, layout:
                   [("product copies", {"n": 15 * 2, "m": 3, "s": 15 * 2})] * (wanted >> 1 & 1)
                   + [("product copies", {"n": 10 * 3, "m": 2, "s": 10 * 3})] * (wanted & 1))
    shapes = {"3x5": ((3, 5), (2, 5), (2,)), "batched": ((2, 3, 5), (4, 5), (4,)),
              "a vector": ((5,), (3, 5), (3,)), "1x1": ((1, 1), (1, 1), (1,))}
    for note, (x, w, b) in shapes.items():
        yield Case("linear", note, [Input(x), Input(w), Input(b)],
                   lambda m, x, w, b: m.call("linear", x, w, b), F.linear)
    yield Case("linear", "no bias", [Input((7, 5)), Input((2, 5))],
               lambda m, x, w: m.call("linear", x, w, None), F.linear)


def masked(x, scale):
    s, t = x.shape[-2:]
    mask = torch.ones(s, t, dtype=torch.bool).triu(1 + t - s)
    return torch.softmax((x * scale).masked_fill(mask, float("-inf")), -1)


def norm_differences(rows, n):
    """x is input 0, w input 1, b input 2."""
    def differences(wanted, layout):
        whole = {"n": n + 2 if layout == "sliced" else n}  # storages are kept whole
        if wanted == 4:
            return [("norm, only the bias wanted", {"r": rows, "m": rows * whole["n"], **whole}),
                    ("norm bias", whole)]
        applied = [("norm statistics", {"r": rows}), ("norm bias", whole)]
        return applied if wanted & 1 else applied + [("norm, x not wanted", whole)]
    return differences


def rows():
    for note, shape in {"3x5": (3, 5), "one column": (3, 1), "2x3x7": (2, 3, 7)}.items():
        yield Case("softmax", note, [Input(shape)], lambda m, x: m.call("softmax", x, 1, False),
                   lambda x: torch.softmax(x, -1))
        yield Case("softmax", f"scaled, {note}", [Input(shape)],
                   lambda m, x: m.call("softmax", x, 0.37, False),
                   lambda x: torch.softmax(x * 0.37, -1))
        yield Case("log_softmax", note, [Input(shape)], lambda m, x: m.call("log_softmax", x),
                   lambda x: torch.log_softmax(x, -1))
    for s, t in ((5, 5), (3, 5)):
        yield Case("softmax", f"causal, {s}x{t}", [Input((2, s, t))],
                   lambda m, x: m.call("softmax", x, 1.3, True), lambda x: masked(x, 1.3),
                   differences=[("causal mask", {"s": s, "t": t})])
    for note, shape in {"3x5": (3, 5), "2x3x7": (2, 3, 7), "one row": (9,)}.items():
        n, r = shape[-1], torch.Size(shape[:-1]).numel()
        yield Case("layer_norm", note, [Input(shape), Input((n,)), Input((n,))],
                   lambda m, x, w, b: m.call("layer_norm", x, w, b, 1e-5),
                   lambda x, w, b: F.layer_norm(x, w.shape, w, b), f64_tolerance=1e-13,
                   differences=norm_differences(r, n))
        yield Case("layer_norm", f"no weight, {note}", [Input(shape)],
                   lambda m, x: m.call("layer_norm", x, None, None, 1e-5),
                   lambda x, n=n: F.layer_norm(x, (n,)), f64_tolerance=1e-13,
                   differences=[("norm statistics", {"r": r})])


def rms_differences(r, n, weighted):
    """x is input 0, w input 1."""
    def differences(wanted, layout):
        m = r * (n + 2 if layout == "sliced" else n)
        normalised = [("rms norm, normalised", {"r": r, "n": n})] * (weighted and wanted >> 1)
        if wanted == 2:
            return normalised + [("rms norm, x not wanted", {"r": r, "m": m})]
        return normalised + [("rms norm, narrow", {"r": r, "n": n, "m": m})]
    return differences


def rms_norms():
    for note, shape in {"3x5": (3, 5), "2x3x7": (2, 3, 7), "one row": (9,)}.items():
        n, r = shape[-1], torch.Size(shape[:-1]).numel()
        yield Case("rms_norm", note, [Input(shape), Input((n,))],
                   lambda m, x, w: m.call("rms_norm", x, w, 1e-5),
                   lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), f64_tolerance=1e-13,
                   differences=rms_differences(r, n, True))
        yield Case("rms_norm", f"no weight, {note}", [Input(shape)],
                   lambda m, x: m.call("rms_norm", x, None, 1e-5),
                   lambda x, n=n: F.rms_norm(x, (n,), None, 1e-5), f64_tolerance=1e-13,
                   differences=rms_differences(r, n, False))


def their_rope(x, start, theta):
    """As in Hugging Face's LLaMA, with angles in f64."""
    s, d = x.shape[-2:]
    frequency = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.outer(torch.arange(start, start + s, dtype=torch.float64), frequency)
    cosine, sine = (f(torch.cat((angles, angles), -1)).to(x.dtype) for f in (torch.cos, torch.sin))
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat((-high, low), -1) * sine


def ropes():
    for note, (b, a, s, d), start, theta in (
            ("odd", (2, 3, 5, 6), 0, 10000), ("one position", (2, 3, 1, 8), 37, 10000),
            ("long", (1, 2, 67, 16), 5, 500000), ("a pair", (1, 1, 3, 2), 1, 100)):
        yield Case("rope", note, [Input((b, a, s, d))],
                   lambda m, x, start=start, theta=theta: m.call("rope", x, start, theta),
                   lambda x, start=start, theta=theta: their_rope(x, start, theta),
                   layouts=("dense", "heads"), f64_tolerance=1e-13,
                   differences=[("rope tables", {"s": s, "d": d})])


def random_tables_losses():
    # The mask is told from our result: no input is 0.
    for note, shape in {"6x10": (6, 10), "67": (67,)}.items():
        n = torch.Size(shape).numel()
        yield Case("dropout", note, [Input(shape, 0.5, 2)], lambda m, x: m.call("dropout", x, 0.4),
                   lambda x: F.dropout(x, 0.4),
                   values=lambda x, ours: x * ((ours != 0).to(torch.float64) / 0.6).to(x.dtype),
                   differences=[("dropout mask", {"n": n})])
    yield Case("embedding", "repeated rows", [Input((2, 5), below=4), Input((4, 3))],
               lambda m, i, w: m.call("embedding", i, w), F.embedding)
    yield Case("embedding", "1x1", [Input((1, 1), below=1), Input((1, 3))],
               lambda m, i, w: m.call("embedding", i, w), F.embedding)
    for note, shape in {"5 rows of 7": (5, 7), "2x3 rows of 4": (2, 3, 4)}.items():
        yield Case("cross_entropy", note, [Input(shape), Input(shape[:-1], below=shape[-1])],
                   lambda m, x, t: m.call("cross_entropy", x, t, -100),
                   lambda x, t: F.cross_entropy(x.reshape(-1, x.shape[-1]), t.reshape(-1)),
                   differences=[("loss weight", {})])
    yield Case("cross_entropy", "target 0 ignored", [Input((9, 3)), Input((9,), below=3)],
               lambda m, x, t: m.call("cross_entropy", x, t, 0),
               lambda x, t: F.cross_entropy(x, t, ignore_index=0),
               differences=[("loss weight", {})])
    yield from fused_losses()
    yield Case("mse", "3x5", [Input((3, 5)), Input((3, 5))], lambda m, x, y: m.call("mse", x, y),
               F.mse_loss)


def fused_losses():
    """The output product and its loss, in pieces; PyTorch's with f32 logits where they have 16 bits,
    since memtape's loss is f32."""
    def theirs(x, w, t, ignore=-100):
        logits = F.linear(x, w)
        logits = logits.to(torch.promote_types(x.dtype, torch.float32))
        return F.cross_entropy(logits.flatten(0, -2), t.flatten(), ignore_index=ignore)

    def differences(n, d, v):
        def apply(wanted, layout):
            columns = d + 2 if layout == "sliced" else d  # storages are kept whole
            return ([("linear cross-entropy", {"n": n, "v": v})]
                    + [("linear cross-entropy, one wanted", {"m": v * columns})] * (wanted == 2)
                    + [("linear cross-entropy, one wanted", {"m": n * columns})] * (wanted == 1))
        return apply

    for note, chunk in {"7 rows at once": 0, "2 rows at a time": 2}.items():
        yield Case("linear_cross_entropy", note,
                   [Input((7, 5)), Input((9, 5)), Input((7,), below=9)],
                   lambda m, x, w, t, chunk=chunk:
                       m.call("linear_cross_entropy", x, w, t, -100, chunk),
                   theirs, differences=differences(7, 5, 9))
    yield Case("linear_cross_entropy", "target 0 ignored",
               [Input((8, 3)), Input((4, 3)), Input((8,), below=4)],
               lambda m, x, w, t: m.call("linear_cross_entropy", x, w, t, 0, 3),
               lambda x, w, t: theirs(x, w, t, 0), differences=differences(8, 3, 4))


def reductions():
    for row, theirs in (("sum", torch.sum), ("mean", torch.mean)):
        for dims, keep in (((0, 1, 2), False), ((-1,), False), ((0, 2), True), ((1,), True)):
            yield Case(row, f"over {dims}{', kept' * keep}", [X],
                       lambda m, x, row=row, dims=dims, keep=keep:
                           m.call(row, x, len(dims), ints(dims, I), keep),
                       lambda x, theirs=theirs, dims=dims, keep=keep: theirs(x, dims, keep))


def their_max(x, dims, keep):
    """torch.max over several dimensions at once: of all their elements in one row."""
    dims = [d % x.dim() for d in dims]
    others = [d for d in range(x.dim()) if d not in dims]
    y = x.permute(*others, *dims).flatten(len(others)).max(-1)[0]
    return y.reshape([1 if d in dims else n for d, n in enumerate(x.shape)]) if keep else y


def maxima():
    for dims, keep in (((0, 1, 2), False), ((-1,), False), ((0, 2), True), ((1,), True)):
        yield Case("max", f"over {dims}{', kept' * keep}", [X],
                   lambda m, x, dims=dims, keep=keep:
                       m.call("max", x, len(dims), ints(dims, I), keep),
                   lambda x, dims=dims, keep=keep: their_max(x, dims, keep))


def views_and_copies():
    yield Case("permute", "3x5x2", [X], lambda m, x: m.call("permute", x, ints([2, 0, 1], I)),
               lambda x: x.permute(2, 0, 1))
    yield Case("slice", "3x5x2", [X], lambda m, x: m.call("slice", x, 1, 1, 3),
               lambda x: x.narrow(1, 1, 3))
    yield Case("expand", "1x2x1 to 3x2x5", [Input((1, 2, 1))],
               lambda m, x: m.call("expand", x, 3, ints([3, 2, 5])), lambda x: x.expand(3, 2, 5))
    yield Case("expand", "5 to 3x2x5", [Input((5,))],
               lambda m, x: m.call("expand", x, 3, ints([3, 2, 5])), lambda x: x.expand(3, 2, 5))
    yield Case("reshape", "3x5x2 to 6x5", [X], lambda m, x: m.call("reshape", x, 2, ints([6, -1])),
               lambda x: x.reshape(6, -1))
    yield Case("clone", "3x5x2", [X], lambda m, x: m.call("clone", x), torch.clone)
    yield Case("contiguous", "of a transpose", [X], lambda m, x: m.call("contiguous", x),
               torch.Tensor.contiguous, layouts=("reversed", "sliced"))
    yield Case("cat", "three parts", [Input((2, 3)), Input((1, 3)), Input((4, 3))],
               lambda m, *parts: m.cat(parts, 0), lambda *parts: torch.cat(parts, 0))
    yield Case("split", "the last part", [Input((3, 6))],
               lambda m, x: m.split(x, 1, [1, 3, 2])[2], lambda x: x.split([1, 3, 2], 1)[2])
    yield Case("split", "put back in another order", [Input((3, 6))], our_shuffle, their_shuffle,
               inner=True)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        yield Case("cast", f"from {dtype}", [X],
                   lambda m, x, wide=(dtype == torch.float64): m.call("cast", x, 0 if wide else 1),
                   lambda x, wide=(dtype == torch.float64):
                       x.to(torch.float32 if wide else torch.float64), dtypes=(dtype,))


def our_shuffle(m, x):
    a, b, c = m.split(x, 1, [1, 3, 2])
    return m.cat([c, a, b, a], 1)


def their_shuffle(x):
    a, b, c = x.split([1, 3, 2], 1)
    return torch.cat([c, a, b, a], 1)


def attention():
    for note, (b, a, kv, s, t, d), causal in (
            ("odd", (2, 3, 3, 5, 7, 3), False), ("causal", (1, 2, 2, 5, 5, 4), True),
            ("one key", (1, 1, 1, 1, 1, 4), False), ("long", (1, 2, 2, 67, 67, 8), True),
            ("grouped heads", (2, 4, 2, 5, 5, 3), False)):
        inputs = [Input((b, a, s, d)), Input((b, kv, t, d)), Input((b, kv, t, d))]
        yield Case("flash_attention", note, inputs,
                   lambda m, q, k, v, causal=causal:
                       m.call("flash_attention", q, k, v, 0, causal, 0),
                   lambda q, k, v, causal=causal, grouped=(a != kv):
                       F.scaled_dot_product_attention(q, k, v, is_causal=causal,
                                                      enable_gqa=grouped),
                   layouts=("dense", "heads"),
                   differences=[("flash generator", {})])
    for causal in (False, True):
        yield Case("matmul", f"math attention{', causal' * causal}",
                   [Input((2, 3, 5, 4)), Input((2, 3, 5, 4)), Input((2, 3, 5, 4))],
                   lambda m, q, k, v, causal=causal:
                       m.call("math_attention", q, k, v, 0.7, causal, 0),
                   lambda q, k, v, causal=causal: their_math(q, k, v, 0.7, causal),
                   layouts=("dense", "heads"), inner=True,
                   differences=lambda wanted, layout, causal=causal:
                       [("causal mask", {"s": 5, "t": 5})] * (causal and wanted & 3 != 0))


    # k and v are repeated for the 3 heads that share them.
    copies = ("product copies", {"n": 2 * 2 * 5 * 4, "m": 3, "s": 2 * 2 * 5 * 4})
    for causal in (False, True):
        yield Case("reshape", f"math attention, grouped heads{', causal' * causal}",
                   [Input((2, 6, 5, 4)), Input((2, 2, 5, 4)), Input((2, 2, 5, 4))],
                   lambda m, q, k, v, causal=causal:
                       m.call("math_attention", q, k, v, 0.7, causal, 0),
                   lambda q, k, v, causal=causal: their_math(
                       q.unflatten(1, (2, 3)), k.unsqueeze(2), v.unsqueeze(2), 0.7,
                       causal).flatten(1, 2),
                   layouts=("dense", "heads"),
                   differences=lambda wanted, layout, causal=causal:
                       [copies] * (wanted & 1) + [copies] * (wanted & 3 != 0)
                       + [("causal mask", {"s": 5, "t": 5})] * (causal and wanted & 3 != 0))


def their_math(q, k, v, scale, causal):
    scores = q @ k.transpose(-2, -1)
    weights = masked(scores, scale) if causal else torch.softmax(scores * scale, -1)
    return weights @ v


def all_cases():
    for group in (elementwise, gates, products, rows, rms_norms, ropes, random_tables_losses,
                  reductions, maxima, views_and_copies, attention, collectives):
        yield from group()
