/* loss.c: embedding, cross_entropy in two forms, and mse. */
#include <string.h>
#include "ops/ops.h"

/* ---- embedding: y = w[index];  index [..] i64, w [rows,n] -> y [..,n]
 * dw[r] = sum of dy where index = r, and 0 for the row of padding; keeps the indices */

static bool embedding_shape(mti_call *c)
{
    const mti_view *index = mti_in(c, 0), *w = mti_in(c, 1);
    char text[MTI_SHAPE_TEXT];
    if (!mti_need_i64(c, 0) || !mti_need_float(c, 1)) return false;
    if (w->rank != 2 || index->rank >= MT_MAX_RANK)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "embedding: w is %s, index has rank %d; need w "
                             "[rows,n] and rank %d at most",
                             mti_shape_text(text, w->rank, w->shape), index->rank, MT_MAX_RANK - 1);
    int64_t shape[MT_MAX_RANK];
    memcpy(shape, index->shape, sizeof shape);
    shape[index->rank] = w->shape[1];
    return mti_out_set(c, 0, w->dtype, index->rank + 1, shape);
}

/* Whether w has only some rows of the table. */
static bool has_part(const mti_call *c) { return c->params->embedding.rows > 0; }

/* *own: [n] indices into the rows that w has; MTI_NO_ROW for others. */
static bool own_rows(mti_call *c, const mti_view *index, int64_t rows, mti_view *own)
{
    int64_t first = c->params->embedding.first, all = c->params->embedding.rows;
    *own = mti_flat(index);
    return !has_part(c) || (mti_scratch(c, c->k->own_rows_scratch(c->ctx, own), &own->data) &&
                            c->k->own_rows(c->ctx, first, rows, all, index, own));
}

static bool embedding_forward(mti_call *c)
{
    const mti_view *index = mti_dense(c, mti_in(c, 0)), *w = mti_dense_rows(c, mti_in(c, 1));
    if (!index || !w) return false;
    mti_view i1, y2 = mti_as_rows(mti_out(c, 0));
    return own_rows(c, index, w->shape[0], &i1) &&
           c->k->embedding(c->ctx, has_part(c), &i1, w, &y2);
}

/* The row of padding, if this rank has it. */
static bool clear_padding(const mti_call *c, const mti_view *dw)
{
    int64_t row = c->params->embedding.padding - c->params->embedding.first;
    if (!c->params->embedding.padded || row < 0 || row >= dw->shape[0]) return true;
    mti_view padding = mti_range(dw, 0, row, 1);
    return c->k->fill(c->ctx, &padding, 0);
}

static bool embedding_backward(mti_call *c)
{
    const mti_view *index = mti_dense(c, mti_saved(c, MTI_IN0)), *dy = mti_dense(c, mti_dout(c)),
                   *dw = mti_din(c, 1);
    if (!index || !dy || !dw) return false;
    mti_view i1, dy2 = mti_as_rows(dy);
    void *scratch;
    return own_rows(c, index, dw->shape[0], &i1) &&
           mti_scratch(c, c->k->embedding_backward_scratch(c->ctx, &i1, dw), &scratch) &&
           c->k->embedding_backward(c->ctx, has_part(c), &i1, &dy2, dw, scratch) &&
           clear_padding(c, dw);
}

const mti_op_code mti_code_embedding = {embedding_shape, embedding_forward, embedding_backward};

static bool check_part(const mt_tensor *w, int64_t first, int64_t rows)
{
    if (first >= 0 && rows > 0 && w->view.rank > 0 && w->view.shape[0] <= INT64_MAX - first)
        return true;
    return mti_fail_bool(MT_ERR_ARGUMENT,
                         "embedding: rows from %lld on of %lld; need 0 or more, of at least 1",
                         (long long)first, (long long)rows);
}

mt_tensor *mti_embedding_part(mt_tensor *index, mt_tensor *w, int64_t first, int64_t rows,
                              const mt_embedding_options *options)
{
    const mt_embedding_options o = options ? *options : (mt_embedding_options){0};
    if (!mti_given(w, "embedding", "w") || !mti_given(index, "embedding", "the index")) return NULL;
    if ((first || rows) && !check_part(w, first, rows)) return NULL;
    int64_t all = rows ? rows : w->view.rank ? w->view.shape[0] : 0;
    if (o.padded && (o.padding < 0 || o.padding >= all))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "embedding: padding is row %lld; the table has rows 0 to %lld",
                             (long long)o.padding, (long long)all - 1);
    const mti_params params = {.embedding = {first, rows, o.padding, o.padded}};
    return mti_op2(&mti_op_embedding, &params, index, w);
}

mt_tensor *mt_embedding(mt_tensor *index, mt_tensor *w, const mt_embedding_options *options)
{
    return mti_embedding_part(index, w, 0, 0, options);
}

/* ---- cross_entropy: loss = mean over kept rows of -logp[row, target], logp = log_softmax(logits)
 * logits [..,v], target [..] i64 -> scalar; keeps logp [..,v] and the targets
 * dlogits = dloss (exp(logp) - onehot(target)) / kept rows, 0 on ignored rows */

/* The shape rule of both forms of the loss. rank, shape and dtype are those of aux 0. */
static bool entropy_shape(mti_call *c, int rank, mt_dtype dtype)
{
    const mti_view *x = mti_in(c, 0);
    c->aux_always[0] = true;
    return mti_out_set(c, 0, x->dtype, 0, x->shape) && mti_aux_set(c, 0, dtype, rank, x->shape);
}

static bool logits_fit_targets(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *t = mti_in(c, 1);
    char tx[MTI_SHAPE_TEXT], tt[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0) || !mti_need_i64(c, 1)) return false;
    bool fits = x->rank >= 1 && x->rank == t->rank + 1;
    for (int d = 0; fits && d < t->rank; d++) fits = x->shape[d] == t->shape[d];
    return fits ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: logits are %s, target is %s; need [..,v] and [..]",
                         c->op->name, mti_shape_text(tx, x->rank, x->shape),
                         mti_shape_text(tt, t->rank, t->shape));
}

static bool cross_entropy_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    return logits_fit_targets(c) && entropy_shape(c, x->rank, x->dtype);
}

static bool cross_entropy_forward(mti_call *c)
{
    const mti_view *x = mti_dense(c, mti_in(c, 0)), *t = mti_dense(c, mti_in(c, 1));
    if (!x || !t) return false;
    mti_view x2 = mti_as_rows(x), t1 = mti_flat(t), logp = mti_as_rows(mti_aux(c, 0));
    return c->k->cross_entropy(c->ctx, c->params->loss.ignore, &x2, &t1, &logp, mti_out(c, 0));
}

static bool cross_entropy_backward(mti_call *c)
{
    const mti_view *t = mti_dense(c, mti_saved(c, MTI_IN1)), *dx = mti_din(c, 0);
    if (!t || !dx) return false;
    mti_view logp = mti_as_rows(mti_saved(c, MTI_AUX0)), t1 = mti_flat(t), dx2 = mti_as_rows(dx);
    return c->k->cross_entropy_backward(c->ctx, c->params->loss.ignore, &logp, &t1, mti_dout(c),
                                        &dx2);
}

const mti_op_code mti_code_cross_entropy = {cross_entropy_shape, cross_entropy_forward,
                                            cross_entropy_backward};
mt_tensor *mt_cross_entropy(mt_tensor *logits, mt_tensor *target, int64_t ignore)
{
    return mt_cross_entropy_with(logits, target, ignore, NULL);
}

/* ---- cross_entropy_lse: the same loss; keeps the logits and each row's log-sum-exp instead of
 * logp. logits [..,v], target [..] i64 -> scalar; lse [..] in f32 (f64 for f64)
 * dlogits = dloss (exp(logits - lse) - onehot(target)) / kept rows, 0 on ignored rows
 * 4 bytes a row more are kept, and [..,v] is neither written in forward nor held beside the logits.
 * As a sum over the rows: not divided by the kept rows, and in the dtype of lse. */

static bool cross_entropy_lse_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    mt_dtype stats = x->dtype == MT_F64 ? MT_F64 : MT_F32;
    return logits_fit_targets(c) && entropy_shape(c, x->rank - 1, stats) &&
           (!c->params->loss.sum || mti_out_set(c, 0, stats, 0, x->shape));
}

/* Sums all rows; rows that are not counted are 0. */
static bool sum_rows(mti_call *c, const mti_view *each)
{
    void *scratch;
    mti_view y = {.data = mti_out(c, 0)->data, .dtype = each->dtype, .rank = 1, .shape = {1}};
    return mti_scratch(c, c->k->sum_scratch(c->ctx, each, &y), &scratch) &&
           c->k->sum(c->ctx, 1, each, &y, scratch);
}

static bool cross_entropy_lse_forward(mti_call *c)
{
    const mti_view *x = mti_dense(c, mti_in(c, 0)), *t = mti_dense(c, mti_in(c, 1));
    if (!x || !t) return false;
    mti_view x2 = mti_as_rows(x), t1 = mti_flat(t), lse = mti_flat(mti_aux(c, 0));
    mt_tensor *each = mti_temp(c, lse.dtype, 1, t1.shape);
    /* the mean is made for a sum, too, because it checks the targets */
    return each &&
           c->k->entropy_rows(c->ctx, c->params->loss.ignore, &x2, &t1, &lse, &each->view) &&
           c->k->counted_mean(c->ctx, c->params->loss.ignore, x2.shape[1], &t1, &each->view,
                              mti_out(c, 0)) &&
           (!c->params->loss.sum || sum_rows(c, &each->view));
}

static bool cross_entropy_lse_backward(mti_call *c)
{
    const mti_view *x = mti_dense(c, mti_saved(c, MTI_IN0)), *dx = mti_din(c, 0),
                   *t = mti_dense(c, mti_saved(c, MTI_IN1));
    if (!x || !t || !dx) return false;
    mti_view lse = mti_flat(mti_saved(c, MTI_AUX0)), x2 = mti_as_rows(x), t1 = mti_flat(t),
             dx2 = mti_as_rows(dx);
    mt_tensor *scale = mti_temp(c, lse.dtype, 0, t1.shape);
    return scale &&
           (c->params->loss.sum ? c->k->copy(c->ctx, mti_dout(c), &scale->view)
                                : c->k->counted_mean(c->ctx, c->params->loss.ignore, x2.shape[1],
                                                     &t1, mti_dout(c), &scale->view)) &&
           c->k->entropy_rows_backward(c->ctx, c->params->loss.ignore, 0, &x2, &t1, &lse,
                                       &scale->view, &dx2);
}

const mti_op_code mti_code_cross_entropy_lse = {cross_entropy_lse_shape, cross_entropy_lse_forward,
                                                cross_entropy_lse_backward};
mt_tensor *mt_cross_entropy_with(mt_tensor *logits, mt_tensor *target, int64_t ignore,
                                 const mt_cross_entropy_options *options)
{
    const mt_cross_entropy_options o = options ? *options : (mt_cross_entropy_options){0};
    if (o.sum && !o.keep_logits)
        return mti_fail_null(MT_ERR_ARGUMENT, "cross_entropy: sum without keep_logits; set both");
    const mti_params p = {.loss = {.ignore = ignore, .sum = o.sum}};
    return mti_op2(o.keep_logits ? &mti_op_cross_entropy_lse : &mti_op_cross_entropy, &p, logits,
                   target);
}

/* ---- mse: loss = mean((x - y)^2);  dx = 2 (x - y) dloss / n, dy = -dx; keeps x and y */

static bool mse_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *y = mti_in(c, 1);
    char tx[MTI_SHAPE_TEXT], ty[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0) || !mti_need_same_dtype(c, 0, 1)) return false;
    if (!mti_view_same_shape(x, y))
        return mti_fail_bool(MT_ERR_ARGUMENT, "mse: x is %s, y is %s; need one shape",
                             mti_shape_text(tx, x->rank, x->shape),
                             mti_shape_text(ty, y->rank, y->shape));
    return mti_out_set(c, 0, x->dtype, 0, x->shape);
}

static bool mse_forward(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    mt_tensor *diff = mti_temp(c, x->dtype, x->rank, x->shape);
    if (!diff) return false;
    const mti_view *d = &diff->view;
    mti_view in = mti_flat(d), out = *mti_out(c, 0);
    out.rank = 1, out.shape[0] = 1, out.stride[0] = 1;
    void *scratch;
    return c->k->binary(c->ctx, MTI_SUB, x, mti_in(c, 1), d) &&
           c->k->binary(c->ctx, MTI_MUL, d, d, d) &&
           mti_scratch(c, c->k->sum_scratch(c->ctx, &in, &out), &scratch) &&
           c->k->sum(c->ctx, 1.0 / (double)mti_view_count(x), &in, &out, scratch);
}

static bool mse_backward(mti_call *c)
{
    const mti_view *x = mti_saved(c, MTI_IN0), *y = mti_saved(c, MTI_IN1);
    mti_view g = mti_broadcast_view(mti_dout(c), x->rank, x->shape);
    double n = (double)mti_view_count(x);
    for (int i = 0; i < 2; i++) {
        if (!mti_wants(c, i)) continue;
        const mti_view *d = mti_din(c, i);
        if (!d || !c->k->binary(c->ctx, MTI_SUB, i ? y : x, i ? x : y, d) ||
            !c->k->unary(c->ctx, MTI_UNARY_affine, 2 / n, 0, d, d) ||
            !c->k->binary(c->ctx, MTI_MUL, d, &g, d))
            return false;
    }
    return true;
}

const mti_op_code mti_code_mse = {mse_shape, mse_forward, mse_backward};
mt_tensor *mt_mse(mt_tensor *x, mt_tensor *y) { return mti_op2(&mti_op_mse, NULL, x, y); }
