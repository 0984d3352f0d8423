"""Runs one computation in memtape and in PyTorch on the same numbers, and compares values, gradients and saved
bytes."""

from dataclasses import dataclass, field
from typing import Callable

import torch

import memtape
from differences import total

# Errors are relative to the largest magnitude of the expected tensor, because the two sides sum in different
# orders. An op rounds a few times per element, which gives a few units in the last place of its dtype (2**-53,
# 2**-24, 2**-11, 2**-8); a sum, here of at most about a hundred terms, gives a few more. A model has about forty
# ops, whose roundings add up like a random walk and amplify each other where a norm divides by a small deviation.
# In 16 bits PyTorch's own error may be larger, where it rounds what memtape keeps in f32 (the statistics of a
# norm, scaled scores). A result that differs more from PyTorch's must then be nearer than PyTorch's to the same
# computation in f64.
OP_TOLERANCE = {torch.float64: 1e-14, torch.float32: 4e-6, torch.float16: 2e-3,
                torch.bfloat16: 1.6e-2}
MODEL_TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-5, torch.bfloat16: 5e-2}


def address(t):
    """The address of t's storage."""
    return t.untyped_storage().data_ptr()


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """with SavedTensors(ignore) as saved: ...; saved.bytes

    The bytes of every distinct storage that autograd saves, each counted once and whole. The tensors are kept
    alive, so that no address is used for two storages."""

    def __init__(self, ignore=()):
        self.ignored = {address(t) for t in ignore}
        self.kept = {}
        super().__init__(self._pack, lambda t: t)

    def __enter__(self):
        super().__enter__()
        return self

    def _pack(self, t):
        if address(t) not in self.ignored and t.untyped_storage().nbytes():
            self.kept[address(t)] = t
        return t

    @property
    def bytes(self):
        return sum(t.untyped_storage().nbytes() for t in self.kept.values())


def storage(t):
    return address(t), t.untyped_storage().nbytes()


class SavesInOrder(SavedTensors):
    """Also lists all saves of a node, with repetitions."""

    def _pack(self, t):
        self.of_node.append(t)
        return super()._pack(t)


@dataclass
class Call:
    """One call as PyTorch ran it, for the `differences` of an op."""
    operands: list
    wanted: list      # which of them require grad
    parameters: dict
    saved: list       # the tensors that PyTorch saved

    def storage(self, i):
        """(address, bytes)"""
        return storage(self.operands[i])

    def stored(self, i):
        """Elements of operand i's whole storage."""
        return self.storage(i)[1] // self.operands[i].itemsize

    @property
    def element_bytes(self):
        return [t.itemsize for t in self.operands if t.is_floating_point()][-1]


@dataclass
class Input:
    shape: tuple
    low: float = -2
    high: float = 2
    below: int = 0  # i64 indices below this, instead of floating values
    away: float = 0  # the smallest magnitude of a value

    def draw(self, generator, dtype):
        if self.below:
            return torch.randint(self.below, self.shape, generator=generator)
        t = (torch.rand(self.shape, generator=generator, dtype=torch.float64)
             * (self.high - self.low) + self.low)
        return torch.where(t.abs() < self.away, t + self.away * t.sign(), t).to(dtype)


@dataclass
class Case:
    row: str     # of the op table
    note: str
    inputs: list
    ours: Callable    # (library, *tensors) -> tensor
    theirs: Callable  # (*tensors) -> tensor: PyTorch's computation, whose saved bytes are counted
    # (*tensors, our result) -> tensor: the expected values, if PyTorch's computation draws at random
    values: Callable = None
    differences: Callable = lambda call: []  # Call -> a list of graph_op.Applied
    parameters: dict = field(default_factory=dict)  # for `differences`
    layouts: tuple = ("dense", "reversed", "sliced")
    dtypes: tuple = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    f64_tolerance: float = OP_TOLERANCE[torch.float64]
    inner: bool = False      # the result is made by another op than `row`

    def tolerance(self, dtype):
        return self.f64_tolerance if dtype == torch.float64 else OP_TOLERANCE[dtype]


@dataclass
class Tally:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    rows: set = field(default_factory=set)

    def line(self):
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


def relative_error(a, b):
    a, b = a.detach().double(), b.detach().double()
    return (a - b).abs().max().item() / b.abs().max().clamp_min(1e-30).item() if b.numel() else 0.0


def far(ours, theirs, tolerance, exact=None):
    """"" if the two are near, otherwise a text with their distance. `exact` is the f64 result, which is given if
    `theirs` has 16 bits."""
    if ours is None or theirs is None:
        return "" if ours is theirs else "one of the two is missing"
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype}{list(ours.shape)}, not {theirs.dtype}{list(theirs.shape)}"
    error = relative_error(ours, theirs)
    if error <= tolerance:  # a NaN is not
        return ""
    if exact is not None and relative_error(ours, exact) <= relative_error(theirs, exact):
        return ""
    return f"relative error {error:.3g} > {tolerance:.3g}"


# ---- layouts: a leaf with the numbers, and the view of it that is the input ----

def store(values, layout):
    """A leaf whose view in this layout has these values."""
    if layout == "reversed":
        return values.permute(*reversed(range(values.dim()))).contiguous()
    if layout == "sliced":
        return torch.nn.functional.pad(values, (1, 1), value=0.5)
    if layout == "heads":  # [b,a,s,d] stored as [b,s,a,d]
        return values.transpose(1, 2).contiguous()
    return values


def their_view(leaf, layout):
    if layout == "reversed":
        return leaf.permute(*reversed(range(leaf.dim())))
    if layout == "sliced":
        return leaf.narrow(-1, 1, leaf.shape[-1] - 2)
    if layout == "heads":
        return leaf.transpose(1, 2)
    return leaf


def our_view(library, leaf, layout):
    rank = len(leaf.shape)
    if layout == "reversed":
        return library.call("permute", leaf, *range(rank - 1, -1, -1))
    if layout == "sliced":
        return library.call("slice", leaf, rank - 1, 1, leaf.shape[-1] - 2)
    if layout == "heads":
        return library.call("permute", leaf, 0, 2, 1, 3)
    return leaf


# ---- one case ----

def leaves(case, layout, dtype):
    generator = torch.Generator().manual_seed(17)
    drawn = [i.draw(generator, dtype) for i in case.inputs]
    return [store(t, of) for of, t in zip(layouts_of(case, layout), drawn)]


def layouts_of(case, layout):
    return ["dense" if i.below or not i.shape or layout == "heads" and len(i.shape) < 2 else layout for i in case.inputs]


def run_ours(library, case, layout, values, wanted):
    inputs = [library.tensor(t) for t in values]
    for i, leaf in enumerate(inputs):
        if wanted >> i & 1:
            leaf.requires_grad_()
    views = [our_view(library, t, l) for t, l in zip(inputs, layouts_of(case, layout))]
    library.mt_seed(library.device, 23)
    with memtape.Ledger(library) as ledger:
        out = case.ours(library, *views)
    return inputs, out, ledger.bytes


def run_theirs(case, layout, values, wanted, our_result=None):
    inputs = [t.detach().clone().requires_grad_(bool(wanted >> i & 1))
              for i, t in enumerate(values)]
    views = [their_view(t, l) for t, l in zip(inputs, layouts_of(case, layout))]
    call = Call(views, [t.requires_grad for t in views], case.parameters, [])
    with SavesInOrder() as saved:
        saved.of_node = call.saved
        out = case.theirs(*views)
    n_bytes = saved.bytes
    if case.values:
        out = case.values(*views, our_result)
    return inputs, out, n_bytes, call


def weights_like(result):
    """The gradient of the result: its elements are all different, with both signs."""
    weights = torch.linspace(-1, 1, max(result.numel(), 1), dtype=torch.float64)
    return (weights.reshape(result.shape) + 0.25).to(result.dtype)


def case_faults(library, case, layout, dtype):
    values = leaves(case, layout, dtype)
    floating = [i for i, spec in enumerate(case.inputs) if not spec.below]
    every = sum(1 << i for i in floating)
    tolerance = case.tolerance(dtype)
    narrow = dtype.itemsize == 2

    mine, out, _ = run_ours(library, case, layout, values, every)
    theirs, expected, _, _ = run_theirs(case, layout, values, every, out.torch())
    weights = weights_like(expected)
    expected.backward(weights)
    exact_values, exact = [None] * len(values), None
    if narrow:
        wide = [t.double() if t.is_floating_point() else t for t in values]
        exact_values, exact, _, _ = run_theirs(case, layout, wide, every, out.torch().double())
        exact.backward(weights.to(exact.dtype))
    if not case.inner and out.made_by != case.row:
        yield f"made by {out.made_by}"
    fault = far(out.torch(), expected, tolerance, exact)
    if fault:
        yield f"values: {fault}"
    out.backward(library.tensor(weights))
    for i in floating:
        grad = mine[i].grad
        fault = far(grad and grad.torch(), theirs[i].grad, tolerance,
                    exact_values[i].grad if narrow else None)
        if fault:
            yield f"gradient of input {i}: {fault}"

    for wanted in range(1, every + 1):
        if wanted & ~every:
            continue
        n_ours = run_ours(library, case, layout, values, wanted)[2]
        _, _, n_theirs, call = run_theirs(case, layout, values, wanted, out.torch())
        applied = case.differences(call)
        n_expected = n_theirs + total([(a.row, a.letters) for a in applied], dtype.itemsize)
        if n_ours != n_expected:
            yield (f"saved bytes, wanted {wanted:b}: {n_ours}, not {n_expected} "
                   f"(PyTorch {n_theirs}, differences {[a.row for a in applied]})")


def run_case(library, case, tally, report=print):
    tally.rows.add(case.row)
    for dtype in case.dtypes:
        for layout in case.layouts:
            name = f"{case.row}, {case.note}, {layout}, {str(dtype).removeprefix('torch.')}"
            try:
                faults = list(case_faults(library, case, layout, dtype))
            except memtape.MemtapeError as error:
                faults = [f"memtape: {error}"]
            except NotImplementedError as error:  # PyTorch lacks some ops in f16
                report(f"skipped: {name}: {str(error).splitlines()[0]}")
                tally.skipped += 1
                continue
            for fault in faults:
                report(f"FAILED: {name}: {fault}")
            tally.failed += bool(faults)
            tally.passed += not faults
