/* profile.c: everything about the memory of a workload. */
#include "measure/profile.h"
#include "measure/headroom.h"
#include "workload/routing.h"

static size_t allocated_on(const mt_device *device)
{
    mt_mem_stats stats;
    mt_mem_get_stats(device, &stats);
    return stats.allocated.current;
}

/* Nothing will run on the device any more. */
static bool note_left(mti_left *left, mt_device *device, const mti_workload *w)
{
    left->freed = allocated_on(device);
    if (w->device.gemm_workspace && mt_device_set_gemm_workspace(device, 0) != MT_OK) return false;
    left->given_back = allocated_on(device);
    return true;
}

/* On its own device, which is gone before the steps begin. */
static bool infer(mti_profile_result *p)
{
    const mti_workload *w = &p->workload;
    mt_device *device = mti_device_make(&w->device);
    bool ok = device && mti_measure_inference(&p->inference, device, w) &&
              note_left(&p->left_by_inference, device, w);
    mt_device_release(device);
    return ok;
}

/* Measures another routing, on its own device; *peak 0 if it does not fit. */
static bool peak_routed(const mti_workload *w, const char *routing, size_t *peak)
{
    mti_workload other = *w;
    mti_requirement need = {0};
    mti_measurement m;
    bool refused = false;
    other.routing = routing;
    const bool ok = mti_measure_requirement(&need, &m, &other, NULL, &refused);
    mti_measurement_free(&m);
    *peak = ok ? need.peak : 0;
    if (refused) mt_clear_error();
    return ok || refused;
}

static bool route(mti_profile_result *p)
{
    if (p->workload.config.expert_capacity > 0 && !mt_device_has_data(p->device) &&
        !mti_routing_keeps(&p->workload, &p->routed.rows))
        return false;
    return !mti_routing_matters(&p->workload, p->device) ||
           (peak_routed(&p->workload, "balanced", &p->routed.balanced) &&
            peak_routed(&p->workload, "worst", &p->routed.worst));
}

bool mti_profile_make(mti_profile_result *p, const mti_workload *w, const char *advice,
                      bool inference)
{
    *p = (mti_profile_result){
        .workload = *w, .device = mti_device_make(&w->device), .infers = inference};
    if (!p->device || (w->budget && !mti_budget_find(&p->budget, w))) return false;
    mti_workload *with = &p->workload;
    with->memory.budget = p->budget.plan;
    return mti_check_room_for(p->device, with, advice) && (!inference || infer(p)) &&
           mti_measure(&p->measured, p->device, with, &(mti_watch){.timeline = true}) &&
           note_left(&p->left, p->device, with) && route(p) &&
           mti_routed_formula(&p->formula, with, mt_device_has_data(p->device),
                              mt_ledger_bytes(p->measured.ledger));
}

bool mti_profile_find_requirement(mti_profile_result *p)
{
    mti_measurement m;
    mti_workload w = p->workload;
    bool refused;
    w.device.capacity = 0;
    if (mt_device_has_data(p->device)) return true;
    bool ok = mti_measure_requirement(&p->needed, &m, &w, NULL, &refused);
    mti_measurement_free(&m);
    return ok;
}

void mti_profile_free(mti_profile_result *p)
{
    mti_measurement_free(&p->measured);
    mti_measurement_free(&p->inference);
    mti_budget_found_free(&p->budget);
    mt_device_release(p->device);
    *p = (mti_profile_result){0};
}
