"""Options of a profile drawn together, on meta: whichever a user combines, the books balance, or the combination is
refused with status 2. A pair of options has its own test (combinations.py); these are up to thirteen at once."""
import os
import random
from concurrent.futures import ThreadPoolExecutor
from lib import check, done, placed, run

DRAWS = 600 if os.environ.get("MTT_LONG") == "1" else 100
MODELS = ("tiny", "bert-tiny", "llama-tiny", "moe-tiny", "moe-tiny", "deepseek-tiny", "gpt", "llama", "block")
PUBLISHED = ("gpt2", "gemma-3-1b", "gpt-oss-20b", "olmo-3-7b", "phi-4", "glm-4.5", "deepseek-v3", "mixtral-8x7b", "qwen3-30b-a3b")
SHAPE = (("--kv-heads", 2), ("MODEL:rope-dim=4",), ("--experts", 4), ("--experts", 8), ("MODEL:experts-per-token=3",), ("--act", "relu"),
         ("--act", "gelu_tanh"), ("--norm", "after"), ("MODEL:norm-kind=rmsnorm",), ("--recipe", "plain:joint-products",), ("MODEL:untied",),
         ("MODEL:no-bias",), ("MODEL:mtp-layers=1",), ("--dropout", 0.1), ("--attention", "math"), ("--inplace",),
         ("MODEL:kv-rank=8", "MODEL:rope-dim=4", "MODEL:head-dim=12", "MODEL:value-dim=8"))
NUMBERS = tuple(("--dtype", name) for name in ("f32", "bf16", "f16")) + (
    ("--amp", "bf16"), ("--amp", "f16"), ("--master-weights",), ("--recipe", "plain:f32-gradients"), ("--linear", "torchao-float8"))
KEPT = tuple(("--recipe", f"plain:expert-form={name}") for name in ("loop", "torchtitan", "torchtitan-before", "megatron")) + tuple(
    ("--loss", name) for name in ("f32", "lse", "chunked", "fused", "torch", "liger", "shifted", "held")) + tuple(
    ("--recipe", f"plain:recompute-modules={name}") for name in ("moe_act", "layernorm", "mlp", "core_attn", "moe", "mla_up_proj", "shared_experts")) + tuple(
    ("--recipe", name) for name in ("hf", "megatron", "torchtitan", "peft", "zero3", "fsdp2", "ddp", "trl")) + (
    ("--recipe", "plain:router=sigmoid"), ("--recipe", "plain:router=chosen"), ("--recipe", "plain:swiglu=unfused"), ("--recipe", "plain:rope=unfused"), ("--recipe", "plain:rms-norm=unfused"),
    ("--recipe", "plain:kv-groups=repeated"), ("--recipe", "plain:window-mask=kept"), ("--recipe", "plain:softmax=f32"), ("MODEL:balance-loss=0.01",),
    ("--recipe", "plain:expert-capacity=1"), ("MODEL:routing=worst",), ("MODEL:routing=random",))
SAVED = tuple(("--checkpoint", name) for name in ("full", "selective", "ops", "every=2", "sqrt")) + (
    ("--offload", "cpu"), ("--offload", "disk"), ("--offload", "cpu", "--recipe", "plain:offload-modules=core_attn"), ("--compress", "exact"), ("--compress", "8bit"), ("--compress", "bf16"),
    ("--lora-rank", 4), ("--qlora",), ("--recipe", "plain:step-in-backward"), ("--expandable-segments",))
STEP = tuple(("--optimizer", name) for name in ("adamw", "sgd", "adafactor", "muon", "adamw-8bit", "adamw-16bit"))
RANKS = (("--dp", 2), ("--dp", 4), ("--tp", 2), ("--tp", 2, "--sp"), ("--pp", 2), ("--cp", 2), ("--ep", 2), ("--recipe", "plain:etp=1"),
         ("--microbatches", 2), ("--accumulate", 2)) + tuple(("--zero", n) for n in range(4))


def name_of(option):
    """"--act", or of a key of --recipe "plain:rope", of the model's "MODEL:untied"."""
    return option[option[0] == "--recipe" and ":" in option[1]].partition("=")[0]


def draw(rng):
    model = rng.choice(MODELS if rng.random() < 0.7 else PUBLISHED)
    words = [model, "-b", rng.choice((1, 2, 3, 4)), "-s", rng.choice((8, 24, 32, 64)), "--device", "meta"]
    if model in ("gpt", "llama"):
        words += ["-d", rng.choice((32, 64)), "-a", 4, "-l", rng.choice((1, 2, 4)), "--vocab", 64]
    elif model in PUBLISHED:
        words += ["-l", rng.choice((1, 2, 3))]
    drawn = []
    for options, most in ((SHAPE, 2), (NUMBERS, 2), (KEPT, 3), (SAVED, 2), (STEP, 1), (RANKS, 3)):
        names = sorted({name_of(option) for option in options})
        drawn += [rng.choice([option for option in options if name_of(option) == name])
                  for name in rng.sample(names, rng.choice((0, *range(most + 1))))]
    return words, drawn


def profile(draw):
    """The profile's end, without the options that it refuses by name, one after the other."""
    words, drawn = draw
    while True:
        given = placed(*words, *(word for option in drawn for word in option))
        end = run("profile", *given)
        named = [option for option in drawn if name_of(option) in end.stderr]
        if end.returncode != 2 or not named:
            return given, end
        drawn = [option for option in drawn if option is not named[-1]]


def main():
    rng = random.Random(7)
    draws = [draw(rng) for _ in range(DRAWS)]
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(profile, draws))
    for words, end in ends:
        what = "profile " + " ".join(map(str, words))
        check(end.returncode in (0, 2), f"{what}: status {end.returncode}: {end.stderr}")
    balanced = sum(end.returncode == 0 for _, end in ends)
    check(balanced > DRAWS // 2, f"of {DRAWS} draws only {balanced} are not refused")
    print(f"{balanced} of {DRAWS} draws balance, the others are refused")


main()
done()
