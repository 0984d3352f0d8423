/* where.c: y = mask ? a : b, broadcasting as NumPy does.
 *   mask: bool; a, b, y: floating
 * da = dy where mask is true, db = dy where it is false, else 0; summed where a or b was broadcast
 * saved: the mask, a byte per element, and neither a nor b. */
#include "ops/ops.h"

static bool where_shape(mti_call *c)
{
    if (c->in_spec[0].dtype != MT_BOOL)
        return mti_fail_bool(MT_ERR_ARGUMENT, "where: mask is %s; need bool",
                             mt_dtype_name(c->in_spec[0].dtype));
    return mti_need_float(c, 1) && mti_need_same_dtype(c, 1, 2) &&
           mti_shape_broadcast(c, c->in_spec[1].dtype);
}

static bool where_forward(mti_call *c)
{
    const mti_view *y = mti_out(c, 0);
    mti_view in[3];
    for (int i = 0; i < 3; i++) in[i] = mti_broadcast_view(mti_in(c, i), y->rank, y->shape);
    return c->k->where(c->ctx, &in[0], &in[1], &in[2], y);
}

/* din i (1: a, 2: b): dy, or 0 where the other input was chosen. */
static bool where_din(mti_call *c, int i)
{
    const mti_view *dy = mti_dout(c), *saved = mti_saved(c, MTI_IN0);
    mti_view mask = mti_broadcast_view(saved, dy->rank, dy->shape);
    mt_tensor *full;
    const mti_view *d = mti_open_din(c, i, &full);
    return d && c->k->where(c->ctx, &mask, i == 1 ? dy : NULL, i == 2 ? dy : NULL, d) &&
           mti_close_din(c, i, full);
}

static bool where_backward(mti_call *c)
{
    return (!mti_wants(c, 1) || where_din(c, 1)) && (!mti_wants(c, 2) || where_din(c, 2));
}

const mti_op_code mti_code_where = {where_shape, where_forward, where_backward};

mt_tensor *mt_where(mt_tensor *mask, mt_tensor *a, mt_tensor *b)
{
    return mti_op3(&mti_op_where, NULL, mask, a, b);
}

mt_tensor *mt_masked_fill(mt_tensor *x, mt_tensor *mask, double value)
{
    if (!mti_given(x, "masked_fill", "x") || !mti_given(mask, "masked_fill", "mask")) return NULL;
    mt_tensor *fill = mt_full(mt_device_of(x), mt_dtype_of(x), 0, NULL, value);
    mt_tensor *y = fill ? mt_where(mask, fill, x) : NULL;
    mt_release(fill);
    return y;
}
