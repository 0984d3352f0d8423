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
 * more, and in vain where no backward follows. It is below, as PyTorch 2.13 and Liger have it. */
#include "ops/ops.h"

#define PIECE_BYTES 16
/* Bytes of logits in a chunk where the device names none: on meta, which stands for a GPU. */
#define CHUNK_BYTES ((size_t)256 << 20)

static bool loss_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *w = mti_in(c, 1), *t = mti_in(c, 2);
    char tx[MTI_SHAPE_TEXT], tw[MTI_SHAPE_TEXT], tt[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0) || !mti_need_same_dtype(c, 0, 1)) return false;
    if (t->dtype != MT_I64)
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: target is %s; need i64", c->op->name,
                             mt_dtype_name(t->dtype));
    bool fits = x->rank >= 1 && w->rank == 2 && x->rank == t->rank + 1 &&
                x->shape[x->rank - 1] == w->shape[1];
    for (int d = 0; fits && d < t->rank; d++) fits = x->shape[d] == t->shape[d];
    if (!fits)
        return mti_fail_bool(
            MT_ERR_ARGUMENT, "%s: x is %s, w is %s, target is %s; need [..,d], [v,d] and [..]",
            c->op->name, mti_shape_text(tx, x->rank, x->shape),
            mti_shape_text(tw, w->rank, w->shape), mti_shape_text(tt, t->rank, t->shape));
    return mti_out_set(c, 0, x->dtype == MT_F64 ? MT_F64 : MT_F32, 0, x->shape);
}

static bool linear_cross_entropy_shape(mti_call *c)
{
    if (!loss_shape(c)) return false;
    const mti_view *x = mti_in(c, 0), *t = mti_in(c, 2);
    c->aux_always[0] = true; /* forward computes the loss with it */
    return mti_aux_set(c, 0, x->dtype == MT_F64 ? MT_F64 : MT_F32, t->rank, t->shape);
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
static bool make_room(mti_call *c, mt_dtype dtype, int64_t m, int64_t n, mti_view *logits)
{
    int64_t pitch = round_up(n, PIECE_BYTES / (int64_t)mt_dtype_size(dtype));
    mt_tensor *room = mti_temp(c, dtype, 2, (const int64_t[]){m, pitch});
    if (room) *logits = mti_range(&room->view, 1, 0, n);
    return room != NULL;
}

static bool pieces_of(mti_call *c, const mti_view *x, const mti_view *w, const mti_view *target,
                      pieces *p)
{
    if (!(x = mti_dense(c, x)) || !(w = mti_dense(c, w)) || !(target = mti_dense(c, target)))
        return false;
    *p = (pieces){.x = mti_as_rows(x),
                  .w = mti_as_rows(w),
                  .target = mti_flat(target),
                  .n = mti_view_count(target),
                  .v = w->shape[0],
                  .stats = x->dtype == MT_F64 ? MT_F64 : MT_F32};
    size_t size = mt_dtype_size(x->dtype), bytes = c->k->entropy_bytes(c->ctx, x->dtype);
    int64_t chunk = c->params->loss.chunk;
    if (!bytes) bytes = CHUNK_BYTES;
    if (!c->backward) {
        p->part = chunk ? (chunk < p->n ? chunk : p->n) : part_of(p->n, (size_t)p->v * size, bytes);
        bool wide = c->params->loss.wide;
        return make_room(c, wide ? p->stats : x->dtype, p->part, p->v, &p->logits);
    }
    /* as many elements as in forward */
    if (chunk) bytes = (size_t)(chunk < p->n ? chunk : p->n) * (size_t)p->v * size;
    p->part = part_of(p->v, (size_t)p->n * size, bytes);
    return make_room(c, x->dtype, p->n, p->part, &p->logits);
}

/* out = the logits of rows x and classes w */
static bool make_logits(mti_call *c, const mti_view *x, const mti_view *w, const mti_view *out)
{
    mti_view wt = mti_transposed(w);
    if (!mti_view_count(out)) return true;
    return x->shape[1] ? mti_multiply_part(c, x, &wt, 0, out) : c->k->fill(c->ctx, out, 0);
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
    *sum = mti_as_rows(dx);
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
        if (dx && !mti_multiply_part(c, &d, &w, j > 0, &sum)) return false;
        mti_view rows = dw ? mti_range(dw, 0, j, m) : p.w;
        if (dw && !mti_multiply_part(c, &dt, &p.x, 0, &rows)) return false;
    }
    mti_view whole = dx ? mti_as_rows(dx) : p.x;
    return !dx || sum.data == whole.data || c->k->copy(c->ctx, &sum, &whole);
}

const mti_op_code mti_code_linear_cross_entropy = {
    linear_cross_entropy_shape, linear_cross_entropy_forward, linear_cross_entropy_backward};

/* ---- with both gradients made in forward ---- */

static bool linear_cross_entropy_early_shape(mti_call *c)
{
    if (!loss_shape(c)) return false;
    const mti_view *x = mti_in(c, 0), *w = mti_in(c, 1);
    return mti_aux_set(c, 0, x->dtype, x->rank, x->shape) &&
           mti_aux_set(c, 1, w->dtype, w->rank, w->shape);
}

/* What some rows from `i` on give: d, of dlogits, is in x's dtype. dw is rounded after each part.
 */
static bool add_gradients(mti_call *c, const pieces *p, int64_t i, const mti_view *d)
{
    mti_view x = mti_range(&p->x, 0, i, d->shape[0]), turned = mti_transposed(d);
    const mti_view *dx = mti_aux(c, 0), *dw = mti_aux(c, 1);
    mti_view all = dx ? mti_as_rows(dx) : p->x, rows = mti_range(&all, 0, i, d->shape[0]);
    return (!dx || mti_multiply_part(c, d, &p->w, 0, &rows)) &&
           (!dw || mti_multiply_part(c, &turned, &x, i > 0, dw));
}

/* *scale = 1 / number of targets that count */
static bool weight_of_row(mti_call *c, const pieces *p, mt_tensor **scale)
{
    mt_tensor *one = mti_temp(c, p->stats, 0, &p->n);
    *scale = mti_temp(c, p->stats, 0, &p->n);
    return one && *scale && c->k->fill(c->ctx, &one->view, 1) &&
           c->k->counted_mean(c->ctx, c->params->loss.ignore, p->v, &p->target, &one->view,
                              &(*scale)->view);
}

static bool linear_cross_entropy_early_forward(mti_call *c)
{
    pieces p;
    if (!pieces_of(c, mti_in(c, 0), mti_in(c, 1), mti_in(c, 2), &p)) return false;
    const mti_view *dw = mti_aux(c, 1);
    bool gradients = (mti_aux(c, 0) || dw) && p.n && p.v && p.x.shape[1];
    mt_tensor *loss = mti_temp(c, p.stats, 1, &p.n), *lse = mti_temp(c, p.stats, 1, &p.part);
    mt_tensor *scale = NULL;
    mti_view narrow = p.logits;
    if (!loss || !lse || (gradients && !weight_of_row(c, &p, &scale)) ||
        (gradients && p.logits.dtype != p.x.dtype &&
         !make_room(c, p.x.dtype, p.part, p.v, &narrow)) ||
        (dw && !gradients && !c->k->fill(c->ctx, dw, 0)))
        return false;
    for (int64_t i = 0, m; i < p.n; i += m) {
        m = p.n - i < p.part ? p.n - i : p.part;
        mti_view x = mti_range(&p.x, 0, i, m), logits = mti_range(&p.logits, 0, 0, m),
                 d = mti_range(&narrow, 0, 0, m), t = mti_range(&p.target, 0, i, m),
                 l = mti_range(&lse->view, 0, 0, m), part = mti_range(&loss->view, 0, i, m);
        if (!make_logits(c, &x, &p.w, &logits) ||
            !c->k->entropy_rows(c->ctx, c->params->loss.ignore, &logits, &t, &l, &part))
            return false;
        if (!gradients) continue;
        if (!c->k->entropy_rows_backward(c->ctx, c->params->loss.ignore, 0, &logits, &t, &l,
                                         &scale->view, &logits) ||
            (d.dtype != logits.dtype && !c->k->copy(c->ctx, &logits, &d)) ||
            !add_gradients(c, &p, i, &d))
            return false;
    }
    return c->k->counted_mean(c->ctx, c->params->loss.ignore, p.v, &p.target, &loss->view,
                              mti_out(c, 0));
}

static bool linear_cross_entropy_early_backward(mti_call *c)
{
    const unsigned slots[] = {MTI_AUX0, MTI_AUX1};
    mt_tensor *by = mti_temp(c, c->in_spec[0].dtype, 0, NULL);
    if (!by || !c->k->copy(c->ctx, mti_dout(c), &by->view)) return false;
    for (int i = 0; i < 2; i++) {
        const mti_view *d = mti_wants(c, i) ? mti_din_of_saved(c, i, slots[i]) : NULL;
        mti_view factor = mti_broadcast_view(&by->view, c->in_spec[i].rank, c->in_spec[i].shape);
        if (mti_wants(c, i) && (!d || !c->k->binary(c->ctx, MTI_MUL, d, &factor, d))) return false;
    }
    return true;
}

const mti_op_code mti_code_linear_cross_entropy_early = {linear_cross_entropy_early_shape,
                                                         linear_cross_entropy_early_forward,
                                                         linear_cross_entropy_early_backward};

mt_tensor *mt_linear_cross_entropy(mt_tensor *x, mt_tensor *w, mt_tensor *target, int64_t ignore,
                                   int64_t chunk)
{
    return mt_linear_cross_entropy_with(x, w, target, ignore,
                                        &(mt_linear_cross_entropy_options){.chunk = chunk});
}

mt_tensor *mt_linear_cross_entropy_with(mt_tensor *x, mt_tensor *w, mt_tensor *target,
                                        int64_t ignore,
                                        const mt_linear_cross_entropy_options *options)
{
    const mt_linear_cross_entropy_options o =
        options ? *options : (mt_linear_cross_entropy_options){0};
    if (o.chunk < 0)
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "linear_cross_entropy: chunk is %lld rows; need 0 or more",
                             (long long)o.chunk);
    if (o.f32_logits && !o.early)
        return mti_fail_null(MT_ERR_ARGUMENT, "linear_cross_entropy: f32_logits needs early");
    mti_params p = {.loss = {.ignore = ignore, .chunk = o.chunk, .wide = o.f32_logits}};
    return mti_op3(o.early ? &mti_op_linear_cross_entropy_early : &mti_op_linear_cross_entropy, &p,
                   x, w, target);
}
