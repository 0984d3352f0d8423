/* walk.cuh: the loops of element-wise kernels over memory.
 *
 * First the host lays out a call's views together (mti_layout): it sorts the dimensions so that the
 * first operand is written in memory order, and merges dimensions where all operands allow; mostly
 * one remains. Then one kernel (mti_map) serves every element-wise op: a thread issues the loads of
 * `unroll` vectors of `width` elements, and only then computes and stores. An op is a functor:
 *
 *   struct F {
 *       enum { operands, width, unroll };      operand 0 is written
 *       template <int V> struct held {...};    the values in registers between load and store
 *       template <int V> load(walk, at, held)  at[k]: offset of the vector in operand k
 *       template <int V> store(walk, at, i, held)   i: number of the vector's first element
 *   };
 *
 * with V = width if the last dimension is contiguous and aligned everywhere, else 1. Indices have
 * 32 bits: larger calls are cut into halves and launched piece by piece (mti_cut). */
#ifndef MTI_WALK_CUH
#define MTI_WALK_CUH

#include <type_traits>
#include "backends/cuda/gpu.h"
#include "backends/float8.h"

#ifdef __CUDACC__
#define MTI_UNROLL _Pragma("unroll")
#else
#define MTI_UNROLL
#endif

#define MTI_BLOCK_THREADS             256
#define MTI_BLOCKS_PER_MULTIPROCESSOR 32 /* four times the resident blocks: a short last wave */

/* ---- types ---- */

/* The type that T is computed in: f32, or f64 for f64. */
template <class T> struct mti_wide_of {
    typedef float type;
};
template <> struct mti_wide_of<double> {
    typedef double type;
};
template <class T> using mti_wide = typename mti_wide_of<T>::type;

__host__ __device__ __forceinline__ float mti_widen(float x) { return x; }
__host__ __device__ __forceinline__ double mti_widen(double x) { return x; }
__host__ __device__ __forceinline__ float mti_widen(__nv_bfloat16 x) { return __bfloat162float(x); }
__host__ __device__ __forceinline__ float mti_widen(__half x) { return __half2float(x); }

/* Integers are computed as they are; as unsigned ones, so that they wrap around. */
template <class T>
__host__ __device__ __forceinline__ std::enable_if_t<std::is_integral_v<T>, T> mti_widen(T x)
{
    return x;
}

/* 8-bit floats are stored only: copied, cast and compared. */
struct mti_e4m3 {
    uint8_t bits;
};
struct mti_e5m2 {
    uint8_t bits;
};
__host__ __device__ __forceinline__ float mti_widen(mti_e4m3 x)
{
    return mti_f32_from_e4m3(x.bits);
}
__host__ __device__ __forceinline__ float mti_widen(mti_e5m2 x)
{
    return mti_f32_from_e5m2(x.bits);
}

/* Rounds to nearest even; f64 reaches a narrower float through f32, as on the CPU. */
template <class T, class A> __host__ __device__ __forceinline__ T mti_narrow(A x)
{
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
        return __float2bfloat16_rn((float)x);
    else if constexpr (std::is_same_v<T, __half>)
        return __float2half_rn((float)x);
    else if constexpr (std::is_same_v<T, mti_e4m3>)
        return {mti_e4m3_from_f32((float)x)};
    else if constexpr (std::is_same_v<T, mti_e5m2>)
        return {mti_e5m2_from_f32((float)x)};
    else
        return (T)x;
}

/* Calls n(T()) for the type of a floating dtype; n is a generic lambda. */
template <class Each> bool mti_for_float(mt_dtype dtype, const Each &each)
{
    switch (dtype) {
    case MT_F64: return each(double());
    case MT_BF16: return each(__nv_bfloat16());
    case MT_F16: return each(__half());
    default: return each(float());
    }
}

/* The same, with the 8-bit floats. */
template <class Each> bool mti_for_real(mt_dtype dtype, const Each &each)
{
    return dtype == MT_F8_E4M3   ? each(mti_e4m3())
           : dtype == MT_F8_E5M2 ? each(mti_e5m2())
                                 : mti_for_float(dtype, each);
}

/* ---- scalars ---- */

__device__ __forceinline__ float mti_root(float x) { return sqrtf(x); }
__device__ __forceinline__ double mti_root(double x) { return sqrt(x); }
/* exp(x), x <= 0 */
__device__ __forceinline__ float mti_exp_below(float x) { return mti_exp_nonpositive_f32(x); }
__device__ __forceinline__ double mti_exp_below(double x) { return mti_exp_nonpositive_f64(x); }
__device__ __forceinline__ float mti_log_of(float x) { return mti_log_f32(x); }
__device__ __forceinline__ double mti_log_of(double x) { return log(x); }

/* The last of n numbers, which rise, that is at most `number`; the first is. */
template <class First>
__device__ __forceinline__ int mti_last_at_most(int n, uint32_t number, const First &first)
{
    int low = 0, high = n;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (first(middle) <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

#define MTI_LOG2E 1.44269504088896340736

/* 2^x; results under 2^-126 are 0. */
__device__ __forceinline__ float mti_exp2_fast(float x)
{
#ifdef __CUDA_ARCH__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* ---- vectors ---- */

/* N elements that are loaded and stored together, 16 bytes at a time. */
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) mti_vec {
    T v[N];
};

template <int N, class T> __device__ __forceinline__ mti_vec<T, N> mti_load(const T *p)
{
    return *mti_at<const mti_vec<T, N>>(p);
}

template <class W, class T, int N>
__device__ __forceinline__ void mti_store_as(T *p, const mti_vec<T, N> &x)
{
    W words[sizeof x / sizeof(W)];
    memcpy(words, &x, sizeof x);
    MTI_UNROLL
    for (size_t i = 0; i < sizeof x / sizeof(W); i++) __stcg(mti_at<W>(p) + i, words[i]);
}

/* Uses an intrinsic: the compiler would split a plain store into one per element, and merge it with
 * the remainder's stores. */
template <class T, int N> __device__ __forceinline__ void mti_store(T *p, const mti_vec<T, N> &x)
{
    if constexpr (N > 1 && sizeof x % sizeof(uint4) == 0)
        mti_store_as<uint4>(p, x);
    else if constexpr (N > 1 && sizeof x == sizeof(uint2))
        mti_store_as<uint2>(p, x);
    else if constexpr (N > 1 && sizeof x == sizeof(uint32_t))
        mti_store_as<unsigned>(p, x);
    else
        *mti_at<mti_vec<T, N>>(p) = x;
}

/* A vector that is kept for long: in whole registers, as in memory. Of a mti_vec the compiler keeps
 * each 16-bit element in a register of its own, or the f32 that it was widened to. */
template <class T, int N> struct mti_packed_vec {
    uint32_t words[sizeof(mti_vec<T, N>) / sizeof(uint32_t)];

    __device__ __forceinline__ void operator=(const mti_vec<T, N> &x)
    {
        memcpy(words, &x, sizeof words);
    }
    /* To be used at once. */
    __device__ __forceinline__ mti_vec<T, N> open() const
    {
        mti_vec<T, N> x;
        uint32_t now[sizeof words / sizeof *words];
        MTI_UNROLL
        for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
            now[i] = words[i];
#ifdef __CUDA_ARCH__
            asm volatile("" : "+r"(now[i])); /* not what an earlier call returned */
#endif
        }
        memcpy(&x, now, sizeof x);
        return x;
    }
};

template <class T> constexpr int mti_width_of() { return (int)(16 / sizeof(T)); }

static inline bool mti_is_aligned(const void *p, size_t n_bytes)
{
    return (uintptr_t)p % (n_bytes < 16 ? n_bytes : 16) == 0;
}

/* ---- division by a number known before the launch (Granlund & Montgomery 1994) ---- */

struct mti_divider {
    uint32_t by, magic, shift;
};

static inline mti_divider mti_divide_by(uint32_t by) /* 1 to 2^31 */
{
    uint32_t shift = 0;
    while (((uint64_t)1 << shift) < by) shift++;
    uint64_t magic = (((uint64_t)1 << 32) * (((uint64_t)1 << shift) - by)) / by + 1;
    return {by, (uint32_t)magic, shift};
}

/* n < 2^31 */
__host__ __device__ __forceinline__ uint32_t mti_quotient(uint32_t n, const mti_divider &d)
{
    return ((uint32_t)(((uint64_t)n * d.magic) >> 32) + n) >> d.shift;
}

/* ---- layout: several views of one shape (host) ---- */

template <int N> struct mti_layout {
    void *data[N];
    size_t size[N]; /* bytes per element */
    int rank;       /* at least 1 */
    int64_t count, shape[MT_MAX_RANK], stride[N][MT_MAX_RANK];
    uint64_t first; /* number of the first element, if this is a part of a call */
};

static inline int64_t mti_magnitude(int64_t x) { return x < 0 ? -x : x; }

template <int N> void mti_swap_dimensions(mti_layout<N> *l, int a, int b)
{
    int64_t t = l->shape[a];
    l->shape[a] = l->shape[b], l->shape[b] = t;
    for (int k = 0; k < N; k++) {
        t = l->stride[k][a];
        l->stride[k][a] = l->stride[k][b], l->stride[k][b] = t;
    }
}

/* True if in every operand dimensions d and next are contiguous with each other. */
template <int N> bool mti_mergeable(const mti_layout<N> &l, int d, int next)
{
    for (int k = 0; k < N; k++)
        if (l.stride[k][d] != l.stride[k][next] * l.shape[next]) return false;
    return true;
}

/* row_major: keep the order, because elements are numbered. */
template <int N> mti_layout<N> mti_lay_out(const mti_view *const (&views)[N], bool row_major)
{
    mti_layout<N> l = {};
    l.count = 1;
    for (int k = 0; k < N; k++) {
        l.data[k] = views[k]->data;
        l.size[k] = mt_dtype_size(views[k]->dtype);
    }
    for (int d = 0; d < views[0]->rank; d++) {
        l.count *= views[0]->shape[d];
        if (views[0]->shape[d] == 1) continue;
        l.shape[l.rank] = views[0]->shape[d];
        for (int k = 0; k < N; k++) l.stride[k][l.rank] = views[k]->stride[d];
        l.rank++;
    }
    for (int i = 1; i < l.rank && !row_major; i++)
        for (int d = i; d > 0 && mti_magnitude(l.stride[0][d - 1]) < mti_magnitude(l.stride[0][d]);
             d--)
            mti_swap_dimensions(&l, d - 1, d);
    int last = 0; /* the last merged dimension */
    for (int d = 1; d < l.rank; d++) {
        bool merge = mti_mergeable(l, last, d);
        if (!merge) last++;
        l.shape[last] = merge ? l.shape[last] * l.shape[d] : l.shape[d];
        for (int k = 0; k < N; k++) l.stride[k][last] = l.stride[k][d];
    }
    if (l.rank == 0) { /* a scalar: one row with one element */
        l.shape[0] = 1;
        for (int k = 0; k < N; k++) l.stride[k][0] = 1;
    }
    l.rank = last + 1;
    return l;
}

template <class... V> mti_layout<sizeof...(V)> mti_lay_out(bool row_major, const V *...views)
{
    const mti_view *const all[] = {views...};
    return mti_lay_out(all, row_major);
}

/* Indices [begin, begin + n) of dimension d. */
template <int N> mti_layout<N> mti_part(const mti_layout<N> &l, int d, int64_t begin, int64_t n)
{
    mti_layout<N> part = l;
    part.count = l.count / l.shape[d] * n;
    part.first = l.first + (uint64_t)(l.count / l.shape[d] * begin);
    part.shape[d] = n;
    for (int k = 0; k < N; k++)
        part.data[k] = static_cast<char *>(l.data[k]) + begin * l.stride[k][d] * (int64_t)l.size[k];
    return part;
}

/* Most elements per launch; strides are below 2^31 too. The simulator cuts at a testable size, but
 * for a test of the layout alone. */
#if defined(MTI_CUDASIM) && !defined(MTI_WHOLE_LAYOUTS)
#define MTI_MOST_ELEMENTS ((int64_t)1 << 18)
#else
#define MTI_MOST_ELEMENTS ((int64_t)1 << 30)
#endif

/* Calls each(part) for parts small enough for 32-bit indices; cuts the slowest dimension first. */
template <int N, class Each> bool mti_cut(const mti_layout<N> &l, const Each &each)
{
    if (l.count == 0) return true;
    int cut = l.count > MTI_MOST_ELEMENTS ? 0 : -1;
    for (int d = 0; d < l.rank; d++)
        for (int k = 0; k < N && l.shape[d] > 1; k++)
            if (mti_magnitude(l.stride[k][d]) > INT32_MAX) cut = d;
    if (cut < 0) return each(l);
    while (l.shape[cut] == 1) cut++;
    int64_t half = l.shape[cut] / 2, round = half >= 4096 ? half % 1024 : 0;
    half -= round;
    return mti_cut(mti_part(l, cut, 0, half), each) &&
           mti_cut(mti_part(l, cut, half, l.shape[cut] - half), each);
}

/* ---- walk: a layout as a kernel argument ---- */

template <int N> struct mti_walk {
    void *data[N];
    uint32_t count;  /* vectors */
    uint32_t tail;   /* elements after the last vector; 0 unless rank is 1 */
    uint32_t repeat; /* bit k: operand k has the same value for a whole vector */
    int rank;
    mti_divider shape[MT_MAX_RANK]; /* the last in vectors */
    int32_t stride[N][MT_MAX_RANK]; /* elements */
    uint64_t first;
};

/* The offset of vector i in each operand. */
template <int N>
__device__ __forceinline__ void mti_seek(const mti_walk<N> &w, uint32_t i, int64_t (&at)[N])
{
    MTI_UNROLL
    for (int k = 0; k < N; k++) at[k] = 0;
    for (int d = w.rank - 1; d > 0; d--) {
        uint32_t rest = mti_quotient(i, w.shape[d]);
        int32_t index = (int32_t)(i - rest * w.shape[d].by);
        MTI_UNROLL
        for (int k = 0; k < N; k++) at[k] += (int64_t)index * w.stride[k][d];
        i = rest;
    }
    MTI_UNROLL
    for (int k = 0; k < N; k++) at[k] += (int64_t)(int32_t)i * w.stride[k][0];
}

/* True if vectors of `width` elements can be used; bit k of may_repeat: operand k may have stride 0
 * in the last dimension. */
template <int N> bool mti_can_take(const mti_layout<N> &l, int width, uint32_t may_repeat)
{
    int last = l.rank - 1;
    if (width == 1) return true;
    if (last > 0 && l.shape[last] % width != 0) return false;
    if (l.shape[last] < width || l.first % (uint64_t)width != 0) return false;
    for (int k = 0; k < N; k++) {
        if (l.stride[k][last] == 0 && (may_repeat >> k & 1u)) continue;
        if (l.stride[k][last] != 1) return false;
        if (!mti_is_aligned(l.data[k], l.size[k] * (size_t)width)) return false;
        for (int d = 0; d < last; d++)
            if (l.stride[k][d] % width != 0) return false;
    }
    return true;
}

template <int N> mti_walk<N> mti_make_walk(const mti_layout<N> &l, int width)
{
    mti_walk<N> w = {};
    int last = l.rank - 1;
    w.count = (uint32_t)(l.count / width);
    w.tail = (uint32_t)(l.count % width);
    w.rank = l.rank;
    w.first = l.first;
    for (int d = 0; d < l.rank; d++) {
        int64_t n = d == last ? l.shape[d] / width : l.shape[d];
        w.shape[d] = mti_divide_by((uint32_t)n);
    }
    for (int k = 0; k < N; k++) {
        w.data[k] = l.data[k];
        for (int d = 0; d < l.rank; d++) w.stride[k][d] = (int32_t)l.stride[k][d];
        if (width > 1 && l.stride[k][last] == 0) w.repeat |= 1u << k;
        w.stride[k][last] *= width;
    }
    return w;
}

/* ---- the driver ---- */

/* An op that reads nothing: F has width, unroll and make(i, y), which sets the elements from i on.
 */
template <class T, class F> struct mti_make_op : F {
    enum { operands = 1 };
    template <int V> struct held {
    };

    template <int V> __device__ void load(const mti_walk<1> &, const int64_t *, held<V> &) const {}
    template <int V>
    __device__ void store(const mti_walk<1> &w, const int64_t *at, uint64_t i, held<V> &) const
    {
        mti_vec<T, V> y;
        this->make(i, y);
        mti_store(static_cast<T *>(w.data[0]) + at[0], y);
    }
};

/* Operand k's vector; one whose value is the same for the whole vector is read once. */
template <class T, int V, int N>
static __device__ __forceinline__ mti_vec<T, V> mti_take_operand(const mti_walk<N> &w, int k,
                                                                 int64_t at)
{
    const T *p = static_cast<const T *>(w.data[k]) + at;
    if (V == 1 || !(w.repeat >> k & 1u)) return mti_load<V>(p);
    T value = *p;
    mti_vec<T, V> x;
    MTI_UNROLL
    for (int j = 0; j < V; j++) x.v[j] = value;
    return x;
}

/* An op of IN inputs, all of T as y is, which may repeat if REPEAT. F: y = (*this)(x) of one
 * element's inputs, in the type they are computed in. */
template <class T, int IN, int UNROLL, class F, bool REPEAT = false> struct mti_each_op : F {
    enum { operands = 1 + IN, width = mti_width_of<T>(), unroll = UNROLL };
    template <int V> struct held {
        mti_vec<T, V> x[IN];
    };

    template <int V>
    __device__ void load(const mti_walk<1 + IN> &w, const int64_t *at, held<V> &h) const
    {
        MTI_UNROLL
        for (int k = 0; k < IN; k++) {
            if (REPEAT)
                h.x[k] = mti_take_operand<T, V>(w, 1 + k, at[1 + k]);
            else
                h.x[k] = mti_load<V>(static_cast<const T *>(w.data[1 + k]) + at[1 + k]);
        }
    }
    template <int V>
    __device__ void store(const mti_walk<1 + IN> &w, const int64_t *at, uint64_t, held<V> &h) const
    {
        MTI_UNROLL
        for (int j = 0; j < V; j++) {
            decltype(mti_widen(h.x[0].v[0])) x[IN];
            MTI_UNROLL
            for (int k = 0; k < IN; k++) x[k] = mti_widen(h.x[k].v[j]);
            h.x[0].v[j] = mti_narrow<T>((*this)(x));
        }
        mti_store(static_cast<T *>(w.data[0]) + at[0], h.x[0]);
    }
};

template <class F, int V>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS)
    mti_map_kernel(const mti_walk<F::operands> w, const F f)
{
    const uint32_t span = MTI_BLOCK_THREADS * F::unroll;
    for (uint32_t base = blockIdx.x * span; base < w.count; base += gridDim.x * span) {
        typename F::template held<V> held[F::unroll];
        int64_t at[F::unroll][F::operands];
        MTI_UNROLL
        for (int u = 0; u < F::unroll; u++) {
            uint32_t i = base + (uint32_t)u * MTI_BLOCK_THREADS + threadIdx.x;
            if (i >= w.count) continue;
            mti_seek(w, i, at[u]);
            f.template load<V>(w, at[u], held[u]);
        }
        MTI_UNROLL
        for (int u = 0; u < F::unroll; u++) {
            uint32_t i = base + (uint32_t)u * MTI_BLOCK_THREADS + threadIdx.x;
            if (i < w.count) f.template store<V>(w, at[u], w.first + (uint64_t)i * V, held[u]);
        }
    }
    if (V > 1 && blockIdx.x == 0 && threadIdx.x < w.tail) {
        typename F::template held<1> held;
        int64_t at[F::operands];
        uint64_t i = (uint64_t)w.count * V + threadIdx.x;
        for (int k = 0; k < F::operands; k++) at[k] = w.repeat >> k & 1u ? 0 : (int64_t)i;
        f.template load<1>(w, at, held);
        f.template store<1>(w, at, w.first + i, held);
    }
}

/* Blocks that take n items in turns, `each` at a time. */
static inline unsigned mti_grid(const mti_ctx *ctx, int64_t n, int64_t each = 1)
{
    int64_t blocks = (n + each - 1) / each;
    int64_t most = (int64_t)ctx->multiprocessors * MTI_BLOCKS_PER_MULTIPROCESSOR;
    return (unsigned)(blocks < 1 ? 1 : blocks < most ? blocks : most);
}

template <class F, int V>
bool mti_map_launch(mti_ctx *ctx, const mti_layout<F::operands> &l, const F &f)
{
    mti_walk<F::operands> w = mti_make_walk(l, V);
    int64_t span = MTI_BLOCK_THREADS * F::unroll;
    auto element_wise = mti_map_kernel<F, V>;
    return MTI_LAUNCH(ctx, element_wise, mti_grid(ctx, w.count, span), MTI_BLOCK_THREADS, 0, w, f);
}

template <class F>
bool mti_map(mti_ctx *ctx, const mti_layout<F::operands> &layout, const F &f,
             uint32_t may_repeat = 0)
{
    return mti_cut(layout, [&](const mti_layout<F::operands> &l) {
        return mti_can_take(l, F::width, may_repeat) ? mti_map_launch<F, F::width>(ctx, l, f)
                                                     : mti_map_launch<F, 1>(ctx, l, f);
    });
}

/* Sets all of y by an mti_make_op; counted: i is an element's number, in y's own order. */
template <class T, class F> bool mti_make(mti_ctx *ctx, const mti_view *y, bool counted, const F &f)
{
    return mti_map(ctx, mti_lay_out(counted, y), mti_make_op<T, F>{f});
}

#endif
