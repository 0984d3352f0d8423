/* gemm.h: one batched product, divided into tiles. */
#ifndef MTI_CPU_GEMM_H
#define MTI_CPU_GEMM_H

#include <stdatomic.h>
#include "backends/cpu/products/blas.h"

/* ---- which library makes it, and in how many tiles: choose.c ---- */

typedef enum mti_library { MTI_OPENBLAS, MTI_ONEDNN } mti_library;

/* Whether rows (N) or columns (T) of a and b are contiguous. */
typedef enum mti_gemm_form {
    MTI_GEMM_NN = 1,
    MTI_GEMM_NT = 2,
    MTI_GEMM_TN = 4,
    MTI_GEMM_TT = 8,
    MTI_GEMM_THIN_NT = 16 /* NT with few rows or columns; for the table */
} mti_gemm_form;

/* Tiles: those of OpenBLAS's kernels without packing, if it has them; those of 16-bit floats. */
#define MTI_GEMM_UNPACKED 0
#define MTI_GEMM_OWN      -1

typedef struct mti_gemm_choice {
    mti_library library;
    int tiles; /* at most so many that may be small, or one of the above */
} mti_gemm_choice;

/* By products.def, for m x n x k multiply-adds: those of one matrix of a batch. */
mti_gemm_choice mti_gemm_choose(mt_dtype dtype, mti_gemm_form form, int64_t m, int64_t n,
                                int64_t k);
bool mti_gemm_has(mti_library library); /* in this build, and not refused by MEMTAPE_ONEDNN=0 */
/* The processor by the table's names, which has the widest registers: "ALL" is none of the others.
 */
const char *mti_gemm_processor(void);

/* c = a b by this choice, whatever the table says; f32. For the benchmark. */
bool mti_gemm_chosen(mti_ctx *ctx, mti_gemm_choice choice, const mti_view *a, const mti_view *b,
                     const mti_view *c);

/* ---- a product ---- */

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
    mti_library library; /* of f32 and f64 */
    bool native;         /* bf16 by oneDNN, which needs native_scratch bytes */
    size_t native_scratch;
    atomic_int *failure; /* oneDNN's status other than success, once it had one */
    char *scratch;
    size_t scratch_per_worker, scratch_bytes; /* the latter of all */
} mti_gemm;

static inline mti_gemm_form mti_gemm_form_of(const mti_gemm *g)
{
    return g->a.trans ? (g->b.trans ? MTI_GEMM_TT : MTI_GEMM_TN)
                      : (g->b.trans ? MTI_GEMM_NT : MTI_GEMM_NN);
}

/* One tile of one batch item: rows and columns [i, i + m) x [j, j + n) of c. */
typedef struct mti_gemm_tile {
    int64_t i, j, m, n;
    const char *a, *b; /* this batch item's matrices */
    char *c;
} mti_gemm_tile;

/* gemm_bf16.c. fits: can oneDNN take the operands? plan, after tiling: sets native (false if oneDNN
 * refuses these operands) and native_scratch. */
bool mti_gemm_bf16_fits(const mti_gemm *g);
void mti_gemm_bf16_plan(mti_gemm *g);
/* c [t->m,t->n] = a b, without alpha; false, without mti_fail, when oneDNN fails. */
bool mti_gemm_bf16_product(const mti_gemm *g, const mti_gemm_tile *t, float *c, void *scratch);

/* gemm_f32.c. product: c [m,n] = alpha a b + beta c by oneDNN, in one serial call; a failure goes
 * to *g->failure. report: that as our error, false. */
void mti_gemm_f32_product(const mti_gemm *g, int64_t m, int64_t n, int64_t k, mti_mat a, mti_mat b,
                          float beta, float *c, int64_t ldc);
bool mti_gemm_f32_report(const mti_gemm *g);

/* c [m,n] = alpha a b + beta c of f32 by a library, in one serial call. */
static inline void mti_gemm_serial_f32(const mti_gemm *g, mti_library library, int64_t m, int64_t n,
                                       int64_t k, mti_mat a, mti_mat b, float beta, float *c,
                                       int64_t ldc)
{
    if (library == MTI_ONEDNN)
        mti_gemm_f32_product(g, m, n, k, a, b, beta, c, ldc);
    else
        mti_sgemm(m, n, k, (float)g->alpha, a, b, beta, c, ldc);
}

/* gemm_half.c: a tile of 16-bit floats. scratch: mti_gemm_half_scratch bytes. */
size_t mti_gemm_half_scratch(const mti_gemm *g);
void mti_gemm_half_tile(const mti_gemm *g, const mti_gemm_tile *t, void *scratch);

#endif
