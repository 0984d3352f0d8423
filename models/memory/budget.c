/* budget.c: plans for budgets: a search proposes them, a simulation decides. */
#include <inttypes.h>
#include "memory/budget.h"

/* ---- making ---- */

mt_budget *mt_budget_new(mt_budget_run_fn *run, void *user)
{
    if (!run) return mti_fail_null(MT_ERR_ARGUMENT, "budget: the workload is NULL");
    mt_budget *b = mti_calloc(1, sizeof *b);
    if (!b) return NULL;
    b->run = run;
    b->user = user;
    b->least = -1;
    b->search.table = &b->table;
    if (mti_budget_measure(b)) return b;
    mt_budget_free(b);
    return NULL;
}

void mt_budget_free(mt_budget *b)
{
    if (!b) return;
    mti_budget_search_end(&b->search);
    for (int64_t i = 0; b->table.at && i < b->table.layers; i++) mti_free(b->table.at[i].at);
    mti_free(b->table.at);
    for (size_t i = 0; i < b->plans.n; i++) mti_budget_plan_free(b->plans.at[i]);
    mti_free(b->plans.at);
    mti_free(b);
}

int mt_budget_simulations(const mt_budget *b) { return b ? b->n_simulations : 0; }

/* ---- plans ---- */

static bool is_of(const mt_budget_plan *plan, const mti_budget_answer *a)
{
    bool same = plan->n == a->path.n;
    for (size_t i = 0; same && i < plan->n; i++) {
        const mti_budget_segment *s = &plan->segments[i];
        const mti_budget_option *o = &a->path.at[i];
        same =
            s->n == o->n && s->choice.form == o->choice.form && s->choice.keeps == o->choice.keeps;
    }
    return same;
}

static mt_budget_plan *make_plan(mt_budget *b, const mti_budget_answer *a)
{
    if (!MTI_RESERVE(&b->plans)) return NULL;
    mt_budget_plan *plan = mti_budget_plan_new(b, b->table.layers);
    if (!plan) return NULL;
    int64_t from = 0;
    for (size_t i = 0; i < a->path.n; i++) {
        const mti_budget_option *o = &a->path.at[i];
        mti_budget_plan_add(plan, (mti_budget_segment){from, o->n, o->choice});
        from += o->n;
    }
    plan->figures.expected_peak = (size_t)a->peak;
    plan->figures.expected_recompute = a->flops;
    plan->figures.remade_bytes = a->remade;
    b->plans.at[b->plans.n++] = plan;
    return plan;
}

/* The answer as a plan, simulated if it has not been yet. */
static mt_budget_plan *simulate_answer(mt_budget *b, const mti_budget_answer *a)
{
    mt_budget_plan *plan = NULL;
    for (size_t i = 0; !plan && i < b->plans.n; i++)
        if (is_of(b->plans.at[i], a)) plan = b->plans.at[i];
    if (!plan) plan = make_plan(b, a);
    if (!plan || plan->simulated) return plan;
    mti_budget_watch watch = {0};
    return mti_budget_simulate(b, plan, &watch, NULL) ? plan : NULL;
}

/* Asks the search only for budgets that no answer was for. False: memory ran out, or the workload
 * failed. */
static bool next_plan(mt_budget *b, int64_t n_bytes, mt_budget_plan **plan)
{
    mti_budget_answer a;
    bool found;
    *plan = NULL;
    for (size_t i = 0; !*plan && i < b->plans.n; i++) {
        mt_budget_plan *p = b->plans.at[i];
        if ((int64_t)p->figures.expected_peak <= n_bytes && n_bytes <= p->answers) *plan = p;
    }
    if (*plan) return true;
    if (!mti_budget_next(&b->search, n_bytes, &a, &found)) return false;
    if (!found) return true;
    *plan = simulate_answer(b, &a);
    mti_free(a.path.at);
    if (*plan && (*plan)->answers < n_bytes) (*plan)->answers = n_bytes;
    return *plan;
}

/* The cheapest plan that is expected to fit `expected` bytes and, simulated, fits n_bytes, which
 * are at least as many; *plan NULL: none. The order in which plans are tried does not depend on the
 * budget, so a larger budget never gives a dearer plan. */
static bool find(mt_budget *b, int64_t expected, int64_t n_bytes, mt_budget_plan **plan)
{
    do {
        if (!next_plan(b, expected, plan)) return false;
        if (*plan) expected = (int64_t)(*plan)->figures.expected_peak - 1;
    } while (*plan && (*plan)->figures.peak > (size_t)n_bytes);
    return true;
}

static bool find_least(mt_budget *b)
{
    if (b->least >= 0) return true;
    int64_t expected;
    mt_budget_plan *plan;
    if (!mti_budget_least(&b->table, &expected) || !find(b, expected, INT64_MAX, &plan))
        return false;
    int64_t least = b->plain_peak;
    do { /* the plan with the fewest rounded bytes may have larger rests than another */
        if (plan && (int64_t)plan->figures.peak < least) least = (int64_t)plan->figures.peak;
        if (!find(b, least - 1, least - 1, &plan)) return false;
    } while (plan);
    b->least = least;
    return true;
}

mt_status mt_budget_solve(mt_budget *b, size_t n_bytes, const mt_budget_plan **plan)
{
    if (plan) *plan = NULL;
    if (!mti_given(b, "budget_solve", "the budget")) return mt_last_status();
    if (!plan) return mti_fail(MT_ERR_ARGUMENT, "budget_solve: the result is NULL");
    int64_t limit = n_bytes > INT64_MAX ? INT64_MAX : (int64_t)n_bytes;
    mt_budget_plan *found;
    if (!find(b, limit, limit, &found)) return mt_last_status();
    *plan = found;
    if (found) return MT_OK;
    if (!find_least(b)) return mt_last_status();
    char asked[32], least[32];
    return mti_fail(MT_ERR_MEMORY,
                    "budget: %s are too few, whatever is recomputed; need %s (%" PRId64 " bytes)",
                    mti_bytes_text(asked, sizeof asked, n_bytes),
                    mti_bytes_text(least, sizeof least, (uint64_t)b->least), b->least);
}

mt_status mt_budget_front(mt_budget *b, int n, const mt_budget_plan **plans, int *n_found)
{
    if (n_found) *n_found = 0;
    if (!mti_given(b, "budget_front", "the budget")) return mt_last_status();
    if (!plans || !n_found || n < 2)
        return mti_fail(MT_ERR_ARGUMENT, "budget_front: needs room for at least two plans and for "
                                         "their number");
    if (!find_least(b)) return mt_last_status();
    double step = (double)(b->plain_peak - b->least) / (n - 1);
    for (int i = 0; i < n; i++) {
        const mt_budget_plan *plan;
        int64_t n_bytes = i == n - 1 ? b->plain_peak : b->least + (int64_t)(step * i);
        mt_status status = mt_budget_solve(b, (size_t)n_bytes, &plan);
        if (status != MT_OK) return status;
        if (!*n_found || plans[*n_found - 1] != plan) plans[(*n_found)++] = plan;
    }
    return MT_OK;
}
