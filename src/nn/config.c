/* config.c: what a model is, in plain data: names, checks, presets, JSON. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <jansson.h>
#include "base/base.h"
#include "memtape/nn.h"

/* ---- names of the enums ---- */

static const char *const act_names[MT_ACT_COUNT] = {
    [MT_ACT_RELU] = "relu",      [MT_ACT_LEAKY_RELU] = "leaky_relu",
    [MT_ACT_GELU] = "gelu",      [MT_ACT_GELU_TANH] = "gelu_tanh",
    [MT_ACT_SILU] = "silu",      [MT_ACT_TANH] = "tanh",
    [MT_ACT_SIGMOID] = "sigmoid"};
static const char *const norm_names[MT_NORM_PLACE_COUNT] = {
    [MT_NORM_PRE] = "pre", [MT_NORM_POST] = "post"};
static const char *const attention_names[MT_ATTENTION_FORM_COUNT] = {
    [MT_ATTENTION_FLASH] = "flash", [MT_ATTENTION_MATH] = "math"};
static const char *const kind_names[MT_MODEL_KIND_COUNT] = {[MT_MODEL_GPT] = "gpt",
                                                            [MT_MODEL_BLOCK] = "block",
                                                            [MT_MODEL_ATTENTION] = "attention",
                                                            [MT_MODEL_MLP] = "mlp"};

static const char *name_of(const char *const *names, int n, int i)
{
    return i >= 0 && i < n ? names[i] : "unknown";
}

const char *mt_act_name(mt_act a) { return name_of(act_names, MT_ACT_COUNT, (int)a); }
const char *mt_norm_place_name(mt_norm_place p)
{
    return name_of(norm_names, MT_NORM_PLACE_COUNT, (int)p);
}
const char *mt_attention_form_name(mt_attention_form f)
{
    return name_of(attention_names, MT_ATTENTION_FORM_COUNT, (int)f);
}
const char *mt_model_kind_name(mt_model_kind k)
{
    return name_of(kind_names, MT_MODEL_KIND_COUNT, (int)k);
}

/* The position of name among names; -1 and an error that lists them. */
static int position(const char *what, const char *const *names, int n, const char *name)
{
    for (int i = 0; name && i < n; i++)
        if (!strcmp(names[i], name)) return i;
    char list[256] = "";
    for (int i = 0, at = 0; i < n && at < (int)sizeof list; i++)
        at += snprintf(list + at, sizeof list - (size_t)at, "%s%s", i ? ", " : "", names[i]);
    mti_fail(MT_ERR_ARGUMENT, "%s: \"%s\" is unknown; need one of %s", what, name ? name : "(null)",
             list);
    return -1;
}

mt_status mt_act_parse(const char *name, mt_act *out)
{
    int i = position("act", act_names, MT_ACT_COUNT, name);
    if (i >= 0) *out = (mt_act)i;
    return i >= 0 ? MT_OK : MT_ERR_ARGUMENT;
}

mt_status mt_norm_place_parse(const char *name, mt_norm_place *out)
{
    int i = position("norm", norm_names, MT_NORM_PLACE_COUNT, name);
    if (i >= 0) *out = (mt_norm_place)i;
    return i >= 0 ? MT_OK : MT_ERR_ARGUMENT;
}

mt_status mt_attention_form_parse(const char *name, mt_attention_form *out)
{
    int i = position("attention", attention_names, MT_ATTENTION_FORM_COUNT, name);
    if (i >= 0) *out = (mt_attention_form)i;
    return i >= 0 ? MT_OK : MT_ERR_ARGUMENT;
}

mt_status mt_model_kind_parse(const char *name, mt_model_kind *out)
{
    int i = position("model", kind_names, MT_MODEL_KIND_COUNT, name);
    if (i >= 0) *out = (mt_model_kind)i;
    return i >= 0 ? MT_OK : MT_ERR_ARGUMENT;
}

/* ---- checks ---- */

/* Widths and counts stay far from where a product of three could overflow. */
#define MAX_EXTENT ((int64_t)1 << 31)

static bool in_range(const char *field, int64_t value, int64_t least)
{
    return (value >= least && value <= MAX_EXTENT) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is %" PRId64 "; need %" PRId64 " to %" PRId64,
                         field, value, least, MAX_EXTENT);
}

static bool known(const char *field, int value, const char *const *names, int n)
{
    if (value >= 0 && value < n) return true;
    return mti_fail_bool(MT_ERR_ARGUMENT, "config: %s is %d; need one of 0 (%s) to %d (%s)", field,
                         value, names[0], n - 1, names[n - 1]);
}

static bool check_enums(const mt_model_config *c)
{
    if (!known("kind", (int)c->kind, kind_names, MT_MODEL_KIND_COUNT)) return false;
    if (!known("act", (int)c->act, act_names, MT_ACT_COUNT)) return false;
    if (!known("norm", (int)c->norm, norm_names, MT_NORM_PLACE_COUNT)) return false;
    if (!known("attention", (int)c->attention, attention_names, MT_ATTENTION_FORM_COUNT))
        return false;
    return mt_dtype_is_float(c->dtype) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "config: dtype is %s; need f32, f64, bf16 or f16",
                         mt_dtype_name(c->dtype));
}

mt_status mt_model_config_check(const mt_model_config *c)
{
    if (!c) return mti_fail(MT_ERR_ARGUMENT, "config: is NULL");
    if (!check_enums(c)) return MT_ERR_ARGUMENT;
    bool gpt = c->kind == MT_MODEL_GPT;
    if (!in_range("hidden", c->hidden, 1) || !in_range("heads", c->heads, 0) ||
        !in_range("layers", c->layers, 0) || !in_range("ffn", c->ffn, 0) ||
        !in_range("vocab", c->vocab, gpt) || !in_range("context", c->context, gpt))
        return MT_ERR_ARGUMENT;
    if (c->kind != MT_MODEL_MLP && c->heads && c->hidden % c->heads)
        return mti_fail(MT_ERR_ARGUMENT,
                        "config: heads is %" PRId64 "; need a divisor of hidden, %" PRId64,
                        c->heads, c->hidden);
    if (c->inplace && c->act != MT_ACT_RELU && c->act != MT_ACT_LEAKY_RELU)
        return mti_fail(MT_ERR_ARGUMENT,
                        "config: inplace is set with act %s; need act relu or leaky_relu",
                        mt_act_name(c->act));
    if (!(c->dropout >= 0 && c->dropout < 1))
        return mti_fail(MT_ERR_ARGUMENT, "config: dropout is %g; need 0 <= dropout < 1",
                        c->dropout);
    if (!(c->norm_eps >= 0) || isinf(c->norm_eps))
        return mti_fail(MT_ERR_ARGUMENT, "config: norm_eps is %g; need a small positive number",
                        c->norm_eps);
    return MT_OK;
}

/* ---- presets ---- */

#define GPT_SIZES(l, a, d, v, s)                                                                   \
    .layers = (l), .heads = (a), .hidden = (d), .vocab = (v), .context = (s), .causal = true
#define GPT2(l, a, d)                                                                              \
    {                                                                                              \
        GPT_SIZES(l, a, d, 50257, 1024), .act = MT_ACT_GELU_TANH                                   \
    }
#define GPT3(l, a, d)                                                                              \
    {                                                                                              \
        GPT_SIZES(l, a, d, 50257, 2048), .act = MT_ACT_GELU_TANH                                   \
    }

static const struct {
    const char *name;
    mt_model_config config;
} presets[] = {
    /* byte-level toys that train on a laptop */
    {"tiny", {GPT_SIZES(2, 4, 64, 256, 64), .act = MT_ACT_GELU}},
    {"small", {GPT_SIZES(4, 4, 128, 256, 128), .act = MT_ACT_GELU}},
    {"medium", {GPT_SIZES(6, 6, 384, 256, 256), .act = MT_ACT_GELU}},
    /* Radford et al. 2019 */
    {"gpt2", GPT2(12, 12, 768)},
    {"gpt2-medium", GPT2(24, 16, 1024)},
    {"gpt2-large", GPT2(36, 20, 1280)},
    {"gpt2-xl", GPT2(48, 25, 1600)},
    /* Brown et al. 2020, table 2.1 (its 13B and 2.7B have other ratios; alternating sparse
     * attention is not modelled) */
    {"gpt3-6.7b", GPT3(32, 32, 4096)},
    {"gpt3-175b", GPT3(96, 96, 12288)},
};
#define N_PRESETS (sizeof presets / sizeof presets[0])

const char *mt_model_preset_name(size_t i) { return i < N_PRESETS ? presets[i].name : NULL; }

mt_status mt_model_preset(const char *name, mt_model_config *out)
{
    const char *names[N_PRESETS];
    for (size_t i = 0; i < N_PRESETS; i++) names[i] = presets[i].name;
    int i = position("preset", names, (int)N_PRESETS, name);
    if (i < 0) return MT_ERR_ARGUMENT;
    *out = presets[i].config;
    return MT_OK;
}

/* ---- JSON ---- */

mt_status mt_model_config_to_json(const mt_model_config *c, char *buf, size_t n_bytes)
{
    mt_status status = mt_model_config_check(c);
    if (status != MT_OK) return status;
    int n = snprintf(
        buf, n_bytes,
        "{\"kind\":\"%s\",\"hidden\":%" PRId64 ",\"heads\":%" PRId64 ",\"layers\":%" PRId64
        ",\"vocab\":%" PRId64 ",\"context\":%" PRId64 ",\"ffn\":%" PRId64
        ",\"act\":\"%s\",\"inplace\":%s,\"norm\":\"%s\","
        "\"norm_eps\":%.17g,\"dropout\":%.17g,\"attention\":\"%s\",\"causal\":%s,"
        "\"untied\":%s,\"no_bias\":%s,\"dtype\":\"%s\"}",
        mt_model_kind_name(c->kind), c->hidden, c->heads, c->layers, c->vocab, c->context, c->ffn,
        mt_act_name(c->act), c->inplace ? "true" : "false", mt_norm_place_name(c->norm),
        c->norm_eps, c->dropout, mt_attention_form_name(c->attention), c->causal ? "true" : "false",
        c->untied ? "true" : "false", c->no_bias ? "true" : "false", mt_dtype_name(c->dtype));
    if (n >= 0 && (size_t)n < n_bytes) return MT_OK;
    return mti_fail(MT_ERR_ARGUMENT, "config: %zu bytes are too few for its JSON; need %d", n_bytes,
                    n + 1);
}

static bool wrong_type(const char *key, const char *need)
{
    return mti_fail_bool(MT_ERR_FORMAT, "config: \"%s\" must be %s", key, need);
}

static bool get_int(const char *key, const json_t *value, int64_t *out)
{
    if (!json_is_integer(value)) return wrong_type(key, "a whole number");
    *out = (int64_t)json_integer_value(value);
    return true;
}

static bool get_real(const char *key, const json_t *value, double *out)
{
    if (!json_is_number(value)) return wrong_type(key, "a number");
    *out = json_number_value(value);
    return true;
}

static bool get_bool(const char *key, const json_t *value, bool *out)
{
    if (!json_is_boolean(value)) return wrong_type(key, "true or false");
    *out = json_is_true(value);
    return true;
}

static bool get_field(mt_model_config *c, const char *key, const json_t *value)
{
    const char *text = json_string_value(value); /* NULL for other types; the parsers refuse it */
    if (!strcmp(key, "kind")) return mt_model_kind_parse(text, &c->kind) == MT_OK;
    if (!strcmp(key, "hidden")) return get_int(key, value, &c->hidden);
    if (!strcmp(key, "heads")) return get_int(key, value, &c->heads);
    if (!strcmp(key, "layers")) return get_int(key, value, &c->layers);
    if (!strcmp(key, "vocab")) return get_int(key, value, &c->vocab);
    if (!strcmp(key, "context")) return get_int(key, value, &c->context);
    if (!strcmp(key, "ffn")) return get_int(key, value, &c->ffn);
    if (!strcmp(key, "act")) return mt_act_parse(text, &c->act) == MT_OK;
    if (!strcmp(key, "inplace")) return get_bool(key, value, &c->inplace);
    if (!strcmp(key, "norm")) return mt_norm_place_parse(text, &c->norm) == MT_OK;
    if (!strcmp(key, "norm_eps")) return get_real(key, value, &c->norm_eps);
    if (!strcmp(key, "dropout")) return get_real(key, value, &c->dropout);
    if (!strcmp(key, "attention")) return mt_attention_form_parse(text, &c->attention) == MT_OK;
    if (!strcmp(key, "causal")) return get_bool(key, value, &c->causal);
    if (!strcmp(key, "untied")) return get_bool(key, value, &c->untied);
    if (!strcmp(key, "no_bias")) return get_bool(key, value, &c->no_bias);
    if (!strcmp(key, "dtype"))
        return mt_dtype_parse(text, &c->dtype) || wrong_type(key, "f32, f64, bf16 or f16");
    return mti_fail_bool(MT_ERR_FORMAT, "config: \"%s\" is no field", key);
}

mt_status mt_model_config_from_json(const char *text, mt_model_config *out)
{
    if (!text || !out) return mti_fail(MT_ERR_ARGUMENT, "config: the JSON is NULL");
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!root) return mti_fail(MT_ERR_FORMAT, "config: column %d: %s", error.column, error.text);
    mt_model_config c = {0};
    bool ok = json_is_object(root) || mti_fail_bool(MT_ERR_FORMAT, "config: is no JSON object");
    void *at = ok ? json_object_iter(root) : NULL;
    for (; ok && at; at = json_object_iter_next(root, at))
        ok = get_field(&c, json_object_iter_key(at), json_object_iter_value(at));
    json_decref(root);
    if (!ok) return mt_last_status();
    mt_status status = mt_model_config_check(&c);
    if (status == MT_OK) *out = c;
    return status;
}
