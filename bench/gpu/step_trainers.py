"""step_trainers.py: a step of `./run gpu`: what training runs of Hugging Face's models need (trainers.py), as PyTorch's
allocator counts it here, beside what `memtape profile` says."""

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile

import trainers as listed
from setting import HERE, Failed, Worker, plan, say

SIDE = os.path.join(HERE, "trainers_side.py")
NEEDS = 4  # seconds for a run, at most, with room
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


def label(run):
    return f"{run.model}: {run.name}"


def archive_of(s):
    return os.path.join(s.results, "trainers.zip")


def file_of(run):
    return re.sub("[^a-z0-9.]+", "-", label(run).lower()) + ".pickle"


def figures(loaded, steps):
    """The figures of both sides, of steps as lists of phases: the last step is the steady one. Of a step with
    several batches a phase's name stands for the last of that name."""
    def highest(phases, key):
        values = [phase[key] for phase in phases]
        return None if None in values else max(values)
    last = {phase["name"]: phase["allocated"] for phase in steps[-1]}
    return {"loaded": loaded, "first": highest(steps[0], "peak"), "peak": highest(steps[-1], "peak"),
            "reserved": highest([phase for step in steps for phase in step], "reserved"),
            "rest": steps[-1][-1]["allocated"], "after": last}


def predicted(profile):
    """memtape's figures, of what `memtape profile --json` printed: of its two steps the second is steady. With
    --inference those of the forward pass alone."""
    def step(phases):
        return [{"name": phase["name"], "allocated": phase["allocated"], "peak": phase["peak"],
                 "reserved": phase["reserved_peak"]} for phase in phases]
    alone = profile["inference"]
    init, *first = (alone or profile)["phases"]
    steps = [step(first)] + ([] if alone else [step(profile["steady"]["phases"])])
    return {"parameters": profile["params"]["count"], **figures(init["allocated"], steps)}


def measured(found):
    """PyTorch's figures, less cuBLAS's workspaces where they were there: from the first forward on."""
    if "failed" in found:
        raise Failed(found["failed"])
    workspace = found["workspace"]
    out = figures(found["loaded"], found["steps"])
    if workspace is not None:
        out |= {key: out[key] - workspace for key in ("first", "peak", "reserved", "rest")}
        out["after"] = {name: n - workspace for name, n in out["after"].items()}
    return {"parameters": found["parameters"], "workspace": workspace, "ms": found["ms"], **out}


def ask_memtape(s, run, folder):
    got = subprocess.run([os.path.join(s.pack, "bin", "memtape"), *run.command(folder + os.sep).split(), "--json", "-"],
                         capture_output=True, text=True, check=False, env=os.environ | s.environment)
    if got.returncode:
        raise Failed("memtape: " + (got.stderr.strip().splitlines() or [f"status {got.returncode}"])[-1])
    return predicted(json.loads(got.stdout))


class Peer:
    """PyTorch's side, started again after a run that ended it."""

    def __init__(self, s):
        self.s, self.worker = s, None

    def start(self):
        if not self.worker:
            self.worker = Worker([sys.executable, SIDE], self.s.torch, environment=OFFLINE)

    def ask(self, run, folder):
        self.start()
        try:
            fields = dataclasses.asdict(run) | {"folder": os.path.join(folder, run.model), "snapshot": file_of(run),
                                                "snapshots": archive_of(self.s)}
            text = json.dumps(fields, separators=(",", ":"))
            lines = self.worker.ask("run", text.replace(" ", "\\u0020"))
        except Failed:
            self.worker = None
            raise
        return json.loads(" ".join(next(words for words in lines if words[:1] == ["found"])[1:]))


def write_configs(folder, toy):
    for model in listed.CONFIGS:
        os.mkdir(os.path.join(folder, model))
        with open(os.path.join(folder, model, "config.json"), "w", encoding="utf-8") as f:
            json.dump(listed.config_of(model, toy), f)


def row_of(s, peer, run, folder):
    row = {"name": label(run), "b": run.b, "s": run.s, "command": "memtape " + run.command(), "lacks": run.lacks}
    try:
        row["memtape"] = ask_memtape(s, run, folder)
        if s.torch:
            found = peer.ask(run, folder)
            row["torch"] = measured(found)
            row["steps"] = found["steps"]
            if "wrong" in found:
                row["wrong"] = found["wrong"]
            if row["torch"]["parameters"] != row["memtape"]["parameters"]:
                row["wrong"] = f"{row['torch']['parameters']} parameters, memtape's model has {row['memtape']['parameters']}"
    except Failed as failure:
        row["failed"] = str(failure)
    return row


def trainers(s):
    runs, peer = listed.runs(s.toy), Peer(s)
    with contextlib.suppress(FileNotFoundError):
        os.remove(archive_of(s))
    plan(map(label, runs))
    with tempfile.TemporaryDirectory() as folder:
        write_configs(folder, s.toy)
        try:
            if s.torch:
                peer.start()
        except Failed as failure:
            for run in runs:
                say(name=label(run), failed=f"PyTorch's side did not start: {failure}")
            return
        for run in runs:
            say(**(row_of(s, peer, run, folder) if s.time_for(NEEDS) else {"name": label(run), "failed": "no time left"}))
