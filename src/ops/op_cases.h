/* op_cases.h: op_cases.def as data: calls of each op with their inputs. A separate library over the
 * public API, for the gradient checks, the scan of layouts, the audit, the benchmark and the
 * comparison with PyTorch. Ops of a storey above have a table of their own, with this one below. */
#ifndef MTI_OP_CASES_H
#define MTI_OP_CASES_H

#include "memtape/op_table.h"
#include "memtape/ops.h"

#define MTI_CASE_INPUTS     6
#define MTI_CASE_PARAMETERS 8

/* The users of a case. */
enum {
    MTI_CASE_AUDIT = 1,
    MTI_CASE_BENCH = 2,
    MTI_CASE_CHECK = 4,  /* gradient checks, layouts, threads */
    MTI_CASE_PARITY = 8, /* the comparison with PyTorch */
    MTI_CASE_INNER = 16  /* not a user: another op than the row may make the result */
};

/* Sizes that the user of the table gives. */
typedef enum mti_size {
    MTI_SIZE_M, /* rows, */
    MTI_SIZE_N, /* columns, */
    MTI_SIZE_K, /* other columns */
    MTI_SIZE_V, /* rows of a table: the vocabulary */
    MTI_SIZE_B, /* batch, */
    MTI_SIZE_A, /* heads, */
    MTI_SIZE_S, /* sequence, */
    MTI_SIZE_D, /* dimension of a head */
    MTI_SIZE_COUNT
} mti_size;
typedef int64_t mti_case_sizes[MTI_SIZE_COUNT];

typedef struct mti_case_input {
    int rank;
    int64_t shape[MT_MAX_RANK];
    int64_t below;    /* i64 values in [0, below); 0: floating ... */
    double low, high; /* ... values in [low, high), */
    double away;      /* values keep this distance from 0, where the op has a kink */
    bool parameter;   /* a weight, which is there anyway */
} mti_case_input;

/* An input's initializer: its range of values, and its extents (none: a scalar). */
#define MTI_CASE_INPUT(range, ...)                                                                 \
    {                                                                                              \
        .rank = (int)(sizeof((int64_t[]){0, __VA_ARGS__}) / sizeof(int64_t)) - 1,                  \
        .shape = {__VA_ARGS__}, range                                                              \
    }
#define MTI_CASE_ANY      .low = -2, .high = 2
#define MTI_CASE_POSITIVE .low = 0.5, .high = 2
#define MTI_CASE_KINK     .low = -2, .high = 2, .away = 0.1
#define MTI_CASE_WEIGHT   .low = -1, .high = 1, .parameter = true

typedef struct mti_case {
    unsigned users;
    const char *note; /* which variant; "" for the plain one */
    int n_p;
    double p[MTI_CASE_PARAMETERS];
    int n_in;
    mti_case_input in[MTI_CASE_INPUTS];
    const char *op; /* the row of the op table */
    mt_tensor *(*call)(const struct mti_case *c, mt_tensor **in);
} mti_case;

/* The cases of one row, and those of a table. */
typedef struct mti_case_row {
    const char *op;
    mt_tensor *(*call)(const mti_case *c, mt_tensor **in);
    int n_cases;
    const mti_case *cases;
} mti_case_row;
typedef struct mti_case_table {
    const struct mti_case_table *below; /* whose cases come first; may be NULL */
    int n;
    const mti_case_row *const *rows;
} mti_case_table;
extern const mti_case_table mti_op_cases; /* of ops.def */

/* The nth case of a user, counted from 0, in the order of the tables; false past the last. */
bool mti_case_get(const mti_case_table *t, unsigned user, int nth, const mti_case_sizes sizes,
                  mti_case *out);
int mti_case_count(const mti_case_table *t, unsigned user);
/* The first case of a row that the user takes; false if there is none. */
bool mti_case_find(const mti_case_table *t, const char *op, unsigned user,
                   const mti_case_sizes sizes, mti_case *out);

/* The result is the caller's; NULL on failure. in[MTI_CASE_INPUTS]: NULL past the last, and for an
 * optional input that is left out. */
mt_tensor *mti_case_call(const mti_case *c, mt_tensor **in);

/* Counts how often each of `groups` is in `group`, as mt_dispatch does: for calls of ops that take
 * counts. NULL on failure. */
mt_tensor *mti_case_counts(mt_tensor *group, int64_t groups);

#endif
