/* Linears of 8 and 4 bits: what a failing request leaves behind, and threads' and checkpoints' use
 * of a delayed scale. Values are in tests/parity/low_precision.py. */
#include <string.h>
#include "base/base.h"
#include "memtape/ops.h"
#include "mtt.h"
#include "mtt_fixture.h"

static const struct {
    mt_linear_form form;
    int64_t width; /* that its blocks cover */
} forms[] = {{MT_LINEAR_TORCHAO_FLOAT8, 6}, {MT_LINEAR_TORCHAO_MXFP8, 32},
             {MT_LINEAR_TE_DELAYED, 6},     {MT_LINEAR_TE_MXFP8, 32},
             {MT_LINEAR_TE_BLOCKWISE, 128}, {MT_LINEAR_TE_NVFP4, 16}};
#define N(array) (sizeof(array) / sizeof *(array))

static mt_module *linear_of(mt_linear_form form, int64_t width)
{
    mt_seed(device, 4);
    mt_module *m = mt_model_new(
        device, &(mt_model_config){
                    .kind = MT_MODEL_LINEAR, .hidden = width, .ffn = width, .ops.linear = form});
    assert_non_null(m);
    return m;
}

/* A forward and a backward. */
static mt_status step(mt_module *m, mt_tensor *x)
{
    mt_tensor *y = mt_forward(m, x);
    mt_set(&y, mt_gelu(y));
    mt_set(&y, mt_sum_all(y));
    mt_status status = y ? mt_backward(y) : mt_last_status();
    mt_release(y);
    return status;
}

/* Every request fails in turn, of many the first ones and each seventh. */
static void a_failing_request_leaves_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(forms); i++) {
        mt_module *m = linear_of(forms[i].form, forms[i].width);
        MT_AUTO mt_tensor *x =
            mt_normal(device, MT_F32, MT_SHAPE(forms[i].width, forms[i].width), 0, 1);
        mtt_ok(mt_set_requires_grad(x, true));
        mtt_ok(step(m, x));
        mtt_ok(mt_module_zero_grad(m));
        mtt_ok(mt_zero_grads(1, &x));
        size_t before = mtt_allocated(device), refused = 0;
        for (uint64_t n = 1;; n += n < 200 ? 1 : 7) {
            mti_fail_nth_alloc(n);
            mt_status status = step(m, x);
            bool reached = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            refused += status != MT_OK;
            if (status != MT_OK) assert_int_equal(status, MT_ERR_MEMORY);
            assert_true(mt_saved_hooks_user() == NULL);
            mt_clear_error();
            mtt_ok(mt_module_zero_grad(m));
            mtt_ok(mt_zero_grads(1, &x));
            assert_int_equal(mtt_allocated(device), before);
            if (!reached) break;
        }
        assert_true(refused > 50);
        mtt_ok(step(m, x)); /* it still works */
        mt_module_free(m);
    }
}

/* The first step's scale is 1, so small values vanish; the second's is that of the first's largest.
 */
static void a_delayed_scale_is_that_of_earlier_steps(void **state)
{
    (void)state;
    mt_module *m = linear_of(MT_LINEAR_TE_DELAYED, 4);
    MT_AUTO mt_tensor *x = mt_full(device, MT_F32, MT_SHAPE(4, 4), 0x1p-12);
    for (int i = 0; i < 2; i++) {
        MT_AUTO mt_tensor *y = mt_forward(m, x);
        MT_AUTO mt_tensor *size = mt_abs(y);
        mt_set(&size, mt_sum_all(size));
        assert_true(i ? mt_item(size) > 0 : mt_item(size) == 0);
    }
    mt_module_free(m);
}

static void blocks_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    mt_module *m = linear_of(MT_LINEAR_TE_MXFP8, 32);
    MT_AUTO mt_tensor *x = mt_normal(device, MT_F32, MT_SHAPE(33, 32), 0, 1);
    assert_null(mt_forward(m, x));
    assert_int_equal(mt_last_status(), MT_ERR_ARGUMENT);
    assert_non_null(strstr(mt_last_error(), "32 values share a scale"));
    mt_clear_error();
    mt_module_free(m);
}

/* A block of zeros beside others has no scale that divides. */
static void zeros_stay_zeros(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(forms); i++) {
        mt_module *m = linear_of(forms[i].form, forms[i].width);
        MT_AUTO mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(forms[i].width, forms[i].width));
        MT_AUTO mt_tensor *y = mt_forward(m, x);
        MT_AUTO mt_tensor *sum = mt_sum_all(y);
        assert_true(mt_item(sum) == 0);
        mt_module_free(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_failing_request_leaves_nothing),
        mtt_test(a_delayed_scale_is_that_of_earlier_steps),
        mtt_test(blocks_that_do_not_fit_are_refused),
        mtt_test(zeros_stay_zeros),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
