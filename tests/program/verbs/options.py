"""Every option with every verb, and in every mode of a verb: it changes the output, or it is refused with
status 2 and its name. The options are read from the verbs' own help: a new option fails here until it has
a value in VALUES, and an option without effect fails until it is refused. The short form takes each option with one
of the verbs that list it, in turn, and some of the modes and of the verbs that do not."""
import hashlib
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from lib import MEMTAPE, VERBS, check, done, equal, help_json, keys, run

LONG = os.environ.get("MTT_LONG") == "1"
FOLDER = tempfile.mkdtemp()
os.environ.setdefault("OMP_NUM_THREADS", "2")

SLOW = ["demo"]  # it takes a second: in the short form only what no other verb has

# ---- a value for each option, unlike its default; and other options without which it has no effect ----
VALUES = {
    "model": "other.safetensors", "prompt": "abc", "tokens": 7, "temperature": 2, "top-k": 2, "top-p": 0.3, "repetition-penalty": 9, "stop": "e", "ids": "ids.txt",
    "kv-cache": "none", "adapter": "adapter.safetensors", "merge": None, "data": "more.txt",
    "preset": "small", "steps": 2, "seconds": 20, "lr": 0.5, "min-lr": 0.3, "warmup": 2,
    "weight-decay": 9, "clip": 0.01, "accumulate": 2, "val-fraction": 0.3, "no-packing": None, "eval-every": 1,
    "save": "saved.safetensors", "save-every": 1, "save-best": "best.safetensors", "resume": "half.safetensors",
    "from": "model.safetensors", "save-adapter": "ad.safetensors", "save-hf": "hf", "batch": 3, "seq": 8,
    "hidden": 24, "context": 40, "untied": None, "no-bias": None, "heads": 2, "layers": 6, "vocab": 19, "ffn": 20, "act": "relu", "inplace": None, "out-act": "sigmoid",
    "norm": "post", "norm-kind": "rmsnorm", "kv-heads": 2, "head-dim": 12, "kv-rank": 8, "q-rank": 12, "rope-dim": 4, "value-dim": 12, "dropout": 0.5, "attention": "math",
    "causal": None, "dtype": "f16", "optimizer": "adamw", "checkpoint": "full", "recompute-modules": "mlp", "budget": "1GB",
    "offload": "cpu", "offload-modules": "core_attn", "compress": "bf16", "amp": "f16", "loss-scale": 4096, "master-weights": None,
    "f32-gradients": None, "step-in-backward": None, "lora-rank": 3, "lora-targets": "proj", "lora-dropout": 0.5, "f32-adapters": None, "lora-on-weights": None, "qlora": None, "qlora-double": None, "codes": "int8", "codes-file": None, "tp": 4, "sp": None,
    "pp": 4, "interleave": 2, "pp-first": 2, "pp-last": 2, "rank": 5, "stage": 1, "microbatches": 4, "cp": 2, "dp": 4, "ep": 2, "etp": 1, "zero": 3, "fsdp": "ahead", "reshard": "never", "replicas": 2, "rs-buffers": 3, "offload-param": None, "reduce": "after", "buckets": "copied", "bucket-bytes": "2KiB", "reduce-bucket": "2k", "sub-group": "2k", "device": "meta", "capacity": "1MB",
    "expandable-segments": None, "granule": "64KiB", "reclaim": None, "gemm-workspace": "2MiB", "scratch": "cpu", "seed": 9, "threads": 3,
    "params": "1B", "flops-rate": "1T", "utilisation": 0.5, "kv": 3, "until": "forward",
    "over": "dtype=f32,bf16", "row": "a: --batch 5", "expr": "x@w+1", "shapes": "x=5x4,w=4x6",
    "no-grad": "x", "weights": "x,w", "inference": None, "timeline": None, "trace": "x.trace", "snapshot": "x.pickle",
    "svg": "x.svg", "html": "x.html", "json": "x.json", "quiet": None, "verbose": None, "show": "peak", "help": None, "recipe": "hf", "swiglu": "unfused",
    "rms-norm": "unfused", "gelu-tanh": "unfused", "rope": "unfused", "softmax": "f32", "kv-groups": "repeated", "window-mask": "kept",
    "experts": 4, "experts-per-token": 1, "router": "sigmoid", "expert-form": "loop", "balance-loss": 0.5, "balance-by-layer": None, "mtp-layers": 2, "mtp-loss": 0.4, "routing": "worst", "record-routing": "rows.json", "expert-capacity": 0.5, "expert-padding": None,
    "joint-products": None, "linear": "torchao-float8", "loss": "f32", "gpus": 8, "gpu": "h200", "gpus-file": "gpus.json", "price": 2, "at-once": 5, "exact": None, "users": 3,
    "keep-aside": "5GiB", "outside": None, "host-memory": "1GiB", "max-seq": None, "max-batch": None}
VALUE_OF = {("serve", "recipe"): "plain:kv-groups=repeated", ("serve", "weights"): "nf4", ("generate", "weights"): "nf4", ("serve", "kv-cache"): "paged", ("serve", "capacity"): "20MiB", ("plan", "tokens"): "1B", ("fit", "tokens"): "1B", ("fit", "tp"): 2, ("fit", "pp"): 2, ("plan", "optimizer"): "sgd-momentum", ("train", "steps"): 3, ("train", "optimizer"): "sgd",
            ("train", "preset"): "llama-tiny", ("train", "layers"): 3}
# Used where the command already has the value above.
SECOND_VALUES = {"device": "cpu", "budget": "2GB", "from": "other.safetensors", "resume": "half2.safetensors"}
ON_META = ["--device", "meta"]
WIDE = ["-d", 384, "--optimizer", "adamw"]
SHOWN = ["--snapshot", "x.pickle"]
ADAPTED = ["--from", "model.safetensors", "--lora-rank", 3]
NEEDED = {"inplace": ["--act", "leaky_relu"], "loss-scale": ["--dtype", "f16", "--optimizer", "adamw"],
           "master-weights": ["--dtype", "bf16", "--optimizer", "adamw"],
           "f32-gradients": ["--dtype", "bf16"], "offload-modules": ["--offload", "cpu"], "step-in-backward": ["--optimizer", "adamw"],
           "fsdp": [*ON_META, "--dp", 4, "--zero", 3], "replicas": [*ON_META, "--dp", 4, "--zero", 3],
           "buckets": [*ON_META, "--dp", 4], "mtp-loss": ["--mtp-layers", 1], "balance-by-layer": ["--balance-loss", 0.5], "bucket-bytes": [*ON_META, "--dp", 4, "--recipe", "plain:buckets=views"], "reduce-bucket": [*ON_META, "--dp", 4, "--zero", 2], "sub-group": [*ON_META, "--dp", 4, "--zero", 3, "--optimizer", "adamw"],
           "offload-param": [*ON_META, "--dp", 4, "--zero", 3],
           **dict.fromkeys(("reshard", "rs-buffers"), [*ON_META, "--dp", 4, "--zero", 3, "--recipe", "plain:fsdp=ahead"]),
           "ep": [*ON_META, "--dp", 4], "etp": [*ON_META, "--tp", 2, "--sp"], "lora-targets": ["--lora-rank", 3],
           "lora-dropout": ["--lora-rank", 3],
           "f32-adapters": ["--lora-rank", 3, "--dtype", "bf16"],
           "lora-on-weights": ["--lora-rank", 3],
           "qlora": ["--lora-rank", 3], **dict.fromkeys(("qlora-double", "codes"), ["--lora-rank", 3, "--qlora"]),
           "codes-file": [*ON_META, "--lora-rank", 3, "--qlora"],
           "recipe": ["--dtype", "bf16"], "loss": ["--dtype", "bf16"], "rms-norm": ["--norm-kind", "rmsnorm"],
           "gelu-tanh": ["--act", "gelu_tanh"], "softmax": ["--attention", "math", "--dtype", "bf16"],
           "kv-groups": ["--kv-heads", 2],
           "granule": ["--expandable-segments"], "reclaim": ["--expandable-segments", "--recipe", "plain:granule=4KiB"],
           "routing": [*ON_META, "--recipe", "plain:expert-form=loop"], "expert-capacity": ["--recipe", "plain:expert-form=megatron"],
           "expert-padding": ["--recipe", "plain:expert-form=megatron", "--recipe", "plain:expert-capacity=2"], "gemm-workspace": ON_META, "scratch": ON_META + ["--dtype", "bf16"],
           "save-best": ["--eval-every", 1], "utilisation": ["--tokens", "1B", "--flops-rate", "1T"]}
NEEDED_BY = {("serve", "recipe"): ["--kv-heads", 2, "--attention", "math"], ("fit", "ep"): [], ("fit", "buckets"): [], ("fit", "bucket-bytes"): ["--recipe", "plain:buckets=copied"],
             ("fit", "fsdp"): ["--zero", 3], ("fit", "offload-param"): ["--zero", 3], ("fit", "reduce-bucket"): ["--zero", 2], ("fit", "sub-group"): ["--zero", 2], ("compare", "expandable-segments"): WIDE,
              ("compare", "rs-buffers"): ["-d", 384, "--dp", 4, "--zero", 3, "--recipe", "plain:fsdp=ahead"],
              ("fit", "utilisation"): [], ("fit", "master-weights"): ["--optimizer", "adamw"],
              ("fit", "gemm-workspace"): [], ("fit", "scratch"): [],
              ("explain", "qlora"): ["--lora-rank", 3, "-v"],  # it shows in weights, op by op
              # blocks of memory hide what smaller weights save
              **{("sweep", option): ["--lora-rank", 3, "--qlora", "-d", 128] for option in ("qlora-double", "codes")},
              ("profile", "keep-aside"): ["--outside", "--gpu", "h100"], ("plan", "keep-aside"): ["--gpu", "h100"],
              ("plan", "gpus"): NEEDED["utilisation"], ("plan", "svg"): ["--budget", "1GB"], ("plan", "master-weights"): ["--optimizer", "adamw"],
              ("plan", "gemm-workspace"): ["--capacity", "10MB"],
              # what is reserved shows where it takes more than one segment, and of a training run in its snapshot
              ("sweep", "expandable-segments"): WIDE, ("sweep", "granule"): [*WIDE, "--expandable-segments"],
              ("sweep", "reclaim"): [*WIDE, "--expandable-segments", "--recipe", "plain:granule=4KiB"],
              ("plan", "expandable-segments"): [*WIDE[:2], "--capacity", "100MB"],
              ("plan", "granule"): [*WIDE[:2], "--capacity", "100MB", "--expandable-segments"],
              ("plan", "reclaim"): [*WIDE[:2], "--capacity", "100MB", "--expandable-segments", "--recipe", "plain:granule=4KiB"],
              ("train", "expandable-segments"): SHOWN, ("train", "granule"): [*SHOWN, "--expandable-segments"],
              ("train", "reclaim"): [*SHOWN, "--expandable-segments", "--recipe", "plain:granule=4KiB"],
              ("plan", "scratch"): ["--capacity", "10MB"],
              **{("train", option): [] for option in ("ep", "etp", "fsdp", "reshard", "replicas", "rs-buffers", "reduce", "buckets", "bucket-bytes", "reduce-bucket", "sub-group")},
              ("train", "loss-scale"): ["--amp", "f16"], ("train", "master-weights"): ["--dtype", "bf16"],
              ("train", "f32-gradients"): ["--dtype", "bf16", "--accumulate", 2],
              ("train", "qlora"): ADAPTED, ("train", "lora-targets"): ADAPTED, ("train", "lora-dropout"): ADAPTED,
              ("train", "f32-adapters"): ["--from", "narrow.safetensors", "--lora-rank", 3],
              ("train", "lora-on-weights"): ["--from", "mixture.safetensors", "--lora-rank", 3],
              **{("train", option): [*ADAPTED, "--qlora"] for option in ("qlora-double", "codes")}, ("train", "lora-rank"): ADAPTED[:2],
              ("train", "save-adapter"): ADAPTED, ("train", "save-every"): ["--save", "folder"]}
# Of several ranks that mpirun starts: train_ranks.py.
AMONG_RANKS = {("train", option) for option in ("tp", "sp", "pp", "interleave", "pp-first", "pp-last", "microbatches", "cp", "dp", "ep", "etp", "zero", "fsdp", "reshard", "replicas", "rs-buffers", "reduce", "buckets", "bucket-bytes", "reduce-bucket", "sub-group", "json")}
# These two have an effect only together.
TOGETHER = {("serve", "act"): ["--inplace"], ("plan", "flops-rate"): ["--tokens", "1B"],
            ("profile", "gpu"): ["--outside"]}
SMALL = ["-b", 2, "-s", 16, "-d", 16, "-a", 4]
EXPRESSION = ["--expr", "(x*2)@w", "--shapes", "x=3x4,w=4x5"]
MLP = ["mlp", "-b", 2, "-s", 16, "-d", 16]
GPT = ["gpt", *SMALL, "-l", 4]
LLAMA = ["llama", *SMALL, "-l", 2]
WINDOWED = ["gemma-3-1b", "-b", 1, "-s", 1024, "-l", 6, "--vocab", 99]
MIXTURE = ["moe-tiny", *SMALL, "-l", 2]
GPUS = ["--gpus", 4, "--gpu", "h100"]
FIT = ["gpt", "-b", 4, "-s", 16, "-d", 16, "-a", 4, "-l", 4, *GPUS]
SERVE = ["gpt", "-s", 16, "-d", 16, "-a", 4, "-l", 4, "--gpu", "h100", "--capacity", "9MiB"]
TEXT = ["--data", "text.txt", "--steps", 4, "--save", "out.safetensors"]
TRAIN = [*TEXT, *SMALL, "-l", 1]
RANK = ["gpt", "-b", 2, "-s", 16, "-d", 32, "-a", 8, "-l", 8, "--dtype", "bf16", *ON_META, "--tp", 2,
        "--pp", 2, "--dp", 2, "--zero", 1, "--dropout", 0.1]
LAST_RANK = [*RANK[:RANK.index("--dtype")], *ON_META, "--tp", 2, "--pp", 2, "--dp", 2, "--zero", 1, "--rank", 7]
BASE = {"demo": ["--data", "text.txt"], "train": TRAIN, "generate": ["--model", "model.safetensors",
        "-n", 60], "profile": GPT, "explain": GPT, "sweep": GPT, "plan": GPT,
        "fit": FIT, "serve": SERVE, "compare": ["measured.pickle", *GPT]}
# Another command than BASE's, where that shows what the option does.
LOOKING = ("profile", "explain", "sweep", "plan", "compare")


def of(verb, model):
    return ["measured.pickle", *model] if verb == "compare" else model


LATENT, LATENTS = ["deepseek-tiny", "-b", 2, "-s", 16], ("kv-rank", "q-rank", "rope-dim", "value-dim")
BASE_OF = {("train", "preset"): [*TEXT, "-b", 2, "-s", 16], ("plan", "kv"): ["gpt2", "-s", 16],
           **{("generate", option): ["--model", "model.safetensors", "-n", 2000] for option in ("stop", "weights")}, ("demo", "seconds"): ["--data", "text.txt", "--seconds", 1],
           ("generate", "batch"): ["--model", "model.safetensors", "-n", 8, "--prompt", "a", "--prompt", "bc"],
           ("explain", "prompt"): [f"{FOLDER}/weights"], ("train", "save-hf"): [*TEXT, "--from", f"{FOLDER}/weights"],
           **{("explain", option): EXPRESSION for option in ("expr", "shapes", "no-grad", "weights", "json")},
           **{(verb, "out-act"): of(verb, MLP) for verb in LOOKING},
           **{(verb, option): of(verb, LLAMA) for verb in LOOKING for option in ("swiglu", "rope", "joint-products")},
           **{(verb, "window-mask"): of(verb, WINDOWED) for verb in LOOKING}, ("fit", "window-mask"): [*WINDOWED, *GPUS],
           ("compare", "gpu"): ["measured.log", *GPT],
           **{(verb, option): of(verb, MIXTURE) for verb in LOOKING for option in ("experts", "experts-per-token", "router", "expert-form", "expert-capacity", "expert-padding", "routing", "balance-loss", "balance-by-layer", "lora-on-weights")},
           **{(verb, option): of(verb, LATENT) for verb in LOOKING for option in LATENTS}, **{("fit", option): [*LATENT, *GPUS] for option in LATENTS},
           **{("train", option): [*TEXT, "-b", 2, "--preset", "deepseek-tiny"] for option in LATENTS},
           **{("fit", option): [*MIXTURE, *GPUS] for option in ("experts", "experts-per-token", "router", "expert-form", "expert-capacity", "expert-padding", "balance-loss", "balance-by-layer", "lora-on-weights")},
           **{("train", option): [*TEXT, "-b", 2, "--preset", "moe-tiny"] for option in ("experts", "experts-per-token", "router", "expert-form", "expert-capacity", "expert-padding", "balance-loss", "balance-by-layer", "record-routing")},
           **{("fit", option): [*LLAMA, *GPUS] for option in ("swiglu", "rope", "joint-products")},
           **{("serve", option): ["llama", "-s", 16, "-d", 16, "-a", 4, "--capacity", "9MiB"] for option in ("swiglu", "rope")},
           ("fit", "max-seq"): ["gpt", "-b", 4, *FIT[5:]], ("fit", "max-batch"): ["gpt", *FIT[3:]],
           ("serve", "keep-aside"): ["gpt", "-s", 16, "-d", 16, "-a", 4, "-l", 1, "--gpu", "h100", "--weights", "plain"],
           ("sweep", "keep-aside"): ["gpt2", "-b", 12, "--device", "meta", "--gpu", "rtx3060"],
           ("serve", "gpus-file"): ["gpt", "-s", 16, "-d", 16, "-a", 4, "-l", 1, "--gpu", "h100", "--weights", "plain"],
           **{("train", option): [*TEXT, *SMALL, "-l", 1, "--preset", "llama-tiny"] for option in ("swiglu", "rope", "joint-products")},
           **{(verb, "causal"): of(verb, ["block", *SMALL]) for verb in LOOKING},
           **{(verb, option): of(verb, ["moe-tiny", "-b", 2, "-s", 16]) for verb in LOOKING for option in ("ep", "etp")}, ("fit", "ep"): ["moe-tiny", "-b", 4, "-s", 16, *GPUS],
           **{(verb, option): RANK if verb in ("profile", "sweep") else of(verb, [word for word in RANK if word not in ON_META])
              for verb in ("profile", "sweep", "plan", "compare") for option in
              ("tp", "sp", "pp", "interleave", "pp-first", "pp-last", "rank", "stage", "microbatches", "cp", "dp", "zero")}}
# These need a first row without the option, because a sweep compares its rows with the first.
FIRST_ROW = {"act", "attention", "causal", "dropout", "dtype", "inplace", "loss-scale", "out-act", "norm", "norm-kind",
             "recipe", "swiglu", "rms-norm", "gelu-tanh", "rope", "softmax", "kv-groups", "window-mask", "loss", "router", "expert-form", "expert-capacity", "expert-padding", "routing"}

# ---- modes of the verbs: every option is tried in each ----
MODES = [
    ("profile", "one rank of several", RANK),
    ("profile", "one rank alone", [*GPT, "--dtype", "bf16", *ON_META, "--tp", 1]),
    ("profile", "meta", [*GPT, *ON_META]),
    ("profile", "budget", [*GPT, "--budget", "1GB"]),
    ("profile", "a block", ["block", *SMALL]),
    ("explain", "meta", [*GPT, *ON_META]),
    ("explain", "an expression", EXPRESSION),
    ("sweep", "meta", [*GPT, *ON_META]), ("sweep", "one rank of several", RANK),
    ("sweep", "cpu and meta", [*GPT, "--over", "device=cpu,meta"]),
    ("plan", "capacity", [*GPT, "--capacity", "10MB"]),
    # where nothing fits everything is searched: of few GPUs and layers
    ("fit", "too large", ["gpt", "-b", 4, "-s", 16, "-d", 16, "-a", 4, "-l", 2, "--gpus", 2, "--gpu", "h100", "--capacity", "10kB"]),
    ("plan", "budget", [*GPT, "--budget", "1GB"]),
    ("plan", "an mlp", MLP), ("profile", "a linear", ["linear", "-b", 2, "-d", 16]),
    ("train", "from", [*TEXT, "-b", 2, "--from", "model.safetensors"]),
    ("train", "resume", [*TEXT, "--resume", "half.safetensors"]),
    ("train", "meta", [*TEXT[:-2], *ON_META]),
    ("generate", "cold", ["--model", "model.safetensors", "-n", 20, "-t", 0]),
    ("generate", "no choice", ["--model", "model.safetensors", "-n", 20, "-k", 1]),
]


def make_folder(path):
    """A llama of one layer over bytes as Transformers writes it; all weights are 0.5."""
    shapes = {"model.embed_tokens": [256, 4], "model.norm": [4]}
    for name in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"model.layers.0.{name}"] = [4]
    for name in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down"):
        shapes[f"model.layers.0.{name}_proj"] = [4, 4]
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape + [1])[1]
        header[f"{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.mkdir()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + struct.pack("<f", 0.5) * (at // 4))
    (path / "config.json").write_text(json.dumps({
        "model_type": "llama", "hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 256,
        "max_position_embeddings": 32, "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": True, "dtype": "float32"}))


def prepare():
    make_folder(Path(FOLDER, "weights"))
    def make(name, *args):
        p = run("train", *TRAIN, *args, "--save", name, cwd=FOLDER)
        equal(p.returncode, 0, f"making {name}: {p.stderr}")

    source = Path(__file__).read_text()
    Path(FOLDER, "text.txt").write_text(source[:3000])
    Path(FOLDER, "more.txt").write_text(source[3000:5000])
    Path(FOLDER, "gpus.json").write_text('{"h100": {"memory": "40GiB"}}')
    Path(FOLDER, "measured.log").write_text("12345MiB / 81559MiB\n")
    p = run("profile", "gpt2", "-l", 3, "-s", 32, "--snapshot", "measured.pickle", cwd=FOLDER)
    equal(p.returncode, 0, f"making a snapshot: {p.stderr}")
    Path(FOLDER, "ids.txt").write_text("97 98\n")
    make("model.safetensors")
    make("narrow.safetensors", "--dtype", "bf16")
    make("mixture.safetensors", "--preset", "moe-tiny")
    make("other.safetensors", "--seed", 5)
    make("half.safetensors", "--steps", 2, "--optimizer", "adamw:warmup=1")
    make("half2.safetensors", "--steps", 2, "--optimizer", "adamw:warmup=1", "--seed", 5)
    p = run("train", "--data", "more.txt", "--from", "model.safetensors", "--lora-rank", 2, "--steps", 20,
            "--lr", 0.1, "-b", 2, "--save-adapter", "adapter.safetensors", cwd=FOLDER)
    equal(p.returncode, 0, f"making adapters: {p.stderr}")


# ---- ways to look at a run: each returns its status, its errors, and a result to compare ----
TIMES = re.compile(r"[\d.]+ (?:[kMGTP] )?(?:tok/s|a second|FLOP/s|m?s\b)|ETA .*|"
                   r"(?m:^ +(?:milliseconds|FLOP/s) .*$)")


def without_times(j):
    if isinstance(j, dict):
        return {k: without_times(v) for k, v in j.items()
                if not re.search(r"second|_ms|_s$|^ms$|time|rate_", k) or k == "timeline"}
    return [without_times(v) for v in j] if isinstance(j, list) else j


def content(path):
    """What is compared of a file: the values of a model's file, not its header, which describes the run."""
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        return hashlib.sha1(data[8 + int.from_bytes(data[:8], "little"):]).hexdigest()
    return path.suffix if path.suffix in (".svg", ".html", ".trace", ".json") else len(data)


def own_folder():
    """A new folder for one run, with links to the files that prepare() made."""
    folder = Path(tempfile.mkdtemp(dir=FOLDER))
    os.mkdir(folder / "folder")
    for path in Path(FOLDER).iterdir():
        if path.is_file():
            os.symlink(path, folder / path.name)
    return folder


def everything(verb, args, has_json):
    """Everything that is printed and written, without times. A sweep's JSON replaces its printed table."""
    folder = own_folder()
    report = folder / "result.json"
    p = run(verb, *args, *(["--json", report.name] if has_json and "--json" not in args else []), cwd=folder)
    files = {str(path.relative_to(folder)): content(path) for path in folder.rglob("*")
             if path.is_file() and not path.is_symlink()}
    j = without_times(json.loads(report.read_text())) if report.exists() else None
    shutil.rmtree(folder)
    errors = re.sub(r"(?m)^memtape: options that are keys of .*\n", "", p.stderr)  # recipe.py looks at that
    text = "" if verb == "sweep" and j else TIMES.sub("", p.stdout + errors)
    return p.returncode, errors, (p.returncode, text, j, files)


def progress(verb, args):
    """The progress of a sweep, which it prints only to a terminal."""
    terminal, other_end = pty.openpty()
    p = subprocess.Popen([MEMTAPE, verb, *map(str, args)], stdout=subprocess.DEVNULL, stderr=other_end,
                         cwd=own_folder(), env=dict(os.environ, TERM="xterm"))
    os.close(other_end)
    text = b""
    try:
        while part := os.read(terminal, 65536):
            text += part
    except OSError:  # the other end is closed
        pass
    os.close(terminal)
    return p.wait(), text.decode(), sorted(set(re.findall(rb"turn \d+ of \d+", text)))


def threads(verb, args):
    """The most threads that the process was seen to have, in three runs: they may live for a moment."""
    most = 0
    for _ in range(3):
        p = subprocess.Popen([MEMTAPE, verb, *map(str, args)], stdout=subprocess.DEVNULL, cwd=own_folder(),
                             stderr=subprocess.PIPE, text=True)
        while p.poll() is None:
            try:
                most = max(most, len(os.listdir(f"/proc/{p.pid}/task")))
            except FileNotFoundError:
                break  # it has ended
            time.sleep(0.0005)
        _, errors = p.communicate()
    return p.returncode, errors, [most]


def beginning(verb, args):
    """What a demo prints before its first step: whether the time is enough, and for how many steps."""
    p = subprocess.Popen([MEMTAPE, verb, *map(str, args)], stdout=subprocess.PIPE, cwd=own_folder(),
                         stderr=subprocess.PIPE, text=True)
    lines = []
    for line in p.stdout:
        lines.append(line)
        if line.startswith("run "):
            p.kill()
            break
    errors = p.communicate()[1]
    return max(p.returncode, 0), errors, lines


LOOK = {("demo", "seconds"): beginning, ("sweep", "quiet"): progress, ("sweep", "steps"): progress,
        **{(verb, "threads"): threads for verb in VERBS}}


# ---- one option of one command ----
def base_of(verb, mode, base, option):
    """The command without the option, and the options that the option needs."""
    base = BASE_OF.get((verb, option), base) if not mode else base
    needed = NEEDED_BY.get((verb, option), NEEDED.get(option, []))
    if verb in ("compare", "plan"):  # run on meta anyway
        needed = [word for word in needed if word not in ON_META]
    if needed[:1] == ["--from"] and ("--from" in base or "--resume" in base):
        needed = needed[2:]
    if (verb == "demo" and option != "seconds") or (verb, option) == ("sweep", "steps"):
        base = [*base, "--steps", 1]
    if option == "threads" and verb in ("profile", "explain", "sweep"):
        base = [*base, "-d", 128, "-s", 64]
    if verb == "sweep" and option in ("optimizer", "f32-gradients", "fsdp", "reshard", "replicas", "rs-buffers", "buckets", "bucket-bytes", "reduce-bucket", "sub-group", "step-in-backward"):
        base = [*base, "-b", 1, "-s", 1]  # little is kept, so that the peak is later
    if (verb, mode) == ("sweep", "one rank of several") and option in FIRST_ROW | {"compress", "mtp-layers"}:
        base = LAST_RANK
    if (verb, mode, option) == ("sweep", "one rank of several", "untied"):  # of stages the last has a head's weight anyway
        base = base[:base.index("--pp")] + base[base.index("--pp") + 2:]
    if (verb, mode, option) == ("plan", "capacity", "gpu"):  # which the capacity stands for
        base = base[:base.index("--capacity")]
    if verb == "sweep" and option in FIRST_ROW:
        return [*base, "--row", "a:"], needed
    return base, needed


def words_of(verb, base, option):
    name, value = f"--{option}", VALUE_OF.get((verb, option), VALUES[option])
    if (name, value) in zip(base, base[1:]):
        value = SECOND_VALUES[option]
    words = [name] + ([] if value is None else [value])
    if option in keys():  # in its former spelling it would change what is said on stderr
        words = ["--recipe", f"plain:{option}" + ("" if value is None else f"={value}")]
    return words + TOGETHER.get((verb, option), [])


def in_a_row(needed, words):
    return ["--row", "b: " + " ".join(map(str, needed + words))]


def look_at(verb, mode, base, option, has_json, seen):
    """The effect of the option: "used", "refused", "failed" (with it and without it), or a text that says what
    is wrong."""
    look = LOOK.get((verb, option), lambda v, a: everything(v, a, has_json))
    base, needed = base_of(verb, mode, base, option)
    words = words_of(verb, base, option)
    rows = base[-2:] == ["--row", "a:"]
    status, errors, result = look(verb, [*base, *(in_a_row(needed, words) if rows else needed + words)])
    if status == 2 and needed and f"--{option}" not in errors:  # a needed option was refused
        status, errors, result = look(verb, base + words)
    if status == 2:
        given = {str(word) for word in base + words if str(word).startswith("--")}
        of_ranks = "show one rank of several" in errors  # which names options of ranks, not each key
        return "refused" if of_ranks or any(name in errors or ":" + name[2:] in errors for name in given) else f"status 2: {errors}"
    if status not in (0, 1):
        return f"status {status}: {errors}"
    without = [*base, *(in_a_row(needed, []) if rows else needed)]
    key = look, verb, str(without)
    if look not in LOOK.values():
        key = verb, str(without)
    if key not in seen:
        seen[key] = look(verb, without)
    if seen[key][0] == 2:
        return f"the command {verb} {without} has status 2: {seen[key][1]}"
    if seen[key][0] == 1 and status == 1 and verb != "demo":  # a demo fails if it has learnt too little
        return "failed" if mode else f"the command {verb} {without} fails: {seen[key][1]}"
    return "used" if result != seen[key][2] else f"ignored: {verb} {' '.join(map(str, without))}"


# ---- all of them ----
def listed(verb):
    shown = re.findall(r"(?m)^ +(?:-\w, )?--([a-z0-9-]+)(?:=|\s|$)", run(verb, "--help", "all").stdout)
    rows = [row for row in help_json()["options"] if verb in row["verbs"]]
    equal(sorted(set(shown)), sorted(row["name"] for row in rows if not row["key"]), f"{verb}: what help lists, and its JSON")
    return [row["name"] for row in rows]


def main():
    prepare()
    options = {verb: listed(verb) for verb in VERBS}
    every = sorted(set().union(*options.values()))
    equal(sorted(set(every) - set(VALUES)), [], "options without a value in VALUES")
    card = json.loads(run("fit", "gpt2", "--gpu", "rtx3060", "--json", "-").stdout)
    VALUE_OF["sweep", "gpu"] = f"rtx3060:keep-aside={card['capacity'] + card['kept_aside'] - 2**20}"  # what is left is too small for any row
    equal(sorted(set(VALUES) - set(every)), [], "values for options that no longer exist")
    seen = {}

    def do(job):
        verb, mode, base, option = job
        if option in options[verb]:
            return look_at(verb, mode, base, option, "json" in options[verb] and verb not in ("train", "explain"), seen)
        p = run(verb, *base, *words_of(verb, [], option), cwd=FOLDER)
        if option == "device" and p.returncode == 0:
            return "unknown"  # --device meta, of a verb that runs on nothing else
        return "unknown" if p.returncode == 2 and (f"--{option}" in p.stderr or f":{option}" in p.stderr or "--recipe: " in p.stderr) and not p.stdout else \
            f"status {p.returncode} of an option that the help does not list: {p.stderr}"

    listing = {option: [verb for verb in VERBS if option in options[verb]] for option in every}
    if not LONG:
        fast = {option: [verb for verb in verbs if verb not in SLOW] or verbs for option, verbs in listing.items()}
        listing = {option: {verbs[k % len(verbs)]} for k, (option, verbs) in enumerate(fast.items())}
    jobs = [(verb, "", BASE[verb], option) for verb in VERBS for option in options[verb] if verb in listing[option]]
    others = [(verb, "", BASE[verb], option) for verb in VERBS for option in every
              if option not in options[verb]]
    of_modes = [(verb, mode, base, option) for verb, mode, base in MODES for option in options[verb]
                if (verb, option) not in (("generate", "weights"), ("generate", "stop"))]  # rounded weights leave the likeliest byte the likeliest
    part = 1 if LONG else 25
    jobs += others[::part] + of_modes[::part]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(do, jobs))
    count = {}
    for (verb, mode, _, option), result in zip(jobs, results):
        name = f"{verb}{mode and f' ({mode})'} --{option}"
        if check(result in ("used", "refused", "failed", "unknown"), f"{name}: {result}"):
            count[result] = count.get(result, 0) + 1
        if not mode and option in options[verb] and option != "device":
            can_be_used = (verb, option) not in AMONG_RANKS
            check(result != "refused" or not can_be_used, f"{name}: the help lists it, but it is refused")
    print(", ".join(f"{n} {what}" for what, n in sorted(count.items())))
    shutil.rmtree(FOLDER)


main()
done()
