/* units.c: ZeRO 3's units, of which each has the parameters that are gathered together
 * (unit_gather.c), and whose gradients are summed together (unit_grads.c). */
#include "parallel/units.h"

mti_units *mti_units_new(mt_device *device, const mt_parallel *parallel)
{
    mti_units *all = mti_calloc(1, sizeof *all);
    if (!all) return NULL;
    atomic_init(&all->refs, 1);
    all->device = device;
    all->group = mti_shard_group(parallel);
    all->replicas = mti_replica_group(parallel);
    all->few = mti_reshard_group(parallel);
    if (all->few.ranks == all->group.ranks) all->few.ranks = 1; /* they are cut so anyway */
    all->policy = mti_shard_policy_of(parallel);
    all->is_last = true;
    return all;
}

void mti_unit_let_go(mti_unit *u)
{
    for (size_t i = 0; i < u->params.n; i++) {
        mt_release(u->params.at[i].whole);
        u->params.at[i].whole = NULL;
    }
    u->is_gathered = false;
    u->holder = NULL;
    if (u->all->last_gathered == u) u->all->last_gathered = NULL;
}

void mti_units_drop_coming(mti_units *all)
{
    for (size_t i = 0; i < all->list.n; i++) {
        mti_shards_drop(all->list.at[i]->coming);
        all->list.at[i]->coming = NULL;
    }
    all->coming = NULL;
}

void mti_unit_set_closing(mti_unit *u, const void *module) { u->closing = module; }

bool mti_unit_is_closing(const mti_unit *u, const void *module) { return u->closing == module; }

void mti_unit_drop_grads(mti_unit *u)
{
    for (size_t i = 0; i < u->params.n; i++) {
        mti_drop_tensor(&u->params.at[i].grad);
        mti_drop_tensor(&u->params.at[i].held);
    }
    mti_drop_tensor(&u->reduced);
    u->n_grads = 0;
    if (u->all->summing == u) u->all->summing = NULL;
}

void mti_unit_drop_resharded(mti_unit *u)
{
    for (size_t i = 0; i < u->params.n; i++) mti_drop_tensor(&u->params.at[i].resharded);
}

void mti_units_drop_summed(mti_units *all, size_t most)
{
    size_t n = all->summed.n > most ? all->summed.n - most : 0;
    for (size_t i = 0; i < n; i++) mt_release(all->summed.at[i]);
    all->summed.n -= n;
    for (size_t i = 0; i < all->summed.n; i++) all->summed.at[i] = all->summed.at[i + n];
}

void mti_units_start_backward(mti_units *all)
{
    for (size_t i = 0; all && i < all->list.n; i++) mti_unit_drop_grads(all->list.at[i]);
}

void mti_units_set_last(mti_units *all, bool is_last)
{
    if (all) all->is_last = is_last;
}

void mti_units_release(mti_units *all)
{
    if (!all || atomic_fetch_sub(&all->refs, 1) != 1) return;
    mti_units_drop_coming(all);
    mti_drop_tensor(&all->gathered);
    mti_units_drop_summed(all, 0);
    mti_free(all->summed.at);
    for (size_t i = 0; i < all->list.n; i++) {
        mti_unit *u = all->list.at[i];
        mti_unit_let_go(u);
        mti_unit_drop_resharded(u);
        mti_unit_drop_grads(u);
        for (size_t k = 0; k < u->params.n; k++) {
            mt_tensor *shard = u->params.at[k].own.shard;
            if (shard->leaf) ((mti_leaf *)shard->leaf)->guest = NULL;
            mt_release(shard);
        }
        if (u->within.destroy) u->within.destroy(u->within.user);
        mti_free(u->params.at);
        mti_free(u);
    }
    mti_free(all->list.at);
    mti_free(all);
}

int mti_unit_add(mti_unit *u, const mti_sharded *param, bool is_product)
{
    for (size_t i = 0; i < u->params.n; i++)
        if (u->params.at[i].own.shard == param->shard) return (int)i;
    if (!MTI_PUSH(&u->params, ((mti_unit_param){.own = *param, .is_product = is_product})))
        return -1;
    u->group = param->group;
    mt_retain(param->shard);
    return (int)u->params.n - 1;
}

const mti_sharded *mti_units_find(const mti_units *all, const mt_tensor *shard)
{
    for (size_t i = 0; all && i < all->list.n; i++) {
        const mti_unit *u = all->list.at[i];
        for (size_t k = 0; k < u->params.n; k++)
            if (u->params.at[k].own.shard == shard) return &u->params.at[k].own;
    }
    return NULL;
}

mti_unit *mti_unit_retain(mti_unit *u)
{
    atomic_fetch_add(&u->all->refs, 1);
    return u;
}

void mti_unit_release(mti_unit *u) { mti_units_release(u->all); }
