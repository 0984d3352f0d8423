/* The double of NCCL: it finds calls that do not fit together, which the library would not; and
 * what NCCL promises of groups and streams holds. One host thread plays all ranks, each with a
 * stream. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <thread>
#include "backends/cuda/device/nccl.h"
extern "C" {
#include <cmocka.h>
}

enum { N = 8, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };

/* Two ranks, and memory of each. */
static struct {
    nccl_functions call;
    nccl_comm_t comm[2];
    cudaStream_t stream[2];
    float *x[2], *y[2];
} of;

static int state_of(int rank)
{
    int status;
    assert_int_equal(of.call.async_error(of.comm[rank], &status), NCCL_OK);
    return status;
}

/* The state of a rank once it is no more in progress, where nothing is missing for that. */
static int end_of(int rank)
{
    for (int i = 0; i < 20000 && state_of(rank) == NCCL_IN_PROGRESS; i++)
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    return state_of(rank);
}

/* One host thread joins for both ranks, in a group of calls. */
static void join_both()
{
#define LOAD(member, name, result, parameters)                                                     \
    {                                                                                              \
        void *found = cudasim_nccl(#name);                                                         \
        assert_non_null(found);                                                                    \
        memcpy(&of.call.member, &found, sizeof found);                                             \
    }
    NCCL_FUNCTIONS(LOAD)
#undef LOAD
    nccl_id id;
    assert_int_equal(of.call.unique_id(&id), NCCL_OK);
    assert_int_equal(of.call.group_start(), NCCL_OK);
    for (int r = 0; r < 2; r++) {
        nccl_config config = {sizeof config, NCCL_MAGIC, NCCL_NEEDED, 0};
        assert_int_equal(of.call.init(&of.comm[r], 2, id, r, &config), NCCL_OK);
        assert_int_equal(cudaStreamCreate(&of.stream[r]), cudaSuccess);
        assert_int_equal(cudaMalloc(&of.x[r], 2 * N * sizeof(float)), cudaSuccess);
        assert_int_equal(cudaMalloc(&of.y[r], 2 * N * sizeof(float)), cudaSuccess);
        for (int i = 0; i < 2 * N; i++) of.x[r][i] = (float)(100 * r + i);
    }
    assert_int_equal(of.call.group_end(), NCCL_IN_PROGRESS);
}

static int send_alone(int rank, size_t n)
{
    return of.call.send(of.x[rank], n, NCCL_F32, 1 - rank, of.comm[rank], of.stream[rank]);
}
static int receive_alone(int rank, size_t n)
{
    return of.call.recv(of.y[rank], n, NCCL_F32, 1 - rank, of.comm[rank], of.stream[rank]);
}

/* Joins and connects both, for all that they may do. */
static void open_both()
{
    join_both();
    for (int r = 0; r < 2; r++) assert_int_equal(end_of(r), NCCL_OK);
    assert_int_equal(of.call.group_start(), NCCL_OK);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(
            of.call.all_reduce(of.x[r], of.y[r], 1, NCCL_F32, NCCL_SUM, of.comm[r], of.stream[r]),
            NCCL_OK);
        assert_true(send_alone(r, 1) == NCCL_OK && receive_alone(r, 1) == NCCL_OK);
    }
    assert_int_equal(of.call.group_end(), NCCL_IN_PROGRESS);
    for (int r = 0; r < 2; r++) assert_int_equal(end_of(r), NCCL_OK);
    for (int r = 0; r < 2; r++) assert_int_equal(cudaStreamSynchronize(of.stream[r]), cudaSuccess);
}

static void close_both()
{
    for (int r = 0; r < 2; r++) of.call.abort(of.comm[r]);
    for (int r = 0; r < 2; r++) {
        cudaStreamDestroy(of.stream[r]);
        cudaFree(of.x[r]), cudaFree(of.y[r]);
    }
}

/* What a call has come to. */
static int come_to(int rank, int status)
{
    return status == NCCL_IN_PROGRESS ? end_of(rank) : status;
}

static int reduce(int rank, size_t n, int dtype, int root)
{
    return come_to(rank, of.call.reduce(of.x[rank], of.y[rank], n, dtype, NCCL_SUM, root,
                                        of.comm[rank], of.stream[rank]));
}

static void a_call_waits_for_all_ranks_in_its_stream_only(void **)
{
    open_both();
    assert_int_equal(reduce(0, N, NCCL_F32, 0), NCCL_OK);
    assert_int_equal(cudaStreamQuery(of.stream[0]), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(of.stream[1]), cudaSuccess);
    assert_int_equal(reduce(1, N, NCCL_F32, 0), NCCL_OK);
    assert_int_equal(cudaStreamSynchronize(of.stream[0]), cudaSuccess);
    for (int i = 0; i < N; i++) assert_true(of.y[0][i] == (float)(100 + 2 * i));
    close_both();
}

/* Both ranks find out. */
static void two_calls_fail(size_t n, int dtype, int root)
{
    open_both();
    assert_int_equal(reduce(0, N, NCCL_F32, 0), NCCL_OK);
    assert_int_equal(reduce(1, n, dtype, root), INVALID_USAGE);
    assert_int_equal(state_of(0), INVALID_USAGE);
    assert_int_equal(state_of(1), INVALID_USAGE);
    close_both();
}

static void calls_that_differ_are_found(void **)
{
    two_calls_fail(N - 1, NCCL_F32, 0);
    two_calls_fail(N, NCCL_BF16, 0);
    two_calls_fail(N, NCCL_F32, 1);
    open_both();
    assert_int_equal(reduce(0, N, NCCL_F32, 0), NCCL_OK);
    assert_int_equal(
        of.call.all_reduce(of.x[1], of.y[1], N, NCCL_F32, NCCL_SUM, of.comm[1], of.stream[1]),
        INVALID_USAGE);
    close_both();
}

static void what_no_rank_may_ask_is_found(void **)
{
    open_both();
    assert_int_equal(reduce(0, N, NCCL_F32, 2), INVALID_ARGUMENT);
    close_both();
    open_both(); /* the other rank's part of the whole */
    assert_int_equal(
        of.call.all_gather(of.y[0] + N, of.y[0], N, NCCL_F32, of.comm[0], of.stream[0]),
        INVALID_ARGUMENT);
    close_both();
    open_both();
    assert_int_equal(of.call.send(of.x[0], N, NCCL_F32, 0, of.comm[0], of.stream[0]),
                     INVALID_ARGUMENT);
    assert_int_equal(of.call.group_end(), INVALID_USAGE);
    close_both();
}

static void two_ranks_on_one_gpu_are_refused_but_where_a_test_wants_them(void **)
{
    unsetenv("CUDASIM_SHARED_GPU");
    join_both();
    for (int r = 0; r < 2; r++) assert_int_equal(state_of(r), INVALID_USAGE);
    close_both();
    setenv("CUDASIM_SHARED_GPU", "1", 1);
}

/* NCCL would wait for a rank that has long joined. */
static void a_name_serves_one_group(void **)
{
    nccl_id id;
    nccl_comm_t alone, again;
    nccl_config config = {sizeof config, NCCL_MAGIC, NCCL_NEEDED, 0};
    assert_int_equal(of.call.unique_id(&id), NCCL_OK);
    of.call.init(&alone, 1, id, 0, &config);
    assert_int_equal(of.call.init(&again, 1, id, 0, &config), INVALID_USAGE);
    assert_int_equal(of.call.abort(alone), NCCL_OK);
}

static void a_rank_sends_to_itself_in_a_group_that_receives_it(void **)
{
    for (int n_received = 0; n_received < 2; n_received++) {
        open_both();
        assert_int_equal(of.call.group_start(), NCCL_OK);
        assert_int_equal(of.call.send(of.x[1], N, NCCL_F32, 1, of.comm[1], of.stream[1]), NCCL_OK);
        if (n_received)
            assert_int_equal(of.call.recv(of.y[1], N, NCCL_F32, 1, of.comm[1], of.stream[1]),
                             NCCL_OK);
        assert_int_equal(come_to(1, of.call.group_end()),
                         n_received ? (int)NCCL_OK : (int)INVALID_USAGE);
        if (n_received) {
            assert_int_equal(cudaStreamSynchronize(of.stream[1]), cudaSuccess);
            assert_true(of.y[1][3] == of.x[1][3]);
        }
        close_both();
    }
}

static int send(int rank, size_t n)
{
    int status = send_alone(rank, n);
    return status == NCCL_OK ? end_of(rank) : status;
}
static int receive(int rank, size_t n)
{
    int status = receive_alone(rank, n);
    return status == NCCL_OK ? end_of(rank) : status;
}

/* Each sends before it receives: nothing is buffered. In a group both start together. */
static void sends_wait_for_their_receivers_but_in_a_group(void **)
{
    open_both();
    for (int r = 0; r < 2; r++) assert_true(send(r, N) == NCCL_OK && receive(r, N) == NCCL_OK);
    for (int r = 0; r < 2; r++) assert_int_equal(cudaStreamQuery(of.stream[r]), cudaErrorNotReady);
    close_both();
    open_both();
    for (int r = 0; r < 2; r++) {
        assert_int_equal(of.call.group_start(), NCCL_OK);
        assert_true(send_alone(r, N) == NCCL_OK && receive_alone(r, N) == NCCL_OK);
        assert_int_equal(come_to(r, of.call.group_end()), NCCL_OK);
    }
    for (int r = 0; r < 2; r++) {
        assert_int_equal(cudaStreamSynchronize(of.stream[r]), cudaSuccess);
        assert_true(of.y[r][3] == of.x[1 - r][3]);
    }
    close_both();
}

/* As the library may read late, what changes meanwhile is sent changed. */
static void what_is_sent_is_read_when_the_receiver_is_there(void **)
{
    open_both();
    assert_int_equal(send(0, N), NCCL_OK);
    of.x[0][0] = 42;
    assert_int_equal(receive(1, N), NCCL_OK);
    assert_int_equal(cudaStreamSynchronize(of.stream[1]), cudaSuccess);
    assert_true(of.y[1][0] == 42);
    close_both();
}

static void a_message_of_another_length_is_found(void **)
{
    open_both();
    assert_int_equal(send(0, N), NCCL_OK);
    assert_int_equal(receive_alone(1, N - 1), NCCL_OK);
    end_of(1);
    cudaStreamQuery(of.stream[1]);
    assert_int_equal(state_of(0), INVALID_USAGE);
    assert_int_equal(state_of(1), INVALID_USAGE);
    close_both();
}

static void a_group_ends_when_all_its_ranks_end_it(void **)
{
    open_both();
    assert_int_equal(of.call.finalize(of.comm[0]), NCCL_IN_PROGRESS);
    assert_int_equal(state_of(0), NCCL_IN_PROGRESS);
    assert_int_equal(reduce(0, N, NCCL_F32, 0), INVALID_USAGE);
    close_both();
    open_both();
    of.call.finalize(of.comm[0]);
    std::thread([] { of.call.finalize(of.comm[1]); }).join();
    for (int r = 0; r < 2; r++) {
        assert_int_equal(end_of(r), NCCL_OK);
        assert_int_equal(of.call.destroy(of.comm[r]), NCCL_OK);
    }
    close_both();
}

/* ---- what a first call waits for ---- */

static void need_in_progress(int rank)
{
    std::this_thread::sleep_for(std::chrono::milliseconds(60));
    assert_int_equal(state_of(rank), NCCL_IN_PROGRESS);
    assert_int_equal(cudaStreamQuery(of.stream[rank]), cudaSuccess);
}

static void a_first_message_is_in_progress_until_its_receiver_calls(void **)
{
    join_both();
    for (int r = 0; r < 2; r++) assert_int_equal(end_of(r), NCCL_OK);
    assert_int_equal(send_alone(0, N), NCCL_OK);
    need_in_progress(0);
    std::thread([] { receive_alone(1, N); }).join();
    for (int r = 0; r < 2; r++) assert_int_equal(end_of(r), NCCL_OK);
    assert_int_equal(cudaStreamSynchronize(of.stream[1]), cudaSuccess);
    assert_true(of.y[1][3] == of.x[0][3]);
    assert_int_equal(send(0, N), NCCL_OK); /* connected: no more than its stream waits */
    close_both();
}

static void a_first_collective_is_in_progress_until_all_ranks_call(void **)
{
    join_both();
    for (int r = 0; r < 2; r++) assert_int_equal(end_of(r), NCCL_OK);
    assert_int_equal(
        of.call.reduce(of.x[0], of.y[0], N, NCCL_F32, NCCL_SUM, 0, of.comm[0], of.stream[0]),
        NCCL_IN_PROGRESS);
    need_in_progress(0);
    std::thread([] { reduce(1, N, NCCL_F32, 0); }).join();
    assert_int_equal(end_of(0), NCCL_OK);
    close_both();
}

static void a_call_is_queued_when_its_state_is_asked(void **)
{
    open_both();
    assert_int_equal(send_alone(0, N), NCCL_OK);
    assert_int_equal(cudaStreamQuery(of.stream[0]), cudaSuccess);
    assert_int_equal(state_of(0), NCCL_OK);
    assert_int_equal(cudaStreamQuery(of.stream[0]), cudaErrorNotReady);
    close_both();
}

static void a_thread_has_one_group_under_way(void **)
{
    join_both();
    assert_int_equal(of.call.group_start(), INVALID_USAGE);
    for (int r = 0; r < 2; r++) assert_int_equal(end_of(r), NCCL_OK);
    assert_int_equal(send_alone(0, N), NCCL_OK);
    assert_int_equal(receive_alone(1, N), INVALID_USAGE);
    close_both();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_waits_for_all_ranks_in_its_stream_only),
        cmocka_unit_test(calls_that_differ_are_found),
        cmocka_unit_test(what_no_rank_may_ask_is_found),
        cmocka_unit_test(two_ranks_on_one_gpu_are_refused_but_where_a_test_wants_them),
        cmocka_unit_test(a_name_serves_one_group),
        cmocka_unit_test(a_rank_sends_to_itself_in_a_group_that_receives_it),
        cmocka_unit_test(sends_wait_for_their_receivers_but_in_a_group),
        cmocka_unit_test(what_is_sent_is_read_when_the_receiver_is_there),
        cmocka_unit_test(a_message_of_another_length_is_found),
        cmocka_unit_test(a_group_ends_when_all_its_ranks_end_it),
        cmocka_unit_test(a_first_message_is_in_progress_until_its_receiver_calls),
        cmocka_unit_test(a_first_collective_is_in_progress_until_all_ranks_call),
        cmocka_unit_test(a_call_is_queued_when_its_state_is_asked),
        cmocka_unit_test(a_thread_has_one_group_under_way),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
