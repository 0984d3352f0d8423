/* overhead.h: what a GPU's memory holds beside what the allocator was asked for. */
#ifndef MTI_MEASURE_OVERHEAD_H
#define MTI_MEASURE_OVERHEAD_H

#include <stdbool.h>
#include <stddef.h>

typedef enum mti_outside_side {
    MTI_SIDE_BEYOND,    /* the allocator: not in `reserved` */
    MTI_SIDE_RESERVED,  /* taken from the allocator, and in the figure of `reserved` */
    MTI_SIDE_UNCOUNTED, /* taken from the allocator, but not in the figure */
    MTI_SIDE_CAPTURED,  /* only if the step is captured as a CUDA graph */
    MTI_OUTSIDE_SIDES
} mti_outside_side;
extern const char *const mti_outside_sides[MTI_OUTSIDE_SIDES];
extern const char *const mti_outside_bases[2]; /* "published", "formula" */

typedef struct mti_outside_row {
    char name[48];
    size_t bytes;
    mti_outside_side side;
    bool formula; /* else a figure that others measured and published */
    const char *source;
} mti_outside_row;

typedef struct mti_outside {
    const char *gpu;
    size_t reserved; /* as it was measured */
    int n;           /* 0: not asked for */
    mti_outside_row rows[8];
} mti_outside;

void mti_outside_add(mti_outside *o, mti_outside_row row);
/* The rows of a side, summed. */
size_t mti_outside_sum(const mti_outside *o, mti_outside_side side);
/* What nvidia-smi shows: with what is reserved. */
size_t mti_outside_total(const mti_outside *o);

#endif
