/* areas.c: blocks and segments, event by event. */
#include <stdlib.h>
#include "compare/areas.h"

static bool insert(mti_areas *all, const mti_area *one)
{
    if (all->spare.n) {
        size_t slot = all->spare.at[all->spare.n - 1];
        if (!mti_hashmap_add(&all->at, one->place, slot)) return false;
        all->spare.n--;
        all->slots.at[slot] = *one;
        return true;
    }
    return MTI_RESERVE(&all->slots) && mti_hashmap_add(&all->at, one->place, all->slots.n) &&
           MTI_PUSH(&all->slots, *one);
}

/* What was there before the first event is not known. */
static bool erase(mti_areas *all, uint64_t place)
{
    size_t slot = mti_hashmap_find(&all->at, place);
    if (slot == MTI_NO_PLACE) return true;
    if (!MTI_PUSH(&all->spare, slot)) return false;
    mti_hashmap_remove(&all->at, place, slot);
    return true;
}

static bool is_there(const mti_areas *all, size_t slot)
{
    return mti_hashmap_find(&all->at, all->slots.at[slot].place) == slot;
}

/* Addresses got memory: they join the part before them and the part behind them. */
static bool map(mti_areas *segments, mti_area one)
{
    for (size_t i = 0; i < segments->slots.n; i++) {
        const mti_area other = segments->slots.at[i];
        if (!is_there(segments, i) || !other.expandable) continue;
        bool before = other.place + other.size == one.place;
        if (!before && one.place + one.size != other.place) continue;
        if (!erase(segments, other.place)) return false;
        one.size += other.size;
        if (before) one.place = other.place, one.context = other.context;
    }
    return insert(segments, &one);
}

/* They have none any more: of the part that they were in, what is before and behind them stays. */
static bool unmap(mti_areas *segments, const mti_area *gone)
{
    uint64_t end = gone->place + gone->size;
    for (size_t i = 0; i < segments->slots.n; i++) {
        const mti_area whole = segments->slots.at[i];
        uint64_t whole_end = whole.place + whole.size;
        if (!is_there(segments, i) || whole.place > gone->place || whole_end < end) continue;
        mti_area before = whole, behind = whole;
        before.size = (size_t)(gone->place - whole.place);
        behind.place = end, behind.size = (size_t)(whole_end - end);
        return erase(segments, whole.place) && (!before.size || insert(segments, &before)) &&
               (!behind.size || insert(segments, &behind));
    }
    return true; /* as with erase */
}

bool mti_areas_follow(mti_areas *blocks, mti_areas *segments, const mt_mem_event *e, size_t context)
{
    bool expands = e->kind == MT_MEM_SEGMENT_MAP || e->kind == MT_MEM_SEGMENT_UNMAP;
    const mti_area one = {.place = e->place,
                          .size = e->allocated,
                          .requested = e->requested,
                          .context = context,
                          .large = e->large,
                          .expandable = expands,
                          .stream = e->stream};
    switch (e->kind) {
    case MT_MEM_ALLOC: return insert(blocks, &one);
    case MT_MEM_FREE: return erase(blocks, e->place);
    case MT_MEM_SEGMENT_ALLOC: return insert(segments, &one);
    case MT_MEM_SEGMENT_FREE: return erase(segments, e->place);
    case MT_MEM_SEGMENT_MAP: return map(segments, one);
    case MT_MEM_SEGMENT_UNMAP: return unmap(segments, &one);
    default: return true;
    }
}

int mti_area_by_place(const void *a, const void *b)
{
    const mti_area *x = a, *y = b;
    return x->place < y->place ? -1 : x->place > y->place;
}

size_t mti_areas_sort(mti_areas *all)
{
    size_t n = 0;
    for (size_t i = 0; i < all->slots.n; i++)
        if (is_there(all, i)) all->slots.at[n++] = all->slots.at[i];
    if (n) qsort(all->slots.at, n, sizeof *all->slots.at, mti_area_by_place);
    return n;
}

void mti_areas_free(mti_areas *all)
{
    mti_hashmap_free(&all->at);
    mti_free(all->slots.at);
    mti_free(all->spare.at);
}
