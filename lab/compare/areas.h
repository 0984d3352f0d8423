/* areas.h: what a device's memory consists of after each event: blocks that are allocated, and
 * segments. */
#ifndef MTI_COMPARE_AREAS_H
#define MTI_COMPARE_AREAS_H

#include "base/base.h"
#include "memtape/memory.h"

/* A block that is allocated, or a segment: of an expandable one, a part without gaps. */
typedef struct mti_area {
    uint64_t place;
    size_t size, requested;
    size_t context; /* its number */
    bool large, expandable;
    bool pending; /* freed, while another stream may still use it: PyTorch alone has such blocks */
    int stream;
} mti_area;

/* By place; those that are gone leave their slots to new ones. All zero: empty. */
typedef struct mti_areas {
    mti_hashmap at;
    MTI_VEC(mti_area) slots;
    MTI_VEC(size_t) spare;
} mti_areas;

/* Follows an event that was requested in that context; false if memory ran out. */
bool mti_areas_follow(mti_areas *blocks, mti_areas *segments, const mt_mem_event *e,
                      size_t context);
/* Moves the areas that are there to the front of the slots, by their places; returns how many.
 * Nothing may follow. */
size_t mti_areas_sort(mti_areas *all);
int mti_area_by_place(const void *a, const void *b); /* for qsort */
void mti_areas_free(mti_areas *all);

#endif
