/* ops.h: the operations. All are recorded when an input requires grad.
 *
 * Inputs live on one device. Floating inputs of one call have one dtype (cast
 * where they differ) unless said otherwise. What each op keeps for its backward
 * is in src/ops/ops.def, and `memtape explain` prints it. */
#ifndef MEMTAPE_OPS_H
#define MEMTAPE_OPS_H

#include "memtape/tensor.h"

MT_C_BEGIN

/* ---- element-wise; two inputs broadcast as in NumPy ---- */
MT_API mt_tensor *mt_add(mt_tensor *a, mt_tensor *b);                  /* a + b */
MT_API mt_tensor *mt_sub(mt_tensor *a, mt_tensor *b);                  /* a - b */
MT_API mt_tensor *mt_mul(mt_tensor *a, mt_tensor *b);                  /* a b */
MT_API mt_tensor *mt_div(mt_tensor *a, mt_tensor *b);                  /* a / b */
MT_API mt_tensor *mt_affine(mt_tensor *x, double scale, double shift); /* scale x + shift */
MT_API mt_tensor *mt_add_scalar(mt_tensor *x, double c);               /* x + c */
MT_API mt_tensor *mt_mul_scalar(mt_tensor *x, double c);               /* c x */
MT_API mt_tensor *mt_relu(mt_tensor *x);                               /* max(x, 0) */
MT_API mt_tensor *mt_leaky_relu(mt_tensor *x, double slope); /* x > 0 ? x : slope x; slope >= 0 */
/* In place: the result overwrites x, and its node becomes x's grad_fn. Fails if a recorded op's
 * backward still needs x (the text names it), if x is a leaf that requires grad, if another tensor
 * in use shares the storage, or if elements of x share their memory. */
MT_API mt_status mt_relu_inplace(mt_tensor *x);
MT_API mt_status mt_leaky_relu_inplace(mt_tensor *x, double slope);
MT_API mt_tensor *mt_gelu(mt_tensor *x);      /* x/2 (1 + erf(x/sqrt 2)) */
MT_API mt_tensor *mt_gelu_tanh(mt_tensor *x); /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
MT_API mt_tensor *mt_silu(mt_tensor *x);      /* x sigmoid(x) */
MT_API mt_tensor *mt_softplus(mt_tensor *x);  /* log(1 + e^x)   (torch softplus, beta 1) */
MT_API mt_tensor *mt_tanh(mt_tensor *x);      /* hyperbolic tangent */
MT_API mt_tensor *mt_sigmoid(mt_tensor *x);   /* 1 / (1 + e^-x) */
MT_API mt_tensor *mt_exp(mt_tensor *x);       /* e^x */
MT_API mt_tensor *mt_log(mt_tensor *x);       /* natural logarithm */
MT_API mt_tensor *mt_sqrt(mt_tensor *x);      /* square root */
MT_API mt_tensor *mt_abs(mt_tensor *x);       /* its slope at 0 is 0   (torch.abs) */
/* min(max(x, low), high), low <= high; infinite: no bound; NaN stays. The gradient passes where
 * low <= x <= high   (torch.clamp) */
MT_API mt_tensor *mt_clamp(mt_tensor *x, double low, double high);
MT_API mt_tensor *mt_pow(mt_tensor *x, double exponent); /* x^exponent   (torch.pow, scalar) */
MT_API mt_tensor *mt_reciprocal(mt_tensor *x);           /* 1 / x; keeps this, where pow keeps x */
/* silu(gate) up, one shape; keeps gate and up, not silu(gate) (Shazeer 2020). For one packed
 * projection [..,2f] take its halves with mt_split. */
MT_API mt_tensor *mt_swiglu(mt_tensor *gate, mt_tensor *up);
/* Bool, with no gradient; a and b have one dtype, integers included. With a NaN ne is true and the
 * others are false   (torch.eq, ne, lt, le, gt, ge) */
MT_API mt_tensor *mt_eq(mt_tensor *a, mt_tensor *b); /* a == b */
MT_API mt_tensor *mt_ne(mt_tensor *a, mt_tensor *b); /* a != b */
MT_API mt_tensor *mt_lt(mt_tensor *a, mt_tensor *b); /* a < b */
MT_API mt_tensor *mt_le(mt_tensor *a, mt_tensor *b); /* a <= b */
MT_API mt_tensor *mt_gt(mt_tensor *a, mt_tensor *b); /* a > b */
MT_API mt_tensor *mt_ge(mt_tensor *a, mt_tensor *b); /* a >= b */
/* One of them with a scalar: mt_compare_scalar(x, MT_LT, 0.5). The scalar is rounded to a floating
 * x's dtype; another dtype must hold it. */
typedef enum mt_comparison { MT_EQ, MT_NE, MT_LT, MT_LE, MT_GT, MT_GE } mt_comparison;
MT_API mt_tensor *mt_compare_scalar(mt_tensor *x, mt_comparison how, double c);
/* mask ? a : b, element by element; mask: bool; all three broadcast   (torch.where) */
MT_API mt_tensor *mt_where(mt_tensor *mask, mt_tensor *a, mt_tensor *b);
/* mask ? value : x, as one `where`   (torch.masked_fill) */
MT_API mt_tensor *mt_masked_fill(mt_tensor *x, mt_tensor *mask, double value);
/* y[.., i, ..] = x[.., index[.., i, ..], ..] along dim (negative counts from the end). index: i64
 * of x's rank, in the other dimensions no longer than x; y has its shape and x's dtype, any. An
 * index out of range is an error, as in mt_embedding. An element taken twice gets the sum of the
 * gradients, always in the same order. Keeps the index and not x   (torch.gather) */
MT_API mt_tensor *mt_gather(mt_tensor *x, int dim, mt_tensor *index);
/* x in another dtype; x itself (retained) if it has the dtype. */
MT_API mt_tensor *mt_cast(mt_tensor *x, mt_dtype dtype);

/* ---- matrix products ---- */
/* a [..,m,k] b [..,k,n] -> [..,m,n]; leading dimensions broadcast; rank >= 2 both */
MT_API mt_tensor *mt_matmul(mt_tensor *a, mt_tensor *b);
/* x [..,in] w [out,in] b [out] or NULL -> x w^T + b: [..,out]   (torch.nn.functional.linear) */
MT_API mt_tensor *mt_linear(mt_tensor *x, mt_tensor *w, mt_tensor *b);
/* The rows of x [..,h], each once for each of its groups, index i64 [..,k], sorted by group, those
 * of one group in their order: [n,h], n = the elements of index. Groups are numbers in [0, groups).
 * The gradient of a row is the sum over where it went; keeps an i64 for each of n.
 * mt_embedding(inverse, y) puts rows back (x[perm // k], perm from torch.sort with stable=True) */
typedef struct mt_groups {
    mt_tensor *order;   /* i64 [n]: of the jth row its place in index */
    mt_tensor *inverse; /* i64 [n]: inverse[order[j]] = j */
    mt_tensor *counts;  /* i32 [groups]: how many rows each has */
} mt_groups;
MT_API mt_tensor *mt_dispatch(mt_tensor *x, mt_tensor *index, int64_t groups, mt_groups *out);
MT_API void mt_groups_release(mt_groups *groups);
/* x [n,in], its rows sorted by group (mt_dispatch); w [groups,out,in]; counts i32 [groups], how
 * many rows each group has -> [n,out], each row through its group's matrix. The host reads counts,
 * once for all calls with them and their backward, so a GPU is waited for, and a step with it
 * cannot be captured (torch.nn.functional.grouped_mm of w's transpose) */
MT_API mt_tensor *mt_grouped_linear(mt_tensor *x, mt_tensor *w, mt_tensor *counts);
/* x [n,h], index i64 [n] in [0, rows) -> [rows,h]: row r is the sum of the rows of x whose index is
 * r, 0 if there are none (torch.zeros(rows, h).scatter_add(0, index[:, None].expand_as(x), x)) */
MT_API mt_tensor *mt_combine(mt_tensor *x, mt_tensor *index, int64_t rows);

/* ---- rows: over the last dimension ---- */
/* softmax(scale x); causal masks column j of row i when j > i + columns - rows (rank >= 2) */
MT_API mt_tensor *mt_softmax(mt_tensor *x, double scale, bool causal);
MT_API mt_tensor *mt_log_softmax(mt_tensor *x); /* log(softmax(x)) */
/* (x - mean) rstd w + b, biased variance; w, b: [n] or both NULL   (torch layer_norm) */
MT_API mt_tensor *mt_layer_norm(mt_tensor *x, mt_tensor *w, mt_tensor *b, double eps);

/* (x - mean) rstd w + b channel by channel (torch batch_norm): x [b,c] or [b,c,..], channels in
 * dimension 1; w, b: [c] or NULL. training: mean and biased variance of this batch, of which each
 * channel needs 2 values or more; running_mean and running_var, where given, become (1 - momentum)
 * running + momentum batch with the batch's unbiased variance, in place, without a record on the
 * tape; not again where a checkpoint recomputes; but also by a call that then finds no memory for
 * its own record. Else: the running ones, which must be given. They
 * are [c], contiguous, f32 (f64 for f64 x); both or neither. Keeps x, w, and a mean and rstd per
 * channel in f32, in both modes. */
MT_API mt_tensor *mt_batch_norm(mt_tensor *x, mt_tensor *w, mt_tensor *b, mt_tensor *running_mean,
                                mt_tensor *running_var, bool training, double momentum, double eps);

/* x rstd w, rstd = 1 / sqrt(mean(x^2) + eps); w: [n] or NULL (Zhang & Sennrich 2019; torch
 * rms_norm). Keeps x and f32 rstd. */
MT_API mt_tensor *mt_rms_norm(mt_tensor *x, mt_tensor *w, double eps);
/* Rotary positions (Su et al. 2021) in the style of LLaMA and Hugging Face: x [b,a,s,d], d even,
 * any strides; row p is at position start + p, and its elements i and i + d/2 are rotated by
 * (start + p) theta^(-2i/d). start: the number of tokens in the KV cache, else 0; positions are
 * below 2^31. Keeps nothing. f32 and 16-bit x: cosine and sine are within 2e-7 of the exact values
 * up to position 2^24, within 1e-6 up to 2^31. */
MT_API mt_tensor *mt_rope(mt_tensor *x, int64_t start, double theta);
/* With scaled angles. YaRN (Peng et al. 2023): those of pairs i >= high are divided by factor,
 * those of i <= low are not, and of those between a part (i - low) / (high - low) is. by_angle
 * (Llama 3.1): pairs that turn by `low` at most from a position to the next are divided, those by
 * `high` or more are not, and of an angle a between them a part (high - a) / (high - low) is.
 * factor 0: none is. The result is multiplied by `scale`; 0: by 1. */
typedef struct mt_rope_options {
    double theta, factor, low, high, scale;
    bool by_angle;
} mt_rope_options;
MT_API mt_tensor *mt_rope_with(mt_tensor *x, int64_t start, const mt_rope_options *options);

/* ---- random ---- */
/* Zero with probability p in [0,1), else x / (1 - p). p == 0 returns x itself (retained). */
MT_API mt_tensor *mt_dropout(mt_tensor *x, double p);

/* ---- tables and losses ---- */
/* All zero is the usual choice, as is NULL. */
typedef struct mt_embedding_options {
    bool padded;     /* row `padding` of the table is looked up like any other, and gets no */
    int64_t padding; /* gradient   (torch embedding, padding_idx) */
} mt_embedding_options;
/* index: i64 of any shape; w [rows,n] -> [..,n] */
MT_API mt_tensor *mt_embedding(mt_tensor *index, mt_tensor *w, const mt_embedding_options *options);
/* The usual value of `ignore`: rows with this target do not count. */
#define MT_IGNORE (-100)
/* Mean over the rows whose target is not `ignore` of -log softmax(logits)[target].
 * logits [..,v], target i64 [..] -> scalar   (torch cross_entropy, reduction="mean") */
MT_API mt_tensor *mt_cross_entropy(mt_tensor *logits, mt_tensor *target, int64_t ignore);
/* All zero is mt_cross_entropy's choice. */
typedef struct mt_cross_entropy_options {
    /* mt_cross_entropy keeps log-probabilities, [..,v], as PyTorch does. This keeps the logits and
     * an f32 log-sum-exp per row: 4 bytes a row more, but logits and log-probabilities are never
     * there together, and forward writes one number a row. The same loss and gradients. */
    bool keep_logits;
    /* With keep_logits: the sum over the rows, in f32 (f64 for f64); 0 if there is none. */
    bool sum;
} mt_cross_entropy_options;
MT_API mt_tensor *mt_cross_entropy_with(mt_tensor *logits, mt_tensor *target, int64_t ignore,
                                        const mt_cross_entropy_options *options);
/* cross_entropy(x w^T, target) without all logits at once: forward computes `chunk` rows of them at
 * a time, backward as many elements, of some classes and all rows; 0: what the device likes best,
 * 32 MiB on the CPU, 256 MiB on a GPU and on meta (mt_device_count_scratch_of decides there). x
 * [..,d], w [v,d], target i64 [..] -> scalar in f32 (f64 for f64). Keeps x, w, target and an f32
 * log-sum-exp per row, and neither logits nor their gradient; costs 1 matrix product more than the
 * plain form's 3. A row of dw is rounded once; dx is added up in f32 (f64 for f64), which takes 4
 * bytes an element of x during backward if x has 16 bits. Rows of logits are padded to 16 bytes. */
MT_API mt_tensor *mt_linear_cross_entropy(mt_tensor *x, mt_tensor *w, mt_tensor *target,
                                          int64_t ignore, int64_t chunk);
/* Variants of linear_cross_entropy. */
typedef struct mt_linear_cross_entropy_options {
    int64_t chunk; /* as above */
    /* Forward makes both gradients with the logits, as PyTorch 2.13's F.linear_cross_entropy and
     * Liger's do, and keeps them instead of x, w and the target: as many bytes as x and w, of which
     * w's are more. No product more than the plain form's 3, all in forward. dw is rounded after
     * each chunk. Backward scales them in place (copies, if the graph is retained), by dloss
     * rounded to x's dtype. */
    bool early;
    /* With early: logits of a chunk in f32, with a copy in x's 16 bits for the products. */
    bool f32_logits;
} mt_linear_cross_entropy_options;
MT_API mt_tensor *mt_linear_cross_entropy_with(mt_tensor *x, mt_tensor *w, mt_tensor *target,
                                               int64_t ignore,
                                               const mt_linear_cross_entropy_options *options);
MT_API mt_tensor *mt_mse(mt_tensor *x, mt_tensor *y); /* mean((x-y)^2) -> scalar */

/* ---- reductions: over the dimensions in dims (negative counts from the end), n_dims 0: all.
 * keep: reduced dimensions stay with extent 1 ---- */
/* The sum, and the mean. */
MT_API mt_tensor *mt_sum(mt_tensor *x, int n_dims, const int *dims, bool keep);
MT_API mt_tensor *mt_mean(mt_tensor *x, int n_dims, const int *dims, bool keep);
/* The largest; NaN if there is one. The gradient goes to the first of the largest elements, in
 * row-major order over dims   (torch.max(dim); amax shares it among equals) */
MT_API mt_tensor *mt_max(mt_tensor *x, int n_dims, const int *dims, bool keep);
/* The k largest of each row, the last dimension of x [..,n], 0 <= k <= n: values [..,k] in
 * decreasing order, and their indices, i64 [..,k]; both the caller's. NaN counts as largest; equal
 * values keep their order. The gradient of the values goes to these elements; keeps only the index
 * (torch.topk). CUDA: n below 2^32; time grows with k^2 past some thousands. */
MT_API mt_status mt_topk(mt_tensor *x, int64_t k, mt_tensor **values, mt_tensor **index);
MT_API mt_tensor *mt_sum_all(mt_tensor *x);  /* over all dimensions -> scalar */
MT_API mt_tensor *mt_mean_all(mt_tensor *x); /* the same of the mean */

/* ---- views: share the storage, allocate nothing ---- */
/* x with two dimensions exchanged; negative ones count from the end. */
MT_API mt_tensor *mt_transpose(mt_tensor *x, int dim0, int dim1);
MT_API mt_tensor *mt_permute(mt_tensor *x, const int *order); /* order[rank] */
/* [start, start + length) of one dimension */
MT_API mt_tensor *mt_slice(mt_tensor *x, int dim, int64_t start, int64_t length);
MT_API mt_tensor *mt_expand(mt_tensor *x, int rank, const int64_t *shape); /* extent 1 -> any */
/* A view if the strides allow it; otherwise a copy (recorded as `contiguous` + view). One extent
 * may be -1: it follows from the others. */
MT_API mt_tensor *mt_reshape(mt_tensor *x, int rank, const int64_t *shape);
/* n parts of sizes[i] along dim, out[n]: each the caller's. One node: its backward is one cat. */
MT_API mt_status mt_split(mt_tensor *x, int dim, int n, const int64_t *sizes, mt_tensor **out);

/* ---- copies ---- */
MT_API mt_tensor *mt_contiguous(mt_tensor *x); /* x itself (retained) if it is */
MT_API mt_tensor *mt_clone(mt_tensor *x);      /* a copy, contiguous */
MT_API mt_tensor *mt_cat(int n, mt_tensor *const *parts,
                         int dim); /* n parts, one after the other along dim */

/* ---- attention ---- */
/* softmax(scale q k^T) v by blocks, never holding [s,t]. q [b,a,s,d], k, v [b,a_kv,t,d], a a
 * multiple of a_kv -> [b,a,s,d], laid out as [b,s,a,d] so that merging heads is a view. Keeps q,
 * k, v, out, f32 log-sum-exp [b,a,s] and the RNG state (two i64).
 * Dao et al. 2022; torch scaled_dot_product_attention. scale 0: 1/sqrt(d). */
MT_API mt_tensor *mt_flash_attention(mt_tensor *q, mt_tensor *k, mt_tensor *v, double scale,
                                     bool causal, double dropout);
/* The same with more to choose; NULL: all zero. */
typedef struct mt_attention_options {
    double scale, dropout;
    bool causal;
    /* With causal: a query sees the last so many keys up to its own (Beltagy et al. 2020), and the
     * work is s window, not s t; 0: all. */
    int64_t window;
    /* [a], q's dtype: a score for each head that takes part in the softmax of every row and has no
     * value (gpt-oss), so that a row's weights sum to less than 1; NULL: none. The tape keeps it
     * besides. */
    mt_tensor *sinks;
} mt_attention_options;
MT_API mt_tensor *mt_flash_attention_with(mt_tensor *q, mt_tensor *k, mt_tensor *v,
                                          const mt_attention_options *options);
/* The same values as a composition of matmul, softmax, dropout and matmul, so that every
 * intermediate is visible; not a row of the table. With a > a_kv, k and v are repeated with stride
 * 0, not copied. */
MT_API mt_tensor *mt_math_attention(mt_tensor *q, mt_tensor *k, mt_tensor *v, double scale,
                                    bool causal, double dropout);

/* The same with soft capping (Gemma 2): the scores are cap tanh(scale q k^T / cap); cap > 0. The
 * tape keeps the tanh besides. */
MT_API mt_tensor *mt_math_attention_capped(mt_tensor *q, mt_tensor *k, mt_tensor *v, double scale,
                                           double cap, bool causal, double dropout);

MT_C_END
#endif
