/* cublaslt.h: the parts of cuBLASLt's interface that we use, declared here: the library is
 * loaded at the first product, so neither it nor its headers are needed to build. */
#ifndef MTI_CUBLASLT_H
#define MTI_CUBLASLT_H

#include <stddef.h>
#include <stdint.h>
#include "backends/cuda/gpu.h"

enum { LT_OK = 0, LT_NOT_SUPPORTED = 15 };                 /* cublasStatus_t */
enum { LT_F32 = 0, LT_F64 = 1, LT_F16 = 2, LT_BF16 = 14 }; /* cudaDataType_t */
enum { LT_COMPUTE_F32 = 68, LT_COMPUTE_F64 = 70, LT_COMPUTE_TF32 = 77 };
enum { LT_OP_N = 0, LT_OP_T = 1 };
enum { LT_DESC_TRANSA = 3, LT_DESC_TRANSB = 4, LT_DESC_EPILOGUE = 7, LT_DESC_BIAS = 8 };
enum { LT_DESC_BIAS_TYPE = 26 };
/* SUMS_B: stores the sums over k of the second matrix, one for each column of the result, in the
 * result's dtype. */
enum { LT_EPILOGUE_NONE = 1, LT_EPILOGUE_BIAS = 4, LT_EPILOGUE_SUMS_B = 512 };
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

/* Where the real header is installed, it holds the figures above. */
#if !defined(MTI_CUDASIM) && __has_include(<cublasLt.h>)
#include <cublasLt.h>
#define LT_IS(ours, theirs) static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
LT_IS(LT_OK, CUBLAS_STATUS_SUCCESS);
LT_IS(LT_NOT_SUPPORTED, CUBLAS_STATUS_NOT_SUPPORTED);
LT_IS(LT_F32, CUDA_R_32F);
LT_IS(LT_F64, CUDA_R_64F);
LT_IS(LT_F16, CUDA_R_16F);
LT_IS(LT_BF16, CUDA_R_16BF);
LT_IS(LT_COMPUTE_F32, CUBLAS_COMPUTE_32F);
LT_IS(LT_COMPUTE_F64, CUBLAS_COMPUTE_64F);
LT_IS(LT_COMPUTE_TF32, CUBLAS_COMPUTE_32F_FAST_TF32);
LT_IS(LT_OP_N, CUBLAS_OP_N);
LT_IS(LT_OP_T, CUBLAS_OP_T);
LT_IS(LT_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSA);
LT_IS(LT_DESC_TRANSB, CUBLASLT_MATMUL_DESC_TRANSB);
LT_IS(LT_DESC_EPILOGUE, CUBLASLT_MATMUL_DESC_EPILOGUE);
LT_IS(LT_DESC_BIAS, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
LT_IS(LT_DESC_BIAS_TYPE, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
LT_IS(LT_EPILOGUE_NONE, CUBLASLT_EPILOGUE_DEFAULT);
LT_IS(LT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_BIAS);
LT_IS(LT_EPILOGUE_SUMS_B, CUBLASLT_EPILOGUE_BGRADB);
LT_IS(LT_LAYOUT_BATCH, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT);
LT_IS(LT_LAYOUT_BATCH_STRIDE, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET);
LT_IS(LT_PREF_WORKSPACE, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
LT_IS(LT_PREF_REDUCTIONS, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
LT_IS(LT_PREF_ALIGN_A, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
LT_IS(LT_PREF_ALIGN_A + 3, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
LT_IS(LT_REDUCE_IN_COMPUTE_TYPE, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
LT_IS(sizeof(lt_algo), sizeof(cublasLtMatmulAlgo_t));
LT_IS(sizeof(lt_heuristic), sizeof(cublasLtMatmulHeuristicResult_t));
LT_IS(offsetof(lt_heuristic, n_workspace),
      offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize));
LT_IS(offsetof(lt_heuristic, status), offsetof(cublasLtMatmulHeuristicResult_t, state));
#undef LT_IS
#endif

#ifdef MTI_CUDASIM
/* tests/cudasim/cublaslt.cc: the function of this name, or NULL */
void *cudasim_cublaslt(const char *name);
#endif

#endif
