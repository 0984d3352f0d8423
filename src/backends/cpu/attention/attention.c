/* attention.c: flash attention, divided into work items. Forward: an item is a block of queries of
 * one head. Backward: an item is all the work of one head of keys, so that one worker computes each
 * sum in a fixed order, whatever the number of threads. */
#include <assert.h>
#include <math.h>
#include "backends/cpu/attention/attention.h"

/* Below this many multiply-adds the calling thread does all the work. */
#define PARALLEL_MACS (1 << 17)

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static mti_attn describe(const mti_attention *call)
{
    const mti_view *q = call->q, *k = call->k;
    assert(q->rank == 4 && k->rank == 4 && call->v->rank == 4);
    assert(k->shape[1] > 0 && q->shape[1] % k->shape[1] == 0);
    mti_attn x = {.call = call, .dtype = q->dtype};
    x.b = q->shape[0], x.a = q->shape[1], x.s = q->shape[2], x.d = q->shape[3];
    x.a_kv = k->shape[1], x.t = k->shape[2], x.e = call->v->shape[3];
    /* Causal blocks also compute some masked scores; narrow blocks compute fewer. */
    x.block_q = min64(x.s, !call->causal || x.s > 512 ? 64 : x.s > 64 ? 32 : 16);
    x.block_k = min64(x.t, max64(16, min64(128, 8192 / max64(1, x.d))));
    x.q_blocks = x.block_q > 0 ? (x.s + x.block_q - 1) / x.block_q : 0;
    return x;
}

static void read_dropout(mti_attn *x)
{
    const mti_attention *call = x->call;
    if (!(call->p > 0)) return;
    x->seed = (uint64_t) * (const int64_t *)call->seed->data;
    x->offset = (uint64_t) * (const int64_t *)call->offset->data;
    x->threshold = (uint32_t)ceil(call->p * 0x1p24);
    x->keep_scale = call->p < 1 ? 1 / (1 - call->p) : 0;
}

static int workers(mti_ctx *ctx, const mti_attn *x, int64_t items)
{
    double macs = (double)x->b * (double)x->a * (double)x->s * (double)x->t * (double)x->d;
    return macs < PARALLEL_MACS ? 1 : (int)max64(1, min64(mti_cpu_threads(ctx), items));
}

/* ---- forward ---- */

static size_t forward_scratch(const mti_attn *x)
{
    return x->dtype == MT_F64 ? mti_attn_forward_scratch_f64(x) : mti_attn_forward_scratch_f32(x);
}

static void run_forward(void *arg, int worker, int64_t begin, int64_t end)
{
    const mti_attn *x = arg;
    void *scratch = x->scratch + (size_t)worker * x->scratch_per_worker;
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item % x->q_blocks, head = item / x->q_blocks;
        /* the blocks with most keys first, so that the last items are short and the load even */
        int64_t i = (x->q_blocks - 1 - block) * x->block_q;
        (x->dtype == MT_F64 ? mti_attn_forward_f64 : mti_attn_forward_f32)(x, head / x->a,
                                                                           head % x->a, i, scratch);
    }
}

size_t mti_cpu_attention_scratch(mti_ctx *ctx, const mti_attention *call)
{
    mti_attn x = describe(call);
    return (size_t)workers(ctx, &x, x.b * x.a * x.q_blocks) * forward_scratch(&x);
}

bool mti_cpu_attention(mti_ctx *ctx, const mti_attention *call, void *scratch, size_t n_scratch)
{
    mti_attn x = describe(call);
    int64_t items = x.b * x.a * x.q_blocks;
    if (x.d == 0) return true; /* nothing to write; OpenBLAS would print a complaint */
    read_dropout(&x);
    x.scratch = scratch;
    x.scratch_per_worker = forward_scratch(&x);
    int n = mti_cpu_scratch_workers(workers(ctx, &x, items), n_scratch, x.scratch_per_worker);
    return mti_cpu_workers(ctx, n, items, 1, run_forward, &x);
}

/* ---- backward ---- */

static size_t backward_scratch(const mti_attn *x)
{
    return x->dtype == MT_F64 ? mti_attn_backward_scratch_f64(x) : mti_attn_backward_scratch_f32(x);
}

static void run_backward(void *arg, int worker, int64_t begin, int64_t end)
{
    const mti_attn *x = arg;
    void *scratch = x->scratch + (size_t)worker * x->scratch_per_worker;
    for (int64_t item = begin; item < end; item++)
        (x->dtype == MT_F64 ? mti_attn_backward_f64
                            : mti_attn_backward_f32)(x, item / x->a_kv, item % x->a_kv, scratch);
}

size_t mti_cpu_attention_backward_scratch(mti_ctx *ctx, const mti_attention *call)
{
    mti_attn x = describe(call);
    return (size_t)workers(ctx, &x, x.b * x.a_kv) * backward_scratch(&x);
}

bool mti_cpu_attention_backward(mti_ctx *ctx, const mti_attention *call, const mti_view *d_o,
                                const mti_view *dq, const mti_view *dk, const mti_view *dv,
                                void *scratch, size_t n_scratch)
{
    mti_attn x = describe(call);
    int64_t items = x.b * x.a_kv;
    if (x.d == 0) return true;
    read_dropout(&x);
    x.d_o = d_o, x.dq = dq, x.dk = dk, x.dv = dv;
    x.scratch = scratch;
    x.scratch_per_worker = backward_scratch(&x);
    int n = mti_cpu_scratch_workers(workers(ctx, &x, items), n_scratch, x.scratch_per_worker);
    return mti_cpu_workers(ctx, n, items, 1, run_backward, &x);
}

/* ---- the gradient of the sinks: an item is a head ----
 * A worker's scratch has d_o . o of its last heads only, so it is computed again: it costs little
 * beside the products of the same row, which grow with the keys. */

static void run_sinks(void *arg, int worker, int64_t begin, int64_t end)
{
    const mti_attn *x = arg;
    const mti_attention *call = x->call;
    enum { PIECE = 64 };
    double o[PIECE], d_o[PIECE], sink, lse;
    (void)worker;
    for (int64_t h = begin; h < end; h++) {
        double sum = 0;
        mti_cpu_read_wide(call->sinks, h * call->sinks->stride[0], &sink, 1);
        for (int64_t row = 0; x->d > 0 && row < x->b * x->s; row++) {
            const int64_t b = row / x->s, i = row % x->s;
            double delta = 0;
            for (int64_t c = 0; c < x->e; c += PIECE) {
                const int64_t n = min64(PIECE, x->e - c);
                mti_cpu_read_wide(call->o, mti_attn_at(call->o, b, h, i) + c, o, n);
                mti_cpu_read_wide(x->d_o, mti_attn_at(x->d_o, b, h, i) + c, d_o, n);
                for (int64_t j = 0; j < n; j++) delta += o[j] * d_o[j];
            }
            mti_cpu_read_wide(call->lse, (b * x->a + h) * x->s + i, &lse, 1);
            if (delta != 0) sum -= exp(sink - lse) * delta;
        }
        mti_cpu_write_wide(x->d_sinks, h * x->d_sinks->stride[0], &sum, 1);
    }
}

bool mti_cpu_attention_sinks_backward(mti_ctx *ctx, const mti_attention *call, const mti_view *d_o,
                                      const mti_view *d_sinks, void *scratch, bool after_backward)
{
    (void)scratch, (void)after_backward;
    mti_attn x = describe(call);
    x.d_o = d_o, x.d_sinks = d_sinks;
    return mti_cpu_workers(ctx, workers(ctx, &x, x.a), x.a, 1, run_sinks, &x);
}
