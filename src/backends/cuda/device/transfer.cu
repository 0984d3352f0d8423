/* transfer.cu: uploads, which compute's stream orders; and copies beside compute, on the copy
 * stream, timed by the GPU's clock. */
#include <pthread.h>
#include <string.h>
#include <initializer_list>
#include "backends/cuda/device/cleanup.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/walk.cuh"

/* Copies with events of their own. A slot is reused only when its previous copy has finished, so
 * tickets need no release. */
#define RING 64

struct copy_slot {
    cudaEvent_t ready;            /* compute, when the copy was asked for */
    cudaEvent_t begin, end;       /* around the copy */
    cudaEvent_t stall, stall_end; /* around compute's wait for it */
    bool to_count, waited, wait_to_count;
};

/* Page-locked memory for small uploads, in slots that are used in turn. */
#define SLOTS      8
#define SLOT_BYTES ((size_t)64 << 10)

struct staging {
    unsigned char *bytes; /* NULL until it is needed */
    uint64_t n_used;
    cudaEvent_t was_read[SLOTS];
};

struct mti_copies {
    pthread_mutex_t lock;
    bool reads_pageable; /* the GPU reads the host's pageable memory itself */
    struct staging staging;
    uint64_t n_begun;
    struct copy_slot ring[RING]; /* ticket i at i % RING */
    mti_copy_times times;
};

bool mti_cuda_copies_open(mti_ctx *ctx)
{
    ctx->copies = static_cast<mti_copies *>(mti_calloc(1, sizeof *ctx->copies));
    if (!ctx->copies) return false;
    pthread_mutex_init(&ctx->copies->lock, nullptr);
    int reads = 0;
    bool ok =
        mti_cuda_ok(cudaDeviceGetAttribute(&reads, cudaDevAttrPageableMemoryAccess, ctx->device),
                    "asking how it reads the host's memory");
    ctx->copies->reads_pageable = reads != 0;
    return ok;
}

/* Expects idle streams. */
void mti_cuda_copies_close(mti_ctx *ctx)
{
    if (!ctx->copies) return;
    for (copy_slot &s : ctx->copies->ring)
        for (cudaEvent_t e : {s.ready, s.begin, s.end, s.stall, s.stall_end})
            if (e) mti_cuda_forgive(cudaEventDestroy(e));
    for (cudaEvent_t e : ctx->copies->staging.was_read)
        if (e) mti_cuda_forgive(cudaEventDestroy(e));
    if (ctx->copies->staging.bytes) mti_cuda_forgive(cudaFreeHost(ctx->copies->staging.bytes));
    pthread_mutex_destroy(&ctx->copies->lock);
    mti_free(ctx->copies);
}

void *mti_cuda_host_alloc(mti_ctx *, size_t n_bytes)
{
    void *p = nullptr;
    if (mti_alloc_should_fail()) return nullptr;
    bool ok = mti_cuda_allocated(cudaHostAlloc(&p, n_bytes ? n_bytes : 1, cudaHostAllocDefault));
    return ok ? p : nullptr;
}

void mti_cuda_host_free(mti_ctx *ctx, void *p, size_t)
{
    mti_cuda_wait_for_ranks(ctx);
    mti_cuda_forgive(cudaFreeHost(p));
}

static bool make(cudaEvent_t *e, unsigned flags)
{
    return *e || mti_cuda_ok(cudaEventCreateWithFlags(e, flags), "an event for a copy");
}

static bool make_events(copy_slot *s)
{
    return make(&s->ready, cudaEventDisableTiming) && make(&s->begin, cudaEventDefault) &&
           make(&s->end, cudaEventDefault) && make(&s->stall, cudaEventDefault) &&
           make(&s->stall_end, cudaEventDefault);
}

/* ---- uploads: the caller may reuse its memory when the call returns ---- */

static bool wait_for_slot(mti_ctx *ctx, cudaEvent_t e)
{
    if (mti_cuda_forgive(cudaEventQuery(e))) return true;
    return mti_cuda_wait_for_ranks(ctx) && mti_cuda_ok(cudaEventSynchronize(e), "upload");
}

/* Needs the lock. */
static bool take_slot(mti_ctx *ctx, staging *s, uint64_t slot)
{
    if (!s->bytes && !mti_cuda_ok(cudaMallocHost(&s->bytes, SLOTS * SLOT_BYTES),
                                  "page-locked memory for uploads"))
        return false;
    return make(&s->was_read[slot], cudaEventDisableTiming) &&
           (s->n_used < SLOTS || wait_for_slot(ctx, s->was_read[slot]));
}

static bool upload_by_slot(mti_ctx *ctx, void *dst, const void *host, size_t n_bytes)
{
    staging *s = &ctx->copies->staging;
    pthread_mutex_lock(&ctx->copies->lock);
    uint64_t slot = s->n_used % SLOTS;
    bool ok = take_slot(ctx, s, slot);
    if (ok) {
        unsigned char *at = s->bytes + slot * SLOT_BYTES;
        memcpy(at, host, n_bytes);
        ok = mti_cuda_ok(cudaMemcpyAsync(dst, at, n_bytes, cudaMemcpyHostToDevice, ctx->stream),
                         "upload") &&
             mti_cuda_ok(cudaEventRecord(s->was_read[slot], ctx->stream), "recording an event");
        s->n_used++;
    }
    pthread_mutex_unlock(&ctx->copies->lock);
    return ok;
}

/* A copy from page-locked memory returns before the GPU has read it. So does one from pageable
 * memory where the GPU reads that itself; elsewhere the driver has read it by then. */
static bool returns_early(const mti_ctx *ctx, const void *host)
{
    cudaPointerAttributes of_host = {};
    return ctx->copies->reads_pageable ||
           !mti_cuda_forgive(cudaPointerGetAttributes(&of_host, host)) ||
           of_host.type == cudaMemoryTypeHost;
}

/* A small value is passed as a kernel's argument, some more through slots, if the host would have
 * to wait. */
static __global__ void mti_upload_kernel(uint64_t *dst, uint64_t value) { *dst = value; }

bool mti_cuda_upload(mti_ctx *ctx, void *dst, const void *host, size_t n_bytes)
{
    uint64_t value;
    if (!n_bytes) return true;
    if (n_bytes == sizeof value && mti_is_aligned(dst, sizeof value)) {
        memcpy(&value, host, sizeof value);
        return MTI_LAUNCH(ctx, mti_upload_kernel, 1, 1, 0, static_cast<uint64_t *>(dst), value);
    }
    bool waits = returns_early(ctx, host);
    if (waits && n_bytes <= SLOT_BYTES && ctx->copies->reads_pageable)
        return upload_by_slot(ctx, dst, host, n_bytes);
    return mti_cuda_ok(cudaMemcpyAsync(dst, host, n_bytes, cudaMemcpyHostToDevice, ctx->stream),
                       "upload") &&
           (!waits || (mti_cuda_wait_for_ranks(ctx) &&
                       mti_cuda_ok(cudaStreamSynchronize(ctx->stream), "upload")));
}

/* ---- copies beside compute ---- */

static bool add_time(mti_ctx *ctx, cudaEvent_t from, cudaEvent_t to, double *total_s)
{
    float ms = 0;
    if (!mti_cuda_wait_for_event(ctx, to, "waiting for a copy") ||
        !mti_cuda_ok(cudaEventElapsedTime(&ms, from, to), "timing a copy"))
        return false;
    *total_s += ms * 1e-3;
    return true;
}

/* Adds the times of a slot's events to the totals, once; waits for the events. */
static bool count(mti_ctx *ctx, copy_slot *s)
{
    mti_copies *c = ctx->copies;
    if (s->to_count && !add_time(ctx, s->begin, s->end, &c->times.copy_s)) return false;
    s->to_count = false;
    if (s->wait_to_count && !add_time(ctx, s->stall, s->stall_end, &c->times.wait_s)) return false;
    s->wait_to_count = false;
    return true;
}

static bool begin(mti_ctx *ctx, copy_slot *s, cudaMemcpyKind kind, void *dst, const void *src,
                  size_t n_bytes)
{
    return mti_cuda_ok(cudaEventRecord(s->ready, ctx->stream), "recording an event") &&
           mti_cuda_ok(cudaStreamWaitEvent(ctx->copy, s->ready, 0), "ordering a copy") &&
           mti_cuda_ok(cudaEventRecord(s->begin, ctx->copy), "recording an event") &&
           mti_cuda_ok(cudaMemcpyAsync(dst, src, n_bytes, kind, ctx->copy), "a copy") &&
           mti_cuda_ok(cudaEventRecord(s->end, ctx->copy), "recording an event");
}

bool mti_cuda_copy_begin(mti_ctx *ctx, mti_direction direction, void *dst, const void *src,
                         size_t n_bytes, uint64_t *ticket)
{
    mti_copies *c = ctx->copies;
    cudaMemcpyKind kind =
        direction == MTI_TO_HOST ? cudaMemcpyDeviceToHost : cudaMemcpyHostToDevice;
    pthread_mutex_lock(&c->lock);
    copy_slot *s = &c->ring[(c->n_begun + 1) % RING];
    bool ok = count(ctx, s) && make_events(s) && begin(ctx, s, kind, dst, src, n_bytes);
    if (ok) {
        *ticket = ++c->n_begun;
        s->to_count = true;
        s->waited = false;
    }
    pthread_mutex_unlock(&c->lock);
    return ok;
}

/* The copy's slot; NULL if another copy has reused it, so this one has finished. Needs the lock. */
static copy_slot *slot_of(mti_copies *c, uint64_t ticket)
{
    return ticket && ticket + RING > c->n_begun ? &c->ring[ticket % RING] : nullptr;
}

bool mti_cuda_copy_wait(mti_ctx *ctx, uint64_t ticket)
{
    mti_copies *c = ctx->copies;
    pthread_mutex_lock(&c->lock);
    copy_slot *s = slot_of(c, ticket);
    bool ok = true;
    if (s && !s->waited) {
        ok = mti_cuda_ok(cudaEventRecord(s->stall, ctx->stream), "recording an event") &&
             mti_cuda_ok(cudaStreamWaitEvent(ctx->stream, s->end, 0), "waiting for a copy") &&
             mti_cuda_ok(cudaEventRecord(s->stall_end, ctx->stream), "recording an event");
        s->waited = s->wait_to_count = ok;
    }
    pthread_mutex_unlock(&c->lock);
    return ok;
}

/* Waits without the lock; if another copy reuses the slot meanwhile, it only waits longer. */
bool mti_cuda_copy_finish(mti_ctx *ctx, uint64_t ticket)
{
    mti_copies *c = ctx->copies;
    pthread_mutex_lock(&c->lock);
    copy_slot *s = slot_of(c, ticket);
    pthread_mutex_unlock(&c->lock);
    return !s || mti_cuda_wait_for_event(ctx, s->end, "waiting for a copy");
}

bool mti_cuda_copy_times(mti_ctx *ctx, mti_copy_times *out)
{
    mti_copies *c = ctx->copies;
    pthread_mutex_lock(&c->lock);
    bool ok = true;
    for (copy_slot &s : c->ring) ok = ok && count(ctx, &s);
    *out = c->times;
    pthread_mutex_unlock(&c->lock);
    return ok;
}

/* Ranks exchange through NCCL (link.cu), which has memory of its own. */
size_t mti_cuda_exchange_scratch(mti_ctx *, int64_t) { return 0; }
