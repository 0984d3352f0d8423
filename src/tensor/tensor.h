/* tensor.h: inside devices, storages and tensors, for the rooms above. */
#ifndef MTI_TENSOR_H
#define MTI_TENSOR_H

#include <pthread.h>
#include <stdatomic.h>
#include "memtape/tensor.h"
#include "memtrack/memtrack.h"

/* ---- device ---- */

struct mt_device {
    atomic_int refs; /* handles and storages */
    const mti_backend *backend;
    mti_ctx *ctx;
    mti_pool *pool;
    mti_backend host_memory; /* alloc and free of host memory for copies, so that ... */
    mti_pool *host;          /* ... a pool can cache it (page-locking is slow); NULL without data */
    pthread_mutex_t lock;    /* of the generator and the workspaces */
    uint64_t seed, offset;
    atomic_size_t gemm_workspace; /* what a pass takes at its first matrix product; 0: nothing */
    mti_block *workspace[2];      /* of forward and backward, once taken */
    atomic_uint_fast64_t flops_forward, flops_backward, flops_recompute;
    atomic_bool balance_check;
};

/* Take n draws of the default generator: sets *seed and *offset (counters of four lanes). */
void mti_rng_take(mt_device *device, uint64_t n_draws, uint64_t *seed, uint64_t *offset);

/* Before a matrix product of the forward or backward pass: its workspace, where one counts. */
bool mti_device_take_workspace(mt_device *device, bool backward);

/* ---- storage ---- */

typedef struct mti_storage {
    atomic_int refs;                  /* tensors that view it */
    atomic_int saved;                 /* how many of them are held by saved slots of the tape */
    atomic_flag busy;                 /* guards the list of those slots: */
    struct mti_saved_tensor *holders; /* known to the autograd room */
    mt_device *device;                /* retained */
    mti_block *block;
    size_t bytes;   /* requested */
    mt_dtype dtype; /* of the tensor it was made for */
    atomic_uint_fast64_t version;
    atomic_uint_fast64_t copy_of; /* serial of the storage it holds in another dtype; 0: none */
    const char *op, *module;      /* where it was made; static or interned */
    /* Made inside an op or a hook and not (yet) handed out: must be gone when the op is. NULL once
     * it has a class; otherwise names the thread that is running the op. */
    const void *unclassified_in;
} mti_storage;

/* ---- tensor ---- */

/* What the autograd room hangs on a tensor: reference-counted, known here by two functions. */
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
    void (*orphan)(mti_ref *leaf); /* tell `leaf` that this handle is going */
};

/* What tensors made now on this thread are for: MT_INPUT outside of ops, MT_TEMPORARY and
 * `in_op` within ops and hooks. */
typedef struct mti_making {
    mt_category category;
    bool in_op;
} mti_making;
mti_making *mti_making_now(void);

/* Row-major strides for v->shape; false if the byte size overflows. */
bool mti_view_pack(mti_view *v, size_t *n_bytes);
/* Check rank and extents of a shape given by a caller and fill *v (row-major). */
bool mti_view_init(mti_view *v, const char *who, mt_dtype dtype, int rank, const int64_t *shape,
                   size_t *n_bytes);

/* A tensor over a new storage. spec gives dtype, shape and strides: a dense permutation of
 * row-major (so the storage has exactly the elements' bytes). */
mt_tensor *mti_tensor_new(mt_device *device, const mti_view *spec, mt_category category,
                          bool in_op);
/* Another view of t's storage: `view` with its data pointer set. Not recorded. */
mt_tensor *mti_tensor_view(mt_tensor *t, const mti_view *view);
mt_tensor *mti_tensor_alias(mt_tensor *t); /* the same view, no autograd */
/* The only handle of the only view: its memory may be reused. */
bool mti_tensor_is_exclusive(const mt_tensor *t);
/* Give a storage made inside an op its class. */
void mti_storage_settle(mti_storage *s, mt_category category);
const void *mti_thread_token(void); /* distinct per thread */
/* t, or if its strides are not spec's a copy with those, made inside an op. Takes t over; spec is
 * of t's shape and dtype, and as for mti_tensor_new. */
mt_tensor *mti_tensor_laid(mt_tensor *t, const mti_view *spec, mt_category category);
/* Remember that copy holds the same values as source in another dtype, if both are whole. */
void mti_note_copy(mt_tensor *copy, const mt_tensor *source);

bool mti_fits(const mt_tensor *t, const mti_view *spec, const mt_device *device);
/* Whether t, which the user or a function of the user's gave, has spec's dtype and shape and is on
 * `device`, as mti_fits tells without a word; fails otherwise: "NAME: WHAT is f32 [2] on meta; need
 * f32 [2] on cpu". */
bool mti_is_like(mt_status status, const char *name, const char *what, const mt_tensor *t,
                 const mti_view *spec, const mt_device *device);

/* Can two elements of v be the same memory? True, too, of strides that interlock in a way which
 * mt_view_as alone can ask for. */
bool mti_view_overlaps(const mti_view *v);
/* Fails where writing t would write an element more than once. */
bool mti_check_writable(const char *who, const mt_tensor *t);

/* The element `offset` elements behind the first, as its dtype has it. */
typedef union mti_item {
    double real;   /* floating dtypes */
    int64_t whole; /* the others; bool: 0 or 1 */
} mti_item;
bool mti_read_item(const mt_tensor *t, int64_t offset, mti_item *out);

/* Scalar kernels behind the public data functions, also used above. */
bool mti_copy_view(mt_device *device, const mti_view *src, const mti_view *dst);

#endif
