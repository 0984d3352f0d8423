/* node.c: the nodes of the tape, and how they are freed without recursion. */
#include <string.h>
#include "autograd/autograd.h"

/* ---- nodes ---- */

static void node_free(mti_node *n)
{
    mti_node_drop_saved(n);
    for (int i = 0; i < n->n_in; i++) mti_edge_release(&n->in[i]);
    for (int i = 0; i < n->n_out; i++) mt_release(n->grads[i]);
    mti_hook_list_free(&n->hooks);
    mt_device *device = n->device;
    mti_object_free(device, n, n->n_bytes);
    mt_device_release(device);
}

/* Freeing a node releases its inputs' nodes, down a chain that may be very long. They queue up here
 * instead of recursing. */
static _Thread_local mti_node *dying;
static _Thread_local bool burying;

static void node_destroy(mti_ref *ref)
{
    mti_node *n = (mti_node *)ref;
    n->next_dying = dying;
    dying = n;
    if (burying) return;
    burying = true;
    while (dying) {
        n = dying;
        dying = n->next_dying;
        node_free(n);
    }
    burying = false;
}

bool mti_edge_to(mti_edge *e, mt_tensor *t)
{
    if (t->grad_fn) {
        mti_ref_retain(t->grad_fn);
        e->node = (mti_node *)t->grad_fn;
        e->out_index = t->out_index;
        return true;
    }
    e->leaf = mti_leaf_of(t);
    if (!e->leaf) return false;
    mti_ref_retain(&e->leaf->ref);
    return true;
}

void mti_edge_release(mti_edge *e)
{
    mti_ref_release((mti_ref *)e->node);
    mti_ref_release((mti_ref *)e->leaf);
}

mti_node *mti_node_new(const mti_call *c, int n_saved)
{
    /* One block: the node, then its arrays, the most strictly aligned first. */
    size_t n_in = (size_t)c->n_in, n_out = (size_t)c->n_out, k = (size_t)n_saved;
    size_t head = (sizeof(mti_node) + 15) & ~(size_t)15;
    size_t n_bytes = head + (n_in + n_out) * sizeof(mti_view) + k * sizeof(mti_saved_tensor) +
                     n_in * sizeof(mti_edge) + n_out * sizeof(mt_tensor *);
    char *memory = mti_object_new(c->device, n_bytes);
    if (!memory) return NULL;
    mti_node *n = (mti_node *)memory;
    memset(n, 0, sizeof *n);
    n->in_spec = (mti_view *)(memory + head);
    n->out_spec = n->in_spec + n_in;
    n->saved = (mti_saved_tensor *)(n->out_spec + n_out);
    n->in = (mti_edge *)(n->saved + k);
    n->grads = (mt_tensor **)(n->in + n_in);
    memcpy(n->in_spec, c->in_spec, n_in * sizeof *n->in_spec);
    memcpy(n->out_spec, c->out_spec, n_out * sizeof *n->out_spec);
    memset(n->in, 0, n_in * sizeof *n->in + n_out * sizeof *n->grads);
    memcpy(n->absent, c->absent, sizeof n->absent);
    atomic_init(&n->ref.refs, 1);
    n->ref.destroy = node_destroy;
    n->op = c->op;
    n->n_bytes = n_bytes;
    n->device = mt_device_retain(c->device);
    n->module = mti_where_now()->module;
    n->params = *c->params;
    n->draw = c->draw;
    n->want = c->want;
    n->n_in = c->n_in, n->n_out = c->n_out;
    n->sequence = mti_next_sequence();
    for (int i = 0; i < c->n_in; i++)
        if ((c->want >> i & 1) && !mti_edge_to(&n->in[i], c->in[i])) {
            mti_ref_release(&n->ref);
            return NULL;
        }
    return n;
}

void mti_node_drop_saved(mti_node *n)
{
    for (int i = 0; i < n->n_saved; i++) mti_slot_drop(&n->saved[i]);
    if (n->n_saved) n->freed = true;
    n->n_saved = 0;
}

/* ---- walking ---- */

/* A walk is rarely at more than a few nodes at once: no memory is asked for them. */
static bool grow(mti_heap *h)
{
    if (h->v.n < h->v.cap) return true;
    if (!h->v.cap) {
        h->v.at = h->few;
        h->v.cap = MTI_HEAP_FEW;
        return true;
    }
    if (h->v.at != h->few) return MTI_RESERVE(&h->v);
    mti_node **more = mti_malloc(2 * sizeof h->few);
    if (!more) return false;
    memcpy(more, h->few, sizeof h->few);
    h->v.at = more;
    h->v.cap = 2 * MTI_HEAP_FEW;
    return true;
}

bool mti_heap_push(mti_heap *h, mti_node *n)
{
    if (!grow(h)) return false;
    mti_node **at = h->v.at;
    size_t i = h->v.n++;
    for (; i && at[(i - 1) / 2]->sequence < n->sequence; i = (i - 1) / 2) at[i] = at[(i - 1) / 2];
    at[i] = n;
    return true;
}

static void drop_top(mti_heap *h)
{
    mti_node **at = h->v.at, *last = at[--h->v.n];
    size_t i = 0, n = h->v.n;
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && at[child + 1]->sequence > at[child]->sequence) child++;
        if (at[child]->sequence < last->sequence) break;
        at[i] = at[child];
    }
    if (n) at[i] = last;
}

mti_node *mti_heap_pop(mti_heap *h)
{
    if (!h->v.n) return NULL;
    mti_node *top = h->v.at[0];
    while (h->v.n && h->v.at[0] == top) drop_top(h);
    return top;
}

void mti_heap_free(mti_heap *h)
{
    if (h->v.at != h->few) mti_free(h->v.at);
    memset(&h->v, 0, sizeof h->v);
}

mt_status mt_visit_tape(mt_tensor *root, void (*fn)(void *, const mt_node_info *), void *user)
{
    if (!mti_given(root, "visit_tape", "the root")) return mt_last_status();
    if (!fn) return mti_fail(MT_ERR_ARGUMENT, "visit_tape: the function is NULL");
    mti_heap heap = {0};
    bool ok = !root->grad_fn || mti_heap_push(&heap, (mti_node *)root->grad_fn);
    for (mti_node *n; ok && (n = mti_heap_pop(&heap));) {
        mt_node_info info = {n->sequence, n->op->name, n->module, n->n_in, n->n_saved, n->freed};
        fn(user, &info);
        for (int i = 0; ok && i < n->n_in; i++)
            if (n->in[i].node) ok = mti_heap_push(&heap, n->in[i].node);
    }
    mti_heap_free(&heap);
    return ok ? MT_OK : mt_last_status();
}
