/* budget.h: --budget: the checkpoints that fit, found before the model is run. */
#ifndef MTI_CLI_BUDGET_H
#define MTI_CLI_BUDGET_H

#include "cli/measure.h"
#include "report/json.h"
#include "report/report.h"

#define MTI_BUDGET_POINTS  16
#define MTI_BUDGET_PRESETS 4

typedef struct mti_budgeted {
    const mti_options *options;
    mt_budget *budget;
    const mt_budget_plan *plan;
    mti_spending spending; /* the options', with the plan */
    double seconds;        /* that finding it took */
    int n_simulations;
    /* the front, if it was asked for */
    const mt_budget_plan *front[MTI_BUDGET_POINTS];
    int n_front;
    mt_budget_figures presets[MTI_BUDGET_PRESETS];
} mti_budgeted;

/* Of two steps, as everything that is measured. Free in any case. */
bool mti_budgeted_make(mti_budgeted *x, const mti_options *o);
void mti_budgeted_free(mti_budgeted *x);
/* The front and what the presets would come to. */
bool mti_budgeted_front(mti_budgeted *x);

/* The plan, and how it was found. measured: the real run's peak; 0: there was none. */
bool mti_budgeted_print(const mti_budgeted *x, size_t measured, FILE *out, const mti_style *style);
bool mti_budgeted_print_front(const mti_budgeted *x, FILE *out, const mti_style *style);
bool mti_budgeted_draw(const mti_budgeted *x, const char *path);
json_t *mti_budgeted_json(const mti_budgeted *x, size_t measured);

/* An observer: *user, a size_t, becomes the most that was allocated. */
void mti_note_peak(void *user, const mt_mem_event *event);
/* Makes a meta device count what the one of the options would. */
bool mti_budgeted_pretend(const mti_options *o, mt_device *device);

#endif
