/* Embedding, cross-entropy and their backward on the device, against the CPU. */
#include "twins.h"
#include "memtape/status.h"

#define IGNORE     (-100)
#define VOCABULARY 50257

static const int64_t widths[] = {1, 2, 3, 7, 8, 9, 31, 64, 65, 129, 513, 1000, 4103};
#define N_WIDTHS (int)(sizeof widths / sizeof *widths)

static double tolerance_of(mt_dtype dtype)
{
    return (dtype == MT_F32 || dtype == MT_F64 ? 16 : 1) * mtt_epsilon(dtype);
}

static mtt_twin numbers(const mtt_pair *p, int64_t count, double below)
{
    return mtt_twin_make(p, MT_I64, 1, &count, MTT_PLACED_DENSE, 0, 0, below);
}

/* ---- embedding ---- */

static void sum_on_both(const mtt_pair *p, const mtt_twin *index, const mtt_twin *dy,
                        const mtt_twin *dw)
{
    size_t n_cpu = p->cpu->embedding_backward_scratch(p->cpu_ctx, &index->host, &dw->host);
    size_t n_dev = p->dev->embedding_backward_scratch(p->dev_ctx, &index->dev, &dw->dev);
    void *cpu = malloc(n_cpu), *dev = p->dev->alloc(p->dev_ctx, n_dev);
    assert_true(cpu && dev);
    mtt_ok(p->cpu->embedding_backward(p->cpu_ctx, false, &index->host, &dy->host, &dw->host, cpu),
           "cpu");
    mtt_ok(p->dev->embedding_backward(p->dev_ctx, false, &index->dev, &dy->dev, &dw->dev, dev),
           "device");
    mtt_ok(p->dev->sync(p->dev_ctx), "sync");
    free(cpu);
    p->dev->free(p->dev_ctx, dev, n_dev);
}

/* favourite: if not negative, every second index has this value. */
static void check_embedding(const mtt_pair *p, mt_dtype dtype, int64_t count, int64_t rows,
                            int64_t n, mtt_placing placing, int64_t favourite)
{
    const int64_t table[] = {rows, n}, out[] = {count, n};
    mtt_twin index = numbers(p, count, (double)rows * 0.9);
    for (int64_t i = 0; favourite >= 0 && i < count; i += 2)
        mtt_set(&index.host, i, (double)favourite);
    mtt_twin_push(p, &index);
    mtt_twin w = mtt_twin_make(p, dtype, 2, table, placing, 1, -1, 1);
    mtt_twin y = mtt_twin_make(p, dtype, 2, out, placing, 0, -1, 1);
    mtt_twin dy = mtt_twin_make(p, dtype, 2, out, placing, 0, -1, 1);
    mtt_twin dw = mtt_twin_make(p, dtype, 2, table, placing, 0, 5, 6);
    mtt_ok(p->cpu->embedding(p->cpu_ctx, false, &index.host, &w.host, &y.host), "embedding");
    mtt_ok(p->dev->embedding(p->dev_ctx, false, &index.dev, &w.dev, &y.dev), "embedding");
    mtt_twin_check(p, &y, 0, "embedding");
    sum_on_both(p, &index, &dy, &dw);
    /* gradients of a frequent index are summed in parts: thousands of numbers in another order */
    double often = (dtype == MT_F32 || dtype == MT_F64 ? 1024 : 1) * mtt_epsilon(dtype);
    mtt_twin_check(p, &dw, favourite < 0 ? 0 : often, "embedding backward");
    mtt_twin_drop(p, &index), mtt_twin_drop(p, &w), mtt_twin_drop(p, &y);
    mtt_twin_drop(p, &dy), mtt_twin_drop(p, &dw);
}

static void embedding_gathers_rows_and_sums_gradients_in_index_order(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_WIDTHS; k++)
            for (int placing = 0; placing < 2; placing++)
                check_embedding(p, mtt_floats[t], 60, 23, widths[k], placing, -1);
}

static void indices_of_several_digits_are_sorted_in_tiles(void **state)
{
    mtt_pair *p = *state;
    check_embedding(p, MT_F32, 5000, 255, 4, MTT_PLACED_DENSE, 1);
    check_embedding(p, MT_F32, 5000, 256, 4, MTT_PLACED_DENSE, 255);
    check_embedding(p, MT_BF16, 7000, 3000, 9, MTT_PLACED_DENSE, -1);
    check_embedding(p, MT_F64, 2049, VOCABULARY, 2, MTT_PLACED_DENSE, -1);
    check_embedding(p, MT_F32, 100, 70000, 2, MTT_PLACED_DENSE, 69999);
}

static void an_index_that_fills_half_the_batch_is_summed_completely(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++) check_embedding(p, mtt_floats[t], 3001, 11, 300, 0, 3);
}

static void no_indices_give_a_gradient_of_zero(void **state)
{
    check_embedding(*state, MT_F32, 0, 11, 30, MTT_PLACED_DENSE, -1);
    check_embedding(*state, MT_F16, 0, 11, 0, MTT_PLACED_DENSE, -1);
}

/* ---- bad numbers ---- */

/* The error is reported by the next sync, once. */
static void expect_fault(const mtt_pair *p, const char *text)
{
    assert_false(p->dev->sync(p->dev_ctx));
    assert_int_equal(mt_last_status(), MT_ERR_ARGUMENT);
    if (!strstr(mt_last_error(), text)) fail_msg("\"%s\" lacks \"%s\"", mt_last_error(), text);
    mt_clear_error();
    mtt_ok(p->dev->sync(p->dev_ctx), "the sync after that");
}

static void the_first_number_outside_the_table_is_named_at_the_next_sync(void **state)
{
    mtt_pair *p = *state;
    const int64_t shape[] = {300, 5}, table[] = {9, 5}, one[] = {1};
    mtt_twin index = numbers(p, 300, 5), y = mtt_twin_make(p, MT_F32, 2, shape, 0, 0, 0, 1);
    mtt_twin w = mtt_twin_make(p, MT_F32, 2, table, 0, 0, 0, 1);
    mtt_twin dw = mtt_twin_make(p, MT_F32, 2, table, 0, 0, 0, 1);
    mtt_twin loss = mtt_twin_make(p, MT_F32, 1, one, 0, 0, 0, 1);
    size_t n_scratch = p->dev->embedding_backward_scratch(p->dev_ctx, &index.dev, &dw.dev);
    void *scratch = p->dev->alloc(p->dev_ctx, n_scratch);
    assert_non_null(scratch);
    for (int64_t bad = -1; bad <= 9; bad += 10) {
        mtt_set(&index.host, 270, 1e12), mtt_set(&index.host, 41, (double)bad);
        mtt_set(&index.host, 43, -7);
        mtt_twin_push(p, &index);
        const char *named = bad < 0 ? "index[41] is -1" : "index[41] is 9";
        mtt_ok(p->dev->embedding(p->dev_ctx, false, &index.dev, &w.dev, &y.dev), "embedding");
        expect_fault(p, named);
        mtt_ok(p->dev->embedding_backward(p->dev_ctx, false, &index.dev, &y.dev, &dw.dev, scratch),
               "");
        expect_fault(p, named);
        named = bad < 0 ? "target[41] is -1" : "target[41] is 9";
        mtt_ok(p->dev->cross_entropy(p->dev_ctx, -7, &y.dev, &index.dev, &y.dev, &loss.dev), "");
        expect_fault(p, named);
        mtt_ok(
            p->dev->cross_entropy_backward(p->dev_ctx, -7, &y.dev, &index.dev, &loss.dev, &y.dev),
            "");
        expect_fault(p, named);
    }
    p->dev->free(p->dev_ctx, scratch, n_scratch);
    mtt_twin_drop(p, &index), mtt_twin_drop(p, &y), mtt_twin_drop(p, &w);
    mtt_twin_drop(p, &dw), mtt_twin_drop(p, &loss);
}

/* ---- cross-entropy ---- */

static void check_entropy(const mtt_pair *p, mt_dtype dtype, int64_t rows, int64_t n,
                          mtt_placing placing, int64_t skip, int64_t ignore_every)
{
    const int64_t shape[] = {rows, n}, one[] = {1};
    double eps = tolerance_of(dtype);
    mtt_twin target = numbers(p, rows, (double)n);
    for (int64_t r = 0; r < rows; r += ignore_every) mtt_set(&target.host, r, IGNORE);
    mtt_twin_push(p, &target);
    mtt_twin x = mtt_twin_make(p, dtype, 2, shape, placing, skip, -8, 8);
    mtt_twin logp = mtt_twin_make(p, dtype, 2, shape, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_twin dx = mtt_twin_make(p, dtype, 2, shape, placing, 0, 0, 1);
    mtt_twin loss = mtt_twin_make(p, dtype, 1, one, MTT_PLACED_DENSE, 0, 0, 1);
    mtt_ok(p->cpu->cross_entropy(p->cpu_ctx, IGNORE, &x.host, &target.host, &logp.host, &loss.host),
           "cross_entropy");
    mtt_ok(p->dev->cross_entropy(p->dev_ctx, IGNORE, &x.dev, &target.dev, &logp.dev, &loss.dev),
           "cross_entropy");
    mtt_twin_check(p, &logp, 2 * eps, "logp");
    mtt_twin_check(p, &loss, eps, "loss");
    mtt_twin_push(p, &logp), mtt_twin_push(p, &loss);
    mtt_ok(p->cpu->cross_entropy_backward(p->cpu_ctx, IGNORE, &logp.host, &target.host, &loss.host,
                                          &dx.host),
           "backward");
    mtt_ok(p->dev->cross_entropy_backward(p->dev_ctx, IGNORE, &logp.dev, &target.dev, &loss.dev,
                                          &dx.dev),
           "backward");
    mtt_twin_check(p, &dx, eps, "dx");
    mtt_ok(p->cpu->cross_entropy_backward(p->cpu_ctx, IGNORE, &logp.host, &target.host, &loss.host,
                                          &logp.host),
           "backward");
    mtt_ok(p->dev->cross_entropy_backward(p->dev_ctx, IGNORE, &logp.dev, &target.dev, &loss.dev,
                                          &logp.dev),
           "backward");
    mtt_twin_check(p, &logp, eps, "dx in place of logp");
    mtt_twin_drop(p, &target), mtt_twin_drop(p, &x), mtt_twin_drop(p, &logp);
    mtt_twin_drop(p, &dx), mtt_twin_drop(p, &loss);
}

static void cross_entropy_of_rows_of_any_length_matches_the_cpu(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_WIDTHS; k++) {
            check_entropy(p, mtt_floats[t], 5, widths[k], MTT_PLACED_DENSE, 0, 3);
            check_entropy(p, mtt_floats[t], 6, widths[k], MTT_PLACED_PADDED, 1, 4);
        }
}

static void rows_as_long_as_a_vocabulary_match_the_cpu(void **state)
{
    mtt_pair *p = *state;
    for (int t = 0; t < 4; t++)
        check_entropy(p, mtt_floats[t], 3, VOCABULARY, MTT_PLACED_DENSE, 0, 2);
}

static void more_rows_than_slots_are_summed(void **state)
{
    mtt_pair *p = *state;
    check_entropy(p, MT_F32, 70000, 2, MTT_PLACED_DENSE, 0, 7);
    check_entropy(p, MT_BF16, 2500, 300, MTT_PLACED_DENSE, 0, 7);
    check_entropy(p, MT_F64, 1300, 260, MTT_PLACED_DENSE, 0, 5);
}

static void the_loss_of_no_rows_is_not_a_number(void **state)
{
    mtt_pair *p = *state;
    check_entropy(p, MT_F32, 4, 6, MTT_PLACED_DENSE, 0, 1); /* all rows ignored: dx is 0 */
    check_entropy(p, MT_BF16, 0, 6, MTT_PLACED_DENSE, 0, 1);
    const int64_t one[] = {1};
    mtt_twin loss = mtt_twin_make(p, MT_F32, 1, one, MTT_PLACED_DENSE, 0, 0, 1), got = loss;
    float value = 0;
    const int64_t shape[] = {3, 4};
    mtt_twin target = numbers(p, 3, 1), x = mtt_twin_make(p, MT_F32, 2, shape, 0, 0, 0, 1);
    mtt_twin logp = mtt_twin_make(p, MT_F32, 2, shape, 0, 0, 0, 1);
    mtt_ok(p->dev->cross_entropy(p->dev_ctx, 0, &x.dev, &target.dev, &logp.dev, &got.dev), "loss");
    mtt_ok(p->dev->download(p->dev_ctx, &value, loss.dev.data, sizeof value), "download");
    assert_true(isnan(value));
    mtt_twin_drop(p, &target), mtt_twin_drop(p, &x);
    mtt_twin_drop(p, &logp), mtt_twin_drop(p, &loss);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_gathers_rows_and_sums_gradients_in_index_order),
        cmocka_unit_test(indices_of_several_digits_are_sorted_in_tiles),
        cmocka_unit_test(an_index_that_fills_half_the_batch_is_summed_completely),
        cmocka_unit_test(no_indices_give_a_gradient_of_zero),
        cmocka_unit_test(the_first_number_outside_the_table_is_named_at_the_next_sync),
        cmocka_unit_test(cross_entropy_of_rows_of_any_length_matches_the_cpu),
        cmocka_unit_test(rows_as_long_as_a_vocabulary_match_the_cpu),
        cmocka_unit_test(more_rows_than_slots_are_summed),
        cmocka_unit_test(the_loss_of_no_rows_is_not_a_number),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}
