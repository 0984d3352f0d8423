/* json_text.h: JSON as text with every key, or an error. */
#ifndef MTI_JSON_TEXT_H
#define MTI_JSON_TEXT_H

#include <jansson.h>
#include "base/base.h"

/* json_loadb, which refuses a key that is there twice; json_dumpb: both in any locale. */
json_t *mti_json_read(const char *text, size_t n, json_error_t *error);
size_t mti_json_dump(const json_t *root, char *buf, size_t n, size_t flags);

/* To be freed with mti_free; NULL and MT_ERR_MEMORY if memory ran out. flags are jansson's. */
char *mti_json_text(const json_t *root, size_t flags);

#endif
