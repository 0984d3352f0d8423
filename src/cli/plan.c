/* plan.c: `memtape plan MODEL`: what training costs, by formula and as measured on meta. */
#include "cli/verbs.h"
#include "report/pictures.h"
#include "report/results.h"
#include "report/page.h"

static bool write_reports(const mti_plan_result *p, const mti_options *o)
{
    return (!mti_wants_text(o) || mti_print_plan(p, o->verbose, stdout)) &&
           (!o->json || mti_json_write(mti_plan_json(p), o->json) == MT_OK) &&
           (!o->html ||
            mti_html_write_of("plan of", o->workload.name, mti_plan_json(p), o->html) == MT_OK) &&
           (!o->svg || mti_draw_budget(&p->budget, o->svg));
}

/* Whether formulas and measurements agree. */
static int conclude(const mti_plan_result *p)
{
    int status = MTI_EXIT_OK;
    for (int i = 0; i < p->n_items; i++) {
        const mti_comparison *c = &p->items[i];
        if (!c->unexplained) continue;
        mti_print(stderr,
                  "memtape plan: %s: the measurement is %lld %s off what the formula explains\n",
                  c->formula.name, (long long)c->unexplained, c->formula.unit);
        status = MTI_EXIT_FAILED;
    }
    return status;
}

int mti_planner(const mti_options *o)
{
    mti_plan_result p;
    mti_plan_options asked = o->plan;
    if (!o->given[MTI_O_KV]) asked.kv = -1;
    bool ok = mti_plan_make(&p, &o->workload, &asked) && write_reports(&p, o);
    int status = ok ? conclude(&p) : mti_report_failure(o);
    mti_plan_free(&p);
    return status;
}
