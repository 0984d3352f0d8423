/* cleanup.h: calls of the runtime that may fail without an error of ours. */
#ifndef MTI_CUDA_CLEANUP_H
#define MTI_CUDA_CLEANUP_H

#include "backends/cuda/gpu.h"

/* True if the call succeeded. Clears its error otherwise, or the next launch would report it. */
static inline bool mti_cuda_forgive(cudaError_t status)
{
    if (status != cudaSuccess) cudaGetLastError();
    return status == cudaSuccess;
}

/* True if memory was allocated. Nothing is said of a lack of it, which the caller may remedy. A
 * device that a kernel has broken refuses, too: that is said, or it would look like a lack. */
static inline bool mti_cuda_allocated(cudaError_t status)
{
    return status == cudaErrorMemoryAllocation ? mti_cuda_forgive(status)
                                               : mti_cuda_ok(status, "allocating memory");
}

#endif
