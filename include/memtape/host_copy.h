/* host_copy.h: where a tensor lies in its storage, and copies of a storage in host memory. */
#ifndef MEMTAPE_HOST_COPY_H
#define MEMTAPE_HOST_COPY_H

#include "memtape/tensor.h"

MT_C_BEGIN

/* ---- layout in the storage ---- */

/* Where a tensor's elements lie in its storage. */
typedef struct mt_layout {
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK], strides[MT_MAX_RANK]; /* strides in elements */
    size_t offset;                                    /* of the first element, in bytes */
} mt_layout;
MT_API mt_layout mt_layout_of(const mt_tensor *t); /* t's own */
/* A view of t's storage with this layout, whatever t's own layout is; not recorded, with the same
 * version counter. All elements must lie in the storage. PyTorch: torch.as_strided. */
MT_API mt_tensor *mt_view_as(mt_tensor *t, const mt_layout *layout);

/* ---- host copies: a storage's bytes in host memory, copied in parallel to compute ----
 *
 *     mt_host_copy *c = mt_host_copy_out(t);   begins; on CUDA page-locked, on the copy stream
 *     ...
 *     mt_host_copy_wait(c);                    later compute waits for the copy,
 *     mt_release(t);                           so t's bytes may be reused
 *     ...
 *     mt_tensor *raw = mt_host_copy_back(c);   begins; compute continues
 *     mt_host_copy_wait(c);                    raw may be read from here on
 *     mt_tensor *again = mt_view_as(raw, &layout);
 *     mt_host_copy_free(c);
 *
 * Copies of one device run in the order in which they were begun, each after the compute queued
 * before it. One thread at a time may use a host copy; only mt_host_copy_bytes may be called from
 * another one meanwhile. */

/* Host memory for one storage, and the copies between the two. */
typedef struct mt_host_copy mt_host_copy;

/* Begins to copy t's whole storage to the host. t is retained, and must not change, until the wait.
 * NULL and MT_ERR_MEMORY if host memory ran out. The result is the caller's to free. */
MT_API mt_host_copy *mt_host_copy_out(mt_tensor *t);
/* n_bytes of host memory for storages of `device`, to be filled through mt_host_copy_bytes. */
MT_API mt_host_copy *mt_host_copy_new(mt_device *device, size_t n_bytes);
/* Begins to copy to a new storage of the same size, category MT_PACKED, as u8 [n_bytes]. May be
 * repeated. */
MT_API mt_tensor *mt_host_copy_back(mt_host_copy *copy);
/* Makes later compute wait for the copy begun last. Returns at once on a device with a queue. */
MT_API mt_status mt_host_copy_wait(mt_host_copy *copy);
/* Waits for the copy and returns its bytes, to read or write. NULL on a device without data. */
MT_API void *mt_host_copy_bytes(mt_host_copy *copy);
MT_API void mt_host_copy_free(mt_host_copy *copy); /* NULL is allowed; waits for copies */

/* Times of a device's host copies since it was opened, by the device's clock; waits for them. */
typedef struct mt_copy_times {
    double copy_s; /* sum of the copies */
    double wait_s; /* compute waited for them */
} mt_copy_times;
MT_API mt_status mt_copy_times_get(mt_device *device, mt_copy_times *out);

MT_C_END
#endif
