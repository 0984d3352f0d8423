/* optim.cu: optimizer steps, gradient norms and scaling, many tensors per launch. The tensors
 * are divided into chunks, one per block; a block finds its tensor in a table that is a kernel
 * argument. Tensors that do not fit into the table go into the next launch. */
#include "backends/cuda/device/desk.h"
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/reduce.cuh"
#include "backends/moments.h"

#define TABLE_ITEMS 56   /* kernel arguments have at most 4096 bytes */
#define CHUNK       8192 /* elements */

template <class T> struct mti_opt_entry {
    T *p;
    const void *g;       /* T, or mti_wide<T> */
    void *m, *v;         /* NULL where the optimizer has none; mti_wide<T>, T or codes */
    mti_wide<T> *master; /* the f32 copy that is updated, or NULL */
    int64_t n;
    mti_wide<T> weight_decay;
    uint32_t first; /* number of its first chunk */
    bool aligned;   /* for vector loads */
};

template <class T> struct mti_opt_table {
    int n;
    uint32_t chunks;
    mti_opt_entry<T> at[TABLE_ITEMS];
};
static_assert(sizeof(mti_opt_table<float>) + 128 <= 4096, "a table and a step pass with a launch");
static_assert(sizeof(mti_opt_table<double>) + 128 <= 4096, "a table and a step pass with a launch");

/* The tensor of this chunk: the last one with first <= chunk. Empty tensors are not in the
 * table, so all firsts differ. */
template <class T>
__device__ __forceinline__ int entry_of(const mti_opt_table<T> &table, uint32_t chunk)
{
    return mti_last_at_most(table.n, chunk, [&](int i) { return table.at[i].first; });
}

/* Elements [begin, end) of e in vectors of V; all loads of a round precede its stores. */
template <int V, class Step>
__device__ __forceinline__ void opt_span(const mti_opt_entry<typename Step::type> &e,
                                         const Step &step, int64_t begin, int64_t end)
{
    for (int64_t base = begin; base < end; base += MTI_BLOCK_THREADS * V * Step::unroll) {
        typename Step::template held<V> held[Step::unroll];
        MTI_UNROLL
        for (int u = 0; u < Step::unroll; u++) {
            int64_t i = base + (u * MTI_BLOCK_THREADS + (int)threadIdx.x) * V;
            if (i < end) step.template load<V>(e, i, held[u]);
        }
        MTI_UNROLL
        for (int u = 0; u < Step::unroll; u++) {
            int64_t i = base + (u * MTI_BLOCK_THREADS + (int)threadIdx.x) * V;
            if (i < end) step.template store<V>(e, i, held[u]);
        }
    }
}

/* A chunk: whole vectors first, then the remaining elements. */
template <class Step>
__device__ __forceinline__ void opt_chunk(const mti_opt_table<typename Step::type> &table,
                                          const Step &step, uint32_t chunk)
{
    const mti_opt_entry<typename Step::type> &e = table.at[entry_of(table, chunk)];
    int64_t begin = (int64_t)(chunk - e.first) * CHUNK;
    int64_t end = e.n - begin < CHUNK ? e.n : begin + CHUNK;
    int64_t whole = e.aligned ? end - end % Step::width : begin;
    opt_span<Step::width>(e, step, begin, whole);
    opt_span<1>(e, step, whole, end);
}

template <class Step>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS)
    mti_opt_kernel(const mti_opt_table<typename Step::type> table, const Step step)
{
    opt_chunk(table, step, blockIdx.x);
}

/* Which items a kernel takes. */
struct mti_opt_kind {
    mt_dtype dtype;
    mti_moments moments;
    bool wide_grad;
};

static bool is_of(const mti_opt_item *item, mti_opt_kind kind)
{
    return item->dtype == kind.dtype && item->moments == kind.moments &&
           item->wide_grad == kind.wide_grad;
}

/* Calls launch(table) until all items of that kind, whose type is T, are done. width: of the
 * vectors that decide `aligned`. */
template <class T, class Launch>
static bool for_tables(mti_opt_kind kind, int width, int n_items, const mti_opt_item *items,
                       const Launch &launch)
{
    mti_opt_table<T> table = {};
    for (int i = 0; i < n_items; i++) {
        const mti_opt_item *item = &items[i];
        if (!is_of(item, kind) || item->n == 0) continue;
        if (table.n == TABLE_ITEMS) {
            if (!launch(table)) return false;
            table = {};
        }
        mti_opt_entry<T> *e = &table.at[table.n++];
        e->p = static_cast<T *>(item->p), e->g = item->g, e->m = item->m, e->v = item->v;
        e->master = static_cast<mti_wide<T> *>(item->master), e->n = item->n;
        e->weight_decay = (mti_wide<T>)item->weight_decay, e->first = table.chunks;
        size_t narrow = sizeof(T) * (size_t)width, wide = sizeof(mti_wide<T>) * (size_t)width;
        e->aligned = mti_is_aligned(e->p, narrow) &&
                     mti_is_aligned(e->g, kind.wide_grad ? wide : narrow) &&
                     mti_is_aligned(e->m, wide) && mti_is_aligned(e->v, wide) &&
                     mti_is_aligned(e->master, wide);
        table.chunks += (uint32_t)((item->n + CHUNK - 1) / CHUNK);
    }
    return table.n == 0 || launch(table);
}

template <class Step>
static bool step_all(mti_ctx *ctx, mt_dtype dtype, int n_items, const mti_opt_item *items,
                     const Step &step)
{
    typedef typename Step::type T;
    auto launch = [&](const mti_opt_table<T> &table) {
        auto optimizer_step = mti_opt_kernel<Step>;
        return MTI_LAUNCH(ctx, optimizer_step, table.chunks, MTI_BLOCK_THREADS, 0, table, step);
    };
    bool narrow = sizeof(typename Step::moment) < sizeof(mti_wide<T>);
    mti_opt_kind kind = {dtype, narrow ? MTI_MOMENTS_NARROW : MTI_MOMENTS_WIDE,
                         sizeof(typename Step::grad) > sizeof(T)};
    return for_tables<T>(kind, Step::width, n_items, items, launch);
}

/* Calls each(T()) for the four types: each type has launches of its own. */
template <class Each> static bool for_types(const Each &each)
{
    return each(float(), MT_F32) && each(double(), MT_F64) && each(__nv_bfloat16(), MT_BF16) &&
           each(__half(), MT_F16);
}

/* V elements of the parameter in the wide type: the master's, or p's own. */
template <int V, class T>
__device__ __forceinline__ mti_vec<mti_wide<T>, V> load_param(const mti_opt_entry<T> &e, int64_t i)
{
    if (e.master) return mti_load<V>(e.master + i);
    mti_vec<T, V> narrow = mti_load<V>(e.p + i);
    mti_vec<mti_wide<T>, V> wide;
    MTI_UNROLL
    for (int j = 0; j < V; j++) wide.v[j] = mti_widen(narrow.v[j]);
    return wide;
}

template <int V, class T>
__device__ __forceinline__ void store_param(const mti_opt_entry<T> &e, int64_t i,
                                            const mti_vec<mti_wide<T>, V> &wide)
{
    if (e.master) mti_store(e.master + i, wide);
    mti_vec<T, V> narrow;
    MTI_UNROLL
    for (int j = 0; j < V; j++) narrow.v[j] = mti_narrow<T>(wide.v[j]);
    mti_store(e.p + i, narrow);
}

static double grad_scale_of(const mti_opt_params *p)
{
    return p->grad_scale > 0 ? p->grad_scale : 1;
}

/* A rule has `moments`, 1 (m) or 2, and two functions: keep, what of e all its elements share, and
 * step, for one element. M: the type of the stored moments; G: of the gradient. */
template <class T, class M, class G, class Rule> struct mti_rule_step {
    typedef T type;
    typedef M moment;
    typedef G grad;
    typedef mti_wide<T> A;
    enum { width = (int)(16 / sizeof(A)), unroll = 2 };
    Rule rule;
    template <int V> struct held {
        mti_vec<G, V> g;
        mti_vec<A, V> p;
        mti_vec<M, V> m, v;
    };

    template <int V> __device__ void load(const mti_opt_entry<T> &e, int64_t i, held<V> &h) const
    {
        h.p = load_param<V>(e, i);
        h.g = mti_load<V>(static_cast<const G *>(e.g) + i);
        if (rule.reads(e.m)) {
            h.m = mti_load<V>(static_cast<const M *>(e.m) + i);
        } else {
            MTI_UNROLL
            for (int j = 0; j < V; j++) h.m.v[j] = mti_narrow<M>((A)0);
        }
        if (Rule::moments == 2) h.v = mti_load<V>(static_cast<const M *>(e.v) + i);
    }
    template <int V> __device__ void store(const mti_opt_entry<T> &e, int64_t i, held<V> &h) const
    {
        A keep = rule.keep(e.weight_decay);
        MTI_UNROLL
        for (int j = 0; j < V; j++) {
            A m = mti_widen(h.m.v[j]), v = Rule::moments == 2 ? mti_widen(h.v.v[j]) : (A)0;
            rule.step(keep, (A)mti_widen(h.g.v[j]), m, v, h.p.v[j]);
            h.m.v[j] = mti_narrow<M>(m);
            if (Rule::moments == 2) h.v.v[j] = mti_narrow<M>(v);
        }
        if (rule.writes(e.m)) mti_store(static_cast<M *>(e.m) + i, h.m);
        if (Rule::moments == 2) mti_store(static_cast<M *>(e.v) + i, h.v);
        store_param(e, i, h.p);
    }
};

/* A rule whose m is always there. */
template <int MOMENTS> struct mti_rule {
    enum { moments = MOMENTS };
    static __device__ __forceinline__ bool reads(const void *) { return true; }
    static __device__ __forceinline__ bool writes(const void *) { return true; }
};

/* ---- AdamW ---- */

template <class A> struct mti_adamw_rule : mti_rule<2> {
    A lr, b1, a1, b2, a2; /* a = 1 - b */
    A rate;               /* lr / (1 - beta1^t) */
    A root_scale;         /* 1 / sqrt(1 - beta2^t) */
    A eps, grad_scale;

    __device__ __forceinline__ A keep(A weight_decay) const
    {
        return mti_fma(-lr, weight_decay, (A)1);
    }
    __device__ __forceinline__ void step(A keep, A g, A &m, A &v, A &p) const
    {
        g = grad_scale * g;
        m = mti_fma(b1, m, a1 * g);
        v = mti_fma(b2, v, a2 * g * g);
        p = mti_fma(keep, p, -(rate * m / mti_fma(mti_root(v), root_scale, eps)));
    }
};

template <class A> static mti_adamw_rule<A> adamw_rule(const mti_opt_params *p)
{
    double t = (double)p->step;
    mti_adamw_rule<A> rule;
    rule.lr = (A)p->lr, rule.b1 = (A)p->beta1, rule.a1 = (A)(1.0 - p->beta1);
    rule.b2 = (A)p->beta2, rule.a2 = (A)(1.0 - p->beta2);
    rule.rate = (A)(p->lr / (1.0 - pow(p->beta1, t)));
    rule.root_scale = (A)(1.0 / sqrt(1.0 - pow(p->beta2, t))), rule.eps = (A)p->eps;
    rule.grad_scale = (A)grad_scale_of(p);
    return rule;
}

template <class T, class M, class G>
static bool adamw(mti_ctx *ctx, const mti_opt_params *p, mt_dtype dtype, int n_items,
                  const mti_opt_item *items)
{
    typedef mti_adamw_rule<mti_wide<T>> rule;
    mti_rule_step<T, M, G, rule> step = {adamw_rule<mti_wide<T>>(p)};
    return step_all(ctx, dtype, n_items, items, step);
}

/* ---- AdamW with moments in 8 bits, or FP8: a warp steps one block at a time ---- */

template <mti_moments M, int V> struct mti_moment_lane {
    enum { rounds = MTI_MOMENT_BLOCK / (32 * V) };
    float x[rounds][V];

    /* codes: of the lane's first vector; the next round's lies 32 V behind. */
    __device__ __forceinline__ void load(const float *share, const uint8_t *codes, float scale,
                                         int64_t here)
    {
        MTI_UNROLL
        for (int r = 0; r < rounds; r++) {
            mti_vec<uint8_t, V> code = {};
            if (r * 32 * V < here) code = mti_load<V>(codes + r * 32 * V);
            MTI_UNROLL
            for (int j = 0; j < V; j++) x[r][j] = share[code.v[j]] * scale;
        }
    }

    __device__ __forceinline__ float store(bool positive, uint8_t *codes, int64_t here) const
    {
        uint32_t largest = 0;
        MTI_UNROLL
        for (int r = 0; r < rounds; r++) {
            MTI_UNROLL
            for (int j = 0; j < V; j++)
                largest = max(largest, r * 32 * V < here ? mti_magnitude_bits(x[r][j]) : 0u);
        }
        float scale = mti_moment_scale(M, mti_lanes_max(largest, 32));
        float inverse = mti_moment_inverse(scale);
        MTI_UNROLL
        for (int r = 0; r < rounds; r++) {
            if (r * 32 * V >= here) continue;
            mti_vec<uint8_t, V> code;
            MTI_UNROLL
            for (int j = 0; j < V; j++)
                code.v[j] = M == MTI_MOMENTS_FP8 ? mti_e4m3_from_f32(x[r][j] * inverse)
                                                 : mti_moment_encode(positive, x[r][j] * inverse);
            mti_store(codes + r * 32 * V, code);
        }
        return scale;
    }
};

/* The block of e that begins at element `first`; all of it is there if V is not 1. */
template <mti_moments M, int V, class G, class T>
__device__ __forceinline__ void step_moment_block(const mti_opt_entry<T> &e,
                                                  const mti_adamw_rule<float> &rule,
                                                  const float *share, int64_t first)
{
    int lane = (int)threadIdx.x % 32;
    int64_t at = first + lane * V, here = e.n - at, block = first / MTI_MOMENT_BLOCK;
    uint8_t *codes[2] = {static_cast<uint8_t *>(e.m), static_cast<uint8_t *>(e.v)};
    float keep = rule.keep(e.weight_decay), *scale[2];
    mti_moment_lane<M, V> moment[2];
    MTI_UNROLL
    for (int k = 0; k < 2; k++) {
        scale[k] = reinterpret_cast<float *>(codes[k] + mti_moment_scales_at(M, e.n)) + block;
        moment[k].load(share + k * MTI_MOMENT_CODES, codes[k] + at, *scale[k], here);
    }
    MTI_UNROLL
    for (int r = 0; r < mti_moment_lane<M, V>::rounds; r++) {
        int64_t i = at + r * 32 * V;
        if (i >= e.n) continue;
        mti_vec<float, V> p = load_param<V>(e, i);
        mti_vec<G, V> g = mti_load<V>(static_cast<const G *>(e.g) + i);
        MTI_UNROLL
        for (int j = 0; j < V; j++)
            rule.step(keep, mti_widen(g.v[j]), moment[0].x[r][j], moment[1].x[r][j], p.v[j]);
        store_param(e, i, p);
    }
    MTI_UNROLL
    for (int k = 0; k < 2; k++) {
        float now = moment[k].store(k == 1, codes[k] + at, here);
        if (lane == 0) *scale[k] = now;
    }
}

template <mti_moments M, class T, class G>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS)
    mti_adamw_8bit_kernel(const mti_opt_table<T> table, const mti_adamw_rule<float> rule)
{
    MTI_SHARED(float, share[2 * MTI_MOMENT_CODES]);
    for (int c = (int)threadIdx.x; c < 2 * MTI_MOMENT_CODES; c += MTI_BLOCK_THREADS)
        share[c] = mti_moment_value(M, c >= MTI_MOMENT_CODES, c % MTI_MOMENT_CODES);
    __syncthreads();
    const mti_opt_entry<T> &e = table.at[entry_of(table, blockIdx.x)];
    int64_t begin = (int64_t)(blockIdx.x - e.first) * CHUNK;
    int64_t end = e.n - begin < CHUNK ? e.n : begin + CHUNK;
    for (int64_t first = begin + (int)threadIdx.x / 32 * MTI_MOMENT_BLOCK; first < end;
         first += MTI_BLOCK_THREADS / 32 * MTI_MOMENT_BLOCK) {
        if (e.aligned && e.n - first >= MTI_MOMENT_BLOCK)
            step_moment_block<M, 4, G>(e, rule, share, first);
        else
            step_moment_block<M, 1, G>(e, rule, share, first);
    }
}

template <mti_moments M, class T, class G>
static bool adamw_of_codes(mti_ctx *ctx, const mti_opt_params *p, mt_dtype dtype, int n_items,
                           const mti_opt_item *items)
{
    static_assert(CHUNK % MTI_MOMENT_BLOCK == 0, "a block of codes lies in one chunk");
    mti_adamw_rule<float> rule = adamw_rule<float>(p);
    mti_opt_kind kind = {dtype, M, sizeof(G) > sizeof(T)};
    return for_tables<T>(kind, 4, n_items, items, [&](const mti_opt_table<T> &table) {
        auto adamw_8bit_step = mti_adamw_8bit_kernel<M, T, G>;
        return MTI_LAUNCH(ctx, adamw_8bit_step, table.chunks, MTI_BLOCK_THREADS, 0, table, rule);
    });
}

template <class T, class G>
static bool adamw_8bit(mti_ctx *ctx, const mti_opt_params *p, mt_dtype dtype, int n_items,
                       const mti_opt_item *items)
{
    return adamw_of_codes<MTI_MOMENTS_8BIT, T, G>(ctx, p, dtype, n_items, items) &&
           adamw_of_codes<MTI_MOMENTS_FP8, T, G>(ctx, p, dtype, n_items, items);
}

bool mti_cuda_adamw(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items)
{
    for (int k = 0; k < n_items; k++)
        if (items[k].moments == MTI_MOMENTS_4BIT)
            return mti_fail_bool(MT_ERR_UNSUPPORTED,
                                 "adamw: cuda has no moments in 4 bits; need 8 bits or FP8");
    return for_types([&](auto type, mt_dtype dtype) {
        typedef decltype(type) T;
        typedef mti_wide<T> A;
        if (!adamw<T, A, T>(ctx, p, dtype, n_items, items)) return false;
        if constexpr (sizeof(T) == 8)
            return true;
        else if constexpr (sizeof(T) == 4)
            return adamw<T, __nv_bfloat16, T>(ctx, p, dtype, n_items, items) &&
                   adamw_8bit<T, T>(ctx, p, dtype, n_items, items);
        else
            return adamw<T, A, A>(ctx, p, dtype, n_items, items) &&
                   adamw<T, T, T>(ctx, p, dtype, n_items, items) &&
                   adamw<T, T, A>(ctx, p, dtype, n_items, items) &&
                   adamw_8bit<T, T>(ctx, p, dtype, n_items, items) &&
                   adamw_8bit<T, A>(ctx, p, dtype, n_items, items);
    });
}

/* Rule<A>: a rule whose moments are in the wide type A. */
template <template <class> class Rule>
static bool step_rule(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items)
{
    return for_types([&](auto type, mt_dtype dtype) {
        typedef decltype(type) T;
        typedef mti_wide<T> A;
        mti_rule_step<T, A, T, Rule<A>> step = {Rule<A>::of(p)};
        mti_rule_step<T, A, A, Rule<A>> of_wide_grads = {Rule<A>::of(p)};
        return step_all(ctx, dtype, n_items, items, step) &&
               (sizeof(T) != 2 || step_all(ctx, dtype, n_items, items, of_wide_grads));
    });
}

/* ---- SGD ---- */

template <class A> struct mti_sgd_rule {
    enum { moments = 1 };
    A lr, momentum, grad_scale;
    bool start; /* step 1: m's old contents are ignored, NaN included */

    static mti_sgd_rule of(const mti_opt_params *p)
    {
        return {(A)p->lr, (A)p->momentum, (A)grad_scale_of(p), p->step == 1};
    }
    __device__ __forceinline__ bool reads(const void *m) const { return m && !start; }
    __device__ __forceinline__ bool writes(const void *m) const { return m; }
    __device__ __forceinline__ A keep(A weight_decay) const { return weight_decay; }
    __device__ __forceinline__ void step(A decay, A g, A &m, A &, A &p) const
    {
        m = mti_fma(momentum, m, mti_fma(grad_scale, g, decay * p));
        p = mti_fma(-lr, m, p);
    }
};

bool mti_cuda_sgd(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items)
{
    return step_rule<mti_sgd_rule>(ctx, p, n_items, items);
}

/* ---- Lion ---- */

template <class A> struct mti_lion_rule : mti_rule<1> {
    A lr, b1, a1, b2, a2, grad_scale; /* a = 1 - b */

    static mti_lion_rule of(const mti_opt_params *p)
    {
        mti_lion_rule rule;
        rule.lr = (A)p->lr, rule.grad_scale = (A)grad_scale_of(p);
        rule.b1 = (A)p->beta1, rule.a1 = (A)(1.0 - p->beta1);
        rule.b2 = (A)p->beta2, rule.a2 = (A)(1.0 - p->beta2);
        return rule;
    }
    __device__ __forceinline__ A keep(A weight_decay) const
    {
        return mti_fma(-lr, weight_decay, (A)1);
    }
    __device__ __forceinline__ void step(A keep, A g, A &m, A &, A &p) const
    {
        g = grad_scale * g;
        A c = mti_fma(b1, m, a1 * g), sign = c > 0 ? (A)1 : c < 0 ? (A)-1 : c;
        m = mti_fma(b2, m, a2 * g);
        p = mti_fma(keep, p, -(lr * sign));
    }
};

bool mti_cuda_lion(mti_ctx *ctx, const mti_opt_params *p, int n_items, const mti_opt_item *items)
{
    return step_rule<mti_lion_rule>(ctx, p, n_items, items);
}

/* ---- gradient clipping ---- */

template <class T> struct mti_scale_step {
    typedef T type, grad;
    typedef mti_wide<T> moment;
    enum { width = mti_width_of<T>(), unroll = 4 };
    mti_wide<T> factor;
    template <int V> struct held {
        mti_vec<T, V> p;
    };

    template <int V> __device__ void load(const mti_opt_entry<T> &e, int64_t i, held<V> &h) const
    {
        h.p = mti_load<V>(e.p + i);
    }
    template <int V> __device__ void store(const mti_opt_entry<T> &e, int64_t i, held<V> &h) const
    {
        MTI_UNROLL
        for (int j = 0; j < V; j++) h.p.v[j] = mti_narrow<T>(mti_widen(h.p.v[j]) * factor);
        mti_store(e.p + i, h.p);
    }
};

bool mti_cuda_scale_all(mti_ctx *ctx, double factor, int n_items, const mti_opt_item *items)
{
    return for_types([&](auto type, mt_dtype dtype) {
        typedef decltype(type) T;
        return step_all(ctx, dtype, n_items, items, mti_scale_step<T>{(mti_wide<T>)factor});
    });
}

/* The "step" of a sum: adds the loaded elements to the thread's own sum. Squares of f32 may
 * overflow f32, so they are computed in f64. */
template <class T> struct mti_squares_step {
    typedef T type;
    enum { width = mti_width_of<T>(), unroll = 4 };
    double *sum;
    template <int V> struct held {
        mti_vec<T, V> g;
    };

    template <int V> __device__ void load(const mti_opt_entry<T> &e, int64_t i, held<V> &h) const
    {
        h.g = mti_load<V>(static_cast<const T *>(e.g) + i);
    }
    template <int V> __device__ void store(const mti_opt_entry<T> &, int64_t, held<V> &h) const
    {
        MTI_UNROLL
        for (int j = 0; j < V; j++) {
            double g = (double)mti_widen(h.g.v[j]);
            *sum += g * g;
        }
    }
};

/* Slot s of the desk sums chunks s, s + MTI_DESK_SLOTS, ... of every launch: the same order on
 * every device. The slots are 0 before the first launch. */
template <class T>
__global__ void __launch_bounds__(MTI_BLOCK_THREADS)
    mti_squares_kernel(const mti_opt_table<T> table, mti_desk *desk)
{
    double sum = 0;
    for (uint32_t chunk = blockIdx.x; chunk < table.chunks; chunk += MTI_DESK_SLOTS)
        opt_chunk(table, mti_squares_step<T>{&sum}, chunk);
    sum = mti_block_sum(sum);
    if (threadIdx.x == 0) desk->sum[blockIdx.x] += sum;
}

bool mti_cuda_sum_squares(mti_ctx *ctx, int n_items, const mti_opt_item *items, double *out)
{
    mti_borrowed_desk own(ctx);
    if (!own.place) return false;
    mti_desk *desk = own.place->desk;
    double sum[MTI_DESK_SLOTS];
    *out = 0;
    bool ok =
        mti_cuda_ok(cudaMemsetAsync(desk->sum, 0, sizeof sum, ctx->stream), "sum_squares") &&
        for_types([&](auto type, mt_dtype dtype) {
            typedef decltype(type) T;
            return for_tables<T>(
                {dtype, MTI_MOMENTS_WIDE, false}, mti_width_of<T>(), n_items, items,
                [&](const mti_opt_table<T> &table) {
                    unsigned grid = table.chunks < MTI_DESK_SLOTS ? table.chunks : MTI_DESK_SLOTS;
                    auto sum_of_squares = mti_squares_kernel<T>;
                    return MTI_LAUNCH(ctx, sum_of_squares, grid, MTI_BLOCK_THREADS, 0, table, desk);
                });
        }) &&
        mti_cuda_download(ctx, sum, desk->sum, sizeof sum);
    for (int s = 0; ok && s < MTI_DESK_SLOTS; s++) *out += sum[s];
    return ok;
}
