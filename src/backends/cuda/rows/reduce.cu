/* reduce.cu: y = scale * sum of x over some dimensions.
 *
 * Each dimension is kept or reduced. The elements of one sum are divided into blocks by shape
 * alone, so the order never depends on the device: vectors are added in f32 (f64 for f64), all
 * else in f64. There are two loop orders, so that x is read along its contiguous dimension:
 * - rows, inner dimension reduced: a team within a warp, or a block of threads, sums one block of
 *   one element of y;
 * - columns, inner dimension kept: a block of threads sums one block of rows for a tile of columns,
 *   each warp reading along a row; if there are few rows, each thread sums whole columns.
 * If there are several blocks, their sums go to scratch, and the same kernels add those up. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/reduce.cuh"

#define ITEMS_WANTED    4096 /* total blocks: fills the device, with a short last wave */
#define LEAST_ELEMENTS  4096 /* per block, rows */
#define LEAST_ROWS      64   /* per block, columns; more if these are few */
#define TEAM_VECTORS    512  /* longest rows that a team within a warp sums */
#define FEW_ROWS        64   /* one thread sums up to this many; at most LEAST_ROWS */
#define LOADS           4    /* in flight per thread */
#define NOMINAL_COLUMNS 128  /* per tile */

/* Computes the offset of element i of some dimensions. */
struct mti_steps {
    int rank;
    bool narrow; /* 32 bits hold every index */
    mti_divider by[MT_MAX_RANK];
    int64_t shape[MT_MAX_RANK], stride[MT_MAX_RANK];
};

__device__ __forceinline__ int64_t offset_of(const mti_steps &s, int64_t i)
{
    int64_t offset = 0;
    for (int d = s.rank - 1; d > 0; d--) {
        int64_t rest = s.narrow ? (int64_t)mti_quotient((uint32_t)i, s.by[d]) : i / s.shape[d];
        offset += (i - rest * s.shape[d]) * s.stride[d];
        i = rest;
    }
    return offset + i * s.stride[0];
}

struct mti_sum_job {
    const void *x;
    void *y;
    double *partial; /* the sums go here instead of y, [outer, blocks(, columns)], if not NULL */
    mt_dtype y_dtype;
    double scale;
    mti_steps outer_x, outer_y; /* kept dimensions; of columns: without the last one */
    mti_steps reduced;          /* of rows: the last dimension in vectors */
    int64_t outer, length;      /* elements of y (rows of columns), elements added into each */
    int64_t block, blocks;      /* elements per block, blocks per element of y */
    int64_t columns, column_x, column_y, tiles;
    int team_size; /* threads that share a row of columns, or an element: at most 32 */
};

__device__ __forceinline__ void store_sum(const mti_sum_job &job, int64_t offset, double sum)
{
    sum *= job.scale;
    switch (job.y_dtype) {
    case MT_F64: static_cast<double *>(job.y)[offset] = sum; break;
    case MT_BF16:
        static_cast<__nv_bfloat16 *>(job.y)[offset] = mti_narrow<__nv_bfloat16>(sum);
        break;
    case MT_F16: static_cast<__half *>(job.y)[offset] = mti_narrow<__half>(sum); break;
    default: static_cast<float *>(job.y)[offset] = (float)sum; break;
    }
}

/* ---- rows ---- */

/* The elements of a vector, pair by pair. */
template <class T, int V> __device__ __forceinline__ double vector_sum(const mti_vec<T, V> &x)
{
    mti_wide<T> a[V];
    MTI_UNROLL
    for (int j = 0; j < V; j++) a[j] = mti_widen(x.v[j]);
    MTI_UNROLL
    for (int half = V / 2; half > 0; half /= 2) {
        MTI_UNROLL
        for (int j = 0; j < half; j++) a[j] += a[j + half];
    }
    return (double)a[0];
}

/* A thread's share of elements [begin, end) from x: vectors begin / V + rank, + size, ... */
template <class T, int V>
__device__ __forceinline__ double row_share(const T *x, const mti_steps &reduced, int64_t begin,
                                            int64_t end, int rank, int size)
{
    double sum = 0;
    int64_t whole = end / V;
    for (int64_t i = begin / V + rank; i < whole; i += (int64_t)LOADS * size) {
        mti_vec<T, V> v[LOADS];
        MTI_UNROLL
        for (int u = 0; u < LOADS; u++)
            if (i + u * size < whole) v[u] = mti_load<V>(x + offset_of(reduced, i + u * size));
        MTI_UNROLL
        for (int u = 0; u < LOADS; u++)
            if (i + u * size < whole) sum += vector_sum(v[u]);
    }
    /* elements after the last whole vector: only if all reduced dimensions are one, contiguous */
    for (int64_t i = whole * V + rank; i < end; i += size) sum += (double)mti_widen(x[i]);
    return sum;
}

/* A team sums one element of y. */
template <class T, int V>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS) mti_sum_team_kernel(const mti_sum_job job)
{
    int rank = (int)threadIdx.x % job.team_size, number = (int)threadIdx.x / job.team_size;
    int64_t teams = MTI_BLOCK_THREADS / job.team_size;
    for (int64_t base = blockIdx.x * teams; base < job.outer; base += gridDim.x * teams) {
        int64_t item = base + number;
        double sum = 0;
        if (item < job.outer)
            sum = row_share<T, V>(static_cast<const T *>(job.x) + offset_of(job.outer_x, item),
                                  job.reduced, 0, job.length, rank, job.team_size);
        sum = mti_lanes_sum(sum, job.team_size);
        if (item < job.outer && rank == 0) store_sum(job, offset_of(job.outer_y, item), sum);
    }
}

/* A block of threads sums one block of an element of y. */
template <class T, int V>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS) mti_sum_rows_kernel(const mti_sum_job job)
{
    MTI_SHARED(double, space[64]);
    mti_team<double, MTI_FIT_BLOCK> team(MTI_BLOCK_THREADS, space);
    for (int64_t item = blockIdx.x; item < job.outer * job.blocks; item += gridDim.x) {
        int64_t outer = item / job.blocks, begin = item % job.blocks * job.block;
        int64_t end = job.length - begin < job.block ? job.length : begin + job.block;
        const T *x = static_cast<const T *>(job.x) + offset_of(job.outer_x, outer);
        double sum = team.sum(
            row_share<T, V>(x, job.reduced, begin, end, (int)threadIdx.x, MTI_BLOCK_THREADS));
        if (threadIdx.x == 0 && job.partial) job.partial[item] = sum;
        if (threadIdx.x == 0 && !job.partial) store_sum(job, offset_of(job.outer_y, outer), sum);
    }
}

/* ---- columns ---- */

/* Adds rows begin, begin + step, ... below end of V columns from x; four rows at a time in f32. */
template <class T, int V>
__device__ __forceinline__ void column_share(const T *x, const mti_steps &reduced, int64_t begin,
                                             int64_t end, int step, double (&sum)[V])
{
    MTI_UNROLL
    for (int j = 0; j < V; j++) sum[j] = 0;
    for (int64_t i = begin; i < end; i += LOADS * step) {
        mti_vec<T, V> v[LOADS];
        MTI_UNROLL
        for (int u = 0; u < LOADS; u++) {
            if (i + u * step < end) {
                v[u] = mti_load<V>(x + offset_of(reduced, i + u * step));
            } else {
                MTI_UNROLL
                for (int j = 0; j < V; j++) v[u].v[j] = mti_narrow<T>(0.0f);
            }
        }
        MTI_UNROLL
        for (int j = 0; j < V; j++)
            sum[j] += (double)((mti_widen(v[0].v[j]) + mti_widen(v[1].v[j])) +
                               (mti_widen(v[2].v[j]) + mti_widen(v[3].v[j])));
    }
}

/* Few rows: a thread sums V elements of y. */
template <class T, int V>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS) mti_sum_few_rows_kernel(const mti_sum_job job)
{
    int64_t threads = (int64_t)gridDim.x * MTI_BLOCK_THREADS;
    for (int64_t i = blockIdx.x * (int64_t)MTI_BLOCK_THREADS + threadIdx.x; i < job.outer;
         i += threads) {
        double sum[V];
        column_share<T, V>(static_cast<const T *>(job.x) + offset_of(job.outer_x, i), job.reduced,
                           0, job.length, 1, sum);
        int64_t at = offset_of(job.outer_y, i);
        MTI_UNROLL
        for (int j = 0; j < V; j++) store_sum(job, at + j * job.column_y, sum[j]);
    }
}

/* A team, V columns a thread, shares a row; the block's other teams have the next rows. */
template <class T, int V>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS) mti_sum_columns_kernel(const mti_sum_job job)
{
    MTI_SHARED(double, part[MTI_BLOCK_THREADS][V]);
    int rank = (int)threadIdx.x % job.team_size, row = (int)threadIdx.x / job.team_size;
    int rows = MTI_BLOCK_THREADS / job.team_size;
    for (int64_t item = blockIdx.x; item < job.outer * job.blocks * job.tiles; item += gridDim.x) {
        int64_t column = (item % job.tiles * job.team_size + rank) * V, block = item / job.tiles;
        int64_t outer = block / job.blocks, begin = block % job.blocks * job.block;
        int64_t end = job.length - begin < job.block ? job.length : begin + job.block;
        const T *x =
            static_cast<const T *>(job.x) + offset_of(job.outer_x, outer) + column * job.column_x;
        if (column >= job.columns) end = begin;
        double sum[V];
        column_share<T, V>(x, job.reduced, begin + row, end, rows, sum);
        MTI_UNROLL
        for (int j = 0; j < V; j++) part[threadIdx.x][j] = sum[j];
        for (int half = rows / 2; half > 0; half /= 2) {
            __syncthreads();
            if (row < half) {
                MTI_UNROLL
                for (int j = 0; j < V; j++)
                    part[threadIdx.x][j] += part[threadIdx.x + half * job.team_size][j];
            }
        }
        for (int j = 0; j < V && row == 0 && column < job.columns; j++) {
            if (job.partial)
                job.partial[block * job.columns + column + j] = part[threadIdx.x][j];
            else
                store_sum(job, offset_of(job.outer_y, outer) + (column + j) * job.column_y,
                          part[threadIdx.x][j]);
        }
        __syncthreads();
    }
}

/* ---- planning ---- */

typedef struct sum_plan {
    mti_layout<2> kept; /* x, y */
    mti_layout<1> reduced;
    bool is_columns;
    int64_t outer, columns, block, blocks;
} sum_plan;

/* The kept (or the reduced) dimensions of v. */
static mti_view choose(const mti_view *v, const mti_view *x, const mti_view *y, bool kept)
{
    mti_view part = *v;
    part.rank = 0;
    for (int d = 0; d < x->rank; d++) {
        if ((x->shape[d] == y->shape[d]) != kept || x->shape[d] == 1) continue;
        part.shape[part.rank] = v->shape[d];
        part.stride[part.rank++] = v->stride[d];
    }
    return part;
}

static int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/* A function of shapes and strides alone: scratch is sized before memory is allocated. */
static sum_plan plan_sum(const mti_view *x, const mti_view *y)
{
    mti_view kept_x = choose(x, x, y, true), kept_y = choose(y, x, y, true);
    mti_view reduced_x = choose(x, x, y, false);
    sum_plan p = {};
    p.kept = mti_lay_out(false, &kept_x, &kept_y);
    p.reduced = mti_lay_out(false, &reduced_x);
    int64_t kept_step = mti_magnitude(p.kept.stride[0][p.kept.rank - 1]);
    int64_t reduced_step = mti_magnitude(p.reduced.stride[0][p.reduced.rank - 1]);
    p.is_columns = p.kept.count > 1 && (p.reduced.count == 1 || kept_step < reduced_step);
    p.columns = p.is_columns ? p.kept.shape[p.kept.rank - 1] : 1;
    if (p.kept.count == 0 || p.reduced.count == 0) return p;
    p.outer = p.kept.count / p.columns;
    /* sets of elements of y that run concurrently; few sets are divided into more blocks */
    int64_t side_by_side = p.outer * ((p.columns + NOMINAL_COLUMNS - 1) / NOMINAL_COLUMNS);
    int64_t least =
        p.is_columns ? round_up(LEAST_ELEMENTS / p.columns, LEAST_ROWS) : LEAST_ELEMENTS;
    if (least == 0) least = LEAST_ROWS;
    int64_t wanted = (ITEMS_WANTED + side_by_side - 1) / side_by_side;
    p.block = round_up((p.reduced.count + wanted - 1) / wanted, least);
    p.blocks = (p.reduced.count + p.block - 1) / p.block;
    return p;
}

size_t mti_cuda_sum_scratch(mti_ctx *, const mti_view *x, const mti_view *y)
{
    sum_plan p = plan_sum(x, y);
    return p.blocks > 1 ? (size_t)(p.kept.count * p.blocks) * sizeof(double) : 0;
}

/* Steps of operand k over the first `rank` dimensions of l; the last in vectors of `width`. */
template <int N> static mti_steps make_steps(const mti_layout<N> &l, int k, int rank, int width)
{
    mti_steps s = {};
    int64_t count = 1;
    for (int d = 0; d < rank; d++) {
        bool last = d == rank - 1;
        s.shape[d] = last ? (l.shape[d] + width - 1) / width : l.shape[d];
        s.stride[d] = last ? l.stride[k][d] * width : l.stride[k][d];
        count *= s.shape[d];
    }
    s.rank = rank;
    s.narrow = count <= INT32_MAX;
    for (int d = 0; d < rank && s.narrow; d++) s.by[d] = mti_divide_by((uint32_t)s.shape[d]);
    return s;
}

/* The steps of a matrix whose rows are `stride` apart. */
static mti_steps row_steps(int64_t stride)
{
    mti_steps s = {};
    s.rank = 1;
    s.stride[0] = stride;
    return s;
}

/* ---- launching: expects x, its type T and all steps; those of `reduced` in vectors of V ---- */

template <class T, int V> static bool launch_columns(mti_ctx *ctx, mti_sum_job *job)
{
    int size = 1;
    while (size < 32 && (int64_t)size * V < job->columns) size *= 2;
    job->team_size = size, job->tiles = (job->columns + size * V - 1) / (size * V);
    auto sum_of_columns = mti_sum_columns_kernel<T, V>;
    return MTI_LAUNCH(ctx, sum_of_columns, mti_grid(ctx, job->outer * job->blocks * job->tiles),
                      MTI_BLOCK_THREADS, 0, *job);
}

template <class T, int V> static bool launch_rows(mti_ctx *ctx, mti_sum_job *job)
{
    int64_t vectors = (job->length + V - 1) / V;
    if (job->partial || vectors > TEAM_VECTORS) {
        auto sum_of_rows = mti_sum_rows_kernel<T, V>;
        return MTI_LAUNCH(ctx, sum_of_rows, mti_grid(ctx, job->outer * job->blocks),
                          MTI_BLOCK_THREADS, 0, *job);
    }
    /* the fewest threads that keep LOADS loads in flight and read 64 contiguous bytes */
    int64_t size = 1, piece = 64 / (int64_t)(V * sizeof(T));
    while (size < 32 && size < vectors && (size * LOADS < vectors || size < piece)) size *= 2;
    job->team_size = (int)size;
    int64_t teams = MTI_BLOCK_THREADS / size;
    auto sum_of_short_rows = mti_sum_team_kernel<T, V>;
    return MTI_LAUNCH(ctx, sum_of_short_rows, mti_grid(ctx, job->outer, teams), MTI_BLOCK_THREADS,
                      0, *job);
}

/* True if x can be read in vectors of `width` along the inner dimension. */
static bool is_vectorisable(const sum_plan &p, int width)
{
    int kept_last = p.kept.rank - 1, reduced_last = p.reduced.rank - 1;
    if (!mti_is_aligned(p.kept.data[0], p.kept.size[0] * (size_t)width)) return false;
    for (int d = 0; d < p.kept.rank && p.kept.count > 1; d++)
        if (p.kept.stride[0][d] % width != 0 && !(p.is_columns && d == kept_last)) return false;
    for (int d = 0; d < p.reduced.rank && p.reduced.count > 1; d++)
        if (p.reduced.stride[0][d] % width != 0 && (p.is_columns || d != reduced_last))
            return false;
    if (p.is_columns) return p.kept.stride[0][kept_last] == 1 && p.columns % width == 0;
    return p.reduced.stride[0][reduced_last] == 1 &&
           (p.reduced.rank == 1 || p.reduced.shape[reduced_last] % width == 0);
}

/* Sets the steps over all kept dimensions, in vectors of y, and launches. */
template <class T, int V>
static bool launch_few_rows(mti_ctx *ctx, const sum_plan &p, mti_sum_job *job)
{
    job->outer = p.kept.count / V, job->outer_x = make_steps(p.kept, 0, p.kept.rank, V);
    job->outer_y = make_steps(p.kept, 1, p.kept.rank, V);
    auto sum_of_few_rows = mti_sum_few_rows_kernel<T, V>;
    return MTI_LAUNCH(ctx, sum_of_few_rows, mti_grid(ctx, job->outer, MTI_BLOCK_THREADS),
                      MTI_BLOCK_THREADS, 0, *job);
}

/* First pass over x. */
template <class T> static bool sum_typed(mti_ctx *ctx, const sum_plan &p, mti_sum_job *job)
{
    const int width = mti_width_of<T>();
    bool vectors = is_vectorisable(p, width);
    if (p.is_columns) {
        job->reduced = make_steps(p.reduced, 0, p.reduced.rank, 1);
        if (p.reduced.count <= FEW_ROWS)
            return vectors ? launch_few_rows<T, width>(ctx, p, job)
                           : launch_few_rows<T, 1>(ctx, p, job);
        return vectors ? launch_columns<T, width>(ctx, job) : launch_columns<T, 1>(ctx, job);
    }
    job->reduced = make_steps(p.reduced, 0, p.reduced.rank, vectors ? width : 1);
    return vectors ? launch_rows<T, width>(ctx, job) : launch_rows<T, 1>(ctx, job);
}

/* Second pass: partial [outer, blocks] or [outer, blocks, columns] into y. */
static bool sum_partials(mti_ctx *ctx, const sum_plan &p, mti_sum_job *job)
{
    const int width = mti_width_of<double>();
    job->x = job->partial, job->partial = NULL, job->outer_x = row_steps(p.blocks * p.columns);
    job->reduced = row_steps(p.columns), job->length = job->block = p.blocks, job->blocks = 1;
    job->column_x = 1;
    if (!p.is_columns) return launch_rows<double, 1>(ctx, job);
    return p.columns % width == 0 ? launch_columns<double, width>(ctx, job)
                                  : launch_columns<double, 1>(ctx, job);
}

bool mti_cuda_sum(mti_ctx *ctx, double scale, const mti_view *x, const mti_view *y, void *scratch)
{
    sum_plan p = plan_sum(x, y);
    if (p.kept.count == 0) return true;
    if (p.reduced.count == 0) return mti_cuda_fill(ctx, y, scale * 0); /* a mean: NaN */
    int outer_rank = p.is_columns ? p.kept.rank - 1 : p.kept.rank;
    mti_sum_job job = {};
    job.x = x->data, job.y = y->data;
    job.partial = p.blocks > 1 ? static_cast<double *>(scratch) : NULL, job.y_dtype = y->dtype;
    job.scale = scale, job.outer_x = make_steps(p.kept, 0, outer_rank, 1);
    job.outer_y = make_steps(p.kept, 1, outer_rank, 1);
    job.outer = p.outer, job.length = p.reduced.count;
    job.block = p.block, job.blocks = p.blocks, job.columns = p.columns;
    job.column_x = p.kept.stride[0][p.kept.rank - 1];
    job.column_y = p.kept.stride[1][p.kept.rank - 1];
    bool ok = mti_for_float(x->dtype, [&](auto t) { return sum_typed<decltype(t)>(ctx, p, &job); });
    return ok && (p.blocks == 1 || sum_partials(ctx, p, &job));
}
