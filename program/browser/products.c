/* products.c: the calls of OpenBLAS that src/backends/cpu makes, as plain loops. */
#include <stdlib.h>
#include <string.h>
#include "cblas.h"

/* Element (i, j) of a matrix with rows of ld, or of its transpose. */
#define AT(p, ld, t, i, j)                                                                         \
    ((t) == CblasTrans ? (p)[(int64_t)(j) * (ld) + (i)] : (p)[(int64_t)(i) * (ld) + (j)])

/* b, or its transpose, lies row by row, so that the innermost loop runs along rows. Each sum goes
 * from the first product to the last. */
#define GEMM(name, T)                                                                              \
    static void add_rows_##name(T *sum, blasint n, T x, const T *row, T y, const T *next)          \
    {                                                                                              \
        for (blasint j = 0; j < n; j++) {                                                          \
            T s = sum[j];                                                                          \
            s += x * row[j];                                                                       \
            s += y * next[j];                                                                      \
            sum[j] = s;                                                                            \
        }                                                                                          \
    }                                                                                              \
    void name(int order, int ta, int tb, blasint m, blasint n, blasint k, T alpha, const T *a,     \
              blasint lda, const T *b, blasint ldb, T beta, T *c, blasint ldc)                     \
    {                                                                                              \
        (void)order;                                                                               \
        T *rows = malloc(sizeof(T) * (size_t)n * (size_t)(k + 1)), *sum = rows + (size_t)n * k;    \
        if (!rows) __builtin_trap();                                                               \
        for (blasint l = 0; l < k; l++)                                                            \
            for (blasint j = 0; j < n; j++) rows[(int64_t)l * n + j] = AT(b, ldb, tb, l, j);       \
        for (blasint i = 0; i < m; i++) {                                                          \
            memset(sum, 0, sizeof(T) * (size_t)n);                                                 \
            for (blasint l = 0; l + 1 < k; l += 2)                                                 \
                add_rows_##name(sum, n, AT(a, lda, ta, i, l), rows + (int64_t)l * n,               \
                                AT(a, lda, ta, i, l + 1), rows + (int64_t)(l + 1) * n);            \
            const T last = k % 2 ? AT(a, lda, ta, i, k - 1) : 0;                                   \
            T *to = &c[(int64_t)i * ldc];                                                          \
            for (blasint j = 0; j < n; j++) {                                                      \
                T s = k % 2 ? sum[j] + last * rows[(int64_t)(k - 1) * n + j] : sum[j];             \
                to[j] = alpha * s + (beta == 0 ? 0 : beta * to[j]);                                \
            }                                                                                      \
        }                                                                                          \
        free(rows);                                                                                \
    }

GEMM(cblas_sgemm, float)
GEMM(cblas_dgemm, double)

void cblas_sgemv(int order, int trans, blasint m, blasint n, float alpha, const float *a,
                 blasint lda, const float *x, blasint incx, float beta, float *y, blasint incy)
{
    (void)order;
    for (blasint j = 0; trans == CblasTrans && j < n; j++) y[(int64_t)j * incy] *= beta;
    for (blasint i = 0; i < m; i++) {
        const float *row = &a[(int64_t)i * lda], each = alpha * x[(int64_t)i * incx];
        float sum = 0;
        for (blasint j = 0; j < n; j++)
            if (trans == CblasTrans)
                y[(int64_t)j * incy] += each * row[j];
            else
                sum += row[j] * x[(int64_t)j * incx];
        if (trans != CblasTrans) y[(int64_t)i * incy] = alpha * sum + beta * y[(int64_t)i * incy];
    }
}

void cblas_somatcopy(int order, int trans, blasint rows, blasint cols, float alpha, const float *a,
                     blasint lda, float *b, blasint ldb)
{
    (void)order, (void)trans;
    for (blasint i = 0; i < rows; i++)
        for (blasint j = 0; j < cols; j++)
            b[(int64_t)j * ldb + i] = alpha * a[(int64_t)i * lda + j];
}
