/* common.c: what several verbs do. */
#include "cli/verbs.h"

int mti_report_failure(const mti_options *o)
{
    const char *text = mt_last_error();
    mti_print(stderr, "memtape %s: %s\n", mti_verb_get(o->verb)->name,
              *text ? text : "failed without an error message");
    return MTI_EXIT_FAILED;
}

mt_device *mti_open_device(const mti_workload *w)
{
    mt_device *device = mti_device_make(&w->device);
    if (device) mt_seed(device, w->seed);
    return device;
}
