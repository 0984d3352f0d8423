"""Ops of random graphs that models use: products, rows, tables, losses, attention."""

import math
from itertools import permutations

import torch
import torch.nn.functional as F

from graph_op import Applied, Op, mt
from harness import address


# ---- products ----

def copies(call):
    """The operands that PyTorch keeps and had to copy, to fold or repeat their batches."""
    kept = [i for i in (0, 1) if call.wanted[1 - i]]
    own = {address(call.operands[i]) for i in kept}
    copied = [t for t in call.saved if address(t) not in own]
    lacking = [i for i in kept if address(call.operands[i]) not in map(address, call.saved)]
    # If two operands share a storage and one is copied, either may be missing.
    for order in permutations(lacking or kept, len(copied)):
        sizes = [(t.numel(), call.operands[i].numel()) for t, i in zip(copied, order)]
        if not any(whole % n for whole, n in sizes):
            return [Applied("product copies", {"n": n, "m": whole // n, "s": call.stored(i)},
                            adds=(i,)) for (whole, n), i in zip(sizes, order)]
    return []


class Matmul(Op):
    weight = 10

    def draw(self, g):
        x = g.value(rank=2)
        batch = g.choice(((), x.shape[:-2], g.broadcast(x.shape[:-2])))
        if g.chance(0.5):
            return [x, g.operand((*batch, x.shape[-1], g.extent()), x.dtype)], {}
        return [g.operand((*batch, g.extent(), x.shape[-2]), x.dtype), x], {}

    def text(self, a, b):
        return mt("matmul", a, b), f"torch.matmul({a}, {b})"

    def differences(self, call):
        return copies(call)


class Linear(Op):
    weight = 12

    def draw(self, g):
        x, n = g.value(rank=1), g.extent()
        w = g.operand((n, x.shape[-1]), x.dtype)
        return [x, w] + [g.operand((n,), x.dtype)] * g.chance(0.6), {}

    def text(self, x, w, b=None):
        return mt("linear", x, w, b), f"F.linear({x}, {w}, {b})"

    def differences(self, call):
        return copies(call)


class GroupedLinear(Op):
    def draw(self, g):
        x, groups = g.value(rank=2), g.extent()
        x = x if x.rank == 2 else g.operand(x.shape[-2:], x.dtype)
        w = g.operand((groups, g.extent(), x.shape[-1]), x.dtype)
        return [x, w, g.index(x.shape[:1], groups)], {}

    def text(self, x, w, index):
        return mt("grouped_linear", x, w, index), f'THEIRS["grouped_linear"]({x}, {w}, {index})'


class AllToAll(Op):
    def draw(self, g):
        x = g.value(rank=2)
        x = x if x.rank == 2 else g.operand(x.shape[-2:], x.dtype)
        index = g.index(x.shape[:1], 4)
        return [x, index, index], {}

    def text(self, x, sent, received):
        return mt("all_to_all", x, sent, received), f'THEIRS["all_to_all"]({x}, {sent}, {received})'


# ---- rows ----

class Softmax(Op):
    weight = 4

    def draw(self, g):
        x = g.value(rank=1)
        return [x], {"scale": g.choice((1, 0.37)), "causal": x.rank > 1 and g.chance(0.3)}

    def text(self, x, scale, causal):
        theirs = f"masked({x}, {scale})" if causal else f"torch.softmax({x} * {scale}, -1)"
        return mt("softmax", x, scale, causal), theirs

    def suits(self, t, room, causal, **_):
        return not causal or t[0].shape[-2] <= t[0].shape[-1]  # each row has a column left

    def differences(self, call):
        s, t = call.operands[0].shape[-2:] if call.parameters["causal"] else (0, 0)
        return [Applied("causal mask", {"s": s, "t": t})]


class LogSoftmax(Op):
    def draw(self, g):
        return [g.value(rank=1)], {}

    def text(self, x):
        return mt("log_softmax", x), f"torch.log_softmax({x}, -1)"


class LayerNorm(Op):
    weight = 4

    def draw(self, g):
        x = g.value(rank=1)
        shape = x.shape[-1:]
        return [x] + [g.operand(shape, x.dtype), g.operand(shape, x.dtype)] * g.chance(0.7), {}

    def text(self, x, w=None, b=None):
        return (mt("layer_norm", x, w, b, 1e-5),
                f"F.layer_norm({x}, {x}.shape[-1:], {w}, {b})")

    def suits(self, t, room):
        return t[0].std(-1, correction=0).min() > 0.2

    def differences(self, call):
        rows = {"r": call.operands[0].numel() // call.operands[0].shape[-1]}
        if len(call.operands) == 1:
            return [Applied("norm statistics", rows)]
        bias = Applied("norm bias", {"n": call.stored(2)}, drops=(2,))
        if call.wanted == [False, False, True]:
            return [bias, Applied("norm, only the bias wanted",
                                  {**rows, "m": call.stored(0), "n": call.stored(1)}, drops=(0, 1))]
        weight = Applied("norm, x not wanted", {"n": call.stored(1)}, drops=(1,))
        return [Applied("norm statistics", rows), bias] + [weight] * (not call.wanted[0])


class BatchNorm(Op):
    def draw(self, g):
        x = g.value(rank=2)
        if math.prod(x.shape) < 2 * x.shape[1]:
            return None
        shape = x.shape[1:2]
        return [x] + [g.operand(shape, x.dtype), g.operand(shape, x.dtype)] * g.chance(0.7), {}

    def text(self, x, w=None, b=None):
        return (mt("batch_norm", x, w, b, 1, 1e-5),
                f"F.batch_norm({x}, None, None, {w}, {b}, True, 0, 1e-5)")

    def suits(self, t, room):
        return t[0].transpose(0, 1).flatten(1).std(-1, correction=0).min() > 0.2

    def differences(self, call):
        channels = {"r": call.operands[0].shape[1]}
        if len(call.operands) == 1:
            return [Applied("norm statistics", channels)]
        if call.wanted == [False, False, True]:
            return [Applied("norm, only the bias wanted",
                            {**channels, "m": call.stored(0), "n": call.stored(1)}, drops=(0, 1))]
        weight = Applied("norm, x not wanted", {"n": call.stored(1)}, drops=(1,))
        return [Applied("norm statistics", channels)] + [weight] * (not call.wanted[0])


class RmsNorm(Op):
    weight = 4

    def draw(self, g):
        x = g.value(rank=1)
        return [x] + [g.operand(x.shape[-1:], x.dtype)] * g.chance(0.7), {}

    def text(self, x, w=None):
        return mt("rms_norm", x, w, 1e-5), f"F.rms_norm({x}, {x}.shape[-1:], {w}, 1e-5)"

    def suits(self, t, room):
        return t[0].square().mean(-1).min() > 0.04

    def differences(self, call):
        x, m = call.operands[0], call.stored(0)
        n = x.shape[-1]
        r = x.numel() // n
        weight = [Applied("rms norm, normalised", {"r": r, "n": n})] * call.wanted[-1]
        if len(call.operands) == 1:
            weight = []
        if not call.wanted[0]:
            return weight + [Applied("rms norm, x not wanted", {"r": r, "m": m}, adds=(0,))]
        narrow = Applied("rms norm, narrow", {"r": r, "n": n, "m": m}, adds=(0,))
        return weight + [narrow] * (x.itemsize == 2)


class Rope(Op):
    def draw(self, g):
        return [g.operand((g.extent(), g.extent(), g.extent(), g.choice((2, 4, 6))), g.dtype())], {}

    def text(self, x):
        return mt("rope", x, 3, 100), f"their_rope({x}, 3, 100)"

    def differences(self, call):
        s, d = call.operands[0].shape[-2:]
        return [Applied("rope tables", {"s": s, "d": d})]


# ---- tables and losses ----

class Embedding(Op):
    def draw(self, g):
        rows = g.extent()
        shape = [g.extent() for _ in range(g.choice((1, 1, 2)))]
        return [g.index(shape, rows), g.operand((rows, g.extent()), g.dtype())], {}

    def text(self, index, w):
        return mt("embedding", index, w), f"F.embedding({index}, {w})"


class CrossEntropy(Op):
    weight = 3

    def draw(self, g):
        x = g.value(rank=1)
        return [x, g.index(x.shape[:-1], x.shape[-1])], {"ignore": g.choice((-100, -100, 0))}

    def text(self, x, target, ignore):
        return (mt("cross_entropy", x, target, ignore),
                f"F.cross_entropy({x}.reshape(-1, {x.shape[-1]}), {target}.reshape(-1), "
                f"ignore_index={ignore})")

    def suits(self, t, room, ignore):
        return bool((t[1] != ignore).any()) and uncertain(t[0], t[1])

    def differences(self, call):
        return [Applied("loss weight", {})]


class CrossEntropyLse(CrossEntropy):
    def text(self, x, target, ignore):
        return mt("cross_entropy_lse", x, target, ignore), super().text(x, target, ignore)[1]

    def suits(self, t, room, ignore):
        # memtape keeps the log-sum-exp, whose rounding grows with the logits; PyTorch keeps log-probabilities.
        return super().suits(t, room, ignore) and t[0].abs().max() < 8

    def differences(self, call):
        x, target = call.operands
        return [Applied("loss of logits", {"n": target.numel(), "v": x.shape[-1], "m": call.stored(0)},
                        adds=(0,))]


def uncertain(logits, target):
    """False if a row is almost certain of its target, because its loss is then the difference of two almost
    equal numbers. With one class the loss is 0, without rounding."""
    surest = torch.softmax(logits, -1).gather(-1, target.unsqueeze(-1)).max()
    return logits.shape[-1] == 1 or surest < 0.9


class LinearCrossEntropy(Op):
    def draw(self, g):
        n, d, v = g.extent(), g.extent(), g.extent()
        dtype = g.dtype()
        return [g.operand((n, d), dtype), g.operand((v, d), dtype), g.index((n,), v)], \
            {"chunk": g.choice((0, 2))}

    def text(self, x, w, target, chunk):
        return (mt("linear_cross_entropy", x, w, target, -100, chunk),
                f"F.cross_entropy(at_least_f32(F.linear({x}, {w})), {target})")

    def dtype(self, operands, chunk):
        return torch.promote_types(operands[0].dtype, torch.float32)

    def suits(self, t, room, chunk):
        logits = F.linear(t[0], t[1])
        # memtape keeps the log-sum-exp, whose rounding grows with the logits; PyTorch keeps log-probabilities.
        return logits.abs().max() < 8 and uncertain(logits, t[2])

    def differences(self, call):
        _, w, target = call.operands
        both = [Applied("linear cross-entropy", {"n": target.numel(), "v": len(w)})]
        for i in (0, 1):
            if not call.wanted[1 - i]:
                both.append(Applied("linear cross-entropy, one wanted", {"m": call.stored(i)},
                                    adds=(i,)))
        return both


# ---- attention ----

class LinearCrossEntropyEarly(LinearCrossEntropy):
    """PyTorch's own, in chunks: its gradients are made in forward, too, and lie beside its saved tensors."""

    def draw(self, g):
        operands, parameters = super().draw(g)
        return operands, parameters | {"wide": g.choice((0, 1))}

    def text(self, x, w, target, chunk, wide):
        options = f"torch.nn.LinearCrossEntropyOptions(batch_chunk_size={chunk or None}, allow_retain_graph=True)"
        return (mt("linear_cross_entropy_early", x, w, target, -100, chunk, wide),
                f"at_least_f32(F.linear_cross_entropy({x}, {w}, {target}, options={options}))")

    def dtype(self, operands, chunk, wide):
        return super().dtype(operands, chunk)

    def suits(self, t, room, chunk, wide):
        return super().suits(t, room, chunk)

    def differences(self, call):
        x, w, target = call.operands
        elements = [v.numel() for v in (x, w)]
        return [Applied("linear cross-entropy, early", {"n": elements[i]}) for i in (0, 1) if call.wanted[i]]


class FlashAttention(Op):
    row_major, weight = False, 3

    def draw(self, g):
        b, kv, s, t, d = (g.extent() for _ in range(5))
        groups, dtype, causal = g.choice((1, 1, 2)), g.dtype(), g.chance(0.4)
        if causal:
            t = s
        k = g.operand((b, kv, t, d), dtype)
        v = k if g.chance(0.2) else g.operand((b, kv, t, d), dtype)
        return [g.operand((b, kv * groups, s, d), dtype), k, v], {"causal": causal}

    def text(self, q, k, v, causal):
        return (mt("flash_attention", q, k, v, 0, causal, 0),
                f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={causal}, "
                f"enable_gqa={q.shape[1] != k.shape[1]})")

    def suits(self, t, room, causal):
        return all(x.stride(-1) == 1 for x in t)  # PyTorch has no fused kernel for other strides

    def differences(self, call):
        q, k, *_ = call.operands
        window = [Applied("window mask", {"s": q.shape[2], "t": k.shape[2]})] if call.parameters.get("window") else []
        return [Applied("flash generator", {}), *window]
