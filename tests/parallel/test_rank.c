/* One rank of several keeps the bytes of Korthikanti et al. 2022 and has the shares that the papers
 * on pipelines and ZeRO give; a single rank is the plain model. */
#include <stdio.h>
#include <string.h>
#include "base/base.h"
#include "memtape/ops.h"
#include "mtt.h"

static mt_model_config paper(const char *preset)
{
    mt_model_config c;
    mtt_ok(mt_model_preset(preset, &c));
    c.dropout = 0.1, c.attention = MT_ATTENTION_MATH, c.dtype = MT_BF16;
    return c;
}

/* Measures on a device of its own and checks that nothing is left on it. */
static mt_rank_report measure(const mt_model_config *c, mt_parallel split, int64_t b, int64_t s,
                              const char *checkpoint)
{
    mt_rank_report r;
    mt_mem_stats stats;
    mt_device *meta = mt_device_open("meta");
    mtt_ok(
        mt_set_balance_check(meta, c->layers <= 4)); /* for large models the check takes seconds */
    mtt_ok(mt_rank_measure(meta, c, &split, b, s, checkpoint, &r));
    mt_mem_get_stats(meta, &stats);
    assert_int_equal(stats.allocated.current, 0);
    mt_device_release(meta);
    return r;
}

/* ---- table 2 of the paper ---- */

enum { NONE, TENSOR, SEQUENCE, SELECTIVE, BOTH, FULL, N_TECHNIQUES };

static mt_rank_report one_layer(const mt_model_config *c, int technique, int64_t b)
{
    static const char *const checkpoint[] = {"none",      "none",      "none",
                                             "selective", "selective", "full"};
    return measure(c,
                   (mt_parallel){.tensor = technique == NONE ? 1 : 8,
                                 .sequence = technique == SEQUENCE || technique == BOTH,
                                 .pipeline = c->layers,
                                 .stage = 1,
                                 .microbatches = 1},
                   b, 2048, checkpoint[technique]);
}

static void a_layer_of_175b_keeps_the_published_bytes(void **state)
{
    (void)state;
    static const int64_t bytes[N_TECHNIQUES] = {2868903936, 578813952, 358612992,
                                                327155712,  106954752, 50331648};
    static const char *const texts[N_TECHNIQUES] = {"L(34bsh + 5abs^2)",
                                                    "L(10bsh + 24bsh/t + 5abs^2/t)",
                                                    "L(34bsh/t + 5abs^2/t)",
                                                    "L(10bsh + 24bsh/t)",
                                                    "L(34bsh/t)",
                                                    "L(2bsh)"};
    mt_model_config c = paper("megatron-175b");
    for (int k = 0; k < N_TECHNIQUES; k++) {
        mt_rank_report r = one_layer(&c, k, 1);
        assert_int_equal(r.formula, bytes[k]);
        assert_string_equal(r.text, texts[k]);
    }
}

/* The formulas again, for every model, plus the statistics of two norms. */
static void every_technique_keeps_its_formula_plus_named_rows(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        int64_t b;
    } models[] = {
        {"megatron-22b", 4}, {"megatron-175b", 1}, {"megatron-530b", 1}, {"megatron-1t", 1}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        mt_model_config c = paper(models[i].preset);
        int64_t s = 2048, t = 8, sb = s * models[i].b, sbh = sb * c.hidden;
        int64_t core = 5 * c.heads * s * sb;
        const int64_t expected[N_TECHNIQUES] = {
            34 * sbh + core,       10 * sbh + 24 * sbh / t + core / t,
            (34 * sbh + core) / t, 10 * sbh + 24 * sbh / t,
            34 * sbh / t,          2 * sbh};
        for (int k = 0; k < N_TECHNIQUES; k++) {
            mt_rank_report r = one_layer(&c, k, models[i].b);
            int64_t statistics = k == FULL ? 0 : 16 * sb / (k == SEQUENCE || k == BOTH ? t : 1);
            assert_int_equal(r.formula, expected[k]);
            assert_int_equal(r.saved, expected[k] + statistics);
            assert_int_equal(r.n_rows, k != FULL);
            if (r.n_rows) assert_int_equal(r.rows[0].bytes, statistics);
            assert_int_equal(r.unexplained, 0);
        }
    }
}

/* ---- a single rank ---- */

static const mt_model_config small_models[] = {
    {.hidden = 32,
     .heads = 4,
     .layers = 4,
     .vocab = 48,
     .context = 16,
     .act = MT_ACT_GELU,
     .dropout = 0.1,
     .attention = MT_ATTENTION_MATH},
    {.hidden = 32,
     .heads = 4,
     .layers = 4,
     .vocab = 48,
     .context = 16,
     .norm = MT_NORM_POST,
     .untied = true},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 8,
     .kv_heads = 4,
     .ffn = 48,
     .layers = 4,
     .vocab = 48,
     .context = 16,
     .qkv_bias = true},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 32,
     .heads = 4,
     .ffn = 48,
     .layers = 4,
     .vocab = 48,
     .context = 16,
     .tied = true,
     .attention = MT_ATTENTION_MATH,
     .dropout = 0.1},
    {.kind = MT_MODEL_BERT,
     .hidden = 32,
     .heads = 4,
     .layers = 4,
     .vocab = 48,
     .context = 16,
     .act = MT_ACT_GELU,
     .padding = 8,
     .dropout = 0.1},
};
enum { N_SMALL = sizeof small_models / sizeof *small_models };

static mt_tensor *loss_of(mt_device *device, mt_module *m)
{
    int64_t ids[32];
    for (int i = 0; i < 32; i++) ids[i] = i * 7 % 48;
    mt_seed(device, 5);
    MT_AUTO mt_tensor *tokens = mt_from_data(device, MT_I64, MT_SHAPE(2, 16), ids, sizeof ids);
    mt_tensor *y = mt_forward(m, tokens);
    mt_set(&y, mt_cross_entropy(y, tokens, MT_IGNORE));
    return mtt_made(y);
}

static void a_single_rank_is_the_plain_model(void **state)
{
    (void)state;
    for (int i = 0; i < N_SMALL; i++) {
        mt_device *device = mt_device_open("cpu");
        mt_module *m[2];
        mt_ledger *ledger[2];
        for (int j = 0; j < 2; j++) {
            mt_seed(device, 3);
            m[j] = j ? mt_rank_new(device, &small_models[i], NULL, 0)
                     : mt_model_new(device, &small_models[i]);
            ledger[j] = mt_ledger_new(device);
            if (!m[j]) fail_msg("%s", mt_last_error());
            mtt_ok(mt_ledger_begin(ledger[j]));
            mt_tensor *loss = loss_of(device, m[j]);
            mtt_ok(mt_ledger_end(ledger[j]));
            mtt_ok(mt_backward(loss));
            mt_release(loss);
        }
        assert_int_equal(mt_ledger_count(ledger[0]), mt_ledger_count(ledger[1]));
        for (size_t k = 0; k < mt_ledger_count(ledger[0]); k++) {
            mt_ledger_entry a, b;
            mtt_ok(mt_ledger_get(ledger[0], k, &a));
            mtt_ok(mt_ledger_get(ledger[1], k, &b));
            assert_int_equal(a.bytes, b.bytes);
            assert_string_equal(a.saver.module, b.saver.module);
            assert_string_equal(a.saver.op, b.saver.op);
            assert_string_equal(a.saver.argument, b.saver.argument);
        }
        const mt_named_tensor *list[2];
        size_t n[2];
        for (int j = 0; j < 2; j++) mtt_ok(mt_module_params(m[j], &list[j], &n[j]));
        assert_int_equal(n[0], n[1]);
        for (size_t k = 0; k < n[0]; k++) {
            /* a rank calls the bias of a bert's head otherwise */
            bool moved = !strcmp(list[0][k].name, "head.bias");
            const char *name = moved ? "decoder.bias" : list[0][k].name;
            size_t l = 0;
            while (l < n[1] && strcmp(name, list[1][l].name) != 0) l++;
            assert_true(l < n[1]);
            assert_true(mtt_same_bits(mt_grad(list[0][k].tensor), mt_grad(list[1][l].tensor)));
        }
        for (int j = 0; j < 2; j++) mt_module_free(m[j]), mt_ledger_free(ledger[j]);
        mt_device_release(device);
    }
}

/* ---- parameters ---- */

static void the_stages_of_a_pipeline_together_have_the_whole_model(void **state)
{
    (void)state;
    for (int i = 0; i < N_SMALL; i++) {
        const mt_model_config *c = &small_models[i];
        bool tied = c->kind == MT_MODEL_LLAMA ? c->tied : !c->untied;
        uint64_t whole, sum = 0;
        mtt_ok(mt_model_config_params(c, &whole));
        assert_int_equal(measure(c, (mt_parallel){0}, 1, 16, NULL).n_params, whole);
        for (int64_t stage = 0; stage < 2; stage++)
            sum += measure(c, (mt_parallel){.pipeline = 2, .stage = stage}, 1, 16, NULL).n_params;
        /* a tied head on the last stage is a copy of the first stage's embedding */
        assert_int_equal(sum, whole + (tied ? 48 * 32 : 0));
    }
}

/* Matrices and column biases are divided; norms, row biases and positions are not. */
static void tensor_parallel_ranks_divide_the_matrices(void **state)
{
    (void)state;
    mt_model_config c = paper("megatron-175b");
    uint64_t h = 12288, l = 96, t = 8, v = 51200, s = 2048;
    mt_rank_report r = measure(&c, (mt_parallel){.tensor = 8}, 1, 2048, "full");
    assert_int_equal(r.n_params,
                     l * (12 * h * h / t + 7 * h / t + 6 * h) + v * h / t + s * h + 2 * h);
}

static void an_indivisible_vocabulary_is_padded(void **state)
{
    (void)state;
    mt_model_config c = small_models[1];
    c.vocab = 46;
    mt_device *meta = mt_device_open("meta");
    mt_module *m = mt_rank_new(meta, &c, &(mt_parallel){.tensor = 4}, 0);
    mt_tensor *w = mt_module_param(mt_module_child(m, "wte"), "weight");
    assert_int_equal(mt_shape(w)[0], 12);
    assert_int_equal(mt_shape(mt_module_param(mt_module_child(m, "lm_head"), "weight"))[0], 12);
    mt_module_free(m);
    mt_device_release(meta);
}

/* ---- pipelines ---- */

static void a_stage_holds_one_microbatch_for_itself_and_each_later_stage(void **state)
{
    (void)state;
    const mt_model_config *c = &small_models[0];
    for (int64_t stage = 0; stage < 4; stage++)
        for (int64_t m = 1; m <= 6; m++) {
            mt_parallel split = {.pipeline = 4, .stage = stage, .microbatches = m};
            mt_rank_report r = measure(c, split, 2, 16, NULL);
            assert_int_equal(r.in_flight, 4 - stage < m ? 4 - stage : m);
            split.microbatches = 1;
            assert_int_equal(r.saved, (size_t)r.in_flight * measure(c, split, 2, 16, NULL).saved);
            assert_int_equal(r.unexplained, 0);
        }
}

/* p m + p - 1 parts instead of p m, which is the paper's factor 1 + (p-1)/(p m). */
static void interleaving_keeps_more_by_the_papers_factor(void **state)
{
    (void)state;
    mt_model_config c = paper("megatron-175b");
    mt_parallel plain = {.tensor = 8, .pipeline = 8, .microbatches = 64}, mixed = plain;
    mixed.interleave = 3;
    for (int sequence = 0; sequence < 2; sequence++) {
        plain.sequence = mixed.sequence = sequence;
        mt_rank_report a = measure(&c, plain, 1, 2048, "selective");
        mt_rank_report b = measure(&c, mixed, 1, 2048, "selective");
        assert_int_equal(a.in_flight, 8);
        assert_int_equal(b.in_flight, 8 * 3 + 8 - 1);
        assert_int_equal(a.layers, b.layers);
        assert_int_equal(a.n_params, b.n_params);
        assert_int_equal(a.unexplained, 0);
        assert_int_equal(b.unexplained, 0);
        int64_t sbh = 2048 * 12288, layer = sequence ? 34 * sbh / 8 : 13 * sbh;
        int64_t mask = sequence ? sbh / 8 : sbh; /* of the embedding's dropout */
        assert_int_equal(a.formula, 8 * 12 * layer + 8 * mask);
        assert_int_equal(b.formula, 31 * 4 * layer + 15 * mask); /* part 0: 8, and 7 in advance */
    }
}

static void microbatches_beyond_the_first_period_change_nothing(void **state)
{
    (void)state;
    for (int i = 0; i < N_SMALL; i++)
        for (int64_t v = 1; v <= 2; v++) {
            mt_parallel few = {.pipeline = 2, .interleave = v, .microbatches = 12}, many = few;
            many.microbatches = 1000;
            mt_rank_report a = measure(&small_models[i], few, 2, 16, NULL);
            mt_rank_report b = measure(&small_models[i], many, 2, 16, NULL);
            assert_memory_equal(&a, &b, sizeof a);
        }
}

/* ---- ZeRO ---- */

static void zero_divides_what_its_stage_divides(void **state)
{
    (void)state;
    for (int i = 0; i < N_SMALL; i++) {
        mt_model_config c = small_models[i];
        c.dtype = MT_BF16;
        for (int zero = 0; zero <= 3; zero++) {
            mt_parallel split = {.tensor = 2, .sequence = i & 1, .data = 4, .zero = zero};
            mt_rank_report r = measure(&c, split, 2, 16, "none");
            size_t n = r.n_params; /* every parameter has a multiple of 4 elements */
            assert_int_equal(r.param_bytes, 2 * n / (zero > 2 ? 4 : 1));
            assert_int_equal(r.grad_bytes, 2 * n / (zero > 1 ? 4 : 1));
            assert_int_equal(r.optimizer_bytes, 12 * n / (zero > 0 ? 4 : 1));
            assert_int_equal(r.unexplained, 0);
        }
    }
}

/* Rajbhandari et al. 2020, figure 1: 120, 31.4, 16.6 and 1.9 GB for 7.5 billion parameters on 64
 * ranks. Here a GPT of about that size, scaled to 7.5 billion, in tenths of a GB. */
static void a_model_of_7_5_billion_needs_what_the_zero_paper_says(void **state)
{
    (void)state;
    static const int64_t published[] = {1200, 314, 166, 19};
    mt_model_config c = {.hidden = 4096,
                         .heads = 32,
                         .layers = 36,
                         .vocab = 51200,
                         .context = 512,
                         .act = MT_ACT_GELU,
                         .dtype = MT_BF16};
    for (int zero = 0; zero <= 3; zero++) {
        mt_rank_report r = measure(&c, (mt_parallel){.data = 64, .zero = zero}, 1, 512, "full");
        double bytes = (double)(r.param_bytes + r.grad_bytes + r.optimizer_bytes);
        assert_int_equal((int64_t)(bytes / (double)r.n_params * 75 + 0.5), published[zero]);
    }
}

static void zero_does_not_change_what_is_kept_for_backward(void **state)
{
    (void)state;
    mt_model_config c = small_models[0];
    c.dtype = MT_BF16;
    mt_parallel split = {.tensor = 2, .data = 3}; /* pieces are padded */
    size_t saved = measure(&c, split, 2, 16, "none").saved;
    for (split.zero = 1; split.zero <= 3; split.zero++)
        assert_int_equal(measure(&c, split, 2, 16, "none").saved, saved);
}

/* ---- what a rank needs ---- */

/* Blocks of 512 bytes that a module's parameters take. */
static size_t blocks_of(mt_module *m)
{
    const mt_named_tensor *list;
    size_t n, sum = 0;
    mtt_ok(mt_module_params(m, &list, &n));
    for (size_t i = 0; i < n; i++) sum += mt_storage_of(list[i].tensor).allocated;
    return sum;
}

/* Neither the parameters that ZeRO divides nor a tied head's weight are ever in memory as a whole.
 */
static void making_a_rank_allocates_only_what_it_has(void **state)
{
    (void)state;
    for (int i = 0; i < N_SMALL; i++)
        for (int zero = 0; zero <= 3; zero++) {
            mt_device *meta = mt_device_open("meta");
            mt_parallel split = {.tensor = 2, .data = 8, .zero = zero};
            mt_module *m = mt_rank_new(meta, &small_models[i], &split, 0);
            mt_mem_stats stats;
            mt_mem_get_stats(meta, &stats);
            assert_int_equal(stats.allocated.current, blocks_of(m));
            assert_int_equal(stats.allocated.peak, stats.allocated.current);
            mt_module_free(m);
            mt_device_release(meta);
        }
}

/* 175 billion parameters on 64 ranks take 2/64 bytes each, and the pieces fill their segments. */
static void gpt3_on_64_ranks_is_made_in_5_5_gb(void **state)
{
    (void)state;
    mt_model_config c;
    mt_mem_stats stats;
    mt_device *meta = mt_device_open("meta");
    mtt_ok(mt_model_preset("gpt3-175b", &c));
    c.dtype = MT_BF16;
    mt_module *m = mt_rank_new(meta, &c, &(mt_parallel){.data = 64, .zero = 3}, 0);
    if (!m) fail_msg("%s", mt_last_error());
    mt_mem_get_stats(meta, &stats);
    assert_int_equal(stats.allocated.peak, 5456494080);
    assert_int_equal(stats.reserved.peak, 5674893312);
    mt_module_free(m);
    mt_device_release(meta);
}

/* The categories at the peak add up to the peak, with all parameters and AdamW's state. */
static void check_steady(const mt_model_config *c, const mt_parallel *split,
                         const mt_rank_report *r)
{
    size_t sum = 0, parameters = 0;
    mt_device *meta = mt_device_open("meta");
    for (int64_t part = 0; part < (split->interleave ? split->interleave : 1); part++) {
        mt_module *m = mt_rank_new(meta, c, split, part);
        if (!m) fail_msg("%s", mt_last_error());
        parameters += blocks_of(m);
        mt_module_free(m);
    }
    mt_device_release(meta);
    for (int k = 0; k < MT_CATEGORY_COUNT; k++) sum += r->steady_by_category[k];
    assert_int_equal(sum, r->steady_peak);
    assert_int_equal(r->steady_by_category[MT_PARAMETER], parameters);
    assert_true(r->steady_by_category[MT_OPTIMIZER] >= r->optimizer_bytes);
    assert_true(r->steady_peak >= r->param_bytes + r->grad_bytes + r->optimizer_bytes);
    assert_true(r->steady_peak >= r->param_bytes + r->optimizer_bytes + r->saved);
    assert_true(r->steady_peak > r->peak && r->steady_reserved >= r->steady_peak);
}

static mt_status measure_within(size_t capacity, const mt_model_config *c, const mt_parallel *split)
{
    mt_rank_report r;
    mt_mem_stats stats;
    mt_device *meta = mt_device_open("meta");
    mt_mem_set_capacity(meta, capacity);
    mt_status status = mt_rank_measure(meta, c, split, 4, 16, NULL, &r);
    mt_clear_error();
    mt_mem_get_stats(meta, &stats);
    assert_int_equal(stats.allocated.current, 0);
    mt_device_release(meta);
    return status;
}

/* Different shares; the optimizer's state decides in all but ZeRO's. */
static void a_rank_runs_in_what_it_needs_but_not_in_less(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {0},
        {.tensor = 2, .sequence = true},
        {.pipeline = 4, .microbatches = 8},
        {.pipeline = 2, .interleave = 2, .microbatches = 4, .stage = 1},
        {.data = 4, .zero = 1},
        {.data = 4, .zero = 2, .microbatches = 3},
        {.data = 4, .zero = 3},
        {.tensor = 2, .pipeline = 2, .data = 3, .zero = 3}};
    for (int i = 0; i < N_SMALL; i++)
        for (size_t k = 0; k < sizeof splits / sizeof *splits; k++) {
            mt_model_config c = small_models[i];
            c.dtype = MT_BF16, c.hidden = 256, c.ffn = 1024, c.vocab = 4096;
            mt_rank_report r = measure(&c, splits[k], 4, 16, NULL);
            check_steady(&c, &splits[k], &r);
            assert_int_equal(measure_within(r.steady_reserved, &c, &splits[k]), MT_OK);
            assert_int_equal(measure_within(r.steady_peak - 1, &c, &splits[k]), MT_ERR_MEMORY);
            /* enough only for the first step's forward and backward */
            if (r.reserved < r.steady_peak)
                assert_int_equal(measure_within(r.reserved, &c, &splits[k]), MT_ERR_MEMORY);
        }
}

/* ---- random ranks ---- */

static int64_t pick(uint64_t *seed, int64_t n) { return (int64_t)mtt_draw(seed, 0, (double)n); }

static void every_byte_of_a_random_rank_is_explained(void **state)
{
    (void)state;
    static const char *const checkpoints[] = {"none", "full", "selective", "ops"};
    static const mt_dtype dtypes[] = {MT_F32, MT_BF16, MT_F16};
    enum { N = 300 };
    uint64_t seed = 20221;
    for (int i = 0; i < N; i++) {
        mt_model_config c = small_models[pick(&seed, N_SMALL)];
        c.dtype = dtypes[pick(&seed, 3)];
        c.dropout = pick(&seed, 2) ? 0.1 : 0;
        c.attention = pick(&seed, 2) ? MT_ATTENTION_MATH : MT_ATTENTION_FLASH;
        if (c.kind != MT_MODEL_LLAMA) c.act = (mt_act)pick(&seed, MT_ACT_COUNT);
        mt_parallel split = {.tensor = 1 << pick(&seed, 3),
                             .sequence = pick(&seed, 2),
                             .pipeline = 1 << pick(&seed, 2),
                             .data = 1 + pick(&seed, 3),
                             .zero = (int)pick(&seed, 4)};
        split.interleave = split.pipeline > 1 ? 1 + pick(&seed, 2) : 1;
        split.stage = pick(&seed, split.pipeline);
        split.microbatches = split.pipeline * (1 + pick(&seed, 3));
        mt_rank_report r = measure(&c, split, 1 + pick(&seed, 2), 16, checkpoints[pick(&seed, 4)]);
        if (r.unexplained) fail_msg("case %d: %lld bytes", i, (long long)r.unexplained);
        assert_int_equal(r.saved > 0, true);
        check_steady(&c, &split, &r);
    }
    print_message("%d random ranks from seed 20221\n", N);
}

/* ---- refusals ---- */

static void indivisible_shares_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        mt_parallel split;
        int model;
        const char *words[2];
    } bad[] = {
        {{.tensor = 3}, 0, {"tensor is 3", "heads, 4"}},
        {{.tensor = 8}, 2, {"tensor is 8", "kv_heads, 4"}},
        {{.tensor = -1}, 0, {"tensor is -1", "need 1"}},
        {{.pipeline = 3}, 0, {"pipeline times interleave is 3", "layers, 4"}},
        {{.pipeline = 2, .interleave = 4}, 0, {"pipeline times interleave is 8", "layers, 4"}},
        {{.interleave = 2}, 0, {"interleave is 2", "2 stages or more"}},
        {{.pipeline = 2, .interleave = 2, .microbatches = 3}, 0, {"pipeline is 2", "microbatches"}},
        {{.pipeline = 2, .stage = 2}, 0, {"stage is 2", "0 to 1"}},
        {{.zero = 4}, 0, {"zero is 4", "0 to 3"}},
        {{.data = 1ll << 40}, 0, {"data is", "1048576"}},
        {{.microbatches = -2}, 0, {"microbatches is -2", "need 1"}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (mt_parallel_check(&bad[i].split, &small_models[bad[i].model]) == MT_OK)
            fail_msg("taken: case %zu", i);
        mtt_failed(MT_ERR_ARGUMENT, bad[i].words[0], bad[i].words[1]);
    }
    mt_model_config mlp = {.kind = MT_MODEL_MLP, .hidden = 32};
    assert_int_not_equal(mt_parallel_check(NULL, &mlp), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "the model is a mlp", "block, gpt, bert and llama");
    mt_device *meta = mt_device_open("meta");
    mt_rank_report r;
    assert_int_not_equal(mt_rank_measure(meta, &small_models[0], NULL, 1, 16, "every=2", &r),
                         MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "every=2", "selective");
    assert_int_not_equal(mt_rank_measure(meta, &small_models[0],
                                         &(mt_parallel){.tensor = 4, .sequence = true}, 1, 15,
                                         "none", &r),
                         MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "15 tokens", "4 ranks");
    assert_int_not_equal(mt_rank_measure(meta, &small_models[0], NULL, 1, 17, "none", &r), MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "17 tokens", "context, 16");
    mt_module *rank = mt_rank_new(meta, &small_models[0], &(mt_parallel){.pipeline = 2}, 0);
    assert_null(mt_rank_wire(rank, meta, 0, 16));
    mtt_failed(MT_ERR_ARGUMENT, "rank_wire", "0 sequences");
    mt_tensor *x = mt_zeros(meta, MT_F32, MT_SHAPE(16));
    assert_null(mt_forward(rank, x));
    mtt_failed(MT_ERR_ARGUMENT, "rank: the tokens are f32 [16]", "i64 [b,s]");
    mt_release(x);
    mt_module_free(rank);
    mt_device_release(meta);
}

static void ranks_among_several_need_a_device_without_data(void **state)
{
    (void)state;
    mt_device *cpu = mt_device_open("cpu");
    assert_null(mt_rank_new(cpu, &small_models[0], &(mt_parallel){.tensor = 2}, 0));
    mtt_failed(MT_ERR_UNSUPPORTED, "rank", "on cpu without a comm", "meta");
    mt_rank_report r;
    assert_int_not_equal(mt_rank_measure(cpu, &small_models[0], NULL, 1, 16, NULL, &r), MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "rank_measure", "cpu");
    mt_device_release(cpu);
}

static void every_refused_request_for_memory_is_reported(void **state)
{
    (void)state;
    static const mt_parallel splits[] = {
        {.tensor = 2, .sequence = true, .pipeline = 2, .interleave = 2, .microbatches = 2},
        {.tensor = 2, .data = 3, .zero = 2},
        {.tensor = 2, .sequence = true, .data = 3, .zero = 3},
        {.data = 3, .zero = 3, .gather = MT_GATHER_AHEAD, .keep_last = true}};
    mt_model_config c = small_models[0];
    c.layers = 4, c.dtype = MT_BF16;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        bool done = false;
        for (uint64_t n = 1; !done; n += n < 400 ? 1 : 37) {
            mt_device *meta = mt_device_open("meta");
            mt_rank_report r;
            mt_mem_stats stats;
            mti_fail_nth_alloc(n);
            /* if the second request for a segment succeeds, nothing has failed */
            bool ok = mt_rank_measure(meta, &c, &splits[i], 1, 16, "selective", &r) == MT_OK;
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
        cmocka_unit_test(a_layer_of_175b_keeps_the_published_bytes),
        cmocka_unit_test(every_technique_keeps_its_formula_plus_named_rows),
        cmocka_unit_test(a_single_rank_is_the_plain_model),
        cmocka_unit_test(the_stages_of_a_pipeline_together_have_the_whole_model),
        cmocka_unit_test(tensor_parallel_ranks_divide_the_matrices),
        cmocka_unit_test(an_indivisible_vocabulary_is_padded),
        cmocka_unit_test(a_stage_holds_one_microbatch_for_itself_and_each_later_stage),
        cmocka_unit_test(interleaving_keeps_more_by_the_papers_factor),
        cmocka_unit_test(microbatches_beyond_the_first_period_change_nothing),
        cmocka_unit_test(zero_divides_what_its_stage_divides),
        cmocka_unit_test(a_model_of_7_5_billion_needs_what_the_zero_paper_says),
        cmocka_unit_test(zero_does_not_change_what_is_kept_for_backward),
        cmocka_unit_test(making_a_rank_allocates_only_what_it_has),
        cmocka_unit_test(gpt3_on_64_ranks_is_made_in_5_5_gb),
        cmocka_unit_test(a_rank_runs_in_what_it_needs_but_not_in_less),
        cmocka_unit_test(every_byte_of_a_random_rank_is_explained),
        cmocka_unit_test(indivisible_shares_are_refused_by_name),
        cmocka_unit_test(ranks_among_several_need_a_device_without_data),
        cmocka_unit_test(every_refused_request_for_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
