/* device.c: a device: a backend's context, a caching allocator, a generator and counters. */
#include <string.h>
#include "tensor/tensor.h"

static void drop_workspaces(mt_device *d)
{
    for (int i = 0; i < 2; i++) {
        if (d->workspace[i]) mti_pool_free(d->pool, d->workspace[i], d->workspace[i]->requested);
        d->workspace[i] = NULL;
    }
}

mt_device *mt_device_open(const char *kind)
{
    const mti_backend *backend = mti_backend_find(kind);
    if (!backend) return NULL;
    mt_device *d = mti_calloc(1, sizeof *d);
    if (!d) return NULL;
    atomic_init(&d->refs, 1);
    pthread_mutex_init(&d->lock, NULL);
    atomic_flag_clear(&d->objects.busy);
    d->backend = backend;
    d->ctx = backend->open();
    d->pool = d->ctx ? mti_pool_new(backend, d->ctx) : NULL;
    d->host_memory = (mti_backend){.kind = "host",
                                   .traits = MTI_HOST_MEMORY,
                                   .alloc = backend->host_alloc,
                                   .free = backend->host_free};
    if (d->pool && backend->host_alloc) d->host = mti_pool_new(&d->host_memory, d->ctx);
    if (d->pool && (d->host || !backend->host_alloc)) return d;
    mt_device_release(d);
    return NULL;
}

mt_device *mt_device_retain(mt_device *d)
{
    if (d) atomic_fetch_add_explicit(&d->refs, 1, memory_order_relaxed);
    return d;
}

void mt_device_release(mt_device *d)
{
    if (!d || atomic_fetch_sub_explicit(&d->refs, 1, memory_order_acq_rel) != 1) return;
    if (d->host) mti_pool_free_all(d->host);
    if (d->pool) {
        drop_workspaces(d);
        mti_pool_free_all(d->pool);
    }
    if (d->ctx) d->backend->close(d->ctx);
    mti_objects_empty(d);
    pthread_mutex_destroy(&d->lock);
    mti_free(d);
}

const char *mt_device_kind(const mt_device *d) { return d ? d->backend->kind : ""; }

bool mt_device_has_data(const mt_device *d) { return d && !(d->backend->traits & MTI_NO_DATA); }

size_t mt_device_room(const mt_device *d)
{
    return d && d->backend->room ? d->backend->room(d->ctx) : SIZE_MAX;
}

mt_status mt_device_set_threads(mt_device *d, int n)
{
    if (!mti_given(d, "set_threads", "the device")) return mt_last_status();
    if (n < 1) return mti_fail(MT_ERR_ARGUMENT, "set_threads: got %d; need 1 or more", n);
    return d->backend->set_threads(d->ctx, n) ? MT_OK : mt_last_status();
}

int mt_device_threads(const mt_device *d) { return d ? d->backend->threads(d->ctx) : 0; }

mt_status mt_device_sync(mt_device *d)
{
    if (!mti_given(d, "sync", "the device")) return mt_last_status();
    return d->backend->sync(d->ctx) ? MT_OK : mt_last_status();
}

/* ---- scratch memory of devices without data ---- */

static bool check_no_data(const char *caller, const mt_device *d)
{
    if (!mti_given(d, caller, "the device")) return false;
    return !mt_device_has_data(d) ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "%s: memory of %s kernels is counted anyway; need a device without data "
                         "(meta)",
                         caller, d->backend->kind);
}

mt_status mt_device_count_scratch_of(mt_device *d, const char *kind)
{
    if (!mti_given(d, "count_scratch_of", "the device")) return mt_last_status();
    if (!kind) return mti_fail(MT_ERR_ARGUMENT, "count_scratch_of: the kind is NULL");
    if (!check_no_data("count_scratch_of", d)) return mt_last_status();
    bool none = !strcmp(kind, "none");
    const mti_backend *counted = none ? NULL : mti_backend_find(kind);
    return (none || counted) && mti_meta_count_scratch_of(d->ctx, counted) ? MT_OK
                                                                           : mt_last_status();
}

bool mti_counts_scratch(const mt_device *d)
{
    return !mt_device_has_data(d) && mti_meta_counts_scratch(d->ctx);
}

mt_status mt_device_set_gemm_workspace(mt_device *d, size_t n_bytes)
{
    if (!check_no_data("set_gemm_workspace", d)) return mt_last_status();
    pthread_mutex_lock(&d->lock);
    drop_workspaces(d);
    d->gemm_workspace = n_bytes;
    pthread_mutex_unlock(&d->lock);
    return MT_OK;
}

bool mti_device_take_workspace(mt_device *d, bool backward)
{
    if (!d->gemm_workspace) return true;
    pthread_mutex_lock(&d->lock);
    mti_block **block = &d->workspace[backward];
    size_t n_bytes = d->gemm_workspace; /* 0 if another thread has just set it so */
    if (n_bytes && !*block) *block = mti_pool_alloc(d->pool, n_bytes, MT_WORKSPACE);
    bool ok = *block || !n_bytes;
    pthread_mutex_unlock(&d->lock);
    return ok;
}

/* ---- generator ---- */

void mt_seed(mt_device *d, uint64_t seed) { mt_rng_set(d, seed, 0); }

void mt_rng_get(const mt_device *device, uint64_t *seed, uint64_t *offset)
{
    if (!seed || !offset) {
        mti_fail(MT_ERR_ARGUMENT, "rng_get: the %s is NULL", seed ? "offset" : "seed");
        return;
    }
    *seed = *offset = 0;
    if (!mti_given(device, "rng_get", "the device")) return;
    mt_device *d = (mt_device *)device; /* the lock is not part of the value */
    pthread_mutex_lock(&d->lock);
    *seed = d->seed, *offset = d->offset;
    pthread_mutex_unlock(&d->lock);
}

void mt_rng_set(mt_device *d, uint64_t seed, uint64_t offset)
{
    if (!mti_given(d, "rng_set", "the device")) return;
    pthread_mutex_lock(&d->lock);
    d->seed = seed, d->offset = offset;
    pthread_mutex_unlock(&d->lock);
}

void mti_rng_take(mt_device *d, uint64_t n_draws, uint64_t *seed, uint64_t *offset)
{
    pthread_mutex_lock(&d->lock);
    *seed = d->seed, *offset = d->offset;
    d->offset += (n_draws + 3) / 4;
    pthread_mutex_unlock(&d->lock);
}

/* ---- counters ---- */

mt_flops mt_flops_get(const mt_device *d)
{
    if (!mti_given(d, "flops_get", "the device")) return (mt_flops){0};
    mt_flops f = {atomic_load(&d->flops_forward), atomic_load(&d->flops_backward),
                  atomic_load(&d->flops_recompute)};
    return f;
}

void mt_flops_reset(mt_device *d)
{
    if (!mti_given(d, "flops_reset", "the device")) return;
    atomic_store(&d->flops_forward, 0);
    atomic_store(&d->flops_backward, 0);
    atomic_store(&d->flops_recompute, 0);
}

mt_traffic mt_traffic_get(const mt_device *d)
{
    if (!mti_given(d, "traffic_get", "the device")) return (mt_traffic){0};
    return (mt_traffic){atomic_load(&d->moved_products), atomic_load(&d->moved_others)};
}

/* ---- memory.h: statistics and limits of the pool ---- */

void mt_mem_get_stats(const mt_device *d, mt_mem_stats *out)
{
    if (!out) {
        mti_fail(MT_ERR_ARGUMENT, "mem_get_stats: the result is NULL");
        return;
    }
    *out = (mt_mem_stats){0};
    if (mti_given(d, "mem_get_stats", "the device")) mti_pool_get_stats(d->pool, out);
}

void mt_mem_reset_peak(mt_device *d)
{
    if (mti_given(d, "mem_reset_peak", "the device")) mti_pool_reset_peak(d->pool);
}

void mt_mem_empty_cache(mt_device *d)
{
    if (!mti_given(d, "mem_empty_cache", "the device")) return;
    mti_pool_empty_cache(d->pool);
    if (d->host) mti_pool_empty_cache(d->host);
    mti_objects_empty(d);
}

mt_status mt_mem_set_expandable(mt_device *d, const mt_expandable *options)
{
    if (!mti_given(d, "mem_set_expandable", "the device")) return mt_last_status();
    return mti_pool_set_expandable(d->pool, options) ? MT_OK : mt_last_status();
}

void mt_mem_set_capacity(mt_device *d, size_t n)
{
    if (mti_given(d, "mem_set_capacity", "the device")) mti_pool_set_capacity(d->pool, n);
}

mt_status mt_mem_stream_begin(mt_stream_scope *scope, mt_device *d, const char *name)
{
    if (!scope) return mti_fail(MT_ERR_ARGUMENT, "mem_stream_begin: the scope is NULL");
    *scope = (mt_stream_scope){0};
    if (!mti_given(d, "mem_stream_begin", "the device")) return mt_last_status();
    if (!name || !*name)
        return mti_fail(MT_ERR_ARGUMENT, "mem_stream_begin: the name is %s",
                        name ? "empty" : "NULL");
    return mti_pool_stream_begin(d->pool, scope, name) ? MT_OK : mt_last_status();
}

void mt_mem_stream_end(mt_stream_scope *scope)
{
    if (scope)
        mti_stream_end(scope);
    else
        mti_fail(MT_ERR_ARGUMENT, "mem_stream_end: the scope is NULL");
}

int mt_mem_get_streams(const mt_device *d, mt_stream_stats out[MT_MAX_STREAMS])
{
    if (!mti_given(d, "mem_get_streams", "the device")) return 0;
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "mem_get_streams: the result is NULL"), 0;
    return mti_pool_get_streams(d->pool, out);
}

int mt_mem_add_observer(mt_device *d, mt_mem_event_fn *fn, void *user)
{
    if (!mti_given(d, "mem_add_observer", "the device")) return 0;
    if (!fn) return mti_fail(MT_ERR_ARGUMENT, "mem_add_observer: the function is NULL"), 0;
    return mti_pool_add_observer(d->pool, fn, user);
}

void mt_mem_remove_observer(mt_device *d, int id)
{
    if (mti_given(d, "mem_remove_observer", "the device")) mti_pool_remove_observer(d->pool, id);
}

void mt_mem_region_begin(mt_mem_region *r, mt_device *d)
{
    if (!r) {
        mti_fail(MT_ERR_ARGUMENT, "mem_region_begin: the region is NULL");
        return;
    }
    memset(r, 0, sizeof *r);
    r->device = d;
    if (!mti_given(d, "mem_region_begin", "the device")) return;
    mti_pool_get_stats(d->pool, &r->before);
    mti_pool_reset_peak(d->pool);
}

void mt_mem_region_end(mt_mem_region *r)
{
    if (!r) {
        mti_fail(MT_ERR_ARGUMENT, "mem_region_end: the region is NULL");
        return;
    }
    if (!mti_given(r->device, "mem_region_end", "the region's device")) return;
    mt_mem_stats now;
    mti_pool_get_stats(r->device->pool, &now);
    const mt_mem_stats *before = &r->before;
    r->delta.allocated = now.allocated.total_in - before->allocated.total_in;
    r->delta.freed = now.allocated.total_out - before->allocated.total_out;
    r->delta.current = (int64_t)now.allocated.current - (int64_t)before->allocated.current;
    r->delta.peak = (int64_t)now.allocated.peak - (int64_t)before->allocated.current;
    r->delta.requested = (int64_t)now.requested.current - (int64_t)before->requested.current;
    r->delta.reserved = (int64_t)now.reserved.current - (int64_t)before->reserved.current;
    mti_pool_restore_outer_peak(r->device->pool, before);
}
