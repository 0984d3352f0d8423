/* naive.c: how small a backend can be. Device "naive" computes a dozen kernels element by element
 * in f64, as their contracts in backends/kernels.def say, and takes the rest from
 * backends/reference.h. The gradient checks run on it, which shows that a backend can be written
 * from the contracts alone, and that every kernel it leaves out has a default. */
#include <math.h>
#include "backends/loaded_module.h"
#include "backends/reference.h"
#include "backends/scalar.h"
#include "views.h"

struct mti_ctx {
    int threads;
};

/* ---- state and memory: the process's own ---- */

static mti_ctx *open_naive(void) { return mti_calloc(1, sizeof(mti_ctx)); }
static void close_naive(mti_ctx *ctx) { mti_free(ctx); }
static bool sync_naive(mti_ctx *ctx) { return ctx != NULL; }
static int threads(const mti_ctx *ctx) { return ctx->threads + 1; }

static bool set_threads(mti_ctx *ctx, int n)
{
    ctx->threads = n - 1;
    return true;
}

static void *alloc_raw(mti_ctx *ctx, size_t n_bytes)
{
    (void)ctx;
    return mti_alloc_should_fail() ? NULL : aligned_alloc(512, (n_bytes + 511) / 512 * 512);
}

static void free_raw(mti_ctx *ctx, void *p, size_t n_bytes)
{
    (void)ctx, (void)n_bytes;
    free(p);
}

static size_t room(mti_ctx *ctx)
{
    (void)ctx;
    return SIZE_MAX; /* unknown */
}

static bool copy_bytes(mti_ctx *ctx, void *dst, const void *src, size_t n_bytes)
{
    (void)ctx;
    if (n_bytes) memcpy(dst, src, n_bytes);
    return true;
}

/* ---- element-wise ---- */

static bool naive_fill(mti_ctx *ctx, const mti_view *y, double value)
{
    (void)ctx;
    for (int64_t i = 0; i < mti_view_count(y); i++) mtt_set(y, i, value);
    return true;
}

/* Computes every op's formula and returns one of them; some take the log of a negative number. */
static double value_of(mti_unary op, double x, double p0, double p1)
{
    const double values[] = {
#define F(name)                  mti_##name##_f64
#define UNARY(name, cost, y, dx) [MTI_UNARY_##name] = y,
#include "backends/unary.def"
    };
    return values[op];
}

static double slope_of(mti_unary op, double k, double dy, double p0, double p1)
{
    const double slopes[] = {
#define F(name)                  mti_##name##_f64
#define UNARY(name, cost, y, dx) [MTI_UNARY_##name] = dx,
#include "backends/unary.def"
    };
    return slopes[op];
}

static bool naive_unary(mti_ctx *ctx, mti_unary op, double p0, double p1, const mti_view *x,
                        const mti_view *y)
{
    (void)ctx;
    for (int64_t i = 0; i < mti_view_count(y); i++)
        mtt_set(y, i, value_of(op, mtt_get(x, i), p0, p1));
    return true;
}

static bool naive_unary_backward(mti_ctx *ctx, mti_unary op, double p0, double p1,
                                 const mti_view *kept, const mti_view *dy, const mti_view *dx)
{
    (void)ctx;
    for (int64_t i = 0; i < mti_view_count(dx); i++)
        mtt_set(dx, i, slope_of(op, kept ? mtt_get(kept, i) : 0, mtt_get(dy, i), p0, p1));
    return true;
}

static bool naive_binary(mti_ctx *ctx, mti_binary op, const mti_view *a, const mti_view *b,
                         const mti_view *y)
{
    (void)ctx;
    for (int64_t i = 0; i < mti_view_count(y); i++) {
        double l = mtt_get(a, i), r = mtt_get(b, i);
        mtt_set(y, i,
                op == MTI_ADD   ? l + r
                : op == MTI_SUB ? l - r
                : op == MTI_MUL ? l * r
                                : l / r);
    }
    return true;
}

static bool naive_where(mti_ctx *ctx, const mti_view *mask, const mti_view *a, const mti_view *b,
                        const mti_view *y)
{
    (void)ctx;
    for (int64_t i = 0; i < mti_view_count(y); i++) {
        const mti_view *from = mtt_get(mask, i) != 0 ? a : b;
        mtt_set(y, i, from ? mtt_get(from, i) : 0);
    }
    return true;
}

static bool naive_swiglu(mti_ctx *ctx, const mti_view *gate, const mti_view *up, const mti_view *y)
{
    (void)ctx;
    for (int64_t i = 0; i < mti_view_count(y); i++)
        mtt_set(y, i, mti_swiglu_f64(mtt_get(gate, i), mtt_get(up, i)));
    return true;
}

/* ---- sums and products ---- */

static size_t naive_sum_scratch(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    (void)ctx, (void)x, (void)y;
    return 0;
}

/* The index in y of element i of x: the same indices, but 0 where y has extent 1. */
static int64_t place_in(const mti_view *y, const mti_view *x, int64_t i)
{
    int64_t place = 0, step = 1;
    for (int d = x->rank - 1; d >= 0; d--) {
        if (y->shape[d] != 1) place += i % x->shape[d] * step;
        step *= y->shape[d];
        i /= x->shape[d];
    }
    return place;
}

static bool naive_sum(mti_ctx *ctx, double scale, const mti_view *x, const mti_view *y,
                      void *scratch)
{
    (void)ctx, (void)scratch;
    int64_t n = mti_view_count(y);
    double *sums = mti_calloc((size_t)n + 1, sizeof *sums);
    if (!sums) return false;
    for (int64_t i = 0; i < mti_view_count(x); i++) sums[place_in(y, x, i)] += mtt_get(x, i);
    for (int64_t i = 0; i < n; i++) mtt_set(y, i, scale * sums[i]);
    mti_free(sums);
    return true;
}

static size_t naive_gemm_scratch(mti_ctx *ctx, const mti_view *a, const mti_view *b,
                                 const mti_view *c)
{
    (void)ctx, (void)a, (void)b, (void)c;
    return 0;
}

static bool naive_gemm(mti_ctx *ctx, double alpha, const mti_view *a, const mti_view *b,
                       double beta, const mti_view *c, const mti_view *bias, void *scratch,
                       size_t n_scratch)
{
    (void)ctx, (void)scratch, (void)n_scratch;
    int64_t n = c->shape[c->rank - 1], m = c->shape[c->rank - 2], k = a->shape[a->rank - 1];
    for (int64_t i = 0; i < mti_view_count(c); i++) {
        int64_t row = i / n, column = i % n, batch = row / m;
        double sum = 0;
        for (int64_t j = 0; j < k; j++)
            sum += mtt_get(a, row * k + j) * mtt_get(b, (batch * k + j) * n + column);
        sum = alpha * sum + (beta != 0 ? beta * mtt_get(c, i) : 0) +
              (bias ? mtt_get(bias, column) : 0);
        mtt_set(c, i, sum);
    }
    return true;
}

static bool naive_gemm_sums(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c,
                            const mti_view *sums, void *scratch, size_t n_scratch)
{
    int64_t k = a->shape[1];
    for (int64_t i = 0; i < a->shape[0]; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++) sum += mtt_get(a, i * k + j);
        mtt_set(sums, i, sum);
    }
    return naive_gemm(ctx, 1, a, b, 0, c, NULL, scratch, n_scratch);
}

/* ---- rows ---- */

static bool naive_softmax(mti_ctx *ctx, double scale, bool causal, const mti_view *x,
                          const mti_view *y)
{
    (void)ctx;
    int64_t t = x->shape[x->rank - 1], s = causal ? x->shape[x->rank - 2] : 1;
    for (int64_t row = 0; row < (t ? mti_view_count(x) / t : 0); row++) {
        int64_t seen = causal ? row % s + (t - s) + 1 : t;
        double most = -(double)INFINITY, sum = 0;
        for (int64_t j = 0; j < seen; j++) most = fmax(most, scale * mtt_get(x, row * t + j));
        for (int64_t j = 0; j < seen; j++) sum += exp(scale * mtt_get(x, row * t + j) - most);
        for (int64_t j = 0; j < t; j++) {
            double weight = j < seen ? exp(scale * mtt_get(x, row * t + j) - most) / sum : 0;
            mtt_set(y, row * t + j, weight);
        }
    }
    return true;
}

static bool naive_softmax_backward(mti_ctx *ctx, double scale, const mti_view *y,
                                   const mti_view *dy, const mti_view *dx)
{
    (void)ctx;
    int64_t t = y->shape[y->rank - 1];
    for (int64_t first = 0; t && first < mti_view_count(y); first += t) {
        double sum = 0;
        for (int64_t i = first; i < first + t; i++) sum += mtt_get(dy, i) * mtt_get(y, i);
        for (int64_t i = first; i < first + t; i++)
            mtt_set(dx, i, scale * mtt_get(y, i) * (mtt_get(dy, i) - sum));
    }
    return true;
}

/* In the table, our kernels override the reference's kernels of the same name. */
#if defined(__clang__)
#pragma clang diagnostic ignored "-Winitializer-overrides"
#else
#pragma GCC diagnostic ignored "-Woverride-init"
#endif
const mti_backend mti_module_backend = {
    .kind = "naive",
    .traits = MTI_HOST_MEMORY,
    .open = open_naive,
    .close = close_naive,
    .set_threads = set_threads,
    .threads = threads,
    .sync = sync_naive,
    .alloc = alloc_raw,
    .free = free_raw,
    .room = room,
    .upload = copy_bytes,
    .download = copy_bytes,
#define KERNEL(name, parameters, arguments)  .name = mti_reference_##name,
#define SCRATCH(name, parameters, arguments) .name = mti_reference_##name,
#include "backends/kernels.def"
    .fill = naive_fill,
    .unary = naive_unary,
    .unary_backward = naive_unary_backward,
    .binary = naive_binary,
    .where = naive_where,
    .swiglu = naive_swiglu,
    .sum_scratch = naive_sum_scratch,
    .sum = naive_sum,
    .gemm_scratch = naive_gemm_scratch,
    .gemm = naive_gemm,
    .gemm_sums_scratch = naive_gemm_scratch,
    .gemm_sums = naive_gemm_sums,
    .softmax = naive_softmax,
    .softmax_backward = naive_softmax_backward,
};
