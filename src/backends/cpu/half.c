/* half.c: converts contiguous 16-bit and 8-bit floats to f32 and back, in integer arithmetic that
 * vectorises on any machine. */
#include "backends/cpu/cpu.h"
#include "backends/float8.h"

static inline float from_bf16(uint16_t h) { return mti_f32_from_bits((uint32_t)h << 16); }

static inline uint16_t to_bf16(float x)
{
    uint32_t u = mti_f32_bits(x);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t quiet = (u >> 16) | 0x40u; /* rounding could turn a NaN into infinity */
    return (uint16_t)(x == x ? rounded : quiet);
}

static inline float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, m = h & 0x7fffu;
    uint32_t normal = (m << 13) + (112u << 23); /* exponent bias 15 becomes 127 */
    uint32_t special = (m << 13) | 0x7f800000u; /* infinity, NaN */
    uint32_t tiny =
        mti_f32_bits((float)(int32_t)m * 0x1p-24f); /* subnormals are multiples of 2^-24 */
    uint32_t u = m >= 0x7c00u ? special : normal;
    u = m < 0x0400u ? tiny : u;
    return mti_f32_from_bits(u | sign);
}

static inline uint16_t to_f16(float x)
{
    uint32_t u = mti_f32_bits(x), sign = (u >> 16) & 0x8000u, m = u & 0x7fffffffu;
    uint32_t normal = (m - (112u << 23) + 0xfffu + ((m >> 13) & 1u)) >> 13;
    /* below 2^-14 the spacing is 2^-24: adding 1/2 aligns the last bit with it */
    uint32_t tiny = mti_f32_bits(mti_f32_from_bits(m) + 0.5f) - mti_f32_bits(0.5f);
    uint32_t h = m < (113u << 23) ? tiny : normal;
    h = m >= 0x477ff000u ? 0x7c00u : h; /* 65520 and more round to infinity */
    h = m > 0x7f800000u ? 0x7e00u | ((m >> 13) & 0x1ffu) : h;
    return (uint16_t)(h | sign);
}

#define CONVERT_EACH(name, to, from, convert)                                                      \
    static MTI_MULTIVERSION void name(const from *src, to *dst, int64_t n)                         \
    {                                                                                              \
        MTI_SIMD                                                                                   \
        for (int64_t i = 0; i < n; i++) dst[i] = convert(src[i]);                                  \
    }
CONVERT_EACH(load_bf16, float, uint16_t, from_bf16)
CONVERT_EACH(load_f16, float, uint16_t, from_f16)
CONVERT_EACH(load_e4m3, float, uint8_t, mti_f32_from_e4m3)
CONVERT_EACH(load_e5m2, float, uint8_t, mti_f32_from_e5m2)
CONVERT_EACH(store_bf16, uint16_t, float, to_bf16)
CONVERT_EACH(store_f16, uint16_t, float, to_f16)
CONVERT_EACH(store_e4m3, uint8_t, float, mti_e4m3_from_f32)
CONVERT_EACH(store_e5m2, uint8_t, float, mti_e5m2_from_f32)

void mti_cpu_load_f32(mt_dtype dtype, const void *src, float *dst, int64_t n)
{
    switch (dtype) {
    case MT_BF16: load_bf16(src, dst, n); break;
    case MT_F16: load_f16(src, dst, n); break;
    case MT_F8_E4M3: load_e4m3(src, dst, n); break;
    case MT_F8_E5M2: load_e5m2(src, dst, n); break;
    default: memcpy(dst, src, (size_t)n * sizeof *dst);
    }
}

void mti_cpu_store_f32(mt_dtype dtype, const float *src, void *dst, int64_t n)
{
    switch (dtype) {
    case MT_BF16: store_bf16(src, dst, n); break;
    case MT_F16: store_f16(src, dst, n); break;
    case MT_F8_E4M3: store_e4m3(src, dst, n); break;
    case MT_F8_E5M2: store_e5m2(src, dst, n); break;
    default: memcpy(dst, src, (size_t)n * sizeof *src);
    }
}

static char *place(const mti_view *v, int64_t at)
{
    return (char *)v->data + at * (int64_t)mti_dtype_size(v->dtype);
}

void mti_cpu_read_wide(const mti_view *v, int64_t at, double *out, int64_t n)
{
    float narrow[MTI_CPU_RUN];
    if (v->dtype == MT_F64) memcpy(out, place(v, at), (size_t)n * sizeof *out);
    for (int64_t i = 0, run; v->dtype != MT_F64 && i < n; i += run) {
        run = n - i < MTI_CPU_RUN ? n - i : MTI_CPU_RUN;
        mti_cpu_load_f32(v->dtype, place(v, at + i), narrow, run);
        for (int64_t j = 0; j < run; j++) out[i + j] = (double)narrow[j];
    }
}

void mti_cpu_write_wide(const mti_view *v, int64_t at, const double *in, int64_t n)
{
    float narrow[MTI_CPU_RUN];
    if (v->dtype == MT_F64) memcpy(place(v, at), in, (size_t)n * sizeof *in);
    for (int64_t i = 0, run; v->dtype != MT_F64 && i < n; i += run) {
        run = n - i < MTI_CPU_RUN ? n - i : MTI_CPU_RUN;
        for (int64_t j = 0; j < run; j++) narrow[j] = (float)in[i + j];
        mti_cpu_store_f32(v->dtype, narrow, place(v, at + i), run);
    }
}
