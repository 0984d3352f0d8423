/* blocks.h: tensors that are alive at the peak, the measured ones matched with the predicted ones
 * by their sizes. */
#ifndef MTI_COMPARE_BLOCKS_H
#define MTI_COMPARE_BLOCKS_H

#include "compare/history.h"

/* A size of which one side has more. */
typedef struct mti_block_row {
    size_t size;                /* bytes asked for each */
    size_t measured, predicted; /* how many there are */
    mti_context context;        /* of the first that the other side lacks ... */
    size_t n_contexts;          /* ... of so many different ones */
    const char *known;          /* what has this size; NULL: nothing that is known */
} mti_block_row;

/* Those that both sides have, and the rows of the others, most bytes first: the peaks differ by the
 * sum of the rows. */
typedef struct mti_block_match {
    size_t n_by_op, bytes_by_op;     /* same size and same op */
    size_t n_by_size, bytes_by_size; /* same size only */
    MTI_VEC(mti_block_row) rows;
} mti_block_match;

/* Matches the blocks alive after n_measured and n_predicted events. Its strings are borrowed from
 * the histories. Free it even after a failure. */
bool mti_blocks_match(mti_block_match *m, const mti_history *measured, size_t n_measured,
                      const mti_history *predicted, size_t n_predicted);
void mti_block_match_free(mti_block_match *m);
/* Bytes of a row that are measured and not predicted. */
int64_t mti_block_row_difference(const mti_block_row *r);

#endif
