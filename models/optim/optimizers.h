/* optimizers.h: the optimizers that --optimizer names, a row each (optimizers.def). Nothing above
 * this room tells one from another but by its row. */
#ifndef MTI_OPTIM_OPTIMIZERS_H
#define MTI_OPTIM_OPTIMIZERS_H

#include "backends/backend.h"
#include "memtape/models/amp.h"
#include "memtape/models/optimizer.h"

typedef enum mti_optimizer_choice {
    MTI_OPT_NONE,
#define RULE(...)
#define OPTIMIZER(id, ...) MTI_OPT_##id,
#include "optim/optimizers.def"
#undef OPTIMIZER
#undef RULE
    MTI_OPTIMIZERS
} mti_optimizer_choice;
#define MTI_OPT_DEFAULT MTI_OPT_ADAMW

extern const mti_choice mti_optimizers;
const char *mti_optimizer_name(mti_optimizer_choice choice);

typedef struct mti_optimizer_row {
    const struct mti_opt_rule *rule; /* NULL: nothing is stepped */
    int n_state;                     /* tensors for each parameter, beside its master */
    mt_moments moments;              /* how they are stored */
    bool decay_matrices_only;
    mti_opt_params params; /* of a run that is not told otherwise */
    bool paged, host;      /* mt_adamw_options, ... */
    mt_adamw_form form;    /* ... too */
    bool saves_memory;     /* proposed in the default's place where memory is short */
    const char *beside;    /* the state that mti_optimizer_element_bytes leaves out; NULL: none */
} mti_optimizer_row;
const mti_optimizer_row *mti_optimizer_row_of(mti_optimizer_choice choice);

/* An optimizer as `choice` names it, which is not NONE; NULL on failure. */
mt_optimizer *mti_optimizer_make(mti_optimizer_choice choice, mt_module *m, double lr,
                                 double weight_decay, bool master);

/* Whether it steps a matrix as a whole, which a shard is not. */
bool mti_optimizer_takes_matrices(mti_optimizer_choice choice);
/* Whether each element's step depends on nothing but that element, so that a rank steps its shard
 * as one process steps the whole. */
bool mti_optimizer_is_elementwise(mti_optimizer_choice choice);
/* "sgd, adamw, adafactor": all but "none", or those that are elementwise. */
#define MTI_OPTIMIZER_LIST 384
const char *mti_optimizer_list(char text[MTI_OPTIMIZER_LIST], bool elementwise);

/* Bytes of state for each element of a parameter, without a master. */
int64_t mti_optimizer_element_bytes(mti_optimizer_choice choice, mt_dtype dtype);
/* Adds the weights of a model's embeddings, by their addresses. */
bool mti_optimizer_note_embeddings(const mt_module *m, mti_hashmap *out);
/* bytes[k]: on the device, of each state tensor but the master of a parameter of the model whose
 * embeddings were noted; returns how many there are. */
#define MTI_MAX_STATE 4
int mti_optimizer_sizes(mti_optimizer_choice choice, const mti_hashmap *embeddings,
                        const mt_named_tensor *param, bool master, int64_t bytes[MTI_MAX_STATE]);

/* ---- one that is made ---- */

/* Requested bytes of all state on the device, and of that in host memory; 0 for NULL. */
size_t mti_optimizer_state_bytes(const mt_optimizer *optimizer);
size_t mti_optimizer_host_bytes(const mt_optimizer *optimizer);
/* Whether it steps parameters in backward. */
bool mti_optimizer_is_in_backward(const mt_optimizer *optimizer);
/* Whether some optimizer steps this parameter in backward. */
bool mti_steps_in_backward(const mt_tensor *param);
/* Replaces a strided gradient by a contiguous copy: backends sum and scale only such. */
bool mti_dense_grad(mt_tensor *param);
/* *out = sum of squares of the gradients that the next step would take, in f64. */
bool mti_optimizer_squares(mt_optimizer *optimizer, double *out);
/* Multiplies those gradients by factor in place; refused for f16. */
bool mti_optimizer_scale_grads(mt_optimizer *optimizer, double factor);
/* mt_optimizer_step as if every gradient were multiplied by factor (> 0); no gradient is written.
 */
bool mti_optimizer_step_scaled(mt_optimizer *optimizer, double factor);
/* From now on parameters step in groups of this many elements, as DeepSpeed's do (sub_group_size);
 * their gradients are copied side by side and cast to f32, and then dropped if they are to be. 0:
 * all at once, with the gradients as they are. */
void mti_optimizer_set_sub_group(mt_optimizer *optimizer, int64_t elements, bool drops);
/* mt_scaler_step where the sum of the squares of all ranks' gradients is known; max_norm: as
 * mt_scaler_clip, 0: no limit. */
bool mti_scaler_step_given(mt_scaler *scaler, mt_optimizer *optimizer, double squares,
                           double max_norm, double *norm);

#endif
