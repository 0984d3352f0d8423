/* recording.c: notes requests to a pool in a trace. */
#include "memtrack/recording.h"

void mti_trace_spoil(mti_trace *t, const char *why)
{
    if (!t->why_not) t->why_not = why;
}

void mti_trace_took(mti_trace *t, mti_cell *cell)
{
    const mti_block *b = &cell->block;
    uint32_t place = (uint32_t)t->blocks.n;
    if (!MTI_PUSH(&t->blocks, ((mti_traced){b->ptr, b->requested, &cell->block})) ||
        !MTI_PUSH(&t->requests, ((mti_request){MTI_TAKE, place, b->category, cell->stream}))) {
        mti_trace_spoil(t, "there is no memory to record what it allocates");
        return;
    }
    cell->traced = place + 1;
}

static void note(mti_trace *t, const mti_cell *cell, mti_act what)
{
    if (!cell->traced) {
        if (mti_trace_is_mine(t))
            mti_trace_spoil(t, what == MTI_GIVE
                                   ? "it frees memory from before it"
                                   : "it changes the category of memory from before it");
        return;
    }
    uint32_t place = cell->traced - 1;
    if (!MTI_PUSH(&t->requests, ((mti_request){what, place, cell->block.category, cell->stream})))
        mti_trace_spoil(t, "there is no memory to record what it frees");
}

void mti_trace_gave(mti_trace *t, mti_cell *cell)
{
    note(t, cell, MTI_GIVE);
    if (cell->traced) t->blocks.at[cell->traced - 1].now = NULL;
    cell->traced = 0;
}

void mti_trace_recategorised(mti_trace *t, const mti_cell *cell)
{
    note(t, cell, MTI_RECATEGORISE);
}
