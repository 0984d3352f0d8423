/* tokenizer_json.h: what the readers of a tokenizer.json share. A key with null is as if it were
 * missing. */
#ifndef MTI_TOKENIZER_JSON_H
#define MTI_TOKENIZER_JSON_H

#include "files/json_text.h"
#include "tokens/tokenizer.h"

/* Errors: a value that is missing (NULL) or not as needed; a name that is not known here. */
bool mti_key_wrong(const char *key, const json_t *value, const char *need);
bool mti_key_unknown(const char *where, const char *what);
/* Whether the object has no keys but "type" and these, each between blanks; else an error. */
bool mti_keys_only(const json_t *o, const char *what, const char *keys);
const json_t *mti_key_get(const json_t *o, const char *key);
bool mti_key_flag(const json_t *o, const char *key, bool otherwise, bool *out);
bool mti_key_count(const json_t *o, const char *key, size_t *out);
/* NULL and an error; a missing key is `otherwise`, if that is given. */
const char *mti_key_text(const json_t *o, const char *key, const char *otherwise);

typedef enum mti_section { MTI_NORMALIZER, MTI_PRE_TOKENIZER, MTI_DECODER } mti_section;
/* Adds the steps of an object with a type, or of a Sequence of these; null has none. */
bool mti_steps_read(mti_section section, const json_t *o, mti_steps *to);

#endif
