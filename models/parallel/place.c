/* place.c: which of all ranks this one is, and its comms to those of its groups. */
#include <inttypes.h>
#include "parallel/parallel.h"

/* Ranks of one stage, and of all; false if they cannot be counted. */
static bool count_ranks(const mt_parallel *h, int64_t *of_a_stage, int64_t *all)
{
    return (h->tensor > 0 && h->context > 0 && h->data > 0 && h->pipeline > 0 &&
            !__builtin_mul_overflow(h->tensor, h->context, of_a_stage) &&
            !__builtin_mul_overflow(*of_a_stage, h->data, of_a_stage) &&
            !__builtin_mul_overflow(*of_a_stage, h->pipeline, all)) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "parallel: tensor %" PRId64 ", context %" PRId64 ", data %" PRId64
                         ", pipeline %" PRId64
                         "; need at least 1 of each, and a product that can be counted",
                         h->tensor, h->context, h->data, h->pipeline);
}

mt_status mt_parallel_locate(mt_parallel *parallel, int64_t number)
{
    int64_t of_a_stage = 0, all = 0;
    if (!parallel) return mti_fail(MT_ERR_ARGUMENT, "parallel_locate: the parallel is NULL");
    mt_parallel h = mti_filled_in(parallel);
    if (!count_ranks(&h, &of_a_stage, &all)) return mt_last_status();
    if (number < 0 || number >= all)
        return mti_fail(MT_ERR_ARGUMENT,
                        "parallel_locate: rank %" PRId64 " of %" PRId64 "; need 0 to %" PRId64,
                        number, all, all - 1);
    parallel->tensor_rank = number % h.tensor;
    parallel->context_rank = number / h.tensor % h.context;
    parallel->data_rank = number / h.tensor / h.context % h.data;
    parallel->stage = number / of_a_stage;
    return MT_OK;
}

/* The first stage and the last; the ranks between them are left with none. */
static bool split_ends(mt_parallel *parallel, const mt_parallel *h, mt_comm *world, int64_t number,
                       int64_t of_a_stage)
{
    bool end = parallel->stage == 0 || parallel->stage == h->pipeline - 1;
    mt_comm *comm = mt_comm_split(world, end ? number % of_a_stage : of_a_stage, number);
    bool made = comm != NULL;
    if (!end) mt_comm_free(comm), comm = NULL;
    parallel->ends_comm = comm;
    return made;
}

/* Ranks of the group `by`, which counts within those with the same shard, of which `all` is one. */
static mt_comm *split_data(mt_comm *world, const mt_group *all, int64_t with_shard, int64_t by)
{
    return mt_comm_split(world, with_shard * all->ranks + by, all->rank);
}

/* Groups among those with the same shard. */
static bool split_shards(mt_parallel *parallel, const mt_parallel *h, mt_comm *world)
{
    const int64_t shard = parallel->stage * h->tensor + parallel->tensor_rank;
    mt_parallel placed = mti_filled_in(parallel);
    const mt_group all = mti_data_group(&placed), shards = mti_shard_group(&placed);
    if (h->replicas > 1 &&
        (!(parallel->shard_comm = split_data(world, &all, shard, all.rank / shards.ranks)) ||
         !(parallel->replica_comm = split_data(world, &all, shard, shards.rank))))
        return false;
    const bool folds = mti_folds_experts(&placed);
    const int64_t t = folds ? h->tensor : 1, ends = t * shards.ranks / h->expert;
    const mt_group each = {t * all.ranks,
                           folds ? h->tensor * all.rank + parallel->tensor_rank : all.rank};
    const int64_t with = folds ? parallel->stage : shard, neighbours = each.rank / h->expert;
    if (mti_divides_experts(&placed) &&
        (!(parallel->expert_comm = split_data(world, &each, with, neighbours)) ||
         !(parallel->expert_data_comm = split_data(
               world, &each, with, neighbours / ends * h->expert + each.rank % h->expert))))
        return false;
    return h->reshard < 2 ||
           (parallel->reshard_comm = split_data(world, &all, shard, all.rank / h->reshard)) != NULL;
}

/* The ranks of each group keep their order among all. */
static bool split(mt_parallel *parallel, const mt_parallel *h, mt_comm *world, int64_t number)
{
    int64_t of_a_stage = h->tensor * h->context * h->data, of_a_data_rank = h->tensor * h->context;
    return (parallel->tensor_comm = mt_comm_split(world, number / h->tensor, number)) &&
           (parallel->context_comm = mt_comm_split(
                world, number / of_a_data_rank * h->tensor + parallel->tensor_rank, number)) &&
           (parallel->data_comm = mt_comm_split(
                world, parallel->stage * h->tensor + parallel->tensor_rank, number)) &&
           (parallel->pipeline_comm = mt_comm_split(world, number % of_a_stage, number)) &&
           (h->pipeline == 1 || split_ends(parallel, h, world, number, of_a_stage)) &&
           split_shards(parallel, h, world);
}

/* owned: they are freed, too. */
static void forget_comms(mt_parallel *p, bool owned)
{
    mt_comm **const comms[] = {&p->tensor_comm,     &p->context_comm, &p->data_comm,
                               &p->pipeline_comm,   &p->ends_comm,    &p->shard_comm,
                               &p->replica_comm,    &p->reshard_comm, &p->expert_comm,
                               &p->expert_data_comm};
    for (size_t i = 0; i < sizeof comms / sizeof *comms; i++) {
        if (owned) mt_comm_free(*comms[i]);
        *comms[i] = NULL;
    }
}

mt_status mt_parallel_place(mt_parallel *parallel, mt_comm *world)
{
    int64_t of_a_stage = 0, all = 0;
    if (!mti_given(world, "parallel_place", "the world")) return mt_last_status();
    if (!parallel) return mti_fail(MT_ERR_ARGUMENT, "parallel_place: the parallel is NULL");
    mt_parallel h = mti_filled_in(parallel), placed = *parallel;
    const mt_group group = mt_comm_group(world);
    if (!count_ranks(&h, &of_a_stage, &all)) return mt_last_status();
    if (h.replicas < 1 || mti_data_group(&h).ranks % h.replicas)
        return mti_fail(MT_ERR_ARGUMENT,
                        "parallel_place: replicas is %" PRId64 "; need a divisor of data times "
                        "context, %" PRId64,
                        h.replicas, mti_data_group(&h).ranks);
    if (h.expert < 1 || mti_token_group(&h).ranks % h.expert)
        return mti_fail(MT_ERR_ARGUMENT,
                        "parallel_place: expert is %" PRId64 "; need a divisor of data times "
                        "context over replicas%s, %" PRId64,
                        h.expert, mti_folds_experts(&h) ? ", times tensor" : "",
                        mti_token_group(&h).ranks);
    if (group.ranks != all)
        return mti_fail(MT_ERR_ARGUMENT,
                        "parallel_place: there are %" PRId64 " ranks; tensor %" PRId64
                        " x context %" PRId64 " x data %" PRId64 " x pipeline %" PRId64
                        " need %" PRId64,
                        group.ranks, h.tensor, h.context, h.data, h.pipeline, all);
    forget_comms(&placed, false);
    if (mt_parallel_locate(&placed, group.rank) != MT_OK) return mt_last_status();
    if (split(&placed, &h, world, group.rank)) {
        *parallel = placed;
        return MT_OK;
    }
    mt_parallel_close(&placed);
    return mt_last_status();
}

void mt_parallel_close(mt_parallel *parallel)
{
    if (parallel) forget_comms(parallel, true);
}
