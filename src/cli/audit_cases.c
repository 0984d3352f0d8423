/* audit_cases.c: a call for each row of the op table, and cheaper ways to what it keeps. */
#include <string.h>
#include "cli/audit.h"

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* ---- inputs: 32 rows of 64, f32, unless the op wants others ---- */

#define SHAPE(...) .rank = (int)COUNT(((int[]){__VA_ARGS__})), .shape = {__VA_ARGS__}
#define X(...)                                                                                     \
    {                                                                                              \
        SHAPE(__VA_ARGS__), .lo = -2, .hi = 2                                                      \
    }
#define POSITIVE(...)                                                                              \
    {                                                                                              \
        SHAPE(__VA_ARGS__), .lo = 0.5, .hi = 2                                                     \
    }
#define WEIGHT(...)                                                                                \
    {                                                                                              \
        SHAPE(__VA_ARGS__), .lo = -1, .hi = 1, .parameter = true                                   \
    }
#define INDEX(limit, ...)                                                                          \
    {                                                                                              \
        SHAPE(__VA_ARGS__), .below = (limit)                                                       \
    }
#define ROWS 32
#define WIDE 64

/* ---- calls ---- */

static mt_tensor *add(mt_tensor **in) { return mt_add(in[0], in[1]); }
static mt_tensor *sub(mt_tensor **in) { return mt_sub(in[0], in[1]); }
static mt_tensor *mul(mt_tensor **in) { return mt_mul(in[0], in[1]); }
static mt_tensor *divide(mt_tensor **in) { return mt_div(in[0], in[1]); }
static mt_tensor *affine(mt_tensor **in) { return mt_affine(in[0], -1.75, 0.5); }
static mt_tensor *relu(mt_tensor **in) { return mt_relu(in[0]); }
static mt_tensor *leaky_relu(mt_tensor **in) { return mt_leaky_relu(in[0], 0.2); }
static mt_tensor *gelu(mt_tensor **in) { return mt_gelu(in[0]); }
static mt_tensor *gelu_tanh(mt_tensor **in) { return mt_gelu_tanh(in[0]); }
static mt_tensor *silu(mt_tensor **in) { return mt_silu(in[0]); }
static mt_tensor *tanh_(mt_tensor **in) { return mt_tanh(in[0]); }
static mt_tensor *sigmoid(mt_tensor **in) { return mt_sigmoid(in[0]); }
static mt_tensor *exp_(mt_tensor **in) { return mt_exp(in[0]); }
static mt_tensor *log_(mt_tensor **in) { return mt_log(in[0]); }
static mt_tensor *power(mt_tensor **in) { return mt_pow(in[0], 3); }
static mt_tensor *sqrt_(mt_tensor **in) { return mt_sqrt(in[0]); }
static mt_tensor *cast(mt_tensor **in) { return mt_cast(in[0], MT_BF16); }

/* A leaf that requires grad may not change: affine, which keeps nothing, makes what may. */
static mt_tensor *relu_inplace(mt_tensor **in)
{
    mt_tensor *h = mt_affine(in[0], 2, 0);
    if (h && mt_relu_inplace(h) != MT_OK) mt_set(&h, NULL);
    return h;
}

static mt_tensor *leaky_relu_inplace(mt_tensor **in)
{
    mt_tensor *h = mt_affine(in[0], 2, 0);
    if (h && mt_leaky_relu_inplace(h, 0.2) != MT_OK) mt_set(&h, NULL);
    return h;
}

static mt_tensor *matmul(mt_tensor **in) { return mt_matmul(in[0], in[1]); }
static mt_tensor *linear(mt_tensor **in) { return mt_linear(in[0], in[1], in[2]); }
static mt_tensor *softmax(mt_tensor **in) { return mt_softmax(in[0], 1, false); }
static mt_tensor *log_softmax(mt_tensor **in) { return mt_log_softmax(in[0]); }
static mt_tensor *layer_norm(mt_tensor **in) { return mt_layer_norm(in[0], in[1], in[2], 1e-5); }
static mt_tensor *rms_norm(mt_tensor **in) { return mt_rms_norm(in[0], in[1], 1e-5); }
static mt_tensor *rope(mt_tensor **in) { return mt_rope(in[0], 0, 10000); }
static mt_tensor *swiglu(mt_tensor **in) { return mt_swiglu(in[0], in[1]); }
static mt_tensor *dropout(mt_tensor **in) { return mt_dropout(in[0], 0.1); }
static mt_tensor *embedding(mt_tensor **in) { return mt_embedding(in[0], in[1]); }
static mt_tensor *cross_entropy(mt_tensor **in) { return mt_cross_entropy(in[0], in[1], -100); }
static mt_tensor *linear_cross_entropy(mt_tensor **in)
{
    return mt_linear_cross_entropy(in[0], in[1], in[2], -100, 8);
}
static mt_tensor *mse(mt_tensor **in) { return mt_mse(in[0], in[1]); }
static mt_tensor *sum(mt_tensor **in) { return mt_sum(in[0], 1, (int[]){-1}, false); }
static mt_tensor *mean(mt_tensor **in) { return mt_mean(in[0], 1, (int[]){-1}, false); }
static mt_tensor *max(mt_tensor **in) { return mt_max(in[0], 1, (int[]){-1}, false); }
static mt_tensor *where(mt_tensor **in)
{
    MT_AUTO mt_tensor *mask = mt_cast(in[0], MT_BOOL);
    return mt_where(mask, in[1], in[2]);
}
static mt_tensor *all_gather(mt_tensor **in) { return mt_all_gather(in[0], 1, 1); }
static mt_tensor *reduce_scatter(mt_tensor **in) { return mt_reduce_scatter(in[0], 1, 1); }
static mt_tensor *all_reduce(mt_tensor **in) { return mt_all_reduce(in[0], 1); }
static mt_tensor *replicate(mt_tensor **in) { return mt_replicate(in[0], 1); }
static mt_tensor *send_on(mt_tensor **in) { return mt_send(in[0], 1); }
static mt_tensor *receive(mt_tensor **in) { return mt_recv(in[0], 1); }
static mt_tensor *permute(mt_tensor **in) { return mt_permute(in[0], (int[]){1, 0}); }
static mt_tensor *slice(mt_tensor **in) { return mt_slice(in[0], 1, 8, 16); }
static mt_tensor *expand(mt_tensor **in) { return mt_expand(in[0], MT_SHAPE(ROWS, WIDE)); }
static mt_tensor *reshape(mt_tensor **in) { return mt_reshape(in[0], MT_SHAPE(-1)); }
static mt_tensor *clone(mt_tensor **in) { return mt_clone(in[0]); }
static mt_tensor *cat(mt_tensor **in) { return mt_cat(2, in, 1); }

static mt_tensor *contiguous(mt_tensor **in)
{
    MT_AUTO mt_tensor *turned = mt_transpose(in[0], 0, 1);
    return mt_contiguous(turned);
}

/* The first of two parts. */
static mt_tensor *split(mt_tensor **in)
{
    mt_tensor *part[2];
    if (mt_split(in[0], 1, 2, (const int64_t[]){16, 48}, part) != MT_OK) return NULL;
    mt_release(part[1]);
    return part[0];
}

static mt_tensor *flash(mt_tensor **in)
{
    return mt_flash_attention(in[0], in[1], in[2], 0, true, 0);
}

static mt_tensor *flash_dropout(mt_tensor **in)
{
    return mt_flash_attention(in[0], in[1], in[2], 0, true, 0.1);
}

#define HEADS X(2, 2, 8, 64) /* [b,a,s,d] */

const mti_audit_case mti_audit_cases[] = {
    {"add", "", add, 2, {X(ROWS, WIDE), X(ROWS, WIDE)}},
    {"sub", "", sub, 2, {X(ROWS, WIDE), X(ROWS, WIDE)}},
    {"mul", "", mul, 2, {X(ROWS, WIDE), X(ROWS, WIDE)}},
    {"div", "", divide, 2, {X(ROWS, WIDE), POSITIVE(ROWS, WIDE)}},
    {"affine", "", affine, 1, {X(ROWS, WIDE)}},
    {"relu", "", relu, 1, {X(ROWS, WIDE)}},
    {"relu_inplace", "", relu_inplace, 1, {X(ROWS, WIDE)}},
    {"leaky_relu", "", leaky_relu, 1, {X(ROWS, WIDE)}},
    {"leaky_relu_inplace", "", leaky_relu_inplace, 1, {X(ROWS, WIDE)}},
    {"gelu", "", gelu, 1, {X(ROWS, WIDE)}},
    {"gelu_tanh", "", gelu_tanh, 1, {X(ROWS, WIDE)}},
    {"silu", "", silu, 1, {X(ROWS, WIDE)}},
    {"tanh", "", tanh_, 1, {X(ROWS, WIDE)}},
    {"sigmoid", "", sigmoid, 1, {X(ROWS, WIDE)}},
    {"exp", "", exp_, 1, {X(ROWS, WIDE)}},
    {"log", "", log_, 1, {POSITIVE(ROWS, WIDE)}},
    {"sqrt", "", sqrt_, 1, {POSITIVE(ROWS, WIDE)}},
    {"pow", "exponent 3", power, 1, {X(ROWS, WIDE)}},
    {"matmul", "", matmul, 2, {X(ROWS, WIDE), X(WIDE, 48)}},
    {"linear", "", linear, 3, {X(ROWS, WIDE), WEIGHT(48, WIDE), WEIGHT(48)}},
    {"softmax", "", softmax, 1, {X(ROWS, WIDE)}},
    {"log_softmax", "", log_softmax, 1, {X(ROWS, WIDE)}},
    {"layer_norm", "", layer_norm, 3, {X(ROWS, WIDE), WEIGHT(WIDE), WEIGHT(WIDE)}},
    {"rms_norm", "", rms_norm, 2, {X(ROWS, WIDE), WEIGHT(WIDE)}},
    {"rope", "", rope, 1, {HEADS}},
    {"swiglu", "", swiglu, 2, {X(ROWS, WIDE), X(ROWS, WIDE)}},
    {"dropout", "p = 0.1", dropout, 1, {X(ROWS, WIDE)}},
    {"embedding", "", embedding, 2, {INDEX(48, ROWS), WEIGHT(48, WIDE)}},
    {"cross_entropy", "", cross_entropy, 2, {X(ROWS, WIDE), INDEX(WIDE, ROWS)}},
    {"linear_cross_entropy",
     "8 rows at a time",
     linear_cross_entropy,
     3,
     {X(ROWS, WIDE), WEIGHT(48, WIDE), INDEX(48, ROWS)}},
    {"mse", "", mse, 2, {X(ROWS, WIDE), X(ROWS, WIDE)}},
    {"sum", "", sum, 1, {X(ROWS, WIDE)}},
    {"mean", "", mean, 1, {X(ROWS, WIDE)}},
    {"max", "over rows", max, 1, {X(ROWS, WIDE)}},
    {"where", "", where, 3, {INDEX(2, ROWS, WIDE), X(ROWS, WIDE), X(ROWS, WIDE)}},
    {"all_gather", "", all_gather, 1, {X(ROWS, WIDE)}},
    {"reduce_scatter", "", reduce_scatter, 1, {X(ROWS, WIDE)}},
    {"all_reduce", "", all_reduce, 1, {X(ROWS, WIDE)}},
    {"replicate", "", replicate, 1, {X(ROWS, WIDE)}},
    {"send", "", send_on, 1, {X(ROWS, WIDE)}},
    {"recv", "", receive, 1, {X(ROWS, WIDE)}},
    {"permute", "", permute, 1, {X(ROWS, WIDE)}},
    {"slice", "", slice, 1, {X(ROWS, WIDE)}},
    {"expand", "", expand, 1, {X(1, WIDE)}},
    {"reshape", "", reshape, 1, {X(ROWS, WIDE)}},
    {"split", "", split, 1, {X(ROWS, WIDE)}},
    {"cast", "to bf16", cast, 1, {X(ROWS, WIDE)}},
    {"contiguous", "", contiguous, 1, {X(ROWS, WIDE)}},
    {"clone", "", clone, 1, {X(ROWS, WIDE)}},
    {"cat", "", cat, 2, {X(ROWS, WIDE), X(ROWS, WIDE)}},
    {"flash_attention", "without dropout", flash, 3, {HEADS, HEADS, HEADS}},
    {"flash_attention", "dropout 0.1", flash_dropout, 3, {HEADS, HEADS, HEADS}},
};
const size_t mti_n_audit_cases = COUNT(mti_audit_cases);

/* ---- cheaper ways ---- */

static const mti_cheaper ways[] = {
    {"relu", "y", MTI_CHEAPER_BITS, "one bit an element: y > 0"},
    {"relu_inplace", "y", MTI_CHEAPER_BITS, "one bit an element: y > 0"},
    {"leaky_relu", "x", MTI_CHEAPER_OUTPUT, "y has the sign of x: leaky_relu_inplace keeps y"},
    {"leaky_relu", "x", MTI_CHEAPER_BITS, "one bit an element: x > 0"},
    {"leaky_relu_inplace", "y", MTI_CHEAPER_BITS, "one bit an element: y > 0"},
    {"dropout", "mask", MTI_CHEAPER_SEED, "drawn again from seed and offset"},
    {"dropout", "mask", MTI_CHEAPER_BITS, "one bit an element instead of one byte"},
    {"layer_norm", "mean", MTI_CHEAPER_RECOMPUTE, "the mean of x, which is kept"},
    {"layer_norm", "rstd", MTI_CHEAPER_RECOMPUTE, "from x, which is kept"},
    {"layer_norm", "x", MTI_CHEAPER_OUTPUT,
     "x = (y - b) / (w rstd) + mean where no w is 0; to rounding only"},
    {"rms_norm", "rstd", MTI_CHEAPER_RECOMPUTE, "from x, which is kept"},
    {"rms_norm", "x", MTI_CHEAPER_OUTPUT, "x = y / (w rstd) where no w is 0; to rounding only"},
    {"exp", "y", MTI_CHEAPER_RECOMPUTE, "exp of x, if x is kept anyway"},
    {"log", "x", MTI_CHEAPER_OUTPUT, "x = exp y; to rounding only"},
    {"softmax", "y", MTI_CHEAPER_RECOMPUTE, "from x and each row's log-sum-exp, as flash does"},
    {"log_softmax", "y", MTI_CHEAPER_RECOMPUTE, "from x and each row's log-sum-exp"},
    {"cross_entropy", "logp", MTI_CHEAPER_RECOMPUTE,
     "from the hidden state, chunk by chunk, fused with the output product"},
    {"cross_entropy", "target", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"linear_cross_entropy", "lse", MTI_CHEAPER_RECOMPUTE, "from x and w, one more product"},
    {"linear_cross_entropy", "target", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"max", "index", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"where", "mask", MTI_CHEAPER_BITS, "one bit an element instead of one byte"},
    {"embedding", "index", MTI_CHEAPER_HALF, "i32 instead of i64"},
    {"mse", "x", MTI_CHEAPER_HALF, "x - y, one tensor for the two"},
    {"mse", "y", MTI_CHEAPER_HALF, "x - y, one tensor for the two"},
    {"flash_attention", "lse", MTI_CHEAPER_RECOMPUTE, "from q and k, one more product"},
    {"flash_attention", "out", MTI_CHEAPER_RECOMPUTE, "the forward pass again"},
    /* What was made by something that is still there can be made again. */
    {NULL, NULL, MTI_CHEAPER_RECOMPUTE, "the op that made it"},
};

const mti_cheaper *mti_audit_cheaper(const char *op, const mti_audit_kept *kept, size_t nth)
{
    if (kept->parameter) return NULL; /* there anyway */
    bool any = false;
    for (size_t i = 0; i < COUNT(ways); i++) {
        const mti_cheaper *w = &ways[i];
        bool fits = w->op ? !strcmp(w->op, op) && !strcmp(w->argument, kept->argument)
                          : !any && mt_dtype_is_float(kept->dtype);
        any = any || fits;
        if (fits && nth-- == 0) return w;
    }
    return NULL;
}

const char *mti_cheaper_name(mti_cheaper_kind kind)
{
    static const char *const names[MTI_CHEAPER_COUNT] = {
        [MTI_CHEAPER_OUTPUT] = "output",       [MTI_CHEAPER_BITS] = "bits",
        [MTI_CHEAPER_SEED] = "seed",           [MTI_CHEAPER_HALF] = "half",
        [MTI_CHEAPER_RECOMPUTE] = "recompute",
    };
    return names[kind];
}

size_t mti_cheaper_bytes(const mti_cheaper *way, const mti_audit_kept *kept)
{
    size_t n = kept->bytes / mt_dtype_size(kept->dtype);
    switch (way->kind) {
    case MTI_CHEAPER_BITS: return (n + 7) / 8;
    case MTI_CHEAPER_SEED: return 2 * sizeof(int64_t);
    case MTI_CHEAPER_HALF: return kept->bytes / 2;
    case MTI_CHEAPER_OUTPUT:
    case MTI_CHEAPER_RECOMPUTE:
    default: return 0;
    }
}
