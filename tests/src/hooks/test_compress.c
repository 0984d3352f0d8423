/* Saved tensors in fewer bytes: which ones, how many bytes, and the effect on gradients. */
#include <math.h>
#include <string.h>
#include "autograd/autograd.h"
#include "memtape/checkpoint.h"
#include "ops/ops.h"
#include "compressed.h"

/* ---- exact rules ---- */

static mt_tensor *leaky(mt_tensor *x) { return mt_leaky_relu(x, 0.1); }
static mt_tensor *relu_inplace(mt_tensor *x)
{
    return mt_relu_inplace(x) == MT_OK ? mt_retain(x) : NULL;
}
static mt_tensor *leaky_inplace(mt_tensor *x)
{
    return mt_leaky_relu_inplace(x, 0.1) == MT_OK ? mt_retain(x) : NULL;
}

static mt_tensor *direct(net *n, act_fn *act)
{
    mt_tensor *h = mt_linear(n->x, n->w1, NULL);
    if (h) mt_set(&h, act(h));
    if (h) mt_set(&h, mt_linear(h, n->w2, NULL));
    if (h) mt_set(&h, mt_mean_all(h));
    return h;
}

static void check_exact(net_fn *fn, act_fn *act, unsigned rules, size_t lowered_by)
{
    static const mt_dtype floats[] = {MT_F32, MT_BF16, MT_F16, MT_F64};
    for (int t = 0; t < 4; t++) {
        net n = open_net(floats[t]);
        outcome exact = run(&n, fn, act, NULL);
        mt_compress *c = compressor(rules);
        outcome o = run(&n, fn, act, c);
        for (int i = 0; i < 3; i++) assert_true(mtt_same_bits(o.grad[i], exact.grad[i]));
        assert_true(worst_error(&o, &exact) == 0);
        size_t signs = lowered_by ? hidden * mt_dtype_size(floats[t]) - hidden / 8 : 0;
        size_t mask = rules & RULE(MASK_SEED)   ? hidden
                      : rules & RULE(MASK_BITS) ? hidden - hidden / 8
                                                : 0;
        assert_int_equal(o.saved, exact.saved - signs - mask);
        assert_int_equal(o.stats.in_vain.n, 0);
        free_outcome(&o);
        free_outcome(&exact);
        mt_compress_free(c);
        close_net(&n);
    }
}

static void masks_packed_as_bits_or_seeds_give_the_same_gradient_bits(void **state)
{
    (void)state;
    check_exact(mlp, mt_gelu, RULE(MASK_BITS), 0);
    check_exact(mlp, mt_gelu, RULE(MASK_SEED), 0);
    check_exact(mlp, mt_gelu, RULE(MASK_SEED) | RULE(MASK_BITS), 0);
}

static void signs_give_the_same_gradient_bits_as_the_whole_tensor(void **state)
{
    (void)state;
    check_exact(mlp, mt_relu, RULE(SIGNS), 1);
    check_exact(mlp, relu_inplace, RULE(SIGNS), 1);
    check_exact(mlp, leaky, RULE(SIGNS), 1);
    check_exact(mlp, leaky_inplace, RULE(SIGNS), 1);
    check_exact(mlp, mt_relu, RULE(SIGNS) | RULE(MASK_SEED), 1);
}

/* ---- the op's row alone decides ---- */

/* y = exp(relu(x w^T)): exp is recomputed from relu's output, which the policy keeps. */
static mt_status one_layer(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    (void)user, (void)n_in, (void)n_out;
    MT_AUTO mt_tensor *h = mt_linear(in[0], in[1], NULL);
    mt_set(&h, mt_relu(h));
    return (out[0] = mt_exp(h)) ? MT_OK : mt_last_status();
}

static mt_policy keep_relu(void *user, const mt_op_call *call)
{
    (void)user;
    return strcmp(call->op, "relu") ? MT_MUST_RECOMPUTE : MT_MUST_SAVE;
}

static mt_tensor *relu_kept_by_a_policy(net *n, act_fn *act)
{
    (void)act;
    const mt_checkpoint_options options = {.policy = keep_relu};
    mt_tensor *in[2] = {n->x, n->w1}, *h;
    mtt_ok(mt_checkpoint(one_layer, NULL, NULL, 2, in, 1, &h, &options));
    mt_set(&h, mt_linear(h, n->w2, NULL));
    mt_set(&h, mt_mean_all(h));
    return h;
}

/* A checkpoint keeps relu's output for its values: relu's row says what relu's backward reads, not
 * what a checkpoint reads. */
static void an_output_of_relu_that_a_checkpoint_keeps_is_not_packed_as_signs(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, relu_kept_by_a_policy, NULL, NULL);
    mt_compress *c = compressor(RULE(SIGNS));
    outcome o = run(&n, relu_kept_by_a_policy, NULL, c);
    for (int i = 0; i < 3; i++) assert_true(mtt_same_bits(o.grad[i], exact.grad[i]));
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_SIGNS].n, 0);
    free_outcome(&o);
    free_outcome(&exact);
    mt_compress_free(c);
    close_net(&n);
}

static bool gate_forward(mti_call *c)
{
    return c->k->unary(c->ctx, MTI_UNARY_relu, 0, 0, mti_in(c, 0), mti_out(c, 0));
}
static bool gate_backward(mti_call *c)
{
    const mti_view *dx = mti_din(c, 0);
    return dx && c->k->unary_backward(c->ctx, MTI_UNARY_relu, 0, 0, mti_saved(c, MTI_IN0),
                                      mti_dout(c), dx);
}
static const mti_op_code gate_code = {mti_shape_same, gate_forward, gate_backward, MTI_UNARY_COUNT};
static const mti_op gate_op = {.name = "a gate that no list knows",
                               .n_in = 1,
                               .keep = {MTI_SIGN(MTI_IN0)},
                               .in = {"x"},
                               .out = {"y"},
                               .code = &gate_code};
static mt_tensor *gate(mt_tensor *x)
{
    mt_tensor *y;
    return mti_apply(&gate_op, NULL, 1, &x, 1, &y) ? y : NULL;
}

static void an_op_whose_row_says_that_signs_suffice_is_packed_as_signs(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, direct, gate, NULL);
    mt_compress *c = compressor(RULE(SIGNS));
    outcome o = run(&n, direct, gate, c);
    for (int i = 0; i < 3; i++) assert_true(mtt_same_bits(o.grad[i], exact.grad[i]));
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_SIGNS].n, 1);
    assert_int_equal(o.saved, exact.saved - hidden * sizeof(float) + hidden / 8);
    free_outcome(&o);
    free_outcome(&exact);
    mt_compress_free(c);
    close_net(&n);
}

static void by_default_the_exact_rules_are_on_and_small_storages_are_not_packed(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, mlp, mt_relu, NULL);
    mt_compress *c = mt_compress_new(device, NULL);
    outcome o = run(&n, mlp, mt_relu, c);
    assert_int_equal(o.saved, exact.saved - hidden - (4 * hidden - hidden / 8));
    assert_true(worst_error(&o, &exact) == 0);
    free_outcome(&o);
    mt_compress_free(c);
    c = mt_compress_new(device, &(mt_compress_options){.min_bytes = hidden + 1});
    o = run(&n, mlp, mt_relu, c);
    assert_int_equal(o.saved, exact.saved - (4 * hidden - hidden / 8));
    free_outcome(&o);
    free_outcome(&exact);
    mt_compress_free(c);
    close_net(&n);
}

static void the_report_says_where_packing_saves_nothing(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, direct, mt_relu, NULL);
    mt_compress *c = compressor(RULE(SIGNS));
    outcome o = run(&n, direct, mt_relu, c);
    assert_int_equal(o.saved, exact.saved + hidden / 8);
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_SIGNS].n, 1);
    assert_int_equal(o.stats.in_vain.n, 1);
    assert_int_equal(o.stats.in_vain.bytes_before, 4 * hidden);
    assert_int_equal(o.stats.in_vain.bytes_after, hidden / 8);
    assert_true(worst_error(&o, &exact) == 0);
    free_outcome(&o);
    free_outcome(&exact);
    mt_compress_free(c);
    close_net(&n);
}

/* ---- rules that round ---- */

static void bf16_and_int8_take_the_bytes_of_their_formulas_with_small_errors(void **state)
{
    (void)state;
    net n = open_net(MT_F32);
    outcome exact = run(&n, mlp, mt_gelu, NULL);
    /* x (the caller's, but saved), gelu's input, the mask, the second product's input */
    assert_int_equal(exact.saved, 4 * input + 4 * hidden + hidden + 4 * hidden);
    mt_compress *c = compressor(RULE(BF16));
    outcome o = run(&n, mlp, mt_gelu, c);
    assert_int_equal(o.saved, 2 * input + 2 * hidden + hidden + 2 * hidden);
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_BF16].n, 3);
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_BF16].bytes_before, 4 * input + 8 * hidden);
    assert_int_equal(o.stats.by_rule[MT_COMPRESS_BF16].bytes_after, 2 * input + 4 * hidden);
    assert_int_equal(o.stats.in_vain.n, 1); /* x is held by this test */
    double error = worst_error(&o, &exact);
    assert_true(error > 0 && error < 0x1p-8);
    free_outcome(&o);
    mt_compress_free(c);
    c = compressor(RULE(INT8) | RULE(BF16) | RULE(MASK_BITS));
    o = run(&n, mlp, mt_gelu, c);
    assert_int_equal(o.saved, int8_bytes(input) + 2 * int8_bytes(hidden) + hidden / 8);
    error = worst_error(&o, &exact);
    assert_true(error > 0 && error < 0.01);
    free_outcome(&o);
    free_outcome(&exact);
    mt_compress_free(c);
    close_net(&n);
}

static void sixteen_bit_floats_become_int8_and_f64_is_not_packed(void **state)
{
    (void)state;
    static const mt_dtype floats[] = {MT_BF16, MT_F16, MT_F64};
    for (int t = 0; t < 3; t++) {
        net n = open_net(floats[t]);
        outcome exact = run(&n, mlp, mt_gelu, NULL);
        mt_compress *c = compressor(RULE(INT8) | RULE(BF16));
        outcome o = run(&n, mlp, mt_gelu, c);
        if (floats[t] == MT_F64)
            assert_int_equal(o.saved, exact.saved);
        else
            assert_int_equal(o.saved, int8_bytes(input) + 2 * int8_bytes(hidden) + hidden);
        assert_true(worst_error(&o, &exact) < 0.02);
        free_outcome(&o);
        free_outcome(&exact);
        mt_compress_free(c);
        close_net(&n);
    }
}

/* Layer norm keeps x, its weight, mean and rstd; attention its log-sum-exp and generator state. */
static void statistics_parameters_and_integers_are_not_packed(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(MT_F32, MT_SHAPE(2, 2, 16, 8), 1);
    MT_AUTO mt_tensor *w = leaf(MT_F32, MT_SHAPE(8), 2);
    MT_AUTO mt_tensor *table = leaf(MT_F32, MT_SHAPE(8, 8), 2);
    MT_AUTO mt_tensor *index = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(600)));
    mtt_ok(mt_set_category(w, MT_PARAMETER));
    mt_compress *c = compressor(RULE(INT8) | RULE(BF16) | RULE(MASK_BITS) | RULE(MASK_SEED));
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    mtt_ok(mt_compress_begin(c));
    MT_AUTO mt_tensor *h = mtt_made(mt_layer_norm(x, w, NULL, 1e-5));
    MT_AUTO mt_tensor *y = mtt_made(mt_flash_attention(h, h, h, 0, true, 0.1));
    MT_AUTO mt_tensor *z = mtt_made(mt_embedding(index, table, NULL));
    mtt_ok(mt_compress_end(c));
    mtt_ok(mt_ledger_end(ledger));
    size_t n = 2 * 2 * 16 * 8, rows = n / 8;
    /* x, h and out packed; mean, rstd, lse; seed and offset; indices */
    assert_int_equal(mt_ledger_bytes(ledger),
                     3 * int8_bytes(n) + 2 * 4 * rows + 4 * rows + 16 + 8 * 600);
    mt_ledger_free(ledger);
    mt_compress_free(c);
}

static void the_relative_error_is_that_of_the_norms(void **state)
{
    (void)state;
    const double a[] = {3, 4}, b[] = {3, 5};
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(2), a));
    MT_AUTO mt_tensor *y = mtt_made(mtt_from_doubles(device, MT_BF16, MT_SHAPE(2), b));
    assert_true(fabs(mt_relative_error(y, x) - 0.2) < 1e-12);
    assert_true(mt_relative_error(x, x) == 0);
    assert_true(isnan(mt_relative_error(x, NULL)));
    mt_clear_error();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(masks_packed_as_bits_or_seeds_give_the_same_gradient_bits),
        mtt_test(signs_give_the_same_gradient_bits_as_the_whole_tensor),
        mtt_test(an_output_of_relu_that_a_checkpoint_keeps_is_not_packed_as_signs),
        mtt_test(an_op_whose_row_says_that_signs_suffice_is_packed_as_signs),
        mtt_test(by_default_the_exact_rules_are_on_and_small_storages_are_not_packed),
        mtt_test(the_report_says_where_packing_saves_nothing),
        mtt_test(bf16_and_int8_take_the_bytes_of_their_formulas_with_small_errors),
        mtt_test(sixteen_bit_floats_become_int8_and_f64_is_not_packed),
        mtt_test(statistics_parameters_and_integers_are_not_packed),
        mtt_test(the_relative_error_is_that_of_the_norms),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
