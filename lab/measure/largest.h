/* largest.h: the largest batch and the longest sequence that fit a capacity. */
#ifndef MTI_MEASURE_LARGEST_H
#define MTI_MEASURE_LARGEST_H

#include "measure/two_steps.h"

/* The largest that fits the capacity, and the smallest that does not: one more. */
typedef struct mti_largest {
    int64_t largest; /* 0: not even 1 fits */
    int64_t refused; /* 0: none; the search ended at a power of two */
    /* Batches only: the largest if there were only states and activations, by formula and as
     * measured. */
    int64_t by_formula, by_sum;
    mti_requirement need; /* of the largest */
    int runs;
} mti_largest;

/* Doubles n from 1 up to `most` until one is refused, then halves the gap between the last that
 * fits and the first that does not. 0: there is no such number. False: a try failed. */
typedef bool mti_try_fn(void *user, int64_t n, bool *fits);
bool mti_close_in(int64_t *largest, int64_t *refused, int64_t most, mti_try_fn *try, void *user);
/* Runs the workload with other batches or, if !in_batches, other lengths. */
bool mti_largest_find(mti_largest *fit, const mti_workload *w, bool in_batches);

#endif
