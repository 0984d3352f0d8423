/* presets.c: models by name. */
#include "nn/model.h"

#define SIZES(l, a, d, v, s)                                                                       \
    .layers = (l), .heads = (a), .hidden = (d), .vocab = (v), .context = (s)
#define GPT(l, a, d, v, s)   .kind = MT_MODEL_GPT, .causal = true, SIZES(l, a, d, v, s)
#define BERT(l, a, d, v, s)  .kind = MT_MODEL_BERT, .act = MT_ACT_GELU, SIZES(l, a, d, v, s)
#define LLAMA(l, a, d, v, s) .kind = MT_MODEL_LLAMA, .causal = true, SIZES(l, a, d, v, s)

#define LLAMA3(l, a, d, f)                                                                         \
    LLAMA(l, a, d, 128256, 131072), .kv_heads = 8, .ffn = (f), .rope_theta = 500000,               \
                                    .norm_eps = 1e-5
#define LLAMA2(l, a, d, f) LLAMA(l, a, d, 32000, 4096), .ffn = (f), .norm_eps = 1e-5
#define CODELLAMA(l, a, d, f, v)                                                                   \
    LLAMA(l, a, d, v, 16384), .ffn = (f), .rope_theta = 1e6, .norm_eps = 1e-5
#define OPT_SIZES(l, a, d)                                                                         \
    GPT(l, a, d, 50272, 2048), .branch_dropout = true, .position_offset = 2, .padded = true,       \
                               .pad_token = 1
#define PYTHIA(l, a, d, v)                                                                         \
    GPT(l, a, d, v, 2048), .act = MT_ACT_GELU, .untied = true, .norm = MT_NORM_PARALLEL,           \
                           .joint_products = true, .qkv_by_head = true, .rope_theta = 10000,       \
                           .rope_dim = (d) / (a) / 4
#define ROBERTA(l, a, d, v)                                                                        \
    BERT(l, a, d, v, 512), .norm_eps = 1e-5, .token_types = 1, .mask_token = (v)-1,                \
                           .position_offset = 2, .padded = true, .pad_token = 1
#define YI(l, a, k, d, f)                                                                          \
    LLAMA(l, a, d, 64000, 4096), .kv_heads = (k), .ffn = (f), .rope_theta = 5e6, .norm_eps = 1e-5, \
                                 .padded = true
#define FALCON3(l, a, d, f, s)                                                                     \
    LLAMA(l, a, d, 131072, s), .kv_heads = 4, .head_dim = 256, .ffn = (f), .rope_theta = 1000042
#define DEEPSEEK_CODER(l, a, k, d, f)                                                              \
    LLAMA(l, a, d, 32256, 16384), .kv_heads = (k), .ffn = (f), .rope_theta = 1e5,                  \
                                  .yarn_factor = 4, .yarn_ramp = MT_RAMP_FLAT
#define MISTRAL(l, a, d, f, v, s)                                                                  \
    LLAMA(l, a, d, v, s), .kv_heads = 8, .head_dim = 128, .ffn = (f), .rope_theta = 1e6,           \
                          .norm_eps = 1e-5
#define OLMO(l, a, d, f, v, s)                                                                     \
    LLAMA(l, a, d, v, s), .ffn = (f), .rope_theta = 5e5, .norm_eps = 1e-6, .norm = MT_NORM_AFTER,  \
                          .qk_norm = MT_QK_NORM_WIDTH, .padded = true, .pad_token = 100277
#define SMOLLM2(l, a, k, d, f)                                                                     \
    LLAMA(l, a, d, 49152, 8192), .kv_heads = (k), .ffn = (f), .norm_eps = 1e-5, .tied = true
#define QWEN25(l, a, k, d, f, v)                                                                   \
    LLAMA(l, a, d, v, 32768), .kv_heads = (k), .ffn = (f), .qkv_bias = true, .rope_theta = 1e6,    \
                              .norm_eps = 1e-6
#define QWEN3(l, a, d, f)                                                                          \
    LLAMA(l, a, d, 151936, 40960), .kv_heads = 8, .head_dim = 128, .ffn = (f), .rope_theta = 1e6,  \
                                   .norm_eps = 1e-6, .qk_norm = MT_QK_NORM_HEAD
#define GPT_OSS(l, n)                                                                              \
    LLAMA(l, 64, 2880, 201088, 131072),                                                            \
        .kv_heads = 8, .head_dim = 64, .ffn = 2880, EXPERTS(n, 4), .mlp = MT_MLP_CLAMPED,          \
        .router = MT_ROUTER_CHOSEN, .sinks = true, .qkv_bias = true, .proj_bias = true,            \
        .window = 128, .local_period = 2, .norm_eps = 1e-5, .rope_theta = 150000,                  \
        .yarn_factor = 32, .yarn_fast = 32, .yarn_slow = 1, .yarn_context = 4096,                  \
        .yarn_scale = 1.3465735902799727, .yarn_exact = true, .padded = true, .pad_token = 199999
#define EXPERTS(n, k) .experts = (n), .experts_per_token = (k)
#define DEEPSEEK(k, n, shared, yarn, fast)                                                         \
    EXPERTS(n, k), .shared_experts = (shared), .kv_rank = 512, .head_dim = 192, .rope_dim = 64,    \
                   .value_dim = 128, .wide_router = true, .norm_eps = 1e-6, .yarn_factor = (yarn), \
                   .yarn_context = 4096, .yarn_fast = (fast), .yarn_slow = 1
#define GLM4(l, d, f, n)                                                                           \
    LLAMA(l, 96, d, 151552, 131072),                                                               \
        .kv_heads = 8, .head_dim = 128, .rope_dim = 64, .rope_theta = 1e6, .norm_eps = 1e-5,       \
        .qkv_bias = true, .ffn = (f), EXPERTS(n, 8), .shared_experts = 1, .expert_groups = 1,      \
        .expert_topk_groups = 1, .router = MT_ROUTER_SIGMOID, .wide_router = true,                 \
        .norm_topk = true, .padded = true, .pad_token = 151329
#define GEMMA(l, a, k, d, f)                                                                       \
    LLAMA(l, a, d, 256000, 8192),                                                                  \
        .norm_kind = MT_NORM_RMS_ONE, .norm_eps = 1e-6, .mlp = MT_MLP_GATED,                       \
        .act = MT_ACT_GELU_TANH, .fused_gelu = true, .tied = true, .scaled_embedding = true,       \
        .padded = true, .rope_theta = 1e4, .kv_heads = (k), .ffn = (f), .head_dim = 256
#define GEMMA2(l, a, k, d, f)                                                                      \
    LLAMA(l, a, d, 256000, 8192),                                                                  \
        .norm = MT_NORM_AROUND, .norm_kind = MT_NORM_RMS_ONE, .norm_eps = 1e-6,                    \
        .mlp = MT_MLP_GATED, .act = MT_ACT_GELU_TANH, .fused_gelu = true, .tied = true,            \
        .scaled_embedding = true, .padded = true, .rope_theta = 1e4, .kv_heads = (k), .ffn = (f),  \
        .attention = MT_ATTENTION_MATH, .window = 4096, .local_period = 2, .attention_cap = 50,    \
        .logit_cap = 30
#define GEMMA3(l, a, d, v, s)                                                                      \
    LLAMA(l, a, d, v, s), .norm = MT_NORM_AROUND, .norm_kind = MT_NORM_RMS_ONE, .norm_eps = 1e-6,  \
                          .mlp = MT_MLP_GATED, .act = MT_ACT_GELU_TANH, .fused_gelu = true,        \
                          .tied = true, .scaled_embedding = true, .padded = true,                  \
                          .qk_norm = MT_QK_NORM_HEAD, .rope_theta = 1e6, .local_theta = 1e4,       \
                          .local_period = 6

static const struct {
    const char *name;
    mt_model_config config;
} presets[] = {
    /* byte-level toys that train on a laptop; bert-tiny has a 257th token, the mask */
    {"tiny", {GPT(2, 4, 64, 256, 64), .act = MT_ACT_GELU}},
    {"small", {GPT(4, 4, 128, 256, 128), .act = MT_ACT_GELU}},
    {"medium", {GPT(6, 6, 384, 256, 256), .act = MT_ACT_GELU}},
    {"bert-tiny", {BERT(2, 4, 64, 257, 64), .mask_token = 256}},
    {"llama-tiny", {LLAMA(2, 4, 64, 256, 64), .kv_heads = 2}},
    {"moe-tiny",
     {LLAMA(2, 4, 64, 256, 64), .kv_heads = 2, .ffn = 64, EXPERTS(8, 2), .norm_topk = true}},
    {"deepseek-tiny",
     {LLAMA(3, 4, 64, 256, 64), EXPERTS(8, 2), .shared_experts = 1, .ffn = 32, .dense_layers = 1,
      .dense_ffn = 128, .expert_groups = 4, .expert_topk_groups = 2, .router = MT_ROUTER_SIGMOID,
      .wide_router = true, .norm_topk = true, .expert_scale = 2.5, .balance_rate = 0.001,
      .kv_rank = 16, .q_rank = 24, .head_dim = 24, .rope_dim = 8, .value_dim = 16,
      .rope_order = MT_ROPE_PAIRS}},
    /* Radford et al. 2019 */
    {"gpt2", {GPT(12, 12, 768, 50257, 1024), .act = MT_ACT_GELU_TANH}},
    {"gpt2-medium", {GPT(24, 16, 1024, 50257, 1024), .act = MT_ACT_GELU_TANH}},
    {"gpt2-large", {GPT(36, 20, 1280, 50257, 1024), .act = MT_ACT_GELU_TANH}},
    {"gpt2-xl", {GPT(48, 25, 1600, 50257, 1024), .act = MT_ACT_GELU_TANH}},
    {"distilgpt2", {GPT(6, 12, 768, 50257, 1024), .act = MT_ACT_GELU_TANH}},
    /* Zhang et al. 2022, but 350m, whose norms come after, and 175b */
    {"opt-125m", {OPT_SIZES(12, 12, 768)}},
    {"opt-1.3b", {OPT_SIZES(24, 32, 2048)}},
    {"opt-2.7b", {OPT_SIZES(32, 32, 2560)}},
    {"opt-6.7b", {OPT_SIZES(32, 32, 4096)}},
    {"opt-13b", {OPT_SIZES(40, 40, 5120)}},
    {"opt-30b", {OPT_SIZES(48, 56, 7168)}},
    {"opt-66b", {OPT_SIZES(64, 72, 9216)}},
    /* Biderman et al. 2023 */
    {"pythia-70m", {PYTHIA(6, 8, 512, 50304)}},
    {"pythia-160m", {PYTHIA(12, 12, 768, 50304)}},
    {"pythia-410m", {PYTHIA(24, 16, 1024, 50304)}},
    {"pythia-1b", {PYTHIA(16, 8, 2048, 50304)}},
    {"pythia-1.4b", {PYTHIA(24, 16, 2048, 50304)}},
    {"pythia-2.8b", {PYTHIA(32, 32, 2560, 50304)}},
    {"pythia-6.9b", {PYTHIA(32, 32, 4096, 50432)}},
    {"pythia-12b", {PYTHIA(36, 40, 5120, 50688)}},
    /* Brown et al. 2020, table 2.1 (its 13B and 2.7B have other ratios; alternating sparse
     * attention is not modelled) */
    {"gpt3-6.7b", {GPT(32, 32, 4096, 50257, 2048), .act = MT_ACT_GELU_TANH}},
    {"gpt3-175b", {GPT(96, 96, 12288, 50257, 2048), .act = MT_ACT_GELU_TANH}},
    /* Korthikanti et al. 2022, table 3; dropout is the caller's to choose */
    {"megatron-22b", {GPT(48, 64, 6144, 51200, 2048), .act = MT_ACT_GELU}},
    {"megatron-175b", {GPT(96, 96, 12288, 51200, 2048), .act = MT_ACT_GELU}},
    {"megatron-530b", {GPT(105, 128, 20480, 51200, 2048), .act = MT_ACT_GELU}},
    {"megatron-1t", {GPT(128, 160, 25600, 51200, 2048), .act = MT_ACT_GELU}},
    /* Devlin et al. 2018, uncased: [MASK] is token 103 */
    {"bert-base", {BERT(12, 12, 768, 30522, 512), .mask_token = 103}},
    {"bert-large", {BERT(24, 16, 1024, 30522, 512), .mask_token = 103}},
    {"bert-base-cased", {BERT(12, 12, 768, 28996, 512), .mask_token = 103}},
    {"bert-large-cased", {BERT(24, 16, 1024, 28996, 512), .mask_token = 103}},
    {"bert-base-multilingual-cased", {BERT(12, 12, 768, 119547, 512), .mask_token = 103}},
    {"bert-base-chinese", {BERT(12, 12, 768, 21128, 512), .mask_token = 103}},
    /* Liu et al. 2019; Conneau et al. 2020: the mask is the last token */
    {"roberta-base", {ROBERTA(12, 12, 768, 50265)}},
    {"roberta-large", {ROBERTA(24, 16, 1024, 50265)}},
    {"distilroberta-base", {ROBERTA(6, 12, 768, 50265)}},
    {"xlm-roberta-base", {ROBERTA(12, 12, 768, 250002)}},
    {"xlm-roberta-large", {ROBERTA(24, 16, 1024, 250002)}},
    /* Touvron et al. 2023, table 2 */
    {"llama-7b", {LLAMA(32, 32, 4096, 32000, 2048)}},
    {"llama-13b", {LLAMA(40, 40, 5120, 32000, 2048)}},
    {"llama-33b", {LLAMA(60, 52, 6656, 32000, 2048)}},
    {"llama-65b", {LLAMA(80, 64, 8192, 32000, 2048)}},
    /* Touvron et al. 2023, Llama 2 */
    {"llama-2-7b", {LLAMA2(32, 32, 4096, 11008)}},
    {"llama-2-13b", {LLAMA2(40, 40, 5120, 13824)}},
    {"llama-2-70b", {LLAMA2(80, 64, 8192, 28672), .kv_heads = 8}},
    /* Roziere et al. 2023, and their config.json */
    {"codellama-7b", {CODELLAMA(32, 32, 4096, 11008, 32016)}},
    {"codellama-13b", {CODELLAMA(40, 40, 5120, 13824, 32016)}},
    {"codellama-34b", {CODELLAMA(48, 64, 8192, 22016, 32000), .kv_heads = 8}},
    {"codellama-70b", {CODELLAMA(80, 64, 8192, 28672, 32016), .kv_heads = 8}},
    /* Grattafiori et al. 2024, table 3; the scaling of its rotary frequencies, which changes no
     * shape, is not modelled */
    {"llama-3.1-8b", {LLAMA3(32, 32, 4096, 14336)}},
    {"llama-3.1-70b", {LLAMA3(80, 64, 8192, 28672)}},
    {"llama-3.1-405b", {LLAMA3(126, 128, 16384, 53248)}},
    {"llama-3.2-1b", {LLAMA3(16, 32, 2048, 8192), .head_dim = 64, .tied = true}},
    {"llama-3.2-3b", {LLAMA3(28, 24, 3072, 8192), .head_dim = 128, .tied = true}},
    /* the config.json of each model at Hugging Face, from here on */
    {"mistral-7b",
     {LLAMA(32, 32, 4096, 32768, 32768), .kv_heads = 8, .ffn = 14336, .rope_theta = 1e6,
      .norm_eps = 1e-5}},
    {"mistral-7b-v0.1",
     {LLAMA(32, 32, 4096, 32000, 32768), .kv_heads = 8, .ffn = 14336, .norm_eps = 1e-5,
      .window = 4096}},
    {"tinyllama-1.1b",
     {LLAMA(22, 32, 2048, 32000, 2048), .kv_heads = 4, .ffn = 5632, .norm_eps = 1e-5}},
    {"smollm2-135m", {SMOLLM2(30, 9, 3, 576, 1536), .rope_theta = 1e5}},
    {"smollm2-360m", {SMOLLM2(32, 15, 5, 960, 2560), .rope_theta = 1e5}},
    {"smollm2-1.7b", {SMOLLM2(24, 32, 32, 2048, 8192), .rope_theta = 130000}},
    {"smollm3-3b",
     {LLAMA(36, 16, 2048, 128256, 65536), .kv_heads = 4, .ffn = 11008, .rope_theta = 5e6,
      .norm_eps = 1e-6, .tied = true, .unturned_period = 4, .padded = true, .pad_token = 128004}},
    {"mistral-nemo-12b", {MISTRAL(40, 32, 5120, 14336, 131072, 128000)}},
    {"codestral-22b", {MISTRAL(56, 48, 6144, 16384, 32768, 32768)}},
    {"mistral-large-123b", {MISTRAL(88, 96, 12288, 28672, 32768, 131072)}},
    {"ministral-8b",
     {LLAMA(36, 32, 4096, 131072, 32768), .kv_heads = 8, .head_dim = 128, .ffn = 12288,
      .rope_theta = 1e8, .norm_eps = 1e-5}},
    {"mistral-small-24b",
     {LLAMA(40, 32, 5120, 131072, 32768), .kv_heads = 8, .head_dim = 128, .ffn = 32768,
      .rope_theta = 1e8, .norm_eps = 1e-5}},
    {"qwen2.5-0.5b", {QWEN25(24, 14, 2, 896, 4864, 151936), .tied = true}},
    {"qwen2.5-1.5b", {QWEN25(28, 12, 2, 1536, 8960, 151936), .tied = true}},
    {"qwen2.5-3b", {QWEN25(36, 16, 2, 2048, 11008, 151936), .tied = true}},
    {"qwen2.5-7b", {QWEN25(28, 28, 4, 3584, 18944, 152064)}},
    {"qwen2.5-14b", {QWEN25(48, 40, 8, 5120, 13824, 152064)}},
    {"qwen2.5-32b", {QWEN25(64, 40, 8, 5120, 27648, 152064)}},
    {"qwen2.5-72b", {QWEN25(80, 64, 8, 8192, 29568, 152064)}},
    /* from Qwen2.5-Math-1.5B, with a head of its own */
    {"deepseek-r1-distill-qwen-1.5b", {QWEN25(28, 12, 2, 1536, 8960, 151936)}},
    {"qwen3-0.6b", {QWEN3(28, 16, 1024, 3072), .tied = true}},
    {"qwen3-1.7b", {QWEN3(28, 16, 2048, 6144), .tied = true}},
    {"qwen3-4b", {QWEN3(36, 32, 2560, 9728), .tied = true}},
    {"qwen3-8b", {QWEN3(36, 32, 4096, 12288)}},
    {"qwen3-14b", {QWEN3(40, 40, 5120, 17408)}},
    {"qwen3-32b", {QWEN3(64, 64, 5120, 25600)}},
    {"mixtral-8x7b",
     {LLAMA(32, 32, 4096, 32000, 32768), .kv_heads = 8, .ffn = 14336, .rope_theta = 1e6,
      .norm_eps = 1e-5, EXPERTS(8, 2), .norm_topk = true}},
    {"mixtral-8x22b",
     {MISTRAL(56, 48, 6144, 16384, 32768, 65536), EXPERTS(8, 2), .norm_topk = true}},
    {"qwen3-30b-a3b",
     {LLAMA(48, 32, 2048, 151936, 40960), .kv_heads = 4, .head_dim = 128, .ffn = 768,
      .rope_theta = 1e6, .norm_eps = 1e-6, .qk_norm = MT_QK_NORM_HEAD, EXPERTS(128, 8),
      .norm_topk = true}},
    {"qwen3-235b-a22b",
     {LLAMA(94, 64, 4096, 151936, 40960), .kv_heads = 4, .head_dim = 128, .ffn = 1536,
      .rope_theta = 1e6, .norm_eps = 1e-6, .qk_norm = MT_QK_NORM_HEAD, EXPERTS(128, 8),
      .norm_topk = true}},
    {"qwen3-coder-480b-a35b",
     {LLAMA(62, 96, 6144, 151936, 262144), .kv_heads = 8, .head_dim = 128, .ffn = 2560,
      .rope_theta = 1e7, .norm_eps = 1e-6, .qk_norm = MT_QK_NORM_HEAD, EXPERTS(160, 8),
      .norm_topk = true}},
    {"olmoe-1b-7b",
     {LLAMA(16, 16, 2048, 50304, 4096), .ffn = 1024, .norm_eps = 1e-5, .qk_norm = MT_QK_NORM_WIDTH,
      EXPERTS(64, 8), .padded = true, .pad_token = 1}},
    /* YaRN's mscale is in the softmax's scale */
    {"deepseek-v2-lite",
     {LLAMA(27, 16, 2048, 102400, 163840), DEEPSEEK(6, 64, 2, 40, 32), .ffn = 1408,
      .dense_layers = 1, .dense_ffn = 10944, .rope_order = MT_ROPE_COMPLEX,
      .attention_scale = 0.11472138679292612}},
    {"deepseek-v2",
     {LLAMA(60, 128, 5120, 102400, 163840), DEEPSEEK(6, 160, 2, 40, 32), .q_rank = 1536,
      .ffn = 1536, .dense_layers = 1, .dense_ffn = 12288, .rope_order = MT_ROPE_COMPLEX,
      .expert_groups = 8, .expert_topk_groups = 3, .expert_scale = 16,
      .attention_scale = 0.1352337788608801}},
    {"deepseek-v3",
     {LLAMA(61, 128, 7168, 129280, 163840), DEEPSEEK(8, 256, 1, 40, 32), .q_rank = 1536,
      .ffn = 2048, .dense_layers = 3, .dense_ffn = 18432, .rope_order = MT_ROPE_PAIRS,
      .expert_groups = 8, .expert_topk_groups = 4, .router = MT_ROUTER_SIGMOID, .norm_topk = true,
      .expert_scale = 2.5, .attention_scale = 0.1352337788608801}},
    {"kimi-k2",
     {LLAMA(61, 64, 7168, 163840, 131072), DEEPSEEK(8, 384, 1, 32, 1), .q_rank = 1536, .ffn = 2048,
      .dense_layers = 1, .dense_ffn = 18432, .rope_order = MT_ROPE_PAIRS, .rope_theta = 50000,
      .expert_groups = 1, .expert_topk_groups = 1, .router = MT_ROUTER_SIGMOID, .norm_topk = true,
      .expert_scale = 2.827, .attention_scale = 0.13086079996295008}},
    {"glm-4.5-air", {GLM4(46, 4096, 1408, 128), .dense_layers = 1, .dense_ffn = 10944}},
    {"glm-4.5",
     {GLM4(92, 5120, 1536, 160), .dense_layers = 3, .dense_ffn = 12288, .expert_scale = 2.5,
      .qk_norm = MT_QK_NORM_HEAD}},
    {"gpt-oss-20b", {GPT_OSS(24, 32)}},
    {"gpt-oss-120b", {GPT_OSS(36, 128)}},
    {"phi-3-mini",
     {LLAMA(32, 32, 3072, 32064, 4096), .ffn = 8192, .norm_eps = 1e-5, .joint_products = true,
      .window = 2047, .padded = true, .pad_token = 32000}},
    /* LongRoPE's factors, which change no shape, are not modelled */
    {"phi-3.5-mini",
     {LLAMA(32, 32, 3072, 32064, 131072), .ffn = 8192, .norm_eps = 1e-5, .joint_products = true,
      .padded = true, .pad_token = 32000}},
    {"phi-4-mini",
     {LLAMA(32, 24, 3072, 200064, 131072), .kv_heads = 8, .ffn = 8192, .rope_dim = 96,
      .norm_eps = 1e-5, .joint_products = true, .tied = true, .padded = true, .pad_token = 199999}},
    {"phi-4",
     {LLAMA(40, 40, 5120, 100352, 16384), .kv_heads = 10, .ffn = 17920, .rope_theta = 250000,
      .norm_eps = 1e-5, .joint_products = true, .padded = true, .pad_token = 100349}},
    {"olmo-2-1b", {OLMO(16, 16, 2048, 8192, 100352, 4096)}},
    {"olmo-2-7b", {OLMO(32, 32, 4096, 11008, 100352, 4096)}},
    {"olmo-2-13b", {OLMO(40, 40, 5120, 13824, 100352, 4096)}},
    {"olmo-2-32b", {OLMO(64, 40, 5120, 27648, 100352, 4096), .kv_heads = 8}},
    {"olmo-3-7b",
     {OLMO(32, 32, 4096, 11008, 100278, 65536), .window = 4096, .local_theta = 5e5,
      .local_period = 4}},
    {"olmo-3-32b",
     {OLMO(64, 40, 5120, 27648, 100278, 65536), .kv_heads = 8, .window = 4096, .local_theta = 5e5,
      .local_period = 4}},
    {"yi-6b", {YI(32, 32, 4, 4096, 11008)}},
    {"yi-9b", {YI(48, 32, 4, 4096, 11008)}},
    {"yi-34b", {YI(60, 56, 8, 7168, 20480)}},
    {"falcon3-1b", {FALCON3(18, 8, 2048, 8192, 4096)}},
    {"falcon3-3b", {FALCON3(22, 12, 3072, 9216, 32768)}},
    {"falcon3-7b", {FALCON3(28, 12, 3072, 23040, 32768)}},
    {"falcon3-10b", {FALCON3(40, 12, 3072, 23040, 32768)}},
    {"deepseek-coder-1.3b", {DEEPSEEK_CODER(24, 16, 16, 2048, 5504)}},
    {"deepseek-coder-6.7b", {DEEPSEEK_CODER(32, 32, 32, 4096, 11008)}},
    {"deepseek-coder-33b", {DEEPSEEK_CODER(62, 56, 8, 7168, 19200)}},
    {"deepseek-llm-7b", {LLAMA(30, 32, 4096, 102400, 4096), .ffn = 11008}},
    {"deepseek-llm-67b", {LLAMA(95, 64, 8192, 102400, 4096), .kv_heads = 8, .ffn = 22016}},
    {"open-llama-3b", {LLAMA(26, 32, 3200, 32000, 2048), .ffn = 8640}},
    {"solar-10.7b",
     {LLAMA(48, 32, 4096, 32000, 4096), .kv_heads = 8, .ffn = 14336, .norm_eps = 1e-5}},
    {"gemma-2b", {GEMMA(18, 8, 1, 2048, 16384)}},
    {"gemma-7b", {GEMMA(28, 16, 16, 3072, 24576)}},
    {"gemma-2-2b", {GEMMA2(26, 8, 4, 2304, 9216), .head_dim = 256, .attention_scale = 1.0 / 16}},
    {"gemma-2-9b", {GEMMA2(42, 16, 8, 3584, 14336), .head_dim = 256, .attention_scale = 1.0 / 16}},
    {"gemma-2-27b",
     {GEMMA2(46, 32, 16, 4608, 36864), .head_dim = 128, .attention_scale = 1.0 / 12}},
    /* text alone, without the larger ones' vision */
    {"gemma-3-270m",
     {GEMMA3(18, 4, 640, 262144, 32768), .kv_heads = 1, .head_dim = 256, .ffn = 2048, .window = 512,
      .attention_scale = 1.0 / 16}},
    {"gemma-3-1b",
     {GEMMA3(26, 4, 1152, 262144, 32768), .kv_heads = 1, .head_dim = 256, .ffn = 6912,
      .window = 512, .attention_scale = 1.0 / 16}},
    {"gemma-3-4b",
     {GEMMA3(34, 8, 2560, 262208, 131072), .kv_heads = 4, .head_dim = 256, .ffn = 10240,
      .window = 1024, .attention_scale = 1.0 / 16}},
    {"gemma-3-12b",
     {GEMMA3(48, 16, 3840, 262208, 131072), .kv_heads = 8, .head_dim = 256, .ffn = 15360,
      .window = 1024, .attention_scale = 1.0 / 16}},
    {"gemma-3-27b",
     {GEMMA3(62, 32, 5376, 262208, 131072), .kv_heads = 16, .head_dim = 128, .ffn = 21504,
      .window = 1024, .attention_scale = 0.0771516749810460}},
};
#define N_PRESETS (sizeof presets / sizeof presets[0])

const char *mt_model_preset_name(size_t i) { return i < N_PRESETS ? presets[i].name : NULL; }

mt_status mt_model_preset(const char *name, mt_model_config *out)
{
    const char *names[N_PRESETS];
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "preset: the result is NULL");
    for (size_t i = 0; i < N_PRESETS; i++) names[i] = presets[i].name;
    int i = name ? mti_find_word(names, (int)N_PRESETS, name) : -1;
    if (i < 0) i = mti_choose("preset", names, (int)N_PRESETS, name);
    if (i < 0) return MT_ERR_ARGUMENT;
    *out = presets[i].config;
    return MT_OK;
}
