/* A product with a bias, and one with the sums of its first operand's rows, as forward and backward
 * pass of a linear layer take them, on the device against the CPU: in one launch, and where
 * cuBLASLt refuses that, in two. */
#include "double.h"
#include "twins.h"
#include "memtape/status.h"

/* dw [out,in] = dy^T x and db = the sums of dy's rows; dy [rows,out], x [rows,in] */
static void compute(const mti_backend *be, mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                    const mti_view *dw, const mti_view *db)
{
    mti_view dyt = mtt_transposed(dy);
    size_t n_bytes = be->gemm_sums_scratch(ctx, &dyt, x, dw);
    void *scratch = n_bytes ? be->alloc(ctx, n_bytes) : NULL;
    assert_true(scratch || !n_bytes);
    mtt_ok(be->gemm_sums(ctx, &dyt, x, dw, db, scratch, n_bytes), "gemm_sums");
    mtt_ok(be->sync(ctx), "sync");
    if (scratch) be->free(ctx, scratch, n_bytes);
}

/* skip: how far dy is out of alignment, in elements. one_launch: whether the simulator must have
 * made one product with the sums, and no other. */
static void check(const mtt_pair *p, mt_dtype dtype, int64_t rows, int64_t out, int64_t in,
                  mtt_placing placing, int64_t skip, bool one_launch)
{
    mtt_twin dy = mtt_twin_make(p, dtype, 2, (int64_t[]){rows, out}, placing, skip, -1, 1);
    mtt_twin x = mtt_twin_make(p, dtype, 2, (int64_t[]){rows, in}, MTT_PLACED_DENSE, 0, -1, 1);
    mtt_twin dw = mtt_twin_make(p, dtype, 2, (int64_t[]){out, in}, MTT_PLACED_DENSE, 0, 5, 6);
    mtt_twin db = mtt_twin_make(p, dtype, 1, &out, MTT_PLACED_DENSE, 0, 5, 6);
    compute(p->cpu, p->cpu_ctx, &dy.host, &x.host, &dw.host, &db.host);
    compute(p->dev, p->dev_ctx, &dy.dev, &x.dev, &dw.dev, &db.dev); /* times both ways, once */
    long with = mtt_double_products(true), without = mtt_double_products(false);
    compute(p->dev, p->dev_ctx, &dy.dev, &x.dev, &dw.dev, &db.dev);
    if (with >= 0) {
        assert_int_equal(mtt_double_products(true), with + one_launch);
        assert_int_equal(mtt_double_products(false), without + !one_launch);
    }
    double tolerance = (dtype == MT_F32 || dtype == MT_F64 ? 64 : 2) * mtt_epsilon(dtype);
    mtt_twin_check(p, &dw, tolerance, "dw");
    mtt_twin_check(p, &db, tolerance, "db");
    mtt_twin_drop(p, &dy), mtt_twin_drop(p, &x), mtt_twin_drop(p, &dw), mtt_twin_drop(p, &db);
}

static void gradients_of_weight_and_bias_take_one_launch(void **state)
{
    const mtt_pair *p = *state;
    static const int64_t sizes[][3] = {{2, 8, 8}, {37, 64, 24}, {130, 256, 72}, {5, 8, 1024}};
    for (int t = 0; t < 4; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            check(p, mtt_floats[t], sizes[s][0], sizes[s][1], sizes[s][2], MTT_PLACED_DENSE, 0,
                  mtt_floats[t] != MT_F64);
}

/* Each as a plan that is kept: the second call makes the same choice. */
static void they_take_two_launches_where_cublaslt_does_not_offer_one(void **state)
{
    const mtt_pair *p = *state;
    for (int t = 0; t < 4; t++)
        for (int again = 0; again < 2; again++) {
            check(p, mtt_floats[t], 37, 61, 24, MTT_PLACED_DENSE, 0, false); /* dy's rows */
            check(p, mtt_floats[t], 37, 64, 23, MTT_PLACED_DENSE, 0, false); /* x's rows */
            check(p, mtt_floats[t], 37, 64, 24, MTT_PLACED_DENSE, 1, false); /* dy's start */
            check(p, mtt_floats[t], 37, 61, 24, MTT_PLACED_PADDED, 0,        /* padded to 64 */
                  mtt_floats[t] != MT_F64);
            check(p, mtt_floats[t], 1, 64, 24, MTT_PLACED_DENSE, 0, false); /* k = 1 */
            check(p, mtt_floats[t], 37, 1, 24, MTT_PLACED_DENSE, 0, false); /* one row of dw */
            check(p, mtt_floats[t], 37, 64, 1, MTT_PLACED_DENSE, 0, false); /* one column */
        }
}

/* A product with sums that takes a millisecond, where one and a sum take none: it is noticed only
 * if that is asked for, since bits must not depend on a clock. */
static void they_take_two_launches_where_one_is_slower(void **state)
{
    const mtt_pair *p = *state;
    mtt_double_fn slow_sums = mtt_double("cudasim_slow_sums");
    if (!slow_sums) skip();
    ((void (*)(double))slow_sums)(1);
    check(p, MT_BF16, 40, 72, 96, MTT_PLACED_DENSE, 0, true);
    setenv("MEMTAPE_CUDA_BENCHMARK", "1", true);
    for (int slow = 0; slow < 2; slow++) {
        ((void (*)(double))slow_sums)(slow);
        check(p, MT_BF16, 40, 72, 80 + 8 * slow, MTT_PLACED_DENSE, 0, !slow);
    }
    ((void (*)(double))slow_sums)(0);
    check(p, MT_BF16, 40, 72, 88, MTT_PLACED_DENSE, 0, false); /* a plan's choice stays */
    unsetenv("MEMTAPE_CUDA_BENCHMARK");
}

/* ---- with a bias ---- */

static void multiply(const mti_backend *be, mti_ctx *ctx, const mti_view *x, const mti_view *w,
                     const mti_view *y, const mti_view *bias)
{
    size_t n_bytes = be->gemm_scratch(ctx, x, w, y);
    void *scratch = n_bytes ? be->alloc(ctx, n_bytes) : NULL;
    assert_true(scratch || !n_bytes);
    mtt_ok(be->gemm(ctx, 1, x, w, 0, y, bias, scratch, n_bytes), "gemm");
    mtt_ok(be->sync(ctx), "sync");
    if (scratch) be->free(ctx, scratch, n_bytes);
}

/* y [rows,out] = x w^T + bias; skip: how far the bias is out of alignment, in elements. */
static void check_bias(const mtt_pair *p, mt_dtype dtype, int64_t rows, int64_t out, int64_t in,
                       int64_t skip)
{
    mtt_twin x = mtt_twin_make(p, dtype, 2, (int64_t[]){rows, in}, MTT_PLACED_DENSE, 0, -1, 1);
    mtt_twin w = mtt_twin_make(p, dtype, 2, (int64_t[]){out, in}, MTT_PLACED_DENSE, 0, -1, 1);
    mtt_twin y = mtt_twin_make(p, dtype, 2, (int64_t[]){rows, out}, MTT_PLACED_DENSE, 0, 5, 6);
    mtt_twin bias = mtt_twin_make(p, dtype, 1, &out, MTT_PLACED_DENSE, skip, 1, 2);
    mti_view host = mtt_transposed(&w.host), dev = mtt_transposed(&w.dev);
    multiply(p->cpu, p->cpu_ctx, &x.host, &host, &y.host, &bias.host);
    multiply(p->dev, p->dev_ctx, &x.dev, &dev, &y.dev, &bias.dev);
    mtt_twin_check(p, &y, (dtype == MT_F32 || dtype == MT_F64 ? 64 : 2) * mtt_epsilon(dtype), "y");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &w), mtt_twin_drop(p, &y), mtt_twin_drop(p, &bias);
}

/* Each size is 1, and each bias out of alignment, on which cuBLASLt may refuse to add it. */
static void a_bias_is_added_where_cublaslt_does_not_offer_it(void **state)
{
    static const int64_t sizes[][3] = {{5, 1, 8}, {1, 8, 5}, {5, 8, 1}, {1, 1, 8},
                                       {1, 1, 1}, {5, 1, 1}, {5, 8, 16}};
    for (int t = 0; t < 4; t++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
            for (int64_t skip = 0; skip < 4; skip++)
                check_bias(*state, mtt_floats[t], sizes[s][0], sizes[s][1], sizes[s][2], skip);
}

/* The bias's alignment in memory is not the plan's alone: the next call has another bias. */
static void another_bias_may_be_less_aligned(void **state)
{
    for (int round = 0; round < 2; round++)
        for (int64_t skip = 0; skip < 9; skip += 4) check_bias(*state, MT_BF16, 24, 64, 40, skip);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_weight_and_bias_take_one_launch),
        cmocka_unit_test(they_take_two_launches_where_cublaslt_does_not_offer_one),
        cmocka_unit_test(they_take_two_launches_where_one_is_slower),
        cmocka_unit_test(a_bias_is_added_where_cublaslt_does_not_offer_it),
        cmocka_unit_test(another_bias_may_be_less_aligned),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}
