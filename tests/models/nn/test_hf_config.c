/* Hugging Face's config.json: published files make models of the published sizes; bad files are
 * refused with the reason. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "files/files.h"
#include <math.h>
#include "mtt.h"

static char notes[MT_HF_NOTES];

static mt_model_config read_file(const char *name)
{
    char path[512];
    mt_model_config c;
    snprintf(path, sizeof path, "%s/%s.json", CONFIGS, name);
    mtt_ok(mt_model_config_from_hf_file(path, &c, notes, sizeof notes));
    return c;
}

static void published_files_have_the_published_numbers_of_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t n;
    } cases[] = {{"gpt2", 124439808},
                 {"llama-2-7b", 6738415616},
                 {"llama-2-70b", 68976648192},
                 {"llama-3.1-8b", 8030261248},
                 {"mistral-7b", 7241732096},
                 {"qwen2-7b", 7615616512},
                 {"qwen2-0.5b", 494032768},
                 {"bert-base-uncased", 109514298},
                 {"qwen3-0.6b", 596049920},
                 {"qwen3-8b", 8190735360},
                 {"qwen3-32b", 32762123264},
                 {"olmo-2-1b", 1484916736},
                 {"olmo-2-7b", 7298617344},
                 {"olmo-3-7b", 7298011136},
                 {"smollm2-135m", 134515008},
                 {"smollm2-1.7b", 1711376384},
                 {"phi-3-mini-4k", 3821079552},
                 {"phi-4", 14659507200},
                 {"roberta-base", 124697433},
                 {"roberta-large", 355412057},
                 {"gemma-2b", 2506172416},
                 {"gemma-7b", 8537680896},
                 {"gemma-2-2b", 2614341888},
                 {"gemma-2-9b", 9241705984},
                 {"gemma-3-1b", 999885952},
                 {"llama-3.2-3b", 3212749824},
                 {"mixtral-8x7b", 46702792704},
                 {"qwen3-30b-a3b", 30532122624},
                 {"olmoe-1b-7b", 6919161856},
                 {"deepseek-v2-lite", 15706484224},
                 {"gpt-oss-20b", 20914757184},
                 {"deepseek-v3", 671026404352},
                 {"glm-4.5-air", 106852245504},
                 {"glm-4.5", 352797814784},
                 {"kimi-k2", 1026408209408},
                 {"qwen3-235b-a22b", 235093634560},
                 {"all-minilm-l6-v2", 22713216},
                 {"opt-125m", 125239296},
                 {"smollm3-3b", 3075098624},
                 {"pythia-1b", 1011781632}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mt_model_config c = read_file(cases[i].name);
        mt_device *meta = mt_device_open("meta");
        mt_module *m = mt_model_new(meta, &c);
        if (!m) fail_msg("%s: %s", cases[i].name, mt_last_error());
        uint64_t made, said;
        mtt_ok(mt_module_size(m, &made, NULL));
        mtt_ok(mt_model_config_params(&c, &said));
        if (made != cases[i].n || said != made)
            fail_msg("%s: %llu parameters, not %llu", cases[i].name, (unsigned long long)made,
                     (unsigned long long)cases[i].n);
        mt_module_free(m);
        mt_device_release(meta);
    }
}

/* Their tables of parameters: Jiang et al. 2024; Qwen3's report; Muennighoff et al. 2024. The file
 * and the preset of the name are one model. */
static void a_token_meets_the_published_number_of_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t n;
    } cases[] = {{"mixtral-8x7b", 12879925248}, {"qwen3-30b-a3b", 3353032704},
                 {"olmoe-1b-7b", 1282017280},   {"deepseek-v2-lite", 2661150208},
                 {"gpt-oss-20b", 4187440704}, /* 3.6 billion besides the embedding */
                 {"deepseek-v3", 37552282624},  {"llama-2-7b", 6738415616},
                 {"glm-4.5-air", 13424123904},  {"glm-4.5", 33632251904},
                 {"kimi-k2", 32861477888},      {"qwen3-235b-a22b", 22190763520}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mt_model_config c = read_file(cases[i].name), preset;
        uint64_t active, all;
        mtt_ok(mt_model_config_active_params(&c, &active));
        assert_int_equal(active, cases[i].n);
        if (!c.experts) continue;
        mtt_ok(mt_model_preset(cases[i].name, &preset));
        preset.dtype = c.dtype;
        preset.causal = c.causal; /* which a llama is anyway */
        char text[2][MT_MODEL_CONFIG_TEXT];
        mt_model_config resolved[2];
        mtt_ok(mt_model_config_resolve(&c, &resolved[0]));
        mtt_ok(mt_model_config_resolve(&preset, &resolved[1]));
        for (int k = 0; k < 2; k++)
            mtt_ok(mt_model_config_to_json(&resolved[k], text[k], sizeof text[k]));
        assert_string_equal(text[0], text[1]);
        mtt_ok(mt_model_config_params(&preset, &all));
        assert_true(all > active);
    }
}

/* The checkpoint of DeepSeek-V3 has 684,489,845,504 values: with those of its module for
 * predictions ahead, which has copies of embedding and head, and a bias of the choice for each
 * expert of 59 layers. README_WEIGHTS.md counts the module without its first product: 11.5 billion,
 * of which a token meets 2.4 with embedding and head. */
static void the_module_for_predictions_ahead_has_the_published_number_of_parameters(void **state)
{
    (void)state;
    mt_model_config c = read_file("deepseek-v3");
    uint64_t all, with, active[2];
    mtt_ok(mt_model_config_params(&c, &all));
    mtt_ok(mt_model_config_active_params(&c, &active[0]));
    c.mtp_layers = 1;
    mtt_ok(mt_model_config_params(&c, &with));
    mtt_ok(mt_model_config_active_params(&c, &active[1]));
    assert_int_equal(with - all, 11610067968);
    assert_int_equal(with + 2 * (uint64_t)(c.vocab * c.hidden) + 59 * 256, 684489845504);
    const uint64_t ends = 2 * (uint64_t)(c.vocab * c.hidden), first = 2 * 7168 * 7168;
    assert_int_equal((with - all - first) / 100000000, 115);
    assert_int_equal((active[1] - active[0] + ends - first) / 100000000, 24);
    mt_device *meta = mt_device_open("meta");
    mt_module *m = mt_model_new(meta, &c);
    mtt_ok(mt_module_size(m, &all, NULL));
    assert_int_equal(all, with);
    mt_module_free(m);
    mt_device_release(meta);
}

static void the_files_values_are_in_the_configuration(void **state)
{
    (void)state;
    mt_model_config c = read_file("llama-3.1-8b");
    assert_int_equal(c.kv_heads, 8);
    assert_int_equal(c.context, 131072);
    assert_int_equal(c.dtype, MT_BF16);
    assert_true(c.rope_theta == 500000 && c.norm_eps == 1e-5 && c.dropout == 0);
    assert_false(c.qkv_bias || c.tied);
    assert_true(c.yarn_factor == 8 && c.yarn_context == 8192 && c.yarn_ramp == MT_RAMP_TURNS);
    assert_true(c.yarn_fast == 4 && c.yarn_slow == 1 && c.yarn_scale == 0);
    c = read_file("qwen2-0.5b");
    assert_true(c.qkv_bias && c.tied && c.rope_theta == 1e6);
    c = read_file("qwen3-32b");
    assert_int_equal(c.head_dim, 128); /* and 5120 / 64 is 80 */
    assert_int_equal(c.qk_norm, MT_QK_NORM_HEAD);
    c = read_file("olmo-2-7b");
    assert_true(c.norm == MT_NORM_AFTER && c.qk_norm == MT_QK_NORM_WIDTH && c.window == 0);
    c = read_file("olmo-3-7b");
    assert_true(c.norm == MT_NORM_AFTER && c.qk_norm == MT_QK_NORM_WIDTH && c.window == 4096);
    assert_true(c.rope_theta == 5e5 && c.local_theta == 5e5 && c.local_period == 4);
    assert_true(c.norm_eps == 1e-6 && c.pad_token == 100277);
    assert_true(c.yarn_factor == 8 && c.yarn_context == 8192 && c.yarn_ramp == MT_RAMP_PAIRS);
    assert_true(c.yarn_scale == 1.2079441541679836 && !c.yarn_exact);
    c = read_file("gpt-oss-20b");
    assert_true(c.sinks && c.qkv_bias && c.proj_bias && c.window == 128 && c.local_period == 2);
    assert_true(c.yarn_factor == 32 && c.yarn_context == 4096 && c.yarn_exact);
    assert_true(fabs(c.yarn_scale - 1.3465735902799727) < 1e-15);
    assert_non_null(strstr(notes, "quantization_config: "));
    c = read_file("gemma-2-9b");
    assert_true(c.attention_cap == 50 && c.logit_cap == 30 && c.attention_scale == 1.0 / 16);
    assert_true(c.window == 4096 && c.local_theta == 0 && c.tied && c.local_period == 2);
    c = read_file("gemma-3-1b");
    assert_true(c.attention_cap == 0 && c.logit_cap == 0 && c.attention == MT_ATTENTION_FLASH);
    assert_true(c.window == 512 && c.rope_theta == 1e6 && c.local_theta == 1e4);
    assert_int_equal(c.local_period, 6);
    c = read_file("pythia-1b");
    assert_true(c.kind == MT_MODEL_GPT && c.norm == MT_NORM_PARALLEL && c.untied);
    assert_true(c.joint_products && c.qkv_by_head && c.rope_dim == 64 && c.rope_theta == 1e4);
    c = read_file("smollm3-3b");
    assert_true(c.unturned_period == 4 && c.tied && c.rope_theta == 5e6 && c.window == 0);
    assert_null(strstr(notes, "no_rope"));
    c = read_file("gpt2");
    assert_true(c.kind == MT_MODEL_GPT && c.act == MT_ACT_GELU_TANH && c.dropout == 0.1);
    assert_int_equal(c.dtype, MT_F32);
    c = read_file("roberta-base");
    assert_int_equal(c.position_offset, 2);
    assert_int_equal(c.context, 512); /* of 514 rows */
    assert_int_equal(c.token_types, 1);
    c = read_file("bert-base-uncased");
    assert_true(c.kind == MT_MODEL_BERT && c.act == MT_ACT_GELU && c.norm_eps == 1e-12);
    assert_false(c.pooled);
    c = read_file("all-minilm-l6-v2");
    assert_true(c.kind == MT_MODEL_BERT && c.pooled && c.layers == 6);
}

static void ignored_keys_and_features_not_modelled_are_listed(void **state)
{
    (void)state;
    read_file("llama-3.1-8b");
    assert_null(strstr(notes, "rope_scaling")); /* it is modelled */
    assert_non_null(strstr(notes, "ignored: "));
    assert_non_null(strstr(notes, "use_cache"));
    mt_model_config windowed = read_file("mistral-7b");
    assert_null(strstr(notes, "sliding_window")); /* it is modelled */
    assert_true(windowed.window == 4096 && windowed.local_period == 0);
    windowed = read_file("qwen2-7b"); /* switched off there */
    assert_null(strstr(notes, "sliding_window: "));
    assert_int_equal(windowed.window, 0);
    read_file("llama-2-7b");
    assert_null(strstr(notes, "rope_scaling"));
    char cut[10];
    mt_model_config c;
    char path[512];
    snprintf(path, sizeof path, "%s/gpt2.json", CONFIGS);
    mtt_ok(mt_model_config_from_hf_file(path, &c, cut, sizeof cut));
    assert_int_equal(strlen(cut), 9);
    mtt_ok(mt_model_config_from_hf_file(path, &c, NULL, 0));
}

/* ---- bad files ---- */

#define LLAMA                                                                                      \
    "\"model_type\":\"llama\",\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":"  \
    "2,"                                                                                           \
    "\"max_position_embeddings\":32"

#define DEEPSEEK(version, groups, met, rope)                                                       \
    "{\"model_type\":\"deepseek_v" version                                                         \
    "\",\"hidden_size\":16,\"moe_intermediate_size\":8,\"intermediate_size\":8,"                   \
    "\"num_hidden_layers\":2,\"num_attention_heads\":2,\"vocab_size\":9,"                          \
    "\"max_position_embeddings\":8,\"n_routed_experts\":4,\"num_experts_per_tok\":2,"              \
    "\"n_shared_experts\":1,\"kv_lora_rank\":4,\"qk_nope_head_dim\":4,\"v_head_dim\":4,"           \
    "\"qk_rope_head_dim\":" rope ",\"n_group\":" groups ",\"topk_group\":" met                     \
    ",\"routed_scaling_factor\":2.5"
#define QWEN3_MOE                                                                                  \
    "\"model_type\":\"qwen3_moe\",\"hidden_size\":64,\"moe_intermediate_size\":96,"                \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"vocab_size\":"  \
    "9,"                                                                                           \
    "\"max_position_embeddings\":32"

#define SMOLLM3                                                                                    \
    "\"model_type\":\"smollm3\",\"hidden_size\":8,\"intermediate_size\":8,\"num_hidden_layers\":"  \
    "4,"                                                                                           \
    "\"num_attention_heads\":2,\"num_key_value_heads\":2,\"vocab_size\":9,"                        \
    "\"max_position_embeddings\":8,\"pad_token_id\":0"

static const struct bad {
    const char *json, *words[2];
    mt_status status;
} bad[] = {
    {"{" LLAMA ",\"vocab_size\":9}", {"num_attention_heads", "missing"}, MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":0}",
     {"\"num_attention_heads\" is 0", "from 1"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":3}",
     {"heads is 3", "divisor of hidden"},
     MT_ERR_ARGUMENT},
    {"{" LLAMA ",\"vocab_size\":99999999999,\"num_attention_heads\":4}",
     {"\"vocab_size\" is 99999999999", "2147483648"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":1e30,\"num_attention_heads\":4}",
     {"\"vocab_size\"", "whole number"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":999999999999999999999999,\"num_attention_heads\":4}",
     {"line 1", "too big"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":null,\"num_attention_heads\":4}",
     {"\"vocab_size\" is null", "whole number"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4,\"attention_bias\":true}",
     {"\"attention_bias\" is true", "no such thing"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4,\"num_local_experts\":8}",
     {"\"num_local_experts\" is 8", "need a known key"},
     MT_ERR_FORMAT},
    {"{" QWEN3_MOE ",\"num_experts\":4,\"num_experts_per_tok\":5}",
     {"experts_per_token is 5", "need 1 to the number of experts, 4"},
     MT_ERR_ARGUMENT},
    {"{" QWEN3_MOE ",\"num_experts_per_tok\":2}",
     {"experts_per_token is 2", "need 1 to the number of experts, 0"},
     MT_ERR_ARGUMENT},
    {"{" QWEN3_MOE ",\"num_experts\":4}", {"\"num_experts_per_tok\" is missing"}, MT_ERR_FORMAT},
    {"{" QWEN3_MOE ",\"num_experts\":4,\"num_experts_per_tok\":2,\"mlp_only_layers\":[0]}",
     {"\"mlp_only_layers\" is [0]", "all layers have experts"},
     MT_ERR_FORMAT},
    {"{" QWEN3_MOE ",\"num_experts\":4,\"num_experts_per_tok\":2,\"decoder_sparse_step\":2}",
     {"\"decoder_sparse_step\" is 2", "all layers have experts"},
     MT_ERR_FORMAT},
    {"{" QWEN3_MOE
     ",\"num_experts\":4,\"num_experts_per_tok\":2,\"shared_expert_intermediate_size\":8}",
     {"\"shared_expert_intermediate_size\" is 8", "need a known key"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4,\"partial_rotary_factor\":0.1}",
     {"rope_dim is 1", "an even number from 2"},
     MT_ERR_ARGUMENT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4,\"partial_rotary_factor\":0}",
     {"\"partial_rotary_factor\" is 0", "above 0, and 1 at most"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"ernie4_5_moe\",\"moe_num_experts\":64}",
     {"\"ernie4_5_moe\" is unknown", "mixtral, qwen3_moe, "},
     MT_ERR_UNSUPPORTED},
    {DEEPSEEK("2", "1", "2", "4") ",\"topk_method\":\"noaux_tc\"}",
     {"\"topk_method\" is \"noaux_tc\"", "need greedy or group_limited_greedy"},
     MT_ERR_FORMAT},
    {DEEPSEEK("2", "1", "2", "4") ",\"norm_topk_prob\":true}",
     {"\"norm_topk_prob\" is true", "Transformers ignores it"},
     MT_ERR_FORMAT},
    {DEEPSEEK("3", "3", "2", "4") "}",
     {"expert_groups is 3", "a divisor of the number of experts, 4"},
     MT_ERR_ARGUMENT},
    {DEEPSEEK("3", "4", "2", "4") "}",
     {"router is sigmoid", "groups of at least 2"},
     MT_ERR_ARGUMENT},
    {DEEPSEEK("3", "2", "3", "4") "}",
     {"expert_topk_groups is 3", "1 to the number of groups, 2"},
     MT_ERR_ARGUMENT},
    {DEEPSEEK("3", "2", "2", "3") "}", {"rope_dim is 3", "an even number from 2"}, MT_ERR_ARGUMENT},
    {"{\"model_type\":\"llava\",\"text_config\":{\"vocab_size\":9}}",
     {"neither \"model_type\"", "need one of"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4,\"rope_interleaved\":true}",
     {"\"rope_interleaved\" is true", "no such thing"},
     MT_ERR_FORMAT},
    {"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 134\n",
     {"is a Git LFS pointer", "git lfs pull"},
     MT_ERR_FORMAT},
    {"<!DOCTYPE html><html></html>", {"is a web page", "download the file"}, MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4,\"hidden_act\":\"gelu\"}",
     {"\"hidden_act\" is \"gelu\"", "silu"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4,\"torch_dtype\":\"int8\"}",
     {"\"torch_dtype\" is \"int8\"", "bfloat16"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4,\"attention_dropout\":0.1}",
     {"\"attention_dropout\" is 0.1", "need 0"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4,\"attention_dropout\":\"0\"}",
     {"\"attention_dropout\" is \"0\"", "need 0"},
     MT_ERR_FORMAT},
    {"{" LLAMA ",\"vocab_size\":9,\"vocab_size\":10}", {"line 1", "duplicate"}, MT_ERR_FORMAT},
    {"{\"model_type\":\"gpt2\",\"attn_pdrop\":0.1,\"embd_pdrop\":0.2}",
     {"\"attn_pdrop\" is 0.1", "\"embd_pdrop\" is 0.2"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"roberta\",\"hidden_act\":\"relu\"}",
     {"\"hidden_act\"", "gelu"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"roberta\",\"pad_token_id\":-1}",
     {"\"pad_token_id\" is -1", "from 0"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"roberta\",\"vocab_size\":9,\"hidden_size\":8,\"num_hidden_layers\":1,"
     "\"num_attention_heads\":2,\"intermediate_size\":8,\"max_position_embeddings\":2}",
     {"\"max_position_embeddings\" is 2", "2 of padding"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"opt\",\"do_layer_norm_before\":false}",
     {"\"do_layer_norm_before\"", "true: the model here has its norms before"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"opt\",\"vocab_size\":9,\"hidden_size\":8,\"num_hidden_layers\":1,"
     "\"num_attention_heads\":2,\"ffn_dim\":8,\"max_position_embeddings\":2,"
     "\"word_embed_proj_dim\":4}",
     {"\"word_embed_proj_dim\" is 4", "need that of \"hidden_size\""},
     MT_ERR_FORMAT},
    {"{" SMOLLM3 ",\"no_rope_layers\":[1,0,0,1]}",
     {"\"no_rope_layers\" has the first 0 for layer 1 and another order at layer 2",
      "need a 0 for every 2th layer"},
     MT_ERR_UNSUPPORTED},
    {"{" SMOLLM3 ",\"no_rope_layers\":[1,1]}",
     {"\"no_rope_layers\" has 2 entries", "one for each of 4 layers"},
     MT_ERR_FORMAT},
    {"{" SMOLLM3 ",\"no_rope_layers\":[1,1,2,1]}",
     {"\"no_rope_layers\" is [1,1,2,1]", "1 or 0 for each layer"},
     MT_ERR_FORMAT},
    {"{" SMOLLM3 ",\"no_rope_layers\":[]}",
     {"\"no_rope_layers\" is []", "1 or 0 for each layer"},
     MT_ERR_FORMAT},
    {"{" SMOLLM3 ",\"use_sliding_window\":true}",
     {"\"use_sliding_window\" is true", "false: layers have no windows"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"gpt_neox\",\"attention_bias\":false}",
     {"\"attention_bias\" is false", "true: the model here has biases always"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"gpt_neox\",\"use_parallel_residual\":1}",
     {"\"use_parallel_residual\" is 1", "true or false"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"gpt_neox\",\"hidden_dropout\":0.1,\"attention_dropout\":0.2}",
     {"\"hidden_dropout\" is 0.1", "one probability"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"bert\",\"position_embedding_type\":\"relative_key\"}",
     {"\"position_embedding_type\"", "absolute"},
     MT_ERR_FORMAT},
    {"{\"model_type\":\"mamba\"}",
     {"\"mamba\" is unknown",
      "gpt2, opt, gpt_neox, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, olmoe, "
      "gpt_oss, deepseek_v2, deepseek_v3, kimi_k2, glm4_moe, olmo2, olmo3, "
      "phi3, smollm3, gemma, gemma2, gemma3_text, bert, roberta"},
     MT_ERR_UNSUPPORTED},
    {"{\"architectures\":[\"LlamaGuardForCausalLM\"]}",
     {"\"LlamaGuardForCausalLM\" is unknown", "LlamaForCausalLM"},
     MT_ERR_UNSUPPORTED},
    {"{\"hidden_size\":3}", {"neither \"model_type\"", "gpt2"}, MT_ERR_FORMAT},
    {"[1]", {"not a JSON object", ""}, MT_ERR_FORMAT},
    {"{\"model_type\":\"gpt2\"", {"line 1", "expected"}, MT_ERR_FORMAT},
    {"", {"line 1", ""}, MT_ERR_FORMAT},
};

static void bad_files_are_refused_with_the_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        mt_model_config c = {.hidden = 7};
        if (mt_model_config_from_hf(bad[i].json, &c, notes, sizeof notes) == MT_OK)
            fail_msg("taken: %s", bad[i].json);
        assert_int_equal(c.hidden, 7);
        mtt_failed(bad[i].status, bad[i].words[0], bad[i].words[1]);
    }
}

/* Layers without rotary positions, by an interval or a list, which counts where both are there. */
static void every_layer_has_the_positions_that_a_file_says(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        int64_t period;
    } cases[] = {{"", 4},
                 {",\"no_rope_layer_interval\":3", 3},
                 {",\"no_rope_layers\":[1,0,1,0],\"no_rope_layer_interval\":3", 2},
                 {",\"no_rope_layer_interval\":3,\"no_rope_layers\":[1,1,0,1,1,0,1]", 3},
                 {",\"no_rope_layers\":[0,0,0,0]", 1},
                 {",\"no_rope_layers\":[1,1,1,1]", 0},
                 {",\"no_rope_layers\":null,\"no_rope_layer_interval\":1", 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[512];
        mt_model_config c;
        snprintf(json, sizeof json, "{" SMOLLM3 "%s}", cases[i].keys);
        mtt_ok(mt_model_config_from_hf(json, &c, NULL, 0));
        assert_int_equal(c.unturned_period, cases[i].period);
        assert_true(c.rope_theta == 2e6 && c.tied);
    }
}

#define LLAMA_OF_9 LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4"

static void unknown_keys_are_told_together(void **state)
{
    (void)state;
    mt_model_config c;
    assert_int_not_equal(mt_model_config_from_hf("{" LLAMA_OF_9
                                                 ",\"heads_that_look\":3,\"depth\":{\"a\":[1]},"
                                                 "\"name\":\"x\",\"off\":false,\"ratio\":0.5}",
                                                 &c, notes, sizeof notes),
                         MT_OK);
    mtt_failed(MT_ERR_FORMAT,
               "\"heads_that_look\" is 3, \"depth\" is {\"a\":[1]}, \"ratio\" is 0.5",
               "need known keys");
    assert_int_not_equal(mt_model_config_from_hf("{" LLAMA_OF_9 ",\"depth\":1}", &c, NULL, 0),
                         MT_OK);
    mtt_failed(MT_ERR_FORMAT, "\"depth\" is 1; need a known key; remove it if");
    char text[8000] = "{" LLAMA_OF_9, *at = text + strlen(text);
    for (int i = 0; i < 200; i++) at += sprintf(at, ",\"a_key_of_some_length_%d\":1", i);
    strcpy(at, "}");
    assert_int_not_equal(mt_model_config_from_hf(text, &c, NULL, 0), MT_OK);
    mtt_failed(MT_ERR_FORMAT, "\"a_key_of_some_length_0\" is 1, ", " more; need known keys");
}

/* The beginning of a value, as JSON: whole characters in at most 60 bytes. */
static void is_quoted(const char *key, const char *value)
{
    char json[4000], wanted[200];
    mt_model_config c;
    size_t n = strlen(value);
    if (n > 60)
        for (n = 60; ((unsigned char)value[n] & 0xC0) == 0x80;) n--;
    snprintf(json, sizeof json, "{" LLAMA_OF_9 ",\"%s\":%s}", key, value);
    snprintf(wanted, sizeof wanted, "\"%s\" is %.*s%s; need ", key, (int)n, value,
             value[n] ? "..." : "");
    assert_int_not_equal(mt_model_config_from_hf(json, &c, NULL, 0), MT_OK);
    mtt_failed(MT_ERR_FORMAT, wanted);
}

static void a_value_is_quoted_from_its_beginning_however_long_it_is(void **state)
{
    (void)state;
    static const char *const letters[] = {"a", "\u00e9", "\u20ac", "\U0001d11e"};
    static const char *const keys[] = {"hidden_act", "mlp_bias", "unheard_of"};
    for (int length = 1; length < 200; length++)
        for (size_t k = 0; k < 4 * 3; k++) {
            char text[1000] = "\"b", *at = text + 2;
            for (int i = 0; i < length; i++) at += sprintf(at, "%s", letters[k % 4]);
            strcpy(at, "\"");
            if (k / 4 < 2) is_quoted(keys[k / 4], text); /* an unknown key may have any text */
            char object[2100];
            snprintf(object, sizeof object, "{\"quant_method\":%s,\"of\":[1,%s,true]}", text, text);
            is_quoted(keys[k / 4], object);
        }
}

static void keys_of_tools_and_of_other_tasks_are_passed_over(void **state)
{
    (void)state;
    mt_model_config c;
    static const char *const keys[] = {"\"transformers.js_config\":{\"dtype\":\"q4\"}",
                                       "\"is_llama_config\":true",
                                       "\"rope_interleaved\":false",
                                       "\"unsloth_fixed\":true",
                                       "\"unsloth_version\":\"2024.9\"",
                                       "\"_name_or_path\":\"./x\"",
                                       "\"_attn_implementation_autoset\":true",
                                       "\"transformers_version\":\"4.51.0\"",
                                       "\"auto_map\":{\"AutoConfig\":\"a.B\"}",
                                       "\"num_beams\":4",
                                       "\"use_bfloat16\":true"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char text[512], key[64];
        snprintf(text, sizeof text, "{" LLAMA_OF_9 ",%s}", keys[i]);
        mtt_ok(mt_model_config_from_hf(text, &c, notes, sizeof notes));
        snprintf(key, sizeof key, "%.*s", (int)strcspn(keys[i] + 1, "\""), keys[i] + 1);
        if (i != 2 && !strstr(strstr(notes, "ignored: "), key)) fail_msg("%s: %s", key, notes);
    }
}

static void a_folder_is_read_by_its_config(void **state)
{
    (void)state;
    mt_model_config c;
    char folder[] = "/tmp/memtape-folder-XXXXXX", file[64];
    assert_non_null(mkdtemp(folder));
    snprintf(file, sizeof file, "%s/config.json", folder);
    assert_int_not_equal(mt_model_config_from_hf_file(folder, &c, NULL, 0), MT_OK);
    mtt_failed(MT_ERR_IO, file, "cannot open");
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs("{" LLAMA_OF_9 "}", f);
    fclose(f);
    mtt_ok(mt_model_config_from_hf_file(folder, &c, notes, sizeof notes));
    assert_int_equal(c.vocab, 9);
    char slash[64];
    snprintf(slash, sizeof slash, "%s//", folder);
    mtt_ok(mt_model_config_from_hf_file(slash, &c, notes, sizeof notes));
    assert_int_equal(remove(file), 0);
    assert_int_equal(remove(folder), 0);
}

static void rotary_positions_are_also_read_from_their_own_object(void **state)
{
    (void)state;
    mt_model_config c;
    mtt_ok(mt_model_config_from_hf(
        "{" LLAMA ",\"vocab_size\":9,\"num_attention_heads\":4,\"rope_parameters\":"
        "{\"rope_theta\":5e5,\"rope_type\":\"longrope\"}}",
        &c, notes, sizeof notes));
    assert_true(c.rope_theta == 5e5);
    assert_non_null(strstr(notes, "rope_parameters: other angles (longrope)"));
    assert_int_not_equal(
        mt_model_config_from_hf("{" LLAMA ",\"rope_parameters\":{\"rope_type\":\"default\"}}", &c,
                                notes, sizeof notes),
        MT_OK);
    mtt_failed(MT_ERR_FORMAT, "\"rope_parameters\"", "\"rope_theta\" above 0");
}

#define SCALED(value) "{" LLAMA_OF_9 ",\"rope_scaling\":" value "}"

static void scaled_angles_are_read_or_say_what_is_missing(void **state)
{
    (void)state;
    mt_model_config c;
    mtt_ok(mt_model_config_from_hf(SCALED("{\"type\":\"linear\",\"factor\":2}"), &c, NULL, 0));
    assert_true(c.yarn_factor == 2 && c.yarn_ramp == MT_RAMP_FLAT && c.yarn_context == 0);
    mtt_ok(mt_model_config_from_hf(SCALED("{\"type\":\"dynamic\",\"factor\":2}"), &c, NULL, 0));
    assert_true(c.yarn_factor == 0);
    mtt_ok(mt_model_config_from_hf(SCALED("{\"type\":\"yarn\",\"factor\":1}"), &c, NULL, 0));
    assert_true(c.yarn_context == 32 && c.yarn_scale == 0); /* the whole context; 0.1 ln 1 + 1 */
    static const char *const cases[][3] = {
        {SCALED("3"), "rope_scaling", "an object"},
        {SCALED("{\"type\":\"linear\"}"), "\"factor\" above 0", "linear needs it"},
        {SCALED("{\"type\":\"linear\",\"factor\":-2}"), "\"factor\" above 0", "linear"},
        {SCALED("{\"type\":\"linear\",\"factor\":0.5}"), "yarn_factor is 0.5", "1 or more"},
        {SCALED("{\"type\":\"yarn\",\"factor\":2,\"beta_fast\":\"x\"}"), "\"beta_fast\"", "yarn"},
        {SCALED("{\"type\":\"yarn\",\"factor\":2,\"original_max_position_embeddings\":1e300}"),
         "original_max_position_embeddings", "a number from 1"},
        {SCALED("{\"type\":\"llama3\",\"factor\":2,\"high_freq_factor\":4}"), "\"low_freq_factor\"",
         "llama3"},
        {SCALED("{\"type\":\"llama3\",\"factor\":2,\"high_freq_factor\":4,\"low_freq_factor\":4}"),
         "yarn_slow is 4", "less than yarn_fast"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_not_equal(mt_model_config_from_hf(cases[i][0], &c, NULL, 0), MT_OK);
        mtt_failed(mt_last_status(), cases[i][1], cases[i][2]);
        mt_clear_error();
    }
}

static void json_that_is_too_deep_is_an_error(void **state)
{
    (void)state;
    enum { DEPTH = 100000 };
    mt_model_config c;
    char *text = malloc(DEPTH + 32);
    assert_non_null(text);
    int n = sprintf(text, "{\"model_type\":");
    memset(text + n, '[', DEPTH);
    text[n + DEPTH] = 0;
    assert_int_not_equal(mt_model_config_from_hf(text, &c, NULL, 0), MT_OK);
    mtt_failed(MT_ERR_FORMAT, "config.json", "depth");
    free(text);
}

static void every_truncation_of_a_file_is_an_error(void **state)
{
    (void)state;
    char path[512];
    size_t n;
    mt_model_config c;
    snprintf(path, sizeof path, "%s/qwen2-7b.json", CONFIGS);
    char *text = mti_file_read(path, 1 << 20, &n);
    assert_non_null(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == ' ')) text[--n] = 0;
    while (n-- > 0) {
        text[n] = 0;
        assert_int_equal(mt_model_config_from_hf(text, &c, notes, sizeof notes), MT_ERR_FORMAT);
        mt_clear_error();
    }
    mti_free(text);
}

static void files_that_cannot_be_read_are_errors(void **state)
{
    (void)state;
    mt_model_config c;
    assert_int_not_equal(mt_model_config_from_hf_file(CONFIGS "/none.json", &c, NULL, 0), MT_OK);
    mtt_failed(MT_ERR_IO, "none.json");
    assert_int_not_equal(mt_model_config_from_hf_file(NULL, &c, NULL, 0), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "NULL");
    assert_int_not_equal(mt_model_config_from_hf("{}", &c, NULL, 5), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "NULL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_files_have_the_published_numbers_of_parameters),
        cmocka_unit_test(a_token_meets_the_published_number_of_parameters),
        cmocka_unit_test(the_module_for_predictions_ahead_has_the_published_number_of_parameters),
        cmocka_unit_test(the_files_values_are_in_the_configuration),
        cmocka_unit_test(ignored_keys_and_features_not_modelled_are_listed),
        cmocka_unit_test(every_layer_has_the_positions_that_a_file_says),
        cmocka_unit_test(bad_files_are_refused_with_the_reason),
        cmocka_unit_test(a_value_is_quoted_from_its_beginning_however_long_it_is),
        cmocka_unit_test(unknown_keys_are_told_together),
        cmocka_unit_test(keys_of_tools_and_of_other_tasks_are_passed_over),
        cmocka_unit_test(a_folder_is_read_by_its_config),
        cmocka_unit_test(scaled_angles_are_read_or_say_what_is_missing),
        cmocka_unit_test(rotary_positions_are_also_read_from_their_own_object),
        cmocka_unit_test(json_that_is_too_deep_is_an_error),
        cmocka_unit_test(every_truncation_of_a_file_is_an_error),
        cmocka_unit_test(files_that_cannot_be_read_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
