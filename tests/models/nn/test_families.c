/* gpt, bert and llama: what they compute, parameter names, and each learns from text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/base.h"
#include "memtape/ops.h"
#include "mtt.h"
#include "mtt_fixture.h"
#include "nn/model.h"

/* ---- windows, experts, sizes ---- */

/* The model's logits for one sequence, whose first token is given. */
static void logits_of(mt_module *m, mt_device *d, int64_t s, int64_t first, float (*values)[7])
{
    int64_t ids[20] = {first};
    for (int64_t i = 1; i < s; i++) ids[i] = 2 + i % 5;
    mt_tensor *tokens =
        mtt_made(mt_from_data(d, MT_I64, MT_SHAPE(1, s), ids, (size_t)s * sizeof *ids));
    mt_tensor *y = mtt_made(mt_forward(m, tokens));
    mtt_ok(mt_to_host(y, values, (size_t)s * sizeof *values));
    mt_release(y), mt_release(tokens);
}

/* The position from which on the logits of two sequences are equal that differ in the first token
 * alone. Each sequence is a batch of its own: a library's product may add in another order where a
 * row has another place in it. */
static int64_t equal_from(const mt_model_config *c, int64_t s)
{
    mt_device *d = mt_device_open("cpu");
    mt_module *m = mt_model_new(d, c);
    assert_non_null(m);
    float one[20][7], other[20][7];
    logits_of(m, d, s, 0, one);
    logits_of(m, d, s, 1, other);
    int64_t equal = s;
    while (equal > 0 && !memcmp(one[equal - 1], other[equal - 1], sizeof *one)) equal--;
    mt_module_free(m);
    mt_device_release(d);
    return equal;
}

static void a_position_sees_what_the_windows_of_all_layers_reach(void **state)
{
    (void)state;
    mt_model_config c = {
        .kind = MT_MODEL_LLAMA, .hidden = 8, .vocab = 7, .context = 20, .layers = 2, .window = 5};
    for (int form = 0; form < 2; form++) {
        c.attention = form ? MT_ATTENTION_MATH : MT_ATTENTION_FLASH;
        c.local_period = c.local_layers = 0;
        assert_int_equal(equal_from(&c, 20), 9); /* 4 positions further in each layer */
        c.local_period = 2;                      /* the second layer sees all */
        assert_int_equal(equal_from(&c, 20), 20);
        c.local_period = 1, c.local_layers = 1;
        assert_int_equal(equal_from(&c, 20), 9);
    }
    c.local_layers = 2;
    assert_int_equal(mt_model_config_check(&c), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "local_layers", "below 2^1");
}

/* How far the last position's logits of two sequences are apart that differ in the order of the
 * positions before alone. */
static double apart_by_order(const mt_model_config *c)
{
    const int64_t ids[2][4] = {{1, 2, 3, 4}, {3, 1, 2, 4}};
    float values[2][4][7];
    mt_device *d = mt_device_open("cpu");
    mt_module *m = mt_model_new(d, c);
    const mt_named_tensor *list;
    size_t n;
    mtt_ok(mt_module_params(m, &list, &n));
    const bool grad = mt_set_grad_mode(false);
    for (size_t i = 0; i < n; i++) { /* else all scores are nearly equal */
        if (mt_rank(list[i].tensor) != 2) continue;
        MT_AUTO mt_tensor *larger = mtt_made(mt_mul_scalar(list[i].tensor, 10));
        mtt_ok(mt_copy(list[i].tensor, larger));
    }
    mt_set_grad_mode(grad);
    for (int i = 0; i < 2; i++) {
        MT_AUTO mt_tensor *tokens =
            mtt_made(mt_from_data(d, MT_I64, MT_SHAPE(1, 4), ids[i], sizeof ids[i]));
        MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, tokens));
        mtt_ok(mt_to_host(y, values[i], sizeof values[i]));
    }
    double apart = 0;
    for (int i = 0; i < 7; i++)
        apart = fmax(apart, fabs((double)values[0][3][i] - (double)values[1][3][i]));
    mt_module_free(m);
    mt_device_release(d);
    return apart;
}

static void a_layer_without_rotary_positions_sees_no_order(void **state)
{
    (void)state;
    mt_model_config c = {
        .kind = MT_MODEL_LLAMA, .hidden = 8, .vocab = 7, .context = 4, .unturned_period = 1};
    for (int form = 0; form < 4; form++) {
        c.attention = form & 1 ? MT_ATTENTION_MATH : MT_ATTENTION_FLASH;
        c.ops.rope = form & 1 ? MT_OP_UNFUSED : MT_OP_FUSED;
        c.rope_dim = form & 2 ? 4 : 0;
        c.unturned_period = 1;
        assert_true(apart_by_order(&c) < 1e-5);
        c.unturned_period = 2; /* which its one layer isn't the last of */
        assert_true(apart_by_order(&c) > 1e-3);
    }
}

#define SMALL .hidden = 24, .heads = 4, .layers = 2, .vocab = 31, .context = 9

static const mt_model_config variants[] = {
    {SMALL},
    {SMALL, .kv_heads = 2, .untied = true},
    {SMALL, .norm = MT_NORM_POST, .no_bias = true, .kv_heads = 1, .head_dim = 10},
    {SMALL, .norm_kind = MT_NORM_RMS, .mlp = MT_MLP_SWIGLU},
    {SMALL, .kind = MT_MODEL_BERT},
    {SMALL, .kind = MT_MODEL_BERT, .token_types = 1, .position_offset = 2},
    {SMALL, .kind = MT_MODEL_BERT, .token_types = 3, .no_bias = true},
    {SMALL, .kind = MT_MODEL_LLAMA},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .ffn = 40},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .qkv_bias = true, .tied = true},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .head_dim = 8, .qk_norm = MT_QK_NORM_HEAD},
    {SMALL, .kind = MT_MODEL_LLAMA, .norm = MT_NORM_AFTER, .qk_norm = MT_QK_NORM_WIDTH},
    {SMALL, .norm = MT_NORM_AROUND},
    {SMALL, .kind = MT_MODEL_LLAMA, .norm = MT_NORM_AROUND, .norm_kind = MT_NORM_RMS_ONE,
     .mlp = MT_MLP_GATED, .act = MT_ACT_GELU_TANH, .attention = MT_ATTENTION_MATH,
     .attention_cap = 5, .logit_cap = 3, .scaled_embedding = true, .local_theta = 50,
     .local_period = 2},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .joint_products = true},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .unturned_period = 2},
    {SMALL, .kind = MT_MODEL_LLAMA, .ffn = 16, .experts = 5, .experts_per_token = 2,
     .norm_topk = true},
    {SMALL, .kind = MT_MODEL_LLAMA, .ffn = 16, .experts = 4, .experts_per_token = 2,
     .shared_experts = 2, .dense_layers = 1, .dense_ffn = 20, .expert_groups = 2,
     .expert_topk_groups = 1, .router = MT_ROUTER_SIGMOID, .norm_topk = true, .expert_scale = 2,
     .kv_rank = 12, .q_rank = 10, .head_dim = 8, .rope_dim = 4, .value_dim = 6,
     .rope_order = MT_ROPE_PAIRS},
    {SMALL, .kv_rank = 12, .q_rank = 10, .head_dim = 8, .rope_dim = 4, .value_dim = 6},
    {SMALL, .ffn = 16, .experts = 5, .experts_per_token = 2, .router = MT_ROUTER_CHOSEN,
     .no_bias = true, .act = MT_ACT_GELU},
    {SMALL, .mtp_layers = 2, .dropout = 0.1},
    {SMALL, .kind = MT_MODEL_LLAMA, .ffn = 16, .experts = 3, .mtp_layers = 1, .balance_loss = 0.5,
     .ops = {.rope = MT_OP_UNFUSED, .loss = MT_LOSS_CHUNKED}},
    {SMALL, .kind = MT_MODEL_LLAMA, .ffn = 16, .experts = 3, .experts_per_token = 2,
     .balance_loss = 0.5, .balance_by_layer = true},
    {.kind = MT_MODEL_BLOCK, .hidden = 24, .heads = 4, .rope_theta = 100, .mlp = MT_MLP_SWIGLU},
    {.kind = MT_MODEL_ATTENTION, .hidden = 24, .heads = 4, .kv_heads = 2, .rope_theta = 100},
    {.kind = MT_MODEL_ATTENTION,
     .hidden = 24,
     .heads = 4,
     .rope_theta = 100,
     .kv_rank = 12,
     .head_dim = 8,
     .rope_dim = 4,
     .value_dim = 10,
     .rope_order = MT_ROPE_COMPLEX,
     .no_bias = true},
    {.kind = MT_MODEL_MLP, .hidden = 24, .mlp = MT_MLP_SWIGLU},
    {SMALL, .norm = MT_NORM_PARALLEL, .act = MT_ACT_GELU, .untied = true, .rope_theta = 500,
     .joint_products = true, .qkv_by_head = true, .rope_dim = 2},
    {SMALL, .kind = MT_MODEL_GPT, .position_offset = 2, .dropout = 0.1, .branch_dropout = true},
};
#define N_VARIANTS (sizeof variants / sizeof variants[0])

static bool alone(const void *user, mt_tensor *loads)
{
    (void)user;
    return mt_numel(loads) == 4;
}

static void bias_is(mt_module *m, const float *want)
{
    float bias[4];
    mt_tensor *t = mt_module_param(mt_module_find(m, "h.0.mlp.router"), "bias");
    mtt_ok(mt_to_host(t, bias, sizeof bias));
    for (int i = 0; i < 4; i++) assert_true(bias[i] == want[i]);
}

/* Two experts get all rows, as their biases are so large; then the others' rise. */
static void a_step_raises_the_bias_of_experts_with_few_rows(void **state)
{
    (void)state;
    const mt_model_config c = {.kind = MT_MODEL_LLAMA,
                               .hidden = 8,
                               .vocab = 9,
                               .context = 8,
                               .ffn = 8,
                               .experts = 4,
                               .experts_per_token = 2,
                               .router = MT_ROUTER_SIGMOID,
                               .balance_rate = 0.25};
    const float first[4] = {0, 8, 0, 8}, then[4] = {0.25f, 7.75f, 0.25f, 7.75f};
    mt_module *m = mt_model_new(device, &c);
    assert_non_null(m);
    mt_tensor *bias = mt_module_param(mt_module_find(m, "h.0.mlp.router"), "bias");
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(1, 5)));
    assert_false(mt_requires_grad(bias)); /* it is a buffer */
    mtt_ok(mt_copy_from_host(bias, first, sizeof first));
    mt_module_set_training(m, false);
    mt_release(mtt_made(mt_forward(m, x)));
    assert_true(mti_balance_experts(m, alone, NULL));
    bias_is(m, first); /* no rows were counted */
    mt_module_set_training(m, true);
    mt_release(mtt_made(mt_forward(m, x)));
    assert_true(mti_balance_experts(m, alone, NULL));
    bias_is(m, then);
    assert_true(mti_balance_experts(m, alone, NULL));
    bias_is(m, then); /* they were counted once */
    mt_module_free(m);
}

static double loss_with(double balance, bool by_layer)
{
    mt_model_config c = {SMALL, .kind = MT_MODEL_LLAMA, .experts = 5, .experts_per_token = 2};
    c.layers = 1, c.balance_loss = balance, c.balance_by_layer = by_layer;
    mt_seed(device, 3);
    mt_module *m = mt_model_new(device, &c);
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(2, 7)));
    MT_AUTO mt_tensor *y = mtt_made(mt_model_forward_loss(m, x, x));
    const double loss = mt_item(y);
    mt_module_free(m);
    return loss;
}

/* Megatron-Core's: over the experts of a token. That of layers is their sum: test_experts.c. */
static void the_balance_of_one_layer_is_that_of_all_over_k(void **state)
{
    (void)state;
    const double plain = loss_with(0, false), all = loss_with(40, false),
                 each = loss_with(40, true);
    assert_true(all - plain > 10);
    assert_true(fabs((all - plain) - 2 * (each - plain)) < 1e-4);
}

static void the_config_gives_the_number_of_parameters(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_VARIANTS; i++) {
        mt_module *m = mt_model_new(device, &variants[i]);
        if (!m) fail_msg("%s", mt_last_error());
        uint64_t made, said;
        mtt_ok(mt_module_size(m, &made, NULL));
        mtt_ok(mt_model_config_params(&variants[i], &said));
        assert_int_equal(made, said);
        mt_module_free(m);
    }
}

/* ---- names ---- */

static void assert_names(const mt_model_config *c, const char *const *names)
{
    mt_module *m = mt_model_new(device, c);
    const mt_named_tensor *list;
    size_t n, expected = 0;
    mtt_ok(mt_module_params(m, &list, &n));
    for (; names[expected]; expected++)
        if (expected < n) assert_string_equal(list[expected].name, names[expected]);
    assert_int_equal(n, expected);
    mt_module_free(m);
}

static void parameters_have_the_names_that_the_documents_map(void **state)
{
    (void)state;
    static const char *const llama[] = {"wte.weight",
                                        "h.0.ln_1.weight",
                                        "h.0.attn.q.weight",
                                        "h.0.attn.k.weight",
                                        "h.0.attn.v.weight",
                                        "h.0.attn.proj.weight",
                                        "h.0.ln_2.weight",
                                        "h.0.mlp.gate.weight",
                                        "h.0.mlp.up.weight",
                                        "h.0.mlp.down.weight",
                                        "ln_f.weight",
                                        "lm_head.weight",
                                        NULL};
    assert_names(&(mt_model_config){.kind = MT_MODEL_LLAMA, .hidden = 4, .vocab = 5, .context = 6},
                 llama);
    static const char *bert[] = {"wte.weight",
                                 "wpe.weight",
                                 "tte.weight",
                                 "ln.weight",
                                 "ln.bias",
                                 "h.0.ln_1.weight",
                                 "h.0.ln_1.bias",
                                 "h.0.attn.qkv.weight",
                                 "h.0.attn.qkv.bias",
                                 "h.0.attn.proj.weight",
                                 "h.0.attn.proj.bias",
                                 "h.0.ln_2.weight",
                                 "h.0.ln_2.bias",
                                 "h.0.mlp.fc.weight",
                                 "h.0.mlp.fc.bias",
                                 "h.0.mlp.proj.weight",
                                 "h.0.mlp.proj.bias",
                                 "head.bias",
                                 "head.dense.weight",
                                 "head.dense.bias",
                                 "head.ln.weight",
                                 "head.ln.bias",
                                 NULL};
    mt_model_config c = {.kind = MT_MODEL_BERT, .hidden = 4, .vocab = 5, .context = 6};
    assert_names(&c, bert);
    static const char *const pooler[] = {"pooler.dense.weight", "pooler.dense.bias", NULL};
    memcpy(bert + sizeof bert / sizeof *bert - 6, pooler, sizeof pooler);
    c.pooled = true;
    assert_names(&c, bert);
}

static void a_model_returns_its_config(void **state)
{
    (void)state;
    mt_module *m = mt_model_new(device, &variants[7]);
    const mt_model_config *c = mt_model_config_of(m);
    assert_int_equal(c->kind, MT_MODEL_LLAMA);
    assert_int_equal(c->head_dim, 6);
    assert_true(c->rope_theta == 10000 && c->norm_eps == 1e-6 && c->no_bias && c->untied);
    assert_null(mt_model_config_of(mt_module_child(m, "wte")));
    assert_null(mt_model_config_of(NULL));
    mt_module_free(m);
}

/* ---- bert ---- */

static mt_tensor *ids_of(int64_t batch, int64_t seq, const int64_t *ids)
{
    return mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(batch, seq), ids,
                                 (size_t)(batch * seq) * sizeof *ids));
}

static void bert_attends_to_later_tokens(void **state)
{
    (void)state;
    mt_module *m = mt_model_new(device, &variants[4]);
    int64_t ids[] = {1, 2, 3, 4};
    MT_AUTO mt_tensor *x = ids_of(1, 4, ids);
    ids[3] = 9;
    MT_AUTO mt_tensor *z = ids_of(1, 4, ids);
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
    mtt_ok(mt_set(&z, mt_forward(m, z)));
    double *a = mtt_doubles(y), *b = mtt_doubles(z);
    assert_memory_not_equal(a, b, 31 * sizeof *a);
    free(a);
    free(b);
    mt_module_free(m);
}

static void token_types_of_0_are_the_default(void **state)
{
    (void)state;
    mt_module *m = mt_model_new(device, &variants[4]);
    int64_t ids[] = {1, 2, 3, 4, 5, 6, 0, 0, 0, 0, 0, 0};
    MT_AUTO mt_tensor *none = ids_of(2, 3, ids);
    MT_AUTO mt_tensor *zeros =
        mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(2, 2, 3), ids, sizeof ids));
    ids[11] = 1;
    MT_AUTO mt_tensor *one =
        mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(2, 2, 3), ids, sizeof ids));
    mtt_ok(mt_set(&none, mt_forward(m, none)));
    mtt_ok(mt_set(&zeros, mt_forward(m, zeros)));
    mtt_ok(mt_set(&one, mt_forward(m, one)));
    assert_true(mtt_same_bits(none, zeros));
    assert_false(mtt_same_bits(none, one));
    MT_AUTO mt_tensor *bad = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(3, 2, 3)));
    assert_null(mt_forward(m, bad));
    mtt_failed(MT_ERR_ARGUMENT, "i64 [3,2,3]", "[2,b,s]");
    MT_AUTO mt_tensor *longer = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(1, 10)));
    assert_null(mt_forward(m, longer));
    mtt_failed(MT_ERR_ARGUMENT, "10 tokens", "context is 9");
    mt_module_free(m);
}

static void a_pooled_bert_makes_a_row_of_the_first_token_s(void **state)
{
    (void)state;
    mt_model_config c = variants[4];
    c.pooled = true;
    mt_module *m = mt_model_new(device, &c), *head = mt_model_new(device, &variants[4]),
              *gpt = mt_model_new(device, &variants[0]);
    int64_t ids[] = {1, 2, 3, 4, 5, 6};
    MT_AUTO mt_tensor *x = ids_of(2, 3, ids);
    MT_AUTO mt_tensor *hidden = mtt_made(mt_bert_hidden(m, x));
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
    MT_AUTO mt_tensor *apart = mtt_made(mt_bert_output(m, hidden));
    assert_int_equal(mt_rank(y), 2);
    assert_true(mt_shape(y)[0] == 2 && mt_shape(y)[1] == mt_shape(hidden)[2]);
    assert_true(mtt_same_bits(y, apart));
    MT_AUTO mt_tensor *row = mtt_made(mt_slice(hidden, 1, 0, 1));
    mtt_ok(mt_set(&row, mt_reshape(row, 2, mt_shape(y))));
    mt_module *dense = mt_module_child(mt_module_child(m, "pooler"), "dense");
    mtt_ok(mt_set(
        &row, mt_linear(row, mt_module_param(dense, "weight"), mt_module_param(dense, "bias"))));
    mtt_ok(mt_set(&row, mt_tanh(row)));
    assert_true(mtt_same_bits(row, y));
    MT_AUTO mt_tensor *rows = mtt_made(mt_bert_hidden(head, x));
    MT_AUTO mt_tensor *logits = mtt_made(mt_bert_output(head, rows));
    MT_AUTO mt_tensor *whole = mtt_made(mt_forward(head, x));
    assert_true(mtt_same_bits(logits, whole));
    assert_null(mt_model_forward_loss(m, x, x));
    mtt_failed(MT_ERR_ARGUMENT, "bert makes no logits", "with a head");
    assert_null(mt_bert_hidden(gpt, x));
    mtt_failed(MT_ERR_ARGUMENT, "bert_hidden", "not a bert");
    assert_null(mt_bert_output(m, y));
    mtt_failed(MT_ERR_ARGUMENT, "bert_output: the rows are [2,", "need [b,s,");
    assert_null(mt_bert_output(NULL, y));
    mtt_failed(MT_ERR_ARGUMENT, "bert_output", "NULL");
    c = variants[0], c.pooled = true;
    assert_null(mt_model_new(device, &c));
    mtt_failed(MT_ERR_ARGUMENT, "pooled is set", "a gpt has none");
    mt_module_free(m), mt_module_free(head), mt_module_free(gpt);
}

static void fifteen_percent_of_the_tokens_are_masked_or_replaced(void **state)
{
    (void)state;
    enum { N = 100000, MASK = 30 };
    int64_t *tokens = malloc(3 * N * sizeof *tokens), *input = tokens + N, *target = input + N;
    for (int i = 0; i < N; i++) tokens[i] = i % 30;
    mtt_ok(mt_mask_tokens(&variants[4], 7, N, tokens, input, target));
    double chosen = 0, masked = 0, other = 0;
    for (int i = 0; i < N; i++) {
        if (target[i] == MT_IGNORE) {
            assert_int_equal(input[i], tokens[i]);
            continue;
        }
        assert_int_equal(target[i], tokens[i]);
        assert_true(input[i] >= 0 && input[i] < 31);
        chosen++;
        masked += input[i] == MASK;
        other += input[i] != MASK && input[i] != tokens[i];
    }
    assert_true(fabs(chosen / N - 0.15) < 0.005);
    assert_true(fabs(masked / chosen - (0.8 + 0.1 / 31)) < 0.01);
    assert_true(fabs(other / chosen - 0.1 * 29 / 31) <
                0.01); /* a drawn token may be the original one */
    int64_t first[8], again[8], ignored[8];
    mtt_ok(mt_mask_tokens(&variants[4], 7, 8, tokens, first, ignored));
    assert_memory_equal(first, input, sizeof first);
    mtt_ok(mt_mask_tokens(&variants[4], 8, 8, tokens, again, ignored));
    mtt_ok(mt_mask_tokens(&variants[4], 7, N, tokens, tokens, target)); /* in place */
    assert_memory_equal(tokens, input, N * sizeof *tokens);
    assert_int_equal(mt_mask_tokens(&variants[4], 7, 8, NULL, first, ignored), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "mask_tokens");
    free(tokens);
}

/* ---- attention of fewer key and value heads ---- */

/* 2 key and value heads give what 4 give whose pairs are equal. */
static void grouped_queries_are_heads_whose_keys_and_values_repeat(void **state)
{
    (void)state;
    for (int form = 0; form < MT_ATTENTION_FORM_COUNT; form++) {
        mt_model_config few = {.kind = MT_MODEL_ATTENTION,
                               .hidden = 24,
                               .heads = 4,
                               .kv_heads = 2,
                               .causal = true,
                               .attention = (mt_attention_form)form,
                               .dtype = MT_F64},
                        all = few;
        all.kv_heads = 4;
        mt_module *a = mt_model_new(device, &few), *b = mt_model_new(device, &all);
        double *w = mtt_doubles(mt_module_param(mt_module_child(a, "qkv"), "weight"));
        double *full = calloc(72 * 24, sizeof *full);
        for (int row = 0; row < 72; row++) { /* q 24; k 4 x 6; v 4 x 6 */
            int part = row / 24, head = row % 24 / 6;
            int from = part == 0 ? row : 24 + (part - 1) * 12 + head / 2 * 6 + row % 6;
            memcpy(full + row * 24, w + from * 24, 24 * sizeof *w);
        }
        mt_tensor *target = mt_module_param(mt_module_child(b, "qkv"), "weight");
        mtt_ok(mt_copy_from_host(target, full, 72 * 24 * sizeof *full));
        mtt_ok(mt_copy(mt_module_param(mt_module_child(b, "proj"), "weight"),
                       mt_module_param(mt_module_child(a, "proj"), "weight")));
        MT_AUTO mt_tensor *x = mtt_random(device, MT_F64, MT_SHAPE(2, 5, 24), 3, -1, 1);
        MT_AUTO mt_tensor *ya = mtt_made(mt_forward(a, x));
        MT_AUTO mt_tensor *yb = mtt_made(mt_forward(b, x));
        double *va = mtt_doubles(ya), *vb = mtt_doubles(yb);
        for (int i = 0; i < 2 * 5 * 24; i++) assert_true(fabs(va[i] - vb[i]) <= 1e-15);
        free(va);
        free(vb);
        free(w);
        free(full);
        mt_module_free(a);
        mt_module_free(b);
    }
}

/* ---- failing memory ---- */

/* Makes the model and runs it forward and backward; returns the first failure. */
static mt_status once(const mt_model_config *c)
{
    mt_module *m = mt_model_new(device, c);
    const int64_t ids[] = {1, 2, 3, 4, 5, 6};
    bool whole = mt_model_config_of(m) != NULL;
    MT_AUTO mt_tensor *x = !m      ? NULL
                           : whole ? mt_from_data(device, MT_I64, MT_SHAPE(2, 3), ids, sizeof ids)
                                   : mt_normal(device, c->dtype, MT_SHAPE(2, 3, c->hidden), 0, 1);
    MT_AUTO mt_tensor *y = !x              ? NULL
                           : c->mtp_layers ? mt_model_forward_loss(m, x, x)
                                           : mt_forward(m, x);
    if (y) mt_set(&y, mt_sum_all(y));
    if (y) mt_backward(y);
    mt_module_free(m);
    return mt_last_status();
}

/* The n-th request fails, for every n (for some in the short form): it is reported, and everything
 * is freed. */
static void failing_memory_is_reported_and_leaves_nothing(void **state)
{
    (void)state;
    if (strcmp(mt_device_kind(device), "cpu") != 0) skip();
    mt_set_balance_check(device, false); /* thousands of passes */
    mtt_ok(mt_device_set_threads(device, 1));
    for (size_t i = 3; i < N_VARIANTS; i++) {
        mt_model_config c = variants[i];
        c.layers = c.layers ? 1 : 0;
        bool reached = true;
        for (uint64_t n = 1; reached; n = mtt_next_refusal(n)) {
            mti_fail_nth_alloc(n);
            mt_status status = once(&c);
            reached = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            if (status != MT_OK) mtt_failed(MT_ERR_MEMORY, "");
            assert_string_equal(mt_scope_path(), "");
            mt_mem_stats stats;
            mt_mem_empty_cache(device);
            mt_mem_get_stats(device, &stats);
            assert_int_equal(stats.allocated.current, 0);
        }
    }
    mt_set_balance_check(device, true);
}

/* ---- learning ---- */

typedef struct corpus {
    unsigned char *at;
    size_t n;
    double entropy; /* nats per byte that a model of byte frequencies reaches */
} corpus;

/* The source of this test, as text to learn. */
static corpus read_text(void)
{
    corpus c = {0};
    FILE *f = fopen(__FILE__, "rb");
    if (!f) f = fopen("tests/models/nn/test_families.c", "rb");
    if (!f) skip();
    c.at = malloc(1 << 16);
    c.n = fread(c.at, 1, 1 << 16, f);
    fclose(f);
    double count[256] = {0};
    for (size_t i = 0; i < c.n; i++) count[c.at[i]]++;
    for (int i = 0; i < 256; i++)
        if (count[i] > 0) c.entropy -= count[i] / (double)c.n * log(count[i] / (double)c.n);
    return c;
}

enum { BATCH = 8, SEQ = 48, STEPS = 120, LAST = 40 };

static mt_tensor *loss_of(mt_module *m, const mt_model_config *c, const corpus *text, uint64_t step)
{
    int64_t input[BATCH * SEQ], target[BATCH * SEQ];
    uint64_t draw = step + 1;
    for (int i = 0; i < BATCH; i++) {
        size_t at = (size_t)mtt_draw(&draw, 0, (double)(text->n - SEQ - 1));
        for (int j = 0; j < SEQ; j++) {
            input[i * SEQ + j] = text->at[at + (size_t)j];
            target[i * SEQ + j] = text->at[at + (size_t)j + 1];
        }
    }
    if (c->kind == MT_MODEL_BERT)
        mtt_ok(mt_mask_tokens(c, step, BATCH * SEQ, input, input, target));
    MT_AUTO mt_tensor *x = ids_of(BATCH, SEQ, input);
    MT_AUTO mt_tensor *y = ids_of(BATCH, SEQ, target);
    MT_AUTO mt_tensor *logits = mtt_made(mt_forward(m, x));
    return mtt_made(mt_cross_entropy(logits, y, MT_IGNORE));
}

/* Trains; returns the mean loss of the last steps. */
static double train(const mt_model_config *c, const corpus *text, int steps)
{
    mt_seed(device, 1);
    mt_module *m = mt_model_new(device, c);
    mt_optimizer *adamw = mt_adamw_new(m, &(mt_adamw_options){.lr = 3e-3, .weight_decay = 0.01});
    double sum = 0;
    for (int i = 0; i < steps; i++) {
        MT_AUTO mt_tensor *loss = loss_of(m, c, text, (uint64_t)i);
        if (i >= steps - LAST) sum += mt_item(loss);
        mtt_ok(mt_backward(loss));
        mtt_ok(mt_clip_grad_norm(m, 1, NULL));
        mtt_ok(mt_optimizer_set_lr(adamw, mt_cosine_lr(i, 10, steps, 3e-3, 3e-4)));
        mtt_ok(mt_optimizer_step(adamw));
        mtt_ok(mt_module_zero_grad(m));
    }
    mt_optimizer_free(adamw);
    mt_module_free(m);
    return sum / LAST;
}

/* Better than any model of byte frequencies, so it uses the context. */
static void each_family_predicts_text_better_than_byte_frequencies(void **state)
{
    (void)state;
    if (strcmp(mt_device_kind(device), "cpu") != 0) skip(); /* thousands of steps */
    mt_set_balance_check(device, false);
    mtt_ok(mt_device_set_threads(device, 1)); /* the model is too small for several threads */
    corpus text = read_text();
    static const char *const presets[] = {"tiny", "bert-tiny", "llama-tiny"};
    static const int steps[] = {STEPS, 7 * STEPS, STEPS}; /* bert learns from 15% of the tokens */
    for (int i = 0; i < 3; i++) {
        mt_model_config c;
        mtt_ok(mt_model_preset(presets[i], &c));
        c.hidden = 32;
        double loss = train(&c, &text, steps[i]);
        print_message("%s: %.3f nats a byte after %d steps; frequencies alone: %.3f\n", presets[i],
                      loss, steps[i], text.entropy);
        assert_true(loss < text.entropy - 0.15);
    }
    free(text.at);
    mt_set_balance_check(device, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_position_sees_what_the_windows_of_all_layers_reach),
        mtt_test(a_layer_without_rotary_positions_sees_no_order),
        mtt_test(a_step_raises_the_bias_of_experts_with_few_rows),
        mtt_test(the_balance_of_one_layer_is_that_of_all_over_k),
        mtt_test(the_config_gives_the_number_of_parameters),
        mtt_test(parameters_have_the_names_that_the_documents_map),
        mtt_test(a_model_returns_its_config),
        mtt_test(bert_attends_to_later_tokens),
        mtt_test(a_pooled_bert_makes_a_row_of_the_first_token_s),
        mtt_test(token_types_of_0_are_the_default),
        mtt_test(fifteen_percent_of_the_tokens_are_masked_or_replaced),
        mtt_test(grouped_queries_are_heads_whose_keys_and_values_repeat),
        mtt_test(failing_memory_is_reported_and_leaves_nothing),
        mtt_test(each_family_predicts_text_better_than_byte_frequencies),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
