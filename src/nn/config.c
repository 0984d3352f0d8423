/* config.c: a model's configuration: names of enums, checks, defaults, number of parameters. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "nn/model.h"

/* ---- names of the enums ---- */

#define ACTS "relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"
const mti_choice mti_acts = {"act", MTI_NAMES(ACTS)};
const mti_choice mti_out_acts = {"out_act", MTI_NAMES("none", ACTS)};
const mti_choice mti_norm_places = {"norm", MTI_NAMES("pre", "post", "after", "around")};
const mti_choice mti_norm_kinds = {"norm_kind", MTI_NAMES("layernorm", "rmsnorm", "rmsnorm-one")};
const mti_choice mti_attention_forms = {"attention", MTI_NAMES("flash", "math")};
const mti_choice mti_model_kinds = {
    "model", MTI_NAMES("gpt", "block", "attention", "mlp", "bert", "llama", "linear")};
const mti_choice mti_op_forms = {"op form", MTI_NAMES("fused", "unfused")};
const mti_choice mti_op_precisions = {"precision", MTI_NAMES("native", "f32")};
const mti_choice mti_loss_forms = {
    "loss", MTI_NAMES("native", "f32", "fused", "lse", "chunked", "unfused")};
const mti_choice mti_kv_groupings = {"kv_groups", MTI_NAMES("shared", "repeated")};
static const mti_choice mlp_kinds = {"mlp", MTI_NAMES("plain", "swiglu", "gated")};
static const mti_choice qk_norms = {"qk_norm", MTI_NAMES("none", "head", "width")};

const char *mt_act_name(mt_act a) { return mti_choice_name(&mti_acts, (int)a); }
const char *mt_norm_place_name(mt_norm_place p)
{
    return mti_choice_name(&mti_norm_places, (int)p);
}
const char *mt_norm_kind_name(mt_norm_kind k) { return mti_choice_name(&mti_norm_kinds, (int)k); }
const char *mt_mlp_kind_name(mt_mlp_kind k) { return mti_choice_name(&mlp_kinds, (int)k); }
const char *mt_qk_norm_name(mt_qk_norm n) { return mti_choice_name(&qk_norms, (int)n); }
const char *mt_attention_form_name(mt_attention_form f)
{
    return mti_choice_name(&mti_attention_forms, (int)f);
}
const char *mt_model_kind_name(mt_model_kind k)
{
    return mti_choice_name(&mti_model_kinds, (int)k);
}

mt_status mt_act_parse(const char *name, mt_act *out)
{
    return mti_choice_parse(&mti_acts, name, out);
}
mt_status mt_norm_place_parse(const char *name, mt_norm_place *out)
{
    return mti_choice_parse(&mti_norm_places, name, out);
}
mt_status mt_norm_kind_parse(const char *name, mt_norm_kind *out)
{
    return mti_choice_parse(&mti_norm_kinds, name, out);
}
mt_status mt_mlp_kind_parse(const char *name, mt_mlp_kind *out)
{
    return mti_choice_parse(&mlp_kinds, name, out);
}
mt_status mt_qk_norm_parse(const char *name, mt_qk_norm *out)
{
    return mti_choice_parse(&qk_norms, name, out);
}
mt_status mt_attention_form_parse(const char *name, mt_attention_form *out)
{
    return mti_choice_parse(&mti_attention_forms, name, out);
}
mt_status mt_model_kind_parse(const char *name, mt_model_kind *out)
{
    return mti_choice_parse(&mti_model_kinds, name, out);
}

/* ---- checks ---- */

static bool between(const char *field, int64_t value, int64_t least, int64_t most)
{
    return (value >= least && value <= most) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is %" PRId64 "; need %" PRId64 " to %" PRId64,
                         field, value, least, most);
}

static bool in_range(const char *field, int64_t value, int64_t least)
{
    return between(field, value, least, MTI_MAX_EXTENT);
}

static bool known(const char *field, int value, const mti_choice *c)
{
    if (value >= 0 && value < c->n) return true;
    return mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is %d; need one of 0 (%s) to %d (%s)", field,
                         value, c->names[0], c->n - 1, c->names[c->n - 1]);
}

static bool check_enums(const mt_model_config *c)
{
    if (!known("kind", (int)c->kind, &mti_model_kinds) || !known("act", (int)c->act, &mti_acts) ||
        !known("out_act", c->out_act, &mti_out_acts) ||
        !known("norm", (int)c->norm, &mti_norm_places) ||
        !known("norm_kind", (int)c->norm_kind, &mti_norm_kinds) ||
        !known("mlp", (int)c->mlp, &mlp_kinds) || !known("qk_norm", (int)c->qk_norm, &qk_norms) ||
        !known("attention", (int)c->attention, &mti_attention_forms) ||
        !known("swiglu", (int)c->ops.swiglu, &mti_op_forms) ||
        !known("rms_norm", (int)c->ops.rms_norm, &mti_op_forms) ||
        !known("gelu_tanh", (int)c->ops.gelu_tanh, &mti_op_forms) ||
        !known("rope", (int)c->ops.rope, &mti_op_forms) ||
        !known("softmax", (int)c->ops.softmax, &mti_op_precisions) ||
        !known("kv_groups", (int)c->ops.kv_groups, &mti_kv_groupings) ||
        !known("loss", (int)c->ops.loss, &mti_loss_forms))
        return false;
    if (c->ops.loss == MT_LOSS_CHUNKED && c->kind == MT_MODEL_BERT)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: loss is chunked, and kind is bert; need another loss");
    if (c->ops.loss == MT_LOSS_FUSED && (c->kind == MT_MODEL_BERT || c->logit_cap > 0))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: loss is fused, and %s; need native, f32 or lse",
                             c->kind == MT_MODEL_BERT ? "a bert's logits have biases"
                                                      : "logit_cap changes the logits");
    return mt_dtype_is_float(c->dtype) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "config: dtype is %s; need f32, f64, bf16 or f16",
                         mt_dtype_name(c->dtype));
}

static bool check_extents(const mt_model_config *c)
{
    bool whole = mti_is_whole(c->kind);
    return in_range("hidden", c->hidden, 1) && in_range("heads", c->heads, 0) &&
           in_range("kv_heads", c->kv_heads, 0) && in_range("head_dim", c->head_dim, 0) &&
           between("layers", c->layers, 0, MTI_MAX_LAYERS) && in_range("ffn", c->ffn, 0) &&
           in_range("vocab", c->vocab, whole) && in_range("context", c->context, whole) &&
           in_range("window", c->window, 0) && in_range("local_period", c->local_period, 0) &&
           in_range("token_types", c->token_types, 0) &&
           in_range("position_offset", c->position_offset, 0) &&
           in_range("padding", c->padding, 0) && in_range("mask_token", c->mask_token, 0);
}

static bool check_heads(const mt_model_config *c)
{
    int64_t heads = c->heads ? c->heads : 1, dim = c->head_dim ? c->head_dim : c->hidden / heads;
    if (!c->head_dim && c->hidden % heads)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: heads is %" PRId64 "; need a divisor of hidden, %" PRId64,
                             heads, c->hidden);
    if (c->kv_heads && heads % c->kv_heads)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: kv_heads is %" PRId64 "; need a divisor of heads, %" PRId64,
                             c->kv_heads, heads);
    if (!in_range("heads times head_dim", heads * dim, 1)) return false;
    bool rope = c->rope_theta > 0 || c->kind == MT_MODEL_LLAMA;
    if (c->qk_norm && !rope)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: qk_norm is %s; need none without rotary positions",
                             mt_qk_norm_name(c->qk_norm));
    if (c->qk_norm && c->joint_products)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: qk_norm is %s; need none where joint_products is set",
                             mt_qk_norm_name(c->qk_norm));
    return !rope || dim % 2 == 0 ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "config: rope_theta needs heads of even width; they are %" PRId64 " wide",
                         dim);
}

static bool not_negative(const char *field, double value)
{
    return (value >= 0 && !isinf(value)) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is %g; need a positive number", field, value);
}

static bool check_numbers(const mt_model_config *c)
{
    if (!(c->dropout >= 0 && c->dropout < 1))
        return mti_fail_bool(MT_ERR_ARGUMENT, "config: dropout is %g; need 0 <= dropout < 1",
                             c->dropout);
    if (!(c->norm_eps >= 0) || isinf(c->norm_eps))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: norm_eps is %g; need a small positive number", c->norm_eps);
    return not_negative("rope_theta", c->rope_theta) &&
           not_negative("local_theta", c->local_theta) &&
           not_negative("attention_scale", c->attention_scale) &&
           not_negative("attention_cap", c->attention_cap) &&
           not_negative("logit_cap", c->logit_cap);
}

/* Fields of whole models; their parts are made with them set, too. */
static bool check_whole(const mt_model_config *c)
{
    const char *name = mt_model_kind_name(c->kind);
    const struct {
        const char *field;
        bool set, good;
    } fields[] = {
        {"window", c->window != 0, c->kind == MT_MODEL_LLAMA},
        {"logit_cap", c->logit_cap > 0, c->kind != MT_MODEL_BERT},
        {"scaled_embedding", c->scaled_embedding, c->kind == MT_MODEL_LLAMA},
        {"local_theta", c->local_theta > 0, c->kind == MT_MODEL_LLAMA},
        {"position_offset", c->position_offset != 0, c->kind == MT_MODEL_BERT},
    };
    for (size_t i = 0; mti_is_whole(c->kind) && i < sizeof fields / sizeof *fields; i++)
        if (fields[i].set && !fields[i].good)
            return mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is set; a %s has none",
                                 fields[i].field, name);
    return !(c->local_theta > 0) || c->local_period > 0 ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "config: local_period is 0; need at least 1 with local_theta");
}

/* Whether the fields agree with the kind. */
static bool check_kind(const mt_model_config *c)
{
    const char *name = mt_model_kind_name(c->kind);
    bool gated = c->mlp != MT_MLP_PLAIN || c->kind == MT_MODEL_LLAMA;
    if (c->inplace && gated)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: inplace is set with a %s MLP; need a "
                             "plain one, with act relu or leaky_relu",
                             mt_mlp_kind_name(c->mlp == MT_MLP_GATED ? c->mlp : MT_MLP_SWIGLU));
    if (c->mlp == MT_MLP_GATED && c->joint_products)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: mlp is gated; need swiglu where joint_products is set");
    if (c->attention_cap > 0 && c->attention != MT_ATTENTION_MATH)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: attention is %s; need math with attention_cap: flash "
                             "attention does not cap scores",
                             mt_attention_form_name(c->attention));
    if (!check_whole(c)) return false;
    if (c->inplace && c->act != MT_ACT_RELU && c->act != MT_ACT_LEAKY_RELU)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: inplace is set with act %s; need act relu or leaky_relu",
                             mt_act_name(c->act));
    if (c->out_act && c->kind != MT_MODEL_MLP)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: out_act is %s; need none for a %s: only an mlp has one",
                             mti_choice_name(&mti_out_acts, c->out_act), name);
    if (c->rope_theta > 0 && (c->kind == MT_MODEL_GPT || c->kind == MT_MODEL_BERT))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: rope_theta is %g; need 0: a %s has learned positions",
                             c->rope_theta, name);
    if (c->kind == MT_MODEL_BERT && c->causal)
        return mti_fail_bool(MT_ERR_ARGUMENT, "config: causal is set; a bert sees both sides");
    if (c->kind == MT_MODEL_LLAMA && c->norm == MT_NORM_POST)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: norm is post; a llama's is pre, after or around");

    if (c->tied && c->untied)
        return mti_fail_bool(MT_ERR_ARGUMENT, "config: tied and untied are both set; need one");
    if (c->untied && c->kind == MT_MODEL_BERT)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: untied is set; a bert's head has the embedding's weight");
    if (mti_is_whole(c->kind) && c->padding > c->vocab)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: padding is %" PRId64 ", which is token %" PRId64
                             "; need one of vocab, below %" PRId64,
                             c->padding, c->padding - 1, c->vocab);
    if (c->kind == MT_MODEL_BERT && c->mask_token >= c->vocab)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "config: mask_token is %" PRId64 "; need one of vocab, below %" PRId64,
                             c->mask_token, c->vocab);
    return true;
}

mt_status mt_model_config_check(const mt_model_config *c)
{
    if (!c) return mti_fail(MT_ERR_ARGUMENT, "config: is NULL");
    bool good = check_enums(c) && check_extents(c) && check_numbers(c) && check_kind(c) &&
                (!mti_attends(c->kind) || check_heads(c));
    return good ? MT_OK : MT_ERR_ARGUMENT;
}

/* ---- defaults ---- */

bool mti_is_whole(mt_model_kind kind)
{
    return kind == MT_MODEL_GPT || kind == MT_MODEL_BERT || kind == MT_MODEL_LLAMA;
}

bool mti_attends(mt_model_kind kind)
{
    return mti_is_whole(kind) || kind == MT_MODEL_BLOCK || kind == MT_MODEL_ATTENTION;
}

bool mti_feeds(mt_model_kind kind)
{
    return mti_is_whole(kind) || kind == MT_MODEL_BLOCK || kind == MT_MODEL_MLP;
}

bool mti_repeats_heads(const mt_model_config *c)
{
    return (c->kv_heads && c->kv_heads != c->heads) || c->joint_products;
}

/* Sets what every model of the kind has. */
static void set_kind(mt_model_config *c, mt_model_kind kind)
{
    if (kind == MT_MODEL_GPT) c->causal = true;
    if (kind == MT_MODEL_BERT) c->norm = MT_NORM_POST;
    if (kind != MT_MODEL_LLAMA) return;
    if (c->norm_kind == MT_NORM_LAYER) c->norm_kind = MT_NORM_RMS;
    if (c->mlp == MT_MLP_PLAIN) c->mlp = MT_MLP_SWIGLU;
    c->causal = c->no_bias = true;
    c->untied = !c->tied;
    if (c->rope_theta == 0) c->rope_theta = 10000;
}

static double default_eps(mt_model_kind kind)
{
    return kind == MT_MODEL_BERT ? 1e-12 : kind == MT_MODEL_LLAMA ? 1e-6 : 1e-5;
}

bool mti_config_resolve(const mt_model_config *config, mt_model_kind kind, mt_model_config *c)
{
    if (!config) return mti_fail_bool(MT_ERR_ARGUMENT, "config: is NULL");
    *c = *config;
    c->kind = kind;
    if (mt_model_config_check(c) != MT_OK) return false;
    /* The parts of a bert or a llama are made from its config. */
    mt_model_kind family = mti_is_whole(kind) || config->kind == MT_MODEL_GPT ? kind : config->kind;
    set_kind(c, family);
    if (!c->heads) c->heads = 1;
    if (!c->kv_heads) c->kv_heads = c->heads;
    if (!c->head_dim) c->head_dim = c->hidden / c->heads;
    if (!c->layers) c->layers = 1;
    if (!c->ffn)
        c->ffn = c->mlp != MT_MLP_PLAIN ? (8 * c->hidden / 3 + 255) / 256 * 256 : 4 * c->hidden;
    if (c->norm_eps == 0) c->norm_eps = default_eps(family);
    if (kind == MT_MODEL_BERT && !c->token_types) c->token_types = 2;
    if (kind == MT_MODEL_BERT && !c->mask_token) c->mask_token = c->vocab - 1;
    return true;
}

mt_status mt_model_config_resolve(const mt_model_config *config, mt_model_config *out)
{
    mt_model_config c;
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "config: the result is NULL");
    if (!mti_config_resolve(config, config ? config->kind : MT_MODEL_GPT, &c))
        return mt_last_status();
    *out = c;
    return MT_OK;
}

/* ---- number of parameters ---- */

static uint64_t linear_size(const mt_model_config *c, int64_t in, int64_t out)
{
    return (uint64_t)in * (uint64_t)out + (c->no_bias ? 0 : (uint64_t)out);
}

static uint64_t norm_size(const mt_model_config *c, int64_t n)
{
    bool bias = c->norm_kind == MT_NORM_LAYER && !c->no_bias;
    return (uint64_t)n * (bias ? 2 : 1);
}

static uint64_t attention_size(const mt_model_config *c, int64_t q, int64_t k)
{
    int64_t in = q + 2 * k, normed = c->qk_norm == MT_QK_NORM_WIDTH ? q + k : 2 * c->head_dim;
    return (uint64_t)c->hidden * (uint64_t)in + (c->no_bias && !c->qkv_bias ? 0 : (uint64_t)in) +
           (c->qk_norm ? norm_size(c, normed) : 0) + linear_size(c, q, c->hidden);
}

static uint64_t mlp_size(const mt_model_config *c)
{
    uint64_t up = linear_size(c, c->hidden, c->ffn), down = linear_size(c, c->ffn, c->hidden);
    return c->mlp != MT_MLP_PLAIN ? 2 * up + down : up + down;
}

uint64_t mti_layer_size(const mt_model_config *c, int64_t q, int64_t k)
{
    bool attends = mti_attends(c->kind), feeds = mti_feeds(c->kind);
    uint64_t norms = !attends || !feeds ? 0 : c->norm == MT_NORM_AROUND ? 4 : 2;
    if (c->kind == MT_MODEL_LINEAR) return linear_size(c, c->hidden, c->ffn);
    return (attends ? attention_size(c, q, k) : 0) + (feeds ? mlp_size(c) : 0) +
           norms * norm_size(c, c->hidden);
}

void mti_end_sizes(mti_end_size ends[MTI_ENDS], const mt_model_config *c, bool first, bool last)
{
    const bool bert = c->kind == MT_MODEL_BERT, whole = mti_is_whole(c->kind);
    const bool copy = !c->untied && !first; /* a tied head on another rank than the embedding */
    const uint64_t h = (uint64_t)c->hidden, v = (uint64_t)c->vocab, norm = norm_size(c, c->hidden);
    const uint64_t positions = (uint64_t)(c->context + c->position_offset) * h;
    const uint64_t before = linear_size(c, c->hidden, c->hidden) + norm + v;
    first = first && whole, last = last && whole;
    const mti_end_size all[MTI_ENDS] = {
        {"the embedding: a vector for each token", first ? v * h : 0},
        {"learned positions: a vector for each",
         first && c->kind != MT_MODEL_LLAMA ? positions : 0},
        {"a vector for each type of token", first && bert ? (uint64_t)c->token_types * h : 0},
        {"the embeddings' norm", first && bert ? norm : 0},
        {"the norm after the last layer", last && c->norm != MT_NORM_POST ? norm : 0},
        {"the head's product, norm and biases, one for each token", last && bert ? before : 0},
        {copy ? "the head: a copy of the embedding, which another stage has"
              : "a head of its own, vh: not the embedding's matrix once more",
         last && (copy || c->untied) ? v * h : 0},
    };
    memcpy(ends, all, sizeof all);
}

mt_status mt_model_config_params(const mt_model_config *config, uint64_t *n)
{
    mt_model_config c;
    mti_end_size ends[MTI_ENDS];
    if (!n) return mti_fail(MT_ERR_ARGUMENT, "config: the count is NULL");
    mt_status status = mt_model_config_resolve(config, &c);
    if (status != MT_OK) return status;
    *n = (mti_is_whole(c.kind) ? (uint64_t)c.layers : 1) *
         mti_layer_size(&c, c.heads * c.head_dim, c.kv_heads * c.head_dim);
    mti_end_sizes(ends, &c, true, true);
    for (int i = 0; i < MTI_ENDS; i++) *n += ends[i].n;
    return MT_OK;
}
