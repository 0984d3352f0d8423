/* train_ranks.h: what several ranks that train do together besides their steps. Every rank calls
 * each of these functions. */
#ifndef MTI_CLI_TRAIN_RANKS_H
#define MTI_CLI_TRAIN_RANKS_H

#include "options/options.h"
#include "trainer/trainer.h"
#include "measure/rank.h"

/* Which of the ranks this one is, in the workload and in *f. */
bool mti_train_ranks_place(mti_options *o, mti_rank_figures *f);
/* Whether all have the same text, model and settings, which may be from a file, and go on at the
 * same step. */
bool mti_train_ranks_agree(const mti_options *o, const mti_corpus *corpus, int64_t step);
/* Whether this machine has room for its ranks together, which is asked once, before a rank makes
 * its model or as it fails; ok: whether this one has come so far. One process: ok. */
bool mti_train_ranks_share_room(const mti_options *o, mti_rank_figures *f, bool ok);
/* *signalled: a signal that any rank got; *ends: whether any rank is to end. */
bool mti_train_ranks_end_early(mt_comm *world, int *signalled, bool *ends);
/* Prints how they are divided. */
void mti_train_ranks_introduce(const mti_workload *w);
/* Rank 0 prints and writes what every rank's first steps took, beside what was predicted. */
bool mti_train_ranks_report(const mti_options *o, mti_rank_figures *f, const mti_trainer *t);

#endif
