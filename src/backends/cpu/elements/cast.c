/* cast.c: y = x between two types. The values pass through f32, f64 or i64, whichever holds the
 * source exactly. f64 is converted to a narrower float through f32, as in PyTorch. */
#include "backends/cpu/cpu.h"

typedef struct cast_job {
    mt_dtype from, to;
} cast_job;

#define CONVERT(to_type, from_type)                                                                \
    for (int64_t i = 0; i < n; i++) ((to_type *)dst)[i] = (to_type)((const from_type *)src)[i]

/* mti_cpu_map (walk.c) converts narrow sources to f32 before, and f32 to narrow targets after. */
static MTI_MULTIVERSION void cast_floats(mt_dtype from, mt_dtype to, const void *src, void *dst,
                                         int64_t n)
{
    if (from == MT_F64 && to == MT_F64)
        CONVERT(double, double);
    else if (from == MT_F64)
        CONVERT(float, double);
    else if (to == MT_F64)
        CONVERT(double, float);
    else
        CONVERT(float, float);
}

static void widen(mt_dtype from, bool to_bool, const void *src, int64_t *dst, int64_t n)
{
    const float *x32 = src;
    const double *x64 = src;
    switch (from) {
    case MT_I64: CONVERT(int64_t, int64_t); break;
    case MT_I32: CONVERT(int64_t, int32_t); break;
    case MT_I16: CONVERT(int64_t, int16_t); break;
    case MT_U16: CONVERT(int64_t, uint16_t); break;
    case MT_I8: CONVERT(int64_t, int8_t); break;
    case MT_U8:
    case MT_BOOL: CONVERT(int64_t, uint8_t); break;
    case MT_F64:
        for (int64_t i = 0; i < n; i++) dst[i] = to_bool ? x64[i] != 0 : mti_f64_to_i64(x64[i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++) dst[i] = to_bool ? x32[i] != 0 : mti_f64_to_i64(x32[i]);
        break;
    }
}

/* Narrower integers take the low bits; a bool is true if the value is not 0. */
static void narrow(mt_dtype to, const int64_t *src, void *dst, int64_t n)
{
    switch (to) {
    case MT_I64: CONVERT(int64_t, int64_t); break;
    case MT_I32: CONVERT(int32_t, int64_t); break;
    case MT_I16: CONVERT(int16_t, int64_t); break;
    case MT_U16: CONVERT(uint16_t, int64_t); break;
    case MT_I8: CONVERT(int8_t, int64_t); break;
    case MT_U8: CONVERT(uint8_t, int64_t); break;
    case MT_BOOL:
        for (int64_t i = 0; i < n; i++) ((uint8_t *)dst)[i] = src[i] != 0;
        break;
    case MT_F64: CONVERT(double, int64_t); break;
    default: CONVERT(float, int64_t); break;
    }
}

/* Bytes of an element as mti_cpu_map passes it. */
static int64_t presented_size(mt_dtype dtype)
{
    return mti_cpu_is_narrow(dtype) ? 4 : (int64_t)mt_dtype_size(dtype);
}

static void cast_run(const void *op, void *const *p, mti_cpu_span part, int64_t n)
{
    (void)part;
    const cast_job *job = op;
    if (mti_dtype_is_real(job->from) && mti_dtype_is_real(job->to)) {
        cast_floats(job->from, job->to, p[1], p[0], n);
        return;
    }
    int64_t wide[MTI_CPU_RUN];
    for (int64_t i = 0, m; i < n; i += m) {
        m = n - i < MTI_CPU_RUN ? n - i : MTI_CPU_RUN;
        widen(job->from, job->to == MT_BOOL, (const char *)p[1] + i * presented_size(job->from),
              wide, m);
        narrow(job->to, wide, (char *)p[0] + i * presented_size(job->to), m);
    }
}

void mti_cpu_cast(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    cast_job job = {x->dtype, y->dtype};
    mti_cpu_map(ctx, 2, (const mti_view *[]){y, x}, 1, false, 1, cast_run, &job);
}
