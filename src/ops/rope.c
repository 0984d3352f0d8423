/* rope.c: rotary positions (Su et al. 2021), as in LLaMA and Hugging Face's models.
 *   x, y [b,a,s,d], d even; row p is at position start + p
 *   y = (x1 cos - x2 sin, x2 cos + x1 sin), x1 and x2 being the halves of a row, the angle of pair
 *   i being (start + p) theta^(-2i/d)
 * Scaled angles (mt_rope_options) turn the later pairs slower. dx: dy rotated back. Nothing is
 * kept: backward computes the angles again. */
#include <float.h>
#include "ops/ops.h"

static bool rope_shape(mti_call *c)
{
    const mti_view *x = mti_in(c, 0);
    char text[MTI_SHAPE_TEXT];
    if (!mti_need_float(c, 0)) return false;
    if (x->rank != 4 || x->shape[3] % 2 != 0)
        return mti_fail_bool(MT_ERR_ARGUMENT, "rope: x is %s; need [b,a,s,d] with an even d",
                             mti_shape_text(text, x->rank, x->shape));
    int64_t start = c->params->rope.start;
    return (start >= 0 && start <= ((int64_t)1 << 31) - x->shape[2] && mti_out_like(c, x)) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "rope: %lld positions from %lld on; need all in [0, 2147483648)",
                         (long long)x->shape[2], (long long)start);
}

static bool rope_forward(mti_call *c)
{
    const mti_view *x = mti_dense_rows(c, mti_in(c, 0));
    const mti_params *p = c->params;
    return x && c->k->rope(c->ctx, &p->rope.angles, p->rope.start, false, x, mti_out(c, 0));
}

/* In dy's memory if dy has no other reference; else with x's layout, so that merging heads in
 * backward is a view if splitting them in forward was one. */
static const mti_view *din_like_x(mti_call *c)
{
    const mti_view *x = &c->in_spec[0];
    mt_tensor *g = c->dout[0];
    const mti_view by_row = mti_permuted(&g->view, (const int[]){0, 2, 1, 3});
    bool dense = mti_view_is_contiguous(&g->view) || mti_view_is_contiguous(&by_row);
    if (mti_tensor_is_exclusive(g) && g->view.dtype == x->dtype && dense) {
        mti_give_din(c, 0, mt_retain(g));
        return &g->view;
    }
    return x->stride[1] < x->stride[2] ? mti_din_heads_inside(c, 0) : mti_din(c, 0);
}

static bool rope_backward(mti_call *c)
{
    const mti_view *dy = mti_dense_rows(c, mti_dout(c)), *dx = din_like_x(c);
    const mti_params *p = c->params;
    return dy && dx && c->k->rope(c->ctx, &p->rope.angles, p->rope.start, true, dy, dx);
}

const mti_op_code mti_code_rope = {rope_shape, rope_forward, rope_backward};

mt_tensor *mt_rope_with(mt_tensor *x, int64_t start, const mt_rope_options *o)
{
    if (!mti_given(x, "rope", "x")) return NULL;
    if (!o) return mti_fail_null(MT_ERR_ARGUMENT, "rope: the options are NULL");
    const mti_rope r = {o->theta,   o->factor, o->low, o->high, o->scale == 0 ? 1 : o->scale,
                        o->by_angle};
    if (!(r.theta > 0 && r.theta <= DBL_MAX))
        return mti_fail_null(MT_ERR_ARGUMENT, "rope: theta is %g; need a positive number", r.theta);
    if (!(r.scale > 0 && r.scale <= DBL_MAX))
        return mti_fail_null(MT_ERR_ARGUMENT, "rope: scale is %g; need a positive number", r.scale);
    if (r.factor != 0 && !(r.factor >= 1 && r.low < r.high))
        return mti_fail_null(
            MT_ERR_ARGUMENT,
            "rope: factor is %g, from %g to %g; need 1 or more, and low below high", r.factor,
            r.low, r.high);
    return mti_op1(&mti_op_rope, &(mti_params){.rope = {start, r}}, x);
}

mt_tensor *mt_rope(mt_tensor *x, int64_t start, double theta)
{
    return mt_rope_with(x, start, &(mt_rope_options){.theta = theta});
}
