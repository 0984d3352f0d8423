/* Models whose layers keep their weights in 8 or 4 bits: the scores are those of a model with the
 * widened weights, to the bit. */
#include <string.h>
#include "base/base.h"
#include "memtape/models/generate.h"
#include "memtape/ops.h"
#include "mtt.h"
#include "mtt_fixture.h"

#define SMALL .hidden = 64, .heads = 4, .layers = 2, .vocab = 61, .context = 40

static const mt_model_config models[] = {
    {SMALL, .act = MT_ACT_GELU},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2},
    {SMALL, .kind = MT_MODEL_LLAMA, .joint_products = true, .dtype = MT_BF16},
    {SMALL, .kind = MT_MODEL_BERT},
    {SMALL, .kind = MT_MODEL_LLAMA, .ffn = 16, .experts = 3, .experts_per_token = 2},
};
static const mt_quant formats[] = {{.format = MT_QUANT_INT8},
                                   {.format = MT_QUANT_NF4},
                                   {.format = MT_QUANT_NF4, .block = 128, .double_scales = true},
                                   {.format = MT_QUANT_MXFP4}};
#define N(array) (sizeof(array) / sizeof *(array))

/* Puts the rounded values in the place of the weights of the layers' linears; how many. */
static int round_weights(mt_module *m, const mt_quant *format)
{
    const mt_named_tensor *list;
    size_t n;
    int rounded = 0;
    mtt_ok(mt_module_params(m, &list, &n));
    for (size_t i = 0; i < n; i++) {
        mt_tensor *w = list[i].tensor;
        if (strncmp(list[i].name, "h.", 2) != 0 && !strstr(list[i].name, ".h.")) continue;
        if (mt_rank(w) < 2 || strstr(list[i].name, ".router.")) continue;
        if (format->format == MT_QUANT_MXFP4 && mt_rank(w) < 3) continue; /* experts alone */
        bool wanted = mt_requires_grad(w);
        mtt_ok(mt_set_requires_grad(w, false));
        MT_AUTO mt_tensor *codes = mt_quantize(w, format);
        MT_AUTO mt_tensor *wide =
            mt_dequantize(codes, format, mt_dtype_of(w), mt_rank(w), mt_shape(w));
        mtt_ok(mt_copy(w, wide));
        mtt_ok(mt_set_requires_grad(w, wanted));
        rounded++;
    }
    return rounded;
}

static mt_tensor *tokens_of(void)
{
    int64_t values[2 * 9];
    for (int i = 0; i < 18; i++) values[i] = i * 7 % 61;
    return mt_from_data(device, MT_I64, MT_SHAPE(2, 9), values, sizeof values);
}

static void same_bits(const mt_tensor *a, const mt_tensor *b)
{
    char x[1 << 15], y[1 << 15];
    size_t n = (size_t)mt_numel(a) * mt_dtype_size(mt_dtype_of(a));
    assert_true(n <= sizeof x);
    mtt_ok(mt_to_host(a, x, n));
    mtt_ok(mt_to_host(b, y, n));
    assert_memory_equal(x, y, n);
}

static void scores_are_those_of_the_widened_weights(void **state)
{
    (void)state;
    for (size_t i = 0; i < N(models); i++)
        for (size_t f = 0; f < N(formats); f++) {
            const bool experts = formats[f].format == MT_QUANT_MXFP4;
            if (experts && !models[i].experts) {
                assert_null(mt_model_new_quantized(device, &models[i], &formats[f]));
                mtt_failed(MT_ERR_ARGUMENT, "mxfp4", "no experts");
                mt_module *m = mt_model_new(device, &models[i]);
                assert_int_not_equal(mt_model_quantize(m, &formats[f]), MT_OK);
                mtt_failed(MT_ERR_ARGUMENT, "model_quantize", "no experts");
                mt_module_free(m);
                continue;
            }
            mt_seed(device, 3);
            mt_module *dense = mt_model_new(device, &models[i]);
            mt_seed(device, 3);
            mt_module *coded = mt_model_new_quantized(device, &models[i], &formats[f]);
            assert_non_null(coded);
            mt_seed(device, 3);
            mt_module *later = mt_model_new(device, &models[i]);
            mtt_ok(mt_model_quantize(later, &formats[f]));
            assert_true(round_weights(dense, &formats[f]) >= (experts ? 4 : 8));
            MT_AUTO mt_tensor *tokens = tokens_of();
            MT_AUTO mt_tensor *x = mt_forward(dense, tokens);
            MT_AUTO mt_tensor *y = mt_forward(coded, tokens);
            assert_non_null(y);
            same_bits(x, y);
            mt_set(&y, mt_forward(later, tokens));
            same_bits(x, y);
            assert_false(mt_requires_grad(y)); /* frozen */
            mt_module_free(dense);
            mt_module_free(coded);
            mt_module_free(later);
        }
}

static void it_generates_with_a_cache(void **state)
{
    (void)state;
    mt_module *m = mt_model_new_quantized(device, &models[1], &formats[1]);
    mt_kv_cache *cache = mt_kv_cache_new(m, MT_KV_PREALLOCATED, 2, 12);
    MT_AUTO mt_tensor *tokens = tokens_of();
    MT_AUTO mt_tensor *at_once = mt_next_logits(m, cache, tokens);
    MT_AUTO mt_tensor *without = mt_next_logits(m, NULL, tokens);
    assert_non_null(at_once);
    same_bits(at_once, without);
    mt_kv_cache_free(cache);
    mt_module_free(m);
}

/* While it is made, no more than one layer is there as it was. */
static void making_it_takes_one_layer_more(void **state)
{
    (void)state;
    mt_model_config deep = models[1];
    deep.layers = 8;
    size_t peaks[2];
    for (int i = 0; i < 2; i++, deep.layers = 9) {
        mt_mem_stats before, after;
        mt_mem_get_stats(device, &before);
        mt_mem_reset_peak(device);
        mt_module *m = mt_model_new_quantized(device, &deep, &formats[0]);
        mt_mem_get_stats(device, &after);
        peaks[i] = (size_t)(after.requested.peak - after.requested.current);
        mt_module_free(m);
    }
    assert_true(peaks[0] == peaks[1]);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    const mt_model_config mlp = {.kind = MT_MODEL_MLP, .hidden = 8};
    assert_null(mt_model_new_quantized(device, &mlp, &formats[0]));
    assert_non_null(strstr(mt_last_error(), "mlp"));
    assert_null(mt_model_new_quantized(device, &models[0], &(mt_quant){.block = 5}));
    assert_int_equal(mt_last_status(), MT_ERR_ARGUMENT);
    mt_clear_error();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(scores_are_those_of_the_widened_weights),
        mtt_test(it_generates_with_a_cache),
        mtt_test(making_it_takes_one_layer_more),
        mtt_test(bad_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
