/* quantize_codes.h: the scalar maths of 8-bit and 4-bit storage, written once, usable from C and
 * from CUDA. Every result is one correctly rounded operation on f32 (or exact), so that all
 * backends give the same bits. */
#ifndef MTI_QUANTIZE_CODES_H
#define MTI_QUANTIZE_CODES_H

#include <stdbool.h>
#include "backends/scalar.h"

/* NormalFloat 4 (Dettmers et al. 2023, "QLoRA", appendix E): quantiles of the normal distribution,
 * 8 on its negative side, 0, and 7 on its positive side, scaled to [-1, 1]. */
#define MTI_NF4_LEVELS                                                                             \
    {                                                                                              \
        -1.0f, -0.696192801f, -0.525073051f, -0.394917488f, -0.284441382f, -0.18477343f,           \
            -0.0910500363f, 0.0f, 0.0795802996f, 0.160930201f, 0.246112302f, 0.337915242f,         \
            0.440709829f, 0.562617004f, 0.722956836f, 1.0f                                         \
    }
#define MTI_NF4_ZERO 7u

/* The level nearest to v in [-1, 1]; the lower one in a tie. Each constant is the largest f32
 * that is not above the midpoint of two levels, so v > constant decides exactly as v > midpoint. */
MTI_HD uint32_t mti_nf4_encode(float v)
{
    uint32_t code = v > -0.84809643f;
    code += v > -0.610632956f;
    code += v > -0.45999527f;
    code += v > -0.33967945f;
    code += v > -0.234607413f;
    code += v > -0.137911737f;
    code += v > -0.0455250181f;
    code += v > 0.0397901498f;
    code += v > 0.120255247f;
    code += v > 0.203521252f;
    code += v > 0.292013764f;
    code += v > 0.389312536f;
    code += v > 0.501663387f;
    code += v > 0.64278692f;
    code += v > 0.861478388f;
    return code;
}

/* MXFP4 (Open Compute Project 2023, "Microscaling Formats (MX)", 5.3.3): the values of E2M1, a sign
 * bit above them, in blocks of 32 that share a power of 2, in E8M0. */
#define MTI_MXFP4_LEVELS                                                                           \
    {                                                                                              \
        0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f,  \
            -4.0f, -6.0f                                                                           \
    }

/* The nearest level, of two equally near ones that whose code is even; at most 6. */
MTI_HD uint32_t mti_mxfp4_encode(float v)
{
    float m = v < 0.0f ? -v : v;
    uint32_t code = m > 0.25f;
    code += m >= 0.75f;
    code += m > 1.25f;
    code += m >= 1.75f;
    code += m > 2.5f;
    code += m >= 3.5f;
    code += m > 5.0f;
    return code | (mti_f32_bits(v) >> 31) << 3;
}

/* E8M0 of a block's scale, 2^(floor(log2 max|x|) - 2); 255 is NaN. */
MTI_HD uint8_t mti_mxfp4_exponent(uint32_t largest)
{
    uint32_t e = largest >> 23;
    return (uint8_t)(e == 255 ? 255 : e < 2 ? 0 : e - 2);
}

MTI_HD float mti_mxfp4_scale(uint8_t exponent)
{
    return mti_f32_from_bits(exponent == 255 ? 0x7fc00000u
                             : exponent      ? (uint32_t)exponent << 23
                                             : 0x00400000u);
}

/* q, between about -127 and 127, rounded to an integer, ties to even, as a byte. */
MTI_HD uint8_t mti_int8_encode(float q)
{
    q = q > 127.0f ? 127.0f : q; /* the scale is rounded, so q may exceed it */
    q = q < -127.0f ? -127.0f : q;
    return (uint8_t)(mti_f32_bits(q + MTI_ROUND_MAGIC) - mti_f32_bits(MTI_ROUND_MAGIC));
}

/* |x| as an integer that orders as |x| does; infinity and NaN are the largest. */
MTI_HD uint32_t mti_magnitude_bits(float x) { return mti_f32_bits(x) & 0x7fffffffu; }
#define MTI_INFINITE_BITS 0x7f800000u

/* A block's scale: the value of code 1 (int8) or level 1 (nf4). `largest`: the block's largest
 * mti_magnitude_bits. A block that contains an infinity or a NaN has scale NaN, and as the result
 * of no operation: on a GPU that would have other bits. */
MTI_HD float mti_block_scale(bool nf4, uint32_t largest)
{
    bool finite = largest < MTI_INFINITE_BITS;
    float top = mti_f32_from_bits(finite ? largest : 0x7fc00000u);
    return nf4 || !finite ? top : top / 127.0f;
}

/* True if values can be divided by the scale; if not, the whole block has the code of 0. */
MTI_HD bool mti_scale_divides(float scale) { return scale > 0.0f; }

/* f32 of code * scale + shift: the product of two f32 is exact in f64. */
MTI_HD float mti_scaled(float code, float scale, float shift)
{
    return (float)((double)code * (double)scale + (double)shift);
}

/* A bit of a mask: true above 0, and for NaN, as relu's backward passes the gradient there. */
MTI_HD bool mti_is_on_f32(float x) { return !(x <= 0.0f); }
MTI_HD bool mti_is_on_f64(double x) { return !(x <= 0.0); }

#endif
