/* expert_forms.h: in which order the experts of a mixture run, as other libraries have it. Letters:
 * t tokens, k experts of a token, d hidden, f ffn. */
#ifndef MTI_EXPERT_FORMS_H
#define MTI_EXPERT_FORMS_H

#include "base/base.h"
#include "memtape/models/stacks.h"
#include "memtape/ops.h"

/* The rows that the experts run: sorted by expert, counts of each; or all of one. */
typedef struct mti_expert_rows {
    mt_tensor *counts, *weights; /* weights [n]: applied in the activation; NULL: not */
    mt_tensor *ids;              /* i64 [n]: the rows' experts, which have biases; NULL: none */
    int64_t expert;
    bool alone;
} mti_expert_rows;

/* A mixture, as the forms see it. */
typedef struct mti_expert_call {
    mt_expert_form form;
    int64_t experts, k; /* k: of a token */
    double capacity;    /* 0: no row is dropped */
    bool padded;        /* each expert has so many rows, some of weight 0 */
    /* Rows h [n,d], taken over, through their experts. */
    mt_tensor *(*run)(void *user, mt_tensor *h, const mti_expert_rows *rows);
    /* Where there is no data: how many of the rows of t tokens each expert has, counts [experts].
     */
    bool (*count)(void *user, int64_t t, int64_t *counts);
    void *user;
} mti_expert_call;

typedef mt_tensor *mti_experts_fn(const mti_expert_call *call, mt_tensor *x, mt_tensor *weights,
                                  mt_tensor *index);
typedef struct mti_expert_form_row {
    mti_experts_fn *run; /* x [t,d] -> [t,d], weights and index [t,k]; NULL: ours */
    bool alone;          /* each expert takes its own matrix, and there is no product for all */
    bool as_scored;      /* weights stay in the type of the router's scores */
} mti_expert_form_row;
const mti_expert_form_row *mti_expert_form_of(mt_expert_form form);

/* The rows that index [t,k] gives each expert, into counts [experts]; *list, unless that is NULL:
 * index on the host, to be mti_freed, and NULL where there is no data. */
bool mti_read_choice(const mti_expert_call *call, mt_tensor *index, int64_t *counts,
                     int64_t **list);

/* h [n,f] times weights [n]; swiglu: silu(gate) up of h [n,2 f], times them. discard: as
 * mt_checkpoint_options has it. */
mt_tensor *mti_weighted_rows(mt_tensor *h, mt_tensor *weights, bool swiglu, bool discard);

/* ---- expert_capacity.c: a bound on the rows of an expert ---- */

/* The most rows that an expert has of t tokens. */
int64_t mti_expert_capacity(double factor, int64_t t, int64_t k, int64_t n);
/* Bounds counts [experts], of t tokens. */
void mti_cap_counts(const mti_expert_call *call, int64_t t, int64_t *counts);
/* *tokens [rows], and order and counts of what is kept; order is t k where a row has weight 0. */
bool mti_limit_rows(const mti_expert_call *call, mt_tensor *weights, mt_tensor *index,
                    mt_tensor **tokens, mt_groups *groups);
/* i64 [n] of data on the host; NULL: there is none */
mt_tensor *mti_list_of(mt_device *device, const int64_t *data, int64_t n);

#endif
