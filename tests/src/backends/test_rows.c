/* Softmax, log-softmax and layer norm against their definitions in f64. */
#include "views.h"

#define LONGEST 1100

static const int64_t lengths[] = {1, 2, 3, 7, 17, 63, 64, 65, 511, 512, 513, 1000, LONGEST};
#define N_LENGTHS (int)(sizeof lengths / sizeof *lengths)

/* There may be gaps between rows, but each row is contiguous. */
static mti_view rows(mt_dtype dtype, int64_t a, int64_t b, int64_t n, bool padded)
{
    return mtt_view(dtype, 3, (const int64_t[]){a, b, n},
                    padded ? MTT_PLACED_PADDED : MTT_PLACED_DENSE);
}

/* The reference itself rounds in f64, and so do sums of a block in f32. */
static double tolerance(mt_dtype dtype)
{
    return (dtype == MT_F64 ? 32 : dtype == MT_F32 ? 4 : 1) * mtt_epsilon(dtype);
}

static void exact_softmax(const mti_view *x, int64_t row, int64_t n, double scale, double *p)
{
    double top = -(double)INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) top = fmax(top, scale * mtt_get(x, row + j));
    for (int64_t j = 0; j < n; j++) sum += p[j] = exp(scale * mtt_get(x, row + j) - top);
    for (int64_t j = 0; j < n; j++) p[j] /= sum;
}

static void check_softmax(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, int64_t s, int64_t n,
                          bool causal, bool padded)
{
    double p[LONGEST], scale = 0.3, eps = tolerance(dtype), dot;
    mti_view x = rows(dtype, 2, s, n, padded), y = rows(dtype, 2, s, n, padded);
    mti_view dy = rows(dtype, 2, s, n, !padded), dx = rows(dtype, 2, s, n, padded);
    mtt_fill(&x, 1, -20, 20);
    mtt_fill(&dy, 2, -1, 1);
    mtt_did(be->softmax(ctx, scale, causal, &x, &y));
    mtt_did(be->softmax_backward(ctx, scale, &y, &dy, &dx));
    for (int64_t r = 0; r < 2 * s; r++) {
        int64_t seen = causal ? r % s + 1 + n - s : n;
        seen = seen < 0 ? 0 : seen;
        memset(p, 0, sizeof p);
        exact_softmax(&x, r * n, seen, scale, p);
        dot = 0;
        for (int64_t j = 0; j < n; j++) {
            mtt_close(mtt_get(&y, r * n + j), p[j], 4 * eps, "softmax", r * n + j);
            if (j >= seen) assert_true(mtt_get(&y, r * n + j) == 0);
            dot += mtt_get(&y, r * n + j) * mtt_get(&dy, r * n + j);
        }
        for (int64_t j = 0; j < n; j++)
            mtt_close(mtt_get(&dx, r * n + j),
                      scale * mtt_get(&y, r * n + j) * (mtt_get(&dy, r * n + j) - dot), 4 * eps,
                      "softmax backward", r * n + j);
    }
    mtt_did(be->softmax_backward(ctx, scale, &y, &dy, &dy));
    mtt_same(&dy, &dx, "softmax backward in place");
    mtt_did(be->softmax(ctx, scale, causal, &x, &x));
    mtt_same(&x, &y, "softmax in place");
    mtt_drop(&x), mtt_drop(&y), mtt_drop(&dy), mtt_drop(&dx);
}

static void softmax_matches_its_definition_and_its_gradient(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_LENGTHS; k++)
            for (int variant = 0; variant < 4; variant++)
                check_softmax(be, ctx, mtt_floats[t], 5, lengths[k], variant & 1, variant & 2);
    be->close(ctx);
}

static void check_log_softmax(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, int64_t n,
                              bool padded)
{
    double p[LONGEST], eps = tolerance(dtype);
    mti_view x = rows(dtype, 2, 3, n, padded), y = rows(dtype, 2, 3, n, padded);
    mti_view dy = rows(dtype, 2, 3, n, !padded), dx = rows(dtype, 2, 3, n, padded);
    mtt_fill(&x, 1, -20, 20);
    mtt_fill(&dy, 2, -1, 1);
    mtt_did(be->log_softmax(ctx, &x, &y));
    mtt_did(be->log_softmax_backward(ctx, &y, &dy, &dx));
    for (int64_t r = 0; r < 6; r++) {
        exact_softmax(&x, r * n, n, 1, p);
        double sum = 0, size = 0;
        for (int64_t j = 0; j < n; j++) {
            mtt_close(mtt_get(&y, r * n + j), log(p[j]), 4 * eps, "log_softmax", r * n + j);
            sum += mtt_get(&dy, r * n + j);
            size += fabs(mtt_get(&dy, r * n + j));
        }
        for (int64_t j = 0; j < n; j++)
            mtt_close(mtt_get(&dx, r * n + j),
                      mtt_get(&dy, r * n + j) - exp(mtt_get(&y, r * n + j)) * sum,
                      eps * (2 + (dtype == MT_F32 ? 0.1 * size : 0)), "log_softmax backward", j);
    }
    mtt_did(be->log_softmax(ctx, &x, &x));
    mtt_same(&x, &y, "log_softmax in place");
    mtt_drop(&x), mtt_drop(&y), mtt_drop(&dy), mtt_drop(&dx);
}

static void log_softmax_matches_its_definition_and_its_gradient(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_LENGTHS; k++)
            for (int padded = 0; padded < 2; padded++)
                check_log_softmax(be, ctx, mtt_floats[t], lengths[k], padded);
    be->close(ctx);
}

static void softmax_of_huge_scores_does_not_overflow(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_view x = mtt_dense(MT_F32, 2, 3), y = mtt_dense(MT_F32, 2, 3);
    const double in[] = {1e30, 1e30, -1e30, 1, (double)NAN, 2};
    for (int i = 0; i < 6; i++) mtt_set(&x, i, in[i]);
    mtt_did(be->softmax(ctx, 1, false, &x, &y));
    assert_true(mtt_get(&y, 0) == 0.5 && mtt_get(&y, 1) == 0.5 && mtt_get(&y, 2) == 0);
    for (int i = 3; i < 6; i++) assert_true(isnan(mtt_get(&y, i)));
    mtt_drop(&x), mtt_drop(&y);
    be->close(ctx);
}

/* ---- layer norm ---- */

typedef struct norm_case {
    mti_view x, w, b, y, mean, rstd, dy, dx, dw, db;
    int64_t n_rows, n;
    bool has_w, has_b;
    double tolerance;
} norm_case;

static void check_norm_forward(const norm_case *c, double *mean, double *rstd)
{
    for (int64_t r = 0; r < c->n_rows; r++) {
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < c->n; j++) sum += mtt_get(&c->x, r * c->n + j);
        mean[r] = sum / (double)c->n;
        for (int64_t j = 0; j < c->n; j++)
            squares += pow(mtt_get(&c->x, r * c->n + j) - mean[r], 2);
        rstd[r] = 1 / sqrt(squares / (double)c->n + 1e-5);
        mtt_close(mtt_get(&c->mean, r), mean[r], c->tolerance, "mean", r);
        mtt_close(mtt_get(&c->rstd, r), rstd[r], c->tolerance, "rstd", r);
        for (int64_t j = 0; j < c->n; j++) {
            double want = (mtt_get(&c->x, r * c->n + j) - mean[r]) * rstd[r];
            if (c->has_w) want *= mtt_get(&c->w, j);
            if (c->has_b) want += mtt_get(&c->b, j);
            mtt_close(mtt_get(&c->y, r * c->n + j), want, c->tolerance, "layer_norm", r * c->n + j);
        }
    }
}

static void check_norm_backward(const norm_case *c, const double *mean, const double *rstd)
{
    double dw[LONGEST] = {0}, db[LONGEST] = {0};
    for (int64_t r = 0; r < c->n_rows; r++) {
        double sum_g = 0, sum_gh = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t j = 0; j < c->n; j++) {
                double h = (mtt_get(&c->x, r * c->n + j) - mean[r]) * rstd[r];
                double dy = mtt_get(&c->dy, r * c->n + j),
                       g = c->has_w ? dy * mtt_get(&c->w, j) : dy;
                if (pass == 0) {
                    sum_g += g, sum_gh += g * h;
                    dw[j] += dy * h, db[j] += dy;
                    continue;
                }
                double want = rstd[r] * (g - sum_g / (double)c->n - h * sum_gh / (double)c->n);
                mtt_close(mtt_get(&c->dx, r * c->n + j), want, c->tolerance * fmax(1, rstd[r]),
                          "dx", j);
            }
    }
    for (int64_t j = 0; j < c->n; j++) {
        mtt_close(mtt_get(&c->dw, j), dw[j], 4 * c->tolerance, "dw", j);
        mtt_close(mtt_get(&c->db, j), db[j], 4 * c->tolerance, "db", j);
    }
}

static void check_norm(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, int64_t n_rows,
                       int64_t n, int variant)
{
    mt_dtype wide = dtype == MT_F64 ? MT_F64 : MT_F32;
    norm_case c = {.n_rows = n_rows,
                   .n = n,
                   .has_w = variant & 1,
                   .has_b = variant & 2,
                   .tolerance = (dtype == MT_F32 ? 32 : 4) * tolerance(dtype)};
    c.x = rows(dtype, n_rows, 1, n, variant & 1), c.y = rows(dtype, n_rows, 1, n, variant & 1);
    c.dy = rows(dtype, n_rows, 1, n, variant & 2), c.dx = rows(dtype, n_rows, 1, n, variant & 1);
    c.w = mtt_dense(dtype, n), c.b = mtt_dense(dtype, n);
    c.dw = mtt_dense(dtype, n), c.db = mtt_dense(dtype, n);
    c.mean = mtt_dense(wide, n_rows), c.rstd = mtt_dense(wide, n_rows);
    mtt_fill(&c.x, 1, -1, 3), mtt_fill(&c.dy, 2, -1, 1);
    mtt_fill(&c.w, 3, 0.5, 2), mtt_fill(&c.b, 4, -1, 1);
    const mti_view *w = c.has_w ? &c.w : NULL;
    mtt_did(be->layer_norm(ctx, 1e-5, &c.x, w, c.has_b ? &c.b : NULL, &c.y, &c.mean, &c.rstd));
    double *mean = malloc((size_t)n_rows * sizeof *mean),
           *rstd = malloc((size_t)n_rows * sizeof *rstd);
    void *scratch = mtt_memory(be->layer_norm_backward_scratch(ctx, &c.x));
    assert_true(mean && rstd && scratch);
    check_norm_forward(&c, mean, rstd);
    mtt_did(be->layer_norm_backward(ctx, &c.dy, &c.x, w, &c.mean, &c.rstd, &c.dx, &c.dw, &c.db,
                                    scratch));
    if (n > 1) check_norm_backward(&c, mean, rstd);
    /* each result is the same if it is computed alone */
    mti_view dx = rows(dtype, n_rows, 1, n, variant & 1), db = mtt_dense(dtype, n);
    assert_true(
        be->layer_norm_backward(ctx, &c.dy, &c.x, w, &c.mean, &c.rstd, &dx, NULL, NULL, scratch));
    assert_true(
        be->layer_norm_backward(ctx, &c.dy, &c.x, w, &c.mean, &c.rstd, NULL, NULL, &db, scratch));
    mtt_same(&dx, &c.dx, "dx alone");
    mtt_same(&db, &c.db, "db alone");
    free(mean), free(rstd), mtt_memory_free(scratch);
    mti_view *all[] = {&c.x,  &c.y,  &c.dy,   &c.dx,   &c.w, &c.b,
                       &c.dw, &c.db, &c.mean, &c.rstd, &dx,  &db};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++) mtt_drop(all[k]);
}

static void layer_norm_matches_its_definition_and_its_gradients(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (int variant = 0; variant < 4; variant++) {
            for (int k = 0; k < N_LENGTHS; k++)
                check_norm(be, ctx, mtt_floats[t], 6, lengths[k], variant);
            check_norm(be, ctx, mtt_floats[t], 1100, 33, variant);
        }
    be->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_matches_its_definition_and_its_gradient),
        cmocka_unit_test(log_softmax_matches_its_definition_and_its_gradient),
        cmocka_unit_test(softmax_of_huge_scores_does_not_overflow),
        cmocka_unit_test(layer_norm_matches_its_definition_and_its_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
