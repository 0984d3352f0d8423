/* Traces: requests to the allocator, repeated at the same addresses with the same figures. */
#include <string.h>
#include "base/base.h"
#include "memtrack/trace.h"
#include "pooled.h"

static bool count(void *user)
{
    ++*(int *)user;
    return true;
}

static bool refuse(void *user)
{
    (void)user;
    return false;
}

/* Two blocks that outlive the piece, temporaries, and one of no bytes. */
static void piece(mti_block **kept)
{
    mti_block *temporary = mti_pool_alloc(mtt_pool, 3000, MT_TEMPORARY);
    kept[0] = mti_pool_alloc(mtt_pool, 5000, MT_TEMPORARY);
    mti_block *large = mti_pool_alloc(mtt_pool, 3 << 20, MT_WORKSPACE);
    mti_pool_free(mtt_pool, temporary, 3000);
    mti_block *none = mti_pool_alloc(mtt_pool, 0, MT_TEMPORARY);
    mti_pool_recategorise(mtt_pool, kept[0], MT_GRADIENT);
    kept[1] = mti_pool_alloc(mtt_pool, 700, MT_ACTIVATION);
    mti_pool_free(mtt_pool, large, 3 << 20);
    mti_pool_free(mtt_pool, none, 0);
}

static void drop(mti_block **kept)
{
    mti_pool_free(mtt_pool, kept[0], 5000);
    mti_pool_free(mtt_pool, kept[1], 700);
}

static mti_trace *traced(void)
{
    mti_block *kept[2];
    piece(kept); /* the pool has its segments now */
    drop(kept);
    mti_trace *t = mti_trace_begin(mtt_pool);
    assert_non_null(t);
    piece(kept);
    assert_null(mti_trace_end(t));
    drop(kept);
    return t;
}

static void a_repeated_piece_moves_every_figure_as_the_piece_does(void **state)
{
    (void)state;
    mti_block *kept[2];
    mt_mem_stats before, piece_moved, after;
    mti_trace *t = traced();
    int runs = 0;
    mti_pool_reset_peak(mtt_pool);
    mti_pool_get_stats(mtt_pool, &before);
    piece(kept);
    mti_pool_get_stats(mtt_pool, &piece_moved);
    const void *places[] = {kept[0]->ptr, kept[1]->ptr};
    drop(kept);
    mti_pool_reset_peak(mtt_pool);
    assert_true(mti_trace_repeat(t, count, &runs, kept));
    mti_pool_get_stats(mtt_pool, &after);
    assert_int_equal(runs, 1);
    assert_int_equal(mti_trace_survivors(t), 2);
    for (int i = 0; i < 2; i++) {
        assert_ptr_equal(kept[i]->ptr, places[i]);
        assert_ptr_equal(mti_trace_survivor(t, (size_t)i), places[i]);
    }
    assert_int_equal(kept[0]->category, MT_GRADIENT);
    assert_int_equal(after.allocated.current, piece_moved.allocated.current);
    assert_int_equal(after.allocated.peak, piece_moved.allocated.peak);
    assert_int_equal(after.allocated.total_in - piece_moved.allocated.total_in,
                     piece_moved.allocated.total_in - before.allocated.total_in);
    assert_int_equal(after.reserved.peak, piece_moved.reserved.peak);
    assert_memory_equal(after.by_category, piece_moved.by_category, sizeof after.by_category);
    assert_memory_equal(after.at_peak, piece_moved.at_peak, sizeof after.at_peak);
    assert_true(mti_pool_check(mtt_pool));
    drop(kept);
    mti_trace_free(t);
}

static void a_piece_that_would_run_elsewhere_is_taken_back(void **state)
{
    (void)state;
    mti_block *kept[2] = {NULL, NULL};
    mt_mem_stats before, after;
    mti_trace *t = traced();
    int runs = 0;
    mti_block *other = mtt_get(512);
    mti_pool_get_stats(mtt_pool, &before);
    assert_false(mti_trace_repeat(t, count, &runs, kept));
    mti_pool_get_stats(mtt_pool, &after);
    assert_int_equal(runs, 0);
    assert_int_equal(after.allocated.current, before.allocated.current);
    assert_null(kept[0]);
    mtt_put(other);
    mti_block *far = mtt_get(30 << 20); /* the same addresses, but the piece may have read far */
    assert_false(mti_trace_repeat(t, count, &runs, kept));
    mtt_put(far);
    assert_true(mti_trace_repeat(t, count, &runs, kept));
    drop(kept);
    assert_false(mti_trace_repeat(t, refuse, NULL, kept)); /* run failed */
    expect(allocated.current, 0);
    mti_block *first = mtt_get(18 << 20), *second = mtt_get(29 << 20), *third = mtt_get(12 << 20);
    mtt_put(first);
    mtt_put(second);
    mtt_put(third); /* a segment that fits the large block better is cached now */
    assert_false(mti_trace_repeat(t, count, &runs, kept));
    expect(allocated.current, 0);
    mti_pool_empty_cache(mtt_pool);
    assert_false(mti_trace_repeat(t, count, &runs, kept)); /* it would have to grow */
    expect(reserved.current, 0);
    assert_int_equal(runs, 1);
    assert_true(mti_pool_check(mtt_pool));
    mti_trace_free(t);
    mt_clear_error();
}

static void a_piece_that_frees_what_it_did_not_make_is_not_repeatable(void **state)
{
    (void)state;
    mti_block *before = mti_pool_alloc(mtt_pool, 600, MT_INPUT);
    mti_trace *t = mti_trace_begin(mtt_pool);
    assert_non_null(t);
    assert_null(mti_trace_begin(mtt_pool));
    assert_int_equal(mt_last_status(), MT_ERR_STATE);
    mt_clear_error();
    mti_pool_recategorise(mtt_pool, before, MT_GRADIENT);
    mti_pool_free(mtt_pool, before, 600);
    assert_string_equal(mti_trace_end(t), "it changes the category of memory from before it");
    mti_trace_free(t);
}

static void a_recorded_piece_gets_no_new_segment(void **state)
{
    (void)state;
    mti_block *before = mti_pool_alloc(mtt_pool, 600, MT_INPUT);
    mti_trace *t = mti_trace_begin(mtt_pool);
    mt_mem_stats stats;
    mti_pool_get_stats(mtt_pool, &stats);
    assert_null(mti_pool_alloc(mtt_pool, 30 << 20, MT_INPUT));
    assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
    mt_clear_error();
    expect(reserved.current, stats.reserved.current);
    assert_null(mti_trace_end(t));
    mti_pool_free(mtt_pool, before, 600);
    mti_trace_free(t);
}

static void refused_memory_makes_a_trace_unrepeatable(void **state)
{
    (void)state;
    mti_block *kept[2];
    piece(kept);
    drop(kept);
    bool reached = true;
    for (uint64_t n = 1; reached; n++) {
        mti_fail_nth_alloc(n);
        mti_trace *t = mti_trace_begin(mtt_pool);
        mti_block *b = mti_pool_alloc(mtt_pool, 900, MT_INPUT);
        const char *why = t ? mti_trace_end(t) : "no trace";
        reached = mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        assert_true(!reached || why || !b);
        mti_pool_free(mtt_pool, b, 900);
        mti_trace_free(t);
        mt_clear_error();
        expect(allocated.current, 0);
    }
}

static void a_piece_is_repeated_on_the_streams_that_it_requested_on(void **state)
{
    (void)state;
    mt_stream_scope scope;
    mti_block *kept[2];
    int runs = 0;
    assert_true(mti_pool_stream_begin(mtt_pool, &scope, "side"));
    mti_trace *t = traced();
    mti_stream_end(&scope);
    assert_true(mti_trace_repeat(t, count, &runs, kept));
    assert_int_equal(runs, 1);
    drop(kept);
    mt_stream_stats streams[MT_MAX_STREAMS];
    assert_int_equal(mti_pool_get_streams(mtt_pool, streams), 2);
    assert_int_equal(streams[0].reserved, 0);
    mti_trace_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_POOL(a_repeated_piece_moves_every_figure_as_the_piece_does),
        WITH_POOL(a_piece_that_would_run_elsewhere_is_taken_back),
        WITH_POOL(a_piece_that_frees_what_it_did_not_make_is_not_repeatable),
        WITH_POOL(a_recorded_piece_gets_no_new_segment),
        WITH_POOL(refused_memory_makes_a_trace_unrepeatable),
        WITH_POOL(a_piece_is_repeated_on_the_streams_that_it_requested_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
