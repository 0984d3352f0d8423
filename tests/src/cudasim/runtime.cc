/* runtime.cc: CUDA's runtime interface on host memory, but for streams and copies (stream.cc). */
#include <stdlib.h>
#include <string.h>
#include <atomic>
#include "cudasim/memory.h"
#include "cudasim/simulator.h"

using cudasim::keep;

static thread_local cudaError_t last_error;
static std::atomic<cudaError_t> broken; /* by a kernel's fault: for all threads, and for good */
static std::atomic<uint64_t> calls_to_failure;

cudaError_t cudasim::keep(cudaError_t status)
{
    if (broken != cudaSuccess) status = broken;
    if (status != cudaSuccess) last_error = status;
    return status;
}

cudaError_t cudasim::enter()
{
    bool fails = calls_to_failure > 0 && --calls_to_failure == 0;
    return keep(fails ? cudaErrorInvalidValue : cudaSuccess);
}

cudaError_t cudasim::break_device(cudaError_t status)
{
    broken = status;
    return keep(status);
}

void cudasim::mend_device()
{
    if (broken != cudaSuccess) last_error = cudaSuccess;
    broken = cudaSuccess;
}

/* Makes the nth call of the runtime from now on fail and do nothing; 0: no call fails. True
 * if that has happened of the one that was named before. */
extern "C" __attribute__((visibility("default"))) bool cudasim_fail_nth_call(uint64_t n)
{
    return calls_to_failure.exchange(n) == 0;
}

struct gpu {
    const char *capability;
    int major, minor, shared_kib; /* of a block */
};
static const gpu &simulated_gpu()
{
    static const gpu known[] = {{"8.0", 8, 0, 163}, {"8.6", 8, 6, 99},    {"8.9", 8, 9, 99},
                                {"9.0", 9, 0, 227}, {"10.0", 10, 0, 227}, {"12.0", 12, 0, 99}};
    const char *asked = getenv("CUDASIM_GPU"), *name = asked ? asked : "8.0";
    for (const gpu &g : known)
        if (!strcmp(g.capability, name)) return g;
    fprintf(stderr, "cudasim: CUDASIM_GPU=%s is not known\n", name);
    abort();
}

size_t cudasim::most_shared() { return (size_t)simulated_gpu().shared_kib << 10; }

static bool uses_pageable_memory()
{
    const char *text = getenv("CUDASIM_HMM");
    return text && !strcmp(text, "1");
}
bool cudasim::copies_pageable_late()
{
    static const bool late = uses_pageable_memory();
    return late;
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
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrComputeCapabilityMajor: *value = simulated_gpu().major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = simulated_gpu().minor; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = simulated_gpu().shared_kib << 10; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (simulated_gpu().shared_kib + 1) << 10;
        break;
    case cudaDevAttrPageableMemoryAccess: *value = cudasim::copies_pageable_late(); break;
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
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return status;
    *n_free = *n_total = (size_t)4 << 30;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t n_bytes)
{
    *p = nullptr;
    cudaError_t status = cudasim::enter();
    if (status != cudaSuccess) return keep(status);
    if (!n_bytes) return cudaSuccess;
    *p = cudasim::device_alloc(n_bytes);
    return *p ? cudaSuccess : keep(cudaErrorMemoryAllocation);
}

cudaError_t cudaGetLastError()
{
    cudaError_t status = keep(cudaSuccess) == cudaSuccess ? last_error : broken.load();
    last_error = cudaSuccess;
    return status;
}
cudaError_t cudaPeekAtLastError()
{
    return keep(cudaSuccess) == cudaSuccess ? last_error : broken.load();
}

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
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    }
    return "an error";
}
const char *cudaGetErrorString(cudaError_t status) { return cudaGetErrorName(status); }
