"""bench.py: memtape's speed and memory, beside PyTorch's in the same run. See docs/speed.md."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time

import measure
import meta
import show
from cases import GPTS
from worker import Failed, Side, peer_version

PROGRAM = "build/bench/memtape_bench"
ISA = ("avx512_bf16", "avx512f", "avx2", "fma", "sse4_2")
SECTIONS = ("gpt", "parts", "tiny", "memory", "meta")


def parse():
    p = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    p.add_argument("--record", metavar="NAME", help="keep the result as docs/results/NAME.{json,txt}")
    p.add_argument("--only", choices=SECTIONS, action="append", help="these sections only")
    p.add_argument("--gpts", default=",".join(g.name for g in GPTS), metavar="NAME,...",
                   help="of these sizes (%(default)s)")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    p.add_argument("--effort", type=float, default=1, metavar="X",
                   help="X times as long as usual, which is about six minutes")
    p.add_argument("--clock", choices=("wall", "cpu"), default="wall",
                   help="cpu: processor time, for a look on a busy machine; use --threads 1")
    p.add_argument("--no-peer", action="store_true", help="memtape alone")
    p.add_argument("--compile", action="store_true", help="torch.compile for the peer's GPTs")
    p.add_argument("--program", default=PROGRAM, help="the worker (%(default)s)")
    s = p.parse_args()
    s.gpts = s.gpts.split(",")
    unknown = set(s.gpts) - {g.name for g in GPTS}
    if unknown or s.threads < 1 or not s.effort > 0:
        p.error(f"no such size: {', '.join(unknown)}" if unknown else "not a number of use")
    if s.record and not s.record.replace("-", "").replace("_", "").replace(".", "").isalnum():
        p.error("NAME is made of letters, digits, '-', '_' and '.'")
    s.gpt_seconds = 170 * s.effort
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
    dirty = " with changes" if git("status", "--porcelain", "--", "src", "include", "bench") else ""
    return (git("rev-parse", "--short=12", "HEAD").strip() or "unknown") + dirty


def describe(s, sides, limits, software, version, why):
    flags = cpu_says("flags").split()
    return {"cpu": cpu_says("model name", "unknown"), "cores": os.cpu_count(),
            "isa": " ".join(flag for flag in ISA if flag in flags) or "baseline",
            "threads": s.threads, "clock": s.clock, "load": f"{os.getloadavg()[0]:.1f}",
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
        sides.append(Side("torch", [sys.executable, "bench/peer.py"], s))
    for side in sides:
        side.words = ("compile",) if s.compile and side.name == "torch" else ()
    limits = {}
    software = measure.machine_limits(sides, s, limits)
    return sides, describe(s, sides, limits, software, version, why)


class Report:
    """Text as it comes, kept for the file."""

    def __init__(self):
        self.parts = []

    def say(self, text):
        self.parts.append(text)
        print(text + "\n", flush=True)


def run(s):
    began, report = time.monotonic(), Report()
    sections = s.only or SECTIONS
    sides, machine = start(s)
    limits, result = machine["limits"], {"schema": "memtape.bench/1", "machine": machine}
    report.say(show.show_machine(machine))
    if "gpt" in sections:
        result["gpt"] = measure.all_gpts(sides, s)
        measure.machine_limits(sides, s, limits)
        report.say(show.show_gpts(result["gpt"], limits, "torch"))
    workers = measure.start_ops(sides, s) if set(sections) - {"gpt", "meta"} else []
    if "tiny" in sections:
        result["tiny"] = measure.tiny_ops(workers, s)
        report.say(show.show_tiny(result["tiny"]))
    if "memory" in sections:
        result["memory"] = measure.memory_ops(workers, s)
        measure.machine_limits(sides, s, limits)
        report.say(show.show_memory(result["memory"], limits))
    if "parts" in sections:
        steps = {g["name"]: g for g in result.get("gpt", [])}
        result["parts"] = {}
        for gpt in (g for g in GPTS if g.name in s.gpts):
            parts = result["parts"][gpt.name] = measure.gpt_parts(workers, gpt, s)
            report.say(show.show_parts(gpt.name, parts, steps.get(gpt.name), limits))
    for worker in workers:
        worker.stop()
    if "meta" in sections:
        result["meta"] = meta.steps(s)
        report.say(show.show_meta(result["meta"]))
    machine["load_at_end"] = f"{os.getloadavg()[0]:.1f}"
    result["seconds"] = round(time.monotonic() - began, 1)
    report.say(show.show_limits(limits, "Limits, the best of all looks at them"))
    report.say(f"{result['seconds']:.0f} s in all. Ratios are torch's time (or bytes) divided by "
               "memtape's: above 1, memtape is ahead.")
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
        keep(*run(s), s)
    except Failed as failure:
        sys.exit(f"bench: {failure}")


if __name__ == "__main__":
    main()
