/* ranks.h: runs a test as several ranks. */
#ifndef MTT_RANKS_H
#define MTT_RANKS_H

#include "mtt.h"

/* What one rank does; its checks end the program if one fails. */
typedef void mtt_rank_fn(mt_comm *comm);

/* As `ranks` threads of this process. */
void mtt_as_threads(int64_t ranks, mtt_rank_fn *run);

/* Ends the program with a message unless `ok`: cmocka's assertions are for the main thread only. */
#define MTT_NEED(ok) mtt_need((ok), #ok, __FILE__, __LINE__)
void mtt_need(bool ok, const char *what, const char *file, int line);

/* The checks of collectives.c: values, gradients, layouts, dtypes, bytes sent. */
mtt_rank_fn mtt_check_collectives, mtt_check_split;

/* The checks of behind.c: exchanges that go on while the rank does something else. */
mtt_rank_fn mtt_check_behind;

/* The checks of stages.c: the messages of pipelines, by their schedules. */
mtt_rank_fn mtt_check_stages;

#endif
