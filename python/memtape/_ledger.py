"""What autograd keeps of a PyTorch model: memtape.torch.Ledger."""

from __future__ import annotations

import functools
import re
import sys
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple, Type

try:
    import torch
    import torch.utils.checkpoint
    from torch.utils import _pytree
except ImportError as error:
    raise ImportError("memtape.torch needs PyTorch: pip install torch") from error
if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9):
    raise ImportError(f"memtape.torch needs PyTorch 2.9 or newer; this is {torch.__version__}")

from memtape import _attention, _older
from memtape._books import BLOCK, MODEL_KEYS, OTHER_KEYS
from memtape._library import MemtapeError
from memtape.report import Report

DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.bfloat16: "bf16", torch.float16: "f16",
          torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.bool: "bool", torch.int8: "i8",
          torch.int16: "i16", torch.float8_e4m3fn: "f8_e4m3", torch.float8_e5m2: "f8_e5m2"}
_LEAVES = (int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)  # in which there are no tensors
UNKNOWN = "unknown"  # op and name of what a graph keeps that the given outputs do not come from


def dtype_name(dtype: torch.dtype) -> str:
    return DTYPES.get(dtype, str(dtype).replace("torch.", "", 1))


class _Packed:
    """What autograd holds in the place of a saved tensor, and alone keeps alive."""

    __slots__ = ("tensor", "stands_for", "__weakref__")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.stands_for: List[_Packed] = []  # what CUDA's attention would keep in the place of the CPU's


@dataclass
class _Save:
    """One saved tensor: where it was saved, and then by whom."""

    packed: weakref.ref[_Packed]
    module: str
    op: str = UNKNOWN
    name: str = UNKNOWN
    role: str = "aux"


# ---- the names of nodes ----

@functools.cache
def _operations() -> Dict[str, Tuple[str, Set[str]]]:
    """PyTorch's operations by their names in small letters without "_": (name, names of all arguments)."""
    found: Dict[str, Tuple[str, Set[str]]] = {}
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition("::")
        if space == "aten":
            _, known = found.setdefault(name.replace("_", ""), (name.strip("_"), set()))
            known.update(argument.name for argument in schema.arguments)
    return found


@functools.cache
def _operation(node: str) -> Tuple[str, Set[str]]:
    """("native_layer_norm", names of its arguments) of NativeLayerNormBackward0. The name is aten's, but for "_" at its
    ends; of a Function of the user's its own, without arguments."""
    plain = re.sub(r"Backward\d*$", "", node)
    own_name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", plain).lower()
    return _operations().get(plain.replace("_", "").lower(), (own_name, set()))


def _role(arguments: Set[str], name: str) -> str:
    """What a saved tensor is to its operation, by the name that PyTorch's derivatives give it: that of an argument;
    `result`, `result0` or `output` for what it returns first; and the rest, such as masks and statistics, is "aux". So
    is all that a Function of the user's keeps, which has no names."""
    if name in arguments:
        return "input"
    return "output" if name in ("result", "result0", "output", "out") else "aux"


@functools.lru_cache(maxsize=1024)
def _raw_attributes(kind: type) -> List[str]:
    return [name for name in dir(kind) if name.startswith("_raw_saved_")]


def _raw_saves(node: Any) -> Iterator[Tuple[str, Any]]:
    """(name, what a hook has packed) of all that a node keeps. No checkpoint runs for it."""
    kind: Any = type(node)
    for attribute in _raw_attributes(kind):
        try:
            value = getattr(node, attribute)
        except RuntimeError:  # freed by a backward
            continue
        name = attribute[len("_raw_saved_"):]
        if isinstance(value, (tuple, list)):
            # Of memtape's own Functions, which stand for an operation of CUDA.
            names = getattr(getattr(node, "_forward_cls", None), "saved_names", ())
            yield from ((names[i] if i < len(names) else f"{name}[{i}]", _older.packed_in(node, attribute, i, raw))
                        for i, raw in enumerate(value) if raw is not None)
        elif value is not None:
            yield name, _older.packed_in(node, attribute, 0, value)


def _nodes(outputs: Any) -> Iterator[Any]:
    """Every node that the tensors in `outputs` come from, without recursion."""
    waiting = [t.grad_fn for t in _tensors(outputs) if t.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _savers(outputs: Any) -> Iterator[Tuple[_Packed, str, str, str]]:
    """(what a hook packed, op, name, role) of all that the graph of `outputs` keeps."""
    for node in _nodes(outputs):
        op, arguments = _operation(node.name())
        for name, packed in _raw_saves(node):
            if isinstance(packed, _Packed):
                yield packed, op, name, _role(arguments, name)


def _tensors(value: Any) -> List[torch.Tensor]:
    """The tensors in nested tuples, lists, dictionaries and the results of Transformers' models."""
    if isinstance(value, torch.Tensor):
        return [value]
    if type(value) in (tuple, list):  # at once, as operations give and take them
        return [t for inner in value for t in _tensors(inner)]
    if value is None or isinstance(value, _LEAVES):
        return []
    if isinstance(value, dict):
        value = dict(value)
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


# ---- storages ----

PLAIN = (torch.Tensor, torch.nn.Parameter)  # what is not a subclass with a mind of its own


def plain(t: torch.Tensor) -> torch.Tensor:
    """t; of a DTensor this rank's shard."""
    return t if type(t) in PLAIN else getattr(t, "_local_tensor", t)


def _storage(t: torch.Tensor) -> Tuple[int, int]:
    """(identity, bytes) of t's storage. An identity is that of one storage as long as it is alive."""
    try:
        storage = plain(t).untyped_storage()
    except (NotImplementedError, RuntimeError) as error:
        raise MemtapeError(f"memtape.torch: a saved tensor of layout {t.layout} has no storage to count: {error}") \
            from error
    return storage._cdata, storage.nbytes()


def _laid_out_as(t: torch.Tensor, twin: torch.Tensor) -> torch.Tensor:
    """t, or a copy in a storage of the twin's size and strides: what follows copies or keeps it by these."""
    if (t.stride(), t.storage_offset(), _storage(t)[1]) == (twin.stride(), twin.storage_offset(), _storage(twin)[1]):
        return t
    room = torch.empty(_storage(twin)[1] // t.itemsize, dtype=t.dtype, device=t.device)
    return room.as_strided(twin.shape, twin.stride(), twin.storage_offset()).copy_(t)


class Ledger:
    """with Ledger(model) as ledger: counts what autograd saves in this thread. Like all saved-tensor hooks of PyTorch,
    hooks inside its own come first: of a checkpoint it sees what the checkpoint keeps.

    model: its parameters and buffers are not counted, and its modules' paths name where something was saved; the path
    begins with the class of the model. Hooks are taken off at the end of the `with`.

    attention: as which kernel scaled_dot_product_attention counts on the CPU and on meta: "cuda", the one that CUDA would
    choose; "flash", "efficient" or "math"; or "device", what the tensors' device does. On a GPU it is what runs."""

    def __init__(self, model: torch.nn.Module, attention: str = "cuda") -> None:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"Ledger: model is a {type(model).__name__}; need a torch.nn.Module")
        if attention not in _attention.CHOICES:
            raise MemtapeError(f"memtape.torch: attention is {attention!r}; choose {', '.join(_attention.CHOICES)}")
        self._model, self._attention = model, attention
        self.others: List[Tuple[str, torch.nn.Module]] = []  # (name, module) outside of it that a loss uses
        self.other_tensors: List[torch.Tensor] = []  # that are not counted, either
        self.detached: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.detach
        self._kernels: Set[str] = set()
        self._in_host_memory: List[torch.Tensor] = []
        self._replaced: Optional[List[_Packed]] = None  # within an attention that another one stands for
        self._outer: Any = None
        self._identities: List[int] = []  # of the storages of the last report
        self._reason = ""
        self._saves: List[_Save] = []
        self._path: List[str] = []
        self._handles: List[Any] = []
        self._hooks: Optional[Any] = None
        self._began = False

    def __enter__(self) -> Ledger:
        if self._began:
            raise MemtapeError("memtape.torch: a Ledger is entered once; make a new one")
        self._began = True
        root = type(self._model).__name__
        for name, module in self._model.named_modules():
            self._handles += self._follow(module, f"{root}.{name}" if name else root)
        for root, other in self.others:
            for name, module in other.named_modules():
                self._handles += self._follow(module, f"{root}.{name}" if name else root)
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, _older.noting(lambda packed: packed.tensor))
        self._hooks.__enter__()
        self._others_wait = _older.others_wait()
        self._others_wait.__enter__()
        self._outer = _attention.observe(self, self._attention)
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if self._hooks is not None:
            _attention.release(self._outer)
            self._others_wait.__exit__(None, None, None)
            self._hooks.__exit__(kind, error, trace)
        if not torch.is_grad_enabled():
            self._reason = f"forward ran under torch.{'inference_mode' if torch.is_inference_mode_enabled() else 'no_grad'}()"
        for handle in self._handles:
            handle.remove()
        self._handles, self._hooks, self._path = [], None, []

    def _follow(self, module: torch.nn.Module, path: str) -> List[Any]:
        def enter(_module: torch.nn.Module, _arguments: Any) -> None:
            self._path.append(path)

        def leave(_module: torch.nn.Module, _arguments: Any, _result: Any) -> None:
            if self._path:
                self._path.pop()

        return [module.register_forward_pre_hook(enter, prepend=True),
                module.register_forward_hook(leave, always_call=True)]

    def _pack(self, t: torch.Tensor) -> _Packed:
        # Not t itself: a Function's own output would keep its node, and that the output, for ever.
        packed = _Packed(self.detached(t))
        if self._replaced is not None:
            self._replaced.append(packed)
            return packed
        save = _Save(weakref.ref(packed), self._path[-1] if self._path else "")
        # A checkpoint holds its inputs by a node of its own, to which no output leads.
        frame = sys._getframe(1)
        if frame.f_code.co_filename == torch.autograd.function.__file__ and frame.f_back is not None:
            frame = frame.f_back  # before PyTorch 2.13 a Function of its own saves them
        if frame.f_code.co_filename == torch.utils.checkpoint.__file__:
            save.op, save.name, save.role = "checkpoint", "input", "input"
        self._saves.append(save)
        return packed

    # ---- attention ----

    def attend(self, c: _attention.Call) -> torch.Tensor:
        """One call of scaled_dot_product_attention, in PyTorch's place."""
        if self._attention == "device":
            return c.as_pytorch_does()
        kernel = _attention.choose(c, self._attention)
        if c.query.device.type == "meta":
            self._kernels.add(kernel)
            out, in_host_memory = _attention.call(c, kernel)
            self._in_host_memory += in_host_memory
            return out
        return self._stand_in(c, kernel) if c.wants_gradient() else c.as_pytorch_does()

    def _stand_in(self, c: _attention.Call, kernel: str) -> torch.Tensor:
        """Lets the CPU compute, and counts what the kernel keeps of the same call on meta."""
        replaced: List[_Packed] = []
        self._replaced = replaced
        try:
            out = c.as_pytorch_does()
        finally:
            self._replaced = None
        if not replaced:  # a checkpoint has taken it
            return out
        self._kernels.add(kernel)
        twins = {name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta", requires_grad=t.requires_grad)
                 for name in ("query", "key", "value", "mask") for t in [getattr(c, name)] if t is not None}
        kept: List[_Packed] = []

        def keep(t: torch.Tensor) -> _Packed:
            kept.append(_Packed(t.detach()))
            return kept[-1]

        with torch.autograd.graph.saved_tensors_hooks(keep, _older.noting(lambda packed: packed.tensor)):
            twin, in_host_memory = _attention.call(
                _attention.Call(twins["query"], twins["key"], twins["value"], twins.get("mask"), c.dropout, c.causal, c.scale,
                                c.gqa), kernel)
        self._in_host_memory += in_host_memory
        out = _laid_out_as(out, twin)
        real = {_storage(t)[0]: getattr(c, name) for name, t in twins.items()} | {_storage(twin)[0]: out}
        saves = {id(packed): _Save(weakref.ref(packed), self._path[-1] if self._path else "") for packed in kept}
        for packed, op, name, role in _savers(twin):
            save = saves[id(packed)]
            save.op, save.name, save.role = op, name, role
        for packed in kept:
            t, of = packed.tensor, real.get(_storage(packed.tensor)[0])
            if of is not None:
                packed.tensor = of.detach().as_strided(t.shape, t.stride(), of.storage_offset() + t.storage_offset())
        self._saves += saves.values()
        for packed in replaced:
            packed.stands_for = kept
        return out

    # ---- the report ----

    def _name(self, outputs: Any) -> None:
        """Finds for each saved tensor the node that keeps it."""
        saves = {id(packed): save for save in self._saves for packed in [save.packed()] if packed is not None}
        for packed, op, name, role in _savers(outputs):
            save = saves.get(id(packed))
            if save is not None:
                save.op, save.name, save.role = op, name, role

    def _entries(self) -> List[Dict[str, Any]]:
        own = {_storage(t)[0] for t in [*self._model.parameters(), *self._model.buffers(), *self.other_tensors,
                                      *self._in_host_memory]}
        entries: Dict[int, Dict[str, Any]] = {}
        for save in self._saves:
            packed = save.packed()
            if packed is None:  # its graph is gone
                continue
            identity, n_bytes = _storage(packed.tensor)
            if identity in own or not n_bytes:
                continue
            saver = {"module": save.module, "op": save.op, "role": save.role, "name": save.name}
            if identity in entries:
                entries[identity]["also"].append(saver)
                continue
            entries[identity] = {
                "storage": len(entries) + 1, "bytes": n_bytes, "rounded": -(-n_bytes // BLOCK) * BLOCK,
                "allocated": None, "shape": list(packed.tensor.shape), "dtype": dtype_name(packed.tensor.dtype), **saver, "also": []}
        self._identities = list(entries)
        return list(entries.values())

    def report(self, *outputs: Any) -> Report:
        """The report of what is kept now; call it before backward, which lets it go. outputs: what backward will begin
        at, the loss or the model's outputs, from which the graph is followed to tell the ops. What another graph keeps is
        counted, too; its op is "unknown"."""
        if not self._began or self._hooks is not None:
            raise MemtapeError("memtape.torch: report comes after the Ledger's `with`, and before backward")
        self._name(outputs)
        entries = self._entries()
        if self._saves and not any(save.packed() for save in self._saves):
            raise MemtapeError("memtape.torch: nothing is kept any more; call report before backward")
        return Report(self._values(entries), f"{type(self._model).__name__} on {self._device()}",
                      note=None if entries else f"Nothing is kept for backward: {self._why_nothing(outputs)}.")

    def _why_nothing(self, outputs: Any) -> str:
        if self._reason:
            return self._reason
        if not any(t.requires_grad for t in _tensors(outputs)):
            return ("no output requires a gradient; forward ran under torch.no_grad(), or neither a parameter nor an input "
                    "requires one")
        return "the ops need nothing but parameters and buffers"

    def _device(self) -> str:
        kinds = {t.device.type for t in [*self._model.parameters(), *self._model.buffers()]}
        return ", ".join(sorted(kinds)) or "cpu"

    def _values(self, entries: List[Dict[str, Any]]) -> Dict[str, Any]:
        parameters = list(self._model.parameters())
        name = type(self._model).__name__
        dtype = next((dtype_name(p.dtype) for p in parameters), None)
        return {
            "schema": "memtape.profile/1",
            "model": {"kind": "torch", "preset": name, "dtype": dtype, **dict.fromkeys(MODEL_KEYS),
                      "attention": ", ".join(sorted(self._kernels)) or None},
            "device": self._device(),
            "params": {"count": sum(p.numel() for p in parameters),
                       "bytes": sum(dict(map(_storage, parameters)).values())},
            "optimizer_host": 0, "parameters_host": 0,
            "saved": {"bytes": sum(e["bytes"] for e in entries), "rounded": sum(e["rounded"] for e in entries),
                      "allocated": None, "storages": len(entries), "tensors": entries},
            **dict.fromkeys(OTHER_KEYS)}
