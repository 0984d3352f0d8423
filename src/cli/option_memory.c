/* option_memory.c: parsing the values of memory options. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/option_rows.h"
#include "nn/model.h"

bool mti_read_checkpoint(mti_options *o, const mti_option_row *r, const char *arg)
{
    static const char *const names[] = {"none", "full", "selective", "ops", "sqrt", "every=K"};
    mti_preset preset = {MTI_PRESET_NONE};
    bool known = mti_preset_parse(arg, &preset);
    o->workload.memory.checkpoint = known && preset.form == MTI_PRESET_NONE ? NULL : arg;
    if (known) return true;
    if (!strncmp(arg, "every=", 6))
        return mti_options_refuse(o, "--%s: \"%.40s\": the K of every=K is a whole number from 1",
                                  r->name, arg);
    return mti_choose("--checkpoint", names, 6, arg) >= 0 || mti_options_refuse_as(o, "");
}

static const struct {
    const char *name;
    unsigned rules;
} compress_names[] = {{"none", 0},
                      {"bf16", 1u << MT_COMPRESS_BF16},
                      {"8bit", 1u << MT_COMPRESS_INT8},
                      {"bits", 1u << MT_COMPRESS_MASK_BITS},
                      {"seed", 1u << MT_COMPRESS_MASK_SEED},
                      {"signs", 1u << MT_COMPRESS_SIGNS}};
#define N_COMPRESS (sizeof compress_names / sizeof *compress_names)

/* "bits+seed" */
bool mti_read_compress(mti_options *o, const mti_option_row *r, const char *arg)
{
    o->workload.memory.compress = 0;
    for (const char *at = arg; at;) {
        size_t n = strcspn(at, "+"), i = 0;
        while (i < N_COMPRESS &&
               (strlen(compress_names[i].name) != n || strncmp(compress_names[i].name, at, n)))
            i++;
        if (i == N_COMPRESS)
            return mti_options_refuse(
                o,
                "--%s: unknown \"%.60s\"; choose none, or some of bf16, 8bit, "
                "bits, seed, signs, joined by +",
                r->name, arg);
        o->workload.memory.compress |= compress_names[i].rules;
        at = at[n] ? at + n + 1 : NULL;
    }
    return true;
}

const char *mti_compress_text(char buf[MTI_COMPRESS_TEXT], unsigned rules)
{
    size_t n = 0;
    *buf = 0;
    for (size_t i = 1; i < N_COMPRESS; i++)
        if (rules & compress_names[i].rules)
            n += (size_t)snprintf(buf + n, MTI_COMPRESS_TEXT - n, "%s%s", n ? "+" : "",
                                  compress_names[i].name);
    return n ? buf : compress_names[0].name;
}

bool mti_read_lora_targets(mti_options *o, const mti_option_row *r, const char *arg)
{
    char what[32];
    snprintf(what, sizeof what, "--%s", r->name);
    return mti_lora_targets_parse(&o->workload.memory.lora_targets, arg) ||
           mti_options_refuse_as(o, what);
}

bool mti_read_loss_scale(mti_options *o, const mti_option_row *r, const char *arg)
{
    char *end;
    double value = mti_strtod(arg, &end);
    bool number = end != arg && !*end && strchr("0123456789.", *arg) && isfinite(value);
    if (!strcmp(arg, "none"))
        o->workload.memory.loss_scale = 0;
    else if (!strcmp(arg, "dynamic"))
        o->workload.memory.loss_scale = -1;
    else if (number && value >= 1 && value <= 0x1p40)
        o->workload.memory.loss_scale = value;
    else
        return mti_options_refuse(
            o, "--%s: unknown \"%.40s\"; choose none, dynamic or a number from 1 to 2^40", r->name,
            arg);
    return true;
}
