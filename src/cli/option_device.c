/* option_device.c: the values of options that say what a device is like. */
#include <string.h>
#include "cli/option_rows.h"

#define LEAST_WITHOUT_UNIT (1 << 20) /* who writes 80 means 80 of something */

bool mti_parse_bytes(mti_options *o, const mti_option_row *r, const char *arg)
{
    uint64_t value;
    if (!mti_bytes_parse(arg, &value) || (double)value < r->min || (double)value > r->max)
        return mti_options_refuse(
            o,
            "--%s: \"%.40s\" is no good; give bytes with a unit, such as 40GiB (or 40G), 1.5GB, "
            "4096B",
            r->name, arg);
    if (value < LEAST_WITHOUT_UNIT && !arg[strspn(arg, "0123456789")])
        return mti_options_refuse(
            o,
            "--%s: \"%s\" alone is %s bytes; give a unit, such as %sGiB, %sMiB, or %sB if it "
            "is bytes",
            r->name, arg, arg, arg, arg, arg);
    *(int64_t *)((char *)o + r->at) = (int64_t)value;
    return true;
}

bool mti_parse_scratch(mti_options *o, const char *arg)
{
    o->scratch_of_cpu = !strcmp(arg, "cpu");
    return o->scratch_of_cpu || !strcmp(arg, "none") ||
           mti_options_refuse(o, "--scratch: \"%.40s\" is no good; give one of none, cpu", arg);
}

/* What only values can answer. */
bool mti_check_values(mti_options *o)
{
    static const char *const needed[MTI_VERB_COUNT] = {
        [MTI_DEMO] = "learns", [MTI_GENERATE] = "writes text", [MTI_AUDIT] = "compares gradients"};
    return !needed[o->verb] || strcmp(o->device, "meta") != 0 ||
           mti_options_refuse(o,
                              "--device meta: %s %s, and tensors there have no values; give cpu or "
                              "cuda",
                              mti_verb_get(o->verb)->name, needed[o->verb]);
}
