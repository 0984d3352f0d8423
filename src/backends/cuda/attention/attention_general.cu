/* attention_general.cu: flash attention with plain multiply-adds: f32, f64, and 16-bit floats of
 * shapes that the tensor-core path does not take (computed in f32, without rounding in between).
 *
 * The same three kernels as on tensor cores, from two building blocks: `dot` computes a 64 x 64
 * tile A B^T of scores, 16 columns of d at a time, and `weigh` adds a tile of weights times
 * values to the outputs, 16 rows at a time. A block of 256 threads is a 16 x 16 square; thread
 * (y, x) holds rows 4 y + r and columns x + 16 c of a tile. A block computes at most 128 columns
 * of its output; a wider head takes more blocks, each of which recomputes the scores.
 *
 * Work: as on tensor cores, at d <= 128; the limit is the multiply-adds, with two loads from shared
 * memory per eight of them. */
#include "backends/cuda/attention/attention.cuh"

namespace
{

constexpr int TILE = 64, SIDE = 16, THREADS = SIDE * SIDE, ROWS = TILE / SIDE, DEPTH = 16;
constexpr int PITCH = DEPTH + 1, WEIGHT_PITCH = TILE + 1;

/* a b, rounded before anything is subtracted: a score is the same bits in backward, and where it is
 * all of lse, exp(score - lse) is exactly 1. */
__device__ __forceinline__ float score_of(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double score_of(double a, double b) { return __dmul_rn(a, b); }

/* Shared memory of a block; W is the width of its outputs. */
template <typename R, int W> struct room {
    R a[TILE * PITCH], b[TILE * PITCH]; /* for dot: DEPTH columns of both operands */
    R rows[DEPTH * W];                  /* for weigh */
    R weight[2][TILE * WEIGHT_PITCH];
};

/* n consecutive rows of one head, `row` elements apart. */
template <typename T> struct span {
    const T *data;
    int64_t row;
    int n;
};

template <typename T>
__device__ __forceinline__ span<T> span_of(const mti_attn_rows &v, int64_t b, int64_t h, int64_t i,
                                           int64_t n)
{
    int64_t n_left = n - i;
    return {mti_attn_row<T>(v, b, h, i), v.row, static_cast<int>(n_left < TILE ? n_left : TILE)};
}

/* acc = A B^T over all d columns. */
template <typename T, typename R, int W>
__device__ void dot(room<R, W> &m, const span<T> &a, const span<T> &b, int64_t d,
                    R (&acc)[ROWS][ROWS])
{
    int thread = static_cast<int>(threadIdx.x), y = thread / SIDE, x = thread % SIDE;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < ROWS; c++) acc[r][c] = 0;
    for (int64_t k = 0; k < d; k += DEPTH) {
        bool inside = k + x < d;
        __syncthreads(); /* the previous columns are used up */
#pragma unroll
        for (int r = y; r < TILE; r += SIDE) {
            m.a[r * PITCH + x] = inside && r < a.n ? R(mti_widen(a.data[r * a.row + k + x])) : R(0);
            m.b[r * PITCH + x] = inside && r < b.n ? R(mti_widen(b.data[r * b.row + k + x])) : R(0);
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < DEPTH; e++) {
            R va[ROWS], vb[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                va[r] = m.a[(y * ROWS + r) * PITCH + e];
                vb[r] = m.b[(x + r * SIDE) * PITCH + e];
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < ROWS; c++) acc[r][c] += va[r] * vb[c];
        }
    }
}

/* acc += weights times columns [from, from + W) of `rows`, d columns wide. The weights are a
 * tile in shared memory, complete after the first barrier; they are used until the next dot's
 * first. */
template <typename T, typename R, int W>
__device__ void weigh(room<R, W> &m, const R *weight, const span<T> &rows, int64_t from, int64_t d,
                      R (&acc)[ROWS][W / SIDE])
{
    int thread = static_cast<int>(threadIdx.x), y = thread / SIDE, x = thread % SIDE;
    for (int k = 0; k < rows.n; k += DEPTH) {
        __syncthreads(); /* the previous rows are used up */
#pragma unroll
        for (int c = x; c < W; c += SIDE)
            m.rows[y * W + c] = k + y < rows.n && from + c < d
                                    ? R(mti_widen(rows.data[(k + y) * rows.row + from + c]))
                                    : R(0);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < DEPTH; e++) {
            R w[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; r++) w[r] = weight[(y * ROWS + r) * WEIGHT_PITCH + k + e];
#pragma unroll
            for (int c = 0; c < W / SIDE; c++) {
                R v = m.rows[e * W + x + c * SIDE];
#pragma unroll
                for (int r = 0; r < ROWS; r++) acc[r][c] += w[r] * v;
            }
        }
    }
}

/* Stores the first n rows of acc, times factor, in columns [from, from + W) of rows of `to`. */
template <typename T, typename R, int W>
__device__ void put(const R (&acc)[ROWS][W / SIDE], R factor, T *to, int64_t row, int64_t n,
                    int64_t from, int64_t d)
{
    int thread = static_cast<int>(threadIdx.x), y = thread / SIDE, x = thread % SIDE;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < W / SIDE; c++) {
            int64_t column = from + x + c * SIDE;
            if (y * ROWS + r < n && column < d)
                to[(y * ROWS + r) * row + column] = mti_narrow<T>(acc[r][c] * factor);
        }
}

/* The maximum over the 16 threads that share rows. */
template <typename R> __device__ __forceinline__ R row_max(R value)
{
    for (int bit = SIDE / 2; bit > 0; bit /= 2) {
        R other = __shfl_xor_sync(0xffffffffu, value, bit);
        value = other > value ? other : value;
    }
    return value;
}

template <typename R> __device__ __forceinline__ R row_sum(R value)
{
    for (int bit = SIDE / 2; bit > 0; bit /= 2) value += __shfl_xor_sync(0xffffffffu, value, bit);
    return value;
}

/* The tile, head and columns of the output that a block computes. */
struct piece {
    int64_t first, head, from; /* row; b * heads + h; column */
};

__device__ __forceinline__ piece piece_of(int64_t rows, int64_t d, int width, bool last_first)
{
    int64_t tiles = (rows + TILE - 1) / TILE, parts = d > width ? (d + width - 1) / width : 1;
    int64_t rest = blockIdx.x;
    int64_t part = rest % parts, tile = rest / parts % tiles;
    return {(last_first ? tiles - 1 - tile : tile) * TILE, rest / parts / tiles, part * width};
}

/* ---- forward ---- */

template <typename T, int W>
__global__ void __launch_bounds__(THREADS) attention_forward_general(const mti_attn_args x)
{
    typedef mti_wide<T> R;
    MTI_DYNAMIC_SHARED(unsigned char, shared);
    room<R, W> &m = *reinterpret_cast<room<R, W> *>(shared);
    int thread = static_cast<int>(threadIdx.x), y = thread / SIDE, col = thread % SIDE;
    piece p = piece_of(x.s, x.e, W, true);
    int64_t b = p.head / x.a, h = p.head % x.a, h_kv = h / (x.a / x.a_kv);
    int64_t last = p.first + TILE < x.s ? p.first + TILE - 1 : x.s - 1;
    int64_t n = mti_attn_seen(x, last);
    span<T> q = span_of<T>(x.q, b, h, p.first, x.s);
    mti_attn_drop drop = mti_attn_read_drop(x);
    R out[ROWS][W / SIDE] = {}, max[ROWS], sum[ROWS], scale = R(x.scale);
    /* a sink is a score seen before the first key's */
    for (int r = 0; r < ROWS; r++)
        max[r] = mti_attn_sink<T>(x, h), sum[r] = x.sinks == NULL ? R(0) : R(1);
    for (int64_t j = mti_attn_first(x, p.first) / TILE * TILE; j < n; j += TILE) {
        R score[ROWS][ROWS];
        dot(m, q, span_of<T>(x.k, b, h_kv, j, n), x.d, score);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            int64_t i = p.first + y * ROWS + r, seen = mti_attn_seen(x, i),
                    hidden = mti_attn_first(x, i), first = (p.head * x.s + i) * x.t;
            R new_max = max[r], total = 0;
#pragma unroll
            for (int c = 0; c < ROWS; c++) {
                int64_t key = j + col + c * SIDE;
                score[r][c] =
                    key >= hidden && key < seen ? score_of(score[r][c], scale) : -R(INFINITY);
                new_max = score[r][c] > new_max ? score[r][c] : new_max;
            }
            new_max = row_max(new_max);
            /* no key seen so far: subtract 0, so that weights are exp(-inf) and not NaN */
            R base = new_max > -R(INFINITY) ? new_max : R(0), shrink = mti_exp_below(max[r] - base);
#pragma unroll
            for (int c = 0; c < ROWS; c++) {
                int64_t key = j + col + c * SIDE;
                R weight = mti_exp_below(score[r][c] - base);
                total += weight;
                if (x.seed != NULL && i < x.s && key < seen && !mti_attn_keep(drop, first + key))
                    weight = 0;
                m.weight[0][(y * ROWS + r) * WEIGHT_PITCH + col + c * SIDE] = weight;
            }
            max[r] = new_max;
            sum[r] = sum[r] * shrink + row_sum(total);
#pragma unroll
            for (int c = 0; c < W / SIDE; c++) out[r][c] *= shrink;
        }
        weigh(m, m.weight[0], span_of<T>(x.v, b, h_kv, j, n), p.from, x.e, out);
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        int64_t i = p.first + y * ROWS + r;
        R factor = sum[r] == 0 ? R(0) : R(x.keep_scale) / sum[r];
        for (int c = 0; c < W / SIDE; c++) out[r][c] *= factor;
        if (x.lse != NULL && p.from == 0 && col == 0 && i < x.s)
            static_cast<R *>(x.lse)[p.head * x.s + i] =
                sum[r] == 0 ? -R(INFINITY) : max[r] + mti_log_of(sum[r]);
    }
    put<T, R, W>(out, R(1), mti_attn_row<T>(x.o, b, h, p.first), x.o.row, x.s - p.first, p.from,
                 x.e);
}

/* ---- backward ---- */

/* P and dS of one query and one key, from q k^T and do v^T; F P in *p. */
template <typename R>
__device__ __forceinline__ void weights_of_pair(const mti_attn_args &x, const mti_attn_drop &drop,
                                                int64_t head, int64_t i, int64_t j, R *p, R *ds)
{
    if (i >= x.s || j >= mti_attn_seen(x, i) || j < mti_attn_first(x, i)) {
        *p = *ds = 0;
        return;
    }
    int64_t query = head * x.s + i;
    R weight = mti_exp_below(score_of(*p, R(x.scale)) - static_cast<const R *>(x.lse)[query]);
    R keep = x.seed == NULL ? R(1) : mti_attn_keep(drop, query * x.t + j) ? R(x.keep_scale) : R(0);
    *p = keep * weight;
    *ds = weight * (keep * *ds - static_cast<const R *>(x.delta)[query]);
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS) attention_dk_dv_general(const mti_attn_args x)
{
    typedef mti_wide<T> R;
    MTI_DYNAMIC_SHARED(unsigned char, shared);
    room<R, W> &m = *reinterpret_cast<room<R, W> *>(shared);
    int thread = static_cast<int>(threadIdx.x), y = thread / SIDE, col = thread % SIDE;
    piece p = piece_of(x.t, x.d > x.e ? x.d : x.e, W, false);
    int64_t group = x.a / x.a_kv, b = p.head / x.a_kv, h_kv = p.head % x.a_kv;
    int64_t first = x.causal ? p.first - (x.t - x.s) : 0; /* the first query that sees a key */
    first = first < 0 ? 0 : first / TILE * TILE;
    int64_t past = mti_attn_past(x, p.first + TILE);
    span<T> k = span_of<T>(x.k, b, h_kv, p.first, x.t), v = span_of<T>(x.v, b, h_kv, p.first, x.t);
    mti_attn_drop drop = mti_attn_read_drop(x);
    R dk[ROWS][W / SIDE] = {}, dv[ROWS][W / SIDE] = {};
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++)
        for (int64_t i = first; i < past; i += TILE) {
            span<T> q = span_of<T>(x.q, b, h, i, x.s), d_o = span_of<T>(x.d_o, b, h, i, x.s);
            R weight[ROWS][ROWS], ds[ROWS][ROWS];
            dot(m, k, q, x.d, weight);
            dot(m, v, d_o, x.e, ds);
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int c = 0; c < ROWS; c++) {
                    int at = (y * ROWS + r) * WEIGHT_PITCH + col + c * SIDE;
                    weights_of_pair(x, drop, b * x.a + h, i + col + c * SIDE,
                                    p.first + y * ROWS + r, &weight[r][c], &ds[r][c]);
                    m.weight[0][at] = weight[r][c], m.weight[1][at] = ds[r][c];
                }
            weigh(m, m.weight[0], d_o, p.from, x.e, dv);
            weigh(m, m.weight[1], q, p.from, x.d, dk);
        }
    put<T, R, W>(dk, R(x.scale), mti_attn_row<T>(x.dk, b, h_kv, p.first), x.dk.row, x.t - p.first,
                 p.from, x.d);
    put<T, R, W>(dv, R(1), mti_attn_row<T>(x.dv, b, h_kv, p.first), x.dv.row, x.t - p.first, p.from,
                 x.e);
}

template <typename T, int W>
__global__ void __launch_bounds__(THREADS) attention_dq_general(const mti_attn_args x)
{
    typedef mti_wide<T> R;
    MTI_DYNAMIC_SHARED(unsigned char, shared);
    room<R, W> &m = *reinterpret_cast<room<R, W> *>(shared);
    int thread = static_cast<int>(threadIdx.x), y = thread / SIDE, col = thread % SIDE;
    piece p = piece_of(x.s, x.d, W, true);
    int64_t b = p.head / x.a, h = p.head % x.a, h_kv = h / (x.a / x.a_kv);
    int64_t last = p.first + TILE < x.s ? p.first + TILE - 1 : x.s - 1;
    int64_t n = mti_attn_seen(x, last);
    span<T> q = span_of<T>(x.q, b, h, p.first, x.s), d_o = span_of<T>(x.d_o, b, h, p.first, x.s);
    mti_attn_drop drop = mti_attn_read_drop(x);
    R dq[ROWS][W / SIDE] = {};
    for (int64_t j = mti_attn_first(x, p.first) / TILE * TILE; j < n; j += TILE) {
        span<T> k = span_of<T>(x.k, b, h_kv, j, n), v = span_of<T>(x.v, b, h_kv, j, n);
        R weight[ROWS][ROWS], ds[ROWS][ROWS];
        dot(m, q, k, x.d, weight);
        dot(m, d_o, v, x.e, ds);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int c = 0; c < ROWS; c++) {
                weights_of_pair(x, drop, p.head, p.first + y * ROWS + r, j + col + c * SIDE,
                                &weight[r][c], &ds[r][c]);
                m.weight[0][(y * ROWS + r) * WEIGHT_PITCH + col + c * SIDE] = ds[r][c];
            }
        weigh(m, m.weight[0], k, p.from, x.d, dq);
    }
    put<T, R, W>(dq, R(x.scale), mti_attn_row<T>(x.dq, b, h, p.first), x.dq.row, x.s - p.first,
                 p.from, x.d);
}

/* ---- launching ---- */

/* Launches KERNEL for n rows of each of `heads` heads, d wide. */
template <typename T, int W, void (*KERNEL)(const mti_attn_args)>
bool launch(mti_ctx *ctx, const mti_attn_args &x, int64_t n, int64_t heads, int64_t d)
{
    int64_t parts = d > W ? (d + W - 1) / W : 1, blocks = (n + TILE - 1) / TILE * heads * parts;
    size_t shared = sizeof(room<mti_wide<T>, W>);
    return blocks == 0 || (mti_attn_allow_shared<KERNEL>(ctx, shared) &&
                           MTI_LAUNCH(ctx, KERNEL, mti_blocks(blocks), THREADS, shared, x));
}

template <typename T, int W> bool forward(mti_ctx *ctx, const mti_attn_args &x)
{
    return launch<T, W, attention_forward_general<T, W>>(ctx, x, x.s, x.b * x.a, x.e);
}

template <typename T, int W> bool backward(mti_ctx *ctx, const mti_attn_args &x)
{
    return launch<T, W, attention_dk_dv_general<T, W>>(ctx, x, x.t, x.b * x.a_kv,
                                                       x.d > x.e ? x.d : x.e) &&
           launch<T, W, attention_dq_general<T, W>>(ctx, x, x.s, x.b * x.a, x.d);
}

} // namespace

bool mti_attn_forward_general(mti_ctx *ctx, const mti_attn_args &x, mt_dtype dtype)
{
    return mti_for_float(dtype, [&](auto type) {
        typedef decltype(type) T;
        return x.d <= 64 ? forward<T, 64>(ctx, x) : forward<T, 128>(ctx, x);
    });
}

bool mti_attn_backward_general(mti_ctx *ctx, const mti_attn_args &x, mt_dtype dtype)
{
    return mti_for_float(dtype, [&](auto type) {
        typedef decltype(type) T;
        return x.d <= 64 ? backward<T, 64>(ctx, x) : backward<T, 128>(ctx, x);
    });
}
