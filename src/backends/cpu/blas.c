/* blas.c: workers that share a list of items and call OpenBLAS serially. */
#include <stdatomic.h>
#include <omp.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include "backends/cpu/blas.h"
#include "memtape/openblas.h"

/* ---- OpenBLAS's kernels ---- */

/* Those of CPUs without AVX2. The list is of the past: it does not grow. */
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
 * Each call that has to rearrange its operands takes a buffer, as many as there are calls at once.
 * A buffer is mapped when it is first needed and kept until the process ends; where the system
 * refuses the mapping, OpenBLAS up to 0.3.29 asks again for ever. So all that workers will need are
 * mapped here, each after a mapping of that size was seen to succeed, and a refusal is an error. */

#if defined(__powerpc64__)
#define BUFFER_BYTES ((size_t)256 << 20)
#else
#define BUFFER_BYTES ((size_t)128 << 20) /* of x86-64 and arm64; of other machines less */
#endif

/* Not in its header, and a build of it may hide them: then the mapping is only tried. */
extern void *blas_memory_alloc(int where) __attribute__((weak));
extern void blas_memory_free(void *buffer) __attribute__((weak));

static struct {
    pthread_mutex_t lock;
    atomic_int callers; /* workers that may be in a product now */
    atomic_int mapped;  /* buffers known to be there */
} buffers = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool can_map(void)
{
    void *p = mmap(NULL, BUFFER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return mti_fail_bool(MT_ERR_MEMORY,
                             "cpu out of memory: OpenBLAS needs a buffer of %zu bytes for each "
                             "thread, and the system has no address space for it (ulimit -v?)",
                             BUFFER_BYTES);
    munmap(p, BUFFER_BYTES);
    return true;
}

/* Takes n buffers at once and gives them back; `there` of them need no mapping. */
static bool take_buffers(int n, int there)
{
    if (n == 0) return true;
    if (there <= 0 && !can_map()) return false;
    void *buffer = blas_memory_alloc ? blas_memory_alloc(0) : NULL;
    bool ok = take_buffers(n - 1, there - 1);
    if (buffer) blas_memory_free(buffer);
    return ok;
}

/* OpenBLAS's own threads, which nobody here uses, give their buffers up first. */
static bool map_buffers(int n, int busy)
{
    pthread_mutex_lock(&buffers.lock);
    int mapped = atomic_load(&buffers.mapped), was = omp_get_max_threads();
    if (mapped == 0) openblas_set_num_threads(1);
    if (omp_get_max_threads() != was) omp_set_num_threads(was);
    bool ok = n <= mapped || take_buffers(n, mapped - busy);
    if (ok && n > mapped) atomic_store(&buffers.mapped, n);
    pthread_mutex_unlock(&buffers.lock);
    return ok;
}

static void leave(int n) { atomic_fetch_sub(&buffers.callers, n); }

/* Lets n workers call OpenBLAS at once, until they leave. */
static bool enter(int n)
{
    int busy = atomic_fetch_add(&buffers.callers, n);
    if (busy + n <= atomic_load(&buffers.mapped) || map_buffers(busy + n, busy)) return true;
    leave(n);
    return false;
}

/* ---- workers ---- */

typedef struct work {
    mti_cpu_work_fn *fn;
    void *arg;
    int64_t n, grain;
    atomic_llong *next; /* the first item nobody has taken yet */
} work;

/* OpenBLAS on OpenMP asks omp_get_max_threads, a setting of the calling thread,
 * how many threads to use: no other thread is disturbed. The pthread build has
 * one number for the process instead. */
static int serial_begin(void)
{
    if (openblas_get_parallel() == OPENBLAS_THREAD && openblas_get_num_threads() != 1)
        openblas_set_num_threads(1);
    int was = omp_get_max_threads();
    if (was != 1) omp_set_num_threads(1);
    return was;
}

static void serial_end(int was)
{
    if (was != 1) omp_set_num_threads(was);
}

static void run_worker(const void *arg, int64_t worker, int64_t end)
{
    const work *w = arg;
    (void)end; /* one worker per chunk */
    int was = serial_begin();
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(w->next, w->grain, memory_order_relaxed);
        if (begin >= w->n) break;
        w->fn(w->arg, (int)worker, begin, begin + w->grain < w->n ? begin + w->grain : w->n);
    }
    serial_end(was);
}

int mti_cpu_scratch_workers(int n_workers, size_t n_scratch, size_t per_worker)
{
    size_t room = per_worker ? n_scratch / per_worker : (size_t)n_workers;
    return room < (size_t)n_workers ? (int)room : n_workers;
}

void mti_cpu_alone(mti_cpu_work_fn *fn, void *arg, int64_t n)
{
    int was = serial_begin();
    fn(arg, 0, 0, n);
    serial_end(was);
}

bool mti_cpu_workers(mti_ctx *ctx, int n_workers, int64_t n, int64_t grain, mti_cpu_work_fn *fn,
                     void *arg)
{
    if (n <= 0) return true;
    if (n_workers <= 1 || n <= grain) n_workers = 1;
    if (!enter(n_workers)) return false;
    if (n_workers == 1) {
        mti_cpu_alone(fn, arg, n);
    } else {
        atomic_llong next = 0;
        work w = {fn, arg, n, grain, &next};
        mti_cpu_parallel(ctx, n_workers, 1, run_worker, &w);
    }
    leave(n_workers);
    return true;
}
