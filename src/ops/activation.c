/* activation.c: element-wise functions of one tensor. What each keeps is the lesson: those whose
 * slope can be told from their output keep the output, which the next linear keeps anyway; the
 * others keep their input, and that is one tensor more. The scalar maths is in
 * backends/scalar.h. */
#include "ops/ops.h"

static bool forward(mti_call *c, mti_unary op)
{
    return c->k->unary(c->ctx, op, c->params->scalar.p0, 0, mti_in(c, 0), mti_out(c, 0));
}

/* dx = dy op'(kept), in dy's own memory where nobody else looks at it */
static bool backward(mti_call *c, mti_unary op, unsigned slot)
{
    const mti_view *dx = mti_din_reuse(c, 0);
    return dx && c->k->unary_backward(c->ctx, op, c->params->scalar.p0, mti_saved(c, slot),
                                      mti_dout(c), dx);
}

/* relu: y = max(x, 0);  dx = dy where y > 0 */
static bool relu_forward(mti_call *c) { return forward(c, MTI_RELU); }
static bool relu_backward(mti_call *c) { return backward(c, MTI_RELU, MTI_OUT0); }
const mti_op_code mti_code_relu = {mti_shape_same, relu_forward, relu_backward};
const mti_op_code mti_code_relu_inplace = {mti_shape_same, relu_forward, relu_backward};
mt_tensor *mt_relu(mt_tensor *x) { return mti_op1(MTI_OP_relu, NULL, x); }
mt_status mt_relu_inplace(mt_tensor *x)
{
    return mti_apply_inplace(&mti_ops[MTI_OP_relu_inplace], NULL, x);
}

/* leaky_relu: y = x > 0 ? x : slope x;  dx = dy or slope dy. With slope >= 0 the sign of y is the
 * sign of x, so the form in place keeps y. */
static bool leaky_forward(mti_call *c) { return forward(c, MTI_LEAKY_RELU); }
static bool leaky_backward(mti_call *c) { return backward(c, MTI_LEAKY_RELU, MTI_IN0); }
static bool leaky_backward_out(mti_call *c) { return backward(c, MTI_LEAKY_RELU, MTI_OUT0); }
const mti_op_code mti_code_leaky_relu = {mti_shape_same, leaky_forward, leaky_backward};
const mti_op_code mti_code_leaky_relu_inplace = {mti_shape_same, leaky_forward, leaky_backward_out};

static bool check_slope(const char *who, double slope)
{
    return slope >= 0 || mti_fail_bool(MT_ERR_ARGUMENT, "%s: slope %g; need 0 or more", who, slope);
}
mt_tensor *mt_leaky_relu(mt_tensor *x, double slope)
{
    if (!check_slope("leaky_relu", slope)) return NULL;
    return mti_op1(MTI_OP_leaky_relu, &(mti_params){.scalar = {slope, 0}}, x);
}
mt_status mt_leaky_relu_inplace(mt_tensor *x, double slope)
{
    if (!check_slope("leaky_relu_inplace", slope)) return mt_last_status();
    return mti_apply_inplace(&mti_ops[MTI_OP_leaky_relu_inplace],
                             &(mti_params){.scalar = {slope, 0}}, x);
}

/* gelu: y = x Phi(x);  dx = dy (Phi(x) + x phi(x)), Phi and phi of the normal distribution */
static bool gelu_forward(mti_call *c) { return forward(c, MTI_GELU); }
static bool gelu_backward(mti_call *c) { return backward(c, MTI_GELU, MTI_IN0); }
const mti_op_code mti_code_gelu = {mti_shape_same, gelu_forward, gelu_backward};
mt_tensor *mt_gelu(mt_tensor *x) { return mti_op1(MTI_OP_gelu, NULL, x); }

/* gelu_tanh: y = x/2 (1 + tanh u), u = sqrt(2/pi) (x + 0.044715 x^3) */
static bool gelu_tanh_forward(mti_call *c) { return forward(c, MTI_GELU_TANH); }
static bool gelu_tanh_backward(mti_call *c) { return backward(c, MTI_GELU_TANH, MTI_IN0); }
const mti_op_code mti_code_gelu_tanh = {mti_shape_same, gelu_tanh_forward, gelu_tanh_backward};
mt_tensor *mt_gelu_tanh(mt_tensor *x) { return mti_op1(MTI_OP_gelu_tanh, NULL, x); }

/* silu: y = x s, s = sigmoid(x);  dx = dy s (1 + x (1 - s)) */
static bool silu_forward(mti_call *c) { return forward(c, MTI_SILU); }
static bool silu_backward(mti_call *c) { return backward(c, MTI_SILU, MTI_IN0); }
const mti_op_code mti_code_silu = {mti_shape_same, silu_forward, silu_backward};
mt_tensor *mt_silu(mt_tensor *x) { return mti_op1(MTI_OP_silu, NULL, x); }

/* tanh: dx = dy (1 - y^2) */
static bool tanh_forward(mti_call *c) { return forward(c, MTI_TANH); }
static bool tanh_backward(mti_call *c) { return backward(c, MTI_TANH, MTI_OUT0); }
const mti_op_code mti_code_tanh = {mti_shape_same, tanh_forward, tanh_backward};
mt_tensor *mt_tanh(mt_tensor *x) { return mti_op1(MTI_OP_tanh, NULL, x); }

/* sigmoid: dx = dy y (1 - y) */
static bool sigmoid_forward(mti_call *c) { return forward(c, MTI_SIGMOID); }
static bool sigmoid_backward(mti_call *c) { return backward(c, MTI_SIGMOID, MTI_OUT0); }
const mti_op_code mti_code_sigmoid = {mti_shape_same, sigmoid_forward, sigmoid_backward};
mt_tensor *mt_sigmoid(mt_tensor *x) { return mti_op1(MTI_OP_sigmoid, NULL, x); }

/* exp: dx = dy y */
static bool exp_forward(mti_call *c) { return forward(c, MTI_EXP); }
static bool exp_backward(mti_call *c) { return backward(c, MTI_EXP, MTI_OUT0); }
const mti_op_code mti_code_exp = {mti_shape_same, exp_forward, exp_backward};
mt_tensor *mt_exp(mt_tensor *x) { return mti_op1(MTI_OP_exp, NULL, x); }

/* log: dx = dy / x */
static bool log_forward(mti_call *c) { return forward(c, MTI_LOG); }
static bool log_backward(mti_call *c) { return backward(c, MTI_LOG, MTI_IN0); }
const mti_op_code mti_code_log = {mti_shape_same, log_forward, log_backward};
mt_tensor *mt_log(mt_tensor *x) { return mti_op1(MTI_OP_log, NULL, x); }

/* pow: y = x^p;  dx = dy p x^(p-1), 0 for p = 0 */
static bool pow_forward(mti_call *c) { return forward(c, MTI_POW); }
static bool pow_backward(mti_call *c) { return backward(c, MTI_POW, MTI_IN0); }
const mti_op_code mti_code_pow = {mti_shape_same, pow_forward, pow_backward};
mt_tensor *mt_pow(mt_tensor *x, double exponent)
{
    return mti_op1(MTI_OP_pow, &(mti_params){.scalar = {exponent, 0}}, x);
}

/* sqrt: dx = dy / (2 y) */
static bool sqrt_forward(mti_call *c) { return forward(c, MTI_SQRT); }
static bool sqrt_backward(mti_call *c) { return backward(c, MTI_SQRT, MTI_OUT0); }
const mti_op_code mti_code_sqrt = {mti_shape_same, sqrt_forward, sqrt_backward};
mt_tensor *mt_sqrt(mt_tensor *x) { return mti_op1(MTI_OP_sqrt, NULL, x); }
