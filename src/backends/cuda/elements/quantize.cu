/* quantize.cu: bits and blocks, bit for bit as backends/cpu/elements/quantize.c. Everything is
 * contiguous. The scalar maths is in backends/quantize_codes.h. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/reduce.cuh"
#include "backends/quantize_codes.h"

#define THREADS MTI_BLOCK_THREADS
#define WARPS   (THREADS / 32)

/* Calls n(T()) for bool, as bytes, and the floating dtypes. */
template <class Each> static bool for_bool_or_float(mt_dtype dtype, const Each &each)
{
    return dtype == MT_BOOL ? each(uint8_t()) : mti_for_float(dtype, each);
}

/* ---- bits ---- */

static __device__ __forceinline__ bool is_on(uint8_t x) { return x; }
static __device__ __forceinline__ bool is_on(double x) { return mti_is_on_f64(x); }
static __device__ __forceinline__ bool is_on(float x) { return mti_is_on_f32(x); }
static __device__ __forceinline__ bool is_on(__nv_bfloat16 x) { return is_on(mti_widen(x)); }
static __device__ __forceinline__ bool is_on(__half x) { return is_on(mti_widen(x)); }

/* A warp packs 32 elements, four bytes, at a time; its first four lanes store them. */
template <class T>
__global__ void __launch_bounds__(THREADS) pack_elements(const T *x, uint8_t *bits, int64_t n)
{
    int lane = (int)threadIdx.x % 32;
    int64_t bytes = (n + 7) / 8, step = (int64_t)gridDim.x * THREADS;
    for (int64_t first = (int64_t)blockIdx.x * THREADS + threadIdx.x - lane; first < n;
         first += step) {
        int64_t i = first + lane, b = first / 8 + lane;
        unsigned word = __ballot_sync(0xffffffffu, i < n && is_on(x[i]));
        if (lane < 4 && b < bytes) bits[b] = (uint8_t)(word >> 8 * lane);
    }
}

bool mti_cuda_pack_bits(mti_ctx *ctx, const mti_view *x, const mti_view *bits)
{
    int64_t n = mti_view_count(x);
    if (n == 0) return true;
    return for_bool_or_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        auto pack_bits = pack_elements<T>;
        return MTI_LAUNCH(ctx, pack_bits, mti_grid(ctx, n, THREADS), THREADS, 0,
                          mti_data<const T>(x), mti_data<uint8_t>(bits), n);
    });
}

static __device__ __forceinline__ void put_bit(uint8_t *y, bool on) { *y = on; }
template <class T> static __device__ __forceinline__ void put_bit(T *y, bool on)
{
    *y = mti_narrow<T>(on ? 1.0f : 0.0f);
}

template <class T>
__global__ void __launch_bounds__(THREADS) unpack_elements(const uint8_t *bits, T *y, int64_t n)
{
    int64_t step = (int64_t)gridDim.x * THREADS;
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += step)
        put_bit(y + i, bits[i / 8] >> (i % 8) & 1);
}

bool mti_cuda_unpack_bits(mti_ctx *ctx, const mti_view *bits, const mti_view *y)
{
    int64_t n = mti_view_count(y);
    if (n == 0) return true;
    return for_bool_or_float(y->dtype, [&](auto t) {
        typedef decltype(t) T;
        auto unpack_bits = unpack_elements<T>;
        return MTI_LAUNCH(ctx, unpack_bits, mti_grid(ctx, n, THREADS), THREADS, 0,
                          mti_data<const uint8_t>(bits), mti_data<T>(y), n);
    });
}

/* ---- blocks ---- */

#define PAIRS 8 /* per lane: a block has at most 512 values, in pairs over 32 lanes */

/* One block of values per warp; lane l has pairs l, l + 32, ... */
template <class T, mti_code code>
__global__ void __launch_bounds__(THREADS)
    quantize_blocks(const T *x, const float *shift, uint8_t *codes, void *scales, int64_t n,
                    int64_t blocks, int block)
{
    constexpr bool nf4 = code == MTI_CODE_NF4, mx = code == MTI_CODE_MXFP4;
    int lane = (int)threadIdx.x % 32;
    float off = shift ? *shift : 0.0f;
    for (int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; b < blocks;
         b += (int64_t)gridDim.x * WARPS) {
        int64_t first = b * block;
        int here = (int)(n - first < block ? n - first : block);
        float v[PAIRS][2];
        uint32_t largest = 0;
        MTI_UNROLL
        for (int k = 0; k < PAIRS; k++) {
            MTI_UNROLL
            for (int j = 0; j < 2; j++) {
                int i = 2 * (lane + 32 * k) + j;
                v[k][j] = i < here ? (float)mti_widen(x[first + i]) - off : 0.0f;
                largest = max(largest, mti_magnitude_bits(v[k][j]));
            }
        }
        largest = mti_lanes_max(largest, 32);
        uint8_t e = mti_mxfp4_exponent(largest);
        float scale = mx ? mti_mxfp4_scale(e) : mti_block_scale(nf4, largest);
        bool divides = mti_scale_divides(scale);
        if (lane == 0)
            mx ? (void)(((uint8_t *)scales)[b] = e) : (void)(((float *)scales)[b] = scale);
        MTI_UNROLL
        for (int k = 0; k < PAIRS; k++) {
            int i = 2 * (lane + 32 * k);
            if (i >= here) continue;
            if (mx) {
                uint32_t low = divides ? mti_mxfp4_encode(v[k][0] / scale) : 0;
                uint32_t high = divides && i + 1 < here ? mti_mxfp4_encode(v[k][1] / scale) : 0;
                codes[(first + i) / 2] = (uint8_t)(high << 4 | low);
            } else if (nf4) {
                uint32_t high = divides ? mti_nf4_encode(v[k][0] / scale) : MTI_NF4_ZERO;
                uint32_t low =
                    divides && i + 1 < here ? mti_nf4_encode(v[k][1] / scale) : MTI_NF4_ZERO;
                codes[(first + i) / 2] = (uint8_t)(high << 4 | low);
            } else {
                codes[first + i] = divides ? mti_int8_encode(v[k][0] / scale) : (uint8_t)0;
                if (i + 1 < here)
                    codes[first + i + 1] = divides ? mti_int8_encode(v[k][1] / scale) : (uint8_t)0;
            }
        }
    }
}

bool mti_cuda_quantize(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *x,
                       const mti_view *shift, const mti_view *codes, const mti_view *scales)
{
    int64_t blocks = mti_view_count(scales);
    if (blocks == 0) return true;
    return mti_for_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        auto quantize = code == MTI_CODE_NF4     ? quantize_blocks<T, MTI_CODE_NF4>
                        : code == MTI_CODE_MXFP4 ? quantize_blocks<T, MTI_CODE_MXFP4>
                                                 : quantize_blocks<T, MTI_CODE_INT8>;
        return MTI_LAUNCH(ctx, quantize, mti_grid(ctx, blocks, WARPS), THREADS, 0,
                          mti_data<const T>(x), mti_data<const float>(shift),
                          mti_data<uint8_t>(codes), scales->data, mti_view_count(x), blocks,
                          (int)block);
    });
}

/* The codes of N values as they lie in memory, and value k of them. */
template <mti_code code, int N> struct code_group {
    static constexpr int BYTES = code == MTI_CODE_INT8 ? N : N / 2;
    mti_vec<uint8_t, BYTES> codes;

    __device__ __forceinline__ float value(int k, const float *levels) const
    {
        if (code == MTI_CODE_INT8) return (float)(int8_t)codes.v[k];
        const bool high = k % 2 == (code == MTI_CODE_MXFP4);
        return levels[high ? codes.v[k / 2] >> 4 : codes.v[k / 2] & 15u];
    }
};

template <mti_code code>
static __device__ __forceinline__ float scale_at(const void *scales, int64_t b)
{
    return code == MTI_CODE_MXFP4 ? mti_mxfp4_scale(((const uint8_t *)scales)[b])
                                  : ((const float *)scales)[b];
}

/* A thread converts N values of one block at a time, with vector accesses if N > 2; thread 0 of the
 * grid also the rest, fewer. */
template <class T, mti_code code, int N>
__global__ void __launch_bounds__(THREADS)
    dequantize_groups(const uint8_t *codes, const void *scales, const float *shift, T *y, int64_t n,
                      int log2_block)
{
    typedef code_group<code, N> group;
    const float nf4[16] = MTI_NF4_LEVELS, mxfp4[16] = MTI_MXFP4_LEVELS;
    MTI_SHARED(float, levels[16]);
    if (threadIdx.x < 16)
        levels[threadIdx.x] = code == MTI_CODE_MXFP4 ? mxfp4[threadIdx.x] : nf4[threadIdx.x];
    __syncthreads();
    float off = shift ? *shift : 0.0f;
    int64_t at = (int64_t)blockIdx.x * THREADS + threadIdx.x, step = (int64_t)gridDim.x * THREADS;
    for (int64_t g = at; g < n / N; g += step) {
        group from;
        if (N > 2)
            from.codes = mti_load<group::BYTES>(codes + g * group::BYTES);
        else
            for (int k = 0; k < group::BYTES; k++) from.codes.v[k] = codes[g * group::BYTES + k];
        float scale = scale_at<code>(scales, g * N >> log2_block);
        mti_vec<T, N> to;
        MTI_UNROLL
        for (int k = 0; k < N; k++)
            to.v[k] = mti_narrow<T>(mti_scaled(from.value(k, levels), scale, off));
        if (N > 2)
            mti_store(y + g * N, to);
        else
            for (int k = 0; k < N; k++) y[g * N + k] = to.v[k];
    }
    for (int64_t i = n / N * N; at == 0 && i < n; i++) {
        code_group<code, 2> from = {};
        from.codes.v[0] = codes[code == MTI_CODE_INT8 ? i : i / 2];
        float value = from.value(code == MTI_CODE_INT8 ? 0 : (int)(i % 2), levels);
        y[i] = mti_narrow<T>(mti_scaled(value, scale_at<code>(scales, i >> log2_block), off));
    }
}

/* Eight values at a time if they are aligned and in one block; else two, a byte of nf4. */
template <class T, mti_code code>
static bool dequantize(mti_ctx *ctx, int64_t block, const uint8_t *codes, const void *scales,
                       const float *shift, T *y, int64_t n)
{
    int log2_block = 0;
    while ((int64_t)1 << log2_block < block) log2_block++;
    bool eights = block % 8 == 0 && mti_is_aligned(codes, 8) && mti_is_aligned(y, 16);
    auto dequantize = eights ? dequantize_groups<T, code, 8> : dequantize_groups<T, code, 2>;
    int64_t groups = eights ? (n + 7) / 8 : (n + 1) / 2;
    return MTI_LAUNCH(ctx, dequantize, mti_grid(ctx, groups, THREADS), THREADS, 0, codes, scales,
                      shift, y, n, log2_block);
}

bool mti_cuda_dequantize(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *codes,
                         const mti_view *scales, const mti_view *shift, const mti_view *y)
{
    int64_t n = mti_view_count(y);
    if (n == 0) return true;
    const uint8_t *from = mti_data<const uint8_t>(codes);
    const void *scale = scales->data;
    const float *off = mti_data<const float>(shift);
    return mti_for_float(y->dtype, [&](auto t) {
        auto *to = mti_data<decltype(t)>(y);
        typedef decltype(t) T;
        auto run = code == MTI_CODE_NF4     ? dequantize<T, MTI_CODE_NF4>
                   : code == MTI_CODE_MXFP4 ? dequantize<T, MTI_CODE_MXFP4>
                                            : dequantize<T, MTI_CODE_INT8>;
        return run(ctx, block, from, scale, off, to, n);
    });
}

/* ---- the mean that double quantisation subtracts ---- */

/* Thread l computes lane l. */
__global__ void __launch_bounds__(MTI_MEAN_LANES)
    mean_of_lanes(const float *x, int64_t n, float *mean)
{
    MTI_SHARED(double, lane[MTI_MEAN_LANES]);
    int l = (int)threadIdx.x;
    double sum = 0;
    for (int64_t i = l; i < n; i += MTI_MEAN_LANES) sum += (double)x[i];
    lane[l] = sum;
    for (int half = MTI_MEAN_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (l < half) lane[l] += lane[l + half];
    }
    if (l == 0) *mean = (float)(lane[0] / (double)n);
}

bool mti_cuda_lane_mean(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    return MTI_LAUNCH(ctx, mean_of_lanes, 1, MTI_MEAN_LANES, 0, mti_data<const float>(x),
                      mti_view_count(x), mti_data<float>(y));
}
