/* trainer.h: a byte-level GPT, its optimizer and its text: what `train` and `demo` share. */
#ifndef MTI_CLI_TRAINER_H
#define MTI_CLI_TRAINER_H

#include "cli/corpus.h"
#include "measure/memory_hooks.h"
#include "memtape/generate.h"

/* All that decides how a run goes. Two runs with equal plans and equal text are equal bit for bit,
 * wherever they were stopped and resumed: which bytes step k sees follows from seed and k alone. */
typedef struct mti_plan {
    mt_model_config config;
    int64_t batch, seq, accumulate, steps, warmup;
    double lr, min_lr, weight_decay, clip; /* clip 0: none */
    mti_memory_options memory;
    uint64_t seed;
    const char *from; /* file whose weights it begins with; NULL: random ones, by seed */
} mti_plan;

typedef struct mti_trainer {
    mti_plan plan;
    const mti_corpus *corpus; /* borrowed */
    mt_device *device;        /* borrowed */
    mt_module *model;
    mt_optimizer *optimizer;
    mti_memory_hooks memory_hooks;
    int64_t step; /* done */
    double loss;  /* of the last step, in nats per byte */
} mti_trainer;

/* Seeds the device and makes model and optimizer. The corpus must hold a sequence of the plan. */
bool mti_trainer_make(mti_trainer *t, mt_device *device, const mti_plan *plan,
                      const mti_corpus *corpus);
void mti_trainer_free(mti_trainer *t);
/* One optimizer step; without data (meta) its loss is 0. */
bool mti_trainer_step(mti_trainer *t);
/* *bits: per byte on the first `max_bytes` of the held-out text (0: all of it), every byte but the
 * first being predicted from at most seq bytes before it. */
bool mti_trainer_held_out(mti_trainer *t, size_t max_bytes, double *bits);

/* Text that continues a prompt, byte by byte. When it fills the model's context its last half is
 * kept and read anew, since keys and values of other positions cannot be moved. `how` is
 * mt_generate's, whose first_draw counts on. Called with every byte as it is chosen; false stops.
 * stats may be NULL; cache_bytes is the most there was. */
typedef bool mti_byte_fn(void *user, unsigned char byte);
bool mti_sample(mt_module *model, const char *prompt, int64_t n_bytes,
                const mt_generate_options *how, mti_byte_fn *fn, void *user,
                mt_generate_stats *stats);

#endif
