/* config.c: a model's configuration: names of enums, checks, defaults, number of parameters. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "nn/model_fields.h"

/* ---- names of the enums ---- */

#define ACTS "relu", "leaky_relu", "gelu", "gelu_tanh", "silu", "tanh", "sigmoid"
const mti_choice mti_acts = {"act", MTI_NAMES(ACTS)};
const mti_choice mti_out_acts = {"out_act", MTI_NAMES("none", ACTS)};
static const mti_choice out_acts = {"out_act", MTI_NAMES(ACTS)};
const mti_choice mti_norm_places = {"norm",
                                    MTI_NAMES("pre", "post", "after", "around", "parallel")};
const mti_choice mti_norm_kinds = {"norm_kind", MTI_NAMES("layernorm", "rmsnorm", "rmsnorm-one")};
const mti_choice mti_attention_forms = {"attention", MTI_NAMES("flash", "math")};
const mti_choice mti_model_kinds = {
    "model", MTI_NAMES("gpt", "block", "attention", "mlp", "bert", "llama", "linear")};
const mti_choice mti_op_forms = {"op form", MTI_NAMES("fused", "unfused")};
const mti_choice mti_op_precisions = {"precision", MTI_NAMES("native", "f32")};
const mti_choice mti_loss_forms = {"loss",
                                   MTI_NAMES("native", "f32", "fused", "lse", "chunked", "unfused",
                                             "torch", "liger", "shifted", "held")};
const mti_choice mti_kv_groupings = {"kv_groups", MTI_NAMES("shared", "repeated")};
const mti_choice mti_linear_forms = {
    "linear", MTI_NAMES("native", "torchao-float8", "torchao-mxfp8", "torchao-nvfp4", "te-delayed",
                        "te-current", "te-mxfp8", "te-blockwise", "te-nvfp4")};
const mti_choice mti_window_masks = {"window_mask", MTI_NAMES("none", "kept")};
const mti_choice mti_expert_forms = {
    "expert_form", MTI_NAMES("grouped", "loop", "torchtitan", "torchtitan-before", "megatron")};
static const mti_choice mlp_kinds = {"mlp", MTI_NAMES("plain", "swiglu", "gated", "clamped")};
static const mti_choice qk_norms = {"qk_norm", MTI_NAMES("none", "head", "width")};
static const mti_choice rope_orders = {"rope_order", MTI_NAMES("halves", "pairs", "complex")};
static const mti_choice yarn_ramps = {"yarn_ramp", MTI_NAMES("pairs", "turns", "flat")};
const mti_choice mti_routers = {"router", MTI_NAMES("softmax", "sigmoid", "chosen")};

#define NAMED(type, name_of, choice)                                                               \
    const char *name_of(type value) { return mti_choice_name(&choice, (int)value); }
NAMED(mt_act, mt_act_name, mti_acts)
NAMED(mt_norm_place, mt_norm_place_name, mti_norm_places)
NAMED(mt_norm_kind, mt_norm_kind_name, mti_norm_kinds)
NAMED(mt_mlp_kind, mt_mlp_kind_name, mlp_kinds)
NAMED(mt_qk_norm, mt_qk_norm_name, qk_norms)
NAMED(mt_attention_form, mt_attention_form_name, mti_attention_forms)
NAMED(mt_model_kind, mt_model_kind_name, mti_model_kinds)

mt_status mt_act_parse(const char *name, mt_act *out)
{
    return mti_choice_parse(&mti_acts, name, out);
}
mt_status mt_model_kind_parse(const char *name, mt_model_kind *out)
{
    return mti_choice_parse(&mti_model_kinds, name, out);
}

/* ---- kinds ---- */

int64_t mti_usual_seq(const mt_model_config *c) { return c->context < 8192 ? c->context : 8192; }

bool mti_is_whole(mt_model_kind kind)
{
    return kind == MT_MODEL_GPT || kind == MT_MODEL_BERT || kind == MT_MODEL_LLAMA;
}

bool mti_has_head(const mt_model_config *c) { return mti_is_whole(c->kind) && !c->pooled; }

bool mti_ties_head(const mt_model_config *c) { return mti_has_head(c) && !c->untied; }

bool mti_attends(mt_model_kind kind)
{
    return mti_is_whole(kind) || kind == MT_MODEL_BLOCK || kind == MT_MODEL_ATTENTION;
}

bool mti_feeds(mt_model_kind kind)
{
    return mti_is_whole(kind) || kind == MT_MODEL_BLOCK || kind == MT_MODEL_MLP;
}

bool mti_learns_positions(const mt_model_config *c)
{
    return c->kind == MT_MODEL_BERT ||
           (c->kind == MT_MODEL_GPT && (c->rope_theta == 0 || c->kv_rank));
}

bool mti_repeats_heads(const mt_model_config *c)
{
    return (c->kv_heads && c->kv_heads != c->heads) || c->joint_products || c->kv_rank;
}

/* ---- fields ---- */

#define M(kind) (1u << MT_MODEL_##kind)
#define WHOLE   (M(GPT) | M(BERT) | M(LLAMA))
#define EACH    (M(KIND_COUNT) - 1)
#define KEY(...)

static const mti_model_field fields[] = {
#define RULE(...)
#define FIELD(type, field, zero, ...)                                                              \
    {.name = #field, .form = MTI_FIELD_##type, .at = offsetof(mt_model_config, field), __VA_ARGS__},
#define OP(op, names)                                                                              \
    {.name = #op,                                                                                  \
     .form = MTI_FIELD_NAME,                                                                       \
     .at = offsetof(mt_model_config, ops.op),                                                      \
     .rare = true,                                                                                 \
     .choice = &names},
#include "nn/model_fields.def"
#undef FIELD
#undef OP
#undef RULE
};

static const size_t sizes[] = {sizeof(int64_t), sizeof(double), sizeof(bool), sizeof(int),
                               sizeof(mt_dtype)}; /* of a mti_field_form */

const mti_model_field *mti_model_field_at(size_t i)
{
    return i < sizeof fields / sizeof *fields ? &fields[i] : NULL;
}

const mti_model_field *mti_model_field_named(const char *name)
{
    const mti_model_field *f;
    for (size_t i = 0; (f = mti_model_field_at(i)) && strcmp(f->name, name);) i++;
    return f;
}

static const void *value_of(const mti_model_field *f, const mt_model_config *c)
{
    return (const char *)c + f->at;
}

bool mti_model_field_is_zero(const mti_model_field *f, const mt_model_config *c)
{
    static const char zeros[sizeof(int64_t)];
    return f->flag ? !*(const bool *)((const char *)c + f->flag)
                   : !memcmp(value_of(f, c), zeros, sizes[f->form]);
}

void mti_model_field_copy(const mti_model_field *f, mt_model_config *to,
                          const mt_model_config *from)
{
    memcpy((char *)to + f->at, value_of(f, from), sizes[f->form]);
    if (f->flag) memcpy((char *)to + f->flag, (const char *)from + f->flag, sizeof(bool));
}

const char *mti_model_field_text(char text[MTI_FIELD_TEXT], const mti_model_field *f,
                                 const mt_model_config *c)
{
    const void *at = value_of(f, c);
    switch (f->form) {
    case MTI_FIELD_SIZE: snprintf(text, MTI_FIELD_TEXT, "%" PRId64, *(const int64_t *)at); break;
    case MTI_FIELD_REAL: mti_format(text, MTI_FIELD_TEXT, "%.17g", *(const double *)at); break;
    case MTI_FIELD_FLAG: return *(const bool *)at ? "true" : "false";
    case MTI_FIELD_NAME: return mti_choice_name(f->choice, *(const int *)at);
    case MTI_FIELD_DTYPE: return mt_dtype_name(*(const mt_dtype *)at);
    }
    return text;
}

/* ---- checks ---- */

/* Whether the value, alone, is one that the field can have. */
static bool check_value(const mti_model_field *f, const mt_model_config *c)
{
    const void *at = value_of(f, c);
    const int64_t size = f->form == MTI_FIELD_SIZE ? *(const int64_t *)at : 0;
    const int64_t least = f->needed >> c->kind & 1, most = f->most ? f->most : MTI_MAX_EXTENT;
    const double real = f->form == MTI_FIELD_REAL ? *(const double *)at : 0;
    const int name = f->form == MTI_FIELD_NAME ? *(const int *)at : 0;
    const mti_choice *names = f->choice;
    if (f->form == MTI_FIELD_SIZE && (size < least || size > most))
        return mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is %lld; need %lld to %lld", f->name,
                             (long long)size, (long long)least, (long long)most);
    if (f->below > 0 && !(real >= 0 && real < f->below))
        return mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is %g; need 0 <= %s < %g", f->name, real,
                             f->name, f->below);
    if (!(real >= 0) || isinf(real))
        return mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is %g; need a positive number", f->name,
                             real);
    if (names && (name < 0 || name >= names->n))
        return mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is %d; need one of 0 (%s) to %d (%s)",
                             f->name, name, names->names[0], names->n - 1,
                             names->names[names->n - 1]);
    return f->form != MTI_FIELD_DTYPE || mt_dtype_is_float(c->dtype) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "config: dtype is %s; need f32, f64, bf16 or f16",
                         mt_dtype_name(c->dtype));
}

/* Parts of a model are made with fields of whole models set, too. */
static bool check_fields(const mt_model_config *c)
{
    const mti_model_field *f;
    for (size_t i = 0; (f = mti_model_field_at(i)); i++) {
        if (!check_value(f, c)) return false; /* first that of the kind */
        if (mti_is_whole(c->kind) && f->only && !(f->only >> c->kind & 1) &&
            !mti_model_field_is_zero(f, c))
            return mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is set; a %s has none", f->name,
                                 mt_model_kind_name(c->kind));
    }
    return true;
}

/* Whether the fields agree with each other. */
static bool check_rules(const mt_model_config *c)
{
    const bool bert = c->kind == MT_MODEL_BERT, llama = c->kind == MT_MODEL_LLAMA;
    const bool whole = mti_is_whole(c->kind), attends = mti_attends(c->kind);
    const bool turned = llama || (c->kind == MT_MODEL_GPT && c->kv_rank);
    const bool rope = attends && (c->rope_theta > 0 || turned);
    const int64_t heads = c->heads ? c->heads : 1;
    const int64_t dim = c->head_dim ? c->head_dim : c->hidden / heads;
    const struct {
        const char *field;
        bool broken;
        const char *need; /* with a place for the number, or not */
        int64_t number;
    } rules[] = {
#define FIELD(...)
#define OP(...)
#define RULE(field, broken, need, number) {#field, broken, need, number},
#include "nn/model_fields.def"
#undef FIELD
#undef OP
#undef RULE
    };
    size_t i = 0;
    while (i < sizeof rules / sizeof *rules && !rules[i].broken) i++;
    if (i == sizeof rules / sizeof *rules) return true;
    const mti_model_field *f = mti_model_field_named(rules[i].field);
    char text[MTI_FIELD_TEXT], need[128];
    mti_format(need, sizeof need, rules[i].need, (long long)rules[i].number);
    return mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is %s; need %s", f->name,
                         f->form == MTI_FIELD_FLAG ? "set" : mti_model_field_text(text, f, c),
                         need);
}

mt_status mt_model_config_check(const mt_model_config *c)
{
    if (!c) return mti_fail(MT_ERR_ARGUMENT, "config: is NULL");
    return check_fields(c) && check_rules(c) ? MT_OK : MT_ERR_ARGUMENT;
}

/* ---- defaults ---- */

static int64_t default_ffn(const mt_model_config *c, mt_model_kind family)
{
    bool gated = c->mlp != MT_MLP_PLAIN || family == MT_MODEL_LLAMA;
    return gated ? (8 * c->hidden / 3 + 255) / 256 * 256 : 4 * c->hidden;
}

static void set_defaults(mt_model_config *c, mt_model_kind family)
{
    const bool bert = c->kind == MT_MODEL_BERT;
#define FIELD(type, field, zero, ...)                                                              \
    if (c->field == 0) c->field = zero;
#define OP(...)
#define RULE(...)
#include "nn/model_fields.def"
    if (family == MT_MODEL_BERT) c->norm = MT_NORM_POST; /* whatever it says */
}

bool mti_config_resolve(const mt_model_config *config, mt_model_kind kind, mt_model_config *c)
{
    if (!config) return mti_fail_bool(MT_ERR_ARGUMENT, "config: is NULL");
    *c = *config;
    c->kind = kind;
    if (mt_model_config_check(c) != MT_OK) return false;
    /* The parts of a bert or a llama are made from its config. */
    mt_model_kind family = mti_is_whole(kind) || config->kind == MT_MODEL_GPT ? kind : config->kind;
    set_defaults(c, family);
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

void mti_make_dense(mt_model_config *c)
{
    c->ffn = c->dense_ffn;
    c->experts = c->experts_per_token = c->shared_experts = c->dense_layers = c->dense_ffn = 0;
    c->expert_groups = c->expert_topk_groups = 0;
    c->norm_topk = false;
    c->balance_loss = c->expert_capacity = 0;
    c->expert_padding = c->balance_by_layer = false;
    c->ops.expert_form = MT_EXPERTS_GROUPED;
}

bool mti_is_turned(const mt_model_config *c, int64_t i)
{
    return !c->unturned_period || (i + 1) % c->unturned_period != 0;
}
