"""Draws random graphs. Each node runs as soon as it is drawn: if its values are too large or at a kink, it is
discarded and drawn again."""

import random

import torch

from graph_op import OPS
from graph_program import Graph, Leaf, Node
from graph_trace import Trace, Unsuitable
from memtape import DTYPES

EXTENTS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 8, 17)


class Drawing:
    """A graph that is being drawn, and the random choices that its ops make."""

    def __init__(self, seed, m):
        self.random = random.Random(seed)
        self.torch = torch.Generator().manual_seed(self.random.randrange(2 ** 31))
        self.graph = Graph()
        self.trace = Trace(self.graph, m, n_noisy=0)
        self.usable = []  # Values that an op may use
        self.n_names = 0
        self.dtypes = self.random.choices(DTYPES[:4], (4, 3, 1, 1), k=self.choice((1, 1, 2)))

    # ---- choices ----

    def choice(self, items):
        return self.random.choice(items)

    def chance(self, p):
        return self.random.random() < p

    def shuffled(self, items):
        items = list(items)
        self.random.shuffle(items)
        return items

    def extent(self):
        return self.choice(EXTENTS)

    def dtype(self):
        return self.choice(self.dtypes)

    def broadcast(self, shape):
        """A shape that broadcasts with `shape`: narrower, or wider where it has 1."""
        narrow = [self.extent() if n == 1 and self.chance(0.3) else n
                  for n in self.narrower(shape)]
        wider = len(narrow) == len(shape) < 3 and self.chance(0.2)
        return (self.extent(), *narrow) if wider else tuple(narrow)

    def narrower(self, shape):
        """A shape that broadcasts to `shape`."""
        if self.chance(0.4):
            return tuple(shape)
        kept = [1 if self.chance(0.3) else n for n in shape]
        return tuple(kept[self.random.randint(0, len(kept)):] if self.chance(0.4) else kept)

    # ---- operands ----

    def name(self):
        self.n_names += 1
        return f"t{self.n_names}"

    def add_leaf(self, data, **more):
        leaf = Leaf(self.name(), data, **more)
        self.graph.leaves.append(leaf)
        self.trace.add_leaf(leaf)
        return self.trace.shown[leaf.name]

    def leaf(self, shape, dtype, frozen=None):
        low, high = self.choice(((-2, 2), (-2, 2), (0.5, 2)))
        data = torch.rand(tuple(shape), generator=self.torch, dtype=torch.float64)
        trainable = self.chance(0.75) if frozen is None else not frozen
        x = self.add_leaf((data * (high - low) + low).to(dtype), trainable=trainable,
                          parameter=self.chance(0.25))
        if frozen is None:
            self.usable.append(x)
        return x

    def index(self, shape, below):
        return self.add_leaf(torch.randint(below, tuple(shape), generator=self.torch))

    def mask(self, shape):
        return self.add_leaf(torch.rand(tuple(shape), generator=self.torch) < 0.5)

    def value(self, rank=0):
        """A value of at least this rank; recent ones are more likely."""
        fitting = [x for x in self.usable if x.rank >= rank]
        if not fitting or self.chance(0.08):
            shape = [self.extent() for _ in range(self.random.randint(max(rank, 1), 4))]
            return self.leaf(shape, self.dtype())
        return fitting[-1] if self.chance(0.4) else self.choice(fitting)

    def made(self):
        """A value for an op in place, usually the last one, which nothing has read. None if a result may have
        another order of dimensions in PyTorch, because then the two may disagree on shared storages."""
        for node in self.graph.nodes:
            results = [self.trace.exact.values[name] for name in node.outputs]
            if not node.op.row_major or not node.op.view and not results[0].is_contiguous():
                return None
        leaves = {leaf.name for leaf in self.graph.leaves}
        made = [x for x in self.usable if x.name not in leaves]
        return made and (made[-1] if self.chance(0.7) else self.choice(made))

    def operand(self, shape, dtype, frozen=None):
        """An operand of this shape and dtype: an existing value, or a view of a new leaf in some layout."""
        shape = tuple(shape)
        there = [x for x in self.usable if x.shape == shape and x.dtype == dtype]
        if there and frozen is None and self.chance(0.5):
            return self.choice(there)
        return self.choice((self.dense, self.dense, self.permuted, self.sliced, self.expanded,
                            self.merged, self.casted))(shape, dtype, frozen)

    def dense(self, shape, dtype, frozen):
        return self.leaf(shape, dtype, frozen)

    def permuted(self, shape, dtype, frozen):
        order = self.shuffled(range(len(shape)))
        back = [order.index(d) for d in range(len(shape))]
        leaf = self.leaf([shape[d] for d in back], dtype, frozen)
        return self.call("permute", [leaf], {"order": order})

    def sliced(self, shape, dtype, frozen):
        if not shape:
            return self.dense(shape, dtype, frozen)
        dim, before, after = (self.random.randrange(len(shape)), self.random.randint(0, 2),
                              self.random.randint(0, 2))
        wide = [n + (before + after) * (d == dim) for d, n in enumerate(shape)]
        return self.call("slice", [self.leaf(wide, dtype, frozen)],
                         {"dim": dim, "before": before, "after": after})

    def expanded(self, shape, dtype, frozen):
        lead = self.random.randint(0, min(1, len(shape)))
        narrow = [1 if self.chance(0.5) else n for n in shape[lead:]]
        return self.call("expand", [self.leaf(narrow, dtype, frozen)],
                         {"lead": list(shape[:lead]), "to": list(shape[lead:])})

    def merged(self, shape, dtype, frozen):
        two = [d for d, n in enumerate(shape) if n in (4, 6, 8)]
        if not two:
            return self.dense(shape, dtype, frozen)
        dim = self.choice(two)
        leaf = self.leaf((*shape[:dim], 2, shape[dim] // 2, *shape[dim + 1:]), dtype, frozen)
        return self.call("reshape", [leaf], {"how": "merge", "dim": dim})

    def casted(self, shape, dtype, frozen):
        leaf = self.leaf(shape, self.choice([d for d in self.dtypes if d != dtype] or DTYPES[:1]),
                         frozen)
        return leaf if leaf.dtype == dtype else self.call("cast", [leaf], {"to": dtype})

    # ---- nodes ----

    def call(self, name, operands, parameters):
        """Adds a node; returns its first result."""
        op = OPS[name]
        outputs = tuple(self.name() for _ in range(op.outputs(**parameters)))
        node = Node(op, tuple(x.name for x in operands), parameters, outputs)
        self.trace.add_node(node)
        self.graph.nodes.append(node)
        self.usable += [self.trace.shown[name] for name in outputs]
        if op.inplace:
            self.usable.remove(operands[0])
        return self.usable[-len(outputs)]

    def attempt(self, name):
        """Adds a call of an op, unless it is unsuitable."""
        graph, usable = self.graph, list(self.usable)
        n_leaves, n_nodes = len(graph.leaves), len(graph.nodes)
        try:
            drawn = OPS[name].draw(self)
            if drawn:
                self.call(name, *drawn)
                return
        except Unsuitable:
            pass
        self.usable = usable
        del graph.leaves[n_leaves:], graph.nodes[n_nodes:], self.trace.lines[n_nodes:]

    def sinks(self):
        """The values that no node reads and that require grad."""
        read = {name for node in self.graph.nodes for name in node.inputs}
        leaves = {leaf.name for leaf in self.graph.leaves}
        return [x for x in self.trace.shown.values() if x.name not in read | leaves
                and self.trace.exact.values[x.name].requires_grad
                and any(x.name in node.outputs for node in self.graph.nodes)]

    def join(self):
        """Reduces each sink to a scalar by sums and means, some of them with weights, and adds the scalars."""
        total = None
        for x in self.sinks():
            if x.rank and self.chance(0.4):
                x = self.call("mul", [x, self.operand(x.shape, x.dtype)], {})
            while x.rank:
                dims = [d for d in range(x.rank) if self.chance(0.6)]
                x = self.call(self.choice(("sum", "mean")), [x], {"dims": dims or [0],
                                                                  "keep": False})
                if x.rank and self.chance(0.4):
                    x = self.call("mul", [x, self.operand(x.shape, x.dtype)], {})
            if total and x.dtype != total.dtype:
                x = self.call("cast", [x], {"to": total.dtype})
            total = self.call("add", [total, x], {}) if total else x


def draw_graph(seed, m):
    """A graph, or Unsuitable."""
    g = Drawing(seed, m)
    names, weights = zip(*((name, op.weight) for name, op in OPS.items()))
    for _ in range(g.random.randint(3, 16)):
        g.attempt(g.random.choices(names, weights)[0])
    if g.chance(0.5):
        g.join()
    sinks = g.sinks()
    if not sinks:
        raise Unsuitable("nothing to differentiate")
    g.graph.roots = [(x.name, g.operand(x.shape, x.dtype, frozen=True).name) for x in sinks]
    return g.graph.needed()
