/* rank.h: one rank of several that run at the same time, beside what was predicted for it without
 * them. (mt_rank_measure is in memtape/models/parallel.h.) */
#ifndef MTI_MEASURE_RANK_H
#define MTI_MEASURE_RANK_H

#include "workload/workload.h"
#include "memtape/models/parallel.h"
#include "measure/profile.h"

typedef enum mti_figure { MTI_SAVED, MTI_PEAK, MTI_RESERVED, MTI_FIGURES } mti_figure;

/* One rank's figures: plain data, to be sent. */
typedef struct mti_rank_figures {
    int64_t rank, tensor_rank, data_rank, stage;
    uint64_t n_params;
    size_t predicted[MTI_FIGURES]; /* on meta, with the scratch memory of the device */
    size_t measured[MTI_FIGURES];
    bool skipped;            /* a measured step, by the loss scaler: meta counts it as made */
    bool stopped;            /* a run, before its last measured step */
    bool room_asked;         /* for all ranks of the machine */
    uint64_t sent;           /* to other ranks, in both steps */
    double seconds;          /* of the steady step; NaN without data */
    double in_comms, hidden; /* of a run: seconds in communication, and besides while it computed */
} mti_rank_figures;

extern const char *const mti_figure_names[MTI_FIGURES];

typedef struct mti_rank_run {
    mti_profile_result predicted, measured;
    mti_rank_figures figures;
} mti_rank_run;

/* The workload's parallel is placed, with its comms. Predicts this rank on meta, with no other
 * rank's help. Free in any case. */
bool mti_rank_run_predict(mti_rank_run *r, const mti_workload *w, const char *advice);
/* Runs it, with the others. */
bool mti_rank_run_measure(mti_rank_run *r, const mti_workload *w, const char *advice);
/* What this rank has sent to others of all groups. */
uint64_t mti_parallel_sent(const mt_parallel *parallel);
/* How long that, and what it received, took it until now. */
void mti_parallel_times(const mt_parallel *parallel, double *in_comms, double *hidden);
/* By how many bytes measured and predicted figures differ: 0, or something is wrong. */
size_t mti_rank_run_difference(const mti_rank_figures *f);
void mti_rank_run_free(mti_rank_run *r);

#endif
