"""step_modules.py: a step of `./run gpu`: modules of PyTorch's world, trained on the device, beside what memtape.torch says of
them without one."""

import json
import os
import queue
import subprocess
import sys
import threading

from setting import HERE, plan, say

SIDE = os.path.join(HERE, "torch_modules.py")
PACKAGE = os.path.join(HERE, "..", "..", "python")
LAST = 4  # seconds for what was begun last
PREDICTORS = 3  # processes, where there are cores for them
WATCH, AFTER = "watch", 4  # a row of its own, measured alone, after so many others
NAMES = os.path.join(HERE, "torch_zoo.py")


def names():
    """Of the set-ups, in their order; read without PyTorch, which this process does without."""
    with open(NAMES, encoding="utf-8") as f:
        listed = f.read().split("SET_UPS = {", 1)[1]
    found = [line.split('"')[1] for line in listed.splitlines() if line.startswith('    "')]
    return [*found[:AFTER], WATCH, *found[AFTER:]]


class Side:
    """A process of torch_modules.py; its lines go to `lines` as (side, row)."""

    def __init__(self, s, lines, side, *words):
        environment = os.environ | s.environment | {
            "PYTHONPATH": os.pathsep.join(filter(None, [PACKAGE, os.environ.get("PYTHONPATH")])),
            "MEMTAPE_LIBRARY": os.path.join(s.pack, "lib", "libmemtape.so"), "MEMTAPE": os.path.join(s.pack, "bin", "memtape"),
            "OMP_NUM_THREADS": "4", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
        if side == "memtape":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        self.side, self.lines = side, lines
        # pylint: disable-next=consider-using-with
        self.process = subprocess.Popen([sys.executable, "-W", "ignore", SIDE, *words], stdout=subprocess.PIPE, text=True, env=environment)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            try:
                self.lines.put((self.side, json.loads(line)))
            except ValueError:  # a library's own words
                continue
        self.lines.put((self.side, None))


def start(s, lines, listed):
    """One process measures, others predict what it has not reached."""
    size, until = "toy" if s.toy else "real", str(s.until - LAST)
    n = 1 if (os.cpu_count() or 1) < 2 * PREDICTORS else PREDICTORS
    predicted = [name for name in listed if name != WATCH]
    return [Side(s, lines, "torch", "measure", s.torch, size, until, *listed),
            *(Side(s, lines, "memtape", "predict", size, until, *predicted[i::n]) for i in range(n))]


# ---- side by side ------------------------------------------------------------------------------


def rest(torch, mine, figure=""):
    """Of the start, each end and each peak, where they differ: PyTorch's bytes, less what was there before the module and what
    kernels took within, minus memtape's. figure: "_requested" for what was asked for, before it is rounded to blocks."""
    taken = {p["name"]: p["within"] for p in torch["within"]}
    before = torch["before"] if not figure else torch["start_requested"] - mine["start_requested"]
    found = {"start": torch[f"start{figure}"] - before - mine[f"start{figure}"]}
    for theirs, ours in zip(torch["phases"], mine["phases"]):
        found[f"{ours['name']} end"] = theirs[f"end{figure}"] - before - ours[f"end{figure}"]
        if not figure:
            found[f"{ours['name']} peak"] = theirs["peak"] - before - taken[ours["name"]] - ours["peak"]
    return {key: n for key, n in found.items() if n}


def compared(torch, mine):
    """The figures of a row."""
    peak = max(p["peak"] for p in torch["phases"])
    within = max(p["peak"] for p in torch["within"]) - max(p["peak"] - p["within"] for p in torch["within"])
    own = max(p["peak"] for p in mine["phases"])
    ops = {op: (torch["saved_by_op"].get(op, 0), mine["saved_by_op"].get(op, 0)) for op in {**torch["saved_by_op"], **mine["saved_by_op"]}}
    return {"torch_peak": peak, "before": torch["before"], "within": within, "memtape_peak": own,
            "rest": peak - torch["before"] - within - own,
            "torch_saved": torch["phases"][0]["end"] - torch["start"], "memtape_saved": mine["phases"][0]["end"] - mine["start"],
            "differs": rest(torch, mine), "differs_requested": rest(torch, mine, "_requested"),
            "saved_differs": {op: pair for op, pair in ops.items() if pair[0] != pair[1]}}


def row_of(name, sides):
    """None until both have spoken."""
    for side, word in (("torch", "on the device"), ("memtape", "predicted")):
        if "failed" in sides.get(side, {}):
            return {"name": name, "failed": f"{word}: {sides[side]['failed']}", "sides": sides}
    if name == WATCH:
        return {"name": name, **sides["torch"]}
    if len(sides) < 2:
        return None
    row = {"name": name, "sides": sides}
    if "phases" in sides["torch"]:
        row |= compared(sides["torch"], sides["memtape"])
    else:
        row["memtape_peak"] = max(p["peak"] for p in sides["memtape"]["phases"])
    return row


def modules(s):
    if not s.torch:
        plan([])
        return
    listed, found, lines = names(), {}, queue.Queue()
    plan(listed)
    sides = start(s, lines, listed)
    waiting, said = len(sides), set()
    while waiting and s.time_for(1) and len(said) < len(listed):
        try:
            side, line = lines.get(timeout=0.5)
        except queue.Empty:
            continue
        if line is None:
            waiting -= 1
        elif "about" in line:
            say(name="about", **line)
        else:
            of_both = found.setdefault(line.pop("name"), {})
            of_both[side] = line
        for name, both in found.items():
            row = row_of(name, both) if name not in said else None
            if row:
                say(**row)
                said.add(name)
    for name in listed:
        if name not in said:
            lacks = [word for side, word in (("torch", "measured"), ("memtape", "predicted")) if side not in found.get(name, {})]
            say(name=name, failed=f"not {' nor '.join(lacks)}{' in time' if waiting else ': its process has ended'}")
    for side in sides:
        side.process.kill()
        side.process.wait()
