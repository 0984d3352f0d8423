/* twins.h: equal views on the CPU and on the device under test (the simulator or a GPU), to compare
 * the results of the two backends. */
#ifndef MTT_TWINS_H
#define MTT_TWINS_H

#include "views.h"

/* Both open devices: the state of a group of tests. */
typedef struct mtt_pair {
    const mti_backend *cpu, *dev;
    mti_ctx *cpu_ctx, *dev_ctx;
} mtt_pair;

/* Setup and teardown of a group. The device is MTT_DEVICE, "cudasim" where it is not set. */
int mtt_open(void **state);
int mtt_close_pair(void **state);

/* A view on the host and its copy on the device. The device's block has exactly the bytes that the
 * view spans, after `skip` elements that make it unaligned. */
typedef struct mtt_twin {
    mti_view host, dev;
    void *block;
    size_t n_block, n_skip; /* bytes */
} mtt_twin;

/* Fills both with numbers in [lo, hi). */
mtt_twin mtt_twin_make(const mtt_pair *p, mt_dtype dtype, int rank, const int64_t *shape,
                       mtt_placing placing, int64_t skip, double lo, double hi);
/* Copies the host's values to the device. */
void mtt_twin_push(const mtt_pair *p, const mtt_twin *t);
/* Fails unless every element of the view is the same on both within the tolerance (mtt_close), and
 * all other bytes are equal. A tolerance of 0 means the same bits. */
void mtt_twin_check(const mtt_pair *p, const mtt_twin *t, double tolerance, const char *what);
void mtt_twin_drop(const mtt_pair *p, mtt_twin *t);

/* A matrix's transpose, of the same memory. */
mti_view mtt_transposed(const mti_view *v);

/* Fails with the library's error unless ok. */
void mtt_ok(bool ok, const char *what);

/* Shapes whose rows are shorter, equal to and longer than vectors, blocks and tiles. */
typedef struct mtt_shape {
    int rank;
    int64_t at[4];
} mtt_shape;
extern const mtt_shape mtt_shapes[];
extern const int mtt_n_shapes;

#endif
