/* test_row.c: an option is a row of options.def. This program is made from the room's sources,
 * whose options.def has one more row (planted.def); no other file knows the option. */
#include <stdlib.h>
#include "options/rows.h"
#include "mtt.h"

static const mti_verb_rules generates = {MTI_GENERATE}, profiles = {MTI_PROFILE};

static bool parse(mti_options *o, const mti_verb_rules *rules, const char *word, const char *value)
{
    char *words[] = {"memtape", (char *)word, (char *)value, NULL};
    return mti_options_parse(o, rules, NULL, 3, words, true);
}

static void its_value_reaches_its_field(void **state)
{
    (void)state;
    mti_options o;
    assert_true(parse(&o, &generates, "--planted", "5"));
    assert_true(o.given[MTI_O_PLANTED]);
    assert_int_equal(o.tokens, 5);
    mti_options_free(&o);
    assert_true(parse(&o, &generates, "--planted-too", "6"));
    assert_int_equal(o.tokens, 6);
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
    assert_string_equal(o.error, "did you mean --planted?");
    mti_options_free(&o);
    assert_false(parse(&o, &profiles, "--planted", "5"));
    mti_options_free(&o);
}

static void its_condition_is_asked(void **state)
{
    (void)state;
    mti_options o;
    char *words[] = {"memtape", "--planted", "5", "--temperature", "0", NULL};
    assert_false(mti_options_parse(&o, &generates, NULL, 5, words, true));
    assert_string_equal(o.error,
                        "--planted: with --temperature 0 the likeliest byte is always taken");
    mti_options_free(&o);
}

static void help_lists_it(void **state)
{
    (void)state;
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    mti_options_help(&generates, "memtape generate", out);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(text, "--planted=N"));
    assert_non_null(strstr(text, "a planted option (default 256)"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(its_value_reaches_its_field),
        cmocka_unit_test(other_values_and_verbs_are_refused),
        cmocka_unit_test(its_condition_is_asked),
        cmocka_unit_test(help_lists_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
