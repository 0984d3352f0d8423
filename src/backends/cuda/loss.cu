/* loss.cu: cross-entropy of rows of logits with class numbers.
 *
 * Forward is the log-softmax kernel with targets: it reads the logits once where a row fits in
 * registers, and each block leaves its rows' loss and how many of them count on the desk. */
#include "backends/cuda/desk.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/softmax.cuh"

#define SUM_BLOCK 256

/* x added up over a block of SUM_BLOCK threads in a fixed order; thread 0 has the sum. */
template <class A> static __device__ __forceinline__ A block_sum(A x)
{
    MTI_SHARED(A, space[64]);
    mti_team<A, MTI_FIT_BLOCK> team(SUM_BLOCK, space);
    return team.sum(x);
}

/* loss = sum of what the blocks left / how many rows count; not a number if none does. */
template <class T> __global__ void entropy_mean(const mti_desk *desk, int slots, T *loss)
{
    double sum = 0;
    long long count = 0;
    for (int i = (int)threadIdx.x; i < slots; i += SUM_BLOCK) {
        sum += desk->sum[i];
        count += desk->count[i];
    }
    sum = block_sum(sum);
    count = block_sum(count);
    if (threadIdx.x == 0) *loss = mti_narrow<T>((mti_wide<T>)(sum / (double)count));
}

template <class T> static bool forward(mti_ctx *ctx, mti_softmax_job *job, const mti_view *loss)
{
    int slots = 0;
    if (job->x.rows > 0 && !mti_softmax_launch<T, true>(ctx, job, MTI_DESK_SLOTS, &slots))
        return false;
    void (*cross_entropy_mean)(const mti_desk *, int, T *) = entropy_mean<T>;
    return MTI_LAUNCH(ctx, cross_entropy_mean, 1, SUM_BLOCK, 0,
                      static_cast<const mti_desk *>(job->desk), slots,
                      static_cast<T *>(loss->data));
}

extern "C" bool mti_cuda_cross_entropy(mti_ctx *ctx, int64_t ignore, const mti_view *x,
                                       const mti_view *target, const mti_view *logp,
                                       const mti_view *loss)
{
    mti_borrowed_desk own(ctx);
    if (!own.place) return false;
    mti_softmax_job job = {};
    job.x = mti_rowset_of(x);
    job.y = mti_rowset_of(logp);
    job.target = static_cast<const int64_t *>(target->data);
    job.ignore = ignore;
    job.desk = own.place->desk;
    job.fault = ctx->fault;
    return mti_for_float(x->dtype, [&](auto t) { return forward<decltype(t)>(ctx, &job, loss); });
}

/* ---- backward ---- */

#define COUNT_BLOCK 1024
#define MAP_BLOCK   256
#define MAP_CHUNKS  4 /* that a thread takes of one row */

struct entropy_backward_job {
    mti_rowset logp, dx;
    const int64_t *target;
    const void *dloss;
    const mti_desk *desk; /* count[0]: rows that count */
    int64_t ignore;
    int team_size;
};

/* desk->count[0] = rows that count; notes the first bad target. */
__global__ void __launch_bounds__(COUNT_BLOCK)
    entropy_count(const int64_t *target, int64_t rows, int64_t classes, int64_t ignore,
                  mti_desk *desk, mti_fault *fault)
{
    MTI_SHARED(long long, space[64]);
    mti_team<long long, MTI_FIT_BLOCK> team(COUNT_BLOCK, space);
    long long count = 0;
    for (int64_t r = threadIdx.x; r < rows; r += COUNT_BLOCK) {
        int64_t t = target[r];
        if (t == ignore) continue;
        if (t < 0 || t >= classes)
            mti_note_bad(fault, MTI_FAULT_TARGET, target, r, classes, ignore);
        else
            count++;
    }
    count = team.sum(count);
    if (threadIdx.x == 0) desk->count[0] = count;
}

/* dx = (exp(logp) - onehot(target)) dloss / count. Block (b, p) has piece p of the rows of its
 * teams: MAP_CHUNKS chunks for every thread. */
template <class T>
__global__ void __launch_bounds__(MAP_BLOCK) entropy_backward_rows(entropy_backward_job job)
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>;
    int64_t r = (int64_t)blockIdx.x * (MAP_BLOCK / job.team_size) + threadIdx.x / job.team_size;
    if (r >= job.logp.rows) return; /* no barriers below */
    int64_t n = job.logp.n, t = job.target[r];
    const T *start = mti_row_at<const T>(job.logp, r);
    int skew = mti_skew(start);
    mti_row<const T> logp(start, n, skew);
    mti_row<T> dx(mti_row_at<T>(job.dx, r), n, skew);
    bool counts = t != job.ignore && t >= 0 && t < n;
    double dloss = (double)mti_widen(*static_cast<const T *>(job.dloss));
    A scale = (A)(dloss / (double)job.desk->count[0]);
    int64_t first = (int64_t)blockIdx.y * MAP_CHUNKS * job.team_size;
    first += threadIdx.x % (unsigned)job.team_size;
    mti_vec<T, N> v[MAP_CHUNKS];
    MTI_UNROLL
    for (int i = 0; i < MAP_CHUNKS; i++)
        if (counts) v[i] = logp.fetch((first + i * job.team_size) * N - skew);
    MTI_UNROLL
    for (int i = 0; i < MAP_CHUNKS; i++) {
        int64_t j = (first + i * job.team_size) * N - skew;
        A out[N];
        MTI_UNROLL
        for (int k = 0; k < N; k++) out[k] = counts ? mti_exp_below((A)mti_widen(v[i].v[k])) : (A)0;
        if (counts && t >= j && t < j + N) {
            MTI_UNROLL
            for (int k = 0; k < N; k++)
                if (j + k == t) out[k] -= 1;
        }
        MTI_UNROLL
        for (int k = 0; k < N; k++) out[k] = counts ? out[k] * scale : (A)0;
        dx.store(j, out);
    }
}

template <class T> static bool backward(mti_ctx *ctx, entropy_backward_job *job)
{
    constexpr int N = mti_chunk_width<T>;
    int64_t chunks = (job->logp.n + 2 * N - 2) / N; /* wherever a row begins */
    job->team_size = 1;
    while (job->team_size < MAP_BLOCK && job->team_size < chunks) job->team_size *= 2;
    int64_t teams = MAP_BLOCK / job->team_size, piece = (int64_t)MAP_CHUNKS * job->team_size;
    dim3 grid((unsigned)((job->logp.rows + teams - 1) / teams),
              (unsigned)((chunks + piece - 1) / piece));
    void (*cross_entropy_backward)(entropy_backward_job) = entropy_backward_rows<T>;
    return MTI_LAUNCH(ctx, cross_entropy_backward, grid, MAP_BLOCK, 0, *job);
}

extern "C" bool mti_cuda_cross_entropy_backward(mti_ctx *ctx, int64_t ignore, const mti_view *logp,
                                                const mti_view *target, const mti_view *dloss,
                                                const mti_view *dx)
{
    mti_borrowed_desk own(ctx);
    if (!own.place) return false;
    entropy_backward_job job = {};
    job.logp = mti_rowset_of(logp);
    job.dx = mti_rowset_of(dx);
    job.target = static_cast<const int64_t *>(target->data);
    job.dloss = dloss->data;
    job.desk = own.place->desk;
    job.ignore = ignore;
    if (job.logp.rows == 0) return true;
    if (!MTI_LAUNCH(ctx, entropy_count, 1, COUNT_BLOCK, 0, job.target, job.logp.rows, job.logp.n,
                    ignore, own.place->desk, ctx->fault))
        return false;
    if (job.logp.n == 0) return true;
    return mti_for_float(logp->dtype, [&](auto t) { return backward<decltype(t)>(ctx, &job); });
}
