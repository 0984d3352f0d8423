/* A vocabulary that ranks share gives the values and gradients of the whole one. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "as_ranks.h"
#include "collectives/collectives.h"

/* 13 classes among 2 ranks of 7, or 4 of 4: the last columns are padding; among 8 ranks of 2 the
 * last rank has nothing else. */
enum { ROWS = 6, CLASSES = 13, WIDTH = 5 };
static const int64_t targets[ROWS] = {0, 12, MT_IGNORE, 7, 3, 6};

static mt_tensor *take(mt_tensor *whole, int dim, int64_t from, int64_t n)
{
    mt_tensor *t = mt_slice(whole, dim, from, n);
    mt_set(&t, mt_clone(t));
    MTT_NEED(t && mt_set_requires_grad(t, true) == MT_OK);
    return t;
}

/* |a - b| <= bound for all elements of a, which are columns (dim 1) or rows of b from `from` on,
 * and 0 beyond b. */
static void near(mt_tensor *a, mt_tensor *b, int dim, int64_t from, double bound)
{
    double *x = mtt_doubles(a), *y = mtt_doubles(b);
    int64_t rows = mt_shape(a)[0], cols = mt_shape(a)[1], wide = mt_shape(b)[1];
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            int64_t r = i + (dim ? 0 : from), c = j + (dim ? from : 0);
            double want = r < mt_shape(b)[0] && c < wide ? y[r * wide + c] : 0;
            MTT_NEED(fabs(x[i * cols + j] - want) <= bound);
        }
    free(x);
    free(y);
}

static void check_loss(mt_device *device, const mt_group *group, const mti_entropy_options *options,
                       mt_dtype dtype, double bound)
{
    const mt_cross_entropy_options of_whole = {.keep_logits = options->keep_logits,
                                               .sum = options->sum};
    int64_t own = (CLASSES + group->ranks - 1) / group->ranks;
    MT_AUTO mt_tensor *all =
        mtt_random(device, dtype, 2, (const int64_t[]){ROWS, CLASSES}, 3, -4, 4);
    MT_AUTO mt_tensor *padding =
        mt_full(device, dtype, MT_SHAPE(ROWS, own * group->ranks - CLASSES), 9);
    MT_AUTO mt_tensor *padded = mt_cat(2, (mt_tensor *[]){all, padding}, 1);
    MT_AUTO mt_tensor *target =
        mt_from_data(device, MT_I64, MT_SHAPE(ROWS), targets, sizeof targets);
    MT_AUTO mt_tensor *x = take(padded, 1, group->rank * own, own);
    MTT_NEED(mt_set_requires_grad(all, true) == MT_OK);
    MT_AUTO mt_tensor *whole = mt_cross_entropy_with(all, target, MT_IGNORE, &of_whole);
    mt_sent before = mt_sent_get(device);
    uint64_t sent = mt_comm_sent(group->comm);
    MT_AUTO mt_tensor *y = mti_cross_entropy_shard(x, target, MT_IGNORE, CLASSES, group, options);
    MTT_NEED(y && whole && fabs(mt_item(y) - mt_item(whole)) <= bound);
    uint64_t numbers = 2 * ROWS * (uint64_t)(group->ranks - 1);
    MTT_NEED(mt_comm_sent(group->comm) - sent == numbers * (dtype == MT_F64 ? 8 : 4));
    MTT_NEED(mt_sent_get(device).layers - before.layers == mt_comm_sent(group->comm) - sent);
    MTT_NEED(mt_backward(y) == MT_OK && mt_backward(whole) == MT_OK);
    near(mt_grad(x), mt_grad(all), 1, group->rank * own, bound);
}

/* The sum of what the ranks find is exactly the row. padding_row: it gets no gradient; -1:
 * each gets its own. */
static void check_embedding(mt_device *device, const mt_group *group, mt_dtype dtype,
                            int64_t padding_row)
{
    const mt_embedding_options one = {.padded = padding_row >= 0, .padding = padding_row};
    int64_t own = (CLASSES + group->ranks - 1) / group->ranks;
    const int64_t index[ROWS] = {0, 12, 12, 7, 3, 6};
    MT_AUTO mt_tensor *all =
        mtt_random(device, dtype, 2, (const int64_t[]){CLASSES, WIDTH}, 4, -1, 1);
    MT_AUTO mt_tensor *padding =
        mt_full(device, dtype, MT_SHAPE(own * group->ranks - CLASSES, WIDTH), 9);
    MT_AUTO mt_tensor *padded = mt_cat(2, (mt_tensor *[]){all, padding}, 0);
    MT_AUTO mt_tensor *ids = mt_from_data(device, MT_I64, MT_SHAPE(ROWS), index, sizeof index);
    MT_AUTO mt_tensor *w = take(padded, 0, group->rank * own, own);
    MTT_NEED(mt_set_requires_grad(all, true) == MT_OK);
    MT_AUTO mt_tensor *part = mti_embedding_part(ids, w, group->rank * own, CLASSES, &one);
    MT_AUTO mt_tensor *y = mt_all_reduce(part, group);
    MT_AUTO mt_tensor *want = mt_embedding(ids, all, &one);
    MTT_NEED(y && want && mtt_same_bits(y, want));
    MT_AUTO mt_tensor *dy = mtt_random(device, dtype, 2, (const int64_t[]){ROWS, WIDTH}, 5, -1, 1);
    const mt_backward_options options = {.gradient = dy};
    MTT_NEED(mt_backward_with(y, &options) == MT_OK && mt_backward_with(want, &options) == MT_OK);
    near(mt_grad(w), mt_grad(all), 0, group->rank * own, 0);
    if (!one.padded) return;
    double *rows = mtt_doubles(mt_grad(all));
    for (int64_t i = 0; i < WIDTH; i++) {
        MTT_NEED(rows[padding_row * WIDTH + i] == 0);
        MTT_NEED(padding_row == 3 || rows[3 * WIDTH + i] != 0);
    }
    free(rows);
}

static void check_refusals(mt_device *device, const mt_group *group)
{
    const int64_t index[1] = {CLASSES};
    MT_AUTO mt_tensor *ids = mt_from_data(device, MT_I64, MT_SHAPE(1), index, sizeof index);
    MT_AUTO mt_tensor *w = mt_zeros(device, MT_F32, MT_SHAPE(7, 2));
    MT_AUTO mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(1, 7));
    MTT_NEED(!mti_embedding_part(ids, w, 7, CLASSES, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "index[0] is 13", "rows 0 to 12");
    MTT_NEED(!mti_cross_entropy_shard(x, ids, MT_IGNORE, CLASSES, group, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "target[0] is 13", "0 to 12");
    MTT_NEED(!mti_cross_entropy_shard(x, ids, MT_IGNORE, 1000, group, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "1000 classes");
    MTT_NEED(!mti_cross_entropy_shard(x, ids, MT_IGNORE, CLASSES, NULL, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "the group is NULL");
    mt_group alone = *group;
    alone.comm = NULL;
    MTT_NEED(!mti_cross_entropy_shard(x, ids, MT_IGNORE, CLASSES, &alone, NULL));
    mtt_failed(MT_ERR_UNSUPPORTED, "without a comm");
}

static void check(mt_comm *world, void *user)
{
    mt_group group = mt_comm_group(world);
    mt_device *device = mtt_device();
    (void)user;
    MTT_NEED(device && mt_set_balance_check(device, true) == MT_OK);
    static const mti_entropy_options forms[] = {{.keep_logits = false},
                                                {.apart = true},
                                                {.keep_logits = true},
                                                {.keep_logits = true, .sum = true}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        check_loss(device, &group, &forms[i], MT_F64, 1e-13);
        check_loss(device, &group, &forms[i], MT_F32, 5e-6);
        if (forms[i].apart) continue; /* of logits that were cast to f32 */
        check_loss(device, &group, &forms[i], MT_BF16, forms[i].sum ? 1e-1 : 2e-2);
        check_loss(device, &group, &forms[i], MT_F16, forms[i].sum ? 1e-2 : 2e-3);
    }
    check_embedding(device, &group, MT_F64, -1);
    check_embedding(device, &group, MT_F32, 12);
    check_embedding(device, &group, MT_F32, 3);
    check_embedding(device, &group, MT_BF16, 0);
    /* a GPU finds bad indices later (test_tokens.c) */
    if (group.ranks == 2 && !strcmp(mt_device_kind(device), "cpu")) check_refusals(device, &group);
    MTT_NEED(mtt_allocated(device) == 0);
    mt_device_release(device);
}

static void a_shared_vocabulary_gives_the_whole_ones_values(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= 8; ranks *= 2) mtt_as_ranks(ranks, check, NULL);
}

static void padding_outside_the_table_is_refused(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("cpu");
    MT_AUTO mt_tensor *ids = mt_zeros(device, MT_I64, MT_SHAPE(2));
    MT_AUTO mt_tensor *w = mt_zeros(device, MT_F32, MT_SHAPE(CLASSES, 2));
    const mt_embedding_options bad[] = {{.padded = true, .padding = -1},
                                        {.padded = true, .padding = CLASSES},
                                        {.padded = true, .padding = 40}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t rows = i == 2 ? 40 : 0;
        assert_null(mti_embedding_part(ids, w, 0, rows, &bad[i]));
        mtt_failed(MT_ERR_ARGUMENT, "embedding: padding is row", i == 2 ? "0 to 39" : "0 to 12");
    }
    assert_null(mti_embedding_part(ids, w, 5, 0, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "rows from 5 on of 0");
    assert_null(mt_embedding(NULL, w, NULL));
    mtt_failed(MT_ERR_ARGUMENT, "embedding", "the index");
    MT_AUTO mt_tensor *y = mtt_made(mt_embedding(ids, w, NULL));
    mt_device_release(device);
}

/* INT64_MIN, too, which stands for another rank's row inside the engine. */
static void an_index_outside_the_table_is_refused(void **state)
{
    (void)state;
    static const int64_t bad[] = {INT64_MIN, -1, 2 * CLASSES, INT64_MAX};
    mt_device *device = mt_device_open("cpu");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const int64_t index[2] = {0, bad[i]};
        MT_AUTO mt_tensor *ids = mt_from_data(device, MT_I64, MT_SHAPE(2), index, sizeof index);
        MT_AUTO mt_tensor *w = mt_zeros(device, MT_F32, MT_SHAPE(CLASSES, 2));
        assert_null(mt_embedding(ids, w, NULL));
        mtt_failed(MT_ERR_ARGUMENT, "embedding: index[1] is", "rows 0 to 12");
        assert_null(mti_embedding_part(ids, w, 0, 2 * CLASSES, NULL));
        mtt_failed(MT_ERR_ARGUMENT, "embedding: index[1] is", "rows 0 to 25");
    }
    mt_device_release(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(padding_outside_the_table_is_refused),
        cmocka_unit_test(an_index_outside_the_table_is_refused),
        cmocka_unit_test(a_shared_vocabulary_gives_the_whole_ones_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
