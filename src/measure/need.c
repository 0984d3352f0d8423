/* need.c: the highest memory use of two training steps. */
#include <string.h>
#include "measure/need.h"

/* The device must also have room for the first step. */
static void take_peak(mti_need *need, const mti_measurement *m)
{
    bool steady;
    const mti_phase *highest = mti_highest_phase(m, &steady);
    *need = (mti_need){.peak = highest->peak,
                       .reserved = m->steady.reserved,
                       .phase = steady ? "the second step" : highest->name};
    memcpy(need->at_peak, highest->at_peak, sizeof need->at_peak);
    need->requested = m->steady.requested;
    for (int i = 0; i < m->phases.n; i++) {
        const mti_phase *phase = &m->phases.at[i];
        if (phase->reserved_peak > need->reserved) need->reserved = phase->reserved_peak;
        if (phase->requested_peak > need->requested) need->requested = phase->requested_peak;
    }
}

bool mti_was_refused(mt_device *device)
{
    mt_mem_stats stats;
    if (!device || mt_last_status() != MT_ERR_MEMORY) return false;
    mt_mem_get_stats(device, &stats);
    return stats.ooms > 0;
}

bool mti_need_measure(mti_need *need, mti_measurement *m, const mti_workload *w,
                      const mti_watch *watch, bool *refused)
{
    mt_device *device = mti_device_make(&w->device);
    *m = (mti_measurement){0};
    bool ok = device && mti_measure(m, device, w, watch);
    *refused = !ok && mti_was_refused(device);
    if (ok) take_peak(need, m);
    mt_device_release(device);
    return ok;
}
