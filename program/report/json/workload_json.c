/* workload_json.c: what was run, as JSON: the model, and which rank. */
#include <limits.h>
#include "nn/model.h"
#include "parallel/parallel.h"
#include "report/keys.h"
#include "report/results.h"

/* Each choice of ops; null where the model does not have it. */
static void describe_ops(mti_fields *f, const void *config)
{
    const mt_model_config *c = config;
    const mt_op_choices *ops = &c->ops;
    bool feeds = mti_feeds(c->kind), attends = mti_attends(c->kind);
    bool gated = feeds && c->mlp == MT_MLP_SWIGLU;
    bool tanh = feeds && !gated && c->act == MT_ACT_GELU_TANH;
    bool rms = attends && feeds && c->norm_kind != MT_NORM_LAYER;
    bool math = attends && c->attention == MT_ATTENTION_MATH;
    bool windowed = c->window && c->attention == MT_ATTENTION_FLASH;
    bool grouped = attends && mti_repeats_heads(c);
    mti_field_name(mti_null_unless(f, gated), "swiglu", &mti_op_forms, (int)ops->swiglu);
    mti_field_name(mti_null_unless(f, rms), "rms_norm", &mti_op_forms, (int)ops->rms_norm);
    mti_field_name(mti_null_unless(f, tanh), "gelu_tanh", &mti_op_forms, (int)ops->gelu_tanh);
    mti_field_name(mti_null_unless(f, c->rope_theta > 0), "rope", &mti_op_forms, (int)ops->rope);
    mti_field_name(mti_null_unless(f, math), "softmax", &mti_op_precisions, (int)ops->softmax);
    mti_field_name(mti_null_unless(f, grouped), "kv_groups", &mti_kv_groupings,
                   (int)ops->kv_groups);
    if (mti_field_there(f, windowed))
        mti_field_name(f, "window_mask", &mti_window_masks, (int)ops->window_mask);
    mti_field_name(mti_null_unless(f, mti_has_head(c)), "loss", &mti_loss_forms, (int)ops->loss);
    mti_field_name(f, "linear", &mti_linear_forms, (int)ops->linear);
}

/* What few models have: no key without it. */
static void describe_rare(mti_fields *f, const mt_model_config *c)
{
    const bool some = c->window && c->local_period;
    uint64_t active = 0;
    if (c->experts) mt_model_config_active_params(c, &active); /* c is checked */
    if (mti_field_there(f, c->qk_norm)) mti_field_text(f, "qk_norm", mt_qk_norm_name(c->qk_norm));
    KEYS(f, mt_model_config, c, KEY_IF_SET(joint_products));
    if (mti_field_there(f, c->kind == MT_MODEL_GPT && c->untied)) mti_field_bool(f, "untied", true);
    KEYS(f, mt_model_config, c, KEY_IF_SET(attention_cap), KEY_IF_SET(logit_cap),
         KEY_IF_SET(position_offset), KEY_IF_SET(pooled), KEY_IF_SET(window));
    if (mti_field_there(f, some)) mti_field_int(f, "local_period", c->local_period);
    if (mti_field_there(f, some && c->local_layers))
        mti_field_int(f, "local_layers", c->local_layers);
    KEYS(f, mt_model_config, c, KEY_IF_SET(experts), KEY_IF_SET(experts_per_token));
    if (mti_field_there(f, c->experts)) mti_field_size(f, "active_params", active);
    KEYS(f, mt_model_config, c, KEY_IF_SET(sinks), KEY_IF_SET(yarn_factor));
    if (mti_field_there(f, c->experts))
        mti_field_name(f, "expert_form", &mti_expert_forms, (int)c->ops.expert_form);
    KEYS(f, mt_model_config, c, KEY_IF_SET(balance_loss), KEY_IF_SET(balance_by_layer),
         KEY_IF_SET(expert_capacity), KEY_IF_SET(expert_padding), KEY_IF_SET(norm_topk),
         KEY_IF_SET(mtp_layers), KEY_IF_SET(mtp_loss), KEY_IF_SET(shared_experts),
         KEY_IF_SET(dense_layers), KEY_IF_SET(dense_ffn), KEY_IF_SET(kv_rank), KEY_IF_SET(q_rank),
         KEY_IF_SET(rope_dim), KEY_IF_SET(value_dim));
}

void mti_describe_left_out(mti_fields *f, const void *left_out)
{
    KEYS(f, mti_left_out, left_out, KEY(what), KEY_OR_NULL(bytes));
}

/* The model's dimensions; null for those that its kind does not have. */
void mti_describe_model(mti_fields *f, const void *workload)
{
    const mti_workload *w = workload;
    mt_model_config c = w->config;
    mt_model_config_resolve(&w->config, &c); /* checked when the options were read */
    bool whole = mti_is_whole(c.kind), attends = mti_attends(c.kind), feeds = mti_feeds(c.kind);
    bool own = c.mlp == MT_MLP_SWIGLU || c.mlp == MT_MLP_CLAMPED, acts = feeds && !own,
         norms = whole || c.kind == MT_MODEL_BLOCK;
    mti_field_name(f, "kind", &mti_model_kinds, (int)c.kind);
    KEYS(f, mti_workload, w, KEY_OR_NULL(preset), KEY(batch), KEY(seq));
    mti_field_int(f, "hidden", c.hidden);
    mti_field_int(mti_null_unless(f, attends), "heads", c.heads);
    mti_field_int(mti_null_unless(f, attends), "kv_heads", c.kv_heads);
    mti_field_int(mti_null_unless(f, whole), "layers", c.layers);
    mti_field_int(mti_null_unless(f, whole), "vocab", c.vocab);
    mti_field_int(mti_null_unless(f, whole), "context", c.context);
    mti_field_int(mti_null_unless(f, c.kind != MT_MODEL_ATTENTION), "ffn", c.ffn);
    mti_field_text(mti_null_unless(f, feeds), "mlp", mt_mlp_kind_name(c.mlp));
    mti_field_name(mti_null_unless(f, acts), "act", &mti_acts, (int)c.act);
    mti_field_name(mti_null_unless(f, c.has_out_act), "out_act", &mti_acts, (int)c.out_act);
    mti_field_bool(mti_null_unless(f, acts), "inplace", c.inplace);
    mti_field_name(mti_null_unless(f, norms), "norm", &mti_norm_places, (int)c.norm);
    mti_field_name(mti_null_unless(f, norms), "norm_kind", &mti_norm_kinds, (int)c.norm_kind);
    describe_rare(f, &c);
    mti_field_real(f, "dropout", c.dropout);
    mti_field_name(mti_null_unless(f, attends), "attention", &mti_attention_forms,
                   (int)c.attention);
    mti_field_bool(mti_null_unless(f, attends), "causal", c.causal);
    mti_field_text(f, "dtype", mt_dtype_name(c.dtype));
    mti_field_object(f, "ops", describe_ops, &c);
    mti_field_text(mti_null_unless(f, *w->recipe), "recipe", w->recipe);
    mti_field_text(mti_null_unless(f, *w->recipe), "recipe_options", w->recipe_options);
    mti_field_list(f, "left_out", mti_describe_left_out, w->left_out, (size_t)w->n_left_out,
                   sizeof *w->left_out);
    mti_field_name(f, "optimizer", &mti_optimizers, (int)w->optimizer);
    mti_field_size(f, "seed", w->seed);
}

/* ---- which rank ---- */

void mti_describe_division(mti_fields *f, const mt_parallel *division)
{
    const mt_parallel h = mti_filled_in(division);
    mti_field_range(f, "tp", h.tensor, 1, INT_MAX);
    mti_field_bool(f, "sp", h.sequence);
    mti_field_range(f, "pp", h.pipeline, 1, INT_MAX);
    mti_field_range(f, "interleave", h.interleave, 1, INT_MAX);
    mti_field_range(f, "pp_first", h.first_layers, 0, INT_MAX);
    mti_field_range(f, "pp_last", h.last_layers, 0, INT_MAX);
    mti_field_int(f, "stage", h.stage);
    mti_field_range(f, "microbatches", h.microbatches, 1, INT_MAX);
    mti_field_range(f, "cp", h.context, 1, INT_MAX);
    mti_field_range(f, "dp", h.data, 1, INT_MAX);
    mti_field_range(f, "ep", h.expert, 1, INT_MAX);
    mti_field_range(f, "etp", h.expert_tensor, 1, INT_MAX);
    mti_field_range(f, "zero", h.zero, 0, 3);
}

void mti_describe_place(mti_fields *f, const void *workload)
{
    const mti_workload *w = workload;
    mti_field_int(f, "rank", w->rank);
    mti_describe_division(f, &w->parallel);
}
