/* profile.c: everything about the memory of a workload. */
#include "measure/profile.h"
#include "measure/room.h"

bool mti_profile_make(mti_profile_result *p, const mti_workload *w, const char *advice)
{
    *p = (mti_profile_result){.workload = *w, .device = mti_device_make(&w->device)};
    if (!p->device || (w->budget && !mti_budget_find(&p->budget, w))) return false;
    mti_workload *with = &p->workload;
    with->memory.budget = p->budget.plan;
    return mti_check_room_for(p->device, with, advice) &&
           mti_measure(&p->measured, p->device, with, &(mti_watch){.timeline = true}) &&
           mti_formula_make(&p->formula, &with->config, with->batch, with->seq, &with->memory,
                            mt_ledger_bytes(p->measured.ledger));
}

void mti_profile_free(mti_profile_result *p)
{
    mti_measurement_free(&p->measured);
    mti_budget_found_free(&p->budget);
    mt_device_release(p->device);
    *p = (mti_profile_result){0};
}
