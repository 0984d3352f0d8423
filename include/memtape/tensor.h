/* tensor.h: tensors are views of reference-counted storages.
 *
 * Arguments are borrowed, results are the caller's to mt_release once, and
 * mt_set(&x, f(x)) replaces and releases. A storage's bytes go back to the
 * device the moment neither a caller nor the tape holds a view of it. */
#ifndef MEMTAPE_TENSOR_H
#define MEMTAPE_TENSOR_H

#include "memtape/device.h"

MT_C_BEGIN

/* A view of a storage, and its place on the tape. */
typedef struct mt_tensor mt_tensor;

/* A shape as two arguments (C only): mt_zeros(dev, MT_F32, MT_SHAPE(2, 3)). A scalar is 0, NULL. */
#define MT_SHAPE(...)                                                                              \
    (int)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[])             \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* ---- making: shape[rank], rank <= MT_MAX_RANK, extents >= 0; row-major ---- */

/* With any values, with `value` in each element, and with zeros. */
MT_API mt_tensor *mt_empty(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape);
MT_API mt_tensor *mt_full(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                          double value);
MT_API mt_tensor *mt_zeros(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape);
/* start + i step for i in [0, n). i64: exact, from whole start and step. Floating: computed in f64
 * with one rounding, then rounded to dtype   (torch.arange) */
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

/* One more reference to t, which is returned, and one less: the last one frees it. */
MT_API mt_tensor *mt_retain(mt_tensor *t);
MT_API void mt_release(mt_tensor *t); /* NULL is allowed */
/* Releases *slot and sets it to value (taken over). MT_OK if value is not NULL; otherwise *slot is
 * NULL and the status of the last error is returned. */
MT_API mt_status mt_set(mt_tensor **slot, mt_tensor *value);

#if defined(__GNUC__) && !defined(__cplusplus)
/* What MT_AUTO calls. */
static inline void mt_release_at(mt_tensor **slot) { mt_release(*slot); }
/* A local that is released on every way out: MT_AUTO mt_tensor *h = mt_relu(x); */
#define MT_AUTO __attribute__((cleanup(mt_release_at), unused))
#endif

/* ---- arenas, so that nested expressions do not leak ----
 *
 *     mt_arena *a = mt_arena_new();
 *     mt_tensor *loss = mt_in(a, mt_sum_all(mt_in(a, mt_gelu(x))));
 *     ...
 *     mt_arena_clear(a);
 *
 * The price: every tensor in an arena lives until the arena is cleared, as a Python local lives
 * until its function ends. So all intermediate results of an expression are held at once, including
 * those that the tape does not keep. mt_set and MT_AUTO release each one after its last use. */

/* Tensors that are released together. */
typedef struct mt_arena mt_arena;
MT_API mt_arena *mt_arena_new(void); /* the caller's to free */
/* Takes t over and returns it, borrowed, valid until the arena is cleared. NULL stays NULL, so that
 * the outer calls of a failed one fail, too. If memory runs out or the arena is NULL, t is released
 * and the result is NULL. One thread at a time may use an arena. */
MT_API mt_tensor *mt_in(mt_arena *arena, mt_tensor *t);
/* Releases its tensors, last first; the arena can be used again. NULL is allowed for both. */
MT_API void mt_arena_clear(mt_arena *arena);
MT_API void mt_arena_free(mt_arena *arena); /* cleared first */

/* ---- asking ---- */

MT_API int mt_rank(const mt_tensor *t);                              /* dimensions */
MT_API const int64_t *mt_shape(const mt_tensor *t);                  /* borrowed, [rank] */
MT_API const int64_t *mt_strides(const mt_tensor *t);                /* in elements */
MT_API int64_t mt_numel(const mt_tensor *t);                         /* elements */
MT_API mt_dtype mt_dtype_of(const mt_tensor *t);                     /* of the elements */
MT_API mt_device *mt_device_of(const mt_tensor *t);                  /* borrowed */
MT_API bool mt_is_contiguous(const mt_tensor *t);                    /* row-major, without gaps */
MT_API bool mt_same_storage(const mt_tensor *a, const mt_tensor *b); /* views of one storage */

/* What the memory statistics record of a tensor's storage. */
typedef struct mt_storage_info {
    uint64_t serial;  /* never reused within a device */
    size_t bytes;     /* requested */
    size_t allocated; /* its whole block (memory.h) */
    mt_category category;
    uint64_t version;   /* grows with every in-place change */
    int references;     /* tensors that view it, including the tape's */
    const char *module; /* where it was made */
    const char *op;
} mt_storage_info;
MT_API mt_storage_info mt_storage_of(const mt_tensor *t);
MT_API mt_status mt_set_category(mt_tensor *t, mt_category category); /* of t's storage */

/* ---- data ---- */

/* Elements in row-major order to host memory, whatever the strides; n_bytes must agree. */
MT_API mt_status mt_to_host(const mt_tensor *t, void *data, size_t n_bytes);
/* The only element, as a double; t has exactly one. NaN and an error otherwise. */
MT_API double mt_item(const mt_tensor *t);
/* One element: mt_item_at(t, MT_SHAPE(1, -1)) is the last of row 1; negative counts from the end.
 * rank is t's; i64 beyond 2^53 is rounded. NaN and an error out of range. Each call copies from the
 * device: use mt_to_host for whole tensors.   (torch: t[1, -1].item()) */
MT_API double mt_item_at(const mt_tensor *t, int rank, const int64_t *index);
/* In place, not recorded, version incremented: t = value; t = src (same shape, any dtype; if both
 * view one storage, src is read before t is written). Leaves may be written, to set weights for
 * example; the output of a recorded op may not. A tensor with several elements at one address, such
 * as an expanded one, can be filled but not written otherwise. */
MT_API mt_status mt_fill(mt_tensor *t, double value);
MT_API mt_status mt_copy(mt_tensor *t, const mt_tensor *src);
MT_API mt_status mt_copy_from_host(mt_tensor *t, const void *data, size_t n_bytes);

MT_C_END
#endif
