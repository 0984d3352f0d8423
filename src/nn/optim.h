/* optim.h: an optimizer from inside: optim.c makes it and keeps its state, optim_step.c steps. */
#ifndef MTI_NN_OPTIM_H
#define MTI_NN_OPTIM_H

#include "nn/nn.h"
#include "tensor/tensor.h"

#define MTI_MAX_STATE 2 /* beside the master */

typedef struct mti_opt_rule {
    const char *name;
    const char *state[MTI_MAX_STATE]; /* names of the state tensors; NULL: no more */
    bool (*step)(const mti_backend *be, mti_ctx *ctx, const mti_opt_params *p, int n,
                 const mti_opt_item *items);
} mti_opt_rule;

typedef struct mti_opt_slot {
    char *path;
    const char *where;               /* the path, interned: the state's module in the books */
    mt_tensor *param;                /* retained */
    mt_tensor *state[MTI_MAX_STATE]; /* NULL before the first step */
    mt_tensor *master;               /* f32 copy of a 16-bit parameter; NULL if not wanted */
    uint64_t version;                /* of the parameter, when the master was last equal to it */
    int64_t step;                    /* steps made */
    mt_tensor *grad; /* contiguous; held during a step by the slots that take part in it */
} mti_opt_slot;

struct mt_optimizer {
    const mti_opt_rule *rule;
    int n_state; /* tensors per parameter, but for the master */
    bool master;
    mti_opt_params params;
    double weight_decay;
    bool decay_matrices_only;
    mt_device *device; /* of all parameters; NULL if there are none */
    size_t n_slots;
    mti_opt_slot *slots;
    mti_opt_item *items; /* [n_slots] */
};

/* All state of a parameter, or none of it; what there is already stays. */
bool mti_optimizer_make_state(const mt_optimizer *o, mti_opt_slot *s);

#endif
