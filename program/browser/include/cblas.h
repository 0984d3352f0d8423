/* cblas.h: what src/backends/cpu calls of OpenBLAS, as plain loops of products.c. */
#include <stdint.h>

typedef int blasint;
enum { CblasRowMajor = 101, CblasNoTrans = 111, CblasTrans = 112 };
#define OPENBLAS_THREAD 1

static inline const char *openblas_get_config(void) { return "no OpenBLAS"; }
static inline const char *openblas_get_corename(void) { return "WebAssembly"; }
static inline int openblas_get_parallel(void) { return 0; }
static inline int openblas_get_num_threads(void) { return 1; }
static inline void openblas_set_num_threads(int n) { (void)n; }

void cblas_sgemm(int order, int ta, int tb, blasint m, blasint n, blasint k, float alpha,
                 const float *a, blasint lda, const float *b, blasint ldb, float beta, float *c,
                 blasint ldc);
void cblas_dgemm(int order, int ta, int tb, blasint m, blasint n, blasint k, double alpha,
                 const double *a, blasint lda, const double *b, blasint ldb, double beta, double *c,
                 blasint ldc);
void cblas_sgemv(int order, int trans, blasint m, blasint n, float alpha, const float *a,
                 blasint lda, const float *x, blasint incx, float beta, float *y, blasint incy);
void cblas_somatcopy(int order, int trans, blasint rows, blasint cols, float alpha, const float *a,
                     blasint lda, float *b, blasint ldb);
