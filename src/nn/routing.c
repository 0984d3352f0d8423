/* routing.c: which experts a token meets, and with which weights. */
#include <math.h>
#include "nn/model.h"
#include "memtape/ops.h"

typedef struct routing {
    int64_t n, k, groups, topk_groups; /* groups 0: one of all */
    mt_router scores;
    bool norm;            /* a token's weights add up to 1, before they are scaled */
    bool wide, as_scored; /* the weights keep the scores' type */
    double scale;
} routing;

/* ---- the router's product [t,d] -> [t,experts]: no "linear", so adapters leave it, as PEFT's do
 * ---- */

static mt_tensor *router_forward(mt_module *self, mt_tensor *x)
{
    const routing *r = mt_module_user(self);
    mt_tensor *w = mt_module_param(self, "weight");
    if (!r->wide || mt_dtype_size(mt_dtype_of(x)) > 2) return mt_linear(x, w, NULL);
    MT_AUTO mt_tensor *x32 = mt_cast(x, MT_F32);
    MT_AUTO mt_tensor *w32 = x32 ? mt_cast(w, MT_F32) : NULL;
    return w32 ? mt_linear(x32, w32, NULL) : NULL;
}

mt_module *mti_router_new(mt_device *device, const mt_model_config *c)
{
    routing *r = mti_malloc(sizeof *r);
    if (!r) return NULL;
    *r = (routing){.n = c->experts,
                   .k = c->experts_per_token,
                   .groups = c->expert_groups,
                   .topk_groups = c->expert_topk_groups,
                   .scores = c->router,
                   .norm = c->norm_topk,
                   .wide = c->wide_router,
                   .as_scored = c->ops.expert_form > MT_EXPERTS_LOOP,
                   .scale = c->expert_scale};
    mt_module *m = mt_module_new("router", router_forward, r, mti_free);
    mt_tensor *w =
        m ? mt_normal(device, c->dtype, MT_SHAPE(c->experts, c->hidden), 0, MTI_INIT_STD) : NULL;
    const mt_dtype dtype = c->dtype == MT_F64 ? MT_F64 : MT_F32;
    return mti_module_complete(
        m, mt_module_add_param(m, "weight", w) &&
               (c->router != MT_ROUTER_SIGMOID ||
                mti_module_add_buffer(m, "bias", mt_zeros(device, dtype, MT_SHAPE(c->experts)))));
}

/* ---- the choice ---- */

/* The scores of groups: of each its best expert's, or the sum of its best two [t,groups] */
static mt_tensor *group_scores(const routing *r, mt_tensor *scores)
{
    mt_tensor *y = mt_reshape(scores, MT_SHAPE(-1, r->groups, r->n / r->groups)), *two = NULL;
    if (r->scores == MT_ROUTER_SOFTMAX) {
        mt_set(&y, mt_max(y, 1, (const int[]){-1}, false));
        return y;
    }
    mt_tensor *index = NULL;
    if (y && mt_topk(y, 2, &two, &index) != MT_OK) two = NULL;
    mt_release(index);
    mt_set(&y, mt_sum(two, 1, (const int[]){-1}, false));
    mt_release(two);
    return y;
}

/* Which experts are in groups that a token does not meet: bool [t,n]. Groups with the score of the
 * last that it meets are met, too. */
static mt_tensor *hidden_experts(const routing *r, mt_tensor *scores)
{
    mt_tensor *of = group_scores(r, scores), *best = NULL, *index = NULL, *y = NULL;
    if (of && mt_topk(of, r->topk_groups, &best, &index) == MT_OK) {
        mt_set(&best, mt_slice(best, 1, r->topk_groups - 1, 1));
        y = best ? mt_lt(of, best) : NULL;
    }
    mt_release(of), mt_release(best), mt_release(index);
    const int64_t size = r->n / r->groups;
    mt_set(&y, y ? mt_reshape(y, MT_SHAPE(-1, r->groups, 1)) : NULL);
    mt_set(&y, y ? mt_expand(y, MT_SHAPE(mt_shape(y)[0], r->groups, size)) : NULL);
    mt_set(&y, y ? mt_reshape(y, MT_SHAPE(-1, r->n)) : NULL);
    mt_set(&y, y ? mt_contiguous(y) : NULL); /* of one group it is a view */
    return y;
}

/* The same, without a gradient. */
static mt_tensor *hidden_from(const routing *r, mt_tensor *scores)
{
    bool grad = mt_set_grad_mode(false);
    mt_tensor *y = hidden_experts(r, scores);
    mt_set_grad_mode(grad);
    return y;
}

/* The k experts of each row of softmax scores, and their weights. */
static bool choose(const routing *r, mt_tensor *scores, mt_tensor **weights, mt_tensor **index)
{
    MT_AUTO mt_tensor *met = mt_retain(scores);
    if (r->groups) {
        MT_AUTO mt_tensor *hidden = hidden_from(r, scores);
        mt_set(&met, hidden ? mt_masked_fill(scores, hidden, 0) : NULL);
    }
    return met && mt_topk(met, r->k, weights, index) == MT_OK;
}

/* The k experts with the largest score + bias: [t,k] */
static mt_tensor *best_with_bias(const routing *r, mt_tensor *scores, mt_tensor *bias)
{
    MT_AUTO mt_tensor *sum = mt_cast(scores, mt_dtype_of(bias));
    mt_tensor *values = NULL, *index = NULL;
    mt_set(&sum, sum ? mt_add(sum, bias) : NULL);
    if (sum && r->groups) {
        MT_AUTO mt_tensor *hidden = hidden_experts(r, sum);
        mt_set(&sum, hidden ? mt_masked_fill(sum, hidden, -INFINITY) : NULL);
    }
    if (sum && mt_topk(sum, r->k, &values, &index) != MT_OK) index = NULL;
    mt_release(values);
    return index;
}

/* The same of sigmoid scores, whose bias changes the choice and not the weights. */
static bool choose_biased(const routing *r, mt_tensor *scores, mt_tensor *bias, mt_tensor **weights,
                          mt_tensor **index)
{
    bool grad = mt_set_grad_mode(false);
    *index = best_with_bias(r, scores, bias);
    mt_set_grad_mode(grad);
    *weights = *index ? mt_gather(scores, 1, *index) : NULL;
    return *weights != NULL;
}

/* *x divided by its rows' sums */
static bool divide_by_sum(mt_tensor **x)
{
    mt_tensor *sum = mt_sum(*x, 1, (const int[]){-1}, true);
    mt_set(x, sum ? mt_div(*x, sum) : NULL);
    mt_release(sum);
    return *x != NULL;
}

bool mti_choose_experts(mt_module *experts, mt_tensor *x, mt_tensor **weights, mt_tensor **index)
{
    mt_module *router = mt_module_child(experts, "router");
    const routing *r = mt_module_user(router);
    mt_tensor *p = mt_forward_child(experts, "router", x), *bias = mt_module_param(router, "bias");
    const mt_dtype own = mt_dtype_of(x), of_p = p ? mt_dtype_of(p) : MT_F32;
    const mt_dtype dtype = r->wide && mt_dtype_size(own) == 2 ? own : of_p;
    *weights = *index = NULL;
    if (p && !bias && mt_dtype_size(of_p) == 2) mt_set(&p, mt_cast(p, MT_F32));
    mt_set(&p, bias ? mt_sigmoid(p) : mt_softmax(p, 1, false));
    bool ok =
        p && (bias ? choose_biased(r, p, bias, weights, index) : choose(r, p, weights, index));
    mt_release(p);
    if (ok && r->norm) ok = divide_by_sum(weights);
    if (ok && r->scale > 0) ok = mt_set(weights, mt_affine(*weights, r->scale, 0)) == MT_OK;
    return ok && (r->as_scored || mt_set(weights, mt_cast(*weights, dtype)) == MT_OK);
}
