/* fields.c: objects as JSON, and the JSON Schema of what they may be. */
#include <limits.h>
#include <math.h>
#include "memtape/memtape.h"
#include "report/json.h"

mti_fields *mti_null_unless(mti_fields *f, bool there)
{
    f->or_null = true;
    f->left_out = !there && !f->required;
    return f;
}

mti_fields *mti_absent_unless(mti_fields *f, bool there)
{
    f->or_absent = true;
    f->left_out = !there && !f->required;
    return f;
}

bool mti_fields_go_on(mti_fields *f, bool there)
{
    f->optional = true;
    return there || f->required;
}

/* Takes `value` over: what the key has, or the schema of that; NULL if memory ran out. */
static void put(mti_fields *f, const char *key, json_t *value)
{
    bool missing = f->left_out && value;
    if (f->required && f->or_null) {
        json_t *names = json_object_get(value, "enum");
        mti_json_put(value, "type", json_pack("[O,s]", json_object_get(value, "type"), "null"));
        if (names) mti_json_push(names, json_null());
    }
    if (f->required && !f->or_absent && !f->optional) mti_json_push(f->required, json_string(key));
    if (missing) json_decref(value);
    if (!missing || !f->or_absent) mti_json_put(f->json, key, missing ? json_null() : value);
    f->or_null = f->or_absent = f->left_out = false;
}

void mti_field_json(mti_fields *f, const char *key, const char *type, json_t *value)
{
    if (f->required) {
        json_decref(value);
        value = json_pack("{s:s}", "type", type);
    }
    put(f, key, value);
}

void mti_field_int(mti_fields *f, const char *key, int64_t value)
{
    mti_field_json(f, key, "integer", json_integer(value));
}

void mti_field_range(mti_fields *f, const char *key, int64_t value, int least, int most)
{
    json_t *j = json_integer(value);
    if (f->required) {
        json_decref(j);
        j = json_pack("{s:s,s:i}", "type", "integer", "minimum", least);
        if (most < INT_MAX) mti_json_put(j, "maximum", json_integer(most));
    }
    put(f, key, j);
}

void mti_field_size(mti_fields *f, const char *key, uint64_t value)
{
    mti_field_range(f, key, (int64_t)value, 0, INT_MAX);
}

void mti_field_real(mti_fields *f, const char *key, double value)
{
    mti_field_json(f, key, "number", isfinite(value) ? json_real(value) : json_null());
}

void mti_field_bool(mti_fields *f, const char *key, bool value)
{
    mti_field_json(f, key, "boolean", json_boolean(value));
}

void mti_field_text(mti_fields *f, const char *key, const char *value)
{
    mti_field_json(f, key, "string", value ? mti_json_string(value) : json_null());
}

void mti_field_one_of(mti_fields *f, const char *key, const char *value, const char *const *names,
                      int n)
{
    if (!f->required) {
        put(f, key, json_string(value));
        return;
    }
    json_t *list = json_array();
    for (int i = 0; i < n; i++) mti_json_push(list, json_string(names[i]));
    put(f, key, json_pack("{s:s,s:o}", "type", "string", "enum", list));
}

void mti_field_name(mti_fields *f, const char *key, const mti_choice *names, int value)
{
    mti_field_one_of(f, key, mti_choice_name(names, value), names->names, names->n);
}

void mti_field_category(mti_fields *f, const char *key, mt_category category)
{
    const char *names[MT_CATEGORY_COUNT];
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) names[c] = mt_category_name((mt_category)c);
    mti_field_one_of(f, key, mt_category_name(category), names, MT_CATEGORY_COUNT);
}

void mti_field_role(mti_fields *f, const char *key, mt_save_role role)
{
    const char *names[MT_SAVE_AUX + 1];
    for (int r = 0; r <= MT_SAVE_AUX; r++) names[r] = mt_save_role_name((mt_save_role)r);
    mti_field_one_of(f, key, mt_save_role_name(role), names, MT_SAVE_AUX + 1);
}

void mti_field_shape(mti_fields *f, const char *key, int rank, const int64_t *shape)
{
    json_t *list = json_array();
    for (int d = 0; d < rank; d++) mti_json_push(list, json_integer(shape[d]));
    if (f->required) {
        json_decref(list);
        list = json_pack("{s:s,s:{s:s}}", "type", "array", "items", "type", "integer");
    }
    put(f, key, list);
}

/* An object that `describe` lists, or its schema. */
static json_t *described(bool schema, mti_describe *describe, const void *object)
{
    mti_fields f = {.json = json_object(), .required = schema ? json_array() : NULL};
    describe(&f, object);
    if (!schema) return f.json;
    return json_pack("{s:s,s:o,s:o}", "type", "object", "properties", f.json, "required",
                     f.required);
}

void mti_describe_categories(mti_fields *f, const void *object)
{
    const size_t *bytes = object;
    for (int c = 0; c < MT_CATEGORY_COUNT; c++)
        mti_field_size(f, mt_category_name((mt_category)c), bytes[c]);
}

void mti_field_categories(mti_fields *f, const char *key, const size_t *bytes)
{
    if (f->required)
        put(f, key, json_pack("{s:s}", "$ref", "#/$defs/categories"));
    else
        mti_field_object(f, key, mti_describe_categories, bytes);
}

void mti_field_object(mti_fields *f, const char *key, mti_describe *describe, const void *object)
{
    put(f, key, f->left_out ? json_null() : described(f->required, describe, object));
}

/* ---- lists ---- */

/* Structs in a row. */
typedef struct row {
    mti_describe *describe;
    const char *at;
    size_t size;
} row;

static void describe_row(mti_fields *f, const void *object, size_t i)
{
    const row *r = object;
    r->describe(f, r->at + i * r->size);
}

typedef struct element {
    mti_describe_at *describe;
    const void *object;
    size_t i;
} element;

static void describe_element(mti_fields *f, const void *object)
{
    const element *e = object;
    e->describe(f, e->object, e->i);
}

void mti_field_each(mti_fields *f, const char *key, mti_describe_at *describe, const void *object,
                    size_t n)
{
    json_t *list = json_array();
    element e = {describe, object, 0};
    for (; e.i < n && !f->left_out && !f->required; e.i++)
        mti_json_push(list, described(false, describe_element, &e));
    if (f->required) {
        json_decref(list);
        list =
            json_pack("{s:s,s:o}", "type", "array", "items", described(true, describe_element, &e));
    }
    put(f, key, list);
}

/* More than any struct has. */
static const max_align_t zeros[1 << 14];
const void *const mti_zeros = zeros;

void mti_field_list(mti_fields *f, const char *key, mti_describe *describe, const void *at,
                    size_t n, size_t size)
{
    const row r = {describe, f->required ? (const char *)zeros : at, size};
    mti_field_each(f, key, describe_row, &r, n);
}

void mti_field_schema(mti_fields *f, const char *name)
{
    put(f, "schema", f->required ? json_pack("{s:s}", "const", name) : json_string(name));
}

json_t *mti_json_of(mti_describe *describe, const void *object)
{
    return described(false, describe, object);
}

json_t *mti_schema_of(mti_describe *describe, const void *blank)
{
    return described(true, describe, blank);
}
