/* max.cu: the largest element over the trailing dimensions of x, and which one it is. Neighbouring
 * threads read neighbouring elements: of what is searched, a warp or a block to an element of y, or
 * of y's last dimension, a thread to each. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/walk.cuh"

#define BLOCK 256
#define WARP  32

/* Dimensions of one kind, slowest first, merged where they lie one behind the other. */
struct max_dims {
    int rank;
    int64_t count, shape[MT_MAX_RANK], stride[MT_MAX_RANK];
};

static max_dims dims_of(const mti_view *v, int from, int to)
{
    max_dims d = {};
    d.count = 1;
    for (int k = from; k < to; k++) {
        d.count *= v->shape[k];
        if (v->shape[k] == 1) continue;
        int last = d.rank - 1;
        if (d.rank > 0 && d.stride[last] == v->stride[k] * v->shape[k]) {
            d.shape[last] *= v->shape[k];
            d.stride[last] = v->stride[k];
        } else {
            d.shape[d.rank] = v->shape[k];
            d.stride[d.rank++] = v->stride[k];
        }
    }
    return d;
}

static int64_t step_of(const max_dims &d)
{
    return d.rank ? mti_magnitude(d.stride[d.rank - 1]) : 0;
}

static __device__ __forceinline__ int64_t offset_of(const max_dims &d, int64_t i)
{
    int64_t offset = 0;
    for (int k = d.rank - 1; k > 0; k--) {
        offset += i % d.shape[k] * d.stride[k];
        i /= d.shape[k];
    }
    return d.rank > 0 ? offset + i * d.stride[0] : 0;
}

struct max_job {
    const void *x;
    void *y;
    int64_t *index; /* null: nobody needs it */
    max_dims kept, searched;
    int team; /* threads to an element of y */
};

template <class A> struct largest {
    A value;
    int64_t at; /* -1: nothing seen */
};

/* NaN is larger than all; of equals the first counts. */
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

template <class T> __global__ void __launch_bounds__(BLOCK) max_of_rows(const max_job job)
{
    typedef mti_wide<T> A;
    MTI_SHARED(largest<A>, of_warps[BLOCK / WARP]);
    int rank = (int)threadIdx.x % job.team;
    int64_t k = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) / job.team;
    bool live = k < job.kept.count;
    const T *x = static_cast<const T *>(job.x) + (live ? offset_of(job.kept, k) : 0);
    largest<A> best = {(A)0, -1};
    for (int64_t r = rank; live && r < job.searched.count; r += job.team) {
        largest<A> one = {mti_widen(x[offset_of(job.searched, r)]), r};
        best = larger(best, one);
    }
    best = of_warp(best);
    if (job.team == BLOCK) {
        if (threadIdx.x % WARP == 0) of_warps[threadIdx.x / WARP] = best;
        __syncthreads();
        for (int i = 0; i < BLOCK / WARP; i++) best = larger(best, of_warps[i]);
    }
    if (!live || rank != 0) return;
    static_cast<T *>(job.y)[k] = mti_narrow<T>(best.value);
    if (job.index) job.index[k] = best.at;
}

template <class T> __global__ void __launch_bounds__(BLOCK) max_of_columns(const max_job job)
{
    typedef mti_wide<T> A;
    int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (k >= job.kept.count) return; /* no barrier follows */
    const T *x = static_cast<const T *>(job.x) + offset_of(job.kept, k);
    largest<A> best = {(A)0, -1};
    for (int64_t r = 0; r < job.searched.count; r++) {
        largest<A> one = {mti_widen(x[offset_of(job.searched, r)]), r};
        best = larger(best, one);
    }
    static_cast<T *>(job.y)[k] = mti_narrow<T>(best.value);
    if (job.index) job.index[k] = best.at;
}

extern "C" bool mti_cuda_max(mti_ctx *ctx, const mti_view *x, const mti_view *y,
                             const mti_view *index)
{
    max_job job = {};
    job.x = x->data;
    job.y = y->data;
    job.index = index ? static_cast<int64_t *>(index->data) : nullptr;
    job.kept = dims_of(x, 0, y->rank);
    job.searched = dims_of(x, y->rank, x->rank);
    if (job.kept.count == 0) return true;
    bool columns =
        job.searched.count == 1 || (job.kept.rank > 0 && step_of(job.kept) < step_of(job.searched));
    job.team = columns ? 1 : job.searched.count > 16 * WARP ? BLOCK : WARP;
    unsigned blocks = (unsigned)((job.kept.count * job.team + BLOCK - 1) / BLOCK);
    return mti_for_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        auto max_forward = columns ? max_of_columns<T> : max_of_rows<T>;
        return MTI_LAUNCH(ctx, max_forward, blocks, BLOCK, 0, job);
    });
}

/* ---- backward: dy goes to the one that was largest, 0 to the others ---- */

struct max_scatter_job {
    const int64_t *index;
    const void *dy;
    void *dx;
    max_dims from, kept, searched; /* dy's; dx's */
};

template <class T> __global__ void __launch_bounds__(BLOCK) max_scatter(const max_scatter_job job)
{
    int64_t k = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (k >= job.kept.count) return; /* no barrier follows */
    int64_t to = offset_of(job.kept, k) + offset_of(job.searched, job.index[k]);
    static_cast<T *>(job.dx)[to] = static_cast<const T *>(job.dy)[offset_of(job.from, k)];
}

extern "C" bool mti_cuda_max_backward(mti_ctx *ctx, const mti_view *index, const mti_view *dy,
                                      const mti_view *dx)
{
    max_scatter_job job = {};
    job.index = static_cast<const int64_t *>(index->data);
    job.dy = dy->data;
    job.dx = dx->data;
    job.from = dims_of(dy, 0, dy->rank);
    job.kept = dims_of(dx, 0, dy->rank);
    job.searched = dims_of(dx, dy->rank, dx->rank);
    if (job.kept.count == 0) return true;
    unsigned blocks = (unsigned)((job.kept.count + BLOCK - 1) / BLOCK);
    return mti_cuda_fill(ctx, dx, 0) && mti_for_float(dx->dtype, [&](auto t) {
               auto max_backward = max_scatter<decltype(t)>;
               return MTI_LAUNCH(ctx, max_backward, blocks, BLOCK, 0, job);
           });
}
