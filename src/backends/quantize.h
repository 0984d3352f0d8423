/* quantize.h: the scalar maths of 8-bit and 4-bit storage, written once, usable from C and from
 * CUDA. Every result is one correctly rounded operation on f32 (or exact), so that all backends
 * give the same bits. */
#ifndef MTI_QUANTIZE_H
#define MTI_QUANTIZE_H

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

/* The level next to v in [-1, 1]; of two equally near ones the lower. Each number is the largest
 * f32 that is not above the middle between two levels, so that v > it decides as v > middle. */
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

/* The nearest integer of q, a number between about -127 and 127, ties to even, as a byte. */
MTI_HD uint8_t mti_int8_encode(float q)
{
    q = q > 127.0f ? 127.0f : q; /* rounding of the scale may carry the largest value past it */
    q = q < -127.0f ? -127.0f : q;
    return (uint8_t)(mti_f32_bits(q + MTI_ROUND_MAGIC) - mti_f32_bits(MTI_ROUND_MAGIC));
}

/* |x| as a number that grows with it, infinity and NaN being the largest. */
MTI_HD uint32_t mti_magnitude_bits(float x) { return mti_f32_bits(x) & 0x7fffffffu; }
#define MTI_INFINITE_BITS 0x7f800000u

/* What a block's scale is, `largest` being its largest mti_magnitude_bits: the value of code 1
 * (int8) or of level 1 (nf4). A block with an infinity or a NaN has the scale NaN. */
MTI_HD float mti_block_scale(bool nf4, uint32_t largest)
{
    float top = mti_f32_from_bits(largest < MTI_INFINITE_BITS ? largest : 0x7fc00000u);
    return nf4 ? top : top / 127.0f;
}

/* True if values can be divided by it; a block that cannot has the code of 0 throughout. */
MTI_HD bool mti_scale_divides(float scale) { return scale > 0.0f; }

/* f32 of code * scale + shift: the product of two f32 is exact in f64. */
MTI_HD float mti_scaled(float code, float scale, float shift)
{
    return (float)((double)code * (double)scale + (double)shift);
}

/* A bit of a mask: true for what is above 0, and for NaN, which relu's backward lets pass. */
MTI_HD bool mti_is_on_f32(float x) { return !(x <= 0.0f); }
MTI_HD bool mti_is_on_f64(double x) { return !(x <= 0.0); }

#endif
