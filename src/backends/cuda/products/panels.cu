/* panels.cu: large products of 16 bits with a size that is no multiple of 8, or with columns that
 * begin at no multiple of 16 bytes, as those of logits over 50,257 tokens. cuBLASLt has kernels of
 * an older generation for them: 95 to 152 TFLOP/s on an H200, where others reach 500 to 800
 * (docs/results/gpu-h200-products.txt). So what is left of a size becomes a product of its own, and
 * the matrix is copied to aligned columns, or from them, a panel at a time. Copies and sums are in
 * the larger part of the workspace: no byte more is allocated. PyTorch leaves the product slow
 * (eager) or pads the matrix (torch.compile). */
#include <string.h>
#include "backends/cuda/kernels.h"
#include "backends/cuda/products/panels.h"

#define ALIGN     8   /* elements of 16 bits in 16 bytes */
#define LEAST_USE 256 /* multiplications with each element that is copied */
#ifdef MTI_CUDASIM    /* so that tests reach it */
#define LEAST_WORK  ((int64_t)1 << 20)
#define LEAST_WIDTH 8
#else
#define LEAST_WORK  ((int64_t)1 << 33) /* multiplications: half a millisecond is gained */
#define LEAST_WIDTH 128
#endif

static int64_t below(int64_t n) { return n / ALIGN * ALIGN; }
static int64_t above(int64_t n) { return below(n + ALIGN - 1); }

/* ---- parts of a product ---- */

/* Element (i, j) of op(s). */
static const void *element(const mti_lt_matrix *s, int64_t i, int64_t j)
{
    return static_cast<const uint16_t *>(s->data) + (s->trans ? j + i * s->ld : i + j * s->ld);
}

static void set_rows(mti_lt_matrix *s, int64_t n) { *(s->trans ? &s->cols : &s->rows) = n; }
static void set_cols(mti_lt_matrix *s, int64_t n) { *(s->trans ? &s->rows : &s->cols) = n; }

static void take_m(mti_lt_product *g, int64_t from, int64_t m)
{
    g->m = m;
    g->a.data = element(&g->a, from, 0), g->c.data = element(&g->c, from, 0);
    set_rows(&g->a, m), set_rows(&g->c, m);
}

static void take_n(mti_lt_product *g, int64_t from, int64_t n)
{
    g->n = n;
    g->b.data = element(&g->b, 0, from), g->c.data = element(&g->c, 0, from);
    set_cols(&g->b, n), set_cols(&g->c, n);
}

static void take_k(mti_lt_product *g, int64_t from, int64_t k)
{
    g->k = k;
    g->a.data = element(&g->a, 0, from), g->b.data = element(&g->b, from, 0);
    set_cols(&g->a, k), set_rows(&g->b, k);
}

static bool multiply(mti_ctx *ctx, const mti_lt_product *g, double alpha, double beta,
                     void *scratch)
{
    mti_operands at = {g->a.data, g->b.data, const_cast<void *>(g->c.data)};
    return mti_multiply(ctx, g, &at, alpha, beta, scratch);
}

/* ---- which are divided ---- */

static bool is_aligned(const mti_lt_matrix *s)
{
    return s->ld % ALIGN == 0 && mti_plan_alignment(s->data) == MTI_PLAN_ALIGN;
}

/* Columns of c whose copies and sums n_bytes hold. */
static int64_t width_of(const mti_lt_product *g, const mti_panels *p, size_t n_bytes)
{
    int64_t copy = !p->of_c && g->b.trans ? g->k : p->ld; /* elements */
    int64_t each = (p->copied ? 2 * copy : 0) + (p->summed ? 4 * g->m : 0);
    int64_t width = each ? below((int64_t)n_bytes / each) : g->n;
    return width < g->n ? width : g->n;
}

/* Which of c and b is in the way, if one alone is: *p says what must be done about it. */
static bool find_odd(const mti_lt_product *g, mti_panels *p)
{
    bool b = is_aligned(&g->b), c = is_aligned(&g->c);
    bool m = g->m % ALIGN == 0, k = g->k % ALIGN == 0 || (g->b.trans && !g->a.trans);
    p->of_c = !c || !m;
    p->copied = !b || !c;
    p->summed = !k;
    return is_aligned(&g->a) && (p->of_c ? b && k : !b || !k);
}

mti_panels mti_panels_of(const mti_ctx *ctx, const mti_lt_product *g, double beta)
{
    mti_panels p = {};
    bool divided = mt_dtype_size(g->dtype) == 2 && g->c_dtype == g->dtype && !g->batch_rank &&
                   g->epilogue == LT_EPILOGUE_NONE && g->m * g->n >= LEAST_WORK / g->k &&
                   find_odd(g, &p) && below(p.of_c ? g->m : g->k) > 0;
    if (divided && p.copied)
        divided = (p.of_c ? g->k : g->m) >= LEAST_USE && (!p.of_c || beta == 0);
    if (!divided) return p;
    p.ld = above(p.of_c ? g->m : g->k);
    p.n_workspace = ctx->n_workspace / 4 / 256 * 256;
    p.width = width_of(g, &p, ctx->n_workspace - p.n_workspace);
    if (p.width < LEAST_WIDTH && p.width < g->n) p.width = 0;
    bool across = !p.of_c && g->b.trans; /* the copy has the panel's elements of k columns */
    if (across) p.ld = above(p.width);
    if (p.copied) p.n_copy = 2 * (size_t)(p.ld * (across ? g->k : p.width));
    return p;
}

/* ---- and how ---- */

static mti_view view_of(mt_dtype dtype, const mti_lt_matrix *s)
{
    mti_view v = {};
    v.data = const_cast<void *>(s->data), v.dtype = dtype, v.rank = 2;
    v.shape[0] = s->cols, v.shape[1] = s->rows;
    v.stride[0] = s->ld, v.stride[1] = 1;
    return v;
}

/* b is aligned to the end of its last whole vector: the rest of k is added to the sums. */
static bool multiply_summed(mti_ctx *ctx, const mti_lt_product *g, double alpha, double beta,
                            void *scratch, void *sums)
{
    mti_lt_product whole = *g, rest = *g;
    int64_t k = below(g->k);
    whole.c.data = sums, whole.c.ld = g->m, whole.c_dtype = MT_F32;
    rest = whole;
    take_k(&whole, 0, k), take_k(&rest, k, g->k - k);
    mti_view narrow = view_of(g->dtype, &g->c), wide = view_of(MT_F32, &whole.c);
    return (beta == 0 || mti_cuda_copy(ctx, &narrow, &wide)) &&
           multiply(ctx, &whole, alpha, beta, scratch) && multiply(ctx, &rest, alpha, 1, scratch) &&
           mti_cuda_copy(ctx, &wide, &narrow);
}

static bool multiply_panel(mti_ctx *ctx, const mti_lt_product *g, const mti_panels *p, double alpha,
                           double beta, char *scratch)
{
    mti_lt_product part = *g;
    mti_lt_matrix *moved = p->of_c ? &part.c : &part.b;
    mti_view odd = view_of(g->dtype, moved);
    if (p->copied) moved->data = scratch + p->n_workspace, moved->ld = p->ld;
    mti_view even = view_of(g->dtype, moved);
    bool before = p->copied && !p->of_c, after = p->copied && p->of_c;
    return (!before || mti_cuda_copy(ctx, &odd, &even)) &&
           (p->summed ? multiply_summed(ctx, &part, alpha, beta, scratch,
                                        scratch + p->n_workspace + p->n_copy)
                      : multiply(ctx, &part, alpha, beta, scratch)) &&
           (!after || mti_cuda_copy(ctx, &even, &odd));
}

bool mti_multiply_panels(mti_ctx *ctx, const mti_lt_product *g, const mti_panels *p, double alpha,
                         double beta, void *scratch)
{
    mti_lt_product whole = *g, rest = *g;
    whole.n_workspace = p->n_workspace;
    int64_t m = p->of_c ? below(g->m) : g->m;
    take_m(&whole, 0, m);
    for (int64_t at = 0; at < g->n; at += p->width) {
        mti_lt_product part = whole;
        int64_t left = g->n - at;
        take_n(&part, at, left < p->width ? left : p->width);
        if (!multiply_panel(ctx, &part, p, alpha, beta, static_cast<char *>(scratch))) return false;
    }
    take_m(&rest, m, g->m - m);
    return !rest.m || multiply(ctx, &rest, alpha, beta, scratch);
}
