/* backward.h: the state of one backward walk over the tape. survey.c counts uses before the walk,
 * backward.c runs it. */
#ifndef MTI_BACKWARD_H
#define MTI_BACKWARD_H

#include "autograd/autograd.h"

/* A root and its initial gradient, or an input of mt_gradients and its result. All retained: a hook
 * may release the last handle. */
typedef struct mti_walk_end {
    mt_tensor *tensor, *grad;
    mti_edge edge;
} mti_walk_end;

/* A leaf whose gradients are summed first: its hooks, or mt_gradients, need the sum. */
typedef struct mti_leaf_sum {
    mti_leaf *leaf; /* retained */
    mt_tensor *grad;
    size_t uses, arrived; /* edges to it; those that have delivered */
} mti_leaf_sum;

/* A node's gradients of an outer walk, while a walk started in one of its hooks uses the node. */
typedef struct mti_set_aside {
    mti_node *node;
    uint64_t walk;
    mt_tensor **grads; /* [n_out] */
} mti_set_aside;

typedef struct mti_tape_walk {
    uint64_t number; /* grows from walk to walk */
    bool retain_graph;
    int n_roots, n_inputs; /* no inputs: accumulate into all leaves */
    mti_walk_end *roots, *inputs;
    mti_walk_end single; /* roots, if there is one: no allocation for it */
    mti_heap heap;
    MTI_VEC(mti_set_aside) aside;
    /* Results of the survey; keys are addresses of nodes and leaves. */
    bool surveyed;
    MTI_VEC(mti_leaf_sum) sums;
    mti_hashmap sum_of;   /* leaf -> index in sums */
    mti_hashmap input_of; /* node or leaf -> indices in inputs */
    mti_hashmap needed;   /* nodes that lead to an input */
} mti_tape_walk;

static inline uint64_t mti_walk_key(const void *node_or_leaf)
{
    return (uint64_t)(uintptr_t)node_or_leaf;
}

/* Counts the uses of leaves and, for mt_gradients, finds the nodes that lead to an input. */
bool mti_walk_survey(mti_tape_walk *w);
/* Whether the edge's node or leaf leads to an input of mt_gradients. */
bool mti_walk_leads_to_input(const mti_tape_walk *w, const mti_edge *e);

/* Whether the node's backward must run ... */
static inline bool mti_walk_needs(const mti_tape_walk *w, const mti_node *n)
{
    return !w->n_inputs || mti_hashmap_find(&w->needed, mti_walk_key(n)) != MTI_NO_PLACE;
}
/* ... and whether a gradient is delivered along this edge. */
static inline bool mti_walk_follows(const mti_tape_walk *w, const mti_edge *e)
{
    return w->n_inputs ? mti_walk_leads_to_input(w, e) : e->leaf || e->node;
}

#endif
