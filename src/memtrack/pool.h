/* pool.h: the inside of the caching allocator, for pool.c and audit.c. */
#ifndef MTI_POOL_H
#define MTI_POOL_H

#include <pthread.h>
#include "memtrack/fit.h"
#include "memtrack/recording.h"

/* The first cell of a segment stays the same as long as the segment is there. */
typedef struct mti_segment {
    mti_cell *first;
    size_t size;
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
    MTI_VEC(mti_segment) segments; /* in any order: visits sort them by address */
    mti_cell *spare;               /* cells that stand for nothing, linked by `right` */
    mti_slab *slabs;               /* where all cells come from */
    uint64_t last_serial;
    uint64_t next_place; /* of the next segment: above all there ever were */
    size_t capacity;     /* of all segments; 0: no limit */
    mt_mem_stats stats;
    bool at_peak; /* allocated.current is the peak and its snapshot is still to be taken */
    MTI_VEC(mti_observer) observers;
    int last_observer;
    size_t n_open_books; /* that a ledger may write into */
    mti_trace *trace;    /* that is being recorded */
    bool may_not_grow;   /* a trace is being repeated */
    mti_fit fit;
};

/* As mti_pool_alloc and so on, under the pool's lock. */
mti_block *mti_pool_alloc_locked(mti_pool *pool, size_t n_bytes, mt_category category);
void mti_pool_free_locked(mti_pool *pool, mti_block *block, size_t n_bytes);
/* Whether memory that no live block has may be touched, where that is watched. */
void mti_pool_let_touch_locked(const mti_pool *pool, void *p, size_t n_bytes, bool let);
void mti_pool_recategorise_locked(mti_pool *pool, mti_block *block, mt_category category);

#endif
