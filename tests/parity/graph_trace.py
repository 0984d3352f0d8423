"""A graph's values and gradients in f64, computed by PyTorch, and their largest rounding errors.

In addition to the exact run there are noisy ones. These change every operand of an op, every tensor saved for
backward and every gradient at random, by about one rounding in its dtype: each element separately, and all
together, as an error in a row's sum would. The distance of the noisy runs from the exact one shows how the
roundings of this graph add up and amplify each other (Monte Carlo arithmetic). A correct result is within
FACTOR times that distance."""

import functools
import math
import random
import re
from dataclasses import replace

import torch

import graph_ops
from graph_program import Value

N_NOISY = 3
FACTOR = 24           # times the root mean square of the noise's effect
DRAWN_ROOM = 64       # roundings, used while a graph is drawn and there are no noisy runs
LARGEST = 1e3         # largest value or gradient; f16 ends at 6e4
MOST_ELEMENTS = 4000  # of a value


class Unsuitable(Exception):
    """The graph, or its next node, cannot be compared; the text says why."""


@functools.lru_cache(maxsize=100_000)
def compiled(text):
    return compile(text, text, "eval")


def in_f64(text):
    return re.sub(r"torch\.(float32|bfloat16|float16)", "torch.float64", text)


def evaluate(text, m, values):
    """Runs a node's text; returns the list of its results."""
    result = eval(compiled(text), vars(graph_ops), {**values, "m": m})
    return result if isinstance(result, (list, tuple)) else [result]


def largest(t):
    return torch.linalg.vector_norm(t, math.inf).item()


def step(t, dtype):
    """One rounding of t's largest element."""
    info = torch.finfo(dtype)
    return info.eps * largest(t.detach()) + info.smallest_normal * info.eps


class Run:
    """One run in f64: the exact one, or a noisy one if there is a seed."""

    def __init__(self, m, seed=None):
        self.m, self.values = m, {}
        self.noise = seed and torch.Generator().manual_seed(seed)
        self.random = random.Random(seed)

    def moved(self, t, dtype):
        if not t.is_floating_point():
            return t
        most = step(t, dtype)
        each = torch.empty_like(t).uniform_(-most, most, generator=self.noise)
        return t + each + self.random.uniform(-most, most)

    def moved_both_ways(self, t, dtype):
        """t with noise, and with noise for the gradient that flows through it."""
        t = self.moved(t, dtype)
        if t.requires_grad:
            t.register_hook(lambda gradient: self.moved(gradient, dtype))
        return t

    def add_leaf(self, leaf):
        t = leaf.data.double() if leaf.data.is_floating_point() else leaf.data
        self.values[leaf.name] = t.detach().clone().requires_grad_(leaf.trainable)

    def add_node(self, node, operands, dtype):
        if not self.noise or node.op.view or node.op.inplace:
            _, text = node.op.text(*operands, **node.parameters)
            results = evaluate(in_f64(text), self.m, self.values)
        else:
            # Each use of an operand has its own gradient and its own noise.
            apart = [replace(x, name=f"{x.name}_{i}") for i, x in enumerate(operands)]
            noisy = {a.name: self.moved_both_ways(self.values[x.name], x.dtype)
                     for a, x in zip(apart, operands)}
            _, text = node.op.text(*apart, **node.parameters)
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t,
                                                          lambda t: self.moved(t, dtype)):
                results = evaluate(in_f64(text), self.m, noisy)
        self.values.update(zip(node.outputs, results))


class Trace:
    """A graph that is being run. If add_leaf or add_node raises Unsuitable, nothing has changed."""

    def __init__(self, graph, m, n_noisy=N_NOISY):
        self.graph = graph
        self.shown = {}         # name: Value
        self.before = {}        # name: (value, room) before a change in place
        self.lines = []         # (memtape's text, PyTorch's) of each node
        self.most_elements = 1  # of any value
        self.exact = Run(m)
        self.noisy = [Run(m, seed) for seed in range(1, n_noisy + 1)]
        self.runs = [self.exact, *self.noisy]

    def add_leaf(self, leaf):
        self.shown[leaf.name] = Value(leaf.name, tuple(leaf.data.shape), leaf.data.dtype)
        self.most_elements = max(self.most_elements, leaf.data.numel())
        for run in self.runs:
            run.add_leaf(leaf)

    def add_node(self, node):
        operands = [self.shown[name] for name in node.inputs]
        tensors = [self.exact.values[name].detach() for name in node.inputs]
        try:
            ours, theirs = node.op.text(*operands, **node.parameters)
            suits = node.op.suits(tensors, lambda i: self.room(node.inputs[i]), **node.parameters)
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError) as error:
            raise Unsuitable(f"{node.op.name}: {error}") from None
        if not suits:
            raise Unsuitable(f"{node.op.name}: at a kink or a pole")
        if node.op.inplace:
            self.keep_values()
        dtype = node.op.dtype(operands, **node.parameters)
        for run in self.runs:
            try:
                run.add_node(node, operands, dtype)
            except (RuntimeError, IndexError, ValueError) as error:
                raise Unsuitable(f"{theirs}: {error}") from None
        for name in node.outputs:
            t = self.exact.values[name].detach()
            if not 0 < t.numel() <= MOST_ELEMENTS or t.dim() > 6:
                raise Unsuitable(f"{theirs}: {list(t.shape)}")
            if not t.abs().max() <= LARGEST:
                raise Unsuitable(f"{theirs}: too large")
            self.shown[name] = Value(name, tuple(t.shape), dtype)
            self.most_elements = max(self.most_elements, t.numel())
        self.lines.append((ours, theirs))

    def keep_values(self):
        for name in self.shown:
            if name not in self.before:
                self.before[name] = self.exact.values[name].detach().clone(), self.room(name)

    def expected(self, name):
        """(the value right after its call, its largest rounding error)"""
        return self.before.get(name) or (self.exact.values[name].detach(), self.room(name))

    def run_backward(self):
        """Runs PyTorch's backward. Then leaves have gradients, or self.refusal names the change in place that
        prevents it."""
        self.refusal = ""
        roots, gradients = zip(*self.graph.roots)
        for run in self.runs:
            try:
                started = [run.values[g].detach() for g in gradients]
                if run.noise:
                    started = [run.moved(t, self.shown[g].dtype)
                               for t, g in zip(started, gradients)]
                torch.autograd.backward([run.values[r] for r in roots], started)
            except RuntimeError as error:
                if "inplace" not in str(error):
                    raise Unsuitable(str(error)) from None
                self.refusal = str(error).splitlines()[0]
                return
        for leaf in self.graph.leaves:
            g = self.exact.values[leaf.name].grad
            if g is not None and not g.abs().max() <= LARGEST:
                raise Unsuitable(f"gradient of {leaf.name}: too large")

    def spread(self, name, of):
        """The largest rounding error of a value or a gradient: the noise's effect, but at least two roundings;
        plus half a rounding for every term of a sum, because equal terms round in the same direction. 16-bit
        sums are made in f32."""
        exact, dtype = of(self.exact.values[name]), self.shown[name].dtype
        if not exact.is_floating_point():
            return 0.0
        if not self.noisy:
            return DRAWN_ROOM * step(exact, dtype)
        n_terms = self.most_elements / exact.numel()
        far = [largest(of(run.values[name]) - exact) for run in self.noisy]
        return (FACTOR * math.hypot(*far) / len(far) ** 0.5 + 2 * step(exact, dtype)
                + n_terms / 2 * step(exact, torch.promote_types(dtype, torch.float32)))

    def room(self, name):
        return self.spread(name, lambda t: t.detach())

    def gradient_room(self, name):
        return self.spread(name, lambda t: t.grad)


def trace(graph, m):
    """Runs the whole graph forward and backward; raises Unsuitable."""
    t = Trace(graph, m)
    for leaf in graph.leaves:
        t.add_leaf(leaf)
    for node in graph.nodes:
        t.add_node(node)
    t.run_backward()
    return t
