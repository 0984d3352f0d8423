/* max.c: the largest element over chosen dimensions.
 *   x: any shape, floating; y and index: x without those dimensions (or with extent 1 there)
 * dx = dy at the first of the largest elements, 0 elsewhere (as torch.max(dim); amax would share
 * it among equals)
 * saved: its index, an i64 per element of y, and not x. */
#include "ops/ops.h"

/* x with the reduced dimensions last. */
static mti_view reduced_last(const mti_call *c, const mti_view *x)
{
    mti_view v = *x;
    int to = 0;
    for (unsigned reduced = 0; reduced <= 1; reduced++)
        for (int d = 0; d < x->rank; d++) {
            if ((c->params->reduce.dims >> d & 1) != reduced) continue;
            v.shape[to] = x->shape[d];
            v.stride[to++] = x->stride[d];
        }
    return v;
}

/* y, dy or the index without the extents of 1 that `keep` adds. */
static mti_view without_ones(const mti_call *c, const mti_view *y)
{
    mti_view v = *y;
    if (!c->params->reduce.keep) return v;
    v.rank = 0;
    for (int d = 0; d < y->rank; d++) {
        if (c->params->reduce.dims >> d & 1) continue;
        v.shape[v.rank] = y->shape[d];
        v.stride[v.rank++] = y->stride[d];
    }
    return v;
}

static bool max_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    char text[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0)) return false;
    for (int d = 0; d < x->rank; d++)
        if ((c->params->reduce.dims >> d & 1) && x->shape[d] == 0)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "max: x is %s; need an element in dimension %d to choose from",
                                 mti_shape_text(text, x->rank, x->shape), d);
    int64_t shape[MT_MAX_RANK];
    int rank = mti_reduced_shape(c, shape);
    return mti_out_set(c, 0, x->dtype, rank, shape) && mti_aux_set(c, 0, MT_I64, rank, shape);
}

static bool max_forward(mti_call *c)
{
    const mti_view *index = mti_aux(c, 0);
    mti_view x = reduced_last(c, mti_in(c, 0)), y = without_ones(c, mti_out(c, 0)), index_view;
    if (index) index_view = without_ones(c, index);
    return c->k->max(c->ctx, &x, &y, index ? &index_view : NULL);
}

static bool max_backward(mti_call *c)
{
    const mti_view *din = mti_din(c, 0);
    if (!din) return false;
    mti_view dx = reduced_last(c, din), dy = without_ones(c, mti_dout(c)),
             index = without_ones(c, mti_saved(c, MTI_AUX0));
    return c->k->max_backward(c->ctx, &index, &dy, &dx);
}

const mti_op_code mti_code_max = {max_shape, max_forward, max_backward};

mt_tensor *mt_max(mt_tensor *x, int n_dims, const int *dims, bool keep)
{
    return mti_reduce(&mti_op_max, x, n_dims, dims, keep);
}
