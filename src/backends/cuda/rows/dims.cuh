/* dims.cuh: some dimensions of a view, for kernels that compute offsets from element numbers. */
#ifndef MTI_DIMS_CUH
#define MTI_DIMS_CUH

#include "backends/cuda/walk.cuh"

/* Slowest first, merged where contiguous. */
struct mti_view_dims {
    int rank;
    int64_t count, shape[MT_MAX_RANK], stride[MT_MAX_RANK];
};

/* Dimensions [from, to). */
static inline mti_view_dims mti_dims_of(const mti_view *v, int from, int to)
{
    mti_view_dims d = {};
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

static __device__ __forceinline__ int64_t mti_offset_of(const mti_view_dims &d, int64_t i)
{
    int64_t offset = 0;
#pragma unroll 1 /* rare: mostly rank is 1 */
    for (int k = d.rank - 1; k > 0; k--) {
        offset += i % d.shape[k] * d.stride[k];
        i /= d.shape[k];
    }
    return d.rank > 0 ? offset + i * d.stride[0] : 0;
}

#endif
