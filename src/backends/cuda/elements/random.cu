/* random.cu: uniform and normal numbers and dropout. A draw is a function of (seed, counter,
 * lane) alone (base/philox.h), so any thread can compute any part, and the CPU computes the
 * same. A thread uses whole counters, 4 elements each, where the layout allows. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/walk.cuh"

struct mti_draws {
    uint64_t seed, offset;
};

/* The counter of the four draws that begin with number `at`. */
__device__ __forceinline__ mti_u32x4 counter_of(const mti_draws &d, uint64_t at)
{
    return mti_philox(d.seed, d.offset + at / 4);
}

/* Written as selects: a run-time index would move the lanes into local memory. */
__device__ __forceinline__ uint32_t lane_of(const mti_u32x4 &r, uint32_t lane)
{
    uint32_t low = lane & 1u ? r.v[1] : r.v[0], high = lane & 1u ? r.v[3] : r.v[2];
    return lane & 2u ? high : low;
}

/* The draws of elements i to i + V - 1; V is 1, or V and i are multiples of 4. */
template <int V>
__device__ __forceinline__ void draw(const mti_draws &d, uint64_t i, uint32_t (&u)[V])
{
    if constexpr (V == 1) {
        u[0] = lane_of(counter_of(d, i), (uint32_t)i & 3u);
    } else {
        MTI_UNROLL
        for (int j = 0; j < V; j += 4) {
            mti_u32x4 r = counter_of(d, i + (uint64_t)j);
            MTI_UNROLL
            for (int k = 0; k < 4; k++) u[j + k] = r.v[k];
        }
    }
}

/* Elements per vector: whole counters. */
template <class T> constexpr int draw_width() { return sizeof(T) == 2 ? 8 : 4; }

/* ---- uniform ---- */

template <class T> struct uniform_draws {
    enum { width = draw_width<T>(), unroll = 1 };
    mti_draws draws;
    mti_wide<T> lo, span, below;
    template <int V> __device__ void make(uint64_t i, mti_vec<T, V> &y) const
    {
        uint32_t u[V];
        draw(draws, i, u);
        MTI_UNROLL
        for (int j = 0; j < V; j++) {
            mti_wide<T> v = lo + span * (mti_wide<T>)mti_u32_to_unit(u[j]);
            y.v[j] = mti_narrow<T>(v > below ? below : v);
        }
    }
};

/* The largest number of type T below hi (lo if there is none), since rounding could give hi. */
template <class T> static double last_below(double lo, double hi)
{
    if (!(lo < hi)) return lo;
    T t = mti_narrow<T>(hi);
    double value = (double)mti_widen(t);
    if (value < hi) return value;
    uint64_t bits = 0, sign = (uint64_t)1 << (8 * sizeof(T) - 1);
    memcpy(&bits, &t, sizeof t);
    /* sign and magnitude: the next lower is bits - 1, or bits + 1 below zero */
    bits = value > 0 ? bits - 1 : value < 0 ? bits + 1 : sign + 1;
    memcpy(static_cast<void *>(&t), &bits, sizeof t);
    return (double)mti_widen(t);
}

bool mti_cuda_uniform(mti_ctx *ctx, double lo, double hi, uint64_t seed, uint64_t offset,
                      const mti_view *y)
{
    return mti_for_float(y->dtype, [&](auto t) {
        typedef decltype(t) T;
        typedef mti_wide<T> A;
        double below = last_below<T>(lo, hi);
        return mti_make<T>(ctx, y, true,
                           uniform_draws<T>{{seed, offset}, (A)lo, (A)(hi - lo), (A)below});
    });
}

/* ---- normal ---- */

template <class T> struct normal_draws {
    enum { width = draw_width<T>(), unroll = 1 };
    mti_draws draws;
    mti_wide<T> mean, std;
    template <int V> __device__ void make(uint64_t i, mti_vec<T, V> &y) const
    {
        float z[V];
        if constexpr (V == 1) {
            mti_u32x4 r = counter_of(draws, i);
            uint32_t pair = (uint32_t)i & 2u;
            float first, second;
            mti_box_muller(lane_of(r, pair), lane_of(r, pair + 1), &first, &second);
            z[0] = i & 1u ? second : first;
        } else {
            uint32_t u[V];
            draw(draws, i, u);
            MTI_UNROLL
            for (int j = 0; j < V; j += 2) mti_box_muller(u[j], u[j + 1], &z[j], &z[j + 1]);
        }
        MTI_UNROLL
        for (int j = 0; j < V; j++) y.v[j] = mti_narrow<T>(mean + std * (mti_wide<T>)z[j]);
    }
};

bool mti_cuda_normal(mti_ctx *ctx, double mean, double std, uint64_t seed, uint64_t offset,
                     const mti_view *y)
{
    return mti_for_float(y->dtype, [&](auto t) {
        typedef decltype(t) T;
        typedef mti_wide<T> A;
        return mti_make<T>(ctx, y, true, normal_draws<T>{{seed, offset}, (A)mean, (A)std});
    });
}

/* ---- dropout ---- */

/* Operands: y, x and, if requested, the mask. */
template <class T, bool has_mask> struct mti_dropout_op {
    enum { operands = has_mask ? 3 : 2, width = draw_width<T>(), unroll = 2 };
    mti_draws draws;
    uint32_t threshold;
    mti_wide<T> scale;
    typedef mti_walk<operands> walk;
    template <int V> struct held {
        mti_vec<T, V> x;
    };

    template <int V> __device__ void load(const walk &w, const int64_t *at, held<V> &h) const
    {
        h.x = mti_load<V>(static_cast<const T *>(w.data[1]) + at[1]);
    }
    template <int V>
    __device__ void store(const walk &w, const int64_t *at, uint64_t i, held<V> &h) const
    {
        uint32_t u[V];
        mti_vec<uint8_t, V> mask;
        draw(draws, i, u);
        MTI_UNROLL
        for (int j = 0; j < V; j++) {
            bool keep = (u[j] >> 8) >= threshold;
            mask.v[j] = keep;
            h.x.v[j] = mti_narrow<T>(keep ? mti_widen(h.x.v[j]) * scale : (mti_wide<T>)0);
        }
        mti_store(static_cast<T *>(w.data[0]) + at[0], h.x);
        if (has_mask)
            mti_store(static_cast<uint8_t *>(w.data[operands - 1]) + at[operands - 1], mask);
    }
};

bool mti_cuda_dropout(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset, const mti_view *x,
                      const mti_view *y, const mti_view *mask)
{
    uint32_t threshold = mti_drop_threshold(p);
    return mti_for_float(y->dtype, [&](auto t) {
        typedef decltype(t) T;
        mti_wide<T> scale = (mti_wide<T>)(1.0 / (1.0 - p));
        mti_draws draws = {seed, offset};
        if (mask)
            return mti_map(ctx, mti_lay_out(true, y, x, mask),
                           mti_dropout_op<T, true>{draws, threshold, scale});
        return mti_map(ctx, mti_lay_out(true, y, x),
                       mti_dropout_op<T, false>{draws, threshold, scale});
    });
}

struct kept_draws {
    enum { width = 8, unroll = 1 };
    mti_draws draws;
    uint32_t threshold;
    template <int V> __device__ void make(uint64_t i, mti_vec<uint8_t, V> &mask) const
    {
        uint32_t u[V];
        draw(draws, i, u);
        MTI_UNROLL
        for (int j = 0; j < V; j++) mask.v[j] = (u[j] >> 8) >= threshold;
    }
};

bool mti_cuda_dropout_mask(mti_ctx *ctx, double p, uint64_t seed, uint64_t offset,
                           const mti_view *mask)
{
    return mti_make<uint8_t>(ctx, mask, true, kept_draws{{seed, offset}, mti_drop_threshold(p)});
}

template <class T> struct mti_dropout_backward_op {
    enum { operands = 3, width = mti_width_of<T>(), unroll = 2 };
    mti_wide<T> scale;
    template <int V> struct held {
        mti_vec<T, V> dy;
        mti_vec<uint8_t, V> mask;
    };

    template <int V> __device__ void load(const mti_walk<3> &w, const int64_t *at, held<V> &h) const
    {
        h.dy = mti_load<V>(static_cast<const T *>(w.data[1]) + at[1]);
        h.mask = mti_load<V>(static_cast<const uint8_t *>(w.data[2]) + at[2]);
    }
    template <int V>
    __device__ void store(const mti_walk<3> &w, const int64_t *at, uint64_t, held<V> &h) const
    {
        MTI_UNROLL
        for (int j = 0; j < V; j++)
            h.dy.v[j] = mti_narrow<T>(h.mask.v[j] ? mti_widen(h.dy.v[j]) * scale : (mti_wide<T>)0);
        mti_store(static_cast<T *>(w.data[0]) + at[0], h.dy);
    }
};

bool mti_cuda_dropout_backward(mti_ctx *ctx, double p, const mti_view *mask, const mti_view *dy,
                               const mti_view *dx)
{
    mti_layout<3> l = mti_lay_out(false, dx, dy, mask);
    return mti_for_float(dx->dtype, [&](auto t) {
        typedef decltype(t) T;
        return mti_map(ctx, l, mti_dropout_backward_op<T>{(mti_wide<T>)(1.0 / (1.0 - p))});
    });
}

/* ---- a generator's place, for kernels that read it from memory ---- */

__global__ void place_of_draws(const mti_draws draws, uint64_t *seed, uint64_t *offset)
{
    *seed = draws.seed;
    *offset = draws.offset;
}

bool mti_cuda_put_draws(mti_ctx *ctx, uint64_t seed, uint64_t offset, const mti_view *seed_to,
                        const mti_view *offset_to)
{
    return MTI_LAUNCH(ctx, place_of_draws, 1, 1, 0, (mti_draws{seed, offset}),
                      mti_data<uint64_t>(seed_to), mti_data<uint64_t>(offset_to));
}
