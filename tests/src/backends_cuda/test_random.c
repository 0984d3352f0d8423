/* Random numbers on the device are those of the CPU; masks have the same bits. */
#include "twins.h"

#define SEED   0x123456789abcdefu
#define OFFSET 0xfffffffeu /* the counter exceeds 32 bits */

static double tolerance_of(mt_dtype dtype)
{
    return dtype == MT_BF16 || dtype == MT_F16 ? mtt_epsilon(dtype) : 4 * 0x1p-23;
}

static void check_numbers(const mtt_pair *p, mt_dtype dtype, const mtt_shape *shape,
                          mtt_placing placing, int64_t skip)
{
    mtt_twin y = mtt_twin_make(p, dtype, shape->rank, shape->at, placing, skip, 0, 1);
    mtt_ok(p->cpu->uniform(p->cpu_ctx, -0.5, 2, SEED, OFFSET, &y.host), "uniform");
    mtt_ok(p->dev->uniform(p->dev_ctx, -0.5, 2, SEED, OFFSET, &y.dev), "uniform");
    mtt_twin_check(p, &y, tolerance_of(dtype), "uniform");
    mtt_ok(p->cpu->normal(p->cpu_ctx, 0.25, 1.5, SEED, OFFSET, &y.host), "normal");
    mtt_ok(p->dev->normal(p->dev_ctx, 0.25, 1.5, SEED, OFFSET, &y.dev), "normal");
    mtt_twin_check(p, &y, 4 * tolerance_of(dtype), "normal");
    mtt_twin_drop(p, &y);
}

static void numbers_match_the_cpu_in_every_layout(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < mtt_n_shapes; s++)
            for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
                for (int64_t skip = 0; skip < 2; skip++)
                    check_numbers(p, mtt_floats[t], &mtt_shapes[s], placing, skip);
}

/* Rounding to 16 bits could reach the end of the interval, which the kernel must prevent. */
static void uniform_numbers_stay_below_the_end(void **state)
{
    mtt_pair *p = *state;
    const double ends[][2] = {{0, 1}, {-1, 0}, {-3, -1}, {1, 1.0078125}};
    const int64_t n = 20000;
    for (int t = 0; t < 4; t++)
        for (int e = 0; e < 4; e++) {
            mtt_twin y = mtt_twin_make(p, mtt_floats[t], 1, &n, MTT_PLACED_DENSE, 0, 0, 1);
            mtt_ok(p->dev->uniform(p->dev_ctx, ends[e][0], ends[e][1], SEED, 0, &y.dev), "uniform");
            mtt_ok(p->dev->download(p->dev_ctx, y.host.data, y.dev.data, y.n_block), "download");
            for (int64_t i = 0; i < n; i++)
                assert_true(mtt_get(&y.host, i) >= ends[e][0] && mtt_get(&y.host, i) < ends[e][1]);
            mtt_twin_drop(p, &y);
        }
}

static void check_dropout(const mtt_pair *p, mt_dtype dtype, const mtt_shape *shape,
                          mtt_placing placing, int64_t skip, double probability)
{
    mtt_twin x = mtt_twin_make(p, dtype, shape->rank, shape->at, placing, skip, -3, 3);
    mtt_twin y = mtt_twin_make(p, dtype, shape->rank, shape->at, MTT_PLACED_DENSE, skip, 0, 1);
    mtt_twin mask = mtt_twin_make(p, MT_BOOL, shape->rank, shape->at, MTT_PLACED_DENSE, skip, 0, 2);
    for (int masked = 0; masked < 2; masked++) {
        mtt_ok(p->cpu->dropout(p->cpu_ctx, probability, SEED, OFFSET, &x.host, &y.host,
                               masked ? &mask.host : NULL),
               "dropout");
        mtt_ok(p->dev->dropout(p->dev_ctx, probability, SEED, OFFSET, &x.dev, &y.dev,
                               masked ? &mask.dev : NULL),
               "dropout");
        mtt_twin_check(p, &y, 0, "dropout");
    }
    mtt_twin_check(p, &mask, 0, "mask");
    mtt_ok(p->cpu->dropout_backward(p->cpu_ctx, probability, &mask.host, &x.host, &y.host),
           "backward");
    mtt_ok(p->dev->dropout_backward(p->dev_ctx, probability, &mask.dev, &x.dev, &y.dev),
           "backward");
    mtt_twin_check(p, &y, 0, "dropout backward");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y), mtt_twin_drop(p, &mask);
}

static void dropout_makes_the_masks_of_the_cpu(void **state)
{
    mtt_pair *p = *state;
    const double probabilities[] = {0.1, 0, 0.5, 1.0 / 3};
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < mtt_n_shapes; s++)
            for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
                for (int64_t skip = 0; skip < 2; skip++)
                    check_dropout(p, mtt_floats[t], &mtt_shapes[s], placing, skip,
                                  probabilities[s % 4]);
}

/* A long tensor takes several launches; the index of elements continues from launch to launch. */
static void random_numbers_continue_from_launch_to_launch(void **state)
{
    mtt_pair *p = *state;
    const mtt_shape line = {1, {600003}}, rows = {2, {1201, 257}};
    check_numbers(p, MT_BF16, &line, MTT_PLACED_DENSE, 0);
    check_numbers(p, MT_F32, &rows, MTT_PLACED_PADDED, 0);
    check_dropout(p, MT_F32, &line, MTT_PLACED_DENSE, 0, 0.2);
    check_dropout(p, MT_F16, &rows, MTT_PLACED_REVERSED, 0, 0.2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_match_the_cpu_in_every_layout),
        cmocka_unit_test(uniform_numbers_stay_below_the_end),
        cmocka_unit_test(dropout_makes_the_masks_of_the_cpu),
        cmocka_unit_test(random_numbers_continue_from_launch_to_launch),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}
