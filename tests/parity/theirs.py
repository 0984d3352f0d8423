"""PyTorch's computation for each row of the op table. Parameters are those of the row's call in
src/ops/op_cases.def, in their order."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

from memtape import DTYPES

sys.path.append(str(Path(__file__).resolve().parents[2] / "bench"))
from torch_rows import COMPARISONS, PLAIN  # noqa: E402, F401


def masked(x, scale):
    s, t = x.shape[-2:]
    mask = torch.ones(s, t, dtype=torch.bool).triu(1 + t - s)
    return torch.softmax((x * scale).masked_fill(mask, float("-inf")), -1)


def their_rope(x, start, theta):
    """As in Hugging Face's LLaMA, with angles in f64."""
    s, d = x.shape[-2:]
    frequency = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    angles = torch.outer(torch.arange(start, start + s, dtype=torch.float64), frequency)
    cosine, sine = (f(torch.cat((angles, angles), -1)).to(x.dtype) for f in (torch.cos, torch.sin))
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat((-high, low), -1) * sine


def their_max(x, dims, keep):
    """torch.max over several dimensions at once: their elements are arranged in one row."""
    dims = [d % x.dim() for d in dims]
    others = [d for d in range(x.dim()) if d not in dims]
    y = x.permute((*others, *dims)).flatten(len(others)).max(-1)[0]
    return y.reshape([1 if d in dims else n for d, n in enumerate(x.shape)]) if keep else y


def layer_norm(x, *more):
    """Takes x and eps, or x, w, b and eps."""
    *weights, eps = more
    return F.layer_norm(x, x.shape[-1:], *(weights or (None, None)), eps)


def rms_norm(x, *more):
    *weights, eps = more
    return F.rms_norm(x, x.shape[-1:], *(weights or (None,)), eps)


def batch_norm(x, *more):
    """x, or x, w, b; and whether training, eps. In evaluation with the statistics of src/ops/op_cases.c."""
    *weights, training, eps = more
    running = (None, None) if training else tuple(
        torch.full(x.shape[1:2], value, dtype=x.dtype) for value in (0.25, 1.5))
    return F.batch_norm(x, *running, *(weights or (None, None)), bool(training), 0, eps)


def cross_entropy(x, target, ignore):
    return F.cross_entropy(x.reshape(-1, x.shape[-1]), target.reshape(-1), ignore_index=ignore)


def linear_cross_entropy(x, w, target, ignore, chunk):
    """With f32 logits instead of 16-bit ones, because memtape's loss is f32."""
    logits = F.linear(x, w)
    return cross_entropy(logits.to(torch.promote_types(x.dtype, torch.float32)), target, ignore)


def linear_cross_entropy_early(x, w, target, ignore, chunk, wide):
    """PyTorch's own, in chunks; its loss is of x's dtype. Its own rule divides by 0 if there are no classes."""
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk or max(target.numel(), 1), allow_retain_graph=True)
    loss = F.linear_cross_entropy(x.reshape(-1, x.shape[-1]), w, target.reshape(-1), ignore_index=ignore, options=options)
    return loss.to(torch.promote_types(x.dtype, torch.float32))


class SinkAttention(torch.autograd.Function):
    """softmax([scale q k^T, sinks]) without its last column, times v; keeps what a fused one would, and a mask."""

    wide = staticmethod(lambda x: x.to(torch.promote_types(x.dtype, torch.float32)))
    heads = staticmethod(lambda x, q: x.repeat_interleave(q.shape[1] // max(x.shape[1], 1), 1))
    groups = staticmethod(lambda x, k: x.unflatten(1, (k.shape[1], -1)).sum(2).to(k.dtype))

    @staticmethod
    def scores(q, k, scale, mask):
        y = scale * SinkAttention.wide(q) @ SinkAttention.heads(SinkAttention.wide(k), q).mT
        return y if mask is None else y.masked_fill(mask == 0, float("-inf"))

    @staticmethod
    def forward(ctx, q, k, v, sinks, scale, mask):
        scores, ctx.scale = SinkAttention.scores(q, k, scale, mask), scale
        column = SinkAttention.wide(sinks)[:, None, None].expand(*scores.shape[:-1], 1)
        lse = torch.cat((scores, column), -1).logsumexp(-1)
        out = ((scores - lse[..., None]).exp() @ SinkAttention.heads(SinkAttention.wide(v), q)).to(q.dtype)
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
        ctx.save_for_backward(q, k, v, sinks if ctx.needs_input_grad[3] else None, out, lse, mask)
        return out

    @staticmethod
    def backward(ctx, dy):
        q, k, v, sinks, out, lse, mask = ctx.saved_tensors
        wide, heads, groups = SinkAttention.wide, SinkAttention.heads, SinkAttention.groups
        p, dy = (SinkAttention.scores(q, k, ctx.scale, mask) - lse[..., None]).exp(), wide(dy)
        delta = (dy * wide(out)).sum(-1)
        ds = ctx.scale * p * (dy @ heads(wide(v), q).mT - delta[..., None])
        d_sinks = sinks if sinks is None else -((wide(sinks)[:, None] - lse).exp() * delta).sum((0, 2)).to(sinks.dtype)
        return (ds @ heads(wide(k), q)).to(q.dtype), groups(ds.mT @ wide(q), k), groups(p.mT @ dy, v), d_sinks, None, None


def flash_attention(q, k, v, *more):
    """Takes sinks or not, then scale, causal, p and window or not."""
    *sinks, scale, causal, p, window = (*more, 0)[:4 + torch.is_tensor(more[0])]
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril().triu(1 - window) if window else None
    if sinks:
        mask = mask.to(q.dtype) if window else None
        return SinkAttention.apply(q, k, v, sinks[0], scale or max(q.shape[-1], 1) ** -0.5, mask)
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=p, is_causal=bool(causal and not window),
                                          scale=scale or None, enable_gqa=q.shape[1] != k.shape[1])


class GroupedLinear(torch.autograd.Function):
    """F.grouped_mm, which knows neither f64 nor all layouts; it keeps the same."""

    @staticmethod
    def forward(ctx, x, w, ends):
        wants_x, wants_w, _ = ctx.needs_input_grad
        ctx.save_for_backward(x if wants_w else None, w if wants_x else None, ends)
        return torch.cat([F.linear(*pair) for pair in zip(GroupedLinear.parts(x, ends), w)])

    @staticmethod
    def parts(x, ends):
        return x.split(torch.diff(ends, prepend=ends.new_zeros(1)).tolist())

    @staticmethod
    def backward(ctx, dy):
        x, w, ends = ctx.saved_tensors
        dy = GroupedLinear.parts(dy, ends)
        dx = None if w is None else torch.cat([d @ m for d, m in zip(dy, w)])
        dw = None if x is None else torch.stack([d.t() @ p for d, p in zip(dy, GroupedLinear.parts(x, ends))])
        return dx, dw, None


def grouped_linear(x, w, index):
    return GroupedLinear.apply(x, w, index.bincount(minlength=len(w)).cumsum(0).int())


class AllToAll(torch.autograd.Function):
    """With one rank; the counts of rows are kept, as _AllToAllSingle and Megatron's _AllToAll keep theirs on the host."""

    @staticmethod
    def forward(ctx, x, sent, received):
        ctx.save_for_backward(sent, received)
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        ctx.saved_tensors
        return dy.clone(), None, None


def all_to_all(x, index, _):
    counts = index.bincount(minlength=4).int()
    return AllToAll.apply(x, counts, counts.clone())


def every(x, dims):
    return dims or tuple(range(x.dim()))


THEIRS = {
    **PLAIN,
    "affine": lambda x, scale, shift: x * scale + shift,
    "leaky_relu": F.leaky_relu, "leaky_relu_inplace": lambda x, slope: F.leaky_relu_(x * 2, slope),
    "pow": torch.pow, "clamp": torch.clamp,
    "softmax": lambda x, scale, causal: (masked(x, scale) if causal
                                         else torch.softmax(x * scale, -1)),
    "layer_norm": layer_norm, "rms_norm": rms_norm, "batch_norm": batch_norm, "rope": their_rope,
    "dropout": F.dropout, "cross_entropy": cross_entropy,
    "cross_entropy_lse": cross_entropy,
    "linear_cross_entropy": linear_cross_entropy,
    "linear_cross_entropy_early": linear_cross_entropy_early,
    "sum": lambda x, keep, *dims: torch.sum(x, every(x, dims), bool(keep)),
    "mean": lambda x, keep, *dims: torch.mean(x, every(x, dims), bool(keep)),
    "max": lambda x, keep, *dims: their_max(x, every(x, dims), keep),
    "gather": lambda x, index, dim: x.gather(dim, index),
    "dispatch": lambda x, index, groups: x.flatten(0, -2)[index.flatten().sort(stable=True)[1] // index.shape[-1]],
    "grouped_linear": grouped_linear,
    "combine": lambda x, index, rows: x.new_zeros(rows, x.shape[1]).scatter_add(0, index[:, None].expand_as(x), x),
    "topk": lambda x, k: x.topk(k)[0],
    # With one rank, where all collectives are the identity.
    "all_gather": lambda x, dim, ranks: x.clone(), "reduce_scatter": lambda x, dim, ranks: x.clone(),
    "all_reduce": lambda x, ranks: x.clone(), "replicate": lambda x, ranks: x.clone(),
    "all_to_all": all_to_all, "send": lambda x, ranks: x.clone(), "recv": lambda x, ranks: x.clone(),
    "permute": lambda x, *order: x.permute(order),
    "slice": lambda x, dim, start, length: x.narrow(dim, start, length),
    "expand": lambda x, *shape: x.expand(shape), "reshape": lambda x, *shape: x.reshape(shape),
    "split": lambda x, dim, part, *sizes: x.split(sizes, dim)[part],
    "cast": lambda x, dtype: x.to(DTYPES[dtype]),
    "cat": lambda *parts: torch.cat(parts[:-1], parts[-1]),
    "flash_attention": flash_attention,
}
