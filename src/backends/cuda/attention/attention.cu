/* attention.cu: the attention kernels of the kernel table: chooses a path and computes delta.
 *
 * 16-bit floats with a head dimension of at most 128 use the tensor cores (attention_forward.cu,
 * attention_backward.cu); all other calls use plain multiply-adds (attention_general.cu). Forward
 * needs no scratch; backward stores delta, one number per query, and on tensor cores sums of dq in
 * f32. */
#include <assert.h>
#include <limits.h>
#include "backends/cuda/attention/attention.cuh"
#include "backends/cuda/kernels.h"
#include "backends/cuda/rows/reduce.cuh"

namespace
{

mti_attn_rows rows_of(const mti_view *v)
{
    return {v->data, v->stride[0], v->stride[1], v->stride[2]};
}

mti_attn_args describe(const mti_attention *call)
{
    const mti_view *q = call->q, *k = call->k;
    assert(q->rank == 4 && k->rank == 4 && call->v->rank == 4);
    assert(k->shape[1] > 0 && q->shape[1] % k->shape[1] == 0);
    mti_attn_args x = {};
    x.q = rows_of(q), x.k = rows_of(k), x.v = rows_of(call->v), x.o = rows_of(call->o);
    x.lse = call->lse == NULL ? NULL : call->lse->data;
    x.b = q->shape[0], x.a = q->shape[1], x.s = q->shape[2], x.d = q->shape[3];
    x.a_kv = k->shape[1], x.t = k->shape[2], x.e = call->v->shape[3];
    x.scale = call->scale, x.causal = call->causal, x.keep_scale = 1;
    x.window = call->window;
    if (call->sinks) x.sinks = call->sinks->data, x.sinks_step = call->sinks->stride[0];
    x.reach = x.window > 0 ? static_cast<int>(x.window) : INT_MAX;
    x.past = x.window > 0 ? static_cast<int>(x.window - 1 - (x.t - x.s)) : INT_MAX / 2;
    if (call->p > 0) {
        x.threshold = mti_drop_threshold(call->p);
        x.keep_scale = call->p < 1 ? 1 / (1 - call->p) : 0;
        x.seed = static_cast<const int64_t *>(call->seed->data);
        x.offset = static_cast<const int64_t *>(call->offset->data);
    }
    return x;
}

/* Kernels count queries, keys, heads and tiles in 32 bits, and go past the end by up to a tile. */
bool counts_are_short(const mti_attn_args &x)
{
    const int64_t most = (int64_t)1 << 30;
    return (x.s <= most && x.t <= most && x.a <= most && x.b <= most) ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "attention: %lld x %lld heads of %lld queries and %lld keys; need at most "
                         "2^30 of each",
                         (long long)x.b, (long long)x.a, (long long)x.s, (long long)x.t);
}

bool rows_are_aligned(const mti_attn_rows &v)
{
    return mti_is_aligned(v.data, 16) && v.batch % 8 == 0 && v.head % 8 == 0 && v.row % 8 == 0;
}

/* 16-bit floats whose rows can be copied 16 bytes at a time. The scale must be positive, so that
 * the largest product gives the largest score. */
bool fits_tensor_cores(const mti_attn_args &x, mt_dtype dtype, bool backward)
{
    if (dtype != MT_BF16 && dtype != MT_F16) return false;
    if (x.d > 128 || x.d % 8 != 0 || x.d == 0 || x.e != x.d || !(x.scale > 0)) return false;
    bool aligned = rows_are_aligned(x.q) && rows_are_aligned(x.k) && rows_are_aligned(x.v) &&
                   rows_are_aligned(x.o);
    return aligned && (!backward || (rows_are_aligned(x.d_o) && rows_are_aligned(x.dq) &&
                                     rows_are_aligned(x.dk) && rows_are_aligned(x.dv)));
}

/* delta[b,a,i] = sum over d of do * o, which are read once, in vectors of V; a team for each query.
 */
constexpr int DELTA_BLOCK = 256;

template <typename T, int V>
__global__ void __launch_bounds__(DELTA_BLOCK) attention_delta(const mti_attn_args x, int team_size)
{
    int64_t rank = static_cast<int64_t>(threadIdx.x) % team_size, queries = x.b * x.a * x.s;
    int64_t query = (static_cast<int64_t>(blockIdx.x) * DELTA_BLOCK + threadIdx.x) / team_size;
    bool live = query < queries;
    int64_t head = live ? query / x.s : 0, i = query % x.s, b = head / x.a, h = head % x.a;
    const T *o = mti_attn_row<T>(x.o, b, h, i), *d_o = mti_attn_row<T>(x.d_o, b, h, i);
    mti_wide<T> sum = 0;
    for (int64_t c = rank * V; live && c < x.e; c += V * team_size) {
        mti_vec<T, V> u = mti_load<V>(o + c), v = mti_load<V>(d_o + c);
        MTI_UNROLL
        for (int j = 0; j < V; j++) sum += mti_widen(u.v[j]) * mti_widen(v.v[j]);
    }
    sum = mti_lanes_sum(sum, team_size);
    if (live && rank == 0) static_cast<mti_wide<T> *>(x.delta)[query] = sum;
}

/* A multiple of 16. */
size_t delta_bytes(const mti_attn_args &x, mt_dtype dtype)
{
    size_t n_bytes =
        static_cast<size_t>(x.b * x.a * x.s) * (dtype == MT_F64 ? sizeof(double) : sizeof(float));
    return (n_bytes + 15) / 16 * 16;
}

bool fill_delta(mti_ctx *ctx, const mti_attn_args &x, mt_dtype dtype)
{
    int64_t queries = x.b * x.a * x.s;
    if (queries == 0) return true;
    return mti_for_float(dtype, [&](auto type) {
        typedef decltype(type) T;
        constexpr int V = mti_width_of<T>();
        bool vectors = x.e % V == 0 && rows_are_aligned(x.o) && rows_are_aligned(x.d_o);
        int64_t pieces = vectors ? x.e / V : x.e;
        int team_size = 1;
        while (team_size < 32 && team_size < pieces) team_size *= 2;
        auto delta = vectors ? attention_delta<T, V> : attention_delta<T, 1>;
        return MTI_LAUNCH(ctx, delta,
                          mti_blocks((queries * team_size + DELTA_BLOCK - 1) / DELTA_BLOCK),
                          DELTA_BLOCK, 0, x, team_size);
    });
}

/* d_sinks[h] = -sum of exp(sink - lse) delta, over the rows of a block's head */
constexpr int SINKS_BLOCK = 256;

template <typename T>
__global__ void __launch_bounds__(SINKS_BLOCK)
    attention_sinks(const mti_attn_args x, T *d_sinks, int64_t step)
{
    typedef mti_wide<T> R;
    const R *all_lse = static_cast<const R *>(x.lse), *all_delta = static_cast<const R *>(x.delta);
    int64_t h = blockIdx.x;
    R sum = 0, sink = mti_attn_sink<T>(x, h);
    for (int64_t b = 0; b < x.b; b++) {
        int64_t first = (b * x.a + h) * x.s;
        for (int64_t i = threadIdx.x; i < x.s; i += SINKS_BLOCK) {
            R delta = all_delta[first + i];
            if (delta != 0) sum -= mti_exp_below(sink - all_lse[first + i]) * delta;
        }
    }
    sum = mti_block_sum(sum);
    if (threadIdx.x == 0) d_sinks[h * step] = mti_narrow<T>(sum);
}

} // namespace

size_t mti_cuda_attention_scratch(mti_ctx *, const mti_attention *) { return 0; }

bool mti_cuda_attention(mti_ctx *ctx, const mti_attention *call, void *, size_t)
{
    mti_attn_args x = describe(call);
    mt_dtype dtype = call->q->dtype;
    if (x.b * x.a * x.s == 0) return true;
    if (!counts_are_short(x)) return false;
    if (!fits_tensor_cores(x, dtype, false)) return mti_attn_forward_general(ctx, x, dtype);
    return mti_attn_forward_tensor(ctx, x, dtype);
}

size_t mti_cuda_attention_backward_scratch(mti_ctx *, const mti_attention *call)
{
    mti_attn_args x = describe(call);
    mt_dtype dtype = call->q->dtype;
    /* the gradients, which are not known here, may still need the other path */
    return delta_bytes(x, dtype) +
           (fits_tensor_cores(x, dtype, false) ? mti_attn_backward_tensor_scratch(x, dtype) : 0);
}

bool mti_cuda_attention_backward(mti_ctx *ctx, const mti_attention *call, const mti_view *d_o,
                                 const mti_view *dq, const mti_view *dk, const mti_view *dv,
                                 void *scratch, size_t)
{
    mti_attn_args x = describe(call);
    mt_dtype dtype = call->q->dtype;
    x.d_o = rows_of(d_o), x.dq = rows_of(dq), x.dk = rows_of(dk), x.dv = rows_of(dv);
    x.delta = scratch;
    if (!counts_are_short(x) || !fill_delta(ctx, x, dtype)) return false;
    if (!fits_tensor_cores(x, dtype, true)) return mti_attn_backward_general(ctx, x, dtype);
    return mti_attn_backward_tensor(ctx, x, dtype,
                                    static_cast<char *>(scratch) + delta_bytes(x, dtype));
}

bool mti_cuda_attention_sinks_backward(mti_ctx *ctx, const mti_attention *call, const mti_view *d_o,
                                       const mti_view *d_sinks, void *scratch, bool after_backward)
{
    mti_attn_args x = describe(call);
    x.d_o = rows_of(d_o), x.delta = scratch;
    if (x.a == 0) return true;
    if (!counts_are_short(x) || (!after_backward && !fill_delta(ctx, x, call->q->dtype)))
        return false;
    return mti_for_float(call->q->dtype, [&](auto type) {
        typedef decltype(type) T;
        return MTI_LAUNCH(ctx, attention_sinks<T>, mti_blocks(x.a), SINKS_BLOCK, 0, x,
                          static_cast<T *>(d_sinks->data), d_sinks->stride[0]);
    });
}
