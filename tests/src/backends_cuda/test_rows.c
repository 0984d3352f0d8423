/* Softmax, log-softmax and their backward on the device, against the CPU. */
#include "twins.h"

/* Rows shorter, equal to and longer than vectors, warps, blocks and what registers hold. */
static const int64_t lengths[] = {1,   2,   3,   7,   8,    9,    17,   31,   64,   65,   127, 128,
                                  129, 257, 511, 513, 1000, 1023, 1024, 1025, 2051, 4103, 9001};
#define N_LENGTHS  (int)(sizeof lengths / sizeof *lengths)
#define VOCABULARY 50257

/* The difference of two libraries' exp and log and of the order of sums, or one rounding to 16
 * bits. */
static double tolerance_of(mt_dtype dtype)
{
    return (dtype == MT_F32 || dtype == MT_F64 ? 16 : 1) * mtt_epsilon(dtype);
}

static void check_softmax(const mtt_pair *p, mt_dtype dtype, int64_t s, int64_t n, bool causal,
                          mtt_placing placing, int64_t skip)
{
    const int64_t shape[] = {2, s, n};
    double eps = tolerance_of(dtype), scale = skip ? -0.3 : 0.3;
    mtt_twin x = mtt_twin_make(p, dtype, 3, shape, placing, skip, -20, 20);
    mtt_twin y = mtt_twin_make(p, dtype, 3, shape, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_twin dy = mtt_twin_make(p, dtype, 3, shape, MTT_PLACED_PADDED, skip, -1, 1);
    mtt_twin dx = mtt_twin_make(p, dtype, 3, shape, placing, 0, 0, 1);
    mtt_ok(p->cpu->softmax(p->cpu_ctx, scale, causal, &x.host, &y.host), "softmax");
    mtt_ok(p->dev->softmax(p->dev_ctx, scale, causal, &x.dev, &y.dev), "softmax");
    mtt_twin_check(p, &y, eps, "softmax");
    mtt_twin_push(p, &y); /* the same y for both */
    mtt_ok(p->cpu->softmax_backward(p->cpu_ctx, scale, &y.host, &dy.host, &dx.host), "backward");
    mtt_ok(p->dev->softmax_backward(p->dev_ctx, scale, &y.dev, &dy.dev, &dx.dev), "backward");
    mtt_twin_check(p, &dx, eps, "softmax backward");
    mtt_ok(p->cpu->softmax_backward(p->cpu_ctx, scale, &y.host, &dy.host, &dy.host), "backward");
    mtt_ok(p->dev->softmax_backward(p->dev_ctx, scale, &y.dev, &dy.dev, &dy.dev), "backward");
    mtt_twin_check(p, &dy, eps, "softmax backward in place");
    mtt_ok(p->cpu->softmax(p->cpu_ctx, scale, causal, &x.host, &x.host), "softmax");
    mtt_ok(p->dev->softmax(p->dev_ctx, scale, causal, &x.dev, &x.dev), "softmax");
    mtt_twin_check(p, &x, eps, "softmax in place");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y), mtt_twin_drop(p, &dy), mtt_twin_drop(p, &dx);
}

static void check_log_softmax(const mtt_pair *p, mt_dtype dtype, int64_t s, int64_t n,
                              mtt_placing placing, int64_t skip)
{
    const int64_t shape[] = {2, s, n};
    double eps = tolerance_of(dtype);
    mtt_twin x = mtt_twin_make(p, dtype, 3, shape, placing, skip, -20, 20);
    mtt_twin y = mtt_twin_make(p, dtype, 3, shape, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_twin dy = mtt_twin_make(p, dtype, 3, shape, MTT_PLACED_PADDED, skip, -1, 1);
    mtt_twin dx = mtt_twin_make(p, dtype, 3, shape, placing, 0, 0, 1);
    mtt_ok(p->cpu->log_softmax(p->cpu_ctx, &x.host, &y.host), "log_softmax");
    mtt_ok(p->dev->log_softmax(p->dev_ctx, &x.dev, &y.dev), "log_softmax");
    mtt_twin_check(p, &y, eps, "log_softmax");
    mtt_twin_push(p, &y);
    mtt_ok(p->cpu->log_softmax_backward(p->cpu_ctx, &y.host, &dy.host, &dx.host), "backward");
    mtt_ok(p->dev->log_softmax_backward(p->dev_ctx, &y.dev, &dy.dev, &dx.dev), "backward");
    mtt_twin_check(p, &dx, 4 * eps, "log_softmax backward"); /* sum(dy) may be large */
    mtt_ok(p->cpu->log_softmax(p->cpu_ctx, &x.host, &x.host), "log_softmax");
    mtt_ok(p->dev->log_softmax(p->dev_ctx, &x.dev, &x.dev), "log_softmax");
    mtt_twin_check(p, &x, eps, "log_softmax in place");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y), mtt_twin_drop(p, &dy), mtt_twin_drop(p, &dx);
}

static void softmax_of_rows_of_any_length_matches_the_cpu(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_LENGTHS; k++)
            for (int variant = 0; variant < 3; variant++) {
                if (variant == 2 && lengths[k] > 1100) continue;
                check_softmax(p, mtt_floats[t], 5, lengths[k], variant == 2,
                              variant ? MTT_PLACED_PADDED : MTT_PLACED_DENSE, variant);
            }
}

static void log_softmax_of_rows_of_any_length_matches_the_cpu(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_LENGTHS; k++)
            for (int skip = 0; skip < 2; skip++)
                check_log_softmax(p, mtt_floats[t], 3, lengths[k],
                                  skip ? MTT_PLACED_PADDED : MTT_PLACED_DENSE, skip);
}

static void rows_as_long_as_a_vocabulary_match_the_cpu(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++) {
        check_softmax(p, mtt_floats[t], 1, VOCABULARY, false, MTT_PLACED_DENSE, 0);
        check_softmax(p, mtt_floats[t], 1, VOCABULARY, true, MTT_PLACED_PADDED, 1);
        check_log_softmax(p, mtt_floats[t], 1, VOCABULARY, MTT_PLACED_DENSE, 0);
    }
}

static void a_mask_may_hide_whole_rows_and_more_queries_than_keys(void **state)
{
    mtt_pair *p = *state;
    check_softmax(p, MT_F32, 7, 3, true, MTT_PLACED_DENSE, 0);
    check_softmax(p, MT_BF16, 33, 20, true, MTT_PLACED_DENSE, 0);
    check_softmax(p, MT_F16, 33, 72, true, MTT_PLACED_PADDED, 0);
}

/* Rows with infinities, NaN and large numbers: they must spread as on the CPU. */
static void check_odd_values(const mtt_pair *p, mt_dtype dtype, int64_t n)
{
    const double inf = (double)INFINITY, nan = (double)NAN;
    const struct {
        double all, one;
    } rows[] = {{0, nan},     {1, inf},   {1, -inf},      {-inf, 1},
                {-inf, -inf}, {inf, inf}, {60000, -60000}};
    enum { N_ROWS = sizeof rows / sizeof *rows };
    const int64_t shape[] = {N_ROWS, n};
    mtt_twin x = mtt_twin_make(p, dtype, 2, shape, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_twin y = mtt_twin_make(p, dtype, 2, shape, MTT_PLACED_DENSE, 0, 0, 1);
    for (int64_t r = 0; r < N_ROWS; r++)
        for (int64_t j = 0; j < n; j++)
            mtt_set(&x.host, r * n + j, j == n / 2 ? rows[r].one : rows[r].all);
    mtt_twin_push(p, &x);
    mtt_ok(p->cpu->softmax(p->cpu_ctx, 1, false, &x.host, &y.host), "softmax");
    mtt_ok(p->dev->softmax(p->dev_ctx, 1, false, &x.dev, &y.dev), "softmax");
    mtt_twin_check(p, &y, tolerance_of(dtype), "softmax of odd values");
    mtt_ok(p->cpu->log_softmax(p->cpu_ctx, &x.host, &y.host), "log_softmax");
    mtt_ok(p->dev->log_softmax(p->dev_ctx, &x.dev, &y.dev), "log_softmax");
    mtt_twin_check(p, &y, tolerance_of(dtype), "log_softmax of odd values");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &y);
}

static void infinities_and_nan_spread_as_on_the_cpu(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++) {
        check_odd_values(p, mtt_floats[t], 5);
        check_odd_values(p, mtt_floats[t], 1500);
        check_odd_values(p, mtt_floats[t], 17001);
    }
}

static void no_rows_and_empty_rows_do_nothing(void **state)
{
    mtt_pair *p = *state;
    check_softmax(p, MT_F32, 0, 5, false, MTT_PLACED_DENSE, 0);
    check_softmax(p, MT_F32, 5, 0, false, MTT_PLACED_DENSE, 0);
    check_log_softmax(p, MT_BF16, 0, 5, MTT_PLACED_DENSE, 0);
}

/* By its layout alone: nothing is at its address. */
static mti_view row_of(mt_dtype dtype, int64_t n)
{
    static char nothing[16];
    mti_view v = {.data = nothing, .dtype = dtype, .rank = 2, .shape = {1, n}, .stride = {n, 1}};
    return v;
}

static void rows_whose_chunks_32_bits_cannot_number_are_refused(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++) {
        int64_t n = ((int64_t)1 << 35) / (int64_t)mt_dtype_size(mtt_floats[t]);
        mti_view x = row_of(mtt_floats[t], n), y = x, one = row_of(MT_F32, 1);
        bool done[] = {p->dev->softmax(p->dev_ctx, 1, false, &x, &y),
                       p->dev->log_softmax(p->dev_ctx, &x, &y),
                       p->dev->softmax_backward(p->dev_ctx, 1, &x, &x, &y),
                       p->dev->layer_norm(p->dev_ctx, 1e-5, &x, NULL, NULL, &y, NULL, NULL),
                       p->dev->rms_norm_backward(p->dev_ctx, &x, &x, NULL, &one, &y, NULL, NULL),
                       p->dev->entropy_rows(p->dev_ctx, -100, &x, &one, &one, &one)};
        for (size_t i = 0; i < sizeof done / sizeof *done; i++) assert_false(done[i]);
        assert_non_null(strstr(mt_last_error(), "need less than 32 GiB"));
        mt_clear_error();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_of_rows_of_any_length_matches_the_cpu),
        cmocka_unit_test(log_softmax_of_rows_of_any_length_matches_the_cpu),
        cmocka_unit_test(rows_as_long_as_a_vocabulary_match_the_cpu),
        cmocka_unit_test(a_mask_may_hide_whole_rows_and_more_queries_than_keys),
        cmocka_unit_test(infinities_and_nan_spread_as_on_the_cpu),
        cmocka_unit_test(no_rows_and_empty_rows_do_nothing),
        cmocka_unit_test(rows_whose_chunks_32_bits_cannot_number_are_refused),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}
