/* replicas.c: what ranks with copies or pieces of the same parameters exchange once a step: sums of
 * gradients, then the parameters that each has stepped; in place, so that it takes no memory but
 * scratch. Not recorded. */
#include "comm/comm.h"
#include "ops/ops.h"

/* A sum is scattered and gathered, whatever carries it: so it has the same bits whether all ranks
 * keep it or each its piece (ZeRO). */

/* What this rank sends of n elements: its piece to all others, theirs to them, or both. */
static uint64_t count_sent(int64_t n, mti_replicas how, const mt_group *group)
{
    int64_t length = (n + group->ranks - 1) / group->ranks, left = n - group->rank * length;
    uint64_t own = (uint64_t)(left < 0 ? 0 : left < length ? left : length);
    uint64_t others = (uint64_t)n - own, to_all = own * (uint64_t)(group->ranks - 1);
    return how == MTI_REPLICAS_SCATTER  ? others
           : how == MTI_REPLICAS_GATHER ? to_all
                                        : others + to_all;
}

static bool meet(mti_call *c, const mti_view *y, mti_replicas how)
{
    switch (how) {
    case MTI_REPLICAS_SCATTER: return mti_scatter_sum_inside(c, y);
    case MTI_REPLICAS_GATHER: return mti_gather_inside(c, y);
    default: return mti_scatter_sum_inside(c, y) && mti_gather_inside(c, y);
    }
}

bool mti_replicas_meet(mt_tensor *t, mti_replicas how, const mt_group *group)
{
    if (group->ranks == 1) return true;
    mt_device *d = mt_device_of(t);
    const mti_params params = {.collective = {.group = *group}};
    if (!mti_check_group("replicas", group)) return false;
    if (mt_device_has_data(d) && !group->comm)
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "replicas: %lld ranks without a comm",
                             (long long)group->ranks);
    mti_call c = {.device = d, .k = d->backend, .ctx = d->ctx, .params = &params};
    mti_count_sent(&c, MTI_TO_REPLICAS,
                   count_sent(mt_numel(t), how, group) * mt_dtype_size(t->view.dtype));
    bool ok = meet(&c, &t->view, how);
    for (int i = 0; i < c.n_scratch; i++)
        mti_pool_free(d->pool, c.scratch[i], c.scratch[i]->requested);
    return ok;
}

bool mti_replicas_sum(mt_device *d, const mt_group *group, double *value)
{
    if (group->ranks == 1) return true;
    MT_AUTO mt_tensor *t = mt_full(d, MT_F64, 0, NULL, *value);
    bool ok = t && mti_replicas_meet(t, MTI_REPLICAS_SUM, group);
    if (ok && mt_device_has_data(d)) *value = mt_item(t);
    return ok;
}
