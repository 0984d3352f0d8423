/* layer_ops.c: the ops of the layers, and which of their results are worth keeping. */
#include <string.h>
#include "memory/budget.h"

static mt_status note(void *user, const mt_op_call *call, const mt_op_result *result)
{
    (void)result;
    mti_budget_ops *ops = user;
    const char *within = "";
    int64_t layer = mti_budget_layer(call->module, &within);
    if (layer < 0) return MT_OK;
    if (layer < ops->last) ops->forwards++;
    ops->last = layer;
    if (ops->forwards > 1) return MT_OK;
    if (layer >= ops->layers) ops->layers = layer + 1;
    mti_budget_op *before = ops->list.n ? &ops->list.at[ops->list.n - 1] : NULL;
    if (call->in_place && before && before->layer == layer) before->gone = true;
    const mti_budget_op op = {.layer = layer,
                              .op = call->op,
                              .module = within,
                              .bytes = call->output_bytes,
                              .flops = call->flops,
                              .gone = call->in_place};
    return MTI_PUSH(&ops->list, op) ? MT_OK : mt_last_status();
}

const mt_op_hooks mti_budget_op_hooks = {.after = note};

/* ---- products ---- */

static bool same_name(const char *op, const char *module, const mti_budget_product *p)
{
    return !strcmp(op, p->op) && !strcmp(module, p->module);
}

bool mti_budget_op_is(const mti_budget_op *op, const mti_budget_product *p)
{
    return same_name(op->op, op->module, p) && (!p->bytes || op->bytes == p->bytes);
}

typedef struct found {
    mti_budget_product product;
    uint64_t flops; /* in all layers */
} found;

typedef MTI_VEC(found) founds;

static bool add_product(founds *all, const mti_budget_op *op)
{
    size_t i = 0;
    while (i < all->n && (!same_name(op->op, op->module, &all->at[i].product) ||
                          all->at[i].product.bytes != op->bytes))
        i++;
    if (i == all->n && !MTI_PUSH(all, ((found){{op->op, op->module, op->bytes}, 0}))) return false;
    all->at[i].flops += op->flops;
    return true;
}

/* Whether op and module suffice to identify it. */
static bool is_alone(const founds *all, const mti_budget_product *p)
{
    int n = 0;
    for (size_t i = 0; i < all->n; i++) n += same_name(p->op, p->module, &all->at[i].product);
    return n == 1;
}

int mti_budget_find_products(const mti_budget_ops *ops, mti_budget_product *out)
{
    founds all = {0};
    bool ok = true;
    for (size_t i = 0; ok && i < ops->list.n; i++) {
        const mti_budget_op *op = &ops->list.at[i];
        if (op->flops && !op->gone) ok = add_product(&all, op);
    }
    int n = 0;
    for (; ok && n < MTI_BUDGET_PRODUCTS; n++) {
        found *dearest = NULL;
        for (size_t i = 0; i < all.n; i++)
            if (!dearest || all.at[i].flops > dearest->flops) dearest = &all.at[i];
        if (!dearest || !dearest->flops) break;
        out[n] = dearest->product;
        if (is_alone(&all, &out[n])) out[n].bytes = 0;
        dearest->flops = 0; /* taken */
    }
    mti_free(all.at);
    return ok ? n : -1;
}
