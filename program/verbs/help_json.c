/* help_json.c: `memtape help --json`: what there is to type, with presets and GPUs, for programs
 * that read it. */
#include "files/json_text.h"
#include "fit/search.h"
#include "options/option_table.h"
#include "verbs/verbs.h"

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

/* Whether a value may be another than the choices: some of them, joined, or a number in place of
 * one. */
static bool takes_others(const mti_option_row *r)
{
    return r->form == MTI_SOME || r->form == MTI_RECIPE || r->form == MTI_CHECKPOINT ||
           r->form == MTI_RESHARD || r->form == MTI_ROUTING_TEXT;
}

static json_t *option_json(const mti_option_row *r, const char *group)
{
    const char letter[2] = {(char)r->letter, 0};
    json_t *choices = r->choice ? json_array() : json_null();
    for (int i = 0; r->choice && i < r->choice->n; i++)
        json_array_append_new(choices, json_string(r->choice->names[i]));
    return json_pack("{s:s, s:s?, s:s?, s:s?, s:s?, s:b, s:o, s:o, s:o, s:b, s:s, s:{}}", "name",
                     r->name, "letter", *letter ? letter : NULL, "argument", r->arg, "key",
                     mti_key_name(r->key), "group", r->key ? NULL : group, "several",
                     r->form == MTI_LIST, "verbs", names_json(r->verbs, MTI_VERB_COUNT, verb_name),
                     "models", names_json(r->models, MT_MODEL_KIND_COUNT, model_name), "choices",
                     choices, "others", takes_others(r), "text", r->doc, "defaults");
}

/* Each with its defaults, by the verbs' names. */
static json_t *options_json(void)
{
    json_t *options = json_array();
    const char *group = "";
    char value[MTI_VALUE_TEXT];
    mti_options o;
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        if (mti_option_rows[id].heading) group = mti_option_rows[id].heading;
        json_array_append_new(options, option_json(&mti_option_rows[id], group));
    }
    for (int v = 0; v < MTI_VERB_COUNT; v++) {
        mti_option_defaults(&o, mti_verb_rules_of((mti_verb)v));
        for (int id = 0; id < MTI_OPTION_COUNT; id++) {
            const mti_option_row *r = &mti_option_rows[id];
            json_t *defaults = json_object_get(json_array_get(options, (size_t)id), "defaults");
            const char *text =
                mti_takes((mti_verb)v, r) ? mti_option_default_text(&o, r, value) : NULL;
            if (text) json_object_set_new(defaults, verb_name(v), json_string(text));
        }
    }
    return options;
}

static json_t *recipes_json(void)
{
    json_t *recipes = json_array(), *sets = NULL;
    const mti_recipe_entry *e;
    for (size_t i = 0; (e = mti_recipe_entry_at(i)); i++) {
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
    json_t *verbs = json_array();
    for (int v = 0; v < MTI_VERB_COUNT; v++) {
        const mti_verb_info *info = mti_verb_get((mti_verb)v);
        json_array_append_new(verbs,
                              json_pack("{s:s, s:s, s:s, s:s}", "name", info->name, "arguments",
                                        info->args, "text", info->doc, "example", info->example));
    }
    json_t *root =
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "verbs", verbs, "options", options_json(), "recipes",
                  recipes_json(), "presets", presets_json(), "gpus", gpus_json());
    char *text = root && !mti_failed_since(failures) ? mti_json_text(root, JSON_INDENT(2)) : NULL;
    if (text) mti_print(out, "%s\n", text);
    json_decref(root);
    mti_free(text);
    return text || mti_fail_bool(MT_ERR_MEMORY, "host memory: none left to write help as JSON");
}
