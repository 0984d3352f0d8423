/* choose.c: the library that makes a product, and its tiles: the first row of products.def that
 * applies. */
#include <stdlib.h>
#include <string.h>
#include "backends/cpu/products/gemm.h"

#ifdef MTI_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>
#endif

/* ---- processors ---- */

typedef enum processors {
    ASKED = 1 << 0,
    ASKED_BF16 = 1 << 1,
    AMX = 1 << 2,
    NOT_INTEL_BF16 = 1 << 3,
    INTEL_AVX512 = 1 << 4,
    AMD_AVX512 = 1 << 5,
    AMD_AVX2 = 1 << 6,
    ALL = 1 << 7
} processors;

/* What MEMTAPE_ONEDNN says: 0, oneDNN for no product; 1, on every CPU that it has kernels for. */
typedef enum wish { UNSAID, NEVER, ALWAYS } wish;

static wish wished(void)
{
#ifdef MTI_HAVE_ONEDNN
    const char *said = getenv("MEMTAPE_ONEDNN");
    if (!said || (strcmp(said, "0") != 0 && strcmp(said, "1") != 0)) return UNSAID;
    return *said == '1' ? ALWAYS : NEVER;
#else
    return NEVER;
#endif
}

#ifdef __x86_64__
static bool is_made_by(bool intel)
{
    return intel ? __builtin_cpu_is("intel") : __builtin_cpu_is("amd");
}

static processors narrow_processor(void)
{
    bool is_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                   !__builtin_cpu_supports("avx512f");
    return is_avx2 && is_made_by(false) ? AMD_AVX2 : 0;
}
#else
static inline bool is_made_by(bool intel) { return (void)intel, false; } /* only oneDNN asks */
static processors narrow_processor(void) { return 0; }
#endif

/* The processors of a row that are this one. oneDNN takes memory once it is asked, so it is asked
 * only about those that need it. */
static processors of_this(processors wanted)
{
    processors is = ALL | narrow_processor();
#ifdef MTI_HAVE_ONEDNN
    const processors of_onednn = AMX | ASKED_BF16 | NOT_INTEL_BF16 | INTEL_AVX512 | AMD_AVX512;
    if (wanted & ASKED && wished() == ALWAYS) is |= ASKED;
    if (wanted & of_onednn) {
        dnnl_cpu_isa_t isa = dnnl_get_effective_cpu_isa();
#define HAS(set) ((isa & dnnl_cpu_isa_##set) == dnnl_cpu_isa_##set)
        if (HAS(avx512_core_amx)) is |= AMX;
        if (HAS(avx512_core_bf16) && wished() == ALWAYS) is |= ASKED_BF16;
        if (HAS(avx512_core_bf16) && !is_made_by(true)) is |= NOT_INTEL_BF16;
        if (HAS(avx512_core) && is_made_by(true)) is |= INTEL_AVX512;
        if (HAS(avx512_core) && is_made_by(false)) is |= AMD_AVX512;
#undef HAS
    }
#endif
    return is & wanted;
}

/* ---- the table ---- */

typedef struct row {
    processors processors;
    mt_dtype dtype;
    unsigned forms;
    double from, to;
    mti_gemm_choice choice;
} row;

#define NN       MTI_GEMM_NN
#define NT       MTI_GEMM_NT
#define TN       MTI_GEMM_TN
#define TT       MTI_GEMM_TT
#define THIN_NT  MTI_GEMM_THIN_NT
#define ANY      (NN | NT | TN | TT | THIN_NT)
#define MI       *(1 << 20)
#define MOST     1e300
#define OPENBLAS MTI_OPENBLAS
#define ONEDNN   MTI_ONEDNN
#define UNPACKED MTI_GEMM_UNPACKED
#define OWN      MTI_GEMM_OWN
static const row table[] = {
#define PRODUCTS(processors, dtype, forms, from, to, library, tiles)                               \
    {processors, dtype, forms, from, to, {library, tiles}},
#include "backends/cpu/products/products.def"
};

bool mti_gemm_has(mti_library library) { return library == MTI_OPENBLAS || wished() != NEVER; }

mti_gemm_choice mti_gemm_choose(mt_dtype dtype, mti_gemm_form form, int64_t m, int64_t n, int64_t k)
{
    const double macs = (double)m * (double)n * (double)k;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const row *r = &table[i];
        if (r->dtype != dtype || !(r->forms & form) || macs < r->from || macs > r->to) continue;
        if (mti_gemm_has(r->choice.library) && of_this(r->processors)) return r->choice;
    }
    return (mti_gemm_choice){MTI_OPENBLAS, MTI_GEMM_UNPACKED};
}

const char *mti_gemm_processor(void)
{
#define NAME(class)                                                                                \
    if (of_this(class)) return #class
    NAME(INTEL_AVX512);
    NAME(AMD_AVX512);
    NAME(AMD_AVX2);
    return "ALL";
}
