/* Files are whole or not there, whatever goes wrong while they are written. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "base/base.h"

static char dir[64], target[96];

static int make_directory(void **state)
{
    (void)state;
    strcpy(dir, "memtape-file-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    snprintf(target, sizeof target, "%s/target", dir);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    mti_fail_nth_alloc(0);
    mt_clear_error();
    unlink(target);
    return rmdir(dir); /* fails, and so the test, where something was left behind */
}

static void put(const char *text)
{
    mti_file *f = mti_file_create(target);
    assert_non_null(f);
    assert_true(mti_file_write(f, text, strlen(text)));
    assert_true(mti_file_commit(f));
}

static void expect_target(const char *text)
{
    size_t n = 0;
    char *data = mti_file_read(target, 1000, &n);
    assert_non_null(data);
    assert_int_equal(n, strlen(text));
    assert_string_equal(data, text);
    mti_free(data);
}

/* Names in the directory besides the target. */
static int strangers(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strcmp(e->d_name, "target");
    closedir(d);
    return n;
}

static void what_was_written_is_read_back(void **state)
{
    (void)state;
    size_t n = 1000003, got = 0; /* more than any buffer, and odd */
    unsigned char *data = mti_malloc(n);
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)(i * 2654435761u >> 13);
    mti_file *f = mti_file_create(target);
    assert_non_null(f);
    for (size_t at = 0, step = 1; at < n; at += step, step = step * 3 % 200003 + 1) {
        if (step > n - at) step = n - at;
        assert_true(mti_file_write(f, data + at, step));
    }
    assert_true(mti_file_write(f, NULL, 0));
    assert_true(mti_file_commit(f));
    unsigned char *back = mti_file_read(target, n, &got);
    assert_non_null(back);
    assert_int_equal(got, n);
    assert_memory_equal(back, data, n);
    assert_int_equal(strangers(), 0);
    mti_free(back);
    mti_free(data);
}

static void an_empty_file_can_be_written_and_read(void **state)
{
    (void)state;
    put("");
    expect_target("");
}

static void until_commit_the_old_target_is_there(void **state)
{
    (void)state;
    put("old");
    mti_file *f = mti_file_create(target);
    assert_true(mti_file_write(f, "new", 3));
    expect_target("old");
    assert_true(mti_file_commit(f));
    expect_target("new");
}

static void an_abandoned_file_leaves_no_trace(void **state)
{
    (void)state;
    put("old");
    mti_file *f = mti_file_create(target);
    assert_true(mti_file_write(f, "new", 3));
    assert_int_equal(strangers(), 1);
    mti_file_abandon(f);
    mti_file_abandon(NULL);
    assert_int_equal(strangers(), 0);
    expect_target("old");
}

static void two_savers_of_one_target_do_not_meet(void **state)
{
    (void)state;
    mti_file *a = mti_file_create(target), *b = mti_file_create(target);
    assert_true(mti_file_write(a, "from a", 6));
    assert_true(mti_file_write(b, "b", 1));
    assert_true(mti_file_commit(a));
    expect_target("from a");
    assert_true(mti_file_commit(b));
    expect_target("b");
    assert_int_equal(strangers(), 0);
}

static void a_full_disk_is_an_error_and_the_old_target_stays(void **state)
{
    (void)state;
    put("old");
    struct rlimit was, tiny;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    tiny = was;
    tiny.rlim_cur = 100000;
    signal(SIGXFSZ, SIG_IGN);
    static char block[30000];
    for (int early = 0; early < 2; early++) {
        /* Found out by a write, or only when the last buffer goes out. */
        mti_file *f = mti_file_create(target);
        bool written = true;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &tiny), 0);
        for (int i = 0; i < (early ? 20 : 4); i++)
            written = mti_file_write(f, block, sizeof block) && written;
        assert_int_equal(written, !early);
        bool committed = mti_file_commit(f);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
        assert_false(committed);
        assert_int_equal(mt_last_status(), MT_ERR_IO);
        assert_non_null(strstr(mt_last_error(), target));
        mt_clear_error();
        assert_int_equal(strangers(), 0);
        expect_target("old");
    }
    signal(SIGXFSZ, SIG_DFL);
    put("new");
    expect_target("new");
}

static void a_device_is_written_in_place_and_reports_that_it_is_full(void **state)
{
    (void)state;
    struct stat st;
    mti_file *f = mti_file_create("/dev/null");
    assert_true(mti_file_write(f, "x", 1));
    assert_true(mti_file_commit(f));
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode)); /* not replaced by a file */
    f = mti_file_create("/dev/full");
    assert_non_null(f);
    assert_true(mti_file_write(f, "x", 1));
    assert_false(mti_file_commit(f));
    assert_int_equal(mt_last_status(), MT_ERR_IO);
}

static void the_target_keeps_its_permissions(void **state)
{
    (void)state;
    struct stat st;
    put("secret");
    assert_int_equal(chmod(target, 0640), 0);
    put("new secret");
    assert_int_equal(stat(target, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
}

static void places_that_cannot_be_written_are_named(void **state)
{
    (void)state;
    assert_null(mti_file_create("no-such-directory/file"));
    assert_int_equal(mt_last_status(), MT_ERR_IO);
    assert_non_null(strstr(mt_last_error(), "no-such-directory/file"));
    mt_clear_error();
    assert_null(mti_file_create(dir)); /* is a directory */
    assert_int_equal(mt_last_status(), MT_ERR_IO);
    mt_clear_error();
    assert_null(mti_file_create(""));
    assert_int_equal(mt_last_status(), MT_ERR_IO);
}

static void what_cannot_be_read_is_named(void **state)
{
    (void)state;
    size_t n = 77;
    assert_null(mti_file_read("no-such-file", 100, &n));
    assert_int_equal(mt_last_status(), MT_ERR_IO);
    assert_non_null(strstr(mt_last_error(), "no-such-file"));
    mt_clear_error();
    assert_null(mti_file_read(dir, 100, &n));
    assert_int_equal(mt_last_status(), MT_ERR_IO);
    assert_int_equal(n, 77);
}

static void a_file_longer_than_the_limit_is_refused(void **state)
{
    (void)state;
    size_t n;
    put("12345");
    char *data = mti_file_read(target, 5, &n);
    assert_non_null(data);
    mti_free(data);
    assert_null(mti_file_read(target, 4, &n));
    assert_int_equal(mt_last_status(), MT_ERR_FORMAT);
    mt_clear_error();
    assert_null(mti_file_read("/dev/zero", 100000, &n)); /* no end, no size */
    assert_int_equal(mt_last_status(), MT_ERR_FORMAT);
}

static bool write_and_read_back(void)
{
    size_t n;
    mti_file *f = mti_file_create(target);
    if (!f) return false;
    if (!mti_file_write(f, "new", 3)) {
        mti_file_abandon(f);
        return false;
    }
    if (!mti_file_commit(f)) return false;
    char *data = mti_file_read(target, 10, &n);
    mti_free(data);
    return data;
}

static void without_memory_nothing_is_left_behind(void **state)
{
    (void)state;
    put("old");
    mti_fail_nth_alloc(0);
    assert_true(write_and_read_back());
    uint64_t requests = mti_alloc_count();
    assert_true(requests >= 4);
    for (uint64_t i = 1; i <= requests; i++) {
        mti_fail_nth_alloc(i);
        assert_false(write_and_read_back());
        assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
        mt_clear_error();
        assert_int_equal(strangers(), 0);
        mti_fail_nth_alloc(0);
        assert_true(write_and_read_back());
    }
}

#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIRECTORY(what_was_written_is_read_back),
        IN_DIRECTORY(an_empty_file_can_be_written_and_read),
        IN_DIRECTORY(until_commit_the_old_target_is_there),
        IN_DIRECTORY(an_abandoned_file_leaves_no_trace),
        IN_DIRECTORY(two_savers_of_one_target_do_not_meet),
        IN_DIRECTORY(a_full_disk_is_an_error_and_the_old_target_stays),
        IN_DIRECTORY(a_device_is_written_in_place_and_reports_that_it_is_full),
        IN_DIRECTORY(the_target_keeps_its_permissions),
        IN_DIRECTORY(places_that_cannot_be_written_are_named),
        IN_DIRECTORY(what_cannot_be_read_is_named),
        IN_DIRECTORY(a_file_longer_than_the_limit_is_refused),
        IN_DIRECTORY(without_memory_nothing_is_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
