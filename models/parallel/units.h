/* units.h: what the files of units share. */
#ifndef MTI_PARALLEL_UNITS_H
#define MTI_PARALLEL_UNITS_H

#include "autograd/autograd.h"
#include "collectives/collectives.h"
#include "parallel/parallel.h"

typedef struct mti_unit_param {
    mti_sharded own;
    bool is_product;  /* of a linear: gathered in 16 bits where autocast multiplies in them */
    mt_tensor *whole; /* what was gathered: flat, of the root as recorded; NULL: it is not there */
    mt_tensor *resharded; /* shard of what was gathered, among fewer ranks; NULL: none */
    mt_tensor *grad;      /* of the whole, until the unit's are summed; NULL: it has not come */
    mt_tensor *held;      /* the sum of those that came before, in another type; NULL: none */
} mti_unit_param;

struct mti_unit {
    mti_collector collector; /* the first member */
    mti_units *all;
    mti_unit_kind kind;
    mt_group group;           /* that has the shards */
    mti_unit *before, *after; /* blocks in the model's order; NULL: none */
    mti_unit *experts;        /* in the block; NULL: they are among its parameters */
    MTI_VEC(mti_unit_param) params;
    mti_gathering *coming; /* NULL: not on its way */
    bool is_gathered;
    bool stays;             /* from forward to backward */
    bool is_awaited;        /* backward will come to it, though the tape keeps no parameter */
    const void *closing;    /* the last of several modules; NULL: the unit has one, ... */
    mti_around within;      /* ... within which this runs; its fn NULL: nothing */
    size_t n_kept;          /* saved parameters, of all forwards */
    size_t n_grads;         /* that have come in this backward */
    mt_dtype sum_type;      /* in which they are summed as one, and ... */
    mt_dtype grad_type;     /* ... to which the sum is cast */
    mt_tensor *reduced;     /* what replicas summed last; NULL: nothing */
    mt_dtype products;      /* in which those that came, or are coming, were gathered */
    uint64_t versions;      /* sum of the shards' then */
    mti_pass *running;      /* whose forward runs; NULL: none */
    const mti_pass *holder; /* with the end of which the parameters are let go */
};

struct mti_units {
    mti_ending ending; /* the first member */
    atomic_int refs;
    mt_device *device; /* borrowed: it outlives tensors on it */
    mt_group group, replicas;
    mt_group few; /* among which blocks are cut after forward; one: none */
    mti_shard_policy policy;
    bool is_last; /* the backward to come, or that runs, is a step's last */
    MTI_VEC(mti_unit *) list;
    mti_unit *last, *root;            /* block; NULL: none */
    mti_unit *last_gathered, *coming; /* blocks; NULL: none */
    mti_unit *summing;                /* block of which some gradients have come; NULL: none */
    mt_tensor *gathered;              /* what the last one was copied from; NULL in backward */
    MTI_VEC(mt_tensor *) summed;      /* what the last gradients were summed from */
    bool (*gather_again)(mti_unit *u);
};

/* One forward of a unit, and what the tape keeps of it. */
struct mti_pass {
    atomic_int refs;
    mti_unit *unit;
    mt_dtype products;
    size_t n_kept; /* saved parameters */
};

/* The type in which it is gathered. */
static inline mt_dtype mti_unit_type(const mti_unit_param *p, mt_dtype products)
{
    return p->is_product && p->own.whole.dtype == MT_F32 ? products : p->own.whole.dtype;
}

/* Stages whose blocks stay keep them for a whole step (set_reshard_after_backward(False)). */
static inline bool mti_units_keep(const mti_units *all)
{
    return all->policy.of_stage && all->policy.stay && !all->is_last;
}

static inline void mti_drop_tensor(mt_tensor **t)
{
    mt_release(*t);
    *t = NULL;
}

/* ---- units.c ---- */

/* The unit's parameters are no longer there as wholes. */
void mti_unit_let_go(mti_unit *u);
/* Drops the blocks' shards among fewer ranks, which no backward reads any more. */
void mti_unit_drop_resharded(mti_unit *u);
/* All but the last `most` of what gradients were summed from. */
void mti_units_drop_summed(mti_units *all, size_t most);
/* What was begun for nothing. */
void mti_units_drop_coming(mti_units *all);
/* After a backward that failed; what earlier ones have left, too. */
void mti_unit_drop_grads(mti_unit *u);

/* ---- unit_grads.c ---- */

/* Lets the leaves' gradients come to the unit, if they are summed as one. */
bool mti_unit_set_collector(mti_unit *u, mt_dtype products);
/* In a backward: its end is waited for. */
void mti_units_await_end(mti_units *all);

#endif
