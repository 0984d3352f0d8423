/* Random kernels: every element uses the draw that the contract names. */
#include "views.h"
#include "base/philox.h"

#define SEED   0x0123456789abcdefu
#define OFFSET 0xfffffffeu /* the counter exceeds 32 bits */

static uint32_t draw(int64_t i) { return mti_philox(SEED, OFFSET + (uint64_t)(i / 4)).v[i % 4]; }

static void uniform_takes_the_lane_of_its_element(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 9; s++)
            for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++) {
                mti_view y =
                    mtt_view(mtt_floats[t], 3, (const int64_t[]){3, 5, mtt_sizes[s]}, placing);
                mtt_did(be->uniform(ctx, -2, 3, SEED, OFFSET, &y));
                for (int64_t i = 0; i < mti_view_count(&y); i++) {
                    double unit = (double)(draw(i) >> 8) / (1 << 24);
                    mtt_close(mtt_get(&y, i), -2 + 5 * unit, 2 * mtt_epsilon(y.dtype), "uniform",
                              i);
                    assert_true(mtt_get(&y, i) >= -2 && mtt_get(&y, i) < 3);
                }
                mtt_drop(&y);
            }
    be->close(ctx);
}

static void uniform_never_rounds_up_to_its_end(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    const double ends[][2] = {{0, 1}, {-1, 0}, {-4, -1}, {100, 101}, {1, 1}};
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < 5; k++) {
            mti_view y = mtt_dense(mtt_floats[t], 100000);
            mtt_did(be->uniform(ctx, ends[k][0], ends[k][1], 1, 0, &y));
            for (int64_t i = 0; i < 100000; i++) {
                double v = mtt_get(&y, i);
                assert_true(v >= ends[k][0] && (v < ends[k][1] || ends[k][0] == ends[k][1]));
            }
            mtt_drop(&y);
        }
    be->close(ctx);
}

static void normal_is_box_muller_on_pairs_of_lanes(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 9; s++)
            for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++) {
                mti_view y =
                    mtt_view(mtt_floats[t], 3, (const int64_t[]){3, 5, mtt_sizes[s]}, placing);
                mtt_did(be->normal(ctx, 1, 0.5, SEED, OFFSET, &y));
                for (int64_t i = 0; i < mti_view_count(&y); i++) {
                    double u = 1 - (double)(draw(i & ~1) >> 8) / (1 << 24);
                    double angle = 2 * acos(-1.0) * (double)(draw(i | 1) >> 8) / (1 << 24);
                    double z = sqrt(-2 * log(u)) * (i & 1 ? sin(angle) : cos(angle));
                    double eps = t == 1 ? 0x1p-23 : mtt_epsilon(y.dtype);
                    mtt_close(mtt_get(&y, i), 1 + 0.5 * z, 8 * eps, "normal", i);
                }
                mtt_drop(&y);
            }
    be->close(ctx);
}

static void normal_has_the_moments_of_a_normal_distribution(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    int64_t n = 1000000;
    mti_view y = mtt_dense(MT_F32, n);
    mtt_did(be->normal(ctx, 0, 1, 42, 0, &y));
    double m1 = 0, m2 = 0, m3 = 0, m4 = 0;
    for (int64_t i = 0; i < n; i++) {
        double z = mtt_get(&y, i);
        m1 += z, m2 += z * z, m3 += z * z * z, m4 += z * z * z * z;
    }
    /* five standard errors: sqrt(Var / n) with Var = 1, 2, 15, 96 */
    assert_true(fabs(m1 / (double)n) < 5 * sqrt(1.0 / (double)n));
    assert_true(fabs(m2 / (double)n - 1) < 5 * sqrt(2.0 / (double)n));
    assert_true(fabs(m3 / (double)n) < 5 * sqrt(15.0 / (double)n));
    assert_true(fabs(m4 / (double)n - 3) < 5 * sqrt(96.0 / (double)n));
    mtt_drop(&y);
    be->close(ctx);
}

static void check_dropout(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, int64_t n,
                          mtt_placing placing, double p)
{
    const int64_t shape[3] = {3, 5, n};
    mti_view x = mtt_view(dtype, 3, shape, placing), y = mtt_view(dtype, 3, shape, placing);
    mti_view mask = mtt_dense(MT_BOOL, 3, 5, n), dx = mtt_view(dtype, 3, shape, placing);
    mtt_fill(&x, 9, -1, 1);
    mtt_did(be->dropout(ctx, p, SEED, OFFSET, &x, &y, &mask));
    mtt_did(be->dropout_backward(ctx, p, &mask, &x, &dx));
    for (int64_t i = 0; i < 15 * n; i++) {
        bool keep = (double)(draw(i) >> 8) / (1 << 24) >= p;
        assert_true(mtt_get(&mask, i) == keep);
        mtt_close(mtt_get(&y, i), keep ? mtt_get(&x, i) / (1 - p) : 0, mtt_epsilon(dtype),
                  "dropout", i);
    }
    mtt_same(&dx, &y, "dropout backward");
    mtt_did(be->dropout(ctx, p, SEED, OFFSET, &x, &x, NULL));
    mtt_same(&x, &y, "dropout in place without a mask");
    mtt_drop(&x), mtt_drop(&y), mtt_drop(&mask), mtt_drop(&dx);
}

static void dropout_keeps_the_elements_whose_draw_is_at_least_p(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    const double p[] = {0.0, 0.1, 0.5, 0.9, 1.0};
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 9; s++)
            for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
                for (int k = 0; k < 5; k++)
                    check_dropout(be, ctx, mtt_floats[t], mtt_sizes[s], placing, p[k]);
    be->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(uniform_takes_the_lane_of_its_element),
        cmocka_unit_test(uniform_never_rounds_up_to_its_end),
        cmocka_unit_test(normal_is_box_muller_on_pairs_of_lanes),
        cmocka_unit_test(normal_has_the_moments_of_a_normal_distribution),
        cmocka_unit_test(dropout_keeps_the_elements_whose_draw_is_at_least_p),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
