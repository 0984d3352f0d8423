/* Allocation of host memory, and the growable array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "base/base.h"

static int stop_failing(void **state)
{
    (void)state;
    mti_fail_nth_alloc(0);
    mt_clear_error();
    return 0;
}

static void zero_bytes_give_a_pointer(void **state)
{
    (void)state;
    void *a = mti_malloc(0), *b = mti_calloc(0, 8), *c = mti_realloc(NULL, 0);
    assert_true(a && b && c);
    mti_free(a);
    mti_free(b);
    mti_free(c);
    mti_free(NULL);
}

static void exactly_the_nth_request_fails(void **state)
{
    (void)state;
    mti_fail_nth_alloc(3);
    for (int i = 1; i <= 5; i++) {
        void *p = mti_malloc(8);
        assert_int_equal(p == NULL, i == 3);
        mti_free(p);
    }
    assert_int_equal(mti_alloc_count(), 5);
    assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
    assert_string_equal(mt_last_error(), "host memory: 8 bytes (8 B) refused");
}

static void every_kind_of_request_is_counted_and_can_fail(void **state)
{
    (void)state;
    mti_fail_nth_alloc(1);
    assert_null(mti_calloc(2, 8));
    mti_fail_nth_alloc(1);
    assert_null(mti_strdup("name"));
    mti_fail_nth_alloc(1);
    assert_true(mti_alloc_should_fail());
    assert_false(mti_alloc_should_fail());
    assert_int_equal(mti_alloc_count(), 2);
}

static void a_failed_realloc_leaves_the_old_block(void **state)
{
    (void)state;
    char *p = mti_strdup("still here");
    mti_fail_nth_alloc(1);
    assert_null(mti_realloc(p, 1000));
    assert_string_equal(p, "still here");
    mti_free(p);
}

static void sizes_that_overflow_are_refused(void **state)
{
    (void)state;
    size_t out = 7;
    assert_true(mti_mul_size(3, 5, &out) && out == 15);
    assert_true(mti_add_size(SIZE_MAX - 1, 1, &out) && out == SIZE_MAX);
    assert_false(mti_mul_size(SIZE_MAX / 2, 3, &out));
    assert_false(mti_add_size(SIZE_MAX, 1, &out));
    assert_null(mti_calloc(SIZE_MAX / 2, 3));
    assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
}

static void an_array_grows_and_survives_a_refusal(void **state)
{
    (void)state;
    MTI_VEC(int) v = {0};
    for (int i = 0; i < 1000; i++) assert_true(MTI_PUSH(&v, i));
    size_t n = v.cap;
    for (int i = 1000; v.n < n; i++) assert_true(MTI_PUSH(&v, i));
    mti_fail_nth_alloc(1);
    assert_false(MTI_PUSH(&v, -1));
    assert_int_equal(v.n, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(v.at[i], i);
    assert_true(MTI_PUSH(&v, -1));
    assert_int_equal(v.at[n], -1);
    mti_free(v.at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(zero_bytes_give_a_pointer, stop_failing),
        cmocka_unit_test_teardown(exactly_the_nth_request_fails, stop_failing),
        cmocka_unit_test_teardown(every_kind_of_request_is_counted_and_can_fail, stop_failing),
        cmocka_unit_test_teardown(a_failed_realloc_leaves_the_old_block, stop_failing),
        cmocka_unit_test_teardown(sizes_that_overflow_are_refused, stop_failing),
        cmocka_unit_test_teardown(an_array_grows_and_survives_a_refusal, stop_failing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
