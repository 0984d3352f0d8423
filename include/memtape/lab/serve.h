/* serve.h: how many sequences, of what length, does a model generate at once on one GPU?
 *
 * Nothing is assumed: the model is made on `meta`, with its weights in the form asked for, prompts
 * are read into a KV cache of the form asked for until it holds all positions but one, and one more
 * token is generated. What that takes is what the allocator held. */
#ifndef MEMTAPE_SERVE_H
#define MEMTAPE_SERVE_H

#include "memtape/models/generate.h"

MT_C_BEGIN

/* Zero is the usual choice for all but config. */
typedef struct mt_serve_options {
    const mt_model_config *config; /* borrowed; a gpt or llama */
    const mt_quant *weights;       /* of the layers' linears; NULL: in the model's dtype */
    mt_kv_form cache;
    int64_t positions; /* of each sequence, its prompt and what follows; 0: the model's context, at
                        * most 8192 */
    int64_t at_once;   /* tokens that one forward reads, of all prompts together, but at least one
                        * of each; 0: 8192 */
    int64_t tensor; /* GPUs that share each layer, of which one is measured: its heads, its part of
                     * the MLP and of the vocabulary; what they exchange is not counted. 0: 1 */
    bool exact;     /* of mt_serve_most: every number up to the ceiling is tried, however many */
} mt_serve_options;

/* What it takes, in bytes. */
typedef struct mt_serve_need {
    int64_t sequences, positions;
    int64_t forwards; /* that read the prompts */
    size_t weights;   /* parameters, as requested */
    size_t cache;     /* the KV cache when all positions are in it, as requested */
    size_t peak;      /* allocated, from making the model on: the sum of ... */
    size_t by_category[MT_CATEGORY_COUNT]; /* ... these, at that instant */
    size_t reserved;                       /* the most in segments */
    int64_t none_above; /* mt_serve_most: no number of sequences above it fits; else 0 */
} mt_serve_need;

/* For so many sequences. capacity: what the allocator may reserve, 0: no limit; MT_ERR_MEMORY if it
 * is too little. */
MT_API mt_status mt_serve_measure(const mt_serve_options *options, int64_t sequences,
                                  size_t capacity, mt_serve_need *out);
/* The most sequences found that fit a capacity: so many were measured to fit, and one more not to.
 * A larger number may fit where it is cut differently, into forwards or into segments, but none
 * above out->none_above, of which even the tensors alone are too much; where both are equal, it is
 * the largest. Of 2^20 at most. If not even one fits, out->sequences is 0 and the rest is what one
 * needs. */
MT_API mt_status mt_serve_most(const mt_serve_options *options, size_t capacity,
                               mt_serve_need *out);

MT_C_END
#endif
