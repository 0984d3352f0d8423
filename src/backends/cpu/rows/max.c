/* max.c: the largest element over the trailing dimensions of x, and its index. There are two loop
 * orders, so that x is read along its contiguous dimension: one element of y at a time, or a tile
 * of y's last dimension at a time. */
#include "backends/cpu/rows/rows.h"

/* The kept or the reduced dimensions, slowest first. */
typedef struct dims {
    int rank;
    int64_t count, shape[MT_MAX_RANK], stride[MT_MAX_RANK];
} dims;

typedef struct max_job {
    const char *x;
    mt_dtype dtype;
    int64_t x_size; /* bytes per element */
    dims kept, reduced;
    int64_t outer, inner, inner_step; /* reduced: rows, and the last dimension */
    int64_t columns, column_step;     /* kept: the last dimension */
    int64_t tiles;                    /* of columns */
    mti_view y;
    int64_t *index; /* NULL: not needed */
} max_job;

/* Dimensions [from, to) of v. */
static dims dims_of(const mti_view *v, int from, int to)
{
    dims d = {.count = 1};
    for (int k = from; k < to; k++) {
        d.count *= v->shape[k];
        d.shape[d.rank] = v->shape[k];
        d.stride[d.rank++] = v->stride[k];
    }
    return d;
}

static int64_t offset_of(const dims *d, int rank, int64_t i)
{
    return mti_cpu_offset(rank, d->shape, d->stride, i);
}

#define GATHER(T)                                                                                  \
    for (int64_t i = 0; i < n; i++) to[i] = ((const T *)(const void *)p)[i * step]

/* n elements from p on, `step` apart, as f32 or f64: p itself if no copy is needed, else buffer. */
MTI_INLINE const float *take_f32(mt_dtype dtype, const char *p, int64_t step, int64_t n,
                                 float *buffer)
{
    if (step == 1) return mti_block_f32(dtype, p, 0, n, buffer);
    if (dtype == MT_F32) {
        float *to = buffer;
        GATHER(float);
    } else {
        uint16_t to[MTI_CPU_RUN];
        GATHER(uint16_t);
        mti_cpu_load_f32(dtype, to, buffer, n);
    }
    return buffer;
}

MTI_INLINE const double *take_f64(mt_dtype dtype, const char *p, int64_t step, int64_t n,
                                  double *buffer)
{
    if (step == 1) return mti_block_f64(dtype, p, 0, n, buffer);
    double *to = buffer;
    GATHER(double);
    return buffer;
}

/* Stores elements [i, i + n) of y, which are within one row of its last dimension. */
static void put_f32(const max_job *job, int64_t i, int64_t n, const float *value, const int64_t *at)
{
    if (job->dtype == MT_F32)
        memcpy((float *)job->y.data + i, value, (size_t)n * sizeof *value);
    else
        mti_cpu_store_f32(job->dtype, value, (uint16_t *)job->y.data + i, n);
    if (job->index) memcpy(job->index + i, at, (size_t)n * sizeof *at);
}

static void put_f64(const max_job *job, int64_t i, int64_t n, const double *value,
                    const int64_t *at)
{
    memcpy((double *)job->y.data + i, value, (size_t)n * sizeof *value);
    if (job->index) memcpy(job->index + i, at, (size_t)n * sizeof *at);
}

#define MTI_TYPED "backends/cpu/rows/max.inc"
#include "backends/cpu/typed.inc"

bool mti_cpu_max(mti_ctx *ctx, const mti_view *x, const mti_view *y, const mti_view *index)
{
    max_job job = {.x = x->data,
                   .dtype = x->dtype,
                   .x_size = (int64_t)mt_dtype_size(x->dtype),
                   .kept = dims_of(x, 0, y->rank),
                   .reduced = dims_of(x, y->rank, x->rank),
                   .y = *y,
                   .index = index ? index->data : NULL,
                   .inner = 1,
                   .columns = 1};
    const dims *k = &job.kept, *r = &job.reduced;
    if (k->count == 0) return true;
    if (r->rank) job.inner = r->shape[r->rank - 1], job.inner_step = r->stride[r->rank - 1];
    if (k->rank) job.columns = k->shape[k->rank - 1], job.column_step = k->stride[k->rank - 1];
    job.outer = r->count / job.inner;
    job.tiles = (job.columns + MTI_CPU_RUN - 1) / MTI_CPU_RUN;
    bool wide = x->dtype == MT_F64;
    if (job.columns > 1 && llabs(job.column_step) < llabs(job.inner_step)) {
        int64_t items = k->count / job.columns * job.tiles, cost = 2 * r->count;
        mti_cpu_parallel(ctx, items, mti_cpu_chunk(items, cost * job.columns / job.tiles),
                         wide ? max_columns_f64 : max_columns_f32, &job);
    } else {
        mti_cpu_parallel(ctx, k->count, mti_cpu_chunk(k->count, 2 * r->count),
                         wide ? max_rows_f64 : max_rows_f32, &job);
    }
    return true;
}

/* ---- backward: dy goes to the largest element, 0 to the others ---- */

typedef struct scatter_job {
    const int64_t *index;
    const mti_view *dy, *dx;
    dims from, kept, reduced; /* dy's; dx's */
    size_t size;
} scatter_job;

static void scatter_chunk(const void *arg, int64_t begin, int64_t end)
{
    const scatter_job *job = arg;
    for (int64_t i = begin; i < end; i++) {
        int64_t to = offset_of(&job->kept, job->kept.rank, i) +
                     offset_of(&job->reduced, job->reduced.rank, job->index[i]);
        int64_t from = offset_of(&job->from, job->from.rank, i);
        memcpy((char *)job->dx->data + (size_t)to * job->size,
               (const char *)job->dy->data + (size_t)from * job->size, job->size);
    }
}

bool mti_cpu_max_backward(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                          const mti_view *dx)
{
    scatter_job job = {.index = index->data,
                       .dy = dy,
                       .dx = dx,
                       .from = dims_of(dy, 0, dy->rank),
                       .kept = dims_of(dx, 0, dy->rank),
                       .reduced = dims_of(dx, dy->rank, dx->rank),
                       .size = mt_dtype_size(dx->dtype)};
    mti_cpu_fill(ctx, dx, 0);
    mti_cpu_parallel(ctx, job.kept.count, mti_cpu_chunk(job.kept.count, 16), scatter_chunk, &job);
    return true;
}
