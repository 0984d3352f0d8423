/* budget_search.c: the search that --budget asks for, over what would be run. */
#include "measure/budget_search.h"
#include "measure/headroom.h"

/* Named as mt_model_checkpoint has them. */
const char *const mti_budget_presets[MTI_BUDGET_PRESETS] = {"none", "selective", "full", "sqrt"};

static mt_status run(void *user, mt_device *device, const mt_budget_plan *plan)
{
    const mti_budget_found *b = user;
    mti_workload with = *b->workload;
    with.memory.budget = plan;
    bool ok = mti_device_pretend(device, &with.device) && mti_run_two_steps(&with, device);
    return ok ? MT_OK : mt_last_status();
}

bool mti_budget_find(mti_budget_found *b, const mti_workload *w)
{
    *b = (mti_budget_found){.workload = w};
    double began = mti_now();
    b->budget = mt_budget_new(run, b);
    bool ok = b->budget && mt_budget_solve(b->budget, w->budget, &b->plan) == MT_OK;
    b->seconds = mti_now() - began;
    return ok;
}

void mti_budget_found_free(mti_budget_found *b)
{
    mt_budget_free(b->budget);
    *b = (mti_budget_found){0};
}

/* A simulation makes two steps. */
static mt_flops of_one_step(mt_flops f)
{
    return (mt_flops){f.forward / 2, f.backward / 2, f.recompute / 2};
}

mt_budget_figures mti_budget_figures_of(const mt_budget_plan *plan)
{
    mt_budget_figures f = mt_budget_plan_figures(plan);
    f.flops = of_one_step(f.flops);
    return f;
}

static bool simulate_preset(const mti_workload *w, const char *preset, mt_budget_figures *f)
{
    mti_workload with = *w;
    with.memory.checkpoint = preset;
    *f = (mt_budget_figures){0};
    bool ok = mti_rehearse(&w->device, mti_run_two_steps, &with, &f->peak, &f->flops);
    f->flops = of_one_step(f->flops);
    return ok;
}

bool mti_budget_find_front(mti_budget_found *b)
{
    double began = mti_now();
    mt_status status = mt_budget_front(b->budget, MTI_BUDGET_POINTS, b->front, &b->n_front);
    b->seconds += mti_now() - began;
    if (status != MT_OK) return false;
    for (int i = 0; i < MTI_BUDGET_PRESETS; i++)
        if (!simulate_preset(b->workload, mti_budget_presets[i], &b->presets[i])) return false;
    return true;
}
