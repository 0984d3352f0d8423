/* hf_keys.c: the table of keys. Every known key has a row here. */
#include <string.h>
#include "nn/hf_keys.h"

/* ---- the families ---- */

enum {
    GPT2 = 1,
    LLAMA = 2,
    MISTRAL = 4,
    QWEN2 = 8,
    BERT = 16,
    QWEN3 = 32,
    OLMO2 = 64,
    PHI3 = 128,
    ROBERTA = 256,
    GEMMA2 = 512,
    GEMMA3 = 1024
};
#define ROTARY (LLAMA | MISTRAL | QWEN2 | QWEN3 | OLMO2 | PHI3 | GEMMA)
#define GEMMA  (GEMMA2 | GEMMA3)
#define MASKED (BERT | ROBERTA)
#define ANY    (GPT2 | ROTARY | MASKED)

#define A_GEMMA                                                                                    \
    .kind = MT_MODEL_LLAMA, .norm = MT_NORM_AROUND, .norm_kind = MT_NORM_RMS_ONE,                  \
    .mlp = MT_MLP_GATED, .act = MT_ACT_GELU_TANH, .tied = true, .scaled_embedding = true,          \
    .fused_gelu = true, .attention_scale = 1.0 / 16, .window = 4096, .padding = 1

static const mti_hf_family families[] = {
    {"gpt2",
     "GPT2LMHeadModel",
     GPT2,
     {.kind = MT_MODEL_GPT, .act = MT_ACT_GELU_TANH, .dropout = 0.1}},
    {"llama", "LlamaForCausalLM", LLAMA, {.kind = MT_MODEL_LLAMA}},
    {"mistral", "MistralForCausalLM", MISTRAL, {.kind = MT_MODEL_LLAMA}},
    {"qwen2", "Qwen2ForCausalLM", QWEN2, {.kind = MT_MODEL_LLAMA, .qkv_bias = true}},
    {"qwen3", "Qwen3ForCausalLM", QWEN3, {.kind = MT_MODEL_LLAMA, .qk_norm = MT_QK_NORM_HEAD}},
    {"olmo2",
     "Olmo2ForCausalLM",
     OLMO2,
     {.kind = MT_MODEL_LLAMA,
      .norm = MT_NORM_AFTER,
      .qk_norm = MT_QK_NORM_WIDTH,
      .norm_eps = 1e-5,
      .padding = 2}},
    {"phi3",
     "Phi3ForCausalLM",
     PHI3,
     {.kind = MT_MODEL_LLAMA, .joint_products = true, .norm_eps = 1e-5, .padding = 32001}},
    {"gemma2",
     "Gemma2ForCausalLM",
     GEMMA2,
     {A_GEMMA, .attention = MT_ATTENTION_MATH, .attention_cap = 50, .logit_cap = 30}},
    {"gemma3_text",
     "Gemma3ForCausalLM",
     GEMMA3,
     {A_GEMMA, .qk_norm = MT_QK_NORM_HEAD, .rope_theta = 1e6, .local_theta = 1e4,
      .local_period = 6}},
    {"bert",
     "BertForMaskedLM",
     BERT,
     {.kind = MT_MODEL_BERT, .act = MT_ACT_GELU, .dropout = 0.1, .padding = 1}},
    {"roberta",
     "RobertaForMaskedLM",
     ROBERTA,
     {.kind = MT_MODEL_BERT,
      .act = MT_ACT_GELU,
      .dropout = 0.1,
      .position_offset = 2,
      .padding = 2}},
    {"xlm-roberta",
     "XLMRobertaForMaskedLM",
     ROBERTA,
     {.kind = MT_MODEL_BERT,
      .act = MT_ACT_GELU,
      .dropout = 0.1,
      .position_offset = 2,
      .padding = 2}},
};

/* ---- the keys ---- */

#define OTHER_ANGLES "other angles, which are not modelled; the same bytes"

static const mti_hf_rule rules[] = {
#define AT(field) offsetof(mt_model_config, field)
    {"vocab_size", ANY, MTI_HF_SIZE, AT(vocab), ANY},
    {"n_embd", GPT2, MTI_HF_SIZE, AT(hidden), GPT2},
    {"n_layer", GPT2, MTI_HF_SIZE, AT(layers), GPT2},
    {"n_head", GPT2, MTI_HF_SIZE, AT(heads), GPT2},
    {"n_positions", GPT2, MTI_HF_SIZE, AT(context), GPT2},
    {"n_inner", GPT2, MTI_HF_SIZE, AT(ffn)},
    {"hidden_size", ROTARY | MASKED, MTI_HF_SIZE, AT(hidden), ANY},
    {"num_hidden_layers", ROTARY | MASKED, MTI_HF_SIZE, AT(layers), ANY},
    {"num_attention_heads", ROTARY | MASKED, MTI_HF_SIZE, AT(heads), ANY},
    {"num_key_value_heads", ROTARY, MTI_HF_SIZE, AT(kv_heads), MISTRAL | QWEN2 | QWEN3 | GEMMA},
    {"head_dim", ROTARY, MTI_HF_SIZE, AT(head_dim), QWEN3 | GEMMA},
    {"intermediate_size", ROTARY | MASKED, MTI_HF_SIZE, AT(ffn), ANY},
    {"max_position_embeddings", ROTARY | MASKED, MTI_HF_SIZE, AT(context), ANY},
    {"type_vocab_size", MASKED, MTI_HF_SIZE, AT(token_types)},
    {"layer_norm_epsilon", GPT2, MTI_HF_REAL, AT(norm_eps)},
    {"layer_norm_eps", MASKED, MTI_HF_REAL, AT(norm_eps)},
    {"rms_norm_eps", ROTARY, MTI_HF_REAL, AT(norm_eps)},
    {"rope_theta", ROTARY, MTI_HF_REAL, AT(rope_theta)},
    {"attn_pdrop", GPT2, MTI_HF_DROPOUT},
    {"embd_pdrop", GPT2, MTI_HF_DROPOUT},
    {"resid_pdrop", GPT2, MTI_HF_DROPOUT},
    {"hidden_dropout_prob", MASKED, MTI_HF_DROPOUT},
    {"attention_probs_dropout_prob", MASKED, MTI_HF_DROPOUT},
    {"attention_dropout", ROTARY, MTI_HF_ZERO},
    {"activation_function", GPT2, MTI_HF_ACT},
    {"hidden_act", BERT, MTI_HF_ACT},
    {"hidden_act", ROBERTA, MTI_HF_GELU},
    {"pad_token_id", ROTARY | MASKED, MTI_HF_PADDING},
    {"hidden_act", ROTARY & ~GEMMA, MTI_HF_SILU},
    {"hidden_act", GEMMA, MTI_HF_IDLE}, /* hidden_activation tells */
    {"hidden_activation", GEMMA, MTI_HF_ACT},
    {"query_pre_attn_scalar", GEMMA, MTI_HF_ROOT, AT(attention_scale)},
    {"attn_logit_softcapping", GEMMA, MTI_HF_CAP, AT(attention_cap)},
    {"final_logit_softcapping", GEMMA, MTI_HF_CAP, AT(logit_cap)},
    {"rope_local_base_freq", GEMMA3, MTI_HF_REAL, AT(local_theta)},
    {"sliding_window_pattern", GEMMA3, MTI_HF_SIZE, AT(local_period)},
    {"_sliding_window_pattern", GEMMA3, MTI_HF_SIZE, AT(local_period)},
    {"sliding_window_size", GEMMA2, MTI_HF_IDLE}, /* sliding_window tells */
    {"use_bidirectional_attention", GEMMA3, MTI_HF_NO},
    {"tie_word_embeddings", GPT2 | ROTARY, MTI_HF_TIED},
    {"tie_word_embeddings", MASKED, MTI_HF_YES},
    {"torch_dtype", ANY, MTI_HF_DTYPE},
    {"dtype", ANY, MTI_HF_DTYPE},
    /* other architectures under the same name */
    {"add_cross_attention", ANY, MTI_HF_NO},
    {"is_encoder_decoder", ANY, MTI_HF_NO},
    {"is_decoder", MASKED, MTI_HF_NO},
    {"chunk_size_feed_forward", ANY, MTI_HF_ZERO},
    {"pruned_heads", ANY, MTI_HF_NO},
    {"quantization_config", ANY, MTI_HF_NO},
    {"model_type", ANY, MTI_HF_KIND},
    {"architectures", ANY, MTI_HF_HEADED},
    {"scale_attn_weights", GPT2, MTI_HF_YES},
    {"scale_attn_by_inverse_layer_idx", GPT2, MTI_HF_NO},
    {"reorder_and_upcast_attn", GPT2, MTI_HF_NO},
    {"position_embedding_type", MASKED, MTI_HF_ABSOLUTE},
    {"attention_bias", ROTARY, MTI_HF_NO},
    {"mlp_bias", ROTARY, MTI_HF_NO},
    {"resid_pdrop", PHI3, MTI_HF_ZERO},
    {"embd_pdrop", PHI3, MTI_HF_ZERO},
    {"partial_rotary_factor", ROTARY, MTI_HF_ONE},
    {"rope_interleaved", ROTARY, MTI_HF_NO},
    {"rope_scaling", ROTARY, MTI_HF_NOTED, 0, 0, OTHER_ANGLES},
    {"rope_parameters", ROTARY, MTI_HF_ROPE, AT(rope_theta), 0, OTHER_ANGLES},
    {"sliding_window", MISTRAL | QWEN2 | QWEN3 | PHI3 | GEMMA, MTI_HF_WINDOW, AT(window), 0,
     "attention sees all positions here, which keeps the same bytes; so longer sequences run on "
     "meta only"},
    {"use_sliding_window", QWEN2 | QWEN3, MTI_HF_IDLE},
    {"max_window_layers", QWEN2 | QWEN3, MTI_HF_IDLE},
    {"layer_types", ROTARY, MTI_HF_LAYERS},
#undef AT
};

/* ---- keys without an effect on a training step; strings and empty values need no row ---- */

static const char *const idle[] = {
    "n_ctx", "initializer_range", "use_cache", "pretraining_tp", "gradient_checkpointing",
    "original_max_position_embeddings", "is_llama_config",
    /* tokens with a meaning */
    "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id", "sep_token_id",
    "decoder_start_token_id", "forced_bos_token_id", "forced_eos_token_id", "suppress_tokens",
    "begin_suppress_tokens", "bad_words_ids",
    /* other tasks' heads */
    "task_specific_params", "id2label", "label2id", "num_labels", "classifier_dropout",
    "summary_first_dropout", "summary_proj_to_labels", "summary_use_proj", "pooler_fc_size",
    "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head",
    /* how text is generated */
    "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups",
    "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "num_return_sequences",
    /* what a forward returns, and with which code */
    "return_dict", "return_dict_in_generate", "output_attentions", "output_hidden_states",
    "output_scores", "torchscript", "use_bfloat16", "remove_invalid_values", "auto_map"};

/* Of tools that leave their mark in a file, and private ones. */
static const char *const idle_beginnings[] = {"_", "unsloth_", "transformers.", "transformers_"};

bool mti_hf_counts_experts(const char *key)
{
    static const char *const keys[] = {
        "num_experts",         "num_local_experts", "n_routed_experts", "moe_num_experts",
        "num_experts_per_tok", "moe_top_k",         "n_shared_experts", "num_experts_per_token"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (!strcmp(key, keys[i])) return true;
    return false;
}

/* ---- looking up ---- */

const mti_hf_family *mti_hf_family_at(size_t i)
{
    return i < sizeof families / sizeof *families ? &families[i] : NULL;
}

const mti_hf_rule *mti_hf_rule_at(size_t i)
{
    return i < sizeof rules / sizeof *rules ? &rules[i] : NULL;
}

const mti_hf_rule *mti_hf_rule_of(unsigned family, const char *key)
{
    static const mti_hf_rule passed_over = {.form = MTI_HF_IDLE};
    const mti_hf_rule *r;
    for (size_t i = 0; (r = mti_hf_rule_at(i)); i++)
        if (r->families & family && !strcmp(r->key, key)) return r;
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (!strcmp(idle[i], key)) return &passed_over;
    for (size_t i = 0; i < sizeof idle_beginnings / sizeof *idle_beginnings; i++)
        if (!strncmp(idle_beginnings[i], key, strlen(idle_beginnings[i]))) return &passed_over;
    return NULL;
}
