/* Failures of an offload. */
#include "chain.h"

static void a_change_in_place_is_an_error_until_the_copy_has_finished(void **state)
{
    (void)state;
    chain c = open_chain(device);
    for (int late = 0; late < 2; late++) {
        mt_offload *o = made_offload(mt_offload_new(device, NULL));
        mtt_ok(mt_offload_begin(o));
        MT_AUTO mt_tensor *h = mtt_made(mt_linear(c.x, c.w[0], NULL));
        MT_AUTO mt_tensor *y = mtt_made(mt_gelu(h));
        MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
        MT_AUTO mt_tensor *same = mtt_made(mt_detach(h));
        if (late) mtt_ok(mt_offload_end(o));
        mtt_ok(mt_fill(same, 0));
        if (!late) mtt_ok(mt_offload_end(o));
        mt_status status = mt_backward(loss);
        if (late) {
            mtt_ok(status);
        } else {
            assert_int_equal(status, MT_ERR_STATE);
            mtt_failed(MT_ERR_STATE, "gelu", "changed in place", "version 0 to 1");
        }
        mt_offload_free(o);
    }
    close_chain(&c);
}

static void options_out_of_range_and_null_are_refused(void **state)
{
    (void)state;
    mt_offload_stats s;
    assert_null(mt_offload_new(NULL, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "offload_new", "device");
    assert_null(mt_offload_new(device, &(mt_offload_options){.in_flight = -1}));
    mtt_failed(MT_ERR_ARGUMENT, "in_flight is -1");
    assert_null(mt_offload_new(device, &(mt_offload_options){.prefetch = -2}));
    mtt_failed(MT_ERR_ARGUMENT, "prefetch -2");
    assert_int_equal(mt_offload_begin(NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "offload_begin");
    assert_int_equal(mt_offload_end(NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "offload_end", "NULL");
    assert_int_equal(mt_offload_get_stats(NULL, &s), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "offload_get_stats");
    mt_offload_free(NULL);
}

static void any_allocation_may_fail_and_the_next_step_is_unaffected(void **state)
{
    (void)state;
    assert_true(chain_fail_each(NULL, 1) > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_change_in_place_is_an_error_until_the_copy_has_finished),
        mtt_test(options_out_of_range_and_null_are_refused),
        mtt_test(any_allocation_may_fail_and_the_next_step_is_unaffected),
    };
    return cmocka_run_group_tests(tests, open_without_workspace, mtt_close_device);
}
