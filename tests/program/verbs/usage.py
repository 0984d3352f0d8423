"""Options: good values are accepted; anything else is refused with status 2 and a helpful message."""
import re
from lib import VERBS, check, done, equal, names_of, options_of, refused, run

# ---- without a verb, or with a wrong one ----
p = run()
equal(p.returncode, 2, "status without a verb")
check("profile MODEL" in p.stderr, "without a verb, the verbs are listed")
refused(["sing", "demo", "train", "generate", "profile", "explain"], "sing")
for words in [("audit",), ("audit", "gelu"), ("help", "audit")]:
    refused(["audit is a program of the course now", "./run lesson", "build/examples/audit OP"], *words)
p = run("--help")
equal(p.returncode, 0, "status of --help")
listed = p.stdout.split("Verbs\n")[1].split("\n\n")[0]
equal(re.findall(r"^  (\w+)", listed, re.M), VERBS, "the verbs that --help lists")
for verb in VERBS:
    q = run(verb, "--help")
    equal(q.returncode, 0, f"status of {verb} --help")
    whole = run(verb, "--help", "all").stdout
    check("--quiet" in whole, f"{verb} --help all lists its options")
    check(q.stdout.startswith(f"Usage: memtape {verb} ") and q.stdout.splitlines()[0].endswith("[OPTION...]"), f"usage of {verb} in a line")
    equal((run("help", verb).stdout, run("help", verb, "all").stdout), (q.stdout, whole), f"help {verb}")
    shown = [text for text in re.split(r"\n  (?=-\w, --|    --)", q.stdout)[1:]]
    check(len(shown) <= (22 if verb == "train" else 20) and (q.stdout == whole or all("for example -" in " ".join(s.split()) for s in shown)),
          f"{verb} --help shows those that matter, with an example each: {len(shown)}")
refused(["sing", "demo", "profile"], "help", "sing")
for verb in ["train", "demo"]:
    refused(["--data", "empty", "PATH"], verb, "--data", "")
check(run("--version").stdout.startswith("memtape "), "--version")

# ---- numbers ----
for bad in ["0", "-1", "99999999999999999999", "-99999999999999999999", "1x", "", " 1", "1.5",
            "0x10", "nan", "1e3"]:
    refused(["--batch", f'"{bad}"', "whole number from 1"], "profile", "mlp", "-b", bad)
for bad in ["-0.1", "1", "1.5", "nan", "inf", "", "x", "0.5x"]:
    refused(["--dropout", "0 to below 1"], "profile", "block", "--dropout", bad)
refused(["--threads"], "profile", "mlp", "--threads", "0")
refused(["--temperature"], "generate", "--model", "x", "--temperature", "-1")

# ---- bytes: a number without a unit is refused where it can only be a mistake ----
for option, *args in (("--capacity=", "profile", "mlp"), ("--budget=", "plan", "gpt"),
                      ("--recipe=plain:gemm-workspace=", "sweep", "mlp", "--device", "meta")):
    said = option.replace("--recipe=", "--recipe ").rstrip("=")
    for small in ["80", "1", "1048575"]:
        refused([said, f'"{small}" alone is {small} bytes', f"{small}GiB", f"{small}B"], *args, option + small)
    refused([said, "40GiB (or 40G)"], *args, option + "80Gb")
equal(run("profile", "mlp", "--capacity", "4194304", "-q").returncode, 0, "4 MiB as a number")
refused(["2.93 KiB", "out of memory"], "profile", "mlp", "--capacity", "3000B", "-q", status=1)

# ---- names: a refusal lists the accepted ones ----
for option, names in {"--act": ["relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"],
                      "--norm": ["pre", "post"], "--attention": ["flash", "math"],
                      "--dtype": ["f32", "bf16", "f16", "f64"], "--device": ["cpu", "meta"],
                      "--checkpoint": ["none", "full", "selective", "ops", "every=K", "sqrt"],
                      "--offload": ["none", "cpu", "disk"],
                      "--compress": ["none", "bf16", "8bit", "bits", "seed", "signs"],
                      "--amp": ["none", "bf16", "f16"]}.items():
    refused([option, "nonsense", *names], "profile", "block", option, "nonsense")
for key, names in {"out-act": ["none", "relu", "sigmoid"], "norm-kind": ["layernorm", "rmsnorm"]}.items():
    refused([f"MODEL:{key}", "nonsense", *names], "profile", f"block:{key}=nonsense")
check({"none", "sgd", "adamw"} < set(names_of("--optimizer")), "optimizers")
for name in names_of("--optimizer"):
    equal(run("profile", "mlp", "--optimizer", name, "--device", "meta", "-q").returncode, 0, f"--optimizer {name}")
refused(["--dtype", "i64"], "profile", "block", "--dtype", "i64")
for bad in ["every=0", "every=", "every=-1", "every=1x", "every=+1", "every", ""]:
    refused(["--checkpoint", "every=K"], "profile", "block", "--checkpoint", bad)
for bad in ["", "bits+", "+bits", "bits,seed"]:
    refused(["--compress", "8bit"], "profile", "block", "--compress", bad)
for bad in ["0", "0.5", "nan", "inf", "-2", "many", ""]:
    refused(["--loss-scale", "dynamic"], "profile", "gpt", "--optimizer", "sgd", "--loss-scale", bad)
refused(["MODEL", "resnet", "linear", "mlp", "attention", "block", "gpt", "bert", "llama", "gpt2"], "profile",
        "resnet")
refused(["--preset", "nonsense", "tiny", "small"], "train", "--data", __file__, "--preset", "nonsense")

# ---- common spellings are accepted; for others, the likeliest name is suggested ----
ON_META = ["profile", "gpt", "--device", "meta"]
for typed, meant in {("--dtype", "fp16"): ("--dtype", "f16"), ("--dtype", "bfloat16"): ("--dtype", "bf16"),
                     ("--amp", "float16"): ("--amp", "f16"),
                     ("--optimizer", "adam"): ("--optimizer", "adamw"),
                     ("--seq", "2k"): ("--seq", "2048"), ("--vocab", "1K"): ("--vocab", "1024"),
                     ("--seq-len", "16"): ("--seq", "16"),
                     ("--batch-size", "3"): ("--batch", "3")}.items():
    said, same = run(*ON_META, *typed), run(*ON_META, *meant)
    equal((said.returncode, said.stdout), (0, same.stdout), f"{typed} is {meant}")
equal(run("plan", "gpt", "--tokens", "1T", "--flops-rate", "312T", "--utilization", "0.5").stdout,
      run("plan", "gpt", "--tokens", "1T", "--flops-rate", "312T", "--utilisation", "0.5").stdout, "utilization")
for bad in ["2kk", "k", "2 k", "2g", "9223372036854775807k"]:
    refused(["--seq", "whole number"], "profile", "gpt", "--seq", bad)
refused(["--act", '"half"'], "profile", "mlp", "--act", "half")  # the name of a dtype
refused(["did you mean gelu?"], "profile", "mlp", "--act", "geul")
refused(["did you mean mlp?"], "profile", "mpl")
refused(["--live: ", "memtape profile gpt --vocab 256 --timeline", "docs/memtape.html"], "train", "--data", __file__, "--live")
refused(["did you mean --batch?"], "profile", "mlp", "--bacth", "2")
refused(["did you mean --batch?"], "profile", "mlp", "--bacth=2")
refused(["did you mean profile?"], "profiel", "mlp")
for words, verb, others in ((["--lora-rank", 4], "plan", "profile"), (["--qlora"], "plan", "fit"), (["--max-seq"], "profile", "fit"),
                            (["--users=3"], "fit", "serve"), (["--tokens", 3], "profile", "generate"), (["--gpus", 8], "serve", "plan, fit")):
    refused([f"{words[0].split('=')[0]}: unrecognized option; it is for ", others], verb, "gpt2", *words)
# ---- so is a key, as an option and behind a value ----
for words, said in {("profile", "gpt2", "--until", "first-step"): "--until: unrecognized option; it is for compare, as --recipe plain:until",
                    ("profile", "gpt2", "--recipe", "plain:until=first-step"): '--recipe: "until" is a key for compare',
                    ("fit", "gpt2", "--clip", 1): "--clip: unrecognized option; it is for train, as --optimizer NAME:clip",
                    ("explain", "mlp", "--recipe", "plain:fsdp=block"): '--recipe: "fsdp" is a key for train, profile',
                    ("serve", "gpt2:causal"): 'MODEL: "causal" is a key for profile, explain',
                    ("profile", "gpt2", "--gpu", "h100:price=2"): '--gpu: "price" is a key for fit'}.items():
    refused([f"memtape {words[0]}: {said}"], *words)
# ---- abbreviations are refused, with what they may stand for ----
refused(["--offl", "--offload"], "profile", "gpt", "--offl=3")
refused(["--gather", "give --recipe plain:fsdp=block"], "profile", "gpt", "--gather", "block")
for name, words in {"dpo": "batch twice as large", "grpo": "completions", "reward": "--loss fused", "accelerate": "zero1, zero2 or zero3", "unsloth": "give hf"}.items():
    refused([f"--recipe: {name} is none", words], "fit", "gpt", "--recipe", name)
    refused([f"--recipe: {name} is no key", words], "profile", "gpt", "--recipe", f"trl:{name}")
refused(["--recipe: DPO is none"], "profile", "gpt", "--recipe", "zero2+DPO")
refused(["--cpu-offload", "--recipe fsdp2:offload-param --optimizer adamw-cpu"], "fit", "gpt", "--cpu-offload")
for verb, more in ("plan", []), ("fit", ["--gpu", "t4"]), ("serve", ["--gpu", "t4"]):
    for words in ["--device", "meta"], ["--device=meta"]:
        check(run(verb, "gpt", *more, *words).returncode < 2, f"{verb} {words}: it runs on meta anyway")
    refused(["--device", f"{verb} runs on meta"], verb, "gpt", *more, "--device", "cpu")
refused(["--keep-root", "give --recipe plain:fsdp=keep-root"], "profile", "gpt", "--keep-root")
refused(["--check", "--checkpoint"], "profile", "gpt", "--check", "full")
refused(["--act", "needs a value", "NAME"], "profile", "mlp", "--act")
refused(["-b", "needs a value", "N"], "profile", "mlp", "-b")
refused(["--inplace", "no value"], "profile", "mlp", "--inplace=3")
for words in [["-b8", "-vq"], ["-qv", "-b", "8"], ["--batch=8", "-q", "--verbose"]]:
    refused(["--verbose"], "profile", "mlp", *words)  # not with --quiet: each was read
equal(run("profile", "--device", "meta", "-b8", "--", "mlp").stdout, run("profile", "mlp", "--batch", "8", "--device", "meta").stdout, "words in any order")
for word in ["--act", "--nonsense"]:
    check("did you mean" not in run("profile", "mlp", word, "zzz").stderr, f"a suggestion for {word} zzz")

# ---- help: in groups, with the true defaults ----
text = run("profile", "--help", "all").stdout
rows = options_of("profile")
for heading in {row["group"] for row in rows.values()}:
    check(f"\n {heading}:\n" in text, f"help has no {heading}")
shown = {name: row["defaults"]["profile"] for name, row in rows.items() if "profile" in row["defaults"]}
for name, value in shown.items():
    after = " ".join(text.split()).split(f" --{name}=")[1]
    check(after.partition("(default ")[2].startswith(value + ")"), f"--{name}: default {value}, and in help {after[:200]}")
equal({name for name, row in rows.items() if row["others"]}, {"recipe", "checkpoint", "compress"}, "options that take other values than their choices")
defaults = [f"--{name}={value}" for name, value in shown.items() if name not in ("device", "seed", "loss-scale", "lora-targets")]  # these need other options
check(len(defaults) > 10, f"defaults in the help: {defaults}")
equal(run(*ON_META, *defaults).stdout, run(*ON_META).stdout, "output with the help's defaults given")

# ---- missing, superfluous or contradictory arguments ----
refused(["MODEL is missing"], "profile")
refused(["--data is missing", "a file to learn from"], "train")
refused(["run.safetensors", "No such file"], "train", "--resume", "run.safetensors", "--steps", "9", status=1)
check("the paths of its text hold" in " ".join(run("train", "--help", "all").stdout.split()), "help of --resume says what holds")
refused(["--model is missing"], "generate")
refused(["MODEL is \"mlp\" already"], "profile", "mlp", "gpt")
refused(["--data extra"], "train", "--data", __file__, "extra")
refused(["--heads", "mlp"], "profile", "mlp", "--heads", "2")
refused(["--heads", "linear"], "profile", "linear", "--heads", "2")
refused(["--dropout", "linear", "mlp"], "profile", "linear", "--dropout", "0.1")
refused(["--act", "linear", "mlp"], "profile", "linear", "--act", "relu")
refused(["--lora-rank", "linear", "mlp"], "profile", "linear", "--lora-rank", "2")
refused(["--checkpoint selective", "linear"], "profile", "linear", "--checkpoint", "selective")
refused(["MODEL:out-act", "block", "mlp"], "profile", "block:out-act=sigmoid")
refused(["--layers", "block", "gpt"], "profile", "block", "--layers", "2")
refused(["--ffn", "attention"], "explain", "attention", "--ffn", "7")
refused(["--heads: config: heads is 3", "divisor of hidden, 10"], "profile", "block", "-d", "10", "-a", "3")
refused(["--inplace", "gelu", "relu"], "profile", "mlp", "--inplace")
refused(["--seq", "1025", "1024"], "profile", "gpt2", "-s", "1025")
refused(["--qlora", "needs --from"], "train", "--data", __file__, "--qlora")
refused(["--recipe", "plain:qlora-double", "needs --qlora"], "profile", "gpt", "--lora-rank", 3, "--recipe", "plain:qlora-double")
refused(["--lora-targets", "needs --lora-rank"], "profile", "gpt", "--lora-targets", "qkv")
refused(["--lora-targets", '"*.q"', "h.0.attn.qkv"], "profile", "gpt", "--lora-rank", 3, "--lora-targets", "q")
refused(["--lora-targets", "q,v,mlp.fc"], "profile", "gpt", "--lora-rank", 3, "--lora-targets", "qkv,")
refused(["--lora-targets", "1 to 16"], "profile", "gpt", "--lora-rank", 3, "--lora-targets", "+".join(["qkv"] * 17))
refused(["--amp", "f32"], "profile", "gpt", "--amp", "bf16", "--dtype", "bf16")
refused(["--master-weights", "--optimizer", "sgd-momentum"], "profile", "gpt", "--master-weights", "--dtype", "bf16")
refused(["plain:f32-gradients", "f32", "needs --dtype bf16"], "profile", "gpt", "--recipe", "plain:f32-gradients")
refused(["--master-weights", "f32"], "profile", "gpt", "--master-weights", "--optimizer", "sgd")
refused(["--loss-scale", "block", "gpt"], "profile", "block", "--loss-scale", "8")
refused(["--checkpoint selective", "mlp"], "profile", "mlp", "--checkpoint", "selective")
refused(["--checkpoint sqrt", "block", "gpt"], "profile", "block", "--checkpoint", "sqrt")
refused(["--checkpoint every=2", "mlp"], "profile", "mlp", "--checkpoint", "every=2")
refused(["--kv-heads", "mlp"], "profile", "mlp", "--kv-heads", "2")
refused(["kv_heads", "heads"], "profile", "block", "-a", "4", "--kv-heads", "3")
refused(["--save-every", "--save"], "train", "--data", __file__, "--save-every", "3")

# ---- options of other verbs, and options that do not exist, are refused ----
for option in ["--fragment=x", "--over=act=relu", "--nonsense", "-Z"]:
    refused(["option"], "profile", "block", option)
refused(["option"], "profile", "block", "--steps", "3")
refused(["--json", "needs --expr"], "explain", "block", "--json", "-")
refused(["option"], "explain", "block", "--optimizer", "sgd")
refused(["--batch", "one prompt"], "generate", "--model", "x", "--batch", "3")
refused(["option"], "generate", "--model", "x", "--seq", "3")
refused(["option"], "train", "--data", __file__, "--vocab", "3")
refused(["option"], "explain", "block", "--checkpoint", "full")
refused(["option"], "generate", "--model", "x", "--lora-rank", "3")

# ---- products that overflow ----
for big in [["-b", 10**12, "-s", 10**12], ["-b", 10**9, "-s", 10**9, "-d", 64],
            ["-d", 1 << 31], ["--ffn", 1 << 31, "-d", 10**9],
            ["-s", 10**10, "--attention", "math"]]:
    refused(["overflow", "lower"], "profile", "block", *big)
refused(["overflow"], "profile", "gpt", "--vocab", 1 << 31, "-d", 10**9)
for name in ("hidden", "heads", "kv-heads", "ffn", "vocab"):
    refused([f"--{name}", "2147483649", "from 1 to 2147483648"], "profile", "gpt", f"--{name}", (1 << 31) + 1)

# ---- what a model or its ranks refuse: the option that was typed ----
refused(["--kv-heads: config: kv_heads is 3; need a divisor of heads, 4"], "profile", "llama", "--kv-heads", 3)
refused(["--recipe plain:expert-form: config: expert_form is loop"], "sweep", "gpt", "--row", "a:", "--row", "b: --recipe plain:expert-form=loop")

# ---- a failure while running has status 1 and a reason ----
refused(["memory"], "profile", "mlp", "-b", 10**6, "-s", 10**6, "-d", 64, "-q", status=1)
refused(["/nonexistent/x.json"], "profile", "mlp", "-q", "--json", "/nonexistent/x.json", status=1)

done()
