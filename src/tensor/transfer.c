/* transfer.c: layouts of tensors, and copies of storages in host memory. */
#include <assert.h>
#include <string.h>
#include "tensor/tensor.h"

struct mt_host_copy {
    mt_device *device; /* retained */
    size_t n_bytes;
    mti_block *block;  /* in the device's pool of host memory; NULL without data */
    mt_tensor *moving; /* source or target of a copy not waited for; retained */
    uint64_t ticket;   /* of the last copy */
    bool filled;       /* its bytes are written, or being copied */
};

/* ---- views ---- */

mt_layout mt_layout_of(const mt_tensor *t)
{
    mt_layout l = {0};
    if (!t) return l;
    const mti_view *v = &t->view;
    l.dtype = v->dtype, l.rank = v->rank;
    memcpy(l.shape, v->shape, sizeof l.shape);
    memcpy(l.strides, v->stride, sizeof l.strides);
    const mti_block *b = t->storage->block;
    l.offset = b->ptr ? (size_t)((const char *)v->data - (const char *)b->ptr) : 0;
    return l;
}

bool mti_view_reach(const mti_view *v, size_t *out)
{
    size_t last = 0, step;
    if (mti_view_count(v) == 0) return *out = 0, true;
    for (int d = 0; d < v->rank; d++)
        if (v->stride[d] < 0 ||
            !mti_mul_size((size_t)v->stride[d], (size_t)(v->shape[d] - 1), &step) ||
            !mti_add_size(last, step, &last))
            return false;
    return mti_add_size(last, 1, &last) && mti_mul_size(last, mt_dtype_size(v->dtype), out);
}

mt_tensor *mt_view_as(mt_tensor *t, const mt_layout *l)
{
    mti_view v;
    size_t n_bytes, end;
    char text[MTI_SHAPE_TEXT];
    if (!mti_given(t, "view_as", "the tensor")) return NULL;
    if (!l) return mti_fail_null(MT_ERR_ARGUMENT, "view_as: the layout is NULL");
    if (!mti_view_init(&v, "view_as", l->dtype, l->rank, l->shape, &n_bytes)) return NULL;
    memcpy(v.stride, l->strides, sizeof v.stride);
    const mti_storage *s = t->storage;
    if (!mti_view_reach(&v, &end) || !mti_add_size(end, l->offset, &end) || end > s->bytes ||
        l->offset % mt_dtype_size(v.dtype))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "view_as: %s of %s at byte %zu; the storage has %zu bytes, and "
                             "elements begin at multiples of %zu",
                             mti_shape_text(text, v.rank, v.shape), mt_dtype_name(v.dtype),
                             l->offset, s->bytes, mt_dtype_size(v.dtype));
    v.data = s->block->ptr ? (char *)s->block->ptr + l->offset : NULL;
    return mti_tensor_view(t, &v);
}

/* ---- host copies ---- */

static bool has_data(const mt_device *d) { return d->host != NULL; }

mt_host_copy *mt_host_copy_new(mt_device *device, size_t n_bytes)
{
    if (!mti_given(device, "host_copy_new", "the device")) return NULL;
    mt_host_copy *c = mti_calloc(1, sizeof *c);
    if (!c) return NULL;
    c->device = mt_device_retain(device);
    c->n_bytes = n_bytes;
    c->block = has_data(device) ? mti_pool_alloc(device->host, n_bytes, MT_PACKED) : NULL;
    if (c->block || !has_data(device)) return c;
    mt_host_copy_free(c);
    return NULL;
}

void mt_host_copy_free(mt_host_copy *c)
{
    if (!c) return;
    mt_device *d = c->device;
    /* If the wait fails the device is lost, and no copy is running. */
    if (c->moving) mt_host_copy_wait(c);
    if (c->ticket) d->backend->copy_finish(d->ctx, c->ticket);
    mti_pool_free(d->host, c->block, c->n_bytes);
    mti_free(c);
    mt_device_release(d);
}

static bool begin(mt_host_copy *c, mti_direction direction, mt_tensor *t)
{
    const mt_device *d = c->device;
    void *device = t->storage->block->ptr;
    if (!has_data(d) || !c->n_bytes) return true;
    void *to = direction == MTI_TO_HOST ? c->block->ptr : device;
    const void *from = direction == MTI_TO_HOST ? device : c->block->ptr;
    return d->backend->copy_begin(d->ctx, direction, to, from, c->n_bytes, &c->ticket);
}

mt_host_copy *mt_host_copy_out(mt_tensor *t)
{
    if (!mti_given(t, "host_copy_out", "the tensor")) return NULL;
    mt_host_copy *c = mt_host_copy_new(t->storage->device, t->storage->bytes);
    if (!c) return NULL;
    if (begin(c, MTI_TO_HOST, t)) {
        c->moving = mt_retain(t);
        c->filled = true;
        return c;
    }
    mt_host_copy_free(c);
    return NULL;
}

mt_tensor *mt_host_copy_back(mt_host_copy *c)
{
    if (!mti_given(c, "host_copy_back", "the copy")) return NULL;
    if (!c->filled)
        return mti_fail_null(MT_ERR_STATE, "host_copy_back: nothing was written to the copy");
    if (c->moving && mt_host_copy_wait(c) != MT_OK) return NULL;
    mti_view spec = {.dtype = MT_U8, .rank = 1, .shape = {(int64_t)c->n_bytes}, .stride = {1}};
    mt_tensor *t = mti_tensor_new(c->device, &spec, MT_PACKED, false);
    if (!t) return NULL;
    if (begin(c, MTI_TO_DEVICE, t)) {
        c->moving = mt_retain(t);
        return t;
    }
    mt_release(t);
    return NULL;
}

mt_status mt_host_copy_wait(mt_host_copy *c)
{
    if (!mti_given(c, "host_copy_wait", "the copy")) return mt_last_status();
    const mt_device *d = c->device;
    if (!c->moving) return MT_OK;
    bool ok = !c->ticket || d->backend->copy_wait(d->ctx, c->ticket);
    /* Later work is queued after the copy, so the memory may be reused. */
    mt_release(c->moving);
    c->moving = NULL;
    return ok ? MT_OK : mt_last_status();
}

void *mt_host_copy_bytes(mt_host_copy *c)
{
    if (!c) return NULL;
    const mt_device *d = c->device;
    if (c->ticket && !d->backend->copy_finish(d->ctx, c->ticket)) return NULL;
    c->filled = true;
    return c->block ? c->block->ptr : NULL;
}

mt_status mt_copy_times_get(mt_device *d, mt_copy_times *out)
{
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "copy_times: the result is NULL");
    *out = (mt_copy_times){0};
    if (!mti_given(d, "copy_times", "the device")) return mt_last_status();
    mti_copy_times times;
    if (!has_data(d)) return MT_OK;
    if (!d->backend->copy_times(d->ctx, &times)) return mt_last_status();
    *out = (mt_copy_times){times.copy_s, times.wait_s};
    return MT_OK;
}
