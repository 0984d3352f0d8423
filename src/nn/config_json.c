/* config_json.c: configurations to JSON and back, by one table of fields. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "nn/json_text.h"
#include "nn/model.h"

typedef enum form {
    INT,
    REAL,
    FLAG,
    KIND,
    NORM,
    NORM_KIND,
    MLP,
    QK_NORM,
    ACT,
    OUT_ACT,
    ATTENTION,
    DTYPE,
    OP_CHOICE
} form;

static const struct field {
    const char *name;
    form form;
    size_t at;
    bool rare;                /* not written where it is 0: few models have it */
    const mti_choice *choice; /* of an OP_CHOICE */
} fields[] = {
#define FIELD(form, name)                                                                          \
    {                                                                                              \
#name, form, offsetof(mt_model_config, name), false                                        \
    }
#define RARE(form, name)                                                                           \
    {                                                                                              \
#name, form, offsetof(mt_model_config, name), true                                         \
    }
    FIELD(KIND, kind),
    FIELD(INT, hidden),
    FIELD(INT, heads),
    FIELD(INT, kv_heads),
    FIELD(INT, head_dim),
    FIELD(INT, layers),
    FIELD(INT, vocab),
    FIELD(INT, context),
    FIELD(INT, ffn),
    FIELD(MLP, mlp),
    FIELD(ACT, act),
    FIELD(FLAG, inplace),
    FIELD(NORM, norm),
    FIELD(NORM_KIND, norm_kind),
    FIELD(REAL, norm_eps),
    FIELD(REAL, rope_theta),
    FIELD(REAL, dropout),
    FIELD(ATTENTION, attention),
    FIELD(FLAG, causal),
    FIELD(FLAG, untied),
    FIELD(FLAG, tied),
    FIELD(FLAG, no_bias),
    FIELD(FLAG, qkv_bias),
    FIELD(INT, token_types),
    FIELD(INT, mask_token),
    FIELD(DTYPE, dtype),
    RARE(OUT_ACT, out_act),
    RARE(QK_NORM, qk_norm),
    RARE(INT, window),
    RARE(FLAG, joint_products),
    RARE(INT, position_offset),
    RARE(INT, padding),
    RARE(REAL, attention_scale),
    RARE(REAL, attention_cap),
    RARE(REAL, logit_cap),
    RARE(FLAG, scaled_embedding),
    RARE(FLAG, fused_gelu),
    RARE(REAL, local_theta),
    RARE(INT, local_period),
#undef RARE
#undef FIELD
#define FIELD(name, choice)                                                                        \
    {                                                                                              \
#name, OP_CHOICE, offsetof(mt_model_config, ops.name), true, &choice                       \
    }
    FIELD(swiglu, mti_op_forms),
    FIELD(rms_norm, mti_op_forms),
    FIELD(gelu_tanh, mti_op_forms),
    FIELD(rope, mti_op_forms),
    FIELD(softmax, mti_op_precisions),
    FIELD(kv_groups, mti_kv_groupings),
    FIELD(loss, mti_loss_forms),
#undef FIELD
};
#define N_FIELDS (sizeof fields / sizeof fields[0])

/* ---- writing ---- */

static const char *choice_name(const struct field *f, const void *at)
{
    switch (f->form) {
    case OP_CHOICE: return mti_choice_name(f->choice, *(const int *)at);
    case KIND: return mt_model_kind_name(*(const mt_model_kind *)at);
    case NORM: return mt_norm_place_name(*(const mt_norm_place *)at);
    case NORM_KIND: return mt_norm_kind_name(*(const mt_norm_kind *)at);
    case MLP: return mt_mlp_kind_name(*(const mt_mlp_kind *)at);
    case ACT: return mt_act_name(*(const mt_act *)at);
    case QK_NORM: return mt_qk_norm_name(*(const mt_qk_norm *)at);
    case OUT_ACT: return mti_choice_name(&mti_out_acts, *(const int *)at);
    case ATTENTION: return mt_attention_form_name(*(const mt_attention_form *)at);
    default: return mt_dtype_name(*(const mt_dtype *)at);
    }
}

/* The rest of the buffer, and the length of the whole text. */
typedef struct writer {
    char *at;
    size_t n_left, needed;
} writer;

static void put(writer *t, const char *fmt, ...) MT_PRINTF(2, 3);
static void put(writer *t, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    size_t n = (size_t)mti_vformat(t->at, t->n_left, fmt, args);
    va_end(args);
    t->needed += n;
    size_t used = n < t->n_left ? n : t->n_left;
    t->at += used;
    t->n_left -= used;
}

static void put_value(writer *t, const struct field *f, const void *at)
{
    if (f->form == INT)
        put(t, "%" PRId64, *(const int64_t *)at);
    else if (f->form == REAL)
        put(t, "%.17g", *(const double *)at);
    else if (f->form == FLAG)
        put(t, "%s", *(const bool *)at ? "true" : "false");
    else
        put(t, "\"%s\"", choice_name(f, at));
}

static bool is_zero(const struct field *f, const void *at)
{
    switch (f->form) {
    case INT: return *(const int64_t *)at == 0;
    case REAL: return *(const double *)at == 0;
    case FLAG: return !*(const bool *)at;
    default: return *(const int *)at == 0;
    }
}

mt_status mt_model_config_to_json(const mt_model_config *c, char *buf, size_t n_bytes)
{
    mt_status status = mt_model_config_check(c);
    if (status != MT_OK) return status;
    if (!buf) return mti_fail(MT_ERR_ARGUMENT, "config: the buffer for the JSON is NULL");
    writer t = {.at = buf, .n_left = n_bytes};
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (fields[i].rare && is_zero(&fields[i], (const char *)c + fields[i].at)) continue;
        put(&t, "%s\"%s\":", i ? "," : "{", fields[i].name);
        put_value(&t, &fields[i], (const char *)c + fields[i].at);
    }
    put(&t, "}");
    if (t.needed < n_bytes) return MT_OK;
    return mti_fail(MT_ERR_ARGUMENT, "config: %zu bytes are too few for its JSON; need %zu",
                    n_bytes, t.needed + 1);
}

/* ---- reading ---- */

static bool wrong_type(const char *key, const char *need)
{
    return mti_fail_bool(MT_ERR_FORMAT, "config: \"%s\" must be %s", key, need);
}

static bool get_value(const struct field *f, const json_t *value, void *out)
{
    /* For anything but a string the parsers below list the valid names. */
    const char *word = json_is_string(value) ? json_string_value(value) : "(not a string)";
    switch (f->form) {
    case INT:
        if (!json_is_integer(value)) return wrong_type(f->name, "a whole number");
        *(int64_t *)out = (int64_t)json_integer_value(value);
        return true;
    case REAL:
        if (!json_is_number(value)) return wrong_type(f->name, "a number");
        *(double *)out = json_number_value(value);
        return true;
    case FLAG:
        if (!json_is_boolean(value)) return wrong_type(f->name, "true or false");
        *(bool *)out = json_is_true(value);
        return true;
    case KIND: return mt_model_kind_parse(word, out) == MT_OK;
    case NORM: return mt_norm_place_parse(word, out) == MT_OK;
    case NORM_KIND: return mt_norm_kind_parse(word, out) == MT_OK;
    case MLP: return mt_mlp_kind_parse(word, out) == MT_OK;
    case ACT: return mt_act_parse(word, out) == MT_OK;
    case QK_NORM: return mt_qk_norm_parse(word, out) == MT_OK;
    case OUT_ACT: return mti_choice_parse(&mti_out_acts, word, out) == MT_OK;
    case ATTENTION: return mt_attention_form_parse(word, out) == MT_OK;
    case OP_CHOICE: return mti_choice_parse(f->choice, word, out) == MT_OK;
    case DTYPE: break;
    }
    return mt_dtype_parse(word, out) || wrong_type(f->name, "f32, f64, bf16 or f16");
}

static bool get_field(mt_model_config *c, const char *key, const json_t *value)
{
    for (size_t i = 0; i < N_FIELDS; i++)
        if (!strcmp(key, fields[i].name))
            return get_value(&fields[i], value, (char *)c + fields[i].at);
    return mti_fail_bool(MT_ERR_FORMAT, "config: \"%s\" is not a field", key);
}

mt_status mt_model_config_from_json(const char *text, mt_model_config *out)
{
    if (!text || !out)
        return mti_fail(MT_ERR_ARGUMENT, "config: the %s is NULL", text ? "result" : "JSON");
    json_error_t error;
    uint64_t failures = mti_failures(); /* the parser may run out of memory */
    json_t *root = mti_json_read(text, strlen(text), &error);
    if (!root)
        return mti_fail_around(failures, MT_ERR_FORMAT, "config: column %d: %s", error.column,
                               error.text);
    mt_model_config c = {0};
    bool ok = json_is_object(root) || mti_fail_bool(MT_ERR_FORMAT, "config: not a JSON object");
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) ok = ok && get_field(&c, key, value);
    json_decref(root);
    if (!ok) return mt_last_status();
    mt_status status = mt_model_config_check(&c);
    if (status == MT_OK) *out = c;
    return status;
}
