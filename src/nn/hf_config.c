/* hf_config.c: from Hugging Face's config.json to mt_model_config. Every known key has a row here.
 * An unknown key that could change shapes or values is refused, as a wrong model is worse than
 * none. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <jansson.h>
#include "nn/model.h"

/* ---- the families ---- */

enum { GPT2 = 1, LLAMA = 2, MISTRAL = 4, QWEN2 = 8, BERT = 16 };
#define ROTARY (LLAMA | MISTRAL | QWEN2)
#define ANY    (GPT2 | ROTARY | BERT)

static const struct family {
    const char *type; /* as "model_type" names it */
    unsigned bit;
    mt_model_config config; /* defaults */
} families[] = {
    {"gpt2", GPT2, {.kind = MT_MODEL_GPT, .act = MT_ACT_GELU_TANH, .dropout = 0.1}},
    {"llama", LLAMA, {.kind = MT_MODEL_LLAMA}},
    {"mistral", MISTRAL, {.kind = MT_MODEL_LLAMA}},
    {"qwen2", QWEN2, {.kind = MT_MODEL_LLAMA, .qkv_bias = true}},
    {"bert", BERT, {.kind = MT_MODEL_BERT, .act = MT_ACT_GELU, .dropout = 0.1}},
};
#define N_FAMILIES (sizeof families / sizeof *families)

/* ---- the keys ---- */

typedef enum form {
    SIZE,    /* a whole number from 1 on */
    REAL,    /* a number above 0 */
    DROPOUT, /* all dropouts of a file must be equal: we have one */
    ZERO,    /* a number that must be 0 */
    ACT,     /* of a plain MLP */
    SILU,    /* of a gated MLP, which has no other here */
    TIED,    /* whether the head is the token embedding */
    DTYPE,
    NO, /* must be false, null or empty */
    YES,
    ABSOLUTE, /* learned positions, one row each */
    HEADED,   /* a model with the head of a language model, or without a head */
    ROPE,     /* an object with rope_theta; `note` if its angles are not the default */
    NOTED,    /* changes no shape and no byte; `note` says what it does */
    IDLE,     /* no effect on training */
} form;

static const struct rule {
    const char *key;
    unsigned families;
    form form;
    size_t at;
    unsigned needed; /* families in which it must be given: their defaults differ from ours */
    const char *note;
} rules[] = {
#define AT(field) offsetof(mt_model_config, field)
    {"vocab_size", ANY, SIZE, AT(vocab), ANY},
    {"n_embd", GPT2, SIZE, AT(hidden), GPT2},
    {"n_layer", GPT2, SIZE, AT(layers), GPT2},
    {"n_head", GPT2, SIZE, AT(heads), GPT2},
    {"n_positions", GPT2, SIZE, AT(context), GPT2},
    {"n_inner", GPT2, SIZE, AT(ffn)},
    {"hidden_size", ROTARY | BERT, SIZE, AT(hidden), ANY},
    {"num_hidden_layers", ROTARY | BERT, SIZE, AT(layers), ANY},
    {"num_attention_heads", ROTARY | BERT, SIZE, AT(heads), ANY},
    {"num_key_value_heads", ROTARY, SIZE, AT(kv_heads), MISTRAL | QWEN2},
    {"head_dim", ROTARY, SIZE, AT(head_dim)},
    {"intermediate_size", ROTARY | BERT, SIZE, AT(ffn), ANY},
    {"max_position_embeddings", ROTARY | BERT, SIZE, AT(context), ANY},
    {"type_vocab_size", BERT, SIZE, AT(token_types)},
    {"layer_norm_epsilon", GPT2, REAL, AT(norm_eps)},
    {"layer_norm_eps", BERT, REAL, AT(norm_eps)},
    {"rms_norm_eps", ROTARY, REAL, AT(norm_eps)},
    {"rope_theta", ROTARY, REAL, AT(rope_theta)},
    {"attn_pdrop", GPT2, DROPOUT},
    {"embd_pdrop", GPT2, DROPOUT},
    {"resid_pdrop", GPT2, DROPOUT},
    {"hidden_dropout_prob", BERT, DROPOUT},
    {"attention_probs_dropout_prob", BERT, DROPOUT},
    {"attention_dropout", ROTARY, ZERO},
    {"activation_function", GPT2, ACT},
    {"hidden_act", BERT, ACT},
    {"hidden_act", ROTARY, SILU},
    {"tie_word_embeddings", ROTARY, TIED},
    {"tie_word_embeddings", GPT2 | BERT, YES},
    {"torch_dtype", ANY, DTYPE},
    {"dtype", ANY, DTYPE},
    /* other architectures under the same name */
    {"add_cross_attention", ANY, NO},
    {"is_encoder_decoder", ANY, NO},
    {"is_decoder", BERT, NO},
    {"chunk_size_feed_forward", ANY, ZERO},
    {"pruned_heads", ANY, NO},
    {"quantization_config", ANY, NO},
    {"architectures", ANY, HEADED},
    {"scale_attn_weights", GPT2, YES},
    {"scale_attn_by_inverse_layer_idx", GPT2, NO},
    {"reorder_and_upcast_attn", GPT2, NO},
    {"position_embedding_type", BERT, ABSOLUTE},
    {"attention_bias", ROTARY, NO},
    {"mlp_bias", ROTARY, NO},
    {"rope_scaling", ROTARY, NOTED, 0, 0, "other angles, which are not modelled; the same bytes"},
    {"rope_parameters", ROTARY, ROPE, AT(rope_theta), 0,
     "other angles, which are not modelled; the same bytes"},
    {"sliding_window", MISTRAL | QWEN2, NOTED, 0, 0,
     "attention sees all positions here; flash attention keeps the same bytes either way"},
    {"use_sliding_window", QWEN2, NOTED, 0, 0, "see sliding_window"},
    {"max_window_layers", QWEN2, NOTED, 0, 0, "see sliding_window"},
    {"layer_types", ROTARY, NOTED, 0, 0, "see sliding_window"},
    /* no effect; unknown strings and empty values are ignored, too */
    {"model_type", ANY, IDLE},
    {"n_ctx", GPT2, IDLE},
    {"initializer_range", ANY, IDLE},
    {"bos_token_id", ANY, IDLE},
    {"eos_token_id", ANY, IDLE},
    {"pad_token_id", ANY, IDLE},
    {"unk_token_id", ANY, IDLE},
    {"use_cache", ANY, IDLE},
    {"pretraining_tp", ANY, IDLE},
    {"gradient_checkpointing", ANY, IDLE},
    {"task_specific_params", ANY, IDLE},
    {"id2label", ANY, IDLE},
    {"label2id", ANY, IDLE},
    {"classifier_dropout", ANY, IDLE},
    {"summary_first_dropout", GPT2, IDLE},
    {"summary_proj_to_labels", GPT2, IDLE},
    {"summary_use_proj", GPT2, IDLE},
    {"return_dict", ANY, IDLE},
#undef AT
};
#define N_RULES (sizeof rules / sizeof *rules)

/* ---- notes and errors ---- */

typedef struct reader {
    unsigned family;
    const char *type;
    mt_model_config c;
    const char *dropout_key; /* the first that was read */
    double dropout;
    char *notes, *ignored; /* cut to their buffers */
    size_t n_notes, n_ignored;
} reader;

static void put(char *text, size_t n_bytes, const char *fmt, ...) MT_PRINTF(3, 4);
static void put(char *text, size_t n_bytes, const char *fmt, ...)
{
    size_t n = n_bytes ? strlen(text) : 0;
    if (n + 1 >= n_bytes) return;
    va_list args;
    va_start(args, fmt);
    vsnprintf(text + n, n_bytes - n, fmt, args);
    va_end(args);
    mti_make_printable(text + n); /* notes quote the file, too */
}

static void ignore(reader *r, const char *key)
{
    put(r->ignored, r->n_ignored, "%s%.60s", *r->ignored ? ", " : "", key);
}

#define ANY_FILE "config.json: " /* begins messages if the file's name is unknown */

/* Fails with "config.json: "n_embd" is 0; need ...". */
static bool refuse(const char *key, const json_t *value, const char *need)
{
    char text[61];
    size_t n = json_dumpb(value, text, sizeof text - 1, JSON_ENCODE_ANY | JSON_COMPACT);
    text[n < sizeof text ? n : sizeof text - 1] = 0;
    mti_fail(MT_ERR_FORMAT, ANY_FILE "\"%.60s\" is %s%s; need %s", key, text,
             n < sizeof text ? "" : "...", need);
    return false;
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

static bool read_size(const char *key, const json_t *value, int64_t *out)
{
    if (!json_is_integer(value) || json_integer_value(value) < 1 ||
        json_integer_value(value) > (json_int_t)1 << 31)
        return refuse(key, value, "a whole number from 1 to 2147483648");
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

static bool read_act(const char *key, const json_t *value, mt_act *out)
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
            *out = acts[i].act;
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

static bool read_head(const char *key, const json_t *value)
{
    static const char *const ends[] = {"LMHeadModel", "ForCausalLM", "ForMaskedLM",
                                       "ForPreTraining", "Model"};
    const char *name = json_string_value(json_array_get(value, 0));
    size_t n = name ? strlen(name) : 0;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (n > strlen(ends[i]) && !strcmp(name + n - strlen(ends[i]), ends[i])) return true;
    return refuse(key, value, "a language model, such as ...ForCausalLM or ...ForMaskedLM");
}

static bool read_rope(reader *r, const struct rule *rule, const json_t *value)
{
    const json_t *theta = json_object_get(value, "rope_theta");
    const json_t *type = json_object_get(value, "rope_type");
    if (!json_is_object(value) || !json_is_number(theta) || !(json_number_value(theta) > 0))
        return refuse(rule->key, value, "an object with a \"rope_theta\" above 0");
    if (type && !is_word(type, "default"))
        put(r->notes, r->n_notes, "%s: %s\n", rule->key, rule->note);
    r->c.rope_theta = json_number_value(theta);
    return true;
}

static bool read_value(reader *r, const struct rule *rule, const json_t *value)
{
    void *at = (char *)&r->c + rule->at;
    const char *key = rule->key;
    /* null: as if it were missing */
    if (json_is_null(value) && rule->form != NOTED && !(rule->needed & r->family)) return true;
    switch (rule->form) {
    case SIZE: return read_size(key, value, at);
    case REAL:
        if (!json_is_number(value) || !(json_number_value(value) > 0))
            return refuse(key, value, "a number above 0");
        *(double *)at = json_number_value(value);
        return true;
    case DROPOUT: return read_dropout(r, key, value);
    case ZERO:
        return (json_is_number(value) && json_number_value(value) == 0) ||
               refuse(key, value, "0: the model here has no such thing");
    case ACT: return read_act(key, value, &r->c.act);
    case SILU:
        return is_word(value, "silu") || is_word(value, "swish") ||
               refuse(key, value, "silu, the activation of a gated MLP here");
    case TIED:
        if (!json_is_boolean(value)) return refuse(key, value, "true or false");
        r->c.tied = json_is_true(value);
        return true;
    case DTYPE: return read_dtype(key, value, &r->c.dtype);
    case NO:
        return is_empty(value) || refuse(key, value, "false: the model here has no such thing");
    case YES:
        return json_is_true(value) || refuse(key, value, "true: the model here has it always");
    case ABSOLUTE: return is_word(value, "absolute") || refuse(key, value, "absolute");
    case ROPE: return read_rope(r, rule, value);
    case HEADED: return read_head(key, value);
    case NOTED:
        if (!is_empty(value)) put(r->notes, r->n_notes, "%s: %s\n", key, rule->note);
        return true;
    case IDLE: ignore(r, key); break;
    }
    return true;
}

/* A key without a row is ignored if it is a string, off or empty, which cannot change the model. */
static bool read_unknown(reader *r, const char *key, const json_t *value)
{
    if (key[0] != '_' && !is_empty(value) && !json_is_string(value))
        return refuse(key, value, "a known key; remove it if it changes neither shapes nor values");
    ignore(r, key);
    return true;
}

static const struct rule *find_rule(unsigned family, const char *key)
{
    for (size_t i = 0; i < N_RULES; i++)
        if (rules[i].families & family && !strcmp(rules[i].key, key)) return &rules[i];
    return NULL;
}

static bool read_keys(reader *r, json_t *root)
{
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value)
    {
        const struct rule *rule = find_rule(r->family, key);
        if (!(rule ? read_value(r, rule, value) : read_unknown(r, key, value))) return false;
    }
    for (size_t i = 0; i < N_RULES; i++)
        if (rules[i].families & rules[i].needed & r->family && !json_object_get(root, rules[i].key))
            return mti_fail_bool(MT_ERR_FORMAT, ANY_FILE "\"%s\" is missing; a %s needs it",
                                 rules[i].key, r->type);
    return true;
}

/* ---- the whole ---- */

/* By "model_type", or else by the name of the first architecture. */
static const struct family *find_family(const json_t *root)
{
    static const char *const starts[N_FAMILIES] = {"GPT2", "Llama", "Mistral", "Qwen2", "Bert"};
    const char *type = json_string_value(json_object_get(root, "model_type"));
    const char *made = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    for (size_t i = 0; i < N_FAMILIES; i++) {
        size_t n = strlen(starts[i]);
        bool is = type ? !strcmp(type, families[i].type)
                       : made && !strncmp(made, starts[i], n) &&
                             (made[n] == 'F' || made[n] == 'L' || !strcmp(made + n, "Model"));
        if (is) return &families[i];
    }
    char list[64] = "";
    for (size_t i = 0; i < N_FAMILIES; i++)
        put(list, sizeof list, "%s%s", i ? ", " : "", families[i].type);
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

static mt_status from_root(json_t *root, mt_model_config *out, char *notes, size_t n_bytes)
{
    if (!json_is_object(root)) return mti_fail(MT_ERR_FORMAT, ANY_FILE "is not a JSON object");
    const struct family *family = find_family(root);
    if (!family) return mt_last_status();
    char ignored[1024] = "";
    if (n_bytes) notes[0] = 0;
    reader r = {.family = family->bit,
                .type = family->type,
                .c = family->config,
                .notes = notes,
                .n_notes = n_bytes,
                .ignored = ignored,
                .n_ignored = sizeof ignored};
    if (!read_keys(&r, root)) return mt_last_status();
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
    json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, &error);
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
    char *text = mti_file_read(path, LARGEST_FILE, &n);
    if (!text) return mt_last_status();
    bool is_text = strlen(text) == n;
    mt_status status = is_text ? mt_model_config_from_hf(text, out, notes, n_bytes)
                               : mti_fail(MT_ERR_FORMAT, "%.200s: has zero bytes; need JSON", path);
    mti_free(text);
    return status == MT_OK || !is_text || status == MT_ERR_MEMORY ? status
                                                                  : name_the_file(path, status);
}
