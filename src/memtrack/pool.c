/* pool.c: the caching allocator: find, split, allocate, free, coalesce.
 *
 * Every small op calls it, so in the steady state it makes no system calls: cells are
 * recycled, and whatever may fail is allocated before anything is changed. */
#include <assert.h>
#include <stdio.h>
#include <string.h>
#include "memtrack/range.h"

#define SMALL_REQUEST ((size_t)1 << 20)  /* up to this: the small pool */
#define LARGE_SEGMENT ((size_t)20 << 20) /* serves requests under ... */
#define LARGE_REQUEST ((size_t)10 << 20) /* ... this; from here on a segment of their own, ... */
#define ROUND_SEGMENT ((size_t)2 << 20)  /* ... rounded up to this */

size_t mti_segment_size(size_t n_bytes)
{
    const size_t size = mti_rounded(n_bytes);
    if (size <= SMALL_REQUEST) return MTI_SMALL_SEGMENT;
    if (size < LARGE_REQUEST) return LARGE_SEGMENT;
    return mti_round_up(size, ROUND_SEGMENT);
}

/* ---- statistics and events ---- */

static void stat_move(mt_stat *s, size_t from, size_t to)
{
    to > from ? mti_stat_add(s, to - from) : mti_stat_sub(s, from - to);
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
    mti_stat_add(&s->requested, cell->block.requested);
    mti_stat_add(&s->allocated, cell->block.size);
    mti_stat_add(&s->blocks, 1);
    s->by_category[cell->block.category] += cell->block.size;
    if (s->allocated.peak > peak) pool->at_peak = true; /* among equal peaks the first stays */
}

static void count_free(mti_pool *pool, const mti_cell *cell)
{
    mt_mem_stats *s = &pool->stats;
    settle_peak(pool);
    mti_stat_sub(&s->requested, cell->block.requested);
    mti_stat_sub(&s->allocated, cell->block.size);
    mti_stat_sub(&s->blocks, 1);
    s->by_category[cell->block.category] -= cell->block.size;
}

/* ---- segments ---- */

/* One request needs at most two cells, for a segment and for its remainder, or what an expandable
 * segment takes, and one entry in the list of segments. */
static bool make_ready(mti_pool *pool)
{
    return mti_cells_ready(pool, MTI_RANGE_CELLS) && MTI_RESERVE(&pool->segments);
}

static bool is_split(const mti_cell *cell) { return cell->left || cell->right; }

static void give_back(mti_pool *pool, const mti_segment *segment)
{
    void *base = segment->first->block.ptr;
    mti_pool_allow(pool, base, segment->size);
    pool->backend->free(pool->ctx, base, segment->size);
}

static void give_back_cached(mti_pool *pool)
{
    if (mti_pool_expands(pool)) {
        mti_range_give_back(pool, SIZE_MAX);
        return;
    }
    size_t kept = 0;
    for (size_t i = 0; i < pool->segments.n; i++) {
        mti_segment segment = pool->segments.at[i];
        if (segment.first->live || is_split(segment.first)) {
            pool->segments.at[kept++] = segment;
            continue;
        }
        mti_fit_remove(&segment.first->stream->fit, segment.first);
        give_back(pool, &segment);
        mti_reserved_sub(pool, segment.first->stream, segment.size);
        mti_stat_sub(&pool->stats.segments, 1);
        mti_notify_segment(pool, MT_MEM_SEGMENT_FREE, segment.first, segment.size);
        mti_cell_drop(pool, segment.first);
    }
    pool->segments.n = kept;
}

static void *ask_for(mti_pool *pool, size_t n_bytes)
{
    size_t used = pool->stats.reserved.current;
    if (pool->capacity && (used > pool->capacity || n_bytes > pool->capacity - used)) return NULL;
    return pool->backend->alloc(pool->ctx, n_bytes);
}

/* A new segment as one cell that is not free; NULL if refused. */
static mti_cell *new_segment(mti_pool *pool, mti_stream *stream, size_t size, bool large)
{
    size_t n_bytes = mti_segment_size(size);
    void *base = ask_for(pool, n_bytes);
    if (!base) return NULL;
    mti_pool_forbid(pool, base, n_bytes);
    mti_cell *cell = mti_cell_take(pool);
    cell->block.ptr = base;
    cell->stream = stream;
    cell->place = pool->next_place;
    cell->block.size = n_bytes;
    cell->large = large;
    cell->mapped = true;
    cell->left = cell->right = NULL;
    pool->segments.at[pool->segments.n++] = (mti_segment){cell, n_bytes};
    pool->next_place += n_bytes;
    mti_reserved_add(pool, stream, n_bytes);
    mti_stat_add(&pool->stats.segments, 1);
    mti_notify_segment(pool, MT_MEM_SEGMENT_ALLOC, cell, n_bytes);
    return cell;
}

static mti_cell *try_to_grow(mti_pool *pool, mti_stream *stream, size_t size, bool large)
{
    return mti_pool_expands(pool) ? mti_range_grow(pool, stream, size, large)
                                  : new_segment(pool, stream, size, large);
}

/* A cell from the system that is in no list; NULL if refused twice. */
static mti_cell *grow(mti_pool *pool, mti_stream *stream, size_t size, bool large)
{
    if (pool->reclaim) {
        mti_range_give_back(pool, size);
        if (!make_ready(pool)) return NULL;
    }
    mti_cell *cell = try_to_grow(pool, stream, size, large);
    if (cell) return cell;
    pool->stats.alloc_retries++;
    give_back_cached(pool);
    return make_ready(pool) ? try_to_grow(pool, stream, size, large) : NULL;
}

/* ---- take and give ---- */

/* Cuts the cell to `size` and returns the remainder, now free; NULL if it is too small to keep. */
static mti_cell *split(mti_pool *pool, mti_cell *cell, size_t size)
{
    size_t n_bytes = cell->block.size - size;
    bool coarse = cell->large && !mti_pool_expands(pool);
    if (coarse ? n_bytes <= SMALL_REQUEST : n_bytes < MTI_BLOCK_UNIT) return NULL;
    mti_cell *rest = mti_cell_cut(pool, cell, size);
    mti_fit_add(&rest->stream->fit, rest);
    return rest;
}

/* Free bytes that empty_cache would not give back, in the cell's segment. None are counted in an
 * expandable one, as in PyTorch: whole granules of them can go. */
static size_t inactive_of(const mti_pool *pool, const mti_cell *cell)
{
    return mti_cell_is_free(cell) && is_split(cell) && !mti_pool_expands(pool) ? cell->block.size
                                                                               : 0;
}

/* A free cell of at least `size` bytes; NULL if the system has no memory. */
static mti_cell *take(mti_pool *pool, mti_stream *stream, size_t size)
{
    bool large = size > SMALL_REQUEST;
    mti_cell *cell = mti_pool_expands(pool) ? mti_range_best(stream, size, large)
                                            : mti_fit_best(&stream->fit, size, large);
    size_t inactive = cell ? inactive_of(pool, cell) : 0;
    if (cell)
        mti_fit_remove(&stream->fit, cell);
    else if (!(cell = grow(pool, stream, size, large)))
        return NULL;
    mti_cell *rest = split(pool, cell, size);
    stat_move(&pool->stats.inactive_split, inactive, rest ? inactive_of(pool, rest) : 0);
    return cell;
}

/* Adds a cell to the free ones, merged with its free neighbours. */
static void release(mti_pool *pool, mti_cell *cell)
{
    size_t inactive = inactive_of(pool, cell->left) + inactive_of(pool, cell->right);
    cell->live = false;
    cell = mti_cell_join(pool, cell);
    stat_move(&pool->stats.inactive_split, inactive, inactive_of(pool, cell));
}

static size_t room_of(const mti_pool *pool)
{
    size_t used = pool->stats.reserved.current;
    if (!pool->capacity) return pool->backend->room ? pool->backend->room(pool->ctx) : SIZE_MAX;
    return used < pool->capacity ? pool->capacity - used : 0;
}

static mti_block *out_of_memory(mti_pool *pool, const mti_stream *stream, size_t n_bytes,
                                mt_category category)
{
    char asked[32], allocated[32], reserved[32], limit[64] = "", size[32];
    const mti_where *where = mti_where_now();
    pool->stats.ooms++;
    if (pool->observers.n)
        mti_notify(pool, (mt_mem_event){.kind = MT_MEM_OOM,
                                        .requested = n_bytes,
                                        .allocated = n_bytes,
                                        .category = category,
                                        .was = category,
                                        .stream = stream->number,
                                        .stream_name = stream->name,
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

static mti_block *alloc_locked(mti_pool *pool, mti_stream *stream, size_t n_bytes,
                               mt_category category)
{
    if (!make_ready(pool)) return NULL;
    if (mti_alloc_should_fail() || n_bytes > SIZE_MAX - LARGE_SEGMENT)
        return out_of_memory(pool, stream, n_bytes, category);
    size_t size = mti_rounded(n_bytes);
    mti_cell *cell = size ? take(pool, stream, size) : mti_cell_take(pool);
    if (!cell) return out_of_memory(pool, stream, n_bytes, category);
    if (!size) cell->block.ptr = NULL, cell->block.size = 0, cell->stream = stream;
    cell->live = true;
    cell->block.requested = n_bytes;
    cell->block.serial = ++pool->last_serial;
    cell->block.category = category;
    cell->block.owner = NULL;
    cell->block.records = NULL;
    if (!size) return &cell->block;
    mti_pool_allow(pool, cell->block.ptr, n_bytes);
    count_alloc(pool, cell);
    mti_notify_block(pool, MT_MEM_ALLOC, cell, category);
    return &cell->block;
}

mti_block *mti_pool_alloc(mti_pool *pool, size_t n_bytes, mt_category category)
{
    assert((unsigned)category < MT_CATEGORY_COUNT);
    pthread_mutex_lock(&pool->lock);
    mti_block *block = alloc_locked(pool, mti_stream_now(pool), n_bytes, category);
    pthread_mutex_unlock(&pool->lock);
    return block;
}

static void free_locked(mti_pool *pool, mti_block *block, size_t n_bytes)
{
    mti_cell *cell = (mti_cell *)block;
    assert(cell->live && block->requested == n_bytes);
    (void)n_bytes;
    if (block->records) mti_book_freed_locked(block);
    if (block->size) {
        count_free(pool, cell);
        mti_notify_block(pool, MT_MEM_FREE, cell, block->category);
        mti_pool_forbid(pool, block->ptr, cell->block.size);
        release(pool, cell);
    } else {
        mti_cell_drop(pool, cell);
    }
}

void mti_pool_free(mti_pool *pool, mti_block *block, size_t n_bytes)
{
    if (!block) return;
    pthread_mutex_lock(&pool->lock);
    free_locked(pool, block, n_bytes);
    pthread_mutex_unlock(&pool->lock);
}

static void recategorise_locked(mti_pool *pool, mti_block *block, mt_category category)
{
    assert((unsigned)category < MT_CATEGORY_COUNT);
    mt_category was = block->category;
    if (was == category) return;
    settle_peak(pool);
    pool->stats.by_category[was] -= block->size;
    pool->stats.by_category[category] += block->size;
    block->category = category;
    if (block->size) mti_notify_block(pool, MT_MEM_RECATEGORY, (const mti_cell *)block, was);
}

void mti_pool_recategorise(mti_pool *pool, mti_block *block, mt_category category)
{
    pthread_mutex_lock(&pool->lock);
    recategorise_locked(pool, block, category);
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

static bool check_granule(const mti_pool *pool, size_t granule)
{
    const mti_ranges *ranges = pool->backend->ranges;
    size_t page = ranges ? ranges->page(pool->ctx) : 0;
    if (!page)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "mem_set_expandable: memory of this %s device does not come in "
                             "granules",
                             pool->backend->kind);
    bool whole = granule ? granule % page == 0 : MTI_SMALL_GRANULE % page == 0;
    return (whole && granule <= MTI_MAX_GRANULE) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "mem_set_expandable: a granule of %zu bytes; need a multiple of %zu, at "
                         "most %zu",
                         granule ? granule : MTI_SMALL_GRANULE, page, MTI_MAX_GRANULE);
}

bool mti_pool_set_expandable(mti_pool *pool, const mt_expandable *options)
{
    size_t granule = options ? options->granule : 0;
    if (options && !check_granule(pool, granule)) return false;
    pthread_mutex_lock(&pool->lock);
    bool ok = !pool->segments.n || (!options && !mti_pool_expands(pool));
    if (ok) {
        pool->granule[0] = !options ? 0 : granule ? granule : MTI_SMALL_GRANULE;
        pool->granule[1] = !options ? 0 : granule ? granule : MTI_LARGE_GRANULE;
        pool->reclaim = options && options->reclaim;
    }
    pthread_mutex_unlock(&pool->lock);
    return ok || mti_fail_bool(MT_ERR_STATE,
                               "mem_set_expandable: the device holds memory already; call it "
                               "before the first tensor");
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
    pool->default_stream.name = "default";
    pool->streams[pool->n_streams++] = &pool->default_stream;
    return pool;
}

void mti_pool_free_all(mti_pool *pool)
{
    if (!pool) return;
    if (mti_pool_expands(pool)) mti_range_free_all(pool);
    for (size_t i = 0; i < pool->segments.n && !mti_pool_expands(pool); i++)
        give_back(pool, &pool->segments.at[i]);
    mti_cells_free(pool);
    for (int i = 1; i < pool->n_streams; i++) mti_free(pool->streams[i]);
    mti_free(pool->segments.at);
    mti_free(pool->observers.at);
    pthread_mutex_destroy(&pool->lock);
    mti_free(pool);
}
