"""Autocast on meta as CUDA has it: which operations run in lower precision and which in f32, and the copies of weights that are
kept until the outermost region ends.

PyTorch has no autocast for meta tensors. Here its lists (AT_FORALL_... in ATen/autocast_mode.h and aten/src/ATen/autocast_mode.cpp of
PyTorch 2.13) are registered under a dispatch key that meta tensors are given for the time of a profile. The state is PyTorch's own: a
region that is entered for "cuda", "cpu" or "meta", in a forward, a loss or by Accelerate, counts as one for CUDA."""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch

_NAME = "AutocastMTIA"  # a key of a device that nobody has at hand; operations that are not in the lists fall through it
_KEY = torch._C._dispatch_key_parse(_NAME)
_DEVICES = ("cuda", "cpu")  # whose regions count

# ---- the lists ----

LOWER = """_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv
    linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell
    rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention""".split()
F32 = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar
    softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim cosine_similarity
    poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
    margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits
    dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d
    upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d
    upsample_bicubic2d _upsample_bicubic2d_aa""".split()
F32_BY_DTYPE = """prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
    linalg_matrix_norm.str_ord sum sum.dim_IntList""".split()  # by their argument dtype, unless it is given
F32_NORM = {"norm.Scalar": "norm.ScalarOpt_dtype", "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype"}
WIDEST = "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add".split()
REFUSED = ["binary_cross_entropy"]


class _Thread(threading.local):
    depth = 0
    casts: Dict[int, Tuple[torch.Tensor, torch.Tensor]]  # of weights, until the outermost region ends

    def __init__(self) -> None:
        self.casts = {}
        self.disabled: Dict[str, None] = {}  # modules that have entered a region that PyTorch had disabled before
        self.where: Callable[[], str] = str


_thread = _Thread()


def _dtype() -> Optional[torch.dtype]:
    """The lower precision of the region that this is in; None: it is in none."""
    return next((torch.get_autocast_dtype(device) for device in _DEVICES if torch.is_autocast_enabled(device)), None)


def _eligible(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.device.type == "meta" and t.is_floating_point() and t.dtype != torch.float64


def _cast(t: Any, dtype: torch.dtype, lower: torch.dtype) -> Any:
    """cached_cast: a copy of a weight is made once for all its uses in a region."""
    if isinstance(t, (list, tuple)):
        return [_cast(item, dtype, lower) for item in t]
    if not _eligible(t) or t.dtype == dtype:
        return t
    if not (dtype == lower and t.dtype == torch.float32 and t.requires_grad and t.is_leaf and not t._is_view()
            and torch.is_autocast_cache_enabled()):
        return t.to(dtype)
    if id(t) not in _thread.casts:
        _thread.casts[id(t)] = (t, t.to(dtype))
    return _thread.casts[id(t)][1]


def _operation(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


# ---- what each list does: the operation to call, and its arguments ----

_Called = Tuple[Any, Tuple[Any, ...], Dict[str, Any]]


def _all_to(dtype: Callable[[torch.dtype, Any], torch.dtype], op: Any, args: Any, kwargs: Any, lower: torch.dtype) -> _Called:
    """From the last to the first, as GCC evaluates arguments: backward runs the casts in the reverse order."""
    to = dtype(lower, (*args, *kwargs.values()))
    named = {name: _cast(kwargs[name], to, lower) for name in reversed(list(kwargs))}
    return op, tuple([_cast(a, to, lower) for a in reversed(args)][::-1]), named


def _widest(lower: torch.dtype, args: Any) -> torch.dtype:
    flat = [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a])]
    return torch.float32 if any(_eligible(t) and t.dtype == torch.float32 for t in flat) else lower


def _by_dtype(op: Any, args: Any, kwargs: Any, lower: torch.dtype) -> _Called:
    names = [argument.name for argument in op._schema.arguments]
    given = {**dict(zip(names, args)), **kwargs}
    if not _eligible(args[0]) or given.get("dtype") is not None:
        return op, args, kwargs
    if op in (torch.ops.aten.softmax.int, torch.ops.aten.log_softmax.int) and args[0].dtype == torch.float16:
        half_to_float = torch.ops.aten._softmax if op is torch.ops.aten.softmax.int else torch.ops.aten._log_softmax
        return half_to_float.default, (args[0], given["dim"], True), {}  # one kernel, without an f32 input
    at = names.index("dtype")
    return (op, (*args[:at], torch.float32, *args[at + 1:]), kwargs) if at < len(args) else (op, args, {**kwargs, "dtype": torch.float32})


def _norm(op: Any, args: Any, kwargs: Any, lower: torch.dtype) -> _Called:
    dtype = torch.float32 if _eligible(args[0]) else args[0].dtype
    name = f"norm.{op._overloadname}"
    default = (2,) if name == "norm.Scalar" and len(args) < 2 else ()
    return _operation(F32_NORM[name]), (*args, *default), {**kwargs, "dtype": dtype}


def _refuse(op: Any, args: Any, kwargs: Any, lower: torch.dtype) -> _Called:
    raise RuntimeError("torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast: CUDA refuses them there. "
                       "Use binary_cross_entropy_with_logits, or leave autocast around the loss")


_POLICIES: List[Tuple[List[str], Callable[[Any, Any, Any, torch.dtype], _Called]]] = [
    (LOWER, functools.partial(_all_to, lambda lower, args: lower)),
    (F32, functools.partial(_all_to, lambda lower, args: torch.float32)),
    (F32_BY_DTYPE, _by_dtype), (list(F32_NORM), _norm),
    (WIDEST, functools.partial(_all_to, _widest)), (REFUSED, _refuse)]


def _kernel(op: Any, policy: Callable[[Any, Any, Any, torch.dtype], _Called]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(_KEY)
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, True)
        try:
            lower = _dtype()
            if lower is None or not _thread.depth:
                return op(*args, **kwargs)
            called, args, kwargs = policy(op, args, kwargs, lower)
            return called(*args, **kwargs)
        finally:
            torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, excluded)
    return run


def of_this_version(names: List[str]) -> List[str]:
    """Those that the autocast of the PyTorch at hand looks at: 2.11 leaves rms_norm alone."""
    def looked_at(name: str) -> bool:
        try:
            return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA"))
        except RuntimeError:  # no such operation
            return False
    return [name for name in names if looked_at(name)]


@functools.cache
def _register() -> Any:
    """Once, and for good; the key is given to nobody else's tensors."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():  # that the device's own kernels are overridden
        warnings.simplefilter("ignore", UserWarning)
        for names, policy in _POLICIES:
            for name in of_this_version(names):
                library.impl(name, _kernel(_operation(name), policy), _NAME)
    return library


# ---- regions that ask for "cuda" where there is none, or for "meta" ----

_lock = threading.Lock()
_places: List[Tuple[Any, str, Any]] = []  # what is replaced as long as somebody profiles: (owner, name, what was there)
_users = 0


def _as_cuda(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with "cuda" for "meta" as its first argument."""
    @functools.wraps(function)
    def asked(*args: Any, **kwargs: Any) -> Any:
        if args and args[0] == "meta":
            args = ("cuda", *args[1:])
        if kwargs.get("device_type") == "meta":
            kwargs["device_type"] = "cuda"
        return function(*args, **kwargs)
    return asked


def _init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: Any, device_type: str, dtype: Optional[torch.dtype] = None, enabled: bool = True,
             cache_enabled: Optional[bool] = None) -> None:
        device = "cuda" if device_type == "meta" else device_type
        if device != "cuda" or not _thread.depth:
            original(self, device, dtype, enabled, cache_enabled)
            return
        original(self, device, dtype, False, cache_enabled)  # enabled, it would ask for a GPU
        self._enabled, self._made_in_profile = enabled, True
    return init


def _enter(original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes who enters a region that was made before, where PyTorch disables those for "cuda" as there is no GPU."""
    @functools.wraps(original)
    def enter(self: Any) -> Any:
        if _thread.depth and self.device == "cuda" and not self._enabled and not hasattr(self, "_made_in_profile") \
                and torch.cuda.amp.common.amp_definitely_not_available():
            _thread.disabled[_thread.where()] = None
        return original(self)
    return enter


def _custom_cast(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def cast(value: Any, device_type: str, dtype: torch.dtype) -> Any:
        return original(value, "meta" if _thread.depth else device_type, dtype)
    return cast


def _forget(original: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(original)
    def forget() -> None:
        _thread.casts.clear()
        original()
    return forget


def _replacements() -> Iterator[Tuple[Any, str, Callable[..., Any]]]:
    mode = torch.amp.autocast_mode
    for owner, names in ((torch, ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype")),
                         (mode, ("is_autocast_available",)), (torch.amp, ("is_autocast_available",))):
        for name in names:
            yield owner, name, _as_cuda(getattr(owner, name))
    yield torch, "clear_autocast_cache", _forget(torch.clear_autocast_cache)
    yield mode, "_cast", _custom_cast(mode._cast)
    yield mode.autocast, "__init__", _init(mode.autocast.__init__)
    yield mode.autocast, "__enter__", _enter(mode.autocast.__enter__)


@contextlib.contextmanager
def as_on_cuda(where: Callable[[], str] = str) -> Iterator[Dict[str, None]]:
    """Within it, autocast in this thread casts meta tensors as CUDA's does its own. where() is the module that runs. Gives those that enter
    a region for "cuda" that PyTorch has disabled."""
    global _users
    _register()
    with _lock:
        if not _users:
            for owner, name, function in list(_replacements()):
                _places.append((owner, name, getattr(owner, name)))
                setattr(owner, name, function)
        _users += 1
    before = [f(_KEY) for f in (torch._C._dispatch_tls_is_dispatch_key_included, torch._C._dispatch_tls_is_dispatch_key_excluded)]
    torch._C._dispatch_tls_set_dispatch_key_included(_KEY, True)
    torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, False)
    _thread.depth += 1
    if _thread.depth == 1:
        _thread.disabled, _thread.where = {}, where
    try:
        yield _thread.disabled
    finally:
        _thread.depth -= 1
        if not _thread.depth:
            _thread.casts.clear()
        torch._C._dispatch_tls_set_dispatch_key_included(_KEY, before[0])
        torch._C._dispatch_tls_set_dispatch_key_excluded(_KEY, before[1])
        with _lock:
            _users -= 1
            while not _users and _places:
                setattr(*_places.pop())
