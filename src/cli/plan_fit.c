/* plan_fit.c: the largest batch and the longest sequence that fit, found by running them. */
#include "cli/plan.h"

#define MOST ((int64_t)1 << 30) /* dimensions go to 2^31 */

typedef struct search {
    const mti_options *o;
    mti_fit *fit;
    bool in_batches; /* or in positions */
} search;

static bool attempt(search *s, int64_t n, bool *fits)
{
    mti_need need;
    const mti_options *o = s->o;
    s->fit->runs++;
    if (!mti_plan_try(o, s->in_batches ? n : o->batch, s->in_batches ? o->seq : n, o->capacity,
                      &need, fits))
        return false;
    if (!*fits || n < s->fit->largest) return true;
    s->fit->largest = n;
    s->fit->need = need;
    return true;
}

/* Doubles until one is refused, then halves the gap between the last that fits and the first that
 * does not. */
static bool run_search(search *s)
{
    mti_fit *fit = s->fit;
    bool fits = true;
    for (int64_t n = 1; fits && n <= MOST; n *= 2) {
        if (!attempt(s, n, &fits)) return false;
        if (!fits) fit->refused = n;
    }
    while (fit->refused - fit->largest > 1) {
        int64_t middle = fit->largest + (fit->refused - fit->largest) / 2;
        if (!attempt(s, middle, &fits)) return false;
        if (!fits) fit->refused = middle;
    }
    return true;
}

/* (capacity - states) / activations of one sequence: no temporaries, no rounding, no fragments. */
static int64_t room(const mti_plan_data *p, int64_t states, int64_t activations)
{
    int64_t left = p->options->capacity - states, each = activations / p->options->batch;
    return left > 0 && each > 0 ? left / each : 0;
}

bool mti_plan_fit(mti_plan_data *p)
{
    search batch = {.o = p->options, .fit = &p->batch, .in_batches = true};
    search seq = {.o = p->options, .fit = &p->seq};
    const mti_comparison *states = mti_plan_find(p, "states");
    const mti_comparison *kept = mti_plan_find(p, "activations");
    p->batch.by_formula = room(p, states->formula.value, kept->formula.value);
    p->batch.by_sum = room(p, states->measured, kept->measured);
    return run_search(&batch) && run_search(&seq);
}
