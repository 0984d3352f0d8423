/* expert_rows.c: how many rows each expert has, where nothing says so. */
#include <string.h>
#include "base/philox.h"
#include "nn/model.h"
#include "memtape/ops.h"

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

int64_t mti_rows_of_experts(const mt_model_config *c, int64_t t)
{
    const int64_t all = t * c->experts_per_token, n = c->experts;
    if (c->expert_capacity <= 0 || !n) return all;
    const int64_t most = mti_expert_capacity(c->expert_capacity, t, c->experts_per_token, n);
    const int64_t each = all / n < most ? all / n : most, more = each < most ? all % n : 0;
    return c->expert_padding ? n * most : n * each + more;
}

bool mti_count_routed(const mti_experts *e, int64_t t, int64_t *counts)
{
    return mti_routing_counts(e->routing, e->layer, t, e->call.k, e->n, counts);
}

bool mti_count_rows(const mti_experts *e, mt_tensor *index)
{
    if (!e->record) return true;
    memset(e->record, 0, (size_t)e->n * sizeof *e->record);
    return mti_read_choice(&e->call, index, e->record, NULL);
}

/* The rows of each of this rank's experts, of all ranks of the group [experts here], to be
 * mti_freed; NULL on failure. */
static int64_t *count_own(const mti_experts *e, const mt_group *group)
{
    const int64_t ranks = group->ranks > 1 ? group->ranks : 1, own = e->n / ranks;
    int64_t *counts = mti_calloc((size_t)e->n, sizeof *counts);
    if (!counts || !mti_count_routed(e, e->tokens, counts)) {
        mti_free(counts);
        return NULL;
    }
    mti_cap_counts(&e->call, e->tokens, counts);
    for (int64_t i = 0; i < own; i++) counts[i] = ranks * counts[group->rank * own + i];
    return counts;
}

bool mti_rows_routed(const mti_experts *e, const mt_group *group, int64_t *rows)
{
    int64_t *counts = count_own(e, group);
    *rows = 0;
    for (int64_t i = 0; counts && i < e->n / group->ranks; i++) *rows += counts[i];
    mti_free(counts);
    return counts != NULL;
}

bool mti_tell_rows(const mti_experts *e, const mt_group *group, mt_tensor *counts)
{
    if (!mti_counts_scratch(mt_device_of(counts))) return true;
    const int64_t n = mt_numel(counts);
    int64_t *wide = count_own(e, group);
    int32_t *told = wide ? mti_calloc((size_t)n, sizeof *told) : NULL;
    for (int64_t i = 0; told && i < n; i++) told[i] = (int32_t)wide[i];
    bool ok = told && mti_tell(counts, told);
    mti_free(told), mti_free(wide);
    return ok;
}

mt_tensor *mti_experts_of_rows(mt_tensor *counts, int64_t n)
{
    mt_device *device = mt_device_of(counts);
    const size_t experts = (size_t)mt_numel(counts);
    if (!mt_device_has_data(device)) return mti_list_of(device, NULL, n);
    int32_t *of = mti_malloc(experts * sizeof *of);
    int64_t *ids = mti_malloc((size_t)n * sizeof *ids + 1), row = 0;
    bool ok = of && ids && mti_read_once(counts, of, experts * sizeof *of) == MT_OK;
    for (size_t e = 0; ok && e < experts; e++)
        for (int32_t i = 0; i < of[e] && row < n; i++) ids[row++] = (int64_t)e;
    mt_tensor *list = ok ? mti_list_of(device, ids, n) : NULL;
    mti_free(of), mti_free(ids);
    return list;
}
