/* Ranks know their place among all, and the ranks of each of their groups. */
#include "as_ranks.h"

static void tensor_ranks_are_neighbours_then_come_context_ranks_data_ranks_stages(void **state)
{
    (void)state;
    mt_parallel h = {.tensor = 2, .context = 5, .data = 3, .pipeline = 2};
    for (int64_t n = 0; n < 60; n++) {
        mtt_ok(mt_parallel_locate(&h, n));
        assert_int_equal(h.tensor_rank, n % 2);
        assert_int_equal(h.context_rank, n / 2 % 5);
        assert_int_equal(h.data_rank, n / 10 % 3);
        assert_int_equal(h.stage, n / 30);
    }
    assert_int_equal(mt_parallel_locate(&h, 60), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "rank 60 of 60", "0 to 59");
    assert_int_equal(mt_parallel_locate(&(mt_parallel){.data = -1}, 0), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "data -1");
}

static void is(const mt_comm *comm, int64_t ranks, int64_t rank)
{
    mt_group group = mt_comm_group((mt_comm *)comm);
    MTT_NEED(comm && group.ranks == ranks && group.rank == rank);
}

/* Neighbours have the other shards, in each of 3 groups. */
static void check_shards(mt_comm *world, void *user)
{
    (void)user;
    mt_parallel h = {.context = 2, .data = 6, .zero = 3, .replicas = 3, .reshard = 2};
    const int64_t rank = mt_comm_group(world).rank;
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    is(h.data_comm, 12, rank);
    is(h.shard_comm, 4, rank % 4);
    is(h.replica_comm, 3, rank / 4);
    is(h.reshard_comm, 2, rank % 2);
    mt_parallel_close(&h);
    MTT_NEED(!h.shard_comm && !h.replica_comm && !h.reshard_comm);
    h.replicas = 5;
    MTT_NEED(mt_parallel_place(&h, world) == MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "replicas is 5", "divisor of data times context, 12");
}

static void replicas_of_shards_know_both_of_their_groups(void **state)
{
    (void)state;
    mtt_as_ranks(12, check_shards, NULL);
}

static void check_groups(mt_comm *world, void *user)
{
    (void)user;
    mt_parallel h = {.tensor = 2, .context = 2, .data = 2, .pipeline = 2};
    mt_group all = mt_comm_group(world);
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    MTT_NEED(h.tensor_rank + 2 * h.context_rank + 4 * h.data_rank + 8 * h.stage == all.rank);
    is(h.tensor_comm, 2, h.tensor_rank);
    is(h.context_comm, 2, h.context_rank);
    is(h.data_comm, 4, 2 * h.data_rank + h.context_rank);
    is(h.pipeline_comm, 2, h.stage);
    is(h.ends_comm, 2, h.stage);
    /* who is in each group: the sum of their numbers */
    const struct {
        mt_comm *comm;
        int64_t step;
        int64_t place;
    } groups[] = {{h.tensor_comm, 1, h.tensor_rank},
                  {h.context_comm, 2, h.context_rank},
                  {h.pipeline_comm, 8, h.stage}};
    mt_device *device = mt_device_open("cpu");
    for (int i = 0; i < 3; i++) {
        mt_group group = mt_comm_group(groups[i].comm);
        MT_AUTO mt_tensor *own = mt_full(device, MT_F32, MT_SHAPE(1), (double)all.rank);
        MT_AUTO mt_tensor *sum = mt_all_reduce(own, &group);
        int64_t first = all.rank - groups[i].place * groups[i].step;
        MTT_NEED(sum && mt_item(sum) == (double)(2 * first + groups[i].step));
    }
    mt_group same = mt_comm_group(h.data_comm); /* all pieces of all data of this stage */
    MT_AUTO mt_tensor *own = mt_full(device, MT_F32, MT_SHAPE(1), (double)all.rank);
    MT_AUTO mt_tensor *sum = mt_all_reduce(own, &same);
    MTT_NEED(sum && mt_item(sum) == (double)(4 * (8 * h.stage + h.tensor_rank) + 2 + 4 + 6));
    mt_device_release(device);
    mt_parallel_close(&h);
    MTT_NEED(!h.tensor_comm && !h.context_comm && !h.data_comm && !h.pipeline_comm && !h.ends_comm);
    h = (mt_parallel){.tensor = 4, .pipeline = 4}; /* two stages are between the ends */
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    if (h.stage == 0 || h.stage == 3)
        is(h.ends_comm, 2, h.stage == 3);
    else
        MTT_NEED(!h.ends_comm);
    mt_parallel_close(&h);
}

static void each_group_has_the_ranks_that_differ_in_one_way(void **state)
{
    (void)state;
    mtt_as_ranks(16, check_groups, NULL);
}

static void check_refusals(mt_comm *world, void *user)
{
    (void)user;
    static const mt_model_config gpt = {
        .hidden = 32, .heads = 4, .layers = 2, .vocab = 64, .context = 16};
    mt_parallel h = {.tensor = 3};
    MTT_NEED(mt_parallel_place(&h, world) == MT_ERR_ARGUMENT && !h.tensor_comm);
    mtt_failed(MT_ERR_ARGUMENT, "there are 2 ranks", "need 3");
    h = (mt_parallel){.tensor = 2};
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    MTT_NEED(mt_parallel_check(&h, &gpt) == MT_OK);
    h.tensor_rank = 1 - h.tensor_rank; /* the comm says otherwise */
    MTT_NEED(mt_parallel_check(&h, &gpt) == MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "tensor_comm is rank");
    mt_parallel_close(&h);
}

static void another_number_of_ranks_and_anothers_comm_are_refused(void **state)
{
    (void)state;
    mtt_as_ranks(2, check_refusals, NULL);
    static const mt_model_config gpt = {
        .hidden = 32, .heads = 4, .layers = 2, .vocab = 64, .context = 16};
    assert_int_equal(mt_parallel_check(&(mt_parallel){.tensor = 2, .tensor_rank = 2}, &gpt),
                     MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "tensor_rank is 2", "0 to 1");
    assert_int_equal(mt_parallel_place(&(mt_parallel){0}, NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the world");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(replicas_of_shards_know_both_of_their_groups),
        cmocka_unit_test(tensor_ranks_are_neighbours_then_come_context_ranks_data_ranks_stages),
        cmocka_unit_test(each_group_has_the_ranks_that_differ_in_one_way),
        cmocka_unit_test(another_number_of_ranks_and_anothers_comm_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
