/* products.c: the calls of OpenBLAS that src/backends/cpu makes, as plain loops. */
#include "cblas.h"

/* Element (i, j) of a matrix with rows of ld, or of its transpose. */
#define AT(p, ld, t, i, j)                                                                         \
    ((t) == CblasTrans ? (p)[(int64_t)(j) * (ld) + (i)] : (p)[(int64_t)(i) * (ld) + (j)])

#define GEMM(name, T)                                                                              \
    void name(int order, int ta, int tb, blasint m, blasint n, blasint k, T alpha, const T *a,     \
              blasint lda, const T *b, blasint ldb, T beta, T *c, blasint ldc)                     \
    {                                                                                              \
        (void)order;                                                                               \
        for (blasint i = 0; i < m; i++)                                                            \
            for (blasint j = 0; j < n; j++) {                                                      \
                T sum = 0, *to = &c[(int64_t)i * ldc + j];                                         \
                for (blasint l = 0; l < k; l++)                                                    \
                    sum += AT(a, lda, ta, i, l) * AT(b, ldb, tb, l, j);                            \
                *to = alpha * sum + (beta == 0 ? 0 : beta * *to);                                  \
            }                                                                                      \
    }

GEMM(cblas_sgemm, float)
GEMM(cblas_dgemm, double)

void cblas_somatcopy(int order, int trans, blasint rows, blasint cols, float alpha, const float *a,
                     blasint lda, float *b, blasint ldb)
{
    (void)order, (void)trans;
    for (blasint i = 0; i < rows; i++)
        for (blasint j = 0; j < cols; j++)
            b[(int64_t)j * ldb + i] = alpha * a[(int64_t)i * lda + j];
}
