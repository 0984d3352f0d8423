/* gradcheck.h: a gradient against central differences in f64. */
#ifndef GRADCHECK_H
#define GRADCHECK_H

#include "mtt.h"

#define CASE_INPUTS 6

/* What one input is made of. Extents end at the first 0, so a scalar starts with 0, unless `rank`
 * says how many there are. */
typedef struct case_input {
    int64_t shape[MT_MAX_RANK];
    int rank;
    double lo, hi;   /* values drawn from here; both 0: from [-2, 2] */
    double away;     /* no value nearer to 0 than this: a kink is there */
    int64_t n_index; /* > 0: i64 indices below this instead of floating values */
} case_input;

typedef mt_tensor *case_fn(mt_tensor **in);

typedef struct grad_case {
    const char *row;  /* of the op table: what made the result */
    const char *note; /* which variant */
    case_fn *fn;
    case_input in[CASE_INPUTS]; /* up to the first without lo, hi, shape and n_index */
    int n_inputs;
    bool inner;       /* the row is inside the function: another op made the result */
    double step;      /* of the differences; 0: 1e-5 */
    double tolerance; /* |analytic - numeric| <= tolerance * (1 + |numeric|); 0: 1e-7 */
    double gain;      /* how much it magnifies what rounding did, in the scan of layouts; 0: 1 */
} grad_case;

int case_rank(const case_input *in);
int64_t case_count(const case_input *in); /* elements */
/* The inputs' values, row-major: whole multiples of 1 / grid, and indices. values[i] has room for
 * case_count of input i. */
void case_draw(const grad_case *c, double grid, double *const values[CASE_INPUTS]);

extern const grad_case grad_cases[];
extern const int n_grad_cases;

/* Checks every layout and every subset of wanted gradients. Returns how many gradients were
 * compared; a failure is told in *fault (static text, "" if none) and ends the check. */
typedef struct grad_result {
    long n_gradients;
    char fault[400];
} grad_result;
/* `doctor`, if not NULL, is added as a gradient hook to each wanted input: a planted fault. */
grad_result grad_check(mt_device *device, const grad_case *c, mt_grad_hook_fn *doctor);

#endif
