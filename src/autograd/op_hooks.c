/* op_hooks.c: hooks on ops, which may supply results so that the kernel need not run. */
#include <stdio.h>
#include "autograd/autograd.h"

struct mti_op_hooks {
    mt_op_hooks fn;
    void *user;
    int pins; /* more than 0: hooks from here on run, none may be popped */
    mti_op_hooks *below;
};

mt_status mt_push_op_hooks(const mt_op_hooks *fn, void *user)
{
    if (!fn) return mti_fail(MT_ERR_ARGUMENT, "push_op_hooks: hooks is NULL");
    mti_op_hooks *h = mti_malloc(sizeof *h);
    if (!h) return mt_last_status();
    mti_modes *modes = mti_modes_now();
    *h = (mti_op_hooks){.fn = *fn, .user = user, .below = modes->op_hooks};
    modes->op_hooks = h;
    return MT_OK;
}

static void pop_op_hooks(mti_modes *modes)
{
    mti_op_hooks *h = modes->op_hooks;
    modes->op_hooks = h->below;
    if (h->fn.destroy) h->fn.destroy(h->user);
    mti_free(h);
}

void mti_op_hooks_pop_all(void)
{
    while (mti_modes_now()->op_hooks) pop_op_hooks(mti_modes_now());
}

mt_status mt_pop_op_hooks(void)
{
    mti_modes *modes = mti_modes_now();
    if (!modes->op_hooks) return mti_fail(MT_ERR_STATE, "pop_op_hooks: the stack is empty");
    if (modes->op_hooks->pins)
        return mti_fail(MT_ERR_STATE, "pop_op_hooks: within a hook on ops, only hooks pushed "
                                      "there can be popped");
    pop_op_hooks(modes);
    return MT_OK;
}

void *mt_find_op_hooks(const mt_op_hooks *fn)
{
    for (const mti_op_hooks *h = mti_modes_now()->op_hooks; fn && h; h = h->below)
        if (h->fn.before == fn->before && h->fn.after == fn->after) return h->user;
    return NULL;
}

/* ---- calling hooks ---- */

/* Views run no kernel, and ops called by hooks are not hooked. */
static bool is_hooked(const mti_call *c)
{
    const mti_modes *modes = mti_modes_now();
    return modes->op_hooks && !modes->in_hook && !modes->in_op_hook && !(c->op->flags & MTI_VIEW);
}

static size_t bytes_of(const mti_view *v)
{
    return (size_t)mti_view_count(v) * mt_dtype_size(v->dtype);
}

static bool makes_aux(const mti_call *c, int i)
{
    return (c->keep & MTI_AUX0 << i) || c->aux_always[i];
}

static mt_op_call describe(const mti_call *c)
{
    mt_op_call call = {.op = c->op->name,
                       .module = mti_where_now()->module,
                       .device = c->device,
                       .n_inputs = c->n_in,
                       .n_outputs = c->n_out,
                       .n_auxiliaries = c->op->n_aux,
                       .inputs = c->in,
                       .flops = c->flops,
                       .in_place = c->op->flags & MTI_INPLACE};
    for (int i = 0; i < c->n_out; i++) call.output_bytes += bytes_of(&c->out_spec[i]);
    for (int i = 0; i < c->op->n_aux; i++)
        if (makes_aux(c, i)) call.output_bytes += bytes_of(&c->aux_spec[i]);
    return call;
}

/* In a hook ops are not recorded; what it keeps with mt_saved still passes saved-tensor hooks. */
typedef struct hook_scope {
    bool grad_mode;
    mti_op_hooks *top;
    uint64_t failures;
} hook_scope;

static hook_scope enter_hook(void)
{
    mti_modes *modes = mti_modes_now();
    modes->in_op_hook++;
    modes->op_hooks->pins++;
    return (hook_scope){mt_set_grad_mode(false), modes->op_hooks, mti_failures()};
}

/* False if the hook failed. */
static bool leave_hook(hook_scope outer, mt_status status, const char *which, const mti_call *c)
{
    mt_set_grad_mode(outer.grad_mode);
    outer.top->pins--;
    mti_modes_now()->in_op_hook--;
    if (status != MT_OK)
        mti_fail_around(outer.failures, status, "%s: the hook %s it failed (%s)", c->op->name,
                        which, mt_status_name(status));
    return status == MT_OK;
}

/* ---- supplied results ---- */

/* Checks *t against the op's own result, and replaces it by a new handle without history, with
 * spec's strides. */
static bool adopt(const mti_call *c, mt_tensor **t, const mti_view *spec, const char *letter)
{
    mt_tensor *given = *t;
    if (!given)
        return mti_fail_bool(MT_ERR_STATE, "%s: the hook before it supplied no %s", c->op->name,
                             letter);
    char name[64];
    snprintf(name, sizeof name, "what the hook before it supplied as %s", letter);
    if (!mti_is_like(MT_ERR_STATE, c->op->name, name, given, spec, c->device)) return false;
    *t = mti_tensor_with_strides(mti_tensor_alias(given), spec, MT_ACTIVATION);
    mt_release(given);
    return *t;
}

static bool adopt_all(mti_call *c)
{
    if (c->op->flags & MTI_INPLACE)
        return mti_fail_bool(MT_ERR_STATE,
                             "%s: the hook before it supplied a result; x itself must change",
                             c->op->name);
    bool ok = true;
    for (int i = 0; ok && i < c->n_out; i++)
        ok = adopt(c, &c->out[i], &c->out_spec[i], mti_out_letter(c->op, i));
    for (int i = 0; ok && i < c->op->n_aux; i++)
        if (c->aux[i] || makes_aux(c, i)) ok = adopt(c, &c->aux[i], &c->aux_spec[i], c->op->aux[i]);
    return ok;
}

bool mti_before_op(mti_call *c, bool *supplied)
{
    *supplied = false;
    if (!is_hooked(c)) return true;
    mt_op_call call = describe(c);
    for (mti_op_hooks *h = mti_modes_now()->op_hooks; h && !*supplied; h = h->below) {
        mt_op_result result = {.outputs = c->out, .auxiliaries = c->aux};
        hook_scope outer = enter_hook();
        mt_status status = h->fn.before ? h->fn.before(h->user, &call, &result, supplied) : MT_OK;
        if (!leave_hook(outer, status, "before", c)) return false;
        if (!*supplied) continue;
        c->flops = result.flops;
        c->draw = (mti_draw){result.p, result.seed, result.offset};
    }
    return !*supplied || adopt_all(c);
}

bool mti_after_op(mti_call *c)
{
    if (!is_hooked(c)) return true;
    mt_op_call call = describe(c);
    mt_op_result result = {c->out, c->aux, c->flops, c->draw.p, c->draw.seed, c->draw.offset};
    for (mti_op_hooks *h = mti_modes_now()->op_hooks; h; h = h->below) {
        hook_scope outer = enter_hook();
        mt_status status = h->fn.after ? h->fn.after(h->user, &call, &result) : MT_OK;
        if (!leave_hook(outer, status, "after", c)) return false;
    }
    return true;
}
