/* plan.h: closed formulas beside what the meta device measures, and what fits. */
#ifndef MTI_CLI_PLAN_H
#define MTI_CLI_PLAN_H

#include "cli/budget.h"
#include "memtape/device.h"
#include "report/json.h"
#include "report/report.h"

typedef struct mti_comparison {
    mt_plan_formula formula;
    int64_t measured;
    int64_t unexplained; /* measured - formula.expected: 0, or somebody is wrong */
} mti_comparison;

/* What training asks of the device: two whole steps, the second with the optimizer's state there
 * from its beginning. Bytes in 512-byte blocks; reserved: in segments. */
typedef struct mti_need {
    size_t peak, reserved;
    const char *phase; /* of the peak */
    size_t at_peak[MT_CATEGORY_COUNT];
} mti_need;

/* The largest batch, or the longest sequence, that runs within the capacity, and the smallest that
 * was refused memory: one more. */
typedef struct mti_fit {
    int64_t largest; /* 0: not even 1 fits */
    int64_t refused; /* 0: none; the search ended at a power of two */
    /* Batches only: what states and activations alone would leave room for, by the formulas and as
     * measured. */
    int64_t by_formula, by_sum;
    mti_need need; /* of the largest */
    int runs;
} mti_fit;

#define MTI_MAX_COMPARISONS 6

typedef struct mti_plan_data {
    const mti_options *options;
    mt_device *device; /* borrowed; says what it is, and is not used */
    int n_items;
    mti_comparison items[MTI_MAX_COMPARISONS];
    mt_flops flops; /* of one step */
    mti_need need;
    mti_fit batch, seq;    /* with a capacity */
    mti_budgeted budgeted; /* with a budget */
} mti_plan_data;

/* The run that the options describe. */
mt_plan_run mti_plan_run_of(const mti_options *o);
/* The comparison of that name; NULL if there is none. */
const mti_comparison *mti_plan_find(const mti_plan_data *p, const char *name);

/* Formulas and measurement, into p->items and p->need. */
bool mti_plan_measure(mti_plan_data *p);
/* Two steps of this batch and length on a meta device with that capacity (0: none). *fits tells
 * whether there was room; false is any other failure. */
bool mti_plan_try(const mti_options *o, int64_t batch, int64_t seq, int64_t capacity,
                  mti_need *need, bool *fits);
/* Searches by running, into p->batch and p->seq. */
bool mti_plan_fit(mti_plan_data *p);

/* Seconds to train on --tokens by the formula and by what the ops counted; false where the options
 * do not ask. */
bool mti_plan_time(const mti_plan_data *p, double *formula_s, double *measured_s);

bool mti_plan_print(const mti_plan_data *p, FILE *out);
/* The object of docs/plan-json.md. */
json_t *mti_plan_json(const mti_plan_data *p);

#endif
