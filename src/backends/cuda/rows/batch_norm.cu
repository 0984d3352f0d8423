/* batch_norm.cu: batch norm over x [b,c,s] and its backward. Neighbouring threads read neighbouring
 * elements: where s is long a block takes one channel and its threads go along s, in vectors if
 * they can; where it is short a block takes 32 channels side by side, and its warps share the
 * batch. Where channels are few and long, blocks share them, as the shape alone says: their sums
 * then pass through a desk, and each takes a launch. */
#include "backends/cuda/device/desk.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/walk.cuh"

#define BLOCK      256
#define WARP       32
#define LEAST_PART 8192 /* of a channel, for each of the blocks that share it */
#define WHOLE      -1

struct batch_job {
    const void *x, *dy; /* dy: backward only */
    void *y;            /* forward's y, or dx (NULL: not wanted) */
    const void *w, *b;  /* [c] or NULL, as are the next ones */
    void *running_mean, *running_var, *mean, *rstd, *dw, *db;
    double eps, momentum;
    int64_t batch, channels, s;
    int abreast; /* channels of a block: 1 or WARP */
    int parts;   /* blocks that share them */
    int stage;   /* launches so far, if each sum takes one; else WHOLE */
    mti_desk *desk;
    bool training;
};

/* This thread's part of its channel: vectors at(), until !more(). */
template <int V> struct batch_walk {
    int64_t batch, in, first_in, batch_step, in_step;

    __device__ __forceinline__ batch_walk(const batch_job &job, int64_t channel)
    {
        bool alone = job.abreast == 1, along_s = alone && job.batch < job.parts;
        int64_t own = along_s ? 0 : blockIdx.y, parts = along_s ? 1 : job.parts, tid = threadIdx.x;
        batch = alone ? own : own * (BLOCK / WARP) + tid / WARP;
        batch_step = alone ? parts : parts * (BLOCK / WARP);
        first_in = in = alone ? (tid + (along_s ? blockIdx.y * BLOCK : 0)) * V : 0;
        in_step = alone ? (int64_t)BLOCK * V * (along_s ? job.parts : 1) : 1;
        if (channel >= job.channels) batch = job.batch;
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

/* Makes *value, a thread's part of sum 0 or 1, the channel's. False if that takes another launch,
 * since other blocks have parts of it, too: this one has left its own on the desk. */
template <class A>
static __device__ bool make_total(const batch_job &job, A *space, int number, int stage,
                                  int64_t channel, A *value)
{
    double *slots = number ? reinterpret_cast<double *>(job.desk->count) : job.desk->sum;
    if (job.stage <= stage) *value = sum_of_channel(space, job.abreast, *value);
    if (job.stage == WHOLE) return true;
    if (channel >= job.channels) return job.stage > stage;
    slots += channel * job.parts;
    if (job.stage == stage && (int)threadIdx.x < job.abreast) slots[blockIdx.y] = (double)*value;
    if (job.stage == stage) return false;
    *value = 0;
    for (int p = 0; p < job.parts; p++) *value += (A)slots[p];
    return true;
}

template <class T, class A>
static __device__ __forceinline__ A channel_or(const void *v, int64_t channel, A otherwise)
{
    return v ? (A)mti_widen(static_cast<const T *>(v)[channel]) : otherwise;
}

template <class T, int V>
__global__ void __launch_bounds__(BLOCK) batch_forward(const batch_job job)
{
    typedef mti_wide<T> A;
    MTI_SHARED(A, space[BLOCK]);
    const T *x = static_cast<const T *>(job.x);
    int64_t channel = (int64_t)blockIdx.x * job.abreast + threadIdx.x % (unsigned)job.abreast;
    bool live = channel < job.channels;
    bool first = live && blockIdx.y == 0 && threadIdx.x < (unsigned)job.abreast;
    A count = (A)(job.batch * job.s);
    A mean = live ? channel_or<A, A>(job.running_mean, channel, 0) : 0;
    A var = live ? channel_or<A, A>(job.running_var, channel, 1) : 1;
    if (job.training) {
        A old_mean = mean, old_var = var, sum = 0, squares = 0, m = (A)job.momentum;
        for (batch_walk<V> w(job, channel); job.stage <= 0 && w.more(job); w.next()) {
            mti_vec<T, V> v = mti_load<V>(x + w.at(job, channel));
            MTI_UNROLL
            for (int j = 0; j < V; j++) sum += mti_widen(v.v[j]);
        }
        if (!make_total(job, space, 0, 0, channel, &sum)) return;
        mean = sum / count;
        /* a second pass, because E[x^2] - mean^2 cancels */
        for (batch_walk<V> w(job, channel); job.stage <= 1 && w.more(job); w.next()) {
            mti_vec<T, V> v = mti_load<V>(x + w.at(job, channel));
            MTI_UNROLL
            for (int j = 0; j < V; j++) {
                A d = mti_widen(v.v[j]) - mean;
                squares += d * d;
            }
        }
        if (!make_total(job, space, 1, 1, channel, &squares)) return;
        var = squares / count;
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
    for (batch_walk<V> w(job, channel); w.more(job); w.next()) {
        mti_vec<T, V> v = mti_load<V>(x + w.at(job, channel));
        MTI_UNROLL
        for (int j = 0; j < V; j++)
            v.v[j] = mti_narrow<T>((mti_widen(v.v[j]) - mean) * scale + shift);
        mti_store(static_cast<T *>(job.y) + w.at(job, channel), v);
    }
}

/* dx = rstd w (dy - mean(dy) - xhat mean(dy xhat)); in evaluation rstd w dy, whatever x. */
template <class T, int V>
__global__ void __launch_bounds__(BLOCK) batch_backward(const batch_job job)
{
    typedef mti_wide<T> A;
    MTI_SHARED(A, space[BLOCK]);
    const T *x = static_cast<const T *>(job.x ? job.x : job.dy),
            *dy = static_cast<const T *>(job.dy);
    int64_t channel = (int64_t)blockIdx.x * job.abreast + threadIdx.x % (unsigned)job.abreast;
    bool live = channel < job.channels;
    bool first = live && blockIdx.y == 0 && threadIdx.x < (unsigned)job.abreast;
    A mean = live ? channel_or<A, A>(job.mean, channel, 0) : 0;
    A rstd = live ? channel_or<A, A>(job.rstd, channel, 0) : 0; /* 0 where x is not read */
    A sum = 0, sum_x = 0;
    for (batch_walk<V> w(job, channel); job.stage <= 0 && w.more(job); w.next()) {
        mti_vec<T, V> g = mti_load<V>(dy + w.at(job, channel)),
                      v = mti_load<V>(x + w.at(job, channel));
        MTI_UNROLL
        for (int j = 0; j < V; j++) {
            sum += mti_widen(g.v[j]);
            sum_x += mti_widen(g.v[j]) * (mti_widen(v.v[j]) - mean) * rstd;
        }
    }
    bool all = make_total(job, space, 0, 0, channel, &sum);
    if (!make_total(job, space, 1, 0, channel, &sum_x) || !all) return;
    if (first && job.db) static_cast<T *>(job.db)[channel] = mti_narrow<T>(sum);
    if (first && job.dw) static_cast<T *>(job.dw)[channel] = mti_narrow<T>(sum_x);
    if (!job.y) return;
    A scale = live ? rstd * channel_or<T, A>(job.w, channel, 1) : 0;
    A part = 1 / (A)(job.batch * job.s);
    sum *= part, sum_x *= part;
    for (batch_walk<V> w(job, channel); w.more(job); w.next()) {
        mti_vec<T, V> g = mti_load<V>(dy + w.at(job, channel)),
                      v = mti_load<V>(x + w.at(job, channel));
        MTI_UNROLL
        for (int j = 0; j < V; j++) {
            A d = mti_widen(g.v[j]);
            if (job.training) d = d - sum - (mti_widen(v.v[j]) - mean) * rstd * sum_x;
            g.v[j] = mti_narrow<T>(scale * d);
        }
        mti_store(static_cast<T *>(job.y) + w.at(job, channel), g);
    }
}

template <class T, int V> static bool launch(mti_ctx *ctx, batch_job *job, bool backward)
{
    dim3 grid(mti_blocks(job->channels, job->abreast), (unsigned)job->parts);
    auto batch_norm = backward ? batch_backward<T, V> : batch_forward<T, V>;
    int stages = job->parts == 1 ? 1 : backward ? 2 : job->training ? 3 : 1;
    bool ok = true;
    for (int i = 0; ok && i < stages; i++) {
        job->stage = stages == 1 ? WHOLE : i;
        ok = MTI_LAUNCH(ctx, batch_norm, grid, BLOCK, 0, *job);
    }
    return ok;
}

/* An empty tensor's data is NULL, so it cannot tell forward from backward. */
static bool run(mti_ctx *ctx, batch_job *job, const mti_view *like, bool backward)
{
    job->batch = like->shape[0], job->channels = like->shape[1], job->s = like->shape[2];
    if (job->channels == 0) return true;
    job->abreast = job->s >= 2 * WARP ? 1 : WARP;
    int64_t parts = job->batch * job->s / LEAST_PART, most = MTI_DESK_SLOTS / job->channels;
    parts = parts < most ? parts : most;
    job->parts = parts < 1 ? 1 : (int)parts;
    mti_borrowed_desk own(ctx);
    if (!own.place) return false;
    job->desk = own.place->desk;
    return mti_for_float(like->dtype, [&](auto t) {
        typedef decltype(t) T;
        constexpr int V = mti_width_of<T>();
        bool vectors = job->abreast == 1 && job->s % V == 0 && mti_is_aligned(job->x, 16) &&
                       mti_is_aligned(job->dy, 16) && mti_is_aligned(job->y, 16);
        return vectors ? launch<T, V>(ctx, job, backward) : launch<T, 1>(ctx, job, backward);
    });
}

bool mti_cuda_batch_norm(mti_ctx *ctx, bool training, double eps, double momentum,
                         const mti_view *x, const mti_view *w, const mti_view *b,
                         const mti_view *running_mean, const mti_view *running_var,
                         const mti_view *y, const mti_view *mean, const mti_view *rstd)
{
    batch_job job = {};
    job.x = x->data, job.y = y->data, job.w = mti_data(w), job.b = mti_data(b);
    job.running_mean = mti_data(running_mean), job.running_var = mti_data(running_var);
    job.mean = mti_data(mean), job.rstd = mti_data(rstd);
    job.eps = eps, job.momentum = momentum, job.training = training;
    return run(ctx, &job, x, false);
}

bool mti_cuda_batch_norm_backward(mti_ctx *ctx, bool training, const mti_view *dy,
                                  const mti_view *x, const mti_view *w, const mti_view *mean,
                                  const mti_view *rstd, const mti_view *dx, const mti_view *dw,
                                  const mti_view *db)
{
    batch_job job = {};
    job.x = mti_data(x), job.dy = dy->data, job.y = mti_data(dx), job.w = mti_data(w);
    job.mean = mti_data(mean), job.rstd = mti_data(rstd), job.dw = mti_data(dw),
    job.db = mti_data(db);
    job.training = training;
    return run(ctx, &job, dy, true);
}
