/* autograd.h: the tape. Gradients, hooks on saved tensors and on gradients, the ledger.
 *
 * An op with an input that requires grad records a node: edges to what made its
 * inputs, and the tensors its backward will need, each passed through the stack
 * of saved-tensor hooks. */
#ifndef MEMTAPE_AUTOGRAD_H
#define MEMTAPE_AUTOGRAD_H

#include "memtape/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- gradients ---- */

/* Only on leaves (tensors no recorded op made), floating. */
MT_API mt_status mt_set_requires_grad(mt_tensor *t, bool requires_grad);
MT_API bool mt_requires_grad(const mt_tensor *t); /* set, or made from one that is */
MT_API bool mt_is_leaf(const mt_tensor *t);
/* The accumulated gradient of a leaf, borrowed; NULL if none. */
MT_API mt_tensor *mt_grad(const mt_tensor *t);
/* grad is retained, and backward adds into it; NULL drops the gradient. Same shape, dtype and
 * device as t; in a storage other than t's, without a gradient of its own, and not expanded. */
MT_API mt_status mt_set_grad(mt_tensor *t, mt_tensor *grad);
/* Drops the gradients of n leaves, so that the next backward begins anew and their bytes are free
 * until then. None is dropped where one of them is NULL. mt_module_zero_grad: those of a module.
 * (torch.optim.Optimizer.zero_grad, set_to_none) */
MT_API mt_status mt_zero_grads(int n, mt_tensor *const *leaves);

typedef struct mt_backward_options {
    mt_tensor *gradient; /* d(something)/d(loss), loss's shape; NULL: 1, and loss has 1 element */
    bool retain_graph;   /* keep the saved tensors for another backward */
} mt_backward_options;

/* Walks the nodes in reverse order of creation, accumulates into the leaves' grads, and frees
 * each node's saved tensors as it passes. Nothing recurses, whatever the depth. */
MT_API mt_status mt_backward(mt_tensor *loss);
MT_API mt_status mt_backward_with(mt_tensor *loss, const mt_backward_options *options);
/* The same from n roots in one walk: each node runs once, with the sum of what reaches it. A root
 * may be there twice, lead to another, or be a leaf. gradients[n]: as `gradient` above, each for
 * its root; NULL: for none.   (torch.autograd.backward) */
MT_API mt_status mt_backward_from(int n, mt_tensor *const *roots, mt_tensor *const *gradients,
                                  bool retain_graph);

typedef struct mt_gradients_options {
    int n_roots;
    mt_tensor *const *roots;
    mt_tensor *const *gradients; /* [n_roots], as for mt_backward_from */
    int n_inputs;
    mt_tensor *const *inputs; /* leaves, or what recorded ops made; all require grad */
    bool retain_graph;
} mt_gradients_options;

/* out[i]: the gradient of the sum of the roots by inputs[i], the caller's, row-major in a storage
 * of its own, category MT_GRADIENT; NULL, with MT_OK, where no root depends on inputs[i]. On
 * failure all are NULL. No leaf's own gradient changes. Only nodes that lead to an input run, only
 * for the gradients on the way there, and only what those keep is freed; the node that made an
 * input runs if it leads to another. Hooks on gradients are called wherever a gradient comes by,
 * and an input's before its gradient is out[i]; leaf hooks are not called. (torch.autograd.grad
 * with allow_unused; which gives an inner input's gradient from before its hooks where the walk
 * goes on behind it, and from after them where it does not) */
MT_API mt_status mt_gradients(const mt_gradients_options *options, mt_tensor **out);

/* Per thread; each returns the mode there was, to put back. On at the start of a thread. */
MT_API bool mt_grad_mode(void);
MT_API bool mt_set_grad_mode(bool on);
/* A tensor of the same storage that no tape knows; the same version counter. */
MT_API mt_tensor *mt_detach(mt_tensor *t);

/* Called with the gradient of t when it is known: for a leaf, before it is accumulated. Returns
 * the gradient to go on with (retained or new, the engine takes it over), or NULL on failure.
 * A hook may remove itself and others, which are then called no more, and add some, which are
 * called from the next backward on; it may let the tensor go; it may call backward, a walk of its
 * own, but not back through the op whose gradient it was called with.
 * Returns a handle, 0 on failure; hooks of one tensor run in the order of adding. */
typedef mt_tensor *mt_grad_hook_fn(void *user, mt_tensor *grad);
MT_API int mt_add_grad_hook(mt_tensor *t, mt_grad_hook_fn *fn, void *user);
/* For leaves: called after accumulation, with the leaf. */
typedef mt_status mt_leaf_hook_fn(void *user, mt_tensor *leaf);
MT_API int mt_add_leaf_hook(mt_tensor *leaf, mt_leaf_hook_fn *fn, void *user);
MT_API mt_status mt_remove_hook(mt_tensor *t, int handle);

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
/* Every node that `root` was made by, last made first. */
MT_API mt_status mt_visit_tape(mt_tensor *root, void (*fn)(void *user, const mt_node_info *node),
                               void *user);

/* ---- hooks on saved tensors ---- */

/* What backward reads of a saved tensor: its values, or only which of them are > 0. */
typedef enum mt_save_read { MT_READ_VALUES, MT_READ_SIGN } mt_save_read;

/* What a hook is told of the tensor an op saves. */
typedef struct mt_save_info {
    const char *op;       /* "gelu" */
    const char *argument; /* the argument's letter: "x", "q", "mask" */
    int index;            /* its position among the inputs, outputs or auxiliaries */
    mt_save_role role;
    mt_save_read read;
    const char *module; /* "gpt.h.3.mlp.act" */
    uint64_t node;      /* sequence number of the node that keeps it; grows with creation */
    /* Of a mask that was drawn: what mt_dropout_mask needs to draw it again. p is 0 for other
     * tensors, and where a hook supplied a mask and did not say where it came from. */
    double p;
    uint64_t seed, offset;
} mt_save_info;

/* The same as a record, for the tensor that pack was given; the strings stay borrowed. */
MT_API mt_saver mt_saver_of(const mt_save_info *info, const mt_tensor *tensor);

/* A pair of functions between an op and what the tape keeps. Hooks nest: the innermost (the last
 * pushed) packs first, the next one packs what it left, and unpacking goes the other way.
 *
 * pack: *kept starts as the tensor itself. Leave it, replace it by another tensor of yours (a
 * new reference, taken over: a smaller copy, say), or set it to NULL and keep what you need in
 * *state. The outer hooks then see *kept, if there is one.
 * unpack: *tensor is what pack left in *kept (NULL if it left none), borrowed; leave it, or set it
 * to a new reference with the shape and dtype that were packed, in any layout. It may be called
 * more than once (retain_graph) and must not change what it is given.
 * What unpack gives has the device of what was packed, too; what lies in between may have another.
 * drop: the node gives its saved tensors up; free *state. Called once for each successful pack,
 * also when a later hook's pack fails.
 * Any function may be NULL: pass through. Failing (not MT_OK) fails the op or the backward, which
 * leaves tape and gradients as they were before that node. Ops called inside hooks are not
 * recorded and their saves pass no hook. Within pack and unpack hooks may be pushed, and only those
 * pushed there popped. */
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
/* Until the step back the stack is what lies below the innermost hooks pushed with this user: a
 * feature keeps something for itself without its own hooks seeing it. Returns what to step back
 * with; an error and NULL if there are no such hooks. Pushes and pops in between must match. */
MT_API void *mt_step_below_saved_hooks(const void *user);
MT_API void mt_step_back_to_saved_hooks(void *place);
/* The user of the innermost pair, for those who pop what they pushed; NULL if there is none. */
MT_API void *mt_saved_hooks_user(void);

/* Keep a tensor from code of your own as the tape would: through this thread's stack of hooks, so
 * that the ledger counts it, an offload may take it away, a checkpoint around you gives it up and
 * makes it again. info tells what hooks are told; its strings are copied, module NULL is the scope
 * now, and node is filled in. The result is the caller's to free; t is borrowed, and what is kept
 * has no history. */
typedef struct mt_saved mt_saved;
MT_API mt_saved *mt_saved_new(mt_tensor *t, const mt_save_info *info);
/* A new reference to what was saved, its values and shape; an error where it was changed in place
 * since, or where a hook fails. */
MT_API mt_tensor *mt_saved_get(mt_saved *saved);
MT_API void mt_saved_free(mt_saved *saved); /* NULL is allowed */

/* ---- a function apart from what goes on around it ---- */

typedef struct mt_apart {
    const char *module; /* the scope there, from the root; NULL: as it is */
    const char *phase;  /* of the events; NULL: as it is */
    bool recompute;     /* FLOPs of its ops are mt_flops.recompute */
} mt_apart;
/* Runs fn(user) with recording on and no hooks, neither on saved tensors nor on ops, also from
 * within a hook or a backward; what it makes is the caller's. Afterwards all modes of the thread
 * are what they were, whatever fn did and left pushed. Returns what fn returns. how: NULL for all
 * zero. */
MT_API mt_status mt_run_apart(const mt_apart *how, mt_status (*fn)(void *user), void *user);
/* Within an apart with `recompute`. */
MT_API bool mt_recomputing(void);

/* ---- hooks on ops ---- */

/* One call of an op. Everything is borrowed. */
typedef struct mt_op_call {
    const char *op, *module;
    mt_device *device;
    int n_inputs, n_outputs, n_auxiliaries;
    mt_tensor *const *inputs; /* [n_inputs]; NULL entries were left out */
    size_t output_bytes;      /* of the outputs and of the auxiliaries that are made */
    uint64_t flops;           /* as counted; in `before` not known yet: 0 */
    bool in_place;            /* the output is input 0, changed */
} mt_op_call;

typedef struct mt_op_result {
    mt_tensor **outputs;     /* [n_outputs] */
    mt_tensor **auxiliaries; /* [n_auxiliaries]; NULL entries are not made */
    uint64_t flops;
    /* Of a dropout: mt_dropout_mask draws its mask again from these. In `before` they are 0: set
     * them if the mask you supply was drawn so; else nobody takes it for one that can be. */
    double p;
    uint64_t seed, offset;
} mt_op_result;

/* A pair of functions around each op of this thread that runs a kernel (views do not), inside and
 * outside of recording. Both nest, the last pushed goes first.
 *
 * before: the inputs are checked, nothing is made yet. To supply the results, put new references
 * into *supply (taken over) with the shapes and dtypes the op would make, in any layout, and set
 * *supplied: the kernel is not run, the node is recorded as usual, and the device's generator moves
 * on as if the op had drawn. The first hook that supplies is the last asked.
 * after: the results are there, nothing is recorded yet. To keep some, mt_saved_new them.
 * Any function may be NULL. Failing fails the op. Ops called inside are not recorded and not
 * hooked. Hooks may be pushed inside, and only those pushed there popped. */
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

/* ---- the ledger: a saved-tensor hook that writes everything down ---- */

typedef struct mt_ledger mt_ledger;

/* A distinct storage that the tape keeps. Saver 0 is the first to save it and pays for it; the
 * others share it at 0 bytes. */
typedef struct mt_ledger_entry {
    uint64_t storage; /* serial */
    size_t bytes;     /* of the whole storage, requested */
    size_t allocated; /* the same in 512-byte blocks */
    size_t n_savers;
    mt_saver saver; /* the first */
    bool freed;
    const char *freed_after_op, *freed_after_module; /* the node whose backward let it go */
} mt_ledger_entry;

/* A ledger for one device; the caller's to free. While it is begun it sees every save of this
 * thread; begin pushes a hook, end pops it (nesting rules of hooks apply). It goes on noting what
 * is freed until mt_ledger_free. */
MT_API mt_ledger *mt_ledger_new(mt_device *device);
MT_API void mt_ledger_free(mt_ledger *ledger);
MT_API mt_status mt_ledger_begin(mt_ledger *ledger);
MT_API mt_status mt_ledger_end(mt_ledger *ledger);
/* Leave this tensor's storage out. Storages of category MT_PARAMETER are left out by default. */
MT_API mt_status mt_ledger_ignore(mt_ledger *ledger, const mt_tensor *t);
MT_API mt_status mt_ledger_count_parameters(mt_ledger *ledger, bool count);
/* Saved bytes: each distinct storage once, whole. */
MT_API size_t mt_ledger_bytes(const mt_ledger *ledger);
MT_API size_t mt_ledger_allocated(const mt_ledger *ledger);  /* in 512-byte blocks */
MT_API size_t mt_ledger_live_bytes(const mt_ledger *ledger); /* not freed yet */
MT_API size_t mt_ledger_count(const mt_ledger *ledger);
MT_API mt_status mt_ledger_get(const mt_ledger *ledger, size_t i, mt_ledger_entry *out);
/* Saver j (0 .. n_savers - 1) of entry i. */
MT_API mt_status mt_ledger_get_saver(const mt_ledger *ledger, size_t i, size_t j, mt_saver *out);

/* ---- module scopes: names that records, events and errors carry; per thread ---- */

MT_API mt_status mt_scope_push(const char *name); /* "mlp" under "gpt.h.3": "gpt.h.3.mlp" */
MT_API void mt_scope_pop(void);
MT_API const char *mt_scope_path(void);
/* The phase events carry: "forward", "backward", "step", ... NULL or "" clears it and never fails;
 * where there is no memory for a new name the phase stays. */
MT_API mt_status mt_set_phase(const char *phase);

/* ---- the balance check ---- */

/* When on, after every op, forward and backward: the allocator's blocks are recounted, the classes
 * must sum to its allocated bytes, and nothing that an op made may outlive it unless it is an
 * output, a saved tensor or a gradient; otherwise the op fails with MT_ERR_INTERNAL and a text
 * that names what does not fit. Per device; slow; off by default. */
MT_API mt_status mt_set_balance_check(mt_device *device, bool on);
/* The same check now. */
MT_API mt_status mt_check_balance(mt_device *device);

#ifdef __cplusplus
}
#endif
#endif
