/* meta.c: a backend without data. Tensors have shapes, dtypes, storages and addresses, so the
 * engine, the allocator and the books run as they would on a GPU; the kernels have nothing to do.
 *
 * Addresses are imaginary and never followed: segments of the address space in the order in
 * which they were asked for, none used twice. */
#include <stdatomic.h>
#include "backends/backend.h"

/* A kernel here is its signature. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define FIRST_ADDRESS ((uintptr_t)1 << 40) /* whoever follows one anyway is told at once */
#define SEGMENT_UNIT  ((size_t)2 << 20)

struct mti_ctx {
    uintptr_t next; /* where the next segment goes */
    atomic_int threads;
    const mti_backend *like; /* whose scratch memory counts; NULL: nobody's */
    mti_ctx *like_ctx;
};

/* ---- state and raw memory ---- */

static mti_ctx *open_meta(void)
{
    mti_ctx *ctx = mti_malloc(sizeof *ctx);
    if (!ctx) return NULL;
    *ctx = (mti_ctx){.next = FIRST_ADDRESS};
    atomic_init(&ctx->threads, 1);
    return ctx;
}

static void close_meta(mti_ctx *ctx)
{
    if (ctx->like) ctx->like->close(ctx->like_ctx);
    mti_free(ctx);
}

bool mti_meta_count_scratch_of(mti_ctx *ctx, const mti_backend *like)
{
    mti_ctx *like_ctx = like ? like->open() : NULL;
    if (like && (!like_ctx || !like->set_threads(like_ctx, ctx->threads))) {
        if (like_ctx) like->close(like_ctx);
        return false;
    }
    if (ctx->like) ctx->like->close(ctx->like_ctx);
    ctx->like = like, ctx->like_ctx = like_ctx;
    return true;
}

static bool set_threads(mti_ctx *ctx, int n)
{
    if (ctx->like && !ctx->like->set_threads(ctx->like_ctx, n)) return false;
    ctx->threads = n;
    return true;
}

static int threads(const mti_ctx *ctx) { return ctx->threads; }
static bool sync_meta(mti_ctx *ctx) { return true; }

/* As much as there are addresses: a limit is the allocator's affair (mt_mem_set_capacity). */
static void *alloc_raw(mti_ctx *ctx, size_t n_bytes)
{
    size_t padded;
    if (mti_alloc_should_fail() || !mti_add_size(n_bytes, SEGMENT_UNIT - 1, &padded)) return NULL;
    padded -= padded % SEGMENT_UNIT;
    if (padded > UINTPTR_MAX - ctx->next) return NULL;
    void *p = (void *)ctx->next;
    ctx->next += padded;
    return p;
}

static void free_raw(mti_ctx *ctx, void *p, size_t n_bytes) {}

static size_t room(mti_ctx *ctx) { return SIZE_MAX; }

static bool upload(mti_ctx *ctx, void *dst, const void *host, size_t n_bytes) { return true; }

static bool download(mti_ctx *ctx, void *host, const void *src, size_t n_bytes)
{
    return mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "meta: a tensor's values were asked for (%zu bytes); tensors of this "
                         "device have shapes and no data",
                         n_bytes);
}

/* ---- element-wise ---- */

static bool fill(mti_ctx *ctx, const mti_view *y, double value) { return true; }

static bool copy(mti_ctx *ctx, const mti_view *x, const mti_view *y) { return true; }

static bool unary(mti_ctx *ctx, mti_unary op, double p0, double p1, const mti_view *x,
                  const mti_view *y)
{
    return true;
}

static bool unary_backward(mti_ctx *ctx, mti_unary op, double p0, const mti_view *kept,
                           const mti_view *dy, const mti_view *dx)
{
    return true;
}

static bool binary(mti_ctx *ctx, mti_binary op, const mti_view *a, const mti_view *b,
                   const mti_view *y)
{
    return true;
}

static size_t sum_scratch(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    return ctx->like ? ctx->like->sum_scratch(ctx->like_ctx, x, y) : 0;
}

static bool sum(mti_ctx *ctx, double scale, const mti_view *x, const mti_view *y, void *scratch)
{
    return true;
}

static bool uniform(mti_ctx *ctx, double lo, double hi, uint64_t seed, uint64_t offset,
                    const mti_view *y)
{
    return true;
}

static bool normal(mti_ctx *ctx, double mean, double std, uint64_t seed, uint64_t offset,
                   const mti_view *y)
{
    return true;
}

/* ---- matrix products ---- */

static size_t gemm_scratch(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c)
{
    return ctx->like ? ctx->like->gemm_scratch(ctx->like_ctx, a, b, c) : 0;
}

static bool gemm(mti_ctx *ctx, double alpha, const mti_view *a, const mti_view *b, double beta,
                 const mti_view *c, const mti_view *bias, void *scratch, size_t n_scratch)
{
    return true;
}

/* ---- rows ---- */

static bool softmax(mti_ctx *ctx, double scale, bool causal, const mti_view *x, const mti_view *y)
{
    return true;
}

static bool softmax_backward(mti_ctx *ctx, double scale, const mti_view *y, const mti_view *dy,
                             const mti_view *dx)
{
    return true;
}

static bool log_softmax(mti_ctx *ctx, const mti_view *x, const mti_view *y) { return true; }

static bool log_softmax_backward(mti_ctx *ctx, const mti_view *y, const mti_view *dy,
                                 const mti_view *dx)
{
    return true;
}

static bool layer_norm(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                       const mti_view *b, const mti_view *y, const mti_view *mean,
                       const mti_view *rstd)
{
    return true;
}

static size_t layer_norm_backward_scratch(mti_ctx *ctx, const mti_view *x)
{
    return ctx->like ? ctx->like->layer_norm_backward_scratch(ctx->like_ctx, x) : 0;
}

static bool layer_norm_backward(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                                const mti_view *w, const mti_view *mean, const mti_view *rstd,
                                const mti_view *dx, const mti_view *dw, const mti_view *db,
                                void *scratch)
{
    return true;
}

/* ---- RMS norm, rotary positions, gates, choices ---- */

static bool rms_norm(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                     const mti_view *y, const mti_view *rstd)
{
    return true;
}

static size_t rms_norm_backward_scratch(mti_ctx *ctx, const mti_view *x)
{
    return ctx->like ? ctx->like->rms_norm_backward_scratch(ctx->like_ctx, x) : 0;
}

static bool rms_norm_backward(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                              const mti_view *w, const mti_view *rstd, const mti_view *dx,
                              const mti_view *dw, void *scratch)
{
    return true;
}

static bool rope(mti_ctx *ctx, double theta, int64_t start, bool inverse, const mti_view *x,
                 const mti_view *y)
{
    return true;
}

static bool swiglu(mti_ctx *ctx, const mti_view *gate, const mti_view *up, const mti_view *y)
{
    return true;
}

static bool swiglu_backward(mti_ctx *ctx, const mti_view *gate, const mti_view *up,
                            const mti_view *dy, const mti_view *dgate, const mti_view *dup)
{
    return true;
}

static bool max(mti_ctx *ctx, const mti_view *x, const mti_view *y, const mti_view *index)
{
    return true;
}

static bool max_backward(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                         const mti_view *dx)
{
    return true;
}

static bool where(mti_ctx *ctx, const mti_view *mask, const mti_view *a, const mti_view *b,
                  const mti_view *y)
{
    return true;
}

/* ---- dropout, embedding, loss ---- */

static bool dropout(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset, const mti_view *x,
                    const mti_view *y, const mti_view *mask)
{
    return true;
}

static bool dropout_backward(mti_ctx *ctx, double p, const mti_view *mask, const mti_view *dy,
                             const mti_view *dx)
{
    return true;
}

static bool embedding(mti_ctx *ctx, const mti_view *index, const mti_view *w, const mti_view *y)
{
    return true;
}

static size_t embedding_backward_scratch(mti_ctx *ctx, const mti_view *index, const mti_view *dw)
{
    return ctx->like ? ctx->like->embedding_backward_scratch(ctx->like_ctx, index, dw) : 0;
}

static bool embedding_backward(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                               const mti_view *dw, void *scratch)
{
    return true;
}

static bool cross_entropy(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                          const mti_view *logp, const mti_view *loss)
{
    return true;
}

static bool cross_entropy_backward(mti_ctx *ctx, int64_t ignore, const mti_view *logp,
                                   const mti_view *target, const mti_view *dloss,
                                   const mti_view *dx)
{
    return true;
}

/* ---- attention ---- */

static size_t attention_scratch(mti_ctx *ctx, const mti_attention *at)
{
    return ctx->like ? ctx->like->attention_scratch(ctx->like_ctx, at) : 0;
}

static bool attention(mti_ctx *ctx, const mti_attention *at, void *scratch, size_t n_scratch)
{
    return true;
}

static size_t attention_backward_scratch(mti_ctx *ctx, const mti_attention *at)
{
    return ctx->like ? ctx->like->attention_backward_scratch(ctx->like_ctx, at) : 0;
}

static bool attention_backward(mti_ctx *ctx, const mti_attention *at, const mti_view *d_o,
                               const mti_view *dq, const mti_view *dk, const mti_view *dv,
                               void *scratch, size_t n_scratch)
{
    return true;
}

/* ---- optimizers ---- */

static bool adamw(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items)
{
    return true;
}

static bool sgd(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items)
{
    return true;
}

static bool scale_all(mti_ctx *ctx, double factor, int n_items, const mti_opt_item *items)
{
    return true;
}

/* The norm of gradients without values is 0: clipping leaves them alone. */
static bool sum_squares(mti_ctx *ctx, int n_items, const mti_opt_item *items, double *out)
{
    *out = 0;
    return true;
}

/* ---- bits and blocks, cross-entropy in pieces ---- */

static bool dropout_mask(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset,
                         const mti_view *mask)
{
    return true;
}

static bool pack_bits(mti_ctx *ctx, const mti_view *x, const mti_view *bits) { return true; }

static bool unpack_bits(mti_ctx *ctx, const mti_view *bits, const mti_view *y) { return true; }

static bool quantize(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *x,
                     const mti_view *shift, const mti_view *codes, const mti_view *scales)
{
    return true;
}

static bool dequantize(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *codes,
                       const mti_view *scales, const mti_view *shift, const mti_view *y)
{
    return true;
}

static bool lane_mean(mti_ctx *ctx, const mti_view *x, const mti_view *y) { return true; }

static bool entropy_rows(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                         const mti_view *lse, const mti_view *loss)
{
    return true;
}

static bool entropy_rows_backward(mti_ctx *ctx, int64_t ignore, const mti_view *x,
                                  const mti_view *target, const mti_view *lse,
                                  const mti_view *scale, const mti_view *dx)
{
    return true;
}

static bool counted_mean(mti_ctx *ctx, int64_t ignore, int64_t classes, const mti_view *target,
                         const mti_view *a, const mti_view *y)
{
    return true;
}

const mti_backend mti_meta_backend = {
    .kind = "meta",
    .traits = MTI_NO_DATA,
    .open = open_meta,
    .close = close_meta,
    .set_threads = set_threads,
    .threads = threads,
    .sync = sync_meta,
    .alloc = alloc_raw,
    .free = free_raw,
    .room = room,
    .upload = upload,
    .download = download,
    .fill = fill,
    .copy = copy,
    .unary = unary,
    .unary_backward = unary_backward,
    .binary = binary,
    .sum_scratch = sum_scratch,
    .sum = sum,
    .uniform = uniform,
    .normal = normal,
    .gemm_scratch = gemm_scratch,
    .gemm = gemm,
    .softmax = softmax,
    .softmax_backward = softmax_backward,
    .log_softmax = log_softmax,
    .log_softmax_backward = log_softmax_backward,
    .layer_norm = layer_norm,
    .layer_norm_backward_scratch = layer_norm_backward_scratch,
    .layer_norm_backward = layer_norm_backward,
    .rms_norm = rms_norm,
    .rms_norm_backward_scratch = rms_norm_backward_scratch,
    .rms_norm_backward = rms_norm_backward,
    .rope = rope,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .max = max,
    .max_backward = max_backward,
    .where = where,
    .dropout = dropout,
    .dropout_backward = dropout_backward,
    .embedding = embedding,
    .embedding_backward_scratch = embedding_backward_scratch,
    .embedding_backward = embedding_backward,
    .cross_entropy = cross_entropy,
    .cross_entropy_backward = cross_entropy_backward,
    .attention_scratch = attention_scratch,
    .attention = attention,
    .attention_backward_scratch = attention_backward_scratch,
    .attention_backward = attention_backward,
    .adamw = adamw,
    .sgd = sgd,
    .scale_all = scale_all,
    .sum_squares = sum_squares,
    .dropout_mask = dropout_mask,
    .pack_bits = pack_bits,
    .unpack_bits = unpack_bits,
    .quantize = quantize,
    .dequantize = dequantize,
    .lane_mean = lane_mean,
    .entropy_rows = entropy_rows,
    .entropy_rows_backward = entropy_rows_backward,
    .counted_mean = counted_mean,
};
