/* plan.h: products as cuBLASLt sees them, and the plans that are kept for them. */
#ifndef MTI_CUDA_PLAN_H
#define MTI_CUDA_PLAN_H

#include "backends/cuda/products/cublaslt.h"

/* More alignment than the widest vector access needs is no part of a plan: bits would depend on
 * where a tensor happens to lie. An epilogue's vector needs that much. */
#define MTI_PLAN_ALIGN 16

/* A matrix as cuBLASLt sees it: [rows,cols] column-major. */
struct mti_lt_matrix {
    const void *data;
    bool trans;
    int64_t rows, cols, ld;
    int64_t batch_stride[MT_MAX_RANK];
};

struct mti_lt_product {
    mt_dtype dtype, c_dtype; /* f32 beside 16 bits, otherwise the same */
    int64_t m, n, k;         /* sizes of cuBLASLt's product: c is [m,n] column-major */
    mti_lt_matrix a, b, c;
    int batch_rank;
    int64_t batch_shape[MT_MAX_RANK];
    uint32_t epilogue;  /* LT_EPILOGUE_: what else the product does */
    const void *vector; /* the bias that it adds, or where it stores its operand's sums; or NULL */
    size_t n_workspace; /* bytes that it may use */
};

/* The matrices of the products over the innermost batch dimension. */
struct mti_operands {
    const void *a, *b;
    void *c;
};

/* All that the choice of algorithm depends on. Keys are compared as bytes, so padding is 0. */
struct mti_plan_key {
    int64_t m, n, k, lda, ldb, ldc, n_batch, stride_a, stride_b, stride_c;
    uint64_t n_workspace;
    int dtype, c_dtype, trans_a, trans_b, epilogue;
    int align_a, align_b, align_c, align_vector;
};

/* Which form of a product with sums is faster, as its first call found. */
enum mti_sums_form { MTI_SUMS_UNTIMED, MTI_SUMS_IN_ONE, MTI_SUMS_APART };

struct mti_plan {
    mti_plan *next;
    mti_plan_key key;
    uint64_t used; /* when, in calls */
    lt_desc_t desc;
    lt_layout_t a, b, c;
    int status; /* of the choice; with an epilogue the library may have no such product */
    lt_algo algo;
    int64_t n, k; /* the sizes that the layouts have ... */
    bool fits;    /* ... and whether the algorithm takes them */
    mti_sums_form form;
};

struct mti_cublas {
    pthread_mutex_t lock; /* several host threads may multiply on one device */
    lt_functions lt;
    lt_handle_t handle;
    struct mti_plan_table *plans;
};

/* True if cuBLASLt's call succeeded. */
bool mti_lt_ok(int status, const char *what);
/* Opens the library at the first product. Needs the lock, as does what follows. */
bool mti_blas_load(mti_cublas *blas);
/* The product's plan, whose layouts have its sizes; NULL on failure. It is chosen for the number of
 * rows rounded up, so that few are chosen where that number changes from call to call, as that of
 * an expert's rows does; if its algorithm does not take this number, for this number. So the
 * algorithm follows from the product alone, and not from those before it. */
mti_plan *mti_plan_of(mti_ctx *ctx, const mti_lt_product *g, const mti_operands *at);
static inline bool mti_plan_is_offered(const mti_plan *p) { return p->status == LT_OK; }

/* One product, of a batch those of the innermost dimension. Needs the lock. */
bool mti_multiply(mti_ctx *ctx, const mti_lt_product *g, const mti_operands *at, double alpha,
                  double beta, void *scratch);

/* The alignment of an address, as far as plans see it. */
static inline int mti_plan_alignment(const void *p)
{
    uintptr_t lowest = (uintptr_t)p & (~(uintptr_t)p + 1);
    return lowest == 0 || lowest > MTI_PLAN_ALIGN ? MTI_PLAN_ALIGN : (int)lowest;
}

#endif
