/* The CUDA attention kernels, executed by the simulator, against the CPU's in f64. */
#include <stdarg.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "backends/cpu/cpu.h"
#include "attention_call.h"
#include "mtt.h"
#include "simulated.h"

/* What a tile does not divide, one tile and several, more keys than queries and fewer, grouped
 * heads, and every width that the tensor cores have a kernel for. */
static const attention_sizes cases[] = {
    {1, 1, 1, 1, 1, 8, false, 0},      {2, 3, 3, 5, 7, 16, false, 0},
    {1, 2, 2, 33, 33, 32, true, 0},    {2, 2, 1, 65, 70, 64, true, 0},
    {1, 4, 2, 70, 65, 80, true, 0},    {1, 1, 1, 20, 130, 96, false, 0},
    {1, 2, 1, 67, 67, 128, true, 0},   {1, 1, 1, 130, 195, 33, true, 0},
    {1, 2, 1, 140, 9, 40, true, 0},    {1, 2, 2, 40, 44, 64, true, 0.25},
    {1, 2, 1, 50, 45, 32, true, 0.9},  {1, 1, 1, 67, 131, 128, true, 0.1},
    {2, 2, 1, 36, 68, 80, false, 0.3}, {1, 2, 1, 37, 41, 33, true, 0.2},
    {1, 2, 2, 9, 10, 24, false, 1},    {1, 1, 1, 12, 20, 200, true, 0.1},
    {1, 1, 1, 300, 140, 32, true, 0},  {1, 3, 3, 66, 36, 96, false, 0.5},
    {1, 1, 1, 5, 6, 1, true, 0},       {1, 1, 1, 65, 66, 112, true, 0},
};
enum { CASES = sizeof cases / sizeof *cases };

/* ---- one call ---- */

static void make(attention_call *c, const attention_sizes *z, mt_dtype dtype)
{
    attention_call_make(c, z, dtype, dtype == MT_F64 ? MT_F64 : MT_F32);
}

/* The same inputs in f64. */
static void call_widen(const attention_call *c, attention_call *wide)
{
    make(wide, &c->z, MT_F64);
    wide->scale = c->scale;
    const mti_view *from[] = {&c->q, &c->k, &c->v, &c->d_o};
    const mti_view *to[] = {&wide->q, &wide->k, &wide->v, &wide->d_o};
    for (int n = 0; n < 4; n++)
        for (int64_t i = 0; i < mti_view_count(from[n]); i++)
            values_set(to[n], i, values_get(from[n], i));
}

static void forward(attention_call *c, bool with_lse)
{
    mti_attention at = attention_of(c, with_lse);
    assert_true(mti_cuda_attention(simulated_ctx(), &at, NULL, 0));
}

static void backward(attention_call *c)
{
    mti_attention at = attention_of(c, true);
    size_t n_bytes = mti_cuda_attention_backward_scratch(simulated_ctx(), &at);
    void *scratch = malloc(n_bytes);
    memset(scratch, 0xff, n_bytes); /* NaN */
    assert_true(mti_cuda_attention_backward(simulated_ctx(), &at, &c->d_o, &c->dq, &c->dk, &c->dv,
                                            scratch, n_bytes));
    free(scratch);
}

static void both_on_cpu(attention_call *c)
{
    mti_ctx *ctx = mti_cpu_backend.open();
    mti_attention at = attention_of(c, true);
    size_t n_bytes = mti_cpu_backend.attention_scratch(ctx, &at);
    void *scratch = malloc(n_bytes);
    assert_true(mti_cpu_backend.attention(ctx, &at, scratch, n_bytes));
    free(scratch);
    n_bytes = mti_cpu_backend.attention_backward_scratch(ctx, &at);
    scratch = malloc(n_bytes);
    assert_true(mti_cpu_backend.attention_backward(ctx, &at, &c->d_o, &c->dq, &c->dk, &c->dv,
                                                   scratch, n_bytes));
    free(scratch);
    mti_cpu_backend.close(ctx);
}

/* ---- tests ---- */

/* Within `bound` of the largest magnitude in `want`, or of 1; and nothing else written. */
static void check(const char *what, const attention_call *c, const mti_view *got,
                  const mti_view *want, double bound)
{
    double size = 1;
    for (int64_t i = 0; i < mti_view_count(want); i++) {
        double x = fabs(values_get(want, i));
        if (isfinite(x) && x > size) size = x;
    }
    for (int64_t i = 0; i < mti_view_count(got); i++) {
        double x = values_get(got, i), y = values_get(want, i);
        if (x == y || fabs(x - y) <= bound * size) continue;
        fail_msg("s %d, t %d, d %d, p %g, %s, %s[%lld]: %.9g, want %.9g", (int)c->z.s, (int)c->z.t,
                 (int)c->z.d, c->z.p, mt_dtype_name(got->dtype), what, (long long)i, x, y);
    }
    assert_true(values_surroundings_untouched(got));
}

static void check_call(attention_call *c, double bound)
{
    attention_call want;
    call_widen(c, &want);
    both_on_cpu(&want);
    forward(c, true);
    check("o", c, &c->o, &want.o, bound);
    check("lse", c, &c->lse, &want.lse, c->lse.dtype == MT_F64 ? 1e-12 : 1e-5);
    backward(c);
    check("dq", c, &c->dq, &want.dq, 4 * bound);
    check("dk", c, &c->dk, &want.dk, 4 * bound);
    check("dv", c, &c->dv, &want.dv, 4 * bound);
}

static void check_all(mt_dtype dtype, double bound)
{
    for (int i = 0; i < CASES; i++) {
        attention_call c;
        make(&c, &cases[i], dtype);
        check_call(&c, bound);
        values_free_all();
    }
}

static void f64_agrees_with_the_cpu(void **state)
{
    (void)state;
    check_all(MT_F64, 1e-12);
}

static void f32_agrees_with_the_cpu(void **state)
{
    (void)state;
    check_all(MT_F32, 4e-6);
}

static void bf16_agrees_with_the_cpu(void **state)
{
    (void)state;
    check_all(MT_BF16, 4 * values_rounding(MT_BF16));
}

static void f16_agrees_with_the_cpu(void **state)
{
    (void)state;
    check_all(MT_F16, 4 * values_rounding(MT_F16));
}

/* Rows that are no multiple of 16 bytes apart, and a scale that is not positive. */
static void sixteen_bit_floats_that_tensor_cores_do_not_take_agree_too(void **state)
{
    (void)state;
    static const attention_sizes z = {1, 2, 1, 35, 41, 32, true, 0.2};
    for (int odd = 0; odd < 2; odd++) {
        attention_call c;
        make(&c, &z, MT_BF16);
        if (odd) {
            c.d_o = values_new_laid_out(MT_BF16, 4, (int64_t[]){z.b, z.a, z.s, z.d}, false, 3);
            c.k = values_new_laid_out(MT_BF16, 4, (int64_t[]){z.b, z.a_kv, z.t, z.d}, false, 1);
            values_random(&c.d_o, 4), values_random(&c.k, 2);
        } else
            c.scale = -0.3;
        check_call(&c, 4 * values_rounding(MT_BF16));
        values_free_all();
    }
}

static const mt_dtype each_dtype[] = {MT_F32, MT_F64, MT_BF16, MT_F16};

static void bits_do_not_depend_on_the_order_in_which_threads_and_blocks_run(void **state)
{
    (void)state;
    static const attention_sizes few[] = {{1, 4, 2, 67, 131, 64, true, 0.1},
                                          {1, 2, 1, 70, 65, 96, true, 0}};
    static const char *const orders[] = {"reverse", "1", "2"};
    for (int n = 0; n < 2; n++)
        for (int t = 0; t < 4; t++) {
            attention_call one, other;
            make(&one, &few[n], each_dtype[t]);
            forward(&one, true), backward(&one);
            for (int i = 0; i < 3; i++) {
                make(&other, &few[n], each_dtype[t]);
                assert_true(cudasim_set_schedule(orders[i]));
                forward(&other, true), backward(&other);
                assert_true(cudasim_set_schedule("forward"));
                assert_true(values_same_bits(&one.o, &other.o));
                assert_true(values_same_bits(&one.lse, &other.lse));
                assert_true(values_same_bits(&one.dq, &other.dq));
                assert_true(values_same_bits(&one.dk, &other.dk));
                assert_true(values_same_bits(&one.dv, &other.dv));
            }
            values_free_all();
        }
}

/* Both directions with the schedule; true if all bits are those of `want`. */
static bool same_as(const attention_call *want, const char *schedule)
{
    attention_call c;
    make(&c, &want->z, want->q.dtype);
    assert_true(cudasim_set_schedule(schedule));
    forward(&c, true), backward(&c);
    assert_true(cudasim_set_schedule("forward"));
    return values_same_bits(&want->o, &c.o) && values_same_bits(&want->lse, &c.lse) &&
           values_same_bits(&want->dq, &c.dq) && values_same_bits(&want->dk, &c.dk) &&
           values_same_bits(&want->dv, &c.dv);
}

static bool missed(const char *file, int line, const attention_call *want, int n)
{
    static const char *const orders[] = {"forward", "reverse", "1", "2", "3", "4"};
    bool same = true;
    cudasim_without_barrier(file, line);
    for (int i = 0; i < n && same; i++)
        for (int o = 0; o < 6 && same; o++) same = same_as(&want[i], orders[o]);
    cudasim_without_barrier(NULL, 0);
    return !same;
}

/* This file's tests would notice if any of the kernels' barriers were forgotten; the short form
 * takes one of eight. */
static void each_barrier_is_missed_when_it_is_taken_away(void **state)
{
    (void)state;
    enum { SIZES = 5, CALLS = 2 * SIZES, MOST = 64 };
    static const mt_dtype one_of_each_kind[] = {MT_F32, MT_BF16};
    static const attention_sizes few[SIZES] = {
        {1, 2, 1, 150, 331, 64, false, 0},
        {1, 1, 1, 140, 190, 96, true, 0.1},
        {1, 1, 1, 300, 260, 32, true, 0},
        {1, 2, 1, 290, 30, 64, true, 0}, /* some see no key */
        {1, 1, 1, 0, 150, 64, false, 0}};
    attention_call want[CALLS];
    for (int i = 0; i < CALLS; i++) {
        make(&want[i], &few[i / 2], one_of_each_kind[i % 2]);
        forward(&want[i], true), backward(&want[i]);
    }
    const char *files[MOST];
    int lines[MOST];
    size_t n = cudasim_barriers(files, lines, MOST), n_missed = 0;
    assert_in_range(n, 10, MOST);
    size_t step = mtt_long() ? 1 : 8, n_taken = 0;
    for (size_t i = 0; i < n; i += step, n_taken++) {
        bool was = missed(files[i], lines[i], want, CALLS);
        if (!was) print_message("%s:%d is not missed\n", files[i], lines[i]);
        n_missed += was;
    }
    print_message("%zu of %zu barriers taken away, %zu missed\n", n_taken, n, n_missed);
    assert_int_equal(n_missed, n_taken);
    values_free_all();
}

/* Nor on what else is in the batch: a head alone gives what it gives among others. */
static void bits_do_not_depend_on_the_grid(void **state)
{
    (void)state;
    static const attention_sizes z = {1, 2, 2, 70, 75, 64, true, 0};
    for (int t = 0; t < 4; t++) {
        attention_call two, one;
        make(&two, &z, each_dtype[t]);
        forward(&two, true), backward(&two);
        one = two;
        mti_view *views[] = {&one.q,   &one.k,  &one.v,  &one.o, &one.lse,
                             &one.d_o, &one.dq, &one.dk, &one.dv};
        for (int i = 0; i < 9; i++) {
            views[i]->shape[1] = 1;
            if (i == 3 || i == 4 || i > 5)
                *views[i] = values_new(views[i]->dtype, views[i]->rank, views[i]->shape);
        }
        one.z.a = one.z.a_kv = 1;
        forward(&one, true), backward(&one);
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

static void lse_may_be_left_out_of_forward(void **state)
{
    (void)state;
    static const attention_sizes z = {1, 2, 1, 35, 41, 32, true, 0.2};
    for (int t = 0; t < 4; t++) {
        attention_call with, without;
        make(&with, &z, each_dtype[t]), make(&without, &z, each_dtype[t]);
        forward(&with, true), forward(&without, false);
        assert_true(values_same_bits(&with.o, &without.o));
        values_free_all();
    }
}

static void queries_that_see_no_key_give_zeros(void **state)
{
    (void)state;
    static const attention_sizes z = {1, 2, 1, 200, 30, 16, true, 0};
    for (int t = 0; t < 4; t++) {
        attention_call c;
        make(&c, &z, each_dtype[t]);
        forward(&c, true), backward(&c);
        for (int64_t h = 0; h < z.a; h++)
            for (int64_t i = 0; i < z.s - z.t; i++) {
                assert_true(values_get(&c.lse, h * z.s + i) == -(double)INFINITY);
                for (int64_t e = 0; e < z.d; e++) {
                    assert_true(values_get(&c.o, (h * z.s + i) * z.d + e) == 0);
                    assert_true(values_get(&c.dq, (h * z.s + i) * z.d + e) == 0);
                }
            }
        values_free_all();
    }
}

static void without_keys_or_queries_everything_is_zero(void **state)
{
    (void)state;
    static const attention_sizes none[] = {{1, 2, 2, 3, 0, 32, false, 0},
                                           {1, 2, 2, 0, 5, 32, true, 0}};
    for (int n = 0; n < 2; n++)
        for (int t = 0; t < 4; t++) {
            attention_call c;
            make(&c, &none[n], each_dtype[t]);
            forward(&c, true), backward(&c);
            for (int64_t i = 0; i < mti_view_count(&c.o); i++)
                assert_true(values_get(&c.o, i) == 0 && values_get(&c.dq, i) == 0);
            for (int64_t i = 0; i < mti_view_count(&c.dk); i++)
                assert_true(values_get(&c.dk, i) == 0 && values_get(&c.dv, i) == 0);
            values_free_all();
        }
}

/* With v the identity, o is the dropped probabilities themselves; with do the identity of the
 * queries, dv is their transpose. */
static void the_mask_is_bit_for_bit_the_cpus(void **state)
{
    (void)state;
    static const int64_t widths[] = {41, 44}; /* four draws of a counter in one row, or not */
    for (int n = 0; n < 2; n++)
        for (int t = 0; t < 4; t++) {
            attention_sizes z = {2, 3, 3, 48, widths[n], 48, false, 0.3};
            attention_call c;
            make(&c, &z, each_dtype[t]);
            for (int64_t i = 0; i < mti_view_count(&c.v); i++)
                values_set(&c.v, i, i / z.d % z.t == i % z.d ? 1 : 0);
            for (int64_t i = 0; i < mti_view_count(&c.d_o); i++)
                values_set(&c.d_o, i, i / z.d % z.s == i % z.d ? 1 : 0);
            forward(&c, true), backward(&c);
            int64_t rows = z.b * z.a * z.s, draws = rows * z.t, kept = 0;
            mti_view ones = values_new(MT_F32, 1, &draws), dropped = values_new(MT_F32, 1, &draws);
            values_fill(&ones, 1);
            mti_ctx *ctx = mti_cpu_backend.open();
            assert_true(mti_cpu_backend.dropout(ctx, z.p, (uint64_t)c.seed, (uint64_t)c.offset,
                                                &ones, &dropped, NULL));
            mti_cpu_backend.close(ctx);
            for (int64_t draw = 0; draw < draws; draw++) {
                int64_t row = draw / z.t, j = draw % z.t, head = row / z.s;
                bool keep = values_get(&dropped, draw) != 0;
                kept += keep;
                assert_int_equal(keep, values_get(&c.o, row * z.d + j) != 0);
                assert_int_equal(keep, values_get(&c.dv, (head * z.t + j) * z.d + row % z.s) != 0);
            }
            assert_in_range(kept, draws / 2, draws * 9 / 10);
            values_free_all();
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f64_agrees_with_the_cpu),
        cmocka_unit_test(f32_agrees_with_the_cpu),
        cmocka_unit_test(bf16_agrees_with_the_cpu),
        cmocka_unit_test(f16_agrees_with_the_cpu),
        cmocka_unit_test(sixteen_bit_floats_that_tensor_cores_do_not_take_agree_too),
        cmocka_unit_test(bits_do_not_depend_on_the_order_in_which_threads_and_blocks_run),
        cmocka_unit_test(each_barrier_is_missed_when_it_is_taken_away),
        cmocka_unit_test(bits_do_not_depend_on_the_grid),
        cmocka_unit_test(lse_may_be_left_out_of_forward),
        cmocka_unit_test(queries_that_see_no_key_give_zeros),
        cmocka_unit_test(without_keys_or_queries_everything_is_zero),
        cmocka_unit_test(the_mask_is_bit_for_bit_the_cpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
