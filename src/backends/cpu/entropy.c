/* entropy.c: cross-entropy in pieces, for a loss whose logits exist a chunk of rows at a time. */
#include <inttypes.h>
#include "backends/cpu/rows.h"

typedef struct lse_job {
    mti_rows x, dx;
    const int64_t *target;
    void *lse, *loss;  /* T, one per row */
    const void *scale; /* T */
    int64_t ignore, n;
} lse_job;

#define T           float
#define TYPED(name) name##_f32
#include "backends/cpu/entropy.inc"
#undef T
#undef TYPED
#define T           double
#define TYPED(name) name##_f64
#include "backends/cpu/entropy.inc"
#undef T
#undef TYPED

bool mti_cpu_entropy_rows(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                          const mti_view *lse, const mti_view *loss)
{
    lse_job job = {.x = mti_rows_of(x),
                   .target = target->data,
                   .lse = lse->data,
                   .loss = loss->data,
                   .ignore = ignore,
                   .n = x->shape[1]};
    bool wide = x->dtype == MT_F64;
    mti_cpu_parallel(ctx, x->shape[0], mti_cpu_chunk(x->shape[0], job.n * (wide ? 48 : 5)),
                     wide ? lse_chunk_f64 : lse_chunk_f32, &job);
    return true;
}

bool mti_cpu_entropy_rows_backward(mti_ctx *ctx, int64_t ignore, const mti_view *x,
                                   const mti_view *target, const mti_view *lse,
                                   const mti_view *scale, const mti_view *dx)
{
    lse_job job = {.x = mti_rows_of(x),
                   .dx = mti_rows_of(dx),
                   .target = target->data,
                   .lse = lse->data,
                   .scale = scale->data,
                   .ignore = ignore,
                   .n = x->shape[1]};
    bool wide = x->dtype == MT_F64;
    mti_cpu_parallel(ctx, x->shape[0], mti_cpu_chunk(x->shape[0], job.n * (wide ? 32 : 4)),
                     wide ? lse_backward_chunk_f64 : lse_backward_chunk_f32, &job);
    return true;
}

static double element(const mti_view *v, int64_t i)
{
    float f;
    if (v->dtype == MT_F64) return ((const double *)v->data)[i];
    mti_cpu_load_f32(v->dtype, (const char *)v->data + i * (int64_t)mt_dtype_size(v->dtype), &f, 1);
    return f;
}

bool mti_cpu_counted_mean(mti_ctx *ctx, int64_t ignore, int64_t classes, const mti_view *target,
                          const mti_view *a, const mti_view *y)
{
    (void)ctx;
    const int64_t *t = target->data;
    int64_t rows = mti_view_count(target), n = mti_view_count(a), counted = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (t[r] != ignore && (t[r] < 0 || t[r] >= classes))
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "cross_entropy: target[%" PRId64 "] is %" PRId64
                                 "; need 0 to %" PRId64 ", or %" PRId64 " to ignore the row",
                                 r, t[r], classes - 1, ignore);
        counted += t[r] != ignore;
    }
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += element(a, i);
    float mean = (float)(sum / (double)counted); /* none counts: 0 / 0, not a number */
    if (y->dtype == MT_F64)
        *(double *)y->data = sum / (double)counted;
    else
        mti_cpu_store_f32(y->dtype, &mean, y->data, 1);
    return true;
}
