/* functions.c: every row of the op table as a function of its inputs. The constants are the same in
 * peer.py. */
#include <string.h>
#include "bench.h"

#define UNARY(row)                                                                                 \
    static mt_tensor *row##_(mt_tensor **in, int64_t n) { return (void)n, mt_##row(in[0]); }
#define BINARY(row)                                                                                \
    static mt_tensor *row##_(mt_tensor **in, int64_t n) { return (void)n, mt_##row(in[0], in[1]); }
BINARY(add)
BINARY(sub)
BINARY(mul)
BINARY(div)
BINARY(matmul)
BINARY(embedding)
BINARY(mse)
UNARY(relu)
UNARY(gelu)
UNARY(gelu_tanh)
UNARY(silu)
UNARY(tanh)
UNARY(sigmoid)
UNARY(exp)
UNARY(log)
UNARY(sqrt)
BINARY(swiglu)
UNARY(log_softmax)
UNARY(sum_all)
UNARY(mean_all)
UNARY(clone)

static mt_tensor *affine(mt_tensor **in, int64_t n) { return (void)n, mt_affine(in[0], 1.5, 0.5); }
static mt_tensor *pow_(mt_tensor **in, int64_t n) { return (void)n, mt_pow(in[0], 3); }
static mt_tensor *leaky_relu(mt_tensor **in, int64_t n)
{
    return (void)n, mt_leaky_relu(in[0], 0.2);
}

/* Only what an op made may be changed in place while gradients are on. */
static mt_tensor *relu_inplace(mt_tensor **in, int64_t n)
{
    mt_tensor *h = mt_mul_scalar(in[0], 2);
    if (mt_relu_inplace(h) != MT_OK) mt_set(&h, NULL);
    return (void)n, h;
}

static mt_tensor *leaky_relu_inplace(mt_tensor **in, int64_t n)
{
    mt_tensor *h = mt_mul_scalar(in[0], 2);
    if (mt_leaky_relu_inplace(h, 0.2) != MT_OK) mt_set(&h, NULL);
    return (void)n, h;
}

static mt_tensor *cast(mt_tensor **in, int64_t n) { return (void)n, mt_cast(in[0], MT_BF16); }
static mt_tensor *linear(mt_tensor **in, int64_t n)
{
    return (void)n, mt_linear(in[0], in[1], in[2]);
}
static mt_tensor *softmax(mt_tensor **in, int64_t n) { return (void)n, mt_softmax(in[0], 1, true); }
static mt_tensor *layer_norm(mt_tensor **in, int64_t n)
{
    return (void)n, mt_layer_norm(in[0], in[1], in[2], 1e-5);
}
static mt_tensor *rms_norm(mt_tensor **in, int64_t n)
{
    return (void)n, mt_rms_norm(in[0], in[1], 1e-5);
}
static mt_tensor *rope(mt_tensor **in, int64_t n) { return (void)n, mt_rope(in[0], 0, 10000); }
static mt_tensor *max_(mt_tensor **in, int64_t n)
{
    return (void)n, mt_max(in[0], 1, (int[]){-1}, false);
}
static mt_tensor *where(mt_tensor **in, int64_t n)
{
    MT_AUTO mt_tensor *mask = mt_cast(in[0], MT_BOOL);
    return (void)n, mt_where(mask, in[1], in[2]);
}
static mt_tensor *dropout(mt_tensor **in, int64_t n) { return (void)n, mt_dropout(in[0], 0.1); }
static mt_tensor *cross_entropy(mt_tensor **in, int64_t n)
{
    return (void)n, mt_cross_entropy(in[0], in[1], -100);
}

static mt_tensor *linear_cross_entropy(mt_tensor **in, int64_t n)
{
    return (void)n, mt_linear_cross_entropy(in[0], in[1], in[2], -100, 0);
}

static mt_tensor *permute(mt_tensor **in, int64_t n)
{
    return (void)n, mt_permute(in[0], (int[]){1, 0});
}
static mt_tensor *slice(mt_tensor **in, int64_t n) { return (void)n, mt_slice(in[0], 1, 2, 4); }
static mt_tensor *expand(mt_tensor **in, int64_t n)
{
    return (void)n, mt_expand(in[0], MT_SHAPE(4, 8));
}
static mt_tensor *reshape(mt_tensor **in, int64_t n)
{
    return (void)n, mt_reshape(in[0], MT_SHAPE(8, 4));
}
static mt_tensor *contiguous(mt_tensor **in, int64_t n)
{
    MT_AUTO mt_tensor *turned = mt_transpose(in[0], 0, 1);
    return (void)n, mt_contiguous(turned);
}

static mt_tensor *split(mt_tensor **in, int64_t n)
{
    mt_tensor *part[2];
    if (mt_split(in[0], 1, 2, (int64_t[]){4, 4}, part) != MT_OK) return NULL;
    mt_release(part[0]);
    return (void)n, part[1];
}

/* Collectives, of one rank. */
static mt_tensor *all_gather(mt_tensor **in, int64_t n)
{
    return (void)n, mt_all_gather(in[0], 0, 1);
}
static mt_tensor *reduce_scatter(mt_tensor **in, int64_t n)
{
    return (void)n, mt_reduce_scatter(in[0], 0, 1);
}
static mt_tensor *all_reduce(mt_tensor **in, int64_t n) { return (void)n, mt_all_reduce(in[0], 1); }
static mt_tensor *replicate(mt_tensor **in, int64_t n) { return (void)n, mt_replicate(in[0], 1); }
static mt_tensor *send_(mt_tensor **in, int64_t n) { return (void)n, mt_send(in[0], 1); }
static mt_tensor *recv_(mt_tensor **in, int64_t n) { return (void)n, mt_recv(in[0], 1); }

static mt_tensor *cat(mt_tensor **in, int64_t n) { return (void)n, mt_cat(2, in, 0); }
static mt_tensor *flash_attention(mt_tensor **in, int64_t n)
{
    return (void)n, mt_flash_attention(in[0], in[1], in[2], 0, true, 0);
}

/* [b,s,3d] -> [b,s,d]: between a block's two projections, with n heads */
static mt_tensor *heads(mt_tensor **in, int64_t n)
{
    const int64_t *shape = mt_shape(in[0]);
    int64_t b = shape[0], s = shape[1], d = shape[2] / 3;
    mt_tensor *part[3];
    if (mt_split(in[0], 2, 3, (int64_t[]){d, d, d}, part) != MT_OK) return NULL;
    for (int i = 0; i < 3; i++) {
        mt_set(&part[i], mt_reshape(part[i], MT_SHAPE(b, s, n, d / n)));
        mt_set(&part[i], mt_transpose(part[i], 1, 2));
    }
    mt_tensor *y = mt_flash_attention(part[0], part[1], part[2], 0, true, 0);
    for (int i = 0; i < 3; i++) mt_release(part[i]);
    mt_set(&y, mt_transpose(y, 1, 2));
    mt_set(&y, mt_reshape(y, MT_SHAPE(b, s, d)));
    return y;
}

/* i64 [b,s], w [v,d], positions [s,d] -> [b,s,d] */
static mt_tensor *embed(mt_tensor **in, int64_t n)
{
    MT_AUTO mt_tensor *h = mt_embedding(in[0], in[1]);
    return (void)n, mt_add(h, in[2]);
}

bench_fn *bench_find_function(const char *name)
{
    static const struct named {
        const char *name;
        bench_fn *fn;
    } all[] = {
        {"add", add_},
        {"sub", sub_},
        {"mul", mul_},
        {"div", div_},
        {"affine", affine},
        {"relu", relu_},
        {"relu_inplace", relu_inplace},
        {"leaky_relu", leaky_relu},
        {"leaky_relu_inplace", leaky_relu_inplace},
        {"gelu", gelu_},
        {"gelu_tanh", gelu_tanh_},
        {"silu", silu_},
        {"tanh", tanh_},
        {"sigmoid", sigmoid_},
        {"exp", exp_},
        {"log", log_},
        {"sqrt", sqrt_},
        {"pow", pow_},
        {"swiglu", swiglu_},
        {"where", where},
        {"cast", cast},
        {"matmul", matmul_},
        {"linear", linear},
        {"softmax", softmax},
        {"log_softmax", log_softmax_},
        {"layer_norm", layer_norm},
        {"rms_norm", rms_norm},
        {"rope", rope},
        {"max", max_},
        {"dropout", dropout},
        {"embedding", embedding_},
        {"cross_entropy", cross_entropy},
        {"linear_cross_entropy", linear_cross_entropy},
        {"mse", mse_},
        {"sum", sum_all_},
        {"mean", mean_all_},
        {"permute", permute},
        {"slice", slice},
        {"expand", expand},
        {"reshape", reshape},
        {"contiguous", contiguous},
        {"clone", clone_},
        {"split", split},
        {"cat", cat},
        {"all_gather", all_gather},
        {"reduce_scatter", reduce_scatter},
        {"all_reduce", all_reduce},
        {"replicate", replicate},
        {"send", send_},
        {"recv", recv_},
        {"flash_attention", flash_attention},
        {"heads", heads},
        {"embed", embed},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0) return all[i].fn;
    return NULL;
}
