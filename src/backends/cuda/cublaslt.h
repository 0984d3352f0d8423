/* cublaslt.h: the parts of cuBLASLt's interface that we use, declared here: the library is
 * loaded at the first product, so neither it nor its headers are needed to build. */
#ifndef MTI_CUBLASLT_H
#define MTI_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>
#include "backends/cuda/gpu.h"

enum { LT_OK = 0 };                                        /* cublasStatus_t */
enum { LT_F32 = 0, LT_F64 = 1, LT_F16 = 2, LT_BF16 = 14 }; /* cudaDataType_t */
enum { LT_COMPUTE_F32 = 68, LT_COMPUTE_F64 = 70, LT_COMPUTE_TF32 = 77 };
enum { LT_OP_N = 0, LT_OP_T = 1 };
enum { LT_DESC_TRANSA = 3, LT_DESC_TRANSB = 4, LT_DESC_EPILOGUE = 7, LT_DESC_BIAS = 8 };
enum { LT_DESC_BIAS_TYPE = 26 };
enum { LT_EPILOGUE_NONE = 1, LT_EPILOGUE_BIAS = 4 };
enum { LT_LAYOUT_BATCH = 5, LT_LAYOUT_BATCH_STRIDE = 6 };
enum { LT_PREF_WORKSPACE = 1, LT_PREF_REDUCTIONS = 3, LT_PREF_ALIGN_A = 5 }; /* then B, C, D */
enum { LT_REDUCE_IN_COMPUTE_TYPE = 2 };

typedef struct lt_handle *lt_handle_t;
typedef struct lt_desc *lt_desc_t;
typedef struct lt_layout *lt_layout_t;
typedef struct lt_pref *lt_pref_t;

typedef struct lt_algo {
    uint64_t data[8];
} lt_algo;

typedef struct lt_heuristic {
    lt_algo algo;
    size_t n_workspace;
    int status;
    float waves;
    int reserved[4];
} lt_heuristic;

/* NAME(member, function's name, parameters) */
#define LT_FUNCTIONS(F)                                                                            \
    F(create, cublasLtCreate, (lt_handle_t *))                                                     \
    F(destroy, cublasLtDestroy, (lt_handle_t))                                                     \
    F(desc_create, cublasLtMatmulDescCreate, (lt_desc_t *, int compute, int scale))                \
    F(desc_destroy, cublasLtMatmulDescDestroy, (lt_desc_t))                                        \
    F(desc_set, cublasLtMatmulDescSetAttribute, (lt_desc_t, int, const void *, size_t))            \
    F(layout_create, cublasLtMatrixLayoutCreate,                                                   \
      (lt_layout_t *, int type, uint64_t rows, uint64_t cols, int64_t ld))                         \
    F(layout_destroy, cublasLtMatrixLayoutDestroy, (lt_layout_t))                                  \
    F(layout_set, cublasLtMatrixLayoutSetAttribute, (lt_layout_t, int, const void *, size_t))      \
    F(pref_create, cublasLtMatmulPreferenceCreate, (lt_pref_t *))                                  \
    F(pref_destroy, cublasLtMatmulPreferenceDestroy, (lt_pref_t))                                  \
    F(pref_set, cublasLtMatmulPreferenceSetAttribute, (lt_pref_t, int, const void *, size_t))      \
    F(heuristic, cublasLtMatmulAlgoGetHeuristic,                                                   \
      (lt_handle_t, lt_desc_t, lt_layout_t a, lt_layout_t b, lt_layout_t c, lt_layout_t d,         \
       lt_pref_t, int n_wanted, lt_heuristic *, int *n_found))                                     \
    F(matmul, cublasLtMatmul,                                                                      \
      (lt_handle_t, lt_desc_t, const void *alpha, const void *a, lt_layout_t, const void *b,       \
       lt_layout_t, const void *beta, const void *c, lt_layout_t, void *d, lt_layout_t,            \
       const lt_algo *, void *workspace, size_t n_workspace, cudaStream_t))

#define LT_MEMBER(member, name, parameters) int(*member) parameters;
typedef struct lt_functions {
    LT_FUNCTIONS(LT_MEMBER)
} lt_functions;
#undef LT_MEMBER

#ifdef MTI_CUDASIM
/* tests/cudasim/cublaslt.cc: the function of this name, or NULL */
void *cudasim_cublaslt(const char *name);
#endif

#endif
