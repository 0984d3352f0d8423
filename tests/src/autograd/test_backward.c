/* Backward: leaves, modes, hooks on gradients, and refusals. */
#include <stdio.h>
#include <stdlib.h>
#include "mtt_fixture.h"

static mt_tensor *leaf(void) { return mtt_leaf(4, (float[]){1, 2, 3, 4}); }

static mt_tensor *sum_of_squares(mt_tensor *x)
{
    MT_AUTO mt_tensor *squares = mtt_made(mt_mul(x, x));
    return mtt_made(mt_sum_all(squares));
}

static void assert_values(mt_tensor *t, const double *expected)
{
    double *values = mtt_doubles(t);
    assert_non_null(values);
    for (int64_t i = 0; i < mt_numel(t); i++) assert_true(values[i] == expected[i]);
    free(values);
}
#define assert_grad(x, ...) assert_values(mt_grad(x), (double[]){__VA_ARGS__})

static void gradients_accumulate_until_they_are_dropped(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    assert_null(mt_grad(x));
    for (int i = 1; i <= 3; i++) {
        MT_AUTO mt_tensor *loss = sum_of_squares(x);
        mtt_ok(mt_backward(loss));
        assert_grad(x, 2 * i, 4 * i, 6 * i, 8 * i);
    }
    mtt_ok(mt_set_grad(x, NULL));
    assert_null(mt_grad(x));
    MT_AUTO mt_tensor *loss = sum_of_squares(x);
    mtt_ok(mt_backward(loss));
    assert_grad(x, 2, 4, 6, 8);
}

static void a_retained_graph_runs_again_and_a_freed_one_does_not(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *loss = sum_of_squares(x);
    mtt_ok(mt_backward_with(loss, &(mt_backward_options){.retain_graph = true}));
    mtt_ok(mt_backward(loss));
    assert_grad(x, 4, 8, 12, 16);
    assert_int_equal(mt_backward(loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "mul");
    assert_grad(x, 4, 8, 12, 16);
}

static void a_loss_of_several_elements_needs_a_gradient(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *y = mtt_made(mt_mul(x, x));
    assert_int_not_equal(mt_backward(y), MT_OK);
    mtt_failed(mt_last_status(), "[4]");
    MT_AUTO mt_tensor *d =
        mtt_made(mt_from_data(device, MT_F32, MT_SHAPE(4), (float[]){1, 0, -1, 2}, 16));
    MT_AUTO mt_tensor *short_one = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(3)));
    MT_AUTO mt_tensor *wide_one = mtt_made(mt_zeros(device, MT_F64, MT_SHAPE(4)));
    assert_int_not_equal(mt_backward_with(y, &(mt_backward_options){.gradient = short_one}), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "[3]", "[4]");
    assert_int_not_equal(mt_backward_with(y, &(mt_backward_options){.gradient = wide_one}), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "f64");
    assert_null(mt_grad(x));
    mtt_ok(mt_backward_with(y, &(mt_backward_options){.gradient = d}));
    assert_grad(x, 2, 0, -6, 16);
}

static void backward_from_a_tensor_without_history_is_an_error(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mt_full(device, MT_F32, 0, NULL, 1));
    assert_int_not_equal(mt_backward(x), MT_OK);
    assert_int_not_equal(mt_last_status(), MT_OK);
    mt_clear_error();
    assert_int_not_equal(mt_backward(NULL), MT_OK);
    mt_clear_error();
}

static void changing_a_saved_tensor_names_op_argument_and_versions(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_add_scalar(x, 1));
    MT_AUTO mt_tensor *y = mtt_made(mt_gelu(h));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    uint64_t before = mt_storage_of(h).version;
    MT_AUTO mt_tensor *detached = mtt_made(mt_detach(h));
    mtt_ok(mt_fill(detached, 9));
    assert_true(mt_storage_of(h).version > before);
    char saved[32], now[32];
    snprintf(saved, sizeof saved, "%llu", (unsigned long long)before);
    snprintf(now, sizeof now, "%llu", (unsigned long long)mt_storage_of(h).version);
    assert_int_equal(mt_backward(loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "gelu", "x", saved, now);
    assert_null(mt_grad(x));
}

static void a_view_shares_the_version_of_its_storage(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_add_scalar(x, 1));
    MT_AUTO mt_tensor *loss = sum_of_squares(h);
    MT_AUTO mt_tensor *detached = mtt_made(mt_detach(h));
    MT_AUTO mt_tensor *part = mtt_made(mt_slice(detached, 0, 3, 1));
    mtt_ok(mt_fill(part, 9));
    assert_true(mt_storage_of(part).version == mt_storage_of(h).version);
    assert_int_equal(mt_backward(loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "mul");
}

static void changing_an_unsaved_tensor_is_allowed(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_add_scalar(x, 1));
    MT_AUTO mt_tensor *y = mtt_made(mt_relu(h)); /* keeps y, not h */
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mtt_ok(mt_relu_inplace(h));
    mtt_ok(mt_backward(loss));
    assert_grad(x, 1, 1, 1, 1);
}

static void an_op_in_place_refuses_a_leaf_that_requires_grad_but_fill_sets_it(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    assert_int_not_equal(mt_relu_inplace(x), MT_OK);
    assert_int_not_equal(mt_last_status(), MT_OK);
    mt_clear_error();
    mtt_ok(mt_fill(x, 5)); /* not recorded, so weights can be set */
    assert_values(x, (double[]){5, 5, 5, 5});
}

static void without_grad_nothing_is_recorded(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    assert_true(mt_grad_mode());
    bool was = mt_set_grad_mode(false);
    assert_true(was);
    assert_false(mt_grad_mode());
    MT_AUTO mt_tensor *y = mtt_made(mt_mul(x, x));
    mt_set_grad_mode(was);
    assert_false(mt_requires_grad(y));
    assert_string_equal(mt_grad_fn_name(y), "");
    assert_true(mt_grad_fn_sequence(y) == 0);
}

static void detach_ends_the_history_and_shares_the_storage(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_mul_scalar(x, 3));
    MT_AUTO mt_tensor *d = mtt_made(mt_detach(h));
    assert_false(mt_requires_grad(d));
    assert_true(mt_same_storage(h, d));
    MT_AUTO mt_tensor *product = mtt_made(mt_mul(h, d));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(product));
    mtt_ok(mt_backward(loss));
    assert_grad(x, 9, 18, 27, 36); /* from one path only */
}

static void a_node_has_its_ops_name_and_increasing_numbers(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *a = mtt_made(mt_mul(x, x));
    MT_AUTO mt_tensor *b = mtt_made(mt_gelu(a));
    assert_string_equal(mt_grad_fn_name(x), "");
    assert_string_equal(mt_grad_fn_name(a), "mul");
    assert_string_equal(mt_grad_fn_name(b), "gelu");
    assert_true(mt_grad_fn_sequence(a) > 0);
    assert_true(mt_grad_fn_sequence(b) > mt_grad_fn_sequence(a));
}

static void only_floating_leaves_can_require_grad(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *index = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(3)));
    assert_int_not_equal(mt_set_requires_grad(index, true), MT_OK);
    mt_clear_error();
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *y = mtt_made(mt_mul(x, x));
    assert_int_not_equal(mt_set_requires_grad(y, false), MT_OK);
    mt_clear_error();
}

static void a_given_gradient_must_fit(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *g = mtt_made(mt_full(device, MT_F32, MT_SHAPE(4), 7));
    MT_AUTO mt_tensor *other = mtt_made(mt_full(device, MT_F32, MT_SHAPE(2, 2), 7));
    assert_int_not_equal(mt_set_grad(x, other), MT_OK);
    mt_clear_error();
    mtt_ok(mt_set_grad(x, g));
    MT_AUTO mt_tensor *loss = sum_of_squares(x);
    mtt_ok(mt_backward(loss));
    assert_grad(x, 9, 11, 13, 15);
}

/* ---- hooks on gradients ---- */

static mt_tensor *times_ten(void *calls, mt_tensor *grad)
{
    ++*(int *)calls;
    return mt_mul_scalar(grad, 10);
}
static mt_tensor *plus_one(void *calls, mt_tensor *grad)
{
    ++*(int *)calls;
    return mt_add_scalar(grad, 1);
}
static mt_tensor *look(void *calls, mt_tensor *grad)
{
    ++*(int *)calls;
    return mt_retain(grad);
}
static mt_tensor *refuse(void *user, mt_tensor *grad)
{
    (void)user;
    (void)grad;
    return NULL;
}

static void gradient_hooks_run_in_the_order_of_adding(void **state)
{
    (void)state;
    int calls = 0;
    MT_AUTO mt_tensor *x = leaf();
    assert_true(mt_add_grad_hook(x, times_ten, &calls) > 0);
    assert_true(mt_add_grad_hook(x, plus_one, &calls) > 0);
    MT_AUTO mt_tensor *loss = sum_of_squares(x);
    mtt_ok(mt_backward(loss));
    assert_int_equal(calls, 2);
    assert_grad(x, 21, 41, 61, 81);
}

static void a_hook_on_an_inner_tensor_sees_its_whole_gradient(void **state)
{
    (void)state;
    int calls = 0;
    MT_AUTO mt_tensor *x = leaf();
    MT_AUTO mt_tensor *h = mtt_made(mt_mul_scalar(x, 1));
    assert_true(mt_add_grad_hook(h, plus_one, &calls) > 0);
    MT_AUTO mt_tensor *loss = sum_of_squares(h); /* two paths, one call */
    mtt_ok(mt_backward(loss));
    assert_int_equal(calls, 1);
    assert_grad(x, 3, 5, 7, 9);
}

static void a_removed_hook_is_not_called(void **state)
{
    (void)state;
    int calls = 0;
    MT_AUTO mt_tensor *x = leaf();
    int keep = mt_add_grad_hook(x, look, &calls), gone = mt_add_grad_hook(x, times_ten, &calls);
    assert_true(keep > 0 && gone > 0 && keep != gone);
    mtt_ok(mt_remove_hook(x, gone));
    assert_int_not_equal(mt_remove_hook(x, gone), MT_OK);
    mt_clear_error();
    MT_AUTO mt_tensor *loss = sum_of_squares(x);
    mtt_ok(mt_backward(loss));
    assert_int_equal(calls, 1);
    assert_grad(x, 2, 4, 6, 8);
}

static void a_hook_that_returns_null_fails_the_backward(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    assert_true(mt_add_grad_hook(x, refuse, NULL) > 0);
    MT_AUTO mt_tensor *loss = sum_of_squares(x);
    assert_int_not_equal(mt_backward(loss), MT_OK);
    assert_int_not_equal(mt_last_status(), MT_OK);
    mt_clear_error();
    assert_null(mt_grad(x));
}

/* An optimizer in a leaf hook: it frees the gradient before the next one is made. */
static mt_status step_and_free(void *total, mt_tensor *x)
{
    double *values = mtt_doubles(mt_grad(x));
    if (!values) return MT_ERR_INTERNAL;
    *(double *)total += values[3];
    free(values);
    return mt_set_grad(x, NULL);
}

static void a_leaf_hook_runs_after_accumulation(void **state)
{
    (void)state;
    double total = 0;
    MT_AUTO mt_tensor *x = leaf();
    assert_true(mt_add_leaf_hook(x, step_and_free, &total) > 0);
    for (int i = 0; i < 2; i++) {
        MT_AUTO mt_tensor *loss = sum_of_squares(x);
        mtt_ok(mt_backward(loss));
        assert_null(mt_grad(x));
    }
    assert_true(total == 16);
}

/* ---- lifetimes ---- */

static void a_saved_output_does_not_keep_its_own_node_alive(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    size_t before = mtt_allocated(device);
    mt_release(mtt_made(mt_exp(x)));
    assert_int_equal(mtt_allocated(device), before);
}

static void backward_frees_saved_tensors_even_if_the_loss_is_held(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf();
    size_t before = mtt_allocated(device);
    mt_tensor *h = mtt_made(mt_mul_scalar(x, 1));
    for (int i = 0; i < 5; i++) mt_set(&h, mtt_made(mt_gelu(h)));
    mt_set(&h, mtt_made(mt_sum_all(h)));
    assert_int_equal(mtt_allocated(device),
                     before + 5 * 512 + 512); /* gelus' inputs and the loss */
    mtt_ok(mt_backward(h));
    assert_int_equal(mtt_allocated(device), before + 512 + 512); /* the loss and the gradient */
    mt_release(h);
}

static void releasing_a_leaf_frees_its_gradient(void **state)
{
    (void)state;
    mt_tensor *x = leaf();
    MT_AUTO mt_tensor *loss = sum_of_squares(x);
    mt_release(x);
    mtt_ok(mt_backward(loss));
}

static void null_passes_through_every_op_to_the_end_of_the_chain(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *a = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(2, 3)));
    MT_AUTO mt_tensor *b = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(2, 4)));
    MT_AUTO mt_tensor *h = mt_add(a, b);
    assert_null(h);
    mt_set(&h, mt_gelu(h));
    mt_set(&h, mt_matmul(h, a));
    mt_set(&h, mt_sum_all(h));
    assert_null(h);
    mtt_failed(MT_ERR_ARGUMENT, "add", "[2,3]", "[2,4]");
}

static void tensors_without_elements_go_through_forward_and_backward(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(0, 4)));
    MT_AUTO mt_tensor *w = mtt_made(mt_full(device, MT_F32, MT_SHAPE(3, 4), 1));
    mtt_ok(mt_set_requires_grad(x, true));
    mtt_ok(mt_set_requires_grad(w, true));
    MT_AUTO mt_tensor *h = mtt_made(mt_linear(x, w, NULL));
    mt_set(&h, mtt_made(mt_gelu(h)));
    mt_set(&h, mtt_made(mt_softmax(h, 1, false)));
    mt_set(&h, mtt_made(mt_sum_all(h)));
    assert_true(mt_item(h) == 0);
    mtt_ok(mt_backward(h));
    assert_int_equal(mt_numel(mt_grad(x)), 0);
    assert_values(mt_grad(w), (double[12]){0});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(gradients_accumulate_until_they_are_dropped),
        mtt_test(a_retained_graph_runs_again_and_a_freed_one_does_not),
        mtt_test(a_loss_of_several_elements_needs_a_gradient),
        mtt_test(backward_from_a_tensor_without_history_is_an_error),
        mtt_test(changing_a_saved_tensor_names_op_argument_and_versions),
        mtt_test(a_view_shares_the_version_of_its_storage),
        mtt_test(changing_an_unsaved_tensor_is_allowed),
        mtt_test(an_op_in_place_refuses_a_leaf_that_requires_grad_but_fill_sets_it),
        mtt_test(without_grad_nothing_is_recorded),
        mtt_test(detach_ends_the_history_and_shares_the_storage),
        mtt_test(a_node_has_its_ops_name_and_increasing_numbers),
        mtt_test(only_floating_leaves_can_require_grad),
        mtt_test(a_given_gradient_must_fit),
        mtt_test(gradient_hooks_run_in_the_order_of_adding),
        mtt_test(a_hook_on_an_inner_tensor_sees_its_whole_gradient),
        mtt_test(a_removed_hook_is_not_called),
        mtt_test(a_hook_that_returns_null_fails_the_backward),
        mtt_test(a_leaf_hook_runs_after_accumulation),
        mtt_test(a_saved_output_does_not_keep_its_own_node_alive),
        mtt_test(backward_frees_saved_tensors_even_if_the_loss_is_held),
        mtt_test(releasing_a_leaf_frees_its_gradient),
        mtt_test(null_passes_through_every_op_to_the_end_of_the_chain),
        mtt_test(tensors_without_elements_go_through_forward_and_backward),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
