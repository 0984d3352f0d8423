/* longest.c: the longest sequences, or the most in a step at once, for which something fits. */
#include "fit/search.h"
#include "measure/largest.h"

#define LENGTHS 128 /* of all up to the model's context that are told apart */

typedef struct search {
    mti_workload workload;
    mt_fit_options options;
    bool in_batches;
    int64_t unit;
} search;

static void set(search *s, int64_t n)
{
    *(s->in_batches ? &s->options.batch : &s->workload.seq) = n * s->unit;
}

static bool attempt(void *user, int64_t n, bool *fits)
{
    search *s = user;
    mt_fit_result r;
    set(s, n);
    bool ok = mti_fit_run(&s->workload, &s->options, true, 0, NULL, &r);
    *fits = ok && r.n_fitting > 0;
    mt_fit_free(&r);
    return ok;
}

bool mti_fit_find_most(mti_fit_most *out, mti_workload *w, mt_fit_options *o)
{
    search s = {.workload = *w, .options = *o, .in_batches = out->in_batches};
    const int64_t context = w->config.context;
    int64_t most = context < LENGTHS ? context : LENGTHS;
    s.unit = context / most;
    s.options.progress = NULL;
    s.options.at_once = o->at_once = out->in_batches;
    if (out->in_batches) s.unit = o->gpus, most = ((int64_t)1 << 20) / o->gpus;
    bool ok = mti_close_in(&out->largest, &out->refused, most, attempt, &s);
    out->largest *= s.unit;
    out->refused *= s.unit;
    int64_t found = out->largest ? out->largest : s.unit;
    *(out->in_batches ? &o->batch : &w->seq) = found;
    return ok;
}
