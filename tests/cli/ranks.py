"""One rank of several: `profile --tp ...` and `ranks` against the published figures; a model from a
Hugging Face config.json; refusals."""
import json
import os
import tempfile
from pathlib import Path
from lib import MEMTAPE, check, done, equal, profile, refused, run

CONFIGS = Path(__file__).parent.parent / "nn" / "configs"
PAPER = ["-b", 1, "-s", 2048, "--dropout", 0.1, "--attention", "math", "--dtype", "bf16",
         "--device", "meta"]
KEYS = Path(__file__).parent.parent.parent / "docs" / "rank-json.md"

# ---- Korthikanti et al. 2022, table 2: bytes of a layer of 175B ----
p = run("ranks", "--json", "-")
equal(p.returncode, 0, "status of ranks")
rows = json.loads(p.stdout)["rows"]
published = {"none": 2868903936, "tp": 578813952, "tp, sp": 358612992, "tp, selective": 327155712,
             "tp, sp, selective": 106954752, "full": 50331648}
for row in rows:
    equal(row["unexplained"], 0, f"unexplained of {row}")
    if row["model"] == "megatron-175b":
        equal(row["layer_formula"], published[row["technique"]], row["technique"])
equal(len(rows), 24, "rows")
text = run("ranks").stdout
for words in ("578,813,952", "sbh(34 + 5as/h)/t", "in flight"):
    check(words in text, f"ranks: no {words!r}")

# ---- one rank of 1T ----
r = profile("megatron-1t", *PAPER, "--tp", 8, "--sp", "--pp", 64, "--microbatches", 512,
            "--checkpoint", "selective")
sbh = 2048 * 25600
equal(r["formula"]["bytes"], 64 * (2 * 34 * sbh // 8 + sbh // 8), "formula of 1T")
equal(r["formula"]["unexplained"], 0, "unexplained of 1T")
equal(r["saved"]["bytes"],
      r["formula"]["bytes"] + sum(x["bytes"] for x in r["formula"]["residual"]), "saved by 1T")
equal((r["in_flight"], r["layers"]), (64, 2), "in flight, layers")
equal(r["optimizer"]["bytes"], 12 * r["params"]["count"], "AdamW's state")
zero = profile("megatron-1t", *PAPER, "--tp", 8, "--pp", 64, "--dp", 4, "--zero", 1)
equal(zero["optimizer"]["bytes"], 3 * zero["params"]["count"], "AdamW's state, divided among 4 ranks")

# ---- a rank needs the peak of a steady step, with optimizer state; --capacity is compared with that ----
gpt3 = ["gpt3-175b", "-b", 1, "-s", 2048, "--dtype", "bf16", "--dp", 64, "--zero", 3,
        "--checkpoint", "full", "--device", "meta"]
r = profile(*gpt3, "--capacity", "80GiB")
equal((r["capacity"], r["fits"]), (80 * 2**30, True), "GPT-3, ZeRO 3, 64 ranks in 80 GiB")
steady = r["steady"]
equal(sum(steady["by_category"].values()), steady["peak"], "the steady peak of GPT-3")
equal(steady["peak"], 47068134912, "the steady peak of GPT-3")
check(steady["reserved"] < 50 * 10**9, f"GPT-3 reserves {steady['reserved']}")
check(r["reserved"] < 17 * 10**9, f"GPT-3 reserves {r['reserved']} in the first step")
equal(profile(*gpt3)["fits"], None, "fits is null without --capacity")

llama = ["llama-3.1-8b", "-b", 1, "-s", 8192, "--dtype", "bf16", "--pp", 4, "--microbatches", 8,
         "--device", "meta"]
r = profile(*llama)
equal(r["steady"]["peak"], sum(r["steady"]["by_category"].values()), "the steady peak of a stage")
equal(r["steady"]["by_category"]["parameter"], r["params"]["bytes"], "parameters of a stage")
equal(r["steady"]["by_category"]["optimizer"], r["optimizer"]["bytes"], "state of a stage")
needed = r["params"]["bytes"] + r["gradients"]["bytes"] + r["optimizer"]["bytes"] + r["saved"]["bytes"]
check(r["steady"]["peak"] > needed > 72 * 10**9, f"a stage needs {r['steady']['peak']}")
check(r["peak"] < 47 * 10**9, f"the first step of a stage: {r['peak']}")
p = run("profile", *llama, "--capacity", "44GiB")
equal(p.returncode, 1, "status of a stage in 44 GiB")
check("out of memory" in p.stderr and "capacity of 44 GiB" in p.stderr, p.stderr)
check(f"The rank needs {r['steady']['peak']:,} bytes" in p.stdout, p.stdout)
check("too much for --capacity, 47,244,640,256 bytes" in p.stdout, p.stdout)
p = run("profile", *llama, "--capacity", "44GiB", "--json", "-")
equal(p.returncode, 1, "status of a stage in 44 GiB, as JSON")
equal((json.loads(p.stdout)["fits"], json.loads(p.stdout)["steady"]), (False, r["steady"]),
      "a stage in 44 GiB, as JSON")
equal(run("profile", *llama, "--capacity", r["steady"]["reserved"]).returncode, 0,
      "status of a stage whose capacity is what it needs")

# ---- measuring a rank takes little memory and time, as wait4 reports for the program ----
args = ["profile", "megatron-1t", *PAPER, "--tp", 8, "--sp", "--pp", 64, "--microbatches", 512, "-q"]
_, status, usage = os.wait4(os.spawnv(os.P_NOWAIT, MEMTAPE, [MEMTAPE, *map(str, args)]), 0)
equal(status, 0, "status of 1T")
check(usage.ru_maxrss < 100 * 1024, f"1T: {usage.ru_maxrss} KiB resident")
print(f"a rank of 1T: {(usage.ru_utime + usage.ru_stime) * 1e3:.0f} ms, {usage.ru_maxrss} KiB")

documented = KEYS.read_text()
for key in list(r) + [k for name in ("parallel", "steady", "formula") for k in r[name]]:
    check(f"`{key}`" in documented or f".{key}`" in documented, f"rank-json.md: no {key}")

# ---- config.json ----
r = profile(CONFIGS / "llama-3.1-8b.json", "-b", 1, "-s", 8192, "--device", "meta")
equal(r["params"]["count"], 8030261248, "parameters of LLaMA 3.1 8B")
equal(r["formula"]["unexplained"], 0, "unexplained of LLaMA 3.1 8B")
p = run("profile", CONFIGS / "mistral-7b.json", "-s", 64, "--device", "meta")
check("sliding_window: attention sees all positions" in p.stderr, "no note on sliding_window")
check("ignored: " in p.stderr, "ignored keys are not listed")
refused(["--seq 8192", "sliding window, 4096", "--device meta"], "profile", CONFIGS / "mistral-7b.json", "-s", 8192)
p = run("profile", CONFIGS / "mistral-7b.json", "-s", 8192, "--device", "meta", "--quiet")
equal((p.returncode, p.stderr), (0, ""), "a longer sequence than the window without data, and no notes with --quiet")
r = profile(CONFIGS / "qwen2-7b.json", "--tp", 4, "--sp", "-s", 64, "--device", "meta")
equal(r["formula"]["unexplained"], 0, "unexplained of a rank of Qwen2 7B")
for name, ranks in [("qwen3-8b", 4), ("olmo-2-7b", 1), ("phi-4", 5), ("gemma-2-9b", 4),
                    ("gemma-3-1b", 1)]:
    for checkpoint in ("none", "full", "selective"):
        r = profile(CONFIGS / f"{name}.json", "--tp", ranks, *["--sp"][:ranks - 1], "-s", 80, "--zero", 1, "--dp", 2,
                    "--checkpoint", checkpoint, "--device", "meta")
        equal(r["formula"]["unexplained"], 0, f"unexplained of a rank of {name}, {checkpoint}")
refused(["tensor is 2", "norms of q and k"], "profile", CONFIGS / "olmo-2-7b.json", "--tp", 2, "--device", "meta")
with tempfile.TemporaryDirectory() as folder:
    bad = os.path.join(folder, "my-model.json")
    Path(bad).write_text('{"model_type":"mixtral"}')
    refused(["mixtral", "gpt2, llama, mistral, qwen2, qwen3, olmo2, phi3, gemma2, gemma3_text, bert, roberta"], "profile", bad)
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

# ---- refused ----
refused(["--device meta"], "profile", "gpt2", "--tp", 2)
refused(["tensor is 7", "heads"], "profile", "gpt2", "--tp", 7, "--device", "meta")
refused(["--sp", "multiple"], "profile", "gpt2", "--tp", 4, "--sp", "-s", 30, "--device", "meta")
refused(["does not apply to bert"], "profile", "bert-base", "--tp", 2, "--device", "meta")
refused(["--offload", "one rank"], "profile", "gpt2", "--tp", 2, "--offload", "cpu", "--device",
        "meta")
refused(["--checkpoint", "selective"], "profile", "gpt2", "--tp", 2, "--checkpoint", "sqrt",
        "--device", "meta")
refused(["--zero", "0 to 3"], "profile", "gpt2", "--zero", 4, "--device", "meta")
done()
