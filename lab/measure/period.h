/* period.h: from where on a step's microbatches repeat themselves.
 *
 * Their schedule does so at once, but where a block goes depends on what was freed before it. So
 * what follows is the same only when the allocator, too, is as it was some microbatches ago: the
 * same blocks, live or free, at the same places, and in each the same tensor, or the one that
 * stands in its place now: of the forward or backward as many turns ago, made there as the same in
 * order. */
#ifndef MTI_MEASURE_PERIOD_H
#define MTI_MEASURE_PERIOD_H

#include "tensor/tensor.h"

/* A block at one instant; private. */
typedef struct mti_repeat_block {
    mti_cell_info cell;
    bool backward;
    int64_t turn, nth; /* made in this forward or backward, as its nth; turn -1: before the step */
} mti_repeat_block;

/* Zero, then begin for each step; free at the end. */
typedef struct mti_repeat {
    mt_device *device;
    int64_t ahead, unit;
    MTI_VEC(uint64_t) begins;         /* of each turn: the newest block's serial */
    MTI_VEC(mti_repeat_block) anchor; /* the state that later ones are compared with */
    int64_t at, span;                 /* after how many backwards; it is replaced after so many */
    uint64_t seen;                    /* cells */
} mti_repeat;

/* Begins a step that has `ahead` forwards before the first backward; after `unit` turns its
 * forwards and backwards are of the same parts again. */
void mti_repeat_begin(mti_repeat *r, mt_device *device, int64_t ahead, int64_t unit);
void mti_repeat_free(mti_repeat *r);
/* Before each forward and each backward. */
bool mti_repeat_turn(mti_repeat *r);
/* After `done` backwards, each followed by a forward: *period = how many of them ago all was as it
 * is now; 0: not known. */
bool mti_repeat_find(mti_repeat *r, int64_t done, int64_t *period);

#endif
