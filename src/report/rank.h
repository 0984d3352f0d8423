/* rank.h: one rank of several as text and as the JSON of docs/rank-json.md. */
#ifndef MTI_REPORT_RANK_H
#define MTI_REPORT_RANK_H

#include "measure/rank.h"
#include "report/json.h"

/* fits: whether the workload's capacity, if there is one, is enough. */
bool mti_print_rank(const mti_rank_result *r, bool fits, FILE *out);
json_t *mti_rank_json(const mti_rank_result *r, bool fits);

#endif
