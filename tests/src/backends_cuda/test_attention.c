/* The CUDA attention kernels under the simulator: their bits depend neither on the order in which
 * threads and blocks run nor on the grid, and each barrier is needed.
 * tests/src/backends/test_attention.c checks the values on every device. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "attention_call.h"
#include "mtt_engine.h"
#include "simulated.h"

/* False if the simulator found a fault. */
static bool runs(attention_call *c)
{
    mti_attention at = attention_of(c, true);
    if (!mti_cuda_attention(simulated_ctx(), &at, NULL, 0)) return false;
    size_t n_bytes = mti_cuda_attention_backward_scratch(simulated_ctx(), &at);
    void *scratch = malloc(n_bytes);
    memset(scratch, 0xff, n_bytes); /* NaN */
    bool ok = mti_cuda_attention_backward(simulated_ctx(), &at, &c->d_o, &c->dq, &c->dk, &c->dv,
                                          scratch, n_bytes);
    ok = ok && (!at.sinks || mti_cuda_attention_sinks_backward(simulated_ctx(), &at, &c->d_o,
                                                               &c->d_sinks, scratch, true));
    free(scratch);
    return ok;
}

static void forward_and_backward(attention_call *c) { assert_true(runs(c)); }

/* Computes `want` again with this schedule; true if all bits are the same. */
static bool same_under(const attention_call *want, const char *schedule)
{
    attention_call c;
    attention_call_make(&c, &want->z, want->q.dtype);
    assert_true(cudasim_set_schedule(schedule));
    bool ok = runs(&c);
    assert_true(cudasim_set_schedule("forward"));
    return ok && values_same_bits(&want->o, &c.o) && values_same_bits(&want->lse, &c.lse) &&
           values_same_bits(&want->dq, &c.dq) && values_same_bits(&want->dk, &c.dk) &&
           values_same_bits(&want->dv, &c.dv) &&
           (!c.z.sinks || values_same_bits(&want->d_sinks, &c.d_sinks));
}

static const mt_dtype each_dtype[] = {MT_F32, MT_F64, MT_BF16, MT_F16};

static void bits_do_not_depend_on_the_order_in_which_threads_and_blocks_run(void **state)
{
    (void)state;
    static const attention_sizes few[] = {{1, 4, 2, 67, 131, 64, true, 0.1},
                                          {1, 2, 1, 70, 65, 96, true, 0, 0, true}};
    static const char *const orders[] = {"reverse", "1", "2"};
    for (int n = 0; n < 2; n++)
        for (int t = 0; t < 4; t++) {
            attention_call c;
            attention_call_make(&c, &few[n], each_dtype[t]);
            forward_and_backward(&c);
            for (int i = 0; i < 3; i++) assert_true(same_under(&c, orders[i]));
            values_free_all();
        }
}

static bool changes_bits(const char *file, int line, const attention_call *want, int n)
{
    static const char *const orders[] = {"forward", "reverse", "1", "2", "3", "4"};
    bool same = true;
    cudasim_without_barrier(file, line);
    for (int i = 0; i < n && same; i++)
        for (int o = 0; o < 6 && same; o++) same = same_under(&want[i], orders[o]);
    cudasim_without_barrier(NULL, 0);
    return !same;
}

/* Removes each step-th of the barriers from the first-th on; fails where the results of all n calls
 * stay the same under each order. Returns how many barriers there are. */
static size_t remove_in_turn(size_t first, size_t step, const attention_call *want, int n)
{
    enum { MOST = 64 };
    const char *files[MOST];
    int lines[MOST];
    size_t count = cudasim_barriers(files, lines, MOST), n_needed = 0, n_removed = 0;
    assert_in_range(count, first + 1, MOST);
    for (size_t i = first; i < count; i += step, n_removed++) {
        bool changed = changes_bits(files[i], lines[i], want, n);
        if (!changed) print_message("%s:%d can be removed\n", files[i], lines[i]);
        n_needed += changed;
    }
    print_message("%zu of %zu barriers removed, %zu needed\n", n_removed, count - first, n_needed);
    assert_int_equal(n_needed, n_removed);
    return count;
}

/* The results change under some order if one of the kernels' barriers is removed. The short form
 * removes one barrier in eight. */
static void removing_any_barrier_changes_the_bits(void **state)
{
    (void)state;
    enum { SIZES = 5, CALLS = 2 * SIZES };
    static const mt_dtype one_of_each_kind[] = {MT_F32, MT_BF16};
    static const attention_sizes few[SIZES] = {
        {1, 2, 1, 150, 331, 64, false, 0},
        {1, 1, 1, 140, 190, 96, true, 0.1},
        {1, 1, 1, 300, 260, 32, true, 0, 0, true},
        {1, 2, 1, 290, 30, 64, true, 0}, /* some queries see no key */
        {1, 1, 1, 0, 150, 64, false, 0}};
    attention_call want[CALLS];
    for (int i = 0; i < CALLS; i++) {
        attention_call_make(&want[i], &few[i / 2], one_of_each_kind[i % 2]);
        forward_and_backward(&want[i]);
    }
    assert_true(remove_in_turn(0, mtt_long() ? 1 : 8, want, CALLS) >= 10);
    values_free_all();
}

/* A head alone gives the bits that it gives among other heads. */
static void bits_do_not_depend_on_the_grid(void **state)
{
    (void)state;
    static const attention_sizes z = {1, 2, 2, 70, 75, 64, true, 0};
    for (int t = 0; t < 4; t++) {
        attention_call two, one;
        attention_call_make(&two, &z, each_dtype[t]);
        forward_and_backward(&two);
        one = two;
        mti_view *views[] = {&one.q,   &one.k,  &one.v,  &one.o, &one.lse,
                             &one.d_o, &one.dq, &one.dk, &one.dv};
        for (int i = 0; i < 9; i++) {
            views[i]->shape[1] = 1;
            if (i == 3 || i == 4 || i > 5)
                *views[i] = values_new(views[i]->dtype, views[i]->rank, views[i]->shape);
        }
        one.z.a = one.z.a_kv = 1;
        forward_and_backward(&one);
        for (int64_t i = 0; i < z.s * z.d; i++) {
            assert_true(values_get(&one.o, i) == values_get(&two.o, i));
            assert_true(values_get(&one.dq, i) == values_get(&two.dq, i));
        }
        for (int64_t i = 0; i < z.t * z.d; i++) {
            assert_true(values_get(&one.dk, i) == values_get(&two.dk, i));
            assert_true(values_get(&one.dv, i) == values_get(&two.dv, i));
        }
        values_free_all();
    }
}

static void fill_with_nan(const mti_view *v)
{
    memset(v->data, 0xff, (size_t)mti_view_count(v) * mt_dtype_size(v->dtype));
}

/* o and d_o, a head's width of numbers for each row, are read once, by attention's own backward. */
static void the_gradient_of_sinks_reads_two_numbers_a_row(void **state)
{
    (void)state;
    static const attention_sizes z = {2, 4, 2, 70, 65, 96, true, 0, 0, true};
    for (int t = 0; t < 4; t++) {
        attention_call c, again;
        attention_call_make(&c, &z, each_dtype[t]), attention_call_make(&again, &z, each_dtype[t]);
        forward_and_backward(&c), forward_and_backward(&again);
        mti_attention at = attention_of(&again, true);
        size_t n_bytes = mti_cuda_attention_backward_scratch(simulated_ctx(), &at);
        void *scratch = malloc(n_bytes);
        assert_non_null(scratch);
        fill_with_nan(&again.d_sinks);
        assert_true(mti_cuda_attention_sinks_backward(simulated_ctx(), &at, &again.d_o,
                                                      &again.d_sinks, scratch, false));
        assert_true(values_same_bits(&c.d_sinks, &again.d_sinks)); /* it is computed if need be */
        fill_with_nan(&again.d_sinks), fill_with_nan(&again.d_o), fill_with_nan(&again.o);
        assert_true(mti_cuda_attention_sinks_backward(simulated_ctx(), &at, &again.d_o,
                                                      &again.d_sinks, scratch, true));
        assert_true(values_same_bits(&c.d_sinks, &again.d_sinks));
        free(scratch);
        values_free_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_do_not_depend_on_the_order_in_which_threads_and_blocks_run),
        cmocka_unit_test(removing_any_barrier_changes_the_bits),
        cmocka_unit_test(bits_do_not_depend_on_the_grid),
        cmocka_unit_test(the_gradient_of_sinks_reads_two_numbers_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
