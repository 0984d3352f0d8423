/* linear_loss.c: linear_cross_entropy: the last matrix product and its loss, a part of the logits
 * at a time.
 *
 *     logits = x w^T [n,v];  loss = mean over counted rows of lse - logits[target]
 *     dlogits = (exp(logits - lse) - onehot(target)) dloss / counted
 *     dx = dlogits w, dw = dlogits^T x
 *   x [..,d] as [n,d], w [v,d], target [..] i64 -> scalar; loss and lse [n] in f32 (f64 for f64)
 *
 * The plain form holds [n,v] three times over: logits, log-probabilities, their gradient. Here a
 * part is all there is: forward takes some rows at a time, because lse is of a whole row; backward
 * has lse and takes as many elements as some classes of all rows. So a part of dw is one product,
 * rounded once; dx is the sum over the parts, in f32 for 16 bits: 4nd bytes, where dw's would be
 * 4vd. Rows of a part begin at multiples of 16 bytes, whatever v: tensor cores load in such pieces.
 *
 * Kept: x, w, target and lse, 4n bytes more than linear alone. The other way, gradients made in
 * forward, saves the product that makes the logits again and keeps dx and dw instead: v d elements
 * more, in vain where no backward follows, and once only. */
#include "ops/ops.h"

#define PIECE_BYTES 16
/* Bytes of logits in a chunk where the device names none: on meta, which stands for a GPU. */
#define CHUNK_BYTES ((size_t)256 << 20)

static bool linear_cross_entropy_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *w = mti_in(c, 1), *t = mti_in(c, 2);
    char tx[MTI_SHAPE_TEXT], tw[MTI_SHAPE_TEXT], tt[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0) || !mti_need_same_dtype(c, 0, 1)) return false;
    if (t->dtype != MT_I64)
        return mti_fail_bool(MT_ERR_ARGUMENT, "linear_cross_entropy: target is %s; need i64",
                             mt_dtype_name(t->dtype));
    bool fits = x->rank >= 1 && w->rank == 2 && x->rank == t->rank + 1 &&
                x->shape[x->rank - 1] == w->shape[1];
    for (int d = 0; fits && d < t->rank; d++) fits = x->shape[d] == t->shape[d];
    if (!fits)
        return mti_fail_bool(
            MT_ERR_ARGUMENT,
            "linear_cross_entropy: x is %s, w is %s, target is %s; need [..,d], [v,d] and [..]",
            mti_shape_text(tx, x->rank, x->shape), mti_shape_text(tw, w->rank, w->shape),
            mti_shape_text(tt, t->rank, t->shape));
    c->aux_always[0] = true; /* forward computes the loss with it */
    mt_dtype stats = x->dtype == MT_F64 ? MT_F64 : MT_F32;
    return mti_out_set(c, 0, stats, 0, x->shape) && mti_aux_set(c, 0, stats, t->rank, t->shape);
}

/* The operands of forward and backward, all row-major. */
typedef struct pieces {
    mti_view x, w, target; /* [n,d], [v,d], [n] */
    int64_t n, v;
    int64_t part; /* rows of a part in forward, classes of a part in backward */
    mt_dtype stats;
    mti_view logits; /* [part,v] or [n,part], temporary */
} pieces;

/* The most of `count` that come to `bytes`, in parts of about equal size. */
static int64_t part_of(int64_t count, size_t bytes_each, size_t bytes)
{
    int64_t most = bytes_each ? (int64_t)(bytes / bytes_each) : count;
    if (most < 1) most = 1;
    if (most >= count) return count;
    int64_t parts = (count - 1) / most + 1;
    return (count - 1) / parts + 1;
}

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Room for m rows of n logits. */
static bool make_room(mti_call *c, pieces *p, int64_t m, int64_t n)
{
    int64_t pitch = round_up(n, PIECE_BYTES / (int64_t)mt_dtype_size(p->x.dtype));
    mt_tensor *room = mti_temp(c, p->x.dtype, 2, (const int64_t[]){m, pitch});
    if (room) p->logits = mti_range(&room->view, 1, 0, n);
    return room != NULL;
}

static bool pieces_of(mti_call *c, const mti_view *x, const mti_view *w, const mti_view *target,
                      pieces *p)
{
    if (!(x = mti_dense(c, x)) || !(w = mti_dense(c, w)) || !(target = mti_dense(c, target)))
        return false;
    *p = (pieces){.x = mti_rows(x),
                  .w = mti_rows(w),
                  .target = mti_flat(target),
                  .n = mti_view_count(target),
                  .v = w->shape[0],
                  .stats = x->dtype == MT_F64 ? MT_F64 : MT_F32};
    size_t size = mt_dtype_size(x->dtype), bytes = c->k->entropy_bytes(c->ctx, x->dtype);
    int64_t chunk = c->params->loss.chunk;
    if (!bytes) bytes = CHUNK_BYTES;
    if (!c->backward) {
        p->part = chunk ? (chunk < p->n ? chunk : p->n) : part_of(p->n, (size_t)p->v * size, bytes);
        return make_room(c, p, p->part, p->v);
    }
    /* as many elements as in forward */
    if (chunk) bytes = (size_t)(chunk < p->n ? chunk : p->n) * (size_t)p->v * size;
    p->part = part_of(p->v, (size_t)p->n * size, bytes);
    return make_room(c, p, p->n, p->part);
}

/* out = the logits of rows x and classes w */
static bool make_logits(mti_call *c, const mti_view *x, const mti_view *w, const mti_view *out)
{
    mti_view wt = mti_transposed(w);
    if (!mti_view_count(out)) return true;
    return x->shape[1] ? mti_gemm_part(c, x, &wt, 0, out) : c->k->fill(c->ctx, out, 0);
}

static bool linear_cross_entropy_forward(mti_call *c)
{
    pieces p;
    if (!pieces_of(c, mti_in(c, 0), mti_in(c, 1), mti_in(c, 2), &p)) return false;
    mt_tensor *loss = mti_temp(c, p.stats, 1, &p.n);
    if (!loss) return false;
    mti_view lse = mti_flat(mti_aux(c, 0));
    for (int64_t i = 0, m; i < p.n; i += m) {
        m = p.n - i < p.part ? p.n - i : p.part;
        mti_view x = mti_range(&p.x, 0, i, m), logits = mti_range(&p.logits, 0, 0, m),
                 t = mti_range(&p.target, 0, i, m), l = mti_range(&lse, 0, i, m),
                 part = mti_range(&loss->view, 0, i, m);
        if (!make_logits(c, &x, &p.w, &logits) ||
            !c->k->entropy_rows(c->ctx, c->params->loss.ignore, &logits, &t, &l, &part))
            return false;
    }
    return c->k->counted_mean(c->ctx, c->params->loss.ignore, p.v, &p.target, &loss->view,
                              mti_out(c, 0));
}

/* What the parts of dx are added up in: dx itself, or in f32 what it is then rounded from. */
static bool sum_of_parts(mti_call *c, const pieces *p, const mti_view *dx, mti_view *sum)
{
    *sum = mti_rows(dx);
    if (mt_dtype_size(dx->dtype) != 2 || p->part == p->v) return true;
    mt_tensor *wide = mti_temp(c, MT_F32, 2, sum->shape);
    if (wide) *sum = wide->view;
    return wide != NULL;
}

static bool linear_cross_entropy_backward(mti_call *c)
{
    pieces p;
    if (!pieces_of(c, mti_saved(c, MTI_IN0), mti_saved(c, MTI_IN1), mti_saved(c, MTI_IN2), &p))
        return false;
    const mti_view *dx = NULL, *dw = NULL;
    if (mti_wants(c, 0) && !(dx = mti_din(c, 0))) return false;
    if (mti_wants(c, 1) && !(dw = mti_din(c, 1))) return false;
    if (!p.n || !p.v || !p.x.shape[1]) /* empty sums */
        return (!dx || c->k->fill(c->ctx, dx, 0)) && (!dw || c->k->fill(c->ctx, dw, 0));
    mti_view lse = mti_flat(mti_saved(c, MTI_AUX0)), sum = p.x;
    mt_tensor *scale = mti_temp(c, p.stats, 0, &p.n);
    if (!scale || (dx && !sum_of_parts(c, &p, dx, &sum)) ||
        !c->k->counted_mean(c->ctx, c->params->loss.ignore, p.v, &p.target, mti_dout(c),
                            &scale->view))
        return false;
    for (int64_t j = 0, m; j < p.v; j += m) {
        m = p.v - j < p.part ? p.v - j : p.part;
        mti_view w = mti_range(&p.w, 0, j, m), d = mti_range(&p.logits, 1, 0, m),
                 dt = mti_transposed(&d);
        if (!make_logits(c, &p.x, &w, &d) ||
            !c->k->entropy_rows_backward(c->ctx, c->params->loss.ignore, j, &d, &p.target, &lse,
                                         &scale->view, &d))
            return false;
        if (dx && !mti_gemm_part(c, &d, &w, j > 0, &sum)) return false;
        mti_view rows = dw ? mti_range(dw, 0, j, m) : p.w;
        if (dw && !mti_gemm_part(c, &dt, &p.x, 0, &rows)) return false;
    }
    mti_view whole = dx ? mti_rows(dx) : p.x;
    return !dx || sum.data == whole.data || c->k->copy(c->ctx, &sum, &whole);
}

const mti_op_code mti_code_linear_cross_entropy = {
    linear_cross_entropy_shape, linear_cross_entropy_forward, linear_cross_entropy_backward};

mt_tensor *mt_linear_cross_entropy(mt_tensor *x, mt_tensor *w, mt_tensor *target, int64_t ignore,
                                   int64_t chunk)
{
    if (chunk < 0)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "linear_cross_entropy: chunk is %lld rows; need 0 or more",
                             (long long)chunk);
    mti_params p = {.loss = {.ignore = ignore, .chunk = chunk}};
    return mti_op3(&mti_op_linear_cross_entropy, &p, x, w, target);
}
