/* Ranks that divide a layer's experts follow the curve of one process, begin with its weights, and
 * take what was predicted for each. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "as_ranks.h"
#include "base/base.h"
#include "measure/two_steps.h"

#define MAX_NORM 1.0
#define N(list)  (sizeof(list) / sizeof *(list))

static const mt_model_config mixture = {.kind = MT_MODEL_LLAMA,
                                        .hidden = 32,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .layers = 2,
                                        .vocab = 61,
                                        .context = 16,
                                        .ffn = 24,
                                        .experts = 8,
                                        .experts_per_token = 2,
                                        .norm_topk = true};

/* Experts without a gate, whose router weighs those that it chose. */
static mt_model_config plain_mixture(void)
{
    mt_model_config c = mixture;
    c.kind = MT_MODEL_GPT, c.act = MT_ACT_GELU, c.router = MT_ROUTER_CHOSEN;
    c.norm_topk = false, c.no_bias = c.untied = true, c.ops.expert_form = MT_EXPERTS_MEGATRON;
    return c;
}

/* ---- training ---- */

typedef struct division {
    mt_parallel split;
    const char *checkpoint;
    int64_t ahead;  /* mtp_layers */
    double balance; /* balance_loss; by layer in a pipeline */
} division;

#define FOLDED .tensor = 2, .sequence = true, .expert_tensor = 1
static const division divisions[] = {
    {{.data = 2, .expert = 2}, NULL},
    {{.data = 4, .expert = 2}, NULL},
    {{.data = 4, .expert = 4, .microbatches = 2}, "full"},
    {{.data = 2, .expert = 2, .zero = 1}, NULL},
    {{.data = 4, .expert = 2, .zero = 1, .microbatches = 2}, "ops"},
    {{.data = 4, .expert = 2, .zero = 2}, "selective"},
    {{.data = 4, .expert = 2, .zero = 2, .reduce_bucket = 500}, NULL},
    {{.data = 2, .expert = 2, .zero = 3}, NULL},
    {{.data = 4, .expert = 2, .zero = 3, .microbatches = 2}, "full"},
    {{.data = 4, .expert = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK}, NULL},
    {{.data = 4, .expert = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT}, "full"},
    {{.data = 4, .expert = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK, .replicas = 2}, NULL},
    {{.data = 4, .expert = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_GROUP_ENDS}, "every=2"},
    {{.data = 2, .context = 2, .expert = 4}, NULL},
    {{.data = 2, .context = 2, .expert = 2, .zero = 2}, NULL},
    {{.data = 2, .expert = 2, .pipeline = 2, .microbatches = 4}, NULL},
    {{.data = 2, .expert = 2, .buckets = MT_BUCKETS_VIEWS, .bucket_bytes = 5000}, NULL},
    {{.data = 2, .expert = 2, .reduce = MT_REDUCE_AFTER}, NULL},
    {{.tensor = 2}, NULL},
    {{.tensor = 2, .sequence = true}, "full"},
    {{.tensor = 2, .sequence = true}, NULL},
    {{.tensor = 2, .sequence = true, .data = 2, .expert = 2, .zero = 1}, NULL},
    {{.tensor = 2, .data = 2, .expert = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK}, NULL},
    {{.data = 2, .expert = 2}, NULL, 1},
    {{.data = 2, .zero = 1, .microbatches = 2}, NULL, 2},
    {{.data = 4, .expert = 2, .zero = 2}, "full", 2},
    {{.data = 2, .expert = 2, .zero = 3}, NULL, 1},
    {{.data = 4, .expert = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK, .replicas = 2}, "ops", 1},
    {{.data = 4, .expert = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_KEEP_ROOT}, "every=2", 1},
    {{.data = 2, .zero = 3, .fsdp = MT_FSDP_AHEAD | MT_FSDP_GROUP_ENDS}, NULL, 1},
    {{.tensor = 2, .sequence = true, .data = 2, .expert = 2}, NULL, 1},
    {{.tensor = 2}, "full", 2},
    {{.pipeline = 2, .microbatches = 2}, NULL, 2},
    {{.data = 2, .expert = 2, .pipeline = 2, .microbatches = 4}, "full", 1},
    {{.data = 2, .zero = 1, .pipeline = 2, .microbatches = 2}, NULL, 1},
    {{.data = 2, .zero = 2, .pipeline = 2, .microbatches = 2}, NULL, 1},
    {{.data = 2, .expert = 2, .zero = 3, .pipeline = 2, .microbatches = 2}, NULL, 2},
    {{.data = 2,
      .pipeline = 2,
      .microbatches = 2,
      .buckets = MT_BUCKETS_VIEWS,
      .bucket_bytes = 5000},
     NULL,
     1},
    {{.tensor = 2, .sequence = true, .pipeline = 2, .microbatches = 2}, NULL, 1},
    {{.context = 2}, "full", 2},
    {{.context = 2, .data = 2, .expert = 4, .zero = 1, .microbatches = 2}, NULL, 2},
    {{.context = 2, .tensor = 2, .sequence = true, .zero = 3}, NULL, 1},
    {{.context = 2, .pipeline = 2, .microbatches = 2}, NULL, 1},
    {{.data = 2, .expert = 2}, NULL, 0, 0.5},
    {{.data = 4, .expert = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK}, "full", 0, 0.5},
    {{.data = 2, .context = 2, .expert = 2, .zero = 1}, NULL, 0, 0.5},
    {{.tensor = 2}, NULL, 0, 0.5},
    {{.tensor = 2, .sequence = true, .data = 2, .expert = 2, .microbatches = 2}, NULL, 1, 0.5},
    {{.pipeline = 2, .microbatches = 2}, NULL, 1, 0.5},
    {{.data = 2, .expert = 2, .pipeline = 2, .microbatches = 4}, "full", 0, 0.5},
    {{.tensor = 2, .sequence = true, .pipeline = 2, .microbatches = 2}, "ops", 0, 0.5},
    {{.data = 2, .zero = 3, .pipeline = 2, .microbatches = 2}, NULL, 0, 0.5},
    /* experts are whole, and tensor ranks send tokens, too */
    {{FOLDED, .data = 2, .expert = 4}, NULL},
    {{FOLDED, .data = 2, .expert = 2, .zero = 1, .microbatches = 2}, "full"},
    {{FOLDED, .expert = 2}, NULL},
    {{FOLDED}, NULL},
    {{FOLDED, .data = 2, .zero = 2}, NULL},
    {{FOLDED, .data = 2, .expert = 4, .zero = 3, .fsdp = MT_FSDP_BLOCK}, NULL},
    {{FOLDED, .data = 2, .expert = 2, .zero = 3}, "selective"},
    {{FOLDED, .data = 2, .expert = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK, .replicas = 2}, NULL},
    {{FOLDED, .expert = 2, .pipeline = 2, .microbatches = 4}, NULL},
    {{FOLDED, .data = 2, .expert = 4}, NULL, 1},
    {{FOLDED, .data = 2, .expert = 4}, NULL, 0, 0.5}};

/* The simulator takes a few. */
static bool is_left_out(size_t i)
{
    const bool buckets = divisions[i].split.buckets != MT_BUCKETS_NONE;
    return getenv("MTT_DEVICE") && (buckets || i % (mtt_long() ? 2 : 8) != 1);
}

static void divided_experts_follow_one_process(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(divisions); i++) {
        if (is_left_out(i) || !mtt_turn(i)) continue;
        mt_model_config c = mixture;
        c.mtp_layers = divisions[i].ahead, c.balance_loss = divisions[i].balance;
        c.balance_by_layer = divisions[i].balance > 0 && divisions[i].split.pipeline > 1;
        mtt_training alone = {.config = &c, .parallel = divisions[i].split, .max_norm = MAX_NORM};
        mtt_training t = alone;
        mtt_train_alone(&alone);
        assert_true(alone.losses[mtt_steps() - 1] < alone.losses[0]);
        t.checkpoint = divisions[i].checkpoint;
        mtt_train(&t);
        mtt_show("experts", &t.parallel, mtt_difference(&alone, &t), "one process");
        assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
    }
}

static void assert_follows_one_process(const char *what, const mt_model_config *c, size_t nth)
{
    mtt_training alone = {.config = c, .parallel = divisions[nth].split, .max_norm = MAX_NORM};
    mtt_training t = alone;
    mtt_train_alone(&alone);
    t.checkpoint = divisions[nth].checkpoint;
    mtt_train(&t);
    mtt_show(what, &t.parallel, mtt_difference(&alone, &t), "one process");
    assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
}

static void experts_without_a_gate_follow_one_process(void **state)
{
    (void)state;
    const mt_model_config c = plain_mixture();
    for (size_t i = 0; !getenv("MTT_DEVICE") && i < N(divisions); i += mtt_long() ? 1 : 6) {
        if (!mtt_turn(i / 6)) continue;
        assert_follows_one_process("without a gate", &c, i);
    }
}

/* Biases of experts, gate and up by turns, and sinks: gpt-oss'. */
static mt_model_config clamped_mixture(mt_attention_form attention)
{
    mt_model_config c = mixture;
    c.mlp = MT_MLP_CLAMPED, c.router = MT_ROUTER_CHOSEN, c.norm_topk = false;
    c.sinks = c.qkv_bias = c.proj_bias = true, c.attention = attention;
    c.window = 5, c.local_period = 2, c.no_bias = true;
    return c;
}

static void biases_of_experts_and_sinks_follow_one_process(void **state)
{
    (void)state;
    for (size_t i = 0; !getenv("MTT_DEVICE") && i < N(divisions); i += mtt_long() ? 1 : 5) {
        if (!mtt_turn(i / 5)) continue;
        const mt_model_config c = clamped_mixture(i % 3 ? MT_ATTENTION_FLASH : MT_ATTENTION_MATH);
        assert_follows_one_process("clamped", &c, i);
    }
}

/* Attention with latents, of which ranks share the heads. */
static mt_model_config latent_mixture(void)
{
    mt_model_config c = mixture;
    c.kv_heads = c.heads, c.head_dim = 10, c.rope_dim = 4, c.value_dim = 6;
    c.kv_rank = 12, c.q_rank = 14, c.rope_order = MT_ROPE_PAIRS;
    return c;
}

static void latents_follow_one_process(void **state)
{
    (void)state;
    static const mt_lora_options adapters = {.rank = 3};
    static const mt_parallel context = {FOLDED, .context = 2, .expert = 4};
    mt_model_config c = latent_mixture();
    for (size_t i = 0; !getenv("MTT_DEVICE") && i <= N(divisions); i++) {
        const mt_parallel *split = i < N(divisions) ? &divisions[i].split : &context;
        if (split->tensor < 2 || !mtt_turn(i)) continue;
        c.q_rank = i % 2 ? 14 : 0;
        c.attention = i % 3 ? MT_ATTENTION_FLASH : MT_ATTENTION_MATH;
        mtt_training alone = {.config = &c, .parallel = *split, .max_norm = MAX_NORM};
        if (i % 4 == 1) alone.lora = &adapters;
        mtt_training t = alone;
        mtt_train_alone(&alone);
        if (split != &context) t.checkpoint = divisions[i].checkpoint;
        mtt_train(&t);
        mtt_show("latents", split, mtt_difference(&alone, &t), "one process");
        assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
    }
}

static void zero_has_the_bits_of_plain_data_parallelism(void **state)
{
    (void)state;
    for (int64_t expert = 2; !getenv("MTT_DEVICE") && expert <= 4; expert += 2) {
        mtt_training plain = {
            .config = &mixture, .parallel = {.data = 4, .expert = expert}, .max_norm = MAX_NORM};
        mtt_train(&plain);
        for (int zero = 1; zero <= 3; zero++) {
            mtt_training t = plain;
            t.parallel.zero = zero;
            mtt_train(&t);
            assert_memory_equal(plain.losses, t.losses, sizeof t.losses);
        }
    }
}

static void experts_of_other_stacks_follow_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {{.data = 2, .expert = 2},
                                         {.tensor = 2, .sequence = true, .data = 2, .expert = 2},
                                         {.tensor = 2}};
    for (int form = MT_EXPERTS_LOOP; !getenv("MTT_DEVICE") && form <= MT_EXPERTS_MEGATRON; form++)
        for (size_t i = 0; i < N(splits); i++) {
            mt_model_config c = mixture;
            c.ops.expert_form = (mt_expert_form)form;
            if (form == MT_EXPERTS_LOOP && splits[i].expert > 1) continue; /* refused */
            mtt_training alone = {.config = &c, .parallel = splits[i], .max_norm = MAX_NORM};
            mtt_training t = alone;
            mtt_train_alone(&alone);
            mtt_train(&t);
            mtt_show("a form", &splits[i], mtt_difference(&alone, &t), "one process");
            assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
        }
}

static mt_model_config shared_mixture(void)
{
    mt_model_config c = mixture;
    c.router = MT_ROUTER_SIGMOID, c.expert_scale = 2;
    c.shared_experts = 1, c.dense_layers = 1, c.dense_ffn = 20;
    return c;
}

static void shared_experts_follow_one_process(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {{.tensor = 2, .sequence = true},
                                         {FOLDED, .data = 2, .expert = 4},
                                         {FOLDED, .data = 2, .expert = 2, .zero = 1}};
    const mt_model_config c = shared_mixture();
    for (size_t i = 0; !getenv("MTT_DEVICE") && i < N(splits); i++) {
        mtt_training alone = {.config = &c, .parallel = splits[i], .max_norm = MAX_NORM};
        mtt_training t = alone;
        mtt_train_alone(&alone);
        mtt_train(&t);
        mtt_show("shared", &splits[i], mtt_difference(&alone, &t), "one process");
        assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
    }
}

/* A router's biases learn from the loads of all ranks, whichever tokens each has. */
static void biases_learn_from_all_loads(void **state)
{
    (void)state;
    mt_model_config c = shared_mixture();
    c.balance_rate = 0.02;
    mtt_training plain = {.config = &c, .parallel = {.data = 2}, .max_norm = MAX_NORM};
    mtt_training cut = plain, folded = plain;
    cut.parallel.tensor = folded.parallel.tensor = 2;
    cut.parallel.sequence = folded.parallel.sequence = true;
    folded.parallel.expert_tensor = 1, folded.parallel.expert = 4;
    if (getenv("MTT_DEVICE")) return;
    mtt_train(&plain), mtt_train(&cut), mtt_train(&folded);
    assert_true(mtt_difference(&plain, &cut) < MTT_ROUNDING);
    assert_true(mtt_difference(&plain, &folded) < MTT_ROUNDING);
}

static void adapters_of_divided_experts_follow_one_process(void **state)
{
    (void)state;
    static const mt_lora_options ways[] = {{.rank = 3}, {.rank = 3, .on_weights = true}};
    static const mt_parallel splits[] = {{.data = 2, .expert = 2},
                                         {.data = 4, .expert = 2, .zero = 2},
                                         {.tensor = 2},
                                         {.tensor = 2, .sequence = true, .data = 2, .expert = 2},
                                         {.tensor = 2, .data = 4, .expert = 2, .zero = 3},
                                         {FOLDED, .data = 2, .expert = 4, .zero = 1}};
    for (size_t i = 0; !getenv("MTT_DEVICE") && i < N(splits); i++)
        for (size_t k = 0; k < N(ways); k++) {
            mtt_training alone = {
                .config = &mixture, .lora = &ways[k], .parallel = splits[i], .max_norm = MAX_NORM};
            mtt_training t = alone;
            if (ways[k].on_weights && splits[i].zero == 3) continue; /* refused */
            mtt_train_alone(&alone);
            mtt_train(&t);
            mtt_show("adapters", &splits[i], mtt_difference(&alone, &t), "one process");
            assert_true(mtt_difference(&alone, &t) < MTT_ROUNDING);
        }
}

/* ---- weights ---- */

static const double *values_of(const mt_named_tensor *list, size_t n, const char *name,
                               const mt_tensor **t)
{
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i].name, name)) return *t = list[i].tensor, mtt_doubles(list[i].tensor);
    return NULL;
}

/* Rank r has experts [2 r, 2 r + 2). */
static void begin_with_one_process(mt_comm *world, void *user)
{
    const mt_parallel *split = user;
    mt_parallel h = *split;
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    mt_device *device = mt_device_open("cpu");
    mt_seed(device, 3);
    mt_module *rank = mt_rank_new(device, &mixture, &h, 0);
    mt_seed(device, 3);
    mt_module *whole = mt_model_new(device, &mixture);
    const mt_named_tensor *own, *all;
    size_t n = 0, n_all = 0;
    MTT_NEED(rank && whole && mt_module_params(rank, &own, &n) == MT_OK &&
             mt_module_params(whole, &all, &n_all) == MT_OK && n == n_all);
    for (size_t i = 0; i < n; i++) {
        const mt_tensor *t;
        const bool divided = strstr(own[i].name, "experts_") != NULL;
        double *mine = mtt_doubles(own[i].tensor);
        double *theirs = (double *)values_of(all, n, own[i].name, &t);
        const int64_t count = mt_numel(own[i].tensor), from = divided ? h.data_rank * count : 0;
        MTT_NEED(theirs && mt_numel(t) == (divided ? 4 * count : count));
        for (int64_t e = 0; e < count; e++) MTT_NEED(mine[e] == theirs[from + e]);
        free(mine), free(theirs);
    }
    mt_module_free(rank), mt_module_free(whole);
    mt_device_release(device);
    mt_parallel_close(&h);
}

static void ranks_begin_with_the_experts_of_one_process(void **state)
{
    (void)state;
    mt_parallel split = {.data = 4, .expert = 4};
    mtt_as_ranks(4, begin_with_one_process, &split);
}

/* ---- rows ---- */

/* A router of zeros sends all tokens to the first experts. */
static void learn_from_nothing(mt_comm *world, void *user)
{
    (void)user;
    mt_parallel h = {.data = 2, .expert = 2, .zero = 2};
    MTT_NEED(mt_parallel_place(&h, world) == MT_OK);
    mt_device *device = mtt_device();
    mt_stage *stage = mt_stage_new(device, &mixture, &h);
    const mt_named_tensor *list;
    size_t n = 0;
    MTT_NEED(stage && mt_module_params(mt_stage_part(stage, 0), &list, &n) == MT_OK);
    for (size_t i = 0; i < n; i++)
        if (strstr(list[i].name, "router")) MTT_NEED(mt_fill(list[i].tensor, 0) == MT_OK);
    mt_optimizer *sgd = mt_sgd_new(mt_stage_stepped(stage), &(mt_sgd_options){.lr = 0.1});
    mt_tensor *x = mt_zeros(device, MT_I64, MT_SHAPE(2, 16));
    double first, second;
    MTT_NEED(mt_stage_backward(stage, &x, &x, &first) == MT_OK);
    MTT_NEED(mt_stage_step(stage, sgd, 0, NULL) == MT_OK);
    MTT_NEED(mt_stage_backward(stage, &x, &x, &second) == MT_OK && second < first);
    mt_release(x);
    mt_optimizer_free(sgd);
    mt_stage_free(stage);
    mt_device_release(device);
    mt_parallel_close(&h);
}

static void a_rank_may_get_no_rows(void **state)
{
    (void)state;
    mtt_as_ranks(2, learn_from_nothing, NULL);
}

/* ---- memory ---- */

static atomic_llong n_equal;
static void need_same(const char *what, uint64_t got, uint64_t want)
{
    if (got != want)
        fprintf(stderr, "%s: %llu, predicted %llu\n", what, (unsigned long long)got,
                (unsigned long long)want);
    MTT_NEED(got == want);
    n_equal++;
}
#define need_equal(got, want) need_same(#got, got, want)

static void need_same_phases(const mti_phases *a, const mti_phases *b)
{
    MTT_NEED(a->n == b->n);
    for (int i = 0; i < a->n; i++) {
        need_equal(a->at[i].allocated, b->at[i].allocated);
        need_equal(a->at[i].peak, b->at[i].peak);
        need_equal(a->at[i].reserved_peak, b->at[i].reserved_peak);
        for (int k = 0; k < MT_CATEGORY_COUNT; k++)
            need_equal(a->at[i].at_peak[k], b->at[i].at_peak[k]);
    }
}

static void measure_one_rank(mt_comm *world, void *user)
{
    mti_workload w = *(const mti_workload *)user, predicted = w;
    MTT_NEED(mt_parallel_place(&w.parallel, world) == MT_OK);
    MTT_NEED(mt_parallel_locate(&predicted.parallel, mt_comm_group(world).rank) == MT_OK);
    const char *kind = getenv("MTT_DEVICE");
    if (kind) predicted.parallel.reduce = MT_REDUCE_AFTER; /* as on CUDA */
    w.device = (mti_device_options){.kind = kind ? kind : "cpu", .threads = 1};
    predicted.device = (mti_device_options){.kind = "meta", .threads = 1};
    mt_device *device = mti_device_make(&w.device), *meta = mti_device_make(&predicted.device);
    mti_measurement a, b;
    MTT_NEED(device && meta && mt_device_count_scratch_of(meta, w.device.kind) == MT_OK);
    MTT_NEED(mti_measure(&a, device, &w, NULL) && mti_measure(&b, meta, &predicted, NULL));
    need_equal(mt_ledger_bytes(a.ledger), mt_ledger_bytes(b.ledger));
    need_equal(a.param_bytes, b.param_bytes);
    need_equal(a.grad_bytes, b.grad_bytes);
    need_equal(a.optimizer_bytes, b.optimizer_bytes);
    need_same_phases(&a.phases, &b.phases);
    need_same_phases(&a.steady.phases, &b.steady.phases);
    need_equal(a.steady.sent.experts, b.steady.sent.experts);
    MTT_NEED((a.steady.sent.experts > 0) == (w.parallel.expert > 1));
    mti_measurement_free(&a);
    mti_measurement_free(&b);
    mt_device_release(device);
    mt_device_release(meta);
    mt_parallel_close(&w.parallel);
}

/* Every token goes through every expert: that is balanced, as meta has it. In f32: the scratch of
 * 16-bit products depends on how many rows each expert has. */
static void every_rank_takes_what_was_predicted_for_it(void **state)
{
    (void)state;
    int64_t ranks = 0;
    const mt_model_config models[] = {mixture, latent_mixture(),
                                      clamped_mixture(MT_ATTENTION_FLASH),
                                      clamped_mixture(MT_ATTENTION_MATH)};
    for (size_t k = 0; k < N(models) * N(divisions); k++) {
        const size_t i = k % N(divisions), model = k / N(divisions);
        if (is_left_out(i) || (model == 1 && divisions[i].split.tensor < 2)) continue;
        if (model > 1 && !mtt_long() && i % 4 != model) continue;
        if (!mtt_turn(model > 1 ? i / 4 : i)) continue;
        mti_workload w = {.config = models[model],
                          .batch = 2,
                          .seq = 16,
                          .seed = 3,
                          .optimizer = MTI_OPT_ADAMW,
                          .memory = {.checkpoint = divisions[i].checkpoint, .master = true},
                          .ranked = true,
                          .parallel = divisions[i].split};
        w.config.experts = w.config.experts_per_token = 4;
        w.config.vocab = 64;
        w.config.mtp_layers = divisions[i].ahead, w.config.balance_loss = divisions[i].balance;
        w.config.balance_by_layer = divisions[i].balance > 0 && divisions[i].split.pipeline > 1;
        mtt_ok(mt_model_config_resolve(&w.config, &w.config));
        mtt_as_ranks(mtt_count_ranks(&w.parallel), measure_one_rank, &w);
        ranks += mtt_count_ranks(&w.parallel);
    }
    print_message("%lld ranks took what was predicted for each: %lld figures are equal\n",
                  (long long)ranks, (long long)n_equal);
}

/* ---- refusals ---- */

static void indivisible_experts_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        mt_parallel split;
        const char *words[2];
    } bad[] = {{{.data = 3, .expert = 3}, {"expert is 3", "experts, 8"}},
               {{.data = 2, .expert = 4}, {"expert is 4", "other data, 2"}},
               {{.data = 4, .zero = 3, .replicas = 2, .expert = 4}, {"expert is 4", "data, 2"}},
               {{.data = 2, .expert = -1}, {"expert is -1", "need 1"}},
               {{FOLDED, .data = 2, .expert = 8}, {"expert is 8", "other tokens, 4"}},
               {{.tensor = 2, .expert_tensor = 1}, {"expert_tensor is 1", "sequence, 1"}},
               {{.tensor = 4, .sequence = true, .expert_tensor = 2}, {"expert_tensor is 2", "4"}},
               {{.tensor = 16}, {"tensor is 16", "heads"}}};
    for (size_t i = 0; i < N(bad); i++) {
        assert_int_not_equal(mt_parallel_check(&bad[i].split, &mixture), MT_OK);
        mtt_failed(MT_ERR_ARGUMENT, bad[i].words[0], bad[i].words[1]);
    }
    const mt_parallel pieces = {
        .data = 4, .zero = 3, .fsdp = MT_FSDP_BLOCK, .reshard = 2, .expert = 2};
    assert_int_not_equal(mt_parallel_check(&pieces, &mixture), MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "reshard is 2", "expert 2");
    const mt_parallel two = {.data = 2, .expert = 2};
    mt_model_config loop = mixture;
    loop.ops.expert_form = MT_EXPERTS_LOOP;
    assert_int_not_equal(mt_parallel_check(&two, &loop), MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "expert is 2", "expert_form is loop");
    assert_int_not_equal(mt_parallel_check(&(mt_parallel){.data = 2, .zero = 3}, &loop), MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "zero is 3", "expert_form is loop");
    assert_int_not_equal(mt_parallel_check(&two, &mtt_models[MTT_LLAMA]), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "expert is 2", "no experts");
    mt_model_config c = mixture;
    const mt_parallel stages = {.pipeline = 2}, pieces_of_all = {.context = 2};
    c.balance_loss = 0.1;
    assert_int_not_equal(mt_parallel_check(&stages, &c), MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "pipeline is 2", "balance_loss");
    c = plain_mixture();
    c.mtp_layers = 3;
    assert_int_not_equal(mt_parallel_check(&pieces_of_all, &c), MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "context is 2", "mtp_layers 3");
    c = mixture;
    c.expert_ranks = 3;
    assert_int_not_equal(mt_model_config_check(&c), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "experts is 8", "expert_ranks, 3");
}

static void every_refused_request_for_memory_is_reported(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.tensor = 2, .sequence = true, .data = 2, .expert = 2, .zero = 1},
        {.data = 4, .expert = 2, .zero = 3, .fsdp = MT_FSDP_BLOCK}};
    mt_model_config c = mixture;
    c.mtp_layers = 1, c.balance_loss = 0.5;
    for (size_t i = 0; i < N(splits); i++) {
        bool done = false;
        for (uint64_t n = 1; !done; n += n < 400 ? 1 : 37) {
            mt_device *meta = mt_device_open("meta");
            mt_rank_report r;
            mt_mem_stats stats;
            mti_fail_nth_alloc(n);
            bool ok = mt_rank_measure(meta, &c, &splits[i], 1, 16, "full", &r) == MT_OK;
            done = ok && mti_alloc_count() < n;
            mti_fail_nth_alloc(0);
            mt_mem_get_stats(meta, &stats);
            assert_int_equal(stats.allocated.current, 0);
            assert_int_equal(mt_last_status(), ok ? MT_OK : MT_ERR_MEMORY);
            mt_clear_error();
            mt_device_release(meta);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_begin_with_the_experts_of_one_process),
        cmocka_unit_test(divided_experts_follow_one_process),
        cmocka_unit_test(experts_without_a_gate_follow_one_process),
        cmocka_unit_test(biases_of_experts_and_sinks_follow_one_process),
        cmocka_unit_test(experts_of_other_stacks_follow_one_process),
        cmocka_unit_test(shared_experts_follow_one_process),
        cmocka_unit_test(latents_follow_one_process),
        cmocka_unit_test(biases_learn_from_all_loads),
        cmocka_unit_test(a_rank_may_get_no_rows),
        cmocka_unit_test(adapters_of_divided_experts_follow_one_process),
        cmocka_unit_test(zero_has_the_bits_of_plain_data_parallelism),
        cmocka_unit_test(every_rank_takes_what_was_predicted_for_it),
        cmocka_unit_test(indivisible_experts_are_refused_by_name),
        cmocka_unit_test(every_refused_request_for_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
