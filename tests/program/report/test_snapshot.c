/* test_snapshot.c: PyTorch's memory snapshot, written as the events come: a run of any length takes
 * no more memory than a short one. MTT_LONG=1: ten million events. What the file says is compared
 * with the program's other figures by test_snapshot.py. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "memtape/all.h"
#include "mtt.h"
#include "report/pictures.h"

static mti_snapshot *writing;
static size_t n_events;

static void on_event(void *user, const mt_mem_event *e)
{
    (void)user;
    n_events++;
    assert_true(mti_snapshot_add(writing, e, 0));
}

/* Allocates and frees until there are at least n events, up to 64 blocks at a time. */
static void churn(mt_device *device, size_t n)
{
    mt_tensor *live[64] = {0};
    uint32_t random = 1;
    while (n_events < n) {
        random = random * 1664525u + 1013904223u;
        mt_tensor **at = &live[random >> 26];
        mt_set_phase((random >> 20) % 2 ? "forward" : "backward");
        mt_set(at, *at ? NULL : mt_empty(device, MT_U8, MT_SHAPE(1 + (random >> 8) % 4000000)));
    }
    mt_set_phase(NULL);
    for (int i = 0; i < 64; i++) mt_release(live[i]);
}

static void write_run(const char *path, size_t n)
{
    mt_device *device = mt_device_open("meta");
    writing = mti_snapshot_begin(path, "meta", false);
    assert_non_null(writing);
    n_events = 0;
    int id = mt_mem_add_observer(device, on_event, NULL);
    churn(device, n);
    mt_mem_remove_observer(device, id);
    assert_int_equal(mti_snapshot_end(writing), MT_OK);
    mt_device_release(device);
}

static long highest_kib(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
}

static void many_events_take_no_more_memory_than_few(void **state)
{
    (void)state;
    size_t n = getenv("MTT_LONG") ? 10000000 : 300000;
    write_run("/dev/null", 20000);
    long before = highest_kib();
    write_run("/dev/null", n);
    long after = highest_kib();
    printf("%zu events: resident peak %ld KiB, %ld KiB of it since %d events\n", n_events, after,
           after - before, 20000);
    assert_true(n_events >= n);
#ifndef __SANITIZE_ADDRESS__ /* which keeps what is freed for a while */
    assert_in_range(after - before, 0, 1024);
#endif
}

/* Fills the disk in the middle of the entries. */
static void a_full_disk_is_an_error(void **state)
{
    (void)state;
    mt_device *device = mt_device_open("meta");
    writing = mti_snapshot_begin("/dev/full", "meta", false);
    assert_non_null(writing);
    const mt_mem_event e = {
        .kind = MT_MEM_ALLOC, .requested = 1, .op = "", .module = "", .phase = ""};
    bool ok = true;
    for (int i = 0; ok && i < 10000; i++) ok = mti_snapshot_add(writing, &e, 0);
    assert_false(ok);
    assert_false(mti_snapshot_add(writing, &e, 0));
    assert_int_not_equal(mti_snapshot_end(writing), MT_OK);
    mtt_failed(mt_last_status(), "/dev/full: cannot write: No space left on device");
    mt_device_release(device);
}

static void a_file_that_is_given_up_is_not_there(void **state)
{
    (void)state;
    char path[64];
    snprintf(path, sizeof path, "/tmp/memtape-snapshot-%ld", (long)getpid());
    writing = mti_snapshot_begin(path, "meta", false);
    assert_non_null(writing);
    mti_snapshot_abandon(writing);
    assert_int_not_equal(access(path, F_OK), 0);
    mti_snapshot_abandon(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_events_take_no_more_memory_than_few),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(a_file_that_is_given_up_is_not_there),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
