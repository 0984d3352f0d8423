/* gradcheck.h: gradients against central differences in f64. */
#ifndef GRADCHECK_H
#define GRADCHECK_H

#include "mtt_engine.h"
#include "ops/op_cases.h"

#define CASE_INPUTS MTI_CASE_INPUTS

/* A case of the op table, or of `composed`, which calls several ops. */
typedef struct grad_case {
    mti_case of;
    mt_tensor *(*composed)(mt_tensor **in);
    double step;      /* step of the differences; 0: 1e-5 */
    double tolerance; /* |analytic - numeric| <= tolerance * (1 + |numeric|); 0: 1e-7 */
    double gain; /* factor for the tolerance in the scan of layouts, where rounding is amplified; 0:
                    1 */
} grad_case;

/* The cases of ops.def for checks, then compositions. Returns their number. */
int grad_cases(const grad_case **list);
/* These, then the cases of collectives.def, which stand on the engine (all_cases.c). */
int grad_all_cases(const grad_case **list);

mt_tensor *case_call(const grad_case *c, mt_tensor **in);
int64_t case_count(const mti_case_input *in); /* elements */
/* Draws the inputs' values, row-major: multiples of 1 / grid, and indices. values[i] has room for
 * case_count() values of input i. */
void case_draw(const grad_case *c, double grid, double *const values[CASE_INPUTS]);

/* The number of compared gradients, and the fault that ended the check (static text, "" if none).
 */
typedef struct grad_result {
    long n_gradients;
    char fault[400];
} grad_result;
/* Checks every layout and every subset of wanted gradients. `planted`, if not NULL, is added as a
 * gradient hook to each wanted input: a planted fault. */
grad_result grad_check(mt_device *device, const grad_case *c, mt_grad_hook_fn *planted);

#endif
