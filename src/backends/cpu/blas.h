/* blas.h: OpenBLAS called from our own loops.
 *
 * We never use OpenBLAS's threads: how it cuts a product depends on how many
 * it has, and with the cut the order of the sums. Products are cut here, by
 * shape alone, and each piece is one serial call. */
#ifndef MTI_CPU_BLAS_H
#define MTI_CPU_BLAS_H

#include <cblas.h>
#include "backends/cpu/cpu.h"

/* The kernels to ask OpenBLAS for on a CPU with these instructions, where it chose those for
 * `core`; NULL: none better. */
const char *mti_openblas_better_core(const char *core, bool has_avx2, bool has_avx512);

/* ---- several workers over one list of items ---- */

/* Items [begin, end) by worker `worker`, which owns the worker-th scratch slot. */
typedef void mti_cpu_work_fn(void *arg, int worker, int64_t begin, int64_t end);

/* fn over [0, n) in runs of `grain` items; whoever is idle takes the next run, so an
 * item's result must not depend on who computes it. Inside, cblas_* are serial. False, and nothing
 * done, where there is no memory for what OpenBLAS needs. */
bool mti_cpu_workers(mti_ctx *ctx, int n_workers, int64_t n, int64_t grain, mti_cpu_work_fn *fn,
                     void *arg);
/* fn over [0, n) by the calling thread, products excepted: what else must find OpenMP serial. */
void mti_cpu_alone(mti_cpu_work_fn *fn, void *arg, int64_t n);

/* As many of n_workers as n_scratch bytes hold the scratch of. More may be wanted than were asked
 * for, where another host thread has set the device's threads since. */
int mti_cpu_scratch_workers(int n_workers, size_t n_scratch, size_t per_worker);

/* ---- one serial product in f32 or f64 ---- */

/* A matrix in memory: element (i, j) at i * ld + j, or at j * ld + i if transposed. */
typedef struct mti_mat {
    const void *at;
    int64_t ld;
    bool trans;
} mti_mat;

/* c [m,n] = alpha a [m,k] b [k,n] + beta c, c in rows of ldc. */
static inline void mti_sgemm(int64_t m, int64_t n, int64_t k, float alpha, mti_mat a, mti_mat b,
                             float beta, float *c, int64_t ldc)
{
    cblas_sgemm(CblasRowMajor, a.trans ? CblasTrans : CblasNoTrans,
                b.trans ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, alpha,
                a.at, (blasint)a.ld, b.at, (blasint)b.ld, beta, c, (blasint)ldc);
}

static inline void mti_dgemm(int64_t m, int64_t n, int64_t k, double alpha, mti_mat a, mti_mat b,
                             double beta, double *c, int64_t ldc)
{
    cblas_dgemm(CblasRowMajor, a.trans ? CblasTrans : CblasNoTrans,
                b.trans ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, alpha,
                a.at, (blasint)a.ld, b.at, (blasint)b.ld, beta, c, (blasint)ldc);
}

/* to [cols,rows] = scale * from^T, from [rows,cols] in rows of ld. */
static inline void mti_stranspose(int64_t rows, int64_t cols, float scale, const float *from,
                                  int64_t ld, float *to, int64_t ld_to)
{
    cblas_somatcopy(CblasRowMajor, CblasTrans, (blasint)rows, (blasint)cols, scale, from,
                    (blasint)ld, to, (blasint)ld_to);
}

static inline void mti_dtranspose(int64_t rows, int64_t cols, double scale, const double *from,
                                  int64_t ld, double *to, int64_t ld_to)
{
    cblas_domatcopy(CblasRowMajor, CblasTrans, (blasint)rows, (blasint)cols, scale, from,
                    (blasint)ld, to, (blasint)ld_to);
}

#endif
