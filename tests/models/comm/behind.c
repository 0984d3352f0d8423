/* Exchanges that go on behind the ranks' own: what arrives, in which order they end, what is
 * counted, and what is gathered and summed while a rank computes. */
#include <stdlib.h>
#include <string.h>
#include "comm/comm.h"
#include "collectives/collectives.h"
#include "ranks.h"

enum { JOBS = 6, MOST = 8, LENGTH = 1000 };

/* What rank `from` sends to rank `to` in job j. */
static int number(int64_t from, int64_t to, int j) { return (int)(from * 1000 + to * 100 + j); }

typedef struct letters {
    int out[MOST][LENGTH], in[MOST][LENGTH];
} letters;

static mti_job *begin(mt_comm *comm, letters *l, int j)
{
    mt_group group = mt_comm_group(comm);
    for (int64_t r = 0; r < group.ranks; r++) {
        for (int i = 0; i < LENGTH; i++) l->out[r][i] = number(group.rank, r, j) + i;
        comm->out[r] = (mti_span){l->out[r], sizeof l->out[r]};
        comm->in[r] = (mti_span){l->in[r], sizeof l->in[r]};
    }
    return mti_comm_begin(comm);
}

static void check_arrived(const mt_group *group, const letters *l, int j)
{
    for (int64_t r = 0; r < group->ranks; r++)
        for (int i = 0; r != group->rank && i < LENGTH; i++)
            MTT_NEED(l->in[r][i] == number(r, group->rank, j) + i);
}

/* Several at once, with other collectives through the same comm between them, ended in another
 * order than they began. */
static void check_order(mt_comm *comm, mt_device *device)
{
    static _Thread_local letters mail[JOBS];
    mt_group group = mt_comm_group(comm);
    mti_job *jobs[JOBS];
    uint64_t before = mt_comm_sent(comm);
    for (int j = 0; j < JOBS; j++) MTT_NEED(jobs[j] = begin(comm, &mail[j], j));
    const uint64_t others = (uint64_t)group.ranks - 1;
    MTT_NEED(mt_comm_sent(comm) - before == JOBS * others * LENGTH * sizeof(int));
    MT_AUTO mt_tensor *x = mt_full(device, MT_F64, 0, NULL, (double)group.rank);
    MT_AUTO mt_tensor *sum = mt_all_reduce(x, &group);
    MTT_NEED(sum && mt_item(sum) == (double)(group.ranks * (group.ranks - 1) / 2));
    for (int j = JOBS - 1; j >= 0; j--) {
        MTT_NEED(mti_comm_finish(comm, jobs[j]));
        check_arrived(&group, &mail[j], j);
    }
}

/* Pieces of two dtypes; the last bytes of an odd count are padding. */
static void check_pieces(mt_comm *comm, mt_device *device, bool behind)
{
    mt_group group = mt_comm_group(comm);
    MT_AUTO mt_tensor *a = mt_full(device, MT_F32, MT_SHAPE(1, 7), (double)(group.rank + 1));
    MT_AUTO mt_tensor *b = mt_full(device, MT_F32, MT_SHAPE(3), (double)(group.rank + 11));
    MTT_NEED(a && b);
    const mti_shard shards[] = {{a, MT_BF16}, {b, MT_F32}};
    mt_tensor *flats[2];
    mt_mem_stats before, after;
    mt_mem_get_stats(device, &before);
    mt_sent counted = mt_sent_get(device);
    uint64_t sent = mt_comm_sent(comm);
    mti_gathering *g = mti_shards_begin(device, 2, shards, &group, behind);
    MTT_NEED(g && mti_shards_end(g, flats, NULL));
    MTT_NEED(mt_comm_sent(comm) - sent == mt_sent_get(device).shards - counted.shards);
    MTT_NEED(mt_comm_sent(comm) - sent == (uint64_t)(group.ranks - 1) * (16 + 16));
    MTT_NEED(mt_dtype_of(flats[0]) == MT_BF16 && mt_numel(flats[0]) == 7 * group.ranks);
    for (int k = 0; k < 2; k++) {
        double *got = mtt_doubles(flats[k]);
        int64_t n = mt_numel(flats[k]);
        for (int64_t i = 0; i < n; i++)
            MTT_NEED(got[i] == (double)(i / (n / group.ranks)) + (k ? 11 : 1));
        free(got);
        mt_release(flats[k]);
    }
    /* begun for nothing */
    MTT_NEED(g = mti_shards_begin(device, 2, shards, &group, behind));
    mti_shards_drop(g);
    mt_mem_get_stats(device, &after);
    MTT_NEED(after.allocated.current == before.allocated.current);
}

/* ---- what runs behind ---- */

typedef struct errand {
    int64_t numbers[MOST];
    int failing; /* the rank that fails without an exchange; -1: none */
} errand;

static bool tell_all(void *user, mt_comm *behind)
{
    errand *e = user;
    mt_group group = mt_comm_group(behind);
    if (e->failing == group.rank)
        return mti_fail_bool(MT_ERR_STATE, "errand of %lld", (long long)group.rank);
    int64_t own = group.rank + 70;
    return e->failing >= 0 || mti_comm_share(behind, &own, sizeof own, e->numbers);
}

/* Behind, a comm of the same ranks, whose bytes are counted as the rank's; the failure is its
 * own. */
static void check_run(mt_comm *comm)
{
    mt_group group = mt_comm_group(comm);
    errand e = {.failing = -1}, bad = {.failing = (int)group.ranks - 1};
    uint64_t before = mt_comm_sent(comm);
    mti_job *job = mti_comm_begin_run(comm, tell_all, &e);
    mti_job *failing = mti_comm_begin_run(comm, tell_all, &bad);
    MTT_NEED(job && failing && mti_comm_finish(comm, job));
    for (int64_t r = 0; r < group.ranks; r++) MTT_NEED(e.numbers[r] == r + 70);
    MTT_NEED(mt_comm_sent(comm) - before == (uint64_t)(group.ranks - 1) * sizeof(int64_t));
    mt_clear_error();
    bool is_last = group.rank == group.ranks - 1;
    MTT_NEED(mti_comm_finish(comm, failing) == !is_last);
    MTT_NEED(mt_last_status() == (is_last ? MT_ERR_STATE : MT_OK));
    MTT_NEED(!is_last || strstr(mt_last_error(), "errand of "));
    mt_clear_error();
}

/* Sums and pieces of sums of several tensors at once, on a device without links: the bits of
 * mti_collective_run, and nothing but scratch is taken. 40,000 numbers go in several exchanges. */
static void check_replicas(mt_comm *comm, mt_dtype dtype)
{
    enum { TENSORS = 4 };
    static const int64_t lengths[TENSORS] = {40000, 1, 7, 33000};
    mt_group group = mt_comm_group(comm);
    mt_device *device = mt_device_open("cpu");
    mti_collective_queue *queue = mti_collective_queue_new(device, &group);
    mt_tensor *now[TENSORS], *later[TENSORS];
    mt_mem_stats before, after;
    MTT_NEED(queue);
    mt_seed(device, 5 + (uint64_t)group.rank);
    for (int i = 0; i < TENSORS; i++) {
        now[i] = mt_normal(device, dtype, MT_SHAPE(lengths[i]), 0, 1);
        MTT_NEED(now[i] && (later[i] = mt_clone(now[i])));
    }
    mt_mem_get_stats(device, &before);
    for (int i = 0; i < TENSORS; i++)
        MTT_NEED(mti_collective_begin(queue, later[i], (mti_collective)(i % 2)));
    for (int i = 0; i < TENSORS; i++)
        MTT_NEED(mti_collective_run(now[i], (mti_collective)(i % 2), &group));
    MTT_NEED(mti_collective_end(queue) && mti_collective_end(queue));
    mt_mem_get_stats(device, &after);
    MTT_NEED(after.allocated.current == before.allocated.current);
    for (int i = 0; i < TENSORS; i++) {
        double *a = mtt_doubles(now[i]), *b = mtt_doubles(later[i]);
        MTT_NEED(!memcmp(a, b, (size_t)lengths[i] * sizeof *a));
        free(a), free(b);
        mt_release(now[i]), mt_release(later[i]);
    }
    mti_collective_queue_free(queue);
    mt_device_release(device);
}

void mtt_check_behind(mt_comm *comm)
{
    mt_device *device = mtt_device();
    MTT_NEED(device && mti_comm_go_behind(comm) && mti_comm_go_behind(comm));
    check_order(comm, device);
    check_pieces(comm, device, false);
    check_pieces(comm, device, mt_comm_group(comm).ranks > 1);
    check_run(comm);
    for (int i = 0; i < 2 && mt_comm_group(comm).ranks > 1; i++)
        check_replicas(comm, i ? MT_BF16 : MT_F32);
    MTT_NEED(mt_comm_hidden(comm) >= 0);
    mt_device_release(device);
}
