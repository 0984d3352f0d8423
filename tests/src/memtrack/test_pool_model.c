/* The allocator against a slow model of PyTorch's rules: one array of blocks in address order,
 * searched from end to end. Addresses and figures must always be equal. Among equal blocks the
 * lowest address is taken, with segments in the order in which they were made. */
#include "modelled.h"

#define MAX_BLOCKS 4096

typedef struct block {
    uintptr_t at;
    size_t segment; /* the n-th ever made */
    size_t size, requested;
    bool live, large, first; /* first of its segment */
    int stream;
} block;

struct mtt_model {
    mti_ctx *fake;
    block b[MAX_BLOCKS]; /* sorted by address */
    size_t n, n_segments;
};

static void insert(mtt_model *m, size_t i, block b)
{
    assert_in_range(m->n, 0, MAX_BLOCKS - 1);
    memmove(&m->b[i + 1], &m->b[i], (m->n++ - i) * sizeof b);
    m->b[i] = b;
}

static void erase(mtt_model *m, size_t i)
{
    memmove(&m->b[i], &m->b[i + 1], (--m->n - i) * sizeof *m->b);
}

static bool last_of_segment(const mtt_model *m, size_t i)
{
    return i + 1 == m->n || m->b[i + 1].first;
}

static bool whole_segment(const mtt_model *m, size_t i)
{
    return m->b[i].first && last_of_segment(m, i);
}

static void model_empty_cache(mtt_model *m)
{
    for (size_t i = m->n; i-- > 0;)
        if (!m->b[i].live && whole_segment(m, i)) {
            mtt_fake_backend.free(m->fake, (void *)m->b[i].at, m->b[i].size);
            erase(m, i);
        }
}

/* Index of a new free segment, or -1. */
static long model_segment(mtt_model *m, int stream, size_t size)
{
    size_t n = size <= 1 * MIB ? 2 * MIB : size < 10 * MIB ? 20 * MIB : size;
    n = (n + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
    void *p = mtt_fake_backend.alloc(m->fake, n);
    if (!p) {
        model_empty_cache(m);
        p = mtt_fake_backend.alloc(m->fake, n);
    }
    if (!p) return -1;
    size_t i = 0;
    while (i < m->n && m->b[i].at < (uintptr_t)p) i++;
    insert(m, i,
           (block){.at = (uintptr_t)p,
                   .segment = m->n_segments++,
                   .size = n,
                   .large = size > 1 * MIB,
                   .first = true,
                   .stream = stream});
    return (long)i;
}

/* Returns the address, or 0 if there is no memory. */
static uintptr_t model_alloc(mtt_model *m, int stream, size_t n_bytes)
{
    size_t size = (n_bytes + 511) / 512 * 512;
    long best = -1;
    for (size_t i = 0; i < m->n; i++) {
        const block *b = &m->b[i];
        if (b->live || b->large != (size > 1 * MIB) || b->size < size || b->stream != stream)
            continue;
        const block *other = best < 0 ? NULL : &m->b[best];
        if (!other || b->size < other->size ||
            (b->size == other->size && b->segment < other->segment))
            best = (long)i;
    }
    if (best < 0) best = model_segment(m, stream, size);
    if (best < 0) return 0;
    block *b = &m->b[best];
    size_t rest = b->size - size;
    b->live = true;
    b->requested = n_bytes;
    uintptr_t at = b->at;
    if (b->large ? rest > 1 * MIB : rest >= 512) {
        b->size = size;
        insert(m, (size_t)best + 1,
               (block){.at = at + size,
                       .segment = b->segment,
                       .size = rest,
                       .large = b->large,
                       .stream = stream});
    }
    return at;
}

static void model_free(mtt_model *m, uintptr_t at)
{
    size_t i = 0;
    while (m->b[i].at != at) i++;
    m->b[i].live = false;
    if (!last_of_segment(m, i) && !m->b[i + 1].live) {
        m->b[i].size += m->b[i + 1].size;
        erase(m, i + 1);
    }
    if (!m->b[i].first && !m->b[i - 1].live) {
        m->b[i - 1].size += m->b[i].size;
        erase(m, i);
    }
}

/* stream -1: of all. */
static mtt_figures of_stream(const mtt_model *m, int stream)
{
    mtt_figures sum = {0};
    for (size_t i = 0; i < m->n; i++) {
        const block *b = &m->b[i];
        if (stream >= 0 && b->stream != stream) continue;
        sum.reserved += b->size;
        if (b->live) sum.requested += b->requested, sum.allocated += b->size;
    }
    return sum;
}

static mtt_figures figures(const mtt_model *m) { return of_stream(m, -1); }

static void compare(const mtt_model *m, const mti_pool *pool)
{
    size_t inactive = 0, live = 0, n = 0;
    for (size_t i = 0; i < m->n; i++) {
        const block *b = &m->b[i];
        n += b->first;
        live += b->live;
        if (!b->live && !whole_segment(m, i)) inactive += b->size;
    }
    mt_mem_stats s;
    mti_pool_get_stats(pool, &s);
    assert_int_equal(s.inactive_split.current, inactive);
    assert_int_equal(s.blocks.current, live);
    assert_int_equal(s.segments.current, n);
}

static const mtt_model_calls calls = {model_alloc, model_free, model_empty_cache,
                                      figures,     of_stream,  compare};

static void assert_agree(const mtt_requests *requests, size_t capacity)
{
    static mti_ctx fake, fake_of_model;
    static mtt_model m;
    mtt_fake_init(&fake, capacity);
    mtt_fake_init(&fake_of_model, capacity);
    memset(&m, 0, sizeof m);
    m.fake = &fake_of_model;
    mti_pool *pool = mti_pool_new(&mtt_fake_backend, &fake);
    size_t n_refused = mtt_agree(pool, &m, &calls, requests);
    mt_mem_stats s;
    mti_pool_get_stats(pool, &s);
    assert_int_equal(fake.n_asked, fake_of_model.n_asked);
    if (capacity < 1024 * MIB) assert_true(n_refused > 100); /* memory really ran out */
    print_message("%d requests: %zu segments asked for, %zu requests refused, peak %zu MiB\n",
                  requests->n, fake.n_asked, n_refused, s.reserved.peak / MIB);
    mti_pool_free_all(pool);
    assert_int_equal(fake.n, 0);
}

static void sizes_from_1_byte_to_64_mib_get_the_addresses_of_pytorch(void **state)
{
    (void)state;
    assert_agree(&(mtt_requests){200000, 1, 26}, (size_t)1 << 40);
}

static void small_sizes_get_the_addresses_of_pytorch(void **state)
{
    (void)state;
    assert_agree(&(mtt_requests){100000, 2, 20}, (size_t)1 << 40);
}

static void if_memory_is_short_cached_segments_are_freed_as_in_pytorch(void **state)
{
    (void)state;
    assert_agree(&(mtt_requests){100000, 3, 26}, 600 * MIB);
}

static void blocks_of_several_streams_are_reused_by_their_own_alone(void **state)
{
    (void)state;
    assert_agree(&(mtt_requests){100000, 4, 26, 4}, (size_t)1 << 40);
    assert_agree(&(mtt_requests){60000, 5, 20, 2}, (size_t)1 << 40);
}

static void if_memory_is_short_all_streams_give_back_what_they_cached(void **state)
{
    (void)state;
    assert_agree(&(mtt_requests){100000, 6, 26, 3}, 600 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_from_1_byte_to_64_mib_get_the_addresses_of_pytorch),
        cmocka_unit_test(small_sizes_get_the_addresses_of_pytorch),
        cmocka_unit_test(if_memory_is_short_cached_segments_are_freed_as_in_pytorch),
        cmocka_unit_test(blocks_of_several_streams_are_reused_by_their_own_alone),
        cmocka_unit_test(if_memory_is_short_all_streams_give_back_what_they_cached),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
