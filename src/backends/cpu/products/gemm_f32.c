/* gemm_f32.c: products of f32 by oneDNN, where its kernels are faster than OpenBLAS's. One product
 * is one serial call, so any thread computes the same bits. */
#include <stdlib.h>
#include <string.h>
#include "backends/cpu/products/gemm.h"

#ifdef MTI_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>

mti_onednn_wish mti_onednn_wished(void)
{
    const char *wish = getenv("MEMTAPE_ONEDNN");
    if (!wish || (strcmp(wish, "0") != 0 && strcmp(wish, "1") != 0)) return MTI_ONEDNN_UNSAID;
    return *wish == '1' ? MTI_ONEDNN_ALWAYS : MTI_ONEDNN_NEVER;
}

/* Up to so many multiply-adds OpenBLAS's products without packing are as fast, and ask the heap for
 * less. On one thread of a Xeon (family 6, model 207), the products of the benchmark's models
 * reached 141 to 198 GFLOP/s with oneDNN 2.6 and 117 to 169 with OpenBLAS 0.3.21. Two threads of a
 * Zen 4 reached 200 to 228 with oneDNN in the larger ones and 163 to 195 with OpenBLAS; there
 * OpenBLAS is ahead for longer, and steps with a b^T by either take as long. */
#define WORTH_MACS (1 << 21)
#define WORTH_AMD  (1 << 24)

bool mti_gemm_f32_wanted(double macs, bool dots)
{
    if (macs <= WORTH_MACS) return false; /* before oneDNN is asked, which takes memory */
    mti_onednn_wish wish = mti_onednn_wished();
    if (wish != MTI_ONEDNN_UNSAID) return wish == MTI_ONEDNN_ALWAYS;
#ifdef __x86_64__
    dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa(), wanted = dnnl_cpu_isa_avx512_core;
    if ((isa & wanted) != wanted) return false;
    if (__builtin_cpu_is("intel")) return true;
    return __builtin_cpu_is("amd") && !dots && macs > WORTH_AMD;
#else
    (void)dots;
    return false;
#endif
}

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

bool mti_gemm_f32_wanted(double macs, bool dots)
{
    (void)macs, (void)dots;
    return false;
}

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
