/* The error that a caller gets. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"

static void expect(mt_status status, const char *text)
{
    assert_int_equal(mt_last_status(), status);
    assert_string_equal(mt_last_error(), text);
}

static void the_last_failure_is_kept_until_it_is_cleared(void **state)
{
    (void)state;
    mt_clear_error();
    expect(MT_OK, "");
    assert_int_equal(mti_fail(MT_ERR_ARGUMENT, "relu: in%d is %s", 0, "[3,5]"), MT_ERR_ARGUMENT);
    expect(MT_ERR_ARGUMENT, "relu: in0 is [3,5]");
    assert_false(mti_fail_bool(MT_ERR_IO, "a later one"));
    expect(MT_ERR_IO, "a later one");
    assert_null(mti_fail_null(MT_ERR_STATE, "after %s", mt_last_error()));
    expect(MT_ERR_STATE, "after a later one");
    mt_clear_error();
    expect(MT_OK, "");
}

static void null_from_an_earlier_failure_is_not_a_new_failure(void **state)
{
    (void)state;
    mt_clear_error();
    assert_true(mti_given(state, "relu", "x"));
    expect(MT_OK, "");
    assert_false(mti_given(NULL, "relu", "x"));
    expect(MT_ERR_ARGUMENT, "relu: x is NULL");
    mti_fail(MT_ERR_MEMORY, "zeros: refused");
    assert_false(mti_given(NULL, "relu", "x"));
    expect(MT_ERR_MEMORY, "zeros: refused");
    mt_clear_error();
}

static void an_outer_failure_keeps_the_inner_ones_text(void **state)
{
    (void)state;
    mti_fail(MT_ERR_MEMORY, "long ago");
    uint64_t mark = mti_failures();
    assert_false(mti_failed_since(mark));
    assert_int_equal(mti_fail_around(mark, MT_ERR_STATE, "a hook %s", "failed"), MT_ERR_STATE);
    expect(MT_ERR_STATE, "a hook failed"); /* an older failure is not its cause */
    mark = mti_failures();
    mti_fail(MT_ERR_IO, "within");
    assert_true(mti_failed_since(mark));
    assert_int_equal(mti_fail_around(mark, MT_ERR_STATE, "around"), MT_ERR_IO);
    expect(MT_ERR_IO, "within");
    mt_clear_error(); /* cleared: the next failure has another cause */
    assert_false(mti_failed_since(mark));
    assert_int_equal(mti_fail_around(mark, MT_ERR_STATE, "around"), MT_ERR_STATE);
    expect(MT_ERR_STATE, "around");
    mt_clear_error();
}

static void an_attempt_that_fails_can_be_forgotten(void **state)
{
    (void)state;
    mti_fail(MT_ERR_MEMORY, "before");
    uint64_t mark = mti_failures();
    mti_error before;
    mti_error_get(&before);
    mti_fail(MT_ERR_IO, "an attempt");
    mti_error_set(&before);
    expect(MT_ERR_MEMORY, "before");
    assert_false(mti_failed_since(mark));
    mt_clear_error();
}

/* Messages may quote files, and are printed to terminals. */
static void a_message_has_no_control_characters(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
    } texts[] = {
        {"\x1b[2J\x07 \x7f|", "?[2J? ?|"},
        {"line\n\tnext\r", "line\n\tnext?"},
        {"\xc2\x9b"
         "2J \xc2\x85",
         "?2J ?"}, /* control characters of two bytes */
        {"\x9b"
         "2J \xff\xfe \xe2\x82",
         "?2J ?? ??"},                                                  /* not UTF-8 */
        {"a\u202eb\u2066c\u200fd\u061ce\u2028f\uffff", "a?b?c?d?e?f?"}, /* of bidirectional text */
        {"gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80",
         "gr\xc3\xbc\xc3\x9f \xe2\x82\xac \xf0\x9f\x98\x80"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        mt_clear_error();
        mti_fail(MT_ERR_FORMAT, "config.json: \"%s\"", texts[i].from);
        char wanted[128];
        snprintf(wanted, sizeof wanted, "config.json: \"%s\"", texts[i].to);
        assert_string_equal(mt_last_error(), wanted);
    }
    mt_clear_error();
}

static void a_message_that_is_too_long_is_cut(void **state)
{
    (void)state;
    char longer[5000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    mti_fail(MT_ERR_FORMAT, "%s", longer);
    size_t n = strlen(mt_last_error());
    assert_in_range(n, 500, sizeof longer - 2);
    assert_memory_equal(mt_last_error(), longer, n);
    mt_clear_error();
}

static void *fail_elsewhere(void *seen)
{
    *(mt_status *)seen = mt_last_status();
    mti_fail(MT_ERR_INTERNAL, "in the other thread");
    return NULL;
}

static void threads_have_their_own_errors(void **state)
{
    (void)state;
    mti_fail(MT_ERR_ARGUMENT, "here");
    mt_status seen = MT_ERR_INTERNAL;
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, fail_elsewhere, &seen), 0);
    pthread_join(other, NULL);
    assert_int_equal(seen, MT_OK);
    assert_string_equal(mt_last_error(), "here");
    mt_clear_error();
}

static void every_status_has_a_name_of_its_own(void **state)
{
    (void)state;
    for (int a = MT_OK; a <= MT_ERR_INTERNAL; a++)
        for (int b = MT_OK; b < a; b++)
            assert_string_not_equal(mt_status_name((mt_status)a), mt_status_name((mt_status)b));
    assert_string_equal(mt_status_name(MT_OK), "ok");
    assert_string_equal(mt_status_name(MT_ERR_ARGUMENT), "bad argument");
    assert_string_equal(mt_status_name(MT_ERR_MEMORY), "out of memory");
    assert_string_equal(mt_status_name((mt_status)99), "unknown status");
}

static void dtypes_are_found_by_their_names(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t size;
        bool is_float;
    } want[MT_DTYPE_COUNT] = {
        {"f32", 4, true},      {"f64", 8, true},  {"bf16", 2, true}, {"f16", 2, true},
        {"i64", 8, false},     {"i32", 4, false}, {"u8", 1, false},  {"bool", 1, false},
        {"i8", 1, false},      {"i16", 2, false}, {"u16", 2, false}, {"f8_e4m3", 1, false},
        {"f8_e5m2", 1, false},
    };
    for (int d = 0; d < MT_DTYPE_COUNT; d++) {
        mt_dtype found = MT_DTYPE_COUNT;
        assert_string_equal(mt_dtype_name((mt_dtype)d), want[d].name);
        assert_int_equal(mt_dtype_size((mt_dtype)d), want[d].size);
        assert_int_equal(mt_dtype_is_float((mt_dtype)d), want[d].is_float);
        assert_true(mt_dtype_parse(want[d].name, &found));
        assert_int_equal(found, d);
    }
    static const char *const none_of_ours[] = {"", "F32", "f3", "f322", "float", "nf4", NULL};
    for (size_t i = 0; i < sizeof none_of_ours / sizeof *none_of_ours; i++) {
        mt_dtype untouched = MT_I64;
        assert_false(mt_dtype_parse(none_of_ours[i], &untouched));
        assert_int_equal(untouched, MT_I64);
    }
    for (int d = 0; d < MT_DTYPE_COUNT; d++) {
        mt_bits b = mt_dtype_bits((mt_dtype)d);
        int used =
            d == MT_BOOL ? 1 : 8 * (int)want[d].size; /* a bool leaves 7 of its bits unused */
        assert_int_equal(b.sign + b.exponent + b.mantissa, used);
        assert_true(b.exponent > 0 || !want[d].is_float);
    }
    mt_bits half = mt_dtype_bits(MT_BF16), e4m3 = mt_dtype_bits(MT_F8_E4M3);
    assert_true(half.sign == 1 && half.exponent == 8 && half.mantissa == 7);
    assert_true(e4m3.sign == 1 && e4m3.exponent == 4 && e4m3.mantissa == 3);
    assert_int_equal(mt_dtype_bits(MT_DTYPE_COUNT).mantissa, 0);
    assert_int_equal(mt_dtype_size(MT_DTYPE_COUNT), 0);
    assert_string_equal(mt_dtype_name(MT_DTYPE_COUNT), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_failure_is_kept_until_it_is_cleared),
        cmocka_unit_test(null_from_an_earlier_failure_is_not_a_new_failure),
        cmocka_unit_test(an_outer_failure_keeps_the_inner_ones_text),
        cmocka_unit_test(an_attempt_that_fails_can_be_forgotten),
        cmocka_unit_test(a_message_has_no_control_characters),
        cmocka_unit_test(a_message_that_is_too_long_is_cut),
        cmocka_unit_test(threads_have_their_own_errors),
        cmocka_unit_test(every_status_has_a_name_of_its_own),
        cmocka_unit_test(dtypes_are_found_by_their_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
