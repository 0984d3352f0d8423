"""step_snapshot.py: a step of `./run gpu`: PyTorch's allocator and memtape's, asked for the same."""

import json
import os
import subprocess
import sys
import tempfile

import snapshot as recorded
from setting import TORCH_SIDE, Failed, plan, say


def recorded_steps(s, folder, expandable):
    """(snapshot's path, words printed) of two steps: PyTorch's, or in a dry run memtape's own, whose snapshot has
    the same form."""
    path, gpt = os.path.join(folder, "steps.pickle"), s.plan.snapshot
    if s.torch == "cuda":
        got = subprocess.run([sys.executable, TORCH_SIDE, "snapshot", s.torch, "f32", *map(str, gpt.arguments), path,
                              *["expandable"] * expandable], stdout=subprocess.PIPE, text=True, check=False)
        if got.returncode:
            raise Failed(f"PyTorch's steps ended with status {got.returncode}")
        return path, [line.split() for line in got.stdout.splitlines()]
    profile = profile_of(s, "meta", "--snapshot", path, *["--expandable-segments"] * expandable)
    phases, words = profile["phases"] + profile["steady"]["phases"], []
    for figure in recorded.FIGURES[:-1]:
        peak = "peak" if figure == "allocated" else f"{figure}_peak"
        for key, value in (("current", phases[-1][figure]), ("peak", max(phase[peak] for phase in phases))):
            words.append(["stat", f"{recorded.STATS[figure]}.all.{key}", value])
    return path, words


def profile_of(s, device, *options):
    """memtape's own account of such a step."""
    g = s.plan.snapshot
    got = subprocess.run([os.path.join(s.pack, "bin", "memtape"), "profile", "gpt", "-l", str(g.layers), "-d", str(g.d),
                          "-a", str(g.heads), "--vocab", str(g.vocab), "-b", str(g.b), "-s", str(g.s), "--act",
                          "gelu_tanh", "--optimizer", "adamw", "--device", device, "--json", "-", *options],
                         capture_output=True, text=True, check=False, env=os.environ | s.environment)
    if got.returncode:
        raise Failed(got.stderr.strip())
    return json.loads(got.stdout)


def replayed(s, path, expandable):
    """The figures of memtape's allocator after PyTorch's requests; on meta, so that nothing else counts."""
    lines = recorded.events_of(recorded.read(path))
    got = subprocess.run([s.program, "replay", "meta", *["expandable"] * expandable], input="\n".join(lines) + "\n",
                         capture_output=True, text=True, check=False, env=os.environ | s.environment)
    if got.returncode:
        raise Failed(got.stderr.strip())
    return len(lines), {words[0]: list(map(int, words[1:])) for words in map(str.split, got.stdout.splitlines())}


def snapshot_row(s, folder, expandable):
    path, words = recorded_steps(s, folder, expandable)
    stats = {key: int(value) for word, key, value in (w for w in words if w[0] == "stat")}
    n_events, mine = replayed(s, path, expandable)
    if s.torch != "cuda":  # memtape's profile has no count of segments
        stats |= {f"segment.all.{key}": mine[when][-1] for when, key in (("memory", "current"), ("peak", "peak"))}
    theirs = recorded.stats_of(stats)
    wrong = recorded.differences(theirs, mine)
    return words, {"name": "requests, replayed", "side": "expandable" if expandable else "segments", "events": n_events,
                   "torch": theirs, "memtape": mine, **({"wrong": "; ".join(wrong)} if wrong else {})}


def phase_rows(s, words):
    """PyTorch's bytes after each phase beside memtape's. PyTorch's workspace stays, as do AdamW's counts of steps,
    one for each parameter: both are known, and so taken off."""
    known = {w[0]: int(w[1]) for w in words if w[0] in ("workspace", "counters")}
    theirs = [(w[1], int(w[2])) for w in words if w[0] == "phase"]
    profile = profile_of(s, s.kind)
    mine = [(p["name"], p["allocated"]) for p in profile["phases"] + profile["steady"]["phases"]]
    for i, ((phase, bytes_), (own, own_bytes)) in enumerate(zip(theirs, mine)):
        counters = known["counters"] if i > 2 else 0  # from the first step of AdamW on
        say(name=f"{phase} {1 + (i > 3)}", own=own, torch=bytes_, workspace=known["workspace"], counters=counters,
            memtape=own_bytes, difference=bytes_ - known["workspace"] - counters - own_bytes)


def snapshot(s):
    plan(["requests, replayed segments", "requests, replayed expandable"])
    for expandable in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            try:
                words, row = snapshot_row(s, folder, expandable)
                say(**row)
                if s.torch == "cuda" and not expandable:
                    phase_rows(s, words)
            except (Failed, ValueError) as failure:
                say(name="requests, replayed", side="expandable" if expandable else "segments", failed=str(failure))
