/* entropy.cu: chunked cross-entropy, for a loss whose logits exist a chunk of rows at a time. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/softmax.cuh"

/* ---- each row's log-sum-exp and loss ---- */

struct entropy_rows_job {
    mti_rowset x;
    const int64_t *target;
    int64_t ignore;
    void *lse, *loss; /* f32, f64 for f64 */
    int team_size;
};

/* One row per team. */
template <class T, mti_row_fit FIT> MTI_ROW_KERNEL(FIT) lse_of_rows(entropy_rows_job job)
{
    typedef mti_wide<T> A;
    constexpr int ROOM = mti_room<T, FIT, MTI_SOFTMAX_HELD>;
    MTI_SHARED(A, space[64]);
    mti_team<A, FIT> team(job.team_size, space);
    int64_t r = (int64_t)blockIdx.x * (blockDim.x / (unsigned)team.size) + team.number;
    bool live = r < job.x.rows;
    const T *start = mti_row_at<const T>(job.x, live ? r : 0);
    int skew = mti_skew(start);
    int64_t n = live ? job.x.n : 0;
    int chunks = mti_chunks<T>(n, skew);
    mti_row<const T> x(start, n, skew);
    mti_softmax_stats<A> stats;
    if constexpr (FIT == MTI_FIT_LONG) {
        stats = mti_softmax_long_stats<T, FIT>(x, (A)1, chunks, team);
    } else {
        A v[ROOM][mti_chunk_width<T>];
        mti_softmax_take(x, (A)1, 0, team, v);
        stats = mti_softmax_held_stats<T, FIT, true>(team, chunks, v);
    }
    if (!live || team.rank != 0) return; /* no barriers below */
    int64_t t = job.target[r];
    A log_sum = mti_log_of(stats.sum);
    bool counts = t != job.ignore && t >= 0 && t < n;
    static_cast<A *>(job.lse)[r] = stats.top + log_sum;
    static_cast<A *>(job.loss)[r] = counts ? log_sum - (mti_widen(start[t]) - stats.top) : (A)0;
}

bool mti_cuda_entropy_rows(mti_ctx *ctx, int64_t ignore, const mti_view *x, const mti_view *target,
                           const mti_view *lse, const mti_view *loss)
{
    entropy_rows_job job = {};
    job.x = mti_rowset_of(x), job.target = mti_data<const int64_t>(target), job.ignore = ignore;
    job.lse = lse->data, job.loss = loss->data;
    if (job.x.rows == 0) return true;
    if (!mti_rows_are_short("cross_entropy", &job.x, mt_dtype_size(x->dtype))) return false;
    return mti_for_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        bool aligned = mti_rowset_aligned(&job.x, sizeof(T));
        mti_row_plan plan = mti_plan_rows(job.x.n, sizeof(T), aligned, MTI_SOFTMAX_HELD);
        job.team_size = plan.size;
        auto entropy_rows = plan.fit == MTI_FIT_WARP    ? lse_of_rows<T, MTI_FIT_WARP>
                            : plan.fit == MTI_FIT_BLOCK ? lse_of_rows<T, MTI_FIT_BLOCK>
                                                        : lse_of_rows<T, MTI_FIT_LONG>;
        return MTI_LAUNCH(ctx, entropy_rows, mti_blocks(job.x.rows, plan.teams),
                          (unsigned)plan.threads, 0, job);
    });
}

/* ---- their gradient ---- */

#define MAP_BLOCK  256
#define MAP_CHUNKS 4 /* per thread and row */

struct entropy_gradient_job {
    mti_rowset x, dx;
    const int64_t *target;
    const void *lse, *scale; /* lse NULL: all 0 */
    int64_t ignore, first_class;
    int team_size;
};

/* dx = (exp(x - lse) - onehot(target)) scale. Block (b, p) does piece p of its teams' rows:
 * MAP_CHUNKS chunks per thread, all loaded before the first store, so dx may be x. */
template <class T>
__global__ void __launch_bounds__(MAP_BLOCK) gradient_of_rows(entropy_gradient_job job)
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>;
    int64_t r = (int64_t)blockIdx.x * (MAP_BLOCK / job.team_size) + threadIdx.x / job.team_size;
    if (r >= job.x.rows) return; /* no barriers below */
    int64_t n = job.x.n, t = job.target[r];
    const T *start = mti_row_at<const T>(job.x, r);
    int skew = mti_skew(start);
    mti_row<const T> x(start, n, skew);
    mti_row<T> dx(mti_row_at<T>(job.dx, r), n, skew);
    bool counts = t != job.ignore;
    A lse = job.lse ? static_cast<const A *>(job.lse)[r] : (A)0;
    A scale = *static_cast<const A *>(job.scale);
    int first = (int)blockIdx.y * MAP_CHUNKS * job.team_size + (int)threadIdx.x % job.team_size;
    mti_packed_vec<T, N> v[MAP_CHUNKS];
    MTI_UNROLL
    for (int i = 0; i < MAP_CHUNKS; i++)
        if (counts) v[i] = x.fetch_packed(first + i * job.team_size);
    MTI_UNROLL
    for (int i = 0; i < MAP_CHUNKS; i++) {
        int c = first + i * job.team_size;
        int64_t off = t - job.first_class - x.first(c); /* the target's place in the chunk */
        A out[N];
        auto xs = v[i].open();
        MTI_UNROLL
        for (int k = 0; k < N; k++) {
            A p = counts ? mti_exp_of<T>(mti_widen(xs.v[k]) - lse) : (A)0;
            out[k] = counts ? (k == off ? p - 1 : p) * scale : (A)0;
        }
        dx.store(c, out);
    }
}

/* Products of fewer rows leave a GPU idle between launches. */
size_t mti_cuda_entropy_bytes(mti_ctx *, mt_dtype) { return (size_t)256 << 20; }

bool mti_cuda_entropy_rows_backward(mti_ctx *ctx, int64_t ignore, int64_t first, const mti_view *x,
                                    const mti_view *target, const mti_view *lse,
                                    const mti_view *scale, const mti_view *dx)
{
    entropy_gradient_job job = {};
    job.x = mti_rowset_of(x), job.dx = mti_rowset_of(dx);
    job.target = mti_data<const int64_t>(target), job.lse = mti_data(lse), job.scale = scale->data;
    job.ignore = ignore, job.first_class = first;
    if (job.x.rows == 0 || job.x.n == 0) return true;
    if (!mti_rows_are_short("cross_entropy", &job.x, mt_dtype_size(x->dtype))) return false;
    return mti_for_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        constexpr int64_t N = mti_chunk_width<T>;
        job.team_size = mti_team_size<T>(job.x.n, MAP_BLOCK);
        int64_t chunks = (job.x.n + 2 * N - 2) / N; /* for any alignment of a row */
        dim3 grid(mti_blocks(job.x.rows, MAP_BLOCK / job.team_size),
                  mti_blocks(chunks, MAP_CHUNKS * job.team_size));
        auto entropy_rows_backward = gradient_of_rows<T>;
        return MTI_LAUNCH(ctx, entropy_rows_backward, grid, MAP_BLOCK, 0, job);
    });
}

/* ---- the mean over the rows that are not ignored ---- */

#define MEAN_BLOCK 1024

/* y = sum of a / number of targets that are not ignored; notes the first bad target. */
template <class T, class U>
__global__ void __launch_bounds__(MEAN_BLOCK)
    mean_over_counted(const int64_t *target, int64_t rows, int64_t classes, int64_t ignore,
                      const T *a, int64_t n, U *y, mti_fault *fault)
{
    long long count = 0;
    double sum = 0;
    for (int64_t r = threadIdx.x; r < rows; r += MEAN_BLOCK) {
        int64_t t = target[r];
        if (t == ignore) continue;
        if (t < 0 || t >= classes)
            mti_note_bad(fault, MTI_FAULT_TARGET, target, r, classes, ignore);
        else
            count++;
    }
    for (int64_t i = threadIdx.x; i < n; i += MEAN_BLOCK) sum += (double)mti_widen(a[i]);
    count = mti_block_sum(count);
    sum = mti_block_sum(sum);
    if (threadIdx.x == 0) *y = mti_narrow<U>((mti_wide<U>)(sum / (double)count));
}

bool mti_cuda_counted_mean(mti_ctx *ctx, int64_t ignore, int64_t classes, const mti_view *target,
                           const mti_view *a, const mti_view *y)
{
    return mti_for_float(a->dtype, [&](auto t) {
        typedef decltype(t) T;
        return mti_for_float(y->dtype, [&](auto u) {
            typedef decltype(u) U;
            auto counted_mean = mean_over_counted<T, U>;
            return MTI_LAUNCH(ctx, counted_mean, 1, MEAN_BLOCK, 0, mti_data<const int64_t>(target),
                              mti_view_count(target), classes, ignore, mti_data<const T>(a),
                              mti_view_count(a), mti_data<U>(y), ctx->fault);
        });
    });
}
