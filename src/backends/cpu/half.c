/* half.c: converts contiguous bf16 and f16 to f32 and back, in integer arithmetic that
 * vectorises on any machine. */
#include "backends/cpu/cpu.h"

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

static MTI_MULTIVERSION void load_bf16(const uint16_t *src, float *dst, int64_t n)
{
    MTI_SIMD
    for (int64_t i = 0; i < n; i++) dst[i] = from_bf16(src[i]);
}

static MTI_MULTIVERSION void load_f16(const uint16_t *src, float *dst, int64_t n)
{
    MTI_SIMD
    for (int64_t i = 0; i < n; i++) dst[i] = from_f16(src[i]);
}

static MTI_MULTIVERSION void store_bf16(const float *src, uint16_t *dst, int64_t n)
{
    MTI_SIMD
    for (int64_t i = 0; i < n; i++) dst[i] = to_bf16(src[i]);
}

static MTI_MULTIVERSION void store_f16(const float *src, uint16_t *dst, int64_t n)
{
    MTI_SIMD
    for (int64_t i = 0; i < n; i++) dst[i] = to_f16(src[i]);
}

void mti_cpu_load_f32(mt_dtype dtype, const void *src, float *dst, int64_t n)
{
    if (dtype == MT_BF16)
        load_bf16(src, dst, n);
    else if (dtype == MT_F16)
        load_f16(src, dst, n);
    else
        memcpy(dst, src, (size_t)n * sizeof *dst);
}

void mti_cpu_store_f32(mt_dtype dtype, const float *src, void *dst, int64_t n)
{
    if (dtype == MT_BF16)
        store_bf16(src, dst, n);
    else if (dtype == MT_F16)
        store_f16(src, dst, n);
    else
        memcpy(dst, src, (size_t)n * sizeof *src);
}
