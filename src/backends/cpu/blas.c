/* blas.c: workers that share a list of items and call OpenBLAS serially. */
#include <stdatomic.h>
#include <omp.h>
#include "backends/cpu/blas.h"

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

void mti_cpu_workers(mti_ctx *ctx, int n_workers, int64_t n, int64_t grain, mti_cpu_work_fn *fn,
                     void *arg)
{
    if (n <= 0) return;
    if (n_workers <= 1 || n <= grain) {
        int was = serial_begin();
        fn(arg, 0, 0, n);
        serial_end(was);
        return;
    }
    atomic_llong next = 0;
    work w = {fn, arg, n, grain, &next};
    mti_cpu_parallel(ctx, n_workers, 1, run_worker, &w);
}
