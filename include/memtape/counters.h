/* counters.h: what a device counts of its ops: FLOPs, bytes that move, scratch memory. */
#ifndef MEMTAPE_COUNTERS_H
#define MEMTAPE_COUNTERS_H

#include "memtape/device.h"

MT_C_BEGIN

/* Kernels of a device without data need no scratch memory. These two functions make it count what
 * other kernels need; MT_ERR_UNSUPPORTED on devices with data, which count their own.
 * Counts the scratch memory of another kind's kernels ("cpu"), op by op, with the threads that a
 * device of that kind begins with or that mt_device_set_threads gave this one; "none", the default:
 * 0. */
MT_API mt_status mt_device_count_scratch_of(mt_device *device, const char *kind);
/* Counts cuBLAS's workspace as PyTorch does: n_bytes for each pass, forward and backward, from its
 * first matrix product on, until set to 0. CUBLAS_WORKSPACE_CONFIG's default, :4096:2:16:8, is
 * 8519680; PyTorch's on Hopper, :4096:8, is 33554432. */
MT_API mt_status mt_device_set_gemm_workspace(mt_device *device, size_t n_bytes);

/* Floating-point operations of the ops since the last reset; a multiply-add is 2. */
typedef struct mt_flops {
    uint64_t forward, backward, recompute;
} mt_flops;
MT_API mt_flops mt_flops_get(const mt_device *device);
MT_API void mt_flops_reset(mt_device *device);

/* Bytes that ops moved in memory since the device was opened: what an op reads and writes, each
 * tensor once, whatever its kernel does in between; a view moves nothing. */
typedef struct mt_traffic {
    uint64_t products; /* by ops that count FLOPs */
    uint64_t others;   /* by all others, and by sums of gradients */
} mt_traffic;
MT_API mt_traffic mt_traffic_get(const mt_device *device);

MT_C_END
#endif
