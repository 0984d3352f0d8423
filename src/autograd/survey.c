/* survey.c: what a walk back will come by, before it does: which nodes it runs, and how often it
 * will reach each leaf. */
#include "autograd/walk.h"

static bool has(const mti_hashmap *m, const void *key)
{
    return mti_hashmap_find(m, mti_walk_key(key)) != MTI_NO_PLACE;
}

bool mti_walk_needs(const mti_walk *w, const mti_node *n)
{
    return !w->n_inputs || has(&w->needed, n);
}

bool mti_walk_follows(const mti_walk *w, const mti_edge *e)
{
    if (!w->n_inputs) return e->leaf || e->node;
    return e->leaf ? has(&w->input_of, e->leaf)
                   : e->node && (has(&w->needed, e->node) || has(&w->input_of, e->node));
}

static bool count_use(mti_walk *w, mti_leaf *leaf)
{
    if (w->n_inputs ? !has(&w->input_of, leaf) : !mti_any_is_called(&leaf->hooks)) return true;
    size_t i = mti_hashmap_find(&w->sum_of, mti_walk_key(leaf));
    if (i == MTI_NO_PLACE) {
        i = w->sums.n;
        if (!MTI_RESERVE(&w->sums) || !mti_hashmap_add(&w->sum_of, mti_walk_key(leaf), i))
            return false;
        w->sums.at[w->sums.n++] = (mti_leaf_sum){.leaf = leaf};
        mti_ref_retain(&leaf->ref);
    }
    w->sums.at[i].uses++;
    return true;
}

/* No node made before this one leads to an input; 0 where one of them is a leaf. */
static uint64_t first_of_interest(const mti_walk *w)
{
    uint64_t first = w->n_inputs ? UINT64_MAX : 0;
    for (int i = 0; i < w->n_inputs; i++) {
        const mti_node *n = w->inputs[i].at.node;
        if (!n || n->sequence < first) first = n ? n->sequence : 0;
    }
    return first;
}

static bool look_at(mti_walk *w, mti_heap *ahead, uint64_t first, const mti_edge *e)
{
    if (e->leaf) return count_use(w, e->leaf);
    return !e->node || e->node->sequence < first || mti_heap_push(ahead, e->node);
}

static bool leads_to_an_input(const mti_walk *w, const mti_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (mti_walk_follows(w, &n->in[i])) return true;
    return false;
}

bool mti_walk_survey(mti_walk *w)
{
    mti_heap ahead = {0};
    MTI_VEC(mti_node *) met = {0}; /* last made first */
    uint64_t first = first_of_interest(w);
    bool ok = true;
    for (int i = 0; ok && i < w->n_inputs; i++) {
        const mti_edge *e = &w->inputs[i].at;
        const void *at = e->leaf ? (const void *)e->leaf : (const void *)e->node;
        ok = mti_hashmap_add(&w->input_of, mti_walk_key(at), (size_t)i);
    }
    for (int i = 0; ok && i < w->n_roots; i++) ok = look_at(w, &ahead, first, &w->roots[i].at);
    for (mti_node *n; ok && (n = mti_heap_pop(&ahead));) {
        for (int i = 0; ok && i < n->n_in; i++) ok = look_at(w, &ahead, first, &n->in[i]);
        ok = ok && (!w->n_inputs || MTI_PUSH(&met, n));
    }
    /* First made first: whether a node's inputs lead on is known before it is asked itself. */
    while (ok && met.n) {
        const mti_node *n = met.at[--met.n];
        ok = !leads_to_an_input(w, n) || mti_hashmap_add(&w->needed, mti_walk_key(n), 0);
    }
    mti_heap_free(&ahead);
    mti_free(met.at);
    w->surveyed = true;
    return ok;
}
