/* tensor.h: inside devices, storages and tensors, for the rooms above. */
#ifndef MTI_TENSOR_H
#define MTI_TENSOR_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include "memtape/counters.h"
#include "memtape/host_copy.h"
#include "memtrack/memtrack.h"

/* ---- device ---- */

enum { MTI_COUNTERS = 8 };

/* ---- small host objects: objects.c ---- */

#define MTI_OBJECT_LISTS 257 /* sizes up to 16 KiB, in units of 64 bytes; others are not kept */
typedef struct mti_free_object mti_free_object;
typedef struct mti_objects {
    atomic_flag busy;
    mti_free_object *first[MTI_OBJECT_LISTS]; /* list i: objects of i units */
    size_t n_bytes;                           /* on all lists */
} mti_objects;

struct mt_device {
    atomic_int refs; /* handles and storages */
    const mti_backend *backend;
    mti_ctx *ctx;
    mti_pool *pool;
    mti_backend host_memory; /* alloc and free of host memory for copies: */
    mti_pool *host;          /* cached, as page-locking is slow; NULL without data */
    pthread_mutex_t lock;    /* of the generator and the workspaces */
    uint64_t seed, offset;
    atomic_size_t gemm_workspace; /* bytes a pass takes at its first matrix product */
    mti_block *workspace[2];      /* of forward and backward; NULL until taken */
    atomic_uint_fast64_t flops_forward, flops_backward, flops_recompute;
    atomic_uint_fast64_t moved_products, moved_others;
    atomic_uint_fast64_t counters[MTI_COUNTERS]; /* what the storey above counts, which gives each
                                                  * its meaning */
    atomic_bool balance_check;
    mti_objects objects;
};

/* Host memory for an object that an op makes, uninitialised; NULL and an error on failure. The
 * device must outlive the object. */
void *mti_object_new(mt_device *device, size_t n_bytes);
/* n_bytes repeats the request. NULL is allowed. */
void mti_object_free(mt_device *device, void *object, size_t n_bytes);
void mti_objects_empty(mt_device *device); /* gives free objects back to the system */

/* Take n draws of the default generator: sets *seed and *offset (counters of four lanes). */
void mti_rng_take(mt_device *device, uint64_t n_draws, uint64_t *seed, uint64_t *offset);

/* Bytes of the elements that v has; those that broadcasting repeats count once. */
static inline uint64_t mti_view_bytes(const mti_view *v)
{
    uint64_t n = mti_dtype_size(v->dtype);
    for (int d = 0; d < v->rank; d++)
        if (v->stride[d] != 0 || v->shape[d] == 0) n *= (uint64_t)v->shape[d];
    return n;
}

/* Call before each matrix product: takes the pass's gemm workspace, if not yet taken. */
bool mti_device_take_workspace(mt_device *device, bool backward);

/* ---- storage ---- */

typedef struct mti_storage {
    atomic_int refs;                  /* tensors that view it */
    atomic_int saved;                 /* how many of them are held by saved slots of the tape */
    atomic_flag busy;                 /* guards the list of those slots, and on_host: */
    struct mti_saved_tensor *holders; /* known to the autograd room */
    struct mti_host_values *on_host;  /* what mti_read_once has read; NULL: nothing */
    mt_device *device;                /* retained */
    mti_block *block;
    size_t bytes;   /* requested */
    mt_dtype dtype; /* of the tensor it was made for */
    atomic_uint_fast64_t version;
    atomic_uint_fast64_t copy_of; /* serial of the storage it holds in another dtype; 0: none */
    const char *op, *module;      /* where it was made; static or interned */
    /* Tells the owner of memory that is not ours that it is no longer used. NULL: it is ours. */
    void (*let_go)(void *owner);
    void *owner;
    /* Set on storages made inside an op or a hook: the thread's token. NULL once it has its final
     * category; otherwise it must be freed before the op ends. */
    const void *unclassified_in;
} mti_storage;

/* A spin lock: threads wait only if they save or read the same tensor, such as a weight, at once.
 */
static inline void mti_storage_lock(mti_storage *s)
{
    while (atomic_flag_test_and_set_explicit(&s->busy, memory_order_acquire)) sched_yield();
}
static inline void mti_storage_unlock(mti_storage *s)
{
    atomic_flag_clear_explicit(&s->busy, memory_order_release);
}

/* ---- tensor ---- */

/* Base of the autograd room's nodes and leaves, which this room only counts references of. */
typedef struct mti_ref mti_ref;
struct mti_ref {
    atomic_int refs;
    void (*destroy)(mti_ref *self);
};
static inline void mti_ref_retain(mti_ref *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
}
void mti_ref_release(mti_ref *r); /* NULL is allowed */

struct mt_tensor {
    atomic_int refs;
    bool requires_grad;
    int out_index; /* which output of grad_fn this is */
    mti_storage *storage;
    mti_view view;
    mti_ref *grad_fn;              /* the node that made it; NULL for a leaf */
    mti_ref *leaf;                 /* gradient and hooks of a leaf; NULL until needed */
    void (*orphan)(mti_ref *leaf); /* called when this handle is freed */
};

/* The category of tensors made now on this thread: MT_INPUT outside of ops; MT_TEMPORARY, with
 * in_op, in ops and hooks. */
typedef struct mti_making {
    mt_category category;
    bool in_op;
    bool in_step; /* of an optimizer: outputs of ops are temporaries, too, not activations */
} mti_making;
mti_making *mti_making_now(void);

/* Notes the values of a whole storage without data: for ops whose scratch memory depends on them,
 * where the device counts that of another one's kernels. mti_told finds them again, unless they
 * changed; false also for another number of bytes than the storage's. */
bool mti_tell(mt_tensor *t, const void *values);
bool mti_told(const mt_tensor *t, void *values, size_t n_bytes);
bool mti_counts_scratch(const mt_device *device);

/* Row-major strides for v->shape; false if the byte size overflows. */
bool mti_view_pack(mti_view *v, size_t *n_bytes);
/* Bytes from the start of the first element to the end of the last; false if that overflows or a
 * stride is negative. */
bool mti_view_reach(const mti_view *v, size_t *out);
/* Checks dtype, rank and extents from a caller and fills *v (row-major). */
bool mti_view_init(mti_view *v, const char *caller, mt_dtype dtype, int rank, const int64_t *shape,
                   size_t *n_bytes);

/* A tensor over a new storage. spec gives dtype, shape and strides: a dense permutation of
 * row-major (so the storage has exactly the elements' bytes). */
mt_tensor *mti_tensor_new(mt_device *device, const mti_view *spec, mt_category category,
                          bool in_op);
/* A tensor over n_bytes of memory at view->data that `owner` keeps: let_go(owner) is called when
 * its last view is released, not if the result is NULL. The pool gives it a serial and no bytes. */
mt_tensor *mti_tensor_adopt(mt_device *device, const mti_view *view, size_t n_bytes,
                            void (*let_go)(void *owner), void *owner);
/* A tensor of the device whose bytes are in host memory, unfilled, and in none of the device's
 * books. */
mt_tensor *mti_tensor_in_host(mt_device *device, const mti_view *spec);
/* Another view of t's storage: `view` with its data pointer set. Not recorded. */
mt_tensor *mti_tensor_view(mt_tensor *t, const mti_view *view);
mt_tensor *mti_tensor_alias(mt_tensor *t); /* the same view, no autograd */
/* Whether t has one reference and its storage one view: its memory may be reused. */
bool mti_tensor_is_exclusive(const mt_tensor *t);
/* Gives a storage made inside an op its final category. */
void mti_storage_settle(mti_storage *s, mt_category category);
const void *mti_thread_token(void); /* distinct per thread */
/* t if it has spec's strides, else a copy with them, made inside an op. Takes t over; spec has t's
 * shape and dtype, and strides as for mti_tensor_new. */
mt_tensor *mti_tensor_with_strides(mt_tensor *t, const mti_view *spec, mt_category category);
/* Records that copy holds source's values in another dtype, if source views all of its storage. */
void mti_note_copy(mt_tensor *copy, const mt_tensor *source);

/* Whether t has spec's dtype and shape and is on `device`. */
bool mti_fits(const mt_tensor *t, const mti_view *spec, const mt_device *device);
/* mti_fits with an error: "CALLER: NAME is f32 [2] on meta; need f32 [2] on cpu". */
bool mti_is_like(mt_status status, const char *caller, const char *name, const mt_tensor *t,
                 const mti_view *spec, const mt_device *device);

/* Fails if several elements of t may share memory. Also for some interleaved strides without
 * sharing, which only mt_view_as can make. */
bool mti_check_writable(const char *caller, const mt_tensor *t);

/* mt_to_host of a small tensor that several ops read, such as the sizes of groups: the host waits
 * for the device once, as the values are kept in host memory as long as the storage, until an
 * in-place change. Not on the CPU, where nothing is waited for and other libraries may write
 * (memtape/dlpack.h). */
mt_status mti_read_once(mt_tensor *t, void *data, size_t n_bytes);

/* The element `offset` elements after the first. */
typedef union mti_number {
    double real;   /* floating dtypes */
    int64_t whole; /* the others; bool: 0 or 1 */
} mti_number;
bool mti_read_item(const mt_tensor *t, int64_t offset, mti_number *out);

/* Not recorded; dtypes may differ. */
bool mti_copy_view(mt_device *device, const mti_view *src, const mti_view *dst);

#endif
