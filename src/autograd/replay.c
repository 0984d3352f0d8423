/* replay.c: hooks on ops: results that are there already take the place of running the kernel. */
#include <string.h>
#include "autograd/autograd.h"

struct mti_op_hooks {
    mt_op_hooks fn;
    void *user;
    mti_op_hooks *below;
};

mt_status mt_push_op_hooks(const mt_op_hooks *fn, void *user)
{
    if (!fn) return mti_fail(MT_ERR_ARGUMENT, "push_op_hooks: hooks is NULL");
    mti_op_hooks *h = mti_malloc(sizeof *h);
    if (!h) return mt_last_status();
    mti_modes *modes = mti_modes_now();
    *h = (mti_op_hooks){*fn, user, modes->op_hooks};
    modes->op_hooks = h;
    return MT_OK;
}

mt_status mt_pop_op_hooks(void)
{
    mti_modes *modes = mti_modes_now();
    mti_op_hooks *h = modes->op_hooks;
    if (!h) return mti_fail(MT_ERR_STATE, "pop_op_hooks: the stack is empty");
    modes->op_hooks = h->below;
    if (h->fn.destroy) h->fn.destroy(h->user);
    mti_free(h);
    return MT_OK;
}

void *mt_find_op_hooks(const mt_op_hooks *fn)
{
    for (const mti_op_hooks *h = mti_modes_now()->op_hooks; fn && h; h = h->below)
        if (h->fn.before == fn->before && h->fn.after == fn->after) return h->user;
    return NULL;
}

/* ---- a call, as hooks see it ---- */

/* Views run no kernel; what hooks run themselves is their own affair. */
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

static mt_status told(mt_status status, const char *which, const mti_call *c)
{
    if (status != MT_OK && mt_last_status() == MT_OK)
        mti_fail(status, "%s: the hook %s it failed (%s)", c->op->name, which,
                 mt_status_name(status));
    return status;
}

/* Hooks' own ops are not recorded, but what they keep (mt_saved) passes the stack of hooks. */
static bool enter(void)
{
    mti_modes_now()->in_op_hook++;
    return mt_set_grad_mode(false);
}

static void leave(bool grad_mode)
{
    mt_set_grad_mode(grad_mode);
    mti_modes_now()->in_op_hook--;
}

/* ---- supplied results ---- */

/* *t becomes a handle of its own, without history, if it is what the op would have made, and lies
 * as that would have. */
static bool adopt(const mti_call *c, mt_tensor **t, const mti_view *spec, const char *what)
{
    char want[MTI_SHAPE_TEXT], got[MTI_SHAPE_TEXT];
    mt_tensor *given = *t;
    if (!given)
        return mti_fail_bool(MT_ERR_STATE, "%s: the hook before it supplied no %s", c->op->name,
                             what);
    if (given->storage->device != c->device || given->view.dtype != spec->dtype ||
        !mti_view_same_shape(&given->view, spec))
        return mti_fail_bool(
            MT_ERR_STATE, "%s: the hook before it supplied %s as %s %s; need %s %s", c->op->name,
            what, mt_dtype_name(given->view.dtype),
            mti_shape_text(got, given->view.rank, given->view.shape), mt_dtype_name(spec->dtype),
            mti_shape_text(want, spec->rank, spec->shape));
    *t = mti_tensor_laid(mti_tensor_alias(given), spec, MT_ACTIVATION);
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
    for (int i = 0; ok && i < c->n_out; i++) ok = adopt(c, &c->out[i], &c->out_spec[i], c->op->out);
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
        bool grad_mode = enter();
        mt_status status = h->fn.before ? h->fn.before(h->user, &call, &result, supplied) : MT_OK;
        leave(grad_mode);
        if (told(status, "before", c) != MT_OK) return false;
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
        bool grad_mode = enter();
        mt_status status = h->fn.after ? h->fn.after(h->user, &call, &result) : MT_OK;
        leave(grad_mode);
        if (told(status, "after", c) != MT_OK) return false;
    }
    return true;
}
