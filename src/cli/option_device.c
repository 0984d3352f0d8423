/* option_device.c: the values of options that say what a device is like. */
#include <string.h>
#include "cli/option_rows.h"

bool mti_parse_bytes(mti_options *o, const mti_option_row *r, const char *arg)
{
    uint64_t value;
    if (!mti_bytes_parse(arg, &value) || (double)value < r->min || (double)value > r->max)
        return mti_options_refuse(
            o, "--%s: \"%.40s\" is no good; give bytes from %.0f on, such as 123, 40GiB, 1.5GB",
            r->name, arg, r->min);
    *(int64_t *)((char *)o + r->at) = (int64_t)value;
    return true;
}

bool mti_parse_scratch(mti_options *o, const char *arg)
{
    o->scratch_of_cpu = !strcmp(arg, "cpu");
    return o->scratch_of_cpu || !strcmp(arg, "none") ||
           mti_options_refuse(o, "--scratch: \"%.40s\" is no good; give one of none, cpu", arg);
}

bool mti_check_device(mti_options *o)
{
    static const struct {
        mti_option id;
        const char *name;
    } pretences[] = {{MTI_O_GEMM_WORKSPACE, "gemm-workspace"}, {MTI_O_SCRATCH, "scratch"}};
    for (size_t i = 0; i < sizeof pretences / sizeof *pretences; i++)
        if (o->given[pretences[i].id] && strcmp(o->device, "meta") != 0)
            return mti_options_refuse(
                o,
                "--%s: the kernels of %s take memory of their own, which is counted; it is for "
                "--device meta",
                pretences[i].name, o->device);
    return true;
}

/* What only values can answer. */
bool mti_check_values(mti_options *o)
{
    static const char *const needed[MTI_VERB_COUNT] = {
        [MTI_DEMO] = "learns", [MTI_GENERATE] = "writes text", [MTI_AUDIT] = "compares gradients"};
    static const struct {
        mti_option id;
        const char *name;
    } results[] = {{MTI_O_SAVE, "save"},
                   {MTI_O_SAVE_ADAPTER, "save-adapter"},
                   {MTI_O_EVAL_EVERY, "eval-every"}};
    if (strcmp(o->device, "meta") != 0) return true;
    if (needed[o->verb])
        return mti_options_refuse(o,
                                  "--device meta: %s %s, and tensors there have no values; give "
                                  "cpu or cuda",
                                  mti_verb_get(o->verb)->name, needed[o->verb]);
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (o->given[results[i].id])
            return mti_options_refuse(
                o, "--%s: nothing is learnt on --device meta, whose tensors have no values",
                results[i].name);
    return true;
}
