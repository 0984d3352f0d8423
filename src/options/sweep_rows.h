/* sweep_rows.h: the combinations of a sweep: named rows times the lists given with --over. */
#ifndef MTI_OPTIONS_SWEEP_ROWS_H
#define MTI_OPTIONS_SWEEP_ROWS_H

#include "options/options.h"

#define MTI_MAX_SWEEP 256

typedef struct mti_sweep_row {
    char *label; /* "full act=relu" */
    char *words; /* owns the strings in `options` */
    mti_options options;
} mti_sweep_row;

typedef struct mti_sweep_rows {
    size_t n;
    mti_sweep_row *at;
} mti_sweep_rows;

/* Rows in the order of --row, and within each the last --over changes fastest; complete and
 * checked. False with o->error on failure. Free in any case. */
bool mti_sweep_rows_make(mti_sweep_rows *rows, mti_options *o);
void mti_sweep_rows_free(mti_sweep_rows *rows);
/* Whether they can be made. */
bool mti_sweep_check(mti_options *o);

#endif
