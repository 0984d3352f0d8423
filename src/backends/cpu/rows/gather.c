/* gather.c: elements by index along one dimension, and the sum of gradients into them. */
#include <inttypes.h>
#include "backends/cpu/cpu.h"

static bool check_index(const mti_view *index, int64_t n, int dim)
{
    const int64_t *at = index->data;
    int64_t count = mti_view_count(index);
    for (int64_t i = 0; i < count; i++)
        if (at[i] < 0 || at[i] >= n)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "gather: index[%" PRId64 "] is %" PRId64
                                 "; x has elements 0 to %" PRId64 " in dimension %d",
                                 i, at[i], n - 1, dim);
    return true;
}

typedef struct gather_job {
    mti_walk walk; /* y, and x with stride 0 along the dimension */
    const int64_t *index;
    int64_t step; /* x's stride along the dimension */
    size_t size;
} gather_job;

static void gather_chunk(const void *arg, int64_t begin, int64_t end)
{
    const gather_job *job = arg;
    const mti_walk *w = &job->walk;
    int64_t at[MT_MAX_RANK];
    mti_walk_seek(w, begin, at);
    for (int64_t i = begin; i < end; i++) {
        int64_t from = mti_walk_offset(w, 1, at) + job->index[i] * job->step;
        memcpy(w->data[0] + (size_t)i * job->size, w->data[1] + (size_t)from * job->size,
               job->size);
        mti_walk_advance(w, 1, at);
    }
}

bool mti_cpu_gather(mti_ctx *ctx, int dim, const mti_view *x, const mti_view *index,
                    const mti_view *y)
{
    if (!check_index(index, x->shape[dim], dim)) return false;
    mti_view from = *x;
    memcpy(from.shape, index->shape, sizeof from.shape);
    from.stride[dim] = 0;
    gather_job job = {
        .index = index->data, .step = x->stride[dim], .size = mt_dtype_size(x->dtype)};
    mti_walk_init(&job.walk, 2, (const mti_view *[]){y, &from}, true);
    mti_cpu_parallel(ctx, job.walk.count, mti_cpu_chunk(job.walk.count, 8), gather_chunk, &job);
    return true;
}

/* ---- backward: a row of dx lies along the dimension; the same row of the index says which of its
 * elements each dy is added to. Threads share a row by tiles, and read its whole index. ---- */

#define TILE 2048

typedef struct scatter_job {
    mti_view index, dy, dx; /* the dimension last; dx's other extents cut to the index's */
    int64_t tiles;          /* per row of dx */
} scatter_job;

static float get_f32(mt_dtype dtype, const char *from)
{
    float value;
    mti_cpu_load_f32(dtype, from, &value, 1);
    return value;
}

static double get_f64(mt_dtype dtype, const char *from)
{
    (void)dtype;
    return *(const double *)(const void *)from;
}

static void put_f32(mt_dtype dtype, const float *sum, char *to, int64_t step, int64_t n)
{
    for (int64_t j = 0; step != 1 && j < n; j++)
        mti_cpu_store_f32(dtype, sum + j, to + j * step * (int64_t)mt_dtype_size(dtype), 1);
    if (step == 1) mti_cpu_store_f32(dtype, sum, to, n);
}

static void put_f64(mt_dtype dtype, const double *sum, char *to, int64_t step, int64_t n)
{
    (void)dtype;
    for (int64_t j = 0; j < n; j++) ((double *)(void *)to)[j * step] = sum[j];
}

#define SCATTER_BODY(T, get, put)                                                                  \
    const scatter_job *job = arg;                                                                  \
    const mti_view *index = &job->index, *dy = &job->dy, *dx = &job->dx;                           \
    int last = dx->rank - 1;                                                                       \
    int64_t size = (int64_t)mt_dtype_size(dx->dtype);                                              \
    for (int64_t i = begin; i < end; i++) {                                                        \
        int64_t row = i / job->tiles, first = i % job->tiles * TILE;                               \
        int64_t n = dx->shape[last] - first < TILE ? dx->shape[last] - first : TILE;               \
        const int64_t *at = (const int64_t *)index->data + mti_cpu_row_offset(index, row);         \
        const char *from = (const char *)dy->data + mti_cpu_row_offset(dy, row) * size;            \
        T sum[TILE];                                                                               \
        memset(sum, 0, (size_t)n * sizeof *sum);                                                   \
        for (int64_t j = 0; j < index->shape[last]; j++) {                                         \
            int64_t to = at[j * index->stride[last]] - first;                                      \
            if (to >= 0 && to < n) sum[to] += get(dy->dtype, from + j * dy->stride[last] * size);  \
        }                                                                                          \
        int64_t to = mti_cpu_row_offset(dx, row) + first * dx->stride[last];                       \
        put(dx->dtype, sum, (char *)dx->data + to * size, dx->stride[last], n);                    \
    }

static void scatter_f32(const void *arg, int64_t begin, int64_t end)
{
    SCATTER_BODY(float, get_f32, put_f32)
}

static void scatter_f64(const void *arg, int64_t begin, int64_t end)
{
    SCATTER_BODY(double, get_f64, put_f64)
}

static mti_view dimension_last(const mti_view *v, int dim)
{
    mti_view r = *v;
    for (int d = dim; d + 1 < v->rank; d++) {
        r.shape[d] = v->shape[d + 1];
        r.stride[d] = v->stride[d + 1];
    }
    r.shape[v->rank - 1] = v->shape[dim];
    r.stride[v->rank - 1] = v->stride[dim];
    return r;
}

bool mti_cpu_gather_backward(mti_ctx *ctx, int dim, const mti_view *index, const mti_view *dy,
                             const mti_view *dx)
{
    scatter_job job = {.index = dimension_last(index, dim),
                       .dy = dimension_last(dy, dim),
                       .dx = dimension_last(dx, dim)};
    int last = dx->rank - 1;
    bool whole = true; /* the index has a row for every row of dx */
    for (int d = 0; d < last; d++) {
        whole = whole && job.dx.shape[d] == job.index.shape[d];
        job.dx.shape[d] = job.index.shape[d];
    }
    if (!whole) mti_cpu_fill(ctx, dx, 0);
    job.tiles = (dx->shape[dim] + TILE - 1) / TILE;
    int64_t items = mti_cpu_row_count(&job.index) * job.tiles, n = dx->shape[dim];
    mti_cpu_parallel(ctx, items,
                     mti_cpu_chunk(items, (n < TILE ? n : TILE) + 2 * index->shape[dim]),
                     dx->dtype == MT_F64 ? scatter_f64 : scatter_f32, &job);
    return true;
}
