/* serve.h: what the two files of serving share. */
#ifndef MTI_FIT_SERVE_H
#define MTI_FIT_SERVE_H

#include "base/base.h"
#include "memtape/lab/fit.h"
#include "memtape/lab/serve.h"

#define MTI_SERVE_MOST ((int64_t)1 << 20) /* sequences */

/* What is run: all forwards; from the last one of a whole share of the prompts on; the one that
 * generates a token. The cache is filled without forwards before. */
typedef enum mti_serve_part { MTI_SERVE_ALL, MTI_SERVE_LAST, MTI_SERVE_TOKEN } mti_serve_part;

bool mti_serve_complete(const char *who, const mt_serve_options *options, const mt_serve_need *out,
                        mt_model_config *config, mt_serve_options *o);
/* Positions that one forward reads of each prompt. */
int64_t mti_serve_share(const mt_serve_options *o, int64_t sequences);
/* Whether a paged cache of this many sequences, or of what a capacity holds (0: any), has few
 * enough blocks to be simulated; else the error says what to ask for instead. */
bool mti_serve_few_blocks(const mt_serve_options *options, int64_t sequences, size_t capacity);
/* *fits: whether it did; false for any failure but that. *requested: the most bytes that tensors
 * had at once, which depend on no allocator; may be NULL. */
bool mti_serve_try(const mt_serve_options *o, mti_serve_part part, int64_t sequences,
                   size_t capacity, bool *fits, size_t *requested, mt_serve_need *out);

/* Finds the most for n options, several at a time: most[i] is mt_serve_most's answer for
 * options[i]. done: called after each, by one thread at a time; may be NULL. */
bool mti_serve_most_of_many(const mt_serve_options *options, size_t n, size_t capacity,
                            mt_serve_need *most, void (*done)(void *user, size_t n_done, size_t i),
                            void *user);

/* What vLLM has of a card at its defaults: bytes of its sampler's temporaries and of its cache. */
typedef struct mti_vllm_share {
    size_t sequences; /* max_num_seqs */
    size_t sampler, cache;
} mti_vllm_share;

mti_vllm_share mti_vllm_share_of(const mt_gpu *gpu, const mt_model_config *c, size_t weights);

#endif
