/* expert_rows.c: how many rows each expert has, where nothing says so, and a bound on them
 * (Lepikhin et al. 2020, "GShard"), as Megatron-Core's moe_expert_capacity_factor with the policy
 * "probs": of t tokens that take k of n experts each, an expert has at most ceil(t k / n factor)
 * rows, those with the largest weights. A token gets nothing from a row that is dropped. Padded,
 * each expert has exactly so many, the first token's with weight 0 behind its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/philox.h"
#include "nn/model.h"
#include "memtape/ops.h"

/* ---- how many rows each expert has, where nothing says so ---- */

/* Each of t tokens takes k of n experts, none twice, each set as likely (Floyd). */
static bool count_random(uint64_t seed, int64_t layer, int64_t t, int64_t k, int64_t n,
                         int64_t *counts)
{
    int64_t *taken = mti_calloc((size_t)n, sizeof *taken); /* by which token last, from 1 */
    for (int64_t i = 0; taken && i < t; i++)
        for (int64_t j = n - k; j < n; j++) {
            const mti_u32x4 r = mti_philox(seed, (uint64_t)layer << 48 | (uint64_t)(i * n + j));
            int64_t e = (int64_t)(((uint64_t)r.v[0] << 32 | r.v[1]) % (uint64_t)(j + 1));
            if (taken[e] == i + 1) e = j;
            taken[e] = i + 1, counts[e]++;
        }
    mti_free(taken);
    return taken != NULL;
}

bool mti_routing_counts(const mti_routing *r, int64_t layer, int64_t t, int64_t k, int64_t n,
                        int64_t *counts)
{
    const mti_routing_kind kind = r ? r->kind : MTI_ROUTING_BALANCED;
    int64_t sum = 0;
    memset(counts, 0, (size_t)n * sizeof *counts);
    switch (kind) {
    case MTI_ROUTING_BALANCED:
        for (int64_t e = 0; e < n; e++) counts[e] = t * k / n + (e < t * k % n);
        return true;
    case MTI_ROUTING_WORST:
        for (int64_t e = 0; e < k; e++) counts[e] = t;
        return true;
    case MTI_ROUTING_RANDOM: return count_random(r->seed, layer, t, k, n, counts);
    case MTI_ROUTING_RECORDED: break;
    case MTI_ROUTING_COUNT: return false;
    }
    if (layer >= r->layers || n != r->experts)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "routing: %lld layers of %lld experts are recorded; layer %lld has "
                             "%lld",
                             (long long)r->layers, (long long)r->experts, (long long)layer,
                             (long long)n);
    for (int64_t e = 0; e < n; e++) sum += counts[e] = r->rows[layer * n + e];
    return sum == t * k ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "routing: layer %lld has %lld rows recorded; %lld tokens take %lld each, "
                         "%lld",
                         (long long)layer, (long long)sum, (long long)t, (long long)k,
                         (long long)(t * k));
}

static int64_t capacity_of(double factor, int64_t t, int64_t k, int64_t n)
{
    const int64_t rows = (int64_t)ceil((double)(t * k) / (double)n * factor);
    return rows < t ? rows : t;
}

void mti_cap_counts(const mti_expert_call *call, int64_t t, int64_t *counts)
{
    const int64_t most = capacity_of(call->capacity, t, call->k, call->experts);
    for (int64_t e = 0; call->capacity > 0 && e < call->experts; e++)
        if (call->padded || counts[e] > most) counts[e] = most;
}

int64_t mti_rows_of_experts(const mt_model_config *c, int64_t t)
{
    const int64_t all = t * c->experts_per_token, n = c->experts;
    if (c->expert_capacity <= 0 || !n) return all;
    const int64_t most = capacity_of(c->expert_capacity, t, c->experts_per_token, n);
    const int64_t each = all / n < most ? all / n : most, more = each < most ? all % n : 0;
    return c->expert_padding ? n * most : n * each + more;
}

/* The rows of each of this rank's experts, of all ranks of the group [experts here], to be
 * mti_freed; NULL on failure. */
static int64_t *count_own(const mti_expert_call *call, const mt_group *group)
{
    const int64_t ranks = group->ranks > 1 ? group->ranks : 1, own = call->experts / ranks;
    int64_t *counts = mti_calloc((size_t)call->experts, sizeof *counts);
    if (!counts || !mti_routing_counts(call->routing, call->layer, call->tokens, call->k,
                                       call->experts, counts)) {
        mti_free(counts);
        return NULL;
    }
    mti_cap_counts(call, call->tokens, counts);
    for (int64_t e = 0; e < own; e++) counts[e] = ranks * counts[group->rank * own + e];
    return counts;
}

bool mti_rows_routed(const mti_expert_call *call, const mt_group *group, int64_t *rows)
{
    int64_t *counts = count_own(call, group);
    *rows = 0;
    for (int64_t e = 0; counts && e < call->experts / group->ranks; e++) *rows += counts[e];
    mti_free(counts);
    return counts != NULL;
}

bool mti_tell_rows(const mti_expert_call *call, const mt_group *group, mt_tensor *counts)
{
    if (!mti_counts_scratch(mt_device_of(counts))) return true;
    const int64_t n = mt_numel(counts);
    int64_t *wide = count_own(call, group);
    int32_t *told = wide ? mti_calloc((size_t)n, sizeof *told) : NULL;
    for (int64_t e = 0; told && e < n; e++) told[e] = (int32_t)wide[e];
    bool ok = told && mti_tell(counts, told);
    mti_free(told), mti_free(wide);
    return ok;
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

static bool read_choice(chosen *c, const mti_expert_call *call, mt_tensor *weights,
                        mt_tensor *index)
{
    const size_t n_bytes = (size_t)c->total * sizeof(int64_t);
    if (!mt_device_has_data(mt_device_of(index)))
        return mti_routing_counts(call->routing, call->layer, mt_shape(index)[0], call->k, c->n,
                                  c->counts);
    MT_AUTO mt_tensor *wide = mt_cast(weights, MT_F64);
    c->index = mti_malloc(n_bytes + 1), c->weights = mti_malloc(n_bytes + 1);
    if (!wide || !c->index || !c->weights || mt_to_host(index, c->index, n_bytes) != MT_OK ||
        mt_to_host(wide, c->weights, n_bytes) != MT_OK)
        return false;
    for (int64_t i = 0; i < c->total; i++) c->counts[c->index[i]]++; /* the router's, in range */
    return true;
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

static mt_tensor *list_of(mt_device *device, const int64_t *data, int64_t n)
{
    return data ? mt_from_data(device, MT_I64, 1, &n, data, (size_t)n * sizeof *data)
                : mt_empty(device, MT_I64, 1, &n);
}

mt_tensor *mti_experts_of_rows(mt_tensor *counts, int64_t n)
{
    mt_device *device = mt_device_of(counts);
    const size_t experts = (size_t)mt_numel(counts);
    if (!mt_device_has_data(device)) return list_of(device, NULL, n);
    int32_t *of = mti_malloc(experts * sizeof *of);
    int64_t *ids = mti_malloc((size_t)n * sizeof *ids + 1), row = 0;
    bool ok = of && ids && mti_read_once(counts, of, experts * sizeof *of) == MT_OK;
    for (size_t e = 0; ok && e < experts; e++)
        for (int32_t i = 0; i < of[e] && row < n; i++) ids[row++] = (int64_t)e;
    mt_tensor *list = ok ? list_of(device, ids, n) : NULL;
    mti_free(of), mti_free(ids);
    return list;
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
    bool ok = c.counts && c.kept && read_choice(&c, call, weights, index);
    if (ok) mti_cap_counts(call, t, c.counts);
    for (int64_t e = 0; ok && e < n; e++) c.rows += c.kept[e] = (int32_t)c.counts[e];
    if (ok && c.index) {
        c.order = mti_malloc((size_t)c.rows * sizeof *c.order + 1);
        c.tokens = mti_malloc((size_t)c.rows * sizeof *c.tokens + 1);
        ok = c.order && c.tokens && list_rows(&c, call->k);
    }
    *groups = (mt_groups){0};
    *tokens = ok ? list_of(device, c.tokens, c.rows) : NULL;
    groups->order = *tokens ? list_of(device, c.order, c.rows) : NULL;
    if (groups->order)
        groups->counts = mt_from_data(device, MT_I32, 1, &n, c.kept, (size_t)n * sizeof *c.kept);
    chosen_free(&c);
    mt_set_grad_mode(was);
    return groups->counts != NULL;
}
