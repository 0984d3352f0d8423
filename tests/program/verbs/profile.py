"""`memtape profile`: the published figures, exact; and the equations, for many sizes."""
import fcntl
import itertools
import json
import os
import pty
import random
import re
import struct
import subprocess
import sys
import tempfile
import termios
from pathlib import Path
from lib import MEMTAPE, check, documented_keys, done, equal, names_of, paths, placed, profile, refused, run

OPTIMIZERS = names_of("--optimizer")
ACTS = names_of("--act")
CONFIGS = Path(__file__).parents[2] / "models" / "nn" / "configs"

MLP = ["mlp", "-b", 2, "-s", 4096, "-d", 1024, "--dtype", "bf16"]
BLOCK = ["block:causal", "-b", 2, "-s", 4096, "-d", 1024, "-a", 2, "--attention", "flash",
         "--dtype", "bf16"]


def published():
    """In the long form two of them on real data; otherwise on meta, which measures the same, as meta.py shows."""
    with_data = ("mlp relu", "block gelu") if os.environ.get("MTT_LONG") == "1" else ()
    for args, wanted in [(MLP + ["--act", "relu"], 83886080), (MLP + ["--act", "gelu"], 150994944),
                         (BLOCK + ["--act", "relu"], 201523216),
                         (BLOCK + ["--act", "gelu"], 268632080)]:
        p = profile(*args, *([] if f"{args[0]} {args[-1]}" in with_data else ["--device", "meta"]))
        equal(p and p["saved"]["bytes"], wanted, f"saved bytes of {args}")


def balanced(p, args):
    """Every equation that docs/profile-json.md promises."""
    g, f, saved = p["growth"], p["formula"], p["saved"]
    equal(g["residual"], 0, f"growth residual of {args}")
    equal(f["unexplained"], 0, f"unexplained bytes of {args}")
    equal(g["measured"],
          g["saved"] - g["before"] + g["rounding"] + g["output"] + g["workspace"], f"growth {args}")
    equal(saved["bytes"], f["bytes"] + sum(t["bytes"] for t in f["residual"]), f"formula {args}")
    equal(f["bytes"], sum(t["bytes"] for t in f["terms"]), f"terms {args}")
    equal(saved["bytes"], sum(t["bytes"] for t in saved["tensors"]), f"sum of tensors {args}")
    equal(saved["allocated"], sum(t["allocated"] for t in saved["tensors"]), f"blocks {args}")
    equal(saved["storages"], len(saved["tensors"]), f"number of tensors {args}")
    equal(len({t["storage"] for t in saved["tensors"]}), saved["storages"], f"distinct {args}")
    steady = p["steady"]
    for phase in p["phases"] + steady["phases"]:
        equal(phase["allocated"], sum(phase["by_category"].values()), f"categories {args}")
        equal(phase["peak"], sum(phase["at_peak"].values()), f"categories at the peak {args}")
        check(phase["allocated"] <= phase["peak"] <= phase["reserved"] or phase["name"] == "init",
              f"order of figures {args}")
    state = p["phases"][-1]["by_category"]["optimizer"]
    for first, second in zip(p["phases"][1:], steady["phases"], strict=True):
        more = state if second["name"] != "step" else 0  # the first step makes the state in its "step"
        equal((second["name"], second["allocated"], second["peak"]),
              (first["name"], first["allocated"] + more, first["peak"] + more),
              f"the second step is the first plus the optimizer's state: {args}")
    equal(steady["peak"], max(phase["peak"] for phase in steady["phases"]), f"steady peak {args}")
    equal(steady["peak"], sum(steady["by_category"].values()), f"its categories {args}")
    equal((p["peak"]["allocated"], p["peak"]["by_category"], p["peak"]["step"]),
          (steady["peak"], steady["by_category"], 2), f"the peak is that of the steady step {args}")
    check(steady["peak"] <= max(phase["reserved"] for phase in steady["phases"]) <= steady["reserved"],
          f"order of figures in the steady state {args}")


def sizes_of_a_paper():
    """34bsh + 5abs^2, in the paper's own terms, and its variations."""
    for dtype, norm in itertools.product(["bf16", "f16"], ["pre", "post"]):
        for b, s, a, h in [(1, 1, 1, 1), (2, 3, 1, 5), (3, 7, 3, 9), (1, 17, 4, 20), (2, 32, 4, 64)]:
            args = ["block", "-b", b, "-s", s, "-a", a, "-d", h, "--attention", "math",
                    "--dropout", 0.1, "--dtype", dtype, "--norm", norm]
            p = profile(*placed(*args))
            if not p:
                continue
            equal(p["formula"]["text"], "34bsh + 5abs^2", f"formula of {args}")
            equal(p["formula"]["bytes"], 34 * b * s * h + 5 * a * b * s * s, f"value {args}")
            norms = sum(t["bytes"] for t in p["formula"]["residual"])
            equal(norms, 16 * b * s, f"statistics of two layer norms, 16 bytes per token: {args}")
            balanced(p, args)
    for kind, act, text in [("mlp", "gelu", "18bsh"), ("mlp", "relu", "10bsh"),
                            ("block", "gelu", "32bsh"), ("block", "relu", "24bsh")]:
        p = profile(kind, "--act", act, "--dtype", "bf16")
        equal(p and p["formula"]["text"], text, f"formula of {kind} with {act}")


def any_choice(seed, n):
    """Random combinations of options: every equation holds to the byte."""
    draw = random.Random(seed)
    for _ in range(n):
        kind = draw.choice(["linear", "mlp", "attention", "block", "gpt"])
        a = draw.choice([1, 1, 2, 3])
        args = [kind, "-b", draw.randint(1, 4), "-s", draw.choice([1, 2, 5, 16, 31, 130]),
                "-d", a * draw.choice([1, 2, 5, 8, 33]),
                "--dtype", draw.choice(["f32", "bf16", "f16", "f64"]),
                "--optimizer", draw.choice(OPTIMIZERS)]
        if kind != "linear":
            args += ["--dropout", draw.choice([0, 0.1, 0.9])]
        if kind == "linear":
            args += draw.choice([[], ["--ffn", draw.randint(1, 70)]])
        elif kind != "mlp":
            args += ["-a", a, "--attention", draw.choice(["flash", "math"])]
            args += draw.choice([[], ["MODEL:causal"]]) if kind != "gpt" else []
        if kind not in ("linear", "attention"):
            act = draw.choice(ACTS)
            args += ["--act", act] + draw.choice([[], ["--ffn", draw.randint(1, 70)]])
            if act in ("relu", "leaky_relu"):
                args += draw.choice([[], ["--inplace"]])
        if kind in ("block", "gpt"):
            args += ["--norm", draw.choice(["pre", "post"])]
        if kind == "gpt":
            args += ["-l", draw.randint(1, 3), "--vocab", draw.choice([1, 7, 256])]
        p = profile(*placed(*args))
        if p:
            balanced(p, args)


def any_memory_options(seed, n):
    """The same with checkpoints, offload and compression; where there is no formula, none is reported."""
    draw = random.Random(seed)
    for _ in range(n):
        kind = draw.choice(["mlp", "attention", "block", "gpt", "bert", "llama"])
        args = [kind, "-b", draw.randint(1, 3), "-s", draw.choice([1, 5, 16, 31, 70]),
                "-d", draw.choice([8, 40, 64]), "--dropout", draw.choice([0, 0.1]),
                "--dtype", draw.choice(["f32", "bf16", "f16"]),
                "--checkpoint", draw.choice(["none", "full", "ops"] + ["selective"] * (kind != "mlp") + ["every=2", "sqrt"] * (kind in ("gpt", "bert", "llama")))]
        if kind != "llama" and kind != "attention":
            args += ["--act", draw.choice(["relu", "leaky_relu", "gelu", "gelu_tanh", "tanh"])]
            if args[-1] == "gelu_tanh":
                args += ["--recipe", "plain:gelu-tanh=" + draw.choice(["fused", "unfused"])]
        if kind in ("gpt", "bert", "llama"):
            args += ["-l", draw.randint(1, 4), "--vocab", draw.choice([7, 256]),
                     "--recipe", draw.choice(["none", "hf"])]
        if kind in ("block", "gpt"):
            args += ["MODEL:norm-kind=" + draw.choice(["layernorm", "rmsnorm"])]
        if kind == "mlp":
            args += ["MODEL:out-act=" + draw.choice(["relu", "leaky_relu", "gelu", "sigmoid"])]
        else:
            args += ["-a", 4, "--attention", draw.choice(["flash", "math"])]
            args += draw.choice([[], [], ["--kv-heads", 2], ["--kv-heads", 1]])
        args += draw.choice([[], ["--offload", "cpu"], ["--offload", "disk"], ["--compress", "8bit"],
                             ["--compress", "bf16"], ["--compress", "seed"], ["--compress", "signs"],
                             ["--compress", "bits+8bit"], ["--amp", "bf16"], ["--lora-rank", 2]])
        if "--amp" in args:
            args[args.index("--dtype") + 1] = "f32"
        p = profile(*placed(*args))
        if p and p["formula"]:
            balanced(p, args)
        elif p:
            equal(p["growth"]["residual"], 0, f"growth residual of {args}")
            check("--amp" in args or "--lora-rank" in args, f"no formula for {args}")


def logits_in_chunks():
    """Offload and compression take each chunk's logits by its own size; the first chunks may be longer."""
    for length, how in itertools.product((1, 4, 13, 16), (["--offload", "cpu"], ["--compress", "8bit"])):
        args = ["llama", "-b", 3, "-s", length, "-d", 32, "-a", 4, "-l", 1, "--loss", "chunked", "--device", "meta", *how]
        p = profile(*placed(*args))
        if p:
            balanced(p, args)


def no_gradient_in_a_checkpoint():
    """An adapter after attention: nothing in the first layer's checkpoint has a gradient, so its input is not kept."""
    for targets, n in (("attn.proj", 1), ("mlp.proj", 1), ("attn.qkv", 2)):
        args = ["gpt", "-b", 2, "-s", 16, "-d", 16, "-a", 4, "-l", 2, "--lora-rank", 3, "--lora-targets", targets,
                "--checkpoint", "selective"]
        for device in ("cpu", "meta"):
            p = profile(*args, "--device", device)
            if p:
                equal(p["growth"]["residual"], 0, f"growth residual of {args} on {device}")
                equal(sum(t["op"] == "checkpoint" for t in p["saved"]["tensors"]), n, f"checkpoints of {args}")


def steady_state():
    """--capacity, sweep and plan use the second step, in which the optimizer has its state."""
    model = ["llama-3.1-8b", "-b", 1, "-s", 8192, "--dtype", "bf16", "--optimizer", "adamw",
             "--device", "meta"]
    p = profile(*model)
    equal(max(phase["peak"] for phase in p["phases"]), 96363266048, "the first step's peak")
    equal((p["steady"]["peak"], p["steady"]["reserved"]), (121182594048, 121443975168),
          "the second step's peak and what it reserves")
    balanced(p, model)
    step = json.loads(run("plan", *model[:9], "--json", "-").stdout)["step"]
    equal((step["peak"], step["reserved"], step["at_peak"], step["phase"]),
          (p["steady"]["peak"], p["steady"]["reserved"], p["steady"]["by_category"], "the second step"),
          "a plan's step")
    for capacity, status in [("98GB", 1), (p["steady"]["peak"] - 1, 1), (p["steady"]["reserved"], 0)]:
        outcome = run("profile", *model, "--capacity", capacity)
        equal(outcome.returncode, status, f"status with {capacity}: {outcome.stderr}")
        equal("second step" in outcome.stdout.split("Who held")[0], status == 1,
              f"the text for {capacity} names the second step")
        check(("Fits in " if status == 0 else "Out of memory") in outcome.stdout, f"the answer for {capacity}")
    swept = json.loads(run("sweep", *model, "--over", "checkpoint=none,full,selective", "--json",
                           "-").stdout)["rows"]
    equal(len({row["peak"] for row in swept}), 3, "three checkpoint presets have three peaks")
    for row, preset in zip(swept, ["none", "full", "selective"], strict=True):
        steady = profile(*model, "--checkpoint", preset)["steady"]
        equal(row["steady"], {key: steady[key] for key in ("requested", "peak", "active", "reserved", "by_category")},
              f"the swept row {preset}")
        equal((row["peak"], row["reserved"]), (steady["peak"], steady["reserved"]),
              f"peak of the swept row {preset}")


CUBLAS = ["--device", "meta", "--recipe", "plain:gemm-workspace=8519680"]


def small_networks():
    """One linear layer, and a network of two, as PyTorch's allocator counts them on a GPU."""
    p = profile("linear", "-b", 1, "-d", 256, "--ffn", 250, *CUBLAS)
    equal([phase["allocated"] for phase in p["phases"]], [258048, 8778752, 17555456], "a linear layer")
    equal(p["phases"][0]["by_category"]["parameter"], 257024, "its parameters")
    equal([phase["by_category"]["workspace"] for phase in p["phases"]], [0, 8519680, 17039360], "a pass each")
    equal(p["left"], {"freed": 17039360, "given_back": 0}, "what is left")
    equal((p["params"], p["model"]["seq"], p["formula"]["text"]), ({"count": 64250, "bytes": 257000}, 1, "4bsh"),
          "a linear layer of 256 x 250, and its biases")
    p = profile("mlp:out-act=sigmoid", "-b", 5, "-s", 1, "-d", 200, "--ffn", 100, "--act", "relu", *CUBLAS)
    equal([phase["allocated"] for phase in p["phases"]], [166400, 8692224, 17372160], "a network of two layers")
    equal([(t["op"], t["name"], t["bytes"]) for t in p["saved"]["tensors"]],
          [("linear", "x", 4000), ("relu", "y", 2000), ("sigmoid", "y", 4000)], "what it keeps")
    equal(profile("linear")["left"], {"freed": 0, "given_back": 0}, "without a workspace nothing is left")
    text = run("profile", "linear", *CUBLAS, "-v").stdout
    check("17,039,360 bytes stay" in text and "given back, 0." in text, "the text says what is left")
    for act, kept in [("relu", "output"), ("tanh", "output"), ("gelu", "input"), ("leaky_relu", "input")]:
        p = profile(f"mlp:out-act={act}", "--device", "meta")
        equal(p["formula"]["terms"][-1]["what"], f"{kept} of the last activation", f"{act} at the end")
        balanced(p, act)


def inference():
    """--inference: a forward without a tape, compared with training's forward, for every MODEL."""
    p = profile("mlp:out-act=sigmoid", "-b", 5, "-s", 1, "-d", 200, "--ffn", 100, "--act", "relu",
                "--inference", *CUBLAS)
    of = p["inference"]
    equal([phase["allocated"] for phase in of["phases"]], [166400, 8690176], "a network of two layers")
    equal((of["saved"], of["left"]), (0, {"freed": 8519680, "given_back": 0}), "bytes saved and left by the network")
    equal(p["phases"][1]["allocated"] - of["phases"][1]["allocated"], 2048, "relu's output")
    p = profile("linear", "-b", 1, "-d", 256, "--ffn", 250, "--inference", *CUBLAS)
    equal(([phase["allocated"] for phase in p["inference"]["phases"]], p["inference"]["left"]["freed"]),
          ([258048, 8778752], 8519680), "a linear layer")
    for model in ["linear", "mlp", "attention", "block", "gpt", "bert", "llama"]:
        dropout = [] if model == "linear" else ["--dropout", 0.1]
        for device in ["cpu", "meta"]:
            args = [model, *dropout, "--inference", "--device", device]
            p = profile(*placed(*args))
            alone = profile(*args[:-3], "--device", device)
            of = p.pop("inference")
            equal(alone.pop("inference"), None, f"null without --inference: {args}")
            if device == "meta":
                equal(p, alone, f"the rest is the same as without the option: {args}")
            init, forward = of["phases"]
            equal((of["saved"], of["left"]), (0, {"freed": 0, "given_back": 0}), f"keeps nothing: {args}")
            equal(forward["allocated"], init["allocated"] + forward["by_category"]["output"],
                  f"only the output is new: {args}")
            equal(forward["by_category"]["activation"], 0, f"no activation: {args}")
            training = p["phases"][1]["peak"]  # a linear keeps its input alone, which is there anyway
            check(forward["peak"] == training if model == "linear" else forward["peak"] < training,
                  f"less than training: {args}")
            equal(of["flops"], p["flops"]["forward"], f"the same work: {args}")
    with_options = profile("gpt", "--inference", "--checkpoint", "full", "--offload", "cpu", "--compress",
                           "bits", "--lora-rank", 2, "--device", "meta")["inference"]
    plain = profile("gpt", "--inference", "--lora-rank", 2, "--device", "meta")["inference"]
    equal(with_options, plain, "without a tape memory options change nothing")
    text = run("profile", "mlp", "--inference", "-v").stdout
    check(re.search(r"at the end of forward +inference +training\n", text), "two columns")
    check(re.search(r"saved for backward +0 +[\d,]+\n", text), "a line for what is saved")
    check("ends with the logits" in run("profile", "gpt", "--inference", "-v").stdout, "no loss")


def optimizers():
    """Plain SGD keeps nothing, momentum one number for each parameter, AdamW two."""
    for name, each in [("sgd", 0), ("sgd-momentum", 1), ("adamw", 2), ("lion", 1)]:
        p = profile("mlp", "-d", 64, "--optimizer", name, "--device", "meta")
        equal((p["model"]["optimizer"], p["steady"]["phases"][-1]["by_category"]["optimizer"]),
              (name, each * p["phases"][0]["by_category"]["parameter"]), f"what {name} keeps")


def number(text):
    return int(text.replace(",", ""))


def answer(text):
    """The exact bytes of the answer's rows: a name, the same in a larger unit, the bytes."""
    rows = re.findall(r"^  ([a-z_][a-z_,: ]*?) {2,}[\d.]+ [KMGT]?i?B +([\d,]+)(?: |$)", text, re.M)
    return {name: number(n) for name, n in rows}


MODES = [["gpt2", "--optimizer", "adamw"], ["llama-7b", "-s", 2048, "--dtype", "bf16"], ["block"], ["mlp"], ["linear"],
         ["gpt3-175b", "-b", 1, "--tp", 8, "--pp", 4], ["gpt2", "--budget", "2GiB"], ["gpt2", "--inference"],
         ["gpt2", "--checkpoint", "full"], ["gpt2", "--capacity", "80GiB"], ["gpt", "--tp", 2, "--offload", "cpu"]]


def the_answer_comes_first():
    """Without -v a profile is a screen, whose figures are those of the JSON; -v begins with the same."""
    for args in MODES:
        args = [*args, "--device", "meta"]
        text, whole, p = run("profile", *args).stdout, run("profile", *args, "-v").stdout, profile(*args)
        rows, of = answer(text), p["steady"]["by_category"]
        check(len(text.splitlines()) <= 24 + 8 * ("--budget" in args), f"{args}: {len(text.splitlines())} lines")
        check(whole.startswith(text[:text.index("saved for backward")]), f"{args}: -v begins with the answer")
        check(len(whole.splitlines()) > 40, f"{args}: details with -v")
        equal((rows["allocated"], rows["reserved"], rows["saved for backward"]),
              (p["steady"]["peak"], p["steady"]["reserved"], p["saved"]["bytes"]), f"the peak of {args}")
        shown = {name: rows[name] for name in of if name in rows}
        equal(shown, {name: of[name] for name in shown}, f"what the peak of {args} is made of")
        equal(sum(shown.values()) + rows.get("input, output", 0), p["steady"]["peak"], f"the sum of {args}")
        check({"parameter", "gradient", "activation", "temporary"} <= set(rows), f"{args}: rows {sorted(rows)}")
        equal("optimizer" in rows, p["model"]["optimizer"] != "none", f"{args}: a row for the optimizer")
        where = p["peak"]
        loss = where["module"] == "loss"
        check(f"reached {'at the start of' if loss else 'in'} {where['phase']}, in {'the ' * loss}{where['module']} ({where['op']})" in text, f"{args}: where")
        equal("Fits in 80 GiB" in text, "--capacity" in args, f"{args}: whether it fits")
    check("Saved for backward" in run("profile", "mlp").stdout, "a small model's details fit on the screen")
    p = profile("gpt2", "--inference", "--device", "meta")
    rows = answer(run("profile", "gpt2", "--inference", "--device", "meta").stdout)
    equal((rows["inference: allocated"], rows["inference: reserved"]),
          tuple(max(phase[key] for phase in p["inference"]["phases"]) for key in ("peak", "reserved")), "inference")


def sections_are_shown():
    """--show prints of all details the sections whose heading has the words, as they stand there."""
    for verb in ("profile", "plan"):
        whole = run(verb, "gpt2", "-v").stdout
        headings = re.findall(r"(?<=\n\n)(?=\S)(.*)\n", whole)
        check(len(headings) > 5, f"{verb}: {headings}")
        for heading in headings:
            text = run(verb, "gpt2", "--show", heading.upper()).stdout
            check(text.startswith(heading + "\n") and f"\n\n{text}" in whole and text.count("\n") > 2, f"{verb} --show {heading!r}: {text}")
        p = run(verb, "gpt2", "--show", "no such words")
        equal((p.returncode, p.stdout), (2, ""), f"{verb}: words that no heading has")
        check("there are: The peak of a training step; " in p.stderr, p.stderr)
    both = run("plan", "gpt2", "--show", "flops").stdout
    equal(len(re.findall(r"^Flops", both, re.M)), 2, "two headings have the word")
    refused(["--show", "no text"], "plan", "gpt2", "--show", "flops", "--json", "-")
    refused(["--show"], "sweep", "gpt2", "--show", "flops")


def on_a_terminal(columns, *args):
    """The lines that the program prints on a terminal of that many columns and 24 lines."""
    terminal, other_end = pty.openpty()
    fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    p = subprocess.Popen([MEMTAPE, *map(str, args)], stdout=other_end, env=dict(os.environ, TERM="xterm", NO_COLOR="1"))
    os.close(other_end)
    text = b""
    try:
        while part := os.read(terminal, 65536):
            text += part
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    equal(p.wait(), 0, f"status of {args} on a terminal")
    return text.decode().replace("\r", "").splitlines()


def a_screen_of_80_columns():
    for args in [["profile", "gpt2", "--capacity", "80GiB"], ["profile", "llama-7b", "-s", 2048], ["profile", "block"],
                 ["profile", "mlp"], ["profile", "gpt3-175b", "-b", 1, "--tp", 8, "--pp", 4],
                 ["profile", "gpt2", "--inference"], ["explain", "gpt2"], ["explain", "llama-3.1-8b"],
                 ["plan", "gpt2"], ["plan", "llama-7b", "--capacity", "80GiB"]]:
        lines = on_a_terminal(80, *args, *(["--device", "meta"] if args[0] != "plan" else []))
        check(len(lines) <= 24 and max(map(len, lines)) <= 80,
              f"{args}: {len(lines)} lines of at most {max(map(len, lines))} columns")
    narrow = on_a_terminal(60, "profile", "gpt2", "-v", "--device", "meta")
    check(any(re.match(r"  gp\u2026\S*qkv ", line) for line in narrow), "a path keeps its end on a narrow terminal")
    check("\u2026" not in run("profile", "gpt2", "-v", "--device", "meta").stdout, "nothing is cut in a pipe")


def outside_rows():
    """What a card holds beside tensors: `reserved` and the rows come to the total, wherever the workspaces are."""
    MIB = 1 << 20
    args = ["gpt2", "-b", 1, "-s", 64, "--device", "meta"]
    for gpu, context, workspace in (("h100", 300 * MIB, 32 * MIB), ("l40s", 426 * MIB, 8519680)):
        p = profile(*args, "--outside", "--gpu", gpu)
        plain = profile(*args, "--recipe", f"plain:gemm-workspace={workspace}")
        equal(p["steady"], plain["steady"], f"{gpu}: the steps are those with cuBLAS's workspace")
        rows = {row["name"]: row for row in p["outside"]["rows"]}
        equal((rows["CUDA context"]["bytes"], rows["CUDA context"]["side"]), (context, "outside"), gpu)
        equal((rows["cuBLAS workspaces, 2"]["bytes"], rows["cuBLAS workspaces, 2"]["side"]), (2 * workspace, "in reserved"), gpu)
        equal(p["outside"]["reserved"], p["steady"]["reserved"], gpu)
        equal(p["outside"]["total"], p["steady"]["reserved"] + context, f"{gpu}: what nvidia-smi shows")
        check(all(row["source"] for row in rows.values()), f"{gpu}: every row has a source")
    equal(profile(*args)["outside"], None, "not asked for")
    ranks = profile(*args, "--outside", "--tp", 2, "--dp", 4)
    nccl = [(row["name"], row["bytes"]) for row in ranks["outside"]["rows"] if row["name"].startswith("NCCL")]
    equal(nccl, [("NCCL, tp's 2 ranks", 544 * MIB), ("NCCL, dp's 4 ranks", 688 * MIB)], "a communicator for each group")
    cpu = profile("gpt", "--outside", "--device", "cpu")["outside"]
    equal([row["side"] for row in cpu["rows"]], ["outside", "uncounted", "if captured"], "the CPU has no cuBLAS")
    equal(cpu["total"], cpu["reserved"] + 300 * MIB + 64 * MIB, "and what is not counted is added")
    refused(["gpu", "h100"], "profile", "gpt2", "--outside", "--gpu", "h1000")


def a_gpu_is_a_capacity():
    """--gpu NAME is the memory that fit has of it; what is given wins."""
    MIB = 1 << 20
    fitted = json.loads(run("fit", "gpt2", "--gpu", "rtx3060", "--json", "-").stdout)
    capacity, memory = fitted["capacity"], fitted["capacity"] + fitted["kept_aside"]
    p = run("profile", "gpt2", "-b", 4, "--gpu", "rtx3060")
    check(f"Fits in {capacity / 2 ** 30:.2f}".rstrip("0") in p.stdout, f"profile: {p.stdout[:900]}")
    check("rtx3060 has" in p.stderr and "kept aside" in p.stderr, f"profile: {p.stderr}")
    exact = profile("gpt2", "-b", 4, "--gpu", "rtx3060")
    equal(exact["capacity"], capacity, "the capacity")
    equal(profile("gpt2", "-b", 4, "--gpu", f"rtx3060:keep-aside={600 * MIB}B")["capacity"], memory - 600 * MIB, "keep-aside")
    equal(profile("gpt2", "-b", 4, "--gpu", "rtx3060", "--capacity", "8GiB")["capacity"], 8 << 30, "what is given wins")
    equal(exact["steady"], profile("gpt2", "-b", 4)["steady"], "the steps are the same")
    ranks = profile("gpt2", "--gpu", "rtx3060", "--tp", 2)["capacity"]
    equal(capacity - ranks, 544 * MIB, "NCCL's share")
    check("f16 on meta" in run("profile", "gpt2", "--gpu", "t4").stdout, "a T4 multiplies no bf16")
    equal(run("profile", "gpt2", "-b", 16, "--gpu", "rtx3060").returncode, 1, "it does not fit")
    rows = json.loads(run("sweep", "gpt2", "-b", 16, "--over", "gpu=rtx3060,rtx4090", "--json", "-").stdout)["rows"]
    equal([bool(row["out_of_memory"]) for row in rows], [True, False], "a sweep over cards")
    check("rtx3060 has" in run("plan", "gpt2", "--gpu", "rtx3060").stderr, "plan")
    refused(["--gpu", "h1000", "did you mean h100"], "profile", "gpt2", "--gpu", "h1000")
    refused(["--gpu", "keep-aside", "rtx3060"], "profile", "gpt2", "--gpu", "rtx3060:keep-aside=30GiB")


def keys_are_those_documented():
    documented = {key for key in documented_keys("profile-json.md") if not key.startswith("rows")}
    refusal = run("profile", "gpt", "--capacity", "2MiB", "-b", 8, "--json", "-")
    equal(refusal.returncode, 1, "status where memory ran out")
    seen = set(paths(json.loads(refusal.stdout)))
    refusal = run("profile", "gpt", "--capacity", "2MiB", "-b", 8, "--device", "meta", "--json", "-")
    seen |= set(paths(json.loads(refusal.stdout)))
    windows = tempfile.NamedTemporaryFile("w", suffix=".json")  # of the last layers
    json.dump(json.loads((CONFIGS / "qwen2-0.5b.json").read_text()) | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 12}, windows)
    windows.flush()
    for args in [["gpt", "--dropout", 0.1, "--optimizer", "adamw", "--timeline"], ["mlp"],
                 ["block", "--attention", "math"], ["gpt:untied", "--lora-rank", 2, "--inference"],
                 ["gpt", "--budget", "1GB", "--expandable-segments"], ["gpt", "--tp", 2, "--device", "meta", "--outside"],
                 ["moe-tiny:balance-loss=0.1,mtp-layers=1", "--recipe", "plain:balance-by-layer", "--device", "meta"],
                 ["moe-tiny", "--recipe", "plain:expert-form=megatron", "--recipe", "plain:expert-capacity=1.5", "--recipe", "plain:expert-padding", "--device", "meta"],
                 ["llama", "--recipe", "fsdp2", "--dp", 2, "--timeline", "--device", "meta"], ["llama", "--recipe", "zero3", "--dp", 2, "--device", "meta"],
                 *([CONFIGS / f"{name}.json", "-s", 64, "--device", "meta"]
                   for name in ("qwen3-0.6b", "phi-3-mini-4k", "gemma-2-2b", "roberta-base", "all-minilm-l6-v2", "deepseek-v3", "gpt-oss-20b")),
                 [windows.name, "-s", 32, "--device", "meta"],
                 ["gpt", "--checkpoint", "full", "--offload", "cpu", "--compress", "bits",
                  "--optimizer", "sgd", "--loss-scale", "dynamic"]]:
        p = profile(*placed(*args))
        equal(list(p or {})[:1], ["schema"], "the first key")
        equal(p and p["schema"], "memtape.profile/1", "the schema")
        seen |= set(paths(p)) if p else set()
    equal(sorted(seen - documented), [], "keys that docs/profile-json.md lacks")
    equal(sorted(documented - seen), [], "keys that the program never wrote")


def outputs():
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "out.json")
        p = run("profile", "mlp", "--json", file)
        equal(p.returncode, 0, "status with a file")
        check("The peak of a training step" in p.stdout, "text is printed when the JSON goes to a file")
        equal(os.listdir(folder), ["out.json"], "no other file is left")
        equal(run("profile", "mlp", "--json", file, "--quiet").stdout, "", "quiet")
    text = run("profile", "gpt", "-l", 3, "--attention", "math", "--dropout", 0.1, "-v").stdout
    check("\x1b" not in text, "output to a file has no colour")
    check(max(map(len, text.splitlines())) <= 120, "width of the longest line")
    check("gpt.h.0-2.mlp.act" in text, "equal layers are folded")
    equal(text.count("0  difference"), 2, "equations that end in 0")
    with open("/dev/full", "w") as full:
        p = subprocess.run([MEMTAPE, "profile", "mlp"], stdout=full, stderr=subprocess.PIPE)
        equal(p.returncode, 1, "status when standard output is full")


{"published": published, "quick": lambda: (sizes_of_a_paper(), any_choice(1, 60), any_memory_options(2, 60), steady_state(), no_gradient_in_a_checkpoint(), logits_in_chunks(), small_networks(), inference(), optimizers(), the_answer_comes_first(), sections_are_shown(), a_screen_of_80_columns(),
                                           outside_rows(), a_gpu_is_a_capacity(), keys_are_those_documented(), outputs())}[sys.argv[1]]()
done()
