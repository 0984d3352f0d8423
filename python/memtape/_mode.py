"""The dispatch mode of a step on meta.

It sees each storage that PyTorch's operations make, and a weak reference sees it go. Both are entered in the books. It counts the
operations' multiply-adds as well."""

from __future__ import annotations

import contextlib
import functools
import weakref
from typing import Any, Callable, Dict, Iterator, NamedTuple, Optional, Sequence, Tuple

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from torch.utils.weak import WeakIdKeyDictionary

from memtape import _kernels
from memtape._books import Books, Held
from memtape._ledger import PLAIN, _storage, _tensors, plain
from memtape._library import MemtapeError
from memtape._values import Values

_INDEX_PUT = torch.ops.aten.index_put.default
_FUSED = ("fused_adam", "fused_adamw", "fused_sgd", "fused_adagrad")
_FAKE = torch._C._TorchDispatchModeKey.FAKE
_WAIT = torch.ops._c10d_functional.wait_tensor.default if torch.distributed.is_available() else None
_EFFICIENT = torch.ops.aten._scaled_dot_product_efficient_attention.default


class _Operation(NamedTuple):
    """What the mode asks of an operation."""

    name: str  # as a report has it
    of_lists: Any  # the operation that takes lists in place of its lengths in tensors; None: there is none
    as_on_cuda: Optional[Callable[..., Any]]


@functools.cache
def _operation(func: Any) -> _Operation:
    of_lists = _kernels.OF_LISTS.get(func)
    return _Operation(str(func.__name__).split(".")[0].strip("_"), of_lists, _kernels.AS_ON_CUDA.get(of_lists or func))


class Mode(Books, TorchDispatchMode):  # type: ignore[misc]
    """Within `with`, operations on meta tensors enter it."""

    def __init__(self) -> None:
        Books.__init__(self)
        TorchDispatchMode.__init__(self)
        self.values = Values()
        self.op = ""
        self.where: Callable[[], str] = lambda: ""
        self.category = "input"
        self.after: Callable[[], None] = lambda: None
        self.waiting: Dict[int, Tuple[str, torch.Tensor]] = {}  # by storages: entered when the step uses them
        self.flops: Dict[str, int] = {}  # of a step, by the keys of a report's `flops`; empty: they are not counted
        self._emptied: Any = WeakIdKeyDictionary()  # (category, module, op) of storages that have been given no bytes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled in a step: see `_step._as_eager`."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(kind not in PLAIN and hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented  # a DTensor calls the operation on its own shard
        if torch._C._get_dispatch_mode(_FAKE) is not None:  # by which a DTensor learns a shape
            return func(*args, **(kwargs or {}))
        if func is _WAIT:
            return args[0]  # itself, but on meta
        if self.waiting:
            self._admit(args)
        operation = _operation(func)
        self.op = operation.name
        self.after()
        # An index's backward adds into its zeros in place, but out of place where a mode watches it (index_backward).
        if func is _INDEX_PUT and self.phase == "backward" and len(args) > 3 and args[3]:
            func = torch.ops.aten.index_put_.default
        if self.op in _FUSED:
            return None  # a kernel that writes in place, and has none on meta
        if operation.of_lists is not None:
            func = operation.of_lists
            args = [self.values.all_of(a).tolist() if isinstance(a, torch.Tensor) and argument.name.endswith("_lengths") else a
                    for a, argument in zip(args, func._schema.arguments)]
        if operation.as_on_cuda is not None and args[0].device.type == "meta":
            return operation.as_on_cuda(self._make, *args, **(kwargs or {}))
        out = self.values.run(func, args, kwargs or {})
        if self.flops and func._overloadpacket in flop_registry:
            self._count(flop_registry[func._overloadpacket](*args, **(kwargs or {}), out_val=out))
        # With dropout the generator's state of efficient attention is in host memory.
        of_device = out[:2] if func is _EFFICIENT and len(args) > 5 and args[5] else out
        for t in _tensors(of_device):
            self.enter(t, self.category, self.where())
        self.op = ""
        return out

    def _admit(self, args: Any) -> None:
        self.op = ""
        for t in _tensors(args):
            found = self.waiting.pop(_storage(t)[0], None) if t.is_meta else None
            if found is not None:
                self.enter(found[1], "parameter", found[0])

    def detached(self, t: torch.Tensor) -> torch.Tensor:
        """t.detach(), without the way through the dispatcher."""
        if type(t) not in PLAIN:
            return t.detach()
        with no_dispatch():
            alias = t.detach()
        self.values.pass_on(t, alias)
        if self.waiting:
            self._admit([t])
        self.op = "detach"
        self.enter(alias, self.category, self.where())  # a Python number that an operation has made a tensor of
        self.op = ""
        return alias

    def _count(self, flops: int) -> None:
        """In backward gradients are wanted only of what runs again."""
        phase = "recompute" if self.phase == "backward" and torch.is_grad_enabled() else self.phase
        if phase in self.flops:
            self.flops[phase] += int(flops)

    def _make(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        made = torch.empty(tuple(shape), dtype=dtype, device="meta")
        self.enter(made, self.category, self.where())
        return made

    def enter(self, t: torch.Tensor, category: str, module: str) -> None:
        """t's storage, unless it is known or not on the device."""
        if not t.is_meta:
            return
        if t.layout is not torch.strided:
            raise MemtapeError(f"memtape.torch: {module or 'the loss'}: {self.op} makes a tensor of layout {t.layout}, which has no storage to "
                               "count; gradients of nn.Embedding and nn.EmbeddingBag are plain with sparse=False")
        self._enter(plain(t).untyped_storage(), category, module, self.op)

    def _enter(self, storage: torch.UntypedStorage, category: str, module: str, op: str) -> None:
        identity, n_bytes = storage._cdata, storage.nbytes()
        held = self.live.get(identity)
        if held is not None and held.n_bytes == n_bytes:
            return
        if held is not None:  # resized
            self.remove(identity)
        if not n_bytes:
            return
        held = self.add(identity, n_bytes, category, module, op)
        held.seen = weakref.ref(storage, functools.partial(self._leave, identity, held))

    def _leave(self, identity: int, held: Held, _: Any) -> None:
        if self.live.get(identity) is held:
            self.remove(identity)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Called once a storage has another size. What was empty is again what it was."""
        if storage.device.type != "meta":
            return
        held = self.live.get(storage._cdata)
        was = (held.category, held.module, held.op) if held is not None else \
            self._emptied.pop(storage, (self.category, self.where(), "resize"))
        if held is not None and not storage.nbytes():
            self._emptied[storage] = was
            self.remove(storage._cdata)
        else:
            self._enter(storage, *was)

    @contextlib.contextmanager
    def counting_as(self, category: str, module: Optional[str] = None) -> Iterator[None]:
        """What is made meanwhile is of this category, and of the module if one is named."""
        before = self.category, self.where
        self.category, self.where = category, before[1] if module is None else functools.partial(str, module)
        try:
            yield
        finally:
            self.category, self.where = before

    def put(self, t: torch.Tensor, category: str, module: str = "") -> None:
        """What the storage is for, from now on."""
        held = self.live.get(_storage(t)[0]) if t.device.type == "meta" else None
        if held is not None:
            self.recategorise(held, category, module)

    def begin_phase(self, phase: str, category: str) -> None:
        self.category = category
        self.begin(phase)
