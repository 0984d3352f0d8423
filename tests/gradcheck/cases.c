/* One case or more for every row of the op table, then views of views and compositions. */
#include "gradcheck.h"

/* Input shapes, to keep the rows below readable. */
#define S(...)                                                                                     \
    {                                                                                              \
        .shape = { __VA_ARGS__ }                                                                   \
    } /* values in [-2, 2] */
#define P(...)                                                                                     \
    {                                                                                              \
        .shape = {__VA_ARGS__}, .lo = 0.5, .hi = 2                                                 \
    } /* positive */
#define K(...)                                                                                     \
    {                                                                                              \
        .shape = {__VA_ARGS__}, .lo = -2, .hi = 2, .away = .1                                      \
    } /* a kink at 0 */
#define I(below, ...)                                                                              \
    {                                                                                              \
        .shape = {__VA_ARGS__}, .n_index = (below)                                                 \
    }

/* ---- element-wise ---- */

static mt_tensor *add(mt_tensor **in) { return mt_add(in[0], in[1]); }
static mt_tensor *sub(mt_tensor **in) { return mt_sub(in[0], in[1]); }
static mt_tensor *mul(mt_tensor **in) { return mt_mul(in[0], in[1]); }
static mt_tensor *div_(mt_tensor **in) { return mt_div(in[0], in[1]); }
static mt_tensor *square(mt_tensor **in) { return mt_mul(in[0], in[0]); }
static mt_tensor *affine(mt_tensor **in) { return mt_affine(in[0], -1.75, 0.5); }
static mt_tensor *add_scalar(mt_tensor **in) { return mt_add_scalar(in[0], 3); }
static mt_tensor *mul_scalar(mt_tensor **in) { return mt_mul_scalar(in[0], -3); }
static mt_tensor *relu(mt_tensor **in) { return mt_relu(in[0]); }
static mt_tensor *leaky_relu(mt_tensor **in) { return mt_leaky_relu(in[0], 0.2); }
static mt_tensor *gelu(mt_tensor **in) { return mt_gelu(in[0]); }
static mt_tensor *gelu_tanh(mt_tensor **in) { return mt_gelu_tanh(in[0]); }
static mt_tensor *silu(mt_tensor **in) { return mt_silu(in[0]); }
static mt_tensor *tanh_(mt_tensor **in) { return mt_tanh(in[0]); }
static mt_tensor *sigmoid(mt_tensor **in) { return mt_sigmoid(in[0]); }
static mt_tensor *exp_(mt_tensor **in) { return mt_exp(in[0]); }
static mt_tensor *log_(mt_tensor **in) { return mt_log(in[0]); }
static mt_tensor *sqrt_(mt_tensor **in) { return mt_sqrt(in[0]); }
static mt_tensor *pow_0(mt_tensor **in) { return mt_pow(in[0], 0); }
static mt_tensor *pow_1(mt_tensor **in) { return mt_pow(in[0], 1); }
static mt_tensor *pow_2(mt_tensor **in) { return mt_pow(in[0], 2); }
static mt_tensor *pow_3(mt_tensor **in) { return mt_pow(in[0], 3); }
static mt_tensor *pow_half(mt_tensor **in) { return mt_pow(in[0], 0.5); }
static mt_tensor *pow_1_5(mt_tensor **in) { return mt_pow(in[0], 1.5); }
static mt_tensor *pow_minus_1(mt_tensor **in) { return mt_pow(in[0], -1); }
static mt_tensor *pow_minus_half(mt_tensor **in) { return mt_pow(in[0], -0.5); }
static mt_tensor *pow_minus_2_5(mt_tensor **in) { return mt_pow(in[0], -2.5); }
static mt_tensor *swiglu(mt_tensor **in) { return mt_swiglu(in[0], in[1]); }

/* Gate and up as the halves of one projection. */
static mt_tensor *swiglu_packed(mt_tensor **in)
{
    mt_tensor *half[2];
    if (mt_split(in[0], -1, 2, (int64_t[]){5, 5}, half) != MT_OK) return NULL;
    mt_tensor *y = mt_swiglu(half[0], half[1]);
    mt_release(half[0]), mt_release(half[1]);
    return y;
}

static mt_tensor *all_gather(mt_tensor **in) { return mt_all_gather(in[0], 1, 1); }
static mt_tensor *reduce_scatter(mt_tensor **in) { return mt_reduce_scatter(in[0], 0, 1); }
static mt_tensor *all_reduce(mt_tensor **in) { return mt_all_reduce(in[0], 1); }
static mt_tensor *replicate(mt_tensor **in) { return mt_replicate(in[0], 1); }
static mt_tensor *send_on(mt_tensor **in) { return mt_send(in[0], 1); }
static mt_tensor *receive(mt_tensor **in) { return mt_recv(in[0], 1); }

static mt_tensor *where(mt_tensor **in)
{
    MT_AUTO mt_tensor *mask = mt_cast(in[0], MT_BOOL);
    return mt_where(mask, in[1], in[2]);
}

static mt_tensor *masked_fill(mt_tensor **in)
{
    MT_AUTO mt_tensor *mask = mt_cast(in[0], MT_BOOL);
    return mt_masked_fill(in[1], mask, -3);
}

/* Only a tensor that an op made may be changed in place while gradients are on. */
static mt_tensor *relu_inplace(mt_tensor **in)
{
    mt_tensor *h = mt_mul_scalar(in[0], 2);
    if (h && mt_relu_inplace(h) != MT_OK) mt_set(&h, NULL);
    return h;
}

static mt_tensor *leaky_relu_inplace(mt_tensor **in)
{
    mt_tensor *h = mt_mul_scalar(in[0], 2);
    if (h && mt_leaky_relu_inplace(h, 0.2) != MT_OK) mt_set(&h, NULL);
    return h;
}

static mt_tensor *relu_inplace_then_more(mt_tensor **in)
{
    MT_AUTO mt_tensor *h = relu_inplace(in);
    return mt_mul(h, h);
}

/* To f32 and back: exact for the grid of the inputs with a step of 1/1024. */
static mt_tensor *cast(mt_tensor **in)
{
    MT_AUTO mt_tensor *narrow = mt_cast(in[0], MT_F32);
    return mt_cast(narrow, MT_F64);
}

/* ---- matrix products ---- */

static mt_tensor *matmul(mt_tensor **in) { return mt_matmul(in[0], in[1]); }
static mt_tensor *linear(mt_tensor **in) { return mt_linear(in[0], in[1], in[2]); }
static mt_tensor *linear_no_bias(mt_tensor **in) { return mt_linear(in[0], in[1], NULL); }

/* ---- rows ---- */

static mt_tensor *softmax(mt_tensor **in) { return mt_softmax(in[0], 1, false); }
static mt_tensor *softmax_scaled(mt_tensor **in) { return mt_softmax(in[0], 0.37, false); }
static mt_tensor *softmax_causal(mt_tensor **in) { return mt_softmax(in[0], 1.3, true); }
static mt_tensor *log_softmax(mt_tensor **in) { return mt_log_softmax(in[0]); }
static mt_tensor *layer_norm(mt_tensor **in) { return mt_layer_norm(in[0], in[1], in[2], 1e-5); }
static mt_tensor *layer_norm_plain(mt_tensor **in)
{
    return mt_layer_norm(in[0], NULL, NULL, 1e-3);
}

static mt_tensor *rms_norm(mt_tensor **in) { return mt_rms_norm(in[0], in[1], 1e-5); }
static mt_tensor *rms_norm_plain(mt_tensor **in) { return mt_rms_norm(in[0], NULL, 1e-3); }
static mt_tensor *rope(mt_tensor **in) { return mt_rope(in[0], 0, 10000); }
static mt_tensor *rope_later(mt_tensor **in) { return mt_rope(in[0], 123456, 500000); }

/* The gradient comes back through the transpose: not row-major. */
static mt_tensor *rope_of_heads(mt_tensor **in)
{
    MT_AUTO mt_tensor *heads = mt_transpose(in[0], 1, 2);
    MT_AUTO mt_tensor *turned = mt_rope(heads, 7, 100);
    MT_AUTO mt_tensor *back = mt_transpose(turned, 1, 2);
    return mt_reshape(back, MT_SHAPE(2, 3, -1));
}

/* ---- random, tables, losses ---- */

static mt_tensor *dropout(mt_tensor **in) { return mt_dropout(in[0], 0.4); }
static mt_tensor *embedding(mt_tensor **in) { return mt_embedding(in[0], in[1]); }
static mt_tensor *cross_entropy(mt_tensor **in) { return mt_cross_entropy(in[0], in[1], -100); }
/* Target 0 is not counted. */
static mt_tensor *cross_entropy_some(mt_tensor **in) { return mt_cross_entropy(in[0], in[1], 0); }
static mt_tensor *linear_cross_entropy(mt_tensor **in)
{
    return mt_linear_cross_entropy(in[0], in[1], in[2], -100, 0);
}
/* Target 0 is not counted; the last piece is shorter. */
static mt_tensor *linear_cross_entropy_pieces(mt_tensor **in)
{
    return mt_linear_cross_entropy(in[0], in[1], in[2], 0, 2);
}
static mt_tensor *mse(mt_tensor **in) { return mt_mse(in[0], in[1]); }

/* ---- reductions ---- */

static mt_tensor *sum_all(mt_tensor **in) { return mt_sum_all(in[0]); }
static mt_tensor *sum_last(mt_tensor **in) { return mt_sum(in[0], 1, (int[]){-1}, false); }
static mt_tensor *sum_outer(mt_tensor **in) { return mt_sum(in[0], 2, (int[]){0, 2}, true); }
static mt_tensor *max_all(mt_tensor **in) { return mt_max(in[0], 0, NULL, false); }
static mt_tensor *max_last(mt_tensor **in) { return mt_max(in[0], 1, (int[]){-1}, false); }
static mt_tensor *max_first(mt_tensor **in) { return mt_max(in[0], 1, (int[]){0}, true); }
static mt_tensor *max_outer(mt_tensor **in) { return mt_max(in[0], 2, (int[]){0, 2}, true); }
static mt_tensor *max_none(mt_tensor **in) { return mt_max(in[0], 1, (int[]){1}, false); }
static mt_tensor *mean_all(mt_tensor **in) { return mt_mean_all(in[0]); }
static mt_tensor *mean_middle(mt_tensor **in) { return mt_mean(in[0], 1, (int[]){1}, false); }
static mt_tensor *mean_keep(mt_tensor **in) { return mt_mean(in[0], 2, (int[]){0, -1}, true); }

/* ---- views and copies ---- */

static mt_tensor *transpose(mt_tensor **in) { return mt_transpose(in[0], 0, 2); }
static mt_tensor *permute(mt_tensor **in) { return mt_permute(in[0], (int[]){2, 0, 1}); }
static mt_tensor *slice(mt_tensor **in) { return mt_slice(in[0], 1, 1, 2); }
static mt_tensor *expand(mt_tensor **in) { return mt_expand(in[0], MT_SHAPE(3, 2, 5)); }
static mt_tensor *reshape(mt_tensor **in) { return mt_reshape(in[0], MT_SHAPE(5, -1)); }
static mt_tensor *contiguous(mt_tensor **in)
{
    MT_AUTO mt_tensor *turned = mt_transpose(in[0], 0, 1);
    return mt_contiguous(turned);
}
static mt_tensor *clone(mt_tensor **in) { return mt_clone(in[0]); }
static mt_tensor *cat2(mt_tensor **in) { return mt_cat(2, in, 1); }
static mt_tensor *cat3(mt_tensor **in) { return mt_cat(3, in, 0); }

/* Unequal parts put back in another order, one of them twice. */
static mt_tensor *split(mt_tensor **in)
{
    mt_tensor *part[3];
    if (mt_split(in[0], 1, 3, (int64_t[]){1, 3, 2}, part) != MT_OK) return NULL;
    mt_tensor *out = mt_cat(4, (mt_tensor *[]){part[2], part[0], part[1], part[0]}, 1);
    for (int i = 0; i < 3; i++) mt_release(part[i]);
    return out;
}

/* The gradient of the parts nobody used is zero. */
static mt_tensor *split_one_used(mt_tensor **in)
{
    mt_tensor *part[3];
    if (mt_split(in[0], 1, 3, (int64_t[]){1, 3, 2}, part) != MT_OK) return NULL;
    for (int i = 0; i < 3; i++)
        if (i != 1) mt_release(part[i]);
    return part[1];
}

static mt_tensor *views_of_views(mt_tensor **in)
{
    MT_AUTO mt_tensor *a = mt_permute(in[0], (int[]){1, 2, 0});
    MT_AUTO mt_tensor *b = mt_slice(a, 0, 1, 2);
    MT_AUTO mt_tensor *c = mt_reshape(b, MT_SHAPE(2, -1));
    MT_AUTO mt_tensor *d = mt_transpose(c, 0, 1);
    return mt_matmul(c, d);
}

/* Inputs whose rows or columns are one and the same memory: a stride of 0. */
static mt_tensor *linear_expanded(mt_tensor **in)
{
    MT_AUTO mt_tensor *x = mt_expand(in[0], MT_SHAPE(3, 5));
    return mt_linear(x, in[1], NULL);
}

/* Each row of x comes three times: the middle dimension has stride 0, the outer one not. */
static mt_tensor *linear_expanded_middle(mt_tensor **in)
{
    MT_AUTO mt_tensor *x = mt_expand(in[0], MT_SHAPE(2, 3, 4));
    return mt_linear(x, in[1], in[2]);
}

static mt_tensor *matmul_expanded_middle(mt_tensor **in)
{
    MT_AUTO mt_tensor *a = mt_expand(in[0], MT_SHAPE(2, 3, 4));
    return mt_matmul(a, in[1]);
}

/* The same of the incoming gradient: a sum's is repeated along what was summed. */
static mt_tensor *linear_summed_middle(mt_tensor **in)
{
    MT_AUTO mt_tensor *y = mt_linear(in[0], in[1], in[2]);
    return mt_sum(y, 1, (int[]){1}, false);
}

static mt_tensor *matmul_averaged_middle(mt_tensor **in)
{
    MT_AUTO mt_tensor *y = mt_matmul(in[0], in[1]);
    return mt_mean(y, 1, (int[]){1}, true);
}

static mt_tensor *matmul_expanded(mt_tensor **in)
{
    MT_AUTO mt_tensor *a = mt_expand(in[0], MT_SHAPE(3, 5));
    MT_AUTO mt_tensor *b = mt_expand(in[1], MT_SHAPE(5, 4));
    return mt_matmul(a, b);
}

static mt_tensor *rows_expanded(mt_tensor **in)
{
    MT_AUTO mt_tensor *x = mt_expand(in[0], MT_SHAPE(3, 5));
    MT_AUTO mt_tensor *w = mt_expand(in[1], MT_SHAPE(5));
    MT_AUTO mt_tensor *h = mt_layer_norm(x, w, NULL, 1e-3);
    MT_AUTO mt_tensor *columns = mt_expand(in[2], MT_SHAPE(3, 5));
    MT_AUTO mt_tensor *p = mt_softmax(columns, 0.5, false);
    MT_AUTO mt_tensor *l = mt_log_softmax(x);
    mt_set(&h, mt_mul(h, p));
    return mt_add(h, l);
}

/* ---- attention ---- */

static mt_tensor *flash(mt_tensor **in)
{
    return mt_flash_attention(in[0], in[1], in[2], 0, false, 0);
}
static mt_tensor *flash_causal(mt_tensor **in)
{
    return mt_flash_attention(in[0], in[1], in[2], 0.7, true, 0);
}
static mt_tensor *flash_dropout(mt_tensor **in)
{
    return mt_flash_attention(in[0], in[1], in[2], 0, true, 0.3);
}
static mt_tensor *flash_expanded(mt_tensor **in)
{
    MT_AUTO mt_tensor *q = mt_expand(in[0], MT_SHAPE(2, 2, 3, 4));
    MT_AUTO mt_tensor *k = mt_expand(in[1], MT_SHAPE(2, 2, 5, 4));
    MT_AUTO mt_tensor *v = mt_expand(in[2], MT_SHAPE(2, 2, 5, 4));
    return mt_flash_attention(q, k, v, 0, false, 0);
}
static mt_tensor *math(mt_tensor **in)
{
    return mt_math_attention(in[0], in[1], in[2], 0, true, 0);
}
static mt_tensor *math_dropout(mt_tensor **in)
{
    return mt_math_attention(in[0], in[1], in[2], 0.7, false, 0.3);
}

/* ---- compositions ---- */

/* x twice on different paths, and a value that only forward needs. */
static mt_tensor *diamond(mt_tensor **in)
{
    MT_AUTO mt_tensor *a = mt_tanh(in[0]);
    MT_AUTO mt_tensor *b = mt_sigmoid(in[0]);
    MT_AUTO mt_tensor *c = mt_mul(a, b);
    return mt_add(c, in[0]);
}

static mt_tensor *mlp(mt_tensor **in)
{
    MT_AUTO mt_tensor *h = mt_layer_norm(in[0], in[1], in[2], 1e-5);
    mt_set(&h, mt_linear(h, in[3], NULL));
    mt_set(&h, mt_gelu(h));
    mt_set(&h, mt_linear(h, in[4], NULL));
    return mt_add(h, in[0]);
}

#define ELEMENTWISE(row, fn, X)                                                                    \
    {row, "3x5x2", fn, {X(3, 5, 2)}, 1}, {row, "1x7", fn, {X(1, 7)}, 1},                           \
        {row, "scalar", fn, {X(0)}, 1},                                                            \
    {                                                                                              \
        row, "37 (past a vector)", fn, {X(37)}, 1                                                  \
    }
#define BROADCAST(row, fn, X)                                                                      \
    {row, "same shape", fn, {S(3, 5), X(3, 5)}, 2}, {row, "row", fn, {S(3, 5), X(5)}, 2},          \
        {row, "column", fn, {S(3, 1), X(3, 5)}, 2},                                                \
        {row, "both", fn, {S(3, 1, 2), X(1, 5, 2)}, 2}, {row, "scalar", fn, {S(2, 3), X(0)}, 2},   \
    {                                                                                              \
        row, "scalar first", fn, {S(0), X(2, 3)}, 2                                                \
    }

const grad_case grad_cases[] = {
    BROADCAST("add", add, S),
    BROADCAST("sub", sub, S),
    BROADCAST("mul", mul, S),
    BROADCAST("div", div_, P),
    {"mul", "x by itself", square, {S(3, 5)}, 1},
    ELEMENTWISE("affine", affine, S),
    {"affine", "add_scalar", add_scalar, {S(3, 5)}, 1},
    {"affine", "mul_scalar", mul_scalar, {S(3, 5)}, 1},
    ELEMENTWISE("relu", relu, K),
    ELEMENTWISE("leaky_relu", leaky_relu, K),
    ELEMENTWISE("gelu", gelu, S),
    ELEMENTWISE("gelu_tanh", gelu_tanh, S),
    ELEMENTWISE("silu", silu, S),
    ELEMENTWISE("tanh", tanh_, S),
    ELEMENTWISE("sigmoid", sigmoid, S),
    ELEMENTWISE("exp", exp_, S),
    ELEMENTWISE("log", log_, P),
    ELEMENTWISE("sqrt", sqrt_, P),
    ELEMENTWISE("pow", pow_2, S),
    ELEMENTWISE("pow", pow_1_5, P),
    {"pow", "exponent 0", pow_0, {K(3, 5)}, 1},
    {"pow", "exponent 1", pow_1, {S(3, 5)}, 1},
    {"pow", "exponent 3", pow_3, {S(3, 5)}, 1},
    {"pow", "exponent 1/2", pow_half, {P(3, 5)}, 1},
    {"pow", "exponent -1", pow_minus_1, {P(3, 5)}, 1},
    {"pow", "exponent -1/2", pow_minus_half, {P(3, 5)}, 1},
    {"pow", "exponent -5/2", pow_minus_2_5, {P(3, 5)}, 1},
    {"swiglu", "3x5x2", swiglu, {S(3, 5, 2), S(3, 5, 2)}, 2},
    {"swiglu", "37 (past a vector)", swiglu, {S(37), S(37)}, 2},
    {"swiglu", "halves of one tensor", swiglu_packed, {S(3, 10)}, 1},
    {"all_gather", "one rank", all_gather, {S(3, 5)}, 1},
    {"reduce_scatter", "one rank", reduce_scatter, {S(3, 5)}, 1},
    {"all_reduce", "one rank", all_reduce, {S(3, 5)}, 1},
    {"replicate", "one rank", replicate, {S(3, 5)}, 1},
    {"send", "one rank", send_on, {S(3, 5)}, 1},
    {"recv", "one rank", receive, {S(3, 5)}, 1},
    {"where", "same shape", where, {I(2, 3, 5), S(3, 5), S(3, 5)}, 3},
    {"where", "mask and b repeated", where, {I(2, 5), S(3, 5), S(3, 1)}, 3},
    {"where", "a and b repeated", where, {I(2, 2, 3, 5), S(5), S(0)}, 3},
    {"where", "masked_fill", masked_fill, {I(2, 3, 5), S(2, 3, 5)}, 2},
    {"relu_inplace", "3x5", relu_inplace, {K(3, 5)}, 1},
    {"leaky_relu_inplace", "3x5", leaky_relu_inplace, {K(3, 5)}, 1},
    {"relu_inplace", "saved by the next op", relu_inplace_then_more, {K(3, 5)}, 1, .inner = true},
    {"cast", "to f32 and back", cast, {S(3, 5)}, 1, .step = 0x1p-10},

    {"matmul", "3x5 by 5x2", matmul, {S(3, 5), S(5, 2)}, 2},
    {"matmul", "1x1", matmul, {S(1, 1), S(1, 1)}, 2},
    {"matmul", "row by matrix", matmul, {S(1, 5), S(5, 3)}, 2},
    {"matmul", "batched", matmul, {S(2, 3, 5), S(2, 5, 4)}, 2},
    {"matmul", "b broadcast", matmul, {S(2, 3, 5), S(5, 4)}, 2},
    {"matmul", "a broadcast", matmul, {S(3, 5), S(2, 5, 4)}, 2},
    {"matmul", "both broadcast", matmul, {S(2, 1, 3, 5), S(1, 3, 5, 2)}, 2},
    {"linear", "3x5", linear, {S(3, 5), S(2, 5), S(2)}, 3},
    {"linear", "batched", linear, {S(2, 3, 5), S(4, 5), S(4)}, 3},
    {"linear", "a vector", linear, {S(5), S(3, 5), S(3)}, 3},
    {"linear", "one row, one column", linear, {S(1, 1), S(1, 1), S(1)}, 3},
    {"linear", "no bias", linear_no_bias, {S(3, 5), S(2, 5)}, 2},

    {"softmax", "3x5", softmax, {S(3, 5)}, 1},
    {"softmax", "one column", softmax, {S(3, 1)}, 1},
    {"softmax", "scaled", softmax_scaled, {S(2, 3, 5)}, 1},
    {"softmax", "causal", softmax_causal, {S(2, 5, 5)}, 1},
    {"softmax", "causal, more columns", softmax_causal, {S(3, 5)}, 1},
    {"log_softmax", "3x5", log_softmax, {S(3, 5)}, 1},
    {"log_softmax", "one row", log_softmax, {S(1, 7)}, 1},
    {"layer_norm", "3x5", layer_norm, {S(3, 5), S(5), S(5)}, 3},
    {"layer_norm", "2x3x7", layer_norm, {S(2, 3, 7), S(7), S(7)}, 3},
    {"layer_norm", "one row", layer_norm, {S(9), S(9), S(9)}, 3},
    {"layer_norm", "no weight", layer_norm_plain, {S(3, 5)}, 1},

    {"rms_norm", "3x5", rms_norm, {S(3, 5), S(5)}, 2},
    {"rms_norm", "2x3x7", rms_norm, {S(2, 3, 7), S(7)}, 2},
    {"rms_norm", "one row", rms_norm, {S(9), S(9)}, 2},
    {"rms_norm", "one column", rms_norm, {K(3, 1), S(1)}, 2},
    {"rms_norm", "no weight", rms_norm_plain, {S(3, 5)}, 1},
    {"rope", "2x3x5x4", rope, {S(2, 3, 5, 4)}, 1},
    {"rope", "one position, far", rope_later, {S(1, 2, 1, 6)}, 1},
    {"rope", "between transposes", rope_of_heads, {S(2, 3, 2, 4)}, 1, .inner = true},

    {"dropout", "3x5", dropout, {S(3, 5)}, 1},
    {"dropout", "37", dropout, {S(37)}, 1},
    {"embedding", "repeated rows", embedding, {I(4, 2, 5), S(4, 3)}, 2},
    {"embedding", "one", embedding, {I(1, 1), S(1, 3)}, 2},
    {"cross_entropy", "5 rows of 7", cross_entropy, {S(5, 7), I(7, 5)}, 2},
    {"cross_entropy", "2x3 rows of 4", cross_entropy, {S(2, 3, 4), I(4, 2, 3)}, 2},
    {"cross_entropy", "some ignored", cross_entropy_some, {S(9, 3), I(3, 9)}, 2},
    {"linear_cross_entropy",
     "all rows at once",
     linear_cross_entropy,
     {S(2, 3, 4), S(7, 4), I(7, 2, 3)},
     3},
    {"linear_cross_entropy",
     "in pieces, some ignored",
     linear_cross_entropy_pieces,
     {S(7, 3), S(4, 3), I(4, 7)},
     3},
    {"linear_cross_entropy",
     "one row, one column",
     linear_cross_entropy,
     {S(1, 1), S(3, 1), I(3, 1)},
     3},
    {"mse", "3x5", mse, {S(3, 5), S(3, 5)}, 2},

    {"sum", "all", sum_all, {S(3, 5, 2)}, 1},
    {"sum", "a scalar", sum_all, {S(0)}, 1},
    {"sum", "last", sum_last, {S(3, 5, 2)}, 1},
    {"sum", "first and last, kept", sum_outer, {S(3, 5, 2)}, 1},
    {"mean", "all", mean_all, {S(3, 5, 2)}, 1},
    {"mean", "middle", mean_middle, {S(3, 5, 2)}, 1},
    {"mean", "first and last, kept", mean_keep, {S(3, 1, 2)}, 1},

    {"max", "all", max_all, {S(3, 5, 2)}, 1},
    {"max", "a scalar", max_all, {S(0)}, 1},
    {"max", "last", max_last, {S(3, 5, 2)}, 1},
    {"max", "first, kept", max_first, {S(3, 5)}, 1},
    {"max", "first and last, kept", max_outer, {S(3, 5, 2)}, 1},
    {"max", "over one", max_none, {S(3, 1, 2)}, 1},

    {"permute", "transpose 3x5x2", transpose, {S(3, 5, 2)}, 1},
    {"permute", "3x5x2", permute, {S(3, 5, 2)}, 1},
    {"slice", "3x5", slice, {S(3, 5)}, 1},
    {"expand", "1x2x1 to 3x2x5", expand, {S(1, 2, 1)}, 1},
    {"expand", "5 to 3x2x5", expand, {S(5)}, 1},
    {"reshape", "2x5x3 to 5x6", reshape, {S(2, 5, 3)}, 1},
    /* What lay reversed is dense once transposed: then there is nothing to do. */
    {"contiguous", "of a transpose", contiguous, {S(3, 5)}, 1, .inner = true},
    {"clone", "3x5", clone, {S(3, 5)}, 1},
    {"cat", "two", cat2, {S(2, 3), S(2, 1)}, 2},
    {"cat", "three", cat3, {S(2, 3), S(1, 3), S(4, 3)}, 3},
    {"split", "unequal, one part twice", split, {S(3, 6)}, 1, .inner = true},
    {"split", "one part used", split_one_used, {S(3, 6, 2)}, 1},

    /* The log-sum-exp is kept in f32, so these gradients are right to f32. */
    {"flash_attention",
     "odd",
     flash,
     {S(2, 3, 5, 3), S(2, 3, 7, 3), S(2, 3, 7, 3)},
     3,
     .tolerance = 1e-5},
    {"flash_attention",
     "causal",
     flash_causal,
     {S(1, 2, 5, 3), S(1, 2, 5, 3), S(1, 2, 5, 3)},
     3,
     .tolerance = 1e-5},
    {"flash_attention",
     "causal, more keys",
     flash_causal,
     {S(1, 1, 3, 2), S(1, 1, 7, 2), S(1, 1, 7, 2)},
     3,
     .tolerance = 1e-5},
    {"flash_attention",
     "one key",
     flash,
     {S(1, 1, 1, 4), S(1, 1, 1, 4), S(1, 1, 1, 4)},
     3,
     .tolerance = 1e-5},
    {"flash_attention",
     "grouped heads",
     flash,
     {S(1, 4, 3, 2), S(1, 2, 3, 2), S(1, 2, 3, 2)},
     3,
     .tolerance = 1e-5},
    {"flash_attention",
     "dropout",
     flash_dropout,
     {S(1, 2, 5, 3), S(1, 2, 5, 3), S(1, 2, 5, 3)},
     3,
     .tolerance = 1e-5},
    {"flash_attention",
     "expanded",
     flash_expanded,
     {S(2, 1, 3, 1), S(1, 2, 1, 4), S(2, 1, 5, 4)},
     3,
     .tolerance = 1e-5},
    {"matmul",
     "math attention, causal",
     math,
     {S(1, 2, 5, 3), S(1, 2, 5, 3), S(1, 2, 5, 3)},
     3,
     .inner = true},
    {"matmul",
     "math attention, dropout",
     math_dropout,
     {S(1, 2, 3, 2), S(1, 2, 5, 2), S(1, 2, 5, 2)},
     3,
     .inner = true},

    {"reshape",
     "math attention, grouped heads",
     math,
     {S(2, 4, 3, 2), S(2, 2, 5, 2), S(2, 2, 5, 2)},
     3},
    {"reshape",
     "math attention, one head of keys, dropout",
     math_dropout,
     {S(1, 3, 3, 2), S(1, 1, 5, 2), S(1, 1, 5, 2)},
     3},

    {"linear", "expanded rows", linear_expanded, {S(1, 5), S(2, 5)}, 2},
    {"matmul", "expanded rows and columns", matmul_expanded, {S(1, 5), S(5, 1)}, 2},
    {"linear", "each row thrice", linear_expanded_middle, {S(2, 1, 4), S(5, 4), S(5)}, 3},
    {"matmul", "each row thrice", matmul_expanded_middle, {S(2, 1, 4), S(4, 5)}, 2},
    {"sum",
     "middle, after a linear",
     linear_summed_middle,
     {S(2, 3, 4), S(5, 4), S(5)},
     3,
     .inner = true},
    {"mean",
     "middle, after a matmul",
     matmul_averaged_middle,
     {S(2, 3, 4), S(4, 5)},
     2,
     .inner = true},
    /* Where all of a row is one number, only eps keeps the norm from dividing by 0. */
    {"add",
     "rows of stride 0",
     rows_expanded,
     {S(1, 5), S(1), S(3, 1)},
     3,
     .inner = true,
     .gain = 4},
    {"matmul", "views of views", views_of_views, {S(2, 3, 4)}, 1, .inner = true},
    {"add", "two paths from x", diamond, {S(3, 5)}, 1, .inner = true},
    {"add", "an MLP with its norm", mlp, {S(3, 4), S(4), S(4), S(5, 4), S(4, 5)}, 5, .inner = true},
};
const int n_grad_cases = sizeof grad_cases / sizeof *grad_cases;
