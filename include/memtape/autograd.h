/* autograd.h: the tape. Gradients, hooks on gradients, the ledger.
 *
 * An op with an input that requires grad records a node: edges to the nodes that
 * made its inputs, and the tensors its backward needs, each passed through the
 * stack of saved-tensor hooks (hooks.h). */
#ifndef MEMTAPE_AUTOGRAD_H
#define MEMTAPE_AUTOGRAD_H

#include "memtape/tensor.h"

MT_C_BEGIN

/* ---- gradients ---- */

/* Only on leaves (tensors that no recorded op made) with a floating dtype. */
MT_API mt_status mt_set_requires_grad(mt_tensor *t, bool requires_grad);
MT_API bool mt_requires_grad(const mt_tensor *t); /* set, or made from a tensor that has it */
/* The accumulated gradient of a leaf, borrowed; NULL if none. */
MT_API mt_tensor *mt_grad(const mt_tensor *t);
/* grad is retained, and backward adds into it; NULL drops the gradient. grad has t's shape and
 * device, t's gradient dtype, its own storage, does not require grad, and is not expanded. */
MT_API mt_status mt_set_grad(mt_tensor *t, mt_tensor *grad);
/* The dtype in which a leaf's gradient is summed, the leaf's own unless set: f32 for 16-bit
 * parameters loses nothing over many backwards. Each gradient that arrives is cast; so hooks on
 * gradients get this dtype, and mt_gradients returns it. Only floating dtypes, on leaves that have
 * no gradient of another dtype.   (torch.Tensor.grad_dtype) */
MT_API mt_status mt_set_grad_dtype(mt_tensor *leaf, mt_dtype dtype);
MT_API mt_dtype mt_grad_dtype(const mt_tensor *leaf);
/* Drops the gradients of n leaves: their bytes are freed until the next backward. Fails and drops
 * none if a leaf is NULL. For a module: mt_module_zero_grad.
 * (torch.optim.Optimizer.zero_grad, set_to_none) */
MT_API mt_status mt_zero_grads(int n, mt_tensor *const *leaves);

/* All zero is mt_backward's choice. */
typedef struct mt_backward_options {
    mt_tensor *gradient; /* incoming, of loss's shape; NULL: 1, if loss has 1 element */
    bool retain_graph;   /* keep the saved tensors for another backward */
} mt_backward_options;

/* Runs the nodes in reverse order of creation, accumulates into the leaves' grads, and frees each
 * node's saved tensors once it has run. Does not recurse. */
MT_API mt_status mt_backward(mt_tensor *loss);
MT_API mt_status mt_backward_with(mt_tensor *loss, const mt_backward_options *options);
/* The same from n roots in one walk: each node runs once, with the sum of its gradients. A root may
 * appear twice, lead to another, or be a leaf. gradients[n]: one per root, as `gradient` above;
 * NULL: all NULL.   (torch.autograd.backward) */
MT_API mt_status mt_backward_from(int n, mt_tensor *const *roots, mt_tensor *const *gradients,
                                  bool retain_graph);

/* What to differentiate, and by what. */
typedef struct mt_gradients_options {
    int n_roots;
    mt_tensor *const *roots;
    mt_tensor *const *gradients; /* [n_roots], as for mt_backward_from */
    int n_inputs;
    mt_tensor *const *inputs; /* leaves or outputs of recorded ops; all require grad */
    bool retain_graph;
} mt_gradients_options;

/* out[i]: the gradient of the sum of the roots with respect to inputs[i], the caller's, row-major
 * in its own storage, category MT_GRADIENT; NULL, with MT_OK, if no root depends on inputs[i]. On
 * failure all are NULL. Leaves' grads do not change. Only nodes that lead to an input run, compute
 * only the gradients needed for that, and free their saved tensors; the node that made an input
 * runs only if it leads to another input. Gradient hooks of these nodes and of the inputs are
 * called, and out[i] is what they return; leaf hooks are not called. (torch.autograd.grad with
 * allow_unused; torch returns an inner input's gradient from before its hooks if the walk continues
 * past it) */
MT_API mt_status mt_gradients(const mt_gradients_options *options, mt_tensor **out);

/* Per thread, on at its start. Setting it returns the previous mode. */
MT_API bool mt_grad_mode(void);
MT_API bool mt_set_grad_mode(bool on);
/* A tensor that shares t's storage and version counter, and has no history. */
MT_API mt_tensor *mt_detach(mt_tensor *t);

/* Called with the complete gradient of t; for a leaf, before it is accumulated. Returns the
 * gradient to continue with (retained or new, the engine takes it over), or NULL on failure. A hook
 * may remove itself and others: they are not called again. It may add hooks: they are called from
 * the next backward on. It may release the tensor. It may call backward, but not through the op
 * whose gradient it was called with. Returns a handle, 0 on failure; hooks of one tensor run in the
 * order they were added. */
typedef mt_tensor *mt_grad_hook_fn(void *user, mt_tensor *grad);
MT_API int mt_add_grad_hook(mt_tensor *t, mt_grad_hook_fn *fn, void *user);
/* For leaves: called after accumulation, with the leaf. */
typedef mt_status mt_leaf_hook_fn(void *user, mt_tensor *leaf);
MT_API int mt_add_leaf_hook(mt_tensor *leaf, mt_leaf_hook_fn *fn, void *user);
MT_API mt_status mt_remove_hook(mt_tensor *t, int handle); /* of either kind */

/* The node that made t: op name ("" for a leaf) and sequence number (0 for a leaf). */
MT_API const char *mt_grad_fn_name(const mt_tensor *t);
MT_API uint64_t mt_grad_fn_sequence(const mt_tensor *t);

/* One recorded op. `saved` counts the tensors it keeps now (0 once they are freed). */
typedef struct mt_node_info {
    uint64_t sequence;
    const char *op, *module;
    int n_inputs, n_saved;
    bool freed;
} mt_node_info;
/* Every node that `root` depends on, in reverse order of creation. */
MT_API mt_status mt_visit_tape(mt_tensor *root, void (*fn)(void *user, const mt_node_info *node),
                               void *user);

/* ---- the ledger: a saved-tensor hook that records every save ---- */

/* A record of what a thread's ops save on one device, storage by storage. */
typedef struct mt_ledger mt_ledger;

/* A distinct storage that the tape keeps. Its bytes count for saver 0, the first to save it; the
 * others share it at 0 bytes. */
typedef struct mt_ledger_entry {
    uint64_t storage; /* serial */
    size_t bytes;     /* of the whole storage, requested */
    size_t rounded;   /* the same up to a multiple of 512 */
    size_t allocated; /* the whole block; its rest depends on what was freed before (memory.h) */
    size_t n_savers;
    mt_saver saver; /* the first */
    bool freed;
    const char *freed_after_op, *freed_after_module; /* the node whose backward freed it */
} mt_ledger_entry;

/* A ledger for one device; the caller's to free. begin pushes a hook that records every save of
 * this thread, end pops it (hooks nest). What a node gives up in between, except for its backward,
 * is taken back, as it was not kept for one; after a failure the record stays as it is. Frees are
 * recorded until mt_ledger_free. */
MT_API mt_ledger *mt_ledger_new(mt_device *device);
MT_API void mt_ledger_free(mt_ledger *ledger);
MT_API mt_status mt_ledger_begin(mt_ledger *ledger);
MT_API mt_status mt_ledger_end(mt_ledger *ledger);
/* Forgets what was recorded, for the next step; what is left out stays so. It keeps its memory, so
 * a step that saves what the last one did asks for none. Until the next begin it costs nothing. Not
 * while another thread uses it. */
MT_API mt_status mt_ledger_reset(mt_ledger *ledger);
/* Leaves this tensor's storage out. Storages of category MT_PARAMETER are left out by default. */
MT_API mt_status mt_ledger_ignore(mt_ledger *ledger, const mt_tensor *t);
MT_API mt_status mt_ledger_count_parameters(mt_ledger *ledger, bool count);
/* Saved bytes: each distinct storage once, whole. */
MT_API size_t mt_ledger_bytes(const mt_ledger *ledger);
MT_API size_t mt_ledger_allocated(const mt_ledger *ledger);  /* in whole blocks (memory.h) */
MT_API size_t mt_ledger_live_bytes(const mt_ledger *ledger); /* not freed yet */
MT_API size_t mt_ledger_count(const mt_ledger *ledger);      /* distinct storages */
MT_API mt_status mt_ledger_get(const mt_ledger *ledger, size_t i, mt_ledger_entry *out);
/* Saver j (0 .. n_savers - 1) of entry i. */
MT_API mt_status mt_ledger_get_saver(const mt_ledger *ledger, size_t i, size_t j, mt_saver *out);

/* ---- module scopes: names in records, events and errors; per thread ---- */

MT_API mt_status mt_scope_push(const char *name); /* "mlp" under "gpt.h.3": "gpt.h.3.mlp" */
MT_API void mt_scope_pop(void);                   /* ends the innermost scope */
MT_API const char *mt_scope_path(void);           /* "gpt.h.3.mlp"; "" outside of all */
/* The phase in events: "forward", "backward", "step", ... NULL or "" clears it and never fails. If
 * memory for a new name runs out the phase stays. */
MT_API mt_status mt_set_phase(const char *phase);

/* ---- the balance check ---- */

/* When on, each op checks at its end, in forward and backward: the categories' blocks must sum to
 * the allocated bytes, and what an op made must be freed unless it is an output, a saved tensor or
 * a gradient. Otherwise the op fails with MT_ERR_INTERNAL and names the first block that is wrong.
 * Per device; slow; off by default. */
MT_API mt_status mt_set_balance_check(mt_device *device, bool on);
/* Runs the check now. */
MT_API mt_status mt_check_balance(mt_device *device);

MT_C_END
#endif
