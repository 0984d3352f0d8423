/* Names, shapes and byte counts as text. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"

static void equal_names_are_one_string(void **state)
{
    (void)state;
    char path[] = "gpt.h.3.mlp";
    const char *a = mti_intern(path), *b = mti_intern("gpt.h.3.mlp");
    assert_ptr_equal(a, b);
    path[0] = 'x';
    assert_string_equal(a, "gpt.h.3.mlp");
    assert_ptr_not_equal(mti_intern("gpt.h.4.mlp"), a);
    assert_string_equal(mti_intern(NULL), "");
    assert_string_equal(mti_intern(""), "");
}

#define N_NAMES 3000
static void *intern_many(void *out)
{
    char name[32];
    for (int i = 0; i < N_NAMES; i++) {
        snprintf(name, sizeof name, "layer.%d", i);
        ((const char **)out)[i] = mti_intern(name);
    }
    return NULL;
}

static void many_names_from_many_threads_are_kept_separate(void **state)
{
    (void)state;
    static const char *found[4][N_NAMES];
    pthread_t thread[4];
    for (int t = 0; t < 4; t++)
        assert_int_equal(pthread_create(&thread[t], NULL, intern_many, found[t]), 0);
    for (int t = 0; t < 4; t++) pthread_join(thread[t], NULL);
    char name[32];
    for (int i = 0; i < N_NAMES; i++) {
        snprintf(name, sizeof name, "layer.%d", i);
        for (int t = 0; t < 4; t++) {
            assert_string_equal(found[t][i], name);
            assert_ptr_equal(found[t][i], found[0][i]);
        }
    }
}

static void without_memory_a_name_is_an_error_and_can_be_tried_again(void **state)
{
    (void)state;
    mti_fail_nth_alloc(1);
    assert_null(mti_intern("a name nobody has used before"));
    assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
    mt_clear_error();
    mti_fail_nth_alloc(0);
    assert_string_equal(mti_intern("a name nobody has used before"),
                        "a name nobody has used before");
}

static void the_empty_place_has_three_empty_texts(void **state)
{
    (void)state;
    mti_where *where = mti_where_now();
    assert_string_equal(where->op, "");
    assert_string_equal(where->module, "");
    assert_string_equal(where->phase, "");
    where->op = "relu";
    assert_string_equal(mti_where_now()->op, "relu");
    where->op = "";
}

static void shapes_read_as_lists(void **state)
{
    (void)state;
    char buf[MTI_SHAPE_TEXT];
    assert_string_equal(mti_shape_text(buf, 0, NULL), "[]");
    assert_string_equal(mti_shape_text(buf, 1, (int64_t[]){5}), "[5]");
    assert_string_equal(mti_shape_text(buf, 3, (int64_t[]){2, 0, 4096}), "[2,0,4096]");
    int64_t extreme[8];
    for (int d = 0; d < 8; d++) extreme[d] = INT64_MIN;
    assert_int_equal(strlen(mti_shape_text(buf, 8, extreme)), 8 * 20 + 7 + 2);
}

static void byte_counts_are_written_with_units(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes;
        const char *text;
    } cases[] = {
        {0, "0 B"},
        {512, "512 B"},
        {1023, "1023 B"},
        {1024, "1 KiB"},
        {1536, "1.5 KiB"},
        {257024, "251 KiB"},
        {1048575, "1 MiB"}, /* not "1024 KiB" */
        {83886080, "80 MiB"},
        {8519680, "8.12 MiB"},
        {3ull << 29, "1.5 GiB"},
        {100ull << 30, "100 GiB"},
        {UINT64_MAX, "16 EiB"},
    };
    char buf[32];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(mti_bytes_text(buf, sizeof buf, cases[i].bytes), cases[i].text);
    assert_string_equal(mti_bytes_text(buf, 4, 1536), "1.5"); /* a short buffer is not exceeded */
}

static void byte_counts_are_parsed(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } cases[] = {
        {"0", 0},
        {"123", 123},
        {"512 B", 512},
        {"512B", 512},
        {"007", 7},
        {"40GiB", 40ull << 30},
        {"40 GiB", 40ull << 30},
        {"40GB", 40000000000ull},
        {"40G", 40ull << 30}, /* as dd, ls and Slurm read it */
        {"40g", 40ull << 30},
        {"40gib", 40ull << 30},
        {"40gb", 40000000000ull},
        {"1.5 T", 3ull << 39},
        {"2K", 2048},
        {"2k", 2048},
        {"2kb", 2000},
        {"7E", 7ull << 60},
        {"3m", 3ull << 20},
        {"3p", 3ull << 50},
        {"8KB", 8000},
        {"8kB", 8000},
        {"1.5GiB", 3ull << 29},
        {"1.50 GiB", 3ull << 29},
        {"0.3MB", 300000},
        {"0.1KiB", 102},                   /* 102.4, rounded down */
        {"0.999999999999999999KiB", 1023}, /* digits past the ninth change nothing */
        {"8.125MiB", 8519680},
        {"15EiB", 15ull << 60},
        {"15.999999999EiB", (15ull << 60) + 1152921503453925471ull},
        {"18446744073709551615", UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t got = 1;
        if (!mti_bytes_parse(cases[i].text, &got) || got != cases[i].bytes)
            fail_msg("\"%s\": got %llu, want %llu", cases[i].text, (unsigned long long)got,
                     (unsigned long long)cases[i].bytes);
    }
}

static void invalid_byte_counts_are_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {
        NULL,
        "",
        " ",
        "GiB",
        "-1",
        "+1",
        " 1",
        "1 ",
        "1.5",
        "1.5B",
        "1.",
        "1.GiB",
        ".5GiB",
        "1e9",
        "0x10",
        "40Gb", /* bits */
        "40Gib",
        "40gB",
        "40b",
        "40Gi",
        "40GG",
        "40i",
        "1.5b",
        "40 GiBs",
        "4 0",
        "1,5GiB",
        "1..5GiB",
        "nan",
        "inf",
        "1.-5GiB",
        "16EiB",
        "18446744073709551616",
        "99999999999999999999999",
        "20000000000GiB",
        "18.446744074EB",
        "--budget",
        "1 . 5GiB",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t untouched = 42;
        if (mti_bytes_parse(cases[i], &untouched) || untouched != 42)
            fail_msg("\"%s\" was taken for %llu bytes", cases[i] ? cases[i] : "(null)",
                     (unsigned long long)untouched);
    }
}

static void time_does_not_go_backwards(void **state)
{
    (void)state;
    double last = mti_now();
    for (int i = 0; i < 1000; i++) {
        double now = mti_now();
        assert_true(now >= last);
        last = now;
    }
}

static void an_index_finds_the_place_of_each_name(void **state)
{
    (void)state;
    static char name[5000][8];
    mti_name_index x = {0};
    assert_int_equal(mti_name_index_find(&x, "", 0), MTI_NO_PLACE);
    for (size_t i = 0; i < 5000; i++) {
        snprintf(name[i], sizeof name[i], "h.%zu", i);
        assert_int_equal(mti_name_index_find(&x, name[i], strlen(name[i])), MTI_NO_PLACE);
        assert_true(mti_name_index_add(&x, name[i], i));
    }
    assert_true(mti_name_index_add(&x, "h.7", 9999)); /* the first one is kept */
    for (size_t i = 0; i < 5000; i++)
        assert_int_equal(mti_name_index_find(&x, name[i], strlen(name[i])), i);
    assert_int_equal(mti_name_index_find(&x, "h.123.mlp", 5), 123);
    assert_int_equal(mti_name_index_find(&x, "h.123.mlp", 4), 12);
    assert_int_equal(mti_name_index_find(&x, "h.5000", 6), MTI_NO_PLACE);
    assert_int_equal(mti_name_index_find(&x, "", 0), MTI_NO_PLACE);
    mti_name_index_free(&x);
}

static void an_index_without_memory_stays_as_it_was(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"};
    mti_name_index x = {0};
    size_t refused = 0;
    for (size_t i = 0; i < 10; i++) {
        mti_fail_nth_alloc(1);
        bool added = mti_name_index_add(&x, names[i], i);
        mti_fail_nth_alloc(0);
        assert_int_equal(mti_name_index_find(&x, names[i], 1), added ? i : MTI_NO_PLACE);
        refused += !added;
        mt_clear_error();
        assert_true(added || mti_name_index_add(&x, names[i], i));
        for (size_t j = 0; j <= i; j++) assert_int_equal(mti_name_index_find(&x, names[j], 1), j);
    }
    assert_int_equal(refused, 2); /* for the first table, and for one twice as long */
    mti_name_index_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_index_finds_the_place_of_each_name),
        cmocka_unit_test(an_index_without_memory_stays_as_it_was),
        cmocka_unit_test(without_memory_a_name_is_an_error_and_can_be_tried_again),
        cmocka_unit_test(equal_names_are_one_string),
        cmocka_unit_test(many_names_from_many_threads_are_kept_separate),
        cmocka_unit_test(the_empty_place_has_three_empty_texts),
        cmocka_unit_test(shapes_read_as_lists),
        cmocka_unit_test(byte_counts_are_written_with_units),
        cmocka_unit_test(byte_counts_are_parsed),
        cmocka_unit_test(invalid_byte_counts_are_refused),
        cmocka_unit_test(time_does_not_go_backwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
