/* cpu.c: the CPU's kernel table and its raw memory. */
#include "backends/cpu/cpu.h"
#include <omp.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#define ALIGNMENT ((size_t)512)
#define HUGE_PAGE ((size_t)2 << 20)

static mti_ctx *open_cpu(void)
{
    mti_ctx *ctx = mti_malloc(sizeof *ctx);
    if (!ctx) return NULL;
    atomic_init(&ctx->threads, omp_get_max_threads());
    atomic_init(&ctx->shared, 0);
    ctx->copies = mti_cpu_copies_new();
    ctx->team = ctx->copies ? mti_cpu_team_new() : NULL;
    if (ctx->team) return ctx;
    mti_cpu_copies_free(ctx->copies);
    mti_free(ctx);
    return NULL;
}

static void close_cpu(mti_ctx *ctx)
{
    mti_cpu_team_free(ctx->team);
    mti_cpu_copies_free(ctx->copies);
    mti_free(ctx);
}

static bool set_threads(mti_ctx *ctx, int n)
{
    if (n < 1) return mti_fail_bool(MT_ERR_ARGUMENT, "threads: %d; need at least 1", n);
    atomic_store_explicit(&ctx->threads, n, memory_order_relaxed);
    return true;
}

static bool sync_cpu(mti_ctx *ctx)
{
    (void)ctx;
    return true;
}

/* Segments of 2 MiB and more get huge pages if the system has them: far fewer page faults
 * on first touch, and later far fewer TLB misses. */
static void *alloc_raw(mti_ctx *ctx, size_t n_bytes)
{
    (void)ctx;
    if (mti_alloc_should_fail()) return NULL;
    size_t alignment = n_bytes >= HUGE_PAGE ? HUGE_PAGE : ALIGNMENT;
    size_t padded;
    if (!mti_add_size(n_bytes ? n_bytes : 1, alignment - 1, &padded) || padded > PTRDIFF_MAX)
        return NULL;
    padded -= padded % alignment;
    void *p = aligned_alloc(alignment, padded);
#if defined(__linux__)
    if (p && alignment == HUGE_PAGE) madvise(p, padded, MADV_HUGEPAGE);
#endif
    return p;
}

static void free_raw(mti_ctx *ctx, void *p, size_t n_bytes)
{
    (void)ctx, (void)n_bytes;
    free(p);
}

static size_t room(mti_ctx *ctx)
{
    (void)ctx;
    return mti_host_room();
}

static bool copy_bytes(mti_ctx *ctx, void *dst, const void *src, size_t n_bytes)
{
    (void)ctx;
    if (n_bytes) memcpy(dst, src, n_bytes);
    return true;
}

const mti_backend mti_cpu_backend = {
    .kind = "cpu",
    .traits = MTI_HOST_MEMORY,
    .open = open_cpu,
    .close = close_cpu,
    .set_threads = set_threads,
    .threads = mti_cpu_threads,
    .sync = sync_cpu,
    .alloc = alloc_raw,
    .free = free_raw,
    .room = room,
    .upload = copy_bytes,
    .download = copy_bytes,
    .host_alloc = alloc_raw,
    .host_free = free_raw,
    .copy_begin = mti_cpu_copy_begin,
    .copy_wait = mti_cpu_copy_wait,
    .copy_finish = mti_cpu_copy_finish,
    .copy_times = mti_cpu_copy_times,
    .ranges = MTI_CPU_RANGES,
#define KERNEL(name, parameters, arguments)  .name = mti_cpu_##name,
#define SCRATCH(name, parameters, arguments) .name = mti_cpu_##name,
#include "backends/kernels.def"
};
