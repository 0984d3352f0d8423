/* data.c: making, reading and writing tensors; nothing here is recorded. */
#include <math.h>
#include <string.h>
#include "tensor/tensor.h"

/* ---- making ---- */

static mt_tensor *make(const char *caller, mt_device *device, mt_dtype dtype, int rank,
                       const int64_t *shape)
{
    mti_view spec;
    size_t n_bytes;
    if (!mti_given(device, caller, "the device")) return NULL;
    if (!mti_view_init(&spec, caller, dtype, rank, shape, &n_bytes)) return NULL;
    const mti_making *m = mti_making_now();
    return mti_tensor_new(device, &spec, m->category, m->in_op);
}

/* t if filled, else NULL. */
static mt_tensor *keep_if(mt_tensor *t, bool filled)
{
    if (filled) return t;
    mt_release(t);
    return NULL;
}

mt_tensor *mt_empty(mt_device *d, mt_dtype dtype, int rank, const int64_t *shape)
{
    return make("empty", d, dtype, rank, shape);
}

mt_tensor *mt_full(mt_device *d, mt_dtype dtype, int rank, const int64_t *shape, double value)
{
    mt_tensor *t = make("full", d, dtype, rank, shape);
    return t ? keep_if(t, d->backend->fill(d->ctx, &t->view, value)) : NULL;
}

mt_tensor *mt_zeros(mt_device *d, mt_dtype dtype, int rank, const int64_t *shape)
{
    return mt_full(d, dtype, rank, shape, 0);
}

static bool is_whole(double x) { return x >= -0x1p63 && x < 0x1p63 && x == floor(x); }

/* Whether all elements are whole numbers in i64's range. */
static bool fits_i64(double start, double step, int64_t n)
{
    int64_t span, last;
    return is_whole(start) && is_whole(step) &&
           (n < 1 || (!__builtin_mul_overflow(n - 1, (int64_t)step, &span) &&
                      !__builtin_add_overflow((int64_t)start, span, &last)));
}

mt_tensor *mt_arange(mt_device *d, mt_dtype dtype, double start, double step, int64_t n)
{
    if (dtype != MT_I64 && !mt_dtype_is_float(dtype))
        return mti_fail_null(MT_ERR_ARGUMENT, "arange: dtype %s; need i64, f32, f64, bf16 or f16",
                             mt_dtype_name(dtype));
    if (dtype == MT_I64 && !fits_i64(start, step, n))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "arange: start %g, step %g, %lld elements; need whole numbers in "
                             "i64's range",
                             start, step, (long long)n);
    mt_tensor *t = make("arange", d, dtype, 1, &n);
    return t ? keep_if(t, d->backend->arange(d->ctx, start, step, &t->view)) : NULL;
}

mt_tensor *mt_from_data(mt_device *d, mt_dtype dtype, int rank, const int64_t *shape,
                        const void *data, size_t n_bytes)
{
    mt_tensor *t = make("from_data", d, dtype, rank, shape);
    return t ? keep_if(t, mt_copy_from_host(t, data, n_bytes) == MT_OK) : NULL;
}

static bool check_random(const char *caller, mt_dtype dtype)
{
    return mt_dtype_is_float(dtype) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: dtype %s; need f32, f64, bf16 or f16", caller,
                         mt_dtype_name(dtype));
}

mt_tensor *mt_uniform(mt_device *d, mt_dtype dtype, int rank, const int64_t *shape, double lo,
                      double hi)
{
    mt_tensor *t = check_random("uniform", dtype) ? make("uniform", d, dtype, rank, shape) : NULL;
    if (!t) return NULL;
    uint64_t seed, offset;
    mti_rng_take(d, (uint64_t)mt_numel(t), &seed, &offset);
    return keep_if(t, d->backend->uniform(d->ctx, lo, hi, seed, offset, &t->view));
}

mt_tensor *mt_normal(mt_device *d, mt_dtype dtype, int rank, const int64_t *shape, double mean,
                     double std)
{
    mt_tensor *t = check_random("normal", dtype) ? make("normal", d, dtype, rank, shape) : NULL;
    if (!t) return NULL;
    uint64_t seed, offset;
    mti_rng_take(d, (uint64_t)mt_numel(t), &seed, &offset);
    return keep_if(t, d->backend->normal(d->ctx, mean, std, seed, offset, &t->view));
}

/* ---- moving ---- */

static bool check_bytes(const char *caller, const mt_tensor *t, const void *data, size_t n_bytes)
{
    size_t need = (size_t)mt_numel(t) * mt_dtype_size(t->view.dtype);
    char text[MTI_SHAPE_TEXT];
    if (need != n_bytes)
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: got %zu bytes; %s of %s has %zu", caller,
                             n_bytes, mti_shape_text(text, t->view.rank, t->view.shape),
                             mt_dtype_name(t->view.dtype), need);
    return data || !need || mti_fail_bool(MT_ERR_ARGUMENT, "%s: data is NULL", caller);
}

/* An uninitialised tensor of t's shape and dtype, row-major. */
static mt_tensor *empty_like(const mt_tensor *t)
{
    mti_view spec = t->view;
    size_t n_bytes;
    if (!mti_view_pack(&spec, &n_bytes))
        return mti_fail_null(MT_ERR_ARGUMENT, "a copy is larger than the address space");
    return mti_tensor_new(t->storage->device, &spec, MT_TEMPORARY, false);
}

/* t itself if it is contiguous, else an uninitialised tensor like it. */
static mt_tensor *dense_or_empty(mt_tensor *t)
{
    return mti_view_is_contiguous(&t->view) ? mt_retain(t) : empty_like(t);
}

bool mti_copy_view(mt_device *d, const mti_view *src, const mti_view *dst)
{
    return d->backend->copy(d->ctx, src, dst);
}

/* Whether v's elements have the strides of spec. */
static bool has_strides(const mti_view *v, const mti_view *spec)
{
    if (mti_view_count(v) == 0) return true;
    for (int d = 0; d < v->rank; d++)
        if (v->shape[d] != 1 && v->stride[d] != spec->stride[d]) return false;
    return true;
}

mt_tensor *mti_tensor_with_strides(mt_tensor *t, const mti_view *spec, mt_category category)
{
    if (!t || has_strides(&t->view, spec)) return t;
    mt_device *d = t->storage->device;
    mt_tensor *copy = mti_tensor_new(d, spec, category, true);
    if (copy && !mti_copy_view(d, &t->view, &copy->view)) {
        mt_release(copy);
        copy = NULL;
    }
    mt_release(t);
    return copy;
}

mt_status mt_to_host(const mt_tensor *t, void *data, size_t n_bytes)
{
    if (!mti_given(t, "to_host", "the tensor") || !check_bytes("to_host", t, data, n_bytes))
        return mt_last_status();
    mt_device *d = t->storage->device;
    mt_tensor *packed = dense_or_empty((mt_tensor *)t);
    bool ok = packed && (packed == t || mti_copy_view(d, &t->view, &packed->view)) &&
              (!n_bytes || d->backend->download(d->ctx, data, packed->view.data, n_bytes));
    mt_release(packed);
    return ok ? MT_OK : mt_last_status();
}

typedef struct mti_host_values {
    uint64_t version; /* of the storage, when they were read */
    char bytes[];
} host_values;

static bool find_kept(mti_storage *s, uint64_t version, void *data)
{
    mti_storage_lock(s);
    bool found = s->on_host && s->on_host->version == version;
    if (found) memcpy(data, s->on_host->bytes, s->bytes);
    mti_storage_unlock(s);
    return found;
}

static bool keep(mti_storage *s, uint64_t version, const void *data)
{
    host_values *made = mti_malloc(sizeof *made + s->bytes), *old;
    if (!made) return false;
    made->version = version;
    memcpy(made->bytes, data, s->bytes);
    mti_storage_lock(s);
    old = s->on_host, s->on_host = made;
    mti_storage_unlock(s);
    mti_free(old);
    return true;
}

bool mti_tell(mt_tensor *t, const void *values)
{
    return keep(t->storage, atomic_load(&t->storage->version), values);
}

bool mti_told(const mt_tensor *t, void *values, size_t n_bytes)
{
    return n_bytes == t->storage->bytes &&
           find_kept(t->storage, atomic_load(&t->storage->version), values);
}

mt_status mti_read_once(mt_tensor *t, void *data, size_t n_bytes)
{
    mti_storage *s = t->storage;
    uint64_t version = atomic_load(&s->version);
    bool whole = mti_view_is_contiguous(&t->view) && n_bytes == s->bytes;
    if (!whole || !strcmp(mt_device_kind(s->device), "cpu")) return mt_to_host(t, data, n_bytes);
    bool ok = find_kept(s, version, data) ||
              (mt_to_host(t, data, n_bytes) == MT_OK && keep(s, version, data));
    return ok ? MT_OK : mt_last_status();
}

/* ---- writing ---- */

/* Takes dimensions in order of stride: each stride must be larger than the span of the ones before.
 */
static bool may_overlap(const mti_view *v)
{
    if (mti_view_count(v) == 0) return false;
    int64_t reach = 0; /* from the first element to the last, of the dimensions seen so far */
    unsigned seen = 0;
    for (int i = 0; i < v->rank; i++) {
        int next = -1;
        for (int d = 0; d < v->rank; d++)
            if (!(seen >> d & 1) && (next < 0 || v->stride[d] < v->stride[next])) next = d;
        seen |= 1u << next;
        if (v->shape[next] == 1) continue;
        if (v->stride[next] <= reach) return true;
        reach += (v->shape[next] - 1) * v->stride[next];
    }
    return false;
}

bool mti_check_writable(const char *caller, const mt_tensor *t)
{
    char shape[MTI_SHAPE_TEXT], strides[MTI_SHAPE_TEXT];
    const mti_view *v = &t->view;
    return !may_overlap(v) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "%s: the tensor is %s with strides %s: several elements share one place "
                         "in memory; need each in its own (mt_contiguous)",
                         caller, mti_shape_text(shape, v->rank, v->shape),
                         mti_shape_text(strides, v->rank, v->stride));
}

/* Increments the version, so that backward finds a change of saved values; refuses outputs of
 * recorded ops. */
static bool begin_write(const char *caller, mt_tensor *t)
{
    if (!mti_given(t, caller, "the tensor")) return false;
    if (t->grad_fn)
        return mti_fail_bool(MT_ERR_STATE,
                             "%s: the tensor was made by a recorded op; "
                             "write to mt_detach of it",
                             caller);
    atomic_fetch_add(&t->storage->version, 1);
    return true;
}

mt_status mt_fill(mt_tensor *t, double value)
{
    if (!begin_write("fill", t)) return mt_last_status();
    mt_device *d = t->storage->device;
    return d->backend->fill(d->ctx, &t->view, value) ? MT_OK : mt_last_status();
}

mt_status mt_copy(mt_tensor *t, const mt_tensor *src)
{
    char a[MTI_SHAPE_TEXT], b[MTI_SHAPE_TEXT];
    if (!mti_given(t, "copy", "the tensor") || !mti_given(src, "copy", "src"))
        return mt_last_status();
    if (!mti_view_same_shape(&t->view, &src->view))
        return mti_fail(MT_ERR_ARGUMENT, "copy: the target is %s, the source %s; need one shape",
                        mti_shape_text(a, t->view.rank, t->view.shape),
                        mti_shape_text(b, src->view.rank, src->view.shape));
    mt_device *d = t->storage->device;
    if (src->storage->device != d)
        return mti_fail(MT_ERR_ARGUMENT, "copy: the tensors are on two devices; need one");
    if (!mti_check_writable("copy", t)) return mt_last_status();
    /* One storage: read all of src before writing t. */
    mt_tensor *copy = t->storage == src->storage ? empty_like(src) : NULL;
    if (t->storage == src->storage && !copy) return mt_last_status();
    bool ok = (!copy || mti_copy_view(d, &src->view, &copy->view)) && begin_write("copy", t) &&
              mti_copy_view(d, copy ? &copy->view : &src->view, &t->view);
    mt_release(copy);
    return ok ? MT_OK : mt_last_status();
}

mt_status mt_copy_from_host(mt_tensor *t, const void *data, size_t n_bytes)
{
    const char *caller = "copy_from_host";
    if (!mti_given(t, caller, "the tensor") || !check_bytes(caller, t, data, n_bytes) ||
        !mti_check_writable(caller, t))
        return mt_last_status();
    mt_device *d = t->storage->device;
    mt_tensor *packed = dense_or_empty(t);
    bool ok = packed && begin_write(caller, t) &&
              (!n_bytes || d->backend->upload(d->ctx, packed->view.data, data, n_bytes)) &&
              (packed == t || mti_copy_view(d, &packed->view, &t->view));
    mt_release(packed);
    return ok ? MT_OK : mt_last_status();
}
