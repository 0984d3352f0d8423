"""bench.py: memtape's speed and memory, and PyTorch's in the same run. See docs/speed.md."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
import traceback

import measure
import meta
import others
import precision
import products
import rank_steps
import ranks
import scaling
import show
from cases import GPTS, MEMORY_ROWS, SMOKE_ROWS
from worker import Failed, Side, peer_version

PROGRAM = "build/bench/memtape_bench"
ISA = ("avx512_bf16", "avx512f", "avx2", "fma", "sse4_2")
ALL_GPTS = [g.name for g in GPTS]


def parse():
    p = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    p.add_argument("--record", metavar="NAME", help="keep the result as docs/results/NAME.{json,txt}")
    p.add_argument("--only", choices=list(SECTIONS), action="append", help="these sections only")
    p.add_argument("--smoke", action="store_true",
                   help="everything once and in small: whether it runs, not how fast")
    p.add_argument("--gpts", metavar="NAME,...",
                   help=f"of these sizes ({','.join(ALL_GPTS)}; with --smoke the first)")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    p.add_argument("--effort", type=float, default=1, metavar="X",
                   help="X times as long as usual, which is about 25 minutes; below 0.2 also fewer rounds, and PyTorch "
                        "compiles one size only")
    p.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                   help="cpu: processor time, for a look on a busy machine; use --threads 1")
    p.add_argument("--no-peer", action="store_true", help="memtape alone")
    p.add_argument("--compile", action="store_true", help="torch.compile for the peer's GPTs")
    p.add_argument("--program", default=PROGRAM, help="the worker (%(default)s)")
    s = p.parse_args()
    s.gpts = s.gpts.split(",") if s.gpts else ALL_GPTS[:1] if s.smoke else ALL_GPTS
    unknown = set(s.gpts) - set(ALL_GPTS)
    if unknown or s.threads < 1 or not s.effort > 0:
        p.error(f"no such size: {', '.join(unknown)}" if unknown else "not a number of use")
    if s.record and not s.record.replace("-", "").replace("_", "").replace(".", "").isalnum():
        p.error("NAME is made of letters, digits, '-', '_' and '.'")
    if s.smoke:
        if s.record:
            p.error("--smoke measures nothing that is worth a record")
        s.effort = 0
    s.gpt_seconds = 170 * s.effort
    s.brief = s.effort < 0.2
    s.rounds = lambda usual: max(1, min(usual, round(5 * s.effort * usual)))
    s.gemm_sides = (256,) if s.smoke else (1024, 2048, 3072)
    s.memory_rows = SMOKE_ROWS if s.smoke else MEMORY_ROWS
    return s


def cpu_says(key, default=""):
    with open("/proc/cpuinfo", encoding="ascii") as lines:
        for line in lines:
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    return default


def commit():
    def git(*words):
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False).stdout
    dirty = " with changes" if git("status", "--porcelain", "--", "src", "models", "lab", "program", "include", "bench") else ""
    return (git("rev-parse", "--short=12", "HEAD").strip() or "unknown") + dirty


def describe(s, sides, limits, software, version, why):
    flags = cpu_says("flags").split()
    return {"cpu": cpu_says("model name", "unknown"), "cores": os.cpu_count(),
            "isa": " ".join(flag for flag in ISA if flag in flags) or "baseline",
            "threads": s.threads, "clock": s.clock, "smoke": s.smoke, "load": f"{os.getloadavg()[0]:.1f}",
            "openblas": software["openblas"], "openblas_version": software["openblas"].split()[1],
            "core": software["core"], "compiler": software["compiler"], "commit": commit(),
            "peer": version and f"{version}{', compiled' if s.compile else ', eager'}",
            "no_peer": why, "limits": limits, "sides": [side.name for side in sides]}


def start(s):
    if not os.access(s.program, os.X_OK):
        raise Failed(f"{s.program} is not built; `./run bench` builds it")
    sides = [Side("memtape", [s.program], s)]
    version, why = (None, "not wanted") if s.no_peer else peer_version()
    if version:
        sides.append(Side("torch", [sys.executable, "bench/peer.py"], s,
                          ("compile",) if s.compile else ()))
    limits = {}
    software = measure.machine_limits(sides, s, limits)
    return sides, describe(s, sides, limits, software, version, why)


class Report:
    """Prints text, and keeps it for the file."""

    def __init__(self):
        self.parts = []

    def say(self, text):
        self.parts.append(text)
        print(text + "\n", flush=True)


# ---- the sections: each adds its figures to `result` and prints them ----


def gpt_section(sides, s, result, limits):
    result["gpt"] = measure.all_gpts(sides, s)
    measure.machine_limits(sides, s, limits)
    yield show.show_gpts(result["gpt"], limits, "torch")


def precision_section(sides, s, result, limits):
    result["precision"] = precision.rows(sides, [g for g in GPTS if g.name in s.gpts], s, limits)
    yield precision.show(result["precision"])


def segments_section(sides, s, result, _):
    result["segments"] = measure.all_segments(sides, s)
    yield show.show_segments(result["segments"])


def tiny_section(sides, s, result, _):
    result["tiny"] = measure.tiny_ops(sides, s)
    yield show.show_tiny(result["tiny"])


def memory_section(sides, s, result, _):
    result["memory"] = measure.memory_ops(sides, s)
    yield show.show_memory(result["memory"], s.memory_rows)


def parts_section(sides, s, result, limits):
    steps = {g["name"]: g for g in result.get("gpt", [])}
    result["parts"], result["traced"] = {}, {}
    for gpt in (g for g in GPTS if g.name in s.gpts):
        result["traced"][gpt.name] = {}
        for dtype in ("f32", "bf16"):
            step = result["traced"][gpt.name][dtype] = measure.traced_step(sides[0], gpt, dtype, s)
            yield show.show_traced(gpt.name, dtype, step, limits)
        parts = result["parts"][gpt.name] = measure.gpt_parts(sides, gpt, s)
        yield show.show_parts(gpt.name, parts, steps.get(gpt.name), limits)


def products_section(sides, s, result, _):
    result["products"] = products.measure(sides, s)
    yield products.show(result["products"])


def meta_section(_, s, result, __):
    result["meta"] = meta.steps(s)
    yield show.show_meta(result["meta"])


def ranks_section(sides, s, result, __):
    result["ranks"] = ranks.collectives(sides, s)
    yield ranks.show(result["ranks"])
    result["rank_steps"] = rank_steps.steps(sides, s)
    yield rank_steps.show(result["rank_steps"], s)


def scaling_section(sides, s, result, __):
    rows = scaling.sweeps(sides, s)
    result["scaling"] = {"points": rows, "fits": scaling.fits(rows)}
    yield scaling.show_sweeps(rows, result["scaling"]["fits"])
    result["scaling"]["busy"] = scaling.busy(sides, s)
    yield scaling.show_busy(result["scaling"]["busy"])


def others_section(sides, s, result, __):
    result["others"] = others.measure(sides, s)
    yield others.show(result["others"])


SECTIONS = {"gpt": gpt_section, "precision": precision_section, "segments": segments_section,
            "tiny": tiny_section, "memory": memory_section, "parts": parts_section, "meta": meta_section,
            "products": products_section, "ranks": ranks_section, "scaling": scaling_section, "others": others_section}
ON_DEMAND = {"others", "products"}  # other engines compile for minutes; products are for a new processor


def run(s):
    """Runs every wanted section; if one fails, the others still run."""
    began, report = time.monotonic(), Report()
    sides, machine = start(s)
    limits = machine["limits"]
    result = {"schema": "memtape.bench/1", "machine": machine, "failed": {}}
    report.say(show.show_machine(machine))
    for name in (n for n in SECTIONS if n in (s.only or SECTIONS.keys() - ON_DEMAND)):
        try:
            for text in SECTIONS[name](sides, s, result, limits):
                report.say(text)
        except Exception as failure:  # any failure counts for this section only
            if not isinstance(failure, Failed):
                traceback.print_exc()
            result["failed"][name] = str(failure) or type(failure).__name__
            report.say(f"FAILED: section {name}: {result['failed'][name]}")
    machine["load_at_end"] = f"{os.getloadavg()[0]:.1f}"
    result["seconds"] = round(time.monotonic() - began, 1)
    report.say(show.show_limits(limits, "Limits, the best of all measurements"))
    report.say(f"{result['seconds']:.0f} s in all. Ratios are torch's time (or bytes) divided by "
               "memtape's: above 1, memtape is ahead.")
    if result["failed"]:
        report.say(f"FAILED: {', '.join(result['failed'])}")
    return result, "\n\n".join(report.parts) + "\n"


def keep(result, text, s):
    base = os.path.join(os.path.dirname(s.program), "result")
    with open(base + ".json", "w", encoding="utf-8") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    with open(base + ".txt", "w", encoding="utf-8") as f:
        f.write(text)
    if s.record:
        os.makedirs("docs/results", exist_ok=True)
        for ending in ("json", "txt"):
            shutil.copyfile(f"{base}.{ending}", f"docs/results/{s.record}.{ending}")


def main():
    s = parse()
    try:
        result, text = run(s)
    except Failed as failure:  # before the first section
        sys.exit(f"bench: {failure}")
    keep(result, text, s)
    sys.exit(f"bench: failed: {', '.join(result['failed'])}" if result["failed"] else 0)


if __name__ == "__main__":
    main()
