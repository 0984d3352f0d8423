/* blas.cu: c = alpha a b + beta c + bias, batched, through cuBLASLt.
 *
 * cuBLASLt is column-major: our row-major c [m,n] is its column-major [n,m]. So we ask it for
 * c^T = b^T a^T: its first matrix is our b. plan.cu keeps the algorithms that it chose. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "backends/cuda/device/cleanup.h"
#include "backends/cuda/products/panels.h"
#include "backends/cuda/kernels.h"

/* ---- reading the views ---- */

/* v [rows,cols] as a column-major matrix: row-major memory is its transpose. */
static mti_lt_matrix matrix_of(const mti_view *v)
{
    int64_t rows = v->shape[v->rank - 2], cols = v->shape[v->rank - 1];
    int64_t row = v->stride[v->rank - 2], col = v->stride[v->rank - 1];
    mti_lt_matrix s = {};
    s.data = v->data;
    memcpy(s.batch_stride, v->stride, sizeof s.batch_stride);
    if ((cols == 1 || col == 1) && (rows == 1 || row >= cols)) {
        s.rows = cols, s.cols = rows, s.ld = rows == 1 ? cols : row;
    } else {
        s.trans = true;
        s.rows = rows, s.cols = cols, s.ld = cols == 1 ? rows : col;
    }
    return s;
}

/* Merges neighbouring batch dimensions that are evenly spaced in all three matrices. */
static void join_batches(mti_lt_product *g)
{
    int kept = 0;
    for (int i = 0; i < g->batch_rank; i++) {
        int64_t n = g->batch_shape[i];
        if (n == 1) continue;
        mti_lt_matrix *matrices[] = {&g->a, &g->b, &g->c};
        bool evenly_spaced = kept > 0;
        for (mti_lt_matrix *s : matrices)
            evenly_spaced = evenly_spaced && s->batch_stride[kept - 1] == n * s->batch_stride[i];
        int d = evenly_spaced ? kept - 1 : kept++;
        g->batch_shape[d] = evenly_spaced ? g->batch_shape[d] * n : n;
        for (mti_lt_matrix *s : matrices) s->batch_stride[d] = s->batch_stride[i];
    }
    g->batch_rank = kept;
}

/* Many matrices times one weight (here the first matrix) are one tall matrix times the weight. */
static void fold_batch(mti_lt_product *g)
{
    while (g->batch_rank) {
        int last = g->batch_rank - 1;
        if (g->b.trans || g->a.batch_stride[last] != 0 ||
            g->b.batch_stride[last] != g->n * g->b.ld || g->c.batch_stride[last] != g->n * g->c.ld)
            return;
        g->n *= g->batch_shape[last];
        g->b.cols = g->c.cols = g->n;
        g->batch_rank = last;
    }
}

/* True if c is row-major: its bias per column is a bias per row for cuBLASLt. */
static bool read_views(const mti_ctx *ctx, mti_lt_product *g, const mti_view *a, const mti_view *b,
                       const mti_view *c)
{
    int rank = c->rank;
    memset(g, 0, sizeof *g);
    g->dtype = a->dtype, g->c_dtype = c->dtype, g->epilogue = LT_EPILOGUE_NONE;
    g->n_workspace = ctx->n_workspace;
    g->m = c->shape[rank - 1], g->n = c->shape[rank - 2], g->k = a->shape[rank - 1];
    g->a = matrix_of(b), g->b = matrix_of(a), g->c = matrix_of(c);
    bool row_major = !g->c.trans;
    if (!row_major) { /* c is column-major: compute c = a b directly */
        mti_lt_matrix first = g->b;
        int64_t m = g->n;
        g->b = g->a, g->a = first;
        g->n = g->m, g->m = m;
        g->a.trans = !g->a.trans, g->b.trans = !g->b.trans, g->c.trans = false;
    }
    g->batch_rank = rank - 2;
    memcpy(g->batch_shape, c->shape, sizeof g->batch_shape);
    join_batches(g);
    fold_batch(g);
    return row_major;
}

/* ---- the entries ---- */

size_t mti_cuda_gemm_scratch(mti_ctx *ctx, const mti_view *a, const mti_view *, const mti_view *c)
{
    return mti_view_count(c) && a->shape[a->rank - 1] ? ctx->n_workspace : 0;
}

static const void *offset(const void *p, int64_t elements, mt_dtype dtype)
{
    return static_cast<const char *>(p) + elements * (int64_t)mt_dtype_size(dtype);
}

/* i: the indices of the outer batch dimensions. */
static mti_operands operands_of(const mti_lt_product *g, const int64_t *i)
{
    int64_t offset_a = 0, offset_b = 0, offset_c = 0;
    for (int d = 0; d < g->batch_rank - 1; d++) {
        offset_a += i[d] * g->a.batch_stride[d];
        offset_b += i[d] * g->b.batch_stride[d];
        offset_c += i[d] * g->c.batch_stride[d];
    }
    mti_operands at;
    at.a = offset(g->a.data, offset_a, g->dtype);
    at.b = offset(g->b.data, offset_b, g->dtype);
    at.c = const_cast<void *>(offset(g->c.data, offset_c, g->c_dtype));
    return at;
}

bool mti_multiply(mti_ctx *ctx, const mti_lt_product *g, const mti_operands *at, double alpha,
                  double beta, void *scratch)
{
    float alpha_f32 = (float)alpha, beta_f32 = (float)beta;
    bool f64 = g->dtype == MT_F64;
    mti_plan *p = mti_plan_of(ctx, g, at);
    const lt_functions *lt = &ctx->blas->lt;
    return p &&
           (!g->vector ||
            mti_lt_ok(lt->desc_set(p->desc, LT_DESC_BIAS, &g->vector, sizeof g->vector), "bias")) &&
           mti_lt_ok(lt->matmul(ctx->blas->handle, p->desc,
                                f64 ? static_cast<void *>(&alpha) : &alpha_f32, at->a, p->a, at->b,
                                p->b, f64 ? static_cast<void *>(&beta) : &beta_f32, at->c, p->c,
                                at->c, p->c, &p->algo, scratch, g->n_workspace, ctx->stream),
                     "product");
}

static bool multiply_all(mti_ctx *ctx, const mti_lt_product *g, double alpha, double beta,
                         void *scratch)
{
    int64_t n_outer = 1, i[MT_MAX_RANK] = {};
    for (int d = 0; d < g->batch_rank - 1; d++) n_outer *= g->batch_shape[d];
    pthread_mutex_lock(&ctx->blas->lock);
    bool ok = mti_blas_load(ctx->blas);
    mti_panels panels = mti_panels_of(ctx, g, beta);
    if (ok && panels.width) {
        ok = mti_multiply_panels(ctx, g, &panels, alpha, beta, scratch);
        n_outer = 0;
    }
    for (int64_t done = 0; ok && done < n_outer; done++) {
        mti_operands at = operands_of(g, i);
        ok = mti_multiply(ctx, g, &at, alpha, beta, scratch);
        for (int d = g->batch_rank - 2; d >= 0 && ++i[d] == g->batch_shape[d]; d--) i[d] = 0;
    }
    pthread_mutex_unlock(&ctx->blas->lock);
    return ok;
}

/* ---- epilogues ----
 * What else a product does with a vector; two launches where the library refuses it, as with rows
 * or columns of one element, or a heuristic finds none: which is kept as a plan of its own. */

/* Calls use(plan) with the product's plan; false on failure. */
template <class Use> static bool with_plan(mti_ctx *ctx, const mti_lt_product *g, const Use &use)
{
    const int64_t none[MT_MAX_RANK] = {};
    mti_operands at = operands_of(g, none);
    pthread_mutex_lock(&ctx->blas->lock);
    mti_plan *p = mti_blas_load(ctx->blas) ? mti_plan_of(ctx, g, &at) : NULL;
    if (p) use(p);
    pthread_mutex_unlock(&ctx->blas->lock);
    return p != NULL;
}

/* Gives the product this epilogue if one launch can do it all, and as fast as two; false on
 * failure. *form: the plan's. */
static bool add_epilogue(mti_ctx *ctx, mti_lt_product *g, uint32_t epilogue, const void *vector,
                         mti_sums_form *form)
{
    if (!g->k || g->dtype == MT_F64 || g->batch_rank > 1 ||
        mti_plan_alignment(vector) < MTI_PLAN_ALIGN)
        return true;
    g->epilogue = epilogue, g->vector = vector;
    bool offered = true;
    bool ok =
        with_plan(ctx, g, [&](mti_plan *p) { offered = mti_plan_is_offered(p), *form = p->form; });
    if (!offered || *form == MTI_SUMS_APART) g->epilogue = LT_EPILOGUE_NONE, g->vector = NULL;
    return ok;
}

/* The bias, repeated for every row, as a view of c's shape. */
static mti_view rows_of_bias(const mti_view *bias, const mti_view *c)
{
    mti_view rows = *c;
    rows.data = bias->data;
    memset(rows.stride, 0, sizeof rows.stride);
    rows.stride[c->rank - 1] = 1;
    return rows;
}

bool mti_cuda_gemm(mti_ctx *ctx, double alpha, const mti_view *a, const mti_view *b, double beta,
                   const mti_view *c, const mti_view *bias, void *scratch, size_t)
{
    if (!mti_view_count(c)) return true;
    mti_lt_product g;
    bool row_major = read_views(ctx, &g, a, b, c);
    mti_sums_form form = MTI_SUMS_UNTIMED;
    if (bias && row_major && !add_epilogue(ctx, &g, LT_EPILOGUE_BIAS, bias->data, &form))
        return false;
    /* cuBLASLt adds a bias along its rows only, and none in f64. Otherwise c is first set to the
     * bias, so that it is still rounded once (twice for 16 bits with beta = 1). */
    if (bias && !g.vector) {
        mti_view rows = rows_of_bias(bias, c);
        if (beta == 0 ? !mti_cuda_copy(ctx, &rows, c) : !mti_cuda_binary(ctx, MTI_ADD, c, &rows, c))
            return false;
        beta = 1;
    }
    if (g.k) return multiply_all(ctx, &g, alpha, beta, scratch);
    return beta != 0 || mti_cuda_fill(ctx, c, 0);
}

/* ---- a product, and the sums of its first operand's rows ----
 * For a row-major c that operand is cuBLASLt's second matrix, whose columns LT_EPILOGUE_SUMS_B adds
 * up over k, in f32. On some GPUs that is much slower than a sum of its own: with
 * MEMTAPE_CUDA_BENCHMARK=1 a plan's first call runs both. Without it no bit
 * depends on a clock, as with torch.backends.cudnn.benchmark. */

#define TIMED_RUNS  3
#define MUCH_SLOWER 1.25f /* what is nearly as fast stays */

static bool may_time(void)
{
    const char *chosen = getenv("MEMTAPE_CUDA_BENCHMARK");
    return chosen && !strcmp(chosen, "1");
}

size_t mti_cuda_gemm_sums_scratch(mti_ctx *ctx, const mti_view *a, const mti_view *b,
                                  const mti_view *c)
{
    mti_view x, y;
    mti_view_sums(a, NULL, &x, &y);
    size_t product = mti_cuda_gemm_scratch(ctx, a, b, c), sum = mti_cuda_sum_scratch(ctx, &x, &y);
    return product > sum ? product : sum;
}

struct sums_call {
    mti_ctx *ctx;
    const mti_view *a, *b, *c, *sums;
    void *scratch;
    mti_lt_product g;
};

static bool in_one(const struct sums_call *s)
{
    return multiply_all(s->ctx, &s->g, 1, 0, s->scratch);
}

static bool apart(const struct sums_call *s)
{
    mti_view x, y;
    mti_view_sums(s->a, s->sums, &x, &y);
    return mti_cuda_gemm(s->ctx, 1, s->a, s->b, 0, s->c, NULL, s->scratch, 0) &&
           mti_cuda_sum(s->ctx, 1, &x, &y, s->scratch);
}

/* The first run loads kernels. */
static bool time_runs(const struct sums_call *s, bool (*run)(const struct sums_call *),
                      cudaEvent_t begin, cudaEvent_t end, float *ms)
{
    bool ok = run(s) && mti_cuda_ok(cudaEventRecord(begin, s->ctx->stream), "recording an event");
    for (int i = 0; ok && i < TIMED_RUNS; i++) ok = run(s);
    return ok && mti_cuda_ok(cudaEventRecord(end, s->ctx->stream), "recording an event") &&
           mti_cuda_wait_for_event(s->ctx, end, "timing a product") &&
           mti_cuda_ok(cudaEventElapsedTime(ms, begin, end), "timing a product");
}

/* Runs both forms, and notes which is faster. */
static bool choose_form(const struct sums_call *s, mti_sums_form *form)
{
    cudaEvent_t begin = NULL, end = NULL;
    float one_ms = 0, apart_ms = 0;
    bool ok = mti_cuda_ok(cudaEventCreateWithFlags(&begin, cudaEventDefault), "an event") &&
              mti_cuda_ok(cudaEventCreateWithFlags(&end, cudaEventDefault), "an event") &&
              time_runs(s, in_one, begin, end, &one_ms) &&
              time_runs(s, apart, begin, end, &apart_ms);
    if (begin) mti_cuda_forgive(cudaEventDestroy(begin));
    if (end) mti_cuda_forgive(cudaEventDestroy(end));
    *form = one_ms > MUCH_SLOWER * apart_ms ? MTI_SUMS_APART : MTI_SUMS_IN_ONE;
    return ok && with_plan(s->ctx, &s->g, [&](mti_plan *p) { p->form = *form; });
}

bool mti_cuda_gemm_sums(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c,
                        const mti_view *sums, void *scratch, size_t)
{
    struct sums_call s = {ctx, a, b, c, sums, scratch, {}};
    mti_sums_form form = MTI_SUMS_UNTIMED;
    if (read_views(ctx, &s.g, a, b, c) && mti_view_count(c) && !s.g.batch_rank &&
        !add_epilogue(ctx, &s.g, LT_EPILOGUE_SUMS_B, sums->data, &form))
        return false;
    if (!s.g.vector) return apart(&s);
    if (form == MTI_SUMS_UNTIMED && may_time() && !choose_form(&s, &form)) return false;
    return form == MTI_SUMS_APART ? apart(&s) : in_one(&s);
}
