/* math_attention.c: softmax(scale q k^T) v as a composition of ops, so that the tape keeps the
 * weights [b,a,s,t] and every intermediate is visible. */
#include <math.h>
#include "ops/ops.h"

/* ---- the mask of a window ---- */

/* Shows n columns of each row from `from` on, the first row's from `column` on, the next one's from
 * one column further. */
static bool show(mt_tensor *mask, int64_t from, int64_t rows, int64_t column, int64_t n)
{
    const int last = mask->view.rank - 1;
    mti_view lines = mti_range(&mask->view, last - 1, from, rows);
    mti_view band = mti_range(&lines, last, column, n);
    band.stride[last - 1]++;
    mt_device *d = mt_device_of(mask);
    return rows < 1 || n < 1 || d->backend->fill(d->ctx, &band, 0);
}

mt_tensor *mti_window_mask(mt_device *device, mt_dtype dtype, int rank, const int64_t *shape,
                           int64_t window)
{
    mt_tensor *mask = mt_full(device, dtype, rank, shape, -(double)INFINITY);
    const int64_t s = shape[rank - 2], t = shape[rank - 1], ahead = t - s;
    if (!mask || !mt_device_has_data(device)) return mask;
    int64_t i = ahead < 0 ? -ahead : 0; /* the first query that sees a key */
    bool ok = true;
    for (; ok && i < s && i + ahead + 1 < window; i++) ok = show(mask, i, 1, 0, i + ahead + 1);
    ok = ok && (i >= s || show(mask, i, s - i, i + ahead + 1 - window, window));
    if (!ok) mt_set(&mask, NULL);
    return mask;
}

/* ---- attention ---- */

/* *w = tanh(scale w / cap), and *scale what is to be made of it. */
static void soft_cap(mt_tensor **w, double *scale, double cap)
{
    mt_set(w, mt_affine(*w, *scale / cap, 0));
    mt_set(w, mt_tanh(*w));
    *scale = cap;
}

/* Releases each intermediate once the next one is made; the tape retains those it needs. */
static mt_tensor *attend(mt_tensor *q, mt_tensor *k, mt_tensor *v, const mti_math_options *o)
{
    double scale = mti_scale_or_default(q, o->scale);
    mt_tensor *kt = k ? mt_transpose(k, -2, -1) : NULL;
    mt_tensor *w = mt_matmul(q, kt); /* [b,a,s,t] */
    mt_release(kt);
    if (w && o->cap > 0) soft_cap(&w, &scale, o->cap);
    if (w && o->mask) mt_set(&w, mt_affine(w, scale, 0)), scale = 1;
    if (w && o->mask) mt_set(&w, mt_add(w, o->mask));
    if (w && o->wide && mt_dtype_size(w->view.dtype) == 2) mt_set(&w, mt_cast(w, MT_F32));
    if (w) mt_set(&w, mt_softmax(w, scale, o->causal));
    if (w && o->wide) mt_set(&w, mt_cast(w, q->view.dtype));
    if (w) mt_set(&w, mt_dropout(w, o->dropout));
    mt_tensor *y = w ? mt_matmul(w, v) : NULL;
    mt_release(w);
    return y;
}

/* [b,a,..] -> [b,groups,a / groups,..]: a view */
static mt_tensor *in_groups(mt_tensor *x, int64_t groups)
{
    const int64_t *s = x->view.shape;
    return mt_reshape(x, MT_SHAPE(s[0], groups, s[1] / groups, s[2], s[3]));
}

/* For a > a_kv: each group of q's heads shares a head of k and v, broadcast with stride 0. */
static mt_tensor *attend_in_groups(mt_tensor *q, mt_tensor *k, mt_tensor *v,
                                   const mti_math_options *o)
{
    const int64_t *s = q->view.shape, groups = k->view.shape[1];
    mt_tensor *gq = in_groups(q, groups), *gk = in_groups(k, groups), *gv = in_groups(v, groups);
    mt_tensor *y = gq && gk && gv ? attend(gq, gk, gv, o) : NULL;
    mt_release(gq), mt_release(gk), mt_release(gv);
    if (y) mt_set(&y, mt_reshape(y, MT_SHAPE(s[0], s[1], s[2], v->view.shape[3])));
    return y;
}

mt_tensor *mti_math_attention(mt_tensor *q, mt_tensor *k, mt_tensor *v, const mti_math_options *o)
{
    if (!mti_check_dropout("math_attention", o->dropout) || !mti_given(q, "math_attention", "q") ||
        !mti_given(k, "math_attention", "k") || !mti_given(v, "math_attention", "v") ||
        !mti_check_heads("math_attention", &q->view, &k->view, &v->view))
        return NULL;
    bool grouped = q->view.shape[1] != k->view.shape[1] && k->view.shape[1] > 0;
    return (grouped ? attend_in_groups : attend)(q, k, v, o);
}

mt_tensor *mt_math_attention(mt_tensor *q, mt_tensor *k, mt_tensor *v, double scale, bool causal,
                             double dropout)
{
    return mti_math_attention(
        q, k, v, &(mti_math_options){.scale = scale, .causal = causal, .dropout = dropout});
}

mt_tensor *mt_math_attention_capped(mt_tensor *q, mt_tensor *k, mt_tensor *v, double scale,
                                    double cap, bool causal, double dropout)
{
    if (!(cap > 0) || isinf(cap))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "math_attention_capped: cap is %g; need a positive number", cap);
    return mti_math_attention(
        q, k, v,
        &(mti_math_options){.scale = scale, .cap = cap, .causal = causal, .dropout = dropout});
}
