/* device.h: where tensors live. A device owns its allocator, its default
 * random generator and its statistics. Two devices of one kind are independent.
 * Storages hold their device, so releasing a handle early is safe. */
#ifndef MEMTAPE_DEVICE_H
#define MEMTAPE_DEVICE_H

#include "memtape/memory.h"

MT_C_BEGIN

/* kind: "cpu", "cuda", or "meta". Tensors on meta have shapes, storages and addresses but no data:
 * all ops run and are counted as elsewhere, and reading a value is an error. The result is the
 * caller's: mt_device_release it once. */
MT_API mt_device *mt_device_open(const char *kind);
MT_API mt_device *mt_device_retain(mt_device *device);      /* one more reference, returned */
MT_API void mt_device_release(mt_device *device);           /* one less */
MT_API const char *mt_device_kind(const mt_device *device); /* "cpu" */
MT_API bool mt_device_has_data(const mt_device *device);    /* false on meta */

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

MT_C_END
#endif
