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

static bool attempt(mti_largest *fit, const mti_workload *w, bool in_batches, int64_t n, bool *fits)
{
    mti_requirement need;
    mti_measurement m;
    mti_workload with = *w;
    bool refused;
    *(in_batches ? &with.batch : &with.seq) = n * unit_of(w, in_batches);
    if (mti_is_whole(w->config.kind) && with.seq > w->config.context)
        with.config.context = with.seq;
    fit->runs++;
    *fits = mti_measure_requirement(&need, &m, &with, NULL, &refused);
    mti_measurement_free(&m);
    if (refused) mt_clear_error();
    if (!*fits || n < fit->largest) return *fits || refused;
    fit->largest = n;
    fit->need = need;
    return true;
}

/* Doubles until one is refused, then halves the gap between the last that fits and the first that
 * does not. */
bool mti_largest_find(mti_largest *fit, const mti_workload *w, bool in_batches)
{
    bool fits = true;
    for (int64_t n = 1; fits && n <= MOST; n *= 2) {
        if (!attempt(fit, w, in_batches, n, &fits)) return false;
        if (!fits) fit->refused = n;
    }
    while (fit->refused - fit->largest > 1) {
        int64_t middle = fit->largest + (fit->refused - fit->largest) / 2;
        if (!attempt(fit, w, in_batches, middle, &fits)) return false;
        if (!fits) fit->refused = middle;
    }
    fit->largest *= unit_of(w, in_batches);
    fit->refused *= unit_of(w, in_batches);
    return true;
}
