/* rank.h: what a profile says of one rank of several; the ranks of several models, as text and as
 * the JSON of docs/rank-json.md. */
#ifndef MTI_REPORT_RANK_H
#define MTI_REPORT_RANK_H

#include "measure/rank.h"
#include "measure/step.h"
#include "report/json.h"
#include "report/report.h"

/* Which rank it is; what stays from step to step. Nothing if there is one rank. */
void mti_print_rank(const mti_workload *w, const mti_measurement *m, FILE *out,
                    const mti_style *style);
bool mti_print_states(const mti_workload *w, const mti_measurement *m, FILE *out,
                      const mti_style *style);
/* The first line of mti_print_rank, and the first keys of mti_parallel_json: what was asked for. */
void mti_print_place(const mti_workload *w, FILE *out, const mti_style *style);
json_t *mti_place_json(const mti_workload *w);
json_t *mti_parallel_json(const mti_workload *w, const mti_measurement *m); /* null: one rank */

/* The models and techniques of `memtape ranks`, side by side. */
bool mti_print_ranks(const mti_ranks_result *r, FILE *out);
json_t *mti_ranks_json(const mti_ranks_result *r);

#endif
