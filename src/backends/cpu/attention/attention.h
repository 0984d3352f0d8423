/* attention.h: flash attention, shared by its files.
 *
 * Dao et al. 2022, "FlashAttention: fast and memory-efficient exact attention":
 * scores exist only for one block of queries against one block of keys. The
 * arithmetic of a block is in attention_block.inc, compiled once for f32 (used
 * for 16-bit dtypes too) and once for f64. */
#ifndef MTI_CPU_ATTENTION_H
#define MTI_CPU_ATTENTION_H

#include "backends/cpu/products/blas.h"

typedef struct mti_attn {
    const mti_attention *call;
    const mti_view *d_o, *dq, *dk, *dv, *d_sinks; /* backward only */
    mt_dtype dtype;
    int64_t b, a, a_kv, s, t, d, e; /* e: the width of v */
    int64_t block_q, block_k;       /* functions of the shapes alone */
    int64_t q_blocks;
    /* dropout: a draw of at least `threshold` (in units of 2^-24) is kept */
    uint64_t seed, offset;
    uint32_t threshold;
    double keep_scale;
    char *scratch;
    size_t scratch_per_worker;
} mti_attn;

/* The first element of head h of batch item b in row i. */
static inline int64_t mti_attn_at(const mti_view *v, int64_t b, int64_t h, int64_t i)
{
    return b * v->stride[0] + h * v->stride[1] + i * v->stride[2];
}
static inline char *mti_attn_row(const mti_view *v, int64_t b, int64_t h, int64_t i)
{
    return (char *)v->data + mti_attn_at(v, b, h, i) * (int64_t)mti_dtype_size(v->dtype);
}

/* Query i sees keys [0, result). */
static inline int64_t mti_attn_visible(const mti_attn *x, int64_t i)
{
    int64_t n = x->call->causal ? i + (x->t - x->s) + 1 : x->t;
    return n < 0 ? 0 : n > x->t ? x->t : n;
}

/* It sees none before this one, nor one before the block of keys that begins there. */
static inline int64_t mti_attn_first(const mti_attn *x, int64_t i)
{
    int64_t n = x->call->window ? i + (x->t - x->s) + 1 - x->call->window : 0;
    return n < 0 ? 0 : n;
}
static inline int64_t mti_attn_first_block(const mti_attn *x, int64_t i)
{
    const int64_t first = mti_attn_first(x, i);
    return first ? first / x->block_k * x->block_k : 0; /* without keys there is no block */
}

/* Bytes of scratch per worker. */
size_t mti_attn_forward_scratch_f32(const mti_attn *x);
size_t mti_attn_forward_scratch_f64(const mti_attn *x);
size_t mti_attn_backward_scratch_f32(const mti_attn *x);
size_t mti_attn_backward_scratch_f64(const mti_attn *x);

/* Computes rows [i, i + block_q) of o and lse, in head h of batch item b. */
void mti_attn_forward_f32(const mti_attn *x, int64_t b, int64_t h, int64_t i, void *scratch);
void mti_attn_forward_f64(const mti_attn *x, int64_t b, int64_t h, int64_t i, void *scratch);
/* Computes dk and dv of one head of keys, and dq of all query heads that share it. */
void mti_attn_backward_f32(const mti_attn *x, int64_t b, int64_t h_kv, void *scratch);
void mti_attn_backward_f64(const mti_attn *x, int64_t b, int64_t h_kv, void *scratch);

#endif
