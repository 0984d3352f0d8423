/* remedy.c: if nothing fits, tries changes one by one; each is searched and measured. */
#include <stdio.h>
#include <string.h>
#include "fit/search.h"

typedef struct attempt {
    mti_workload workload;
    mt_fit_options options;
    char change[MTI_FIT_CHANGE];
} attempt;

static attempt unchanged(const mti_workload *w, const mt_fit_options *o)
{
    return (attempt){.workload = *w, .options = *o};
}

/* Searches with the change made; if something fits, it is added as a remedy. */
static bool helps(const attempt *a, int64_t known_batch, mti_fit_remedies *all, bool *found)
{
    mt_fit_result r;
    bool ok = mti_fit_run(&a->workload, &a->options, true, known_batch, NULL, &r);
    *found = ok && r.n_fitting > 0;
    if (*found) {
        mti_fit_remedy *remedy = &all->at[all->n++];
        remedy->setup = r.setups[0];
        memcpy(remedy->change, a->change, sizeof remedy->change);
    }
    mt_fit_free(&r);
    if (ok || mt_last_status() != MT_ERR_ARGUMENT) return ok;
    mt_clear_error(); /* the model cannot be divided so */
    return true;
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
        ok = helps(&a, 0, all, &found);
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
        ok = helps(&a, 0, all, &found);
    }
    return ok;
}

static bool fewer(const mti_workload *w, const mt_fit_options *o, mti_fit_remedies *all)
{
    attempt a = unchanged(w, o);
    bool found = false, ok = true;
    int64_t asked = o->batch ? o->batch : o->gpus;
    a.options.batch = asked;
    while (ok && !found && a.options.batch > 1) {
        a.options.batch /= 2;
        snprintf(a.change, sizeof a.change, "--batch %lld", (long long)a.options.batch);
        ok = helps(&a, asked, all, &found);
    }
    return ok;
}

static bool smaller_state(const mti_workload *w, const mt_fit_options *o, mti_fit_remedies *all)
{
    bool found, ok = true;
    if (w->optimizer != MTI_OPT_DEFAULT) return true;
    for (int i = 0; ok && i < MTI_OPTIMIZERS; i++) {
        if (!mti_optimizer_row_of(i)->saves_memory) continue;
        attempt a = unchanged(w, o);
        a.workload.optimizer = i;
        snprintf(a.change, sizeof a.change, "--optimizer %s%s", mti_optimizer_name(i),
                 w->memory.master ? " --master-weights" : "");
        ok = helps(&a, 0, all, &found);
    }
    return ok;
}

static bool no_masters(const mti_workload *w, const mt_fit_options *o, mti_fit_remedies *all)
{
    bool found;
    attempt a = unchanged(w, o);
    a.workload.memory.master = false;
    snprintf(a.change, sizeof a.change, "no f32 masters");
    return !w->memory.master || helps(&a, 0, all, &found);
}

static bool any_division(const mti_workload *w, const mt_fit_options *o, mti_fit_remedies *all)
{
    bool found;
    attempt a = unchanged(w, o);
    mt_fit_options *x = &a.options;
    if (!o->tensor && !o->pipeline && !o->interleave && !o->context && !o->expert &&
        !o->zero_stages && !o->checkpoint && !o->offload)
        return true;
    x->tensor = x->pipeline = x->interleave = x->context = x->expert = 0;
    x->zero_stages = 0;
    x->checkpoint = x->offload = NULL;
    snprintf(a.change, sizeof a.change, "any set-up");
    return helps(&a, 0, all, &found);
}

/* Tries the changes between two kinds: the first of each kind that helps is enough. */
static bool try_kinds(const mti_workload *w, const mt_fit_options *o, const mti_changes *changes,
                      bool adapters, mti_fit_remedies *all)
{
    bool found = false, ok = true;
    for (size_t i = 0; ok && i < changes->n; i++) {
        const mti_change *c = &changes->at[i];
        attempt a = {.workload = c->workload, .options = *o};
        if ((c->workload.memory.lora_rank != w->memory.lora_rank || c->workload.memory.qlora) !=
            adapters)
            continue;
        if (i && changes->at[i - 1].kind != c->kind) found = false;
        memcpy(a.change, c->words, sizeof a.change);
        if (!found) ok = helps(&a, 0, all, &found);
    }
    return ok;
}

/* Whether the GPU has room for the set-up, beside as much kept aside, and its kind of products. */
static bool takes(const mt_gpu *g, const mt_fit_setup *s, const mti_workload *w,
                  const mt_fit_options *o)
{
    size_t host = o->host_memory ? o->host_memory : mti_gpu_host_memory(g, o->gpus);
    return g->memory >= s->reserved + o->kept_aside && g->in_a_node == o->gpu->in_a_node &&
           s->host <= host && !(g->f16_only && mti_multiplies_bf16(w));
}

/* The nearest set-up on the smallest GPU that has room for it. */
static void larger_gpu(const mt_fit_result *r, const mti_workload *w, const mt_fit_options *o,
                       mti_fit_remedies *all)
{
    const mt_gpu *least = NULL, *g;
    for (size_t i = 0; (g = mt_gpu_at(i)); i++)
        if (takes(g, &r->setups[0], w, o) && (!least || g->memory < least->memory)) least = g;
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
                           const mt_fit_options *o, const mti_changes *changes)
{
    *all = (mti_fit_remedies){0};
    if (r->n_fitting) return true;
    larger_gpu(r, w, o, all);
    bool rest = states_fit(r); /* fewer tokens leave the states as they are */
    return any_division(w, o, all) && try_kinds(w, o, changes, false, all) &&
           no_masters(w, o, all) && smaller_state(w, o, all) && (!rest || fewer(w, o, all)) &&
           (!rest || shorter(w, o, all)) && try_kinds(w, o, changes, true, all) &&
           more_gpus(w, o, all);
}
