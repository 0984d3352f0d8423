/* gradients.h: all gradients of a step, to compare with those of another. */
#ifndef MTI_MEASURE_GRADIENTS_H
#define MTI_MEASURE_GRADIENTS_H

#include "measure/step.h"

typedef struct mti_gradient {
    char *name;
    size_t n;
    double *at; /* exact: every dtype of ours fits */
} mti_gradient;

typedef struct mti_gradients {
    size_t n, cap;
    mti_gradient *at;
} mti_gradients;

/* Takes the gradients of parameters and input, divided by scale. Free in any case. */
bool mti_gradients_take(mti_gradients *g, const mti_subject *s, double scale);
void mti_gradients_free(mti_gradients *g);

typedef struct mti_gradient_difference {
    size_t compared; /* gradients that both have, in equal shapes */
    size_t alone;    /* those that one of them lacks */
    bool same_bits;  /* of all that were compared */
    double relative; /* |b - a| / |a| over them; INFINITY where not finite */
} mti_gradient_difference;
mti_gradient_difference mti_gradients_compare(const mti_gradients *a, const mti_gradients *b);

#endif
