/* checkpoint.h: a frame, what one checkpointed call leaves behind. */
#ifndef MTI_CHECKPOINT_FRAME_H
#define MTI_CHECKPOINT_FRAME_H

#include "base/base.h"
#include "memtape/checkpoint.h"

/* One save within the function, in order. */
typedef struct mti_trace_entry {
    mt_saver saver;
    const mt_device *device; /* borrowed, to compare */
    uint64_t digest;         /* with options.check, on devices with data */
    bool parameter;          /* left on the tape */
    bool alive;              /* its node may still ask for it */
    mt_saved *again;         /* recomputed, and not unpacked yet */
} mti_trace_entry;

/* One call of an op under a policy, in order. */
typedef struct mti_decision {
    const char *op, *module;
    mt_policy own, merged;
    int64_t nth;         /* so many decisions on this op came before */
    size_t position;     /* entries before it: it is needed while a later one is alive */
    mt_op_result result; /* its FLOPs and its mask's seed; no tensors */
    int n_outputs, n_kept;
    mt_saved **kept; /* [n_kept]: outputs, then auxiliaries (NULL: not made); NULL: not kept */
} mti_decision;

typedef struct mti_kept_input {
    mt_saved *saved;
    bool requires_grad;
    bool made; /* by a recorded op: no leaf */
} mti_kept_input;

/* An output that options.discard_outputs gives up. */
typedef struct mti_discarded {
    uint64_t serial;  /* of its storage */
    size_t n, unread; /* saved tensors of it; those that have not read it since it was made again */
    mt_tensor *again;
} mti_discarded;

typedef struct mti_frame {
    int holders; /* the hooks, and run_frame */
    mt_checkpoint_fn *fn;
    void *user;
    void (*destroy)(void *user);
    mt_checkpoint_options options; /* label interned */
    const char *module;
    mt_device *device; /* retained */
    uint64_t seed, offset;
    bool autocast;
    mt_dtype autocast_dtype;
    int n_in, n_out;
    mti_kept_input *in;
    mti_discarded *out; /* NULL: they are kept */
    MTI_VEC(mti_trace_entry) entries;
    size_t n_live; /* no entry from here on is alive */
    bool first;    /* running in forward */
    /* while recomputing */
    bool again, stopped, wants_outputs;
    size_t at, stop_at;
    uint64_t failures; /* until it was run again */
    /* policies */
    MTI_VEC(mti_decision) decisions;
    size_t call;                     /* the next decision, while recomputing */
    size_t n_kept;                   /* no decision from here on holds results */
    mt_policy answer;                /* of the policy, for the current call ... */
    bool answered;                   /* ... if it was asked */
    struct mti_frame *outer, *inner; /* checkpoints around and inside, in forward */
    /* report */
    mti_hashmap seen; /* serials of storages given up */
    size_t inside_bytes, policy_bytes;
} mti_frame;

/* ---- checkpoint_trace.c ---- */

/* *e describes the save, with t's digest if options.check. False if memory ran out. */
bool mti_trace_note(const mti_frame *f, const mt_save_info *info, mt_tensor *t, mti_trace_entry *e);
/* Whether `now` equals forward's save number i; fails otherwise. now NULL: no more saves. */
bool mti_trace_compare(const mti_frame *f, size_t i, const mti_trace_entry *now);

/* ---- checkpoint_outputs.c ---- */

bool mti_outputs_note(mti_frame *f, mt_tensor *const *outputs); /* those to give up */
/* Hooks of saved tensors. unpack sets *tensor to NULL if the outputs are to be made first. */
mt_status mti_outputs_pack(void *frame, const mt_save_info *info, mt_tensor *t, mt_tensor **kept,
                           void **state);
mt_status mti_outputs_unpack(mt_tensor **tensor, const void *state);
void mti_outputs_drop(void *frame, const mt_save_info *info, void *state);
/* Takes over what the function made again of those that are waited for. */
bool mti_outputs_take(mti_frame *f, mt_tensor *const *outputs);
void mti_outputs_free(mti_frame *f);

/* ---- checkpoint_policy.c ---- */

extern const mt_op_hooks mti_checkpoint_op_hooks;
/* Frees results that no entry below n_live needs. */
void mti_policy_release(mti_frame *f, size_t n_live);

/* ---- checkpoint_report.c ---- */

/* Around forward; inputs NULL: it failed, and there is nothing to report. */
void mti_report_enter(mti_frame *f);
mt_status mti_report_leave(mti_frame *f, mt_tensor *const *inputs);
bool mti_report_saved(mti_frame *f, const mt_tensor *t); /* count a storage once */

#endif
