/* remedy.c: where nothing fits, what would: changes tried one by one, each searched and measured.
 */
#include <stdio.h>
#include <string.h>
#include "fit/fit.h"

typedef struct attempt {
    mti_workload workload;
    mt_fit_options options;
    char change[MTI_FIT_CHANGE];
} attempt;

static attempt unchanged(const mti_workload *w, const mt_fit_options *o)
{
    attempt a = {.workload = *w, .options = *o};
    a.options.progress = NULL;
    return a;
}

/* Whether something fits then; if so, the fastest is the remedy. */
static bool helps(const attempt *a, mti_fit_remedies *all, bool *found)
{
    mt_fit_result r;
    bool ok = mti_fit_run(&a->workload, &a->options, true, &r);
    *found = ok && r.n_fitting > 0;
    mt_fit_free(&r);
    if (!ok && mt_last_status() == MT_ERR_ARGUMENT) { /* cannot be divided so */
        mt_clear_error();
        return true;
    }
    if (!*found) return ok;
    ok = mti_fit_run(&a->workload, &a->options, false, &r);
    if (ok) {
        mti_fit_remedy *remedy = &all->at[all->n++];
        remedy->setup = r.setups[0];
        memcpy(remedy->change, a->change, sizeof remedy->change);
    }
    mt_fit_free(&r);
    return ok;
}

/* ---- the changes ---- */

#define DOUBLINGS 7

static bool more_gpus(const mti_workload *w, const mt_fit_options *o, mti_fit_remedies *all)
{
    attempt a = unchanged(w, o);
    bool found = false, ok = true;
    for (int i = 0; ok && !found && i < DOUBLINGS; i++) {
        a.options.gpus *= 2;
        snprintf(a.change, sizeof a.change, "--gpus %lld", (long long)a.options.gpus);
        ok = helps(&a, all, &found);
    }
    return ok;
}

static bool shorter(const mti_workload *w, const mt_fit_options *o, mti_fit_remedies *all)
{
    attempt a = unchanged(w, o);
    bool found = false, ok = true;
    for (int i = 0; ok && !found && i < DOUBLINGS && a.workload.seq > 1; i++) {
        a.workload.seq /= 2;
        snprintf(a.change, sizeof a.change, "--seq %lld", (long long)a.workload.seq);
        ok = helps(&a, all, &found);
    }
    return ok;
}

static bool fewer(const mti_workload *w, const mt_fit_options *o, mti_fit_remedies *all)
{
    attempt a = unchanged(w, o);
    bool found = false, ok = true;
    a.options.batch = o->batch ? o->batch : o->gpus;
    while (ok && !found && a.options.batch > 1) {
        a.options.batch /= 2;
        snprintf(a.change, sizeof a.change, "--batch %lld", (long long)a.options.batch);
        ok = helps(&a, all, &found);
    }
    return ok;
}

static bool smaller_state(const mti_workload *w, const mt_fit_options *o, mti_fit_remedies *all)
{
    bool found;
    attempt a = unchanged(w, o);
    if (w->optimizer != MTI_OPT_ADAMW) return true;
    a.workload.optimizer = MTI_OPT_ADAMW_8BIT;
    a.workload.memory.master = false;
    snprintf(a.change, sizeof a.change, "--optimizer adamw-8bit");
    return helps(&a, all, &found);
}

static bool any_division(const mti_workload *w, const mt_fit_options *o, mti_fit_remedies *all)
{
    bool found;
    attempt a = unchanged(w, o);
    mt_fit_options *x = &a.options;
    if (!o->tensor && !o->pipeline && !o->interleave && !o->context && !o->zero_plus_1 &&
        !o->checkpoint && !o->offload)
        return true;
    x->tensor = x->pipeline = x->interleave = x->context = x->zero_plus_1 = 0;
    x->checkpoint = x->offload = NULL;
    snprintf(a.change, sizeof a.change, "any set-up");
    return helps(&a, all, &found);
}

/* The nearest as it was measured, on the GPU with the least memory that has room for it. */
static void larger_gpu(const mt_fit_result *r, mti_fit_remedies *all)
{
    const mt_gpu *least = NULL, *g;
    for (size_t i = 0; (g = mt_gpu_at(i)); i++)
        if (g->memory >= r->setups[0].reserved && g->in_a_node == r->gpu.in_a_node &&
            (!least || g->memory < least->memory))
            least = g;
    if (!least) return;
    mti_fit_remedy *remedy = &all->at[all->n++];
    remedy->setup = r->setups[0];
    snprintf(remedy->change, sizeof remedy->change, "--gpu %s", least->name);
}

/* Whether some division leaves room beside what stays from step to step. */
static bool states_fit(const mt_fit_result *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->setups[i].states <= r->capacity) return true;
    return false;
}

bool mti_fit_remedies_make(mti_fit_remedies *all, const mt_fit_result *r, const mti_workload *w,
                           const mt_fit_options *o)
{
    *all = (mti_fit_remedies){0};
    if (r->n_fitting) return true;
    larger_gpu(r, all);
    bool rest = states_fit(r); /* fewer tokens leave the states as they are */
    return any_division(w, o, all) && smaller_state(w, o, all) && (!rest || fewer(w, o, all)) &&
           (!rest || shorter(w, o, all)) && more_gpus(w, o, all);
}
