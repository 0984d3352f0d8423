"""Recompute-modules: drawn models keep what the formula says, FLOPs are those of the plan, and no bit of a gradient
changes; what a model lacks is refused by name. Offload-modules: what leaves is what these modules alone keep."""
import json
import os
import random
import re
import tempfile
from collections import Counter
from lib import check, done, equal, placed, run

FOLDER = tempfile.mkdtemp()
LATENT = {"model_type": "deepseek_v3", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 48,
          "vocab_size": 64, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8, "n_routed_experts": 8,
          "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "moe_intermediate_size": 16,
          "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000, "routed_scaling_factor": 1.5, "norm_topk_prob": True}

# A module of offload-modules, in its order, and the paths of what it keeps.
PLACES = {"core_attn": r"(attn|attention)\.heads", "moe_act": r"mlp\.experts_act", "attn_norm": r"\.ln_1$", "mlp_norm": r"\.ln_2$",
          "qkv_linear": r"(attn|attention)(\.(?!heads|proj|drop).*)?$", "attn_proj": r"(attn|attention)\.proj",
          "expert_fc1": r"mlp\.experts_(gate_up|fc)"}


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
    args += ["--experts", 4, *draw.choice([[], ["MODEL:mtp-layers=2"]])] if kind == "mixture" else []
    args += ["--norm", draw.choice(["pre", "around"])] if kind in ("gpt", "block") else []
    return args, ["core_attn", "layernorm"] + (["moe_act", "moe"] if kind == "mixture" else ["mlp"])


def draw_options(draw, experts):
    args = ["--dtype", draw.choice(["f32", "bf16", "f64"]), "-b", draw.choice([1, 2]), "-s", draw.choice([4, 16])]
    args += draw.choice([[], ["--attention", "math"]]) + draw.choice([[], ["--dropout", 0.1]])
    return args + (draw.choice([[], ["--recipe", "plain:expert-form=loop"], ["--recipe", "plain:expert-form=torchtitan"], ["--recipe", "plain:expert-form=megatron"],
                              ["--recipe", "plain:expert-form=megatron", "--recipe", f"plain:expert-capacity={draw.choice([0.5, 1.3])}", "--recipe", "plain:expert-padding"]]) if experts else [])


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
        again = ["--recipe", "plain:recompute-modules=" + "+".join(modules)]
        beside = draw.choice([[], [], ["--offload", "cpu"], ["--compress", "8bit"], ["--pp", 2], ["--cp", 2], ["--dp", 2, "--zero", 3],
                              ["--tp", 2], ["--tp", 2, "--sp"],
                              ["--tp", 2, "--sp", "--recipe", "plain:etp=1"] if experts else []])
        if beside[:1] == ["--pp"] and "block" in args or "MODEL:mtp-layers=2" in args and (4 in args[args.index("-s"):] or "gpt" in args) and {"--cp", "--sp"} & set(beside) or \
                "plain:expert-form=loop" in args and "--zero" in beside:
            beside = []
        p = json.loads(run("profile", *placed(*args), *again, *beside, "--device", "meta", "--json", "-").stdout or "{}")
        equal(p and p["formula"]["unexplained"], 0, f"unexplained of {args} {again} {beside}")
        plan = json.loads(run("plan", *placed(*args), *again, "--json", "-").stdout or "{}")
        equal({f["name"]: f["unexplained"] for f in plan.get("formulas", []) if f["unexplained"]}, {}, f"plan of {args} {again}")
        check(plan, f"a plan of {args} {again}")
        swept = json.loads(run("sweep", *placed(*args), "--device", "cpu", "--steps", 1, "--row", "a:", "--row", "b: " + " ".join(again),
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
        refused(["--recipe", f"plain:recompute-modules={module}", "has not all of these"], model, "--recipe", f"plain:recompute-modules={module}")
    refused(["recompute-modules", "core_attn, moe_act", "joined by +"], "gpt", "--recipe", "plain:recompute-modules=attention")
    refused(["recompute-modules", "--checkpoint"], "gpt", "--recipe", "plain:recompute-modules=mlp", "--checkpoint", "full")
    refused(["moe makes"], "qwen3-30b-a3b", "--recipe", "plain:recompute-modules=moe+moe_act")
    for module, model in (("moe_act", "llama"), ("attn_norm", "bert"), ("qkv_linear", "mlp"), ("mlp_norm", "mlp"), ("expert_fc1", "gpt")):
        refused(["--recipe", f"plain:offload-modules={module}", "has not all of these"], model, "--offload", "cpu", "--recipe", f"plain:offload-modules={module}")
    refused(["offload-modules", "expert_fc1", "joined by +"], "gpt", "--offload", "cpu", "--recipe", "plain:offload-modules=layernorm")
    refused(["offload-modules", "needs --offload"], "gpt", "--recipe", "plain:offload-modules=core_attn")
    for preset in ("full", "sqrt", "every=2"):
        refused(["offload-modules", "selective", preset], "gpt", "-l", 4, "--offload", "cpu", "--recipe", "plain:offload-modules=core_attn", "--checkpoint", preset)


def moonlight():
    return latent(hidden_size=2048, num_attention_heads=16, num_hidden_layers=27, kv_lora_rank=512, qk_nope_head_dim=128,
                  qk_rope_head_dim=64, v_head_dim=128, n_routed_experts=64, num_experts_per_tok=6, n_group=1, n_shared_experts=2,
                  moe_intermediate_size=1408, intermediate_size=11264, first_k_dense_replace=1, vocab_size=163840,
                  max_position_embeddings=8192, q_lora_rank=None)


def what_moonlight_would_give_up():
    """Bytes of each module by hand, as Megatron-Core keeps them: 26 layers of experts, one without, 27 attentions."""
    model = [moonlight(), "-b", 1, "-s", 4096, "--device", "meta", "--recipe", "megatron", "--dp", 2]
    saved = {m: json.loads(run("profile", *model, *(["--recipe", f"plain:recompute-modules={m}"] if m else []), "--json", "-").stdout)["saved"]["bytes"]
             for m in ("", "core_attn", "moe_act", "layernorm", "mla_up_proj")}
    t, heads = 4096, 16
    # log-sum-exp and generator; weighted products of 6 rows a token; normalised rows and rstd of two norms, keys and values of 16
    # heads with q, less nothing: latents are there anyway
    equal({m: saved[""] - saved[m] for m in saved if m},
          {"core_attn": 27 * (4 * t * heads + 16), "moe_act": 26 * 2 * t * 6 * 1408, "layernorm": 27 * 2 * t * (2 * 2048 + 4),
           "mla_up_proj": 27 * 2 * t * heads * (192 + 192 + 256)}, "bytes given up")


def offloaded_modules(seed, n):
    """Of drawn models those storages leave that --offload alone would take and that no other module keeps."""
    draw, sent = random.Random(seed), 0
    for _ in range(n):
        model, modules = draw_model(draw)
        experts, block = "moe" in modules, "block" in model
        args = [*model, *draw_options(draw, experts), *draw.choice([[], ["--recipe", "hf"]] if not block else [[]])]
        args[args.index("-b") + 1] = 16  # a layer's tensors are of 4096 bytes or more
        names = [name for name in PLACES if experts or name not in ("moe_act", "expert_fc1")]
        names = draw.sample(names, draw.randint(1, len(names)))
        again = [m for m in ("layernorm", "core_attn", "moe_act", "mla_up_proj") if m in modules]
        beside = draw.choice([[], ["--checkpoint", "selective"], ["--checkpoint", "ops"], ["--compress", "8bit"], ["--dp", 2, "--zero", 3],
                              ["--recipe", "plain:recompute-modules=" + "+".join(again)], ["--tp", 2, "--sp"], ["--pp", 2] if not block else [],
                              ["--dp", 2, "--ep", 2] if experts else []])
        if "plain:expert-form=loop" in args and {"--zero", "--sp", "--ep"} & set(beside) or "MODEL:mtp-layers=2" in args:
            beside = []
        some = ["--offload", "cpu", "--recipe", "plain:offload-modules=" + "+".join(names)]
        kept = {}
        for how in ([], ["--offload", "cpu"], some):
            end = run("profile", *placed(*args), *beside, *how, "--device", "meta", "--json", "-")
            p = json.loads(end.stdout or "{}")
            if not check(p, f"a profile of {args} {beside} {how}: {end.stderr}"):
                return
            kept[len(how)] = Counter((t["bytes"], t["op"], t["name"], *sorted({t["module"], *(a["module"] for a in t["also"])}))
                                     for t in p["saved"]["tensors"])
        equal(p["memory_options"]["offload"]["modules"], "+".join(sorted(names, key=[*PLACES].index)), "modules in the profile")
        equal(p["formula"], None, "no formula")
        leaves = Counter({row: n for row, n in (kept[0] - kept[2]).items()
                          if all(any(re.search(PLACES[name], module) for name in names) for module in row[3:])})
        sent += len(leaves)
        sizes = [sorted(row[0] for row in rows.elements()) for rows in (kept[4], kept[0] - leaves)]
        equal(*sizes, f"sizes of what is kept by {args} {beside} {some}")
        swept = json.loads(run("sweep", *placed(*args), "--device", "cpu", "--steps", 1, "--row", "a:", "--row", "b: " + " ".join(some),
                               "--json", "-").stdout or "{}")
        if check(swept, f"a sweep of {args} {some}"):
            equal(swept["rows"][1]["gradients"]["same_bits"], True, f"gradients of {args} {some}")
    check(sent > 3 * n, f"{sent} kinds of storages left")


def what_moonlight_would_send():
    """Bytes that each module alone keeps, by hand; flash attention keeps its output, which is the projection's input, too."""
    args = ["profile", moonlight(), "-b", 1, "-s", 4096, "--device", "meta", "--recipe", "megatron", "--dp", 2, "--json", "-"]
    t = 4096
    whole = json.loads(run(*args).stdout)["saved"]["bytes"]
    for names, bytes in {"attn_norm": 27 * t * (2 * 2048 + 4), "expert_fc1": 26 * t * 6 * 2 * 2048, "attn_proj": 0,
                         "moe_act": 26 * t * 6 * (2 * 2 * 1408 + 4),
                         "core_attn": 27 * t * 16 * (2 * (192 + 192 + 256) + 4), "core_attn+attn_proj": 27 * t * 16 * (2 * (192 + 192 + 256 + 128) + 4)}.items():
        left = json.loads(run(*args, "--offload", "cpu", "--recipe", f"plain:offload-modules={names}").stdout)["saved"]["bytes"]
        equal(whole - left, bytes, f"bytes of {names}")


bad_input()
what_moonlight_would_give_up()
what_moonlight_would_send()
any_modules(7, 300 if os.environ.get("MTT_LONG") == "1" else 10)
offloaded_modules(7, 60 if os.environ.get("MTT_LONG") == "1" else 5)
done()
