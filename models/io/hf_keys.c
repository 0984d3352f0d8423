/* hf_keys.c: the families of Hugging Face's config.json, their keys, and how the value of each is
 * read, by the rows of model_fields.def and hf_keys.def. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "io/hf_config.h"
#include "io/hf_reader.h"

/* ---- the families ---- */

static const mti_hf_family families[] = {
#define FAMILY(type, class, bit, ...) {type, class, bit, {__VA_ARGS__}},
#include "io/hf_families.def"
};
#define N_FAMILIES (sizeof families / sizeof *families)

const mti_hf_family *mti_hf_family_at(size_t i) { return i < N_FAMILIES ? &families[i] : NULL; }

/* ---- notes and refusals ---- */

void mti_hf_put(char *text, size_t n_bytes, const char *fmt, ...)
{
    size_t n = n_bytes ? strlen(text) : 0;
    if (n + 1 >= n_bytes) return;
    va_list args;
    va_start(args, fmt);
    mti_vformat(text + n, n_bytes - n, fmt, args);
    va_end(args);
    mti_make_printable(text + n); /* notes quote the file, too */
}

/* Fails with "config.json: "n_embd" is 0; need ...". */
static bool refuse(const mti_hf_reader *r, const json_t *value, const char *need)
{
    char text[MTI_JSON_BEGIN];
    return mti_fail_bool(MT_ERR_FORMAT, MTI_ANY_FILE "\"%.60s\" is %s; need %.160s", r->key->name,
                         mti_json_begin(value, text), need);
}

static bool note(mti_hf_reader *r)
{
    mti_hf_put(r->notes, r->n_notes, "%s: %s\n", r->key->name, r->key->text);
    return true;
}

/* ---- values ---- */

bool mti_hf_is_empty(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

static bool is_word(const json_t *value, const char *word)
{
    return json_is_string(value) && !strcmp(json_string_value(value), word);
}

static void *field(mti_hf_reader *r) { return (char *)&r->c + r->key->at; }

static bool read_size(mti_hf_reader *r, const json_t *value)
{
    char need[64];
    const int64_t most =
        r->key->at == offsetof(mt_model_config, layers) ? MTI_MAX_LAYERS : MTI_MAX_EXTENT;
    snprintf(need, sizeof need, "a whole number from 1 to %lld", (long long)most);
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > most)
        return refuse(r, value, need);
    *(int64_t *)field(r) = (int64_t)json_integer_value(value);
    return true;
}

static bool read_count(mti_hf_reader *r, const json_t *value)
{
    const bool none = json_is_integer(value) && json_integer_value(value) == 0;
    if (none) *(int64_t *)field(r) = 0;
    return none || read_size(r, value);
}

/* Heads have a part that is turned, and one that is not. */
static bool read_head_part(mti_hf_reader *r, const json_t *value)
{
    const int64_t other = r->c.head_dim;
    if (!read_size(r, value)) return false;
    r->c.head_dim = other + *(int64_t *)field(r);
    return true;
}

/* Embeddings are as wide as the model here. */
static bool read_embedded(mti_hf_reader *r, const json_t *value)
{
    return json_equal(value, json_object_get(r->root, "hidden_size")) ||
           refuse(r, value, "that of \"hidden_size\": the model here has no products between them");
}

static bool read_window(mti_hf_reader *r, const json_t *value)
{
    return mti_hf_is_empty(value) || read_size(r, value);
}

static bool read_real(mti_hf_reader *r, const json_t *value)
{
    if (!json_is_number(value) || !(json_number_value(value) > 0))
        return refuse(r, value, "a number above 0");
    *(double *)field(r) = json_number_value(value);
    return true;
}

/* Whether it holds is seen in the end. */
static bool read_share(mti_hf_reader *r, const json_t *value)
{
    *(double *)field(r) = json_number_value(value);
    return json_number_value(value) == 0 || read_real(r, value);
}

/* Says whether router_aux_loss_coef counts: seen in the end, too. */
static bool read_switch(mti_hf_reader *r, const json_t *value)
{
    return json_is_boolean(value) || refuse(r, value, "true or false");
}

/* null: none */
static bool read_cap(mti_hf_reader *r, const json_t *value)
{
    if (json_is_null(value)) *(double *)field(r) = 0;
    return json_is_null(value) || read_real(r, value);
}

/* Scores are divided by its root. */
static bool read_root(mti_hf_reader *r, const json_t *value)
{
    if (!read_real(r, value)) return false;
    *(double *)field(r) = 1 / sqrt(*(double *)field(r));
    return true;
}

/* All dropouts of a file must be equal: we have one. */
static bool read_dropout(mti_hf_reader *r, const json_t *value)
{
    double p = json_number_value(value);
    if (!json_is_number(value) || !(p >= 0 && p < 1))
        return refuse(r, value, "a number from 0 to below 1");
    if (r->dropout_key && p != r->c.dropout)
        return mti_fail_bool(MT_ERR_FORMAT,
                             MTI_ANY_FILE "\"%s\" is %g, \"%s\" is %g; need one probability for "
                                          "all dropouts",
                             r->dropout_key, r->c.dropout, r->key->name, p);
    r->dropout_key = r->key->name;
    r->c.dropout = p;
    return true;
}

static bool read_act(mti_hf_reader *r, const json_t *value)
{
    static const struct {
        const char *name;
        mt_act act;
    } acts[] = {{"gelu", MT_ACT_GELU},           {"gelu_new", MT_ACT_GELU_TANH},
                {"gelu_fast", MT_ACT_GELU_TANH}, {"gelu_pytorch_tanh", MT_ACT_GELU_TANH},
                {"relu", MT_ACT_RELU},           {"silu", MT_ACT_SILU},
                {"swish", MT_ACT_SILU},          {"tanh", MT_ACT_TANH},
                {"sigmoid", MT_ACT_SIGMOID}};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (is_word(value, acts[i].name)) {
            r->c.act = acts[i].act;
            r->c.fused_gelu = is_word(value, "gelu_pytorch_tanh");
            return true;
        }
    return refuse(r, value,
                  "one of gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu, silu, swish, tanh, "
                  "sigmoid");
}

static bool read_dtype(mti_hf_reader *r, const json_t *value)
{
    if (is_word(value, "auto")) return true; /* the files' own */
    if (is_word(value, "float32"))
        r->c.dtype = MT_F32;
    else if (is_word(value, "bfloat16"))
        r->c.dtype = MT_BF16;
    else if (is_word(value, "float16"))
        r->c.dtype = MT_F16;
    else
        return refuse(r, value, "float32, bfloat16 or float16");
    return true;
}

static bool read_flag(mti_hf_reader *r, const json_t *value)
{
    if (!json_is_boolean(value)) return refuse(r, value, "true or false");
    *(bool *)field(r) = json_is_true(value);
    return true;
}

static bool read_pairs(mti_hf_reader *r, const json_t *value)
{
    if (!json_is_boolean(value)) return refuse(r, value, "true or false");
    r->c.rope_order = json_is_true(value) ? MT_ROPE_PAIRS : MT_ROPE_HALVES;
    return true;
}

static bool read_head_norms(mti_hf_reader *r, const json_t *value)
{
    if (!json_is_boolean(value)) return refuse(r, value, "true or false");
    r->c.qk_norm = json_is_true(value) ? MT_QK_NORM_HEAD : MT_QK_NORM_NONE;
    return true;
}

/* The share of each head that is turned. */
static bool read_part(mti_hf_reader *r, const json_t *value)
{
    r->turned = json_number_value(value);
    return (r->turned > 0 && r->turned <= 1) || refuse(r, value, "a number above 0, and 1 at most");
}

/* Attention and MLP read the same input, or one after the other. */
static bool read_parallel(mti_hf_reader *r, const json_t *value)
{
    if (!json_is_boolean(value)) return refuse(r, value, "true or false");
    r->c.norm = json_is_true(value) ? MT_NORM_PARALLEL : MT_NORM_PRE;
    return true;
}

static bool read_groups(mti_hf_reader *r, const json_t *value)
{
    r->grouped = is_word(value, "group_limited_greedy");
    return r->grouped || is_word(value, "greedy") ||
           refuse(r, value, "greedy or group_limited_greedy");
}

static bool read_tied(mti_hf_reader *r, const json_t *value)
{
    if (!json_is_boolean(value)) return refuse(r, value, "true or false");
    r->c.untied = r->c.kind == MT_MODEL_GPT && json_is_false(value);
    r->c.tied = r->c.kind == MT_MODEL_LLAMA && json_is_true(value);
    return true;
}

/* Below 0 it counts from the vocabulary's end, which may come later. A roberta's positions begin
 * after it. */
static bool read_padding(mti_hf_reader *r, const json_t *value)
{
    bool positions = r->c.kind == MT_MODEL_BERT && r->c.position_offset > 0;
    json_int_t token = json_integer_value(value);
    if (json_is_null(value)) {
        r->c.padded = positions;
        return true;
    }
    if (!json_is_integer(value) || token < (positions ? 0 : -(1 << 30)) || token > 1 << 30)
        return refuse(r, value, positions ? "a whole number from 0" : "a token");
    r->c.padded = true;
    r->c.pad_token = (int64_t)token;
    if (positions) r->c.position_offset = (int64_t)token + 1;
    return true;
}

/* Names of architectures. Other classes of the family have another head, or none, and so other
 * parameters and loss. */
static bool read_head(mti_hf_reader *r, const json_t *value)
{
    char why[160];
    size_t n = json_array_size(value), heads = 0;
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(value, i))) n = 0;
    *why = '\0';
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (!strcmp(families[i].type, r->family->type))
            mti_hf_put(why, sizeof why, "%s[\"%s\"]", heads++ ? " or " : "", families[i].class);
    mti_hf_put(why, sizeof why, ", the head%s that a %s has here", heads > 1 ? "s" : "",
               r->family->type);
    if (!n) return refuse(r, value, why);
    for (size_t i = 0; i < n; i++)
        if (!is_word(json_array_get(value, i), r->family->class))
            return mti_fail_bool(MT_ERR_UNSUPPORTED, MTI_ANY_FILE "\"%s\" names \"%.60s\"; need %s",
                                 r->key->name, json_string_value(json_array_get(value, i)), why);
    return true;
}

static bool read_rope(mti_hf_reader *r, const json_t *value);

/* Angles of layers with a window, and of those without. */
static bool read_ropes(mti_hf_reader *r, const json_t *value)
{
    const json_t *local = json_object_get(value, "sliding_attention");
    if (strcmp(mti_hf_rope_type(local), "default") != 0)
        return refuse(r, local, "angles of local layers of type \"default\"");
    if (!read_rope(r, local)) return false;
    const double theta = r->c.rope_theta;
    r->scaling = NULL;
    if (!read_rope(r, json_object_get(value, "full_attention"))) return false;
    if (r->c.local_theta > 0) r->c.local_theta = theta;
    return r->c.local_theta > 0 || theta == r->c.rope_theta ||
           refuse(r, value, "one rope_theta for all layers");
}

/* Kept until the context is known; rope_scaling goes before rope_parameters. */
static bool read_scaling(mti_hf_reader *r, const json_t *value)
{
    if (mti_hf_is_empty(value)) return true;
    if (!json_is_object(value)) return refuse(r, value, "an object");
    if (!r->scaling || !strcmp(r->key->name, "rope_scaling"))
        r->scaling = value, r->scaling_key = r->key->name;
    return true;
}

static bool read_rope(mti_hf_reader *r, const json_t *value)
{
    const json_t *theta = json_object_get(value, "rope_theta");
    const json_t *part = json_object_get(value, "partial_rotary_factor");
    if (json_object_get(value, "full_attention")) return read_ropes(r, value);
    if (!json_is_object(value) || !json_is_number(theta) || !(json_number_value(theta) > 0))
        return refuse(r, value, "an object with a \"rope_theta\" above 0");
    if (part && !read_part(r, part)) return false;
    r->c.rope_theta = json_number_value(theta);
    return read_scaling(r, value);
}

static bool read_biases(mti_hf_reader *r, const json_t *value)
{
    return read_flag(r, value) && ((r->c.qkv_bias = r->c.proj_bias), true);
}

static bool read_layers(mti_hf_reader *r, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!is_word(json_array_get(value, i), "full_attention") &&
            !is_word(json_array_get(value, i), "sliding_attention"))
            return refuse(r, value, "full_attention or sliding_attention for each layer");
    return true;
}

/* Layers with rotary positions are 1, those without 0; which they are is seen in the end. */
static bool read_turned(mti_hf_reader *r, const json_t *value)
{
    size_t i = 0;
    while (i < json_array_size(value) && json_is_integer(json_array_get(value, i)) &&
           json_integer_value(json_array_get(value, i)) >> 1 == 0)
        i++;
    return (i && i == json_array_size(value)) ||
           refuse(r, value, "a list of 1 or 0 for each layer: with rotary positions or without");
}

static bool read_noted(mti_hf_reader *r, const json_t *value)
{
    return mti_hf_is_empty(value) || note(r);
}

/* The row's text begins with the one value that is taken; false stands for anything empty. */
static bool read_only(mti_hf_reader *r, const json_t *value)
{
    char text[MTI_JSON_BEGIN];
    const size_t n = strcspn(r->key->text, ":,");
    const char *said = mti_hf_is_empty(value)    ? "false"
                       : is_word(value, "swish") ? "\"silu\""
                                                 : mti_json_begin(value, text);
    if (json_is_real(value)) mti_format(text, sizeof text, "%.17g", json_number_value(value));
    return (strlen(said) == n && !strncmp(said, r->key->text, n)) || refuse(r, value, r->key->text);
}

/* ---- the keys ---- */

#define KEY(name, families, needed, read, field)                                                   \
    {name, families, read, offsetof(mt_model_config, field), needed, NULL},
#define ONLY(name, families, text) {name, families, read_only, 0, 0, text},
#define NOTED(name, families, read, field, text)                                                   \
    {name, families, read, offsetof(mt_model_config, field), 0, text},
#define IDLE(name, families) {name, families, NULL, 0, 0, NULL},
#define FIELD(...)
#define OP(...)
#define RULE(...)
static const mti_hf_key keys[] = {
#include "nn/model_fields.def"
#include "io/hf_keys.def"
};
#define N_KEYS (sizeof keys / sizeof *keys)

/* No effect on a training step; strings and empty values need no row. */
static const char *const idle[] = {
#include "io/hf_idle.def"
};

/* Keys of tools that leave their mark in a file, and private ones, begin so. */
static const char *const idle_beginnings[] = {"_", "unsloth_", "transformers.", "transformers_"};

const mti_hf_key *mti_hf_find_key(const mti_hf_family *family, const char *name)
{
    static const mti_hf_key no_effect = {0};
    for (size_t i = 0; i < N_KEYS; i++)
        if (keys[i].families & family->bit && !strcmp(keys[i].name, name)) return &keys[i];
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (!strcmp(idle[i], name)) return &no_effect;
    for (size_t i = 0; i < sizeof idle_beginnings / sizeof *idle_beginnings; i++)
        if (!strncmp(idle_beginnings[i], name, strlen(idle_beginnings[i]))) return &no_effect;
    return NULL;
}

bool mti_hf_read(mti_hf_reader *r, const json_t *value)
{
    const bool missing = json_is_null(value) && !(r->key->needed & r->family->bit) &&
                         r->key->read != read_cap && r->key->read != read_padding;
    return missing || r->key->read(r, value);
}

/* Whether the family has its own size where the file says nothing. */
static bool has_default(const mti_hf_family *family, const mti_hf_key *key)
{
    return key->read == read_size && *(const int64_t *)((const char *)&family->config + key->at);
}

const char *mti_hf_missing(const mti_hf_family *family, const json_t *root)
{
    for (size_t i = 0; i < N_KEYS; i++)
        if (keys[i].families & keys[i].needed & family->bit &&
            !json_object_get(root, keys[i].name) && !has_default(family, &keys[i]))
            return keys[i].name;
    return NULL;
}
