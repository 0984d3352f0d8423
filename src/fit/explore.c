/* explore.c: all set-ups of one layout: microbatches and policies. What is not measured is known
 * not to fit, or known to be slower than another that fits. */
#include <string.h>
#include "fit/fit.h"

/* Whether s has no more pieces of a sequence and no fewer tokens in a microbatch. Then it computes
 * as much, and sends no more. */
static bool is_cut_less(const mt_fit_setup *s, const mt_parallel *h, int64_t microbatch)
{
    int64_t c = s->parallel.context;
    return (c == h->context && s->microbatch == microbatch) ||
           (c < h->context && s->microbatch * h->context >= microbatch * c);
}

static bool fits_within(const mti_fit_found *found, const mti_policy *policy, const mt_parallel *h,
                        int64_t microbatch)
{
    for (size_t i = 0; i < found->setups.n; i++) {
        const mt_fit_setup *s = &found->setups.at[i];
        const mti_policy other = {s->checkpoint,
                                  s->offload[0] == 'c' ? MTI_OFFLOAD_CPU : MTI_OFFLOAD_NONE};
        if (s->fits && is_cut_less(s, h, microbatch) && mti_policy_includes(policy, &other))
            return true;
    }
    return false;
}

typedef struct layout {
    const mti_fit_task *task;
    mt_parallel parallel;
    mti_fit_found *found;
    int n_policies;
    mti_policy policies[MTI_MOST_POLICIES];
    bool too_large[MTI_MOST_POLICIES]; /* a smaller microbatch asks for too much already */
    bool states_too_large, ruled_out;
    double fastest; /* seconds of a step of those that fit; 0: none yet */
} layout;

#define SMALLEST_AWAY 4096 /* bytes; mt_offload_options.min_bytes */

/* Whether a larger microbatch makes each tensor on the device as large or larger. An offload leaves
 * small ones there, so with it none that grows may be small; the smallest have a float a token. */
static bool grows(const layout *l, int policy, int64_t microbatch)
{
    int64_t tokens = microbatch * l->task->seq / (l->parallel.tensor * l->parallel.context);
    return l->policies[policy].offload == MTI_OFFLOAD_NONE ||
           tokens * (int64_t)sizeof(float) >= SMALLEST_AWAY;
}

/* Notes what the set-up rules out. All its states are there at once when the optimizer steps. With
 * a larger microbatch as many sequences or more are in flight: min(a b, all) with at most a
 * microbatches of b; and no tensor is smaller. */
static void note_bounds(layout *l, int policy, const mt_fit_setup *s, const mti_fit_measured *seen)
{
    if (seen->requested > l->task->capacity && grows(l, policy, s->microbatch))
        l->too_large[policy] = true;
    if (s->states > l->task->capacity) l->states_too_large = true;
}

/* Whether the model's products alone, divided evenly and with the bubble, take longer than a step
 * of one that fits. */
static bool is_slower(const layout *l)
{
    return l->fastest > 0 && mti_fit_least_time(l->task, &l->parallel) > l->fastest;
}

/* Whether all microbatches of the layout, one sequence each, are in flight as they are with more
 * sequences, with which nothing fits: so many are there, and a gradient is added to another. (In a
 * pipeline only the fewest pieces are searched, which may be other ones.) */
static bool is_known(const mti_fit_task *task, const mt_parallel *h)
{
    int64_t least = h->pipeline > 2 ? h->pipeline : 2;
    bool searched = h->context == 1 || h->pipeline == 1;
    return task->known_batch && searched && task->known_batch % h->data == 0 &&
           h->interleave == 1 && task->batch / h->data >= least;
}

/* What stays from step to step is too much, whatever is done with the rest. */
static bool is_ruled_out(const layout *l)
{
    const mti_fit_task *task = l->task;
    size_t least = mti_fit_least_states(task, &l->parallel);
    if (task->nearest) return task->least && least > task->least;
    return least > task->capacity || is_known(task, &l->parallel);
}

static bool explore_one(layout *l, int policy, int64_t microbatch)
{
    mti_fit_found *found = l->found;
    const mti_policy *p = &l->policies[policy];
    mti_fit_measured seen;
    bool near = l->task->nearest && microbatch == 1;
    if (l->ruled_out || (l->states_too_large && !near)) return found->n_states++, true;
    if (l->too_large[policy]) return found->n_larger++, true;
    if (is_slower(l) || fits_within(found, p, &l->parallel, microbatch))
        return found->n_slower++, true;
    mt_fit_setup s = {.parallel = l->parallel,
                      .checkpoint = p->checkpoint,
                      .offload = p->offload ? "cpu" : "none",
                      .microbatch = microbatch};
    if (!mti_fit_measure(l->task, &s, &seen)) return false;
    found->n_profiles += seen.profiles;
    note_bounds(l, policy, &s, &seen);
    if (s.fits && (l->fastest == 0 || s.time.total < l->fastest)) l->fastest = s.time.total;
    return MTI_PUSH(&found->setups, s);
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* Whether ranks with other data could have the same tokens in whole sequences, or in longer pieces:
 * as many floats on each rank, as much to compute, fewer keys and values to gather. Tables of an
 * unfused rope are of pieces alone shorter. */
static bool is_cut_in_vain(const layout *l, int64_t microbatch)
{
    bool asked = l->task->options->context;
    return !asked && l->task->workload->config.ops.rope == MT_OP_FUSED &&
           common_divisor(l->parallel.context, microbatch) > 1;
}

/* Whether one that fits is enough, and found. */
static bool is_enough(const layout *l) { return l->task->any && l->fastest > 0; }

/* All set-ups with these pieces of sequences. */
static bool explore_cut(layout *l)
{
    const mt_parallel *h = &l->parallel;
    int64_t share = l->task->batch / h->data; /* of each rank with other data */
    memset(l->too_large, 0, sizeof l->too_large);
    l->ruled_out = is_ruled_out(l);
    for (int64_t b = 1; b <= share && !is_enough(l); b++) {
        if (share % b || (h->interleave > 1 && share / b % h->pipeline)) continue;
        if (is_cut_in_vain(l, b)) {
            l->found->n_slower += l->n_policies;
            continue;
        }
        l->parallel.microbatches = share / b;
        for (int i = 0; i < l->n_policies; i++)
            if (!explore_one(l, i, b)) return false;
    }
    return true;
}

bool mti_fit_explore(const mti_fit_task *task, const mt_parallel *parallel, mti_fit_found *found)
{
    layout l = {.task = task, .found = found};
    const int64_t most = mti_layout_most_cut(parallel);
    l.n_policies = mti_policies_make(l.policies, task);
    for (int64_t c = parallel->context; c <= most && !is_enough(&l); c++)
        if (mti_layout_cut(task, parallel, c, &l.parallel) && !explore_cut(&l)) return false;
    return true;
}
