/* experts.c: a mixture of experts in an MLP's place: [..,d] -> [..,d]. Of n gated MLPs d -> f -> d
 * each token goes through the k that a router gives most weight, and their outputs are summed,
 * weighted (Shazeer et al. 2017). No token is dropped. The order of ops is that of Transformers'
 * grouped_mm: what is kept for the t k rows is their sorted copies, gate and up, their product and
 * the experts' outputs, (2 d + 3 f) e + 24 bytes each, and the rows' weights. */
#include "nn/model.h"
#include "nn/quantized.h"
#include "memtape/ops.h"

typedef struct experts {
    int64_t n;
    mt_op_form swiglu;
    bool clamped; /* and with biases */
} experts;

/* ---- a product for all experts: rows sorted by expert [n,in] -> [n,out] ---- */

/* The module's user data: how many rows each has, set while the experts run; borrowed. */
typedef struct product {
    mt_tensor *counts;
} product;

static mt_tensor *product_forward(mt_module *self, mt_tensor *x)
{
    const product *p = mt_module_user(self);
    return mt_grouped_linear(x, mt_module_param(self, "weight"), p->counts);
}

mt_module *mti_grouped_linear_of(mt_tensor *weight)
{
    product *user = weight ? mti_calloc(1, sizeof *user) : NULL;
    mt_module *m = user ? mt_module_new("grouped_linear", product_forward, user, mti_free) : NULL;
    if (!m) mt_release(weight);
    return mti_module_complete(m, m && mt_module_add_param(m, "weight", weight));
}

static bool add_product(mt_module *m, const char *name, mt_device *device, const mt_model_config *c,
                        int64_t in, int64_t out, double std)
{
    return mt_module_add_child(
        m, name,
        mti_grouped_linear_of(mt_normal(device, c->dtype, MT_SHAPE(c->experts, out, in), 0, std)));
}

/* For m, a product or an adapter in its place, and those below it. */
static void set_counts(mt_module *m, mt_tensor *counts)
{
    mt_module *child;
    if (mti_module_runs(m, product_forward)) ((product *)mt_module_user(m))->counts = counts;
    if (mti_is_linear_quantized(m)) mti_linear_quantized_set_counts(m, counts);
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++) set_counts(child, counts);
}

static mt_tensor *run_product(mt_module *self, const char *name, mt_tensor *x, mt_tensor *counts)
{
    mt_module *m = mt_module_child(self, name);
    set_counts(m, counts);
    mt_tensor *y = mt_forward_child(self, name, x);
    set_counts(m, NULL);
    return y;
}

/* ---- the mixture ---- */

/* ---- a bias for each expert: rows h [n,d] -> [n,d] ---- */

/* The module's user data: whose row each is, i64 [n], set while the experts run; borrowed. */
typedef struct expert_bias {
    mt_tensor *ids;
} expert_bias;

static mt_tensor *bias_forward(mt_module *self, mt_tensor *h)
{
    const expert_bias *user = mt_module_user(self);
    MT_AUTO mt_tensor *rows = mt_embedding(user->ids, mt_module_param(self, "weight"), NULL);
    mt_set(&rows, rows ? mt_cast(rows, mt_dtype_of(h)) : NULL);
    return rows ? mt_add(h, rows) : NULL;
}

static bool add_bias(mt_module *m, const char *name, mt_device *device, const mt_model_config *c,
                     int64_t width)
{
    expert_bias *user = mti_calloc(1, sizeof *user);
    mt_module *bias = user ? mt_module_new("expert_bias", bias_forward, user, mti_free) : NULL;
    mt_tensor *w = bias ? mt_zeros(device, c->dtype, MT_SHAPE(c->experts, width)) : NULL;
    return mt_module_add_child(
        m, name, mti_module_complete(bias, bias && mt_module_add_param(bias, "weight", w)));
}

static mt_tensor *run_bias(mt_module *self, const char *name, mt_tensor *h, mt_tensor *ids)
{
    expert_bias *user = mt_module_user(mt_module_child(self, name));
    user->ids = ids;
    mt_tensor *y = mt_forward_child(self, name, h);
    user->ids = NULL;
    return y;
}

/* run_experts() with a clamped gate and biases; index [t,k]: the rows' experts before the sorting
 */
static mt_tensor *run_clamped(mt_module *self, mt_tensor *h, mt_tensor *index, const mt_groups *g)
{
    mt_tensor *ids = mt_reshape(index, MT_SHAPE(-1));
    mt_set(&ids, mt_gather(ids, 0, g->order));
    mt_set(&h, ids ? run_product(self, "experts_gate_up", h, g->counts) : NULL);
    mt_set(&h, h ? run_bias(self, "experts_gate_up_bias", h, ids) : NULL);
    mt_set(&h, h ? mti_clamped_gate(h) : NULL);
    mt_set(&h, h ? run_product(self, "experts_down", h, g->counts) : NULL);
    mt_set(&h, h ? run_bias(self, "experts_down_bias", h, ids) : NULL);
    mt_release(ids);
    return h;
}

/* Rows h [n,d], taken over, sorted by expert, through their experts. */
static mt_tensor *run_experts(mt_module *self, mt_tensor *h, mt_tensor *counts)
{
    const experts *e = mt_module_user(self);
    mt_tensor *half[2] = {NULL, NULL};
    mt_set(&h, run_product(self, "experts_gate_up", h, counts));
    const int64_t f = h ? mt_shape(h)[1] / 2 : 0;
    bool ok = h && mt_split(h, 1, 2, (const int64_t[]){f, f}, half) == MT_OK;
    mt_set(&h, !ok                          ? NULL
               : e->swiglu == MT_OP_UNFUSED ? mti_swiglu_unfused(half[0], half[1])
                                            : mt_swiglu(half[0], half[1]));
    mt_release(half[0]), mt_release(half[1]);
    mt_set(&h, run_product(self, "experts_down", h, counts));
    return h;
}

/* y [n,d], taken over, as sorted, times its weights [t,k] -> [t,d], the sum over each token's */
static mt_tensor *combine(mt_tensor *y, mt_tensor *weights, const mt_groups *g)
{
    const int64_t k = mt_shape(weights)[1];
    mt_tensor *w = mt_reshape(weights, MT_SHAPE(-1));
    mt_set(&w, mt_gather(w, 0, g->order));
    mt_set(&w, w ? mt_reshape(w, MT_SHAPE(-1, 1)) : NULL);
    mt_set(&y, mt_mul(y, w));
    mt_release(w);
    mt_set(&y, mt_embedding(g->inverse, y, NULL));
    mt_set(&y, y ? mt_reshape(y, MT_SHAPE(-1, k, mt_shape(y)[1])) : NULL);
    mt_set(&y, mt_sum(y, 1, (const int[]){1}, false));
    return y;
}

static mt_tensor *experts_forward(mt_module *self, mt_tensor *x)
{
    const experts *e = mt_module_user(self);
    mt_tensor *weights = NULL, *index = NULL, *y = NULL;
    mt_groups groups = {0};
    mt_tensor *rows = mt_reshape(x, MT_SHAPE(-1, mt_shape(x)[mt_rank(x) - 1]));
    if (rows && mti_choose_experts(self, rows, &weights, &index))
        y = mt_dispatch(rows, index, e->n, &groups);
    if (y)
        y = e->clamped ? run_clamped(self, y, index, &groups) : run_experts(self, y, groups.counts);
    mt_release(rows), mt_release(index);
    if (y) y = combine(y, weights, &groups);
    mt_release(weights);
    mt_groups_release(&groups);
    mt_set(&y, y ? mt_reshape(y, mt_rank(x), mt_shape(x)) : NULL);
    if (y && mt_module_child(self, "shared")) {
        MT_AUTO mt_tensor *shared = mt_forward_child(self, "shared", x);
        mt_set(&y, shared ? mt_add(y, shared) : NULL);
    }
    mt_set(&y, mt_forward_child(self, "drop", y));
    return y;
}

/* The experts that every token meets are one MLP, as wide as all of them. */
static bool add_shared(mt_module *m, mt_device *device, const mt_model_config *c)
{
    mt_model_config own = *c;
    own.dense_ffn = c->shared_experts * c->ffn;
    mti_make_dense(&own);
    own.dropout = 0; /* their sum has it */
    return mt_module_add_child(m, "shared", mt_mlp_new(device, &own)) != NULL;
}

mt_module *mti_experts_new(mt_device *device, const mt_model_config *c)
{
    const int64_t d = c->hidden, f = c->ffn;
    experts *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    *user = (experts){c->experts, c->ops.swiglu, c->mlp == MT_MLP_CLAMPED};
    mt_module *m = mt_module_new("experts", experts_forward, user, mti_free);
    return mti_module_complete(
        m,
        m && mt_module_add_child(m, "router", mti_router_new(device, c)) &&
            add_product(m, "experts_gate_up", device, c, d, 2 * f, MTI_INIT_STD) &&
            add_product(m, "experts_down", device, c, f, d, mti_residual_std(c)) &&
            (c->mlp != MT_MLP_CLAMPED || (add_bias(m, "experts_gate_up_bias", device, c, 2 * f) &&
                                          add_bias(m, "experts_down_bias", device, c, d))) &&
            (!c->shared_experts || add_shared(m, device, c)) && mti_add_dropout(m, c));
}
