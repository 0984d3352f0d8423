/* copy.cu: y = x in any layout and between any two types. Copies within one type move bits. If x is
 * contiguous in another dimension than y, tiles pass through shared memory, so that whole cache
 * lines are read and written. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/walk.cuh"

/* ---- the same order on both sides: Y and X are the types ---- */

/* Floats are converted through the type x is computed in; f64 to a narrower float through f32. */
template <class Y, class X> struct mti_cast {
    static __device__ __forceinline__ Y of(X x) { return mti_narrow<Y>(mti_widen(x)); }
};
template <class T> struct mti_cast<T, T> {
    static __device__ __forceinline__ T of(T x) { return x; }
};

template <class Y, class X> struct mti_copy_op {
    enum {
        operands = 2,
        width = sizeof(Y) < sizeof(X) ? mti_width_of<X>() : mti_width_of<Y>(),
        unroll = 4
    };
    template <int V> struct held {
        mti_vec<X, V> x;
    };

    template <int V> __device__ void load(const mti_walk<2> &w, const int64_t *at, held<V> &h) const
    {
        h.x = mti_take_operand<X, V>(w, 1, at[1]);
    }
    template <int V>
    __device__ void store(const mti_walk<2> &w, const int64_t *at, uint64_t, const held<V> &h) const
    {
        mti_vec<Y, V> y;
        MTI_UNROLL
        for (int j = 0; j < V; j++) y.v[j] = mti_cast<Y, X>::of(h.x.v[j]);
        mti_store(static_cast<Y *>(w.data[0]) + at[0], y);
    }
};

/* ---- transposed: one dimension is contiguous in x, another in y ---- */

template <int size> struct mti_tile {
    enum {
        side = size == 8 ? 32 : 64,
        width = size == 8 ? 2 : 4, /* elements a thread moves at once */
        pad = size < 4 ? 4 / size : 1,
    };
};

struct mti_transpose {
    const void *x;
    void *y;
    int64_t rows, columns;   /* extents: of x's contiguous dimension; of y's */
    int64_t x_column, y_row; /* stride of x's columns, of y's rows */
    int64_t row_tiles, column_tiles, tiles;
    int rank; /* of the other dimensions */
    int64_t shape[MT_MAX_RANK], x_stride[MT_MAX_RANK], y_stride[MT_MAX_RANK];
};

/* W: elements per access, the tile's width if everything is aligned, else 1. In shared memory
 * tile[c][r] has x's order; the padding puts the columns of a warp in different banks. */
template <class T, int W>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS) mti_transpose_kernel(const mti_transpose p)
{
    typedef mti_tile<sizeof(T)> shape;
    const int side = shape::side, team = side / W, step = MTI_BLOCK_THREADS / team;
    MTI_SHARED(T, tile[shape::side][shape::side + shape::pad]);
    int at = (int)threadIdx.x % team * W, line = (int)threadIdx.x / team;
    for (int64_t item = blockIdx.x; item < p.tiles; item += gridDim.x) {
        int64_t c0 = item % p.column_tiles * side, rest = item / p.column_tiles;
        int64_t r0 = rest % p.row_tiles * side;
        rest /= p.row_tiles;
        const T *x = static_cast<const T *>(p.x) + r0 + c0 * p.x_column;
        T *y = static_cast<T *>(p.y) + c0 + r0 * p.y_row;
        for (int d = p.rank - 1; d >= 0; d--) {
            x += rest % p.shape[d] * p.x_stride[d];
            y += rest % p.shape[d] * p.y_stride[d];
            rest /= p.shape[d];
        }
        int rows = (int)(p.rows - r0 < side ? p.rows - r0 : side);
        int columns = (int)(p.columns - c0 < side ? p.columns - c0 : side);
        mti_vec<T, W> v[side / step];
        MTI_UNROLL
        for (int k = 0; k < side / step; k++)
            if (at < rows && line + k * step < columns)
                v[k] = mti_load<W>(x + (line + k * step) * p.x_column + at);
        MTI_UNROLL
        for (int k = 0; k < side / step; k++)
            if (at < rows && line + k * step < columns) {
                MTI_UNROLL
                for (int j = 0; j < W; j++) tile[line + k * step][at + j] = v[k].v[j];
            }
        __syncthreads();
        MTI_UNROLL
        for (int k = 0; k < side / step; k++)
            if (at < columns && line + k * step < rows) {
                MTI_UNROLL
                for (int j = 0; j < W; j++) v[k].v[j] = tile[at + j][line + k * step];
                mti_store(y + (line + k * step) * p.y_row + at, v[k]);
            }
        __syncthreads();
    }
}

/* x's contiguous dimension, if it is not y's; else -1. */
static int find_transposed(const mti_layout<2> &l)
{
    int last = l.rank - 1;
    if (l.stride[0][last] != 1 || l.stride[1][last] == 1 || l.shape[last] < 4) return -1;
    for (int d = 0; d < last; d++)
        if (l.stride[1][d] == 1 && l.shape[d] >= 4) return d;
    return -1;
}

/* True if tiles can be moved `width` elements at a time on both sides. */
static bool tiles_are_aligned(const mti_layout<2> &l, int t, int width)
{
    int last = l.rank - 1;
    const int contiguous[2] = {last, t}; /* in y, in x */
    if (l.shape[t] % width != 0 || l.shape[last] % width != 0) return false;
    for (int k = 0; k < 2; k++) {
        if (!mti_is_aligned(l.data[k], l.size[k] * (size_t)width)) return false;
        for (int d = 0; d < l.rank; d++)
            if (d != contiguous[k] && l.stride[k][d] % width != 0) return false;
    }
    return true;
}

template <class T> static bool transpose(mti_ctx *ctx, const mti_layout<2> &l, int t)
{
    typedef mti_tile<sizeof(T)> tile;
    int last = l.rank - 1;
    mti_transpose p = {};
    p.x = l.data[1], p.y = l.data[0];
    p.rows = l.shape[t], p.columns = l.shape[last];
    p.x_column = l.stride[1][last], p.y_row = l.stride[0][t];
    p.row_tiles = (p.rows + tile::side - 1) / tile::side;
    p.column_tiles = (p.columns + tile::side - 1) / tile::side;
    p.tiles = p.row_tiles * p.column_tiles;
    for (int d = 0; d < last; d++) {
        if (d == t) continue;
        p.shape[p.rank] = l.shape[d];
        p.x_stride[p.rank] = l.stride[1][d];
        p.y_stride[p.rank++] = l.stride[0][d];
        p.tiles *= l.shape[d];
    }
    if (p.tiles == 0) return true;
    unsigned grid = mti_grid(ctx, p.tiles);
    auto transposed_copy = tiles_are_aligned(l, t, tile::width)
                               ? mti_transpose_kernel<T, tile::width>
                               : mti_transpose_kernel<T, 1>;
    return MTI_LAUNCH(ctx, transposed_copy, grid, MTI_BLOCK_THREADS, 0, p);
}

/* ---- rows of 16-bit elements that begin where no vector may ---- */

struct mti_odd_rows {
    const uint16_t *x;
    uint16_t *y;
    int64_t rows, n, x_row, y_row;
    int64_t parts; /* of a row, one for a warp */
};

enum { ODD_VECTOR = 8, ODD_VECTORS = 4, ODD_WARPS = MTI_BLOCK_THREADS / 32 };

/* Vectors of y come from four words of x, or from five, shifted. The row's last element is in none,
 * so no word reaches beyond it; before its first one lies another, or the word begins with it. */
__global__ void __launch_bounds__(MTI_BLOCK_THREADS) mti_odd_rows_kernel(const mti_odd_rows p)
{
    int lane = (int)threadIdx.x % 32;
    int64_t step = (int64_t)gridDim.x * ODD_WARPS;
    for (int64_t item = (int64_t)blockIdx.x * ODD_WARPS + threadIdx.x / 32; item < p.rows * p.parts;
         item += step) {
        int64_t row = item / p.parts, part = item % p.parts;
        const uint16_t *x = p.x + row * p.x_row;
        uint16_t *y = p.y + row * p.y_row;
        int head = (int)(-((uintptr_t)y / sizeof *y) % ODD_VECTOR);
        int odd = (int)((uintptr_t)(x + head) / sizeof *x % 2);
        const uint32_t *words = mti_at<const uint32_t>(x + head - odd);
        int64_t vectors = (p.n - head - 1) / ODD_VECTOR, rest = head + vectors * ODD_VECTOR;
        int64_t first = part * ODD_VECTORS * 32 + lane;
        uint32_t w[ODD_VECTORS][5] = {};
        MTI_UNROLL
        for (int k = 0; k < ODD_VECTORS; k++) {
            int64_t i = first + k * 32;
            MTI_UNROLL
            for (int j = 0; j < 5; j++)
                if (i < vectors && (j < 4 || odd)) w[k][j] = words[4 * i + j];
        }
        MTI_UNROLL
        for (int k = 0; k < ODD_VECTORS; k++) {
            int64_t i = first + k * 32;
            mti_vec<uint16_t, ODD_VECTOR> v;
            MTI_UNROLL
            for (int j = 0; j < 4; j++)
                if (odd) w[k][j] = w[k][j] >> 16 | w[k][j + 1] << 16;
            memcpy(&v, w[k], sizeof v);
            if (i < vectors) mti_store(y + head + ODD_VECTOR * i, v);
        }
        if (part == 0 && lane < head) y[lane] = x[lane];
        if (part == 0 && lane < p.n - rest) y[rest + lane] = x[rest + lane];
    }
}

/* True if it was a matrix of such rows; then *ok says whether it was copied. */
static bool copy_odd_rows(mti_ctx *ctx, const mti_layout<2> &l, bool *ok)
{
    if (l.size[0] != 2 || l.rank != 2 || l.shape[1] < 32 * ODD_VECTOR || l.stride[0][1] != 1 ||
        l.stride[1][1] != 1 || mti_can_take(l, ODD_VECTOR, 0))
        return false;
    int64_t part = ODD_VECTORS * 32 * ODD_VECTOR;
    mti_odd_rows p = {static_cast<const uint16_t *>(l.data[1]),
                      static_cast<uint16_t *>(l.data[0]),
                      l.shape[0],
                      l.shape[1],
                      l.stride[1][0],
                      l.stride[0][0],
                      (l.shape[1] + part - 1) / part};
    unsigned grid = mti_grid(ctx, (p.rows * p.parts + ODD_WARPS - 1) / ODD_WARPS);
    *ok = !l.count || MTI_LAUNCH(ctx, mti_odd_rows_kernel, grid, MTI_BLOCK_THREADS, 0, p);
    return true;
}

template <class T> static bool copy_bits(mti_ctx *ctx, const mti_layout<2> &l)
{
    bool ok;
    if (copy_odd_rows(ctx, l, &ok)) return ok;
    int t = find_transposed(l);
    return t < 0 ? mti_map(ctx, l, mti_copy_op<T, T>(), 2u) : transpose<T>(ctx, l, t);
}

/* ---- integers and bools: rarely large, so the types are tested per element ---- */

struct mti_convert_op {
    enum { operands = 2, width = 1, unroll = 4 };
    mt_dtype from, to;
    bool is_real; /* from */
    template <int V> struct held {
        double real; /* for float sources, which f64 holds exactly */
        int64_t integer;
    };

    template <int V> __device__ void load(const mti_walk<2> &w, const int64_t *at, held<V> &h) const
    {
        const void *x = w.data[1];
        int64_t i = at[1];
        h.real = 0;
        h.integer = 0;
        switch (from) {
        case MT_F32: h.real = static_cast<const float *>(x)[i]; break;
        case MT_F64: h.real = static_cast<const double *>(x)[i]; break;
        case MT_BF16: h.real = mti_widen(static_cast<const __nv_bfloat16 *>(x)[i]); break;
        case MT_F16: h.real = mti_widen(static_cast<const __half *>(x)[i]); break;
        case MT_F8_E4M3: h.real = mti_widen(static_cast<const mti_e4m3 *>(x)[i]); break;
        case MT_F8_E5M2: h.real = mti_widen(static_cast<const mti_e5m2 *>(x)[i]); break;
        case MT_I64: h.integer = static_cast<const int64_t *>(x)[i]; break;
        case MT_I32: h.integer = static_cast<const int32_t *>(x)[i]; break;
        case MT_I16: h.integer = static_cast<const int16_t *>(x)[i]; break;
        case MT_U16: h.integer = static_cast<const uint16_t *>(x)[i]; break;
        case MT_I8: h.integer = static_cast<const int8_t *>(x)[i]; break;
        default: h.integer = static_cast<const uint8_t *>(x)[i]; break;
        }
    }
    /* Narrower integers take the low bits; a bool is true if the value is not 0. A float target
     * has an integer source here: float to float has a kernel of its own. */
    template <int V>
    __device__ void store(const mti_walk<2> &w, const int64_t *at, uint64_t, const held<V> &h) const
    {
        void *y = w.data[0];
        int64_t i = at[0], value = h.integer;
        if (is_real) value = to == MT_BOOL ? h.real != 0 : mti_f64_to_i64(h.real);
        switch (to) {
        case MT_F32: static_cast<float *>(y)[i] = (float)value; break;
        case MT_F64: static_cast<double *>(y)[i] = (double)value; break;
        case MT_BF16:
            static_cast<__nv_bfloat16 *>(y)[i] = mti_narrow<__nv_bfloat16>((float)value);
            break;
        case MT_F16: static_cast<__half *>(y)[i] = mti_narrow<__half>((float)value); break;
        case MT_I64: static_cast<int64_t *>(y)[i] = value; break;
        case MT_I32: static_cast<int32_t *>(y)[i] = (int32_t)value; break;
        case MT_F8_E4M3: static_cast<mti_e4m3 *>(y)[i] = mti_narrow<mti_e4m3>((float)value); break;
        case MT_F8_E5M2: static_cast<mti_e5m2 *>(y)[i] = mti_narrow<mti_e5m2>((float)value); break;
        case MT_I16: static_cast<int16_t *>(y)[i] = (int16_t)value; break;
        case MT_U16: static_cast<uint16_t *>(y)[i] = (uint16_t)value; break;
        case MT_I8: static_cast<int8_t *>(y)[i] = (int8_t)value; break;
        case MT_U8: static_cast<uint8_t *>(y)[i] = (uint8_t)value; break;
        default: static_cast<uint8_t *>(y)[i] = value != 0; break;
        }
    }
};

bool mti_cuda_copy(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    mti_layout<2> l = mti_lay_out(false, y, x);
    if (x->dtype == y->dtype) {
        switch (l.size[0]) {
        case 1: return copy_bits<uint8_t>(ctx, l);
        case 2: return copy_bits<uint16_t>(ctx, l);
        case 4: return copy_bits<uint32_t>(ctx, l);
        default: return copy_bits<uint64_t>(ctx, l);
        }
    }
    bool is_real = mt_dtype_bits(x->dtype).exponent > 0;
    if (!is_real || mt_dtype_bits(y->dtype).exponent == 0)
        return mti_map(ctx, l, mti_convert_op{x->dtype, y->dtype, is_real});
    return mti_for_real(y->dtype, [&](auto to) {
        return mti_for_real(x->dtype, [&](auto from) {
            return mti_map(ctx, l, mti_copy_op<decltype(to), decltype(from)>(), 2u);
        });
    });
}
