/* RMS norm, rotary positions, swiglu, pow, abs, clamp, max, where and grouped heads: what they
 * keep, what they refuse, and their special cases. */
#include <math.h>
#include <stdlib.h>
#include "base/base.h"
#include "mtt_fixture.h"

static mt_tensor *leaf(mt_dtype dtype, int rank, const int64_t *shape, uint64_t seed)
{
    mt_tensor *t = mtt_made(mtt_random(device, dtype, rank, shape, seed, -2, 2));
    mtt_ok(mt_set_requires_grad(t, true));
    return t;
}

static mt_tensor *mask_of(int64_t n, const uint8_t *bits)
{
    return mtt_made(mt_from_data(device, MT_BOOL, MT_SHAPE(n), bits, (size_t)n));
}

/* ---- bytes kept, for bf16 [2,4,6,8] ---- */

enum { N = 2 * 4 * 6 * 8, E = 2 };

static mt_tensor *rope(mt_tensor **in) { return mt_rope(in[0], 5, 10000); }
static mt_tensor *swiglu(mt_tensor **in) { return mt_swiglu(in[0], in[1]); }
static mt_tensor *rms_norm(mt_tensor **in) { return mt_rms_norm(in[0], NULL, 1e-5); }
static mt_tensor *cube(mt_tensor **in) { return mt_pow(in[0], 3); }
static mt_tensor *absolute(mt_tensor **in) { return mt_abs(in[0]); }
static mt_tensor *clamped(mt_tensor **in) { return mt_clamp(in[0], -1, 1); }
static mt_tensor *max_last(mt_tensor **in) { return mt_max(in[0], 1, (int[]){-1}, false); }
static mt_tensor *max_all(mt_tensor **in) { return mt_max(in[0], 0, NULL, false); }
static mt_tensor *best(mt_tensor **in)
{
    mt_tensor *values, *index;
    if (mt_topk(in[0], 3, &values, &index) != MT_OK) return NULL;
    mt_release(index);
    return values;
}
static mt_tensor *gathered(mt_tensor **in)
{
    MT_AUTO mt_tensor *index = mt_arange(device, MT_I64, 0, 1, 3);
    mt_set(&index, mt_reshape(index, MT_SHAPE(1, 1, 1, 3)));
    mt_set(&index, mt_expand(index, 4, (int64_t[]){mt_shape(in[0])[0], mt_shape(in[0])[1], 6, 3}));
    return mt_gather(in[0], 3, index);
}
static mt_tensor *where(mt_tensor **in)
{
    MT_AUTO mt_tensor *mask = mt_cast(in[1], MT_BOOL);
    return mt_where(mask, in[0], in[1]);
}
static mt_tensor *packed_swiglu(mt_tensor **in)
{
    mt_tensor *half[2];
    if (mt_split(in[0], -1, 2, (int64_t[]){4, 4}, half) != MT_OK) return NULL;
    mt_tensor *y = mt_swiglu(half[0], half[1]);
    mt_release(half[0]), mt_release(half[1]);
    return y;
}

/* The 48 rows of in[0], two experts each, through the 4 matrices of in[1] as [4,12,8]. */
static mt_tensor *experts(mt_tensor **in)
{
    MT_AUTO mt_tensor *x = mt_reshape(in[0], MT_SHAPE(48, 8));
    MT_AUTO mt_tensor *w = mt_reshape(in[1], MT_SHAPE(4, 12, 8));
    MT_AUTO mt_tensor *index = mt_zeros(mt_device_of(in[0]), MT_I64, MT_SHAPE(48, 2));
    mt_groups groups;
    MT_AUTO mt_tensor *sorted = mt_dispatch(x, index, 4, &groups);
    mt_tensor *y = mt_grouped_linear(sorted, w, groups.counts);
    mt_groups_release(&groups);
    return y;
}

static void each_op_keeps_what_its_backward_reads_and_no_more(void **state)
{
    (void)state;
    static const struct {
        mt_tensor *(*fn)(mt_tensor **);
        size_t bytes;
    } table[] = {
        {rope, 0},
        {swiglu, 2 * N * E},
        {packed_swiglu, N * E}, /* two halves of one storage */
        {rms_norm, N * E + N / 8 * 4},
        {cube, N * E},
        {absolute, N * E},
        {clamped, N * E},
        {max_last, N / 8 * 8},
        {max_all, 8},
        {best, N / 8 * 3 * 8},
        {gathered, 3 * 8}, /* one row of indices for all rows */
        {where, N},
        /* rows, sorted rows, w, counts */
        {experts, 96 * 8 + 2 * N * E + N * E + 4 * 4},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        mt_tensor *in[2] = {leaf(MT_BF16, MT_SHAPE(2, 4, 6, 8), 1),
                            leaf(MT_BF16, MT_SHAPE(2, 4, 6, 8), 2)};
        mt_ledger *ledger = mt_ledger_new(device);
        mtt_ok(mt_ledger_begin(ledger));
        MT_AUTO mt_tensor *y = mtt_made(table[i].fn(in));
        assert_int_equal(mt_ledger_bytes(ledger), table[i].bytes);
        mtt_ok(mt_ledger_end(ledger));
        mt_ledger_free(ledger);
        mt_release(in[0]), mt_release(in[1]);
    }
}

/* ---- rotary positions ---- */

static void rope_rotates_a_row_by_its_position_wherever_the_call_begins(void **state)
{
    (void)state;
    static const mt_dtype dtypes[] = {MT_F32, MT_F64, MT_BF16};
    for (int t = 0; t < 3; t++) {
        MT_AUTO mt_tensor *x =
            mtt_made(mtt_random(device, dtypes[t], MT_SHAPE(1, 2, 40, 16), 3, -2, 2));
        MT_AUTO mt_tensor *whole = mtt_made(mt_rope(x, 100, 10000));
        for (int64_t p = 0; p < 40; p++) {
            MT_AUTO mt_tensor *row = mtt_made(mt_slice(x, 2, p, 1));
            MT_AUTO mt_tensor *turned = mtt_made(mt_rope(row, 100 + p, 10000));
            MT_AUTO mt_tensor *same = mtt_made(mt_slice(whole, 2, p, 1));
            assert_true(mtt_same_bits(turned, same));
        }
    }
}

/* Positions are below 2^31: the last one is allowed, and none after it. */
static void rope_rotates_up_to_the_last_position(void **state)
{
    (void)state;
    const int64_t last = ((int64_t)1 << 31) - 1;
    MT_AUTO mt_tensor *x = leaf(MT_F64, MT_SHAPE(1, 1, 3, 4), 6);
    MT_AUTO mt_tensor *y = mtt_made(mt_rope(x, last - 2, 10000));
    MT_AUTO mt_tensor *row = mtt_made(mt_slice(x, 2, 2, 1));
    MT_AUTO mt_tensor *turned = mtt_made(mt_rope(row, last, 10000));
    MT_AUTO mt_tensor *last_row = mtt_made(mt_slice(y, 2, 2, 1));
    assert_true(mtt_same_bits(turned, last_row));
    assert_null(mt_rope(x, last - 1, 10000));
    mtt_failed(MT_ERR_ARGUMENT, "rope", "3 positions from 2147483646");
    assert_null(mt_rope(row, last + 1, 10000));
    mtt_failed(MT_ERR_ARGUMENT, "rope", "1 positions from 2147483648");
}

/* The pair (1, 0) at position 1 becomes the cosine and the sine of its angle, and its gradient
 * turns back. Four pairs of theta 16 turn by 1, 1/2, 1/4 and 1/8. */
static void scaled_angles_are_divided_by_pair_or_by_angle(void **state)
{
    (void)state;
    static const struct {
        mt_rope_options options;
        double angles[4];
    } cases[] = {{{.theta = 16}, {1, 0.5, 0.25, 0.125}},
                 {{.theta = 16, .factor = 4, .low = -1}, {0.25, 0.125, 0.0625, 0.03125}},
                 {{.theta = 16, .factor = 4, .low = 0, .high = 2}, {1, 0.3125, 0.0625, 0.03125}},
                 {{.theta = 16, .factor = 4, .low = 0.125, .high = 0.5, .by_angle = true},
                  {1, 0.5, 0.125, 0.03125}},
                 {{.theta = 16, .scale = 1.5}, {1, 0.5, 0.25, 0.125}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const double one[8] = {1, 1, 1, 1, 0, 0, 0, 0};
        const double scale = cases[i].options.scale == 0 ? 1 : cases[i].options.scale;
        MT_AUTO mt_tensor *x = mtt_from_doubles(device, MT_F64, MT_SHAPE(1, 1, 1, 8), one);
        MT_AUTO mt_tensor *dy = mtt_from_doubles(device, MT_F64, MT_SHAPE(1, 1, 1, 8), one);
        mtt_ok(mt_set_requires_grad(x, true));
        MT_AUTO mt_tensor *y = mtt_made(mt_rope_with(x, 1, &cases[i].options));
        mtt_ok(mt_backward_from(1, &y, &dy, false));
        double *turned = mtt_doubles(y), *back = mtt_doubles(mt_grad(x));
        for (int pair = 0; pair < 4; pair++) {
            const double angle = cases[i].angles[pair];
            assert_true(fabs(turned[pair] - scale * cos(angle)) < 1e-15);
            assert_true(fabs(turned[pair + 4] - scale * sin(angle)) < 1e-15);
            assert_true(fabs(back[pair] - scale * cos(angle)) < 1e-15);
            assert_true(fabs(back[pair + 4] + scale * sin(angle)) < 1e-15);
        }
        free(turned), free(back);
    }
}

static void rope_does_not_rotate_position_0(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mtt_random(device, MT_F32, MT_SHAPE(2, 3, 1, 8), 3, -2, 2));
    MT_AUTO mt_tensor *y = mtt_made(mt_rope(x, 0, 10000));
    assert_true(mtt_same_bits(x, y));
}

/* ---- max ---- */

static void of_equal_maxima_the_first_gets_the_gradient(void **state)
{
    (void)state;
    const double values[] = {1, 3, 3, 2, 3, 0, 5, 5};
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(2, 4), values));
    mtt_ok(mt_set_requires_grad(x, true));
    MT_AUTO mt_tensor *y = mtt_made(mt_max(x, 1, (int[]){1}, false));
    MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(sum));
    double *dx = mtt_doubles(mt_grad(x));
    const double want[] = {0, 1, 0, 0, 0, 0, 1, 0};
    for (int i = 0; i < 8; i++) assert_true(dx[i] == want[i]);
    free(dx);
}

static void max_of_rows_and_columns_counts_in_row_major_order(void **state)
{
    (void)state;
    const double values[] = {0, 7, 1, 1, 2, 2, 7, 3}; /* [2,2,2]; max over dimensions 0 and 2 */
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F64, MT_SHAPE(2, 2, 2), values));
    mtt_ok(mt_set_requires_grad(x, true));
    MT_AUTO mt_tensor *y = mtt_made(mt_max(x, 2, (int[]){2, 0}, true));
    assert_int_equal(mt_rank(y), 3);
    double *top = mtt_doubles(y);
    assert_true(top[0] == 7 && top[1] == 7);
    free(top);
    MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(sum));
    double *dx = mtt_doubles(mt_grad(x));
    for (int i = 0; i < 8; i++) assert_true(dx[i] == (i == 1 || i == 6));
    free(dx);
}

/* ---- where, pow ---- */

static void masked_elements_may_be_infinite(void **state)
{
    (void)state;
    const double values[] = {1, 2, 3};
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(3), values));
    MT_AUTO mt_tensor *mask = mask_of(3, (const uint8_t[]){0, 1, 0});
    mtt_ok(mt_set_requires_grad(x, true));
    MT_AUTO mt_tensor *y = mtt_made(mt_masked_fill(x, mask, -INFINITY));
    MT_AUTO mt_tensor *p = mtt_made(mt_softmax(y, 1, false));
    mtt_ok(mt_backward_with(p, &(mt_backward_options){.gradient = x}));
    double *filled = mtt_doubles(y), *dx = mtt_doubles(mt_grad(x));
    assert_true(filled[0] == 1 && filled[1] == -(double)INFINITY && filled[2] == 3);
    assert_true(dx[0] < 0 && dx[1] == 0 && dx[2] > 0);
    free(filled), free(dx);
}

static void the_power_0_is_1_with_gradient_0_even_at_0(void **state)
{
    (void)state;
    const double values[] = {0, -1, 2};
    MT_AUTO mt_tensor *x = mtt_made(mtt_from_doubles(device, MT_F32, MT_SHAPE(3), values));
    mtt_ok(mt_set_requires_grad(x, true));
    MT_AUTO mt_tensor *y = mtt_made(mt_pow(x, 0));
    MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(sum));
    double *dx = mtt_doubles(mt_grad(x));
    assert_true(mt_item(sum) == 3 && dx[0] == 0 && dx[1] == 0 && dx[2] == 0);
    free(dx);
}

/* ---- grouped heads ---- */

static void grouped_heads_from_parts_agree_with_the_fused_kernel(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        int64_t a_kv = variant & 1 ? 1 : 2;
        bool causal = variant & 2;
        mt_tensor *in[2][3], *out[2];
        for (int k = 0; k < 2; k++) {
            in[k][0] = leaf(MT_F64, MT_SHAPE(2, 4, 5, 6), 1);
            in[k][1] = leaf(MT_F64, MT_SHAPE(2, a_kv, 7, 6), 2);
            in[k][2] = leaf(MT_F64, MT_SHAPE(2, a_kv, 7, 6), 3);
            out[k] = mtt_made(k ? mt_flash_attention(in[k][0], in[k][1], in[k][2], 0, causal, 0)
                                : mt_math_attention(in[k][0], in[k][1], in[k][2], 0, causal, 0));
            mtt_ok(mt_backward_with(out[k], &(mt_backward_options){.gradient = in[k][0]}));
        }
        for (int i = 0; i < 4; i++) {
            mt_tensor *one = i < 3 ? mt_grad(in[0][i]) : out[0];
            mt_tensor *other = i < 3 ? mt_grad(in[1][i]) : out[1];
            double *u = mtt_doubles(one), *v = mtt_doubles(other);
            for (int64_t j = 0; j < mt_numel(one); j++) assert_true(fabs(u[j] - v[j]) < 1e-12);
            free(u), free(v);
        }
        for (int k = 0; k < 2; k++) {
            mt_release(out[k]);
            for (int i = 0; i < 3; i++) mt_release(in[k][i]);
        }
    }
}

/* ---- refusals ---- */

static void wrong_shapes_and_numbers_are_refused_with_what_is_needed(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = leaf(MT_F32, MT_SHAPE(3, 5), 1);
    MT_AUTO mt_tensor *w = leaf(MT_F32, MT_SHAPE(4), 2);
    MT_AUTO mt_tensor *d = leaf(MT_F64, MT_SHAPE(3, 5), 3);
    MT_AUTO mt_tensor *heads = leaf(MT_F32, MT_SHAPE(1, 4, 2, 6), 4);
    MT_AUTO mt_tensor *three = leaf(MT_F32, MT_SHAPE(1, 3, 2, 6), 5);
    MT_AUTO mt_tensor *odd = leaf(MT_F32, MT_SHAPE(1, 1, 2, 5), 6);
    MT_AUTO mt_tensor *empty = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(3, 0)));
    MT_AUTO mt_tensor *mask = mask_of(4, (const uint8_t[]){0, 1, 0, 1});
    assert_null(mt_rms_norm(x, w, 1e-5));
    mtt_failed(MT_ERR_ARGUMENT, "rms_norm", "[3,5]", "[4]", "per column");
    assert_null(mt_rms_norm(x, NULL, -1));
    mtt_failed(MT_ERR_ARGUMENT, "rms_norm", "eps -1");
    assert_null(mt_rope(odd, 0, 10000));
    mtt_failed(MT_ERR_ARGUMENT, "rope", "[1,1,2,5]", "even");
    assert_null(mt_rope(x, 0, 10000));
    mtt_failed(MT_ERR_ARGUMENT, "rope", "[3,5]", "[b,a,s,d]");
    assert_null(mt_rope(heads, -1, 10000));
    mtt_failed(MT_ERR_ARGUMENT, "rope", "2 positions from -1");
    assert_null(mt_rope(heads, INT64_MAX, 10000));
    mtt_failed(MT_ERR_ARGUMENT, "rope", "2147483648");
    assert_null(mt_rope(heads, 0, 0));
    mtt_failed(MT_ERR_ARGUMENT, "rope", "theta is 0");
    assert_null(mt_rope_with(heads, 0, &(mt_rope_options){.theta = 9, .factor = 0.5, .high = 1}));
    mtt_failed(MT_ERR_ARGUMENT, "rope", "factor is 0.5", "1 or more");
    assert_null(mt_rope_with(heads, 0, &(mt_rope_options){.theta = 9, .factor = 2}));
    mtt_failed(MT_ERR_ARGUMENT, "rope", "from 0 to 0", "low below high");
    assert_null(mt_rope_with(heads, 0, &(mt_rope_options){.theta = 9, .scale = -1}));
    mtt_failed(MT_ERR_ARGUMENT, "rope", "scale is -1");
    assert_null(mt_swiglu(x, w));
    mtt_failed(MT_ERR_ARGUMENT, "swiglu", "gate is [3,5]", "up is [4]");
    assert_null(mt_swiglu(x, d));
    mtt_failed(MT_ERR_ARGUMENT, "swiglu", "one dtype");
    assert_null(mt_clamp(x, 2, 1));
    mtt_failed(MT_ERR_ARGUMENT, "clamp", "low 2", "high 1");
    assert_null(mt_clamp(x, NAN, 1));
    mtt_failed(MT_ERR_ARGUMENT, "clamp", "low <= high");
    assert_null(mt_where(x, x, x));
    mtt_failed(MT_ERR_ARGUMENT, "where", "mask is f32", "bool");
    assert_null(mt_where(mask, x, x));
    mtt_failed(MT_ERR_ARGUMENT, "where", "mask is [4]", "a is [3,5]");
    assert_null(mt_masked_fill(x, NULL, 0));
    mtt_failed(MT_ERR_ARGUMENT, "masked_fill", "NULL");
    assert_null(mt_max(empty, 1, (int[]){1}, false));
    mtt_failed(MT_ERR_ARGUMENT, "max", "[3,0]", "dimension 1");
    assert_null(mt_max(x, 2, (int[]){0, -2}, false));
    mtt_failed(MT_ERR_ARGUMENT, "max", "named twice");
    assert_null(mt_math_attention(heads, three, three, 0, false, 0));
    mtt_failed(MT_ERR_ARGUMENT, "math_attention", "[1,4,2,6]", "[1,3,2,6]", "multiple");
    assert_null(mt_math_attention_capped(heads, heads, heads, 0, 0, false, 0));
    mtt_failed(MT_ERR_ARGUMENT, "cap is 0", "positive");
    assert_null(mt_math_attention_capped(heads, heads, heads, 0, INFINITY, false, 0));
    mtt_failed(MT_ERR_ARGUMENT, "cap is inf", "positive");
    assert_null(mt_math_attention_capped(heads, three, three, 0, 1, false, 0));
    mtt_failed(MT_ERR_ARGUMENT, "math_attention", "[1,4,2,6]", "[1,3,2,6]", "multiple");
    assert_null(mt_math_attention(heads, NULL, heads, 0, false, 0));
    mtt_failed(MT_ERR_ARGUMENT, "math_attention", "NULL");
}

static void no_elements_give_no_elements(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_F32, MT_SHAPE(2, 0, 3, 4)));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_tensor *in[2] = {x, x};
    mt_tensor *(*const all[])(mt_tensor **) = {rope,    swiglu,   rms_norm, cube, absolute,
                                               clamped, max_last, best,     where};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        MT_AUTO mt_tensor *y = mtt_made(all[i](in));
        assert_int_equal(mt_numel(y), 0);
        MT_AUTO mt_tensor *sum = mtt_made(mt_sum_all(y));
        mtt_ok(mt_backward(sum));
    }
}

/* ---- no memory ---- */

static mt_tensor *grouped(mt_tensor **in)
{
    MT_AUTO mt_tensor *k = mt_slice(in[1], 1, 0, 2);
    return mt_math_attention(in[0], k, k, 0, true, 0);
}
static mt_tensor *filled(mt_tensor **in)
{
    MT_AUTO mt_tensor *mask = mt_cast(in[1], MT_BOOL);
    return mt_masked_fill(in[0], mask, 3);
}

/* Forward and backward with the n-th allocation failing; false if there were fewer. */
static bool fail_nth(mt_tensor *(*fn)(mt_tensor **), uint64_t n)
{
    mt_tensor *in[2] = {leaf(MT_F32, MT_SHAPE(2, 4, 6, 8), 1),
                        leaf(MT_F32, MT_SHAPE(2, 4, 6, 8), 2)};
    size_t before = mtt_allocated(device);
    mti_fail_nth_alloc(n);
    mt_tensor *y = fn(in), *sum = y ? mt_sum_all(y) : NULL;
    bool good = sum && mt_backward(sum) == MT_OK;
    bool reached = mti_alloc_count() >= n;
    mti_fail_nth_alloc(0);
    if (!good) {
        assert_true(reached);
        assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        mt_clear_error();
    }
    mt_release(y), mt_release(sum);
    for (int i = 0; i < 2; i++) mtt_ok(mt_set_grad(in[i], NULL));
    assert_int_equal(mtt_allocated(device), before);
    mt_release(in[0]), mt_release(in[1]);
    return reached;
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    mt_tensor *(*const all[])(mt_tensor **) = {rope,     swiglu,   packed_swiglu, rms_norm, cube,
                                               max_last, max_all,  where,         grouped,  filled,
                                               best,     gathered, experts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        uint64_t n = 1;
        while (fail_nth(all[i], n)) n++;
        assert_true(n > 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(each_op_keeps_what_its_backward_reads_and_no_more),
        mtt_test(rope_rotates_a_row_by_its_position_wherever_the_call_begins),
        mtt_test(rope_rotates_up_to_the_last_position),
        mtt_test(scaled_angles_are_divided_by_pair_or_by_angle),
        mtt_test(rope_does_not_rotate_position_0),
        mtt_test(of_equal_maxima_the_first_gets_the_gradient),
        mtt_test(max_of_rows_and_columns_counts_in_row_major_order),
        mtt_test(masked_elements_may_be_infinite),
        mtt_test(the_power_0_is_1_with_gradient_0_even_at_0),
        mtt_test(grouped_heads_from_parts_agree_with_the_fused_kernel),
        mtt_test(wrong_shapes_and_numbers_are_refused_with_what_is_needed),
        mtt_test(no_elements_give_no_elements),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
