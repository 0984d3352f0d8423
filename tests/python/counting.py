"""Counts that know nothing of memtape: what autograd saves, by hooks, and which storages are alive, by a dispatch mode."""
import weakref

import torch
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode


def of_storages(tensors):
    """Bytes of the storages behind the tensors, each once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


class Saved:
    """with Saved(tensors that do not count) as saved: loss = ...; saved.bytes, saved.storages"""

    def __init__(self, *without):
        self.without = {t.untyped_storage()._cdata for t in without}
        self.kept = []

    def __enter__(self):
        def pack(t):
            box = [t.detach()]
            holder = Box(box)
            self.kept.append(weakref.ref(holder))
            return holder
        self.hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda holder: holder.box[0])
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)
        alive = [holder.box[0] for ref in self.kept for holder in [ref()] if holder is not None]
        found = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in alive}
        sizes = [n for identity, n in found.items() if n and identity not in self.without]
        self.bytes, self.storages = sum(sizes), len(sizes)


class Box:
    def __init__(self, box):
        self.box = box


class Live(TorchDispatchMode):
    """Bytes of the storages that operations made and that are alive; `begin` starts a phase, whose most is `peak`."""

    def __init__(self, *already):
        super().__init__()
        self.sizes, self.now, self.peak, self.host = {}, 0, 0, False
        for t in already:
            self.enter(t)

    def begin(self):
        self.peak = self.now

    def enter(self, t):
        storage = t.untyped_storage()
        identity, n = storage._cdata, storage.nbytes()
        if identity in self.sizes or not n:
            return
        self.sizes[identity] = n
        self.now += n
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.leave, identity)

    def leave(self, identity):
        self.now -= self.sizes.pop(identity)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        given = [t for t in _pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        if self.host and not any(t.untyped_storage()._cdata in self.sizes for t in given):
            return out  # counts of steps, which CUDA's optimizers have in host memory
        for t in _pytree.tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self.enter(t)
        return out


def step_by_hand(model, batch, optimizer, loss, steps=2):
    """(saved bytes, [(peak, end) of forward, backward and step]) of the last of some steps, on the tensors' own device. A loss that is
    a module has weights, too."""
    tensors = [t for t in _pytree.tree_leaves(batch) if isinstance(t, torch.Tensor)]
    kept = [t for module in (model, loss) if isinstance(module, torch.nn.Module) for t in (*module.parameters(), *module.buffers())]
    live = Live(*kept, *tensors)
    for _ in range(steps):
        figures = []
        live.begin()
        with live, Saved(*kept) as saved:
            out = loss(model, batch)
        figures.append((live.peak, live.now))
        live.begin()
        with live:
            out.backward()
        del out
        figures.append((live.peak, live.now))
        live.begin()
        live.host = True
        with live:
            optimizer.step()
        live.host = False
        optimizer.zero_grad()
        figures.append((live.peak, live.now))
    return saved.bytes, figures


def of_report(report):
    """The same of a report."""
    return report["saved"]["bytes"], [(p["requested_peak"], p["requested"]) for p in report["steady"]["phases"]]


class Allocator:
    """with Allocator() as a: the most bytes that PyTorch's allocator for the CPU held beside those at the beginning, and those left
    at the end. It sees what kernels take within, too."""

    def __enter__(self):
        self.profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
        self.profile.__enter__()
        return self

    def __exit__(self, *error):
        self.profile.__exit__(*error)
        now, self.peak = 0, 0
        for event in sorted((e for e in self.profile.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
            now += event.nbytes()
            self.peak = max(self.peak, now)
        self.left = now
