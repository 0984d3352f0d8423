/* help.c: what there is to type, as text and as JSON: verbs, options, recipes and their
 * keys, and in JSON the presets and GPUs as well. */
#include <string.h>
#include "files/json_text.h"
#include "fit/search.h"
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
    const char *value = mti_option_text(o, r, buf);
    const bool is_zero = r->form != MTI_CHOICE && (!strcmp(value, "0") || !strcmp(value, "0B"));
    snprintf(doc, sizeof doc, "%s", r->doc);
    for (int i = 0; r->choice && i < r->choice->n; i++)
        mti_append(doc, sizeof doc, "%s%s", i ? ", " : ": ", r->choice->names[i]);
    if (r->arg && !is_zero && *value > ' ') mti_append(doc, sizeof doc, " (default %s)", value);
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
        if (heading && all) mti_print(out, "\n %s\n", heading);
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
    defaults.workload.config = defaults.given_config;
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

/* A recipe, with no option, or one of its rows. */
static const struct recipe_entry {
    mti_recipe_group group;
    const char *name, *value, *text;
    mti_option option;
} recipe_entries[] = {
#define RECIPE(id, name, group, doc)             {MTI_RECIPES_##group, name, NULL, doc, MTI_OPTION_COUNT},
#define ROW(recipe, option, value, when, source) {0, NULL, value, source, MTI_O_##option},
#include "options/recipes.def"
#undef RECIPE
#undef ROW
};

/* A row of a recipe: "--loss f32", or "swiglu=unfused", and its source. */
static void put_recipe_row(FILE *out, const struct recipe_entry *e)
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
    for (size_t i = 0; i < sizeof recipe_entries / sizeof *recipe_entries; i++) {
        const struct recipe_entry *e = &recipe_entries[i];
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

/* ---- JSON ---- */

/* The names of the set's members; `name` says which an index has. */
static json_t *names_json(unsigned set, int n, const char *(*name)(int i))
{
    json_t *names = json_array();
    for (int i = 0; i < n; i++)
        if (set >> i & 1) json_array_append_new(names, json_string(name(i)));
    return names;
}
static const char *verb_name(int i) { return mti_verb_get((mti_verb)i)->name; }
static const char *model_name(int i) { return mt_model_kind_name((mt_model_kind)i); }

static json_t *option_json(const mti_option_row *r)
{
    const char letter[2] = {(char)r->letter, 0};
    json_t *choices = r->choice ? json_array() : json_null();
    for (int i = 0; r->choice && i < r->choice->n; i++)
        json_array_append_new(choices, json_string(r->choice->names[i]));
    return json_pack(
        "{s:s, s:s?, s:s?, s:s?, s:b, s:o, s:o, s:o, s:s}", "name", r->name, "letter",
        *letter ? letter : NULL, "argument", r->arg, "key", mti_key_name(r->key), "several",
        r->form == MTI_LIST, "verbs", names_json(r->verbs, MTI_VERB_COUNT, verb_name), "models",
        names_json(r->models, MT_MODEL_KIND_COUNT, model_name), "choices", choices, "text", r->doc);
}

static json_t *recipes_json(void)
{
    json_t *recipes = json_array(), *sets = NULL;
    for (size_t i = 0; i < sizeof recipe_entries / sizeof *recipe_entries; i++) {
        const struct recipe_entry *e = &recipe_entries[i];
        if (e->name)
            json_array_append_new(recipes, json_pack("{s:s, s:s, s:s, s:o}", "name", e->name,
                                                     "says", mti_recipe_group_text(e->group),
                                                     "text", e->text, "sets", sets = json_array()));
        else
            json_array_append_new(sets, json_pack("{s:s, s:s?, s:s}", "option",
                                                  mti_option_rows[e->option].name, "value",
                                                  e->value, "source", e->text));
    }
    return recipes;
}

static json_t *presets_json(void)
{
    json_t *names = json_array();
    for (size_t i = 0; mt_model_preset_name(i); i++)
        json_array_append_new(names, json_string(mt_model_preset_name(i)));
    return names;
}

static json_t *gpus_json(void)
{
    json_t *gpus = json_array();
    const mt_gpu *g;
    for (size_t i = 0; (g = mt_gpu_at(i)); i++)
        json_array_append_new(gpus, json_pack("{s:s, s:I, s:I, s:b}", "name", g->name, "memory",
                                              (json_int_t)g->memory, "kept_aside",
                                              (json_int_t)mti_gpu_kept_aside(g, 1), "f16_only",
                                              g->f16_only));
    return gpus;
}

bool mti_help_json(FILE *out)
{
    const uint64_t failures = mti_failures();
    json_t *verbs = json_array(), *options = json_array();
    for (int v = 0; v < MTI_VERB_COUNT; v++) {
        const mti_verb_info *info = mti_verb_get((mti_verb)v);
        json_array_append_new(verbs,
                              json_pack("{s:s, s:s, s:s, s:s}", "name", info->name, "arguments",
                                        info->args, "text", info->doc, "example", info->example));
    }
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        json_array_append_new(options, option_json(&mti_option_rows[id]));
    json_t *root =
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "verbs", verbs, "options", options, "recipes",
                  recipes_json(), "presets", presets_json(), "gpus", gpus_json());
    char *text = root && !mti_failed_since(failures) ? mti_json_text(root, JSON_INDENT(2)) : NULL;
    if (text) mti_print(out, "%s\n", text);
    json_decref(root);
    mti_free(text);
    return text || mti_fail_bool(MT_ERR_MEMORY, "host memory: none left to write help as JSON");
}
