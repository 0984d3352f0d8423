/* expert_capacity.c: a bound on the rows of an expert (Lepikhin et al. 2020, "GShard"), as
 * Megatron-Core's moe_expert_capacity_factor with the policy "probs": of t tokens that take k of n
 * experts each, an expert has at most ceil(t k / n factor) rows, those with the largest weights. A
 * token gets nothing from a row that is dropped. Padded, each expert has exactly so many, the first
 * token's with weight 0 behind its own. */
#include <math.h>
#include <stdlib.h>
#include "memtape/autograd.h"
#include "stacks/expert_forms.h"

bool mti_read_choice(const mti_expert_call *call, mt_tensor *index, int64_t *counts, int64_t **list)
{
    const int64_t n = mt_numel(index);
    const size_t n_bytes = (size_t)n * sizeof(int64_t);
    if (list) *list = NULL;
    if (!mt_device_has_data(mt_device_of(index)))
        return call->count(call->user, mt_shape(index)[0], counts);
    int64_t *of = mti_malloc(n_bytes + 1);
    const bool ok = of && mt_to_host(index, of, n_bytes) == MT_OK;
    for (int64_t i = 0; ok && i < n; i++) counts[of[i]]++; /* the router's, in range */
    if (ok && list)
        *list = of;
    else
        mti_free(of);
    return ok;
}

/* ---- how many rows ---- */

int64_t mti_expert_capacity(double factor, int64_t t, int64_t k, int64_t n)
{
    const int64_t rows = (int64_t)ceil((double)(t * k) / (double)n * factor);
    return rows < t ? rows : t;
}

void mti_cap_counts(const mti_expert_call *call, int64_t t, int64_t *counts)
{
    const int64_t most = mti_expert_capacity(call->capacity, t, call->k, call->experts);
    for (int64_t e = 0; call->capacity > 0 && e < call->experts; e++)
        if (call->padded || counts[e] > most) counts[e] = most;
}

/* ---- which rows ---- */

typedef struct place {
    double weight;
    int64_t at; /* in index [t,k] */
} place;

static int by_weight(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* The host's view of the choice, and of what is kept of it. */
typedef struct chosen {
    int64_t n, total, rows;  /* n: experts; total: t k */
    int64_t *index, *counts; /* [total], [n]; what has no data has no index */
    double *weights;         /* [total] */
    int64_t *order, *tokens; /* [rows] */
    int32_t *kept;           /* [n]: counts */
} chosen;

static void chosen_free(chosen *c)
{
    mti_free(c->index), mti_free(c->counts), mti_free(c->weights);
    mti_free(c->order), mti_free(c->tokens), mti_free(c->kept);
}

static bool read_weighted(chosen *c, const mti_expert_call *call, mt_tensor *weights,
                          mt_tensor *index)
{
    const size_t n_bytes = (size_t)c->total * sizeof(int64_t);
    if (!mti_read_choice(call, index, c->counts, &c->index)) return false;
    if (!c->index) return true;
    MT_AUTO mt_tensor *wide = mt_cast(weights, MT_F64);
    c->weights = wide ? mti_malloc(n_bytes + 1) : NULL;
    return c->weights && mt_to_host(wide, c->weights, n_bytes) == MT_OK;
}

/* Fills in order and tokens, expert by expert; c->counts are capped. */
static bool list_rows(chosen *c, int64_t k)
{
    place *places = mti_malloc((size_t)c->total * sizeof *places + 1);
    for (int64_t e = 0, row = 0; places && e < c->n; e++) {
        int64_t n = 0;
        for (int64_t i = 0; i < c->total; i++)
            if (c->index[i] == e) places[n++] = (place){c->weights[i], i};
        if (n > c->counts[e]) {
            qsort(places, (size_t)n, sizeof *places, by_weight);
            n = c->counts[e];
            qsort(places, (size_t)n, sizeof *places, by_place);
        }
        for (int64_t i = 0; i < c->counts[e]; i++, row++) {
            c->order[row] = i < n ? places[i].at : c->total; /* where there is a 0 */
            c->tokens[row] = i < n ? places[i].at / k : 0;
        }
    }
    mti_free(places);
    return places != NULL;
}

mt_tensor *mti_list_of(mt_device *device, const int64_t *data, int64_t n)
{
    return data ? mt_from_data(device, MT_I64, 1, &n, data, (size_t)n * sizeof *data)
                : mt_empty(device, MT_I64, 1, &n);
}

bool mti_limit_rows(const mti_expert_call *call, mt_tensor *weights, mt_tensor *index,
                    mt_tensor **tokens, mt_groups *groups)
{
    mt_device *device = mt_device_of(index);
    const int64_t t = mt_shape(index)[0], n = call->experts;
    chosen c = {.n = n, .total = t * call->k};
    const bool was = mt_set_grad_mode(false);
    c.counts = mti_calloc((size_t)n, sizeof *c.counts);
    c.kept = mti_calloc((size_t)n, sizeof *c.kept);
    bool ok = c.counts && c.kept && read_weighted(&c, call, weights, index);
    if (ok) mti_cap_counts(call, t, c.counts);
    for (int64_t e = 0; ok && e < n; e++) c.rows += c.kept[e] = (int32_t)c.counts[e];
    if (ok && c.index) {
        c.order = mti_malloc((size_t)c.rows * sizeof *c.order + 1);
        c.tokens = mti_malloc((size_t)c.rows * sizeof *c.tokens + 1);
        ok = c.order && c.tokens && list_rows(&c, call->k);
    }
    *groups = (mt_groups){0};
    *tokens = ok ? mti_list_of(device, c.tokens, c.rows) : NULL;
    groups->order = *tokens ? mti_list_of(device, c.order, c.rows) : NULL;
    if (groups->order)
        groups->counts = mt_from_data(device, MT_I32, 1, &n, c.kept, (size_t)n * sizeof *c.kept);
    chosen_free(&c);
    mt_set_grad_mode(was);
    return groups->counts != NULL;
}
