/* hf_config.c: from Hugging Face's config.json to mt_model_config: the families, and how their keys
 * are read, by the rows of model_fields.def and hf_keys.def. An unknown key that could change
 * shapes or values is refused, as a wrong model is worse than none. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "files/files.h"
#include "io/hf_config.h"
#include "files/json_text.h"
#include "nn/model.h"

/* ---- the families ---- */

static const struct hf_family {
    const char *type;  /* as "model_type" names it */
    const char *class; /* the architecture: the model with the head that is made here */
    unsigned bit;
    mt_model_config config; /* defaults */
} families[] = {
#define FAMILY(type, class, bit, ...) {type, class, bit, {__VA_ARGS__}},
#include "io/hf_families.def"
};
#define N_FAMILIES (sizeof families / sizeof *families)

/* ---- reading ---- */

typedef struct reader {
    const struct hf_family *family;
    const struct hf_key *key; /* that is being read */
    const json_t *root;
    mt_model_config c;
    const char *dropout_key; /* the first that was read */
    bool grouped;            /* experts are chosen by groups */
    double turned;           /* share of a head */
    const json_t *scaling;   /* of angles, and its key; NULL: none is named */
    const char *scaling_key;
    char *notes; /* cut to the buffer */
    size_t n_notes;
    char ignored[1024];
    char unknown[640]; /* keys that no row explains, with their values */
    int n_unknown, n_listed;
} reader;

typedef bool read_fn(reader *r, const json_t *value);
typedef struct hf_key {
    const char *name;
    unsigned families;
    read_fn *read;    /* NULL: no effect on a training step */
    size_t at;        /* of the field of mt_model_config that it sets */
    unsigned needed;  /* families in which it must be given: their defaults differ from ours */
    const char *text; /* ONLY: the value, and why; NOTED: the note */
} hf_key;

static void put(char *text, size_t n_bytes, const char *fmt, ...) MT_PRINTF(3, 4);
static void put(char *text, size_t n_bytes, const char *fmt, ...)
{
    size_t n = n_bytes ? strlen(text) : 0;
    if (n + 1 >= n_bytes) return;
    va_list args;
    va_start(args, fmt);
    mti_vformat(text + n, n_bytes - n, fmt, args);
    va_end(args);
    mti_make_printable(text + n); /* notes quote the file, too */
}

static bool refuse_as(mt_status status, const char *key, const json_t *value, const char *why)
{
    char text[MTI_JSON_BEGIN];
    return mti_fail_bool(status, MTI_ANY_FILE "\"%.60s\" is %s%s", key, mti_json_begin(value, text),
                         why);
}

/* Fails with "config.json: "n_embd" is 0; need ...". */
static bool refuse(const reader *r, const json_t *value, const char *need)
{
    char why[160];
    snprintf(why, sizeof why, "; need %s", need);
    return refuse_as(MT_ERR_FORMAT, r->key->name, value, why);
}

static bool note(reader *r)
{
    put(r->notes, r->n_notes, "%s: %s\n", r->key->name, r->key->text);
    return true;
}

/* ---- values ---- */

static bool is_empty(const json_t *value)
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

static void *field(reader *r) { return (char *)&r->c + r->key->at; }

static bool read_size(reader *r, const json_t *value)
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

static bool read_count(reader *r, const json_t *value)
{
    const bool none = json_is_integer(value) && json_integer_value(value) == 0;
    if (none) *(int64_t *)field(r) = 0;
    return none || read_size(r, value);
}

/* Heads have a part that is turned, and one that is not. */
static bool read_head_part(reader *r, const json_t *value)
{
    const int64_t other = r->c.head_dim;
    if (!read_size(r, value)) return false;
    r->c.head_dim = other + *(int64_t *)field(r);
    return true;
}

/* Embeddings are as wide as the model here. */
static bool read_embedded(reader *r, const json_t *value)
{
    return json_equal(value, json_object_get(r->root, "hidden_size")) ||
           refuse(r, value, "that of \"hidden_size\": the model here has no products between them");
}

static bool read_window(reader *r, const json_t *value)
{
    return is_empty(value) || read_size(r, value);
}

static bool read_real(reader *r, const json_t *value)
{
    if (!json_is_number(value) || !(json_number_value(value) > 0))
        return refuse(r, value, "a number above 0");
    *(double *)field(r) = json_number_value(value);
    return true;
}

/* Whether it holds is seen in the end. */
static bool read_share(reader *r, const json_t *value)
{
    *(double *)field(r) = json_number_value(value);
    return json_number_value(value) == 0 || read_real(r, value);
}

/* Says whether router_aux_loss_coef counts: seen in the end, too. */
static bool read_switch(reader *r, const json_t *value)
{
    return json_is_boolean(value) || refuse(r, value, "true or false");
}

/* null: none */
static bool read_cap(reader *r, const json_t *value)
{
    if (json_is_null(value)) *(double *)field(r) = 0;
    return json_is_null(value) || read_real(r, value);
}

/* Scores are divided by its root. */
static bool read_root(reader *r, const json_t *value)
{
    if (!read_real(r, value)) return false;
    *(double *)field(r) = 1 / sqrt(*(double *)field(r));
    return true;
}

/* All dropouts of a file must be equal: we have one. */
static bool read_dropout(reader *r, const json_t *value)
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

static bool read_act(reader *r, const json_t *value)
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

static bool read_dtype(reader *r, const json_t *value)
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

static bool read_flag(reader *r, const json_t *value)
{
    if (!json_is_boolean(value)) return refuse(r, value, "true or false");
    *(bool *)field(r) = json_is_true(value);
    return true;
}

static bool read_pairs(reader *r, const json_t *value)
{
    if (!json_is_boolean(value)) return refuse(r, value, "true or false");
    r->c.rope_order = json_is_true(value) ? MT_ROPE_PAIRS : MT_ROPE_HALVES;
    return true;
}

static bool read_head_norms(reader *r, const json_t *value)
{
    if (!json_is_boolean(value)) return refuse(r, value, "true or false");
    r->c.qk_norm = json_is_true(value) ? MT_QK_NORM_HEAD : MT_QK_NORM_NONE;
    return true;
}

/* The share of each head that is turned. */
static bool read_part(reader *r, const json_t *value)
{
    r->turned = json_number_value(value);
    return (r->turned > 0 && r->turned <= 1) || refuse(r, value, "a number above 0, and 1 at most");
}

static bool read_groups(reader *r, const json_t *value)
{
    r->grouped = is_word(value, "group_limited_greedy");
    return r->grouped || is_word(value, "greedy") ||
           refuse(r, value, "greedy or group_limited_greedy");
}

static bool read_tied(reader *r, const json_t *value)
{
    if (!json_is_boolean(value)) return refuse(r, value, "true or false");
    r->c.untied = r->c.kind == MT_MODEL_GPT && json_is_false(value);
    r->c.tied = r->c.kind == MT_MODEL_LLAMA && json_is_true(value);
    return true;
}

/* Below 0 it counts from the vocabulary's end, which may come later. A roberta's positions begin
 * after it. */
static bool read_padding(reader *r, const json_t *value)
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
static bool read_head(reader *r, const json_t *value)
{
    char why[160];
    size_t n = json_array_size(value), heads = 0;
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(value, i))) n = 0;
    *why = '\0';
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (!strcmp(families[i].type, r->family->type))
            put(why, sizeof why, "%s[\"%s\"]", heads++ ? " or " : "", families[i].class);
    put(why, sizeof why, ", the head%s that a %s has here", heads > 1 ? "s" : "", r->family->type);
    if (!n) return refuse(r, value, why);
    for (size_t i = 0; i < n; i++)
        if (!is_word(json_array_get(value, i), r->family->class))
            return mti_fail_bool(MT_ERR_UNSUPPORTED, MTI_ANY_FILE "\"%s\" names \"%.60s\"; need %s",
                                 r->key->name, json_string_value(json_array_get(value, i)), why);
    return true;
}

static bool read_rope(reader *r, const json_t *value);

/* Angles of layers with a window, and of those without. */
static bool read_ropes(reader *r, const json_t *value)
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
static bool read_scaling(reader *r, const json_t *value)
{
    if (is_empty(value)) return true;
    if (!json_is_object(value)) return refuse(r, value, "an object");
    if (!r->scaling || !strcmp(r->key->name, "rope_scaling"))
        r->scaling = value, r->scaling_key = r->key->name;
    return true;
}

static bool read_rope(reader *r, const json_t *value)
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

static bool read_biases(reader *r, const json_t *value)
{
    return read_flag(r, value) && ((r->c.qkv_bias = r->c.proj_bias), true);
}

static bool read_layers(reader *r, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!is_word(json_array_get(value, i), "full_attention") &&
            !is_word(json_array_get(value, i), "sliding_attention"))
            return refuse(r, value, "full_attention or sliding_attention for each layer");
    return true;
}

static bool read_noted(reader *r, const json_t *value) { return is_empty(value) || note(r); }

/* The row's text begins with the one value that is taken; false stands for anything empty. */
static bool read_only(reader *r, const json_t *value)
{
    char text[MTI_JSON_BEGIN];
    const size_t n = strcspn(r->key->text, ":,");
    const char *said = is_empty(value)           ? "false"
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
static const hf_key keys[] = {
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

/* NULL: no row for this key in this family. */
static const hf_key *find_key(const reader *r, const char *name)
{
    static const hf_key no_effect = {0};
    for (size_t i = 0; i < N_KEYS; i++)
        if (keys[i].families & r->family->bit && !strcmp(keys[i].name, name)) return &keys[i];
    for (size_t i = 0; i < sizeof idle / sizeof *idle; i++)
        if (!strcmp(idle[i], name)) return &no_effect;
    for (size_t i = 0; i < sizeof idle_beginnings / sizeof *idle_beginnings; i++)
        if (!strncmp(idle_beginnings[i], name, strlen(idle_beginnings[i]))) return &no_effect;
    return NULL;
}

/* A key without a row is ignored if it is a string, off or empty, which cannot change the model.
 * The others are told together, after the last key. */
static bool read_key(reader *r, const char *name, const json_t *value)
{
    char text[MTI_JSON_BEGIN];
    r->key = find_key(r, name);
    if (!strcmp(name, "model_type")) return true; /* it told the family */
    if (r->key ? !r->key->read : is_empty(value) || json_is_string(value)) {
        put(r->ignored, sizeof r->ignored, "%s%.60s", *r->ignored ? ", " : "", name);
        return true;
    }
    if (r->key) {
        /* null: as if it were missing */
        bool missing = json_is_null(value) && !(r->key->needed & r->family->bit) &&
                       r->key->read != read_cap && r->key->read != read_padding;
        return missing || r->key->read(r, value);
    }
    r->n_unknown++;
    if (strlen(r->unknown) > sizeof r->unknown - MTI_JSON_BEGIN - 80) return true;
    put(r->unknown, sizeof r->unknown, "%s\"%.60s\" is %s", r->n_listed++ ? ", " : "", name,
        mti_json_begin(value, text));
    return true;
}

static bool check_unknown(const reader *r)
{
    char more[32] = "";
    if (!r->n_unknown) return true;
    if (r->n_unknown > r->n_listed)
        snprintf(more, sizeof more, " and %d more", r->n_unknown - r->n_listed);
    return mti_fail_bool(
        MT_ERR_FORMAT, MTI_ANY_FILE "%s%s; need %s if %s neither shapes nor values", r->unknown,
        more, r->n_unknown == 1 ? "a known key; remove it" : "known keys; remove them",
        r->n_unknown == 1 ? "it changes" : "they change");
}

/* Whether the family has its own size where the file says nothing. */
static bool has_default(const struct hf_family *family, const hf_key *key)
{
    return key->read == read_size && *(const int64_t *)((const char *)&family->config + key->at);
}

static bool read_keys(reader *r, json_t *root)
{
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value) if (!read_key(r, name, value)) return false;
    for (size_t i = 0; i < N_KEYS; i++)
        if (keys[i].families & keys[i].needed & r->family->bit &&
            !json_object_get(root, keys[i].name) && !has_default(r->family, &keys[i]))
            return mti_fail_bool(MT_ERR_FORMAT, MTI_ANY_FILE "\"%s\" is missing; a %s needs it",
                                 keys[i].name, r->family->type);
    return check_unknown(r);
}

/* ---- the whole ---- */

/* The text model of a model of more than text, whose file it may leave the head's weight to. */
static json_t *text_of(json_t *root, reader *r)
{
    static const char tied[] = "tie_word_embeddings";
    json_t *text = json_object_get(root, "text_config"), *above = json_object_get(root, tied);
    if (!json_is_object(text)) return root;
    if (above && !json_object_get(text, tied)) json_object_set(text, tied, above);
    put(r->notes, r->n_notes, "text_config: the text model alone; nothing else is counted\n");
    return text;
}

/* By "model_type", of several such by the name of the first architecture, or by that name alone. */
static const struct hf_family *find_family(const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const char *made = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    const char *name = type ? type : made, *last = "";
    const struct hf_family *found = NULL;
    char list[512] = "";
    for (size_t i = 0; i < N_FAMILIES; i++) {
        const char *known = made && !type ? families[i].class : families[i].type;
        const bool is_it = name && !strcmp(name, known);
        if (is_it && (!found || (made && !strcmp(made, families[i].class)))) found = &families[i];
        if (strcmp(known, last) != 0) put(list, sizeof list, "%s%s", i ? ", " : "", known);
        last = known;
    }
    if (found) return found;
    if (name)
        mti_fail(MT_ERR_UNSUPPORTED,
                 MTI_ANY_FILE
                 "the architecture \"%.60s\" is unknown; need one of %s. Of any "
                 "PyTorch module, memtape.torch.profile(model, batch) counts the bytes",
                 name, list);
    else
        mti_fail(MT_ERR_FORMAT,
                 MTI_ANY_FILE "neither \"model_type\" nor \"architectures\" says "
                              "what it is; need one of %s",
                 list);
    return NULL;
}

/* A file of BERT's family counts the rows before the first position's in the context. */
static bool finish_positions(reader *r)
{
    if (r->c.pad_token < 0) r->c.pad_token += r->c.vocab;
    const int64_t rows = r->c.context;
    if (r->c.kind == MT_MODEL_BERT) r->c.context -= r->c.position_offset;
    return r->c.context > 0 ||
           mti_fail_bool(MT_ERR_FORMAT,
                         MTI_ANY_FILE
                         "\"max_position_embeddings\" is %lld; need more than the %lld "
                         "of padding",
                         (long long)rows, (long long)r->c.position_offset);
}

/* Layers are local, and some not, by a list or by where the local ones begin. */
static bool finish_local(reader *r, const json_t *root)
{
    mt_model_config *c = &r->c;
    const bool from_some = find_key(r, "max_window_layers");
    if (c->window > c->context ||
        (from_some && !json_is_true(json_object_get(root, "use_sliding_window"))))
        c->window = 0;
    bool ok = !(c->window || c->local_theta > 0) || mti_hf_local_layers(c, root, from_some);
    if (!c->window && c->local_theta == 0) c->local_period = c->local_layers = 0;
    return ok;
}

static bool finish_scaling(reader *r, const json_t *root)
{
    bool known = true;
    if (!r->scaling || !mti_hf_scaling(&r->c, r->scaling_key, r->scaling, root, &known))
        return !r->scaling;
    if (!known)
        put(r->notes, r->n_notes,
            "%s: other angles (%.40s), which are not modelled; the same bytes\n", r->scaling_key,
            mti_hf_rope_type(r->scaling));
    return true;
}

static void finish_latent(reader *r)
{
    if (r->family->bit & DEEPSEEK2 && !r->grouped) r->c.expert_groups = r->c.expert_topk_groups = 0;
    if (r->c.expert_scale == 1) r->c.expert_scale = 0;
    const int64_t width = r->c.head_dim ? r->c.head_dim : r->c.hidden / r->c.heads;
    if (r->turned < 1) r->c.rope_dim = (int64_t)fmax((double)width * r->turned, 1); /* 1: refused */
    if (r->c.kv_rank) r->c.attention_scale /= sqrt((double)r->c.head_dim);
}

static mt_status from_root(json_t *root, mt_model_config *out, char *notes, size_t n_bytes)
{
    if (!json_is_object(root)) return mti_fail(MT_ERR_FORMAT, MTI_ANY_FILE "is not a JSON object");
    if (n_bytes) notes[0] = 0;
    reader r = {.notes = notes, .n_notes = n_bytes};
    r.root = root = text_of(root, &r);
    r.family = find_family(root);
    if (!r.family) return mt_last_status();
    r.c = r.family->config;
    r.turned = r.family->bit & GLM4 ? 0.5 : 1;
    if (!read_keys(&r, root) || !finish_scaling(&r, root)) return mt_last_status();
    finish_latent(&r);
    if (!json_is_true(json_object_get(root, "output_router_logits"))) r.c.balance_loss = 0;
    if (!finish_local(&r, root) || !finish_positions(&r)) return mt_last_status();
    mt_status status = mt_model_config_check(&r.c);
    if (status != MT_OK) return status;
    if (*r.ignored) put(notes, n_bytes, "ignored: %s\n", r.ignored);
    *out = r.c;
    return MT_OK;
}

mt_status mt_model_config_from_hf(const char *json, mt_model_config *out, char *notes,
                                  size_t n_bytes)
{
    if (!json || !out || (n_bytes && !notes))
        return mti_fail(MT_ERR_ARGUMENT, MTI_ANY_FILE "the %s is NULL",
                        !json  ? "text"
                        : !out ? "result"
                               : "buffer for notes");
    json_t *root = mti_json_named("config.json", json, strlen(json));
    if (!root) return mt_last_status();
    mt_status status = from_root(root, out, notes, n_bytes);
    json_decref(root);
    return status;
}
