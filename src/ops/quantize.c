/* quantize.c: tensors in fewer bits: eight mask bits, or one or two numbers, to a byte.
 *
 * These functions have no gradient: they are for tensors that are kept. A quantised tensor is one
 * u8 tensor in one storage:
 *
 *     plain:          scales f32 [m]                                     | codes
 *     mxfp4:          scales u8 [m]                                      | codes
 *     double scales:  mean f32, scales of scales f32 [ceil(m / 256)], scales as int8 [m] | codes
 *
 * with m = ceil(n / block), and codes of n bytes (int8) or (n + 1) / 2. */
#include "ops/ops.h"

#define SCALES_BLOCK 256 /* number of scales that share a scale */

/* ---- running a kernel outside of the op table ---- */

/* t or a contiguous copy, for a kernel to read; NULL on failure. */
static mt_tensor *dense(mt_tensor *t)
{
    if (mti_view_is_contiguous(&t->view)) return mt_retain(t);
    mt_tensor *copy = mt_empty(t->storage->device, t->view.dtype, t->view.rank, t->view.shape);
    if (copy && !mti_copy_view(t->storage->device, &t->view, &copy->view)) mt_set(&copy, NULL);
    return copy;
}

static mt_tensor *keep_if(mt_tensor *t, bool filled)
{
    if (filled) return t;
    mt_release(t);
    return NULL;
}

/* Sets the op's name for records and events. */
static const char *enter(const char *op)
{
    const char *outer = mti_where_now()->op;
    mti_where_now()->op = op;
    return outer;
}

static void leave(const char *outer) { mti_where_now()->op = outer; }

/* ---- bits ---- */

mt_tensor *mt_pack_bits(mt_tensor *x)
{
    if (!mti_given(x, "pack_bits", "x")) return NULL;
    mt_device *d = x->storage->device;
    if (x->view.dtype != MT_BOOL && !mt_dtype_is_float(x->view.dtype))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "pack_bits: x is %s; need bool, f32, f64, bf16 or f16",
                             mt_dtype_name(x->view.dtype));
    const char *outer = enter("pack_bits");
    mt_tensor *in = dense(x);
    mt_tensor *bits = in ? mt_empty(d, MT_U8, MT_SHAPE((mt_numel(x) + 7) / 8)) : NULL;
    if (bits) bits = keep_if(bits, d->backend->pack_bits(d->ctx, &in->view, &bits->view));
    mt_release(in);
    leave(outer);
    return bits;
}

mt_tensor *mt_unpack_bits(mt_tensor *bits, mt_dtype dtype, int rank, const int64_t *shape)
{
    if (!mti_given(bits, "unpack_bits", "bits")) return NULL;
    mt_device *d = bits->storage->device;
    mti_view spec;
    size_t n_bytes;
    char text[MTI_SHAPE_TEXT];
    if (!mti_view_init(&spec, "unpack_bits", dtype, rank, shape, &n_bytes)) return NULL;
    if (dtype != MT_BOOL && !mt_dtype_is_float(dtype))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "unpack_bits: asked for %s; need bool, f32, f64, bf16 or f16",
                             mt_dtype_name(dtype));
    if (bits->view.dtype != MT_U8 || mt_numel(bits) != (mti_view_count(&spec) + 7) / 8)
        return mti_fail_null(
            MT_ERR_ARGUMENT, "unpack_bits: %lld elements of %s; %s needs %lld of u8",
            (long long)mt_numel(bits), mt_dtype_name(bits->view.dtype),
            mti_shape_text(text, rank, spec.shape), (long long)((mti_view_count(&spec) + 7) / 8));
    const char *outer = enter("unpack_bits");
    mt_tensor *in = dense(bits), *y = in ? mt_empty(d, dtype, rank, shape) : NULL;
    if (y) y = keep_if(y, d->backend->unpack_bits(d->ctx, &in->view, &y->view));
    mt_release(in);
    leave(outer);
    return y;
}

mt_tensor *mt_dropout_mask(mt_device *device, int rank, const int64_t *shape, double p,
                           uint64_t seed, uint64_t offset)
{
    if (!(p >= 0 && p < 1))
        return mti_fail_null(MT_ERR_ARGUMENT, "dropout_mask: p is %g; need 0 <= p < 1", p);
    const char *outer = enter("dropout_mask");
    mt_tensor *mask = mt_empty(device, MT_BOOL, rank, shape);
    if (mask)
        mask =
            keep_if(mask, device->backend->dropout_mask(device->ctx, p, seed, offset, &mask->view));
    leave(outer);
    return mask;
}

/* ---- blocks ---- */

/* The parts of a quantised tensor of n values, in bytes from its start. */
typedef struct parts {
    int64_t n, block, n_scales, n_groups;  /* groups of scales; 0 if scales are f32 */
    mt_dtype dtype;                        /* of scales */
    size_t groups, scales, codes, n_bytes; /* the mean is at 0 */
} parts;

static bool parts_of(const char *caller, const mt_quant *q, int64_t n, parts *p)
{
    if (!q) return mti_fail_bool(MT_ERR_ARGUMENT, "%s: the format is NULL", caller);
    const bool int8 = q->format == MT_QUANT_INT8, mx = q->format == MT_QUANT_MXFP4;
    int block = q->block ? q->block : mx ? 32 : int8 ? 128 : 64;
    if ((unsigned)q->format > MT_QUANT_MXFP4 || (mx && q->double_scales) ||
        (mx ? block != 32 : block != 64 && block != 128 && block != 256))
        return mti_fail_bool(
            MT_ERR_ARGUMENT,
            "%s: format %d with blocks of %d; need int8 or nf4, and 64, 128 or 256, or mxfp4, 32 "
            "and no double scales",
            caller, (int)q->format, block);
    *p = (parts){.n = n, .block = block, .n_scales = (n + block - 1) / block};
    p->dtype = mx ? MT_U8 : MT_F32;
    size_t m = (size_t)p->n_scales;
    if (q->double_scales) {
        p->n_groups = (p->n_scales + SCALES_BLOCK - 1) / SCALES_BLOCK;
        p->groups = p->n_groups ? sizeof(float) : 0;
        p->scales = p->groups + (size_t)p->n_groups * sizeof(float);
        p->codes = p->scales + m;
    } else {
        p->codes = m * mt_dtype_size(p->dtype);
    }
    p->n_bytes = p->codes + (size_t)(int8 ? n : (n + 1) / 2);
    return true;
}

/* n elements of `packed`, from byte `offset` on. */
static mti_view part(const mt_tensor *packed, size_t offset, mt_dtype dtype, int64_t n)
{
    return (mti_view){.data = packed->view.data ? (char *)packed->view.data + offset : NULL,
                      .dtype = dtype,
                      .rank = 1,
                      .shape = {n},
                      .stride = {1}};
}

size_t mt_quantized_bytes(const mt_quant *q, int64_t n)
{
    parts p = {0};
    if (n < 0)
        return mti_fail(MT_ERR_ARGUMENT, "quantized_bytes: n is %lld; need 0 or more",
                        (long long)n),
               (size_t)0;
    return parts_of("quantized_bytes", q, n, &p) ? p.n_bytes : 0;
}

static mti_code code_of(const mt_quant *q)
{
    return q->format == MT_QUANT_MXFP4 ? MTI_CODE_MXFP4
           : q->format == MT_QUANT_NF4 ? MTI_CODE_NF4
                                       : MTI_CODE_INT8;
}

/* Makes f32 scales first, then stores their mean and the differences from it in int8. */
static bool quantize_doubly(const mt_quant *q, const parts *p, const mt_tensor *x, mt_tensor *out)
{
    mt_device *d = x->storage->device;
    mt_tensor *full = mt_empty(d, MT_F32, MT_SHAPE(p->n_scales));
    if (!full) return false;
    mti_view mean = part(out, 0, MT_F32, 1), groups = part(out, p->groups, MT_F32, p->n_groups);
    mti_view scales = part(out, p->scales, MT_U8, p->n_scales);
    mti_view codes = part(out, p->codes, MT_U8, (int64_t)(p->n_bytes - p->codes));
    bool ok =
        d->backend->quantize(d->ctx, code_of(q), p->block, &x->view, NULL, &codes, &full->view) &&
        d->backend->lane_mean(d->ctx, &full->view, &mean) &&
        d->backend->quantize(d->ctx, MTI_CODE_INT8, SCALES_BLOCK, &full->view, &mean, &scales,
                             &groups);
    mt_release(full);
    return ok;
}

static bool quantize(const mt_quant *q, const parts *p, const mt_tensor *x, mt_tensor *out)
{
    mt_device *d = x->storage->device;
    if (!p->n) return true;
    if (q->double_scales) return quantize_doubly(q, p, x, out);
    mti_view scales = part(out, p->scales, p->dtype, p->n_scales);
    mti_view codes = part(out, p->codes, MT_U8, (int64_t)(p->n_bytes - p->codes));
    return d->backend->quantize(d->ctx, code_of(q), p->block, &x->view, NULL, &codes, &scales);
}

mt_tensor *mt_quantize(mt_tensor *x, const mt_quant *q)
{
    parts p = {0};
    if (!mti_given(x, "quantize", "x") || !parts_of("quantize", q, mt_numel(x), &p)) return NULL;
    if (!mt_dtype_is_float(x->view.dtype))
        return mti_fail_null(MT_ERR_ARGUMENT, "quantize: x is %s; need f32, f64, bf16 or f16",
                             mt_dtype_name(x->view.dtype));
    const char *outer = enter("quantize");
    mt_tensor *in = dense(x);
    mt_tensor *out = in ? mt_empty(x->storage->device, MT_U8, MT_SHAPE((int64_t)p.n_bytes)) : NULL;
    if (out) out = keep_if(out, quantize(q, &p, in, out));
    mt_release(in);
    leave(outer);
    return out;
}

/* The f32 scales of a doubly quantised tensor. */
static mt_tensor *scales_of(const parts *p, const mt_tensor *packed)
{
    mt_device *d = packed->storage->device;
    mti_view mean = part(packed, 0, MT_F32, 1);
    mti_view groups = part(packed, p->groups, MT_F32, p->n_groups);
    mti_view scales = part(packed, p->scales, MT_U8, p->n_scales);
    mt_tensor *full = mt_empty(d, MT_F32, MT_SHAPE(p->n_scales));
    if (!full) return NULL;
    return keep_if(full, d->backend->dequantize(d->ctx, MTI_CODE_INT8, SCALES_BLOCK, &scales,
                                                &groups, &mean, &full->view));
}

static bool dequantize(const mt_quant *q, const parts *p, const mt_tensor *packed, mt_tensor *y)
{
    mt_device *d = packed->storage->device;
    if (!p->n) return true;
    mt_tensor *full = q->double_scales ? scales_of(p, packed) : NULL;
    if (q->double_scales && !full) return false;
    mti_view scales = full ? full->view : part(packed, p->scales, p->dtype, p->n_scales);
    mti_view codes = part(packed, p->codes, MT_U8, (int64_t)(p->n_bytes - p->codes));
    bool ok = d->backend->dequantize(d->ctx, code_of(q), p->block, &codes, &scales, NULL, &y->view);
    mt_release(full);
    return ok;
}

/* f32 scales need an address that is a multiple of 4, which a slice of a file's tensor may lack. */
static mt_tensor *aligned(mt_tensor *packed)
{
    if (mti_view_is_contiguous(&packed->view) && (uintptr_t)packed->view.data % sizeof(float) == 0)
        return mt_retain(packed);
    mt_tensor *copy = mt_empty(packed->storage->device, MT_U8, 1, packed->view.shape);
    if (copy && !mti_copy_view(packed->storage->device, &packed->view, &copy->view))
        mt_set(&copy, NULL);
    return copy;
}

mt_tensor *mt_dequantize(mt_tensor *packed, const mt_quant *q, mt_dtype dtype, int rank,
                         const int64_t *shape)
{
    parts p = {0};
    mti_view spec;
    size_t n_bytes;
    char text[MTI_SHAPE_TEXT], got[MTI_SHAPE_TEXT];
    if (!mti_given(packed, "dequantize", "packed") ||
        !mti_view_init(&spec, "dequantize", dtype, rank, shape, &n_bytes) ||
        !parts_of("dequantize", q, mti_view_count(&spec), &p))
        return NULL;
    if (!mt_dtype_is_float(dtype))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "dequantize: asked for %s; need f32, f64, bf16 or f16",
                             mt_dtype_name(dtype));
    if (packed->view.dtype != MT_U8 || packed->view.rank != 1 ||
        mt_numel(packed) != (int64_t)p.n_bytes)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "dequantize: packed is %s %s; %s in this format is u8 [%zu]",
                             mt_dtype_name(packed->view.dtype),
                             mti_shape_text(got, packed->view.rank, packed->view.shape),
                             mti_shape_text(text, rank, spec.shape), p.n_bytes);
    const char *outer = enter("dequantize");
    mt_tensor *in = aligned(packed);
    mt_tensor *y = in ? mt_empty(packed->storage->device, dtype, rank, shape) : NULL;
    if (y) y = keep_if(y, dequantize(q, &p, in, y));
    mt_release(in);
    leave(outer);
    return y;
}
