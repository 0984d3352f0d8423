/* together.h: the ranks of one run as text and as JSON. */
#ifndef MTI_REPORT_TOGETHER_H
#define MTI_REPORT_TOGETHER_H

#include "measure/together.h"
#include "report/profile.h"

/* A table of all n ranks. */
bool mti_print_together(const mti_workload *w, const mti_rank_figures *ranks, int64_t n, FILE *out);
/* One rank's profile, with what was predicted. */
json_t *mti_rank_run_json(const mti_rank_run *r, bool whole);

#endif
