/* Special cases of comparisons and arange, which make masks, and of gather and topk. What each op
 * keeps, and refused allocations, are in test_gates.c. */
#include <math.h>
#include <stdlib.h>
#include "mtt_fixture.h"

static mt_tensor *row(mt_dtype dtype, int64_t n, const double *values)
{
    return mtt_made(mtt_from_doubles(device, dtype, MT_SHAPE(n), values));
}

static void assert_holds(mt_tensor *t, mt_dtype dtype, int64_t n, const double *want)
{
    assert_int_equal(mt_dtype_of(t), dtype);
    assert_int_equal(mt_numel(t), n);
    double *got = mtt_doubles(t);
    for (int64_t i = 0; i < n; i++)
        if (got[i] != want[i] && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("element %lld is %g; should be %g", (long long)i, got[i], want[i]);
    free(got);
}

static const mt_dtype floats[] = {MT_F32, MT_F64, MT_BF16, MT_F16};

/* ---- comparisons ---- */

typedef mt_tensor *compare_fn(mt_tensor *, mt_tensor *);
static compare_fn *const with_tensor[] = {mt_eq, mt_ne, mt_lt, mt_le, mt_gt, mt_ge};

static void nan_differs_from_all_and_zeros_are_equal(void **state)
{
    (void)state;
    const double inf = (double)INFINITY, nan = (double)NAN;
    const double left[] = {1, 2, -0.0, nan, nan, inf, -inf}, right[] = {2, 1, 0, nan, 1, inf, inf};
    const double want[6][7] = {{0, 0, 1, 0, 0, 1, 0}, {1, 1, 0, 1, 1, 0, 1}, {1, 0, 0, 0, 0, 0, 1},
                               {1, 0, 1, 0, 0, 1, 1}, {0, 1, 0, 0, 0, 0, 0}, {0, 1, 1, 0, 0, 1, 0}};
    for (int t = 0; t < 4; t++) {
        MT_AUTO mt_tensor *a = row(floats[t], 7, left), *b = row(floats[t], 7, right);
        for (int k = 0; k < 6; k++) {
            MT_AUTO mt_tensor *y = mtt_made(with_tensor[k](a, b));
            assert_holds(y, MT_BOOL, 7, want[k]);
        }
    }
}

static void whole_numbers_are_compared_exactly(void **state)
{
    (void)state;
    const int64_t left[] = {INT64_MAX, INT64_MIN, -1}, right[] = {INT64_MAX - 1, 0, 1};
    MT_AUTO mt_tensor *a = mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(3), left, sizeof left));
    MT_AUTO mt_tensor *b = mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(3), right, sizeof right));
    MT_AUTO mt_tensor *y = mtt_made(mt_gt(a, b));
    assert_holds(y, MT_BOOL, 3, (double[]){1, 0, 0});
    MT_AUTO mt_tensor *low = row(MT_U8, 2, (double[]){200, 3});
    MT_AUTO mt_tensor *of_bytes = mtt_made(mt_compare_scalar(low, MT_GE, 200));
    assert_holds(of_bytes, MT_BOOL, 2, (double[]){1, 0});
    MT_AUTO mt_tensor *set = mtt_made(mt_compare_scalar(of_bytes, MT_EQ, 1));
    assert_holds(set, MT_BOOL, 2, (double[]){1, 0});
}

static void a_scalar_is_rounded_to_the_dtype(void **state)
{
    (void)state;
    const double tenth = 0.1;
    const double want[6] = {1, 0, 0, 1, 0, 1};
    for (int t = 0; t < 4; t++) {
        MT_AUTO mt_tensor *x = row(floats[t], 1, &tenth);
        for (int k = 0; k < 6; k++) {
            MT_AUTO mt_tensor *y = mtt_made(mt_compare_scalar(x, (mt_comparison)k, tenth));
            assert_holds(y, MT_BOOL, 1, &want[k]);
        }
    }
}

static void a_mask_is_not_recorded_and_passes_no_gradient(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = row(MT_F32, 3, (double[]){-1, 2, 3});
    mtt_ok(mt_set_requires_grad(x, true));
    MT_AUTO mt_tensor *h = mtt_made(mt_exp(x));
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    MT_AUTO mt_tensor *mask = mtt_made(mt_compare_scalar(h, MT_GT, 1));
    assert_int_equal(mt_ledger_bytes(ledger), 0);
    mtt_ok(mt_ledger_end(ledger));
    mt_ledger_free(ledger);
    assert_false(mt_requires_grad(mask));
    MT_AUTO mt_tensor *y = mtt_made(mt_masked_fill(x, mask, 9));
    MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(sum));
    assert_holds(mt_grad(x), MT_F32, 3, (double[]){1, 0, 0});
}

static void invalid_comparisons_are_refused(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = row(MT_F32, 3, (double[]){1, 2, 3});
    MT_AUTO mt_tensor *d = row(MT_F64, 3, (double[]){1, 2, 3});
    MT_AUTO mt_tensor *two = row(MT_F32, 2, (double[]){1, 2});
    MT_AUTO mt_tensor *u = row(MT_U8, 3, (double[]){1, 2, 3});
    assert_null(mt_gt(x, d));
    mtt_failed(MT_ERR_ARGUMENT, "gt: a is f32, b is f64", "cast");
    assert_null(mt_eq(x, two));
    mtt_failed(MT_ERR_ARGUMENT, "eq: a is [3], b is [2]");
    assert_null(mt_compare_scalar(u, MT_LT, 256));
    mtt_failed(MT_ERR_ARGUMENT, "lt: x is u8", "cannot hold 256");
    assert_null(mt_compare_scalar(u, MT_LT, 0.5));
    mtt_failed(MT_ERR_ARGUMENT, "lt: x is u8", "0.5");
}

/* ---- arange ---- */

static void each_element_is_start_plus_its_index_times_step(void **state)
{
    (void)state;
    enum { N = 300007 }; /* more than one launch covers on the simulator */
    MT_AUTO mt_tensor *whole = mtt_made(mt_arange(device, MT_I64, -5, 3, N));
    MT_AUTO mt_tensor *wide = mtt_made(mt_arange(device, MT_F64, 0.3, -0.1, N));
    MT_AUTO mt_tensor *narrow = mtt_made(mt_arange(device, MT_F32, 0.3, -0.1, N));
    double *i = mtt_doubles(whole), *x = mtt_doubles(wide), *y = mtt_doubles(narrow);
    for (int k = 0; k < N; k++) {
        assert_true(i[k] == -5 + 3.0 * k);
        assert_true(x[k] == fma(k, -0.1, 0.3));
        assert_true(y[k] == (double)(float)x[k]);
    }
    free(i), free(x), free(y);
    MT_AUTO mt_tensor *coarse = mtt_made(mt_arange(device, MT_BF16, 255, 1, 4));
    assert_holds(coarse, MT_BF16, 4, (double[]){255, 256, 256, 258}); /* ties go to even */
    MT_AUTO mt_tensor *last = mtt_made(mt_arange(device, MT_I64, 0x1p62, 0x1p61, 2));
    assert_holds(last, MT_I64, 2, (double[]){0x1p62, 0x1p62 + 0x1p61});
    MT_AUTO mt_tensor *none = mtt_made(mt_arange(device, MT_I64, 7, 1, 0));
    assert_int_equal(mt_numel(none), 0);
}

static void invalid_progressions_are_refused(void **state)
{
    (void)state;
    assert_null(mt_arange(device, MT_I32, 0, 1, 3));
    mtt_failed(MT_ERR_ARGUMENT, "arange: dtype i32", "i64");
    assert_null(mt_arange(device, MT_I64, 0, 0.5, 3));
    mtt_failed(MT_ERR_ARGUMENT, "arange", "step 0.5", "whole");
    assert_null(mt_arange(device, MT_I64, 0, 0x1p61, 5));
    mtt_failed(MT_ERR_ARGUMENT, "arange", "5 elements");
    assert_null(mt_arange(device, MT_F32, 0, 1, -1));
    mtt_failed(MT_ERR_ARGUMENT, "arange", "-1");
}

/* The mask of mt_softmax: query i of s attends to key j of t. */
static void comparing_two_aranges_gives_the_causal_mask(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *keys = mtt_made(mt_arange(device, MT_I64, 0, 1, 5));
    MT_AUTO mt_tensor *queries = mtt_made(mt_arange(device, MT_I64, 2, 1, 3));
    mtt_ok(mt_set(&queries, mt_reshape(queries, MT_SHAPE(3, 1))));
    MT_AUTO mt_tensor *hidden = mtt_made(mt_gt(keys, queries));
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_F64, MT_SHAPE(2, 3, 5), 4, -2, 2));
    MT_AUTO mt_tensor *seen = mtt_made(mt_masked_fill(x, hidden, -INFINITY));
    MT_AUTO mt_tensor *mine = mtt_made(mt_softmax(seen, 1, false));
    MT_AUTO mt_tensor *want = mtt_made(mt_softmax(x, 1, true));
    double *a = mtt_doubles(mine), *b = mtt_doubles(want);
    for (int i = 0; i < 30; i++) assert_true(fabs(a[i] - b[i]) < 1e-15);
    free(a), free(b);
}

/* ---- topk, gather ---- */

static void topk_gives_the_largest_first_and_of_equal_values_the_first(void **state)
{
    (void)state;
    const double inf = (double)INFINITY, nan = (double)NAN;
    const double values[] = {1, nan, 3, 3, inf, nan, -0.0, 0, -inf, -2};
    const double want[] = {nan, nan, inf, 3, 3, 1, -0.0, 0, -2, -inf},
                 where[] = {1, 5, 4, 2, 3, 0, 6, 7, 9, 8};
    for (int t = 0; t < 4; t++)
        for (int k = 0; k <= 10; k++) {
            MT_AUTO mt_tensor *x = row(floats[t], 10, values);
            mt_tensor *best, *index;
            mtt_ok(mt_topk(x, k, &best, &index));
            assert_holds(best, floats[t], k, want);
            assert_holds(index, MT_I64, k, where);
            mt_release(best), mt_release(index);
        }
}

/* Rows as long as a vocabulary: the result is in order, and no other element is larger. */
static void topk_works_on_rows_as_long_as_a_vocabulary(void **state)
{
    (void)state;
    enum { N = 50257, K = 300 };
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_BF16, MT_SHAPE(2, N), 5, -2, 2));
    mt_tensor *best, *index;
    mtt_ok(mt_topk(x, K, &best, &index));
    double *all = mtt_doubles(x), *v = mtt_doubles(best), *at = mtt_doubles(index);
    for (int r = 0; r < 2; r++) {
        int n_larger = 0, n_before = 0;
        double last = v[r * K + K - 1];
        for (int j = 0; j < K; j++) {
            int i = r * K + j;
            assert_true(v[i] == all[r * N + (int)at[i]]);
            if (j) assert_true(v[i - 1] > v[i] || (v[i - 1] == v[i] && at[i - 1] < at[i]));
        }
        for (int i = 0; i < N; i++) {
            n_larger += all[r * N + i] > last;
            n_before += all[r * N + i] == last && i <= (int)at[r * K + K - 1];
        }
        assert_int_equal(n_larger + n_before, K);
    }
    free(all), free(v), free(at);
    mt_release(best), mt_release(index);
}

static void gradients_go_to_the_chosen_elements_and_add_up(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        MT_AUTO mt_tensor *x = row(floats[t], 5, (double[]){4, 1, 5, 4, 2});
        MT_AUTO mt_tensor *numbers = row(MT_I64, 6, (double[]){3, 0, 3, 3, 4, 0});
        mtt_ok(mt_set_requires_grad(x, true));
        mt_tensor *best, *index;
        mtt_ok(mt_topk(x, 2, &best, &index));
        assert_false(mt_requires_grad(index));
        MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(best));
        mtt_ok(mt_backward(sum));
        assert_holds(mt_grad(x), floats[t], 5, (double[]){1, 0, 1, 0, 0});
        mt_release(best), mt_release(index);
        mtt_ok(mt_set_grad(x, NULL));
        MT_AUTO mt_tensor *y = mtt_made(mt_gather(x, 0, numbers));
        assert_holds(y, floats[t], 6, (double[]){4, 4, 4, 4, 2, 4});
        MT_AUTO mt_tensor *total = mtt_made(mt_sum_all(y));
        mtt_ok(mt_backward(total));
        assert_holds(mt_grad(x), floats[t], 5, (double[]){2, 0, 0, 3, 1});
    }
}

/* A sum of ones in bf16 cannot exceed 256, so the sum must be made in f32. */
static void sums_of_16_bit_values_are_rounded_once(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = row(MT_BF16, 1, (double[]){1});
    MT_AUTO mt_tensor *zeros = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(1000)));
    mtt_ok(mt_set_requires_grad(x, true));
    MT_AUTO mt_tensor *y = mtt_made(mt_gather(x, 0, zeros));
    MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(sum));
    assert_holds(mt_grad(x), MT_BF16, 1, (double[]){1000});
}

static void any_number_of_threads_gives_the_same_bits(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(40, 5000), 6, -2, 2));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_tensor *dx[2], *index[2];
    for (int i = 0; i < 2; i++) {
        mtt_ok(mt_device_set_threads(device, i ? 3 : 1));
        mt_tensor *best;
        mtt_ok(mt_topk(x, 400, &best, &index[i]));
        MT_AUTO mt_tensor *some = mtt_made(mt_slice(index[0], 1, 100, 1));
        mtt_ok(mt_set(&some, mt_expand(some, MT_SHAPE(40, 3000))));
        MT_AUTO mt_tensor *y = mtt_made(mt_gather(x, -1, some));
        MT_AUTO mt_tensor *scaled = mtt_made(mt_mul(y, y));
        MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(scaled));
        mtt_ok(mt_backward(sum));
        dx[i] = mt_retain(mt_grad(x));
        mtt_ok(mt_set_grad(x, NULL));
        mt_release(best);
    }
    assert_true(mtt_same_bits(dx[0], dx[1]) && mtt_same_bits(index[0], index[1]));
    for (int i = 0; i < 2; i++) mt_release(dx[i]), mt_release(index[i]);
}

static void whole_numbers_and_masks_can_be_gathered(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *index = row(MT_I64, 3, (double[]){2, 0, 2});
    static const mt_dtype dtypes[] = {MT_I64, MT_I32,  MT_I16,     MT_U16,    MT_I8,
                                      MT_U8,  MT_BOOL, MT_F8_E4M3, MT_F8_E5M2};
    for (size_t t = 0; t < sizeof dtypes / sizeof *dtypes; t++) {
        MT_AUTO mt_tensor *x = row(dtypes[t], 3, (double[]){0, 1, 1});
        MT_AUTO mt_tensor *y = mtt_made(mt_gather(x, 0, index));
        assert_holds(y, dtypes[t], 3, (double[]){1, 0, 1});
    }
}

/* Rows 0 to 2 of x go to groups 2 and 0, 0 and 2, 2 and 2 of four. */
static void rows_are_sorted_by_group_and_keep_their_order_within(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++) {
        MT_AUTO mt_tensor *x = row(floats[t], 3, (double[]){1, 2, 3});
        MT_AUTO mt_tensor *index = row(MT_I64, 6, (double[]){2, 0, 0, 2, 2, 2});
        mtt_ok(mt_set(&x, mt_reshape(x, MT_SHAPE(3, 1))));
        mtt_ok(mt_set(&index, mt_reshape(index, MT_SHAPE(3, 2))));
        mt_groups g;
        MT_AUTO mt_tensor *y = mtt_made(mt_dispatch(x, index, 4, &g));
        assert_holds(y, floats[t], 6, (double[]){1, 2, 1, 2, 3, 3});
        assert_holds(g.order, MT_I64, 6, (double[]){1, 2, 0, 3, 4, 5});
        assert_holds(g.inverse, MT_I64, 6, (double[]){2, 0, 1, 3, 4, 5});
        assert_holds(g.counts, MT_I32, 4, (double[]){2, 0, 4, 0});
        MT_AUTO mt_tensor *w = row(floats[t], 4, (double[]){10, 100, 0.5, 1000});
        mtt_ok(mt_set(&w, mt_reshape(w, MT_SHAPE(4, 1, 1))));
        MT_AUTO mt_tensor *z = mtt_made(mt_grouped_linear(y, w, g.counts));
        assert_holds(z, floats[t], 6, (double[]){10, 20, 0.5, 1, 1.5, 1.5});
        MT_AUTO mt_tensor *back = mtt_made(mt_embedding(g.inverse, z, NULL));
        assert_holds(back, floats[t], 6, (double[]){0.5, 10, 20, 1, 1.5, 1.5});
        mt_groups_release(&g);
    }
}

static void invalid_groups_are_refused(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(2, 3)));
    MT_AUTO mt_tensor *w = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(2, 5, 3)));
    MT_AUTO mt_tensor *index = row(MT_I64, 4, (double[]){0, 1, 2, 0});
    mtt_ok(mt_set(&index, mt_reshape(index, MT_SHAPE(2, 2))));
    mt_groups g;
    assert_null(mt_dispatch(x, index, 0, &g));
    mtt_failed(MT_ERR_ARGUMENT, "dispatch: 4 rows to 0 groups", "at least one group");
    assert_null(mt_dispatch(x, x, 2, &g));
    mtt_failed(MT_ERR_ARGUMENT, "dispatch: index is f32; need i64");
    MT_AUTO mt_tensor *y = mt_dispatch(x, index, 2, &g); /* a GPU finds out later */
    assert_true(!y || mt_device_sync(device) != MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "dispatch: index[2] is 2; need 0 to 1");
    mt_groups_release(&g);
    static const double wrong[][2] = {{1, 2}, {3, -1}};
    for (int i = 0; i < 2; i++) {
        MT_AUTO mt_tensor *counts = row(MT_I32, 2, wrong[i]);
        assert_null(mt_grouped_linear(x, w, counts));
        mtt_failed(MT_ERR_ARGUMENT, "grouped_linear: counts", "x has 2 rows");
    }
    MT_AUTO mt_tensor *three = row(MT_I32, 3, (double[]){1, 1, 0});
    assert_null(mt_grouped_linear(x, w, three));
    mtt_failed(MT_ERR_ARGUMENT, "counts is i32 [3]; need [n,in], [groups,out,in] and i32 [groups]");
}

static void invalid_choices_are_refused(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(2, 3)));
    MT_AUTO mt_tensor *scalar = mtt_made(mt_zeros(device, MT_F32, 0, NULL));
    MT_AUTO mt_tensor *wide = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(3, 3)));
    MT_AUTO mt_tensor *bad = row(MT_I64, 4, (double[]){0, 1, 3, -1});
    mt_tensor *values = x, *index = x;
    assert_int_equal(mt_topk(x, 4, &values, &index), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "topk: x is [2,3], k is 4");
    assert_true(!values && !index);
    assert_int_equal(mt_topk(x, -1, &values, &index), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "k is -1");
    assert_int_equal(mt_topk(scalar, 0, &values, &index), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "topk: x is []");
    assert_null(mt_gather(x, 2, wide));
    mtt_failed(MT_ERR_ARGUMENT, "gather: dimension 2");
    assert_null(mt_gather(x, 1, wide));
    mtt_failed(MT_ERR_ARGUMENT, "gather: x is [2,3], index is [3,3]", "dimension 1");
    assert_null(mt_gather(x, 1, x));
    mtt_failed(MT_ERR_ARGUMENT, "gather: index is f32; need i64");
    mtt_ok(mt_set(&bad, mt_reshape(bad, MT_SHAPE(2, 2))));
    MT_AUTO mt_tensor *y = mt_gather(x, 1, bad);
    double unread[4]; /* on an asynchronous device, reading reports the error */
    assert_true(!y || mt_to_host(y, unread, 4 * sizeof(float)) != MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "gather: index[2] is 3", "0 to 2 in dimension 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(nan_differs_from_all_and_zeros_are_equal),
        mtt_test(whole_numbers_are_compared_exactly),
        mtt_test(a_scalar_is_rounded_to_the_dtype),
        mtt_test(a_mask_is_not_recorded_and_passes_no_gradient),
        mtt_test(invalid_comparisons_are_refused),
        mtt_test(each_element_is_start_plus_its_index_times_step),
        mtt_test(invalid_progressions_are_refused),
        mtt_test(comparing_two_aranges_gives_the_causal_mask),
        mtt_test(topk_gives_the_largest_first_and_of_equal_values_the_first),
        mtt_test(topk_works_on_rows_as_long_as_a_vocabulary),
        mtt_test(gradients_go_to_the_chosen_elements_and_add_up),
        mtt_test(sums_of_16_bit_values_are_rounded_once),
        mtt_test(any_number_of_threads_gives_the_same_bits),
        mtt_test(whole_numbers_and_masks_can_be_gathered),
        mtt_test(rows_are_sorted_by_group_and_keep_their_order_within),
        mtt_test(invalid_groups_are_refused),
        mtt_test(invalid_choices_are_refused),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
