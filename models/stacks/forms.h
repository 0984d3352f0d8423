/* forms.h: what a model computes that other libraries compute otherwise, a function each: ours, or
 * one of theirs. Modules call the ones that their model's choices name, and know no other library.
 * Letters: b batch, s sequence, n heads, k heads of keys and values, h the width of a head. */
#ifndef MTI_FORMS_H
#define MTI_FORMS_H

#include "base/base.h"
#include "memtape/models/stacks.h"
#include "memtape/ops.h"

/* x to as many bits as sums have: f64 stays, other floats become f32. */
mt_tensor *mti_widen(mt_tensor *x);

/* ---- single functions; inputs are borrowed ---- */

typedef mt_tensor *mti_activation_fn(mt_tensor *x);
typedef mt_tensor *mti_swiglu_fn(mt_tensor *gate, mt_tensor *up); /* silu(gate) up */
typedef mt_tensor *mti_rms_norm_fn(mt_tensor *x, mt_tensor *w, double eps);

/* ---- rotary positions ---- */

/* How heads are turned. */
typedef struct mti_rotation {
    mt_rope_options angles; /* theta 0: not at all */
    bool pairs; /* elements 2 i and 2 i + 1 are turned together, and come out as halves */
    /* For tables: one number a pair, in f32; h/2 wide; their dtype; and whether what they widen
     * goes back to autocast's. */
    bool complex, narrow, turns_back;
    mt_dtype dtype;
} mti_rotation;
/* Cosines and sines of the positions start .. start + s - 1; made when they are first needed, for
 * each of the angles that a model's layers have. */
enum { MTI_ROPE_KINDS = 2 };
typedef struct mti_rope_tables {
    struct {
        mt_rope_options angles; /* theta 0: not made */
        mt_tensor *cosine, *sine;
    } of[MTI_ROPE_KINDS];
} mti_rope_tables;
void mti_rope_tables_free(mti_rope_tables *tables);
/* *x [b,n,s,h], of the positions from `start` on, is replaced; false on failure. */
typedef bool mti_rotate_fn(const mti_rotation *r, int64_t start, mti_rope_tables *tables,
                           mt_tensor **x);
/* By the op; the tables are not used. */
mti_rotate_fn mti_rotate;
/* The pairs (x[2 i], x[2 i + 1]) of *x [b,n,s,h] as halves of it: a copy. */
bool mti_halves_of_pairs(mt_tensor **x);

/* ---- the core of attention, softmax(q k^T) v ---- */

typedef struct mti_core_form {
    bool repeated; /* keys and values are copied for each head that reads them */
    bool masked;   /* flash: a window is a mask [b,1,s,t], which is kept */
    bool wide;     /* math: the softmax in f32 */
} mti_core_form;
/* Makes of part, q [b,n,s,h], k, v [b,k,t,h], what the core reads, and *mask, NULL for none. After
 * a failure, which it tells, the parts are the caller's still. */
bool mti_core_inputs(const mti_core_form *f, bool flash, int64_t window, mt_tensor *part[3],
                     mt_tensor **mask);
/* Whether k heads of keys of b sequences are copied where n heads are wanted of them. */
bool mti_copies_heads(int64_t b, int64_t k, int64_t n);

/* ---- the cross-entropy ---- */

typedef struct mti_loss_row {
    const char *words; /* as reports have it */
    bool wide;         /* of logits in f32 */
    bool keeps_logits; /* not log-probabilities */
    bool apart;        /* log_softmax and the mean of its values are ops of their own */
    bool shifted;      /* the logits are copied meanwhile, and the head's input stays */
    bool held;         /* the logits stay until there are others */
    bool fused, early; /* it and the head are one op; that makes its gradients in forward */
    bool chunked;      /* of parts of the sequence */
    bool takes_head;   /* it is made of what comes before the head */
} mti_loss_row;
const mti_loss_row *mti_loss_row_of(mt_loss_form form);
/* Makes it of logits [..,v]; a chunked one as if they were one chunk. */
mt_tensor *mti_loss_of_logits(mt_loss_form form, mt_tensor *logits, mt_tensor *target);
/* A fused one, of the rows x [b,s,d] and the head's matrix w. */
mt_tensor *mti_fused_loss(mt_loss_form form, mt_tensor *x, mt_tensor *w, mt_tensor *target);
/* sum, taken over, by the number of targets that are not MT_IGNORE. */
mt_tensor *mti_mean_loss(mt_tensor *sum, mt_tensor *target);

/* ---- what a model's choices name ---- */

typedef struct mti_forms {
    mti_activation_fn *gelu_tanh;
    mti_swiglu_fn *swiglu;
    mti_rms_norm_fn *rms_norm;
    mti_rms_norm_fn *rms_norm_one; /* by 1 + w */
    mti_rotate_fn *rotate;
    mti_core_form core;
} mti_forms;
/* own: as mt_model_config has it; may be NULL. */
mti_forms mti_forms_of(const mt_op_choices *choices, const mt_forms *own);

/* ---- transformers_ops.c, transformers_rotary.c: in the order in which Transformers' eager code
 * calls its ops, so that the tape keeps what it keeps ---- */

mti_activation_fn mti_transformers_gelu_tanh;
mti_swiglu_fn mti_transformers_swiglu;
mti_rms_norm_fn mti_transformers_rms_norm, mti_transformers_rms_norm_one;
mti_rotate_fn mti_transformers_rotate;

#endif
