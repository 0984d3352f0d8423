/* load_balance.c: the loss that keeps experts evenly used (Shazeer et al. 2017; Fedus et al. 2021),
 * as Transformers' load_balancing_loss_func has it. Of n experts, over the t tokens of all layers
 * with a router, f_i is the share of tokens that chose expert i and p_i the mean of its softmax:
 * loss = n sum over i of f_i p_i; only p_i has a gradient. So ranks that add up f, and have p of
 * their own tokens, have the loss of all tokens as the mean of theirs (Qiu et al. 2025). The
 * routers' logits stay until the loss is made; it keeps a softmax of each layer, t n e bytes, and
 * f, 4 n.
 *
 * balance_by_layer: the sum of such a loss of each layer, over k, as Megatron-Core has it
 * (moe_utils.py, switch_load_balancing_loss_func); f of each layer is kept. */
#include "nn/model.h"
#include "memtape/ops.h"

static void free_logits(mti_router_logits *l)
{
    for (size_t i = 0; i < l->n; i++) mt_release(l->at[i]);
    mti_free(l->at);
    *l = (mti_router_logits){0};
}

/* How many rows of p [t,n] have each column among their k largest: f32 [n]. */
static mt_tensor *count_choices(mt_tensor *p, int64_t k)
{
    const bool was = mt_set_grad_mode(false);
    mt_tensor *values = NULL, *index = NULL, *y = NULL;
    mt_groups groups = {0};
    MT_AUTO mt_tensor *none =
        mt_slice(p, 1, 0, 0); /* rows without columns: only their number counts */
    if (none && mt_topk(p, k, &values, &index) == MT_OK)
        y = mt_dispatch(none, index, mt_shape(p)[1], &groups);
    mt_set(&y, y ? mt_cast(groups.counts, MT_F32) : NULL);
    mt_groups_release(&groups);
    mt_release(values), mt_release(index);
    mt_set_grad_mode(was);
    return y;
}

/* *sum + x, both taken over; *sum NULL: x */
static bool add_to(mt_tensor **sum, mt_tensor *x)
{
    if (*sum && x) mt_set(&x, mt_add(*sum, x));
    return mt_set(sum, x) == MT_OK;
}

/* Covers the layers from, from + 1, ..., to - 1. */
static mt_tensor *loss_of(const mti_router_logits *l, size_t from, size_t to, int64_t k,
                          const mti_balance_ranks *r)
{
    MT_AUTO mt_tensor *counts = NULL, *sums = NULL;
    int64_t rows = 0;
    bool ok = to > from;
    for (size_t i = from; ok && i < to; i++) {
        MT_AUTO mt_tensor *p = mt_softmax(l->at[i], 1, false);
        mt_tensor *wide = p ? mt_cast(p, MT_F32) : NULL;
        mt_set(&wide, mt_sum(wide, 1, (const int[]){0}, false));
        ok = add_to(&sums, wide) && add_to(&counts, count_choices(p, k));
        rows += mt_shape(l->at[i])[0];
    }
    const int64_t n = ok ? mt_shape(l->at[from])[1] : 0, ranks = r ? r->n : 1;
    ok = ok && (!r || r->sum(r->user, counts));
    if (ok) mt_set(&counts, mt_mul_scalar(counts, 1 / (double)(rows * ranks)));
    if (ok) mt_set(&sums, mt_mul_scalar(sums, 1 / (double)rows));
    mt_tensor *y = ok ? mt_mul(counts, sums) : NULL;
    mt_set(&y, mt_sum_all(y));
    mt_set(&y, mt_mul_scalar(y, (double)n));
    return y;
}

static mt_tensor *balance_loss(const mt_model_config *c, const mti_router_logits *l,
                               const mti_balance_ranks *r)
{
    const int64_t k = c->experts_per_token;
    mt_tensor *sum = NULL;
    if (!c->balance_by_layer) return loss_of(l, 0, l->n, k, r);
    for (size_t i = 0; i < l->n; i++)
        if (!add_to(&sum, loss_of(l, i, i + 1, k, r))) return NULL;
    mt_set(&sum, mt_mul_scalar(sum, 1 / (double)k));
    return sum;
}

mt_tensor *mti_add_balance(const mt_model_config *c, mt_tensor *y, mti_router_logits *logits,
                           const mti_balance_ranks *r)
{
    if (y && !logits->n) return y; /* all layers are dense */
    const bool named = mt_scope_push("balance") == MT_OK;
    if (!named) mt_set(&y, NULL);
    mt_tensor *balance = y ? balance_loss(c, logits, r) : NULL;
    if (r && balance) mt_set(&balance, r->share(r->user, balance));
    mt_set(&balance, mt_mul_scalar(balance, c->balance_loss));
    mt_set(&balance, balance ? mt_cast(balance, mt_dtype_of(y)) : NULL);
    mt_set(&y, mt_add(y, balance));
    if (named) mt_scope_pop();
    mt_release(balance);
    free_logits(logits);
    return y;
}
