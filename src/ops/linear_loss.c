/* linear_loss.c: linear_cross_entropy: the last matrix product and its loss, in chunks of rows.
 *
 *     logits = x w^T [n,v];  loss = mean over counted rows of lse - logits[target]
 *     dlogits = (exp(logits - lse) - onehot(target)) dloss / counted
 *     dx = dlogits w, dw = dlogits^T x
 *   x [..,d] as [n,d], w [v,d], target [..] i64 -> scalar; loss and lse [n] in f32 (f64 for f64)
 *
 * The plain form holds [n,v] three times over: logits, log-probabilities, their gradient. Here
 * [chunk,v] is all there is. Kept: x, w, target and lse, 4n bytes more than linear alone. The other
 * way, gradients made in forward chunk by chunk, saves the product that makes the logits again and
 * keeps dx and dw instead: v d elements more, in vain where no backward follows, and once only. */
#include "ops/ops.h"

#define CHUNK_BYTES ((size_t)32 << 20) /* of logits */

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
    int64_t n, v, rows;    /* rows: of a chunk */
    mt_dtype stats;
    mti_view logits; /* [rows,v], temporary */
} pieces;

static bool pieces_of(mti_call *c, const mti_view *x, const mti_view *w, const mti_view *target,
                      pieces *p)
{
    if (!(x = mti_dense(c, x)) || !(w = mti_dense(c, w)) || !(target = mti_dense(c, target)))
        return false;
    int64_t n = mti_view_count(target), v = w->shape[0];
    size_t row = (size_t)v * mt_dtype_size(x->dtype), fit = row ? CHUNK_BYTES / row : (size_t)n;
    int64_t rows = c->params->loss.chunk ? c->params->loss.chunk : (int64_t)fit;
    rows = rows < 1 ? 1 : rows > n ? n : rows;
    if (!c->params->loss.chunk && rows) rows = (n + (n - 1) / rows) / ((n - 1) / rows + 1);
    *p = (pieces){.x = mti_rows(x),
                  .w = mti_rows(w),
                  .target = mti_flat(target),
                  .n = n,
                  .v = v,
                  .rows = rows,
                  .stats = x->dtype == MT_F64 ? MT_F64 : MT_F32};
    mt_tensor *logits = mti_temp(c, x->dtype, 2, (const int64_t[]){rows, v});
    if (logits) p->logits = logits->view;
    return logits != NULL;
}

/* Computes rows [begin, begin + m) of the logits into p->logits. */
static bool make_logits(mti_call *c, const pieces *p, int64_t begin, int64_t m, mti_view *logits)
{
    mti_view x = mti_range(&p->x, 0, begin, m), wt = mti_transposed(&p->w);
    *logits = mti_range(&p->logits, 0, 0, m);
    if (!p->v) return true;
    return p->x.shape[1] ? mti_gemm_part(c, &x, &wt, 0, logits) : c->k->fill(c->ctx, logits, 0);
}

static bool linear_cross_entropy_forward(mti_call *c)
{
    pieces p;
    if (!pieces_of(c, mti_in(c, 0), mti_in(c, 1), mti_in(c, 2), &p)) return false;
    mt_tensor *loss = mti_temp(c, p.stats, 1, &p.n);
    if (!loss) return false;
    mti_view lse = mti_flat(mti_aux(c, 0));
    for (int64_t i = 0, m; i < p.n; i += m) {
        mti_view logits;
        m = p.n - i < p.rows ? p.n - i : p.rows;
        mti_view t = mti_range(&p.target, 0, i, m), l = mti_range(&lse, 0, i, m),
                 part = mti_range(&loss->view, 0, i, m);
        if (!make_logits(c, &p, i, m, &logits) ||
            !c->k->entropy_rows(c->ctx, c->params->loss.ignore, &logits, &t, &l, &part))
            return false;
    }
    return c->k->counted_mean(c->ctx, c->params->loss.ignore, p.v, &p.target, &loss->view,
                              mti_out(c, 0));
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
    mt_tensor *scale = mti_temp(c, p.stats, 0, &p.n);
    mti_view dx_all = dx ? mti_rows(dx) : p.x;
    mti_view lse = mti_flat(mti_saved(c, MTI_AUX0));
    if (!scale || !c->k->counted_mean(c->ctx, c->params->loss.ignore, p.v, &p.target, mti_dout(c),
                                      &scale->view))
        return false;
    for (int64_t i = 0, m; i < p.n; i += m) {
        mti_view logits;
        m = p.n - i < p.rows ? p.n - i : p.rows;
        mti_view t = mti_range(&p.target, 0, i, m), l = mti_range(&lse, 0, i, m),
                 x = mti_range(&p.x, 0, i, m);
        if (!make_logits(c, &p, i, m, &logits) ||
            !c->k->entropy_rows_backward(c->ctx, c->params->loss.ignore, &logits, &t, &l,
                                         &scale->view, &logits))
            return false;
        mti_view dx_rows = mti_range(&dx_all, 0, i, m), logits_t = mti_transposed(&logits);
        if (dx && !mti_gemm_part(c, &logits, &p.w, 0, &dx_rows)) return false;
        if (dw && !mti_gemm_part(c, &logits_t, &x, i > 0, dw)) return false;
    }
    return true;
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
    return mti_op3(MTI_OP_linear_cross_entropy, &p, x, w, target);
}
