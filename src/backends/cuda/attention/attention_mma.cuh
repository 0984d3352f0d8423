/* attention_mma.cuh: tiles on tensor cores.
 *
 * A warp multiplies with m16n8k16: 16 x 16 by 16 x 8 into 16 x 8, f32 accumulators. With
 * g = lane / 4 and c = lane % 4 a lane holds
 *   accumulator  rows g, g + 8; columns 2c, 2c + 1      float[4]: (g: 2c, 2c+1), (g+8: 2c, 2c+1)
 *   A            rows g, g + 8; columns 2c.. and 8 + 2c..      4 registers of two numbers
 *   B            rows 2c.. and 8 + 2c.. of column g            2 registers
 * so two neighbouring accumulators, rounded, are the A of the next product: scores stay in
 * registers.
 *
 * In shared memory a row of a tile has D + 8 numbers: an odd number of 16-byte pieces, so the
 * eight rows that ldmatrix reads at once are in different banks. */
#ifndef MTI_CUDA_ATTENTION_MMA_CUH
#define MTI_CUDA_ATTENTION_MMA_CUH

#include "backends/cuda/attention/attention.cuh"

/* ---- instructions; the simulator has its own mma and ldmatrix ---- */

#ifndef MTI_CUDASIM

__device__ __forceinline__ uint32_t mti_shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* Lane l gives the address of row l % 8 (16 bytes) of 8 x 8 matrix l / 8. r[m] is this lane's pair
 * of matrix m: row l / 4, columns 2 (l % 4) and the next; _trans: of the transposed matrix. */
__device__ __forceinline__ void mti_ldmatrix_x4(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(mti_shared_address(row)));
}

__device__ __forceinline__ void mti_ldmatrix_x4_trans(uint32_t *r, const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(mti_shared_address(row)));
}

/* c[4] += a[4] b[2] */
__device__ __forceinline__ void mti_mma_bf16(float *c, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mti_mma_f16(float *c, const uint32_t *a, const uint32_t *b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Copies 16 bytes from device to shared memory, zeros if !valid; complete after the wait that
 * covers it. Both addresses are multiples of 16. */
__device__ __forceinline__ void mti_cp_async_16(void *shared, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(mti_shared_address(shared)),
                 "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
                 : "memory");
}
__device__ __forceinline__ void mti_cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/* Waits until at most n_left of the committed groups are unfinished. */
template <int n_left> __device__ __forceinline__ void mti_cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n_left) : "memory");
}

/* Blocks take turns: turns counts up to n, which the block that waits has been given. What earlier
 * blocks stored before they passed the turn is there after the wait (and a barrier, for the other
 * threads). */
__device__ __forceinline__ void mti_await_turn(const unsigned *turns, int n)
{
    unsigned now;
    do
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(now)
                     : "l"(__cvta_generic_to_global(turns))
                     : "memory");
    while (now != static_cast<unsigned>(n));
}
__device__ __forceinline__ void mti_pass_turn(unsigned *turns)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(__cvta_generic_to_global(turns))
                 : "memory");
}
/* *sum += x in L2, without waiting for it. Only in turn, so that the order of additions is fixed.
 */
__device__ __forceinline__ void mti_add_in_turn(float4 *sum, float4 x)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                     __cvta_generic_to_global(sum)),
                 "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w)
                 : "memory");
#else
    float *one = reinterpret_cast<float *>(sum);
    atomicAdd(one, x.x), atomicAdd(one + 1, x.y), atomicAdd(one + 2, x.z), atomicAdd(one + 3, x.w);
#endif
}

#else

/* Blocks run one after the other: a turn that has not come never will. */
static inline void mti_await_turn(const unsigned *turns, int n, CUDASIM_HERE)
{
    if (*turns != static_cast<unsigned>(n))
        cudasim::fault(here, "waits for turn %d, it is turn %u", n, *turns);
}
static inline void mti_pass_turn(unsigned *turns) { ++*turns; }
static inline void mti_add_in_turn(float4 *sum, float4 x)
{
    sum->x += x.x, sum->y += x.y, sum->z += x.z, sum->w += x.w;
}

#endif

/* ---- by dtype ---- */

template <typename T> struct mti_attn_half {
    static constexpr bool BF16 = std::is_same_v<T, __nv_bfloat16>;

    static __device__ __forceinline__ void mma(float *c, const uint32_t *a, const uint32_t *b)
    {
        BF16 ? mti_mma_bf16(c, a, b) : mti_mma_f16(c, a, b);
    }
    static __device__ __forceinline__ uint32_t pack(float low, float high)
    {
        uint32_t bits;
        if constexpr (BF16) {
            __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
            memcpy(&bits, &two, sizeof bits);
        } else {
            __half2 two = __floats2half2_rn(low, high);
            memcpy(&bits, &two, sizeof bits);
        }
        return bits;
    }
};

/* ---- tiles in shared memory: T[ROWS][D + 8] ---- */

#define MTI_ATTN_WARPS   4
#define MTI_ATTN_THREADS (32 * MTI_ATTN_WARPS)

template <int D> __host__ __device__ constexpr int mti_attn_pitch() { return D + 8; }
template <int ROWS, int D> __host__ __device__ constexpr int mti_attn_tile()
{
    return ROWS * mti_attn_pitch<D>();
}

/* Starts to copy ROWS rows, `row` apart, from `from`; n of them exist. Rows beyond those and
 * columns from d on become zeros. A thread copies one 16-byte column, so that it needs one
 * address. */
template <typename T, int ROWS, int D>
__device__ __forceinline__ void mti_attn_fetch(T *tile, const T *from, int64_t row, int n, int d)
{
    constexpr int COLUMNS = D <= 32 ? 4 : D <= 64 ? 8 : 16, STEP = MTI_ATTN_THREADS / COLUMNS;
    static_assert(ROWS % STEP == 0, "all threads copy alike");
    int r = static_cast<int>(threadIdx.x) / COLUMNS;
    int column = static_cast<int>(threadIdx.x) % COLUMNS * 8;
    if (column >= D) return;
    T *to = tile + r * mti_attn_pitch<D>() + column;
    const T *at = from + r * row + column;
    if (column >= d) n = 0;
#pragma unroll
    for (int e = 0; e < ROWS; e += STEP) {
        mti_cp_async_16(to + e * mti_attn_pitch<D>(), at, r + e < n);
        at += STEP * row;
    }
}

/* acc[m][n] += A B^T: A is the warp's 16 M rows at `a`, B has 8 N rows at `b`. */
template <typename T, int M, int N, int D>
__device__ __forceinline__ void mti_attn_dot(float (&acc)[M][N][4], const T *a, const T *b)
{
    constexpr int P = mti_attn_pitch<D>();
    int lane = static_cast<int>(threadIdx.x % 32);
    const T *my_a = a + lane % 16 * P + lane / 16 * 8;
    const T *my_b = b + (lane / 16 * 8 + lane % 8) * P + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < D; k += 16) {
        uint32_t fa[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) mti_ldmatrix_x4(fa[m], my_a + m * 16 * P + k);
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t fb[4];
            mti_ldmatrix_x4(fb, my_b + n * 8 * P + k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mti_attn_half<T>::mma(acc[m][n], fa[m], fb);
                mti_attn_half<T>::mma(acc[m][n + 1], fa[m], fb + 2);
            }
        }
    }
}

/* acc[m][n] += W B: W is the warp's [16 M, 8 K] of weights, in the layout of accumulators; B has
 * 8 K rows at `b`. */
template <typename T, int M, int K, int D>
__device__ __forceinline__ void mti_attn_weigh(float (&acc)[M][D / 8][4],
                                               const float (&weight)[M][K][4], const T *b)
{
    constexpr int P = mti_attn_pitch<D>();
    int lane = static_cast<int>(threadIdx.x % 32);
    const T *my_b = b + lane % 16 * P + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < K; k += 2) {
        uint32_t fa[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int r = 0; r < 4; r++)
                fa[m][r] = mti_attn_half<T>::pack(weight[m][k + r / 2][r % 2 * 2],
                                                  weight[m][k + r / 2][r % 2 * 2 + 1]);
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            uint32_t fb[4];
            mti_ldmatrix_x4_trans(fb, my_b + k * 8 * P + n * 8);
#pragma unroll
            for (int m = 0; m < M; m++) {
                mti_attn_half<T>::mma(acc[m][n], fa[m], fb);
                mti_attn_half<T>::mma(acc[m][n + 1], fa[m], fb + 2);
            }
        }
    }
}

/* ---- dropout: bit r of the result says whether accumulator r is kept ----
 *
 * With MTI_DROP_QUADS four consecutive draws in j share a counter. The lanes that hold them
 * divide the work: each computes the draws of one counter, and they exchange the bits. */

/* The draws at, at + first, at + second, at + first + second, one by one: the registers of four at
 * a time are more than the products leave. */
__device__ __forceinline__ uint32_t mti_attn_keep_each(const mti_attn_drop &drop, int64_t at,
                                                       int64_t first, int64_t second)
{
    uint32_t keep = 0;
#pragma unroll 1
    for (uint32_t r = 0; r < 4; r++)
        keep |= (mti_attn_keep(drop, at + (r & 1u ? first : 0) + (r & 2u ? second : 0)) ? 1u : 0u)
                << r;
    return keep;
}

/* Rows are queries: accumulators 0 to 3 are draws at, at + 1, at + 8 t, at + 8 t + 1. */
template <mti_drop_kind DROP>
__device__ __forceinline__ uint32_t mti_attn_keep_tile(const mti_attn_drop &drop, int64_t t,
                                                       int64_t at)
{
    if (DROP == MTI_DROP_ANY) return mti_attn_keep_each(drop, at, 1, 8 * t);
    bool odd = threadIdx.x % 2 != 0; /* this lane's columns are the upper half of their four */
    uint32_t own_bits = mti_attn_keep4(drop, (odd ? at + 8 * t : at) / 4);
    uint32_t other = __shfl_xor_sync(0xffffffffu, own_bits, 1);
    uint32_t upper = odd ? other : own_bits, lower = odd ? own_bits : other;
    int shift = odd ? 2 : 0;
    return (upper >> shift & 3u) | (lower >> shift & 3u) << 2;
}

/* Rows are keys: accumulators 0 to 3 are draws at, at + t, at + 8, at + 8 + t. */
template <mti_drop_kind DROP>
__device__ __forceinline__ uint32_t mti_attn_keep_tile_t(const mti_attn_drop &drop, int64_t t,
                                                         int64_t at)
{
    if (DROP == MTI_DROP_ANY) return mti_attn_keep_each(drop, at, t, 8);
    uint32_t r = threadIdx.x / 4 % 4; /* this lane's number among the four */
    uint32_t own_bits = mti_attn_keep4(drop, (at + (r & 1u ? t : 0) + (r & 2u ? 8 : 0)) / 4);
    uint32_t keep = (own_bits >> r & 1u) << r;
#pragma unroll
    for (uint32_t other = 1; other < 4; other++) {
        uint32_t bits = __shfl_xor_sync(0xffffffffu, own_bits, static_cast<int>(4 * other));
        keep |= (bits >> r & 1u) << (r ^ other);
    }
    return keep;
}

/* Stores the warp's 16 M rows of accumulators, of which n exist, times `factor`, in `to`. They pass
 * through the warp's own rows of a tile at `stage`, so that whole rows are written. */
template <typename T, int M, int D>
__device__ __forceinline__ void mti_attn_put(const float (&acc)[M][D / 8][4], float factor,
                                             T *stage, T *to, int64_t row, int n, int d)
{
    constexpr int P = mti_attn_pitch<D>();
    int lane = static_cast<int>(threadIdx.x % 32), g = lane / 4, c = lane % 4;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int k = 0; k < D / 8; k++) {
                uint32_t two = mti_attn_half<T>::pack(acc[m][k][2 * r] * factor,
                                                      acc[m][k][2 * r + 1] * factor);
                *mti_at<uint32_t>(stage + (m * 16 + r * 8 + g) * P + k * 8 + c * 2) = two;
            }
    __syncwarp();
    for (int piece = lane; piece < 16 * M * (D / 8); piece += 32) {
        int r = piece / (D / 8), column = piece % (D / 8) * 8;
        if (r < n && column < d)
            *mti_at<uint4>(to + r * row + column) = *mti_at<const uint4>(stage + r * P + column);
    }
}

/* ---- the kernel for a call: use(CALL<T, D, DROP>()) ---- */

template <template <typename, int, mti_drop_kind> class CALL, typename T, int D, typename F>
auto mti_attn_by_drop(const mti_attn_args &x, F use)
{
    switch (mti_attn_drop_kind(x)) {
    case MTI_DROP_NONE: return use(CALL<T, D, MTI_DROP_NONE>());
    case MTI_DROP_ANY: return use(CALL<T, D, MTI_DROP_ANY>());
    default: return use(CALL<T, D, MTI_DROP_QUADS>());
    }
}

template <template <typename, int, mti_drop_kind> class CALL, typename T, typename F>
auto mti_attn_by_width(const mti_attn_args &x, F use)
{
    if (x.d <= 32) return mti_attn_by_drop<CALL, T, 32>(x, use);
    if (x.d <= 64) return mti_attn_by_drop<CALL, T, 64>(x, use);
    if (x.d <= 80) return mti_attn_by_drop<CALL, T, 80>(x, use);
    if (x.d <= 96) return mti_attn_by_drop<CALL, T, 96>(x, use);
    return mti_attn_by_drop<CALL, T, 128>(x, use);
}

template <template <typename, int, mti_drop_kind> class CALL, typename F>
auto mti_attn_choose(const mti_attn_args &x, mt_dtype dtype, F use)
{
    return dtype == MT_BF16 ? mti_attn_by_width<CALL, __nv_bfloat16>(x, use)
                            : mti_attn_by_width<CALL, __half>(x, use);
}

#endif
