/* Collectives among the threads of one process. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "comm/comm.h"
#include "ranks.h"

typedef struct one {
    mt_comm *comm;
    mtt_rank_fn *run;
} one;

static void *run_one(void *argument)
{
    const one *o = argument;
    o->run(o->comm);
    mt_comm_free(o->comm);
    return NULL;
}

void mtt_as_threads(int64_t ranks, mtt_rank_fn *run)
{
    mt_comm *ends[8];
    pthread_t threads[8];
    one each[8];
    mtt_ok(mt_comm_of_threads(ranks, ends));
    for (int64_t r = 0; r < ranks; r++) {
        each[r] = (one){ends[r], run};
        assert_int_equal(pthread_create(&threads[r], NULL, run_one, &each[r]), 0);
    }
    for (int64_t r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
}

static void collectives_move_and_add_in_every_dtype_and_layout(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= 5; ranks += ranks < 3 ? 1 : 2)
        mtt_as_threads(ranks, mtt_check_collectives);
}

static void a_group_can_be_split(void **state)
{
    (void)state;
    mtt_as_threads(4, mtt_check_split);
    mtt_as_threads(5, mtt_check_split);
}

static int64_t most_ranks(void) { return mtt_short_simulation() ? 4 : 8; }

static void stages_of_pipelines_get_their_messages(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= most_ranks(); ranks++) mtt_as_threads(ranks, mtt_check_stages);
}

static void exchanges_go_on_behind_the_ranks_own(void **state)
{
    (void)state;
    for (int64_t ranks = 1; ranks <= most_ranks(); ranks++) mtt_as_threads(ranks, mtt_check_behind);
}

/* One rank begins no exchange, and leaves. */
static void leave_behind(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    char out = 1, in[3];
    MTT_NEED(mti_comm_go_behind(comm));
    if (group.rank == 1) return;
    for (int64_t r = 0; r < group.ranks; r++) {
        comm->out[r] = (mti_span){&out, 1};
        comm->in[r] = (mti_span){&in[r], 1};
    }
    mti_job *job = mti_comm_begin(comm);
    MTT_NEED(job);
    MTT_NEED(!mti_comm_finish(comm, job));
    mtt_failed(MT_ERR_UNSUPPORTED, "of 3", "has left");
}

static void nobody_waits_behind_for_a_rank_that_has_left(void **state)
{
    (void)state;
    mtt_as_threads(3, leave_behind);
}

/* A neighbour that leaves: neither what it would send nor what it would take is waited for. */
static void leave_the_ring(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    if (group.rank == 1) return;
    mt_device *device = mt_device_open("cpu");
    mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(3));
    mt_tensor *y = mt_send(x, &group), *got = mt_recv(x, &group); /* rank 2 sends to 0 */
    MTT_NEED(!y || !got); /* one of the two, by whether rank 1 left first */
    mt_release(got);
    mtt_failed(MT_ERR_UNSUPPORTED, "of 3", "rank 1 has left");
    mt_release(y);
    mt_release(x);
    mt_device_release(device);
}

static void nobody_waits_for_a_neighbour_that_has_left(void **state)
{
    (void)state;
    mtt_as_threads(3, leave_the_ring);
}

/* A group that one rank leaves; the others must not wait for it. */
static void leave_first(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    if (group.rank == 1) return;
    mt_device *device = mt_device_open("cpu");
    mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(3));
    MTT_NEED(!mt_all_reduce(x, &group));
    mtt_failed(MT_ERR_UNSUPPORTED, "of 3", "has left");
    mt_release(x);
    mt_device_release(device);
}

static void nobody_waits_for_a_rank_that_has_left(void **state)
{
    (void)state;
    mtt_as_threads(3, leave_first);
}

static void unequal_shapes(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    mt_device *device = mt_device_open("cpu");
    mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(3 + group.rank));
    MTT_NEED(!mt_all_gather(x, 0, &group));
    mtt_failed(MT_ERR_UNSUPPORTED, "bytes; need");
    mt_release(x);
    mt_device_release(device);
}

static void unequal_shapes_are_refused(void **state)
{
    (void)state;
    mtt_as_threads(2, unequal_shapes);
}

static void wrong_groups_are_refused(void **state)
{
    (void)state;
    mt_comm *ends[2];
    assert_int_equal(mt_comm_of_threads(0, ends), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "0 ranks; need 1");
    mtt_ok(mt_comm_of_threads(2, ends));
    mt_device *device = mt_device_open("cpu");
    mt_tensor *x = mt_zeros(device, MT_F32, MT_SHAPE(3));
    mt_group other = {3, 0, ends[0]};
    assert_null(mt_all_reduce(x, &other));
    mtt_failed(MT_ERR_ARGUMENT, "rank 0 of 3", "another");
    mt_release(x);
    mt_device_release(device);
    mt_comm_free(ends[0]);
    mt_comm_free(ends[1]);
    assert_null(mt_comm_open("carrier"));
    mtt_failed(MT_ERR_UNSUPPORTED, "carrier", "mpi");
    assert_null(mt_comm_open(NULL));
    mtt_failed(MT_ERR_ARGUMENT, "the kind");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_move_and_add_in_every_dtype_and_layout),
        cmocka_unit_test(a_group_can_be_split),
        cmocka_unit_test(stages_of_pipelines_get_their_messages),
        cmocka_unit_test(exchanges_go_on_behind_the_ranks_own),
        cmocka_unit_test(nobody_waits_behind_for_a_rank_that_has_left),
        cmocka_unit_test(nobody_waits_for_a_neighbour_that_has_left),
        cmocka_unit_test(nobody_waits_for_a_rank_that_has_left),
        cmocka_unit_test(unequal_shapes_are_refused),
        cmocka_unit_test(wrong_groups_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
