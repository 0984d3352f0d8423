/* schema.c: prints the JSON Schema of what a verb writes, made by the functions that list the keys
 * of its JSON: schema VERB. test_schema.py compares docs/schema with it. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include "verbs/explain.h"
#include "verbs/verbs.h"
#include "report/results.h"

static const max_align_t zeros[1 << 14]; /* more than any struct has */

/* Listed so far: {"properties": {...}, "required": [...]}. */
static json_t *now;

static json_t *object_of(mti_describe *describe, const void *blank);

static void add_names(json_t *j, const mti_field_type *type)
{
    json_t *list = json_array();
    for (int i = 0; i < type->n; i++) json_array_append_new(list, json_string(type->names[i]));
    json_object_set_new(j, "enum", list);
}

static json_t *schema_of(const mti_field_type *type)
{
    if (!strcmp(type->name, "const")) return json_pack("{s:s}", "const", type->names[0]);
    if (type->describe == mti_describe_categories)
        return json_pack("{s:s}", "$ref", "#/$defs/categories");
    const void *blank = type->structs ? zeros : type->object;
    if (!strcmp(type->name, "object")) return object_of(type->describe, blank);
    json_t *j = json_pack("{s:s}", "type", type->name);
    if (!strcmp(type->name, "array"))
        json_object_set_new(j, "items",
                            type->describe ? object_of(type->describe, blank)
                                           : json_pack("{s:s}", "type", "integer"));
    if (!strcmp(type->name, "integer") && type->least > INT_MIN)
        json_object_set_new(j, "minimum", json_integer(type->least));
    if (!strcmp(type->name, "integer") && type->most < INT_MAX)
        json_object_set_new(j, "maximum", json_integer(type->most));
    if (type->n) add_names(j, type);
    return j;
}

static void note(mti_fields *f, const char *key, const mti_field_type *type)
{
    json_t *outer = now, *schema = schema_of(type);
    now = outer;
    if (f->or_null) {
        json_t *names = json_object_get(schema, "enum");
        json_object_set_new(schema, "type",
                            json_pack("[O,s]", json_object_get(schema, "type"), "null"));
        if (names) json_array_append_new(names, json_null());
    }
    json_object_set_new(json_object_get(now, "properties"), key, schema);
    if (!f->or_absent && !f->optional)
        json_array_append_new(json_object_get(now, "required"), json_string(key));
}

static json_t *object_of(mti_describe *describe, const void *blank)
{
    json_t *outer = now, *made;
    mti_fields f = {.note = note};
    made = now = json_pack("{s:s,s:{},s:[]}", "type", "object", "properties", "required");
    describe(&f, blank);
    now = outer;
    return made;
}

static json_t *schema_for(const char *verb)
{
    const mti_plan_result plan = {.workload = (const void *)zeros, .options = (const void *)zeros};
    const mti_fit_report fit = {.result = (const void *)zeros,
                                .remedies = (const void *)zeros,
                                .workload = (const void *)zeros};
    const mti_serve_report serve = {.workload = (const void *)zeros};
    const mti_training training = {.workload = (const void *)zeros, .figures = (const void *)zeros};
    const mti_compared compared = {.runs = {{.what = ""}}};
    const mti_expression_walk explained = {.e = (const void *)zeros};
    const mti_profile_object profile = {.profile = (const void *)zeros};
    if (!strcmp(verb, "profile"))
        return json_pack("{s:[o,o]}", "anyOf", object_of(mti_describe_profile, &profile),
                         object_of(mti_describe_refused, &profile));
    if (!strcmp(verb, "train"))
        return json_pack(
            "{s:s,s:{s:{s:s},s:{s:s,s:i,s:o}},s:[s,s]}", "type", "object", "properties", "schema",
            "const", "memtape.ranks/1", "ranks", "type", "array", "minItems", 2, "items",
            object_of(mti_describe_training, &training), "required", "schema", "ranks");
    const struct {
        const char *verb;
        mti_describe *describe;
        const void *blank;
    } all[] = {{"plan", mti_describe_plan, &plan},
               {"sweep", mti_describe_sweep, zeros},
               {"fit", mti_describe_fit, &fit},
               {"serve", mti_describe_serve, &serve},
               {"compare", mti_describe_compared, &compared},
               {"explain", mti_describe_explained, &explained}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(verb, all[i].verb)) return object_of(all[i].describe, all[i].blank);
    return NULL;
}

int main(int argc, char **argv)
{
    json_t *schema = argc == 2 ? schema_for(argv[1]) : NULL;
    if (!schema) {
        fprintf(stderr, "schema: give a verb whose JSON has a schema\n");
        return 2;
    }
    json_t *categories = object_of(mti_describe_categories, zeros);
    json_object_set_new(schema, "$defs", json_pack("{s:o}", "categories", categories));
    return mti_json_write(schema, "-") != MT_OK;
}
