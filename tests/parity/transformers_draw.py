"""Random configurations of every family, for transformers_parity.py: sizes of 1 and equal sizes, one sequence, one
position, heads that share keys or do not, tied or not, activations, windows, caps, floats, autocast, checkpoints."""

import random

ROTARY = ("llama", "mistral", "qwen2", "qwen3", "olmo2", "phi3", "smollm3", "gemma", "gemma2", "gemma3_text")
EXPERTS = ("mixtral", "qwen3_moe", "olmoe")
OSS = ("gpt_oss",)
LATENT = ("deepseek_v2", "deepseek_v3")
GLM = ("glm4_moe",)
SHARED = (*LATENT, *GLM)
MASKED = ("bert", "roberta", "xlm-roberta")
FAMILIES = ("gpt2", "opt", "gpt_neox", *ROTARY, *MASKED)
ACTS = ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh", "sigmoid")
ROPES = ({"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}, {"rope_type": "dynamic", "factor": 2.0},
         {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
         {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 16})


def sizes(rng, family):
    heads = rng.choice((1, 2, 3, 4, 6, 8, 12))
    rotary = family in (*ROTARY, *EXPERTS, *OSS, *SHARED)
    kv = rng.choice([n for n in (1, 2, 3, 4, 6, 8, 12) if heads % n == 0] + [1, heads]) if rotary else heads
    width = rng.choice((2, 4, 6, 8, 16, 64) if rotary else (1, 3, 4, 7, 16, 64))
    if family == "gpt_neox":
        width = rng.choice((8, 16, 64))  # an even part of it is turned
    if rotary and rng.random() < 0.03:
        width = 258
    free = family in ROTARY and family not in ("olmo2", "phi3") and rng.random() < 0.6
    drawn = {"layers": rng.choice((1, 1, 2, 3, 5)), "heads": heads, "kv": kv, "width": width,
             "d": heads * (rng.choice((1, 3, 8)) if free else width), "head_dim": free,
             "f": rng.choice((1, 7, 16, 48, 80, 200)), "v": rng.choice((7, 31, 64, 131))}
    if family in EXPERTS:  # grouped_mm wants rows of 16 bytes
        drawn |= {"experts": rng.choice((1, 2, 5, 8, 16)), "d": 8 * heads * rng.choice((1, 3)), "head_dim": False,
                  "f": rng.choice((8, 16, 48, 80, 200))}
        drawn |= {"k": rng.randint(1, drawn["experts"]), "width": drawn["d"] // heads}
    if family in OSS:
        experts = rng.choice((1, 2, 5, 8))
        drawn |= {"experts": experts, "k": rng.randint(1, experts), "d": 8 * rng.choice((1, 3, 6)), "head_dim": True,
                  "width": rng.choice((2, 4, 8, 64)), "f": rng.choice((8, 16, 48))}
    if family in SHARED:
        drawn |= latent_sizes(rng, drawn["heads"]) | ({"kv": kv, "width": rng.choice((4, 8, 16))} if family in GLM else {})
    return drawn


def latent_sizes(rng, heads):
    """width: of a head of queries, value: of values; groups of experts. Complex numbers want even places."""
    groups, rope, nope = rng.choice((1, 2, 3)), rng.choice((2, 4, 8)), rng.choice((2, 4, 6, 8))
    experts = groups * rng.choice((2, 3, 8))
    met = rng.randint(1, groups)
    return {"kv": heads, "d": 8 * heads * rng.choice((1, 2)), "f": rng.choice((8, 16, 48)), "experts": experts,
            "k": rng.randint(1, min(experts * met // groups, 6)), "groups": groups, "met": met, "rope": rope,
            "width": nope + rope, "value": rng.choice((2, 5, 8, nope + rope)), "shared": rng.choice((1, 1, 2)),
            "rank": rng.choice((2, 8, 12)), "q_rank": rng.choice((None, 3, 16)), "dense": rng.choice((0, 1, 1, 2)),
            "dense_f": rng.choice((8, 24, 56))}


def window(rng, family, s):
    if family not in ("mistral", "qwen2", "qwen3", "phi3", "gemma2", "gemma3_text") or rng.random() < 0.6:
        return {}
    more = {"sliding_window": rng.choice((1, 2, s, s, s + 1, max(1, s // 2), 4096))}
    if family in ("qwen2", "qwen3"):
        more |= {"use_sliding_window": rng.random() < 0.7, "max_window_layers": rng.choice((0, 1, 2))}
    return more


def of_family(rng, family, s, layers, width):
    """Keys of the family's own."""
    more = window(rng, family, s)
    if (family == "gemma2" or more.get("use_sliding_window")) and rng.random() < 0.3:
        more["layer_types"] = [rng.choice(("full_attention", "sliding_attention")) for _ in range(layers)]
    if family == "gpt2":
        more |= {"activation_function": rng.choice(ACTS), "tie_word_embeddings": rng.random() < 0.6}
        if rng.random() < 0.2:
            more["n_inner"] = None
    elif family == "opt":
        more |= {"activation_function": rng.choice(ACTS), "tie_word_embeddings": rng.random() < 0.6,
                 "pad_token_id": rng.choice((None, 0, 3))}
    elif family == "gpt_neox":
        more |= {"hidden_act": rng.choice(ACTS), "tie_word_embeddings": rng.random() < 0.5, "rotary_pct": rng.choice((0.25, 0.5, 1.0)),
                 "use_parallel_residual": rng.random() < 0.6, "pad_token_id": rng.choice((None, 0, 3))}
    elif family in GLM:
        part = rng.choice((0.25, 0.5, 0.5, 1.0))
        more |= {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default",
                                     "partial_rotary_factor": part if width * part % 2 == 0 else 0.5},
                 "use_qk_norm": rng.random() < 0.5, "attention_bias": rng.random() < 0.7, "norm_topk_prob": rng.random() < 0.7,
                 "tie_word_embeddings": rng.random() < 0.5, "pad_token_id": rng.choice((None, 0, 3))}
    elif family in LATENT:
        more |= {"tie_word_embeddings": rng.random() < 0.5, "pad_token_id": rng.choice((None, 0, 3))}
        more |= {"topk_method": rng.choice(("greedy", "group_limited_greedy"))} if family == "deepseek_v2" else {
            "norm_topk_prob": rng.random() < 0.7, "rope_interleave": rng.random() < 0.7}
        if rng.random() < 0.3:
            more["rope_parameters"] = {"rope_theta": 500.0, "mscale_all_dim": 0.7} | ROPES[3]
    elif family in (*ROTARY, *EXPERTS):
        more |= {"hidden_act": rng.choice(("silu", "swish")), "tie_word_embeddings": rng.random() < 0.5,
                 "pad_token_id": rng.choice((None, 0, 3))}
        if rng.random() < 0.3 and family not in ("gemma3_text", "phi3"):
            more["rope_parameters"] = {"rope_theta": 500.0} | rng.choice(ROPES)
            kind = more["rope_parameters"]["rope_type"]  # Transformers fails
            if (width == 2 and kind == "dynamic") or (family == "mixtral" and kind in ("dynamic", "yarn")):
                more["rope_parameters"] = ROPES[1] | {"rope_theta": 500.0}
    if family == "phi3" and width % 4 == 0 and rng.random() < 0.5:
        more["rope_parameters"] = {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 0.5}
    if family in OSS:
        more |= {"sliding_window": rng.choice((1, 2, s, max(1, s // 2), 128)), "tie_word_embeddings": rng.random() < 0.5}
        if rng.random() < 0.7:
            more["rope_parameters"] = rng.choice(({"rope_type": "default", "rope_theta": 500.0},
                                                  ROPES[3] | {"rope_theta": 500.0, "truncate": rng.random() < 0.5}))
        if rng.random() < 0.3:
            more["layer_types"] = [rng.choice(("full_attention", "sliding_attention")) for _ in range(layers)]
    if family == "smollm3":
        more["no_rope_layer_interval"] = rng.choice((1, 2, 3, 4))
    if family == "bert":
        more |= {"hidden_act": rng.choice(ACTS), "pad_token_id": rng.choice((None, 0, 3))}
    if family in MASKED:
        more["type_vocab_size"] = rng.choice((1, 2, 3))
        if family != "bert":
            more["pad_token_id"] = rng.choice((0, 1, 3))
    if family == "gemma":
        more |= {"hidden_act": "gelu_pytorch_tanh"}
    elif family.startswith("gemma"):
        more |= {"hidden_activation": rng.choice(ACTS), "query_pre_attn_scalar": rng.choice((1, 7, 16)),
                 "attn_logit_softcapping": rng.choice((None, 1.5)) if family == "gemma2" else None,
                 "final_logit_softcapping": rng.choice((None, 2.0))}
    if family == "gemma3_text":
        more["_sliding_window_pattern"] = rng.choice((1, 2, 3, 6))
    return more


def draw(seed, families=FAMILIES):
    """Arguments for a Case."""
    rng = random.Random(seed)
    family = families[seed % len(families)]
    b, s = rng.choice((1, 1, 2, 3, 4)), rng.choice((1, 1, 2, 3, 5, 8, 17, 33, 70))
    sizes_ = sizes(rng, family)
    more = of_family(rng, family, s, sizes_["layers"], sizes_["width"])
    # Transformers has no sdpa for these.
    attention = "eager" if family in ("gemma2", *OSS) else rng.choice(("sdpa", "eager"))
    if family in LATENT and attention == "sdpa":
        sizes_["value"] = sizes_["width"]  # else PyTorch's fused attention on the CPU refuses
    dtype = rng.choice(("f32", "f32", "bf16", "f16"))
    # gpt2, bert and an unfused gelu call operations that PyTorch autocasts otherwise on the CPU than on CUDA.
    amp = family in (*ROTARY, *EXPERTS, *SHARED) and dtype == "f32" and rng.random() < 0.3 and \
        more.get("hidden_activation") not in ("gelu_new", "gelu_fast")
    return {"family": family, "attention": attention, "dtype": dtype, "b": b, "s": s, "sizes": sizes_,
            "more": more, "amp": amp, "checkpoint": rng.random() < 0.15, "seed": seed,
            "context": s + rng.choice((0, 0, 5, 100))}
