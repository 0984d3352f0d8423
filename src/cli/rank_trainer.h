/* rank_trainer.h: what a trainer of one of several ranks does differently. Every rank calls these
 * functions, but for the making and the watch. */
#ifndef MTI_CLI_RANK_TRAINER_H
#define MTI_CLI_RANK_TRAINER_H

#include "cli/trainer.h"
#include "measure/together.h"

/* The rank's part of the model, inside the memory hooks. The workload's batch is that of all
 * ranks. */
bool mti_rank_trainer_make(mti_trainer *t);
/* Forward and backward of a step's batches; *loss: the mean of all ranks'. */
bool mti_rank_trainer_backward(mti_trainer *t, double *loss);
/* *nats: of the first n_bytes of held-out text after its first byte, of all ranks. */
bool mti_rank_trainer_held_out(mti_trainer *t, size_t n_bytes, double *nats);

/* Between them two steps: what the first forward keeps, and what both take. `figures` may be those
 * of a rank that is predicted, on meta, or of one that runs. */
bool mti_rank_trainer_begin_watch(mti_trainer *t);
void mti_rank_trainer_end_watch(mti_trainer *t, size_t figures[MTI_FIGURES]);
#define MTI_WATCHED_STEPS 2

#endif
