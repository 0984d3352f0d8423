"""Every count of parameters that docs/models.md prints is the program's: of presets, and of config.json files of those
names in tests/models/nn/configs, all of which it lists. Absurd numbers in such a file are refused at once or give an answer, and
what takes long ends with Ctrl-C."""
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from lib import MEMTAPE, check, done, equal, profile, refused, run

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "tests" / "models" / "nn" / "configs"
COUNT = r"\d{1,3}(?:,\d{3}){2,}"


def params(model):
    return profile(str(model), "--device", "meta", "-b", "1", "-s", "1")["params"]["count"]


def cells(text, heading):
    """The rows of the table below the heading."""
    return [[cell.strip() for cell in line.split("|")[1:-1]]
            for line in text.split(f"\n## {heading}\n")[1].split("\n## ")[0].splitlines()
            if line.startswith("| `") and "`model_type`" not in line]


def presets(rows):
    """(preset, count) of rows like "`gpt2`, `-medium` | 124,439,808; 354,823,168"."""
    for names, counts, *_ in rows:
        names, counts = re.findall(r"`(.*?)`", names), re.findall(COUNT, counts)
        check(len(names) == len(counts), f"{names}: {counts}")
        for name, count in zip(names, counts):
            yield (names[0].split("-")[0] + name if name.startswith("-") else name), count


def files(rows):
    for *_, models in rows:
        for model in filter(None, models.split("; ")):
            name, count = re.fullmatch(rf"(.*) ({COUNT})", model).groups()
            yield name, count


def plain(name):
    return re.sub("[- ]", "", name.lower())


text = (ROOT / "docs" / "models.md").read_text()
seen = []
sizes = {}
for name, count in presets(cells(text, "Presets and their parameters")):
    sizes[name] = params(name)
    equal(f"{sizes[name]:,}", count, f"parameters of {name}")
    seen.append(count)
for name, h, v in (("bert-base", 768, 30522), ("bert-large", 1024, 30522)):
    seen.append(f"{sizes[name] - 2 * h - v:,}")
    check(f"{seen[-1]} of `{name}`" in text, f"BertModel of {name}: {seen[-1]}")
for name in ("mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b", "gpt-oss-20b", "gpt-oss-120b", "deepseek-v2-lite", "deepseek-v3", "kimi-k2",
             "glm-4.5", "glm-4.5-air", "qwen3-235b-a22b"):
    seen.append(f"{profile(name, '-s', 64)['model']['active_params']:,}")
    check(re.search(rf"{seen[-1]}\s(parameters )?of\s`{name}`", text), f"of {name} a token meets {seen[-1]}")

# ---- one set of defaults: a profile, a plan and a fit on one GPU measure the same step; serve has the same lengths ----
GPU = ["--gpus", 1, "--gpu", "mi300x", "--checkpoint", "none", "--offload", "none"]
MASTERS = "bf16 on meta, adamw and f32 masters"
for name, seq in (("gpt2", 1024), (CONFIGS / "llama-3.2-3b.json", 8192), ("bert-large", 512)):
    for more in ([], ["--optimizer", "adamw-16bit"], ["--dtype", "f32", "--recipe", "hf", "--loss", "native"], ["-b", 2, "-s", 64], ["--dtype", "f16"]):
        what = f"{name} {more}"
        p = profile(name, *more)
        step = json.loads(run("plan", name, *more, "--json", "-").stdout)["step"]
        equal(p["device"], "meta", f"device of {what}")
        equal((step["peak"], step["reserved"]), (p["steady"]["peak"], p["steady"]["reserved"]), f"a plan's step of {what}")
        if "-b" not in more:
            equal((p["model"]["batch"], p["model"]["seq"]), (1, seq), f"batch and length of {what}")
        if "-b" not in more and name != "bert-large":  # a fit divides the batch; a bert's rank has other temporaries
            fit = json.loads(run("fit", name, *more, *GPU, "--tp", 1, "--json", "-").stdout)["setups"]
            equal([(s["peak"], s["reserved"]) for s in fit], [(step["peak"], step["reserved"])], f"a fit's step of {what}")
    for verb in ("profile", "plan"):
        check(MASTERS in run(verb, name).stdout.replace("\n", " "), f"{verb} {name}: the first lines say: {MASTERS}")
        equal(MASTERS in run(verb, name, "--optimizer", "adamw").stdout, False, f"{verb} {name}: masters only by default")
serve = json.loads(run("serve", CONFIGS / "llama-3.2-3b.json", "--gpu", "h100", "--weights", "plain", "--kv-cache", "8bit", "--json", "-").stdout)
check((serve["dtype"], True) == ("bf16", 8192 in [row["positions"] for row in serve["rows"]]), "serve: bf16, 8192 positions")
rows = json.loads(run("sweep", "gpt2", "--over", "master-weights=yes,no", "--json", "-").stdout)["rows"]
equal([row["steady"]["peak"] for row in rows], [profile("gpt2")["steady"]["peak"], profile("gpt2", "--optimizer", "adamw")["steady"]["peak"]],
      "a row without masters has none")

# ---- presets are the published files; org/name is looked up in Hugging Face's cache; the text of a larger model ----
def step_of(model, **more):
    p = run("profile", model, "-s", 64, "--json", "-", **more)
    equal(p.returncode, 0, f"profile {model}: {p.stderr}")
    j = json.loads(p.stdout)
    return j["params"], j["steady"], j["saved"]["bytes"], p.stderr


for name in ("llama-3.1-8b", "llama-3.2-3b", "qwen3-0.6b", "qwen3-8b", "qwen3-32b", "phi-4", "olmo-2-1b", "olmo-2-7b", "olmo-3-7b", "gemma-3-1b",
             "mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b", "gpt-oss-20b", "deepseek-v2-lite", "deepseek-v3", "kimi-k2", "glm-4.5",
             "glm-4.5-air", "qwen3-235b-a22b"):
    equal(step_of(name)[:3], step_of(CONFIGS / f"{name}.json")[:3], f"the preset {name} and its config.json")
for name, file in (("llama-2-70b", "llama-2-70b"), ("gemma-2b", "gemma-2b"), ("gemma-7b", "gemma-7b"), ("gemma-2-2b", "gemma-2-2b"), ("gemma-2-9b", "gemma-2-9b"), ("phi-3-mini", "phi-3-mini-4k"),
                   ("qwen2.5-0.5b", "qwen2-0.5b"), ("qwen2.5-7b", "qwen2-7b")):  # Qwen2.5's sizes are Qwen2's
    equal(step_of(name)[:3], step_of(CONFIGS / f"{file}.json")[:3], f"the preset {name} and {file}.json")
with tempfile.TemporaryDirectory() as home:
    model = Path(home) / "hub" / "models--Qwen--Qwen3-8B"
    old, new = (model / "snapshots" / name for name in ("0a", "1b"))
    for folder, file in ((old, "qwen3-0.6b"), (new, "qwen3-8b")):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text((CONFIGS / f"{file}.json").read_text())
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("1b\n")
    env = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")}
    for where in ({"HF_HOME": home}, {"HF_HUB_CACHE": f"{home}/hub", "HF_HOME": "/nowhere"}):
        equal(step_of("Qwen/Qwen3-8B", env={**env, **where})[:3], step_of("qwen3-8b")[:3], f"a name in the cache, by {where}")
    fit = run("fit", "Qwen/Qwen3-8B", "--gpus", 1, "--gpu", "b300", "-s", 64, env={**env, "HF_HOME": home}).stdout
    check(fit.startswith("fits: Qwen/Qwen3-8B on 1 x b300"), fit)
    (model / "refs" / "main").write_text("2c")
    (new / "config.json").unlink()
    equal(step_of("Qwen/Qwen3-8B", env={**env, "HF_HOME": home})[:3], step_of("qwen3-0.6b")[:3], "without main's, any snapshot")
    p = run("profile", "Qwen/Qwen3-9B", env={**env, "HF_HOME": home})
    equal(p.returncode, 2, "a name that is not in the cache")
    for word in ("Qwen/Qwen3-9B", f"{home}/hub", "hf download Qwen/Qwen3-9B config.json"):
        check(word in p.stderr, f"{word!r} in {p.stderr}")
    file = Path(home) / "gemma.json"
    inner = json.loads((CONFIGS / "gemma-3-1b.json").read_text())
    file.write_text(json.dumps({"model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": inner}))
    *figures, notes = step_of(file)
    equal(figures, list(step_of("gemma-3-1b")[:3]), "the text of a model of more")
    check("text_config: the text model alone; nothing else is counted" in notes, notes)
    inner = json.loads((CONFIGS / "llama-3.2-3b.json").read_text())
    del inner["tie_word_embeddings"]
    for tied in (True, False):
        file.write_text(json.dumps({"model_type": "more", "tie_word_embeddings": tied, "text_config": inner}))
        equal(step_of(file)[0]["count"], 3212749824 + (0 if tied else 128256 * 3072), f"its head, tied {tied}")
    sparse = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
              "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
    whole = {"model_type": "gemma3", "text_config": sparse, "torch_dtype": "auto", "vision_config": {"hidden_size": 1152}}
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(whole).encode())  # as Google's files are, after a byte order mark
    equal(step_of(file)[:3], step_of("gemma-3-4b")[:3], "a file that leaves its family's defaults out")
    packed = {**json.loads((CONFIGS / "llama-2-7b.json").read_text()), "quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}
    file.write_text(json.dumps(packed))
    *figures, notes = step_of(file)
    equal(figures, list(step_of("llama-2-7b")[:3]), "weights that a file keeps in 4 bits")
    check("quantization_config: " in notes and "--qlora" in notes, f"what it says of them: {notes}")
    for content, words in (("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 134\n", "Git LFS pointer"), ("<!DOCTYPE html>", "web page")):
        file.write_text(content)
        refused([words], "profile", file)
        weights = Path(home) / "model.safetensors"
        weights.write_text(content)
        refused([words], "generate", "--model", weights, status=1)
    file.write_text(json.dumps({"model_type": "more", "text_config": {"model_type": "more_text"}}))
    refused(["more_text", "memtape.torch.profile"], "profile", file)

small = profile("gpt")["model"]
equal([small[key] for key in ("batch", "seq", "dtype", "optimizer")], [2, 32, "f32", "none"], "a model of one's own is small")
equal(profile("gpt")["device"], "cpu", "and on the CPU")

there = {plain(path.stem): path for path in CONFIGS.glob("*.json")}
for name, count in files(cells(text, "From a config.json")):
    equal(f"{params(there.pop(plain(name))):,}", count, f"parameters of {name}")
    seen.append(count)
equal(sorted(there), [], "files of which the page gives no count")
equal(sorted(re.findall(COUNT, text)), sorted(seen), "counts on the page")


# ---- absurd numbers ----

def numbers(node, path=()):
    """The paths of all numbers in the object."""
    for key, value in node.items():
        if isinstance(value, dict):
            yield from numbers(value, (*path, key))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield *path, key


def changed(node, path, value):
    return node | {path[0]: changed(node[path[0]], path[1:], value) if path[1:] else value}


# ---- contexts and heads that are not the preset's ----
META = ["--device", "meta"]
gpt2 = profile("gpt2", "-s", 64, *META)["params"]["count"]
equal(profile("gpt2:context=4096", "-s", 2048, *META)["params"]["count"], gpt2 + (4096 - 1024) * 768, "learned positions")
equal(profile("gpt2:untied", "-s", 64, *META)["params"]["count"], gpt2 + 50257 * 768, "a head of its own")
for split in (["--tp", 2], ["--pp", 2, "--stage", 1], ["--dp", 2, "--zero", 3]):
    p = profile("gpt:untied,context=99", "-l", 4, *split, *META)
    equal((p["formula"]["unexplained"], p["growth"]["residual"]), (0, 0), f"books of an untied gpt, {split}")
for model, least in (("gpt2", 1024), ("bert-large", 512)):
    refused([f"--seq {2 * least}", f"context, {least}", f"MODEL:context={2 * least}"], "profile", model, "-s", 2 * least)
p = run("profile", "llama-7b", "-l", 2, "-s", 4096, "--json", "-")
equal(p.returncode, 0, p.stderr)
check("--seq 4096" in p.stderr and "made for, 2048" in p.stderr, f"a note: {p.stderr}")
equal(json.loads(p.stdout), profile("llama-7b:context=4096", "-l", 2, "-s", 4096), "rotary positions go on")


def little_memory():
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "config.json"
    for name in ("gpt2", "llama-3.2-3b", "bert-base-uncased", "gemma-3-1b"):
        config = json.loads((CONFIGS / f"{name}.json").read_text())
        for path in numbers(config):
            for value in (1 << 31, 1 << 62, 1e18, 1967348):
                file.write_text(json.dumps(changed(config, path, value)))
                for verb in ("profile", "plan"):
                    words = [verb, str(file), "-b", "1", "-s", "8"] + ["--device", "meta"] * (verb == "profile")
                    p = run(*words, timeout=20, preexec_fn=little_memory)
                    check(p.returncode in (0, 2), f"{name}, {path} {value}: {verb} ended with {p.returncode}: {p.stderr}")
    # The same limit for the file and the option.
    file.write_text(json.dumps(config | {"num_hidden_layers": 16385}))
    refused(["num_hidden_layers", "16385", "16384"], "profile", str(file))
    refused(["--layers", "16385", "16384"], "profile", "gpt", "-l", 16385)
    file.write_text(json.dumps(config | {"vocab_size": (1 << 31) + 1}))
    refused(["vocab_size", "2147483649", "2147483648"], "profile", str(file))
    refused(["--vocab", "2147483649", "2147483648"], "profile", "gpt", "--vocab", (1 << 31) + 1)
long = subprocess.Popen([MEMTAPE, "profile", "gpt", "-l", "16384", "-d", "8", "-a", "1", "--device", "meta"],
                        stdout=subprocess.DEVNULL)
time.sleep(0.5)
long.send_signal(signal.SIGINT)
equal(long.wait(timeout=20), -signal.SIGINT, "16384 layers, after Ctrl-C")
done()
