/* What every rank takes is what the device without data said it would: saved bytes, allocated,
 * peaks, reserved, phase by phase, and the bytes that it sends. */
#include <stdatomic.h>
#include <stdio.h>
#include "as_ranks.h"
#include "base/base.h"
#include "measure/two_steps.h"

/* Both attentions, both widths; a vocabulary that nothing is added to. */
static mt_model_config model(int i, int64_t layers)
{
    mt_model_config c = mtt_models[i];
    c.vocab = 64, c.layers = layers;
    if (i == MTT_GPT_UNTIED) c.attention = MT_ATTENTION_MATH;
    if (i == MTT_GPT_UNTIED || i == MTT_BERT) c.dropout = 0.1;
    if (i == MTT_GPT_UNTIED || i == MTT_LLAMA) c.dtype = MT_BF16;
    mtt_ok(mt_model_config_resolve(&c, &c));
    return c;
}

/* Figures that are as predicted. */
static atomic_llong n_equal;
static bool is_same(uint64_t a, uint64_t b)
{
    if (a == b) n_equal++;
    return a == b;
}

static bool same_categories(const size_t *a, const size_t *b)
{
    bool same = true;
    for (int i = 0; i < MT_CATEGORY_COUNT; i++) same = is_same(a[i], b[i]) && same;
    return same;
}

static bool same_phases(const mti_phases *a, const mti_phases *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++) {
        const mti_phase *p = &a->at[i], *q = &b->at[i];
        same = is_same(p->allocated, q->allocated) && is_same(p->peak, q->peak) &&
               is_same(p->reserved, q->reserved) && is_same(p->reserved_peak, q->reserved_peak) &&
               same_categories(p->by_category, q->by_category) &&
               same_categories(p->at_peak, q->at_peak);
        if (!same)
            fprintf(stderr,
                    "%s: allocated %zu %zu, peak %zu %zu, reserved %zu %zu, at most %zu %zu\n",
                    p->name, p->allocated, q->allocated, p->peak, q->peak, p->reserved, q->reserved,
                    p->reserved_peak, q->reserved_peak);
    }
    return same;
}

static uint64_t sent(const mt_sent *t)
{
    return t->layers + t->shards + t->context + t->stages + t->replicas;
}

static void measure_one_rank(mt_comm *world, void *user)
{
    const mti_workload *workload = user;
    mti_workload w = *workload, predicted = *workload;
    MTT_NEED(mt_parallel_place(&w.parallel, world) == MT_OK);
    MTT_NEED(mt_parallel_locate(&predicted.parallel, mt_comm_group(world).rank) == MT_OK);
    w.device.kind = "cpu", predicted.device.kind = "meta";
    w.device.threads = predicted.device.threads = 1;
    predicted.device.scratch_of = "cpu";
    mt_device *cpu = mti_device_make(&w.device), *meta = mti_device_make(&predicted.device);
    mti_measurement a, b;
    MTT_NEED(cpu && meta && mti_measure(&a, cpu, &w, NULL));
    MTT_NEED(mti_measure(&b, meta, &predicted, NULL));
    MTT_NEED(is_same(mt_ledger_bytes(a.ledger), mt_ledger_bytes(b.ledger)));
    MTT_NEED(is_same(mt_ledger_count(a.ledger), mt_ledger_count(b.ledger)));
    MTT_NEED(is_same(a.param_bytes, b.param_bytes) && is_same(a.grad_bytes, b.grad_bytes));
    MTT_NEED(is_same(a.optimizer_bytes, b.optimizer_bytes));
    MTT_NEED(same_phases(&a.phases, &b.phases) && same_phases(&a.steady.phases, &b.steady.phases));
    MTT_NEED(is_same(a.steady.peak, b.steady.peak) &&
             is_same(a.steady.reserved, b.steady.reserved));
    MTT_NEED(is_same(sent(&a.steady.sent), sent(&b.steady.sent)));
    const mt_sent counted = mt_sent_get(cpu);
    MTT_NEED(sent(&counted) ==
             mt_comm_sent(w.parallel.tensor_comm) + mt_comm_sent(w.parallel.context_comm) +
                 mt_comm_sent(w.parallel.data_comm) + mt_comm_sent(w.parallel.pipeline_comm) +
                 mt_comm_sent(w.parallel.ends_comm) + mt_comm_sent(w.parallel.shard_comm) +
                 mt_comm_sent(w.parallel.replica_comm) + mt_comm_sent(w.parallel.reshard_comm));
    mti_measurement_free(&a);
    mti_measurement_free(&b);
    mt_device_release(cpu);
    mt_device_release(meta);
    mt_parallel_close(&w.parallel);
}

static unsigned only;          /* these models; 0: all */
static mt_loss_form with_loss; /* but of a bert no chunks */

/* Every model under three kinds of checkpoints, in the short form one in turn, with adapters of
 * this rank (0: none). -> ranks */
static int64_t measure_all(const mt_parallel *splits, size_t n_splits, int64_t layers, int64_t rank)
{
    static const char *const checkpoints[] = {"none", "full", "selective"};
    int64_t ranks = 0;
    for (int i = 0; i < MTT_MODELS; i++)
        for (size_t k = 0; (!only || only >> i & 1) && k < n_splits; k++)
            for (int c = 0; c < 3; c++) {
                if (!mtt_long() && ((i + (int)k + c) % 3 || !mtt_turn((size_t)i + k))) continue;
                mti_workload w = {.config = model(i, layers),
                                  .batch = 2,
                                  .seq = 16,
                                  .seed = 3,
                                  .optimizer = MTI_OPT_ADAMW,
                                  .memory = {.checkpoint = checkpoints[c], .master = true},
                                  .ranked = true,
                                  .parallel = splits[k]};
                if (splits[k].context > 1) w.config.dropout = 0; /* masks are refused */
                if (mtt_takes_loss(i, with_loss, &splits[k])) w.config.ops.loss = with_loss;
                w.memory.lora_rank = rank;
                w.memory.f32_adapters = rank && k % 2 == 0; /* of models in bf16 */
                if (rank && c != 1)
                    MTT_NEED(
                        mti_lora_targets_parse(&w.memory.lora_targets, c ? "mlp.*" : "attn.*"));
                w.memory.qlora = rank && c == 2 && splits[k].tensor < 2 && splits[k].zero < 3;
                w.memory.qlora_double = w.memory.qlora && k % 2;
                w.memory.codes = k % 3 == 2 ? MTI_CODES_INT8 : MTI_CODES_NF4;
                mtt_as_ranks(mtt_count_ranks(&splits[k]), measure_one_rank, &w);
                ranks += mtt_count_ranks(&splits[k]);
            }
    return ranks;
}

static void every_rank_takes_what_was_predicted_for_it(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.tensor = 2},
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
        {.data = 2, .reduce = MT_REDUCE_AFTER},
        {.data = 2, .buckets = MT_BUCKETS_COPIED},
        {.data = 3, .zero = 2, .microbatches = 2, .reduce_bucket = 3000},
        {.data = 2, .zero = 1, .reduce_bucket = 3000, .sub_group = 1 << 20},
        {.data = 3, .zero = 2, .reduce_bucket = 3000, .sub_group = 2000},
        {.data = 2, .zero = 3, .microbatches = 2, .reduce_bucket = 3000, .sub_group = 2000},
        {.data = 3, .microbatches = 2, .buckets = MT_BUCKETS_VIEWS, .bucket_bytes = 30000},
        {.data = 3, .zero = 1, .reduce = MT_REDUCE_AFTER}};
    n_equal = 0;
    long long ranks = (long long)measure_all(splits, sizeof splits / sizeof *splits, 2, 0);
    print_message("%lld ranks took what was predicted for each: %lld figures are equal\n", ranks,
                  (long long)n_equal);
}

static void every_piece_of_sequences_takes_what_was_predicted_for_it(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.context = 2},
        {.context = 4, .zero = 1},
        {.tensor = 2, .context = 2, .zero = 2},
        {.context = 2, .data = 2, .zero = 3, .microbatches = 2},
        {.tensor = 2, .sequence = true, .context = 2, .zero = 3},
        {.context = 2, .pipeline = 2, .microbatches = 3},
        {.context = 2, .pipeline = 2, .interleave = 2, .data = 2, .zero = 1, .microbatches = 4}};
    n_equal = 0;
    long long ranks = (long long)measure_all(splits, sizeof splits / sizeof *splits, 4, 0);
    print_message("%lld pieces' ranks took what was predicted for each: %lld figures are equal\n",
                  ranks, (long long)n_equal);
}

static void every_rank_that_gathers_blocks_takes_what_was_predicted_for_it(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.data = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK},
        {.data = 3, .zero = 3, .fsdp = MT_FSDP_AHEAD, .microbatches = 2},
        {.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_LAST | MT_FSDP_KEEP_ROOT},
        {.tensor = 2, .sequence = true, .data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD},
        {.context = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_LAST},
        {.pipeline = 2, .data = 2, .zero = 3, .microbatches = 3, .fsdp = MT_FSDP_AHEAD},
        {.pipeline = 2, .interleave = 2, .data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD},
        {.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD, .reshard = MT_RESHARD_NEVER},
        {.data = 4, .zero = 3, .fsdp = MT_FSDP_BLOCK, .reshard = 2, .reduce_inputs = 2},
        {.data = 4, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT, .replicas = 2},
        {.tensor = 2, .data = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK, .replicas = 2},
        {.data = 2,
         .zero = 3,
         .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT | MT_FSDP_REDUCE_LAST,
         .microbatches = 3},
        {.data = 1, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT},
        {.pipeline = 2,
         .data = 2,
         .zero = 3,
         .microbatches = 5,
         .fsdp = MT_FSDP_AHEAD | MT_FSDP_REDUCE_LAST,
         .reshard = MT_RESHARD_NEVER}};
    n_equal = 0;
    long long ranks = (long long)measure_all(splits, sizeof splits / sizeof *splits, 4, 0);
    print_message("%lld gathering ranks took what was predicted for each: %lld figures are equal\n",
                  ranks, (long long)n_equal);
}

/* Models whose head has a weight of its own. */
static void every_rank_that_groups_the_ends_takes_what_was_predicted_for_it(void **state)
{
    (void)state;
    static const unsigned grouped = MT_FSDP_AHEAD | MT_FSDP_GROUP_ENDS;
    const mt_parallel splits[] = {
        {.data = 2, .zero = 3, .fsdp = grouped},
        {.data = 4, .zero = 3, .fsdp = grouped, .replicas = 2, .reduce_inputs = 3},
        {.data = 4, .zero = 3, .fsdp = grouped, .reshard = 2, .microbatches = 2},
        {.data = 3, .zero = 3, .fsdp = grouped, .reshard = MT_RESHARD_ALWAYS},
        {.context = 2, .zero = 3, .fsdp = grouped | MT_FSDP_REDUCE_LAST, .microbatches = 3}};
    n_equal = 0;
    only = 1u << MTT_GPT_UNTIED | 1u << MTT_LLAMA;
    long long ranks = (long long)measure_all(splits, sizeof splits / sizeof *splits, 4, 0);
    only = 0;
    print_message("%lld ranks took what was predicted for each: %lld figures are equal\n", ranks,
                  (long long)n_equal);
}

/* There are 5 layers, so that stages have 2, 2 and 1. */
static void every_form_of_the_loss_takes_what_was_predicted_for_it(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.tensor = 2, .sequence = true, .data = 2, .zero = 3},
        {.tensor = 4, .microbatches = 2},
        {.tensor = 2, .context = 2, .zero = 1},
        {.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT},
        {.tensor = 2, .pipeline = 3, .microbatches = 3},
        {.data = 2, .zero = 3},
        {.data = 2, .buckets = MT_BUCKETS_COPIED},
        {.pipeline = 2, .data = 2, .zero = 2, .microbatches = 2}};
    n_equal = 0;
    long long ranks = 0;
    for (with_loss = MT_LOSS_F32; with_loss < MT_LOSS_FORM_COUNT; with_loss++)
        ranks += (long long)measure_all(splits, sizeof splits / sizeof *splits, 5, 0);
    with_loss = MT_LOSS_NATIVE;
    print_message("%lld ranks took what was predicted for each: %lld figures are equal\n", ranks,
                  (long long)n_equal);
}

static void every_stage_takes_what_was_predicted_for_it(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.pipeline = 2, .microbatches = 1},
        {.pipeline = 2, .microbatches = 8},
        {.pipeline = 4},
        {.pipeline = 4, .microbatches = 12},
        {.pipeline = 2, .interleave = 2},
        {.pipeline = 2, .interleave = 2, .microbatches = 8},
        {.tensor = 2, .pipeline = 2, .microbatches = 3},
        {.tensor = 2, .sequence = true, .pipeline = 2, .interleave = 2, .microbatches = 4},
        {.pipeline = 2, .data = 2, .microbatches = 4},
        {.pipeline = 2, .data = 2, .zero = 1, .microbatches = 4},
        {.pipeline = 2, .interleave = 2, .data = 2, .zero = 2, .microbatches = 4},
        {.pipeline = 2, .data = 3, .zero = 3, .microbatches = 3},
        {.tensor = 2, .sequence = true, .pipeline = 2, .data = 2, .zero = 1},
        {.tensor = 2, .sequence = true, .pipeline = 2, .interleave = 2, .data = 2, .zero = 3}};
    n_equal = 0;
    long long ranks = (long long)measure_all(splits, sizeof splits / sizeof *splits, 4, 0);
    print_message("%lld stages' ranks took what was predicted for each: %lld figures are equal\n",
                  ranks, (long long)n_equal);
}

static void every_rank_with_adapters_takes_what_was_predicted_for_it(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.tensor = 2},
        {.tensor = 4, .sequence = true, .microbatches = 2},
        {.tensor = 2, .sequence = true, .data = 2, .zero = 2},
        {.data = 2},
        {.data = 2, .zero = 1, .microbatches = 2},
        {.data = 3, .zero = 2},
        {.data = 3, .zero = 3},
        {.context = 2, .zero = 1},
        {.tensor = 2, .context = 2, .zero = 3},
        {.pipeline = 4, .microbatches = 6},
        {.pipeline = 2, .interleave = 2, .data = 2, .zero = 1, .microbatches = 4},
        {.tensor = 2, .sequence = true, .pipeline = 2, .data = 2, .zero = 3},
        {.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_LAST},
        {.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT},
        {.tensor = 2, .data = 2, .zero = 3, .microbatches = 2, .fsdp = MT_FSDP_BLOCK},
        {.pipeline = 2, .data = 2, .zero = 3, .microbatches = 3, .fsdp = MT_FSDP_AHEAD}};
    n_equal = 0;
    long long ranks = (long long)measure_all(splits, sizeof splits / sizeof *splits, 4, 3);
    print_message("%lld ranks with adapters took what was predicted: %lld figures are equal\n",
                  ranks, (long long)n_equal);
}

static int64_t pick(uint64_t *seed, int64_t lo, int64_t hi)
{
    return (int64_t)mtt_draw(seed, (double)lo, (double)hi + 1);
}

/* A division whose microbatches are more than it has in flight, as a rule. */
static mt_parallel draw_split(uint64_t *seed)
{
    const int64_t p = pick(seed, 0, 2) == 0 ? 2 : 1;
    mt_parallel h = {.pipeline = p, .data = pick(seed, 1, 2), .zero = (int)pick(seed, 0, 3)};
    h.interleave = p > 1 ? pick(seed, 1, 2) : 1;
    h.microbatches = h.interleave * pick(seed, 3, 12 / (int)p);
    if (h.interleave > 1) h.microbatches = p * pick(seed, 2, 5);
    if (p == 1 && pick(seed, 0, 3) == 0) h.tensor = 2, h.sequence = pick(seed, 0, 1) == 1;
    static const unsigned units[] = {0, MT_FSDP_BLOCK, MT_FSDP_AHEAD};
    if (h.zero == 3) h.fsdp = units[pick(seed, 0, 2)];
    return h;
}

/* Where a block goes depends on all that was freed before it: a schedule that repeats itself takes
 * memory that need not. Small granules show each block. */
static void microbatches_are_as_many_as_change_anything(void **state)
{
    (void)state;
    static const char *const checkpoints[] = {"none", "full", "selective"};
    static const mti_optimizer_choice optimizers[] = {MTI_OPT_ADAMW, MTI_OPT_SGD_MOMENTUM};
    uint64_t seed = 6;
    long long ranks = 0;
    n_equal = 0;
    for (int i = 0; i < (mtt_long() ? 600 : 60); i++) {
        mti_workload w = {.config = model((int)pick(&seed, 0, MTT_MODELS - 1), 4),
                          .batch = pick(&seed, 1, 3),
                          .seq = 2 * pick(&seed, 1, 8),
                          .seed = 3,
                          .optimizer = optimizers[pick(&seed, 0, 1)],
                          .memory = {.checkpoint = checkpoints[pick(&seed, 0, 2)]},
                          .ranked = true,
                          .parallel = draw_split(&seed)};
        w.memory.master = w.memory.f32_gradients = pick(&seed, 0, 1) == 1;
        w.device.expandable = pick(&seed, 0, 2) > 0;
        w.device.granule = w.device.expandable ? (size_t)4096 << pick(&seed, 0, 9) : 0;
        w.device.reclaim = w.device.expandable && pick(&seed, 0, 3) == 0;
        mtt_as_ranks(mtt_count_ranks(&w.parallel), measure_one_rank, &w);
        ranks += mtt_count_ranks(&w.parallel);
    }
    print_message("%lld ranks with many microbatches took what was predicted: %lld figures are "
                  "equal\n",
                  ranks, (long long)n_equal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_takes_what_was_predicted_for_it),
        cmocka_unit_test(every_piece_of_sequences_takes_what_was_predicted_for_it),
        cmocka_unit_test(every_rank_that_gathers_blocks_takes_what_was_predicted_for_it),
        cmocka_unit_test(every_rank_that_groups_the_ends_takes_what_was_predicted_for_it),
        cmocka_unit_test(every_form_of_the_loss_takes_what_was_predicted_for_it),
        cmocka_unit_test(every_stage_takes_what_was_predicted_for_it),
        cmocka_unit_test(every_rank_with_adapters_takes_what_was_predicted_for_it),
        cmocka_unit_test(microbatches_are_as_many_as_change_anything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
