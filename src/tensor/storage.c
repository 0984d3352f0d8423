/* storage.c: tensors as reference-counted views of reference-counted storages. */
#include <assert.h>
#include <string.h>
#include "tensor/tensor.h"

static _Thread_local mti_making making = {MT_INPUT, false};
mti_making *mti_making_now(void) { return &making; }
const void *mti_thread_token(void) { return &making; }

void mti_ref_release(mti_ref *r)
{
    if (r && atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1) r->destroy(r);
}

/* ---- shapes ---- */

bool mti_view_pack(mti_view *v, size_t *n_bytes)
{
    size_t n = 1, gap = 1;
    bool fits = true;
    for (int d = v->rank - 1; d >= 0; d--) {
        v->stride[d] = (int64_t)gap;
        /* An extent of 0 counts as 1, so that it hides no overflow of the strides. */
        fits = fits && mti_mul_size(gap, v->shape[d] > 0 ? (size_t)v->shape[d] : 1, &gap);
        n *= (size_t)v->shape[d];
    }
    size_t limit;
    fits = fits && mti_mul_size(gap, mti_dtype_size(v->dtype), &limit) && limit <= PTRDIFF_MAX;
    *n_bytes = fits ? n * mti_dtype_size(v->dtype) : 0;
    return fits;
}

bool mti_view_init(mti_view *v, const char *caller, mt_dtype dtype, int rank, const int64_t *shape,
                   size_t *n_bytes)
{
    if ((unsigned)dtype >= MT_DTYPE_COUNT)
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: dtype %d is unknown", caller, (int)dtype);
    if (rank < 0 || rank > MT_MAX_RANK)
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: rank %d; need 0 to %d", caller, rank,
                             MT_MAX_RANK);
    if (rank > 0 && !shape) return mti_fail_bool(MT_ERR_ARGUMENT, "%s: shape is NULL", caller);
    memset(v, 0, sizeof *v);
    v->dtype = dtype, v->rank = rank;
    char text[MTI_SHAPE_TEXT];
    for (int d = 0; d < rank; d++) {
        if (shape[d] < 0)
            return mti_fail_bool(MT_ERR_ARGUMENT, "%s: shape %s; extents must be 0 or more", caller,
                                 mti_shape_text(text, rank, shape));
        v->shape[d] = shape[d];
    }
    if (mti_view_pack(v, n_bytes)) return true;
    return mti_fail_bool(MT_ERR_ARGUMENT, "%s: shape %s of %s is larger than the address space",
                         caller, mti_shape_text(text, rank, shape), mt_dtype_name(dtype));
}

/* ---- storage ---- */

/* Without a block. */
static mti_storage *storage_shell(mt_device *device, size_t n_bytes, mt_dtype dtype, const char *op,
                                  const char *module)
{
    mti_storage *s = mti_object_new(device, sizeof *s);
    if (!s) return NULL;
    atomic_init(&s->refs, 1);
    atomic_init(&s->saved, 0);
    atomic_flag_clear(&s->busy);
    s->holders = NULL;
    s->on_host = NULL;
    atomic_init(&s->version, 0);
    atomic_init(&s->copy_of, 0);
    s->dtype = dtype;
    s->device = mt_device_retain(device);
    s->block = NULL;
    s->bytes = n_bytes;
    s->op = op, s->module = module;
    s->unclassified_in = NULL;
    s->let_go = NULL;
    return s;
}

static mti_storage *storage_new(mt_device *device, size_t n_bytes, mt_dtype dtype,
                                mt_category category, bool in_op)
{
    const mti_where *where = mti_where_now();
    mti_storage *s = storage_shell(device, n_bytes, dtype, where->op, where->module);
    if (!s) return NULL;
    s->block = mti_pool_alloc(device->pool, n_bytes, category);
    if (!s->block) {
        mti_object_free(device, s, sizeof *s);
        mt_device_release(device);
        return NULL;
    }
    s->unclassified_in = in_op ? mti_thread_token() : NULL;
    s->block->owner = s;
    return s;
}

static void storage_release(mti_storage *s)
{
    if (atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1) return;
    mt_device *device = s->device;
    mti_pool_free(device->pool, s->block, s->let_go ? 0 : s->bytes);
    if (s->let_go) s->let_go(s->owner);
    mti_free(s->on_host);
    mti_object_free(device, s, sizeof *s);
    mt_device_release(device);
}

void mti_storage_settle(mti_storage *s, mt_category category)
{
    s->unclassified_in = NULL;
    if (s->block->category != category) mti_pool_recategorise(s->device->pool, s->block, category);
}

/* ---- tensor ---- */

static mt_tensor *handle_new(mti_storage *s, const mti_view *view)
{
    mt_tensor *t = mti_object_new(s->device, sizeof *t);
    if (!t) return NULL;
    atomic_init(&t->refs, 1);
    t->requires_grad = false;
    t->out_index = 0;
    t->storage = s;
    t->view = *view;
    t->grad_fn = t->leaf = NULL;
    t->orphan = NULL;
    return t;
}

mt_tensor *mti_tensor_new(mt_device *device, const mti_view *spec, mt_category category, bool in_op)
{
    size_t n_bytes = (size_t)mti_view_count(spec) * mti_dtype_size(spec->dtype);
    mti_storage *s = storage_new(device, n_bytes, spec->dtype, category, in_op);
    if (!s) return NULL;
    mt_tensor *t = handle_new(s, spec);
    if (t)
        t->view.data = s->block->ptr;
    else
        storage_release(s);
    return t;
}

mt_tensor *mti_tensor_adopt(mt_device *device, const mti_view *view, size_t n_bytes,
                            void (*let_go)(void *owner), void *owner)
{
    mti_storage *s = storage_new(device, 0, view->dtype, MT_INPUT, false);
    mt_tensor *t = s ? handle_new(s, view) : NULL;
    if (!t) {
        if (s) storage_release(s);
        return NULL;
    }
    s->bytes = n_bytes;
    s->block->ptr = view->data;
    s->let_go = let_go, s->owner = owner;
    return t;
}

static void no_memory(void *owner) { (void)owner; }

mt_tensor *mti_tensor_in_host(mt_device *device, const mti_view *spec)
{
    static const char nothing; /* an address for a device without data */
    const bool data = !(device->backend->traits & MTI_NO_DATA);
    const size_t n_bytes = (size_t)mti_view_count(spec) * mti_dtype_size(spec->dtype);
    mti_view view = *spec;
    view.data = data ? mti_malloc(n_bytes) : (void *)(uintptr_t)&nothing;
    if (!view.data) return NULL;
    mt_tensor *t = mti_tensor_adopt(device, &view, n_bytes, data ? mti_free : no_memory, view.data);
    if (!t && data) mti_free(view.data);
    return t;
}

mt_tensor *mti_tensor_view(mt_tensor *t, const mti_view *view)
{
    mt_tensor *v = handle_new(t->storage, view);
    if (v) atomic_fetch_add_explicit(&t->storage->refs, 1, memory_order_relaxed);
    return v;
}

void mti_note_copy(mt_tensor *copy, const mt_tensor *source)
{
    const mti_storage *s = source->storage;
    if ((size_t)mti_view_count(&source->view) * mti_dtype_size(source->view.dtype) == s->bytes)
        atomic_store(&copy->storage->copy_of, s->block->serial);
}

mt_tensor *mti_tensor_alias(mt_tensor *t) { return mti_tensor_view(t, &t->view); }

bool mti_tensor_is_exclusive(const mt_tensor *t)
{
    return atomic_load_explicit(&t->refs, memory_order_acquire) == 1 &&
           atomic_load_explicit(&t->storage->refs, memory_order_acquire) == 1;
}

mt_tensor *mt_retain(mt_tensor *t)
{
    if (t) atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void mt_release(mt_tensor *t)
{
    if (!t || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1) return;
    if (t->leaf && t->orphan) t->orphan(t->leaf);
    mti_ref *grad_fn = t->grad_fn, *leaf = t->leaf;
    mti_storage *storage = t->storage;
    mti_object_free(storage->device, t, sizeof *t); /* while the storage holds the device */
    storage_release(storage);
    mti_ref_release(grad_fn);
    mti_ref_release(leaf);
}

mt_status mt_set(mt_tensor **slot, mt_tensor *value)
{
    if (!slot) {
        mt_release(value);
        return mti_fail(MT_ERR_ARGUMENT, "set: the slot is NULL");
    }
    mt_tensor *old = *slot;
    *slot = value;
    mt_release(old);
    return mti_given(value, "set", "the new tensor") ? MT_OK : mt_last_status();
}

/* ---- queries ---- */

bool mti_fits(const mt_tensor *t, const mti_view *spec, const mt_device *device)
{
    return t->view.dtype == spec->dtype && mti_view_same_shape(&t->view, spec) &&
           t->storage->device == device;
}

bool mti_is_like(mt_status status, const char *caller, const char *name, const mt_tensor *t,
                 const mti_view *spec, const mt_device *device)
{
    char got[MTI_SHAPE_TEXT], want[MTI_SHAPE_TEXT];
    const mt_device *other = t->storage->device;
    if (mti_fits(t, spec, device)) return true;
    bool same_kind = other != device && !strcmp(mt_device_kind(other), mt_device_kind(device));
    return mti_fail_bool(
        status, "%s: %s is %s %s on %s%s; need %s %s on %s", caller, name,
        mt_dtype_name(t->view.dtype), mti_shape_text(got, t->view.rank, t->view.shape),
        same_kind ? "another " : "", mt_device_kind(other), mt_dtype_name(spec->dtype),
        mti_shape_text(want, spec->rank, spec->shape), mt_device_kind(device));
}

int mt_rank(const mt_tensor *t) { return t ? t->view.rank : 0; }
const int64_t *mt_shape(const mt_tensor *t) { return t ? t->view.shape : NULL; }
const int64_t *mt_strides(const mt_tensor *t) { return t ? t->view.stride : NULL; }
int64_t mt_numel(const mt_tensor *t) { return t ? mti_view_count(&t->view) : 0; }
mt_dtype mt_dtype_of(const mt_tensor *t) { return t ? t->view.dtype : MT_F32; }
mt_device *mt_device_of(const mt_tensor *t) { return t ? t->storage->device : NULL; }
bool mt_is_contiguous(const mt_tensor *t) { return t && mti_view_is_contiguous(&t->view); }
bool mt_same_storage(const mt_tensor *a, const mt_tensor *b)
{
    return a && b && a->storage == b->storage;
}

mt_storage_info mt_storage_of(const mt_tensor *t)
{
    mt_storage_info info = {0};
    if (!t) return info;
    const mti_storage *s = t->storage;
    info.serial = s->block->serial;
    info.bytes = s->bytes;
    info.allocated = s->block->size;
    info.category = s->block->category;
    info.version = atomic_load(&((mti_storage *)s)->version);
    info.references = atomic_load(&((mti_storage *)s)->refs);
    info.module = s->module, info.op = s->op;
    return info;
}

mt_status mt_set_category(mt_tensor *t, mt_category category)
{
    if (!mti_given(t, "set_category", "the tensor")) return mt_last_status();
    if ((unsigned)category >= MT_CATEGORY_COUNT)
        return mti_fail(MT_ERR_ARGUMENT, "set_category: %d is not a category", (int)category);
    mti_storage_settle(t->storage, category);
    return MT_OK;
}
