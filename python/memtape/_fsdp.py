"""FSDP2's modules (fully_shard) in a step on meta: the shards of one rank, what it gathers and sums, and on which streams.

PyTorch's own code runs. The streams that it would make on CUDA are names in the books, and collectives send nothing, so any process
group will do, torch's "fake" one, too."""

from __future__ import annotations

import contextlib
import functools
import sys
from typing import Any, Callable, Iterator, List, Tuple

import torch
from torch.utils import _pytree

from memtape._in_place import OnMeta, replaced
from memtape._library import MemtapeError

_PACKAGES = ("torch.distributed.fsdp._fully_shard", "torch.distributed._composable.fsdp")  # before PyTorch 2.6 the second one
_COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_single", "reduce_scatter", "reduce_scatter_tensor",
                "reduce_scatter_single", "all_to_all", "all_to_all_single", "broadcast", "reduce")


def _package() -> str:
    """The one that fully_shard has been imported from, if it has."""
    return next((name for name in _PACKAGES if f"{name}._fsdp_state" in sys.modules), "")


def _module(name: str) -> Any:
    return sys.modules[f"{_package()}.{name}"]


def states(model: torch.nn.Module) -> List[Any]:
    """FSDP's states of the model's modules."""
    if not _package():
        return []
    found = map(_module("_fsdp_state")._get_module_fsdp_state, model.modules())
    return list({id(state): state for state in found if state is not None}.values())


def _groups(state: Any) -> List[Any]:
    groups = vars(state).get("_fsdp_param_groups")  # a list since PyTorch 2.12
    return [group for group in ([state._fsdp_param_group] if groups is None else groups) if group is not None]


def parameters(model: torch.nn.Module) -> List[Any]:
    """PyTorch's FSDPParam of each."""
    return [p for state in states(model) for group in _groups(state) for p in group.fsdp_params]


def notes(model: torch.nn.Module) -> List[str]:
    sizes = {group.mesh_info.shard_mesh_size for state in states(model) for group in _groups(state) if hasattr(group.mesh_info, "shard_mesh_size")}
    ranks = " and of ".join(map(str, sorted(sizes)))
    return [f"Parameters lie in shards of {ranks} ranks (FSDP2); this is one rank's memory, without what the communication library "
            "takes outside of PyTorch's allocator."] if ranks else []


# ---- CUDA's streams ----

class _Event:
    """There is nothing to wait for."""

    def _nothing(self, *_: Any) -> None:
        return None

    record = wait = synchronize = _nothing

    def query(self) -> bool:
        return True


class _Stream:
    def __init__(self, name: str = "") -> None:
        self.name = name

    def _nothing(self, *_: Any) -> None:
        return None

    wait_stream = wait_event = synchronize = _nothing

    def record_event(self, event: Any = None) -> _Event:
        return event or _Event()


class Device:
    """In the place of the module torch.cuda: what is requested within `stream` is entered as that stream's."""

    Event = _Event

    def __init__(self, books: Any) -> None:
        self._books, self._current = books, _Stream()

    def Stream(self, *_: Any, **__: Any) -> _Stream:
        return _Stream()

    def current_stream(self, *_: Any) -> _Stream:
        return self._current

    @contextlib.contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        outer, self._current = self._current, stream
        self._books.stream = stream.name or None
        try:
            yield
        finally:
            self._current = outer
            self._books.stream = outer.name or None

    def name_streams(self, context: Any) -> None:
        """By the names that PyTorch's FSDPCommContext gives them."""
        for name in vars(context):
            if name.endswith("_stream"):
                setattr(context, name, _Stream(name[:-len("_stream")]))


# ---- the user's modules ----

def lend(lent: OnMeta, model: torch.nn.Module, device: Device) -> None:
    """Makes FSDP's states those of modules on meta that hold their shards, as they are between two steps."""
    meta = torch.device("meta")
    for state in states(model):
        contexts = [state._comm_ctx, *(group.comm_ctx for group in _groups(state))]
        for value in (state, state._state_ctx, *contexts, *_groups(state)):
            lent.remember_object(value)
        state._device, state._device_handle = meta, device
        for context in contexts:
            if hasattr(context, "device_handle"):  # it has run
                context.device_handle = device
                device.name_streams(context)
        for group in _groups(state):
            group.device, group.device_handle = meta, device
            group._sharded_state = _module("_fsdp_param").ShardedState.SHARDED
            if hasattr(group, "_all_gather_output"):
                group._all_gather_output = torch.empty(0, device=meta)
            for p in group.fsdp_params:
                _lend_parameter(lent, p, meta)


def _lend_parameter(lent: OnMeta, p: Any, meta: torch.device) -> None:
    if p.offload_to_cpu:
        raise MemtapeError("memtape.torch: FSDP2 keeps parameters in host memory (CPUOffloadPolicy), which is not counted; profile the module "
                           "as fully_shard makes it without offload_policy")
    lent.remember_object(p)
    p.device, p.sharded_state = meta, _module("_fsdp_param").ShardedState.SHARDED
    p._setattr_on_modules(p.sharded_param)
    p.all_gather_outputs, p._unsharded_inner_tensors = [], []  # as before the first forward: it makes them
    vars(p).pop("_unsharded_param", None)
    for t in (p.sharded_param, p._sharded_param_data):
        lent.lend(t)


# ---- PyTorch's functions ----

def _silent(original: Callable[..., Any]) -> Callable[..., Any]:
    """A collective, which of tensors on meta sends nothing."""
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(t, torch.Tensor) and t.device.type == "meta" for t in _pytree.tree_leaves((args, kwargs))):
            return _Event() if kwargs.get("async_op") else None
        return original(*args, **kwargs)
    return collective


def _within(books: Any, category: str, original: Callable[..., Any]) -> Callable[..., Any]:
    """What the function requests is of the category."""
    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        with books.counting_as(category):
            return original(*args, **kwargs)
    return function


@contextlib.contextmanager
def as_on_cuda(model: torch.nn.Module, books: Any, device: Device) -> Iterator[None]:
    """Collectives and, of modules with FSDP2, what PyTorch asks of a device, tells of what it gathers, and how it names streams."""
    places: List[Tuple[Any, str, Any]] = []
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        places = [(torch.distributed, name, _silent(getattr(torch.distributed, name))) for name in _COLLECTIVES if hasattr(torch.distributed, name)]
    with replaced([*places, *(_places(books, device) if states(model) else [])]):
        yield


def _places(books: Any, device: Device) -> List[Tuple[Any, str, Any]]:
    """What is replaced in PyTorch's code of fully_shard."""
    of_group, of_param = _module("_fsdp_param_group"), _module("_fsdp_param").FSDPParam
    init, gathered, lazy_init = of_param.init_unsharded_param, of_param.init_all_gather_outputs, of_group.FSDPCommContext.lazy_init

    def init_unsharded_param(p: Any) -> None:
        is_new = not hasattr(p, "_unsharded_param")
        init(p)
        if is_new and p._unsharded_param.requires_grad:
            p._unsharded_param.register_post_accumulate_grad_hook(lambda whole: books.put(whole.grad, "gradient", p._param_fqn or ""))

    def init_all_gather_outputs(p: Any, *args: Any, **options: Any) -> None:
        with books.counting_as("parameter", p._param_fqn):
            gathered(p, *args, **options)

    def with_names(context: Any, *args: Any) -> None:
        lazy_init(context, *args)
        device.name_streams(context)

    return [(of_param, "init_unsharded_param", init_unsharded_param), (of_param, "init_all_gather_outputs", init_all_gather_outputs),
            (of_group.FSDPCommContext, "lazy_init", with_names), (of_group.FSDPParamGroup, "_validate_no_meta_params", lambda group: None),
            *((of_group, name, _within(books, "communication", getattr(of_group, name))) for name in ("foreach_all_gather", "foreach_reduce")),
            *((module, "_get_device_handle", lambda *_: device) for key, module in list(sys.modules.items())
              if key.startswith(_package()) and hasattr(module, "_get_device_handle"))]
