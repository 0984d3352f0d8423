/* fastest.c: the fastest set-ups of different kinds. */
#include <string.h>
#include "fit/search.h"

bool mti_fit_alike(const mt_fit_setup *a, const mt_fit_setup *b)
{
    const mt_parallel *x = &a->parallel, *y = &b->parallel;
    return x->tensor == y->tensor && x->pipeline == y->pipeline && x->context == y->context &&
           x->expert == y->expert && !strcmp(a->checkpoint, b->checkpoint) &&
           !strcmp(a->offload, b->offload);
}

/* The one that s replaces, or the next free place; NULL: s is slower than all. */
static mt_fit_setup *place_of(mti_fit_fastest *best, const mt_fit_setup *s)
{
    mt_fit_setup *slowest = best->at;
    for (int i = 0; i < best->n; i++)
        if (mti_fit_alike(&best->at[i], s)) slowest = &best->at[i];
    if (!best->n || (best->n < MTI_FIT_FASTEST && !mti_fit_alike(slowest, s)))
        return &best->at[best->n++];
    return s->time.total < slowest->time.total ? slowest : NULL;
}

void mti_fit_note(mti_fit_fastest *best, const mt_fit_setup *s)
{
    mt_fit_setup *place = s->fits ? place_of(best, s) : NULL;
    if (!place) return;
    *place = *s;
    for (int i = 1; i < best->n; i++) {
        if (best->at[i].time.total <= best->at[0].time.total) continue;
        const mt_fit_setup slower = best->at[i];
        best->at[i] = best->at[0];
        best->at[0] = slower;
    }
}
