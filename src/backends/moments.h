/* moments.h: AdamW's moments in 8 and 4 bits, written once, usable from C and from CUDA. Every
 * block of values has an f32 scale, its largest magnitude; a code stands for a share of it. In 8
 * bits the shares are those of dynamic tree quantization (Dettmers et al. 2022, "8-bit optimizers
 * via block-wise quantization"), as bitsandbytes has them: each of the seven decades below 1 is cut
 * into twice as many equal cells as the one below it, and a code stands for the middle of its cell.
 * Besides there are 0 and 1.
 *
 * A rank numbers the shares from 0 upwards. Of v, never negative, a code is a rank, 0 to 255. Of m
 * it is a rank from 0 to 127 with the sign in the high bit; 128, "-0", is rank 128: the share 1.
 *
 * torchao's other forms: FP8 codes are e4m3, and a scale is a 448th of the largest magnitude; in 4
 * bits (Li et al. 2023, "Memory efficient optimizers with 4-bit states"), two to a byte, the first
 * in the high bits, shares of m are dynamic ones of three decades in ascending order, and of v 1/16
 * to 1. */
#ifndef MTI_MOMENTS_H
#define MTI_MOMENTS_H

#include "backends/backend.h"
#include "backends/float8.h"
#include "backends/quantize_codes.h"

#define MTI_MOMENT_BLOCK      256
#define MTI_MOMENT_BLOCK_4BIT 128
#define MTI_MOMENT_CODES      256

MTI_HD int mti_moment_block(mti_moments moments)
{
    return moments == MTI_MOMENTS_4BIT ? MTI_MOMENT_BLOCK_4BIT : MTI_MOMENT_BLOCK;
}

/* Where the scales of n codes begin, and bytes of both. */
MTI_HD int64_t mti_moment_scales_at(mti_moments moments, int64_t n)
{
    return moments == MTI_MOMENTS_4BIT ? n / 2 : (n + 3) / 4 * 4;
}
MTI_HD int64_t mti_moment_bytes(mti_moments moments, int64_t n)
{
    int64_t block = mti_moment_block(moments);
    return mti_moment_scales_at(moments, n) + (n + block - 1) / block * 4;
}

/* The share of a code: of v if `positive`, else of m. */
MTI_HD float mti_moment_share(bool positive, int code)
{
    bool negative = !positive && code > 128;
    int rank = negative ? code - 128 : code, cells = positive ? 2 : 1;
    if (rank == 0) return 0.0f;
    if (rank == (positive ? 255 : 128)) return 1.0f;
    int place = rank + cells - 1; /* the cells of decade i are at places `cells` to 2 cells - 1 */
    double top = 1e-6;            /* of the decade */
    for (; place >= 2 * cells; cells *= 2) top *= 10;
    double share = top * (0.1 + 0.9 * (place - cells + 0.5) / cells);
    return (float)(negative ? -share : share);
}

/* Halfway between the last share of decade i and the first one of the next. cells: of decade i. */
#define MTI_MOMENT_EDGE(top, cells) ((float)((top) * (1 + 0.9 / (cells))))

/* The rank whose share is nearest to x >= 0; which of two, at the midpoint, is up to rounding. NaN
 * has rank 0. */
MTI_HD int mti_moment_rank(bool positive, float x)
{
    int least = positive ? 2 : 1, cells = least;
    float to_unit = 1e6f; /* brings x's decade to (0.1, 1] */
#define MTI_MOMENT_ABOVE(top, i, factor)                                                           \
    {                                                                                              \
        int above = x > MTI_MOMENT_EDGE(top, least << (i));                                        \
        cells = above ? least << ((i) + 1) : cells;                                                \
        to_unit = above ? factor : to_unit;                                                        \
    }
    MTI_MOMENT_ABOVE(1e-6, 0, 1e5f)
    MTI_MOMENT_ABOVE(1e-5, 1, 1e4f)
    MTI_MOMENT_ABOVE(1e-4, 2, 1e3f)
    MTI_MOMENT_ABOVE(1e-3, 3, 1e2f)
    MTI_MOMENT_ABOVE(1e-2, 4, 1e1f)
    MTI_MOMENT_ABOVE(1e-1, 5, 1e0f)
#undef MTI_MOMENT_ABOVE
    float cell = (x * to_unit - 0.1f) * (1 / 0.9f) * (float)cells, last = (float)(cells - 1);
    cell = cell > 0.0f ? cell : 0.0f;
    cell = cell < last ? cell : last;
    int rank = cells + (int)cell - least + 1;
    rank += x > (float)(1 - 0.225 / (64 * least));
    return x > (float)(1e-6 * (0.05 + 0.225 / least)) ? rank : 0;
}

#define MTI_MOMENT_SHARES_4BIT                                                                     \
    {                                                                                              \
        -0.8875f, -0.6625f, -0.4375f, -0.2125f, -0.0775f, -0.0325f, -0.0055f, 0.0f, 0.0055f,       \
            0.0325f, 0.0775f, 0.2125f, 0.4375f, 0.6625f, 0.8875f, 1.0f                             \
    }

/* The 4-bit code of the share nearest to x; of two, the larger one's. */
MTI_HD uint8_t mti_moment_encode_4bit(bool positive, float x)
{
    const float share[16] = MTI_MOMENT_SHARES_4BIT;
    int code = positive ? (int)(x * 16 + 0.5f) - 1 : 0;
    for (int k = 1; !positive && k < 16; k++)
        code += x - share[k - 1] >= (share[k] - share[k - 1]) / 2;
    code = code > 0 ? code : 0;
    return (uint8_t)(code < 15 ? code : 15);
}

/* What a scale is multiplied with for a code. */
MTI_HD float mti_moment_value(mti_moments moments, bool positive, int code)
{
    const float share[16] = MTI_MOMENT_SHARES_4BIT;
    if (moments == MTI_MOMENTS_FP8) return mti_f32_from_e4m3((uint8_t)code);
    if (moments == MTI_MOMENTS_8BIT) return mti_moment_share(positive, code);
    return positive ? (float)(code % 16 + 1) / 16 : share[code % 16];
}

/* A block's scale, if `largest` is its largest mti_magnitude_bits. */
MTI_HD float mti_moment_scale(mti_moments moments, uint32_t largest)
{
    float scale = mti_block_scale(true, largest);
    return moments == MTI_MOMENTS_FP8 ? scale / 448 : scale;
}

/* Multiplied with it, values of a block become shares of its scale. */
MTI_HD float mti_moment_inverse(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

/* The code of a value whose share of its block's scale is x, in [-1, 1]. */
MTI_HD uint8_t mti_moment_encode(bool positive, float x)
{
    int rank = mti_moment_rank(positive, mti_f32_from_bits(mti_magnitude_bits(x)));
    int negative = !positive & (x < 0.0f);
    rank -= negative & (rank == 128); /* 1 has no negative */
    return (uint8_t)(rank + 128 * (negative & (rank > 0)));
}

#endif
