/* panels.h: products that go through aligned copies of one of their matrices. */
#ifndef MTI_CUDA_PANELS_H
#define MTI_CUDA_PANELS_H

#include "backends/cuda/products/plan.h"

/* How a product is divided along n. */
struct mti_panels {
    bool of_c;          /* c is in the way, and m is divided, too; or b is, and k */
    bool copied;        /* that matrix is copied; its columns are aligned otherwise */
    bool summed;        /* k is divided: the sums are in f32 before they are rounded */
    int64_t width;      /* columns of c at once, the last time fewer; 0: it is not divided */
    int64_t ld;         /* of the copy */
    size_t n_workspace; /* for cuBLASLt; behind it lie the copy ... */
    size_t n_copy;      /* ... and the sums */
};

mti_panels mti_panels_of(const mti_ctx *ctx, const mti_lt_product *g, double beta);
/* Needs the lock. */
bool mti_multiply_panels(mti_ctx *ctx, const mti_lt_product *g, const mti_panels *p, double alpha,
                         double beta, void *scratch);

#endif
