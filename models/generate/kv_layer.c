/* kv_layer.c: appending keys and values to those of one layer. */
#include "memtape/ops.h"
#include "generate/kv_layer.h"

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* ---- growing: *x [b,k,t,h] is replaced by all positions that it sees, its own included ---- */

/* Positions from `start` on were left by a forward that failed; they are cut off. */
static bool append_growing(const mti_kv_layer *layer, mti_kv_side *s, mt_tensor **x)
{
    if (mt_set(x, mt_cast(*x, layer->dtype)) != MT_OK) return false;
    const int64_t start = *layer->length, t = mt_shape(*x)[2];
    const int64_t before = least(start, layer->slots - 1), n = least(before + t, layer->slots);
    const int64_t first = s->values ? s->end - mt_shape(s->values)[2] : 0;
    MT_AUTO mt_tensor *held =
        before ? mt_slice(s->values, 2, start - before - first, before) : NULL;
    if (before && !held) return false;
    mt_tensor *all = before ? mt_cat(2, (mt_tensor *[]){held, *x}, 2) : mt_clone(*x);
    if (mt_set(x, all) != MT_OK) return false;
    MT_AUTO mt_tensor *last = mt_retain(*x);
    if (n < before + t) {
        mt_set(&last, mt_slice(*x, 2, before + t - n, n));
        mt_set(&last, mt_clone(last));
    }
    if (!last || mt_set_category(last, MT_CACHE) != MT_OK) return false;
    s->end = start + t;
    return mt_set(&s->values, mt_retain(last)) == MT_OK;
}

/* ---- 8bit ---- */

/* sqrt(max x^2) over each vector: its largest magnitude [b,k,t,1] */
static mt_tensor *magnitudes(mt_tensor *x)
{
    mt_tensor *m = mt_mul(x, x);
    mt_set(&m, mt_max(m, 1, (const int[]){-1}, true));
    mt_set(&m, mt_sqrt(m));
    return m;
}

static bool write_codes(const mti_kv_side *s, int64_t at, mt_tensor *x)
{
    int64_t t = mt_shape(x)[2];
    MT_AUTO mt_tensor *wide = mt_cast(x, MT_F32);
    MT_AUTO mt_tensor *scale = wide ? magnitudes(wide) : NULL;
    mt_set(&scale, mt_affine(scale, 1.0 / 127, 1e-30)); /* never 0 */
    mt_set(&wide, mt_div(wide, scale));
    mt_set(&wide, mt_affine(wide, 1, 128.5)); /* the cast to u8 truncates: 1 to 255 */
    MT_AUTO mt_tensor *codes_at = wide ? mt_slice(s->values, 2, at, t) : NULL;
    MT_AUTO mt_tensor *scales_at = codes_at ? mt_slice(s->scales, 2, at, t) : NULL;
    return scales_at && mt_copy(codes_at, wide) == MT_OK && mt_copy(scales_at, scale) == MT_OK;
}

static bool read_codes(const mti_kv_side *s, mt_dtype dtype, int64_t n, mt_tensor **x)
{
    if (mt_set(x, mt_slice(s->values, 2, 0, n)) != MT_OK) return false;
    MT_AUTO mt_tensor *scale = mt_slice(s->scales, 2, 0, n);
    if (!scale || mt_set(x, mt_cast(*x, MT_F32)) != MT_OK) return false;
    mt_set(x, mt_affine(*x, 1, -128));
    mt_set(x, mt_mul(*x, scale));
    return mt_set(x, mt_cast(*x, dtype)) == MT_OK;
}

/* ---- preallocated, and in 8 bits: position p is in slot p modulo the number of slots ---- */

static bool write(const mti_kv_side *s, int64_t at, mt_tensor *x)
{
    if (s->scales) return write_codes(s, at, x);
    MT_AUTO mt_tensor *place = mt_slice(s->values, 2, at, mt_shape(x)[2]);
    return place && mt_copy(place, x) == MT_OK;
}

/* *x = the first n positions of s */
static bool read(const mti_kv_side *s, mt_dtype dtype, int64_t n, mt_tensor **x)
{
    return s->scales ? read_codes(s, dtype, n, x)
                     : mt_set(x, mt_slice(s->values, 2, 0, n)) == MT_OK;
}

/* Copies positions first, ..., first + n - 1 out of their slots to line's places from `at` on, or
 * into the slots. */
static bool move_slots(mt_tensor *ring, int64_t first, int64_t n, mt_tensor *line, int64_t at,
                       bool into)
{
    const int64_t slots = mt_shape(ring)[2];
    for (int64_t end = at + n, run; at < end; at += run, first += run) {
        run = least(end - at, slots - first % slots);
        MT_AUTO mt_tensor *slot = mt_slice(ring, 2, first % slots, run);
        MT_AUTO mt_tensor *place = slot ? mt_slice(line, 2, at, run) : NULL;
        if (!place || mt_copy(into ? slot : place, into ? place : slot) != MT_OK) return false;
    }
    return true;
}

/* [b,k,n,h], as ring except for its n; NULL in, NULL out */
static mt_tensor *line_of(mt_tensor *ring, int64_t n)
{
    if (!ring) return NULL;
    const int64_t *shape = mt_shape(ring);
    return mt_empty(mt_device_of(ring), mt_dtype_of(ring),
                    MT_SHAPE(shape[0], shape[1], n, shape[3]));
}

/* A prompt that runs over the slots: all that it sees is put in a row first. */
static bool append_beyond(const mti_kv_layer *layer, mti_kv_side *s, mt_tensor **x)
{
    const int64_t start = *layer->length, t = mt_shape(*x)[2], slots = layer->slots;
    const int64_t before = least(start, slots - 1), all = before + t, kept = least(all, slots);
    mti_kv_side line = {.values = before || s->scales ? line_of(s->values, all) : mt_retain(*x),
                        .scales = line_of(s->scales, all)};
    mt_tensor *const rings[] = {s->values, s->scales}, *const lines[] = {line.values, line.scales};
    bool ok = line.values && (line.scales || !s->scales);
    for (int i = 0; ok && i < 2; i++)
        ok = !rings[i] || move_slots(rings[i], start - before, before, lines[i], 0, false);
    ok = ok && (line.values == *x || write(&line, before, *x));
    for (int i = 0; ok && i < 2; i++)
        ok = !rings[i] || move_slots(rings[i], start + t - kept, kept, lines[i], all - kept, true);
    ok = ok && read(&line, layer->dtype, all, x);
    mt_release(line.values), mt_release(line.scales);
    return ok;
}

/* One query sees all slots, in whatever order. */
static bool append_to_slots(const mti_kv_layer *layer, mti_kv_side *s, mt_tensor **x)
{
    const int64_t start = *layer->length, t = mt_shape(*x)[2], slots = layer->slots;
    if (t > 1 && start + t > slots) return append_beyond(layer, s, x);
    return write(s, start % slots, *x) && read(s, layer->dtype, least(start + t, slots), x);
}

/* ---- paged ---- */

/* Copies positions first, ..., first + n - 1 of all [b,k,..,h], which lie from `at` on there, into
 * the blocks, which are made as needed; or out of them. */
static bool move_blocks(const mti_kv_layer *layer, mti_kv_side *s, mt_tensor *all, int64_t at,
                        int64_t first, int64_t n, bool into)
{
    const int64_t *shape = mt_shape(all);
    const bool moves = mt_device_has_data(mt_device_of(all));
    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t done = 0, run; done < n; done += run) {
            int64_t from = (first + done) % MT_KV_BLOCK;
            run = least(MT_KV_BLOCK - from, n - done);
            mt_tensor **block = &s->blocks[i * layer->most + (first + done) / MT_KV_BLOCK];
            if (!*block) {
                *block = mt_empty(mt_device_of(all), layer->dtype,
                                  MT_SHAPE(1, shape[1], MT_KV_BLOCK, shape[3]));
                if (!*block || mt_set_category(*block, MT_CACHE) != MT_OK) return false;
            }
            if (!moves) continue;
            MT_AUTO mt_tensor *row = mt_slice(all, 0, i, 1);
            MT_AUTO mt_tensor *piece = row ? mt_slice(row, 2, at + done, run) : NULL;
            MT_AUTO mt_tensor *place = piece ? mt_slice(*block, 2, from, run) : NULL;
            if (!place || mt_copy(into ? place : piece, into ? piece : place) != MT_OK)
                return false;
        }
    return true;
}

static bool append_paged(const mti_kv_layer *layer, mti_kv_side *s, mt_tensor **x)
{
    const int64_t *shape = mt_shape(*x), start = *layer->length, t = shape[2];
    const int64_t before = least(start, layer->slots - 1), kept = least(t, layer->slots);
    if (!move_blocks(layer, s, *x, t - kept, start + t - kept, kept, true)) return false;
    mt_tensor *all = mt_empty(mt_device_of(*x), layer->dtype,
                              MT_SHAPE(shape[0], shape[1], before + t, shape[3]));
    const mti_kv_side line = {.values = all};
    bool ok =
        all && move_blocks(layer, s, all, 0, start - before, kept < t ? before : before + t, false);
    if (ok && (kept == t || write(&line, before, *x))) return mt_set(x, all) == MT_OK;
    mt_release(all);
    return false;
}

void mti_kv_trim(const mti_kv_layer *layer, int64_t length)
{
    mt_tensor **const tables[] = {layer->k.blocks, layer->v.blocks};
    for (int j = 0; j < 2; j++)
        for (int64_t i = 0; tables[j] && i < layer->batch * layer->most; i++) {
            const int64_t first = i % layer->most * MT_KV_BLOCK;
            if (first < length && first + MT_KV_BLOCK > length - layer->slots) continue;
            mt_release(tables[j][i]);
            tables[j][i] = NULL;
        }
}

static bool append(const mti_kv_layer *layer, mti_kv_side *s, mt_tensor **x)
{
    switch (layer->form) {
    case MT_KV_GROWING: return append_growing(layer, s, x);
    case MT_KV_PAGED: return append_paged(layer, s, x);
    default: return append_to_slots(layer, s, x);
    }
}

bool mti_kv_append(mti_kv_layer *layer, mt_tensor **k, mt_tensor **v)
{
    const int64_t end = *layer->length + mt_shape(*k)[2];
    if (!append(layer, &layer->k, k) || !append(layer, &layer->v, v)) return false;
    if (end > layer->slots) mti_kv_trim(layer, end);
    return true;
}
