/* generate.h: generates text with a gpt or llama, token by token.
 *
 * Nothing is recorded: no tape, no saved tensors. Only the KV cache grows: the keys and
 * values of every position so far, so that a new token costs one position's arithmetic. Letters: b
 * batch, t positions, k heads of keys and values, h the width of a head, L layers, e bytes of an
 * element, v vocabulary. */
#ifndef MEMTAPE_GENERATE_H
#define MEMTAPE_GENERATE_H

#include "memtape/models/model.h"

MT_C_BEGIN

/* ---- the cache ---- */

/* How a cache takes its memory. */
typedef enum mt_kv_form {
    MT_KV_PREALLOCATED, /* 2 b t k h L e for the t positions it has room for, at once */
    MT_KV_GROWING,      /* the same for the t positions it holds; each step copies all of them */
    MT_KV_8BIT,         /* preallocated; a code of one byte per value, and an f32 scale per head's
                           vector, its largest magnitude / 127: 2 b t k (h + 4) L */
    MT_KV_PAGED,        /* blocks of MT_KV_BLOCK positions, made when the first of them comes, and a
                           table of them for each sequence: the bytes above for t rounded up to whole
                           blocks. Attention has no kernel over blocks: each layer's are copied side
                           by side for a step, keys and values, 2 b t k h e, and let go after it. */
    MT_KV_FORM_COUNT
} mt_kv_form;

#define MT_KV_BLOCK 16 /* positions of a block */

/* "preallocated", "growing", "8bit", "paged". */
MT_API const char *mt_kv_form_name(mt_kv_form form);
/* The bytes above: of `batch` sequences of `positions`, of which a layer with a window holds the
 * last `window`: t L is the sum over layers of the lesser of both. 0 and an error for a model
 * without.
 */
MT_API size_t mt_kv_bytes(const mt_model_config *config, mt_kv_form form, int64_t batch,
                          int64_t positions);

/* Keys and values of all layers, of the positions read so far. */
typedef struct mt_kv_cache mt_kv_cache;

/* For `batch` sequences of at most `positions` tokens (0: the model's context); the caller's to
 * free. Its tensors are of category MT_CACHE and of the parameters' dtype and device. */
MT_API mt_kv_cache *mt_kv_cache_new(mt_module *model, mt_kv_form form, int64_t batch,
                                    int64_t positions);
MT_API void mt_kv_cache_free(mt_kv_cache *cache);            /* NULL is allowed */
MT_API int64_t mt_kv_cache_length(const mt_kv_cache *cache); /* positions held */
/* What its storages hold now, as requested; scales (may be NULL): what of it is scales. */
MT_API size_t mt_kv_cache_bytes(const mt_kv_cache *cache, size_t *scales);
/* What the positions that it holds take, by the formula of its form without its rounding to blocks:
 * the bytes above less these are waste. Sequences of unequal lengths have a cache each: a
 * preallocated one wastes what its sequence does not reach, a growing one nothing, a paged one
 * MT_KV_BLOCK - 1 positions at most. */
MT_API size_t mt_kv_cache_used(const mt_kv_cache *cache);
/* Forget all but the first `length` positions; blocks of none of them go back. Where a window has
 * dropped positions, `length` is 0, what the cache holds, or one less; else it is an error. */
MT_API mt_status mt_kv_cache_rewind(mt_kv_cache *cache, int64_t length);

/* tokens: i64 [b,t], what follows the positions in the cache, which takes them in; NULL: no cache,
 * the whole text so far -> [b,v]: the scores of the token after the last. Not recorded. On failure
 * the cache holds what it held, or, where windows have dropped what several tokens at once pushed
 * out, it must be rewound to 0 first. One model runs in one thread at a time. More than the cache
 * has room for, or than the model's context, is an error. */
MT_API mt_tensor *mt_next_logits(mt_module *model, mt_kv_cache *cache, mt_tensor *tokens);

/* The same for texts of different lengths: row i of tokens [b,t] ends with the lengths[i] tokens of
 * text i, 1 to t, which follow what caches[i], of one sequence, holds. What stands before them,
 * tokens of the vocabulary, is padding, which no text sees: each has the positions, the windows and
 * the cache that it would have alone. caches NULL: no caches. -> [b,v] */
MT_API mt_tensor *mt_next_logits_each(mt_module *model, mt_kv_cache *const *caches,
                                      const int64_t *lengths, mt_tensor *tokens);
/* The scores after every token of such texts, without caches -> [b,t,v]; those of padding say
 * nothing. Not recorded. */
MT_API mt_tensor *mt_logits_each(mt_module *model, const int64_t *lengths, mt_tensor *tokens);

/* ---- generating ---- */

/* All zero: the likeliest token each time, with a cache. */
typedef struct mt_generate_options {
    double temperature; /* 0: always the likeliest */
    int64_t top_k;      /* choose among the k likeliest, and those as likely; 0: among all */
    double top_p;       /* of these, among the likeliest of this share of the probability, and those
                           as likely; 0 and 1: among all */
    /* Scores of tokens that the text has are first divided by it, negative ones multiplied (Keskar
     * et al. 2019); 0 and 1: none are. */
    double repetition_penalty;
    uint64_t seed;
    uint64_t first_draw; /* number of the first token's draw, for a text made in parts */
    bool no_cache;       /* every token from the whole text so far */
    mt_kv_form cache;
    /* [batch]: how many tokens each prompt has, with which its row ends (mt_next_logits_each);
     * NULL: all have as many as a row. */
    const int64_t *lengths;
} mt_generate_options;

/* What generating took. */
typedef struct mt_generate_stats {
    int64_t tokens;     /* made, in each sequence */
    double first_s;     /* seconds until the first: the prompt at once */
    double rest_s;      /* seconds for the others */
    size_t cache_bytes; /* at the end */
} mt_generate_stats;

/* Called with every token [b] as it is chosen; false stops, which is no failure. */
typedef bool mt_tokens_fn(void *user, const int64_t *tokens);

/* n tokens after each of `batch` prompts of `length` tokens, prompt [b,length]. What token i of
 * sequence j is depends on the scores, seed, first_draw + i and j alone. The cache has room for
 * length + n positions, of prompts of different lengths each for its own length + n; it ends with
 * one less, as nothing follows the last token. Dropout is off meanwhile. length + n may not exceed
 * the model's context. stats may be NULL. */
MT_API mt_status mt_generate(mt_module *model, int64_t batch, int64_t length, const int64_t *prompt,
                             int64_t n, const mt_generate_options *options, mt_tokens_fn *fn,
                             void *user, mt_generate_stats *stats);

MT_C_END
#endif
