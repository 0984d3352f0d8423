/* gpu.h: the vocabulary of every .cu file of this folder.
 *
 * The files are compiled twice: by nvcc for a GPU, and by the host's C++ compiler against
 * tests/src/cudasim, a test double that runs a grid on the CPU. So they use only these names:
 *   __global__ __device__ __host__ __forceinline__ __launch_bounds__ __restrict__
 *   threadIdx blockIdx blockDim gridDim (x, y, z), dim3
 *   MTI_SHARED(type, name[n]);           static shared memory of a block
 *   MTI_DYNAMIC_SHARED(type, name);      of MTI_LAUNCH's shared_bytes
 *   __syncthreads() __syncwarp()
 *   __shfl_sync __shfl_xor_sync __shfl_up_sync __shfl_down_sync (full mask, 32-bit and 64-bit
 * scalars)
 *   __ballot_sync __any_sync __all_sync, atomicAdd (int, unsigned; on floats only in turn: order)
 *   __nv_bfloat16 __half and their conversions to and from float
 *   mti_at<V>(p): p as a V *, for one vector access; the simulator checks its alignment
 *   float4 and its like; __ldg __ldcg; fmaf exp2f and <math.h>
 *   mti_fma(a, b, c): a b + c, rounded once, of floats or doubles. Where several kernels must give
 *   the same bits, each sum with a product is written so: the compiler may round a product before
 *   it is added, or not, and of a b + c d either one, in each kernel as it likes
 *   mti_mma_bf16 mti_mma_f16 (16x8x16, f32 accumulators), mti_ldmatrix_x4[_trans]
 *   mti_cp_async_16 mti_cp_async_commit mti_cp_async_wait<n>
 *   MTI_OP(number): a value whose type is one op, so that a kernel with this type as a parameter
 *   contains the code of this op alone; the number is in .value. In the simulator one type serves
 *   all ops, since hundreds of kernels take long to compile
 *   MTI_LAUNCH(ctx, kernel, grid, block, shared_bytes, arguments...), which is true on success; a
 *   template's arguments with commas go in parentheses: (kernel<float, 4>)
 * Kernels never end a thread early before a barrier: guard the work, not the thread. */
#ifndef MTI_GPU_H
#define MTI_GPU_H

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <atomic>

extern "C" {
#include "backends/backend.h"
}

#ifdef MTI_CUDASIM
#include <cudasim/cudasim.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

template <class V, class T> __device__ __forceinline__ V *mti_at(T *p)
{
    return reinterpret_cast<V *>(p);
}

template <int number> struct mti_op_number {
    static constexpr int value = number;
};
#define MTI_OP(number) (mti_op_number<number>())

#define MTI_SHARED(type, name) __shared__ type name
#define MTI_DYNAMIC_SHARED(type, name)                                                             \
    extern __shared__ __align__(128) unsigned char mti_dynamic_shared[];                           \
    type *name = reinterpret_cast<type *>(mti_dynamic_shared)
#define MTI_LAUNCH(ctx, kernel, grid, block, shared, ...)                                          \
    (kernel<<<(grid), (block), (shared), (ctx)->stream>>>(__VA_ARGS__),                            \
     mti_cuda_ok(cudaGetLastError(), #kernel))
#endif

__host__ __device__ __forceinline__ float mti_fma(float a, float b, float c)
{
    return fmaf(a, b, c);
}
__host__ __device__ __forceinline__ double mti_fma(double a, double b, double c)
{
    return fma(a, b, c);
}

/* The state of one open device. Several host threads may call at once: whatever changes after open
 * has a lock, or is lent to one call at a time. */
struct mti_ctx {
    int device;
    int capability; /* the major number */
    int multiprocessors;
    std::atomic<int> threads; /* host threads; stored only, the GPU does not use it */
    cudaStream_t stream;      /* every kernel and product */
    cudaStream_t copy;        /* copies beside compute: transfer.cu */
    struct mti_copies *copies;
    struct mti_cublas *blas; /* loaded at the first product */
    struct mti_nccl *nccl;   /* links to other ranks; loaded at the first (link.h) */
    size_t n_workspace;      /* bytes for each product: CUBLAS_WORKSPACE_CONFIG */
    struct mti_fault *fault; /* in device memory (fault.h) */
    pthread_mutex_t clearing_fault;
    struct mti_desks *desks; /* buffers between a call's kernels (desk.h) */
    bool tf32;               /* f32 products may round their inputs (MEMTAPE_TF32=1) */
};

/* True on success; else mti_fail with `what` and the runtime's text. */
bool mti_cuda_ok(cudaError_t status, const char *what);

/* One extent of a grid, for n items, of which a block does `each`. More blocks than 31 bits hold
 * become a number that no grid may have, so that the launch fails instead of leaving out most of
 * its work. */
static inline unsigned mti_blocks(int64_t n, int64_t each = 1)
{
    int64_t blocks = (n + each - 1) / each;
    return blocks > INT32_MAX ? UINT32_MAX : static_cast<unsigned>(blocks);
}

/* A view's data; NULL of none. */
template <class T = void> T *mti_data(const mti_view *v)
{
    return v ? static_cast<T *>(v->data) : nullptr;
}

#endif
