/* room.h: whether a device has room for what is about to be run, asked beforehand: a machine that
 * is filled up grinds to a halt before it says no. */
#ifndef MTI_MEASURE_ROOM_H
#define MTI_MEASURE_ROOM_H

#include "measure/step.h"

typedef bool mti_rehearsal_fn(void *user, mt_device *meta);
/* fn on a meta device that counts what one with these options would. *peak becomes the most that
 * was allocated; *flops (may be NULL) what was counted. */
bool mti_rehearse(const mti_device_options *options, mti_rehearsal_fn *fn, void *user, size_t *peak,
                  mt_flops *flops);

/* A rehearsal of two steps; user: a mti_workload. */
bool mti_run_two_steps(void *user, mt_device *meta);

/* What is about to be run. */
typedef struct mti_rehearsal {
    const char *name; /* "llama-7b" */
    const mt_model_config *config;
    int64_t batch, seq;
    const mti_device_options *options; /* of its device */
    mti_rehearsal_fn *run;             /* does the same on meta */
    void *user;
    const char *advice; /* the end of the message where there is no room */
} mti_rehearsal;

/* False, with an MT_ERR_MEMORY that says how much it takes and how much there is, where the device
 * cannot hold it. What is obviously small is not rehearsed; on meta there is always room. */
bool mti_check_room(const mt_device *device, const mti_rehearsal *r);
/* The same of two steps of a workload. */
bool mti_check_room_for(const mt_device *device, const mti_workload *w, const char *advice);

#endif
