/* embedding.cu: rows of a table by index, and the sum of gradients into them. */
#include "backends/cuda/device/fault.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/reduce.cuh"

/* ---- forward ---- */

#define GATHER_BLOCK  256
#define GATHER_CHUNKS 4 /* that a thread loads before it stores */

struct gather_rows_job {
    const int64_t *index;
    mti_rowset w, y;
    mti_fault *fault;
    int team_size;
    bool part; /* own_rows has noted bad indices */
};

/* T is an integer of the element's size. A bad index is noted, and its row becomes zeros. */
template <class T> __global__ void __launch_bounds__(GATHER_BLOCK) gather_rows(gather_rows_job job)
{
    constexpr int N = mti_chunk_width<T>;
    int rank = (int)threadIdx.x % job.team_size;
    int64_t r = (int64_t)blockIdx.x * (GATHER_BLOCK / job.team_size) + threadIdx.x / job.team_size;
    if (r >= job.y.rows) return; /* no barriers below */
    int64_t at = job.index[r], n = job.y.n;
    bool good = at >= 0 && at < job.w.rows;
    if (!good && !job.part && rank == 0)
        mti_note_bad(job.fault, MTI_FAULT_INDEX, job.index, r, job.w.rows, 0);
    T *to = mti_row_at<T>(job.y, r);
    int skew = mti_skew(to);
    mti_row<T> y(to, n, skew);
    mti_row<const T> w(mti_row_at<const T>(job.w, good ? at : 0), good ? n : 0, skew);
    int chunks = mti_chunks<T>(n, skew), step = GATHER_CHUNKS * job.team_size;
    for (int c = rank; c < chunks; c += step) {
        mti_vec<T, N> v[GATHER_CHUNKS];
        MTI_UNROLL
        for (int i = 0; i < GATHER_CHUNKS; i++) v[i] = w.fetch(c + i * job.team_size);
        MTI_UNROLL
        for (int i = 0; i < GATHER_CHUNKS; i++) y.put(c + i * job.team_size, v[i]);
    }
}

/* Threads, in a block of `block`, that share a row of n elements. */
static int share_row(int64_t n, size_t element_size, int block)
{
    int64_t chunks = n * (int64_t)element_size / 16 + 2; /* for any alignment of the row */
    int size = 1;
    while (size < block && size * 2 <= chunks) size *= 2;
    return size;
}

bool mti_cuda_embedding(mti_ctx *ctx, bool part, const mti_view *index, const mti_view *w,
                        const mti_view *y)
{
    gather_rows_job job = {};
    job.index = mti_data<const int64_t>(index), job.w = mti_rowset_of(w), job.y = mti_rowset_of(y);
    job.fault = ctx->fault, job.part = part;
    if (job.y.rows == 0) return true;
    if (!mti_rows_are_short("embedding", &job.y, mt_dtype_size(w->dtype))) return false;
    job.team_size = share_row(job.y.n, mt_dtype_size(w->dtype), GATHER_BLOCK);
    unsigned blocks = mti_blocks(job.y.rows, GATHER_BLOCK / job.team_size);
    return mti_for_float(w->dtype, [&](auto t) {
        auto embedding = gather_rows<decltype(t)>;
        return MTI_LAUNCH(ctx, embedding, blocks, GATHER_BLOCK, 0, job);
    });
}

/* ---- backward ----
 *
 * A stable radix sort orders the positions by index (least significant digit first, 8 bits at a
 * time); then every row of dw is the sum of its own rows of dy. A bad index is replaced by the
 * number after the last row: it is sorted to the end, and no row uses it. */

#define DIGITS     256
#define SORT_BLOCK 256 /* threads; one for each digit */
#define SORT_WARPS (SORT_BLOCK / 32)
#define TILE       2048 /* positions per block */
#define SCAN_BLOCK 1024
#define SUM_BLOCK  256
#define SUM_WARPS  (SUM_BLOCK / 32)
#define LONG_RUN   64 /* the warps of a block share a longer run */

struct sort_job {
    const int64_t *index;     /* in the first pass; later NULL */
    const uint32_t *key, *at; /* [count] in the order of the previous pass */
    uint32_t *key_out, *at_out;
    uint32_t *offset; /* [DIGITS, tiles]: first counts; then the position of the first */
    int64_t count, rows, tiles;
    int shift; /* of the digit */
    bool part; /* own_rows has noted bad indices */
    mti_fault *fault;
};

static __device__ __forceinline__ uint32_t key_of(const sort_job &job, int64_t i)
{
    if (!job.index) return job.key[i];
    int64_t index = job.index[i];
    return (uint32_t)(index >= 0 && index < job.rows ? index : job.rows);
}

static __device__ __forceinline__ int digit_of(const sort_job &job, uint32_t key)
{
    return (int)(key >> job.shift) % DIGITS;
}

/* offset[d, tile] = how many keys of the tile have digit d. The first pass notes bad indices. */
__global__ void __launch_bounds__(SORT_BLOCK) count_digits(sort_job job)
{
    MTI_SHARED(unsigned, counts[DIGITS]);
    counts[threadIdx.x] = 0;
    __syncthreads();
    int64_t first = (int64_t)blockIdx.x * TILE;
    for (int64_t i = first + threadIdx.x; i < first + TILE && i < job.count; i += SORT_BLOCK) {
        uint32_t key = key_of(job, i);
        atomicAdd(&counts[digit_of(job, key)], 1u);
        if (job.index && !job.part && key == job.rows)
            mti_note_bad(job.fault, MTI_FAULT_INDEX, job.index, i, job.rows, 0);
    }
    __syncthreads();
    job.offset[(int64_t)threadIdx.x * job.tiles + blockIdx.x] = counts[threadIdx.x];
}

/* Exclusive prefix sums of offset, in place; one block, each thread has a run of n / SCAN_BLOCK. */
__global__ void __launch_bounds__(SCAN_BLOCK) scan_offsets(uint32_t *offset, int64_t n)
{
    MTI_SHARED(uint32_t, sums[2][SCAN_BLOCK]);
    int t = (int)threadIdx.x, now = 0;
    int64_t run = (n + SCAN_BLOCK - 1) / SCAN_BLOCK, first = t * run, end = first + run;
    end = end < n ? end : n;
    uint32_t sum = 0;
    for (int64_t i = first; i < end; i++) sum += offset[i];
    sums[now][t] = sum;
    __syncthreads();
    for (int away = 1; away < SCAN_BLOCK; away *= 2, now ^= 1) {
        sums[now ^ 1][t] = sums[now][t] + (t >= away ? sums[now][t - away] : 0);
        __syncthreads();
    }
    uint32_t before = sums[now][t] - sum;
    for (int64_t i = first; i < end; i++) {
        uint32_t here = offset[i];
        offset[i] = before;
        before += here;
    }
}

/* The lanes of the warp with the caller's `digit`, among the lanes that are `live`. */
static __device__ __forceinline__ unsigned peers_of(int digit, bool live)
{
    unsigned peers = __ballot_sync(0xffffffffu, live);
    for (int bit = 1; bit < DIGITS; bit *= 2) {
        unsigned ones = __ballot_sync(0xffffffffu, (digit & bit) != 0);
        peers &= (digit & bit) ? ones : ~ones;
    }
    return peers;
}

/* Moves the tile's positions to their places, SORT_BLOCK at a time: a key follows those of its
 * digit in earlier rounds, earlier warps and earlier lanes. */
__global__ void __launch_bounds__(SORT_BLOCK) move_digits(sort_job job)
{
    MTI_SHARED(uint32_t, next[DIGITS]);
    MTI_SHARED(uint32_t, of_warp[SORT_WARPS][DIGITS]);
    int t = (int)threadIdx.x, lane = t % 32, warp = t / 32;
    next[t] = job.offset[(int64_t)t * job.tiles + blockIdx.x];
    int64_t first = (int64_t)blockIdx.x * TILE;
    for (int64_t round = first; round < first + TILE && round < job.count; round += SORT_BLOCK) {
        int64_t i = round + t;
        bool live = i < job.count;
        uint32_t key = live ? key_of(job, i) : 0;
        int digit = digit_of(job, key);
        for (int w = 0; w < SORT_WARPS; w++) of_warp[w][t] = 0;
        __syncthreads();
        unsigned peers = peers_of(digit, live), before = peers & ((1u << lane) - 1);
        if (live && before == 0) of_warp[warp][digit] = (uint32_t)__popc(peers);
        __syncthreads();
        uint32_t place = next[t];
        for (int w = 0; w < SORT_WARPS; w++) {
            uint32_t here = of_warp[w][t];
            of_warp[w][t] = place;
            place += here;
        }
        next[t] = place;
        __syncthreads();
        if (live) {
            uint32_t to = of_warp[warp][digit] + (uint32_t)__popc(before);
            job.key_out[to] = key;
            job.at_out[to] = job.index ? (uint32_t)i : job.at[i];
        }
        __syncthreads();
    }
}

/* start[r] = the number of sorted keys less than r, for r in [0, rows]. */
__global__ void __launch_bounds__(SUM_BLOCK)
    find_runs(const uint32_t *key, int64_t count, int64_t rows, uint32_t *start)
{
    int64_t r = (int64_t)blockIdx.x * SUM_BLOCK + threadIdx.x;
    if (r > rows) return; /* no barriers below */
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (key[middle] < r)
            low = middle + 1;
        else
            high = middle;
    }
    start[r] = (uint32_t)low;
}

struct sum_job {
    mti_rowset dy, dw;
    const uint32_t *start, *at; /* row r has positions at[start[r]], ..., at[start[r + 1] - 1] */
};

/* The sum over positions at[begin], ..., at[end - 1] of chunk c of dy. */
template <class T, class A, int N>
static __device__ __forceinline__ void add_run(const sum_job &job, int64_t begin, int64_t end,
                                               int c, A (&sum)[N])
{
    constexpr int AHEAD = 8;
    for (int k = 0; k < N; k++) sum[k] = 0;
    if ((int64_t)c * N >= job.dy.n) return;
    for (int64_t i = begin; i < end; i += AHEAD) {
        mti_packed_vec<T, N> dy[AHEAD];
        MTI_UNROLL
        for (int u = 0; u < AHEAD; u++) {
            int64_t from = job.at[i + u < end ? i + u : begin];
            mti_row<const T> row(mti_row_at<const T>(job.dy, from), job.dy.n, 0);
            dy[u] = row.fetch_packed(c);
        }
        MTI_UNROLL
        for (int u = 0; u < AHEAD; u++) {
            auto from = dy[u].open();
            MTI_UNROLL
            for (int k = 0; k < N; k++)
                if (i + u < end) sum[k] += mti_widen(from.v[k]);
        }
    }
}

/* Block (b, p) adds piece p, 32 chunks wide, of SUM_WARPS rows of dw, one row per warp. A long run
 * is divided into SUM_WARPS parts, one per warp; their sums are added in order. */
template <class T> __global__ void __launch_bounds__(SUM_BLOCK) add_rows(sum_job job)
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>;
    MTI_SHARED(A, parts[SUM_WARPS][N][32]);
    int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    int64_t first = (int64_t)blockIdx.x * SUM_WARPS, mine = first + warp;
    int c = (int)blockIdx.y * 32 + lane;
    A sum[N];
    if (mine < job.dw.rows) {
        int64_t begin = job.start[mine], end = job.start[mine + 1];
        if (end - begin <= LONG_RUN) {
            add_run<T>(job, begin, end, c, sum);
            mti_row<T>(mti_row_at<T>(job.dw, mine), job.dw.n, 0).store(c, sum);
        }
    }
    for (int64_t r = first; r < first + SUM_WARPS && r < job.dw.rows; r++) {
        int64_t begin = job.start[r], end = job.start[r + 1];
        if (end - begin <= LONG_RUN) continue; /* the same for the whole block */
        int64_t part = (end - begin + SUM_WARPS - 1) / SUM_WARPS, from = begin + warp * part;
        add_run<T>(job, from, from + part < end ? from + part : end, c, sum);
        for (int k = 0; k < N; k++) parts[warp][k][lane] = sum[k];
        __syncthreads();
        if (warp == 0) {
            for (int w = 1; w < SUM_WARPS; w++)
                for (int k = 0; k < N; k++) sum[k] += parts[w][k][lane];
            mti_row<T>(mti_row_at<T>(job.dw, r), job.dw.n, 0).store(c, sum);
        }
        __syncthreads();
    }
}

/* Offsets in the scratch, in units of 32 bits. */
struct scratch_plan {
    int64_t key[2], at[2], offset, start, total;
};

static scratch_plan plan_scratch(int64_t count, int64_t rows)
{
    scratch_plan plan;
    int64_t tiles = (count + TILE - 1) / TILE, used = 0;
    for (int i = 0; i < 2; i++) {
        plan.key[i] = used, used += count;
        plan.at[i] = used, used += count;
    }
    plan.offset = used, used += DIGITS * tiles;
    plan.start = used, used += rows + 1;
    plan.total = used;
    return plan;
}

size_t mti_cuda_embedding_backward_scratch(mti_ctx *, const mti_view *index, const mti_view *dw)
{
    mti_rowset all = mti_rowset_of(index);
    return (size_t)plan_scratch(all.rows * all.n, dw->shape[0]).total * sizeof(uint32_t);
}

/* Sorts; returns the number of the scratch buffer that holds the result. */
static bool sort_positions(mti_ctx *ctx, bool part, const int64_t *index, int64_t count,
                           int64_t rows, uint32_t *scratch, const scratch_plan *plan, int *half)
{
    sort_job job = {};
    job.part = part, job.index = index, job.offset = scratch + plan->offset, job.count = count;
    job.rows = rows, job.tiles = (count + TILE - 1) / TILE, job.fault = ctx->fault;
    int from = 1;
    for (; job.shift == 0 || rows >> job.shift > 0; job.shift += 8, from ^= 1) {
        job.key = scratch + plan->key[from], job.at = scratch + plan->at[from];
        job.key_out = scratch + plan->key[from ^ 1], job.at_out = scratch + plan->at[from ^ 1];
        if (!MTI_LAUNCH(ctx, count_digits, mti_blocks(job.tiles), SORT_BLOCK, 0, job) ||
            !MTI_LAUNCH(ctx, scan_offsets, 1, SCAN_BLOCK, 0, job.offset, DIGITS * job.tiles) ||
            !MTI_LAUNCH(ctx, move_digits, mti_blocks(job.tiles), SORT_BLOCK, 0, job))
            return false;
        job.index = nullptr;
    }
    *half = from;
    return true;
}

bool mti_cuda_embedding_backward(mti_ctx *ctx, bool part, const mti_view *index, const mti_view *dy,
                                 const mti_view *dw, void *scratch)
{
    sum_job job = {};
    job.dy = mti_rowset_of(dy), job.dw = mti_rowset_of(dw);
    mti_rowset all = mti_rowset_of(index);
    int64_t count = all.rows * all.n, rows = dw->shape[0];
    uint32_t *words = static_cast<uint32_t *>(scratch), *start;
    scratch_plan plan = plan_scratch(count, rows);
    int half = 0;
    if (count >= UINT32_MAX || rows >= UINT32_MAX)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "embedding: the backward pass takes less than 2^32 indices and rows");
    start = words + plan.start;
    if (count > 0 && !sort_positions(ctx, part, mti_data<const int64_t>(index), count, rows, words,
                                     &plan, &half))
        return false;
    if (rows == 0 || job.dw.n == 0) return true;
    if (!MTI_LAUNCH(ctx, find_runs, mti_blocks(rows / SUM_BLOCK + 1), SUM_BLOCK, 0,
                    static_cast<const uint32_t *>(words + plan.key[half]), count, rows, start))
        return false;
    job.start = start, job.at = words + plan.at[half];
    return mti_for_float(dw->dtype, [&](auto t) {
        constexpr int64_t of_lanes = 32 * mti_chunk_width<decltype(t)>;
        dim3 grid(mti_blocks(job.dw.rows, SUM_WARPS), mti_blocks(job.dw.n, of_lanes));
        auto embedding_backward = add_rows<decltype(t)>;
        return MTI_LAUNCH(ctx, embedding_backward, grid, SUM_BLOCK, 0, job);
    });
}
