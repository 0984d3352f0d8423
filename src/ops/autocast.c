/* autocast.c: the dtype in which each op runs, and the 16-bit copies of f32 leaves. */
#include "memtape/autocast.h"
#include "ops/ops.h"

#define MAX_REGIONS 16

/* ---- the cache: copies in order of creation, found by the leaf's serial ---- */

typedef struct copy {
    mt_tensor *leaf, *low; /* retained */
    uint64_t version;      /* of leaf when it was cast */
} copy;

typedef struct copies {
    mti_hashmap index; /* serial of the leaf's storage -> index in list */
    MTI_VEC(copy) list;
} copies;
static _Thread_local copies cache;

static copy *find(const mt_tensor *leaf, mt_dtype dtype)
{
    uint64_t serial = leaf->storage->block->serial;
    for (size_t probe = 0, i;
         (i = mti_hashmap_next(&cache.index, serial, &probe)) != MTI_NO_PLACE;) {
        copy *c = &cache.list.at[i];
        if (c->leaf == leaf && c->low->view.dtype == dtype) return c;
    }
    return NULL;
}

static bool remember(mt_tensor *leaf, mt_tensor *low, uint64_t version)
{
    copy *c = find(leaf, low->view.dtype);
    if (c) {
        c->version = version;
        return mt_set(&c->low, mt_retain(low)) == MT_OK;
    }
    if (!MTI_RESERVE(&cache.list) ||
        !mti_hashmap_add(&cache.index, leaf->storage->block->serial, cache.list.n))
        return false;
    cache.list.at[cache.list.n++] = (copy){mt_retain(leaf), mt_retain(low), version};
    return true;
}

static void clear_cache(void)
{
    copies old = cache;
    cache = (copies){0};
    for (size_t i = 0; i < old.list.n; i++) {
        mt_release(old.list.at[i].low);
        mt_release(old.list.at[i].leaf);
    }
    mti_free(old.list.at);
    mti_hashmap_free(&old.index);
}

/* As in torch.autocast: an f32 leaf that requires grad and views its whole storage. */
static bool is_cached(const mt_tensor *t)
{
    return t->requires_grad && !t->grad_fn && t->view.dtype == MT_F32 &&
           (size_t)mti_view_count(&t->view) * sizeof(float) == t->storage->bytes;
}

static mt_tensor *cached_cast(mt_tensor *leaf, mt_dtype dtype)
{
    const copy *c = find(leaf, dtype);
    uint64_t version = atomic_load(&leaf->storage->version);
    /* A copy made without recording would pass no gradient to the leaf. */
    bool record = mt_grad_mode() && !mti_modes_now()->in_hook;
    if (c && c->version == version && c->low->requires_grad == record) return mt_retain(c->low);
    mt_tensor *low = mt_cast(leaf, dtype);
    if (!low) return NULL;
    mti_storage_settle(low->storage, MT_CACHE);
    if (!remember(leaf, low, version)) mt_set(&low, NULL);
    return low;
}

/* ---- the dtype of an op ---- */

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
    for (size_t i = 0; n_bytes && i < cache.list.n; i++)
        *n_bytes += cache.list.at[i].low->storage->bytes;
    return cache.list.n;
}
