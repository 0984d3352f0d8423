/* A file is complete or absent, even if writing fails. */
#include <dirent.h>
#include <fcntl.h>
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
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "files/files.h"

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
    return rmdir(dir); /* fails the test if something is left */
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

/* Number of other files in the target's directory. */
static int other_files(void)
{
    int n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strcmp(e->d_name, "target");
    closedir(d);
    return n;
}

static void written_bytes_are_read_back(void **state)
{
    (void)state;
    size_t n = 1000003, got = 0; /* an odd number, larger than any buffer */
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
    assert_int_equal(other_files(), 0);
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
    assert_int_equal(other_files(), 1);
    mti_file_abandon(f);
    mti_file_abandon(NULL);
    assert_int_equal(other_files(), 0);
    expect_target("old");
}

static void two_writers_of_one_target_do_not_disturb_each_other(void **state)
{
    (void)state;
    mti_file *a = mti_file_create(target), *b = mti_file_create(target);
    assert_true(mti_file_write(a, "from a", 6));
    assert_true(mti_file_write(b, "b", 1));
    assert_true(mti_file_commit(a));
    expect_target("from a");
    assert_true(mti_file_commit(b));
    expect_target("b");
    assert_int_equal(other_files(), 0);
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
        /* The error comes from a write, or only from the commit. */
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
        assert_int_equal(other_files(), 0);
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

static void a_path_that_cannot_be_written_is_named(void **state)
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

static void a_path_that_cannot_be_read_is_named(void **state)
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
    assert_null(mti_file_read("/dev/zero", 100000, &n)); /* it has no end and no size */
    assert_int_equal(mt_last_status(), MT_ERR_FORMAT);
}

/* ---- symbolic links ---- */

static char *in_dir(const char *name)
{
    static char path[4][128];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static void expect_link(const char *name, const char *to)
{
    char text[128] = "";
    assert_true(readlink(in_dir(name), text, sizeof text - 1) > 0);
    assert_string_equal(text, to);
}

static void put_at(const char *path, const char *text)
{
    mti_file *f = mti_file_create(path);
    assert_non_null(f);
    assert_true(mti_file_write(f, text, strlen(text)));
    assert_true(mti_file_commit(f));
}

static void writing_to_a_link_replaces_the_file_it_points_to(void **state)
{
    (void)state;
    /* through two links, one of them relative in another folder, to a file that exists or not */
    char absolute[256];
    assert_int_equal(mkdir(in_dir("sub"), 0700), 0);
    assert_int_equal(symlink("../target", in_dir("sub/relative")), 0);
    assert_non_null(getcwd(absolute, 128));
    snprintf(absolute + strlen(absolute), 128, "/%s", in_dir("sub/relative"));
    assert_int_equal(symlink(absolute, in_dir("absolute")), 0);
    put_at(in_dir("absolute"), "first");
    expect_target("first");
    assert_int_equal(chmod(target, 0640), 0);
    put_at(in_dir("absolute"), "second");
    expect_target("second");
    expect_link("absolute", absolute);
    expect_link("sub/relative", "../target");
    struct stat st;
    assert_int_equal(lstat(target, &st), 0);
    assert_true(S_ISREG(st.st_mode));
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(other_files(), 2); /* the link and the folder, but no temporary file */
    unlink(in_dir("absolute")), unlink(in_dir("sub/relative")), rmdir(in_dir("sub"));
}

static void a_link_that_leads_nowhere_is_an_error(void **state)
{
    (void)state;
    assert_int_equal(symlink("loop", in_dir("loop")), 0);
    assert_null(mti_file_create(in_dir("loop")));
    assert_int_equal(mt_last_status(), MT_ERR_IO);
    assert_non_null(strstr(mt_last_error(), "loop"));
    mt_clear_error();
    assert_int_equal(symlink("no-such-folder/x", in_dir("dangling")), 0);
    assert_null(mti_file_create(in_dir("dangling")));
    assert_int_equal(mt_last_status(), MT_ERR_IO);
    assert_int_equal(other_files(), 2);
    unlink(in_dir("loop")), unlink(in_dir("dangling"));
}

/* ---- files of killed processes ---- */

/* Starts a process that has written a part of a file. */
static pid_t start_writer(const char *path)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        mti_file *f = mti_file_create(path);
        bool ok = f && mti_file_write(f, "part", 4) && write(ready[1], "x", 1) == 1;
        close(ready[0]), close(ready[1]);
        if (ok) pause();
        _exit(1);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void kill_writer(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void files_of_killed_processes_are_removed_by_the_next_save(void **state)
{
    (void)state;
    put("old");
    pid_t first = start_writer(target), second = start_writer(target),
          third = start_writer(in_dir("other")); /* a file of another target in this folder */
    kill_writer(first), kill_writer(second), kill_writer(third);
    assert_int_equal(other_files(), 3);
    put("new");
    expect_target("new");
    assert_int_equal(other_files(), 0);
    kill_writer(start_writer(target));
    assert_int_equal(other_files(), 1);
    put("newer");
    assert_int_equal(other_files(), 0);
}

static void files_of_running_processes_are_not_removed(void **state)
{
    (void)state;
    pid_t alive = start_writer(target);
    assert_int_equal(other_files(), 1);
    put("new");
    assert_int_equal(other_files(), 1);
    mti_file *mine = mti_file_create(target); /* a file of this process */
    assert_true(mti_file_write(mine, "mine", 4));
    put("new");
    assert_int_equal(other_files(), 2);
    assert_true(mti_file_commit(mine));
    expect_target("mine");
    kill_writer(alive);
    put("last");
    assert_int_equal(other_files(), 0);
}

static void only_temporary_files_of_ended_processes_are_removed(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool old, goes; /* old: last written more than a day ago */
    } files[] = {
        {"target.tmp-0badb007-123-1", false,
         false}, /* of another machine, where it may still be written */
        {"target.tmp-0badb007-124-1", true, true},
        {"another.tmp-0badb007-1-1", true, true},
        {"target.tmp-123", true, false},
        {"target.tmp-0badb007-124", true, false},
        {"target.tmp-0badb007-x-1", true, false},
        {"target.tmp-0badb007-1-", true, false},
        {"target.tmp-0BADB007-1-1", true, false},
        {"target.tmp-0badb007-1-1.bak", true, false},
        {"target.tmp-badb007-1-1", true, false},
        {"target.0badb007-1-1", true, false},
        {".tmp-0badb007-7-1.tmp-0badb007-7-1", true, true},
    };
    size_t n = sizeof files / sizeof *files;
    for (size_t i = 0; i < n; i++) {
        int fd = open(in_dir(files[i].name), O_WRONLY | O_CREAT | O_EXCL, 0600);
        assert_true(fd >= 0);
        struct timespec now, times[2];
        clock_gettime(CLOCK_REALTIME, &now);
        times[0] = times[1] = (struct timespec){now.tv_sec - (files[i].old ? 90000 : 80000), 0};
        assert_int_equal(futimens(fd, times), 0);
        close(fd);
    }
    /* links and folders with such names are not ours */
    assert_int_equal(symlink("target", in_dir("target.tmp-0badb007-9-9")), 0);
    assert_int_equal(mkdir(in_dir("target.tmp-0badb007-8-8"), 0700), 0);
    put("new");
    for (size_t i = 0; i < n; i++) {
        bool gone = access(in_dir(files[i].name), F_OK) != 0;
        if (gone != files[i].goes) fail_msg("%s: %s", files[i].name, gone ? "removed" : "kept");
        unlink(in_dir(files[i].name));
    }
    assert_int_equal(unlink(in_dir("target.tmp-0badb007-9-9")), 0);
    assert_int_equal(rmdir(in_dir("target.tmp-0badb007-8-8")), 0);
    expect_target("new");
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

static void without_memory_no_file_is_left(void **state)
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
        assert_int_equal(other_files(), 0);
        mti_fail_nth_alloc(0);
        assert_true(write_and_read_back());
    }
}

#define IN_DIRECTORY(test) cmocka_unit_test_setup_teardown(test, make_directory, remove_directory)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_DIRECTORY(written_bytes_are_read_back),
        IN_DIRECTORY(an_empty_file_can_be_written_and_read),
        IN_DIRECTORY(until_commit_the_old_target_is_there),
        IN_DIRECTORY(an_abandoned_file_leaves_no_trace),
        IN_DIRECTORY(two_writers_of_one_target_do_not_disturb_each_other),
        IN_DIRECTORY(a_full_disk_is_an_error_and_the_old_target_stays),
        IN_DIRECTORY(a_device_is_written_in_place_and_reports_that_it_is_full),
        IN_DIRECTORY(the_target_keeps_its_permissions),
        IN_DIRECTORY(a_path_that_cannot_be_written_is_named),
        IN_DIRECTORY(a_path_that_cannot_be_read_is_named),
        IN_DIRECTORY(a_file_longer_than_the_limit_is_refused),
        IN_DIRECTORY(writing_to_a_link_replaces_the_file_it_points_to),
        IN_DIRECTORY(a_link_that_leads_nowhere_is_an_error),
        IN_DIRECTORY(files_of_killed_processes_are_removed_by_the_next_save),
        IN_DIRECTORY(files_of_running_processes_are_not_removed),
        IN_DIRECTORY(only_temporary_files_of_ended_processes_are_removed),
        IN_DIRECTORY(without_memory_no_file_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
