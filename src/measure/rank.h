/* rank.h: one rank of several, measured on meta. */
#ifndef MTI_MEASURE_RANK_H
#define MTI_MEASURE_RANK_H

#include "measure/workload.h"
#include "memtape/parallel.h"

typedef struct mti_rank_result {
    const mti_workload *workload; /* borrowed */
    const mt_parallel *parallel;  /* borrowed */
    mt_device *device;
    bool refused; /* it needs more than the capacity */
    mt_rank_report report;
} mti_rank_result;

/* bounded: with the workload's capacity. Free in any case. */
bool mti_rank_make(mti_rank_result *r, const mti_workload *w, const mt_parallel *parallel,
                   bool bounded);
void mti_rank_free(mti_rank_result *r);
/* Bytes that are not accounted for: 0, or there is a bug. */
int64_t mti_rank_off_by(const mti_rank_result *r);

/* ---- four models under six techniques ---- */

#define MTI_RANKS_MODELS     4
#define MTI_RANKS_TECHNIQUES 6
extern const char
    *const mti_ranks_techniques[MTI_RANKS_TECHNIQUES];        /* "none", "tp", "tp, sp", ... */
extern const char *const mti_ranks_presets[MTI_RANKS_MODELS]; /* "megatron-22b", ... */

typedef struct mti_ranks_result {
    /* One layer of one microbatch, and the pipeline's first stage as it was trained. */
    mt_rank_report layer[MTI_RANKS_TECHNIQUES][MTI_RANKS_MODELS];
    mt_rank_report stage[MTI_RANKS_TECHNIQUES][MTI_RANKS_MODELS];
} mti_ranks_result;
bool mti_ranks_make(mti_ranks_result *r);

#endif
