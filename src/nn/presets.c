/* presets.c: models by name. */
#include "nn/model.h"

#define SIZES(l, a, d, v, s)                                                                       \
    .layers = (l), .heads = (a), .hidden = (d), .vocab = (v), .context = (s)
#define GPT(l, a, d, v, s)   .kind = MT_MODEL_GPT, .causal = true, SIZES(l, a, d, v, s)
#define BERT(l, a, d, v, s)  .kind = MT_MODEL_BERT, .act = MT_ACT_GELU, SIZES(l, a, d, v, s)
#define LLAMA(l, a, d, v, s) .kind = MT_MODEL_LLAMA, .causal = true, SIZES(l, a, d, v, s)

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
    /* Radford et al. 2019 */
    {"gpt2", {GPT(12, 12, 768, 50257, 1024), .act = MT_ACT_GELU_TANH}},
    {"gpt2-medium", {GPT(24, 16, 1024, 50257, 1024), .act = MT_ACT_GELU_TANH}},
    {"gpt2-large", {GPT(36, 20, 1280, 50257, 1024), .act = MT_ACT_GELU_TANH}},
    {"gpt2-xl", {GPT(48, 25, 1600, 50257, 1024), .act = MT_ACT_GELU_TANH}},
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
    /* Touvron et al. 2023, table 2 */
    {"llama-7b", {LLAMA(32, 32, 4096, 32000, 2048)}},
    {"llama-13b", {LLAMA(40, 40, 5120, 32000, 2048)}},
    {"llama-33b", {LLAMA(60, 52, 6656, 32000, 2048)}},
    {"llama-65b", {LLAMA(80, 64, 8192, 32000, 2048)}},
    /* Grattafiori et al. 2024, table 3; the scaling of its rotary frequencies, which changes no
     * shape, is not modelled */
    {"llama-3.1-8b",
     {LLAMA(32, 32, 4096, 128256, 131072), .kv_heads = 8, .ffn = 14336, .rope_theta = 500000,
      .norm_eps = 1e-5}},
    {"llama-3.1-70b",
     {LLAMA(80, 64, 8192, 128256, 131072), .kv_heads = 8, .ffn = 28672, .rope_theta = 500000,
      .norm_eps = 1e-5}},
};
#define N_PRESETS (sizeof presets / sizeof presets[0])

const char *mt_model_preset_name(size_t i) { return i < N_PRESETS ? presets[i].name : NULL; }

mt_status mt_model_preset(const char *name, mt_model_config *out)
{
    const char *names[N_PRESETS];
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "preset: the result is NULL");
    for (size_t i = 0; i < N_PRESETS; i++) names[i] = presets[i].name;
    int i = mti_choose("preset", names, (int)N_PRESETS, name);
    if (i < 0) return MT_ERR_ARGUMENT;
    *out = presets[i].config;
    return MT_OK;
}
