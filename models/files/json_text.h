/* json_text.h: JSON as text with every key, or an error. */
#ifndef MTI_JSON_TEXT_H
#define MTI_JSON_TEXT_H

#include <jansson.h>
#include "base/base.h"

/* For json_set_alloc_funcs, beside mti_free. If memory runs out while jansson 2.14 reads a string,
 * it cuts the string short, reads past its buffer, or asserts. So while a text is read it gets
 * memory from malloc then; the refusal stays this thread's error, and mti_json_read returns NULL.
 */
void *mti_json_malloc(size_t n_bytes);

/* json_loadb, which refuses a key that is there twice, in any locale. */
json_t *mti_json_read(const char *text, size_t n, json_error_t *error);

/* The same with whole numbers as reals: they may be of any size. */
json_t *mti_json_read_reals(const char *text, size_t n, json_error_t *error);

/* The JSON of a text; of a file of at most `limit` bytes. NULL and an error that begins with the
 * name or the path, and says what stands in the file's place if that can be told. */
json_t *mti_json_named(const char *name, const char *text, size_t n);
json_t *mti_json_file(const char *path, size_t limit);

/* To be freed with mti_free; NULL and MT_ERR_MEMORY if memory ran out. flags are jansson's. */
char *mti_json_text(const json_t *root, size_t flags);

enum { MTI_JSON_BEGIN = 64 };
/* For messages: writes the value's beginning, whole characters in at most 60 bytes, with "..."
 * where there is more. Returns text. */
const char *mti_json_begin(const json_t *value, char text[MTI_JSON_BEGIN]);

#endif
