/* amp.h: loss scaling, for gradients too small for f16.
 *
 * f16 reaches down to 6e-8; smaller gradients become 0. Scaling the loss scales them all, and the
 * step divides the scale out again. bf16 has the exponents of f32 and needs no scaling.
 *
 *     mt_autocast_begin(MT_F16);                        (autocast.h; or a model in f16 throughout)
 *     loss = ...
 *     mt_autocast_end();
 *     mt_set(&loss, mt_scaler_scale(scaler, loss));
 *     mt_backward(loss);
 *     mt_scaler_clip(scaler, optimizer, 1.0, &norm);    optional; norm of the unscaled gradients
 *     mt_scaler_step(scaler, optimizer, &stepped);
 *
 * One pass over the gradients finds out whether all are finite, and their norm. The scale and the
 * clipping are divided out within the optimizer's own pass, in f32: f16 gradients lose nothing,
 * and no gradient is written.   (Micikevicius et al. 2018; torch.amp.GradScaler) */
#ifndef MEMTAPE_AMP_H
#define MEMTAPE_AMP_H

#include "memtape/autocast.h"
#include "memtape/models/optimizer.h"

MT_C_BEGIN

/* A loss scale, and how it changes. */
typedef struct mt_scaler mt_scaler;

/* All zero is torch.amp.GradScaler's choice. */
typedef struct mt_scaler_options {
    double scale;     /* the first one; 0: 65536 */
    bool fixed;       /* the scale never changes; steps are still skipped */
    double growth;    /* times this after `interval` good steps in a row; 0: 2 */
    double backoff;   /* times this after an overflow; 0: 0.5 */
    int64_t interval; /* 0: 2000 */
} mt_scaler_options;

/* options: NULL for all zero. The caller frees it once. */
MT_API mt_scaler *mt_scaler_new(const mt_scaler_options *options);
MT_API void mt_scaler_free(mt_scaler *scaler);

/* loss * scale, recorded, in f32 at least. */
MT_API mt_tensor *mt_scaler_scale(mt_scaler *scaler, mt_tensor *loss);

/* Both are optional, between backward and step, for the gradients of `optimizer`'s parameters.
 * unscale: divide the gradients themselves, for those who want to look at them or change them; a
 * second call before the step is an error. Refused for f16, where they would be lost again.
 * clip: the step will scale all gradients by min(1, max_norm / (norm + 1e-6)), norm being their
 * joint 2-norm without the loss scale; *norm (may be NULL) is inf or NaN where the step will be
 * skipped. */
MT_API mt_status mt_scaler_unscale(mt_scaler *scaler, mt_optimizer *optimizer);
MT_API mt_status mt_scaler_clip(mt_scaler *scaler, mt_optimizer *optimizer, double max_norm,
                                double *norm);

/* The optimizer's step, unless a gradient is inf or NaN (an f64 one beyond 1e154 counts as that):
 * then nothing changes but the scale. *stepped (may be NULL) tells which. */
MT_API mt_status mt_scaler_step(mt_scaler *scaler, mt_optimizer *optimizer, bool *stepped);

/* Plain data, to print and to save with a checkpoint. */
typedef struct mt_scaler_state {
    double scale;
    int64_t good_steps; /* in a row, since the scale last changed */
    int64_t steps, skipped;
} mt_scaler_state;
MT_API mt_scaler_state mt_scaler_get(const mt_scaler *scaler);
MT_API mt_status mt_scaler_set(mt_scaler *scaler, const mt_scaler_state *state);

MT_C_END
#endif
