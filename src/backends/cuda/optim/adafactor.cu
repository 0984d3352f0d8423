/* adafactor.cu: a step of Adafactor over many parameters. Each of six kernels does one part of it
 * for all parameters of a table, which is a kernel argument: the squares of every tile, the
 * moments, the reach of each parameter's step, the size of every tile's update, the lengths, the
 * step. */
#include "backends/adafactor.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/reduce.cuh"

#define TABLE_ITEMS   22         /* kernel arguments have at most 4096 bytes */
#define TABLE_SCRATCH (16 << 20) /* bytes, unless one parameter takes more */
#define WARPS         (MTI_BLOCK_THREADS / 32)
#define LANE_COLUMNS  (MTI_FACTOR_COLUMNS / 32)

template <class T> struct mti_factor_entry {
    typedef mti_wide<T> A;
    T *p;
    const void *g;   /* T, or A if wide_grad */
    void *row, *col; /* T if narrow, else A; row: NULL of a vector */
    A *master;       /* or NULL */
    char *scratch;
    mti_factor_shape shape;
    mti_factor_scratch at;
    A weight_decay, eps;
    uint32_t first_tile, first_line; /* numbers of its first tile, and block of lines */
    bool narrow;

    __device__ __forceinline__ double *squares() const
    {
        return reinterpret_cast<double *>(scratch + at.squares);
    }
    __device__ __forceinline__ double *length() const
    {
        return reinterpret_cast<double *>(scratch + at.length);
    }
    __device__ __forceinline__ A *wide(int64_t place) const
    {
        return reinterpret_cast<A *>(scratch + place);
    }
    __device__ __forceinline__ A state(const void *of, int64_t i) const
    {
        return narrow ? mti_widen(static_cast<const T *>(of)[i]) : static_cast<const A *>(of)[i];
    }
    __device__ __forceinline__ A param(int64_t i) const
    {
        return master ? master[i] : (A)mti_widen(p[i]);
    }
};

template <class T> struct mti_factor_table {
    int n;
    uint32_t tiles, lines; /* blocks for them */
    mti_factor_entry<T> at[TABLE_ITEMS];
};
static_assert(sizeof(mti_factor_table<float>) + sizeof(mti_factor_step) <= 4096, "one launch");
static_assert(sizeof(mti_factor_table<double>) + sizeof(mti_factor_step) <= 4096, "one launch");

/* The last entry with a first number, of its tiles or its lines, that is at most this one. */
template <class T>
__device__ __forceinline__ int entry_at(const mti_factor_table<T> &table, bool lines, uint32_t at)
{
    return mti_last_at_most(table.n, at, [&](int i) {
        return lines ? table.at[i].first_line : table.at[i].first_tile;
    });
}

/* ---- squares: warp w has rows w, w + WARPS, ... of a tile, a lane every 32nd column ---- */

template <class T, class G>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS)
    mti_factor_squares_kernel(const mti_factor_table<T> table, const mti_factor_step step)
{
    typedef mti_wide<T> A;
    MTI_SHARED(A, columns[WARPS][MTI_FACTOR_COLUMNS]);
    const mti_factor_entry<T> &e = table.at[entry_at(table, false, blockIdx.x)];
    const mti_factor_shape &s = e.shape;
    int64_t number = blockIdx.x - e.first_tile;
    mti_factor_tile t = mti_factor_tile_at(&s, number);
    A *rows = e.wide(e.at.row_parts) + (t.matrix * s.column_tiles + t.column_tile) * s.rows + t.row;
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    A scale = (A)step.grad_scale, of_column[LANE_COLUMNS] = {};
    double of_param = 0;
    for (int64_t i = warp; i < t.rows; i += WARPS) {
        int64_t at = (t.matrix * s.rows + t.row + i) * s.columns + t.column;
        A of_row = 0;
        MTI_UNROLL
        for (int k = 0; k < LANE_COLUMNS; k++) {
            int64_t j = lane + 32 * k;
            if (j >= t.columns) continue;
            A g = scale * (A)mti_widen(static_cast<const G *>(e.g)[at + j]);
            double p = (double)e.param(at + j);
            of_column[k] = mti_fma(g, g, of_column[k]);
            of_row = mti_fma(g, g, of_row);
            of_param = mti_fma(p, p, of_param);
        }
        of_row = mti_lanes_sum(of_row, 32);
        if (lane == 0 && s.factored) rows[i] = of_row;
    }
    MTI_UNROLL
    for (int k = 0; k < LANE_COLUMNS; k++) columns[warp][lane + 32 * k] = of_column[k];
    __syncthreads();
    A *out = e.wide(e.at.column_parts) + (t.matrix * s.row_tiles + t.row_tile) * s.columns;
    for (int j = (int)threadIdx.x; j < t.columns; j += MTI_BLOCK_THREADS) {
        A sum = 0;
        MTI_UNROLL
        for (int w = 0; w < WARPS; w++) sum += columns[w][j];
        out[t.column + j] = sum;
    }
    of_param = mti_block_sum(of_param);
    if (threadIdx.x == 0) e.squares()[number] = of_param;
}

/* ---- moments: a thread has one row's, or one column's ---- */

template <class T>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS)
    mti_factor_moments_kernel(const mti_factor_table<T> table, const mti_factor_step step)
{
    typedef mti_wide<T> A;
    const mti_factor_entry<T> &e = table.at[entry_at(table, true, blockIdx.x)];
    const mti_factor_shape &s = e.shape;
    int64_t i = (int64_t)(blockIdx.x - e.first_line) * MTI_BLOCK_THREADS + threadIdx.x;
    int64_t n_rows = s.factored ? s.batch * s.rows : 0;
    if (i >= n_rows + s.batch * s.columns) return;
    bool row = i < n_rows;
    int64_t length = row ? s.rows : s.columns, at = row ? i : i - n_rows;
    int64_t parts = row ? s.column_tiles : s.row_tiles;
    const A *part = e.wide(row ? e.at.row_parts : e.at.column_parts);
    part += at / length * parts * length + at % length;
    A sum = 0;
    for (int64_t k = 0; k < parts; k++) sum += part[k * length];
    void *state = row ? e.row : e.col;
    A mean = sum / (A)(row ? s.columns : s.rows), old = e.state(state, at), weight = (A)step.weight;
    A now =
        weight < (A)0.5 ? mti_fma(weight, mean - old, old) : mti_fma(old - mean, 1 - weight, mean);
    if (e.narrow)
        static_cast<T *>(state)[at] = mti_narrow<T>(now);
    else
        static_cast<A *>(state)[at] = now;
}

/* ---- one block a parameter ---- */

template <class T> __device__ __forceinline__ double all_squares(const mti_factor_entry<T> &e)
{
    double sum = 0;
    int64_t tiles = mti_factor_tiles(&e.shape);
    for (int64_t i = threadIdx.x; i < tiles; i += MTI_BLOCK_THREADS) sum += e.squares()[i];
    return mti_block_sum(sum);
}

template <class T> __device__ __forceinline__ double count_of(const mti_factor_entry<T> &e)
{
    return (double)(e.shape.batch * e.shape.rows * e.shape.columns);
}

template <class T>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS)
    mti_factor_reach_kernel(const mti_factor_table<T> table, const mti_factor_step step)
{
    typedef mti_wide<T> A;
    const mti_factor_entry<T> &e = table.at[blockIdx.x];
    const mti_factor_shape &s = e.shape;
    double squares = all_squares(e);
    if (threadIdx.x == 0) *e.length() = mti_factor_reach(&step, squares, count_of(e));
    for (int64_t b = 0; b < (s.factored ? s.batch : 0); b++) {
        double sum = 0;
        for (int64_t i = threadIdx.x; i < s.rows; i += MTI_BLOCK_THREADS)
            sum += (double)e.state(e.row, b * s.rows + i);
        __syncthreads(); /* the block's last sum has been read */
        double mean = mti_block_sum(sum) / (double)s.rows, eps = (double)e.eps;
        if (threadIdx.x == 0) e.wide(e.at.scale)[b] = (A)(1 / (mean < eps ? eps : mean));
    }
}

template <class T>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS)
    mti_factor_length_kernel(const mti_factor_table<T> table, const mti_factor_step step)
{
    const mti_factor_entry<T> &e = table.at[blockIdx.x];
    double squares = all_squares(e);
    if (threadIdx.x == 0) *e.length() = mti_factor_length(&step, *e.length(), squares, count_of(e));
}

/* ---- updates ---- */

/* Calls take(i, u) for the elements of the tile that this thread has. */
template <class T, class G, class Take>
__device__ __forceinline__ void for_updates(const mti_factor_entry<T> &e,
                                            const mti_factor_step &step, int64_t number,
                                            const Take &take)
{
    typedef mti_wide<T> A;
    const mti_factor_shape &s = e.shape;
    mti_factor_tile t = mti_factor_tile_at(&s, number);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    A scale = (A)step.grad_scale, least = e.eps * e.eps, column[LANE_COLUMNS];
    MTI_UNROLL
    for (int k = 0; k < LANE_COLUMNS; k++) {
        int64_t j = lane + 32 * k;
        column[k] = j < t.columns ? e.state(e.col, t.matrix * s.columns + t.column + j) : (A)0;
    }
    for (int64_t i = warp; i < t.rows; i += WARPS) {
        int64_t row = t.matrix * s.rows + t.row + i, at = row * s.columns + t.column;
        A factor = s.factored ? e.state(e.row, row) * e.wide(e.at.scale)[t.matrix] : (A)1;
        MTI_UNROLL
        for (int k = 0; k < LANE_COLUMNS; k++) {
            int64_t j = lane + 32 * k;
            if (j >= t.columns) continue;
            A v = factor * column[k], g = (A)mti_widen(static_cast<const G *>(e.g)[at + j]);
            take(at + j, scale * g / mti_root(v < least ? least : v));
        }
    }
}

template <class T, class G>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS)
    mti_factor_updates_kernel(const mti_factor_table<T> table, const mti_factor_step step)
{
    typedef mti_wide<T> A;
    const mti_factor_entry<T> &e = table.at[entry_at(table, false, blockIdx.x)];
    int64_t number = blockIdx.x - e.first_tile;
    double squares = 0;
    for_updates<T, G>(e, step, number, [&](int64_t, A u) { squares += (double)u * (double)u; });
    squares = mti_block_sum(squares);
    if (threadIdx.x == 0) e.squares()[number] = squares;
}

template <class T, class G>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS)
    mti_factor_step_kernel(const mti_factor_table<T> table, const mti_factor_step step)
{
    typedef mti_wide<T> A;
    const mti_factor_entry<T> &e = table.at[entry_at(table, false, blockIdx.x)];
    A keep = (A)(1 - step.lr * (double)e.weight_decay), length = (A)*e.length();
    for_updates<T, G>(e, step, blockIdx.x - e.first_tile, [&](int64_t i, A u) {
        A p = mti_fma(keep, e.param(i), -(length * u));
        if (e.master) e.master[i] = p;
        e.p[i] = mti_narrow<T>(p);
    });
}

/* ---- tables ---- */

template <class T>
static mti_factor_entry<T> entry_of(const mti_opt_params *p, const mti_opt_item *item)
{
    typedef mti_wide<T> A;
    mti_factor_entry<T> e = {};
    e.p = static_cast<T *>(item->p), e.g = item->g, e.row = item->m, e.col = item->v;
    e.master = static_cast<A *>(item->master), e.shape = mti_factor_shape_of(item);
    e.at = mti_factor_scratch_of(&e.shape, sizeof(A)), e.weight_decay = (A)item->weight_decay;
    if (p) e.eps = (A)mti_factor_eps(p, item->dtype, item->master != NULL);
    e.narrow = item->moments == MTI_MOMENTS_NARROW;
    return e;
}

/* Calls launch(table, bytes of scratch memory) until all items of type T and that gradient are
 * done. Of launches in a row each has the scratch memory for itself. */
template <class T, class Launch>
static bool for_tables(mt_dtype dtype, bool wide_grad, const mti_opt_params *p, int n_items,
                       const mti_opt_item *items, char *scratch, const Launch &launch)
{
    mti_factor_table<T> table = {};
    int64_t bytes = 0;
    for (int i = 0; i < n_items; i++) {
        const mti_opt_item *item = &items[i];
        if (item->dtype != dtype || item->wide_grad != wide_grad || item->n == 0) continue;
        mti_factor_entry<T> e = entry_of<T>(p, item);
        if (table.n == TABLE_ITEMS || (table.n && bytes + e.at.bytes > TABLE_SCRATCH)) {
            if (!launch(table, bytes)) return false;
            table = {};
            bytes = 0;
        }
        e.scratch = scratch ? scratch + bytes : NULL, e.first_tile = table.tiles;
        e.first_line = table.lines;
        int64_t lines = e.shape.batch * (e.shape.columns + (e.shape.factored ? e.shape.rows : 0));
        table.tiles += (uint32_t)mti_factor_tiles(&e.shape);
        table.lines += (uint32_t)((lines + MTI_BLOCK_THREADS - 1) / MTI_BLOCK_THREADS);
        table.at[table.n++] = e;
        bytes += e.at.bytes;
    }
    return table.n == 0 || launch(table, bytes);
}

template <class T, class G>
static bool step_table(mti_ctx *ctx, const mti_factor_step &step, const mti_factor_table<T> &table)
{
    auto squares = mti_factor_squares_kernel<T, G>;
    auto moments = mti_factor_moments_kernel<T>;
    auto reach = mti_factor_reach_kernel<T>;
    auto updates = mti_factor_updates_kernel<T, G>;
    auto lengths = mti_factor_length_kernel<T>;
    auto take_step = mti_factor_step_kernel<T, G>;
    unsigned n = (unsigned)table.n;
    return MTI_LAUNCH(ctx, squares, table.tiles, MTI_BLOCK_THREADS, 0, table, step) &&
           MTI_LAUNCH(ctx, moments, table.lines, MTI_BLOCK_THREADS, 0, table, step) &&
           MTI_LAUNCH(ctx, reach, n, MTI_BLOCK_THREADS, 0, table, step) &&
           MTI_LAUNCH(ctx, updates, table.tiles, MTI_BLOCK_THREADS, 0, table, step) &&
           MTI_LAUNCH(ctx, lengths, n, MTI_BLOCK_THREADS, 0, table, step) &&
           MTI_LAUNCH(ctx, take_step, table.tiles, MTI_BLOCK_THREADS, 0, table, step);
}

/* Calls each(T(), dtype, G()) for the types of parameter and gradient. */
template <class Each> static bool for_kinds(const Each &each)
{
    return each(float(), MT_F32, float()) && each(double(), MT_F64, double()) &&
           each(__nv_bfloat16(), MT_BF16, __nv_bfloat16()) &&
           each(__nv_bfloat16(), MT_BF16, float()) && each(__half(), MT_F16, __half()) &&
           each(__half(), MT_F16, float());
}

size_t mti_cuda_adafactor_scratch(mti_ctx *, int n_items, const mti_opt_item *items)
{
    int64_t most = 0;
    for_kinds([&](auto type, mt_dtype dtype, auto grad) {
        typedef decltype(type) T;
        return for_tables<T>(dtype, sizeof grad > sizeof type, NULL, n_items, items, NULL,
                             [&](const mti_factor_table<T> &, int64_t bytes) {
                                 most = bytes > most ? bytes : most;
                                 return true;
                             });
    });
    return (size_t)most;
}

bool mti_cuda_adafactor(mti_ctx *ctx, const mti_opt_params *p, int n_items,
                        const mti_opt_item *items, void *scratch)
{
    const mti_factor_step step = mti_factor_step_of(p);
    return for_kinds([&](auto type, mt_dtype dtype, auto grad) {
        typedef decltype(type) T;
        typedef decltype(grad) G;
        return for_tables<T>(dtype, sizeof grad > sizeof type, p, n_items, items,
                             static_cast<char *>(scratch),
                             [&](const mti_factor_table<T> &table, int64_t) {
                                 return step_table<T, G>(ctx, step, table);
                             });
    });
}
