/* overhead_report.c: what a GPU holds beside the allocator's tensors, as text and as JSON. */
#include "report/keys.h"
#include "report/results.h"

bool mti_print_outside(const mti_outside *o, const mti_sheet *to)
{
    mti_table *t = mti_table_new("lrllw", NULL);
    if (o->reserved) {
        mti_table_cells(t, "reserved|%s|measured", MTI_BYTES(o->reserved));
        mti_table_skip(t, 2);
    }
    for (int i = 0; i < o->n; i++) {
        const mti_outside_row *r = &o->rows[i];
        mti_table_cells(t, "%s|%s|%s|%s|%s", r->name, MTI_BYTES(r->bytes),
                        mti_outside_bases[r->formula], mti_outside_sides[r->side], r->source);
    }
    return mti_table_finish(t, to);
}

static void describe_row(mti_fields *f, const void *row)
{
    const mti_outside_row *r = row;
    KEYS(f, mti_outside_row, r, KEY(name), KEY(bytes));
    mti_field_one_of(f, "side", mti_outside_sides[r->side], mti_outside_sides, MTI_OUTSIDE_SIDES);
    mti_field_one_of(f, "basis", mti_outside_bases[r->formula], mti_outside_bases, 2);
    mti_field_text(f, "source", r->source);
}

void mti_describe_outside(mti_fields *f, const void *outside)
{
    const mti_outside *o = outside;
    KEYS(f, mti_outside, o, KEY(gpu), KEY(reserved));
    mti_field_size(f, "total", mti_outside_total(o));
    mti_field_list(f, "rows", describe_row, o->rows, (size_t)o->n, sizeof *o->rows);
}
