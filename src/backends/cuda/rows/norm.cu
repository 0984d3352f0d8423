/* norm.cu: layer norm over the last dimension, and its backward. RMS norm uses the same kernels
 * with 0 in place of the mean. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/reduce.cuh"

#define HELD      4
#define LONG_HELD 2 /* more spill, beside weight and bias in f32 and f64 */

struct norm_job {
    mti_rowset x, y;
    const void *w, *b; /* [n] or NULL */
    void *mean, *rstd; /* one per row, or NULL */
    double eps;
    int team_size;
    bool about_mean; /* false: RMS norm */
};

template <class T, mti_row_fit FIT> MTI_ROW_KERNEL(FIT) norm_rows(norm_job job)
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>, ROOM = FIT == MTI_FIT_LONG ? LONG_HELD : HELD;
    MTI_SHARED(A, space[64]);
    mti_team<A, FIT> team(job.team_size, space);
    int64_t r = (int64_t)blockIdx.x * (blockDim.x / (unsigned)team.size) + team.number;
    bool live = r < job.x.rows;
    int64_t n = live ? job.x.n : 0;
    if (!live) r = 0; /* its team still takes part in the reductions */
    const T *start = mti_row_at<const T>(job.x, r);
    int skew = mti_skew(start);
    mti_row<const T> x(start, n, skew);
    mti_row<const T> w((const T *)job.w, job.w ? n : 0, skew);
    mti_row<const T> b((const T *)job.b, job.b ? n : 0, skew);
    mti_row<T> y(mti_row_at<T>(job.y, r), n, skew);
    int chunks = mti_chunks<T>(n, skew), step = ROOM * team.size;
    mti_packed_vec<T, N> v[ROOM];

    A sum = 0, squares = 0;
    if (FIT != MTI_FIT_LONG) mti_take(x, 0, team, v);
    for (int base = 0; job.about_mean && base < chunks; base += step) {
        if (FIT == MTI_FIT_LONG) mti_take(x, base, team, v);
        MTI_UNROLL
        for (int i = 0; i < ROOM; i++) {
            auto vs = v[i].open();
            MTI_UNROLL
            for (int k = 0; k < N; k++) sum += mti_widen(vs.v[k]);
        }
        if (FIT != MTI_FIT_LONG) break;
    }
    A mean = job.about_mean ? team.sum(sum) / (A)job.x.n : (A)0;
    /* a second pass, because E[x^2] - mean^2 cancels */
    for (int base = 0; base < chunks; base += step) {
        if (FIT == MTI_FIT_LONG) mti_take(x, base, team, v);
        MTI_UNROLL
        for (int i = 0; i < ROOM; i++) {
            int c = mti_place(base, i, team);
            auto in = x.inside(c);
            auto vs = v[i].open();
            MTI_UNROLL
            for (int k = 0; k < N; k++) {
                A d = mti_widen(vs.v[k]) - mean;
                if (x.is_whole(c) || in.has(k)) squares += d * d;
            }
        }
        if (FIT != MTI_FIT_LONG) break;
    }
    A rstd = 1 / sqrt(team.sum(squares) / (A)job.x.n + (A)job.eps);
    if (live && team.rank == 0) {
        if (job.mean) static_cast<A *>(job.mean)[r] = mean;
        if (job.rstd) static_cast<A *>(job.rstd)[r] = rstd;
    }
    for (int base = 0; base < chunks; base += step) {
        if (FIT == MTI_FIT_LONG) mti_take(x, base, team, v);
        MTI_UNROLL
        for (int i = 0; i < ROOM; i++) {
            int c = mti_place(base, i, team);
            A out[N], factor[N], shift[N];
            auto vs = v[i].open();
            w.load(c, factor, (A)1);
            b.load(c, shift, (A)0);
            MTI_UNROLL
            for (int k = 0; k < N; k++)
                out[k] = (mti_widen(vs.v[k]) - mean) * rstd * factor[k] + shift[k];
            y.store(c, out);
        }
        if (FIT != MTI_FIT_LONG) break;
    }
}

static bool run_norm(mti_ctx *ctx, double eps, bool about_mean, const mti_view *x,
                     const mti_view *w, const mti_view *b, const mti_view *y, const mti_view *mean,
                     const mti_view *rstd)
{
    norm_job job = {};
    job.about_mean = about_mean, job.x = mti_rowset_of(x), job.y = mti_rowset_of(y);
    job.w = mti_data(w), job.b = mti_data(b), job.mean = mti_data(mean), job.rstd = mti_data(rstd);
    job.eps = eps;
    if (job.x.rows == 0) return true;
    if (!mti_rows_are_short("norm", &job.x, mt_dtype_size(x->dtype))) return false;
    return mti_for_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        bool aligned = mti_rowset_aligned(&job.x, sizeof(T));
        mti_row_plan plan = mti_plan_rows(job.x.n, sizeof(T), aligned, HELD);
        job.team_size = plan.size;
        auto layer_norm = plan.fit == MTI_FIT_WARP    ? norm_rows<T, MTI_FIT_WARP>
                          : plan.fit == MTI_FIT_BLOCK ? norm_rows<T, MTI_FIT_BLOCK>
                                                      : norm_rows<T, MTI_FIT_LONG>;
        return MTI_LAUNCH(ctx, layer_norm, mti_blocks(job.x.rows, plan.teams),
                          (unsigned)plan.threads, 0, job);
    });
}

bool mti_cuda_layer_norm(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                         const mti_view *b, const mti_view *y, const mti_view *mean,
                         const mti_view *rstd)
{
    return run_norm(ctx, eps, true, x, w, b, y, mean, rstd);
}

bool mti_cuda_rms_norm(mti_ctx *ctx, double eps, const mti_view *x, const mti_view *w,
                       const mti_view *y, const mti_view *rstd)
{
    return run_norm(ctx, eps, false, x, w, nullptr, y, nullptr, rstd);
}

/* ---- backward ----
 *
 * With h = (x - mean) rstd and g = dy w: dx = rstd (g - sum(g)/n - h sum(g h)/n),
 * dw = sum over rows of dy h, db = sum over rows of dy; RMS norm (mean is null) drops sum(g)/n. A
 * block does a run of rows; its threads sum their columns of dw and db in registers (long rows: in
 * scratch) and write them to scratch. A second kernel adds the blocks' sums in order, in f64. */

/* Blocks per multiprocessor: the sums need so many registers that no more fit. */
#define WARP_BLOCKS 3
#define ROW_BLOCKS  4
/* At most as many blocks as fill an H200, on any device, so that all devices give the same sums. */
#define MULTIPROCESSORS 132

#define COLUMNS      16 /* per block of the second kernel */
#define COLUMN_PARTS 32

struct norm_backward_job {
    mti_rowset dy, x, dx;
    const void *w, *mean, *rstd;
    void *sum_w, *sum_b; /* [slots, n], NULL if not needed */
    int64_t rows_per_block;
    int team_size;
    bool has_dx;
};

template <class T, mti_row_fit FIT>
constexpr int backward_room = FIT == MTI_FIT_WARP    ? 4
                              : FIT == MTI_FIT_BLOCK ? 2
                                                     : 1;

template <class T> using held = mti_packed_vec<T, mti_chunk_width<T>>;

/* The sums of a row that its dx needs. */
template <class A> struct row_sums {
    A g, gh; /* sum(dy w), sum(dy w (x - mean)) */
};

template <class T, mti_row_fit FIT, int ROOM, class A>
static __device__ __forceinline__ row_sums<A> add_row(const held<T> (&x)[ROOM],
                                                      const held<T> (&dy)[ROOM],
                                                      const mti_row<const T> &w, int base, A mean,
                                                      const mti_team<A, FIT> &team,
                                                      row_sums<A> sums)
{
    constexpr int N = mti_chunk_width<T>;
    MTI_UNROLL
    for (int i = 0; i < ROOM; i++) {
        A factor[N];
        w.load(mti_place(base, i, team), factor, (A)1);
        auto xs = x[i].open(), dys = dy[i].open();
        MTI_UNROLL
        for (int k = 0; k < N; k++) {
            A g = mti_widen(dys.v[k]) * factor[k]; /* 0 beyond the row */
            sums.g += g;
            sums.gh += g * (mti_widen(xs.v[k]) - mean);
        }
    }
    return sums;
}

template <class T, mti_row_fit FIT, int ROOM, class A>
static __device__ __forceinline__ void give_dx(const held<T> (&x)[ROOM], const held<T> (&dy)[ROOM],
                                               const mti_row<const T> &w, const mti_row<T> &dx,
                                               int base, A mean, A rstd, row_sums<A> sums,
                                               const mti_team<A, FIT> &team)
{
    constexpr int N = mti_chunk_width<T>;
    A shift = sums.g / (A)dx.n, slope = sums.gh / (A)dx.n * rstd * rstd;
    MTI_UNROLL
    for (int i = 0; i < ROOM; i++) {
        int c = mti_place(base, i, team);
        A factor[N], out[N];
        w.load(c, factor, (A)1);
        auto xs = x[i].open(), dys = dy[i].open();
        MTI_UNROLL
        for (int k = 0; k < N; k++)
            out[k] = rstd * (mti_widen(dys.v[k]) * factor[k] - shift -
                             (mti_widen(xs.v[k]) - mean) * slope);
        dx.store(c, out);
    }
}

/* Adds this row's share to the chunks at `base` of dw and db. */
template <class T, int ROOM, class A>
static __device__ __forceinline__ void add_columns(const held<T> (&x)[ROOM],
                                                   const held<T> (&dy)[ROOM], A mean, A rstd,
                                                   A (&dw)[ROOM][mti_chunk_width<T>],
                                                   A (&db)[ROOM][mti_chunk_width<T>])
{
    MTI_UNROLL
    for (int i = 0; i < ROOM; i++) {
        auto xs = x[i].open(), dys = dy[i].open();
        MTI_UNROLL
        for (int k = 0; k < mti_chunk_width<T>; k++) {
            A d = mti_widen(dys.v[k]);
            dw[i][k] += d * (mti_widen(xs.v[k]) - mean) * rstd;
            db[i][k] += d;
        }
    }
}

/* slot[columns at base] = sums, or += if the slot has a value already. */
template <int ROOM, int N, class A, mti_row_fit FIT>
static __device__ __forceinline__ void leave_columns(A *slot, int64_t n, int base,
                                                     const mti_team<A, FIT> &team, bool add,
                                                     const A (&sums)[ROOM][N])
{
    if (!slot) return;
    MTI_UNROLL
    for (int i = 0; i < ROOM; i++) {
        int64_t j = (int64_t)mti_place(base, i, team) * N;
        MTI_UNROLL
        for (int k = 0; k < N; k++)
            if (j + k < n) slot[j + k] = add ? slot[j + k] + sums[i][k] : sums[i][k];
    }
}

template <class T, mti_row_fit FIT>
__global__ void __launch_bounds__(FIT == MTI_FIT_WARP ? MTI_WARP_BLOCK : MTI_ROW_BLOCK,
                                  FIT == MTI_FIT_WARP   ? WARP_BLOCKS
                                  : FIT == MTI_FIT_LONG ? 2
                                                        : 1)
    norm_backward_rows(norm_backward_job job)
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>, ROOM = backward_room<T, FIT>;
    MTI_SHARED(A, space[64]);
    mti_team<A, FIT> team(job.team_size, space);
    int teams = (int)blockDim.x / team.size;
    int64_t first = (int64_t)blockIdx.x * job.rows_per_block, last = first + job.rows_per_block;
    last = last < job.x.rows ? last : job.x.rows;
    int64_t n = job.x.n;
    int step = ROOM * team.size, chunks = mti_chunks<T>(n, 0);
    A *slot_w = job.sum_w ? static_cast<A *>(job.sum_w) + blockIdx.x * n : nullptr;
    A *slot_b = job.sum_b ? static_cast<A *>(job.sum_b) + blockIdx.x * n : nullptr;
    A dw[ROOM][N] = {}, db[ROOM][N] = {};
    held<T> x[ROOM], dy[ROOM];

    for (int64_t at = first; at < last; at += teams) {
        bool live = at + team.number < last;
        int64_t r = live ? at + team.number : first;
        /* chunks begin at column 0 in every row, so that a thread's columns stay the same */
        mti_row<const T> x_row(mti_row_at<const T>(job.x, r), live ? n : 0, 0);
        mti_row<const T> dy_row(mti_row_at<const T>(job.dy, r), live ? n : 0, 0);
        mti_row<const T> w((const T *)job.w, job.w && live ? n : 0, 0);
        mti_row<T> dx_row(mti_row_at<T>(job.dx, r), live ? n : 0, 0);
        A mean = job.mean ? static_cast<const A *>(job.mean)[r] : (A)0;
        A rstd = static_cast<const A *>(job.rstd)[r];
        row_sums<A> sums = {0, 0};
        for (int base = 0; base < chunks; base += step) {
            mti_take(x_row, base, team, x);
            mti_take(dy_row, base, team, dy);
            sums = add_row(x, dy, w, base, mean, team, sums);
            if constexpr (FIT == MTI_FIT_LONG) {
                MTI_UNROLL
                for (int k = 0; k < N; k++) dw[0][k] = db[0][k] = 0;
                add_columns(x, dy, mean, rstd, dw, db);
                leave_columns(slot_w, n, base, team, at != first, dw);
                leave_columns(slot_b, n, base, team, at != first, db);
            } else {
                break;
            }
        }
        if (FIT != MTI_FIT_LONG && live) add_columns(x, dy, mean, rstd, dw, db);
        if (!job.has_dx) continue;
        sums.g = job.mean ? team.sum(sums.g) : (A)0;
        sums.gh = team.sum(sums.gh);
        for (int base = 0; base < chunks; base += step) {
            if (FIT == MTI_FIT_LONG) {
                mti_take(x_row, base, team, x);
                mti_take(dy_row, base, team, dy);
            }
            give_dx(x, dy, w, dx_row, base, mean, rstd, sums, team);
            if (FIT != MTI_FIT_LONG) break;
        }
    }
    if constexpr (FIT != MTI_FIT_LONG)
        for (int t = 0; t < teams; t++) { /* one after the other: a fixed order */
            if (team.number == t) {
                leave_columns(slot_w, n, 0, team, t > 0, dw);
                leave_columns(slot_b, n, 0, team, t > 0, db);
            }
            __syncthreads();
        }
}

/* The sums of dw, of db or of both: out[n] = the sum of [slots, n]. */
struct slots_job {
    const void *sums[2];
    void *out[2];
    int64_t slots, n;
};

/* Each column in COLUMN_PARTS runs of slots. */
template <class T>
__global__ void __launch_bounds__(COLUMNS *COLUMN_PARTS) norm_add_slots(const slots_job job)
{
    MTI_SHARED(double, parts[COLUMN_PARTS][COLUMNS]);
    /* not indexed, which would copy the arrays to local memory */
    const mti_wide<T> *sums =
        static_cast<const mti_wide<T> *>(blockIdx.y ? job.sums[1] : job.sums[0]);
    T *out = static_cast<T *>(blockIdx.y ? job.out[1] : job.out[0]);
    int x = (int)threadIdx.x % COLUMNS, part = (int)threadIdx.x / COLUMNS;
    int64_t column = (int64_t)blockIdx.x * COLUMNS + x;
    int64_t run = (job.slots + COLUMN_PARTS - 1) / COLUMN_PARTS, end = (part + 1) * run;
    end = end < job.slots ? end : job.slots;
    double sum = 0;
    if (column < job.n)
        for (int64_t k = part * run; k < end; k++) sum += (double)sums[k * job.n + column];
    parts[part][x] = sum;
    __syncthreads();
    if (part == 0 && column < job.n) {
        for (int i = 1; i < COLUMN_PARTS; i++) sum += parts[i][x];
        out[column] = mti_narrow<T>((mti_wide<T>)sum);
    }
}

struct slot_plan {
    mti_row_plan rows;
    int64_t rows_per_block, slots;
};

static slot_plan plan_slots(const mti_rowset *x, size_t element_size)
{
    slot_plan plan = {mti_plan_rows(x->n, element_size, true, 4), 0, 0};
    if (plan.rows.fit != MTI_FIT_WARP) plan.rows = mti_plan_rows(x->n, element_size, true, 2);
    int64_t rounds = (x->rows + plan.rows.teams - 1) / plan.rows.teams;
    int64_t most = MULTIPROCESSORS * (plan.rows.fit == MTI_FIT_WARP ? WARP_BLOCKS : ROW_BLOCKS);
    plan.rows_per_block = (rounds + most - 1) / most * plan.rows.teams;
    if (x->rows > 0) plan.slots = (x->rows + plan.rows_per_block - 1) / plan.rows_per_block;
    return plan;
}

static size_t slots_size(const mti_rowset *x, mt_dtype dtype, int64_t slots)
{
    return (size_t)slots * (size_t)x->n * (dtype == MT_F64 ? sizeof(double) : sizeof(float));
}

/* Bytes for the sums of dw; the sums of db need as many. */
size_t mti_cuda_rms_norm_backward_scratch(mti_ctx *, const mti_view *x)
{
    mti_rowset rows = mti_rowset_of(x);
    int64_t slots = plan_slots(&rows, mt_dtype_size(x->dtype)).slots;
    return slots_size(&rows, x->dtype, slots);
}

size_t mti_cuda_layer_norm_backward_scratch(mti_ctx *ctx, const mti_view *x)
{
    return 2 * mti_cuda_rms_norm_backward_scratch(ctx, x);
}

bool mti_cuda_layer_norm_backward(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                                  const mti_view *w, const mti_view *mean, const mti_view *rstd,
                                  const mti_view *dx, const mti_view *dw, const mti_view *db,
                                  void *scratch)
{
    norm_backward_job job = {};
    job.dy = mti_rowset_of(dy), job.x = mti_rowset_of(x), job.dx = mti_rowset_of(dx ? dx : x);
    job.w = mti_data(w), job.mean = mti_data(mean), job.rstd = rstd->data;
    job.has_dx = dx != nullptr;
    slot_plan plan = plan_slots(&job.x, mt_dtype_size(x->dtype));
    job.team_size = plan.rows.size, job.rows_per_block = plan.rows_per_block;
    if (dw) job.sum_w = scratch;
    if (db) job.sum_b = static_cast<char *>(scratch) + slots_size(&job.x, x->dtype, plan.slots);
    if (job.x.n == 0) return true;
    if (!mti_rows_are_short("norm", &job.x, mt_dtype_size(x->dtype))) return false;
    slots_job sums = {{}, {}, plan.slots, job.x.n};
    unsigned n_sums = 0;
    if (dw) sums.sums[n_sums] = job.sum_w, sums.out[n_sums++] = dw->data;
    if (db) sums.sums[n_sums] = job.sum_b, sums.out[n_sums++] = db->data;
    dim3 grid(mti_blocks(job.x.n, COLUMNS), n_sums);
    return mti_for_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        auto layer_norm_sums = norm_add_slots<T>;
        auto layer_norm_backward =
            plan.rows.fit == MTI_FIT_WARP    ? norm_backward_rows<T, MTI_FIT_WARP>
            : plan.rows.fit == MTI_FIT_BLOCK ? norm_backward_rows<T, MTI_FIT_BLOCK>
                                             : norm_backward_rows<T, MTI_FIT_LONG>;
        return (plan.slots == 0 || MTI_LAUNCH(ctx, layer_norm_backward, mti_blocks(plan.slots),
                                              (unsigned)plan.rows.threads, 0, job)) &&
               (!n_sums || MTI_LAUNCH(ctx, layer_norm_sums, grid, COLUMNS * COLUMN_PARTS, 0, sums));
    });
}

bool mti_cuda_rms_norm_backward(mti_ctx *ctx, const mti_view *dy, const mti_view *x,
                                const mti_view *w, const mti_view *rstd, const mti_view *dx,
                                const mti_view *dw, void *scratch)
{
    return mti_cuda_layer_norm_backward(ctx, dy, x, w, nullptr, rstd, dx, dw, nullptr, scratch);
}
