"""torch_modules.py: the modules of torch_zoo.py, as the step `modules` has them: a JSON object per line.

    torch_modules.py predict SIZE UNTIL NAME...         what memtape.torch.profile says of each, from the CPU
    torch_modules.py measure DEVICE SIZE UNTIL NAME...  what the steps take on the device, by PyTorch's own counters; "watch" is
                                                        a loop within memtape.torch.watch, and one that runs out of memory

SIZE: real or toy. No module is begun once the machine's monotonic clock says UNTIL. On the CPU the steps run, and their bytes cannot
be read."""

import collections
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback

import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import memtape.torch
from torch_zoo import SET_UPS


def say(**row):
    print(json.dumps(row), flush=True)


def each(names, until, one):
    """Says what one(name) finds of each, or why it failed."""
    for name in names:
        if time.monotonic() > until:
            say(name=name, failed="no time left")
            continue
        began = time.monotonic()
        try:
            found = one(name)
        except Exception as failure:  # pylint: disable=broad-exception-caught
            traceback.print_exc()
            found = {"failed": f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}"}
        say(name=name, seconds=round(time.monotonic() - began, 2), **found)


def optimizer_of(set_up, model):
    return set_up.optimizer(model.parameters(), **set_up.options)


def by_op(report):
    """Bytes kept for backward by the operations that keep them."""
    found = collections.Counter()
    for t in report["saved"]["tensors"]:
        found[t["op"]] += t["bytes"]
    return dict(found)


# ---- predicted ---------------------------------------------------------------------------------


def predicted(set_up, toy):
    model, batch, loss = set_up.make(toy)
    model.to(set_up.dtype)
    report = memtape.torch.profile(model, batch, optimizer_of(set_up, model), loss=loss, autocast=set_up.autocast)
    start = report["phases"][-1]
    return {"start": start["allocated"], "start_requested": start["requested"], "saved_by_op": by_op(report),
            "peak_at": f"{report['peak']['phase']} {report['peak']['op']}", "notes": report.notes,
            "phases": [{"name": p["name"], "end": p["allocated"], "peak": p["peak"], "end_requested": p["requested"],
                        "peak_requested": p["requested_peak"]} for p in report["steady"]["phases"]]}


# ---- measured ----------------------------------------------------------------------------------


def stats():
    """(allocated now, at the peak since the last reset, requested now, at the peak)"""
    torch.cuda.synchronize()
    all_of_them = torch.cuda.memory_stats()
    return tuple(all_of_them[f"{what}_bytes.all.{when}"] for what in ("allocated", "requested") for when in ("current", "peak"))


def now():
    """(allocated, its peak since the last reset); ten times as fast as stats, for use around each operation."""
    allocated = torch.cuda.memory_stats_as_nested_dict()["allocated_bytes"]["all"]
    return allocated["current"], allocated["peak"]


class Phases:
    """The allocator's figures at the end of each phase of a step, and the most in it."""

    def __init__(self, is_gpu):
        self.is_gpu, self.found = is_gpu, []
        if is_gpu:
            self.start, _, self.start_requested, _ = stats()
            torch.cuda.reset_peak_memory_stats()

    def end(self, name):
        if self.is_gpu:
            end, peak, end_requested, peak_requested = stats()
            self.found.append({"name": name, "end": end, "peak": peak, "end_requested": end_requested,
                               "peak_requested": peak_requested})
            torch.cuda.reset_peak_memory_stats()


class Within(TorchDispatchMode):
    """What kernels take and give back within an operation: cuDNN's workspaces, attention's partial sums. Of each phase the
    most that was allocated, and the most between operations."""

    def __init__(self):
        super().__init__()
        self.phases, self.ops = [], collections.Counter()
        self._most = self._between = now()[0]
        self._at = ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        before = now()[0]
        torch.cuda.reset_peak_memory_stats()
        out = func(*args, **(kwargs or {}))
        after, peak = now()
        name = func.__name__.split(".")[0].strip("_")
        self.ops[name] = max(self.ops[name], peak - max(before, after))
        self._between = max(self._between, before, after)
        if peak > self._most:
            self._most, self._at = peak, name
        return out

    def end(self, name):
        self.phases.append({"name": name, "within": self._most - self._between, "peak": self._most, "at": self._at})
        self._most = self._between = now()[0]
        self._at = ""

    def largest(self):
        return {op: n for op, n in self.ops.most_common(5) if n}


def one_step(model, batch, loss_of, optimizer, autocast, end=lambda name: None, kept=None, look=None):
    """A step as users write it, gradients set to None at its end. kept: a Ledger around forward; look(loss): called after it."""
    with kept or contextlib.nullcontext(), autocast():
        loss = loss_of(model, batch)
    if look:
        look(loss)
    end("forward")
    loss.backward()
    del loss
    end("backward")
    optimizer.step()
    optimizer.zero_grad()
    end("step")


def workspace_of_products(device):
    """What stays allocated after the first products forward and backward: cuBLAS's workspaces, one of each thread."""
    torch.cuda.init()
    before = torch.cuda.memory_allocated()
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.ones(64, 64, device=device, dtype=dtype, requires_grad=True)
        (F.linear(x, x, x[0]) @ x).sum().backward()
        torch.bmm(x[None], x[None]).sum().backward()
        del x
    torch.cuda.synchronize()
    gc.collect()
    return torch.cuda.memory_allocated() - before


RECURRENCES = [("LSTM", {}), ("GRU", {}), ("LSTM", {"layers": 3}), ("GRU", {"layers": 3}), ("LSTM", {"rows": 50}), ("LSTM", {"batch": 16}),
               ("LSTM", {"width": 256}), ("LSTM", {"directions": 2}), ("GRU", {"directions": 2}), ("LSTM", {"layers": 2, "dropout": 0.5}),
               ("LSTM", {"dtype": torch.bfloat16}), ("GRU", {"dtype": torch.bfloat16}), ("LSTM", {"width": 320, "layers": 4})]


def reserve_of(device, kind, rows=25, batch=8, width=128, layers=1, directions=1, dropout=0.0, dtype=torch.float32):
    """Bytes that cuDNN keeps of a recurrence, its rule being unpublished, and how many numbers that is for each unit, row and direction."""
    model = getattr(torch.nn, kind)(width, width, layers, dropout=dropout, bidirectional=directions > 1).to(device, dtype)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        out = model(torch.randn(rows, batch, width, device=device, dtype=dtype))
    n = sum(t.numel() for t in kept if t.dtype == torch.uint8)
    del out
    shape = f"rows={rows} batch={batch} width={width} layers={layers} directions={directions} dropout={dropout} {dtype}"
    return f"{kind} {shape}: {n:,} bytes, {n / (rows * batch * width * directions * dtype.itemsize):.4g} a unit"


def reserves(device):
    """Of several shapes; a failure is a row of it."""
    found = []
    for kind, shape in RECURRENCES:
        try:
            found.append(reserve_of(device, kind, **shape))
        except RuntimeError as failure:
            found.append(f"{kind} {shape}: {failure}")
    return found


def clean(is_gpu):
    gc.collect()
    if is_gpu:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()
    return 0


def measured(set_up, device, toy):
    """Three steps: the first makes the optimizer's state, and its saved tensors are told by operation; the second is measured; in
    the third each operation is."""
    is_gpu = device == "cuda"
    before = clean(is_gpu)
    found = steps_of(set_up, device, toy)
    if is_gpu:
        left = clean(is_gpu) - before
        found |= {"before": before, "left": left}
    return found


def steps_of(set_up, device, toy):
    is_gpu, found = device == "cuda", {}
    with torch.device(device):
        model, batch, loss_of = set_up.make(toy)
    model.to(set_up.dtype)
    optimizer = optimizer_of(set_up, model)
    kept = memtape.torch.Ledger(model, attention="device")

    def autocast():
        return torch.autocast(device, set_up.autocast) if set_up.autocast else contextlib.nullcontext()

    def look(loss):
        found["loss"] = loss.item()
        found["saved_by_op"] = by_op(kept.report(loss))

    one_step(model, batch, loss_of, optimizer, autocast, kept=kept, look=look)
    phases = Phases(is_gpu)
    one_step(model, batch, loss_of, optimizer, autocast, phases.end)
    if not is_gpu:
        return found
    found |= {"start": phases.start, "start_requested": phases.start_requested, "phases": phases.found}
    within = Within()
    with within:
        one_step(model, batch, loss_of, optimizer, autocast, within.end)
    return found | {"within": within.phases, "within_ops": within.largest()}


# ---- memtape.torch.watch -----------------------------------------------------------------------

ROOM = 0.8  # of what a step takes, for one that shall run out


def train(model, batch, optimizer, n):
    """A loop as users write it."""
    for _ in range(n):
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def watched(device, toy):
    """GPT-2 in a loop of three steps; then in one that has too little memory, with the snapshot of the instant."""
    is_gpu = device == "cuda"
    before = clean(is_gpu)
    with torch.device(device):
        model, batch, _ = SET_UPS["gpt2"].make(toy)
    optimizer = torch.optim.AdamW(model.parameters())
    with memtape.torch.watch(model, optimizer, snapshot=None) as w:
        train(model, batch, optimizer, 3)
    found = {"watch": [(s.measured, s.predicted) for s in w.steps], "before": before}
    if len(w.steps) != 3:
        found["wrong"] = f"{len(w.steps)} steps, not 3"
    return found | run_out(model, batch, optimizer, before + int(ROOM * w.steps[-1].predicted)) if is_gpu else found


def explained(path):
    """What `memtape compare` prints of a snapshot and the report beside it."""
    got = subprocess.run([os.environ["MEMTAPE"], "compare", path, path.removesuffix("pickle") + "json"], capture_output=True, text=True,
                         check=False)
    return got.stdout + got.stderr


def run_out(model, batch, optimizer, room):
    """A step with so many bytes."""
    torch.cuda.empty_cache()
    raised = False
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "oom.pickle")
        torch.cuda.set_per_process_memory_fraction(room / torch.cuda.get_device_properties(0).total_memory)
        try:
            with memtape.torch.watch(model, optimizer, snapshot=path) as w:
                train(model, batch, optimizer, 1)
        except torch.cuda.OutOfMemoryError:
            raised = True
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        n_bytes = os.path.getsize(path) if os.path.exists(path) else 0
        found = {"room": room, "snapshot": n_bytes, "said": "\n".join([str(w), explained(path)])}
    if not raised or w.failed is None or not n_bytes:
        found["wrong"] = f"out of memory: {raised}, a failed step: {w.failed is not None}, bytes of its snapshot: {n_bytes}"
    return found


def main():
    what, *words = sys.argv[1:]
    device = words.pop(0) if what == "measure" else ""
    size, until, *names = words
    toy = size == "toy"
    if what == "predict":
        each(names, float(until), lambda name: predicted(SET_UPS[name], toy))
        return
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        properties = torch.cuda.get_device_properties(0)
        say(about={"torch": torch.__version__, "cudnn": torch.backends.cudnn.version(),
                   "capability": f"{properties.major}.{properties.minor}", "workspace": workspace_of_products(device),
                   "reserves": reserves(device)})
    each(names, float(until), lambda name: watched(device, toy) if name == "watch" else measured(SET_UPS[name], device, toy))


if __name__ == "__main__":
    main()
