/* gather.c: y = the elements of x at the given indices along one dimension.
 *   x: any dtype; index: i64, x's rank, in the other dimensions no longer than x; y: index's shape
 *   y[i,j] = x[i, index[i,j]] for the last of two dimensions
 * dx = each element of dy added at its index, 0 elsewhere
 * saved: the index, and not x. */
#include "ops/ops.h"

static bool gather_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0), *index = mti_in(c, 1);
    int dim = c->params->gather.dim;
    char tx[MTI_SHAPE_TEXT], ti[MTI_SHAPE_TEXT];
    if (!mti_need_i64(c, 1)) return false;
    bool fits = x->rank == index->rank;
    for (int d = 0; fits && d < x->rank && mti_view_count(index) > 0; d++)
        fits = d == dim || index->shape[d] <= x->shape[d];
    if (!fits)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "gather: x is %s, index is %s; need one rank, and an index no longer "
                             "than x but in dimension %d",
                             mti_shape_text(tx, x->rank, x->shape),
                             mti_shape_text(ti, index->rank, index->shape), dim);
    return mti_out_set(c, 0, x->dtype, index->rank, index->shape);
}

static bool gather_forward(mti_call *c)
{
    const mti_view *index = mti_dense(c, mti_in(c, 1));
    return index && c->k->gather(c->ctx, c->params->gather.dim, mti_in(c, 0), index, mti_out(c, 0));
}

bool mti_scatter_to_din(mti_call *c, int dim, unsigned slot)
{
    const mti_view *index = mti_dense(c, mti_saved(c, slot)), *dx = mti_din(c, 0);
    if (!index || !dx) return false;
    return mti_view_count(index) ? c->k->gather_backward(c->ctx, dim, index, mti_dout(c), dx)
                                 : c->k->fill(c->ctx, dx, 0);
}

static bool gather_backward(mti_call *c)
{
    return mti_scatter_to_din(c, c->params->gather.dim, MTI_IN1);
}

const mti_op_code mti_code_gather = {gather_shape, gather_forward, gather_backward};

mt_tensor *mt_gather(mt_tensor *x, int dim, mt_tensor *index)
{
    if (!mti_given(x, "gather", "x") || !mti_dim("gather", x->view.rank, &dim)) return NULL;
    return mti_op2(&mti_op_gather, &(mti_params){.gather = {dim}}, x, index);
}
