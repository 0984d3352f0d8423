/* attention_wgmma.cu: flash attention forward for Hopper, bf16, d = 64 or 128, by wgmma. See
 * wgmma.cuh for the instructions and the layout of tiles, attention_forward.cu for the algorithm.
 *
 * A block has 128 queries of one head and three warpgroups. The last one copies: the queries, then
 * keys and values, KEYS at a time, into a ring of STAGES, as far ahead as stages are empty. The
 * others have 64 queries each, and compute. A turn of their loop starts S = q k_n^T and
 * o += P v_(n-1) and, as soon as S is there, takes its exponentials: beside the second product
 * (Shah et al. 2024, "FlashAttention-3"), and beside those of the other group. Then it scales o and
 * rounds P into registers, the A of the next turn.
 *     copies     q k0 v0     k1 v1          k2 v2
 *     products         q k0         q k1, P v0     q k2, P v1     P v2
 *     softmax               exp 0          exp 1          exp 2
 * A stage is full when the copies of all threads of the copying group have arrived, and empty when
 * all eight computing warps have read it: each warp counts, since none knows what the others do.
 *
 * Work: as attention_forward.cu. The tensor cores' peak is 4,096 FLOP a cycle and multiprocessor;
 * exponentials, 16 a cycle, need as many cycles as the products at d = 64, and half at d = 128. */
#include "backends/cuda/attention/wgmma.cuh"

namespace wgmma
{
namespace
{

constexpr int GROUPS = 2, GROUP_QUERIES = 64, QUERIES = GROUPS * GROUP_QUERIES;
constexpr int THREADS = (GROUPS + 1) * MTI_WARPGROUP, COMPUTING_WARPS = GROUPS * MTI_WARPGROUP / 32;

/* A multiprocessor has one block at a time, and 65,536 registers. All its threads begin with as
 * many, a multiple of 8; then the copying group gives some of its own to the others, which would
 * wait for ever for more than that. */
constexpr int LAUNCHED_WITH = 65536 / THREADS / 8 * 8, REGISTERS = 232, COPYING_REGISTERS = 40;
static_assert(GROUPS * REGISTERS + COPYING_REGISTERS <= (GROUPS + 1) * LAUNCHED_WITH,
              "the block has no more registers");

constexpr int KEYS = 128; /* a step */

template <int D> struct shape {
    static constexpr int STAGES = D == 64 ? 4 : 2;
    /* The output passes through the group's queries, in rows of D + 8. */
    static constexpr int QUERY_BYTES = 2 * mti_attn_tile<GROUP_QUERIES, D>();
    static constexpr int STAGE_BYTES = 2 * KEYS * D;
    static constexpr int BARRIERS = 2 * 2 * STAGES + 1 + GROUPS;
    static constexpr int BYTES = MTI_TILE_ALIGN + GROUPS * QUERY_BYTES + 2 * STAGES * STAGE_BYTES +
                                 BARRIERS * static_cast<int>(sizeof(uint64_t));
    static_assert(QUERY_BYTES % MTI_TILE_ALIGN == 0, "tiles follow each other");
    static_assert(BYTES <= 227 << 10, "what a block may have on Hopper");
};

/* A ring of stages: of keys, or of values. */
struct ring {
    unsigned char *tiles;
    uint64_t *full, *empty;
};

template <int D> struct memory {
    unsigned char *queries;
    ring k, v;
    uint64_t *queries_full, *queries_read; /* the latter for each group */
};

template <int D> __device__ __forceinline__ memory<D> lay_out(unsigned char *shared)
{
    typedef shape<D> Z;
    memory<D> m;
    m.queries = shared + (0u - mti_shared_address(shared)) % MTI_TILE_ALIGN;
    m.k.tiles = m.queries + GROUPS * Z::QUERY_BYTES;
    m.v.tiles = m.k.tiles + Z::STAGES * Z::STAGE_BYTES;
    m.k.full = reinterpret_cast<uint64_t *>(m.v.tiles + Z::STAGES * Z::STAGE_BYTES);
    m.k.empty = m.k.full + Z::STAGES, m.v.full = m.k.empty + Z::STAGES;
    m.v.empty = m.v.full + Z::STAGES, m.queries_full = m.v.empty + Z::STAGES;
    m.queries_read = m.queries_full + 1;
    return m;
}

template <int D> __device__ __forceinline__ void make_barriers(const memory<D> &m)
{
    for (int n = 0; n < shape<D>::STAGES; n++) {
        mti_mbarrier_init(m.k.full + n, MTI_WARPGROUP);
        mti_mbarrier_init(m.v.full + n, MTI_WARPGROUP);
        mti_mbarrier_init(m.k.empty + n, COMPUTING_WARPS);
        mti_mbarrier_init(m.v.empty + n, COMPUTING_WARPS);
    }
    mti_mbarrier_init(m.queries_full, MTI_WARPGROUP);
    for (int n = 0; n < GROUPS; n++) mti_mbarrier_init(m.queries_read + n, MTI_WARPGROUP / 32);
}

/* A place in a ring: the stage of step n, and how often the ring was passed (its parity). */
struct turn {
    int stage;
    unsigned parity;
};

template <int STAGES> __device__ __forceinline__ void go_on(turn &at)
{
    at.stage++;
    if (at.stage == STAGES) at.stage = 0, at.parity ^= 1u;
}

/* ---- the copying group ---- */

/* Starts to copy ROWS rows, `row` apart, of which n exist, into tiles; the others become zeros. In
 * each turn the warp copies four rows of 128 bytes. */
template <int D, int ROWS>
__device__ __forceinline__ void copy_rows(unsigned char *tiles, const __nv_bfloat16 *from,
                                          int64_t row, int n)
{
    constexpr int STEP = MTI_WARPGROUP / 8;
    int r = static_cast<int>(threadIdx.x % MTI_WARPGROUP) / 8,
        c = static_cast<int>(threadIdx.x) % 8;
    const __nv_bfloat16 *at = from + r * row + c * 8;
#pragma unroll
    for (int e = 0; e < ROWS; e += STEP) {
#pragma unroll
        for (int tile = 0; tile < D / MTI_TILE_COLUMNS; tile++)
            mti_cp_async_16(tiles + tile * ROWS * MTI_TILE_ROW + mti_tile_piece(r + e, c),
                            at + tile * MTI_TILE_COLUMNS, r + e < n);
        at += STEP * row;
    }
}

template <int D>
__device__ __forceinline__ void copy_stage(const ring &to, turn at, const __nv_bfloat16 *from,
                                           int64_t row, int n)
{
    typedef shape<D> Z;
    mti_mbarrier_wait(to.empty + at.stage, at.parity ^ 1u);
    copy_rows<D, KEYS>(to.tiles + at.stage * Z::STAGE_BYTES, from, row, n);
    mti_mbarrier_arrive_copied(to.full + at.stage);
}

template <int D>
__device__ __forceinline__ void copy_all(const mti_attn_args &x, const memory<D> &m,
                                         const mti_attn_place &at, int i, int n_keys)
{
    typedef shape<D> Z;
    typedef __nv_bfloat16 T;
    int h_kv = static_cast<int>(mti_quotient(static_cast<uint32_t>(at.h), x.group));
    const T *q = mti_attn_row<T>(x.q, at.b, at.h, i), *k = mti_attn_row<T>(x.k, at.b, h_kv, 0);
    const T *v = mti_attn_row<T>(x.v, at.b, h_kv, 0);
    int n_queries = static_cast<int>(x.s) - i;
    for (int group = 0; group < GROUPS; group++)
        copy_rows<D, GROUP_QUERIES>(m.queries + group * Z::QUERY_BYTES,
                                    q + group * GROUP_QUERIES * x.q.row, x.q.row,
                                    n_queries - group * GROUP_QUERIES);
    mti_mbarrier_arrive_copied(m.queries_full);
    turn to = {0, 0};
    for (int j = 0; j < n_keys; j += KEYS) {
        copy_stage<D>(m.k, to, k + j * x.k.row, x.k.row, n_keys - j);
        copy_stage<D>(m.v, to, v + j * x.v.row, x.v.row, n_keys - j);
        go_on<Z::STAGES>(to);
    }
    mti_cp_async_wait<0>();
}

/* ---- the computing warps ---- */

/* The registers of a warp's 16 queries. */
template <int D> struct fragments {
    float score[1][KEYS / 8][4], out[1][D / 8][4];
    uint32_t weight[KEYS / 16][4]; /* the scores of the step before, rounded */
    mti_attn_running<1> st;
    float shrink[1][2]; /* of the last step */
    turn k, v;
};

/* Starts S = q k^T. */
template <int D, int N>
__device__ __forceinline__ void start_scores(float (&score)[N][4], uint64_t q, uint64_t k)
{
    constexpr int STEPS = MTI_TILE_COLUMNS / 16; /* in a tile */
#pragma unroll
    for (int n = 0; n < D / 16; n++) {
        int tile = n / STEPS, within = n % STEPS * 32;
        mti_wgmma(score, mti_tile_after(q, tile * GROUP_QUERIES * MTI_TILE_ROW + within),
                  mti_tile_after(k, tile * 8 * N * MTI_TILE_ROW + within), n > 0);
    }
    mti_wgmma_commit();
}

/* Starts o += P v. */
template <int D, int K>
__device__ __forceinline__ void start_output(float (&out)[D / 8][4], const uint32_t (&weight)[K][4],
                                             uint64_t v)
{
#pragma unroll
    for (int n = 0; n < K; n++) mti_wgmma(out, weight[n], mti_tile_after(v, n * 16 * MTI_TILE_ROW));
    mti_wgmma_commit();
}

template <int N>
__device__ __forceinline__ void round_weights(const float (&score)[N][4],
                                              uint32_t (&weight)[N / 2][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            weight[n / 2][n % 2 * 2 + r] =
                mti_attn_half<__nv_bfloat16>::pack(score[n][2 * r], score[n][2 * r + 1]);
}

__device__ __forceinline__ void arrive_once(uint64_t *barrier)
{
    if (threadIdx.x % 32 == 0) mti_mbarrier_arrive(barrier);
}

/* Waits for a stage, and returns the descriptor of its tiles. A fence must follow. */
template <int D> __device__ __forceinline__ uint64_t await_stage(const ring &from, turn at)
{
    typedef shape<D> Z;
    mti_mbarrier_wait(from.full + at.stage, at.parity);
    return mti_tile_descriptor(mti_shared_address(from.tiles + at.stage * Z::STAGE_BYTES), KEYS);
}

/* Takes the scores of the keys from j on, which are there; the group's first query sees
 * seen_by_first keys. */
template <int D>
__device__ __forceinline__ void take_scores(const mti_attn_args &x, const memory<D> &m, int i,
                                            int j, int seen_by_first, fragments<D> &f)
{
    mti_wgmma_settle(f.score[0]);
    arrive_once(m.k.empty + f.k.stage);
    go_on<shape<D>::STAGES>(f.k);
    if (j + KEYS > seen_by_first) mti_attn_mask<false>(x, i, j, f.score);
    mti_attn_softmax(static_cast<float>(x.scale * MTI_LOG2E), f.st, f.score, f.shrink);
}

/* Waits for the outputs so far, so that the next product can add to them: with what this step has
 * made of the scores. It begins a turn of the loop and does not end one, because the compiler would
 * put the wait before the exponentials, which do not depend on it. */
template <int D>
__device__ __forceinline__ void take_output(const memory<D> &m, bool any, fragments<D> &f)
{
    mti_wgmma_wait<0>();
    mti_wgmma_settle(f.out[0]);
    if (any) {
        arrive_once(m.v.empty + f.v.stage);
        go_on<shape<D>::STAGES>(f.v);
    }
    mti_attn_scale(f.out, f.shrink);
    round_weights(f.score[0], f.weight);
}

/* What a warp of a group does for its queries, from i on; the group sees n_keys. */
template <int D>
__device__ __forceinline__ void compute(const mti_attn_args &x, const memory<D> &m, int group,
                                        int i, int n_keys, int seen_by_first, fragments<D> &f)
{
    mti_mbarrier_wait(m.queries_full, 0);
    uint64_t queries = mti_tile_descriptor(
        mti_shared_address(m.queries + group * shape<D>::QUERY_BYTES), GROUP_QUERIES);
    if (n_keys > 0) {
        uint64_t keys = await_stage<D>(m.k, f.k);
        mti_fence_async();
        mti_wgmma_fence();
        start_scores<D>(f.score[0], queries, keys);
        mti_wgmma_wait<0>();
        take_scores(x, m, i, 0, seen_by_first, f);
        for (int j = KEYS; j < n_keys; j += KEYS) {
            take_output(m, j > KEYS, f);
            keys = await_stage<D>(m.k, f.k);
            uint64_t values = await_stage<D>(m.v, f.v);
            mti_fence_async();
            mti_wgmma_fence();
            start_scores<D>(f.score[0], queries, keys);
            start_output<D>(f.out[0], f.weight, values);
            mti_wgmma_wait<1>(); /* the scores */
            take_scores(x, m, i, j, seen_by_first, f);
        }
        take_output(m, n_keys > KEYS, f);
        uint64_t values = await_stage<D>(m.v, f.v);
        mti_fence_async();
        mti_wgmma_fence();
        start_output<D>(f.out[0], f.weight, values);
        mti_wgmma_wait<0>();
        mti_wgmma_settle(f.out[0]);
    }
    arrive_once(m.queries_read + group);
}

template <int D>
__global__ void __launch_bounds__(THREADS, 1) attention_forward_wgmma(const mti_attn_args x)
{
    typedef __nv_bfloat16 T;
    MTI_DYNAMIC_SHARED(unsigned char, shared);
    memory<D> m = lay_out<D>(shared);
    int s = static_cast<int>(x.s),
        warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
    mti_attn_place at = mti_attn_place_of(x, blockIdx.x);
    /* starts with the last queries of a head, which see most keys */
    int block_i = (static_cast<int>(x.tiles.by) - 1 - at.tile) * QUERIES;
    int n_keys = static_cast<int>(mti_attn_seen(x, min(block_i + QUERIES, s) - 1));
    if (threadIdx.x == 0) make_barriers(m);
    __syncthreads();
    if (warp >= COMPUTING_WARPS) {
        mti_registers_give<COPYING_REGISTERS>();
        copy_all(x, m, at, block_i, n_keys);
    } else {
        mti_registers_take<REGISTERS>();
        int group = warp / 4, group_i = block_i + group * GROUP_QUERIES, i = block_i + warp * 16;
        /* Beyond the last query a group computes along, on zeros. Else it may end a step earlier
         * than the block does: nobody waits for it there. */
        if (group_i < s)
            n_keys = static_cast<int>(mti_attn_seen(x, min(group_i + GROUP_QUERIES, s) - 1));
        fragments<D> f = {};
        f.st.max[0][0] = f.st.max[0][1] = -INFINITY;
        compute(x, m, group, i, n_keys, static_cast<int>(mti_attn_seen(x, group_i)), f);
        float *lse = x.lse == NULL ? NULL : static_cast<float *>(x.lse) + x.s * at.head;
        mti_attn_finish(x, lse, i, 1.0f, f.st, f.out);
        T *stage = reinterpret_cast<T *>(m.queries + group * shape<D>::QUERY_BYTES);
        mti_mbarrier_wait(m.queries_read + group, 0); /* by the group's products */
        mti_attn_put<T, 1, D>(f.out, 1.0f, stage + warp % 4 * 16 * mti_attn_pitch<D>(),
                              mti_attn_row<T>(x.o, at.b, at.h, i), x.o.row, s - i, D);
    }
}

template <int D> bool run(mti_ctx *ctx, const mti_attn_args &x)
{
    int64_t tiles = (x.s + QUERIES - 1) / QUERIES, blocks = tiles * x.b * x.a;
    return mti_attn_allow_shared<attention_forward_wgmma<D>>(ctx, shape<D>::BYTES) &&
           MTI_LAUNCH(ctx, attention_forward_wgmma<D>, mti_blocks(blocks), THREADS, shape<D>::BYTES,
                      mti_attn_grid(x, tiles, x.a));
}

} // namespace
} // namespace wgmma

bool mti_attn_forward_wgmma(mti_ctx *ctx, const mti_attn_args &x)
{
    return x.d == 64 ? wgmma::run<64>(ctx, x) : wgmma::run<128>(ctx, x);
}
