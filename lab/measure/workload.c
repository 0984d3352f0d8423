/* workload.c: the devices of workloads. */
#include <string.h>
#include "measure/workload.h"

static bool set_up(mt_device *device, const mti_device_options *o, bool scratch_of_cpu)
{
    const mt_expandable expandable = {.granule = o->granule, .reclaim = o->reclaim};
    return (!o->expandable || mt_mem_set_expandable(device, &expandable) == MT_OK) &&
           (!o->threads || mt_device_set_threads(device, (int)o->threads) == MT_OK) &&
           (!scratch_of_cpu || mt_device_count_scratch_of(device, "cpu") == MT_OK) &&
           (!o->gemm_workspace || mt_device_set_gemm_workspace(device, o->gemm_workspace) == MT_OK);
}

bool mti_device_pretend(mt_device *meta, const mti_device_options *o)
{
    return set_up(meta, o, !strcmp(o->kind, "cpu") || o->scratch_of_cpu);
}

mt_device *mti_device_make(const mti_device_options *o)
{
    mt_device *device = mt_device_open(o->kind);
    if (device && set_up(device, o, o->scratch_of_cpu)) {
        mt_mem_set_capacity(device, o->capacity);
        return device;
    }
    mt_device_release(device);
    return NULL;
}
