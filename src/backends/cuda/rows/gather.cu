/* gather.cu: elements by index along one dimension, and the sum of gradients into them. */
#include "backends/cuda/rows/dims.cuh"
#include "backends/cuda/device/fault.h"
#include "backends/cuda/kernels.h"

#define BLOCK 256

struct gather_job {
    const int64_t *index;
    const void *x;
    void *y;
    mti_view_dims from; /* x with the index's shape, stride 0 along the dimension */
    int64_t step, n;    /* x's stride and extent along the dimension */
    int dim;
    mti_fault *fault;
};

/* T is an integer of the element's size. A bad index is noted, and gives 0. */
template <class T> __global__ void __launch_bounds__(BLOCK) gather_elements(const gather_job job)
{
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= job.from.count) return; /* no barrier follows */
    int64_t at = job.index[i];
    bool good = at >= 0 && at < job.n;
    if (!good) mti_note_bad(job.fault, MTI_FAULT_GATHER, job.index, i, job.n, job.dim);
    int64_t from = mti_offset_of(job.from, i) + at * job.step;
    static_cast<T *>(job.y)[i] = good ? static_cast<const T *>(job.x)[from] : T(0);
}

template <class T> static bool gather(mti_ctx *ctx, const gather_job &job)
{
    unsigned blocks = mti_blocks(job.from.count, BLOCK);
    auto gather_forward = gather_elements<T>;
    return MTI_LAUNCH(ctx, gather_forward, blocks, BLOCK, 0, job);
}

bool mti_cuda_gather(mti_ctx *ctx, int dim, const mti_view *x, const mti_view *index,
                     const mti_view *y)
{
    gather_job job = {};
    mti_view from = *index;
    memcpy(from.stride, x->stride, sizeof from.stride);
    from.stride[dim] = 0;
    job.index = mti_data<const int64_t>(index), job.x = x->data, job.y = y->data;
    job.from = mti_dims_of(&from, 0, from.rank), job.step = x->stride[dim], job.n = x->shape[dim];
    job.dim = dim, job.fault = ctx->fault;
    if (job.from.count == 0) return true;
    switch (mt_dtype_size(x->dtype)) {
    case 1: return gather<uint8_t>(ctx, job);
    case 2: return gather<uint16_t>(ctx, job);
    case 4: return gather<uint32_t>(ctx, job);
    default: return gather<uint64_t>(ctx, job);
    }
}

/* ---- backward ----
 *
 * A block computes a tile of a row of dx, a row lying along the dimension. It reads the whole
 * row of the index, BLOCK numbers at a time; each thread adds up its own columns, in order. */

#define COLUMNS 8 /* per thread */

struct scatter_job {
    const int64_t *index;
    const void *dy;
    void *dx;
    mti_view_dims index_rows, dy_rows, dx_rows;
    int64_t index_step, dy_step, dx_step, k, n; /* along the dimension; extents of index, dx */
};

template <class T> __global__ void __launch_bounds__(BLOCK) scatter_rows(const scatter_job job)
{
    typedef mti_wide<T> A;
    MTI_SHARED(A, sum[COLUMNS * BLOCK]);
    MTI_SHARED(A, value[BLOCK]);
    MTI_SHARED(int64_t, at[BLOCK]);
    int t = (int)threadIdx.x;
    int64_t row = blockIdx.x, first = (int64_t)blockIdx.y * COLUMNS * BLOCK;
    const int64_t *index = job.index + mti_offset_of(job.index_rows, row);
    const T *dy = static_cast<const T *>(job.dy) + mti_offset_of(job.dy_rows, row);
    T *dx = static_cast<T *>(job.dx) + mti_offset_of(job.dx_rows, row);
    for (int c = t; c < COLUMNS * BLOCK; c += BLOCK) sum[c] = 0;
    for (int64_t base = 0; base < job.k; base += BLOCK) {
        int64_t n_left = job.k - base, n = n_left < BLOCK ? n_left : BLOCK;
        if (t < n) {
            at[t] = index[(base + t) * job.index_step] - first;
            value[t] = mti_widen(dy[(base + t) * job.dy_step]);
        }
        __syncthreads();
        for (int64_t j = 0; j < n; j++)
            if (at[j] >= 0 && at[j] < COLUMNS * BLOCK && at[j] % BLOCK == t) sum[at[j]] += value[j];
        __syncthreads();
    }
    for (int c = t; c < COLUMNS * BLOCK && first + c < job.n; c += BLOCK)
        dx[(first + c) * job.dx_step] = mti_narrow<T>(sum[c]);
}

/* All dimensions but `dim`, with the extents of `like`. */
static mti_view_dims rows_of(const mti_view *v, int dim, const mti_view *like)
{
    mti_view rows = *v;
    memcpy(rows.shape, like->shape, sizeof rows.shape);
    rows.shape[dim] = 1;
    return mti_dims_of(&rows, 0, rows.rank);
}

bool mti_cuda_gather_backward(mti_ctx *ctx, int dim, const mti_view *index, const mti_view *dy,
                              const mti_view *dx)
{
    scatter_job job = {};
    job.index = mti_data<const int64_t>(index), job.dy = dy->data, job.dx = dx->data;
    job.index_rows = rows_of(index, dim, index), job.dy_rows = rows_of(dy, dim, index);
    job.dx_rows = rows_of(dx, dim, index), job.index_step = index->stride[dim];
    job.dy_step = dy->stride[dim], job.dx_step = dx->stride[dim], job.k = index->shape[dim];
    job.n = dx->shape[dim];
    bool whole = true; /* the index has a row for every row of dx */
    for (int d = 0; d < dx->rank; d++)
        whole = whole && (d == dim || dx->shape[d] == index->shape[d]);
    if (!whole && !mti_cuda_fill(ctx, dx, 0)) return false;
    if (job.dx_rows.count == 0 || job.n == 0) return true;
    int64_t tiles = (job.n + COLUMNS * BLOCK - 1) / (COLUMNS * BLOCK);
    dim3 grid(mti_blocks(job.dx_rows.count), mti_blocks(tiles));
    return mti_for_float(dx->dtype, [&](auto t) {
        auto gather_backward = scatter_rows<decltype(t)>;
        return MTI_LAUNCH(ctx, gather_backward, grid, BLOCK, 0, job);
    });
}
