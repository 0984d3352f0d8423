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
#include "files/json_text.h"

/* value is taken over, on failure too; NULL counts as out of memory. */
void mti_json_put(json_t *object, const char *key, json_t *value);
void mti_json_put_int(json_t *object, const char *key, uint64_t value);
void mti_json_put_text(json_t *object, const char *key, const char *value); /* NULL: null */
/* json_string, except for text that is not UTF-8: printable, then. */
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

/* ---- results ---- */

/* An object whose keys a function of type mti_describe lists, one after the other. They become JSON
 * or, where there is a `note`, are shown to that with their types: tests/program/report/schema.c
 * makes docs/schema so. It gives the function a struct of zeros, and each key is listed, whatever
 * it says. */
typedef struct mti_fields mti_fields;
typedef void mti_describe(mti_fields *f, const void *object);
typedef struct mti_field_type {
    const char *name; /* JSON Schema's; "const" for the text names[0] */
    int least, most;  /* of an integer */
    const char *const *names;
    int n;                  /* names[n]: what a text may be; 0: anything */
    mti_describe *describe; /* an object, or each of an array; NULL: an array of integers */
    const void *object;     /* that it describes ... */
    bool structs;           /* ... or one of several structs, for which zeros do */
} mti_field_type;
struct mti_fields {
    json_t *json;
    size_t i;                          /* which of a list the object is */
    bool or_null, or_absent, left_out; /* of the next key */
    bool optional;                     /* all keys from here on may be absent */
    void (*note)(mti_fields *f, const char *key, const mti_field_type *type);
};

/* Before a key that is null unless `there`; returns f. */
mti_fields *mti_null_unless(mti_fields *f, bool there);
/* Whether to list the next key, or all keys after this: they are there or not. */
bool mti_field_there(mti_fields *f, bool there);
bool mti_fields_go_on(mti_fields *f, bool there);

void mti_field_int(mti_fields *f, const char *key, int64_t value);
/* most: INT_MAX where there is no limit. */
void mti_field_range(mti_fields *f, const char *key, int64_t value, int least, int most);
void mti_field_size(mti_fields *f, const char *key, uint64_t value); /* 0 or more */
void mti_field_real(mti_fields *f, const char *key, double value);   /* null: not finite */
void mti_field_bool(mti_fields *f, const char *key, bool value);
void mti_field_text(mti_fields *f, const char *key, const char *value); /* null: NULL */
void mti_field_null(mti_fields *f, const char *key);
/* One of names[n]. */
void mti_field_one_of(mti_fields *f, const char *key, const char *value, const char *const *names,
                      int n);
void mti_field_name(mti_fields *f, const char *key, const mti_choice *names, int value);
void mti_field_shape(mti_fields *f, const char *key, int rank, const int64_t *shape);
/* "schema", with the name of the object's schema. */
void mti_field_schema(mti_fields *f, const char *name);

void mti_field_object(mti_fields *f, const char *key, mti_describe *describe, const void *object);
mti_describe mti_describe_categories;
void mti_field_categories(mti_fields *f, const char *key, const size_t *bytes);
/* n structs of `size` bytes; with size 0 all of the list is at `at`, and f->i says which is meant.
 */
void mti_field_list(mti_fields *f, const char *key, mti_describe *describe, const void *at,
                    size_t n, size_t size);

json_t *mti_json_of(mti_describe *describe, const void *object);
/* Writes an object that is described; without a path, nothing. */
bool mti_json_write_of(mti_describe *describe, const void *object, const char *path);

#endif
