/* test_inplace.c: what an op in place saves, and when it is refused. */
#include "mtt_fixture.h"

static mt_tensor *leaf(void) { return mtt_leaf(4, (float[]){-2, -0.5f, 0.5f, 2}); }

static void assert_grad(const mt_tensor *x, const float *wanted)
{
    float got[4];
    mtt_ok(mt_to_host(mtt_made(mt_grad(x)), got, sizeof got));
    for (int i = 0; i < 4; i++) assert_float_equal(got[i], wanted[i], 1e-6);
}

static void a_tensor_that_another_backward_needs_is_not_overwritten(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_affine(x, 2, 1));
    mtt_ok(mt_scope_push("here"));
    MT_AUTO mt_tensor *y = mtt_made(mt_mul(h, h));
    mt_scope_pop();
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    uint64_t version = mt_storage_of(h).version;
    assert_int_equal(mt_relu_inplace(h), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "relu_inplace", "mul in here", "input a", "(and 1 other)");
    assert_true(mt_storage_of(h).version == version);
    mtt_ok(mt_backward(loss));
    assert_grad(x, (float[]){-12, 0, 8, 20}); /* 2 * 2 (2x + 1) */
}

static void a_tensor_that_its_own_op_needs_is_not_overwritten(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *y = mtt_made(mt_tanh(x));
    assert_int_equal(mt_leaky_relu_inplace(y, 0.1), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "leaky_relu_inplace", "tanh", "output y");
}

static void a_tensor_without_gradient_may_also_be_needed(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *c = mtt_made(mt_full(device, MT_F32, MT_SHAPE(4), -3));
    MT_AUTO mt_tensor *y = mtt_made(mt_mul(x, c));
    assert_int_equal(mt_relu_inplace(c), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "mul", "input b");
}

static void only_ops_that_still_need_the_tensor_are_named(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_affine(x, 1, 0));
    mt_tensor *first = mtt_made(mt_gelu(h)), *second = mtt_made(mt_silu(h));
    mt_set(&first, mtt_made(mt_sum_all(first)));
    mtt_ok(mt_backward(first));
    assert_int_equal(mt_relu_inplace(h), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "silu");
    mt_release(second); /* a branch that is released without a backward */
    mtt_ok(mt_relu_inplace(h));
    mt_release(first);
}

/* Keeps a copy of its own, so the original is free to change. */
static mt_status keep_a_copy(void *user, const mt_save_info *info, mt_tensor *tensor,
                             mt_tensor **kept, void **state)
{
    (void)user, (void)info, (void)state;
    *kept = mt_clone(tensor);
    return *kept ? MT_OK : mt_last_status();
}

static void a_tensor_that_a_hook_copied_may_be_overwritten(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_affine(x, 2, 1));
    mtt_ok(mt_push_saved_hooks(&(mt_saved_hooks){.pack = keep_a_copy}, NULL));
    MT_AUTO mt_tensor *y = mtt_made(mt_mul(h, h));
    mtt_ok(mt_pop_saved_hooks());
    mtt_ok(mt_relu_inplace(h));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(loss));
    assert_grad(x, (float[]){-12, 0, 8, 20});
}

/* Bytes alive after an activation of [1024] whose input was released. */
static size_t alive_after(bool inplace)
{
    MT_AUTO mt_tensor *x = mtt_made(mt_full(device, MT_F32, MT_SHAPE(1024), 1));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_mem_region region;
    mt_mem_region_begin(&region, device);
    mt_tensor *h = mtt_made(mt_affine(x, 2, 0));
    if (inplace)
        mtt_ok(mt_relu_inplace(h));
    else
        mt_set(&h, mtt_made(mt_relu(h)));
    mt_mem_region_end(&region);
    mt_release(h);
    return (size_t)region.delta.peak;
}

static void relu_in_place_lowers_the_peak_by_its_input(void **state)
{
    (void)state;
    assert_true(alive_after(false) == 2 * 4096);
    assert_true(alive_after(true) == 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_tensor_that_another_backward_needs_is_not_overwritten),
        mtt_test(a_tensor_that_its_own_op_needs_is_not_overwritten),
        mtt_test(a_tensor_without_gradient_may_also_be_needed),
        mtt_test(only_ops_that_still_need_the_tensor_are_named),
        mtt_test(a_tensor_that_a_hook_copied_may_be_overwritten),
        mtt_test(relu_in_place_lowers_the_peak_by_its_input),
    };
    return cmocka_run_group_tests_name("in place", tests, mtt_open_device, mtt_close_device);
}
