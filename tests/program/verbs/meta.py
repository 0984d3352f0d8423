"""The meta device: its books equal the CPU's for any options; memory that runs out; the timeline in its
four forms."""
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from lib import MEMTAPE, check, done, equal, help_json, names_of, placed, profile, refused, run

OPTIMIZERS = names_of("--optimizer")
ACTS = names_of("--act")
LONG = os.environ.get("MTT_LONG") == "1"
WHOLE = ("gpt", "bert", "llama")


def books(text):
    """The report without the device's name, its times, the seed and what the scaler skipped; and whether any step was
    skipped. The times and what was skipped are null on meta, and only there."""
    report = dict(json.loads(text), scratch=None)
    del report["model"]["seed"]
    timed = report.pop("device") != "meta"
    for phase in report["phases"] + report["steady"]["phases"]:
        equal(phase.pop("seconds") is not None, timed, "seconds where the device was timed")
    for time in ("copy_seconds", "wait_seconds", "hidden"):
        if report["memory_options"]["offload"]:
            equal(report["memory_options"]["offload"].pop(time) is not None, timed, time)
    scaler, skipped = report["memory_options"]["loss_scale"], 0
    if scaler:
        skipped = scaler.pop("skipped")
        known = [value is not None for value in (skipped, scaler.pop("steps"), scaler.pop("second_skipped"))]
        equal(known, [timed] * 3, "steps skipped")
    return report, bool(skipped)


def draw_model(draw):
    kind = draw.choice(["linear", "mlp", "attention", "block", *WHOLE])
    heads = draw.choice([1, 2, 4])
    args = [kind, "-b", draw.randint(1, 3), "-s", draw.choice([1, 2, 7, 32, 65]),
            "-d", heads * draw.choice([2, 8, 10, 32])]
    if kind == "linear":
        return args + ["--ffn", draw.randint(1, 90)]
    args += ["--dropout", draw.choice([0, 0, 0.1])]
    if kind == "mlp":
        args += draw.choice([[], ["MODEL:out-act=" + draw.choice(["relu", "leaky_relu", "gelu", "sigmoid"])]])
    else:
        args += ["-a", heads, "--attention", draw.choice(["flash", "math"]),
                 "--kv-heads", draw.choice([k for k in (1, 2, 4) if heads % k == 0])]
    if kind in ("attention", "block"):
        args += draw.choice([[], ["MODEL:causal"]])
    if kind not in ("attention", "llama"):
        act = draw.choice(ACTS)
        args += ["--act", act] + ["--inplace"] * (act.endswith("relu") and draw.random() < 0.5)
    if kind != "attention":
        args += draw.choice([[], ["--ffn", draw.randint(1, 90)]])
    if kind in ("block", "gpt"):
        args += ["--norm", draw.choice(["pre", "post"]),
                 "MODEL:norm-kind=" + draw.choice(["layernorm", "rmsnorm"])]
    if kind in WHOLE:
        args += ["-l", draw.randint(1, 4), "--vocab", draw.choice([1, 7, 256]),
                 "--recipe", draw.choice(["none", "hf"])] + ["MODEL:untied"] * (kind == "gpt" and draw.random() < 0.5)
        args += draw.choice([[], ["MODEL:context=70"]])
    return args


def draw_memory_options(draw, kind):
    dtype = draw.choice(["f32", "f32", "bf16", "f16", "f64"])
    optimizer = draw.choice([*OPTIMIZERS, "adamw", "sgd", "sgd-momentum"])  # the commonest twice
    args = ["--dtype", dtype, "--optimizer", optimizer]
    presets = ["full", "ops"] + ["selective"] * (kind not in ("linear", "mlp")) + ["every=2", "sqrt"] * (kind in WHOLE)
    if draw.random() < 0.4:
        args += ["--checkpoint", draw.choice(presets)]
    if draw.random() < 0.25:
        args += ["--offload", draw.choice(["cpu", "disk"])]
    if draw.random() < 0.3:
        rules = ["bf16", "8bit", "bits", "seed", "signs"]
        args += ["--compress", "+".join(draw.sample(rules, draw.randint(1, 2)))]
    if dtype == "f32" and draw.random() < 0.3:
        args += ["--amp", draw.choice(["bf16", "f16"])]
    if kind != "linear" and draw.random() < 0.25:
        args += ["--lora-rank", draw.choice([1, 3])] + draw.choice([[], ["--qlora"], ["--qlora", "--recipe", "plain:qlora-double"], ["--qlora", "--recipe", "plain:codes=int8"]])
        args += ["--recipe", "plain:lora-dropout=0.5"] * (draw.random() < 0.5)
        args += ["--recipe", "plain:f32-adapters"] * (dtype in ("bf16", "f16") and draw.random() < 0.5)
    if dtype in ("bf16", "f16") and optimizer != "none" and draw.random() < 0.5:
        args += ["--master-weights"]
    if dtype in ("bf16", "f16") and draw.random() < 0.4:
        args += ["--recipe", "plain:f32-gradients"]
    if optimizer != "none" and draw.random() < 0.2:
        args += ["--recipe", "plain:step-in-backward"]
    if kind in WHOLE and optimizer != "none" and "plain:step-in-backward" not in args and draw.random() < 0.25:
        args += ["--loss-scale", draw.choice(["8", "dynamic"])]
    return args


def same_books(seed, n):
    """The ledger in order, every figure of every phase and every event of the step agree."""
    draw = random.Random(seed)
    met, n_refused, skipped = set(), 0, 0
    for _ in range(n):
        args = draw_model(draw)
        args += draw_memory_options(draw, args[0]) + ["--timeline"]
        outcome = [run("profile", *placed(*args), "--json", "-", *on) for on in
                   (["--device", "cpu", "--threads", 2, "--seed", draw.randint(0, 99)],
                    ["--device", "meta", "--threads", 2, "--recipe", "plain:scratch=cpu"])]
        equal(outcome[1].returncode, outcome[0].returncode, f"status of {args}")
        if outcome[0].returncode:  # a combination of options that the program refuses on both devices
            equal(outcome[1].stderr, outcome[0].stderr, f"refusal of {args}")
            check("wanted" not in outcome[0].stderr, outcome[0].stderr)
            n_refused += 1
            continue
        (cpu, overflowed), (meta, _) = (books(o.stdout) for o in outcome)
        if overflowed:  # the CPU skipped steps of the optimizer, its first one among them; meta has no values
            skipped += 1
            for report in (cpu, meta):
                del report["phases"][3:], report["timeline"], report["memory_options"]
                del report["peak"]["event"], report["steady"]["event"]
        met |= {part for a in args if isinstance(a, str) for part in (a, a.partition("=")[0])}
        for key in cpu:
            if not equal(meta[key] == cpu[key], True, f"{key} on meta as on cpu: {args}"):
                print_difference(cpu[key], meta[key])
    print(f"{n} configurations from seed {seed}: {n - n_refused} compared, {n_refused} "
          f"refused on both, {skipped} without the optimizer's first step, which overflowed")
    check(n - n_refused - skipped > 0.9 * n, "most configurations are compared")
    return met


def experts_have_the_same_books():
    """Wherever the router sends the tokens, only scratch of the products depends on it: two routings on the CPU, and meta."""
    for args in ([], ["--recipe", "hf", "--dtype", "f32"], ["--checkpoint", "full", "-b", 3], ["--amp", "bf16", "--dtype", "f32"],
                 ["--offload", "cpu", "-b", 2], ["--compress", "8bit+bits", "--dropout", 0.1], ["--lora-rank", 2], ["--recipe", "plain:expert-form=torchtitan"],
                 ["--recipe", "plain:expert-form=megatron", "--amp", "bf16", "--dtype", "f32"],
                 ["--recipe", "plain:expert-form=megatron", "--recipe", "plain:expert-capacity=0.7", "--recipe", "plain:expert-padding", "--recipe", "plain:recompute-modules=moe_act+layernorm"],
                 ["MODEL:mtp-layers=2", "--checkpoint", "full", "--recipe", "hf", "--dtype", "f32"]):
        seen = []
        for on in (["--device", "cpu", "--seed", 1], ["--device", "cpu", "--seed", 2], ["--device", "meta"]):
            p = profile(*placed("moe-tiny", *args, *on))
            phases = [phase["by_category"] | {"workspace": 0} for phase in p["phases"] + p["steady"]["phases"]]
            for tensor in p["saved"]["tensors"]:
                del tensor["storage"]  # scratch takes numbers, too
            seen.append((p["saved"], p["params"], p["flops"], phases))
        for other in seen[1:]:
            equal(other == seen[0], True, f"books of experts: {args}")


def print_difference(cpu, meta, path=""):
    if isinstance(cpu, list) and isinstance(meta, list):
        pairs = list(enumerate(zip(cpu, meta)))
        if len(cpu) != len(meta):
            print(f"  {path}: {len(cpu)} on cpu, {len(meta)} on meta")
    elif isinstance(cpu, dict) and isinstance(meta, dict):
        pairs = [(key, (cpu[key], meta.get(key))) for key in cpu]
    else:
        print(f"  {path}: {cpu!r} on cpu, {meta!r} on meta")
        return
    for key, (a, b) in pairs:
        if a != b:
            print_difference(a, b, f"{path}.{key}")
            return


def options():
    refused(["plain:scratch", "meta"], "profile", "mlp", "--recipe", "plain:scratch=cpu")
    refused(["plain:gemm-workspace", "meta"], "profile", "mlp", "--recipe", "plain:gemm-workspace=1MiB")
    refused(["plain:scratch", "none, cpu"], "profile", "mlp", "--device", "meta", "--recipe", "plain:scratch=cuda")
    for bad in ["0", "-1", "1.5", "40Gb", "GiB", "1e9", "9e9GB", "99999999999GB", ""]:
        refused(["--capacity", "40GiB"], "profile", "mlp", "--capacity", bad)
    for text, n in [("3000000", 3000000), ("40GiB", 40 << 30), ("1.5GB", 1500000000), ("40G", 40 << 30),
                    ("4gb", 4 * 10**9), ("2097152B", 2 << 20)]:
        equal(profile("mlp", "--capacity", text)["capacity"], n, f"--capacity {text}")
    p = profile("mlp", "--device", "meta", "--recipe", "plain:gemm-workspace=8519680")
    equal(p["growth"]["workspace"], 8519680, "one GEMM workspace after forward")
    equal([phase["by_category"]["workspace"] for phase in p["phases"]], [0, 8519680, 2 * 8519680],
          "each pass has its own workspace, from its first product on")
    equal([phase["by_category"]["workspace"] for phase in p["steady"]["phases"]], 2 * [2 * 8519680],
          "both workspaces exist from the beginning of the second step on")
    equal(p["growth"]["residual"], 0, "residual with a workspace")


def out_of_memory():
    """The step fails where the capacity is first exceeded, and says who held what."""
    args = ["gpt", "-l", 3, "-b", 8, "-s", 64, "--optimizer", "adamw"]
    whole = profile(*args, "--device", "meta")
    most = whole["steady"]["reserved"]
    for device in ["meta", "cpu"]:
        fits = run("profile", *args, "--device", device, "--capacity", most * (1 if device == "meta" else 2))
        equal(fits.returncode, 0, f"status with a capacity of what the step reserves, on {device}")
        p = run("profile", *args, "--device", device, "--capacity", most // 2)
        equal(p.returncode, 1, f"status when memory runs out on {device}")
        for words in ["Out of memory", "Who held what", "kept as", "input of", "parameter"]:
            check(words in p.stdout, f"{words!r} in the report on {device}: {p.stdout}")
        check("capacity of" in p.stderr, p.stderr)
        quiet = run("profile", *args, "--device", device, "--capacity", most // 2, "--quiet")
        equal((quiet.returncode, quiet.stdout), (1, ""), "--quiet when memory runs out")
    less = run("profile", *args, "--device", "meta", "--capacity", most - 1)
    equal(less.returncode, 1, "status with one byte less than the step reserves")
    j = json.loads(run("profile", *args, "--device", "meta", "--capacity", most // 2, "--json", "-",
                       "--timeline").stdout)
    oom = j["out_of_memory"]
    equal(sum(oom["by_category"].values()), oom["allocated"], "categories at the refusal")
    equal(j["timeline"][oom["event"]]["kind"], "oom", "the refused event")
    equal(j["timeline"][oom["event"]]["bytes"], oom["requested"], "bytes of the refused request")
    check(oom["op"] and oom["module"].startswith("gpt.h."), f"who asked: {oom['module']}")
    equal(oom["step"], 2 if oom["event"] >= whole["steady"]["event"] else 1, "the step that was refused")
    check(oom["allocated"] <= most // 2 < oom["allocated"] + max(oom["requested"], 20 << 20),
          "the refused request would have exceeded the capacity")
    kept = [h["kept"] for h in oom["largest"] if h["kept"]]
    check(kept and all(k["role"] in ("input", "output", "aux") for k in kept), "roles of what is kept")


# Times, rates, and figures computed from values: meta can measure none of them.
NEEDS_DATA = (r"(?i)\bms\b|millisecond|FLOP/s|tok/s|bytes, .* a second|\bloss [-0-9]|\bnan\b|\binf\b|"
              r"gradients (off|the same|are)|held-out|skipped|hidden")
VALUES = {"seconds", "step_seconds", "copy_seconds", "wait_seconds", "hidden", "loss", "same_bits",
          "relative", "steps", "skipped"}


def values_in(at, path=""):
    """The paths of all keys of VALUES that are not null, at any depth of an object."""
    if isinstance(at, dict):
        for key, inner in at.items():
            if key in VALUES and inner is not None:
                yield f"{path}.{key}"
            if key != "model":  # its `hidden` is a width
                yield from values_in(inner, f"{path}.{key}")
    elif isinstance(at, list):
        for inner in at:
            yield from values_in(inner, path + "[]")


def nothing_is_invented():
    """No verb reports what it did not measure: a device without data has no times and no values."""
    scaled = ["--loss-scale", "dynamic"]  # only profile shows its bytes
    memory_options = ["--optimizer", "adamw", "--offload", "cpu", "--amp", "bf16", "--checkpoint", "full",
                      "--compress", "bits", "--dropout", 0.1]
    text = ["--data", os.path.abspath(__file__)]
    measured = tempfile.NamedTemporaryFile("w", suffix=".log")
    measured.write("max_memory_allocated: 123456789\n")
    measured.flush()
    verbs = {
        "profile": [["gpt"], ["block", "--timeline"], ["gpt", *memory_options, *scaled],
                    ["gpt", "--budget", "1GB"], ["gpt", "--tp", 2]],
        "sweep": [["gpt", "--over", "act=relu,gelu"], ["block", "--over", "checkpoint=none,full"],
                  ["gpt", "--row", "plain:", "--row", "smaller: " + " ".join(map(str, memory_options))]],
        "explain": [["gpt"], ["mlp", *["-s", 4]]],
        "train": [[*text, "--steps", 3], [*text, "--steps", 3, "--amp", "f16"]],
        "plan": [["gpt"], ["gpt", "--budget", "1GB"], ["gpt", "--capacity", "1GB"]],
        "fit": [["gpt", "--gpus", 4, "--gpu", "h100"]],
        "serve": [["gpt", "--capacity", "9MiB"]], "compare": [[measured.name, "gpt"]],
        "demo": [["--steps", 3]], "generate": [["--model", "x.safetensors"]]}
    equal(set(verbs), {verb["name"] for verb in help_json()["verbs"]}, "the verbs of this test are those of the help")
    with tempfile.TemporaryDirectory() as folder:
        for verb, all_args in verbs.items():
            for args in all_args:
                on = [] if verb in ("plan", "fit", "serve", "compare") else ["--device", "meta"]
                p = run(verb, *args, *on)
                if verb in ("demo", "generate"):  # all that they report comes from values
                    equal((p.returncode, p.stdout), (2, ""), f"{verb} {args}: refused")
                    check("--device meta" in p.stderr and "cpu" in p.stderr, f"{verb} {args}: {p.stderr}")
                    continue
                equal(p.returncode, 0, f"status of {verb} {args}: {p.stderr}")
                reported = [line for line in (p.stdout + p.stderr).splitlines() if re.search(NEEDS_DATA, line)]
                equal(reported, [], f"{verb} {args}: printed")
                if verb in ("explain", "train"):
                    continue  # these verbs write no JSON
                picture, file = (os.path.join(folder, name) for name in ("picture.svg", "object.json"))
                drawn = ["--svg", picture] if verb == "sweep" else []
                run(verb, *args, *drawn, *on, "--json", file, "-q")
                with open(file) as f:
                    equal(list(values_in(json.load(f))), [], f"{verb} {args}: written as JSON")
                if drawn:
                    with open(picture) as f:
                        equal(re.findall(NEEDS_DATA, f.read()), [], f"{verb} {args}: drawn")
        out = os.path.join(folder, "out")
        for option in (["--save", out], ["--eval-every", 1], ["--save-adapter", out, "--lora-rank", 1, "--from", out]):
            refused([option[0], "meta"], "train", *text, "--steps", 1, "--device", "meta", *option)
        equal(sorted(os.listdir(folder)), ["object.json", "picture.svg"], "nothing was saved")
    timed = run("sweep", "gpt", "--over", "device=cpu,meta", "--steps", 1).stdout
    check(re.search(r"device=cpu .* \d+\.\d\d ", timed) and "ms a step" in timed,
          f"the CPU's row has a time: {timed}")
    for words in ["milliseconds", "FLOP/s"]:
        check(words in run("profile", "mlp", "-v").stdout, f"{words} on the CPU")


def replay(events):
    """Each event with the bytes by category and the live storages after it, counted from the events."""
    live, totals = {}, {}
    for e in events:
        key, n = e["storage"], e["allocated"]
        if e["kind"] == "alloc":
            check(key not in live, f"storage {key} is new")
            live[key] = e
            totals[e["category"]] = totals.get(e["category"], 0) + n
        else:
            check(live[key]["allocated"] == n, f"storage {key} keeps its size")
            was = e["was"] or e["category"]
            totals[was] -= n
            if e["kind"] == "free":
                del live[key]
            else:
                totals[e["category"]] = totals.get(e["category"], 0) + n
        equal(sum(totals.values()), e["current"], "the running total")
        yield e, dict(totals), dict(live)


def timeline():
    p = profile("gpt", "-l", 3, "--optimizer", "adamw", "--device", "meta", "--timeline")
    peak, second = p["peak"], p["steady"]["event"]
    ends = {}
    for i, (e, totals, live) in enumerate(replay(p["timeline"])):
        if e["phase"]:
            ends[i >= second, e["phase"]] = totals
        if i == peak["event"]:
            equal({c: n for c, n in peak["by_category"].items() if n},
                  {c: n for c, n in totals.items() if n}, "categories at the peak")
            equal(len(live) >= sum(h["storages"] for h in peak["largest"]), True,
                  "at least as many live storages as the peak lists")
            of_fc = [s["allocated"] for s in live.values() if s["category"] == "activation" and
                     re.fullmatch(r"gpt\.h\.\d\.mlp\.fc", s["module"])]
            reported = [(h["storages"], h["allocated"], h["kept"]) for h in peak["largest"] if
                    h["category"] == "activation" and h["module"] == "gpt.h.0-2.mlp.fc"]
            equal(reported, [(3, sum(of_fc), {"op": "gelu", "role": "input", "name": "x"})],
                  "activations of three layers on one line, with the op that keeps them in the second step")
    for events, phases in [(p["timeline"][:second], p["phases"]), (p["timeline"][second:], p["steady"]["phases"])]:
        equal(max(e["current"] for e in events), max(phase["peak"] for phase in phases), "peaks of phases")
    for is_second, phases in [(False, p["phases"]), (True, p["steady"]["phases"])]:
        for phase in phases:
            got = {c: n for c, n in ends[is_second, phase["name"]].items() if n}
            equal(got, {c: n for c, n in phase["by_category"].items() if n}, f"end of {phase['name']}")
    names = {e["module"] for e in p["timeline"] if e["phase"] == "init" and e["kind"] == "alloc"}
    check("h.2.mlp.fc.weight" in names, "parameters have their names")
    text = run("profile", "gpt", "-l", 3, "--device", "meta", "--timeline").stdout
    check("Over two steps" in text and "What made the peak" in text, "the timeline as text")
    text = run("profile", "gpt", "-l", 4, "-d", 256, "--dp", 8, "--zero", 3, "--recipe", "plain:fsdp=block", "--device", "meta", "--timeline").stdout
    check(re.search(r"[pa]m{3,}$", text, re.M), "bytes of communication in a bar of the timeline")
    check(max(map(len, text.splitlines())) <= 120, "width of the longest line")


def pictures():
    with tempfile.TemporaryDirectory() as folder:
        svg, trace = os.path.join(folder, "t.svg"), os.path.join(folder, "t.json")
        for device in ["meta", "cpu"]:
            p = run("profile", "gpt", "-l", 2, "--optimizer", "sgd", "--device", device, "--svg", svg,
                    "--trace", trace, "--timeline", "--json", "-")
            equal(p.returncode, 0, f"status with pictures: {p.stderr}")
            events = json.loads(p.stdout)["timeline"]
            with open(svg) as f:
                picture = f.read()
            for words in ["<svg", "</svg>", "peak", "first step", "second step", "init", "forward", "backward", "step",
                          "parameter", "activation", f"{len(events)} events"]:
                check(words in picture, f"{words!r} in the picture")
            with open(trace) as f:
                records = json.load(f)["traceEvents"]
            counters = [r for r in records if r["ph"] == "C"]
            equal([sum(r["args"].values()) for r in counters], [e["current"] for e in events],
                  "the counters of the trace")
            times = [r["ts"] for r in counters]
            equal(times, sorted(times), "times in the trace, in order")
            slices = {row: [r["name"] for r in records if r["ph"] == "X" and r["tid"] == row] for row in (1, 2)}
            equal(slices, {1: ["first step", "second step"],
                           2: ["init"] + 2 * ["forward", "backward", "step"]}, "steps and phases of the trace")
        bad = run("profile", "mlp", "--svg", os.path.join(folder, "no", "t.svg"))
        equal(bad.returncode, 1, "status when the picture cannot be written")
        bad = run("profile", "mlp", "--trace", os.path.join(folder, "no", "t.json"))
        equal(bad.returncode, 1, "status when the trace cannot be written")


def instructions(layers):
    """The number of instructions that a whole run executes on one thread; other programs do not change it. Of malloc as it
    is by itself: not filling blocks, and growing large ones where they are."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")}
    p = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", MEMTAPE,
                        "profile", "gpt", "-l", str(layers), "--device", "meta", "--optimizer", "adamw"],
                       capture_output=True, text=True, env=dict(env, OMP_NUM_THREADS="1"))
    found = re.search(r"Collected : (\d+)", p.stderr)
    check(found, f"valgrind counts instructions: {p.stderr[-300:]}")
    return int(found[1]) if found else 0


def linear():
    """Twice the layers: twice the events and (almost exactly) twice the work."""
    layers = (24, 48, 96, 192) if LONG else (12, 24, 48, 96)
    n = [len(profile("gpt", "-l", l, "--optimizer", "adamw", "--device", "meta", "--timeline")["timeline"])
         for l in layers[:3]]
    equal(n[2] - n[1], 2 * (n[1] - n[0]), f"events of {layers[:3]} layers: {n}")
    if not shutil.which("valgrind"):
        print("skipped: the count of instructions needs valgrind")
        return
    n = [instructions(l) for l in layers[1:]]
    print(f"instructions for {layers[1:]} layers: {n}")
    check(n[2] - n[1] < 1.05 * 2 * (n[1] - n[0]), f"work in proportion to the layers: {n}")


def gpt3_on_a_laptop():
    """A step of 175 billion parameters in less than 100 MiB."""
    for attention in ["flash", "math"]:
        p = subprocess.Popen([MEMTAPE, "profile", "gpt3-175b", "-b", "1", "-s", "2048", "--device",
                              "meta", "--optimizer", "adamw", "--attention", attention, "--expandable-segments", "--json", "-"],
                             stdout=subprocess.PIPE, text=True)
        report = json.loads(p.stdout.read())
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        equal(p.returncode, 0, f"status of gpt3-175b, {attention}")
        check(used.ru_maxrss < 100 * 1024, f"{attention}: {used.ru_maxrss} KiB resident")
        count = report["params"]["count"]
        equal(count, 12288 * (50257 + 2048) + 96 * (12 * 12288**2 + 13 * 12288) + 2 * 12288,
              "parameters: embeddings, layers, last norm")
        equal(report["phases"][3]["by_category"]["optimizer"], 8 * count, "two f32 per parameter")


if sys.argv[1] == "books":
    met = same_books(20261120, int(os.environ.get("MEMTAPE_CONFIGURATIONS", 300 if LONG else 150)))
    for word in ["linear", "mlp", "MODEL:out-act", "attention", "block", *WHOLE, "flash", "math", "--inplace", "--offload", "disk",
                 "--compress", "--amp", "--lora-rank", "--qlora", "plain:qlora-double", "plain:codes=int8", "--master-weights", "plain:f32-gradients",
                 "plain:step-in-backward", "--loss-scale", "adamw", "sgd", "sgd-momentum", "full", "selective", "ops", "sqrt", "every=2", "MODEL:norm-kind=rmsnorm", "post"]:
        check(word in met, f"no compared configuration has {word}")
else:
    options()
    out_of_memory()
    experts_have_the_same_books()
    nothing_is_invented()
    timeline()
    pictures()
    linear()
    gpt3_on_a_laptop()
done()
