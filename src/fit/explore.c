/* explore.c: all set-ups of one layout: microbatches and policies. What is not measured is known
 * not to fit, or known to be slower than another that fits. */
#include "fit/fit.h"

static bool fits_within(const mti_fit_found *found, const mti_policy *policy, int64_t microbatch)
{
    for (size_t i = 0; i < found->setups.n; i++) {
        const mt_fit_setup *s = &found->setups.at[i];
        const mti_policy other = {s->checkpoint,
                                  s->offload[0] == 'c' ? MTI_OFFLOAD_CPU : MTI_OFFLOAD_NONE};
        if (s->fits && s->microbatch == microbatch && mti_policy_includes(policy, &other))
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
    bool too_large[MTI_MOST_POLICIES]; /* a smaller microbatch allocates too much already */
    bool states_too_large;
    double fastest; /* seconds of a step of those that fit; 0: none yet */
} layout;

#define SMALLEST_AWAY 4096 /* bytes; mt_offload_options.min_bytes */

/* Whether a larger microbatch makes each tensor on the device as large or larger. An offload leaves
 * small ones there, so with it none that grows may be small; the smallest have a float a token. */
static bool grows(const layout *l, int policy, int64_t microbatch)
{
    int64_t tokens = microbatch * l->task->seq / l->parallel.tensor;
    return l->policies[policy].offload == MTI_OFFLOAD_NONE ||
           tokens * (int64_t)sizeof(float) >= SMALLEST_AWAY;
}

/* Notes what the set-up rules out. All its states are there at once when the optimizer steps. With
 * a larger microbatch as many sequences or more are in flight: min(a b, all) with at most a
 * microbatches of b; and no tensor is smaller. */
static void note_bounds(layout *l, int policy, const mt_fit_setup *s, const mti_fit_measured *seen)
{
    if (seen->allocated > l->task->capacity && grows(l, policy, s->microbatch))
        l->too_large[policy] = true;
    if (s->states > l->task->capacity) l->states_too_large = true;
}

/* Whether the model's products alone, divided evenly and with the bubble, take longer than a step
 * of one that fits. */
static bool is_slower(const layout *l)
{
    return l->fastest > 0 && mti_fit_least_time(l->task, &l->parallel) > l->fastest;
}

static bool explore_one(layout *l, int policy, int64_t microbatch)
{
    mti_fit_found *found = l->found;
    const mti_policy *p = &l->policies[policy];
    mti_fit_measured seen;
    bool near = l->task->nearest && microbatch == 1;
    if (l->states_too_large && !near) return found->n_states++, true;
    if (l->too_large[policy]) return found->n_larger++, true;
    if (is_slower(l) || fits_within(found, p, microbatch)) return found->n_slower++, true;
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

bool mti_fit_explore(const mti_fit_task *task, const mt_parallel *parallel, mti_fit_found *found)
{
    layout l = {.task = task, .parallel = *parallel, .found = found};
    int64_t share = task->batch / parallel->data; /* of each rank with other data */
    l.n_policies = mti_policies_make(l.policies, task->options);
    for (int64_t b = 1; b <= share; b++) {
        if (share % b || (parallel->interleave > 1 && share / b % parallel->pipeline)) continue;
        l.parallel.microbatches = share / b;
        for (int i = 0; i < l.n_policies; i++)
            if (!explore_one(&l, i, b)) return false;
    }
    return true;
}
