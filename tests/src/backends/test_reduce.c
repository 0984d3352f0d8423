/* Sums over any set of dimensions. */
#include "views.h"

/* y has x's shape, with extent 1 in the dimensions of `mask`; compares with plain loops. */
static void check_sum(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, mt_dtype y_dtype,
                      int rank, const int64_t *shape, unsigned mask, mtt_placing placing)
{
    mti_view x = mtt_view(dtype, rank, shape, placing);
    int64_t y_shape[MT_MAX_RANK];
    for (int d = 0; d < rank; d++) y_shape[d] = mask >> d & 1 ? 1 : shape[d];
    mti_view y = mtt_view(y_dtype, rank, y_shape,
                          placing == MTT_PLACED_BROADCAST ? MTT_PLACED_DENSE : placing);
    mtt_fill(&x, 11, -1, 1);
    int64_t n = mti_view_count(&x), n_out = mti_view_count(&y);
    double *want = calloc((size_t)n_out, sizeof *want), *size = calloc((size_t)n_out, sizeof *size);
    assert_true(want && size);
    for (int64_t i = 0; i < n; i++) {
        int64_t rest = i, at = 0, step = 1;
        for (int d = rank - 1; d >= 0; d--) {
            if (!(mask >> d & 1)) at += rest % shape[d] * step;
            step *= y_shape[d];
            rest /= shape[d];
        }
        want[at] += mtt_get(&x, i);
        size[at] += fabs(mtt_get(&x, i));
    }
    size_t n_scratch = be->sum_scratch(ctx, &x, &y);
    void *scratch = n_scratch ? mtt_memory(n_scratch) : NULL;
    mtt_did(be->sum(ctx, 0.5, &x, &y, scratch));
    /* rounding of the result, and a little for rounding of the sum */
    double sum_epsilon = dtype == MT_F64 ? 0x1p-50 : 0x1p-22;
    for (int64_t i = 0; i < n_out; i++)
        mtt_close(mtt_get(&y, i), 0.5 * want[i], mtt_epsilon(y_dtype) / 2 + sum_epsilon * size[i],
                  "sum", i);
    mtt_memory_free(scratch), free(want), free(size);
    mtt_drop(&x), mtt_drop(&y);
}

static void sums_over_every_set_of_dimensions_match(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 9; s++)
            for (unsigned mask = 0; mask < 16; mask++)
                for (mtt_placing placing = 0; placing <= MTT_PLACED_BROADCAST; placing++) {
                    if (placing == MTT_PLACING_COUNT) continue;
                    const int64_t shape[4] = {3, 1, 5, mtt_sizes[s]};
                    check_sum(be, ctx, mtt_floats[t], mtt_floats[t], 4, shape, mask, placing);
                    check_sum(be, ctx, mtt_floats[t], MT_F32, 4, shape, mask, placing);
                }
    be->close(ctx);
}

static void long_sums_stay_exact_in_blocks(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (unsigned mask = 1; mask < 8; mask++) {
            const int64_t tall[3] = {700, 2, 130}, wide[3] = {2, 3, 40000};
            check_sum(be, ctx, mtt_floats[t], MT_F32, 3, tall, mask, MTT_PLACED_DENSE);
            check_sum(be, ctx, mtt_floats[t], MT_F32, 3, tall, mask, MTT_PLACED_REVERSED);
            check_sum(be, ctx, mtt_floats[t], MT_F32, 3, wide, mask, MTT_PLACED_DENSE);
        }
    be->close(ctx);
}

static void sixteen_million_ones_are_not_lost_in_f32(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_view x = mtt_dense(MT_F32, (1 << 24) + 10), y = mtt_dense(MT_F64, 1);
    mtt_did(be->fill(ctx, &x, 1));
    void *scratch = mtt_memory(be->sum_scratch(ctx, &x, &y));
    mtt_did(be->sum(ctx, 1, &x, &y, scratch));
    assert_true(mtt_get(&y, 0) == (1 << 24) + 10);
    mtt_memory_free(scratch);
    mtt_drop(&x), mtt_drop(&y);
    be->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_over_every_set_of_dimensions_match),
        cmocka_unit_test(long_sums_stay_exact_in_blocks),
        cmocka_unit_test(sixteen_million_ones_are_not_lost_in_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
