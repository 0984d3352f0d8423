/* Unary and binary kernels against formulas in f64, in every type and layout. */
#include "views.h"
#include <stdio.h>
#include "backends/scalar.h"
#include "ops/ops.h"

static const double slope = 0.125; /* also affine's scale and pow's exponent */

/* The formula of unary.def, in f64. */
static double by_formula(mti_unary op, double x)
{
    const double p0 = slope, p1 = 3;
#define F(name) mti_##name##_f64
#define UNARY(name, cost, y, dx)                                                                   \
    if (op == MTI_UNARY_##name) return y;
#include "backends/unary.def"
    return NAN;
}

/* The textbook's formula, written differently from unary.def where possible. */
static double exact(mti_unary op, double x)
{
    switch (op) {
    case MTI_UNARY_relu: return x > 0 ? x : 0;
    case MTI_UNARY_leaky_relu: return x > 0 ? x : slope * x;
    case MTI_UNARY_gelu: return x * 0.5 * erfc(-x / sqrt(2.0));
    case MTI_UNARY_gelu_tanh:
        return x / (1 + exp(-2 * sqrt(2 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
    case MTI_UNARY_silu: return x / (1 + exp(-x));
    case MTI_UNARY_tanh: return tanh(x);
    case MTI_UNARY_sigmoid: return 1 / (1 + exp(-x));
    case MTI_UNARY_exp: return exp(x);
    case MTI_UNARY_log: return log(x);
    case MTI_UNARY_sqrt: return sqrt(x);
    case MTI_UNARY_reciprocal: return pow(x, -1);
    case MTI_UNARY_pow: return pow(x, slope);
    case MTI_UNARY_affine: return slope * x + 3;
    case MTI_UNARY_abs: return fabs(x);
    case MTI_UNARY_clamp: return fmin(fmax(x, slope), 3);
    default: return by_formula(op, x);
    }
}

/* Its derivative, by a fourth-order difference. */
static double derivative(mti_unary op, double x)
{
    double h = 1e-3;
    return (8 * (exact(op, x + h) - exact(op, x - h)) -
            (exact(op, x + 2 * h) - exact(op, x - 2 * h))) /
           (12 * h);
}

/* What the op keeps: MTI_IN0, MTI_OUT0 or 0. */
static unsigned keeps(mti_unary op)
{
#define UNARY(name, cost, y, dx) [MTI_UNARY_##name] = &mti_op_##name,
    static const mti_op *const rows[] = {
#include "backends/unary.def"
    };
    return (unsigned)rows[op]->keep[0] & MTI_SLOTS;
}

static double lowest(mti_unary op)
{
    return op == MTI_UNARY_reciprocal ? 1 : isnan(exact(op, -1)) ? 0.25 : -4.0;
}

/* Values away from 0 and from clamp's bounds, where the derivative is not defined. */
static void fill_input(const mti_view *x, mti_unary op)
{
    mtt_fill(x, 7, lowest(op), 4.0);
    for (int64_t i = 0; i < mti_view_count(x); i++)
        for (int k = 0; k < 3; k++)
            if (fabs(mtt_get(x, i) - (double[]){0, slope, 3}[k]) < 0.02) mtt_set(x, i, 0.5);
}

static void check_unary(const mti_backend *be, mti_ctx *ctx, mti_unary op, mt_dtype dtype,
                        int64_t n, mtt_placing placing)
{
    const int64_t shape[3] = {2, 3, n};
    char what[64];
    snprintf(what, sizeof what, "op %d, %s, [2,3,%lld], placing %d", op, mt_dtype_name(dtype),
             (long long)n, placing);
    mti_view x = mtt_view(dtype, 3, shape, placing), y = mtt_view(dtype, 3, shape, placing);
    mti_view kept = mtt_view(dtype, 3, shape, MTT_PLACED_PADDED);
    mti_view dy = mtt_view(dtype, 3, shape, MTT_PLACED_DENSE),
             dx = mtt_view(dtype, 3, shape, placing);
    fill_input(&x, op);
    mtt_fill(&dy, 8, -1.0, 1.0);
    double tolerance = 3 * mtt_epsilon(dtype);
    mtt_did(be->unary(ctx, op, slope, 3, &x, &y));
    for (int64_t i = 0; i < 6 * n; i++) {
        mtt_close(mtt_get(&y, i), exact(op, mtt_get(&x, i)), tolerance, what, i);
        mtt_set(&kept, i, keeps(op) == MTI_OUT0 ? exact(op, mtt_get(&x, i)) : mtt_get(&x, i));
    }
    mtt_did(be->unary_backward(ctx, op, slope, 3, keeps(op) ? &kept : NULL, &dy, &dx));
    tolerance = dtype == MT_F64 ? 1e-9 : 8 * mtt_epsilon(dtype);
    for (int64_t i = 0; i < 6 * n; i++)
        mtt_close(mtt_get(&dx, i), mtt_get(&dy, i) * derivative(op, mtt_get(&x, i)), tolerance,
                  what, i);
    /* in place gives the same bits */
    mtt_did(be->unary_backward(ctx, op, slope, 3, keeps(op) ? &kept : NULL, &dy, &dy));
    mtt_same(&dx, &dy, what);
    mtt_did(be->unary(ctx, op, slope, 3, &x, &x));
    mtt_same(&x, &y, what);
    mti_view *all[] = {&x, &y, &kept, &dy, &dx};
    for (int k = 0; k < 5; k++) mtt_drop(all[k]);
}

static void every_unary_op_and_its_derivative_match_the_formula(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (mti_unary op = 0; op < MTI_UNARY_COUNT; op++)
        for (int t = 0; t < 4; t++)
            for (int s = 0; s < 9; s++)
                for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
                    check_unary(be, ctx, op, mtt_floats[t], mtt_sizes[s], placing);
    be->close(ctx);
}

static double exact_binary(mti_binary op, double a, double b)
{
    return op == MTI_ADD ? a + b : op == MTI_SUB ? a - b : op == MTI_MUL ? a * b : a / b;
}

static void check_binary(const mti_backend *be, mti_ctx *ctx, mti_binary op, mt_dtype dtype,
                         int64_t n, mtt_placing pa, mtt_placing pb)
{
    const int64_t shape[3] = {3, 2, n};
    mti_view a = mtt_view(dtype, 3, shape, pa), b = mtt_view(dtype, 3, shape, pb);
    mti_view y = mtt_view(dtype, 3, shape, MTT_PLACED_DENSE);
    bool whole = !mt_dtype_is_float(dtype);
    mtt_fill(&a, 1, -50, 50);
    mtt_fill(&b, 2, whole ? -50 : 0.5, 50);
    mtt_did(be->binary(ctx, op, &a, &b, &y));
    for (int64_t i = 0; i < 6 * n; i++)
        mtt_close(mtt_get(&y, i), exact_binary(op, mtt_get(&a, i), mtt_get(&b, i)),
                  whole ? 0 : mtt_epsilon(dtype), "binary", i);
    if (pa != MTT_PLACED_BROADCAST) {
        mtt_did(be->binary(ctx, op, &a, &b, &a));
        mtt_same(&a, &y, "binary in place");
    }
    mtt_drop(&a), mtt_drop(&b), mtt_drop(&y);
}

static void every_binary_op_matches_in_every_pair_of_layouts(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    const mt_dtype types[] = {MT_F32, MT_F64, MT_BF16, MT_F16, MT_I64, MT_I32};
    for (mti_binary op = 0; op < MTI_BINARY_COUNT; op++)
        for (int t = 0; t < (op == MTI_DIV ? 4 : 6); t++)
            for (int s = 0; s < 9; s++)
                for (mtt_placing pa = 0; pa <= MTT_PLACED_BROADCAST; pa++)
                    for (mtt_placing pb = 0; pb <= MTT_PLACED_BROADCAST; pb++)
                        if (pa != MTT_PLACING_COUNT && pb != MTT_PLACING_COUNT)
                            check_binary(be, ctx, op, types[t], mtt_sizes[s], pa, pb);
    be->close(ctx);
}

static bool exact_compare(mti_compare op, double a, double b)
{
    return op == MTI_COMPARE_eq   ? a == b
           : op == MTI_COMPARE_ne ? !(a == b)
           : op == MTI_COMPARE_lt ? a < b
           : op == MTI_COMPARE_le ? a < b || a == b
           : op == MTI_COMPARE_gt ? b < a
                                  : b < a || a == b;
}

/* Inputs with few different values, so that many are equal; some NaN where the dtype has it. */
static void check_compare(const mti_backend *be, mti_ctx *ctx, mti_compare op, mt_dtype dtype,
                          int64_t n, mtt_placing pa, mtt_placing py)
{
    const int64_t shape[3] = {3, 2, n};
    mti_view a = mtt_view(dtype, 3, shape, pa), b = mtt_view(dtype, 3, shape, MTT_PLACED_PADDED);
    mti_view y = mtt_view(MT_BOOL, 3, shape, py);
    bool negative = mt_dtype_bits(dtype).sign, real = mt_dtype_bits(dtype).exponent > 0;
    int64_t values = dtype == MT_BOOL ? 2 : 5;
    for (int64_t i = 0; i < 6 * n; i++) {
        mtt_set(&a, i, (double)(i * 7 % 11 % values) - 2 * negative);
        mtt_set(&b, i, (double)(i * 5 % 13 % values) - 2 * negative);
        if (real && i % 9 == 4) mtt_set(i & 1 ? &a : &b, i, (double)NAN);
    }
    mtt_did(be->compare(ctx, op, &a, &b, &y));
    for (int64_t i = 0; i < 6 * n; i++)
        mtt_close(mtt_get(&y, i), exact_compare(op, mtt_get(&a, i), mtt_get(&b, i)), 0, "compare",
                  i);
    mtt_drop(&a), mtt_drop(&b), mtt_drop(&y);
}

static void comparisons_match_in_every_dtype_and_layout(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (mti_compare op = 0; op < MTI_COMPARE_COUNT; op++)
        for (mt_dtype dtype = 0; dtype < MT_DTYPE_COUNT; dtype++)
            for (int s = 0; s < 9; s++)
                for (mtt_placing p = 0; p < MTT_PLACING_COUNT; p++)
                    check_compare(be, ctx, op, dtype, mtt_sizes[s], p,
                                  s & 1 ? MTT_PLACED_DENSE : p);
    be->close(ctx);
}

/* [r,c] with a column [r,1], a row [1,c] and a scalar, which are expanded with stride 0. */
static void columns_rows_and_scalars_broadcast(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (int s = 0; s < 9; s++)
            for (int kind = 0; kind < 3; kind++) {
                mti_view a = mtt_dense(mtt_floats[t], 70, mtt_sizes[s]);
                mti_view b = mtt_dense(mtt_floats[t], 70, mtt_sizes[s]);
                mti_view y = mtt_dense(mtt_floats[t], 70, mtt_sizes[s]);
                mtt_fill(&a, 1, -1, 1);
                mtt_fill(&b, 2, -1, 1);
                if (kind != 0) b.stride[0] = 0;
                if (kind != 1) b.stride[1] = 0;
                mtt_did(be->binary(ctx, MTI_ADD, &a, &b, &y));
                for (int64_t i = 0; i < mti_view_count(&y); i++)
                    mtt_close(mtt_get(&y, i), mtt_get(&a, i) + mtt_get(&b, i),
                              mtt_epsilon(mtt_floats[t]), "broadcast", i);
                mtt_drop(&a), mtt_drop(&b), mtt_drop(&y);
            }
    be->close(ctx);
}

static void nan_and_infinity_pass_through(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (mti_unary op = 0; op < MTI_UNARY_COUNT; op++)
        for (int t = 0; t < 4; t++) {
            mti_view x = mtt_dense(mtt_floats[t], 40), y = mtt_dense(mtt_floats[t], 40);
            mti_view one = mtt_dense(mtt_floats[t], 40);
            for (int64_t i = 0; i < 40; i++) mtt_set(&x, i, (double)NAN), mtt_set(&one, i, 1);
            mtt_did(be->unary(ctx, op, slope, 3, &x, &y));
            for (int64_t i = 0; i < 40; i++) assert_true(isnan(mtt_get(&y, i)));
            /* as in PyTorch, a gradient passes where relu's output is NaN, but not where abs's is
             */
            mtt_did(be->unary_backward(ctx, op, slope, 3, &x, &one, &y));
            for (int64_t i = 0; i < 40; i++) {
                double want = op == MTI_UNARY_relu                                   ? 1
                              : op == MTI_UNARY_leaky_relu || op == MTI_UNARY_affine ? slope
                              : op == MTI_UNARY_abs || op == MTI_UNARY_clamp         ? 0
                                                                                     : (double)NAN;
                mtt_close(mtt_get(&y, i), want, 0, "gradient at NaN", i);
            }
            mtt_drop(&x), mtt_drop(&y), mtt_drop(&one);
        }
    mti_view x = mtt_dense(MT_F32, 3), y = mtt_dense(MT_F32, 3);
    for (int64_t i = 0; i < 3; i++)
        mtt_set(&x, i, i == 0 ? -(double)INFINITY : i == 1 ? (double)INFINITY : -0.0);
    mtt_did(be->unary(ctx, MTI_UNARY_relu, 0, 0, &x, &y));
    assert_true(mtt_get(&y, 0) == 0 && isinf(mtt_get(&y, 1)) && !signbit(mtt_get(&y, 2)));
    mtt_did(be->unary(ctx, MTI_UNARY_abs, 0, 0, &x, &y));
    assert_true(mtt_get(&y, 0) == (double)INFINITY && !signbit(mtt_get(&y, 2)));
    double inf = (double)INFINITY; /* an open side */
    mtt_did(be->unary(ctx, MTI_UNARY_clamp, -inf, 2, &x, &y));
    assert_true(mtt_get(&y, 0) == -inf && mtt_get(&y, 1) == 2);
    mtt_drop(&x), mtt_drop(&y);
    be->close(ctx);
}

static void fill_writes_the_view_and_nothing_else(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (mt_dtype dtype = 0; dtype < MT_DTYPE_COUNT; dtype++)
        for (int s = 0; s < 9; s++) {
            mti_view all = mtt_dense(dtype, 5, 2 * mtt_sizes[s]), part = all;
            part.shape[1] = mtt_sizes[s];
            part.stride[1] = 2;
            const double values[] = {1, 0, 2.5, -1};
            for (int k = 0; k < (mt_dtype_bits(dtype).sign ? 4 : 3); k++) {
                mtt_fill(&all, 3, 1, 2);
                mtt_did(be->fill(ctx, &part, values[k]));
                double want = dtype == MT_BOOL                     ? values[k] != 0
                              : mt_dtype_bits(dtype).exponent != 0 ? values[k]
                                                                   : trunc(values[k]);
                for (int64_t i = 0; i < mti_view_count(&all); i++)
                    if (i % 2 == 0)
                        assert_true(mtt_get(&all, i) == want);
                    else
                        assert_true(mtt_get(&all, i) >= 1);
            }
            mtt_drop(&all);
        }
    be->close(ctx);
}

static void views_without_elements_are_legal(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_view v = {.dtype = MT_F32, .rank = 2, .shape = {3, 0}, .stride = {0, 1}};
    mti_view mask = v;
    mask.dtype = MT_BOOL;
    mtt_did(be->fill(ctx, &v, 1) && be->copy(ctx, &v, &v));
    mtt_did(be->unary(ctx, MTI_UNARY_gelu, 0, 0, &v, &v));
    mtt_did(be->unary_backward(ctx, MTI_UNARY_gelu, 0, 0, &v, &v, &v));
    mtt_did(be->binary(ctx, MTI_ADD, &v, &v, &v));
    mtt_did(be->softmax(ctx, 1, false, &v, &v));
    mtt_did(be->uniform(ctx, 0, 1, 1, 0, &v) && be->normal(ctx, 0, 1, 1, 0, &v));
    mtt_did(be->dropout(ctx, 0.5, 1, 0, &v, &v, &mask));
    mti_view row = mtt_dense(MT_F32, 3, 1), column = {.dtype = MT_F32, .rank = 2, .shape = {1, 0}};
    mtt_fill(&row, 1, 1, 2);
    mtt_did(be->sum(ctx, 1, &v, &row, NULL) && be->sum(ctx, 1, &v, &column, NULL));
    for (int64_t i = 0; i < 3; i++) assert_true(mtt_get(&row, i) == 0);
    mtt_drop(&row);
    be->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_unary_op_and_its_derivative_match_the_formula),
        cmocka_unit_test(every_binary_op_matches_in_every_pair_of_layouts),
        cmocka_unit_test(comparisons_match_in_every_dtype_and_layout),
        cmocka_unit_test(columns_rows_and_scalars_broadcast),
        cmocka_unit_test(nan_and_infinity_pass_through),
        cmocka_unit_test(fill_writes_the_view_and_nothing_else),
        cmocka_unit_test(views_without_elements_are_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
