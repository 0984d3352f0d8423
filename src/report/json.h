/* json.h: building and writing JSON. If memory runs out on the way, mti_json_complete fails at the
 * end: one check for a tree. It also sees a NULL of json_pack that was put or pushed. */
#ifndef MTI_JSON_H
#define MTI_JSON_H

#include <jansson.h>
#include "nn/json_text.h"

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

#endif
