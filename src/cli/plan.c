/* plan.c: `memtape plan MODEL`: what it will cost, by formula and as measured on meta. */
#include <string.h>
#include "cli/plan.h"
#include "cli/verbs.h"

mt_plan_run mti_plan_run_of(const mti_options *o)
{
    return (mt_plan_run){.config = &o->config,
                         .batch = o->batch,
                         .seq = o->seq,
                         .checkpoint = o->spending.checkpoint,
                         .parameters = (int64_t)o->plan.parameters};
}

const mti_comparison *mti_plan_find(const mti_plan_data *p, const char *name)
{
    for (int i = 0; i < p->n_items; i++)
        if (!strcmp(p->items[i].formula.name, name)) return &p->items[i];
    return NULL;
}

bool mti_plan_time(const mti_plan_data *p, double *formula_s, double *measured_s)
{
    const mti_plan_options *o = &p->options->plan;
    const mti_comparison *flops = mti_plan_find(p, "flops");
    if (!flops || o->tokens == 0 || o->flops_rate == 0) return false;
    double steps = o->tokens / ((double)p->options->batch * (double)p->options->seq);
    *formula_s = mt_plan_seconds((double)flops->formula.value * steps, o->devices, o->flops_rate,
                                 o->utilisation);
    *measured_s =
        mt_plan_seconds((double)flops->measured * steps, o->devices, o->flops_rate, o->utilisation);
    return true;
}

static bool write_reports(const mti_plan_data *p, const mti_options *o)
{
    bool to_stdout = o->json && !strcmp(o->json, "-");
    if (!to_stdout && !o->quiet && !mti_plan_print(p, stdout)) return false;
    return (!o->json || mti_json_write(mti_plan_json(p), o->json) == MT_OK) &&
           (!o->svg || mti_budgeted_draw(&p->budgeted, o->svg));
}

/* What ought to be zero. */
static int disagreement(const mti_plan_data *p)
{
    int status = MTI_EXIT_OK;
    for (int i = 0; i < p->n_items; i++) {
        const mti_comparison *c = &p->items[i];
        if (!c->unexplained) continue;
        fprintf(stderr,
                "memtape plan: %s: the measurement is %lld %s off what the formula explains\n",
                c->formula.name, (long long)c->unexplained, c->formula.unit);
        status = MTI_EXIT_FAILED;
    }
    return status;
}

int mti_planner(const mti_options *o)
{
    mti_plan_data p = {.options = o, .device = mti_open_device(o)};
    bool ok =
        p.device && mti_plan_measure(&p) && (!o->capacity || mti_plan_fit(&p)) &&
        (!o->budget || (mti_budgeted_make(&p.budgeted, o) && mti_budgeted_front(&p.budgeted))) &&
        write_reports(&p, o);
    int status = ok ? disagreement(&p) : mti_report_failure(o);
    mti_budgeted_free(&p.budgeted);
    mt_device_release(p.device);
    return status;
}
