"""What people type first is answered: it runs, or one line says what to type instead. Models and GPUs have the names that people
and Hugging Face give them, options those of other programs; a model alone is held against every kind of GPU."""
import functools
import json
import os
import re
import tempfile
from pathlib import Path
from lib import check, done, equal, refused, run

META = ["--device", "meta"]

ROOT = Path(__file__).parents[3]
FOREIGN = (ROOT / "program" / "options" / "foreign.c").read_text()
HOME = tempfile.mkdtemp()
ENV = {**{k: v for k, v in os.environ.items() if k not in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME")}, "HF_HOME": HOME}
SMALL = {"act": "relu", "hidden": 32, "layers": 3, "heads": 2, "kv-heads": 1, "ffn": 48, "vocab": 50, "batch": 3, "seq": 16, "optimizer": "sgd",
         "capacity": "9GiB", "lora-rank": 2, "checkpoint": "full", "attention": "flash", "zero": 1, "tp": 2, "pp": 2, "dp": 2, "cp": 2, "ep": 2,
         "qlora": None}


def words_of_other_programs_mean_ours():
    rows = re.findall(r'\{"([a-z0-9-]+)", "([a-z0-9-]+)", (NULL|"[a-z]+")\}', FOREIGN.split("} meanings")[1].split("} choices")[0])
    check(len(rows) > 50, f"rows: {rows}")
    for word, option, value in rows:
        if option not in SMALL:
            check(option in ("lr", "steps", "accumulate", "gpu", "gpus", "until"), f"{word}: {option} is tried below")  # until: compare.py
            continue
        model = ["moe-tiny", "-s", 8] if option == "ep" else ["llama", "-d", 32, "-a", 2, "-l", 2, "-s", 8, "--device", "meta"] if option in ("kv-heads", "lora-rank") else \
            ["gpt", "-d", 32, "-a", 2, "-l", 2, "-s", 8, "--device", "meta", "--dtype", "bf16", "--optimizer", "adamw"]
        model += ["--dp", 2] if option in ("zero", "ep") else []
        given = [] if value != "NULL" or SMALL[option] is None else [SMALL[option]]
        ours = [] if SMALL[option] is None else [SMALL[option]]
        found = [run("profile", *model, f"--{w}", *v, "--json", "-") for w, v in ((word, given), (option, ours), (word.replace("-", "_"), given))]
        equal([p.stdout for p in found], [found[1].stdout] * 3, f"--{word} {given} is --{option} {ours}: {found[0].stderr}")
        equal(found[0].returncode, 0, f"--{word}: {found[0].stderr}")
    for line, ours in (("train --learning-rate 3e-4 --max-steps 2 --gradient_accumulation_steps 2", "train --lr 3e-4 --steps 2 --accumulate 2"),
                       ("fit gpt2 --num-gpus 2 --gpu-type h100", "fit gpt2 --gpus 2 --gpu h100")):
        more = ["--data", __file__, "-b", 1, "-s", 8, "--threads", 1] if line.startswith("train") else []
        a, b = (re.sub(r"[\d.]+ (k )?tok/s|ETA.*|[\d.]+ s\b", "", run(*words.split(), *more).stdout) for words in (line, ours))
        equal((len(a) > 100, a), (True, b), line)
    advice = re.findall(r'\{"([a-z0-9-]+)", "([a-z0-9-]+)",\s*"((?:[^"]|"\s*")*)"\}', FOREIGN.split("} choices")[1])
    check(len(advice) > 10, f"rows: {advice}")
    for word, option, text in advice:
        verb = ("train",) if option in ("steps", "save") else ("profile", "gpt2")
        refused([f"--{word}: ", re.sub(r'"\s*"', "", text)], *verb, f"--{word}")
    refused(["--gradient-checkpointing: ", "unrecognized"], "demo", "--gradient-checkpointing")
    words = re.findall('"([a-z-]+)"', FOREIGN.split("words[] = {")[1].split("}")[0])
    check(len(words) > 3, f"words before a model's name: {words}")
    alone = run("profile", "gpt2", "-s", 8, "--json", "-").stdout
    for word in words:
        equal([run("profile", f"--{word}", "gpt2", "-s", 8, "--json", "-").stdout, run("profile", "-s", 8, f"--{word.replace('-', '_')}=gpt2", "--json", "-").stdout],
              [alone] * 2, f"--{word} gpt2 is gpt2")
        refused([f"--{word}: ", "needs a value, MODEL"], "profile", f"--{word}")
    refused(["--model: MODEL is \"gpt2\" already"], "profile", "gpt2", "--model", "bert")
    for name in ("8xa100", "8 x A100", "8X a100-80"):
        refused([f'"{name}" is a number of GPUs; give --gpu a100-80 --gpus 8'], "fit", "gpt2", "--gpu", name)
    refused(["give --gpu a100-80, and how 8 divide the model: --dp"], "profile", "gpt2", "--gpu", "8xa100")
    for name in ("8x", "8xk", "8"):
        refused([f'unknown "{name}"', "choose"], "fit", "gpt2", "--gpu", name)


def qlora_alone_has_the_usual_rank():
    """The rank is shown in the answer and in JSON, and all else is as with that rank given."""
    said, given = "adapters of rank 16, the default of --qlora\n", ["--qlora", "--lora-rank", 16]
    for verb, model in (("profile", ["llama-3.1-8b", "-s", 64, "--recipe", "peft"]), ("explain", ["gpt", "-s", 16]), ("fit", ["gpt2", "--gpu", "rtx3090"])):
        for word in ("--qlora", "--load-in-4bit"):
            alone, both = run(verb, *model, word), run(verb, *model, *given)
            check(said in alone.stdout and said not in both.stdout, f"{verb}: {alone.stdout[:400]} {alone.stderr}")
    for verb, model, path in (("profile", ["gpt", "-s", 16, *META], ("memory_options",)), ("fit", ["gpt2", "--gpu", "rtx3090"], ())):
        j, both = (json.loads(run(verb, *model, *words, "--json", "-").stdout) for words in (["--qlora"], given))
        equal((functools.reduce(dict.get, path, j)["lora_rank"], functools.reduce(dict.get, path, both)["lora_rank"]), (16, 16), f"{verb}: lora_rank")
    plain = json.loads(run("fit", "gpt2", "--gpu", "rtx3090", "--json", "-").stdout)
    equal(plain["lora_rank"], None, "fit without adapters")
    equal(run("profile", "gpt", "-s", 16, *META, "--qlora", "--json", "-").stdout, run("profile", "gpt", "-s", 16, *META, *given, "--json", "-").stdout, "all else")
    rows = {r["row"]: r["steady"]["peak"] for r in json.loads(run("sweep", "gpt", "-s", 16, *META, "--over", "qlora=yes,no", "--json", "-").stdout)["rows"]}
    one = [json.loads(run("profile", "gpt", "-s", 16, *META, *words, "--json", "-").stdout)["steady"]["peak"] for words in (given, [])]
    equal([rows["qlora=yes"], rows["qlora=no"]], one, "a row without --qlora has no adapters")
    train = run("train", "--data", __file__, "--qlora")
    check(train.returncode == 2 and "--qlora needs --from" in train.stderr, f"train: {train.stderr}")


def capitals_do_not_matter():
    for words in (["--checkpoint", "Full"], ["--compress", "8BIT", "--device", "cpu"], ["--act", "GELU"], ["--dtype", "BF16"], ["--optimizer", "AdamW"],
                  ["--attention", "Flash"]):
        a, b = (run("profile", "gpt", "--device", "meta", *w, "--json", "-") for w in (words, [w.lower() for w in words]))
        if "cpu" not in words:
            equal((a.returncode, a.stdout), (0, b.stdout), f"{words}: {a.stderr}")
        equal(a.returncode, 0, f"{words}: {a.stderr}")


def models_have_the_names_that_people_give_them():
    for name, preset in {"llama3-8b": "llama-3.1-8b", "llama 3 8b": "llama-3.1-8b", "LLAMA-3.1-8B": "llama-3.1-8b", "llama2-7b": "llama-2-7b",
                         "meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "meta-llama/Meta-Llama-3-8B": "llama-3.1-8b", "Qwen/Qwen2.5-7B-Instruct": "qwen2.5-7b",
                         "Qwen/Qwen3-8B": "qwen3-8b", "mistralai/Mistral-7B-Instruct-v0.3": "mistral-7b", "mistralai/Mistral-7B-v0.1": "mistral-7b-v0.1",
                         "NousResearch/Llama-2-7b-hf": "llama-2-7b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0": "tinyllama-1.1b", "openai-community/gpt2": "gpt2",
                         "google/gemma-2-9b-it": "gemma-2-9b", "microsoft/Phi-3-mini-4k-instruct": "phi-3-mini", "google-bert/bert-base-uncased": "bert-base",
                         "mistralai/Mixtral-8x7B-Instruct-v0.1": "mixtral-8x7b", "meta-llama/Llama-3.3-70B-Instruct": "llama-3.1-70b",
                         "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": "qwen2.5-7b", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "llama-3.1-8b",
                         "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": "deepseek-r1-distill-qwen-1.5b", "lmsys/vicuna-7b-v1.5": "llama-2-7b",
                         "lmsys/vicuna-13b-v1.3": "llama-13b", "codellama/CodeLlama-7b-Instruct-hf": "codellama-7b", "Qwen/Qwen2-7B": "qwen2.5-7b",
                         "Qwen/Qwen2.5-Coder-7B-Instruct": "qwen2.5-7b", "Qwen/Qwen3-4B-Instruct-2507": "qwen3-4b", "Qwen/QwQ-32B": "qwen2.5-32b",
                         "mistralai/Mistral-Nemo-Instruct-2407": "mistral-nemo-12b", "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "mistral-small-24b",
                         "deepseek-ai/DeepSeek-R1-0528": "deepseek-v3", "Qwen/Qwen3-Coder-30B-A3B-Instruct": "qwen3-30b-a3b",
                         "microsoft/Phi-3-mini-128k-instruct": "phi-3.5-mini", "microsoft/Phi-4-mini-reasoning": "phi-4-mini",
                         "HuggingFaceTB/SmolLM2-135M-Instruct": "smollm2-135m", "HuggingFaceH4/zephyr-7b-beta": "mistral-7b-v0.1",
                         "FacebookAI/xlm-roberta-base": "xlm-roberta-base", "allenai/OLMo-2-1124-13B-Instruct": "olmo-2-13b", "allenai/OLMo-2-0325-32B": "olmo-2-32b",
                         "allenai/Olmo-3-7B-Think": "olmo-3-7b", "01-ai/Yi-1.5-34B-Chat": "yi-34b", "tiiuae/Falcon3-7B-Instruct": "falcon3-7b",
                         "deepseek-ai/deepseek-coder-6.7b-instruct": "deepseek-coder-6.7b", "deepseek-ai/deepseek-coder-7b-instruct-v1.5": "deepseek-llm-7b",
                         "deepseek-ai/DeepSeek-Coder-V2-Lite-Instruct": "deepseek-v2-lite", "mistralai/Mistral-Large-Instruct-2411": "mistral-large-123b",
                         "mistralai/Mistral-Small-Instruct-2409": "codestral-22b", "mistralai/Ministral-8B-Instruct-2410": "ministral-8b",
                         "upstage/SOLAR-10.7B-Instruct-v1.0": "solar-10.7b", "openlm-research/open_llama_3b": "open-llama-3b",
                         "facebook/opt-1.3b": "opt-1.3b", "facebook/OPT-13B": "opt-13b",
                         "microsoft/DialoGPT-medium": "gpt2-medium", "HuggingFaceTB/SmolLM-1.7B": "smollm2-1.7b",
                         "HuggingFaceTB/SmolLM3-3B-Base": "smollm3-3b", "EleutherAI/pythia-1.4b-deduped": "pythia-1.4b"}.items():
        p, wanted = (run("profile", m, "-s", 8, "--json", "-", env=ENV) for m in (name, preset))
        equal((p.returncode, p.stdout), (0, wanted.stdout), f"{name}: {p.stderr}")
        check(f"{name} is taken for this preset" in p.stderr and preset in p.stderr, f"{name}: it says so: {p.stderr}")
        equal(wanted.stderr, "", f"{preset} needs no note")
    for name, preset in {"unsloth/llama-3-8b-bnb-4bit": "llama-3.1-8b", "TheBloke/Llama-2-7B-Chat-AWQ": "llama-2-7b", "Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4": "qwen2.5-7b",
                         "unsloth/Meta-Llama-3.1-8B-Instruct-unsloth-bnb-4bit": "llama-3.1-8b", "TheBloke/Mistral-7B-Instruct-v0.1-GGUF": "mistral-7b-v0.1"}.items():
        p, wanted = (run("profile", m, "-s", 8, "--json", "-", env=ENV) for m in (name, preset))
        equal((p.returncode, p.stdout), (0, wanted.stdout), f"{name}: {p.stderr}")
        check("weights of the model's type" in p.stderr and "--qlora" in p.stderr, f"{name}: it says that they are not in 4 bits: {p.stderr}")
    alone = "the text model alone; what sees pictures is not counted"
    for name, preset in {"Qwen/Qwen2.5-VL-7B-Instruct": "qwen2.5-7b", "qwen2-vl-2b": "qwen2.5-1.5b", "Qwen/Qwen3-VL-8B-Instruct": "qwen3-8b", "qwen3 vl 2b": "qwen3-1.7b",
                         "google/gemma-3-27b-it": "gemma-3-27b", "gemma-3-4b": "gemma-3-4b", "mistralai/Mistral-Small-3.1-24B-Instruct-2503": "mistral-small-24b"}.items():
        p, wanted = (run("profile", m, "-s", 8, "--json", "-", env=ENV) for m in (name, preset))
        equal((p.returncode, p.stdout), (0, wanted.stdout), f"{name}: {p.stderr}")
        check(f"{name}: {alone}" in p.stderr, f"{name}: it says what it leaves out: {p.stderr}")
    for name in ("gemma-3-1b", "qwen2.5-7b", "mistral-small-24b"):
        check(alone not in run("profile", name, "-s", 8, env=ENV).stderr, f"{name} is of text alone")
    for name in ("Qwen/Qwen2-57B-A14B", "deepseek-ai/DeepSeek-R1-Distill-Qwen-8B", "someone/vicuna-7b-v2-AWQ", "AWQ", "-AWQ", "-2507", "gpt2-25o7", "2507", "facebook/opt-350m", "opt 13b"):
        equal(run("profile", name, env=ENV).returncode, 2, f"{name} is none of them")
    equal(run("profile", "no/such", env=ENV).returncode, 2, "no preset")
    for name, words in {"llama-3.1": ["llama-3.1-8b, llama-3.1-70b or llama-3.1-405b"], "qwen2.5-8b": ["did you mean qwen2.5-"], "llama3": ["mean llama-3.1-8b, llama-3.1-70b, llama-3.1-405b or 2 others?"],
                        "llama 70b": ["mean llama-2-70b or llama-3.1-70b?"], "70b": ["mean llama-2-70b, codellama-70b or llama-3.1-70b?"], "qwen 30b": ["mean qwen3-30b-a3b?"], "deepseek": [" others? give"],
                        "nothing-like-it": ["docs/models.md", "config.json", "memtape.torch.profile"]}.items():
        p = refused(words, "profile", name)
        check(len(p.stderr) < 420, f"{name}: it is short: {p.stderr}")
    refused(["is a model; give a verb", "memtape fit Llama-3.1-8B"], "Llama-3.1-8B")
    refused(["is a model; give a verb"], "llama 3 8b")
    refused(["verb: unknown", "did you mean train?"], "trian")
    refused(["give --data notes.txt"], "train", "notes.txt")


def gpus_have_the_names_that_people_give_them():
    for name, ours in {"4090": "rtx4090", "RTX 4090": "rtx4090", "NVIDIA GeForce RTX 3090": "rtx3090", "H100": "h100", "H100-80GB": "h100", "A100-80GB": "a100-80",
                       "NVIDIA A100-SXM4-80GB": "a100-80", "a100 40gb": "a100-40", "Tesla V100": "v100", "gb200": "gb200", "GB200": "gb200", "MI300X": "mi300x",
                       "AMD Instinct MI300X": "mi300x", "L40S": "l40s", "NVIDIA RTX A6000": "a6000", "RTX A4000": "a4000", "NVIDIA RTX 6000 Ada Generation": "rtx6000-ada",
                       "NVIDIA H100 80GB HBM3": "h100", "H100 PCIe": "h100-pcie", "NVIDIA A100 80GB PCIe": "a100-80", "NVIDIA A100-PCIE-40GB": "a100-40", "A100": "a100-80",
                       "Tesla V100-SXM2-16GB": "v100-16", "Tesla V100-SXM2-32GB": "v100", "Tesla P100-PCIE-16GB": "p100", "GTX 1080 Ti": "gtx1080ti", "3080 Ti": "rtx3080ti",
                       "NVIDIA GeForce RTX 4080 SUPER": "rtx4080s", "RTX 4060 Ti 16GB": "rtx4060ti", "rtx 3090 24gb": "rtx3090", "T4 16 GB": "t4", "NVIDIA A10": "a10",
                       "NVIDIA A10G": "a10g", "h100sxmsxm": "h100"}.items():
        more = ["gpt2", "--gpus", 1, "--dtype", "f16", "--json", "-"]
        a, b = (run("fit", *more, "--gpu", gpu) for gpu in (name, ours))
        equal(a.returncode, 0, f"{name}: {a.stderr}")
        equal(*((j["gpu"], j["setups"]) for j in (json.loads(p.stdout) for p in (a, b))), name)
    for verb in ("fit", "serve"):  # two sizes: the larger one, which is said
        for name, taken, other in ("A100", "a100-80", "a100-40"), ("V100", "v100", "v100-16"):
            p = run(verb, "gpt2", "--gpu", name)
            check(f'"{name}" is taken as {taken}; there is {other} with less memory' in p.stderr, p.stderr)
        check("taken as" not in run(verb, "gpt2", "--gpu", "A100-80GB").stderr, "one size")
    for name in ("RTX 3060 8GB", "RTX 4060 Ti 8GB", "RTX 3080 12GB"):  # other cards than those that are known
        refused(["gpu: unknown", "nearest and its memory"], "fit", "gpt2", "--gpu", name)


def kinds_of(text):
    """What the table of kinds says of each: what it has, and the row's cells."""
    rows = {}
    for line in text.splitlines():
        if row := re.fullmatch(r"  ([\d.]+)(?:-([\d.]+))? +((?:fits|no)\b.*?) *", line):
            least, most, cells = row.groups()
        elif re.fullmatch(r"    \S+(  \S+)*", line):
            rows.update((name, (float(least), float(most or least), re.split(" {2,}", cells))) for name in line.split())
    return rows


def a_model_alone_is_fitted_on_every_kind():
    p = run("fit", "llama-3.2-1b", "-s", 2048)
    equal(p.returncode, 0, f"status: {p.stderr}")
    rows, gpus = kinds_of(p.stdout), {g["name"]: g for g in json.loads(run("help", "--json").stdout)["gpus"]}
    kinds = re.findall(r"(?m)^\| `([a-z0-9-]+)` \| [\d,]+ \|", (ROOT / "docs" / "fit.md").read_text())
    equal((sorted(rows), sorted(kinds)), (sorted(gpus), sorted(gpus)), f"kinds in {p.stdout}")
    for name, (least, most, cells) in rows.items():
        has = (gpus[name]["memory"] - gpus[name]["kept_aside"]) / 2**30
        check(least - 0.051 <= has <= most + 0.051, f"{name} has {has} GiB: {least} to {most}")
        equal("f16" in cells[-1], gpus[name]["f16_only"], f"{name}: in f16: {cells}")
    check(len(p.stdout.splitlines()) <= 60, f"a row for each answer: {p.stdout}")
    lora = ["--lora-rank", 16, "--lora-targets", "q,v"]
    for name in ("a10g", "rtx5090", "h200", "t4"):
        for verdict, more in zip(rows[name][2], ([], lora, [*lora, "--qlora"])):
            one = run("fit", "llama-3.2-1b", "-s", 2048, "--gpus", 1, "--gpu", name, *more)
            equal(one.returncode == 0, verdict.startswith("fits"), f"{name} {more}: {verdict}: {one.stdout}")
            check(f"{verdict.split()[1]} of " in one.stdout or verdict.split()[1] in one.stdout, f"{name} {more}: {verdict} in {one.stdout}")
    given = kinds_of(run("fit", "llama-3.2-1b", "-s", 2048, "--dtype", "bf16", "--lora-rank", 16).stdout)
    equal({name for name, (*_, cells) in given.items() if cells == ["no bf16", "--dtype f16"]}, {name for name, g in gpus.items() if g["f16_only"]}, "bf16 as asked")
    check("adapters of rank 16, the default of --qlora" in run("fit", "llama-3.2-1b", "-s", 64, "--qlora").stdout, "the rank that --qlora has")
    for gpus in (1, 2):
        p = run("fit", "gpt2", "-s", 64, *(["--gpus", gpus] if gpus > 1 else []))
        check(f"gpt2 on {gpus} GPU" in p.stdout and sum(cells[0].startswith("fits ") for *_, cells in kinds_of(p.stdout).values()) >= 15, p.stdout)
        check(max(map(len, p.stdout.splitlines())) <= 80, p.stdout)
    # Of two layers: to search those of gpt3-175b takes half a minute.
    equal(run("fit", "gpt", "-d", 131072, "-l", 2, "-a", 64, "-s", 64).returncode, 1, "nothing fits")
    refused(["--gpu is missing", "--gpu NAME:price", "h100"], "fit", "gpt2", "--price", 3)
    for option in (["--json", "-"], ["--max-seq"], ["--capacity", "9GiB"]):
        refused(["--gpu is missing", option[0], "h100"], "fit", "gpt2", *option)
    alone, said = (re.sub(r"tried in \S+ s", "", run("fit", "gpt2", "--gpu", "h100", *more).stdout) for more in ([], ["--gpus", 1]))
    equal(alone, said, "one GPU unless told otherwise")


for test in (words_of_other_programs_mean_ours, qlora_alone_has_the_usual_rank, capitals_do_not_matter, models_have_the_names_that_people_give_them, gpus_have_the_names_that_people_give_them,
             a_model_alone_is_fitted_on_every_kind):
    test()
done()
