/* Kernels that read class and token numbers: embedding and cross-entropy. */
#include "views.h"

#define IGNORE (-100)

static const int64_t widths[] = {1, 2, 7, 63, 64, 65, 513, 1000};
#define N_WIDTHS (int)(sizeof widths / sizeof *widths)

static mti_view numbers(int64_t count, int64_t below, uint64_t seed)
{
    mti_view index = mtt_dense(MT_I64, count);
    mtt_fill(&index, seed, 0, (double)below);
    return index;
}

static void check_embedding(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, int64_t n)
{
    int64_t count = 60, table = 23;
    mti_view index = numbers(count, table - 3, 5), w = mtt_dense(dtype, table, n);
    mti_view y = mtt_dense(dtype, count, n),
             dw = mtt_view(dtype, 2, (const int64_t[]){table, n}, MTT_PLACED_PADDED);
    const int64_t *at = index.data;
    mtt_fill(&w, 6, -1, 1);
    mtt_did(be->embedding(ctx, false, &index, &w, &y));
    for (int64_t i = 0; i < count * n; i++)
        assert_true(mtt_get(&y, i) == mtt_get(&w, at[i / n] * n + i % n));
    mtt_fill(&dw, 7, 5, 6); /* values that must be overwritten */
    void *scratch = mtt_memory(be->embedding_backward_scratch(ctx, &index, &dw));
    mtt_did(be->embedding_backward(ctx, false, &index, &y, &dw, scratch));
    double *want = calloc((size_t)(table * n), sizeof *want);
    assert_true(want && scratch);
    for (int64_t i = 0; i < count * n; i++) want[at[i / n] * n + i % n] += mtt_get(&y, i);
    for (int64_t i = 0; i < table * n; i++)
        mtt_close(mtt_get(&dw, i), want[i], 4 * mtt_epsilon(dtype), "dw", i);
    free(want), mtt_memory_free(scratch);
    mtt_drop(&index), mtt_drop(&w), mtt_drop(&y), mtt_drop(&dw);
}

static void embedding_gathers_rows_and_its_backward_adds_them_up(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_WIDTHS; k++) check_embedding(be, ctx, mtt_floats[t], widths[k]);
    be->close(ctx);
}

/* Such a table's zeros go past the caches in whole lines; here rows and the table's ends are within
 * lines. */
static void unused_rows_of_a_large_table_have_zero_gradients(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    int64_t table = 70001, n = 65, count = 300;
    mti_view index = numbers(count, table, 11), dy = mtt_dense(MT_F32, count, n);
    mti_view all = mtt_dense(MT_F32, table + 2, n), dw = all;
    dw.shape[0] = table, dw.data = (float *)all.data + n;
    mtt_fill(&dy, 12, 1, 2), mtt_fill(&all, 13, 5, 6);
    const int64_t *at = index.data;
    bool *used = calloc((size_t)table, sizeof *used);
    void *scratch = mtt_memory(be->embedding_backward_scratch(ctx, &index, &dw));
    assert_true(used && be->embedding_backward(ctx, false, &index, &dy, &dw, scratch));
    for (int64_t i = 0; i < count; i++) used[at[i]] = true;
    for (int64_t i = 0; i < table * n; i++)
        assert_true(used[i / n] ? mtt_get(&dw, i) >= 1 : mtt_get(&dw, i) == 0);
    for (int64_t c = 0; c < n; c++)
        assert_true(mtt_get(&all, c) >= 5 && mtt_get(&all, (table + 1) * n + c) >= 5);
    free(used), mtt_memory_free(scratch);
    mtt_drop(&index), mtt_drop(&dy), mtt_drop(&all);
    be->close(ctx);
}

static void a_number_outside_the_table_is_refused_by_name(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_view index = numbers(3, 1, 1), w = mtt_dense(MT_F32, 4, 2), y = mtt_dense(MT_F32, 3, 2);
    mti_view dw = mtt_dense(MT_F32, 4, 2), loss = mtt_dense(MT_F32, 1),
             logp = mtt_dense(MT_F32, 3, 2);
    int64_t *at = index.data;
    for (int64_t bad = -1; bad <= 4; bad += 5) {
        at[1] = bad;
        /* an asynchronous device reports the error when it is synchronised */
        assert_false(be->embedding(ctx, false, &index, &w, &y) && be->sync(ctx));
        assert_int_equal(mt_last_status(), MT_ERR_ARGUMENT);
        assert_non_null(strstr(mt_last_error(), bad < 0 ? "index[1] is -1" : "index[1] is 4"));
        mt_clear_error();
        void *scratch = mtt_memory(be->embedding_backward_scratch(ctx, &index, &dw) + 1);
        assert_false(be->embedding_backward(ctx, false, &index, &y, &dw, scratch) && be->sync(ctx));
        mtt_memory_free(scratch);
        mt_clear_error();
        assert_false(be->cross_entropy(ctx, IGNORE, &y, &index, &logp, &loss) && be->sync(ctx));
        assert_non_null(strstr(mt_last_error(), bad < 0 ? "target[1] is -1" : "target[1] is 4"));
        mt_clear_error();
    }
    mti_view *all[] = {&index, &w, &y, &dw, &loss, &logp};
    for (int k = 0; k < 6; k++) mtt_drop(all[k]);
    be->close(ctx);
}

static void check_entropy(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype, int64_t n_rows,
                          int64_t n)
{
    mti_view x = mtt_view(dtype, 2, (const int64_t[]){n_rows, n}, MTT_PLACED_PADDED);
    mti_view logp = mtt_dense(dtype, n_rows, n), dx = mtt_dense(dtype, n_rows, n);
    mti_view target = numbers(n_rows, n, 3), loss = mtt_dense(dtype, 1),
             dloss = mtt_dense(dtype, 1);
    int64_t *at = target.data, counted = 0;
    double sum = 0, eps = (dtype == MT_F64   ? 32
                           : dtype == MT_F32 ? 4
                                             : 1) *
                          mtt_epsilon(dtype); /* the reference rounds too */
    mtt_fill(&x, 1, -8, 8);
    mtt_set(&dloss, 0, 0.5);
    for (int64_t r = 0; r < n_rows; r += 3) at[r] = IGNORE;
    mtt_did(be->cross_entropy(ctx, IGNORE, &x, &target, &logp, &loss));
    for (int64_t r = 0; r < n_rows; r++) {
        double total = 0;
        for (int64_t j = 0; j < n; j++) total += exp(mtt_get(&x, r * n + j));
        for (int64_t j = 0; j < n; j++)
            mtt_close(mtt_get(&logp, r * n + j), mtt_get(&x, r * n + j) - log(total), 4 * eps,
                      "logp", j);
        if (at[r] == IGNORE) continue;
        sum += log(total) - mtt_get(&x, r * n + at[r]);
        counted++;
    }
    mtt_close(mtt_get(&loss, 0), sum / (double)counted, 2 * eps, "loss", 0);
    mtt_did(be->cross_entropy_backward(ctx, IGNORE, &logp, &target, &dloss, &dx));
    for (int64_t i = 0; i < n_rows * n; i++) {
        double want = exp(mtt_get(&logp, i)) - (at[i / n] == i % n ? 1 : 0);
        want *= at[i / n] == IGNORE ? 0 : 0.5 / (double)counted;
        mtt_close(mtt_get(&dx, i), want, 2 * eps, "dx", i);
    }
    mtt_did(be->cross_entropy_backward(ctx, IGNORE, &logp, &target, &dloss, &logp));
    mtt_same(&logp, &dx, "dx in place of logp");
    mti_view *all[] = {&x, &logp, &dx, &target, &loss, &dloss};
    for (int k = 0; k < 6; k++) mtt_drop(all[k]);
}

static void cross_entropy_matches_its_definition_and_its_gradient(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++)
        for (int k = 0; k < N_WIDTHS; k++) {
            check_entropy(be, ctx, mtt_floats[t], 5, widths[k]);
            check_entropy(be, ctx, mtt_floats[t], 700, widths[k]);
        }
    be->close(ctx);
}

/* ---- a vocabulary that ranks share ---- */

enum { RANKS = 3, WHOLE = 23, WIDTH = 8, COUNT = 60, COLUMNS = 65 }; /* 24 rows, one of padding */

static mti_view part_of(const mti_view *v, int dim, int64_t from, int64_t n)
{
    mti_view part = *v;
    part.shape[dim] = n;
    part.data = (char *)v->data + (size_t)(from * v->stride[dim]) * mt_dtype_size(v->dtype);
    return part;
}

/* Each rank's rows, with zeros for those of others, are in all the whole table's; a row of a rank's
 * gradient is that of the whole one. */
static void check_parts_of_a_table(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype)
{
    mti_view index = numbers(COUNT, WHOLE, 5), own = numbers(COUNT, 1, 1);
    mti_view w = mtt_dense(dtype, RANKS * WIDTH, COLUMNS), y = mtt_dense(dtype, COUNT, COLUMNS);
    mti_view dw = mtt_dense(dtype, WHOLE, COLUMNS), part = mtt_dense(dtype, WIDTH, COLUMNS);
    const int64_t *at = index.data, *here = own.data;
    mtt_fill(&w, 6, 1, 2);
    void *scratch = mtt_memory(be->embedding_backward_scratch(ctx, &index, &dw));
    mti_view dy = mtt_dense(dtype, COUNT, COLUMNS);
    mtt_fill(&dy, 7, -1, 1);
    mtt_did(be->embedding_backward(ctx, false, &index, &dy, &dw, scratch));
    assert_int_equal(be->own_rows_scratch(ctx, &index), COUNT * sizeof(int64_t));
    for (int64_t r = 0; r < RANKS; r++) {
        mti_view rows = part_of(&w, 0, r * WIDTH, WIDTH);
        mtt_did(be->own_rows(ctx, r * WIDTH, WIDTH, WHOLE, &index, &own));
        mtt_did(be->embedding(ctx, true, &own, &rows, &y));
        for (int64_t i = 0; i < COUNT; i++) {
            bool mine = at[i] / WIDTH == r;
            assert_true(here[i] == (mine ? at[i] % WIDTH : MTI_NO_ROW));
            for (int64_t j = 0; j < COLUMNS; j++)
                assert_true(mtt_get(&y, i * COLUMNS + j) ==
                            (mine ? mtt_get(&w, at[i] * COLUMNS + j) : 0));
        }
        mtt_did(be->embedding_backward(ctx, true, &own, &dy, &part, scratch));
        for (int64_t i = 0; i < WIDTH * COLUMNS; i++) {
            int64_t of_all = r * WIDTH * COLUMNS + i;
            assert_true(mtt_get(&part, i) == (of_all < WHOLE * COLUMNS ? mtt_get(&dw, of_all) : 0));
        }
    }
    mtt_memory_free(scratch);
    mti_view *all[] = {&index, &own, &w, &y, &dw, &part, &dy};
    for (int k = 0; k < 7; k++) mtt_drop(all[k]);
}

/* What three ranks find of WHOLE classes, joined, is what one finds: the loss and the
 * log-probabilities. */
static void check_parts_of_a_loss(const mti_backend *be, mti_ctx *ctx, mt_dtype dtype)
{
    mt_dtype stats = dtype == MT_F64 ? MT_F64 : MT_F32;
    mti_view x = mtt_view(dtype, 2, (const int64_t[]){COUNT, WHOLE}, MTT_PLACED_PADDED);
    mti_view logp = mtt_dense(dtype, COUNT, WHOLE), want = mtt_dense(dtype, COUNT, WHOLE);
    mti_view target = numbers(COUNT, WHOLE, 3), own = numbers(COUNT, 1, 1);
    mti_view loss = mtt_dense(dtype, 1), sum = mtt_dense(MT_F64, 1), lse = mtt_dense(stats, COUNT);
    mti_view parts = mtt_dense(stats, RANKS * 2 * COUNT);
    int64_t *at = target.data, counted = 0;
    const int64_t *here = own.data;
    for (int64_t i = 0; i < COUNT; i += 7) at[i] = IGNORE;
    for (int64_t i = 0; i < COUNT; i++) counted += at[i] != IGNORE;
    mtt_fill(&x, 2, -8, 8);
    for (int64_t r = 0; r < RANKS; r++) {
        int64_t columns = r < RANKS - 1 ? WIDTH : WHOLE - r * WIDTH;
        mti_view classes = part_of(&x, 1, r * WIDTH, columns);
        mti_view of_lse = part_of(&parts, 0, 2 * r * COUNT, COUNT);
        mti_view of_loss = part_of(&parts, 0, (2 * r + 1) * COUNT, COUNT);
        mtt_did(be->own_targets(ctx, r * WIDTH, columns, IGNORE, &target, &own));
        for (int64_t i = 0; i < COUNT; i++)
            assert_true(here[i] == (at[i] == IGNORE      ? MTI_IGNORED
                                    : at[i] / WIDTH == r ? at[i] % WIDTH
                                                         : MTI_ELSEWHERE));
        mtt_did(be->entropy_rows(ctx, MTI_IGNORED, &classes, &own, &of_lse, &of_loss));
    }
    mtt_set(&sum, 0, 0.5);
    mtt_did(be->join_entropy(ctx, IGNORE, WIDTH, &target, &parts, &lse, &sum));
    mtt_did(be->log_probabilities(ctx, &x, &lse, &logp));
    mtt_did(be->cross_entropy(ctx, IGNORE, &x, &target, &want, &loss));
    double eps = 4 * mtt_epsilon(dtype);
    mtt_close((mtt_get(&sum, 0) - 0.5) / (double)counted, mtt_get(&loss, 0), eps, "loss", 0);
    for (int64_t i = 0; i < COUNT * WHOLE; i++)
        mtt_close(mtt_get(&logp, i), mtt_get(&want, i), 4 * eps, "logp", i);
    mti_view *all[] = {&x, &logp, &want, &target, &own, &loss, &sum, &lse, &parts};
    for (int k = 0; k < 9; k++) mtt_drop(all[k]);
}

static void what_ranks_that_share_a_vocabulary_find_is_in_all_the_whole(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    for (int t = 0; t < 4; t++) {
        check_parts_of_a_table(be, ctx, mtt_floats[t]);
        check_parts_of_a_loss(be, ctx, mtt_floats[t]);
    }
    be->close(ctx);
}

/* Of the whole table's rows; and MTI_NO_ROW is as bad as any where no rank has other rows. */
static void a_number_that_is_no_rank_s_is_refused_by_name(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_view index = numbers(3, 1, 1), own = numbers(3, 1, 1);
    mti_view w = mtt_dense(MT_F32, 4, 2), y = mtt_dense(MT_F32, 3, 2);
    int64_t *at = index.data;
    for (int64_t bad = -1; bad <= WHOLE; bad += WHOLE + 1) {
        at[2] = bad;
        assert_false(be->own_rows(ctx, WIDTH, WIDTH, WHOLE, &index, &own) && be->sync(ctx));
        assert_int_equal(mt_last_status(), MT_ERR_ARGUMENT);
        assert_non_null(strstr(mt_last_error(), bad < 0 ? "index[2] is -1" : "index[2] is 23"));
        assert_non_null(strstr(mt_last_error(), "rows 0 to 22"));
        mt_clear_error();
    }
    at[2] = MTI_NO_ROW;
    assert_false(be->embedding(ctx, false, &index, &w, &y) && be->sync(ctx));
    assert_non_null(strstr(mt_last_error(), "index[2] is -9223372036854775808"));
    mt_clear_error();
    mtt_drop(&index), mtt_drop(&own), mtt_drop(&w), mtt_drop(&y);
    be->close(ctx);
}

static void the_loss_of_no_rows_is_not_a_number(void **state)
{
    (void)state;
    mti_ctx *ctx;
    const mti_backend *be = mtt_backend(&ctx);
    mti_view x = mtt_dense(MT_F32, 2, 4), logp = mtt_dense(MT_F32, 2, 4),
             loss = mtt_dense(MT_F32, 1);
    mti_view target = numbers(2, 1, 1);
    ((int64_t *)target.data)[0] = ((int64_t *)target.data)[1] = IGNORE;
    mtt_did(be->cross_entropy(ctx, IGNORE, &x, &target, &logp, &loss));
    assert_true(isnan(mtt_get(&loss, 0)));
    mtt_did(be->cross_entropy_backward(ctx, IGNORE, &logp, &target, &loss, &x));
    for (int64_t i = 0; i < 8; i++) assert_true(mtt_get(&x, i) == 0);
    mtt_drop(&x), mtt_drop(&logp), mtt_drop(&loss), mtt_drop(&target);
    be->close(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embedding_gathers_rows_and_its_backward_adds_them_up),
        cmocka_unit_test(unused_rows_of_a_large_table_have_zero_gradients),
        cmocka_unit_test(a_number_outside_the_table_is_refused_by_name),
        cmocka_unit_test(cross_entropy_matches_its_definition_and_its_gradient),
        cmocka_unit_test(what_ranks_that_share_a_vocabulary_find_is_in_all_the_whole),
        cmocka_unit_test(a_number_that_is_no_rank_s_is_refused_by_name),
        cmocka_unit_test(the_loss_of_no_rows_is_not_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
