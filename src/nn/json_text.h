/* json_text.h: JSON as text that either holds every key or is not there. */
#ifndef MTI_JSON_TEXT_H
#define MTI_JSON_TEXT_H

#include <jansson.h>
#include "base/base.h"

/* The caller's to mti_free; NULL and MT_ERR_MEMORY when memory ran out. flags are jansson's. */
char *mti_json_text(const json_t *root, size_t flags);

#endif
