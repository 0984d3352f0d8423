/* elementwise.cu: fill, arange, unary ops and their backward, binary ops, comparisons. The maths of
 * each op is in backends/scalar.h, the loops over memory in walk.cuh. */
#include "backends/cuda/kernels.h"
#include "backends/cuda/walk.cuh"

/* ---- fill: copies the bits of the value, as an unsigned integer of the element's size ---- */

template <class T> struct fill_all {
    enum { width = mti_width_of<T>(), unroll = 4 };
    T bits;
    template <int V> __device__ void make(uint64_t, mti_vec<T, V> &y) const
    {
        MTI_UNROLL
        for (int j = 0; j < V; j++) y.v[j] = bits;
    }
};

template <class T> static uint64_t bits_of(T value)
{
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    return bits;
}

static uint64_t fill_bits(mt_dtype dtype, double value)
{
    switch (dtype) {
    case MT_F32: return bits_of((float)value);
    case MT_F64: return bits_of(value);
    case MT_BF16: return bits_of(mti_narrow<__nv_bfloat16>(value));
    case MT_F16: return bits_of(mti_narrow<__half>(value));
    case MT_F8_E4M3: return bits_of(mti_narrow<mti_e4m3>(value));
    case MT_F8_E5M2: return bits_of(mti_narrow<mti_e5m2>(value));
    case MT_BOOL: return value != 0.0;
    default: return (uint64_t)mti_f64_to_i64(value);
    }
}

bool mti_cuda_fill(mti_ctx *ctx, const mti_view *y, double value)
{
    uint64_t bits = fill_bits(y->dtype, value);
    switch (mt_dtype_size(y->dtype)) {
    case 1: return mti_make<uint8_t>(ctx, y, false, fill_all<uint8_t>{(uint8_t)bits});
    case 2: return mti_make<uint16_t>(ctx, y, false, fill_all<uint16_t>{(uint16_t)bits});
    case 4: return mti_make<uint32_t>(ctx, y, false, fill_all<uint32_t>{(uint32_t)bits});
    default: return mti_make<uint64_t>(ctx, y, false, fill_all<uint64_t>{(uint64_t)bits});
    }
}

/* ---- arange ---- */

template <class T> __device__ __forceinline__ T mti_term(double start, double step, uint64_t i)
{
    return mti_narrow<T>(fma((double)i, step, start));
}
template <> __device__ __forceinline__ int64_t mti_term(double start, double step, uint64_t i)
{
    return (int64_t)start + (int64_t)i * (int64_t)step;
}

template <class T> struct count_up {
    enum { width = mti_width_of<T>(), unroll = 4 };
    double start, step;
    template <int V> __device__ void make(uint64_t i, mti_vec<T, V> &y) const
    {
        MTI_UNROLL
        for (int j = 0; j < V; j++) y.v[j] = mti_term<T>(start, step, i + (uint64_t)j);
    }
};

bool mti_cuda_arange(mti_ctx *ctx, double start, double step, const mti_view *y)
{
    if (y->dtype == MT_I64) return mti_make<int64_t>(ctx, y, true, count_up<int64_t>{start, step});
    return mti_for_float(y->dtype, [&](auto t) {
        typedef decltype(t) T;
        return mti_make<T>(ctx, y, true, count_up<T>{start, step});
    });
}

/* ---- unary: the op's type is a template parameter (MTI_OP), so that each kernel contains one
 * formula ---- */

template <class Op>
__device__ __forceinline__ float mti_unary_of(Op op, float x, float p0, float p1)
{
#define F(name) mti_##name##_f32
#define UNARY(name, cost, y, dx)                                                                   \
    if (op.value == MTI_UNARY_##name) return y;
#include "backends/unary.def"
    return x;
}

template <class Op>
__device__ __forceinline__ double mti_unary_of(Op op, double x, double p0, double p1)
{
#define F(name) mti_##name##_f64
#define UNARY(name, cost, y, dx)                                                                   \
    if (op.value == MTI_UNARY_##name) return y;
#include "backends/unary.def"
    return x;
}

template <class A, class Op> struct unary_of : Op {
    A p0, p1;
    __device__ A operator()(const A *x) const { return mti_unary_of<Op>(*this, x[0], p0, p1); }
};

/* Calls each(MTI_OP(op)). */
template <class Each> static bool for_unary(mti_unary op, const Each &each)
{
#define UNARY(name, cost, y, dx)                                                                   \
    if (op == MTI_UNARY_##name) return each(MTI_OP(MTI_UNARY_##name));
#include "backends/unary.def"
    return false;
}

bool mti_cuda_unary(mti_ctx *ctx, mti_unary op, double p0, double p1, const mti_view *x,
                    const mti_view *y)
{
    mti_layout<2> l = mti_lay_out(false, y, x);
    return mti_for_float(y->dtype, [&](auto t) {
        typedef decltype(t) T;
        return for_unary(op, [&](auto number) {
            typedef unary_of<mti_wide<T>, decltype(number)> F;
            F f = {number, (mti_wide<T>)p0, (mti_wide<T>)p1};
            return mti_map(ctx, l, mti_each_op<T, 1, 4, F>{f});
        });
    });
}

/* ---- unary backward: k is the kept tensor, x or y ---- */

template <class Op>
__device__ __forceinline__ float mti_unary_backward_of(Op op, float k, float dy, float p0, float p1)
{
#define F(name) mti_##name##_f32
#define UNARY(name, cost, y, dx)                                                                   \
    if (op.value == MTI_UNARY_##name) return dx;
#include "backends/unary.def"
    return dy;
}

template <class Op>
__device__ __forceinline__ double mti_unary_backward_of(Op op, double k, double dy, double p0,
                                                        double p1)
{
#define F(name) mti_##name##_f64
#define UNARY(name, cost, y, dx)                                                                   \
    if (op.value == MTI_UNARY_##name) return dx;
#include "backends/unary.def"
    return dy;
}

/* x: dy, k */
template <class A, class Op> struct unary_slope_of : Op {
    A p0, p1;
    __device__ A operator()(const A *x) const
    {
        return mti_unary_backward_of<Op>(*this, x[1], x[0], p0, p1);
    }
};

bool mti_cuda_unary_backward(mti_ctx *ctx, mti_unary op, double p0, double p1, const mti_view *kept,
                             const mti_view *dy, const mti_view *dx)
{
    if (!kept) return mti_cuda_unary(ctx, op, p0, 0.0, dy, dx); /* linear: dx = p0 dy */
    mti_layout<3> l = mti_lay_out(false, dx, dy, kept);
    return mti_for_float(dx->dtype, [&](auto t) {
        typedef decltype(t) T;
        return for_unary(op, [&](auto number) {
            typedef unary_slope_of<mti_wide<T>, decltype(number)> F;
            F f = {number, (mti_wide<T>)p0, (mti_wide<T>)p1};
            return mti_map(ctx, l, mti_each_op<T, 2, 2, F>{f});
        });
    });
}

/* ---- binary ---- */

template <class Op, class A> __device__ __forceinline__ A mti_binary_of(Op op, A a, A b)
{
    switch (op.value) {
    case MTI_ADD: return a + b;
    case MTI_SUB: return a - b;
    case MTI_MUL: return a * b;
    default: return a / b;
    }
}

template <class Op> struct binary_of : Op {
    template <class A> __device__ A operator()(const A *x) const
    {
        return mti_binary_of<Op>(*this, x[0], x[1]);
    }
};

template <class T, class Op> static bool binary_typed(mti_ctx *ctx, Op op, const mti_layout<3> &l)
{
    return mti_map(ctx, l, mti_each_op<T, 2, 2, binary_of<Op>, true>{{op}}, 6u);
}

template <class T> static bool binary_exact(mti_ctx *ctx, mti_binary op, const mti_layout<3> &l)
{
    switch (op) {
    case MTI_ADD: return binary_typed<T>(ctx, MTI_OP(MTI_ADD), l);
    case MTI_SUB: return binary_typed<T>(ctx, MTI_OP(MTI_SUB), l);
    default: return binary_typed<T>(ctx, MTI_OP(MTI_MUL), l);
    }
}

bool mti_cuda_binary(mti_ctx *ctx, mti_binary op, const mti_view *a, const mti_view *b,
                     const mti_view *y)
{
    mti_layout<3> l = mti_lay_out(false, y, a, b);
    if (y->dtype == MT_I64) return binary_exact<uint64_t>(ctx, op, l);
    if (y->dtype == MT_I32) return binary_exact<uint32_t>(ctx, op, l);
    return mti_for_float(y->dtype, [&](auto t) {
        typedef decltype(t) T;
        return op == MTI_DIV ? binary_typed<T>(ctx, MTI_OP(MTI_DIV), l)
                             : binary_exact<T>(ctx, op, l);
    });
}

/* ---- comparisons ---- */

template <class A> __device__ __forceinline__ bool mti_compared(mti_compare op, A a, A b)
{
#define COMPARE(name, sign)                                                                        \
    if (op == MTI_COMPARE_##name) return a sign b;
#include "backends/comparisons.def"
    return false;
}

/* A comparison has the loads of a binary op, and a store of its own. */
struct mti_no_op {
};

/* The kernel is limited by memory bandwidth, so one kernel serves all six. */
template <class T> struct mti_compare_op : mti_each_op<T, 2, 2, mti_no_op, true> {
    mti_compare op;
    template <int V> using held = typename mti_each_op<T, 2, 2, mti_no_op, true>::template held<V>;

    template <int V>
    __device__ void store(const mti_walk<3> &w, const int64_t *at, uint64_t, held<V> &h) const
    {
        mti_vec<uint8_t, V> y;
        MTI_UNROLL
        for (int j = 0; j < V; j++)
            y.v[j] = mti_compared(op, mti_widen(h.x[0].v[j]), mti_widen(h.x[1].v[j]));
        mti_store(static_cast<uint8_t *>(w.data[0]) + at[0], y);
    }
};

template <class T> static bool compare_typed(mti_ctx *ctx, mti_compare op, const mti_layout<3> &l)
{
    mti_compare_op<T> f;
    f.op = op;
    return mti_map(ctx, l, f, 6u);
}

bool mti_cuda_compare(mti_ctx *ctx, mti_compare op, const mti_view *a, const mti_view *b,
                      const mti_view *y)
{
    mti_layout<3> l = mti_lay_out(false, y, a, b);
    switch (a->dtype) {
    case MT_I64: return compare_typed<int64_t>(ctx, op, l);
    case MT_I32: return compare_typed<int32_t>(ctx, op, l);
    case MT_I16: return compare_typed<int16_t>(ctx, op, l);
    case MT_U16: return compare_typed<uint16_t>(ctx, op, l);
    case MT_I8: return compare_typed<int8_t>(ctx, op, l);
    case MT_U8:
    case MT_BOOL: return compare_typed<uint8_t>(ctx, op, l);
    default:
        return mti_for_real(a->dtype,
                            [&](auto t) { return compare_typed<decltype(t)>(ctx, op, l); });
    }
}
