/* attention_forward.cu: flash attention forward on tensor cores, for bf16 and f16.
 *
 * Dao 2023, "FlashAttention-2": a block computes 128 queries of one head, a warp 32 of them, and
 * loops over the keys 64 (or 32) at a time with an online softmax in registers:
 *   S = scale q k^T     m' = max(m, rowmax S)     P = exp(S - m')
 *   l = l exp(m - m') + rowsum P     o = o exp(m - m') + P v     at the end o / l
 * Exponentials are powers of 2, with log2(e) folded into the scale. P is rounded to the 16-bit
 * dtype for the second product (after the sum l, which is f32); all else is f32, o is rounded
 * once. The next keys are copied during the product with the values, the values during the
 * scores. Causal blocks stop at the diagonal, and only blocks on the diagonal apply a mask.
 *
 * Work: 4 b a s t d FLOP (half of it causal); bytes: q, k, v and o once, k and v again from L2
 * for every 128 queries. At d = 64, s = t = 1024 that is 512 FLOP per byte of device memory, so
 * the limit is the tensor cores, and at small d the exponentials, one per 4 d FLOP. */
#include "backends/cuda/attention/attention_mma.cuh"

namespace
{

constexpr int M = 2, WARP_QUERIES = 16 * M, QUERIES = WARP_QUERIES * MTI_ATTN_WARPS;

/* Keys per step, as many as 255 registers allow. */
template <int D, mti_drop_kind DROP> struct step {
    static constexpr int KEYS = D > 80 && mti_drops(DROP) ? 32 : 64;
    static constexpr int TILES = mti_attn_tile<QUERIES, D>() + 2 * mti_attn_tile<KEYS, D>();
};

/* ---- the online softmax: scores lie in the layout of accumulators (attention_mma.cuh), of a
 * warp's queries, of which i is the first ---- */

/* The running state of a lane's 2 M queries over the blocks of keys. */
struct running {
    float max[M][2]; /* of the unscaled scores */
    float sum[M][2]; /* of exp(scale (score - max)), over this lane's columns only */
};

/* Masks what each query does not see with -inf; j is the first key of the block. */
template <int N>
__device__ __forceinline__ void mask_scores(const mti_attn_args &x, int i, int j,
                                            float (&score)[M][N][4])
{
    int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, c = lane % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int seen = static_cast<int>(mti_attn_seen(x, i + m * 16 + g + r * 8)) - j;
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    int key = n * 8 + c * 2 + e;
                    if (mti_attn_hidden(x, seen, key)) score[m][n][2 * r + e] = -INFINITY;
                }
        }
}

/* Turns scores into weights under the new maximum; outputs so far are to shrink. */
template <int N>
__device__ __forceinline__ void take_softmax(float scale, running &st, float (&score)[M][N][4],
                                             float (&shrink)[M][2])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float best = st.max[m][r];
#pragma unroll
            for (int n = 0; n < N; n++)
                best = fmaxf(best, fmaxf(score[m][n][2 * r], score[m][n][2 * r + 1]));
            best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 1));
            best = fmaxf(best, __shfl_xor_sync(0xffffffffu, best, 2));
            /* no key seen so far: subtract 0, so that weights are exp(-inf) and not NaN */
            float base = best > -INFINITY ? best : 0.0f, from = base * scale, sum = 0.0f;
            shrink[m][r] = mti_exp2_fast((st.max[m][r] - base) * scale); /* 1 if unchanged */
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 2 * r; e < 2 * r + 2; e++) {
                    score[m][n][e] = mti_exp2_fast(fmaf(score[m][n][e], scale, -from));
                    sum += score[m][n][e];
                }
            st.max[m][r] = best;
            st.sum[m][r] = fmaf(st.sum[m][r], shrink[m][r], sum);
        }
}

template <int K>
__device__ __forceinline__ void scale_outputs(float (&out)[M][K][4], const float (&by)[M][2])
{
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int k = 0; k < K; k++)
#pragma unroll
            for (int e = 0; e < 4; e++) out[m][k][e] *= by[m][e / 2];
}

/* Divides by the sums, times keep_scale; writes lse of the queries, unless it is NULL: `lse` points
 * to query 0 of the head. */
template <int K>
__device__ __forceinline__ void finish_outputs(const mti_attn_args &x, float *lse, int i,
                                               float keep_scale, const running &st,
                                               float (&out)[M][K][4])
{
    int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, c = lane % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = st.sum[m][r];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            float factor = sum == 0.0f ? 0.0f : keep_scale / sum;
            int row = i + m * 16 + r * 8 + g;
            if (lse != NULL && c == 0 && row < x.s)
                lse[row] = sum == 0.0f
                               ? -INFINITY
                               : st.max[m][r] * static_cast<float>(x.scale) + mti_log_f32(sum);
#pragma unroll
            for (int k = 0; k < K; k++) {
                out[m][k][2 * r] *= factor;
                out[m][k][2 * r + 1] *= factor;
            }
        }
}

template <int N, mti_drop_kind DROP>
__device__ __forceinline__ void drop_weights(const mti_attn_drop &drop, int64_t t, int64_t first,
                                             float (&weight)[M][N][4])
{
    int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, c = lane % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t keep =
                mti_attn_keep_tile<DROP>(drop, t, first + (m * 16 + g) * t + n * 8 + c * 2);
#pragma unroll
            for (int r = 0; r < 4; r++)
                if (!(keep >> r & 1u)) weight[m][n][r] = 0.0f;
        }
}

template <typename T, int D, mti_drop_kind DROP>
__global__ void __launch_bounds__(MTI_ATTN_THREADS, 2) attention_forward(const mti_attn_args x)
{
    constexpr int KEYS = step<D, DROP>::KEYS, N = KEYS / 8;
    MTI_DYNAMIC_SHARED(unsigned char, shared);
    T *queries = reinterpret_cast<T *>(shared), *keys = queries + mti_attn_tile<QUERIES, D>();
    T *values = keys + mti_attn_tile<KEYS, D>();
    int s = static_cast<int>(x.s), d = static_cast<int>(x.d);
    int warp = static_cast<int>(threadIdx.x) / 32;
    mti_attn_place at = mti_attn_place_of(x, blockIdx.x);
    /* starts with the last queries of a head, which see most keys */
    int block_i = (static_cast<int>(x.tiles.by) - 1 - at.tile) * QUERIES;
    int h_kv = static_cast<int>(mti_quotient(static_cast<uint32_t>(at.h), x.group));
    int i = block_i + warp * WARP_QUERIES, n_queries = min(QUERIES, s - block_i);
    int seen_by_block = static_cast<int>(mti_attn_seen(x, block_i + n_queries - 1));
    int seen_by_first = static_cast<int>(mti_attn_seen(x, block_i));
    int seen_by_warp = static_cast<int>(mti_attn_seen(x, i + WARP_QUERIES - 1));
    int begin = static_cast<int>(mti_attn_first(x, block_i)) / KEYS * KEYS;
    const T *k = mti_attn_row<T>(x.k, at.b, h_kv, 0), *v = mti_attn_row<T>(x.v, at.b, h_kv, 0);
    mti_attn_drop drop = mti_attn_read_drop(x);
    float scale = static_cast<float>(x.scale * MTI_LOG2E);

    float out[M][D / 8][4] = {};
    running st;
    /* a sink is a score seen before the first key's, in one lane's columns */
    float sink = mti_attn_sink<T>(x, at.h) / static_cast<float>(x.scale);
    float own = x.sinks != NULL && threadIdx.x % 4 == 0 ? 1.0f : 0.0f;
    for (int m = 0; m < M; m++)
        st.max[m][0] = st.max[m][1] = sink, st.sum[m][0] = st.sum[m][1] = own;
    mti_attn_fetch<T, QUERIES, D>(queries, mti_attn_row<T>(x.q, at.b, at.h, block_i), x.q.row,
                                  n_queries, d);
    if (seen_by_block > 0)
        mti_attn_fetch<T, KEYS, D>(keys, k + begin * x.k.row, x.k.row, seen_by_block - begin, d);
    mti_cp_async_commit();
    for (int j = begin; j < seen_by_block; j += KEYS) {
        bool busy = j < seen_by_warp; /* this warp's queries see some of these keys */
        float score[M][N][4] = {};
        mti_cp_async_wait<0>();
        __syncthreads(); /* the keys have arrived, the buffer of the values is free */
        mti_attn_fetch<T, KEYS, D>(values, v + j * x.v.row, x.v.row, seen_by_block - j, d);
        mti_cp_async_commit();
        if (busy) {
            mti_attn_dot<T, M, N, D>(score, queries + warp * WARP_QUERIES * mti_attn_pitch<D>(),
                                     keys);
            if (j + KEYS > seen_by_first || j < seen_by_block - x.reach)
                mask_scores(x, i, j, score);
            float shrink[M][2];
            take_softmax(scale, st, score, shrink);
            scale_outputs(out, shrink);
            if (mti_drops(DROP))
                drop_weights<N, DROP>(drop, x.t, (x.s * at.head + i) * x.t + j, score);
        }
        mti_cp_async_wait<0>();
        __syncthreads(); /* the values have arrived, the buffer of the keys is free */
        if (j + KEYS < seen_by_block)
            mti_attn_fetch<T, KEYS, D>(keys, k + (j + KEYS) * x.k.row, x.k.row,
                                       seen_by_block - j - KEYS, d);
        mti_cp_async_commit();
        if (busy) mti_attn_weigh<T, M, N, D>(out, score, values);
    }
    float *lse = x.lse == NULL ? NULL : static_cast<float *>(x.lse) + x.s * at.head;
    finish_outputs(x, lse, i, static_cast<float>(x.keep_scale), st, out);
    mti_cp_async_wait<0>();
    __syncthreads(); /* all copies into the query tile are done */
    mti_attn_put<T, M, D>(out, 1.0f, queries + warp * WARP_QUERIES * mti_attn_pitch<D>(),
                          mti_attn_row<T>(x.o, at.b, at.h, i), x.o.row, s - i, d);
}

template <typename T, int D, mti_drop_kind DROP> struct forward_of {
    bool run(mti_ctx *ctx, const mti_attn_args &x) const
    {
        size_t shared = sizeof(T) * step<D, DROP>::TILES;
        int64_t tiles = (x.s + QUERIES - 1) / QUERIES, blocks = tiles * x.b * x.a;
        return mti_attn_allow_shared<attention_forward<T, D, DROP>>(ctx, shared) &&
               MTI_LAUNCH(ctx, (attention_forward<T, D, DROP>), mti_blocks(blocks),
                          MTI_ATTN_THREADS, shared, mti_attn_grid(x, tiles, x.a));
    }
};

} // namespace

bool mti_attn_forward_tensor(mti_ctx *ctx, const mti_attn_args &x, mt_dtype dtype)
{
    return mti_attn_choose<forward_of>(x, dtype, [&](auto call) { return call.run(ctx, x); });
}
