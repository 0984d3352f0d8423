"""planted.py: `./run gpu` finds faults. Each kind is planted in a stand-in for its program: a wrong figure, a
diverging curve, a worker that dies or hangs, a test that fails, an offload that changes gradients or saves
nothing."""

import contextlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from unittest import mock

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, os.path.join(ROOT, "bench", "gpu"))
import gpu  # noqa: E402
import setting  # noqa: E402
import shapes  # noqa: E402
import snapshot  # noqa: E402
import step_checks  # noqa: E402
import step_launches  # noqa: E402
import step_modules  # noqa: E402
import step_snapshot  # noqa: E402
import step_trainers  # noqa: E402
import steps  # noqa: E402
import tables  # noqa: E402
import trainers  # noqa: E402

STAND_IN = '''#!{python}
import sys, time
fault, verb = "{fault}", sys.argv[1]
if verb == "saved":
    if fault == "hang" and sys.argv[4] == "gelu":
        time.sleep(60)
    n = {{("mlp", "relu"): 5, ("mlp", "gelu"): 9}}.get(tuple(sys.argv[3:5]))
    b, s, d = map(int, sys.argv[5:8])
    kept = n * b * s * d * 2 if n else (
        (12 if sys.argv[4] == "relu" else 16) * b * s * d * 2 + b * s * 24 + 16)
    print("saved", kept + (fault == "bytes"))
    print("peak 1024 2048\\nleft", 512 if fault == "left" else 0)
elif verb == "linear":
    w = 8519680 + (512 if fault == "workspace" else 0)
    for when, now, peak, work in (("floats", 4096, 4096, 0), ("parameters", 257024, 257024, 0),
                                  ("input", 258048, 258048, 0), ("forward", 259072, 259072 + w, w)):
        print(when, now, peak, 0, work, 2097152)
elif verb == "curve":
    for i in range(int(sys.argv[4])):
        off = 0.05 if fault == "curve" and sys.argv[2] != "cpu" and i == 5 else 0
        print("loss", 5 - 0.1 * i + off)
elif verb == "kernels":
    print("ready", flush=True)
    for line in sys.stdin:
        if fault == "worker" and "gelu_tanh" in line:
            sys.exit(3)
        print("sample 1 2" if line.startswith("load") else "ns 1000")
        print("done", flush=True)
elif verb == "gpt":
    away = sys.argv[-1].startswith("offload=")
    loss = 6 if sys.argv[-1] == "expandable" and fault == "loss" else 5
    print("ready", flush=True)
    for line in sys.stdin:
        if line.startswith("end"):
            break
        print(f"ns 1000000\\nloss {{loss}}" if line.startswith("steps") else
              "digest 8 " + ("f00d" if away and fault == "bits" else "cafe"))
        print("done", flush=True)
    peak = 900 if away and fault != "peak" else 1000
    print("memory", peak, peak, peak, 2048)
    if away:
        print("out 200\\nin 200\\nlowered 100\\nin_vain 100\\nhost_peak 200")
        print("peak_in_step", peak, 1000, "\\ncopying 0.5 0.25 0.5")
    print("flops 1\\nparameters 1")
else:
    sys.exit("no device")
'''
TEST = '#!/bin/sh\necho "[  PASSED  ] {passed} test(s)."\nexit {status}\n'


def write_program(path, text):
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)


def make_pack(folder, fault):
    for name in ("bin", "lib", "tests"):
        os.makedirs(os.path.join(folder, name))
    write_program(os.path.join(folder, "bin", "memtape_gpu"),
                  STAND_IN.format(python=sys.executable, fault=fault))
    write_program(os.path.join(folder, "tests", "one"), TEST.format(passed=3, status=0))
    write_program(os.path.join(folder, "tests", "two"),
                  TEST.format(passed=0 if fault == "no tests" else 2, status=int(fault == "test")))
    if fault == "no program":
        os.remove(os.path.join(folder, "tests", "one"))
    with open(os.path.join(folder, "pack.json"), "w", encoding="utf-8") as f:
        json.dump({"commit": "none", "compiler": "none", "left_out": ["three"], "tests": [
            {"name": name, "program": f"tests/{name}", "arguments": []} for name in ("one", "two")]}, f)


def run(fault, *steps):
    """(status, faults found) of the steps with this planted fault"""
    folder = tempfile.mkdtemp()
    make_pack(folder, fault)
    only = [word for step in steps for word in ("--only", step)]
    environment = {k: v for k, v in os.environ.items() if k != "OUT"}
    got = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "gpu", "gpu.py"), "--no-peer",
                          "--dry", "--pack", folder, "--results", folder, *only], capture_output=True, text=True,
                         check=False, env=environment)
    with open(os.path.join(folder, "gpu.json"), encoding="utf-8") as f:
        result = json.load(f)
    shutil.rmtree(folder)
    assert "DRY RUN" in got.stdout and not result["measurement"]
    return got.returncode, tables.faults(result)


def hanging_step():
    """A step that exceeds its limit is ended, and keeps its rows."""
    with tempfile.TemporaryDirectory() as folder:
        make_pack(folder, "hang")
        about = {"torch": None, "torch_gpu": False, "gpu_bytes": 0, "libs": folder, "cuda_libs": "",
                 "cache": folder}
        settings = type("Settings", (), {"pack": folder, "results": folder})
        result = {"measurement": False, "kind": "cudasim"}
        return gpu.Step("saved", 5, settings, about, result).finish()


def hanging_test():
    """One program of the suite that hangs takes its own time only."""
    with tempfile.TemporaryDirectory() as folder:
        write_program(os.path.join(folder, "hangs"), "#!/bin/sh\nsleep 60\n")
        usual, step_checks.TEST_LIMIT = step_checks.TEST_LIMIT, 1
        settings = type("Settings", (), {"pack": folder, "environment": {}, "kind": "cudasim", "toy": False,
                                         "until": time.monotonic() + 60})
        row = step_checks.run_test(settings, {"name": "hangs", "program": "hangs", "arguments": []})
        step_checks.TEST_LIMIT = usual
        return row


# A block that grows to a second segment, one that fits where it was, and what PyTorch said of them.
TRACE = [("segment_alloc", 0x1000, 2 << 20), ("alloc", 0x1000, 1000), ("alloc", 0x1400, 600), ("free_requested", 0x1000, 1000),
         ("free_completed", 0x1000, 1000), ("alloc", 0x1000, 512)]


def snapshot_of(trace):
    return {"device_traces": [[{"action": action, "addr": at, "size": size} for action, at, size in trace]]}


def recorded_requests():
    """PyTorch's requests are read as they were made; what would not be the same again is said; a figure that differs
    by a byte is found."""
    assert snapshot.events_of(snapshot_of(TRACE)) == ["+ 0 1000", "+ 1 600", "- 0", "+ 3 512"]
    for event, words in ((("free_completed", 0x9000, 8), "asked for before recording began"),
                         (("segment_free", 0x1000, 2 << 20), "given memory back")):
        try:
            snapshot.events_of(snapshot_of(TRACE + [event]))
            raise AssertionError(event)
        except ValueError as error:
            assert words in str(error), error
    stats = {f"{snapshot.STATS[figure]}.all.{key}": 10 * i + (key == "peak")
             for i, figure in enumerate(snapshot.FIGURES) for key in ("current", "peak")}
    theirs = snapshot.stats_of(stats)
    assert theirs == {"memory": [0, 10, 20, 30, 40], "peak": [1, 11, 21, 31, 41]}
    assert not snapshot.differences(theirs, theirs)
    mine = {"memory": [0, 10, 20, 30, 40], "peak": [1, 11, 21, 32, 41]}
    assert snapshot.differences(theirs, mine) == ["peak of reserved: 32, not PyTorch's 31"]


def phases_beside():
    """After each phase PyTorch's bytes, less its workspace and AdamW's counters, beside memtape's."""
    said, settings = [], type("Settings", (), {"kind": "cuda"})
    keep = step_snapshot.say, step_snapshot.profile_of
    own = [("init", 100), ("forward", 300), ("backward", 200), ("step", 400), ("forward", 600), ("backward", 500), ("step", 400)]
    step_snapshot.say = lambda **row: said.append(row)
    phases = [{"name": name, "allocated": n} for name, n in own]
    step_snapshot.profile_of = lambda s, device: {"phases": phases[:4], "steady": {"phases": phases[4:]}}
    step_snapshot.phase_rows(settings, [["workspace", "7"], ["counters", "512"]] + [
        ["phase", name, str(n + 7 + (512 if i > 2 else 0) + (i == 5))] for i, (name, n) in enumerate(own)])
    step_snapshot.say, step_snapshot.profile_of = keep
    assert [row["difference"] for row in said] == [0, 0, 0, 0, 0, 1, 0], said
    assert [row["name"] for row in said][-2:] == ["backward 2", "step 2"]
    assert "step counters" in tables.snapshot(said, None)


def phases_of(*figures):
    return [{"name": name, "allocated": allocated, "peak": peak, "reserved": reserved, "reserved_peak": reserved}
            for name, allocated, peak, reserved in figures]


FIRST = (("forward", 30, 35, 50), ("backward", 20, 90, 100), ("step", 40, 70, 100))
STEADY = (("forward", 60, 65, 100), ("backward", 50, 120, 128), ("step", 41, 80, 128))
PROFILE = {"params": {"count": 7}, "inference": None, "phases": phases_of(("init", 10, 10, 20), *FIRST),
           "steady": {"phases": phases_of(*STEADY)}}
FOUND = {"parameters": 7, "workspace": 3, "ms": 5.0, "loaded": 10,
         "steps": [phases_of(*((name, a + 3, peak + 3, reserved + 3) for name, a, peak, reserved in step))
                   for step in (FIRST, STEADY, STEADY)]}


def trainers_rows(*answers):
    """The rows of a step whose PyTorch's side gives these answers, one for each run, and memtape PROFILE."""
    settings = type("Settings", (), {"toy": True, "torch": "cuda", "results": "", "time_for": lambda self, seconds: True})()
    peer = type("Peer", (), {"start": lambda self: None, "ask": lambda self, run, folder: next(rest)})
    said, rest = io.StringIO(), iter(answers)
    with mock.patch.object(trainers, "RUNS", trainers.RUNS[:len(answers)]), contextlib.redirect_stdout(said), \
            mock.patch.object(step_trainers, "Peer", lambda s: peer()), \
            mock.patch.object(step_trainers, "ask_memtape", lambda *_: step_trainers.predicted(PROFILE)):
        step_trainers.trainers(settings)
    return [json.loads(line) for line in said.getvalue().splitlines()]


def training_runs():
    """What PyTorch counted is compared with what memtape says, figure by figure: cuBLAS's bytes are taken off, the
    last step is the steady one, and a run that fails, or is of another model, is found."""
    labels = [step_trainers.label(run) for run in trainers.RUNS]
    assert len(set(labels)) == len(labels), labels
    assert all(run.b == 2 and trainers.config_of(run.model, True)["vocab_size"] == 256 for run in trainers.runs(True))
    mine = step_trainers.predicted(PROFILE)
    assert mine == {"parameters": 7, "loaded": 10, "first": 90, "peak": 120, "reserved": 128, "rest": 41,
                    "after": {"forward": 60, "backward": 50, "step": 41}}, mine
    alone = step_trainers.predicted(PROFILE | {"inference": {"phases": phases_of(("init", 9, 9, 20), FIRST[0])}})
    assert alone == {"parameters": 7, "loaded": 9, "first": 35, "peak": 35, "reserved": 50, "rest": 30, "after": {"forward": 30}}
    assert step_trainers.measured(FOUND) == mine | {"workspace": 3, "ms": 5.0}
    uncounted = [[phase | {"allocated": None, "peak": None, "reserved": None} for phase in step] for step in FOUND["steps"]]
    assert step_trainers.measured(FOUND | {"workspace": None, "loaded": None, "steps": uncounted})["peak"] is None
    larger = [phases_of(*((name, 2 * a, 2 * peak, reserved) for name, a, peak, reserved in STEADY))]
    planned, *rows = trainers_rows(FOUND, {"failed": "OutOfMemoryError: CUDA out of memory."}, FOUND | {"parameters": 8},
                         FOUND | {"steps": larger, "workspace": 0})
    assert planned == {"plan": labels[:4]}, planned
    result = {"measurement": True, "steps": {"trainers": {"rows": rows}}}
    assert tables.faults(result) == [f"trainers: {labels[1]}: OutOfMemoryError: CUDA out of memory.",
                                     f"trainers: {labels[2]}: 8 parameters, memtape's model has 7"], tables.faults(result)
    text = tables.trainers(rows, result)
    assert "of 3 peaks memtape predicts 2 within 1 %, 2 within 5 %" in text and "FAILED" in text, text
    assert [line.split()[-9] for line in text.splitlines()[2:5]] == ["1.000", "1.000", "0.500"], text
    assert f"memtape {trainers.runs(True)[0].command()}" in text, text


def asked_of_memtape():
    """memtape takes each run's options, and each config.json has the parameters of the preset of its name."""
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(os.path.join(folder, "bin"))
        os.symlink(os.environ["MEMTAPE"], os.path.join(folder, "bin", "memtape"))
        settings = type("Settings", (), {"pack": folder, "environment": {}})
        step_trainers.write_configs(folder, False)
        for run in trainers.RUNS:
            asked = step_trainers.ask_memtape(settings, run, folder)
            preset = subprocess.run([os.environ["MEMTAPE"], *run.command().replace("/config.json", "").split(), "--json", "-"],
                                    capture_output=True, text=True, check=True)
            assert asked["parameters"] == step_trainers.predicted(json.loads(preset.stdout))["parameters"], run
            assert 2e9 < asked["peak"] < 40e9, (run, asked)


def modules_beside():
    """What was there before, and what kernels took within, are taken off PyTorch's figures; what then differs is named."""
    def phases(*figures):
        return [{"name": name, "end": end, "peak": peak, "end_requested": end, "peak_requested": peak}
                for name, (end, peak) in zip(("forward", "backward", "step"), figures)]

    mine = {"start": 100, "start_requested": 100, "phases": phases((300, 350), (200, 400), (100, 150)), "saved_by_op": {"gelu": 200}}
    within = [{"name": name, "within": n, "peak": peak} for name, n, peak in (("forward", 5, 362), ("backward", 0, 407), ("step", 0, 157))]
    same = {"before": 7, "start": 107, "start_requested": 100, "within": within, "saved_by_op": {"gelu": 200},
            "phases": [{**p, "end": p["end"] + 7, "peak": p["peak"] + 7 + (5 if p["name"] == "forward" else 0)} for p in mine["phases"]]}
    row = step_modules.row_of("same", {"torch": same, "memtape": mine})
    assert not row["differs"] and not row["differs_requested"] and not row["saved_differs"] and not row["rest"], row
    assert (row["torch_peak"], row["torch_saved"], row["memtape_saved"]) == (407, 200, 200), row
    more = {**same, "phases": [{**p, "peak": p["peak"] + 512 * (p["name"] == "backward")} for p in same["phases"]], "saved_by_op": {"relu": 200}}
    other = step_modules.row_of("more", {"torch": more, "memtape": mine})
    assert other["differs"] == {"backward peak": 512} and other["rest"] == 512, other
    assert other["saved_differs"] == {"relu": (200, 0), "gelu": (0, 200)}, other
    assert step_modules.row_of("half", {"torch": same}) is None
    failed = step_modules.row_of("failed", {"memtape": {"failed": "refused"}})
    assert failed["failed"] == "predicted: refused", failed
    loop = step_modules.row_of("watch", {"torch": {"watch": [[7, 8]], "before": 0, "said": "1, out of memory"}})
    text = tables.modules([row, other, failed, loop], {"measurement": True})
    assert "7 measured, 8 predicted: +1" in text and "1, out of memory" in text, text
    assert "same   " in text and "==" in text and "more: backward peak +512" in text and "FAILED" in text, text
    assert len(step_modules.names()) == len(set(step_modules.names())) > 12


def kernels_of_a_step():
    """The last whole step, launches of one kernel and grid together; what draws weights is before the first one."""
    def csv(*kernels):
        lines = ['==PROF== Connected', '"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"']
        for i, (name, us) in enumerate(kernels):
            lines += [f'"{i}","{name}","(4, 1, 1)","{step_launches.TIME}","us","{us}"',
                      f'"{i}","{name}","(4, 1, 1)","{step_launches.MEMORY}","%","{us * 10}"']
        return "\n".join(lines)

    step = (("void gelu<float>(int)", 1), ("mm", 4), ("void gelu<float>(int)", 3), ("mti_opt_kernel<a>", 2), ("mti_opt_kernel<b>", 2))
    found = step_launches.steps_of(step_launches.launches(csv(("normal_draws", 9), *step, *step, ("gelu", 1))))
    assert [len(one) for one in found] == [5, 5], found
    rows = step_launches.rows_of(found[-1])
    assert [(r["name"], r["launches"], r["ns"]) for r in rows] == [
        ("gelu<float>", 2, 4000.0), ("mm", 1, 4000.0), ("mti_opt_kernel<a>", 1, 2000.0), ("mti_opt_kernel<b>", 1, 2000.0)], rows
    assert rows[0]["memory"] == (1 * 10 + 3 * 30) / 4, rows
    text = tables.launches(rows, None)
    assert "0.012" in text and "33 %" in text, text
    assert step_launches.steps_of(step_launches.launches("")) == []


def judged_predictions():
    listed = [{"what": name, "step": "gpt", "row": f"b=1 {name}", "figure": "ms", "least": 10, "most": 20, "unit": "ms", "on": "H200"}
              for name in ("in", "out", "never")]
    listed.append({"what": "half", "step": "gpt", "row": "b=1 in", "over": "b=1 out", "figure": "ms", "least": 0.4,
                   "most": 0.5, "unit": "of it"})
    listed.append({"what": "rate", "step": "memory", "row": "clone", "figure": "forward.gbs", "least": 4, "most": 6, "unit": "GB/s"})
    result = {"measurement": True, "machine": {"gpu": "NVIDIA H200, 570"}, "steps": {
        "gpt": {"rows": [{"name": "b=1", "side": "in", "ms": 15}, {"name": "b=1", "side": "out", "ms": 30}]},
        "memory": {"rows": [{"name": "clone", "forward": {"bytes": 500, "flop": 0, "memtape": {"ns": 100}}}]}}}
    rows = tables.predictions(listed, result).splitlines()[3:]
    assert [row.split()[-1] for row in rows] == ["confirmed", "REFUTED", "measured", "confirmed", "confirmed"], rows
    result["machine"]["gpu"] = "NVIDIA H100"
    assert "of an H200" in tables.predictions(listed, result).splitlines()[3]


def packed_tests():
    """Of these tests, one for each reason to leave it out: what is packed, what is not."""
    device = {"MTT_DEVICE": "cudasim"}
    tests = [{"name": f"cudasim {name}", "suite": [f"memtape:{suite}"], "env": environment, "cmd": [program]}
             for name, suite, environment, program in (
                 ("kernels", "slow", device, "/objects/a"), ("kernels late", "slow", device, "/objects/a"),
                 ("two ranks", "ranks", device, "/objects/b"), ("every refusal", "large", device, "/objects/c"),
                 ("a script", "script", device, "/usr/bin/python3"), ("on the CPU", "slow", {}, "/objects/d"))]
    with tempfile.TemporaryDirectory() as folder:
        got = subprocess.run([sys.executable, os.path.join(ROOT, "bench", "gpu", "packed.py"), "/objects", folder],
                             input=json.dumps(tests), capture_output=True, text=True, check=True, cwd=ROOT)
        with open(os.path.join(folder, "pack.json"), encoding="utf-8") as f:
            packed = json.load(f)
    return got.stdout.split(), [test["name"] for test in packed["tests"]], packed["left_out"]


def alone():
    """What is packed runs in a folder that has nothing else, by its own scripts."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, os.path.join(ROOT, "bench", "gpu", "packed.py"), "/objects", folder],
                       input="[]", capture_output=True, text=True, check=True, cwd=ROOT)
        make_pack(folder, "none")
        environment = {k: v for k, v in os.environ.items() if k not in ("OUT", "PYTHONPATH")}
        got = subprocess.run([os.path.join(folder, "run"), "gpu", "--dry", "--no-peer", "--only", "suite", "--only", "curve",
                              "--only", "memory"], capture_output=True, text=True, check=False, cwd="/", env=environment)
        assert got.returncode == 0 and os.path.exists(os.path.join(folder, "build-gpu", "gpu.json")), got.stderr
        assert "DRY RUN" in got.stdout, got.stdout


def fits_a_loan():
    """A call ends within the ten minutes that a device is lent for, and both within 15, however long PyTorch takes
    to load; the checkers have the time that they need."""
    for looked in (1, gpu.LOOK, gpu.FIRST_IMPORT + 60):
        every = {name for part, (_, names) in gpu.PARTS.items() for name in names if part not in gpu.APART}
        ends, _ = gpu.deadlines(every, None, looked)
        assert max(ends.values()) <= max(gpu.WHOLE, looked) + 1e-6 < 600, ends
        assert all(ends[name] > looked for name in every), ends
    ends, share = gpu.deadlines({"sanitizer"}, None, gpu.LOOK)
    seconds = min(gpu.LIMITS["sanitizer"] * share, ends["sanitizer"] - gpu.LOOK)
    assert seconds > step_checks.SANITIZERS_NEED, seconds
    for part in gpu.APART:  # beside the others, less what it takes to start and to carry
        assert gpu.WHOLE + gpu.LOOK + gpu.PARTS[part][0] <= 15 * 60 - 90, part
    assert gpu.LIMITS["limits"] >= 45 and step_checks.TEST_LIMIT >= 60 and gpu.FIRST_IMPORT >= 180


def main():
    # Ranks share GPU 0, which NCCL refuses: a test of several would fail on every GPU.
    assert packed_tests() == (["a"], ["kernels"], ["a script", "every refusal", "two ranks"])
    row = hanging_test()
    assert row["wrong"] == "status out of time", row
    assert shapes.REAL.saved and [model.bytes for model in shapes.REAL.saved] == [
        83886080, 150994944, 201523216, 268632080]
    for part, (seconds, limits) in gpu.PARTS.items():
        assert sum(limits.values()) <= seconds, part
        assert part == "correctness" or not set(limits) & set(gpu.CHECKS)
    assert set(gpu.LIMITS) == set(steps.STEPS) - {"warm"} == set(tables.TITLES) - {"warm"}
    fits_a_loan()
    ends, share = gpu.deadlines({"suite", "gpt", "offload", "memory"}, None, gpu.LOOK)
    assert (ends["suite"], ends["gpt"], ends["offload"], ends["memory"], share) == (190, 460, 520, 560, 1)
    ends, share = gpu.deadlines({"gpt", "offload"}, 670, 10)  # divided alike
    assert (ends["gpt"], ends["offload"], "suite" in ends, share) == (550, 670, False, 2)
    with open(gpu.PREDICTIONS, encoding="utf-8") as f:
        for listed in json.load(f):
            assert listed["step"] in gpu.LIMITS and listed["least"] <= listed["most"], listed
    alone()
    recorded_requests()
    phases_beside()
    training_runs()
    asked_of_memtape()
    modules_beside()
    kernels_of_a_step()
    judged_predictions()
    os.environ["LD_LIBRARY_PATH"] = "/driver"
    assert setting.environment("/lacking", "/cuda") == {"LD_LIBRARY_PATH": "/lacking:/driver",
                                                        "MEMTAPE_CUDA_LIBS": "/cuda"}
    del os.environ["LD_LIBRARY_PATH"]
    everything = ("suite", "saved", "curve", "sanitizer", "memory", "offload", "variants")
    status, faults = run("none", *everything)
    assert status == 0 and not faults, faults
    for fault, step, words in (
            ("bytes", "saved", "mlp relu: 40961, not 40960"), ("left", "saved", "512, not 0"),
            ("workspace", "saved", "8520192, not 8519680"), ("curve", "curve", "differ by 0.05"),
            ("worker", "memory", "gelu_tanh bf16: memtape_gpu kernels ended with status 3"),
            ("bits", "offload", "not those of the steps without offload, bit for bit"),
            ("peak", "offload", "the peak is 1000 bytes, without offload 1000"),
            ("loss", "variants", "toy b=1 expandable: the loss is 6.0, without it 5.0"),
            ("test", "suite", "two: status 1"), ("no tests", "suite", "two: no test passed"),
            ("no program", "suite", "one: status cannot start")):
        status, faults = run(fault, step)
        assert status == 1 and any(words in found for found in faults), (fault, status, faults)
        print(f"planted: {fault}: found: {faults[0]}")
    # A worker that dies loses one row only.
    assert len(run("worker", "memory")[1]) == 1
    found = hanging_step()
    assert found["failed"] == "cut off after 5 s" and len(found["rows"]) == 2, found
    assert found["not_reached"] == ["mlp gelu", "block relu", "block gelu", "linear 256 to 250: parameters"], found
    print(f"planted: hang: {found['failed']}, with {len(found['rows'])} rows kept")


if __name__ == "__main__":
    main()
