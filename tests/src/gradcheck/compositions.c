/* Checks in addition to the cases of the op table (op_cases.def): compositions, other ways to
 * call an op, views of views. */
#include <string.h>
#include "gradcheck.h"

/* ---- other ways to call one op ---- */

static mt_tensor *square(mt_tensor **in) { return mt_mul(in[0], in[0]); }
static mt_tensor *add_scalar(mt_tensor **in) { return mt_add_scalar(in[0], 3); }
static mt_tensor *mul_scalar(mt_tensor **in) { return mt_mul_scalar(in[0], -3); }

/* Gate and up are the halves of one projection. */
static mt_tensor *swiglu_packed(mt_tensor **in)
{
    mt_tensor *half[2];
    if (mt_split(in[0], -1, 2, (int64_t[]){5, 5}, half) != MT_OK) return NULL;
    mt_tensor *y = mt_swiglu(half[0], half[1]);
    mt_release(half[0]), mt_release(half[1]);
    return y;
}

static mt_tensor *masked_fill(mt_tensor **in)
{
    MT_AUTO mt_tensor *mask = mt_cast(in[0], MT_BOOL);
    return mt_masked_fill(in[1], mask, -3);
}

static mt_tensor *relu_inplace_then_more(mt_tensor **in)
{
    MT_AUTO mt_tensor *h = mt_mul_scalar(in[0], 2); /* a leaf cannot change in place */
    if (mt_relu_inplace(h) != MT_OK) return NULL;
    return mt_mul(h, h);
}

/* To f32 and back: exact, because the inputs are multiples of 1/1024. */
static mt_tensor *cast(mt_tensor **in)
{
    MT_AUTO mt_tensor *narrow = mt_cast(in[0], MT_F32);
    return mt_cast(narrow, MT_F64);
}

/* The gradient that comes through the transpose is not row-major. */
static mt_tensor *rope_of_heads(mt_tensor **in)
{
    MT_AUTO mt_tensor *heads = mt_transpose(in[0], 1, 2);
    MT_AUTO mt_tensor *turned = mt_rope(heads, 7, 100);
    MT_AUTO mt_tensor *back = mt_transpose(turned, 1, 2);
    return mt_reshape(back, MT_SHAPE(2, 3, -1));
}

/* Unequal parts joined in another order, one of them twice. */
static mt_tensor *split(mt_tensor **in)
{
    mt_tensor *part[3];
    if (mt_split(in[0], 1, 3, (int64_t[]){1, 3, 2}, part) != MT_OK) return NULL;
    mt_tensor *out = mt_cat(4, (mt_tensor *[]){part[2], part[0], part[1], part[0]}, 1);
    for (int i = 0; i < 3; i++) mt_release(part[i]);
    return out;
}

/* ---- views ---- */

static mt_tensor *views_of_views(mt_tensor **in)
{
    MT_AUTO mt_tensor *a = mt_permute(in[0], (int[]){1, 2, 0});
    MT_AUTO mt_tensor *b = mt_slice(a, 0, 1, 2);
    MT_AUTO mt_tensor *c = mt_reshape(b, MT_SHAPE(2, -1));
    MT_AUTO mt_tensor *d = mt_transpose(c, 0, 1);
    return mt_matmul(c, d);
}

/* Inputs whose rows or columns share memory: their stride is 0. */
static mt_tensor *linear_expanded(mt_tensor **in)
{
    MT_AUTO mt_tensor *x = mt_expand(in[0], MT_SHAPE(3, 5));
    return mt_linear(x, in[1], NULL);
}

/* Each row of x is repeated three times: the middle dimension has stride 0, the outer one does not.
 */
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

/* The same for the incoming gradient: that of a sum is repeated along the summed dimension. */
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

static mt_tensor *math_capped(mt_tensor **in)
{
    return mt_math_attention_capped(in[0], in[1], in[2], 0, 0.9, true, 0);
}

/* ---- models ---- */

/* Uses x twice on different paths, and a value that only forward needs. */
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

/* ---- all cases ---- */

#define X(...)        MTI_CASE_INPUT(MTI_CASE_ANY, __VA_ARGS__)
#define KINK(...)     MTI_CASE_INPUT(MTI_CASE_KINK, __VA_ARGS__)
#define INDEX(n, ...) MTI_CASE_INPUT(.below = (n), __VA_ARGS__)
#define COMPOSED(row, which, who, function, ...)                                                   \
    .of = {.op = row,                                                                              \
           .note = which,                                                                          \
           .users = who,                                                                           \
           .n_in = sizeof((mti_case_input[]){__VA_ARGS__}) / sizeof(mti_case_input),               \
           .in = {__VA_ARGS__}},                                                                   \
    .composed = function
/* MADE_BY: the row's op made the result. INSIDE: the op is inside the composition. */
#define MADE_BY(row, note, function, ...) COMPOSED(row, note, 0, function, __VA_ARGS__)
#define INSIDE(row, note, function, ...)  COMPOSED(row, note, MTI_CASE_INNER, function, __VA_ARGS__)

static const grad_case compositions[] = {
    {MADE_BY("mul", "x by itself", square, X(3, 5))},
    {MADE_BY("affine", "add_scalar", add_scalar, X(3, 5))},
    {MADE_BY("affine", "mul_scalar", mul_scalar, X(3, 5))},
    {MADE_BY("swiglu", "halves of one tensor", swiglu_packed, X(3, 10))},
    {MADE_BY("where", "masked_fill", masked_fill, INDEX(2, 3, 5), X(2, 3, 5))},
    {INSIDE("relu_inplace", "saved by the next op", relu_inplace_then_more, KINK(3, 5))},
    {MADE_BY("cast", "to f32 and back", cast, X(3, 5)), .step = 0x1p-10},
    {INSIDE("rope", "between transposes", rope_of_heads, X(2, 3, 2, 4))},
    {INSIDE("split", "unequal, one part twice", split, X(3, 6))},
    {MADE_BY("flash_attention", "expanded", flash_expanded, X(2, 1, 3, 1), X(1, 2, 1, 4),
             X(2, 1, 5, 4))},
    {INSIDE("matmul", "math attention, causal", math, X(1, 2, 5, 3), X(1, 2, 5, 3), X(1, 2, 5, 3))},
    {INSIDE("matmul", "math attention, dropout", math_dropout, X(1, 2, 3, 2), X(1, 2, 5, 2),
            X(1, 2, 5, 2))},
    {MADE_BY("reshape", "math attention, grouped heads", math, X(2, 4, 3, 2), X(2, 2, 5, 2),
             X(2, 2, 5, 2))},
    {MADE_BY("reshape", "math attention, one head of keys, dropout", math_dropout, X(1, 3, 3, 2),
             X(1, 1, 5, 2), X(1, 1, 5, 2))},
    {INSIDE("matmul", "math attention, capped", math_capped, X(1, 2, 4, 3), X(1, 2, 4, 3),
            X(1, 2, 4, 3))},
    {MADE_BY("reshape", "math attention, capped, grouped heads", math_capped, X(1, 4, 3, 2),
             X(1, 2, 5, 2), X(1, 2, 5, 2))},
    {MADE_BY("linear", "expanded rows", linear_expanded, X(1, 5), X(2, 5))},
    {MADE_BY("matmul", "expanded rows and columns", matmul_expanded, X(1, 5), X(5, 1))},
    {MADE_BY("linear", "each row thrice", linear_expanded_middle, X(2, 1, 4), X(5, 4), X(5))},
    {MADE_BY("matmul", "each row thrice", matmul_expanded_middle, X(2, 1, 4), X(4, 5))},
    {INSIDE("sum", "middle, after a linear", linear_summed_middle, X(2, 3, 4), X(5, 4), X(5))},
    {INSIDE("mean", "middle, after a matmul", matmul_averaged_middle, X(2, 3, 4), X(4, 5))},
    /* If all numbers of a row are equal, only eps prevents a division by 0. */
    {INSIDE("add", "rows of stride 0", rows_expanded, X(1, 5), X(1), X(3, 1)), .gain = 4},
    {INSIDE("matmul", "views of views", views_of_views, X(2, 3, 4))},
    {INSIDE("add", "two paths from x", diamond, X(3, 5))},
    {INSIDE("add", "an MLP with its norm", mlp, X(3, 4), X(4), X(4), X(5, 4), X(4, 5))},
};

/* The extents of the op table's cases. */
static const mti_case_sizes sizes = {[MTI_SIZE_M] = 3, [MTI_SIZE_N] = 5, [MTI_SIZE_K] = 2};

int grad_cases(const grad_case **list)
{
    enum { MOST = 320, COMPOSITIONS = sizeof compositions / sizeof *compositions };
    static grad_case all[MOST];
    static int n = 0;
    *list = all;
    if (n) return n;
    for (; mti_case_get(&mti_op_cases, MTI_CASE_CHECK, n, sizes, &all[n].of); n++)
        assert_true(n + 1 < MOST - COMPOSITIONS);
    memcpy(&all[n], compositions, sizeof compositions);
    n += COMPOSITIONS;
    for (int i = 0; i < n; i++) /* the log-sum-exp is kept in f32, so its precision is f32's */
        if (strcmp(all[i].of.op, "flash_attention") == 0) all[i].tolerance = 1e-5;
    return n;
}
