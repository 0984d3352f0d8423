"""The user's own objects on meta, and everything as it was afterwards.

Nothing is copied: a tensor's contents are exchanged for those of a twin on meta, so that whoever refers to it, a loss that closes over
the model, a hook, an optimizer, a teacher, meets the twin. At the end the contents come back, with containers and attributes."""

from __future__ import annotations

import collections
import contextlib
import dis
import functools
import sys
import types
from collections.abc import Mapping
from typing import Any, Dict, Iterator, List, Sequence, Set, Tuple

import torch
from torch.utils import _pytree

from memtape._ledger import _storage, plain
from memtape._values import Values, twin

_LIBRARIES = ("torch", "transformers", "accelerate", "threading", "logging", "queue", "concurrent", "multiprocessing", "io")
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


class OnMeta:
    """with OnMeta(values) as lent: lent.model(...); lent.batch(...)"""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._lent: Dict[int, Tuple[torch.Tensor, torch.Tensor]] = {}  # by the tensor's id: (it, who has its contents now)
        self._storages: Dict[int, torch.UntypedStorage] = {}  # on meta, by the identity of the user's
        self._contents: Dict[int, Tuple[Any, Any]] = {}  # of containers: (it, a copy)
        self._seen: Set[int] = set()
        self._alive: List[Any] = []  # so that no id is of two
        self._hooks: List[Tuple[torch.Tensor, str, Any]] = []  # (tensor, attribute, the user's)
        self._of_hooks: List[Any] = []
        self.modules: List[Tuple[str, torch.nn.Module]] = []  # outside of the model
        self.tensors: List[Tuple[str, torch.Tensor]] = []  # that are in modules, but neither parameters nor buffers
        self.loose: List[Tuple[str, torch.Tensor]] = []  # to which a loss or a hook refers; whether a step uses them is not known
        self._depth = 0  # of modules that are being looked at
        self.optimizers: List[torch.optim.Optimizer] = []

    def __enter__(self) -> OnMeta:
        return self

    def __exit__(self, *_: Any) -> None:
        for container, copy in reversed(list(self._contents.values())):
            _restore(container, copy)
        for t, contents in reversed(list(self._lent.values())):
            torch._C._swap_tensor_impl(t, contents)
            for name in _HOOKS:  # they are of the contents and of the object
                if getattr(t, name, None) is not None:
                    setattr(t, name, None)
        for t, name, hooks in self._hooks:
            setattr(t, name, hooks)
        self._lent.clear()

    # ---- tensors ----

    def _twin(self, t: torch.Tensor) -> torch.Tensor:
        """On meta; tensors that share a storage share one there."""
        identity, _ = _storage(t)
        made = twin(t)
        storage = self._storages.setdefault(identity, made.untyped_storage())
        made.set_(storage, t.storage_offset(), t.shape, t.stride())
        return made.requires_grad_(t.requires_grad)

    def lend(self, t: torch.Tensor, on_host: bool = False) -> None:
        """Exchanges t's contents; on_host: for a copy that stays where it is."""
        if id(t) in self._lent:
            return
        local = plain(t)
        if local is not t:
            self.lend(local, on_host)
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            if local is not t:
                made = type(t)(local, t._spec, requires_grad=t.requires_grad)  # type: ignore[call-arg, attr-defined, unused-ignore]
            else:
                made = t.detach().clone() if on_host else self._twin(t)
        torch._C._swap_tensor_impl(t, made)
        self._lent[id(t)] = (t, made)
        if local is t and not on_host and made.device.type != "meta" and not isinstance(t, torch.nn.Parameter):
            self._values.know(t, made)
        for name in _HOOKS:
            hooks = getattr(t, name, None)
            if hooks is not None:  # a copy, to which nothing of the user's is bound
                self._hooks.append((t, name, hooks))
                setattr(t, name, collections.OrderedDict(hooks))
                self._of_hooks += hooks.values()

    def visit_hooks(self) -> None:
        """Finds what hooks of tensors refer to, once all that is the model's is known."""
        while self._of_hooks:
            self.visit(self._of_hooks.pop(), "")

    def remember(self, container: Any) -> None:
        """Keeps a copy of a container's contents."""
        if id(container) not in self._contents:
            self._contents[id(container)] = (container, dict(container) if isinstance(container, dict) else list(container))

    def remember_object(self, value: Any) -> None:
        """Keeps a copy of an object's attributes, and of what those that are containers contain."""
        self.remember(vars(value))
        for inner in vars(value).values():
            if isinstance(inner, (dict, list, set)):
                self.remember(inner)

    # ---- the objects ----

    def model(self, model: torch.nn.Module, name: str = "") -> None:
        self._depth += 1
        modules = [(prefix, module) for prefix, module in model.named_modules() if id(module) not in self._seen]
        for _, module in modules:
            self._seen.add(id(module))
            self.remember(vars(module))
            for kept in (module._parameters, module._buffers):
                self.remember(kept)
                for t in kept.values():
                    if t is not None:
                        self.lend(t)
        # Once those are on meta: an attribute may hold another module's buffer, as DistributedDataParallel does.
        for prefix, module in modules:
            path = ".".join(filter(None, [name, prefix]))
            for attribute, value in list(vars(module).items()):
                if attribute not in ("_parameters", "_buffers", "_modules"):
                    self.visit(value, ".".join(filter(None, [path, attribute])))
        self._depth -= 1

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self._seen:
            return
        self._seen.add(id(optimizer))
        inner = [value for value in vars(optimizer).values() if isinstance(value, torch.optim.Optimizer)]
        if inner:  # Accelerate's, around another one
            self.remember(vars(optimizer))
            for one in inner:
                self.optimizer(one)
            return
        self.optimizers.append(optimizer)
        for name, hooks in vars(optimizer).items():
            if name.endswith("_hooks"):
                self.visit(hooks, name)
        for container in (vars(optimizer), optimizer.param_groups, optimizer.state, *optimizer.param_groups, *optimizer.state.values()):
            if isinstance(container, (dict, list)):
                self.remember(container)
        on_device: Set[int] = set()
        foreach = any(hasattr(sys.modules.get(kind.__module__), "_default_to_fused_or_foreach") for kind in type(optimizer).__mro__
                      if kind is not torch.optim.Optimizer)  # Adafactor does not take it by itself
        for group in optimizer.param_groups:
            self.remember(group["params"])
            if group.get("fused") or group.get("capturable"):
                on_device.update(map(id, group["params"]))
            if foreach and group.get("foreach", True) is None and not group.get("fused"):  # as PyTorch chooses on CUDA
                group["foreach"] = True
        for p, state in optimizer.state.items():
            for t in _pytree.tree_leaves(state):
                if isinstance(t, torch.Tensor):  # step counts stay on the host
                    self.lend(t, on_host=not t.dim() and t.device.type == "cpu" and id(p) not in on_device)

    def batch(self, batch: Any) -> None:
        for t in tensors_in(batch):
            self.lend(t)

    def visit(self, value: Any, name: str, depth: int = 0) -> None:
        """Finds what a step may meet in an attribute, or by way of a function."""
        if isinstance(value, torch.Tensor):
            if id(value) not in self._lent and (value.dim() or value.device.type != "cpu"):
                self.lend(value)
                (self.tensors if self._depth else self.loose).append((name, value))
            elif id(value) not in self._lent:
                self.lend(value, on_host=True)
        elif isinstance(value, torch.nn.Module):
            if id(value) not in self._seen:
                self.modules.append((name, value))
                self.model(value, name)
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizer(value)
        elif id(value) in self._seen or depth > 8:
            return
        elif isinstance(value, (dict, list, set, collections.deque)):
            self._mark(value)
            self.remember(value)
            for key, inner in list(value.items()) if isinstance(value, dict) else list(enumerate(value)):
                self.visit(inner, f"{name}.{key}" if name else str(key), depth + 1)
        elif isinstance(value, tuple):
            for i, inner in enumerate(value):
                self.visit(inner, f"{name}.{i}", depth + 1)
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self._mark(value)
            for inner_name, inner in _referred(value):
                self.visit(inner, inner_name, depth + 1)
        elif _is_of_the_user(value):
            self._mark(value)
            self.remember(vars(value))
            for attribute, inner in list(vars(value).items()):
                self.visit(inner, f"{name}.{attribute}", depth + 1)

    def _mark(self, value: Any) -> None:
        self._seen.add(id(value))
        self._alive.append(value)


@contextlib.contextmanager
def replaced(places: Sequence[Tuple[Any, str, Any]]) -> Iterator[None]:
    """Attributes, or items of dictionaries, with other values for the time of a `with`."""
    before = []
    try:
        for owner, name, value in places:
            items = owner if isinstance(owner, dict) else vars(owner)
            before.append((owner, name, name in items, items.get(name)))
            _assign(owner, name, value)
        yield
    finally:
        for owner, name, there, value in reversed(before):
            if there:
                _assign(owner, name, value)
            elif isinstance(owner, dict):
                owner.pop(name, None)
            else:
                delattr(owner, name)


def _assign(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


def _is_of_the_user(value: Any) -> bool:
    """Whether it is an object of a plain class, such as a table of positions; not one of a library that runs by itself."""
    if isinstance(value, (type, types.ModuleType)) or not isinstance(getattr(value, "__dict__", None), dict):
        return False
    return type(value).__module__.split(".")[0] not in (*_LIBRARIES, *sys.builtin_module_names, "memtape")


def _restore(container: Any, copy: Any) -> None:
    if isinstance(container, dict):
        # Past what a subclass forbids, but not past the list that an OrderedDict has beside its table.
        kind: Any = collections.OrderedDict if isinstance(container, collections.OrderedDict) else dict
        kind.clear(container)
        for key, value in copy.items():
            kind.__setitem__(container, key, value)
        return
    container.clear()
    (container.update if isinstance(container, set) else container.extend)(copy)


def _names(code: types.CodeType) -> Iterator[str]:
    """Of what a function's code, and that of those within it, looks up in the module; an attribute's name is none of these."""
    yield from (instruction.argval for instruction in dis.get_instructions(code) if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _referred(function: Any) -> Iterator[Tuple[str, Any]]:
    """(name, object) of what a function refers to: what it closes over, defaults, the object of a method, globals."""
    if isinstance(function, functools.partial):
        yield from (("", a) for a in (function.func, *function.args, *function.keywords.values()))
        return
    if isinstance(function, types.MethodType):
        owner = function.__self__
        yield "", owner
        function = function.__func__
    if not isinstance(function, types.FunctionType):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from (("", value) for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()))
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield "", wrapped
    if (function.__module__ or "").split(".")[0] not in _LIBRARIES:
        for name in dict.fromkeys(_names(function.__code__)):
            if name in function.__globals__:
                yield name, function.__globals__[name]


def tensors_in(value: Any) -> List[torch.Tensor]:
    """Those of a batch: in nested containers, mappings and objects."""
    found: List[torch.Tensor] = []
    waiting, seen = [value], set()
    while waiting:
        item = waiting.pop()
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif id(item) not in seen and not isinstance(item, (str, bytes, int, float, type(None), type)):
            seen.add(id(item))
            if isinstance(item, Mapping):
                waiting += list(item.values())[::-1]
            elif isinstance(item, (list, tuple, set, frozenset)):
                waiting += list(item)[::-1]
            elif hasattr(item, "__dict__") and not callable(item):
                waiting += list(vars(item).values())[::-1]
    return list({id(t): t for t in found}.values())
