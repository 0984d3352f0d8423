/* autocast.c: the dtype in which each op runs, and the 16-bit copies of f32 leaves. */
#include "memtape/autocast.h"
#include "ops/ops.h"

#define MAX_REGIONS 16

/* ---- the cache: (leaf, dtype) -> its copy, by open addressing ---- */

typedef struct copy {
    mt_tensor *leaf, *low; /* retained; leaf NULL: a free place */
    uint64_t version;      /* of leaf when it was cast */
} copy;

static _Thread_local struct {
    size_t n, n_places; /* n_places: a power of 2, or 0 */
    copy *at;
} cache;

/* The place of (leaf, dtype), or the free one where it belongs. */
static copy *place_of(const mt_tensor *leaf, mt_dtype dtype)
{
    /* By what does not depend on the machine, so that copies go in the same order everywhere. */
    size_t i = (size_t)leaf->storage->block->serial * 0x9E3779B1u;
    for (;; i++) {
        copy *c = &cache.at[i & (cache.n_places - 1)];
        if (!c->leaf || (c->leaf == leaf && c->low->view.dtype == dtype)) return c;
    }
}

/* At least half of the places are free afterwards, one more taken. */
static bool make_room(void)
{
    if (2 * (cache.n + 1) <= cache.n_places) return true;
    size_t n_old = cache.n_places, n_new = n_old ? 2 * n_old : 64;
    copy *old = cache.at, *places = mti_calloc(n_new, sizeof *places);
    if (!places) return false;
    cache.at = places;
    cache.n_places = n_new;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].leaf) *place_of(old[i].leaf, old[i].low->view.dtype) = old[i];
    mti_free(old);
    return true;
}

static void clear_cache(void)
{
    copy *at = cache.at;
    size_t n = cache.n_places;
    cache.at = NULL;
    cache.n = cache.n_places = 0;
    for (size_t i = 0; i < n; i++) {
        mt_release(at[i].low);
        mt_release(at[i].leaf);
    }
    mti_free(at);
}

/* As torch.autocast: an f32 leaf that requires grad, not a view of a part. */
static bool is_cached(const mt_tensor *t)
{
    return t->requires_grad && !t->grad_fn && t->view.dtype == MT_F32 &&
           (size_t)mti_view_count(&t->view) * sizeof(float) == t->storage->bytes;
}

static mt_tensor *cached_cast(mt_tensor *leaf, mt_dtype dtype)
{
    if (!make_room()) return NULL;
    copy *c = place_of(leaf, dtype);
    uint64_t version = atomic_load(&leaf->storage->version);
    /* A copy made without recording has no gradient to pass on. */
    bool record = mt_grad_mode() && !mti_modes_now()->in_hook;
    if (c->leaf && c->version == version && c->low->requires_grad == record)
        return mt_retain(c->low);
    mt_tensor *low = mt_cast(leaf, dtype);
    if (!low) return NULL;
    mti_storage_settle(low->storage, MT_CACHE);
    if (c->leaf)
        mt_release(c->low);
    else
        cache.n++, c->leaf = mt_retain(leaf);
    c->low = mt_retain(low);
    c->version = version;
    return low;
}

/* ---- what an op runs in ---- */

static _Thread_local struct {
    int depth;
    struct {
        mt_dtype dtype;
        mti_rewrite_fn *outer;
    } at[MAX_REGIONS];
} regions;

/* The dtype for all floating inputs; MT_DTYPE_COUNT: leave them as they are. */
static mt_dtype common_dtype(const mti_op *op, int n_in, mt_tensor *const *in)
{
    unsigned seen = 0;
    for (int i = 0; i < n_in; i++)
        if (in[i] && mt_dtype_is_float(in[i]->view.dtype)) seen |= 1u << in[i]->view.dtype;
    if (op->flags & (MTI_LOW | MTI_FULL)) {
        if (seen >> MT_F64 & 1) return MT_DTYPE_COUNT;
        return op->flags & MTI_LOW ? regions.at[regions.depth - 1].dtype : MT_F32;
    }
    if (!(seen & (seen - 1))) return MT_DTYPE_COUNT;
    return seen >> MT_F64 & 1 ? MT_F64 : MT_F32; /* bf16 with f16: neither holds the other */
}

static bool cast_inputs(const mti_op *op, int n_in, mt_tensor *const *in, mt_tensor **out)
{
    mt_dtype dtype = common_dtype(op, n_in, in);
    for (int i = 0; i < n_in; i++) {
        mt_tensor *t = in[i];
        bool cast = t && dtype != MT_DTYPE_COUNT && mt_dtype_is_float(t->view.dtype) &&
                    t->view.dtype != dtype;
        out[i] = !cast                             ? mt_retain(t)
                 : dtype != MT_F32 && is_cached(t) ? cached_cast(t, dtype)
                                                   : mt_cast(t, dtype);
        if (out[i] || !t) continue;
        while (i--) mt_release(out[i]);
        return false;
    }
    return true;
}

/* ---- regions ---- */

mt_status mt_autocast_begin(mt_dtype dtype)
{
    if (dtype != MT_BF16 && dtype != MT_F16 && dtype != MT_F32)
        return mti_fail(MT_ERR_ARGUMENT,
                        "autocast_begin: dtype %s; need bf16, f16, or f32 to turn it off",
                        (unsigned)dtype < MT_DTYPE_COUNT ? mt_dtype_name(dtype) : "unknown");
    if (regions.depth == MAX_REGIONS)
        return mti_fail(MT_ERR_STATE, "autocast_begin: %d regions are open; at most %d nest",
                        regions.depth, MAX_REGIONS);
    mti_modes *modes = mti_modes_now();
    regions.at[regions.depth].dtype = dtype;
    regions.at[regions.depth++].outer = modes->rewrite;
    modes->rewrite = dtype == MT_F32 ? NULL : cast_inputs;
    return MT_OK;
}

mt_status mt_autocast_end(void)
{
    if (!regions.depth) return mti_fail(MT_ERR_STATE, "autocast_end: no region is open");
    mti_modes_now()->rewrite = regions.at[--regions.depth].outer;
    if (!regions.depth) clear_cache();
    return MT_OK;
}

bool mt_autocast_active(mt_dtype *dtype)
{
    if (mti_modes_now()->rewrite != cast_inputs) return false;
    if (dtype) *dtype = regions.at[regions.depth - 1].dtype;
    return true;
}

size_t mt_autocast_cached(size_t *n_bytes)
{
    if (n_bytes) *n_bytes = 0;
    for (size_t i = 0; n_bytes && i < cache.n_places; i++)
        if (cache.at[i].leaf) *n_bytes += cache.at[i].low->storage->bytes;
    return cache.n;
}
