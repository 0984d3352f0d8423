"""step_checks.py: steps of `./run gpu` that check and time nothing: the tests, also under NVIDIA's checkers, the
bytes that the design promises, the same loss curve as on the CPU."""

import json
import os
import re
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from setting import HERE, STRICT, Failed, plan, say

# ---- the op suite ------------------------------------------------------------------------------


TEST_LIMIT = 60  # seconds for one program, so that one that hangs does not take the time of the others


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

SANITIZED = ("kernels rows", "backends attention")
SANITIZERS = ("memcheck", "racecheck")
SANITIZERS_NEED = 150


def find_sanitizer():
    return shutil.which("compute-sanitizer") or next(
        (path for path in ("/usr/local/cuda/bin/compute-sanitizer",
                           "/usr/local/cuda/compute-sanitizer/compute-sanitizer") if os.access(path, os.X_OK)), None)


def sanitizer(s):
    """Tests under NVIDIA's checkers of kernels: accesses out of bounds, races in shared memory."""
    program = find_sanitizer()
    why = "there is none here" if not program else "needs a GPU" if s.kind != "cuda" else (
        None if s.time_for(SANITIZERS_NEED) else f"needs {SANITIZERS_NEED} seconds: --limit")
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
