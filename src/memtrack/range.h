/* range.h: expandable segments: addresses that get memory in granules, as it is needed.
 *
 * PyTorch's rules (c10/cuda/CUDACachingAllocator.cpp, expandable_segments:True). The small and the
 * large pool of a stream have a segment each, of more addresses than the device has bytes; a second
 * one is made where the first has no room left. Granules are of 2 MiB and 20 MiB, or of the size
 * that mt_mem_set_expandable was given. A request for which no free block is large enough gets
 * memory at the lowest addresses without any, joined with the free block before them. A free block
 * before such addresses counts, for the best fit, as large as it could grow. What is given back are
 * the whole granules in free blocks. A block is split wherever 512 bytes are left.
 *
 * With `reclaim`, which PyTorch does not have, as much as a segment would grow by is given back
 * first, where so much is free: a block that is too small for a request serves it after all,
 * elsewhere. */
#ifndef MTI_RANGE_H
#define MTI_RANGE_H

#include "memtrack/pool.h"

#define MTI_SMALL_GRANULE ((size_t)2 << 20)
#define MTI_LARGE_GRANULE (10 * MTI_SMALL_GRANULE)
#define MTI_MAX_GRANULE   ((size_t)1 << 40)
/* Places that a segment takes, used or not: those of the next are the same on all devices. */
#define MTI_RANGE_PLACES ((uint64_t)1 << 44)
/* Cells that a request may need here: a new segment's, what stays without memory, and the rest
 * that it leaves. */
#define MTI_RANGE_CELLS 3

/* The best fit among a stream's free blocks; NULL if none is large enough. */
mti_cell *mti_range_best(mti_stream *stream, size_t size, bool large);
/* A free cell of at least `size` bytes, in no list, by getting memory; NULL if refused. */
mti_cell *mti_range_grow(mti_pool *pool, mti_stream *stream, size_t size, bool large);
/* Gives back the memory of granules that are free, until it is at_most bytes or all of it, and
 * segments that have none left. */
void mti_range_give_back(mti_pool *pool, size_t at_most);
void mti_range_free_all(mti_pool *pool); /* at the end, live blocks included */

#endif
