/* parallel.h: what the files of parallel ranks share. Letters as in model.h, and t: ranks of tensor
 * parallelism, p: of the pipeline. */
#ifndef MTI_PARALLEL_H
#define MTI_PARALLEL_H

#include "memtape/parallel.h"
#include "nn/model.h"

/* One part of one rank: consecutive layers. */
typedef struct mti_share {
    mt_parallel how;       /* every "0: ..." filled in */
    mt_model_config whole; /* resolved; the vocabulary padded to a multiple of t */
    mt_model_config local; /* what is here of a layer: fewer heads, a narrower MLP */
    int64_t from, to;      /* layers */
    bool first, last;      /* with the embedding; with the head */
} mti_share;

/* how and config checked and put together for this part. */
bool mti_share_make(mti_share *s, const mt_model_config *config, const mt_parallel *how,
                    int64_t part);

/* Whether a sequence may be so long. */
bool mti_check_length(const char *who, const mti_share *s, int64_t seq);

/* ---- parts of a rank's layers (parts.c); no change where t is 1 ---- */

/* Around m: x is for all t ranks, each of which computes a part of what comes of it. Replicated,
 * or, with sequence parallelism, gathered from [b,s/t,d]: then the tape keeps the piece. */
bool mti_enter_ranks(mt_module *m, const mt_parallel *how);
/* The same around one run(m, x). */
mt_tensor *mti_run_entered(mt_module *m, mt_forward_fn *run, const mt_parallel *how, mt_tensor *x);
/* In the place of a child, a linear whose columns are here: the sum over all ranks follows, and
 * then the bias. -> [b,s,d], or [b,s/t,d] with sequence parallelism. */
bool mti_sum_over_ranks(mt_module *parent, const char *name, const mt_parallel *how);
/* Ids [b,s] -> [b,s,d] or [b,s/t,d]: the rows of an embedding that are here, zeros for other ids,
 * summed over the ranks. In the place of a child, an embedding. */
bool mti_share_embedding(mt_module *parent, const char *name, const mt_parallel *how);
/* In the place of each parameter under m its first of dp pieces, made on `device`; the module
 * gathers the whole while it runs (ZeRO 3). */
typedef struct mti_cutter {
    mt_device *device;
    int64_t dp;
    mt_tensor *shared; /* a parameter that two modules have (may be NULL), borrowed ... */
    mt_tensor *piece;  /* ... and what became of it; NULL at first */
} mti_cutter;
bool mti_cut_params(mt_module *m, mti_cutter *cutter);

/* ---- a tensor that the tape keeps as this rank's piece ---- */

typedef struct mti_regather mti_regather;
/* Until mti_regather_end, saves of `whole` keep `piece` instead; backward gathers it again along
 * dimension 0 or 1 and takes as much as whole has. NULL on failure. */
mti_regather *mti_regather_begin(mt_tensor *whole, mt_tensor *piece, int dim, int64_t ranks);
bool mti_regather_end(void);

/* ---- the books of a rank (books.c) ---- */

/* What is in flight. */
typedef struct mti_flight {
    int64_t layers, first, last; /* how many of them, and of forwards through either end */
    int64_t batch, seq;
    const char *checkpoint; /* "none", "full" or "selective" */
} mti_flight;

/* out->formula, text, rows and unexplained, for what `ledger` holds now, which is out->saved. */
bool mti_rank_explain(const mti_share *share, const mti_flight *flight, const mt_ledger *ledger,
                      mt_rank_report *out);

/* ---- what stays from step to step (zero.c) ---- */

/* Pieces of the parameters of `parts` and, from stage 2 on, of their gradients; AdamW. */
typedef struct mti_zero mti_zero;
mti_zero *mti_zero_new(const mt_parallel *how, mt_module *const *parts, size_t n_parts);
void mti_zero_free(mti_zero *zero);
/* After the last backward of a step: AdamW's step. The gradients are gone then. With out: fills in
 * the bytes of parameters, of gradients and of the optimizer's state. */
bool mti_zero_step(mti_zero *zero, mt_rank_report *out);

#endif
