/* rows.c: ops over the last dimension: softmax, log_softmax, layer_norm, rms_norm. */
#include "ops/ops.h"

static bool need_rows(mti_call *c, int min_rank)
{
    const mti_view *x = mti_in(c, 0);
    char text[MTI_SHAPE_TEXT];
    return mti_need_float(c, 0) &&
           (x->rank >= min_rank ||
            mti_fail_bool(MT_ERR_ARGUMENT, "%s: x is %s; need rank %d or more", c->op->name,
                          mti_shape_text(text, x->rank, x->shape), min_rank));
}

/* ---- softmax: y = softmax(scale x), row by row; causal masks later columns
 * x, y [..,s,t];  dx = scale y (dy - sum(dy y)) */

static bool softmax_shape(mti_call *c)
{
    return need_rows(c, c->params->softmax.causal ? 2 : 1) && mti_out_like(c, mti_in(c, 0));
}

static bool softmax_forward(mti_call *c)
{
    const mti_view *x = mti_dense_rows(c, mti_in(c, 0));
    return x && c->k->softmax(c->ctx, c->params->softmax.scale, c->params->softmax.causal, x,
                              mti_out(c, 0));
}

static bool softmax_backward(mti_call *c)
{
    const mti_view *dy = mti_dense_rows(c, mti_dout(c)), *dx = mti_din_reuse(c, 0);
    return dy && dx &&
           c->k->softmax_backward(c->ctx, c->params->softmax.scale, mti_saved(c, MTI_OUT0), dy, dx);
}

const mti_op_code mti_code_softmax = {softmax_shape, softmax_forward, softmax_backward};
mt_tensor *mt_softmax(mt_tensor *x, double scale, bool causal)
{
    return mti_op1(&mti_op_softmax, &(mti_params){.softmax = {scale, causal}}, x);
}

/* ---- log_softmax: y = x - log sum exp x;  dx = dy - exp(y) sum(dy) */

static bool log_softmax_shape(mti_call *c)
{
    return need_rows(c, 1) && mti_out_like(c, mti_in(c, 0));
}

static bool log_softmax_forward(mti_call *c)
{
    const mti_view *x = mti_dense_rows(c, mti_in(c, 0));
    return x && c->k->log_softmax(c->ctx, x, mti_out(c, 0));
}

static bool log_softmax_backward(mti_call *c)
{
    const mti_view *dy = mti_dense_rows(c, mti_dout(c));
    const mti_view *dx = mti_din_reuse(c, 0);
    return dy && dx && c->k->log_softmax_backward(c->ctx, mti_saved(c, MTI_OUT0), dy, dx);
}

const mti_op_code mti_code_log_softmax = {log_softmax_shape, log_softmax_forward,
                                          log_softmax_backward};
mt_tensor *mt_log_softmax(mt_tensor *x) { return mti_op1(&mti_op_log_softmax, NULL, x); }

/* ---- layer_norm: y = (x - mean) rstd w + b;  x, y [..,n], w, b [n]; mean, rstd one per row in f32
 * With g = dy w, xhat = (x - mean) rstd:  dx = rstd (g - mean(g) - xhat mean(g xhat)),
 * dw = sum of dy xhat over rows, db = sum of dy over rows. */

/* Input i, if given, must be [n], one value per column of x [..,n]. */
static bool need_one_per_column(mti_call *c, int i)
{
    const mti_view *x = mti_in(c, 0), *v = mti_in(c, i);
    char tx[MTI_SHAPE_TEXT], tv[MTI_SHAPE_TEXT];
    if (!v) return true;
    if (!mti_need_same_dtype(c, 0, i)) return false;
    return (v->rank == 1 && v->shape[0] == x->shape[x->rank - 1]) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: x is %s, %s is %s; need one %s per column of x",
                         c->op->name, mti_shape_text(tx, x->rank, x->shape), c->op->in[i],
                         mti_shape_text(tv, v->rank, v->shape), c->op->in[i]);
}

static mt_dtype stats_dtype(const mti_view *x) { return x->dtype == MT_F64 ? MT_F64 : MT_F32; }

static bool layer_norm_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    return need_rows(c, 1) && need_one_per_column(c, 1) && need_one_per_column(c, 2) &&
           mti_out_like(c, x) && mti_aux_set(c, 0, stats_dtype(x), x->rank - 1, x->shape) &&
           mti_aux_set(c, 1, stats_dtype(x), x->rank - 1, x->shape);
}

static bool dense_if_set(mti_call *c, const mti_view **v) { return !*v || (*v = mti_dense(c, *v)); }

static bool layer_norm_forward(mti_call *c)
{
    const mti_view *x = mti_dense_rows(c, mti_in(c, 0)), *w = mti_in(c, 1), *b = mti_in(c, 2);
    return x && dense_if_set(c, &w) && dense_if_set(c, &b) &&
           c->k->layer_norm(c->ctx, c->params->norm.eps, x, w, b, mti_out(c, 0), mti_aux(c, 0),
                            mti_aux(c, 1));
}

static bool layer_norm_backward(mti_call *c)
{
    /* db alone is a sum over rows and needs nothing kept. */
    if (!mti_wants(c, 0) && !mti_wants(c, 1)) return mti_reduce_to_din(c, 2, c->dout[0]);
    const mti_view *dy = mti_dense_rows(c, mti_dout(c)), *dx = NULL, *dw = NULL, *db = NULL,
                   *w = NULL;
    const mti_view *x = mti_dense_rows(c, mti_saved(c, MTI_IN0));
    if (mti_wants(c, 0) && !c->absent[1]) w = mti_saved(c, MTI_IN1);
    if (!dy || !x || !dense_if_set(c, &w)) return false;
    if (mti_wants(c, 0) && !(dx = mti_din(c, 0))) return false;
    if (mti_wants(c, 1) && !(dw = mti_din(c, 1))) return false;
    if (mti_wants(c, 2) && !(db = mti_din(c, 2))) return false;
    void *scratch;
    return mti_scratch(c, c->k->layer_norm_backward_scratch(c->ctx, x), &scratch) &&
           c->k->layer_norm_backward(c->ctx, dy, x, w, mti_saved(c, MTI_AUX0),
                                     mti_saved(c, MTI_AUX1), dx, dw, db, scratch);
}

const mti_op_code mti_code_layer_norm = {layer_norm_shape, layer_norm_forward, layer_norm_backward};
mt_tensor *mt_layer_norm(mt_tensor *x, mt_tensor *w, mt_tensor *b, double eps)
{
    if (!(eps >= 0))
        return mti_fail_null(MT_ERR_ARGUMENT, "layer_norm: eps %g; need 0 or more", eps);
    return mti_op3(&mti_op_layer_norm, &(mti_params){.norm = {eps}}, x, w, b);
}

/* ---- rms_norm: y = x rstd w, rstd = 1 / sqrt(mean(x^2) + eps);  x, y [..,n], w [n]; rstd one per
 * row in f32. With g = dy w, h = x rstd:  dx = rstd (g - h mean(g h)), dw = sum of dy h over rows
 */

static bool rms_norm_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    return need_rows(c, 1) && need_one_per_column(c, 1) && mti_out_like(c, x) &&
           mti_aux_set(c, 0, stats_dtype(x), x->rank - 1, x->shape);
}

static bool rms_norm_forward(mti_call *c)
{
    const mti_view *x = mti_dense_rows(c, mti_in(c, 0)), *w = mti_in(c, 1);
    return x && dense_if_set(c, &w) &&
           c->k->rms_norm(c->ctx, c->params->norm.eps, x, w, mti_out(c, 0), mti_aux(c, 0));
}

static bool rms_norm_backward(mti_call *c)
{
    const mti_view *dy = mti_dense_rows(c, mti_dout(c)), *dx = NULL, *dw = NULL, *w = NULL;
    const mti_view *x = mti_dense_rows(c, mti_saved(c, MTI_IN0));
    if (mti_wants(c, 0) && !c->absent[1]) w = mti_saved(c, MTI_IN1);
    if (!dy || !x || !dense_if_set(c, &w)) return false;
    if (mti_wants(c, 0) && !(dx = mti_din(c, 0))) return false;
    if (mti_wants(c, 1) && !(dw = mti_din(c, 1))) return false;
    void *scratch;
    return mti_scratch(c, c->k->rms_norm_backward_scratch(c->ctx, x), &scratch) &&
           c->k->rms_norm_backward(c->ctx, dy, x, w, mti_saved(c, MTI_AUX0), dx, dw, scratch);
}

const mti_op_code mti_code_rms_norm = {rms_norm_shape, rms_norm_forward, rms_norm_backward};
mt_tensor *mt_rms_norm(mt_tensor *x, mt_tensor *w, double eps)
{
    if (!(eps >= 0)) return mti_fail_null(MT_ERR_ARGUMENT, "rms_norm: eps %g; need 0 or more", eps);
    return mti_op2(&mti_op_rms_norm, &(mti_params){.norm = {eps}}, x, w);
}
