/* link.h: links among ranks through NCCL: what nccl.cu (the library, groups, waits) and link.cu
 * (what is sent) share. */
#ifndef MTI_CUDA_LINK_H
#define MTI_CUDA_LINK_H

#include "backends/cuda/device/nccl.h"
#include "backends/link.h"

/* A device's links, and the library. */
struct mti_nccl {
    pthread_mutex_t lock;
    bool found;
    nccl_functions call;
    double limit_s; /* of a wait for other ranks */
    mti_link *links;
    char *bytes; /* [2] in device memory, that connect ranks; NULL until then */
};

struct mti_link {
    mti_link *next; /* of the device's */
    mti_ctx *ctx;
    nccl_comm_t comm; /* NULL: given up */
    int64_t ranks, rank;
    cudaStream_t stream;           /* the device's, or one beside compute, with: */
    cudaEvent_t compute_done, end; /* that it waits for, that compute waits for */
    bool beside, grouped;
};

/* True if NCCL's call succeeded, or does once what it has begun is over. */
bool mti_nccl_ok(mti_link *link, int status, const char *what);
/* A call, of this name, that ends with the group and the stream. */
template <class F, class... A>
bool mti_nccl_call(mti_link *l, const char *name, F nccl_functions::*function, A... arguments)
{
    return mti_nccl_ok(l, (l->ctx->nccl->call.*function)(arguments..., l->comm, l->stream), name);
}
/* Closes the group of calls that is open, if any; NCCL's status. */
int mti_nccl_end_group(mti_link *link);
/* Whether calls may be made: not after a failure. */
bool mti_nccl_ready(const mti_link *link, const char *what);

bool mti_nccl_find(mti_ctx *ctx, void *id);
/* Waits for the other ranks to join. */
mti_link *mti_nccl_open(mti_ctx *ctx, const void *id, int64_t ranks, int64_t rank, bool beside);
void mti_nccl_close(mti_link *link, bool failed);

#endif
