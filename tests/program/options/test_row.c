/* test_row.c: an option is a row of options.def. This program is made from the room's sources,
 * whose options.def has one more row (planted.def); no other file knows the option. */
#include <stdlib.h>
#include "options/option_table.h"
#include "mtt.h"

static const mti_verb_rules generates = {MTI_GENERATE}, profiles = {MTI_PROFILE},
                            plans = {MTI_PLAN}, fits = {MTI_FIT};

static bool parse(mti_options *o, const mti_verb_rules *rules, const char *word, const char *value)
{
    char *words[] = {"memtape", (char *)word, (char *)value, NULL};
    return mti_options_parse(o, rules, NULL, 3, words);
}

static void its_value_reaches_its_field(void **state)
{
    (void)state;
    mti_options o;
    assert_true(parse(&o, &generates, "--planted", "5"));
    assert_true(mti_is_given(&o, MTI_O_PLANTED));
    assert_int_equal(o.generate.tokens, 5);
    mti_options_free(&o);
    assert_true(parse(&o, &generates, "--planted-too", "6"));
    assert_int_equal(o.generate.tokens, 6);
    mti_options_free(&o);
}

static void other_values_and_verbs_are_refused(void **state)
{
    (void)state;
    mti_options o;
    assert_false(parse(&o, &generates, "--planted", "8"));
    assert_string_equal(o.error, "--planted: \"8\" is not a whole number from 3 to 7");
    mti_options_free(&o);
    assert_false(parse(&o, &generates, "--plented", "5"));
    assert_string_equal(o.error, "--plented: unrecognized option; did you mean --planted?");
    mti_options_free(&o);
    assert_false(parse(&o, &profiles, "--planted", "5"));
    mti_options_free(&o);
}

static void its_condition_is_asked(void **state)
{
    (void)state;
    mti_options o;
    char *words[] = {"memtape", "--planted", "5", "--temperature", "0", NULL};
    assert_false(mti_options_parse(&o, &generates, NULL, 5, words));
    assert_string_equal(o.error,
                        "--planted: with --temperature 0 the likeliest token is always taken");
    mti_options_free(&o);
}

/* What another option needs, and what excludes it, are in its row, too. */
static void options_beside_it_are_asked(void **state)
{
    (void)state;
    mti_options o;
    char *needs[] = {"memtape", "mlp", "--lora-targets", "fc", NULL};
    assert_false(mti_options_parse(&o, &profiles, NULL, 4, needs));
    assert_string_equal(o.error, "--lora-targets needs --lora-rank R, for example --lora-rank 16");
    mti_options_free(&o);
    char *in_plan[] = {"memtape", "gpt", "--utilisation", "0.5", NULL};
    assert_false(mti_options_parse(&o, &plans, NULL, 4, in_plan));
    assert_string_equal(o.error, "--utilisation needs --tokens N, for example --tokens 300B");
    mti_options_free(&o);
    char *in_fit[] = {"memtape", "gpt2", "--utilisation", "0.5", NULL};
    assert_true(mti_options_parse(&o, &fits, NULL, 4, in_fit));
    mti_options_free(&o);
    char *both[] = {"memtape", "gpt", "--checkpoint", "full", "--budget", "1GiB", NULL};
    assert_false(mti_options_parse(&o, &profiles, NULL, 6, both));
    assert_string_equal(o.error, "--checkpoint and --budget: give one of the two");
    mti_options_free(&o);
}

static void help_lists_it(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    mti_options_help(&generates, "memtape generate", true, out);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(text, "--planted=N"));
    assert_non_null(strstr(text, "a planted option (default 256)"));
    free(text);
}

static void examples_are_of_their_options(void **state)
{
    (void)state;
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        const mti_option_row *r = &mti_option_rows[id];
        if (!r->example) continue;
        char name[40], letter[4];
        snprintf(name, sizeof name, "--%s", r->name);
        snprintf(letter, sizeof letter, "-%c", r->letter);
        size_t n = strcspn(r->example, " ");
        assert_true((strlen(name) == n && !strncmp(r->example, name, n)) ||
                    (n == 2 && !strncmp(r->example, letter, n)));
        assert_true(!r->arg == !r->example[n]);
    }
}

static const char *const words_of[] = {
    "",
#define CONDITION(id, scope, test, words) words,
#include "options/conditions.def"
#undef CONDITION
};

/* Every {name} in a condition's words is a value that each verb of the option has. */
static void words_name_values_that_there_are(void **state)
{
    (void)state;
    static const char *const others[] = {"model", "an optimizer", "an elementwise optimizer"};
    int n = 0;
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        for (size_t i = 0; i < sizeof mti_option_rows[id].when / sizeof(uint16_t); i++) {
            const unsigned all = mti_option_rows[id].when[i], of = all >> MTI_OF_VERB;
            const unsigned when = all & ((1u << MTI_OF_VERB) - 1);
            const char *at = when < MTI_NEEDS ? words_of[when] : "";
            while ((at = strchr(at, '{'))) {
                char name[40];
                snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "}") - 1, at + 1);
                at++;
                bool known = false;
                for (int k = 0; k < 3; k++) known = known || !strcmp(name, others[k]);
                for (int v = 0; v < MTI_VERB_COUNT && !known; v++)
                    if (mti_takes((mti_verb)v, &mti_option_rows[id]) &&
                        (!of || of == (unsigned)v + 1))
                        assert_non_null(mti_option_find((mti_verb)v, name));
                n++;
            }
        }
    assert_true(n > 15);
}

static void a_long_value_is_cut(void **state)
{
    (void)state;
    mti_options o;
    char value[2000];
    memset(value, '0', sizeof value);
    memcpy(value, "every=", 6);
    strcpy(value + sizeof value - 2, "3");
    char *words[] = {"memtape", "mlp", "--checkpoint", value, NULL};
    assert_false(mti_options_parse(&o, &profiles, NULL, 4, words));
    assert_non_null(strstr(o.error, "groups the layers of a gpt, bert or llama, and mlp has none"));
    mti_options_free(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_value_reaches_its_field),
        cmocka_unit_test(other_values_and_verbs_are_refused),
        cmocka_unit_test(its_condition_is_asked),
        cmocka_unit_test(options_beside_it_are_asked),
        cmocka_unit_test(help_lists_it),
        cmocka_unit_test(examples_are_of_their_options),
        cmocka_unit_test(words_name_values_that_there_are),
        cmocka_unit_test(a_long_value_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
