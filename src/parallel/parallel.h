/* parallel.h: what the files of parallel ranks share. Letters as in model.h, and t: ranks of tensor
 * parallelism, p: of the pipeline. */
#ifndef MTI_PARALLEL_H
#define MTI_PARALLEL_H

#include "memtape/parallel.h"
#include "nn/model.h"

/* One part of one rank: consecutive layers. */
typedef struct mti_share {
    mt_parallel parallel;  /* every "0: ..." filled in */
    mt_model_config whole; /* resolved; the vocabulary padded to a multiple of t */
    mt_model_config local; /* this rank's part of a layer: fewer heads, a narrower MLP */
    int64_t from, to;      /* layers */
    bool first, last;      /* with the embedding; with the head */
} mti_share;

/* *s: the share of this part; checks parallel and config. */
bool mti_share_make(mti_share *s, const mt_model_config *config, const mt_parallel *parallel,
                    int64_t part);

/* Whether a sequence may have this length. */
bool mti_check_length(const char *who, const mti_share *s, int64_t seq);

/* ---- parts of a rank's layers (parts.c); no change where t is 1 ---- */

/* Puts around m's forward: x becomes the input of all t ranks, each of which computes a part. It is
 * replicated or, with sequence parallelism, gathered from [b,s/t,d]; then the tape keeps the piece.
 */
bool mti_enter_ranks(mt_module *m, const mt_parallel *parallel);
/* The same for one run(m, x). */
mt_tensor *mti_run_entered(mt_module *m, mt_forward_fn *run, const mt_parallel *parallel,
                           mt_tensor *x);
/* Replaces a child, a linear of which this rank has some columns: sums its output over all ranks,
 * then adds the bias. -> [b,s,d], or [b,s/t,d] with sequence parallelism. */
bool mti_sum_over_ranks(mt_module *parent, const char *name, const mt_parallel *parallel);
/* Replaces a child, an embedding of which this rank has some rows: ids [b,s] -> [b,s,d] or
 * [b,s/t,d], zeros for rows of other ranks, summed over the ranks. */
bool mti_share_embedding(mt_module *parent, const char *name, const mt_parallel *parallel);
/* Replaces each parameter under m by the first of its dp pieces, made on `device`; the module
 * gathers the whole while it runs (ZeRO 3). */
typedef struct mti_cutter {
    mt_device *device;
    int64_t dp;
    mt_tensor *shared; /* a parameter of two modules (may be NULL), borrowed ... */
    mt_tensor *piece;  /* ... and its piece; NULL at first */
} mti_cutter;
bool mti_cut_params(mt_module *m, mti_cutter *cutter);

/* ---- a tensor that the tape keeps as this rank's piece ---- */

typedef struct mti_regather mti_regather;
/* Until mti_regather_end, saves of `whole` keep `piece` instead; backward gathers it again along
 * dimension 0 or 1 and takes as much as whole has. NULL on failure. */
mti_regather *mti_regather_begin(mt_tensor *whole, mt_tensor *piece, int dim, int64_t ranks);
bool mti_regather_end(void);

/* ---- what a rank keeps, by formula (books.c) ---- */

/* What is in flight. */
typedef struct mti_flight {
    int64_t layers, first, last; /* layers, and forwards through the first and the last part */
    int64_t batch, seq;
    const char *checkpoint; /* "none", "full" or "selective" */
} mti_flight;

/* Sets out->formula, text, rows and unexplained for what `ledger` holds now, out->saved. */
bool mti_rank_explain(const mti_share *share, const mti_flight *flight, const mt_ledger *ledger,
                      mt_rank_report *out);

/* ---- what stays from step to step (zero.c) ---- */

/* Pieces of the parameters of `parts` and, from stage 2 on, of their gradients; AdamW. */
typedef struct mti_zero mti_zero;
mti_zero *mti_zero_new(const mt_parallel *parallel, mt_module *const *parts, size_t n_parts);
void mti_zero_free(mti_zero *zero);
/* AdamW's step, after the last backward; it drops the gradients. With out, it fills in the bytes of
 * parameters, gradients and optimizer state. */
bool mti_zero_step(mti_zero *zero, mt_rank_report *out);

#endif
