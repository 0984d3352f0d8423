/* room.h: whether a device has room for what is about to be run, asked beforehand: a machine that
 * is filled up grinds to a halt before it says no. */
#ifndef MTI_CLI_ROOM_H
#define MTI_CLI_ROOM_H

#include "cli/measure.h"

/* Runs on meta what will be run on the device. */
typedef bool mti_rehearsal_fn(void *user, mt_device *meta);

typedef struct mti_plan_to_run {
    const char *name; /* "llama-7b" */
    const mt_model_config *config;
    int64_t batch, seq;
    mti_rehearsal_fn *rehearse;
    void *user;
} mti_plan_to_run;

/* False, with an MT_ERR_MEMORY that says how much it takes and how much there is, where the device
 * cannot hold it. What is obviously small is not rehearsed; on meta there is always room. */
bool mti_check_room(const mti_options *o, const mt_device *device, const mti_plan_to_run *plan);
/* The same of a trial, with the options it came from. */
bool mti_check_room_for(const mti_options *o, const mt_device *device, const mti_trial *trial,
                        const char *name);

#endif
