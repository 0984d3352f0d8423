/* checkpoint.h: names in a checkpoint file, and the two steps of loading a module. */
#ifndef MTI_CHECKPOINT_H
#define MTI_CHECKPOINT_H

#include "nn/safetensors.h"

#define MTI_KEY_PREFIX    "memtape."
#define MTI_KEY_STEP      "memtape.step"
#define MTI_KEY_SEED      "memtape.rng.seed"
#define MTI_KEY_OFFSET    "memtape.rng.offset"
#define MTI_KEY_OPTIMIZER "memtape.optimizer" /* its kind */
#define MTI_KEY_STEPS     "memtape.steps"     /* {"parameter": steps made, ...} */
#define MTI_STATE_PREFIX  "optimizer."

/* Whether names, dtypes and shapes agree; the error names a difference. */
bool mti_weights_fit(const mt_safetensors *f, const mt_named_tensor *list, size_t n);
/* After mti_weights_fit. */
bool mti_weights_load(const mt_safetensors *f, const mt_named_tensor *list, size_t n);

#endif
