/* unfused.c: functions as compositions of ops, in the order in which Transformers' eager code calls
 * them, so that the tape keeps what it keeps. Values are those of the one op, except for rounding.
 */
#include <math.h>
#include "nn/model.h"
#include "memtape/autocast.h"
#include "memtape/ops.h"
#include "ops/ops.h"

/* f32 for 2-byte floats, else the type itself. */
static mt_dtype wide(const mt_tensor *x)
{
    return x && mt_dtype_size(mt_dtype_of(x)) == 2 ? MT_F32 : x ? mt_dtype_of(x) : MT_F32;
}

/* silu(gate) up. Keeps gate, silu(gate) and up. */
mt_tensor *mti_swiglu_unfused(mt_tensor *gate, mt_tensor *up)
{
    mt_tensor *y = mt_silu(gate);
    mt_set(&y, mt_mul(y, up));
    return y;
}

/* x / sqrt(mean(x^2) + eps) of rows, x32 in f32. Keeps x32 and each row's root. */
static mt_tensor *normalise(mt_tensor *x, double eps)
{
    mt_tensor *x32 = x ? mt_cast(x, wide(x)) : NULL;
    mt_tensor *root = mt_pow(x32, 2);
    mt_set(&root, mt_mean(root, 1, (const int[]){-1}, true));
    mt_set(&root, mt_affine(root, 1, eps));
    mt_set(&root, mt_sqrt(root));
    mt_tensor *y = mt_div(x32, root);
    mt_release(x32);
    mt_release(root);
    return y;
}

/* Times w [n]; keeps the normalised rows besides, in x's type. */
mt_tensor *mti_rms_norm_unfused(mt_tensor *x, mt_tensor *w, double eps)
{
    mt_tensor *y = normalise(x, eps);
    if (y) mt_set(&y, mt_cast(y, mt_dtype_of(x)));
    mt_set(&y, mt_mul(w, y));
    return y;
}

/* Times 1 + w; keeps the normalised rows and 1 + w besides, in f32. */
mt_tensor *mti_rms_norm_one_unfused(mt_tensor *x, mt_tensor *w, double eps)
{
    mt_tensor *y = normalise(x, eps), *one = w ? mt_cast(w, wide(w)) : NULL;
    mt_set(&one, mt_add_scalar(one, 1));
    mt_set(&y, mt_mul(y, one));
    mt_release(one);
    if (y) mt_set(&y, mt_cast(y, mt_dtype_of(x)));
    return y;
}

/* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). Keeps x, tanh(..), x/2 and 1 + tanh(..). */
mt_tensor *mti_gelu_tanh_unfused(mt_tensor *x)
{
    mt_tensor *t = mt_pow(x, 3);
    mt_set(&t, mt_affine(t, 0.044715, 0));
    mt_set(&t, mt_add(x, t));
    mt_set(&t, mt_affine(t, sqrt(2 / 3.14159265358979323846), 0));
    mt_set(&t, mt_tanh(t));
    mt_set(&t, mt_affine(t, 1, 1));
    mt_tensor *half = mt_affine(x, 0.5, 0);
    mt_set(&t, mt_mul(half, t));
    mt_release(half);
    return t;
}

/* ---- rotary positions ---- */

void mti_rope_tables_free(mti_rope_tables *tables)
{
    for (int i = 0; i < MTI_ROPE_THETAS; i++)
        mt_release(tables->of[i].cosine), mt_release(tables->of[i].sine);
    *tables = (mti_rope_tables){0};
}

/* Half of `turned` [1,1,s,h], twice: [s,h] in `dtype`. */
static mt_tensor *table_of(mt_tensor *turned, int half, mt_dtype dtype)
{
    int64_t s = mt_shape(turned)[2], h = mt_shape(turned)[3];
    mt_tensor *part = mt_slice(turned, 3, half ? h / 2 : 0, h / 2);
    mt_tensor *both = part ? mt_cat(2, (mt_tensor *[]){part, part}, 3) : NULL;
    mt_release(part);
    mt_set(&both, both ? mt_reshape(both, MT_SHAPE(s, h)) : NULL);
    mt_set(&both, both ? mt_cast(both, dtype) : NULL);
    return both;
}

/* The pair (1, 0), turned by an angle, is its cosine and sine: [1,1,s,h] */
static mt_tensor *turn_ones(mt_device *device, mt_dtype type, int64_t start,
                            const mt_rope_options *angles, int64_t s, int64_t h)
{
    mt_tensor *one = mt_full(device, type, MT_SHAPE(1, 1, s, h / 2), 1);
    mt_tensor *zero = one ? mt_zeros(device, type, MT_SHAPE(1, 1, s, h / 2)) : NULL;
    mt_tensor *turned = zero ? mt_cat(2, (mt_tensor *[]){one, zero}, 3) : NULL;
    mt_release(one), mt_release(zero);
    mt_set(&turned, turned ? mt_rope_with(turned, start, angles) : NULL);
    return turned;
}

static bool make_tables(mt_tensor **cosine, mt_tensor **sine, mt_device *device, mt_dtype dtype,
                        int64_t start, const mt_rope_options *angles, int64_t s, int64_t h)
{
    mt_tensor *turned = turn_ones(device, dtype == MT_F64 ? MT_F64 : MT_F32, start, angles, s, h);
    *cosine = turned ? table_of(turned, 0, dtype) : NULL;
    *sine = *cosine ? table_of(turned, 1, dtype) : NULL;
    mt_release(turned);
    return *sine != NULL;
}

/* (x1, x2) -> (-x2, x1) in each row's halves */
static mt_tensor *quarter_turn(mt_tensor *x)
{
    int last = mt_rank(x) - 1;
    int64_t half = mt_shape(x)[last] / 2;
    mt_tensor *low = mt_slice(x, last, 0, half), *high = low ? mt_slice(x, last, half, half) : NULL;
    mt_set(&high, mt_affine(high, -1, 0));
    mt_tensor *y = high ? mt_cat(2, (mt_tensor *[]){high, low}, last) : NULL;
    mt_release(low), mt_release(high);
    return y;
}

/* Where tables of this theta are, or are to be made. */
static int place_of(const mti_rope_tables *tables, double theta)
{
    int i = 0;
    while (i < MTI_ROPE_THETAS - 1 && tables->of[i].theta != 0 && tables->of[i].theta != theta) i++;
    return i;
}

/* x cos + (-x2, x1) sin. Keeps the tables alone: they want no gradient, so neither product needs x.
 */
bool mti_rope_unfused(mti_rope_tables *tables, mt_dtype dtype, int64_t start,
                      const mt_rope_options *angles, mt_tensor **x)
{
    const double theta = angles->theta;
    int64_t s = mt_shape(*x)[2], h = mt_shape(*x)[3];
    const int i = place_of(tables, theta);
    mt_tensor **cosine = &tables->of[i].cosine, **sine = &tables->of[i].sine;
    bool made = tables->of[i].theta == theta && *sine && mt_shape(*sine)[0] == s;
    if (!made) {
        mt_release(*cosine), mt_release(*sine);
        *cosine = *sine = NULL;
        tables->of[i].theta = theta;
        if (!make_tables(cosine, sine, mt_device_of(*x), dtype, start, angles, s, h)) return false;
    }
    mt_tensor *y = mt_mul(*x, *cosine), *turned = y ? quarter_turn(*x) : NULL;
    mt_set(&turned, mt_mul(turned, *sine));
    mt_set(&y, mt_add(y, turned));
    mt_release(turned);
    return mt_set(x, y) == MT_OK;
}

/* c x - d y */
static mt_tensor *product_sum(mt_tensor *c, mt_tensor *x, mt_tensor *d, mt_tensor *y, bool minus)
{
    MT_AUTO mt_tensor *cx = mt_mul(c, x), *dy = cx ? mt_mul(d, y) : NULL;
    return dy ? (minus ? mt_sub : mt_add)(cx, dy) : NULL;
}

/* One half of the pair (scale, 0), turned: [s,h/2] */
static mt_tensor *narrow_table(mt_tensor *turned, int half, double scale, mt_dtype dtype)
{
    const int64_t s = mt_shape(turned)[2], h = mt_shape(turned)[3];
    mt_tensor *part = mt_slice(turned, 3, half ? h / 2 : 0, h / 2);
    mt_set(&part, mt_affine(part, scale, 0)); /* a copy */
    mt_set(&part, part ? mt_reshape(part, MT_SHAPE(s, h / 2)) : NULL);
    mt_set(&part, part ? mt_cast(part, dtype) : NULL);
    return part;
}

bool mti_rope_narrow(mti_rope_tables *tables, mt_dtype dtype, int64_t start,
                     const mt_rope_options *angles, double scale, mt_tensor **x)
{
    const int64_t s = mt_shape(*x)[2], h = mt_shape(*x)[3];
    const int i = place_of(tables, angles->theta);
    mt_tensor **c = &tables->of[i].cosine, **d = &tables->of[i].sine, *turned[2] = {NULL, NULL};
    if (tables->of[i].theta != angles->theta || !*d || mt_shape(*d)[0] != s) {
        MT_AUTO mt_tensor *ones =
            turn_ones(mt_device_of(*x), dtype == MT_F64 ? MT_F64 : MT_F32, start, angles, s, h);
        tables->of[i].theta = angles->theta;
        mt_set(c, ones ? narrow_table(ones, 0, scale, dtype) : NULL);
        mt_set(d, *c ? narrow_table(ones, 1, scale, dtype) : NULL);
    }
    MT_AUTO mt_tensor *low = *c && *d ? mt_slice(*x, 3, 0, h / 2) : NULL;
    MT_AUTO mt_tensor *high = low ? mt_slice(*x, 3, h / 2, h / 2) : NULL;
    if (high) turned[0] = product_sum(*c, low, *d, high, true);
    if (turned[0]) turned[1] = product_sum(*c, high, *d, low, false);
    mt_set(x, turned[1] ? mt_cat(2, turned, 3) : NULL);
    mt_release(turned[0]), mt_release(turned[1]);
    return *x != NULL;
}

/* Cosines and sines are two halves of one table. */
bool mti_rope_complex(mti_rope_tables *tables, int64_t start, const mt_rope_options *angles,
                      mt_tensor **x)
{
    const mt_dtype dtype = mt_dtype_of(*x);
    const int64_t *shape = mt_shape(*x), b = shape[0], n = shape[1], s = shape[2], h = shape[3];
    const int place = place_of(tables, angles->theta);
    mt_tensor **table = &tables->of[place].cosine;
    if (tables->of[place].theta != angles->theta || !*table || mt_shape(*table)[2] != s) {
        tables->of[place].theta = angles->theta;
        mt_set(table, turn_ones(mt_device_of(*x), wide(*x), start, angles, s, h));
    }
    MT_AUTO mt_tensor *c = *table ? mt_slice(*table, 3, 0, h / 2) : NULL;
    MT_AUTO mt_tensor *d = c ? mt_slice(*table, 3, h / 2, h / 2) : NULL;
    mt_set(x, d ? mt_cast(*x, wide(*x)) : NULL);
    mt_set(x, *x ? mt_reshape(*x, MT_SHAPE(b, n, s, h / 2, 2)) : NULL);
    mt_tensor *part[2] = {NULL, NULL}, *turned[2] = {NULL, NULL};
    bool ok = *x && mt_split(*x, 4, 2, (const int64_t[]){1, 1}, part) == MT_OK;
    for (int i = 0; ok && i < 2; i++)
        ok = mt_set(&part[i], mt_reshape(part[i], MT_SHAPE(b, n, s, h / 2))) == MT_OK;
    if (ok) turned[0] = product_sum(c, part[0], d, part[1], true);
    if (turned[0]) turned[1] = product_sum(c, part[1], d, part[0], false);
    mt_set(x, turned[1] ? mt_cat(2, turned, 3) : NULL);
    for (int i = 0; i < 2; i++) mt_release(part[i]), mt_release(turned[i]);
    return *x && mt_set(x, mt_cast(*x, dtype)) == MT_OK;
}

/* ---- attention ---- */

bool mti_copies_heads(int64_t b, int64_t k, int64_t n)
{
    return k == n ? b > 1 && k > 1 : b > 1 || k > 1;
}

/* Shows n columns of each row from `from` on, the first row's from `column` on, the next one's from
 * one column further. */
static bool show(mt_tensor *mask, int64_t from, int64_t rows, int64_t column, int64_t n)
{
    const int last = mask->view.rank - 1;
    mti_view lines = mti_range(&mask->view, last - 1, from, rows);
    mti_view band = mti_range(&lines, last, column, n);
    band.stride[last - 1]++;
    mt_device *d = mt_device_of(mask);
    return rows < 1 || n < 1 || d->backend->fill(d->ctx, &band, 0);
}

mt_tensor *mti_window_mask(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                           int64_t window)
{
    mt_tensor *mask = mt_full(device, dtype, rank, shape, -(double)INFINITY);
    const int64_t s = shape[rank - 2], t = shape[rank - 1], ahead = t - s;
    if (!mask || !mt_device_has_data(device)) return mask;
    int64_t i = ahead < 0 ? -ahead : 0; /* the first query that sees a key */
    bool ok = true;
    for (; ok && i < s && i + ahead + 1 < window; i++) ok = show(mask, i, 1, 0, i + ahead + 1);
    ok = ok && (i >= s || show(mask, i, s - i, i + ahead + 1 - window, window));
    if (!ok) mt_set(&mask, NULL);
    return mask;
}

mt_tensor *mti_repeat_heads(mt_tensor *x, int64_t n, bool batched)
{
    if (!x) return NULL;
    int64_t b = mt_shape(x)[0], k = mt_shape(x)[1], s = mt_shape(x)[2], h = mt_shape(x)[3];
    bool copied = batched ? mti_copies_heads(b, k, n) : k != n && k > 1;
    const int64_t *stride = x->view.stride; /* batch and heads may be one dimension already */
    if (k == n) return copied && stride[0] != k * stride[1] ? mt_contiguous(x) : mt_retain(x);
    mt_dtype low; /* a cast of repeated views is a copy of each */
    copied = copied || (mt_autocast_active(&low) && mt_dtype_of(x) != low);
    mt_tensor *y = mt_reshape(x, MT_SHAPE(b, k, 1, s, h));
    mt_set(&y, mt_expand(y, MT_SHAPE(b, k, n / k, s, h)));
    if (copied) mt_set(&y, mt_contiguous(y));
    mt_set(&y, mt_reshape(y, MT_SHAPE(b, n, s, h)));
    return y;
}
