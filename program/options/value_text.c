/* value_text.c: the values of options as one would type them. */
#include <string.h>
#include "options/option_table.h"
#include "nn/model.h"

/* A number that parses to the same bits. */
static const char *real_text(double value, char buf[MTI_VALUE_TEXT])
{
    mti_format(buf, MTI_VALUE_TEXT, "%g", value);
    if (mti_strtod(buf, NULL) != value) mti_format(buf, MTI_VALUE_TEXT, "%.17g", value);
    return buf;
}

static const char *bytes_text(size_t value, char buf[MTI_VALUE_TEXT])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    for (; value && value % 1024 == 0 && unit < 4; unit++) value /= 1024;
    snprintf(buf, MTI_VALUE_TEXT, "%zu%s", value, units[unit]);
    return buf;
}

static const char *some_text(const mti_option_row *r, unsigned value, char buf[MTI_VALUE_TEXT])
{
    unsigned left = value;
    for (int i = 0; i < r->choice->n; i++)
        if (mti_option_bits(r, i) == value) return r->choice->names[i];
    *buf = 0;
    for (int i = 1; i < r->choice->n; i++) {
        const unsigned bits = mti_option_bits(r, i);
        if ((value & bits) != bits || !(left & bits)) continue;
        mti_append(buf, MTI_VALUE_TEXT, "%s%s", *buf ? "+" : "", r->choice->names[i]);
        left &= ~bits;
    }
    return buf;
}

const char *mti_option_text(const mti_options *o, const mti_option_row *r, char buf[MTI_VALUE_TEXT])
{
    const void *field = mti_option_field(o, r);
    const mti_memory_options *m = &o->workload.memory;
    const char *text = "";
    switch (r->form) {
    case MTI_FLAG: return *(const bool *)field ? "yes" : "no";
    case MTI_INT:
    case MTI_EXTENT:
        snprintf(buf, MTI_VALUE_TEXT, "%lld", (long long)*(const int64_t *)field);
        return buf;
    case MTI_BYTES: return bytes_text(*(const size_t *)field, buf);
    case MTI_REAL:
    case MTI_SCALED: return real_text(*(const double *)field, buf);
    case MTI_CHOICE: return mti_choice_name(r->choice, *(const int *)field);
    case MTI_RECIPE:
    case MTI_SOME: return some_text(r, *(const unsigned *)field, buf);
    case MTI_DTYPE: return mt_dtype_name(*(const mt_dtype *)field);
    case MTI_OUT_ACT:
        return o->workload.config.has_out_act ? mt_act_name(*(const mt_act *)field) : "none";
    case MTI_AMP: return m->amp ? mt_dtype_name(m->amp_dtype) : "none";
    case MTI_LOSS_SCALE:
        return m->loss_scale < 0   ? "dynamic"
               : m->loss_scale > 0 ? real_text(m->loss_scale, buf)
                                   : "none";
    case MTI_RESHARD: return mti_reshard_text(*(const int64_t *)field, buf, MTI_VALUE_TEXT);
    case MTI_TARGETS: return m->lora_targets.text ? m->lora_targets.text : "all";
    case MTI_SCRATCH:
    case MTI_CHECKPOINT: text = "none"; /* fallthrough */
    case MTI_PRESET:
    case MTI_GPU:
    case MTI_ROUTING_TEXT:
    case MTI_TEXT:
    case MTI_DEVICE: return *(const char *const *)field ? *(const char *const *)field : text;
    case MTI_LIST:
    case MTI_FORM_COUNT:
    default: return text;
    }
}

const char *mti_option_default_text(const mti_options *o, const mti_option_row *r,
                                    char buf[MTI_VALUE_TEXT])
{
    const char *value = r->arg ? mti_option_text(o, r, buf) : "";
    const bool is_zero = r->form != MTI_CHOICE && (!strcmp(value, "0") || !strcmp(value, "0B"));
    return !is_zero && *value > ' ' ? value : NULL;
}

bool mti_keys_print(FILE *out, const mti_options *o, mti_verb verb, mti_key_of owner,
                    const char *before)
{
    char value[MTI_VALUE_TEXT];
    bool any = false;
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (r->key != owner || !mti_is_given(o, id) || !mti_takes(verb, r)) continue;
        mti_print(out, "%s%s%s%s%s", any ? "" : before, any ? "," : ":", r->name, r->arg ? "=" : "",
                  r->arg ? mti_option_text(o, r, value) : "");
        any = true;
    }
    return any;
}
