/* runtime.cc: CUDA's runtime interface on host memory, but for streams and copies (stream.cc). */
#include <stdlib.h>
#include "cudasim/memory.h"
#include "cudasim/simulator.h"

using cudasim::keep;

static thread_local cudaError_t last_error;

cudaError_t cudasim::keep(cudaError_t status)
{
    if (status != cudaSuccess) last_error = status;
    return status;
}

cudaError_t cudaGetDeviceCount(int *n)
{
    int version;
    cudaDriverGetVersion(&version);
    *n = 1;
    return keep(version < CUDART_VERSION ? cudaErrorInsufficientDriver : cudaSuccess);
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
/* The device is small, so that grids that depend on its size stay small. */
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int)
{
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrComputeCapabilityMajor: *value = getenv("CUDASIM_HOPPER") ? 9 : 8; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 163 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 164 << 10; break;
    default: return keep(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    const char *driver = getenv("CUDASIM_DRIVER");
    *version = driver ? atoi(driver) : CUDART_VERSION;
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
    cudaError_t status = cudasim::refuse_while_capturing();
    if (status != cudaSuccess) return keep(status);
    if (!n_bytes) return cudaSuccess;
    *p = cudasim::device_alloc(n_bytes);
    return *p ? cudaSuccess : keep(cudaErrorMemoryAllocation);
}

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
    case cudaErrorIllegalState: return "cudaErrorIllegalState";
    case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureWrongThread: return "cudaErrorStreamCaptureWrongThread";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    }
    return "an error";
}
const char *cudaGetErrorString(cudaError_t status) { return cudaGetErrorName(status); }
