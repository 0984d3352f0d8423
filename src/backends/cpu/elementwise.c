/* elementwise.c: fill, unary ops and their backward, binary ops. The maths of
 * each op is in backends/scalar.h. */
#include "backends/cpu/cpu.h"

/* Loops over the f32 pointers x, y, ... of the function around. */
#define EACH(out, value)                                                                           \
    do {                                                                                           \
        MTI_SIMD                                                                                   \
        for (int64_t i = 0; i < n; i++) out[i] = (value);                                          \
    } while (0)

/* Tiny calls must not pay for a walk: contiguous, no conversion, one thread. */
static bool is_simple(const mti_view *v, mt_dtype dtype)
{
    return v->dtype == dtype && mti_view_is_contiguous(v);
}

/* ---- fill ---- */

typedef struct fill_job {
    mti_walk walk;
    uint64_t bits; /* the value in y's type, in the lowest bytes */
    size_t size;
} fill_job;

static uint64_t fill_bits(mt_dtype dtype, double value)
{
    uint64_t bits = 0;
    float f = (float)value;
    int64_t i = dtype == MT_BOOL ? value != 0.0 : mti_cpu_f64_to_i64(value);
    int32_t i32 = (int32_t)i;
    uint8_t u8 = (uint8_t)i;
    switch (dtype) {
    case MT_F32: memcpy(&bits, &f, sizeof f); break;
    case MT_F64: memcpy(&bits, &value, sizeof value); break;
    case MT_BF16:
    case MT_F16: mti_cpu_store_f32(dtype, &f, &bits, 1); break;
    case MT_I64: memcpy(&bits, &i, sizeof i); break;
    case MT_I32: memcpy(&bits, &i32, sizeof i32); break;
    default: memcpy(&bits, &u8, sizeof u8); break;
    }
    return bits;
}

#define FILL_ELEMENTS(T)                                                                           \
    for (int64_t i = 0; i < n; i++) ((T *)dst)[i * step] = *(const T *)bits

static MTI_MULTIVERSION void fill_run(size_t size, void *dst, int64_t step, const void *bits,
                                      int64_t n)
{
    switch (size) {
    case 1: FILL_ELEMENTS(uint8_t); break;
    case 2: FILL_ELEMENTS(uint16_t); break;
    case 4: FILL_ELEMENTS(uint32_t); break;
    default: FILL_ELEMENTS(uint64_t); break;
    }
}

static void fill_chunk(const void *arg, int64_t begin, int64_t end)
{
    const fill_job *job = arg;
    const mti_walk *w = &job->walk;
    int64_t index[MT_MAX_RANK], last = w->rank - 1;
    mti_walk_seek(w, begin, index);
    for (int64_t i = begin, n; i < end; i += n) {
        int64_t left = w->shape[last] - index[last];
        n = end - i < left ? end - i : left;
        char *at = w->data[0] + mti_walk_offset(w, 0, index) * (int64_t)job->size;
        if (job->bits == 0 && w->stride[0][last] == 1)
            memset(at, 0, (size_t)n * job->size);
        else
            fill_run(job->size, at, w->stride[0][last], &job->bits, n);
        mti_walk_advance(w, n, index);
    }
}

bool mti_cpu_fill(mti_ctx *ctx, const mti_view *y, double value)
{
    fill_job job;
    mti_walk_init(&job.walk, 1, &y, false);
    job.bits = fill_bits(y->dtype, value);
    job.size = mt_dtype_size(y->dtype);
    mti_cpu_parallel(ctx, job.walk.count, mti_cpu_chunk(job.walk.count, 1), fill_chunk, &job);
    return true;
}

/* ---- unary ---- */

typedef struct unary_job {
    mti_unary op;
    double p0, p1;
} unary_job;

/* One loop for each of the usual exponents, so that it vectorises: in it, what mti_pow_f32 asks is
 * known. */
#define EACH_POWER(exponent, out, value)                                                           \
    do {                                                                                           \
        if ((exponent) == 2.0f)                                                                    \
            EACH(out, value(2.0f));                                                                \
        else if ((exponent) == 3.0f)                                                               \
            EACH(out, value(3.0f));                                                                \
        else if ((exponent) == 0.5f)                                                               \
            EACH(out, value(0.5f));                                                                \
        else if ((exponent) == -0.5f)                                                              \
            EACH(out, value(-0.5f));                                                               \
        else if ((exponent) == -1.0f)                                                              \
            EACH(out, value(-1.0f));                                                               \
        else                                                                                       \
            for (int64_t i = 0; i < n; i++) out[i] = value(exponent);                              \
    } while (0)

#define POWER(p) mti_pow_f32(x[i], p)
MTI_INLINE void pow_f32(float *y, const float *x, float p, int64_t n) { EACH_POWER(p, y, POWER); }

#define POWER_BACKWARD(p) mti_pow_backward_f32(x[i], dy[i], p)
MTI_INLINE void pow_backward_f32(float *dx, const float *x, const float *dy, float p, int64_t n)
{
    EACH_POWER(p, dx, POWER_BACKWARD);
}

static MTI_MULTIVERSION void unary_f32(const void *op, void *const *p, int64_t first, int64_t n)
{
    (void)first;
    const unary_job *job = op;
    const float *x = p[1];
    float *y = p[0], p0 = (float)job->p0, p1 = (float)job->p1;
    switch (job->op) {
    case MTI_RELU: EACH(y, mti_relu_f32(x[i])); break;
    case MTI_LEAKY_RELU: EACH(y, mti_leaky_relu_f32(x[i], p0)); break;
    case MTI_GELU: EACH(y, mti_gelu_f32(x[i])); break;
    case MTI_GELU_TANH: EACH(y, mti_gelu_tanh_f32(x[i])); break;
    case MTI_SILU: EACH(y, mti_silu_f32(x[i])); break;
    case MTI_TANH: EACH(y, mti_tanh_f32(x[i])); break;
    case MTI_SIGMOID: EACH(y, mti_sigmoid_f32(x[i])); break;
    case MTI_EXP: EACH(y, mti_exp_f32(x[i])); break;
    case MTI_LOG: EACH(y, mti_log_f32(x[i])); break;
    case MTI_SQRT: EACH(y, sqrtf(x[i])); break;
    case MTI_AFFINE: EACH(y, x[i] * p0 + p1); break;
    case MTI_POW: pow_f32(y, x, p0, n); break;
    case MTI_UNARY_COUNT: break;
    }
}

static void unary_f64(const void *op, void *const *p, int64_t first, int64_t n)
{
    (void)first;
    const unary_job *job = op;
    const double *x = p[1];
    double *y = p[0], p0 = job->p0, p1 = job->p1;
    switch (job->op) {
    case MTI_RELU: EACH(y, mti_relu_f64(x[i])); break;
    case MTI_LEAKY_RELU: EACH(y, mti_leaky_relu_f64(x[i], p0)); break;
    case MTI_GELU: EACH(y, mti_gelu_f64(x[i])); break;
    case MTI_GELU_TANH: EACH(y, mti_gelu_tanh_f64(x[i])); break;
    case MTI_SILU: EACH(y, mti_silu_f64(x[i])); break;
    case MTI_TANH: EACH(y, tanh(x[i])); break;
    case MTI_SIGMOID: EACH(y, mti_sigmoid_f64(x[i])); break;
    case MTI_EXP: EACH(y, exp(x[i])); break;
    case MTI_LOG: EACH(y, log(x[i])); break;
    case MTI_SQRT: EACH(y, sqrt(x[i])); break;
    case MTI_AFFINE: EACH(y, x[i] * p0 + p1); break;
    case MTI_POW: EACH(y, mti_pow_f64(x[i], p0)); break;
    case MTI_UNARY_COUNT: break;
    }
}

/* Simple operations per element, in f32; the C library's f64 functions take about ten times that.
 */
static int64_t unary_cost(mti_unary op, mt_dtype dtype)
{
    bool simple = op == MTI_RELU || op == MTI_LEAKY_RELU || op == MTI_AFFINE;
    if (simple) return 1;
    return dtype == MT_F64 || op == MTI_POW ? 40 : 8;
}

bool mti_cpu_unary(mti_ctx *ctx, mti_unary op, double p0, double p1, const mti_view *x,
                   const mti_view *y)
{
    unary_job job = {op, p0, p1};
    int64_t count = mti_view_count(y), cost = unary_cost(op, y->dtype);
    if (count * cost < MTI_CPU_GRAIN && is_simple(x, MT_F32) && is_simple(y, MT_F32)) {
        unary_f32(&job, (void *[]){y->data, x->data}, 0, count);
        return true;
    }
    mti_cpu_map(ctx, 2, (const mti_view *[]){y, x}, 1, false, cost,
                y->dtype == MT_F64 ? unary_f64 : unary_f32, &job);
    return true;
}

/* ---- unary backward: k is what was kept, x or y ---- */

static MTI_MULTIVERSION void unary_backward_f32(const void *op, void *const *p, int64_t first,
                                                int64_t n)
{
    (void)first;
    const unary_job *job = op;
    const float *dy = p[1], *k = p[2];
    float *dx = p[0], p0 = (float)job->p0;
    switch (job->op) {
    case MTI_RELU: EACH(dx, mti_relu_backward_f32(k[i], dy[i])); break;
    case MTI_LEAKY_RELU: EACH(dx, mti_leaky_relu_backward_f32(k[i], dy[i], p0)); break;
    case MTI_GELU: EACH(dx, mti_gelu_backward_f32(k[i], dy[i])); break;
    case MTI_GELU_TANH: EACH(dx, mti_gelu_tanh_backward_f32(k[i], dy[i])); break;
    case MTI_SILU: EACH(dx, mti_silu_backward_f32(k[i], dy[i])); break;
    case MTI_TANH: EACH(dx, mti_tanh_backward_f32(k[i], dy[i])); break;
    case MTI_SIGMOID: EACH(dx, mti_sigmoid_backward_f32(k[i], dy[i])); break;
    case MTI_EXP: EACH(dx, dy[i] * k[i]); break;
    case MTI_LOG: EACH(dx, dy[i] / k[i]); break;
    case MTI_SQRT: EACH(dx, mti_sqrt_backward_f32(k[i], dy[i])); break;
    case MTI_AFFINE: EACH(dx, dy[i] * p0); break;
    case MTI_POW: pow_backward_f32(dx, k, dy, p0, n); break;
    case MTI_UNARY_COUNT: break;
    }
}

static void unary_backward_f64(const void *op, void *const *p, int64_t first, int64_t n)
{
    (void)first;
    const unary_job *job = op;
    const double *dy = p[1], *k = p[2];
    double *dx = p[0], p0 = job->p0;
    switch (job->op) {
    case MTI_RELU: EACH(dx, mti_relu_backward_f64(k[i], dy[i])); break;
    case MTI_LEAKY_RELU: EACH(dx, mti_leaky_relu_backward_f64(k[i], dy[i], p0)); break;
    case MTI_GELU: EACH(dx, mti_gelu_backward_f64(k[i], dy[i])); break;
    case MTI_GELU_TANH: EACH(dx, mti_gelu_tanh_backward_f64(k[i], dy[i])); break;
    case MTI_SILU: EACH(dx, mti_silu_backward_f64(k[i], dy[i])); break;
    case MTI_TANH: EACH(dx, mti_tanh_backward_f64(k[i], dy[i])); break;
    case MTI_SIGMOID: EACH(dx, mti_sigmoid_backward_f64(k[i], dy[i])); break;
    case MTI_EXP: EACH(dx, dy[i] * k[i]); break;
    case MTI_LOG: EACH(dx, dy[i] / k[i]); break;
    case MTI_SQRT: EACH(dx, mti_sqrt_backward_f64(k[i], dy[i])); break;
    case MTI_AFFINE: EACH(dx, dy[i] * p0); break;
    case MTI_POW: EACH(dx, mti_pow_backward_f64(k[i], dy[i], p0)); break;
    case MTI_UNARY_COUNT: break;
    }
}

bool mti_cpu_unary_backward(mti_ctx *ctx, mti_unary op, double p0, const mti_view *kept,
                            const mti_view *dy, const mti_view *dx)
{
    unary_job job = {op, p0, 0.0};
    if (!kept) kept = dy; /* affine looks at dy alone */
    int64_t count = mti_view_count(dx), cost = unary_cost(op, dx->dtype) + 1;
    if (count * cost < MTI_CPU_GRAIN && is_simple(kept, MT_F32) && is_simple(dy, MT_F32) &&
        is_simple(dx, MT_F32)) {
        unary_backward_f32(&job, (void *[]){dx->data, dy->data, kept->data}, 0, count);
        return true;
    }
    mti_cpu_map(ctx, 3, (const mti_view *[]){dx, dy, kept}, 1, false, cost,
                dx->dtype == MT_F64 ? unary_backward_f64 : unary_backward_f32, &job);
    return true;
}

/* ---- binary ---- */

#define BINARY_BODY(T)                                                                             \
    const T *a = p[1], *b = p[2];                                                                  \
    T *y = p[0];                                                                                   \
    (void)first;                                                                                   \
    switch (*(const mti_binary *)op) {                                                             \
    case MTI_ADD: EACH(y, a[i] + b[i]); break;                                                     \
    case MTI_SUB: EACH(y, a[i] - b[i]); break;                                                     \
    case MTI_MUL: EACH(y, a[i] * b[i]); break;                                                     \
    case MTI_DIV: EACH(y, a[i] / b[i]); break;                                                     \
    case MTI_BINARY_COUNT: break;                                                                  \
    }

static MTI_MULTIVERSION void binary_f32(const void *op, void *const *p, int64_t first, int64_t n)
{
    BINARY_BODY(float)
}

static MTI_MULTIVERSION void binary_f64(const void *op, void *const *p, int64_t first, int64_t n)
{
    BINARY_BODY(double)
}

/* Integers wrap around. */
#define INTEGER_BODY(T)                                                                            \
    const T *a = p[1], *b = p[2];                                                                  \
    T *y = p[0];                                                                                   \
    (void)first;                                                                                   \
    switch (*(const mti_binary *)op) {                                                             \
    case MTI_ADD: EACH(y, a[i] + b[i]); break;                                                     \
    case MTI_SUB: EACH(y, a[i] - b[i]); break;                                                     \
    case MTI_MUL: EACH(y, a[i] * b[i]); break;                                                     \
    default: break;                                                                                \
    }

static MTI_MULTIVERSION void binary_i32(const void *op, void *const *p, int64_t first, int64_t n)
{
    INTEGER_BODY(uint32_t)
}

static MTI_MULTIVERSION void binary_i64(const void *op, void *const *p, int64_t first, int64_t n)
{
    INTEGER_BODY(uint64_t)
}

bool mti_cpu_binary(mti_ctx *ctx, mti_binary op, const mti_view *a, const mti_view *b,
                    const mti_view *y)
{
    int64_t count = mti_view_count(y);
    if (count < MTI_CPU_GRAIN && is_simple(a, MT_F32) && is_simple(b, MT_F32) &&
        is_simple(y, MT_F32)) {
        binary_f32(&op, (void *[]){y->data, a->data, b->data}, 0, count);
        return true;
    }
    mti_cpu_run_fn *run = y->dtype == MT_F64   ? binary_f64
                          : y->dtype == MT_I64 ? binary_i64
                          : y->dtype == MT_I32 ? binary_i32
                                               : binary_f32;
    mti_cpu_map(ctx, 3, (const mti_view *[]){y, a, b}, 1, false, 1, run, &op);
    return true;
}
