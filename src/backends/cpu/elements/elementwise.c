/* elementwise.c: fill, arange, unary ops and their backward, binary ops, comparisons. The maths of
 * each op is in backends/scalar.h. */
#include "backends/cpu/cpu.h"

/* Tiny calls skip the walk: contiguous, no conversion, one thread. */
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
    int64_t i = dtype == MT_BOOL ? value != 0.0 : mti_f64_to_i64(value);
    int32_t i32 = (int32_t)i;
    uint16_t u16 = (uint16_t)i;
    uint8_t u8 = (uint8_t)i;
    switch (dtype) {
    case MT_F64: memcpy(&bits, &value, sizeof value); break;
    case MT_F32:
    case MT_BF16:
    case MT_F16:
    case MT_F8_E4M3:
    case MT_F8_E5M2: mti_cpu_store_f32(dtype, &f, &bits, 1); break;
    case MT_I64: memcpy(&bits, &i, sizeof i); break;
    case MT_I32: memcpy(&bits, &i32, sizeof i32); break;
    case MT_I16:
    case MT_U16: memcpy(&bits, &u16, sizeof u16); break;
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

/* ---- arange ---- */

typedef struct arange_job {
    mt_dtype dtype;
    double start, step;
} arange_job;

static MTI_MULTIVERSION void arange_run(const void *op, void *const *p, mti_cpu_span part,
                                        int64_t n)
{
    const arange_job *job = op;
    double *wide = p[0];
    float *narrow = p[0];
    int64_t *whole = p[0];
    if (job->dtype == MT_I64)
        MTI_EACH(whole, (int64_t)job->start + (part.first + i) * (int64_t)job->step);
    else if (job->dtype == MT_F64)
        MTI_EACH(wide, fma((double)(part.first + i), job->step, job->start));
    else
        MTI_EACH(narrow, (float)fma((double)(part.first + i), job->step, job->start));
}

bool mti_cpu_arange(mti_ctx *ctx, double start, double step, const mti_view *y)
{
    arange_job job = {y->dtype, start, step};
    mti_cpu_map(ctx, 1, &y, 1, true, 1, arange_run, &job);
    return true;
}

/* ---- unary ---- */

typedef struct unary_job {
    mti_unary op;
    double p0, p1;
} unary_job;

/* each_NAME_f32, each_NAME_f64: y = op(x) on n contiguous elements. Inlined, so that a constant p0
 * is compiled into a specialised loop. */
#define EACH_UNARY(T, name, formula)                                                               \
    MTI_INLINE T name##_at(T x, T p0, T p1)                                                        \
    {                                                                                              \
        (void)p0, (void)p1;                                                                        \
        return formula;                                                                            \
    }                                                                                              \
    MTI_INLINE void name(T *y, const T *x, T p0, T p1, bool past, int64_t n)                       \
    {                                                                                              \
        MTI_EACH_LINE(T, past, i, n, MTI_FETCH(x + from, MTI_AHEAD), y, name##_at(x[i], p0, p1));  \
    }
#define F(name)                    mti_##name##_f32
#define UNARY(name, cost, y_is, _) EACH_UNARY(float, each_##name##_f32, y_is)
#include "backends/unary.def"
#define F(name)                    mti_##name##_f64
#define UNARY(name, cost, y_is, _) EACH_UNARY(double, each_##name##_f64, y_is)
#include "backends/unary.def"

/* Makes p0 a constant for the usual exponents, so that their loops vectorise. */
#define FOR_USUAL_P0(call)                                                                         \
    do {                                                                                           \
        if (p0 == 2.0f)                                                                            \
            call(2.0f);                                                                            \
        else if (p0 == 3.0f)                                                                       \
            call(3.0f);                                                                            \
        else if (p0 == 0.5f)                                                                       \
            call(0.5f);                                                                            \
        else if (p0 == -0.5f)                                                                      \
            call(-0.5f);                                                                           \
        else if (p0 == -1.0f)                                                                      \
            call(-1.0f);                                                                           \
        else                                                                                       \
            call(p0);                                                                              \
    } while (0)

static MTI_MULTIVERSION void unary_f32(const void *op, void *const *p, mti_cpu_span part, int64_t n)
{
    (void)part;
    const unary_job *job = op;
    const float *x = p[1];
    float *y = p[0], p0 = (float)job->p0, p1 = (float)job->p1;
    switch (job->op) {
#define UNARY(name, ...)                                                                           \
    case MTI_UNARY_##name:                                                                         \
        each_##name##_f32(y, x, p0, p1, part.past, n);                                             \
        break;
#define POW(constant) each_pow_f32(y, x, constant, p1, false, n)
#define UNARY_BY_P0(name, ...)                                                                     \
    case MTI_UNARY_##name:                                                                         \
        FOR_USUAL_P0(POW);                                                                         \
        break;
#include "backends/unary.def"
    case MTI_UNARY_COUNT: break;
    }
}

static void unary_f64(const void *op, void *const *p, mti_cpu_span part, int64_t n)
{
    (void)part;
    const unary_job *job = op;
    const double *x = p[1];
    double *y = p[0];
    switch (job->op) {
#define UNARY(name, ...)                                                                           \
    case MTI_UNARY_##name:                                                                         \
        each_##name##_f64(y, x, job->p0, job->p1, false, n);                                       \
        break;
#include "backends/unary.def"
    case MTI_UNARY_COUNT: break;
    }
}

/* The C library's f64 functions take about ten times as long as our f32 ones. */
static int64_t unary_cost(mti_unary op, mt_dtype dtype)
{
    static const int64_t costs[] = {
#define UNARY(name, cost, y, dx) cost,
#include "backends/unary.def"
    };
    return costs[op] > 1 && dtype == MT_F64 ? 40 : costs[op];
}

bool mti_cpu_unary(mti_ctx *ctx, mti_unary op, double p0, double p1, const mti_view *x,
                   const mti_view *y)
{
    unary_job job = {op, p0, p1};
    int64_t count = mti_view_count(y), cost = unary_cost(op, y->dtype);
    if (count * cost < MTI_CPU_GRAIN && is_simple(x, MT_F32) && is_simple(y, MT_F32)) {
        unary_f32(&job, (void *[]){y->data, x->data}, (mti_cpu_span){0}, count);
        return true;
    }
    mti_cpu_map(ctx, 2, (const mti_view *[]){y, x}, 1, false, cost,
                y->dtype == MT_F64 ? unary_f64 : unary_f32, &job);
    return true;
}

/* ---- unary backward: k is the kept tensor, x or y ---- */

#define EACH_SLOPE(T, name, formula)                                                               \
    MTI_INLINE T name##_at(T dy, T k, T p0, T p1)                                                  \
    {                                                                                              \
        (void)k, (void)p0, (void)p1;                                                               \
        return formula;                                                                            \
    }                                                                                              \
    MTI_INLINE void name(T *dx, const T *dy, const T *k, T p0, T p1, bool past, int64_t n)         \
    {                                                                                              \
        MTI_EACH_LINE(T, past, i, n,                                                               \
                      (MTI_FETCH(dy + from, MTI_AHEAD), MTI_FETCH(k + from, MTI_AHEAD)), dx,       \
                      name##_at(dy[i], k[i], p0, p1));                                             \
    }
#define F(name)                     mti_##name##_f32
#define UNARY(name, cost, _, dx_is) EACH_SLOPE(float, slope_##name##_f32, dx_is)
#include "backends/unary.def"
#define F(name)                     mti_##name##_f64
#define UNARY(name, cost, _, dx_is) EACH_SLOPE(double, slope_##name##_f64, dx_is)
#include "backends/unary.def"

static MTI_MULTIVERSION void unary_backward_f32(const void *op, void *const *p, mti_cpu_span part,
                                                int64_t n)
{
    (void)part;
    const unary_job *job = op;
    const float *dy = p[1], *k = p[2];
    float *dx = p[0], p0 = (float)job->p0, p1 = (float)job->p1;
    switch (job->op) {
#define UNARY(name, ...)                                                                           \
    case MTI_UNARY_##name:                                                                         \
        slope_##name##_f32(dx, dy, k, p0, p1, part.past, n);                                       \
        break;
#define POW_SLOPE(constant) slope_pow_f32(dx, dy, k, constant, p1, false, n)
#define UNARY_BY_P0(name, ...)                                                                     \
    case MTI_UNARY_##name:                                                                         \
        FOR_USUAL_P0(POW_SLOPE);                                                                   \
        break;
#include "backends/unary.def"
    case MTI_UNARY_COUNT: break;
    }
}

static void unary_backward_f64(const void *op, void *const *p, mti_cpu_span part, int64_t n)
{
    (void)part;
    const unary_job *job = op;
    const double *dy = p[1], *k = p[2];
    double *dx = p[0];
    switch (job->op) {
#define UNARY(name, ...)                                                                           \
    case MTI_UNARY_##name:                                                                         \
        slope_##name##_f64(dx, dy, k, job->p0, job->p1, false, n);                                 \
        break;
#include "backends/unary.def"
    case MTI_UNARY_COUNT: break;
    }
}

bool mti_cpu_unary_backward(mti_ctx *ctx, mti_unary op, double p0, double p1, const mti_view *kept,
                            const mti_view *dy, const mti_view *dx)
{
    if (!kept) return mti_cpu_unary(ctx, op, p0, 0.0, dy, dx); /* linear: dx = p0 dy */
    unary_job job = {op, p0, p1};
    int64_t count = mti_view_count(dx), cost = unary_cost(op, dx->dtype) + 1;
    if (count * cost < MTI_CPU_GRAIN && is_simple(kept, MT_F32) && is_simple(dy, MT_F32) &&
        is_simple(dx, MT_F32)) {
        unary_backward_f32(&job, (void *[]){dx->data, dy->data, kept->data}, (mti_cpu_span){0},
                           count);
        return true;
    }
    mti_cpu_map(ctx, 3, (const mti_view *[]){dx, dy, kept}, 1, false, cost,
                dx->dtype == MT_F64 ? unary_backward_f64 : unary_backward_f32, &job);
    return true;
}

/* ---- binary ---- */

#define BINARY_EACH(T, value)                                                                      \
    MTI_EACH_LINE(T, part.past, i, n,                                                              \
                  (MTI_FETCH(a + from, MTI_AHEAD), MTI_FETCH(b + from, MTI_AHEAD)), y, value)
/* Integers wrap around, and are not divided. */
#define DEFINE_BINARY(name, T, quotient)                                                           \
    static MTI_MULTIVERSION void name(const void *op, void *const *p, mti_cpu_span part,           \
                                      int64_t n)                                                   \
    {                                                                                              \
        const T *a = p[1], *b = p[2];                                                              \
        T *y = p[0];                                                                               \
        (void)part;                                                                                \
        switch (*(const mti_binary *)op) {                                                         \
        case MTI_ADD: BINARY_EACH(T, a[i] + b[i]); break;                                          \
        case MTI_SUB: BINARY_EACH(T, a[i] - b[i]); break;                                          \
        case MTI_MUL: BINARY_EACH(T, a[i] * b[i]); break;                                          \
        case MTI_DIV: BINARY_EACH(T, quotient); break;                                             \
        case MTI_BINARY_COUNT: break;                                                              \
        }                                                                                          \
    }
DEFINE_BINARY(binary_f32, float, a[i] / b[i])
DEFINE_BINARY(binary_f64, double, a[i] / b[i])
DEFINE_BINARY(binary_i32, uint32_t, 0)
DEFINE_BINARY(binary_i64, uint64_t, 0)

bool mti_cpu_binary(mti_ctx *ctx, mti_binary op, const mti_view *a, const mti_view *b,
                    const mti_view *y)
{
    int64_t count = mti_view_count(y);
    if (count * MTI_CPU_MOVE < MTI_CPU_GRAIN && is_simple(a, MT_F32) && is_simple(b, MT_F32) &&
        is_simple(y, MT_F32)) {
        binary_f32(&op, (void *[]){y->data, a->data, b->data}, (mti_cpu_span){0}, count);
        return true;
    }
    mti_cpu_run_fn *run = y->dtype == MT_F64   ? binary_f64
                          : y->dtype == MT_I64 ? binary_i64
                          : y->dtype == MT_I32 ? binary_i32
                                               : binary_f32;
    mti_cpu_map(ctx, 3, (const mti_view *[]){y, a, b}, 1, false, MTI_CPU_MOVE, run, &op);
    return true;
}

/* ---- comparisons ---- */

typedef struct compare_job {
    mti_compare op;
    mt_dtype dtype;
} compare_job;

#define COMPARE_EACH(T, sign)                                                                      \
    do {                                                                                           \
        const T *a = p[1], *b = p[2];                                                              \
        MTI_EACH(y, a[i] sign b[i]);                                                               \
    } while (0)

static MTI_MULTIVERSION void compare_run(const void *op, void *const *p, mti_cpu_span part,
                                         int64_t n)
{
    (void)part;
    const compare_job *job = op;
    uint8_t *y = p[0];
    switch (job->op) {
#define COMPARE(name, sign)                                                                        \
    case MTI_COMPARE_##name:                                                                       \
        switch (job->dtype) {                                                                      \
        case MT_F64: COMPARE_EACH(double, sign); break;                                            \
        case MT_I64: COMPARE_EACH(int64_t, sign); break;                                           \
        case MT_I32: COMPARE_EACH(int32_t, sign); break;                                           \
        case MT_I16: COMPARE_EACH(int16_t, sign); break;                                           \
        case MT_U16: COMPARE_EACH(uint16_t, sign); break;                                          \
        case MT_I8: COMPARE_EACH(int8_t, sign); break;                                             \
        case MT_U8:                                                                                \
        case MT_BOOL: COMPARE_EACH(uint8_t, sign); break;                                          \
        default: COMPARE_EACH(float, sign); break; /* mti_cpu_map converts narrow floats to f32 */ \
        }                                                                                          \
        break;
#include "backends/comparisons.def"
    case MTI_COMPARE_COUNT: break;
    }
}

bool mti_cpu_compare(mti_ctx *ctx, mti_compare op, const mti_view *a, const mti_view *b,
                     const mti_view *y)
{
    compare_job job = {op, a->dtype};
    mti_cpu_map(ctx, 3, (const mti_view *[]){y, a, b}, 1, false, 1, compare_run, &job);
    return true;
}
