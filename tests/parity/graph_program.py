"""A random graph as data: leaves, calls of ops, roots; and the program that it is printed as.

A call is a text for memtape and one for PyTorch; the printed text is the text that was run."""

from dataclasses import dataclass, field, replace
from typing import Any

import torch


@dataclass(frozen=True)
class Leaf:
    name: str
    data: torch.Tensor       # dense, in the leaf's dtype: the values on both sides
    trainable: bool = False  # requires grad
    parameter: bool = False  # its storage is not counted among the saved bytes


@dataclass(frozen=True)
class Node:
    op: Any           # a class of graph_ops
    inputs: tuple     # names
    parameters: dict
    outputs: tuple    # names

    def reading(self, names):
        """The same call with other inputs: {old name: new name}."""
        return replace(self, inputs=tuple(names.get(i, i) for i in self.inputs))


@dataclass
class Graph:
    leaves: list = field(default_factory=list)
    nodes: list = field(default_factory=list)
    roots: list = field(default_factory=list)  # (name, name of the gradient it starts from)

    def needed(self):
        """The graph without nodes and leaves that no root depends on."""
        wanted = {name for root in self.roots for name in root}
        nodes = []
        for node in reversed(self.nodes):
            if wanted.intersection(node.outputs):
                wanted.update(node.inputs)
                nodes.append(node)
        return Graph([leaf for leaf in self.leaves if leaf.name in wanted], nodes[::-1], self.roots)

    def last_uses(self):
        """For each node, the names that nothing reads after it."""
        last = {name: i for i, node in enumerate(self.nodes)
                for name in (*node.outputs, *node.inputs)}
        for leaf in self.leaves:
            if leaf.trainable:  # its gradient is read at the end
                last.pop(leaf.name, None)
        for name in (name for root in self.roots for name in root):
            last.pop(name, None)
        return [[name for name in last if last[name] == i] for i in range(len(self.nodes))]


@dataclass(frozen=True)
class Value:
    """The properties of an operand that the text of a call may use."""
    name: str
    shape: tuple
    dtype: torch.dtype

    def __str__(self):
        return self.name

    @property
    def rank(self):
        return len(self.shape)


# ---- printing ----

HEAD = """\
# In tests/parity: python3 THIS libmemtape-cases.so
import sys
from graph_ops import *
from harness import SavedTensors

m = memtape.Library(sys.argv[1])"""


def assignment(node, text):
    return f"    {', '.join(node.outputs)} = {text}"


def program(graph, lines):
    """lines: (memtape's text, PyTorch's text) of each node."""
    trained = [leaf.name for leaf in graph.leaves if leaf.trainable]
    parameters = [leaf.name for leaf in graph.leaves if leaf.parameter]
    text = [HEAD, ""]
    for leaf in graph.leaves:
        text.append(f"{leaf.name}_data = torch.tensor({leaf.data.tolist()}, "
                    f"dtype={leaf.data.dtype})")
    text += ["", "# memtape"]
    text += [f"{leaf.name} = m.tensor({leaf.name}_data)" for leaf in graph.leaves]
    text += [f"{name}.requires_grad_()" for name in trained]
    text += [f"m.mt_set_category({name}.pointer, memtape.PARAMETER)" for name in parameters]
    text.append("with memtape.Ledger(m) as ledger:" + " pass" * (not graph.nodes))
    for node, (ours, _), dead in zip(graph.nodes, lines, graph.last_uses()):
        text.append(assignment(node, ours))
        if dead:
            text.append(f"    del {', '.join(dead)}")
    for i, (root, gradient) in enumerate(graph.roots):
        retain = ", True" if i + 1 < len(graph.roots) else ""
        text.append(f"{root}.backward({gradient}{retain})")
    text.append('print("memtape saves", ledger.bytes)')
    text += [f'print("gradient of {name}", {name}.grad.torch())' for name in trained]
    text += ["", "# PyTorch"]
    text += [f"{leaf.name} = {leaf.name}_data.clone()" for leaf in graph.leaves]
    text += [f"{name}.requires_grad_()" for name in trained]
    text.append(f"with SavedTensors([{', '.join(parameters)}]) as saved:"
                + " pass" * (not graph.nodes))
    text += [assignment(node, theirs) for node, (_, theirs) in zip(graph.nodes, lines)]
    roots, gradients = (", ".join(names) for names in zip(*graph.roots))
    text.append(f"torch.autograd.backward([{roots}], [{gradients}])")
    text.append('print("PyTorch saves", saved.bytes)')
    text += [f'print("gradient of {name}", {name}.grad)' for name in trained]
    return "\n".join(text)
