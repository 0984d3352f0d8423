/* types.h: CUDA's vector types, 16-bit floats and intrinsics for the host's C++ compiler: the part
 * of cuda_runtime.h, cuda_bf16.h and cuda_fp16.h that src/backends/cuda uses. */
#ifndef CUDASIM_TYPES_H
#define CUDASIM_TYPES_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

/* ---- vectors ---- */

#define CUDASIM_VECTORS(T, name)                                                                   \
    struct alignas(sizeof(T) * 2) name##2 { T x, y; };                                             \
    struct name##3 { T x, y, z; };                                                                 \
    struct alignas(sizeof(T) * 4 > 16 ? 16 : sizeof(T) * 4) name##4 { T x, y, z, w; };             \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                              \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                      \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }

CUDASIM_VECTORS(int8_t, char)
CUDASIM_VECTORS(uint8_t, uchar)
CUDASIM_VECTORS(int16_t, short)
CUDASIM_VECTORS(uint16_t, ushort)
CUDASIM_VECTORS(int, int)
CUDASIM_VECTORS(unsigned, uint)
CUDASIM_VECTORS(long long, longlong)
CUDASIM_VECTORS(unsigned long long, ulonglong)
CUDASIM_VECTORS(float, float)
CUDASIM_VECTORS(double, double)
#undef CUDASIM_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned vx = 1, unsigned vy = 1, unsigned vz = 1) : x(vx), y(vy), z(vz) {}
};

/* ---- bits ---- */

template <class To, class From> static inline To cudasim_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "both types have the same size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline unsigned __float_as_uint(float x) { return cudasim_bits<unsigned>(x); }
static inline int __float_as_int(float x) { return cudasim_bits<int>(x); }
static inline float __uint_as_float(unsigned x) { return cudasim_bits<float>(x); }
static inline float __int_as_float(int x) { return cudasim_bits<float>(x); }
static inline long long __double_as_longlong(double x) { return cudasim_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return cudasim_bits<double>(x); }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return (unsigned)(((unsigned long long)a * b) >> 32);
}

/* ---- 16-bit floats: rounded to nearest, ties to even ---- */

static inline uint16_t cudasim_bf16_bits(float x)
{
    uint32_t u = cudasim_bits<uint32_t>(x);
    if (x != x) return 0x7fff; /* a GPU turns every NaN into this */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
static inline float cudasim_bf16_value(uint16_t bits)
{
    return cudasim_bits<float>((uint32_t)bits << 16);
}

static inline uint16_t cudasim_half_bits(float x)
{
    uint32_t u = cudasim_bits<uint32_t>(x), magnitude = u & 0x7fffffffu;
    uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    if (magnitude > 0x7f800000u) return 0x7fff;
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
    if (magnitude <
        0x38800000u) { /* below 2^-14: the sum rounds to multiples of 2^-24, as f16 does */
        float shifted = cudasim_bits<float>(magnitude) + 0.5f;
        return (uint16_t)(sign | (cudasim_bits<uint32_t>(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}
static inline float cudasim_half_value(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) return cudasim_bits<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    float value =
        rest >= 0x400u ? cudasim_bits<float>((rest << 13) + 0x38000000u) : (float)rest * 0x1p-24f;
    return cudasim_bits<float>(cudasim_bits<uint32_t>(value) | sign);
}

#define CUDASIM_HALF(type, type2, bits_of, value_of)                                               \
    struct type {                                                                                  \
        uint16_t bits;                                                                             \
        type() = default;                                                                          \
        template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>                      \
        type(T x) : bits(bits_of((float)x))                                                        \
        {                                                                                          \
        }                                                                                          \
        operator float() const { return value_of(bits); }                                          \
    };                                                                                             \
    struct alignas(4) type2 {                                                                      \
        type x, y;                                                                                 \
    };                                                                                             \
    static inline float __low2float(type2 v) { return v.x; }                                       \
    static inline float __high2float(type2 v) { return v.y; }
CUDASIM_HALF(__nv_bfloat16, __nv_bfloat162, cudasim_bf16_bits, cudasim_bf16_value)
CUDASIM_HALF(__half, __half2, cudasim_half_bits, cudasim_half_value)
#undef CUDASIM_HALF
typedef __half half;
typedef __half2 half2;

static inline __nv_bfloat16 __float2bfloat16(float x) { return x; }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }
static inline __nv_bfloat16 __double2bfloat16(double x) { return x; }
static inline float __bfloat162float(__nv_bfloat16 x) { return x; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
static inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return {v.x, v.y}; }
static inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {v.x, v.y}; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
static inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x)
{
    return cudasim_bits<__nv_bfloat16>(x);
}
static inline __half __float2half(float x) { return x; }
static inline __half __float2half_rn(float x) { return x; }
static inline __half __double2half(double x) { return x; }
static inline float __half2float(__half x) { return x; }
static inline __half2 __floats2half2_rn(float x, float y) { return {x, y}; }
static inline __half2 __float22half2_rn(float2 v) { return {v.x, v.y}; }
static inline float2 __half22float2(__half2 v) { return {v.x, v.y}; }
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }
static inline __half __ushort_as_half(unsigned short x) { return cudasim_bits<__half>(x); }

/* ---- arithmetic ---- */

#define CUDASIM_MIN_MAX(T)                                                                         \
    static inline T min(T a, T b) { return b < a ? b : a; }                                        \
    static inline T max(T a, T b) { return a < b ? b : a; }
CUDASIM_MIN_MAX(int)
CUDASIM_MIN_MAX(unsigned)
CUDASIM_MIN_MAX(long)
CUDASIM_MIN_MAX(unsigned long)
CUDASIM_MIN_MAX(long long)
CUDASIM_MIN_MAX(unsigned long long)
#undef CUDASIM_MIN_MAX
static inline float min(float a, float b) { return fminf(a, b); }
static inline float max(float a, float b) { return fmaxf(a, b); }
static inline double min(double a, double b) { return fmin(a, b); }
static inline double max(double a, double b) { return fmax(a, b); }

static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
static inline double normcdf(double x) { return 0.5 * erfc(-x * 0.70710678118654752440); }
/* The C library declares these names. */
#define __expf  expf
#define __logf  logf
#define __log2f log2f
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __saturatef(float x) { return fminf(fmaxf(x, 0.0f), 1.0f); }
static inline float __int2float_rn(int x) { return (float)x; }
/* The compiler may fuse plain operators with their neighbours, but not these. */
static inline float __fadd_rn(float a, float b)
{
    volatile float sum = a + b;
    return sum;
}
static inline float __fmul_rn(float a, float b)
{
    volatile float product = a * b;
    return product;
}
static inline float __fsub_rn(float a, float b) { return __fadd_rn(a, -b); }
static inline double __dadd_rn(double a, double b)
{
    volatile double sum = a + b;
    return sum;
}
static inline double __dmul_rn(double a, double b)
{
    volatile double product = a * b;
    return product;
}

/* Loads and stores with hints for the caches, which are ignored here. */
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T __ldcs(const T *p) { return *p; }
template <class T> static inline T __ldcg(const T *p) { return *p; }
template <class T> static inline void __stcs(T *p, T value) { *p = value; }
template <class T> static inline void __stcg(T *p, T value) { *p = value; }

#endif
