/* reduce.c: sum and mean over chosen dimensions. Nothing is kept: dx is dy repeated, as a view
 * with stride 0 (for a mean, after scaling). */
#include <string.h>
#include "ops/ops.h"

/* y with the reduced dimensions as extents of 1, whether or not `keep` is set. */
static mti_view kept_dims(const mti_call *c, const mti_view *y)
{
    const mti_view *x = &c->in_spec[0];
    mti_view v = {.data = y->data, .dtype = y->dtype, .rank = x->rank};
    int from = 0;
    for (int d = 0; d < x->rank; d++) {
        bool reduced = c->params->reduce.dims >> d & 1;
        v.shape[d] = reduced ? 1 : x->shape[d];
        v.stride[d] = reduced ? 0 : y->stride[from];
        if (!reduced || c->params->reduce.keep) from++;
    }
    return v;
}

int mti_reduced_shape(const mti_call *c, int64_t shape[MT_MAX_RANK])
{
    const mti_view *x = &c->in_spec[0];
    int rank = 0;
    for (int d = 0; d < x->rank; d++) {
        bool reduced = c->params->reduce.dims >> d & 1;
        if (!reduced || c->params->reduce.keep) shape[rank++] = reduced ? 1 : x->shape[d];
    }
    return rank;
}

static bool reduce_shape(mti_call *c)
{
    int64_t shape[MT_MAX_RANK];
    return mti_need_float(c, 0) &&
           mti_out_set(c, 0, c->in_spec[0].dtype, mti_reduced_shape(c, shape), shape);
}

/* 1 for a sum, 1 / (elements summed into one) for a mean */
static double factor(const mti_call *c)
{
    if (c->params->reduce.scale == 1) return 1;
    double n = 1;
    for (int d = 0; d < c->in_spec[0].rank; d++)
        if (c->params->reduce.dims >> d & 1) n *= (double)c->in_spec[0].shape[d];
    return 1 / n;
}

static bool reduce_forward(mti_call *c)
{
    mti_view y = kept_dims(c, mti_out(c, 0));
    void *scratch;
    return mti_scratch(c, c->k->sum_scratch(c->ctx, mti_in(c, 0), &y), &scratch) &&
           c->k->sum(c->ctx, factor(c), mti_in(c, 0), &y, scratch);
}

static bool reduce_backward(mti_call *c)
{
    mt_tensor *g = c->dout[0];
    double f = factor(c);
    if (f != 1) {
        const mti_view *dy = mti_dout(c);
        mt_tensor *scaled = mti_temp(c, dy->dtype, dy->rank, dy->shape);
        if (!scaled || !c->k->unary(c->ctx, MTI_UNARY_affine, f, 0, dy, &scaled->view))
            return false;
        g = scaled;
    }
    mti_view kept = kept_dims(c, &g->view);
    mti_view repeated = mti_broadcast_view(&kept, kept.rank, c->in_spec[0].shape);
    return mti_give_din(c, 0, mti_tensor_view(g, &repeated));
}

const mti_op_code mti_code_sum = {reduce_shape, reduce_forward, reduce_backward};
const mti_op_code mti_code_mean = {reduce_shape, reduce_forward, reduce_backward};

mt_tensor *mti_reduce(const mti_op *op, mt_tensor *x, int n_dims, const int *dims, bool keep)
{
    const char *caller = op->name;
    if (!mti_given(x, caller, "x")) return NULL;
    if (n_dims < 0 || (n_dims > 0 && !dims))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "%s: n_dims is %d, dims is %s; need 0 (all) or more, and a list",
                             caller, n_dims, dims ? "given" : "NULL");
    mti_params p = {.reduce = {.keep = keep, .scale = op == &mti_op_sum}};
    if (n_dims == 0) p.reduce.dims = (1u << x->view.rank) - 1;
    for (int i = 0; i < n_dims; i++) {
        int d = dims[i];
        if (!mti_dim(caller, x->view.rank, &d)) return NULL;
        if (p.reduce.dims >> d & 1)
            return mti_fail_null(MT_ERR_ARGUMENT, "%s: dimension %d is named twice", caller, d);
        p.reduce.dims |= 1u << d;
    }
    return mti_op1(op, &p, x);
}

mt_tensor *mt_sum(mt_tensor *x, int n_dims, const int *dims, bool keep)
{
    return mti_reduce(&mti_op_sum, x, n_dims, dims, keep);
}
mt_tensor *mt_mean(mt_tensor *x, int n_dims, const int *dims, bool keep)
{
    return mti_reduce(&mti_op_mean, x, n_dims, dims, keep);
}
mt_tensor *mt_sum_all(mt_tensor *x) { return mt_sum(x, 0, NULL, false); }
mt_tensor *mt_mean_all(mt_tensor *x) { return mt_mean(x, 0, NULL, false); }
