/* budget_search.h: the checkpoints that fit --budget, found by running the workload on meta. */
#ifndef MTI_MEASURE_BUDGET_SEARCH_H
#define MTI_MEASURE_BUDGET_SEARCH_H

#include "workload/workload.h"

#define MTI_BUDGET_POINTS  16
#define MTI_BUDGET_PRESETS 4
extern const char *const mti_budget_presets[MTI_BUDGET_PRESETS]; /* "none", ... */

typedef struct mti_budget_found {
    const mti_workload *workload; /* borrowed; its memory options without the plan */
    mt_budget *budget;
    const mt_budget_plan *plan; /* NULL: no budget was given */
    double seconds;             /* of the search for it, and for the front */
    /* the front, if it was asked for */
    const mt_budget_plan *front[MTI_BUDGET_POINTS];
    int n_front;
    mt_budget_figures presets[MTI_BUDGET_PRESETS];
} mti_budget_found;

/* Searches for the steps that mti_measure makes. Free in any case. */
bool mti_budget_find(mti_budget_found *b, const mti_workload *w);
void mti_budget_found_free(mti_budget_found *b);
/* Finds the front, and simulates the presets. */
bool mti_budget_find_front(mti_budget_found *b);
/* Figures of one step; mt_budget_plan_figures counts the FLOPs of two. */
mt_budget_figures mti_budget_figures_of(const mt_budget_plan *plan);

#endif
