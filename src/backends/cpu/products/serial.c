/* serial.c: one product of f32 on the caller's thread, by the library that the table chose. */
#include "backends/cpu/products/gemm.h"

void mti_gemm_serial_f32(const mti_gemm *g, mti_library library, int64_t m, int64_t n, int64_t k,
                         mti_mat a, mti_mat b, float beta, float *c, int64_t ldc)
{
    if (library == MTI_ONEDNN)
        mti_gemm_f32_product(g, m, n, k, a, b, beta, c, ldc);
    else if (library == MTI_MEMTAPE)
        mti_gemm_avx2_product(m, n, k, (float)g->alpha, a, b, beta != 0 ? c : NULL, ldc, c, ldc);
    else
        mti_sgemm(m, n, k, (float)g->alpha, a, b, beta, c, ldc);
}

void mti_gemm_small_f32(int64_t m, int64_t n, int64_t k, float alpha, mti_mat a, mti_mat b,
                        float beta, float *c, int64_t ldc)
{
    mti_gemm_form form =
        a.trans ? (b.trans ? MTI_GEMM_TT : MTI_GEMM_TN) : (b.trans ? MTI_GEMM_NT : MTI_GEMM_NN);
    if (mti_gemm_choose(MT_F32, form, m, n, k).library == MTI_MEMTAPE)
        mti_gemm_avx2_product(m, n, k, alpha, a, b, beta != 0 ? c : NULL, ldc, c, ldc);
    else
        mti_sgemm(m, n, k, alpha, a, b, beta, c, ldc);
}
