#!/usr/bin/env python3
"""published.py LIBMEMTAPE_CASES: compares models with Hugging Face Transformers' own code for them.

For every family that a config.json may name, a small model is made by Transformers; memtape reads its
configuration as Transformers writes it, gets its weights by the names that docs/models.md maps, and must then give
the same logits and the same gradient of every parameter. Mixtures of experts then train, each side by itself, and have
the same losses. Exit status 77 if PyTorch or Transformers is not
installed."""

import ctypes
import re
import sys

try:
    import torch
    import torch.nn.functional as F
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from harness import MODEL_TOLERANCE, far

I, P, BOOL, REAL = ctypes.c_int, ctypes.c_void_p, ctypes.c_bool, ctypes.c_double
TOKENS = (2, 9)
SMALL = dict(vocab_size=31, hidden_size=24, intermediate_size=40, num_hidden_layers=4, num_attention_heads=4,
             max_position_embeddings=16, pad_token_id=0)
ROTARY = SMALL | dict(num_key_value_heads=2, head_dim=10, rope_theta=500.0, tie_word_embeddings=False)

LATENT = SMALL | dict(num_key_value_heads=4, rope_theta=500.0, kv_lora_rank=12, q_lora_rank=14, qk_nope_head_dim=6,
                      qk_rope_head_dim=4, v_head_dim=8, moe_intermediate_size=16, n_routed_experts=5,
                      num_experts_per_tok=3, n_shared_experts=1, first_k_dense_replace=1)
GLM = ROTARY | dict(head_dim=8, moe_intermediate_size=16, n_routed_experts=5, num_experts_per_tok=3, n_shared_experts=1,
                    first_k_dense_replace=1)
YARN = dict(rope_type="yarn", factor=8.0, original_max_position_embeddings=16, mscale=0.9, mscale_all_dim=0.9,
            rope_theta=20.0, beta_fast=2, beta_slow=0.5)
# Pairs turn ten times in this context, or once, or between.
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64, rope_theta=20.0)
QWEN_YARN = {key: value for key, value in YARN.items() if not key.startswith("mscale")}
GEMMA = ROTARY | dict(sliding_window=12, tie_word_embeddings=True, hidden_activation="gelu_pytorch_tanh")

NEOX = SMALL | dict(hidden_size=32, hidden_act="gelu", rotary_emb_base=500)

# ---- the models: type, what differs from the family's usual choices ----

CASES = [
    ("gpt2", dict(vocab_size=31, n_embd=24, n_layer=4, n_head=4, n_positions=16, attn_pdrop=0.0, embd_pdrop=0.0,
                  resid_pdrop=0.0)),
    ("gpt2", dict(vocab_size=31, n_embd=24, n_layer=2, n_head=4, n_positions=16, attn_pdrop=0.0, embd_pdrop=0.0,
                  resid_pdrop=0.0, tie_word_embeddings=False)),
    ("opt", {k: v for k, v in SMALL.items() if k != "intermediate_size"} | dict(ffn_dim=40, dropout=0.0, word_embed_proj_dim=24)),
    ("gpt_neox", NEOX),
    ("gpt_neox", NEOX | dict(use_parallel_residual=False, hidden_act="gelu_new", tie_word_embeddings=True, rope_parameters=dict(
        rope_type="linear", factor=4.0, rope_theta=20.0, partial_rotary_factor=0.5))),
    ("gpt_neox", NEOX | dict(rotary_pct=1.0)),
    ("llama", ROTARY),
    ("mistral", ROTARY | dict(sliding_window=12)),
    ("qwen2", ROTARY),
    ("qwen3", ROTARY),
    ("qwen3", ROTARY | dict(head_dim=6, tie_word_embeddings=True)),
    ("mixtral", ROTARY | dict(num_local_experts=4, num_experts_per_tok=2)),
    ("qwen3_moe", ROTARY | dict(num_experts=5, num_experts_per_tok=3, moe_intermediate_size=16, norm_topk_prob=False)),
    ("olmoe", {k: v for k, v in ROTARY.items() if k != "head_dim"} | dict(num_experts=4, num_experts_per_tok=2, norm_topk_prob=True)),
    ("deepseek_v2", LATENT),
    ("deepseek_v2", LATENT | dict(q_lora_rank=None, topk_method="group_limited_greedy", n_group=4, topk_group=2,
                                  n_routed_experts=8, v_head_dim=10, rope_parameters=YARN)),
    ("deepseek_v3", LATENT | dict(n_group=2, topk_group=1, n_routed_experts=8, routed_scaling_factor=1.5, rope_parameters=YARN)),
    ("deepseek_v3", LATENT | dict(n_group=1, topk_group=1, norm_topk_prob=False, rope_interleave=False,
                                  n_shared_experts=2, first_k_dense_replace=2)),
    # Scaled angles.
    ("llama", ROTARY | dict(rope_parameters=LLAMA3)),
    ("mistral", ROTARY | dict(sliding_window=12, rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=20.0))),
    ("qwen2", ROTARY | dict(rope_parameters=QWEN_YARN)),
    ("qwen3", ROTARY | dict(rope_parameters=QWEN_YARN | dict(truncate=False, attention_factor=1.7))),
    ("mixtral", ROTARY | dict(num_local_experts=4, num_experts_per_tok=2, rope_parameters=LLAMA3)),
    ("qwen3_moe", ROTARY | dict(num_experts=5, num_experts_per_tok=3, moe_intermediate_size=16, rope_parameters=QWEN_YARN)),
    ("olmo2", {k: v for k, v in ROTARY.items() if k != "head_dim"} | dict(rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=20.0))),
    ("olmo3", {k: v for k, v in ROTARY.items() if k not in ("head_dim", "rope_theta")} | dict(sliding_window=5, rope_scaling=QWEN_YARN)),
    ("gemma3_text", GEMMA | dict(rope_local_base_freq=50.0, _sliding_window_pattern=3, rope_theta=20.0, rope_scaling=dict(rope_type="linear", factor=8.0))),
    ("glm4_moe", GLM | dict(n_group=1, topk_group=1, rope_parameters=QWEN_YARN | dict(partial_rotary_factor=0.5))),
    ("deepseek_v2", LATENT | dict(rope_parameters=YARN | dict(mscale=0.4))),
    ("deepseek_v3", LATENT | dict(n_group=1, topk_group=1, rope_parameters=YARN | dict(mscale=0.4))),
    ("gpt_oss", ROTARY | dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=4, rope_parameters=LLAMA3)),
    ("glm4_moe", GLM | dict(use_qk_norm=True, attention_bias=True, routed_scaling_factor=1.5)),
    ("glm4_moe", GLM | dict(n_group=2, topk_group=1, n_routed_experts=8, rope_parameters=dict(
        rope_type="default", rope_theta=500.0, partial_rotary_factor=0.25))),
    ("gpt_oss", ROTARY | dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=4)),
    ("olmo2", {k: v for k, v in ROTARY.items() if k != "head_dim"}),
    ("olmo3", {k: v for k, v in ROTARY.items() if k != "head_dim"} | dict(sliding_window=12)),
    ("phi3", {k: v for k, v in ROTARY.items() if k != "head_dim"} | dict(sliding_window=12)),
    ("smollm3", ROTARY | dict(no_rope_layer_interval=2)),
    ("smollm3", ROTARY | dict(no_rope_layers=[1, 1, 0, 1], tie_word_embeddings=True, rope_parameters=LLAMA3)),
    ("gemma", {k: v for k, v in GEMMA.items() if k != "sliding_window"}),
    ("gemma2", GEMMA | dict(attn_logit_softcapping=1.5, final_logit_softcapping=2.0)),
    ("gemma2", GEMMA | dict(attn_logit_softcapping=None, final_logit_softcapping=None, query_pre_attn_scalar=7)),
    ("gemma3_text", GEMMA | dict(rope_local_base_freq=50.0, _sliding_window_pattern=3)),
    *((kind, SMALL | dict(type_vocab_size=1, pad_token_id=1, hidden_dropout_prob=0.0,
                          attention_probs_dropout_prob=0.0)) for kind in ("roberta", "xlm-roberta")),
    ("bert", SMALL | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)),
]

# ---- names: ours, and theirs; several of theirs stand side by side in one of ours ----

GPT2 = {"wte.weight": "transformer.wte.weight", "wpe.weight": "transformer.wpe.weight", "ln_f": "transformer.ln_f",
        "ln_1": "transformer.h.N.ln_1", "ln_2": "transformer.h.N.ln_2", "attn.qkv": "transformer.h.N.attn.c_attn",
        "attn.proj": "transformer.h.N.attn.c_proj", "mlp.fc": "transformer.h.N.mlp.c_fc",
        "mlp.proj": "transformer.h.N.mlp.c_proj", "lm_head": "lm_head"}
OPT = {"wte.weight": "model.decoder.embed_tokens.weight", "wpe.weight": "model.decoder.embed_positions.weight",
       "ln_f": "model.decoder.final_layer_norm", "ln_1": "model.decoder.layers.N.self_attn_layer_norm",
       "ln_2": "model.decoder.layers.N.final_layer_norm",
       "attn.qkv": [f"model.decoder.layers.N.self_attn.{name}_proj" for name in "qkv"],
       "attn.proj": "model.decoder.layers.N.self_attn.out_proj", "mlp.fc": "model.decoder.layers.N.fc1",
       "mlp.proj": "model.decoder.layers.N.fc2"}
NEOX_NAMES = {"wte.weight": "gpt_neox.embed_in.weight", "ln_f": "gpt_neox.final_layer_norm", "lm_head": "lm_head",
              "ln_1": "gpt_neox.layers.N.input_layernorm", "ln_2": "gpt_neox.layers.N.post_attention_layernorm",
              "attn.qkv": "gpt_neox.layers.N.attention.query_key_value", "attn.proj": "gpt_neox.layers.N.attention.dense",
              "mlp.fc": "gpt_neox.layers.N.mlp.dense_h_to_4h", "mlp.proj": "gpt_neox.layers.N.mlp.dense_4h_to_h"}
LLAMA = {"wte.weight": "model.embed_tokens.weight", "ln_f": "model.norm", "lm_head": "lm_head",
         "ln_1": "model.layers.N.input_layernorm", "ln_2": "model.layers.N.post_attention_layernorm",
         "attn.q": "model.layers.N.self_attn.q_proj", "attn.k": "model.layers.N.self_attn.k_proj",
         "attn.v": "model.layers.N.self_attn.v_proj", "attn.proj": "model.layers.N.self_attn.o_proj",
         "attn.q_norm": "model.layers.N.self_attn.q_norm", "attn.k_norm": "model.layers.N.self_attn.k_norm",
         "mlp.gate": "model.layers.N.mlp.gate_proj", "mlp.up": "model.layers.N.mlp.up_proj",
         "mlp.down": "model.layers.N.mlp.down_proj"}
EXPERTS = LLAMA | {"mlp.router": "model.layers.N.mlp.gate", "mlp.experts_gate_up.weight": "model.layers.N.mlp.experts.gate_up_proj",
                   "mlp.experts_down.weight": "model.layers.N.mlp.experts.down_proj"}
GPT_OSS = EXPERTS | {"mlp.router": "model.layers.N.mlp.router", "attn.heads.sinks.weight": "model.layers.N.self_attn.sinks",
                     "mlp.experts_gate_up_bias.weight": "model.layers.N.mlp.experts.gate_up_proj_bias",
                     "mlp.experts_down_bias.weight": "model.layers.N.mlp.experts.down_proj_bias"}
DEEPSEEK = EXPERTS | {"attn.q_a": "model.layers.N.self_attn.q_a_proj", "attn.q_b": "model.layers.N.self_attn.q_b_proj",
                      "attn.q_a_norm": "model.layers.N.self_attn.q_a_layernorm",
                      "attn.kv_a": "model.layers.N.self_attn.kv_a_proj_with_mqa",
                      "attn.kv_a_norm": "model.layers.N.self_attn.kv_a_layernorm",
                      "attn.kv_b": "model.layers.N.self_attn.kv_b_proj",
                      "mlp.router.bias": "model.layers.N.mlp.gate.e_score_correction_bias",
                      "mlp.shared.gate": "model.layers.N.mlp.shared_experts.gate_proj",
                      "mlp.shared.up": "model.layers.N.mlp.shared_experts.up_proj",
                      "mlp.shared.down": "model.layers.N.mlp.shared_experts.down_proj"}
OLMO2 = LLAMA | {"ln_1": "model.layers.N.post_attention_layernorm",
                 "ln_2": "model.layers.N.post_feedforward_layernorm"}
BERT = {"wte.weight": "bert.embeddings.word_embeddings.weight",
        "wpe.weight": "bert.embeddings.position_embeddings.weight",
        "tte.weight": "bert.embeddings.token_type_embeddings.weight", "ln": "bert.embeddings.LayerNorm",
        "attn.qkv": ["bert.encoder.layer.N.attention.self." + name for name in ("query", "key", "value")],
        "attn.proj": "bert.encoder.layer.N.attention.output.dense",
        "ln_1": "bert.encoder.layer.N.attention.output.LayerNorm",
        "mlp.fc": "bert.encoder.layer.N.intermediate.dense", "mlp.proj": "bert.encoder.layer.N.output.dense",
        "ln_2": "bert.encoder.layer.N.output.LayerNorm", "head.bias": "cls.predictions.bias",
        "head.dense": "cls.predictions.transform.dense", "head.ln": "cls.predictions.transform.LayerNorm",
        "pooler.dense": "bert.pooler.dense"}
ROBERTA = {ours: [t.replace("bert.", "roberta.", 1) for t in theirs] if isinstance(theirs, list)
           else theirs.replace("bert.", "roberta.", 1) for ours, theirs in BERT.items()} | {
    "head.bias": "lm_head.bias", "head.dense": "lm_head.dense", "head.ln": "lm_head.layer_norm"}
XLM_ROBERTA = ROBERTA | {"wte.weight": "lm_head.decoder.weight"}  # the same parameter, found there first
PHI3 = LLAMA | {"attn.qkv": "model.layers.N.self_attn.qkv_proj", "mlp.gate_up": "model.layers.N.mlp.gate_up_proj"}
GEMMA_NAMES = LLAMA | {"ln_1_out": "model.layers.N.post_attention_layernorm",
                       "ln_2": "model.layers.N.pre_feedforward_layernorm",
                       "ln_2_out": "model.layers.N.post_feedforward_layernorm"}
ROBERTAS = ("roberta", "xlm-roberta")
NAMES = {"gemma2": GEMMA_NAMES, "gemma3_text": GEMMA_NAMES, "roberta": ROBERTA, "xlm-roberta": XLM_ROBERTA,
         "phi3": PHI3, "mixtral": EXPERTS, "qwen3_moe": EXPERTS, "olmoe": EXPERTS, "gpt_oss": GPT_OSS, "deepseek_v2": DEEPSEEK, "deepseek_v3": DEEPSEEK,
         "glm4_moe": DEEPSEEK, "gpt2": GPT2, "opt": OPT, "gpt_neox": NEOX_NAMES, "bert": BERT, "olmo2": OLMO2, "olmo3": OLMO2}


def is_buffer(kind, name):
    return kind.startswith(("deepseek", "glm")) and name.endswith("router.bias")


def theirs_for(kind, name, tensors):
    """The tensor of theirs (a dict by name) that stands for our parameter of that name."""
    names = NAMES.get(kind, LLAMA)
    layer, path = re.fullmatch(r"(?:h\.(\d+)\.)?(.*)", name).groups()
    if path in names:
        wanted, end = names[path], ""
    else:
        path, end = path.rsplit(".", 1)
        wanted, end = names[path], "." + end
    wanted = wanted if isinstance(wanted, list) else [wanted]
    found = torch.cat([tensors[w.replace(".N.", f".{layer}.") + end] for w in wanted])
    if kind == "gpt_oss" and found.dim() == 3:  # experts' matrices are [in,out]
        return found.transpose(1, 2).contiguous()
    is_conv = kind == "gpt2" and layer and found.dim() == 2  # Conv1D keeps [in,out]
    return found.t().contiguous() if is_conv else found


# ---- one model ----

def auto_class(kind):
    return transformers.AutoModelForMaskedLM if kind in ("bert", *ROBERTAS) else transformers.AutoModelForCausalLM


def positions_of(kind):
    """Transformers would count a roberta's positions without padding."""
    return {"position_ids": torch.arange(2, 2 + TOKENS[1]).expand(TOKENS)} if kind in ROBERTAS else {}


def make(kind, config, dtype, auto=None):
    """A model of theirs with weights that matter."""
    torch.manual_seed(23)
    configuration = transformers.AutoConfig.for_model(kind, **config)
    model = (auto or auto_class(kind)).from_config(configuration, attn_implementation="eager").to(dtype)
    generator = torch.Generator().manual_seed(29)
    with torch.no_grad():
        for name, p in model.named_parameters():
            t = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.copy_(t * p.shape[1] ** -0.5 if p.dim() == 2 else p + 0.1 * t)
        for name, p in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # zeros would hide mistakes
                p.copy_(0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64))
    return model


class AdamW(ctypes.Structure):
    """mt_adamw_options"""
    _fields_ = [*((name, REAL) for name in ("lr", "beta1", "beta2", "eps", "weight_decay")), ("decay_matrices_only", BOOL),
                ("master", BOOL), ("moments", I), ("paged", BOOL), ("form", I), ("host", BOOL)]


def routed_apart(model, generator, least=2e-3):
    """Draws tokens until the scores of experts that are chosen are so far above those of others: two that nearly tie are
    chosen by rounding, which differs among processors, and all that follows with them."""
    while True:
        x = torch.randint(0, 31, TOKENS, generator=generator)
        with torch.no_grad():
            scores = model(input_ids=x, output_router_logits=True).router_logits
        best = [s.float().sort(descending=True).values for s in scores]
        k = model.config.num_experts_per_tok
        if min((s[:, k - 1] - s[:, k]).min().item() for s in best) > least:
            return x


def training_faults(library, model, ours, steps=12):
    """Both train with AdamW on the same tokens, and go their own ways: up to 1.5e-6 apart by rounding; a weight decay of
    0.09 for 0.1 is 6e-4. The usual eps would make steps of noise, since AdamW divides a gradient by its size."""
    dll, theirs = library.dll, torch.optim.AdamW(model.parameters(), lr=3e-3, eps=1e-4, weight_decay=0.1)
    for name, result, arguments in (("adamw_new", P, (P, P)), ("optimizer_step", I, (P,)), ("optimizer_free", None, (P,)),
                                    ("module_zero_grad", None, (P,))):
        getattr(dll, f"mt_{name}").restype, getattr(dll, f"mt_{name}").argtypes = result, arguments
    optimizer = dll.mt_adamw_new(ours.pointer, ctypes.byref(AdamW(lr=3e-3, eps=1e-4, weight_decay=0.1)))
    generator, losses = torch.Generator().manual_seed(37), []
    for step in range(steps):
        x, target = routed_apart(model, generator), torch.randint(0, 31, TOKENS, generator=generator)
        dll.mt_module_zero_grad(ours.pointer), theirs.zero_grad()
        there = F.cross_entropy(model(input_ids=x).logits.view(-1, 31), target.view(-1))
        there.backward()
        here = library.call("cross_entropy", ours(library.tensor(x)), library.tensor(target), -100)
        here.backward(library.tensor(torch.ones(())))
        losses.append((here.torch().item(), there.item()))
        library.check(dll.mt_optimizer_step(optimizer)), theirs.step()
    dll.mt_optimizer_free(optimizer)
    apart = max(abs(here - there) for here, there in losses)
    if apart > 1e-5 or losses[-1][0] == losses[0][0]:
        yield f"losses of {steps} steps are {apart} apart: {losses}"


def faults(library, kind, config, dtype):
    model = make(kind, config, dtype)
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    tells = model.config.to_dict() | {"dtype": str(dtype).removeprefix("torch.")}
    ours = memtape.Model(library, hf=tells)
    library.mt_set_grad_mode(False)
    for name, p in ours.parameters.items():
        data = theirs_for(kind, name, parameters | buffers).detach().contiguous().view(torch.uint8).numpy()
        library.check(library.mt_copy_from_host(p.pointer, data.ctypes.data, data.nbytes))
    library.mt_set_grad_mode(True)
    if sum(p.numel() for p in parameters.values()) != sum(
            p.torch().numel() for name, p in ours.parameters.items() if not is_buffer(kind, name)):
        yield "another number of parameters"
    generator = torch.Generator().manual_seed(31)
    # A token of padding among the others, of whose row the embedding gives no gradient.
    x, target = (torch.randint(0, 31, TOKENS, generator=generator) for _ in range(2))
    padding = tells.get("pad_token_id")
    if padding is not None:
        x[0, 3] = padding % 31
    logits = model(input_ids=x, **positions_of(kind)).logits
    F.cross_entropy(logits.view(-1, 31), target.view(-1)).backward()
    our_logits = ours(library.tensor(x))
    loss = library.call("cross_entropy", our_logits, library.tensor(target), -100)
    loss.backward(library.tensor(torch.ones((), dtype=dtype)))
    tolerance = MODEL_TOLERANCE[dtype]
    fault = far(our_logits.torch(), logits.detach(), tolerance)
    if fault:
        yield f"logits: {fault}"
    grads = {name: p.grad for name, p in parameters.items()}
    for name, p in ours.parameters.items():
        if is_buffer(kind, name):
            continue
        fault = far(p.grad and p.grad.torch(), theirs_for(kind, name, grads), tolerance)
        if fault:
            yield f"gradient of {name}: {fault}"
    if NAMES.get(kind) is EXPERTS:
        yield from training_faults(library, model, ours)


# ---- the other classes of a family ----

def classes(kind, configuration):
    """Transformers' classes of the family that can be made from its configuration."""
    module = sys.modules[type(configuration).__module__.replace(".configuration_", ".modeling_")]
    for name in module.__all__:
        class_ = getattr(module, name)
        if issubclass(class_, transformers.PreTrainedModel) and class_.config_class is type(configuration) \
                and not name.endswith("PreTrainedModel"):
            yield name, class_


def class_faults(library, kind, config):
    """A class named in "architectures" is refused by name, or has as many parameters here as there. One is taken, and of a bert that without
    a head, too."""
    configuration, taken = transformers.AutoConfig.for_model(kind, **config), []
    auto_class(kind).from_config(configuration)  # imports the family's module
    for name, class_ in classes(kind, configuration):
        try:
            ours = memtape.Model(library, hf=configuration.to_dict() | {"architectures": [name]})
        except memtape.MemtapeError as error:
            if name not in str(error):
                yield f"{name}: refused without its name: {error}"
            continue
        taken.append(name)
        theirs = sum(p.numel() for p in class_(configuration).parameters())
        here = sum(p.torch().numel() for name, p in ours.parameters.items() if not is_buffer(kind, name))
        if here != theirs:
            yield f"{name}: {here} parameters, Transformers {theirs}"
    if len(taken) != 1 + (auto_class(kind) is transformers.AutoModelForMaskedLM):
        yield f"classes that are taken: {taken}"


def main():
    library = memtape.Library(sys.argv[1])
    failed = 0
    transformers.logging.set_verbosity_error()
    for kind, config in CASES:
        try:
            found = [*faults(library, kind, config, torch.float32), *class_faults(library, kind, config)]
        except memtape.MemtapeError as error:
            found = [f"memtape: {error}"]
        for fault in found:
            print(f"FAILED: {kind}: {fault}")
        failed += bool(found)
    print(f"{len(CASES) - failed} models as in Transformers {transformers.__version__}, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
