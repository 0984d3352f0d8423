/* loss.cu: cross-entropy of rows of logits with class indices.
 *
 * Forward is the log-softmax kernel with targets: it reads the logits once if a row fits in
 * registers. Each block writes its rows' loss and how many rows count to the desk (desk.h). */
#include "backends/cuda/device/desk.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/softmax.cuh"

#define SUM_BLOCK 256

/* loss = sum of the blocks' losses / number of rows that count; NaN if no row counts. */
template <class T> __global__ void entropy_mean(const mti_desk *desk, int slots, T *loss)
{
    double sum = 0;
    long long count = 0;
    for (int i = (int)threadIdx.x; i < slots; i += SUM_BLOCK) {
        sum += desk->sum[i];
        count += desk->count[i];
    }
    sum = mti_block_sum(sum);
    count = mti_block_sum(count);
    if (threadIdx.x == 0) *loss = mti_narrow<T>((mti_wide<T>)(sum / (double)count));
}

bool mti_cuda_cross_entropy(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                            const mti_view *logp, const mti_view *loss)
{
    mti_borrowed_desk own(ctx);
    if (!own.place) return false;
    mti_softmax_job job = {};
    job.x = mti_rowset_of(x), job.y = mti_rowset_of(logp);
    job.target = mti_data<const int64_t>(target), job.ignore = ignore, job.desk = own.place->desk;
    job.fault = ctx->fault;
    return mti_for_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        int slots = 0;
        const mti_desk *desk = job.desk;
        auto cross_entropy_mean = entropy_mean<T>;
        return (job.x.rows == 0 ||
                mti_softmax_launch<T, true>(ctx, &job, MTI_DESK_SLOTS, &slots)) &&
               MTI_LAUNCH(ctx, cross_entropy_mean, 1, SUM_BLOCK, 0, desk, slots, mti_data<T>(loss));
    });
}

bool mti_cuda_cross_entropy_backward(mti_ctx *ctx, int64_t ignore, const mti_view *logp,
                                     const mti_view *target, const mti_view *dloss,
                                     const mti_view *dx)
{
    mti_borrowed_desk own(ctx);
    if (!own.place) return false;
    mti_view scale = {};
    scale.data = own.place->desk->sum;
    scale.dtype = logp->dtype == MT_F64 ? MT_F64 : MT_F32;
    return mti_cuda_counted_mean(ctx, ignore, logp->shape[1], target, dloss, &scale) &&
           mti_cuda_entropy_rows_backward(ctx, ignore, 0, logp, target, nullptr, &scale, dx);
}
