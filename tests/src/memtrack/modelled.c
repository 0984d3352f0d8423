/* modelled.c: random requests to a pool and to its model. */
#include <stdio.h>
#include <stdlib.h>
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
    size_t active = peak->allocated; /* no freed block waits for another stream */
    mti_pool_get_stats(pool, &s);
    compare(&s.requested, now.requested, &peak->requested);
    compare(&s.allocated, now.allocated, &peak->allocated);
    compare(&s.active, now.allocated, &active);
    compare(&s.reserved, now.reserved, &peak->reserved);
}

/* The streams whose first request is still to come are not there yet. */
static void compare_streams(mti_pool *pool, const mtt_model *m, const mtt_model_calls *model)
{
    mt_stream_stats streams[MT_MAX_STREAMS];
    int n = mti_pool_get_streams(pool, streams);
    for (int i = 0; i < n; i++) {
        int named = i ? atoi(streams[i].name) : 0; /* in the order of first use */
        mtt_figures own = model->of_stream(m, named);
        assert_int_equal(streams[i].reserved, own.reserved);
        assert_int_equal(streams[i].allocated, own.allocated);
    }
}

/* A scope of the request alone, within another one. */
static mti_block *alloc_in(mti_pool *pool, int stream, size_t n_bytes, mt_category category)
{
    char name[16];
    mt_stream_scope outer, scope;
    snprintf(name, sizeof name, "%d", stream);
    if (stream) assert_true(mti_pool_stream_begin(pool, &outer, "1"));
    assert_true(mti_pool_stream_begin(pool, &scope, stream ? name : "default"));
    mti_block *b = mti_pool_alloc(pool, n_bytes, category);
    mti_stream_end(&scope);
    if (stream) mti_stream_end(&outer);
    return b;
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
            mt_category category = (mt_category)(what % MT_CATEGORY_COUNT);
            int n = requests->n_streams, stream = n ? (int)(mtt_draw(&seed) % (uint64_t)n) : 0;
            mti_block *b = n ? alloc_in(pool, stream, n_bytes, category)
                             : mti_pool_alloc(pool, n_bytes, category);
            assert_int_equal(b ? (uintptr_t)b->ptr : 0, model->alloc(m, stream, n_bytes));
            if (b) live[n_live++] = b;
            if (!b) n_refused++, mt_clear_error();
        }
        compare_figures(pool, model->figures(m), &peak);
        model->compare(m, pool);
        if (requests->n_streams) compare_streams(pool, m, model);
        if (step % 512 == 0) assert_true(mti_pool_check(pool));
    }
    mt_mem_stats s;
    mti_pool_get_stats(pool, &s);
    assert_int_equal(s.ooms, n_refused);
    return n_refused;
}
