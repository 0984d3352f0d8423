/* softmax.cuh: the kernel of softmax, log-softmax and cross-entropy: for each row it writes
 * y = softmax(scale x) or y = x - log(sum(exp(x))) and, if there are targets, each block's share of
 * the loss. */
#ifndef MTI_SOFTMAX_CUH
#define MTI_SOFTMAX_CUH

#include "backends/cuda/device/desk.h"
#include "backends/cuda/rows/reduce.cuh"

#define MTI_SOFTMAX_HELD 4 /* chunks in a thread's registers */

struct mti_softmax_job {
    mti_rowset x, y;
    int64_t causal; /* s, the rows of one score matrix; 0: no mask */
    double scale;
    /* cross-entropy only */
    const int64_t *target; /* [rows] or NULL */
    int64_t ignore;
    mti_desk *desk;   /* block b writes count[b] and sum[b] */
    mti_fault *fault; /* the note of bad targets */
    /* set by the launch */
    int team_size;
    int64_t rows_per_block;
};

/* A row's maximum and the sum of exp(x - maximum). */
template <class A> struct mti_softmax_stats {
    A top, sum;
};

static __device__ __forceinline__ int64_t mti_softmax_seen(const mti_softmax_job &job, int64_t r)
{
    if (!job.causal) return job.x.n;
    int64_t seen = r % job.causal + 1 + job.x.n - job.causal;
    return seen < 0 ? 0 : seen < job.x.n ? seen : job.x.n;
}

/* Loads chunks base + rank, base + rank + size, ... of the row into registers, scaled; -infinity
 * beyond the row's ends. */
template <class T, mti_row_fit FIT, int ROOM>
static __device__ __forceinline__ void mti_softmax_take(const mti_row<const T> &x,
                                                        mti_wide<T> scale, int base,
                                                        const mti_team<mti_wide<T>, FIT> &team,
                                                        mti_wide<T> (&v)[ROOM][mti_chunk_width<T>])
{
    constexpr int N = mti_chunk_width<T>;
    MTI_UNROLL
    for (int i = 0; i < ROOM; i++) {
        int c = mti_place(base, i, team);
        if (x.is_whole(c)) {
            x.load(c, v[i], 0);
            MTI_UNROLL
            for (int k = 0; k < N; k++) v[i][k] *= scale;
        } else {
            auto in = x.inside(c);
            const T *at = x.p + x.first(c);
            MTI_UNROLL
            for (int k = 0; k < N; k++)
                v[i][k] = in.has(k) ? mti_widen(at[k]) * scale : -(mti_wide<T>)INFINITY;
        }
    }
}

/* For a row in registers; without LOG v becomes exp(v - top). */
template <class T, mti_row_fit FIT, bool LOG, int ROOM>
static __device__ __forceinline__ mti_softmax_stats<mti_wide<T>> mti_softmax_held_stats(
    mti_team<mti_wide<T>, FIT> &team, int chunks, mti_wide<T> (&v)[ROOM][mti_chunk_width<T>])
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>;
    A top = -(A)INFINITY, sum = 0;
    MTI_UNROLL
    for (int i = 0; i < ROOM; i++) MTI_UNROLL
    for (int k = 0; k < N; k++) top = max(top, v[i][k]);
    top = team.largest(top);
    MTI_UNROLL
    for (int i = 0; i < ROOM; i++) {
        if (team.rank + i * team.size >= chunks) continue;
        MTI_UNROLL
        for (int k = 0; k < N; k++) {
            A e = mti_exp_of<T>(v[i][k] - top);
            if (!LOG) v[i][k] = e;
            sum += e;
        }
    }
    return {top, team.sum(sum)};
}

/* For a row that is read again later: a larger element rescales the sum so far. */
template <class T, mti_row_fit FIT>
static __device__ __forceinline__ mti_softmax_stats<mti_wide<T>> mti_softmax_long_stats(
    const mti_row<const T> &x, mti_wide<T> scale, int chunks, mti_team<mti_wide<T>, FIT> &team)
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>, ROOM = mti_room<T, FIT, MTI_SOFTMAX_HELD>;
    A v[ROOM][N], top = -(A)INFINITY, sum = 0;
    for (int base = 0; base < chunks; base += ROOM * team.size) {
        mti_softmax_take(x, scale, base, team, v);
        A next = top;
        MTI_UNROLL
        for (int i = 0; i < ROOM; i++) MTI_UNROLL
        for (int k = 0; k < N; k++) next = max(next, v[i][k]);
        A zero = next == -(A)INFINITY ? (A)0 : next; /* -inf - -inf is NaN */
        sum *= mti_exp_of<T>(top - zero);
        MTI_UNROLL
        for (int i = 0; i < ROOM; i++) MTI_UNROLL
        for (int k = 0; k < N; k++) sum += mti_exp_of<T>(v[i][k] - zero);
        top = next;
    }
    A all = team.largest(top), zero = all == -(A)INFINITY ? (A)0 : all;
    return {all, team.sum(sum * mti_exp_of<T>(top - zero))};
}

/* Stores y of the chunks at base from v: scale x, or exp(scale x - top) if EXP is done; zeros from
 * column `seen` on. */
template <class T, mti_row_fit FIT, bool LOG, bool EXP, int ROOM>
static __device__ __forceinline__ void mti_softmax_give(const mti_row<T> &y, int64_t seen, int base,
                                                        const mti_team<mti_wide<T>, FIT> &team,
                                                        mti_softmax_stats<mti_wide<T>> stats,
                                                        mti_wide<T> (&v)[ROOM][mti_chunk_width<T>])
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>;
    A finish = LOG ? mti_log_of(stats.sum) : 1 / stats.sum;
    MTI_UNROLL
    for (int i = 0; i < ROOM; i++) {
        int c = mti_place(base, i, team);
        int64_t j = y.first(c);
        if (j >= y.n) continue;
        MTI_UNROLL
        for (int k = 0; k < N; k++) {
            if (LOG)
                v[i][k] = (v[i][k] - stats.top) - finish;
            else
                v[i][k] = (EXP ? v[i][k] : mti_exp_of<T>(v[i][k] - stats.top)) * finish;
        }
        if (j + N > seen) {
            MTI_UNROLL
            for (int k = 0; k < N; k++)
                if (j + k >= seen) v[i][k] = 0;
        }
        y.store(c, v[i]);
    }
}

/* Row r, by the calling team. A team without a row (not `live`) takes part in the reductions
 * with an empty one. */
template <class T, mti_row_fit FIT, bool LOG>
static __device__ __forceinline__ mti_softmax_stats<mti_wide<T>> mti_softmax_row(
    const mti_softmax_job &job, int64_t r, bool live, mti_team<mti_wide<T>, FIT> &team)
{
    typedef mti_wide<T> A;
    constexpr int ROOM = mti_room<T, FIT, MTI_SOFTMAX_HELD>;
    const T *start = mti_row_at<const T>(job.x, live ? r : 0);
    int skew = mti_skew(start);
    int64_t n = live ? job.x.n : 0, seen = live ? mti_softmax_seen(job, r) : 0;
    mti_row<const T> x(start, seen, skew);
    mti_row<T> y(mti_row_at<T>(job.y, live ? r : 0), n, skew);
    int full = mti_chunks<T>(seen, skew), chunks = mti_chunks<T>(n, skew);
    A v[ROOM][mti_chunk_width<T>], scale = LOG ? (A)1 : (A)job.scale;
    if constexpr (FIT == MTI_FIT_LONG) {
        auto stats = mti_softmax_long_stats<T, FIT>(x, scale, full, team);
        for (int base = 0; base < chunks; base += ROOM * team.size) {
            mti_softmax_take(x, scale, base, team, v);
            mti_softmax_give<T, FIT, LOG, false>(y, seen, base, team, stats, v);
        }
        return stats;
    } else {
        mti_softmax_take(x, scale, 0, team, v);
        auto stats = mti_softmax_held_stats<T, FIT, LOG>(team, full, v);
        mti_softmax_give<T, FIT, LOG, true>(y, seen, 0, team, stats, v);
        return stats;
    }
}

/* Adds the teams' losses, which each team's rank 0 holds, in order: sum[b], count[b]. */
template <class A, mti_row_fit FIT>
static __device__ __forceinline__ void mti_softmax_leave_loss(const mti_softmax_job &job,
                                                              const mti_team<A, FIT> &team,
                                                              double loss, int64_t count)
{
    MTI_SHARED(double, losses[MTI_WARP_BLOCK]);
    MTI_SHARED(int64_t, counts[MTI_WARP_BLOCK]);
    if (team.rank == 0) losses[team.number] = loss, counts[team.number] = count;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < (int)blockDim.x / team.size; i++) loss += losses[i], count += counts[i];
        job.desk->sum[blockIdx.x] = loss;
        job.desk->count[blockIdx.x] = count;
    }
}

/* Block b does rows [b, b + 1) * rows_per_block, one per team at a time. */
template <class T, mti_row_fit FIT, bool LOG>
MTI_ROW_KERNEL(FIT)
mti_softmax_rows(mti_softmax_job job)
{
    typedef mti_wide<T> A;
    MTI_SHARED(A, space[64]);
    mti_team<A, FIT> team(job.team_size, space);
    int64_t first = (int64_t)blockIdx.x * job.rows_per_block, last = first + job.rows_per_block;
    last = last < job.x.rows ? last : job.x.rows;
    double loss = 0;
    int64_t count = 0;
    for (int64_t at = first; at < last; at += blockDim.x / (unsigned)team.size) {
        int64_t r = at + team.number;
        bool live = r < last;
        auto stats = mti_softmax_row<T, FIT, LOG>(job, r, live, team);
        if (!LOG || !job.target || !live || team.rank != 0) continue;
        int64_t t = job.target[r];
        if (t == job.ignore) continue;
        if (t < 0 || t >= job.x.n) {
            mti_note_bad(job.fault, MTI_FAULT_TARGET, job.target, r, job.x.n, job.ignore);
            continue;
        }
        /* before logp is rounded to 16 bits */
        A at_target = mti_widen(mti_row_at<const T>(job.x, r)[t]);
        loss -= (double)((at_target - stats.top) - mti_log_of(stats.sum));
        count++;
    }
    if (LOG && job.target) mti_softmax_leave_loss<A, FIT>(job, team, loss, count);
}

/* Launches at most max_blocks blocks; needs at least one row. *n_blocks: the number launched. */
template <class T, bool LOG>
static bool mti_softmax_launch(mti_ctx *ctx, mti_softmax_job *job, int64_t max_blocks,
                               int *n_blocks = nullptr)
{
    if (!mti_rows_are_short("softmax", &job->x, sizeof(T))) return false;
    bool aligned = mti_rowset_aligned(&job->x, sizeof(T));
    mti_row_plan plan = mti_plan_rows(job->x.n, sizeof(T), aligned, MTI_SOFTMAX_HELD);
    int64_t rounds =
        (job->x.rows + plan.teams - 1) / plan.teams; /* rows for all teams of a block */
    int64_t per_block = rounds <= max_blocks ? 1 : (rounds + max_blocks - 1) / max_blocks;
    unsigned blocks = mti_blocks(rounds, per_block);
    job->team_size = plan.size, job->rows_per_block = per_block * plan.teams;
    if (n_blocks) *n_blocks = (int)blocks;
    auto softmax_rows = plan.fit == MTI_FIT_WARP    ? mti_softmax_rows<T, MTI_FIT_WARP, LOG>
                        : plan.fit == MTI_FIT_BLOCK ? mti_softmax_rows<T, MTI_FIT_BLOCK, LOG>
                                                    : mti_softmax_rows<T, MTI_FIT_LONG, LOG>;
    return MTI_LAUNCH(ctx, softmax_rows, blocks, (unsigned)plan.threads, 0, *job);
}

#endif
