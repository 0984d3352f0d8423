/* Checkpointed models: presets, the bytes that each keeps, the peak of backward; training gives the
 * same bits as without checkpoints. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "mtt.h"
#include "trainer.h"

static const char *const presets[] = {"full", "selective", "ops", "every=2", "every=3", "sqrt"};
enum { N_PRESETS = sizeof presets / sizeof *presets };

static mt_model_config four_layers(mt_model_kind kind, mt_attention_form form)
{
    mt_model_config config = {.kind = kind,
                              .hidden = 24,
                              .heads = 3,
                              .layers = 4,
                              .vocab = 31,
                              .context = 7,
                              .act = MT_ACT_GELU,
                              .dropout = 0.1,
                              .attention = form,
                              .dtype = MT_F32};
    if (kind == MT_MODEL_LLAMA) config.kv_heads = 1;
    return config;
}

/* ---- training ---- */

typedef struct run {
    double *loss;
    unsigned char *weights;
    size_t n_bytes;
} run;

static run train(const mt_model_config *config, const char *preset, int threads, int n_steps,
                 bool balance)
{
    trainer t;
    run r = {.loss = calloc((size_t)n_steps, sizeof(double))};
    assert_true(trainer_open(&t, config, 5));
    mtt_ok(mt_device_set_threads(t.device, threads));
    mtt_ok(mt_set_balance_check(t.device, balance));
    mtt_ok(mt_model_checkpoint(t.gpt, preset));
    for (int i = 0; i < n_steps; i++) {
        mtt_ok(trainer_step(&t, &r.loss[i]));
        assert_int_equal(mt_last_status(), MT_OK);
    }
    r.weights = trainer_weights(&t, &r.n_bytes);
    trainer_close(&t);
    mt_mem_stats stats;
    mt_mem_get_stats(t.device, &stats);
    assert_int_equal(stats.allocated.current, 0);
    mt_device_release(t.device);
    return r;
}

static void free_run(run *r)
{
    free(r->loss);
    free(r->weights);
}

static void assert_same_run(const run *a, const run *b, int n_steps)
{
    assert_memory_equal(a->loss, b->loss, (size_t)n_steps * sizeof(double));
    assert_int_equal(a->n_bytes, b->n_bytes);
    assert_memory_equal(a->weights, b->weights, a->n_bytes);
}

static void fifty_steps_of_a_gpt_with_dropout_have_the_same_bits(void **state)
{
    (void)state;
    mt_model_config config = four_layers(MT_MODEL_GPT, MT_ATTENTION_MATH);
    run plain = train(&config, "none", 1, 50, false);
    assert_true(plain.loss[49] < plain.loss[0]);
    for (int i = 0; i < N_PRESETS; i++) {
        for (int threads = 1; threads <= 2; threads++) {
            if (!mtt_long() && threads != 1 + i % 2) continue;
            run r = train(&config, presets[i], threads, 50, false);
            assert_same_run(&plain, &r, 50);
            free_run(&r);
        }
    }
    free_run(&plain);
}

static void every_model_trains_the_same_under_every_preset(void **state)
{
    (void)state;
    const mt_model_kind kinds[] = {MT_MODEL_GPT, MT_MODEL_BERT, MT_MODEL_LLAMA};
    for (int k = 0; k < 3; k++) {
        for (int form = 0; form < MT_ATTENTION_FORM_COUNT; form++) {
            mt_model_config config = four_layers(kinds[k], (mt_attention_form)form);
            run plain = train(&config, "none", 1, 3, true);
            for (int i = 0; i < N_PRESETS; i++) {
                run r = train(&config, presets[i], 1, 3, true);
                assert_same_run(&plain, &r, 3);
                free_run(&r);
            }
            free_run(&plain);
        }
    }
}

static void random_numbers_that_differ_are_an_error(void **state)
{
    (void)state;
    mt_model_config config = four_layers(MT_MODEL_GPT, MT_ATTENTION_MATH);
    for (int i = 0; i < N_PRESETS; i++) {
        trainer t;
        double loss;
        assert_true(trainer_open(&t, &config, 5));
        const mt_checkpoint_options options = {.check = true, .rng_as_it_is = true};
        mtt_ok(mt_model_checkpoint_with(t.gpt, presets[i], &options));
        assert_int_equal(trainer_step(&t, &loss), MT_ERR_STATE);
        mtt_failed(MT_ERR_STATE, "value of dropout mask in gpt.h.", "then", "now");
        trainer_close(&t);
        mt_device_release(t.device);
    }
}

/* Returns false if the step made fewer than n allocations. */
static bool fail_nth(uint64_t n, const char *preset)
{
    trainer t;
    double loss;
    assert_true(trainer_open(&t, NULL, 5));
    const mt_checkpoint_options options = {.check = true};
    mtt_ok(mt_model_checkpoint_with(t.gpt, preset, &options));
    mt_mem_stats before, after;
    mt_mem_get_stats(t.device, &before);
    mti_fail_nth_alloc(n);
    mt_status status = trainer_step(&t, &loss);
    bool reached = mti_alloc_count() >= n;
    mti_fail_nth_alloc(0);
    if (status != MT_OK) {
        mtt_failed(MT_ERR_MEMORY, "");
        mtt_ok(mt_module_zero_grad(t.gpt));
        mt_optimizer_reset(t.adamw);
        mt_mem_get_stats(t.device, &after);
        assert_int_equal(after.allocated.current, before.allocated.current);
        assert_string_equal(mt_scope_path(), "");
        mtt_ok(mt_check_balance(t.device));
        mtt_ok(trainer_step(&t, &loss));
    }
    trainer_close(&t);
    mt_device_release(t.device);
    return reached;
}

static void any_allocation_of_a_step_may_fail(void **state)
{
    (void)state;
    static const char *const some[] = {"full", "selective", "ops", "every=2"};
    for (int i = 0; i < 4; i++) {
        uint64_t n = 1, n_failed = 0;
        for (; fail_nth(n, some[i]); n = mtt_next_refusal(n)) n_failed++;
        print_message("%s: %llu allocations failed in turn\n", some[i],
                      (unsigned long long)n_failed);
        assert_true(n > 500);
    }
}

/* ---- bytes ---- */

typedef struct sizes {
    int64_t b, s, h, a;
} sizes;

typedef struct block_stack {
    mt_device *device;
    mt_module *block[8];
    int n;
    mt_tensor *x;
    sizes z;
} block_stack;

/* A chain of n blocks of 2-byte floats. */
static block_stack stack_open(int n, sizes z, const char *preset,
                              const mt_checkpoint_options *options)
{
    block_stack t = {.device = mtt_device(), .n = n, .z = z};
    mt_seed(t.device, 3);
    const mt_model_config config = {.kind = MT_MODEL_BLOCK,
                                    .hidden = z.h,
                                    .heads = z.a,
                                    .act = MT_ACT_GELU,
                                    .dropout = 0.1,
                                    .attention = MT_ATTENTION_MATH,
                                    .dtype = MT_BF16};
    for (int i = 0; i < n; i++) {
        t.block[i] = mt_model_new(t.device, &config);
        assert_non_null(t.block[i]);
        mtt_ok(mt_model_checkpoint_with(t.block[i], preset, options));
    }
    t.x = mtt_made(mt_normal(t.device, MT_BF16, MT_SHAPE(z.b, z.s, z.h), 0, 1));
    mtt_ok(mt_set_requires_grad(t.x, true));
    mtt_ok(mt_set_balance_check(t.device, true));
    return t;
}

static void stack_close(block_stack *t)
{
    mt_release(t->x);
    for (int i = 0; i < t->n; i++) mt_module_free(t->block[i]);
    mt_mem_stats stats;
    mt_mem_get_stats(t->device, &stats);
    assert_int_equal(stats.allocated.current, 0);
    mt_device_release(t->device);
}

static mt_tensor *stack_forward(block_stack *t)
{
    mt_tensor *h = mt_retain(t->x);
    for (int i = 0; i < t->n; i++) mt_set(&h, mt_forward(t->block[i], h));
    return mtt_made(h);
}

static size_t saved_by(block_stack *t)
{
    mt_ledger *ledger = mt_ledger_new(t->device);
    mtt_ok(mt_ledger_begin(ledger));
    MT_AUTO mt_tensor *y = stack_forward(t);
    mtt_ok(mt_ledger_end(ledger));
    size_t bytes = mt_ledger_bytes(ledger);
    mt_ledger_free(ledger);
    return bytes;
}

static const sizes odd[] = {
    {1, 1, 2, 1}, {2, 3, 6, 3}, {3, 5, 10, 2}, {2, 17, 34, 1}, {1, 64, 32, 4}};

static void full_keeps_2bsh_a_layer(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        sizes z = odd[i];
        block_stack t = stack_open(3, z, "full", NULL);
        assert_int_equal(saved_by(&t), 3 * 2 * z.b * z.s * z.h);
        stack_close(&t);
    }
}

static void selective_keeps_34bsh_and_the_statistics_a_layer(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        sizes z = odd[i];
        block_stack t = stack_open(3, z, "selective", NULL);
        int64_t statistics = 2 * z.b * z.s * (4 + 4);
        assert_int_equal(saved_by(&t), 3 * (34 * z.b * z.s * z.h + statistics));
        stack_close(&t);
    }
}

static void ops_keeps_qkv_attention_and_the_first_product_of_the_mlp(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        sizes z = odd[i];
        block_stack t = stack_open(3, z, "ops", NULL);
        /* the input; q, k and v; attention's output; the MLP's first product: 1 + 3 + 1 + 4 */
        assert_int_equal(saved_by(&t), 3 * 2 * (1 + 3 + 1 + 4) * z.b * z.s * z.h);
        stack_close(&t);
    }
}

/* Bytes kept, and FLOPs run again, of one LLaMA block. */
static void run_llama_block(const mt_model_config *config, int64_t b, int64_t s, const char *preset,
                            size_t *kept, uint64_t *again)
{
    mt_device *dev = mtt_device();
    mt_seed(dev, 3);
    mt_module *block = mt_model_new(dev, config);
    assert_non_null(block);
    mtt_ok(mt_model_checkpoint(block, preset));
    mt_tensor *x = mtt_made(mt_normal(dev, MT_BF16, MT_SHAPE(b, s, config->hidden), 0, 1));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_flops_reset(dev);
    mt_ledger *ledger = mt_ledger_new(dev);
    mtt_ok(mt_ledger_begin(ledger));
    mt_tensor *y = mtt_made(mt_forward(block, x));
    mtt_ok(mt_ledger_end(ledger));
    *kept = mt_ledger_bytes(ledger);
    mt_ledger_free(ledger);
    MT_AUTO mt_tensor *dy = mtt_made(mt_full(dev, MT_BF16, 3, mt_shape(y), 1));
    mtt_ok(mt_backward_with(y, &(mt_backward_options){.gradient = dy}));
    *again = mt_flops_get(dev).recompute;
    mt_release(y), mt_release(x), mt_release(dy), dy = NULL;
    mt_module_free(block);
    mt_device_release(dev);
}

static void ops_in_a_llama_block_keeps_q_v_attention_the_gate_and_the_mlps_output(void **state)
{
    (void)state;
    const int64_t b = 2, s = 9, d = 32, a = 4, k = 2, f = 48;
    mt_model_config config = {.kind = MT_MODEL_BLOCK,
                              .hidden = d,
                              .heads = a,
                              .kv_heads = k,
                              .ffn = f,
                              .norm_kind = MT_NORM_RMS,
                              .mlp = MT_MLP_SWIGLU,
                              .rope_theta = 10000,
                              .no_bias = true,
                              .causal = true,
                              .dtype = MT_BF16};
    size_t kept, heads = (size_t)(2 * b * s * d * k / a), wide = (size_t)(2 * b * s * d);
    uint64_t again;
    config.attention = MT_ATTENTION_FLASH;
    run_llama_block(&config, b, s, "ops", &kept, &again);
    /* input, q, v, attention with its sums and generator, the gate, the MLP's output */
    assert_int_equal(kept,
                     wide + wide + heads + wide + 4 * a * b * s + 2 * 8 + 2 * b * s * f + wide);
    /* k, the projection and up are multiplied again, and no attention */
    assert_int_equal(again, 2 * b * s * (d * d * k / a + d * d + d * f));

    config.attention = MT_ATTENTION_MATH;
    run_llama_block(&config, b, s, "ops", &kept, &again);
    assert_int_equal(kept, wide + wide + heads + wide + 2 * b * s * f + wide);
    assert_int_equal(again, 2 * b * s * (d * d * k / a + d * d + d * f) + 2 * b * s * s * d);

    config.joint_products = true; /* one product for q, k and v, one for gate and up */
    run_llama_block(&config, b, s, "ops", &kept, &again);
    assert_int_equal(kept, wide + wide + 2 * heads + wide + 4 * b * s * f);
    assert_int_equal(again, 2 * b * s * (d * d + d * f) + 2 * b * s * s * d);
}

static mt_policy keep_nothing(void *user, const mt_op_call *call)
{
    (void)user, (void)call;
    return MT_PREFER_RECOMPUTE;
}

static void ops_is_a_policy_and_takes_no_other(void **state)
{
    (void)state;
    const sizes z = {2, 8, 16, 2};
    block_stack t = stack_open(1, z, "none", NULL);
    size_t plain = saved_by(&t);
    const mt_checkpoint_options options = {.policy = keep_nothing};
    assert_int_equal(mt_model_checkpoint_with(t.block[0], "ops", &options), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "checkpoint ops", "policy");
    assert_int_equal(saved_by(&t), plain);
    stack_close(&t);
}

/* ---- the peak ---- */

typedef struct peak {
    size_t before;   /* parameters, their gradients, x and its gradient */
    size_t backward; /* peak while backward runs */
} peak;

/* Figures of the second step, in which gradients exist already. */
static peak peak_of(int n, sizes z, const char *preset)
{
    block_stack t = stack_open(n, z, preset, NULL);
    peak p = {0};
    for (int step = 0; step < 2; step++) {
        p.before = mtt_allocated(t.device);
        MT_AUTO mt_tensor *y = stack_forward(&t);
        MT_AUTO mt_tensor *dy = mtt_made(mt_full(t.device, MT_BF16, 3, mt_shape(y), 1));
        mt_mem_reset_peak(t.device);
        mtt_ok(mt_backward_with(y, &(mt_backward_options){.gradient = dy}));
        mt_mem_stats stats;
        mt_mem_get_stats(t.device, &stats);
        p.backward = stats.allocated.peak;
    }
    stack_close(&t);
    return p;
}

static void the_peak_of_backward_is_l_inputs_and_one_layer(void **state)
{
    (void)state;
    const sizes z = {2, 32, 64, 4}; /* every tensor is a multiple of 512 bytes */
    size_t input = (size_t)(2 * z.b * z.s * z.h);
    peak plain = peak_of(1, z, "none");
    size_t one_layer = plain.backward - plain.before;
    for (int l = 1; l <= 6; l++) {
        peak p = peak_of(l, z, "full");
        /* The first layer's input is the caller's. */
        assert_int_equal(p.backward - p.before, (size_t)(l - 1) * input + one_layer);
    }
    print_message("peak of backward = (l - 1) * %zu + %zu for l = 1 .. 6\n", input, one_layer);
}

/* ---- presets ---- */

static void an_unknown_preset_is_refused_with_the_list(void **state)
{
    (void)state;
    mt_device *device = mtt_device();
    const mt_model_config gpt = four_layers(MT_MODEL_GPT, MT_ATTENTION_FLASH);
    const mt_model_config mlp = {.kind = MT_MODEL_MLP, .hidden = 8};
    mt_module *m = mt_model_new(device, &gpt), *other = mt_model_new(device, &mlp);
    const char *const bad[] = {
        "", "half", "every", "every=", "every=0", "every=-1", "every=2x", "FULL"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(mt_model_checkpoint(m, bad[i]), MT_ERR_ARGUMENT);
        mtt_failed(MT_ERR_ARGUMENT, bad[i], "none, full, selective, ops, every=K", "sqrt");
    }
    assert_int_equal(mt_model_checkpoint(other, "selective"), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "selective", "mlp has no attention");
    assert_int_equal(mt_model_checkpoint(other, "sqrt"), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "sqrt", "mlp has no layers");
    assert_int_equal(mt_model_checkpoint(NULL, "full"), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "the model is NULL");
    mt_module_free(m);
    mt_module_free(other);
    mt_device_release(device);
}

static void a_preset_replaces_the_previous_one(void **state)
{
    (void)state;
    const sizes z = {2, 8, 16, 2};
    block_stack t = stack_open(1, z, "none", NULL);
    size_t plain = saved_by(&t);
    for (int i = 0; i < 2; i++) mtt_ok(mt_model_checkpoint(t.block[0], presets[i]));
    mtt_ok(mt_model_checkpoint(t.block[0], "none"));
    assert_int_equal(saved_by(&t), plain);
    stack_close(&t);
}

/* ---- lint ---- */

static void the_report_adds_up_and_the_lint_finds_segments_that_are_too_small(void **state)
{
    (void)state;
    const sizes z = {2, 16, 32, 2};
    char text[1024];
    size_t between, inside, input = (size_t)(2 * z.b * z.s * z.h);
    mt_checkpoint_report *report = mt_checkpoint_report_new();
    const mt_checkpoint_options options = {.report = report};
    block_stack plain = stack_open(1, z, "none", NULL);
    size_t one = saved_by(&plain);
    stack_close(&plain);

    block_stack t = stack_open(3, z, "full", &options);
    MT_AUTO mt_tensor *y = stack_forward(&t);
    MT_AUTO mt_tensor *loss = mtt_made(mt_sum_all(y));
    mtt_ok(mt_backward(loss));
    mt_set(&loss, mtt_made(mt_retain(y)));
    assert_int_equal(mt_checkpoint_report_count(report), 3);
    mt_checkpoint_segment s;
    mtt_ok(mt_checkpoint_report_get(report, 1, &s));
    assert_int_equal(s.input_bytes, input);
    assert_int_equal(s.inside_bytes, one);
    assert_int_equal(s.depth, 0);
    mt_checkpoint_report_totals(report, &between, &inside);
    assert_int_equal(between, 3 * input);
    assert_int_equal(inside, one);
    assert_int_equal(mt_checkpoint_lint(report, text, sizeof text), 0);
    assert_string_equal(text, "");

    /* Checkpoint each part of the block: the dropout at the end then keeps more than it saves. */
    mt_checkpoint_report_clear(report);
    mtt_ok(mt_model_checkpoint(t.block[0], "none"));
    mtt_ok(mt_module_set_checkpoint(mt_module_find(t.block[0], "mlp.act"), &options));
    mtt_ok(mt_module_set_checkpoint(mt_module_find(t.block[0], "mlp.drop"), &options));
    MT_AUTO mt_tensor *once = mtt_made(mt_forward(t.block[0], t.x));
    assert_int_equal(mt_checkpoint_lint(report, text, sizeof text), 3);
    assert_non_null(strstr(text, "checkpoint block.mlp.act keeps"));
    assert_non_null(strstr(text, "checkpoint block.mlp.drop keeps"));
    assert_non_null(strstr(text, "larger segments would lower the peak"));
    /* A short buffer gets the beginning. */
    char few[8];
    assert_int_equal(mt_checkpoint_lint(report, few, sizeof few), 3);
    assert_string_equal(few, "checkpo");
    mt_checkpoint_report_free(report);
    mt_release(once), once = NULL;
    mt_release(y), y = NULL;
    mt_release(loss), loss = NULL;
    stack_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_allocation_of_a_step_may_fail),
        cmocka_unit_test(full_keeps_2bsh_a_layer),
        cmocka_unit_test(selective_keeps_34bsh_and_the_statistics_a_layer),
        cmocka_unit_test(ops_keeps_qkv_attention_and_the_first_product_of_the_mlp),
        cmocka_unit_test(ops_in_a_llama_block_keeps_q_v_attention_the_gate_and_the_mlps_output),
        cmocka_unit_test(ops_is_a_policy_and_takes_no_other),
        cmocka_unit_test(the_peak_of_backward_is_l_inputs_and_one_layer),
        cmocka_unit_test(an_unknown_preset_is_refused_with_the_list),
        cmocka_unit_test(a_preset_replaces_the_previous_one),
        cmocka_unit_test(the_report_adds_up_and_the_lint_finds_segments_that_are_too_small),
        cmocka_unit_test(random_numbers_that_differ_are_an_error),
        cmocka_unit_test(every_model_trains_the_same_under_every_preset),
        cmocka_unit_test(fifty_steps_of_a_gpt_with_dropout_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
