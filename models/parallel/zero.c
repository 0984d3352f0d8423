/* zero.c: a rank's parameters, gradients and optimizer state, and the shards of them that ZeRO
 * leaves it with (Rajbhandari et al. 2020). */
#include <string.h>
#include "memtape/ops.h"
#include "autograd/autograd.h"
#include "collectives/collectives.h"
#include "optim/optimizers.h"
#include "parallel/parallel.h"

typedef struct shard {
    mti_zero *all;
    mt_tensor *whole, *shard; /* borrowed from model and shards */
    mt_group group;
    int hook; /* on whole; 0: none */
} shard;

/* A gradient in the buffer, from `offset` on, or itself where it does not fit. */
typedef struct waiting {
    shard *of;
    int64_t offset;
    mt_tensor *grad; /* NULL: in the buffer */
} waiting;

struct mti_zero {
    mti_ending ending; /* the first member; of backward, with stage 2's buffer */
    int stage;
    mt_module *model;                   /* borrowed */
    mt_device *device;                  /* borrowed */
    const mti_model_shard *model_shard; /* borrowed: of the stage's first part */
    mt_parallel parallel;
    mt_group data;
    mt_module *shards;    /* of stages 1 and 2: views of the parameters that train; else NULL */
    mti_reducer *reducer; /* NULL: gradients are summed when a step has all of them */
    MTI_VEC(shard) all;
    mt_tensor *buffer; /* [parallel.reduce_bucket] of gradients; NULL: none is there */
    int64_t n_used;    /* elements of it */
    MTI_VEC(waiting) waiting;
    size_t grad_bytes; /* of the step's gradients */
};

/* ---- shards ---- */

static mt_tensor *flat(mt_tensor *t) { return mt_reshape(t, MT_SHAPE(-1)); }

/* This rank's shard, a view: of a matrix, a matrix of one row. */
static mt_tensor *own_shard(mt_tensor *whole, const mt_group *group)
{
    const mti_shard_range own = mti_shard_of(mt_numel(whole), group);
    mt_tensor *v = mt_detach(whole);
    mt_set(&v, v ? flat(v) : NULL);
    mt_set(&v, v ? mt_slice(v, 0, own.from, own.n) : NULL);
    if (v && mt_rank(whole) > 1) mt_set(&v, mt_reshape(v, MT_SHAPE(1, mt_numel(v))));
    return v;
}

/* The first n elements in a storage of their own. */
static mt_tensor *without_padding(mt_tensor *g, int64_t n)
{
    MT_AUTO mt_tensor *part = mt_slice(g, 0, 0, n);
    return part ? mt_clone(part) : NULL;
}

/* Keeps of a gradient, flat and taken over, only this rank's shard of the sum. */
static bool scatter(const shard *p, mt_tensor *g)
{
    const int64_t n = mt_numel(p->whole),
                  padding = mti_shard_of(n, &p->group).length * p->group.ranks - n;
    if (g && padding) {
        MT_AUTO mt_tensor *zeros = mt_zeros(mt_device_of(g), mt_dtype_of(g), MT_SHAPE(padding));
        mt_set(&g, zeros ? mt_cat(2, (mt_tensor *[]){g, zeros}, 0) : NULL);
    }
    mt_set(&g, g ? mt_reduce_scatter(g, 0, &p->group) : NULL);
    if (g && mt_numel(g) > mt_numel(p->shard)) mt_set(&g, without_padding(g, mt_numel(p->shard)));
    if (g) mt_set(&g, mt_reshape(g, mt_rank(p->shard), mt_shape(p->shard)));
    if (g && mt_grad(p->shard)) mt_set(&g, mt_add(mt_grad(p->shard), g));
    bool ok = g && mt_set_grad(p->shard, g) == MT_OK;
    mt_release(g);
    return ok && mti_run_leaf_hooks((mti_leaf *)p->shard->leaf);
}

static void drop_waiting(mti_zero *z)
{
    for (size_t i = 0; i < z->waiting.n; i++) mt_release(z->waiting.at[i].grad);
    z->waiting.n = 0;
    z->n_used = 0;
}

/* Several are scattered from a copy that lies side by side, one from where it is (allreduce_bucket,
 * whose flatten copies more than one). */
static bool scatter_waiting(mti_zero *z)
{
    const bool several = z->waiting.n > 1;
    MT_AUTO mt_tensor *used = several ? mt_slice(z->buffer, 0, 0, z->n_used) : NULL;
    MT_AUTO mt_tensor *copy = used ? mt_clone(used) : NULL;
    bool ok = !several || (copy && mt_set_category(copy, MT_COMMUNICATION) == MT_OK);
    for (size_t i = 0; ok && i < z->waiting.n; i++) {
        waiting *w = &z->waiting.at[i];
        mt_tensor *g = w->grad;
        w->grad = NULL;
        if (!g) g = mt_slice(several ? copy : z->buffer, 0, w->offset, mt_numel(w->of->whole));
        ok = g && scatter(w->of, g);
    }
    drop_waiting(z);
    return ok;
}

/* What is left in the buffer, which then goes. */
static bool empty_buffer(mti_zero *z, bool ok)
{
    if (ok) ok = scatter_waiting(z);
    drop_waiting(z);
    mt_release(z->buffer);
    z->buffer = NULL;
    return ok;
}

static bool end_backward(mti_ending *ending, bool ok)
{
    return empty_buffer((mti_zero *)ending, ok);
}

static bool make_buffer(mti_zero *z, mt_dtype dtype)
{
    if (z->buffer) return true;
    z->buffer = mt_empty(z->device, dtype, MT_SHAPE(z->parallel.reduce_bucket));
    return z->buffer && mt_set_category(z->buffer, MT_COMMUNICATION) == MT_OK;
}

/* Those that wait are scattered before one that does not fit beside them. */
static bool put_in_buffer(shard *p, mt_tensor *grad)
{
    mti_zero *z = p->all;
    const int64_t n = mt_numel(grad), most = z->parallel.reduce_bucket;
    if (!make_buffer(z, mt_dtype_of(grad))) return false;
    const bool fits = n <= most && mt_dtype_of(grad) == mt_dtype_of(z->buffer);
    if ((!fits || z->n_used + n > most) && !scatter_waiting(z)) return false;
    waiting w = {.of = p, .offset = z->n_used};
    MT_AUTO mt_tensor *from = flat(grad);
    MT_AUTO mt_tensor *place = from && fits ? mt_slice(z->buffer, 0, w.offset, n) : NULL;
    if (!from || (fits && !place)) return false;
    if (fits && !z->device->backend->copy(z->device->ctx, &from->view, &place->view)) return false;
    if (!fits) w.grad = mt_retain(from);
    z->n_used += fits ? n : most; /* nothing fits beside one that does not */
    if (MTI_PUSH(&z->waiting, w)) return true;
    mt_release(w.grad);
    return false;
}

/* Scatters a gradient, or lets it wait for others. */
static bool take_grad(shard *p, mt_tensor *grad)
{
    if (p->all->parallel.reduce_bucket) return put_in_buffer(p, grad);
    mt_tensor *g = flat(grad);
    return g && scatter(p, g);
}

/* Stage 2: as soon as a gradient is complete. */
static mt_status scatter_grad(void *user, mt_tensor *leaf)
{
    shard *p = user;
    mt_tensor *g = mt_grad(leaf);
    mti_await_end(&p->all->ending);
    bool ok = take_grad(p, g);
    return ok ? mt_set_grad(leaf, NULL) : mt_last_status();
}

static bool make_shards(mti_zero *z)
{
    const mt_named_tensor *list;
    size_t n;
    if (mt_module_params(z->model, &list, &n) != MT_OK) return false;
    z->shards = mt_module_new("shards", mti_no_forward, NULL, NULL);
    if (!z->shards) return false;
    mti_module_mark_shards(z->shards);
    for (size_t i = 0; i < n; i++) {
        mt_tensor *whole = list[i].tensor;
        if (!mt_requires_grad(whole)) continue;
        const mt_group group = mti_param_group(&z->parallel, list[i].name);
        mt_tensor *v = mt_module_add_param(z->shards, list[i].name, own_shard(whole, &group));
        if (!v || mt_set_grad_dtype(v, mt_grad_dtype(whole)) != MT_OK ||
            !MTI_PUSH(&z->all, ((shard){z, whole, v, group, 0})))
            return false;
    }
    for (size_t i = 0; z->stage == 2 && i < z->all.n; i++) {
        shard *p = &z->all.at[i];
        if (!(p->hook = mt_add_leaf_hook(p->whole, scatter_grad, p))) return false;
    }
    return true;
}

/* Whether whole gradients of stage 1 go as their shards come, before the step. */
static bool is_deepspeed(const mti_zero *z)
{
    return z->stage && (z->parallel.reduce_bucket || z->parallel.sub_group);
}

/* Links queue their collectives on the stream of compute: nothing goes on behind it. */
static bool make_reducer(mti_zero *z, const mti_model_shard *s)
{
    const mt_parallel *h = &z->parallel;
    const mt_model_config *c = &s->whole;
    /* here the embedding is the head, too */
    const bool tied =
        mti_ties_head(c) && (h->pipeline == 1 || (c->mtp_layers && h->stage == h->pipeline - 1));
    if (h->buckets && z->device->backend->links)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "rank: buckets on %s, where gradients are summed after backward; need "
                             "cpu or meta, or none",
                             mt_device_kind(z->device));
    if (h->reduce == MT_REDUCE_AFTER || z->data.ranks == 1 || z->stage > 1 ||
        z->device->backend->links || is_deepspeed(z))
        return true;
    z->reducer = mti_reducer_new(z->device, &z->data, z->stage == 1, z->model, tied, h);
    return z->reducer != NULL;
}

mti_zero *mti_zero_new(const mti_model_shard *model_shard, mt_device *device, mt_module *model)
{
    mti_zero *z = mti_calloc(1, sizeof *z);
    if (!z) return NULL;
    z->model = model;
    z->device = device;
    z->model_shard = model_shard;
    z->parallel = model_shard->parallel;
    z->data = mti_shard_group(&z->parallel);
    z->stage = z->data.ranks > 1 ? (int)z->parallel.zero : 0;
    z->ending.run = end_backward;
    if (make_reducer(z, model_shard) && ((z->stage != 1 && z->stage != 2) || make_shards(z)))
        return z;
    mti_zero_free(z);
    return NULL;
}

void mti_zero_free(mti_zero *z)
{
    if (!z) return;
    mti_reducer_free(z->reducer);
    for (size_t i = 0; i < z->all.n; i++)
        if (z->all.at[i].hook) mt_remove_hook(z->all.at[i].whole, z->all.at[i].hook);
    drop_waiting(z);
    mt_release(z->buffer);
    mti_free(z->waiting.at);
    mti_free(z->all.at);
    mt_module_free(z->shards);
    mti_free(z);
}

/* ---- backward ---- */

bool mti_zero_start_backward(mti_zero *z) { return !z->reducer || mti_reducer_start(z->reducer); }

/* The gradients that stage 3 keeps become zeros. */
static bool clear_grads(const mti_zero *z)
{
    const mt_named_tensor *list;
    size_t n;
    bool ok = mt_module_params(z->model, &list, &n) == MT_OK;
    for (size_t i = 0; ok && i < n; i++) {
        const mt_tensor *g = mt_grad(list[i].tensor);
        ok = !g || z->device->backend->fill(z->device->ctx, &g->view, 0);
    }
    return ok;
}

/* The type of the gradients; false: nothing trains. */
static bool grad_type(const mti_zero *z, mt_dtype *dtype)
{
    const mt_named_tensor *list;
    size_t n, i = 0;
    if (mt_module_params(z->model, &list, &n) != MT_OK) return false;
    while (i < n && !mt_requires_grad(list[i].tensor)) i++;
    if (i < n) *dtype = mt_grad_dtype(list[i].tensor);
    return i < n;
}

bool mti_zero_before_backward(mti_zero *z, bool is_last)
{
    mt_dtype dtype = MT_F32;
    if (z->reducer) mti_reducer_set_last(z->reducer, is_last);
    if (!is_deepspeed(z) || !grad_type(z, &dtype)) return true;
    return !z->parallel.reduce_bucket || make_buffer(z, dtype);
}

bool mti_zero_end_backward(mti_zero *z, bool ok)
{
    return z->reducer ? mti_reducer_finish(z->reducer, ok) : ok;
}

/* ---- the step ---- */

mt_module *mti_zero_stepped(const mti_zero *z) { return z->shards ? z->shards : z->model; }

/* Calls mti_collective_run for the values, or those gradients that have not been summed, of the
 * parameters that train. */
static bool combine(const mti_zero *z, bool values, mti_collective how)
{
    const mt_named_tensor *list;
    size_t n;
    bool several = z->data.ranks > 1 || mti_folds_experts(&z->parallel),
         ok = !several || mt_module_params(z->model, &list, &n) == MT_OK;
    for (size_t i = 0; ok && several && i < n; i++) {
        const mt_group group = mti_param_group(&z->parallel, list[i].name);
        mt_tensor *t = list[i].tensor, *value = values ? t : mt_grad(t);
        bool done = !values && z->reducer && mti_reducer_has(z->reducer, t);
        ok = !mt_requires_grad(t) || !value || done || group.ranks == 1 ||
             mti_collective_run(value, how, &group);
    }
    return ok;
}

static bool give_grads_to_shards(mti_zero *z)
{
    for (size_t i = 0; i < z->all.n; i++) {
        shard *p = &z->all.at[i];
        if (!mt_grad(p->whole)) continue;
        MT_AUTO mt_tensor *g = own_shard(mt_grad(p->whole), &p->group);
        if (!g || mt_set_grad(p->shard, g) != MT_OK) return false;
    }
    return true;
}

/* Among ranks with the same shards: gradients that no unit has summed as one. */
static bool add_up_replicas(const mti_zero *z)
{
    const mt_group group = mti_replica_group(&z->parallel);
    const mt_named_tensor *list;
    size_t n;
    bool ok = mt_module_params(z->model, &list, &n) == MT_OK;
    for (size_t i = 0; ok && i < n; i++) {
        const mt_tensor *t = list[i].tensor;
        mt_tensor *g = mt_grad(t);
        ok = !g || ((const mti_leaf *)t->leaf)->guest ||
             mti_collective_run(g, MTI_ALL_REDUCE, &group);
    }
    return ok;
}

/* Stage 1 as DeepSpeed has it: a whole gradient goes when its shard has come. */
static bool scatter_all(mti_zero *z)
{
    bool ok = true;
    for (size_t i = 0; ok && i < z->all.n; i++) {
        shard *p = &z->all.at[i];
        if (mt_grad(p->whole))
            ok = take_grad(p, mt_grad(p->whole)) && mt_set_grad(p->whole, NULL) == MT_OK;
    }
    return empty_buffer(z, ok);
}

/* Among ranks with other data or positions; from stage 2 on backward has done it. */
static bool add_up(mti_zero *z)
{
    if (z->stage == 1 && is_deepspeed(z)) return scatter_all(z);
    if (z->stage == 0 && z->parallel.replicas == 1) return combine(z, false, MTI_ALL_REDUCE);
    if (z->parallel.replicas > 1) return add_up_replicas(z);
    return z->stage > 1 || (combine(z, false, MTI_REDUCE_SCATTER) && give_grads_to_shards(z));
}

bool mti_zero_has_partial_grads(const mti_zero *z)
{
    const mt_named_tensor *list;
    size_t n, i = 0;
    if (mt_module_params(mti_zero_stepped(z), &list, &n) != MT_OK) return true;
    while (i < n && !mti_is_partial(&z->parallel, list[i].name)) i++;
    return i < n;
}

/* Among tensor ranks gradients of which each has a part; or, at the ends, between the first stage
 * and the last: of what both have the copies stay equal. */
static bool add_up_some(const mti_zero *z, bool at_ends)
{
    const mt_group group = at_ends ? mti_ends(&z->parallel) : mti_tensor_group(&z->parallel);
    const mt_named_tensor *list;
    size_t n;
    bool ok = mt_module_params(mti_zero_stepped(z), &list, &n) == MT_OK;
    for (size_t i = 0; ok && i < n; i++) {
        mt_tensor *g = mt_grad(list[i].tensor);
        const bool added = at_ends ? mti_is_at_both_ends(z->model_shard, list[i].name)
                                   : mti_is_partial(&z->parallel, list[i].name);
        ok = !g || !added || mti_collective_run(g, MTI_ALL_REDUCE, &group);
    }
    return ok;
}

/* Counts the gradients of parameters that are on the device now. */
static bool note_grad_bytes(mti_zero *z)
{
    const mt_named_tensor *list;
    size_t n;
    mt_module *with = z->stage == 2 ? z->shards : z->model;
    if (mt_module_params(with, &list, &n) != MT_OK) return false;
    z->grad_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const mt_tensor *g = mt_grad(list[i].tensor);
        if (g && mt_storage_of(g).allocated)
            z->grad_bytes += (size_t)mt_numel(g) * mt_dtype_size(mt_dtype_of(g));
    }
    return true;
}

bool mti_zero_before_step(mti_zero *z)
{
    return note_grad_bytes(z) && add_up(z) && add_up_some(z, false) && add_up_some(z, true);
}

/* The ranks, besides those of tensor, over which sums of squares are added up. */
static mt_group rest_of_squares(const mti_zero *z)
{
    return z->stage || mti_folds_experts(&z->parallel) ? z->data : mti_expert_group(&z->parallel);
}

/* Sums over this rank's gradients. Where all tensor ranks have the same, or without ZeRO all that
 * divide experts, or that have the same experts, only the first rank counts it; what is at
 * both ends is counted by the first stage. */
static bool own_squares(const mti_zero *z, double *out)
{
    const mt_named_tensor *list;
    size_t n;
    if (mt_module_params(mti_zero_stepped(z), &list, &n) != MT_OK) return false;
    mti_opt_item *items = mti_malloc(n * sizeof *items);
    int n_items = 0;
    bool ok = items != NULL;
    const bool folds = mti_folds_experts(&z->parallel);
    const mt_group same = mti_expert_data_group(&z->parallel), first = rest_of_squares(z);
    for (size_t i = 0; ok && i < n; i++) {
        ok = mti_dense_grad(list[i].tensor);
        const mt_tensor *g = mt_grad(list[i].tensor);
        const bool divided = mti_is_divided(&z->parallel, list[i].name);
        bool counts = !z->parallel.tensor_rank || mti_is_sharded(&z->parallel, list[i].name) ||
                      (folds && divided);
        if (z->parallel.stage && mti_is_at_both_ends(z->model_shard, list[i].name)) counts = false;
        if (!z->stage && (divided ? folds && same.rank : first.rank)) counts = false;
        if (!ok || !g || !counts) continue;
        items[n_items++] = (mti_opt_item){
            .n = mt_numel(g), .dtype = g->view.dtype, .p = g->view.data, .g = g->view.data};
    }
    *out = 0;
    mt_device *d = z->device;
    ok = ok && (!n_items || d->backend->sum_squares(d->ctx, n_items, items, out));
    mti_free(items);
    return ok;
}

bool mti_zero_squares(const mti_zero *z, double *out)
{
    const mt_group tensor = mti_tensor_group(&z->parallel), stages = mti_stages(&z->parallel),
                   rest = rest_of_squares(z);
    return own_squares(z, out) && mti_sum_value(z->device, &tensor, out) &&
           mti_sum_value(z->device, &rest, out) && mti_sum_value(z->device, &stages, out);
}

size_t mti_zero_grad_bytes(const mti_zero *z) { return z->grad_bytes; }

void mti_zero_direct(const mti_zero *z, mt_optimizer *o)
{
    mti_optimizer_set_sub_group(o, z->stage ? z->parallel.sub_group : 0, z->stage < 3);
}

bool mti_zero_after_step(mti_zero *z)
{
    return (!z->shards || combine(z, true, MTI_ALL_GATHER)) &&
           (!z->shards || mt_module_zero_grad(z->shards) == MT_OK) &&
           (z->stage == 3 && z->parallel.sub_group ? clear_grads(z)
                                                   : mt_module_zero_grad(z->model) == MT_OK);
}
