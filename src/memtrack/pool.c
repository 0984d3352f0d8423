/* pool.c: the caching allocator: find, split, allocate, free, coalesce.
 *
 * Every small op calls it, so in the steady state it makes no system calls: cells are
 * recycled, and whatever may fail is allocated before anything is changed. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "memtrack/pool.h"
#include "memtrack/shadow.h"

#define SMALL_REQUEST ((size_t)1 << 20)  /* up to this: the small pool */
#define LARGE_SEGMENT ((size_t)20 << 20) /* serves requests under ... */
#define LARGE_REQUEST ((size_t)10 << 20) /* ... this; from here on a segment of their own, ... */
#define ROUND_SEGMENT ((size_t)2 << 20)  /* ... rounded up to this */

#define CELLS_PER_SLAB 128
struct mti_slab {
    mti_slab *next;
    mti_cell cell[CELLS_PER_SLAB];
};

static size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

static size_t segment_size(size_t size)
{
    if (size <= SMALL_REQUEST) return MTI_SMALL_SEGMENT;
    if (size < LARGE_REQUEST) return LARGE_SEGMENT;
    return round_up(size, ROUND_SEGMENT);
}

/* ---- statistics and events ---- */

static void stat_add(mt_stat *s, size_t n)
{
    s->current += n;
    s->total_in += n;
    if (s->current > s->peak) s->peak = s->current;
}

static void stat_sub(mt_stat *s, size_t n)
{
    s->current -= n;
    s->total_out += n;
}

static void stat_move(mt_stat *s, size_t from, size_t to)
{
    to > from ? stat_add(s, to - from) : stat_sub(s, from - to);
}

/* While the allocated bytes grow, every step is a new peak. So the breakdown of the peak is
 * recorded once, just before the bytes fall or change category. */
static void settle_peak(mti_pool *pool)
{
    if (!pool->at_peak) return;
    memcpy(pool->stats.at_peak, pool->stats.by_category, sizeof pool->stats.at_peak);
    pool->at_peak = false;
}

static void count_alloc(mti_pool *pool, const mti_cell *cell)
{
    mt_mem_stats *s = &pool->stats;
    size_t peak = s->allocated.peak;
    stat_add(&s->requested, cell->block.requested);
    stat_add(&s->allocated, cell->block.size);
    stat_add(&s->active, cell->span);
    stat_add(&s->blocks, 1);
    s->by_category[cell->block.category] += cell->block.size;
    if (s->allocated.peak > peak) pool->at_peak = true; /* among equal peaks the first stays */
}

static void count_free(mti_pool *pool, const mti_cell *cell)
{
    mt_mem_stats *s = &pool->stats;
    settle_peak(pool);
    stat_sub(&s->requested, cell->block.requested);
    stat_sub(&s->allocated, cell->block.size);
    stat_sub(&s->active, cell->span);
    stat_sub(&s->blocks, 1);
    s->by_category[cell->block.category] -= cell->block.size;
}

static void notify(mti_pool *pool, mt_mem_event event)
{
    const mti_where *where = mti_where_now();
    event.op = where->op, event.module = where->module, event.phase = where->phase;
    event.current = pool->stats.allocated.current;
    event.reserved = pool->stats.reserved.current;
    for (size_t i = 0; i < pool->observers.n; i++)
        pool->observers.at[i].fn(pool->observers.at[i].user, &event);
}

static void tell_of_block(mti_pool *pool, mt_mem_event_kind kind, const mti_cell *cell,
                          mt_category was)
{
    notify(pool, (mt_mem_event){.kind = kind,
                                .serial = cell->block.serial,
                                .requested = cell->block.requested,
                                .allocated = cell->block.size,
                                .category = cell->block.category,
                                .was = was,
                                .place = cell->place,
                                .span = cell->span});
}

static void notify_block(mti_pool *pool, mt_mem_event_kind kind, const mti_cell *cell,
                         mt_category was)
{
    if (pool->observers.n) tell_of_block(pool, kind, cell, was);
}

static void notify_segment(mti_pool *pool, mt_mem_event_kind kind, uint64_t place, size_t size)
{
    if (!pool->observers.n) return;
    notify(pool,
           (mt_mem_event){
               .kind = kind, .requested = size, .allocated = size, .place = place, .span = size});
}

/* ---- cells ---- */

static void put_spare(mti_pool *pool, mti_cell *cell)
{
    cell->live = false;
    cell->right = pool->spare;
    pool->spare = cell;
}

static mti_cell *get_spare(mti_pool *pool)
{
    mti_cell *cell = pool->spare;
    pool->spare = cell->right;
    return cell;
}

/* One request needs at most two cells, for a segment and for its remainder, and one
 * entry in the list of segments. */
static bool make_ready(mti_pool *pool)
{
    if (!pool->spare || !pool->spare->right) {
        mti_slab *slab = mti_malloc(sizeof *slab);
        if (!slab) return false;
        slab->next = pool->slabs;
        pool->slabs = slab;
        for (size_t i = CELLS_PER_SLAB; i-- > 0;) put_spare(pool, &slab->cell[i]);
    }
    return MTI_RESERVE(&pool->segments);
}

static bool is_split(const mti_cell *cell) { return cell->left || cell->right; }

/* ---- segments ---- */

static void forbid(const mti_pool *pool, void *p, size_t n_bytes)
{
    if (pool->in_host_memory) MTI_FORBID(p, n_bytes);
}

static void allow(const mti_pool *pool, void *p, size_t n_bytes)
{
    if (pool->in_host_memory) MTI_ALLOW(p, n_bytes);
}

void mti_pool_let_touch_locked(const mti_pool *pool, void *p, size_t n_bytes, bool let)
{
    let ? allow(pool, p, n_bytes) : forbid(pool, p, n_bytes);
}

static void give_back(mti_pool *pool, const mti_segment *segment)
{
    void *base = segment->first->block.ptr;
    allow(pool, base, segment->size);
    pool->backend->free(pool->ctx, base, segment->size);
}

static void give_back_cached(mti_pool *pool)
{
    size_t kept = 0;
    for (size_t i = 0; i < pool->segments.n; i++) {
        mti_segment segment = pool->segments.at[i];
        if (segment.first->live || is_split(segment.first)) {
            pool->segments.at[kept++] = segment;
            continue;
        }
        mti_fit_remove(&pool->fit, segment.first);
        give_back(pool, &segment);
        stat_sub(&pool->stats.reserved, segment.size);
        stat_sub(&pool->stats.segments, 1);
        notify_segment(pool, MT_MEM_SEGMENT_FREE, segment.first->place, segment.size);
        put_spare(pool, segment.first);
    }
    pool->segments.n = kept;
}

static void *ask_for(mti_pool *pool, size_t n_bytes)
{
    size_t used = pool->stats.reserved.current;
    if (pool->capacity && (used > pool->capacity || n_bytes > pool->capacity - used)) return NULL;
    return pool->backend->alloc(pool->ctx, n_bytes);
}

/* A new segment as one cell that is not free; NULL if refused twice. */
static mti_cell *new_segment(mti_pool *pool, size_t size, bool large)
{
    size_t n_bytes = segment_size(size);
    if (pool->may_not_grow || mti_trace_is_mine(pool->trace)) return NULL;
    void *base = ask_for(pool, n_bytes);
    if (!base) {
        pool->stats.alloc_retries++;
        give_back_cached(pool);
        base = ask_for(pool, n_bytes);
    }
    if (!base) return NULL;
    forbid(pool, base, n_bytes);
    mti_cell *cell = get_spare(pool);
    cell->block.ptr = base;
    cell->place = pool->next_place;
    cell->span = n_bytes;
    cell->large = large;
    cell->left = cell->right = NULL;
    pool->segments.at[pool->segments.n++] = (mti_segment){cell, n_bytes};
    pool->next_place += n_bytes;
    stat_add(&pool->stats.reserved, n_bytes);
    stat_add(&pool->stats.segments, 1);
    notify_segment(pool, MT_MEM_SEGMENT_ALLOC, cell->place, n_bytes);
    return cell;
}

/* ---- take and give ---- */

/* Cuts the cell to `size` if the remainder is large enough to keep; the remainder becomes free. */
static void split(mti_pool *pool, mti_cell *cell, size_t size)
{
    size_t rest_size = cell->span - size;
    if (cell->large ? rest_size <= SMALL_REQUEST : rest_size < MTI_BLOCK_UNIT) return;
    mti_cell *rest = get_spare(pool);
    rest->block.ptr = (char *)cell->block.ptr + size;
    rest->place = cell->place + size;
    rest->span = rest_size;
    rest->large = cell->large;
    rest->left = cell;
    rest->right = cell->right;
    if (rest->right) rest->right->left = rest;
    cell->right = rest;
    cell->span = size;
    mti_fit_add(&pool->fit, rest);
}

/* A free cell of at least `size` bytes; NULL if the system has no memory. */
static mti_cell *take(mti_pool *pool, size_t size)
{
    bool large = size > SMALL_REQUEST;
    size_t inactive = 0; /* free bytes in a segment with live ones: before and after */
    mti_cell *cell = mti_fit_best(&pool->fit, size, large);
    if (cell) {
        mti_fit_remove(&pool->fit, cell);
        inactive = is_split(cell) ? cell->span : 0;
    } else if (!(cell = new_segment(pool, size, large))) {
        return NULL;
    }
    size_t span = cell->span;
    split(pool, cell, size);
    stat_move(&pool->stats.inactive_split, inactive, span - cell->span);
    return cell;
}

/* Appends the right neighbour and recycles its cell. */
static void absorb_right(mti_pool *pool, mti_cell *cell)
{
    mti_cell *gone = cell->right;
    cell->span += gone->span;
    cell->right = gone->right;
    if (cell->right) cell->right->left = cell;
    put_spare(pool, gone);
}

/* Adds a cell to the free ones, merged with its free neighbours. */
static void release(mti_pool *pool, mti_cell *cell)
{
    size_t inactive = 0;
    cell->live = false;
    if (cell->right && !cell->right->live) {
        inactive += cell->right->span;
        mti_fit_remove(&pool->fit, cell->right);
        absorb_right(pool, cell);
    }
    if (cell->left && !cell->left->live) {
        cell = cell->left;
        inactive += cell->span;
        mti_fit_remove(&pool->fit, cell);
        absorb_right(pool, cell);
    }
    mti_fit_add(&pool->fit, cell);
    stat_move(&pool->stats.inactive_split, inactive, is_split(cell) ? cell->span : 0);
}

static size_t room_of(const mti_pool *pool)
{
    size_t used = pool->stats.reserved.current;
    if (!pool->capacity) return pool->backend->room ? pool->backend->room(pool->ctx) : SIZE_MAX;
    return used < pool->capacity ? pool->capacity - used : 0;
}

static mti_block *out_of_memory(mti_pool *pool, size_t n_bytes, mt_category category)
{
    char asked[32], allocated[32], reserved[32], limit[64] = "", size[32];
    const mti_where *where = mti_where_now();
    if (mti_trace_is_mine(pool->trace))
        return mti_fail_null(MT_ERR_MEMORY,
                             "%s%sno cached memory has room for %zu bytes, and none can be asked "
                             "for while a step is captured",
                             where->op, *where->op ? ": " : "", n_bytes);
    pool->stats.ooms++;
    if (pool->observers.n)
        notify(pool, (mt_mem_event){.kind = MT_MEM_OOM,
                                    .requested = n_bytes,
                                    .allocated = n_bytes,
                                    .category = category,
                                    .was = category,
                                    .room = room_of(pool)});
    if (pool->capacity)
        snprintf(limit, sizeof limit, " of a capacity of %s",
                 mti_bytes_text(size, sizeof size, pool->capacity));
    return mti_fail_null(
        MT_ERR_MEMORY,
        "%s%s%s out of memory: %s (%zu bytes) asked for; %s allocated, %s reserved%s", where->op,
        *where->op ? ": " : "", pool->backend->kind, mti_bytes_text(asked, sizeof asked, n_bytes),
        n_bytes, mti_bytes_text(allocated, sizeof allocated, pool->stats.allocated.current),
        mti_bytes_text(reserved, sizeof reserved, pool->stats.reserved.current), limit);
}

mti_block *mti_pool_alloc_locked(mti_pool *pool, size_t n_bytes, mt_category category)
{
    if (!make_ready(pool)) return NULL;
    if (mti_alloc_should_fail() || n_bytes > SIZE_MAX - LARGE_SEGMENT)
        return out_of_memory(pool, n_bytes, category);
    size_t size = round_up(n_bytes, MTI_BLOCK_UNIT);
    mti_cell *cell = size ? take(pool, size) : get_spare(pool);
    if (!cell) return out_of_memory(pool, n_bytes, category);
    if (!size) cell->block.ptr = NULL;
    cell->live = true;
    cell->block.requested = n_bytes;
    cell->block.size = size;
    cell->block.serial = ++pool->last_serial;
    cell->block.category = category;
    cell->block.owner = NULL;
    cell->block.records = NULL;
    cell->traced = 0;
    if (mti_trace_is_mine(pool->trace)) mti_trace_took(pool->trace, cell);
    if (!size) return &cell->block;
    allow(pool, cell->block.ptr, n_bytes);
    count_alloc(pool, cell);
    notify_block(pool, MT_MEM_ALLOC, cell, category);
    return &cell->block;
}

mti_block *mti_pool_alloc(mti_pool *pool, size_t n_bytes, mt_category category)
{
    assert((unsigned)category < MT_CATEGORY_COUNT);
    pthread_mutex_lock(&pool->lock);
    mti_block *block = mti_pool_alloc_locked(pool, n_bytes, category);
    pthread_mutex_unlock(&pool->lock);
    return block;
}

void mti_pool_free_locked(mti_pool *pool, mti_block *block, size_t n_bytes)
{
    mti_cell *cell = (mti_cell *)block;
    assert(cell->live && block->requested == n_bytes);
    (void)n_bytes;
    if (pool->trace) mti_trace_gave(pool->trace, cell);
    if (block->records) mti_book_freed_locked(block);
    if (block->size) {
        count_free(pool, cell);
        notify_block(pool, MT_MEM_FREE, cell, block->category);
        forbid(pool, block->ptr, cell->span);
        release(pool, cell);
    } else {
        put_spare(pool, cell);
    }
}

void mti_pool_free(mti_pool *pool, mti_block *block, size_t n_bytes)
{
    if (!block) return;
    pthread_mutex_lock(&pool->lock);
    mti_pool_free_locked(pool, block, n_bytes);
    pthread_mutex_unlock(&pool->lock);
}

void mti_pool_recategorise_locked(mti_pool *pool, mti_block *block, mt_category category)
{
    assert((unsigned)category < MT_CATEGORY_COUNT);
    mt_category was = block->category;
    if (was == category) return;
    settle_peak(pool);
    pool->stats.by_category[was] -= block->size;
    pool->stats.by_category[category] += block->size;
    block->category = category;
    if (pool->trace) mti_trace_recategorised(pool->trace, (mti_cell *)block);
    if (block->size) notify_block(pool, MT_MEM_RECATEGORY, (const mti_cell *)block, was);
}

void mti_pool_recategorise(mti_pool *pool, mti_block *block, mt_category category)
{
    pthread_mutex_lock(&pool->lock);
    mti_pool_recategorise_locked(pool, block, category);
    pthread_mutex_unlock(&pool->lock);
}

void mti_pool_empty_cache(mti_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    give_back_cached(pool);
    pthread_mutex_unlock(&pool->lock);
}

void mti_pool_set_capacity(mti_pool *pool, size_t n_bytes)
{
    pthread_mutex_lock(&pool->lock);
    pool->capacity = n_bytes;
    pthread_mutex_unlock(&pool->lock);
}

/* ---- making and ending ---- */

mti_pool *mti_pool_new(const mti_backend *backend, mti_ctx *ctx)
{
    mti_pool *pool = mti_calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pool->backend = backend;
    pool->ctx = ctx;
    pool->in_host_memory = backend->traits & MTI_HOST_MEMORY;
    return pool;
}

void mti_pool_free_all(mti_pool *pool)
{
    if (!pool) return;
    for (size_t i = 0; i < pool->segments.n; i++) give_back(pool, &pool->segments.at[i]);
    while (pool->slabs) {
        mti_slab *slab = pool->slabs;
        pool->slabs = slab->next;
        mti_free(slab);
    }
    mti_free(pool->segments.at);
    mti_free(pool->observers.at);
    pthread_mutex_destroy(&pool->lock);
    mti_free(pool);
}
