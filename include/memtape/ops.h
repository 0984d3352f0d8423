/* ops.h: the operations. All are recorded when an input requires grad.
 *
 * Inputs live on one device. Floating inputs of one call have one dtype (cast
 * where they differ) unless said otherwise. What each op keeps for its backward
 * is in src/ops/ops.def, and `memtape explain` prints it. */
#ifndef MEMTAPE_OPS_H
#define MEMTAPE_OPS_H

#include "memtape/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- element-wise; two inputs broadcast as in NumPy ---- */
MT_API mt_tensor *mt_add(mt_tensor *a, mt_tensor *b); /* a + b */
MT_API mt_tensor *mt_sub(mt_tensor *a, mt_tensor *b);
MT_API mt_tensor *mt_mul(mt_tensor *a, mt_tensor *b);
MT_API mt_tensor *mt_div(mt_tensor *a, mt_tensor *b);
MT_API mt_tensor *mt_affine(mt_tensor *x, double scale, double shift); /* scale x + shift */
MT_API mt_tensor *mt_add_scalar(mt_tensor *x, double c);
MT_API mt_tensor *mt_mul_scalar(mt_tensor *x, double c);
MT_API mt_tensor *mt_relu(mt_tensor *x);                     /* max(x, 0) */
MT_API mt_tensor *mt_leaky_relu(mt_tensor *x, double slope); /* x > 0 ? x : slope x; slope >= 0 */
/* In place: x's storage holds the result, and x's history goes on with it. Refused, naming the op,
 * where an op's backward still needs what x holds; also for a leaf that requires grad, where
 * another tensor in use shares the storage, and where elements of x share their memory. */
MT_API mt_status mt_relu_inplace(mt_tensor *x);
MT_API mt_status mt_leaky_relu_inplace(mt_tensor *x, double slope);
MT_API mt_tensor *mt_gelu(mt_tensor *x);      /* x/2 (1 + erf(x/sqrt 2)) */
MT_API mt_tensor *mt_gelu_tanh(mt_tensor *x); /* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
MT_API mt_tensor *mt_silu(mt_tensor *x);      /* x sigmoid(x) */
MT_API mt_tensor *mt_softplus(mt_tensor *x);  /* log(1 + e^x)   (torch softplus, beta 1) */
MT_API mt_tensor *mt_tanh(mt_tensor *x);
MT_API mt_tensor *mt_sigmoid(mt_tensor *x);
MT_API mt_tensor *mt_exp(mt_tensor *x);
MT_API mt_tensor *mt_log(mt_tensor *x);
MT_API mt_tensor *mt_sqrt(mt_tensor *x);
MT_API mt_tensor *mt_abs(mt_tensor *x); /* its slope at 0 is 0   (torch.abs) */
/* min(max(x, low), high), low <= high; an infinity leaves a side open, NaN stays. The gradient
 * passes where low <= x <= high   (torch.clamp) */
MT_API mt_tensor *mt_clamp(mt_tensor *x, double low, double high);
MT_API mt_tensor *mt_pow(mt_tensor *x, double exponent); /* x^exponent   (torch.pow, scalar) */
/* silu(gate) up, one shape; keeps gate and up, not silu(gate) (Shazeer 2020). The halves of one
 * packed projection [..,2f] come as mt_split's views. */
MT_API mt_tensor *mt_swiglu(mt_tensor *gate, mt_tensor *up);
/* Bool, with no gradient; a and b have one dtype, whole numbers included. With a NaN ne is true and
 * the others are false   (torch.eq, ne, lt, le, gt, ge) */
MT_API mt_tensor *mt_eq(mt_tensor *a, mt_tensor *b); /* a == b */
MT_API mt_tensor *mt_ne(mt_tensor *a, mt_tensor *b); /* a != b */
MT_API mt_tensor *mt_lt(mt_tensor *a, mt_tensor *b); /* a < b */
MT_API mt_tensor *mt_le(mt_tensor *a, mt_tensor *b); /* a <= b */
MT_API mt_tensor *mt_gt(mt_tensor *a, mt_tensor *b); /* a > b */
MT_API mt_tensor *mt_ge(mt_tensor *a, mt_tensor *b); /* a >= b */
/* The same with one number, rounded to x's dtype where that is floating; for whole numbers it must
 * be one of them. */
MT_API mt_tensor *mt_eq_scalar(mt_tensor *x, double c);
MT_API mt_tensor *mt_ne_scalar(mt_tensor *x, double c);
MT_API mt_tensor *mt_lt_scalar(mt_tensor *x, double c);
MT_API mt_tensor *mt_le_scalar(mt_tensor *x, double c);
MT_API mt_tensor *mt_gt_scalar(mt_tensor *x, double c);
MT_API mt_tensor *mt_ge_scalar(mt_tensor *x, double c);
/* mask ? a : b, element by element; mask: bool; all three broadcast   (torch.where) */
MT_API mt_tensor *mt_where(mt_tensor *mask, mt_tensor *a, mt_tensor *b);
/* mask ? value : x, as one `where`   (torch.masked_fill) */
MT_API mt_tensor *mt_masked_fill(mt_tensor *x, mt_tensor *mask, double value);
/* y[.., i, ..] = x[.., index[.., i, ..], ..] along dim, which may be counted from the end. index:
 * i64 of x's rank, in the other dimensions no longer than x; y has its shape and x's dtype, any. A
 * number out of range is told as mt_embedding tells it. The gradient of what is named twice is the
 * sum, always in the same order. Keeps the index and not x   (torch.gather) */
MT_API mt_tensor *mt_gather(mt_tensor *x, int dim, mt_tensor *index);
/* Another dtype; the same tensor again (retained) if it has it already. */
MT_API mt_tensor *mt_cast(mt_tensor *x, mt_dtype dtype);

/* ---- matrix products ---- */
/* a [..,m,k] b [..,k,n] -> [..,m,n]; leading dimensions broadcast; rank >= 2 both */
MT_API mt_tensor *mt_matmul(mt_tensor *a, mt_tensor *b);
/* x [..,in] w [out,in] b [out] or NULL -> x w^T + b: [..,out]   (torch.nn.functional.linear) */
MT_API mt_tensor *mt_linear(mt_tensor *x, mt_tensor *w, mt_tensor *b);

/* ---- rows: over the last dimension ---- */
/* softmax(scale x); causal masks column j of row i when j > i + columns - rows (rank >= 2) */
MT_API mt_tensor *mt_softmax(mt_tensor *x, double scale, bool causal);
MT_API mt_tensor *mt_log_softmax(mt_tensor *x);
/* (x - mean) rstd w + b, biased variance; w, b: [n] or both NULL   (torch layer_norm) */
MT_API mt_tensor *mt_layer_norm(mt_tensor *x, mt_tensor *w, mt_tensor *b, double eps);

/* x rstd w, rstd = 1 / sqrt(mean(x^2) + eps); w: [n] or NULL (Zhang & Sennrich 2019; torch
 * rms_norm). Keeps x and f32 rstd. */
MT_API mt_tensor *mt_rms_norm(mt_tensor *x, mt_tensor *w, double eps);
/* Rotary positions (Su et al. 2021) in the style of LLaMA and Hugging Face: x [b,a,s,d], d even,
 * any strides; of row p at position start + p, elements i and i + d/2 turn by the angle
 * (start + p) theta^(-2i/d). start: the tokens that a KV cache holds already, else 0; positions
 * are below 2^31. Keeps nothing. f32 and 16-bit x: cosine and sine are within 2e-7 of the exact
 * ones up to position 2^24 and 1e-6 up to 2^31. */
MT_API mt_tensor *mt_rope(mt_tensor *x, int64_t start, double theta);

/* ---- random ---- */
/* Zero with probability p in [0,1), else x / (1 - p). p == 0 gives x again (retained). */
MT_API mt_tensor *mt_dropout(mt_tensor *x, double p);

/* ---- tables and losses ---- */
/* index: i64 of any shape; w [rows,n] -> [..,n] */
MT_API mt_tensor *mt_embedding(mt_tensor *index, mt_tensor *w);
/* What `ignore` is as a rule: the value of a target that no loss looks at. */
#define MT_IGNORE (-100)
/* Mean over the rows whose target is not `ignore` of -log softmax(logits)[target].
 * logits [..,v], target i64 [..] -> scalar   (torch cross_entropy, reduction="mean") */
MT_API mt_tensor *mt_cross_entropy(mt_tensor *logits, mt_tensor *target, int64_t ignore);
/* cross_entropy(x w^T, target) without the logits: `chunk` rows of them exist at a time, in forward
 * and once more in backward; 0 takes as many as are about 32 MiB. x [..,d], w [v,d], target i64
 * [..]
 * -> scalar in f32 (f64 for f64). Keeps x, w, target and an f32 log-sum-exp per row, and neither
 * logits nor their gradient: 1 product more than the plain form's 3. dw adds up in w's dtype, chunk
 * by chunk. */
MT_API mt_tensor *mt_linear_cross_entropy(mt_tensor *x, mt_tensor *w, mt_tensor *target,
                                          int64_t ignore, int64_t chunk);
MT_API mt_tensor *mt_mse(mt_tensor *x, mt_tensor *y); /* mean((x-y)^2) -> scalar */

/* ---- reductions: over the dimensions in dims (negative counts from the end), n_dims 0: all.
 * keep: reduced dimensions stay with extent 1 ---- */
MT_API mt_tensor *mt_sum(mt_tensor *x, int n_dims, const int *dims, bool keep);
MT_API mt_tensor *mt_mean(mt_tensor *x, int n_dims, const int *dims, bool keep);
/* The largest; NaN where there is one. The gradient goes to the first that is largest, in
 * row-major order over dims   (torch.max(dim); amax shares it among equals) */
MT_API mt_tensor *mt_max(mt_tensor *x, int n_dims, const int *dims, bool keep);
/* The k largest of each row, the last dimension of x [..,n], 0 <= k <= n: values [..,k], the
 * largest first, and where they are, i64 [..,k]; both the caller's. NaN counts as largest; of
 * equals the first comes first. The gradient of the values goes to these elements; keeps the index
 * alone (torch.topk). CUDA: n below 2^32; time grows with k^2 past some thousands. */
MT_API mt_status mt_topk(mt_tensor *x, int64_t k, mt_tensor **values, mt_tensor **index);
MT_API mt_tensor *mt_sum_all(mt_tensor *x);
MT_API mt_tensor *mt_mean_all(mt_tensor *x);
/* Over one dimension, which goes. */
MT_API mt_tensor *mt_sum_dim(mt_tensor *x, int dim);
MT_API mt_tensor *mt_mean_dim(mt_tensor *x, int dim);
MT_API mt_tensor *mt_max_dim(mt_tensor *x, int dim);

/* ---- views: share the storage, allocate nothing ---- */
MT_API mt_tensor *mt_transpose(mt_tensor *x, int dim0, int dim1);
MT_API mt_tensor *mt_permute(mt_tensor *x, const int *order); /* order[rank] */
/* [start, start + length) of one dimension */
MT_API mt_tensor *mt_slice(mt_tensor *x, int dim, int64_t start, int64_t length);
MT_API mt_tensor *mt_expand(mt_tensor *x, int rank, const int64_t *shape); /* extent 1 -> any */
/* A view where the strides allow it; otherwise a copy (recorded as `contiguous` + view). One
 * extent may be -1: what is left. */
MT_API mt_tensor *mt_reshape(mt_tensor *x, int rank, const int64_t *shape);
/* n parts of sizes[i] along dim, out[n]: each the caller's. One node: its backward is one cat. */
MT_API mt_status mt_split(mt_tensor *x, int dim, int n, const int64_t *sizes, mt_tensor **out);

/* ---- copies ---- */
MT_API mt_tensor *mt_contiguous(mt_tensor *x); /* x again (retained) if it is */
MT_API mt_tensor *mt_clone(mt_tensor *x);
MT_API mt_tensor *mt_cat(int n, mt_tensor *const *parts, int dim);

/* ---- attention ---- */
/* softmax(scale q k^T) v by blocks, never holding [s,t]. q [b,a,s,d], k, v [b,a_kv,t,d], a a
 * multiple of a_kv -> [b,a,s,d], laid out as [b,s,a,d] so that merging heads is a view. Keeps q,
 * k, v, out, f32 log-sum-exp [b,a,s] and the RNG state (two i64).
 * Dao et al. 2022; torch scaled_dot_product_attention. scale 0: 1/sqrt(d). */
MT_API mt_tensor *mt_flash_attention(mt_tensor *q, mt_tensor *k, mt_tensor *v, double scale,
                                     bool causal, double dropout);
/* The same values from visible parts: matmul, softmax, dropout, matmul. Not a row of the table:
 * a composition, so that every intermediate shows. With a > a_kv, k and v are repeated by stride 0,
 * not copied. */
MT_API mt_tensor *mt_math_attention(mt_tensor *q, mt_tensor *k, mt_tensor *v, double scale,
                                    bool causal, double dropout);

/* ---- in fewer bits: for what is kept; no gradient ---- */
/* u8 [(n+7)/8]: bit i % 8 of byte i / 8 tells whether element i, in row-major order, is set (bool)
 * or above 0 (floating; NaN counts as above: relu's backward lets it pass). */
MT_API mt_tensor *mt_pack_bits(mt_tensor *x);
/* The same bits as bool, or as 0 and 1 in a floating dtype. */
MT_API mt_tensor *mt_unpack_bits(mt_tensor *bits, mt_dtype dtype, int rank, const int64_t *shape);
/* The mask that a dropout with this p drew at this place of the generator (mt_save_info tells):
 * bool, 1 where it kept the element. */
MT_API mt_tensor *mt_dropout_mask(mt_device *device, int rank, const int64_t *shape, double p,
                                  uint64_t seed, uint64_t offset);

/* Values in row-major order, in blocks that share an f32 scale; the last block may be shorter.
 * int8: scale = max|x| / 127, code = x / scale to the nearest integer, ties to even.
 * nf4: scale = max|x|, code = the nearest of 16 levels, quantiles of the normal distribution; of
 * two equally near ones the lower (Dettmers et al. 2023, QLoRA). Two values a byte, the first in
 * the high bits.
 * double_scales: the scales less their mean as int8, in blocks of 256 (the paper's double
 * quantisation): 1/64 byte a value instead of 4/64. A scale is then off by at most 1/254 of the
 * largest difference from the mean in its block of 256.
 * A block with an infinity or a NaN comes back as NaN throughout, with double_scales the whole
 * tensor does: what has gone wrong stays visible. f64 passes through f32. The same bits on every
 * device (but for those of a NaN), at every number of threads. */
typedef enum mt_quant_format { MT_QUANT_INT8, MT_QUANT_NF4 } mt_quant_format;
typedef struct mt_quant {
    mt_quant_format format;
    int block; /* values that share a scale: 64, 128 or 256; 0: 128 for int8, 64 for nf4 */
    bool double_scales;
} mt_quant;

/* Bytes of n quantised values: with m = ceil(n / block) scales, n (int8) or (n + 1) / 2 (nf4), and
 * 4 m; double_scales: m + 4 ceil(m / 256) + 4. 0 and an error if the format is none. */
MT_API size_t mt_quantized_bytes(const mt_quant *format, int64_t n);
/* x of any floating dtype and any strides -> u8 [mt_quantized_bytes(format, numel)]: codes, scales
 * and all, so one storage holds them and may be saved as it is. */
MT_API mt_tensor *mt_quantize(mt_tensor *x, const mt_quant *format);
/* The way back; format and shape are what went in. */
MT_API mt_tensor *mt_dequantize(mt_tensor *packed, const mt_quant *format, mt_dtype dtype, int rank,
                                const int64_t *shape);

/* ---- messages between `ranks` ranks, as seen by one; ops of the table that keep nothing. With
 * more than one rank they need a device without data. Any floating dtype. ---- */

/* x [..,m,..] of every rank -> [.., ranks m, ..] along dim; dx is this rank's part of the sum. */
MT_API mt_tensor *mt_all_gather(mt_tensor *x, int dim, int64_t ranks);
/* The sum of every rank's x [.., ranks m, ..], this rank's part of it -> [..,m,..] */
MT_API mt_tensor *mt_reduce_scatter(mt_tensor *x, int dim, int64_t ranks);
/* The sum of every rank's x; dx is dy. */
MT_API mt_tensor *mt_all_reduce(mt_tensor *x, int64_t ranks);
/* x itself, a view; dx is the sum of every rank's dy. */
MT_API mt_tensor *mt_replicate(mt_tensor *x, int64_t ranks);
/* Hands x to the next of `ranks` stages. The result has x's shape and one element's storage: where
 * backward begins, with any gradient of that shape; the one for x comes back from the next stage.
 */
MT_API mt_tensor *mt_send(mt_tensor *x, int64_t ranks);
/* What the stage before sent: a new tensor of x's shape. x may be an expanded scalar. */
MT_API mt_tensor *mt_recv(mt_tensor *x, int64_t ranks);

/* ---- the table, for programs that explain it ---- */
typedef struct mt_op_info {
    const char *name;
    int n_inputs;           /* -1: any number */
    const char *inputs[4];  /* letters: "x", "w", "b"; NULL past the last */
    const char *outputs[2]; /* of the first and the second; of others the first's */
    const char *auxiliaries[3];
    const char *formula;
    const char *why; /* what is kept, and why */
    /* What it runs in under autocast: "low", "f32", or "widest" of its inputs. */
    const char *autocast;
    /* What the gradient of input i needs: bit k input k, bit 8 + k output k, bit 12 + k auxiliary
     * k. The tape keeps the union over the inputs that want a gradient. */
    unsigned keep[4];
} mt_op_info;
MT_API int mt_op_count(void);
MT_API mt_op_info mt_op_get(int i);

#ifdef __cplusplus
}
#endif
#endif
