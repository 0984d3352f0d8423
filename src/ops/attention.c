/* attention.c: softmax(scale q k^T) v, by blocks (flash).
 *
 * q [b,a,s,d], k [b,a_kv,t,d], v [b,a_kv,t,e] -> out [b,a,s,e], laid out as [b,s,a,e].
 *   Keeps q, k, v, out, log-sum-exp [b,a,s] in f32 (f64 for f64) and the RNG state, two i64; the
 * weights [b,a,s,t] never exist at once, in forward or backward (Dao et al. 2022). With a window
 * blocks outside of it are passed over; a mask [b,1,s,t] that says the same is kept, not read.
 * sinks [a]: a score of each head's in every row's sum, which has no value (gpt-oss). */
#include <limits.h>
#include <math.h>
#include "ops/ops.h"

bool mti_check_heads(const char *caller, const mti_view *q, const mti_view *k, const mti_view *v)
{
    char tq[MTI_SHAPE_TEXT], tk[MTI_SHAPE_TEXT], tv[MTI_SHAPE_TEXT];
    mti_view like_v = *k; /* but for the width */
    like_v.shape[3] = v->rank == 4 ? v->shape[3] : 0;
    bool fits = q->rank == 4 && k->rank == 4 && mti_view_same_shape(&like_v, v) &&
                q->shape[0] == k->shape[0] && q->shape[3] == k->shape[3] &&
                (k->shape[1] ? q->shape[1] % k->shape[1] : mti_view_count(q)) == 0;
    return fits || mti_fail_bool(MT_ERR_ARGUMENT,
                                 "%s: q is %s, k is %s, v is %s; need [b,a,s,d], [b,a_kv,t,d], "
                                 "[b,a_kv,t,e], a a multiple of a_kv",
                                 caller, mti_shape_text(tq, q->rank, q->shape),
                                 mti_shape_text(tk, k->rank, k->shape),
                                 mti_shape_text(tv, v->rank, v->shape));
}

static bool check_sinks(mti_call *c)
{
    const mti_view *q = mti_in(c, 0), *sinks = mti_in(c, 3);
    char text[MTI_SHAPE_TEXT];
    if (!sinks) return true;
    if (!mti_need_same_dtype(c, 0, 3)) return false;
    return (sinks->rank == 1 && sinks->shape[0] == q->shape[1]) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "flash_attention: sinks are %s; need [%lld], one for each head of q",
                         mti_shape_text(text, sinks->rank, sinks->shape), (long long)q->shape[1]);
}

/* The kernels count the elements of a row, of all heads, in an int. */
static bool check_width(const mti_view *q)
{
    int64_t heads = q->shape[1], d = q->shape[3];
    return d == 0 || heads <= INT_MAX / d ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "flash_attention: %lld heads of %lld elements; need at most %d in all",
                         (long long)heads, (long long)d, INT_MAX);
}

/* The shape of the weights, which draw. */
static mti_view weights_of(const mti_view *q, const mti_view *k)
{
    mti_view w = *q;
    w.shape[3] = k->shape[2];
    return w;
}

static bool flash_shape(mti_call *c)
{
    const mti_view *q = mti_in(c, 0), *k = mti_in(c, 1), *v = mti_in(c, 2);
    if (!mti_need_float(c, 0) || !mti_need_same_dtype(c, 0, 1) || !mti_need_same_dtype(c, 0, 2) ||
        !mti_check_heads("flash_attention", q, k, v) || !check_width(q) || !check_sinks(c))
        return false;
    mt_dtype lse = q->dtype == MT_F64 ? MT_F64 : MT_F32;
    bool draws = c->params->attention.p > 0;
    c->aux_always[1] = c->aux_always[2] = draws;
    const mti_view weights = weights_of(q, k);
    if (draws) c->n_draws = mti_draws_of(&c->params->attention.part, &weights);
    const int64_t out[4] = {q->shape[0], q->shape[1], q->shape[2], v->shape[3]};
    if (!mti_out_set(c, 0, q->dtype, 4, out) || !mti_aux_set(c, 0, lse, 3, q->shape) ||
        !mti_aux_set(c, 1, MT_I64, 0, q->shape) || !mti_aux_set(c, 2, MT_I64, 0, q->shape))
        return false;
    c->out_spec[0] = mti_heads_inside(&c->out_spec[0]);
    return true;
}

/* v as kernels need it: rows dense, not overlapping, and as near as an int counts. A copy only if v
 * is not so. */
static bool fit_rows(mti_call *c, const mti_view *v, mti_view *out)
{
    if (!(v = mti_dense_rows(c, v))) return false;
    bool fits = v->shape[2] <= 1 || (v->stride[2] >= v->shape[3] && v->stride[2] <= INT_MAX);
    if (!fits && !(v = mti_dense(c, v))) return false;
    *out = *v;
    if (v->shape[2] <= 1) out->stride[2] = v->shape[3];
    return true;
}

typedef struct inputs {
    mti_view q, k, v;
} inputs;

static bool attention_of(mti_call *c, mti_attention *a, inputs *in, const mti_view *q,
                         const mti_view *k, const mti_view *v)
{
    const mti_params *p = c->params;
    *a = (mti_attention){.q = &in->q,
                         .k = &in->k,
                         .v = &in->v,
                         .scale = p->attention.scale,
                         .p = p->attention.p,
                         .causal = p->attention.causal,
                         .window = p->attention.window < k->shape[2] ? p->attention.window : 0};
    return fit_rows(c, q, &in->q) && fit_rows(c, k, &in->k) && fit_rows(c, v, &in->v);
}

/* Counts matrix products of 2 s t d FLOPs per head and batch, and of 2 s t e, masked blocks
 * included; with a window of 2 s window d. */
static void count_products(mti_call *c, const mti_attention *a, uint64_t of_k, uint64_t of_v)
{
    uint64_t n = (uint64_t)mti_view_count(a->q) * of_k + (uint64_t)mti_view_count(a->o) * of_v;
    mti_count_flops(c, 2 * n * (uint64_t)(a->window ? a->window : a->k->shape[2]));
}

/* ---- runs of the batch whose random numbers lie side by side; one, unless this is a part ---- */

/* Rows [from, from + rows) of everything; d, dy: of backward, or NULL. */
typedef struct batch_rows {
    inputs in;
    mti_view o, lse, offset_view, seed_view, dy, d[3];
    int64_t seed, offset;
    mti_attention a;
} batch_rows;

static void take_rows(batch_rows *r, const mti_attention *a, int64_t from, int64_t rows)
{
    r->in.q = mti_range(a->q, 0, from, rows), r->in.k = mti_range(a->k, 0, from, rows);
    r->in.v = mti_range(a->v, 0, from, rows), r->o = mti_range(a->o, 0, from, rows);
    r->a = *a;
    r->a.q = &r->in.q, r->a.k = &r->in.k, r->a.v = &r->in.v, r->a.o = &r->o;
    if (a->lse) r->lse = mti_range(a->lse, 0, from, rows), r->a.lse = &r->lse;
    r->seed_view = (mti_view){.data = &r->seed, .dtype = MT_I64};
    r->offset_view = (mti_view){.data = &r->offset, .dtype = MT_I64};
    r->a.seed = &r->seed_view, r->a.offset = &r->offset_view;
}

/* The i-th run with its own place in the generator, on memory that the host can read. */
static bool place_run(mti_call *c, batch_rows *r, const mti_attention *a, int64_t i)
{
    int64_t rows;
    const mti_view w = weights_of(a->q, a->k);
    mti_draw_runs(&c->params->attention.part, &w, &rows);
    take_rows(r, a, i, rows);
    uint64_t offset;
    if (!mti_draw_offset(c, &c->params->attention.part, &w, i, &offset)) return false;
    if (!mt_device_has_data(c->device)) return true;
    r->seed = *(const int64_t *)a->seed->data;
    r->offset = *(const int64_t *)a->offset->data + (int64_t)(offset - c->draw.offset);
    return true;
}

static bool is_part(const mti_call *c)
{
    return c->params->attention.p > 0 && c->params->attention.part.rows > 0;
}

static int64_t n_runs(const mti_call *c, const mti_attention *a)
{
    int64_t rows;
    const mti_view w = weights_of(a->q, a->k);
    return mti_draw_runs(&c->params->attention.part, &w, &rows);
}

static bool forward_in_runs(mti_call *c, const mti_attention *a, void *scratch, size_t n_scratch)
{
    batch_rows r;
    for (int64_t i = 0, n = n_runs(c, a); i < n; i++)
        if (!place_run(c, &r, a, i) || !c->k->attention(c->ctx, &r.a, scratch, n_scratch))
            return false;
    return true;
}

static bool backward_in_runs(mti_call *c, const mti_attention *a, const mti_view *dy,
                             const mti_view *d[3], void *scratch, size_t n_scratch)
{
    batch_rows r;
    for (int64_t i = 0, n = n_runs(c, a); i < n; i++) {
        if (!place_run(c, &r, a, i)) return false;
        int64_t rows = r.in.q.shape[0];
        r.dy = mti_range(dy, 0, i, rows);
        for (int k = 0; k < 3; k++) r.d[k] = mti_range(d[k], 0, i, rows);
        if (!c->k->attention_backward(c->ctx, &r.a, &r.dy, &r.d[0], &r.d[1], &r.d[2], scratch,
                                      n_scratch))
            return false;
    }
    return true;
}

static bool flash_forward(mti_call *c)
{
    inputs in;
    mti_attention a;
    if (!attention_of(c, &a, &in, mti_in(c, 0), mti_in(c, 1), mti_in(c, 2))) return false;
    a.o = mti_out(c, 0), a.lse = mti_aux(c, 0);
    a.seed = mti_aux(c, 1), a.offset = mti_aux(c, 2), a.sinks = mti_in(c, 3);
    count_products(c, &a, 1, 1);
    if (a.k->shape[1] == 0) return true; /* no heads: nothing to write */
    void *scratch;
    size_t n_scratch = c->k->attention_scratch(c->ctx, &a);
    return (!a.seed || c->k->put_draws(c->ctx, c->draw.seed, c->draw.offset, a.seed, a.offset)) &&
           mti_scratch(c, n_scratch, &scratch) &&
           (is_part(c) ? forward_in_runs(c, &a, scratch, n_scratch)
                       : c->k->attention(c->ctx, &a, scratch, n_scratch));
}

const mti_view *mti_din_heads_inside(mti_call *c, int i)
{
    mti_view spec = mti_heads_inside(&c->in_spec[i]);
    mt_tensor *t = mti_tensor_new(c->device, &spec, MT_TEMPORARY, true);
    return mti_give_din(c, i, t) ? &t->view : NULL;
}

static bool flash_backward(mti_call *c)
{
    inputs in;
    mti_attention a;
    if (!attention_of(c, &a, &in, mti_saved(c, MTI_IN0), mti_saved(c, MTI_IN1),
                      mti_saved(c, MTI_IN2)))
        return false;
    a.o = mti_saved(c, MTI_OUT0), a.lse = mti_saved(c, MTI_AUX0);
    a.seed = mti_saved(c, MTI_AUX1), a.offset = mti_saved(c, MTI_AUX2);
    mti_view dy;
    const mti_view *d[3], *d_sinks = NULL;
    for (int i = 0; i < 3; i++)
        if (!(d[i] = mti_din_heads_inside(c, i))) return false;
    if (mti_wants(c, 3) && (a.sinks = mti_saved(c, MTI_IN3), !(d_sinks = mti_din(c, 3))))
        return false;
    count_products(c, &a, 3, 2); /* the weights again, dq, dk; dp, dv */
    if (a.k->shape[1] == 0) return !d_sinks || c->k->fill(c->ctx, d_sinks, 0);
    void *scratch;
    size_t n_scratch = c->k->attention_backward_scratch(c->ctx, &a);
    return fit_rows(c, mti_dout(c), &dy) && mti_scratch(c, n_scratch, &scratch) &&
           (is_part(c) ? backward_in_runs(c, &a, &dy, d, scratch, n_scratch)
                       : c->k->attention_backward(c->ctx, &a, &dy, d[0], d[1], d[2], scratch,
                                                  n_scratch)) &&
           (!d_sinks ||
            c->k->attention_sinks_backward(c->ctx, &a, &dy, d_sinks, scratch, !is_part(c)));
}

const mti_op_code mti_code_flash_attention = {flash_shape, flash_forward, flash_backward};

bool mti_check_dropout(const char *caller, double p)
{
    return (p >= 0 && p < 1) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: dropout is %g; need 0 <= p < 1", caller, p);
}

double mti_scale_or_default(const mt_tensor *q, double scale)
{
    return scale != 0 || !q || !q->view.rank ? scale
                                             : 1 / sqrt((double)q->view.shape[q->view.rank - 1]);
}

mt_tensor *mti_flash_attention(mt_tensor *q, mt_tensor *k, mt_tensor *v, mt_tensor *mask,
                               const mt_attention_options *o)
{
    mt_tensor *in[5] = {q, k, v, o->sinks, mask}, *y;
    if (!mti_check_dropout("flash_attention", o->dropout)) return NULL;
    if (o->window < 0 || (o->window && !o->causal))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "flash_attention: the window is %lld; need 0, or with "
                             "causal 1 and more",
                             (long long)o->window);
    mti_params p = {.attention = {mti_scale_or_default(q, o->scale), o->dropout, o->causal,
                                  mti_modes_now()->part, o->window}};
    return mti_apply(&mti_op_flash_attention, &p, 5, in, 1, &y) ? y : NULL;
}

mt_tensor *mt_flash_attention(mt_tensor *q, mt_tensor *k, mt_tensor *v, double scale, bool causal,
                              double dropout)
{
    return mti_flash_attention(
        q, k, v, NULL,
        &(mt_attention_options){.scale = scale, .causal = causal, .dropout = dropout});
}

mt_tensor *mt_flash_attention_with(mt_tensor *q, mt_tensor *k, mt_tensor *v,
                                   const mt_attention_options *options)
{
    return mti_flash_attention(q, k, v, NULL, options ? options : &(mt_attention_options){0});
}
