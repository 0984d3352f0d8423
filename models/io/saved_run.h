/* saved_run.h: names in a checkpoint file, and the two steps of loading a module. */
#ifndef MTI_SAVED_RUN_H
#define MTI_SAVED_RUN_H

#include "io/safetensors.h"
#include "nn/nn.h"

#define MTI_KEY_PREFIX    "memtape."
#define MTI_KEY_STEP      "memtape.step"
#define MTI_KEY_SEED      "memtape.rng.seed"
#define MTI_KEY_OFFSET    "memtape.rng.offset"
#define MTI_KEY_OPTIMIZER "memtape.optimizer" /* its kind */
#define MTI_KEY_STEPS     "memtape.steps"     /* {"parameter": steps made, ...} */
#define MTI_STATE_PREFIX  "optimizer."
#define MTI_MODULE_STATE  "memtape.state" /* before what modules keep from step to step */

/* "optimizer.m.h.0.mlp.fc.weight", to be freed with mti_free. */
char *mti_checkpoint_state_name(const char *state, const char *param);

/* What a checkpoint consists of. */
typedef struct mti_checkpoint_list {
    MTI_VEC(mt_named_tensor)
    tensors;          /* the module's, in its order, then the optimizer's state,
                       * then what modules keep */
    size_t n_weights; /* the other tensors' names are allocated here */
    MTI_VEC(mt_key_value) pairs;
    char step[24], seed[24], offset[24];
    char *steps;
} mti_checkpoint_list;
/* Free in any case. */
bool mti_checkpoint_list_make(mti_checkpoint_list *list, mt_module *m, mt_optimizer *optimizer,
                              int64_t step, size_t n_metadata, const mt_key_value *metadata);
void mti_checkpoint_list_free(mti_checkpoint_list *list);

/* What a file has besides tensors; json_decref(steps). */
typedef struct mti_checkpoint_state {
    uint64_t step, seed, offset;
    json_t *steps; /* {"parameter": steps made}; NULL without an optimizer */
} mti_checkpoint_state;
/* Whether the file has these weights, and the state of this optimizer (may be NULL). */
bool mti_checkpoint_check(const mt_safetensors *f, const mt_named_tensor *list, size_t n,
                          mt_optimizer *optimizer, mti_checkpoint_state *out);

/* Whether names, dtypes and shapes agree; the error names a difference. casts: floating dtypes may
 * differ. */
bool mti_weights_fit(const mt_safetensors *f, const mt_named_tensor *list, size_t n, bool casts);
/* After mti_weights_fit. */
bool mti_weights_load(const mt_safetensors *f, const mt_named_tensor *list, size_t n);

/* Whether the file's have these dtypes and shapes; all: whether it has these and no others. */
bool mti_states_fit(const mt_safetensors *f, const mti_state_list *states, bool all);
/* After mti_states_fit; those that the file has. */
bool mti_states_load(const mt_safetensors *f, const mti_state_list *states);

#endif
