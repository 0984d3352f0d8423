/* rope.c: rotary positions (Su et al. 2021), as in LLaMA and Hugging Face's models.
 *   x, y [b,a,s,d], d even; row p is at position start + p
 *   y = (x1 cos - x2 sin, x2 cos + x1 sin), x1 and x2 being the halves of a row, the angle of pair
 *   i being (start + p) theta^(-2i/d)
 * YaRN turns the later pairs slower. dx: dy rotated back. Nothing is kept: backward computes the
 * angles again. */
#include <float.h>
#include "ops/ops.h"

#define MAX_POSITION ((int64_t)1 << 31)

static bool rope_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    char text[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0)) return false;
    if (x->rank != 4 || x->shape[3] % 2 != 0)
        return mti_fail_bool(MT_ERR_ARGUMENT, "rope: x is %s; need [b,a,s,d] with an even d",
                             mti_shape_text(text, x->rank, x->shape));
    int64_t start = c->params->rope.start;
    if (start < 0 || start > MAX_POSITION - x->shape[2])
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "rope: %lld positions from %lld on; need all in [0, %lld)",
                             (long long)x->shape[2], (long long)start, (long long)MAX_POSITION);
    return mti_out_like(c, x);
}

static bool rotate(mti_call *c, bool inverse, const mti_view *x, const mti_view *y)
{
    return c->k->rope(c->ctx, &c->params->rope.angles, c->params->rope.start, inverse, x, y);
}

static bool rope_forward(mti_call *c)
{
    const mti_view *x = mti_dense_rows(c, mti_in(c, 0));
    return x && rotate(c, false, x, mti_out(c, 0));
}

static bool is_dense(const mti_view *v)
{
    if (mti_view_is_contiguous(v)) return true;
    mti_view inside = mti_heads_inside(v);
    for (int d = 0; d < 4; d++)
        if (v->shape[d] != 1 && v->stride[d] != inside.stride[d]) return false;
    return true;
}

/* In dy's memory if dy has no other reference; else with x's layout, so that merging heads in
 * backward is a view if splitting them in forward was one. */
static const mti_view *din_like_x(mti_call *c)
{
    const mti_view *x = &c->in_spec[0];
    mt_tensor *g = c->dout[0];
    if (mti_tensor_is_exclusive(g) && g->view.dtype == x->dtype && is_dense(&g->view)) {
        mti_give_din(c, 0, mt_retain(g));
        return &g->view;
    }
    return x->stride[1] < x->stride[2] ? mti_din_heads_inside(c, 0) : mti_din(c, 0);
}

static bool rope_backward(mti_call *c)
{
    const mti_view *dy = mti_dense_rows(c, mti_dout(c)), *dx = din_like_x(c);
    return dy && dx && rotate(c, true, dy, dx);
}

const mti_op_code mti_code_rope = {rope_shape, rope_forward, rope_backward};

mt_tensor *mt_rope_with(mt_tensor *x, int64_t start, const mt_rope_options *o)
{
    const double theta = o ? o->theta : 0;
    if (!(theta > 0 && theta <= DBL_MAX))
        return mti_fail_null(MT_ERR_ARGUMENT, "rope: theta is %g; need a positive number", theta);
    if (o->factor != 0 && !(o->factor >= 1 && o->factor <= DBL_MAX && o->low < o->high))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "rope: factor is %g, from pair %g to %g; need 1 or more, from a "
                             "lower to a higher pair",
                             o->factor, o->low, o->high);
    const mti_rope angles = {o->theta, o->factor, o->low, o->high};
    return mti_op1(&mti_op_rope, &(mti_params){.rope = {start, angles}}, x);
}

mt_tensor *mt_rope(mt_tensor *x, int64_t start, double theta)
{
    return mt_rope_with(x, start, &(mt_rope_options){.theta = theta});
}
