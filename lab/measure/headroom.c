/* headroom.c: compares what a run needs, measured on meta, with what its device has left. */
#include <math.h>
#include <string.h>
#include "backends/backend.h"
#include "comm/comm.h"
#include "measure/headroom.h"
#include "memtape/lab/plan.h"

/* More bytes than the run is likely to need: each parameter eight times in f32, what the tape keeps
 * four times. INFINITY where there is no formula. */
static double rough_bound(const mti_workload *w)
{
    const mt_plan_run run = {.config = &w->config, .batch = w->batch, .seq = w->seq};
    mt_plan_formula parameters, kept;
    if (mt_plan_parameters(&run, &parameters) != MT_OK ||
        mt_plan_activations(&run, &kept) != MT_OK) {
        mt_clear_error();
        return INFINITY;
    }
    return 8.0 * sizeof(float) * (double)parameters.expected + 4.0 * (double)kept.expected;
}

static void note_peak(void *user, const mt_mem_event *event)
{
    size_t *peak = user;
    if (event->kind != MT_MEM_OOM && event->current > *peak) *peak = event->current;
}

bool mti_rehearse(const mti_device_options *options, mti_rehearsal_fn *fn, void *user, size_t *peak,
                  mt_flops *flops)
{
    *peak = 0;
    mt_device *meta = mt_device_open("meta");
    int observer = meta ? mt_mem_add_observer(meta, note_peak, peak) : 0;
    bool ok = observer && mti_device_pretend(meta, options) && fn(user, meta);
    if (observer) mt_mem_remove_observer(meta, observer);
    if (ok && flops) *flops = mt_flops_get(meta);
    mt_device_release(meta);
    return ok;
}

static bool fits(const char *name, size_t needed, const char *kind, size_t room, const char *advice)
{
    return needed <= room ||
           mti_fail_bool(MT_ERR_MEMORY,
                         "%s takes %s bytes (%s) at its peak, and %s has room for %s; %s", name,
                         MTI_THOUSANDS(needed), MTI_BYTES(needed), kind, MTI_BYTES(room), advice);
}

bool mti_check_fits(const mt_device *device, const char *name, size_t needed, const char *advice)
{
    return fits(name, needed, mt_device_kind(device), mt_device_room(device), advice);
}

typedef struct part {
    uint64_t machine;
    size_t needed, room;
} part;

bool mti_check_room_together(mt_comm *world, const char *kind, const char *name, size_t needed,
                             const char *advice)
{
    int64_t ranks = mt_comm_group(world).ranks, here = 0;
    bool shares = needed && !strcmp(kind, "cpu");
    part own = {.needed = shares ? needed : 0}, *all = mti_calloc((size_t)ranks, sizeof *all);
    size_t sum = 0;
    own.room = mti_shared_room(&own.machine);
    bool ok = all && mti_comm_share(world, &own, sizeof own, all);
    for (int64_t r = 0; ok && r < ranks; r++) {
        if (!all[r].needed || all[r].machine != own.machine) continue;
        here++;
        if (!mti_add_size(sum, all[r].needed, &sum)) sum = SIZE_MAX;
        if (all[r].room < own.room) own.room = all[r].room;
    }
    mti_free(all);
    char text[256];
    snprintf(text, sizeof text, "%.180s, by %lld ranks of one machine,", name, (long long)here);
    return ok && (!shares || fits(text, sum, kind, own.room, advice));
}

bool mti_check_room(const mt_device *device, const mti_workload *w, mti_rehearsal_fn *run,
                    void *user, const char *advice)
{
    size_t room = mt_device_room(device), needed, capacity = w->device.capacity;
    if (room == SIZE_MAX || rough_bound(w) <= (double)room) return true;
    if (!mti_rehearse(&w->device, run, user, &needed, NULL)) return false;
    if (capacity && needed > capacity) needed = capacity;
    return mti_check_fits(device, w->name, needed, advice);
}

/* *stats: what a run within so many bytes (0: as many as it takes) has had; *full: it had too few.
 */
static bool rehearse_within(const mti_workload *w, size_t capacity, mti_rehearsal_fn *run,
                            void *user, mt_mem_stats *stats, bool *full)
{
    mt_device *meta = mt_device_open("meta");
    bool ok = meta && mti_device_pretend(meta, &w->device);
    if (ok) mt_mem_set_capacity(meta, capacity);
    const bool ran = ok && run(user, meta);
    *full = ok && !ran && capacity && mt_last_status() == MT_ERR_MEMORY;
    if (ok) mt_mem_get_stats(meta, stats);
    mt_device_release(meta);
    return ran;
}

bool mti_check_capacity(const mti_workload *w, mti_rehearsal_fn *run, void *user,
                        const char *advice)
{
    const size_t capacity = w->device.capacity;
    mt_mem_stats stats;
    bool full = false;
    if (!capacity || rehearse_within(w, capacity, run, user, &stats, &full)) return true;
    if (!full) return false;
    mt_clear_error();
    return rehearse_within(w, 0, run, user, &stats, &full) &&
           mti_fail_bool(MT_ERR_MEMORY,
                         "out of memory: %s takes %s bytes (%s) at its peak, %s in segments, of a "
                         "capacity of %s; %s",
                         w->name, MTI_THOUSANDS(stats.allocated.peak),
                         MTI_BYTES(stats.allocated.peak), MTI_BYTES(stats.reserved.peak),
                         MTI_BYTES(capacity), advice);
}

bool mti_run_two_steps(void *user, mt_device *meta)
{
    mti_measurement m;
    bool ok = mti_measure(&m, meta, user, NULL);
    mti_measurement_free(&m);
    return ok;
}

bool mti_check_room_for(const mt_device *device, const mti_workload *w, const char *advice)
{
    mti_workload copy = *w;
    return mti_check_room(device, w, mti_run_two_steps, &copy, advice);
}
