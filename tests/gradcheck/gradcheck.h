/* gradcheck.h: a gradient against central differences in f64. */
#ifndef GRADCHECK_H
#define GRADCHECK_H

#include "mtt.h"
#include "ops/cases.h"

#define CASE_INPUTS MTI_CASE_INPUTS

/* A case of the op table, or what `composed` makes of several ops. */
typedef struct grad_case {
    mti_case of;
    mt_tensor *(*composed)(mt_tensor **in);
    double step;      /* of the differences; 0: 1e-5 */
    double tolerance; /* |analytic - numeric| <= tolerance * (1 + |numeric|); 0: 1e-7 */
    double gain;      /* how much it magnifies what rounding did, in the scan of layouts; 0: 1 */
} grad_case;

/* All cases: those of the op table that are for checks, then compositions. Returns how many. */
int grad_cases(const grad_case **list);

mt_tensor *case_call(const grad_case *c, mt_tensor **in);
int64_t case_count(const mti_case_input *in); /* elements */
/* The inputs' values, row-major: whole multiples of 1 / grid, and indices. values[i] has room for
 * case_count of input i. */
void case_draw(const grad_case *c, double grid, double *const values[CASE_INPUTS]);

/* Checks every layout and every subset of wanted gradients. Returns how many gradients were
 * compared; a failure is told in *fault (static text, "" if none) and ends the check. */
typedef struct grad_result {
    long n_gradients;
    char fault[400];
} grad_result;
/* `doctor`, if not NULL, is added as a gradient hook to each wanted input: a planted fault. */
grad_result grad_check(mt_device *device, const grad_case *c, mt_grad_hook_fn *doctor);

#endif
