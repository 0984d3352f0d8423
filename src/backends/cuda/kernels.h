/* kernels.h: this backend's functions in mti_backend; backend.h and kernels.def describe them. They
 * are in the files named after their kind of work. */
#ifndef MTI_CUDA_KERNELS_H
#define MTI_CUDA_KERNELS_H

#include "backends/cuda/gpu.h"

extern "C" {
mti_ctx *mti_cuda_open(void);
void mti_cuda_close(mti_ctx *ctx);
bool mti_cuda_set_threads(mti_ctx *ctx, int n);
int mti_cuda_threads(const mti_ctx *ctx);
bool mti_cuda_sync(mti_ctx *ctx);
void *mti_cuda_alloc(mti_ctx *ctx, size_t n_bytes);
size_t mti_cuda_room(mti_ctx *ctx);
void mti_cuda_free(mti_ctx *ctx, void *p, size_t n_bytes);
bool mti_cuda_upload(mti_ctx *ctx, void *dst, const void *host, size_t n_bytes);
bool mti_cuda_download(mti_ctx *ctx, void *host, const void *src, size_t n_bytes);
void *mti_cuda_host_alloc(mti_ctx *ctx, size_t n_bytes);
void mti_cuda_host_free(mti_ctx *ctx, void *p, size_t n_bytes);
bool mti_cuda_copy_begin(mti_ctx *ctx, mti_direction direction, void *dst, const void *src,
                         size_t n_bytes, uint64_t *ticket);
bool mti_cuda_copy_wait(mti_ctx *ctx, uint64_t ticket);
bool mti_cuda_copy_finish(mti_ctx *ctx, uint64_t ticket);
bool mti_cuda_copy_times(mti_ctx *ctx, mti_copy_times *out);
#define KERNEL(name, parameters, arguments)                                                        \
    bool mti_cuda_##name(mti_ctx *ctx, MTI_UNWRAP parameters);
#define SCRATCH(name, parameters, arguments)                                                       \
    size_t mti_cuda_##name(mti_ctx *ctx, MTI_UNWRAP parameters);
#include "backends/kernels.def"
}

/* desk.cu: close when no call is running. */
bool mti_cuda_desks_open(mti_ctx *ctx);
void mti_cuda_desks_close(mti_ctx *ctx);

/* blas.cu: the device's handle and cached plans for matrix products. */
bool mti_cuda_blas_open(mti_ctx *ctx);
void mti_cuda_blas_close(mti_ctx *ctx);

/* nccl.cu: links to other ranks. The waits end with an error when a rank is gone. The first is for
 * the stream of compute: before the host waits for it in any other way, as that might never end. */
bool mti_cuda_nccl_open(mti_ctx *ctx);
void mti_cuda_nccl_close(mti_ctx *ctx);
bool mti_cuda_wait_for_ranks(mti_ctx *ctx);
bool mti_cuda_wait_for_event(mti_ctx *ctx, cudaEvent_t event, const char *what);
extern const struct mti_link_kind mti_cuda_links;

/* ranges.cu: for expandable segments. */
extern const struct mti_ranges mti_cuda_ranges;

/* transfer.cu: the copies of a device; close when its streams are idle. */
bool mti_cuda_copies_open(mti_ctx *ctx);
void mti_cuda_copies_close(mti_ctx *ctx);

#endif
