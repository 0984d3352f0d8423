/* common.c: what several verbs do. */
#include <string.h>
#include "verbs/verbs.h"
#include "options/option_table.h"
#include "fit/search.h"

int mti_report_failure(const mti_options *o)
{
    const char *text = mt_last_error();
    mti_print(stderr, "memtape %s: %s\n", mti_verb_get(o->verb)->name,
              *text ? text : "failed without an error message");
    /* Which sections there are is known only once there is a report; GPUs are of the lab. */
    const bool misused = o->output.show && mt_last_status() == MT_ERR_ARGUMENT;
    mt_gpu gpu;
    if (o->gpu.name && !o->gpu.file && mt_gpu_find(o->gpu.name, &gpu) != MT_OK)
        return MTI_EXIT_USAGE;
    return misused ? MTI_EXIT_USAGE : MTI_EXIT_FAILED;
}

mt_device *mti_open_device(const mti_workload *w)
{
    mt_device *device = mti_device_make(&w->device);
    if (device) mt_seed(device, w->seed);
    return device;
}

/* Refuses "8xa100": how many there are is another option's, or a division's. */
static bool refuse_number(const mti_options *o, const char *name)
{
    const int n = (int)strspn(name, "0123456789");
    const char *x = name + n + strspn(name + n, " "), *kind = *x ? x + 1 + strspn(x + 1, " ") : x;
    mt_gpu gpu;
    if (!n || (*x != 'x' && *x != 'X') || mt_gpu_find(kind, &gpu) != MT_OK) return false;
    const bool counted = mti_takes(o->verb, &mti_option_rows[MTI_O_GPUS]);
    mti_fail(MT_ERR_ARGUMENT, "gpu: \"%.40s\" is a number of GPUs; give --gpu %s%s%.*s%s", name,
             gpu.name, counted ? " --gpus " : ", and how ", n, name,
             counted ? "" : " divide the model: --dp, --tp, --pp");
    return true;
}

bool mti_find_gpu(const mti_options *o, mt_gpu *gpu)
{
    const char *name = o->gpu.name ? o->gpu.name : "h100"; /* of a profile's --outside */
    mt_status status =
        o->gpu.file ? mt_gpu_find_in(o->gpu.file, name, gpu) : mt_gpu_find(name, gpu);
    if (status == MT_OK || o->gpu.file) return status == MT_OK;
    char said[1024];
    snprintf(said, sizeof said, "%s", mt_last_error());
    if (refuse_number(o, name)) return false;
    return mti_fail_bool(status,
                         "%s; for another card give the nearest and its memory, such as --gpu "
                         "rtx3060 --capacity 9.5GiB",
                         said);
}

bool mti_complete_for_gpu(mti_options *o, mt_model_config *base)
{
    mt_gpu gpu;
    const char *other = o->gpu.name && !o->gpu.file ? mti_gpu_other_size(o->gpu.name) : NULL;
    if (other && mti_find_gpu(o, &gpu))
        mti_append(o->notes, sizeof o->notes,
                   "\"%s\" is taken as %s; there is %s with less memory\n", o->gpu.name, gpu.name,
                   other);
    o->in_f16 = false;
    if (mti_is_given(o, MTI_O_DTYPE) || o->workload.memory.amp || !o->gpu.name) return true;
    if (!mti_find_gpu(o, &gpu)) {
        mt_clear_error(); /* the verb says it, after what is wrong with the options */
        return true;
    }
    if (!gpu.f16_only || base->dtype != MT_BF16) return true;
    o->in_f16 = true;
    base->dtype = MT_F16;
    mti_append(o->notes, sizeof o->notes, "a %s multiplies no bf16: f16 is taken in its place\n",
               gpu.name);
    return true;
}

/* GPUs that a rank's division takes together. */
static int64_t gpus_of(const mt_parallel *h)
{
    const int64_t n[] = {h->data, h->tensor, h->context, h->pipeline};
    int64_t gpus = 1;
    for (size_t i = 0; i < sizeof n / sizeof *n; i++)
        if (n[i]) gpus *= n[i];
    return gpus;
}

bool mti_complete_within_gpu(mti_options *o, mt_model_config *base)
{
    mt_gpu gpu;
    if (!mti_complete_for_gpu(o, base)) return false;
    if (!o->gpu.name) return true;
    if (!mti_find_gpu(o, &gpu)) {
        mti_options_refuse(o, "--%.900s", mt_last_error()); /* it begins with "gpu" */
        mt_clear_error();
        return false;
    }
    if (mti_is_given(o, MTI_O_CAPACITY)) {
        mti_append(o->notes, sizeof o->notes, "--capacity is taken for what %s has\n", gpu.name);
        return true;
    }
    const size_t aside = mti_kept_aside(o, &gpu, gpus_of(&o->workload.parallel));
    if (aside >= gpu.memory)
        return mti_options_refuse(o, "--gpu: keep-aside is %zu bytes; %s has %zu", aside, gpu.name,
                                  gpu.memory);
    o->workload.device.capacity = gpu.memory - aside;
    mti_append(o->notes, sizeof o->notes,
               "%s has %s, of which %s are kept aside for CUDA and to spare\n", gpu.name,
               MTI_BYTES(gpu.memory), MTI_BYTES(aside));
    return true;
}

size_t mti_kept_aside(const mti_options *o, const mt_gpu *gpu, int64_t gpus)
{
    return mti_is_given(o, MTI_O_CAPACITY)     ? gpu->memory - o->workload.device.capacity
           : mti_is_given(o, MTI_O_KEEP_ASIDE) ? o->gpu.keep_aside
                                               : mti_gpu_kept_aside(gpu, gpus);
}
