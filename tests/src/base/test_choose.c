/* Choosing a name from a list, and the refusal of unknown names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"

static const mti_choice acts = {"act", MTI_NAMES("relu", "gelu", "gelu_tanh", "silu")};

static void a_name_gives_its_position(void **state)
{
    (void)state;
    int at = -1;
    assert_int_equal(mti_choice_parse(&acts, "gelu_tanh", &at), MT_OK);
    assert_int_equal(at, 2);
    assert_string_equal(mti_choice_name(&acts, 3), "silu");
    assert_string_equal(mti_choice_name(&acts, 4), "unknown");
    assert_string_equal(mti_choice_name(&acts, -1), "unknown");
}

static void expect(const char *word, const char *text)
{
    int at = 7;
    assert_int_equal(mti_choice_parse(&acts, word, &at), MT_ERR_ARGUMENT);
    assert_int_equal(at, 7);
    assert_string_equal(mt_last_error(), text);
    mt_clear_error();
}

static void an_unknown_name_is_refused_with_the_list_and_the_likeliest_name(void **state)
{
    (void)state;
    expect("gleu", "act: unknown \"gleu\", did you mean gelu? choose relu, gelu, gelu_tanh, silu");
    expect("rleu", "act: unknown \"rleu\", did you mean relu? choose relu, gelu, gelu_tanh, silu");
    expect("foo", "act: unknown \"foo\"; choose relu, gelu, gelu_tanh, silu");
    expect("", "act: unknown \"\"; choose relu, gelu, gelu_tanh, silu");
    expect(NULL, "act: the name is NULL; choose relu, gelu, gelu_tanh, silu");
    assert_int_equal(mti_choice_parse(&acts, "relu", NULL), MT_ERR_ARGUMENT);
    mt_clear_error();
}

static void names_are_similar_if_few_letters_differ(void **state)
{
    (void)state;
    static const struct {
        const char *word, *nearest;
    } cases[] = {{"batc", "batch"},   {"bacth", "batch"},           {"batchs", "batch"},
                 {"btch", "batch"},   {"checkpiont", "checkpoint"}, {"b", NULL},
                 {"optimizer", NULL}, {"chekpoints", "checkpoint"}, {"", NULL}};
    static const char *const names[] = {"batch", "checkpoint", "act"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = mti_nearest(names, 3, cases[i].word);
        if (cases[i].nearest)
            assert_string_equal(got, cases[i].nearest);
        else
            assert_null(got);
    }
    char longer_than_any_name[200];
    memset(longer_than_any_name, 'a', sizeof longer_than_any_name);
    longer_than_any_name[199] = 0;
    assert_null(mti_nearest(names, 3, longer_than_any_name));
}

static void case_and_what_is_between_letters_do_not_tell_words_apart(void **state)
{
    (void)state;
    static const char *const names[] = {"a100-40", "a100-80", "llama-3.1-8b", "h100", "h100-pcie"};
    static const struct {
        const char *word;
        int at;
        const char *meant;
    } cases[] = {{"A100_80", 1, "a100-80"},
                 {"Llama 3.1 8B", 2, "llama-3.1-8b"},
                 {"H100", 3, "h100 or h100-pcie"},
                 {"a100", -1, "a100-40 or a100-80"},
                 {"h10", -1, "h100 or h100-pcie"},
                 {"llama-3.1-8", -1, "llama-3.1-8b"},
                 {"h", -1, ""},
                 {"x", -1, ""},
                 {"", -1, ""},
                 {"h1000", -1, "h100"}};
    char meant[100];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(mti_find_word(names, 5, cases[i].word), cases[i].at);
        assert_string_equal(mti_meant(meant, sizeof meant, names, 5, cases[i].word),
                            cases[i].meant);
    }
    static const char *const twins[] = {"a-b", "ab"};
    assert_int_equal(mti_find_word(twins, 2, "AB"), -1); /* either */
    assert_int_equal(mti_find_word(twins, 2, "ab"), 1);
    assert_true(mti_same_word("-_", "") && mti_same_word("a.B", "A b") &&
                !mti_same_word("a", "ab"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_gives_its_position),
        cmocka_unit_test(an_unknown_name_is_refused_with_the_list_and_the_likeliest_name),
        cmocka_unit_test(names_are_similar_if_few_letters_differ),
        cmocka_unit_test(case_and_what_is_between_letters_do_not_tell_words_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
