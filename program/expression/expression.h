/* expression.h: expressions such as (x*2)@w over the table of ops: reading them, running them.
 *
 *   lines    line { (; | a new line) line }     the value is that of the last
 *   line     [ name = ] sum                     a name may be given anew
 *   sum      product { (+ | -) product }
 *   product  factor { (* | / | @) factor }      @: the product of matrices
 *   factor   - factor | number | name | ( sum ) | op ( sum { , sum } ) | checkpoint ( sum )
 *
 * A name lets go of its tensor with its last use. checkpoint: of what is within, only what comes
 * from outside is kept, and backward computes the rest again.
 * op: a row of ops.def; its tensors come first, then its numbers: clamp(x, -1, 1). Numbers alone
 * are computed while reading. An error says what is wrong, and points to the place on lines of its
 * own:
 *     --expr: "rleu" is not an op; did you mean relu?
 *       rleu(x)+1
 *       ^ */
#ifndef MTI_EXPRESSION_H
#define MTI_EXPRESSION_H

#include "measure/tape.h"
#include "measure/timeline.h"
#include "memtape/models/collectives.h"
#include "memtape/ops.h"
#include "collectives/collective_cases.h"

#define MTI_MAX_LEAVES 32
#define MTI_LEAF_NAME  32

/* A tensor that the expression names. */
typedef struct mti_named_leaf {
    char name[MTI_LEAF_NAME];
    int rank;
    int64_t shape[MT_MAX_RANK];
    size_t at;    /* of its name, in the text of shapes */
    bool used;    /* the expression names it */
    bool wants;   /* a gradient */
    bool weight;  /* a parameter: there anyway */
    bool indices; /* i64, as an op needs them there; all 0 */
} mti_named_leaf;

typedef enum mti_term_kind {
    MTI_TERM_NUMBER,
    MTI_TERM_LEAF,
    MTI_TERM_NEGATED, /* -first */
    MTI_TERM_BINARY,  /* first sign second */
    MTI_TERM_CALL,    /* op(first, its `next`, ...) */
    MTI_TERM_NAME,    /* the value of `source`, which a line has named */
    MTI_TERM_CHECKPOINT
} mti_term_kind;

#define MTI_NO_TERM SIZE_MAX

typedef struct mti_term {
    mti_term_kind kind;
    size_t at;                /* where in the text an error points: the name, number or sign */
    size_t from, to;          /* its text is [from, to) */
    size_t first, next;       /* its first operand; the operand after it; MTI_NO_TERM: none */
    size_t source;            /* NAME: the term it stands for; CHECKPOINT: its first term within */
    size_t name, name_length; /* in the text, of a line's value; 0 characters: it has none */
    size_t last_use;          /* of the name; MTI_NO_TERM: none yet */
    double number;
    char sign;
    int leaf;
    int op; /* as mt_all_ops_get counts */
    int n_numbers;
    double numbers[MTI_CASE_PARAMETERS]; /* CALL: the op's, after its tensors */
} mti_term;

typedef struct mti_expression_options {
    const char *text;    /* "(x*2)@w" */
    const char *shapes;  /* "x=10x100,w=100x10"; NULL: no names */
    const char *no_grad; /* "x": these want no gradient; NULL: none */
    const char *weights; /* "w": these are parameters; "none"; NULL: those that begin with w */
    mt_dtype dtype;      /* of the leaves */
} mti_expression_options;

/* Operands come before what they are operands of, so the last term is the whole. */
typedef struct mti_expression {
    mti_expression_options options; /* its texts are borrowed */
    int n_leaves;
    mti_named_leaf leaves[MTI_MAX_LEAVES];
    size_t n_terms;
    mti_term *terms;
} mti_expression;

/* MT_ERR_ARGUMENT for what is no expression, or names what has no shape. Free in any case. */
bool mti_expression_read(mti_expression *e, const mti_expression_options *options);
void mti_expression_free(mti_expression *e);

/* Leaves with random values (indices: 0), leaves[e->n_leaves], each the caller's; on failure none.
 */
bool mti_leaves_make(const mti_expression *e, mt_device *device, mt_tensor **leaves);

/* A term that was computed, or that its gradient went back through. */
typedef struct mti_expression_step {
    const char *phase; /* "forward", "backward"; "recompute": again, within a checkpoint */
    size_t term;
    uint64_t node;   /* that it put on the tape, the last of them; 0: none */
    size_t n_events; /* of the timeline, after it */
} mti_expression_step;

/* Forward and backward: the tape, the events, and which terms made them. */
typedef struct mti_expression_walk {
    const mti_expression *e;
    mti_tape tape;
    mti_timeline timeline;
    uint64_t storages[MTI_MAX_LEAVES];
    MTI_VEC(mti_expression_step) steps;
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
/* Forward and backward with leaves of its own. Free *walk in any case. */
bool mti_expression_walk_of(mti_expression_walk *walk, mt_device *device, const mti_expression *e);
void mti_expression_walk_free(mti_expression_walk *walk);

/* Runs it with leaves of its own, and notes every save and every node. Free *t in any case. */
bool mti_expression_record(mti_tape *t, mt_device *device, const mti_expression *e);

/* The most bytes that are allocated at once, of a step like the one before, whose gradients are
 * still there and are added to: in forward, and in the whole step, whose gradient of the value is
 * as large as the value; and if the graph is retained. */
typedef struct mti_expression_peaks {
    size_t forward, step, retained;
} mti_expression_peaks;
bool mti_expression_measure(mti_expression_peaks *out, mt_device *device, const mti_expression *e);

/* ---- for the files that read and run ---- */

/* Fails with the message, and the text with a caret below `at`. option: "expr". */
bool mti_point_at(const char *option, const char *text, size_t at, const char *fmt, ...)
    MT_PRINTF(4, 5);
/* The leaf of that name, -1 if there is none. */
int mti_leaf_find(const mti_expression *e, const char *name, size_t n);
bool mti_leaves_read(mti_expression *e);
/* After reading: whether every leaf is used; also what they want. */
bool mti_leaves_settle(mti_expression *e);
/* The length of the name at `text`; 0 if none begins there. */
size_t mti_name_length(const char *text);

bool mti_expression_begin_steps(mti_expression_walk *walk);
/* Backward is through the term of `pending` once the gradient of the next one is there, or at its
 * end (NULL). */
void mti_expression_end_pending(mti_expression_walk *walk, struct mti_expression_hook *next);
/* Notes that the term was computed; in backward its gradient's arrival will be noted. */
bool mti_expression_note(mti_expression_walk *walk, size_t term, mt_tensor *value);

/* How an op is called. */
bool mti_call_check(mti_expression *e, mti_term *call, int n_tensors);
mt_tensor *mti_call_run(const mti_term *call, mt_tensor **in);

#endif
