/* as_ranks.h: runs a function as several ranks, which are threads of the test; the models that
 * ranks share; and training as one process and as ranks. */
#ifndef MTT_AS_RANKS_H
#define MTT_AS_RANKS_H

#include "mtt.h"

/* What one rank of `world` does. */
typedef void mtt_ranked_fn(mt_comm *world, void *user);
void mtt_as_ranks(int64_t ranks, mtt_ranked_fn *run, void *user);
/* Of a division, in which 0 is 1. */
int64_t mtt_count_ranks(const mt_parallel *parallel);

/* Ends the program with a message unless `ok`: cmocka's assertions are for the main thread only. */
#define MTT_NEED(ok) mtt_need((ok), #ok, __FILE__, __LINE__)
void mtt_need(bool ok, const char *what, const char *file, int line);

/* Whether both are there, with the same bytes. */
bool mtt_same_files(const char *a, const char *b);

/* ---- models ---- */

/* Small ones of every kind that ranks share, without dropout; what a test needs otherwise it
 * changes in a copy. */
enum { MTT_GPT, MTT_GPT_UNTIED, MTT_LLAMA, MTT_BERT, MTT_NEOX, MTT_MODELS };
extern const mt_model_config mtt_models[MTT_MODELS];
extern const char *const mtt_model_names[MTT_MODELS];
/* The head has the embedding's weight. */
static inline bool mtt_is_tied(int model) { return model == MTT_GPT || model == MTT_BERT; }
/* Whether ranks of such a division take that form of the model's loss. */
static inline bool mtt_takes_loss(int model, mt_loss_form loss, const mt_parallel *split)
{
    const bool whole = loss == MT_LOSS_FUSED || loss == MT_LOSS_TORCH || loss == MT_LOSS_LIGER ||
                       loss == MT_LOSS_SHIFTED; /* takes all logits of a row */
    const bool bert = mtt_models[model].kind == MT_MODEL_BERT;
    return whole ? !bert && split->tensor < 2 : !bert || loss != MT_LOSS_CHUNKED;
}
/* In the short form half of the pairs, with every model and every division among them; and of these
 * it is the pair's turn. */
static inline bool mtt_is_taken(size_t model, size_t division)
{
    return mtt_long() ||
           ((model + division) % 2 == 0 && mtt_turn((model + division) / 2 + division));
}

/* ---- training (training.c) ---- */

enum { MTT_MOST_STEPS = 20, MTT_BATCH = 4, MTT_SEQ = 16 };
/* Of a training: MTT_MOST_STEPS in the long form, but for the simulator's. */
int mtt_steps(void);
/* f32 sums in another order; the largest seen was 4.3e-7 of the first loss. */
#define MTT_ROUNDING 5e-6

extern const mt_adamw_options mtt_adamw;

typedef struct mtt_training {
    const mt_model_config *config;
    mt_parallel parallel;
    const mt_lora_options *lora;   /* adapters; NULL: none */
    const char *checkpoint;        /* NULL: none */
    double max_norm;               /* 0: no limit */
    double scale;                  /* of the ranks' losses; 0: none */
    double losses[MTT_MOST_STEPS]; /* rank 0's; the others must have the same */
    /* Of every rank, at the end; may be NULL. */
    void (*look)(const mt_parallel *parallel, mt_stage *stage);
} mtt_training;

/* The whole model, without ranks; a step is the mean over parallel's microbatches. */
void mtt_train_alone(mtt_training *t);
void mtt_train(mtt_training *t);
/* The largest difference between two curves, over the first loss. */
double mtt_difference(const mtt_training *a, const mtt_training *b);
/* Prints the division and how far its curve is from another. */
void mtt_show(const char *model, const mt_parallel *parallel, double difference, const char *from);

#endif
