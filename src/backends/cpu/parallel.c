/* parallel.c: a kernel's chunks on the context's threads. */
#include <omp.h>
#include "backends/cpu/cpu.h"

int64_t mti_cpu_chunk(int64_t n, int64_t cost)
{
    if (n * cost < MTI_CPU_GRAIN) return n;
    int64_t items = MTI_CPU_GRAIN / 8 / cost;
    return items < 1 ? 1 : items;
}

/* One call of fn per chunk, so that a kernel may number its partial results by
 * begin / chunk. */
static void run_chunks(int64_t from, int64_t to, int64_t n, int64_t chunk, mti_cpu_range_fn *fn,
                       const void *arg)
{
    for (int64_t i = from; i < to; i++) {
        int64_t begin = i * chunk;
        fn(arg, begin, n - begin < chunk ? n : begin + chunk);
    }
}

void mti_cpu_parallel(mti_ctx *ctx, int64_t n, int64_t chunk, mti_cpu_range_fn *fn, const void *arg)
{
    if (n <= 0) return;
    int64_t chunks = n <= chunk ? 1 : (n + chunk - 1) / chunk;
    int threads = mti_cpu_threads(ctx), team = chunks < threads ? (int)chunks : threads;
    if (team <= 1) {
        run_chunks(0, chunks, n, chunk, fn, arg);
        return;
    }
    atomic_fetch_add_explicit(&ctx->shared, 1, memory_order_relaxed);
#pragma omp parallel num_threads(team)
    {
        /* OpenMP may start fewer threads than requested; they must still cover every chunk */
        int64_t k = omp_get_thread_num(), n_team = omp_get_num_threads();
        run_chunks(chunks * k / n_team, chunks * (k + 1) / n_team, n, chunk, fn, arg);
    }
}
