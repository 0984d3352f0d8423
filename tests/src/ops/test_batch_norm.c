/* What batch norm refuses, and what it does without memory and for values that are not finite. The
 * gradient checks and the comparison with PyTorch take its values from src/ops/op_cases.def; its
 * module has tests/models/nn/test_batch_norm.c. */
#include <math.h>
#include "base/base.h"
#include "mtt_fixture.h"

enum { BATCH = 4, CHANNELS = 3, LENGTH = 5 };

static mt_tensor *input(mt_dtype dtype, uint64_t seed)
{
    return mtt_made(mtt_random(device, dtype, MT_SHAPE(BATCH, CHANNELS, LENGTH), seed, -2, 3));
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = input(MT_F32, 1);
    MT_AUTO mt_tensor *row = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(1, CHANNELS)));
    MT_AUTO mt_tensor *flat = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(CHANNELS)));
    MT_AUTO mt_tensor *wide = mtt_made(mt_zeros(device, MT_F64, MT_SHAPE(CHANNELS)));
    MT_AUTO mt_tensor *longer = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(CHANNELS + 1)));
    MT_AUTO mt_tensor *twice = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(2 * CHANNELS)));
    mtt_ok(mt_set(&twice, mt_reshape(twice, MT_SHAPE(CHANNELS, 2))));
    MT_AUTO mt_tensor *column = mtt_made(mt_slice(twice, 1, 0, 1));
    mtt_ok(mt_set(&column, mt_reshape(column, MT_SHAPE(CHANNELS, 1))));
    assert_null(mt_batch_norm(flat, NULL, NULL, NULL, NULL, true, 0, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "batch_norm: x is [3]; need [b,c]");
    assert_null(mt_batch_norm(row, NULL, NULL, NULL, NULL, true, 0, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "batch_norm: x is [1,3]; training needs 2 values");
    assert_null(mt_batch_norm(x, longer, NULL, NULL, NULL, true, 0, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "x is f32 [4,3,5], w is f32 [4]", "one per channel");
    assert_null(mt_batch_norm(x, flat, wide, NULL, NULL, true, 0, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "b is f64 [3]; need f32");
    assert_null(mt_batch_norm(x, NULL, NULL, flat, wide, true, 0, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "running_var is f64 [3]; need f32");
    assert_null(mt_batch_norm(x, NULL, NULL, column, flat, true, 0, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "running_mean is f32 [3,1]");
    assert_null(mt_batch_norm(x, NULL, NULL, NULL, NULL, false, 0, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "batch_norm: running_mean is NULL");
    assert_null(mt_batch_norm(x, NULL, NULL, flat, NULL, true, 0, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "batch_norm: running_var is NULL");
    assert_null(mt_batch_norm(x, NULL, NULL, NULL, NULL, true, 1.5, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "momentum 1.5");
    assert_null(mt_batch_norm(x, NULL, NULL, NULL, NULL, true, 0, -1));
    mtt_failed(MT_ERR_ARGUMENT, "eps -1");
    mt_device *meta = mt_device_open("meta");
    MT_AUTO mt_tensor *away = mtt_made(mt_zeros(meta, MT_F32, MT_SHAPE(CHANNELS)));
    assert_null(mt_batch_norm(x, NULL, NULL, away, away, true, 0.1, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "running_mean is on another device");
    mt_device_release(meta);
}

/* Refusing request after request leaves no statistic half moved. */
static void without_memory_nothing_is_counted(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *mean = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(CHANNELS)));
    MT_AUTO mt_tensor *var = mtt_made(mt_full(device, MT_F32, MT_SHAPE(CHANNELS), 1));
    MT_AUTO mt_tensor *x = input(MT_F32, 9);
    MT_AUTO mt_tensor *turned = mtt_made(mt_transpose(x, 0, 2)); /* [5,3,4]: a dense copy is made */
    mt_tensor *y = NULL;
    for (uint64_t nth = 1; !y; nth++) {
        assert_true(mt_item_at(mean, MT_SHAPE(0)) == 0 && mt_item_at(var, MT_SHAPE(0)) == 1);
        mti_fail_nth_alloc(nth);
        y = mt_batch_norm(turned, NULL, NULL, mean, var, true, 0.5, 1e-5);
        mti_fail_nth_alloc(0);
        if (!y) mtt_failed(MT_ERR_MEMORY, "");
    }
    assert_true(mt_item_at(mean, MT_SHAPE(0)) != 0 && mt_item_at(var, MT_SHAPE(0)) != 1);
    mt_release(y);
}

/* Evaluation is linear in x, so that its slope does not read x: not an infinite x either. */
static void in_evaluation_dx_is_finite_whatever_x_is(void **state)
{
    (void)state;
    const double values[] = {INFINITY, -INFINITY, (double)NAN, 1};
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(2, 2), values));
    MT_AUTO mt_tensor *mean = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(2)));
    MT_AUTO mt_tensor *var = mtt_made(mt_full(device, MT_F32, MT_SHAPE(2), 0.25));
    mtt_ok(mt_set_requires_grad(x, true));
    MT_AUTO mt_tensor *y = mtt_made(mt_batch_norm(x, NULL, NULL, mean, var, false, 0, 0));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(loss));
    for (int64_t i = 0; i < 4; i++)
        assert_true(mt_item_at(mt_grad(x), MT_SHAPE(i / 2, i % 2)) == 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(what_does_not_fit_is_refused),
        mtt_test(without_memory_nothing_is_counted),
        mtt_test(in_evaluation_dx_is_finite_whatever_x_is),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
