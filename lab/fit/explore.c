/* explore.c: all set-ups of one layout: microbatches and policies. A set-up is left out only if it
 * is known not to fit, or to be slower than another one that fits. */
#include <string.h>
#include "fit/search.h"

/* Whether s cuts sequences into no more shards and has no fewer tokens in a microbatch. Then it
 * computes as much as a set-up with h and this microbatch, and sends no more. */
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
    bool too_large[MTI_MOST_POLICIES]; /* a smaller microbatch needs too much already */
    bool states_too_large, ruled_out;
    double fastest;                    /* least seconds of a step that fits; 0: none yet */
    double sending[MTI_MOST_POLICIES]; /* seconds, as measured; 0: not yet */
} layout;

#define SMALLEST_AWAY 4096 /* bytes; mt_offload_options.min_bytes */

/* Whether no tensor on the device shrinks with a larger microbatch. An offload leaves small tensors
 * on the device and takes them away once they have grown, so with it none may be small; the
 * smallest have one float a token. */
static bool grows(const layout *l, int policy, int64_t microbatch)
{
    int64_t tokens = microbatch * l->task->seq / (l->parallel.tensor * l->parallel.context);
    return l->task->policies[policy].offload == MTI_OFFLOAD_NONE ||
           tokens * (int64_t)sizeof(float) >= SMALLEST_AWAY;
}

/* Notes what the measured set-up rules out. All states are there at once when the optimizer steps.
 * A larger microbatch has at least as many sequences in flight, min(a b, all) with at most a
 * microbatches of b, and no smaller tensor. */
static void note_bounds(layout *l, int policy, const mt_fit_setup *s, const mti_fit_measured *seen)
{
    if (seen->requested > l->task->capacity && grows(l, policy, s->microbatch))
        l->too_large[policy] = true;
    if (s->states > l->task->capacity) l->states_too_large = true;
}

/* Seconds that the policy sends at least: what recomputes more sends no less. */
static double least_sending(const layout *l, const mti_policy *p)
{
    double most = 0;
    for (int i = 0; i < l->task->n_policies; i++)
        if (l->sending[i] > most && mti_policy_includes(p, &l->task->policies[i]))
            most = l->sending[i];
    return most;
}

/* Whether the products alone, divided evenly and with the bubble, take longer than a step that
 * fits, or with what is recomputed and sent than the bound. */
static bool is_slower(const layout *l, const mti_policy *p)
{
    const mti_fit_task *task = l->task;
    const mt_parallel *h = &l->parallel;
    return (l->fastest > 0 && mti_fit_least_time(task, h, task->model_flops, 0) > l->fastest) ||
           (task->bound > 0 &&
            mti_fit_least_time(task, h, p->flops, least_sending(l, p)) > task->bound);
}

/* Whether the layout, with one sequence a microbatch, keeps as much in flight as it did with
 * known_batch sequences, with which nothing fits. (With a pipeline only the fewest shards of a
 * sequence are searched, and those may differ.) */
static bool is_known(const mti_fit_task *task, const mt_parallel *h)
{
    bool searched = h->context == 1 || h->pipeline == 1;
    return task->known_batch && searched && task->known_batch % h->data == 0 &&
           h->interleave == 1 && task->batch / h->data >= mti_fit_fewest_in_flight(h);
}

/* Whether the states alone are too much. */
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
    const mti_policy *p = &l->task->policies[policy];
    mti_fit_measured seen;
    bool near = l->task->nearest && microbatch == 1;
    if (l->ruled_out || (l->states_too_large && !near)) return found->n_states++, true;
    if (l->too_large[policy]) return found->n_larger++, true;
    if (is_slower(l, p) || fits_within(found, p, &l->parallel, microbatch))
        return found->n_slower++, true;
    mt_fit_setup s = {.parallel = l->parallel,
                      .checkpoint = p->checkpoint,
                      .offload = p->offload ? "cpu" : "none",
                      .microbatch = microbatch};
    if (!mti_fit_measure(l->task, &s, &seen)) return false;
    found->n_profiles += seen.profiles;
    l->sending[policy] = seen.sending;
    if (seen.slow) return found->n_slower++, true;
    note_bounds(l, policy, &s, &seen);
    if (seen.far) return found->n_larger++, true;
    if (s.fits && (l->fastest == 0 || s.time.total < l->fastest)) l->fastest = s.time.total;
    return MTI_PUSH(&found->setups, s);
}

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

/* Whether the ranks could have the same tokens in whole sequences or longer shards: each rank then
 * has as many floats and computes as much, but gathers fewer keys and values. (Only the tables of
 * an unfused rope get shorter with the shards.) */
static bool is_cut_in_vain(const layout *l, int64_t microbatch)
{
    bool asked = l->task->options->context;
    return !asked && l->task->workload->config.ops.rope == MT_OP_FUSED &&
           common_divisor(l->parallel.context, microbatch) > 1;
}

/* Whether one set-up that fits is enough, and there is one. */
static bool is_enough(const layout *l) { return l->task->any && l->fastest > 0; }

/* Explores all set-ups with this context. */
static bool explore_cut(layout *l)
{
    const mt_parallel *h = &l->parallel;
    int64_t share = l->task->batch / h->data; /* sequences of one data-parallel rank */
    memset(l->too_large, 0, sizeof l->too_large);
    memset(l->sending, 0, sizeof l->sending);
    l->ruled_out = is_ruled_out(l);
    for (int64_t b = 1; b <= share && !is_enough(l); b++) {
        if (share % b || (h->interleave > 1 && share / b % h->pipeline)) continue;
        if (l->task->options->at_once && share / b != h->pipeline) continue;
        if (is_cut_in_vain(l, b)) {
            l->found->n_slower += l->task->n_policies;
            continue;
        }
        l->parallel.microbatches = share / b;
        for (int i = 0; i < l->task->n_policies; i++)
            if (!explore_one(l, i, b)) return false;
    }
    return true;
}

bool mti_fit_explore(const mti_fit_task *task, const mt_parallel *parallel, mti_fit_found *found)
{
    layout l = {.task = task, .found = found};
    const int64_t most = mti_layout_most_cut(parallel);
    for (int64_t c = parallel->context; c <= most && !is_enough(&l); c++)
        if (mti_layout_cut(task, parallel, c, &l.parallel) && !explore_cut(&l)) return false;
    return true;
}
