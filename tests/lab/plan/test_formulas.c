/* formulas.c: the published figures; and, for random models, each closed formula against what the
 * meta device measures. */
#include <stdio.h>
#include <string.h>
#include "models.h"
#include "nn/model.h"

static mt_model_config preset(const char *name)
{
    mt_model_config c;
    mtt_ok(mt_model_preset(name, &c));
    c.dtype = MT_BF16;
    return c;
}

/* The model of the published formula: every intermediate of attention is kept, with dropout. */
static mt_model_config textbook(const char *name)
{
    mt_model_config c = preset(name);
    c.attention = MT_ATTENTION_MATH;
    c.dropout = 0.1;
    return c;
}

/* ---- published figures ---- */

static void activations_of_bert_llama_and_gpt3_are_those_of_the_formula(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        int64_t batch, seq, value;
    } cases[] = {
        /* published as 250 M, a slip: 12 * 29.1 M + 0.79 M is 350 M */
        {"bert-base", 1, 512, 349962240},
        {"bert-base", 16, 512, 5599395840}, /* published as 5.58 G, from rounded terms */
        {"llama-65b", 1, 2048, 153041764352},
        {"llama-65b", 16, 2048, 2448668229632},
        {"gpt3-175b", 1, 2048, 275465109504},
        {"gpt3-175b", 64, 2048, 17629767008256},
        {"gpt3-175b", 128, 2048, 35259534016512},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mt_model_config c = textbook(cases[i].preset);
        mt_plan_formula f;
        mt_plan_run run = {.config = &c, .batch = cases[i].batch, .seq = cases[i].seq};
        mtt_ok(mt_plan_activations(&run, &f));
        assert_string_equal(f.text, "L(34bsh + 5abs^2) + 2bsh");
        assert_int_equal(f.value, cases[i].value);
        int64_t b = run.batch, s = run.seq, h = c.hidden;
        assert_int_equal(f.value,
                         c.layers * (34 * b * s * h + 5 * c.heads * b * s * s) + 2 * b * s * h);
    }
}

static void a_layer_of_gpt3_follows_table_2_of_the_paper(void **state)
{
    (void)state;
    mt_model_config c = {.kind = MT_MODEL_BLOCK,
                         .hidden = 12288,
                         .heads = 96,
                         .act = MT_ACT_GELU,
                         .attention = MT_ATTENTION_MATH,
                         .dropout = 0.1,
                         .causal = true,
                         .dtype = MT_BF16};
    static const struct {
        const char *checkpoint;
        int64_t bytes, statistics;
    } cases[] = {{NULL, 2868903936, 16 * 2048},
                 {"selective", (int64_t)34 * 2048 * 12288, 16 * 2048},
                 {"full", 50331648, 0}};
    for (size_t i = 0; i < 3; i++) {
        mt_plan_formula f;
        mt_plan_run run = {
            .config = &c, .batch = 1, .seq = 2048, .checkpoint = cases[i].checkpoint};
        mtt_ok(mt_plan_activations(&run, &f));
        assert_int_equal(f.value, 2868903936);
        assert_int_equal(f.expected, cases[i].bytes + cases[i].statistics);
    }
}

static void parameters_follow_12lh2_and_the_longer_formula(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        int64_t brief, longer, exact;
    } cases[] = {{"llama-7b", 6442450944, 6575226880, 6738415616},
                 {"llama-13b", 12582912000, 12749414400, 13015864320},
                 {"llama-33b", 31897681920, 32115865600, 32528943616},
                 {"llama-65b", 64424509440, 64695173120, 65285660672},
                 {"gpt3-175b", 173946175488, 174579068928, 174604259328},
                 {"bert-base", 84934656, 108495360, 109514298},
                 {"llama-3.1-8b", 6442450944, 6969491456, 8030261248}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mt_model_config c = preset(cases[i].preset);
        mt_plan_run run = {.config = &c, .batch = 1, .seq = 1};
        mt_plan_formula f;
        mtt_ok(mt_plan_parameters_in_brief(&run, &f));
        assert_int_equal(f.value, cases[i].brief);
        assert_int_equal(f.expected, cases[i].exact);
        mtt_ok(mt_plan_parameters(&run, &f));
        assert_int_equal(f.value, cases[i].longer);
        assert_int_equal(f.expected, cases[i].exact);
    }
}

#define DAY 86400.0

static void training_times_are_the_published_ones(void **state)
{
    (void)state;
    mt_plan_formula f;
    mt_model_config gpt3 = preset("gpt3-175b"), llama = preset("llama-65b");
    mt_plan_run run = {.config = &gpt3, .batch = 1, .seq = 2048, .checkpoint = "full"};
    mtt_ok(mt_plan_flops(&run, &f));
    assert_string_equal(f.text, "8Nbs");
    double days = mt_plan_seconds((double)f.value / 2048 * 300e9, 1024, 312e12, 0.45) / DAY;
    assert_int_equal((int)(days + 0.5), 34);
    run.config = &llama;
    run.parameters = 65000000000;
    mtt_ok(mt_plan_flops(&run, &f));
    assert_int_equal(f.value, (int64_t)8 * 65000000000 * 2048);
    days = mt_plan_seconds((double)f.value / 2048 * 1.4e12, 2048, 624e12, 0.3) / DAY;
    assert_int_equal((int)(days * 100 + 0.5), 2198);
}

static void model_flops_are_those_of_the_longer_formula(void **state)
{
    (void)state;
    /* Narayanan et al. 2021, eq. 3, with recomputation: 96 B L s h^2 (1 + s / 6h + v / 16hL) */
    mt_model_config c = textbook("gpt3-175b");
    mt_plan_run run = {.config = &c, .batch = 2, .seq = 2048, .checkpoint = "full"};
    mt_plan_formula f;
    mtt_ok(mt_plan_flops(&run, &f));
    int64_t b = 2, s = 2048, h = c.hidden, l = c.layers, v = c.vocab;
    assert_int_equal(f.expected,
                     96 * b * l * s * h * h + 16 * b * l * s * s * h + 6 * b * s * h * v);
}

static void a_forward_pass_takes_what_each_component_takes(void **state)
{
    (void)state;
    mt_model_config c = textbook("gpt3-175b");
    mt_plan_run run = {.config = &c, .batch = 2, .seq = 2048};
    mt_plan_formula f;
    mt_plan_component at[MT_PLAN_MAX_COMPONENTS];
    int n = 0;
    mtt_ok(mt_plan_forward_flops(&run, &f, at, &n));
    int64_t b = 2, s = 2048, h = c.hidden, l = c.layers, v = c.vocab;
    assert_string_equal(f.text, "L(24bsh^2 + 4bs^2h) + 2bshv");
    assert_int_equal(f.value, l * (24 * b * s * h * h + 4 * b * s * s * h) + 2 * b * s * h * v);
    assert_int_equal(f.expected, f.value);
    const int64_t each[] = {6 * b * s * h * h, 4 * b * s * s * h, 2 * b * s * h * h,
                            16 * b * s * h * h, 2 * b * s * h * v};
    static const char *const texts[] = {"6bsh^2", "4bs^2h", "2bsh^2", "16bsh^2", "2bshv"};
    assert_int_equal(n, 5);
    for (int i = 0; i < n; i++) {
        assert_int_equal(at[i].each, each[i]);
        assert_int_equal(at[i].times, i < 4 ? l : 1);
        assert_string_equal(at[i].text, texts[i]);
    }
    mtt_ok(mt_plan_forward_flops(&run, &f, NULL, NULL));
    assert_int_equal(f.expected, f.value);
}

static void states_take_the_published_bytes_a_parameter(void **state)
{
    (void)state;
    mt_plan_formula f;
    mt_model_config c = preset("llama-3.1-8b");
    mt_plan_run run = {.config = &c, .batch = 1, .seq = 1, .parameters = 8000000000};
    mtt_ok(mt_plan_states(&run, &(mt_plan_training){"adamw", true}, &f));
    assert_string_equal(f.text, "(2 + 2 + 12) N");
    assert_int_equal(f.value, 128000000000);
    assert_int_equal(f.expected, 16 * (int64_t)8030261248);
    c.dtype = MT_F32;
    run.parameters = 0;
    mtt_ok(mt_plan_states(&run, &(mt_plan_training){"adamw"}, &f));
    assert_int_equal(f.value, 16 * (int64_t)8030261248);
    mtt_ok(mt_plan_states(&run, &(mt_plan_training){"sgd-momentum"}, &f));
    assert_string_equal(f.text, "(4 + 4 + 4) N");
    mtt_ok(mt_plan_states(&run, &(mt_plan_training){"sgd"}, &f));
    assert_string_equal(f.text, "(4 + 4 + 0) N");
    c.dtype = MT_BF16;
    mtt_ok(mt_plan_states(&run, &(mt_plan_training){"sgd", true}, &f));
    assert_string_equal(f.text, "(2 + 2 + 4) N");
    mtt_ok(mt_plan_states(&run, &(mt_plan_training){"adamw", .master = true, .f32_gradients = true},
                          &f));
    assert_string_equal(f.text, "(2 + 4 + 12) N");
    mtt_ok(mt_plan_states(&run, NULL, &f));
    assert_string_equal(f.text, "(2 + 2 + 0) N");
}

static void every_regime_has_a_source_and_a_sum(void **state)
{
    (void)state;
    const mt_plan_regime *r;
    double sums[16] = {0};
    size_t n = 0;
    for (; (r = mt_plan_regime_at(n)); n++) {
        assert_true(*r->name && *r->source);
        sums[n] = r->parameter + r->gradient + r->optimizer;
    }
    static const double published[] = {16, 16, 18, 20, 12, 8, 6, 4, 8, 12, 8, 2, 0.5, 2};
    assert_int_equal(n, sizeof published / sizeof *published);
    for (size_t i = 0; i < n; i++) assert_true(sums[i] == published[i]);
}

static void the_cache_of_gpt3_takes_the_published_bytes(void **state)
{
    (void)state;
    mt_model_config c = preset("gpt3-175b");
    mt_plan_run run = {.config = &c, .batch = 64, .seq = 512};
    mt_plan_formula f;
    mtt_ok(mt_plan_kv_cache(&run, 32, &f));
    assert_int_equal(f.value, 164282499072);
    assert_int_equal(f.n_rows, 0);
}

static void invalid_input_is_refused(void **state)
{
    (void)state;
    mt_plan_formula f;
    mt_model_config gpt = preset("gpt2"), bert = preset("bert-base"), none = {0};
    mt_model_config attention = {.kind = MT_MODEL_ATTENTION, .hidden = 8};
    const mt_plan_run good = {.config = &gpt, .batch = 1, .seq = 8};
    mt_plan_run bad = good;
    mt_plan_parameters(NULL, &f), mtt_failed(MT_ERR_ARGUMENT, "run is NULL");
    mt_plan_flops(&good, NULL), mtt_failed(MT_ERR_ARGUMENT, "result is NULL");
    mt_plan_forward_flops(&good, NULL, NULL, NULL), mtt_failed(MT_ERR_ARGUMENT, "result is NULL");
    mt_plan_states(&good, &(mt_plan_training){"adamw"}, NULL),
        mtt_failed(MT_ERR_ARGUMENT, "result is NULL");
    mt_plan_parameters_in_brief(&good, NULL), mtt_failed(MT_ERR_ARGUMENT, "result is NULL");
    mt_plan_states(&good, &(mt_plan_training){"adagrad"}, &f),
        mtt_failed(MT_ERR_ARGUMENT, "adagrad", "sgd-momentum", "lion");
    bad.batch = 0;
    mt_plan_activations(&bad, &f), mtt_failed(MT_ERR_ARGUMENT, "batch 0");
    bad = good, bad.checkpoint = "some";
    mt_plan_activations(&bad, &f), mtt_failed(MT_ERR_ARGUMENT, "some", "every=K");
    bad = good, bad.seq = (int64_t)1 << 40;
    mt_plan_flops(&bad, &f), mtt_failed(MT_ERR_ARGUMENT, "63 bits");
    bad = good, bad.parameters = -1;
    mt_plan_flops(&bad, &f), mtt_failed(MT_ERR_ARGUMENT, "-1 parameters");
    bad = good, bad.parameters = INT64_MAX;
    mt_plan_states(&bad, &(mt_plan_training){"adamw"}, &f), mtt_failed(MT_ERR_ARGUMENT, "10^15");
    bad = good, bad.parameters = 1000000000000000, bad.batch = 1000;
    mt_plan_flops(&bad, &f), mtt_failed(MT_ERR_ARGUMENT, "63 bits");
    bad = good, bad.config = &none;
    mt_plan_parameters(&bad, &f), mtt_failed(MT_ERR_ARGUMENT, "hidden");
    bad = good, bad.config = &attention;
    mt_plan_parameters_in_brief(&bad, &f), mtt_failed(MT_ERR_ARGUMENT, "attention");
    mt_plan_kv_cache(&good, 1024, &f), mtt_failed(MT_ERR_ARGUMENT, "1024", "context");
    bad = good, bad.config = &bert;
    mt_plan_kv_cache(&bad, 1, &f), mtt_failed(MT_ERR_ARGUMENT, "bert");
}

/* ---- any model, measured ---- */

static const char *draw_checkpoint(uint64_t *seed, const mt_model_config *c)
{
    static const char *const presets[] = {NULL,        NULL,   "none",    "full",   "ops",
                                          "selective", "sqrt", "every=2", "every=3"};
    int64_t n = mti_is_whole(c->kind)                                   ? 8
                : c->kind == MT_MODEL_MLP || c->kind == MT_MODEL_LINEAR ? 4
                                                                        : 5;
    const char *preset = presets[mtt_pick(seed, 0, n)];
    return preset && !strcmp(preset, "ops") && c->inplace ? "full" : preset; /* refused */
}

/* What one step measured. */
typedef struct step {
    int64_t parameters, kept, forward, flops, states;
} step;

static int64_t requested(mt_tensor *t) { return (int64_t)mt_storage_of(t).bytes; }

static int64_t states_of(mt_module *model, mt_optimizer *optimizer, int64_t gradients)
{
    uint64_t elements, bytes;
    mtt_ok(mt_module_size(model, &elements, &bytes));
    int64_t sum = (int64_t)bytes + gradients;
    for (size_t i = 0; i < mt_optimizer_state_count(optimizer); i++) {
        mt_optimizer_entry e;
        mtt_ok(mt_optimizer_state(optimizer, i, &e));
        sum += requested(e.tensor);
    }
    return sum;
}

static int64_t gradients_of(mt_module *model)
{
    const mt_named_tensor *params;
    size_t n;
    int64_t sum = 0;
    mtt_ok(mt_module_params(model, &params, &n));
    for (size_t i = 0; i < n; i++) sum += requested(mt_grad(params[i].tensor));
    return sum;
}

/* Returns the loss of a whole model or the output of a part; the ledger counts what is kept. */
static mt_tensor *forward(mt_device *device, const mt_plan_run *run, mt_module *model, step *out)
{
    const mt_model_config *c = run->config;
    mt_tensor *x, *y, *target = NULL;
    if (mti_is_whole(c->kind)) {
        x = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(run->batch, run->seq)));
        if (mti_has_head(c))
            target = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(run->batch, run->seq)));
    } else {
        x = mtt_made(mt_normal(device, c->dtype, MT_SHAPE(run->batch, run->seq, c->hidden), 0, 1));
        mtt_ok(mt_set_requires_grad(x, true));
    }
    mt_ledger *ledger = mt_ledger_new(device);
    mt_flops_reset(device);
    mtt_ok(mt_ledger_begin(ledger));
    y = mtt_made(target ? mt_model_forward_loss(model, x, target) : mt_forward(model, x));
    mtt_ok(mt_ledger_end(ledger));
    out->kept = (int64_t)mt_ledger_bytes(ledger);
    mt_ledger_free(ledger);
    mt_release(target);
    mt_release(x);
    return y;
}

static const char *const optimizers[] = {"sgd", "sgd-momentum", "adamw"};

static mt_optimizer *make_optimizer(mt_module *model, const mt_plan_training *t)
{
    mt_sgd_options sgd = {
        .lr = 1, .momentum = strcmp(t->optimizer, "sgd-momentum") ? 0 : 0.9, .master = t->master};
    return strcmp(t->optimizer, "adamw")
               ? mt_sgd_new(model, &sgd)
               : mt_adamw_new(model, &(mt_adamw_options){.lr = 1, .master = t->master});
}

static step measure(mt_device *device, const mt_plan_run *run, const mt_plan_training *training)
{
    step out = {0};
    mt_module *model = mt_model_new(device, run->config);
    assert_non_null(model);
    if (training->f32_gradients) mtt_ok(mt_module_set_grad_dtype(model, MT_F32));
    if (run->checkpoint) mtt_ok(mt_model_checkpoint(model, run->checkpoint));
    mt_tensor *y = forward(device, run, model, &out);
    mt_tensor *dy = mtt_made(mt_normal(device, mt_dtype_of(y), mt_rank(y), mt_shape(y), 0, 1));
    mtt_ok(mt_backward_with(y, &(mt_backward_options){.gradient = dy}));
    mt_flops flops = mt_flops_get(device);
    out.forward = (int64_t)flops.forward;
    out.flops = (int64_t)(flops.forward + flops.backward + flops.recompute);
    int64_t gradients = gradients_of(model);
    mt_optimizer *optimizer = make_optimizer(model, training);
    mtt_ok(mt_optimizer_step(optimizer));
    out.states = states_of(model, optimizer, gradients);
    uint64_t elements, bytes;
    mtt_ok(mt_module_size(model, &elements, &bytes));
    out.parameters = (int64_t)elements;
    mt_optimizer_free(optimizer);
    mt_release(dy);
    mt_release(y);
    mt_module_free(model);
    return out;
}

static void assert_agrees(const mt_plan_formula *f, int64_t measured, const mt_plan_run *run,
                          int which)
{
    int64_t sum = f->value;
    for (int i = 0; i < f->n_rows; i++) {
        assert_int_not_equal(f->rows[i].amount, 0);
        assert_true(*f->rows[i].text != 0);
        sum += f->rows[i].amount;
    }
    assert_int_equal(sum, f->expected);
    if (f->expected == measured) return;
    char config[MT_MODEL_CONFIG_TEXT];
    mt_model_config_to_json(run->config, config, sizeof config);
    fail_msg("model %d, %s: expected %lld, measured %lld; b=%lld s=%lld checkpoint %s\n%s", which,
             f->name, (long long)f->expected, (long long)measured, (long long)run->batch,
             (long long)run->seq, run->checkpoint ? run->checkpoint : "-", config);
}

static void assert_cache_agrees(mt_device *device, const mt_plan_run *run, int which)
{
    mt_plan_formula f;
    mt_module *model = mt_model_new(device, run->config);
    mt_kv_cache *cache = mt_kv_cache_new(model, MT_KV_PREALLOCATED, run->batch, run->seq + 7);
    mtt_ok(mt_plan_kv_cache(run, 7, &f));
    assert_agrees(&f, (int64_t)mt_kv_cache_bytes(cache, NULL), run, which);
    mt_kv_cache_free(cache);
    mt_module_free(model);
}

static void assert_forward_agrees(const mt_plan_run *run, int64_t measured, int which)
{
    mt_plan_formula f;
    mt_plan_component components[MT_PLAN_MAX_COMPONENTS];
    int n = 0;
    mtt_ok(mt_plan_forward_flops(run, &f, components, &n));
    assert_agrees(&f, measured, run, which);
    for (int i = 0; i < n; i++) measured -= components[i].times * components[i].each;
    assert_int_equal(measured, 0);
}

#define MODELS 400
#define SEED   20260101

static void formulas_plus_their_rows_equal_what_any_model_measures(void **state)
{
    (void)state;
    uint64_t seed = SEED;
    for (int i = 0; i < MODELS; i++) {
        mt_device *device = mt_device_open("meta");
        mt_model_config c = mtt_draw_model(&seed);
        mt_plan_run run = {
            .config = &c, .batch = mtt_pick(&seed, 1, 4), .seq = mtt_pick(&seed, 1, 33)};
        if (run.seq <= c.mtp_layers) run.seq = c.mtp_layers + 1;
        run.checkpoint = draw_checkpoint(&seed, &c);
        mt_plan_training training = {.optimizer = optimizers[mtt_pick(&seed, 0, 2)]};
        training.master = mt_dtype_size(c.dtype) == 2 && mtt_toss(&seed);
        training.f32_gradients = mt_dtype_size(c.dtype) == 2 && mtt_toss(&seed);
        step measured = measure(device, &run, &training);
        mt_plan_formula f;
        mtt_ok(mt_plan_parameters(&run, &f));
        assert_agrees(&f, measured.parameters, &run, i);
        mtt_ok(mt_plan_activations(&run, &f));
        assert_agrees(&f, measured.kept, &run, i);
        mtt_ok(mt_plan_flops(&run, &f));
        assert_agrees(&f, measured.flops, &run, i);
        assert_forward_agrees(&run, measured.forward, i);
        mtt_ok(mt_plan_states(&run, &training, &f));
        assert_agrees(&f, measured.states, &run, i);
        if (c.kind == MT_MODEL_GPT || c.kind == MT_MODEL_LLAMA)
            assert_cache_agrees(device, &run, i);
        mt_device_release(device);
    }
}

/* Few of those that are drawn have experts. */
static void experts_in_16_bits_keep_what_their_formula_says(void **state)
{
    (void)state;
    for (int i = 0; i < 8 * MT_EXPERTS_FORM_COUNT; i++) {
        mt_model_config c = {.kind = MT_MODEL_LLAMA,
                             .hidden = 18,
                             .heads = 1,
                             .layers = 2,
                             .vocab = 64,
                             .context = 6,
                             .experts = 12,
                             .experts_per_token = 2,
                             .shared_experts = 1,
                             .expert_groups = 3,
                             .expert_topk_groups = 2,
                             .router = i & 1 ? MT_ROUTER_SIGMOID : MT_ROUTER_SOFTMAX,
                             .wide_router = i & 2,
                             .norm_topk = i & 4,
                             .ops = {.expert_form = (mt_expert_form)(i / 8)},
                             .dtype = MT_F16};
        mt_device *device = mt_device_open("meta");
        const mt_plan_run run = {.config = &c, .batch = 3, .seq = 6};
        mt_plan_formula f;
        mtt_ok(mt_plan_activations(&run, &f));
        assert_agrees(&f, measure(device, &run, &(mt_plan_training){"sgd"}).kept, &run, i);
        mt_device_release(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_in_16_bits_keep_what_their_formula_says),
        cmocka_unit_test(activations_of_bert_llama_and_gpt3_are_those_of_the_formula),
        cmocka_unit_test(a_layer_of_gpt3_follows_table_2_of_the_paper),
        cmocka_unit_test(parameters_follow_12lh2_and_the_longer_formula),
        cmocka_unit_test(training_times_are_the_published_ones),
        cmocka_unit_test(model_flops_are_those_of_the_longer_formula),
        cmocka_unit_test(a_forward_pass_takes_what_each_component_takes),
        cmocka_unit_test(states_take_the_published_bytes_a_parameter),
        cmocka_unit_test(every_regime_has_a_source_and_a_sum),
        cmocka_unit_test(the_cache_of_gpt3_takes_the_published_bytes),
        cmocka_unit_test(invalid_input_is_refused),
        cmocka_unit_test(formulas_plus_their_rows_equal_what_any_model_measures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
