"""steps.py: one step of `./run gpu`, in its own process. It prints each result at once, one JSON object per
line, so that a step that is cut off keeps its earlier results.

An object with "wrong" is a failed check, one with "failed" could not be measured; the step continues after
both. The first, "plan", names the rows to come, so that those of a step that is cut off can be named."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import shapes
import snapshot as recorded
from pair import Pair, distance

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, ".."))
from worker import Failed, Worker  # noqa: E402

TORCH_SIDE = os.path.join(HERE, "torch_side.py")


def say(**row):
    print(json.dumps(row), flush=True)


def plan(labels):
    say(plan=list(labels))


def environment(libs, cuda_libs):
    """The variables for memtape's programs, besides the inherited ones, which may name the driver's folder."""
    paths = [libs, os.environ.get("LD_LIBRARY_PATH", "")]
    found = {"LD_LIBRARY_PATH": ":".join(filter(None, paths))}
    return found | ({"MEMTAPE_CUDA_LIBS": cuda_libs} if cuda_libs else {})


class Setting:
    """The options that gpu.py passes on."""

    def __init__(self):
        p = argparse.ArgumentParser()
        p.add_argument("step", choices=STEPS)
        p.add_argument("--pack", required=True)
        p.add_argument("--libs", required=True, help="folder of libraries this machine lacks")
        p.add_argument("--cuda-libs", default="")
        p.add_argument("--kind", required=True, help="memtape's device")
        p.add_argument("--torch", default="", help="PyTorch's device, if it is there")
        p.add_argument("--seconds", type=float, required=True)
        p.add_argument("--toy", action="store_true")
        self.__dict__.update(vars(p.parse_args()))
        self.plan = shapes.TOY if self.toy else shapes.REAL
        self.until = time.monotonic() + self.seconds
        self.program = os.path.join(self.pack, "bin", "memtape_gpu")
        self.environment = environment(self.libs, self.cuda_libs)

    def time_for(self, seconds):
        return time.monotonic() + seconds < self.until

    def memtape(self, *arguments, environment=None):
        return Worker([self.program], *arguments, environment=self.environment | (environment or {}))

    def peer(self, *arguments):
        return Worker([sys.executable, TORCH_SIDE], *arguments)

    def lines(self, *arguments, environment=None):
        """Runs memtape_gpu to its end: its lines as lists of words."""
        got = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True,
                             check=False, env=os.environ | self.environment | (environment or {}))
        if got.returncode:
            raise Failed(got.stderr.strip() or f"status {got.returncode}")
        return [line.split() for line in got.stdout.splitlines()]


# ---- the op suite ------------------------------------------------------------------------------


TEST_LIMIT = 25  # seconds for one program, so that one that hangs does not take the time of the others


# The simulator as strict as a GPU, a Hopper: kernels are waited for, memory is page-locked, and little of it may be.
HOPPER = {"CUDASIM_HOPPER": "1"}
STRICT = HOPPER | {"MTT_WAITING": "1", "CUDASIM_MOST_PINNED": "1000", "CUDASIM_SHARED_GPU": "0"}


def run_test(s, test):
    environment = os.environ | s.environment | {"MTT_DEVICE": s.kind} | (STRICT if s.kind == "cudasim" else {})
    start = time.monotonic()
    limit = max(1, min(s.until - start - 1, TEST_LIMIT * (12 if s.toy else 1)))
    try:
        got = subprocess.run([os.path.join(s.pack, test["program"]), *test["arguments"]],
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             errors="replace", check=False, env=environment, timeout=limit)
        status, text = got.returncode, got.stdout
    except subprocess.TimeoutExpired as late:
        status, text = "out of time", (late.stdout or b"").decode(errors="replace")
    except OSError as failure:
        status, text = "cannot start", str(failure)
    counts = re.findall(r"\[  PASSED  \] (\d+) test", text)
    skipped = sum(map(int, re.findall(r"\[  SKIPPED \] (\d+) test", text)))
    row = {"name": test["name"], "tests": sum(map(int, counts)), "skipped": skipped, "status": status,
           "seconds": round(time.monotonic() - start, 1)}
    if status:
        row |= {"wrong": f"status {status}", "said": text[-3000:]}
    elif not row["tests"] and not skipped:
        row |= {"wrong": "no test passed", "said": text[-3000:]}
    return row


def suite(s):
    """Runs the test programs that take a device on this one: gradients by differences in f64, kernels against
    the CPU's, the engine, the ledger."""
    with open(os.path.join(s.pack, "pack.json"), encoding="utf-8") as f:
        packed = json.load(f)
    tests = packed["tests"]
    plan(test["name"] for test in tests)
    with ThreadPoolExecutor(2 if s.toy else 6) as pool:
        for row in pool.map(lambda test: run_test(s, test), tests):
            say(**row)
    for name in packed["left_out"]:
        say(name=name, left_out=True)


# ---- compute-sanitizer -------------------------------------------------------------------------

SANITIZED = ("kernels rows", "backends attention", "step graph")
SANITIZERS = ("memcheck", "racecheck")
SANITIZERS_NEED = 300


def find_sanitizer():
    return shutil.which("compute-sanitizer") or next(
        (path for path in ("/usr/local/cuda/bin/compute-sanitizer",
                           "/usr/local/cuda/compute-sanitizer/compute-sanitizer") if os.access(path, os.X_OK)), None)


def sanitizer(s):
    """Tests under NVIDIA's checkers of kernels: accesses out of bounds, races in shared memory."""
    program = find_sanitizer()
    why = "there is none here" if not program else "needs a GPU" if s.kind != "cuda" else (
        None if s.time_for(SANITIZERS_NEED) else f"needs {SANITIZERS_NEED} seconds: --only sanitizer")
    if why:
        say(name="compute-sanitizer", skipped=why)
        return
    with open(os.path.join(s.pack, "pack.json"), encoding="utf-8") as f:
        tests = [test for test in json.load(f)["tests"] if test["name"] in SANITIZED]
    jobs = [(tool, test) for tool in SANITIZERS for test in tests]
    plan(f"{tool}: {test['name']}" for tool, test in jobs)
    for tool, test in jobs:
        start = time.monotonic()
        try:
            got = subprocess.run([program, "--tool", tool, "--error-exitcode", "9", os.path.join(s.pack, test["program"])],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                 check=False, env=os.environ | s.environment | {"MTT_DEVICE": s.kind},
                                 timeout=max(1, s.until - start - 1))
            status, text = got.returncode, got.stdout
        except subprocess.TimeoutExpired:
            say(name=f"{tool}: {test['name']}", failed="out of time")
            continue
        if status and "not supported" in text:  # in some virtual machines
            say(name="compute-sanitizer", skipped="it says: " + next(line for line in text.splitlines() if "not supported" in line))
            return
        said = re.findall(r"========= (.*SUMMARY.*)", text)
        say(name=f"{tool}: {test['name']}", said=said[-1] if said else "", seconds=round(time.monotonic() - start, 1),
            **({"wrong": f"status {status}", "output": text[-3000:]} if status else {}))


# ---- the design's figures ----------------------------------------------------------------------


def compare(name, expected, measured, **more):
    wrong = {} if measured == expected else {"wrong": f"{measured}, not {expected}"}
    say(name=name, expected=expected, measured=measured, **more, **wrong)


def saved_bytes(s):
    for model in s.plan.saved:
        name = f"{model.model} {model.act}"
        try:
            start = time.monotonic()
            got = {words[0]: list(map(int, words[1:])) for words in
                   s.lines("saved", s.kind, model.model, model.act, model.b, model.s, model.d,
                           model.heads)}
            compare(name, model.bytes, got["saved"][0], peak_allocated=got["peak"][0],
                    peak_reserved=got["peak"][1], seconds=round(time.monotonic() - start, 2))
            compare(f"{name}, left after backward", 0, got["left"][0])
        except Failed as failure:
            say(name=name, expected=model.bytes, failed=str(failure))


WORKSPACE = 8519680  # cuBLAS's default, :4096:2:16:8


def linear_bytes(s):
    got = {words[0]: list(map(int, words[1:])) for words in
           s.lines("linear", s.kind, environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"})}
    allocated, _, _, _, reserved = got["floats"]
    compare("1024 floats, allocated", 4096, allocated)
    compare("1024 floats, reserved", 2097152, reserved)
    compare("linear 256 to 250: parameters", 257024, got["parameters"][0])
    compare("with a (1,256) input", 258048, got["input"][0])
    now, peak, _, workspace, _ = got["forward"]
    compare("after forward, without workspace", 259072, now - got["forward"][2])
    compare("workspace in forward", WORKSPACE, workspace)
    compare("highest in forward, with it", 259072 + WORKSPACE, peak)


def saved(s):
    plan([f"{model.model} {model.act}" for model in s.plan.saved] + ["linear 256 to 250: parameters"])
    saved_bytes(s)
    try:
        linear_bytes(s)
    except Failed as failure:
        say(name="linear 256 to 250", failed=str(failure))


# ---- the same loss curve -----------------------------------------------------------------------

CURVE_LIMIT = 0.02  # for losses between 5.6 and 2: AdamW amplifies the last bits of early gradients


def curve(s):
    text = os.path.join(HERE, "..", "..", "README.md")
    losses = {kind: [float(words[1]) for words in s.lines("curve", kind, text,
                                                          *s.plan.curve.arguments)]
              for kind in ("cpu", s.kind)}
    cpu, device = losses["cpu"], losses[s.kind]
    largest = max(abs(a - b) for a, b in zip(cpu, device))
    row = {"name": f"GPT of {s.plan.curve.layers} layers, d={s.plan.curve.d}, f32", "cpu": cpu,
           "device": device, "largest_difference": largest, "allowed": CURVE_LIMIT}
    if len(cpu) != len(device) or not largest <= CURVE_LIMIT or not cpu[-1] < cpu[0]:
        row["wrong"] = f"the curves differ by {largest:g}, or do not fall"
    say(**row)


# ---- kernels compared with PyTorch's -----------------------------------------------------------


def limits(s):
    if s.torch:
        got = subprocess.run([sys.executable, TORCH_SIDE, "limits", s.torch,
                              str(s.plan.copy_bytes), str(s.plan.gemm_side)],
                             stdout=subprocess.PIPE, text=True, check=True).stdout
        rates = {words[0]: list(map(float, words[1:])) for words in map(str.split,
                                                                        got.splitlines())}
        say(by="PyTorch", copy_gbs=rates["copy"][0], copy_spread=rates["copy"][1:],
            gemm_tflops=rates["gemm"][0] / 1e3, gemm_spread=[r / 1e3 for r in rates["gemm"][1:]])
        return
    side = s.plan.gemm_side
    copy = shapes.Kernel("copy", "clone", "bf16", f"f:{s.plan.copy_bytes // 2}")
    gemm = shapes.Kernel("gemm", "linear", "bf16", " ".join([f"f:{side}x{side}"] * 2))
    with_worker = Pair(s)
    seconds = [with_worker.time(kernel, ("forward",))["forward"]["memtape"]["ns"]
               for kernel in (copy, gemm)]
    with_worker.stop()
    say(by="memtape, for want of PyTorch", copy_gbs=2 * s.plan.copy_bytes / seconds[0],
        gemm_tflops=2 * side ** 3 / seconds[1] / 1e3)


def one_kernel(pair, kernel):
    work = {"forward": (kernel.forward_bytes, kernel.forward_flop),
            "backward": (kernel.backward_bytes, kernel.backward_flop)}
    words = [word for word, amounts in work.items() if any(amounts)]
    row = {"name": kernel.name, "inputs": kernel.inputs}
    try:
        times = pair.time(kernel, words)
    except Failed as failure:
        say(**row, failed=str(failure))
        pair.stop()
        return
    if times["error"] is not None:
        row |= {"error": times["error"], "allowed": kernel.tolerance}
        if not times["error"] <= kernel.tolerance:
            row["wrong"] = f"off by {times['error']:.2g} of the reference"
    for word in words:
        n_bytes, flop = work[word]
        row[word] = {"bytes": n_bytes, "flop": flop, **times[word]}
    say(**row)


def all_kernels(s, kernels):
    pair = Pair(s)
    plan(kernel.name for kernel in kernels)
    for kernel in kernels:
        if s.time_for(3):
            one_kernel(pair, kernel)
        else:
            say(name=kernel.name, failed="no time left")
    pair.stop()


def memory(s):
    all_kernels(s, s.plan.memory)


def gemm(s):
    all_kernels(s, s.plan.gemm)


def attention(s):
    all_kernels(s, s.plan.attention)


# ---- attention forward by both of Hopper's instructions ----------------------------------------

WGMMA = HOPPER | {"MEMTAPE_CUDA_ATTENTION": "wgmma"}


class Instructions(Pair):
    """memtape's worker whose attention uses wgmma, and one whose attention uses mma."""

    def start(self):
        for side, chosen in (("memtape", WGMMA), ("mma", {})):
            if side not in self.workers:
                self.workers[side] = self.s.memtape("kernels", self.s.kind, environment=chosen)

    def compare(self, shown):
        return max(map(distance, shown["memtape"][:1], shown["mma"][:1]))  # the result; gradients follow it


def wgmma(s):
    try:
        s.lines("probe", s.kind, environment=WGMMA)
    except Failed as failure:
        if "need 9.0" not in str(failure):
            raise
        say(name="wgmma", skipped=str(failure))
        return
    pair = Instructions(s)
    plan(kernel.name for kernel in s.plan.wgmma)
    for kernel in s.plan.wgmma:
        if s.time_for(2):
            one_kernel(pair, kernel)
        else:
            say(name=kernel.name, failed="no time left")
    pair.stop()


# ---- GPT-2 -------------------------------------------------------------------------------------


def warm(s):
    """Compiles PyTorch's step of each size, two at a time, so that the step gpt finds it in the cache."""
    def one(gpt):
        got = subprocess.run([sys.executable, TORCH_SIDE, "warm", s.torch, "bf16",
                              *map(str, gpt.arguments)], stdout=subprocess.PIPE, text=True,
                             check=False)
        return gpt.name, got.returncode, got.stdout.strip()
    if s.torch:
        with ThreadPoolExecutor(2) as pool:
            for name, status, text in pool.map(one, s.plan.gpt):
                say(name=name, **({"failed": f"status {status}"} if status else {"said": text}))


def gpt_worker(s, side, gpt, *how):
    if side == "memtape":
        return s.memtape("gpt", s.kind, "bf16", *gpt.arguments, *how)
    return s.peer("gpt", s.torch, "bf16", *gpt.arguments, side)


class GptRun:
    """One side's steps of one size. Sides that alternate free their memory in between."""

    def __init__(self, s, side, gpt, *how, alone=False):
        self.side, self.tokens, self.alone = side, gpt.b * gpt.s, alone
        self.worker = gpt_worker(s, side, gpt, *how)
        self.losses, self.ns = [], []
        self.gradients = self.worker.ask("gradients") if alone and side == "memtape" else None
        self.run(2)
        self.n = max(1, int(s.plan.gpt_seconds / 3 * 1e9 / (self.run(2) / 2)))
        self.rest()

    def run(self, n):
        said = dict(self.worker.ask("steps", n))
        self.losses.append(float(said["loss"]))
        return int(said["ns"])

    def rest(self):
        if not self.alone:
            self.worker.ask("rest")

    def round(self):
        if not self.alone:
            self.run(1)  # allocates its memory again
        self.ns.append(self.run(self.n) / self.n)
        self.rest()

    def row(self):
        self.last = last = self.worker.end()
        row = {"side": self.side, "ms": median(self.ns) / 1e6, "least_ms": min(self.ns) / 1e6,
               "most_ms": max(self.ns) / 1e6, "tokens_per_s": self.tokens / median(self.ns) * 1e9,
               "losses": self.losses}
        if "memory" in last:
            row["peak_allocated"], row["peak_reserved"] = map(int, last["memory"][-2:])
        if "flops" in last:
            row |= {"flop": int(last["flops"][0]), "parameters": int(last["parameters"][0])}
        if not (self.alone or self.losses[-1] < self.losses[0]):
            row["wrong"] = f"the loss went from {self.losses[0]} to {self.losses[-1]}"
        return row


def alone(s, gpt, side, *how):
    """Training steps of one size, with nothing else on the device."""
    run = GptRun(s, side, gpt, *how, alone=True)
    for _ in range(3):
        run.round()
    row = {"name": gpt.name, "tokens": run.tokens, **run.row(), "last": run.last}
    if run.gradients:
        row["gradient_bytes"], row["gradient_hash"] = int(run.gradients[0][1]), run.gradients[0][2]
    return row


def one_gpt(s, gpt):
    runs = []
    for side in ("memtape", "eager", "compile") if s.torch else ("memtape",):
        try:
            runs.append(GptRun(s, side, gpt))
        except Failed as failure:
            say(name=gpt.name, side=side, failed=str(failure))
    for _ in range(3):
        for run in list(runs):
            try:
                run.round()
            except Failed as failure:
                say(name=gpt.name, side=run.side, failed=str(failure))
                runs.remove(run)
    for run in runs:
        try:
            say(name=gpt.name, tokens=run.tokens, **run.row())
        except Failed as failure:
            say(name=gpt.name, side=run.side, failed=str(failure))


def gpt(s):
    sides = ("memtape", "eager", "compile") if s.torch else ("memtape",)
    plan(f"{size.name} {side}" for size in s.plan.gpt for side in sides)
    for size in s.plan.gpt:
        if s.time_for(25):
            one_gpt(s, size)
        else:
            say(name=size.name, failed="no time left")


# ---- a step with one option more ---------------------------------------------------------------

VARIANTS = ("plain", "graph", "fused", "adamw8bit", "adafactor", "expandable")
SAME_LOSSES = ("graph", "expandable")  # bit for bit those of the plain step


def variant_row(s, gpt, option):
    row = alone(s, gpt, "memtape", *([] if option == "plain" else [option]))
    row["side"] = option
    if "replayed" in row["last"]:
        replayed, launched, nodes, *why = row["last"]["replayed"]
        row |= {"replayed": int(replayed), "launched": int(launched), "nodes": int(nodes), "why": " ".join(why)}
        if not row["replayed"]:
            row["wrong"] = f"no batch was replayed: {row['why']}"
    del row["last"]
    return row


def variants(s):
    plan(f"{gpt.name} {option}" for gpt in s.plan.variants for option in VARIANTS)
    for gpt in s.plan.variants:
        losses = {}
        for option in VARIANTS:
            if not s.time_for(6):
                say(name=gpt.name, side=option, failed="no time left")
                continue
            try:
                row = variant_row(s, gpt, option)
            except Failed as failure:
                say(name=gpt.name, side=option, failed=str(failure))
                continue
            losses[option] = row["losses"][0]
            if option in SAME_LOSSES and losses[option] != losses.get("plain", losses[option]):
                row["wrong"] = f"the loss is {losses[option]}, without it {losses['plain']}"
            say(**row)


# ---- PyTorch's allocator -----------------------------------------------------------------------


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


# ---- offload -----------------------------------------------------------------------------------


def offload_row(s, label, side, *how):
    row = alone(s, s.plan.offload, side, *how)
    last = row.pop("last")
    row["side"] = label
    for key in ("out", "in", "lowered", "in_vain", "host_peak"):
        if key in last:
            row[key] = int(last[key][0])
    if "peak_in_step" in last:
        row["peak_in_step"], row["peak_in_step_without"] = map(int, last["peak_in_step"])
        copy_s, wait_s, hidden = map(float, last["copying"])
        row |= {"copy_ms": copy_s * 1e3, "wait_ms": wait_s * 1e3, "hidden": hidden}
    return row


def check_offload(row, without):
    """The gradients must have the same bits, and the peak must be lower: of the bytes allocated in a step, and
    so of the device's memory."""
    if without.get("gradient_hash") != row["gradient_hash"]:
        row["wrong"] = "the gradients are not those of the steps without offload, bit for bit"
    elif not row["peak_in_step"] < row["peak_in_step_without"] or (
            not row["peak_allocated"] < without["peak_allocated"]):
        row["wrong"] = (f"the peak is {row['peak_allocated']} bytes, without offload "
                        f"{without['peak_allocated']}")


def offload(s):
    sides = [("memtape", "memtape", ())]
    sides += [(f"memtape, {out} out, {max(0, ahead)} ahead", "memtape", (f"offload={out},{ahead}",))
              for out, ahead in s.plan.in_flight]
    if s.torch:
        sides += [("torch", "eager", ()), ("torch save_on_cpu", "offload", ())]
    without = {}
    plan(f"{s.plan.offload.name} {label}" for label, _, _ in sides)
    for label, side, how in sides:
        if not s.time_for(10):
            say(name=s.plan.offload.name, side=label, failed="no time left")
            continue
        try:
            row = offload_row(s, label, side, *how)
        except Failed as failure:
            say(name=s.plan.offload.name, side=label, failed=str(failure))
            continue
        if not how:
            without[side] = row
        elif "memtape" in without:
            check_offload(row, without["memtape"])
        say(**row)


STEPS = {"suite": suite, "saved": saved, "curve": curve, "limits": limits, "memory": memory,
         "gemm": gemm, "attention": attention, "wgmma": wgmma, "warm": warm, "gpt": gpt, "offload": offload,
         "sanitizer": sanitizer, "variants": variants, "snapshot": snapshot}

if __name__ == "__main__":
    setting = Setting()
    STEPS[setting.step](setting)
