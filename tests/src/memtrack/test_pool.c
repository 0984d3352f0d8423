/* The caching allocator: what it allocates and frees. */
#include <pthread.h>
#include "pooled.h"

/* ---- the reference figures ---- */

static void a_thousand_and_24_floats_take_4096_bytes_of_a_2_mib_segment(void **state)
{
    (void)state;
    mti_block *b = mtt_get(1024 * 4);
    expect(allocated.current, 4096);
    expect(reserved.current, 2097152);
    mtt_put(b);
    expect(allocated.current, 0);
    expect(reserved.current, 2097152);
    mti_pool_empty_cache(mtt_pool);
    expect(allocated.current, 0);
    expect(reserved.current, 0);
}

static void eight_hundred_floats_take_3584_bytes(void **state)
{
    (void)state;
    mti_block *b = mtt_get(800 * 4);
    expect(requested.current, 3200);
    expect(allocated.current, 3584);
    mtt_put(b);
}

static void three_tensors_with_two_freed_give_the_figures_of_the_reference(void **state)
{
    (void)state;
    mti_block *t1 = mtt_get(1024), *t2 = mtt_get(1024);
    mtt_put(t2);
    mti_block *t3 = mtt_get(1024);
    mtt_put(t3);
    expect(allocated.total_in, 3072);
    expect(allocated.total_out, 2048);
    expect(allocated.current, 1024);
    expect(allocated.peak, 2048);
    mtt_put(t1);
}

static void a_linear_layer_takes_the_bytes_of_pytorch(void **state)
{
    (void)state;
    mti_block *w = mti_pool_alloc(mtt_pool, 256 * 250 * 4, MT_PARAMETER);
    mti_block *b = mti_pool_alloc(mtt_pool, 250 * 4, MT_PARAMETER);
    expect(allocated.current, 257024);
    mti_block *x = mti_pool_alloc(mtt_pool, 256 * 4, MT_INPUT);
    expect(allocated.current, 258048);
    mti_block *y = mti_pool_alloc(mtt_pool, 250 * 4, MT_ACTIVATION);
    expect(allocated.current, 259072);
    expect(reserved.current, 2097152);
    mti_block *workspace = mti_pool_alloc(mtt_pool, 8519680, MT_WORKSPACE);
    expect(allocated.current, 259072 + 8519680);
    expect(by_category[MT_WORKSPACE], 8519680);
    expect(reserved.current, 2097152 + 20971520);
    mtt_put(w), mtt_put(b), mtt_put(x), mtt_put(y), mtt_put(workspace);
}

/* ---- the rules ---- */

static void segments_come_in_the_sizes_of_pytorch(void **state)
{
    (void)state;
    static const struct {
        size_t n_bytes, segment, block;
    } cases[] = {
        {1, 2 * MIB, 512},
        {512, 2 * MIB, 512},
        {513, 2 * MIB, 1024},
        {1 * MIB, 2 * MIB, 1 * MIB},
        {1 * MIB + 1, 20 * MIB, 1 * MIB + 512},
        {10 * MIB - 512, 20 * MIB, 10 * MIB - 512},
        {10 * MIB - 511, 10 * MIB, 10 * MIB},
        {10 * MIB, 10 * MIB, 10 * MIB},
        {10 * MIB + 1, 12 * MIB, 10 * MIB + 512},
        {11 * MIB, 12 * MIB, 12 * MIB}, /* a remainder of 1 MiB stays with its block ... */
        {11 * MIB - 512, 12 * MIB, 11 * MIB - 512}, /* ... a larger one becomes a hole */
        {63 * MIB + 1, 64 * MIB, 64 * MIB},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mti_block *b = mtt_get(cases[i].n_bytes);
        expect(requested.current, cases[i].n_bytes);
        expect(allocated.current, cases[i].block);
        expect(active.current, cases[i].block);
        expect(reserved.current, cases[i].segment);
        assert_int_equal(mti_segment_size(cases[i].n_bytes), cases[i].segment);
        expect(inactive_split.current, cases[i].segment - cases[i].block);
        assert_true(mti_pool_check(mtt_pool));
        mtt_put(b);
        expect(inactive_split.current, 0); /* the segment is whole again */
        mti_pool_empty_cache(mtt_pool);
    }
}

static void the_smallest_fitting_hole_is_taken_and_of_equal_ones_the_lowest(void **state)
{
    (void)state;
    /* holes of 3, 2, 2, 1 KiB, in this order, each between two live blocks */
    static const size_t kib[] = {3, 2, 2, 1};
    mti_block *hole[4], *wall[4];
    void *at[4];
    for (int i = 0; i < 4; i++) hole[i] = mtt_get(kib[i] * KIB), wall[i] = mtt_get(512);
    for (int i = 0; i < 4; i++) at[i] = hole[i]->ptr;
    for (int i = 3; i >= 0; i--) mtt_put(hole[i]);
    mti_block *a = mtt_get(2 * KIB), *b = mtt_get(2 * KIB), *c = mtt_get(2 * KIB),
              *d = mtt_get(1 * KIB);
    assert_ptr_equal(a->ptr, at[1]);
    assert_ptr_equal(b->ptr, at[2]);
    assert_ptr_equal(c->ptr, at[0]); /* splits the hole of 3 KiB */
    assert_ptr_equal(d->ptr,
                     (char *)at[0] + 2 * KIB); /* its remainder lies lower than the hole of 1 KiB */
    mtt_put(a), mtt_put(b), mtt_put(c), mtt_put(d);
    for (int i = 0; i < 4; i++) mtt_put(wall[i]);
}

static void large_holes_are_also_taken_by_size_then_address(void **state)
{
    (void)state;
    mti_block *a = mtt_get(4 * MIB), *b = mtt_get(2 * MIB), *c = mtt_get(4 * MIB),
              *d = mtt_get(2 * MIB);
    void *first = a->ptr, *second = c->ptr, *small = b->ptr;
    mtt_put(c), mtt_put(a); /* holes of 4, 4 and the remaining 8 MiB */
    mti_block *x = mtt_get(3 * MIB + 1), *y = mtt_get(4 * MIB);
    assert_ptr_equal(x->ptr, first);
    assert_ptr_equal(y->ptr, second);
    mtt_put(b); /* 2 MiB between x (a remainder under 1 MiB is not split off) and y */
    mti_block *z = mtt_get(2 * MIB);
    assert_ptr_equal(z->ptr, small);
    mtt_put(x), mtt_put(y), mtt_put(z), mtt_put(d);
}

static void small_requests_never_come_from_large_segments(void **state)
{
    (void)state;
    mti_block *large = mtt_get(4 * MIB);
    mti_block *small = mtt_get(1 * MIB);
    expect(segments.current, 2);
    expect(reserved.current, 22 * MIB);
    mtt_put(large), mtt_put(small);
}

static void freed_neighbours_merge_in_any_order(void **state)
{
    (void)state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int o = 0; o < 6; o++) {
        mti_block *b[3];
        for (int i = 0; i < 3; i++) b[i] = mtt_get(600 * KIB);
        for (int i = 0; i < 3; i++) {
            mtt_put(b[orders[o][i]]);
            assert_true(mti_pool_check(mtt_pool));
        }
        expect(inactive_split.current, 0);
        expect(reserved.current, 2 * MIB); /* the same segment every time */
    }
}

static void free_bytes_next_to_live_ones_are_inactive_split(void **state)
{
    (void)state;
    mti_block *a = mtt_get(512 * KIB), *b = mtt_get(512 * KIB);
    expect(inactive_split.current, 1 * MIB);
    mtt_put(a);
    expect(inactive_split.current, 1 * MIB + 512 * KIB);
    mtt_put(b);
    expect(inactive_split.current, 0);
    expect(inactive_split.peak, 1 * MIB + 512 * KIB);
}

static void empty_cache_keeps_segments_that_are_in_use(void **state)
{
    (void)state;
    mti_block *small = mtt_get(1), *large = mtt_get(30 * MIB), *gone = mtt_get(40 * MIB);
    mtt_put(gone);
    mti_pool_empty_cache(mtt_pool);
    expect(reserved.current, 32 * MIB);
    expect(segments.current, 2);
    assert_int_equal(mtt_fake.held, 32 * MIB);
    mtt_put(small), mtt_put(large);
    mti_pool_empty_cache(mtt_pool);
    assert_int_equal(mtt_fake.held, 0);
}

static void zero_bytes_need_no_memory_and_cannot_run_out(void **state)
{
    (void)state;
    mtt_fake.capacity = 0;
    mti_block *a = mtt_get(0), *b = mtt_get(0);
    assert_null(a->ptr);
    assert_int_equal(a->size, 0);
    assert_int_not_equal(a->serial, b->serial);
    expect(blocks.current, 0);
    expect(reserved.current, 0);
    mti_pool_recategorise(mtt_pool, a, MT_OUTPUT);
    assert_true(mti_pool_check(mtt_pool));
    mtt_put(a), mtt_put(b);
    mti_pool_free(mtt_pool, NULL, 0);
}

static void a_new_block_has_no_owner_and_a_new_serial_number(void **state)
{
    (void)state;
    uint64_t last = 0;
    for (int i = 0; i < 1000; i++) {
        mti_block *b = mtt_get(1000);
        assert_true(b->serial > last);
        assert_null(b->owner);
        last = b->serial;
        b->owner = &mtt_fake;
        mtt_put(b);
    }
    assert_int_equal(last, 1000);
}

static void many_holes_of_one_size_are_filled_from_the_oldest_segment_up(void **state)
{
    (void)state;
    enum { N = 40000 };
    static mti_block *block[N];
    static const void *at[N]; /* from the bottom of each segment, the oldest first */
    for (int i = 0; i < N; i++) block[i] = mtt_get(512), at[i] = block[i]->ptr;
    /* Free a third of them in a scattered order, but no two neighbours. */
    for (int i = 0, j = 0; i < N; i++, j = (j + 17389) % N)
        if (j % 3 == 1) mtt_put(block[j]), block[j] = NULL;
    assert_true(mti_pool_check(mtt_pool));
    for (int i = 0; i < N; i++) {
        if (!block[i]) block[i] = mtt_get(512);
        assert_ptr_equal(block[i]->ptr, at[i]);
    }
    for (int i = 0; i < N; i++) mtt_put(block[i]);
}

/* ---- threads ---- */

static void *hammer(void *seed)
{
    uint64_t x = (uintptr_t)seed;
    mti_block *own[32] = {0};
    for (int i = 0; i < 20000; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        mti_block **b = &own[x >> 59];
        if (*b) {
            mtt_put(*b);
            *b = NULL;
        } else {
            *b = mtt_get((size_t)(x >> 20) % (3 * MIB) + 1);
            (*b)->owner = b;
        }
    }
    intptr_t bad = 0;
    for (int i = 0; i < 32; i++)
        if (own[i]) bad += own[i]->owner != &own[i], mtt_put(own[i]);
    return (void *)bad;
}

static void threads_share_a_pool_without_losing_a_byte(void **state)
{
    (void)state;
    pthread_t thread[4];
    for (uintptr_t t = 0; t < 4; t++)
        assert_int_equal(pthread_create(&thread[t], NULL, hammer, (void *)(t + 1)), 0);
    for (int t = 0; t < 4; t++) {
        void *bad;
        pthread_join(thread[t], &bad);
        assert_null(bad);
    }
    assert_true(mti_pool_check(mtt_pool));
    expect(allocated.current, 0);
    mti_pool_empty_cache(mtt_pool);
    assert_int_equal(mtt_fake.held, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_POOL(a_thousand_and_24_floats_take_4096_bytes_of_a_2_mib_segment),
        WITH_POOL(eight_hundred_floats_take_3584_bytes),
        WITH_POOL(three_tensors_with_two_freed_give_the_figures_of_the_reference),
        WITH_POOL(a_linear_layer_takes_the_bytes_of_pytorch),
        WITH_POOL(segments_come_in_the_sizes_of_pytorch),
        WITH_POOL(the_smallest_fitting_hole_is_taken_and_of_equal_ones_the_lowest),
        WITH_POOL(large_holes_are_also_taken_by_size_then_address),
        WITH_POOL(small_requests_never_come_from_large_segments),
        WITH_POOL(freed_neighbours_merge_in_any_order),
        WITH_POOL(free_bytes_next_to_live_ones_are_inactive_split),
        WITH_POOL(empty_cache_keeps_segments_that_are_in_use),
        WITH_POOL(zero_bytes_need_no_memory_and_cannot_run_out),
        WITH_POOL(a_new_block_has_no_owner_and_a_new_serial_number),
        WITH_POOL(many_holes_of_one_size_are_filled_from_the_oldest_segment_up),
        WITH_POOL(threads_share_a_pool_without_losing_a_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
