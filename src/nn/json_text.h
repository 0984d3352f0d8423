/* json_text.h: JSON as text with every key, or an error. */
#ifndef MTI_JSON_TEXT_H
#define MTI_JSON_TEXT_H

#include <jansson.h>
#include "base/base.h"

/* To be freed with mti_free; NULL and MT_ERR_MEMORY if memory ran out. flags are jansson's. */
char *mti_json_text(const json_t *root, size_t flags);

#endif
