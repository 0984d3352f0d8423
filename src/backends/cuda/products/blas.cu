/* blas.cu: c = alpha a b + beta c + bias, batched, through cuBLASLt.
 *
 * cuBLASLt is column-major: our row-major c [m,n] is its column-major [n,m]. So we ask it for
 * c^T = b^T a^T: its first matrix is our b. The algorithm for a shape is chosen once and cached. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "backends/cuda/products/cublaslt.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/device/library.h"

#define MAX_PLANS    1024
#define N_BUCKETS    256
#define MAX_ALIGN    256
#define VECTOR_ALIGN 16 /* of an epilogue's vector */

/* A matrix as cuBLASLt sees it: [rows,cols] column-major. */
struct matrix {
    const void *data;
    bool trans;
    int64_t rows, cols, ld;
    int64_t batch_stride[MT_MAX_RANK];
};

struct product {
    mt_dtype dtype, c_dtype; /* f32 beside 16 bits, otherwise the same */
    int64_t m, n, k;         /* sizes of cuBLASLt's product: c is [m,n] column-major */
    struct matrix a, b, c;
    int batch_rank;
    int64_t batch_shape[MT_MAX_RANK];
    uint32_t epilogue;  /* LT_EPILOGUE_: what else the product does */
    const void *vector; /* the bias that it adds, or where it stores its operand's sums; or NULL */
};

/* All that the choice of algorithm depends on. Keys are compared as bytes, so padding is 0. */
struct plan_key {
    int64_t m, n, k, lda, ldb, ldc, n_batch, stride_a, stride_b, stride_c;
    int dtype, c_dtype, trans_a, trans_b, epilogue;
    int align_a, align_b, align_c, align_vector;
};

/* Which form of a product with sums is faster, as its first call found. */
enum sums_form { SUMS_UNTIMED, SUMS_IN_ONE, SUMS_APART };

struct plan {
    struct plan *next;
    struct plan_key key;
    lt_desc_t desc;
    lt_layout_t a, b, c;
    bool offered; /* whether the library has such a product; false only with an epilogue */
    lt_algo algo;
    enum sums_form form;
};

struct mti_cublas {
    pthread_mutex_t lock; /* several host threads may multiply on one device */
    lt_functions lt;
    lt_handle_t handle;
    struct plan *buckets[N_BUCKETS];
    int n_plans;
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

static bool lt_ok(int status, const char *what)
{
    return status == LT_OK ||
           mti_fail_bool(MT_ERR_UNSUPPORTED, "cuda: %s: cuBLAS status %d", what, status);
}

static bool load(struct mti_cublas *blas)
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
    return lt_ok(blas->lt.create(&blas->handle), "cublasLtCreate");
}

bool mti_cuda_blas_open(mti_ctx *ctx)
{
    ctx->blas = static_cast<struct mti_cublas *>(mti_calloc(1, sizeof *ctx->blas));
    if (ctx->blas) pthread_mutex_init(&ctx->blas->lock, NULL);
    return ctx->blas != NULL;
}

/* ---- plans ---- */

static void plan_free(struct mti_cublas *blas, struct plan *p)
{
    if (p->desc) blas->lt.desc_destroy(p->desc);
    if (p->a) blas->lt.layout_destroy(p->a);
    if (p->b) blas->lt.layout_destroy(p->b);
    if (p->c) blas->lt.layout_destroy(p->c);
    mti_free(p);
}

static void forget_plans(struct mti_cublas *blas)
{
    for (int i = 0; i < N_BUCKETS; i++) {
        while (blas->buckets[i]) {
            struct plan *p = blas->buckets[i];
            blas->buckets[i] = p->next;
            plan_free(blas, p);
        }
    }
    blas->n_plans = 0;
}

void mti_cuda_blas_close(mti_ctx *ctx)
{
    struct mti_cublas *blas = ctx->blas;
    if (!blas) return;
    forget_plans(blas);
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
                        const struct matrix *s, int64_t n_batch, int64_t stride)
{
    int32_t count = (int32_t)n_batch;
    return lt_ok(lt->layout_create(layout, type, (uint64_t)s->rows, (uint64_t)s->cols, s->ld),
                 "layout of a matrix") &&
           lt_ok(lt->layout_set(*layout, LT_LAYOUT_BATCH, &count, sizeof count), "batch") &&
           lt_ok(lt->layout_set(*layout, LT_LAYOUT_BATCH_STRIDE, &stride, sizeof stride), "batch");
}

static bool make_desc(mti_ctx *ctx, struct plan *p, const struct product *g, int c_type)
{
    const lt_functions *lt = &ctx->blas->lt;
    bool f64 = g->dtype == MT_F64;
    const void *vector = g->vector;
    int compute = f64                               ? LT_COMPUTE_F64
                  : g->dtype == MT_F32 && ctx->tf32 ? LT_COMPUTE_TF32
                                                    : LT_COMPUTE_F32;
    int32_t op_a = p->key.trans_a ? LT_OP_T : LT_OP_N, op_b = p->key.trans_b ? LT_OP_T : LT_OP_N;
    uint32_t epilogue = (uint32_t)p->key.epilogue;
    return lt_ok(lt->desc_create(&p->desc, compute, f64 ? LT_F64 : LT_F32), "description") &&
           lt_ok(lt->desc_set(p->desc, LT_DESC_TRANSA, &op_a, sizeof op_a), "transpose") &&
           lt_ok(lt->desc_set(p->desc, LT_DESC_TRANSB, &op_b, sizeof op_b), "transpose") &&
           lt_ok(lt->desc_set(p->desc, LT_DESC_EPILOGUE, &epilogue, sizeof epilogue), "epilogue") &&
           (!vector ||
            (lt_ok(lt->desc_set(p->desc, LT_DESC_BIAS_TYPE, &c_type, sizeof c_type), "bias") &&
             lt_ok(lt->desc_set(p->desc, LT_DESC_BIAS, &vector, sizeof vector), "bias")));
}

static bool choose_algorithm(mti_ctx *ctx, struct plan *p)
{
    const lt_functions *lt = &ctx->blas->lt;
    lt_pref_t pref = NULL;
    uint64_t n_workspace = ctx->n_workspace;
    /* Partial sums of a product that is split over k are added before they are rounded. */
    uint32_t reductions = LT_REDUCE_IN_COMPUTE_TYPE;
    uint32_t align[4] = {(uint32_t)p->key.align_a, (uint32_t)p->key.align_b,
                         (uint32_t)p->key.align_c, (uint32_t)p->key.align_c};
    bool ok =
        lt_ok(lt->pref_create(&pref), "preferences") &&
        lt_ok(lt->pref_set(pref, LT_PREF_WORKSPACE, &n_workspace, sizeof n_workspace),
              "workspace") &&
        lt_ok(lt->pref_set(pref, LT_PREF_REDUCTIONS, &reductions, sizeof reductions), "reductions");
    for (int i = 0; ok && i < 4; i++)
        ok =
            lt_ok(lt->pref_set(pref, LT_PREF_ALIGN_A + i, &align[i], sizeof align[i]), "alignment");
    lt_heuristic found;
    int n_found = 0;
    if (ok) {
        int status = lt->heuristic(ctx->blas->handle, p->desc, p->a, p->b, p->c, p->c, pref, 1,
                                   &found, &n_found);
        p->offered = status == LT_OK && n_found;
        bool may_be_missing = p->key.epilogue != LT_EPILOGUE_NONE;
        ok = may_be_missing || lt_ok(status, "choosing how to multiply");
        if (ok && !p->offered && !may_be_missing)
            ok = mti_fail_bool(MT_ERR_UNSUPPORTED, "cuda: cuBLASLt has no way to multiply this");
    }
    if (pref) lt->pref_destroy(pref);
    if (ok && p->offered) p->algo = found.algo;
    return ok;
}

static uint64_t hash_of(const struct plan_key *key)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    const unsigned char *bytes = reinterpret_cast<const unsigned char *>(key);
    for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static struct plan *plan_for(mti_ctx *ctx, const struct product *g, const struct plan_key *key)
{
    struct mti_cublas *blas = ctx->blas;
    struct plan **bucket = &blas->buckets[hash_of(key) % N_BUCKETS];
    for (struct plan *p = *bucket; p; p = p->next)
        if (!memcmp(&p->key, key, sizeof *key)) return p;
    if (blas->n_plans == MAX_PLANS) forget_plans(blas);
    struct plan *p = static_cast<struct plan *>(mti_calloc(1, sizeof *p));
    if (!p) return NULL;
    p->key = *key;
    int type = lt_type(g->dtype), c_type = lt_type(g->c_dtype);
    if (!make_desc(ctx, p, g, c_type) ||
        !make_layout(&blas->lt, &p->a, type, &g->a, key->n_batch, key->stride_a) ||
        !make_layout(&blas->lt, &p->b, type, &g->b, key->n_batch, key->stride_b) ||
        !make_layout(&blas->lt, &p->c, c_type, &g->c, key->n_batch, key->stride_c) ||
        !choose_algorithm(ctx, p)) {
        plan_free(blas, p);
        return NULL;
    }
    p->next = *bucket;
    *bucket = p;
    blas->n_plans++;
    return p;
}

/* ---- reading the views ---- */

/* v [rows,cols] as a column-major matrix: row-major memory is its transpose. */
static struct matrix matrix_of(const mti_view *v)
{
    int64_t rows = v->shape[v->rank - 2], cols = v->shape[v->rank - 1];
    int64_t row = v->stride[v->rank - 2], col = v->stride[v->rank - 1];
    struct matrix s = {};
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
static void join_batches(struct product *g)
{
    int kept = 0;
    for (int i = 0; i < g->batch_rank; i++) {
        int64_t n = g->batch_shape[i];
        if (n == 1) continue;
        struct matrix *matrices[] = {&g->a, &g->b, &g->c};
        bool evenly_spaced = kept > 0;
        for (struct matrix *s : matrices)
            evenly_spaced = evenly_spaced && s->batch_stride[kept - 1] == n * s->batch_stride[i];
        int d = evenly_spaced ? kept - 1 : kept++;
        g->batch_shape[d] = evenly_spaced ? g->batch_shape[d] * n : n;
        for (struct matrix *s : matrices) s->batch_stride[d] = s->batch_stride[i];
    }
    g->batch_rank = kept;
}

/* Many matrices times one weight (here the first matrix) are one tall matrix times the weight. */
static void fold_batch(struct product *g)
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
static bool read_views(struct product *g, const mti_view *a, const mti_view *b, const mti_view *c)
{
    int rank = c->rank;
    memset(g, 0, sizeof *g);
    g->dtype = a->dtype, g->c_dtype = c->dtype, g->epilogue = LT_EPILOGUE_NONE;
    g->m = c->shape[rank - 1], g->n = c->shape[rank - 2], g->k = a->shape[rank - 1];
    g->a = matrix_of(b), g->b = matrix_of(a), g->c = matrix_of(c);
    bool row_major = !g->c.trans;
    if (!row_major) { /* c is column-major: compute c = a b directly */
        struct matrix first = g->b;
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

static int alignment(const void *p)
{
    uintptr_t lowest = (uintptr_t)p & (~(uintptr_t)p + 1);
    return lowest == 0 || lowest > MAX_ALIGN ? MAX_ALIGN : (int)lowest;
}

static const void *offset(const void *p, int64_t elements, mt_dtype dtype)
{
    return static_cast<const char *>(p) + elements * (int64_t)mt_dtype_size(dtype);
}

/* The matrices of the products over the innermost batch dimension; i: the indices of the outer
 * ones. */
struct operands {
    const void *a, *b;
    void *c;
};

static struct operands operands_of(const struct product *g, const int64_t *i)
{
    int64_t offset_a = 0, offset_b = 0, offset_c = 0;
    for (int d = 0; d < g->batch_rank - 1; d++) {
        offset_a += i[d] * g->a.batch_stride[d];
        offset_b += i[d] * g->b.batch_stride[d];
        offset_c += i[d] * g->c.batch_stride[d];
    }
    struct operands at;
    at.a = offset(g->a.data, offset_a, g->dtype);
    at.b = offset(g->b.data, offset_b, g->dtype);
    at.c = const_cast<void *>(offset(g->c.data, offset_c, g->c_dtype));
    return at;
}

static struct plan_key key_of(const struct product *g, const struct operands *at)
{
    int inner = g->batch_rank - 1;
    struct plan_key key;
    memset(&key, 0, sizeof key);
    key.m = g->m, key.n = g->n, key.k = g->k;
    key.lda = g->a.ld, key.ldb = g->b.ld, key.ldc = g->c.ld;
    key.n_batch = inner < 0 ? 1 : g->batch_shape[inner];
    if (inner >= 0) {
        key.stride_a = g->a.batch_stride[inner], key.stride_b = g->b.batch_stride[inner];
        key.stride_c = g->c.batch_stride[inner];
    }
    key.dtype = g->dtype, key.c_dtype = g->c_dtype, key.trans_a = g->a.trans,
    key.trans_b = g->b.trans, key.epilogue = (int)g->epilogue;
    key.align_a = alignment(at->a), key.align_b = alignment(at->b), key.align_c = alignment(at->c);
    key.align_vector = g->vector ? alignment(g->vector) : 0;
    return key;
}

static bool multiply(mti_ctx *ctx, const struct product *g, const int64_t *i, double alpha,
                     double beta, void *scratch)
{
    struct operands at = operands_of(g, i);
    struct plan_key key = key_of(g, &at);
    if (key.n_batch > INT32_MAX)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "cuda: a batch of %lld products; cuBLASLt takes less than 2^31",
                             (long long)key.n_batch);
    float alpha_f32 = (float)alpha, beta_f32 = (float)beta;
    bool f64 = g->dtype == MT_F64;
    struct plan *p = plan_for(ctx, g, &key);
    const lt_functions *lt = &ctx->blas->lt;
    return p &&
           (!g->vector ||
            lt_ok(lt->desc_set(p->desc, LT_DESC_BIAS, &g->vector, sizeof g->vector), "bias")) &&
           lt_ok(lt->matmul(ctx->blas->handle, p->desc,
                            f64 ? static_cast<void *>(&alpha) : &alpha_f32, at.a, p->a, at.b, p->b,
                            f64 ? static_cast<void *>(&beta) : &beta_f32, at.c, p->c, at.c, p->c,
                            &p->algo, scratch, ctx->n_workspace, mti_stream(ctx)),
                 "product");
}

static bool multiply_all(mti_ctx *ctx, const struct product *g, double alpha, double beta,
                         void *scratch)
{
    int64_t n_outer = 1, i[MT_MAX_RANK] = {};
    for (int d = 0; d < g->batch_rank - 1; d++) n_outer *= g->batch_shape[d];
    pthread_mutex_lock(&ctx->blas->lock);
    bool ok = load(ctx->blas);
    for (int64_t done = 0; ok && done < n_outer; done++) {
        ok = multiply(ctx, g, i, alpha, beta, scratch);
        for (int d = g->batch_rank - 2; d >= 0 && ++i[d] == g->batch_shape[d]; d--) i[d] = 0;
    }
    pthread_mutex_unlock(&ctx->blas->lock);
    return ok;
}

/* ---- epilogues ----
 * What else a product does with a vector; two launches where the library refuses it, as with rows
 * or columns of one element, or a heuristic finds none: which is kept as a plan of its own. */

/* Calls use(plan) with the product's plan; false on failure. */
template <class Use> static bool with_plan(mti_ctx *ctx, const struct product *g, const Use &use)
{
    const int64_t none[MT_MAX_RANK] = {};
    struct operands at = operands_of(g, none);
    struct plan_key key = key_of(g, &at);
    pthread_mutex_lock(&ctx->blas->lock);
    struct plan *p = load(ctx->blas) ? plan_for(ctx, g, &key) : NULL;
    if (p) use(p);
    pthread_mutex_unlock(&ctx->blas->lock);
    return p != NULL;
}

/* Gives the product this epilogue if one launch can do it all, and as fast as two; false on
 * failure. *form: the plan's. */
static bool add_epilogue(mti_ctx *ctx, struct product *g, uint32_t epilogue, const void *vector,
                         enum sums_form *form)
{
    if (!g->k || g->dtype == MT_F64 || g->batch_rank > 1 || alignment(vector) < VECTOR_ALIGN)
        return true;
    g->epilogue = epilogue, g->vector = vector;
    bool offered = true;
    bool ok = with_plan(ctx, g, [&](struct plan *p) { offered = p->offered, *form = p->form; });
    if (!offered || *form == SUMS_APART) g->epilogue = LT_EPILOGUE_NONE, g->vector = NULL;
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
    struct product g;
    bool row_major = read_views(&g, a, b, c);
    enum sums_form form = SUMS_UNTIMED;
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
 * MEMTAPE_CUDA_BENCHMARK=1 a plan's first call that is not captured runs both. Without it no bit
 * depends on a clock, as with torch.backends.cudnn.benchmark. */

#define TIMED_RUNS  3
#define MUCH_SLOWER 1.25f /* what is nearly as fast stays */

static bool may_time(mti_ctx *ctx)
{
    const char *chosen = getenv("MEMTAPE_CUDA_BENCHMARK");
    return chosen && !strcmp(chosen, "1") && !mti_noting(ctx);
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
    struct product g;
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
static bool choose_form(const struct sums_call *s, enum sums_form *form)
{
    cudaEvent_t begin = NULL, end = NULL;
    float one_ms = 0, apart_ms = 0;
    bool ok = mti_cuda_ok(cudaEventCreateWithFlags(&begin, cudaEventDefault), "an event") &&
              mti_cuda_ok(cudaEventCreateWithFlags(&end, cudaEventDefault), "an event") &&
              time_runs(s, in_one, begin, end, &one_ms) &&
              time_runs(s, apart, begin, end, &apart_ms);
    if (begin) cudaEventDestroy(begin);
    if (end) cudaEventDestroy(end);
    *form = one_ms > MUCH_SLOWER * apart_ms ? SUMS_APART : SUMS_IN_ONE;
    return ok && with_plan(s->ctx, &s->g, [&](struct plan *p) { p->form = *form; });
}

bool mti_cuda_gemm_sums(mti_ctx *ctx, const mti_view *a, const mti_view *b, const mti_view *c,
                        const mti_view *sums, void *scratch, size_t)
{
    struct sums_call s = {ctx, a, b, c, sums, scratch, {}};
    enum sums_form form = SUMS_UNTIMED;
    if (read_views(&s.g, a, b, c) && mti_view_count(c) && !s.g.batch_rank &&
        !add_epilogue(ctx, &s.g, LT_EPILOGUE_SUMS_B, sums->data, &form))
        return false;
    if (!s.g.vector) return apart(&s);
    if (form == SUMS_UNTIMED && may_time(ctx) && !choose_form(&s, &form)) return false;
    return form == SUMS_APART ? apart(&s) : in_one(&s);
}
