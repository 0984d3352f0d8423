/* arithmetic.c: add, sub, mul and div, broadcasting as NumPy does.
 *
 * Broadcast inputs are read with stride 0; the gradient of an input that was broadcast is the
 * gradient of the output summed over the dimensions it was repeated along. */
#include "ops/ops.h"

/* v's extent in dimension d of a shape of `rank`, aligned at the end; 1 if v has fewer. */
static int64_t extent(const mti_view *v, int rank, int d)
{
    return d < rank - v->rank ? 1 : v->shape[d - (rank - v->rank)];
}

static bool need_broadcastable(mti_call *c, int i, int j)
{
    const mti_view *a = &c->in_spec[i], *b = &c->in_spec[j];
    int rank = a->rank > b->rank ? a->rank : b->rank;
    for (int d = 0; d < rank; d++) {
        int64_t m = extent(a, rank, d), n = extent(b, rank, d);
        char ta[MTI_SHAPE_TEXT], tb[MTI_SHAPE_TEXT];
        if (m != n && m != 1 && n != 1)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "%s: %s is %s, %s is %s; need equal extents, or 1, counted from "
                                 "the end",
                                 c->op->name, c->op->in[i], mti_shape_text(ta, a->rank, a->shape),
                                 c->op->in[j], mti_shape_text(tb, b->rank, b->shape));
    }
    return true;
}

bool mti_shape_broadcast(mti_call *c, mt_dtype dtype)
{
    int rank = 0;
    for (int i = 0; i < c->n_in; i++) {
        for (int j = 0; j < i; j++)
            if (!need_broadcastable(c, j, i)) return false;
        if (c->in_spec[i].rank > rank) rank = c->in_spec[i].rank;
    }
    int64_t shape[MT_MAX_RANK];
    for (int d = 0; d < rank; d++) {
        shape[d] = 1;
        for (int i = 0; i < c->n_in && shape[d] == 1; i++)
            shape[d] = extent(&c->in_spec[i], rank, d);
    }
    return mti_out_set(c, 0, dtype, rank, shape);
}

/* a [..], b [..] -> y */
static bool broadcast_shape(mti_call *c)
{
    return mti_need_float(c, 0) && mti_need_same_dtype(c, 0, 1) &&
           mti_shape_broadcast(c, c->in_spec[0].dtype);
}

/* y = a op b, both broadcast to y's shape. */
static bool apply(mti_call *c, mti_binary op, const mti_view *a, const mti_view *b,
                  const mti_view *y)
{
    mti_view va = mti_broadcast_view(a, y->rank, y->shape);
    mti_view vb = mti_broadcast_view(b, y->rank, y->shape);
    return c->k->binary(c->ctx, op, &va, &vb, y);
}

static bool forward(mti_call *c, mti_binary op)
{
    return apply(c, op, mti_in(c, 0), mti_in(c, 1), mti_out(c, 0));
}

const mti_view *mti_open_din(mti_call *c, int i, mt_tensor **full)
{
    const mti_view *dy = mti_dout(c);
    *full = NULL;
    if (mti_view_same_shape(&c->in_spec[i], dy)) return mti_din(c, i);
    *full = mti_temp(c, dy->dtype, dy->rank, dy->shape);
    return *full ? &(*full)->view : NULL;
}

bool mti_close_din(mti_call *c, int i, mt_tensor *full)
{
    return !full || mti_reduce_to_din(c, i, full);
}

/* din i = dy op other, summed over the dimensions along which input i was broadcast */
static bool binary_din(mti_call *c, int i, mti_binary op, const mti_view *other)
{
    mt_tensor *full;
    const mti_view *d = mti_open_din(c, i, &full);
    return d && apply(c, op, mti_dout(c), other, d) && mti_close_din(c, i, full);
}

/* add: y = a + b;  da = dy, db = dy */
static bool add_forward(mti_call *c) { return forward(c, MTI_ADD); }
static bool add_backward(mti_call *c)
{
    return (!mti_wants(c, 0) || mti_reduce_to_din(c, 0, c->dout[0])) &&
           (!mti_wants(c, 1) || mti_reduce_to_din(c, 1, c->dout[0]));
}
const mti_op_code mti_code_add = {broadcast_shape, add_forward, add_backward};
mt_tensor *mt_add(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_add, NULL, a, b); }

/* sub: y = a - b;  da = dy, db = -dy */
static bool sub_forward(mti_call *c) { return forward(c, MTI_SUB); }
static bool sub_backward(mti_call *c)
{
    if (mti_wants(c, 0) && !mti_reduce_to_din(c, 0, c->dout[0])) return false;
    if (!mti_wants(c, 1)) return true;
    mt_tensor *full;
    const mti_view *d = mti_open_din(c, 1, &full);
    return d && c->k->unary(c->ctx, MTI_UNARY_affine, -1, 0, mti_dout(c), d) &&
           mti_close_din(c, 1, full);
}
const mti_op_code mti_code_sub = {broadcast_shape, sub_forward, sub_backward};
mt_tensor *mt_sub(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_sub, NULL, a, b); }

/* mul: y = a b;  da = dy b, db = dy a */
static bool mul_forward(mti_call *c) { return forward(c, MTI_MUL); }
static bool mul_backward(mti_call *c)
{
    return (!mti_wants(c, 0) || binary_din(c, 0, MTI_MUL, mti_saved(c, MTI_IN1))) &&
           (!mti_wants(c, 1) || binary_din(c, 1, MTI_MUL, mti_saved(c, MTI_IN0)));
}
const mti_op_code mti_code_mul = {broadcast_shape, mul_forward, mul_backward};
mt_tensor *mt_mul(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_mul, NULL, a, b); }

/* div: y = a / b;  da = dy / b, db = -dy (a / b) / b */
static bool div_forward(mti_call *c) { return forward(c, MTI_DIV); }
static bool div_backward(mti_call *c)
{
    const mti_view *b = mti_saved(c, MTI_IN1), *dy = mti_dout(c);
    if (mti_wants(c, 0) && !binary_din(c, 0, MTI_DIV, b)) return false;
    if (!mti_wants(c, 1)) return true;
    mt_tensor *full;
    const mti_view *d = mti_open_din(c, 1, &full);
    return d && apply(c, MTI_DIV, mti_saved(c, MTI_IN0), b, d) && apply(c, MTI_DIV, d, b, d) &&
           apply(c, MTI_MUL, dy, d, d) && c->k->unary(c->ctx, MTI_UNARY_affine, -1, 0, d, d) &&
           mti_close_din(c, 1, full);
}
const mti_op_code mti_code_div = {broadcast_shape, div_forward, div_backward};
mt_tensor *mt_div(mt_tensor *a, mt_tensor *b) { return mti_op2(&mti_op_div, NULL, a, b); }
