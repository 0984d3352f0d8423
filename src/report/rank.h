/* rank.h: one rank of several as text and as the JSON of docs/rank-json.md. */
#ifndef MTI_REPORT_RANK_H
#define MTI_REPORT_RANK_H

#include "measure/rank.h"
#include "report/json.h"

/* fits: whether it fits the workload's capacity, if there is one. */
bool mti_print_rank(const mti_rank_result *r, bool fits, FILE *out);
json_t *mti_rank_json(const mti_rank_result *r, bool fits);

/* The models and techniques of `memtape ranks`, side by side. */
bool mti_print_ranks(const mti_ranks_result *r, FILE *out);
json_t *mti_ranks_json(const mti_ranks_result *r);

#endif
