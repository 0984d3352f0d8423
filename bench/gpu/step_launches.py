"""step_launches.py: a step of `./run gpu`: one training step of GPT-2 124M kernel by kernel, as Nsight Compute
(ncu) counts: the time of each, and its share of the memory's bandwidth."""

import csv
import os
import re
import shutil
import subprocess

from setting import say

TIME, MEMORY = "gpu__time_duration.sum", "dram__throughput.avg.pct_of_peak_sustained_elapsed"
UNIT_NS = {"ns": 1, "nsecond": 1, "us": 1e3, "usecond": 1e3, "ms": 1e6, "msecond": 1e6}
OPTIMIZER = "mti_opt_kernel"  # with which a step ends


def short(name):
    """Without parameters, and without what a template's types are made of."""
    name = re.sub(r"\(.*", "", name.removeprefix("void ")).replace("<unnamed>::", "")
    return name if len(name) <= 100 else name[:99] + "…"


def launches(text):
    """[(name, grid, ns, % of the memory's bandwidth)] in the order of their launches, of ncu's CSV."""
    found = {}
    for line in csv.DictReader(line for line in text.splitlines() if line.startswith('"')):
        one = found.setdefault(int(line["ID"]), {"name": short(line["Kernel Name"]), "grid": line["Grid Size"]})
        value = float(line["Metric Value"].replace(",", ""))
        one[line["Metric Name"]] = value * UNIT_NS.get(line["Metric Unit"], 1)
    return [(one["name"], one["grid"], one[TIME], one[MEMORY]) for _, one in sorted(found.items())]


def steps_of(all_launches):
    """The launches of each whole step. Before the first one weights are drawn, by other kernels."""
    out, now = [], []
    for i, launch in enumerate(all_launches):
        now.append(launch)
        last = OPTIMIZER in launch[0] and not any(OPTIMIZER in name for name, *_ in all_launches[i + 1:i + 2])
        if last:
            out.append(now)
            now = []
    if out:
        drawn = [i for i, (name, *_) in enumerate(out[0]) if "normal_draws" in name]
        out[0] = out[0][drawn[-1] + 1 if drawn else 0:]
    return out


def rows_of(step):
    """Launches of one kernel and grid together, the longest first."""
    groups = {}
    for name, grid, ns, share in step:
        one = groups.setdefault((name, grid), {"name": name, "grid": grid, "launches": 0, "ns": 0, "moved": 0})
        one["launches"] += 1
        one["ns"] += ns
        one["moved"] += ns * share
    for one in groups.values():
        one["memory"] = one.pop("moved") / one["ns"] if one["ns"] else 0
    return sorted(groups.values(), key=lambda one: -one["ns"])


def step_launches(s):
    program = shutil.which("ncu") or shutil.which("/usr/local/cuda/bin/ncu")
    why = "needs a GPU" if s.kind != "cuda" else None if program else "there is no ncu here"
    if why:
        say(name="ncu", skipped=why)
        return
    gpt = s.plan.gpt[0]
    got = subprocess.run([program, "--clock-control", "none", "--csv", "--metrics", f"{TIME},{MEMORY}", s.program, "gpt", s.kind,
                          "bf16", *map(str, gpt.arguments)], input="steps 1\nend\n", capture_output=True, text=True, check=False,
                         env=os.environ | s.environment)
    found = steps_of(launches(got.stdout))
    if got.returncode or not found:
        say(name="ncu", failed=(got.stderr.strip().splitlines() or [f"status {got.returncode}"])[-1])
        return
    for row in rows_of(found[-1]):
        say(**row)
