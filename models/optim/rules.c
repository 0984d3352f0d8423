/* rules.c: what optimizers compute, as functions over tensors. An optimizer that has no kernel
 * (optim.h) is stepped so, op by op. Tests compare a kernel's steps with these. */
#include <math.h>
#include "autograd/autograd.h"
#include "backends/adafactor.h"
#include "memtape/ops.h"
#include "optim/optim.h"
#include "stacks/optimizer_steps.h"

/* ---- rules ---- */

/* A new tensor of 1 and -1; what is 0 or NaN is its own sign. */
static mt_tensor *sign_of(mt_tensor *x)
{
    MT_AUTO mt_tensor *above = mt_compare_scalar(x, MT_GT, 0);
    MT_AUTO mt_tensor *below = mt_compare_scalar(x, MT_LT, 0);
    MT_AUTO mt_tensor *ones = mt_masked_fill(x, above, 1);
    return mt_masked_fill(ones, below, -1);
}

static bool sgd(const mti_opt_params *p, double decay, mt_tensor *g, mt_tensor **x, mt_tensor **m)
{
    MT_AUTO mt_tensor *step = mti_mixed(1, g, decay, *x);
    if (*m && p->step > 1) mt_set(m, mti_mixed(p->momentum, *m, 1, step));
    if (*m && p->step == 1) mt_set(m, mt_retain(step));
    return mt_set(x, mti_mixed(1, *x, -p->lr, *m ? *m : step)) == MT_OK;
}

static bool lion(const mti_opt_params *p, double decay, mt_tensor *g, mt_tensor **x, mt_tensor **m)
{
    MT_AUTO mt_tensor *c = mti_mixed(p->beta1, *m, 1 - p->beta1, g), *sign = sign_of(c);
    return mt_set(m, mti_mixed(p->beta2, *m, 1 - p->beta2, g)) == MT_OK &&
           mt_set(x, mti_mixed(1 - p->lr * decay, *x, -p->lr, sign)) == MT_OK;
}

static bool adamw(const mti_opt_params *p, double decay, mt_tensor *g, mt_tensor **x,
                  mt_tensor **state)
{
    const double t = (double)p->step, rate = p->lr / (1 - pow(p->beta1, t));
    MT_AUTO mt_tensor *square = mt_mul(g, g);
    if (mt_set(&state[0], mti_mixed(p->beta1, state[0], 1 - p->beta1, g)) != MT_OK ||
        mt_set(&state[1], mti_mixed(p->beta2, state[1], 1 - p->beta2, square)) != MT_OK)
        return false;
    MT_AUTO mt_tensor *root = mt_sqrt(state[1]);
    MT_AUTO mt_tensor *size = mt_affine(root, 1 / sqrt(1 - pow(p->beta2, t)), p->eps);
    MT_AUTO mt_tensor *step = mt_div(state[0], size);
    return mt_set(x, mti_mixed(1 - p->lr * decay, *x, -rate, step)) == MT_OK;
}

/* A new tensor, x's size as one number: the root of the mean of its squares, or `least` */
static mt_tensor *size_of(mt_tensor *x, double least)
{
    MT_AUTO mt_tensor *square = mt_mul(x, x), *mean = mt_mean_all(square), *root = mt_sqrt(mean);
    return mt_clamp(root, least, INFINITY);
}

/* A new tensor: the second moments that the means of rows and of columns stand for */
static mt_tensor *from_factors(mt_tensor *rows, mt_tensor *columns, double eps)
{
    MT_AUTO mt_tensor *all = mt_mean(rows, 1, (const int[]){-2}, true);
    MT_AUTO mt_tensor *least = mt_clamp(all, eps, INFINITY), *product = mt_mul(rows, columns);
    return mt_div(product, least);
}

/* Shazeer & Stern 2018, as torch.optim.Adafactor has it. */
static bool adafactor(const mti_opt_params *p, double decay, mt_tensor *g, mt_tensor **x,
                      mt_tensor **state)
{
    const mti_factor_step now = mti_factor_step_of(p);
    MT_AUTO mt_tensor *square = mt_mul(g, g);
    for (int k = 0; k < 2 && state[k]; k++) {
        MT_AUTO mt_tensor *mean =
            state[1] ? mt_mean(square, 1, (const int[]){k ? -2 : -1}, true) : mt_retain(square);
        if (mt_set(&state[k], mti_mixed(1 - now.weight, state[k], now.weight, mean)) != MT_OK)
            return false;
    }
    MT_AUTO mt_tensor *second =
        state[1] ? from_factors(state[0], state[1], p->eps) : mt_retain(state[0]);
    MT_AUTO mt_tensor *bounded = mt_clamp(second, p->eps * p->eps, INFINITY);
    MT_AUTO mt_tensor *root = mt_sqrt(bounded), *update = mt_div(g, root);
    MT_AUTO mt_tensor *reach = size_of(*x, now.eps2), *size = size_of(update, now.clip);
    MT_AUTO mt_tensor *length = mt_div(reach, size), *step = mt_mul(update, length);
    return mt_set(x, mti_mixed(1 - now.lr * decay, *x, -now.rate * now.clip, step)) == MT_OK;
}

/* ---- kernels: each steps all parameters at once ---- */

static bool sgd_step(mt_device *d, const mti_opt_params *p, int n, const mti_opt_item *items)
{
    return d->backend->sgd(d->ctx, p, n, items);
}

static bool adamw_step(mt_device *d, const mti_opt_params *p, int n, const mti_opt_item *items)
{
    return d->backend->adamw(d->ctx, p, n, items);
}

static bool adafactor_step(mt_device *d, const mti_opt_params *p, int n, const mti_opt_item *items)
{
    size_t n_bytes = d->backend->adafactor_scratch(d->ctx, n, items);
    mti_block *scratch = n_bytes ? mti_pool_alloc(d->pool, n_bytes, MT_WORKSPACE) : NULL;
    if (n_bytes && !scratch) return false;
    if (scratch) scratch->owner = NULL;
    bool ok = d->backend->adafactor(d->ctx, p, n, items, scratch ? scratch->ptr : NULL);
    mti_pool_free(d->pool, scratch, n_bytes);
    return ok;
}

static bool lion_step(mt_device *d, const mti_opt_params *p, int n, const mti_opt_item *items)
{
    return d->backend->lion(d->ctx, p, n, items);
}

/* ---- the table ---- */

#define RULE(id, name, ...) const mti_opt_rule mti_rule_##id = {name, __VA_ARGS__};
#define OPTIMIZER(...)
#include "optim/optimizers.def"
#undef OPTIMIZER
#undef RULE

/* ---- a step by a rule ---- */

/* A tensor in f32, or f64 as it is; retained. */
static mt_tensor *widened(mt_tensor *t)
{
    return mt_dtype_of(t) == MT_F64 || mt_dtype_of(t) == MT_F32 ? mt_retain(t) : mt_cast(t, MT_F32);
}

static bool step_slot(const mt_optimizer *o, mti_opt_slot *s)
{
    const mti_opt_params *p = &o->params;
    const bool decays = !o->decay_matrices_only || mt_rank(s->param) >= 2;
    mti_opt_params own = *p;
    if (s->rule->whole) own.eps = mti_factor_eps(p, mt_dtype_of(s->param), s->master != NULL);
    if (s->rule != o->rule) own.lr *= p->others_lr;
    MT_AUTO mt_tensor *x = widened(s->master ? s->master : s->param), *given = widened(s->grad);
    const double scale = p->grad_scale == 0 ? 1 : p->grad_scale;
    MT_AUTO mt_tensor *g = scale == 1 ? mt_retain(given) : mt_mul_scalar(given, scale);
    mt_tensor *state[MTI_MAX_STATE] = {NULL};
    bool ok = x && g;
    for (int k = 0; ok && k < MTI_MAX_STATE && s->state[k]; k++)
        ok = (state[k] = widened(s->state[k])) != NULL;
    ok = ok && s->rule->tensors(&own, decays ? o->weight_decay : 0, g, &x, state);
    for (int k = 0; ok && k < MTI_MAX_STATE && s->state[k]; k++)
        ok = mt_copy(s->state[k], state[k]) == MT_OK;
    if (ok && s->master) ok = mt_copy(s->master, x) == MT_OK;
    ok = ok && mt_copy(s->param, x) == MT_OK;
    for (int k = 0; k < MTI_MAX_STATE; k++) mt_release(state[k]);
    return ok;
}

bool mti_optimizer_step_by_rule(const mt_optimizer *o, int64_t step)
{
    mti_making *making = mti_making_now(), before = *making;
    mti_modes *modes = mti_modes_now();
    mti_rewrite_fn *rewrite = modes->rewrite; /* no autocast */
    const bool recorded = mt_set_grad_mode(false);
    bool ok = true;
    *making = (mti_making){MT_TEMPORARY, .in_step = true};
    modes->rewrite = NULL;
    for (size_t i = 0; ok && i < o->n_slots; i++) {
        mti_opt_slot *s = &o->slots[i];
        if (s->grad && s->step + 1 == step) ok = step_slot(o, s);
    }
    *making = before;
    modes->rewrite = rewrite;
    mt_set_grad_mode(recorded);
    return ok;
}
