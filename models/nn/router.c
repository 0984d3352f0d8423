/* router.c: which experts a token meets, and with which weights. */
#include <math.h>
#include <string.h>
#include "nn/model.h"
#include "memtape/hooks.h"
#include "memtape/ops.h"

typedef struct routing {
    int64_t n, k, groups, topk_groups; /* groups 0: one of all */
    mt_router scores;
    bool norm;            /* a token's weights add up to 1, before they are scaled */
    bool wide, as_scored; /* the weights keep the scores' type */
    double scale;
    double rate;               /* of the bias's steps; 0: none */
    float *loads;              /* [n]: rows of each expert since the last one; NULL: no steps */
    mti_router_logits *logits; /* borrowed; NULL: they are not collected */
} routing;

static void free_routing(void *user)
{
    mti_free(((routing *)user)->loads);
    mti_free(user);
}

/* ---- the router's product [t,d] -> [t,experts]: no "linear", so adapters leave it, as PEFT's do
 * ---- */

static mt_tensor *router_forward(mt_module *self, mt_tensor *x)
{
    const routing *r = mt_module_user(self);
    mt_tensor *w = mt_module_param(self, "weight");
    if (r->scores == MT_ROUTER_CHOSEN) return mt_linear(x, w, mt_module_param(self, "bias"));
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
                   .as_scored = mti_expert_form_of(c->ops.expert_form)->as_scored,
                   .scale = c->expert_scale,
                   .rate = c->balance_rate,
                   .loads =
                       c->balance_rate > 0 ? mti_calloc((size_t)c->experts, sizeof(float)) : NULL};
    if (c->balance_rate > 0 && !r->loads) {
        mti_free(r);
        return NULL;
    }
    mt_module *m = mt_module_new("router", router_forward, r, free_routing);
    mt_tensor *w =
        m ? mt_normal(device, c->dtype, MT_SHAPE(c->experts, c->hidden), 0, MTI_INIT_STD) : NULL;
    const mt_dtype dtype = c->dtype == MT_F64 ? MT_F64 : MT_F32;
    return mti_module_complete(
        m,
        mt_module_add_param(m, "weight", w) &&
            (c->router != MT_ROUTER_CHOSEN || c->mlp != MT_MLP_CLAMPED ||
             mt_module_add_param(
                 m, "bias", mt_normal(device, c->dtype, MT_SHAPE(c->experts), 0, MTI_INIT_STD))) &&
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

/* ---- the bias's steps: balance without a loss (Wang et al. 2024) ---- */

static bool count_loads(const routing *r, mt_tensor *index)
{
    const size_t n = (size_t)mt_numel(index);
    if (!r->loads || mt_recomputing() || !mt_device_has_data(mt_device_of(index))) return true;
    int64_t *at = mti_malloc(n * sizeof *at);
    bool ok = at && mt_to_host(index, at, n * sizeof *at) == MT_OK;
    for (size_t i = 0; ok && i < n; i++) r->loads[at[i]]++;
    mti_free(at);
    return ok;
}

/* Experts with fewer rows than the mean get a bias higher by `rate`, those with more a lower one.
 */
static bool step_bias(routing *r, mt_tensor *bias, mti_sum_loads_fn *sum, const void *user)
{
    const size_t n_bytes = (size_t)r->n * sizeof(float);
    mt_device *device = mt_device_of(bias);
    MT_AUTO mt_tensor *loads = mt_from_data(device, MT_F32, MT_SHAPE(r->n), r->loads, n_bytes);
    if (!loads || !sum(user, loads) || mt_to_host(loads, r->loads, n_bytes) != MT_OK) return false;
    double mean = 0;
    for (int64_t i = 0; i < r->n; i++) mean += (double)r->loads[i] / (double)r->n;
    for (int64_t i = 0; i < r->n; i++)
        r->loads[i] =
            (float)r->rate * (float)(((double)r->loads[i] < mean) - ((double)r->loads[i] > mean));
    MT_AUTO mt_tensor *by = mt_from_data(device, MT_F32, MT_SHAPE(r->n), r->loads, n_bytes);
    memset(r->loads, 0, n_bytes);
    mt_set(&by, by ? mt_cast(by, mt_dtype_of(bias)) : NULL);
    mt_set(&by, by ? mt_add(bias, by) : NULL);
    return by && mt_copy(bias, by) == MT_OK;
}

bool mti_balance_experts(mt_module *m, mti_sum_loads_fn *sum, const void *user)
{
    mt_module *child;
    if (mti_module_runs(m, router_forward)) {
        routing *r = mt_module_user(m);
        mt_tensor *bias = mt_module_param(m, "bias");
        if (!r->loads || !mt_device_has_data(mt_device_of(bias))) return true;
        bool grad = mt_set_grad_mode(false), ok = step_bias(r, bias, sum, user);
        mt_set_grad_mode(grad);
        return ok;
    }
    bool ok = true;
    for (size_t i = 0; ok && (child = mt_module_child_at(m, i)); i++)
        ok = mti_balance_experts(child, sum, user);
    return ok;
}

void mti_share_router_logits(mt_module *m, mti_router_logits *logits)
{
    mt_module *child;
    if (mti_module_runs(m, router_forward)) ((routing *)mt_module_user(m))->logits = logits;
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++)
        mti_share_router_logits(child, logits);
}

/* A checkpoint that runs again has collected before. */
static bool collect(const routing *r, mt_tensor *logits)
{
    if (!logits || !r->logits || mt_recomputing()) return logits != NULL;
    if (!MTI_RESERVE(r->logits)) return false;
    return MTI_PUSH(r->logits, mt_retain(logits));
}

bool mti_choose_experts(mt_module *experts, mt_tensor *x, mt_tensor **weights, mt_tensor **index)
{
    mt_module *router = mt_module_child(experts, "router");
    const routing *r = mt_module_user(router);
    mt_tensor *p = mt_forward_child(experts, "router", x), *bias = mt_module_param(router, "bias");
    const mt_dtype own = mt_dtype_of(x), of_p = p ? mt_dtype_of(p) : MT_F32;
    const mt_dtype dtype = r->wide && mt_dtype_size(own) == 2 ? own : of_p;
    *weights = *index = NULL;
    if (!collect(r, p)) mt_set(&p, NULL);
    if (r->scores == MT_ROUTER_CHOSEN) {
        const bool chosen = p && mt_topk(p, r->k, weights, index) == MT_OK;
        const bool widen = r->as_scored && mt_dtype_size(of_p) == 2;
        mt_release(p);
        return chosen && (!widen || mt_set(weights, mt_cast(*weights, MT_F32)) == MT_OK) &&
               mt_set(weights, mt_softmax(*weights, 1, false)) == MT_OK;
    }
    const bool narrow = bias && !r->as_scored; /* Transformers' sigmoids; torchtitan has f32 */
    if (p && !narrow && mt_dtype_size(of_p) == 2) mt_set(&p, mt_cast(p, MT_F32));
    mt_set(&p, bias ? mt_sigmoid(p) : mt_softmax(p, 1, false));
    bool ok =
        p && (bias ? choose_biased(r, p, bias, weights, index) : choose(r, p, weights, index));
    mt_release(p);
    if (ok && mt_module_training(experts)) ok = count_loads(r, *index);
    if (ok && r->norm) ok = divide_by_sum(weights);
    if (ok && r->scale > 0) ok = mt_set(weights, mt_affine(*weights, r->scale, 0)) == MT_OK;
    return ok && (r->as_scored || mt_set(weights, mt_cast(*weights, dtype)) == MT_OK);
}
