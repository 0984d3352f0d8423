/* blocks8.c: encodes and decodes by ops that every device has, some rows at a time, so that what
 * they take beside the result stays small.
 *
 * A matrix is seen as [a,b,c,d]: a by b blocks of c by d values. */
#include <math.h>
#include "memtape/ops.h"
#include "stacks/blocks8.h"
#include "ops/ops.h"

#define AT_ONCE ((int64_t)1 << 20) /* elements */

static const struct {
    double largest;
    mt_dtype dtype; /* of a code; e2m1 has two in a byte */
    int exponent;   /* of the largest */
} values_of[] = {[MTI_VALUES_E4M3] = {448, MT_F8_E4M3, 8},
                 [MTI_VALUES_E5M2] = {57344, MT_F8_E5M2, 15},
                 [MTI_VALUES_E2M1] = {6, MT_U8, 2}};

static bool whole(const mti_blocks8 *b) { return b->scales == MTI_SCALE_TENSOR; }
static int64_t block_size(const mti_blocks8 *b) { return b->rows * b->columns; }

/* Bytes before the codes: one f32 of the tensor, then the blocks' scales. */
static int64_t head(const mti_blocks8 *b)
{
    return whole(b) || b->scales == MTI_SCALE_TWO ? sizeof(float) : 0;
}
static int64_t scale_bytes(const mti_blocks8 *b)
{
    return whole(b) ? 0 : b->scales == MTI_SCALE_F32 ? 4 : 1;
}
static int64_t code_bytes(const mti_blocks8 *b, int64_t n)
{
    return b->values == MTI_VALUES_E2M1 ? n / 2 : n;
}

int64_t mti_blocks8_bytes(const mti_blocks8 *b, int64_t n)
{
    return head(b) + scale_bytes(b) * (n / block_size(b)) + code_bytes(b, n);
}

/* ---- views ---- */

/* x [m,n] as [a,b,c,d]. */
static mt_tensor *blocked(const mti_blocks8 *b, mt_tensor *x)
{
    const mti_view *v = &x->view;
    int r = b->across, k = !b->across; /* the dimensions of a block's rows and columns */
    int64_t rows = whole(b) ? 1 : b->rows, columns = whole(b) ? v->shape[k] : b->columns;
    if (!v->shape[0] || !v->shape[1]) columns = 1;
    mti_view y = *v;
    y.rank = 4;
    y.shape[0] = v->shape[r] / rows, y.stride[0] = v->stride[r] * rows;
    y.shape[1] = v->shape[k] / columns, y.stride[1] = v->stride[k] * columns;
    y.shape[2] = rows, y.stride[2] = v->stride[r];
    y.shape[3] = columns, y.stride[3] = v->stride[k];
    return mti_tensor_view(x, &y);
}

/* Elements of a packed tensor, from byte `at` on: [a,b,c,d], contiguous. */
static mt_tensor *part(mt_tensor *packed, int64_t at, mt_dtype dtype, int64_t a, int64_t b,
                       int64_t c, int64_t d)
{
    char *data = packed->view.data;
    mti_view y = {.data = data ? data + at : NULL,
                  .dtype = dtype,
                  .rank = 4,
                  .shape = {a, b, c, d},
                  .stride = {b * c * d, c * d, d, 1}};
    return mti_tensor_view(packed, &y);
}

/* f32 `t`, contiguous [a,b,1,1]: the upper half of each element, which is its sign, exponent and
 * seven bits of its mantissa. */
static mt_tensor *upper_half(mt_tensor *t)
{
    mti_view y = t->view;
    y.dtype = MT_U16;
    if (y.data) y.data = (char *)y.data + 2; /* little-endian, as are all our formats */
    for (int i = 0; i < y.rank; i++) y.stride[i] *= 2;
    return mti_tensor_view(t, &y);
}

/* ---- powers of two ---- */

/* The exponent bits of f32 t, not negative, plus `more`, at least 1: u8. */
static mt_tensor *exponent_of(mt_tensor *t, int more)
{
    mt_tensor *e = t ? upper_half(t) : NULL;
    mt_set(&e, e ? mt_cast(e, MT_F32) : NULL);
    mt_set(&e, mt_affine(e, 1.0 / 128, 0));
    mt_set(&e, e ? mt_cast(e, MT_U8) : NULL); /* without the fraction */
    mt_set(&e, e ? mt_cast(e, MT_F32) : NULL);
    mt_set(&e, mt_affine(e, 1, more));
    mt_set(&e, mt_clamp(e, 1, 254));
    mt_set(&e, e ? mt_cast(e, MT_U8) : NULL);
    return e;
}

/* 2^(e - 127) of u8 e, as f32. */
static mt_tensor *power_of(mt_tensor *e)
{
    mt_tensor *bits = e ? mt_cast(e, MT_F32) : NULL;
    mt_set(&bits, mt_affine(bits, 128, 0));
    mt_set(&bits, bits ? mt_cast(bits, MT_U16) : NULL);
    if (!bits) return NULL;
    mti_view y = bits->view;
    y.dtype = MT_BF16;
    mt_set(&bits, mti_tensor_view(bits, &y));
    mt_set(&bits, bits ? mt_cast(bits, MT_F32) : NULL);
    return bits;
}

/* ---- scales ---- */

mt_tensor *mti_blocks8_times(mti_values8 values, mt_tensor *largest)
{
    mt_tensor *t = mt_clamp(largest, 1e-12, HUGE_VAL);
    MT_AUTO mt_tensor *most =
        t ? mt_full(mt_device_of(t), MT_F32, mt_rank(t), mt_shape(t), values_of[values].largest)
          : NULL;
    mt_set(&t, mt_div(most, t));
    return t;
}

/* max|x| of each block of x [a,b,c,d]: f32 [a,b,1,1]. */
static mt_tensor *largest_of(mt_tensor *x)
{
    mt_tensor *t = mt_abs(x);
    mt_set(&t, mt_max(t, 2, (const int[]){2, 3}, true));
    mt_set(&t, t ? mt_cast(t, MT_F32) : NULL);
    return t;
}

/* Whether rows from i on need be gone through: where there are no values the first and the last do,
 * as all others take the same bytes for as long. */
static bool is_run(const mt_tensor *x, int64_t i, int64_t step, int64_t n)
{
    return i == 0 || i + step >= n || mt_device_has_data(mt_device_of(x));
}

/* Rows of [a,b,c,d] to go through at once. */
static int64_t some_rows(const mt_tensor *x)
{
    int64_t each = mt_numel(x) / mt_shape(x)[0];
    return each >= AT_ONCE ? 1 : each ? AT_ONCE / each : mt_shape(x)[0];
}

mt_tensor *mti_blocks8_largest(mt_tensor *x)
{
    const mti_blocks8 all = {.scales = MTI_SCALE_TENSOR, .rows = 1, .columns = 1};
    MT_AUTO mt_tensor *v = x ? blocked(&all, x) : NULL;
    if (!v) return NULL;
    mt_tensor *t = mt_zeros(mt_device_of(x), MT_F32, MT_SHAPE(1, 1, 1, 1));
    int64_t step = some_rows(v), rows = mt_shape(v)[0];
    for (int64_t i = 0; t && i < rows; i += step) {
        if (!is_run(x, i, step, rows)) continue;
        MT_AUTO mt_tensor *some = mt_slice(v, 0, i, rows - i < step ? rows - i : step);
        mt_tensor *m = mt_abs(some);
        mt_set(&m, mt_max(m, 4, (const int[]){0, 1, 2, 3}, true));
        mt_set(&m, m ? mt_cast(m, MT_F32) : NULL);
        mt_tensor *both = m ? mt_cat(2, (mt_tensor *[]){t, m}, 0) : NULL;
        mt_release(m);
        mt_set(&both, mt_max(both, 1, (const int[]){0}, true));
        mt_set(&t, both);
    }
    return t;
}

/* What the codes of blocks are multiplied by, from their stored scales [a,b,1,1]. */
static mt_tensor *read_scales(const mti_blocks8 *b, mt_tensor *stored, mt_tensor *tensors)
{
    if (b->scales == MTI_SCALE_F32) return mt_retain(stored);
    if (b->scales != MTI_SCALE_TWO) return power_of(stored);
    mt_tensor *t = mt_cast(stored, MT_F32);
    mt_set(&t, mt_mul(t, tensors));
    mt_set(&t, mt_clamp(t, 0x1p-126, HUGE_VAL)); /* a block of zeros */
    return t;
}

/* Stores the scales of blocks whose largest values are these. */
static bool write_scales(const mti_blocks8 *b, mt_tensor *largest, mt_tensor *tensors,
                         mt_tensor *stored)
{
    const int exponent = values_of[b->values].exponent;
    mt_tensor *t = NULL;
    switch (b->scales) {
    case MTI_SCALE_TENSOR: return true;
    case MTI_SCALE_FLOOR: t = exponent_of(largest, -exponent); break;
    case MTI_SCALE_CEIL: /* the power of two above, unless it is one */
    case MTI_SCALE_F32:
        t = mt_mul_scalar(largest, 1 / values_of[b->values].largest);
        mt_set(&t, mt_mul_scalar(t, 2 - 0x1p-23));
        mt_set(&t, exponent_of(t, 0));
        if (b->scales == MTI_SCALE_F32) mt_set(&t, power_of(t));
        break;
    case MTI_SCALE_TWO:
        t = mt_mul_scalar(largest, 1 / values_of[b->values].largest);
        mt_set(&t, mt_div(t, tensors));
        break;
    }
    bool ok = t && mt_copy(stored, t) == MT_OK;
    mt_release(t);
    return ok;
}

/* ---- values of e2m1: 0, 1/2, 1, 3/2, 2, 3, 4, 6 ---- */

/* y where mask, else z; takes all over. */
static mt_tensor *choose(mt_tensor *mask, mt_tensor *y, mt_tensor *z)
{
    mt_tensor *t = mt_where(mask, y, z);
    mt_release(mask), mt_release(y), mt_release(z);
    return t;
}

/* x to the next multiple of `unit`, ties to even: at this size f32 has no finer one. */
static mt_tensor *rounded(mt_tensor *x, double unit)
{
    const double size = 0x1.8p23 * unit;
    mt_tensor *t = mt_add_scalar(x, size);
    mt_set(&t, mt_add_scalar(t, -size));
    return t;
}

/* The codes, 0 to 7, of values from 0 to 6, as f32. */
static mt_tensor *codes_of(mt_tensor *x)
{
    mt_tensor *low = rounded(x, 0.5), *mid = rounded(x, 1), *high = rounded(x, 2);
    mt_set(&low, mt_affine(low, 2, 0));
    mt_set(&mid, mt_affine(mid, 1, 2));
    mt_set(&high, mt_affine(high, 0.5, 4));
    mt_tensor *upper = choose(mt_compare_scalar(x, MT_LT, 4), mid, high);
    return choose(mt_compare_scalar(x, MT_LT, 2), low, upper);
}

/* The values of codes, 0 to 7, as f32. */
static mt_tensor *values_at(mt_tensor *code)
{
    mt_tensor *upper =
        choose(mt_compare_scalar(code, MT_LT, 6), mt_affine(code, 1, -2), mt_affine(code, 2, -8));
    return choose(mt_compare_scalar(code, MT_LT, 4), mt_affine(code, 0.5, 0), upper);
}

/* q [a,b,c,d] in f32 to out, two values a byte, the first in the low bits. */
static bool pack(mt_tensor *q, mt_tensor *out)
{
    mt_tensor *size = mt_abs(q), *sign = mt_compare_scalar(q, MT_LT, 0);
    mt_tensor *code = size ? codes_of(size) : NULL;
    mt_set(&sign, sign ? mt_cast(sign, MT_F32) : NULL);
    mt_set(&sign, mt_affine(sign, 8, 0));
    mt_set(&code, mt_add(code, sign));
    mt_set(&code, code ? mt_reshape(code, MT_SHAPE(mt_numel(q) / 2, 2)) : NULL);
    mt_tensor *low = code ? mt_slice(code, 1, 0, 1) : NULL;
    mt_tensor *high = low ? mt_slice(code, 1, 1, 1) : NULL;
    mt_set(&high, mt_affine(high, 16, 0));
    mt_set(&high, mt_add(high, low));
    MT_AUTO mt_tensor *flat = high ? mt_reshape(out, MT_SHAPE(mt_numel(out), 1)) : NULL;
    bool ok = flat && mt_copy(flat, high) == MT_OK;
    mt_release(size), mt_release(sign), mt_release(code), mt_release(low), mt_release(high);
    return ok;
}

/* Its inverse: f32 of the shape of `like`. */
static mt_tensor *unpack(mt_tensor *in, const mt_tensor *like)
{
    MT_AUTO mt_tensor *bytes = mt_cast(in, MT_F32);
    mt_tensor *high = mt_affine(bytes, 1.0 / 16, 0);
    mt_set(&high, high ? mt_cast(high, MT_U8) : NULL);
    mt_set(&high, high ? mt_cast(high, MT_F32) : NULL);
    mt_tensor *low = mt_affine(high, -16, 0);
    mt_set(&low, mt_add(low, bytes));
    mt_set(&low, low ? mt_reshape(low, MT_SHAPE(mt_numel(in), 1)) : NULL);
    mt_set(&high, high ? mt_reshape(high, MT_SHAPE(mt_numel(in), 1)) : NULL);
    mt_tensor *code = high && low ? mt_cat(2, (mt_tensor *[]){low, high}, 1) : NULL;
    mt_release(low), mt_release(high);
    mt_set(&code, code ? mt_reshape(code, mt_rank(like), mt_shape(like)) : NULL);
    mt_tensor *negative = mt_compare_scalar(code, MT_GE, 8);
    mt_set(&negative, negative ? mt_cast(negative, MT_F32) : NULL);
    mt_tensor *eights = mt_affine(negative, -8, 0);
    mt_set(&code, mt_add(code, eights));
    mt_release(eights);
    mt_tensor *y = code ? values_at(code) : NULL;
    mt_set(&negative, mt_affine(negative, -2, 1));
    mt_set(&y, mt_mul(y, negative));
    mt_release(negative), mt_release(code);
    return y;
}

/* ---- all of it ---- */

/* Some rows of a matrix, and where they are in the packed tensor. */
typedef struct rows {
    mt_tensor *x;              /* [a,b,c,d] */
    mt_tensor *codes, *scales; /* scales: NULL if the tensor has one */
} rows;

static bool rows_open(rows *r, const mti_blocks8 *b, mt_tensor *x, mt_tensor *packed, int64_t at,
                      int64_t from, int64_t n)
{
    const int64_t *s = mt_shape(x);
    const int64_t each = s[1] * s[2] * s[3], scales = at + head(b);
    const int64_t codes = scales + scale_bytes(b) * s[0] * s[1];
    mt_dtype scale_type = b->scales == MTI_SCALE_F32   ? MT_F32
                          : b->scales == MTI_SCALE_TWO ? MT_F8_E4M3
                                                       : MT_U8;
    *r = (rows){.x = mt_slice(x, 0, from, n)};
    r->codes = part(packed, codes + code_bytes(b, from * each), values_of[b->values].dtype, n, s[1],
                    s[2], code_bytes(b, s[3]));
    if (!whole(b))
        r->scales = part(packed, scales + scale_bytes(b) * from * s[1], scale_type, n, s[1], 1, 1);
    return r->x && r->codes && (whole(b) || r->scales);
}

static void rows_close(rows *r) { mt_release(r->x), mt_release(r->codes), mt_release(r->scales); }

/* factor: what x is multiplied by, of a tensor's one scale; else the tensor's f32 or NULL. */
static bool encode_rows(const mti_blocks8 *b, rows *r, mt_tensor *factor)
{
    const double most = values_of[b->values].largest;
    mt_tensor *q = mt_cast(r->x, MT_F32);
    if (whole(b)) {
        mt_set(&q, mt_mul(q, factor));
    } else {
        MT_AUTO mt_tensor *largest = q ? largest_of(q) : NULL;
        bool ok = largest && write_scales(b, largest, factor, r->scales);
        MT_AUTO mt_tensor *scale = ok ? read_scales(b, r->scales, factor) : NULL;
        mt_set(&q, scale ? mt_div(q, scale) : NULL);
    }
    mt_set(&q, mt_clamp(q, -most, most));
    bool ok =
        q && (b->values == MTI_VALUES_E2M1 ? pack(q, r->codes) : mt_copy(r->codes, q) == MT_OK);
    mt_release(q);
    return ok;
}

/* factor: as encode_rows has it, but what the codes are multiplied by. */
static bool decode_rows(const mti_blocks8 *b, rows *r, mt_tensor *factor)
{
    MT_AUTO mt_tensor *scale = whole(b) ? mt_retain(factor) : read_scales(b, r->scales, factor);
    mt_tensor *y =
        b->values == MTI_VALUES_E2M1 ? unpack(r->codes, r->x) : mt_cast(r->codes, MT_F32);
    mt_set(&y, scale ? mt_mul(y, scale) : NULL);
    bool ok = y && mt_copy(r->x, y) == MT_OK;
    mt_release(y);
    return ok;
}

typedef bool each_rows(const mti_blocks8 *b, rows *r, mt_tensor *factor);

static bool walk(const mti_blocks8 *b, mt_tensor *x, mt_tensor *packed, int64_t at,
                 mt_tensor *factor, each_rows *each)
{
    MT_AUTO mt_tensor *v = blocked(b, x);
    if (!v || !mt_numel(x)) return v != NULL;
    int64_t step = some_rows(v), n = mt_shape(v)[0];
    bool ok = true;
    for (int64_t i = 0; ok && i < n; i += step) {
        rows r;
        if (!is_run(x, i, step, n)) continue;
        ok = rows_open(&r, b, v, packed, at, i, n - i < step ? n - i : step) && each(b, &r, factor);
        rows_close(&r);
    }
    return ok;
}

/* The tensor's f32, at the packed tensor's begin. */
static mt_tensor *tensors_scale(const mti_blocks8 *b, mt_tensor *packed, int64_t at)
{
    return head(b) ? part(packed, at, MT_F32, 1, 1, 1, 1) : NULL;
}

bool mti_blocks8_encode(const mti_blocks8 *b, mt_tensor *x, const mt_tensor *times, mt_tensor *out,
                        int64_t at)
{
    MT_AUTO mt_tensor *stored = tensors_scale(b, out, at);
    if (!stored) return !head(b) && walk(b, x, out, at, NULL, encode_rows);
    mt_tensor *factor = times ? mt_retain((mt_tensor *)times) : mti_blocks8_largest(x);
    if (whole(b) && !times) mt_set(&factor, mti_blocks8_times(b->values, factor));
    if (!whole(b)) { /* so that the blocks' scales fill e4m3's range */
        mt_set(&factor, mt_clamp(factor, 1e-12, HUGE_VAL));
        mt_set(&factor, mt_mul_scalar(factor, 1 / (448 * values_of[b->values].largest)));
    }
    mt_tensor *kept = whole(b) ? mt_reciprocal(factor) : mt_retain(factor);
    bool ok = kept && mt_copy(stored, kept) == MT_OK && walk(b, x, out, at, factor, encode_rows);
    mt_release(factor), mt_release(kept);
    return ok;
}

bool mti_blocks8_decode(const mti_blocks8 *b, mt_tensor *in, int64_t at, mt_tensor *y)
{
    MT_AUTO mt_tensor *stored = tensors_scale(b, in, at);
    return (stored || !head(b)) && walk(b, y, in, at, stored, decode_rows);
}
