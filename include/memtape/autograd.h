/* autograd.h: the tape. Gradients, hooks on saved tensors and on gradients, the ledger.
 *
 * An op with an input that requires grad records a node: edges to the nodes that
 * made its inputs, and the tensors its backward needs, each passed through the
 * stack of saved-tensor hooks. */
#ifndef MEMTAPE_AUTOGRAD_H
#define MEMTAPE_AUTOGRAD_H

#include "memtape/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gradients ---- */

/* Only on leaves (tensors that no recorded op made) with a floating dtype. */
MT_API mt_status mt_set_requires_grad(mt_tensor *t, bool requires_grad);
MT_API bool mt_requires_grad(const mt_tensor *t); /* set, or made from a tensor that has it */
MT_API bool mt_is_leaf(const mt_tensor *t);       /* no recorded op made it */
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

/* ---- hooks on saved tensors ---- */

/* What backward reads of a saved tensor: its values, or only which of them are > 0. */
typedef enum mt_save_read { MT_READ_VALUES, MT_READ_SIGN } mt_save_read;

/* Describes a tensor that an op saves. */
typedef struct mt_save_info {
    const char *op;       /* "gelu" */
    const char *argument; /* the argument's letter: "x", "q", "mask" */
    int index;            /* its position among the inputs, outputs or auxiliaries */
    mt_save_role role;
    mt_save_read read;
    const char *module; /* "gpt.h.3.mlp.act" */
    uint64_t node;      /* sequence number of the node that keeps it; grows with creation */
    /* For a random mask: mt_dropout_mask's arguments to draw it again. p is 0 for other tensors,
     * and for a mask that a hook supplied without these. */
    double p;
    uint64_t seed, offset;
} mt_save_info;

/* The same as a record, with the tensor's dtype and shape; the strings are borrowed. */
MT_API mt_saver mt_saver_of(const mt_save_info *info, const mt_tensor *tensor);

/* Functions between an op and what the tape keeps. Hooks nest: the innermost (last pushed) packs
 * first, the next one packs its result, and unpacking goes in reverse order.
 *
 * pack: *kept starts as the tensor itself. Leave it, replace it by another tensor (a new reference,
 * taken over: a smaller copy, for example), or set it to NULL and keep what you need in *state. The
 * outer hooks then pack *kept, unless it is NULL.
 * unpack: *tensor is pack's *kept (may be NULL), borrowed. Leave it, or set it to a new reference
 * with the shape, dtype and device that were packed, in any layout. May be called more than once
 * (retain_graph) and must not change the tensor. *kept may be on another device.
 * drop: the node frees its saved tensors; free *state. Called once for each successful pack, also
 * when a later hook's pack fails.
 * Any function may be NULL: pass through. A failure (not MT_OK) fails the op or the backward, which
 * leaves tape and gradients as they were before that node. Ops called inside hooks are not
 * recorded, and their saves pass no hook. pack and unpack may push hooks, and pop only these. */
typedef struct mt_saved_hooks {
    mt_status (*pack)(void *user, const mt_save_info *info, mt_tensor *tensor, mt_tensor **kept,
                      void **state);
    mt_status (*unpack)(void *user, const mt_save_info *info, mt_tensor **tensor, void *state);
    void (*drop)(void *user, const mt_save_info *info, void *state);
    void (*destroy)(void *user); /* after pop and after the last drop */
} mt_saved_hooks;

/* Per thread. The struct is copied; user lives until destroy. */
MT_API mt_status mt_push_saved_hooks(const mt_saved_hooks *hooks, void *user);
MT_API mt_status mt_pop_saved_hooks(void);
/* Hides the innermost hooks pushed with this user and all above, until the step back, so that a
 * feature can save a tensor without calling its own hooks. Returns the place to step back to; NULL
 * and an error if there are no such hooks. Pushes and pops in between must match. */
MT_API void *mt_step_below_saved_hooks(const void *user);
MT_API void mt_step_back_to_saved_hooks(void *place);
/* The user of the innermost hooks, to check before popping; NULL if there are none. */
MT_API void *mt_saved_hooks_user(void);

/* Saves a tensor as the tape does, through this thread's hooks: the ledger counts it, an offload
 * may move it, an outer checkpoint drops and recomputes it. info is passed to the hooks; its
 * strings are copied, module NULL is the current scope, and node is filled in. The result is the
 * caller's to free; t is borrowed, and is kept without history. */
typedef struct mt_saved mt_saved;
MT_API mt_saved *mt_saved_new(mt_tensor *t, const mt_save_info *info);
/* A new reference to the saved tensor; fails if it was changed in place since, or a hook fails. */
MT_API mt_tensor *mt_saved_get(mt_saved *saved);
MT_API void mt_saved_free(mt_saved *saved); /* NULL is allowed */

/* ---- running a function with this thread's default modes ---- */

/* In what the function runs; all zero is a good choice. */
typedef struct mt_apart {
    const char *module; /* the scope inside, from the root; NULL: the current one */
    const char *phase;  /* of the events; NULL: the current one */
    bool recompute;     /* counts FLOPs as mt_flops.recompute */
} mt_apart;
/* Runs fn(user) with recording on and without hooks on saved tensors or ops, also from within a
 * hook or a backward. Afterwards all modes of the thread are restored, and hooks fn left pushed are
 * popped. Returns what fn returns. options: NULL for all zero. */
MT_API mt_status mt_run_apart(const mt_apart *options, mt_status (*fn)(void *user), void *user);
/* Whether mt_run_apart with `recompute` is running. */
MT_API bool mt_recomputing(void);

/* ---- hooks on ops ---- */

/* One call of an op. Everything is borrowed. */
typedef struct mt_op_call {
    const char *op, *module;
    mt_device *device;
    int n_inputs, n_outputs, n_auxiliaries;
    mt_tensor *const *inputs; /* [n_inputs]; NULL: an optional one is missing */
    size_t output_bytes;      /* of the outputs and of the auxiliaries that are made */
    uint64_t flops;           /* counted so far; 0 in `before` */
    bool in_place;            /* the output is input 0, changed */
    int64_t nth; /* for the policy of a checkpoint: so many calls of this op came before it there */
} mt_op_call;

/* What an op makes: supplied by a hook, or shown to one. */
typedef struct mt_op_result {
    mt_tensor **outputs;     /* [n_outputs] */
    mt_tensor **auxiliaries; /* [n_auxiliaries]; NULL entries are not made */
    uint64_t flops;
    /* For a dropout: mt_dropout_mask's arguments to draw its mask again. 0 in `before`: set them
     * only if the mask you supply was drawn with them. */
    double p;
    uint64_t seed, offset;
} mt_op_result;

/* Functions around each op of this thread that runs a kernel (views do not), recorded or not. They
 * nest; the last pushed is called first, in before and in after.
 *
 * before: the inputs are checked, nothing is made yet. To supply the results, put new references
 * into *supply (taken over) with the op's shapes and dtypes, in any layout, and set *supplied: the
 * kernel is not run, the node is recorded as usual, and the device's generator advances as if the
 * op had drawn. The hooks outside of the first one that supplies are not called.
 * after: the results are made, nothing is recorded yet. To keep a result use mt_saved_new.
 * Any function may be NULL. A failure fails the op. Ops called inside are not recorded and not
 * hooked. Both may push hooks, and pop only these. */
typedef struct mt_op_hooks {
    mt_status (*before)(void *user, const mt_op_call *call, mt_op_result *supply, bool *supplied);
    mt_status (*after)(void *user, const mt_op_call *call, const mt_op_result *result);
    void (*destroy)(void *user); /* after pop */
} mt_op_hooks;

/* Per thread. The struct is copied; user lives until destroy. */
MT_API mt_status mt_push_op_hooks(const mt_op_hooks *hooks, void *user);
MT_API mt_status mt_pop_op_hooks(void);
/* The user of the innermost hooks pushed with these functions; NULL if there are none. */
MT_API void *mt_find_op_hooks(const mt_op_hooks *hooks);

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
 * this thread, end pops it (hooks nest). What a node gives up in between, but for its backward, is
 * taken back, as it was not kept for one; after a failure the record stays as it is. Frees are
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

#ifdef __cplusplus
}
#endif
#endif
