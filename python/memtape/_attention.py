"""What torch.nn.functional.scaled_dot_product_attention runs on CUDA, chosen and called as PyTorch 2.13 does it.

CUDA chooses among kernels that keep different bytes; the CPU has fewer of them and the meta device none, so that a count there
is another one. The rules are those of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and ../sdp_utils_cpp.h for a GPU of
compute capability 8.0 (A100); what each choice calls is scaled_dot_product_attention in ../attention.cpp. Left out: cuDNN's
attention, which newer GPUs prefer with a new cuDNN, and nested tensors.

Dropout and the RMS norm are other operations of which meta runs the CPU's parts: there they are CUDA's, too
(is_fused_kernel_acceptable in aten/src/ATen/native/Dropout.cpp)."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

from memtape._library import MemtapeError

CHOICES = ("cuda", "flash", "efficient", "math", "device")
_aten = torch.ops.aten
_LOW_PRECISION = (torch.float16, torch.bfloat16)


def _composite(operation: Any, *arguments: Any, **options: Any) -> torch.Tensor:
    """PyTorch's own parts of an operation, for which something else is registered here."""
    out: torch.Tensor = operation.default._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *arguments, **options)
    return out


class Call:
    """The arguments of one call."""

    def __init__(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
                 dropout_p: float = 0.0, is_causal: bool = False, scale: Optional[float] = None, enable_gqa: bool = False) -> None:
        self.query, self.key, self.value, self.mask = query, key, value, attn_mask
        self.dropout, self.causal, self.scale, self.gqa = dropout_p, is_causal, scale, enable_gqa

    def wants_gradient(self) -> bool:
        return torch.is_grad_enabled() and any(t.requires_grad for t in (self.query, self.key, self.value))

    def as_pytorch_does(self) -> torch.Tensor:
        """What the tensors' own device does."""
        return _composite(_aten.scaled_dot_product_attention, self.query, self.key, self.value, self.mask, self.dropout,
                          self.causal, scale=self.scale, enable_gqa=self.gqa)


# ---- the rules: what speaks against a kernel, or None ----

def _against_both(c: Call, shares_heads: bool) -> Optional[str]:
    """Rules of sdp_utils_cpp.h that both fused kernels have."""
    q, k, v = c.query, c.key, c.value
    if not q.dim() == k.dim() == v.dim() == 4:
        return "it takes tensors of rank 4"
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        return "it takes one batch size"
    if shares_heads and c.gqa:
        if k.shape[1] != v.shape[1] or q.shape[1] % k.shape[1]:
            return "the heads of keys must divide those of queries"
    elif not q.shape[1] == k.shape[1] == v.shape[1]:
        return "it does not share heads of keys and values"
    if not (q.shape[2] and k.shape[2]):
        return "a sequence is empty"
    if c.mask is not None and c.mask.stride(-1) != 1:
        return "the mask's last dimension has a stride"
    return None


def _against_flash(c: Call) -> Optional[str]:
    """can_use_flash_attention"""
    q, k, v = c.query, c.key, c.value
    against = _against_both(c, True)
    if against:
        return against
    if c.mask is not None:
        return "it takes no mask"
    if not q.shape[3] == k.shape[3] == v.shape[3] <= 256:
        return "it takes one width of heads, up to 256"
    if c.causal and q.shape[2] != k.shape[2]:
        return "a causal mask must be square"
    if not q.dtype == k.dtype == v.dtype or q.dtype not in _LOW_PRECISION:
        return f"it takes f16 and bf16, not {q.dtype}"
    if q.shape[3] != 1 and any(t.stride(3) != 1 for t in (q, k, v)):
        return "heads must lie dense"
    return None


def _against_efficient(c: Call) -> Optional[str]:
    """can_use_mem_efficient_attention"""
    q, k, v = c.query, c.key, c.value
    against = _against_both(c, False)
    if against:
        return against
    if not q.dtype == k.dtype == v.dtype or q.dtype not in (*_LOW_PRECISION, torch.float32):
        return f"it takes f16, bf16 and f32, not {q.dtype}"
    unit = 8 if q.dtype in _LOW_PRECISION else 4
    if q.shape[3] != k.shape[3] or any(not t.shape[3] or t.shape[3] % unit for t in (q, v)):
        return f"the width of heads must be a multiple of {unit}"
    if any(t.stride(3) != 1 for t in (q, k, v)):
        return "heads must lie dense"
    return None


_AGAINST: Dict[str, Callable[[Call], Optional[str]]] = {
    "flash": _against_flash, "efficient": _against_efficient, "math": lambda c: None}
_ENABLED = {"flash": torch.backends.cuda.flash_sdp_enabled, "efficient": torch.backends.cuda.mem_efficient_sdp_enabled,
            "math": torch.backends.cuda.math_sdp_enabled}
_NUMBERS = {1: "flash", 2: "efficient", 0: "math"}  # of SDPBackend


def choose(c: Call, choice: str) -> str:
    """flash, efficient or math. What is chosen by name must be possible on CUDA."""
    if choice != "cuda":
        against = _AGAINST[choice](c)
        if against:
            raise MemtapeError(f"memtape.torch: attention is {choice!r}, which CUDA does not run here: {against}")
        return choice
    for number in torch._C._get_sdp_priority_order():
        name = _NUMBERS.get(number)
        if name and _ENABLED[name]() and not _AGAINST[name](c):
            return name
    raise MemtapeError("memtape.torch: of the kernels for scaled_dot_product_attention that are enabled, CUDA can run none here")


# ---- the calls ----

def _mask(c: Call) -> Optional[torch.Tensor]:
    """convert_boolean_attn_mask"""
    if c.mask is None or c.mask.dtype != torch.bool:
        return c.mask
    zero = torch.zeros((), dtype=c.query.dtype, device=c.mask.device)
    return torch.where(c.mask.logical_not(), -math.inf, zero)


def _padded(t: torch.Tensor, unit: int) -> torch.Tensor:
    return torch.nn.functional.pad(t, (0, unit - t.shape[-1] % unit))


def _bias(c: Call) -> Optional[torch.Tensor]:
    """preprocess_mask: rows of the bias begin at multiples of 8 elements."""
    bias = _mask(c)
    if bias is None:
        return None
    if any(stride % 8 for stride in bias.stride()[:-1]):
        bias = _padded(bias, 8)[..., :bias.shape[-1]]
    return bias.expand(c.query.shape[0], c.query.shape[1], c.query.shape[2], c.key.shape[2])


def call(c: Call, kernel: str) -> Tuple[torch.Tensor, List[torch.Tensor]]:
    """The output, and those tensors that CUDA would have in host memory."""
    if kernel == "flash":
        width = c.query.shape[3]
        q, k, v = (t if width % 8 == 0 else _padded(t, 8) for t in (c.query, c.key, c.value))
        scale = 1 / math.sqrt(width) if c.scale is None else c.scale
        out = _aten._scaled_dot_product_flash_attention(q, k, v, c.dropout, c.causal, False, scale=scale)[0]
        return out if width % 8 == 0 else out[..., :width], []
    if kernel == "efficient":
        out, _, seed, offset = _aten._scaled_dot_product_efficient_attention(
            c.query, c.key, c.value, _bias(c), c.wants_gradient(), c.dropout, c.causal, scale=c.scale)
        return out, [seed, offset] if c.dropout else []
    out = _aten._scaled_dot_product_attention_math(c.query, c.key, c.value, _mask(c), c.dropout, c.causal, None,
                                                   scale=c.scale, enable_gqa=c.gqa)[0]
    return out, []


# ---- to be in PyTorch's place ----

class _Thread(threading.local):
    observer: Optional[Any] = None  # has attend(Call) -> Tensor
    meta_choice: Optional[str] = None  # stays: a checkpoint runs again in backward, when nobody observes any more


thread = _Thread()
_lock = threading.Lock()
_cpu: List[Any] = []  # the registration for the CPU, as long as somebody observes
_observers = 0


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Optional[torch.Tensor] = None,
            dropout_p: float = 0.0, is_causal: bool = False, *, scale: Optional[float] = None,
            enable_gqa: bool = False) -> torch.Tensor:
    c = Call(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    if thread.observer is not None:
        out: torch.Tensor = thread.observer.attend(c)
        return out
    if query.device.type == "meta" and thread.meta_choice not in (None, "device"):
        return call(c, choose(c, thread.meta_choice or "cuda"))[0]
    return c.as_pytorch_does()


def _drop(t: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """On meta: a mask of a byte for each element."""
    fused = train and 0 < p < 1 and t.numel() and thread.meta_choice not in (None, "device")
    out: torch.Tensor = _aten.native_dropout(t, p, train)[0] if fused else _composite(_aten.dropout, t, p, train)
    return out


class FusedRMSNorm(torch.autograd.Function):  # type: ignore[misc]
    """_fused_rms_norm, which CUDA alone has (aten/src/ATen/native/cuda/layer_norm_kernel.cu)."""

    saved_names = ("input", "result1", "weight")

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Optional[torch.Tensor], rank: int) -> torch.Tensor:
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        dtype = torch.float32 if x.dtype in _LOW_PRECISION else x.dtype
        ctx.save_for_backward(x, torch.empty([*x.shape[:-rank], *[1] * rank], dtype=dtype, device=x.device),
                              *([] if weight is None else [weight]))
        return y

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        x, _, *weight = ctx.saved_tensors
        dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        return dx, torch.empty_like(weight[0]) if weight and ctx.needs_input_grad[1] else None, None


def _rms_norm(x: torch.Tensor, shape: Any, weight: Optional[torch.Tensor] = None, eps: Optional[float] = None) -> torch.Tensor:
    """On meta: one operation, unless the weight has another dtype (rms_norm_symint in aten/src/ATen/native/layer_norm.cpp)."""
    if thread.meta_choice in (None, "device") or x.is_complex() or weight is not None and weight.dtype != x.dtype:
        return _composite(_aten.rms_norm, x, shape, weight, eps)
    out: torch.Tensor = FusedRMSNorm.apply(x, weight, len(shape))
    return out


def _register(key: str) -> Any:
    library = torch.library.Library("aten", "IMPL")
    library.impl("scaled_dot_product_attention", _attend, key)
    if key == "AutogradMeta":
        library.impl("dropout", _drop, key)
        library.impl("mish_backward", lambda dy, x: torch.empty_like(x), key)  # one kernel on CUDA, parts of it on meta
        if hasattr(_aten, "_fused_rms_norm"):
            library.impl("rms_norm", _rms_norm, key)
    return library


@functools.cache
def _register_meta() -> Any:
    """Once, and for good: see meta_choice."""
    return _register("AutogradMeta")


def observe(observer: Any, choice: str) -> Any:
    """Calls of this thread go to observer.attend until `release` gets what this returns."""
    global _observers
    _register_meta()
    with _lock:
        if not _observers:
            _cpu.append(_register("AutogradCPU"))
        _observers += 1
    outer, thread.observer, thread.meta_choice = thread.observer, observer, choice
    return outer


def release(outer: Any) -> None:
    global _observers
    thread.observer = outer
    with _lock:
        _observers -= 1
        if not _observers:
            _cpu.pop()._destroy()


# ---- flex_attention, of which torch.compile makes one kernel ----

class FlexAttention(torch.autograd.Function):  # type: ignore[misc]
    """The fused kernel: it keeps queries, keys, values, its output, a logarithm a row and the blocks of the mask."""

    saved_names = ("query", "key", "value", "out", "logsumexp")

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *masks: torch.Tensor) -> Any:
        width = v.shape[-1]
        out = torch.empty_like(q) if q.shape[-1] == width else torch.empty((*q.shape[:-1], width), dtype=q.dtype, device=q.device)
        logsumexp = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)
        ctx.save_for_backward(q, k, v, out, logsumexp, *masks)
        ctx.mark_non_differentiable(logsumexp)
        return out, logsumexp

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor, _: Any) -> Any:
        q, k, v, *others = ctx.saved_tensors
        delta = torch.empty(q.shape[:-1], dtype=torch.float32, device=q.device)  # sums of dy out, a row
        gradients = [torch.empty_like(t) for t in (q, k, v)]
        del delta
        return (*gradients, *[None] * (len(others) - 2))


def _flex(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, _score: Any, block_mask: Any, *_: Any) -> Any:
    out, logsumexp = FlexAttention.apply(q, k, v, *[t for t in block_mask if isinstance(t, torch.Tensor)])
    return out, logsumexp, logsumexp


@contextlib.contextmanager
def flex_on_meta() -> Iterator[None]:
    """flex_attention runs as torch.compile's kernel would, on meta, where PyTorch has none."""
    flex: Any = sys.modules.get("torch.nn.attention.flex_attention")
    places = {"_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG": True, "_validate_device": lambda *_: None, "flex_attention_hop": _flex}
    before = {name: getattr(flex, name) for name in places if hasattr(flex, name)}
    try:
        for name in before:
            setattr(flex, name, places[name])
        yield
    finally:
        for name, value in before.items():
            setattr(flex, name, value)
