/* reduce.c: y = scale * sum of x over some dimensions.
 *
 * Each dimension is kept or reduced. The elements of one sum are divided into
 * blocks by shape alone; each block is summed in f32 (f64 for f64) over short
 * stretches; the stretches, then the blocks, are added in f64. There are two loop
 * orders, so that x is always read along its contiguous dimension:
 * - inner reduced: an item is one block of one element of y;
 * - inner kept: an item is one block of reduced rows for a tile of columns. */
#include "backends/cpu/rows/rows.h"

#define BLOCK_ELEMENTS 16384 /* of one element's sum, inner reduced */
#define BLOCK_ROWS     256   /* inner kept */
#define STRETCH        32    /* rows added in f32 before the sum goes into f64 */
#define TILE           MTI_CPU_RUN

/* The kept or the reduced dimensions, slowest first, merged where contiguous. */
typedef struct dims {
    int rank;
    int64_t count, shape[MT_MAX_RANK], x_stride[MT_MAX_RANK], y_stride[MT_MAX_RANK];
} dims;

typedef struct sum_job {
    const char *x;
    const mti_view *y;
    mt_dtype x_dtype;
    int64_t x_size; /* bytes per element */
    dims kept, reduced;
    bool inner_kept;
    int64_t columns, column_step, tiles; /* inner kept: the innermost kept dimension */
    int64_t blocks;                      /* per element of y */
    double scale;
    double *partial; /* [elements of y, blocks], or inner kept [outer, blocks, columns] */
} sum_job;

static void push_dim(dims *d, int64_t size, int64_t x_stride, int64_t y_stride)
{
    int last = d->rank - 1;
    d->count *= size;
    if (d->rank && d->x_stride[last] == x_stride * size && d->y_stride[last] == y_stride * size) {
        d->shape[last] *= size;
        d->x_stride[last] = x_stride;
        d->y_stride[last] = y_stride;
        return;
    }
    d->shape[d->rank] = size;
    d->x_stride[d->rank] = x_stride;
    d->y_stride[d->rank++] = y_stride;
}

/* Moves x's smallest stride to the last dimension, the order in which x is read. */
static void fastest_last(dims *d)
{
    int best = d->rank - 1;
    for (int i = 0; i < d->rank; i++)
        if (llabs(d->x_stride[i]) < llabs(d->x_stride[best])) best = i;
    if (best < 0) return;
    int64_t shape = d->shape[best], x_stride = d->x_stride[best], y_stride = d->y_stride[best];
    for (int i = best; i < d->rank - 1; i++) {
        d->shape[i] = d->shape[i + 1];
        d->x_stride[i] = d->x_stride[i + 1];
        d->y_stride[i] = d->y_stride[i + 1];
    }
    d->shape[d->rank - 1] = shape;
    d->x_stride[d->rank - 1] = x_stride;
    d->y_stride[d->rank - 1] = y_stride;
}

static int64_t offset_of(const dims *d, int rank, const int64_t *stride, int64_t i)
{
    return mti_cpu_offset(rank, d->shape, stride, i);
}

static void plan(sum_job *job, const mti_view *x, const mti_view *y)
{
    memset(job, 0, sizeof *job);
    job->x = x->data;
    job->y = y;
    job->x_dtype = x->dtype;
    job->x_size = (int64_t)mt_dtype_size(x->dtype);
    job->kept.count = job->reduced.count = 1;
    for (int d = 0; d < x->rank; d++) {
        if (x->shape[d] == 1) continue;
        bool keep = y->shape[d] != 1;
        push_dim(keep ? &job->kept : &job->reduced, x->shape[d], x->stride[d],
                 keep ? y->stride[d] : 0);
    }
    fastest_last(&job->kept);
    fastest_last(&job->reduced);
    dims *k = &job->kept, *r = &job->reduced;
    job->inner_kept =
        k->rank && (!r->rank || llabs(k->x_stride[k->rank - 1]) < llabs(r->x_stride[r->rank - 1]));
    int64_t size = job->inner_kept ? BLOCK_ROWS : BLOCK_ELEMENTS;
    job->blocks = r->count <= size ? 1 : (r->count + size - 1) / size;
    job->columns = job->inner_kept ? k->shape[k->rank - 1] : 1;
    job->column_step = job->inner_kept ? k->x_stride[k->rank - 1] : 0;
    job->tiles = (job->columns + TILE - 1) / TILE;
}

size_t mti_cpu_sum_scratch(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    (void)ctx;
    sum_job job;
    plan(&job, x, y);
    if (job.blocks == 1) return 0;
    return (size_t)(job.kept.count * job.blocks) * sizeof(double);
}

static void store_element(const sum_job *job, int64_t offset, double sum)
{
    const mti_view *y = job->y;
    double value = sum * job->scale;
    float f = (float)value;
    if (y->dtype == MT_F64)
        ((double *)y->data)[offset] = value;
    else if (y->dtype == MT_F32)
        ((float *)y->data)[offset] = f;
    else
        mti_cpu_store_f32(y->dtype, &f, (uint16_t *)y->data + offset, 1);
}

/* n <= TILE sums, `step` elements of y apart. */
MTI_INLINE void store_tile(const sum_job *job, int64_t offset, int64_t step, const double *sum,
                           int64_t n)
{
    const mti_view *y = job->y;
    float tile[TILE];
    if (step != 1 || y->dtype == MT_F64) {
        for (int64_t j = 0; j < n; j++) store_element(job, offset + j * step, sum[j]);
        return;
    }
    MTI_SIMD
    for (int64_t j = 0; j < n; j++) tile[j] = (float)(sum[j] * job->scale);
    mti_cpu_store_f32(y->dtype, tile, (char *)y->data + offset * (int64_t)mti_dtype_size(y->dtype),
                      n);
}

#define MTI_TYPED "backends/cpu/rows/reduce.inc"
#include "backends/cpu/typed.inc"

/* Adds up the blocks of elements [begin, end) of y, in the order of the kept dimensions. */
static void combine_chunk(const void *arg, int64_t begin, int64_t end)
{
    const sum_job *job = arg;
    const dims *k = &job->kept;
    for (int64_t i = begin; i < end; i++) {
        int64_t outer = i / job->columns, column = i % job->columns;
        const double *p = job->partial + outer * job->blocks * job->columns + column;
        double sum = 0;
        for (int64_t b = 0; b < job->blocks; b++) sum += p[b * job->columns];
        store_element(job, offset_of(k, k->rank, k->y_stride, i), sum);
    }
}

bool mti_cpu_sum(mti_ctx *ctx, double scale, const mti_view *x, const mti_view *y, void *scratch)
{
    sum_job job;
    plan(&job, x, y);
    job.scale = scale;
    job.partial = scratch;
    if (job.reduced.count == 0) return mti_cpu_fill(ctx, y, scale * 0); /* a mean: NaN */
    if (job.kept.count == 0) return true;
    bool wide = x->dtype == MT_F64;
    int64_t outer = job.kept.count / job.columns, items = outer * job.blocks * job.tiles;
    int64_t cost = job.kept.count * job.reduced.count / items;
    mti_cpu_range_fn *fn = job.inner_kept ? (wide ? column_items_f64 : column_items_f32)
                                          : (wide ? row_items_f64 : row_items_f32);
    mti_cpu_parallel(ctx, items, mti_cpu_chunk(items, cost < 1 ? 1 : cost), fn, &job);
    if (job.blocks > 1)
        mti_cpu_parallel(ctx, job.kept.count, mti_cpu_chunk(job.kept.count, job.blocks),
                         combine_chunk, &job);
    return true;
}
