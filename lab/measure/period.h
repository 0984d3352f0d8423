/* period.h: from where on a step's microbatches repeat themselves.
 *
 * Their schedule does so at once, but where a block goes depends on what was freed before it. So
 * what follows is the same only when the allocator, too, is as it was some microbatches ago: the
 * same blocks, live or free, at the same places, and in each the same tensor, or the one that
 * stands in its place now: of the forward or backward as many turns ago, made there as the same in
 * order. */
#ifndef MTI_MEASURE_PERIOD_H
#define MTI_MEASURE_PERIOD_H

#include "parallel/parallel.h"

/* A block at one instant; private. */
typedef struct mti_repeat_block {
    mti_cell_info cell;
    bool backward;
    int64_t turn, nth; /* made in this forward or backward, as its nth; turn -1: before the step */
} mti_repeat_block;

/* Zero, then observe a stage's steps; free at the end. */
typedef struct mti_repeat {
    const mti_stage *stage; /* borrowed */
    int64_t ahead;          /* forwards before the first backward */
    int64_t unit; /* after so many turns its forwards and backwards are of the same parts again */
    MTI_VEC(uint64_t) begins;         /* of each turn: the newest block's serial */
    MTI_VEC(mti_repeat_block) anchor; /* the state that later ones are compared with */
    int64_t at, span;                 /* after how many backwards; it is replaced after so many */
    uint64_t seen;                    /* cells */
} mti_repeat;

/* From now on each step of the stage leaves out the turns to come that would only repeat what has
 * been: its device has no data. */
void mti_repeat_observe(mti_repeat *r, mti_stage *stage);
void mti_repeat_free(mti_repeat *r);

#endif
