/* models.h: models drawn at random. */
#ifndef MODELS_H
#define MODELS_H

#include "mtt.h"

/* A whole number in [lo, hi]; heads or tails. */
int64_t mtt_pick(uint64_t *seed, int64_t lo, int64_t hi);
bool mtt_toss(uint64_t *seed);
/* A small model of any kind, with any choices that mt_model_new takes. */
mt_model_config mtt_draw_model(uint64_t *seed);

#endif
