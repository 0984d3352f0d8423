/* float8.h: the 8-bit floats to and from f32, usable from C and from CUDA, branch-free. Stores
 * round to nearest even, as PyTorch does: e4m3 has no infinity, so what is larger than 448, and
 * infinity, becomes 448; e5m2 has infinity. NaN keeps its sign, not its payload. */
#ifndef MTI_FLOAT8_H
#define MTI_FLOAT8_H

#include "backends/scalar.h"

MTI_HD float mti_f32_from_e4m3(uint8_t h)
{
    uint32_t sign = (uint32_t)(h & 0x80u) << 24, m = h & 0x7fu;
    uint32_t normal = (m << 20) + (120u << 23);                /* exponent bias 7 becomes 127 */
    uint32_t tiny = mti_f32_bits((float)(int32_t)m * 0x1p-9f); /* subnormals: multiples of 2^-9 */
    uint32_t u = m == 0x7fu ? 0x7fc00000u : normal;
    u = m < 8u ? tiny : u;
    return mti_f32_from_bits(u | sign);
}

MTI_HD uint8_t mti_e4m3_from_f32(float x)
{
    uint32_t u = mti_f32_bits(x), sign = (u >> 24) & 0x80u, m = u & 0x7fffffffu;
    uint32_t normal = (m - (120u << 23) + 0x7ffffu + ((m >> 20) & 1u)) >> 20;
    /* below 2^-6 the spacing is 2^-9: adding 2^14 aligns the last bit with it */
    uint32_t tiny = mti_f32_bits(mti_f32_from_bits(m) + 0x1p14f) - mti_f32_bits(0x1p14f);
    uint32_t h = m < (121u << 23) ? tiny : normal;
    h = m >= 0x43e00000u ? 0x7eu : h; /* 448 is the largest */
    h = m > 0x7f800000u ? 0x7fu : h;
    return (uint8_t)(h | sign);
}

MTI_HD float mti_f32_from_e5m2(uint8_t h)
{
    uint32_t sign = (uint32_t)(h & 0x80u) << 24, m = h & 0x7fu;
    uint32_t normal = (m << 21) + (112u << 23);                 /* exponent bias 15 becomes 127 */
    uint32_t special = (m << 21) | 0x7f800000u;                 /* infinity, NaN */
    uint32_t tiny = mti_f32_bits((float)(int32_t)m * 0x1p-16f); /* subnormals: multiples of 2^-16 */
    uint32_t u = m >= 0x7cu ? special : normal;
    u = m < 4u ? tiny : u;
    return mti_f32_from_bits(u | sign);
}

MTI_HD uint8_t mti_e5m2_from_f32(float x)
{
    uint32_t u = mti_f32_bits(x), sign = (u >> 24) & 0x80u, m = u & 0x7fffffffu;
    uint32_t normal = (m - (112u << 23) + 0xfffffu + ((m >> 21) & 1u)) >> 21;
    /* below 2^-14 the spacing is 2^-16: adding 2^7 aligns the last bit with it */
    uint32_t tiny = mti_f32_bits(mti_f32_from_bits(m) + 0x1p7f) - mti_f32_bits(0x1p7f);
    uint32_t h = m < (113u << 23) ? tiny : normal;
    h = m >= 0x47700000u ? 0x7cu : h; /* 61440, a tie, and more round to infinity */
    h = m > 0x7f800000u ? 0x7fu : h;
    return (uint8_t)(h | sign);
}

#endif
