/* plan.c: `memtape plan MODEL`: what training costs, by formula and as measured on meta. */
#include "verbs/verbs.h"
#include "report/pictures.h"
#include "report/results.h"
#include "report/page.h"

static bool print_whole(const void *report, FILE *out) { return mti_print_plan(report, true, out); }

static bool print_text(const mti_plan_result *p, const mti_options *o)
{
    return o->output.show ? mti_show_sections(o->output.show, print_whole, p, stdout)
                          : mti_print_plan(p, o->output.verbose, stdout);
}

static bool write_reports(const mti_plan_result *p, const mti_options *o)
{
    return (!mti_wants_text(o) || print_text(p, o)) &&
           mti_write_object(mti_describe_plan, p, o->output.json, o->output.html, "plan of",
                            o->workload.name) &&
           (!o->output.svg || mti_draw_budget(&p->budget, o->output.svg));
}

/* Other budgets are searched where they are shown: of many layers that takes most of the time. */
static bool find_front(mti_plan_result *p, const mti_options *o)
{
    bool shown = o->output.json || o->output.html || o->output.svg ||
                 ((o->output.verbose || o->output.show) && mti_wants_text(o));
    return !o->workload.budget || !shown || mti_budget_find_front(&p->budget);
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
    if (!mti_is_given(o, MTI_O_KV)) asked.kv = -1;
    if (mti_is_given(o, MTI_O_GPUS)) asked.devices = o->gpu.n;
    bool ok = mti_plan_make(&p, &o->workload, &asked) && find_front(&p, o) && write_reports(&p, o);
    int status = ok ? conclude(&p) : mti_report_failure(o);
    mti_plan_free(&p);
    return status;
}

static bool check(mti_options *o)
{
    const int64_t context = o->workload.config.context, kv = o->plan.kv;
    return !mti_is_given(o, MTI_O_KV) || kv <= context - o->workload.seq ||
           mti_options_refuse(
               o, "--kv %lld: with --seq %lld that is longer than the model's context, %lld",
               (long long)kv, (long long)o->workload.seq, (long long)context);
}

const mti_verb_rules mti_plan_rules = {
    .verb = MTI_PLAN, .check = check, .complete = mti_complete_within_gpu};
