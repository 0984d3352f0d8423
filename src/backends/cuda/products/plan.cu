/* plan.cu: cuBLASLt, and the plans that are kept: for each kind of product the algorithm that its
 * heuristic chose, which takes the host some 50 us. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "backends/cuda/products/plan.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/device/library.h"

#define MAX_PLANS 1024
#define N_BUCKETS 256
#define MANY_ROWS 128 /* more are rounded up to a multiple, fewer to a power of two */

struct mti_plan_table {
    mti_plan *buckets[N_BUCKETS];
    int n_plans;
    uint64_t n_calls;
};

/* ---- the library ---- */

#ifdef MTI_CUDASIM
static bool open_library(void) { return true; }
static void *symbol_of(const char *name) { return cudasim_cublaslt(name); }
#else

static struct {
    pthread_mutex_t lock;
    void *handle;
} cublas_library = {PTHREAD_MUTEX_INITIALIZER, NULL};

static void *find_library(void)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12"};
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = mti_cuda_find_library(names[i]);
    return library;
}

static bool open_library(void)
{
    pthread_mutex_lock(&cublas_library.lock);
    if (!cublas_library.handle) cublas_library.handle = find_library();
    bool found = cublas_library.handle != NULL;
    pthread_mutex_unlock(&cublas_library.lock);
    return found ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "cuda: no libcublasLt.so.13 or .12 (part of the CUDA toolkit, and of "
                         "pip's nvidia-cublas; MEMTAPE_CUDA_LIBS=FOLDER:... says where)");
}

static void *symbol_of(const char *name) { return dlsym(cublas_library.handle, name); }
#endif

bool mti_lt_ok(int status, const char *what)
{
    return status == LT_OK ||
           mti_fail_bool(MT_ERR_UNSUPPORTED, "cuda: %s: cuBLAS status %d", what, status);
}

bool mti_blas_load(mti_cublas *blas)
{
    if (blas->handle) return true;
    if (!open_library()) return false;
#define LOAD(member, name, parameters)                                                             \
    {                                                                                              \
        void *found = symbol_of(#name);                                                            \
        if (!found) return mti_fail_bool(MT_ERR_UNSUPPORTED, "cuda: cuBLASLt without " #name);     \
        memcpy(&blas->lt.member, &found, sizeof found);                                            \
    }
    LT_FUNCTIONS(LOAD)
#undef LOAD
    return mti_lt_ok(blas->lt.create(&blas->handle), "cublasLtCreate");
}

bool mti_cuda_blas_open(mti_ctx *ctx)
{
    ctx->blas = static_cast<mti_cublas *>(mti_calloc(1, sizeof *ctx->blas));
    if (!ctx->blas) return false;
    pthread_mutex_init(&ctx->blas->lock, NULL);
    ctx->blas->plans = static_cast<mti_plan_table *>(mti_calloc(1, sizeof *ctx->blas->plans));
    return ctx->blas->plans != NULL;
}

/* ---- plans ---- */

static void plan_free(mti_cublas *blas, mti_plan *p)
{
    if (p->desc) blas->lt.desc_destroy(p->desc);
    if (p->a) blas->lt.layout_destroy(p->a);
    if (p->b) blas->lt.layout_destroy(p->b);
    if (p->c) blas->lt.layout_destroy(p->c);
    mti_free(p);
}

void mti_cuda_blas_close(mti_ctx *ctx)
{
    mti_cublas *blas = ctx->blas;
    if (!blas) return;
    for (int i = 0; blas->plans && i < N_BUCKETS; i++) {
        while (mti_plan *p = blas->plans->buckets[i]) {
            blas->plans->buckets[i] = p->next;
            plan_free(blas, p);
        }
    }
    mti_free(blas->plans);
    if (blas->handle) blas->lt.destroy(blas->handle);
    pthread_mutex_destroy(&blas->lock);
    mti_free(blas);
}

static int lt_type(mt_dtype dtype)
{
    return dtype == MT_F64    ? LT_F64
           : dtype == MT_F16  ? LT_F16
           : dtype == MT_BF16 ? LT_BF16
                              : LT_F32;
}

static bool make_layout(const lt_functions *lt, lt_layout_t *layout, int type,
                        const mti_lt_matrix *s, int64_t n_batch, int64_t stride)
{
    int32_t count = (int32_t)n_batch;
    return mti_lt_ok(lt->layout_create(layout, type, (uint64_t)s->rows, (uint64_t)s->cols, s->ld),
                     "layout of a matrix") &&
           mti_lt_ok(lt->layout_set(*layout, LT_LAYOUT_BATCH, &count, sizeof count), "batch") &&
           mti_lt_ok(lt->layout_set(*layout, LT_LAYOUT_BATCH_STRIDE, &stride, sizeof stride),
                     "batch");
}

static bool make_desc(mti_ctx *ctx, mti_plan *p, const mti_lt_product *g, int c_type)
{
    const lt_functions *lt = &ctx->blas->lt;
    bool f64 = g->dtype == MT_F64;
    const void *vector = g->vector;
    int compute = f64                               ? LT_COMPUTE_F64
                  : g->dtype == MT_F32 && ctx->tf32 ? LT_COMPUTE_TF32
                                                    : LT_COMPUTE_F32;
    int32_t op_a = p->key.trans_a ? LT_OP_T : LT_OP_N, op_b = p->key.trans_b ? LT_OP_T : LT_OP_N;
    uint32_t epilogue = (uint32_t)p->key.epilogue;
    return mti_lt_ok(lt->desc_create(&p->desc, compute, f64 ? LT_F64 : LT_F32), "description") &&
           mti_lt_ok(lt->desc_set(p->desc, LT_DESC_TRANSA, &op_a, sizeof op_a), "transpose") &&
           mti_lt_ok(lt->desc_set(p->desc, LT_DESC_TRANSB, &op_b, sizeof op_b), "transpose") &&
           mti_lt_ok(lt->desc_set(p->desc, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue),
                     "epilogue") &&
           (!vector ||
            (mti_lt_ok(lt->desc_set(p->desc, LT_DESC_BIAS_TYPE, &c_type, sizeof c_type), "bias") &&
             mti_lt_ok(lt->desc_set(p->desc, LT_DESC_BIAS, &vector, sizeof vector), "bias")));
}

/* Sets p->status and p->algo; false on another failure than that there is no algorithm. */
static bool choose_algorithm(mti_ctx *ctx, mti_plan *p)
{
    const lt_functions *lt = &ctx->blas->lt;
    lt_pref_t pref = NULL;
    uint64_t n_workspace = p->key.n_workspace;
    /* Partial sums of a product that is split over k are added before they are rounded. */
    uint32_t reductions = LT_REDUCE_IN_COMPUTE_TYPE;
    uint32_t align[4] = {(uint32_t)p->key.align_a, (uint32_t)p->key.align_b,
                         (uint32_t)p->key.align_c, (uint32_t)p->key.align_c};
    bool ok = mti_lt_ok(lt->pref_create(&pref), "preferences") &&
              mti_lt_ok(lt->pref_set(pref, LT_PREF_WORKSPACE, &n_workspace, sizeof n_workspace),
                        "workspace") &&
              mti_lt_ok(lt->pref_set(pref, LT_PREF_REDUCTIONS, &reductions, sizeof reductions),
                        "reductions");
    for (int i = 0; ok && i < 4; i++)
        ok = mti_lt_ok(lt->pref_set(pref, LT_PREF_ALIGN_A + i, &align[i], sizeof align[i]),
                       "alignment");
    if (ok) {
        lt_heuristic found = {};
        int n_found = 0;
        p->status = lt->heuristic(ctx->blas->handle, p->desc, p->a, p->b, p->c, p->c, pref, 1,
                                  &found, &n_found);
        if (p->status == LT_OK) p->status = n_found ? found.status : LT_NOT_SUPPORTED;
        p->algo = found.algo;
    }
    if (pref) lt->pref_destroy(pref);
    return ok;
}

/* ---- the table ---- */

static mti_plan **bucket_of(mti_plan_table *plans, const mti_plan_key *key)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(key);
    for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return &plans->buckets[hash % N_BUCKETS];
}

/* Drops the plan that was not used for the longest time. */
static void forget_oldest(mti_cublas *blas)
{
    mti_plan **oldest = NULL;
    for (mti_plan *&bucket : blas->plans->buckets)
        for (mti_plan **link = &bucket; *link; link = &(*link)->next)
            if (!oldest || (*link)->used < (*oldest)->used) oldest = link;
    mti_plan *p = *oldest;
    *oldest = p->next;
    plan_free(blas, p);
    blas->plans->n_plans--;
}

static mti_plan_key key_of(const mti_lt_product *g, const mti_operands *at)
{
    int inner = g->batch_rank - 1;
    mti_plan_key key;
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.lda = g->a.ld, key.ldb = g->b.ld, key.ldc = g->c.ld;
    key.n_workspace = g->n_workspace;
    key.n_batch = inner < 0 ? 1 : g->batch_shape[inner];
    if (inner >= 0) {
        key.stride_a = g->a.batch_stride[inner], key.stride_b = g->b.batch_stride[inner];
        key.stride_c = g->c.batch_stride[inner];
    }
    key.dtype = g->dtype, key.c_dtype = g->c_dtype, key.trans_a = g->a.trans,
    key.trans_b = g->b.trans, key.epilogue = (int)g->epilogue;
    key.align_a = mti_plan_alignment(at->a), key.align_b = mti_plan_alignment(at->b);
    key.align_c = mti_plan_alignment(at->c);
    key.align_vector = g->vector ? mti_plan_alignment(g->vector) : 0;
    return key;
}

static mti_plan *new_plan(mti_ctx *ctx, const mti_lt_product *g, const mti_plan_key *key)
{
    mti_cublas *blas = ctx->blas;
    mti_plan *p = static_cast<mti_plan *>(mti_calloc(1, sizeof *p));
    if (!p) return NULL;
    p->key = *key, p->n = g->n, p->k = g->k, p->fits = true;
    int type = lt_type(g->dtype), c_type = lt_type(g->c_dtype);
    if (make_desc(ctx, p, g, c_type) &&
        make_layout(&blas->lt, &p->a, type, &g->a, key->n_batch, key->stride_a) &&
        make_layout(&blas->lt, &p->b, type, &g->b, key->n_batch, key->stride_b) &&
        make_layout(&blas->lt, &p->c, c_type, &g->c, key->n_batch, key->stride_c) &&
        choose_algorithm(ctx, p))
        return p;
    plan_free(blas, p);
    return NULL;
}

static mti_plan *find_or_make(mti_ctx *ctx, const mti_lt_product *g, const mti_operands *at)
{
    mti_plan_table *plans = ctx->blas->plans;
    mti_plan_key key = key_of(g, at);
    if (key.n_batch > INT32_MAX)
        return static_cast<mti_plan *>(mti_fail_null(
            MT_ERR_UNSUPPORTED, "cuda: a batch of %lld products; cuBLASLt takes less than 2^31",
            (long long)key.n_batch));
    mti_plan **bucket = bucket_of(plans, &key), *p = *bucket;
    while (p && memcmp(&p->key, &key, sizeof key)) p = p->next;
    if (!p) {
        if (plans->n_plans == MAX_PLANS) forget_oldest(ctx->blas);
        if (!(p = new_plan(ctx, g, &key))) return NULL;
        p->next = *bucket, *bucket = p;
        plans->n_plans++;
    }
    p->used = ++plans->n_calls;
    return p;
}

/* ---- rows rounded up ----
 * Rows of a view in memory are columns here, and each takes a leading dimension's bytes. A number
 * that is of columns only is that of rows: n of activations, k of a weight's gradient. */

static int64_t rounded_up(int64_t rows)
{
    if (rows > INT32_MAX - MANY_ROWS) return rows;
    if (rows > MANY_ROWS) return (rows + MANY_ROWS - 1) / MANY_ROWS * MANY_ROWS;
    int64_t power = 1;
    while (power < rows) power *= 2;
    return power;
}

static mti_lt_product with_rounded_rows(const mti_lt_product *g)
{
    mti_lt_product r = *g;
    if (g->batch_rank) return r;
    if (!g->b.trans) r.n = r.b.cols = r.c.cols = rounded_up(g->n);
    if (!g->a.trans && g->b.trans) r.k = r.a.cols = r.b.cols = rounded_up(g->k);
    return r;
}

static bool set_columns(const lt_functions *lt, lt_layout_t layout, int64_t cols)
{
    uint64_t n = (uint64_t)cols;
    return mti_lt_ok(lt->layout_set(layout, LT_LAYOUT_COLS, &n, sizeof n), "columns of a matrix");
}

/* Gives the layouts the product's sizes, and finds out whether the algorithm takes them. */
static bool resize(mti_ctx *ctx, mti_plan *p, const mti_lt_product *g)
{
    const lt_functions *lt = &ctx->blas->lt;
    if (p->n == g->n && p->k == g->k) return true;
    p->n = p->k = 0; /* if it fails on the way */
    if (!set_columns(lt, p->a, g->a.cols) || !set_columns(lt, p->b, g->b.cols) ||
        !set_columns(lt, p->c, g->c.cols))
        return false;
    lt_heuristic found = {};
    p->n = g->n, p->k = g->k;
    p->fits =
        (g->n == p->key.n && g->k == p->key.k) ||
        (lt->check(ctx->blas->handle, p->desc, p->a, p->b, p->c, p->c, &p->algo, &found) == LT_OK &&
         found.status == LT_OK && found.n_workspace <= p->key.n_workspace);
    return true;
}

mti_plan *mti_plan_of(mti_ctx *ctx, const mti_lt_product *g, const mti_operands *at)
{
    bool plain = g->epilogue == LT_EPILOGUE_NONE;
    mti_lt_product rounded = with_rounded_rows(g);
    mti_plan *p = find_or_make(ctx, &rounded, at);
    if (p && !mti_plan_is_offered(p) && !plain) return p;
    if (p && mti_plan_is_offered(p) && !resize(ctx, p, g)) return NULL;
    if (p && (!mti_plan_is_offered(p) || !p->fits)) p = find_or_make(ctx, g, at);
    if (!p || mti_plan_is_offered(p) || !plain) return p;
    mti_fail(MT_ERR_UNSUPPORTED, "cuda: cuBLASLt has no way to multiply this: status %d",
             p->status);
    return NULL;
}
