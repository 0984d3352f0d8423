/* visit.c: looking into the caching allocator: statistics, observers, visits, and
 * a recount of everything from the blocks themselves. */
#include <string.h>
#include "memtrack/pool.h"

const mti_choice mti_categories = {"category",
                                   MTI_NAMES("parameter", "gradient", "optimizer", "input",
                                             "activation", "output", "rng_state", "packed", "cache",
                                             "temporary", "workspace", "communication")};

const char *mt_category_name(mt_category category)
{
    return mti_choice_name(&mti_categories, (int)category);
}

/* ---- statistics ---- */

/* Takes the lock; const, since readers change nothing else. */
static void lock(const mti_pool *pool) { pthread_mutex_lock((pthread_mutex_t *)&pool->lock); }
static void unlock(const mti_pool *pool) { pthread_mutex_unlock((pthread_mutex_t *)&pool->lock); }

void mti_pool_get_stats(const mti_pool *pool, mt_mem_stats *out)
{
    lock(pool);
    *out = pool->stats;
    out->active = out->allocated; /* nothing that is freed waits for a stream */
    if (pool->at_peak) memcpy(out->at_peak, out->by_category, sizeof out->at_peak);
    unlock(pool);
}

/* The figures of mt_mem_stats that record a peak and totals. */
static const struct {
    const char *name;
    size_t offset;
} figures[] = {
    {"requested", offsetof(mt_mem_stats, requested)},
    {"allocated", offsetof(mt_mem_stats, allocated)},
    {"reserved", offsetof(mt_mem_stats, reserved)},
    {"inactive split", offsetof(mt_mem_stats, inactive_split)},
    {"blocks", offsetof(mt_mem_stats, blocks)},
    {"segments", offsetof(mt_mem_stats, segments)},
};
#define N_FIGURES (sizeof figures / sizeof *figures)

static mt_stat *figure(mt_mem_stats *stats, size_t i)
{
    return (mt_stat *)((char *)stats + figures[i].offset);
}

void mti_pool_reset_peak(mti_pool *pool)
{
    lock(pool);
    for (size_t i = 0; i < N_FIGURES; i++) {
        mt_stat *s = figure(&pool->stats, i);
        s->peak = s->current;
    }
    pool->at_peak = true;
    unlock(pool);
}

void mti_pool_restore_outer_peak(mti_pool *pool, const mt_mem_stats *outer)
{
    lock(pool);
    /* The earlier one of two equal peaks is remembered, as without the nested region. */
    if (outer->allocated.peak >= pool->stats.allocated.peak) {
        memcpy(pool->stats.at_peak, outer->at_peak, sizeof outer->at_peak);
        pool->at_peak = false;
    }
    mt_mem_stats was = *outer;
    for (size_t i = 0; i < N_FIGURES; i++) {
        mt_stat *s = figure(&pool->stats, i);
        size_t peak = figure(&was, i)->peak;
        if (peak > s->peak) s->peak = peak;
    }
    unlock(pool);
}

/* ---- observers ---- */

int mti_pool_add_observer(mti_pool *pool, mt_mem_event_fn *fn, void *user)
{
    lock(pool);
    mti_observer observer = {pool->last_observer + 1, fn, user};
    bool added = MTI_PUSH(&pool->observers, observer);
    if (added) pool->last_observer++;
    unlock(pool);
    return added ? observer.id : 0;
}

void mti_pool_remove_observer(mti_pool *pool, int id)
{
    lock(pool);
    size_t kept = 0;
    for (size_t i = 0; i < pool->observers.n; i++)
        if (pool->observers.at[i].id != id) pool->observers.at[kept++] = pool->observers.at[i];
    pool->observers.n = kept;
    unlock(pool);
}

/* ---- visits ---- */

void mti_pool_visit(mti_pool *pool, void (*fn)(void *user, const mti_block *block), void *user)
{
    lock(pool);
    for (size_t i = 0; i < pool->segments.n; i++)
        for (const mti_cell *n = pool->segments.at[i].first; n; n = n->right)
            if (n->live) fn(user, &n->block);
    unlock(pool);
}

/* Bytes from this cell to the end of the memory there. */
static size_t mapped_from(const mti_cell *cell)
{
    size_t n_bytes = 0;
    for (; cell && cell->mapped; cell = cell->right) n_bytes += cell->block.size;
    return n_bytes;
}

void mti_pool_visit_all(mti_pool *pool,
                        void (*fn)(void *user, const mti_segment_info *segment, const void *ptr,
                                   size_t size, size_t requested, bool live),
                        void *user)
{
    lock(pool);
    for (size_t i = 0; i < pool->segments.n; i++) {
        const mti_segment *s = &pool->segments.at[i];
        mti_segment_info info = {.large = s->first->large, .expandable = mti_pool_expands(pool)};
        for (const mti_cell *n = s->first; n; n = n->right) {
            if (!n->mapped) continue;
            if (!n->left || !n->left->mapped) info.base = n->block.ptr, info.size = mapped_from(n);
            fn(user, &info, n->block.ptr, n->block.size, n->live ? n->block.requested : 0, n->live);
        }
    }
    unlock(pool);
}

void mti_pool_visit_cells(mti_pool *pool, bool (*fn)(void *user, const mti_cell_info *cell),
                          void *user)
{
    bool more = true;
    lock(pool);
    for (size_t i = 0; more && i < pool->segments.n; i++)
        for (const mti_cell *n = pool->segments.at[i].first; more && n; n = n->right)
            more = fn(user, &(mti_cell_info){.place = n->place,
                                             .span = n->block.size,
                                             .serial = n->live ? n->block.serial : 0,
                                             .mapped = n->mapped});
    unlock(pool);
}

uint64_t mti_pool_newest(mti_pool *pool)
{
    lock(pool);
    uint64_t serial = pool->last_serial;
    unlock(pool);
    return serial;
}

/* ---- the recount ---- */

static bool broken(const void *at, const char *what)
{
    return mti_fail_bool(MT_ERR_INTERNAL, "memory books: block at %p: %s", at, what);
}

/* Adds a live cell to the totals. */
static bool recount_live(const mti_cell *n, mt_mem_stats *sum)
{
    if (n->block.requested > n->block.size)
        return broken(n->block.ptr, "larger than the room it has");
    sum->requested.current += n->block.requested;
    sum->allocated.current += n->block.size;
    sum->blocks.current++;
    sum->by_category[n->block.category] += n->block.size;
    return true;
}

/* What a stream has by its segments. */
typedef struct tally {
    size_t n_free, n_unmapped; /* cells */
    size_t free, reserved;     /* bytes */
} tally;

/* Adds one segment's cells to the totals; false where they do not tile it. */
static bool recount_segment(const mti_pool *pool, const mti_segment *segment, mt_mem_stats *sum,
                            tally *own)
{
    bool expands = mti_pool_expands(pool);
    const char *at = segment->first->block.ptr, *end = at + segment->size;
    const mti_cell *left = NULL;
    for (const mti_cell *n = segment->first; n; left = n, n = n->right) {
        if (n->block.ptr != at || n->left != left || n->block.size == 0)
            return broken(at, "its neighbours disagree about where it is");
        if (n->stream != segment->first->stream) return broken(at, "of another stream");
        at += n->block.size;
        if (n->mapped) sum->reserved.current += n->block.size, own->reserved += n->block.size;
        if (n->live) {
            if (!n->mapped) return broken(n->block.ptr, "live without memory");
            if (!recount_live(n, sum)) return false;
            continue;
        }
        if (left && !left->live && left->mapped == n->mapped)
            return broken(n->block.ptr, "not joined with the free one before");
        ++*(n->mapped ? &own->n_free : &own->n_unmapped);
        if (!n->mapped) continue;
        own->free += n->block.size;
        if ((n->left || n->right) && !expands) sum->inactive_split.current += n->block.size;
        if (!mti_fit_holds(&n->stream->fit, n))
            return broken(n->block.ptr, "free but not to be found");
    }
    if (!expands) sum->segments.current++;
    return at == end || broken(segment->first->block.ptr, "its segment is not filled");
}

/* The addresses without memory that a request would find, in order. */
static size_t count_unmapped(const mti_stream *stream)
{
    size_t n = 0;
    for (int large = 0; large < 2; large++)
        for (const mti_cell *c = stream->unmapped[large]; c; c = c->fit.next)
            n += !c->mapped && !c->live && c->large == large &&
                 (!c->fit.next || c->place < c->fit.next->place);
    return n;
}

static bool compare(const char *name, size_t running, size_t recounted)
{
    return running == recounted ||
           mti_fail_bool(MT_ERR_INTERNAL,
                         "memory books: %s: %zu by the running total, %zu recounted", name, running,
                         recounted);
}

static bool check_stream(const mti_stream *s, const tally *own)
{
    return compare("free blocks", s->fit.n, own->n_free) &&
           compare("parts of segments without memory", count_unmapped(s), own->n_unmapped) &&
           compare("free bytes", s->fit.n_bytes, own->free) &&
           compare("reserved by a stream", s->reserved, own->reserved);
}

static bool check_locked(mti_pool *pool)
{
    mt_mem_stats sum = {0};
    tally own[MT_MAX_STREAMS] = {{0}};
    for (size_t i = 0; i < pool->segments.n; i++) {
        const mti_segment *s = &pool->segments.at[i];
        if (!recount_segment(pool, s, &sum, &own[s->first->stream->number])) return false;
    }
    for (size_t i = 0; i < N_FIGURES; i++) {
        const mt_stat *s = figure(&pool->stats, i);
        if (!compare(figures[i].name, s->current, figure(&sum, i)->current)) return false;
        if (!compare(figures[i].name, s->total_in - s->total_out, s->current)) return false;
        if (s->peak < s->current) return compare(figures[i].name, s->peak, s->current);
    }
    for (int c = 0; c < MT_CATEGORY_COUNT; c++)
        if (!compare(mt_category_name(c), pool->stats.by_category[c], sum.by_category[c]))
            return false;
    for (int i = 0; i < pool->n_streams; i++)
        if (!check_stream(pool->streams[i], &own[i])) return false;
    return true;
}

bool mti_pool_check(mti_pool *pool)
{
    lock(pool);
    bool ok = check_locked(pool);
    unlock(pool);
    return ok;
}
