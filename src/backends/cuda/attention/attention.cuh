/* attention.cuh: shared by the attention kernels: the arguments of a call, copies of tiles into
 * shared memory, the dropout mask.
 *
 * Letters: i counts queries, j keys. A tile is a block of rows of one head, d wide. */
#ifndef MTI_CUDA_ATTENTION_CUH
#define MTI_CUDA_ATTENTION_CUH

#include <math.h>
#include <string.h>
#include "backends/cuda/walk.cuh"

/* ---- the arguments of a call, as kernels take them ---- */

/* One of q, k, v, o and their gradients: strides count elements; the last is 1. */
struct mti_attn_rows {
    void *data;
    int64_t batch, head, row;
};

struct mti_attn_args {
    mti_attn_rows q, k, v, o, d_o, dq, dk, dv; /* the last four in backward only */
    void *lse;                                 /* [b,a,s] f32 or f64; NULL: not needed */
    void *delta;                               /* [b,a,s], the dtype of lse: rowsum(do * o) */
    float *dq_sums;                            /* attention_backward.cu */
    unsigned *turns;
    int64_t b, a, a_kv, s, t, d, e; /* e: the width of v */
    double scale;
    bool causal;
    int64_t window; /* 0: all */
    /* The same for tensor cores, whose registers are few. Query i sees the last `reach` of the keys
     * before mti_attn_seen, and none before key i - past; without a window both are large. */
    int reach, past;
    /* dropout: a draw of at least `threshold` (in units of 2^-24) is kept */
    uint32_t threshold;
    double keep_scale; /* 1 / (1 - p); 0 for p = 1; 1 without dropout */
    const void *sinks; /* [a], sinks_step apart; NULL: none */
    int64_t sinks_step;
    const int64_t *seed, *offset; /* device memory; NULL without dropout */
    /* of one launch: tiles per head, heads per batch item, query heads per key head */
    mti_divider tiles, heads, group;
};

/* The first element of row i of one head. */
template <typename T>
__device__ __forceinline__ T *mti_attn_row(const mti_attn_rows &v, int64_t b, int64_t h, int64_t i)
{
    return static_cast<T *>(v.data) + (b * v.batch + h * v.head + i * v.row);
}

/* x for a launch over `tiles` tiles of each of `heads` heads; the tile varies fastest. */
static inline mti_attn_args mti_attn_grid(const mti_attn_args &x, int64_t tiles, int64_t heads)
{
    mti_attn_args y = x;
    y.tiles = mti_divide_by(static_cast<uint32_t>(tiles));
    y.heads = mti_divide_by(static_cast<uint32_t>(heads));
    y.group = mti_divide_by(static_cast<uint32_t>(x.a / x.a_kv));
    return y;
}

/* The work of the block with this number. Computed with multiplications, not divisions, so that the
 * compiler keeps it in uniform registers: it is the same for all threads. */
struct mti_attn_place {
    int tile, head; /* of the head; b * heads + h */
    int b, h;
};

__device__ __forceinline__ mti_attn_place mti_attn_place_of(const mti_attn_args &x, uint32_t block)
{
    uint32_t head = mti_quotient(block, x.tiles), b = mti_quotient(head, x.heads);
    return {static_cast<int>(block - head * x.tiles.by), static_cast<int>(head),
            static_cast<int>(b), static_cast<int>(head - b * x.heads.by)};
}

/* Query i sees keys [0, result). */
__device__ __forceinline__ int64_t mti_attn_seen(const mti_attn_args &x, int64_t i)
{
    int64_t n = x.causal ? i + (x.t - x.s) + 1 : x.t;
    return n < 0 ? 0 : n > x.t ? x.t : n;
}

/* It sees none before this one. */
__device__ __forceinline__ int64_t mti_attn_first(const mti_attn_args &x, int64_t i)
{
    int64_t n = x.window ? i + (x.t - x.s) + 1 - x.window : 0;
    return n < 0 ? 0 : n;
}

/* Queries from here on see no key before `end`. */
__device__ __forceinline__ int64_t mti_attn_past(const mti_attn_args &x, int64_t end)
{
    int64_t n = x.window ? end + x.window - 1 - (x.t - x.s) : x.s;
    return n < 0 ? 0 : n > x.s ? x.s : n;
}

/* Whether a query that sees the keys up to `seen` does not see this one. */
__device__ __forceinline__ bool mti_attn_hidden(const mti_attn_args &x, int seen, int key)
{
    return static_cast<unsigned>(seen - 1 - key) >= static_cast<unsigned>(x.reach);
}

/* The sink of a head; without any -inf. */
template <typename T>
__device__ __forceinline__ mti_wide<T> mti_attn_sink(const mti_attn_args &x, int64_t h)
{
    typedef mti_wide<T> R;
    return x.sinks == NULL ? -R(INFINITY)
                           : R(mti_widen(static_cast<const T *>(x.sinks)[h * x.sinks_step]));
}

/* ---- the two paths; backward expects delta to be computed ---- */

/* 16-bit floats, 0 < d <= 128 and a multiple of 8, rows at multiples of 16 bytes, scale > 0. */
bool mti_attn_forward_tensor(mti_ctx *ctx, const mti_attn_args &x, mt_dtype dtype);
bool mti_attn_backward_tensor(mti_ctx *ctx, const mti_attn_args &x, mt_dtype dtype, void *scratch);
/* Bytes of its scratch, which begins at a multiple of 16. */
size_t mti_attn_backward_tensor_scratch(const mti_attn_args &x, mt_dtype dtype);
/* All other calls. */
bool mti_attn_forward_general(mti_ctx *ctx, const mti_attn_args &x, mt_dtype dtype);
bool mti_attn_backward_general(mti_ctx *ctx, const mti_attn_args &x, mt_dtype dtype);

/* ---- dropout ---- */

/* A template parameter of the kernels. With MTI_DROP_QUADS each row begins at a multiple of four
 * draws, so four columns share a counter. Both ways in one kernel took five times the code. */
enum mti_drop_kind { MTI_DROP_NONE, MTI_DROP_ANY, MTI_DROP_QUADS };

__host__ __device__ constexpr bool mti_drops(mti_drop_kind kind) { return kind != MTI_DROP_NONE; }

static inline mti_drop_kind mti_attn_drop_kind(const mti_attn_args &x)
{
    return x.seed == NULL ? MTI_DROP_NONE : x.t % 4 == 0 ? MTI_DROP_QUADS : MTI_DROP_ANY;
}

/* The mask's generator, read once per thread. */
struct mti_attn_drop {
    uint64_t seed, offset;
    uint32_t threshold;
};

__device__ __forceinline__ mti_attn_drop mti_attn_read_drop(const mti_attn_args &x)
{
    mti_attn_drop r = {0, 0, x.threshold};
    if (x.seed != NULL) {
        r.seed = static_cast<uint64_t>(*x.seed);
        r.offset = static_cast<uint64_t>(*x.offset);
    }
    return r;
}

/* Bit w: whether draw 4 quad + w is kept. */
__device__ __forceinline__ uint32_t mti_attn_keep4(const mti_attn_drop &r, int64_t quad)
{
    mti_u32x4 u = mti_philox(r.seed, r.offset + static_cast<uint64_t>(quad));
    uint32_t bits = 0;
#pragma unroll
    for (int w = 0; w < 4; w++) bits |= (u.v[w] >> 8) >= r.threshold ? 1u << w : 0u;
    return bits;
}

/* Whether draw `at` is kept. */
__device__ __forceinline__ bool mti_attn_keep(const mti_attn_drop &r, int64_t at)
{
    return (mti_attn_keep4(r, at / 4) >> (at % 4)) & 1u;
}

/* ---- shared memory ---- */

/* A kernel must request more than 48 KiB of shared memory per block, once on each GPU. */
template <void (*KERNEL)(const mti_attn_args)>
bool mti_attn_allow_shared(const mti_ctx *ctx, size_t n_bytes)
{
    static std::atomic<uint64_t> requested; /* a bit for each of the first 64 GPUs */
    uint64_t bit = ctx->device < 64 ? (uint64_t)1 << ctx->device : 0;
    if (requested.load() & bit) return true;
    if (!mti_cuda_ok(cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(n_bytes)),
                     "attention: shared memory of a block"))
        return false;
    requested.fetch_or(bit);
    return true;
}

#endif
