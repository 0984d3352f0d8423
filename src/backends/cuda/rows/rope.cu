/* rope.cu: rotary positions. A thread has a vector of pairs; it computes their frequencies once,
 * the angles once per position, and rotates those pairs in a group of heads. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/walk.cuh"

#define BLOCK     256
#define POSITIONS 4 /* per thread */
#define HEADS     8 /* per block */
#define MOST_Y    65535

struct rope_job {
    const void *x;
    void *y;
    int64_t x_stride[3], y_stride[3]; /* of b, a, s */
    int64_t heads, a, s, half;        /* heads: over all batches */
    int64_t start;
    mti_rope rope;
    int team_size; /* threads that share a row */
    bool inverse;
};

/* The unit is a quarter turn for float, a radian for double. */
template <class A>
static __device__ __forceinline__ double frequency_of(const rope_job &job, int64_t i)
{
    const mti_rope &r = job.rope;
    const double f = mti_rope_frequency_f64(r.theta, i, 2 * job.half);
    return f * (sizeof(A) == sizeof(float) ? MTI_2_OVER_PI : 1) *
           mti_rope_slowed(f, i, r.factor, r.low, r.high, r.by_angle);
}
static __device__ __forceinline__ void turn_of(double position, double frequency, float *c,
                                               float *s)
{
    mti_rope_turn_f32(position, frequency, c, s);
}
static __device__ __forceinline__ void turn_of(double position, double frequency, double *c,
                                               double *s)
{
    mti_rope_turn_f64(position, frequency, c, s);
}

template <class T, int V> __global__ void __launch_bounds__(BLOCK) rope_pairs(const rope_job job)
{
    typedef mti_wide<T> A;
    const A scale = static_cast<A>(job.rope.scale);
    int rank = (int)threadIdx.x % job.team_size, teams = (int)blockDim.x / job.team_size;
    int64_t i = ((int64_t)blockIdx.z * job.team_size + rank) * V;
    if (i >= job.half) return; /* no barrier follows */
    double frequency[V];
    MTI_UNROLL
    for (int j = 0; j < V; j++) frequency[j] = frequency_of<A>(job, i + j);
    int64_t p = (int64_t)blockIdx.x * POSITIONS * teams + (int)threadIdx.x / job.team_size;
    for (int k = 0; k < POSITIONS && p < job.s; k++, p += teams) {
        A c[V], s[V];
        MTI_UNROLL
        for (int j = 0; j < V; j++) {
            turn_of((double)(job.start + p), frequency[j], &c[j], &s[j]);
            c[j] *= scale, s[j] *= job.inverse ? -scale : scale;
        }
        for (int64_t group = blockIdx.y; group * HEADS < job.heads; group += gridDim.y)
            for (int64_t h = group * HEADS; h < (group + 1) * HEADS && h < job.heads; h++) {
                int64_t b = h / job.a, a = h % job.a;
                const T *x = static_cast<const T *>(job.x) + b * job.x_stride[0] +
                             a * job.x_stride[1] + p * job.x_stride[2] + i;
                T *y = static_cast<T *>(job.y) + b * job.y_stride[0] + a * job.y_stride[1] +
                       p * job.y_stride[2] + i;
                mti_vec<T, V> low = mti_load<V>(x), high = mti_load<V>(x + job.half);
                MTI_UNROLL
                for (int j = 0; j < V; j++) {
                    A u = mti_widen(low.v[j]), v = mti_widen(high.v[j]);
                    low.v[j] = mti_narrow<T>(mti_fma(u, c[j], -(v * s[j])));
                    high.v[j] = mti_narrow<T>(mti_fma(v, c[j], u * s[j]));
                }
                mti_store(y, low);
                mti_store(y + job.half, high);
            }
    }
}

/* Every vector of every half row begins at a 16-byte boundary. */
static bool takes_vectors(const rope_job &job, int width)
{
    bool whole = job.half % width == 0;
    for (int d = 0; d < 3; d++)
        whole = whole && job.x_stride[d] % width == 0 && job.y_stride[d] % width == 0;
    return whole && mti_is_aligned(job.x, 16) && mti_is_aligned(job.y, 16);
}

template <class T, int V> static bool launch(mti_ctx *ctx, rope_job job)
{
    int64_t vectors = job.half / V, groups = (job.heads + HEADS - 1) / HEADS;
    job.team_size = (int)(vectors < BLOCK ? vectors : BLOCK);
    int teams = BLOCK / job.team_size;
    int64_t rows = (int64_t)teams * POSITIONS;
    dim3 grid(mti_blocks(job.s, rows), (unsigned)(groups < MOST_Y ? groups : MOST_Y),
              mti_blocks(vectors, job.team_size));
    auto rope = rope_pairs<T, V>;
    return MTI_LAUNCH(ctx, rope, grid, (unsigned)(teams * job.team_size), 0, job);
}

bool mti_cuda_rope(mti_ctx *ctx, const mti_rope *rope, int64_t start, bool inverse,
                   const mti_view *x, const mti_view *y)
{
    rope_job job = {};
    job.x = x->data, job.y = y->data;
    for (int d = 0; d < 3; d++) job.x_stride[d] = x->stride[d], job.y_stride[d] = y->stride[d];
    job.heads = x->shape[0] * x->shape[1], job.a = x->shape[1], job.s = x->shape[2];
    job.half = x->shape[3] / 2, job.start = start, job.rope = *rope, job.inverse = inverse;
    if (job.heads == 0 || job.s == 0 || job.half == 0) return true;
    return mti_for_float(x->dtype, [&](auto t) {
        typedef decltype(t) T;
        constexpr int V = mti_width_of<T>();
        return takes_vectors(job, V) ? launch<T, V>(ctx, job) : launch<T, 1>(ctx, job);
    });
}
