/* kv_layer.c: appending keys and values to those of one layer. */
#include "memtape/ops.h"
#include "generate/kv_layer.h"

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

/* ---- paged ---- */

/* Copies all [b,k,n,h], whose first position is `first`, into the blocks, which are made as needed;
 * or out of them. */
static bool move_blocks(const mti_kv_layer *layer, mti_kv_side *s, mt_tensor *all, int64_t first,
                        bool into)
{
    const int64_t *shape = mt_shape(all);
    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t at = 0, n; at < shape[2]; at += n) {
            int64_t from = (first + at) % MT_KV_BLOCK, left = shape[2] - at;
            n = MT_KV_BLOCK - from < left ? MT_KV_BLOCK - from : left;
            mt_tensor **block = &s->blocks[i * layer->most + (first + at) / MT_KV_BLOCK];
            if (!*block) {
                *block = mt_empty(mt_device_of(all), layer->dtype,
                                  MT_SHAPE(1, shape[1], MT_KV_BLOCK, shape[3]));
                if (!*block || mt_set_category(*block, MT_CACHE) != MT_OK) return false;
            }
            MT_AUTO mt_tensor *row = mt_slice(all, 0, i, 1);
            MT_AUTO mt_tensor *run = row ? mt_slice(row, 2, at, n) : NULL;
            MT_AUTO mt_tensor *place = run ? mt_slice(*block, 2, from, n) : NULL;
            if (!place || mt_copy(into ? place : run, into ? run : place) != MT_OK) return false;
        }
    return true;
}

static bool append_paged(const mti_kv_layer *layer, mti_kv_side *s, mt_tensor **x)
{
    const int64_t *shape = mt_shape(*x);
    int64_t start = *layer->length;
    if (!move_blocks(layer, s, *x, start, true)) return false;
    mt_tensor *all = mt_empty(mt_device_of(*x), layer->dtype,
                              MT_SHAPE(shape[0], shape[1], start + shape[2], shape[3]));
    if (all && move_blocks(layer, s, all, 0, false)) return mt_set(x, all) == MT_OK;
    mt_release(all);
    return false;
}

void mti_kv_trim(const mti_kv_layer *layer, int64_t length)
{
    mt_tensor **const tables[] = {layer->k.blocks, layer->v.blocks};
    for (int j = 0; j < 2; j++)
        for (int64_t i = 0; tables[j] && i < layer->batch * layer->most; i++) {
            if (i % layer->most * MT_KV_BLOCK < length) continue;
            mt_release(tables[j][i]);
            tables[j][i] = NULL;
        }
}

static bool append(const mti_kv_layer *layer, mti_kv_side *s, mt_tensor **x)
{
    switch (layer->form) {
    case MT_KV_GROWING: return append_growing(s, layer->dtype, *layer->length, x);
    case MT_KV_PAGED: return append_paged(layer, s, x);
    case MT_KV_8BIT: return append_8bit(s, layer->dtype, *layer->length, x);
    default: return append_preallocated(s, *layer->length, x);
    }
}

bool mti_kv_append(mti_kv_layer *layer, mt_tensor **k, mt_tensor **v)
{
    return append(layer, &layer->k, k) && append(layer, &layer->v, v);
}
