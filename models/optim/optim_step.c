/* optim_step.c: a step: which parameters take part, and at which step each of them is. The backend
 * does the arithmetic, in one call for all parameters. */
#include "optim/optim.h"
#include "autograd/autograd.h"
#include "memtape/ops.h"
#include "stacks/optimizer_steps.h"

/* The gradient for this parameter's step; NULL if it takes no part. */
static mt_tensor *grad_of(const mti_opt_slot *s)
{
    return mt_requires_grad(s->param) ? mt_grad(s->param) : NULL;
}

/* Whether the gradient's dtype differs from the parameter's. */
static bool is_wide(const mti_opt_slot *s) { return mt_dtype_of(s->grad) != mt_dtype_of(s->param); }

static bool can_step(const mt_optimizer *o, const mti_opt_slot *s, const mt_tensor *grad)
{
    mt_dtype given = mt_dtype_of(grad), own = mt_dtype_of(s->param);
    bool narrow = mt_dtype_size(own) == 2;
    return given == own || (given == MT_F32 && narrow) ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: the gradient of %s is %s; need %s%s", o->rule->name,
                         s->path, mt_dtype_name(given), mt_dtype_name(own),
                         narrow ? " or f32" : "");
}

/* Retains a contiguous gradient for every parameter that takes part. */
static bool hold_grads(mt_optimizer *o)
{
    bool ok = true;
    for (size_t i = 0; ok && i < o->n_slots; i++) {
        mti_opt_slot *s = &o->slots[i];
        mt_tensor *grad = grad_of(s);
        if (!grad) continue;
        if (!can_step(o, s, grad)) return false;
        s->grad = mt_is_contiguous(grad) ? mt_retain(grad) : mt_contiguous(grad);
        ok = s->grad != NULL;
    }
    return ok;
}

static void release_grads(mt_optimizer *o)
{
    for (size_t i = 0; i < o->n_slots; i++) {
        mti_opt_slot *s = &o->slots[i];
        mt_release(s->roots[0]), mt_release(s->roots[1]);
        mt_release(s->grad);
        s->roots[0] = s->roots[1] = s->grad = NULL;
    }
}

/* What a root is like: the second moment; of factors the matrix that they stand for. */
static mti_view root_spec(const mt_optimizer *o, const mti_opt_slot *s)
{
    if (!o->rule->whole) return s->state[1]->view;
    mti_view spec = s->param->view;
    spec.dtype = mt_dtype_of(s->state[0]);
    return spec;
}

/* Makes room for the roots of the second moments, as PyTorch 2.13's torch/optim/adam.py has them:
 * _multi_tensor_adam one of each parameter, at once; _single_tensor_adam one, and its quotient; and
 * _adafactor.py's _single_tensor_adafactor one. Our kernel needs none. */
static bool hold_roots(mt_optimizer *o)
{
    const int n = o->rule->whole && o->form ? 1 : (int)o->form;
    bool ok = true;
    for (size_t i = 0; ok && i < o->n_slots; i++) {
        mti_opt_slot *s = &o->slots[i];
        for (int k = 0; ok && s->grad && k < n; k++) {
            const mti_view spec = root_spec(o, s);
            s->roots[k] = mti_tensor_new(o->device, &spec, MT_TEMPORARY, false);
            ok = s->roots[k] != NULL;
        }
    }
    return ok;
}

/* ---- in groups ---- */

/* As DeepSpeed has them: the gradients side by side, and those of parameters let go. */
static bool flatten_grads(mt_optimizer *o)
{
    mt_tensor ***grads = o->sub_group && !o->host ? mti_malloc(o->n_slots * sizeof *grads) : NULL;
    size_t n = 0;
    if (!o->sub_group || o->host) return true;
    if (!grads) return false;
    for (size_t i = 0; i < o->n_slots; i++)
        if (o->slots[i].grad) grads[n++] = &o->slots[i].grad;
    bool ok = mti_deepspeed_flatten(o->device, n, grads);
    mti_free(grads);
    for (size_t i = 0; ok && i < o->n_slots; i++)
        if (o->slots[i].grad && o->drops) ok = mt_set_grad(o->slots[i].param, NULL) == MT_OK;
    return ok;
}

void mti_optimizer_set_sub_group(mt_optimizer *o, int64_t elements, bool drops)
{
    o->sub_group = elements;
    o->drops = drops;
}

/* ---- a step ---- */

/* Gradients and state. A failure has nothing to undo: new state is zero, as before a first step,
 * and a new master equals the parameter. */
static bool prepare(mt_optimizer *o)
{
    bool ok = hold_grads(o) && flatten_grads(o);
    for (size_t i = 0; ok && i < o->n_slots; i++)
        if (o->slots[i].grad) ok = mti_optimizer_make_state(o, &o->slots[i]);
    return ok && hold_roots(o);
}

/* One parameter's step, for the backend. */
static mti_opt_item item_of(const mt_optimizer *o, const mti_opt_slot *s)
{
    const mti_view *p = &s->param->view;
    bool decays = !o->decay_matrices_only || p->rank >= 2;
    bool factors = mti_optimizer_factors(o, p), whole = o->rule->whole && !factors;
    bool matrix = factors || (o->rule->others && s->rule == o->rule);
    mt_tensor *m = whole ? NULL : s->state[0], *v = whole ? s->state[0] : s->state[1];
    return (mti_opt_item){.n = mti_view_count(p),
                          .dtype = p->dtype,
                          .p = p->data,
                          .g = s->grad->view.data,
                          .wide_grad = is_wide(s),
                          .m = m ? m->view.data : NULL,
                          .v = v ? v->view.data : NULL,
                          .moments = mti_optimizer_moments(o, p),
                          .scales = {s->state[2] ? s->state[2]->view.data : NULL,
                                     s->state[3] ? s->state[3]->view.data : NULL},
                          .rows = matrix ? p->shape[p->rank - 2] : 1,
                          .columns = matrix ? p->shape[p->rank - 1] : mti_view_count(p),
                          .master = s->master ? s->master->view.data : NULL,
                          .weight_decay = decays ? o->weight_decay : 0};
}

/* The parameters whose next step is `step`, as items for the backend. */
static int gather(mt_optimizer *o, int64_t step)
{
    int n = 0;
    for (size_t i = 0; i < o->n_slots; i++) {
        const mti_opt_slot *s = &o->slots[i];
        if (s->grad && s->step + 1 == step) o->items[n++] = item_of(o, s);
    }
    return n;
}

/* The smallest next step of any parameter that is above `above`; 0 if none. */
static int64_t next_step(const mt_optimizer *o, int64_t above)
{
    int64_t least = 0;
    for (size_t i = 0; i < o->n_slots; i++) {
        int64_t next = o->slots[i].step + 1;
        if (o->slots[i].grad && next > above && (!least || next < least)) least = next;
    }
    return least;
}

/* One call per distinct step, nearly always one: a parameter that was frozen or unused for a while
 * is behind the others. */
static bool run(mt_optimizer *o)
{
    for (int64_t step = 0; (step = next_step(o, step)) > 0;) {
        int n = gather(o, step);
        o->params.step = step;
        if (o->by_rule || !o->rule->step ? !mti_optimizer_step_by_rule(o, step)
                                         : !o->rule->step(o->device, &o->params, n, o->items))
            return false;
    }
    for (size_t i = 0; i < o->n_slots; i++) {
        mti_opt_slot *s = &o->slots[i];
        if (!s->grad) continue;
        s->step++;
        s->version = atomic_fetch_add(&s->param->storage->version, 1) + 1;
    }
    return true;
}

/* How many parameters step together from the ith on: all; in the loop's form one; of sub-groups as
 * many as have its elements. */
static size_t together(const mt_optimizer *o, size_t i)
{
    int64_t elements = 0;
    size_t n = 0;
    if (!o->sub_group) return o->form == MT_ADAMW_LOOP ? 1 : o->n_slots - i;
    while (i + n < o->n_slots && elements < o->sub_group)
        elements += mt_numel(o->slots[i + n++].param);
    return n;
}

/* Makes all states before the first parameter steps, as _init_group of torch.optim does. */
static bool make_states(mt_optimizer *o)
{
    bool ok = true;
    for (size_t i = 0; ok && i < o->n_slots; i++)
        if (grad_of(&o->slots[i])) ok = mti_optimizer_make_state(o, &o->slots[i]);
    return ok;
}

bool mti_optimizer_step_scaled(mt_optimizer *o, double factor)
{
    const char *op = mti_where_now()->op;
    mti_where_now()->op = o->rule->name;
    o->params.grad_scale = factor;
    bool ok = o->form != MT_ADAMW_LOOP || o->sub_group || make_states(o);
    for (size_t i = 0, n; ok && i < o->n_slots; i += n) {
        n = together(o, i);
        mt_optimizer some = *o;
        some.slots = &o->slots[i];
        some.n_slots = n;
        ok = prepare(&some) && run(&some);
        release_grads(&some);
    }
    mti_where_now()->op = op;
    return ok;
}

mt_status mt_optimizer_step(mt_optimizer *o)
{
    if (!mti_given(o, "optimizer_step", "the optimizer")) return mt_last_status();
    return mti_optimizer_step_scaled(o, 1) ? MT_OK : mt_last_status();
}

/* ---- in backward ---- */

static mt_status step_leaf(void *slot, mt_tensor *leaf)
{
    mti_opt_slot *s = slot;
    mt_optimizer one = *s->owner;
    one.slots = s;
    one.n_slots = 1;
    return mti_optimizer_step_scaled(&one, 1) ? mt_set_grad(leaf, NULL) : mt_last_status();
}

bool mti_steps_in_backward(const mt_tensor *param)
{
    const mti_grad_hook *h = param->leaf ? ((const mti_leaf *)param->leaf)->hooks.first : NULL;
    while (h && (h->leaf_fn != step_leaf || h->removed)) h = h->next;
    return h != NULL;
}

mt_status mt_optimizer_step_in_backward(mt_optimizer *o, bool on)
{
    if (!mti_given(o, "optimizer_step_in_backward", "the optimizer")) return mt_last_status();
    bool ok = true;
    for (size_t i = 0; ok && i < o->n_slots; i++) {
        mti_opt_slot *s = &o->slots[i];
        if (!on && s->hook) mt_remove_hook(s->param, s->hook), s->hook = 0;
        if (!on || s->hook || !mt_requires_grad(s->param)) continue;
        s->owner = o;
        ok = (s->hook = mt_add_leaf_hook(s->param, step_leaf, s)) != 0;
    }
    o->in_backward = on && ok;
    if (ok) return MT_OK;
    mt_optimizer_step_in_backward(o, false);
    return mt_last_status();
}

/* ---- all gradients ---- */

static int gather_grads(mt_optimizer *o)
{
    int n = 0;
    for (size_t i = 0; i < o->n_slots; i++) {
        const mt_tensor *grad = o->slots[i].grad;
        if (grad)
            o->items[n++] = (mti_opt_item){.n = mti_view_count(&grad->view),
                                           .dtype = grad->view.dtype,
                                           .p = grad->view.data,
                                           .g = grad->view.data};
    }
    return n;
}

bool mti_optimizer_squares(mt_optimizer *o, double *out)
{
    *out = 0;
    bool ok = hold_grads(o);
    int n = ok ? gather_grads(o) : 0;
    if (n) ok = o->device->backend->sum_squares(o->device->ctx, n, o->items, out);
    release_grads(o);
    return ok;
}

/* Makes gradients writable: strided views are replaced by copies. */
static bool own_grads(mt_optimizer *o)
{
    for (size_t i = 0; i < o->n_slots; i++) {
        const mti_opt_slot *s = &o->slots[i];
        if (!s->grad) continue;
        if (mt_dtype_of(s->grad) == MT_F16)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "scaler_unscale: the gradient of %s is f16 and would underflow; "
                                 "mt_scaler_step divides the scale out itself",
                                 s->path);
        if (s->grad != grad_of(s) && mt_set_grad(s->param, s->grad) != MT_OK) return false;
    }
    return true;
}

bool mti_optimizer_scale_grads(mt_optimizer *o, double factor)
{
    bool ok = hold_grads(o) && own_grads(o);
    int n = ok ? gather_grads(o) : 0;
    if (n) ok = o->device->backend->scale_all(o->device->ctx, factor, n, o->items);
    for (size_t i = 0; ok && i < o->n_slots; i++)
        if (o->slots[i].grad) atomic_fetch_add(&o->slots[i].grad->storage->version, 1);
    release_grads(o);
    return ok;
}
