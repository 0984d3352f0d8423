/* device.h: where tensors live. A device owns its allocator, its default
 * random generator and its statistics. Two devices of one kind are independent.
 * Storages hold their device, so releasing a handle early is safe. */
#ifndef MEMTAPE_DEVICE_H
#define MEMTAPE_DEVICE_H

#include "memtape/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/* kind: "cpu", "cuda", or "meta", whose tensors have shapes, storages and addresses but no data:
 * everything runs and is counted as on the others, and reading a value is an error. The result is
 * the caller's: mt_device_release it once. */
MT_API mt_device *mt_device_open(const char *kind);
MT_API mt_device *mt_device_retain(mt_device *device);
MT_API void mt_device_release(mt_device *device);
MT_API const char *mt_device_kind(const mt_device *device); /* "cpu" */
MT_API bool mt_device_has_data(const mt_device *device);    /* false on meta */

/* Kernels of a device without data need no scratch memory. These two make it count what others
 * would need; MT_ERR_UNSUPPORTED on devices with data, which count what their kernels take.
 * As the kernels of another kind ask for it ("cpu"), op by op; "none", the default: no more. */
MT_API mt_status mt_device_count_scratch_of(mt_device *device, const char *kind);
/* As cuBLAS under PyTorch: n_bytes for each pass, forward and backward, from its first matrix
 * product on, until set to 0. CUBLAS_WORKSPACE_CONFIG's default, :4096:2:16:8, is 8519680;
 * PyTorch's on Hopper, :4096:8, is 33554432. */
MT_API mt_status mt_device_set_gemm_workspace(mt_device *device, size_t n_bytes);

/* Bytes that the system can still give the device, as far as it tells. Of the host: memory and swap
 * that are available, within the limits of its control groups and of the process's addresses; of a
 * GPU: what the driver calls free. What the device's allocator has cached is not in it. SIZE_MAX:
 * nobody says, or there is no end (meta). */
MT_API size_t mt_device_room(const mt_device *device);

/* Threads that kernels of this device may use; n >= 1. */
MT_API mt_status mt_device_set_threads(mt_device *device, int n);
MT_API int mt_device_threads(const mt_device *device);

/* The default generator: Philox4x32-10 counters. Each random op takes the
 * seed and an offset and moves the offset on by what it used. */
MT_API void mt_seed(mt_device *device, uint64_t seed); /* offset back to 0 */
MT_API void mt_rng_get(const mt_device *device, uint64_t *seed, uint64_t *offset);
MT_API void mt_rng_set(mt_device *device, uint64_t seed, uint64_t offset);

/* Wait until everything queued is done; errors of queued work surface here, each once, in whichever
 * host thread waits first. */
MT_API mt_status mt_device_sync(mt_device *device);

/* Floating-point operations counted by the ops as they ran (a multiply-add is
 * 2), in forward and in backward, since the last reset. */
typedef struct mt_flops {
    uint64_t forward, backward, recompute;
} mt_flops;
MT_API mt_flops mt_flops_get(const mt_device *device);
MT_API void mt_flops_reset(mt_device *device);

#ifdef __cplusplus
}
#endif
#endif
