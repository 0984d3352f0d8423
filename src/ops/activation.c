/* activation.c: element-wise functions of one tensor, one row of backends/unary.def each. What each
 * keeps matters: if the slope follows from the output, keeping the output is often free, because
 * the next linear keeps it as its input. The others keep their input, one tensor more. */
#include "ops/ops.h"

static bool forward(mti_call *c)
{
    return c->k->unary(c->ctx, c->op->code->unary, c->params->scalar.p0, c->params->scalar.p1,
                       mti_in(c, 0), mti_out(c, 0));
}

/* dx from the tensor that the op's row keeps, in dy's memory if dy has no other reference. */
static bool backward(mti_call *c)
{
    const mti_view *kept = c->op->keep[0] ? mti_saved(c, (unsigned)c->op->keep[0]) : NULL;
    const mti_view *dx = mti_din_reuse(c, 0);
    return dx && c->k->unary_backward(c->ctx, c->op->code->unary, c->params->scalar.p0,
                                      c->params->scalar.p1, kept, mti_dout(c), dx);
}

#define CODE(name, unary)                                                                          \
    const mti_op_code mti_code_##name = {mti_shape_same, forward, backward, unary};
#define UNARY(name, cost, y, dx) CODE(name, MTI_UNARY_##name)
#include "backends/unary.def"
CODE(relu_inplace, MTI_UNARY_relu)
CODE(leaky_relu_inplace, MTI_UNARY_leaky_relu)

/* relu: y = max(x, 0);  dx = dy where y > 0 */
mt_tensor *mt_relu(mt_tensor *x) { return mti_op1(&mti_op_relu, NULL, x); }
mt_status mt_relu_inplace(mt_tensor *x) { return mti_apply_inplace(&mti_op_relu_inplace, NULL, x); }

/* leaky_relu: y = x > 0 ? x : slope x;  dx = dy or slope dy. With slope >= 0 the sign of y is the
 * sign of x, so the form in place keeps y. */
static bool check_slope(const char *caller, double slope)
{
    return slope >= 0 ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: slope %g; need 0 or more", caller, slope);
}
mt_tensor *mt_leaky_relu(mt_tensor *x, double slope)
{
    if (!check_slope("leaky_relu", slope)) return NULL;
    return mti_op1(&mti_op_leaky_relu, &(mti_params){.scalar = {slope, 0}}, x);
}
mt_status mt_leaky_relu_inplace(mt_tensor *x, double slope)
{
    if (!check_slope("leaky_relu_inplace", slope)) return mt_last_status();
    return mti_apply_inplace(&mti_op_leaky_relu_inplace, &(mti_params){.scalar = {slope, 0}}, x);
}

/* gelu: y = x Phi(x);  dx = dy (Phi(x) + x phi(x)), Phi and phi of the normal distribution */
mt_tensor *mt_gelu(mt_tensor *x) { return mti_op1(&mti_op_gelu, NULL, x); }

/* gelu_tanh: y = x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3) */
mt_tensor *mt_gelu_tanh(mt_tensor *x) { return mti_op1(&mti_op_gelu_tanh, NULL, x); }

/* silu: y = x s, s = sigmoid(x);  dx = dy s (1 + x (1 - s)) */
mt_tensor *mt_silu(mt_tensor *x) { return mti_op1(&mti_op_silu, NULL, x); }

/* softplus: y = log(1 + e^x);  dx = dy sigmoid(x) */
mt_tensor *mt_softplus(mt_tensor *x) { return mti_op1(&mti_op_softplus, NULL, x); }

/* tanh: dx = dy (1 - y^2) */
mt_tensor *mt_tanh(mt_tensor *x) { return mti_op1(&mti_op_tanh, NULL, x); }

/* sigmoid: dx = dy y (1 - y) */
mt_tensor *mt_sigmoid(mt_tensor *x) { return mti_op1(&mti_op_sigmoid, NULL, x); }

/* exp: dx = dy y */
mt_tensor *mt_exp(mt_tensor *x) { return mti_op1(&mti_op_exp, NULL, x); }

/* log: dx = dy / x */
mt_tensor *mt_log(mt_tensor *x) { return mti_op1(&mti_op_log, NULL, x); }

/* sqrt: dx = dy / (2 y) */
mt_tensor *mt_sqrt(mt_tensor *x) { return mti_op1(&mti_op_sqrt, NULL, x); }

/* reciprocal: y = 1 / x;  dx = -dy y^2 */
mt_tensor *mt_reciprocal(mt_tensor *x) { return mti_op1(&mti_op_reciprocal, NULL, x); }

/* pow: y = x^p;  dx = dy p x^(p-1), 0 for p = 0 */
mt_tensor *mt_pow(mt_tensor *x, double exponent)
{
    return mti_op1(&mti_op_pow, &(mti_params){.scalar = {exponent, 0}}, x);
}

/* abs: y = |x|;  dx = dy where x > 0, -dy where x < 0, 0 at 0 */
mt_tensor *mt_abs(mt_tensor *x) { return mti_op1(&mti_op_abs, NULL, x); }

/* clamp: y = min(max(x, low), high);  dx = dy where low <= x <= high, else 0 */
mt_tensor *mt_clamp(mt_tensor *x, double low, double high)
{
    if (!(low <= high))
        return mti_fail_null(MT_ERR_ARGUMENT, "clamp: low %g, high %g; need low <= high", low,
                             high);
    return mti_op1(&mti_op_clamp, &(mti_params){.scalar = {low, high}}, x);
}

/* affine: y = scale x + shift;  dx = scale dy: nothing of x is needed */
mt_tensor *mt_affine(mt_tensor *x, double scale, double shift)
{
    return mti_op1(&mti_op_affine, &(mti_params){.scalar = {scale, shift}}, x);
}
mt_tensor *mt_add_scalar(mt_tensor *x, double c) { return mt_affine(x, 1, c); }
mt_tensor *mt_mul_scalar(mt_tensor *x, double c) { return mt_affine(x, c, 0); }
