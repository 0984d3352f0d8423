/* kv_layer.c: appending keys and values to those of one layer. */
#include "memtape/ops.h"
#include "nn/kv_layer.h"

/* ---- appending: *x [b,k,t,h] is replaced by all positions, its own included ---- */

static bool append_preallocated(mti_kv_side *s, int64_t start, mt_tensor **x)
{
    int64_t t = mt_shape(*x)[2];
    MT_AUTO mt_tensor *place = mt_slice(s->values, 2, start, t);
    return place && mt_copy(place, *x) == MT_OK &&
           mt_set(x, mt_slice(s->values, 2, 0, start + t)) == MT_OK;
}

/* Positions from `start` on were left by a forward that failed; they are cut off. */
static bool append_growing(mti_kv_side *s, mt_dtype dtype, int64_t start, mt_tensor **x)
{
    if (mt_set(x, mt_cast(*x, dtype)) != MT_OK) return false;
    MT_AUTO mt_tensor *held = start ? mt_slice(s->values, 2, 0, start) : NULL;
    if (start && !held) return false;
    mt_tensor *all = start ? mt_cat(2, (mt_tensor *[]){held, *x}, 2) : mt_clone(*x);
    if (mt_set(x, all) != MT_OK || mt_set_category(*x, MT_CACHE) != MT_OK) return false;
    return mt_set(&s->values, mt_retain(*x)) == MT_OK;
}

/* sqrt(max x^2) over each vector: its largest magnitude [b,k,t,1] */
static mt_tensor *magnitudes(mt_tensor *x)
{
    mt_tensor *m = mt_mul(x, x);
    mt_set(&m, mt_max(m, 1, (const int[]){-1}, true));
    mt_set(&m, mt_sqrt(m));
    return m;
}

static bool write_codes(mti_kv_side *s, int64_t start, mt_tensor *x)
{
    int64_t t = mt_shape(x)[2];
    MT_AUTO mt_tensor *wide = mt_cast(x, MT_F32);
    MT_AUTO mt_tensor *scale = wide ? magnitudes(wide) : NULL;
    mt_set(&scale, mt_affine(scale, 1.0 / 127, 1e-30)); /* never 0 */
    mt_set(&wide, mt_div(wide, scale));
    mt_set(&wide, mt_affine(wide, 1, 128.5)); /* the cast to u8 truncates: 1 to 255 */
    MT_AUTO mt_tensor *codes_at = wide ? mt_slice(s->values, 2, start, t) : NULL;
    MT_AUTO mt_tensor *scales_at = codes_at ? mt_slice(s->scales, 2, start, t) : NULL;
    return scales_at && mt_copy(codes_at, wide) == MT_OK && mt_copy(scales_at, scale) == MT_OK;
}

static bool append_8bit(mti_kv_side *s, mt_dtype dtype, int64_t start, mt_tensor **x)
{
    int64_t t = mt_shape(*x)[2];
    if (!write_codes(s, start, *x)) return false;
    if (mt_set(x, mt_slice(s->values, 2, 0, start + t)) != MT_OK) return false;
    MT_AUTO mt_tensor *scale = mt_slice(s->scales, 2, 0, start + t);
    if (!scale || mt_set(x, mt_cast(*x, MT_F32)) != MT_OK) return false;
    mt_set(x, mt_affine(*x, 1, -128));
    mt_set(x, mt_mul(*x, scale));
    return mt_set(x, mt_cast(*x, dtype)) == MT_OK;
}

static bool append(const mti_kv_layer *layer, mti_kv_side *s, mt_tensor **x)
{
    switch (layer->form) {
    case MT_KV_GROWING: return append_growing(s, layer->dtype, *layer->length, x);
    case MT_KV_8BIT: return append_8bit(s, layer->dtype, *layer->length, x);
    default: return append_preallocated(s, *layer->length, x);
    }
}

bool mti_kv_append(mti_kv_layer *layer, mt_tensor **k, mt_tensor **v)
{
    return append(layer, &layer->k, k) && append(layer, &layer->v, v);
}
