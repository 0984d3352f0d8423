"""Two training steps of a PyTorch model on meta, in the books of memtape's caching allocator.

The mode of _mode.py sees what operations make and let go, and passes both on to a meta device of libmemtape, whose allocator has the
rules of PyTorch's for CUDA (include/memtape/memory.h)."""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
import torch.utils._foreach_utils

from memtape import _attention, _autocast, _ddp, _fsdp, _kernels
from memtape._books import Peak, grouped, steps_section
from memtape._in_place import OnMeta, replaced, tensors_in
from memtape._ledger import PLAIN, Ledger, _storage, _tensors
from memtape._library import MemtapeError
from memtape._mode import Mode
from memtape._values import Values
from memtape.report import Report


@dataclass(frozen=True)
class How:
    """What a step is told beside model, batch and optimizer."""

    attention: str = "cuda"
    accumulate: int = 1  # forwards and backwards before the optimizer's step
    clip: Optional[float] = None  # the norm to which gradients are clipped
    autocast: Optional[torch.dtype] = None
    timeline: bool = False  # whether the report lists every event

    def __post_init__(self) -> None:
        for name, given, is_good, need in (
                ("accumulate", self.accumulate, isinstance(self.accumulate, int) and self.accumulate >= 1, "a whole number, 1 or more"),
                ("clip", self.clip, self.clip is None or isinstance(self.clip, (int, float)) and self.clip > 0, "the norm, a number above 0"),
                ("autocast", self.autocast, self.autocast in (None, torch.bfloat16, torch.float16), "torch.bfloat16 or torch.float16")):
            if not is_good:
                raise MemtapeError(f"memtape.torch: {name} is {given!r}; need {need}")


# ---- on meta ----

@contextlib.contextmanager
def _with_cuda_s_kernels() -> Iterator[None]:
    """Optimizers with fused=True, and foreach's functions, ask whether a device has such kernels. CUDA has, meta has not."""
    fused, foreach = "_device_dtype_check_for_fused", "_get_foreach_kernels_supported_devices"
    asked = [(m, fused, getattr(m, fused)) for key, m in sys.modules.items() if key.startswith("torch.optim.") and hasattr(m, fused)]
    asked.append((torch.utils._foreach_utils, foreach, getattr(torch.utils._foreach_utils, foreach)))
    try:
        for module, name, _ in asked:
            setattr(module, name, (lambda: ["cuda", "meta"]) if name == foreach else lambda *args, **kwargs: None)
        yield
    finally:
        for module, name, check in asked:
            setattr(module, name, check)


def _resizing(books: Mode) -> ContextManager[None]:
    """A storage's own resize_ passes by what modes see."""
    original = torch.UntypedStorage.resize_

    def resize(storage: torch.UntypedStorage, n_bytes: int) -> Any:
        out = original(storage, n_bytes)
        books.resized(storage)
        return out

    return replaced([(torch.UntypedStorage, "resize_", resize)])


@contextlib.contextmanager
def _answering(values: Values) -> Iterator[None]:
    """Python's questions to a tensor on meta are answered, or refused in words."""
    answers: Dict[str, Callable[[torch.Tensor], Any]] = {
        "item": values.item, "tolist": lambda t: values.all_of(t).tolist(), "numpy": lambda t: values.all_of(t).numpy(),
               "__array__": lambda t: values.all_of(t).numpy()}
    own = {name: vars(torch.Tensor).get(name) for name in answers}

    def answer(name: str, original: Any) -> Any:
        def asked(t: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if t.device.type == "meta":
                return answers[name](t)
            with no_dispatch() if type(t) in PLAIN else contextlib.nullcontext():
                return original(t, *args, **kwargs)
        return asked

    def from_data(original: Any) -> Any:
        """On meta PyTorch would not look at the numbers."""
        def make(data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any) -> Any:
            if device is None or torch.device(device).type != "meta" or isinstance(data, torch.Tensor):
                return original(data, *args, device=device, **kwargs, **({"requires_grad": True} if requires_grad else {}))
            return original(data, *args, **kwargs).to(device).requires_grad_(requires_grad)
        return make

    factories = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}
    for name, function in factories.items():
        setattr(torch, name, from_data(function))
    for name in answers:
        setattr(torch.Tensor, name, answer(name, getattr(torch.Tensor, name)))
    init, torch.autograd.graph.save_on_cpu.__init__ = torch.autograd.graph.save_on_cpu.__init__, _save_on_host
    try:
        yield
    finally:
        torch.autograd.graph.save_on_cpu.__init__ = init
        for name, function in factories.items():
            setattr(torch, name, function)
        for name, method in own.items():
            if method is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)


def _save_on_host(self: Any, pin_memory: bool = False, device_type: str = "cuda") -> None:
    """save_on_cpu.__init__: what is saved takes nothing on the device until backward makes it again."""
    def make(saved: Tuple[Any, ...]) -> torch.Tensor:
        shape, stride, dtype = saved
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")

    torch.autograd.graph.saved_tensors_hooks.__init__(self, lambda t: (t.shape, torch.empty_like(t).stride(), t.dtype), make)


@contextlib.contextmanager
def _as_eager() -> Iterator[None]:
    """What torch.compile has made runs as it was written."""
    stance = getattr(torch.compiler, "set_stance", None)
    with stance("force_eager") if stance else contextlib.nullcontext():
        yield


def compiled_parts(objects: Sequence[Any]) -> List[str]:
    """Names of the modules and functions in it that torch.compile has made."""
    found = []
    for value in objects:
        for name, module in value.named_modules() if isinstance(value, torch.nn.Module) else [("loss", value)]:
            if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None \
                    or hasattr(module, "_torchdynamo_orig_callable"):
                found.append(name or type(value).__name__)
    return found


def _loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """The step's forward. All else that the model returns is let go."""
    if isinstance(batch, Mapping):
        out = model(**batch)
    else:
        out = model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
    return _of_output(out)


def _of_output(out: Any) -> torch.Tensor:
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

    def __init__(self, lent: OnMeta, books: Mode, model: Any, batch: Any, loss: Callable[[Any, Any], torch.Tensor],
                 how: How) -> None:
        self.lent, self.books, self.model, self.batch, self.loss, self.how = lent, books, model, batch, loss, how
        self.peak, self.largest = Peak(), []  # type: Tuple[Peak, List[Dict[str, Any]]]
        self.saved: Optional[Report] = None
        self.n_states = [0] * len(lent.optimizers)
        self.optimizers: List[torch.optim.Optimizer] = []  # that the user steps
        self.buckets = _ddp.of_model(model, books)
        self.rows: Dict[torch.nn.Module, int] = {}  # of recurrences: steps of all sequences
        self.params = {"count": sum(p.numel() for p in model.parameters()),
                       "bytes": sum(dict(map(_storage, model.parameters())).values())}

    def _kept(self) -> Iterator[Tuple[str, torch.Tensor]]:
        """(path, tensor) of what is on the device between steps, but for states: of the model, and of what it is used with."""
        names = _paths(self.model)
        for t in (*self.model.parameters(), *self.model.buffers()):
            yield names[id(t)], t
        for name, module in self.lent.modules:
            for path, t in (*module.named_parameters(), *module.named_buffers()):
                yield f"{name}.{path}", t
        yield from self.lent.tensors

    def init(self) -> Dict[str, Any]:
        self.books.begin_phase("init", "input")
        given = {id(t) for t in tensors_in(self.batch)}
        for path, t in self._kept():
            if id(t) not in given:
                self.books.enter(t, "parameter", path)
            if t.requires_grad and t.is_leaf:
                self._follow_gradient(t, path)
        for t in tensors_in(self.batch):
            self.books.enter(t, "input", "")
        for buckets in self.buckets:
            buckets.make()
        self.books.waiting = {_storage(t)[0]: (path, t) for path, t in self.lent.loose if id(t) not in given}
        for optimizer in self.lent.optimizers:
            for state in optimizer.state.values():
                for t in _tensors(state):
                    self.books.enter(t, "optimizer", "")
        return self.books.end()

    def _follow_gradient(self, p: torch.Tensor, path: str) -> None:
        """Before the user's own hooks, which may let the gradient go."""
        def put(p: torch.Tensor) -> None:
            if p.grad is not None and not any(buckets.take(p) for buckets in self.buckets):
                self.books.put(p.grad, "gradient", path)

        p.register_post_accumulate_grad_hook(put)
        hooks: Any = p._post_accumulate_grad_hooks
        hooks.move_to_end(next(reversed(hooks)), last=False)

    def step(self) -> List[Dict[str, Any]]:
        phases = []
        for _ in range(self.how.accumulate):
            phases += [self._forward(), self._backward()]
        self.books.begin_phase("step", "temporary")
        self.books.after = self._look_at_states
        self.books.values.decides = False
        if self.how.clip is not None:
            torch.nn.utils.clip_grad_norm_(list(self.model.parameters()), self.how.clip)
        for optimizer in self.optimizers:
            optimizer.step(*([self._closure] if _needs_closure(optimizer) else []))
        self.books.values.decides = True
        self.books.after = lambda: None
        self._put_all()
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return [*phases, self._end()]

    def growth(self, first: Dict[str, Any], second: Dict[str, Any]) -> List[str]:
        """What each step leaves behind, if the second one has left something and a third one does, too."""
        if second["allocated"] <= first["allocated"]:
            return []
        before, peak = set(map(id, self.books.live.values())), (self.peak, self.largest)
        third = self.step()[-1]
        (self.peak, self.largest), n = peak, third["allocated"] - second["allocated"]
        if n <= 0:
            return []
        left = [held for held in self.books.live.values() if id(held) not in before and held.category not in ("gradient", "optimizer")]
        rows = [f"{row['module'] or 'the loss'} {row['op']}, {row['storages']} of {row['allocated']:,} bytes" for row in grouped(left)[:3]]
        return [f"Every step leaves {n:,} bytes more, so a later one takes more than this report says: {'; '.join(rows)}."]

    def _forward(self) -> Dict[str, Any]:
        self.books.begin_phase("forward", "activation")
        ledger = Ledger(self.model, self.how.attention)
        ledger.detached = self.books.detached
        ledger.others, ledger.other_tensors = self.lent.modules, [t for _, t in (*self._kept(), *self.lent.loose)]
        self.books.where = self.books.values.where = lambda: ledger._path[-1] if ledger._path else ""
        dtype = self.how.autocast
        with ledger, self._counting_rows(), torch.autocast("cuda", dtype) if dtype else contextlib.nullcontext():
            loss = self._loss_of_batch()
            if self.how.accumulate > 1:
                loss = loss / self.how.accumulate
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise MemtapeError(f"memtape.torch: loss returned {_shown(loss)}; need a tensor of one element")
        self._look_at_what_is_saved(ledger, loss)
        self.books.put(loss, "output")
        if not loss.requires_grad:
            raise MemtapeError(f"memtape.torch: there is no backward: {ledger._why_nothing(loss)}")
        self._loss_tensor = loss
        return self._end()

    def _loss_of_batch(self) -> torch.Tensor:
        try:
            return self.loss(self.model, self.batch)
        except RuntimeError as error:
            if "saved tensor hooks" in str(error):
                raise MemtapeError("memtape.torch: a gradient by torch.func (grad, vjp, jacrev, hessian) allows no hooks on what is saved, by which "
                                   "it is counted; take it by torch.autograd.grad(..., create_graph=True)") from error
            raise

    @contextlib.contextmanager
    def _counting_rows(self) -> Iterator[None]:
        def count(module: Any, given: Any) -> None:
            if given:
                self.rows[module] = given[0].data.numel() // module.input_size

        handles = [m.register_forward_pre_hook(count) for m in self.model.modules() if isinstance(m, torch.nn.RNNBase)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _backward(self) -> Dict[str, Any]:
        self.books.begin_phase("backward", "temporary")
        loss, self._loss_tensor = self._loss_tensor, None
        loss.backward()
        del loss
        self._put_all()
        return self._end()

    def _closure(self) -> torch.Tensor:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss = self._loss_of_batch()
        loss.backward()
        return loss.detach()

    def _end(self) -> Dict[str, Any]:
        books = self.books
        if books.peak.allocated > self.peak.allocated:
            self.peak, self.largest = books.peak, grouped(books.alive_at_peak())
        return books.end()

    def _look_at_states(self) -> None:
        """Finds the tensors that optimizers have made since, those of the parameter at which each is now among them."""
        for i, optimizer in enumerate(self.lent.optimizers):
            if len(optimizer.state) != self.n_states[i]:
                self._put(list(optimizer.state.values())[max(self.n_states[i] - 1, 0):])
                self.n_states[i] = len(optimizer.state)

    def _put_all(self) -> None:
        for optimizer in self.lent.optimizers:
            self._put(list(optimizer.state.values()))

    def _put(self, states: List[Any]) -> None:
        for t in _tensors(states):
            self.books.put(t, "optimizer")

    def _look_at_what_is_saved(self, ledger: Ledger, loss: torch.Tensor) -> None:
        ledger._name(loss)
        blocks = self.books.live
        entries = ledger._entries()
        for identity, entry in zip(ledger._identities, entries):
            held = blocks.get(identity)
            entry["allocated"] = held.allocated if held else 0
            if held:
                held.kept = {name: entry[name] for name in ("op", "role", "name")}
        if self.saved is None:
            values = ledger._values(entries)
            values["saved"]["allocated"] = sum(entry["allocated"] for entry in entries)
            note = None if entries else f"Nothing is kept for backward: {ledger._why_nothing(loss)}."
            self.saved = Report(values, f"{type(self.model).__name__} on meta", note=note)


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _shown(value: Any) -> str:
    return f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


def _check_parameters(model: torch.nn.Module) -> None:
    """Refuses in words what is not a module, and parameters that are neither plain tensors nor FSDP2's shards of such."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"profile: the model is a {type(model).__name__}; need a torch.nn.Module, then its batch and an optimizer")
    in_shards = {id(p.sharded_param) for p in _fsdp.parameters(model)}
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise MemtapeError("memtape.torch: FullyShardedDataParallel (FSDP1) is not counted; shard the model with "
                           "torch.distributed.fsdp.fully_shard")
    for name, p in [*model.named_parameters(), *model.named_buffers()]:
        if torch.nn.parameter.is_lazy(p):
            raise MemtapeError(f"memtape.torch: {name} has no shape yet; run the model once on such a batch, as PyTorch asks of lazy "
                               "modules")
        if is_traceable_wrapper_subclass(p) and id(p) not in in_shards:
            raise MemtapeError(f"memtape.torch: {name} is a {type(p).__name__}: quantised parameters, and those of tensor parallelism, are not "
                               "counted; profile the module as it is before quantize_ or parallelize_module")


def _check(model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], lent: OnMeta, how: How) -> None:
    ours = {id(p) for p in model.parameters()} | {id(p) for _, m in lent.modules for p in m.parameters()} 
    ours |= {id(t) for _, t in (*lent.tensors, *lent.loose)}
    strange = {id(p) for o in optimizers for group in o.param_groups for p in group["params"]} - ours
    if strange:
        raise MemtapeError(f"memtape.torch: {len(strange)} of the optimizer's parameters are not the model's")
    for optimizer in optimizers:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise MemtapeError("memtape.torch: LBFGS decides by the loss how often it runs forward and backward, and a step on meta "
                               "computes no loss; profile the model with torch.optim.SGD, and add LBFGS's vectors to its forward and "
                               "backward: 2 history_size + 5 times the bytes of the parameters, up to 4 more with line_search_fn. Within its "
                               "update, 2 history_size + 9 times are all that is allocated, parameters and gradients among them")


def profile(model: torch.nn.Module, batch: Any, optimizers: Sequence[torch.optim.Optimizer],
            loss: Optional[Callable[[Any, Any], torch.Tensor]], how: How) -> Report:
    if how.attention == "device":
        raise MemtapeError("memtape.torch: a step is run on meta, so attention cannot be 'device'; choose "
                           f"{', '.join(c for c in _attention.CHOICES if c != 'device')}")
    if not torch.is_grad_enabled():
        raise MemtapeError("memtape.torch: a training step under torch.no_grad() has no backward")
    _check_parameters(model)
    for optimizer in optimizers:
        if not hasattr(optimizer, "param_groups"):
            raise TypeError(f"profile: the optimizer is {optimizer!r}; need one of PyTorch's, such as torch.optim.AdamW(model.parameters())")
    books = Mode()
    try:
        with OnMeta(books.values) as lent:
            lent.model(model)
            device = _fsdp.Device(books)
            _fsdp.lend(lent, model, device)
            for optimizer in optimizers:
                lent.optimizer(optimizer)
            lent.batch(batch)
            if loss is not None:
                lent.visit(loss, "")
            lent.visit_hooks()
            _check(model, optimizers, lent, how)
            with _fsdp.as_on_cuda(model, books, device):
                return _two_steps(lent, books, model, batch, optimizers, loss, how)
    finally:
        books.close()


def _two_steps(lent: OnMeta, books: Mode, model: torch.nn.Module, batch: Any, optimizers: Sequence[torch.optim.Optimizer],
               loss: Optional[Callable[[Any, Any], torch.Tensor]], how: How) -> Report:
    steps = _Steps(lent, books, model, batch, loss or _loss, how)
    steps.optimizers = list(optimizers)
    books.timeline = [] if how.timeline else None
    with _as_eager(), _autocast.as_on_cuda(lambda: books.where()) as disabled, _answering(books.values), _with_cuda_s_kernels(), \
            _attention.flex_on_meta(), _resizing(books), books:
        phases = [steps.init(), *steps.step()]
        steps.peak, begins = Peak(), books.n_events
        books.begin_step()
        books.flops = dict.fromkeys(("forward", "backward", "recompute"), 0)
        steady, streams = steps.step(), books.streams
        timeline, books.timeline = books.timeline, None
        flops, books.flops = books.flops, {}
        growth = steps.growth(phases[-1], steady[-1])
    assert steps.saved is not None
    values = steps.saved.to_dict()
    values["model"]["optimizer"] = ", ".join(dict.fromkeys(type(o).__name__ for o in lent.optimizers)) or None
    values["params"] = steps.params
    values.update(steps_section(phases, steady, begins, steps.peak, steps.largest, streams=streams), timeline=timeline, flops=flops)
    eager = compiled_parts([model, loss])
    notes = [f"{', '.join(eager)} is compiled, and counts as eager: Inductor's graph keeps other bytes."] if eager else []
    if disabled:
        notes.append(f"{', '.join(name or 'the loss' for name in disabled)} enters a region of torch.autocast(\"cuda\") that was made before the "
                     "profile, as a decorator is. PyTorch finds no GPU and has disabled it, so the step counts without it. Unless it was made "
                     "with enabled=False, a GPU takes other bytes: make the region in forward, or for \"cpu\", which counts as CUDA's.")
    return Report(values, steps.saved.title + (", as eager" if eager else ""), note=steps.saved._note,
                  notes=[*_fsdp.notes(model), *notes, *_unknown(model, steps), *growth])


def _recurrence(model: torch.nn.Module, name: str, module: torch.nn.RNNBase, steps: _Steps) -> str:
    """What is known of one that cuDNN runs on CUDA."""
    assert steps.saved is not None
    path, kind = ".".join(filter(None, [type(model).__name__, name])), type(module).__name__
    cells = sum(t["bytes"] for t in steps.saved["saved"]["tensors"] if t["module"] == path)
    text = (f"{path} ({kind}) counts as its cells, which keep {cells:,} bytes. On CUDA cuDNN runs it as one operation, which keeps its "
            "input, its output and a reserve, whose size is cuDNN's own and unknown without a GPU.")
    numbers, rows = _kernels.reserve_numbers(kind, module.num_layers), steps.rows.get(module)
    if numbers is None or rows is None:
        return text
    n = numbers * rows * module.hidden_size * (1 + module.bidirectional) * next(module.parameters()).itemsize
    return f"{text} A guess: {n:,} bytes, from the ratio of two sizes that cuDNN once gave (docs/python.md)."


def _unknown(model: torch.nn.Module, steps: _Steps) -> List[str]:
    """What CUDA runs and nobody publishes the size of."""
    notes = [_recurrence(model, name, m, steps) for name, m in model.named_modules() if isinstance(m, torch.nn.RNNBase)]
    if any(isinstance(m, torch.nn.TransformerEncoderLayer) and not m.training for m in model.modules()):
        notes.append("nn.TransformerEncoderLayer in evaluation counts as its parts; without gradients CUDA runs it as one operation, which "
                     "takes less within.")
    return notes
