/* norm.c: layer norm over the last dimension, and its backward. RMS norm uses the same loops with 0
 * in place of the mean. */
#include "backends/cpu/rows/rows.h"

typedef struct norm_job {
    mti_rows x, y;
    const void *w, *b; /* [n] or NULL */
    void *mean, *rstd; /* one per row, or NULL */
    int64_t n;
    double eps;
    bool about_mean; /* false: RMS norm */
} norm_job;

/* The rows are divided into at most MAX_BLOCKS blocks, by their number alone; each
 * block sums its share of dw and db in the scratch. */
#define MAX_BLOCKS     64
#define MIN_BLOCK_ROWS 16

typedef struct norm_backward_job {
    mti_rows dy, x, dx;
    const void *w, *mean, *rstd;
    void *sum_w, *sum_b; /* [blocks, n] of f32 or f64, or NULL */
    int64_t n, rows, rows_per_block;
    bool has_dx;
} norm_backward_job; /* mean is NULL for RMS norm */

typedef struct norm_columns_job {
    const void *sums; /* [blocks, n] */
    void *out;        /* [n] */
    mt_dtype dtype;   /* of out */
    int64_t blocks, n;
} norm_columns_job;

#define NORM_FETCH (MTI_FETCH(x + from, job->x.row_bytes), MTI_FETCH(dy + from, job->dy.row_bytes))

#define MTI_TYPED "backends/cpu/rows/norm.inc"
#include "backends/cpu/typed.inc"

static void run_norm(mti_ctx *ctx, double eps, bool about_mean, const mti_view *x,
                     const mti_view *w, const mti_view *b, const mti_view *y, const mti_view *mean,
                     const mti_view *rstd)
{
    int64_t rows = mti_cpu_row_count(x), n = x->shape[x->rank - 1];
    norm_job job = {.x = mti_rows_of(x),
                    .y = mti_rows_of(y),
                    .w = w ? w->data : NULL,
                    .b = b ? b->data : NULL,
                    .mean = mean ? mean->data : NULL,
                    .rstd = rstd ? rstd->data : NULL,
                    .n = n,
                    .eps = eps,
                    .about_mean = about_mean};
    mti_cpu_parallel(ctx, rows, mti_cpu_chunk(rows, n * 6),
                     x->dtype == MT_F64 ? norm_chunk_f64 : norm_chunk_f32, &job);
}

bool mti_cpu_layer_norm(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                        const mti_view *b, const mti_view *y, const mti_view *mean,
                        const mti_view *rstd)
{
    run_norm(ctx, eps, true, x, w, b, y, mean, rstd);
    return true;
}

bool mti_cpu_rms_norm(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                      const mti_view *y, const mti_view *rstd)
{
    run_norm(ctx, eps, false, x, w, NULL, y, NULL, rstd);
    return true;
}

static int64_t rows_per_block(int64_t rows)
{
    int64_t size = (rows + MAX_BLOCKS - 1) / MAX_BLOCKS;
    return size < MIN_BLOCK_ROWS ? MIN_BLOCK_ROWS : size;
}

static size_t element_size(mt_dtype dtype)
{
    return dtype == MT_F64 ? sizeof(double) : sizeof(float);
}

/* [blocks, n] for the sums of dw */
size_t mti_cpu_rms_norm_backward_scratch(mti_ctx *ctx, const mti_view *x)
{
    (void)ctx;
    int64_t rows = mti_cpu_row_count(x), size = rows_per_block(rows);
    int64_t blocks = (rows + size - 1) / size;
    return (size_t)blocks * (size_t)x->shape[x->rank - 1] * element_size(x->dtype);
}

size_t mti_cpu_layer_norm_backward_scratch(mti_ctx *ctx, const mti_view *x)
{
    return 2 * mti_cpu_rms_norm_backward_scratch(ctx, x);
}

static void add_columns(mti_ctx *ctx, const void *sums, int64_t blocks, const mti_view *out)
{
    norm_columns_job job = {sums, out->data, out->dtype, blocks, out->shape[out->rank - 1]};
    mti_cpu_parallel(ctx, job.n, mti_cpu_chunk(job.n, blocks),
                     out->dtype == MT_F64 ? norm_columns_chunk_f64 : norm_columns_chunk_f32, &job);
}

bool mti_cpu_layer_norm_backward(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                                 const mti_view *w, const mti_view *mean, const mti_view *rstd,
                                 const mti_view *dx, const mti_view *dw, const mti_view *db,
                                 void *scratch)
{
    int64_t rows = mti_cpu_row_count(x), n = x->shape[x->rank - 1], size = rows_per_block(rows);
    int64_t blocks = (rows + size - 1) / size;
    char *second = (char *)scratch + (size_t)(blocks * n) * element_size(x->dtype);
    norm_backward_job job = {.dy = mti_rows_of(dy),
                             .x = mti_rows_of(x),
                             .dx = mti_rows_of(dx ? dx : x),
                             .w = w ? w->data : NULL,
                             .mean = mean ? mean->data : NULL,
                             .rstd = rstd->data,
                             .sum_w = dw ? scratch : NULL,
                             .sum_b = db ? second : NULL,
                             .n = n,
                             .rows = rows,
                             .rows_per_block = size,
                             .has_dx = dx != NULL};
    mti_cpu_parallel(ctx, blocks, mti_cpu_chunk(blocks, n * size * 6),
                     x->dtype == MT_F64 ? norm_backward_chunk_f64 : norm_backward_chunk_f32, &job);
    if (dw) add_columns(ctx, job.sum_w, blocks, dw);
    if (db) add_columns(ctx, job.sum_b, blocks, db);
    return true;
}

bool mti_cpu_rms_norm_backward(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                               const mti_view *w, const mti_view *rstd, const mti_view *dx,
                               const mti_view *dw, void *scratch)
{
    return mti_cpu_layer_norm_backward(ctx, dy, x, w, NULL, rstd, dx, dw, NULL, scratch);
}
