/* Choices of ops: the unfused forms give the values of the fused ones, keep as much more as they
 * say, and work with checkpoints, adapters and a KV cache. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "memtape/ops.h"
#include "mtt.h"
#include "mtt_fixture.h"

enum { BATCH = 2, SEQ = 7 };
#define UNFUSED                                                                                    \
    .ops = {MT_OP_UNFUSED,    MT_OP_UNFUSED,  MT_OP_UNFUSED, MT_OP_UNFUSED,                        \
            MT_PRECISION_F32, MT_KV_REPEATED, MT_LOSS_F32}
#define SMALL .hidden = 24, .heads = 4, .kv_heads = 2, .layers = 2, .vocab = 31, .context = 9
#define MATH  .attention = MT_ATTENTION_MATH

static const mt_model_config models[] = {
    {SMALL, UNFUSED, .act = MT_ACT_GELU_TANH},
    {SMALL, UNFUSED, .act = MT_ACT_GELU_TANH, .norm_kind = MT_NORM_RMS, MATH},
    {SMALL, UNFUSED, .kind = MT_MODEL_LLAMA},
    {SMALL, UNFUSED, .kind = MT_MODEL_LLAMA, .dropout = 0.25, MATH},
    {SMALL, UNFUSED, .kind = MT_MODEL_BERT, .act = MT_ACT_GELU_TANH, MATH},
};
#define N_MODELS (sizeof models / sizeof *models)

/* ---- one step ---- */

typedef struct step {
    mt_module *model;
    double loss;
    size_t kept;
} step;

static mt_tensor *ids(uint64_t seed)
{
    int64_t values[BATCH * SEQ];
    for (size_t i = 0; i < BATCH * SEQ; i++) values[i] = (int64_t)mtt_draw(&seed, 0, 31);
    return mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(BATCH, SEQ), values, sizeof values));
}

/* Forward and backward of a new model, always with the same weights, tokens and dropout. */
static step run(const mt_model_config *c, const char *checkpoint, bool adapters)
{
    step s = {0};
    mt_seed(device, 3);
    s.model = mt_model_new(device, c);
    if (!s.model) fail_msg("%s", mt_last_error());
    if (adapters) mtt_ok(mt_lora_add(s.model, &(mt_lora_options){.rank = 2}, NULL));
    if (checkpoint) mtt_ok(mt_model_checkpoint(s.model, checkpoint));
    MT_AUTO mt_tensor *tokens = ids(1), *target = ids(2);
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    MT_AUTO mt_tensor *loss = mtt_made(mt_model_forward_loss(s.model, tokens, target));
    mtt_ok(mt_ledger_end(ledger));
    s.kept = mt_ledger_bytes(ledger);
    mt_ledger_free(ledger);
    s.loss = mt_item(loss);
    mtt_ok(mt_backward(loss));
    return s;
}

/* The largest difference of the two, by the larger one's largest magnitude. */
static double distance(mt_tensor *a, mt_tensor *b)
{
    double *x = mtt_doubles(a), *y = mtt_doubles(b), most = 0, size = 0;
    for (int64_t i = 0; i < mt_numel(a); i++) {
        most = fmax(most, fabs(x[i] - y[i]));
        size = fmax(size, fmax(fabs(x[i]), fabs(y[i])));
    }
    free(x);
    free(y);
    return size > 0 ? most / size : 0;
}

static void assert_same_step(const step *a, const step *b, double tolerance)
{
    const mt_named_tensor *p, *q;
    size_t n, m;
    assert_true(fabs(a->loss - b->loss) <= tolerance * fabs(b->loss));
    mtt_ok(mt_module_params(a->model, &p, &n));
    mtt_ok(mt_module_params(b->model, &q, &m));
    assert_int_equal(n, m);
    for (size_t i = 0; i < n; i++) {
        mt_tensor *g = mt_grad(p[i].tensor), *h = mt_grad(q[i].tensor);
        assert_int_equal(g != NULL, h != NULL);
        if (g && !(distance(g, h) <= tolerance))
            fail_msg("gradient of %s: relative distance %g", p[i].name, distance(g, h));
    }
}

static void assert_values(mt_dtype dtype, const char *checkpoint, bool adapters, double tolerance)
{
    /* a short simulation has one model in turn where others have all */
    static size_t turn;
    const size_t first = mtt_short_simulation() ? turn++ % N_MODELS : 0;
    for (size_t i = first; i < (mtt_short_simulation() ? first + 1 : N_MODELS); i++) {
        mt_model_config unfused = models[i], fused = models[i];
        unfused.dtype = fused.dtype = dtype;
        fused.ops = (mt_op_choices){0};
        step a = run(&unfused, checkpoint, adapters), b = run(&fused, checkpoint, adapters);
        assert_same_step(&a, &b, tolerance);
        if (!checkpoint) assert_true(a.kept > b.kept);
        mt_module_free(a.model);
        mt_module_free(b.model);
    }
}

/* Roundings differ, and add up over a model's ops: sixteen bits leave about two digits. */
static void values_and_gradients_are_those_of_the_fused_ops(void **state)
{
    (void)state;
    assert_values(MT_F64, NULL, false, 1e-11);
    assert_values(MT_F32, NULL, false, 1e-4);
    assert_values(MT_BF16, NULL, false, 0.1);
}

static void a_fused_loss_has_the_values_and_gradients_of_the_plain_one(void **state)
{
    (void)state;
    static const mt_dtype dtypes[] = {MT_F64, MT_F32, MT_BF16};
    static const double tolerance[] = {1e-12, 1e-5, 0.05};
    static const char *const checkpoints[] = {NULL, "full", "ops"};
    const mt_model_config causal[] = {{SMALL, .act = MT_ACT_GELU},
                                      {SMALL, .act = MT_ACT_GELU, .untied = true, .dropout = 0.25},
                                      {SMALL, .kind = MT_MODEL_LLAMA},
                                      {SMALL, .kind = MT_MODEL_LLAMA, .tied = true}};
    for (int i = 0; i < 4 * 3 * 3; i += mtt_short_simulation() ? 5 : 1) {
        mt_model_config plain = causal[i % 4];
        plain.dtype = dtypes[i / 4 % 3];
        mt_model_config fused = plain;
        fused.ops.loss = MT_LOSS_FUSED;
        step a = run(&fused, checkpoints[i / 12], false),
             b = run(&plain, checkpoints[i / 12], false);
        assert_same_step(&a, &b, tolerance[i / 4 % 3]);
        mt_module_free(a.model);
        mt_module_free(b.model);
        for (mt_loss_form form = MT_LOSS_LSE; form < MT_LOSS_FORM_COUNT; form++) {
            if (form == MT_LOSS_TORCH || form == MT_LOSS_LIGER) continue;
            plain.ops.loss = form;
            a = run(&fused, checkpoints[i / 12], false),
            b = run(&plain, checkpoints[i / 12], false);
            assert_same_step(&a, &b, tolerance[i / 4 % 3]);
            mt_module_free(a.model);
            mt_module_free(b.model);
        }
    }
}

/* Rows [b,s] of which `ignored` columns, from the first on, have no target. */
static double loss_and_gradient(const mt_model_config *c, int64_t s, int64_t ignored,
                                mt_tensor **gradient)
{
    int64_t values[BATCH * 9] = {0}, n = BATCH * s;
    uint64_t seed = 5;
    for (int64_t i = 0; i < n; i++) values[i] = (int64_t)mtt_draw(&seed, 0, 31);
    const size_t bytes = (size_t)n * sizeof *values;
    MT_AUTO mt_tensor *tokens =
        mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(BATCH, s), values, bytes));
    for (int64_t i = 0; i < n; i++)
        if (i % s < ignored) values[i] = MT_IGNORE;
    MT_AUTO mt_tensor *target =
        mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(BATCH, s), values, bytes));
    mt_seed(device, 3);
    mt_module *m = mt_model_new(device, c);
    MT_AUTO mt_tensor *loss = mtt_made(mt_model_forward_loss(m, tokens, target));
    mtt_ok(mt_backward(loss));
    *gradient = mt_retain(mt_grad(mt_module_param(mt_module_child(m, "wte"), "weight")));
    mt_module_free(m);
    return mt_item(loss);
}

/* A chunk without a target counts as 0, and all chunks are divided by the same number, whether
 * there are fewer tokens than chunks or chunks of two lengths. */
static void a_loss_in_chunks_leaves_out_ignored_targets(void **state)
{
    (void)state;
    mt_model_config plain = {SMALL, .kind = MT_MODEL_LLAMA, .dtype = MT_F64};
    for (int64_t s = 1; s <= 9; s += 4)
        for (int64_t ignored = 0; ignored <= s; ignored += 2)
            for (mt_loss_form form = MT_LOSS_CHUNKED; form <= MT_LOSS_UNFUSED; form++) {
                mt_model_config c = plain;
                c.ops.loss = form;
                mt_tensor *a, *b;
                double x = loss_and_gradient(&plain, s, ignored, &a),
                       y = loss_and_gradient(&c, s, ignored, &b);
                if (ignored == s)
                    assert_true(isnan(x) && isnan(y));
                else
                    assert_true(fabs(x - y) <= 1e-13 * x && distance(a, b) <= 1e-12);
                mt_release(a);
                mt_release(b);
            }
}

/* As the plain form would, each refuses a target that is not a class. */
static void a_target_that_is_no_class_is_refused(void **state)
{
    (void)state;
    for (mt_loss_form form = MT_LOSS_NATIVE; form < MT_LOSS_FORM_COUNT; form++) {
        mt_model_config c = {SMALL, .kind = MT_MODEL_LLAMA, .ops.loss = form};
        const int64_t values[] = {1, 2, 31};
        mt_module *m = mt_model_new(device, &c);
        MT_AUTO mt_tensor *target =
            mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(1, 3), values, sizeof values));
        MT_AUTO mt_tensor *tokens = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(1, 3)));
        MT_AUTO mt_tensor *loss = mt_model_forward_loss(m, tokens, target);
        /* an asynchronous device reports the error when it is synchronised */
        if (loss) assert_int_not_equal(mt_device_sync(device), MT_OK);
        mtt_failed(MT_ERR_ARGUMENT, "31");
        mt_module_free(m);
    }
}

/* At the peak of an unfused loss: log-probabilities and two gradients; chunks: logits and a
 * gradient of an eighth; of a shifted copy, in bf16: logits in both types, the copy and
 * log-probabilities. The rest is a tenth at most. */
static void losses_hold_what_they_say_at_their_peak(void **state)
{
    (void)state;
    enum { V = 4096, S = 256 };
    static const struct {
        mt_loss_form form;
        double peak; /* in logits of f32 */
        mt_dtype dtype;
    } cases[] = {{MT_LOSS_NATIVE, 2, MT_F32},      {MT_LOSS_LSE, 2, MT_F32},
                 {MT_LOSS_CHUNKED, 1.125, MT_F32}, {MT_LOSS_UNFUSED, 3, MT_F32},
                 {MT_LOSS_UNFUSED, 3, MT_BF16},    {MT_LOSS_SHIFTED, 3.5, MT_BF16}};
    mt_device *cpu = device;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        device = mt_device_open("meta");
        const mt_model_config c = {.kind = MT_MODEL_LLAMA,
                                   .hidden = 4,
                                   .heads = 1,
                                   .layers = 1,
                                   .ffn = 4,
                                   .vocab = V,
                                   .context = S,
                                   .dtype = cases[i].dtype,
                                   .ops.loss = cases[i].form};
        mt_mem_stats stats;
        mt_module *m = mt_model_new(device, &c);
        MT_AUTO mt_tensor *tokens = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(1, S)));
        mt_mem_get_stats(device, &stats);
        size_t before = stats.allocated.current;
        MT_AUTO mt_tensor *loss = mtt_made(mt_model_forward_loss(m, tokens, tokens));
        mtt_ok(mt_backward(loss));
        mt_mem_get_stats(device, &stats);
        double logits = (double)(stats.allocated.peak - before) / (4.0 * V * S);
        if (!(logits >= cases[i].peak && logits < cases[i].peak + 0.1))
            fail_msg("form %d: %g logits at the peak", (int)cases[i].form, logits);
        mt_set(&loss, mt_retain(tokens));
        mt_module_free(m);
        mt_device_release(device);
    }
    device = cpu;
}

static void a_fused_loss_is_refused_where_the_head_is_no_plain_product(void **state)
{
    (void)state;
    const mt_model_config chunked = {SMALL, .kind = MT_MODEL_BERT, .ops.loss = MT_LOSS_CHUNKED};
    assert_null(mt_model_new(device, &chunked));
    mtt_failed(MT_ERR_ARGUMENT, "loss is chunked", "bert");
    const mt_model_config bert = {SMALL, .kind = MT_MODEL_BERT, .ops.loss = MT_LOSS_FUSED};
    assert_null(mt_model_new(device, &bert));
    mtt_failed(MT_ERR_ARGUMENT, "loss is fused", "bert");
    mt_model_config llama = {SMALL, .kind = MT_MODEL_LLAMA, .ops.loss = MT_LOSS_FUSED};
    mt_module *m = mt_model_new(device, &llama);
    MT_AUTO mt_tensor *tokens = ids(1), *target = ids(2);
    mtt_ok(mt_lora_add(m, &(mt_lora_options){.rank = 2}, NULL));
    assert_null(mt_model_forward_loss(m, tokens, target));
    mtt_failed(MT_ERR_UNSUPPORTED, "loss fused", "lora");
    MT_AUTO mt_tensor *logits =
        mtt_made(mt_forward(m, tokens)); /* logits, if no loss is asked for */
    assert_int_equal(mt_shape(logits)[2], llama.vocab);
    mt_module_free(m);
    llama.logit_cap = 30;
    assert_null(mt_model_new(device, &llama));
    mtt_failed(MT_ERR_ARGUMENT, "loss is fused", "logit_cap");
    mt_module *block = mt_model_new(device, &(mt_model_config){.kind = MT_MODEL_MLP, .hidden = 8});
    assert_null(mt_model_forward_loss(block, tokens, target));
    mtt_failed(MT_ERR_ARGUMENT, "model_forward_loss", "mlp");
    mt_module_free(block);
}

static void values_are_the_same_with_checkpoints_and_adapters(void **state)
{
    (void)state;
    assert_values(MT_F64, "full", false, 1e-11);
    assert_values(MT_F64, "selective", false, 1e-11);
    assert_values(MT_F64, "ops", false, 1e-11);
    assert_values(MT_F64, "every=2", false, 1e-11);
    assert_values(MT_F64, NULL, true, 1e-11);
}

/* ---- what each keeps besides ---- */

static size_t kept(const mt_model_config *c)
{
    step s = run(c, NULL, false);
    mt_module_free(s.model);
    return s.kept;
}

static void each_choice_keeps_as_much_more_as_it_says(void **state)
{
    (void)state;
    const size_t e = 2, tokens = BATCH * SEQ, h = 24, f = 256, v = 31, layers = 2, norms = 5;
    const size_t q = 24, k = 12, weights = 4 * tokens * SEQ, head = 6;
    mt_model_config plain = {SMALL, .kind = MT_MODEL_LLAMA, .dtype = MT_BF16, MATH}, c = plain;
    const size_t base = kept(&plain);
    c.ops.swiglu = MT_OP_UNFUSED;
    assert_int_equal(kept(&c) - base, layers * tokens * f * e);
    c = plain, c.ops.rms_norm = MT_OP_UNFUSED;
    assert_int_equal(kept(&c) - base, norms * tokens * h * (e + 2));
    c = plain, c.ops.rope = MT_OP_UNFUSED;
    assert_int_equal(kept(&c) - base, 2 * SEQ * head * e); /* once for all layers */
    c = plain, c.ops.softmax = MT_PRECISION_F32;
    assert_int_equal(kept(&c) - base, layers * weights * 4);
    c = plain, c.ops.kv_groups = MT_KV_REPEATED;
    assert_int_equal(kept(&c) - base, 2 * layers * tokens * (q - k) * e);
    mt_model_config flash = plain;
    flash.attention = MT_ATTENTION_FLASH;
    const size_t base_flash = kept(&flash);
    flash.ops.kv_groups = MT_KV_REPEATED;
    assert_int_equal(kept(&flash) - base_flash, 2 * layers * tokens * (q - k) * e);
    c = plain, c.ops.loss = MT_LOSS_F32;
    assert_int_equal(kept(&c) - base, tokens * v * 2);
    c = plain, c.ops.loss = MT_LOSS_FUSED; /* a sum for each row instead of a row of logits */
    assert_int_equal(base - kept(&c), tokens * v * e - tokens * 4);
    c = plain, c.ops.loss = MT_LOSS_LSE; /* logits for log-probabilities, a sum for each row */
    assert_int_equal(kept(&c) - base, tokens * 4);

    mt_model_config gpt = {SMALL, .dtype = MT_BF16, .act = MT_ACT_GELU_TANH};
    const size_t base_gpt = kept(&gpt);
    gpt.ops.gelu_tanh = MT_OP_UNFUSED;
    assert_int_equal(kept(&gpt) - base_gpt, 3 * layers * tokens * 4 * h * e);
}

/* ---- experts in other orders ---- */

static const mt_model_config moe = {SMALL, .kind = MT_MODEL_LLAMA, .ffn = 16, .experts = 3,
                                    .experts_per_token = 2};

/* The same without a gate: with megatron the activation's output is kept beside its product. */
static void forms_of_experts_without_a_gate_have_the_same_values(void **state)
{
    (void)state;
    const int64_t e = 2, rows = BATCH * SEQ * 2, d = 24, f = 16, layers = 2;
    mt_model_config c = moe;
    c.kind = MT_MODEL_GPT, c.act = MT_ACT_GELU, c.router = MT_ROUTER_CHOSEN;
    step grouped = run(&c, NULL, false);
    for (int i = MT_EXPERTS_LOOP; i < MT_EXPERTS_FORM_COUNT; i++) {
        if (i == MT_EXPERTS_TORCHTITAN_BEFORE) continue;
        c.ops.expert_form = (mt_expert_form)i;
        step s = run(&c, NULL, false), again = run(&c, "full", false);
        assert_same_step(&again, &s, 1e-5);
        assert_same_step(&s, &grouped, 1e-5);
        mt_module_free(s.model);
        mt_module_free(again.model);
    }
    mt_module_free(grouped.model);
    c.dtype = MT_BF16, c.ops.expert_form = MT_EXPERTS_GROUPED;
    const int64_t base = (int64_t)kept(&c);
    c.ops.expert_form = MT_EXPERTS_MEGATRON; /* f32 weights, twice; no inverse; f for d */
    assert_int_equal((int64_t)kept(&c) - base, layers * rows * ((f - d) * e + 2 * (4 - e) - 8));
}

static void forms_of_experts_differ_in_what_they_keep_alone(void **state)
{
    (void)state;
    const int64_t e = 2, rows = BATCH * SEQ * 2, d = 24, wide = 4, layers = 2, counts = 4 * 3;
    const int64_t more[MT_EXPERTS_FORM_COUNT] = {
        [MT_EXPERTS_LOOP] = rows * (d * e - 8) - counts,
        [MT_EXPERTS_TORCHTITAN] = rows * (d * (wide - e) + wide - e - 8),
        [MT_EXPERTS_TORCHTITAN_BEFORE] = rows * (d * (wide - e) + wide - e - 8),
        [MT_EXPERTS_MEGATRON] = rows * (wide - e - 8 - d * e)};
    mt_model_config c = moe;
    c.dtype = MT_BF16;
    const size_t base = kept(&c);
    step grouped = run(&moe, NULL, false);
    for (int i = 0; i < MT_EXPERTS_FORM_COUNT; i++) {
        c.ops.expert_form = (mt_expert_form)i;
        assert_int_equal((int64_t)kept(&c) - (int64_t)base, layers * more[i]);
        mt_model_config same = moe;
        same.ops.expert_form = (mt_expert_form)i;
        step s = run(&same, NULL, false), again = run(&same, "full", false);
        assert_same_step(&again, &s, 1e-5);
        if (i == MT_EXPERTS_TORCHTITAN_BEFORE) /* its experts see other inputs */
            assert_true(fabs(s.loss - grouped.loss) > 1e-5);
        else
            assert_same_step(&s, &grouped, 1e-5);
        mt_module_free(s.model);
        mt_module_free(again.model);
    }
    mt_module_free(grouped.model);
}

/* ---- a user's own ---- */

static mt_tensor *own_swiglu(mt_tensor *gate, mt_tensor *up)
{
    mt_tensor *y = mt_silu(gate);
    mt_set(&y, mt_mul(y, up));
    return y;
}

static mt_tensor *own_rms_norm(mt_tensor *x, mt_tensor *weight, double eps)
{
    mt_tensor *y = mt_rms_norm(x, weight, eps);
    mt_set(&y, mt_exp(y)); /* which keeps its output, ... */
    mt_set(&y, mt_log(y)); /* ... the input that this keeps */
    return y;
}

/* The model keeps what the ops of such functions keep, and has their values; with experts, too. */
static void a_model_takes_functions_of_the_user(void **state)
{
    (void)state;
    static const mt_forms swiglu = {.swiglu = own_swiglu}, norms = {.rms_norm = own_rms_norm};
    for (int experts = 0; experts < 2; experts++) {
        mt_model_config plain = experts ? moe : models[2], named, own;
        plain.ops = (mt_op_choices){0};
        named = own = plain;
        named.ops.swiglu = MT_OP_UNFUSED;
        own.forms = &swiglu;
        step a = run(&named, NULL, false), b = run(&own, NULL, false), c = run(&plain, NULL, false);
        assert_same_step(&a, &b, 0);
        assert_int_equal(a.kept, b.kept);
        own.forms = &norms;
        step d = run(&own, NULL, false);
        assert_same_step(&d, &c, 1e-4);
        const size_t norm = BATCH * SEQ * (size_t)plain.hidden * sizeof(float);
        assert_int_equal(d.kept - c.kept, (2 * (size_t)plain.layers + 1) * norm);
        mt_module_free(a.model), mt_module_free(b.model);
        mt_module_free(c.model), mt_module_free(d.model);
    }
}

/* ---- failures ---- */

static void each_allocation_fails(mt_model_config c)
{
    mt_module *m = mt_model_new(device, &c);
    MT_AUTO mt_tensor *tokens = ids(1), *target = ids(2);
    size_t before = mtt_allocated(device);
    uint64_t n_refused = 0;
    bool reached = true;
    for (uint64_t n = 1; reached; n = mtt_next_refusal(n)) {
        mti_fail_nth_alloc(n);
        mt_tensor *loss = mt_model_forward_loss(m, tokens, target);
        bool ok = loss && mt_backward(loss) == MT_OK;
        reached = mti_alloc_count() >= n;
        mti_fail_nth_alloc(0);
        if (!ok) {
            assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
            mt_clear_error();
            n_refused++;
        }
        mt_release(loss);
        mtt_ok(mt_module_zero_grad(m));
        assert_int_equal(mtt_allocated(device), before);
    }
    assert_true(n_refused > 20);
    mt_module_free(m);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    mt_model_config c = moe;
    each_allocation_fails(models[3]);
    for (int i = MT_EXPERTS_LOOP; i < MT_EXPERTS_FORM_COUNT; i++) {
        c.layers = 1, c.ops.expert_form = (mt_expert_form)i, c.balance_loss = 0.5;
        each_allocation_fails(c);
    }
}

static void a_loss_without_config_or_logits_is_refused(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *target = ids(2);
    assert_null(mt_model_loss(NULL, target, target));
    mtt_failed(MT_ERR_ARGUMENT, "model_loss", "config");
    assert_null(mt_model_loss(&models[0], NULL, target));
    mtt_failed(MT_ERR_ARGUMENT, "model_loss", "logits");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(values_and_gradients_are_those_of_the_fused_ops),
        mtt_test(a_fused_loss_has_the_values_and_gradients_of_the_plain_one),
        mtt_test(a_loss_in_chunks_leaves_out_ignored_targets),
        mtt_test(a_target_that_is_no_class_is_refused),
        mtt_test(losses_hold_what_they_say_at_their_peak),
        mtt_test(a_fused_loss_is_refused_where_the_head_is_no_plain_product),
        mtt_test(values_are_the_same_with_checkpoints_and_adapters),
        mtt_test(each_choice_keeps_as_much_more_as_it_says),
        mtt_test(forms_of_experts_without_a_gate_have_the_same_values),
        mtt_test(forms_of_experts_differ_in_what_they_keep_alone),
        mtt_test(a_model_takes_functions_of_the_user),
        mtt_test(any_allocation_may_fail),
        mtt_test(a_loss_without_config_or_logits_is_refused),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
