/* blas.c: workers that share a list of items; each calls OpenBLAS serially. */
#include <stdatomic.h>
#include <omp.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include "backends/cpu/products/blas.h"
#include "memtape/openblas.h"

/* ---- OpenBLAS's kernels ---- */

/* The kernels for CPUs without AVX2. New CPUs all have it, so the list is complete. */
static const char *const old_cores[] = {
    "Katmai", "Coppermine",   "Northwood",   "Prescott",  "Banias",     "Atom",       "Core2",
    "Penryn", "Dunnington",   "Nehalem",     "Athlon",    "Opteron",    "Barcelona",  "Nano",
    "Bobcat", "Opteron_SSE3", "Sandybridge", "Bulldozer", "Piledriver", "Steamroller"};

const char *mti_openblas_better_core(const char *core, bool has_avx2, bool has_avx512)
{
    for (size_t i = 0; has_avx2 && i < sizeof old_cores / sizeof *old_cores; i++)
        if (!strcmp(core, old_cores[i])) return has_avx512 ? "SkylakeX" : "Haswell";
    return NULL;
}

mt_openblas mt_openblas_get(void)
{
    bool has_avx2 = false, has_avx512 = false;
#ifdef __x86_64__
    has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512cd");
#endif
    const char *core = openblas_get_corename();
    return (mt_openblas){openblas_get_config(), core,
                         mti_openblas_better_core(core, has_avx2, has_avx512)};
}

/* ---- OpenBLAS's buffers ----
 *
 * A call that rearranges its operands needs a buffer; concurrent calls need one each. OpenBLAS maps
 * a buffer when it is first needed and keeps it until the process ends. If the system refuses the
 * mapping, OpenBLAS up to 0.3.29 retries for ever. So we map all buffers that the workers will need
 * here, each after a trial mapping of that size, and report a refusal as an error. */

#if defined(__powerpc64__)
#define BUFFER_BYTES ((size_t)256 << 20)
#else
#define BUFFER_BYTES ((size_t)128 << 20) /* x86-64 and arm64; other machines need less */
#endif

/* Not in OpenBLAS's header; some builds hide them: then only the trial mapping is made. */
extern void *blas_memory_alloc(int where) __attribute__((weak));
extern void blas_memory_free(void *buffer) __attribute__((weak));

static struct {
    pthread_mutex_t lock;
    atomic_int callers; /* workers that may be inside OpenBLAS */
    atomic_int mapped;  /* buffers known to be mapped */
} buffers = {.lock = PTHREAD_MUTEX_INITIALIZER};

bool mti_cpu_can_map(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return false;
    munmap(p, n_bytes);
    return true;
}

/* Holds n buffers at once, then releases them; `mapped` of them exist already. */
static bool take_buffers(int n, int mapped)
{
    if (n == 0) return true;
    if (mapped <= 0 && !mti_cpu_can_map(BUFFER_BYTES))
        return mti_fail_bool(MT_ERR_MEMORY,
                             "cpu out of memory: OpenBLAS needs a buffer of %zu bytes for each "
                             "thread, and the system has no address space for it (ulimit -v?)",
                             BUFFER_BYTES);
    void *buffer = blas_memory_alloc ? blas_memory_alloc(0) : NULL;
    bool ok = take_buffers(n - 1, mapped - 1);
    if (buffer) blas_memory_free(buffer);
    return ok;
}

/* The first call frees the buffers of OpenBLAS's own threads, which are never used. */
static bool map_buffers(int n, int busy)
{
    pthread_mutex_lock(&buffers.lock);
    int mapped = atomic_load(&buffers.mapped), threads_before = omp_get_max_threads();
    if (mapped == 0) openblas_set_num_threads(1);
    if (omp_get_max_threads() != threads_before) omp_set_num_threads(threads_before);
    bool ok = n <= mapped || take_buffers(n, mapped - busy);
    if (ok && n > mapped) atomic_store(&buffers.mapped, n);
    pthread_mutex_unlock(&buffers.lock);
    return ok;
}

static void leave(int n) { atomic_fetch_sub(&buffers.callers, n); }

/* Lets n more workers call OpenBLAS concurrently; leave() ends it. */
static bool enter(int n)
{
    int busy = atomic_fetch_add(&buffers.callers, n);
    if (busy + n <= atomic_load(&buffers.mapped) || map_buffers(busy + n, busy)) return true;
    leave(n);
    return false;
}

/* ---- workers ---- */

#define RANGES 16

/* Workers begin in different ranges of the items, and go on in the others': so a worker mostly has
 * the items next to each other, and the same ones in every call, whose operands are in its cache.
 */
typedef struct work {
    mti_cpu_work_fn *fn;
    void *arg;
    int64_t n, grain;
    int n_workers, n_ranges;
    struct range {
        _Alignas(64) atomic_llong next; /* its first item that no worker has taken */
    } * ranges;
} work;

/* With OpenMP, OpenBLAS reads its thread count from omp_get_max_threads, a setting of
 * the calling thread, so other threads keep theirs. The pthread build has one setting
 * for the process. */
static int serial_begin(void)
{
    if (openblas_get_parallel() == OPENBLAS_THREAD && openblas_get_num_threads() != 1)
        openblas_set_num_threads(1);
    int threads_before = omp_get_max_threads();
    if (threads_before != 1) omp_set_num_threads(1);
    return threads_before;
}

static void serial_end(int threads_before)
{
    if (threads_before != 1) omp_set_num_threads(threads_before);
}

static void run_worker(const void *arg, int64_t worker, int64_t end)
{
    const work *w = arg;
    (void)end; /* each chunk is one worker */
    int threads_before = serial_begin();
    for (int i = 0; i < w->n_ranges; i++) {
        int64_t r = (worker * w->n_ranges / w->n_workers + i) % w->n_ranges;
        int64_t last = w->n * (r + 1) / w->n_ranges, at;
        while ((at = atomic_fetch_add_explicit(&w->ranges[r].next, w->grain,
                                               memory_order_relaxed)) < last)
            w->fn(w->arg, (int)worker, at, at + w->grain < last ? at + w->grain : last);
    }
    serial_end(threads_before);
}

int mti_cpu_scratch_workers(int n_workers, size_t n_scratch, size_t per_worker)
{
    size_t fit = per_worker ? n_scratch / per_worker : (size_t)n_workers;
    return fit < (size_t)n_workers ? (int)fit : n_workers;
}

void mti_cpu_serially(mti_cpu_work_fn *fn, void *arg, int64_t n)
{
    int threads_before = serial_begin();
    fn(arg, 0, 0, n);
    serial_end(threads_before);
}

bool mti_cpu_workers(mti_ctx *ctx, int n_workers, int64_t n, int64_t grain, mti_cpu_work_fn *fn,
                     void *arg)
{
    if (n <= 0) return true;
    if (n_workers <= 1 || n <= grain) n_workers = 1;
    if (!enter(n_workers)) return false;
    if (n_workers == 1) {
        mti_cpu_serially(fn, arg, n);
    } else {
        struct range ranges[RANGES];
        work w = {fn, arg, n, grain, n_workers, n_workers < RANGES ? n_workers : RANGES, ranges};
        for (int r = 0; r < w.n_ranges; r++) atomic_init(&ranges[r].next, n * r / w.n_ranges);
        mti_cpu_parallel(ctx, n_workers, 1, run_worker, &w);
    }
    leave(n_workers);
    return true;
}
