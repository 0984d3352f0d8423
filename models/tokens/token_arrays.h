/* token_arrays.h: a tokenizer from a vocabulary as arrays, as a GGUF file has one. */
#ifndef MTI_TOKEN_ARRAYS_H
#define MTI_TOKEN_ARRAYS_H

#include "memtape/models/tokens.h"

/* What a token is, by GGUF's numbers. */
enum { MTI_TOKEN_NORMAL = 1, MTI_TOKEN_CONTROL = 3, MTI_TOKEN_USER = 4, MTI_TOKEN_BYTE = 6 };

typedef struct mti_token_text {
    const char *at;
    size_t n;
} mti_token_text;

/* The keys below "tokenizer." of a GGUF file; what it lacks is NULL, 0 or false, a token -1. The
 * arrays are copied. */
typedef struct mti_token_arrays {
    const char *path;            /* for messages */
    const char *model;           /* ggml.model: "gpt2" or "llama" */
    const char *pre;             /* ggml.pre, which names a pattern: "smollm", "llama-bpe", ... */
    size_t n;                    /* tokens */
    const mti_token_text *texts; /* ggml.tokens [n] */
    const float *scores;         /* ggml.scores [n], which "llama" needs */
    const int32_t *types;        /* ggml.token_type [n] */
    size_t n_merges;
    const mti_token_text *merges; /* ggml.merges, "Ġ the", which "gpt2" needs */
    int64_t bos, eos, eot, unknown;
    bool add_bos, add_eos, add_space_prefix;
    const char *chat_template; /* tokenizer.chat_template */
} mti_token_arrays;

/* NULL and an error naming what is missing, out of range, or not known here. */
mt_tokenizer *mti_tokenizer_from_arrays(const mti_token_arrays *arrays);

#endif
