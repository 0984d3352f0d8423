/* Expandable segments against a slow model of PyTorch's rules (range.h): one array of blocks in
 * order of addresses, searched from end to end. Addresses and figures must always be equal. */
#include <stdlib.h>
#include "modelled.h"

#define MAX_BLOCKS 8192
#define SMALLEST   512

typedef enum condition { UNMAPPED, FREE, LIVE } condition;

typedef struct block {
    uintptr_t at;
    size_t size;
    condition is;
    bool large, first; /* first of its segment */
    size_t requested;
    int stream;
} block;

struct mtt_model {
    const mti_ctx *fake; /* the pool's */
    size_t capacity, reserved, granule[2];
    bool reclaim;
    uintptr_t next; /* where the next segment goes */
    block b[MAX_BLOCKS];
    size_t n;
};

static size_t up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void insert(mtt_model *m, size_t i, block b)
{
    assert_in_range(m->n, 0, MAX_BLOCKS - 1);
    memmove(&m->b[i + 1], &m->b[i], (m->n++ - i) * sizeof b);
    m->b[i] = b;
}

static bool has_next(const mtt_model *m, size_t i) { return i + 1 < m->n && !m->b[i + 1].first; }
static bool has_left(const mtt_model *m, size_t i) { return !m->b[i].first; }

/* Joins block i with its neighbours in the same condition. Returns its index then. */
static size_t join(mtt_model *m, size_t i)
{
    if (has_next(m, i) && m->b[i + 1].is == m->b[i].is) {
        m->b[i].size += m->b[i + 1].size;
        memmove(&m->b[i + 1], &m->b[i + 2], (--m->n - i - 1) * sizeof *m->b);
    }
    if (has_left(m, i) && m->b[i - 1].is == m->b[i].is) {
        m->b[i - 1].size += m->b[i].size;
        memmove(&m->b[i], &m->b[i + 1], (--m->n - i) * sizeof *m->b);
        i--;
    }
    return i;
}

/* Cuts block i after `size` bytes; what follows is `is`. */
static void cut(mtt_model *m, size_t i, size_t size, condition is)
{
    block rest = m->b[i];
    if (rest.size == size) return;
    rest.at += size, rest.size -= size, rest.is = is, rest.first = false;
    m->b[i].size = size;
    insert(m, i + 1, rest);
}

static uintptr_t base_of(const mtt_model *m, size_t i)
{
    while (!m->b[i].first) i--;
    return m->b[i].at;
}

static size_t grown(const mtt_model *m, size_t i)
{
    bool grows = has_next(m, i) && m->b[i + 1].is == UNMAPPED;
    return m->b[i].size + (grows ? m->b[i + 1].size : 0);
}

static const mtt_model *sorted; /* for the comparison alone */

static int by_size(const void *a, const void *b)
{
    const block *x = &sorted->b[*(const size_t *)a], *y = &sorted->b[*(const size_t *)b];
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

/* All that fit, by size: go on as long as the next could grow to less. -1: there is none. */
static long best(const mtt_model *m, int stream, size_t size, bool large)
{
    static size_t fits[MAX_BLOCKS];
    size_t n = 0, i = 0;
    for (size_t k = 0; k < m->n; k++)
        if (m->b[k].is == FREE && m->b[k].large == large && m->b[k].size >= size &&
            m->b[k].stream == stream)
            fits[n++] = k;
    if (!n) return -1;
    sorted = m;
    qsort(fits, n, sizeof *fits, by_size);
    while (i + 1 < n && grown(m, fits[i + 1]) < grown(m, fits[i])) i++;
    return (long)fits[i];
}

/* Maps the first `size` bytes of an unmapped block. Index of the free block, or -1. */
static long map(mtt_model *m, size_t i, size_t size)
{
    size_t n_bytes = up(size, m->granule[m->b[i].large]);
    if (n_bytes > m->capacity - m->reserved) return -1;
    cut(m, i, n_bytes, UNMAPPED);
    m->b[i].is = FREE;
    m->reserved += n_bytes;
    return (long)join(m, i);
}

static size_t lowest_room(mtt_model *m, int stream, size_t size, bool large)
{
    for (size_t i = 0; i < m->n; i++) {
        if (m->b[i].is != UNMAPPED || m->b[i].large != large || m->b[i].stream != stream) continue;
        size_t first = has_left(m, i) && m->b[i - 1].is == FREE ? i - 1 : i, n_bytes = 0;
        for (size_t k = first; m->b[k].is != LIVE; k++) {
            n_bytes += m->b[k].size;
            if (!has_next(m, k)) break;
        }
        if (n_bytes >= size) return first;
    }
    size_t n_bytes = up(m->capacity + m->capacity / 8, m->granule[large]);
    if (n_bytes < size) n_bytes = up(size, m->granule[large]);
    insert(m, m->n, (block){m->next, n_bytes, UNMAPPED, large, true, 0, stream});
    m->next += n_bytes;
    return m->n - 1;
}

static long grow(mtt_model *m, int stream, size_t size, bool large)
{
    long at = (long)lowest_room(m, stream, size, large);
    if (m->b[at].is == UNMAPPED) at = map(m, (size_t)at, least(size, m->b[at].size));
    while (at >= 0 && m->b[at].size < size)
        at = map(m, (size_t)at + 1, least(size - m->b[at].size, m->b[at + 1].size));
    return at;
}

/* At most so many bytes, from the lowest addresses on. A segment goes with the last memory it has;
 * one that never got any stays. */
static void model_give_back(mtt_model *m, size_t at_most)
{
    for (size_t i = 0; i < m->n && at_most; i++) {
        block *b = &m->b[i];
        if (b->is != FREE) continue;
        size_t granule = m->granule[b->large], start = b->at - base_of(m, i);
        size_t begin = up(start, granule), end = (start + b->size) / granule * granule;
        if (begin >= end) continue;
        if (end - begin > at_most) end = begin + up(at_most, granule);
        at_most -= least(at_most, end - begin);
        m->reserved -= end - begin;
        if (begin > start) cut(m, i++, begin - start, FREE);
        cut(m, i, end - begin, FREE);
        m->b[i].is = UNMAPPED;
        i = join(m, i);
        if (!m->b[i].first || has_next(m, i)) continue;
        memmove(&m->b[i], &m->b[i + 1], (--m->n - i) * sizeof *m->b);
        i--;
    }
}

/* Returns the address, or 0 if there is no memory. */
static uintptr_t model_alloc(mtt_model *m, int stream, size_t n_bytes)
{
    size_t size = up(n_bytes, SMALLEST);
    bool large = size > 1 * MIB;
    long at = best(m, stream, size, large);
    if (at < 0 && m->reclaim) model_give_back(m, size);
    if (at < 0) at = grow(m, stream, size, large);
    if (at < 0) {
        model_give_back(m, SIZE_MAX);
        at = grow(m, stream, size, large);
    }
    if (at < 0) return 0;
    cut(m, (size_t)at, size, FREE);
    m->b[at].is = LIVE;
    m->b[at].requested = n_bytes;
    return m->b[at].at;
}

static void model_free(mtt_model *m, uintptr_t at)
{
    size_t i = 0;
    while (m->b[i].at != at) i++;
    m->b[i].is = FREE;
    join(m, i);
}

static void model_empty_cache(mtt_model *m) { model_give_back(m, SIZE_MAX); }

static mtt_figures figures(const mtt_model *m)
{
    mtt_figures sum = {.reserved = m->reserved};
    for (size_t i = 0; i < m->n; i++)
        if (m->b[i].is == LIVE) sum.requested += m->b[i].requested, sum.allocated += m->b[i].size;
    return sum;
}

static mtt_figures of_stream(const mtt_model *m, int stream)
{
    mtt_figures sum = {0};
    for (size_t i = 0; i < m->n; i++) {
        if (m->b[i].stream != stream || m->b[i].is == UNMAPPED) continue;
        sum.reserved += m->b[i].size;
        if (m->b[i].is == LIVE) sum.allocated += m->b[i].size;
    }
    return sum;
}

static void compare(const mtt_model *m, const mti_pool *pool)
{
    (void)pool;
    assert_int_equal(m->reserved, m->fake->held);
}

static const mtt_model_calls calls = {model_alloc, model_free, model_empty_cache,
                                      figures,     of_stream,  compare};

static void assert_agree(const mtt_requests *requests, size_t capacity,
                         const mt_expandable *expandable)
{
    static mti_ctx fake;
    static mtt_model m;
    mtt_fake_init(&fake, capacity);
    memset(&m, 0, sizeof m);
    m.fake = &fake, m.capacity = capacity, m.next = fake.up, m.reclaim = expandable->reclaim;
    m.granule[0] = expandable->granule ? expandable->granule : 2 * MIB;
    m.granule[1] = expandable->granule ? expandable->granule : 20 * MIB;
    mti_pool *pool = mti_pool_new(&mtt_fake_backend, &fake);
    assert_true(mti_pool_set_expandable(pool, expandable));
    size_t n_refused = mtt_agree(pool, &m, &calls, requests);
    mt_mem_stats s;
    mti_pool_get_stats(pool, &s);
    assert_true((n_refused > 100) == (capacity < 1024 * MIB)); /* memory really ran out */
    print_message("%d requests: %zu times asked, %zu requests refused, peak %zu MiB of %zu\n",
                  requests->n, fake.n_asked, n_refused, s.reserved.peak / MIB,
                  s.allocated.peak / MIB);
    mti_pool_free_all(pool);
    assert_int_equal(fake.n_granules + fake.n_ranges, 0);
}

static void sizes_from_1_byte_to_64_mib_get_the_addresses_of_pytorch(void **state)
{
    (void)state;
    assert_agree(&(mtt_requests){100000, 1, 26}, (size_t)1 << 40, &(mt_expandable){0});
}

static void small_sizes_get_the_addresses_of_pytorch(void **state)
{
    (void)state;
    assert_agree(&(mtt_requests){100000, 2, 20}, (size_t)1 << 40, &(mt_expandable){0});
}

static void if_memory_is_short_free_granules_go_back_as_in_pytorch(void **state)
{
    (void)state;
    assert_agree(&(mtt_requests){100000, 3, 26}, 600 * MIB, &(mt_expandable){0});
}

static void with_small_granules_the_rules_are_the_same(void **state)
{
    (void)state;
    assert_agree(&(mtt_requests){60000, 4, 24}, 300 * MIB, &(mt_expandable){.granule = 512 * KIB});
}

static void free_granules_that_are_reclaimed_are_the_lowest(void **state)
{
    (void)state;
    const mt_expandable expandable = {.granule = 256 * KIB, .reclaim = true};
    assert_agree(&(mtt_requests){60000, 5, 24}, (size_t)1 << 40, &expandable);
    assert_agree(&(mtt_requests){60000, 6, 24}, 300 * MIB, &expandable);
}

static void each_stream_has_segments_of_its_own(void **state)
{
    (void)state;
    assert_agree(&(mtt_requests){60000, 7, 26, 4}, (size_t)1 << 40, &(mt_expandable){0});
    assert_agree(&(mtt_requests){60000, 8, 26, 3}, 600 * MIB, &(mt_expandable){0});
    const mt_expandable expandable = {.granule = 256 * KIB, .reclaim = true};
    assert_agree(&(mtt_requests){60000, 9, 24, 3}, 300 * MIB, &expandable);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_from_1_byte_to_64_mib_get_the_addresses_of_pytorch),
        cmocka_unit_test(small_sizes_get_the_addresses_of_pytorch),
        cmocka_unit_test(if_memory_is_short_free_granules_go_back_as_in_pytorch),
        cmocka_unit_test(with_small_granules_the_rules_are_the_same),
        cmocka_unit_test(free_granules_that_are_reclaimed_are_the_lowest),
        cmocka_unit_test(each_stream_has_segments_of_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
