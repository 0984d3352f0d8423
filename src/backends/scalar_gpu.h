/* scalar_gpu.h: exp, sigmoid and the normal distribution in f32 from GPU instructions, two to four
 * times fewer than in the device's library. The hardware's 2^x and 1/x are within 2 and 1 units in
 * the last place (CUDA's guide, PTX ex2.approx and rcp.approx). On a CPU the C library replaces
 * them, so that tests can check the rest of the error. scalar.h includes this file. */
#ifndef MTI_SCALAR_GPU_H
#define MTI_SCALAR_GPU_H

#include <math.h>
#include "base/philox.h"

#ifdef __CUDA_ARCH__
__device__ __forceinline__ float mti_hw_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float mti_hw_reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* max(x, least); NaN stays NaN */
__device__ __forceinline__ float mti_hw_at_least(float x, float least)
{
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(least));
    return y;
}
#else
MTI_HD float mti_hw_exp2(float x) { return x < -126.0f ? 0.0f : exp2f(x); } /* .ftz */
MTI_HD float mti_hw_reciprocal(float x) { return 1.0f / x; }
MTI_HD float mti_hw_at_least(float x, float least) { return x < least ? least : x; }
#endif

/* e^x = 2^t (1 + r): t is x log2(e), rounded; r is its rounding error times ln(2). Finite x <= 0;
 * results below 2^-126 are 0. */
MTI_HD float mti_gpu_exp_nonpositive(float x)
{
    float t = x * 1.44269504f;
    float rest = fmaf(x, 1.92596299e-8f, fmaf(x, 1.44269504f, -t)); /* the low bits of log2(e) */
    float y = mti_hw_exp2(t);
    return fmaf(y, rest * 0.693147181f, y);
}

/* 1 / (1 + e^-x), from e^-|x| for either sign of x: the denominator stays in [1, 2]. *slope: its
 * derivative, which s (1 - s) would give with the rounding errors of an s near 1. */
MTI_HD float mti_gpu_sigmoid_slope(float x, float *slope)
{
    float e = mti_gpu_exp_nonpositive(mti_hw_at_least(-fabsf(x), -100.0f));
    float upper = mti_hw_reciprocal(1.0f + e);
    *slope = e * upper * upper;
    return x < 0.0f ? e * upper : upper;
}
MTI_HD float mti_gpu_sigmoid(float x)
{
    float slope;
    return mti_gpu_sigmoid_slope(x, &slope);
}

/* Phi(-a) e^(a^2/2), w = a / (4 + a), a >= 0: a polynomial that is exact at 0. */
MTI_HD float mti_normal_tail(float w)
{
    float r = 8.92821178e-2f;
    r = r * w - 2.95662731e-1f;
    r = r * w + 1.38592571e-1f;
    r = r * w + 8.64954591e-1f;
    r = r * w - 2.10577464f;
    r = r * w + 2.40419197f;
    r = r * w - 1.59576845f;
    return r * w + 0.5f;
}

/* As mti_normal_cdf_f32. A NaN x gives a number; callers multiply it by x, which restores the
 * NaN. */
MTI_HD float mti_gpu_normal_cdf(float x, float *bell)
{
    float a = fminf(fabsf(x), 13.26f); /* where bell becomes 0 */
    *bell = mti_gpu_exp_nonpositive(-0.5f * a * a);
    float tail = mti_normal_tail(a * mti_hw_reciprocal(4.0f + a)) * *bell;
    return x > 0.0f ? 1.0f - tail : tail;
}

#endif
