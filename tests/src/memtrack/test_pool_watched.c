/* The caching allocator: what it counts, and what it reports to observers. */
#include <stdlib.h>
#include "pooled.h"

/* ---- categories and peaks ---- */

static void the_peak_keeps_its_bytes_by_category(void **state)
{
    (void)state;
    mti_block *w = mti_pool_alloc(mtt_pool, 1000, MT_PARAMETER);
    mti_block *x = mti_pool_alloc(mtt_pool, 2000, MT_ACTIVATION);
    mt_mem_stats s = mtt_pool_stats(); /* at the peak itself */
    assert_int_equal(s.at_peak[MT_PARAMETER], 1024);
    assert_int_equal(s.at_peak[MT_ACTIVATION], 2048);
    mti_pool_recategorise(mtt_pool, x, MT_OUTPUT);
    s = mtt_pool_stats();
    assert_int_equal(s.by_category[MT_OUTPUT], 2048);
    assert_int_equal(s.at_peak[MT_OUTPUT], 0); /* it was an activation when the peak was reached */
    assert_int_equal(s.at_peak[MT_ACTIVATION], 2048);
    mtt_put(x);
    mti_block *g = mti_pool_alloc(mtt_pool, 1500, MT_GRADIENT); /* below the peak */
    s = mtt_pool_stats();
    assert_int_equal(s.allocated.peak, 3072);
    assert_int_equal(s.at_peak[MT_GRADIENT], 0);
    mti_block *h = mti_pool_alloc(mtt_pool, 1500, MT_GRADIENT); /* a new peak */
    s = mtt_pool_stats();
    assert_int_equal(s.allocated.peak, 1024 + 2 * 1536);
    assert_int_equal(s.at_peak[MT_GRADIENT], 2 * 1536);
    assert_int_equal(s.at_peak[MT_ACTIVATION], 0);
    mtt_put(h);
    mti_block *o =
        mti_pool_alloc(mtt_pool, 1500, MT_OUTPUT); /* equally high: the first peak is kept */
    s = mtt_pool_stats();
    assert_int_equal(s.allocated.current, s.allocated.peak);
    assert_int_equal(s.at_peak[MT_GRADIENT], 2 * 1536);
    assert_int_equal(s.at_peak[MT_OUTPUT], 0);
    mtt_put(w), mtt_put(g), mtt_put(o);
}

static void a_reset_peak_starts_at_the_current_bytes(void **state)
{
    (void)state;
    mti_block *w = mti_pool_alloc(mtt_pool, 1000, MT_PARAMETER), *x = mtt_get(30 * MIB);
    mtt_put(x);
    mti_pool_reset_peak(mtt_pool);
    mt_mem_stats s = mtt_pool_stats();
    assert_int_equal(s.allocated.peak, 1024);
    assert_int_equal(s.blocks.peak, 1);
    assert_int_equal(s.reserved.peak, 32 * MIB);
    assert_int_equal(s.at_peak[MT_PARAMETER], 1024);
    assert_int_equal(s.at_peak[MT_ACTIVATION], 0);
    mtt_put(w);
    expect(at_peak[MT_PARAMETER], 1024);
}

static void an_outer_peak_is_restored_after_a_nested_region(void **state)
{
    (void)state;
    mti_block *a = mti_pool_alloc(mtt_pool, 4096, MT_INPUT);
    mtt_put(a);
    mt_mem_stats outer = mtt_pool_stats();
    mti_pool_reset_peak(mtt_pool);
    mti_block *b = mtt_get(1024);
    mtt_put(b);
    expect(allocated.peak, 1024);
    mti_pool_restore_outer_peak(mtt_pool, &outer);
    expect(allocated.peak, 4096);
    expect(requested.peak, 4096);
    expect(at_peak[MT_INPUT], 4096);
    expect(at_peak[MT_ACTIVATION], 0);
    /* A lower outer peak changes nothing. */
    outer = mtt_pool_stats();
    mti_block *c = mtt_get(8192);
    mti_pool_restore_outer_peak(mtt_pool, &outer);
    expect(allocated.peak, 8192);
    expect(at_peak[MT_ACTIVATION], 8192);
    /* Of two equal peaks, the outer one is kept, because it came first. */
    outer = mtt_pool_stats();
    mtt_put(c);
    mti_pool_reset_peak(mtt_pool);
    mtt_put(mti_pool_alloc(mtt_pool, 8192, MT_GRADIENT));
    mti_pool_restore_outer_peak(mtt_pool, &outer);
    expect(allocated.peak, 8192);
    expect(at_peak[MT_ACTIVATION], 8192);
    expect(at_peak[MT_GRADIENT], 0);
}

static void every_category_has_a_name(void **state)
{
    (void)state;
    for (int a = 0; a < MT_CATEGORY_COUNT; a++)
        for (int b = 0; b < a; b++)
            assert_string_not_equal(mt_category_name((mt_category)a),
                                    mt_category_name((mt_category)b));
    assert_string_equal(mt_category_name(MT_PARAMETER), "parameter");
    assert_string_equal(mt_category_name(MT_RNG_STATE), "rng_state");
    assert_string_equal(mt_category_name(MT_CATEGORY_COUNT), "unknown");
}

/* ---- events and visits ---- */

typedef struct seen {
    int n;
    mt_mem_event event[8];
} seen;

static void record(void *user, const mt_mem_event *event)
{
    seen *s = user;
    assert_in_range(s->n, 0, 7);
    s->event[s->n++] = *event;
}

static void observers_get_every_change_and_where_it_happened(void **state)
{
    (void)state;
    seen a = {0}, b = {0};
    mti_where *where = mti_where_now(), was = *where;
    int id_a = mti_pool_add_observer(mtt_pool, record, &a),
        id_b = mti_pool_add_observer(mtt_pool, record, &b);
    assert_true(id_a > 0 && id_b > 0 && id_a != id_b);
    *where = (mti_where){"gelu", "gpt.h.3.mlp.act", "forward"};
    mtt_put(mtt_get(1)); /* so that there is a segment */
    a.n = b.n = 0;
    mti_block *x = mti_pool_alloc(mtt_pool, 1000, MT_TEMPORARY);
    uint64_t serial = x->serial;
    mti_pool_recategorise(mtt_pool, x, MT_ACTIVATION);
    mti_pool_recategorise(mtt_pool, x, MT_ACTIVATION); /* no change, no event */
    mti_pool_remove_observer(mtt_pool, id_b);
    where->phase = "backward";
    mtt_put(x);
    mtt_put(mtt_get(0)); /* no bytes, no event */
    *where = was;
    assert_int_equal(a.n, 3);
    assert_int_equal(b.n, 2);
    static const mt_mem_event_kind kinds[] = {MT_MEM_ALLOC, MT_MEM_RECATEGORY, MT_MEM_FREE};
    static const mt_category category[] = {MT_TEMPORARY, MT_ACTIVATION, MT_ACTIVATION};
    static const mt_category before[] = {MT_TEMPORARY, MT_TEMPORARY, MT_ACTIVATION};
    for (int i = 0; i < 3; i++) {
        const mt_mem_event *e = &a.event[i];
        assert_int_equal(e->kind, kinds[i]);
        assert_int_equal(e->serial, serial);
        assert_int_equal(e->requested, 1000);
        assert_int_equal(e->allocated, 1024);
        assert_int_equal(e->category, category[i]);
        assert_int_equal(e->was, before[i]);
        assert_string_equal(e->op, "gelu");
        assert_string_equal(e->module, "gpt.h.3.mlp.act");
        assert_string_equal(e->phase, i < 2 ? "forward" : "backward");
        assert_int_equal(e->current, i < 2 ? 1024 : 0);
    }
    mti_pool_remove_observer(mtt_pool, id_a);
    mti_pool_remove_observer(mtt_pool, 12345);
}

/* ---- places ---- */

#define N_SEEN 4096

/* What the events say is there: live blocks and segments. */
typedef struct map {
    mt_mem_event block[N_SEEN], segment[N_SEEN];
    size_t n_blocks, n_segments;
    mt_mem_event last;
} map;

static void drop(mt_mem_event *of, size_t *n, uint64_t place)
{
    size_t i = 0;
    while (i < *n && of[i].place != place) i++;
    assert_in_range(i, 0, *n - 1);
    of[i] = of[--*n];
}

static void follow(void *user, const mt_mem_event *e)
{
    map *m = user;
    m->last = *e;
    assert_true(m->n_blocks < N_SEEN && m->n_segments < N_SEEN);
    if (e->kind == MT_MEM_ALLOC) m->block[m->n_blocks++] = *e;
    if (e->kind == MT_MEM_FREE) drop(m->block, &m->n_blocks, e->place);
    if (e->kind == MT_MEM_SEGMENT_ALLOC) m->segment[m->n_segments++] = *e;
    if (e->kind == MT_MEM_SEGMENT_FREE) drop(m->segment, &m->n_segments, e->place);
}

static bool inside(const mt_mem_event *block, const mt_mem_event *segment)
{
    return block->place >= segment->place &&
           block->place + block->allocated <= segment->place + segment->allocated;
}

static void assert_map_agrees(const map *m)
{
    size_t requested = 0, allocated = 0, reserved = 0;
    mt_mem_stats s = mtt_pool_stats();
    for (size_t i = 0; i < m->n_segments; i++) reserved += m->segment[i].allocated;
    for (size_t i = 0; i < m->n_blocks; i++) {
        const mt_mem_event *b = &m->block[i];
        size_t home = 0;
        requested += b->requested, allocated += b->allocated;
        while (home < m->n_segments && !inside(b, &m->segment[home])) home++;
        assert_true(home < m->n_segments);
        for (size_t k = 0; k < i; k++)
            assert_true(m->block[k].place + m->block[k].allocated <= b->place ||
                        b->place + b->allocated <= m->block[k].place);
    }
    assert_int_equal(requested, s.requested.current);
    assert_int_equal(allocated, s.allocated.current);
    assert_int_equal(reserved, s.reserved.current);
    assert_int_equal(m->n_segments, s.segments.current);
    assert_int_equal(m->last.current, s.allocated.current);
    assert_int_equal(m->last.reserved, s.reserved.current);
}

static void events_tell_where_blocks_and_segments_lie(void **state)
{
    (void)state;
    static map m;
    mti_block *live[64] = {0};
    m = (map){0};
    int id = mti_pool_add_observer(mtt_pool, follow, &m);
    srand(7);
    for (int i = 0; i < 2000; i++) {
        mti_block **at = &live[rand() % 64];
        if (*at)
            mtt_put(*at), *at = NULL;
        else
            *at = mtt_get((size_t)1 << rand() % 25);
        if (i % 50 == 0) assert_map_agrees(&m);
        if (i % 400 == 399) mti_pool_empty_cache(mtt_pool);
    }
    assert_map_agrees(&m);
    for (int i = 0; i < 64; i++)
        if (live[i]) mtt_put(live[i]);
    mti_pool_empty_cache(mtt_pool);
    assert_int_equal(m.n_blocks + m.n_segments, 0);
    mti_pool_remove_observer(mtt_pool, id);
}

static void a_refusal_tells_how_much_room_was_left(void **state)
{
    (void)state;
    static map m;
    m = (map){0};
    mti_pool_set_capacity(mtt_pool, 5 << 20);
    int id = mti_pool_add_observer(mtt_pool, follow, &m);
    mti_block *b = mtt_get(1000);
    assert_null(mtt_get(4 << 20));
    assert_int_equal(m.last.kind, MT_MEM_OOM);
    assert_int_equal(m.last.requested, 4 << 20);
    assert_int_equal(m.last.room, 3 << 20);
    assert_int_equal(m.last.reserved, 2 << 20);
    mt_clear_error();
    mtt_put(b);
    mti_pool_remove_observer(mtt_pool, id);
    mti_pool_set_capacity(mtt_pool, 0);
}

static uint64_t place_of(const mti_block *block) { return ((const mti_cell *)block)->place; }

static void in_order_of_places(void *user, const mti_block *block)
{
    const mti_block **last = user;
    if (*last) assert_true(place_of(block) > place_of(*last));
    *last = block;
}

typedef struct tally {
    const char *end; /* of the previous stretch */
    const void *base;
    size_t live, idle, reserved, n_large;
} tally;

static void add_up(void *user, const mti_segment_info *segment, const void *ptr, size_t size,
                   size_t requested, bool live)
{
    tally *t = user;
    if (segment->base != t->base) {
        assert_ptr_equal(ptr, segment->base);
        t->base = segment->base;
        t->reserved += segment->size;
        t->n_large += segment->large;
    } else {
        assert_ptr_equal(ptr, t->end);
    }
    t->end = (const char *)ptr + size;
    assert_true(live ? requested > 0 && requested <= size : requested == 0);
    *(live ? &t->live : &t->idle) += size;
}

/* Each segment lies below the one before it, as with mmap. If the list moved all others up for
 * each, this would take minutes, and the test would time out. */
static void *lower_alloc(mti_ctx *ctx, size_t n_bytes) { return (void *)(ctx->down -= n_bytes); }

static void lower_free(mti_ctx *ctx, void *p, size_t n_bytes) { (void)ctx, (void)p, (void)n_bytes; }

static void very_many_segments_at_falling_addresses_take_linear_time(void **state)
{
    (void)state;
    static const mti_backend lower = {.kind = "lower", .alloc = lower_alloc, .free = lower_free};
    static mti_ctx ctx;
    ctx.down = (uintptr_t)1 << 46;
    mti_pool *many = mti_pool_new(&lower, &ctx);
    for (size_t i = 0; i < 600000; i++)
        assert_non_null(mti_pool_alloc(many, 20 * MIB, MT_ACTIVATION));
    const mti_block *last = NULL;
    mti_pool_visit(many, in_order_of_places, &last);
    assert_non_null(last);
    assert_true(mti_pool_check(many));
    mti_pool_free_all(many);
}

static void visits_go_through_everything_in_order_of_places(void **state)
{
    (void)state;
    mti_block *b[40];
    for (size_t i = 0; i < 40; i++) b[i] = mtt_get((i % 7 + 1) * 300 * KIB);
    for (size_t i = 0; i < 40; i += 3) mtt_put(b[i]);
    const mti_block *last = NULL;
    mti_pool_visit(mtt_pool, in_order_of_places, &last);
    assert_non_null(last);
    tally t = {0};
    mti_pool_visit_all(mtt_pool, add_up, &t);
    mt_mem_stats s = mtt_pool_stats();
    assert_int_equal(t.live, s.allocated.current);
    assert_int_equal(t.reserved, s.reserved.current);
    assert_int_equal(t.live + t.idle, t.reserved);
    assert_in_range(t.n_large, 1, s.segments.current - 1);
    for (size_t i = 0; i < 40; i++)
        if (i % 3) mtt_put(b[i]);
}

/* ---- the check ---- */

static void a_planted_miscount_is_found_and_reported(void **state)
{
    (void)state;
    mti_block *a = mtt_get(1000), *b = mtt_get(3 * MIB);
    const struct {
        size_t *figure;
        const char *name;
    } faults[] = {
        {&mtt_pool->stats.requested.current, "requested"},
        {&mtt_pool->stats.allocated.current, "allocated"},
        {&mtt_pool->stats.reserved.current, "reserved"},
        {&mtt_pool->stats.inactive_split.current, "inactive split"},
        {&mtt_pool->stats.blocks.current, "blocks"},
        {&mtt_pool->stats.segments.current, "segments"},
        {&mtt_pool->stats.allocated.total_out, "allocated"},
        {&mtt_pool->stats.by_category[MT_OUTPUT], "output"},
        {&mtt_pool->default_stream.fit.n, "free blocks"},
        {&mtt_pool->default_stream.fit.n_bytes, "free bytes"},
    };
    assert_true(mti_pool_check(mtt_pool));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        *faults[i].figure += 1;
        assert_false(mti_pool_check(mtt_pool));
        assert_int_equal(mt_last_status(), MT_ERR_INTERNAL);
        assert_non_null(strstr(mt_last_error(), faults[i].name));
        mt_clear_error();
        *faults[i].figure -= 1;
    }
    assert_true(mti_pool_check(mtt_pool));
    mtt_put(a), mtt_put(b);
}

static void a_damaged_segment_is_found(void **state)
{
    (void)state;
    mti_block *a = mtt_get(1000), *b = mtt_get(1000), *c = mtt_get(3 * MIB);
    mti_cell *small_rest = ((mti_cell *)b)->right, *large_rest = ((mti_cell *)c)->right;
    for (int fault = 0; fault < 6; fault++) {
        uint64_t words = mtt_pool->default_stream.fit.words;
        mti_cell was = *small_rest, was_a = *(mti_cell *)a,
                 *root = mtt_pool->default_stream.fit.root[1];
        if (fault == 0) small_rest->left = NULL;
        if (fault == 1) a->size += 512;
        if (fault == 2) ((mti_cell *)a)->live = false;
        if (fault == 3) mtt_pool->default_stream.fit.words = 0;
        if (fault == 4) mtt_pool->default_stream.fit.root[1] = NULL;
        if (fault == 5) a->requested = 1025;
        assert_false(mti_pool_check(mtt_pool));
        assert_int_equal(mt_last_status(), MT_ERR_INTERNAL);
        mt_clear_error();
        *small_rest = was, *(mti_cell *)a = was_a;
        mtt_pool->default_stream.fit.words = words, mtt_pool->default_stream.fit.root[1] = root;
        assert_true(mti_pool_check(mtt_pool));
    }
    assert_ptr_equal(mtt_pool->default_stream.fit.root[1], large_rest);
    mtt_put(a), mtt_put(b), mtt_put(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_POOL(the_peak_keeps_its_bytes_by_category),
        WITH_POOL(a_reset_peak_starts_at_the_current_bytes),
        WITH_POOL(an_outer_peak_is_restored_after_a_nested_region),
        WITH_POOL(every_category_has_a_name),
        WITH_POOL(observers_get_every_change_and_where_it_happened),
        WITH_POOL(events_tell_where_blocks_and_segments_lie),
        WITH_POOL(a_refusal_tells_how_much_room_was_left),
        WITH_POOL(visits_go_through_everything_in_order_of_places),
        cmocka_unit_test(very_many_segments_at_falling_addresses_take_linear_time),
        WITH_POOL(a_planted_miscount_is_found_and_reported),
        WITH_POOL(a_damaged_segment_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
