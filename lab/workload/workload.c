/* workload.c: the devices of workloads. */
#include <string.h>
#include "workload/workload.h"

const mti_choice mti_untils = {"until", MTI_NAMES("end", "first-step", "forward")};

static bool set_up(mt_device *device, const mti_device_options *o)
{
    const mt_expandable expandable = {.granule = o->granule, .reclaim = o->reclaim};
    return (!o->expandable || mt_mem_set_expandable(device, &expandable) == MT_OK) &&
           (!o->threads || mt_device_set_threads(device, (int)o->threads) == MT_OK) &&
           (!o->scratch_of || mt_device_count_scratch_of(device, o->scratch_of) == MT_OK) &&
           (!o->gemm_workspace || mt_device_set_gemm_workspace(device, o->gemm_workspace) == MT_OK);
}

mti_device_options mti_device_twin(const mti_device_options *o)
{
    mti_device_options twin = *o;
    if (strcmp(o->kind, "meta") != 0) twin.scratch_of = o->kind;
    twin.kind = "meta";
    return twin;
}

bool mti_device_pretend(mt_device *meta, const mti_device_options *o)
{
    const mti_device_options twin = mti_device_twin(o);
    return set_up(meta, &twin);
}

mt_device *mti_device_make(const mti_device_options *o)
{
    mt_device *device = mt_device_open(o->kind);
    if (device && set_up(device, o)) {
        mt_mem_set_capacity(device, o->capacity);
        return device;
    }
    mt_device_release(device);
    return NULL;
}
