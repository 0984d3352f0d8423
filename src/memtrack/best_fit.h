/* best_fit.h: the free blocks, ordered so that the best fit is found at once: the
 * smallest that is large enough and, among equals, the one at the lowest place.
 *
 * Places are the addresses that cells would have if each new segment were above all earlier ones,
 * as cudaMalloc tends to place them. With real addresses the host's malloc would decide which of
 * two equal blocks is taken, and with it how much is reserved; with places the books are the same
 * on every device.
 *
 * Small pool: sizes are multiples of 512 up to 2 MiB, so there is a bin for each;
 * a bitmap finds the first bin that is not empty, and within a bin a pairing heap
 * keeps the lowest place on top. Large pool, and what is free in one piece in the small pool's
 * expandable segments beyond 2 MiB: a treap ordered by size and place. */
#ifndef MTI_BEST_FIT_H
#define MTI_BEST_FIT_H

#include "memtrack/memtrack.h"

#define MTI_SMALL_SEGMENT ((size_t)2 << 20)
#define MTI_FIT_BINS      (MTI_SMALL_SEGMENT / MTI_BLOCK_UNIT)
#define MTI_FIT_WORDS     (MTI_FIT_BINS / 64)

/* A part of a segment, live or free. Its first member is the block that callers see; block.size
 * reaches to the next cell, and is 0 of a live one without memory. */
typedef struct mti_cell mti_cell;
typedef struct mti_stream mti_stream; /* pool.h */
struct mti_cell {
    mti_block block;
    mti_stream *stream;
    uint64_t place;
    bool live, large;
    bool mapped; /* false: addresses of an expandable segment that have no memory (range.h) */
    mti_cell *left, *right; /* neighbours in the segment; NULL at its ends */
    union {                 /* links of free cells in their bin or a treap, and of unmapped ones */
        struct {
            mti_cell *child, *next, *prev; /* prev: left sibling; of the first: parent */
        } heap;
        struct {
            mti_cell *less, *more;
            uint64_t priority;
        } tree;
        mti_cell *next;
    } fit;
};

typedef struct mti_fit {
    mti_cell *bin[MTI_FIT_BINS];  /* bin i: cells of (i + 1) * 512 bytes */
    uint64_t word[MTI_FIT_WORDS]; /* bit i % 64 of word i / 64: bin i is not empty */
    uint64_t words;               /* bit w: word w is not 0 */
    mti_cell *root[2];            /* of the small pool, cells above 2 MiB; of the large pool, all */
    uint64_t random;
    size_t n, n_bytes; /* of all free cells */
} mti_fit;

/* NULL if none is large enough. */
mti_cell *mti_fit_best(const mti_fit *fit, size_t size, bool large);
void mti_fit_add(mti_fit *fit, mti_cell *cell);
void mti_fit_remove(mti_fit *fit, mti_cell *cell);
/* Whether mti_fit_best would find this free cell where it is. */
bool mti_fit_holds(const mti_fit *fit, const mti_cell *cell);

#endif
