/* hf_config.c: from Hugging Face's config.json to mt_model_config, by the table in hf_keys.c. An
 * unknown key that could change shapes or values is refused, as a wrong model is worse than none.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "nn/json_text.h"
#include "nn/hf_keys.h"

/* ---- notes and errors ---- */

typedef struct reader {
    unsigned family;
    const char *type, *class;
    mt_model_config c;
    const char *dropout_key; /* the first that was read */
    double dropout;
    char *notes, *ignored; /* cut to their buffers */
    size_t n_notes, n_ignored;
    char unknown[640]; /* keys that no row explains, with their values */
    int n_unknown, n_listed;
} reader;

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

static void ignore(reader *r, const char *key)
{
    put(r->ignored, r->n_ignored, "%s%.60s", *r->ignored ? ", " : "", key);
}

#define ANY_FILE "config.json: " /* begins messages if the file's name is unknown */

#define VALUE_TEXT 64
/* The value as JSON, cut to its first 60 bytes. */
static const char *value_text(char text[VALUE_TEXT], const json_t *value)
{
    size_t n = mti_json_dump(value, text, 60, JSON_ENCODE_ANY | JSON_COMPACT);
    strcpy(text + (n < 60 ? n : 60), n > 60 ? "..." : "");
    return text;
}

static bool refuse_as(mt_status status, const char *key, const json_t *value, const char *why)
{
    char text[VALUE_TEXT];
    return mti_fail_bool(status, ANY_FILE "\"%.60s\" is %s%s", key, value_text(text, value), why);
}

/* Fails with "config.json: "n_embd" is 0; need ...". */
static bool refuse(const char *key, const json_t *value, const char *need)
{
    char why[160];
    snprintf(why, sizeof why, "; need %s", need);
    return refuse_as(MT_ERR_FORMAT, key, value, why);
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

static bool read_size(const mti_hf_rule *rule, const json_t *value, int64_t *out)
{
    char need[64];
    const int64_t most =
        rule->at == offsetof(mt_model_config, layers) ? MTI_MAX_LAYERS : MTI_MAX_EXTENT;
    snprintf(need, sizeof need, "a whole number from 1 to %lld", (long long)most);
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > most)
        return refuse(rule->key, value, need);
    *out = (int64_t)json_integer_value(value);
    return true;
}

static bool read_dropout(reader *r, const char *key, const json_t *value)
{
    double p = json_number_value(value);
    if (!json_is_number(value) || !(p >= 0 && p < 1))
        return refuse(key, value, "a number from 0 to below 1");
    if (r->dropout_key && p != r->dropout)
        return mti_fail_bool(MT_ERR_FORMAT,
                             ANY_FILE "\"%s\" is %g, \"%s\" is %g; need one probability for "
                                      "all dropouts",
                             r->dropout_key, r->dropout, key, p);
    r->dropout_key = key;
    r->c.dropout = r->dropout = p;
    return true;
}

static bool read_act(reader *r, const char *key, const json_t *value)
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
    return refuse(key, value,
                  "one of gelu, gelu_new, gelu_fast, gelu_pytorch_tanh, relu, silu, swish, tanh, "
                  "sigmoid");
}

static bool read_dtype(const char *key, const json_t *value, mt_dtype *out)
{
    if (is_word(value, "float32"))
        *out = MT_F32;
    else if (is_word(value, "bfloat16"))
        *out = MT_BF16;
    else if (is_word(value, "float16"))
        *out = MT_F16;
    else
        return refuse(key, value, "float32, bfloat16 or float16");
    return true;
}

/* Below 0 it counts from the vocabulary's end, which may come later. */
static bool read_padding(reader *r, const char *key, const json_t *value)
{
    bool positions = r->c.position_offset > 0;
    json_int_t token = json_integer_value(value);
    if (!json_is_integer(value) || token < (positions ? 0 : -(1 << 30)) || token > 1 << 30)
        return refuse(key, value, positions ? "a whole number from 0" : "a token");
    r->c.padding = (int64_t)token + (token >= 0);
    if (positions) r->c.position_offset = (int64_t)token + 1;
    return true;
}

/* Other classes of the family have another head, or none, and so other parameters and loss. */
static bool read_head(const reader *r, const char *key, const json_t *value)
{
    char why[120];
    size_t n = json_array_size(value);
    for (size_t i = 0; i < n; i++)
        if (!json_is_string(json_array_get(value, i))) n = 0;
    snprintf(why, sizeof why, "[\"%s\"], the head that a %s has here", r->class, r->type);
    if (!n) return refuse(key, value, why);
    for (size_t i = 0; i < n; i++)
        if (!is_word(json_array_get(value, i), r->class))
            return mti_fail_bool(MT_ERR_UNSUPPORTED, ANY_FILE "\"%s\" names \"%.60s\"; need %s",
                                 key, json_string_value(json_array_get(value, i)), why);
    return true;
}

static bool read_rope(reader *r, const mti_hf_rule *rule, const json_t *value);

/* Angles of layers with a window, and of those without. */
static bool read_ropes(reader *r, const mti_hf_rule *rule, const json_t *value)
{
    const json_t *local = json_object_get(value, "sliding_attention");
    const json_t *global = json_object_get(value, "full_attention");
    if (!read_rope(r, rule, local)) return false;
    const double theta = r->c.rope_theta;
    if (!read_rope(r, rule, global)) return false;
    if (r->c.local_theta > 0) r->c.local_theta = theta;
    return r->c.local_theta > 0 || theta == r->c.rope_theta ||
           refuse(rule->key, value, "one rope_theta for all layers");
}

static bool read_rope(reader *r, const mti_hf_rule *rule, const json_t *value)
{
    if (json_object_get(value, "full_attention")) return read_ropes(r, rule, value);
    const json_t *theta = json_object_get(value, "rope_theta");
    const json_t *type = json_object_get(value, "rope_type");
    if (!json_is_object(value) || !json_is_number(theta) || !(json_number_value(theta) > 0))
        return refuse(rule->key, value, "an object with a \"rope_theta\" above 0");
    const json_t *part = json_object_get(value, "partial_rotary_factor");
    if (part && json_number_value(part) != 1)
        return refuse("partial_rotary_factor", part, "1: whole heads are turned here");
    if (type && !is_word(type, "default"))
        put(r->notes, r->n_notes, "%s: %s\n", rule->key, rule->note);
    r->c.rope_theta = json_number_value(theta);
    return true;
}

static bool read_layers(const char *key, const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++)
        if (!is_word(json_array_get(value, i), "full_attention") &&
            !is_word(json_array_get(value, i), "sliding_attention"))
            return refuse(key, value, "full_attention or sliding_attention for each layer");
    return true;
}

static bool read_value(reader *r, const mti_hf_rule *rule, const json_t *value)
{
    void *at = (char *)&r->c + rule->at;
    const char *key = rule->key;
    if (rule->form == MTI_HF_CAP && json_is_null(value)) *(double *)at = 0;
    if (rule->form == MTI_HF_PADDING && json_is_null(value) && !r->c.position_offset)
        r->c.padding = 0;
    /* null: as if it were missing */
    if (json_is_null(value) && rule->form != MTI_HF_NOTED && !(rule->needed & r->family))
        return true;
    switch (rule->form) {
    case MTI_HF_SIZE: return read_size(rule, value, at);
    case MTI_HF_REAL:
    case MTI_HF_CAP:
    case MTI_HF_ROOT:
        if (!json_is_number(value) || !(json_number_value(value) > 0))
            return refuse(key, value, "a number above 0");
        *(double *)at = json_number_value(value);
        if (rule->form == MTI_HF_ROOT) *(double *)at = 1 / sqrt(*(double *)at);
        return true;
    case MTI_HF_DROPOUT: return read_dropout(r, key, value);
    case MTI_HF_ZERO:
        return (json_is_number(value) && json_number_value(value) == 0) ||
               refuse(key, value, "0: the model here has no such thing");
    case MTI_HF_ONE:
        return (json_is_number(value) && json_number_value(value) == 1) ||
               refuse(key, value, "1: the model here does all of it");
    case MTI_HF_ACT: return read_act(r, key, value);
    case MTI_HF_SILU:
        return is_word(value, "silu") || is_word(value, "swish") ||
               refuse(key, value, "silu, the activation of a gated MLP here");
    case MTI_HF_GELU:
        return is_word(value, "gelu") || refuse(key, value, "gelu, as the head's always is");
    case MTI_HF_PADDING: return read_padding(r, key, value);
    case MTI_HF_TIED:
        if (!json_is_boolean(value)) return refuse(key, value, "true or false");
        if (r->c.kind == MT_MODEL_GPT)
            r->c.untied = json_is_false(value);
        else
            r->c.tied = json_is_true(value);
        return true;
    case MTI_HF_DTYPE: return read_dtype(key, value, &r->c.dtype);
    case MTI_HF_NO:
        return is_empty(value) || refuse(key, value, "false: the model here has no such thing");
    case MTI_HF_YES:
        return json_is_true(value) || refuse(key, value, "true: the model here has it always");
    case MTI_HF_ABSOLUTE: return is_word(value, "absolute") || refuse(key, value, "absolute");
    case MTI_HF_ROPE: return read_rope(r, rule, value);
    case MTI_HF_WINDOW: return is_empty(value) || read_size(rule, value, at);
    case MTI_HF_LAYERS: return read_layers(key, value);
    case MTI_HF_HEADED: return read_head(r, key, value);
    case MTI_HF_NOTED:
        if (!is_empty(value)) put(r->notes, r->n_notes, "%s: %s\n", key, rule->note);
        return true;
    case MTI_HF_KIND:
    case MTI_HF_IDLE: break;
    }
    return true;
}

/* A key without a row is ignored if it is a string, off or empty, which cannot change the model.
 * The others are told together, after the last key. */
static void read_unknown(reader *r, const char *key, const json_t *value)
{
    char text[VALUE_TEXT];
    if (is_empty(value) || json_is_string(value)) {
        ignore(r, key);
        return;
    }
    r->n_unknown++;
    if (strlen(r->unknown) > sizeof r->unknown - VALUE_TEXT - 80) return;
    put(r->unknown, sizeof r->unknown, "%s\"%.60s\" is %s", r->n_listed++ ? ", " : "", key,
        value_text(text, value));
}

static bool check_unknown(const reader *r)
{
    char more[32] = "";
    if (!r->n_unknown) return true;
    if (r->n_unknown > r->n_listed)
        snprintf(more, sizeof more, " and %d more", r->n_unknown - r->n_listed);
    return mti_fail_bool(MT_ERR_FORMAT, ANY_FILE "%s%s; need %s if %s neither shapes nor values",
                         r->unknown, more,
                         r->n_unknown == 1 ? "a known key; remove it" : "known keys; remove them",
                         r->n_unknown == 1 ? "it changes" : "they change");
}

static bool read_keys(reader *r, json_t *root)
{
    const char *key;
    json_t *value;
    const mti_hf_rule *rule;
    json_object_foreach(root, key, value)
    {
        rule = mti_hf_rule_of(r->family, key);
        if (!rule)
            read_unknown(r, key, value);
        else if (rule->form == MTI_HF_IDLE)
            ignore(r, key);
        else if (!read_value(r, rule, value))
            return false;
    }
    for (size_t i = 0; (rule = mti_hf_rule_at(i)); i++)
        if (rule->families & rule->needed & r->family && !json_object_get(root, rule->key))
            return mti_fail_bool(MT_ERR_FORMAT, ANY_FILE "\"%s\" is missing; a %s needs it",
                                 rule->key, r->type);
    return check_unknown(r);
}

/* ---- the whole ---- */

/* Refuses, by name, what is no dense language model of text alone. */
static bool check_sort(const json_t *root)
{
    const char *key;
    const json_t *value, *text = json_object_get(root, "text_config");
    for (void *at = json_object_iter((json_t *)root); at;
         at = json_object_iter_next((json_t *)root, at)) {
        key = json_object_iter_key(at), value = json_object_iter_value(at);
        if (mti_hf_counts_experts(key) && json_number_value(value) > 0)
            return refuse_as(MT_ERR_UNSUPPORTED, key, value,
                             ": a mixture of experts, which is not modelled; need a dense model");
    }
    return !json_is_object(text) ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         ANY_FILE "has a \"text_config\": a model of more than text, which is "
                                  "not modelled; its text model alone needs a file of its own");
}

/* By "model_type", or else by the name of the first architecture. */
static const mti_hf_family *find_family(const json_t *root)
{
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const char *made = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    const mti_hf_family *f;
    char list[320] = "";
    for (size_t i = 0; (f = mti_hf_family_at(i)); i++) {
        if (type ? !strcmp(type, f->type) : made && !strcmp(made, f->class)) return f;
        put(list, sizeof list, "%s%s", i ? ", " : "", made && !type ? f->class : f->type);
    }
    const char *name = type ? type : made;
    if (name)
        mti_fail(MT_ERR_UNSUPPORTED,
                 ANY_FILE "the architecture \"%.60s\" is unknown; need one "
                          "of %s",
                 name, list);
    else
        mti_fail(MT_ERR_FORMAT,
                 ANY_FILE "neither \"model_type\" nor \"architectures\" says "
                          "what it is; need one of %s",
                 list);
    return NULL;
}

/* Whether the window that the file names holds in some layer. */
static bool window_holds(const reader *r, const json_t *root)
{
    const json_t *types = json_object_get(root, "layer_types");
    const json_t *first = json_object_get(root, "max_window_layers");
    bool holds = !json_is_array(types);
    for (size_t i = 0; !holds && i < json_array_size(types); i++)
        holds = is_word(json_array_get(types, i), "sliding_attention");
    if (mti_hf_rule_of(r->family, "use_sliding_window")) /* then it has to be switched on */
        holds = holds && json_is_true(json_object_get(root, "use_sliding_window")) &&
                !(json_is_integer(first) && json_integer_value(first) >= r->c.layers);
    return holds && r->c.window < r->c.context;
}

static void finish_window(reader *r, const json_t *root)
{
    const mti_hf_rule *rule = mti_hf_rule_of(r->family, "sliding_window");
    if (r->c.window && window_holds(r, root))
        put(r->notes, r->n_notes, "%s: %s\n", rule->key, rule->note);
    else
        r->c.window = 0;
}

/* Rows of the table of positions that are no position's are no part of the context. */
static bool finish_positions(reader *r)
{
    if (r->c.padding < 0) r->c.padding += r->c.vocab + 1;
    const int64_t rows = r->c.context;
    r->c.context -= r->c.position_offset;
    return r->c.context > 0 ||
           mti_fail_bool(MT_ERR_FORMAT,
                         ANY_FILE "\"max_position_embeddings\" is %lld; need more than the %lld "
                                  "of padding",
                         (long long)rows, (long long)r->c.position_offset);
}

/* Layers without a window stand at every local_period-th place. */
static bool finish_local(reader *r, const json_t *root)
{
    const json_t *types = json_object_get(root, "layer_types");
    size_t n = json_array_size(types), period = 0;
    if (!(r->c.local_theta > 0) || !n) return true;
    while (period < n && !is_word(json_array_get(types, period), "full_attention")) period++;
    period++;
    for (size_t i = 0; i < n; i++)
        if (is_word(json_array_get(types, i), "full_attention") != ((i + 1) % period == 0))
            return refuse("layer_types", types, "full_attention at every n-th place");
    r->c.local_period = (int64_t)period;
    return true;
}

static mt_status from_root(json_t *root, mt_model_config *out, char *notes, size_t n_bytes)
{
    if (!json_is_object(root)) return mti_fail(MT_ERR_FORMAT, ANY_FILE "is not a JSON object");
    const mti_hf_family *family = check_sort(root) ? find_family(root) : NULL;
    if (!family) return mt_last_status();
    char ignored[1024] = "";
    if (n_bytes) notes[0] = 0;
    reader r = {.family = family->bit,
                .type = family->type,
                .class = family->class,
                .c = family->config,
                .notes = notes,
                .n_notes = n_bytes,
                .ignored = ignored,
                .n_ignored = sizeof ignored};
    if (!read_keys(&r, root)) return mt_last_status();
    finish_window(&r, root);
    if (!finish_local(&r, root) || !finish_positions(&r)) return mt_last_status();
    mt_status status = mt_model_config_check(&r.c);
    if (status != MT_OK) return status;
    if (*ignored) put(notes, n_bytes, "ignored: %s\n", ignored);
    *out = r.c;
    return MT_OK;
}

mt_status mt_model_config_from_hf(const char *json, mt_model_config *out, char *notes,
                                  size_t n_bytes)
{
    if (!json || !out || (n_bytes && !notes))
        return mti_fail(MT_ERR_ARGUMENT, ANY_FILE "the %s is NULL",
                        !json  ? "text"
                        : !out ? "result"
                               : "buffer for notes");
    json_error_t error;
    uint64_t failures = mti_failures(); /* the parser may run out of memory */
    json_t *root = mti_json_read(json, strlen(json), &error);
    if (!root)
        return mti_fail_around(failures, MT_ERR_FORMAT, ANY_FILE "line %d, column %d: %s",
                               error.line, error.column, error.text);
    mt_status status = from_root(root, out, notes, n_bytes);
    json_decref(root);
    return status;
}

/* Replaces "config.json" in the error by the file's path. */
static mt_status name_the_file(const char *path, mt_status status)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", mt_last_error());
    size_t n = strlen(ANY_FILE);
    mt_clear_error();
    return mti_fail(status, "%.200s: %s", path, strncmp(text, ANY_FILE, n) ? text : text + n);
}

char *mti_config_path(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    if (!mti_is_folder(path)) return mti_strdup(path);
    char *file = mti_malloc(n + sizeof "/config.json");
    if (file) snprintf(file, n + sizeof "/config.json", "%.*s/config.json", (int)n, path);
    return file;
}

#define LARGEST_FILE ((size_t)16 << 20)

mt_status mt_model_config_from_hf_file(const char *path, mt_model_config *out, char *notes,
                                       size_t n_bytes)
{
    size_t n;
    if (!path || !out || (n_bytes && !notes))
        return mti_fail(MT_ERR_ARGUMENT, ANY_FILE "the %s is NULL",
                        !path  ? "path"
                        : !out ? "result"
                               : "buffer for notes");
    char *file = mti_config_path(path);
    char *text = file ? mti_file_read(file, LARGEST_FILE, &n) : NULL;
    mti_free(file);
    if (!text) return mt_last_status();
    bool is_text = strlen(text) == n;
    mt_status status = is_text ? mt_model_config_from_hf(text, out, notes, n_bytes)
                               : mti_fail(MT_ERR_FORMAT, "%.200s: has zero bytes; need JSON", path);
    mti_free(text);
    return status == MT_OK || !is_text || status == MT_ERR_MEMORY ? status
                                                                  : name_the_file(path, status);
}
