/* batch_norm.cu: batch norm over x [b,c,s] and its backward, one launch each. Neighbouring threads
 * read neighbouring elements: where s is long a block takes one channel and its threads go along s;
 * where it is short a block takes 32 channels side by side, and its warps share the batch. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/walk.cuh"

#define BLOCK 256
#define WARP  32

struct batch_job {
    const void *x, *dy; /* dy: backward only */
    void *y;            /* forward's y, or dx (NULL: not wanted) */
    const void *w, *b;  /* [c] or NULL, as are the next ones */
    void *running_mean, *running_var, *mean, *rstd, *dw, *db;
    double eps, momentum;
    int64_t batch, channels, s;
    int abreast; /* channels of a block: 1 or WARP */
    bool training;
};

/* This thread's part of its channel: elements at(), until !more(). */
struct batch_walk {
    int64_t batch, in, first_in, batch_step, in_step;

    __device__ __forceinline__ batch_walk(const batch_job &job, int64_t channel)
    {
        bool alone = job.abreast == 1;
        batch = channel >= job.channels ? job.batch : alone ? 0 : (int64_t)threadIdx.x / WARP;
        first_in = in = alone ? (int64_t)threadIdx.x : 0;
        batch_step = alone ? 1 : BLOCK / WARP;
        in_step = alone ? BLOCK : 1;
    }
    __device__ __forceinline__ bool more(const batch_job &job)
    {
        while (in >= job.s && batch < job.batch) batch += batch_step, in = first_in;
        return batch < job.batch && in < job.s;
    }
    __device__ __forceinline__ int64_t at(const batch_job &job, int64_t channel) const
    {
        return (batch * job.channels + channel) * job.s + in;
    }
    __device__ __forceinline__ void next() { in += in_step; }
};

/* The sum over the threads of a channel, for each of them. */
template <class A> static __device__ A sum_of_channel(A *space, int abreast, A value)
{
    int tid = (int)threadIdx.x;
    space[tid] = value;
    __syncthreads();
    for (int half = BLOCK / 2; half >= abreast; half /= 2) {
        if (tid < half) space[tid] += space[tid + half];
        __syncthreads();
    }
    A sum = space[tid % abreast];
    __syncthreads();
    return sum;
}

template <class T, class A>
static __device__ __forceinline__ A channel_or(const void *v, int64_t channel, A otherwise)
{
    return v ? (A)mti_widen(static_cast<const T *>(v)[channel]) : otherwise;
}

template <class T> __global__ void __launch_bounds__(BLOCK) batch_forward(const batch_job job)
{
    typedef mti_wide<T> A;
    MTI_SHARED(A, space[BLOCK]);
    const T *x = static_cast<const T *>(job.x);
    int64_t channel = (int64_t)blockIdx.x * job.abreast + threadIdx.x % (unsigned)job.abreast;
    bool first = threadIdx.x < (unsigned)job.abreast && channel < job.channels;
    bool live = channel < job.channels;
    A count = (A)(job.batch * job.s);
    A mean = live ? channel_or<A, A>(job.running_mean, channel, 0) : 0;
    A var = live ? channel_or<A, A>(job.running_var, channel, 1) : 1;
    if (job.training) {
        A old_mean = mean, old_var = var, sum = 0, squares = 0, m = (A)job.momentum;
        for (batch_walk w(job, channel); w.more(job); w.next())
            sum += mti_widen(x[w.at(job, channel)]);
        mean = sum_of_channel(space, job.abreast, sum) / count;
        /* a second pass, because E[x^2] - mean^2 cancels */
        for (batch_walk w(job, channel); w.more(job); w.next()) {
            A d = mti_widen(x[w.at(job, channel)]) - mean;
            squares += d * d;
        }
        var = sum_of_channel(space, job.abreast, squares) / count;
        if (first && m != 0 && job.running_mean) {
            static_cast<A *>(job.running_mean)[channel] = (1 - m) * old_mean + m * mean;
            static_cast<A *>(job.running_var)[channel] =
                (1 - m) * old_var + m * var * (count / (count - 1));
        }
    }
    A rstd = 1 / sqrt(var + (A)job.eps);
    if (first && job.mean) static_cast<A *>(job.mean)[channel] = mean;
    if (first && job.rstd) static_cast<A *>(job.rstd)[channel] = rstd;
    A scale = live ? rstd * channel_or<T, A>(job.w, channel, 1) : 0;
    A shift = live ? channel_or<T, A>(job.b, channel, 0) : 0;
    for (batch_walk w(job, channel); w.more(job); w.next()) {
        int64_t at = w.at(job, channel);
        static_cast<T *>(job.y)[at] = mti_narrow<T>((mti_widen(x[at]) - mean) * scale + shift);
    }
}

/* dx = rstd w (dy - mean(dy) - xhat mean(dy xhat)); in evaluation rstd w dy, whatever x. */
template <class T> __global__ void __launch_bounds__(BLOCK) batch_backward(const batch_job job)
{
    typedef mti_wide<T> A;
    MTI_SHARED(A, space[BLOCK]);
    const T *x = static_cast<const T *>(job.x), *dy = static_cast<const T *>(job.dy);
    int64_t channel = (int64_t)blockIdx.x * job.abreast + threadIdx.x % (unsigned)job.abreast;
    bool first = threadIdx.x < (unsigned)job.abreast && channel < job.channels;
    bool live = channel < job.channels;
    A mean = live ? channel_or<A, A>(job.mean, channel, 0) : 0;
    A rstd = live ? channel_or<A, A>(job.rstd, channel, 0) : 0;
    A sum = 0, sum_x = 0;
    for (batch_walk w(job, channel); w.more(job); w.next()) {
        int64_t at = w.at(job, channel);
        A g = mti_widen(dy[at]);
        sum += g;
        if (x) sum_x += g * (mti_widen(x[at]) - mean) * rstd;
    }
    sum = sum_of_channel(space, job.abreast, sum);
    sum_x = sum_of_channel(space, job.abreast, sum_x);
    if (first && job.db) static_cast<T *>(job.db)[channel] = mti_narrow<T>(sum);
    if (first && job.dw) static_cast<T *>(job.dw)[channel] = mti_narrow<T>(sum_x);
    if (!job.y) return;
    A scale = live ? rstd * channel_or<T, A>(job.w, channel, 1) : 0;
    A part = 1 / (A)(job.batch * job.s);
    sum *= part, sum_x *= part;
    for (batch_walk w(job, channel); w.more(job); w.next()) {
        int64_t at = w.at(job, channel);
        A g = mti_widen(dy[at]);
        if (job.training) g = g - sum - (mti_widen(x[at]) - mean) * rstd * sum_x;
        static_cast<T *>(job.y)[at] = mti_narrow<T>(scale * g);
    }
}

static void *data_of(const mti_view *v) { return v ? v->data : nullptr; }

/* Of an empty tensor the data is NULL, so it cannot tell forward from backward. */
static bool run(mti_ctx *ctx, batch_job *job, const mti_view *like, bool backward)
{
    job->batch = like->shape[0], job->channels = like->shape[1], job->s = like->shape[2];
    job->abreast = job->s >= 2 * WARP ? 1 : WARP;
    unsigned blocks = mti_blocks((job->channels + job->abreast - 1) / job->abreast);
    if (blocks == 0) return true;
    return mti_for_float(like->dtype, [&](auto t) {
        typedef decltype(t) T;
        void (*batch_norm)(batch_job) = backward ? batch_backward<T> : batch_forward<T>;
        return MTI_LAUNCH(ctx, batch_norm, blocks, BLOCK, 0, *job);
    });
}

extern "C" bool mti_cuda_batch_norm(mti_ctx *ctx, bool training, double eps, double momentum,
                                    const mti_view *x, const mti_view *w, const mti_view *b,
                                    const mti_view *running_mean, const mti_view *running_var,
                                    const mti_view *y, const mti_view *mean, const mti_view *rstd)
{
    batch_job job = {};
    job.x = x->data, job.y = y->data, job.w = data_of(w), job.b = data_of(b);
    job.running_mean = data_of(running_mean), job.running_var = data_of(running_var);
    job.mean = data_of(mean), job.rstd = data_of(rstd);
    job.eps = eps, job.momentum = momentum, job.training = training;
    return run(ctx, &job, x, false);
}

extern "C" bool mti_cuda_batch_norm_backward(mti_ctx *ctx, bool training, const mti_view *dy,
                                             const mti_view *x, const mti_view *w,
                                             const mti_view *mean, const mti_view *rstd,
                                             const mti_view *dx, const mti_view *dw,
                                             const mti_view *db)
{
    batch_job job = {};
    job.x = data_of(x), job.dy = dy->data, job.y = data_of(dx), job.w = data_of(w);
    job.mean = data_of(mean), job.rstd = data_of(rstd), job.dw = data_of(dw), job.db = data_of(db);
    job.training = training;
    return run(ctx, &job, dy, true);
}
