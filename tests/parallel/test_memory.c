/* What every rank takes is what the device without data said it would: saved bytes, allocated,
 * peaks, reserved, phase by phase, and the bytes that it sends. */
#include <stdio.h>
#include <string.h>
#include "as_ranks.h"
#include "base/base.h"
#include "measure/step.h"

static const mt_model_config models[] = {
    {.hidden = 32, .heads = 4, .layers = 2, .vocab = 64, .context = 16},
    {.hidden = 32,
     .heads = 4,
     .layers = 2,
     .vocab = 64,
     .context = 16,
     .untied = true,
     .dropout = 0.1,
     .attention = MT_ATTENTION_MATH,
     .dtype = MT_BF16},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 8,
     .kv_heads = 4,
     .layers = 2,
     .vocab = 64,
     .context = 16,
     .ffn = 48,
     .dtype = MT_BF16},
    {.kind = MT_MODEL_BERT,
     .hidden = 32,
     .heads = 4,
     .layers = 2,
     .vocab = 64,
     .context = 16,
     .dropout = 0.1},
};

static bool same_phases(const mti_phases *a, const mti_phases *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++) {
        const mti_phase *p = &a->at[i], *q = &b->at[i];
        same = p->allocated == q->allocated && p->peak == q->peak && p->reserved == q->reserved &&
               p->reserved_peak == q->reserved_peak &&
               !memcmp(p->by_category, q->by_category, sizeof p->by_category) &&
               !memcmp(p->at_peak, q->at_peak, sizeof p->at_peak);
        if (!same)
            fprintf(stderr,
                    "%s: allocated %zu %zu, peak %zu %zu, reserved %zu %zu, at most %zu %zu\n",
                    p->name, p->allocated, q->allocated, p->peak, q->peak, p->reserved, q->reserved,
                    p->reserved_peak, q->reserved_peak);
    }
    return same;
}

static uint64_t sent(const mt_traffic *t)
{
    return t->layers + t->pieces + t->context + t->stages + t->replicas;
}

static void measure_one_rank(mt_comm *world, void *user)
{
    const mti_workload *workload = user;
    mti_workload w = *workload, predicted = *workload;
    MTT_NEED(mt_parallel_place(&w.parallel, world) == MT_OK);
    MTT_NEED(mt_parallel_locate(&predicted.parallel, mt_comm_group(world).rank) == MT_OK);
    w.device = (mti_device_options){.kind = "cpu", .threads = 1};
    predicted.device = (mti_device_options){.kind = "meta", .threads = 1, .scratch_of_cpu = true};
    mt_device *cpu = mti_device_make(&w.device), *meta = mti_device_make(&predicted.device);
    mti_measurement a, b;
    MTT_NEED(cpu && meta && mti_measure(&a, cpu, &w, NULL));
    MTT_NEED(mti_measure(&b, meta, &predicted, NULL));
    MTT_NEED(mt_ledger_bytes(a.ledger) == mt_ledger_bytes(b.ledger));
    MTT_NEED(mt_ledger_count(a.ledger) == mt_ledger_count(b.ledger));
    MTT_NEED(a.param_bytes == b.param_bytes && a.grad_bytes == b.grad_bytes);
    MTT_NEED(a.optimizer_bytes == b.optimizer_bytes);
    MTT_NEED(same_phases(&a.phases, &b.phases) && same_phases(&a.steady.phases, &b.steady.phases));
    MTT_NEED(a.steady.peak == b.steady.peak && a.steady.reserved == b.steady.reserved);
    const mt_traffic counted = mt_traffic_get(cpu), told = mt_traffic_get(meta);
    MTT_NEED(sent(&counted) == sent(&told));
    MTT_NEED(sent(&counted) ==
             mt_comm_sent(w.parallel.tensor_comm) + mt_comm_sent(w.parallel.context_comm) +
                 mt_comm_sent(w.parallel.data_comm) + mt_comm_sent(w.parallel.pipeline_comm));
    mti_measurement_free(&a);
    mti_measurement_free(&b);
    mt_device_release(cpu);
    mt_device_release(meta);
    mt_parallel_close(&w.parallel);
}

static void every_rank_takes_what_was_predicted_for_it(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {{.tensor = 2},
                                         {.tensor = 4, .sequence = true},
                                         {.tensor = 2, .sequence = true, .microbatches = 2},
                                         {.tensor = 2, .data = 2, .zero = 1},
                                         {.tensor = 2, .sequence = true, .data = 2, .zero = 2},
                                         {.tensor = 2, .sequence = true, .data = 2, .zero = 3},
                                         {.data = 2},
                                         {.data = 2, .zero = 1},
                                         {.data = 2, .zero = 2, .microbatches = 2},
                                         {.data = 2, .zero = 3},
                                         {.data = 3, .zero = 1, .microbatches = 2},
                                         {.data = 3, .zero = 2},
                                         {.data = 3, .zero = 3},
                                         {.context = 2},
                                         {.context = 4, .zero = 1},
                                         {.tensor = 2, .context = 2, .zero = 2},
                                         {.context = 2, .data = 2, .zero = 3, .microbatches = 2},
                                         {.tensor = 2, .sequence = true, .context = 2, .zero = 3}};
    int64_t ranks = 0;
    static const char *const checkpoints[] = {"none", "full", "selective"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++)
            for (int c = 0; c < 3; c++) {
                mti_workload w = {.batch = 2,
                                  .seq = 16,
                                  .seed = 3,
                                  .optimizer = MTI_OPT_ADAMW,
                                  .memory = {.checkpoint = checkpoints[c], .master = true},
                                  .ranked = true,
                                  .parallel = splits[k]};
                mtt_ok(mt_model_config_resolve(&models[i], &w.config));
                const mt_parallel *h = &splits[k];
                int64_t n = (h->tensor ? h->tensor : 1) * (h->context ? h->context : 1) *
                            (h->data ? h->data : 1);
                if (h->context > 1) w.config.dropout = 0; /* masks are refused */
                mtt_as_ranks(n, measure_one_rank, &w);
                ranks += n;
            }
    print_message("%lld ranks took what was predicted for each\n", (long long)ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_takes_what_was_predicted_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
