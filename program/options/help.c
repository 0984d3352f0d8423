/* help.c: what there is to type: a verb's options, recipes and their keys. */
#include <string.h>
#include "options/option_table.h"

/* ---- options ---- */

#define LONGEST_DOC 800
#define DOC_COLUMN  29 /* where the text of an option begins */
#define WIDTH       79
#define FEW         20 /* options that are listed in any case */

/* Goes on from `column` and begins new lines at `indent`. */
static void put_wrapped(FILE *out, const char *text, int column, int indent)
{
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column > indent && column + 1 + n > WIDTH) {
            mti_print(out, "\n%*s", indent, "");
            column = indent;
        }
        column += mti_print(out, "%s%.*s", column > indent ? " " : "", n, text);
        text += n + strspn(text + n, " ");
    }
    fputc('\n', out);
}

/* The text begins in its column, or below a term that is wider. */
static void put_text(FILE *out, int column, const char *text)
{
    mti_print(out, column < DOC_COLUMN ? "%*s" : "\n%*s",
              column < DOC_COLUMN ? DOC_COLUMN - column : DOC_COLUMN, "");
    put_wrapped(out, text, DOC_COLUMN, DOC_COLUMN);
}

static void put_option(FILE *out, const mti_options *o, const mti_option_row *r, bool example)
{
    char buf[MTI_VALUE_TEXT], doc[LONGEST_DOC], letter[8] = "    ";
    const char *value = mti_option_default_text(o, r, buf);
    snprintf(doc, sizeof doc, "%s", r->doc);
    for (int i = 0; r->choice && i < r->choice->n; i++)
        mti_append(doc, sizeof doc, "%s%s", i ? ", " : ": ", r->choice->names[i]);
    if (value) mti_append(doc, sizeof doc, " (default %s)", value);
    if (example) mti_append(doc, sizeof doc, "; for example %s", r->example);
    if (r->letter) snprintf(letter, sizeof letter, "-%c, ", r->letter);
    int column = mti_print(out, "  %s%s%s%s%s", r->key ? "" : letter, r->key ? "" : "--", r->name,
                           r->arg ? "=" : "", r->arg ? r->arg : "");
    put_text(out, column, doc);
}

/* All of them, under their headings, or those that matter most. */
static void put_options(FILE *out, const mti_options *o, bool all)
{
    const char *heading = NULL;
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (r->heading) heading = r->heading;
        if (!mti_takes(o->verb, r) || r->key || !(all || r->example)) continue;
        if (heading && all) mti_print(out, "\n %s:\n", heading);
        heading = NULL; /* once */
        put_option(out, o, r, !all);
    }
}

/* Those that the verb takes, if there are some. */
static void put_keys_of(FILE *out, const mti_options *o, mti_key_of owner)
{
    bool any = false;
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (r->key != owner || !mti_takes(o->verb, r)) continue;
        if (!any)
            mti_print(out, "\n Details of %s, after a colon, as in %s:\n", mti_key_owner(o, owner),
                      mti_key_example(owner));
        any = true;
        put_option(out, o, r, false);
    }
}

void mti_options_help(const mti_verb_rules *rules, const char *name, bool all, FILE *out)
{
    const mti_verb_info *info = mti_verb_get(rules->verb);
    mti_options defaults;
    int n = 0;
    mti_option_defaults(&defaults, rules);
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        n += mti_takes(rules->verb, &mti_option_rows[id]) && !mti_option_rows[id].key;
    all = all || n <= FEW;
    mti_print(out, "Usage: %s%s%s [OPTION...]\n", name, *info->args ? " " : "", info->args);
    put_wrapped(out, info->doc, 0, 0);
    mti_print(out, "\nFor example: %s\n", info->example);
    if (!all) fputs("\nThe options that matter most:\n\n", out);
    put_options(out, &defaults, all);
    for (int owner = MTI_KEY_MODEL; all && owner < MTI_KEY_OWNERS; owner++)
        if (owner != MTI_KEY_RECIPE) put_keys_of(out, &defaults, (mti_key_of)owner);
    if (!all) mti_print(out, "\n%s --help all: all %d options, in groups\n", name, n);
}

/* ---- recipes ---- */

/* A row of a recipe: "--loss f32", or "swiglu=unfused", and its source. */
static void put_recipe_row(FILE *out, const mti_recipe_entry *e)
{
    const mti_option_row *r = &mti_option_rows[e->option];
    put_text(out,
             mti_print(out, "  %s%s%s%s", r->key ? "" : "--", r->name,
                       !e->value ? ""
                       : r->key  ? "="
                                 : " ",
                       e->value ? e->value : ""),
             e->text);
}

static void put_keys(FILE *out)
{
    mti_options defaults;
    const mti_verb_rules profile = {MTI_PROFILE};
    mti_option_defaults(&defaults, &profile);
    put_wrapped(
        out,
        "Keys are details of a stack. They follow the names after a colon, joined by commas: "
        "--recipe fsdp2:reshard=never,rs-buffers=2. With plain, which is no stack, they change "
        "memtape's own ops: --recipe plain:swiglu=unfused.",
        0, 0);
    fputc('\n', out);
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        if (mti_option_rows[id].key == MTI_KEY_RECIPE)
            put_option(out, &defaults, &mti_option_rows[id], false);
}

bool mti_recipes_help(FILE *out, const char *name)
{
    int group = -1;
    bool shown = false, any = false;
    if (!name)
        put_wrapped(
            out,
            "Usage: --recipe NAME, or several of different groups, joined by +. A recipe sets "
            "options as a stack has them, except those given and those without an effect; "
            "each is shown with its source. Of several rows of an option the first that holds "
            "is set; of several recipes the one that is listed later wins.",
            0, 0);
    const mti_recipe_entry *e;
    for (size_t i = 0; (e = mti_recipe_entry_at(i)); i++) {
        if (e->name) shown = !name || !strcmp(name, e->name);
        if (!shown) continue;
        any = true;
        if (e->name && group != (int)e->group && !name)
            mti_print(out, "\nAt most one of these, which say %s:\n",
                      mti_recipe_group_text(e->group));
        if (e->name) {
            group = (int)e->group;
            mti_print(out, "%s%s: %s\n", name ? "" : "\n", e->name, e->text);
        } else
            put_recipe_row(out, e);
    }
    any = any || !strcmp(name, "plain");
    if (any) fputc('\n', out);
    if (any) put_keys(out);
    return any;
}
