/* The module of batch norm: its running statistics, and what it keeps. */
#include <math.h>
#include <stdlib.h>
#include "mtt.h"
#include "mtt_fixture.h"

enum { BATCH = 4, CHANNELS = 3, LENGTH = 5, N = BATCH * CHANNELS * LENGTH };

static mt_tensor *input(mt_dtype dtype, uint64_t seed)
{
    return mtt_made(mtt_random(device, dtype, MT_SHAPE(BATCH, CHANNELS, LENGTH), seed, -2, 3));
}

/* Mean and unbiased variance of a channel of x, in f64. */
static void statistics(mt_tensor *x, int channel, double *mean, double *var)
{
    double *at = mtt_doubles(x), sum = 0, squares = 0, n = BATCH * LENGTH;
    for (int i = 0; i < N; i++)
        if (i / LENGTH % CHANNELS == channel) sum += at[i];
    for (int i = 0; i < N; i++)
        if (i / LENGTH % CHANNELS == channel) squares += (at[i] - sum / n) * (at[i] - sum / n);
    *mean = sum / n, *var = squares / (n - 1);
    free(at);
}

static void running_statistics_move_by_the_momentum_in_training_only(void **state)
{
    (void)state;
    mt_module *m = mt_batch_norm_new(device, MT_F32, CHANNELS, 0.25, 0);
    assert_non_null(m);
    double want_mean[CHANNELS] = {0}, want_var[CHANNELS] = {1, 1, 1};
    for (int step = 0; step < 4; step++) {
        mt_module_set_training(m, step < 3);
        MT_AUTO mt_tensor *x = input(MT_F32, 7 + (uint64_t)step);
        MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
        for (int c = 0; c < CHANNELS; c++) {
            double mean, var;
            statistics(x, c, &mean, &var);
            if (step < 3) {
                want_mean[c] = 0.75 * want_mean[c] + 0.25 * mean;
                want_var[c] = 0.75 * want_var[c] + 0.25 * var;
            }
            double got_mean = mt_item_at(mt_module_param(m, "running_mean"), MT_SHAPE(c));
            double got_var = mt_item_at(mt_module_param(m, "running_var"), MT_SHAPE(c));
            assert_true(fabs(got_mean - want_mean[c]) < 1e-6);
            assert_true(fabs(got_var - want_var[c]) < 1e-6);
            if (step < 3) continue;
            double x0 = mt_item_at(x, MT_SHAPE(1, c, 2)), y0 = mt_item_at(y, MT_SHAPE(1, c, 2));
            assert_true(fabs(y0 - (x0 - want_mean[c]) / sqrt(want_var[c] + 1e-5)) < 1e-5);
        }
    }
    mt_module_free(m);
}

/* As far as an optimizer and a file are concerned. */
static void statistics_belong_to_the_module_and_want_no_gradient(void **state)
{
    (void)state;
    mt_module *m = mt_batch_norm_new(device, MT_BF16, CHANNELS, 0, 0);
    const mt_named_tensor *list;
    size_t n;
    mtt_ok(mt_module_params(m, &list, &n));
    assert_int_equal(n, 4);
    for (size_t i = 0; i < n; i++) {
        bool statistic = i >= 2;
        assert_int_equal(mt_requires_grad(list[i].tensor), !statistic);
        assert_int_equal(mt_dtype_of(list[i].tensor), statistic ? MT_F32 : MT_BF16);
    }
    mt_module_free(m);
}

static mt_status through(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    assert_true(n_in == 1 && n_out == 1);
    out[0] = mt_forward(user, in[0]);
    return out[0] ? MT_OK : mt_last_status();
}

static void a_checkpoint_counts_a_batch_once(void **state)
{
    (void)state;
    mt_module *m = mt_batch_norm_new(device, MT_F32, CHANNELS, 0.5, 0);
    MT_AUTO mt_tensor *x = input(MT_F32, 3);
    mtt_ok(mt_set_requires_grad(x, true));
    MT_AUTO mt_tensor *y = NULL;
    mtt_ok(mt_checkpoint(through, m, NULL, 1, &x, 1, &y, NULL));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum(y, 0, NULL, false));
    mt_tensor *mean = mt_module_param(m, "running_mean");
    double before = mt_item_at(mean, MT_SHAPE(1));
    assert_true(before != 0);
    mtt_ok(mt_backward(loss));
    assert_non_null(mt_grad(x));
    assert_true(mt_item_at(mean, MT_SHAPE(1)) == before);
    mt_module_free(m);
}

/* In training and in evaluation; not the weight, which is a parameter. */
static void x_and_two_numbers_a_channel_are_kept(void **state)
{
    (void)state;
    mt_device *meta = mt_device_open("meta");
    mt_device *const devices[] = {device, meta};
    for (int d = 0; d < 2; d++)
        for (int training = 0; training < 2; training++) {
            mt_module *m = mt_batch_norm_new(devices[d], MT_F32, CHANNELS, 0, 0);
            mt_module_set_training(m, training);
            MT_AUTO mt_tensor *x =
                mtt_made(mt_zeros(devices[d], MT_F32, MT_SHAPE(BATCH, CHANNELS, LENGTH)));
            mtt_ok(mt_set_requires_grad(x, true));
            mt_ledger *ledger = mt_ledger_new(devices[d]);
            mtt_ok(mt_ledger_begin(ledger));
            mt_tensor *y = mtt_made(mt_forward(m, x));
            mtt_ok(mt_ledger_end(ledger));
            assert_int_equal(mt_ledger_bytes(ledger), 4 * (N + 2 * CHANNELS));
            mt_ledger_free(ledger);
            mt_release(y);
            mt_module_free(m);
        }
    mt_device_release(meta);
}

static void a_batch_without_elements_moves_nothing(void **state)
{
    (void)state;
    mt_module *m = mt_batch_norm_new(device, MT_F32, CHANNELS, 0.25, 0);
    assert_non_null(m);
    {
        MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(0, CHANNELS)));
        MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
        MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(y));
        MT_AUTO mt_tensor *mean = mtt_made(mt_mean_all(y));
        mtt_ok(mt_backward(sum));
        assert_true(mt_numel(y) == 0 && mt_item(sum) == 0 && isnan(mt_item(mean)));
        assert_true(mt_item_at(mt_grad(mt_module_param(m, "weight")), MT_SHAPE(1)) == 0);
        assert_true(mt_item_at(mt_module_param(m, "running_mean"), MT_SHAPE(1)) == 0);
        assert_true(mt_item_at(mt_module_param(m, "running_var"), MT_SHAPE(1)) == 1);
    }
    mt_module_free(m);
}

static void a_module_without_channels_is_refused(void **state)
{
    (void)state;
    assert_null(mt_batch_norm_new(device, MT_F32, 0, 0, 0));
    mtt_failed(MT_ERR_ARGUMENT, "batch_norm: n 0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(running_statistics_move_by_the_momentum_in_training_only),
        mtt_test(statistics_belong_to_the_module_and_want_no_gradient),
        mtt_test(a_checkpoint_counts_a_batch_once),
        mtt_test(x_and_two_numbers_a_channel_are_kept),
        mtt_test(a_batch_without_elements_moves_nothing),
        mtt_test(a_module_without_channels_is_refused),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
