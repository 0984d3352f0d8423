/* budget.h: the checkpoints that fit a budget, as text, as a picture and as JSON. */
#ifndef MTI_REPORT_BUDGET_H
#define MTI_REPORT_BUDGET_H

#include "measure/budget.h"
#include "report/json.h"
#include "report/report.h"

/* measured: the peak of the real run; 0 if there was none. */
bool mti_print_budget(const mti_budget_found *b, size_t measured, FILE *out,
                      const mti_style *style);
json_t *mti_budget_json(const mti_budget_found *b, size_t measured);
/* Once the front has been found. */
bool mti_print_budget_front(const mti_budget_found *b, FILE *out, const mti_style *style);
bool mti_draw_budget(const mti_budget_found *b, const char *path);

#endif
