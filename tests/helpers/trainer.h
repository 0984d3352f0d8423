/* trainer.h: a tiny GPT with its optimizer and one batch, for tests of whole steps. */
#ifndef TRAINER_H
#define TRAINER_H

#include "mtt.h"

typedef struct trainer {
    mt_device *device;
    mt_module *gpt;
    mt_optimizer *adamw;
    mt_tensor *tokens, *targets; /* i64 [b,s] */
} trainer;

/* Opens and seeds a device. config NULL: two layers, hidden 12, 3 heads, 11 words, dropout 0.1,
 * sequences of 7: odd sizes, which no kernel's tiles divide. */
bool trainer_open(trainer *t, const mt_model_config *config, uint64_t seed);
void trainer_close(trainer *t); /* everything but the device */
/* Zeroes gradients, then forward, loss, backward, clipping, AdamW; sets *loss on success. */
mt_status trainer_step(trainer *t, double *loss);
/* The bytes of all parameters, one after another; the caller frees them. */
unsigned char *trainer_weights(trainer *t, size_t *n_bytes);

#endif
