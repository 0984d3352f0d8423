/* backend.h: the kernel table. A backend is a folder that fills it in.
 *
 * A backend knows pointers, shapes and strides; it never sees tensors, the tape
 * or the books. Callers have checked shapes and dtypes: a kernel may assert
 * what is written here and need not report it. Kernels return false only when
 * the machine fails (with mti_fail), never for a well-formed call.
 *
 * Unless a line says otherwise: all floating views of one call have one dtype
 * (f32, f64, bf16, f16); 16-bit floats are computed and accumulated in f32 and
 * rounded to nearest even once, at the store; outputs do not overlap inputs
 * except where "in place" is allowed; views may have any strides, 0 included for
 * inputs; reductions run in a fixed order that does not depend on the number
 * of threads. Views with zero elements are legal. */
#ifndef MTI_BACKEND_H
#define MTI_BACKEND_H

#include "base/base.h"

/* What a kernel needs to know of a tensor. Strides count elements. */
typedef struct mti_view {
    void *data; /* the first element; NULL on meta and when there are none */
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK], stride[MT_MAX_RANK];
} mti_view;

int64_t mti_view_count(const mti_view *v);      /* number of elements */
bool mti_view_is_contiguous(const mti_view *v); /* row-major, no gaps */
bool mti_view_same_shape(const mti_view *a, const mti_view *b);

typedef enum mti_unary {
    MTI_RELU,
    MTI_LEAKY_RELU, /* p0 = slope */
    MTI_GELU,
    MTI_GELU_TANH,
    MTI_SILU,
    MTI_TANH,
    MTI_SIGMOID,
    MTI_EXP,
    MTI_LOG,
    MTI_SQRT,
    MTI_AFFINE, /* y = p0 x + p1 */
    MTI_POW,    /* y = x^p0 */
    MTI_UNARY_COUNT
} mti_unary;

/* How a value of a block is stored (quantize). */
typedef enum mti_code { MTI_CODE_INT8, MTI_CODE_NF4 } mti_code;
#define MTI_MEAN_LANES 256 /* of lane_mean */

typedef enum mti_binary { MTI_ADD, MTI_SUB, MTI_MUL, MTI_DIV, MTI_BINARY_COUNT } mti_binary;

/* One tensor of an optimizer step: contiguous, all of n elements. `p` and `g`
 * may be f32/bf16/f16/f64; m, v (and master when there is one) are f32 (f64 for f64). */
typedef struct mti_opt_item {
    int64_t n;
    mt_dtype dtype; /* of p and g */
    void *p;
    const void *g;
    void *m, *v;  /* NULL where the optimizer has none */
    void *master; /* for 16-bit p: the step is taken on it, and p is it rounded; NULL: on p */
    double weight_decay;
} mti_opt_item;

typedef struct mti_opt_params {
    double lr, beta1, beta2, eps, momentum;
    int64_t step;      /* 1 at the first step: bias correction */
    double grad_scale; /* g is multiplied by it first, in f32 (f64 for f64); 0: 1 */
} mti_opt_params;

/* The heads of one attention call. q, o: [b,a,s,d]; k, v: [b,a_kv,t,d] with
 * a % a_kv == 0; lse: f32 (f64 for f64) contiguous [b,a,s] (natural log of the sum of exp of
 * the scaled scores; may be NULL in forward). Any strides with stride[3] == 1 and
 * stride[2] >= d.
 * Causal: query i sees keys j <= i + (t - s).
 * Dropout with p > 0: the probability of (b,h,i,j) is kept when the draw of
 * element ((b*a + h)*s + i)*t + j is >= p (see `dropout`), scaled by 1/(1-p). */
typedef struct mti_attention {
    const mti_view *q, *k, *v;
    const mti_view *o, *lse;
    double scale, p;
    bool causal;
    const mti_view *seed, *offset; /* i64 scalars in device memory; NULL when p == 0 */
} mti_attention;

typedef struct mti_ctx mti_ctx; /* a backend's own state: threads, streams */

typedef enum mti_traits {
    MTI_HOST_MEMORY = 1, /* pointers are the process's own, so sanitizers can watch them */
    MTI_NO_DATA = 2,     /* pointers are imaginary: nothing to read, kernels do nothing */
} mti_traits;

/* Copies that run beside compute. */
typedef enum mti_direction { MTI_TO_HOST, MTI_TO_DEVICE } mti_direction;
typedef struct mti_copy_times {
    double copy_s; /* all copies together */
    double wait_s; /* compute stood still in copy_wait */
} mti_copy_times;

typedef struct mti_backend {
    const char *kind; /* "cpu" */
    unsigned traits;  /* of mti_traits */

    /* ---- state and raw memory ---- */
    mti_ctx *(*open)(void);
    void (*close)(mti_ctx *ctx);
    bool (*set_threads)(mti_ctx *ctx, int n);
    int (*threads)(const mti_ctx *ctx);
    bool (*sync)(mti_ctx *ctx);
    void *(*alloc)(mti_ctx *ctx,
                   size_t n_bytes); /* NULL if refused, without mti_fail; >= 512-byte aligned */
    void (*free)(mti_ctx *ctx, void *p, size_t n_bytes);
    size_t (*room)(mti_ctx *ctx); /* bytes that alloc can still give; SIZE_MAX: nobody says */
    bool (*upload)(mti_ctx *ctx, void *dst, const void *host, size_t n_bytes);
    bool (*download)(mti_ctx *ctx, void *host, const void *src, size_t n_bytes);

    /* ---- copies beside compute: any thread may ask; all NULL where there is no data ---- */
    /* As alloc and free, for host memory that copies run to and from: page-locked where that
     * matters. */
    void *(*host_alloc)(mti_ctx *ctx, size_t n_bytes);
    void (*host_free)(mti_ctx *ctx, void *p, size_t n_bytes);
    /* Begins a copy between device memory and host_alloc's, behind all compute queued so far and
     * behind every earlier copy; does not wait for it. *ticket numbers copies: 1, 2, 3, ... */
    bool (*copy_begin)(mti_ctx *ctx, mti_direction direction, void *dst, const void *src,
                       size_t n_bytes, uint64_t *ticket);
    /* Compute queued from here on comes after that copy; the host need not wait. Ticket 0 and
     * those waited for before cost nothing. */
    bool (*copy_wait)(mti_ctx *ctx, uint64_t ticket);
    /* The host waits for that copy. */
    bool (*copy_finish)(mti_ctx *ctx, uint64_t ticket);
    /* Since open; waits for what was begun. */
    bool (*copy_times)(mti_ctx *ctx, mti_copy_times *out);

    /* ---- element-wise ---- */
    /* y = value, any dtype */
    bool (*fill)(mti_ctx *ctx, const mti_view *y, double value);
    /* y = x, casting between any two dtypes; same shape */
    bool (*copy)(mti_ctx *ctx, const mti_view *x, const mti_view *y);
    /* y = op(x); in place allowed (y == x) */
    bool (*unary)(mti_ctx *ctx, mti_unary op, double p0, double p1, const mti_view *x,
                  const mti_view *y);
    /* dx = dy * op'(.), `kept` being the OUTPUT for relu, leaky_relu_from_out (flag), tanh,
     * sigmoid, exp, sqrt and the INPUT for the others; kept is NULL for affine.
     * For leaky_relu the sign of input and output agree, so either will do.
     * dx may be dy (in place). */
    bool (*unary_backward)(mti_ctx *ctx, mti_unary op, double p0, const mti_view *kept,
                           const mti_view *dy, const mti_view *dx);
    /* y = a op b; a and b already expanded to y's shape (stride 0 where broadcast);
     * y may be a or b (in place). Also i64/i32 for add, sub, mul. */
    bool (*binary)(mti_ctx *ctx, mti_binary op, const mti_view *a, const mti_view *b,
                   const mti_view *y);
    /* y = scale * sum of x over the dimensions where y.shape is 1 and x.shape is not;
     * same rank. Pairwise or blocked so that the error grows slowly.
     * y f32/f64 may differ from x's dtype (16-bit x into f32 y). */
    size_t (*sum_scratch)(mti_ctx *ctx, const mti_view *x, const mti_view *y);
    bool (*sum)(mti_ctx *ctx, double scale, const mti_view *x, const mti_view *y, void *scratch);
    /* y = uniform in [lo, hi): element i (row-major) uses lane i % 4 of counter offset + i / 4 */
    bool (*uniform)(mti_ctx *ctx, double lo, double hi, uint64_t seed, uint64_t offset,
                    const mti_view *y);
    /* y = normal: Box-Muller in f32, elements 4k..4k+3 from counter offset + k
     * (lanes 0,1 give elements 0,1; lanes 2,3 give 2,3) */
    bool (*normal)(mti_ctx *ctx, double mean, double std, uint64_t seed, uint64_t offset,
                   const mti_view *y);

    /* ---- matrix products ---- */
    /* c = alpha a b (+ beta c) (+ bias on every row). a [..,m,k], b [..,k,n], c [..,m,n]
     * with equal leading (batch) dimensions, stride 0 there for broadcast inputs; in the last
     * two dimensions one stride is 1 and the other >= the extent of that one (so transposes
     * come as they are). bias: [n] contiguous or NULL. beta is 0 or 1; with 0, c need not be
     * initialised. scratch: the n_scratch bytes that gemm_scratch asked for (0 gives NULL). Where
     * another host thread has raised the device's threads since, no more of them work than those
     * bytes are for; so with attention below. */
    size_t (*gemm_scratch)(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c);
    bool (*gemm)(mti_ctx *ctx, double alpha, const mti_view *a, const mti_view *b, double beta,
                 const mti_view *c, const mti_view *bias, void *scratch, size_t n_scratch);

    /* ---- rows: everything over the last dimension, which is contiguous ---- */
    /* y = softmax(scale * x) row by row. causal: x is [..,s,t], column j of row i is masked
     * (weight exactly 0) when j > i + (t - s). In place allowed. */
    bool (*softmax)(mti_ctx *ctx, double scale, bool causal, const mti_view *x, const mti_view *y);
    /* dx = scale * y * (dy - sum(dy * y)); dx may be dy. */
    bool (*softmax_backward)(mti_ctx *ctx, double scale, const mti_view *y, const mti_view *dy,
                             const mti_view *dx);
    /* y = x - log(sum(exp(x))); backward: dx = dy - exp(y) * sum(dy) */
    bool (*log_softmax)(mti_ctx *ctx, const mti_view *x, const mti_view *y);
    bool (*log_softmax_backward)(mti_ctx *ctx, const mti_view *y, const mti_view *dy,
                                 const mti_view *dx);
    /* y = (x - mean) * rstd * w + b. w, b: [n] or NULL. mean, rstd: one per row, f32 (f64 for
     * f64 x), contiguous, or NULL when nobody needs them. */
    bool (*layer_norm)(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                       const mti_view *b, const mti_view *y, const mti_view *mean,
                       const mti_view *rstd);
    /* Any of dx, dw, db may be NULL: not wanted. w may be NULL (ones). */
    size_t (*layer_norm_backward_scratch)(mti_ctx *ctx, const mti_view *x);
    bool (*layer_norm_backward)(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                                const mti_view *w, const mti_view *mean, const mti_view *rstd,
                                const mti_view *dx, const mti_view *dw, const mti_view *db,
                                void *scratch);

    /* ---- RMS norm, rotary positions, gates, choices ---- */
    /* layer_norm about 0: y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps). w: [n] or NULL; rstd as
     * for layer_norm. Rows contiguous. */
    bool (*rms_norm)(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                     const mti_view *y, const mti_view *rstd);
    size_t (*rms_norm_backward_scratch)(mti_ctx *ctx, const mti_view *x);
    bool (*rms_norm_backward)(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                              const mti_view *w, const mti_view *rstd, const mti_view *dx,
                              const mti_view *dw, void *scratch);
    /* x, y [b,a,s,d], d even, stride[3] == 1. With the angle (start + p) theta^(-2i/d) of position
     * p and pair i, negated if inverse:
     *   y[p,i]       = x[p,i] cos - x[p,i + d/2] sin
     *   y[p,i + d/2] = x[p,i + d/2] cos + x[p,i] sin
     * y may be x (in place). How exact the angles are: mti_rope_turn_f32. */
    bool (*rope)(mti_ctx *ctx, double theta, int64_t start, bool inverse, const mti_view *x,
                 const mti_view *y);
    /* y = silu(gate) up */
    bool (*swiglu)(mti_ctx *ctx, const mti_view *gate, const mti_view *up, const mti_view *y);
    /* dgate = dy up silu'(gate), dup = dy silu(gate). One of the two may be NULL: not wanted; up
     * may be NULL where dgate is. dgate, or dup where it is alone, may be dy (in place). */
    bool (*swiglu_backward)(mti_ctx *ctx, const mti_view *gate, const mti_view *up,
                            const mti_view *dy, const mti_view *dgate, const mti_view *dup);
    /* y[k] = the largest of x[k, ..]: x's leading dimensions are y's, the trailing ones (at least
     * one element) are searched. index: i64, the number of the first that is largest in row-major
     * order over the trailing dimensions, or NULL. NaN is larger than all. y, index contiguous. */
    bool (*max)(mti_ctx *ctx, const mti_view *x, const mti_view *y, const mti_view *index);
    /* dx[k, index[k]] = dy[k], the rest 0; dx shaped as x */
    bool (*max_backward)(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                         const mti_view *dx);
    /* y = mask ? a : b, mask bool; one of a and b may be NULL: 0. y may be a or b (in place). */
    bool (*where)(mti_ctx *ctx, const mti_view *mask, const mti_view *a, const mti_view *b,
                  const mti_view *y);

    /* ---- dropout, embedding, loss ---- */
    /* mask[i] = unit(lane i % 4 of philox(seed, offset + i / 4)) >= p for the i-th element in
     * row-major order; y = mask ? x / (1 - p) : 0. mask: bool, contiguous, or NULL. */
    bool (*dropout)(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset, const mti_view *x,
                    const mti_view *y, const mti_view *mask);
    bool (*dropout_backward)(mti_ctx *ctx, double p, const mti_view *mask, const mti_view *dy,
                             const mti_view *dx);
    /* y[.., :] = w[index, :]. index: i64, contiguous; w: [rows, n]. A bad index: MT_ERR_ARGUMENT
     * that names it (the one check a caller cannot make). Where kernels run behind the host, as on
     * CUDA, the next sync or download fails with it, not this call; so with bad targets below. */
    bool (*embedding)(mti_ctx *ctx, const mti_view *index, const mti_view *w, const mti_view *y);
    /* dw = sum of dy rows by index, in index order; dw is written whole (zeros included). */
    size_t (*embedding_backward_scratch)(mti_ctx *ctx, const mti_view *index, const mti_view *dw);
    bool (*embedding_backward)(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                               const mti_view *dw, void *scratch);
    /* logp = log_softmax(x) [n,v]; loss (scalar, x's dtype; f32 for 16-bit x is not needed) =
     * mean over rows with target != ignore of -logp[row, target]. target: i64 [n], checked. */
    bool (*cross_entropy)(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                          const mti_view *logp, const mti_view *loss);
    /* dx = (exp(logp) - onehot(target)) * dloss / count; 0 on ignored rows. dx may be logp. */
    bool (*cross_entropy_backward)(mti_ctx *ctx, int64_t ignore, const mti_view *logp,
                                   const mti_view *target, const mti_view *dloss,
                                   const mti_view *dx);

    /* ---- fused attention, blockwise: scratch does not grow with s * t ---- */
    size_t (*attention_scratch)(mti_ctx *ctx, const mti_attention *at);
    bool (*attention)(mti_ctx *ctx, const mti_attention *at, void *scratch, size_t n_scratch);
    /* dq, dk, dv: shapes of q, k, v, stride[3] == 1, written whole. */
    size_t (*attention_backward_scratch)(mti_ctx *ctx, const mti_attention *at);
    bool (*attention_backward)(mti_ctx *ctx, const mti_attention *at, const mti_view *d_o,
                               const mti_view *dq, const mti_view *dk, const mti_view *dv,
                               void *scratch, size_t n_scratch);

    /* ---- optimizers: one call for all tensors ---- */
    /* AdamW (Loshchilov & Hutter 2019), PyTorch's order of operations:
     * p *= 1 - lr wd; m = b1 m + (1-b1) g; v = b2 v + (1-b2) g^2;
     * p -= lr / (1-b1^t) * m / (sqrt(v) / sqrt(1-b2^t) + eps) */
    bool (*adamw)(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items);
    /* SGD: g += wd p; with momentum: m = (step 1 ? g : momentum m + g), g = m; p -= lr g.
     * items[i].m is the momentum buffer, NULL without momentum. */
    bool (*sgd)(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items);
    /* *out (host) = sum of squares over all, accumulated in f64 in a fixed order.
     * Items use n, dtype and g. */
    bool (*sum_squares)(mti_ctx *ctx, int n_items, const mti_opt_item *items, double *out);
    /* p *= factor for every item (gradients come as p). */
    bool (*scale_all)(mti_ctx *ctx, double factor, int n_items, const mti_opt_item *items);

    /* ---- the mask of a dropout once more ---- */
    /* mask: bool, contiguous, as `dropout` writes it. */
    bool (*dropout_mask)(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset,
                         const mti_view *mask);

    /* ---- bits and blocks: all operands contiguous; the same bits on every backend ---- */
    /* bits: u8 [(n + 7) / 8]; bit i % 8 of byte i / 8 is !(x[i] <= 0), so 1 for NaN too; bits past
     * the last are 0. x: bool or floating. */
    bool (*pack_bits)(mti_ctx *ctx, const mti_view *x, const mti_view *bits);
    /* y[i] = bit i as 0 or 1. y: bool or floating. */
    bool (*unpack_bits)(mti_ctx *ctx, const mti_view *bits, const mti_view *y);
    /* x [n], floating (f64 is rounded to f32 first), in blocks of `block` values, a power of 2
     * from 8 to 512; the last may be shorter. shift: f32 scalar that is taken off first, or NULL.
     * scales: f32 [ceil(n / block)]. codes: u8, 1 a value (int8: of two's complement) or (n + 1) /
     * 2 (nf4: the first of two values in the high bits). Rounding and limits: backends/quantize.h.
     * A block with an infinity or a NaN has the scale NaN and the codes of 0. */
    bool (*quantize)(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *x,
                     const mti_view *shift, const mti_view *codes, const mti_view *scales);
    /* y = code * scale + shift, rounded to f32 and then to y's dtype */
    bool (*dequantize)(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *codes,
                       const mti_view *scales, const mti_view *shift, const mti_view *y);
    /* y (f32 scalar) = mean of x (f32 [n], n > 0), added up in f64: lane i % MTI_MEAN_LANES in
     * order, then the lanes by halves */
    bool (*lane_mean)(mti_ctx *ctx, const mti_view *x, const mti_view *y);

    /* ---- cross-entropy in pieces: logits of some rows at a time ----
     * lse, loss, scale: f32 (f64 for f64 x), contiguous; x [rows,v], target i64 [rows]. */
    /* lse = log(sum(exp(x))) and loss = lse - x[target] of each row; loss 0 where the target is
     * `ignore` or no class */
    bool (*entropy_rows)(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                         const mti_view *lse, const mti_view *loss);
    /* dx = (exp(x - lse) - onehot(target)) scale; 0 on ignored rows. dx may be x. */
    bool (*entropy_rows_backward)(mti_ctx *ctx, int64_t ignore, const mti_view *x,
                                  const mti_view *target, const mti_view *lse,
                                  const mti_view *scale, const mti_view *dx);
    /* y (scalar) = sum of a / number of targets that are not `ignore`. target: i64 [rows], each
     * checked to be in [0, classes) or `ignore`; a: floating, of any length and dtype. */
    bool (*counted_mean)(mti_ctx *ctx, int64_t ignore, int64_t classes, const mti_view *target,
                         const mti_view *a, const mti_view *y);
} mti_backend;

/* The list of backends: adding one is its folder and its line in backends.c.
 * NULL and an error that lists what there is when `kind` is unknown. */
const mti_backend *mti_backend_find(const char *kind);
extern const mti_backend mti_cpu_backend;
extern const mti_backend mti_meta_backend;
/* On meta: scratch memory as `like` would ask for it; NULL: none. */
bool mti_meta_count_scratch_of(mti_ctx *ctx, const mti_backend *like);

#endif
