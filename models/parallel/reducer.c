/* reducer.c: gradients that are summed over the ranks with other data or positions while backward
 * goes on, as PyTorch's DistributedDataParallel does (torch/csrc/distributed/c10d/reducer.cpp):
 * each as soon as the step's last backward has completed it. All ranks run the same graph, so
 * gradients are complete in the same order on all. A gradient is summed in its own memory, unless
 * buckets are asked for. */
#include "memtape/autograd.h"
#include "collectives/collectives.h"
#include "parallel/parallel.h"

#define FIRST_BYTES ((size_t)1 << 20) /* of the first bucket, once there are several */

typedef struct entry {
    mti_reducer *all;
    const char *name; /* borrowed, ... */
    mt_tensor *param; /* ... and so is the parameter */
    int hook;         /* 0: none, its gradient is complete at the end of backward */
    bool has_begun;   /* since the last step */
    size_t bucket;    /* NO_BUCKET: none yet */
    int64_t offset;   /* there, in elements */
} entry;
#define NO_BUCKET SIZE_MAX

typedef struct bucket {
    mt_tensor *flat;
    mt_dtype dtype;
    int64_t elements;
    size_t n, n_ready; /* gradients; those that are in it */
} bucket;

struct mti_reducer {
    mt_device *device; /* borrowed */
    mti_collective_queue *queue;
    mti_collective how;
    bool is_last; /* whether the backward that runs completes gradients */
    mt_buckets form;
    size_t bucket_bytes;
    MTI_VEC(bucket) buckets;
    size_t next;          /* bucket to sum */
    bool is_rebuilt;      /* in the order in which gradients came, ... */
    size_t n_came, *came; /* ... [n] which are their entries */
    mti_hashmap places;   /* of parameters, by their addresses: their entries */
    size_t n;
    entry entries[];
};

/* ---- buckets ---- */

static void drop_buckets(mti_reducer *r)
{
    for (size_t i = 0; i < r->buckets.n; i++) mt_release(r->buckets.at[i].flat);
    r->buckets.n = 0;
}

/* What is in no bucket yet, of the entries from *from to n in that order and of a type; before
 * *from all are in one. */
static bool close_bucket(mti_reducer *r, const size_t *order, size_t *from, size_t n,
                         mt_dtype dtype)
{
    bucket b = {.dtype = dtype};
    while (*from < n && r->entries[order ? order[*from] : *from].bucket != NO_BUCKET) ++*from;
    for (size_t i = *from; i < n; i++) {
        entry *e = &r->entries[order ? order[i] : i];
        if (e->bucket != NO_BUCKET || mt_grad_dtype(e->param) != dtype) continue;
        e->bucket = r->buckets.n;
        e->offset = b.elements;
        b.elements += mt_numel(e->param);
        b.n++;
    }
    return !b.n || MTI_PUSH(&r->buckets, b);
}

/* Those of each type in a bucket until it has its bytes (compute_bucket_assignment_by_size). first,
 * other: bytes of the first of a type, and of the others. */
static bool assign(mti_reducer *r, const size_t *order, size_t first, size_t other)
{
    size_t bytes[MT_DTYPE_COUNT] = {0}, from = 0;
    bool has_first[MT_DTYPE_COUNT] = {false}, ok = true;
    for (size_t i = 0; i < r->n; i++) r->entries[i].bucket = NO_BUCKET;
    for (size_t i = 0; ok && i < r->n; i++) {
        const mt_tensor *t = r->entries[order ? order[i] : i].param;
        const mt_dtype dtype = mt_grad_dtype(t);
        bytes[dtype] += (size_t)mt_numel(t) * mt_dtype_size(dtype);
        if (bytes[dtype] < (has_first[dtype] ? other : first)) continue;
        ok = close_bucket(r, order, &from, i + 1, dtype);
        bytes[dtype] = 0;
        has_first[dtype] = true;
    }
    for (int dtype = 0; ok && dtype < MT_DTYPE_COUNT; dtype++)
        ok = close_bucket(r, order, &from, r->n, (mt_dtype)dtype);
    return ok;
}

static bool make_buckets(mti_reducer *r, const size_t *order, size_t first, size_t other)
{
    drop_buckets(r);
    bool ok = assign(r, order, first, other);
    for (size_t i = 0; ok && i < r->buckets.n; i++) {
        bucket *b = &r->buckets.at[i];
        b->flat = mt_empty(r->device, b->dtype, MT_SHAPE(b->elements));
        ok = b->flat &&
             mt_set_category(b->flat,
                             r->form == MT_BUCKETS_VIEWS ? MT_GRADIENT : MT_COMMUNICATION) == MT_OK;
    }
    return ok;
}

/* Where the entry's gradient lies in its bucket. */
static mti_view place_of(const mti_reducer *r, const entry *e)
{
    const bucket *b = &r->buckets.at[e->bucket];
    mti_view v = e->param->view;
    char *data = b->flat->view.data;
    size_t n_bytes;
    v.dtype = b->dtype;
    mti_view_pack(&v, &n_bytes);
    v.data = data ? data + (size_t)e->offset * mt_dtype_size(b->dtype) : NULL;
    return v;
}

/* Buckets are summed in their order, which is the same on all ranks. */
static bool sum_those_that_are_full(mti_reducer *r)
{
    bool ok = true;
    for (; ok && r->next < r->buckets.n; r->next++) {
        const bucket *b = &r->buckets.at[r->next];
        if (b->n_ready < b->n) break;
        ok = mti_collective_begin(r->queue, b->flat, r->how);
    }
    return ok;
}

/* A gradient that backward has not reached counts as zeros. */
static bool put(mti_reducer *r, entry *e)
{
    const mti_backend *k = r->device->backend;
    mti_view place = place_of(r, e);
    mt_tensor *grad = mt_grad(e->param);
    bool ok =
        grad ? k->copy(r->device->ctx, &grad->view, &place) : k->fill(r->device->ctx, &place, 0);
    if (ok && grad && r->form == MT_BUCKETS_VIEWS) {
        MT_AUTO mt_tensor *view = mti_tensor_view(r->buckets.at[e->bucket].flat, &place);
        ok = view && mt_set_grad(e->param, view) == MT_OK;
    }
    e->has_begun = true;
    if (!r->is_rebuilt) r->came[r->n_came++] = (size_t)(e - r->entries);
    r->buckets.at[e->bucket].n_ready++;
    return ok && sum_those_that_are_full(r);
}

/* Those that no hook has put there. */
static bool put_the_others(mti_reducer *r)
{
    bool ok = true;
    for (size_t i = 0; ok && i < r->n; i++)
        if (!r->entries[i].has_begun) ok = put(r, &r->entries[i]);
    return ok;
}

static bool copy_back(mti_reducer *r)
{
    bool ok = true;
    for (size_t i = 0; ok && i < r->n; i++) {
        mt_tensor *grad = mt_grad(r->entries[i].param);
        mti_view place = place_of(r, &r->entries[i]);
        ok = !grad || r->device->backend->copy(r->device->ctx, &place, &grad->view);
    }
    return ok;
}

/* Before the second step's forward: the order is known (rebuild_buckets). */
static bool start_buckets(mti_reducer *r)
{
    bool ok = true;
    if (!r->is_rebuilt && r->n_came == r->n) {
        ok = make_buckets(r, r->came, FIRST_BYTES < r->bucket_bytes ? FIRST_BYTES : r->bucket_bytes,
                          r->bucket_bytes);
        r->is_rebuilt = true;
    }
    for (size_t i = 0; i < r->buckets.n; i++) r->buckets.at[i].n_ready = 0;
    r->next = r->n_came = 0;
    return ok;
}

/* ---- making ---- */

static mt_status on_gradient(void *user, mt_tensor *leaf)
{
    entry *e = user;
    mti_reducer *r = e->all;
    if (!r->is_last) return MT_OK;
    if (r->form) return put(r, e) ? MT_OK : mt_last_status();
    if (!mti_collective_begin(r->queue, mt_grad(leaf), r->how)) return mt_last_status();
    e->has_begun = true;
    return MT_OK;
}

/* A tied weight has the gradient of both ends only when backward is done. */
static bool add_entries(mti_reducer *r, const mt_named_tensor *list, size_t n, bool tied,
                        const mt_parallel *parallel)
{
    for (size_t i = 0; i < n; i++) {
        const bool late = tied && mti_is_vocabulary(list[i].name);
        if (!mt_requires_grad(list[i].tensor) || (late && !r->form) ||
            mti_is_divided(parallel, list[i].name))
            continue;
        if (!mti_hashmap_add(&r->places, (uintptr_t)list[i].tensor, r->n)) return false;
        entry *e = &r->entries[r->n++];
        *e = (entry){.all = r, .name = list[i].name, .param = list[i].tensor};
        if (!late && !(e->hook = mt_add_leaf_hook(e->param, on_gradient, e))) return false;
    }
    return true;
}

mti_reducer *mti_reducer_new(mt_device *device, const mt_group *group, bool scatter,
                             mt_module *model, bool tied, const mt_parallel *parallel)
{
    const mt_named_tensor *list;
    size_t n;
    if (mt_module_params(model, &list, &n) != MT_OK) return NULL;
    mti_reducer *r = mti_calloc(1, sizeof *r + n * sizeof *r->entries);
    if (!r) return NULL;
    r->device = device;
    r->how = scatter ? MTI_REDUCE_SCATTER : MTI_ALL_REDUCE;
    r->form = parallel->buckets;
    r->bucket_bytes = parallel->bucket_bytes ? parallel->bucket_bytes : MTI_BUCKET_BYTES;
    r->queue = mti_collective_queue_new(device, group);
    r->came = r->form ? mti_calloc(n + 1, sizeof *r->came) : NULL;
    if (r->queue && (!r->form || r->came) && add_entries(r, list, n, tied, parallel) &&
        (!r->form || make_buckets(r, NULL, SIZE_MAX, SIZE_MAX)))
        return r;
    mti_reducer_free(r);
    return NULL;
}

void mti_reducer_free(mti_reducer *r)
{
    if (!r) return;
    if (r->queue) mti_collective_end(r->queue);
    mti_collective_queue_free(r->queue);
    for (size_t i = 0; i < r->n; i++)
        if (r->entries[i].hook) mt_remove_hook(r->entries[i].param, r->entries[i].hook);
    drop_buckets(r);
    mti_free(r->buckets.at);
    mti_free(r->came);
    mti_hashmap_free(&r->places);
    mti_free(r);
}

/* ---- a step ---- */

bool mti_reducer_start(mti_reducer *r)
{
    for (size_t i = 0; i < r->n; i++) {
        entry *e = &r->entries[i];
        if (e->has_begun && mt_grad(e->param))
            return mti_fail_bool(MT_ERR_STATE,
                                 "stage_backward: the gradient of %s is the sum over all ranks "
                                 "already; need stage_step first, or reduce MT_REDUCE_AFTER",
                                 e->name);
        e->has_begun = false;
    }
    return !r->form || start_buckets(r);
}

void mti_reducer_set_last(mti_reducer *r, bool is_last) { r->is_last = is_last; }

bool mti_reducer_finish(mti_reducer *r, bool ok)
{
    r->is_last = false;
    if (ok && r->form) ok = put_the_others(r);
    if (!mti_collective_end(r->queue) || !ok) return false;
    for (size_t i = 0; i < r->n; i++)
        if (r->entries[i].has_begun && r->entries[i].hook && !mt_grad(r->entries[i].param) &&
            !r->form)
            return mti_fail_bool(MT_ERR_STATE,
                                 "stage_backward: the gradient of %s was dropped while the ranks "
                                 "summed it; need the step by stage_step",
                                 r->entries[i].name);
    return r->form != MT_BUCKETS_COPIED || copy_back(r);
}

bool mti_reducer_has(const mti_reducer *r, const mt_tensor *param)
{
    const size_t place = mti_hashmap_find(&r->places, (uintptr_t)param);
    return place != MTI_NO_PLACE && r->entries[place].has_begun;
}
