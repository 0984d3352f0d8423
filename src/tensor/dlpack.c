/* dlpack.c: tensors to and from DLPack. The structs are those of dlpack.h of DLPack 1.0. */
#include <string.h>
#include "memtape/dlpack.h"
#include "tensor/tensor.h"

enum { ON_CPU = 1, MAJOR = 1, READ_ONLY = 1 };

typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t rank;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides; /* strides NULL: row-major */
    uint64_t byte_offset;
} dl_tensor;

struct mt_dlpack {
    uint32_t major, minor;
    void *manager;
    void (*deleter)(mt_dlpack *self);
    uint64_t flags;
    dl_tensor tensor;
};

/* The codes of DLDataTypeCode. */
static const struct dtype_row {
    mt_dtype dtype;
    uint8_t code, bits;
} dtypes[] = {{MT_I8, 0, 8},   {MT_I16, 0, 16},  {MT_I32, 0, 32}, {MT_I64, 0, 64},
              {MT_U8, 1, 8},   {MT_U16, 1, 16},  {MT_F16, 2, 16}, {MT_F32, 2, 32},
              {MT_F64, 2, 64}, {MT_BF16, 4, 16}, {MT_BOOL, 6, 8}};
#define N_DTYPES (sizeof dtypes / sizeof *dtypes)

static const struct dtype_row *row_of_dtype(mt_dtype dtype)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (dtypes[i].dtype == dtype) return &dtypes[i];
    return NULL;
}

static const struct dtype_row *row_of_code(const dl_tensor *d)
{
    for (size_t i = 0; i < N_DTYPES; i++)
        if (d->lanes == 1 && dtypes[i].code == d->code && dtypes[i].bits == d->bits)
            return &dtypes[i];
    return NULL;
}

/* ---- to another library ---- */

typedef struct lent {
    mt_dlpack managed; /* first: freed as this */
    mt_tensor *view;
    int64_t shape[MT_MAX_RANK], strides[MT_MAX_RANK];
} lent;

static void give_back(mt_dlpack *managed)
{
    lent *l = (lent *)managed;
    mt_release(l->view);
    mti_free(l);
}

mt_dlpack *mt_to_dlpack(mt_tensor *t)
{
    if (!mti_given(t, "to_dlpack", "the tensor")) return NULL;
    const mti_view *v = &t->view;
    const struct dtype_row *row = row_of_dtype(v->dtype);
    if (!row)
        return mti_fail_null(MT_ERR_UNSUPPORTED, "to_dlpack: DLPack 1.0 has no %s",
                             mt_dtype_name(v->dtype));
    if (strcmp(mt_device_kind(t->storage->device), "cpu") != 0)
        return mti_fail_null(MT_ERR_UNSUPPORTED, "to_dlpack: the tensor is on %s; need cpu",
                             mt_device_kind(t->storage->device));
    if (t->requires_grad || t->grad_fn)
        return mti_fail_null(MT_ERR_STATE,
                             "to_dlpack: the tensor requires grad, and no tape would see what "
                             "becomes of it");
    lent *l = mti_calloc(1, sizeof *l);
    mt_tensor *view = l ? mti_tensor_alias(t) : NULL;
    if (!view) {
        mti_free(l);
        return NULL;
    }
    l->view = view;
    memcpy(l->shape, v->shape, sizeof l->shape);
    memcpy(l->strides, v->stride, sizeof l->strides);
    l->managed = (mt_dlpack){.major = MAJOR, .deleter = give_back};
    l->managed.tensor = (dl_tensor){.data = v->data,
                                    .device_type = ON_CPU,
                                    .rank = v->rank,
                                    .code = row->code,
                                    .bits = row->bits,
                                    .lanes = 1,
                                    .shape = l->shape,
                                    .strides = l->strides};
    return &l->managed;
}

void mt_dlpack_free(mt_dlpack *managed)
{
    if (managed && managed->deleter) managed->deleter(managed);
}

/* ---- from another library ---- */

/* What a producer says that memtape cannot take, as an error. */
static bool is_taken(const mt_device *device, const mt_dlpack *m)
{
    if (m->major != MAJOR)
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "from_dlpack: version %u.%u; need 1", m->major,
                             m->minor);
    const dl_tensor *d = &m->tensor;
    if (strcmp(mt_device_kind(device), "cpu") != 0)
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "from_dlpack: the device is %s; need cpu",
                             mt_device_kind(device));
    if (d->device_type != ON_CPU)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "from_dlpack: memory of DLPack's device type %d; need 1, the CPU's",
                             (int)d->device_type);
    if (m->flags & READ_ONLY)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "from_dlpack: the memory is read-only; memtape's tensors can all be "
                             "written, so give it a copy");
    return row_of_code(d) ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "from_dlpack: DLPack's dtype code %u with %u bits and %u lanes is no "
                         "dtype of memtape",
                         d->code, d->bits, d->lanes);
}

/* Fills the view and how many bytes its elements reach over. */
static bool take_view(const dl_tensor *d, mti_view *v, size_t *n_bytes)
{
    const mt_dtype dtype = row_of_code(d)->dtype;
    if (!mti_view_init(v, "from_dlpack", dtype, d->rank, d->shape, n_bytes)) return false;
    if (d->strides) memcpy(v->stride, d->strides, (size_t)v->rank * sizeof *v->stride);
    if (!mti_view_reach(v, n_bytes))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "from_dlpack: strides are negative, or reach beyond the address "
                             "space; give it a copy");
    v->data = *n_bytes ? (char *)d->data + d->byte_offset : NULL;
    if ((uintptr_t)v->data % mt_dtype_size(dtype))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "from_dlpack: %s at an address that is no "
                             "multiple of %zu; give it a copy",
                             mt_dtype_name(dtype), mt_dtype_size(dtype));
    return true;
}

static void let_go(void *managed) { mt_dlpack_free(managed); }

mt_tensor *mt_from_dlpack(mt_device *device, mt_dlpack *managed)
{
    mti_view view;
    size_t n_bytes;
    if (!mti_given(device, "from_dlpack", "the device") ||
        !mti_given(managed, "from_dlpack", "the tensor") || !is_taken(device, managed) ||
        !take_view(&managed->tensor, &view, &n_bytes))
        return NULL;
    return mti_tensor_adopt(device, &view, n_bytes, let_go, managed);
}
