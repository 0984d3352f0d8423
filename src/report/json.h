/* json.h: building and writing JSON, and results that are described once: a table with a row for
 * each key, from which their JSON and its schema (docs/schema) are made.
 *
 * If memory runs out on the way, mti_json_complete fails at the end: one check for a tree. It also
 * sees a NULL that was put or pushed. */
#ifndef MTI_JSON_H
#define MTI_JSON_H

#include <jansson.h>
#include <stddef.h>
#include "memtape/memory.h"
#include "io/json_text.h"

/* value is taken over, on failure too; NULL counts as out of memory. */
void mti_json_put(json_t *object, const char *key, json_t *value);
void mti_json_put_int(json_t *object, const char *key, uint64_t value);
void mti_json_put_real(json_t *object, const char *key, double value);      /* not finite: null */
void mti_json_put_text(json_t *object, const char *key, const char *value); /* NULL: null */
/* json_string, but for text that is not UTF-8: printable, then. */
json_t *mti_json_string(const char *text);
void mti_json_push(json_t *array, json_t *value);

/* The tree as text, to be freed with mti_free; NULL if a value that was put or pushed since the
 * last call is missing in it. */
char *mti_json_complete(const json_t *root, size_t flags);
/* JSON, or a part of a string in it: with escapes for what a terminal would obey, and for the
 * characters of `escaped`, which the text has within strings only. */
void mti_json_print(FILE *out, const char *text, const char *escaped);
/* Writes the file whole or not at all; "-" is standard output, whose errors the caller asks ferror
 * for, so that files are written even if it is closed. root is taken over. */
mt_status mti_json_write(json_t *root, const char *path);

/* ---- results: their JSON and its schema, by the same functions ---- */

/* An object whose keys a function of type mti_describe lists, one after the other: they become JSON
 * or, for docs/schema, what the JSON may be. For a schema the function gets a struct of zeros, and
 * each key is listed, whatever it says. */
typedef struct mti_fields {
    json_t *json;                      /* the object; of a schema, its properties */
    json_t *required;                  /* of a schema: keys that are always there; else NULL */
    bool or_null, or_absent, left_out; /* of the next key */
    bool optional;                     /* all keys from here on may be absent */
} mti_fields;
typedef void mti_describe(mti_fields *f, const void *object);
/* The same of the ith element of a list that `object` has. */
typedef void mti_describe_at(mti_fields *f, const void *object, size_t i);

/* Before a key that is null, or not there, unless `there`. Return f. */
mti_fields *mti_null_unless(mti_fields *f, bool there);
mti_fields *mti_absent_unless(mti_fields *f, bool there);
/* Whether to list more keys: those after this are there all, or none. */
bool mti_fields_go_on(mti_fields *f, bool there);

void mti_field_int(mti_fields *f, const char *key, int64_t value);
/* most: INT_MAX where there is no limit. */
void mti_field_range(mti_fields *f, const char *key, int64_t value, int least, int most);
void mti_field_size(mti_fields *f, const char *key, uint64_t value); /* 0 or more */
void mti_field_real(mti_fields *f, const char *key, double value);   /* null: not finite */
void mti_field_bool(mti_fields *f, const char *key, bool value);
void mti_field_text(mti_fields *f, const char *key, const char *value); /* null: NULL */
/* One of names[n]. */
void mti_field_one_of(mti_fields *f, const char *key, const char *value, const char *const *names,
                      int n);
void mti_field_name(mti_fields *f, const char *key, const mti_choice *names, int value);
void mti_field_category(mti_fields *f, const char *key, mt_category category);
void mti_field_role(mti_fields *f, const char *key, mt_save_role role);
void mti_field_shape(mti_fields *f, const char *key, int rank, const int64_t *shape);
/* In a schema: "#/$defs/categories", which is to be what mti_describe_categories lists. */
mti_describe mti_describe_categories;
void mti_field_categories(mti_fields *f, const char *key, const size_t *bytes);
/* For values that nothing above has: taken over; the type is the schema's. */
void mti_field_json(mti_fields *f, const char *key, const char *type, json_t *value);
void mti_field_object(mti_fields *f, const char *key, mti_describe *describe, const void *object);
/* n structs of `size` bytes, or n elements of what `object` has. */
void mti_field_list(mti_fields *f, const char *key, mti_describe *describe, const void *at,
                    size_t n, size_t size);
void mti_field_each(mti_fields *f, const char *key, mti_describe_at *describe, const void *object,
                    size_t n);
/* "schema", with the name of the object's schema. */
void mti_field_schema(mti_fields *f, const char *name);

json_t *mti_json_of(mti_describe *describe, const void *object);
/* blank: a struct of zeros, whose pointers to what it always has lead to mti_zeros. */
json_t *mti_schema_of(mti_describe *describe, const void *blank);
extern const void *const mti_zeros;

#endif
