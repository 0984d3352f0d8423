/* machine.c: this machine's hardware limits, to which other figures are compared, and its software.
 *
 *     gemm N SIDE -> "gflops X": OpenBLAS on square matrices of f32, best of N
 *     f32 N SIDE  -> "gflops X": memtape's product of such matrices, best of N
 *     bf16 N SIDE -> "gflops X": memtape's product of square matrices of bf16, best of N
 *     copy N      -> "gbs X": bytes read plus bytes written per ns, best of N, by turns with
 * memcpy, a plain loop and stores past the caches, in huge pages as memtape's tensors fma N ->
 * "gflops X": fused multiply-adds on registers, all threads */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cblas.h>
#include <omp.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif
#include "bench.h"

/* Some distributions' cblas.h lacks these. */
extern char *openblas_get_config(void);
extern char *openblas_get_corename(void);

#if defined(__clang__)
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif
#define COPY_FLOATS ((int64_t)1 << 24) /* 64 MiB, as the tensors of ops that wait for memory */

/* flop per ns of one sgemm of side n, best of `times`. */
static double gemm_rate(int n, long times)
{
    size_t count = (size_t)n * (size_t)n;
    float *a = malloc(3 * count * sizeof *a);
    if (!a) return 0;
    for (size_t i = 0; i < 3 * count; i++) a[i] = (float)(i % 7) - 3;
    double best = 0;
    for (long i = 0; i < times; i++) {
        int64_t start = bench_now_ns();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1, a, n, a + count, n, 0,
                    a + 2 * count, n);
        double rate = 2.0 * n * n * n / (double)(bench_now_ns() - start);
        if (rate > best) best = rate;
    }
    free(a);
    return best;
}

/* By the library that memtape takes for this dtype here. */
static double product_rate(mt_dtype dtype, int n, long times, int threads)
{
    double best = 0;
    mt_device *d = mt_device_open("cpu");
    mt_tensor *a = mt_normal(d, dtype, MT_SHAPE(n, n), 0, 1);
    if (mt_device_set_threads(d, threads) != MT_OK) times = 0;
    for (long i = 0; a && i < times; i++) {
        int64_t start = bench_now_ns();
        mt_tensor *c = mt_matmul(a, a);
        double rate = 2.0 * n * n * n / (double)(bench_now_ns() - start);
        if (c && rate > best) best = rate;
        mt_release(c);
    }
    mt_release(a);
    mt_device_release(d);
    return best;
}

/* Plain stores. memcpy uses stores past the caches only for copies that are large beside the
 * machine's last cache, of which a virtual machine may have a small part. */
static void copy_loop(float *restrict y, const float *restrict x, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) y[i] = x[i];
}

static double copy_rate(long times, int threads)
{
    size_t n_bytes = 2 * (size_t)COPY_FLOATS * sizeof(float);
    float *x = aligned_alloc((size_t)2 << 20, n_bytes), *y = x + COPY_FLOATS;
    if (!x) return 0;
#if defined(__linux__)
    madvise(x, n_bytes, MADV_HUGEPAGE);
#endif
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < 2 * COPY_FLOATS; i++) x[i] = 1;
    double best = 0;
    for (long t = 0; t < times; t++) {
        int64_t start = bench_now_ns();
#pragma omp parallel
        {
            int64_t me = omp_get_thread_num(), of = omp_get_num_threads();
            int64_t from = COPY_FLOATS * me / of, to = COPY_FLOATS * (me + 1) / of;
            if (t % 2)
                memcpy(y + from, x + from, (size_t)(to - from) * sizeof *x);
            else
                copy_loop(y + from, x + from, to - from);
        }
        double rate = (double)n_bytes / (double)(bench_now_ns() - start);
        if (rate > best) best = rate;
    }
    free(x);
    mt_device *d = mt_device_open("cpu");
    mt_tensor *t = mt_normal(d, MT_F32, MT_SHAPE(COPY_FLOATS), 0, 1);
    if (mt_device_set_threads(d, threads) != MT_OK) times = 0;
    for (long i = 0; t && i < times; i++) {
        int64_t start = bench_now_ns();
        mt_tensor *c = mt_clone(t);
        double rate = (double)n_bytes / (double)(bench_now_ns() - start);
        if (c && rate > best) best = rate;
        mt_release(c);
    }
    mt_release(t);
    mt_device_release(d);
    return best;
}

#if defined(__x86_64__) && defined(__GNUC__)
typedef float lanes16 __attribute__((vector_size(64)));
typedef float lanes8 __attribute__((vector_size(32)));
/* Twelve chains hide the latency of two multiply-adders. */
#define FMA_CHAINS 12
/* clang contracts within an expression by itself; gcc not in ISO C. */
#ifdef __clang__
#define FMA_CONTRACTED
#else
#define FMA_CONTRACTED __attribute__((optimize("fp-contract=fast")))
#endif
#define FMA_LOOP(name, lanes, isa)                                                                 \
    __attribute__((target(isa), noinline)) FMA_CONTRACTED static float name(int64_t n)             \
    {                                                                                              \
        lanes sum[FMA_CHAINS], x = {0}, y = {0};                                                   \
        x += 0.5f, y += 0.25f;                                                                     \
        for (int k = 0; k < FMA_CHAINS; k++) sum[k] = x * (float)k; /* all chains differ */        \
        for (int64_t i = 0; i < n; i++)                                                            \
            _Pragma("GCC unroll 12") for (int k = 0; k < FMA_CHAINS; k++) sum[k] = sum[k] * x + y; \
        for (int k = 1; k < FMA_CHAINS; k++) sum[0] += sum[k];                                     \
        return sum[0][0];                                                                          \
    }
FMA_LOOP(fma_avx512, lanes16, "avx512f")
FMA_LOOP(fma_avx2, lanes8, "avx2,fma")

static double fma_rate(long times)
{
    bool wide = __builtin_cpu_supports("avx512f");
    if (!wide && !__builtin_cpu_supports("fma")) return 0;
    const int64_t n = 4000000;
    double best = 0;
    for (long t = 0; t < times; t++) {
        float result = 0;
        int threads = 1;
        int64_t start = bench_now_ns();
#pragma omp parallel reduction(+ : result)
        {
            result += wide ? fma_avx512(n) : fma_avx2(n);
#pragma omp master
            threads = omp_get_num_threads();
        }
        double flops = 2.0 * (wide ? 16 : 8) * FMA_CHAINS * (double)n * threads;
        double rate = flops / (double)(bench_now_ns() - start);
        if (result != 0 && rate > best) best = rate;
    }
    return best;
}
#else
static double fma_rate(long times) { return (void)times, 0; }
#endif

int bench_machine(int argc, char **argv)
{
    char line[64], word[16];
    long n;
    int side;
    if (argc != 1) return 2;
    omp_set_num_threads(atoi(argv[0]));
    printf("openblas %s\ncore %s\ncompiler %s\nready\n", openblas_get_config(),
           openblas_get_corename(), COMPILER);
    while (fgets(line, sizeof line, stdin)) {
        int n_words = sscanf(line, "%15s %ld %d", word, &n, &side);
        if (n_words < 2) break;
        if (strcmp(word, "gemm") == 0 && n_words == 3)
            printf("gflops %.2f\n", gemm_rate(side, n));
        else if (strcmp(word, "bf16") == 0 && n_words == 3)
            printf("gflops %.2f\n", product_rate(MT_BF16, side, n, atoi(argv[0])));
        else if (strcmp(word, "f32") == 0 && n_words == 3)
            printf("gflops %.2f\n", product_rate(MT_F32, side, n, atoi(argv[0])));
        else if (strcmp(word, "copy") == 0)
            printf("gbs %.2f\n", copy_rate(n, atoi(argv[0])));
        else if (strcmp(word, "fma") == 0)
            printf("gflops %.2f\n", fma_rate(n));
        puts("done");
    }
    return 0;
}
