/* Adapters: what is trained, what is kept, NF4 bases. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "adapters.h"

/* ---- what is trained ---- */

static void only_adapters_get_gradients_state_and_steps(void **state)
{
    (void)state;
    for (mt_lora_base base = 0; base < MT_LORA_BASE_COUNT; base++) {
        mt_module *m = mlp(MT_F32);
        add(m, base, 2);
        MT_AUTO mt_tensor *x = tokens(MT_F32);
        mt_optimizer *o = mt_adamw_new(m, &(mt_adamw_options){.lr = 0.01, .weight_decay = 0.1});
        const mt_named_tensor *list;
        size_t n;
        mtt_ok(mt_module_params(m, &list, &n));
        assert_int_equal(n, 8);
        mt_tensor *before[8];
        for (size_t i = 0; i < n; i++) before[i] = mtt_made(mt_detach(list[i].tensor));
        for (size_t i = 0; i < n; i++) mt_set(&before[i], mt_clone(before[i]));
        for (int s = 0; s < 2; s++)
            mtt_ok(step(m, x, o)); /* A changes from the second step on, when B is not 0 */
        for (size_t i = 0; i < n; i++) {
            bool adapter = strstr(list[i].name, "lora_") != NULL;
            assert_int_equal(mt_requires_grad(list[i].tensor), adapter);
            assert_int_equal(mt_grad(list[i].tensor) != NULL, adapter);
            assert_int_equal(!mtt_same_bits(before[i], list[i].tensor), adapter);
            mt_release(before[i]);
        }
        assert_int_equal(mt_optimizer_state_count(o), 4 * 2);
        mt_optimizer_free(o);
        mt_module_free(m);
    }
}

static void a_fresh_adapter_changes_nothing(void **state)
{
    (void)state;
    MT_AUTO mt_tensor *x = tokens(MT_F32);
    mt_module *m = mlp(MT_F32);
    MT_AUTO mt_tensor *before = mtt_made(mt_forward(m, x));
    add(m, MT_LORA_KEEP, 2);
    assert_string_equal(mt_module_kind(mt_module_find(m, "fc")), "lora");
    assert_string_equal(mt_module_kind(mt_module_find(m, "fc.base_layer")), "linear");
    MT_AUTO mt_tensor *after = mtt_made(mt_forward(m, x));
    double *a = mtt_doubles(before), *b = mtt_doubles(after);
    for (int i = 0; i < TOKENS * D; i++) assert_true(a[i] == b[i]);
    free(a), free(b);
    double *values = mtt_doubles(weight(m, "fc.lora_A"));
    double bound = 1 / sqrt(D), largest = 0;
    for (int i = 0; i < R * D; i++) largest = fmax(largest, fabs(values[i]));
    free(values);
    assert_true(largest <= bound && largest > 0.9 * bound);
    mt_module_free(m);
}

static double loss_of(mt_module *m, mt_tensor *x)
{
    bool was = mt_set_grad_mode(false);
    mt_tensor *y = mt_forward(m, x);
    mt_set(&y, mt_mse(y, x));
    double loss = mt_item(y);
    mt_release(y);
    mt_set_grad_mode(was);
    return loss;
}

/* Central differences in f64, over an NF4 base as well. */
static void gradients_agree_with_central_differences(void **state)
{
    (void)state;
    const char *paths[] = {"fc.lora_A", "fc.lora_B", "proj.lora_A", "proj.lora_B"};
    for (mt_lora_base base = 0; base < MT_LORA_BASE_COUNT; base++) {
        mt_module *m = mlp(MT_F64);
        add(m, base, 2);
        fill_b(m, "fc.lora_B", 1), fill_b(m, "proj.lora_B", 2);
        MT_AUTO mt_tensor *x = tokens(MT_F64);
        mtt_ok(step(m, x, NULL));
        for (int p = 0; p < 4; p++) {
            mt_tensor *w = weight(m, paths[p]);
            double *grad = mtt_doubles(mtt_made(mt_grad(w))), *at = mtt_doubles(w);
            size_t n_bytes = (size_t)mt_numel(w) * sizeof *at;
            for (int64_t i = 0; i < mt_numel(w); i += 37) {
                double loss[2], was = at[i], h = 1e-5;
                for (int side = 0; side < 2; side++) {
                    at[i] = was + (side ? h : -h);
                    mtt_ok(mt_copy_from_host(w, at, n_bytes));
                    loss[side] = loss_of(m, x);
                }
                at[i] = was;
                double want = (loss[1] - loss[0]) / (2 * h);
                if (!(fabs(grad[i] - want) <= 1e-9 + 1e-6 * fabs(want)))
                    fail_msg("%s [%lld]: %.12g, need %.12g", paths[p], (long long)i, grad[i], want);
            }
            mtt_ok(mt_copy_from_host(w, at, n_bytes));
            free(grad), free(at);
        }
        mt_module_free(m);
    }
}

static void targets_select_linears_by_path(void **state)
{
    (void)state;
    mt_model_config c = {
        .kind = MT_MODEL_GPT, .hidden = 16, .heads = 2, .layers = 3, .vocab = 9, .context = 8};
    const struct {
        const char *patterns[2];
        size_t n_patterns, want;
    } cases[] = {{{"*.qkv"}, 1, 3},     {{"*.qkv", "*.fc"}, 2, 6}, {{"h.1.*"}, 1, 4},
                 {{NULL}, 0, 12},       {{"h.[02].mlp.*"}, 1, 4},  {{"*.proj", "*.proj"}, 2, 6},
                 {{"h.2.mlp.fc"}, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mt_module *m = mt_model_new(device, &c);
        assert_non_null(m);
        size_t n = 0;
        mtt_ok(mt_lora_add(m,
                           &(mt_lora_options){.rank = 2,
                                              .n_targets = cases[i].n_patterns,
                                              .targets = cases[i].patterns},
                           &n));
        assert_int_equal(n, cases[i].want);
        if (!i) { /* add more later: trained ones stay, and none is wrapped twice */
            add(m, MT_LORA_KEEP, 9);
            assert_true(mt_requires_grad(weight(m, "h.0.attn.qkv.lora_A")));
            assert_int_equal(mt_lora_add(m, &(mt_lora_options){.rank = 1}, NULL), MT_ERR_ARGUMENT);
            mtt_failed(MT_ERR_ARGUMENT, "no linear");
        }
        mt_module_free(m);
    }
    mt_module *m = mlp(MT_F32);
    const mt_lora_options bad[] = {
        {.rank = 0},
        {.rank = 1, .dropout = 1},
        {.rank = 1, .alpha = NAN},
        {.rank = 1, .base = MT_LORA_BASE_COUNT},
        {.rank = 1, .n_targets = 1},
        {.rank = 1, .n_targets = 2, .targets = (const char *[]){"*.fc", "*.nothing"}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(mt_lora_add(m, &bad[i], NULL), MT_ERR_ARGUMENT);
        mtt_failed(MT_ERR_ARGUMENT, "lora_add");
        assert_true(mt_requires_grad(weight(m, "fc")));
    }
    mt_module_free(m);
}

/* ---- what is kept ---- */

/* Bytes that the tape keeps after a forward of a bf16 mlp. */
static size_t kept(bool input_needs_grad, const char *target, double dropout)
{
    mt_module *m = mlp(MT_BF16);
    if (target)
        mtt_ok(mt_lora_add(m,
                           &(mt_lora_options){.rank = R,
                                              .dropout = dropout,
                                              .n_targets = 1,
                                              .targets = &target,
                                              .base = MT_LORA_NF4},
                           NULL));
    MT_AUTO mt_tensor *x = tokens(MT_BF16);
    mtt_ok(mt_set_requires_grad(x, input_needs_grad));
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
    mtt_ok(mt_ledger_end(ledger));
    size_t bytes = mt_ledger_bytes(ledger);
    mt_ledger_free(ledger);
    mt_module_free(m);
    return bytes;
}

/* x: [T,D] into fc; h: [T,F] out of fc, kept by gelu; g: gelu(h), into proj; u: [T,R] in an adapter
 */
static void linears_keep_what_their_adapters_need(void **state)
{
    (void)state;
    const size_t x = TOKENS * D * 2, h = TOKENS * F * 2, g = h, u = TOKENS * R * 2;
    assert_int_equal(kept(true, NULL, 0), x + h + g);
    assert_int_equal(kept(true, "*.fc", 0), x + h + u);
    assert_int_equal(kept(true, "*.proj", 0), h + g + u);
    assert_int_equal(kept(false, "*.proj", 0), g + u); /* nothing below proj needs a gradient */
    assert_int_equal(kept(true, "*", 0), x + h + g + 2 * u); /* more than without adapters */
    /* Dropout: A keeps its input, which has x's size, and a mask of one byte per value. */
    assert_int_equal(kept(true, "*.fc", 0.1), x + h + u + TOKENS * D);
}

/* ---- f32 beside 16 bits ---- */

/* The bits of y = f16(f32(base(x)) + B ((alpha / r) A f32(x))), and what is kept for it. */
static void adapters_in_f32_compute_in_f32_beside_16_bits(void **state)
{
    (void)state;
    const char *const target[] = {"*.fc"};
    const mt_lora_options options = {
        .rank = R, .alpha = 2 * R, .n_targets = 1, .targets = target, .f32_adapters = true};
    for (int nf4 = 0; nf4 < 2; nf4++) {
        mt_lora_options o = options;
        o.base = nf4 ? MT_LORA_NF4 : MT_LORA_KEEP;
        mt_module *m = mlp(MT_BF16);
        mtt_ok(mt_lora_add(m, &o, NULL));
        fill_b(m, "fc.lora_B", 3);
        mt_tensor *a = weight(m, "fc.lora_A"), *b = weight(m, "fc.lora_B");
        assert_int_equal(mt_dtype_of(a), MT_F32);
        assert_int_equal(mt_dtype_of(b), MT_F32);
        MT_AUTO mt_tensor *x = tokens(MT_BF16);
        MT_AUTO mt_tensor *base = mt_forward(mt_module_find(m, "fc.base_layer"), x);
        mt_tensor *sum = mt_cast(base, MT_F32), *h = mt_cast(x, MT_F32);
        mt_set(&h, mt_linear(h, a, NULL));
        mt_set(&h, mt_mul_scalar(h, 2));
        mt_set(&h, mt_linear(h, b, NULL));
        mt_set(&sum, mt_add(sum, h));
        mt_set(&sum, mt_cast(sum, MT_BF16));
        mt_ledger *ledger = mt_ledger_new(device);
        mtt_ok(mt_ledger_begin(ledger));
        MT_AUTO mt_tensor *y = mtt_made(mt_forward(mt_module_find(m, "fc"), x));
        mtt_ok(mt_ledger_end(ledger));
        assert_true(mtt_same_bits(y, sum));
        assert_int_equal(mt_ledger_bytes(ledger), TOKENS * D * 4 + TOKENS * R * 4);
        mt_ledger_free(ledger);
        mtt_ok(step(m, x, NULL));
        assert_int_equal(mt_dtype_of(mtt_made(mt_grad(a))), MT_F32);
        mtt_ok(mt_lora_merge(m));
        assert_int_equal(mt_dtype_of(weight(m, "fc")), MT_BF16);
        mt_release(sum);
        mt_release(h);
        mt_module_free(m);
    }
    mt_module *m = mlp(MT_F64);
    mtt_ok(mt_lora_add(m, &options, NULL));
    assert_int_equal(mt_dtype_of(weight(m, "fc.lora_A")), MT_F64);
    mt_module_free(m);
}

/* ---- NF4 ---- */

static void an_nf4_linear_equals_a_linear_of_dequantized_weights(void **state)
{
    (void)state;
    const mt_quant formats[] = {{.format = MT_QUANT_NF4},
                                {.format = MT_QUANT_NF4, .double_scales = true}};
    for (int f = 0; f < 2; f++) {
        mt_module *m = mlp(MT_BF16), *plain = mlp(MT_BF16);
        MT_AUTO mt_tensor *codes = mtt_made(mt_quantize(weight(m, "fc"), &formats[f]));
        MT_AUTO mt_tensor *dense =
            mtt_made(mt_dequantize(codes, &formats[f], MT_BF16, MT_SHAPE(F, D)));
        mtt_ok(mt_copy(weight(plain, "fc"), dense));
        mtt_ok(mt_module_freeze(plain, true));
        mtt_ok(mt_lora_add(m,
                           &(mt_lora_options){.rank = R,
                                              .n_targets = 1,
                                              .targets = (const char *[]){"*.fc"},
                                              .base = f ? MT_LORA_NF4_DOUBLE : MT_LORA_NF4},
                           NULL));
        mt_tensor *packed = weight(m, "fc.base_layer");
        assert_int_equal(mt_dtype_of(packed), MT_U8);
        assert_int_equal(mt_numel(packed), (int64_t)mt_quantized_bytes(&formats[f], D * F));
        assert_int_equal(mt_storage_of(packed).category, MT_PARAMETER);
        mt_module *nf4 = mt_module_find(m, "fc.base_layer"), *linear = mt_module_find(plain, "fc");
        MT_AUTO mt_tensor *x = tokens(MT_BF16), *x2 = NULL;
        mt_set(&x2, mt_clone(x));
        mtt_ok(mt_set_requires_grad(x, true));
        mtt_ok(mt_set_requires_grad(x2, true));
        size_t before = mtt_allocated(device);
        MT_AUTO mt_tensor *y = mtt_made(mt_forward(nf4, x)), *y2 = NULL;
        assert_int_equal(mtt_allocated(device) - before,
                         TOKENS * F * 2); /* the output, but no weight */
        mt_set(&y2, mt_forward(linear, x2));
        assert_true(mtt_same_bits(y, y2));
        mt_set(&y, mt_sum_all(y)), mt_set(&y2, mt_sum_all(y2));
        mtt_ok(mt_backward(y));
        mtt_ok(mt_backward(y2));
        assert_true(mtt_same_bits(mt_grad(x), mt_grad(x2)));
        mt_module_free(m), mt_module_free(plain);
    }
}

/* Every linear, with an adapter or without, but the head; embedding and norms are none. Codes count
 * as what they stand for, and a merged model has its parameters back. */
static void all_linears_but_the_head_are_packed(void **state)
{
    (void)state;
    const mt_model_config c = {
        .kind = MT_MODEL_LLAMA, .hidden = 64, .layers = 2, .heads = 4, .vocab = 96, .context = 16};
    const char *const q[] = {"*.q"}, *const head[] = {"*.lm_head"};
    for (int k = 0; k < 2; k++) {
        mt_module *m = mt_model_new(device, &c);
        const mt_lora_options o = {
            .rank = 2, .n_targets = 1, .targets = k ? head : q, .base = MT_LORA_NF4};
        const mt_named_tensor *list;
        uint64_t before, with, merged, bytes;
        size_t n, added, codes = 0;
        mtt_ok(mt_module_size(m, &before, NULL));
        mtt_ok(mt_lora_add(m, &o, &added));
        assert_int_equal(added, k ? 1 : 2);
        mtt_ok(mt_module_params(m, &list, &n));
        for (size_t i = 0; i < n; i++) {
            const bool block = strstr(list[i].name, "attn.") || strstr(list[i].name, "mlp.");
            assert_int_equal(mt_dtype_of(list[i].tensor) == MT_U8,
                             block && !strstr(list[i].name, "lora_"));
            codes += mt_dtype_of(list[i].tensor) == MT_U8;
        }
        assert_int_equal(codes, 2 * 7);
        mtt_ok(mt_module_size(m, &with, &bytes));
        assert_int_equal(with, before + (k ? 2 * (64 + 96) : 2 * 2 * (64 + 64)));
        assert_true(bytes < 4 * before);
        mtt_ok(mt_lora_merge(m));
        mtt_ok(mt_module_size(m, &merged, &bytes));
        assert_int_equal(merged, before);
        assert_int_equal(bytes, 4 * before);
        mt_module_free(m);
    }
}

static void codes_changed_before_backward_are_an_error(void **state)
{
    (void)state;
    mt_module *m = mlp(MT_F32);
    add(m, MT_LORA_NF4, 2);
    MT_AUTO mt_tensor *x = tokens(MT_F32);
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
    mt_set(&y, mt_mse(y, x));
    mtt_ok(mt_fill(weight(m, "proj.base_layer"), 0));
    assert_int_equal(mt_backward(y), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "proj.base_layer", "changed in place");
    mt_module_free(m);
}

static void autocast_dequantizes_into_its_dtype(void **state)
{
    (void)state;
    mt_module *m = mlp(MT_F32);
    add(m, MT_LORA_NF4, 2);
    MT_AUTO mt_tensor *x = tokens(MT_F32);
    mt_tensor *a = weight(m, "fc.lora_A");
    fill_b(m, "fc.lora_B", 1), fill_b(m, "proj.lora_B", 2);
    mtt_ok(step(m, x, NULL));
    double *exact = mtt_doubles(mt_grad(a)), error = 0, norm = 0;
    mtt_ok(mt_autocast_begin(MT_BF16));
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x));
    assert_int_equal(mt_dtype_of(y), MT_BF16);
    mt_set(&y, mt_mse(y, x));
    mtt_ok(mt_autocast_end());
    mtt_ok(mt_module_zero_grad(m));
    mtt_ok(mt_backward(y));
    double *got = mtt_doubles(mtt_made(mt_grad(a)));
    for (int i = 0; i < R * D; i++) {
        error += (got[i] - exact[i]) * (got[i] - exact[i]);
        norm += exact[i] * exact[i];
    }
    assert_true(sqrt(error / norm) < 0.02);
    free(exact), free(got);
    mt_module_free(m);
}

/* ---- with other ways to save memory ---- */

/* Gradients of all adapters of a GPT over NF4; returns the bytes that the tape kept. */
static size_t train_gpt(const char *preset, bool autocast, mt_tensor *grads[32], size_t *n_grads)
{
    mt_model_config c = {.kind = MT_MODEL_GPT,
                         .hidden = 64,
                         .heads = 2,
                         .layers = 2,
                         .vocab = 9,
                         .context = 8,
                         .act = MT_ACT_GELU,
                         .dropout = 0.1};
    mt_seed(device, 31);
    mt_module *gpt = mt_model_new(device, &c);
    assert_non_null(gpt);
    mtt_ok(
        mt_lora_add(gpt, &(mt_lora_options){.rank = R, .dropout = 0.1, .base = MT_LORA_NF4}, NULL));
    mtt_ok(mt_model_checkpoint(gpt, preset));
    MT_AUTO mt_tensor *x = mtt_made(mt_zeros(device, MT_I64, MT_SHAPE(2, 8)));
    mt_ledger *ledger = mt_ledger_new(device);
    mtt_ok(mt_ledger_begin(ledger));
    if (autocast) mtt_ok(mt_autocast_begin(MT_BF16));
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(gpt, x));
    mt_set(&y, mt_cross_entropy(y, x, MT_IGNORE));
    if (autocast) mtt_ok(mt_autocast_end());
    mtt_ok(mt_ledger_end(ledger));
    size_t kept_bytes = mt_ledger_bytes(ledger);
    mt_ledger_free(ledger);
    mtt_ok(mt_backward(mtt_made(y)));
    const mt_named_tensor *list;
    size_t n;
    mtt_ok(mt_module_params(gpt, &list, &n));
    for (size_t i = *n_grads = 0; i < n; i++)
        if (mt_requires_grad(list[i].tensor))
            grads[(*n_grads)++] = mt_retain(mtt_made(mt_grad(list[i].tensor)));
    mt_module_free(gpt);
    return kept_bytes;
}

static void checkpoints_change_no_bit_with_autocast_and_nf4(void **state)
{
    (void)state;
    const char *presets[] = {"full", "selective", "ops"};
    for (int autocast = 0; autocast < 2; autocast++) {
        mt_tensor *plain[32], *again[32];
        size_t n, m, bytes = train_gpt("none", autocast, plain, &n);
        assert_int_equal(n, 2 * 8);
        for (int p = 0; p < 3; p++) {
            assert_true(train_gpt(presets[p], autocast, again, &m) < bytes);
            assert_int_equal(m, n);
            for (size_t i = 0; i < m; i++) {
                assert_true(mtt_same_bits(plain[i], again[i]));
                mt_release(again[i]);
            }
        }
        for (size_t i = 0; i < n; i++) mt_release(plain[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(only_adapters_get_gradients_state_and_steps),
        mtt_test(a_fresh_adapter_changes_nothing),
        mtt_test(gradients_agree_with_central_differences),
        mtt_test(targets_select_linears_by_path),
        mtt_test(linears_keep_what_their_adapters_need),
        mtt_test(adapters_in_f32_compute_in_f32_beside_16_bits),
        mtt_test(an_nf4_linear_equals_a_linear_of_dequantized_weights),
        mtt_test(all_linears_but_the_head_are_packed),
        mtt_test(codes_changed_before_backward_are_an_error),
        mtt_test(autocast_dequantizes_into_its_dtype),
        mtt_test(checkpoints_change_no_bit_with_autocast_and_nf4),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
