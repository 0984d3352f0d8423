/* gate.c: element-wise kernels with three or more tensors: where, swiglu and its backward. */
#include "backends/cpu/cpu.h"

/* ---- where: an absent a or b is 0 ---- */

typedef struct where_job {
    bool has_a, has_b;
} where_job;

#define DEFINE_WHERE(name, T)                                                                      \
    static MTI_MULTIVERSION void name(const void *op, void *const *p, int64_t first, int64_t n)    \
    {                                                                                              \
        (void)first;                                                                               \
        const where_job *job = op;                                                                 \
        T *y = p[0];                                                                               \
        const uint8_t *mask = p[1];                                                                \
        const T *a = job->has_a ? p[2] : NULL, *b = job->has_b ? p[2 + job->has_a] : NULL;         \
        if (a && b)                                                                                \
            MTI_EACH(y, mask[i] ? a[i] : b[i]);                                                    \
        else if (a)                                                                                \
            MTI_EACH(y, mask[i] ? a[i] : 0);                                                       \
        else                                                                                       \
            MTI_EACH(y, mask[i] ? 0 : b[i]);                                                       \
    }
DEFINE_WHERE(where_f32, float)
DEFINE_WHERE(where_f64, double)

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

#define DEFINE_SWIGLU(clones, name, T, forward)                                                    \
    static clones void name(const void *op, void *const *p, int64_t first, int64_t n)              \
    {                                                                                              \
        (void)op, (void)first;                                                                     \
        T *y = p[0];                                                                               \
        const T *gate = p[1], *up = p[2];                                                          \
        MTI_EACH(y, forward(gate[i], up[i]));                                                      \
    }
DEFINE_SWIGLU(MTI_MULTIVERSION, swiglu_f32, float, mti_swiglu_f32)
DEFINE_SWIGLU(, swiglu_f64, double, mti_swiglu_f64)

bool mti_cpu_swiglu(mti_ctx *ctx, const mti_view *gate, const mti_view *up, const mti_view *y)
{
    bool wide = y->dtype == MT_F64;
    mti_cpu_map(ctx, 3, (const mti_view *[]){y, gate, up}, 1, false, wide ? 40 : 8,
                wide ? swiglu_f64 : swiglu_f32, NULL);
    return true;
}

/* p: the outputs, then dy, gate, up. Both gradients are computed without a branch per element; the
 * compiler removes one that is not stored. */
#define DEFINE_SWIGLU_BACKWARD(clones, name, T, backward, n_out, store)                            \
    static clones void name(const void *op, void *const *p, int64_t first, int64_t n)              \
    {                                                                                              \
        (void)op, (void)first;                                                                     \
        T *out = p[0], *second = p[1];                                                             \
        const T *dy = p[n_out], *gate = p[n_out + 1], *up = p[n_out + 2];                          \
        (void)second;                                                                              \
        MTI_SIMD                                                                                   \
        for (int64_t i = 0; i < n; i++) {                                                          \
            T dgate, dup;                                                                          \
            backward(gate[i], up[i], dy[i], &dgate, &dup);                                         \
            store;                                                                                 \
        }                                                                                          \
    }
#define DEFINE_SWIGLU_BACKWARDS(clones, T, backward, both, only_gate, only_up)                     \
    DEFINE_SWIGLU_BACKWARD(clones, both, T, backward, 2, (out[i] = dgate, second[i] = dup))        \
    DEFINE_SWIGLU_BACKWARD(clones, only_gate, T, backward, 1, out[i] = dgate)                      \
    DEFINE_SWIGLU_BACKWARD(clones, only_up, T, backward, 1, out[i] = dup)
DEFINE_SWIGLU_BACKWARDS(MTI_MULTIVERSION, float, mti_swiglu_backward_f32, swiglu_both_f32,
                        swiglu_dgate_f32, swiglu_dup_f32)
DEFINE_SWIGLU_BACKWARDS(, double, mti_swiglu_backward_f64, swiglu_both_f64, swiglu_dgate_f64,
                        swiglu_dup_f64)

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
