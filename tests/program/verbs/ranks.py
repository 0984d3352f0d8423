"""One rank of several: `profile --tp ...` against the published figures; a model from a
Hugging Face config.json; refusals."""
import json
import os
import random
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from lib import MEMTAPE, check, documented_keys, done, equal, paths, placed, profile, refused, run, sums_its_terms

CONFIGS = Path(__file__).parents[2] / "models" / "nn" / "configs"
PAPER = ["-b", 1, "-s", 2048, "--dropout", 0.1, "--attention", "math", "--dtype", "bf16",
         "--device", "meta"]

# ---- Korthikanti et al. 2022, table 2: bytes of a layer of 175B ----
published = {("1", "no", "none"): 2868903936, ("8", "no", "none"): 578813952, ("8", "yes", "none"): 358612992,
             ("8", "no", "selective"): 327155712, ("8", "yes", "selective"): 106954752, ("8", "no", "full"): 50331648}
for (tp, sp, checkpoint), n in published.items():
    p = profile("block", *PAPER, "-d", 12288, "-a", 96, "--tp", tp, *["--sp"][:sp == "yes"], "--checkpoint", checkpoint)
    equal((p["formula"]["bytes"], p["formula"]["unexplained"]), (n, 0), f"a layer, --tp {tp}, --sp {sp}, {checkpoint}")

# ---- twice as many microbatches as stages fill a pipeline: no more is in flight with the paper's ----
for model, pipeline, interleave, microbatches in (("megatron-175b", 8, 3, 64), ("megatron-530b", 35, 3, 280), ("megatron-1t", 64, 1, 512)):
    stage = [model, *PAPER, "--tp", 8, "--sp", "--checkpoint", "selective", "--pp", pipeline, "--recipe", f"plain:interleave={interleave}", "--microbatches"]
    r, few = profile(*stage, microbatches), profile(*stage, 2 * pipeline)
    equal((few["saved"]["bytes"], few["parallel"]["in_flight"]), (r["saved"]["bytes"], r["parallel"]["in_flight"]), f"a stage of {model}")

# ---- a term that is spelled as a share is one, of t, as the whole model has it; the formula is the sum of its terms ----
def in_layers(t):
    """What a term is of, in the dense layers or in the others."""
    return t["what"], "D" in t["text"]


RANKS = [["--tp", t, *more] for t in (2, 4) for more in ([], ["--sp"], ["--sp", "--recipe", "plain:etp=1"])]
for model, *more in (["deepseek-tiny"], ["block"], ["llama-tiny", "--kv-heads", 4]):
    words = [model, *more, "-b", 2, "-s", 64, "-a", 4, "--device", "meta", "--attention", "math"]
    whole, shares = {in_layers(t): t["bytes"] for t in profile(*words)["formula"]["terms"]}, 0
    for rank in (rank for rank in RANKS if model == "deepseek-tiny" or "--recipe" not in rank):
        f = profile(*words, *rank)["formula"]
        check(sums_its_terms(f), f"{model} {rank}: {f['text']} is not the sum of its terms")
        for t in f["terms"]:
            share = t["text"].endswith("/t")
            shares += share
            equal(t["bytes"] * (rank[1] if share else 1), whole.get(in_layers(t)), f"{model} {rank}: {t['text']}, {t['what']}")
    check(shares > 9, f"{model}: {shares} shares")

# ---- one rank of 1T ----
sbh = 2048 * 25600
equal(r["formula"]["bytes"], 64 * (2 * 34 * sbh // 8 + sbh // 8), "formula of 1T")
equal(r["formula"]["text"], "L(34bsh/t) + E(bsh/t)", "formula of 1T, as text")
equal(r["formula"]["unexplained"], 0, "unexplained of 1T")
equal(r["saved"]["bytes"],
      r["formula"]["bytes"] + sum(x["bytes"] for x in r["formula"]["residual"]), "saved by 1T")
equal((r["parallel"]["in_flight"], r["parallel"]["layers"]), (64, 2), "in flight, layers")
equal(r["parallel"]["optimizer"], 12 * r["params"]["count"], "AdamW's state")
zero = profile("megatron-1t", *PAPER, "--tp", 8, "--pp", 64, "--dp", 4, "--zero", 1)
equal(zero["parallel"]["optimizer"], 3 * zero["params"]["count"], "AdamW's state, divided among 4 ranks")

# ---- a rank needs the peak of a steady step, with optimizer state; --capacity is compared with that ----
gpt3 = ["gpt3-175b", "-b", 1, "-s", 2048, "--dtype", "bf16", "--dp", 64, "--zero", 3,
        "--checkpoint", "full", "--device", "meta"]
r = profile(*gpt3, "--capacity", "80GiB")
equal((r["capacity"], r["out_of_memory"]), (80 * 2**30, None), "GPT-3, ZeRO 3, 64 ranks in 80 GiB")
steady = r["steady"]
equal(sum(steady["by_category"].values()), steady["peak"], "the steady peak of GPT-3")
equal(steady["peak"], 47068134912 + 254279680, "the steady peak of GPT-3, with rests of blocks")
without = profile(*gpt3, "--expandable-segments")
equal(without["steady"]["peak"], 47068134912, "the same where all rests are split off")
check(steady["reserved"] < 50 * 10**9, f"GPT-3 reserves {steady['reserved']}")
backward = r["phases"][2]
equal((backward["name"], backward["peak"], without["phases"][2]["peak"]), ("backward", 14329317888 + 524288, 14329317888),
      "the first backward of GPT-3, with a rest")
check(backward["reserved"] < 17 * 10**9, f"GPT-3 reserves {backward['reserved']} in the first step")

llama = ["llama-3.1-8b", "-b", 1, "-s", 8192, "--dtype", "bf16", "--pp", 4, "--microbatches", 8,
         "--device", "meta"]
r = profile(*llama)
equal(r["steady"]["peak"], sum(r["steady"]["by_category"].values()), "the steady peak of a stage")
equal(r["steady"]["by_category"]["parameter"], r["params"]["bytes"], "parameters of a stage")
equal(r["steady"]["by_category"]["optimizer"], r["parallel"]["optimizer"], "state of a stage")
needed = r["params"]["bytes"] + r["parallel"]["gradients"] + r["parallel"]["optimizer"] + r["saved"]["bytes"]
check(r["steady"]["peak"] > needed > 72 * 10**9, f"a stage needs {r['steady']['peak']}")
first = max(phase["peak"] for phase in r["phases"][:3])
check(first < 47 * 10**9, f"the first step of a stage: {first}")
p = run("profile", *llama, "--capacity", "44GiB")
equal(p.returncode, 1, "status of a stage in 44 GiB")
check("out of memory" in p.stderr and "capacity of 44 GiB" in p.stderr, p.stderr)
check(f"large enough needs {r['steady']['peak']:,} bytes" in p.stdout, p.stdout)
p = run("profile", *llama, "--capacity", "44GiB", "--json", "-")
equal(p.returncode, 1, "status of a stage in 44 GiB, as JSON")
equal(json.loads(p.stdout)["out_of_memory"]["needed"],
      {"peak": r["steady"]["peak"], "reserved": r["steady"]["reserved"]}, "a stage in 44 GiB, as JSON")
equal(run("profile", *llama, "--capacity", r["steady"]["reserved"]).returncode, 0,
      "status of a stage whose capacity is what it needs")

# ---- measuring a rank takes little memory and time, as wait4 reports for the program ----
args = ["profile", "megatron-1t", *PAPER, "--tp", 8, "--sp", "--pp", 64, "--microbatches", 512, "-q"]
plain = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}  # as a user has it
_, status, usage = os.wait4(os.spawnve(os.P_NOWAIT, MEMTAPE, [MEMTAPE, *map(str, args)], plain), 0)
equal(status, 0, "status of 1T")
check(usage.ru_maxrss < 100 * 1024, f"1T: {usage.ru_maxrss} KiB resident")
print(f"a rank of 1T: {(usage.ru_utime + usage.ru_stime) * 1e3:.0f} ms, {usage.ru_maxrss} KiB")


# ---- twice the stages: twice the microbatches in flight, and twice the work ----
def instructions(stages):
    p = subprocess.run(["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", MEMTAPE, "profile", "gpt", "-d", "8", "-a", "1",
                        "-s", "4", "-b", "1", "--vocab", "16", "-l", str(stages), "--pp", str(stages), "--microbatches", str(2 * stages),
                        "--device", "meta", "-q"],
                       capture_output=True, text=True, env=dict(plain, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive"))
    found = re.search(r"Collected : (\d+)", p.stderr)
    check(found, f"valgrind counts instructions: {p.stderr[-300:]}")
    return int(found[1]) if found else 0


if shutil.which("valgrind"):
    n = [instructions(stages) for stages in (32, 64, 128)]
    print(f"instructions for 32, 64 and 128 stages: {n}")
    check(n[2] - n[1] < 1.1 * 2 * (n[1] - n[0]), f"work in proportion to the stages: {n}")
else:
    print("skipped: the count of instructions needs valgrind")

known = documented_keys("profile-json.md")
for key in set(paths(r)) - known:
    check(any(k.startswith(key + ".") for k in known), f"profile-json.md: no {key}")

# ---- ZeRO 3 gathers 16 bits where autocast computes in them: no cast weight is kept ----
amp = ["gpt", "-d", 32, "-l", 4, "--amp", "bf16", "--dp", 4, "--device", "meta"]
whole, shards = (profile(*amp, "--zero", zero) for zero in (2, 3))
weights = 4 * 12 * 32**2 + 256 * 32  # of the layers' products and of the head
equal(whole["saved"]["bytes"] - shards["saved"]["bytes"], 2 * weights, "cast weights that ZeRO 3 does not keep")

# ---- a plan of a rank: its share of the parameters and of what is kept, and what fits ----
for model in (["gpt"], ["gpt", "--norm", "post"], ["llama", "--kv-heads", 2], ["bert"], ["block"]):
    for split in (["--tp", 2], ["--tp", 2, "--sp", "--checkpoint", "full"], ["--pp", 2], ["--pp", 2, "--stage", 1],
                  ["--pp", 2, "--recipe", "plain:interleave=2"], ["--tp", 4, "--vocab", 250], ["--dp", 3, "--zero", 3]):
        if model == ["block"] and {"--pp", "--vocab"} & set(map(str, split)):
            continue
        if model == ["llama", "--kv-heads", 2] and 4 in split:
            continue
        if model == ["bert"] and "--vocab" in split:
            split = ["--tp", 4, "--vocab", 258]
        layers = [] if model == ["block"] else ["-l", 4]
        p = run("plan", *model, *layers, "-s", 32, *split, "--json", "-")
        name = f"plan {model} {split}"
        if equal(p.returncode, 0, f"status of {name}: {p.stderr}"):
            plan = json.loads(p.stdout)
            equal([(f["name"], f["unexplained"]) for f in plan["formulas"]],
                  [("parameters", 0), ("activations", 0)], name)
            same = profile(*model, *layers, "-s", 32, "-b", 1, "--dtype", "bf16", *split, "--device", "meta")
            equal(plan["step"]["peak"], same["steady"]["peak"], f"{name}: the peak of a profile")
            equal({k: same["parallel"][k] for k in plan["parallel"]}, plan["parallel"], f"{name}: the rank")
plan = json.loads(run("plan", "llama-3.1-8b", "--tp", 8, "--sp", "--capacity", "80GiB", "--json", "-").stdout)
longest = plan["fits"]["seq"]
equal((longest["largest"] % 8, longest["refused"] - longest["largest"]), (0, 8), "what fits, cut among 8 ranks")
p = profile("llama-3.1-8b", "-b", 1, "-s", longest["largest"], "--tp", 8, "--sp", "--dtype", "bf16",
            "--device", "meta", "--capacity", "80GiB")
equal(p["steady"]["peak"], longest["peak"], "the longest sequence that fits")
refused(["--kv", "one rank's part"], "plan", "gpt", "--tp", 2, "--kv", 3)

# ---- --rank chooses the stage ----
for rank, stage in ((0, 0), (5, 0), (6, 1), (23, 3)):
    r = profile("gpt", "-l", 4, "--tp", 2, "--dp", 3, "--pp", 4, "--rank", rank, "--device", "meta")
    equal((r["parallel"]["rank"], r["parallel"]["stage"]), (rank, stage), f"the stage of rank {rank}")
same = [profile("gpt", "-l", 4, "--pp", 4, *which, "--device", "meta")["steady"]
        for which in (["--rank", 2], ["--stage", 2])]
equal(same[0], same[1], "--rank 2 and --stage 2")

# ---- all ranks of a division have one answer: none begins what another one refuses ----
draws, answers = random.Random(12), {}
for _ in range(240 if os.environ.get("MTT_LONG") == "1" else 36):
    model = draws.choice(["gpt", "llama", "llama", "llama-tiny", "moe-tiny", "deepseek-tiny"])
    words = [model, "-b", draws.choice([1, 2, 4]), "-s", draws.choice([1, 2, 3, 4, 6, 8, 16])]
    if model in ("gpt", "llama"):
        words += ["-d", draws.choice([16, 24, 32]), "-a", draws.choice([1, 2, 4]), "-l", draws.choice([1, 2, 3, 5]), "--vocab", draws.choice([8, 30, 64])]
    words += [f"MODEL:mtp-layers={draws.choice([1, 2, 3])}"] if draws.random() < 0.5 else []
    for option in (["MODEL:untied"], ["--dropout", 0.1], ["--checkpoint", "full"], ["--lora-rank", 2], ["--kv-heads", 1],
                   ["--microbatches", draws.choice([1, 2, 3, 4])], ["--zero", draws.choice([1, 2, 3])], ["--sp"], ["--recipe", "plain:interleave=2"],
                   ["--recipe", "plain:step-in-backward"], ["--first-layers", 1], ["--last-layers", 1]):
        words += option if draws.random() < 0.12 else []
    n, division = draws.choice([(2, ["--pp", 2]), (3, ["--pp", 3]), (4, ["--pp", 2, "--tp", 2]), (2, ["--cp", 2]), (4, ["--pp", 2, "--dp", 2])])
    ends = [run("profile", *placed(*words), *division, "--device", "meta", "--rank", rank) for rank in range(n)]
    alike = {(end.returncode, re.sub(r"rank \d+ of", "rank of", end.stderr)) for end in ends}
    equal(len(alike), 1, f"answers of the ranks of profile {words + division}: {alike}")
    answers[ends[0].returncode] = answers.get(ends[0].returncode, 0) + 1
check(answers.get(0, 0) > 5 and answers.get(1, 0) > 1, f"draws of which no rank is refused, or all: {answers}")

# ---- config.json ----
r = profile(CONFIGS / "llama-3.1-8b.json", "-b", 1, "-s", 8192, "--device", "meta")
equal(r["params"]["count"], 8030261248, "parameters of LLaMA 3.1 8B")
equal(r["formula"]["unexplained"], 0, "unexplained of LLaMA 3.1 8B")
p = run("profile", CONFIGS / "mistral-7b.json", "-s", 64, "--device", "meta")
check("  with windows of 4096" in p.stdout, "the windows are not told")
check("ignored: " in p.stderr, "ignored keys are not listed")
equal(profile(CONFIGS / "mistral-7b.json", "-s", 8192, "--device", "meta")["model"]["window"], 4096, "the window of Mistral 7B")
p = run("profile", CONFIGS / "mistral-7b.json", "-s", 8192, "--device", "meta", "--quiet")
equal((p.returncode, p.stderr), (0, ""), "a longer sequence than the window without data, and no notes with --quiet")
r = profile(CONFIGS / "qwen2-7b.json", "--tp", 4, "--sp", "-s", 64, "--device", "meta")
equal(r["formula"]["unexplained"], 0, "unexplained of a rank of Qwen2 7B")
for name, ranks in [("qwen3-8b", 4), ("olmo-2-7b", 1), ("phi-4", 5), ("gemma-2-9b", 4),
                    ("gemma-3-1b", 1)]:
    for checkpoint in ("none", "full", "selective", "ops"):
        r = profile(CONFIGS / f"{name}.json", "--tp", ranks, *["--sp"][:ranks - 1], "-s", 80, "--zero", 1, "--dp", 2,
                    "--checkpoint", checkpoint, "--device", "meta")
        equal(r["formula"]["unexplained"], 0, f"unexplained of a rank of {name}, {checkpoint}")
refused(["tensor is 2", "norms of q and k"], "profile", CONFIGS / "olmo-2-7b.json", "--tp", 2, "--device", "meta")
with tempfile.TemporaryDirectory() as folder:
    bad = os.path.join(folder, "my-model.json")
    Path(bad).write_text('{"model_type":"jamba"}')
    refused(["jamba", "gpt2, opt, gpt_neox, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, olmoe, gpt_oss, deepseek_v2, deepseek_v3, kimi_k2, glm4_moe, olmo2, olmo3, phi3, smollm3, gemma, gemma2, gemma3_text, bert, roberta"], "profile", bad)
    Path(bad).write_text('{"model_type":"gpt2","n_embd":')
    refused(["line 1"], "profile", bad)
    llama_2 = (CONFIGS / "llama-2-7b.json").read_text()
    Path(folder, "config.json").write_text(llama_2)
    r = profile(folder, "-s", 64, "--device", "meta")
    equal(r["params"]["count"], 6738415616, "parameters of a folder's model")
    refused(["same file"], "profile", folder, "-s", 64, "--device", "meta", "--json",
            os.path.join(folder, "config.json"))
    Path(folder, "config.json").write_text(llama_2.replace("{", '{"depth": 3, "ratio": 0.5,', 1))
    refused([f'MODEL: {folder}: "depth" is 3, "ratio" is 0.5; need known keys'], "profile", folder)
    for text in ['{"model_type":"mixtral"}', '{"model_type":"gpt2","n_embd":', '[]', '{}', '{"model_type":"gpt2"}',
                 '{"model_type":"gpt2","n_embd":0}', '{"model_type":"gpt2","n_embd":10,"n_head":3,"n_layer":1}',
                 '{"model_type":"gpt2","attn_pdrop":0.1,"resid_pdrop":0.2}']:
        Path(bad).write_text(text)
        p = refused([f"MODEL: {bad}: "], "profile", bad)
        check("config.json" not in p.stderr, p.stderr)
refused(["cannot open"], "profile", "no/config.json")

# ---- stages of different lengths: 11 layers in 3 stages, or in 6 parts ----
for parts, lengths in ((1, (4, 4, 3)), (2, (4, 4, 3))):
    count = 0
    for stage in range(3):
        for checkpoint in ("none", "full", "every=2", "sqrt", "ops"):
            r = profile("llama", "-l", 11, "--pp", 3, "--recipe", f"plain:interleave={parts}", "--microbatches", 6, "--stage", stage,
                        "--checkpoint", checkpoint, "--device", "meta")
            equal((r["parallel"]["layers"], r["formula"]["unexplained"], r["growth"]["residual"]), (lengths[stage], 0, 0),
                  f"stage {stage} of 3 with {parts} parts of 11 layers, {checkpoint}")
        count += r["params"]["count"]
    equal(count, profile("llama", "-l", 11, "--device", "meta")["params"]["count"], "every layer is in one stage")
refused(["pipeline times interleave is 12", "layers, 11"], "profile", "llama", "-l", 11, "--pp", 12, "--device", "meta")

# ---- shards of sequences ----
for more in ([], ["--attention", "math"], ["--attention", "math", "--checkpoint", "selective"], ["--amp", "bf16"],
             ["--tp", 2, "--sp", "--checkpoint", "ops"], ["--dp", 2, "--zero", 3, "--checkpoint", "full"],
             ["--offload", "cpu"], ["--lora-rank", 4], ["--recipe", "hf"], ["--recipe", "fsdp2"]):
    for model in (["gpt", "-l", 2], ["bert", "-l", 2], ["llama", "-l", 2, "--kv-heads", 2]):
        alone = profile(*model, *more, "-s", 32, "--device", "meta", *["--tp", 1][:2 * (more[:1] != ["--tp"])],
                        *["--dp", 2][:2 * ("fsdp2" in more)])
        r = profile(*model, *more, "-s", 128, "--cp", 4, "--device", "meta")
        name = f"{model} {more} in four shards"
        equal((r["parallel"]["cp"], r["parallel"]["rank"]), (4, 3 * r["parallel"]["tp"]), f"the rank of {name}")
        if r["formula"]:
            equal(r["formula"]["unexplained"], 0, f"the books of {name}")
        if "math" not in more and "hf" not in more:
            equal(r["saved"]["bytes"], alone["saved"]["bytes"], f"bytes kept: {name}")
rows = json.loads(run("sweep", "llama", "-l", 2, "-s", 128, "--over", "cp=1,2,4", "--device", "meta", "--json", "-").stdout)["rows"]
state = 2 * 16  # of the generator, for each layer's flash attention
equal([(row["saved"] - state) * c for row, c in zip(rows, (1, 2, 4))], [rows[0]["saved"] - state] * 3, "half the sequence")
p = json.loads(run("plan", "gpt", "--cp", 2, "-s", 64, "--json", "-").stdout)
equal(p["parallel"]["cp"], 2, "a plan's shards")
first = run("profile", "gpt", "--cp", 4, "--rank", 1, "--device", "meta").stdout
check("shard 1 of 4 of each sequence" in first, first)
refused(["--cp", "multiple"], "profile", "gpt2", "--cp", 4, "-s", 30, "--device", "meta")
refused(["--sp", "multiple"], "profile", "gpt2", "--cp", 4, "--tp", 2, "--sp", "-s", 36, "--device", "meta")
refused(["--device meta"], "profile", "gpt2", "--cp", 2, "--device", "cpu")
refused(["--zero", "--dp or --cp"], "profile", "gpt2", "--cp", 1, "--zero", 1, "--device", "meta")

# ---- refused ----
refused(["--device meta"], "profile", "gpt2", "--tp", 2, "--device", "cpu")
refused(["tensor is 7", "heads"], "profile", "gpt2", "--tp", 7, "--device", "meta")
refused(["--sp", "multiple"], "profile", "gpt2", "--tp", 4, "--sp", "-s", 30, "--device", "meta")
refused(["does not apply to mlp"], "profile", "mlp", "--tp", 2, "--device", "meta")
refused(["--qlora", "shards"], "profile", "gpt2", "--dp", 2, "--zero", 3, "--lora-rank", 4, "--qlora",
        "--device", "meta")
refused(["--budget", "several in flight"], "profile", "gpt2", "--pp", 2, "--budget", "1GiB", "--device",
        "meta")
refused(["--rank 12", "0 to 11"], "profile", "gpt2", "--tp", 2, "--dp", 2, "--pp", 3, "--rank", 12,
        "--device", "meta")
refused(["--rank", "--stage"], "profile", "gpt2", "--pp", 3, "--rank", 1, "--stage", 1, "--device", "meta")
refused(["--rank needs --tp"], "profile", "gpt2", "--rank", 1, "--device", "meta")
refused(["--zero", "0 to 3"], "profile", "gpt2", "--zero", 4, "--device", "meta")
done()
