/* Checkpointed functions that fail, or that differ when they run again. */
#include "base/base.h"
#include "rerun.h"

/* ---- differences ---- */

static void a_function_that_differs_when_run_again_is_an_error(void **state)
{
    (void)state;
    static const struct {
        int twist;
        bool check;
        const char *words[4];
    } cases[] = {
        {OTHER_OP,
         false,
         {"op of silu x in fn", "then 2: gelu x f32 [5,6] in fn", "now  2: silu x"}},
        {OTHER_SHAPE,
         false,
         {"shape of linear x in fn", "then 0: linear x f32 [5,6]", "now  0: linear x f32 [1,6]"}},
        {FEWER, false, {"op of dropout mask in fn", "then 2: gelu x", "now  2: dropout mask"}},
        {MORE, false, {"op of exp y in fn", "then 3: dropout mask", "now  3: exp y f32 [5,6]"}},
        {OTHER_VALUE,
         true,
         {"value of linear x in fn", "then 0: linear x f32", "now  0: linear x f32"}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        setup s = set_up(0.3);
        s.d.twist_at = 2, s.d.twist = cases[i].twist;
        mtt_ok(forward(&s, false, 1, 1, &(mt_checkpoint_options){.check = cases[i].check}));
        assert_int_equal(mt_backward(s.loss), MT_ERR_STATE);
        mtt_failed(MT_ERR_STATE, "checkpoint", cases[i].words[0], cases[i].words[1],
                   cases[i].words[2]);
        tear_down(&s);
        assert_int_equal(s.d.destroys, 1);
        assert_int_equal(mtt_allocated(device), 0);
    }
}

static void without_the_check_a_different_value_is_not_noticed(void **state)
{
    (void)state;
    setup s = set_up(0);
    s.d.twist_at = 2, s.d.twist = OTHER_VALUE;
    mtt_ok(forward(&s, false, 1, 1, NULL));
    mtt_ok(mt_backward(s.loss));
    tear_down(&s);
}

static void a_function_that_ends_early_is_an_error(void **state)
{
    (void)state;
    setup s = set_up(0);
    s.d.twist_at = 2,
    s.d.twist = FEWER; /* p is 0, so gelu's tensor is the last one that is missed */
    mtt_ok(forward(&s, false, 1, 1, NULL));
    assert_int_equal(mt_backward(s.loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "running it again saved something else", "forward saved");
    tear_down(&s);
}

static void random_numbers_that_differ_are_an_error(void **state)
{
    (void)state;
    setup s = set_up(0.5);
    const mt_checkpoint_options options = {.check = true, .rng_as_it_is = true};
    mtt_ok(forward(&s, false, 1, 1, &options));
    assert_int_equal(mt_backward(s.loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "value of dropout mask in fn");
    tear_down(&s);
}

static void a_parameter_changed_before_backward_is_an_error(void **state)
{
    (void)state;
    setup s = set_up(0);
    mtt_ok(forward(&s, false, 1, 1, NULL));
    mtt_ok(mt_fill(s.d.w, 0.5));
    assert_int_equal(mt_backward(s.loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "linear backward in fn: w", "changed in place");
    tear_down(&s);
}

static void an_input_changed_before_backward_is_an_error(void **state)
{
    (void)state;
    setup s = set_up(0);
    mtt_ok(forward(&s, false, 2, 1, NULL));
    mtt_ok(mt_fill(s.x[1], 0.5));
    assert_int_equal(mt_backward(s.loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "checkpoint backward", "x1", "changed in place");
    tear_down(&s);
}

/* ---- failures ---- */

static void a_function_that_fails_in_forward_leaves_nothing(void **state)
{
    (void)state;
    setup s = set_up(0);
    s.d.fail_at = 1;
    assert_int_equal(mt_checkpoint(fn, &s.d, count_destroy, 1, s.x, 1, s.out,
                                   &(mt_checkpoint_options){.label = "thing"}),
                     MT_ERR_IO);
    mtt_failed(MT_ERR_IO, "checkpoint thing", "its function failed");
    assert_null(s.out[0]);
    assert_int_equal(s.d.destroys, 1);
    tear_down(&s);
}

static void a_function_that_fails_only_in_backward_may_be_tried_again(void **state)
{
    (void)state;
    setup a = set_up(0.3), b;
    mtt_ok(forward(&a, true, 1, 1, NULL));
    mtt_ok(mt_backward(a.loss));
    b = set_up(0.3);
    b.d.fail_at = 2;
    mtt_ok(forward(&b, false, 1, 1, &(mt_checkpoint_options){.label = "thing"}));
    assert_int_equal(mt_backward_with(b.loss, &(mt_backward_options){.retain_graph = true}),
                     MT_ERR_IO);
    mtt_failed(MT_ERR_IO, "checkpoint thing", "when it was run again");
    mtt_ok(mt_backward(b.loss));
    assert_same_grads(&a, &b, 1);
    tear_down(&a);
    tear_down(&b);
}

static mt_status forgets_output(void *user, int n_in, mt_tensor *const *in, int n_out,
                                mt_tensor **out)
{
    (void)user, (void)n_in, (void)in, (void)n_out, (void)out;
    return MT_OK;
}

static void wrong_arguments_are_refused(void **state)
{
    (void)state;
    setup s = set_up(0);
    assert_int_equal(mt_checkpoint(NULL, &s.d, count_destroy, 1, s.x, 1, s.out, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the function is NULL");
    assert_int_equal(mt_checkpoint(fn, &s.d, count_destroy, 0, s.x, 1, s.out, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "0 inputs, 1 outputs");
    mt_tensor *none = NULL;
    assert_int_equal(mt_checkpoint(fn, &s.d, count_destroy, 1, &none, 1, s.out, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "input 0 is NULL");
    mt_device *other = mtt_device();
    mt_tensor *away[2] = {s.x[0], mt_zeros(other, MT_F32, 0, NULL)};
    assert_int_equal(mt_checkpoint(fn, &s.d, count_destroy, 2, away, 1, s.out, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "input 1 lives on another device");
    mt_release(away[1]);
    mt_device_release(other);
    assert_int_equal(mt_checkpoint(forgets_output, &s.d, count_destroy, 1, s.x, 1, s.out, NULL),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "left output 0 NULL");
    assert_int_equal(s.d.destroys, 5);
    tear_down(&s);
}

/* The sum of two branches, the first of which fails from the second call on. */
static mt_status two_branches(void *user, int n_in, mt_tensor *const *in, int n_out,
                              mt_tensor **out)
{
    int *calls = user;
    MT_AUTO mt_tensor *part = mt_slice(in[0], 0, 99 * (++*calls > 1), 5);
    MT_AUTO mt_tensor *a = mt_silu(part), *b = mt_exp(in[0]);
    (void)n_in, (void)n_out;
    out[0] = mt_add(a, b);
    return out[0] ? MT_OK : mt_last_status();
}

/* The branches after it save other tensors and call other ops than forward did; that is not what
 * went wrong. */
static void what_failed_is_told_and_not_what_came_afterwards(void **state)
{
    mt_policy_fn *const policies[] = {NULL, mt_policy_ops};
    (void)state;
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        int calls = 0;
        setup s = set_up(0);
        const mt_checkpoint_options options = {.policy = policies[i]};
        mtt_ok(mt_checkpoint(two_branches, &calls, NULL, 1, s.x, 1, s.out, &options));
        s.loss = mtt_made(mt_sum_all(s.out[0]));
        assert_int_equal(mt_backward(s.loss), MT_ERR_ARGUMENT);
        mtt_failed(MT_ERR_ARGUMENT, "slice", "99");
        tear_down(&s);
    }
}

/* ---- every allocation ---- */

static bool run_with_failure(uint64_t n, mt_tensor *const *expected)
{
    setup s = set_up(0.3);
    uint64_t seed, offset;
    mt_rng_get(device, &seed, &offset);
    size_t before = mtt_allocated(device);
    const mt_checkpoint_options inner = {.check = true};
    nest around = {&s, 2, 0};
    mti_fail_nth_alloc(n);
    mt_status status = mt_checkpoint(nested, &around, NULL, 2, s.x, 1, s.out, &inner);
    if (status == MT_OK) status = (s.loss = mt_sum_all(s.out[0])) ? MT_OK : mt_last_status();
    if (status == MT_OK) status = mt_backward(s.loss);
    bool reached = mti_alloc_count() >= n;
    mti_fail_nth_alloc(0);
    if (status != MT_OK) {
        assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        mt_clear_error();
        mt_release(s.out[0]);
        mt_release(s.loss);
        s.out[0] = s.loss = NULL;
        for (int i = 0; i < 3; i++) mtt_ok(mt_set_grad(i < 2 ? s.x[i] : s.d.w, NULL));
        assert_int_equal(mtt_allocated(device), before);
        assert_string_equal(mt_scope_path(), "");
        mtt_ok(mt_check_balance(device));
        mt_rng_set(device, seed, offset);
        around = (nest){&s, 2, 0};
        mtt_ok(mt_checkpoint(nested, &around, NULL, 2, s.x, 1, s.out, &inner));
        s.loss = mtt_made(mt_sum_all(s.out[0]));
        mtt_ok(mt_backward(s.loss));
    }
    for (int i = 0; expected && i < 3; i++)
        assert_true(mtt_same_bits(mt_grad(i < 2 ? s.x[i] : s.d.w), expected[i]));
    tear_down(&s);
    return reached;
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    setup s = set_up(0.3);
    nest around = {&s, 2, 0};
    mtt_ok(mt_checkpoint(nested, &around, NULL, 2, s.x, 1, s.out, NULL));
    s.loss = mtt_made(mt_sum_all(s.out[0]));
    mtt_ok(mt_backward(s.loss));
    mt_tensor *expected[3] = {mt_grad(s.x[0]), mt_grad(s.x[1]), mt_grad(s.d.w)};
    uint64_t n = 1;
    while (run_with_failure(n, expected)) n++;
    print_message("%llu allocations failed in turn\n", (unsigned long long)n - 1);
    assert_true(n > 200);
    tear_down(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_function_that_differs_when_run_again_is_an_error),
        mtt_test(without_the_check_a_different_value_is_not_noticed),
        mtt_test(a_function_that_ends_early_is_an_error),
        mtt_test(random_numbers_that_differ_are_an_error),
        mtt_test(a_parameter_changed_before_backward_is_an_error),
        mtt_test(an_input_changed_before_backward_is_an_error),
        mtt_test(a_function_that_fails_in_forward_leaves_nothing),
        mtt_test(a_function_that_fails_only_in_backward_may_be_tried_again),
        mtt_test(what_failed_is_told_and_not_what_came_afterwards),
        mtt_test(wrong_arguments_are_refused),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
