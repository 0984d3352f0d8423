/* measured_rank.h: one rank of several on the meta device, and the models it is tried with. */
#ifndef MTT_MEASURED_RANK_H
#define MTT_MEASURED_RANK_H

#include "mtt.h"

/* Four layers of width 32, vocabulary 48 and context 16, of every kind that ranks share. */
enum { MTT_SMALL_MODELS = 5 };
extern const mt_model_config mtt_small_models[MTT_SMALL_MODELS];

/* A preset as in the papers: bf16, dropout, every intermediate of the attention kept. */
mt_model_config mtt_paper_model(const char *preset);

/* Measures on a device of its own and checks that nothing is left on it. */
mt_rank_report mtt_measure_rank(const mt_model_config *c, mt_parallel split, int64_t b, int64_t s,
                                const char *checkpoint);

/* Bytes of a module's parameters, in whole blocks of 512. */
size_t mtt_blocks_of(mt_module *m);

#endif
