/* simulate.c: runs the workload once on the meta device under a plan. */
#include "memory/budget.h"

typedef struct simulation {
    mt_budget *b;
    mt_budget_plan *plan;
    mti_budget_ops *ops;
    mt_device *device;
} simulation;

static bool run_hooked(const simulation *s)
{
    if (s->ops && mt_push_op_hooks(&mti_budget_op_hooks, s->ops) != MT_OK) return false;
    uint64_t failures = mti_failures();
    mt_status status = s->b->run(s->b->user, s->device, s->plan);
    if (status != MT_OK)
        mti_fail_around(failures, status, "budget: the workload failed (%s)",
                        mt_status_name(status));
    if (s->ops) mt_pop_op_hooks();
    mt_set_phase(NULL);
    return status == MT_OK;
}

bool mti_budget_simulate(mt_budget *b, mt_budget_plan *plan, mti_budget_watch *watch,
                         mti_budget_ops *ops)
{
    simulation s = {b, plan, ops, mt_device_open("meta")};
    if (!s.device) return false;
    int observer = mt_mem_add_observer(s.device, mti_budget_watch_event, watch);
    bool ok = observer && run_hooked(&s);
    if (observer) mt_mem_remove_observer(s.device, observer);
    mt_mem_stats stats;
    mt_mem_get_stats(s.device, &stats);
    plan->figures.peak = watch->peak; /* the workload may reset the device's */
    plan->figures.rounded_peak = (size_t)watch->highest;
    plan->figures.reserved = stats.reserved.peak;
    plan->figures.flops = mt_flops_get(s.device);
    plan->simulated = ok;
    b->n_simulations++;
    mt_device_release(s.device);
    return ok;
}
