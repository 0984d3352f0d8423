/* item.c: reads single elements on the host, without allocating on the device. */
#include <math.h>
#include <string.h>
#include "backends/float8.h"
#include "tensor/tensor.h"

/* Any f16 is exact in f64. */
static double from_f16(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double value = exponent ? ldexp(fraction + 1024, exponent - 25) : ldexp(fraction, -24);
    if (exponent == 31) value = fraction ? NAN : INFINITY;
    return h >> 15 ? -value : value;
}

static double from_bf16(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

/* Reads the element that has these bytes. */
static void decode(mt_dtype dtype, const void *bytes, mti_number *out)
{
    union {
        double f64;
        float f32;
        int64_t i64;
        int32_t i32;
        int16_t i16;
        uint16_t u16;
        int8_t i8;
        uint8_t u8;
    } v = {0};
    memcpy(&v, bytes, mt_dtype_size(dtype));
    switch (dtype) {
    case MT_F64: out->real = v.f64; break;
    case MT_F32: out->real = (double)v.f32; break;
    case MT_BF16: out->real = from_bf16(v.u16); break;
    case MT_F16: out->real = from_f16(v.u16); break;
    case MT_F8_E4M3: out->real = (double)mti_f32_from_e4m3(v.u8); break;
    case MT_F8_E5M2: out->real = (double)mti_f32_from_e5m2(v.u8); break;
    case MT_I64: out->whole = v.i64; break;
    case MT_I32: out->whole = v.i32; break;
    case MT_I16: out->whole = v.i16; break;
    case MT_U16: out->whole = v.u16; break;
    case MT_I8: out->whole = v.i8; break;
    case MT_BOOL: out->whole = v.u8 != 0; break;
    case MT_U8:
    default: out->whole = v.u8;
    }
}

bool mti_read_item(const mt_tensor *t, int64_t offset, mti_number *out)
{
    mt_device *d = t->storage->device;
    size_t size = mt_dtype_size(t->view.dtype);
    const char *first = t->view.data;
    uint64_t bytes;
    /* On meta the address is NULL, and the download fails with an error. */
    const void *address = first ? first + (size_t)offset * size : NULL;
    if (!d->backend->download(d->ctx, &bytes, address, size)) return false;
    decode(t->view.dtype, &bytes, out);
    return true;
}

static double item_at(const mt_tensor *t, int64_t offset)
{
    mti_number item;
    if (!mti_read_item(t, offset, &item)) return NAN;
    return mti_dtype_is_real(t->view.dtype) ? item.real : (double)item.whole;
}

double mt_item(const mt_tensor *t)
{
    char text[MTI_SHAPE_TEXT];
    if (!mti_given(t, "item", "the tensor")) return NAN;
    if (mt_numel(t) == 1) return item_at(t, 0);
    mti_fail(MT_ERR_ARGUMENT, "item: %s has %lld elements; need 1 (mt_item_at)",
             mti_shape_text(text, t->view.rank, t->view.shape), (long long)mt_numel(t));
    return NAN;
}

double mt_item_at(const mt_tensor *t, int rank, const int64_t *index)
{
    char shape[MTI_SHAPE_TEXT], position[MTI_SHAPE_TEXT];
    if (!mti_given(t, "item_at", "the tensor")) return NAN;
    const mti_view *v = &t->view;
    mti_shape_text(shape, v->rank, v->shape);
    if (rank != v->rank || (rank && !index)) {
        mti_fail(MT_ERR_ARGUMENT, "item_at: the index %s; the tensor is %s",
                 rank != v->rank ? "has another rank" : "is NULL", shape);
        return NAN;
    }
    int64_t offset = 0;
    for (int d = 0; d < rank; d++) {
        int64_t i = index[d] < 0 ? index[d] + v->shape[d] : index[d];
        if (i < 0 || i >= v->shape[d]) {
            mti_fail(MT_ERR_ARGUMENT,
                     "item_at: there is no element %s in %s: dimension %d has %lld",
                     mti_shape_text(position, rank, index), shape, d, (long long)v->shape[d]);
            return NAN;
        }
        offset += i * v->stride[d];
    }
    return item_at(t, offset);
}
