/* sweep.h: what each row of a sweep came to, and how that is shown. */
#ifndef MTI_CLI_SWEEP_H
#define MTI_CLI_SWEEP_H

#include "cli/gradients.h"
#include "cli/sweep_rows.h"

typedef struct mti_sweep_result {
    const mti_sweep_row *row;
    size_t saved, asked; /* kept after forward; what the ops handed over */
    mti_steady steady;
    double step_s;               /* median of the steady steps; NaN on meta */
    double loss;                 /* NaN: none */
    mti_gradient_difference off; /* from the first row */
    bool has_data;               /* false on meta: no gradients to compare */
    bool refused;                /* out of memory: there are no figures */
    mti_formula formula;
    mti_spent spent;
    mt_flops flops;
} mti_sweep_result;

bool mti_sweep_print(const mti_sweep_result *results, size_t n, const mti_options *o);
bool mti_sweep_write_json(const mti_sweep_result *results, size_t n, const mti_options *o);
bool mti_sweep_draw(const mti_sweep_result *results, size_t n, const mti_options *o);

#endif
