/* codec.h: how text becomes a model's tokens, and tokens text. */
#ifndef MTI_TRAINER_CODEC_H
#define MTI_TRAINER_CODEC_H

#include "memtape/models/model.h"
#include "memtape/models/tokens.h"
#include "base/base.h"

/* The tokenizer of a folder, if it has a tokenizer.json, or of a GGUF file. *t NULL: there is none.
 * False if it cannot be read, or has tokens that the model has not. */
bool mti_tokenizer_find(const char *path, const mt_model_config *config, mt_tokenizer **t);
/* Appends the tokens of a text, without a tokenizer its bytes. */
bool mti_encode(const mt_tokenizer *t, const void *text, size_t n_bytes, bool with_special,
                mt_token_list *ids);
/* Whether the token ends a text. */
bool mti_ends_text(const mt_tokenizer *t, int64_t token);

/* Prompts as tokens, one behind the other. */
typedef struct mti_prompts {
    mt_token_list ids;
    MTI_VEC(size_t) ends; /* of each, in ids */
} mti_prompts;
/* Reads prompts: whole numbers of a model's vocabulary with blanks or commas between them, a prompt
 * a line; empty lines are passed over. There is at least one. Free in any case. */
bool mti_prompts_read(mti_prompts *prompts, const char *path, int64_t vocab);
void mti_prompts_free(mti_prompts *prompts);

#endif
