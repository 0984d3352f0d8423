/* answer.h: what profile and plan begin with: the peak, what it is made of, whether it fits. */
#ifndef MTI_ANSWER_H
#define MTI_ANSWER_H

#include "measure/step.h"
#include "report/report.h"

#define MTI_MAX_BESIDE 4

typedef struct mti_answer {
    const char *where; /* the peak is reached: "reached in backward: ..."; may be "" */
    size_t peak, reserved;
    const size_t *at_peak; /* by category; they sum to the peak */
    bool steps;            /* there is an optimizer */
    int n_beside;
    struct {
        const char *name;
        size_t bytes;
    } beside[MTI_MAX_BESIDE]; /* other figures, such as what is saved for backward */
    size_t capacity;          /* 0: not asked */
    bool fits;                /* as was run within it */
} mti_answer;

void mti_answer_add(mti_answer *a, const char *name, size_t bytes);
bool mti_print_answer(const mti_answer *a, FILE *out, const mti_style *style);

#endif
