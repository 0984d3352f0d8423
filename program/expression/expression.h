/* expression.h: expressions such as (x*2)@w over the table of ops, and how they are read.
 *
 *   lines    line { (; | a new line) line }     the value is that of the last
 *   line     [ name = ] sum                     a name may be given anew
 *   sum      product { (+ | -) product }
 *   product  factor { (* | / | @) factor }      @: the product of matrices
 *   factor   - factor | number | name | ( sum ) | op ( sum { , sum } ) | checkpoint ( sum )
 *
 * A name releases its tensor with its last use. checkpoint: of what is within, only what comes
 * from outside is kept, and backward computes the rest again.
 * op: a row of ops.def; its tensors come first, then its numbers: clamp(x, -1, 1). Numbers alone
 * are computed while reading. An error says what is wrong, and points to the place on two more
 * lines:
 *     --expr: "rleu" is not an op; did you mean relu?
 *       rleu(x)+1
 *       ^ */
#ifndef MTI_EXPRESSION_H
#define MTI_EXPRESSION_H

#include "base/base.h"
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

/* How an op is called. */
bool mti_call_check(mti_expression *e, mti_term *call, int n_tensors);
mt_tensor *mti_call_run(const mti_term *call, mt_tensor **in);

#endif
