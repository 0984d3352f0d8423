/* unit_grads.c: the gradients of ZeRO 3's units, of which each sums its own as one.
 *
 * As PyTorch's fully_shard does: when backward has left a block (post_backward of
 * torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py), or has ended
 * (_root_post_backward_final_callback of _fsdp_state.py). A parameter that backward did not reach
 * has no part in the sum, and gets no gradient. */
#include <string.h>
#include "memtape/autograd.h"
#include "memtape/ops.h"
#include "parallel/units.h"

/* Whether the unit's gradients can be summed as one, and in which type. Where they differ in it, or
 * are kept in another type than they are summed in, each is summed by itself. */
static bool find_sum_type(mti_unit *u, mt_dtype products)
{
    size_t n = 0;
    for (size_t i = 0; i < u->params.n; i++) {
        const mti_unit_param *p = &u->params.at[i];
        if (!mt_requires_grad(p->shard)) continue;
        mt_dtype own = u->all->f32_reduce ? MT_F32 : mti_unit_type(p, products);
        if ((n++ && own != u->sum_type) || own != mt_grad_dtype(p->shard)) return false;
        u->sum_type = own;
    }
    return n > 0;
}

/* part: [1,n] of the sum. */
static bool give(mt_tensor *shard, mt_tensor *part, const mti_call *c)
{
    mti_view v = shard->view;
    mt_tensor *grad = mt_grad(shard);
    v.data = part->view.data;
    if (grad) return c->k->binary(c->ctx, MTI_ADD, &grad->view, &v, &grad->view);
    mt_tensor *g = mti_tensor_view(part, &v);
    bool ok = g && mt_set_grad(shard, g) == MT_OK;
    mt_release(g);
    return ok;
}

/* Sums those gradients that have come over the ranks; the buffer of that stays until the next
 * unit's are, or to the end of backward. */
static bool sum_grads(mti_unit *u, mti_call *c)
{
    mti_units *all = u->all;
    mt_tensor **grads = mti_malloc(u->n_grads * sizeof *grads);
    size_t *of = mti_malloc(u->n_grads * sizeof *of);
    int n = 0;
    bool ok = grads && of;
    if (u->kind == MTI_UNIT_ROOT) mti_unit_let_go(u);
    mti_drop_tensor(&all->summed);
    for (size_t i = 0; ok && i < u->params.n; i++) {
        if (!u->params.at[i].grad) continue;
        of[n] = i;
        grads[n++] = u->params.at[i].grad;
        u->params.at[i].grad = NULL;
    }
    mti_unit_drop_grads(u);
    ok = ok && mti_pieces_sum(c, &all->group, u->sum_type, n, grads, &all->summed);
    for (int i = 0; i < n; i++) {
        mt_tensor *shard = u->params.at[of[i]].shard;
        ok = ok && give(shard, grads[i], c);
        mt_release(grads[i]);
        ok = ok && mti_run_leaf_hooks((mti_leaf *)shard->leaf);
    }
    mti_free(grads);
    mti_free(of);
    return ok;
}

static bool end_backward(mti_ending *ending, bool ok)
{
    mti_units *all = (mti_units *)ending;
    mti_call c = {.device = all->device, .k = all->device->backend, .ctx = all->device->ctx};
    for (size_t i = 0; i < all->list.n; i++) {
        mti_unit *u = all->list.at[i];
        if (ok && u->n_grads) ok = sum_grads(u, &c);
        mti_unit_drop_grads(u);
        if (u->kind == MTI_UNIT_ROOT) mti_unit_let_go(u);
    }
    mti_drop_tensor(&all->summed);
    mti_units_release(all);
    return ok;
}

void mti_units_await_end(mti_units *all)
{
    if (all->ending.waits) return;
    all->ending.run = end_backward;
    atomic_fetch_add(&all->refs, 1);
    mti_await_end(&all->ending);
}

/* Another block's gradients come once backward has left this one. */
static bool leave_others(mti_unit *u, mti_call *c)
{
    mti_units *all = u->all;
    mti_unit *left = all->summing;
    if (u->kind == MTI_UNIT_ROOT || left == u) return true;
    all->summing = u;
    return !left || sum_grads(left, c);
}

static bool collect(void *user, const mti_leaf *leaf, mti_call *c)
{
    mti_unit *u = user;
    size_t i = 0, n = 0;
    mti_units_await_end(u->all);
    while (u->params.at[i].shard->leaf != &leaf->ref) i++;
    mti_unit_param *p = &u->params.at[i];
    /* A second one is of an earlier forward. */
    if (!leave_others(u, c) || (p->grad && !sum_grads(u, c))) return false;
    p->grad = mt_retain(c->dout[0]);
    mti_storage_settle(p->grad->storage, MT_GRADIENT);
    u->n_grads++;
    for (size_t k = 0; k < u->params.n; k++) n += mt_requires_grad(u->params.at[k].shard);
    return u->n_grads < n || sum_grads(u, c);
}

bool mti_unit_set_collector(mti_unit *u, mt_dtype products)
{
    bool as_one = find_sum_type(u, products);
    for (size_t i = 0; i < u->params.n; i++) {
        mti_leaf *leaf = mti_leaf_of(u->params.at[i].shard);
        if (!leaf) return false;
        leaf->collect = as_one ? collect : NULL;
        leaf->collector = u;
    }
    return true;
}
