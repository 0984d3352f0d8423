/* gather and its sums, topk and sort_groups, on the device, against the CPU. */
#include "twins.h"

static void check_gather(const mtt_pair *p, mt_dtype dtype, const mtt_shape *of, int dim, int64_t n,
                         mtt_placing placing)
{
    mtt_shape cut = *of; /* the index's shape: shorter than x in the other dimensions */
    for (int d = 0; d < of->rank; d++) cut.at[d] = d == dim ? n : (of->at[d] + 1) / 2;
    mtt_twin x = mtt_twin_make(p, dtype, of->rank, of->at, placing, 1, -2, 2),
             index = mtt_twin_make(p, MT_I64, of->rank, cut.at, MTT_PLACED_DENSE, 0, 0, 1),
             y = mtt_twin_make(p, dtype, of->rank, cut.at, MTT_PLACED_DENSE, 0, 0, 1),
             dy = mtt_twin_make(p, dtype, of->rank, cut.at, placing, 0, -1, 1),
             dx = mtt_twin_make(p, dtype, of->rank, of->at, MTT_PLACED_DENSE, 0, 0, 1);
    for (int64_t i = 0; i < mti_view_count(&index.host); i++)
        mtt_set(&index.host, i, (double)(i * 7919 % 104729 % of->at[dim]));
    mtt_twin_push(p, &index);
    mtt_ok(p->cpu->gather(p->cpu_ctx, dim, &x.host, &index.host, &y.host), "gather");
    mtt_ok(p->dev->gather(p->dev_ctx, dim, &x.dev, &index.dev, &y.dev), "gather");
    mtt_twin_check(p, &y, 0, "gather");
    mtt_ok(p->cpu->gather_backward(p->cpu_ctx, dim, &index.host, &dy.host, &dx.host), "backward");
    mtt_ok(p->dev->gather_backward(p->dev_ctx, dim, &index.dev, &dy.dev, &dx.dev), "backward");
    mtt_twin_check(p, &dx, 0, "gather backward"); /* both sum in the same order */
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &index), mtt_twin_drop(p, &y);
    mtt_twin_drop(p, &dy), mtt_twin_drop(p, &dx);
}

static void gather_and_its_sums_match_the_cpu_to_the_bit(void **state)
{
    static const mtt_shape shapes[] = {{1, {5000}}, {2, {3, 700}}, {3, {4, 60, 9}}, {2, {0, 3}}};
    for (int t = 0; t < 4; t++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            for (int dim = shapes[k].at[0] ? 0 : 1; dim < shapes[k].rank; dim++)
                for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++)
                    check_gather(*state, mtt_floats[t], &shapes[k], dim, placing & 1 ? 900 : 5,
                                 placing);
}

static void check_topk(const mtt_pair *p, mt_dtype dtype, const mtt_shape *s, int64_t n_best,
                       mtt_placing placing)
{
    mtt_shape best = *s;
    best.at[s->rank - 1] = n_best;
    mtt_twin x = mtt_twin_make(p, dtype, s->rank, s->at, placing, 1, -2, 2),
             values = mtt_twin_make(p, dtype, s->rank, best.at, MTT_PLACED_DENSE, 0, 0, 1),
             index = mtt_twin_make(p, MT_I64, s->rank, best.at, MTT_PLACED_DENSE, 0, 0, 1);
    for (int64_t i = 0; i < mti_view_count(&x.host); i += 3) /* many equal values, some NaN */
        mtt_set(&x.host, i, i % 42 ? (double)(i % 5) - 2 : (double)NAN);
    mtt_twin_push(p, &x);
    size_t n_scratch =
        p->dev->topk_scratch(p->dev_ctx, &x.dev, &values.dev); /* the CPU needs none */
    void *scratch = n_scratch ? p->dev->alloc(p->dev_ctx, n_scratch) : NULL;
    mtt_ok(scratch || !n_scratch, "scratch");
    mtt_ok(p->cpu->topk(p->cpu_ctx, &x.host, &values.host, &index.host, NULL), "topk");
    mtt_ok(p->dev->topk(p->dev_ctx, &x.dev, &values.dev, &index.dev, scratch), "topk");
    mtt_ok(p->dev->sync(p->dev_ctx), "sync");
    if (scratch) p->dev->free(p->dev_ctx, scratch, n_scratch);
    mtt_twin_check(p, &values, 0, "values");
    mtt_twin_check(p, &index, 0, "index");
    mtt_twin_drop(p, &x), mtt_twin_drop(p, &values), mtt_twin_drop(p, &index);
}

static void topk_finds_the_same_elements_as_the_cpu(void **state)
{
    static const mtt_shape shapes[] = {{1, {5000}}, {2, {3, 700}}, {3, {4, 5, 9}}, {2, {0, 3}}};
    for (int t = 0; t < 4; t++)
        for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
            for (mtt_placing placing = 0; placing < MTT_PLACING_COUNT; placing++) {
                int64_t n = shapes[k].at[shapes[k].rank - 1];
                check_topk(*state, mtt_floats[t], &shapes[k], placing & 1 ? n : (n + 9) / 10,
                           placing);
            }
}

static void groups_are_sorted_as_on_the_cpu(void **state)
{
    const mtt_pair *p = *state;
    static const int64_t sizes[][2] = {{5000, 7}, {1, 3}, {700, 1}, {0, 2}, {300, 900}};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        mtt_twin t[5]; /* index, rows, order, inverse, counts */
        for (int i = 0; i < 5; i++)
            t[i] = mtt_twin_make(p, i < 4 ? MT_I64 : MT_I32, 1, &sizes[k][i / 4], MTT_PLACED_DENSE,
                                 0, 0, 1);
        for (int64_t i = 0; i < sizes[k][0]; i++)
            mtt_set(&t[0].host, i, (double)(i * 7919 % 104729 % sizes[k][1]));
        mtt_twin_push(p, &t[0]);
        mtt_ok(p->cpu->sort_groups(p->cpu_ctx, 2, &t[0].host, &t[1].host, &t[2].host, &t[3].host,
                                   &t[4].host),
               "sort_groups");
        mtt_ok(p->dev->sort_groups(p->dev_ctx, 2, &t[0].dev, &t[1].dev, &t[2].dev, &t[3].dev,
                                   &t[4].dev),
               "sort_groups");
        static const char *const names[] = {"index", "rows", "order", "inverse", "counts"};
        for (int i = 0; i < 5; i++) mtt_twin_check(p, &t[i], 0, names[i]), mtt_twin_drop(p, &t[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gather_and_its_sums_match_the_cpu_to_the_bit),
        cmocka_unit_test(topk_finds_the_same_elements_as_the_cpu),
        cmocka_unit_test(groups_are_sorted_as_on_the_cpu),
    };
    return cmocka_run_group_tests(tests, mtt_open, mtt_close_pair);
}
