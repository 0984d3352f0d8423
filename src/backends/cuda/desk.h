/* desk.h: memory in which one kernel of a call leaves something for the next one of it.
 *
 * Two host threads may be in such a call at once, and then their launches alternate on the stream:
 * so a call borrows a desk that nobody else has. The stream runs launches in order, hence a desk
 * may go to the next call as soon as this one's launches are queued. There are as many as calls
 * were ever under way at once; the first is made with the context. */
#ifndef MTI_CUDA_DESK_H
#define MTI_CUDA_DESK_H

#include "backends/cuda/fault.h"

#define MTI_DESK_SLOTS 1024

/* In device memory. */
struct mti_desk {
    int64_t count[MTI_DESK_SLOTS];
    double sum[MTI_DESK_SLOTS];
};

struct mti_desk_place {
    mti_desk_place *next; /* among those that nobody has */
    mti_desk *desk;
    mti_fault *note; /* page-locked host memory, for what ctx->fault says */
};

/* Borrowed while it is in scope. */
struct mti_borrowed_desk {
    mti_ctx *ctx;
    mti_desk_place *place; /* NULL: there was no memory, which mti_fail has been told */

    explicit mti_borrowed_desk(mti_ctx *of);
    ~mti_borrowed_desk();
    mti_borrowed_desk(const mti_borrowed_desk &) = delete;
    mti_borrowed_desk &operator=(const mti_borrowed_desk &) = delete;
};

#endif
