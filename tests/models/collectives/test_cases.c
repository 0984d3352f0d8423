/* The rows of collectives.def through their cases, in a group of one rank: against central
 * differences, in every layout, and with sizes beyond what a library's int holds.
 * tests/src/gradcheck and tests/src/ops do the same with the engine's rows. */
#include <string.h>
#include "../../src/gradcheck/scan.h"
#include "../../src/ops/large.h"
#include "collectives/collective_cases.h"
#include "mtt.h"

static const mti_case_sizes sizes = {[MTI_SIZE_M] = 3, [MTI_SIZE_N] = 5, [MTI_SIZE_K] = 2};

static void every_case_agrees_with_central_differences(void **state)
{
    (void)state;
    grad_case c = {.composed = NULL};
    int n = 0;
    for (; mti_case_get(&mti_collective_cases, MTI_CASE_CHECK, n, sizes, &c.of); n++) {
        grad_result r = grad_check(device, &c, NULL);
        if (r.fault[0]) fail_msg("%s, %s: %s", c.of.op, c.of.note, r.fault);
        assert_true(r.n_gradients > 0);
    }
    assert_true(n > 0);
}

static void every_case_is_right_in_every_layout(void **state)
{
    (void)state;
    mt_device *cpu = mt_device_open("cpu"); /* computes the references */
    const scan_breadth breadth = mtt_short_simulation() ? SCAN_NARROW : SCAN_USUAL;
    grad_case c = {.composed = NULL};
    mtt_ok(mt_set_balance_check(device, false)); /* central differences are taken with it */
    for (int i = 0; mti_case_get(&mti_collective_cases, MTI_CASE_CHECK, i, sizes, &c.of); i++) {
        scan_result r = {0};
        scan_layouts(device, cpu, &c, breadth, &r);
        if (r.fault[0]) fail_msg("%s, %s: %s", c.of.op, c.of.note, r.fault);
        assert_true(r.n_runs > 0 && r.n_wrong == 0);
    }
    mtt_ok(mt_set_balance_check(device, true));
    mt_device_release(cpu);
}

static void every_row_between_ranks_has_a_case_for_each_user(void **state)
{
    (void)state;
    mti_case c;
    const int n_engine = mt_op_count();
    assert_true(mt_all_ops_count() > n_engine);
    for (int i = n_engine; i < mt_all_ops_count(); i++)
        for (unsigned user = MTI_CASE_AUDIT; user <= MTI_CASE_PARITY; user *= 2)
            if (!mti_case_find(&mti_collective_cases, mt_all_ops_get(i).name, user, sizes, &c))
                fail_msg("%s has no case for user %u", mt_all_ops_get(i).name, user);
}

/* All cases are those of both tables, the engine's first. */
static void all_cases_are_those_of_both_tables(void **state)
{
    (void)state;
    const unsigned user = MTI_CASE_AUDIT;
    const mti_case_sizes all = {8, 8, 8, 8, 8, 8, 8, 8};
    const int n_ops = mti_case_count(&mti_op_cases, user);
    const int n = mti_case_count(&mti_collective_cases, user);
    mti_case a, b;
    assert_int_equal(mti_case_count(&mti_all_cases, user), n_ops + n);
    for (int i = 0; i < n_ops + n; i++) {
        assert_true(mti_case_get(&mti_all_cases, user, i, all, &a));
        assert_true(i < n_ops ? mti_case_get(&mti_op_cases, user, i, all, &b)
                              : mti_case_get(&mti_collective_cases, user, i - n_ops, all, &b));
        assert_string_equal(a.op, b.op);
        assert_string_equal(a.note, b.note);
    }
    assert_false(mti_case_get(&mti_all_cases, user, n_ops + n, all, &a));
    assert_false(mti_case_find(&mti_op_cases, "all_gather", user, all, &a));
}

static void every_case_answers_for_extents_beyond_32_bits(void **state)
{
    (void)state;
    mt_device *open = device;
    assert_int_equal(large_open_meta(NULL), 0);
    assert_true(large_answers(&mti_collective_cases) > 100);
    mt_device_release(device);
    device = open;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(every_case_agrees_with_central_differences),
        mtt_test(every_case_is_right_in_every_layout),
        mtt_test(every_row_between_ranks_has_a_case_for_each_user),
        mtt_test(all_cases_are_those_of_both_tables),
        mtt_test(every_case_answers_for_extents_beyond_32_bits),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
