"""Makes a failing graph small: tries smaller ones, continues with each that fails in the same way, and stops if
none does."""

from dataclasses import replace

import torch

from graph_compare import compare
from graph_program import Graph, Leaf
from graph_trace import Unsuitable, trace

MOST_TRIALS = 2000


# ---- smaller graphs; each function takes a graph and its trace ----

def fewer_roots(graph, traced):
    for root in graph.roots if len(graph.roots) > 1 else ():
        yield Graph(graph.leaves, graph.nodes, [root])
    for root in graph.roots if len(graph.roots) > 1 else ():
        yield Graph(graph.leaves, graph.nodes, [r for r in graph.roots if r != root])


def gradient_of(name, traced):
    """A dense leaf with different elements, as the gradient of the root `name`."""
    shown = traced.shown[name]
    n = max(1, int(torch.Size(shown.shape).numel()))
    data = torch.arange(1, n + 1, dtype=torch.float64).reshape(shown.shape)
    return Leaf(f"d{name}", data.to(shown.dtype))


def roots_earlier(graph, traced):
    """Replaces a root by an operand of its node, or by all of them."""
    for i, (root, _) in enumerate(graph.roots):
        for node in graph.nodes:
            if root not in node.outputs:
                continue
            inputs = [name for name in dict.fromkeys(node.inputs)
                      if traced.exact.values[name].requires_grad
                      and name not in [leaf.name for leaf in graph.leaves]]
            for names in [[name] for name in inputs] + [inputs] * (len(inputs) > 1):
                leaves = [gradient_of(name, traced) for name in names]
                others = [x for x in graph.leaves if x.name not in [leaf.name for leaf in leaves]]
                yield Graph(others + leaves, graph.nodes,
                            [r for r in graph.roots[:i] if r[0] not in names]
                            + [(name, leaf.name) for name, leaf in zip(names, leaves)]
                            + [r for r in graph.roots[i + 1:] if r[0] not in names])


def dense_gradients(graph, traced):
    for i, (root, gradient) in enumerate(graph.roots):
        leaf = gradient_of(root, traced)
        if gradient != leaf.name:
            yield Graph([x for x in graph.leaves if x.name != leaf.name] + [leaf], graph.nodes,
                        graph.roots[:i] + [(root, leaf.name)] + graph.roots[i + 1:])


def without_a_node(graph, traced):
    """Replaces a result by an operand of the same shape and dtype, or by a leaf with its values."""
    for node in reversed(graph.nodes):
        for output in node.outputs:
            shown = traced.shown[output]
            for name in node.inputs:
                other = traced.shown[name]
                if (other.shape, other.dtype) == (shown.shape, shown.dtype):
                    yield renamed(graph, output, name)
            value = traced.exact.values[output]
            leaf = Leaf(output, value.detach().to(shown.dtype).contiguous(), value.requires_grad)
            if len(node.outputs) == 1:
                yield Graph(graph.leaves + [leaf], [n for n in graph.nodes if n is not node],
                            graph.roots)


def renamed(graph, old, new):
    nodes = [node if old in node.outputs else node.reading({old: new}) for node in graph.nodes]
    return Graph(graph.leaves, nodes, [tuple(new if n == old else n for n in root)
                                       for root in graph.roots])


def simpler_leaves(graph, traced):
    for i, leaf in enumerate(graph.leaves):
        def instead(**changes):
            return Graph(graph.leaves[:i] + [replace(leaf, **changes)] + graph.leaves[i + 1:],
                         graph.nodes, graph.roots)
        if leaf.parameter:
            yield instead(parameter=False)
        if leaf.trainable:
            yield instead(trainable=False)
        if leaf.data.is_floating_point():
            n = leaf.data.numel()
            for simple in (torch.arange(1, n + 1), (leaf.data.double() * 4).round() / 4):
                simple = simple.reshape(leaf.data.shape).to(leaf.data.dtype)
                if not torch.equal(simple, leaf.data):
                    yield instead(data=simple)


def one_dtype(graph, traced):
    """Uses f32 everywhere, without casts; or f64."""
    dtypes = {leaf.data.dtype for leaf in graph.leaves if leaf.data.is_floating_point()}
    for dtype in (torch.float32, torch.float64):
        if dtypes == {dtype}:
            return
        simpler = Graph([replace(leaf, data=leaf.data.to(dtype))
                         if leaf.data.is_floating_point() else leaf for leaf in graph.leaves],
                        [node for node in graph.nodes if node.op.name != "cast"], graph.roots)
        for node in reversed(graph.nodes):
            if node.op.name == "cast":
                simpler = renamed(simpler, node.outputs[0], node.inputs[0])
        yield simpler


def smaller_extents(graph, traced):
    """Replaces every extent n by a smaller one, in all leaves and parameters at once."""
    extents = {n for value in traced.shown.values() for n in value.shape if n > 1}
    for n in sorted(extents, reverse=True):
        for less in sorted({1, 2, n // 2, n - 1} - {n, 0}):
            yield resized(graph, n, less)
    for i, leaf in enumerate(graph.leaves):  # and in one leaf only
        for dim, n in enumerate(leaf.data.shape):
            if n > 1:
                data = leaf.data.narrow(dim, 0, 1).contiguous()
                yield Graph(graph.leaves[:i] + [replace(leaf, data=data)] + graph.leaves[i + 1:],
                            graph.nodes, graph.roots)


EXTENTS = {("expand", "lead"), ("expand", "to"), ("split", "sizes")}  # parameters of ops


def resized(graph, n, less):
    def shrunk(data):
        for dim, extent in enumerate(data.shape):
            if extent == n:
                data = data.narrow(dim, 0, less)
        return data.clone(memory_format=torch.contiguous_format)

    def parameters(node):
        return {key: [less if v == n else v for v in value]
                if (node.op.name, key) in EXTENTS else value
                for key, value in node.parameters.items()}
    return Graph([replace(leaf, data=shrunk(leaf.data)) for leaf in graph.leaves],
                 [replace(node, parameters=parameters(node)) for node in graph.nodes], graph.roots)


def smaller_cuts(graph, traced):
    for i, node in enumerate(graph.nodes):
        for key in ("before", "after"):
            if node.parameters.get(key):
                fewer = {**node.parameters, key: node.parameters[key] - 1}
                yield Graph(graph.leaves, graph.nodes[:i] + [replace(node, parameters=fewer)]
                            + graph.nodes[i + 1:], graph.roots)


WAYS = (fewer_roots, roots_earlier, without_a_node, smaller_extents, one_dtype, simpler_leaves,
        dense_gradients, smaller_cuts)


def shrink(graph, kind, m):
    """The smallest graph that was found with a fault of this kind."""
    n_trials = 0

    def fails(candidate):
        nonlocal n_trials
        n_trials += 1
        try:
            return any(f.kind == kind for f in compare(trace(candidate, m), m).faults)
        except (Unsuitable, NotImplementedError):
            return False

    def next_one():
        traced = trace(graph, m)
        for way in WAYS:
            for candidate in way(graph, traced):
                candidate = candidate.needed()
                if n_trials >= MOST_TRIALS:
                    return None
                if fails(candidate):
                    return candidate
        return None

    while (smaller := next_one()) is not None:
        graph = smaller
    return graph
