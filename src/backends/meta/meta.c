/* meta.c: a backend without data. Tensors have shapes, dtypes, storages and addresses, so the
 * engine, the allocator and the books run as they would on a GPU; the kernels do nothing.
 *
 * Addresses have no memory behind them and are never dereferenced. Segments get consecutive
 * addresses, and none is used twice. */
#include <stdatomic.h>
#include "backends/backend.h"

/* The kernels below use none of their parameters. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define FIRST_ADDRESS ((uintptr_t)1 << 40) /* unmapped, so a stray access faults */
#define SEGMENT_UNIT  ((size_t)2 << 20)

/* What this backend's mti_ctx is. */
typedef struct imagined {
    uintptr_t next;          /* where the next segment goes */
    atomic_int threads;      /* 0: as many as `like` takes by itself */
    const mti_backend *like; /* the backend whose scratch sizes it reports; NULL: 0 */
    mti_ctx *like_ctx;
} imagined;

static imagined *of(const mti_ctx *ctx) { return (imagined *)ctx; }

/* ---- state and raw memory ---- */

static mti_ctx *open_meta(void)
{
    imagined *m = mti_malloc(sizeof *m);
    if (!m) return NULL;
    *m = (imagined){.next = FIRST_ADDRESS};
    atomic_init(&m->threads, 0);
    return (mti_ctx *)m;
}

static void close_meta(mti_ctx *ctx)
{
    if (of(ctx)->like) of(ctx)->like->close(of(ctx)->like_ctx);
    mti_free(ctx);
}

bool mti_meta_count_scratch_of(mti_ctx *ctx, const mti_backend *like)
{
    mti_ctx *like_ctx = like ? like->open() : NULL;
    int n = of(ctx)->threads;
    if (like && (!like_ctx || (n && !like->set_threads(like_ctx, n)))) {
        if (like_ctx) like->close(like_ctx);
        return false;
    }
    if (of(ctx)->like) of(ctx)->like->close(of(ctx)->like_ctx);
    of(ctx)->like = like, of(ctx)->like_ctx = like_ctx;
    return true;
}

bool mti_meta_counts_scratch(const mti_ctx *ctx) { return of(ctx)->like != NULL; }

static bool set_threads(mti_ctx *ctx, int n)
{
    if (of(ctx)->like && !of(ctx)->like->set_threads(of(ctx)->like_ctx, n)) return false;
    of(ctx)->threads = n;
    return true;
}

static int threads(const mti_ctx *ctx)
{
    return of(ctx)->threads ? of(ctx)->threads
           : of(ctx)->like  ? of(ctx)->like->threads(of(ctx)->like_ctx)
                            : 1;
}

static bool sync_meta(mti_ctx *ctx) { return true; }

/* Limited by the address space only: a memory limit is set with mt_mem_set_capacity. */
static void *alloc_raw(mti_ctx *ctx, size_t n_bytes)
{
    size_t padded;
    if (mti_alloc_should_fail() || !mti_add_size(n_bytes, SEGMENT_UNIT - 1, &padded)) return NULL;
    padded -= padded % SEGMENT_UNIT;
    if (padded > UINTPTR_MAX - of(ctx)->next) return NULL;
    void *p = (void *)of(ctx)->next;
    of(ctx)->next += padded;
    return p;
}

static void free_raw(mti_ctx *ctx, void *p, size_t n_bytes) {}

static size_t room(mti_ctx *ctx) { return SIZE_MAX; }

/* ---- addresses that would get memory in granules ---- */

static size_t page(mti_ctx *ctx) { return 4096; }             /* as on the CPU */
static size_t total(mti_ctx *ctx) { return (size_t)1 << 43; } /* more than any device has */
static bool map(mti_ctx *ctx, void *p, size_t n_bytes, size_t granule)
{
    return !mti_alloc_should_fail();
}

static bool unmap(mti_ctx *ctx, void *p, size_t n_bytes, size_t granule) { return true; }

static const mti_ranges ranges = {.page = page,
                                  .total = total,
                                  .reserve = alloc_raw,
                                  .release = free_raw,
                                  .map = map,
                                  .unmap = unmap};

static bool upload(mti_ctx *ctx, void *dst, const void *host, size_t n_bytes) { return true; }

static bool download(mti_ctx *ctx, void *host, const void *src, size_t n_bytes)
{
    return mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "meta: cannot read a tensor's values (%zu bytes); tensors of this "
                         "device have shapes and no data",
                         n_bytes);
}

/* ---- kernels: they do nothing; scratch sizes are those of the backend `like` ---- */

#define KERNEL(name, parameters, arguments)                                                        \
    static bool meta_##name(mti_ctx *ctx, MTI_UNWRAP parameters) { return true; }
#define KERNEL_TO_HOST(name, parameters, arguments) /* defined below */
#define SCRATCH(name, parameters, arguments)                                                       \
    static size_t meta_##name(mti_ctx *ctx, MTI_UNWRAP parameters)                                 \
    {                                                                                              \
        return of(ctx)->like ? of(ctx)->like->name(of(ctx)->like_ctx, MTI_UNWRAP arguments) : 0;   \
    }
#include "backends/kernels.def"

/* Gradients without values have norm 0, so clipping leaves them unchanged. */
static bool meta_sum_squares(mti_ctx *ctx, int n_items, const mti_opt_item *items, double *out)
{
    *out = 0;
    return true;
}

const mti_backend mti_meta_backend = {
    .kind = "meta",
    .traits = MTI_NO_DATA,
    .open = open_meta,
    .close = close_meta,
    .set_threads = set_threads,
    .threads = threads,
    .sync = sync_meta,
    .alloc = alloc_raw,
    .free = free_raw,
    .room = room,
    .upload = upload,
    .download = download,
    .ranges = &ranges,
#define KERNEL(name, parameters, arguments)  .name = meta_##name,
#define SCRATCH(name, parameters, arguments) .name = meta_##name,
#include "backends/kernels.def"
};
