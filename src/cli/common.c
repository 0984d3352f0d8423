/* common.c: what every verb does alike. */
#include <string.h>
#include "cli/verbs.h"

int mti_report_failure(const mti_options *o)
{
    const char *text = mt_last_error();
    fprintf(stderr, "memtape %s: %s\n", mti_verb_get(o->verb)->name,
            *text ? text : "failed, and nobody said why");
    return MTI_EXIT_FAILED;
}

mti_device_options mti_device_options_of(const mti_options *o)
{
    return (mti_device_options){.kind = o->device,
                                .threads = (int)o->threads,
                                .capacity = (size_t)o->capacity,
                                .gemm_workspace = (size_t)o->gemm_workspace,
                                .scratch_of_cpu = o->scratch_of_cpu};
}

mti_workload mti_workload_of(const mti_options *o)
{
    return (mti_workload){.name = o->model,
                          .preset = o->preset,
                          .config = o->config,
                          .batch = o->batch,
                          .seq = o->seq,
                          .seed = (uint64_t)o->seed,
                          .optimizer = o->optimizer,
                          .memory = o->memory,
                          .budget = (size_t)o->budget,
                          .device = mti_device_options_of(o)};
}

mt_device *mti_open_device(const mti_options *o)
{
    const mti_device_options options = mti_device_options_of(o);
    mt_device *device = mti_device_make(&options);
    if (device) mt_seed(device, (uint64_t)o->seed);
    return device;
}

bool mti_wants_text(const mti_options *o)
{
    return !o->quiet && !(o->json && !strcmp(o->json, "-"));
}
