/* gate.cu: element-wise kernels with three or more tensors: where, swiglu and its backward. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/walk.cuh"

/* ---- where: operands y, mask, then a and b, if given; an absent one is 0 ---- */

template <class T, bool HAS_A, bool HAS_B> struct mti_where_op {
    enum { operands = 2 + HAS_A + HAS_B, width = mti_width_of<T>(), unroll = 2 };
    typedef mti_walk<operands> walk;
    template <int V> struct held {
        mti_vec<T, V> a, b;
        mti_vec<uint8_t, V> mask;
    };

    template <int V> __device__ void load(const walk &w, const int64_t *at, held<V> &h) const
    {
        h.mask = mti_take_operand<uint8_t, V>(w, 1, at[1]);
        if (HAS_A) h.a = mti_take_operand<T, V>(w, 2, at[2]);
        if (HAS_B) h.b = mti_take_operand<T, V>(w, operands - 1, at[operands - 1]);
    }
    template <int V>
    __device__ void store(const walk &w, const int64_t *at, uint64_t, held<V> &h) const
    {
        const T zero = mti_narrow<T>(0.0f);
        mti_vec<T, V> y;
        MTI_UNROLL
        for (int j = 0; j < V; j++)
            y.v[j] = h.mask.v[j] ? (HAS_A ? h.a.v[j] : zero) : (HAS_B ? h.b.v[j] : zero);
        mti_store(static_cast<T *>(w.data[0]) + at[0], y);
    }
};

bool mti_cuda_where(mti_ctx *ctx, const mti_view *mask, const mti_view *a, const mti_view *b,
                    const mti_view *y)
{
    return mti_for_float(y->dtype, [&](auto t) {
        typedef decltype(t) T;
        if (a && b)
            return mti_map(ctx, mti_lay_out(false, y, mask, a, b), mti_where_op<T, true, true>(),
                           14u);
        mti_layout<3> l = mti_lay_out(false, y, mask, a ? a : b);
        return a ? mti_map(ctx, l, mti_where_op<T, true, false>(), 6u)
                 : mti_map(ctx, l, mti_where_op<T, false, true>(), 6u);
    });
}

/* ---- swiglu ---- */

static __device__ __forceinline__ float swiglu_of(float gate, float up)
{
    return mti_swiglu_f32(gate, up);
}
static __device__ __forceinline__ double swiglu_of(double gate, double up)
{
    return mti_swiglu_f64(gate, up);
}
static __device__ __forceinline__ void swiglu_back(float gate, float up, float dy, float *dgate,
                                                   float *dup)
{
    mti_swiglu_backward_f32(gate, up, dy, dgate, dup);
}
static __device__ __forceinline__ void swiglu_back(double gate, double up, double dy, double *dgate,
                                                   double *dup)
{
    mti_swiglu_backward_f64(gate, up, dy, dgate, dup);
}

struct swiglu {
    template <class A> __device__ A operator()(const A *x) const { return swiglu_of(x[0], x[1]); }
};

bool mti_cuda_swiglu(mti_ctx *ctx, const mti_view *gate, const mti_view *up, const mti_view *y)
{
    mti_layout<3> l = mti_lay_out(false, y, gate, up);
    return mti_for_float(y->dtype, [&](auto t) {
        return mti_map(ctx, l, mti_each_op<decltype(t), 2, 2, swiglu>());
    });
}

/* Operands: the outputs, dgate before dup; then dy, gate and, for dgate, up. */
template <class T, bool DGATE, bool DUP> struct mti_swiglu_backward_op {
    enum { out = DGATE + DUP, operands = out + 2 + DGATE, width = mti_width_of<T>(), unroll = 1 };
    typedef mti_walk<operands> walk;
    template <int V> struct held {
        mti_vec<T, V> dy, gate, up;
    };

    template <int V> __device__ void load(const walk &w, const int64_t *at, held<V> &h) const
    {
        h.dy = mti_load<V>(static_cast<const T *>(w.data[out]) + at[out]);
        h.gate = mti_load<V>(static_cast<const T *>(w.data[out + 1]) + at[out + 1]);
        h.up = DGATE ? mti_load<V>(static_cast<const T *>(w.data[operands - 1]) + at[operands - 1])
                     : h.gate; /* dup does not depend on it */
    }
    template <int V>
    __device__ void store(const walk &w, const int64_t *at, uint64_t, held<V> &h) const
    {
        MTI_UNROLL
        for (int j = 0; j < V; j++) {
            mti_wide<T> dgate, dup;
            swiglu_back(mti_widen(h.gate.v[j]), mti_widen(h.up.v[j]), mti_widen(h.dy.v[j]), &dgate,
                        &dup);
            h.gate.v[j] = mti_narrow<T>(dgate);
            h.up.v[j] = mti_narrow<T>(dup);
        }
        if (DGATE) mti_store(static_cast<T *>(w.data[0]) + at[0], h.gate);
        if (DUP) mti_store(static_cast<T *>(w.data[out - 1]) + at[out - 1], h.up);
    }
};

bool mti_cuda_swiglu_backward(mti_ctx *ctx, const mti_view *gate, const mti_view *up,
                              const mti_view *dy, const mti_view *dgate, const mti_view *dup)
{
    return mti_for_float(dy->dtype, [&](auto t) {
        typedef decltype(t) T;
        if (dgate && dup)
            return mti_map(ctx, mti_lay_out(false, dgate, dup, dy, gate, up),
                           mti_swiglu_backward_op<T, true, true>());
        if (dgate)
            return mti_map(ctx, mti_lay_out(false, dgate, dy, gate, up),
                           mti_swiglu_backward_op<T, true, false>());
        return mti_map(ctx, mti_lay_out(false, dup, dy, gate),
                       mti_swiglu_backward_op<T, false, true>());
    });
}
