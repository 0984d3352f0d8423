/* backward.c: walk the nodes from the loss, last made first, and accumulate into the leaves.
 *
 * A node is run when all nodes made after it that lead to it have run: a heap ordered by
 * sequence number gives just that, since an op's inputs are always made before it. */
#include <string.h>
#include "autograd/autograd.h"

/* a + b, in a's memory if nobody else looks at it. Takes a over, borrows b. */
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
    if (sum && !d->backend->binary(d->ctx, MTI_ADD, &a->view, &b->view, &sum->view)) {
        mt_release(sum);
        sum = NULL;
    }
    mt_release(a);
    return sum;
}

/* ---- leaves ---- */

/* A gradient that the leaf can own: the very tensor if nobody else has it, else a copy. */
static mt_tensor *own(mt_tensor *grad)
{
    if (mti_tensor_is_exclusive(grad) && mti_view_is_contiguous(&grad->view) &&
        grad->storage->bytes ==
            (size_t)mti_view_count(&grad->view) * mt_dtype_size(grad->view.dtype))
        return mt_retain(grad);
    mt_device *d = grad->storage->device;
    mti_view spec = grad->view;
    size_t n_bytes;
    mti_view_pack(&spec, &n_bytes);
    mt_tensor *copy = mti_tensor_new(d, &spec, MT_GRADIENT, true);
    if (copy && !mti_copy_view(d, &grad->view, &copy->view)) {
        mt_release(copy);
        return NULL;
    }
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
        atomic_fetch_add(&leaf->grad->storage->version, 1);
        mt_release(grad);
        if (!ok) return false;
    } else {
        mt_tensor *owned = own(grad);
        mt_release(grad);
        if (!owned) return false;
        mti_storage_settle(owned->storage, MT_GRADIENT);
        leaf->grad = owned;
    }
    return mti_run_leaf_hooks(leaf);
}

/* ---- a walk ---- */

typedef struct walk {
    mti_heap heap;
    mti_node *root;
    uint64_t number;            /* later walks have greater ones */
    bool counted;               /* uses of hooked leaves are known */
    MTI_VEC(mti_leaf *) hooked; /* leaves that wait for more uses; retained */
} walk;

typedef struct node_stack {
    mti_node **at;
    size_t n, cap;
} node_stack;

static bool push_node(node_stack *stack, mti_node *n, uint64_t number)
{
    if (!n || n->visit == number) return true;
    n->visit = number;
    return MTI_PUSH(stack, n);
}

static bool is_hooked(const mti_leaf *leaf)
{
    const mti_grad_hook *h = leaf->hooks.first;
    while (h && !mti_is_called(h)) h = h->next;
    return h != NULL;
}

/* How often each leaf with hooks is used in the graph under the root. */
static bool count_uses(walk *w)
{
    node_stack stack = {0};
    bool ok = push_node(&stack, w->root, w->number);
    while (ok && stack.n) {
        mti_node *n = stack.at[--stack.n];
        for (int i = 0; ok && i < n->n_in; i++) {
            mti_leaf *leaf = n->in[i].leaf;
            if (leaf && is_hooked(leaf)) {
                if (!leaf->uses++) {
                    ok = MTI_PUSH(&w->hooked, leaf);
                    if (ok) mti_ref_retain(&leaf->ref);
                }
            }
            ok = ok && push_node(&stack, n->in[i].node, w->number);
        }
    }
    mti_free(stack.at);
    w->counted = true;
    return ok;
}

/* Takes grad over. */
static bool deliver_leaf(walk *w, mti_leaf *leaf, mt_tensor *grad)
{
    if (w->root && !w->counted && is_hooked(leaf) && !count_uses(w)) {
        mt_release(grad);
        return false;
    }
    /* Not by its hooks: it may have lost its last since its uses were counted. */
    if (!leaf->uses) return accumulate(leaf, grad);
    mt_tensor *sum = leaf->pending ? add_into(leaf->pending, grad) : mt_retain(grad);
    mt_release(grad);
    leaf->pending = sum;
    if (!sum) return false;
    sum->storage->unclassified_in = NULL; /* accounted for: a gradient on its way */
    if (++leaf->arrived < leaf->uses) return true;
    leaf->pending = NULL;
    return accumulate(leaf, sum);
}

/* Takes grad over. */
static bool deliver(walk *w, const mti_edge *e, mt_tensor *grad)
{
    if (e->leaf) return deliver_leaf(w, e->leaf, grad);
    if (e->node->running) {
        mt_release(grad);
        return mti_fail_bool(MT_ERR_STATE,
                             "backward: the one of %s is under way: a hook of it cannot walk back "
                             "through it",
                             e->node->op->name);
    }
    mt_tensor **slot = &e->node->grads[e->out_index];
    *slot = *slot ? add_into(*slot, grad) : mt_retain(grad);
    mt_release(grad);
    if (!*slot) return false;
    (*slot)->storage->unclassified_in = NULL;
    return mti_heap_push(&w->heap, e->node);
}

static void drop_grads(mti_node *n)
{
    for (int i = 0; i < n->n_out; i++) mt_release(n->grads[i]), n->grads[i] = NULL;
}

/* After a failure gradients may still be on their way. */
static void end_walk(walk *w)
{
    for (mti_node *n; (n = mti_heap_pop(&w->heap));) drop_grads(n);
    mti_heap_free(&w->heap);
    for (size_t i = 0; i < w->hooked.n; i++) {
        mti_leaf *leaf = w->hooked.at[i];
        mt_release(leaf->pending);
        leaf->pending = NULL;
        leaf->uses = leaf->arrived = 0;
        mti_ref_release(&leaf->ref);
    }
    mti_free(w->hooked.at);
}

/* ---- nodes ---- */

/* What an op made comes back as it lay, whatever a hook gave back: its backward counts on that. An
 * input, or what was changed in place, may lie in any way. */
static bool unpack_saved(mti_call *c, const mti_node *n, mt_tensor *held[MTI_MAX_SAVED])
{
    for (int i = 0; i < n->n_saved; i++) {
        const mti_saved_tensor *s = &n->saved[i];
        held[i] = mti_slot_load(s);
        if (s->bit >= 8 && !(n->op->flags & MTI_INPLACE))
            held[i] = mti_tensor_laid(held[i], &s->spec, MT_TEMPORARY);
        if (!held[i]) return false;
        c->saved[s->bit] = &held[i]->view;
    }
    return true;
}

/* Gradients of all outputs, hooked; outputs that no gradient reached get zeros. */
static bool collect_douts(mti_node *n)
{
    for (int i = 0; i < n->n_out; i++) {
        if (n->grads[i]) {
            mt_tensor *grad = n->grads[i];
            n->grads[i] = NULL; /* it is the hooks' now */
            n->grads[i] = mti_run_grad_hooks(&n->hooks, i, &n->out_spec[i], grad);
        } else {
            mti_view spec = n->out_spec[i];
            size_t n_bytes;
            mti_view_pack(&spec, &n_bytes);
            n->grads[i] = mti_tensor_new(n->device, &spec, MT_TEMPORARY, true);
            if (n->grads[i] && !n->device->backend->fill(n->device->ctx, &n->grads[i]->view, 0))
                return false;
        }
        if (!n->grads[i]) return false;
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

static bool run_node(walk *w, mti_node *n, bool retain_graph)
{
    if (n->freed)
        return mti_fail_bool(MT_ERR_STATE,
                             "backward: %s%s%s has no saved tensors any more: an earlier backward "
                             "freed them (run that one with retain_graph)",
                             n->op->name, *n->module ? " in " : "", n->module);
    mti_call c = {.op = n->op,
                  .device = n->device,
                  .k = n->device->backend,
                  .ctx = n->device->ctx,
                  .params = &n->params,
                  .n_in = n->n_in,
                  .n_out = n->n_out,
                  .in_spec = n->in_spec,
                  .out_spec = n->out_spec,
                  .want = n->want,
                  .backward = true,
                  .dout = n->grads};
    memcpy(c.absent, n->absent, sizeof c.absent);
    mt_tensor *din[MTI_MAX_WANT], *held[MTI_MAX_SAVED] = {0};
    memset(din, 0, (size_t)n->n_in * sizeof *din);
    c.din = din;
    n->running = true;
    bool ok = collect_douts(n) && unpack_saved(&c, n, held) && n->op->code->backward(&c);
    n->running = false;
    end_call(&c, held, n->n_saved);
    drop_grads(n);
    if (ok && !retain_graph) mti_node_drop_saved(n);
    for (int i = 0; i < n->n_in; i++) {
        if (!din[i]) continue;
        if (ok && (n->want >> i & 1))
            ok = deliver(w, &n->in[i], din[i]);
        else
            mt_release(din[i]);
    }
    return ok;
}

static bool run_nodes(walk *w, bool retain_graph)
{
    mti_where *where = mti_where_now();
    mti_making *making = mti_making_now(), made = *making;
    const char *op = where->op, *module = where->module;
    making->category = MT_TEMPORARY, making->in_op = true;
    mti_modes *modes = mti_modes_now();
    modes->in_backward++;
    bool ok = true;
    for (mti_node *n; ok && (n = mti_heap_pop(&w->heap));) {
        where->op = n->op->name, where->module = n->module;
        mt_device *device = mt_device_retain(n->device);
        mti_ref_retain(&n->ref);
        ok = run_node(w, n, retain_graph);
        if (!ok) drop_grads(n);
        ok = ok && mti_balance_after(device, n->op->name);
        mti_ref_release(&n->ref);
        mt_device_release(device);
    }
    modes->in_backward--;
    where->op = op, where->module = module;
    *making = made;
    return ok;
}

static mt_tensor *first_gradient(mt_tensor *loss, mt_tensor *given)
{
    char text[MTI_SHAPE_TEXT];
    const mti_view *v = &loss->view;
    mt_device *d = loss->storage->device;
    if (!given) {
        if (mti_view_count(v) != 1)
            return mti_fail_null(MT_ERR_ARGUMENT,
                                 "backward: the loss is %s; need one element, or a gradient "
                                 "(mt_backward_with)",
                                 mti_shape_text(text, v->rank, v->shape));
        mti_view spec = *v;
        size_t n_bytes;
        mti_view_pack(&spec, &n_bytes);
        mt_tensor *one = mti_tensor_new(d, &spec, MT_TEMPORARY, true);
        if (one && d->backend->fill(d->ctx, &one->view, 1)) return one;
        mt_release(one);
        return NULL;
    }
    return mti_is_like(MT_ERR_ARGUMENT, "backward", "the gradient", given, v, d)
               ? mti_tensor_alias(given)
               : NULL;
}

mt_status mt_backward_with(mt_tensor *loss, const mt_backward_options *options)
{
    static const mt_backward_options none;
    const mt_backward_options *o = options ? options : &none;
    static atomic_uint_fast64_t last_walk;
    if (!mti_given(loss, "backward", "the loss")) return mt_last_status();
    if (!loss->requires_grad)
        return mti_fail(MT_ERR_STATE, "backward: the loss does not require grad: no input of it "
                                      "did, or grad mode was off");
    mt_tensor *grad = first_gradient(loss, o->gradient);
    if (!grad) return mt_last_status();
    walk w = {.root = (mti_node *)loss->grad_fn, .number = atomic_fetch_add(&last_walk, 1) + 1};
    mti_edge root = {.node = (mti_node *)loss->grad_fn, .out_index = loss->out_index};
    bool ok = true;
    if (!root.node) {
        root.leaf = mti_leaf_of(loss);
        ok = root.leaf != NULL;
    }
    /* The graph stays alive even if a hook releases the last handle of the loss. */
    mt_retain(loss);
    const char *phase = mti_where_now()->phase;
    if (!*phase) mti_where_now()->phase = "backward";
    uint64_t outer = mti_modes_now()->walk;
    mti_modes_now()->walk = w.number;
    if (ok)
        ok = deliver(&w, &root, grad) && run_nodes(&w, o->retain_graph);
    else
        mt_release(grad);
    end_walk(&w);
    mti_modes_now()->walk = outer;
    mti_where_now()->phase = phase;
    mt_release(loss);
    return ok ? MT_OK : mt_last_status();
}

mt_status mt_backward(mt_tensor *loss) { return mt_backward_with(loss, NULL); }
