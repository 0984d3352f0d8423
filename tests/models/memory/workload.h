/* workload.h: training steps of a small model under a plan, on meta or on a device with data. */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include "mtt.h"

typedef struct workload {
    mt_model_config config;
    int64_t batch, seq;
    int n_steps;         /* of AdamW; 0: one forward and backward alone */
    int64_t frozen;      /* number of frozen layers, from the first on */
    const char *scratch; /* meta counts the scratch of these kernels; NULL: none */
    const char *preset;  /* a checkpoint preset to use instead of the plan; NULL: use the plan */
} workload;

/* An mt_budget_run_fn; user: a workload. */
mt_status workload_run(void *user, mt_device *device, const mt_budget_plan *plan);

/* The result of a run on a device of its own. */
typedef struct outcome {
    size_t peak;
    mt_flops flops;
    unsigned char *bytes; /* gradients, or weights after the last step; NULL on meta */
    size_t n_bytes;
} outcome;
outcome workload_outcome(workload *w, const char *kind, const mt_budget_plan *plan);
void outcome_free(outcome *o);

/* A gpt, 24 wide. */
workload workload_gpt(int64_t layers);

#endif
