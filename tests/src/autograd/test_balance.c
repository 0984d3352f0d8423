/* The balance check finds bytes that the counts miss. */
#include "autograd/autograd.h"
#include "mtt_fixture.h"

static mt_tensor *leaf(void)
{
    mt_tensor *x = mtt_made(mt_full(device, MT_F32, MT_SHAPE(4), 1));
    mtt_ok(mt_set_requires_grad(x, true));
    return x;
}

/* ---- an op that keeps a tensor secretly ---- */

static mt_tensor *secret;
static bool leak_forward_on, leak_backward_on;

static bool keep_secretly_in_op(mti_call *c)
{
    mt_tensor *temp = mti_temp(c, MT_F32, MT_SHAPE(16));
    secret = mt_retain(temp);
    return temp != NULL;
}

static bool leaky_shape(mti_call *c) { return mti_out_like(c, &c->in_spec[0]); }
static bool leaky_forward(mti_call *c)
{
    return (!leak_forward_on || keep_secretly_in_op(c)) &&
           c->k->copy(c->ctx, mti_in(c, 0), mti_out(c, 0));
}
static bool leaky_backward(mti_call *c)
{
    const mti_view *dx = mti_din(c, 0);
    return (!leak_backward_on || keep_secretly_in_op(c)) && dx &&
           c->k->copy(c->ctx, mti_dout(c), dx);
}

static const mti_op_code leaky_code = {leaky_shape, leaky_forward, leaky_backward};
static const mti_op leaky_op = {.name = "leaky",
                                .n_in = 1,
                                .in = {"x"},
                                .out = {"y"},
                                .formula = "y = x",
                                .why = "",
                                .code = &leaky_code};

static mt_tensor *apply_leaky(mt_tensor *x)
{
    mt_tensor *out = NULL;
    return mti_apply(&leaky_op, NULL, 1, &x, 1, &out) ? out : NULL;
}

static void release_kept(void)
{
    mt_release(secret);
    secret = NULL;
    leak_forward_on = leak_backward_on = false;
}

static void an_honest_op_passes(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *y = mtt_made(apply_leaky(x));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(loss));
    assert_non_null(mt_grad(x));
}

static void a_tensor_kept_by_a_forward_is_found(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    leak_forward_on = true;
    assert_null(apply_leaky(x));
    mtt_failed(MT_ERR_INTERNAL, "leaky");
    release_kept();
    MT_AUTO mt_tensor *y = mtt_made(apply_leaky(x));
}

static void a_tensor_kept_by_a_backward_is_found(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *y = mtt_made(apply_leaky(x));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    leak_backward_on = true;
    assert_int_equal(mt_backward(loss), MT_ERR_INTERNAL);
    mtt_failed(MT_ERR_INTERNAL, "leaky");
    release_kept();
}

static void without_the_check_the_same_op_goes_unnoticed(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    mtt_ok(mt_set_balance_check(device, false));
    leak_forward_on = true;
    MT_AUTO mt_tensor *y = mtt_made(apply_leaky(x));
    release_kept();
    mtt_ok(mt_set_balance_check(device, true));
}

/* ---- a hook that keeps a copy secretly ---- */

static mt_status keep_secretly(void *user, const mt_save_info *info, mt_tensor *tensor,
                               mt_tensor **kept, void **state)
{
    (void)user, (void)info, (void)kept, (void)state;
    secret = mt_clone(tensor);
    return secret ? MT_OK : mt_last_status();
}

static void a_copy_hidden_by_a_hook_is_found(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    mtt_ok(mt_push_saved_hooks(&(mt_saved_hooks){.pack = keep_secretly}, NULL));
    assert_null(mt_gelu(x));
    mtt_failed(MT_ERR_INTERNAL, "gelu");
    release_kept();
    mtt_ok(mt_pop_saved_hooks());
}

/* ---- wrong counts ---- */

static void a_block_in_a_wrong_category_is_found(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    mtt_ok(mt_check_balance(device));
    mt_category right = x->storage->block->category;
    x->storage->block->category = MT_CACHE; /* behind the allocator's back */
    assert_int_equal(mt_check_balance(device), MT_ERR_INTERNAL);
    mtt_failed(MT_ERR_INTERNAL, "input", "512 by the running total, 0 recounted");
    x->storage->block->category = right;
    mtt_ok(mt_check_balance(device));
}

static void a_block_of_a_wrong_size_is_found(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    x->storage->block->requested += 8;
    assert_int_equal(mt_check_balance(device), MT_ERR_INTERNAL);
    mtt_failed(MT_ERR_INTERNAL, "requested");
    x->storage->block->requested -= 8;
    mtt_ok(mt_check_balance(device));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(an_honest_op_passes),
        mtt_test(a_tensor_kept_by_a_forward_is_found),
        mtt_test(a_tensor_kept_by_a_backward_is_found),
        mtt_test(without_the_check_the_same_op_goes_unnoticed),
        mtt_test(a_copy_hidden_by_a_hook_is_found),
        mtt_test(a_block_in_a_wrong_category_is_found),
        mtt_test(a_block_of_a_wrong_size_is_found),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
