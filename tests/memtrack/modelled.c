/* modelled.c: random requests to a pool and to its model. */
#include "modelled.h"

enum { MOST_LIVE = 300, FEW_LIVE = 40 };

static void compare(const mt_stat *stat, size_t current, size_t *peak)
{
    if (current > *peak) *peak = current;
    assert_int_equal(stat->current, current);
    assert_int_equal(stat->peak, *peak);
}

static void compare_figures(const mti_pool *pool, mtt_figures now, mtt_figures *peak)
{
    mt_mem_stats s;
    size_t active = peak->allocated; /* one stream */
    mti_pool_get_stats(pool, &s);
    compare(&s.requested, now.requested, &peak->requested);
    compare(&s.allocated, now.allocated, &peak->allocated);
    compare(&s.active, now.allocated, &active);
    compare(&s.reserved, now.reserved, &peak->reserved);
}

size_t mtt_agree(mti_pool *pool, mtt_model *m, const mtt_model_calls *model,
                 const mtt_requests *requests)
{
    mti_block *live[MOST_LIVE];
    size_t n_live = 0, n_refused = 0;
    uint64_t seed = requests->seed;
    mtt_figures peak = {0};
    for (int step = 0; step < requests->n; step++) {
        uint64_t what = mtt_draw(&seed) % 4096;
        /* The number of live blocks alternates between few and many. */
        size_t goal = step / 1000 % 2 ? FEW_LIVE : MOST_LIVE;
        if (what < 2) {
            mti_pool_empty_cache(pool);
            model->empty_cache(m);
        } else if (n_live && (n_live == goal || what % 8 < (n_live < goal ? 3 : 5))) {
            size_t i = (size_t)mtt_draw(&seed) % n_live;
            model->free(m, (uintptr_t)live[i]->ptr);
            mti_pool_free(pool, live[i], live[i]->requested);
            live[i] = live[--n_live];
        } else if (n_live < MOST_LIVE) {
            size_t n_bytes = mtt_draw_size(&seed, requests->max_log2);
            mti_block *b = mti_pool_alloc(pool, n_bytes, (mt_category)(what % MT_CATEGORY_COUNT));
            assert_int_equal(b ? (uintptr_t)b->ptr : 0, model->alloc(m, n_bytes));
            if (b) live[n_live++] = b;
            if (!b) n_refused++, mt_clear_error();
        }
        compare_figures(pool, model->figures(m), &peak);
        model->compare(m, pool);
        if (step % 512 == 0) assert_true(mti_pool_check(pool));
    }
    mt_mem_stats s;
    mti_pool_get_stats(pool, &s);
    assert_int_equal(s.ooms, n_refused);
    return n_refused;
}
