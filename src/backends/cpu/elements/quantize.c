/* quantize.c: masks packed eight to a byte, and numbers quantized to one byte or half a byte with a
 * scale per block. The scalar maths is in backends/quantize_codes.h. */
#include <assert.h>
#include "backends/cpu/cpu.h"
#include "backends/quantize_codes.h"

/* ---- bits ---- */

typedef struct bits_job {
    const mti_view *values; /* contiguous */
    uint8_t *bits;
    int64_t n;
} bits_job;

/* flags[i] = 1 if element at + i is "on" (pack_bits), else 0, for n elements. */
static void flags_of(const mti_view *x, int64_t at, uint8_t *flags, int64_t n)
{
    if (x->dtype == MT_BOOL) {
        memcpy(flags, (const uint8_t *)x->data + at, (size_t)n);
        return;
    }
    if (x->dtype == MT_F64) {
        const double *p = (const double *)x->data + at;
        for (int64_t i = 0; i < n; i++) flags[i] = mti_is_on_f64(p[i]);
        return;
    }
    float values[MTI_CPU_RUN];
    mti_cpu_load_f32(x->dtype, (const char *)x->data + at * (int64_t)mt_dtype_size(x->dtype),
                     values, n);
    for (int64_t i = 0; i < n; i++) flags[i] = mti_is_on_f32(values[i]);
}

/* Bytes [begin, end). Eight flags are read as one number; multiplied by the constant, it has flag i
 * in bit 56 + i, since no two of the 64 partial products overlap. */
static void pack_chunk(const void *arg, int64_t begin, int64_t end)
{
    const bits_job *job = arg;
    uint8_t flags[MTI_CPU_RUN];
    for (int64_t b = begin; b < end; b += MTI_CPU_RUN / 8) {
        int64_t bytes = end - b < MTI_CPU_RUN / 8 ? end - b : MTI_CPU_RUN / 8;
        int64_t n = job->n - 8 * b < 8 * bytes ? job->n - 8 * b : 8 * bytes;
        flags_of(job->values, 8 * b, flags, n);
        memset(flags + n, 0, (size_t)(8 * bytes - n));
        for (int64_t i = 0; i < bytes; i++) {
            uint64_t eight;
            memcpy(&eight, flags + 8 * i, 8);
            job->bits[b + i] = (uint8_t)(eight * 0x0102040810204080u >> 56);
        }
    }
}

bool mti_cpu_pack_bits(mti_ctx *ctx, const mti_view *x, const mti_view *bits)
{
    bits_job job = {x, bits->data, mti_view_count(x)};
    int64_t bytes = mti_view_count(bits);
    mti_cpu_parallel(ctx, bytes, mti_cpu_chunk(bytes, 8), pack_chunk, &job);
    return true;
}

#define EACH_BYTE 0x0101010101010101u

/* The masks leave bit j alone in byte j of a number; adding 0x7f carries it to the byte's top bit.
 * Little-endian, as are all our formats. */
static void unpack_chunk(const void *arg, int64_t begin, int64_t end)
{
    const bits_job *job = arg;
    const mti_view *y = job->values;
    int64_t size = (int64_t)mt_dtype_size(y->dtype);
    uint8_t flags[MTI_CPU_RUN];
    float values[MTI_CPU_RUN];
    for (int64_t b = begin; b < end; b += MTI_CPU_RUN / 8) {
        int64_t bytes = end - b < MTI_CPU_RUN / 8 ? end - b : MTI_CPU_RUN / 8;
        int64_t n = job->n - 8 * b < 8 * bytes ? job->n - 8 * b : 8 * bytes;
        for (int64_t i = 0; i < bytes; i++) {
            uint64_t eight = job->bits[b + i] * EACH_BYTE & 0x8040201008040201u;
            eight = (eight + 0x7f * EACH_BYTE) >> 7 & EACH_BYTE;
            memcpy(flags + 8 * i, &eight, 8);
        }
        char *at = (char *)y->data + 8 * b * size;
        if (y->dtype == MT_BOOL) {
            memcpy(at, flags, (size_t)n);
        } else if (y->dtype == MT_F64) {
            for (int64_t i = 0; i < n; i++) ((double *)(void *)at)[i] = flags[i];
        } else {
            for (int64_t i = 0; i < n; i++) values[i] = flags[i];
            mti_cpu_store_f32(y->dtype, values, at, n);
        }
    }
}

bool mti_cpu_unpack_bits(mti_ctx *ctx, const mti_view *bits, const mti_view *y)
{
    bits_job job = {y, bits->data, mti_view_count(y)};
    int64_t bytes = mti_view_count(bits);
    mti_cpu_parallel(ctx, bytes, mti_cpu_chunk(bytes, 8), unpack_chunk, &job);
    return true;
}

/* ---- blocks ---- */

typedef struct quantize_job {
    const mti_view *values; /* contiguous */
    uint8_t *codes;
    float *scales;
    uint8_t *exponents; /* mxfp4: in the place of scales */
    const float *shift; /* NULL: 0 */
    int64_t n, block;
    bool nf4;
} quantize_job;

static MTI_MULTIVERSION uint32_t largest_magnitude(float *v, float shift, int64_t n)
{
    uint32_t largest = 0;
    MTI_SIMD_MAX(largest)
    for (int64_t i = 0; i < n; i++) {
        v[i] -= shift;
        uint32_t u = mti_magnitude_bits(v[i]);
        largest = u > largest ? u : largest;
    }
    return largest;
}

static MTI_MULTIVERSION void encode_int8(const float *v, float scale, uint8_t *codes, int64_t n)
{
    MTI_SIMD
    for (int64_t i = 0; i < n; i++) codes[i] = mti_int8_encode(v[i] / scale);
}

static MTI_MULTIVERSION void encode_nf4(const float *v, float scale, uint8_t *codes, int64_t n)
{
    uint8_t level[MTI_CPU_RUN + 1];
    MTI_SIMD
    for (int64_t i = 0; i < n; i++) level[i] = (uint8_t)mti_nf4_encode(v[i] / scale);
    level[n] = MTI_NF4_ZERO; /* the pair of an odd last value */
    for (int64_t i = 0; i < (n + 1) / 2; i++)
        codes[i] = (uint8_t)(level[2 * i] << 4 | level[2 * i + 1]);
}

/* The second value of a byte is in the high bits. */
static MTI_MULTIVERSION void encode_mxfp4(const float *v, float scale, uint8_t *codes, int64_t n)
{
    uint8_t level[MTI_CPU_RUN + 1];
    MTI_SIMD
    for (int64_t i = 0; i < n; i++) level[i] = (uint8_t)mti_mxfp4_encode(v[i] / scale);
    level[n] = 0;
    for (int64_t i = 0; i < (n + 1) / 2; i++)
        codes[i] = (uint8_t)(level[2 * i + 1] << 4 | level[2 * i]);
}

static void load_values(const mti_view *x, int64_t at, float *v, int64_t n)
{
    if (x->dtype == MT_F64)
        for (int64_t i = 0; i < n; i++) v[i] = (float)((const double *)x->data)[at + i];
    else
        mti_cpu_load_f32(x->dtype, (const char *)x->data + at * (int64_t)mt_dtype_size(x->dtype), v,
                         n);
}

/* Blocks [begin, end). */
static void quantize_chunk(const void *arg, int64_t begin, int64_t end)
{
    const quantize_job *job = arg;
    float v[MTI_CPU_RUN], shift = job->shift ? *job->shift : 0.0f;
    for (int64_t b = begin; b < end; b++) {
        int64_t at = b * job->block, n = job->n - at < job->block ? job->n - at : job->block;
        uint8_t *codes = job->codes + (job->nf4 || job->exponents ? at / 2 : at);
        load_values(job->values, at, v, n);
        const uint32_t largest = largest_magnitude(v, shift, n);
        if (job->exponents) {
            const uint8_t e = job->exponents[b] = mti_mxfp4_exponent(largest);
            if (e == 255) memset(v, 0, (size_t)n * sizeof *v);
            encode_mxfp4(v, e == 255 ? 1 : mti_mxfp4_scale(e), codes, n);
            continue;
        }
        float scale = mti_block_scale(job->nf4, largest);
        job->scales[b] = scale;
        if (!mti_scale_divides(scale))
            memset(codes, job->nf4 ? MTI_NF4_ZERO << 4 | MTI_NF4_ZERO : 0,
                   (size_t)(job->nf4 ? (n + 1) / 2 : n));
        else if (job->nf4)
            encode_nf4(v, scale, codes, n);
        else
            encode_int8(v, scale, codes, n);
    }
}

static quantize_job job_of(mti_code code, int64_t block, const mti_view *values,
                           const mti_view *shift, const mti_view *codes, const mti_view *scales)
{
    assert(block >= 8 && (block & (block - 1)) == 0 && block <= MTI_CPU_RUN);
    return (quantize_job){.values = values,
                          .codes = codes->data,
                          .scales = scales->data,
                          .exponents = code == MTI_CODE_MXFP4 ? scales->data : NULL,
                          .shift = shift ? shift->data : NULL,
                          .n = mti_view_count(values),
                          .block = block,
                          .nf4 = code == MTI_CODE_NF4};
}

bool mti_cpu_quantize(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *x,
                      const mti_view *shift, const mti_view *codes, const mti_view *scales)
{
    quantize_job job = job_of(code, block, x, shift, codes, scales);
    int64_t blocks = mti_view_count(scales);
    mti_cpu_parallel(ctx, blocks, mti_cpu_chunk(blocks, block * 4), quantize_chunk, &job);
    return true;
}

static MTI_MULTIVERSION void decode_int8(const uint8_t *codes, float scale, float shift, float *v,
                                         int64_t n)
{
    MTI_SIMD
    for (int64_t i = 0; i < n; i++) v[i] = mti_scaled((float)(int8_t)codes[i], scale, shift);
}

static MTI_MULTIVERSION void decode_nf4(const uint8_t *codes, float scale, float shift, float *v,
                                        int64_t n)
{
    static const float levels[16] = MTI_NF4_LEVELS;
    float scaled[16];
    for (int i = 0; i < 16; i++) scaled[i] = mti_scaled(levels[i], scale, shift);
    for (int64_t i = 0; i < n / 2; i++) {
        v[2 * i] = scaled[codes[i] >> 4];
        v[2 * i + 1] = scaled[codes[i] & 15];
    }
    if (n % 2) v[n - 1] = scaled[codes[n / 2] >> 4];
}

static MTI_MULTIVERSION void decode_mxfp4(const uint8_t *codes, float scale, float shift, float *v,
                                          int64_t n)
{
    static const float levels[16] = MTI_MXFP4_LEVELS;
    float scaled[16];
    for (int i = 0; i < 16; i++) scaled[i] = mti_scaled(levels[i], scale, shift);
    for (int64_t i = 0; i < n; i++) v[i] = scaled[i % 2 ? codes[i / 2] >> 4 : codes[i / 2] & 15];
}

static void dequantize_chunk(const void *arg, int64_t begin, int64_t end)
{
    const quantize_job *job = arg;
    const mti_view *y = job->values;
    float v[MTI_CPU_RUN], shift = job->shift ? *job->shift : 0.0f;
    for (int64_t b = begin; b < end; b++) {
        int64_t at = b * job->block, n = job->n - at < job->block ? job->n - at : job->block;
        if (job->exponents)
            decode_mxfp4(job->codes + at / 2, mti_mxfp4_scale(job->exponents[b]), shift, v, n);
        else if (job->nf4)
            decode_nf4(job->codes + at / 2, job->scales[b], shift, v, n);
        else
            decode_int8(job->codes + at, job->scales[b], shift, v, n);
        if (y->dtype == MT_F64)
            for (int64_t i = 0; i < n; i++) ((double *)y->data)[at + i] = v[i];
        else
            mti_cpu_store_f32(y->dtype, v, (char *)y->data + at * (int64_t)mt_dtype_size(y->dtype),
                              n);
    }
}

bool mti_cpu_dequantize(mti_ctx *ctx, mti_code code, int64_t block, const mti_view *codes,
                        const mti_view *scales, const mti_view *shift, const mti_view *y)
{
    quantize_job job = job_of(code, block, y, shift, codes, scales);
    int64_t blocks = mti_view_count(scales);
    mti_cpu_parallel(ctx, blocks, mti_cpu_chunk(blocks, block * 2), dequantize_chunk, &job);
    return true;
}

/* ---- the mean that double quantisation subtracts ---- */

bool mti_cpu_lane_mean(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    (void)ctx;
    const float *p = x->data;
    int64_t n = mti_view_count(x);
    double lane[MTI_MEAN_LANES] = {0};
    for (int64_t i = 0; i < n; i++) lane[i % MTI_MEAN_LANES] += (double)p[i];
    for (int half = MTI_MEAN_LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    *(float *)y->data = (float)(lane[0] / (double)n);
    return true;
}
