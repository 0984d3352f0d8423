/* pool.h: the inside of the caching allocator, for the files of this folder. */
#ifndef MTI_POOL_H
#define MTI_POOL_H

#include <pthread.h>
#include "memtrack/best_fit.h"
#include "memtrack/shadow.h"

/* The pools of a stream, small and large: what is free in its segments, no other stream gets. */
struct mti_stream {
    const char *name;
    int number;
    mti_fit fit;
    mti_cell *unmapped[2]; /* of its expandable segments, cells without memory, by place */
    size_t reserved;
};

/* The first cell of a segment stays the same as long as the segment is there. */
typedef struct mti_segment {
    mti_cell *first;
    size_t size; /* of its addresses, where it is expandable */
} mti_segment;

typedef struct mti_observer {
    int id;
    mt_mem_event_fn *fn;
    void *user;
} mti_observer;

typedef struct mti_slab mti_slab;

struct mti_pool {
    pthread_mutex_t lock;
    const mti_backend *backend;
    mti_ctx *ctx;
    bool in_host_memory;           /* so that a sanitizer can watch it (shadow.h) */
    MTI_VEC(mti_segment) segments; /* by place, since a new one's is above all others' */
    size_t granule[2];             /* of expandable segments, small and large; 0: not expandable */
    bool reclaim;                  /* what is free goes back before they grow */
    mti_cell *spare;               /* cells that stand for nothing, linked by `right` */
    size_t n_spare;
    mti_slab *slabs; /* where all cells come from */
    uint64_t last_serial;
    uint64_t next_place; /* of the next segment: above all there ever were */
    size_t capacity;     /* of all segments; 0: no limit */
    mt_mem_stats stats;
    bool at_peak; /* allocated.current is the peak and its snapshot is still to be taken */
    MTI_VEC(mti_observer) observers;
    int last_observer;
    mti_stream default_stream; /* number 0 */
    int n_streams;
    mti_stream *streams[MT_MAX_STREAMS]; /* by number */
};

static inline size_t mti_round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }
static inline bool mti_pool_expands(const mti_pool *pool) { return pool->granule[0] != 0; }

/* ---- statistics and events: notify.c ---- */

static inline void mti_stat_add(mt_stat *s, size_t n)
{
    s->current += n;
    s->total_in += n;
    if (s->current > s->peak) s->peak = s->current;
}

static inline void mti_stat_sub(mt_stat *s, size_t n)
{
    s->current -= n;
    s->total_out += n;
}

void mti_notify(mti_pool *pool, mt_mem_event event); /* calls the observers */
void mti_notify_of_block(mti_pool *pool, mt_mem_event_kind kind, const mti_cell *cell,
                         mt_category was);
/* If anybody observes. was: the block's category before. */
static inline void mti_notify_block(mti_pool *pool, mt_mem_event_kind kind, const mti_cell *cell,
                                    mt_category was)
{
    if (pool->observers.n) mti_notify_of_block(pool, kind, cell, was);
}

/* From the cell's place on. */
void mti_notify_segment(mti_pool *pool, mt_mem_event_kind kind, const mti_cell *cell, size_t size);

/* ---- streams: stream.c ---- */

/* The stream that the calling thread's requests are for. */
mti_stream *mti_stream_of_scope(mti_pool *pool);
static inline mti_stream *mti_stream_now(mti_pool *pool)
{
    return pool->n_streams > 1 ? mti_stream_of_scope(pool) : &pool->default_stream;
}

static inline void mti_reserved_add(mti_pool *pool, mti_stream *stream, size_t n_bytes)
{
    mti_stat_add(&pool->stats.reserved, n_bytes);
    stream->reserved += n_bytes;
}

static inline void mti_reserved_sub(mti_pool *pool, mti_stream *stream, size_t n_bytes)
{
    mti_stat_sub(&pool->stats.reserved, n_bytes);
    stream->reserved -= n_bytes;
}

/* ---- cells: cells.c ---- */

static inline void mti_cell_drop(mti_pool *pool, mti_cell *cell)
{
    cell->live = false;
    cell->right = pool->spare;
    pool->spare = cell;
    pool->n_spare++;
}

/* One of those that mti_cells_ready has made sure of. */
static inline mti_cell *mti_cell_take(mti_pool *pool)
{
    mti_cell *cell = pool->spare;
    pool->spare = cell->right;
    pool->n_spare--;
    return cell;
}

bool mti_cells_ready(mti_pool *pool, size_t n);
void mti_cells_free(mti_pool *pool);
/* Shortens the cell to `size`; the new cell behind it has the rest and is in no list. */
mti_cell *mti_cell_cut(mti_pool *pool, mti_cell *cell, size_t size);
/* Appends the right neighbour and recycles its cell. */
void mti_cell_absorb_right(mti_pool *pool, mti_cell *cell);
/* Memory that nobody has; NULL is none. */
static inline bool mti_cell_is_free(const mti_cell *cell)
{
    return cell && !cell->live && cell->mapped;
}

/* Adds a cell to the free ones, merged with its free neighbours; returns the merged one. */
mti_cell *mti_cell_join(mti_pool *pool, mti_cell *cell);

/* ---- memory that no live block has may not be touched, where a sanitizer watches ---- */

static inline void mti_pool_forbid(const mti_pool *pool, void *p, size_t n_bytes)
{
    if (pool->in_host_memory) MTI_FORBID(p, n_bytes);
}

static inline void mti_pool_allow(const mti_pool *pool, void *p, size_t n_bytes)
{
    if (pool->in_host_memory) MTI_ALLOW(p, n_bytes);
}

#endif
