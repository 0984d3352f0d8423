/* Sums on the device, against the CPU. */
#include "twins.h"

/* y has x's shape, with extent 1 in the dimensions of `mask`. */
static void check_sum(const mtt_pair *p, mt_dtype x_dtype, mt_dtype y_dtype, const mtt_shape *shape,
                      unsigned mask, mtt_placing placing, int64_t skip)
{
    int64_t y_shape[4], added = 1;
    for (int d = 0; d < shape->rank; d++) {
        y_shape[d] = mask >> d & 1 ? 1 : shape->at[d];
        added *= mask >> d & 1 ? shape->at[d] : 1;
    }
    mtt_twin x = mtt_twin_make(p, x_dtype, shape->rank, shape->at, placing, skip, -1, 1);
    mtt_twin y =
        mtt_twin_make(p, y_dtype, shape->rank, y_shape,
                      placing == MTT_PLACED_BROADCAST ? MTT_PLACED_DENSE : placing, 0, 0, 1);
    size_t n_host = p->cpu->sum_scratch(p->cpu_ctx, &x.host, &y.host);
    size_t n_dev = p->dev->sum_scratch(p->dev_ctx, &x.dev, &y.dev);
    void *host = n_host ? malloc(n_host) : NULL;
    void *dev = n_dev ? p->dev->alloc(p->dev_ctx, n_dev) : NULL;
    mtt_ok(p->cpu->sum(p->cpu_ctx, 0.5, &x.host, &y.host, host), "sum");
    mtt_ok(p->dev->sum(p->dev_ctx, 0.5, &x.dev, &y.dev, dev), "sum");
    /* rounding of the result, and a little for rounding of the sum, of numbers of about 1/2 */
    double sum_epsilon = (x_dtype == MT_F64 ? 0x1p-50 : 0x1p-22) * (double)added / 2;
    mtt_twin_check(p, &y, mtt_epsilon(y_dtype) + sum_epsilon, "sum");
    free(host);
    if (dev) p->dev->free(p->dev_ctx, dev, n_dev);
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
}

static void sums_over_every_set_of_dimensions_match_the_cpu(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < mtt_n_shapes; s++)
            for (unsigned mask = 0; mask < 1u << mtt_shapes[s].rank; mask++)
                for (mtt_placing placing = 0; placing <= MTT_PLACED_BROADCAST; placing++) {
                    if (placing == MTT_PLACING_COUNT) continue;
                    mt_dtype y = (s + (int)mask) % 2 ? mtt_floats[t] : MT_F32;
                    check_sum(p, mtt_floats[t], y, &mtt_shapes[s], mask, placing, s % 3);
                }
}

static void long_sums_are_exact_in_blocks(void **state)
{
    mtt_pair *p = *state;
    const mtt_shape shapes[] = {{3, {700, 2, 136}}, {3, {2, 3, 9000}}, {2, {1300, 24}},
                                {2, {3, 70001}},    {1, {300000}},     {3, {5, 4096, 16}},
                                {2, {20000, 3}},    {3, {40, 33, 72}}};
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 8; s++)
            for (unsigned mask = 1; mask < 1u << shapes[s].rank; mask++) {
                mt_dtype y = mtt_floats[t] == MT_F64 ? MT_F64 : MT_F32;
                check_sum(p, mtt_floats[t], y, &shapes[s], mask, MTT_PLACED_DENSE, 0);
                if (t == 0) check_sum(p, MT_F32, y, &shapes[s], mask, MTT_PLACED_REVERSED, 1);
            }
}

static void many_ones_are_not_lost_in_f32(void **state)
{
    mtt_pair *p = *state;
    const int64_t n = (1 << 20) + 10, one = 1;
    mtt_twin x = mtt_twin_make(p, MT_BF16, 1, &n, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_twin y = mtt_twin_make(p, MT_F64, 1, &one, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_ok(p->dev->fill(p->dev_ctx, &x.dev, 1), "fill");
    size_t n_scratch = p->dev->sum_scratch(p->dev_ctx, &x.dev, &y.dev);
    void *scratch = p->dev->alloc(p->dev_ctx, n_scratch);
    mtt_ok(p->dev->sum(p->dev_ctx, 1, &x.dev, &y.dev, scratch), "sum");
    mtt_set(&y.host, 0, (double)n);
    mtt_twin_check(p, &y, 0, "ones");
    p->dev->free(p->dev_ctx, scratch, n_scratch);
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
}

static void a_sum_of_nothing_is_zero(void **state)
{
    mtt_pair *p = *state;
    const int64_t shape[2] = {3, 0}, sums[2] = {3, 1};
    mtt_twin x = mtt_twin_make(p, MT_F32, 2, shape, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_twin y = mtt_twin_make(p, MT_F32, 2, sums, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_ok(p->dev->sum(p->dev_ctx, 1, &x.dev, &y.dev, NULL), "sum");
    for (int64_t i = 0; i < 3; i++) mtt_set(&y.host, i, 0);
    mtt_twin_check(p, &y, 0, "nothing");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_over_every_set_of_dimensions_match_the_cpu),
        cmocka_unit_test(long_sums_are_exact_in_blocks),
        cmocka_unit_test(many_ones_are_not_lost_in_f32),
        cmocka_unit_test(a_sum_of_nothing_is_zero),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}
