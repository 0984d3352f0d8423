/* Model configurations: refusals and their messages; presets; JSON. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "mtt.h"
#include "nn/model.h"

#define GPT .hidden = 8, .vocab = 5, .context = 4

static void a_bad_field_is_named_with_its_value_and_the_accepted_ones(void **state)
{
    (void)state;
    const struct {
        mt_model_config config;
        const char *field, *given, *wanted;
    } cases[] = {
        {{.vocab = 5, .context = 4}, "hidden", "is 0", "need 1 to"},
        {{.hidden = -8, .vocab = 5, .context = 4}, "hidden", "is -8", "need 1 to"},
        {{.hidden = INT64_MAX, .vocab = 5, .context = 4},
         "hidden",
         "is 9223372036854775807",
         "to 2147483648"},
        {{.hidden = 8, .context = 4}, "vocab", "is 0", "need 1 to"},
        {{.hidden = 8, .vocab = 5}, "context", "is 0", "need 1 to"},
        {{GPT, .heads = 3}, "heads", "is 3", "divisor of hidden, 8"},
        {{GPT, .heads = -1}, "heads", "is -1", "need 0 to"},
        {{GPT, .layers = -1}, "layers", "is -1", "need 0 to"},
        {{GPT, .ffn = -1}, "ffn", "is -1", "need 0 to"},
        {{GPT, .dropout = 1}, "dropout", "is 1", "0 <= dropout < 1"},
        {{GPT, .dropout = NAN}, "dropout", "nan", "0 <= dropout < 1"},
        {{GPT, .norm_eps = -1}, "norm_eps", "is -1", "positive"},
        {{GPT, .norm_eps = INFINITY}, "norm_eps", "inf", "positive"},
        {{GPT, .dtype = MT_I64}, "dtype", "is i64", "f32, f64, bf16 or f16"},
        {{GPT, .dtype = (mt_dtype)99}, "dtype", "unknown", "f32, f64, bf16 or f16"},
        {{GPT, .act = (mt_act)99}, "act", "is 99", "relu"},
        {{GPT, .has_out_act = true}, "out_act", "is relu", "only an mlp"},
        {{.kind = MT_MODEL_MLP, .hidden = 8, .has_out_act = true, .out_act = (mt_act)-1},
         "out_act",
         "is -1",
         "sigmoid"},
        {{GPT, .norm = (mt_norm_place)-1}, "norm", "is -1", "pre"},
        {{GPT, .attention = (mt_attention_form)2}, "attention", "is 2", "flash"},
        {{GPT, .kind = (mt_model_kind)7}, "kind", "is 7", "linear"},
        {{GPT, .heads = 4, .kv_heads = 3}, "kv_heads", "is 3", "divisor of heads, 4"},
        {{GPT, .kv_heads = -1}, "kv_heads", "is -1", "need 0 to"},
        {{GPT, .head_dim = -1}, "head_dim", "is -1", "need 0 to"},
        {{GPT, .mlp = (mt_mlp_kind)4}, "mlp", "is 4", "clamped"},
        {{GPT, .mlp = MT_MLP_GATED, .joint_products = true}, "mlp", "is gated", "swiglu"},
        {{GPT, .attention_cap = 5}, "attention", "is flash", "need math"},
        {{GPT, .attention_cap = -5}, "attention_cap", "is -5", "positive"},
        {{GPT, .kind = MT_MODEL_BERT, .logit_cap = 5}, "logit_cap", "is set", "bert has none"},
        {{GPT, .scaled_embedding = true}, "scaled_embedding", "is set", "gpt has none"},
        {{GPT, .local_theta = 100}, "local_theta", "is set", "gpt has none"},
        {{GPT, .kind = MT_MODEL_LLAMA, .local_theta = 100}, "local_period", "is 0", "at least 1"},
        {{GPT, .unturned_period = 2}, "unturned_period", "is set", "gpt has none"},
        {{GPT, .kind = MT_MODEL_LLAMA, .unturned_period = 2, .kv_rank = 4, .head_dim = 8,
          .rope_dim = 4},
         "unturned_period",
         "is 2",
         "0 with kv_rank or joint_products"},
        {{GPT, .ops.swiglu = (mt_op_form)2}, "swiglu", "is 2", "unfused"},
        {{GPT, .ops.rms_norm = (mt_op_form)-1}, "rms_norm", "is -1", "unfused"},
        {{GPT, .ops.gelu_tanh = (mt_op_form)2}, "gelu_tanh", "is 2", "unfused"},
        {{GPT, .ops.rope = (mt_op_form)2}, "rope", "is 2", "unfused"},
        {{GPT, .ops.softmax = (mt_op_precision)2}, "softmax", "is 2", "f32"},
        {{GPT, .ops.kv_groups = (mt_kv_groups)2}, "kv_groups", "is 2", "repeated"},
        {{GPT, .ops.loss = MT_LOSS_FORM_COUNT}, "loss", "is 10", "native"},
        {{GPT, .norm_kind = (mt_norm_kind)-1}, "norm_kind", "is -1", "rmsnorm"},
        {{GPT, .mlp = MT_MLP_SWIGLU, .inplace = true}, "inplace", "swiglu", "plain"},
        {{GPT, .rope_theta = 1e4, .position_offset = 2},
         "position_offset",
         "is 2",
         "0 with rotary positions"},
        {{GPT, .qkv_by_head = true}, "qkv_by_head", "is set", "false without joint_products"},
        {{GPT, .heads = 2, .kv_heads = 1, .joint_products = true, .qkv_by_head = true},
         "qkv_by_head",
         "is set",
         "fewer kv_heads than heads, 2"},
        {{GPT, .kind = MT_MODEL_BLOCK, .rope_theta = NAN}, "rope_theta", "nan", "positive"},
        {{GPT, .kind = MT_MODEL_BLOCK, .heads = 8, .rope_theta = 1e4},
         "rope_theta",
         "1 wide",
         "even"},
        {{GPT, .kind = MT_MODEL_LLAMA, .heads = 8}, "rope_theta", "1 wide", "even"},
        {{GPT, .kind = MT_MODEL_LLAMA, .norm = MT_NORM_POST},
         "norm",
         "post",
         "another one than post"},
        {{GPT, .qk_norm = MT_QK_NORM_HEAD}, "qk_norm", "is head", "without rotary"},
        {{GPT, .kind = MT_MODEL_LLAMA, .qk_norm = MT_QK_NORM_WIDTH, .joint_products = true},
         "qk_norm",
         "is width",
         "joint_products"},
        {{GPT, .kind = MT_MODEL_LLAMA, .position_offset = 2},
         "position_offset",
         "is set",
         "a llama has none"},
        {{GPT, .kind = MT_MODEL_BERT, .untied = true},
         "untied",
         "is set",
         "the embedding's weight"},
        {{GPT, .kind = MT_MODEL_BERT, .position_offset = -1},
         "position_offset",
         "is -1",
         "need 0 to"},
        {{GPT, .pad_token = -1}, "pad_token", "is -1", "need 0 to"},
        {{GPT, .padded = true, .pad_token = 5}, "pad_token", "is 5", "below 5"},
        {{GPT, .qk_norm = (mt_qk_norm)3}, "qk_norm", "is 3", "width"},
        {{GPT, .window = 3}, "window", "is set", "a gpt has none"},
        {{GPT, .kind = MT_MODEL_LLAMA, .window = -3}, "window", "is -3", "need 0 to"},
        {{GPT, .kind = MT_MODEL_BERT, .causal = true}, "causal", "is set", "both sides"},
        {{GPT, .kind = MT_MODEL_BERT, .mask_token = 5}, "mask_token", "is 5", "below 5"},
        {{GPT, .kind = MT_MODEL_BERT, .token_types = -1}, "token_types", "is -1", "need 0 to"},
        {{GPT, .mask_token = -1}, "mask_token", "is -1", "need 0 to"},
        {{.kind = MT_MODEL_BERT, .hidden = 8, .vocab = 5}, "context", "is 0", "need 1 to"},
        {{.kind = MT_MODEL_LLAMA, .hidden = 8, .context = 5}, "vocab", "is 0", "need 1 to"},
        {{GPT, .act = MT_ACT_GELU, .inplace = true}, "inplace", "gelu", "relu or leaky_relu"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(mt_model_config_check(&cases[i].config), MT_ERR_ARGUMENT);
        mtt_failed(MT_ERR_ARGUMENT, cases[i].field, cases[i].given, cases[i].wanted);
        mt_device *device = mt_device_open("cpu");
        assert_null(mt_model_new(device, &cases[i].config));
        mtt_failed(MT_ERR_ARGUMENT, cases[i].field, cases[i].given);
        mt_device_release(device);
    }
    assert_int_equal(mt_model_config_check(NULL), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "NULL");
}

static void fields_that_a_kind_does_not_need_may_be_left_out(void **state)
{
    (void)state;
    mtt_ok(mt_model_config_check(&(mt_model_config){GPT}));
    mtt_ok(mt_model_config_check(&(mt_model_config){.kind = MT_MODEL_BLOCK, .hidden = 8}));
    mtt_ok(mt_model_config_check(&(mt_model_config){.kind = MT_MODEL_ATTENTION, .hidden = 8}));
    mtt_ok(
        mt_model_config_check(&(mt_model_config){.kind = MT_MODEL_MLP, .hidden = 8, .heads = 3}));
}

static void names_parse_back_and_refusals_list_the_accepted_ones(void **state)
{
    (void)state;
    for (int i = 0; i < MT_ACT_COUNT; i++) {
        mt_act out = MT_ACT_COUNT;
        mtt_ok(mt_act_parse(mt_act_name((mt_act)i), &out));
        assert_int_equal(out, i);
    }
    for (int i = 0; i < MT_MODEL_KIND_COUNT; i++) {
        mt_model_kind out = MT_MODEL_KIND_COUNT;
        mtt_ok(mt_model_kind_parse(mt_model_kind_name((mt_model_kind)i), &out));
        assert_int_equal(out, i);
    }
    mt_norm_place place = MT_NORM_PRE;
    mtt_ok(mti_choice_parse(&mti_norm_places, "post", &place));
    assert_int_equal(place, MT_NORM_POST);
    mt_attention_form form = MT_ATTENTION_FLASH;
    mtt_ok(mti_choice_parse(&mti_attention_forms, "math", &form));
    assert_int_equal(form, MT_ATTENTION_MATH);

    mt_act act = MT_ACT_SILU;
    assert_int_equal(mt_act_parse("swish", &act), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "\"swish\"",
               "relu, leaky_relu, gelu, gelu_tanh, silu, tanh, sigmoid");
    assert_int_equal(act, MT_ACT_SILU);
    mti_choice_parse(&mti_norm_places, "mid", &place);
    mtt_failed(MT_ERR_ARGUMENT, "\"mid\"", "pre, post");
    mti_choice_parse(&mti_attention_forms, NULL, &form);
    mtt_failed(MT_ERR_ARGUMENT, "the name is NULL", "flash, math");
    mt_model_kind_parse("", &(mt_model_kind){MT_MODEL_GPT});
    mtt_failed(MT_ERR_ARGUMENT, "gpt, block, attention, mlp, bert, llama, linear");
    mt_norm_kind norm = MT_NORM_LAYER;
    mtt_ok(mti_choice_parse(&mti_norm_kinds, "rmsnorm", &norm));
    assert_int_equal(norm, MT_NORM_RMS);
    mt_model_config c;
    mtt_ok(mt_model_config_from_json("{\"kind\":\"mlp\",\"hidden\":8,\"mlp\":\"swiglu\"}", &c));
    assert_int_equal(c.mlp, MT_MLP_SWIGLU);
    mti_choice_parse(&mti_norm_kinds, "batch", &norm);
    mtt_failed(MT_ERR_ARGUMENT, "\"batch\"", "layernorm, rmsnorm");
    mt_model_config_from_json("{\"kind\":\"mlp\",\"hidden\":8,\"mlp\":\"moe\"}", &c);
    mtt_failed(MT_ERR_ARGUMENT, "\"moe\"", "plain, swiglu");
}

static void every_preset_is_accepted(void **state)
{
    (void)state;
    size_t n = 0;
    for (; mt_model_preset_name(n); n++) {
        mt_model_config c;
        mtt_ok(mt_model_preset(mt_model_preset_name(n), &c));
        mtt_ok(mt_model_config_check(&c));
        assert_true(c.causal || c.kind == MT_MODEL_BERT);
    }
    assert_true(n >= 17);
    mt_model_config c = {.hidden = 1};
    mt_model_preset("huge", &c);
    mtt_failed(MT_ERR_ARGUMENT, "\"huge\"", "tiny", "gpt2");
    assert_int_equal(c.hidden, 1);
}

static void json_holds_every_field(void **state)
{
    (void)state;
    mt_model_config all = {.kind = MT_MODEL_BLOCK,
                           .hidden = 24,
                           .heads = 6,
                           .kv_heads = 3,
                           .head_dim = 10,
                           .rope_theta = 123.5,
                           .norm_kind = MT_NORM_RMS,
                           .token_types = 3,
                           .mask_token = 6,
                           .layers = 5,
                           .vocab = 7,
                           .context = 9,
                           .ffn = 11,
                           .act = MT_ACT_LEAKY_RELU,
                           .inplace = true,
                           .norm = MT_NORM_POST,
                           .norm_eps = 1e-7,
                           .dropout = 0.1,
                           .attention = MT_ATTENTION_MATH,
                           .causal = true,
                           .untied = true,
                           .no_bias = true,
                           .dtype = MT_BF16};
    mt_model_config mlp = {.kind = MT_MODEL_MLP,
                           .hidden = 8,
                           .act = MT_ACT_GELU,
                           .has_out_act = true,
                           .out_act = MT_ACT_SIGMOID};
    mt_model_config rare = {.kind = MT_MODEL_LLAMA,
                            .hidden = 8,
                            .vocab = 7,
                            .context = 9,
                            .norm = MT_NORM_AROUND,
                            .norm_kind = MT_NORM_RMS_ONE,
                            .mlp = MT_MLP_GATED,
                            .qk_norm = MT_QK_NORM_WIDTH,
                            .window = 3,
                            .attention = MT_ATTENTION_MATH,
                            .attention_scale = 0.3,
                            .attention_cap = 50,
                            .logit_cap = 30,
                            .scaled_embedding = true,
                            .fused_gelu = true,
                            .local_theta = 1e4,
                            .local_period = 6,
                            .local_layers = 5,
                            .unturned_period = 3,
                            .yarn_factor = 8,
                            .yarn_context = 4,
                            .yarn_fast = 4,
                            .yarn_slow = 1,
                            .yarn_ramp = MT_RAMP_TURNS};
    mt_model_config unfused = {GPT,
                               .ops = {MT_OP_UNFUSED, MT_OP_UNFUSED, MT_OP_UNFUSED, MT_OP_UNFUSED,
                                       MT_PRECISION_F32, MT_KV_REPEATED, MT_LOSS_F32}};
    mt_model_config configs[] = {
        all,
        {GPT},
        {GPT, .mlp = MT_MLP_SWIGLU},
        mlp,
        rare,
        {GPT, .kind = MT_MODEL_BERT, .position_offset = 2, .padded = true, .pad_token = 2},
        {GPT, .kind = MT_MODEL_LLAMA, .joint_products = true},
        unfused,
        {GPT, .norm = MT_NORM_PARALLEL, .rope_theta = 7, .joint_products = true,
         .qkv_by_head = true}};
    for (int i = 0; i < 9; i++) {
        char text[MT_MODEL_CONFIG_TEXT], again[MT_MODEL_CONFIG_TEXT];
        mt_model_config back = {0};
        mtt_ok(mt_model_config_to_json(&configs[i], text, sizeof text));
        mtt_ok(mt_model_config_from_json(text, &back));
        mtt_ok(mt_model_config_to_json(&back, again, sizeof again));
        assert_string_equal(text, again);
        assert_int_equal(strstr(text, "\"out_act\":\"sigmoid\"") != NULL, i == 3);
        assert_int_equal(strstr(text, "out_act") != NULL,
                         i == 3); /* older readers do not know it */
        assert_int_equal(strstr(text, "local_theta") != NULL, i == 4);
        assert_true(back.qk_norm == configs[i].qk_norm && back.window == configs[i].window);
        assert_true(back.attention_scale == configs[i].attention_scale);
        assert_true(back.attention_cap == configs[i].attention_cap);
        assert_true(back.logit_cap == configs[i].logit_cap);
        assert_true(back.scaled_embedding == configs[i].scaled_embedding);
        assert_true(back.local_theta == configs[i].local_theta);
        assert_int_equal(back.local_period, configs[i].local_period);
        assert_int_equal(back.local_layers, configs[i].local_layers);
        assert_int_equal(back.unturned_period, configs[i].unturned_period);
        assert_true(back.yarn_factor == configs[i].yarn_factor);
        assert_int_equal(back.yarn_ramp, configs[i].yarn_ramp);
        assert_int_equal(back.position_offset, configs[i].position_offset);
        assert_int_equal(back.padded, configs[i].padded);
        assert_int_equal(back.pad_token, configs[i].pad_token);
        assert_int_equal(back.joint_products, configs[i].joint_products);
        assert_int_equal(back.qkv_by_head, configs[i].qkv_by_head);
        assert_int_equal(back.norm, configs[i].norm);
        assert_int_equal(back.fused_gelu, configs[i].fused_gelu);
        assert_int_equal(strstr(text, "unfused") != NULL, i == 7);
        assert_memory_equal(&back.ops, &configs[i].ops, sizeof back.ops);
        assert_memory_equal(&back, &configs[i], offsetof(mt_model_config, mlp));
        assert_int_equal(back.mlp, configs[i].mlp);
        assert_int_equal(back.norm_kind, configs[i].norm_kind);
        assert_true(back.rope_theta == configs[i].rope_theta);
        assert_int_equal(back.token_types, configs[i].token_types);
        assert_int_equal(back.mask_token, configs[i].mask_token);
        assert_true(back.dropout == configs[i].dropout && back.norm_eps == configs[i].norm_eps);
        assert_int_equal(back.no_bias, configs[i].no_bias);
        assert_int_equal(back.dtype, configs[i].dtype);
    }
    const int64_t most = (int64_t)1 << 31;
    mt_model_config longest = {.kind = MT_MODEL_ATTENTION,
                               .hidden = most,
                               .heads = most / 2,
                               .kv_heads = most / 2,
                               .head_dim = 2,
                               .token_types = most,
                               .mask_token = most,
                               .rope_theta = DBL_TRUE_MIN,
                               .layers = 1 << 14,
                               .vocab = most,
                               .context = most,
                               .ffn = most,
                               .act = MT_ACT_LEAKY_RELU,
                               .norm = MT_NORM_POST,
                               .norm_kind = MT_NORM_LAYER,
                               .norm_eps = DBL_TRUE_MIN,
                               .dropout = DBL_TRUE_MIN,
                               .attention = MT_ATTENTION_MATH,
                               .mlp = MT_MLP_SWIGLU,
                               .joint_products = true,
                               .window = most,
                               .position_offset = most,
                               .padded = true,
                               .pad_token = most,
                               .attention_scale = DBL_TRUE_MIN,
                               .attention_cap = DBL_TRUE_MIN,
                               .logit_cap = DBL_TRUE_MIN,
                               .scaled_embedding = true,
                               .fused_gelu = true,
                               .local_theta = DBL_TRUE_MIN,
                               .local_period = most};
    char text[MT_MODEL_CONFIG_TEXT];
    mtt_ok(mt_model_config_to_json(&longest, text, sizeof text));
    mt_model_config_to_json(&longest, text, 100);
    mtt_failed(MT_ERR_ARGUMENT, "100 bytes");
}

static void json_saved_by_older_versions_is_read(void **state)
{
    (void)state;
    mt_model_config c;
    mtt_ok(mt_model_config_from_json("{\"hidden\":8,\"vocab\":5,\"context\":4,\"padding\":1}", &c));
    assert_true(c.padded && c.pad_token == 0);
    mtt_ok(mt_model_config_from_json("{\"hidden\":8,\"vocab\":5,\"context\":4,\"padding\":5}", &c));
    assert_true(c.padded && c.pad_token == 4);
    mtt_ok(mt_model_config_from_json("{\"hidden\":8,\"vocab\":5,\"context\":4,\"padding\":0}", &c));
    assert_false(c.padded);
    mt_model_config_from_json("{\"hidden\":8,\"vocab\":5,\"context\":4,\"padding\":6}", &c);
    mtt_failed(MT_ERR_ARGUMENT, "pad_token", "is 5", "below 5");
    mt_model_config_from_json("{\"padding\":\"x\"}", &c);
    mtt_failed(MT_ERR_FORMAT, "\"padding\" must be a whole number");
    mtt_ok(mt_model_config_from_json("{\"kind\":\"mlp\",\"hidden\":8,\"out_act\":\"relu\"}", &c));
    assert_true(c.has_out_act && c.out_act == MT_ACT_RELU);
    mtt_ok(mt_model_config_from_json("{\"kind\":\"mlp\",\"hidden\":8,\"out_act\":\"none\"}", &c));
    assert_false(c.has_out_act);
}

static void json_that_is_not_a_configuration_is_refused(void **state)
{
    (void)state;
    const struct {
        const char *text;
        mt_status status;
        const char *fault;
    } cases[] = {
        {"", MT_ERR_FORMAT, "config"},
        {"[]", MT_ERR_FORMAT, "not a JSON object"},
        {"{\"hidden\":8", MT_ERR_FORMAT, "column"},
        {"{\"hidden\":8,\"hidden\":8}", MT_ERR_FORMAT, "duplicate"},
        {"{\"width\":8}", MT_ERR_FORMAT, "\"width\" is not a field"},
        {"{\"hidden\":8.5}", MT_ERR_FORMAT, "\"hidden\" must be a whole number"},
        {"{\"hidden\":\"8\"}", MT_ERR_FORMAT, "\"hidden\" must be a whole number"},
        {"{\"dropout\":\"x\"}", MT_ERR_FORMAT, "\"dropout\" must be a number"},
        {"{\"causal\":1}", MT_ERR_FORMAT, "\"causal\" must be true or false"},
        {"{\"dtype\":\"f8\"}", MT_ERR_FORMAT, "\"dtype\" must be f32"},
        {"{\"act\":3}", MT_ERR_ARGUMENT, "relu, leaky_relu"},
        {"{\"hidden\":8,\"vocab\":5,\"context\":4,\"heads\":3}", MT_ERR_ARGUMENT, "divisor"},
    };
    mt_model_config c = {.hidden = 77};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_not_equal(mt_model_config_from_json(cases[i].text, &c), MT_OK);
        mtt_failed(cases[i].status, cases[i].fault);
        assert_int_equal(c.hidden, 77);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bad_field_is_named_with_its_value_and_the_accepted_ones),
        cmocka_unit_test(fields_that_a_kind_does_not_need_may_be_left_out),
        cmocka_unit_test(names_parse_back_and_refusals_list_the_accepted_ones),
        cmocka_unit_test(every_preset_is_accepted),
        cmocka_unit_test(json_holds_every_field),
        cmocka_unit_test(json_saved_by_older_versions_is_read),
        cmocka_unit_test(json_that_is_not_a_configuration_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
