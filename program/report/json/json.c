/* json.c: building and writing JSON, and objects key by key. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "report/keys.h"
#include "report/terminal.h"
#include "memtape/memtape.h"

static _Thread_local bool incomplete; /* memory ran out since the last mti_json_complete */

char *mti_json_complete(const json_t *root, size_t flags)
{
    bool lost = incomplete;
    incomplete = false;
    return lost ? mti_fail_null(MT_ERR_MEMORY, "json: no memory for the report")
                : mti_json_text(root, flags);
}

void mti_json_put(json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0) incomplete = true;
}

void mti_json_put_int(json_t *object, const char *key, uint64_t value)
{
    mti_json_put(object, key, json_integer((json_int_t)value));
}

void mti_json_put_text(json_t *object, const char *key, const char *value)
{
    mti_json_put(object, key, value ? mti_json_string(value) : json_null());
}

json_t *mti_json_string(const char *text)
{
    if (mti_is_utf8(text)) return json_string(text);
    char *copy = mti_strdup(text);
    if (copy) mti_make_printable(copy);
    json_t *string = json_string(copy);
    mti_free(copy);
    return string;
}

void mti_json_push(json_t *array, json_t *value)
{
    if (json_array_append_new(array, value) != 0) incomplete = true;
}

void mti_json_print(FILE *out, const char *text, const char *escaped)
{
    const unsigned char *s = (const unsigned char *)text, *end = s + strlen(text), *from = s;
    size_t length;
    for (; s < end; s += length) {
        uint32_t c = mti_next_char(s, end, &length);
        if (!mti_is_control(c) && (c >= 0x80 || !strchr(escaped, (int)c))) continue;
        fwrite(from, 1, (size_t)(s - from), out);
        fprintf(out, "\\u%04x", c <= UINT16_MAX ? c : '?');
        from = s + length;
    }
    fwrite(from, 1, (size_t)(s - from), out);
}

mt_status mti_json_write(json_t *root, const char *path)
{
    char *text = mti_json_complete(root, JSON_INDENT(2));
    json_decref(root);
    if (!text) return mt_last_status();
    bool to_file = strcmp(path, "-") != 0;
    mti_file *file = to_file ? mti_file_create(path) : NULL;
    FILE *out = file ? mti_file_stream(file) : to_file ? NULL : stdout;
    if (out) mti_json_print(out, text, ""), fputc('\n', out);
    mti_free(text);
    return to_file ? mti_finish_file(file, out) : MT_OK;
}

/* ---- objects, key by key ---- */

mti_fields *mti_null_unless(mti_fields *f, bool there)
{
    f->or_null = true;
    f->left_out = !there && !f->note;
    return f;
}

bool mti_field_there(mti_fields *f, bool there)
{
    f->or_absent = true;
    return there || f->note;
}

bool mti_fields_go_on(mti_fields *f, bool there)
{
    f->optional = true;
    return there || f->note;
}

/* Takes `value` over; NULL if memory ran out. */
static void put(mti_fields *f, const char *key, const mti_field_type *type, json_t *value)
{
    bool missing = f->left_out && value;
    if (f->note || missing) json_decref(value);
    if (f->note)
        f->note(f, key, type);
    else
        mti_json_put(f->json, key, missing ? json_null() : value);
    f->or_null = f->or_absent = f->left_out = false;
}

/* ---- values ---- */

void mti_field_int(mti_fields *f, const char *key, int64_t value)
{
    mti_field_range(f, key, value, INT_MIN, INT_MAX);
}

void mti_field_size(mti_fields *f, const char *key, uint64_t value)
{
    mti_field_range(f, key, (int64_t)value, 0, INT_MAX);
}

void mti_field_range(mti_fields *f, const char *key, int64_t value, int least, int most)
{
    put(f, key, &(mti_field_type){"integer", .least = least, .most = most}, json_integer(value));
}

void mti_field_real(mti_fields *f, const char *key, double value)
{
    put(f, key, &(mti_field_type){"number"}, isfinite(value) ? json_real(value) : json_null());
}

void mti_field_bool(mti_fields *f, const char *key, bool value)
{
    put(f, key, &(mti_field_type){"boolean"}, json_boolean(value));
}

void mti_field_text(mti_fields *f, const char *key, const char *value)
{
    put(f, key, &(mti_field_type){"string"}, value ? mti_json_string(value) : json_null());
}

void mti_field_null(mti_fields *f, const char *key)
{
    put(f, key, &(mti_field_type){"null"}, json_null());
}

void mti_field_one_of(mti_fields *f, const char *key, const char *value, const char *const *names,
                      int n)
{
    put(f, key, &(mti_field_type){"string", .names = names, .n = n}, json_string(value));
}

void mti_field_name(mti_fields *f, const char *key, const mti_choice *names, int value)
{
    mti_field_one_of(f, key, mti_choice_name(names, value), names->names, names->n);
}

void mti_field_shape(mti_fields *f, const char *key, int rank, const int64_t *shape)
{
    json_t *list = json_array();
    for (int d = 0; d < rank; d++) mti_json_push(list, json_integer(shape[d]));
    put(f, key, &(mti_field_type){"array"}, list);
}

/* ---- objects and lists of them ---- */

static json_t *described(mti_describe *describe, const void *object, size_t i)
{
    mti_fields f = {.json = json_object(), .i = i};
    describe(&f, object);
    return f.json;
}

json_t *mti_json_of(mti_describe *describe, const void *object)
{
    return described(describe, object, 0);
}

bool mti_json_write_of(mti_describe *describe, const void *object, const char *path)
{
    return !path || mti_json_write(mti_json_of(describe, object), path) == MT_OK;
}

void mti_field_object(mti_fields *f, const char *key, mti_describe *describe, const void *object)
{
    bool made = !f->note && !f->left_out;
    put(f, key, &(mti_field_type){"object", .describe = describe, .object = object},
        made ? described(describe, object, 0) : json_null());
}

void mti_describe_categories(mti_fields *f, const void *object)
{
    const size_t *bytes = object;
    for (int c = 0; c < MT_CATEGORY_COUNT; c++)
        mti_field_size(f, mt_category_name((mt_category)c), bytes[c]);
}

void mti_field_categories(mti_fields *f, const char *key, const size_t *bytes)
{
    mti_field_object(f, key, mti_describe_categories, bytes);
}

void mti_field_list(mti_fields *f, const char *key, mti_describe *describe, const void *at,
                    size_t n, size_t size)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n && !f->note && !f->left_out; i++)
        mti_json_push(list, described(describe, (const char *)at + i * size, i));
    put(f, key, &(mti_field_type){"array", .describe = describe, .object = at, .structs = size > 0},
        list);
}

void mti_field_schema(mti_fields *f, const char *name)
{
    put(f, "schema", &(mti_field_type){"const", .names = &name, .n = 1}, json_string(name));
}

/* ---- members of a struct ---- */

/* The member of an integer type. */
static int64_t integer_at(const mti_key *k, const void *at)
{
    int64_t value;
    uint32_t narrow;
    if (k->size == sizeof value) return memcpy(&value, at, sizeof value), value;
    memcpy(&narrow, at, sizeof narrow);
    return k->form == MTI_KEY_SIZE ? (int64_t)narrow : (int64_t)(int32_t)narrow;
}

/* Whether the member is other than 0, empty and not finite. */
static bool says(const mti_key *k, const void *at)
{
    if (k->form == MTI_KEY_BOOL) return *(const bool *)at;
    if (k->form == MTI_KEY_REAL)
        return k->or_null ? isfinite(*(const double *)at) : *(const double *)at != 0;
    if (k->form == MTI_KEY_CHARS) return *(const char *)at;
    if (k->form != MTI_KEY_TEXT) return integer_at(k, at) != 0;
    const char *text = *(const char *const *)at;
    return text && *text;
}

static void put_member(mti_fields *f, const mti_key *k, const void *at)
{
    if (k->or_absent && !mti_field_there(f, says(k, at))) return;
    if (k->or_null) mti_null_unless(f, says(k, at));
    switch (k->form) {
    case MTI_KEY_BOOL: mti_field_bool(f, k->name, *(const bool *)at); break;
    case MTI_KEY_INT: mti_field_int(f, k->name, integer_at(k, at)); break;
    case MTI_KEY_SIZE: mti_field_size(f, k->name, (uint64_t)integer_at(k, at)); break;
    case MTI_KEY_REAL: mti_field_real(f, k->name, *(const double *)at); break;
    case MTI_KEY_TEXT: mti_field_text(f, k->name, *(const char *const *)at); break;
    case MTI_KEY_CHARS: mti_field_text(f, k->name, at); break;
    case MTI_KEY_CATEGORIES: mti_field_categories(f, k->name, at); break;
    case MTI_KEY_CHOICE: mti_field_name(f, k->name, k->choice, (int)integer_at(k, at)); break;
    case MTI_KEY_OBJECT:
    default: mti_field_object(f, k->name, k->describe, at);
    }
}

void mti_field_keys(mti_fields *f, const mti_key *keys, size_t n, const void *object)
{
    for (size_t i = 0; i < n; i++) put_member(f, &keys[i], (const char *)object + keys[i].at);
}
