/* headroom.h: whether a device has room for a run, asked beforehand: a machine that runs out of
 * memory swaps to a standstill before it refuses. */
#ifndef MTI_MEASURE_HEADROOM_H
#define MTI_MEASURE_HEADROOM_H

#include "measure/two_steps.h"

typedef bool mti_rehearsal_fn(void *user, mt_device *meta);
/* Calls fn with a meta device that counts what a device with these options would. *peak: the most
 * bytes allocated; *flops (may be NULL): what was counted. */
bool mti_rehearse(const mti_device_options *options, mti_rehearsal_fn *fn, void *user, size_t *peak,
                  mt_flops *flops);

/* A rehearsal of two steps; user: a mti_workload. */
bool mti_run_two_steps(void *user, mt_device *meta);

/* Whether the device can hold what run(user, meta) allocates; false with an MT_ERR_MEMORY that says
 * how much that is and how much there is, and that ends in `advice`. A workload that is obviously
 * small is not rehearsed; on meta there is always room. */
bool mti_check_room(const mt_device *device, const mti_workload *w, mti_rehearsal_fn *run,
                    void *user, const char *advice);
/* Whether run(user, meta) stays within the workload's capacity; false with an MT_ERR_MEMORY that
 * says how much it takes and ends in `advice`. Without a capacity it is not run. */
bool mti_check_capacity(const mti_workload *w, mti_rehearsal_fn *run, void *user,
                        const char *advice);
/* Whether `needed` bytes, the peak of `name`, are there; the same error. */
bool mti_check_fits(const mt_device *device, const char *name, size_t needed, const char *advice);
/* Whether the ranks that share the memory of a machine find room for what each of them needs; the
 * same error on all of these. 0: this rank needs none, or has failed. Every rank calls it. */
bool mti_check_room_together(mt_comm *world, const char *kind, const char *name, size_t needed,
                             const char *advice);
/* The same for two steps of the workload. */
bool mti_check_room_for(const mt_device *device, const mti_workload *w, const char *advice);

#endif
