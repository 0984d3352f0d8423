/* Expandable segments, by cases worked out by hand from PyTorch's rules (range.h), as far as
 * PyTorch's own source goes: no GPU is needed to tell what it would reserve. */
#include "memtrack/range.h"
#include "pooled.h"

/* A segment's beginning; its pool's first block lies there. */
static char *base_of(const mti_block *first) { return first->ptr; }
static size_t offset(const mti_block *b, const char *base)
{
    return (size_t)((char *)b->ptr - base);
}

static void expand(size_t granule)
{
    assert_true(mti_pool_set_expandable(mtt_pool, &(mt_expandable){.granule = granule}));
}

static int open_expandable(void **state)
{
    if (mtt_open_pool(state)) return -1;
    expand(0);
    return 0;
}

static void small_requests_map_2_mib_and_large_ones_20_mib(void **state)
{
    (void)state;
    mti_block *a = mtt_get(1), *b = mtt_get(1 * MIB), *c = mtt_get(1 * MIB + 1);
    expect(reserved.current, 22 * MIB);
    expect(allocated.current, 512 + 1 * MIB + 1 * MIB + 512);
    expect(segments.current, 0); /* PyTorch counts none of them */
    mti_block *d = mtt_get(1 * MIB - 512);
    expect(reserved.current, 22 * MIB); /* that was the rest of the granule, to the byte */
    mti_block *e = mtt_get(512);
    expect(reserved.current, 24 * MIB);
    assert_int_equal(offset(e, base_of(a)), 2 * MIB); /* right behind: one segment */
    mti_block *f = mtt_get(45 * MIB);
    expect(reserved.current, 64 * MIB); /* 1 + 45 MiB need three granules of 20 */
    assert_int_equal(offset(f, base_of(c)), 1 * MIB + 512);
    assert_int_equal(mtt_fake.n_ranges, 2);
    for (int i = 0; i < 6; i++) mtt_put((mti_block *[]){a, b, c, d, e, f}[i]);
    expect(reserved.current, 64 * MIB);
    mti_pool_empty_cache(mtt_pool);
    expect(reserved.current, 0);
    assert_int_equal(mtt_fake.n_ranges, 0);
}

static void a_free_block_at_the_end_grows_by_what_is_missing(void **state)
{
    (void)state;
    mti_block *a = mtt_get(4 * MIB), *b = mtt_get(15 * MIB);
    expect(reserved.current, 20 * MIB);
    mtt_put(b); /* 16 MiB are free at the end */
    mti_block *c = mtt_get(36 * MIB);
    expect(reserved.current, 40 * MIB);
    assert_int_equal(offset(c, base_of(a)), 4 * MIB);
    mtt_put(a), mtt_put(c);
}

static void large_blocks_are_split_wherever_512_bytes_are_left(void **state)
{
    (void)state;
    mti_block *a = mtt_get(20 * MIB - 512);
    expect(active.current, 20 * MIB - 512); /* other segments would keep the rest with the block */
    expect(inactive_split.current, 0);
    mti_block *b = mtt_get(2 * MIB);
    expect(reserved.current, 40 * MIB); /* the rest of 512 bytes is joined with the next granule */
    assert_int_equal(offset(b, base_of(a)), 20 * MIB - 512);
    mtt_put(a), mtt_put(b);
}

static void a_block_that_can_grow_counts_as_large_as_it_could_become(void **state)
{
    (void)state;
    mti_block *a = mtt_get(12 * MIB), *b = mtt_get(1 * MIB + 512);
    mti_block *c = mtt_get(20 * MIB - 512);
    expect(reserved.current, 40 * MIB); /* 7 MiB are free at the end */
    mtt_put(a);                         /* 12 MiB are free at the beginning */
    mti_block *d = mtt_get(6 * MIB);
    assert_int_equal(offset(d, (char *)b->ptr - 12 * MIB), 0); /* not in the 7 MiB at the end */
    mtt_put(b), mtt_put(c), mtt_put(d);
}

static void emptying_the_cache_gives_back_whole_free_granules_and_keeps_the_rest(void **state)
{
    (void)state;
    mti_block *a = mtt_get(10 * MIB), *b = mtt_get(50 * MIB), *c = mtt_get(10 * MIB);
    const char *base = base_of(a);
    expect(reserved.current, 80 * MIB);
    mtt_put(b); /* 10 to 60 MiB; its whole granules are those from 20 to 60 */
    mti_pool_empty_cache(mtt_pool);
    expect(reserved.current, 40 * MIB);
    assert_true(mti_pool_check(mtt_pool));
    assert_int_equal(mtt_fake.n_granules, 2);
    /* 10 MiB before the gap and 15 of it: the lowest place with room */
    mti_block *d = mtt_get(25 * MIB);
    assert_int_equal(offset(d, base), 10 * MIB);
    expect(reserved.current, 60 * MIB);
    /* Between the gap's end and c nothing is free, so 30 MiB go behind c. */
    mti_block *e = mtt_get(30 * MIB);
    assert_int_equal(offset(e, base), 70 * MIB);
    expect(reserved.current, 80 * MIB);
    for (int i = 0; i < 4; i++) mtt_put((mti_block *[]){a, c, d, e}[i]);
}

static void a_gap_between_free_blocks_is_bridged(void **state)
{
    (void)state;
    mti_block *a = mtt_get(10 * MIB), *b = mtt_get(50 * MIB), *c = mtt_get(15 * MIB);
    mti_block *d = mtt_get(5 * MIB);
    mtt_put(b);
    mti_pool_empty_cache(mtt_pool); /* 10 MiB free, 40 without memory, then c and d */
    mtt_put(c);                     /* and 15 free */
    mti_block *e = mtt_get(60 * MIB);
    assert_int_equal(offset(e, base_of(a)), 10 * MIB);
    expect(reserved.current, 80 * MIB);
    mtt_put(a), mtt_put(d), mtt_put(e);
}

static void refused_memory_is_tried_again_with_all_free_granules_given_back(void **state)
{
    (void)state;
    mtt_fake.capacity = 104 * MIB; /* 117 MiB of addresses: six granules */
    mti_block *a = mtt_get(40 * MIB), *b = mtt_get(40 * MIB), *s = mtt_get(600 * KIB);
    expect(reserved.current, 82 * MIB);
    mtt_put(a);
    /* 40 MiB of addresses are left behind b, as many as before it: a second segment. Its 60 MiB
     * are refused until the 40 before b are back. */
    mti_block *c = mtt_get(50 * MIB);
    assert_int_equal(mtt_fake.n_ranges, 3);
    expect(reserved.current, 102 * MIB);
    expect(alloc_retries, 1);
    expect(ooms, 0);
    assert_null(mtt_get(60 * MIB));
    expect(ooms, 1);
    mti_block *d = mtt_get(10 * MIB); /* behind c */
    expect(reserved.current, 102 * MIB);
    mtt_put(b), mtt_put(c), mtt_put(d), mtt_put(s);
}

static void a_capacity_bounds_what_is_mapped(void **state)
{
    (void)state;
    mti_pool_set_capacity(mtt_pool, 40 * MIB);
    mti_block *a = mtt_get(21 * MIB);
    expect(reserved.current, 40 * MIB);
    assert_null(mtt_get(20 * MIB));
    mti_block *b = mtt_get(19 * MIB);
    expect(reserved.current, 40 * MIB);
    assert_null(mtt_get(512)); /* the small pool has no granule yet */
    mtt_put(a), mtt_put(b);
}

static void a_segment_without_room_is_followed_by_another(void **state)
{
    (void)state;
    mti_pool_set_capacity(mtt_pool, 80 * MIB); /* 90 MiB of addresses: five granules */
    mti_block *a = mtt_get(20 * MIB), *b = mtt_get(20 * MIB), *c = mtt_get(20 * MIB),
              *d = mtt_get(20 * MIB);
    mtt_put(b);
    mtt_put(d);
    mti_pool_empty_cache(mtt_pool);
    assert_int_equal(mtt_fake.n_ranges, 1);
    mti_block *e = mtt_get(40 * MIB); /* 20 in the middle, 40 at the end */
    assert_int_equal(offset(e, base_of(a)), 60 * MIB);
    mti_pool_set_capacity(mtt_pool, 0);
    mtt_put(c), mtt_put(e);
    mti_block *f = mtt_get(61 * MIB); /* 60 are free from 40 MiB on, and 20 before have no memory */
    assert_int_equal(offset(f, base_of(a)), 20 * MIB);
    expect(reserved.current, 100 * MIB);
    assert_int_equal(mtt_fake.n_ranges, 1);
    mti_block *g = mtt_get(20 * MIB); /* 19 are left in the first */
    assert_int_equal(mtt_fake.n_ranges, 2);
    mtt_put(a), mtt_put(f), mtt_put(g);
}

static void granules_of_a_page_leave_less_than_a_page_unused(void **state)
{
    (void)state;
    assert_true(mti_pool_set_expandable(mtt_pool, NULL));
    expand(4096);
    mti_block *a = mtt_get(1), *b = mtt_get(3 * MIB + 1);
    expect(reserved.current, 4096 + 3 * MIB + 4096);
    mtt_put(a), mtt_put(b);
    mti_pool_empty_cache(mtt_pool);
    expect(reserved.current, 0);
}

static void small_blocks_beyond_2_mib_in_one_piece_are_found(void **state)
{
    (void)state;
    mti_block *b[12];
    for (int i = 0; i < 12; i++) b[i] = mtt_get(1 * MIB);
    expect(reserved.current, 12 * MIB);
    for (int i = 1; i < 11; i++) mtt_put(b[i]);
    assert_true(mti_pool_check(mtt_pool));
    mti_block *c = mtt_get(512);
    assert_int_equal(offset(c, base_of(b[0])), 1 * MIB);
    expect(reserved.current, 12 * MIB);
    mtt_put(b[0]), mtt_put(b[11]), mtt_put(c);
}

typedef struct mapped {
    size_t n_map, n_unmap, bytes;
} mapped;

static void note(void *user, const mt_mem_event *e)
{
    mapped *m = user;
    assert_int_not_equal(e->kind, MT_MEM_SEGMENT_ALLOC);
    assert_int_not_equal(e->kind, MT_MEM_SEGMENT_FREE);
    if (e->kind == MT_MEM_SEGMENT_MAP) m->n_map++, m->bytes += e->allocated;
    if (e->kind == MT_MEM_SEGMENT_UNMAP) m->n_unmap++, m->bytes -= e->allocated;
    assert_int_equal(e->reserved, m->bytes);
}

static void observers_hear_of_granules_that_come_and_go(void **state)
{
    (void)state;
    mapped m = {0};
    int id = mti_pool_add_observer(mtt_pool, note, &m);
    mti_block *a = mtt_get(30 * MIB), *b = mtt_get(1), *c = mtt_get(30 * MIB);
    assert_int_equal(m.n_map, 3);
    mtt_put(a);
    mti_pool_empty_cache(mtt_pool);
    assert_int_equal(m.n_unmap, 1);
    assert_int_equal(m.bytes, 42 * MIB);
    mtt_put(b), mtt_put(c);
    mti_pool_remove_observer(mtt_pool, id);
}

static void it_is_set_before_the_first_memory_and_only_where_memory_comes_in_granules(void **state)
{
    (void)state;
    const mt_expandable odd = {.granule = 6000};
    assert_false(mti_pool_set_expandable(mtt_pool, &odd));
    assert_int_equal(mt_last_status(), MT_ERR_ARGUMENT);
    assert_non_null(strstr(mt_last_error(), "6000"));
    mti_block *b = mtt_get(1);
    assert_true(mti_pool_set_expandable(mtt_pool, NULL)); /* as it is already */
    assert_false(mti_pool_set_expandable(mtt_pool, &(mt_expandable){0}));
    assert_int_equal(mt_last_status(), MT_ERR_STATE);
    mtt_put(b);
    mti_backend whole = mtt_fake_backend;
    whole.ranges = NULL;
    mti_pool *pool = mti_pool_new(&whole, &mtt_fake);
    assert_false(mti_pool_set_expandable(pool, &(mt_expandable){0}));
    assert_int_equal(mt_last_status(), MT_ERR_UNSUPPORTED);
    assert_true(mti_pool_set_expandable(pool, NULL));
    mti_pool_free_all(pool);
}

static void reclaimed_granules_serve_elsewhere(void **state)
{
    (void)state;
    const mt_expandable how = {.granule = 1 * MIB, .reclaim = true};
    assert_true(mti_pool_set_expandable(mtt_pool, &how));
    mti_block *b[8];
    for (int i = 0; i < 8; i++) b[i] = mtt_get(4 * MIB);
    expect(reserved.current, 32 * MIB);
    mtt_put(b[0]), mtt_put(b[2]), mtt_put(b[4]); /* 12 MiB are free, in three pieces */
    mti_block *c = mtt_get(10 * MIB);
    assert_int_equal(offset(c, (char *)b[1]->ptr - 4 * MIB), 32 * MIB);
    expect(reserved.current, 32 * MIB); /* where 42 MiB would be without */
    expect(reserved.peak, 32 * MIB);
    expect(alloc_retries, 0);
    mti_block *d = mtt_get(3 * MIB); /* 2 MiB are free, so 1 more is asked for */
    expect(reserved.current, 33 * MIB);
    mti_block *s = mtt_get(1);
    expect(reserved.current, 34 * MIB);
    int kept[] = {1, 3, 5, 6, 7};
    for (int i = 0; i < 5; i++) mtt_put(b[kept[i]]);
    mtt_put(c), mtt_put(d), mtt_put(s);
}

/* One part of a segment without gaps is one segment to a visitor, as in PyTorch's snapshots. */
static void count_parts(void *user, const mti_segment_info *segment, const void *ptr, size_t size,
                        size_t requested, bool live)
{
    (void)size, (void)requested, (void)live;
    size_t *parts = user;
    assert_true(segment->expandable && segment->large);
    if (ptr == segment->base) parts[1 + parts[0]++] = segment->size;
}

static void a_visitor_sees_each_part_that_has_memory(void **state)
{
    (void)state;
    size_t parts[8] = {0};
    mti_block *a = mtt_get(10 * MIB), *b = mtt_get(50 * MIB), *c = mtt_get(30 * MIB);
    mtt_put(b);
    mti_pool_empty_cache(mtt_pool);
    mti_pool_visit_all(mtt_pool, count_parts, parts);
    assert_int_equal(parts[0], 2);
    assert_int_equal(parts[1], 20 * MIB);
    assert_int_equal(parts[2], 40 * MIB);
    mtt_put(a), mtt_put(c);
}

static void count_block(void *user, const mti_block *block)
{
    (void)block;
    ++*(int *)user;
}

static void note_what_goes_back(void *user, const mt_mem_event *e)
{
    size_t *n_bytes = user;
    if (e->kind == MT_MEM_SEGMENT_UNMAP) n_bytes[e->large] += e->allocated;
}

/* What goes back first lies at the lowest place, wherever the system put the segments (mmap puts
 * the second one below the first), and whether or not somebody has looked. */
static void a_visit_does_not_change_what_goes_back(void **state)
{
    (void)state;
    const mt_expandable how = {.granule = 1 * MIB, .reclaim = true};
    assert_true(mti_pool_set_expandable(mtt_pool, &how));
    mti_block *small[4], *large[2];
    for (int i = 0; i < 4; i++) small[i] = mtt_get(1 * MIB);
    mtt_fake.up -= (uintptr_t)1 << 45;
    for (int i = 0; i < 2; i++) large[i] = mtt_get(4 * MIB);
    assert_true((uintptr_t)large[0]->ptr < (uintptr_t)small[0]->ptr);
    for (int i = 0; i < 4; i++) mtt_put(small[i]);
    mtt_put(large[0]);
    int n_blocks = 0;
    mti_pool_visit(mtt_pool, count_block, &n_blocks);
    assert_int_equal(n_blocks, 1);
    size_t gone[2] = {0}; /* of small and of large segments */
    int id = mti_pool_add_observer(mtt_pool, note_what_goes_back, gone);
    large[0] = mtt_get(5 * MIB);
    mti_pool_remove_observer(mtt_pool, id);
    assert_int_equal(gone[0], 4 * MIB);
    assert_int_equal(gone[1], 1 * MIB);
    mtt_put(large[0]), mtt_put(large[1]);
}

static void damaged_books_of_granules_are_found(void **state)
{
    (void)state;
    mti_block *a = mtt_get(30 * MIB);
    mti_cell *rest = ((mti_cell *)a)->right, *none = rest->right;
    for (int fault = 0; fault < 4; fault++) {
        mti_cell was = *rest, was_a = *(mti_cell *)a, *list = mtt_pool->default_stream.unmapped[1];
        assert_true(rest->mapped && !none->mapped);
        if (fault == 0) mtt_pool->default_stream.unmapped[1] = NULL;
        if (fault == 1) rest->mapped = false;
        if (fault == 2) none->mapped = true;
        if (fault == 3) ((mti_cell *)a)->mapped = false;
        assert_false(mti_pool_check(mtt_pool));
        assert_int_equal(mt_last_status(), MT_ERR_INTERNAL);
        mt_clear_error();
        *rest = was, *(mti_cell *)a = was_a, none->mapped = false;
        mtt_pool->default_stream.unmapped[1] = list;
        assert_true(mti_pool_check(mtt_pool));
    }
    mtt_put(a);
}

/* Three hundred requests, some blocks freed and the cache emptied in between; how many failed. */
static size_t run_short_of_memory(void)
{
    mti_block *b[300] = {0};
    size_t refused = 0;
    for (int i = 0; i < 300; i++) {
        b[i] = mtt_get((size_t)(i % 7 + 1) * 20 * KIB + (i % 50 == 0 ? 2 * MIB : 0));
        if (!b[i]) refused++, mt_clear_error();
        if (i % 3 == 0 && b[i]) mtt_put(b[i]), b[i] = NULL;
        if (i % 90 == 0) mti_pool_empty_cache(mtt_pool);
        if (i % 30 == 0) assert_true(mti_pool_check(mtt_pool));
        assert_int_equal(mt_last_status(), MT_OK);
    }
    for (int i = 0; i < 300; i++)
        if (b[i]) mtt_put(b[i]);
    return refused;
}

static void whichever_request_is_refused_the_books_balance(void **state)
{
    (void)state;
    size_t refused = 0, most = 0;
    for (uint64_t n = 1, requests = 1; n <= requests; n++) {
        expand(64 * KIB);
        mtt_fake.capacity = 64 * MIB;
        mti_fail_nth_alloc(n);
        size_t r = run_short_of_memory();
        requests = mti_alloc_count();
        mti_fail_nth_alloc(0);
        refused += r, most = r > most ? r : most;
        assert_true(mti_pool_check(mtt_pool));
        mti_pool_empty_cache(mtt_pool);
        expect(reserved.current, 0);
        assert_int_equal(mtt_close_pool(NULL), 0);
        mtt_open_pool(NULL);
    }
    assert_true(refused >= 300); /* each of the 300 once, and those of maps are tried again */
    assert_true(most < 10);
}

#define WITH_RANGES(test) cmocka_unit_test_setup_teardown(test, open_expandable, mtt_close_pool)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_RANGES(small_requests_map_2_mib_and_large_ones_20_mib),
        WITH_RANGES(a_free_block_at_the_end_grows_by_what_is_missing),
        WITH_RANGES(large_blocks_are_split_wherever_512_bytes_are_left),
        WITH_RANGES(a_block_that_can_grow_counts_as_large_as_it_could_become),
        WITH_RANGES(emptying_the_cache_gives_back_whole_free_granules_and_keeps_the_rest),
        WITH_RANGES(a_gap_between_free_blocks_is_bridged),
        WITH_RANGES(refused_memory_is_tried_again_with_all_free_granules_given_back),
        WITH_RANGES(a_capacity_bounds_what_is_mapped),
        WITH_RANGES(a_segment_without_room_is_followed_by_another),
        WITH_RANGES(granules_of_a_page_leave_less_than_a_page_unused),
        WITH_RANGES(small_blocks_beyond_2_mib_in_one_piece_are_found),
        WITH_RANGES(observers_hear_of_granules_that_come_and_go),
        WITH_POOL(it_is_set_before_the_first_memory_and_only_where_memory_comes_in_granules),
        WITH_POOL(reclaimed_granules_serve_elsewhere),
        WITH_RANGES(a_visitor_sees_each_part_that_has_memory),
        WITH_POOL(a_visit_does_not_change_what_goes_back),
        WITH_RANGES(damaged_books_of_granules_are_found),
        WITH_RANGES(whichever_request_is_refused_the_books_balance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
