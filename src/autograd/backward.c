/* backward.c: walks the nodes from the roots in reverse order of creation, and accumulates into
 * the leaves, or keeps the gradients of given inputs.
 *
 * A node may run once all nodes that use its outputs have run. They were all made after it, so a
 * heap ordered by sequence number gives this order. */
#include <stdio.h>
#include <string.h>
#include "autograd/backward.h"

/* a + b, in a's memory if this is its only reference. Takes a over, borrows b. */
static mt_tensor *add_into(mt_tensor *a, mt_tensor *b)
{
    mt_device *d = a->storage->device;
    mt_tensor *sum = NULL;
    if (mti_tensor_is_exclusive(a) && mti_view_is_contiguous(&a->view)) {
        sum = mt_retain(a);
    } else {
        mti_view spec = a->view;
        size_t n_bytes;
        mti_view_pack(&spec, &n_bytes);
        sum = mti_tensor_new(d, &spec, MT_TEMPORARY, true);
    }
    if (sum) mti_count_sum(d, &sum->view);
    if (sum && !d->backend->binary(d->ctx, MTI_ADD, &a->view, &b->view, &sum->view)) {
        mt_release(sum);
        sum = NULL;
    }
    mt_release(a);
    return sum;
}

/* ---- leaves ---- */

/* Takes grad over; NULL on failure. */
static mt_tensor *copy_as(mt_dtype dtype, mt_category category, mt_tensor *grad)
{
    mt_device *d = grad->storage->device;
    mti_view spec = grad->view;
    size_t n_bytes;
    spec.dtype = dtype;
    mti_view_pack(&spec, &n_bytes);
    mt_tensor *copy = mti_tensor_new(d, &spec, category, true);
    if (copy && !mti_copy_view(d, &grad->view, &copy->view)) {
        mt_release(copy);
        copy = NULL;
    }
    mt_release(grad);
    return copy;
}

/* A gradient that the leaf or the caller can own, row-major in a storage of its size: grad itself
 * if this is its only reference, else a copy. Takes grad over; NULL on failure. */
static mt_tensor *own(mt_tensor *grad)
{
    if (mti_tensor_is_exclusive(grad) && mti_view_is_contiguous(&grad->view) &&
        grad->storage->bytes ==
            (size_t)mti_view_count(&grad->view) * mti_dtype_size(grad->view.dtype)) {
        mti_storage_settle(grad->storage, MT_GRADIENT);
        return grad;
    }
    mt_tensor *copy = copy_as(grad->view.dtype, MT_GRADIENT, grad);
    if (copy) mti_storage_settle(copy->storage, MT_GRADIENT);
    return copy;
}

/* Takes grad over. */
static bool accumulate(mti_leaf *leaf, mt_tensor *grad)
{
    grad = mti_run_grad_hooks(&leaf->hooks, 0, &leaf->spec, grad);
    if (!grad) return false;
    if (leaf->grad) {
        mt_device *d = grad->storage->device;
        const mti_view *g = &leaf->grad->view;
        bool ok = d->backend->binary(d->ctx, MTI_ADD, g, &grad->view, g);
        mti_count_sum(d, g);
        atomic_fetch_add(&leaf->grad->storage->version, 1);
        mt_release(grad);
        if (!ok) return false;
    } else {
        leaf->grad = own(grad);
        if (!leaf->grad) return false;
    }
    return mti_run_leaf_hooks(leaf);
}

/* ---- delivering gradients ---- */

/* Stores grad, now complete, in the inputs of mt_gradients that asked for it. */
static void store_for_inputs(mti_tape_walk *w, const void *node_or_leaf, int out_index,
                             mt_tensor *grad)
{
    size_t probe = 0, i;
    while (w->n_inputs &&
           (i = mti_hashmap_next(&w->input_of, mti_walk_key(node_or_leaf), &probe)) != MTI_NO_PLACE)
        if (w->inputs[i].edge.out_index == out_index) w->inputs[i].grad = mt_retain(grad);
    grad->storage->unclassified_in = NULL;
}

/* grad: the sum over all uses of the leaf. Takes grad over. */
static bool finish_leaf(mti_tape_walk *w, mti_leaf *leaf, mt_tensor *grad)
{
    if (!w->n_inputs) return accumulate(leaf, grad);
    grad = mti_run_grad_hooks(&leaf->hooks, 0, &leaf->spec, grad);
    if (!grad) return false;
    store_for_inputs(w, leaf, 0, grad);
    mt_release(grad);
    return true;
}

/* *slot += grad. Takes grad over. */
static bool add_to_waiting(mt_tensor **slot, mt_tensor *grad)
{
    *slot = *slot ? add_into(*slot, grad) : mt_retain(grad);
    mt_release(grad);
    if (*slot) (*slot)->storage->unclassified_in = NULL; /* it outlives the op, as a gradient */
    return *slot;
}

/* Takes grad over. */
static bool deliver_leaf(mti_tape_walk *w, mti_leaf *leaf, mt_tensor *grad)
{
    if (grad->view.dtype != leaf->spec.dtype) grad = copy_as(leaf->spec.dtype, MT_TEMPORARY, grad);
    if (!grad) return false;
    if (!w->surveyed && leaf->hooks.first && mti_any_is_called(&leaf->hooks) &&
        !mti_walk_survey(w)) {
        mt_release(grad);
        return false;
    }
    /* Do not look at the leaf's hooks here: a hook may have removed itself since the survey. */
    size_t i = w->sums.n ? mti_hashmap_find(&w->sum_of, mti_walk_key(leaf)) : MTI_NO_PLACE;
    if (i == MTI_NO_PLACE) return accumulate(leaf, grad);
    mti_leaf_sum *s = &w->sums.at[i];
    if (!add_to_waiting(&s->grad, grad)) return false;
    if (++s->arrived < s->uses) return true;
    grad = s->grad;
    s->grad = NULL;
    return finish_leaf(w, leaf, grad);
}

/* Makes n->grads hold this walk's gradients. If an outer walk, from whose hook this one was
 * started, has gradients there, they are set aside until this walk ends. */
static bool claim(mti_tape_walk *w, mti_node *n)
{
    if (n->walk == w->number) return true;
    if (n->walk) {
        size_t n_bytes = (size_t)n->n_out * sizeof *n->grads;
        mt_tensor **grads = MTI_RESERVE(&w->aside) ? mti_malloc(n_bytes) : NULL;
        if (!grads) return false;
        memcpy(grads, n->grads, n_bytes);
        memset(n->grads, 0, n_bytes);
        w->aside.at[w->aside.n++] = (mti_set_aside){n, n->walk, grads};
        n->walk = 0;
    }
    if (!mti_heap_push(&w->heap, n)) return false;
    n->walk = w->number;
    return true;
}

/* Takes grad over. */
static bool deliver(mti_tape_walk *w, const mti_edge *e, mt_tensor *grad)
{
    mti_node *n = e->node;
    if (e->leaf) return deliver_leaf(w, e->leaf, grad);
    if (n->running || !claim(w, n)) {
        mt_release(grad);
        return n->running &&
               mti_fail_bool(
                   MT_ERR_STATE,
                   "backward: %s is running; a hook called from it cannot walk back through it",
                   n->op->name);
    }
    return add_to_waiting(&n->grads[e->out_index], grad);
}

static void drop_grads(mti_node *n)
{
    for (int i = 0; i < n->n_out; i++) mt_release(n->grads[i]), n->grads[i] = NULL;
    n->walk = 0;
}

/* ---- nodes ---- */

/* Outputs and auxiliaries get back the strides that the first hook saw, whatever unpack returned,
 * because kernels rely on them. Inputs, and outputs of ops in place, may have any strides. */
static bool unpack_saved(mti_call *c, const mti_node *n, mt_tensor *held[MTI_MAX_SAVED])
{
    for (int i = 0; i < n->n_saved; i++) {
        const mti_saved_tensor *s = &n->saved[i];
        held[i] = mti_slot_load(s);
        if (s->n_packed && s->bit >= MTI_OUT_BIT && !(n->op->flags & MTI_INPLACE))
            held[i] = mti_tensor_with_strides(held[i], &s->packed[0].spec, MT_TEMPORARY);
        if (!held[i]) return false;
        c->saved[s->bit] = held[i];
        c->loaded |= 1u << s->bit;
    }
    return true;
}

/* Runs the hooks on the gradients of the node's outputs; their results go to the inputs of
 * mt_gradients. */
static bool hook_douts(mti_tape_walk *w, mti_node *n)
{
    for (int i = 0; i < n->n_out; i++) {
        mt_tensor *grad = n->grads[i];
        if (!grad) continue;
        n->grads[i] = NULL; /* the hooks take it over */
        n->grads[i] = mti_run_grad_hooks(&n->hooks, i, &n->out_spec[i], grad);
        if (!n->grads[i]) return false;
        store_for_inputs(w, n, i, n->grads[i]);
    }
    return true;
}

/* Outputs that no gradient reached get zeros. */
static bool fill_douts(mti_node *n)
{
    for (int i = 0; i < n->n_out; i++) {
        if (n->grads[i]) continue;
        mti_view spec = n->out_spec[i];
        size_t n_bytes;
        mti_view_pack(&spec, &n_bytes);
        n->grads[i] = mti_tensor_new(n->device, &spec, MT_TEMPORARY, true);
        if (!n->grads[i] || !n->device->backend->fill(n->device->ctx, &n->grads[i]->view, 0))
            return false;
    }
    return true;
}

static void end_call(mti_call *c, mt_tensor *held[MTI_MAX_SAVED], int n_held)
{
    for (int i = 0; i < c->n_scratch; i++)
        mti_pool_free(c->device->pool, c->scratch[i], c->scratch[i]->requested);
    for (int i = 0; i < c->n_temps; i++) mt_release(c->temps[i]);
    for (int i = 0; i < n_held; i++) mt_release(held[i]);
}

/* Fills din[n_in] with gradients, which are the caller's; it may make more than were wanted. */
static bool call_backward(mti_tape_walk *w, mti_node *n, mt_tensor **din)
{
    mti_call c;
    mti_call_clear(&c);
    c.op = n->op, c.params = &n->params;
    c.device = n->device, c.k = n->device->backend, c.ctx = n->device->ctx;
    c.n_in = n->n_in, c.in_spec = n->in_spec;
    c.n_out = n->n_out, c.out_spec = n->out_spec;
    c.backward = true, c.last = !w->retain_graph;
    c.dout = n->grads, c.din = din;
    memcpy(c.absent, n->absent, sizeof c.absent);
    for (int i = 0; i < n->n_in; i++)
        if (mti_walk_follows(w, &n->in[i])) c.want |= (uint64_t)1 << i;
    mt_tensor *held[MTI_MAX_SAVED] = {0};
    bool ok = fill_douts(n) && unpack_saved(&c, n, held) && n->op->code->backward(&c);
    if (ok) mti_count_moved(&c);
    end_call(&c, held, n->n_saved);
    return ok;
}

static bool run_node(mti_tape_walk *w, mti_node *n)
{
    bool needed = mti_walk_needs(w, n);
    if (needed && n->freed)
        return mti_fail_bool(MT_ERR_STATE,
                             "backward: %s%s%s has no saved tensors any more: an earlier backward "
                             "freed them (run that one with retain_graph)",
                             n->op->name, *n->module ? " in " : "", n->module);
    mt_tensor *din[MTI_MAX_WANT];
    memset(din, 0, (size_t)n->n_in * sizeof *din);
    n->running = true;
    bool ok = hook_douts(w, n) && (!needed || call_backward(w, n, din));
    n->running = false;
    drop_grads(n);
    if (ok && needed) n->ran = true;
    if (ok && needed && !w->retain_graph) mti_node_drop_saved(n);
    for (int i = 0; i < n->n_in; i++) {
        if (!din[i]) continue;
        if (ok && mti_walk_follows(w, &n->in[i]))
            ok = deliver(w, &n->in[i], din[i]);
        else
            mt_release(din[i]);
    }
    return ok;
}

static bool run_nodes(mti_tape_walk *w)
{
    mti_where *where = mti_where_now();
    const char *op = where->op, *module = where->module;
    bool ok = true;
    for (mti_node *n; ok && (n = mti_heap_pop(&w->heap));) {
        where->op = n->op->name, where->module = n->module;
        mti_ref_retain(&n->ref);
        ok = run_node(w, n);
        if (!ok) drop_grads(n);
        ok = ok && mti_balance_after(n->device, n->op->name);
        mti_ref_release(&n->ref);
    }
    where->op = op, where->module = module;
    return ok;
}

/* ---- a walk ---- */

static _Thread_local mti_ending *endings;

void mti_await_end(mti_ending *ending)
{
    if (ending->waits) return;
    ending->waits = true;
    ending->next = endings;
    endings = ending;
}

static bool run_endings(bool ok)
{
    for (mti_ending *e; (e = endings);) {
        endings = e->next;
        e->waits = false;
        ok = e->run(e, ok) && ok;
    }
    return ok;
}

/* The gradients of inputs outlive the walk, so each needs its own storage. */
static bool own_input_grads(mti_tape_walk *w)
{
    for (int i = 0; i < w->n_inputs; i++) {
        mti_walk_end *input = &w->inputs[i];
        if (input->grad && !(input->grad = own(input->grad))) return false;
    }
    return true;
}

static bool walk_back(mti_tape_walk *w)
{
    static atomic_uint_fast64_t last_walk;
    w->number = atomic_fetch_add(&last_walk, 1) + 1;
    mti_making *making = mti_making_now(), outer_making = *making;
    mti_modes *modes = mti_modes_now();
    uint64_t outer_walk = modes->walk;
    mti_where *where = mti_where_now();
    const char *outer_phase = where->phase;
    if (!*outer_phase) where->phase = "backward";
    *making = (mti_making){MT_TEMPORARY, true};
    modes->walk = w->number;
    where->in_backward++;
    bool ok = !w->n_inputs || mti_walk_survey(w);
    for (int i = 0; ok && i < w->n_roots; i++) {
        mti_walk_end *root = &w->roots[i];
        mt_tensor *grad = root->grad;
        if (!mti_walk_follows(w, &root->edge)) continue;
        root->grad = NULL;
        ok = deliver(w, &root->edge, grad);
    }
    ok = ok && run_nodes(w) && own_input_grads(w);
    if (!outer_walk) ok = run_endings(ok);
    where->in_backward--;
    modes->walk = outer_walk;
    *making = outer_making;
    where->phase = outer_phase;
    return ok;
}

static void drop_ends(mti_walk_end *ends, int n)
{
    for (int i = 0; ends && i < n; i++) {
        mt_release(ends[i].grad);
        mti_edge_release(&ends[i].edge);
        mt_release(ends[i].tensor);
    }
}

/* After a failure nodes may still hold gradients. */
static void end_walk(mti_tape_walk *w)
{
    for (mti_node *n; (n = mti_heap_pop(&w->heap));) drop_grads(n);
    mti_heap_free(&w->heap);
    while (w->aside.n) {
        const mti_set_aside *a = &w->aside.at[--w->aside.n];
        memcpy(a->node->grads, a->grads, (size_t)a->node->n_out * sizeof *a->grads);
        a->node->walk = a->walk;
        mti_free(a->grads);
    }
    mti_free(w->aside.at);
    for (size_t i = 0; i < w->sums.n; i++) {
        mt_release(w->sums.at[i].grad);
        mti_ref_release(&w->sums.at[i].leaf->ref);
    }
    mti_free(w->sums.at);
    mti_hashmap_free(&w->sum_of);
    mti_hashmap_free(&w->input_of);
    mti_hashmap_free(&w->needed);
    drop_ends(w->roots, w->n_roots);
    drop_ends(w->inputs, w->n_inputs);
    if (w->roots != &w->single) mti_free(w->roots);
    mti_free(w->inputs);
}

/* ---- roots and inputs ---- */

/* Names for messages. loss is NULL where roots are given as a list. */
typedef struct entry_point {
    const char *name, *loss;
} entry_point;

enum { NAME = 40 };
static const char *name_of(char text[NAME], const entry_point *c, const char *list, int i)
{
    if (c->loss) return c->loss;
    snprintf(text, NAME, "%s[%d]", list, i);
    return text;
}

static mti_walk_end *make_ends(const char *caller, const char *list, int n, const void *tensors,
                               mti_walk_end *single)
{
    if (!tensors) return mti_fail_null(MT_ERR_ARGUMENT, "%s: %s is NULL", caller, list);
    if (n < 1) return mti_fail_null(MT_ERR_ARGUMENT, "%s: %d %s; need 1 or more", caller, n, list);
    return n == 1 && single ? single : mti_calloc((size_t)n, sizeof(mti_walk_end));
}

static bool set_end(mti_walk_end *end, const char *caller, const char *name, mt_tensor *t)
{
    if (!mti_given(t, caller, name)) return false;
    if (!t->requires_grad)
        return mti_fail_bool(MT_ERR_STATE,
                             "%s: %s does not require grad: no input of it did, or grad mode was "
                             "off",
                             caller, name);
    end->tensor = mt_retain(t);
    return mti_edge_to(&end->edge, t);
}

static mt_tensor *root_gradient(const entry_point *c, int i, mt_tensor *root, mt_tensor *given)
{
    char text[MTI_SHAPE_TEXT], name[NAME];
    const mti_view *v = &root->view;
    mt_device *d = root->storage->device;
    if (!given) {
        if (mti_view_count(v) != 1)
            return mti_fail_null(MT_ERR_ARGUMENT, "%s: %s is %s; need one element, or a gradient%s",
                                 c->name, name_of(name, c, "roots", i),
                                 mti_shape_text(text, v->rank, v->shape),
                                 c->loss ? " (mt_backward_with)" : "");
        mti_view spec = *v;
        size_t n_bytes;
        mti_view_pack(&spec, &n_bytes);
        mt_tensor *one = mti_tensor_new(d, &spec, MT_TEMPORARY, true);
        if (one) one->storage->unclassified_in = NULL; /* it lives until its root runs */
        if (one && d->backend->fill(d->ctx, &one->view, 1)) return one;
        mt_release(one);
        return NULL;
    }
    const char *label = c->loss ? "the gradient" : name_of(name, c, "gradients", i);
    return mti_is_like(MT_ERR_ARGUMENT, c->name, label, given, v, d) ? mti_tensor_alias(given)
                                                                     : NULL;
}

static bool set_roots(mti_tape_walk *w, const entry_point *c, int n, mt_tensor *const *roots,
                      mt_tensor *const *gradients)
{
    char name[NAME];
    w->roots = make_ends(c->name, "roots", n, roots, &w->single);
    bool ok = w->roots;
    for (; ok && w->n_roots < n; w->n_roots++) {
        int i = w->n_roots;
        mti_walk_end *root = &w->roots[i];
        ok = set_end(root, c->name, name_of(name, c, "roots", i), roots[i]) &&
             (root->grad = root_gradient(c, i, roots[i], gradients ? gradients[i] : NULL));
    }
    return ok;
}

static bool set_inputs(mti_tape_walk *w, const entry_point *c, int n, mt_tensor *const *inputs)
{
    char name[NAME];
    w->inputs = make_ends(c->name, "inputs", n, inputs, NULL);
    bool ok = w->inputs;
    for (; ok && w->n_inputs < n; w->n_inputs++) {
        int i = w->n_inputs;
        ok = set_end(&w->inputs[i], c->name, name_of(name, c, "inputs", i), inputs[i]);
    }
    return ok;
}

static mt_status backward(const entry_point *c, int n, mt_tensor *const *roots,
                          mt_tensor *const *gradients, bool retain_graph)
{
    mti_tape_walk w = {.retain_graph = retain_graph};
    bool ok = set_roots(&w, c, n, roots, gradients) && walk_back(&w);
    end_walk(&w);
    return ok ? MT_OK : mt_last_status();
}

mt_status mt_backward_with(mt_tensor *loss, const mt_backward_options *o)
{
    return backward(&(entry_point){"backward", "the loss"}, 1, &loss, o ? &o->gradient : NULL,
                    o && o->retain_graph);
}

mt_status mt_backward(mt_tensor *loss) { return mt_backward_with(loss, NULL); }

mt_status mt_backward_from(int n, mt_tensor *const *roots, mt_tensor *const *gradients,
                           bool retain_graph)
{
    return backward(&(entry_point){"backward_from", NULL}, n, roots, gradients, retain_graph);
}

mt_status mt_gradients(const mt_gradients_options *o, mt_tensor **out)
{
    static const entry_point c = {"gradients", NULL};
    if (!o || !out)
        return mti_fail(MT_ERR_ARGUMENT, "gradients: %s NULL", o ? "out is" : "the options are");
    mti_tape_walk w = {.retain_graph = o->retain_graph};
    bool ok = set_roots(&w, &c, o->n_roots, o->roots, o->gradients) &&
              set_inputs(&w, &c, o->n_inputs, o->inputs) && walk_back(&w);
    for (int i = 0; i < o->n_inputs; i++) out[i] = ok ? mt_retain(w.inputs[i].grad) : NULL;
    end_walk(&w);
    return ok ? MT_OK : mt_last_status();
}
