/* vocabulary.cu: embedding and loss of a vocabulary that ranks share. */
#include "backends/cuda/device/fault.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/softmax.cuh"

#define MAP_BLOCK  256
#define JOIN_BLOCK 1024

/* ---- what of rows and targets is this rank's: its number minus `first` ---- */

struct own_job {
    const int64_t *in;
    int64_t *own;
    int64_t n, first, count, elsewhere; /* elsewhere: what others' become */
    int64_t limit;                      /* of targets the one to ignore */
    mti_fault *fault;                   /* of targets NULL */
};

/* A bad row is noted, and is no row of any rank. */
__global__ void __launch_bounds__(MAP_BLOCK) own_numbers(own_job job)
{
    int64_t i = (int64_t)blockIdx.x * MAP_BLOCK + threadIdx.x;
    if (i >= job.n) return;
    int64_t in = job.in[i], own = (int64_t)((uint64_t)in - (uint64_t)job.first);
    bool bad = job.fault && (in < 0 || in >= job.limit);
    if (bad) mti_note_bad(job.fault, MTI_FAULT_INDEX, job.in, i, job.limit, 0);
    if (bad || (uint64_t)own >= (uint64_t)job.count) own = job.elsewhere;
    job.own[i] = !job.fault && in == job.limit ? (int64_t)MTI_IGNORED : own;
}

static bool find_own(mti_ctx *ctx, own_job job, const mti_view *in, const mti_view *own)
{
    job.in = mti_data<const int64_t>(in), job.own = mti_data<int64_t>(own);
    job.n = mti_view_count(in);
    return job.n == 0 ||
           MTI_LAUNCH(ctx, own_numbers, mti_blocks(job.n, MAP_BLOCK), MAP_BLOCK, 0, job);
}

size_t mti_cuda_own_rows_scratch(mti_ctx *, const mti_view *index)
{
    return (size_t)mti_view_count(index) * sizeof(int64_t);
}

bool mti_cuda_own_rows(mti_ctx *ctx, int64_t first, int64_t rows, int64_t all,
                       const mti_view *index, const mti_view *own)
{
    return find_own(ctx, {NULL, NULL, 0, first, rows, MTI_NO_ROW, all, ctx->fault}, index, own);
}

/* ---- loss ---- */

size_t mti_cuda_shared_entropy_scratch(mti_ctx *, int64_t rows, size_t row_bytes)
{
    return sizeof(double) + (size_t)rows * row_bytes;
}

bool mti_cuda_own_targets(mti_ctx *ctx, int64_t first, int64_t columns, int64_t ignore,
                          const mti_view *target, const mti_view *own)
{
    return find_own(ctx, {NULL, NULL, 0, first, columns, MTI_ELSEWHERE, ignore, NULL}, target, own);
}

template <class A> struct join_job {
    const int64_t *target;
    const A *parts;
    A *lse;
    double *sum;
    int64_t n, ranks, width, ignore;
};

/* In the order of the ranks, as on the CPU; the rows' losses in the order of a block's sum. */
template <class A> __global__ void __launch_bounds__(JOIN_BLOCK) join_parts(join_job<A> job)
{
    double sum = 0;
    for (int64_t i = threadIdx.x; i < job.n; i += JOIN_BLOCK) {
        const A *lse = job.parts + i; /* of rank 0; below it the losses */
        double top = -INFINITY, total = 0;
        for (int64_t r = 0; r < job.ranks; r++) top = fmax(top, (double)lse[2 * r * job.n]);
        for (int64_t r = 0; r < job.ranks; r++) total += exp((double)lse[2 * r * job.n] - top);
        double of_all = top + log(total);
        job.lse[i] = (A)of_all;
        int64_t t = job.target[i], owner = t / job.width;
        if (t == job.ignore || t < 0 || owner >= job.ranks) continue;
        sum += of_all - ((double)lse[2 * owner * job.n] - (double)lse[(2 * owner + 1) * job.n]);
    }
    sum = mti_block_sum(sum);
    if (threadIdx.x == 0) *job.sum += sum;
}

template <class A>
static bool join(mti_ctx *ctx, int64_t ignore, int64_t width, const mti_view *target,
                 const mti_view *parts, const mti_view *lse, const mti_view *sum)
{
    int64_t n = mti_view_count(lse);
    join_job<A> job = {};
    job.target = mti_data<const int64_t>(target), job.parts = mti_data<const A>(parts);
    job.lse = mti_data<A>(lse), job.sum = mti_data<double>(sum), job.n = n;
    job.ranks = n ? mti_view_count(parts) / (2 * n) : 0, job.width = width, job.ignore = ignore;
    auto join_entropy = join_parts<A>;
    return n == 0 || MTI_LAUNCH(ctx, join_entropy, 1, JOIN_BLOCK, 0, job);
}

bool mti_cuda_join_entropy(mti_ctx *ctx, int64_t ignore, int64_t width, const mti_view *target,
                           const mti_view *parts, const mti_view *lse, const mti_view *sum)
{
    return lse->dtype == MT_F64 ? join<double>(ctx, ignore, width, target, parts, lse, sum)
                                : join<float>(ctx, ignore, width, target, parts, lse, sum);
}

struct shift_job {
    mti_rowset x, y;
    const void *lse;
    int team_size;
};

/* A team for each row. */
template <class T> __global__ void __launch_bounds__(MAP_BLOCK) shift_rows(shift_job job)
{
    typedef mti_wide<T> A;
    constexpr int N = mti_chunk_width<T>;
    int64_t r = (int64_t)blockIdx.x * (MAP_BLOCK / job.team_size) + threadIdx.x / job.team_size;
    if (r >= job.x.rows) return; /* no barriers below */
    const T *start = mti_row_at<const T>(job.x, r);
    int skew = mti_skew(start);
    mti_row<const T> x(start, job.x.n, skew);
    mti_row<T> y(mti_row_at<T>(job.y, r), job.x.n, skew);
    A lse = static_cast<const A *>(job.lse)[r];
    int chunks = mti_chunks<T>(job.x.n, skew);
    for (int c = (int)threadIdx.x % job.team_size; c < chunks; c += job.team_size) {
        A out[N];
        auto packed = x.fetch_packed(c);
        auto xs = packed.open();
        MTI_UNROLL
        for (int k = 0; k < N; k++) out[k] = mti_widen(xs.v[k]) - lse;
        y.store(c, out);
    }
}

bool mti_cuda_log_probabilities(mti_ctx *ctx, const mti_view *x, const mti_view *lse,
                                const mti_view *logp)
{
    shift_job job = {mti_rowset_of(x), mti_rowset_of(logp), lse->data, 1};
    if (job.x.rows == 0 || job.x.n == 0) return true;
    if (!mti_rows_are_short("cross_entropy", &job.x, mt_dtype_size(x->dtype))) return false;
    return mti_for_float(x->dtype, [&](auto t) {
        job.team_size = mti_team_size<decltype(t)>(job.x.n, MAP_BLOCK);
        unsigned blocks = mti_blocks(job.x.rows, MAP_BLOCK / job.team_size);
        auto log_probabilities = shift_rows<decltype(t)>;
        return MTI_LAUNCH(ctx, log_probabilities, blocks, MAP_BLOCK, 0, job);
    });
}
