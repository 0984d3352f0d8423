"""--recompute-modules: drawn models keep what the formula says, FLOPs are those of the plan, and no bit of a gradient
changes; what a model lacks is refused by name."""
import json
import os
import random
import tempfile
from lib import check, done, equal, run

FOLDER = tempfile.mkdtemp()
LATENT = {"model_type": "deepseek_v3", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 48,
          "vocab_size": 64, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8,
          "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "moe_intermediate_size": 16,
          "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000, "routed_scaling_factor": 1.5, "norm_topk_prob": True}


def latent(**more):
    name = os.path.join(FOLDER, "config.json")
    with open(name, "w") as f:
        json.dump({**LATENT, **more}, f)
    return name


def draw_model(draw):
    """Arguments of a model, and the modules that it has."""
    kind = draw.choice(["gpt", "llama", "block", "mixture", "latent", "latent", "latent"])
    if kind == "latent":
        dense = draw.choice([0, 1])
        return ([latent(q_lora_rank=draw.choice([12, None]), first_k_dense_replace=dense)],
                ["core_attn", "layernorm", "mla_up_proj", "moe_act", "moe", "shared_experts"] + ["mlp"] * dense)
    args = [draw.choice(["llama", "gpt"]) if kind == "mixture" else kind, "-d", 32, "-a", 4]
    args += ["-l", 2, "--vocab", 64] if kind != "block" else []
    args += ["--experts", 4, *draw.choice([[], ["--mtp-layers", 2]])] if kind == "mixture" else []
    args += ["--norm", draw.choice(["pre", "around"])] if kind in ("gpt", "block") else []
    return args, ["core_attn", "layernorm"] + (["moe_act", "moe"] if kind == "mixture" else ["mlp"])


def draw_options(draw, experts):
    args = ["--dtype", draw.choice(["f32", "bf16", "f64"]), "-b", draw.choice([1, 2]), "-s", draw.choice([4, 16])]
    args += draw.choice([[], ["--attention", "math"]]) + draw.choice([[], ["--dropout", 0.1]])
    return args + (draw.choice([[], ["--expert-form", "loop"], ["--expert-form", "torchtitan"], ["--expert-form", "megatron"],
                              ["--expert-form", "megatron", "--expert-capacity", draw.choice([0.5, 1.3]), "--expert-padding"]]) if experts else [])


def any_modules(seed, n):
    draw = random.Random(seed)
    for _ in range(n):
        model, modules = draw_model(draw)
        args = model + draw_options(draw, "moe" in modules)
        args += ["--recipe", "hf"] if "block" not in args and draw.random() < 0.3 else []
        experts = "moe" in modules
        modules = draw.sample(modules, draw.randint(1, len(modules)))
        if "moe" in modules:
            modules = [m for m in modules if m not in ("moe_act", "shared_experts")]
        again = ["--recompute-modules", "+".join(modules)]
        beside = draw.choice([[], [], ["--offload", "cpu"], ["--compress", "8bit"], ["--pp", 2], ["--cp", 2], ["--dp", 2, "--zero", 3],
                              ["--tp", 2], ["--tp", 2, "--sp"],
                              ["--tp", 2, "--sp", "--etp", 1] if experts else []])
        if beside[:1] == ["--pp"] and "block" in args or "--mtp-layers" in args and (4 in args[args.index("-s"):] or "gpt" in args) and {"--cp", "--sp"} & set(beside) or \
                "loop" in args and "--zero" in beside:
            beside = []
        p = json.loads(run("profile", *args, *again, *beside, "--device", "meta", "--json", "-").stdout or "{}")
        equal(p and p["formula"]["unexplained"], 0, f"unexplained of {args} {again} {beside}")
        plan = json.loads(run("plan", *args, *again, "--json", "-").stdout or "{}")
        equal({f["name"]: f["unexplained"] for f in plan.get("formulas", []) if f["unexplained"]}, {}, f"plan of {args} {again}")
        check(plan, f"a plan of {args} {again}")
        swept = json.loads(run("sweep", *args, "--device", "cpu", "--steps", 1, "--row", "a:", "--row", "b: " + " ".join(again),
                               "--json", "-").stdout or "{}")
        if check(swept, f"a sweep of {args} {again}"):
            equal(swept["rows"][1]["gradients"]["same_bits"], True, f"gradients of {args} {again}")
            equal(swept["rows"][1]["loss"], swept["rows"][0]["loss"], f"loss of {args} {again}")


def refused(words, *args):
    p = run("profile", *args)
    equal(p.returncode, 2, f"status of {args}: {p.stderr}")
    check(all(word in p.stderr for word in words), f"{args}: {p.stderr} names {words}")


def bad_input():
    for module, model in (("moe_act", "llama"), ("mla_up_proj", "gpt"), ("layernorm", "mlp"), ("layernorm", "bert"), ("core_attn", "mlp"),
                          ("shared_experts", "qwen3-30b-a3b"), ("mlp", "qwen3-30b-a3b")):
        refused(["--recompute-modules", module, "has not all of these"], model, "--recompute-modules", module)
    refused(["--recompute-modules", "core_attn, moe_act", "joined by +"], "gpt", "--recompute-modules", "attention")
    refused(["--recompute-modules", "--checkpoint"], "gpt", "--recompute-modules", "mlp", "--checkpoint", "full")
    refused(["moe makes"], "qwen3-30b-a3b", "--recompute-modules", "moe+moe_act")


def what_moonlight_would_give_up():
    """Bytes of each module by hand, as Megatron-Core keeps them: 26 layers of experts, one without, 27 attentions."""
    model = [latent(hidden_size=2048, num_attention_heads=16, num_hidden_layers=27, kv_lora_rank=512, qk_nope_head_dim=128,
                    qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, num_experts_per_tok=6, n_group=1, n_shared_experts=2,
                    moe_intermediate_size=1408, intermediate_size=11264, first_k_dense_replace=1, vocab_size=163840,
                    max_position_embeddings=8192, q_lora_rank=None), "-b", 1, "-s", 4096, "--device", "meta", "--recipe", "megatron", "--dp", 2]
    saved = {m: json.loads(run("profile", *model, *(["--recompute-modules", m] if m else []), "--json", "-").stdout)["saved"]["bytes"]
             for m in ("", "core_attn", "moe_act", "layernorm", "mla_up_proj")}
    t, heads = 4096, 16
    # log-sum-exp and generator; weighted products of 6 rows a token; normalised rows and rstd of two norms, keys and values of 16
    # heads with q, less nothing: latents are there anyway
    equal({m: saved[""] - saved[m] for m in saved if m},
          {"core_attn": 27 * (4 * t * heads + 16), "moe_act": 26 * 2 * t * 6 * 1408, "layernorm": 27 * 2 * t * (2 * 2048 + 4),
           "mla_up_proj": 27 * 2 * t * heads * (192 + 192 + 256)}, "bytes given up")


bad_input()
what_moonlight_would_give_up()
any_modules(7, 300 if os.environ.get("MTT_LONG") == "1" else 10)
done()
