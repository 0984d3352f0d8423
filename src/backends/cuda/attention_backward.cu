/* attention_backward.cu: flash attention backward on tensor cores, for bf16 and f16.
 *
 * P = exp(scale q k^T - lse), times the dropout factors F; delta = rowsum(do * o) is given:
 *   dv = (F P)^T do      dS = P (F (do v^T) - delta)      dq = scale dS k      dk = scale dS^T q
 * There are two kernels, so that one block computes each sum in a fixed order, without atomics and
 * without scratch beyond delta. The first assigns keys to blocks: a block loops over the queries of
 * all heads that share its keys, with P^T and dS^T in registers, computed as k q^T and v do^T, so
 * that they are operands of the next products as they are. The second assigns queries to blocks and
 * loops over keys for dq. P and dS are rounded to the 16-bit dtype for the products; sums are f32,
 * rounded once.
 *
 * Work: 14 b a s t d FLOP (half of it causal). One kernel that adds to dq with atomics would need
 * 10, but also s t / (64 or 128) d f32 additions to memory, in no fixed order. The limit is the
 * tensor cores, as in forward; each fragment from shared memory serves 16 or 32 rows: at 128 bytes
 * a cycle that limits the first kernel at d = 128 to about 400 TFLOP/s. Expected: 180 to 240
 * TFLOP/s, counted as the usual 10 b a s t d; not measured yet. */
#include "backends/cuda/attention_mma.cuh"

namespace
{

/* 16-row tiles per warp, and rows of the other operand per step, as many as 255 registers allow. */
template <int D, mti_drop_kind DROP> struct key_owner {
    static constexpr int M = D <= (mti_drops(DROP) ? 32 : 64) ? 2 : 1, STEP = M == 2 ? 32 : 64;
    static constexpr int WARP_ROWS = 16 * M, ROWS = WARP_ROWS * MTI_ATTN_WARPS;
    static constexpr int TILES = 2 * mti_attn_tile<ROWS, D>() + 3 * mti_attn_tile<STEP, D>();
};

template <int D> struct query_owner {
    static constexpr int M = 2, STEP = D <= 32 ? 64 : 32;
    static constexpr int WARP_ROWS = 16 * M, ROWS = WARP_ROWS * MTI_ATTN_WARPS;
    static constexpr int TILES = 2 * mti_attn_tile<ROWS, D>() + 3 * mti_attn_tile<STEP, D>();
};

/* ---- dk and dv ---- */

/* p: scores k q^T of keys j.. and queries i.. in, F P out; ds: do v^T in, dS out. lse (times
 * log2(e), inf for queries that do not exist) and delta belong to the step's queries. */
template <int M, int N, mti_drop_kind DROP>
__device__ __forceinline__ void weights_of_keys(const mti_attn_args &x, const mti_attn_drop &drop,
                                                int head, int i, int j, bool mask,
                                                const float2 *lse, const float2 *delta,
                                                float (&p)[M][N][4], float (&ds)[M][N][4])
{
    int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, c = lane % 4;
    float scale = static_cast<float>(x.scale * MTI_ATTN_LOG2E);
    float keep_scale = static_cast<float>(x.keep_scale);
#pragma unroll
    for (int n = 0; n < N; n++) {
        int query = i + n * 8 + c * 2;
        float2 l = lse[n * 4 + c], de = delta[n * 4 + c];
        int seen[2] = {0, 0};
        if (mask)
            for (int e = 0; e < 2; e++) seen[e] = static_cast<int>(mti_attn_seen(x, query + e));
#pragma unroll
        for (int m = 0; m < M; m++) {
            int key = j + m * 16 + g;
            uint32_t keep =
                mti_drops(DROP)
                    ? mti_attn_keep_tile_t<DROP>(drop, x.t, (x.s * head + query) * x.t + key)
                    : 15u;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float weight = mti_exp2_fast(fmaf(p[m][n][r], scale, -(r % 2 == 0 ? l.x : l.y)));
                if (mask && key + r / 2 * 8 >= seen[r % 2]) weight = 0.0f;
                bool kept = !mti_drops(DROP) || (keep >> r & 1u) != 0;
                float dp = !mti_drops(DROP) ? ds[m][n][r]
                           : kept           ? ds[m][n][r] * keep_scale
                                            : 0.0f;
                ds[m][n][r] = weight * (dp - (r % 2 == 0 ? de.x : de.y));
                p[m][n][r] = kept ? weight : 0.0f;
            }
        }
    }
}

/* For the step at query i: thread q loads lse (times log2(e)) of query i + q, thread STEP + q its
 * delta. */
template <int STEP>
__device__ __forceinline__ float read_sum(const mti_attn_args &x, int head, int i)
{
    int which = static_cast<int>(threadIdx.x) / STEP;
    int query = i + static_cast<int>(threadIdx.x) % STEP;
    bool exists = which < 2 && query < x.s;
    if (which == 0)
        return exists ? static_cast<const float *>(x.lse)[x.s * head + query] *
                            static_cast<float>(MTI_ATTN_LOG2E)
                      : INFINITY;
    return exists ? static_cast<const float *>(x.delta)[x.s * head + query] : 0.0f;
}

/* First query that sees key j, rounded down to a multiple of STEP; may be beyond the last query. */
template <int STEP> __device__ __forceinline__ int first_query(const mti_attn_args &x, int j)
{
    int64_t first = x.causal ? j - (x.t - x.s) : 0;
    return static_cast<int>(first < 0 ? 0 : first > x.s ? x.s : first) / STEP * STEP;
}

template <typename T, int D, mti_drop_kind DROP>
__global__ void __launch_bounds__(MTI_ATTN_THREADS, 2) attention_dk_dv(const mti_attn_args x)
{
    typedef key_owner<D, DROP> own;
    constexpr int M = own::M, STEP = own::STEP, N = STEP / 8, P = mti_attn_pitch<D>();
    constexpr int TILE = mti_attn_tile<STEP, D>();
    MTI_DYNAMIC_SHARED(unsigned char, shared);
    MTI_SHARED(float2, sums[2][2][STEP / 2]); /* of this step and the next: lse, delta */
    T *keys = reinterpret_cast<T *>(shared), *values = keys + mti_attn_tile<own::ROWS, D>();
    T *queries = values + mti_attn_tile<own::ROWS, D>(), *d_out = queries + 2 * TILE;
    int s = static_cast<int>(x.s), t = static_cast<int>(x.t), d = static_cast<int>(x.d);
    int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    mti_attn_place at = mti_attn_place_of(x);
    int block_j = at.tile * own::ROWS; /* starts with the keys that most queries see */
    int group = static_cast<int>(x.group.by), a = static_cast<int>(x.a);
    int j = block_j + warp * own::WARP_ROWS;
    mti_attn_drop drop = mti_attn_read_drop(x);

    mti_attn_fetch<T, own::ROWS, D>(keys, mti_attn_row<T>(x.k, at.b, at.h, block_j), x.k.row,
                                    t - block_j, d);
    mti_attn_fetch<T, own::ROWS, D>(values, mti_attn_row<T>(x.v, at.b, at.h, block_j), x.v.row,
                                    t - block_j, d);
    int first = first_query<STEP>(x, block_j), i = first;
    int h = at.h * group, end = first < s ? h + group : h; /* heads that share the keys */
    if (h < end) {
        mti_attn_fetch<T, STEP, D>(queries, mti_attn_row<T>(x.q, at.b, h, i), x.q.row, s - i, d);
        mti_attn_fetch<T, STEP, D>(d_out, mti_attn_row<T>(x.d_o, at.b, h, i), x.d_o.row, s - i, d);
        if (thread < 2 * STEP)
            reinterpret_cast<float *>(sums[0][thread / STEP])[thread % STEP] =
                read_sum<STEP>(x, at.b * a + h, i);
    }
    mti_cp_async_commit();
    float dk[M][D / 8][4] = {}, dv[M][D / 8][4] = {};
    for (int side = 0; h < end; side ^= 1) {
        int next_i = i + STEP < s ? i + STEP : first, next_h = i + STEP < s ? h : h + 1;
        float p[M][N][4] = {}, ds[M][N][4] = {}, sum = 0.0f;
        mti_cp_async_wait<0>();
        __syncthreads(); /* this step's rows have arrived, the last queries are free */
        if (next_h < end) {
            mti_attn_fetch<T, STEP, D>(queries + (side ^ 1) * TILE,
                                       mti_attn_row<T>(x.q, at.b, next_h, next_i), x.q.row,
                                       s - next_i, d);
            sum = read_sum<STEP>(x, at.b * a + next_h, next_i);
        }
        mti_cp_async_commit();
        mti_attn_dot<T, M, N, D>(p, keys + warp * own::WARP_ROWS * P, queries + side * TILE);
        mti_attn_dot<T, M, N, D>(ds, values + warp * own::WARP_ROWS * P, d_out);
        bool mask = block_j + own::ROWS > mti_attn_seen(x, i);
        weights_of_keys<M, N, DROP>(x, drop, at.b * a + h, i, j, mask, sums[side][0], sums[side][1],
                                    p, ds);
        mti_attn_weigh<T, M, N, D>(dv, p, d_out);
        __syncthreads(); /* the buffer of d_out is free */
        if (next_h < end) {
            mti_attn_fetch<T, STEP, D>(d_out, mti_attn_row<T>(x.d_o, at.b, next_h, next_i),
                                       x.d_o.row, s - next_i, d);
            if (thread < 2 * STEP)
                reinterpret_cast<float *>(sums[side ^ 1][thread / STEP])[thread % STEP] = sum;
        }
        mti_cp_async_commit();
        mti_attn_weigh<T, M, N, D>(dk, ds, queries + side * TILE);
        i = next_i, h = next_h;
    }
    mti_cp_async_wait<0>();
    __syncthreads(); /* all copies into the key and value tiles are done */
    mti_attn_put<T, M, D>(dk, static_cast<float>(x.scale), keys + warp * own::WARP_ROWS * P,
                          mti_attn_row<T>(x.dk, at.b, at.h, j), x.dk.row, t - j, d);
    mti_attn_put<T, M, D>(dv, static_cast<float>(x.keep_scale), values + warp * own::WARP_ROWS * P,
                          mti_attn_row<T>(x.dv, at.b, at.h, j), x.dv.row, t - j, d);
}

/* ---- dq ---- */

/* The statistics of a lane's queries. */
template <int M> struct query_sums {
    float lse[M][2]; /* times log2(e); inf for queries that do not exist */
    float delta[M][2];
};

template <int M>
__device__ __forceinline__ void read_sums(const mti_attn_args &x, int head, int i,
                                          query_sums<M> &sums)
{
    int g = static_cast<int>(threadIdx.x % 32) / 4;
    const float *lse = static_cast<const float *>(x.lse) + x.s * head;
    const float *delta = static_cast<const float *>(x.delta) + x.s * head;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int query = i + m * 16 + r * 8 + g;
            bool exists = query < x.s;
            sums.lse[m][r] = exists ? lse[query] * static_cast<float>(MTI_ATTN_LOG2E) : INFINITY;
            sums.delta[m][r] = exists ? delta[query] : 0.0f;
        }
}

/* ds: dS of queries i.. and keys j.., from the scores q k^T and do v^T. */
template <int M, int N, mti_drop_kind DROP>
__device__ __forceinline__ void weights_of_queries(const mti_attn_args &x,
                                                   const mti_attn_drop &drop, int head, int i,
                                                   int j, bool mask, const query_sums<M> &sums,
                                                   const float (&score)[M][N][4],
                                                   float (&ds)[M][N][4])
{
    int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, c = lane % 4;
    float scale = static_cast<float>(x.scale * MTI_ATTN_LOG2E);
    float keep_scale = static_cast<float>(x.keep_scale);
#pragma unroll
    for (int m = 0; m < M; m++) {
        int query = i + m * 16 + g, seen[2] = {0, 0};
        if (mask)
            for (int r = 0; r < 2; r++) seen[r] = static_cast<int>(mti_attn_seen(x, query + 8 * r));
#pragma unroll
        for (int n = 0; n < N; n++) {
            int key = j + n * 8 + c * 2;
            uint32_t keep =
                mti_drops(DROP)
                    ? mti_attn_keep_tile<DROP>(drop, x.t, (x.s * head + query) * x.t + key)
                    : 15u;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                float weight = mti_exp2_fast(fmaf(score[m][n][r], scale, -sums.lse[m][r / 2]));
                if (mask && key + r % 2 >= seen[r / 2]) weight = 0.0f;
                float dp = ds[m][n][r];
                if (mti_drops(DROP)) dp = keep >> r & 1u ? dp * keep_scale : 0.0f;
                ds[m][n][r] = weight * (dp - sums.delta[m][r / 2]);
            }
        }
    }
}

template <typename T, int D, mti_drop_kind DROP>
__global__ void __launch_bounds__(MTI_ATTN_THREADS, 2) attention_dq(const mti_attn_args x)
{
    typedef query_owner<D> own;
    constexpr int M = own::M, STEP = own::STEP, N = STEP / 8, P = mti_attn_pitch<D>();
    constexpr int TILE = mti_attn_tile<STEP, D>();
    MTI_DYNAMIC_SHARED(unsigned char, shared);
    T *queries = reinterpret_cast<T *>(shared), *d_out = queries + mti_attn_tile<own::ROWS, D>();
    T *keys = d_out + mti_attn_tile<own::ROWS, D>(), *values = keys + 2 * TILE;
    int s = static_cast<int>(x.s), d = static_cast<int>(x.d);
    int warp = static_cast<int>(threadIdx.x) / 32;
    mti_attn_place at = mti_attn_place_of(x);
    /* starts with the last queries of a head, which see most keys */
    int block_i = (static_cast<int>(x.tiles.by) - 1 - at.tile) * own::ROWS;
    int h_kv = static_cast<int>(mti_quotient(static_cast<uint32_t>(at.h), x.group));
    int i = block_i + warp * own::WARP_ROWS;
    int n_queries = min(own::ROWS, s - block_i);
    int seen_by_block = static_cast<int>(mti_attn_seen(x, block_i + n_queries - 1));
    int seen_by_first = static_cast<int>(mti_attn_seen(x, block_i));
    int seen_by_warp = static_cast<int>(mti_attn_seen(x, i + own::WARP_ROWS - 1));
    const T *k = mti_attn_row<T>(x.k, at.b, h_kv, 0), *v = mti_attn_row<T>(x.v, at.b, h_kv, 0);
    mti_attn_drop drop = mti_attn_read_drop(x);
    query_sums<M> sums;
    read_sums<M>(x, at.head, i, sums);

    mti_attn_fetch<T, own::ROWS, D>(queries, mti_attn_row<T>(x.q, at.b, at.h, block_i), x.q.row,
                                    n_queries, d);
    mti_attn_fetch<T, own::ROWS, D>(d_out, mti_attn_row<T>(x.d_o, at.b, at.h, block_i), x.d_o.row,
                                    n_queries, d);
    if (seen_by_block > 0) {
        mti_attn_fetch<T, STEP, D>(keys, k, x.k.row, seen_by_block, d);
        mti_attn_fetch<T, STEP, D>(values, v, x.v.row, seen_by_block, d);
    }
    mti_cp_async_commit();
    float dq[M][D / 8][4] = {};
    for (int j = 0, side = 0; j < seen_by_block; j += STEP, side ^= 1) {
        int next = j + STEP;
        bool busy = j < seen_by_warp; /* this warp's queries see some of these keys */
        float score[M][N][4] = {}, ds[M][N][4] = {};
        mti_cp_async_wait<0>();
        __syncthreads(); /* this step's rows have arrived, the last keys are free */
        if (next < seen_by_block)
            mti_attn_fetch<T, STEP, D>(keys + (side ^ 1) * TILE, k + next * x.k.row, x.k.row,
                                       seen_by_block - next, d);
        mti_cp_async_commit();
        if (busy) {
            mti_attn_dot<T, M, N, D>(score, queries + warp * own::WARP_ROWS * P,
                                     keys + side * TILE);
            mti_attn_dot<T, M, N, D>(ds, d_out + warp * own::WARP_ROWS * P, values);
        }
        __syncthreads(); /* the buffer of the values is free */
        if (next < seen_by_block)
            mti_attn_fetch<T, STEP, D>(values, v + next * x.v.row, x.v.row, seen_by_block - next,
                                       d);
        mti_cp_async_commit();
        if (busy) {
            weights_of_queries<M, N, DROP>(x, drop, at.head, i, j, next > seen_by_first, sums,
                                           score, ds);
            mti_attn_weigh<T, M, N, D>(dq, ds, keys + side * TILE);
        }
    }
    mti_cp_async_wait<0>();
    __syncthreads(); /* all copies into the query tile are done */
    mti_attn_put<T, M, D>(dq, static_cast<float>(x.scale), queries + warp * own::WARP_ROWS * P,
                          mti_attn_row<T>(x.dq, at.b, at.h, i), x.dq.row, s - i, d);
}

/* ---- launching ---- */

/* Launches KERNEL over tiles of `rows` of the n rows of each of b * heads heads. */
template <typename T, void (*KERNEL)(const mti_attn_args)>
bool launch(mti_ctx *ctx, const mti_attn_args &x, int64_t n, int rows, int64_t heads, int elements)
{
    size_t shared = sizeof(T) * static_cast<size_t>(elements);
    int64_t tiles = (n + rows - 1) / rows, blocks = tiles * x.b * heads;
    return blocks == 0 || (mti_attn_allow_shared<KERNEL>(ctx, shared) &&
                           MTI_LAUNCH(ctx, KERNEL, static_cast<unsigned>(blocks),
                                      MTI_ATTN_THREADS, shared, mti_attn_grid(x, tiles, heads)));
}

template <typename T, int D, mti_drop_kind DROP> bool both(mti_ctx *ctx, const mti_attn_args &x)
{
    typedef key_owner<D, DROP> keys;
    typedef query_owner<D> queries;
    return launch<T, attention_dk_dv<T, D, DROP>>(ctx, x, x.t, keys::ROWS, x.a_kv, keys::TILES) &&
           launch<T, attention_dq<T, D, DROP>>(ctx, x, x.s, queries::ROWS, x.a, queries::TILES);
}

template <typename T, int D> bool by_drop(mti_ctx *ctx, const mti_attn_args &x)
{
    switch (mti_attn_drop_kind(x)) {
    case MTI_DROP_NONE: return both<T, D, MTI_DROP_NONE>(ctx, x);
    case MTI_DROP_ANY: return both<T, D, MTI_DROP_ANY>(ctx, x);
    default: return both<T, D, MTI_DROP_QUADS>(ctx, x);
    }
}

template <typename T> bool by_width(mti_ctx *ctx, const mti_attn_args &x)
{
    if (x.d <= 32) return by_drop<T, 32>(ctx, x);
    if (x.d <= 64) return by_drop<T, 64>(ctx, x);
    if (x.d <= 80) return by_drop<T, 80>(ctx, x);
    if (x.d <= 96) return by_drop<T, 96>(ctx, x);
    return by_drop<T, 128>(ctx, x);
}

} // namespace

bool mti_attn_backward_tensor(mti_ctx *ctx, const mti_attn_args &x, mt_dtype dtype)
{
    return dtype == MT_BF16 ? by_width<__nv_bfloat16>(ctx, x) : by_width<__half>(ctx, x);
}
