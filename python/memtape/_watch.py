"""A training loop of one's own, step by step: what it took beside what memtape.torch.profile says of it."""

from __future__ import annotations

import functools
import os
import pickle
import weakref
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, Union

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode

from memtape import _fsdp, _step, _text
from memtape._books import Books
from memtape._in_place import tensors_in
from memtape._ledger import _storage
from memtape._library import MemtapeError
from memtape._values import MOST_VALUES
from memtape.report import Report


MOST_EVENTS = 200_000  # of the allocator, that are kept for a snapshot: the last ones
_OutOfMemory = torch.cuda.OutOfMemoryError


@dataclass(frozen=True)
class Step:
    """A step of the loop: the most bytes allocated in it, and what the profile of its shapes says."""

    number: int  # from 1
    measured: int
    predicted: int
    report: Report


class _Device(TorchDispatchMode):  # type: ignore[misc]
    """The most bytes that are allocated on the model's device. On CUDA its allocator is asked; on the CPU, what operations make is
    entered in memtape's, whose blocks are those of CUDA."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self._books = None if device.type == "cuda" else Books()

    def begin(self) -> None:
        if self._books is None:
            torch.cuda.reset_peak_memory_stats(self.device)
        else:
            self._books.begin("step")

    def peak(self) -> int:
        return int(torch.cuda.max_memory_allocated(self.device) if self._books is None else self._books.pool.stats().allocated.peak)

    def close(self) -> None:
        if self._books is not None:
            self._books.close()

    def enter_all(self, value: Any) -> None:
        for t in _pytree.tree_leaves(value):
            if isinstance(t, torch.Tensor) and t.device.type == self.device.type:
                self._enter(t)

    def _enter(self, t: torch.Tensor) -> None:
        if self._books is None:
            return
        books, (identity, n_bytes) = self._books, _storage(t)
        held = books.live.get(identity)
        if held is not None and held.n_bytes != n_bytes:
            books.remove(identity)
        if not n_bytes or held is not None and held.n_bytes == n_bytes:
            return
        held = books.add(identity, n_bytes, "activation", "", "")

        def leave(_: Any, identity: int = identity, held: Any = held) -> None:
            if books.live.get(identity) is held:
                books.remove(identity)

        held.seen = weakref.ref(t.untyped_storage(), leave)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        assert self._books is not None
        tensors = [t for t in _pytree.tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor)]
        if any(t.dim() or _storage(t)[0] in self._books.live for t in tensors):  # not the optimizer's counts of steps
            self.enter_all(out)
        return out


class _History:
    """What CUDA's allocator does, for a snapshot of the instant at which memory runs out. A recording that the user has begun goes on."""

    _current: Optional[_History] = None  # PyTorch lets go of no observer: there is one, for whoever watches

    def __init__(self) -> None:
        self.asked: Optional[int] = None  # bytes, where memory has run out
        self._snapshot: Any = None
        self._outer = _History._current
        enabled = getattr(torch._C, "_cuda_isHistoryEnabled", lambda: False)
        self._ours = not enabled()
        if self._ours:
            torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=MOST_EVENTS)
        _attach_once()
        _History._current = self

    def seen(self, asked: int) -> None:
        """Memory has run out; whoever asked may do with less, so the snapshot is held until the error leaves the loop."""
        self.asked, self._snapshot = asked, torch.cuda.memory._snapshot()

    def write(self, path: Path) -> None:
        with open(path, "wb") as f:
            pickle.dump(self._snapshot or torch.cuda.memory._snapshot(), f)

    def close(self) -> None:
        _History._current = self._outer
        if self._ours:
            torch.cuda.memory._record_memory_history(enabled=None)


@functools.cache
def _attach_once() -> None:
    def ran_out(_device: int, asked: int, _total: int, _free: int) -> None:
        if _History._current is not None:
            _History._current.seen(asked)

    torch._C._cuda_attach_out_of_memory_observer(ran_out)


class Watch:
    """with memtape.torch.watch(model, optimizer) as w: the loop; w.steps and print(w) afterwards."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Optional[Callable[[Any, Any], torch.Tensor]],
                 how: _step.How, snapshot: Union[str, os.PathLike[str], None]) -> None:
        if not isinstance(model, torch.nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
            raise TypeError("watch: need a torch.nn.Module and a torch.optim.Optimizer")
        self.steps: List[Step] = []
        self.failed: Optional[Step] = None  # that ran out of memory
        self.snapshot = Path(snapshot) if snapshot is not None else None  # written where a step has failed on CUDA
        self._model, self._optimizer, self._loss, self._how = model, optimizer, loss, how
        self._reports: Dict[Any, Report] = {}
        self._calls: List[Tuple[Any, Any]] = []  # of this step: (shapes, batch)
        self._handles: List[Any] = []
        self._device: Optional[_Device] = None
        self._history: Optional[_History] = None
        self._notes: List[str] = []
        self._first = not optimizer.state
        self._profiles = False  # whether the step that runs is a profile's

    def __enter__(self) -> Watch:
        if self._device is not None:
            raise MemtapeError("memtape.torch: a watch is entered once; make a new one")
        device = _device_of(self._model)
        if device.type != "cuda" and _fsdp.states(self._model):
            raise MemtapeError("memtape.torch: watch measures modules with FSDP2 on CUDA alone; memtape.torch.profile takes them anywhere")
        self._device = _Device(device)
        self._device.enter_all([*self._model.parameters(), *self._model.buffers(), *(p.grad for p in self._model.parameters()),
                                *self._optimizer.state.values()])
        self._handles = [self._model.register_forward_pre_hook(self._called, prepend=True, with_kwargs=True),
                         self._optimizer.register_step_post_hook(self._stepped)]
        self._device.begin()
        if self._device._books is not None:
            self._device.__enter__()
        elif self.snapshot is not None:
            self._history = _History()
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        assert self._device is not None
        for handle in self._handles:
            handle.remove()
        if self._device._books is not None:
            self._device.__exit__(kind, error, trace)
        if isinstance(error, _OutOfMemory):
            self._ran_out(self._device.peak())
        if self._history is not None:
            self._history.close()
        self._device.close()

    def _ran_out(self, measured: int) -> None:
        """The error goes on to the user, whatever comes of this."""
        if self._history is not None and self.snapshot is not None:
            try:
                self._history.write(self.snapshot)
                self._notes.append(f"{self.snapshot} is the allocator's snapshot of that instant")
            except (OSError, RuntimeError) as error:
                self._notes.append(f"no snapshot: {error}")
        calls, self._calls = self._calls, []
        try:
            report, predicted = self._predict(calls, timeline=True)
        except MemtapeError as error:
            self._notes.append(f"no prediction: {error}")
            return
        self.failed = Step(len(self.steps) + 1, measured, predicted, report)
        if self._history is not None and self.snapshot is not None:
            path = self.snapshot.with_suffix(".json")
            try:
                path.write_text(report.json(), encoding="utf-8")
                self._notes.append(f"which tensors, and which are not there yet: memtape compare {self.snapshot} {path}")
            except OSError as error:
                self._notes.append(f"no report: {error}")

    def _predict(self, calls: List[Tuple[Any, Any]], timeline: bool = False) -> Tuple[Report, int]:
        """(the report of a step of these shapes, the most bytes in it)"""
        if not calls:
            raise MemtapeError("memtape.torch: the model was not called in this step")
        key = (timeline, *(shapes for shapes, _ in calls))
        if key not in self._reports:
            with torch.utils._python_dispatch._disable_current_modes():
                self._reports[key] = self._profile(calls[0][1], len(calls), timeline)
        report = self._reports[key]
        phases = report["phases"][1:] if self._first else report["steady"]["phases"]
        return report, max(p["peak"] for p in phases)

    def _called(self, _: Any, args: Any, kwargs: Any) -> None:
        """A forward of the model: what it was given is kept by its shapes, and by its whole numbers."""
        assert self._device is not None
        if self._profiles:
            return
        self._device.enter_all([tensors_in(args), tensors_in(kwargs)])
        shapes = tuple((tuple(t.shape), t.dtype) for t in tensors_in([args, kwargs]))
        batch = None
        if not self._calls:
            with torch.utils._python_dispatch._disable_current_modes():
                batch = _pytree.tree_map_only(torch.Tensor, _described, (args, kwargs))
        self._calls.append((shapes, batch))

    def _stepped(self, *_: Any) -> None:
        assert self._device is not None
        if self._profiles:
            return
        measured, calls, self._calls = self._device.peak(), self._calls, []
        if calls:
            report, predicted = self._predict(calls)
            self.steps.append(Step(len(self.steps) + 1, measured, predicted, report))
        self._first = False
        self._device.begin()

    def _profile(self, batch: Any, n_calls: int, timeline: bool) -> Report:
        args, kwargs = batch

        def loss(model: Any, given: Any) -> torch.Tensor:
            return _step._of_output(model(*given[0], **given[1]))

        given, function = ((args, kwargs), loss) if self._loss is None else (kwargs or (args[0] if len(args) == 1 else args), self._loss)
        how = _step.How(self._how.attention, self._how.accumulate * n_calls, self._how.clip, self._how.autocast, timeline)
        self._profiles = True
        states = dict(self._optimizer.state) if self._first else {}  # the first step began without them
        for p in states:
            del self._optimizer.state[p]
        try:
            with torch.enable_grad():
                return _step.profile(self._model, given, [self._optimizer], function, how)
        finally:
            self._optimizer.state.update(states)
            self._profiles = False

    def __str__(self) -> str:
        rows = [["step", "measured", "predicted", "difference"]]
        rows += [[str(s.number), f"{s.measured:,}", f"{s.predicted:,}", f"{s.predicted - s.measured:+,}"] for s in self.steps]
        if self.failed is not None:
            s = self.failed
            rows.append([f"{s.number}, out of memory", f"{s.measured:,}", f"{s.predicted:,}", f"{s.predicted - s.measured:+,}"])
        where = self._device.device.type if self._device is not None else "nowhere"
        title = f"{type(self._model).__name__} on {where}: most bytes allocated in each step"
        asked = self._history.asked if self._history is not None else None
        notes = [f"{asked:,} bytes more were asked for"] if asked else []
        return "\n".join([title, *_text.columns(rows, (0, 1, 2, 3)), *notes, *self._notes])


def _device_of(model: torch.nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _described(t: torch.Tensor) -> torch.Tensor:
    """t without its data, unless it has whole numbers by which a model may branch."""
    if not t.is_floating_point() and not t.is_complex() and t.numel() <= MOST_VALUES:
        return t.detach().cpu().clone()
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta").requires_grad_(t.requires_grad)
