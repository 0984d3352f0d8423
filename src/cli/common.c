/* common.c: what every verb does alike. */
#include "cli/verbs.h"

int mti_report_failure(const mti_options *o)
{
    const char *text = mt_last_error();
    fprintf(stderr, "memtape %s: %s\n", mti_verb_get(o->verb)->name,
            *text ? text : "failed, and nobody said why");
    return MTI_EXIT_FAILED;
}

mt_device *mti_open_device(const mti_options *o)
{
    mt_device *device = mt_device_open(o->device);
    if (!device) return NULL;
    bool ok = (!o->threads || mt_device_set_threads(device, (int)o->threads) == MT_OK) &&
              (!o->scratch_of_cpu || mt_device_count_scratch_of(device, "cpu") == MT_OK) &&
              (!o->gemm_workspace ||
               mt_device_set_gemm_workspace(device, (size_t)o->gemm_workspace) == MT_OK);
    if (!ok) {
        mt_device_release(device);
        return NULL;
    }
    mt_mem_set_capacity(device, (size_t)o->capacity);
    mt_seed(device, (uint64_t)o->seed);
    return device;
}
