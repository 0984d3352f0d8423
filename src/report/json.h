/* json.h: building and writing JSON. What a builder has no memory for is missed at the end, by
 * mti_json_complete: one check for a tree. */
#ifndef MTI_JSON_H
#define MTI_JSON_H

#include <jansson.h>
#include "nn/json_text.h"

/* value is taken over, on failure too; NULL counts as out of memory. */
void mti_json_put(json_t *object, const char *key, json_t *value);
void mti_json_put_int(json_t *object, const char *key, uint64_t value);
void mti_json_put_real(json_t *object, const char *key, double value);      /* not finite: null */
void mti_json_put_text(json_t *object, const char *key, const char *value); /* NULL: null */
void mti_json_push(json_t *array, json_t *value);

/* The tree as text, the caller's to mti_free; NULL if something that was put or pushed since the
 * last call is not in it. */
char *mti_json_complete(const json_t *root, size_t flags);
/* To the file, whole or not at all; "-": standard output, whose own error flag tells what did not
 * get there: files are written all the same. root is taken over. */
mt_status mti_json_write(json_t *root, const char *path);

#endif
