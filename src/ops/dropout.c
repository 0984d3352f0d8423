/* dropout.c: y = mask x / (1 - p), mask drawn from the device's generator.
 *   x, y: any shape, floating; mask: bool, one byte per element
 * dx = mask dy / (1 - p): needs only the mask. */
#include "ops/ops.h"

static bool dropout_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    c->n_draws = (uint64_t)mti_view_count(x);
    c->draw.p = c->params->dropout.p;
    return mti_shape_same(c) && mti_aux_set(c, 0, MT_BOOL, x->rank, x->shape);
}

static bool dropout_forward(mti_call *c)
{
    return c->k->dropout(c->ctx, c->draw.p, c->draw.seed, c->draw.offset, mti_in(c, 0),
                         mti_out(c, 0), mti_aux(c, 0));
}

static bool dropout_backward(mti_call *c)
{
    const mti_view *dx = mti_din_reuse(c, 0);
    return dx && c->k->dropout_backward(c->ctx, c->params->dropout.p, mti_saved(c, MTI_AUX0),
                                        mti_dout(c), dx);
}

const mti_op_code mti_code_dropout = {dropout_shape, dropout_forward, dropout_backward};

mt_tensor *mt_dropout(mt_tensor *x, double p)
{
    if (!(p >= 0 && p < 1))
        return mti_fail_null(MT_ERR_ARGUMENT, "dropout: p is %g; need 0 <= p < 1", p);
    if (p == 0 && x) return mt_retain(x);
    return mti_op1(MTI_OP_dropout, &(mti_params){.dropout = {.p = p}}, x);
}
