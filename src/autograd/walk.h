/* walk.h: one walk back over the tape: where it begins, what it asks for, what waits on the way.
 * backward.c walks, survey.c looks ahead. */
#ifndef MTI_WALK_H
#define MTI_WALK_H

#include "autograd/autograd.h"

/* A root with the gradient to begin with, or an input of mt_gradients with the one that was found.
 * All retained: a hook may let the last handle go. */
typedef struct mti_walk_end {
    mt_tensor *tensor, *grad;
    mti_edge at;
} mti_walk_end;

/* A leaf whose uses are added up first: hooks and inputs of mt_gradients see the sum, once. */
typedef struct mti_leaf_sum {
    mti_leaf *leaf; /* retained */
    mt_tensor *grad;
    size_t uses, arrived;
} mti_leaf_sum;

/* What waited at a node for an outer walk, in a hook of which this one runs. */
typedef struct mti_set_aside {
    mti_node *node;
    uint64_t walk;
    mt_tensor **grads; /* [n_out] */
} mti_set_aside;

typedef struct mti_walk {
    uint64_t number; /* later walks have greater ones */
    bool retain_graph;
    int n_roots, n_inputs; /* no inputs: all leaves, into their own gradients */
    mti_walk_end *roots, *inputs;
    mti_heap heap;
    MTI_VEC(mti_set_aside) aside;
    /* What survey.c found; keys are addresses of nodes and leaves. */
    bool surveyed;
    MTI_VEC(mti_leaf_sum) sums;
    mti_hashmap sum_of;   /* leaf -> place in sums */
    mti_hashmap input_of; /* node or leaf -> places in inputs */
    mti_hashmap needed;   /* nodes from which there is a way to an input */
} mti_walk;

static inline uint64_t mti_walk_key(const void *node_or_leaf)
{
    return (uint64_t)(uintptr_t)node_or_leaf;
}

/* Counts the uses of leaves and, where there are inputs, finds the nodes that lead to them. */
bool mti_walk_survey(mti_walk *w);
/* Whether the walk runs the node's backward ... */
bool mti_walk_needs(const mti_walk *w, const mti_node *n);
/* ... and whether it goes this way at all. */
bool mti_walk_follows(const mti_walk *w, const mti_edge *e);

#endif
