/* workload.h: training steps of a small model under a plan, on meta and where there are data. */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include "mtt.h"

typedef struct workload {
    mt_model_config config;
    int64_t batch, seq;
    int n_steps;         /* of AdamW; 0: one forward and backward alone */
    int64_t frozen;      /* so many layers, from the first on */
    const char *scratch; /* meta counts the scratch of these kernels; NULL: none */
    const char *preset;  /* instead of the plan; NULL: the plan */
} workload;

/* An mt_budget_run_fn; user: a workload. */
mt_status workload_run(void *user, mt_device *device, const mt_budget_plan *plan);

/* What a run on a device of its own came to. */
typedef struct outcome {
    size_t peak;
    mt_flops flops;
    unsigned char *bytes; /* gradients, or weights after the last step; NULL on meta */
    size_t n_bytes;
} outcome;
outcome workload_outcome(workload *w, const char *kind, const mt_budget_plan *plan);
void outcome_free(outcome *o);

/* l layers of a gpt, 24 wide, exact to the byte everywhere. */
workload workload_gpt(int64_t layers);

#endif
