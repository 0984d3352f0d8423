/* costs.h: closed formulas beside what the meta device measures, and what fits. */
#ifndef MTI_MEASURE_COSTS_H
#define MTI_MEASURE_COSTS_H

#include "measure/budget_search.h"
#include "measure/largest.h"
#include "memtape/lab/plan.h"

typedef struct mti_comparison {
    mt_plan_formula formula;
    int64_t measured;
    int64_t unexplained; /* measured - formula.expected: 0, or one of them is wrong */
} mti_comparison;

#define MTI_MAX_COMPARISONS 7

typedef struct mti_plan_result {
    const mti_workload *workload;    /* borrowed */
    const mti_plan_options *options; /* borrowed */
    mt_device *device;               /* for its name only */
    int n_items;
    mti_comparison items[MTI_MAX_COMPARISONS];
    mt_flops flops; /* of one step */
    int n_components;
    mt_plan_component components[MT_PLAN_MAX_COMPONENTS]; /* of its forward */
    mti_requirement need;
    mti_largest batch, seq;  /* with a capacity */
    mti_budget_found budget; /* with a budget; its front: mti_budget_find_front */
} mti_plan_result;

/* Free in any case. */
bool mti_plan_make(mti_plan_result *p, const mti_workload *w, const mti_plan_options *o);
void mti_plan_free(mti_plan_result *p);
/* The comparison of that name; NULL if there is none. */
const mti_comparison *mti_plan_find(const mti_plan_result *p, const char *name);
/* FLOP of training on the tokens, by the formula and as counted; false without --tokens. */
bool mti_plan_training(const mti_plan_result *p, double *formula, double *counted);
/* Bytes of the KV cache as a share of the parameters'; false without one. */
bool mti_plan_cache_share(const mti_plan_result *p, double *share);
/* Seconds to train on the tokens, by the formula and by counted FLOPs; false without options for
 * it. */
bool mti_plan_time(const mti_plan_result *p, double *formula_s, double *measured_s);

#endif
