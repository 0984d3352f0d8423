/* batch_norm: y = (x - mean) rstd w + b, channel by channel.
 *   x, y [b,c,..]; w, b [c] or NULL; mean, rstd [c] in f32 (f64 for f64 x), over all but dimension
 * 1 Training: mean and variance of this batch; with m = b times the rest, g = dy w, xhat = (x -
 * mean) rstd: dx = rstd (g - sum(g)/m - xhat sum(g xhat)/m);  evaluation, where they do not depend
 * on x: dx = rstd g dw = sum of dy xhat, db = sum of dy, over all but dimension 1 saved: x, w, mean
 * and rstd. In evaluation mean and rstd are made of the running statistics: as many bytes as
 * PyTorch keeps by keeping these themselves, and a later update does no harm. */
#include <math.h>
#include "ops/ops.h"

static mt_dtype stats_dtype(const mti_view *x) { return x->dtype == MT_F64 ? MT_F64 : MT_F32; }

static bool need_channels(mti_call *c, const char *letter, const mti_view *v, mt_dtype dtype)
{
    const mti_view *x = mti_in(c, 0);
    char tx[MTI_SHAPE_TEXT], tv[MTI_SHAPE_TEXT];
    return !v || (v->dtype == dtype && v->rank == 1 && v->shape[0] == x->shape[1]) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "batch_norm: x is %s %s, %s is %s %s; need %s, one per channel "
                         "(dimension 1) of x",
                         mt_dtype_name(x->dtype), mti_shape_text(tx, x->rank, x->shape), letter,
                         mt_dtype_name(v->dtype), mti_shape_text(tv, v->rank, v->shape),
                         mt_dtype_name(dtype));
}

static bool need_running(mti_call *c, const char *letter, const mt_tensor *t)
{
    if (!t) return true;
    if (t->storage->device != c->device)
        return mti_fail_bool(MT_ERR_ARGUMENT, "batch_norm: %s is on another device than x", letter);
    return need_channels(c, letter, &t->view, stats_dtype(mti_in(c, 0))) &&
           (mti_view_is_contiguous(&t->view) ||
            mti_fail_bool(MT_ERR_ARGUMENT, "batch_norm: %s is not contiguous", letter));
}

static bool batch_norm_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    const struct mti_batch_norm *p = &c->params->batch_norm;
    char text[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0)) return false;
    if (x->rank < 2)
        return mti_fail_bool(MT_ERR_ARGUMENT, "batch_norm: x is %s; need [b,c] or [b,c,..]",
                             mti_shape_text(text, x->rank, x->shape));
    if (p->training && mti_view_count(x) > 0 && mti_view_count(x) < 2 * x->shape[1])
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "batch_norm: x is %s; training needs 2 values of each channel or more",
                             mti_shape_text(text, x->rank, x->shape));
    mt_dtype stats = stats_dtype(x);
    return need_channels(c, "w", mti_in(c, 1), x->dtype) &&
           need_channels(c, "b", mti_in(c, 2), x->dtype) &&
           need_running(c, "running_mean", p->running_mean) &&
           need_running(c, "running_var", p->running_var) && mti_out_like(c, x) &&
           mti_aux_set(c, 0, stats, 1, &x->shape[1]) && mti_aux_set(c, 1, stats, 1, &x->shape[1]);
}

/* [b,c,..] row-major as [b,c,s]; a dense copy where it is not. */
static bool by_channel(mti_call *c, const mti_view *v, mti_view *out)
{
    const mti_view *dense = v ? mti_dense(c, v) : NULL;
    if (!dense) return false;
    *out = *dense;
    out->rank = 3;
    out->shape[2] = 1;
    for (int d = 2; d < dense->rank; d++) out->shape[2] *= dense->shape[d];
    out->stride[2] = 1, out->stride[1] = out->shape[2];
    out->stride[0] = out->shape[1] * out->shape[2];
    return true;
}

static bool dense_if_set(mti_call *c, const mti_view **v) { return !*v || (*v = mti_dense(c, *v)); }

static bool batch_norm_forward(mti_call *c)
{
    const struct mti_batch_norm *p = &c->params->batch_norm;
    const mti_view *w = mti_in(c, 1), *b = mti_in(c, 2);
    mti_view x, y;
    if (!by_channel(c, mti_in(c, 0), &x) || !by_channel(c, mti_out(c, 0), &y) ||
        !dense_if_set(c, &w) || !dense_if_set(c, &b))
        return false;
    /* A checkpoint runs forward again: the batch has been counted. No values move nothing. */
    bool counts = p->training && !mt_recomputing() && mti_view_count(&x) > 0;
    double momentum = counts ? p->momentum : 0;
    mt_tensor *running[] = {p->running_mean, p->running_var};
    for (int i = 0; i < 2; i++)
        if (running[i] && momentum > 0) atomic_fetch_add(&running[i]->storage->version, 1);
    return c->k->batch_norm(
        c->ctx, p->training, p->eps, momentum, &x, w, b, running[0] ? &running[0]->view : NULL,
        running[1] ? &running[1]->view : NULL, &y, mti_aux(c, 0), mti_aux(c, 1));
}

static bool batch_norm_backward(mti_call *c)
{
    bool training = c->params->batch_norm.training, reads_x = mti_wants(c, 0) || mti_wants(c, 1);
    const mti_view *w = NULL, *mean = NULL, *rstd = NULL, *dw = NULL, *db = NULL;
    mti_view x, dy, dx;
    if (!by_channel(c, mti_dout(c), &dy)) return false;
    if (reads_x) {
        if (!by_channel(c, mti_saved(c, MTI_IN0), &x)) return false;
        mean = mti_saved(c, MTI_AUX0), rstd = mti_saved(c, MTI_AUX1);
        if (!mean || !rstd) return false;
    }
    if (mti_wants(c, 0) && !c->absent[1]) w = mti_saved(c, MTI_IN1);
    if (!dense_if_set(c, &w)) return false;
    if (mti_wants(c, 0) && !by_channel(c, mti_din(c, 0), &dx)) return false;
    if (mti_wants(c, 1) && !(dw = mti_din(c, 1))) return false;
    if (mti_wants(c, 2) && !(db = mti_din(c, 2))) return false;
    return c->k->batch_norm_backward(c->ctx, training, &dy, reads_x ? &x : NULL, w, mean, rstd,
                                     mti_wants(c, 0) ? &dx : NULL, dw, db);
}

const mti_op_code mti_code_batch_norm = {batch_norm_shape, batch_norm_forward, batch_norm_backward};

mt_tensor *mt_batch_norm(mt_tensor *x, mt_tensor *w, mt_tensor *b, mt_tensor *running_mean,
                         mt_tensor *running_var, bool training, double momentum, double eps)
{
    if (!(eps >= 0) || !(momentum >= 0 && momentum <= 1))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "batch_norm: momentum %g, eps %g; need a momentum from 0 to 1 and an "
                             "eps of 0 or more",
                             momentum, eps);
    bool need_both = !training || running_mean || running_var;
    if (need_both && (!mti_given(running_mean, "batch_norm", "running_mean") ||
                      !mti_given(running_var, "batch_norm", "running_var")))
        return NULL;
    return mti_op3(
        &mti_op_batch_norm,
        &(mti_params){.batch_norm = {eps, momentum, running_mean, running_var, training}}, x, w, b);
}
