/* Tasks at once: each is done once, the first failure is told and ends the rest, and whoever is
 * told of each can end them, too. */
#include <string.h>
#include "fit/at_once.h"
#include "mtt.h"

enum { TASKS = 100, BAD = 7, ENOUGH = 20 };

typedef struct seen {
    int begun[TASKS]; /* by task */
    size_t n_done;
} seen;

static bool succeed(void *user, size_t i)
{
    ((seen *)user)->begun[i]++;
    return true;
}

static bool fail_some(void *user, size_t i)
{
    return succeed(user, i) && (i < BAD || mti_fail_bool(MT_ERR_STATE, "task %zu has failed", i));
}

static int n_begun(const seen *s)
{
    int n = 0;
    for (size_t i = 0; i < TASKS; i++) n += s->begun[i];
    return n;
}

static bool count(void *user, size_t n_done, size_t i)
{
    seen *s = user;
    assert_int_equal(n_done, ++s->n_done);
    assert_in_range(i, 0, TASKS - 1);
    return true;
}

static bool count_enough(void *user, size_t n_done, size_t i)
{
    return count(user, n_done, i) && n_done < ENOUGH;
}

static void each_is_done_once(void **state)
{
    (void)state;
    for (int64_t most = 0; most <= 3; most++)
        for (size_t n = 0; n <= TASKS; n += TASKS / 2) {
            seen s = {0};
            const mti_tasks tasks = {
                .n = n, .most = most, .work = succeed, .done = count, .user = &s};
            assert_true(mti_work_at_once(&tasks));
            for (size_t i = 0; i < TASKS; i++) assert_int_equal(s.begun[i], i < n);
            assert_int_equal(s.n_done, n);
        }
}

/* Those that other threads have begun meanwhile go on. */
static void the_first_failure_ends_them(void **state)
{
    (void)state;
    for (int64_t most = 1; most <= 4; most++) {
        seen s = {0};
        const mti_tasks tasks = {.n = TASKS, .most = most, .work = fail_some, .user = &s};
        assert_false(mti_work_at_once(&tasks));
        assert_int_equal(mt_last_status(), MT_ERR_STATE);
        assert_non_null(strstr(mt_last_error(), most == 1 ? "task 7 has failed" : "has failed"));
        for (size_t i = 0; i < BAD; i++) assert_int_equal(s.begun[i], 1);
        assert_in_range(n_begun(&s), BAD + 1, BAD + most);
        mt_clear_error();
    }
}

static void whoever_is_told_can_end_them(void **state)
{
    (void)state;
    for (int64_t most = 1; most <= 4; most++) {
        seen s = {0};
        const mti_tasks tasks = {
            .n = TASKS, .most = most, .work = succeed, .done = count_enough, .user = &s};
        assert_true(mti_work_at_once(&tasks));
        assert_in_range(n_begun(&s), ENOUGH, ENOUGH + most - 1);
    }
}

static void refused_memory_is_an_error(void **state)
{
    seen s = {0};
    const mti_tasks tasks = {.n = 2, .most = 2, .work = succeed, .user = &s};
    (void)state;
    mti_fail_nth_alloc(1);
    assert_false(mti_work_at_once(&tasks));
    mti_fail_nth_alloc(0);
    assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
    assert_int_equal(n_begun(&s), 0);
    mt_clear_error();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_done_once),
        cmocka_unit_test(the_first_failure_ends_them),
        cmocka_unit_test(whoever_is_told_can_end_them),
        cmocka_unit_test(refused_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
