/* kv_layer.h: one layer of a KV cache, in four forms.
 *
 * Keys and values alike, [b,k,t,h]:
 *   preallocated  the first `length` of t positions are filled in place; attention sees a view.
 *   growing       exactly `length` positions; a step copies all of them into a new tensor.
 *   8bit          as preallocated, codes u8 [b,k,t,h] with a scale f32 [b,k,t,1] for each vector; a
 *                 step converts one layer at a time. A code is the value / scale + 128, rounded.
 *   paged         blocks [1,k,MT_KV_BLOCK,h], made when they are first written, and a table of them
 * for each sequence; a step copies them side by side for attention.
 *
 * A layer with a window holds its last `slots` positions, in the first and the third form as a
 * ring: what attention sees of several new positions that run over the end is put in a row. */
#ifndef MTI_KV_LAYER_H
#define MTI_KV_LAYER_H

#include "base/base.h"
#include "memtape/models/generate.h"

/* Keys, or values. */
typedef struct mti_kv_side {
    mt_tensor *values;  /* or codes */
    mt_tensor *scales;  /* 8bit */
    int64_t end;        /* growing: the position after the last */
    mt_tensor **blocks; /* paged: [batch, most], row-major; NULL: not made */
} mti_kv_side;

typedef struct mti_kv_layer {
    mt_kv_form form;
    mt_dtype dtype;        /* of the model */
    const int64_t *length; /* positions held so far; points into the cache */
    int64_t slots;         /* positions it holds at most */
    int64_t batch, most;   /* paged: sequences; blocks of one at most */
    mti_kv_side k, v;
} mti_kv_layer;

/* Appends *k and *v [b,k,t,h] and puts all that they see, [b,k,..,h], in their place: what is
 * cached and, of a layer with a window, at most slots - 1 positions before them. */
bool mti_kv_append(mti_kv_layer *layer, mt_tensor **k, mt_tensor **v);

/* Makes a cache on a device without data what reading so many positions leaves; no fewer than it
 * holds. */
bool mti_kv_cache_fill(mt_kv_cache *cache, int64_t length);

/* Lets go of the blocks that hold none of the last `slots` of the first `length` positions. */
void mti_kv_trim(const mti_kv_layer *layer, int64_t length);

#endif
