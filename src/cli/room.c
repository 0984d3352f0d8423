/* room.c: what a run takes, by running it on meta, against what its device can still give. */
#include <math.h>
#include "cli/budget.h"
#include "cli/room.h"
#include "cli/verbs.h"

/* Bytes that it will hardly need: each parameter eight times in f32, what the tape keeps four
 * times. INFINITY where no formula says. */
static double rough_bound(const mti_plan_to_run *plan)
{
    const mt_plan_run run = {.config = plan->config, .batch = plan->batch, .seq = plan->seq};
    mt_plan_formula parameters, kept;
    if (mt_plan_parameters(&run, &parameters) != MT_OK ||
        mt_plan_activations(&run, &kept) != MT_OK) {
        mt_clear_error();
        return INFINITY;
    }
    return 8.0 * sizeof(float) * (double)parameters.expected + 4.0 * (double)kept.expected;
}

static bool rehearse(const mti_options *o, const mti_plan_to_run *plan, size_t *needed)
{
    *needed = 0;
    mt_device *meta = mt_device_open("meta");
    int observer = meta ? mt_mem_add_observer(meta, mti_note_peak, needed) : 0;
    bool ok = observer && mti_budgeted_pretend(o, meta) && plan->rehearse(plan->user, meta);
    if (observer) mt_mem_remove_observer(meta, observer);
    mt_device_release(meta);
    return ok;
}

bool mti_check_room(const mti_options *o, const mt_device *device, const mti_plan_to_run *plan)
{
    size_t room = mt_device_room(device), needed;
    char takes[MTI_NUMBER], scaled[MTI_NUMBER], has[MTI_NUMBER];
    if (room == SIZE_MAX || rough_bound(plan) <= (double)room) return true;
    if (!rehearse(o, plan, &needed)) return false;
    if (o->capacity && needed > (size_t)o->capacity) needed = (size_t)o->capacity;
    if (needed <= room) return true;
    bool measures = o->verb != MTI_GENERATE && o->verb != MTI_DEMO;
    return mti_fail_bool(
        MT_ERR_MEMORY, "%s takes %s bytes (%s) at its peak, and %s has room for %s; %s", plan->name,
        mti_thousands(takes, (int64_t)needed), mti_bytes_text(scaled, sizeof scaled, needed),
        mt_device_kind(device), mti_bytes_text(has, sizeof has, room),
        measures ? "--device meta measures it without the memory"
                 : "profile --device meta measures a model without the memory");
}

static bool rehearse_trial(void *user, mt_device *meta)
{
    mti_trial trial = *(const mti_trial *)user;
    mti_measurement m;
    trial.look = NULL, trial.timeline = false;
    bool ok = mti_measure(&m, meta, &trial);
    mti_measurement_free(&m);
    return ok;
}

bool mti_check_room_for(const mti_options *o, const mt_device *device, const mti_trial *trial,
                        const char *name)
{
    mti_trial copy = *trial;
    return mti_check_room(o, device,
                          &(mti_plan_to_run){.name = name,
                                             .config = trial->config,
                                             .batch = trial->batch,
                                             .seq = trial->seq,
                                             .rehearse = rehearse_trial,
                                             .user = &copy});
}
