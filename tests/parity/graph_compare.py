"""Compares a traced graph in memtape and in PyTorch: values, gradients, saved bytes, refusals."""

from dataclasses import dataclass

import torch

import memtape
from differences import DIFFERENCES
from graph_op import Applied
from graph_trace import evaluate
from harness import Call, SavesInOrder, address, storage


@dataclass(frozen=True)
class Fault:
    kind: str
    text: str

    def __str__(self):
        return f"{self.kind}: {self.text}"


# ---- saved bytes ----

class ExpectedSaves:
    """PyTorch's saved storages plus the rows of differences.py. Each storage counts once, even if several calls
    keep it."""

    def __init__(self, parameters):
        self.storages = {}  # address: bytes
        self.results = {}   # address: (bytes to add, storages) if something keeps this storage
        self.of_calls = 0   # memtape's minus PyTorch's bytes in storages that belong to one call
        self.rows = set()   # the rows that applied
        self.parameters = {address(t) for t in parameters}

    def row(self, applied, call):
        """(bytes of the row that are in no operand's storage, storages to add, storages to drop)"""
        self.rows.add(applied.row)
        adds = [call.storage(i) for i in applied.adds]
        drops = [call.storage(i) for i in applied.drops]
        n_bytes = DIFFERENCES[applied.row].bytes(e=call.element_bytes, **applied.letters)
        return n_bytes - sum(n for _, n in adds) + sum(n for _, n in drops), adds, drops

    def add(self, node, call):
        saved = [storage(t) for t in call.saved]
        for applied in node.op.differences(call) if any(call.wanted) else []:
            n_bytes, adds, drops = self.row(applied, call)
            self.of_calls += n_bytes
            saved += adds
            for one in drops:
                saved.remove(one)
        self.storages.update(saved)

    def add_result(self, result, applied, call):
        """A row about a result counts only if something keeps the result."""
        n_bytes, adds, _ = self.row(applied, call)
        self.results[address(result)] = n_bytes, adds

    def counted(self):
        """({address: bytes}, further bytes)"""
        storages, n_bytes = dict(self.storages), self.of_calls
        for kept, (more, adds) in reversed(self.results.items()):  # an added storage may be a result
            if kept in storages:
                n_bytes += more
                storages.update(adds)
        return storages, n_bytes

    @property
    def bytes(self):
        storages, n_bytes = self.counted()
        return n_bytes + sum(n for a, n in storages.items() if a not in self.parameters)


class TheirRun:
    """PyTorch's forward in the dtypes of the graph, with hooks that see the saved tensors.

    memtape's layouts decide which `contiguous` and `reshape` must copy. `layouts` has an empty tensor with
    memtape's strides for each value: the strides of memtape's results, and what PyTorch's views make of them."""

    def __init__(self, trace, m, strides):
        self.graph, self.lines, self.m, self.strides = trace.graph, trace.lines, m, strides
        self.values = {leaf.name: leaf.data.clone().requires_grad_(leaf.trainable)
                       for leaf in self.graph.leaves}
        self.layouts = {leaf.name: leaf.data for leaf in self.graph.leaves}
        self.expected = ExpectedSaves([self.values[leaf.name] for leaf in self.graph.leaves
                                       if leaf.parameter])

    def forward(self, n_nodes=None):
        with SavesInOrder() as saves:
            for node, (_, text) in zip(self.graph.nodes[:n_nodes], self.lines):
                saves.of_node = []
                operands = [self.values[name] for name in node.inputs]
                call = Call(operands, [t.requires_grad for t in operands], node.parameters,
                            saves.of_node)
                results = evaluate(text, self.m, self.values)
                if node.op.view or node.op.copies:
                    laid_out = evaluate(text, self.m, self.layouts)
                else:
                    laid_out = [torch.empty_strided(t.shape, self.strides[name], dtype=t.dtype)
                                for name, t in zip(node.outputs, results)]
                if node.op.copies:
                    copied = address(laid_out[0]) != address(self.layouts[node.inputs[0]])
                    results = [self.as_laid_out(results[0], copied, call)]
                applied = node.op.difference_of_result(call)
                if applied:
                    self.expected.add_result(results[0], applied, call)
                self.values.update(zip(node.outputs, results))
                self.layouts.update(zip(node.outputs, laid_out))
                self.expected.add(node, call)

    def as_laid_out(self, result, copied, call):
        """A copy if memtape copies; otherwise a row of differences.py instead of PyTorch's copy."""
        theirs_is_copied = address(result) != call.storage(0)[0]
        if copied and not theirs_is_copied:
            self.expected.rows.add("copied result")
            return result.clone()
        if theirs_is_copied and not copied:
            letters = {"n": result.numel(), "s": call.stored(0)}
            self.expected.add_result(result, Applied("copied result", letters, adds=(0,)), call)
        return result


# ---- memtape ----

class Refused(Exception):
    """memtape refuses to run node `index` in place."""

    def __init__(self, index, text):
        super().__init__(text)
        self.index = index


class Ours:
    """memtape's run: the values right after each call, gradients, saved bytes."""

    def __init__(self, trace, m):
        self.trace, self.m = trace, m
        self.alive, self.values, self.strides, self.gradients = {}, {}, {}, {}

    def forward(self):
        graph, m, alive = self.trace.graph, self.m, self.alive
        for leaf in graph.leaves:
            t = alive[leaf.name] = m.tensor(leaf.data)
            if leaf.trainable:
                t.requires_grad_()
            if leaf.parameter:
                m.check(m.mt_set_category(t.pointer, memtape.PARAMETER))
        with memtape.Ledger(m) as ledger:
            last_uses = graph.last_uses()
            for i, (node, (ours, _)) in enumerate(zip(graph.nodes, self.trace.lines)):
                try:
                    made = evaluate(ours, m, alive)
                except memtape.MemtapeError as error:
                    raise Refused(i, str(error)) if node.op.inplace else error
                alive.update(zip(node.outputs, made))
                for name in node.outputs:
                    self.values[name] = alive[name].torch()
                    self.strides[name] = alive[name].strides
                del made
                for name in last_uses[i]:
                    del alive[name]
        self.saved_bytes = ledger.bytes

    def backward(self):
        roots = self.trace.graph.roots
        for i, (root, gradient) in enumerate(roots):
            self.alive[root].backward(self.alive[gradient], i + 1 < len(roots))
        for leaf in self.trace.graph.leaves:
            if leaf.trainable:
                g = self.alive[leaf.name].grad
                self.gradients[leaf.name] = g and g.torch()


# ---- refusals of ops in place ----

def is_kept(trace, ours, index, m):
    """Whether some backward in memtape needs the tensor that node `index` changes. It is the same as in
    PyTorch, except for the rows of differences.py."""
    theirs = TheirRun(trace, m, ours.strides)
    theirs.forward(index)
    x = theirs.values[trace.graph.nodes[index].inputs[0]]
    return address(x) in theirs.expected.counted()[0]


def shares_storage(trace, index):
    """Whether another tensor that is still used shares the storage of node `index`'s operand: memtape then
    refuses to work in place, and PyTorch does not."""
    graph = trace.graph
    x = trace.exact.values[graph.nodes[index].inputs[0]]
    gone = {name for names in graph.last_uses()[:index] for name in names}
    made = [name for node in graph.nodes[:index] for name in node.outputs]
    names = [n for n in (*made, *(leaf.name for leaf in graph.leaves)) if n not in gone]
    return sum(address(trace.exact.values[n]) == address(x) for n in names) > 1


def wrong_refusal(trace, refused, m, ours):
    """refused: (index of the node that memtape refused, why), or None."""
    if refused:
        index, text = refused
        if not is_kept(trace, ours, index, m) and not shares_storage(trace, index):
            yield Fault("refusal", f"PyTorch allows what memtape refuses: {text}")
        return
    for i, node in enumerate(trace.graph.nodes):
        if node.op.inplace and is_kept(trace, ours, i, m):
            yield Fault("refusal", f"memtape allows what PyTorch refuses: {trace.refusal}")


# ---- the comparison ----

def far(ours, exact, room):
    if tuple(ours.shape) != tuple(exact.shape):
        return f"{list(ours.shape)}, not {list(exact.shape)}"
    error = (ours.double() - exact).abs().max().item()
    return "" if error <= room else f"off by {error:.3g}, rounding allows {room:.3g}"


def wrong_values(trace, ours, theirs):
    for node in trace.graph.nodes:
        for name in node.outputs:
            t = ours.values[name]
            if (t.shape, t.dtype) != (theirs[name].shape, theirs[name].dtype):
                yield Fault("value", f"{name} of {node.op.name} is {t.dtype}{list(t.shape)}, not "
                                     f"{theirs[name].dtype}{list(theirs[name].shape)}")
                continue
            text = far(t, *trace.expected(name))
            if text:
                yield Fault("value", f"{name} of {node.op.name} {text}")


def wrong_gradients(trace, ours):
    for name, g in ours.gradients.items():
        exact = trace.exact.values[name].grad
        if g is None or exact is None:
            if g is not exact:
                yield Fault("gradient", f"of {name}: {'memtape' if g is None else 'PyTorch'} "
                                        "has none")
            continue
        text = far(g, exact, trace.gradient_room(name))
        if text:
            yield Fault("gradient", f"of {name} {text}")


@dataclass
class Outcome:
    faults: list
    refused: bool = False  # an op was refused in place: nothing else is compared
    rows: frozenset = frozenset()  # the rows of differences.py that applied


def compare_run(trace, ours, m):
    refused = None
    try:
        ours.forward()
        if not trace.refusal:
            ours.backward()
    except Refused as error:
        refused = error.index, str(error)  # the exception itself would keep tensors alive
    except memtape.MemtapeError as error:
        return Outcome([Fault("error", str(error))])
    if refused or trace.refusal:
        return Outcome(list(wrong_refusal(trace, refused, m, ours)), refused=True)
    theirs = TheirRun(trace, m, ours.strides)
    theirs.forward()
    expected = theirs.expected
    found = [*wrong_values(trace, ours, theirs.values), *wrong_gradients(trace, ours)]
    if ours.saved_bytes != expected.bytes:
        rows = ", ".join(sorted(expected.rows)) or "no differences"
        found.append(Fault("saved bytes", f"{ours.saved_bytes}, not {expected.bytes} (PyTorch's "
                                          f"with {rows})"))
    return Outcome(found, rows=frozenset(expected.rows))


def compare(trace, m):
    """Compares a traced graph in memtape and in PyTorch. NotImplementedError if PyTorch lacks an op."""
    before = m.requested_bytes()
    ours = Ours(trace, m)
    outcome = compare_run(trace, ours, m)
    ours.alive = {}
    after = m.requested_bytes()
    if after != before:
        outcome.faults.append(Fault("leak", f"{after - before} bytes are still allocated"))
    return outcome
