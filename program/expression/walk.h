/* walk.h: how an expression runs: forward, backward, and what they leave to look at. */
#ifndef MTI_EXPRESSION_WALK_H
#define MTI_EXPRESSION_WALK_H

#include "expression/expression.h"
#include "measure/tape.h"
#include "measure/timeline.h"

/* A term that was computed, or that its gradient went back through. */
typedef struct mti_expression_step {
    const char *phase; /* "forward", "backward"; "recompute": again, within a checkpoint */
    size_t term;
    uint64_t node;   /* that it put on the tape, the last of them; 0: none */
    size_t n_events; /* of the timeline, after it */
} mti_expression_step;

/* Where the gradient of a term or a leaf was, when it was whole. An op may overwrite it with the
 * next one. */
typedef struct mti_expression_gradient {
    uint64_t storage;
    const char *of; /* `length` characters of text: its name, or else the term */
    size_t length;
    size_t n_events; /* of the timeline, when it was there */
} mti_expression_gradient;

/* Forward and backward: the tape, the events, and which terms made them. */
typedef struct mti_expression_walk {
    const mti_expression *e;
    mti_tape tape;
    mti_timeline timeline;
    uint64_t storages[MTI_MAX_LEAVES];
    MTI_VEC(mti_expression_step) steps;
    MTI_VEC(mti_expression_gradient) gradients;
    struct mti_expression_hook *hooks;   /* of each term */
    struct mti_expression_hook *pending; /* backward goes through it; NULL: through none */
    bool again;                          /* forward is over */
    bool failed;
} mti_expression_walk;

/* The value; the caller's. Each op runs in a scope named as the text of its term. Where an op
 * refuses its operands the error points to the op. walk: NULL if no steps are noted. The expression
 * outlives the value's tape. */
mt_tensor *mti_expression_run(const mti_expression *e, mt_tensor *const *leaves,
                              mti_expression_walk *walk);
/* Forward and backward with its own leaves. Free *walk in any case. */
bool mti_expression_walk_of(mti_expression_walk *walk, mt_device *device, const mti_expression *e);
void mti_expression_walk_free(mti_expression_walk *walk);

/* Runs it with its own leaves, and notes every save and every node. Free *t in any case. */
bool mti_expression_record(mti_tape *t, mt_device *device, const mti_expression *e);

/* The most bytes that are allocated at once, of a step like the one before, whose gradients are
 * still there and are added to: in forward, and in the whole step, whose gradient of the value is
 * as large as the value; and if the graph is retained. */
typedef struct mti_expression_peaks {
    size_t forward, step, retained;
} mti_expression_peaks;
bool mti_expression_measure(mti_expression_peaks *out, mt_device *device, const mti_expression *e);

/* ---- for the files that run ---- */

bool mti_expression_begin_steps(mti_expression_walk *walk);
/* Backward is through the term of `pending` once the gradient of the next one is there, or at its
 * end (NULL). */
void mti_expression_end_pending(mti_expression_walk *walk, struct mti_expression_hook *next);
/* Notes that the term was computed; in backward its gradient's arrival will be noted. */
bool mti_expression_note(mti_expression_walk *walk, size_t term, mt_tensor *value);

#endif
