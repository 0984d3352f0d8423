/* The ready-made models: their parameters, and the bytes that they keep for backward. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "mtt.h"
#include "mtt_fixture.h"

static int open_seeded(void **state)
{
    if (mtt_open_device(state)) return -1;
    mt_seed(device, 3);
    return 0;
}

/* ---- what the tape keeps ---- */

typedef struct sizes {
    int64_t b, s, d, a;
} sizes;

static const sizes many[] = {
    {1, 1, 2, 1}, {2, 8, 16, 2}, {3, 5, 12, 3}, {1, 7, 6, 2}, {2, 17, 40, 5}};
#define N_MANY (sizeof many / sizeof many[0])

/* Runs a forward whose input requires grad; returns its ledger, which the caller frees. */
static mt_ledger *forward(const mt_model_config *c, sizes z)
{
    mt_module *m = mt_model_new(device, c);
    assert_non_null(m);
    mt_tensor *x = mtt_made(mt_normal(device, c->dtype, MT_SHAPE(z.b, z.s, z.d), 0, 1));
    mtt_ok(mt_set_requires_grad(x, true));
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    mt_tensor *y = mtt_made(mt_forward(m, x));
    assert_memory_equal(mt_shape(y), mt_shape(x), 3 * sizeof(int64_t));
    mtt_ok(mt_ledger_end(ledger));
    mt_release(y);
    mt_release(x);
    mt_module_free(m);
    return ledger;
}

static int64_t kept(const mt_model_config *c, sizes z)
{
    mt_ledger *ledger = forward(c, z);
    int64_t bytes = (int64_t)mt_ledger_bytes(ledger);
    mt_ledger_free(ledger);
    return bytes;
}

static void an_mlp_keeps_its_input_and_the_activation_and_gelu_one_tensor_more(void **state)
{
    (void)state;
    const struct {
        mt_act act;
        bool inplace;
        int64_t per_token; /* in units of 2 d bytes */
    } cases[] = {
        {MT_ACT_RELU, false, 5},      {MT_ACT_RELU, true, 5},  {MT_ACT_LEAKY_RELU, false, 9},
        {MT_ACT_LEAKY_RELU, true, 5}, {MT_ACT_GELU, false, 9}, {MT_ACT_GELU_TANH, false, 9},
        {MT_ACT_SILU, false, 9},      {MT_ACT_TANH, false, 5}, {MT_ACT_SIGMOID, false, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t j = 0; j < N_MANY; j++) {
            sizes z = many[j];
            mt_model_config c = {.kind = MT_MODEL_MLP,
                                 .hidden = z.d,
                                 .act = cases[i].act,
                                 .inplace = cases[i].inplace,
                                 .dtype = MT_BF16};
            int64_t bsh = z.b * z.s * z.d;
            assert_int_equal(kept(&c, z), 2 * bsh * cases[i].per_token);
            c.dropout = 0.1; /* a mask of one byte */
            assert_int_equal(kept(&c, z), 2 * bsh * cases[i].per_token + bsh);
        }
}

/* In 16 bits: of a second pair of norms inputs and statistics; two norms of one input keep it once.
 */
static int64_t kept_around(int norm, sizes z)
{
    if (norm == MT_NORM_PARALLEL) return -2 * z.b * z.s * z.d;
    return norm == MT_NORM_AROUND ? 2 * z.b * z.s * (2 * z.d + 8) : 0;
}

/* Layer norms' mean and rstd: 16 bytes per token; log-sum-exp: 4 bytes per token and head; seed and
 * offset: 16 bytes. */
static void a_block_with_flash_keeps_12_or_16_times_bsd(void **state)
{
    (void)state;
    for (int norm = 0; norm < MT_NORM_PLACE_COUNT; norm++)
        for (size_t j = 0; j < N_MANY; j++) {
            sizes z = many[j];
            mt_model_config c = {.kind = MT_MODEL_BLOCK,
                                 .hidden = z.d,
                                 .heads = z.a,
                                 .norm = (mt_norm_place)norm,
                                 .causal = true,
                                 .dtype = MT_BF16};
            int64_t small = z.b * z.s * (16 + 4 * z.a) + 16 + kept_around(norm, z);
            int64_t bsd = 2 * z.b * z.s * z.d;
            c.act = MT_ACT_RELU;
            assert_int_equal(kept(&c, z), 12 * bsd + small);
            c.act = MT_ACT_GELU;
            assert_int_equal(kept(&c, z), 16 * bsd + small);
        }
}

/* Korthikanti et al. 2022: 34 bsh + 5 a s^2 b, and the layer norms' statistics. */
static void a_block_with_math_attention_and_dropout_keeps_34bsh_and_5as2b(void **state)
{
    (void)state;
    for (int norm = 0; norm < MT_NORM_PLACE_COUNT; norm++)
        for (int causal = 0; causal < 2; causal++)
            for (size_t j = 0; j < N_MANY; j++) {
                sizes z = many[j];
                mt_model_config c = {.kind = MT_MODEL_BLOCK,
                                     .hidden = z.d,
                                     .heads = z.a,
                                     .norm = (mt_norm_place)norm,
                                     .causal = causal,
                                     .act = MT_ACT_GELU,
                                     .attention = MT_ATTENTION_MATH,
                                     .dropout = 0.1,
                                     .dtype = MT_F16};
                assert_int_equal(kept(&c, z), 34 * z.b * z.s * z.d + 5 * z.a * z.s * z.s * z.b +
                                                  16 * z.b * z.s + kept_around(norm, z));
            }
}

static void the_ledger_shows_module_paths(void **state)
{
    (void)state;
    mt_model_config c = {.hidden = 8,
                         .heads = 2,
                         .layers = 2,
                         .vocab = 5,
                         .context = 6,
                         .act = MT_ACT_GELU,
                         .dropout = 0.1};
    mt_module *gpt = mt_model_new(device, &c);
    assert_non_null(gpt);
    const int64_t index[] = {0, 1, 2, 3, 4, 0};
    MT_AUTO mt_tensor *x = mt_from_data(device, MT_I64, MT_SHAPE(2, 3), index, sizeof index);
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(gpt, x));
    mtt_ok(mt_ledger_end(ledger));
    static const struct {
        const char *module, *op;
        bool seen;
    } want[] = {{"gpt.wte", "embedding"},         {"gpt.drop", "dropout"},
                {"gpt.h.0.ln_1", "layer_norm"},   {"gpt.h.0.attn.qkv", "linear"},
                {"gpt.h.1.attn.heads", NULL},     {"gpt.h.1.attn.proj", "linear"},
                {"gpt.h.1.attn.drop", "dropout"}, {"gpt.h.1.ln_2", "layer_norm"},
                {"gpt.h.1.mlp.fc", "linear"},     {"gpt.h.1.mlp.act", "gelu"},
                {"gpt.h.1.mlp.proj", "linear"},   {"gpt.h.1.mlp.drop", "dropout"},
                {"gpt.ln_f", "layer_norm"},       {"gpt.lm_head", "linear"}};
    for (size_t k = 0; k < sizeof want / sizeof want[0]; k++) {
        bool seen = false;
        for (size_t i = 0; i < mt_ledger_count(ledger); i++) {
            mt_ledger_entry e;
            mtt_ok(mt_ledger_get(ledger, i, &e));
            for (size_t j = 0; j < e.n_savers; j++) {
                mt_saver s;
                mtt_ok(mt_ledger_get_saver(ledger, i, j, &s));
                seen |=
                    !strcmp(s.module, want[k].module) && (!want[k].op || !strcmp(s.op, want[k].op));
            }
        }
        if (!seen) fail_msg("nothing saved by %s", want[k].module);
    }
    mt_ledger_free(ledger);
    mt_module_free(gpt);
}

/* ---- parameters ---- */

static uint64_t count(const mt_model_config *c)
{
    mt_module *m = mt_model_new(device, c);
    assert_non_null(m);
    uint64_t n;
    mtt_ok(mt_module_size(m, &n, NULL));
    mt_module_free(m);
    return n;
}

static void parameter_counts_follow_the_formula(void **state)
{
    (void)state;
    mt_model_config c = {.hidden = 12, .heads = 3, .layers = 2, .vocab = 11, .context = 7};
    uint64_t d = 12, block = 12 * d * d + 13 * d;
    assert_int_equal(count(&c), 11 * d + 7 * d + 2 * block + 2 * d);
    c.untied = true;
    assert_int_equal(count(&c), 2 * 11 * d + 7 * d + 2 * block + 2 * d);
    c.untied = false;
    c.no_bias = true;
    assert_int_equal(count(&c), 11 * d + 7 * d + 2 * (12 * d * d + 2 * d) + d);
    c.norm = MT_NORM_POST; /* post-norm has no last norm */
    assert_int_equal(count(&c), 11 * d + 7 * d + 2 * (12 * d * d + 2 * d));
    c = (mt_model_config){.kind = MT_MODEL_MLP, .hidden = 5, .ffn = 7};
    assert_int_equal(count(&c), 2 * 5 * 7 + 5 + 7);
}

/* A model with the same weights each time. */
static mt_tensor *output_of(const mt_model_config *c, mt_tensor *x)
{
    mt_seed(device, 7);
    mt_module *m = mt_model_new(device, c);
    assert_non_null(m);
    mt_tensor *y = mtt_made(mt_forward(m, x));
    mt_module_free(m);
    return y;
}

static void a_linear_is_one_product_with_its_bias(void **state)
{
    (void)state;
    for (int bias = 0; bias < 2; bias++) {
        mt_model_config c = {
            .kind = MT_MODEL_LINEAR, .hidden = 6, .ffn = 5, .no_bias = !bias, .dtype = MT_F32};
        mt_module *m = mt_model_new(device, &c);
        assert_non_null(m);
        mt_tensor *w = mt_module_param(m, "weight"), *b = mt_module_param(m, "bias");
        assert_int_equal(mt_shape(w)[0], 5);
        assert_int_equal(mt_shape(w)[1], 6);
        assert_true((b != NULL) == (bias == 1));
        MT_AUTO mt_tensor *x = mtt_made(mt_normal(device, MT_F32, MT_SHAPE(2, 3, 6), 0, 1));
        MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
        MT_AUTO mt_tensor *same = mtt_made(mt_linear(x, w, b));
        assert_true(mtt_same_bits(y, same));
        uint64_t n, counted, bytes;
        mtt_ok(mt_model_config_params(&c, &n));
        mtt_ok(mt_module_size(m, &counted, &bytes));
        assert_int_equal(n, bias ? 35 : 30);
        assert_int_equal(counted, n);
        mt_module_free(m);
    }
    mt_model_config four = {.kind = MT_MODEL_LINEAR, .hidden = 6}, c;
    mtt_ok(mt_model_config_resolve(&four, &c));
    assert_int_equal(c.ffn, 24);
}

static void an_mlps_output_may_have_an_activation_of_its_own(void **state)
{
    (void)state;
    for (int mlp = 0; mlp < MT_MLP_KIND_COUNT; mlp++) {
        mt_model_config c = {
            .kind = MT_MODEL_MLP, .hidden = 6, .ffn = 8, .mlp = (mt_mlp_kind)mlp, .dtype = MT_F32};
        MT_AUTO mt_tensor *x = mtt_made(mt_normal(device, MT_F32, MT_SHAPE(2, 3, 6), 0, 9));
        MT_AUTO mt_tensor *plain = output_of(&c, x);
        c.has_out_act = true, c.out_act = MT_ACT_SIGMOID;
        MT_AUTO mt_tensor *y = output_of(&c, x);
        MT_AUTO mt_tensor *same = mtt_made(mt_sigmoid(plain));
        assert_true(mtt_same_bits(y, same));
        assert_false(mtt_same_bits(y, plain));
    }
}

static void a_gpt_has_gpt2s_parameter_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        "wte.weight",          "wpe.weight",        "h.0.ln_1.weight",      "h.0.ln_1.bias",
        "h.0.attn.qkv.weight", "h.0.attn.qkv.bias", "h.0.attn.proj.weight", "h.0.attn.proj.bias",
        "h.0.ln_2.weight",     "h.0.ln_2.bias",     "h.0.mlp.fc.weight",    "h.0.mlp.fc.bias",
        "h.0.mlp.proj.weight", "h.0.mlp.proj.bias", "ln_f.weight",          "ln_f.bias",
        "lm_head.weight"};
    mt_model_config c = {.hidden = 4, .vocab = 5, .context = 6, .untied = true};
    mt_module *gpt = mt_model_new(device, &c);
    const mt_named_tensor *list;
    size_t n;
    mtt_ok(mt_module_params(gpt, &list, &n));
    assert_int_equal(n, sizeof names / sizeof names[0]);
    for (size_t i = 0; i < n; i++) assert_string_equal(list[i].name, names[i]);
    mt_module_free(gpt);
}

static double std_of(mt_module *m, const char *module, const char *param)
{
    mt_tensor *t = mt_module_param(mt_module_find(m, module), param);
    double *at = mtt_doubles(t), sum = 0;
    for (int64_t i = 0; i < mt_numel(t); i++) sum += at[i] * at[i];
    free(at);
    return sqrt(sum / (double)mt_numel(t));
}

static void initial_weights_are_distributed_as_in_gpt2(void **state)
{
    (void)state;
    mt_model_config c = {.hidden = 64, .heads = 4, .layers = 8, .vocab = 256, .context = 64};
    mt_module *gpt = mt_model_new(device, &c);
    assert_float_equal(std_of(gpt, "wte", "weight"), 0.02, 1e-3);
    assert_float_equal(std_of(gpt, "wpe", "weight"), 0.02, 1e-3);
    assert_float_equal(std_of(gpt, "h.7.mlp.fc", "weight"), 0.02, 1e-3);
    assert_float_equal(std_of(gpt, "h.7.mlp.proj", "weight"), 0.005, 2e-4);
    assert_float_equal(std_of(gpt, "h.0.attn.proj", "weight"), 0.005, 2e-4);
    assert_true(std_of(gpt, "h.0.attn.qkv", "bias") == 0);
    assert_true(std_of(gpt, "h.0.ln_1", "weight") == 1);
    mt_module_free(gpt);
}

/* ---- behaviour ---- */

static void later_tokens_do_not_change_a_gpts_scores(void **state)
{
    (void)state;
    for (int form = 0; form < MT_ATTENTION_FORM_COUNT; form++) {
        mt_model_config c = {.hidden = 12,
                             .heads = 3,
                             .layers = 2,
                             .vocab = 11,
                             .context = 7,
                             .attention = (mt_attention_form)form};
        mt_module *gpt = mt_model_new(device, &c);
        int64_t index[] = {1, 2, 3, 4, 5, 6, 7};
        MT_AUTO mt_tensor *x = mt_from_data(device, MT_I64, MT_SHAPE(1, 7), index, sizeof index);
        index[6] = 9;
        MT_AUTO mt_tensor *z = mt_from_data(device, MT_I64, MT_SHAPE(1, 7), index, sizeof index);
        MT_AUTO mt_tensor *y = mtt_made(mt_forward(gpt, x));
        mtt_ok(mt_set(&z, mt_forward(gpt, z)));
        double *before = mtt_doubles(y), *after = mtt_doubles(z);
        assert_memory_equal(before, after, 6 * 11 * sizeof *before);
        assert_memory_not_equal(before + 66, after + 66, 11 * sizeof *before);
        free(before);
        free(after);
        mt_module_free(gpt);
    }
}

static void a_tied_head_sends_its_gradient_to_the_embedding(void **state)
{
    (void)state;
    mt_model_config c = {.hidden = 8, .vocab = 5, .context = 4};
    mt_module *gpt = mt_model_new(device, &c);
    const int64_t index[] = {1, 1};
    MT_AUTO mt_tensor *x = mt_from_data(device, MT_I64, MT_SHAPE(1, 2), index, sizeof index);
    MT_AUTO mt_tensor *h = mt_forward(gpt, x);
    mtt_ok(mt_set(&h, mt_cross_entropy(h, x, MT_IGNORE)));
    mtt_ok(mt_backward(h));
    double *grad = mtt_doubles(mt_grad(mt_module_param(mt_module_child(gpt, "wte"), "weight")));
    bool unused_token_moves =
        false; /* no input has token 4: its gradient comes from the head alone */
    for (int i = 4 * 8; i < 5 * 8; i++) unused_token_moves |= grad[i] != 0;
    assert_true(unused_token_moves);
    free(grad);
    mt_module_free(gpt);
}

static void a_gpt_refuses_tokens_outside_the_vocabulary(void **state)
{
    (void)state;
    mt_model_config c = {.hidden = 8, .vocab = 5, .context = 4};
    mt_module *gpt = mt_model_new(device, &c);
    MT_AUTO mt_tensor *flat = mt_zeros(device, MT_I64, MT_SHAPE(4));
    assert_null(mt_forward(gpt, flat));
    mtt_failed(MT_ERR_ARGUMENT, "i64 [4]", "need i64 [b,s]");
    MT_AUTO mt_tensor *floats = mt_zeros(device, MT_F32, MT_SHAPE(1, 4));
    assert_null(mt_forward(gpt, floats));
    mtt_failed(MT_ERR_ARGUMENT, "f32 [1,4]");
    MT_AUTO mt_tensor *longer = mt_zeros(device, MT_I64, MT_SHAPE(1, 5));
    assert_null(mt_forward(gpt, longer));
    mtt_failed(MT_ERR_ARGUMENT, "5 tokens", "context is 4");
    MT_AUTO mt_tensor *outside = mt_full(device, MT_I64, MT_SHAPE(1, 2), 5);
    /* an asynchronous device reports the error when it is synchronised */
    MT_AUTO mt_tensor *queued = mt_forward(gpt, outside);
    assert_true(!queued || mt_device_sync(device) != MT_OK);
    mtt_failed(MT_ERR_ARGUMENT, "5");
    assert_string_equal(mt_scope_path(), "");
    mt_module_free(gpt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(an_mlp_keeps_its_input_and_the_activation_and_gelu_one_tensor_more),
        mtt_test(a_block_with_flash_keeps_12_or_16_times_bsd),
        mtt_test(a_block_with_math_attention_and_dropout_keeps_34bsh_and_5as2b),
        mtt_test(the_ledger_shows_module_paths),
        mtt_test(parameter_counts_follow_the_formula),
        mtt_test(a_linear_is_one_product_with_its_bias),
        mtt_test(an_mlps_output_may_have_an_activation_of_its_own),
        mtt_test(a_gpt_has_gpt2s_parameter_names),
        mtt_test(initial_weights_are_distributed_as_in_gpt2),
        mtt_test(later_tokens_do_not_change_a_gpts_scores),
        mtt_test(a_tied_head_sends_its_gradient_to_the_embedding),
        mtt_test(a_gpt_refuses_tokens_outside_the_vocabulary),
    };
    return cmocka_run_group_tests(tests, open_seeded, mtt_close_device);
}
