/* sweep.h: a sweep as a table, as JSON and as a picture. */
#ifndef MTI_REPORT_SWEEP_H
#define MTI_REPORT_SWEEP_H

#include "measure/sweep.h"
#include "report/json.h"
#include "report/report.h"

bool mti_print_sweep(const mti_sweep_result *results, size_t n, bool quiet, FILE *out);
json_t *mti_sweep_json(const mti_sweep_result *results, size_t n);
/* name: of the model, for the title. */
bool mti_draw_sweep(const mti_sweep_result *results, size_t n, const char *name, const char *path);

#endif
