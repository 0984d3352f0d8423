/* swiglu.c: y = silu(gate) up (Shazeer 2020).
 *   gate, up, y: one shape, floating, any strides: the halves of one projection come as slices
 * With s = sigmoid(gate):  dgate = dy up s (1 + gate (1 - s)),  dup = dy gate s
 * saved: gate and up. silu(gate), which a product of two ops would keep for dup, is computed again:
 * one tensor in three saved. */
#include "ops/ops.h"

static bool swiglu_shape(mti_call *c)
{
    const mti_view *gate = mti_in(c, 0), *up = mti_in(c, 1);
    char tg[MTI_SHAPE_TEXT], tu[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0) || !mti_need_same_dtype(c, 0, 1)) return false;
    if (!mti_view_same_shape(gate, up))
        return mti_fail_bool(MT_ERR_ARGUMENT, "swiglu: gate is %s, up is %s; need one shape",
                             mti_shape_text(tg, gate->rank, gate->shape),
                             mti_shape_text(tu, up->rank, up->shape));
    return mti_out_like(c, gate);
}

static bool swiglu_forward(mti_call *c)
{
    return c->k->swiglu(c->ctx, mti_in(c, 0), mti_in(c, 1), mti_out(c, 0));
}

static bool swiglu_backward(mti_call *c)
{
    const mti_view *gate = mti_saved(c, MTI_IN0), *up = NULL, *dgate = NULL, *dup = NULL;
    if (mti_wants(c, 0)) {
        up = mti_saved(c, MTI_IN1);
        if (!(dgate = mti_din_reuse(c, 0))) return false;
        if (mti_wants(c, 1) && !(dup = mti_din(c, 1))) return false;
    } else if (!(dup = mti_din_reuse(c, 1))) {
        return false;
    }
    return c->k->swiglu_backward(c->ctx, gate, up, mti_dout(c), dgate, dup);
}

const mti_op_code mti_code_swiglu = {swiglu_shape, swiglu_forward, swiglu_backward};

mt_tensor *mt_swiglu(mt_tensor *gate, mt_tensor *up)
{
    return mti_op2(&mti_op_swiglu, NULL, gate, up);
}
