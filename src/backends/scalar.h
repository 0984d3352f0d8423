/* scalar.h: the scalar maths of every element-wise op, written once, usable
 * from C and from CUDA. What takes one line is in unary.def itself.
 *
 * The f32 functions are branch-free, so that a loop over them vectorises; NaN
 * in gives NaN out. Largest error against the exact result, over the whole
 * range (tests/src/backends/test_scalar.c holds these figures), in units in the
 * last place: exp 1.1, log 0.8, tanh 2.5, sigmoid 2.3 (of results that are not
 * subnormal); of the normal distribution in gelu, 1e-7 in absolute terms. The f64 functions use the
 * C library: they are the reference for gradient checks. On a GPU exp, log and tanh are the
 * device's library's, the others those of scalar_gpu.h. */
#ifndef MTI_SCALAR_H
#define MTI_SCALAR_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "backends/scalar_gpu.h"

/* ---- order ---- */

/* A float as a number in its order, NaN above all, 0 and -0 alike. Of its dtype: the bit of the
 * sign, and the bits of infinity. */
MTI_HD uint64_t mti_order_key(uint64_t bits, uint64_t sign, uint64_t infinity)
{
    uint64_t magnitude = bits & (sign - 1);
    if (magnitude > infinity) return 2 * sign - 1;
    return bits & sign ? sign - magnitude : sign + magnitude;
}

/* NaN gives 0; values out of range give the nearest limit. */
MTI_HD int64_t mti_f64_to_i64(double x)
{
    if (x != x) return 0;
    if (x >= 0x1p63) return INT64_MAX;
    return x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

/* ---- f32 building blocks ---- */

MTI_HD uint32_t mti_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

MTI_HD float mti_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* |magnitude| with the sign of `sign`. */
MTI_HD float mti_copysign_f32(float magnitude, float sign)
{
    return mti_f32_from_bits((mti_f32_bits(magnitude) & 0x7fffffffu) |
                             (mti_f32_bits(sign) & 0x80000000u));
}

/* Adding 1.5 * 2^23 leaves the nearest integer in the low bits of the sum. */
#define MTI_ROUND_MAGIC 12582912.0f

/* e^x = 2^n e^r with |r| <= ln(2)/2; the scaling in two steps reaches the
 * subnormal results and infinity. */
MTI_HD float mti_exp_f32(float x)
{
#ifdef __CUDA_ARCH__
    return expf(x);
#else
    x = x > 89.0f ? 89.0f : x;
    x = x < -105.0f ? -105.0f : x;
    float shifted = x * 1.44269504f + MTI_ROUND_MAGIC;
    float n = shifted - MTI_ROUND_MAGIC;
    float r = x - n * 0.693359375f; /* exact: the constant has 9 bits */
    r = r + n * 2.12194440e-4f;
    float q = 1.39465544e-3f;
    q = q * r + 8.36664438e-3f;
    q = q * r + 4.16662805e-2f;
    q = q * r + 1.66665420e-1f;
    q = q * r + 5.0e-1f;
    float p = (q * r) * r + r + 1.0f;
    int32_t i = (int32_t)(mti_f32_bits(shifted) - mti_f32_bits(MTI_ROUND_MAGIC));
    int32_t half = i >> 1;
    float s1 = mti_f32_from_bits((uint32_t)(half + 127) << 23);
    float s2 = mti_f32_from_bits((uint32_t)(i - half + 127) << 23);
    return p * s1 * s2;
#endif
}

/* e^x for -88 <= x <= 89, the scaling in one step; -88 gives 0, above 88.37 it is infinity. */
MTI_HD float mti_exp_inside_f32(float x)
{
    float shifted = x * 1.44269504f + MTI_ROUND_MAGIC;
    float n = shifted - MTI_ROUND_MAGIC;
    float r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float q = 1.39465544e-3f;
    q = q * r + 8.36664438e-3f;
    q = q * r + 4.16662805e-2f;
    q = q * r + 1.66665420e-1f;
    q = q * r + 5.0e-1f;
    float p = (q * r) * r + r + 1.0f;
    uint32_t i = mti_f32_bits(shifted) - mti_f32_bits(MTI_ROUND_MAGIC);
    return p * mti_f32_from_bits((i + 127u) << 23); /* n = -127: times 0; 128: times infinity */
}

/* e^x for x <= 0 (or a little above, by rounding), as softmax asks for: cheaper
 * than mti_exp_f32; results under 2^-127 are 0. */
MTI_HD float mti_exp_nonpositive_f32(float x)
{
#ifdef __CUDA_ARCH__
    return expf(x);
#else
    x = x < -88.0f ? -88.0f : x;
    return mti_exp_inside_f32(x);
#endif
}
MTI_HD double mti_exp_nonpositive_f64(double x) { return exp(x); }

/* 1 + e^x: below e^-88 the 1 alone is left; from x = 88.37 on infinity. */
MTI_HD float mti_one_and_exp_f32(float x)
{
    x = x > 89.0f ? 89.0f : x;
    x = x < -88.0f ? -88.0f : x;
    return 1.0f + mti_exp_inside_f32(x);
}

/* log(2^e (1 + z)) with 1 + z in [sqrt(1/2), sqrt(2)). */
MTI_HD float mti_log_f32(float x)
{
#ifdef __CUDA_ARCH__
    return logf(x);
#else
    float scaled = x * 8388608.0f;
    float normal = x < 1.17549435e-38f ? scaled : x; /* subnormals: times 2^23 */
    float bias = x < 1.17549435e-38f ? 23.0f : 0.0f;
    uint32_t u = mti_f32_bits(normal) - 0x3f3504f3u; /* bits of sqrt(1/2) */
    float e = (float)((int32_t)u >> 23) - bias;
    float z = mti_f32_from_bits((u & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float r = -7.85961151e-2f;
    r = r * z + 1.28816471e-1f;
    r = r * z - 1.31287545e-1f;
    r = r * z + 1.41811922e-1f;
    r = r * z - 1.66245535e-1f;
    r = r * z + 2.00022861e-1f;
    r = r * z - 2.50008106e-1f;
    r = r * z + 3.33333164e-1f;
    float z2 = z * z;
    float y = r * z2 * z - e * 2.12194440e-4f - 0.5f * z2 + z + e * 0.693359375f;
    float infinity = mti_f32_from_bits(0x7f800000u);
    y = x == infinity ? x : y;
    y = x == 0.0f ? -infinity : y;
    return x >= 0.0f ? y : mti_f32_from_bits(0x7fc00000u); /* negative or NaN */
#endif
}

/* The normal distribution Phi(x); *bell is e^(-x^2/2), which its derivative needs.
 * Phi(-a) = bell(a) mti_normal_tail(w), w = a / (4 + a): so the lower tail does not drown in the
 * rounding of 1, as that of 1 + erf does. NaN comes out as a number: whoever multiplies by x has it
 * back. */
MTI_HD float mti_normal_cdf_f32(float x, float *bell)
{
#ifdef __CUDA_ARCH__
    return mti_gpu_normal_cdf(x, bell);
#else
    uint32_t u = mti_f32_bits(x) & 0x7fffffffu;
    u = u < 0x41542900u ? u : 0x41542900u; /* min(|x|, 13.26), where bell becomes 0 */
    float a = mti_f32_from_bits(u);
    *bell = mti_exp_inside_f32(-0.5f * a * a);
    float tail = mti_normal_tail(a / (4.0f + a)) * *bell, rest = 1.0f - tail;
    return x > 0.0f ? rest : tail;
#endif
}

/* (e^2a - 1) / (e^2a + 1), a = |x|; e^2a - 1 = 2^n (e^r - 1) + (2^n - 1) loses nothing near 0. */
MTI_HD float mti_tanh_f32(float x)
{
#ifdef __CUDA_ARCH__
    return tanhf(x);
#else
    float y = 2.0f * fabsf(x);
    y = y > 20.0f ? 20.0f : y;
    float shifted = y * 1.44269504f + MTI_ROUND_MAGIC;
    float n = shifted - MTI_ROUND_MAGIC;
    float r = y - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float q = 1.39465544e-3f;
    q = q * r + 8.36664438e-3f;
    q = q * r + 4.16662805e-2f;
    q = q * r + 1.66665420e-1f;
    q = q * r + 5.0e-1f;
    q = (q * r) * r + r;
    uint32_t i = mti_f32_bits(shifted) - mti_f32_bits(MTI_ROUND_MAGIC);
    float scale = mti_f32_from_bits((i + 127u) << 23);
    float m = scale * q + (scale - 1.0f);
    return mti_copysign_f32(m / (m + 2.0f), x);
#endif
}

MTI_HD float mti_sigmoid_f32(float x)
{
#ifdef __CUDA_ARCH__
    return mti_gpu_sigmoid(x);
#else
    return 1.0f / mti_one_and_exp_f32(-x);
#endif
}
MTI_HD double mti_sigmoid_f64(double x) { return 1.0 / (1.0 + exp(-x)); }

/* ---- what the formulas of unary.def call: y = op(x) ---- */

MTI_HD double mti_exp_f64(double x) { return exp(x); }
MTI_HD double mti_log_f64(double x) { return log(x); }
MTI_HD double mti_tanh_f64(double x) { return tanh(x); }
MTI_HD float mti_sqrt_f32(float x) { return sqrtf(x); }
MTI_HD double mti_sqrt_f64(double x) { return sqrt(x); }

#define MTI_SQRT_HALF      0.70710678118654752440 /* 1 / sqrt(2) */
#define MTI_SQRT_2_OVER_PI 0.79788456080286535588 /* of the tanh form of gelu */
#define MTI_GELU_CUBIC     0.044715
#define MTI_INV_SQRT_2PI   0.39894228040143267794 /* the normal density at 0 */
#define MTI_2_OVER_PI      0.63661977236758134308 /* quarter turns of a radian */

/* x Phi(x), Phi being the normal distribution. */
MTI_HD float mti_gelu_f32(float x)
{
    float bell;
    return x * mti_normal_cdf_f32(x, &bell);
}
MTI_HD double mti_gelu_f64(double x) { return 0.5 * x * (1.0 + erf(x * MTI_SQRT_HALF)); }

/* x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
MTI_HD float mti_gelu_tanh_f32(float x)
{
    float u = (float)MTI_SQRT_2_OVER_PI * (x + (float)MTI_GELU_CUBIC * x * x * x);
#ifdef __CUDA_ARCH__
    return x * mti_gpu_sigmoid(2.0f * u); /* (1 + tanh u) / 2 */
#else
    return 0.5f * x * (1.0f + mti_tanh_f32(u));
#endif
}
MTI_HD double mti_gelu_tanh_f64(double x)
{
    return 0.5 * x * (1.0 + tanh(MTI_SQRT_2_OVER_PI * (x + MTI_GELU_CUBIC * x * x * x)));
}

MTI_HD float mti_silu_f32(float x)
{
#ifdef __CUDA_ARCH__
    return x * mti_gpu_sigmoid(x);
#else
    return x / mti_one_and_exp_f32(-x);
#endif
}
MTI_HD double mti_silu_f64(double x) { return x / (1.0 + exp(-x)); }

/* log(1 + e^x) = max(x, 0) + log(1 + e), e = e^-|x|. What rounding 1 + e loses is put back: log(u)
 * / (u
 * - 1) changes slowly (Goldberg 1991, theorem 4). */
MTI_HD float mti_softplus_f32(float x)
{
    float e = mti_exp_f32(-fabsf(x)), u = 1.0f + e, rounded = u - 1.0f;
    float log1p = rounded == 0.0f ? e : mti_log_f32(u) * (e / rounded);
    return (x > 0.0f ? x : 0.0f) + log1p;
}
MTI_HD double mti_softplus_f64(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }

/* ---- and their backward: dx from x and dy ---- */

/* Phi(x) + x phi(x) */
MTI_HD float mti_gelu_backward_f32(float x, float dy)
{
    float bell, cdf = mti_normal_cdf_f32(x, &bell);
    return dy * (cdf + x * (float)MTI_INV_SQRT_2PI * bell);
}
MTI_HD double mti_gelu_backward_f64(double x, double dy)
{
    double cdf = 0.5 * (1.0 + erf(x * MTI_SQRT_HALF));
    return dy * (cdf + x * MTI_INV_SQRT_2PI * exp(-0.5 * x * x));
}

/* With u the argument of tanh: (1 + tanh u) / 2 + x/2 (1 - tanh^2 u) du/dx */
MTI_HD float mti_gelu_tanh_backward_f32(float x, float dy)
{
    float cx2 = (float)MTI_GELU_CUBIC * x * x;
    float u = (float)MTI_SQRT_2_OVER_PI * (x + cx2 * x);
    float du = (float)MTI_SQRT_2_OVER_PI * (1.0f + 3.0f * cx2);
#ifdef __CUDA_ARCH__
    float slope, s = mti_gpu_sigmoid_slope(2.0f * u, &slope);
    return dy * (s + 2.0f * x * slope * du);
#else
    float t = mti_tanh_f32(u);
    return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du);
#endif
}
MTI_HD double mti_gelu_tanh_backward_f64(double x, double dy)
{
    double cx2 = MTI_GELU_CUBIC * x * x;
    double t = tanh(MTI_SQRT_2_OVER_PI * (x + cx2 * x));
    double du = MTI_SQRT_2_OVER_PI * (1.0 + 3.0 * cx2);
    return dy * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * du);
}

MTI_HD float mti_silu_backward_f32(float x, float dy)
{
    float s = mti_sigmoid_f32(x);
    return dy * s * (1.0f + x * (1.0f - s));
}
MTI_HD double mti_silu_backward_f64(double x, double dy)
{
    double s = mti_sigmoid_f64(x);
    return dy * s * (1.0 + x * (1.0 - s));
}

/* ---- swiglu: y = silu(gate) up = gate s up, s = sigmoid(gate) ---- */

MTI_HD float mti_swiglu_f32(float gate, float up) { return mti_silu_f32(gate) * up; }
MTI_HD double mti_swiglu_f64(double gate, double up) { return mti_silu_f64(gate) * up; }

MTI_HD void mti_swiglu_backward_f32(float gate, float up, float dy, float *dgate, float *dup)
{
    float s = mti_sigmoid_f32(gate);
    *dgate = dy * up * s * (1.0f + gate * (1.0f - s));
    *dup = dy * gate * s;
}
MTI_HD void mti_swiglu_backward_f64(double gate, double up, double dy, double *dgate, double *dup)
{
    double s = mti_sigmoid_f64(gate);
    *dgate = dy * up * s * (1.0 + gate * (1.0 - s));
    *dup = dy * gate * s;
}

/* ---- pow: x^p for one p; products, roots and quotients where they do, as in PyTorch ---- */

MTI_HD float mti_pow_f32(float x, float p)
{
    return p == 2.0f    ? x * x
           : p == 1.0f  ? x
           : p == 0.0f  ? 1.0f
           : p == 3.0f  ? x * x * x
           : p == 0.5f  ? sqrtf(x)
           : p == -0.5f ? 1.0f / sqrtf(x)
           : p == -1.0f ? 1.0f / x
           : p == -2.0f ? 1.0f / (x * x)
                        : powf(x, p);
}
MTI_HD double mti_pow_f64(double x, double p)
{
    return p == 2.0    ? x * x
           : p == 1.0  ? x
           : p == 0.0  ? 1.0
           : p == 3.0  ? x * x * x
           : p == 0.5  ? sqrt(x)
           : p == -0.5 ? 1.0 / sqrt(x)
           : p == -1.0 ? 1.0 / x
           : p == -2.0 ? 1.0 / (x * x)
                       : pow(x, p);
}
/* p x^(p-1); x^0 is 1 whatever x is, so its slope is 0, even at 0 */
MTI_HD float mti_pow_backward_f32(float x, float dy, float p)
{
    return p == 0.0f ? 0.0f : dy * (p * mti_pow_f32(x, p - 1.0f));
}
MTI_HD double mti_pow_backward_f64(double x, double dy, double p)
{
    return p == 0.0 ? 0.0 : dy * (p * mti_pow_f64(x, p - 1.0));
}

/* ---- angles ---- */

/* Sine and cosine of k quarter turns and a rest f in [-1/2, 1/2] of a quarter: Taylor polynomials,
 * swapped and negated by k. */
MTI_HD void mti_turn_f32(int32_t k, float quarters, float *cosine, float *sine)
{
    float f = quarters * 1.57079633f;
    float t = f * f;
    float s = 2.75573192e-6f;
    s = s * t - 1.98412698e-4f;
    s = s * t + 8.33333333e-3f;
    s = s * t - 1.66666667e-1f;
    s = s * t * f + f;
    float c = -2.75573192e-7f;
    c = c * t + 2.48015873e-5f;
    c = c * t - 1.38888889e-3f;
    c = c * t + 4.16666667e-2f;
    c = c * t - 5.0e-1f;
    c = c * t + 1.0f;
    float of_cosine = (k & 1) ? s : c, of_sine = (k & 1) ? c : s;
    /* cos is negative in quarters 1 and 2, sin in quarters 2 and 3 */
    uint32_t sign_c = (uint32_t)((k + 1) & 2) << 30, sign_s = (uint32_t)(k & 2) << 30;
    *cosine = mti_f32_from_bits(mti_f32_bits(of_cosine) ^ sign_c);
    *sine = mti_f32_from_bits(mti_f32_bits(of_sine) ^ sign_s);
}

/* Rotary positions (Su et al. 2021): pair i of d / 2 turns by position * theta^(-2i/d). For f32 the
 * frequency is in quarter turns and the angle is reduced in f64: cosine and sine are within 2e-7
 * of the exact ones up to position 2^24, 1e-6 up to 2^31 (an angle in f32, as is usual, is off
 * by 2e-4 at position 4096 already). f64: angles in radians, to the rounding of the product. */
MTI_HD double mti_rope_frequency_f64(double theta, int64_t i, int64_t d)
{
    return pow(theta, -2.0 * (double)i / (double)d);
}
MTI_HD double mti_rope_frequency_f32(double theta, int64_t i, int64_t d)
{
    return mti_rope_frequency_f64(theta, i, d) * MTI_2_OVER_PI;
}

/* What the ith frequency, in radians, is multiplied by: mt_rope_options. */
MTI_HD double mti_rope_slowed(double frequency, int64_t i, double factor, double low, double high,
                              bool by_angle)
{
    double part = (by_angle ? high - frequency : (double)i - low) / (high - low);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    return factor == 0 ? 1 : 1 - part + part / factor;
}
MTI_HD void mti_rope_turn_f32(double position, double frequency, float *cosine, float *sine)
{
    /* adding 1.5 * 2^52 leaves the nearest integer in the low bits of the sum */
    double quarters = position * frequency, shifted = quarters + 6755399441055744.0;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    double rest = quarters - (shifted - 6755399441055744.0);
    mti_turn_f32((int32_t)(uint32_t)bits, (float)rest, cosine, sine);
}
MTI_HD void mti_rope_turn_f64(double position, double frequency, double *cosine, double *sine)
{
    *cosine = cos(position * frequency);
    *sine = sin(position * frequency);
}

/* ---- random draws ---- */

/* A draw u is dropped when unit(u) < p, that is when u >> 8 is below this. */
MTI_HD uint32_t mti_drop_threshold(double p) { return (uint32_t)ceil(p * 16777216.0); }

/* Two independent standard normal numbers from 64 random bits (Box & Muller
 * 1958): r = sqrt(-2 ln u), u in (0, 1]; the angle is b / 2^32 of a turn. */
MTI_HD void mti_box_muller(uint32_t a, uint32_t b, float *first, float *second)
{
    float r = sqrtf(-2.0f * mti_log_f32(1.0f - mti_u32_to_unit(a)));
    float turn4 = mti_u32_to_unit(b) * 4.0f; /* quarter turns, exact */
    int32_t k = (int32_t)(turn4 + 0.5f);
    float cosine, sine;
    mti_turn_f32(k, turn4 - (float)k, &cosine, &sine);
    *first = r * cosine;
    *second = r * sine;
}

#endif
