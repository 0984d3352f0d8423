/* Four ranks, which are threads of this program, train a model that two share each layer and the
 * sequence of, twice with other data. Each has its ledger; beside it what a device without data
 * said that rank would take, before. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <memtape/all.h>

enum { RANKS = 4, STEPS = 30, BATCH = 4, SEQ = 64 };

static const mt_model_config config = {
    .hidden = 64, .heads = 4, .layers = 2, .vocab = 256, .context = SEQ, .dropout = 0.1};

typedef struct taken {
    size_t saved, peak, reserved;
    double first, last; /* losses */
} taken;

/* Ids that are a function of the step and of the place in the whole batch; the next one is to be
 * guessed. */
static mt_tensor *ids(mt_device *device, int step, int64_t rank, int64_t ahead)
{
    int64_t id[BATCH * SEQ];
    for (int64_t i = 0; i < BATCH * SEQ; i++)
        id[i] = (7 * (i % SEQ + ahead) + 3 * (i / SEQ + BATCH * rank) + step) % config.vocab;
    return mt_from_data(device, MT_I64, MT_SHAPE(BATCH, SEQ), id, sizeof id);
}

static mt_status train(mt_device *device, const mt_parallel *parallel, taken *t)
{
    const mt_adamw_options adamw = {.lr = 3e-3};
    mt_mem_stats stats;
    mt_seed(device, 1);
    mt_stage *stage = mt_stage_new(device, &config, parallel);
    mt_optimizer *optimizer = mt_adamw_new(mt_stage_stepped(stage), &adamw);
    mt_ledger *ledger = mt_ledger_new(device);
    mt_status status = optimizer && ledger ? MT_OK : mt_last_status();
    for (int step = 0; status == MT_OK && step < STEPS; step++) {
        mt_tensor *tokens = ids(device, step, parallel->data_rank, 0);
        mt_tensor *targets = ids(device, step, parallel->data_rank, 1);
        if (step == 0) mt_ledger_begin(ledger);
        status = mt_stage_backward(stage, &tokens, &targets, &t->last);
        if (step == 0) mt_ledger_end(ledger), t->first = t->last;
        if (status == MT_OK) status = mt_stage_step(stage, optimizer, 1.0, NULL);
        mt_release(tokens), mt_release(targets);
    }
    mt_mem_get_stats(device, &stats);
    t->saved = mt_ledger_bytes(ledger);
    t->peak = stats.allocated.peak, t->reserved = stats.reserved.peak;
    mt_ledger_free(ledger);
    mt_optimizer_free(optimizer);
    mt_stage_free(stage);
    return status;
}

typedef struct rank {
    mt_comm *world;
    taken predicted, run;
    mt_status status;
} rank;

static void *run(void *argument)
{
    rank *r = argument;
    mt_parallel h = {.tensor = 2, .sequence = true, .data = 2, .zero = 2}, alone = h;
    mt_device *meta = mt_device_open("meta"), *cpu = mt_device_open("cpu");
    mt_device_set_threads(cpu, 1);
    mt_device_count_scratch_of(meta, "cpu");
    r->status = mt_parallel_locate(&alone, mt_comm_group(r->world).rank);
    if (r->status == MT_OK) r->status = train(meta, &alone, &r->predicted);
    if (r->status == MT_OK) r->status = mt_parallel_place(&h, r->world);
    if (r->status == MT_OK) r->status = train(cpu, &h, &r->run);
    if (r->status != MT_OK) fprintf(stderr, "%s\n", mt_last_error());
    mt_parallel_close(&h);
    mt_device_release(meta), mt_device_release(cpu);
    mt_comm_free(r->world);
    return NULL;
}

int main(void)
{
    mt_comm *ends[RANKS];
    pthread_t threads[RANKS];
    rank ranks[RANKS];
    bool good = mt_comm_of_threads(RANKS, ends) == MT_OK;
    if (!good) return 1;
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (rank){.world = ends[i]};
        if (pthread_create(&threads[i], NULL, run, &ranks[i])) exit(1);
    }
    printf(
        "rank  kept for backward  predicted      peak  predicted  reserved  predicted    loss\n");
    for (int i = 0; i < RANKS; i++) {
        const taken *a = &ranks[i].run, *b = &ranks[i].predicted;
        pthread_join(threads[i], NULL);
        good = good && ranks[i].status == MT_OK && a->saved == b->saved && a->peak == b->peak &&
               a->reserved == b->reserved && a->last < a->first;
        printf("%4d%19zu%11zu%10zu%11zu%10zu%11zu  %.2f to %.2f\n", i, a->saved, b->saved, a->peak,
               b->peak, a->reserved, b->reserved, a->first, a->last);
    }
    return good ? 0 : 1;
}
