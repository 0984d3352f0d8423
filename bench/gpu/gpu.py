"""gpu.py: memtape on the GPU: first correctness, then speed and memory compared with PyTorch. Each step runs in
its own process with a time limit, so that a failing one does not lose the others.

Without a GPU the same steps run on `cudasim`, a simulator that executes the kernels on the CPU, with small
sizes. This shows that the steps work; the times say nothing about a GPU."""

import argparse
import glob
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import setting
import tables

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = os.path.join(HERE, "steps.py")
STARTED = time.monotonic()
# Seconds for the look at the machine, usually; for each part; then for each step, at most. All parts but those
# APART are a call of nine minutes, since a GPU may be lent for ten; each of those is a call of its own. What a part
# leaves goes to the next ones, so what matters most comes first, and what a slow look takes is taken from all. A dry
# run, on a machine that may be slow, gets far more.
LOOK = 30
FIRST_IMPORT = 180  # of PyTorch, from a disk that has not read it yet
PARTS = {"correctness": (160, {"suite": 120, "saved": 20, "curve": 20}),
         "speed": (270, {"limits": 45, "attention": 30, "gemm": 30, "gpt": 120, "variants": 45}),
         "bytes": (60, {"snapshot": 25, "offload": 35}),
         "more": (40, {"memory": 40}),
         "users": (125, {"trainers": 75, "modules": 50}),
         "counters": (60, {"launches": 60}),
         "checkers": (200, {"sanitizer": 200})}
APART = ("users", "counters", "checkers")
WHOLE = LOOK + sum(seconds for part, (seconds, _) in PARTS.items() if part not in APART)
LIMITS = {name: limit for _, steps_of in PARTS.values() for name, limit in steps_of.items()}
CHECKS = ("suite", "saved", "curve")  # during which nothing is timed
PREDICTIONS = os.path.join(HERE, "..", "..", "docs", "results", "predictions.json")
SHARES = {"gemm", "attention", "memory", "gpt"}  # reported as shares of the rates that "limits" measures
DRY_FACTOR = 12


def parse():
    p = argparse.ArgumentParser(prog="./run gpu", description=__doc__)
    p.add_argument("--dry", action="store_true", help="on the simulator even if there is a GPU")
    p.add_argument("--only", action="append", choices=list(LIMITS), metavar="STEP",
                   help=f"these steps only: {', '.join(LIMITS)}")
    p.add_argument("--part", action="append", choices=list(PARTS),
                   help=f"this part's steps only; {' and '.join(APART)} run if they are asked for")
    p.add_argument("--limit", type=float, metavar="SECONDS",
                   help=f"for everything, from the start ({WHOLE}; for some parts {LOOK} and their own: "
                        + ", ".join(f"{part} {seconds}" for part, (seconds, _) in PARTS.items())
                        + "; more or less is divided alike; a dry run takes what it takes)")
    p.add_argument("--no-peer", action="store_true", help="memtape alone")
    p.add_argument("--pack", default="build-gpu-run", metavar="FOLDER",
                   help="what was packed (%(default)s)")
    p.add_argument("--results", default="build-gpu", metavar="FOLDER",
                   help="for gpu.json, gpu.txt and the steps' own words (%(default)s)")
    s = p.parse_args()
    parts = s.part or [part for part in PARTS if part not in APART]
    s.only = s.only or [name for part in parts for name in PARTS[part][1]]
    if not os.access(os.path.join(s.pack, "bin", "memtape_gpu"), os.X_OK):
        p.error(f"nothing is packed in {s.pack}: ./run gpu pack")
    return s


# ---- the machine -------------------------------------------------------------------------------


def output(*command, environment=None, seconds=60):
    """(status, standard output, the last line of standard error)"""
    try:
        got = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds,
                             env=os.environ | (environment or {}))
    except (OSError, subprocess.TimeoutExpired) as failure:
        return 1, "", str(failure)
    return got.returncode, got.stdout.strip(), (got.stderr.strip().splitlines() or [""])[-1]


def lacking_libraries(pack):
    """A folder with the packed libraries that this machine lacks; its own libraries are preferred."""
    have = output("ldconfig", "-p")[1] or output("/sbin/ldconfig", "-p")[1]
    have = {line.split()[0] for line in have.splitlines() if "=>" in line}
    folder = os.path.join(pack, "lacking")
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    for name in os.listdir(os.path.join(pack, "lib")):
        if name not in have:
            os.symlink(os.path.join("..", "lib", name), os.path.join(folder, name))
    return os.path.abspath(folder)


TORCH = """import torch
print(torch.__version__, int(torch.cuda.is_available()))
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    print(p.name, "|", p.total_memory, "|", p.multi_processor_count)"""


def look(s):
    """The machine's properties, and the result of memtape's probe."""
    about = {"libs": lacking_libraries(s.pack), "cuda_libs": "", "torch": None, "torch_gpu": False, "gpu_bytes": 0}
    status, text, why = (1, "", "not wanted") if s.no_peer else output(
        sys.executable, "-c", TORCH, seconds=FIRST_IMPORT)
    if status == 0:
        lines = text.splitlines()
        version, gpu = lines[0].split()
        about |= {"torch": version, "torch_gpu": gpu == "1",
                  "torch_says": lines[1] if len(lines) > 1 else "",
                  "gpu_bytes": int(lines[1].split("|")[1]) if len(lines) > 1 else 0}
    else:
        about["no_torch"] = why
    torch = importlib.util.find_spec("torch")
    if torch:  # even if it is not the peer: cuBLASLt may be installed with it
        about["cuda_libs"] = os.path.dirname(os.path.dirname(torch.origin))
    status, text, why = output("nvidia-smi", "--format=csv,noheader",
                               "--query-gpu=name,driver_version,memory.total,clocks.sm,"
                               "clocks.max.sm,power.limit,temperature.gpu")
    about["nvidia_smi"] = text if status == 0 else None
    status, _, why = output(os.path.join(s.pack, "bin", "memtape_gpu"), "probe", "cuda",
                            environment=setting.environment(about["libs"], about["cuda_libs"]))
    about["opens"], about["probe"] = status == 0, why
    return about


def describe(s, about):
    with open(os.path.join(s.pack, "pack.json"), encoding="utf-8") as f:
        packed = json.load(f)
    seen = about["nvidia_smi"] or (about["torch_gpu"] and about.get("torch_says"))
    dry = s.dry or not (seen or about["opens"])
    return {"schema": "memtape.gpu/1", "measurement": not dry,
            "machine": {"gpu": seen or None, "probe": about["probe"] or "opens",
                        "cpu": cpu_name(), "cores": os.cpu_count(), "torch": about["torch"],
                        "no_torch": about.get("no_torch"), "commit": packed["commit"],
                        "compiler": packed["compiler"],
                        "load": f"{os.getloadavg()[0]:.1f}"},
            "kind": "cudasim" if dry else "cuda", "steps": {}}


def cpu_name():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown"


# ---- steps -------------------------------------------------------------------------------------


class Step:
    """A running step, with one file for its rows and one for its errors."""

    def __init__(self, name, limit, s, about, result):
        self.name, self.limit, self.start = name, limit, time.monotonic()
        os.makedirs(os.path.join(s.results, "log"), exist_ok=True)
        self.base = os.path.join(s.results, "log", name)
        dry = not result["measurement"]
        torch = about["torch"] and ("cpu" if dry else "cuda" if about["torch_gpu"] else "")
        command = [sys.executable, STEPS, name, "--pack", os.path.abspath(s.pack), "--results",
                   os.path.abspath(s.results), "--kind", result["kind"], "--libs", about["libs"], "--cuda-libs", about["cuda_libs"],
                   "--torch", torch or "", "--gpu-bytes", str(about["gpu_bytes"]),
                   "--seconds", str(limit - 2), *["--toy"] * dry]
        cache = about["cache"]
        environment = os.environ | {
            "TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": os.path.join(cache, "triton"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "1", "TORCHINDUCTOR_AUTOGRAD_CACHE": "1",
            "PYTHONUNBUFFERED": "1", "OMP_WAIT_POLICY": "passive"}
        with open(self.base + ".jsonl", "w", encoding="utf-8") as out, \
                open(self.base + ".err", "w", encoding="utf-8") as err:
            # pylint: disable-next=consider-using-with
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment,
                                            start_new_session=True)

    def finish(self):
        """Waits, within the limit, and returns what the step found."""
        out = {}
        try:
            status = self.process.wait(max(0.1, self.start + self.limit - time.monotonic()))
        except subprocess.TimeoutExpired:
            status = None
            out["failed"] = f"cut off after {self.limit:.0f} s"
        try:  # end the step and all its processes, so that they cannot disturb the next step
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        if status:
            out["failed"] = f"ended with status {status}"
        rows = self.rows()
        planned = [label for row in rows for label in row.get("plan", [])]
        rows = [row for row in rows if "plan" not in row]
        out |= {"seconds": round(time.monotonic() - self.start, 1), "rows": rows,
                "not_reached": [label for label in planned if label not in map(tables.label_of, rows)]}
        with open(self.base + ".err", encoding="utf-8", errors="replace") as err:
            said = err.read().strip()
        if said and (status != 0 or any("failed" in row for row in out["rows"])):
            out["said"] = said[-3000:]
        return out

    def rows(self):
        rows = []
        with open(self.base + ".jsonl", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.endswith("}\n"):
                    rows.append(json.loads(line))
        return rows


def keep(result, text, s):
    """Writes the result after every step, because a later step may be cut off."""
    folders = [s.results] + ([os.environ["OUT"]] if os.environ.get("OUT") else [])
    for folder in folders:
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "gpu.json"), "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
            f.write("\n")
        with open(os.path.join(folder, "gpu.txt"), "w", encoding="utf-8") as f:
            f.write(text)
        for path in glob.glob(os.path.join(s.results, "*.zip")):  # of a step
            if folder != s.results:
                shutil.copy(path, folder)


def deadlines(wanted, limit, looked):
    """(when each step has to end, in seconds from the start; how much longer or shorter it may take): the parts
    that are wanted come one after the other, from `looked` seconds on, when the look at the machine is over."""
    own = {part: seconds for part, (seconds, names) in PARTS.items() if wanted & set(names)}
    whole = limit or LOOK + sum(own.values())
    share, out, end = max(0, whole - looked) / sum(own.values()), {}, looked
    for part, seconds in own.items():
        end += seconds * share
        out |= dict.fromkeys(PARTS[part][1], end)
    return out, share


def run_steps(s, about, result):
    dry = not result["measurement"]
    wanted = set(s.only)
    if wanted & SHARES:
        wanted.add("limits")
    names = [name for name in LIMITS if name in wanted]
    result["look_seconds"] = round(time.monotonic() - STARTED, 1)
    ends, share = deadlines(wanted, s.limit, result["look_seconds"])
    parts = [tables.machine(result)]
    print(parts[0], flush=True)

    def start(name, limit):
        if dry:
            return Step(name, limit * DRY_FACTOR, s, about, result)
        left = ends[name] - (time.monotonic() - STARTED)
        return Step(name, min(limit * share, left), s, about, result) if left > 10 else None

    def finish(step, name):
        found = step.finish() if step else {"failed": "no time left", "seconds": 0, "rows": [], "not_reached": []}
        result["steps"][name] = found
        parts.append(tables.step(name, found, result))
        print("\n" + parts[-1], flush=True)
        keep(result, "\n\n".join(parts) + "\n", s)

    # PyTorch compiles its steps while ours are checked; nothing is timed during that. Without checks it does so first.
    ends["warm"] = ends.get("suite", (result["look_seconds"] + ends.get("limits", 0)) / 2)
    warm = start("warm", ends["warm"]) if "gpt" in names and about["torch"] else None
    for name in names:
        if name not in CHECKS and warm:
            finish(warm, "warm")
            warm = None
        finish(start(name, LIMITS[name]), name)
    result["seconds"] = round(time.monotonic() - STARTED, 1)
    with open(PREDICTIONS, encoding="utf-8") as f:
        parts.append(tables.predictions(json.load(f), result))
    print("\n" + parts[-1])
    parts.append(tables.summary(result))
    print("\n" + parts[-1], flush=True)
    keep(result, "\n\n".join(parts) + "\n", s)


def main():
    s = parse()
    about = look(s)
    result = describe(s, about)
    if result["measurement"] and not about["opens"]:
        lacks = output("ldd", os.path.join(s.pack, "lib", "libmemtape-cuda.so"))[1]
        sys.exit(f"gpu: there is a GPU ({result['machine']['gpu']}), and memtape cannot use it: "
                 f"{about['probe']}\nwhat its module loads:\n{lacks}")
    with tempfile.TemporaryDirectory() as about["cache"]:
        run_steps(s, about, result)
    sys.exit(1 if tables.faults(result) else 0)


if __name__ == "__main__":
    main()
