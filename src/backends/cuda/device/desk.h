/* desk.h: a desk is device memory that passes data from one kernel of a call to the next.
 *
 * Two host threads may make such calls at once, and their launches then alternate on the stream, so
 * each call borrows its own desk. The stream runs launches in order; so a desk may go to the
 * next call as soon as this call's launches are queued. There are as many desks as there were ever
 * concurrent calls; the first is made with the context. */
#ifndef MTI_CUDA_DESK_H
#define MTI_CUDA_DESK_H

#include "backends/cuda/device/fault.h"

#define MTI_DESK_SLOTS 1024

/* The contents, in device memory. */
struct mti_desk {
    int64_t count[MTI_DESK_SLOTS];
    double sum[MTI_DESK_SLOTS];
};

struct mti_desk_place {
    mti_desk_place *next; /* in the list of idle desks */
    mti_desk *desk;
    mti_fault *note; /* page-locked host memory, for a copy of ctx->fault */
};

/* A desk, borrowed while this object is in scope. */
struct mti_borrowed_desk {
    mti_ctx *ctx;
    mti_desk_place *place; /* NULL if out of memory; mti_fail was called */

    explicit mti_borrowed_desk(mti_ctx *context);
    ~mti_borrowed_desk();
    mti_borrowed_desk(const mti_borrowed_desk &) = delete;
    mti_borrowed_desk &operator=(const mti_borrowed_desk &) = delete;
};

#endif
