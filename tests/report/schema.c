/* schema.c: prints the JSON Schema of what a verb writes, as the program itself knows it:
 * schema VERB. test_schema.py compares docs/schema with it. */
#include <stdio.h>
#include <string.h>
#include "cli/verbs.h"
#include "report/results.h"

int main(int argc, char **argv)
{
    static const struct {
        const char *verb;
        json_t *(*make)(void);
    } all[] = {{"profile", mti_profile_schema}, {"plan", mti_plan_schema},
               {"sweep", mti_sweep_schema},     {"fit", mti_fit_schema},
               {"serve", mti_serve_schema},     {"ranks", mti_ranks_schema},
               {"train", mti_training_schema},  {"audit", mti_audit_schema}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (argc != 2 || strcmp(argv[1], all[i].verb)) continue;
        json_t *schema = all[i].make();
        json_t *categories = mti_schema_of(mti_describe_categories, mti_zeros);
        json_object_set_new(schema, "$defs", json_pack("{s:o}", "categories", categories));
        return mti_json_write(schema, "-") != MT_OK;
    }
    fprintf(stderr, "schema: give a verb whose JSON has a schema\n");
    return 2;
}
