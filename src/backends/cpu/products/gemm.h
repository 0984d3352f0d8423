/* gemm.h: one batched product, divided into tiles. */
#ifndef MTI_CPU_GEMM_H
#define MTI_CPU_GEMM_H

#include <stdatomic.h>
#include "backends/cpu/products/blas.h"

/* One operand: the first batch item's matrix and the strides to the others. */
typedef struct mti_gemm_operand {
    char *data;
    int64_t ld;
    bool trans; /* as in mti_mat; false for c */
    int64_t batch_stride[MT_MAX_RANK];
} mti_gemm_operand;

typedef struct mti_gemm {
    mt_dtype dtype, c_dtype;
    size_t size, c_size; /* of an element */
    double alpha;
    bool accumulate; /* beta is not 0 */
    float beta;      /* 1 but for 16 bits */
    int64_t m, n, k;
    int batch_rank;
    int64_t batch_shape[MT_MAX_RANK], n_batch;
    mti_gemm_operand a, b, c;
    const char *bias;
    bool bias_per_row; /* c was column-major, so the whole product is transposed */

    bool transpose_b;               /* a tile of b is transposed on the stack first */
    int64_t tile_m, tile_n, tile_k; /* depend on shapes and dtype alone */
    int64_t tiles_m, tiles_n, n_items, grain;
    int n_workers;
    bool native; /* by oneDNN, which needs native_scratch bytes for bf16 */
    size_t native_scratch;
    atomic_int *failure; /* oneDNN's status other than success, once it had one */
    char *scratch;
    size_t scratch_per_worker, scratch_bytes; /* the latter of all */
} mti_gemm;

/* One tile of one batch item: rows and columns [i, i + m) x [j, j + n) of c. */
typedef struct mti_gemm_tile {
    int64_t i, j, m, n;
    const char *a, *b; /* this batch item's matrices */
    char *c;
} mti_gemm_tile;

/* What MEMTAPE_ONEDNN says: 0, oneDNN for no product; 1, on every CPU that it has kernels for; else
 * where it is known to be faster. Of gemm_f32.c, for gemm_bf16.c too. */
typedef enum mti_onednn_wish {
    MTI_ONEDNN_UNSAID,
    MTI_ONEDNN_NEVER,
    MTI_ONEDNN_ALWAYS
} mti_onednn_wish;
mti_onednn_wish mti_onednn_wished(void);

/* gemm_bf16.c. wanted: is oneDNN available, capable and faster? plan, after tiling: sets native
 * (false if oneDNN refuses these operands) and native_scratch. */
bool mti_gemm_bf16_wanted(const mti_gemm *g);
void mti_gemm_bf16_plan(mti_gemm *g);
/* c [t->m,t->n] = a b, without alpha; false, without mti_fail, when oneDNN fails. */
bool mti_gemm_bf16_product(const mti_gemm *g, const mti_gemm_tile *t, float *c, void *scratch);

/* gemm_f32.c. wanted: is oneDNN available, and faster for f32 with so many multiply-adds? dots: it
 * is a b^T, dot products of rows. product: c [m,n] = alpha a b + beta c by it, in one serial call;
 * a failure goes to *g->failure. report: that as our error, false. */
bool mti_gemm_f32_wanted(double macs, bool dots);
void mti_gemm_f32_product(const mti_gemm *g, int64_t m, int64_t n, int64_t k, mti_mat a, mti_mat b,
                          float beta, float *c, int64_t ldc);
bool mti_gemm_f32_report(const mti_gemm *g);

/* gemm_half.c: a tile of 16-bit floats. scratch: mti_gemm_half_scratch bytes. */
size_t mti_gemm_half_scratch(const mti_gemm *g);
void mti_gemm_half_tile(const mti_gemm *g, const mti_gemm_tile *t, void *scratch);

#endif
