/* hooks.h: functions of yours between an op and what the tape keeps of it, and around ops. What
 * this library does to spend less memory (checkpoint.h, offload.h, compress.h) is made of them. */
#ifndef MEMTAPE_HOOKS_H
#define MEMTAPE_HOOKS_H

#include "memtape/autograd.h"

MT_C_BEGIN

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

MT_C_END
#endif
