/* replicas.c: what ranks with copies or shards of the same parameters exchange once a step: sums of
 * gradients, then the parameters that each has stepped; in place, so that it takes no memory but
 * scratch. Not recorded. */
#include "collectives/collectives.h"

/* A sum is scattered and gathered, whatever carries it: so it has the same bits whether all ranks
 * keep it or each its shard (ZeRO). */

/* What this rank sends of n elements: its shard to all others, theirs to them, or both. */
static uint64_t count_sent(int64_t n, mti_collective how, const mt_group *group)
{
    const uint64_t own = (uint64_t)mti_shard_of(n, group).n;
    uint64_t others = (uint64_t)n - own, to_all = own * (uint64_t)(group->ranks - 1);
    return how == MTI_REDUCE_SCATTER ? others : how == MTI_ALL_GATHER ? to_all : others + to_all;
}

static bool run(mti_call *c, const mt_group *group, const mti_view *y, mti_collective how)
{
    switch (how) {
    case MTI_REDUCE_SCATTER: return mti_scatter_sum_inside(c, group, y);
    case MTI_ALL_GATHER: return mti_gather_inside(c, group, y);
    default: return mti_scatter_sum_inside(c, group, y) && mti_gather_inside(c, group, y);
    }
}

static bool check(const mt_device *d, const mt_group *group)
{
    if (!mti_check_group("replicas", group)) return false;
    return !mt_device_has_data(d) || group->comm ||
           mti_fail_bool(MT_ERR_UNSUPPORTED, "replicas: %lld ranks without a comm",
                         (long long)group->ranks);
}

static mti_call call_on(mt_device *d)
{
    return (mti_call){.device = d, .k = d->backend, .ctx = d->ctx};
}

static void count(mti_call *c, const mt_group *group, const mt_tensor *t, mti_collective how)
{
    uint64_t elements = count_sent(mt_numel(t), how, group);
    mti_count_sent(c, MTI_TO_REPLICAS, elements * mt_dtype_size(t->view.dtype));
}

bool mti_collective_run(mt_tensor *t, mti_collective how, const mt_group *group)
{
    if (group->ranks == 1) return true;
    mt_device *d = mt_device_of(t);
    if (!check(d, group)) return false;
    mti_call c = call_on(d);
    count(&c, group, t, how);
    bool ok = run(&c, group, &t->view, how);
    for (int i = 0; i < c.n_scratch; i++)
        mti_pool_free(d->pool, c.scratch[i], c.scratch[i]->requested);
    return ok;
}

bool mti_sum_value(mt_device *d, const mt_group *group, double *value)
{
    if (group->ranks == 1) return true;
    MT_AUTO mt_tensor *t = mt_full(d, MT_F64, 0, NULL, *value);
    bool ok = t && mti_collective_run(t, MTI_ALL_REDUCE, group);
    if (ok && mt_device_has_data(d)) *value = mt_item(t);
    return ok;
}

/* ---- while this rank computes ---- */

typedef struct pending {
    struct pending *next;
    const mti_collective_queue *queue;
    mt_tensor *tensor;
    mti_collective how;
    mti_job *job; /* NULL: nothing moves */
} pending;

struct mti_collective_queue {
    mt_device *device; /* borrowed */
    mt_group group;
    mt_tensor *scratch; /* u8; NULL: none has begun, or there is none */
    pending *first, *last;
};

mti_collective_queue *mti_collective_queue_new(mt_device *device, const mt_group *group)
{
    mti_collective_queue *q = check(device, group) ? mti_malloc(sizeof *q) : NULL;
    if (q) *q = (mti_collective_queue){.device = device, .group = *group};
    return q;
}

void mti_collective_queue_free(mti_collective_queue *q) { mti_free(q); }

/* In the thread behind. Shards are too short for a kernel to share them out among threads. */
static bool run_behind(void *user, mt_comm *behind)
{
    const pending *m = user;
    const mti_collective_queue *q = m->queue;
    const mt_group group = mt_comm_group(behind);
    mti_call c = call_on(q->device);
    return mti_scatter_sum_with(&c, &group, &m->tensor->view, q->scratch->view.data) &&
           (m->how == MTI_REDUCE_SCATTER || mti_gather_inside(&c, &group, &m->tensor->view));
}

/* A tensor, not a call's scratch, as it outlives the call. */
static bool make_scratch(mti_collective_queue *q, const mti_call *c)
{
    size_t n_bytes = mti_sums_scratch(c, q->group.ranks);
    if (q->scratch || !n_bytes) return true;
    q->scratch = mt_empty(q->device, MT_U8, MT_SHAPE((int64_t)n_bytes));
    return q->scratch && mt_set_category(q->scratch, MT_COMMUNICATION) == MT_OK;
}

bool mti_collective_begin(mti_collective_queue *q, mt_tensor *t, mti_collective how)
{
    mti_call c = call_on(q->device);
    count(&c, &q->group, t, how);
    pending *m = make_scratch(q, &c) ? mti_malloc(sizeof *m) : NULL;
    if (!m) return false;
    *m = (pending){.queue = q, .tensor = mt_retain(t), .how = how};
    if (mt_device_has_data(q->device) &&
        !(m->job = mti_comm_begin_run(q->group.comm, run_behind, m))) {
        mt_release(t);
        mti_free(m);
        return false;
    }
    *(q->first ? &q->last->next : &q->first) = m;
    q->last = m;
    return true;
}

bool mti_collective_end(mti_collective_queue *q)
{
    bool ok = true;
    for (pending *m = q->first, *next; m; m = next) {
        next = m->next;
        if (m->job) ok = mti_comm_finish(q->group.comm, m->job) && ok;
        mt_release(m->tensor);
        mti_free(m);
    }
    mt_release(q->scratch);
    q->first = q->last = NULL;
    q->scratch = NULL;
    return ok;
}
