/* random.c: uniform and normal numbers and dropout. A draw is a function of
 * (seed, counter, lane) alone (base/philox.h), so any thread can compute any part. */
#include "backends/cpu/cpu.h"

#define DRAWS MTI_CPU_RUN

typedef struct random_job {
    double a, b; /* uniform: lo, last_below(hi); normal: mean, deviation; dropout: p */
    uint64_t seed, offset;
    double span; /* uniform: hi - lo */
} random_job;

/* Draws numbers for elements [first, first + m) and returns m <= n; *u points
 * at the first one, inside `draws`. Four elements share a counter. */
MTI_INLINE int64_t draw(const random_job *job, int64_t first, int64_t n, uint32_t draws[DRAWS],
                        const uint32_t **u)
{
    int64_t skip = first % 4, m = n < DRAWS - skip ? n : DRAWS - skip;
    uint64_t seed = job->seed, counter = job->offset + (uint64_t)(first / 4);
    int64_t counters = (skip + m + 3) / 4;
    MTI_SIMD
    for (int64_t i = 0; i < counters; i++) {
        mti_u32x4 r = mti_philox(seed, counter + (uint64_t)i);
        draws[4 * i + 0] = r.v[0];
        draws[4 * i + 1] = r.v[1];
        draws[4 * i + 2] = r.v[2];
        draws[4 * i + 3] = r.v[3];
    }
    *u = draws + skip;
    return m;
}

/* ---- uniform ---- */

/* Rounding could give hi, so results are limited to b, the largest number below hi. */
#define DEFINE_UNIFORM(name, T)                                                                    \
    static MTI_MULTIVERSION void name(const void *op, void *const *p, mti_cpu_span part,           \
                                      int64_t n)                                                   \
    {                                                                                              \
        const random_job *job = op;                                                                \
        T *y = p[0], lo = (T)job->a, span = (T)job->span, below = (T)job->b;                       \
        uint32_t draws[DRAWS];                                                                     \
        for (int64_t i = 0, m; i < n; i += m) {                                                    \
            const uint32_t *u;                                                                     \
            m = draw(job, part.first + i, n - i, draws, &u);                                       \
            MTI_SIMD                                                                               \
            for (int64_t j = 0; j < m; j++) {                                                      \
                T v = lo + span * (T)mti_u32_to_unit(u[j]);                                        \
                y[i + j] = v > below ? below : v;                                                  \
            }                                                                                      \
        }                                                                                          \
    }
DEFINE_UNIFORM(uniform_f32, float)
DEFINE_UNIFORM(uniform_f64, double)

/* The largest number of this type below hi (lo if there is none). */
static double last_below(mt_dtype dtype, double lo, double hi)
{
    if (!(lo < hi)) return lo;
    if (dtype == MT_F64) return nextafter(hi, lo);
    if (dtype == MT_F32) return (float)hi < hi ? (float)hi : nextafterf((float)hi, (float)lo);
    uint16_t bits; /* sign and magnitude: the next lower is bits - 1, or + 1 below zero */
    float f = (float)hi;
    mti_cpu_store_f32(dtype, &f, &bits, 1);
    mti_cpu_load_f32(dtype, &bits, &f, 1);
    if (f < hi) return f;
    bits = f > 0 ? (uint16_t)(bits - 1) : f < 0 ? (uint16_t)(bits + 1) : 0x8001;
    mti_cpu_load_f32(dtype, &bits, &f, 1);
    return f;
}

bool mti_cpu_uniform(mti_ctx *ctx, double lo, double hi, uint64_t seed, uint64_t offset,
                     const mti_view *y)
{
    random_job job = {lo, last_below(y->dtype, lo, hi), seed, offset, hi - lo};
    mti_cpu_map(ctx, 1, &y, 1, true, 12, y->dtype == MT_F64 ? uniform_f64 : uniform_f32, &job);
    return true;
}

/* ---- normal ---- */

/* Elements are computed in pairs; a range may begin or end inside one. */
static MTI_MULTIVERSION void normal_pairs(const uint32_t *u, float *z, int64_t pairs)
{
    MTI_SIMD
    for (int64_t j = 0; j < pairs; j++)
        mti_box_muller(u[2 * j], u[2 * j + 1], &z[2 * j], &z[2 * j + 1]);
}

#define DEFINE_NORMAL(name, T)                                                                     \
    static MTI_MULTIVERSION void name(const void *op, void *const *p, mti_cpu_span part,           \
                                      int64_t n)                                                   \
    {                                                                                              \
        const random_job *job = op;                                                                \
        T *y = p[0], mean = (T)job->a, std = (T)job->b;                                            \
        uint32_t draws[DRAWS];                                                                     \
        float z[DRAWS];                                                                            \
        for (int64_t i = 0, m; i < n; i += m) {                                                    \
            const uint32_t *u;                                                                     \
            m = draw(job, part.first + i, n - i, draws, &u);                                       \
            int64_t skip = u - draws;                                                              \
            normal_pairs(draws, z, (skip + m + 1) / 2);                                            \
            MTI_SIMD                                                                               \
            for (int64_t j = 0; j < m; j++) y[i + j] = mean + std * (T)z[skip + j];                \
        }                                                                                          \
    }
DEFINE_NORMAL(normal_f32, float)
DEFINE_NORMAL(normal_f64, double)

bool mti_cpu_normal(mti_ctx *ctx, double mean, double std, uint64_t seed, uint64_t offset,
                    const mti_view *y)
{
    random_job job = {mean, std, seed, offset, 0.0};
    mti_cpu_map(ctx, 1, &y, 1, true, 16, y->dtype == MT_F64 ? normal_f64 : normal_f32, &job);
    return true;
}

/* ---- dropout ---- */

/* p[0]: y; then the mask, if requested, and x. */
#define DEFINE_DROPOUT(name, T, HAS_MASK)                                                          \
    static MTI_MULTIVERSION void name(const void *op, void *const *p, mti_cpu_span part,           \
                                      int64_t n)                                                   \
    {                                                                                              \
        const random_job *job = op;                                                                \
        uint32_t threshold = mti_drop_threshold(job->a), draws[DRAWS];                             \
        T scale = (T)(1.0 / (1.0 - job->a));                                                       \
        for (int64_t i = 0, m; i < n; i += m) {                                                    \
            const T *x = (const T *)p[HAS_MASK ? 2 : 1] + i;                                       \
            T *y = (T *)p[0] + i;                                                                  \
            uint8_t *mask = HAS_MASK ? (uint8_t *)p[1] + i : NULL;                                 \
            const uint32_t *u;                                                                     \
            m = draw(job, part.first + i, n - i, draws, &u);                                       \
            if (HAS_MASK)                                                                          \
                for (int64_t j = 0; j < m; j++) mask[j] = (u[j] >> 8) >= threshold;                \
            MTI_SIMD                                                                               \
            for (int64_t j = 0; j < m; j++) {                                                      \
                T scaled = x[j] * scale;                                                           \
                y[j] = (u[j] >> 8) >= threshold ? scaled : 0;                                      \
            }                                                                                      \
        }                                                                                          \
    }
DEFINE_DROPOUT(dropout_f32, float, false)
DEFINE_DROPOUT(dropout_f64, double, false)
DEFINE_DROPOUT(dropout_mask_f32, float, true)
DEFINE_DROPOUT(dropout_mask_f64, double, true)

bool mti_cpu_dropout(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset, const mti_view *x,
                     const mti_view *y, const mti_view *mask)
{
    random_job job = {p, 0.0, seed, offset, 0.0};
    bool f64 = y->dtype == MT_F64;
    if (mask)
        mti_cpu_map(ctx, 3, (const mti_view *[]){y, mask, x}, 2, true, 12,
                    f64 ? dropout_mask_f64 : dropout_mask_f32, &job);
    else
        mti_cpu_map(ctx, 2, (const mti_view *[]){y, x}, 1, true, 12,
                    f64 ? dropout_f64 : dropout_f32, &job);
    return true;
}

static MTI_MULTIVERSION void mask_run(const void *op, void *const *p, mti_cpu_span part, int64_t n)
{
    const random_job *job = op;
    uint32_t threshold = mti_drop_threshold(job->a), draws[DRAWS];
    uint8_t *mask = p[0];
    for (int64_t i = 0, m; i < n; i += m) {
        const uint32_t *u;
        m = draw(job, part.first + i, n - i, draws, &u);
        for (int64_t j = 0; j < m; j++) mask[i + j] = (u[j] >> 8) >= threshold;
    }
}

bool mti_cpu_dropout_mask(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset,
                          const mti_view *mask)
{
    random_job job = {p, 0.0, seed, offset, 0.0};
    mti_cpu_map(ctx, 1, &mask, 1, true, 12, mask_run, &job);
    return true;
}

bool mti_cpu_put_draws(mti_ctx *ctx, uint64_t seed, uint64_t offset, const mti_view *seed_to,
                       const mti_view *offset_to)
{
    (void)ctx;
    *(uint64_t *)seed_to->data = seed;
    *(uint64_t *)offset_to->data = offset;
    return true;
}

#define DEFINE_DROPOUT_BACKWARD(name, T)                                                           \
    static MTI_MULTIVERSION void name(const void *op, void *const *p, mti_cpu_span part,           \
                                      int64_t n)                                                   \
    {                                                                                              \
        (void)part;                                                                                \
        T *dx = p[0], scale = (T)(1.0 / (1.0 - ((const random_job *)op)->a));                      \
        const T *dy = p[1];                                                                        \
        const uint8_t *mask = p[2];                                                                \
        MTI_SIMD                                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T scaled = dy[i] * scale;                                                              \
            dx[i] = mask[i] ? scaled : 0;                                                          \
        }                                                                                          \
    }
DEFINE_DROPOUT_BACKWARD(dropout_backward_f32, float)
DEFINE_DROPOUT_BACKWARD(dropout_backward_f64, double)

bool mti_cpu_dropout_backward(mti_ctx *ctx, double p, const mti_view *mask, const mti_view *dy,
                              const mti_view *dx)
{
    random_job job = {p, 0.0, 0, 0, 0.0};
    mti_cpu_map(ctx, 3, (const mti_view *[]){dx, dy, mask}, 1, false, 2,
                dx->dtype == MT_F64 ? dropout_backward_f64 : dropout_backward_f32, &job);
    return true;
}
