/* rank.h: ranks of four large models, measured on meta (mt_rank_measure is in memtape/parallel.h).
 */
#ifndef MTI_MEASURE_RANK_H
#define MTI_MEASURE_RANK_H

#include "measure/workload.h"
#include "memtape/parallel.h"

/* ---- four models under six techniques ---- */

#define MTI_RANKS_MODELS     4
#define MTI_RANKS_TECHNIQUES 6
extern const char
    *const mti_ranks_techniques[MTI_RANKS_TECHNIQUES];             /* "none", "tp", "tp, sp", ... */
extern const char *const mti_ranks_formulas[MTI_RANKS_TECHNIQUES]; /* of a layer, with the paper */
extern const char *const mti_ranks_presets[MTI_RANKS_MODELS];      /* "megatron-22b", ... */

typedef struct mti_ranks_result {
    /* One layer of one microbatch, and the pipeline's first stage as it was trained. */
    mt_rank_report layer[MTI_RANKS_TECHNIQUES][MTI_RANKS_MODELS];
    mt_rank_report stage[MTI_RANKS_TECHNIQUES][MTI_RANKS_MODELS];
} mti_ranks_result;
bool mti_ranks_make(mti_ranks_result *r);

#endif
