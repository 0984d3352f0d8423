"""What PyTorch's own code for CUDA makes and keeps in operations that are written otherwise for meta, or not at all.

Each function here makes the tensors that the operation makes on CUDA, in its order; what it does not return goes at its end. Of
losses that are reduced the result may keep the storage that had an element for each of the input (aten/src/ATen/native/Loss.cpp,
cuda/Loss.cu, cuda/MultiMarginLoss.cu, cuda/MultiLabelMarginCriterion.cu, cuda/LossCTC.cu, ReduceOps.cpp of PyTorch 2.13)."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

import torch

from memtape._ledger import PLAIN

Make = Callable[[Sequence[int], torch.dtype], torch.Tensor]
_aten = torch.ops.aten
_NONE = 0  # of reductions


def _reduced(whole: torch.Tensor) -> torch.Tensor:
    """whole.resize_({}): a scalar in the storage of all."""
    return torch.empty(0, dtype=whole.dtype, device=whole.device).set_(whole.untyped_storage(), 0, (), ())


def _pointwise(make: Make, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return make(torch.broadcast_shapes(x.shape, target.shape), torch.result_type(x, target))


def _structured(make: Make, x: torch.Tensor, target: torch.Tensor, reduction: int = 1, beta: float = 1.0) -> torch.Tensor:
    """mse_loss, smooth_l1_loss: the result is made for all elements first; a second tensor has them."""
    out = _pointwise(make, x, target)
    if reduction == _NONE:
        return out
    elements = _pointwise(make, x, target)
    del elements
    return _reduced(out)


def _huber(make: Make, x: torch.Tensor, target: torch.Tensor, reduction: int = 1, delta: float = 1.0) -> torch.Tensor:
    elements = _pointwise(make, x, target)
    return elements if reduction == _NONE else make((), elements.dtype)


def _bce(make: Make, x: torch.Tensor, target: torch.Tensor, weight: Optional[torch.Tensor] = None, reduction: int = 1) -> torch.Tensor:
    out = make(x.shape, x.dtype)
    if reduction == _NONE:
        return out
    reduced = make((), x.dtype)
    del reduced
    return _reduced(out)


def _bce_with_logits(make: Make, x: torch.Tensor, target: torch.Tensor, weight: Optional[torch.Tensor] = None,
                     pos_weight: Optional[torch.Tensor] = None, reduction: int = 1) -> torch.Tensor:
    log_sigmoid = make(x.shape, x.dtype)
    if pos_weight is not None:
        less_one = make(pos_weight.shape, pos_weight.dtype)
        log_weight = make(torch.broadcast_shapes(pos_weight.shape, target.shape), torch.result_type(pos_weight, target))
        del less_one, log_weight
    elements = make(target.shape, target.dtype)
    out = elements if reduction == _NONE else make((), elements.dtype)
    del log_sigmoid
    return out


def _logsumexp(make: Make, x: torch.Tensor, dim: Any, keepdim: bool = False) -> torch.Tensor:
    dims = {d % max(x.dim(), 1) for d in (dim if isinstance(dim, (list, tuple)) else [dim])} or set(range(x.dim()))
    dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
    most = make([1 if i in dims else n for i, n in enumerate(x.shape)], dtype)
    elements = make(x.shape, dtype)
    out = make(most.shape if keepdim else [n for i, n in enumerate(x.shape) if i not in dims], dtype)
    del most, elements
    return out


def _dist(make: Make, x: torch.Tensor, other: torch.Tensor, p: float = 2) -> torch.Tensor:
    difference = _pointwise(make, x, other)
    out = make((), difference.dtype)
    del difference
    return out


def _soft_margin(make: Make, x: torch.Tensor, target: torch.Tensor, reduction: int = 1) -> torch.Tensor:
    return _bce(make, x, target, None, reduction)


def _like(make: Make, grad: torch.Tensor, x: torch.Tensor, *_: Any) -> torch.Tensor:
    return make(x.shape, x.dtype)


def _multi_margin(make: Make, x: torch.Tensor, target: torch.Tensor, p: float = 1, margin: float = 1,
                  weight: Optional[torch.Tensor] = None, reduction: int = 1) -> torch.Tensor:
    out = make(target.shape if reduction == _NONE else (), x.dtype)
    rows = make(x.shape[:1], x.dtype) if reduction != _NONE and x.dim() > 1 else None
    del rows
    return out


def _multilabel(make: Make, x: torch.Tensor, target: torch.Tensor, reduction: int) -> Tuple[torch.Tensor, torch.Tensor]:
    is_target = make(target.shape, x.dtype)
    out = make(x.shape[:1] if reduction == _NONE and x.dim() > 1 else (), x.dtype)
    rows = make(x.shape[:1], x.dtype) if reduction != _NONE and x.dim() > 1 else None
    del rows
    return out, is_target


def _ctc(make: Make, log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int],
         blank: int = 0, zero_infinity: bool = False) -> Tuple[torch.Tensor, torch.Tensor]:
    time, batch = log_probs.shape[0], log_probs.shape[1]
    lengths = [make((batch,), torch.int64) for _ in range(3)]  # of targets and inputs, and where targets begin
    alpha = make((batch, time, 2 * max(target_lengths) + 1), log_probs.dtype)
    out = make((batch,), log_probs.dtype)
    del lengths
    return out, alpha


def _ctc_backward(make: Make, grad: torch.Tensor, log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: Any,
                  target_lengths: Any, out: torch.Tensor, alpha: torch.Tensor, *_: Any) -> torch.Tensor:
    beta, made = make(alpha.shape, alpha.dtype), make(log_probs.shape, log_probs.dtype)
    lengths = [make(log_probs.shape[1:2], torch.int64) for _ in range(3)]
    del beta, lengths
    return made


def _fake_quantize(make: Make, x: torch.Tensor, *_: Any) -> Tuple[torch.Tensor, torch.Tensor]:
    return make(x.shape, x.dtype), make(x.shape, torch.bool)


def _layer_norm(make: Make, x: torch.Tensor, shape: Sequence[int], weight: Any, bias: Any, eps: float) -> Any:
    """cuda/layer_norm_kernel.cu: dense, however the input lies."""
    rows = [*x.shape[:x.dim() - len(shape)], *[1] * len(shape)]
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    return make(x.shape, x.dtype), make(rows, dtype), make(rows, dtype)


def _layer_norm_backward(make: Make, dy: torch.Tensor, x: torch.Tensor, shape: Sequence[int], mean: torch.Tensor, rstd: torch.Tensor,
                         weight: Optional[torch.Tensor], bias: Optional[torch.Tensor], wanted: Sequence[bool]) -> Any:
    made = zip((x, weight, bias), wanted)
    return tuple(make(t.shape, t.dtype) if t is not None and is_wanted else None for t, is_wanted in made)


def _embedding_bag(make: Make, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, scale: bool = False, mode: int = 0,
                   sparse: bool = False, weights: Optional[torch.Tensor] = None, last: bool = False, padding: int = -1) -> Any:
    """cuda/EmbeddingBag.cu"""
    bags, width = offsets.shape[0] - last, weight.shape[1]
    bag_size, bag_of = make(offsets.shape, indices.dtype), make(indices.shape, indices.dtype)
    out = make((bags, width), weight.dtype)
    return out, bag_of, bag_size, make((bags, width) if mode == 2 else (0,), indices.dtype)  # 2: max


def _grouped_mm(make: Make, a: torch.Tensor, b: torch.Tensor, offs: Optional[torch.Tensor] = None, bias: Optional[torch.Tensor] = None,
                out_dtype: Optional[torch.dtype] = None) -> torch.Tensor:
    """create_grouped_gemm_output_tensor: rows begin at multiples of 16 bytes. Of bf16 meta knows it by itself."""
    dtype = out_dtype or a.dtype
    groups = offs.shape[0] if offs is not None else a.shape[0]
    shape = {(2, 2): (groups, a.shape[0], b.shape[-1]), (2, 3): (a.shape[0], b.shape[-1]), (3, 2): (a.shape[1], b.shape[-1]),
             (3, 3): (groups, a.shape[1], b.shape[-1])}[a.dim(), b.dim()]
    unit = 16 // dtype.itemsize
    return make((*shape[:-1], -(-shape[-1] // unit) * unit), dtype)[..., :shape[-1]]


# ---- what PyTorch runs Python code for on meta, which takes a hundred times as long as the dispatch ----

_Shape = Optional[Sequence[int]]  # None: not known here


def _of_the_first(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Shape:
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    shape: torch.Size = args[0].shape
    return shape if all(t.shape == shape and t.is_contiguous() for t in tensors) else None


def _of_product(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Shape:
    a, b = args[-2:]
    return (a.shape[0], b.shape[1]) if a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] else None


def _of_addmm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Shape:
    return _of_product(args, kwargs) if args[0].dim() == 1 and args[0].shape[0] == args[2].shape[-1] else None


def _of_sum(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Shape:
    x, dims, keeps = (*args, False)[:3]
    summed = {d % x.dim() for d in dims or () if -x.dim() <= d < x.dim()}
    if kwargs or not summed or len(summed) < len(dims) or not x.is_contiguous():
        return None
    return [1 if i in summed else n for i, n in enumerate(x.shape) if keeps or i not in summed]


def _of_zeros(args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Shape:
    plainly = all(value in (None, False, torch.preserve_format) for value in kwargs.values())
    return args[0].shape if plainly and args[0].is_contiguous() else None


_QUICKLY: Dict[Any, Callable[[Sequence[Any], Mapping[str, Any]], _Shape]] = {
    **{getattr(getattr(_aten, name.partition(".")[0]), name.partition(".")[2] or "default"): _of_the_first for name in
       """relu gelu silu sigmoid tanh threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward add.Tensor
       sub.Tensor mul.Tensor div.Tensor""".split()},
    _aten.addmm.default: _of_addmm, _aten.mm.default: _of_product, _aten.sum.dim_IntList: _of_sum, _aten.zeros_like.default: _of_zeros}


def quickly(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Optional[torch.Tensor]:
    """What func makes on meta of contiguous tensors of one floating dtype, and of one shape unless they are matrices that are multiplied.
    None where anything is otherwise."""
    shape_of = _QUICKLY.get(func)
    if shape_of is None:
        return None
    first = args[0]
    if not (isinstance(first, torch.Tensor) and first.is_meta and first.is_floating_point()):
        return None
    for a in args:
        if isinstance(a, torch.Tensor) and (a.dtype != first.dtype or type(a) not in PLAIN):
            return None
    shape = shape_of(args, kwargs)
    return None if shape is None else torch.empty(shape, dtype=first.dtype, device="meta")


def empty_like(t: torch.Tensor) -> torch.Tensor:
    """torch.empty_like on meta."""
    return torch.empty(t.shape, dtype=t.dtype, device="meta") if type(t) in PLAIN and t.is_contiguous() else torch.empty_like(t)


_NUMBERS = {"LSTM": 5, "GRU": 6}  # gates and cell; what a GRU's are is not published


def reserve_numbers(kind: str, layers: int) -> Optional[int]:
    """How many numbers cuDNN keeps in its reserve for a step's hidden unit, if all layers have their gates there and all but the last
    one their outputs. Only the ratio of LSTM to GRU is known: 736,000,000 to 864,000,000 bytes of 4 layers, which cuDNN asked for in
    pytorch/pytorch issue 2895. cudnnGetRNNTempSpaceSizes, which knows it, needs a GPU."""
    return layers * _NUMBERS[kind] + layers - 1 if kind in _NUMBERS else None


# Lengths in tensors are lists on CUDA, which PyTorch makes of them before.
OF_LISTS = {_aten._ctc_loss.Tensor: _aten._ctc_loss.default, _aten._ctc_loss_backward.Tensor: _aten._ctc_loss_backward.default}
AS_ON_CUDA: Dict[Any, Callable[..., Any]] = {
    _aten.mse_loss.default: _structured, _aten.smooth_l1_loss.default: _structured, _aten.huber_loss.default: _huber,
    _aten.binary_cross_entropy.default: _bce, _aten.soft_margin_loss.default: _soft_margin,
    _aten.binary_cross_entropy_with_logits.default: _bce_with_logits, _aten.logsumexp.default: _logsumexp, _aten.dist.default: _dist,
    _aten.multi_margin_loss.default: _multi_margin, _aten.multi_margin_loss_backward.default: _like,
    _aten.multilabel_margin_loss_forward.default: _multilabel, _aten.multilabel_margin_loss_backward.default: _like,
    _aten.native_layer_norm.default: _layer_norm, _aten.native_layer_norm_backward.default: _layer_norm_backward,
    _aten._embedding_bag.default: _embedding_bag, _aten._embedding_bag_forward_only.default: _embedding_bag,
    _aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize,
    _aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize,
    _aten._ctc_loss.default: _ctc, _aten._ctc_loss_backward.default: _ctc_backward}
if hasattr(_aten, "_grouped_mm"):
    AS_ON_CUDA[_aten._grouped_mm.default] = _grouped_mm
