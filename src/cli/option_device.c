/* option_device.c: the values of options that say what a device is like. */
#include <stdlib.h>
#include <string.h>
#include "cli/option_rows.h"

/* ---- sizes ---- */

/* Decimal and binary units, and bare numbers. */
static bool unit_of(const char *text, double *unit)
{
    static const char prefixes[] = "KMGTPE";
    const char *prefix = *text ? strchr(prefixes, *text == 'k' ? 'K' : *text) : NULL;
    *unit = 1;
    if (!*text || !strcmp(text, "B")) return true;
    if (!prefix || (strcmp(text + 1, "B") != 0 && strcmp(text + 1, "iB") != 0)) return false;
    double step = text[1] == 'i' ? 1024 : 1000;
    for (const char *p = prefixes; p <= prefix; p++) *unit *= step;
    return true;
}

bool mti_parse_bytes(mti_options *o, const mti_option_row *r, const char *arg)
{
    size_t digits = strspn(arg, "0123456789"), fraction = 0;
    if (arg[digits] == '.') fraction = 1 + strspn(arg + digits + 1, "0123456789");
    double unit, value = strtod(arg, NULL);
    bool number = digits > 0 && digits < 20 && fraction != 1 && fraction < 20 &&
                  unit_of(arg + digits + fraction, &unit) && (unit > 1 || !fraction);
    if (!number || value * unit < r->min || value * unit > r->max)
        return mti_options_refuse(o,
                                  "--%s: \"%.40s\" is no good; give bytes, from %.0f on: 123, "
                                  "40GiB, 1.5GB (B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)",
                                  r->name, arg, r->min);
    /* Whole bytes are taken as they are: a double holds 53 bits of them. */
    int64_t n = unit > 1 ? (int64_t)(value * unit) : strtoll(arg, NULL, 10);
    *(int64_t *)((char *)o + r->at) = n;
    return true;
}

/* ---- the device as a whole ---- */

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
