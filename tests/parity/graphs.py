#!/usr/bin/env python3
"""graphs.py LIBMEMTAPE_CASES [--seed N] [--graphs N] [--only I]: random graphs in memtape and PyTorch.

Compares the values of every call, the gradients of every leaf and the saved bytes; and for ops in place, whether
both allow them. A failing graph is made small and printed as a program. Exit status 77 if PyTorch is not
installed."""

import argparse
import sys
from collections import Counter
from unittest import mock

try:
    import numpy  # noqa: F401
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import graph_ops
import memtape
from graph_compare import compare
from graph_draw import draw_graph
from graph_op import OPS
from graph_ops_plain import read_table
from graph_program import program
from graph_shrink import shrink
from graph_trace import Unsuitable, trace
from harness import Tally
from parity import SlightlyWrongGelu

SEED, GRAPHS = 9, 300  # of a run without arguments


def draw(seed, i, m):
    """Graph i of a seed, traced: the first drawn graph that is suitable."""
    for attempt in range(100):
        try:
            graph = draw_graph(f"{seed}/{i}/{attempt}", m)
            return graph, trace(graph, m)
        except Unsuitable:
            continue
    raise RuntimeError(f"seed {seed}, graph {i}: no suitable graph in 100 attempts")


def report(graph, kind, m):
    small = shrink(graph, kind, m)
    traced = trace(small, m)
    lines = [*map(str, compare(traced, m).faults), *program(small, traced.lines).splitlines()]
    print("\n".join("    " + line for line in lines))


def search(seed, indices, m, tally, verbose=False):
    """Compares these graphs. Returns the number of calls of each op, and the number of refused graphs."""
    calls, n_refused = Counter(), 0
    for i in indices:
        if verbose:
            print(f"graph {i}", flush=True)
        graph, traced = draw(seed, i, m)
        calls.update(node.op.name for node in graph.nodes)
        try:
            outcome = compare(traced, m)
        except NotImplementedError as error:  # PyTorch lacks some ops in f16
            print(f"skipped: seed {seed}, graph {i}: {str(error).splitlines()[0]}")
            tally.skipped += 1
            continue
        n_refused += outcome.refused
        tally.failed += bool(outcome.faults)
        tally.passed += not outcome.faults
        for fault in outcome.faults:
            print(f"FAILED: seed {seed}, graph {i}, {len(graph.nodes)} calls: {fault}")
        if outcome.faults:
            report(graph, outcome.faults[0].kind, m)
    return calls, n_refused


# ---- planted faults must be found, and their graphs made small ----

KEPT = []


def keep(y):
    KEPT.append(y)
    return y


def save_more(m, x):
    y = m.call("gelu", x)
    y.also = m.call("exp", m.call("affine", x, 1, 0))  # an extra op, which keeps its output
    return y


PLANTED = (  # what, the op, its texts for memtape and PyTorch, the kind of fault
    ("a wrong value", "gelu", 'm.call("gelu", {})', "F.gelu({}) * 1.0001", "value"),
    ("a wrong gradient", "gelu", 'm.call("gelu", {})', "SlightlyWrongGelu.apply({})", "gradient"),
    ("an extra save", "gelu", "save_more(m, {})", "F.gelu({})", "saved bytes"),
    ("a leak", "gelu", 'keep(m.call("gelu", {}))', "F.gelu({})", "leak"),
    ("a change in place of what is kept", "relu_inplace", 'm.call("relu", {})', "F.relu_({})",
     "refusal"),
)


# The graphs of planted faults are drawn of these alone. All ops would draw other graphs once there is a row more.
PLANTED_AMONG = """add affine cast cat clamp clone contiguous div dropout exp expand gelu gelu_tanh layer_norm leaky_relu
    leaky_relu_inplace linear log matmul max mean mul permute pow reciprocal relu relu_inplace reshape rms_norm sigmoid silu
    slice softmax split sqrt sub sum swiglu tanh where""".split()
LOOKED_AT, MOST_CALLS = 500, 4  # of graphs; of a small one: a tensor is made, kept, viewed and changed


def first_with(kind, op, m):
    """The first graph in which this op has a fault of this kind, and how many graphs that have the op were looked at."""
    n_with = 0
    for i in range(LOOKED_AT):
        graph, traced = draw(SEED, i, m)
        if any(node.op.name == op for node in graph.nodes):
            n_with += 1
            if any(fault.kind == kind for fault in compare(traced, m).faults):
                return graph, n_with
    return None, n_with


def not_found(what, op, kind, small, n_with):
    """What a planted fault that did not land says to whoever has changed an op, or what is drawn."""
    if small:
        return (f"{what} was planted in {op}, but its graph cannot be made smaller than {len(small.nodes)} calls; need at most "
                f"{MOST_CALLS}: {', '.join(node.op.name for node in small.nodes)}. Which of them can graph_shrink.py not take away?")
    return (f"{what} was planted in {op}, but in none of the {n_with} graphs with {op}, of {LOOKED_AT}, is it seen as a fault of kind "
            f"{kind!r}: is {op} in PLANTED_AMONG, and do these ops still make a graph in which the fault shows?")


def check_planted(m, tally):
    known = {"SlightlyWrongGelu": SlightlyWrongGelu, "save_more": save_more, "keep": keep}
    for what, op, ours, theirs, kind in PLANTED:
        text = lambda x: (ours.format(x), theirs.format(x))
        with mock.patch.multiple(graph_ops, create=True, **known), \
                mock.patch.object(OPS[op], "text", text), \
                mock.patch.dict(OPS, {name: OPS[name] for name in PLANTED_AMONG}, clear=True):
            graph, n_with = first_with(kind, op, m)
            small = graph and shrink(graph, kind, m)
        KEPT.clear()
        if small and len(small.nodes) <= MOST_CALLS:
            tally.passed += 1
        else:
            print("FAILED: " + not_found(what, op, kind, small, n_with))
            tally.failed += 1


def check_ops(m, calls, tally):
    """Every row of the op table must have been drawn."""
    lacking = [row for row in m.op_names() if not calls[row]]
    if lacking:
        print(f"FAILED: no graph has {', '.join(lacking)}")
    tally.failed += bool(lacking)
    tally.passed += not lacking


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--graphs", type=int, default=GRAPHS, metavar="N")
    parser.add_argument("--only", type=int, metavar="I", help="this graph of the seed")
    parser.add_argument("--verbose", action="store_true",
                        help="print each graph's number, so that the last one is the one that crashed")
    options = parser.parse_args()
    torch.set_num_threads(1)
    m = memtape.Library(options.library)
    m.check(m.mt_set_balance_check(m.device, True))
    read_table(m)
    tally = Tally()
    indices = range(options.graphs) if options.only is None else [options.only]
    calls, n_refused = search(options.seed, indices, m, tally, options.verbose)
    print(f"seed {options.seed}: {len(indices)} graphs of {calls.total()} calls, {n_refused} of "
          f"them refused; PyTorch {torch.__version__}")
    if options.only is None:
        check_ops(m, calls, tally)
        check_planted(m, tally)
    m.mt_device_release(m.device)
    print(tally.line())
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
