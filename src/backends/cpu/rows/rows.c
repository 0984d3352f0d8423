/* rows.c: softmax and log-softmax over the last dimension, and their backward. */
#include "backends/cpu/rows/rows.h"

typedef struct rows_job {
    mti_rows x, dy, y;
    int64_t n;      /* elements of a row */
    int64_t causal; /* s, the rows of one score matrix; 0: no mask */
    double scale;
    const void *lse; /* T, one per row; of log_probabilities */
} rows_job;

#define ROWS_FETCH (MTI_FETCH(y + from, job->x.row_bytes), MTI_FETCH(dy + from, job->dy.row_bytes))

#define MTI_TYPED "backends/cpu/rows/log_softmax.inc"
#include "backends/cpu/typed.inc"
#define MTI_TYPED "backends/cpu/rows/rows.inc"
#include "backends/cpu/typed.inc"

static bool run_rows(mti_ctx *ctx, rows_job *job, const mti_view *y, int64_t cost,
                     mti_cpu_range_fn *f32, mti_cpu_range_fn *f64)
{
    int64_t rows = mti_cpu_row_count(y);
    job->n = y->rank ? y->shape[y->rank - 1] : 1;
    if (job->n == 0) return true;
    bool wide = y->dtype == MT_F64;
    mti_cpu_parallel(ctx, rows, mti_cpu_chunk(rows, job->n * cost * (wide ? 8 : 1)),
                     wide ? f64 : f32, job);
    return true;
}

bool mti_cpu_softmax(mti_ctx *ctx, double scale, bool causal, const mti_view *x, const mti_view *y)
{
    rows_job job = {.x = mti_rows_of(x), .y = mti_rows_of(y), .scale = scale};
    job.causal = causal ? x->shape[x->rank - 2] : 0;
    return run_rows(ctx, &job, y, 8, softmax_chunk_f32, softmax_chunk_f64);
}

bool mti_cpu_softmax_backward(mti_ctx *ctx, double scale, const mti_view *y, const mti_view *dy,
                              const mti_view *dx)
{
    rows_job job = {
        .x = mti_rows_of(y), .dy = mti_rows_of(dy), .y = mti_rows_of(dx), .scale = scale};
    return run_rows(ctx, &job, dx, 3, softmax_backward_chunk_f32, softmax_backward_chunk_f64);
}

bool mti_cpu_log_softmax(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    rows_job job = {.x = mti_rows_of(x), .y = mti_rows_of(y)};
    return run_rows(ctx, &job, y, 8, log_softmax_chunk_f32, log_softmax_chunk_f64);
}

bool mti_cpu_log_probabilities(mti_ctx *ctx, const mti_view *x, const mti_view *lse,
                               const mti_view *logp)
{
    rows_job job = {.x = mti_rows_of(x), .y = mti_rows_of(logp), .lse = lse->data};
    return run_rows(ctx, &job, logp, 1, minus_lse_chunk_f32, minus_lse_chunk_f64);
}

bool mti_cpu_log_softmax_backward(mti_ctx *ctx, const mti_view *y, const mti_view *dy,
                                  const mti_view *dx)
{
    rows_job job = {.x = mti_rows_of(y), .dy = mti_rows_of(dy), .y = mti_rows_of(dx)};
    return run_rows(ctx, &job, dx, 5, log_softmax_backward_chunk_f32,
                    log_softmax_backward_chunk_f64);
}
