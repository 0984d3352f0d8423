"""Two training steps of a PyTorch model on meta, in the books of memtape's caching allocator.

A dispatch mode sees each storage that PyTorch's operations make, and a weak reference sees it go. Both are passed on to a
meta device of libmemtape, whose allocator has the rules of PyTorch's for CUDA (include/memtape/memory.h)."""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import weakref
from collections.abc import Mapping
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from memtape import _attention
from memtape._books import Books, Held, Peak, grouped, steps_section
from memtape._ledger import Ledger, _storage, _tensors
from memtape._library import MemtapeError
from memtape.report import Report

MOST_VALUES = 1 << 20  # elements of a tensor of whole numbers whose values are computed
_ITEM = torch.ops.aten._local_scalar_dense.default
_INDEX = torch.ops.aten.index.Tensor
_MASKS = (torch.bool, torch.uint8)
_INDEX_PUT = torch.ops.aten.index_put.default
_FUSED = ("_fused_adam_", "_fused_adamw_", "_fused_sgd_", "_fused_adagrad_")
_EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default


# ---- values ----

def _depends_on_values(func: Any, args: Any) -> bool:
    """Whether what func returns has a shape that its arguments' values decide: of an index, only where a mask is in it."""
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    return func is not _INDEX or any(i is not None and i.dtype in _MASKS for i in args[1])


class _Values:
    """The values of small tensors of whole numbers and bools, as far as they come from the batch and from nothing: models
    branch by masks and positions, which meta tensors cannot answer."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()

    def know(self, t: torch.Tensor, value: torch.Tensor) -> None:
        if not (value.is_floating_point() or value.is_complex()) and value.numel() <= MOST_VALUES:
            self._known[t] = value

    def of_call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What func returns on the values of its arguments; None if one is not known, or if it draws random numbers."""
        tensors = [t for t in _pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor) and t.device.type == "meta"]
        if torch.Tag.nondeterministic_seeded in func.tags or not all(t in self._known for t in tensors):
            return None
        args, kwargs = _pytree.tree_map_only(torch.Tensor, lambda t: self._known.get(t, t), (args, kwargs))
        return func(*args, **(kwargs if kwargs.get("device") is None else {**kwargs, "device": "cpu"}))

    def without_masks(self, args: Any) -> Any:
        """The arguments of an index with the places that its masks choose, whose values stay unknown; None: a mask is not known."""
        indices: List[Optional[torch.Tensor]] = []
        for i in args[1]:
            mask = i is not None and i.dtype in _MASKS
            if mask and i not in self._known:
                return None
            indices += [torch.empty(len(places), dtype=torch.long, device="meta")
                        for places in self._known[i].nonzero(as_tuple=True)] if mask else [i]
        return (args[0], indices, *args[2:])

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """func on meta, with the values of what it returns where they are known."""
        if func is _INDEX and args[0] not in self._known:
            args = self.without_masks(args) or args
        if func is _ITEM or _depends_on_values(func, args):
            values = self.of_call(func, args, kwargs)
            if values is None:
                raise MemtapeError(f"memtape.torch: the model asks for values that are not computed on meta, by "
                                   f"{func.__name__}; only those are known that come from whole numbers of the batch")
            if func is _ITEM:
                return values
            out = _pytree.tree_map_only(torch.Tensor, _twin, values)
        else:
            out = func(*args, **kwargs)
            made = _pytree.tree_leaves(out)
            if not all(isinstance(t, torch.Tensor) and t.device.type == "meta" and t.numel() <= MOST_VALUES and
                       not (t.is_floating_point() or t.is_complex()) for t in made):
                return out
            values = self.of_call(func, args, kwargs)
        if values is not None:
            for t, value in zip(_pytree.tree_leaves(out), _pytree.tree_leaves(values)):
                self.know(t, value)
        return out


# ---- the books ----

class _Books(Books, TorchDispatchMode):  # type: ignore[misc]
    """Within `with`, operations on meta tensors enter it."""

    def __init__(self) -> None:
        Books.__init__(self)
        TorchDispatchMode.__init__(self)
        self.values = _Values()
        self.op = ""
        self.where: Callable[[], str] = lambda: ""
        self.category = "input"
        self.after: Callable[[], None] = lambda: None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.op = func.__name__.split(".")[0].strip("_")
        self.after()
        # An index's backward adds into its zeros in place, but out of place where a mode watches it (index_backward).
        if func is _INDEX_PUT and self.phase == "backward" and len(args) > 3 and args[3]:
            func = torch.ops.aten.index_put_.default
        if func.__name__.split(".")[0] in _FUSED:
            return None  # a kernel that writes in place, and has none on meta
        out = self.values.run(func, args, kwargs or {})
        # With dropout the generator's state of efficient attention is in host memory.
        of_device = out[:2] if func is _EFFICIENT and len(args) > 5 and args[5] else out
        for t in _pytree.tree_leaves(of_device):
            if isinstance(t, torch.Tensor):
                self.enter(t, self.category, self.where())
        self.op = ""
        return out

    def enter(self, t: torch.Tensor, category: str, module: str) -> None:
        """t's storage, unless it is known or not on the device."""
        if t.device.type != "meta":
            return
        identity, n_bytes = _storage(t)
        held = self.live.get(identity)
        if held is not None and held.n_bytes == n_bytes:
            return
        if held is not None:  # resized
            self.remove(identity)
        if not n_bytes:
            return
        held = self.add(identity, n_bytes, category, module, self.op)
        gone = functools.partial(self._leave, identity, held)
        held.seen = weakref.ref(t.untyped_storage(), lambda _: gone())

    def _leave(self, identity: int, held: Held) -> None:
        if self.live.get(identity) is held:
            self.remove(identity)

    def put(self, t: torch.Tensor, category: str, module: str = "") -> None:
        """What the storage is for, from now on."""
        held = self.live.get(_storage(t)[0]) if t.device.type == "meta" else None
        if held is not None:
            self.recategorise(held, category, module)

    def begin_phase(self, phase: str, category: str) -> None:
        self.category = category
        self.begin(phase)


# ---- on meta ----

@contextlib.contextmanager
def _with_fused_kernels() -> Iterator[None]:
    """An optimizer with fused=True asks whether its device has such kernels. CUDA has, meta has not."""
    name = "_device_dtype_check_for_fused"
    asked = [(m, getattr(m, name)) for key, m in sys.modules.items() if key.startswith("torch.optim.") and hasattr(m, name)]
    try:
        for module, _ in asked:
            setattr(module, name, lambda *args, **kwargs: None)
        yield
    finally:
        for module, check in asked:
            setattr(module, name, check)



def _twin(t: torch.Tensor) -> torch.Tensor:
    """A tensor on meta of the same shape, strides and storage."""
    storage = torch.empty(_storage(t)[1], dtype=torch.uint8, device="meta").untyped_storage()
    twin = torch.empty(0, dtype=t.dtype, device="meta").set_(storage, t.storage_offset(), t.shape, t.stride())
    if isinstance(t, torch.nn.Parameter):
        return torch.nn.Parameter(twin, requires_grad=t.requires_grad)
    return twin.requires_grad_(t.requires_grad)


def _on_meta(model: torch.nn.Module, batch: Any, optimizer: torch.optim.Optimizer, values: _Values) -> Tuple[Any, Any, Any]:
    """Copies of all three on meta. Gradients are left behind; what is not in the model stays where it is."""

    def twin(t: torch.Tensor) -> torch.Tensor:
        made = _twin(t)
        if t.device.type != "meta" and t.numel() <= MOST_VALUES and not t.is_floating_point():
            values.know(made, t.detach().cpu().clone())
        return made

    states = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, torch.Tensor)]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    strange = {id(p) for p in parameters} - {id(p) for p in model.parameters()}
    if strange:
        raise MemtapeError(f"memtape.torch: {len(strange)} of the optimizer's parameters are not the model's")
    memo: Dict[int, Any] = {}
    for t in (*model.parameters(), *model.buffers()):
        memo.setdefault(id(t), twin(t))
    for t in states:  # step counts stay on the host
        memo.setdefault(id(t), _twin(t) if t.dim() else t.clone())
    try:
        model, optimizer = copy.deepcopy((model, optimizer), memo)
    except (RuntimeError, TypeError) as error:
        raise MemtapeError(f"memtape.torch: the model or the optimizer cannot be copied to meta: {error}") from error
    for group in optimizer.param_groups:  # as PyTorch chooses on CUDA
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
    as_dict = dict(batch) if isinstance(batch, Mapping) else batch
    return model, _pytree.tree_map_only(torch.Tensor, twin, as_dict), optimizer


def _loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """The step's forward. All else that the model returns is let go."""
    if isinstance(batch, Mapping):
        out = model(**batch)
    else:
        out = model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    loss = out["loss"] if isinstance(out, Mapping) and "loss" in out else getattr(out, "loss", out)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise MemtapeError(f"memtape.torch: the model returns a {type(out).__name__} without a loss; need loss=function(model, "
                           "batch) that returns it")
    return loss


def _paths(model: torch.nn.Module) -> Dict[int, str]:
    """Of parameters and buffers by their storages, in the order in which model.to("cuda") takes them."""
    paths: Dict[int, str] = {}
    for prefix, module in model.named_modules():
        for name, t in (*module._parameters.items(), *module._buffers.items()):
            if t is not None:
                paths.setdefault(id(t), ".".join(filter(None, [type(model).__name__, prefix, name])))
    return paths


# ---- the steps ----

class _Steps:
    """Two training steps: the first makes the optimizer's state, and all later ones take what the second does."""

    def __init__(self, model: Any, batch: Any, optimizer: Any, loss: Callable[[Any, Any], torch.Tensor], attention: str) -> None:
        self.books = _Books()
        self.model, self.batch, self.optimizer = _on_meta(model, batch, optimizer, self.books.values)
        self.loss, self.attention = loss, attention
        self.peak, self.largest = Peak(), []  # type: Tuple[Peak, List[Dict[str, Any]]]
        self.saved: Optional[Report] = None
        self.n_states = 0

    def init(self) -> Dict[str, Any]:
        self.books.begin_phase("init", "input")
        paths = _paths(self.model)
        for t in (*self.model.parameters(), *self.model.buffers()):
            self.books.enter(t, "parameter", paths[id(t)])
        for t in _tensors(self.batch):
            self.books.enter(t, "input", "")
        for state in self.optimizer.state.values():
            for t in _tensors(state):
                self.books.enter(t, "optimizer", "")
        for p in self.model.parameters():
            if p.requires_grad:
                path = paths[id(p)]
                p.register_post_accumulate_grad_hook(lambda p, path=path: self.books.put(p.grad, "gradient", path))
        return self.books.end()

    def step(self) -> List[Dict[str, Any]]:
        phases = []
        self.books.begin_phase("forward", "activation")
        ledger = Ledger(self.model, self.attention)
        self.books.where = lambda: ledger._path[-1] if ledger._path else ""
        with ledger:
            loss = self.loss(self.model, self.batch)
        self._look_at_what_is_saved(ledger, loss)
        self.books.put(loss, "output")
        phases.append(self._end())
        self.books.begin_phase("backward", "temporary")
        if not loss.requires_grad:
            raise MemtapeError(f"memtape.torch: there is no backward: {ledger._why_nothing(loss)}")
        loss.backward()
        del loss
        phases.append(self._end())
        self.books.begin_phase("step", "temporary")
        self.books.after = self._look_at_states
        with _with_fused_kernels():
            self.optimizer.step()
        self.books.after = lambda: None
        self._put(list(self.optimizer.state.values()))
        self.optimizer.zero_grad()
        phases.append(self._end())
        return phases

    def _end(self) -> Dict[str, Any]:
        books = self.books
        if books.peak.allocated > self.peak.allocated:
            self.peak, self.largest = books.peak, grouped(books.alive_at_peak())
        return books.end()

    def _look_at_states(self) -> None:
        """Finds the tensors that the optimizer has made since, those of the parameter at which it is now among them."""
        states = list(self.optimizer.state.values())
        if len(states) != self.n_states:
            self._put(states[max(self.n_states - 1, 0):])
            self.n_states = len(states)

    def _put(self, states: List[Any]) -> None:
        for t in _tensors(states):
            self.books.put(t, "optimizer")

    def _look_at_what_is_saved(self, ledger: Ledger, loss: torch.Tensor) -> None:
        ledger._name(loss)
        blocks = self.books.live
        entries = ledger._entries()
        for identity, entry in zip(ledger._identities, entries):
            entry["allocated"] = blocks[identity].allocated
            blocks[identity].kept = {name: entry[name] for name in ("op", "role", "name")}
        if self.saved is None:
            values = ledger._values(entries)
            values["saved"]["allocated"] = sum(entry["allocated"] for entry in entries)
            note = None if entries else f"Nothing is kept for backward: {ledger._why_nothing(loss)}."
            self.saved = Report(values, f"{type(self.model).__name__} on meta", note=note)


def profile(model: torch.nn.Module, batch: Any, optimizer: torch.optim.Optimizer,
            loss: Optional[Callable[[Any, Any], torch.Tensor]], attention: str) -> Report:
    if attention == "device":
        raise MemtapeError("memtape.torch: a step is run on meta, so attention cannot be 'device'; choose "
                           f"{', '.join(c for c in _attention.CHOICES if c != 'device')}")
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            raise MemtapeError(f"memtape.torch: autocast for {device} does nothing on meta, where a step is run; leave it, or "
                               "profile the forward alone")
    if not torch.is_grad_enabled():
        raise MemtapeError("memtape.torch: a training step under torch.no_grad() has no backward")
    steps = _Steps(model, batch, optimizer, loss or _loss, attention)
    books = steps.books
    try:
        with books:
            phases = [steps.init(), *steps.step()]
            steps.peak, begins = Peak(), books.n_events
            steady = steps.step()
        assert steps.saved is not None
        values = steps.saved.to_dict()
        values["model"]["optimizer"] = type(optimizer).__name__
        values.update(steps_section(phases, steady, begins, steps.peak, steps.largest))
        return Report(values, steps.saved.title, note=steps.saved._note)
    finally:
        books.close()
