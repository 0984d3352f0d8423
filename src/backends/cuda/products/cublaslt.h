/* cublaslt.h: the parts of cuBLASLt's interface that we use, declared here: the library is
 * loaded at the first product, so neither it nor its headers are needed to build. */
#ifndef MTI_CUBLASLT_H
#define MTI_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>
#include "backends/cuda/gpu.h"

/* V(ours, its value, the library's name). SUMS_B: stores the sums over k of the second matrix, one
 * for each column of the result, in the result's dtype. PREF_ALIGN_A: then B, C, D. */
#define LT_VALUES(V)                                                                               \
    V(LT_OK, 0, CUBLAS_STATUS_SUCCESS)                                                             \
    V(LT_NOT_SUPPORTED, 15, CUBLAS_STATUS_NOT_SUPPORTED)                                           \
    V(LT_F32, 0, CUDA_R_32F)                                                                       \
    V(LT_F64, 1, CUDA_R_64F)                                                                       \
    V(LT_F16, 2, CUDA_R_16F)                                                                       \
    V(LT_BF16, 14, CUDA_R_16BF)                                                                    \
    V(LT_COMPUTE_F32, 68, CUBLAS_COMPUTE_32F)                                                      \
    V(LT_COMPUTE_F64, 70, CUBLAS_COMPUTE_64F)                                                      \
    V(LT_COMPUTE_TF32, 77, CUBLAS_COMPUTE_32F_FAST_TF32)                                           \
    V(LT_OP_N, 0, CUBLAS_OP_N)                                                                     \
    V(LT_OP_T, 1, CUBLAS_OP_T)                                                                     \
    V(LT_DESC_TRANSA, 3, CUBLASLT_MATMUL_DESC_TRANSA)                                              \
    V(LT_DESC_TRANSB, 4, CUBLASLT_MATMUL_DESC_TRANSB)                                              \
    V(LT_DESC_EPILOGUE, 7, CUBLASLT_MATMUL_DESC_EPILOGUE)                                          \
    V(LT_DESC_BIAS, 8, CUBLASLT_MATMUL_DESC_BIAS_POINTER)                                          \
    V(LT_DESC_BIAS_TYPE, 26, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE)                                  \
    V(LT_EPILOGUE_NONE, 1, CUBLASLT_EPILOGUE_DEFAULT)                                              \
    V(LT_EPILOGUE_BIAS, 4, CUBLASLT_EPILOGUE_BIAS)                                                 \
    V(LT_EPILOGUE_SUMS_B, 512, CUBLASLT_EPILOGUE_BGRADB)                                           \
    V(LT_LAYOUT_COLS, 3, CUBLASLT_MATRIX_LAYOUT_COLS)                                              \
    V(LT_LAYOUT_BATCH, 5, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)                                      \
    V(LT_LAYOUT_BATCH_STRIDE, 6, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)                      \
    V(LT_PREF_WORKSPACE, 1, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)                              \
    V(LT_PREF_REDUCTIONS, 3, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)                           \
    V(LT_PREF_ALIGN_A, 5, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)                              \
    V(LT_PREF_ALIGN_D, 8, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES)                              \
    V(LT_REDUCE_IN_COMPUTE_TYPE, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
#define LT_VALUE(ours, value, theirs) ours = value,
enum { LT_VALUES(LT_VALUE) };
#undef LT_VALUE

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
    F(check, cublasLtMatmulAlgoCheck,                                                              \
      (lt_handle_t, lt_desc_t, lt_layout_t a, lt_layout_t b, lt_layout_t c, lt_layout_t d,         \
       const lt_algo *, lt_heuristic *))                                                           \
    F(matmul, cublasLtMatmul,                                                                      \
      (lt_handle_t, lt_desc_t, const void *alpha, const void *a, lt_layout_t, const void *b,       \
       lt_layout_t, const void *beta, const void *c, lt_layout_t, void *d, lt_layout_t,            \
       const lt_algo *, void *workspace, size_t n_workspace, cudaStream_t))

#define LT_MEMBER(member, name, parameters) int(*member) parameters;
typedef struct lt_functions {
    LT_FUNCTIONS(LT_MEMBER)
} lt_functions;
#undef LT_MEMBER

/* Where the real header is installed, it holds the figures above. */
#if !defined(MTI_CUDASIM) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define LT_IS(ours, theirs)           static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
#define LT_CHECK(ours, value, theirs) LT_IS(ours, theirs);
LT_VALUES(LT_CHECK)
#undef LT_CHECK
LT_IS(sizeof(lt_algo), sizeof(cublasLtMatmulAlgo_t));
LT_IS(sizeof(lt_heuristic), sizeof(cublasLtMatmulHeuristicResult_t));
LT_IS(offsetof(lt_heuristic, n_workspace),
      offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
LT_IS(offsetof(lt_heuristic, status), offsetof(cublasLtMatmulHeuristicResult_t, state));
#undef LT_IS
#endif

#ifdef MTI_CUDASIM
/* tests/src/cudasim/cublaslt.cc: the function of this name, or NULL */
void *cudasim_cublaslt(const char *name);
#endif

#endif
