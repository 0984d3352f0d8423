/* max.cu: the largest element over the trailing dimensions of x, and its index. Neighbouring
 * threads read neighbouring elements: if the searched dimensions are contiguous, a warp or a
 * block per element of y, in 16-byte pieces; if y's last dimension is, a thread per element. Where
 * elements of y are few and each has many to choose from, blocks share one: each leaves the largest
 * of its part on a desk, and a second kernel takes the largest of these. */
#include "backends/cuda/device/desk.h"
#include "backends/cuda/rows/dims.cuh"
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/reduce.cuh"

#define BLOCK      256
#define WARP       32
#define LEAST_PART 8192 /* elements, for each of the blocks that share one of y */

static int64_t step_of(const mti_view_dims &d)
{
    return d.rank ? mti_magnitude(d.stride[d.rank - 1]) : 0;
}

struct max_job {
    const void *x;
    void *y;
    int64_t *index; /* null: not needed */
    mti_view_dims kept, searched;
    int team_size; /* threads per element of y, of a block */
    int parts;     /* blocks per element of y, each with `part` of the searched elements */
    int64_t part;
    mti_desk *desk;
};

template <class A> struct largest {
    A value;
    int64_t at; /* -1: no element yet */
};

/* NaN counts as largest; among equals the first wins. */
template <class A>
static __device__ __forceinline__ largest<A> larger(const largest<A> &a, const largest<A> &b)
{
    if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    bool same = (a_nan && b_nan) || a.value == b.value;
    bool take_a = same ? a.at < b.at : a_nan || (!b_nan && a.value > b.value);
    return take_a ? a : b;
}

template <class A> static __device__ __forceinline__ largest<A> of_warp(largest<A> best)
{
    for (int away = WARP / 2; away > 0; away /= 2) {
        largest<A> other = {__shfl_xor_sync(0xffffffffu, best.value, away),
                            __shfl_xor_sync(0xffffffffu, best.at, away)};
        best = larger(best, other);
    }
    return best;
}

/* Adds an element that comes after those that it is compared with. */
template <class A>
static __device__ __forceinline__ void take(largest<A> &best, A value, int64_t at)
{
    bool nan = value != value && best.value == best.value;
    if (best.at < 0 || nan || value > best.value) best = {value, at};
}

/* The largest of every team_size-th chunk of a contiguous row. */
template <class T>
static __device__ __forceinline__ largest<mti_wide<T>> of_chunks(const T *x, int64_t n, int rank,
                                                                 int team_size)
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>;
    const mti_row<const T> row(x, n, mti_skew(x));
    int chunks = mti_chunks<T>(n, row.skew);
    largest<A> best = {(A)0, -1};
    for (int c = rank; c < chunks; c += team_size) {
        A v[N];
        row.load(c, v, (A)0);
        auto in = row.inside(c);
        MTI_UNROLL
        for (int k = 0; k < N; k++)
            if (in.has(k)) take(best, v[k], row.first(c) + k);
    }
    return best;
}

/* The same of elements first, first + team_size, ... below end. */
template <class T>
static __device__ __forceinline__ largest<mti_wide<T>> of_elements(const T *x,
                                                                   const mti_view_dims &searched,
                                                                   int64_t first, int64_t end,
                                                                   int team_size)
{
    largest<mti_wide<T>> best = {0, -1};
    for (int64_t r = first; r < end; r += team_size)
        take(best, mti_widen(x[mti_offset_of(searched, r)]), r);
    return best;
}

template <class T, bool DENSE>
__global__ void __launch_bounds__(BLOCK) max_of_rows(const max_job job)
{
    typedef mti_wide<T> A;
    MTI_SHARED(largest<A>, of_warps[BLOCK / WARP]);
    int rank = (int)threadIdx.x % job.team_size;
    int64_t k = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / job.team_size;
    bool live = k < job.kept.count;
    const T *x = static_cast<const T *>(job.x) + (live ? mti_offset_of(job.kept, k) : 0);
    int64_t begin = blockIdx.y * job.part, left = job.searched.count - begin;
    int64_t n = left < job.part ? left : job.part;
    largest<A> best = {(A)0, -1};
    if (live && DENSE) best = of_chunks(x + begin, n, rank, job.team_size);
    if (DENSE && best.at >= 0) best.at += begin;
    if (live && !DENSE) best = of_elements(x, job.searched, begin + rank, begin + n, job.team_size);
    best = of_warp(best);
    if (job.team_size == BLOCK) {
        if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = best;
        __syncthreads();
        for (int i = 0; i < BLOCK / WARP; i++) best = larger(best, of_warps[i]);
    }
    if (!live || rank != 0) return;
    if (job.parts > 1) {
        job.desk->sum[k * job.parts + blockIdx.y] = (double)best.value;
        job.desk->count[k * job.parts + blockIdx.y] = best.at;
        return;
    }
    static_cast<T *>(job.y)[k] = mti_narrow<T>(best.value);
    if (job.index) job.index[k] = best.at;
}

template <class T> __global__ void __launch_bounds__(WARP) max_of_parts(const max_job job)
{
    int64_t k = blockIdx.x, first = k * job.parts;
    largest<double> best = {0, -1};
    for (int p = (int)threadIdx.x; p < job.parts; p += WARP)
        best = larger(best, {job.desk->sum[first + p], job.desk->count[first + p]});
    best = of_warp(best);
    if (threadIdx.x != 0) return;
    static_cast<T *>(job.y)[k] = mti_narrow<T>((mti_wide<T>)best.value);
    if (job.index) job.index[k] = best.at;
}

template <class T> __global__ void __launch_bounds__(BLOCK) max_of_columns(const max_job job)
{
    typedef mti_wide<T> A;
    int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (k >= job.kept.count) return; /* no barrier follows */
    const T *x = static_cast<const T *>(job.x) + mti_offset_of(job.kept, k);
    largest<A> best = of_elements(x, job.searched, 0, job.searched.count, 1);
    static_cast<T *>(job.y)[k] = mti_narrow<T>(best.value);
    if (job.index) job.index[k] = best.at;
}

/* Whether the searched elements are neighbours, and few enough to number their chunks. */
template <class T> static bool dense(const max_job &job)
{
    const mti_view_dims &d = job.searched;
    return d.rank == 1 && d.stride[0] == 1 && d.count < (int64_t)(((uint64_t)1 << 35) / sizeof(T));
}

/* By the shape alone. */
static int parts_of(const max_job &job)
{
    int64_t parts = job.searched.count / LEAST_PART, most = MTI_DESK_SLOTS / job.kept.count;
    parts = parts < most ? parts : most;
    return parts < 1 ? 1 : (int)parts;
}

bool mti_cuda_max(mti_ctx *ctx, const mti_view *x, const mti_view *y, const mti_view *index)
{
    max_job job = {};
    job.x = x->data, job.y = y->data, job.index = mti_data<int64_t>(index);
    job.kept = mti_dims_of(x, 0, y->rank), job.searched = mti_dims_of(x, y->rank, x->rank);
    if (job.kept.count == 0) return true;
    bool columns =
        job.searched.count == 1 || (job.kept.rank > 0 && step_of(job.kept) < step_of(job.searched));
    job.team_size = columns ? 1 : job.searched.count > 16 * WARP ? BLOCK : WARP;
    job.parts = job.team_size == BLOCK ? parts_of(job) : 1;
    job.part = (job.searched.count + job.parts - 1) / job.parts;
    mti_borrowed_desk own(ctx);
    if (!own.place) return false;
    job.desk = own.place->desk;
    dim3 grid(mti_blocks(job.kept.count * job.team_size, BLOCK), (unsigned)job.parts);
    return mti_for_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        auto max_forward = columns         ? max_of_columns<T>
                           : dense<T>(job) ? max_of_rows<T, true>
                                           : max_of_rows<T, false>;
        auto max_join = max_of_parts<T>;
        return MTI_LAUNCH(ctx, max_forward, grid, BLOCK, 0, job) &&
               (job.parts == 1 ||
                MTI_LAUNCH(ctx, max_join, mti_blocks(job.kept.count), WARP, 0, job));
    });
}

/* ---- backward: dy goes to the largest element, 0 to the others ---- */

struct max_scatter_job {
    const int64_t *index;
    const void *dy;
    void *dx;
    mti_view_dims from, kept, searched; /* dy's; dx's */
};

template <class T> __global__ void __launch_bounds__(BLOCK) max_scatter(const max_scatter_job job)
{
    int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (k >= job.kept.count) return; /* no barrier follows */
    int64_t to = mti_offset_of(job.kept, k) + mti_offset_of(job.searched, job.index[k]);
    static_cast<T *>(job.dx)[to] = static_cast<const T *>(job.dy)[mti_offset_of(job.from, k)];
}

bool mti_cuda_max_backward(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                           const mti_view *dx)
{
    max_scatter_job job = {};
    job.index = mti_data<const int64_t>(index), job.dy = dy->data, job.dx = dx->data;
    job.from = mti_dims_of(dy, 0, dy->rank), job.kept = mti_dims_of(dx, 0, dy->rank);
    job.searched = mti_dims_of(dx, dy->rank, dx->rank);
    if (job.kept.count == 0) return true;
    unsigned blocks = mti_blocks(job.kept.count, BLOCK);
    return mti_cuda_fill(ctx, dx, 0) && mti_for_float(dx->dtype, [&](auto t) {
               auto max_backward = max_scatter<decltype(t)>;
               return MTI_LAUNCH(ctx, max_backward, blocks, BLOCK, 0, job);
           });
}
