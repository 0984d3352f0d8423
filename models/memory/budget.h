/* budget.h: what the files of the budget share. Bytes are requested ones up to multiples of 512,
 * signed so that they can be subtracted: these add up, layer by layer. A plan's peak, of whole
 * blocks, does not, since their rests depend on what was freed before (memory.h). */
#ifndef MTI_BUDGET_BUDGET_H
#define MTI_BUDGET_BUDGET_H

#include "base/base.h"
#include "memtape/models/budget.h"

/* ---- choices ---- */

/* A matrix product of a layer, whose result a checkpoint may keep. */
typedef struct mti_budget_product {
    const char *op, *module; /* "linear", "attn.qkv": without the layer's own path */
    size_t bytes;            /* of its results; 0 where op and module say enough */
} mti_budget_product;
#define MTI_BUDGET_PRODUCTS 8

typedef enum mti_budget_form {
    MTI_BUDGET_PLAIN,
    MTI_BUDGET_CORE,
    MTI_BUDGET_WHOLE
} mti_budget_form;
typedef struct mti_budget_choice {
    mti_budget_form form;
    unsigned keeps; /* WHOLE: bit i: the result of product i */
} mti_budget_choice;

/* Layers from .. from + n - 1; n is 1 unless they are one checkpoint. */
typedef struct mti_budget_segment {
    int64_t from, n;
    mti_budget_choice choice;
} mti_budget_segment;

/* User data of a segment's policy. */
typedef struct mti_budget_keeps {
    const mt_budget *budget;
    unsigned keeps;
} mti_budget_keeps;

struct mt_budget_plan {
    const mt_budget *budget;
    size_t n;
    mti_budget_segment *segments; /* [n] */
    mti_budget_keeps *keeps;      /* [n] */
    bool simulated;
    int64_t answers; /* it is the search's answer to budgets from its expected peak to this */
    mt_budget_figures figures;
};

/* A plan with room for so many segments, which are added in order. */
mt_budget_plan *mti_budget_plan_new(const mt_budget *b, int64_t room);
void mti_budget_plan_add(mt_budget_plan *plan, mti_budget_segment s);
void mti_budget_plan_free(mt_budget_plan *plan);
/* "gpt.h.3.mlp.act": 3, and *within "mlp.act"; -1 outside of layers. */
int64_t mti_budget_layer(const char *module, const char **within);

/* ---- the search: numbers alone (cheapest_way.c) ---- */

/* A segment that may begin at some layer. */
typedef struct mti_budget_option {
    int64_t n;
    mti_budget_choice choice;
    int64_t kept; /* by its forward, until its backward */
    int64_t forward,
        backward;           /* the highest allocation during them, if nothing is kept before it */
    uint64_t flops, remade; /* recomputed FLOPs, and bytes of recomputed results */
} mti_budget_option;

typedef MTI_VEC(mti_budget_option) mti_budget_options;

typedef struct mti_budget_table {
    int64_t layers;
    mti_budget_options *at; /* [layers] */
    int64_t head;           /* the same between the layers' forward and backward */
    int64_t rest;           /* the highest allocation before and after */
} mti_budget_table;

/* An option for each segment, in order; at is the caller's to mti_free. */
typedef struct mti_budget_answer {
    MTI_VEC(mti_budget_option) path;
    int64_t peak;
    uint64_t flops, remade;
} mti_budget_answer;

/* A search keeps what it has found for the budgets after it. */
typedef struct mti_budget_search {
    const mti_budget_table *table;
    int64_t n_bytes;              /* the latest budget that was searched, ... */
    double limit, price;          /* ... up to which cost, with each byte at this price */
    struct mti_budget_ways *ways; /* [layers + 1] */
    int64_t n_tried;              /* ways that were looked at */
} mti_budget_search;

/* The fewest flops, then the fewest bytes remade, whose peak is at most n_bytes; of equals the one
 * with the lowest peak. *found false: there is none. False: memory ran out. */
bool mti_budget_next(mti_budget_search *s, int64_t n_bytes, mti_budget_answer *a, bool *found);
void mti_budget_search_end(mti_budget_search *s);
/* *least: the lowest possible peak. */
bool mti_budget_least(const mti_budget_table *t, int64_t *least);

/* ---- observing a run (watch.c) ---- */

/* Per layer; index `layers` is everything after the last one. */
typedef struct mti_budget_record {
    int64_t before;      /* kept by the layers before it */
    int64_t forward;     /* the highest allocation in its forward ... */
    int64_t backward;    /* ... and in its backward */
    int64_t at_backward; /* when its backward begins */
} mti_budget_record;

typedef struct mti_budget_watch {
    int64_t layers;
    mti_budget_record *at; /* [layers + 1]; NULL: only the peaks are recorded */
    int64_t rest;          /* the highest allocation outside of layers and head */
    size_t peak;           /* of whole blocks */
    int64_t highest, current, base;
    int64_t place; /* current layer; -1: before the layers, `layers`: after them */
    bool back;
    const char *module; /* of the latest event, ... */
    int64_t layer;      /* ... its layer, -1: none; ... */
    bool outside;       /* ... and whether it is neither in a layer nor the whole model */
} mti_budget_watch;

void mti_budget_watch_event(void *user, const mt_mem_event *event);

/* ---- ops of the layers, in a run without checkpoints (layer_ops.c) ---- */

typedef struct mti_budget_op {
    int64_t layer;
    const char *op, *module; /* within the layer */
    size_t bytes;            /* of its results */
    uint64_t flops;
    bool gone; /* its result cannot be kept: it lies in its input, or the next op overwrites it */
} mti_budget_op;

typedef struct mti_budget_ops {
    MTI_VEC(mti_budget_op) list; /* of the first forward */
    int64_t layers, last;        /* last: layer of the newest op */
    uint64_t forwards;
} mti_budget_ops;
extern const mt_op_hooks mti_budget_op_hooks; /* user: mti_budget_ops */

bool mti_budget_op_is(const mti_budget_op *op, const mti_budget_product *p);
/* The products with most FLOPs; returns how many, at most MTI_BUDGET_PRODUCTS; -1 on failure. */
int mti_budget_find_products(const mti_budget_ops *ops, mti_budget_product *out);

/* ---- the budget ---- */

struct mt_budget {
    mt_budget_run_fn *run;
    void *user;
    int n_products;
    mti_budget_product products[MTI_BUDGET_PRODUCTS];
    bool has_core;
    mti_budget_table table;
    mti_budget_search search;  /* of the table */
    int64_t plain_peak, least; /* of whole blocks; least: -1 until it is asked for */
    int n_simulations;
    MTI_VEC(mt_budget_plan *) plans; /* found so far */
};

/* Runs the workload under a plan. watch->at may be NULL; ops NULL: ops are not recorded. */
bool mti_budget_simulate(mt_budget *b, mt_budget_plan *plan, mti_budget_watch *watch,
                         mti_budget_ops *ops);
/* Fills in the table (measure.c). */
bool mti_budget_measure(mt_budget *b);

#endif
