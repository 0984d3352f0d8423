/* Offload to disk: through a file that nobody sees, and what a disk may refuse. */
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

/* Forward and backward; the status of what failed first. */
static void gradients_peak_and_bytes_are_those_of_host_memory_but_for_where_they_wait(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    mt_offload *o = on_disk();
    for (int i = 0; i < 3; i++) {
        step s = chain_step(&c, o);
        assert_memory_equal(s.grads, plain.grads, LAYERS * D);
        assert_int_equal(s.after_forward, 512);
        assert_int_equal(s.peak, 4 * S); /* forward's: reading ahead is into host memory only */
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
    limit.rlim_cur = (LAYERS - 1) * S; /* one step's and not a byte more */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    mt_offload *o = on_disk();
    for (int i = 0; i < 3; i++) mtt_ok(chain_try(&c, o));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    mt_offload_free(o);
    close_chain(&c);
}

static void a_device_without_data_leaves_the_disk_alone(void **state)
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

static void a_directory_that_is_not_there_is_refused(void **state)
{
    (void)state;
    assert_null(mt_offload_new(device, &(mt_offload_options){.directory = "no/such/place"}));
    mtt_failed(MT_ERR_IO, "no/such/place", "No such file");
}

/* ---- a disk that refuses ---- */

static void a_file_that_may_not_grow_fails_the_op_that_asked(void **state)
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

/* What the system is made to say: the calls so far, and at which one to fail, how. */
static struct {
    int n_write, n_read, n_reserve;
    int bad_write, bad_read, bad_reserve; /* counted from 1; 0: none */
    int error;                            /* 0: end of file, or nothing written */
    bool in_pieces;
} say;

static size_t piece(size_t n) { return say.in_pieces && n > 1000 ? 1000 : n; }

static ssize_t bad(int error)
{
    errno = error;
    return error ? -1 : 0;
}

static ssize_t say_write(int file, const void *data, size_t n, off_t at)
{
    return ++say.n_write == say.bad_write ? bad(say.error) : pwrite(file, data, piece(n), at);
}

static ssize_t say_read(int file, void *data, size_t n, off_t at)
{
    return ++say.n_read == say.bad_read ? bad(say.error) : pread(file, data, piece(n), at);
}

static int say_reserve(int file, int mode, off_t at, off_t n)
{
    return ++say.n_reserve == say.bad_reserve ? (int)bad(say.error) : fallocate(file, mode, at, n);
}

static mt_offload *on_planned_disk(void)
{
    mt_offload *o = on_disk();
    mti_disk_set_io(mti_offload_disk(o), &(mti_disk_io){say_write, say_read, say_reserve});
    memset(&say, 0, sizeof say);
    return o;
}

static void short_and_interrupted_transfers_go_on(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    mt_offload *o = on_planned_disk();
    say.in_pieces = true, say.error = EINTR;
    say.bad_write = 10, say.bad_read = 20, say.bad_reserve = 2;
    mtt_ok(chain_try(&c, o));
    assert_true(say.n_write > 400 && say.n_read > 400 && say.n_reserve > 7);
    chain_check(&c, plain.grads);
    mt_offload_free(o);
    free(plain.grads);
    close_chain(&c);
}

static void a_full_disk_fails_the_op_that_asked(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    for (int n = 1; n < LAYERS; n++) {
        mt_offload *o = on_planned_disk();
        say.bad_reserve = n, say.error = ENOSPC;
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

static void a_file_system_that_cannot_promise_room_is_used_all_the_same(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    mt_offload *o = on_planned_disk();
    say.bad_reserve = 1, say.error = EOPNOTSUPP;
    mtt_ok(chain_try(&c, o));
    chain_check(&c, plain.grads);
    mt_offload_free(o);
    free(plain.grads);
    close_chain(&c);
}

/* The failure comes to light when the storage has to have left: in a later op, or at the end. Its
 * bytes are in host memory still, so the tape is whole. */
static void a_failed_write_is_told_and_loses_nothing(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    for (int n = 1; n < LAYERS; n++)
        for (int full = 0; full < 2; full++) {
            mt_offload *o = on_planned_disk();
            say.bad_write = n, say.error = full ? 0 : EIO;
            mtt_ok(mt_offload_begin(o));
            MT_AUTO mt_tensor *loss = chain_loss(&c);
            if (!loss) { /* the op is as if it had not been: the next attempt goes through */
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

static void a_failed_read_fails_the_backward_which_may_be_tried_again(void **state)
{
    (void)state;
    chain c = open_chain(device);
    step plain = chain_step(&c, NULL);
    for (int n = 1; n < LAYERS; n++)
        for (int short_file = 0; short_file < 2; short_file++) {
            mt_offload *o = on_planned_disk();
            say.bad_read = n, say.error = short_file ? 0 : EIO;
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
        mtt_test(gradients_peak_and_bytes_are_those_of_host_memory_but_for_where_they_wait),
        mtt_test(a_retained_graph_is_read_twice),
        mtt_test(the_file_does_not_grow_from_step_to_step),
        mtt_test(a_device_without_data_leaves_the_disk_alone),
        mtt_test(a_directory_that_is_not_there_is_refused),
        mtt_test(a_file_that_may_not_grow_fails_the_op_that_asked),
        mtt_test(short_and_interrupted_transfers_go_on),
        mtt_test(a_full_disk_fails_the_op_that_asked),
        mtt_test(a_file_system_that_cannot_promise_room_is_used_all_the_same),
        mtt_test(a_failed_write_is_told_and_loses_nothing),
        mtt_test(a_failed_read_fails_the_backward_which_may_be_tried_again),
        mtt_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
