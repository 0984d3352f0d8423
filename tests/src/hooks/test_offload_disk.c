/* Offload to disk, through an unlinked file; errors of the disk. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/base.h"
#include "chain.h"
#include "hooks/offload.h"

static char directory[] = "offload-test-XXXXXX";

static int set_up(void **state) { return mkdtemp(directory) ? open_without_workspace(state) : -1; }

static int tear_down(void **state)
{
    int left = mtt_close_device(state);
    return rmdir(directory) || left;
}

static mt_offload *on_disk(void)
{
    return made_offload(mt_offload_new(device, &(mt_offload_options){.directory = directory}));
}

static int count_files(void)
{
    int n = 0;
    DIR *d = opendir(directory);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void gradients_peak_and_bytes_are_those_of_an_offload_to_host_memory(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    mt_offload *o = on_disk();
    for (int i = 0; i < 3; i++) {
        step s = chain_step(&c, o);
        assert_memory_equal(s.grads, plain.grads, LAYERS * D);
        assert_int_equal(s.after_forward, 512);
        assert_int_equal(s.peak,
                         4 * S); /* forward's peak: prefetching reads into host memory only */
        assert_int_equal(plain.peak - s.peak, s.stats.lowered);
        assert_int_equal(s.stats.bytes_out, (LAYERS - 1) * S);
        assert_int_equal(s.stats.bytes_in, (LAYERS - 1) * S);
        assert_int_equal(s.stats.disk_peak, (LAYERS - 1) * S);
        assert_int_equal(s.stats.disk_bytes, 0);
        assert_int_equal(s.stats.host_peak, 2 * S);
        assert_int_equal(s.stats.host_bytes, 0);
        assert_true(s.stats.copy_s > 0);
        assert_int_equal(count_files(), 0);
        free(s.grads);
    }
    mt_offload_free(o);
    free(plain.grads);
    close_chain(&c);
}

static void a_retained_graph_is_read_twice(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    mt_offload *o = on_disk();
    mtt_ok(mt_offload_begin(o));
    MT_AUTO mt_tensor *loss = mtt_made(chain_loss(&c));
    mtt_ok(mt_offload_end(o));
    mtt_ok(mt_backward_with(loss, &(mt_backward_options){.retain_graph = true}));
    chain_check(&c, plain.grads);
    assert_int_equal(stats_of(o).disk_bytes, (LAYERS - 1) * S);
    mtt_ok(mt_backward(loss));
    chain_check(&c, plain.grads);
    assert_int_equal(stats_of(o).n_in, 2 * (LAYERS - 1));
    mt_offload_free(o);
    free(plain.grads);
    close_chain(&c);
}

static void the_file_does_not_grow_from_step_to_step(void **state)
{
    (void)state;
    chain c = open_chain(device);
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = (LAYERS - 1) * S; /* the bytes of one step, and no more */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    mt_offload *o = on_disk();
    for (int i = 0; i < 3; i++) mtt_ok(chain_try(&c, o));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    mt_offload_free(o);
    close_chain(&c);
}

static void a_device_without_data_does_not_use_the_disk(void **state)
{
    (void)state;
    mt_device *meta = mt_device_open("meta");
    chain c = open_chain(meta);
    mt_offload *o =
        made_offload(mt_offload_new(meta, &(mt_offload_options){.directory = directory}));
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    mtt_ok(chain_try(&c, o));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(stats_of(o).disk_peak, (LAYERS - 1) * S);
    mt_offload_free(o);
    close_chain(&c);
    assert_int_equal(mtt_allocated(meta), 0);
    mt_device_release(meta);
}

static void a_missing_directory_is_refused(void **state)
{
    (void)state;
    assert_null(mt_offload_new(device, &(mt_offload_options){.directory = "no/such/place"}));
    mtt_failed(MT_ERR_IO, "no/such/place", "No such file");
}

/* ---- errors of the disk ---- */

static void a_file_that_may_not_grow_fails_the_op(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    struct rlimit before, limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 3 * S + 100;
    mt_offload *o = on_disk();
    size_t were = mtt_allocated(device);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    mt_status status = chain_try(&c, o);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, MT_ERR_IO);
    assert_int_equal(stats_of(o).n_out, 3);
    mtt_failed(MT_ERR_IO, "linear", directory, "65536 bytes", "File too large");
    assert_int_equal(mtt_allocated(device), were);
    assert_int_equal(stats_of(o).disk_bytes, 0);
    mtt_ok(chain_try(&c, o));
    chain_check(&c, plain.grads);
    mt_offload_free(o);
    free(plain.grads);
    close_chain(&c);
}

/* Simulated results of system calls: the calls so far, which call fails, and how. */
static struct {
    int n_write, n_read, n_reserve;
    int bad_write, bad_read, bad_reserve; /* counted from 1; 0: none */
    int error;                            /* 0: end of file, or nothing written */
    bool in_pieces;
} plan;

static size_t piece_size(size_t n) { return plan.in_pieces && n > 1000 ? 1000 : n; }

static ssize_t fail_with(int error)
{
    errno = error;
    return error ? -1 : 0;
}

static ssize_t planned_write(int file, const void *data, size_t n, off_t at)
{
    return ++plan.n_write == plan.bad_write ? fail_with(plan.error)
                                            : pwrite(file, data, piece_size(n), at);
}

static ssize_t planned_read(int file, void *data, size_t n, off_t at)
{
    return ++plan.n_read == plan.bad_read ? fail_with(plan.error)
                                          : pread(file, data, piece_size(n), at);
}

static int planned_reserve(int file, int mode, off_t at, off_t n)
{
    return ++plan.n_reserve == plan.bad_reserve ? (int)fail_with(plan.error)
                                                : fallocate(file, mode, at, n);
}

static mt_offload *on_planned_disk(void)
{
    mt_offload *o = on_disk();
    mti_disk_set_io(mti_offload_disk(o),
                    &(mti_disk_io){planned_write, planned_read, planned_reserve});
    memset(&plan, 0, sizeof plan);
    return o;
}

static void short_and_interrupted_transfers_are_continued(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    mt_offload *o = on_planned_disk();
    plan.in_pieces = true, plan.error = EINTR;
    plan.bad_write = 10, plan.bad_read = 20, plan.bad_reserve = 2;
    mtt_ok(chain_try(&c, o));
    assert_true(plan.n_write > 400 && plan.n_read > 400 && plan.n_reserve > 7);
    chain_check(&c, plain.grads);
    mt_offload_free(o);
    free(plain.grads);
    close_chain(&c);
}

static void a_full_disk_fails_the_op(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    for (int n = 1; n < LAYERS; n++) {
        mt_offload *o = on_planned_disk();
        plan.bad_reserve = n, plan.error = ENOSPC;
        assert_int_equal(chain_try(&c, o), MT_ERR_IO);
        mtt_failed(MT_ERR_IO, "linear", directory, "65536 bytes", "No space left");
        assert_int_equal(stats_of(o).n_out, n - 1);
        mtt_ok(chain_try(&c, o));
        chain_check(&c, plain.grads);
        mt_offload_free(o);
    }
    free(plain.grads);
    close_chain(&c);
}

static void a_file_system_that_cannot_reserve_space_is_used_anyway(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    mt_offload *o = on_planned_disk();
    plan.bad_reserve = 1, plan.error = EOPNOTSUPP;
    mtt_ok(chain_try(&c, o));
    chain_check(&c, plain.grads);
    mt_offload_free(o);
    free(plain.grads);
    close_chain(&c);
}

/* The failure is reported when the write must be complete: in a later op, or at the end. The bytes
 * are still in host memory, so the tape is complete. */
static void a_failed_write_is_reported_and_loses_nothing(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    for (int n = 1; n < LAYERS; n++)
        for (int full = 0; full < 2; full++) {
            mt_offload *o = on_planned_disk();
            plan.bad_write = n, plan.error = full ? 0 : EIO;
            mtt_ok(mt_offload_begin(o));
            MT_AUTO mt_tensor *loss = chain_loss(&c);
            if (!loss) { /* the op left no trace, so the next attempt succeeds */
                mtt_failed(MT_ERR_IO, "linear", directory, "65536 bytes", "written");
                loss = mtt_made(chain_loss(&c));
                mtt_ok(mt_offload_end(o));
            } else {
                assert_int_equal(mt_offload_end(o), MT_ERR_IO);
                mtt_failed(MT_ERR_IO, "linear", full ? "No space left" : "Input/output error");
            }
            mtt_ok(mt_backward(loss));
            chain_check(&c, plain.grads);
            assert_int_equal(stats_of(o).host_bytes, 0);
            mt_offload_free(o);
        }
    free(plain.grads);
    close_chain(&c);
}

static void a_failed_read_fails_the_backward_and_a_second_try_succeeds(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    for (int n = 1; n < LAYERS; n++)
        for (int short_file = 0; short_file < 2; short_file++) {
            mt_offload *o = on_planned_disk();
            plan.bad_read = n, plan.error = short_file ? 0 : EIO;
            mtt_ok(mt_offload_begin(o));
            MT_AUTO mt_tensor *loss = mtt_made(chain_loss(&c));
            mtt_ok(mt_offload_end(o));
            mt_backward_options retain = {.retain_graph = true};
            assert_int_equal(mt_backward_with(loss, &retain), MT_ERR_IO);
            mtt_failed(MT_ERR_IO, "linear", directory, "65536 bytes", "read", "Input/output error");
            chain_zero(&c);
            mtt_ok(mt_backward(loss));
            chain_check(&c, plain.grads);
            mt_offload_free(o);
        }
    free(plain.grads);
    close_chain(&c);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    mt_offload_options options = {.directory = directory};
    assert_true(chain_fail_each(&options, 16) > 100); /* each step waits for the disk */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(gradients_peak_and_bytes_are_those_of_an_offload_to_host_memory),
        mtt_test(a_retained_graph_is_read_twice),
        mtt_test(the_file_does_not_grow_from_step_to_step),
        mtt_test(a_device_without_data_does_not_use_the_disk),
        mtt_test(a_missing_directory_is_refused),
        mtt_test(a_file_that_may_not_grow_fails_the_op),
        mtt_test(short_and_interrupted_transfers_are_continued),
        mtt_test(a_full_disk_fails_the_op),
        mtt_test(a_file_system_that_cannot_reserve_space_is_used_anyway),
        mtt_test(a_failed_write_is_reported_and_loses_nothing),
        mtt_test(a_failed_read_fails_the_backward_and_a_second_try_succeeds),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
