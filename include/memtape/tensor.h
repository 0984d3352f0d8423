/* tensor.h: tensors are views of reference-counted storages.
 *
 * Arguments are borrowed, results are the caller's to mt_release once, and
 * mt_set(&x, f(x)) replaces and releases. A storage's bytes go back to the
 * device the moment neither a caller nor the tape holds a view of it. */
#ifndef MEMTAPE_TENSOR_H
#define MEMTAPE_TENSOR_H

#include <stdio.h>
#include "memtape/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct mt_tensor mt_tensor;

/* A shape as two arguments (C only): mt_zeros(dev, MT_F32, MT_SHAPE(2, 3)). A scalar is 0, NULL. */
#define MT_SHAPE(...)                                                                              \
    (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* ---- making: shape[rank], rank <= MT_MAX_RANK, extents >= 0; row-major ---- */

MT_API mt_tensor *mt_empty(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape);
MT_API mt_tensor *mt_full(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                          double value);
MT_API mt_tensor *mt_zeros(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape);
/* start + i step for i in [0, n), in i64 or floating: i64 exactly, start and step being whole
 * numbers; else in f64 with one rounding, and then to dtype   (torch.arange) */
MT_API mt_tensor *mt_arange(mt_device *device, mt_dtype dtype, double start, double step,
                            int64_t n);
/* Copies n_elements * size bytes from host memory; n_bytes restates the size and must agree. */
MT_API mt_tensor *mt_from_data(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                               const void *data, size_t n_bytes);
/* From the device's generator, floating dtypes only. */
MT_API mt_tensor *mt_uniform(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                             double lo, double hi);
MT_API mt_tensor *mt_normal(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                            double mean, double std);

/* ---- holding ---- */

MT_API mt_tensor *mt_retain(mt_tensor *t);
MT_API void mt_release(mt_tensor *t); /* NULL is allowed */
/* *slot = value (taken over), the old *slot released. MT_OK if value is not NULL; otherwise the
 * old tensor is released all the same, *slot is NULL, and the status of the last error returned. */
MT_API mt_status mt_set(mt_tensor **slot, mt_tensor *value);

#if defined(__GNUC__) && !defined(__cplusplus)
static inline void mt_release_at(mt_tensor **slot) { mt_release(*slot); }
/* A local that is released on every way out: MT_AUTO mt_tensor *h = mt_relu(x); */
#define MT_AUTO __attribute__((cleanup(mt_release_at), unused))
#endif

/* ---- holding many: so that nested expressions do not leak ----
 *
 *     mt_arena *a = mt_arena_new();
 *     mt_tensor *loss = mt_in(a, mt_sum_all(mt_in(a, mt_gelu(x))));
 *     ...
 *     mt_arena_clear(a);
 *
 * What it costs: all that was put in lives until the arena is cleared, as names in Python live to
 * the end of their function. mt_set and MT_AUTO give bytes back the moment a tensor is used up; in
 * an arena the same expression holds all its intermediate results at once, where the tape does not
 * keep them anyway. */
typedef struct mt_arena mt_arena;
MT_API mt_arena *mt_arena_new(void); /* the caller's to free */
/* Takes the caller's reference over: t again, valid until the arena is cleared. NULL stays NULL, so
 * an inner call's failure becomes the outer ones'. Where the arena has no memory, or is NULL, t is
 * released and the result NULL. One thread at a time may use an arena. */
MT_API mt_tensor *mt_in(mt_arena *arena, mt_tensor *t);
/* Releases what is in it, the last put in first; it may be filled again. NULL is allowed for both.
 */
MT_API void mt_arena_clear(mt_arena *arena);
MT_API void mt_arena_free(mt_arena *arena); /* cleared first */

/* ---- asking ---- */

MT_API int mt_rank(const mt_tensor *t);
MT_API const int64_t *mt_shape(const mt_tensor *t);
MT_API const int64_t *mt_strides(const mt_tensor *t); /* in elements */
MT_API int64_t mt_numel(const mt_tensor *t);
MT_API mt_dtype mt_dtype_of(const mt_tensor *t);
MT_API mt_device *mt_device_of(const mt_tensor *t); /* borrowed */
MT_API bool mt_is_contiguous(const mt_tensor *t);
MT_API bool mt_same_storage(const mt_tensor *a, const mt_tensor *b);

/* What the books know of the storage under a tensor. */
typedef struct mt_storage_info {
    uint64_t serial;  /* never reused within a device */
    size_t bytes;     /* requested */
    size_t allocated; /* in 512-byte blocks */
    mt_category category;
    uint64_t version;   /* grows with every in-place change */
    int references;     /* tensors that view it, the tape's included */
    const char *module; /* where it was made */
    const char *op;
} mt_storage_info;
MT_API mt_storage_info mt_storage_of(const mt_tensor *t);
MT_API mt_status mt_set_category(mt_tensor *t, mt_category category);

/* ---- data ---- */

/* Elements in row-major order to host memory, whatever the strides; n_bytes must agree. */
MT_API mt_status mt_to_host(const mt_tensor *t, void *data, size_t n_bytes);
/* The only element, as a double; t has exactly one. NaN and an error otherwise. */
MT_API double mt_item(const mt_tensor *t);
/* One of many: mt_item_at(t, MT_SHAPE(1, -1)), the last of row 1; negative counts from the end.
 * rank is t's; i64 beyond 2^53 is rounded. NaN and an error out of range. One copy from the device
 * each: mt_to_host is for whole tensors.   (torch: t[1, -1].item()) */
MT_API double mt_item_at(const mt_tensor *t, int rank, const int64_t *index);
/* To look at: a line with dtype, shape and device, whether it requires grad or which op made it,
 * and the values in torch's format: one for the whole tensor, columns aligned, lines of 80. Of more
 * than 1000 elements the first and last three of each dimension. Without data: the line alone.
 * Flushes out; MT_ERR_IO where it does not take the text. Allocates nothing on the device.
 *
 *     f32 [2,2] on cpu, made by mul
 *     [[1.0000, 0.5000],
 *      [   nan, 2.0000]]
 */
MT_API mt_status mt_print(const mt_tensor *t, FILE *out);
/* In place, not recorded, version bumped: t = value; t = src (same shape, any dtype; where both
 * view one storage, all of src is read before t is written). Leaves may be written (that is how
 * weights are set); the output of a recorded op may not. A tensor of which several elements share
 * one place in memory, an expanded one say, can be filled, but nothing else can be written to it.
 */
MT_API mt_status mt_fill(mt_tensor *t, double value);
MT_API mt_status mt_copy(mt_tensor *t, const mt_tensor *src);
MT_API mt_status mt_copy_from_host(mt_tensor *t, const void *data, size_t n_bytes);

/* ---- how a tensor lies in its storage ---- */

typedef struct mt_layout {
    mt_dtype dtype;
    int rank;
    int64_t shape[MT_MAX_RANK], strides[MT_MAX_RANK]; /* strides in elements */
    size_t offset;                                    /* of the first element, in bytes */
} mt_layout;
MT_API mt_layout mt_layout_of(const mt_tensor *t);
/* The elements that `layout` finds in t's storage, whatever t itself looks at; not recorded, the
 * same version counter. All of them must lie inside it. PyTorch: torch.as_strided. */
MT_API mt_tensor *mt_view_as(mt_tensor *t, const mt_layout *layout);

/* ---- host copies: a storage's bytes in host memory, moved beside compute ----
 *
 *     mt_host_copy *c = mt_host_copy_out(t);   begins; on CUDA page-locked, on the copy stream
 *     ...
 *     mt_host_copy_wait(c);                    compute from here on comes after the copy
 *     mt_release(t);                           and so t's bytes may go back to the device
 *     ...
 *     mt_tensor *raw = mt_host_copy_back(c);   begins; compute meanwhile
 *     mt_host_copy_wait(c);                    raw may be read from here on
 *     mt_tensor *again = mt_view_as(raw, &layout);
 *     mt_host_copy_free(c);
 *
 * Copies of one device are made in the order in which they were begun, each behind the compute
 * before it. One thread at a time may use one host copy; another one may ask for its bytes while
 * that one waits for it or holds it. */
typedef struct mt_host_copy mt_host_copy;

/* Begin to copy t's whole storage out. t must not change until waited for; it is held until then.
 * NULL and MT_ERR_MEMORY where host memory ran out. The result is the caller's to free. */
MT_API mt_host_copy *mt_host_copy_out(mt_tensor *t);
/* n_bytes of host memory for storages of `device`, to be filled through mt_host_copy_bytes. */
MT_API mt_host_copy *mt_host_copy_new(mt_device *device, size_t n_bytes);
/* Begin to copy into a new storage of the same size, category MT_PACKED: its bytes as u8 [n_bytes].
 * May be repeated. */
MT_API mt_tensor *mt_host_copy_back(mt_host_copy *copy);
/* What the device computes from here on comes after the copy begun last; the caller goes on at
 * once where the device has a queue of its own. */
MT_API mt_status mt_host_copy_wait(mt_host_copy *copy);
/* The bytes, after waiting for them here; to read or to write. NULL on a device without data. */
MT_API void *mt_host_copy_bytes(mt_host_copy *copy);
MT_API void mt_host_copy_free(mt_host_copy *copy); /* NULL is allowed; waits for what was begun */

/* Of all host copies of a device since it was opened, by the device's clock; waits for them. */
typedef struct mt_copy_times {
    double copy_s; /* on the way, together */
    double wait_s; /* compute stood still for them */
} mt_copy_times;
MT_API mt_status mt_copy_times_get(mt_device *device, mt_copy_times *out);

#ifdef __cplusplus
}
#endif
#endif
