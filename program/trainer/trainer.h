/* trainer.h: training on text, for `train` and `demo`. */
#ifndef MTI_TRAINER_TRAINER_H
#define MTI_TRAINER_TRAINER_H

#include "trainer/corpus.h"
#include "memory/memory_hooks.h"
#include "memtape/models/generate.h"
#include "parallel/parallel.h"
#include "workload/workload.h"

/* How the weights in a file are read: into a new model, or into a rank's part. */
typedef struct mti_weights_reader {
    mt_module *(*model)(const char *path, mt_device *device, const mt_model_config *config);
    bool (*part)(const char *path, mti_stage *stage);
} mti_weights_reader;

/* With a workload, all that decides how a run goes. Two runs with equal workloads, settings and
 * text are equal bit for bit, wherever they were stopped and resumed: which bytes step k sees
 * follows from seed and k alone. */
typedef struct mti_train_settings {
    int64_t accumulate, steps, warmup;
    double lr, min_lr, weight_decay, clip; /* clip 0: none */
    bool by_document; /* a sequence is one document, cut or padded; padding is no target */
    const char *from; /* a file with the first weights; NULL: random ones, by seed */
    const mti_weights_reader *reader; /* that reads them */
    const char *folder; /* or GGUF file that the model came from, with its tokenizer; NULL: none */
} mti_train_settings;

typedef struct mti_trainer {
    mti_workload workload;
    mti_train_settings settings;
    const mti_corpus *corpus; /* borrowed */
    mt_device *device;        /* borrowed */
    mti_stage stage;
    mt_module *model;  /* the stage's; NULL for one of several ranks */
    mt_comm *world;    /* of all ranks, borrowed */
    mt_ledger *ledger; /* of a rank: for the forwards before the first backward; NULL: none */
    mt_optimizer *optimizer;
    mti_memory_hooks memory_hooks;
    int64_t step; /* steps done */
    double loss;  /* of the last step, in nats per token */
    double best;  /* bits per byte of the best evaluation of a run that keeps it; 0: none */
} mti_trainer;

/* Seeds the device and makes model and optimizer. The corpus must hold a sequence. */
bool mti_trainer_make(mti_trainer *t, mt_device *device, const mti_workload *workload,
                      const mti_train_settings *settings, const mti_corpus *corpus);
void mti_trainer_free(mti_trainer *t);
/* One optimizer step; without data (meta) its loss is 0. Fails if the loss is not finite. */
bool mti_trainer_step(mti_trainer *t);
/* *bits: per byte on the first `max_bytes` of the held-out text (0: all of it), every token but the
 * first being predicted from at most seq tokens before it. Tokens count as many bytes as they have
 * on average. */
bool mti_trainer_held_out(mti_trainer *t, size_t max_bytes, double *bits);

/* Bytes of a rank's first steps: what the first forward keeps, and the most that all of them take.
 */
typedef struct mti_watched {
    size_t saved, peak, reserved;
} mti_watched;

/* Around two steps of a rank, which is predicted, on meta, or runs. */
bool mti_trainer_begin_watch(mti_trainer *t);
mti_watched mti_trainer_end_watch(mti_trainer *t);
#define MTI_WATCHED_STEPS 2

/* The ids of batch `part` of the next step that this rank has, inputs and then targets: *rows
 * sequences, and of each as many positions as mti_shard_length says. One process has all. The
 * caller frees them. */
int64_t *mti_batch_shard(const mti_trainer *t, int64_t part, int64_t *rows);
int64_t mti_shard_length(const mti_workload *w);
/* ids[rows,seq] becomes [rows,length]: the positions of each row that this rank has. */
void mti_keep_shard(const mti_workload *w, int64_t rows, int64_t *ids);
mt_tensor *mti_ids_tensor(const mti_trainer *t, const int64_t *ids, int64_t rows, int64_t length);

/* Tokens that continue a prompt of at least one. When they fill the model's context its last half
 * is read again, since keys and values cannot move to other positions. `options` are mt_generate's;
 * their first_draw goes on from call to call. fn gets every token as it is chosen; false stops.
 * stats may be NULL; its cache_bytes is the highest. */
typedef bool mti_token_fn(void *user, int64_t token);
bool mti_sample(mt_module *model, const int64_t *prompt, size_t n_prompt, int64_t n,
                const mt_generate_options *options, mti_token_fn *fn, void *user,
                mt_generate_stats *stats);
/* Adds the figures of what came after. */
void mti_generated_add(mt_generate_stats *sum, const mt_generate_stats *part);

#endif
