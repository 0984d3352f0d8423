/* apply.c: runs an op: checks inputs, makes outputs, computes, and records a node if an input
 * requires grad. */
#include <assert.h>
#include <string.h>
#include "autograd/autograd.h"

static const mti_params no_params;

static bool check_inputs(mti_call *c)
{
    const mti_op *op = c->op;
    for (int i = 0; i < c->n_in; i++) {
        const char *letter = op->in[op->n_in < 0 ? 0 : i];
        if (!c->in[i]) {
            if (i < MTI_MAX_KEEP && (op->flags & MTI_OPTIONAL(1u << i))) {
                c->absent[i] = true;
                continue;
            }
            return mti_given(NULL, op->name, letter);
        }
        if (!c->device) c->device = c->in[i]->storage->device;
        if (c->in[i]->storage->device != c->device)
            return mti_fail_bool(MT_ERR_ARGUMENT, "%s: %s is on another device than %s", op->name,
                                 letter, op->in[0]);
    }
    return true;
}

/* Sets which inputs want a gradient, and the union of the slots that these gradients need. */
static void plan_record(mti_call *c)
{
    const mti_modes *modes = mti_modes_now();
    if (modes->grad_off || modes->in_hook) return;
    for (int i = 0; i < c->n_in; i++) {
        if (!c->in[i] || !c->in[i]->requires_grad) continue;
        c->want |= (uint64_t)1 << i;
        if (i < MTI_MAX_KEEP) c->keep |= (unsigned)c->op->keep[i] & MTI_SLOTS;
    }
}

/* An op with integer or bool outputs only has no gradient and is not recorded, as in PyTorch. */
static void drop_record_without_floats(mti_call *c)
{
    for (int i = 0; c->want && i < c->n_out; i++)
        if (c->op->flags & MTI_VIEW || mt_dtype_is_float(c->out_spec[i].dtype)) return;
    c->want = c->keep = 0;
}

/* What an op's outputs are. */
static mt_category category_of_outputs(void)
{
    return mti_making_now()->in_step ? MT_TEMPORARY : MT_ACTIVATION;
}

static bool make_outputs(mti_call *c)
{
    const mt_category category = category_of_outputs();
    if (c->op->flags & MTI_VIEW) return true;
    for (int i = 0; i < c->n_out; i++) {
        c->out[i] = c->op->flags & MTI_INPLACE
                        ? mti_tensor_alias(c->in[0])
                        : mti_tensor_new(c->device, &c->out_spec[i], category, true);
        if (!c->out[i]) return false;
    }
    for (int i = 0; i < c->op->n_aux; i++) {
        if (!(c->keep & MTI_AUX0 << i) && !c->aux_always[i]) continue;
        c->aux[i] = mti_tensor_new(c->device, &c->aux_spec[i], category, true);
        if (!c->aux[i]) return false;
    }
    return true;
}

/* The generator advances even if a hook supplied the results, so later draws do not depend on
 * hooks. */
static void draw(mti_call *c, bool supplied)
{
    uint64_t seed, offset;
    if (!c->n_draws) return;
    mti_rng_take(c->device, c->n_draws, &seed, &offset);
    if (!supplied) c->draw.seed = seed, c->draw.offset = offset;
}

static mt_tensor *slot_tensor(mti_call *c, int bit)
{
    return bit < MTI_OUT_BIT   ? c->in[bit]
           : bit < MTI_AUX_BIT ? c->out[bit - MTI_OUT_BIT]
                               : c->aux[bit - MTI_AUX_BIT];
}

/* Makes the node and saves what it keeps. */
static mti_node *record(mti_call *c)
{
    unsigned keep = c->keep;
    for (int i = 0; i < c->n_in && i < MTI_OUT_BIT; i++)
        if (c->absent[i]) keep &= ~(1u << i);
    mti_node *n = mti_node_new(c, __builtin_popcount(keep));
    if (!n) return NULL;
    for (; keep; keep &= keep - 1) {
        int bit = __builtin_ctz(keep);
        if (!mti_slot_save(&n->saved[n->n_saved], n, bit, slot_tensor(c, bit))) {
            mti_ref_release(&n->ref);
            return NULL;
        }
        n->n_saved++;
    }
    return n;
}

/* Outputs and kept auxiliaries outlive the op: they get a category. */
static void settle(mti_call *c)
{
    if (mti_making_now()->in_op) return; /* in a hook: its caller does this */
    for (int i = 0; i < c->n_out; i++)
        if (c->out[i]->storage->unclassified_in)
            mti_storage_settle(c->out[i]->storage, category_of_outputs());
    for (int i = 0; i < c->op->n_aux; i++)
        if (c->aux[i] && (c->keep & MTI_AUX0 << i)) c->aux[i]->storage->unclassified_in = NULL;
}

static void attach(mti_call *c, mti_node *n)
{
    for (int i = 0; i < c->n_out; i++) {
        mt_tensor *t = c->op->flags & MTI_INPLACE ? c->in[0] : c->out[i];
        if (!mt_dtype_is_float(t->view.dtype)) continue;
        mti_ref *old = t->grad_fn;
        mti_ref_retain(&n->ref);
        t->grad_fn = &n->ref;
        t->out_index = i;
        t->requires_grad = true;
        mti_ref_release(old);
    }
    mti_ref_release(&n->ref);
}

static void clean_up(mti_call *c)
{
    for (int i = 0; i < c->n_scratch; i++)
        mti_pool_free(c->device->pool, c->scratch[i], c->scratch[i]->requested);
    for (int i = 0; i < c->n_temps; i++) mt_release(c->temps[i]);
    for (int i = 0; i < c->op->n_aux; i++) mt_release(c->aux[i]);
}

static bool run(mti_call *c)
{
    if (!check_inputs(c)) return false;
    c->k = c->device->backend;
    c->ctx = c->device->ctx;
    plan_record(c);
    mti_view in_spec[MTI_MAX_WANT], out_spec[MTI_MAX_OUT];
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]) in_spec[i] = c->in[i]->view;
    c->in_spec = in_spec;
    c->out_spec = out_spec;
    bool supplied;
    if (!c->op->code->shape(c)) return false;
    drop_record_without_floats(c);
    if (!mti_before_op(c, &supplied)) return false;
    if (!supplied && !make_outputs(c)) return false;
    draw(c, supplied);
    if (!supplied && !c->op->code->forward(c)) return false;
    if (!supplied) mti_count_moved(c);
    if (c->op->flags & MTI_VIEW) /* the views have their final specs */
        for (int i = 0; i < c->n_out; i++) out_spec[i] = c->out[i]->view;
    if (c->op->flags & MTI_INPLACE) atomic_fetch_add(&c->in[0]->storage->version, 1);
    if (!mti_after_op(c)) return false;
    mti_node *n = NULL;
    if (c->want && !(n = record(c))) return false;
    settle(c);
    if (n) attach(c, n);
    return true;
}

static bool apply(const mti_op *op, const mti_params *params, int n_in, mt_tensor *const *in,
                  int n_out, mt_tensor **out)
{
    mti_call c;
    mti_call_clear(&c);
    c.op = op, c.params = params ? params : &no_params;
    c.n_in = n_in, c.in = in;
    c.n_out = n_out, c.out = out;
    for (int i = 0; i < n_out; i++) out[i] = NULL;
    if (n_in > MTI_MAX_WANT || n_out > MTI_MAX_OUT)
        return mti_fail_bool(MT_ERR_ARGUMENT, "%s: %d tensors; at most %d", op->name,
                             n_in > n_out ? n_in : n_out, MTI_MAX_OUT);
    mti_where *where = mti_where_now();
    const char *outer = where->op;
    where->op = op->name;
    bool ok = run(&c);
    clean_up(&c);
    where->op = outer;
    ok = ok && (mti_op_in_progress() || mti_balance_after(c.device, op->name));
    if (!ok)
        for (int i = 0; i < n_out; i++) mt_release(out[i]), out[i] = NULL;
    return ok;
}

bool mti_apply(const mti_op *op, const mti_params *params, int n_in, mt_tensor *const *in,
               int n_out, mt_tensor **out)
{
    mti_rewrite_fn *rewrite = mti_modes_now()->rewrite;
    if (!rewrite || n_in > MTI_MAX_WANT) return apply(op, params, n_in, in, n_out, out);
    mt_tensor *rewritten[MTI_MAX_WANT];
    for (int i = 0; i < n_out; i++) out[i] = NULL;
    if (!rewrite(op, n_in, in, rewritten)) return false;
    bool ok = apply(op, params, n_in, rewritten, n_out, out);
    for (int i = 0; i < n_in; i++) mt_release(rewritten[i]);
    return ok;
}
