/* config_json.c: configurations to JSON and back, by the rows of model_fields.def. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "files/json_text.h"
#include "nn/model_fields.h"

mt_status mt_model_config_to_json(const mt_model_config *c, char *buf, size_t n_bytes)
{
    const mti_model_field *f;
    char text[MTI_FIELD_TEXT];
    size_t n = 0; /* of the whole text; what is past the buffer is not written */
    mt_status status = mt_model_config_check(c);
    if (status != MT_OK) return status;
    if (!buf) return mti_fail(MT_ERR_ARGUMENT, "config: the buffer for the JSON is NULL");
    for (size_t i = 0; (f = mti_model_field_at(i)); i++) {
        if (f->rare && mti_model_field_is_zero(f, c)) continue;
        const char *quote = f->form >= MTI_FIELD_NAME ? "\"" : "";
        n += (size_t)snprintf(n < n_bytes ? buf + n : NULL, n < n_bytes ? n_bytes - n : 0,
                              "%s\"%s\":%s%s%s", n ? "," : "{", f->name, quote,
                              mti_model_field_text(text, f, c), quote);
    }
    if (n + 1 < n_bytes) {
        strcpy(buf + n, "}");
        return MT_OK;
    }
    return mti_fail(MT_ERR_ARGUMENT, "config: %zu bytes are too few for its JSON; need %zu",
                    n_bytes, n + 2);
}

/* ---- reading ---- */

static bool wrong_type(const char *key, const char *need)
{
    return mti_fail_bool(MT_ERR_FORMAT, "config: \"%s\" must be %s", key, need);
}

static bool get_value(const mti_model_field *f, const json_t *value, mt_model_config *c)
{
    void *at = (char *)c + f->at;
    /* For anything but a string the parsers below list the valid names. */
    const char *word = json_is_string(value) ? json_string_value(value) : "(not a string)";
    switch (f->form) {
    case MTI_FIELD_SIZE:
        if (!json_is_integer(value)) return wrong_type(f->name, "a whole number");
        *(int64_t *)at = (int64_t)json_integer_value(value);
        return true;
    case MTI_FIELD_REAL:
        if (!json_is_number(value)) return wrong_type(f->name, "a number");
        *(double *)at = json_number_value(value);
        return true;
    case MTI_FIELD_FLAG:
        if (!json_is_boolean(value)) return wrong_type(f->name, "true or false");
        *(bool *)at = json_is_true(value);
        return true;
    case MTI_FIELD_NAME: return mti_choice_parse(f->choice, word, at) == MT_OK;
    case MTI_FIELD_DTYPE: break;
    }
    return mt_dtype_parse(word, at) || wrong_type(f->name, "f32, f64, bf16 or f16");
}

/* Files that were saved before "pad_token" say 1 + the token, or 0. */
static bool get_padding(const json_t *value, mt_model_config *c)
{
    if (!json_is_integer(value)) return wrong_type("padding", "a whole number");
    c->padded = json_integer_value(value) != 0;
    c->pad_token = (int64_t)json_integer_value(value) - c->padded;
    return true;
}

static bool get_field(mt_model_config *c, const char *key, const json_t *value)
{
    const mti_model_field *f = mti_model_field_named(key);
    if (!strcmp(key, "padding")) return get_padding(value, c);
    if (!f) return mti_fail_bool(MT_ERR_FORMAT, "config: \"%s\" is not a field", key);
    bool is_none = json_is_string(value) && !strcmp(json_string_value(value), "none");
    if (f->flag) *(bool *)((char *)c + f->flag) = !is_none;
    return (f->flag && is_none) || get_value(f, value, c);
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
