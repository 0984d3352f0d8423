/* gate.c: element-wise kernels with three or more tensors: where, swiglu and its backward. */
#include "backends/cpu/cpu.h"

/* ---- where: an absent a or b is 0 ---- */

typedef struct where_job {
    bool has_a, has_b;
} where_job;

#define DEFINE_WHERE(name, T)                                                                      \
    static MTI_MULTIVERSION void name(const void *op, void *const *p, mti_cpu_span part,           \
                                      int64_t n)                                                   \
    {                                                                                              \
        (void)part;                                                                                \
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
    static clones void name(const void *op, void *const *p, mti_cpu_span part, int64_t n)          \
    {                                                                                              \
        (void)op, (void)part;                                                                      \
        T *y = p[0];                                                                               \
        const T *gate = p[1], *up = p[2];                                                          \
        MTI_EACH_LINE(T, part.past, i, n,                                                          \
                      (MTI_FETCH(gate + from, MTI_AHEAD), MTI_FETCH(up + from, MTI_AHEAD)), y,     \
                      forward(gate[i], up[i]));                                                    \
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
#define SWIGLU_GRADIENTS(T, backward, store)                                                       \
    {                                                                                              \
        T dgate, dup;                                                                              \
        backward(gate[i], up[i], dy[i], &dgate, &dup);                                             \
        store;                                                                                     \
    }
#define DEFINE_SWIGLU_BACKWARD(clones, name, T, backward, n_out, STORE)                            \
    static clones void name(const void *op, void *const *p, mti_cpu_span part, int64_t n)          \
    {                                                                                              \
        (void)op;                                                                                  \
        T *out = p[0], *second = n_out == 2 ? p[1] : NULL;                                         \
        const T *dy = p[n_out], *gate = p[n_out + 1], *up = p[n_out + 2];                          \
        MTI_LINES(T, part.past, i, n,                                                              \
                  (MTI_FETCH(dy + from, MTI_AHEAD), MTI_FETCH(gate + from, MTI_AHEAD),             \
                   MTI_FETCH(up + from, MTI_AHEAD)),                                               \
                  SWIGLU_GRADIENTS(T, backward, STORE(lines[0][i - from], lines[1][i - from])),    \
                  (mti_cpu_put(out + from, lines[0], sizeof lines[0]),                             \
                   second ? mti_cpu_put(second + from, lines[1], sizeof lines[1]) : (void)0),      \
                  SWIGLU_GRADIENTS(T, backward, STORE(out[i], second[i])));                        \
    }
#define STORE_BOTH(a, b)  (a) = dgate, (b) = dup
#define STORE_DGATE(a, b) (a) = dgate
#define STORE_DUP(a, b)   (a) = dup
#define DEFINE_SWIGLU_BACKWARDS(clones, T, backward, both, only_gate, only_up)                     \
    DEFINE_SWIGLU_BACKWARD(clones, both, T, backward, 2, STORE_BOTH)                               \
    DEFINE_SWIGLU_BACKWARD(clones, only_gate, T, backward, 1, STORE_DGATE)                         \
    DEFINE_SWIGLU_BACKWARD(clones, only_up, T, backward, 1, STORE_DUP)
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
