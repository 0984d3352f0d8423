/* as_ranks.h: runs a function as several ranks, which are threads of the test. */
#ifndef MTT_AS_RANKS_H
#define MTT_AS_RANKS_H

#include "mtt.h"

/* What one rank of `world` does. */
typedef void mtt_ranked_fn(mt_comm *world, void *user);
void mtt_as_ranks(int64_t ranks, mtt_ranked_fn *run, void *user);

/* Ends the program with a message unless `ok`: cmocka's assertions are for the main thread only. */
#define MTT_NEED(ok) mtt_need((ok), #ok, __FILE__, __LINE__)
void mtt_need(bool ok, const char *what, const char *file, int line);

#endif
