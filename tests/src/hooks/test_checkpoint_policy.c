/* Policies of checkpoints: what they may not do, what nested ones keep, and allocations that fail.
 */
#include "base/base.h"
#include "policy.h"

/* ---- policies that contradict themselves or each other ---- */

static mt_status two_ops(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    (void)user, (void)n_in, (void)n_out;
    MT_AUTO mt_tensor *h = mt_gelu(in[0]);
    out[0] = mt_exp(h);
    return out[0] ? MT_OK : mt_last_status();
}

static mt_status in_place(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    (void)user, (void)n_in, (void)n_out;
    out[0] = mt_affine(in[0], 2, 0);
    return out[0] ? mt_relu_inplace(out[0]) : mt_last_status();
}

static mt_tensor *input(void)
{
    mt_tensor *x = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(4, 5), 1, -1, 1));
    mtt_ok(mt_set_requires_grad(x, true));
    return x;
}

static void an_answer_that_changes_is_an_error(void **state)
{
    (void)state;
    policy p = {.op = "exp", .yes = MT_MUST_SAVE, .change_at = 3};
    MT_AUTO mt_tensor *x = input(), *y = NULL;
    const mt_checkpoint_options options = {.label = "pair", .policy = answer, .policy_user = &p};
    mtt_ok(mt_scope_push("here"));
    mtt_ok(mt_checkpoint(two_ops, NULL, NULL, 1, &x, 1, &y, &options));
    mt_scope_pop();
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    assert_int_equal(mt_backward(loss), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "checkpoint pair", "gelu in here", "otherwise in backward",
               "prefer recompute, then must save");
}

static void an_unknown_answer_is_refused(void **state)
{
    (void)state;
    policy p = {.op = "gelu", .yes = (mt_policy)17};
    MT_AUTO mt_tensor *x = input(), *y = NULL;
    const mt_checkpoint_options options = {.policy = answer, .policy_user = &p};
    assert_int_equal(mt_checkpoint(two_ops, NULL, NULL, 1, &x, 1, &y, &options), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "answered 17 for gelu");
    assert_null(y);
}

static void an_op_in_place_cannot_be_kept(void **state)
{
    (void)state;
    policy p = {.op = "relu_inplace", .yes = MT_MUST_SAVE};
    MT_AUTO mt_tensor *x = input(), *y = NULL;
    const mt_checkpoint_options options = {.policy = answer, .policy_user = &p, .check = true};
    assert_int_equal(mt_checkpoint(in_place, NULL, NULL, 1, &x, 1, &y, &options), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "relu_inplace", "in place cannot be kept");
    p.yes = MT_PREFER_SAVE; /* a preference may be ignored */
    mtt_ok(mt_checkpoint(in_place, NULL, NULL, 1, &x, 1, &y, &options));
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mt_set(&y, mt_retain(loss));
    mtt_ok(mt_backward(loss));
}

/* ---- nested policies ---- */

typedef struct outer_data {
    const mt_checkpoint_options *inner;
} outer_data;

static mt_status with_inner(void *user, int n_in, mt_tensor *const *in, int n_out, mt_tensor **out)
{
    const outer_data *a = user;
    mt_status status = mt_checkpoint(two_ops, NULL, NULL, n_in, in, n_out, out, a->inner);
    return status == MT_OK ? mt_set(&out[0], mt_tanh(out[0])) : status;
}

/* Bytes kept for gelu's result under these two policies; -1 if they contradict each other. */
static int64_t kept_by(mt_policy outer, mt_policy inner, bool no_inner)
{
    policy po = {.op = "gelu", .yes = outer}, pi = {.op = "gelu", .yes = inner};
    const mt_checkpoint_options oi = {
        .policy = no_inner ? NULL : answer, .policy_user = &pi, .check = true};
    const mt_checkpoint_options oo = {.policy = answer, .policy_user = &po, .check = true};
    outer_data a = {&oi};
    MT_AUTO mt_tensor *x = input(), *y = NULL, *z = NULL;
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    mt_status status = mt_checkpoint(with_inner, &a, NULL, 1, &x, 1, &y, &oo);
    mtt_ok(mt_ledger_end(ledger));
    int64_t bytes = (int64_t)mt_ledger_bytes(ledger) - (int64_t)mt_storage_of(x).bytes;
    mt_ledger_free(ledger);
    if (status != MT_OK) {
        mtt_failed(MT_ERR_STATE, "gelu", "two musts disagree", mt_policy_name(outer),
                   mt_policy_name(inner));
        return -1;
    }
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(loss));
    /* compare with a plain run */
    MT_AUTO mt_tensor *other = input();
    mtt_ok(two_ops(NULL, 1, &other, 1, &z));
    mt_set(&z, mt_tanh(z));
    mt_set(&z, mt_sum_all(z));
    mtt_ok(mt_backward(mtt_made(z)));
    assert_true(mtt_same_bits(mt_grad(x), mt_grad(other)));
    return bytes;
}

static void must_beats_prefer_and_the_innermost_prefer_wins(void **state)
{
    (void)state;
    const mt_policy pr = MT_PREFER_RECOMPUTE, ps = MT_PREFER_SAVE, mr = MT_MUST_RECOMPUTE,
                    ms = MT_MUST_SAVE;
    const int64_t bytes = 4 * 5 * 4;
    const struct {
        mt_policy outer, inner;
        int64_t kept;
    } cases[] = {{pr, pr, 0},         {pr, ps, bytes}, {ps, pr, 0},     {ps, ps, bytes},
                 {mr, ps, 0},         {ps, mr, 0},     {ms, pr, bytes}, {pr, ms, bytes},
                 {mr, mr, 0},         {ms, ms, bytes}, {ms, mr, -1},    {mr, ms, -1},
                 {MT_OFFLOAD, ms, -1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(kept_by(cases[i].outer, cases[i].inner, false), cases[i].kept);
    /* An inner checkpoint without a policy follows the outer one. */
    assert_int_equal(kept_by(ms, pr, true), bytes);
    assert_int_equal(kept_by(mr, pr, true), 0);
}

/* ---- every allocation ---- */

static bool nested_with_failure(uint64_t n)
{
    policy po = {.op = "gelu", .yes = MT_MUST_SAVE}, pi = {.op = "exp", .yes = MT_MUST_SAVE};
    const mt_checkpoint_options oi = {.policy = answer, .policy_user = &pi, .check = true};
    const mt_checkpoint_options oo = {.policy = answer, .policy_user = &po, .check = true};
    outer_data a = {&oi};
    MT_AUTO mt_tensor *x = input(), *y = NULL, *loss = NULL;
    size_t before = mtt_allocated(device);
    mti_fail_nth_alloc(n);
    mt_status status = mt_checkpoint(with_inner, &a, NULL, 1, &x, 1, &y, &oo);
    if (status == MT_OK) status = (loss = mt_sum_all(y)) ? MT_OK : mt_last_status();
    if (status == MT_OK) status = mt_backward(loss);
    bool reached = mti_alloc_count() >= n;
    mti_fail_nth_alloc(0);
    if (status != MT_OK) {
        assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        mt_clear_error();
        mt_release(y), mt_release(loss), y = loss = NULL;
        mtt_ok(mt_set_grad(x, NULL));
        assert_int_equal(mtt_allocated(device), before);
    }
    return reached;
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    uint64_t n = 1;
    while (nested_with_failure(n)) n++;
    print_message("%llu allocations failed in turn\n", (unsigned long long)n - 1);
    assert_true(n > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(an_answer_that_changes_is_an_error),
        mtt_test(an_unknown_answer_is_refused),
        mtt_test(an_op_in_place_cannot_be_kept),
        mtt_test(must_beats_prefer_and_the_innermost_prefer_wins),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
