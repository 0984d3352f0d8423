/* Ranks on the simulator that send each other what they compute through the double of NCCL: they
 * follow the curve of one process on the CPU, take what the device without data predicts, and have
 * the same bits with ZeRO as without. */
#include <stdatomic.h>
#include <stdlib.h>
#include "as_ranks.h"
#include "measure/two_steps.h"

static const mt_parallel splits[] = {
    {.data = 2},
    {.data = 3, .zero = 1},
    {.data = 2, .zero = 2, .microbatches = 2},
    {.data = 2, .zero = 3},
    {.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_LAST},
    {.context = 2},
    {.pipeline = 2, .microbatches = 4},
    {.pipeline = 2, .interleave = 2, .microbatches = 4},
    {.pipeline = 2, .data = 2, .zero = 3, .microbatches = 2},
    {.tensor = 2},
    {.tensor = 2, .sequence = true, .data = 2, .zero = 1},
    {.pipeline = 2, .data = 2, .zero = 3, .microbatches = 2, .fsdp = MT_FSDP_BLOCK},
    {.data = 4, .zero = 3, .fsdp = MT_FSDP_AHEAD, .replicas = 2, .reshard = 2},
};
enum { SPLITS = sizeof splits / sizeof *splits };

static mt_model_config model(int i)
{
    mt_model_config c = mtt_models[i];
    c.layers = 4;
    return c;
}

/* In the short form each split has a curve or figures of memory. */
static bool is_left_out(int k, bool curve) { return !mtt_long() && (k % 2 == 0) != curve; }

static void ranks_follow_one_process_on_the_cpu(void **state)
{
    (void)state;
    static const int models[] = {MTT_GPT_UNTIED, MTT_LLAMA};
    for (int i = 0; i < (mtt_long() ? 2 : 1); i++)
        for (int k = 0; k < SPLITS; k++) {
            const mt_model_config c = model(models[i]);
            mtt_training alone = {.config = &c, .parallel = splits[k], .max_norm = 1};
            if (splits[k].data == 3 || is_left_out(k, true)) continue; /* 3: of four rows */
            mtt_training t = alone;
            mtt_train_alone(&alone);
            mtt_train(&t);
            double difference = mtt_difference(&alone, &t);
            mtt_show(mtt_model_names[models[i]], &splits[k], difference, "one process on the CPU");
            assert_true(alone.losses[mtt_steps() - 1] < alone.losses[0]);
            assert_true(difference < MTT_ROUNDING);
        }
}

static void zero_has_the_bits_of_plain_data_parallelism(void **state)
{
    (void)state;
    const mt_model_config c = model(MTT_LLAMA);
    mtt_training plain = {.config = &c, .parallel.data = 2, .max_norm = 1};
    mtt_train(&plain);
    for (int zero = 1; zero <= 3; zero += mtt_long() ? 1 : 2) {
        mtt_training t = plain;
        t.parallel.zero = zero;
        mtt_train(&t);
        assert_memory_equal(plain.losses, t.losses, sizeof t.losses);
    }
}

static void adapters_in_gathered_blocks_follow_one_process_on_the_cpu(void **state)
{
    (void)state;
    static const mt_lora_options lora = {.rank = 3};
    const mt_model_config c = model(MTT_GPT_UNTIED);
    mtt_training alone = {.config = &c, .lora = &lora, .parallel.data = 2, .max_norm = 1};
    mtt_training t = alone;
    t.parallel.zero = 3;
    t.parallel.fsdp = MT_FSDP_AHEAD;
    t.checkpoint = "full";
    mtt_train_alone(&alone);
    mtt_train(&t);
    assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
}

/* ---- memory ---- */

static atomic_llong n_equal;

static void need_equal(uint64_t got, uint64_t want)
{
    MTT_NEED(got == want);
    n_equal++;
}

static void need_same_phases(const mti_phases *a, const mti_phases *b)
{
    MTT_NEED(a->n == b->n);
    for (int i = 0; i < a->n; i++) {
        const mti_phase *p = &a->at[i], *q = &b->at[i];
        need_equal(p->allocated, q->allocated);
        need_equal(p->peak, q->peak);
        need_equal(p->reserved, q->reserved);
        need_equal(p->reserved_peak, q->reserved_peak);
        for (int k = 0; k < MT_CATEGORY_COUNT; k++) {
            need_equal(p->by_category[k], q->by_category[k]);
            need_equal(p->at_peak[k], q->at_peak[k]);
        }
    }
}

static uint64_t sent(const mt_sent *t)
{
    return t->layers + t->shards + t->context + t->stages + t->replicas;
}

static void measure_one_rank(mt_comm *world, void *user)
{
    const mti_workload *workload = user;
    const char *kind = getenv("MTT_DEVICE");
    mti_workload w = *workload, predicted = *workload;
    MTT_NEED(mt_parallel_place(&w.parallel, world) == MT_OK);
    MTT_NEED(mt_parallel_locate(&predicted.parallel, mt_comm_group(world).rank) == MT_OK);
    w.device = (mti_device_options){.kind = kind, .threads = 1};
    predicted.device = (mti_device_options){.kind = "meta", .threads = 1};
    mt_device *gpu = mti_device_make(&w.device), *meta = mti_device_make(&predicted.device);
    MTT_NEED(gpu && meta && mt_device_count_scratch_of(meta, kind) == MT_OK);
    mti_measurement a, b;
    MTT_NEED(mti_measure(&a, gpu, &w, NULL) && mti_measure(&b, meta, &predicted, NULL));
    need_equal(mt_ledger_bytes(a.ledger), mt_ledger_bytes(b.ledger));
    need_equal(a.param_bytes, b.param_bytes);
    need_equal(a.grad_bytes, b.grad_bytes);
    need_equal(a.optimizer_bytes, b.optimizer_bytes);
    need_same_phases(&a.phases, &b.phases);
    need_same_phases(&a.steady.phases, &b.steady.phases);
    need_equal(sent(&a.steady.sent), sent(&b.steady.sent));
    const mt_sent counted = mt_sent_get(gpu);
    const mt_parallel *h = &w.parallel;
    need_equal(mt_comm_sent(h->tensor_comm) + mt_comm_sent(h->context_comm) +
                   mt_comm_sent(h->data_comm) + mt_comm_sent(h->pipeline_comm) +
                   mt_comm_sent(h->ends_comm) + mt_comm_sent(h->shard_comm) +
                   mt_comm_sent(h->replica_comm) + mt_comm_sent(h->reshard_comm),
               sent(&counted));
    mti_measurement_free(&a);
    mti_measurement_free(&b);
    mt_device_release(gpu);
    mt_device_release(meta);
    mt_parallel_close(&w.parallel);
}

static void every_rank_takes_what_was_predicted_for_it(void **state)
{
    (void)state;
    static const mt_dtype dtypes[] = {MT_F32, MT_BF16};
    long long ranks = 0;
    for (int d = 0; d < (mtt_long() ? 2 : 1); d++)
        for (int k = 0; k < SPLITS; k++) {
            if (is_left_out(k, false)) continue;
            mti_workload w = {.config = model(MTT_GPT_UNTIED),
                              .batch = 2,
                              .seq = 16,
                              .seed = 3,
                              .optimizer = MTI_OPT_ADAMW,
                              .memory = {.checkpoint = d ? "full" : "none", .master = true},
                              .ranked = true,
                              .parallel = splits[k]};
            w.config.dtype = dtypes[d];
            mtt_ok(mt_model_config_resolve(&w.config, &w.config));
            mtt_as_ranks(mtt_count_ranks(&splits[k]), measure_one_rank, &w);
            ranks += mtt_count_ranks(&splits[k]);
        }
    print_message("%lld ranks took what was predicted for each: %lld figures are equal\n", ranks,
                  (long long)n_equal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_follow_one_process_on_the_cpu),
        cmocka_unit_test(zero_has_the_bits_of_plain_data_parallelism),
        cmocka_unit_test(adapters_in_gathered_blocks_follow_one_process_on_the_cpu),
        cmocka_unit_test(every_rank_takes_what_was_predicted_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
