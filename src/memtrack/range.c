/* range.c: expandable segments: where they grow, and what goes back. */
#include "memtrack/range.h"

static size_t granule_of(const mti_pool *pool, bool large) { return pool->granule[large]; }

/* ---- cells without memory: a list by place, almost always of one ---- */

static void list_unmapped(mti_cell *cell)
{
    mti_cell **at = &cell->stream->unmapped[cell->large];
    while (*at && (*at)->place < cell->place) at = &(*at)->fit.next;
    cell->mapped = false;
    cell->fit.next = *at;
    *at = cell;
}

static void unlist_unmapped(mti_cell *cell)
{
    mti_cell **at = &cell->stream->unmapped[cell->large];
    while (*at != cell) at = &(*at)->fit.next;
    *at = cell->fit.next;
}

/* ---- the best fit ---- */

static bool can_grow(const mti_cell *cell) { return cell->right && !cell->right->mapped; }

static size_t grown(const mti_cell *cell)
{
    return cell->block.size + (can_grow(cell) ? cell->right->block.size : 0);
}

/* In order of size, the first that cannot grow or that is followed by none that would stay smaller.
 * To see what follows a cell, it is taken out for the time being. */
mti_cell *mti_range_best(mti_stream *stream, size_t size, bool large)
{
    mti_fit *fit = &stream->fit;
    mti_cell *best = mti_fit_best(fit, size, large), *passed = NULL;
    while (best && can_grow(best)) {
        mti_fit_remove(fit, best);
        best->fit.next = passed;
        passed = best;
        mti_cell *following = mti_fit_best(fit, size, large);
        if (!following || grown(following) >= grown(best)) break;
        best = following;
    }
    while (passed) {
        mti_cell *before = passed->fit.next;
        mti_fit_add(fit, passed);
        passed = before;
    }
    return best;
}

/* ---- growing ---- */

/* An eighth more addresses than the device has memory, so that there is room behind granules that
 * cannot go back; fewer if the system has no more. */
static void *reserve(mti_pool *pool, size_t needed, size_t granule, size_t *n_bytes)
{
    size_t total = pool->backend->ranges->total(pool->ctx);
    if (pool->capacity && pool->capacity < total) total = pool->capacity;
    if (total > MTI_RANGE_PLACES / 2) total = MTI_RANGE_PLACES / 2;
    if (needed > MTI_RANGE_PLACES - granule) return NULL;
    needed = mti_round_up(needed, granule);
    *n_bytes = mti_round_up(total + total / 8, granule);
    for (;; *n_bytes = mti_round_up(*n_bytes / 2, granule)) {
        if (*n_bytes < needed) *n_bytes = needed;
        void *base = pool->backend->ranges->reserve(pool->ctx, *n_bytes);
        if (base || *n_bytes == needed) return base;
    }
}

/* A new segment as one cell without memory; NULL if refused. */
static mti_cell *new_range(mti_pool *pool, mti_stream *stream, size_t size, bool large)
{
    size_t n_bytes;
    void *base = reserve(pool, size, granule_of(pool, large), &n_bytes);
    if (!base) return NULL;
    mti_cell *cell = mti_cell_take(pool);
    cell->block.ptr = base;
    cell->stream = stream;
    cell->place = pool->next_place;
    cell->block.size = n_bytes;
    cell->large = large;
    cell->left = cell->right = NULL;
    pool->segments.at[pool->segments.n++] = (mti_segment){cell, n_bytes};
    pool->next_place += MTI_RANGE_PLACES;
    list_unmapped(cell);
    return cell;
}

/* The cell at the lowest place from which on `size` bytes are free or have no memory yet. */
static mti_cell *lowest_room(const mti_stream *stream, size_t size, bool large)
{
    for (mti_cell *at = stream->unmapped[large]; at; at = at->fit.next) {
        mti_cell *first = mti_cell_is_free(at->left) ? at->left : at;
        size_t n_bytes = 0;
        for (mti_cell *c = first; c && !c->live && n_bytes < size; c = c->right)
            n_bytes += c->block.size;
        if (n_bytes >= size) return first;
    }
    return NULL;
}

static bool ask_for(mti_pool *pool, const mti_cell *cell, size_t n_bytes)
{
    size_t used = pool->stats.reserved.current;
    if (pool->capacity && (used > pool->capacity || n_bytes > pool->capacity - used)) return false;
    return pool->backend->ranges->map(pool->ctx, cell->block.ptr, n_bytes,
                                      granule_of(pool, cell->large));
}

/* Gets memory for the first `size` bytes of a cell that has none, in whole granules. Returns the
 * free cell that they are in; NULL if refused. */
static mti_cell *map(mti_pool *pool, mti_cell *cell, size_t size)
{
    size_t n_bytes = mti_round_up(size, granule_of(pool, cell->large));
    if (!ask_for(pool, cell, n_bytes)) return NULL;
    unlist_unmapped(cell);
    if (n_bytes < cell->block.size) list_unmapped(mti_cell_cut(pool, cell, n_bytes));
    cell->mapped = true;
    mti_pool_forbid(pool, cell->block.ptr, n_bytes);
    mti_reserved_add(pool, cell->stream, n_bytes);
    mti_notify_segment(pool, MT_MEM_SEGMENT_MAP, cell, n_bytes);
    return mti_cell_join(pool, cell);
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

mti_cell *mti_range_grow(mti_pool *pool, mti_stream *stream, size_t size, bool large)
{
    mti_cell *cell = lowest_room(stream, size, large);
    if (!cell) cell = new_range(pool, stream, size, large);
    if (cell && !cell->mapped) cell = map(pool, cell, smaller(size, cell->block.size));
    while (cell && cell->block.size < size)
        cell = map(pool, cell->right, smaller(size - cell->block.size, cell->right->block.size));
    if (cell) mti_fit_remove(&stream->fit, cell);
    return cell;
}

/* ---- giving back ---- */

/* Cells for what stays of a block before and behind what goes. What failed here nobody asked for,
 * so its error is not reported: the block stays. */
static bool ready_to_cut(mti_pool *pool)
{
    mti_error before;
    mti_error_get(&before);
    bool ready = mti_cells_ready(pool, MTI_RANGE_CELLS + 2);
    if (!ready) mti_error_set(&before);
    return ready;
}

/* Gives back whole granules of a free cell, at most so many bytes. Returns the last cell of what
 * becomes of it. */
static mti_cell *unmap(mti_pool *pool, mti_cell *cell, size_t at_most)
{
    size_t granule = granule_of(pool, cell->large), start = cell->place % MTI_RANGE_PLACES;
    size_t before = mti_round_up(start, granule) - start;
    if (cell->block.size < before + granule || !ready_to_cut(pool)) return cell;
    size_t n_bytes = (cell->block.size - before) / granule * granule;
    if (n_bytes > at_most) n_bytes = mti_round_up(at_most, granule);
    char *p = (char *)cell->block.ptr + before;
    mti_pool_allow(pool, p, n_bytes);
    if (!pool->backend->ranges->unmap(pool->ctx, p, n_bytes, granule)) {
        mti_pool_forbid(pool, p, n_bytes);
        return cell;
    }
    mti_fit *fit = &cell->stream->fit;
    mti_fit_remove(fit, cell);
    if (before) {
        mti_cell *rest = mti_cell_cut(pool, cell, before);
        mti_fit_add(fit, cell);
        cell = rest;
    }
    mti_cell *last = cell;
    if (cell->block.size > n_bytes) {
        last = mti_cell_cut(pool, cell, n_bytes);
        mti_fit_add(fit, last);
    }
    mti_reserved_sub(pool, cell->stream, n_bytes);
    mti_notify_segment(pool, MT_MEM_SEGMENT_UNMAP, cell, n_bytes);
    if (cell->right && !cell->right->mapped) {
        unlist_unmapped(cell->right);
        mti_cell_absorb_right(pool, cell);
    }
    if (cell->left && !cell->left->mapped) {
        bool was_last = last == cell;
        cell = cell->left;
        unlist_unmapped(cell);
        mti_cell_absorb_right(pool, cell);
        if (was_last) last = cell;
    }
    list_unmapped(cell);
    return last;
}

void mti_range_give_back(mti_pool *pool, size_t at_most)
{
    size_t kept = 0, reserved = pool->stats.reserved.current;
    for (size_t i = 0; i < pool->segments.n; i++) {
        mti_segment segment = pool->segments.at[i];
        bool unmapped = false;
        for (mti_cell *c = segment.first; c; c = c->right) {
            if (!mti_cell_is_free(c)) continue;
            size_t gone = reserved - pool->stats.reserved.current;
            if (gone >= at_most) break;
            c = unmap(pool, c, at_most - gone);
            unmapped = true;
        }
        if (!unmapped || segment.first->mapped || segment.first->right) {
            pool->segments.at[kept++] = segment;
            continue;
        }
        unlist_unmapped(segment.first);
        pool->backend->ranges->release(pool->ctx, segment.first->block.ptr, segment.size);
        mti_cell_drop(pool, segment.first);
    }
    pool->segments.n = kept;
}

void mti_range_free_all(mti_pool *pool)
{
    for (size_t i = 0; i < pool->segments.n; i++) {
        const mti_segment *segment = &pool->segments.at[i];
        for (const mti_cell *c = segment->first, *end; c; c = end) {
            size_t n_bytes = 0; /* of neighbours that have memory */
            for (end = c; end && end->mapped; end = end->right) n_bytes += end->block.size;
            if (!n_bytes) {
                end = c->right;
                continue;
            }
            mti_pool_allow(pool, c->block.ptr, n_bytes);
            pool->backend->ranges->unmap(pool->ctx, c->block.ptr, n_bytes,
                                         granule_of(pool, c->large));
        }
        pool->backend->ranges->release(pool->ctx, segment->first->block.ptr, segment->size);
    }
}
