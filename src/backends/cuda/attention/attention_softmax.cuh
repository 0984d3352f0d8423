/* attention_softmax.cuh: the online softmax of attention forward on tensor cores, by mma and by
 * wgmma: scores lie in the layout of accumulators (attention_mma.cuh), of 16 M queries of a warp,
 * of which i is the first. */
#ifndef MTI_CUDA_ATTENTION_SOFTMAX_CUH
#define MTI_CUDA_ATTENTION_SOFTMAX_CUH

#include "backends/cuda/attention/attention_mma.cuh"

/* The running state of a lane's 2 M queries over the blocks of keys. */
template <int M> struct mti_attn_running {
    float max[M][2]; /* of the unscaled scores */
    float sum[M][2]; /* of exp(scale (score - max)), over this lane's columns only */
};

/* Masks what each query does not see with -inf; j is the first key of the block. */
template <bool WINDOW, int M, int N>
__device__ __forceinline__ void mti_attn_mask(const mti_attn_args &x, int i, int j,
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
                    if (WINDOW ? mti_attn_hidden(x, seen, key) : key >= seen)
                        score[m][n][2 * r + e] = -INFINITY;
                }
        }
}

/* Turns scores into weights under the new maximum; outputs so far are to shrink. */
template <int M, int N>
__device__ __forceinline__ void mti_attn_softmax(float scale, mti_attn_running<M> &st,
                                                 float (&score)[M][N][4], float (&shrink)[M][2])
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

template <int M, int K>
__device__ __forceinline__ void mti_attn_scale(float (&out)[M][K][4], const float (&by)[M][2])
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
template <int M, int K>
__device__ __forceinline__ void mti_attn_finish(const mti_attn_args &x, float *lse, int i,
                                                float keep_scale, const mti_attn_running<M> &st,
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

#endif
