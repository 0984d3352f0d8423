/* unit_grads.c: the gradients of ZeRO 3's units, of which each sums its own as one.
 *
 * As PyTorch's fully_shard does: when backward has left a block (post_backward of
 * torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py), or has ended
 * (_root_post_backward_final_callback of _fsdp_state.py). A parameter that backward did not reach
 * has no part in the sum, and gets no gradient. */
#include "memtape/autograd.h"
#include "parallel/units.h"

/* Whether the unit's gradients can be summed as one, and in which type: they differ neither in it
 * nor in that in which they are kept. Else each is summed by itself. */
static bool find_sum_type(mti_unit *u, mt_dtype products)
{
    size_t n = 0;
    for (size_t i = 0; i < u->params.n; i++) {
        const mti_unit_param *p = &u->params.at[i];
        if (!mt_requires_grad(p->own.shard)) continue;
        const mt_dtype own = u->all->policy.f32_reduce ? MT_F32 : mti_unit_type(p, products),
                       kept = mt_grad_dtype(p->own.shard);
        if (n++ && (own != u->sum_type || kept != u->grad_type)) return false;
        u->sum_type = own;
        u->grad_type = kept;
    }
    return n > 0;
}

/* sum: [1,n], the shard's. */
static bool give(mt_tensor *shard, mt_tensor *sum, const mti_call *c)
{
    mti_view v = shard->view;
    mt_tensor *grad = mt_grad(shard);
    v.data = sum->view.data;
    v.dtype = sum->view.dtype;
    if (grad) return c->k->binary(c->ctx, MTI_ADD, &grad->view, &v, &grad->view);
    mt_tensor *g = mti_tensor_view(sum, &v);
    bool ok = g && mt_set_grad(shard, g) == MT_OK;
    mt_release(g);
    return ok;
}

/* Takes the gradients that have come. -> how many; of[i]: whose the ith is. */
static int take_grads(mti_unit *u, mt_tensor **grads, size_t *of)
{
    int n = 0;
    for (size_t i = 0; i < u->params.n; i++) {
        mti_unit_param *p = &u->params.at[i];
        if (!p->grad && !p->held) continue;
        of[n] = i;
        grads[n++] = p->held ? p->held : p->grad;
        p->grad = p->held = NULL;
    }
    return n;
}

static bool keep_summed(mti_units *all, mt_tensor *buffer)
{
    return !buffer || MTI_PUSH(&all->summed, buffer) || (mt_release(buffer), false);
}

/* Sums those gradients that have come over the ranks; the buffer of that stays until as many other
 * units' are as are to be there at once, or to the end of backward. */
static bool sum_grads(mti_unit *u, mti_call *c)
{
    mti_units *all = u->all;
    mti_summing s = {.call = c,
                     .group = u->group,
                     .replicas = all->replicas,
                     .dtype = u->sum_type,
                     .to = u->grad_type};
    mt_tensor **grads = mti_malloc(u->params.n * sizeof *grads);
    size_t *of = mti_malloc(u->params.n * sizeof *of);
    mti_units_drop_summed(all, all->policy.most_summed - 1);
    int n = grads && of ? take_grads(u, grads, of) : 0;
    mti_unit_drop_grads(u);
    bool ok = grads && of && (!n || mti_shards_sum(&s, n, grads));
    ok = keep_summed(all, s.buffer) && ok;
    if (all->replicas.ranks > 1)
        u->reduced = s.sum;
    else
        mt_release(s.sum);
    for (int i = 0; i < n; i++) {
        mt_tensor *shard = u->params.at[of[i]].own.shard;
        ok = ok && give(shard, grads[i], c);
        mt_release(grads[i]);
        ok = ok && mti_run_leaf_hooks((mti_leaf *)shard->leaf);
    }
    mti_free(grads);
    mti_free(of);
    return ok;
}

/* *sum += g, which is let go; in the sum's memory if nobody else looks at it. */
static bool add_to(mt_tensor **sum, mt_tensor **g, const mti_call *c)
{
    mti_view spec = (*sum)->view;
    size_t n_bytes;
    mti_view_pack(&spec, &n_bytes);
    const bool in_place = mti_tensor_is_exclusive(*sum) && mti_view_is_contiguous(&(*sum)->view);
    mt_tensor *y = in_place ? mt_retain(*sum) : mti_tensor_new(c->device, &spec, MT_GRADIENT, true);
    bool ok = y && c->k->binary(c->ctx, MTI_ADD, &(*sum)->view, &(*g)->view, &y->view);
    mt_release(*sum);
    *sum = y;
    mti_drop_tensor(g);
    return ok;
}

/* What an earlier backward left is added to, in the type in which the unit's are summed. */
static bool hold(mti_unit_param *p, mt_dtype dtype, const mti_call *c)
{
    if (p->grad->view.dtype == dtype) return true;
    mti_view spec = p->grad->view;
    size_t n_bytes;
    spec.dtype = dtype;
    mti_view_pack(&spec, &n_bytes);
    p->held = mti_tensor_new(c->device, &spec, MT_GRADIENT, true);
    bool ok = p->held && c->k->copy(c->ctx, &p->grad->view, &p->held->view);
    mti_drop_tensor(&p->grad);
    return ok;
}

/* Backward has left the unit (post_backward). */
static bool leave(mti_unit *u, mti_call *c)
{
    const mti_units *all = u->all;
    const bool waits = all->policy.reduce_last && (!all->is_last || all->policy.of_stage);
    bool ok = true;
    for (size_t i = 0; ok && i < u->params.n; i++) {
        mti_unit_param *p = &u->params.at[i];
        if (p->held && p->grad) ok = add_to(&p->held, &p->grad, c);
    }
    if (!mti_units_keep(all)) mti_unit_let_go(u);
    u->is_awaited = u->stays = false;
    for (size_t i = 0; ok && waits && i < u->params.n; i++)
        if (u->params.at[i].grad) ok = hold(&u->params.at[i], u->sum_type, c);
    u->n_grads = 0;
    if (u->all->summing == u) u->all->summing = NULL;
    ok = ok && (waits || sum_grads(u, c));
    return ok && (!u->before || !u->before->is_awaited || u->all->gather_again(u->before));
}

static void end_call(mti_call *c)
{
    for (int i = 0; i < c->n_scratch; i++)
        mti_pool_free(c->device->pool, c->scratch[i], c->scratch[i]->requested);
}

static bool end_backward(mti_ending *ending, bool ok)
{
    mti_units *all = (mti_units *)ending;
    for (size_t i = 0; i < all->list.n; i++) {
        mti_unit *u = all->list.at[i];
        mti_call c = {.device = all->device, .k = all->device->backend, .ctx = all->device->ctx};
        if (ok && u->n_grads) ok = leave(u, &c);
        if (!mti_units_keep(all)) mti_unit_let_go(u);
        /* a stage's that waited: all of them, once its last backward has ended */
        if (ok && all->policy.reduce_last && all->is_last && all->policy.of_stage)
            ok = sum_grads(u, &c);
        end_call(&c);
        u->is_awaited = u->stays = false;
        if (!ok || all->is_last || !all->policy.reduce_last) mti_unit_drop_grads(u);
    }
    mti_units_drop_summed(all, 0);
    mti_units_drop_coming(all);
    mti_units_release(all);
    return ok;
}

void mti_units_await_end(mti_units *all)
{
    if (all->ending.waits || !mti_modes_now()->walk) return;
    all->ending.run = end_backward;
    atomic_fetch_add(&all->refs, 1);
    mti_await_end(&all->ending);
}

/* Another block's gradients come once backward has left this one; its experts' do before. */
static bool leave_others(mti_unit *u, mti_call *c)
{
    mti_units *all = u->all;
    mti_unit *left = all->summing;
    if (u->kind != MTI_UNIT_BLOCK || left == u) return true;
    all->summing = u;
    return !left || leave(left, c);
}

static bool collect(mti_collector *collector, const mti_leaf *leaf, mti_call *c)
{
    mti_unit *u = (mti_unit *)collector;
    size_t i = 0, n = 0;
    mti_units_await_end(u->all);
    while (u->params.at[i].own.shard->leaf != &leaf->ref) i++;
    mti_unit_param *p = &u->params.at[i];
    if (!leave_others(u, c)) return false;
    /* a second one of this backward is of an earlier forward */
    if (p->grad && !u->all->policy.reduce_last && !leave(u, c)) return false;
    mt_tensor *grad = mt_retain(c->dout[0]);
    mti_storage_settle(grad->storage, MT_GRADIENT);
    if (!p->grad)
        p->grad = grad;
    else if (!add_to(&p->grad, &grad, c))
        return false;
    u->n_grads++;
    for (size_t k = 0; k < u->params.n; k++) n += mt_requires_grad(u->params.at[k].own.shard);
    return u->n_grads < n || leave(u, c);
}

bool mti_unit_set_collector(mti_unit *u, mt_dtype products)
{
    bool as_one = find_sum_type(u, products);
    for (size_t i = 0; i < u->params.n; i++) {
        mti_leaf *leaf = mti_leaf_of(u->params.at[i].own.shard);
        if (!leaf) return false;
        u->collector.collect = collect;
        leaf->guest = as_one ? &u->collector : NULL;
    }
    return true;
}
