/* fields.c: objects as JSON, key by key. */
#include <limits.h>
#include <math.h>
#include "memtape/memtape.h"
#include "report/json.h"

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

void mti_field_object(mti_fields *f, const char *key, mti_describe *describe, const void *object)
{
    bool made = !f->note && !f->left_out;
    put(f, key, &(mti_field_type){"object", .describe = describe, .object = object},
        made ? described(describe, object, 0) : json_null());
}

static void describe_sizes(mti_fields *f, const void *sizes)
{
    for (const mti_size_field *s = sizes; s->key; s++) mti_field_size(f, s->key, s->value);
}

void mti_field_sizes(mti_fields *f, const char *key, const mti_size_field *sizes)
{
    mti_field_object(f, key, describe_sizes, sizes);
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
