/* memtrack.h: the caching allocator and the ledger's book of saved tensors.
 *
 * This layer handles storages, bytes, categories and names, never tensors: the
 * layers above pass it plain records. */
#ifndef MTI_MEMTRACK_H
#define MTI_MEMTRACK_H

#include <stdatomic.h>
#include "backends/backend.h"
#include "memtape/memory.h"

extern const mti_choice mti_categories, mti_save_roles;

/* ---- the caching allocator: one per device, thread-safe ----
 *
 * PyTorch's CUDA caching allocator, rule by rule (c10/cuda/CUDACachingAllocator.cpp):
 * sizes are rounded up to 512 bytes; up to 1 MiB come from the small pool (2 MiB
 * segments), more than that from the large pool: under 10 MiB from 20 MiB segments,
 * else from a segment rounded up to 2 MiB. Best fit (smallest that fits, then the
 * lowest address, an older segment counting as lower: best_fit.h); a block is split when the rest
 * is >= 512 bytes (small pool) or > 1 MiB (large pool); freed neighbours coalesce; freed segments
 * are cached until empty_cache, or until the system refuses memory, when all cached ones are given
 * back and the request is tried once more. Zero bytes need no block. Segments may be expandable:
 * range.h. Each stream has its own pools and segments, as mt_mem_stream_begin tells. */

typedef struct mti_pool mti_pool;
typedef struct mti_block mti_block;
typedef struct mti_book mti_book;
typedef struct mti_record mti_record;

struct mti_block {
    void *ptr;        /* not dereferenceable on backends without data */
    size_t requested; /* repeated at free */
    size_t size;      /* of the whole block, with the rest that was not split off */
    uint64_t serial;  /* given by the pool: 1, 2, 3, ... never reused */
    mt_category category;
    void *owner;         /* set by the caller, NULL at first; the pool does not use it */
    mti_record *records; /* in books that list it, linked by `next`; under the pool's lock */
    /* private to the allocator from here on: declared in best_fit.h */
};

#define MTI_BLOCK_UNIT 512
/* What a request takes of its block; what is more is the rest that was not split off. */
static inline size_t mti_rounded(size_t n_bytes)
{
    return (n_bytes + MTI_BLOCK_UNIT - 1) / MTI_BLOCK_UNIT * MTI_BLOCK_UNIT;
}

/* What a request that no free block serves asks the device for; so "Tried to allocate" in PyTorch.
 */
size_t mti_segment_size(size_t n_bytes);

mti_pool *mti_pool_new(const mti_backend *backend, mti_ctx *ctx);
void mti_pool_free_all(mti_pool *pool); /* at the end: frees every segment */

/* NULL and an MT_ERR_MEMORY that names the size, what is allocated and what is
 * reserved. A request of 0 bytes gives a block with ptr NULL and size 0. */
mti_block *mti_pool_alloc(mti_pool *pool, size_t n_bytes, mt_category category);
/* n_bytes repeats the request: the two must agree (asserted). NULL is allowed. */
void mti_pool_free(mti_pool *pool, mti_block *block, size_t n_bytes);
void mti_pool_recategorise(mti_pool *pool, mti_block *block, mt_category category);
void mti_pool_empty_cache(mti_pool *pool);
void mti_pool_set_capacity(mti_pool *pool, size_t n_bytes); /* of all segments; 0: no limit */
/* Expandable segments (range.h) from now on; NULL: none. False, with an error, once the pool holds
 * memory. */
bool mti_pool_set_expandable(mti_pool *pool, const mt_expandable *options);
void mti_pool_get_stats(const mti_pool *pool, mt_mem_stats *out);
void mti_pool_reset_peak(mti_pool *pool);
/* A nested region reset the peak: restore the outer one. */
void mti_pool_restore_outer_peak(mti_pool *pool, const mt_mem_stats *outer);
/* mt_mem_stream_begin and so on; the scope is untouched on failure. */
bool mti_pool_stream_begin(mti_pool *pool, mt_stream_scope *scope, const char *name);
void mti_stream_end(mt_stream_scope *scope);
int mti_pool_get_streams(mti_pool *pool, mt_stream_stats out[MT_MAX_STREAMS]);
int mti_pool_add_observer(mti_pool *pool, mt_mem_event_fn *fn, void *user);
void mti_pool_remove_observer(mti_pool *pool, int id);
/* Visit every live block, in order of places (best_fit.h): on every device the same, and whoever
 * looks leaves the pool as it was (debug checks, reports). */
void mti_pool_visit(mti_pool *pool, void (*fn)(void *user, const mti_block *block), void *user);
/* Visit every segment with its blocks, free ones included (memory snapshots). */
typedef struct mti_segment_info {
    const void *base;
    size_t size; /* of an expandable one: a part without gaps */
    bool large, expandable;
} mti_segment_info;
void mti_pool_visit_all(mti_pool *pool,
                        void (*fn)(void *user, const mti_segment_info *segment, const void *ptr,
                                   size_t size, size_t requested, bool live),
                        void *user);
/* A part of a segment, as far as it decides where later blocks go. */
typedef struct mti_cell_info {
    uint64_t place;  /* best_fit.h */
    size_t span;     /* bytes from here to the next */
    uint64_t serial; /* 0: it is free */
    bool mapped;     /* false: addresses of an expandable segment without memory */
} mti_cell_info;
/* Visits them all by place, until fn returns false. */
void mti_pool_visit_cells(mti_pool *pool, bool (*fn)(void *user, const mti_cell_info *cell),
                          void *user);
/* The serial of the newest block. */
uint64_t mti_pool_newest(mti_pool *pool);
/* Recounts everything from the blocks and compares with the running totals; false and
 * MT_ERR_INTERNAL, naming the first figure that differs. */
bool mti_pool_check(mti_pool *pool);

/* ---- the book of saved tensors: guarded by the lock of one pool, whose blocks it lists ---- */

/* A distinct storage. Its bytes count for the first saver; later ones share it at 0 bytes. Strings
 * are interned or static. */
struct mti_record {
    uint64_t serial;     /* of the storage */
    size_t bytes;        /* of the whole storage */
    size_t rounded;      /* the same up to a multiple of 512 */
    size_t allocated;    /* of the block */
    mt_saver saver;      /* the first */
    size_t n_also, room; /* room: for so many in `also` */
    const mt_saver *also;
    bool freed;                 /* its bytes were freed */
    const char *freed_after_op; /* the backward node that ran then; "" if outside backward */
    const char *freed_after_module;
    /* private to the book from here on */
    mti_book *book;
    mti_block *block; /* NULL once it was freed */
    mti_record *next; /* of the same block, in another book */
};

mti_book *mti_book_new(mti_pool *pool);
void mti_book_free(mti_book *book);
/* Forgets all records and keeps their memory; what is ignored stays so. */
void mti_book_reset(mti_book *book);
/* Storages not to count (parameters). A storage that was saved before stays in the book. */
bool mti_book_ignore(mti_book *book, uint64_t serial);
/* n_bytes: of the storage in that block. */
bool mti_book_save(mti_book *book, mti_block *block, size_t n_bytes, const mt_saver *saver);
/* Takes back one save: the node no longer keeps it. A storage that nobody saved besides leaves the
 * book. block: the storage's; NULL if that is not known. Saves that the book does not have are
 * ignored. */
void mti_book_take_back(mti_book *book, const mti_block *block, uint64_t node,
                        const char *argument);
/* Under the lock: the block is about to be freed, by the backward node that runs if one does. Not
 * for a block without memory, which only leaves its records. */
void mti_book_freed_locked(mti_block *block);
size_t mti_book_count(const mti_book *book); /* distinct storages saved, and not taken back */
size_t mti_book_bytes(const mti_book *book); /* their bytes, freed or not */
size_t mti_book_live_bytes(const mti_book *book);
size_t mti_book_allocated(const mti_book *book); /* of their blocks */
/* i-th in order of first saving; valid until the next save. */
const mti_record *mti_book_get(const mti_book *book, size_t i);

#endif
