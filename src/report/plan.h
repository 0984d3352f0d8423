/* plan.h: a plan as text and as the JSON of docs/plan-json.md. */
#ifndef MTI_REPORT_PLAN_H
#define MTI_REPORT_PLAN_H

#include "measure/plan.h"
#include "report/json.h"

/* The answer; verbose: with all details. */
bool mti_print_plan(const mti_plan_result *p, bool verbose, FILE *out);
json_t *mti_plan_json(const mti_plan_result *p);

#endif
