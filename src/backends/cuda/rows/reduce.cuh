/* reduce.cuh: rows, and the threads that share one.
 *
 * A row is divided into chunks that begin at 16-byte boundaries of memory, so the first and the
 * last may extend beyond the row. A chunk is one vector access; at the ends, and in a second row
 * with another alignment, it is read element by element. The threads that share a row are a
 * team: 1 to 32 neighbouring lanes of a warp, or a whole block. Thread `rank` has the chunks
 * rank, rank + size, ...; so the order of every sum follows from the row's length and alignment
 * alone. */
#ifndef MTI_REDUCE_CUH
#define MTI_REDUCE_CUH

#include <type_traits>
#include "backends/cuda/rows/dims.cuh"
#include "backends/cuda/walk.cuh"

/* ---- scalars ---- */

/* exp(x), x <= 0, of differences of numbers that were stored as T: for 16 bits the hardware's 2^x
 * is exact enough. (Not as one multiply-add, x log2(e) - base log2(e): rounding the last product
 * shows where base is large.) */
template <class T> static __device__ __forceinline__ mti_wide<T> mti_exp_of(mti_wide<T> x)
{
    if constexpr (sizeof(T) == 2)
        return mti_exp2_fast(x * (float)MTI_LOG2E);
    else
        return mti_exp_below(x);
}

/* ---- chunks of a row ---- */

/* Elements per chunk. */
template <class T> constexpr int mti_chunk_width = 16 / (int)sizeof(T);

/* Elements from the 16-byte boundary at or before p to p. */
template <class T> static __device__ __forceinline__ int mti_skew(const T *p)
{
    return (int)(reinterpret_cast<uintptr_t>(p) % 16 / sizeof(T));
}

/* Number of chunks of n elements that begin `skew` elements after a boundary. Chunk numbers have 32
 * bits, as 64 would cost the kernels registers: a row has less than 32 GiB (mti_rows_are_short). */
template <class T> static __device__ __forceinline__ int mti_chunks(int64_t n, int skew)
{
    constexpr int N = mti_chunk_width<T>;
    return n > 0 ? (int)((uint64_t)(skew + n + N - 1) / N) : 0;
}

/* The n elements from p on, in chunks of N; chunk 0 begins `skew` elements before p. T may be
 * const.
 */
template <class T> struct mti_row {
    typedef std::remove_const_t<T> element;
    typedef mti_wide<element> A;
    static constexpr int N = mti_chunk_width<T>;
    T *p;
    int64_t n;
    int skew, from; /* [from, from + whole): chunks that are inside the row, and aligned */
    unsigned whole;

    __device__ __forceinline__ mti_row(T *at, int64_t length, int of_chunks)
        : p(at), n(length), skew(of_chunks), from(of_chunks > 0)
    {
        int end = (int)((uint64_t)(skew + n) / N);
        whole = mti_skew(at) == skew && end > from ? (unsigned)(end - from) : 0u;
    }
    __device__ __forceinline__ bool is_whole(int c) const { return (unsigned)(c - from) < whole; }
    /* the first element of chunk c */
    __device__ __forceinline__ int64_t first(int c) const { return (int64_t)c * N - skew; }

    /* The elements of chunk c that the row has: [begin, end). */
    struct part {
        int begin, end;
        __device__ __forceinline__ bool has(int k) const { return k >= begin && k < end; }
    };
    __device__ __forceinline__ part inside(int c) const
    {
        int64_t j = first(c);
        return {j < 0 ? (int)-j : 0, n - j < N ? (int)(n - j) : N};
    }

    __device__ __forceinline__ mti_vec<element, N> fetch_part(int c) const
    {
        T *at = p + first(c);
        part in = inside(c);
        mti_vec<element, N> chunk;
        MTI_UNROLL
        for (int k = 0; k < N; k++) chunk.v[k] = in.has(k) ? at[k] : mti_narrow<element>(0.0f);
        return chunk;
    }

    /* in the stored type; 0 beyond the row's ends */
    __device__ __forceinline__ mti_vec<element, N> fetch(int c) const
    {
        return is_whole(c) ? mti_load<N>(p + first(c)) : fetch_part(c);
    }
    __device__ __forceinline__ mti_packed_vec<element, N> fetch_packed(int c) const
    {
        mti_packed_vec<element, N> chunk;
        if (is_whole(c)) {
            auto w = mti_load<(int)(16 / sizeof(uint32_t))>(
                reinterpret_cast<const uint32_t *>(p + first(c)));
            memcpy(chunk.words, &w, sizeof w);
        } else
            chunk = fetch_part(c);
        return chunk;
    }
    __device__ __forceinline__ void put(int c, const mti_vec<element, N> &chunk) const
    {
        T *at = p + first(c);
        if (is_whole(c)) {
            mti_store(at, chunk);
        } else {
            part in = inside(c);
            MTI_UNROLL
            for (int k = 0; k < N; k++)
                if (in.has(k)) at[k] = chunk.v[k];
        }
    }
    /* in the wide type; `beyond` beyond the row's ends */
    __device__ __forceinline__ void load(int c, A (&v)[N], A beyond) const
    {
        T *at = p + first(c);
        if (is_whole(c)) {
            mti_vec<element, N> pack = mti_load<N>(at);
            MTI_UNROLL
            for (int k = 0; k < N; k++) v[k] = mti_widen(pack.v[k]);
        } else {
            part in = inside(c);
            MTI_UNROLL
            for (int k = 0; k < N; k++) v[k] = in.has(k) ? mti_widen(at[k]) : beyond;
        }
    }
    __device__ __forceinline__ void store(int c, const A (&v)[N]) const
    {
        mti_vec<element, N> pack;
        MTI_UNROLL
        for (int k = 0; k < N; k++) pack.v[k] = mti_narrow<element>(v[k]);
        put(c, pack);
    }
};

/* ---- the rows of a view: all dimensions but the last, which is contiguous ---- */

struct mti_rowset {
    void *data;
    int64_t rows, n;
    mti_view_dims dims; /* of rows */
};

static inline mti_rowset mti_rowset_of(const mti_view *v)
{
    mti_view_dims dims = mti_dims_of(v, 0, v->rank - 1);
    return {v->data, dims.count, v->rank ? v->shape[v->rank - 1] : 1, dims};
}

/* True if every row begins at a 16-byte boundary. */
static inline bool mti_rowset_aligned(const mti_rowset *s, size_t element_size)
{
    size_t places = (size_t) reinterpret_cast<uintptr_t>(s->data);
    for (int d = 0; d < s->dims.rank; d++) places |= (size_t)s->dims.stride[d] * element_size;
    return places % 16 == 0;
}

/* False, with an error, if a row is too long for the numbers of its chunks. */
static inline bool mti_rows_are_short(const char *kernel, const mti_rowset *s, size_t element_size)
{
    return s->n < (int64_t)(((uint64_t)1 << 35) / element_size) ||
           mti_fail_bool(MT_ERR_UNSUPPORTED, "%s: a row of %lld elements; need less than 32 GiB",
                         kernel, (long long)s->n);
}

template <class T> static __device__ __forceinline__ T *mti_row_at(const mti_rowset &s, int64_t r)
{
    return static_cast<T *>(s.data) + mti_offset_of(s.dims, r);
}

/* ---- teams ---- */

/* How a row fits: in the registers of a team within a warp, in those of a block, or not at all. */
enum mti_row_fit { MTI_FIT_WARP, MTI_FIT_BLOCK, MTI_FIT_LONG };

#define MTI_WARP_BLOCK 128 /* threads per block if teams lie within warps */
#define MTI_ROW_BLOCK  512 /* most threads per block that is one team */

/* Long rows need two blocks per multiprocessor: one loads while the other waits. */
#define MTI_ROW_KERNEL(FIT)                                                                        \
    __global__ void __launch_bounds__((FIT) == MTI_FIT_WARP ? MTI_WARP_BLOCK : MTI_ROW_BLOCK,      \
                                      (FIT) == MTI_FIT_LONG ? 2 : 1)

/* Chunks in a thread's registers at a time: HELD of a row that fits. */
template <class T, mti_row_fit FIT, int HELD>
constexpr int mti_room = FIT != MTI_FIT_LONG       ? HELD
                         : mti_chunk_width<T> == 8 ? 2
                                                   : 4;

struct mti_row_plan {
    mti_row_fit fit;
    int size;    /* threads per team */
    int teams;   /* teams per block */
    int threads; /* threads per block */
};

/* For rows of n elements if a thread can hold `held` chunks. */
static inline mti_row_plan mti_plan_rows(int64_t n, size_t element_size, bool aligned, int held)
{
    int64_t per_chunk = 16 / (int64_t)element_size;
    int64_t chunks = (n + (aligned ? 0 : per_chunk - 1) + per_chunk - 1) / per_chunk;
    mti_row_plan plan = {MTI_FIT_WARP, 1, 0, MTI_WARP_BLOCK};
    if (chunks <= 32 * held) {
        /* up to 8 lanes before a lane takes a second chunk: neighbours read neighbouring bytes */
        while (plan.size < 32 && plan.size < chunks && (plan.size < 8 || plan.size * held < chunks))
            plan.size *= 2;
    } else if (chunks <= (int64_t)MTI_ROW_BLOCK * held) {
        plan.fit = MTI_FIT_BLOCK;
        plan.size = plan.threads = (int)((chunks + 32 * held - 1) / (32 * held)) * 32;
    } else {
        plan.fit = MTI_FIT_LONG;
        plan.size = plan.threads = MTI_ROW_BLOCK;
    }
    plan.teams = plan.threads / plan.size;
    return plan;
}

/* A team for a row of n elements at any alignment, in a block without barriers. */
template <class T> int mti_team_size(int64_t n, int block)
{
    int64_t chunks = (n + 2 * mti_chunk_width<T> - 2) / mti_chunk_width<T>;
    int size = 1;
    while (size < block && size < chunks) size *= 2;
    return size;
}

/* The sum of x over `size` neighbouring lanes, a power of two; all lanes get the same bits. */
template <class A> static __device__ __forceinline__ A mti_lanes_sum(A x, int size)
{
    for (int away = size / 2; away > 0; away /= 2) x += __shfl_xor_sync(0xffffffffu, x, away);
    return x;
}
template <class A> static __device__ __forceinline__ A mti_lanes_max(A x, int size)
{
    for (int away = size / 2; away > 0; away /= 2)
        x = max(x, __shfl_xor_sync(0xffffffffu, x, away));
    return x;
}

/* The calling thread's place in its team. Every thread of the block takes part in every sum and
 * maximum. The warps write their results to the two halves of `space` alternately: the barrier of
 * the next reduction makes the half reusable. */
template <class A, mti_row_fit FIT> struct mti_team {
    int rank, size, number; /* number: which team of the block */
    A *space;               /* 64 elements in shared memory; unused within a warp */
    int turn;

    __device__ __forceinline__ mti_team(int team_size, A *shared) : space(shared), turn(0)
    {
        size = FIT == MTI_FIT_WARP ? team_size : (int)blockDim.x;
        rank = (int)threadIdx.x % size;
        number = (int)threadIdx.x / size;
    }
    __device__ __forceinline__ A sum(A x)
    {
        if (FIT == MTI_FIT_WARP) return mti_lanes_sum(x, size);
        return mti_lanes_sum(gather(mti_lanes_sum(x, 32), (A)0), 32);
    }
    __device__ __forceinline__ A largest(A x)
    {
        if (FIT == MTI_FIT_WARP) return mti_lanes_max(x, size);
        return mti_lanes_max(gather(mti_lanes_max(x, 32), -(A)INFINITY), 32);
    }

  private:
    /* Lane i gets warp i's result, or `none`. */
    __device__ __forceinline__ A gather(A of_warp, A none)
    {
        int lane = (int)threadIdx.x % 32;
        A *half = space + 32 * turn;
        if (lane == 0) half[threadIdx.x / 32] = of_warp;
        __syncthreads();
        turn ^= 1;
        return lane < size / 32 ? half[lane] : none;
    }
};

/* The sum over a block, in the same order every time. */
template <class A> static __device__ __forceinline__ A mti_block_sum(A x)
{
    MTI_SHARED(A, space[64]);
    return mti_team<A, MTI_FIT_BLOCK>(0, space).sum(x);
}

/* ---- a thread's share of a row: chunks base + rank, base + rank + size, ... ---- */

template <class A, mti_row_fit FIT>
static __device__ __forceinline__ int mti_place(int base, int i, const mti_team<A, FIT> &team)
{
    return base + team.rank + i * team.size;
}

/* In the stored type, 0 beyond the row's ends: 16-bit floats then need half the registers. */
template <class T, class A, mti_row_fit FIT, int ROOM, class E, int N>
static __device__ __forceinline__ void mti_take(const mti_row<T> &row, int base,
                                                const mti_team<A, FIT> &team,
                                                mti_vec<E, N> (&v)[ROOM])
{
    MTI_UNROLL
    for (int i = 0; i < ROOM; i++) v[i] = row.fetch(mti_place(base, i, team));
}
template <class T, class A, mti_row_fit FIT, int ROOM, class E, int N>
static __device__ __forceinline__ void mti_take(const mti_row<T> &row, int base,
                                                const mti_team<A, FIT> &team,
                                                mti_packed_vec<E, N> (&v)[ROOM])
{
    MTI_UNROLL
    for (int i = 0; i < ROOM; i++) v[i] = row.fetch_packed(mti_place(base, i, team));
}

#endif
