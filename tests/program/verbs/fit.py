"""`memtape fit`: the printed command shows the figure that is printed, the JSON is documented, bad input is
refused, an interrupted search leaves nothing."""
import functools
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from lib import MEMTAPE, check, documented_keys, done, equal, paths, placed, refused, run

ANSWER = 14  # lines before the command
GPT = ["gpt", "-d", 64, "-l", 4, "-a", 4, "-s", 64, "--vocab", 256]


@functools.cache
def run_once(*args):
    """The finished process, with text; `written` is its JSON object."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "out.json")
        p = run("fit", *args, "--json", path)
        p.written = path.read_text() if path.exists() else "null"
    return p


def fit(*args, status=0):
    p = run_once(*args)
    equal(p.returncode, status, f"status of fit {args}: {p.stderr}")
    return json.loads(p.written)


def profile_of(command):
    words = shlex.split(command)
    equal(words[:2], ["memtape", "profile"], "the command")
    p = run(*words[1:], "--json", "-")
    equal(p.returncode, 0, f"status of {command}: {p.stderr}")
    return json.loads(p.stdout)


def reproduced(*args, status=0):
    """The command's profile has the bytes of the first set-up."""
    j = fit(*args, status=status)
    first, p = j["setups"][0], profile_of(j["command"])
    equal((p["steady"]["peak"], p["steady"]["reserved"]), (first["peak"], first["reserved"]), f"bytes of {args}")
    equal(p["steady"]["by_category"], first["by_category"], f"categories of {args}")
    equal(p["parallel"]["stage"], first["stage"], f"the stage of {args}")
    text = run_once(*args).stdout
    command = text[text.index("memtape profile"):].replace("\\\n", "")
    equal(shlex.split(command), shlex.split(j["command"]), f"the command of {args} as text")
    return j


# ---- the command, for presets, files, recipes and options ----
j = reproduced("llama-3.1-8b", "--gpus", 8, "--gpu", "h100")
MIB = 1 << 20
equal((j["fitting"] > 0, j["batch"], j["seq"], j["kept_aside"]), (True, 8, 8192, (1024 + 300 + 688) * MIB), "Llama on 8 x H100")
known = documented_keys("fit.md")
for key in set(paths(j)) - known:
    check(any(k.startswith(key + ".") for k in known) or key.startswith(("setups[].by_category.", "remedies[]", "published.")), f"fit.md: no {key}")
for gpus, more in ((4, []), (4, ["--recipe", "fsdp2"]), (4, ["--recipe", "megatron"]), (4, ["--recipe", "hf"]),
                   (4, ["--amp", "bf16"]), (4, ["MODEL:mtp-layers=1"]), (4, ["--lora-rank", 3, "--qlora"]), (4, ["--pp", 2, "--recipe", "plain:interleave=2"]),
                   (4, ["--optimizer", "adamw-8bit"]), (4, ["--tp", 2, "--zero", 2, "--checkpoint", "full"]),
                   (8, ["--dtype", "f32", "--dropout", 0.1, "--act", "relu", "--inplace"]), (1, [])):
    found = reproduced(*placed(*GPT, *more), "--gpus", gpus, "--gpu", "a100-80", "-b", 8)
    for s in found["setups"]:
        equal(s["tp"] * s["pp"] * s["cp"] * s["dp"], gpus, f"ranks of {more}")
        equal(s["dp"] * s["microbatch"] * s["microbatches"], 8, f"sequences of {more}")
        equal(sum(s["by_category"].values()), s["peak"], f"the peak of {more}")
        parts = [v for k, v in s["time"].items() if k != "total"]
        check(abs(sum(parts) - s["time"]["total"]) < 1e-9 * s["time"]["total"], f"the time of {more}: {s['time']}")
        check("--pp" not in more or (s["pp"], s["interleave"]) == (2, 2), "only set-ups that are asked for")
        check("--zero" not in more or (s["tp"], s["zero"], s["checkpoint"]) == (2, 2, "full"), "the same")
    order = [s["time"]["total"] for s in found["setups"][:found["fitting"]]]
    equal(order, sorted(order), "the fastest comes first")

# ---- docs/fit.md: the table of GPUs, the example, the published throughput beside predictions ----
PAGE = Path(__file__).parents[3] / "docs" / "fit.md"
page = PAGE.read_text()
gpus = re.findall(r"(?m)^\| `([a-z0-9-]+)` \| ([\d,]+) \| ([\d,.]+)" + r" \| ([\d.]+)" * 4 + r" \| ([\d,]+) \|", page)
F16_ONLY = {"gtx1080ti", "rtx2080ti", "p100", "v100-16", "v100", "t4"}
equal(len(gpus), 42, "GPUs in the table")
for name, *figures in gpus:
    gpu = fit("gpt", "--gpus", 1, "--gpu", name, "--dtype", "f16")["gpu"]
    equal(gpu["f16_only"], name in F16_ONLY, f"whether {name} multiplies bf16")
    shown = [float(x.replace(",", "")) for x in figures]
    equal(shown, [gpu["memory"], gpu["flops"] / 1e12, gpu["bandwidth"] / 1e12, gpu["link"] / 1e9,
                  gpu["network"] / 1e9, gpu["host"] / 1e9, gpu["host_memory"] / 1e9], f"the table's figures of {name}")
    check(name in run("fit", "--help", "all").stdout, f"--help names {name}")
for first, command in ((8, ("--gpu", "h100")), (1, ("--gpu", "rtx4090"))):
    example = re.search(rf"(?s)    memtape fit llama-3.1-8b --gpus {first} .*?\n\n(?:[^ ].*?\n\n)?(    .*?)\n\n", page).group(1)
    text = run_once("llama-3.1-8b", "--gpus", first, *command).stdout
    check(len(example.splitlines()) > 8, f"the page's example: {example}")
    for line in example.splitlines():
        check(line[4:] in text or "..." in line, f"the page's line {line!r} in {text}")
rows = re.findall(r"(?m)^\| [^|]+ \| `([^`]+)` \| (\d+) \| [^|(]*\(([\d,]+)\) \| ([\d,-]+) \| ([\d,]+) \| ([\d.]+) \|", page)
equal(len(rows), 6, "published throughputs")
LONG = os.environ.get("MTT_LONG") == "1"
for options, microbatch, published, *predicted, ratio in rows if LONG else rows[:1]:
    for preset, figure in zip(("none", "full"), predicted):
        p = run("fit", *options.split(), "--cp", 1, "--recipe", "fsdp2", "--seq", 8192, "--gpus-file",
                PAGE.parent.parent / "examples/gpus.json", "--offload", "none", "--checkpoint", preset, "--json", "-")
        j = json.loads(p.stdout)  # also where nothing fits
        rates = [s["tokens_per_second"] / j["gpus"] for s in j["setups"] if s["microbatch"] == int(microbatch)]
        equal(f"{rates[0]:,.0f}" if rates else "-", figure, f"predicted for {options}, {preset}")
    equal(f"{int(published.replace(',', '')) / rates[0]:.2f}", ratio, f"published over predicted for {options}")

rows = re.findall(r"(?m)^\| [^|]+ \| `(-b [^`]+)` \| ([\d,]+) \| ([\d,]+) \| ([\d.]+) \|$", page)
equal(len(rows), 4, "published throughputs of one GPU")
for options, published, predicted, reached in rows:
    j = fit("mistral-7b-v0.1", "--gpu", "a100-80", "-s", 4096, "--recipe", "hf", "--checkpoint", "full", "--offload", "none", *options.split())
    rate = j["setups"][0]["tokens_per_second"]
    equal([f"{rate:,.0f}", f"{int(published.replace(',', '')) / rate:.2f}"], [predicted, reached], f"{options}: predicted, reached")
    check(j["reached"]["least"] - 0.01 <= float(reached) <= j["reached"]["most"] + 0.01, f"{options}: {reached} is in the range shown: {j['reached']}")

# ---- too large: the nearest comes first, and is a profile, too ----
j = reproduced("llama-3.1-8b", "--gpus", 1, "--gpu", "rtx4090", status=1)
equal((j["fitting"], j["setups"][0]["fits"]), (0, False), "8B on one RTX 4090")
changes = {r["change"]: r for r in j["remedies"]}
check({"--gpu h200", "--gpus 8", "--lora-rank 16 --lora-targets q,v", "--lora-rank 16 --lora-targets q,v --qlora"} <= set(changes),
      f"what would fit: {list(changes)}")
equal(changes["--gpu h200"]["reserved"], j["setups"][0]["reserved"], "the nearest on a larger GPU")


def each_remedy_is_a_fit(j, model, *rest):
    for remedy in j["remedies"]:
        change = remedy["change"].split() if remedy["change"] != "no f32 masters" else ["--optimizer", "adamw"]
        if change[0] in ("--gpu", "any"):
            continue
        again = ["--gpus", 1, *rest] if change[0] != "--gpus" else rest
        found = fit(*model, *again, *change)
        setup = {k: v for k, v in remedy.items() if k != "change"}
        check(setup in found["setups"][:found["fitting"]], f"the remedy {remedy['change']} of {model}: {setup} of {found['setups']}")
        yield remedy["change"], setup, found["setups"][0]


if LONG:  # 8 GPUs take ten seconds
    for change, setup, first in each_remedy_is_a_fit(j, ["llama-3.1-8b"], "--gpu", "rtx4090"):
        equal(setup, first, f"the remedy {change} is the fastest")
small = ["--gpu", "rtx4090", "--capacity", "3MB", "-b", 8]
few = fit(*GPT, "--gpus", 1, *small, status=1)
check("--gpus 2" in {r["change"] for r in few["remedies"]}, f"two GPUs would do: {[r['change'] for r in few['remedies']]}")
equal(len(list(each_remedy_is_a_fit(few, GPT, *small))), 4, "remedies that are tried")
check("--optimizer adafactor --master-weights" in {r["change"] for r in few["remedies"]}, "the masters stay")
more = ["--gpu", "rtx4090", "--capacity", "1.8GB", "-b", 2]
changes = {change for change, *_ in each_remedy_is_a_fit(fit("gpt2", "--gpus", 1, *more, status=1), ["gpt2"], *more)}
equal(changes, {"no f32 masters", "--optimizer adamw-8bit --master-weights", "--optimizer adafactor --master-weights", "--gpus 2", "--lora-rank 16",
                "--lora-rank 16 --qlora"}, "one change each")
text = run_once(*GPT, "--gpus", 1, *small).stdout
check("--optimizer adafactor *" in text and "  * with f32 master weights kept\n" in text, text)
tight = fit("llama-3.1-8b", "--gpus", 4, "--gpu", "a100-80", "--zero", 0, "--tp", 1, "--pp", 1, status=1)
equal(tight["remedies"][1]["change"], "any set-up", "options that leave nothing that fits")
equal(tight["remedies"][1]["zero"], 3, "any set-up")
need = [s["reserved"] for s in j["setups"]]
equal(need, sorted(need), "the nearest comes first")
p = run_once("llama-3.1-8b", "--gpus", 1, "--gpu", "rtx4090")
equal(p.returncode, 1, "status if nothing fits")
check(max(map(len, p.stdout.splitlines())) <= 80 and "--gpus 8" in p.stdout, p.stdout)
check(len(p.stdout.split("\n\n")[0].splitlines()) <= ANSWER, p.stdout)
# The capacity decides: what the first needs is enough, one byte less is not enough for the same set-up.
one = ["--gpus", 2, "--gpu", "h100", "--tp", 1, "--pp", 1, "--zero", 1, "--checkpoint", "none", "--offload", "none", "-b", 2]
least = fit(*GPT, *one)["setups"][0]["reserved"]
equal(fit(*GPT, *one, "--capacity", least)["fitting"], 1, "a capacity of what is reserved")
less = fit(*GPT, *one, "--capacity", least // 2, status=1)
equal((less["fitting"], less["capacity"], less["kept_aside"]), (0, least // 2, less["gpu"]["memory"] - least // 2),
      "half of it")

# ---- prices, tokens, GPUs of a file ----
j = fit(*GPT, "--gpus", 2, "--gpu", "h100:price=3", "--tokens", "1B")
s = j["setups"][0]
check(abs(s["dollars"] - 2 * 3 / 3600 * 1e9 / s["tokens_per_second"]) < 1e-9 * s["dollars"], "dollars")
check(abs(s["days"] - 1e9 / s["tokens_per_second"] / 86400) < 1e-9 * s["days"], "days")
half = fit(*GPT, "--gpus", 2, "--gpu", "h100", "--utilisation", 0.5)["setups"][0]
check(half["time"]["products"] == 2 * s["time"]["products"], "half the utilisation, twice the time")
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "gpus.json")
    with open(path, "w") as f:
        json.dump({"h100": {"memory": "94GiB"}, "mine": {"memory": "1GiB"}}, f)
    equal(fit(*GPT, "--gpus", 2, "--gpu", "h100", "--gpus-file", path)["gpu"]["memory"], 94 << 30, "a file's memory")
    refused(["mine", "in_a_node"], "fit", *GPT, "--gpus", 2, "--gpu", "mine", "--gpus-file", path, status=1)
    refused(["nowhere"], "fit", *GPT, "--gpus", 2, "--gpu", "mine", "--gpus-file", "nowhere", status=1)

# ---- few lines of 80 columns, then the command: all of it on a screen ----
text = run_once("llama-3.1-8b", "--gpus", 8, "--gpu", "h100").stdout
answer, command = text.split("\n\n")
check(len(answer.splitlines()) <= ANSWER, f"the answer: {len(answer.splitlines())} lines")
check(len(text.splitlines()) <= 20, f"with the command: {len(text.splitlines())} lines")
check(text.startswith("fits: llama-3.1-8b on 8 x h100"), text)
for line in text.splitlines():
    check(len(line) <= 80, f"longer than 80 columns: {line}")

# ---- what FSDP2's streams take besides stands beside the answer ----
for zero in range(4):
    args = (*GPT, "--gpus", 2, "--gpu", "h100", "--tp", 1, "--pp", 1, "--cp", 1, "--zero", zero)
    j, text = fit(*args), run_once(*args).stdout
    more = "FSDP2 takes 5 to 20 % more" if zero == 3 else None
    equal({s["besides"] for s in j["setups"]}, {more}, f"beside the bytes of stage {zero}")
    equal("% more" in text.split("\n\n")[0], zero == 3, f"beside the answer of stage {zero}: {text}")
args = (*GPT, "--gpus", 2, "--gpu", "h100", "--tp", 1, "--pp", 1, "--cp", 1, "--recipe", "fsdp2")
equal({s["besides"] for s in fit(*args)["setups"]}, {None}, "with FSDP2's streams in the figure")
# In a pipeline it keeps parameters and gradients whole: that is not some per cent.
args = (*GPT, "--gpus", 4, "--gpu", "h100", "--tp", 1, "--pp", 2, "--cp", 1, "--zero", 3)
more = "in a pipeline FSDP2 takes far more"
equal({s["besides"] for s in fit(*args)["setups"]}, {more}, "beside the bytes of stages")
check(more in run_once(*args).stdout.split("\n\n")[0], "beside the answer of stages")

# ---- what is kept aside, and what a larger GPU is suggested for ----
for gpus, aside in ((1, 1024 + 300), (2, 1024 + 300 + 544), (4, 1024 + 300 + 688)):
    j = fit(*GPT, "--gpus", gpus, "--gpu", "h100")
    equal((sum(row["bytes"] for row in j["outside"]["rows"]), j["outside"]["total"]), (aside * MIB, aside * MIB), f"rows on {gpus}")
    equal((j["kept_aside"], j["capacity"]), (aside * MIB, j["gpu"]["memory"] - aside * MIB), f"kept aside on {gpus}")
for aside in ("0", "5GiB"):
    j = fit(*GPT, "--gpus", 2, "--gpu", f"h100:keep-aside={aside}")
    equal(j["gpu"]["memory"] - j["capacity"], 5 << 30 if aside != "0" else 0, f"keep-aside={aside}")
    equal(j["outside"], None, f"no rows make {aside}")
text = run_once(*GPT, "--gpus", 1, "--gpu", "l40s", "--outside").stdout
check(re.search(r"CUDA context +426 MiB +published +outside +unslothai/unsloth-zoo pull 1053", text), text)
check("kept aside for CUDA: " in text, text)
need = fit("llama-3.1-8b", "--gpus", 1, "--gpu", "rtx4090", "--lora-rank", 16, "--offload", "none", "--checkpoint", "none", status=1)
equal(need["remedies"][0]["change"], "--gpu h100-pcie", "not a GPU with less than that and what is kept aside")
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "gpus.json")
    Path(path).write_text('{"l4": {"memory": "8GiB"}}')
    for dtype, suggested in (("f16", "--gpu t4"), ("bf16", "--gpu rtx4080")):
        j = fit("gpt2-large", "--gpus", 1, "--gpu", "l4", "--gpus-file", path, "-s", 64, "--dtype", dtype, status=1)
        equal(j["remedies"][0]["change"], suggested, f"the smallest GPU with room, for {dtype}")

# ---- the stack: named, and Transformers' own beside it ----
for more, stack in (([], "flash attention, fused RMS norms, fused rope, fused swiglu, loss on whole logits"),
                    (["--recipe", "plain:rope=unfused", "--loss", "f32"], "flash attention, fused RMS norms, unfused rope, fused swiglu, loss in f32"),
                    (["--attention", "math", "--recipe", "plain:rms-norm=unfused", "--recipe", "plain:swiglu=unfused"],
                     "math attention, unfused RMS norms, fused rope, unfused swiglu, loss on whole logits")):
    args = ("llama-3.1-8b", "--gpus", 1, "--gpu", "h200", "-s", 1024, "--lora-rank", 8, "--offload", "none", "--checkpoint", "none", *more)
    j, text = fit(*args), " ".join(run_once(*args).stdout.split())
    equal(j["stack"], stack, f"the stack with {more}")
    check(stack in text, f"{stack} in {text}")
    hf = fit(*args, "--recipe", "hf")
    equal(hf["other_stack"], None, "with --recipe there is no other")
    other = j["other_stack"]
    equal((other["recipe"], other["peak"], other["reserved"], other["fits"]),
          ("hf", hf["setups"][0]["peak"], hf["setups"][0]["reserved"], True), f"another stack with {more}")
    check(f"(--recipe hf): {other['reserved'] / 2**30:.1f} GiB, fits" in text, text)
LORA = ("llama-3.1-8b", "--gpus", 1, "--gpu", "rtx4090", "--lora-rank", 16)
j = fit(*LORA)
equal((j["fitting"] > 0, j["other_stack"]["fits"], j["other_stack"]["any_fits"]), (True, False, False), "LoRA of 8B on an RTX 4090")
equal(fit(*LORA, "--recipe", "hf", status=1)["fitting"], 0, "nothing fits with Transformers' own modules")
first, second = re.search(r"^(fits with fused kernels: .*)\n(?:  .*\n)*(with Transformers' own modules .*)", run_once(*LORA).stdout).groups()
check(second.endswith("(--recipe hf): 34.8 GiB, nothing fits"), f"both verdicts come first where the stack decides: {first}; {second}")
tight = ("gpt2", "--gpus", 1, "--gpu", "h100", "--recipe", "hf", "--checkpoint", "none", "--offload", "none")
needed = fit(*tight)["setups"][0]["reserved"]
for more, verdict in ((1 << 20, "fits barely: "), (1 << 27, "fits: ")):
    text = run_once(*tight, "--capacity", f"{needed + more}B").stdout
    check(text.startswith(verdict), f"with {more} bytes to spare: {text}")
equal(fit("bert", "--gpus", 1, "--gpu", "h100", "--dtype", "f32")["other_stack"], None, "the same stack")

# ---- how the model was trained, as published ----
equal(j["published"], None, "of Llama no division is known")
V3 = ("deepseek-v3", "--gpus", 512, "--gpu", "h100", "--tp", 1, "--pp", 1, "--cp", 1, "--zero", 3, "--ep", 4, "--checkpoint", "ops", "--offload", "none")
trained = fit(*V3)["published"]
equal({k: trained[k] for k in ("gpus", "seq", "tp", "pp", "dp", "ep", "zero", "microbatches", "recompute_modules")},
      {"gpus": 2048, "seq": 4096, "tp": 1, "pp": 16, "dp": 128, "ep": 64, "zero": 1, "microbatches": 120,
       "recompute_modules": "moe_act+layernorm+mla_up_proj"}, "DeepSeek-V3's division")
p = json.loads(run("profile", "deepseek-v3", "-b", 1, "-s", 4096, "--pp", 16, "--dp", 128, "--ep", 64, "--zero", 1, "--microbatches", 120,
                   "--recipe", f"plain:recompute-modules={trained['recompute_modules']}", "--stage", trained["stage"], "--device", "meta", "--json", "-").stdout)
equal((p["steady"]["peak"], p["steady"]["reserved"]), (trained["peak"], trained["reserved"]), "its bytes are a profile's")
check(f"as 1F1B: {trained['reserved'] / 2**30:.1f} GiB" in " ".join(run_once(*V3).stdout.split()), run_once(*V3).stdout)
trained = fit("megatron-22b", "--gpus", 8, "--gpu", "a100-80", "--tp", 8, "--checkpoint", "none", "--offload", "none")["published"]
equal((trained["gpus"], trained["tp"], trained["sp"], trained["checkpoint"], trained["fits"]), (8, 8, True, "selective", True), "Megatron's 22B")
equal(fit("megatron-22b", "--gpus", 8, "--gpu", "a100-80", "-l", 8, "--tp", 8, "--pp", 1)["published"], None, "another model")

# ---- host memory is a resource ----
first = j["setups"][0]
equal((first["offload"], j["host_memory"]), ("cpu", 512 * 10**9 // 8), "an offload, and one GPU's share of a node's memory")
p = profile_of(j["command"])
equal(first["host"], p["memory_options"]["offload"]["host_peak"], "the copies that are kept there")
less = fit(*LORA, "--gpu", f"rtx4090:host-memory={first['host'] - 1}B")
enough = fit(*LORA, "--gpu", f"rtx4090:host-memory={first['host']}B")
equal(enough["setups"][0]["host"], first["host"], "just enough")
check(all(s["host"] <= first["host"] - 1 for s in less["setups"] if s["fits"]), "a row that needs more is not chosen")
equal([s["fits_host"] for s in less["setups"]], sorted((s["fits_host"] for s in less["setups"]), reverse=True),
      "of those that do not fit, those whose host memory suffices come first")
pair = fit(*GPT, "--gpus", 2, "--gpu", "h100", "--offload", "cpu", "--tp", 1, "--pp", 1, "--cp", 1, "--zero", 0, "--checkpoint", "none")
one = fit(*GPT, "--gpus", 1, "--gpu", "h100", "--offload", "cpu", "--checkpoint", "none")
equal(pair["setups"][0]["host"], 2 * one["setups"][0]["host"], "two ranks of a node keep twice as much")
equal(pair["host_memory"], 2 * one["host_memory"], "and have twice the share")
check(" GiB to CPU memory (a node has " in run_once(*LORA).stdout, "what the first keeps there is said")

# ---- rates as a range, or with products at a share ----
args = (*GPT, "--gpus", 2, "--gpu", "h100:price=3", "--tokens", "15T")
j, text = fit(*args), " ".join(run_once(*args).stdout.split())
s = j["setups"][0]
equal(j["reached"], {"least": 0.5, "most": 0.6}, "shares that published runs reached")
equal(fit(*GPT, "--gpus", 2, "--gpu", "l40s")["reached"], {"least": 0.5, "most": 0.78}, "on any GPU")
check("as published runs reached on other GPUs:" in " ".join(run_once(*GPT, "--gpus", 2, "--gpu", "l40s").stdout.split()), "said so")
for word in (f"{int(0.5 * s['tokens_per_second']):,}-{int(0.6 * s['tokens_per_second']):,}", "as published runs reached", "15T tokens: $",
             f"${s['dollars'] / 0.6:.2f}-{s['dollars'] / 0.5:.2f} for 1B tokens"):
    check(word in text, f"{word!r} in {text}")
days = s["days"]
for tokens, shown in ((30 * 15e12 / days, ("30B", "days")), (15e12 / days / 24 * 5, ("hours",)), (15e12 / days * 2000, ("years",))):
    text = run("fit", *args[:-1], tokens).stdout
    check(all(word in text for word in shown[-1:]), f"{tokens}: {shown} in {text}")
args = (*GPT, "--gpus", 2, "--gpu", "h100", "--utilisation", 0.5, "--tokens", "1e12")
equal(fit(*args)["reached"], None, "no range where a share is given")
check("estimated, with products at 0.5 of the datasheet's rate" in run_once(*args).stdout and "1T tokens: " in run_once(*args).stdout,
      run_once(*args).stdout)

# ---- the longest and the most that fit ----
ON_TWO = ["--gpus", 2, "--gpu", "h100", "--tp", 1, "--pp", 1]
PLAIN = [*ON_TWO, "--cp", 1, "--zero", 0, "--checkpoint", "none", "--offload", "none"]
seq = fit("gpt2", *PLAIN, "--capacity", "2300MB", "--max-seq")
found = seq["largest"]
equal((found["of"], found["fits"], seq["seq"], found["refused"] - found["fits"]), ("seq", seq["seq"], seq["seq"], 1024 // 128), "lengths")
equal(fit("gpt2", *PLAIN, "--capacity", "2300MB", "-s", found["fits"])["setups"], seq["setups"], "what fits with that length")
equal(fit("gpt2", *PLAIN, "--capacity", "2300MB", "-s", found["refused"], status=1)["fitting"], 0, "and with the next nothing does")
batch = fit(*GPT, *ON_TWO, "--capacity", "30MB", "--max-batch")
found = batch["largest"]
equal((found["of"], found["fits"], found["refused"] - found["fits"]), ("batch", batch["batch"], 2), "sequences")
equal({s["microbatches"] for s in batch["setups"]}, {1}, "all at once")
more = fit(*GPT, *ON_TWO, "--capacity", "30MB", "-b", found["refused"])
check(not [s for s in more["setups"] if s["fits"] and s["microbatches"] == 1], "one more a GPU does not fit at once")
text = run_once(*GPT, *ON_TWO, "--capacity", "30MB", "--max-batch").stdout
check(f"the most sequences at once: {found['fits']:,}; {found['refused']:,} do not fit\n" in text, text)
none = fit("llama-3.1-8b", "--gpus", 1, "--gpu", "rtx4090", "--max-seq", "--checkpoint", "none", "--offload", "none", status=1)
equal((none["largest"]["fits"], none["largest"]["refused"], none["seq"]), (0, 1024, 1024), "no length at all")
all_of_it = fit("gpt2", "--gpus", 1, "--gpu", "h100", "--max-seq")
equal(all_of_it["largest"], {"of": "seq", "fits": 1024, "refused": None}, "the whole context")

# ---- refusals ----
refused(["--gpu is missing", "h100"], "fit", "gpt", "--gpus", 2, "--json", "-")
refused(["h100", "rtx4090", "nearest and its memory", "--capacity"], "fit", "gpt", "--gpus", 2, "--gpu", "k80")
for gpu in ("v100", "t4"):
    taken = run("fit", "gpt2", "--gpu", gpu)
    check(f"a {gpu} multiplies no bf16: f16 is taken in its place" in taken.stderr and "tokens a step, f16," in taken.stdout, f"{gpu}: {taken.stderr}")
    equal(fit("gpt2", "--gpu", gpu)["setups"], fit("gpt2", "--gpu", gpu, "--dtype", "f16")["setups"], f"{gpu}: as if f16 was given")
    for recipe, typed in ("trl", ["--amp", "f16"]), ("peft", ["--dtype", "f16"]), ("fsdp2", ["--dtype", "f16"]):
        of_recipe = ["gpt2", "-s", 64, "--gpus", 2 if recipe == "fsdp2" else 1, "--gpu", gpu, "--recipe", recipe]
        equal(fit(*of_recipe)["setups"], fit(*of_recipe, *typed)["setups"], f"{gpu}, {recipe}: as if f16 was given")
    refused([gpu, "bf16", "--dtype f16", "--amp f16"], "fit", "gpt2", "--gpus", 2, "--gpu", gpu, "--dtype", "bf16", status=1)
    refused([gpu, "bf16"], "fit", "gpt2", "--gpus", 2, "--gpu", gpu, "--dtype", "f32", "--amp", "bf16", status=1)
    equal(fit("gpt2", "--gpus", 1, "--gpu", gpu, "--dtype", "f32", "--amp", "f16")["gpu"]["name"], gpu, "f16 beside f32")
refused(["--gpu NAME:keep-aside", "--capacity"], "fit", "gpt2", "--gpus", 2, "--gpu", "h100:keep-aside=1GiB", "--capacity", "9GiB")
refused(["kept aside"], "fit", "gpt2", "--gpus", 2, "--gpu", "h100:keep-aside=90GiB", status=1)
refused(["--max-seq", "--seq"], "fit", "gpt2", "--gpus", 2, "--gpu", "h100", "--max-seq", "-s", 64)
refused(["--max-batch", "--batch"], "fit", "gpt2", "--gpus", 2, "--gpu", "h100", "--max-batch", "-b", 4)
refused(["--max-seq", "--max-batch"], "fit", "gpt2", "--gpus", 2, "--gpu", "h100", "--max-seq", "--max-batch")
refused(["mlp", "gpt, bert, llama"], "fit", "mlp", "--gpus", 2, "--gpu", "h100")
refused(["--offload disk"], "fit", "gpt", "--gpus", 2, "--gpu", "h100", "--offload", "disk")
refused(["--gpus"], "fit", "gpt", "--gpus", 0, "--gpu", "h100")
refused(["--utilisation"], "fit", "gpt", "--gpus", 2, "--gpu", "h100", "--utilisation", 0)
refused(["3 sequences", "2 GPUs"], "fit", "gpt", "--gpus", 2, "--gpu", "h100", "-b", 3, "--tp", 1, "--pp", 1, "--cp", 1,
        status=1)
refused(["--seq"], "fit", "gpt2", "--gpus", 2, "--gpu", "h100", "-s", 2000)

# ---- a bar on a terminal only; interrupted: no file is left ----
large = ["megatron-1t", "--gpus", 3072, "--gpu", "a100-80", "-b", 1536]
terminal, other_end = pty.openpty()
with tempfile.TemporaryDirectory() as folder:
    out = os.path.join(folder, "out.json")
    p = subprocess.Popen([MEMTAPE, "fit", *map(str, large), "--json", out], stdout=subprocess.PIPE, stderr=other_end,
                         env=dict(os.environ, TERM="xterm"))
    os.close(other_end)
    shown = b""
    while b"ways to divide" not in shown and (part := os.read(terminal, 65536)):
        shown += part
    check(b"ways to divide" in shown, f"the bar: {shown!r}")
    time.sleep(0.5)
    p.send_signal(signal.SIGINT)
    equal((p.wait(), p.stdout.read()), (-signal.SIGINT, b""), "status when interrupted")
    equal(os.listdir(folder), [], "files when interrupted")
os.close(terminal)
p = run("fit", *GPT, "--gpus", 2, "--gpu", "h100")
equal((p.returncode, p.stderr), (0, ""), "no bar where there is no terminal")
# A batch that does not go through at once is said to be cut.
for batch, microbatches, said in ((8, 4, "; in microbatches of 2"), (1, 1, " free ")):
    args = [*GPT, "-b", batch, "--gpus", 1, "--gpu", "h100", "--capacity", "7MiB", "--checkpoint", "none", "--offload", "none", "--dtype", "f32", "--optimizer", "sgd"]
    head = " ".join(run("fit", *args).stdout.split("tokens a step")[0].split())
    equal((fit(*args)["setups"][0]["microbatches"], "microbatches" in head, said in head), (microbatches, microbatches > 1, True), f"{batch} sequences: {head}")
done()
