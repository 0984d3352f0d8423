/* topk.cu: the k largest of each row, and numbers sorted.
 *
 * topk: a block finds the k-th largest of a row digit by digit, from the highest: among the
 * elements that match the digits so far, it counts those with each next digit. Then it lists all
 * larger elements and the first of the equal ones, in row order. Last, each listed element finds
 * its rank by counting the elements that precede it. */
#include "backends/cuda/rows/dims.cuh"
#include "backends/cuda/device/fault.h"
#include "backends/cuda/kernels.h"

#define WARP       32
#define MOST       1024 /* most threads of a block */
#define DIGITS     256
#define SORT_BLOCK 256

struct topk_job {
    const void *x;
    void *values;
    int64_t *index;
    uint32_t *list; /* [rows,k]: the selected elements, in row order */
    mti_view_dims rows;
    int64_t step, n, k;
};

template <class T> struct bits_of;
template <> struct bits_of<float> {
    enum : uint64_t { infinity = 0x7f800000u };
};
template <> struct bits_of<double> {
    enum : uint64_t { infinity = 0x7ff0000000000000u };
};
template <> struct bits_of<__nv_bfloat16> {
    enum : uint64_t { infinity = 0x7f80u };
};
template <> struct bits_of<__half> {
    enum : uint64_t { infinity = 0x7c00u };
};

template <class T> static __device__ __forceinline__ uint64_t key_at(const T *x, int64_t i)
{
    uint64_t bits = 0;
    memcpy(&bits, x + i, sizeof(T));
    return mti_order_key(bits, (uint64_t)1 << (8 * sizeof(T) - 1), bits_of<T>::infinity);
}

/* How many of the block's earlier threads have `greater`, and how many `equal` in the upper 16
 * bits; *all: of all its threads. */
static __device__ __forceinline__ unsigned count_before(bool greater, bool equal, unsigned *of_warp,
                                                        unsigned *all)
{
    unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, below = (1u << lane) - 1;
    unsigned more = __ballot_sync(0xffffffffu, greater), same = __ballot_sync(0xffffffffu, equal);
    __syncthreads(); /* of_warp is free to be overwritten */
    if (lane == 0) of_warp[warp] = (unsigned)__popc(more) | (unsigned)__popc(same) << 16;
    __syncthreads();
    unsigned sum = lane < blockDim.x / WARP ? of_warp[lane] : 0; /* of the warps up to `lane` */
    for (unsigned away = 1; away < WARP; away *= 2) {
        unsigned other = __shfl_up_sync(0xffffffffu, sum, away);
        if (lane >= away) sum += other;
    }
    *all = __shfl_sync(0xffffffffu, sum, WARP - 1);
    unsigned before = __shfl_sync(0xffffffffu, sum, warp ? (int)warp - 1 : 0);
    return (warp ? before : 0) +
           ((unsigned)__popc(more & below) | (unsigned)__popc(same & below) << 16);
}

template <class T> __global__ void __launch_bounds__(MOST) choose_of_rows(const topk_job job)
{
    MTI_SHARED(unsigned, counts[DIGITS]);
    MTI_SHARED(unsigned, of_warp[MOST / WARP]);
    MTI_SHARED(uint64_t, found);
    MTI_SHARED(uint64_t, wanted);
    int64_t row = blockIdx.x;
    const T *x = static_cast<const T *>(job.x) + mti_offset_of(job.rows, row);
    uint64_t prefix = 0, left = (uint64_t)job.k;
    for (int shift = 8 * (int)sizeof(T) - 8; shift >= 0; shift -= 8) {
        for (unsigned d = threadIdx.x; d < DIGITS; d += blockDim.x) counts[d] = 0;
        __syncthreads();
        for (int64_t i = threadIdx.x; i < job.n; i += blockDim.x) {
            uint64_t key = key_at(x, i * job.step) >> shift;
            if (key >> 8 == prefix) atomicAdd(&counts[key % DIGITS], 1u);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            unsigned d = DIGITS - 1;
            for (; counts[d] < left; d--) left -= counts[d];
            found = prefix << 8 | d;
            wanted = left;
        }
        __syncthreads();
        prefix = found;
        left = wanted;
    }
    uint64_t greaters = 0, equals = 0; /* so far */
    uint32_t *list = job.list + row * job.k;
    for (int64_t base = 0; base < job.n; base += blockDim.x) {
        int64_t i = base + threadIdx.x;
        uint64_t key = i < job.n ? key_at(x, i * job.step) : 0;
        bool greater = i < job.n && key > prefix, equal = i < job.n && key == prefix;
        unsigned all, before = count_before(greater, equal, of_warp, &all);
        uint64_t number = equals + (before >> 16), taken = number < left ? number : left;
        if (greater || (equal && number < left))
            list[greaters + (before & 0xffffu) + taken] = (uint32_t)i;
        greaters += all & 0xffffu;
        equals += all >> 16;
    }
}

template <class T> __global__ void __launch_bounds__(SORT_BLOCK) sort_chosen(const topk_job job)
{
    MTI_SHARED(uint64_t, keys[SORT_BLOCK]);
    int64_t row = blockIdx.x, mine = (int64_t)blockIdx.y * SORT_BLOCK + threadIdx.x, place = 0;
    const T *x = static_cast<const T *>(job.x) + mti_offset_of(job.rows, row);
    const uint32_t *list = job.list + row * job.k;
    bool live = mine < job.k;
    int64_t from = live ? list[mine] : 0;
    uint64_t key = key_at(x, from * job.step);
    for (int64_t base = 0; base < job.k; base += SORT_BLOCK) {
        int64_t other = base + threadIdx.x;
        if (other < job.k) keys[threadIdx.x] = key_at(x, list[other] * job.step);
        __syncthreads();
        int64_t n = job.k - base < SORT_BLOCK ? job.k - base : SORT_BLOCK;
        for (int64_t j = 0; j < n; j++)
            place += keys[j] > key || (keys[j] == key && base + j < mine);
        __syncthreads();
    }
    if (!live) return;
    job.index[row * job.k + place] = from;
    static_cast<T *>(job.values)[row * job.k + place] = x[from * job.step];
}

size_t mti_cuda_topk_scratch(mti_ctx *, const mti_view *, const mti_view *values)
{
    mti_view_dims all = mti_dims_of(values, 0, values->rank);
    return (size_t)all.count * sizeof(uint32_t);
}

bool mti_cuda_topk(mti_ctx *ctx, const mti_view *x, const mti_view *values, const mti_view *index,
                   void *scratch)
{
    topk_job job = {};
    int last = x->rank - 1;
    job.x = x->data, job.values = values->data, job.index = mti_data<int64_t>(index);
    job.list = static_cast<uint32_t *>(scratch), job.rows = mti_dims_of(x, 0, last);
    job.step = x->stride[last], job.n = x->shape[last], job.k = values->shape[last];
    if (job.rows.count * job.k == 0) return true;
    if (job.n > UINT32_MAX)
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "topk: rows of 2^32 elements and more");
    unsigned threads = (unsigned)(job.n < MOST ? (job.n + WARP - 1) / WARP * WARP : MOST);
    dim3 grid(mti_blocks(job.rows.count), mti_blocks(job.k, SORT_BLOCK));
    return mti_for_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        auto topk_choose = choose_of_rows<T>;
        auto topk_sort = sort_chosen<T>;
        return MTI_LAUNCH(ctx, topk_choose, mti_blocks(job.rows.count), threads, 0, job) &&
               MTI_LAUNCH(ctx, topk_sort, grid, SORT_BLOCK, 0, job);
    });
}

/* ---- sort_groups: a block for each group counts the elements of groups before it, then places its
 * own, in order. */

struct groups_job {
    const int64_t *index;
    int64_t *rows, *order, *inverse;
    int32_t *counts;
    int64_t n, each, groups;
    mti_fault *fault;
};

__global__ void __launch_bounds__(SORT_BLOCK) place_groups(const groups_job job)
{
    MTI_SHARED(unsigned, of_warp[MOST / WARP]);
    int64_t mine = blockIdx.x, first = 0, count = 0;
    unsigned all;
    for (int64_t base = 0; base < job.n; base += SORT_BLOCK) {
        int64_t i = base + threadIdx.x, group = i < job.n ? job.index[i] : 0;
        bool good = group >= 0 && group < job.groups;
        if (!good && mine == 0)
            mti_note_bad(job.fault, MTI_FAULT_GROUP, job.index, i, job.groups, 0);
        count_before(i < job.n && good && group < mine, false, of_warp, &all);
        first += all & 0xffffu;
    }
    for (int64_t base = 0; base < job.n; base += SORT_BLOCK) {
        int64_t i = base + threadIdx.x;
        bool is_mine = i < job.n && job.index[i] == mine;
        int64_t place = first + count + count_before(is_mine, false, of_warp, &all) % 0x10000u;
        if (is_mine) job.order[place] = i, job.rows[place] = i / job.each, job.inverse[i] = place;
        count += all & 0xffffu;
    }
    if (threadIdx.x == 0) job.counts[mine] = (int32_t)count;
}

bool mti_cuda_sort_groups(mti_ctx *ctx, int64_t each, const mti_view *index, const mti_view *rows,
                          const mti_view *order, const mti_view *inverse, const mti_view *counts)
{
    groups_job job = {};
    job.index = mti_data<const int64_t>(index), job.rows = mti_data<int64_t>(rows);
    job.order = mti_data<int64_t>(order), job.inverse = mti_data<int64_t>(inverse);
    job.counts = mti_data<int32_t>(counts), job.n = index->shape[0], job.each = each;
    job.groups = counts->shape[0], job.fault = ctx->fault;
    return MTI_LAUNCH(ctx, place_groups, mti_blocks(job.groups), SORT_BLOCK, 0, job);
}
