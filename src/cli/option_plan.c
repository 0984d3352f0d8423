/* option_plan.c: the values of options that a plan takes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "cli/option_rows.h"
#include "nn/model.h"

/* "300e9", "300G", "300B", "1.4T", "312T" */
bool mti_parse_scaled(mti_options *o, const mti_option_row *r, const char *arg)
{
    static const struct {
        char letter;
        double times;
    } suffixes[] = {{0, 1},     {'k', 1e3},  {'M', 1e6}, {'G', 1e9},
                    {'B', 1e9}, {'T', 1e12}, {'P', 1e15}};
    char *end;
    double value = strtod(arg, &end);
    bool number = end != arg && strchr(".0123456789", *arg) && !strchr("xX", arg[1] ? arg[1] : ' ');
    for (size_t i = 0; number && i < sizeof suffixes / sizeof *suffixes; i++) {
        bool this_one = *end == suffixes[i].letter && (!*end || !end[1]);
        double scaled = value * suffixes[i].times;
        if (!this_one || !(scaled >= r->min && scaled <= r->max)) continue;
        *(double *)((char *)o + r->at) = scaled;
        return true;
    }
    return mti_options_refuse(o,
                              "--%s: \"%.40s\" is no good; give a number from %g to %g, such as "
                              "300e9, 300B, 312T",
                              r->name, arg, r->min, r->max);
}

/* What a plan assumes where nothing is said: 16 bits, and sequences as long as the model takes. */
void mti_plan_defaults(mti_options *o, mt_model_config *base)
{
    if (!o->given[MTI_O_DTYPE]) base->dtype = MT_BF16;
    if (!o->given[MTI_O_SEQ] && base->context) o->seq = base->context;
    if (o->plan.recompute && !o->given[MTI_O_CHECKPOINT]) o->spending.checkpoint = "full";
}

bool mti_check_plan(mti_options *o)
{
    const mti_plan_options *p = &o->plan;
    if (p->recompute && o->given[MTI_O_CHECKPOINT])
        return mti_options_refuse(
            o, "--recompute is --checkpoint full; give one of --recompute and --checkpoint");
    if (p->utilisation == 0)
        return mti_options_refuse(o, "--utilisation: 0 never ends; give a number above 0, up to 1");
    if (p->parameters != floor(p->parameters))
        return mti_options_refuse(o, "--params: %g is no whole number", p->parameters);
    if (o->given[MTI_O_KV] && p->kv > o->config.context - o->seq)
        return mti_options_refuse(
            o, "--kv %lld: with --seq %lld that is longer than the model's context, %lld",
            (long long)p->kv, (long long)o->seq, (long long)o->config.context);
    return true;
}
