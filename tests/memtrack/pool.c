/* What the caching allocator gives, counts and tells. */
#include <pthread.h>
#include <stdlib.h>
#include "fake.h"
#include "memtrack/pool.h" /* the inside, to plant faults there */

static mti_ctx fake;
static mti_pool *pool;

static int open_pool(void **state)
{
    (void)state;
    mtt_fake_init(&fake, (size_t)1 << 40);
    pool = mti_pool_new(&mtt_fake_backend, &fake);
    return pool ? 0 : -1;
}

static int close_pool(void **state)
{
    (void)state;
    int bad = !mti_pool_check(pool);
    mti_pool_free_all(pool);
    mt_clear_error();
    return bad || fake.n; /* every segment went back */
}

static mt_mem_stats stats(void)
{
    mt_mem_stats s;
    mti_pool_get_stats(pool, &s);
    return s;
}

static mti_block *get(size_t n_bytes) { return mti_pool_alloc(pool, n_bytes, MT_ACTIVATION); }
static void put(mti_block *b) { mti_pool_free(pool, b, b->requested); }

#define expect(figure, value) assert_int_equal(stats().figure, value)

/* ---- the reference figures ---- */

static void a_thousand_and_24_floats_take_4096_bytes_of_a_2_mib_segment(void **state)
{
    (void)state;
    mti_block *b = get(1024 * 4);
    expect(allocated.current, 4096);
    expect(reserved.current, 2097152);
    put(b);
    expect(allocated.current, 0);
    expect(reserved.current, 2097152);
    mti_pool_empty_cache(pool);
    expect(allocated.current, 0);
    expect(reserved.current, 0);
}

static void eight_hundred_floats_take_3584_bytes(void **state)
{
    (void)state;
    mti_block *b = get(800 * 4);
    expect(requested.current, 3200);
    expect(allocated.current, 3584);
    put(b);
}

static void three_tensors_with_two_freed_give_the_figures_of_the_reference(void **state)
{
    (void)state;
    mti_block *t1 = get(1024), *t2 = get(1024);
    put(t2);
    mti_block *t3 = get(1024);
    put(t3);
    expect(allocated.total_in, 3072);
    expect(allocated.total_out, 2048);
    expect(allocated.current, 1024);
    expect(allocated.peak, 2048);
    put(t1);
}

static void a_linear_layer_takes_what_it_takes_in_pytorch(void **state)
{
    (void)state;
    mti_block *w = mti_pool_alloc(pool, 256 * 250 * 4, MT_PARAMETER);
    mti_block *b = mti_pool_alloc(pool, 250 * 4, MT_PARAMETER);
    expect(allocated.current, 257024);
    mti_block *x = mti_pool_alloc(pool, 256 * 4, MT_INPUT);
    expect(allocated.current, 258048);
    mti_block *y = mti_pool_alloc(pool, 250 * 4, MT_ACTIVATION);
    expect(allocated.current, 259072);
    expect(reserved.current, 2097152);
    mti_block *workspace = mti_pool_alloc(pool, 8519680, MT_WORKSPACE);
    expect(allocated.current, 259072 + 8519680);
    expect(by_category[MT_WORKSPACE], 8519680);
    expect(reserved.current, 2097152 + 20971520);
    put(w), put(b), put(x), put(y), put(workspace);
}

/* ---- the rules ---- */

static void segments_come_in_the_sizes_of_pytorch(void **state)
{
    (void)state;
    static const struct {
        size_t n_bytes, segment, active;
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
        {11 * MIB, 12 * MIB, 12 * MIB},             /* a rest of 1 MiB stays with its block ... */
        {11 * MIB - 512, 12 * MIB, 11 * MIB - 512}, /* ... more than that does not */
        {63 * MIB + 1, 64 * MIB, 64 * MIB},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mti_block *b = get(cases[i].n_bytes);
        expect(requested.current, cases[i].n_bytes);
        expect(allocated.current, (cases[i].n_bytes + 511) / 512 * 512);
        expect(active.current, cases[i].active);
        expect(reserved.current, cases[i].segment);
        expect(inactive_split.current, cases[i].segment - cases[i].active);
        assert_true(mti_pool_check(pool));
        put(b);
        expect(inactive_split.current, 0); /* the segment is whole again */
        mti_pool_empty_cache(pool);
    }
}

static void the_smallest_hole_that_fits_is_taken_and_of_equals_the_lowest(void **state)
{
    (void)state;
    /* holes of 3, 2, 2, 1 KiB, in this order, each between two live blocks */
    static const size_t kib[] = {3, 2, 2, 1};
    mti_block *hole[4], *wall[4];
    void *at[4];
    for (int i = 0; i < 4; i++) hole[i] = get(kib[i] * KIB), wall[i] = get(512);
    for (int i = 0; i < 4; i++) at[i] = hole[i]->ptr;
    for (int i = 3; i >= 0; i--) put(hole[i]);
    mti_block *a = get(2 * KIB), *b = get(2 * KIB), *c = get(2 * KIB), *d = get(1 * KIB);
    assert_ptr_equal(a->ptr, at[1]);
    assert_ptr_equal(b->ptr, at[2]);
    assert_ptr_equal(c->ptr, at[0]);                   /* splits the hole of 3 */
    assert_ptr_equal(d->ptr, (char *)at[0] + 2 * KIB); /* the rest lies lower than hole 3 */
    put(a), put(b), put(c), put(d);
    for (int i = 0; i < 4; i++) put(wall[i]);
}

static void large_holes_too_are_taken_by_size_then_address(void **state)
{
    (void)state;
    mti_block *a = get(4 * MIB), *b = get(2 * MIB), *c = get(4 * MIB), *d = get(2 * MIB);
    void *first = a->ptr, *second = c->ptr, *small = b->ptr;
    put(c), put(a); /* holes of 4, 4 and a rest of 8 MiB */
    mti_block *x = get(3 * MIB + 1), *y = get(4 * MIB);
    assert_ptr_equal(x->ptr, first);
    assert_ptr_equal(y->ptr, second);
    put(b); /* 2 MiB between x (no rest: under 1 MiB) and y */
    mti_block *z = get(2 * MIB);
    assert_ptr_equal(z->ptr, small);
    put(x), put(y), put(z), put(d);
}

static void small_requests_never_come_from_large_segments(void **state)
{
    (void)state;
    mti_block *large = get(4 * MIB);
    mti_block *small = get(1 * MIB);
    expect(segments.current, 2);
    expect(reserved.current, 22 * MIB);
    put(large), put(small);
}

static void freed_neighbours_become_one_whatever_the_order(void **state)
{
    (void)state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int o = 0; o < 6; o++) {
        mti_block *b[3];
        for (int i = 0; i < 3; i++) b[i] = get(600 * KIB);
        for (int i = 0; i < 3; i++) {
            put(b[orders[o][i]]);
            assert_true(mti_pool_check(pool));
        }
        expect(inactive_split.current, 0);
        expect(reserved.current, 2 * MIB); /* the same segment every time */
    }
}

static void free_bytes_beside_live_ones_are_inactive_split(void **state)
{
    (void)state;
    mti_block *a = get(512 * KIB), *b = get(512 * KIB);
    expect(inactive_split.current, 1 * MIB);
    put(a);
    expect(inactive_split.current, 1 * MIB + 512 * KIB);
    put(b);
    expect(inactive_split.current, 0);
    expect(inactive_split.peak, 1 * MIB + 512 * KIB);
}

static void empty_cache_keeps_segments_that_are_in_use(void **state)
{
    (void)state;
    mti_block *small = get(1), *large = get(30 * MIB), *gone = get(40 * MIB);
    put(gone);
    mti_pool_empty_cache(pool);
    expect(reserved.current, 32 * MIB);
    expect(segments.current, 2);
    assert_int_equal(fake.held, 32 * MIB);
    put(small), put(large);
    mti_pool_empty_cache(pool);
    assert_int_equal(fake.held, 0);
}

static void zero_bytes_need_no_memory_and_cannot_run_out(void **state)
{
    (void)state;
    fake.capacity = 0;
    mti_block *a = get(0), *b = get(0);
    assert_null(a->ptr);
    assert_int_equal(a->size, 0);
    assert_int_not_equal(a->serial, b->serial);
    expect(blocks.current, 0);
    expect(reserved.current, 0);
    mti_pool_recategorise(pool, a, MT_OUTPUT);
    assert_true(mti_pool_check(pool));
    put(a), put(b);
    mti_pool_free(pool, NULL, 0);
}

static void a_block_starts_without_owner_and_with_a_number_never_given_before(void **state)
{
    (void)state;
    uint64_t last = 0;
    for (int i = 0; i < 1000; i++) {
        mti_block *b = get(1000);
        assert_true(b->serial > last);
        assert_null(b->owner);
        last = b->serial;
        b->owner = &fake;
        put(b);
    }
    assert_int_equal(last, 1000);
}

static void many_holes_of_one_size_are_filled_from_the_oldest_segment_up(void **state)
{
    (void)state;
    enum { N = 40000 };
    static mti_block *block[N];
    static const void *at[N]; /* from the bottom of each segment, the oldest first */
    for (int i = 0; i < N; i++) block[i] = get(512), at[i] = block[i]->ptr;
    /* A third of them, in an order that jumps about; neighbours stay. */
    for (int i = 0, j = 0; i < N; i++, j = (j + 17389) % N)
        if (j % 3 == 1) put(block[j]), block[j] = NULL;
    assert_true(mti_pool_check(pool));
    for (int i = 0; i < N; i++) {
        if (!block[i]) block[i] = get(512);
        assert_ptr_equal(block[i]->ptr, at[i]);
    }
    for (int i = 0; i < N; i++) put(block[i]);
}

/* ---- categories and peaks ---- */

static void the_peak_remembers_who_held_it(void **state)
{
    (void)state;
    mti_block *w = mti_pool_alloc(pool, 1000, MT_PARAMETER);
    mti_block *x = mti_pool_alloc(pool, 2000, MT_ACTIVATION);
    mt_mem_stats s = stats(); /* at the peak itself */
    assert_int_equal(s.at_peak[MT_PARAMETER], 1024);
    assert_int_equal(s.at_peak[MT_ACTIVATION], 2048);
    mti_pool_recategorise(pool, x, MT_OUTPUT);
    s = stats();
    assert_int_equal(s.by_category[MT_OUTPUT], 2048);
    assert_int_equal(s.at_peak[MT_OUTPUT], 0); /* it was an activation when the peak was reached */
    assert_int_equal(s.at_peak[MT_ACTIVATION], 2048);
    put(x);
    mti_block *g = mti_pool_alloc(pool, 1500, MT_GRADIENT); /* below the peak */
    s = stats();
    assert_int_equal(s.allocated.peak, 3072);
    assert_int_equal(s.at_peak[MT_GRADIENT], 0);
    mti_block *h = mti_pool_alloc(pool, 1500, MT_GRADIENT); /* a new one */
    s = stats();
    assert_int_equal(s.allocated.peak, 1024 + 2 * 1536);
    assert_int_equal(s.at_peak[MT_GRADIENT], 2 * 1536);
    assert_int_equal(s.at_peak[MT_ACTIVATION], 0);
    put(h);
    mti_block *o = mti_pool_alloc(pool, 1500, MT_OUTPUT); /* as high: the first is remembered */
    s = stats();
    assert_int_equal(s.allocated.current, s.allocated.peak);
    assert_int_equal(s.at_peak[MT_GRADIENT], 2 * 1536);
    assert_int_equal(s.at_peak[MT_OUTPUT], 0);
    put(w), put(g), put(o);
}

static void peaks_start_again_from_what_is_there(void **state)
{
    (void)state;
    mti_block *w = mti_pool_alloc(pool, 1000, MT_PARAMETER), *x = get(30 * MIB);
    put(x);
    mti_pool_reset_peak(pool);
    mt_mem_stats s = stats();
    assert_int_equal(s.allocated.peak, 1024);
    assert_int_equal(s.blocks.peak, 1);
    assert_int_equal(s.reserved.peak, 32 * MIB);
    assert_int_equal(s.at_peak[MT_PARAMETER], 1024);
    assert_int_equal(s.at_peak[MT_ACTIVATION], 0);
    put(w);
    expect(at_peak[MT_PARAMETER], 1024);
}

static void an_outer_peak_comes_back_after_a_nested_region(void **state)
{
    (void)state;
    mti_block *a = mti_pool_alloc(pool, 4096, MT_INPUT);
    put(a);
    mt_mem_stats outer = stats();
    mti_pool_reset_peak(pool);
    mti_block *b = get(1024);
    put(b);
    expect(allocated.peak, 1024);
    mti_pool_raise_peak(pool, &outer);
    expect(allocated.peak, 4096);
    expect(requested.peak, 4096);
    expect(at_peak[MT_INPUT], 4096);
    expect(at_peak[MT_ACTIVATION], 0);
    /* A lower outer peak changes nothing. */
    outer = stats();
    mti_block *c = get(8192);
    mti_pool_raise_peak(pool, &outer);
    expect(allocated.peak, 8192);
    expect(at_peak[MT_ACTIVATION], 8192);
    /* Of two equal peaks the outer one came first. */
    outer = stats();
    put(c);
    mti_pool_reset_peak(pool);
    put(mti_pool_alloc(pool, 8192, MT_GRADIENT));
    mti_pool_raise_peak(pool, &outer);
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

static void note(void *user, const mt_mem_event *event)
{
    seen *s = user;
    assert_in_range(s->n, 0, 7);
    s->event[s->n++] = *event;
}

static void observers_hear_of_every_change_and_where_it_was(void **state)
{
    (void)state;
    seen a = {0}, b = {0};
    mti_where *where = mti_where_now(), was = *where;
    int id_a = mti_pool_add_observer(pool, note, &a), id_b = mti_pool_add_observer(pool, note, &b);
    assert_true(id_a > 0 && id_b > 0 && id_a != id_b);
    *where = (mti_where){"gelu", "gpt.h.3.mlp.act", "forward"};
    mti_block *x = mti_pool_alloc(pool, 1000, MT_TEMPORARY);
    uint64_t serial = x->serial;
    mti_pool_recategorise(pool, x, MT_ACTIVATION);
    mti_pool_recategorise(pool, x, MT_ACTIVATION); /* no change, no event */
    mti_pool_remove_observer(pool, id_b);
    where->phase = "backward";
    put(x);
    put(get(0)); /* no bytes, no event */
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
    mti_pool_remove_observer(pool, id_a);
    mti_pool_remove_observer(pool, 12345);
}

static void in_address_order(void *user, const mti_block *block)
{
    const mti_block **last = user;
    if (*last) assert_true(block->ptr > (*last)->ptr);
    *last = block;
}

typedef struct tally {
    const char *end; /* of the stretch before */
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

/* Each segment below the one before it, as mmap lays them. Kept in order by moving all others up,
 * they would take minutes, and the test's time would run out. */
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
    mti_pool_visit(many, in_address_order, &last);
    assert_non_null(last);
    assert_true(mti_pool_check(many));
    mti_pool_free_all(many);
}

static void visits_meet_everything_in_address_order(void **state)
{
    (void)state;
    mti_block *b[40];
    for (size_t i = 0; i < 40; i++) b[i] = get((i % 7 + 1) * 300 * KIB);
    for (size_t i = 0; i < 40; i += 3) put(b[i]);
    const mti_block *last = NULL;
    mti_pool_visit(pool, in_address_order, &last);
    assert_non_null(last);
    tally t = {0};
    mti_pool_visit_all(pool, add_up, &t);
    mt_mem_stats s = stats();
    assert_int_equal(t.live, s.active.current);
    assert_int_equal(t.reserved, s.reserved.current);
    assert_int_equal(t.live + t.idle, t.reserved);
    assert_in_range(t.n_large, 1, s.segments.current - 1);
    for (size_t i = 0; i < 40; i++)
        if (i % 3) put(b[i]);
}

/* ---- the check ---- */

static void a_planted_miscount_is_found_and_named(void **state)
{
    (void)state;
    mti_block *a = get(1000), *b = get(3 * MIB);
    const struct {
        size_t *figure;
        const char *name;
    } faults[] = {
        {&pool->stats.requested.current, "requested"},
        {&pool->stats.allocated.current, "allocated"},
        {&pool->stats.active.current, "active"},
        {&pool->stats.reserved.current, "reserved"},
        {&pool->stats.inactive_split.current, "inactive split"},
        {&pool->stats.blocks.current, "blocks"},
        {&pool->stats.segments.current, "segments"},
        {&pool->stats.allocated.total_out, "allocated"},
        {&pool->stats.by_category[MT_OUTPUT], "output"},
        {&pool->fit.n, "free blocks"},
        {&pool->fit.n_bytes, "free bytes"},
    };
    assert_true(mti_pool_check(pool));
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        *faults[i].figure += 1;
        assert_false(mti_pool_check(pool));
        assert_int_equal(mt_last_status(), MT_ERR_INTERNAL);
        assert_non_null(strstr(mt_last_error(), faults[i].name));
        mt_clear_error();
        *faults[i].figure -= 1;
    }
    assert_true(mti_pool_check(pool));
    put(a), put(b);
}

static void a_damaged_segment_is_found(void **state)
{
    (void)state;
    mti_block *a = get(1000), *b = get(1000), *c = get(3 * MIB);
    mti_cell *small_rest = ((mti_cell *)b)->right, *large_rest = ((mti_cell *)c)->right;
    for (int fault = 0; fault < 6; fault++) {
        uint64_t words = pool->fit.words;
        mti_cell was = *small_rest, was_a = *(mti_cell *)a, *root = pool->fit.root;
        if (fault == 0) small_rest->left = NULL;
        if (fault == 1) ((mti_cell *)a)->span += 512;
        if (fault == 2) ((mti_cell *)a)->live = false;
        if (fault == 3) pool->fit.words = 0;
        if (fault == 4) pool->fit.root = NULL;
        if (fault == 5) a->requested = 1025;
        assert_false(mti_pool_check(pool));
        assert_int_equal(mt_last_status(), MT_ERR_INTERNAL);
        mt_clear_error();
        *small_rest = was, *(mti_cell *)a = was_a;
        pool->fit.words = words, pool->fit.root = root;
        assert_true(mti_pool_check(pool));
    }
    assert_ptr_equal(pool->fit.root, large_rest);
    put(a), put(b), put(c);
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
            put(*b);
            *b = NULL;
        } else {
            *b = get((size_t)(x >> 20) % (3 * MIB) + 1);
            (*b)->owner = b;
        }
    }
    intptr_t bad = 0;
    for (int i = 0; i < 32; i++)
        if (own[i]) bad += own[i]->owner != &own[i], put(own[i]);
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
    assert_true(mti_pool_check(pool));
    expect(allocated.current, 0);
    mti_pool_empty_cache(pool);
    assert_int_equal(fake.held, 0);
}

#define WITH_POOL(test) cmocka_unit_test_setup_teardown(test, open_pool, close_pool)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_POOL(a_thousand_and_24_floats_take_4096_bytes_of_a_2_mib_segment),
        WITH_POOL(eight_hundred_floats_take_3584_bytes),
        WITH_POOL(three_tensors_with_two_freed_give_the_figures_of_the_reference),
        WITH_POOL(a_linear_layer_takes_what_it_takes_in_pytorch),
        WITH_POOL(segments_come_in_the_sizes_of_pytorch),
        WITH_POOL(the_smallest_hole_that_fits_is_taken_and_of_equals_the_lowest),
        WITH_POOL(large_holes_too_are_taken_by_size_then_address),
        WITH_POOL(small_requests_never_come_from_large_segments),
        WITH_POOL(freed_neighbours_become_one_whatever_the_order),
        WITH_POOL(free_bytes_beside_live_ones_are_inactive_split),
        WITH_POOL(empty_cache_keeps_segments_that_are_in_use),
        WITH_POOL(zero_bytes_need_no_memory_and_cannot_run_out),
        WITH_POOL(a_block_starts_without_owner_and_with_a_number_never_given_before),
        WITH_POOL(many_holes_of_one_size_are_filled_from_the_oldest_segment_up),
        WITH_POOL(the_peak_remembers_who_held_it),
        WITH_POOL(peaks_start_again_from_what_is_there),
        WITH_POOL(an_outer_peak_comes_back_after_a_nested_region),
        WITH_POOL(every_category_has_a_name),
        WITH_POOL(observers_hear_of_every_change_and_where_it_was),
        WITH_POOL(visits_meet_everything_in_address_order),
        cmocka_unit_test(very_many_segments_at_falling_addresses_take_linear_time),
        WITH_POOL(a_planted_miscount_is_found_and_named),
        WITH_POOL(a_damaged_segment_is_found),
        WITH_POOL(threads_share_a_pool_without_losing_a_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
