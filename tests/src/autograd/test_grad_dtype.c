/* The dtype of a leaf's gradient: sums of 16-bit gradients in f32. */
#include "memtape/checkpoint.h"
#include "mtt_fixture.h"

enum { N = 4 };
static const mt_dtype narrow[] = {MT_BF16, MT_F16};

static mt_tensor *narrow_leaf(mt_dtype dtype)
{
    MT_AUTO mt_tensor *ones = mtt_made(mt_full(device, dtype, MT_SHAPE(N), 1));
    mtt_ok(mt_set_requires_grad(ones, true));
    return mt_retain(ones);
}

/* Its gradient is `factor`. */
static void backward_of(mt_tensor *x, double factor)
{
    MT_AUTO mt_tensor *scaled = mtt_made(mt_mul_scalar(x, factor));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(scaled));
    mtt_ok(mt_backward(loss));
}

static void assert_all(mt_tensor *t, mt_dtype dtype, double value)
{
    assert_int_equal(mt_dtype_of(t), dtype);
    for (int64_t i = 0; i < N; i++) assert_true(mt_item_at(t, MT_SHAPE(i)) == value);
}

/* 1 + 2^-12 is 1 in both types of 16 bits. */
static void f32_keeps_what_16_bits_round_away(void **state)
{
    (void)state;
    for (int d = 0; d < 2; d++)
        for (int wide = 0; wide < 2; wide++) {
            MT_AUTO mt_tensor *x = narrow_leaf(narrow[d]);
            assert_int_equal(mt_grad_dtype(x), narrow[d]);
            if (wide) mtt_ok(mt_set_grad_dtype(x, MT_F32));
            assert_int_equal(mt_grad_dtype(x), wide ? MT_F32 : narrow[d]);
            backward_of(x, 1);
            for (int i = 0; i < 3; i++) backward_of(x, 0x1p-12);
            if (wide)
                assert_all(mt_grad(x), MT_F32, 1 + 3 * 0x1p-12);
            else
                assert_all(mt_grad(x), narrow[d], 1);
        }
}

/* Each use is cast before it is summed, with hooks and without. */
static mt_tensor *look_at_dtype(void *seen, mt_tensor *grad)
{
    *(mt_dtype *)seen = mt_dtype_of(grad);
    return mt_retain(grad);
}

static mt_status look_at_leaf(void *seen, mt_tensor *leaf)
{
    *(mt_dtype *)seen = mt_dtype_of(mt_grad(leaf));
    return MT_OK;
}

static void uses_are_summed_in_f32_and_hooks_see_it(void **state)
{
    (void)state;
    for (int hooked = 0; hooked < 2; hooked++) {
        mt_dtype seen = MT_DTYPE_COUNT, seen_by_leaf = MT_DTYPE_COUNT;
        MT_AUTO mt_tensor *x = narrow_leaf(MT_BF16);
        mtt_ok(mt_set_grad_dtype(x, MT_F32));
        if (hooked) {
            assert_true(mt_add_grad_hook(x, look_at_dtype, &seen));
            assert_true(mt_add_leaf_hook(x, look_at_leaf, &seen_by_leaf));
        }
        MT_AUTO mt_tensor *small = mtt_made(mt_mul_scalar(x, 0x1p-12));
        MT_AUTO mt_tensor *sum = mtt_made(mt_add(x, small));
        MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(sum));
        mtt_ok(mt_backward(loss));
        assert_all(mt_grad(x), MT_F32, 1 + 0x1p-12);
        assert_int_equal(seen, hooked ? MT_F32 : MT_DTYPE_COUNT);
        assert_int_equal(seen_by_leaf, hooked ? MT_F32 : MT_DTYPE_COUNT);
    }
}

static mt_tensor *in_bf16(void *user, mt_tensor *grad)
{
    (void)user;
    return mt_cast(grad, MT_BF16);
}

static void a_hook_returns_the_dtype_that_it_got(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = narrow_leaf(MT_BF16);
    mtt_ok(mt_set_grad_dtype(x, MT_F32));
    assert_true(mt_add_grad_hook(x, in_bf16, NULL));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(x));
    assert_int_equal(mt_backward(loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "gradient hook", "bf16", "need f32");
    assert_null(mt_grad(x));
}

static void gradients_has_that_dtype_too(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = narrow_leaf(MT_F16);
    mtt_ok(mt_set_grad_dtype(x, MT_F32));
    MT_AUTO mt_tensor *square = mtt_made(mt_mul(x, x));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(square));
    mt_tensor *out = NULL;
    mtt_ok(mt_gradients(
        &(mt_gradients_options){.n_roots = 1, .roots = &loss, .n_inputs = 1, .inputs = &x}, &out));
    assert_all(out, MT_F32, 2);
    mt_release(out);
    assert_null(mt_grad(x));
}

/* The leaf's gradient arrives expanded, transposed or through a slice. */
static void any_layout_is_cast(void **state)
{
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        MT_AUTO mt_tensor *x = mtt_made(mt_full(device, MT_BF16, MT_SHAPE(2, 3), 1));
        mtt_ok(mt_set_requires_grad(x, true));
        mtt_ok(mt_set_grad_dtype(x, MT_F32));
        MT_AUTO mt_tensor *view = mtt_made(kind == 0   ? mt_retain(x)
                                           : kind == 1 ? mt_transpose(x, 0, 1)
                                                       : mt_slice(x, 1, 1, 2));
        MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(view));
        mtt_ok(mt_backward(loss));
        assert_int_equal(mt_dtype_of(mt_grad(x)), MT_F32);
        assert_true(mt_is_contiguous(mt_grad(x)));
        for (int64_t i = 0; i < 6; i++)
            assert_true(mt_item_at(mt_grad(x), MT_SHAPE(i / 3, i % 3)) ==
                        (kind == 2 && i % 3 == 0 ? 0 : 1));
    }
}

/* 4 bytes an element, of category gradient; the cast that was added is gone. */
static void the_books_show_4_bytes(void **state)
{
    (void)state;
    mt_mem_stats before, after;
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_BF16, MT_SHAPE(1024)));
    mtt_ok(mt_set_requires_grad(x, true));
    mtt_ok(mt_set_grad_dtype(x, MT_F32));
    mt_mem_get_stats(device, &before);
    for (int i = 0; i < 2; i++) backward_of(x, 1);
    mt_mem_get_stats(device, &after);
    assert_int_equal(after.by_category[MT_GRADIENT] - before.by_category[MT_GRADIENT], 4096);
    assert_int_equal(after.allocated.current - before.allocated.current, 4096);
}

static mt_status cubed(void *user, int n, mt_tensor *const *in, int m, mt_tensor **out)
{
    (void)user, (void)n, (void)m;
    MT_AUTO mt_tensor *square = mt_mul(in[0], in[0]);
    out[0] = square ? mt_mul(square, in[0]) : NULL;
    return out[0] ? MT_OK : mt_last_status();
}

static void a_checkpoint_changes_nothing(void **state)
{
    (void)state;
    for (int checkpointed = 0; checkpointed < 2; checkpointed++) {
        MT_AUTO mt_tensor *x = narrow_leaf(MT_BF16);
        mtt_ok(mt_set_grad_dtype(x, MT_F32));
        mt_tensor *y = NULL;
        mtt_ok(checkpointed ? mt_checkpoint(cubed, NULL, NULL, 1, &x, 1, &y, NULL)
                            : cubed(NULL, 1, &x, 1, &y));
        MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
        mt_release(y);
        mtt_ok(mt_backward(loss));
        assert_all(mt_grad(x), MT_F32, 3);
    }
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = narrow_leaf(MT_BF16);
    MT_AUTO mt_tensor *y = mtt_made(mt_mul(x, x));
    MT_AUTO mt_tensor *index = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(N)));
    MT_AUTO mt_tensor *wide = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(N)));
    MT_AUTO mt_tensor *own = mtt_made(mt_zeros(device, MT_BF16, MT_SHAPE(N)));
    assert_int_equal(mt_set_grad_dtype(y, MT_F32), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "need a leaf", "made by mul");
    assert_int_equal(mt_set_grad_dtype(x, MT_I64), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "set_grad_dtype", "i64");
    assert_int_equal(mt_set_grad_dtype(index, MT_F32), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "set_grad_dtype", "i64");
    assert_int_equal(mt_set_grad(x, wide), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "set_grad", "need bf16");
    mtt_ok(mt_set_grad(x, own));
    assert_int_equal(mt_set_grad_dtype(x, MT_F32), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "has a gradient of bf16", "one of f32");
    mtt_ok(mt_set_grad_dtype(x, MT_BF16));
    mtt_ok(mt_set_grad(x, NULL));
    mtt_ok(mt_set_grad_dtype(x, MT_F32));
    mtt_ok(mt_set_grad(x, wide));
    backward_of(x, 3);
    assert_all(wide, MT_F32, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(f32_keeps_what_16_bits_round_away),
        mtt_test(uses_are_summed_in_f32_and_hooks_see_it),
        mtt_test(a_hook_returns_the_dtype_that_it_got),
        mtt_test(gradients_has_that_dtype_too),
        mtt_test(any_layout_is_cast),
        mtt_test(the_books_show_4_bytes),
        mtt_test(a_checkpoint_changes_nothing),
        mtt_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests_name("dtype of gradients", tests, mtt_open_device,
                                       mtt_close_device);
}
