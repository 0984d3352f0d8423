/* profile.h: everything about the memory of two training steps of a workload. */
#ifndef MTI_MEASURE_PROFILE_H
#define MTI_MEASURE_PROFILE_H

#include "measure/budget_search.h"
#include "measure/overhead.h"
#include "measure/two_steps.h"
#include "plan/plan.h"

/* Allocated bytes once everything that the steps made is freed. */
typedef struct mti_left {
    size_t freed;      /* left then: the workspaces of matrix products (gemm-workspace) */
    size_t given_back; /* left once these are given back, too: 0 */
} mti_left;

/* The peak of a step, as the tokens take experts; 0: none depends on it. */
typedef struct mti_routed {
    size_t balanced, worst;
    int64_t rows; /* of the first layer's experts, where these are bounded and there is no data */
} mti_routed;

typedef struct mti_profile_result {
    mti_workload workload; /* with the checkpoints that its budget allows */
    mt_device *device;
    mti_budget_found budget;   /* with a budget */
    mti_measurement measured;  /* with its timeline */
    mti_left left;             /* after both steps */
    bool infers;               /* whether inference was asked for; */
    mti_measurement inference; /* it ran before the steps, on a device of its own */
    mti_left left_by_inference;
    mti_formula formula;    /* of what the first forward saves */
    mti_requirement needed; /* by mti_profile_find_requirement */
    mti_outside outside;    /* empty unless the caller fills it in */
    mti_routed routed;
} mti_profile_result;

/* Measures two steps on a new device, which must have room for them; else the message ends in
 * `advice`. `inference`: also a forward pass without a tape. After a failure the result holds what
 * was measured until then, with the timeline. Free in any case. */
bool mti_profile_make(mti_profile_result *p, const mti_workload *w, const char *advice,
                      bool inference);
/* After a refusal: what a device that is large enough needs; nothing on a device with data. */
bool mti_profile_find_requirement(mti_profile_result *p);
void mti_profile_free(mti_profile_result *p);

#endif
