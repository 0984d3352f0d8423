/* device.h: where tensors live. A device owns its allocator, its default
 * random generator and its statistics. Two devices of one kind are independent.
 * Storages hold their device, so releasing a handle early is safe. */
#ifndef MEMTAPE_DEVICE_H
#define MEMTAPE_DEVICE_H

#include "memtape/memory.h"

#ifdef __cplusplus
extern "C" {
#endif

/* kind: "cpu", "cuda", or "meta". Tensors on meta have shapes, storages and addresses but no data:
 * all ops run and are counted as elsewhere, and reading a value is an error. The result is the
 * caller's: mt_device_release it once. */
MT_API mt_device *mt_device_open(const char *kind);
MT_API mt_device *mt_device_retain(mt_device *device);      /* one more reference, returned */
MT_API void mt_device_release(mt_device *device);           /* one less */
MT_API const char *mt_device_kind(const mt_device *device); /* "cpu" */
MT_API bool mt_device_has_data(const mt_device *device);    /* false on meta */

/* Kernels of a device without data need no scratch memory. These two functions make it count what
 * other kernels need; MT_ERR_UNSUPPORTED on devices with data, which count their own.
 * Counts the scratch memory of another kind's kernels ("cpu"), op by op; "none", the default: 0. */
MT_API mt_status mt_device_count_scratch_of(mt_device *device, const char *kind);
/* Counts cuBLAS's workspace as PyTorch does: n_bytes for each pass, forward and backward, from its
 * first matrix product on, until set to 0. CUBLAS_WORKSPACE_CONFIG's default, :4096:2:16:8, is
 * 8519680; PyTorch's on Hopper, :4096:8, is 33554432. */
MT_API mt_status mt_device_set_gemm_workspace(mt_device *device, size_t n_bytes);

/* Bytes that the system can still give the device, without those its allocator has cached. Host:
 * available memory and swap, within the limits of control groups and of the process's address
 * space. GPU: what the driver reports as free. SIZE_MAX: unknown or unlimited (meta). */
MT_API size_t mt_device_room(const mt_device *device);

/* Threads that kernels of this device may use; n >= 1. */
MT_API mt_status mt_device_set_threads(mt_device *device, int n);
MT_API int mt_device_threads(const mt_device *device);

/* The default generator: Philox4x32-10 counters. Each random op takes the
 * seed and an offset and advances the offset by the draws it used. */
MT_API void mt_seed(mt_device *device, uint64_t seed); /* offset back to 0 */
MT_API void mt_rng_get(const mt_device *device, uint64_t *seed, uint64_t *offset);
MT_API void mt_rng_set(mt_device *device, uint64_t seed, uint64_t offset);

/* Waits until all queued work is done. An error of queued work is reported once, to the first host
 * thread that waits. */
MT_API mt_status mt_device_sync(mt_device *device);

/* Floating-point operations of the ops since the last reset; a multiply-add is 2. */
typedef struct mt_flops {
    uint64_t forward, backward, recompute;
} mt_flops;
MT_API mt_flops mt_flops_get(const mt_device *device);
MT_API void mt_flops_reset(mt_device *device);

/* Bytes that ops moved since the device was opened. In memory: what an op reads and writes, each
 * tensor once, whatever its kernel does in between; a view moves nothing. To other ranks: what this
 * one sends as rings do, (n-1)/n of what all n ranks have together, and twice that for a sum that
 * all of them get. */
typedef struct mt_traffic {
    uint64_t products; /* by ops that count FLOPs */
    uint64_t others;   /* by all others, and by sums of gradients */
    uint64_t layers;   /* to ranks that share layers: sums, and pieces of sequences */
    uint64_t pieces;   /* to ranks with other data: pieces of parameters, along dimension 0 */
    uint64_t context;  /* to ranks with other positions: keys and values, and their gradients */
    uint64_t stages;   /* to other stages of a pipeline */
    uint64_t replicas; /* once a step, to ranks with the same parameters: gradients to add up, and
                        * what each has stepped; exactly what this rank sends */
} mt_traffic;
MT_API mt_traffic mt_traffic_get(const mt_device *device);

#ifdef __cplusplus
}
#endif
#endif
