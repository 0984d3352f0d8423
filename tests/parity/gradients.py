#!/usr/bin/env python3
"""gradients.py LIBMEMTAPE_CASES: mt_gradients and mt_backward_from against torch.autograd.grad and backward on
random graphs: which inputs have a gradient, its values and dtype, which leaves may choose, and the order in which
hooks are called. Values are whole numbers, so everything must be equal. Exit status 77 without PyTorch."""

import ctypes
import random
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from memtape import BOOL, I, P

N_GRAPHS, LEAVES, TENSORS, WIDTH = 400, 3, 14, 3
HOOK = ctypes.CFUNCTYPE(P, P, P)


class GradientsOptions(ctypes.Structure):
    _fields_ = [("n_roots", I), ("roots", P), ("gradients", P), ("n_inputs", I), ("inputs", P),
                ("retain_graph", BOOL)]


class Pair:
    """A tensor of each library; a hook on both logs its number."""

    def __init__(self, ours, theirs):
        self.ours, self.theirs = ours, theirs

    def sum_in(self, dtype):
        """For a leaf: the dtype of its gradient."""
        library = self.ours.library
        library.check(library.mt_set_grad_dtype(self.ours.pointer, memtape.DTYPES.index(dtype)))
        self.theirs.grad_dtype = dtype

    def watch(self, number, logs):
        library, (our_log, their_log) = self.ours.library, logs

        def seen(_, grad):
            our_log.append(number)
            return library.mt_retain(grad)

        self.hook = HOOK(seen)
        assert library.dll.mt_add_grad_hook(P(self.ours.pointer), self.hook, None)
        self.theirs.register_hook(lambda grad: their_log.append(number))


def grow(library, draw, pairs, products):
    """products: how many more products are allowed, so that the numbers stay exact."""
    a, b = draw.choice(pairs), draw.choice(pairs)
    kind = draw.choice(["add", "sub", "mul", "relu", "affine"])
    if kind == "mul" and not products:
        kind = "add"
    elif kind == "mul":
        products.pop()
    if kind == "relu":
        return Pair(library.call("relu", a.ours), torch.relu(a.theirs))
    if kind == "affine":
        return Pair(library.call("affine", a.ours, -2.0, 0.0), a.theirs * -2)
    return Pair(library.call(kind, a.ours, b.ours), getattr(torch, kind)(a.theirs, b.theirs))


def build(library, draw, logs):
    pairs, products = [], [True] * 4
    for number in range(TENSORS):
        if number < LEAVES:
            values = torch.tensor([draw.randint(-3, 3) for _ in range(WIDTH)], dtype=torch.float64)
            pair = Pair(library.tensor(values).requires_grad_(), values.requires_grad_())
            pair.sum_in(draw.choice([torch.float64, torch.float32]))
        else:
            pair = grow(library, draw, pairs, products)
        pair.watch(number, logs)
        pairs.append(pair)
    return pairs


def pointers(tensors):
    return memtape.ints([t.pointer for t in tensors], P)


def same(ours, theirs):
    """Whether two tensors, or two Nones, are the same."""
    if ours is None or theirs is None:
        return ours is theirs
    return ours.dtype == theirs.dtype and torch.equal(ours.torch(), theirs)


def compare(library, draw):
    """Describes the first difference; "" if there is none."""
    logs = [], []
    pairs = build(library, draw, logs)
    roots, inputs = draw.choices(pairs[LEAVES:], k=draw.randint(1, 3)), draw.choices(pairs, k=draw.randint(1, 4))
    ones = torch.ones(WIDTH, dtype=torch.float64)
    start = [library.tensor(ones) for _ in roots]
    options = GradientsOptions(len(roots), ctypes.cast(pointers([r.ours for r in roots]), P),
                               ctypes.cast(pointers(start), P), len(inputs),
                               ctypes.cast(pointers([i.ours for i in inputs]), P), True)
    out = (P * len(inputs))()
    library.check(library.dll.mt_gradients(ctypes.byref(options), out))
    found = [memtape.Tensor(library, pointer) if pointer else None for pointer in out]
    wanted = torch.autograd.grad([r.theirs for r in roots], [i.theirs for i in inputs], [ones] * len(roots),
                                 retain_graph=True, allow_unused=True)
    if not all(map(same, found, wanted)):
        return "gradients of inputs"
    if any(p.ours.grad for p in pairs[:LEAVES]):
        return "a leaf has a gradient"
    # If no input depends on the roots, torch calls the hooks of a single root, but not those of several roots.
    if logs[0] != logs[1] and (len(roots) > 1 or any(found)):
        return f"hooks on the way to inputs: {logs[0]}, torch {logs[1]}"
    logs[0].clear(), logs[1].clear()
    library.check(library.dll.mt_backward_from(len(roots), pointers([r.ours for r in roots]), pointers(start), False))
    torch.autograd.backward([r.theirs for r in roots], [ones] * len(roots))
    if not all(same(p.ours.grad, p.theirs.grad) for p in pairs[:LEAVES]):
        return "gradients of leaves"
    return "" if logs[0] == logs[1] else f"hooks of a backward: {logs[0]}, torch {logs[1]}"


def main():
    library = memtape.Library(sys.argv[1])
    faults = 0
    for seed in range(N_GRAPHS):
        fault = compare(library, random.Random(seed))
        if fault:
            faults += 1
            print(f"graph {seed}: {fault}")
    print(f"{N_GRAPHS} graphs, {faults} different from PyTorch")
    sys.exit(faults > 0)


main()
