/* ranks.c: collectives among ranks: how long a call takes. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"
#include "memtape/models/group.h"

#define MOST_RANKS 16

static mt_tensor *gather(mt_tensor *x, const mt_group *g) { return mt_all_gather(x, 0, g); }
static mt_tensor *scatter(mt_tensor *x, const mt_group *g) { return mt_reduce_scatter(x, 0, g); }

/* n f32 on every rank: of all_gather's result, of the others' x. */
static const struct collective {
    const char *name;
    mt_tensor *(*call)(mt_tensor *x, const mt_group *group);
    bool gathers;
} collectives[] = {
    {"all_reduce", mt_all_reduce, false},
    {"all_gather", gather, true},
    {"reduce_scatter", scatter, false},
};

typedef struct one {
    mt_comm *comm;
    int64_t n_floats;
    int rounds;
    bool ok;
} one;

/* Every rank gives ones: a sum is the number of ranks. */
static bool is_right(mt_tensor *y, double want)
{
    MT_AUTO mt_tensor *mean = mt_mean_all(y);
    return mean && mt_item(mean) == want;
}

static int by_time(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Every rank calls it `rounds` times; rank 0 prints the least and the median. */
static bool time_one(const one *o, const struct collective *c, mt_device *device)
{
    mt_group group = mt_comm_group(o->comm);
    int64_t n = o->n_floats / group.ranks * group.ranks;
    int64_t *ns = malloc((size_t)o->rounds * sizeof *ns);
    MT_AUTO mt_tensor *x = mt_full(device, MT_F32, MT_SHAPE(c->gathers ? n / group.ranks : n), 1);
    MT_AUTO mt_tensor *tiny = mt_zeros(device, MT_F32, MT_SHAPE(1));
    bool ok = ns && x && tiny;
    for (int i = -1; ok && i < o->rounds; i++) {
        MT_AUTO mt_tensor *together = mt_all_reduce(tiny, &group);
        int64_t began = bench_now_ns();
        MT_AUTO mt_tensor *y = c->call(x, &group);
        if (i >= 0) ns[i] = bench_now_ns() - began;
        ok = together && y && (i >= 0 || is_right(y, c->gathers ? 1 : (double)group.ranks));
    }
    if (ok && group.rank == 0) {
        qsort(ns, (size_t)o->rounds, sizeof *ns, by_time);
        printf("%s %lld %lld %lld\n", c->name, (long long)(n * (int64_t)sizeof(float)),
               (long long)ns[0], (long long)ns[o->rounds / 2]);
    }
    free(ns);
    return ok;
}

static void *run_rank(void *argument)
{
    one *o = argument;
    mt_device *device = mt_device_open("cpu");
    o->ok = device && mt_device_set_threads(device, 1) == MT_OK;
    for (size_t i = 0; o->ok && i < sizeof collectives / sizeof *collectives; i++)
        o->ok = time_one(o, &collectives[i], device);
    if (!o->ok) bench_failed("ranks");
    mt_device_release(device);
    if (o->ok)
        mt_comm_free(o->comm);
    else
        mt_comm_abort(o->comm);
    return NULL;
}

static int as_threads(int64_t ranks, int64_t n_floats, int rounds)
{
    mt_comm *ends[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    one each[MOST_RANKS];
    if (mt_comm_of_threads(ranks, ends) != MT_OK) return bench_failed("ranks");
    for (int64_t r = 0; r < ranks; r++) {
        each[r] = (one){ends[r], n_floats, rounds, false};
        if (pthread_create(&threads[r], NULL, run_rank, &each[r])) return bench_failed("a thread");
    }
    bool ok = true;
    for (int64_t r = 0; r < ranks; r++) {
        pthread_join(threads[r], NULL);
        ok = ok && each[r].ok;
    }
    return ok ? 0 : 1;
}

int bench_ranks(int argc, char **argv)
{
    int64_t ranks = argc == 4 ? atoll(argv[1]) : 0, n_bytes = ranks ? atoll(argv[2]) : 0;
    int rounds = ranks ? atoi(argv[3]) : 0;
    bool threads = ranks && !strcmp(argv[0], "threads");
    if (ranks < 2 || ranks > MOST_RANKS || n_bytes < 1024 || rounds < 1 ||
        (!threads && strcmp(argv[0], "mpi"))) {
        fprintf(stderr,
                "memtape_bench ranks: need threads or mpi, 2 to %d ranks, 1024 bytes or "
                "more, 1 round or more\n",
                MOST_RANKS);
        return 2;
    }
    if (threads) return as_threads(ranks, n_bytes / (int64_t)sizeof(float), rounds);
    one o = {mt_comm_open("mpi"), n_bytes / (int64_t)sizeof(float), rounds, false};
    if (!o.comm) return bench_failed("ranks");
    run_rank(&o);
    return o.ok ? 0 : 1;
}
