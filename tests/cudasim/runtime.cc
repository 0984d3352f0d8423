/* runtime.cc: CUDA's runtime interface on host memory. Allocations have their exact size, for
 * AddressSanitizer, and hold 0xff, so that what nobody wrote reads as NaN. */
#include <stdlib.h>
#include <string.h>
#include "cudasim/cudasim.h"

struct cudasim_stream {
    int unused;
};
struct cudasim_event {
    int unused;
};

static thread_local cudaError_t last_error;

static cudaError_t keep(cudaError_t status)
{
    if (status != cudaSuccess) last_error = status;
    return status;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
    return keep(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
/* A small device, so that grids that follow its size stay small. */
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 8; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 163 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 164 << 10; break;
    default: return keep(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 12000;
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *n_free, size_t *n_total)
{
    *n_free = *n_total = (size_t)4 << 30;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t n_bytes)
{
    *p = nullptr;
    if (!n_bytes) return cudaSuccess;
    if (posix_memalign(p, 512, n_bytes)) return keep(cudaErrorMemoryAllocation);
    memset(*p, 0xff, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}
cudaError_t cudaMallocHost(void **p, size_t n_bytes) { return cudaMalloc(p, n_bytes); }
cudaError_t cudaHostAlloc(void **p, size_t n_bytes, unsigned) { return cudaMalloc(p, n_bytes); }
cudaError_t cudaFreeHost(void *p) { return cudaFree(p); }

cudaError_t cudaMemcpy(void *to, const void *from, size_t n_bytes, cudaMemcpyKind)
{
    if (n_bytes) memmove(to, from, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n_bytes, cudaMemcpyKind kind,
                            cudaStream_t)
{
    return cudaMemcpy(to, from, n_bytes, kind);
}
cudaError_t cudaMemset(void *p, int value, size_t n_bytes)
{
    if (n_bytes) memset(p, value, n_bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t n_bytes, cudaStream_t)
{
    return cudaMemset(p, value, n_bytes);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned)
{
    *stream = (cudaStream_t)calloc(1, sizeof **stream);
    return *stream ? cudaSuccess : keep(cudaErrorMemoryAllocation);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    free(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = (cudaEvent_t)calloc(1, sizeof **event);
    return *event ? cudaSuccess : keep(cudaErrorMemoryAllocation);
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaGetLastError()
{
    cudaError_t status = last_error;
    last_error = cudaSuccess;
    return status;
}
cudaError_t cudaPeekAtLastError() { return last_error; }

const char *cudaGetErrorName(cudaError_t status)
{
    switch (status) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    }
    return "an error";
}
const char *cudaGetErrorString(cudaError_t status) { return cudaGetErrorName(status); }
