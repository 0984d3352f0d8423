/* option_spend.c: the values of options that spare memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/option_rows.h"
#include "nn/model.h"

/* The position of arg in "none, sgd, adamw", into an enum. */
bool mti_option_choose(mti_options *o, const mti_option_row *r, const char *arg, const char *names,
                       void *out)
{
    int position = 0;
    for (const char *at = names; at; position++) {
        size_t n = strcspn(at, ",");
        if (strlen(arg) == n && !strncmp(arg, at, n)) {
            memcpy(out, &position, sizeof position);
            return true;
        }
        at = at[n] ? at + n + 2 : NULL;
    }
    return mti_options_refuse(o, "--%s: \"%.40s\" is no good; give one of %s", r->name, arg, names);
}

bool mti_parse_checkpoint(mti_options *o, const char *arg)
{
    static const char *const names[] = {"none", "full", "selective", "sqrt"};
    o->spending.checkpoint = arg;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(arg, names[i])) {
            if (i == 0) o->spending.checkpoint = NULL;
            return true;
        }
    char *end = NULL;
    long every =
        strncmp(arg, "every=", 6) || !strchr("123456789", arg[6]) ? 0 : strtol(arg + 6, &end, 10);
    if (every > 0 && every < 1000000 && !*end) return true;
    return mti_options_refuse(o,
                              "--checkpoint: \"%.40s\" is no good; give one of none, full, "
                              "selective, every=K with K from 1, sqrt",
                              arg);
}

bool mti_parse_amp(mti_options *o, const char *arg)
{
    bool none = !strcmp(arg, "none");
    o->spending.amp = !none;
    if (none ||
        (mt_dtype_parse(arg, &o->spending.amp_dtype) && mt_dtype_size(o->spending.amp_dtype) == 2))
        return true;
    return mti_options_refuse(o, "--amp: \"%.40s\" is no good; give one of none, bf16, f16", arg);
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

/* "bits+seed" */
bool mti_parse_compress(mti_options *o, const char *arg)
{
    o->spending.compress = 0;
    for (const char *at = arg; at;) {
        size_t n = strcspn(at, "+"), i = 0,
               n_names = sizeof compress_names / sizeof *compress_names;
        while (i < n_names &&
               (strlen(compress_names[i].name) != n || strncmp(compress_names[i].name, at, n)))
            i++;
        if (i == n_names)
            return mti_options_refuse(o,
                                      "--compress: \"%.60s\" is no good; give none, or some of "
                                      "bf16, 8bit, bits, seed, signs joined by +",
                                      arg);
        o->spending.compress |= compress_names[i].rules;
        at = at[n] ? at + n + 1 : NULL;
    }
    return true;
}

const char *mti_compress_text(char buf[MTI_COMPRESS_TEXT], unsigned rules)
{
    size_t n = 0;
    *buf = 0;
    for (size_t i = 1; i < sizeof compress_names / sizeof *compress_names; i++)
        if (rules & compress_names[i].rules)
            n += (size_t)snprintf(buf + n, MTI_COMPRESS_TEXT - n, "%s%s", n ? "+" : "",
                                  compress_names[i].name);
    return n ? buf : compress_names[0].name;
}

bool mti_parse_loss_scale(mti_options *o, const char *arg)
{
    char *end;
    double value = strtod(arg, &end);
    bool number = end != arg && !*end && strchr("0123456789.", *arg) && isfinite(value);
    if (!strcmp(arg, "none"))
        o->spending.loss_scale = 0;
    else if (!strcmp(arg, "dynamic"))
        o->spending.loss_scale = -1;
    else if (number && value >= 1 && value <= 0x1p40)
        o->spending.loss_scale = value;
    else
        return mti_options_refuse(o,
                                  "--loss-scale: \"%.40s\" is no good; give one of none, dynamic, "
                                  "a number from 1 to 2^40",
                                  arg);
    return true;
}

/* Choices that only make sense together. */
bool mti_check_spending(mti_options *o)
{
    const mti_spending *s = &o->spending;
    const char *dtype = mt_dtype_name(o->config.dtype);
    bool grouped = s->checkpoint && (!strcmp(s->checkpoint, "sqrt") || strchr(s->checkpoint, '='));
    if (grouped && !mti_is_whole(o->config.kind))
        return mti_options_refuse(o,
                                  "--checkpoint %.20s: groups the layers of a gpt, bert or llama, "
                                  "and %s has none",
                                  s->checkpoint, mt_model_kind_name(o->config.kind));
    if (o->config.kind == MT_MODEL_MLP && s->checkpoint && !strcmp(s->checkpoint, "selective"))
        return mti_options_refuse(
            o, "--checkpoint selective: an mlp has no attention to recompute; give none or full");
    if (o->verb == MTI_TRAIN && s->lora_rank && !o->from && !o->resume)
        return mti_options_refuse(
            o, "--lora-rank needs --from: adapters are trained beside weights that have learnt");
    if (s->amp && o->config.dtype != MT_F32)
        return mti_options_refuse(o, "--amp: the parameters are %s; it needs --dtype f32", dtype);
    if (s->master && mt_dtype_size(o->config.dtype) != 2)
        return mti_options_refuse(
            o, "--master-weights: the parameters are %s; they need --dtype bf16 or f16", dtype);
    return true;
}
