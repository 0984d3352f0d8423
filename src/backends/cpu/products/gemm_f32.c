/* gemm_f32.c: products of f32 by oneDNN. One product is one serial call, so any thread computes the
 * same bits. */
#include "backends/cpu/products/gemm.h"

#ifdef MTI_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>

/* What oneDNN may ask for as it makes its kernels, in the first product. If it is refused that, an
 * exception finds no way out and ends the process. */
#define KERNEL_BYTES ((size_t)128 << 20)
static atomic_bool made_kernels;

void mti_gemm_f32_product(const mti_gemm *g, int64_t m, int64_t n, int64_t k, mti_mat a, mti_mat b,
                          float beta, float *c, int64_t ldc)
{
    dnnl_status_t status = dnnl_out_of_memory;
    if (atomic_load_explicit(&made_kernels, memory_order_acquire) || mti_cpu_can_map(KERNEL_BYTES))
        status = dnnl_sgemm(a.trans ? 'T' : 'N', b.trans ? 'T' : 'N', m, n, k, (float)g->alpha,
                            a.data, a.ld, b.data, b.ld, beta, c, ldc);
    if (status == dnnl_success)
        atomic_store_explicit(&made_kernels, true, memory_order_release);
    else
        atomic_store(g->failure, (int)status);
}

bool mti_gemm_f32_report(const mti_gemm *g)
{
    int status = atomic_load(g->failure);
    long long m = g->m, n = g->n, k = g->k;
    if (status == dnnl_out_of_memory)
        return mti_fail_bool(
            MT_ERR_MEMORY,
            "cpu out of memory: oneDNN got none for its kernels (%zu bytes of address space; "
            "ulimit -v?) or its copies of the operands of a product of [%lld,%lld] and "
            "[%lld,%lld]; MEMTAPE_ONEDNN=0 takes OpenBLAS",
            KERNEL_BYTES, m, k, k, n);
    return mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "gemm: oneDNN failed with status %d in a product of [%lld,%lld] and "
                         "[%lld,%lld]; MEMTAPE_ONEDNN=0 takes OpenBLAS",
                         status, m, k, k, n);
}

#else

void mti_gemm_f32_product(const mti_gemm *g, int64_t m, int64_t n, int64_t k, mti_mat a, mti_mat b,
                          float beta, float *c, int64_t ldc)
{
    mti_sgemm(m, n, k, (float)g->alpha, a, b, beta, c, ldc);
}

bool mti_gemm_f32_report(const mti_gemm *g)
{
    (void)g;
    return true;
}

#endif
