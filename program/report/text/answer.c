/* answer.c: the first lines of a profile and of a plan, on less than a screen. */
#include <assert.h>
#include "report/sections.h"

void mti_answer_add(mti_answer *a, const char *name, size_t bytes)
{
    assert(a->n_beside < MTI_MAX_BESIDE);
    a->beside[a->n_beside].name = name;
    a->beside[a->n_beside++].bytes = bytes;
}

static void row(mti_table *t, const char *name, size_t bytes)
{
    mti_table_cells(t, "%s|%s|%s", name, MTI_BYTES(bytes), MTI_THOUSANDS(bytes));
}

/* Whether the row is there although it is 0: a reader looks for it. */
static bool looked_for(mt_category category, bool steps)
{
    return category == MT_PARAMETER || category == MT_GRADIENT || category == MT_ACTIVATION ||
           category == MT_TEMPORARY || (category == MT_OPTIMIZER && steps);
}

/* Input and output, which are small, share a row. */
static void category_rows(mti_table *t, const mti_answer *a)
{
    for (int c = 0; c < MT_CATEGORY_COUNT; c++) {
        size_t bytes = a->at_peak[c] + (c == MT_INPUT ? a->at_peak[MT_OUTPUT] : 0);
        if (c == MT_OUTPUT || (!bytes && !looked_for((mt_category)c, a->steps))) continue;
        row(t, c == MT_INPUT ? "input, output" : mt_category_name((mt_category)c), bytes);
        mti_table_cell(t, "%.1f %%", 100.0 * (double)bytes / (double)a->peak);
        if (c == MT_GRADIENT && !bytes && a->gradients)
            mti_table_cell(t, "(none yet; %s when backward ends)", MTI_BYTES(a->gradients));
        else
            mti_table_skip(t, 1);
    }
}

static void print_fit(const mti_answer *a, const mti_sheet *to)
{
    const char *given = MTI_BYTES(a->capacity);
    if (a->fits && a->peak > a->capacity) { /* found by a run with the capacity */
        mti_inked(to, MTI_GOOD, "Fits in %s", given);
        fputs(", if unused segments are given back\n", to->out);
    } else if (a->fits && a->reserved < a->capacity) {
        mti_inked(to, MTI_GOOD, "Fits in %s", given);
        mti_print(to->out, ": %s are left beside what is reserved%s\n",
                  MTI_BYTES(a->capacity - a->reserved),
                  a->left_out > a->capacity - a->reserved ? ", less than what is not counted" : "");
    } else if (a->fits) {
        mti_inked(to, MTI_GOOD, "Fits in %s", given);
        mti_print(to->out, ": all of it is reserved, %s are free at the peak\n",
                  MTI_BYTES(a->capacity - a->peak));
    } else if (a->peak > a->capacity) {
        mti_inked(to, MTI_BAD, "Does not fit in %s", given);
        mti_print(to->out, ": %s more are allocated at the peak\n",
                  MTI_BYTES(a->peak - a->capacity));
    } else {
        mti_inked(to, MTI_BAD, "Does not fit in %s", given);
        fputs(": the gaps in the allocator's segments are too many\n", to->out);
    }
}

bool mti_print_answer(const mti_answer *a, const mti_sheet *to)
{
    mti_heading(to, "The peak of a training step: %s allocated, %s reserved", MTI_BYTES(a->peak),
                MTI_BYTES(a->reserved));
    if (a->capacity) print_fit(a, to);
    if (*a->where) mti_print_wrapped(to, 2, a->where);
    mti_table *t = mti_table_new("lrrrw", NULL);
    category_rows(t, a);
    mti_table_rule(t);
    mti_table_ink(t, MTI_BOLD);
    row(t, "allocated", a->peak);
    mti_table_skip(t, 2);
    mti_table_ink(t, MTI_BOLD);
    row(t, "reserved", a->reserved);
    mti_table_skip(t, 2);
    for (int i = 0; i < a->n_beside; i++) {
        row(t, a->beside[i].name, a->beside[i].bytes);
        mti_table_skip(t, 2);
    }
    return mti_table_finish(t, to);
}
