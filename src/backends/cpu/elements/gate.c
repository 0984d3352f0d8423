/* gate.c: element-wise kernels with three or more tensors: where, swiglu and its backward. */
#include "backends/cpu/cpu.h"

/* ---- where: an absent a or b is 0 ---- */

typedef struct where_job {
    bool has_a, has_b;
} where_job;

#define WHERE_BODY(T)                                                                              \
    (void)first;                                                                                   \
    const where_job *job = op;                                                                     \
    T *y = p[0];                                                                                   \
    const uint8_t *mask = p[1];                                                                    \
    const T *a = job->has_a ? p[2] : NULL, *b = job->has_b ? p[2 + job->has_a] : NULL;             \
    if (a && b) {                                                                                  \
        MTI_SIMD                                                                                   \
        for (int64_t i = 0; i < n; i++) y[i] = mask[i] ? a[i] : b[i];                              \
    } else if (a) {                                                                                \
        MTI_SIMD                                                                                   \
        for (int64_t i = 0; i < n; i++) y[i] = mask[i] ? a[i] : 0;                                 \
    } else {                                                                                       \
        MTI_SIMD                                                                                   \
        for (int64_t i = 0; i < n; i++) y[i] = mask[i] ? 0 : b[i];                                 \
    }

static MTI_MULTIVERSION void where_f32(const void *op, void *const *p, int64_t first, int64_t n)
{
    WHERE_BODY(float)
}

static MTI_MULTIVERSION void where_f64(const void *op, void *const *p, int64_t first, int64_t n)
{
    WHERE_BODY(double)
}

bool mti_cpu_where(mti_ctx *ctx, const mti_view *mask, const mti_view *a, const mti_view *b,
                   const mti_view *y)
{
    where_job job = {a != NULL, b != NULL};
    const mti_view *views[4] = {y, mask};
    int n = 2;
    if (a) views[n++] = a;
    if (b) views[n++] = b;
    mti_cpu_map(ctx, n, views, 1, false, 2, y->dtype == MT_F64 ? where_f64 : where_f32, &job);
    return true;
}

/* ---- swiglu ---- */

static MTI_MULTIVERSION void swiglu_f32(const void *op, void *const *p, int64_t first, int64_t n)
{
    (void)op, (void)first;
    float *y = p[0];
    const float *gate = p[1], *up = p[2];
    MTI_SIMD
    for (int64_t i = 0; i < n; i++) y[i] = mti_swiglu_f32(gate[i], up[i]);
}

static void swiglu_f64(const void *op, void *const *p, int64_t first, int64_t n)
{
    (void)op, (void)first;
    double *y = p[0];
    const double *gate = p[1], *up = p[2];
    for (int64_t i = 0; i < n; i++) y[i] = mti_swiglu_f64(gate[i], up[i]);
}

bool mti_cpu_swiglu(mti_ctx *ctx, const mti_view *gate, const mti_view *up, const mti_view *y)
{
    bool wide = y->dtype == MT_F64;
    mti_cpu_map(ctx, 3, (const mti_view *[]){y, gate, up}, 1, false, wide ? 40 : 8,
                wide ? swiglu_f64 : swiglu_f32, NULL);
    return true;
}

/* p: the outputs, then dy, gate, up. Both gradients are computed without a branch per element; the
 * compiler removes one that is not stored. */
#define SWIGLU_BOTH(T, backward)                                                                   \
    (void)op, (void)first;                                                                         \
    T *dgate = p[0], *dup = p[1];                                                                  \
    const T *dy = p[2], *gate = p[3], *up = p[4];                                                  \
    MTI_SIMD                                                                                       \
    for (int64_t i = 0; i < n; i++) {                                                              \
        T for_gate, for_up;                                                                        \
        backward(gate[i], up[i], dy[i], &for_gate, &for_up);                                       \
        dgate[i] = for_gate, dup[i] = for_up;                                                      \
    }

#define SWIGLU_ONE(T, backward, wanted)                                                            \
    (void)op, (void)first;                                                                         \
    T *d = p[0];                                                                                   \
    const T *dy = p[1], *gate = p[2], *up = p[3];                                                  \
    MTI_SIMD                                                                                       \
    for (int64_t i = 0; i < n; i++) {                                                              \
        T for_gate, for_up;                                                                        \
        backward(gate[i], up[i], dy[i], &for_gate, &for_up);                                       \
        d[i] = wanted;                                                                             \
    }

static MTI_MULTIVERSION void swiglu_both_f32(const void *op, void *const *p, int64_t first,
                                             int64_t n)
{
    SWIGLU_BOTH(float, mti_swiglu_backward_f32)
}

static void swiglu_both_f64(const void *op, void *const *p, int64_t first, int64_t n)
{
    SWIGLU_BOTH(double, mti_swiglu_backward_f64)
}

static MTI_MULTIVERSION void swiglu_dgate_f32(const void *op, void *const *p, int64_t first,
                                              int64_t n)
{
    SWIGLU_ONE(float, mti_swiglu_backward_f32, for_gate)
}

static void swiglu_dgate_f64(const void *op, void *const *p, int64_t first, int64_t n)
{
    SWIGLU_ONE(double, mti_swiglu_backward_f64, for_gate)
}

static MTI_MULTIVERSION void swiglu_dup_f32(const void *op, void *const *p, int64_t first,
                                            int64_t n)
{
    SWIGLU_ONE(float, mti_swiglu_backward_f32, for_up)
}

static void swiglu_dup_f64(const void *op, void *const *p, int64_t first, int64_t n)
{
    SWIGLU_ONE(double, mti_swiglu_backward_f64, for_up)
}

bool mti_cpu_swiglu_backward(mti_ctx *ctx, const mti_view *gate, const mti_view *up,
                             const mti_view *dy, const mti_view *dgate, const mti_view *dup)
{
    bool wide = dy->dtype == MT_F64;
    int64_t cost = wide ? 48 : 12;
    if (dgate && dup)
        mti_cpu_map(ctx, 5, (const mti_view *[]){dgate, dup, dy, gate, up}, 2, false, cost,
                    wide ? swiglu_both_f64 : swiglu_both_f32, NULL);
    else if (dgate)
        mti_cpu_map(ctx, 4, (const mti_view *[]){dgate, dy, gate, up}, 1, false, cost,
                    wide ? swiglu_dgate_f64 : swiglu_dgate_f32, NULL);
    else /* dup does not depend on up, so gate is passed in its place */
        mti_cpu_map(ctx, 4, (const mti_view *[]){dup, dy, gate, gate}, 1, false, cost,
                    wide ? swiglu_dup_f64 : swiglu_dup_f32, NULL);
    return true;
}
