/* experts.c: a mixture of experts in an MLP's place: [..,d] -> [..,d]. Of n MLPs d -> f -> d, gated
 * or, a gpt's, with an activation, each token goes through the k that a router gives most weight,
 * and their outputs are summed, weighted (Shazeer et al. 2017). No token is dropped. The order of
 * ops is that of Transformers' grouped_mm: what is kept for the t k rows is their sorted copies,
 * gate and up, their product and the experts' outputs, (2 d + 3 f) e + 24 bytes each, and the rows'
 * weights. */
#include "nn/model.h"
#include "nn/quantized.h"
#include "memtape/models/collectives.h"
#include "memtape/ops.h"

typedef mti_experts experts;

/* ---- a product for all experts: rows sorted by expert [n,in] -> [n,out] ---- */

/* The module's user data: whose rows they are, set while the experts run; borrowed. */
typedef struct product {
    const mti_expert_rows *rows;
} product;

static mt_tensor *product_forward(mt_module *self, mt_tensor *x)
{
    const mti_expert_rows *rows = ((product *)mt_module_user(self))->rows;
    mt_tensor *w = mt_module_param(self, "weight"), *y;
    if (!rows->alone) return mt_grouped_linear(x, w, rows->counts);
    w = w ? mt_slice(w, 0, rows->expert, 1) : NULL;
    mt_set(&w, w ? mt_reshape(w, 2, mt_shape(w) + 1) : NULL);
    y = mt_linear(x, w, NULL);
    mt_release(w);
    return y;
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
        mti_grouped_linear_of(
            mt_normal(device, c->dtype, MT_SHAPE(mti_experts_here(c), out, in), 0, std)));
}

/* For m, a product or an adapter in its place, and those below it. */
static void set_rows(mt_module *m, const mti_expert_rows *rows)
{
    mt_module *child;
    if (mti_module_runs(m, product_forward)) ((product *)mt_module_user(m))->rows = rows;
    if (mti_is_linear_quantized(m)) mti_linear_quantized_set_counts(m, rows ? rows->counts : NULL);
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++) set_rows(child, rows);
}

static mt_tensor *run_product(mt_module *self, const char *name, mt_tensor *x,
                              const mti_expert_rows *rows)
{
    mt_module *m = mt_module_child(self, name);
    set_rows(m, rows);
    mt_tensor *y = mt_forward_child(self, name, x);
    set_rows(m, NULL);
    return y;
}

/* ---- a bias for each expert: rows h [n,d] -> [n,d] ---- */

/* The module's user data: whose row each is, i64 [n], set while the experts run; borrowed. */
typedef struct expert_bias {
    mt_tensor *ids;
    int64_t parts; /* of a sum over ranks, each of which adds the bias */
} expert_bias;

static mt_tensor *bias_forward(mt_module *self, mt_tensor *h)
{
    const expert_bias *user = mt_module_user(self);
    MT_AUTO mt_tensor *rows = mt_embedding(user->ids, mt_module_param(self, "weight"), NULL);
    mt_set(&rows, rows ? mt_cast(rows, mt_dtype_of(h)) : NULL);
    if (rows && user->parts > 1) mt_set(&rows, mt_affine(rows, 1 / (double)user->parts, 0));
    return rows ? mt_add(h, rows) : NULL;
}

static bool add_bias(mt_module *m, const char *name, mt_device *device, const mt_model_config *c,
                     int64_t width)
{
    expert_bias *user = mti_calloc(1, sizeof *user);
    mt_module *bias = user ? mt_module_new("expert_bias", bias_forward, user, mti_free) : NULL;
    mt_tensor *w = bias ? mt_zeros(device, c->dtype, MT_SHAPE(mti_experts_here(c), width)) : NULL;
    return mt_module_add_child(
        m, name, mti_module_complete(bias, bias && mt_module_add_param(bias, "weight", w)));
}

/* *h with the biases, if the rows have some. */
static void run_bias(mt_module *self, const char *name, mt_tensor **h, const mti_expert_rows *rows,
                     int64_t parts)
{
    if (!*h || !rows->ids) return;
    expert_bias *user = mt_module_user(mt_module_child(self, name));
    *user = (expert_bias){rows->ids, parts};
    mt_set(h, mt_forward_child(self, name, *h));
    user->ids = NULL;
}

/* ---- the mixture ---- */

/* silu(gate) up of the two side by side */
static mt_tensor *gated(const experts *e, mt_tensor *gate_up)
{
    const int64_t f = mt_shape(gate_up)[1] / 2;
    mt_tensor *half[2] = {NULL, NULL}, *y = NULL;
    if (mt_split(gate_up, 1, 2, (const int64_t[]){f, f}, half) == MT_OK)
        y = e->swiglu(half[0], half[1]);
    mt_release(half[0]), mt_release(half[1]);
    return y;
}

static mt_tensor *activate_one(mt_module *self, mt_tensor *const *in)
{
    const experts *e = mt_module_user(self);
    return mt_module_child(self, "act") ? mt_forward_child(self, "act", in[0])
           : e->clamped                 ? mti_clamped_gate(in[0])
                                        : gated(e, in[0]);
}

/* The same without a gate, times the rows' weights in[1]. */
static mt_tensor *activate_weighted(mt_module *self, mt_tensor *const *in)
{
    MT_AUTO mt_tensor *h = activate_one(self, in);
    return h ? mti_weighted_rows(h, in[1], false, false) : NULL;
}

/* *h = what the last product takes; with act_again that keeps none of it until end_activation. */
static bool activate(mt_module *self, mt_tensor **h, mt_tensor *weights)
{
    const bool again = ((const experts *)mt_module_user(self))->act_again;
    const bool plain = mt_module_child(self, "act") != NULL;
    const mti_module_frame frame = {.m = self, .run = weights ? activate_weighted : activate_one};
    const mt_checkpoint_options discarding = {.discard_outputs = true};
    if (*h && mt_scope_push("experts_act") != MT_OK) mt_set(h, NULL);
    if (!*h) return false;
    if (weights && !plain)
        mt_set(h, mti_weighted_rows(*h, weights, true, again));
    else if (again)
        mt_set(h, mti_run_frame(frame, weights ? 2 : 1, (mt_tensor *[]){*h, weights}, &discarding));
    else if (mt_set(h, activate_one(self, h)) == MT_OK && weights)
        mt_set(h, mti_weighted_rows(*h, weights, false, false));
    mt_scope_pop();
    return *h != NULL;
}

static void end_activation(mt_module *self)
{
    if (((const experts *)mt_module_user(self))->act_again) mt_pop_saved_hooks();
}

static mt_tensor *run_experts(mt_module *self, mt_tensor *h, const mti_expert_rows *rows)
{
    const bool plain = mt_module_child(self, "act") != NULL;
    const int64_t parts = ((const experts *)mt_module_user(self))->sharing.ranks;
    mt_set(&h, run_product(self, plain ? "experts_fc" : "experts_gate_up", h, rows));
    run_bias(self, "experts_gate_up_bias", &h, rows, 1);
    if (activate(self, &h, rows->weights)) {
        mt_set(&h, run_product(self, "experts_down", h, rows));
        end_activation(self);
        run_bias(self, "experts_down_bias", &h, rows, parts);
    }
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

/* Rows h [n,d], taken over, through experts of other ranks and of this one. */
static mt_tensor *run_among_ranks(mt_module *self, mt_tensor *h, const mti_expert_rows *rows)
{
    const experts *e = mt_module_user(self);
    mt_routes routes = {0};
    mti_expert_rows own = {0};
    if (e->ranks.ranks < 2) {
        if (!rows->alone && !mti_tell_rows(e, &e->ranks, rows->counts)) mt_set(&h, NULL);
        return run_experts(self, h, rows);
    }
    bool ok = mt_routes_make(rows->counts, mt_shape(h)[0], &e->ranks, &routes) == MT_OK;
    if (ok && e->routing && !mt_device_has_data(mt_device_of(h)))
        ok = mti_rows_routed(e, &e->ranks, &routes.n_received);
    own.counts = routes.counts;
    ok = ok && mti_tell_rows(e, &e->ranks, own.counts);
    if (ok && rows->ids)
        ok = (own.ids = mti_experts_of_rows(own.counts, routes.n_received)) != NULL;
    mt_set(&h, ok ? mt_all_to_all(h, &routes, false, &e->ranks) : NULL);
    if (h && rows->weights) { /* as columns of one */
        own.weights = mt_reshape(rows->weights, MT_SHAPE(-1, 1));
        mt_set(&own.weights, mt_all_to_all(own.weights, &routes, false, &e->ranks));
        mt_set(&own.weights, own.weights ? mt_reshape(own.weights, MT_SHAPE(-1)) : NULL);
        if (!own.weights) mt_set(&h, NULL);
    }
    if (h) h = run_experts(self, h, &own);
    mt_release(own.weights), mt_release(own.ids);
    mt_set(&h, h ? mt_all_to_all(h, &routes, true, &e->ranks) : NULL);
    mt_routes_release(&routes);
    return h;
}

/* y [..,d], taken over, of which each rank that shares the layer has a part of every sum. */
static mt_tensor *sum_parts(const experts *e, mt_tensor *y)
{
    if (e->sharing.ranks < 2) return y;
    mt_set(&y, e->sequence ? mt_reduce_scatter(y, 1, &e->sharing) : mt_all_reduce(y, &e->sharing));
    return y;
}

/* The order of Transformers' grouped_mm; other orders: stacks/expert_forms.c. */
static mt_tensor *grouped(mt_module *self, mt_tensor *x, mt_tensor *weights, mt_tensor *index)
{
    const experts *e = mt_module_user(self);
    mt_groups groups = {0};
    mt_tensor *y = mt_dispatch(x, index, e->n, &groups);
    mt_tensor *ids = y && e->clamped ? mt_reshape(index, MT_SHAPE(-1)) : NULL;
    if (ids && mt_set(&ids, mt_gather(ids, 0, groups.order)) != MT_OK) mt_set(&y, NULL);
    if (y) y = run_among_ranks(self, y, &(mti_expert_rows){.counts = groups.counts, .ids = ids});
    mt_release(ids);
    if (y) y = combine(y, weights, &groups);
    mt_groups_release(&groups);
    return y;
}

static mt_tensor *run_formed(void *self, mt_tensor *h, const mti_expert_rows *rows)
{
    return run_among_ranks(self, h, rows);
}

static bool count_formed(void *self, int64_t t, int64_t *counts)
{
    return mti_count_routed(mt_module_user(self), t, counts);
}

static mt_tensor *experts_forward(mt_module *self, mt_tensor *x)
{
    experts *e = mt_module_user(self);
    mti_experts_fn *formed = mti_expert_form_of(e->call.form)->run;
    mt_tensor *weights = NULL, *index = NULL, *y = NULL;
    mt_tensor *rows = mt_reshape(x, MT_SHAPE(-1, mt_shape(x)[mt_rank(x) - 1]));
    e->tokens = rows ? mt_shape(rows)[0] : 0;
    if (rows && mti_choose_experts(self, rows, &weights, &index) &&
        (!mt_module_training(self) || mti_count_rows(e, index)))
        y = formed ? formed(&e->call, rows, weights, index) : grouped(self, rows, weights, index);
    mt_release(rows), mt_release(index), mt_release(weights);
    mt_set(&y, y ? mt_reshape(y, mt_rank(x), mt_shape(x)) : NULL);
    if (y) y = sum_parts(e, y);
    if (y && mt_module_child(self, "shared")) {
        MT_AUTO mt_tensor *shared = mt_forward_child(self, "shared", x);
        mt_set(&y, shared ? mt_add(y, shared) : NULL);
    }
    mt_set(&y, mt_forward_child(self, "drop", y));
    return y;
}

mti_experts *mti_experts_of(const mt_module *m)
{
    return mti_module_runs(m, experts_forward) ? mt_module_user(m) : NULL;
}

bool mti_takes_whole_experts(const char *caller, const mt_module *m)
{
    const mti_experts *e = mti_experts_of(m);
    return !e || !mti_expert_form_of(e->call.form)->alone ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "%s: with expert_form loop each expert takes its own matrix, and this "
                         "makes all of them at once; need another expert_form",
                         caller);
}

void mti_set_routing(mt_module *m, const mti_routing *routing, int64_t *layer, int64_t *record)
{
    mt_module *child;
    experts *e = mti_experts_of(m);
    if (e) {
        e->routing = routing, e->layer = *layer;
        e->record = record ? record + *layer * e->n : NULL;
        ++*layer;
    }
    for (size_t i = 0; (child = mt_module_child_at(m, i)); i++)
        mti_set_routing(child, routing, layer, record);
}

/* The experts that every token meets are one MLP, as wide as all of them. */
static bool add_shared(mt_module *m, mt_device *device, const mt_model_config *c)
{
    mt_model_config own = *c;
    own.dense_ffn = mti_shared_width(c);
    mti_make_dense(&own);
    own.dropout = 0; /* their sum has it */
    return mt_module_add_child(m, "shared", mti_mlp_new(device, &own)) != NULL;
}

static bool add_first(mt_module *m, mt_device *device, const mt_model_config *c)
{
    if (c->mlp != MT_MLP_PLAIN)
        return add_product(m, "experts_gate_up", device, c, c->hidden, 2 * c->ffn, MTI_INIT_STD);
    return add_product(m, "experts_fc", device, c, c->hidden, c->ffn, MTI_INIT_STD) &&
           mti_add_activation(m, "act", c, c->inplace);
}

static mt_module *experts_new(mt_device *device, const mt_model_config *c)
{
    experts *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    *user = (experts){.n = c->experts,
                      .swiglu = mti_forms_of(&c->ops, c->forms).swiglu,
                      .clamped = c->mlp == MT_MLP_CLAMPED,
                      .call = {.form = c->ops.expert_form,
                               .experts = c->experts,
                               .k = c->experts_per_token,
                               .capacity = c->expert_capacity,
                               .padded = c->expert_padding,
                               .run = run_formed,
                               .count = count_formed}};
    mt_module *m = mt_module_new("experts", experts_forward, user, mti_free);
    if (m) user->call.user = m;
    return mti_module_complete(
        m, m && mt_module_add_child(m, "router", mti_router_new(device, c)) &&
               add_first(m, device, c) &&
               add_product(m, "experts_down", device, c, c->ffn, c->hidden, mti_residual_std(c)) &&
               (c->mlp != MT_MLP_CLAMPED ||
                (add_bias(m, "experts_gate_up_bias", device, c, 2 * c->ffn) &&
                 add_bias(m, "experts_down_bias", device, c, c->hidden))) &&
               (!c->shared_experts || add_shared(m, device, c)) && mti_add_dropout(m, c));
}

mt_module *mt_mlp_new(mt_device *device, const mt_model_config *config)
{
    mt_model_config c;
    if (!mti_config_resolve(config, MT_MODEL_MLP, &c)) return NULL;
    return c.experts ? experts_new(device, &c) : mti_mlp_new(device, &c);
}
