/* overhead.c: rows of what a GPU's memory holds beside what the allocator was asked for. */
#include "measure/overhead.h"

const char *const mti_outside_sides[MTI_OUTSIDE_SIDES] = {"outside", "in reserved", "uncounted",
                                                          "if captured"};
const char *const mti_outside_bases[2] = {"published", "formula"};

void mti_outside_add(mti_outside *o, mti_outside_row row)
{
    if (o->n < (int)(sizeof o->rows / sizeof *o->rows)) o->rows[o->n++] = row;
}

size_t mti_outside_sum(const mti_outside *o, mti_outside_side side)
{
    size_t sum = 0;
    for (int i = 0; i < o->n; i++)
        if (o->rows[i].side == side) sum += o->rows[i].bytes;
    return sum;
}

size_t mti_outside_total(const mti_outside *o)
{
    return o->reserved + mti_outside_sum(o, MTI_SIDE_BEYOND) +
           mti_outside_sum(o, MTI_SIDE_UNCOUNTED);
}
