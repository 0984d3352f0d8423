/* blas.h: OpenBLAS called from our own loops.
 *
 * OpenBLAS's threads are not used: its partition of a product, and with it the
 * order of the sums, depends on their number. Products are partitioned here, by
 * shape alone, and each part is one serial call. */
#ifndef MTI_CPU_BLAS_H
#define MTI_CPU_BLAS_H

#include <string.h>
#include <cblas.h>
#include "backends/cpu/cpu.h"

/* OpenBLAS chose its kernels for `core`: the better choice on a CPU with these instructions, or
 * NULL if there is none. */
const char *mti_openblas_better_core(const char *core, bool has_avx2, bool has_avx512);

/* ---- several workers over one list of items ---- */

/* Does items [begin, end); `worker` selects the worker's own scratch slot. */
typedef void mti_cpu_work_fn(void *arg, int worker, int64_t begin, int64_t end);

/* Calls fn over [0, n) in runs of `grain` items. Each run goes to the next idle worker, so an
 * item's result must not depend on the worker. Inside fn, cblas_* are serial. False, with no
 * item done, if there is no memory for OpenBLAS's buffers. */
bool mti_cpu_workers(mti_ctx *ctx, int n_workers, int64_t n, int64_t grain, mti_cpu_work_fn *fn,
                     void *arg);
/* Calls fn once, for [0, n), with OpenMP serial; for libraries other than OpenBLAS. */
void mti_cpu_serially(mti_cpu_work_fn *fn, void *arg, int64_t n);

/* The number of workers, at most n_workers, whose scratch fits in n_scratch bytes. It may be fewer
 * if another host thread has raised the thread count since the scratch was sized. */
int mti_cpu_scratch_workers(int n_workers, size_t n_scratch, size_t per_worker);

/* Whether the system has so many bytes of address space left: libraries may end the process where
 * they get none. */
bool mti_cpu_can_map(size_t n_bytes);

/* ---- one serial product in f32 or f64 ---- */

/* A matrix in memory: element (i, j) at i * ld + j, or at j * ld + i if transposed. */
typedef struct mti_mat {
    const void *data;
    int64_t ld;
    bool trans;
} mti_mat;

/* c [n] = alpha a [k] b [k,n] + beta c. b is read once, where it lies: cblas_sgemm packs it first,
 * which takes as long again. Some versions multiply c by a beta of 0, whatever lies there. */
static inline void mti_sgemv(int64_t n, int64_t k, float alpha, mti_mat a, mti_mat b, float beta,
                             float *c)
{
    if (beta == 0) memset(c, 0, (size_t)n * sizeof *c);
    cblas_sgemv(CblasRowMajor, b.trans ? CblasNoTrans : CblasTrans, (blasint)(b.trans ? n : k),
                (blasint)(b.trans ? k : n), alpha, b.data, (blasint)b.ld, a.data,
                a.trans ? (blasint)a.ld : 1, beta == 0 ? 1 : beta, c, 1);
}

/* c [m,n] = alpha a [m,k] b [k,n] + beta c, c in rows of ldc. */
static inline void mti_sgemm(int64_t m, int64_t n, int64_t k, float alpha, mti_mat a, mti_mat b,
                             float beta, float *c, int64_t ldc)
{
    if (m == 1) return mti_sgemv(n, k, alpha, a, b, beta, c);
    cblas_sgemm(CblasRowMajor, a.trans ? CblasTrans : CblasNoTrans,
                b.trans ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, alpha,
                a.data, (blasint)a.ld, b.data, (blasint)b.ld, beta, c, (blasint)ldc);
}

static inline void mti_dgemm(int64_t m, int64_t n, int64_t k, double alpha, mti_mat a, mti_mat b,
                             double beta, double *c, int64_t ldc)
{
    cblas_dgemm(CblasRowMajor, a.trans ? CblasTrans : CblasNoTrans,
                b.trans ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, alpha,
                a.data, (blasint)a.ld, b.data, (blasint)b.ld, beta, c, (blasint)ldc);
}

/* to [cols,rows] = scale * from^T; from [rows,cols] has its rows ld apart. */
static inline void mti_stranspose(int64_t rows, int64_t cols, float scale, const float *from,
                                  int64_t ld, float *to, int64_t ld_to)
{
    cblas_somatcopy(CblasRowMajor, CblasTrans, (blasint)rows, (blasint)cols, scale, from,
                    (blasint)ld, to, (blasint)ld_to);
}

#endif
