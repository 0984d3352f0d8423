/* codec.h: how text becomes a model's tokens, and tokens text. */
#ifndef MTI_TRAINER_CODEC_H
#define MTI_TRAINER_CODEC_H

#include "base/base.h"

typedef MTI_VEC(int64_t) mti_ids;

/* Prompts as tokens, one behind the other. */
typedef struct mti_prompts {
    mti_ids ids;
    MTI_VEC(size_t) ends; /* of each, in ids */
} mti_prompts;
/* Reads prompts: whole numbers of a model's vocabulary with blanks or commas between them, a prompt
 * a line; empty lines are passed over. There is at least one. Free in any case. */
bool mti_prompts_read(mti_prompts *prompts, const char *path, int64_t vocab);
void mti_prompts_free(mti_prompts *prompts);

#endif
