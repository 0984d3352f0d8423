"""`memtape plan`: the reference cases, one command each; random models; the largest batch and length that
fit, tried; the keys of the JSON; refusals."""
import json
import os
import random
import re
import subprocess
import tempfile
from lib import MEMTAPE, check, documented_keys, done, equal, names_of, paths, placed, refused, run, worth

OPTIMIZERS = names_of("--optimizer")

TEXTBOOK = ["--attention", "math", "--dropout", 0.1]
DAY = 86400


def plan(*args):
    """The JSON object of `memtape plan ARGS --json -`, after checking its equations."""
    p = run("plan", *args, "--json", "-")
    if not check(p.returncode == 0, f"plan {args}: status {p.returncode}: {p.stderr.strip()}"):
        return None
    j = json.loads(p.stdout)
    for f in j["formulas"]:
        equal(f["unexplained"], 0, f"{f['name']} of {args}")
        equal(f["expected"], f["measured"], f"measured {f['name']} of {args}")
        equal(f["expected"], f["value"] + sum(r["amount"] for r in f["rows"]),
              f"rows of {f['name']} of {args}")
        check(all(r["amount"] and r["text"] for r in f["rows"]), f"empty row of {args}")
        check(f["source"], f"source of {f['name']}")
        if f["name"] in ("parameters", "parameters in brief", "activations", "flops forward"):
            m = j["model"]
            equal(worth(f["text"], b=m["batch"], s=m["seq"], h=m["hidden"], a=m["heads"], L=m["layers"],
                        v=m["vocab"], f=m["ffn"]), f["value"], f"value of the formula's text, {f['name']} of {args}")
    equal(j["step"]["peak"], sum(j["step"]["at_peak"].values()), f"peak of {args}")
    check(j["step"]["peak"] <= j["step"]["reserved"], f"reserved of {args}")
    flops = next(f for f in j["formulas"] if f["name"] == "flops")
    equal(flops["measured"], sum(j["flops"].values()), f"parts of the operations of {args}")
    forward = next(f for f in j["formulas"] if f["name"] == "flops forward")
    equal(forward["measured"], j["flops"]["forward"], f"operations forward of {args}")
    equal(forward["measured"], sum(c["flops"] for c in j["components"]), f"components of {args}")
    equal([c["flops"] for c in j["components"]], [c["times"] * c["each"] for c in j["components"]], "each, times")
    j["formulas"] = {f["name"]: f for f in j["formulas"]}
    return j


def value(j, name):
    return j["formulas"][name]["value"]


def measured(j, name):
    return j["formulas"][name]["measured"]


def lists_difference(j, name, words):
    check(any(words in r["text"] for r in j["formulas"][name]["rows"]),
          f"{name} has no row that mentions {words}")


# ---- the reference cases ----

def activations():
    for preset, batch, formula, kept in [
            # published as 250 M (a slip: 12 x 29.1 M + 0.79 M is 350 M) and as 5.58 G
            ("bert-base", 1, 349962240, 384870400), ("bert-base", 16, 5599395840, 6157926400),
            ("llama-65b", 1, 153041764352, 153392291840),
            ("llama-65b", 16, 2448668229632, None),
            ("gpt3-175b", 1, 275465109504, 275749654528),
            ("gpt3-175b", 64, 17629767008256, 17647977889792),
            ("gpt3-175b", 128, 35259534016512, 2 * 17647977889792)]:
        j = plan(preset, "-b", batch, *TEXTBOOK)
        if not j:
            continue
        equal(value(j, "activations"), formula, f"activations of {preset}, b={batch}")
        if kept:
            equal(measured(j, "activations"), kept, f"measured activations of {preset}, b={batch}")
        lists_difference(j, "activations", "log-probabilities")
        if preset == "llama-65b":
            lists_difference(j, "activations", "swiglu")
    j = plan("gpt3-175b", "--optimizer", "none")
    equal(measured(j, "parameters") * 2, 349208518656, "GPT-3's parameters in 16 bits, 350 GB")
    text = run("plan", "gpt3-175b", "-b", 64, *TEXTBOOK, "-v").stdout
    check("50.48 times as much by the formula" in text, "GPT-3's activations against its parameters")


def parameters():
    for preset, brief, exact in [("llama-7b", 6442450944, 6738415616),
                                 ("llama-13b", 12582912000, 13015864320),
                                 ("llama-33b", 31897681920, 32528943616),
                                 ("llama-65b", 64424509440, 65285660672)]:
        j = plan(preset, "-s", 1)
        equal(value(j, "parameters in brief"), brief, f"12Lh^2 of {preset}")
        equal(measured(j, "parameters"), exact, f"parameters of {preset}")
        lists_difference(j, "parameters in brief", "swiglu")
    j = plan("llama-3.1-8b", "-s", 1, "--params", "8B", "--master-weights")
    equal(value(j, "states"), 128 * 10**9, "LLaMA-3.1-8B in mixed precision")
    equal(measured(j, "states"), 16 * 8030261248, "the same, measured")
    lists_difference(j, "states", "rounded N")
    equal(value(plan("llama-65b", "-s", 1, "--dtype", "f32", "--params", "65B"), "states"),
          1040 * 10**9, "LLaMA-65B's static memory")
    equal(value(plan("bert-base", "-s", 1, "--dtype", "f32", "--params", "110M"), "states"),
          1760 * 10**6, "BERT-base's static memory")
    mixed = next(r for r in j["regimes"] if r["name"] == "16 bits, AdamW, f32 master weights")
    equal(mixed["bytes"], 16 * 8030261248, "mixed precision in the table of regimes")


def regimes():
    """Each regime that has options gives the same bytes when planned with them."""
    table = plan("gpt2", "-s", 8)["regimes"]
    check(sum(r["options"] is not None for r in table) >= 4, "regimes to measure")
    equal([r["formula_only"] for r in table], [r["options"] is None for r in table], "regimes with options are not formulas only")
    text = run("plan", "gpt2", "-s", 8, "-v").stdout
    for r in table:
        name = re.escape(r["name"] + " *" * r["formula_only"])
        check(re.search(rf"\n  {name} +[\d.]+ ", text), f"{r['name']}: marked if it is a formula only")
    check("* by formula only" in text, "the mark is explained")
    for r in table:
        if r["options"]:
            j = plan("gpt2", "-s", 8, *r["options"].split())
            equal(value(j, "states"), r["bytes"], f"states: {r['name']}")


def times():
    j = plan("gpt3-175b", "--checkpoint", "full", "--tokens", "300B", "--gpus", 1024, "--flops-rate",
             "312T", "--utilisation", 0.45)
    equal(j["formulas"]["flops"]["text"], "8Nbs", "operations with recomputation")
    equal(round(j["time"]["formula_s"] / DAY), 34, "days for GPT-3")
    equal(value(j, "flops"), 8 * 174604259328 * 2048, "operations of a step of GPT-3")
    j = plan("llama-65b", "--checkpoint", "full", "--params", "65B", "--tokens", "1.4T", "--gpus", 2048,
             "--flops-rate", "624T", "--utilisation", 0.3)
    equal(round(j["time"]["formula_s"] / DAY, 2), 21.98, "days for LLaMA-65B, published as 21")
    lists_difference(j, "flops", "attention's scores")
    lists_difference(j, "flops", "looked up")
    j = plan("gpt3-175b", "--tokens", "300B")
    equal((j["training"]["formula_flops"], j["time"]), (6 * 174604259328 * 300e9, None), "GPT-3's training")
    equal(f"{j['training']['formula_flops']:.2e}", "3.14e+23", "as published")
    equal(j["training"]["measured_flops"], measured(j, "flops") * 300e9 / 2048, "as counted")
    counted = f"{j['training']['measured_flops']:.2e}".replace("+", "")
    check(f"Training on 300 G tokens takes 3.14e23 FLOP by the formula, {counted} as counted." in
          run("plan", "gpt3-175b", "--tokens", "300B").stdout, "the same as text")
    equal(plan("gpt2")["training"], None, "no training without --tokens")
    equal(plan("gpt2")["time"], None, "no time without --tokens")


def cache():
    j = plan("gpt3-175b", "-b", 64, "-s", 512, "--kv", 32, "--optimizer", "none")
    equal(value(j, "kv cache"), 164282499072, "KV cache of GPT-3")
    equal(measured(j, "kv cache"), 164282499072, "the same, measured")
    equal(j["kv_share"], 164282499072 / 349208518656, "its share of the parameters")
    check("The cache takes 0.47 times the bytes of the parameters." in
          run("plan", "gpt3-175b", "-b", 64, "-s", 512, "--kv", 32, "--optimizer", "none").stdout, "as text")
    equal(plan("gpt2")["kv_share"], None, "no share where there is no cache")
    j = plan("llama-7b", "-b", 32, "--kv", 0, "--dtype", "f32", "--optimizer", "none")
    equal(measured(j, "kv cache"), 64 * 2**30, "KV cache of LLaMA 7B in f32")
    j = plan("llama-3.1-8b", "-s", 100, "--kv", 0)
    equal(measured(j, "kv cache"), 2 * 100 * 8 * 128 * 32 * 2, "grouped heads")
    lists_difference(j, "kv cache", "grouped-query")
    check("kv cache" not in plan("gpt2")["formulas"], "no cache without --kv")


def textbooks():
    """Formulas of textbooks stand beside what is measured, to the byte; their sources are shown with -v."""
    brief, whole = (run("plan", "gpt2", *more).stdout for more in ([], ["-v"]))
    check("Rajbhandari" not in brief and "Rajbhandari" in whole, "sources of formulas")
    for line in ("parameters, N L(12h^2 + 13h) + vh 124 M 124,439,808", "states (2 + 2 + 12) N 1.99 G 2,012,448,256", "6Nbs"):
        check(line in re.sub(" +", " ", brief), f"{line!r} in {brief}")
    check("saved: after forward, not at the peak" in brief, f"why the two sums of activations differ: {brief}")
    # The peak of GPT-2 is where backward begins.
    later = "gradient 0 B 0 0.0 % (none yet; 237.35 MiB when backward ends)"
    for text in (brief, run("profile", "gpt2").stdout):
        check(later in re.sub(" +", " ", text), f"{later!r} in {text}")
    text = run("profile", "gpt2", "--optimizer", "sgd", "--recipe", "plain:step-in-backward").stdout
    check("none yet" not in text, f"gradients that are never there at once: {text}")


# ---- any model ----

def any_model(seed, n):
    draw = random.Random(seed)
    for _ in range(n):
        kind = draw.choice(["linear", "mlp", "attention", "block", "gpt", "bert", "llama"])
        args = [kind, "-b", draw.randint(1, 3), "-s", draw.choice([1, 2, 17, 70]),
                "-d", 8 * draw.randint(1, 9), *([] if kind == "linear" else ["--dropout", draw.choice([0, 0.1])]),
                "--dtype", draw.choice(["f32", "bf16", "f16", "f64"]),
                "--optimizer", draw.choice(OPTIMIZERS)]
        whole = kind in ("gpt", "bert", "llama")
        presets = ["none", "full", "ops"] + ["selective"] * (kind not in ("linear", "mlp")) + ["sqrt", "every=2"] * whole
        args += ["--checkpoint", draw.choice(presets)]
        if kind not in ("linear", "mlp"):
            args += ["-a", 4, "--attention", draw.choice(["flash", "math"])]
            args += draw.choice([[], ["--kv-heads", 2], ["--kv-heads", 1]])
        if kind == "linear":
            args += draw.choice([[], ["--ffn", draw.randint(1, 99)]])
        if kind == "mlp":
            args += draw.choice([[], ["MODEL:out-act=" + draw.choice(["relu", "gelu", "sigmoid"])]])
        if kind not in ("linear", "attention", "llama"):
            args += ["--act", draw.choice(["relu", "gelu", "silu", "tanh"])]
        if kind in ("gpt", "block"):
            args += ["--norm", draw.choice(["pre", "post"]),
                     "MODEL:norm-kind=" + draw.choice(["layernorm", "rmsnorm"])]
        if whole:
            args += ["-l", draw.randint(1, 4), "--vocab", draw.choice([7, 300])]
        plan(*placed(*args))


def published_models():
    """config.json files from Hugging Face: biases for q, k and v only, tied heads, ..."""
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "nn", "configs")
    files = sorted(f for f in os.listdir(folder) if f.endswith(".json"))
    check(len(files) >= 8, "configs to plan")
    for file in files:
        plan(os.path.join(folder, file))
        plan(os.path.join(folder, file), "-s", 256, "-b", 3, "--checkpoint", "selective", *TEXTBOOK)
        plan(os.path.join(folder, file), "-s", 256, "-b", 3, "--checkpoint", "ops")
        equal(run("plan", os.path.join(folder, file), "-s", 16, "--dp", 2, "--zero", 3).returncode, 0, f"a rank of {file}")


# ---- the largest batch and length that fit ----

def steps(capacity, *args):
    """0 if there is room for two steps, 1 if not: sweep times one step after the one that it measures."""
    p = run("sweep", *args, "--device", "meta", "--capacity", capacity, "--dtype", "bf16", "--json", "-")
    check(p.returncode == 0, p.stderr)
    return int(json.loads(p.stdout)["rows"][0]["out_of_memory"])


def fits():
    model = ["gpt", "-l", 3, "-d", 64, "-a", 4, "--vocab", 500, "--optimizer", "adamw"]
    for capacity in [12000000, 41943040]:
        for memory_options in [[], ["--checkpoint", "full"]]:
            j = plan(*model, "-s", 48, "-b", 2, "--capacity", capacity, *memory_options)
            batch, seq = j["fits"]["batch"]["largest"], j["fits"]["seq"]["largest"]
            check(batch > 0 and seq > 0, f"some batch and some length fit in {capacity}")
            for fit in (j["fits"]["batch"], j["fits"]["seq"]):
                equal(fit["refused"], fit["largest"] + 1, f"the first size that is refused, {capacity}")
                check(0 < fit["peak"] <= fit["reserved"] <= capacity, f"the largest size fits in {capacity}")
            for more, status in [(0, 0), (1, 1)]:
                equal(steps(capacity, *model, *memory_options, "-s", 48, "-b", batch + more), status,
                      f"batch {batch} + {more} in {capacity} {memory_options}")
                equal(steps(capacity, *model, *memory_options, "-s", seq + more, "-b", 2), status,
                      f"length {seq} + {more} in {capacity} {memory_options}")
    small = plan("mlp", "--capacity", "1kB")["fits"]
    equal((small["batch"]["largest"], small["batch"]["runs"]), (0, 1), "nothing fits in a kilobyte")
    check("not even 1 fits" in run("plan", "mlp", "--capacity", "1kB", "-v").stdout,
          "the text says that nothing fits")
    endless = plan("mlp", "-d", 4, "--capacity", "8EB")["fits"]["batch"]
    equal((endless["largest"], endless["refused"]), (2**30, None), "a search that no refusal ends")
    equal(plan("gpt2")["fits"], None, "no search without --capacity")
    more = [plan("gpt2", "--capacity", f"{n}GB")["fits"]["batch"]["largest"] for n in (5, 10, 20)]
    check(more == sorted(more) and more[0] < more[2], "more memory, larger batches")


# ---- the JSON, the text, the options ----

def keys_are_those_documented():
    seen, documented = set(), documented_keys("plan-json.md")
    for args in [["gpt2", "--capacity", "20GB", "--kv", 3, "-s", 5, "--tokens", "1B",
                  "--flops-rate", "1T"], ["gpt", "--budget", "1GB"], ["mlp"], ["gpt", "--tp", 2]]:
        seen |= set(paths(json.loads(run("plan", *args, "--json", "-").stdout)))
    seen = {p for p in seen if not p.startswith("model.")}
    equal(sorted(seen - documented), [], "keys that docs/plan-json.md lacks")
    equal(sorted(documented - seen), [], "keys that the program never wrote")


def autocast():
    """Under --amp there is no formula of activations, with ranks or without; the other figures are explained."""
    for ranks in ([], ["--dp", 2], ["--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=ahead"]):
        args = ["gpt2", "--dtype", "f32", "--amp", "bf16", *ranks]
        p = run("plan", *args, "-v")
        equal((p.returncode, p.stderr), (0, ""), f"plan {args}")
        check("Of activations under --amp there is no formula" in p.stdout and "saved: " not in p.stdout, f"the text says so: {p.stdout}")
        names = [f["name"] for f in json.loads(run("plan", *args, "--json", "-").stdout)["formulas"]]
        check("activations" not in names and "parameters" in names, f"formulas of {args}: {names}")


def outputs():
    text = run("plan", "bert-base", "-b", 2, *TEXTBOOK, "-v").stdout
    equal(text.count("0  difference"), 6, "formulas that end in 0")
    check(max(map(len, text.splitlines())) <= 120, "width of the longest line")
    check("\x1b" not in text, "output to a file has no colour")
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "plan.json")
        check("parameters, N" in run("plan", "mlp", "--json", file).stdout, "text is printed when the JSON goes to a file")
        equal(os.listdir(folder), ["plan.json"], "no other file is left")
        equal(run("plan", "mlp", "--json", file, "--quiet").stdout, "", "quiet")
    with open("/dev/full", "w") as full:
        p = subprocess.run([MEMTAPE, "plan", "mlp"], stdout=full, stderr=subprocess.PIPE)
        equal(p.returncode, 1, "status when standard output is full")


def refusals():
    for bad in ["", "x", "0", "-1", "1e", "3Q", "nan", "inf", "1e30", "0x10", "300BB", " 1"]:
        refused(["--tokens", "300B"], "plan", "gpt2", "--flops-rate", "1T", "--tokens", bad)
    refused(["--flops-rate needs --tokens"], "plan", "gpt2", "--flops-rate", "1T")
    refused(["--gpus needs --tokens"], "plan", "gpt2", "--gpus", 2)
    refused(["--utilisation", "from 0.01 to 1"], "plan", "gpt2", "--tokens", "1B", "--flops-rate", "1T",
            "--utilisation", 0)
    refused(["--utilisation", "0.01 to 1"], "plan", "gpt2", "--utilisation", 1.5)
    refused(["--params", "whole"], "plan", "gpt2", "--params", "1.5")
    refused(["--kv", "context", "1024"], "plan", "gpt2", "--kv", 1)
    refused(["--kv", "bert"], "plan", "bert-base", "--kv", 1)
    refused(["--tokens", "mlp"], "plan", "mlp", "--tokens", "1B", "--flops-rate", "1T")
    for option in (["--device", "cpu"], ["--lora-rank", 2], ["--offload", "cpu"]):
        p = run("plan", "gpt2", *option)
        check(p.returncode == 2 and option[0] in p.stderr, f"plan refuses {option}")
    equal(run("plan", "gpt2", "--recompute").stdout, run("plan", "gpt2", "--checkpoint", "full").stdout, "a former name")
    refused(["--gpus needs --tokens"], "plan", "gpt2", "--devices", 2)
    refused(["--device", "plan runs on meta"], "plan", "gpt2", "--device", "cuda")


activations()
parameters()
regimes()
times()
cache()
any_model(5, 60)
textbooks()
published_models()
fits()
keys_are_those_documented()
outputs()
autocast()
refusals()
done()
