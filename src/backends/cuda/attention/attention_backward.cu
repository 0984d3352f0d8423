/* attention_backward.cu: flash attention backward on tensor cores, for bf16 and f16.
 *
 * Dao 2023, "FlashAttention-2". P = exp(scale q k^T - lse), times the dropout factors F;
 * delta = rowsum(do * o) is given:
 *   dv = (F P)^T do      dS = P (F (do v^T) - delta)      dq = scale dS k      dk = scale dS^T q
 * A block has keys, a warp 16 or 32 of them, and loops over the queries of all heads that share the
 * keys. P^T and dS^T are computed as k q^T and v do^T, so that they are operands of the products
 * for dk and dv as they are. For dq, dS^T passes through shared memory. P and dS are rounded to the
 * 16-bit dtype for the products; sums are f32, rounded once.
 *
 * dq is a sum over blocks. They add to it in f32, in scratch, and take turns: a counter per tile of
 * queries says how many have added, so the order is fixed, and with it the bits. The block with
 * the last keys goes first; under a causal mask it also starts at the last queries, so a block
 * finds its turn come when it arrives. The last block, which has the first keys, adds what is there
 * to its own and stores dq. Blocks are numbered by a ticket in the order in which they start: one
 * waits only for blocks with lower numbers, which run already.
 *
 * Work: 10 b a s t d FLOP (half of it causal). The limits are the tensor cores, as in forward, and
 * shared memory, of which a fragment serves 16 or 32 rows. dq's sums are added to in L2, once for
 * every block of keys. */
#include "backends/cuda/attention/attention_mma.cuh"

namespace
{

/* The shape of a block's tiles, as large as 255 registers allow. */
template <int D, mti_drop_kind DROP> struct tiles {
    static constexpr int M = D <= (mti_drops(DROP) ? 32 : 64) ? 2 : 1; /* 16 keys each, per warp */
    static constexpr int WARP_KEYS = 16 * M, KEYS = WARP_KEYS * MTI_ATTN_WARPS;
    static constexpr int STEP = M == 2 ? 32 : 64; /* queries */
    static constexpr int DS_PITCH = STEP + 8;     /* of dS^T in shared memory */
    static constexpr int ELEMENTS = 2 * mti_attn_tile<KEYS, D>() + 3 * mti_attn_tile<STEP, D>() +
                                    KEYS * DS_PITCH; /* of shared memory */
    /* dq: this many warps share the queries, the others the columns; a warp's 16 x 8 pieces */
    static constexpr int Q_WARPS = D % 32 == 0 ? 2 : 4;
    static constexpr int Q_M = STEP / 16 / Q_WARPS, Q_N = D / 8 * Q_WARPS / MTI_ATTN_WARPS;
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
    float scale = static_cast<float>(x.scale * MTI_LOG2E);
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
                if (mask && mti_attn_hidden(x, seen[r % 2], key + r / 2 * 8)) weight = 0.0f;
                bool kept = !mti_drops(DROP) || (keep >> r & 1u) != 0;
                float dp = !mti_drops(DROP) ? ds[m][n][r] : kept ? ds[m][n][r] * keep_scale : 0.0f;
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
                            static_cast<float>(MTI_LOG2E)
                      : INFINITY;
    return exists ? static_cast<const float *>(x.delta)[x.s * head + query] : 0.0f;
}

/* First query that sees key j, rounded down to a multiple of STEP; may be beyond the last query. */
template <int STEP> __device__ __forceinline__ int first_query(const mti_attn_args &x, int j)
{
    int64_t first = x.causal ? j - (x.t - x.s) : 0;
    return static_cast<int>(first < 0 ? 0 : first > x.s ? x.s : first) / STEP * STEP;
}

/* ---- dq, by turns ---- */

/* A tile of queries, and this block's place among those that add to its dq. */
struct turn {
    int tile; /* of all heads together */
    int rank; /* 0: first */
    bool last;
};

/* For the tile at query i; n: the number of this block's keys. The first in turn has the last keys
 * that a query of the tile sees, the last one the first. */
template <int KEYS, int STEP>
__device__ __forceinline__ turn turn_at(const mti_attn_args &x, int head, int i, int n)
{
    int seen = static_cast<int>(mti_attn_seen(x, i + STEP - 1));
    int tiles = (static_cast<int>(x.s) + STEP - 1) / STEP;
    return {head * tiles + i / STEP, (seen - 1) / KEYS - n,
            n == static_cast<int>(mti_attn_first(x, i)) / KEYS};
}

/* acc[m][n] += dS K, for the warp's queries and columns: `ds` is dS^T from the warp's first query
 * on, `keys` begins at its first column. */
template <typename T, typename S, int D>
__device__ __forceinline__ void query_product(float (&acc)[S::Q_M][S::Q_N][4], const T *ds,
                                              const T *keys)
{
    constexpr int P = mti_attn_pitch<D>();
    int lane = static_cast<int>(threadIdx.x % 32);
    const T *my_ds = ds + (lane / 16 * 8 + lane % 8) * S::DS_PITCH + lane / 8 % 2 * 8;
    const T *my_keys = keys + lane % 16 * P + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < S::KEYS; k += 16) {
        uint32_t fa[S::Q_M][4];
#pragma unroll
        for (int m = 0; m < S::Q_M; m++)
            mti_ldmatrix_x4_trans(fa[m], my_ds + k * S::DS_PITCH + m * 16);
#pragma unroll
        for (int n = 0; n < S::Q_N; n += 2) {
            uint32_t fb[4];
            mti_ldmatrix_x4_trans(fb, my_keys + k * P + n * 8);
#pragma unroll
            for (int m = 0; m < S::Q_M; m++) {
                mti_attn_half<T>::mma(acc[m][n], fa[m], fb);
                mti_attn_half<T>::mma(acc[m][n + 1], fa[m], fb + 2);
            }
        }
    }
}

/* Stores dS^T, in the layout of accumulators, at `to`: the warp's first row. */
template <typename T, int M, int N, int PITCH>
__device__ __forceinline__ void put_ds(const float (&ds)[M][N][4], T *to)
{
    int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, c = lane % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int r = 0; r < 2; r++)
                *mti_at<uint32_t>(to + (m * 16 + r * 8 + g) * PITCH + n * 8 + c * 2) =
                    mti_attn_half<T>::pack(ds[m][n][2 * r], ds[m][n][2 * r + 1]);
}

/* Adds the warp's part of a tile to dq's sums, or, the last in turn, to what is there, and stores
 * dq of queries i.. and columns from `column` on. In the sums the tile is laid out as the lanes
 * have it. */
template <typename T, typename S>
__device__ __forceinline__ void add_dq(const mti_attn_args &x, const turn &now,
                                       float (&acc)[S::Q_M][S::Q_N][4], int b, int h, int i,
                                       int column)
{
    int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, c = lane % 4;
    float4 *sums = mti_at<float4>(x.dq_sums) +
                   (static_cast<int64_t>(now.tile) * MTI_ATTN_WARPS + threadIdx.x / 32) *
                       (S::Q_M * S::Q_N * 32) +
                   lane;
    float scale = static_cast<float>(x.scale);
#pragma unroll
    for (int m = 0; m < S::Q_M; m++)
#pragma unroll
        for (int n = 0; n < S::Q_N; n++) {
            float *mine = acc[m][n];
            float4 *sum = sums + (m * S::Q_N + n) * 32;
            if (!now.last) {
                float4 part = make_float4(mine[0], mine[1], mine[2], mine[3]);
                if (now.rank == 0)
                    *sum = part;
                else
                    mti_add_in_turn(sum, part);
                continue;
            }
            if (now.rank != 0) {
                float4 others = __ldcg(sum);
                mine[0] += others.x, mine[1] += others.y;
                mine[2] += others.z, mine[3] += others.w;
            }
            int col = column + n * 8 + c * 2;
#pragma unroll
            for (int r = 0; r < 2; r++) {
                int query = i + m * 16 + r * 8 + g;
                if (query < x.s && col < x.d)
                    *mti_at<uint32_t>(mti_attn_row<T>(x.dq, b, h, query) + col) =
                        mti_attn_half<T>::pack(mine[2 * r] * scale, mine[2 * r + 1] * scale);
            }
        }
}

/* dq of queries [0, n) of the heads that share the keys: they see no key. */
template <typename T>
__device__ __forceinline__ void zero_dq(const mti_attn_args &x, const mti_attn_place &at, int n)
{
    int pieces = static_cast<int>(x.d) / 8, group = static_cast<int>(x.group.by);
    for (int h = at.h * group; h < (at.h + 1) * group; h++)
        for (int e = static_cast<int>(threadIdx.x); e < n * pieces; e += MTI_ATTN_THREADS)
            *mti_at<uint4>(mti_attn_row<T>(x.dq, at.b, h, e / pieces) + e % pieces * 8) =
                make_uint4(0, 0, 0, 0);
}

/* ---- the kernel ---- */

template <typename T, int D, mti_drop_kind DROP>
__global__ void __launch_bounds__(MTI_ATTN_THREADS, 2) attention_backward(const mti_attn_args x)
{
    typedef tiles<D, DROP> own;
    constexpr int M = own::M, STEP = own::STEP, N = STEP / 8, P = mti_attn_pitch<D>();
    constexpr int TILE = mti_attn_tile<STEP, D>();
    MTI_DYNAMIC_SHARED(unsigned char, shared);
    MTI_SHARED(float2, sums[2][2][STEP / 2]); /* of this step and the next: lse, delta */
    MTI_SHARED(unsigned, ticket[1]);
    T *keys = reinterpret_cast<T *>(shared), *values = keys + mti_attn_tile<own::KEYS, D>();
    T *queries = values + mti_attn_tile<own::KEYS, D>(), *d_out = queries + 2 * TILE;
    T *all_ds = d_out + TILE;
    int s = static_cast<int>(x.s), t = static_cast<int>(x.t), d = static_cast<int>(x.d);
    int thread = static_cast<int>(threadIdx.x), warp = thread / 32;
    if (thread == 0) ticket[0] = atomicAdd(x.turns, 1u);
    __syncthreads();
    /* within the grid, even where a test takes the barrier away */
    mti_attn_place at = mti_attn_place_of(x, min(ticket[0], gridDim.x - 1));
    int number = static_cast<int>(x.tiles.by) - 1 - at.tile; /* starts with the last keys */
    int block_j = number * own::KEYS;
    int group = static_cast<int>(x.group.by), a = static_cast<int>(x.a);
    int j = block_j + warp * own::WARP_KEYS;
    int q_row = warp % own::Q_WARPS * own::Q_M * 16, q_column = warp / own::Q_WARPS * own::Q_N * 8;
    int taken = -1; /* the tile whose turn this block passes on */
    mti_attn_drop drop = mti_attn_read_drop(x);

    mti_attn_fetch<T, own::KEYS, D>(keys, mti_attn_row<T>(x.k, at.b, at.h, block_j), x.k.row,
                                    t - block_j, d);
    mti_attn_fetch<T, own::KEYS, D>(values, mti_attn_row<T>(x.v, at.b, at.h, block_j), x.v.row,
                                    t - block_j, d);
    int first = first_query<STEP>(x, block_j), i = first;
    int past = min(s, block_j + own::KEYS + x.past);
    int h = at.h * group, end = first < past ? h + group : h; /* heads that share the keys */
    if (h < end) {
        mti_attn_fetch<T, STEP, D>(queries, mti_attn_row<T>(x.q, at.b, h, i), x.q.row, s - i, d);
        mti_attn_fetch<T, STEP, D>(d_out, mti_attn_row<T>(x.d_o, at.b, h, i), x.d_o.row, s - i, d);
        if (thread < 2 * STEP)
            reinterpret_cast<float *>(sums[0][thread / STEP])[thread % STEP] =
                read_sum<STEP>(x, at.b * a + h, i);
    }
    mti_cp_async_commit();
    if (number == 0) zero_dq<T>(x, at, first);
    float dk[M][D / 8][4] = {}, dv[M][D / 8][4] = {};
    for (int side = 0; h < end; side ^= 1) {
        bool more = i + STEP < past;
        int next_i = more ? i + STEP : first, next_h = more ? h : h + 1;
        float p[M][N][4] = {}, ds[M][N][4] = {}, sum = 0.0f;
        mti_cp_async_wait<0>();
        __syncthreads(); /* this step's rows have arrived, the last queries and dS are free */
        if (taken >= 0 && thread == 0) mti_pass_turn(x.turns + 1 + taken);
        if (next_h < end) {
            mti_attn_fetch<T, STEP, D>(queries + (side ^ 1) * TILE,
                                       mti_attn_row<T>(x.q, at.b, next_h, next_i), x.q.row,
                                       s - next_i, d);
            sum = read_sum<STEP>(x, at.b * a + next_h, next_i);
        }
        mti_cp_async_commit();
        mti_attn_dot<T, M, N, D>(p, keys + warp * own::WARP_KEYS * P, queries + side * TILE);
        mti_attn_dot<T, M, N, D>(ds, values + warp * own::WARP_KEYS * P, d_out);
        bool mask = block_j + own::KEYS > mti_attn_seen(x, i) || x.window != 0;
        weights_of_keys<M, N, DROP>(x, drop, at.b * a + h, i, j, mask, sums[side][0], sums[side][1],
                                    p, ds);
        put_ds<T, M, N, own::DS_PITCH>(ds, all_ds + warp * own::WARP_KEYS * own::DS_PITCH);
        mti_attn_weigh<T, M, N, D>(dv, p, d_out);
        mti_attn_weigh<T, M, N, D>(dk, ds, queries + side * TILE);
        turn now = turn_at<own::KEYS, STEP>(x, at.b * a + h, i, number);
        if (now.rank != 0 && thread == 0) mti_await_turn(x.turns + 1 + now.tile, now.rank);
        __syncthreads(); /* the buffer of d_out is free, dS is there, and it is our turn */
        if (next_h < end) {
            mti_attn_fetch<T, STEP, D>(d_out, mti_attn_row<T>(x.d_o, at.b, next_h, next_i),
                                       x.d_o.row, s - next_i, d);
            if (thread < 2 * STEP)
                reinterpret_cast<float *>(sums[side ^ 1][thread / STEP])[thread % STEP] = sum;
        }
        mti_cp_async_commit();
        float dq[own::Q_M][own::Q_N][4] = {};
        query_product<T, own, D>(dq, all_ds + q_row, keys + q_column);
        add_dq<T, own>(x, now, dq, at.b, h, i + q_row, q_column);
        taken = now.last ? -1 : now.tile;
        i = next_i, h = next_h;
    }
    mti_cp_async_wait<0>();
    __syncthreads(); /* all copies into the key and value tiles are done, the keys are free */
    if (taken >= 0 && thread == 0) mti_pass_turn(x.turns + 1 + taken);
    mti_attn_put<T, M, D>(dk, static_cast<float>(x.scale), keys + warp * own::WARP_KEYS * P,
                          mti_attn_row<T>(x.dk, at.b, at.h, j), x.dk.row, t - j, d);
    mti_attn_put<T, M, D>(dv, static_cast<float>(x.keep_scale), values + warp * own::WARP_KEYS * P,
                          mti_attn_row<T>(x.dv, at.b, at.h, j), x.dv.row, t - j, d);
}

/* ---- launching ---- */

/* What scratch holds besides delta: dq's sums, then the ticket and the turns. */
struct beside_delta {
    int64_t blocks; /* of keys, per head; without keys one, which sets dq to 0 */
    size_t sums, turns;
};

template <typename S, int D> beside_delta parts_of(const mti_attn_args &x)
{
    int64_t tiles = x.b * x.a * ((x.s + S::STEP - 1) / S::STEP);
    beside_delta r = {x.t <= S::KEYS ? 1 : (x.t + S::KEYS - 1) / S::KEYS, 0, 0};
    /* one block has nothing to add to */
    if (r.blocks > 1) r.sums = sizeof(float) * static_cast<size_t>(tiles * S::STEP * D);
    r.turns = sizeof(unsigned) * static_cast<size_t>(tiles + 1);
    return r;
}

template <typename T, int D, mti_drop_kind DROP> struct backward_of {
    typedef tiles<D, DROP> own;

    size_t scratch(const mti_attn_args &x) const
    {
        beside_delta part = parts_of<own, D>(x);
        return part.sums + part.turns;
    }

    bool run(mti_ctx *ctx, const mti_attn_args &call, unsigned char *scratch) const
    {
        beside_delta part = parts_of<own, D>(call);
        mti_attn_args x = mti_attn_grid(call, part.blocks, call.a_kv);
        x.dq_sums = reinterpret_cast<float *>(scratch);
        x.turns = reinterpret_cast<unsigned *>(scratch + part.sums);
        size_t shared = sizeof(T) * own::ELEMENTS;
        int64_t blocks = part.blocks * x.b * x.a_kv;
        return blocks == 0 || (mti_cuda_ok(cudaMemsetAsync(x.turns, 0, part.turns, ctx->stream),
                                           "attention: turns") &&
                               mti_attn_allow_shared<attention_backward<T, D, DROP>>(ctx, shared) &&
                               MTI_LAUNCH(ctx, (attention_backward<T, D, DROP>), mti_blocks(blocks),
                                          MTI_ATTN_THREADS, shared, x));
    }
};

} // namespace

size_t mti_attn_backward_tensor_scratch(const mti_attn_args &x, mt_dtype dtype)
{
    return mti_attn_choose<backward_of>(x, dtype, [&](auto call) { return call.scratch(x); });
}

bool mti_attn_backward_tensor(mti_ctx *ctx, const mti_attn_args &x, mt_dtype dtype, void *scratch)
{
    return mti_attn_choose<backward_of>(x, dtype, [&](auto call) {
        return call.run(ctx, x, static_cast<unsigned char *>(scratch));
    });
}
