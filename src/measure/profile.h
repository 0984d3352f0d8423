/* profile.h: two training steps of a workload, and all that is known of their memory. */
#ifndef MTI_MEASURE_PROFILE_H
#define MTI_MEASURE_PROFILE_H

#include "measure/budget.h"
#include "measure/step.h"

typedef struct mti_profile_result {
    mti_workload workload; /* with the checkpoints that its budget allows */
    mt_device *device;
    mti_budget_found budget;  /* with a budget */
    mti_measurement measured; /* with its timeline */
    mti_formula formula;      /* of what the first forward saves */
} mti_profile_result;

/* Two steps on a device of their own, which must have room for them; `advice` ends the message if
 * it has not. `w` is borrowed. After a failure what was measured before it is there, the timeline
 * above all. Free in any case. */
bool mti_profile_make(mti_profile_result *p, const mti_workload *w, const char *advice);
void mti_profile_free(mti_profile_result *p);

#endif
