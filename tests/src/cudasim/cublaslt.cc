/* cublaslt.cc: cuBLASLt's matrix product on OpenBLAS, with layouts, batch strides, beta and bias.
 * It refuses what the real library refuses: a leading dimension that is too short, a workspace
 * other than promised or aligned to less than 256 bytes, operands less aligned than promised. With
 * an epilogue no size may be 1, which is where PyTorch keeps away from them: then none is offered.
 * Its vector must be aligned to 16 bytes, which shows only when it is used. Sums of an operand come
 * with a product as nvmath-python knows it of the library: in the result's dtype, not in f64; and
 * here only where all is aligned to 16 bytes, so that tests see the other way, too: NVIDIA has no
 * table of what its heuristic offers. A refusal is the call's status or, for 16-bit numbers, that
 * of the result.
 *
 * An algorithm takes fewer columns of the result, and fewer terms of its sums, than it was chosen
 * for; but of 16-bit numbers an odd number of terms only if it was chosen for that. Real sums are
 * added in an order that the algorithm has. With CUDASIM_ORDER=plan in the environment, or after
 * cudasim_order_by_plan, so it is here: bits then depend on all that the algorithm depends on. */
#include <atomic>
#include <cblas.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <vector>
#include "cudasim/memory.h"
#include "cudasim/simulator.h"
#include "backends/cuda/products/cublaslt.h"

enum { INVALID = 7, WORKSPACE_ALIGN = 256 };

/* How often products were made with this epilogue, in this process. */
static std::atomic<long> products_with[2]; /* any other; LT_EPILOGUE_SUMS_B */
extern "C" __attribute__((visibility("default"))) long cudasim_products(bool with_sums)
{
    return products_with[with_sums];
}

/* How often an algorithm was asked for, in this process; with CUDASIM_COUNTS=1 in the environment
 * printed at its end. */
static struct counter {
    std::atomic<long> n;
    ~counter()
    {
        if (getenv("CUDASIM_COUNTS"))
            fprintf(stderr, "cudasim: %ld algorithms asked for\n", n.load());
    }
} heuristics;
extern "C" __attribute__((visibility("default"))) long cudasim_heuristics(void)
{
    return heuristics.n;
}

static std::atomic<bool> order_by_plan;
extern "C" __attribute__((visibility("default"))) void cudasim_order_by_plan(bool on)
{
    order_by_plan = on;
}
static bool is_order_the_plans()
{
    static const char *const text = getenv("CUDASIM_ORDER");
    return order_by_plan || (text && !strcmp(text, "plan"));
}

/* What a product with sums takes by the clock of events, where others take nothing. */
static std::atomic<double> sums_ms;
extern "C" __attribute__((visibility("default"))) void cudasim_slow_sums(double ms)
{
    sums_ms = ms;
}

struct lt_handle {
    int unused;
};
struct lt_desc {
    int compute, scale;
    int32_t trans_a, trans_b;
    uint32_t epilogue;
    const void *bias;
    int bias_type;
};
struct lt_layout {
    int type;
    uint64_t rows, cols;
    int64_t ld, stride;
    int32_t n_batch;
};
struct lt_pref {
    uint64_t n_workspace;
    uint32_t reductions, align[4];
};

template <class T> static int create(T **out)
{
    *out = (T *)calloc(1, sizeof(T));
    return *out ? LT_OK : 3;
}
template <class T> static int destroy(T *p)
{
    free(p);
    return LT_OK;
}
static int set(void *field, size_t n_field, const void *value, size_t n_value)
{
    if (n_field != n_value) return INVALID;
    memcpy(field, value, n_value);
    return LT_OK;
}

static int cublasLtCreate(lt_handle_t *out) { return create(out); }
static int cublasLtDestroy(lt_handle_t p) { return destroy(p); }

static int cublasLtMatmulDescCreate(lt_desc_t *out, int compute, int scale)
{
    int status = create(out);
    if (status == LT_OK) (*out)->compute = compute, (*out)->scale = scale, (*out)->epilogue = 1;
    return status;
}
static int cublasLtMatmulDescDestroy(lt_desc_t p) { return destroy(p); }
static int cublasLtMatmulDescSetAttribute(lt_desc_t d, int which, const void *value, size_t n)
{
    switch (which) {
    case LT_DESC_TRANSA: return set(&d->trans_a, sizeof d->trans_a, value, n);
    case LT_DESC_TRANSB: return set(&d->trans_b, sizeof d->trans_b, value, n);
    case LT_DESC_EPILOGUE: return set(&d->epilogue, sizeof d->epilogue, value, n);
    case LT_DESC_BIAS: return set(&d->bias, sizeof d->bias, value, n);
    case LT_DESC_BIAS_TYPE: return set(&d->bias_type, sizeof d->bias_type, value, n);
    default: return INVALID;
    }
}

static int cublasLtMatrixLayoutCreate(lt_layout_t *out, int type, uint64_t rows, uint64_t cols,
                                      int64_t ld)
{
    if (ld < (int64_t)rows || !rows || !cols) return INVALID;
    int status = create(out);
    if (status == LT_OK) **out = lt_layout{type, rows, cols, ld, 0, 1};
    return status;
}
static int cublasLtMatrixLayoutDestroy(lt_layout_t p) { return destroy(p); }
static int cublasLtMatrixLayoutSetAttribute(lt_layout_t l, int which, const void *value, size_t n)
{
    switch (which) {
    case LT_LAYOUT_COLS:
        return *(const uint64_t *)value ? set(&l->cols, sizeof l->cols, value, n) : INVALID;
    case LT_LAYOUT_BATCH: return set(&l->n_batch, sizeof l->n_batch, value, n);
    case LT_LAYOUT_BATCH_STRIDE: return set(&l->stride, sizeof l->stride, value, n);
    default: return INVALID;
    }
}

static int cublasLtMatmulPreferenceCreate(lt_pref_t *out) { return create(out); }
static int cublasLtMatmulPreferenceDestroy(lt_pref_t p) { return destroy(p); }
static int cublasLtMatmulPreferenceSetAttribute(lt_pref_t p, int which, const void *value, size_t n)
{
    switch (which) {
    case LT_PREF_WORKSPACE: return set(&p->n_workspace, sizeof p->n_workspace, value, n);
    case LT_PREF_REDUCTIONS: return set(&p->reductions, sizeof p->reductions, value, n);
    default:
        if (which < LT_PREF_ALIGN_A || which > LT_PREF_ALIGN_A + 3) return INVALID;
        return set(&p->align[which - LT_PREF_ALIGN_A], sizeof p->align[0], value, n);
    }
}

/* Sets m, n and k; false if the matrices do not fit together. */
static bool shape_of(const lt_desc *d, const lt_layout *a, const lt_layout *b, const lt_layout *c,
                     int *m, int *n, int *k)
{
    uint64_t a_rows = d->trans_a ? a->cols : a->rows, a_cols = d->trans_a ? a->rows : a->cols;
    uint64_t b_rows = d->trans_b ? b->cols : b->rows, b_cols = d->trans_b ? b->rows : b->cols;
    *m = (int)c->rows, *n = (int)c->cols, *k = (int)a_cols;
    bool f64 = c->type == LT_F64;
    return a_rows == c->rows && b_cols == c->cols && a_cols == b_rows && a->type == b->type &&
           (a->type == c->type || (c->type == LT_F32 && a->type != LT_F64)) &&
           a->n_batch == c->n_batch && b->n_batch == c->n_batch &&
           d->scale == (f64 ? LT_F64 : LT_F32) && (d->compute == LT_COMPUTE_F64) == f64 &&
           (d->epilogue == LT_EPILOGUE_NONE ||
            ((d->epilogue == LT_EPILOGUE_BIAS || d->epilogue == LT_EPILOGUE_SUMS_B) && !f64 &&
             d->bias_type == c->type));
}

/* Whether a product with a vector is offered. */
static bool has_vector(const lt_layout *a, const lt_layout *b, const lt_layout *c,
                       const lt_pref *pref)
{
    size_t size = c->type == LT_F32 ? 4 : 2;
    bool aligned = true;
    for (const lt_layout *l : {a, b, c}) aligned = aligned && (size_t)l->ld * size % 16 == 0;
    for (uint32_t align : pref->align) aligned = aligned && align >= 16;
    return aligned && c->n_batch == 1;
}

static bool takes_vector(const lt_desc *d, int m, int n, int k)
{
    return d->epilogue == LT_EPILOGUE_NONE || (m > 1 && n > 1 && k > 1);
}

/* Stores the promises in the algorithm, so that the product can check them. */
static int cublasLtMatmulAlgoGetHeuristic(lt_handle_t, lt_desc_t d, lt_layout_t a, lt_layout_t b,
                                          lt_layout_t c, lt_layout_t, lt_pref_t pref, int n_wanted,
                                          lt_heuristic *results, int *n_found)
{
    int m, n, k;
    *n_found = 0;
    heuristics.n++;
    if (n_wanted < 1 || !shape_of(d, a, b, c, &m, &n, &k)) return LT_NOT_SUPPORTED;
    if (!takes_vector(d, m, n, k)) return INVALID;
    *results = lt_heuristic{};
    if (d->epilogue != LT_EPILOGUE_NONE && !has_vector(a, b, c, pref)) {
        if (a->type == LT_F32) return LT_NOT_SUPPORTED;
        results->status = LT_NOT_SUPPORTED;
        *n_found = 1;
        return LT_OK;
    }
    results->algo.data[0] = pref->n_workspace;
    for (int i = 0; i < 4; i++) results->algo.data[1 + i] = pref->align[i];
    results->algo.data[5] = (uint64_t)m, results->algo.data[6] = (uint64_t)n;
    results->algo.data[7] = (uint64_t)k;
    results->n_workspace = pref->n_workspace;
    *n_found = 1;
    return LT_OK;
}

static bool algorithm_takes(const lt_algo *algo, int type, int m, int n, int k)
{
    uint64_t most_n = algo->data[6], most_k = algo->data[7];
    bool parity = type == LT_F32 || type == LT_F64 || k % 2 == (int)(most_k % 2);
    return algo->data[5] == (uint64_t)m && (uint64_t)n <= most_n && (uint64_t)k <= most_k && parity;
}

static int cublasLtMatmulAlgoCheck(lt_handle_t, lt_desc_t d, lt_layout_t a, lt_layout_t b,
                                   lt_layout_t c, lt_layout_t, const lt_algo *algo,
                                   lt_heuristic *result)
{
    int m, n, k;
    if (!shape_of(d, a, b, c, &m, &n, &k)) return INVALID;
    if (!algorithm_takes(algo, a->type, m, n, k)) return LT_NOT_SUPPORTED;
    *result = lt_heuristic{};
    result->algo = *algo, result->n_workspace = algo->data[0];
    return LT_OK;
}

static float value_of(int type, const void *p, int64_t i)
{
    if (type == LT_F32) return ((const float *)p)[i];
    uint16_t bits = ((const uint16_t *)p)[i];
    return type == LT_BF16 ? cudasim_bf16_value(bits) : cudasim_half_value(bits);
}

static void store(int type, void *p, int64_t i, float value)
{
    if (type == LT_F32)
        ((float *)p)[i] = value;
    else
        ((uint16_t *)p)[i] = type == LT_BF16 ? cudasim_bf16_bits(value) : cudasim_half_bits(value);
}

static std::vector<float> widened(const lt_layout *l, const void *p, int64_t at)
{
    std::vector<float> wide((size_t)(l->rows * l->cols));
    for (uint64_t j = 0; j < l->cols; j++)
        for (uint64_t i = 0; i < l->rows; i++)
            wide[j * l->rows + i] = value_of(l->type, p, at + (int64_t)(j * (uint64_t)l->ld + i));
    return wide;
}

/* Where the sums over k are cut in two, which are added up at last. */
static int cut_of(const lt_algo *algo, int k)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (int i = 1; i < 8; i++) hash = (hash ^ algo->data[i]) * 0x100000001b3u;
    return is_order_the_plans() && k > 1 ? 1 + (int)(hash % (uint64_t)(k - 1)) : k;
}

static void multiply_f32(const lt_desc *d, int cut, float alpha, const void *a, const lt_layout *la,
                         const void *b, const lt_layout *lb, float beta, void *c,
                         const lt_layout *lc, int64_t batch, int m, int n, int k)
{
    std::vector<float> wide_a = widened(la, a, batch * la->stride);
    std::vector<float> wide_b = widened(lb, b, batch * lb->stride);
    std::vector<float> sum((size_t)m * (size_t)n);
    for (int from = 0, to = cut; from < k; from = to, to = k)
        cblas_sgemm(CblasColMajor, d->trans_a ? CblasTrans : CblasNoTrans,
                    d->trans_b ? CblasTrans : CblasNoTrans, m, n, to - from, alpha,
                    wide_a.data() + from * (d->trans_a ? 1 : (int64_t)la->rows), (int)la->rows,
                    wide_b.data() + from * (d->trans_b ? (int64_t)lb->rows : 1), (int)lb->rows,
                    from ? 1 : 0, sum.data(), m);
    for (int j = 0; j < n; j++)
        for (int i = 0; i < m; i++) {
            int64_t at = batch * lc->stride + j * lc->ld + i;
            float value = sum[(size_t)j * (size_t)m + (size_t)i];
            if (beta != 0) value += beta * value_of(lc->type, c, at);
            if (d->epilogue == LT_EPILOGUE_BIAS) value += value_of(lc->type, d->bias, i);
            store(lc->type, c, at, value);
        }
    if (d->epilogue != LT_EPILOGUE_SUMS_B) return;
    for (int j = 0; j < n; j++) {
        float total = 0;
        for (int i = 0; i < k; i++)
            total += wide_b[d->trans_b ? (size_t)i * lb->rows + (size_t)j
                                       : (size_t)j * lb->rows + (size_t)i];
        store(lc->type, const_cast<void *>(d->bias), j, total);
    }
}

/* One product, with the values that it was called with. */
struct product {
    lt_desc d;
    lt_layout a, b, c;
    double alpha, beta;
    const void *at_a, *at_b;
    void *at_c, *workspace;
    size_t n_workspace;
    int m, n, k, cut;
};

static void note(const product &p)
{
    const lt_layout *layouts[] = {&p.a, &p.b, &p.c};
    cudasim_launch n = {};
    n.name = "product";
    n.n_batch = p.c.n_batch;
    for (int i = 0; i < 3; i++) {
        n.rows[i] = (int64_t)layouts[i]->rows, n.columns[i] = (int64_t)layouts[i]->cols;
        n.ld[i] = layouts[i]->ld, n.stride[i] = layouts[i]->stride;
    }
    cudasim::sim.recorded.push_back(n);
}

static void multiply_f64(const product &p, int64_t batch)
{
    const double *a = (const double *)p.at_a + batch * p.a.stride;
    const double *b = (const double *)p.at_b + batch * p.b.stride;
    for (int from = 0, to = p.cut; from < p.k; from = to, to = p.k)
        cblas_dgemm(CblasColMajor, p.d.trans_a ? CblasTrans : CblasNoTrans,
                    p.d.trans_b ? CblasTrans : CblasNoTrans, p.m, p.n, to - from, p.alpha,
                    a + from * (p.d.trans_a ? 1 : p.a.ld), (int)p.a.ld,
                    b + from * (p.d.trans_b ? p.b.ld : 1), (int)p.b.ld, from ? 1 : p.beta,
                    (double *)p.at_c + batch * p.c.stride, (int)p.c.ld);
}

static cudaError_t multiply(const product &p)
{
    if (cudasim::sim.layout_only) {
        note(p);
        return cudaSuccess;
    }
    cudasim::access open;
    memset(p.workspace, 0xff,
           p.n_workspace < 4096 ? p.n_workspace : 4096); /* the product may use it */
    for (int64_t batch = 0; batch < p.c.n_batch; batch++) {
        if (p.c.type == LT_F64)
            multiply_f64(p, batch);
        else
            multiply_f32(&p.d, p.cut, (float)p.alpha, p.at_a, &p.a, p.at_b, &p.b, (float)p.beta,
                         p.at_c, &p.c, batch, p.m, p.n, p.k);
    }
    return cudaSuccess;
}

static int cublasLtMatmul(lt_handle_t, lt_desc_t d, const void *alpha, const void *a,
                          lt_layout_t la, const void *b, lt_layout_t lb, const void *beta,
                          const void *c, lt_layout_t lc, void *out, lt_layout_t,
                          const lt_algo *algo, void *workspace, size_t n_workspace,
                          cudaStream_t stream)
{
    int m, n, k;
    if (!shape_of(d, la, lb, lc, &m, &n, &k) || c != out) return INVALID;
    if (!takes_vector(d, m, n, k)) return INVALID;
    if (d->epilogue != LT_EPILOGUE_NONE && (uintptr_t)d->bias % 16) return INVALID;
    const void *at[] = {a, b, c, out};
    for (int i = 0; i < 4; i++)
        if (algo->data[1 + i] && (uintptr_t)at[i] % algo->data[1 + i]) return INVALID;
    if (n_workspace < algo->data[0] || (n_workspace && !workspace)) return INVALID;
    if ((uintptr_t)workspace % WORKSPACE_ALIGN) return INVALID;
    if (!algorithm_takes(algo, la->type, m, n, k)) return LT_NOT_SUPPORTED;
    bool f64 = lc->type == LT_F64;
    product p = {*d,
                 *la,
                 *lb,
                 *lc,
                 f64 ? *(const double *)alpha : *(const float *)alpha,
                 f64 ? *(const double *)beta : *(const float *)beta,
                 a,
                 b,
                 out,
                 workspace,
                 n_workspace,
                 m,
                 n,
                 k,
                 cut_of(algo, k)};
    products_with[d->epilogue == LT_EPILOGUE_SUMS_B]++;
    if (d->epilogue == LT_EPILOGUE_SUMS_B) cudasim::pass_time(sums_ms);
    cudaError_t status = cudasim::submit(stream, [p] { return multiply(p); });
    return status == cudaSuccess ? (int)LT_OK : (int)INVALID;
}

void *cudasim_cublaslt(const char *name)
{
#define FOUND(member, function, parameters)                                                        \
    if (!strcmp(name, #function)) return reinterpret_cast<void *>(function);
    LT_FUNCTIONS(FOUND)
#undef FOUND
    return nullptr;
}
