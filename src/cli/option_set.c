/* option_set.c: setting one option by its name, after parsing. */
#include <string.h>
#include "cli/option_rows.h"

/* Whether rows of a sweep may differ in the option. */
static bool may_vary(const mti_option_row *r)
{
    static const mti_option fixed[] = {MTI_O_OVER, MTI_O_ROW,  MTI_O_SVG,  MTI_O_HTML,
                                       MTI_O_JSON, MTI_O_HELP, MTI_O_QUIET};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (r->id == fixed[i]) return false;
    return true;
}

/* The verb's option of that name; NULL if it has none. */
static const mti_option_row *find(mti_verb verb, const char *name)
{
    for (size_t i = 0; i < mti_n_option_aliases; i++)
        if (!strcmp(mti_option_aliases[i].name, name))
            name = mti_option_row_of(mti_option_aliases[i].id)->name;
    for (size_t i = 0; i < mti_n_option_rows; i++)
        if (!strcmp(mti_option_rows[i].name, name) && mti_option_rows[i].verbs >> verb & 1)
            return &mti_option_rows[i];
    return NULL;
}

bool mti_options_set(mti_options *o, const char *name, const char *value)
{
    const mti_option_row *r = find(o->verb, name);
    if (!strcmp(name, "model") && value) {
        o->workload.name = value;
        return true;
    }
    if (!r || !may_vary(r))
        return mti_options_refuse(o, "--%.40s: is not an option that rows may differ in", name);
    if (r->form != MTI_FLAG) {
        if (value) return mti_option_read(o, r, value);
        return mti_options_refuse(o, "--%s: needs a value, %s", r->name, r->arg);
    }
    bool yes = !value || !strcmp(value, "yes");
    if (!yes && strcmp(value, "no") != 0)
        return mti_options_refuse(o, "--%s: \"%.40s\" is not yes or no", r->name, value);
    o->given[r->id] = yes;
    *(bool *)((char *)o + r->at) = yes;
    return true;
}
