/* Optimizer kernels, several tensors at once, against the formulas in f64. */
#include "views.h"

#define N_ITEMS 6

static const int64_t item_sizes[N_ITEMS] = {1, 0, 1000, 17, 40000, 3};

/* p, g, m, v of every item; m and v in the wider type. */
typedef struct tensors {
    mti_view p[N_ITEMS], g[N_ITEMS], m[N_ITEMS], v[N_ITEMS];
    mti_opt_item items[N_ITEMS];
} tensors;

static void make(tensors *t, mt_dtype dtype)
{
    mt_dtype wide = dtype == MT_F64 ? MT_F64 : MT_F32;
    for (int k = 0; k < N_ITEMS; k++) {
        t->p[k] = mtt_dense(dtype, item_sizes[k]), t->g[k] = mtt_dense(dtype, item_sizes[k]);
        t->m[k] = mtt_dense(wide, item_sizes[k]), t->v[k] = mtt_dense(wide, item_sizes[k]);
        mtt_fill(&t->p[k], 10 + (uint64_t)k, -1, 1);
        mtt_fill(&t->g[k], 20 + (uint64_t)k, -1, 1);
        mtt_fill(&t->m[k], 30 + (uint64_t)k, -1, 1);
        mtt_fill(&t->v[k], 40 + (uint64_t)k, 0.01, 1);
        t->items[k] = (mti_opt_item){.n = item_sizes[k],
                                     .dtype = dtype,
                                     .p = t->p[k].data,
                                     .g = t->g[k].data,
                                     .m = t->m[k].data,
                                     .v = t->v[k].data,
                                     .weight_decay = 0.1 * k};
    }
}

static void drop(tensors *t)
{
    for (int k = 0; k < N_ITEMS; k++)
        mtt_drop(&t->p[k]), mtt_drop(&t->g[k]), mtt_drop(&t->m[k]), mtt_drop(&t->v[k]);
}

static double wide_epsilon(mt_dtype dtype) { return dtype == MT_F64 ? 0x1p-52 : 0x1p-23; }

static void adamw_takes_the_step_of_its_paper(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_opt_params o = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 3};
    for (int d = 0; d < 4; d++) {
        tensors was, t;
        make(&was, mtt_floats[d]), make(&t, mtt_floats[d]);
        assert_true(be->adamw(ctx, &o, N_ITEMS, t.items));
        double eps = 4 * wide_epsilon(mtt_floats[d]);
        for (int k = 0; k < N_ITEMS; k++)
            for (int64_t i = 0; i < item_sizes[k]; i++) {
                double g = mtt_get(&was.g[k], i), p = mtt_get(&was.p[k], i) * (1 - 0.01 * 0.1 * k);
                double m = 0.9 * mtt_get(&was.m[k], i) + 0.1 * g;
                double v = 0.95 * mtt_get(&was.v[k], i) + 0.05 * g * g;
                p -= 0.01 / (1 - pow(0.9, 3)) * m / (sqrt(v) / sqrt(1 - pow(0.95, 3)) + 1e-8);
                mtt_close(mtt_get(&t.m[k], i), m, eps, "m", i);
                mtt_close(mtt_get(&t.v[k], i), v, eps, "v", i);
                mtt_close(mtt_get(&t.p[k], i), p, eps + mtt_epsilon(mtt_floats[d]) / 2, "p", i);
            }
        drop(&was), drop(&t);
    }
    be->close(ctx);
}

/* The step changes the master as it would an f32 parameter, with gradients scaled first; p is the
 * rounded master. */
static void a_master_is_stepped_instead_of_its_parameter(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int way = 0; way < 4; way++) {
        mt_dtype dtype = way % 2 ? MT_BF16 : MT_F16;
        tensors wide, narrow;
        make(&wide, MT_F32), make(&narrow, dtype);
        mti_view master[N_ITEMS];
        for (int k = 0; k < N_ITEMS; k++) { /* the same values, but gradients times 4 */
            master[k] = mtt_dense(MT_F32, item_sizes[k]);
            for (int64_t i = 0; i < item_sizes[k]; i++) {
                mtt_set(&master[k], i, mtt_get(&wide.p[k], i));
                double g = mtt_get(&narrow.g[k], i);
                mtt_set(&wide.g[k], i, g / 4);
            }
            narrow.items[k].master = master[k].data;
        }
        mti_opt_params o = {
            .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .momentum = 0.9, .step = 3};
        bool (*step)(mti_ctx *, const mti_opt_params *, int, const mti_opt_item *) =
            way < 2 ? be->adamw : be->sgd;
        assert_true(step(ctx, &o, N_ITEMS, wide.items));
        o.grad_scale = 0.25;
        assert_true(step(ctx, &o, N_ITEMS, narrow.items));
        for (int k = 0; k < N_ITEMS; k++) {
            mtt_same(&master[k], &wide.p[k], "master");
            mtt_same(&narrow.m[k], &wide.m[k], "m");
            mti_view rounded = mtt_dense(dtype, item_sizes[k]);
            assert_true(be->copy(ctx, &master[k], &rounded));
            mtt_same(&narrow.p[k], &rounded, "p");
            mtt_drop(&rounded), mtt_drop(&master[k]);
        }
        drop(&wide), drop(&narrow);
    }
    be->close(ctx);
}

/* The step is that of moments in f32, which are rounded after it. */
static void narrow_moments_are_rounded_after_the_step(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_opt_params o = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = 3};
    for (int way = 0; way < 4; way++) { /* one launch has wide and narrow moments side by side */
        mt_dtype dtype = way % 2 ? MT_BF16 : MT_F16;
        tensors wide, narrow;
        make(&wide, dtype), make(&narrow, dtype);
        mti_view m[N_ITEMS], v[N_ITEMS], master[2][N_ITEMS];
        for (int k = 0; k < N_ITEMS; k++) {
            bool is_narrow = way < 2 || k % 2;
            m[k] = mtt_dense(is_narrow ? dtype : MT_F32, item_sizes[k]);
            v[k] = mtt_dense(is_narrow ? dtype : MT_F32, item_sizes[k]);
            assert_true(be->copy(ctx, &wide.m[k], &m[k]) && be->copy(ctx, &wide.v[k], &v[k]));
            assert_true(be->copy(ctx, &m[k], &wide.m[k]) && be->copy(ctx, &v[k], &wide.v[k]));
            narrow.items[k].m = m[k].data, narrow.items[k].v = v[k].data;
            narrow.items[k].narrow = is_narrow;
            for (int i = 0; i < 2; i++) {
                master[i][k] = mtt_dense(MT_F32, item_sizes[k]);
                assert_true(be->copy(ctx, &wide.p[k], &master[i][k]));
            }
            if (k % 3 == 0)
                wide.items[k].master = master[0][k].data,
                narrow.items[k].master = master[1][k].data;
        }
        assert_true(be->adamw(ctx, &o, N_ITEMS, wide.items));
        assert_true(be->adamw(ctx, &o, N_ITEMS, narrow.items));
        for (int k = 0; k < N_ITEMS; k++) {
            mti_view rounded = mtt_dense(m[k].dtype, item_sizes[k]);
            mtt_same(&narrow.p[k], &wide.p[k], "p");
            mtt_same(&master[1][k], &master[0][k], "master");
            assert_true(be->copy(ctx, &wide.m[k], &rounded));
            mtt_same(&m[k], &rounded, "m");
            assert_true(be->copy(ctx, &wide.v[k], &rounded));
            mtt_same(&v[k], &rounded, "v");
            mtt_drop(&rounded), mtt_drop(&m[k]), mtt_drop(&v[k]);
            mtt_drop(&master[0][k]), mtt_drop(&master[1][k]);
        }
        drop(&wide), drop(&narrow);
    }
    be->close(ctx);
}

static void check_sgd(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, double momentum,
                      int64_t step)
{
    tensors was, t;
    make(&was, dtype), make(&t, dtype);
    mti_opt_params o = {.lr = 0.1, .momentum = momentum, .step = step};
    for (int k = 0; k < N_ITEMS; k++) {
        if (momentum == 0) t.items[k].m = NULL;
        if (step == 1 && item_sizes[k] && momentum != 0) mtt_set(&t.m[k], 0, (double)NAN);
    }
    assert_true(be->sgd(ctx, &o, N_ITEMS, t.items));
    for (int k = 0; k < N_ITEMS; k++)
        for (int64_t i = 0; i < item_sizes[k]; i++) {
            double p = mtt_get(&was.p[k], i), m = mtt_get(&was.g[k], i) + 0.1 * k * p;
            if (momentum != 0 && step > 1) m += momentum * mtt_get(&was.m[k], i);
            if (momentum != 0) mtt_close(mtt_get(&t.m[k], i), m, 4 * wide_epsilon(dtype), "m", i);
            mtt_close(mtt_get(&t.p[k], i), p - 0.1 * m, mtt_epsilon(dtype), "p", i);
        }
    drop(&was), drop(&t);
}

static void sgd_takes_plain_and_momentum_steps(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int d = 0; d < 4; d++) {
        check_sgd(be, ctx, mtt_floats[d], 0, 1);
        check_sgd(be, ctx, mtt_floats[d], 0.9, 1);
        check_sgd(be, ctx, mtt_floats[d], 0.9, 2);
    }
    be->close(ctx);
}

static void clipping_measures_and_scales_all_gradients(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int d = 0; d < 4; d++) {
        tensors was, t;
        make(&was, mtt_floats[d]), make(&t, mtt_floats[d]);
        double want = 0, got;
        for (int k = 0; k < N_ITEMS; k++)
            for (int64_t i = 0; i < item_sizes[k]; i++) want += pow(mtt_get(&t.g[k], i), 2);
        assert_true(be->sum_squares(ctx, N_ITEMS, t.items, &got));
        mtt_close(got, want, 1e-12, "sum of squares", 0);
        assert_true(be->scale_all(ctx, 0.3, N_ITEMS, t.items));
        for (int k = 0; k < N_ITEMS; k++)
            for (int64_t i = 0; i < item_sizes[k]; i++)
                mtt_close(mtt_get(&t.p[k], i), 0.3 * mtt_get(&was.p[k], i),
                          mtt_epsilon(mtt_floats[d]), "scaled", i);
        drop(&was), drop(&t);
    }
    double none = 1;
    assert_true(be->sum_squares(ctx, 0, NULL, &none));
    assert_true(none == 0);
    be->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_takes_the_step_of_its_paper),
        cmocka_unit_test(narrow_moments_are_rounded_after_the_step),
        cmocka_unit_test(a_master_is_stepped_instead_of_its_parameter),
        cmocka_unit_test(sgd_takes_plain_and_momentum_steps),
        cmocka_unit_test(clipping_measures_and_scales_all_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
