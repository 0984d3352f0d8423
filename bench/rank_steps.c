/* rank_steps.c: training steps of a GPT that ranks share, which are threads of this process. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bench.h"

#define MOST_RANKS 16

typedef struct job {
    mt_model_config config;
    mt_parallel parallel;
    int64_t ranks, batch, seq; /* batch: sequences of a step, of all ranks together */
    int threads, rounds;
} job;

typedef struct one {
    const job *job;
    mt_comm *world;
    bool ok;
    int64_t *ns; /* [rounds] */
    double seconds, in_comms, hidden, loss;
    uint64_t sent; /* in all rounds */
    int64_t peak;  /* of allocated bytes */
} one;

static bool read_division(const char *word, int64_t ranks, mt_parallel *h)
{
    static const char *const zeros[] = {"dp", "zero1", "zero2", "zero3"};
    for (int zero = 0; zero < 4; zero++)
        if (!strcmp(word, zeros[zero])) return h->data = ranks, h->zero = zero, true;
    if (!strcmp(word, "dp_after")) return h->data = ranks, h->reduce = MT_REDUCE_AFTER, true;
    if (!strcmp(word, "zero3_ahead"))
        return h->data = ranks, h->zero = 3, h->fsdp = MT_FSDP_AHEAD, true;
    if (!strcmp(word, "tp")) return h->tensor = ranks, h->sequence = ranks > 1, true;
    if (strcmp(word, "pp") != 0) return false;
    return h->pipeline = ranks, h->microbatches = 2 * ranks, true;
}

/* ---- what one rank does ---- */

/* n sequences from the `first` on of the whole batch; the same ids as peer.py's. */
static mt_tensor *make_ids(mt_device *device, const job *j, int64_t first, int64_t n, int64_t shift)
{
    size_t n_bytes = (size_t)(n * j->seq) * sizeof(int64_t);
    int64_t *ids = malloc(n_bytes);
    if (!ids) return NULL;
    for (int64_t i = 0; i < n * j->seq; i++)
        ids[i] = ((first * j->seq + i + shift) * 7919 + 104729) % j->config.vocab;
    mt_tensor *t = mt_from_data(device, MT_I64, MT_SHAPE(n, j->seq), ids, n_bytes);
    free(ids);
    return t;
}

typedef struct batch {
    int64_t n; /* microbatches */
    mt_tensor *tokens[2 * MOST_RANKS], *targets[2 * MOST_RANKS];
} batch;

static bool make_batch(batch *b, mt_device *device, const job *j, const mt_parallel *h)
{
    int64_t data = h->data ? h->data : 1;
    *b = (batch){.n = h->microbatches ? h->microbatches : 1};
    int64_t own = j->batch / (data * b->n);
    for (int64_t i = 0; i < b->n; i++) {
        int64_t first = (i * data + h->data_rank) * own;
        b->tokens[i] = make_ids(device, j, first, own, 0);
        b->targets[i] = make_ids(device, j, first, own, 1);
        if (!b->tokens[i] || !b->targets[i]) return false;
    }
    return true;
}

static void free_batch(batch *b)
{
    for (int64_t i = 0; i < b->n; i++) mt_release(b->tokens[i]), mt_release(b->targets[i]);
}

typedef struct comms {
    double seconds, hidden;
    uint64_t sent;
} comms;

static comms count(const mt_parallel *h)
{
    const mt_comm *const all[] = {h->tensor_comm, h->data_comm, h->pipeline_comm, h->ends_comm};
    comms c = {0};
    for (int i = 0; i < 4; i++) {
        c.seconds += mt_comm_seconds(all[i]), c.hidden += mt_comm_hidden(all[i]);
        c.sent += mt_comm_sent(all[i]);
    }
    return c;
}

static bool step(mt_stage *stage, mt_optimizer *optimizer, batch *b, double *loss)
{
    return mt_stage_backward(stage, b->tokens, b->targets, loss) == MT_OK &&
           mt_stage_step(stage, optimizer, 0, NULL) == MT_OK && isfinite(*loss);
}

/* A step to begin with, in which memory is first touched; then the timed ones, which all ranks
 * begin together. */
static bool time_steps(one *o, const mt_parallel *h, mt_device *device, mt_stage *stage,
                       mt_optimizer *optimizer, batch *b)
{
    const mt_group all = mt_comm_group(o->world);
    MT_AUTO mt_tensor *tiny = mt_zeros(device, MT_F32, MT_SHAPE(1));
    bool ok = tiny && step(stage, optimizer, b, &o->loss);
    mt_mem_reset_peak(device);
    for (int i = 0; ok && i < o->job->rounds; i++) {
        MT_AUTO mt_tensor *together = mt_all_reduce(tiny, &all);
        const comms before = count(h);
        int64_t began = bench_now_ns();
        ok = together && step(stage, optimizer, b, &o->loss);
        o->ns[i] = bench_now_ns() - began;
        o->seconds += (double)o->ns[i] / 1e9;
        const comms after = count(h);
        o->in_comms += after.seconds - before.seconds, o->hidden += after.hidden - before.hidden;
        o->sent += after.sent - before.sent;
    }
    return ok;
}

static bool run(one *o, mt_parallel *h, mt_device *device)
{
    batch b;
    mt_mem_stats stats;
    const mt_adamw_options adamw = {.lr = 1e-3, .weight_decay = 0.01};
    mt_seed(device, 1);
    mt_stage *stage = mt_stage_new(device, &o->job->config, h);
    mt_optimizer *optimizer = stage ? mt_adamw_new(mt_stage_stepped(stage), &adamw) : NULL;
    bool ok = make_batch(&b, device, o->job, h) && optimizer &&
              time_steps(o, h, device, stage, optimizer, &b);
    mt_mem_get_stats(device, &stats);
    o->peak = (int64_t)stats.allocated.peak;
    free_batch(&b);
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    return ok;
}

static void *run_rank(void *argument)
{
    one *o = argument;
    mt_parallel h = o->job->parallel;
    mt_device *device = mt_device_open("cpu");
    o->ns = malloc((size_t)o->job->rounds * sizeof *o->ns);
    o->ok = device && o->ns && mt_device_set_threads(device, o->job->threads) == MT_OK &&
            mt_parallel_place(&h, o->world) == MT_OK && run(o, &h, device);
    if (!o->ok) bench_failed("rank_steps");
    mt_parallel_close(&h);
    mt_device_release(device);
    mt_comm_free(o->world);
    return NULL;
}

/* ---- all of them ---- */

static int by_time(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Rank 0's times; the largest peak of a rank; what all have sent a step. */
static void print_results(const job *j, one *each, long start_kib)
{
    one *first = &each[0];
    uint64_t sent = 0;
    int64_t peak = 0;
    for (int64_t r = 0; r < j->ranks; r++) {
        sent += each[r].sent;
        if (each[r].peak > peak) peak = each[r].peak;
    }
    qsort(first->ns, (size_t)j->rounds, sizeof *first->ns, by_time);
    printf("step %lld %lld\n", (long long)first->ns[0], (long long)first->ns[j->rounds / 2]);
    printf("comms %.6f\n", first->in_comms / first->seconds);
    printf("comms_ns %.0f\n", first->in_comms * 1e9 / j->rounds);
    printf("hidden_ns %.0f\n", first->hidden * 1e9 / j->rounds);
    printf("sent %llu\n", (unsigned long long)sent / (unsigned long long)j->rounds);
    printf("peak %lld\n", (long long)peak);
    printf("memory %ld %ld\n", start_kib, bench_status_kib("VmHWM"));
    printf("loss %.6f\n", first->loss);
}

static int run_all(const job *j)
{
    mt_comm *ends[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    one each[MOST_RANKS];
    long start = bench_status_kib("VmRSS");
    if (mt_comm_of_threads(j->ranks, ends) != MT_OK) return bench_failed("rank_steps");
    for (int64_t r = 0; r < j->ranks; r++) {
        each[r] = (one){.job = j, .world = ends[r]};
        if (pthread_create(&threads[r], NULL, run_rank, &each[r])) return bench_failed("a thread");
    }
    bool ok = true;
    for (int64_t r = 0; r < j->ranks; r++) {
        pthread_join(threads[r], NULL);
        ok = ok && each[r].ok;
    }
    if (ok) print_results(j, each, start);
    for (int64_t r = 0; r < j->ranks; r++) free(each[r].ns);
    return ok ? 0 : 1;
}

int bench_rank_steps(int argc, char **argv)
{
    job j = {0};
    int64_t n[9] = {0};
    for (int i = 0; argc == 10 && i < 9; i++) n[i] = atoll(argv[i + 1]);
    j.ranks = n[0], j.threads = (int)n[1], j.batch = n[6], j.seq = n[7], j.rounds = (int)n[8];
    j.config = (mt_model_config){.kind = MT_MODEL_GPT,
                                 .layers = n[2],
                                 .hidden = n[3],
                                 .heads = n[4],
                                 .vocab = n[5],
                                 .context = n[7],
                                 .act = MT_ACT_GELU};
    if (j.ranks < 1 || j.ranks > MOST_RANKS || j.threads < 1 || j.rounds < 1 || j.batch < 1 ||
        j.batch % (2 * j.ranks) || !read_division(argv[0], j.ranks, &j.parallel)) {
        fprintf(stderr,
                "memtape_bench rank_steps: need dp, dp_after, zero1, zero2, zero3, zero3_ahead, tp "
                "or pp, 1 to %d ranks, 1 thread or more, a model, a batch that twice the ranks "
                "divide, 1 round or more\n",
                MOST_RANKS);
        return 2;
    }
    return run_all(&j);
}
