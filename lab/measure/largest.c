/* largest.c: the largest batch and the longest sequence that fit, found by running them. */
#include "measure/largest.h"
#include "nn/model.h"
#include "parallel/parallel.h"

#define MOST ((int64_t)1 << 30) /* dimensions go to 2^31 */

/* A sequence that ranks share is cut among them. */
static int64_t unit_of(const mti_workload *w, bool in_batches)
{
    const mt_parallel h = mti_filled_in(&w->parallel);
    return in_batches || !w->ranked ? 1 : h.context * (h.sequence ? h.tensor : 1);
}

bool mti_close_in(int64_t *largest, int64_t *refused, int64_t most, mti_try_fn *try, void *user)
{
    *largest = *refused = 0;
    for (int64_t n = 1; !*refused && *largest < most;) {
        bool fits;
        if (!try(user, n, &fits)) return false;
        *(fits ? largest : refused) = n;
        n = n < most / 2 ? 2 * n : most;
    }
    while (*refused - *largest > 1) {
        int64_t middle = *largest + (*refused - *largest) / 2;
        bool fits;
        if (!try(user, middle, &fits)) return false;
        *(fits ? largest : refused) = middle;
    }
    return true;
}

typedef struct search {
    mti_largest *fit;
    const mti_workload *w;
    bool in_batches;
} search;

static bool attempt(void *user, int64_t n, bool *fits)
{
    const search *s = user;
    mti_requirement need;
    mti_measurement m;
    mti_workload with = *s->w;
    bool refused;
    *(s->in_batches ? &with.batch : &with.seq) = n * unit_of(s->w, s->in_batches);
    if (mti_is_whole(with.config.kind) && with.seq > with.config.context)
        with.config.context = with.seq;
    s->fit->runs++;
    *fits = mti_measure_requirement(&need, &m, &with, NULL, &refused);
    mti_measurement_free(&m);
    if (refused) mt_clear_error();
    if (*fits) s->fit->need = need; /* of larger and larger ones */
    return *fits || refused;
}

bool mti_largest_find(mti_largest *fit, const mti_workload *w, bool in_batches)
{
    search s = {fit, w, in_batches};
    bool ok = mti_close_in(&fit->largest, &fit->refused, MOST, attempt, &s);
    fit->largest *= unit_of(w, in_batches);
    fit->refused *= unit_of(w, in_batches);
    return ok;
}
