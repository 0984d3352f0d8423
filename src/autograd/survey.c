/* survey.c: looks ahead before a backward walk: which nodes it needs, and how often it reaches each
 * leaf. */
#include "autograd/backward.h"

static bool has(const mti_hashmap *m, const void *key)
{
    return mti_hashmap_find(m, mti_walk_key(key)) != MTI_NO_PLACE;
}

bool mti_walk_leads_to_input(const mti_tape_walk *w, const mti_edge *e)
{
    return e->leaf ? has(&w->input_of, e->leaf)
                   : e->node && (has(&w->needed, e->node) || has(&w->input_of, e->node));
}

static bool count_use(mti_tape_walk *w, mti_leaf *leaf)
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

/* Nodes with a lower sequence number lead to no input; 0 if an input is a leaf. */
static uint64_t lowest_useful(const mti_tape_walk *w)
{
    uint64_t first = w->n_inputs ? UINT64_MAX : 0;
    for (int i = 0; i < w->n_inputs; i++) {
        const mti_node *n = w->inputs[i].edge.node;
        if (!n || n->sequence < first) first = n ? n->sequence : 0;
    }
    return first;
}

static bool survey_edge(mti_tape_walk *w, mti_heap *heap, uint64_t lowest, const mti_edge *e)
{
    if (e->leaf) return count_use(w, e->leaf);
    return !e->node || e->node->sequence < lowest || mti_heap_push(heap, e->node);
}

static bool leads_to_an_input(const mti_tape_walk *w, const mti_node *n)
{
    for (int i = 0; i < n->n_in; i++)
        if (mti_walk_follows(w, &n->in[i])) return true;
    return false;
}

bool mti_walk_survey(mti_tape_walk *w)
{
    mti_heap heap = {0};
    MTI_VEC(mti_node *) seen = {0}; /* in reverse order of creation */
    uint64_t lowest = lowest_useful(w);
    bool ok = true;
    for (int i = 0; ok && i < w->n_inputs; i++) {
        const mti_edge *e = &w->inputs[i].edge;
        const void *end = e->leaf ? (const void *)e->leaf : (const void *)e->node;
        ok = mti_hashmap_add(&w->input_of, mti_walk_key(end), (size_t)i);
    }
    for (int i = 0; ok && i < w->n_roots; i++)
        ok = survey_edge(w, &heap, lowest, &w->roots[i].edge);
    for (mti_node *n; ok && (n = mti_heap_pop(&heap));) {
        for (int i = 0; ok && i < n->n_in; i++) ok = survey_edge(w, &heap, lowest, &n->in[i]);
        ok = ok && (!w->n_inputs || MTI_PUSH(&seen, n));
    }
    /* In order of creation: a node's inputs are decided before the node. */
    while (ok && seen.n) {
        const mti_node *n = seen.at[--seen.n];
        ok = !leads_to_an_input(w, n) || mti_hashmap_add(&w->needed, mti_walk_key(n), 0);
    }
    mti_heap_free(&heap);
    mti_free(seen.at);
    w->surveyed = true;
    return ok;
}
