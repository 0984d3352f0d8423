/* Checkpointed functions: the same gradient bits with less memory. */
#include "rerun.h"

static void gradients_have_the_same_bits(void **state)
{
    (void)state;
    for (int n_in = 1; n_in <= 2; n_in++) {
        for (int n_out = 1; n_out <= 2; n_out++) {
            for (int stop = 0; stop < 2; stop++) {
                setup a = set_up(0.3);
                mtt_ok(forward(&a, true, n_in, n_out, NULL));
                mtt_ok(mt_backward(a.loss));
                setup b = set_up(0.3);
                const mt_checkpoint_options options = {.no_early_stop = stop, .check = true};
                mtt_ok(forward(&b, false, n_in, n_out, &options));
                uint64_t seed[2], offset[2];
                mt_rng_get(device, &seed[0], &offset[0]);
                mtt_ok(mt_backward(b.loss));
                mt_rng_get(device, &seed[1], &offset[1]);
                assert_int_equal(seed[0], seed[1]);
                assert_int_equal(offset[0], offset[1]);
                assert_int_equal(b.d.calls, 2);
                assert_int_equal(b.d.destroys, 1);
                assert_int_equal(mt_last_status(), MT_OK);
                assert_same_grads(&a, &b, n_in);
                tear_down(&a);
                tear_down(&b);
            }
        }
    }
}

/* ---- what is kept ---- */

static void only_the_inputs_are_kept_and_a_ledger_sees_them(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    mt_ledger *ledger = mt_ledger_new(device);
    size_t before = mtt_allocated(device);
    mtt_ok(mt_ledger_begin(ledger));
    mtt_ok(forward(&s, false, 2, 1, NULL));
    mtt_ok(mt_ledger_end(ledger));
    assert_int_equal(mt_ledger_bytes(ledger), 2 * ROWS * N * 4);
    assert_int_equal(mt_ledger_count(ledger), 2);
    for (size_t i = 0; i < 2; i++) {
        mt_ledger_entry e;
        mtt_ok(mt_ledger_get(ledger, i, &e));
        assert_string_equal(e.saver.op, "checkpoint");
        assert_string_equal(e.saver.argument, i ? "x1" : "x0");
    }
    /* The inputs existed before; only the scalar loss is new. */
    assert_int_equal(mtt_allocated(device) - before, mt_storage_of(s.loss).allocated);
    mtt_ok(mt_backward(s.loss));
    mt_ledger_free(ledger);
    tear_down(&s);
}

/* PyTorch's frame is held by what its function saved, and holds the inputs: if there is nothing,
 * nothing is kept. */
static void around_what_needs_no_gradient_nothing_is_kept(void **state)
{
    (void)state;
    for (int depth = 0; depth <= 2; depth++) {
        setup s = set_up(0);
        nest n = {&s, depth, 0};
        mt_ledger *ledger = mt_ledger_new(device);
        mt_checkpoint_report *report = mt_checkpoint_report_new();
        const mt_checkpoint_options options = {.report = report};
        mtt_ok(mt_set_requires_grad(s.d.w, false));
        for (int i = 0; i < 2; i++) mtt_ok(mt_set_requires_grad(s.x[i], false));
        size_t before = mtt_allocated(device);
        mtt_ok(mt_ledger_begin(ledger));
        mt_tensor *input = mtt_made(mt_gelu(s.x[0]));
        mtt_ok(mt_checkpoint(nested, &n, NULL, 1, &input, 1, s.out, &options));
        mt_release(input);
        mtt_ok(mt_ledger_end(ledger));
        assert_int_equal(mt_ledger_bytes(ledger), 0);
        assert_int_equal(mt_ledger_count(ledger), 0);
        assert_int_equal(mtt_allocated(device) - before, mt_storage_of(s.out[0]).allocated);
        size_t between = 1;
        mt_checkpoint_report_totals(report, &between, NULL);
        assert_int_equal(between, 0);
        assert_int_equal(mt_checkpoint_lint(report, NULL, 0), 0);
        mt_checkpoint_report_free(report);
        mt_ledger_free(ledger);
        tear_down(&s);
    }
}

static void recomputed_tensors_are_freed_with_their_node(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    mtt_ok(forward(&s, false, 1, 1, NULL));
    size_t before = mtt_allocated(device);
    mtt_ok(mt_backward(s.loss));
    size_t grads = 0;
    for (int i = 0; i < 2; i++) {
        mt_tensor *g = mt_grad(i ? s.d.w : s.x[0]);
        grads += mt_storage_of(g).allocated;
    }
    assert_int_equal(mtt_allocated(device) - before, grads);
    assert_int_equal(s.d.destroys, 1);
    tear_down(&s);
}

static void without_recording_a_checkpoint_is_a_plain_call(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    mt_set_grad_mode(false);
    mtt_ok(mt_checkpoint(fn, &s.d, count_destroy, 1, s.x, 1, s.out, NULL));
    mt_set_grad_mode(true);
    assert_false(mt_requires_grad(s.out[0]));
    assert_int_equal(s.d.destroys, 1);
    tear_down(&s);
}

static void releasing_an_unused_result_frees_the_functions_data(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    mtt_ok(mt_checkpoint(fn, &s.d, count_destroy, 1, s.x, 1, s.out, NULL));
    assert_int_equal(s.d.destroys, 0);
    mt_release(s.out[0]);
    s.out[0] = NULL;
    assert_int_equal(s.d.destroys, 1);
    tear_down(&s);
}

/* ---- backward twice ---- */

static void a_second_backward_runs_the_function_again(void **state)
{
    (void)state;
    setup a = set_up(0.3), b;
    const mt_backward_options retain = {.retain_graph = true};
    mtt_ok(forward(&a, true, 2, 2, NULL));
    mtt_ok(mt_backward_with(a.loss, &retain));
    mtt_ok(mt_backward(a.loss));
    b = set_up(0.3);
    mtt_ok(forward(&b, false, 2, 2, &(mt_checkpoint_options){.check = true}));
    size_t before = mtt_allocated(device);
    mtt_ok(mt_backward_with(b.loss, &retain));
    assert_int_equal(b.d.calls, 2);
    /* No recomputed tensor is left. */
    size_t grads = 0;
    for (int i = 0; i < 3; i++) grads += mt_storage_of(mt_grad(i < 2 ? b.x[i] : b.d.w)).allocated;
    assert_int_equal(mtt_allocated(device) - before, grads);
    mtt_ok(mt_backward(b.loss));
    assert_int_equal(b.d.calls, 3);
    assert_int_equal(b.d.destroys, 1);
    assert_same_grads(&a, &b, 2);
    assert_int_equal(mt_backward(b.loss), MT_ERR_STATE);
    mt_clear_error();
    tear_down(&a);
    tear_down(&b);
}

/* y0's readers are two products and a view, which share what is made again; y1's keeps nothing. */
static mt_tensor *read_outputs(setup *s)
{
    MT_AUTO mt_tensor *turned = mt_transpose(s->out[0], 0, 1);
    MT_AUTO mt_tensor *square = mt_matmul(turned, s->out[0]);
    MT_AUTO mt_tensor *wide = mt_linear(s->out[0], s->d.w, NULL);
    MT_AUTO mt_tensor *sum = mt_sum_all(square), *other = mt_sum_all(wide);
    mt_tensor *loss = mt_add(sum, other);
    MT_AUTO mt_tensor *last = mt_mean_all(s->out[1]);
    mt_set(&loss, mt_add(loss, last));
    for (int i = 0; i < 2; i++) mt_release(s->out[i]), s->out[i] = NULL;
    return loss;
}

static void discarded_outputs_are_made_again_for_what_saved_them(void **state)
{
    (void)state;
    const mt_backward_options retain = {.retain_graph = true};
    setup a = set_up(0.3), b;
    mtt_ok(fn(&a.d, 2, a.x, 2, a.out));
    a.loss = mtt_made(read_outputs(&a));
    mtt_ok(mt_backward_with(a.loss, &retain));
    mtt_ok(mt_backward(a.loss));
    b = set_up(0.3);
    mt_ledger *ledger = mt_ledger_new(device);
    const mt_checkpoint_options options = {.check = true, .discard_outputs = true};
    size_t before = mtt_allocated(device);
    mtt_ok(mt_ledger_begin(ledger));
    mtt_ok(mt_checkpoint(fn, &b.d, count_destroy, 2, b.x, 2, b.out, &options));
    b.loss = mtt_made(read_outputs(&b));
    mtt_ok(mt_pop_saved_hooks());
    mtt_ok(mt_ledger_end(ledger));
    assert_int_equal(mt_ledger_bytes(ledger), 2 * ROWS * N * 4); /* the inputs */
    assert_int_equal(mtt_allocated(device) - before, mt_storage_of(b.loss).allocated);
    before = mtt_allocated(device);
    mtt_ok(mt_backward_with(b.loss, &retain));
    assert_int_equal(b.d.calls, 2);
    size_t grads = 0;
    for (int i = 0; i < 3; i++) grads += mt_storage_of(mt_grad(i < 2 ? b.x[i] : b.d.w)).allocated;
    assert_int_equal(mtt_allocated(device) - before, grads);
    mtt_ok(mt_backward(b.loss));
    assert_int_equal(b.d.calls, 3);
    assert_int_equal(b.d.destroys, 1);
    assert_same_grads(&a, &b, 2);
    mt_ledger_free(ledger);
    tear_down(&a);
    tear_down(&b);
}

/* Where nothing wants a gradient but what reads an output, that is made again, too; and without
 * recording there is a hook to pop as well. */
static void outputs_of_a_frozen_function_are_discarded(void **state)
{
    (void)state;
    for (int recording = 0; recording < 2; recording++) {
        setup s = set_up(0);
        const mt_checkpoint_options options = {.discard_outputs = true};
        for (int i = 0; i < 2; i++) mtt_ok(mt_set_requires_grad(s.x[i], false));
        mtt_ok(mt_set_requires_grad(s.d.w, false));
        MT_AUTO mt_tensor *w = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(N, N)));
        mtt_ok(mt_set_requires_grad(w, true));
        const bool was = mt_set_grad_mode(recording);
        mtt_ok(mt_checkpoint(fn, &s.d, count_destroy, 1, s.x, 1, s.out, &options));
        s.loss = mtt_made(mt_linear(s.out[0], w, NULL));
        mt_set(&s.loss, mt_sum_all(s.loss));
        mtt_ok(mt_pop_saved_hooks());
        mt_set_grad_mode(was);
        if (recording) mtt_ok(mt_backward(s.loss));
        assert_int_equal(s.d.calls, 1 + recording);
        assert_int_equal(s.d.destroys, 1);
        tear_down(&s);
    }
}

/* One backward for each of two outputs: recomputed tensors that the first does not need are kept
 * for the second. */
static void two_outputs_may_each_have_a_backward(void **state)
{
    (void)state;
    setup a = set_up(0), b = set_up(0);
    setup *both[2] = {&a, &b};
    for (int k = 0; k < 2; k++) {
        setup *s = both[k];
        if (k)
            mtt_ok(mt_checkpoint(fn, &s->d, NULL, 2, s->x, 2, s->out, NULL));
        else
            mtt_ok(fn(&s->d, 2, s->x, 2, s->out));
        s->loss = mtt_made(mt_sum_all(s->out[1]));
        mtt_ok(mt_backward(s->loss));
        mt_set(&s->loss, mtt_made(mt_sum_all(s->out[0])));
        mtt_ok(mt_backward(s->loss));
    }
    assert_int_equal(b.d.calls, 2);
    assert_same_grads(&a, &b, 2);
    tear_down(&a);
    tear_down(&b);
}

/* ---- nesting ---- */

static void checkpoints_nest(void **state)
{
    (void)state;
    setup results[4];
    for (int depth = 0; depth < 4; depth++) {
        setup *s = &results[depth];
        *s = set_up(0.3);
        nest n = {s, depth, 0};
        /* the plain run has the same ops */
        mtt_ok(nested(&n, 2, s->x, 1, s->out));
        for (int k = depth; k < 3; k++) mtt_ok(mt_set(&s->out[0], mt_gelu(s->out[0])));
        s->loss = mtt_made(mt_sum_all(s->out[0]));
        mt_release(s->out[0]);
        s->out[0] = NULL;
        mtt_ok(mt_backward(s->loss));
        assert_int_equal(mt_last_status(), MT_OK);
        /* Once in forward, and once for each checkpoint around the function. */
        assert_int_equal(s->d.calls % 1000, depth + 1);
        if (depth) assert_same_grads(&results[0], s, 2);
    }
    for (int depth = 0; depth < 4; depth++) tear_down(&results[depth]);
}

/* ---- hooks outside the checkpoint ---- */

static mt_status pack_as_f64(void *user, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                             void **state)
{
    (void)info, (void)state;
    if (mt_storage_of(t).category == MT_PARAMETER) return MT_OK;
    ++*(int *)user;
    mt_tensor *copy = mt_cast(t, MT_F64);
    if (!copy) return mt_last_status();
    *kept = copy;
    return MT_OK;
}

static mt_status unpack_as_f32(void *user, const mt_save_info *info, mt_tensor **t, void *state)
{
    (void)user, (void)info, (void)state;
    if (mt_dtype_of(*t) != MT_F64) return MT_OK;
    mt_tensor *narrow = mt_cast(*t, MT_F32);
    if (!narrow) return mt_last_status();
    *t = narrow;
    return MT_OK;
}

static void inputs_pass_the_hooks_around_the_checkpoint(void **state)
{
    (void)state;
    setup a = set_up(0.3), b;
    int n = 0;
    const mt_saved_hooks hooks = {.pack = pack_as_f64, .unpack = unpack_as_f32};
    mtt_ok(forward(&a, true, 2, 1, NULL));
    mtt_ok(mt_backward(a.loss));
    b = set_up(0.3);
    mtt_ok(mt_push_saved_hooks(&hooks, &n));
    mtt_ok(mt_checkpoint(fn, &b.d, NULL, 2, b.x, 1, b.out, NULL));
    mtt_ok(mt_pop_saved_hooks());
    assert_int_equal(n, 2); /* the two inputs, but nothing that the ops saved */
    b.loss = mtt_made(mt_sum_all(b.out[0]));
    mt_set_balance_check(device, true);
    mtt_ok(mt_backward(b.loss));
    mtt_ok(mt_check_balance(device));
    assert_same_grads(&a, &b, 2);
    tear_down(&a);
    tear_down(&b);
}

/* ---- flops and phases ---- */

static void flops_of_recomputation_are_counted_separately(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    mt_flops_reset(device);
    mtt_ok(forward(&s, false, 1, 1, &(mt_checkpoint_options){.no_early_stop = true}));
    mt_flops there = mt_flops_get(device);
    assert_int_equal(there.forward, 2 * 2 * ROWS * N * N);
    assert_int_equal(there.recompute, 0);
    mtt_ok(mt_backward(s.loss));
    mt_flops back_again = mt_flops_get(device);
    assert_int_equal(back_again.forward, there.forward);
    assert_int_equal(back_again.recompute, there.forward);
    assert_int_equal(back_again.backward, 2 * there.forward);
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(gradients_have_the_same_bits),
        mtt_test(only_the_inputs_are_kept_and_a_ledger_sees_them),
        mtt_test(around_what_needs_no_gradient_nothing_is_kept),
        mtt_test(recomputed_tensors_are_freed_with_their_node),
        mtt_test(without_recording_a_checkpoint_is_a_plain_call),
        mtt_test(releasing_an_unused_result_frees_the_functions_data),
        mtt_test(a_second_backward_runs_the_function_again),
        mtt_test(discarded_outputs_are_made_again_for_what_saved_them),
        mtt_test(outputs_of_a_frozen_function_are_discarded),
        mtt_test(two_outputs_may_each_have_a_backward),
        mtt_test(checkpoints_nest),
        mtt_test(inputs_pass_the_hooks_around_the_checkpoint),
        mtt_test(flops_of_recomputation_are_counted_separately),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
