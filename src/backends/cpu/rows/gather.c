/* gather.c: elements by index along one dimension, and the sum of gradients into them. */
#include "backends/cpu/rows/rows.h"

static bool check_index(const mti_view *index, int64_t n, int dim)
{
    const int64_t *at = index->data;
    int64_t count = mti_view_count(index);
    for (int64_t i = 0; i < count; i++)
        if (at[i] < 0 || at[i] >= n)
            return mti_fault_report(&(mti_fault){MTI_FAULT_GATHER, i, at[i], n, dim});
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

#define MTI_TYPED "backends/cpu/rows/gather.inc"
#include "backends/cpu/typed.inc"

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
