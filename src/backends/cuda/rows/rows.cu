/* rows.cu: softmax and log-softmax over the last dimension, and their backward.
 *
 * A row that fits in registers (up to 32 KiB) is read once; a longer one is read twice, the first
 * time for its maximum and its sum together. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/softmax.cuh"

template <class T, bool LOG>
static bool forward(mti_ctx *ctx, double scale, bool causal, const mti_view *x, const mti_view *y)
{
    mti_softmax_job job = {};
    job.x = mti_rowset_of(x), job.y = mti_rowset_of(y);
    job.causal = causal ? x->shape[x->rank - 2] : 0, job.scale = scale;
    return mti_softmax_launch<T, LOG>(ctx, &job, INT64_MAX);
}

bool mti_cuda_softmax(mti_ctx *ctx, double scale, bool causal, const mti_view *x, const mti_view *y)
{
    if (mti_rowset_of(x).rows * mti_rowset_of(x).n == 0) return true;
    return mti_for_float(
        x->dtype, [&](auto t) { return forward<decltype(t), false>(ctx, scale, causal, x, y); });
}

bool mti_cuda_log_softmax(mti_ctx *ctx, const mti_view *x, const mti_view *y)
{
    if (mti_rowset_of(x).rows * mti_rowset_of(x).n == 0) return true;
    return mti_for_float(x->dtype,
                         [&](auto t) { return forward<decltype(t), true>(ctx, 1, false, x, y); });
}

/* ---- backward ---- */

#define HELD 4

struct backward_job {
    mti_rowset y, dy, dx;
    double scale;
    int team_size;
};

/* softmax:     dx = scale y (dy - total),   total = sum(dy y)
 * log-softmax: dx = dy - exp(y) total,      total = sum(dy) */
template <bool LOG, class A> static __device__ __forceinline__ A part_of_total(A y, A dy)
{
    return LOG ? dy : dy * y;
}
template <bool LOG, class A> static __device__ __forceinline__ A dx_of(A scale, A total, A y, A dy)
{
    return LOG ? dy - mti_exp_below(y) * total : scale * y * (dy - total);
}

template <class T, mti_row_fit FIT, bool LOG> MTI_ROW_KERNEL(FIT) backward_rows(backward_job job)
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>, ROOM = mti_room<T, FIT, HELD>;
    MTI_SHARED(A, space[64]);
    mti_team<A, FIT> team(job.team_size, space);
    int64_t r = (int64_t)blockIdx.x * (blockDim.x / (unsigned)team.size) + team.number;
    bool live = r < job.y.rows;
    int64_t n = live ? job.y.n : 0;
    if (!live) r = 0; /* its team still takes part in the reductions */
    const T *start = mti_row_at<const T>(job.y, r);
    int skew = mti_skew(start);
    mti_row<const T> y(start, n, skew), dy(mti_row_at<const T>(job.dy, r), n, skew);
    mti_row<T> dx(mti_row_at<T>(job.dx, r), n, skew);
    int chunks = mti_chunks<T>(n, skew), step = ROOM * team.size;
    mti_packed_vec<T, N> a[ROOM], b[ROOM];
    A sum = 0, out[N];
    for (int base = 0; base < chunks; base += step) {
        mti_take(y, base, team, a);
        mti_take(dy, base, team, b);
        MTI_UNROLL
        for (int i = 0; i < ROOM; i++) {
            auto ys = a[i].open(), dys = b[i].open();
            MTI_UNROLL
            for (int k = 0; k < N; k++)
                sum += part_of_total<LOG>(mti_widen(ys.v[k]), mti_widen(dys.v[k]));
        }
        if (FIT != MTI_FIT_LONG) break;
    }
    sum = team.sum(sum);
    for (int base = 0; base < chunks; base += step) {
        if (FIT == MTI_FIT_LONG) {
            mti_take(y, base, team, a);
            mti_take(dy, base, team, b);
        }
        MTI_UNROLL
        for (int i = 0; i < ROOM; i++) {
            auto ys = a[i].open(), dys = b[i].open();
            MTI_UNROLL
            for (int k = 0; k < N; k++)
                out[k] = dx_of<LOG>((A)job.scale, sum, mti_widen(ys.v[k]), mti_widen(dys.v[k]));
            dx.store(mti_place(base, i, team), out);
        }
        if (FIT != MTI_FIT_LONG) break;
    }
}

template <class T, bool LOG>
static bool backward(mti_ctx *ctx, double scale, const mti_view *y, const mti_view *dy,
                     const mti_view *dx)
{
    backward_job job = {};
    job.y = mti_rowset_of(y);
    if (!mti_rows_are_short("softmax", &job.y, sizeof(T))) return false;
    job.dy = mti_rowset_of(dy), job.dx = mti_rowset_of(dx), job.scale = scale;
    mti_row_plan plan =
        mti_plan_rows(job.y.n, sizeof(T), mti_rowset_aligned(&job.y, sizeof(T)), HELD);
    job.team_size = plan.size;
    unsigned blocks = mti_blocks(job.y.rows, plan.teams);
    auto softmax_backward = plan.fit == MTI_FIT_WARP    ? backward_rows<T, MTI_FIT_WARP, LOG>
                            : plan.fit == MTI_FIT_BLOCK ? backward_rows<T, MTI_FIT_BLOCK, LOG>
                                                        : backward_rows<T, MTI_FIT_LONG, LOG>;
    return MTI_LAUNCH(ctx, softmax_backward, blocks, (unsigned)plan.threads, 0, job);
}

bool mti_cuda_softmax_backward(mti_ctx *ctx, double scale, const mti_view *y, const mti_view *dy,
                               const mti_view *dx)
{
    if (mti_view_count(y) == 0) return true;
    return mti_for_float(
        y->dtype, [&](auto t) { return backward<decltype(t), false>(ctx, scale, y, dy, dx); });
}

bool mti_cuda_log_softmax_backward(mti_ctx *ctx, const mti_view *y, const mti_view *dy,
                                   const mti_view *dx)
{
    if (mti_view_count(y) == 0) return true;
    return mti_for_float(y->dtype,
                         [&](auto t) { return backward<decltype(t), true>(ctx, 1, y, dy, dx); });
}
