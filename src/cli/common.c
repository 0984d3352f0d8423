/* common.c: what several verbs do. */
#include <string.h>
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

void mti_default_on_meta(mti_options *o)
{
    o->workload.batch = 1;
    o->workload.optimizer = MTI_OPT_DEFAULT;
    o->workload.device.kind = "meta";
    o->given_config.dtype = MT_BF16;
}

bool mti_complete_on_meta(mti_options *o, mt_model_config *base, int64_t longest)
{
    if (!o->given[MTI_O_DTYPE] && !o->workload.memory.amp) base->dtype = MT_BF16;
    if (!o->given[MTI_O_SEQ] && base->context)
        o->workload.seq = base->context < longest ? base->context : longest;
    return true;
}
