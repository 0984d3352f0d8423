/* loss.c: cross-entropy of rows of logits with class indices, all rows at once or, for a loss whose
 * logits exist a chunk of rows at a time, in chunks. Both share one gradient function. */
#include "backends/cpu/rows/rows.h"

#define MAX_PARTIALS 256

typedef struct entropy_job {
    mti_rows x, logp;
    const int64_t *target;
    int64_t ignore, n, chunk;
    double *partial; /* the loss of each chunk of rows */
} entropy_job;

typedef struct lse_job {
    mti_rows x, dx;
    const int64_t *target;
    void *lse, *loss;         /* T, one per row; lse NULL: all 0 */
    const void *scale;        /* T */
    int64_t ignore, n, first; /* first: the class of x's first column */
} lse_job;

#define MTI_TYPED "backends/cpu/rows/log_softmax.inc"
#include "backends/cpu/typed.inc"
static inline bool in_line(int64_t j) { return j >= 0 && j < MTI_LINE; }

#define MTI_TYPED "backends/cpu/rows/loss.inc"
#include "backends/cpu/typed.inc"

/* Counts the rows that are not ignored; -1 and an error if a target is not a class. */
static int64_t count_targets(const int64_t *target, int64_t rows, int64_t classes, int64_t ignore)
{
    int64_t count = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (target[r] == ignore) continue;
        if (target[r] < 0 || target[r] >= classes) {
            mti_fault_report(&(mti_fault){MTI_FAULT_TARGET, r, target[r], classes, ignore});
            return -1;
        }
        count++;
    }
    return count;
}

bool mti_cpu_cross_entropy(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                           const mti_view *logp, const mti_view *loss)
{
    int64_t rows = x->shape[0], n = x->shape[1];
    int64_t counted = count_targets(target->data, rows, n, ignore);
    if (counted < 0) return false;
    double partial[MAX_PARTIALS], sum = 0;
    bool wide = x->dtype == MT_F64;
    int64_t chunk = mti_cpu_chunk(rows, n * (wide ? 48 : 6));
    if (rows > chunk * MAX_PARTIALS) chunk = (rows + MAX_PARTIALS - 1) / MAX_PARTIALS;
    entropy_job job = {mti_rows_of(x), mti_rows_of(logp), target->data, ignore, n, chunk, partial};
    if (n > 0)
        mti_cpu_parallel(ctx, rows, chunk, wide ? entropy_chunk_f64 : entropy_chunk_f32, &job);
    for (int64_t i = 0; n > 0 && i * chunk < rows; i++) sum += partial[i];
    sum /= (double)counted; /* all rows ignored: 0 / 0 is NaN */
    mti_cpu_write_wide(loss, 0, &sum, 1);
    return true;
}

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

size_t mti_cpu_entropy_bytes(mti_ctx *ctx, mt_dtype dtype)
{
    (void)ctx, (void)dtype;
    return (size_t)32 << 20;
}

bool mti_cpu_entropy_rows_backward(mti_ctx *ctx, int64_t ignore, int64_t first, const mti_view *x,
                                   const mti_view *target, const mti_view *lse,
                                   const mti_view *scale, const mti_view *dx)
{
    lse_job job = {.x = mti_rows_of(x),
                   .dx = mti_rows_of(dx),
                   .target = target->data,
                   .lse = lse ? lse->data : NULL,
                   .scale = scale->data,
                   .first = first,
                   .ignore = ignore,
                   .n = x->shape[1]};
    bool wide = x->dtype == MT_F64;
    mti_cpu_parallel(ctx, x->shape[0], mti_cpu_chunk(x->shape[0], job.n * (wide ? 32 : 4)),
                     wide ? lse_backward_chunk_f64 : lse_backward_chunk_f32, &job);
    return true;
}

bool mti_cpu_counted_mean(mti_ctx *ctx, int64_t ignore, int64_t classes, const mti_view *target,
                          const mti_view *a, const mti_view *y)
{
    (void)ctx;
    int64_t n = mti_view_count(a);
    int64_t counted = count_targets(target->data, mti_view_count(target), classes, ignore);
    if (counted < 0) return false;
    double sum = 0, element;
    for (int64_t i = 0; i < n; i++) {
        mti_cpu_read_wide(a, i, &element, 1);
        sum += element;
    }
    sum /= (double)counted; /* all rows ignored: 0 / 0 is NaN */
    mti_cpu_write_wide(y, 0, &sum, 1);
    return true;
}

bool mti_cpu_cross_entropy_backward(mti_ctx *ctx, int64_t ignore, const mti_view *logp,
                                    const mti_view *target, const mti_view *dloss,
                                    const mti_view *dx)
{
    double room;
    mti_view scale = {.data = &room, .dtype = logp->dtype == MT_F64 ? MT_F64 : MT_F32};
    return mti_cpu_counted_mean(ctx, ignore, logp->shape[1], target, dloss, &scale) &&
           mti_cpu_entropy_rows_backward(ctx, ignore, 0, logp, target, NULL, &scale, dx);
}
