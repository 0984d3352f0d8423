/* trainer.h: a tiny GPT with its optimizer and one batch, for tests that need a whole step. */
#ifndef TRAINER_H
#define TRAINER_H

#include "mtt.h"

typedef struct trainer {
    mt_device *device;
    mt_module *gpt;
    mt_optimizer *adamw;
    mt_tensor *tokens, *targets; /* i64 [b,s] */
} trainer;

/* Two layers, hidden 12, 3 heads, 11 words, dropout 0.1, sequences of 7: nothing is a multiple of
 * anything. `config` NULL takes these; the device is opened anew and seeded. */
bool trainer_open(trainer *t, const mt_model_config *config, uint64_t seed);
void trainer_close(trainer *t); /* everything but the device */
/* Zero gradients, forward, loss, backward, clipping, AdamW; *loss is filled in when all is well. */
mt_status trainer_step(trainer *t, double *loss);
/* Every parameter's bytes behind one another; the caller frees them. */
unsigned char *trainer_weights(trainer *t, size_t *n_bytes);

#endif
