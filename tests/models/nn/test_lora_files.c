/* Adapters that are merged, saved and loaded, also with allocations that fail. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "adapters.h"
#include "base/base.h"

/* ---- merging ---- */

static double largest_difference(mt_tensor *a, mt_tensor *b)
{
    double *x = mtt_doubles(a), *y = mtt_doubles(b), most = 0;
    for (int64_t i = 0; i < mt_numel(a); i++) most = fmax(most, fabs(x[i] - y[i]));
    free(x), free(y);
    return most;
}

static void a_merged_model_computes_what_the_adapters_did(void **state)
{
    (void)state;
    const struct {
        mt_dtype dtype;
        double bound; /* for outputs below 1, sums of 64 and 128 products */
    } cases[] = {{MT_F64, 16 * 0x1p-53}, {MT_F32, 16 * 0x1p-24}, {MT_BF16, 4 * 0x1p-8}};
    for (mt_lora_base base = 0; base < MT_LORA_BASE_COUNT; base++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            mt_dtype dtype = cases[i].dtype;
            MT_AUTO mt_tensor *x = tokens(dtype);
            mt_module *m = mlp(dtype);
            add(m, base, 2);
            fill_b(m, "fc.lora_B", 5), fill_b(m, "proj.lora_B", 6);
            MT_AUTO mt_tensor *before = mtt_made(mt_forward(m, x));
            mtt_ok(mt_lora_merge(m));
            assert_string_equal(mt_module_kind(mt_module_find(m, "fc")), "linear");
            assert_int_equal(mt_dtype_of(weight(m, "fc")), dtype);
            assert_false(mt_requires_grad(weight(m, "fc")));
            MT_AUTO mt_tensor *after = mtt_made(mt_forward(m, x));
            double difference = largest_difference(before, after);
            if (!(difference > 0 && difference <= cases[i].bound))
                fail_msg("base %d, %s: off by %g", (int)base, mt_dtype_name(dtype), difference);
            assert_int_equal(mt_lora_merge(m), MT_ERR_STATE);
            mtt_failed(MT_ERR_STATE, "no adapters");
            mt_module_free(m);
        }
}

/* The sum is made in f32 and rounded once: the error is at most half a bf16 ulp plus a few f32
 * roundings. */
static void a_bf16_weight_is_merged_with_one_rounding(void **state)
{
    (void)state;
    mt_module *m = mlp(MT_BF16);
    add(m, MT_LORA_KEEP, 2);
    fill_b(m, "fc.lora_B", 5);
    double *w = mtt_doubles(weight(m, "fc.base_layer")), *a = mtt_doubles(weight(m, "fc.lora_A"));
    double *b = mtt_doubles(weight(m, "fc.lora_B"));
    mtt_ok(mt_lora_merge(m));
    double *got = mtt_doubles(weight(m, "fc"));
    for (int o = 0; o < F; o++)
        for (int i = 0; i < D; i++) {
            double exact = w[o * D + i];
            for (int r = 0; r < R; r++) exact += 2 * b[o * R + r] * a[r * D + i];
            double half_ulp = ldexp(1, ilogb(got[o * D + i]) - 8);
            assert_true(fabs(got[o * D + i] - exact) <= half_ulp + 8 * 0x1p-24);
        }
    free(w), free(a), free(b), free(got);
    mt_module_free(m);
}

/* ---- files ---- */

static void adapters_are_saved_and_loaded(void **state)
{
    (void)state;
    char path[MTT_PATH];
    mtt_temporary_file(path);
    MT_AUTO mt_tensor *x = tokens(MT_F32);
    mt_module *m = mlp(MT_F32), *fresh = mlp(MT_F32), *ready = mlp(MT_F32), *low = mlp(MT_BF16);
    const char *target = "*.proj";
    const mt_lora_options o = {.rank = R, .alpha = 3, .n_targets = 1, .targets = &target};
    mtt_ok(mt_lora_add(m, &o, NULL));
    fill_b(m, "proj.lora_B", 6);
    mtt_ok(mt_lora_save(path, m));

    mt_safetensors *file = mt_safetensors_open(path);
    assert_non_null(file);
    assert_int_equal(mt_safetensors_count(file), 2);
    assert_true(mt_safetensors_find(file, "base_model.model.proj.lora_A.weight", NULL));
    assert_true(mt_safetensors_find(file, "base_model.model.proj.lora_B.weight", NULL));
    assert_string_equal(mt_safetensors_metadata(file, "lora.rank"), "4");
    assert_string_equal(mt_safetensors_metadata(file, "lora.alpha"), "3");
    assert_string_equal(mt_safetensors_metadata(file, "lora.targets"), "proj");
    mt_safetensors_free(file);

    mtt_ok(mt_lora_load(path, fresh)); /* adds the adapters */
    const mt_lora_options other_alpha = {.rank = R, .alpha = 1, .n_targets = 1, .targets = &target};
    mtt_ok(mt_lora_add(ready, &other_alpha, NULL));
    mtt_ok(mt_lora_load(path, ready)); /* fills existing adapters */
    mtt_ok(mt_lora_load(path, low));
    assert_int_equal(mt_dtype_of(weight(low, "proj.lora_B")), MT_BF16);
    MT_AUTO mt_tensor *y = mtt_made(mt_forward(m, x)), *y1 = NULL, *y2 = NULL;
    mtt_ok(mt_set(&y1, mt_forward(fresh, x)));
    mtt_ok(mt_set(&y2, mt_forward(ready, x)));
    assert_true(mtt_same_bits(y, y1));
    assert_true(mtt_same_bits(y, y2));
    mt_module_free(fresh), mt_module_free(ready), mt_module_free(low);

    /* A file that does not fit changes nothing. */
    mt_module *all = mlp(MT_F32), *wide = mlp(MT_F32),
              *narrow = mt_mlp_new(device, &(mt_model_config){.hidden = 32, .ffn = F});
    add(all, MT_LORA_KEEP, 2);
    assert_int_equal(mt_lora_load(path, all), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "fc.lora_A");
    mtt_ok(
        mt_lora_add(wide, &(mt_lora_options){.rank = 7, .n_targets = 1, .targets = &target}, NULL));
    assert_int_equal(mt_lora_load(path, wide), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "[4,128]", "[7,128]");
    assert_int_equal(mt_lora_load(path, narrow), MT_ERR_ARGUMENT);
    mtt_failed(MT_ERR_ARGUMENT, "lora_B");
    assert_string_equal(mt_module_kind(mt_module_find(narrow, "proj")), "linear");
    assert_int_equal(mt_lora_save(path, narrow), MT_ERR_STATE);
    mtt_failed(MT_ERR_STATE, "no adapters");
    mtt_ok(mt_lora_add(wide, &(mt_lora_options){.rank = 5}, NULL));
    assert_int_equal(mt_lora_save(path, wide), MT_ERR_UNSUPPORTED);
    mtt_failed(MT_ERR_UNSUPPORTED, "rank 5", "7");
    mtt_ok(mt_safetensors_save_module(path, narrow, 0, NULL));
    assert_int_equal(mt_lora_load(path, narrow), MT_ERR_FORMAT);
    mtt_failed(MT_ERR_FORMAT, "rank");
    mt_module_free(all), mt_module_free(wide), mt_module_free(narrow), mt_module_free(m);
    unlink(path);
}

/* Only the metadata have this rank, and its adapters would take 137 GB. */
static void a_rank_that_no_tensor_has_is_refused_before_adapters_are_made(void **state)
{
    (void)state;
    char path[MTT_PATH];
    mtt_temporary_file(path);
    mt_module *m = mlp(MT_F32);
    MT_AUTO mt_tensor *a = mt_zeros(device, MT_F32, MT_SHAPE(2, 32));
    const mt_named_tensor list[] = {{"base_model.model.fc.lora_A.weight", a}};
    const mt_key_value pairs[] = {{"lora.rank", "1073741824"},
                                  {"lora.alpha", "1"},
                                  {"lora.dropout", "0"},
                                  {"lora.targets", "fc"}};
    for (size_t n = 0; n < 2; n++) { /* without an adapter's tensor; with one of another rank */
        mtt_ok(mt_safetensors_save(path, n, list, 4, pairs));
        size_t before = mtt_allocated(device);
        assert_int_equal(mt_lora_load(path, m), MT_ERR_FORMAT);
        mtt_failed(MT_ERR_FORMAT, "rank 1073741824");
        assert_int_equal(mtt_allocated(device), before);
        assert_string_equal(mt_module_kind(mt_module_find(m, "fc")), "linear");
    }
    mt_module_free(m);
    unlink(path);
}

/* ---- allocations that fail ---- */

/* Adds, trains, saves, loads into another model, merges. */
static mt_status whole_life(const char *path, mt_lora_base base)
{
    mt_status status = MT_ERR_MEMORY;
    mt_model_config c = {.kind = MT_MODEL_MLP, .hidden = 8, .ffn = 16};
    mt_module *m = mt_mlp_new(device, &c), *other = m ? mt_mlp_new(device, &c) : NULL;
    mt_tensor *x = other ? mt_full(device, MT_F32, MT_SHAPE(2, 8), 0.5) : NULL;
    mt_optimizer *o = NULL;
    if (x)
        status = mt_lora_add(m, &(mt_lora_options){.rank = 2, .base = base, .dropout = 0.1}, NULL);
    if (status == MT_OK && !(o = mt_adamw_new(m, &(mt_adamw_options){.lr = 0.1})))
        status = mt_last_status();
    if (status == MT_OK) status = step(m, x, o);
    if (status == MT_OK) status = mt_lora_save(path, m);
    if (status == MT_OK) {
        status = mt_lora_load(path, other);
        if (status != MT_OK) /* all or nothing */
            assert_string_equal(mt_module_kind(mt_module_find(other, "fc")), "linear");
    }
    if (status == MT_OK) status = mt_lora_merge(m);
    mt_optimizer_free(o);
    mt_release(x);
    mt_module_free(other), mt_module_free(m);
    return status;
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    char path[MTT_PATH];
    mtt_temporary_file(path);
    size_t before = mtt_allocated(device);
    for (mt_lora_base base = 0; base < MT_LORA_BASE_COUNT; base++) {
        uint64_t n_refused = 0;
        bool reached = true;
        for (uint64_t n = 1; reached; n = mtt_next_refusal(n)) {
            mti_fail_nth_alloc(n);
            mt_status status = whole_life(path, base);
            reached = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            if (status != MT_OK) assert_int_equal(status, MT_ERR_MEMORY);
            if (status != MT_OK) assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
            mt_clear_error();
            n_refused += status != MT_OK;
            assert_int_equal(mtt_allocated(device), before);
        }
        assert_true(n_refused > (mtt_long() ? 200 : 30));
    }
    unlink(path);
}

/* Saves a llama's adapters in a folder and loads them into another; names and targets are PEFT's.
 * What fails leaves the other without adapters. */
static void a_folder_is_as_peft_has_it_and_any_allocation_may_fail(void **state)
{
    (void)state;
    static const char *const targets[] = {"*.q", "*.mlp.down"};
    const mt_model_config c = {.kind = MT_MODEL_LLAMA,
                               .hidden = 8,
                               .heads = 2,
                               .ffn = 6,
                               .layers = 2,
                               .vocab = 11,
                               .context = 4};
    char path[MTT_PATH], folder[MTT_PATH + 1], file[2][MTT_PATH + 40], text[1024];
    mtt_temporary_file(path);
    unlink(path);
    snprintf(folder, sizeof folder, "%s/", path);
    snprintf(file[0], sizeof file[0], "%s/adapter_config.json", path);
    snprintf(file[1], sizeof file[1], "%s/adapter_model.safetensors", path);
    mt_module *m = mt_model_new(device, &c), *other = mt_model_new(device, &c);
    mtt_ok(mt_lora_add(
        m, &(mt_lora_options){.rank = 2, .alpha = 3, .n_targets = 2, .targets = targets}, NULL));
    const size_t before = mtt_allocated(device);
    for (int loads = 0; loads < 2; loads++) {
        bool reached = true;
        for (uint64_t n = 1; reached; n = mtt_next_refusal(n)) {
            mti_fail_nth_alloc(n);
            mt_status status = loads ? mt_lora_load(path, other) : mt_lora_save(folder, m);
            reached = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            if (status != MT_OK) {
                assert_int_equal(status, MT_ERR_MEMORY);
                assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
                assert_int_equal(mtt_allocated(device), before);
                if (loads)
                    assert_string_equal(mt_module_kind(mt_module_find(other, "h.0.attn.q")),
                                        "linear");
            }
            mt_clear_error();
        }
    }
    mt_safetensors *f = mt_safetensors_open(file[1]);
    assert_int_equal(mt_safetensors_count(f), 8);
    assert_true(mt_safetensors_find(
        f, "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight", NULL));
    mt_safetensors_free(f);
    FILE *config = fopen(file[0], "r");
    const size_t n = fread(text, 1, sizeof text - 1, config);
    fclose(config);
    text[n] = '\0';
    assert_non_null(strstr(text, "\"q_proj\",\n    \"down_proj\""));
    assert_non_null(strstr(text, "\"lora_alpha\": 3.0"));
    assert_true(mtt_same_bits(weight(m, "h.1.attn.q.lora_A"), weight(other, "h.1.attn.q.lora_A")));
    unlink(file[0]), unlink(file[1]), rmdir(path);
    mt_module_free(m), mt_module_free(other);
}

static void adding_is_all_or_nothing(void **state)
{
    (void)state;
    for (mt_lora_base base = 0; base < MT_LORA_BASE_COUNT; base++) {
        bool refused = true;
        for (uint64_t n = 1; refused; n = mtt_next_refusal(n)) {
            mt_module *m = mlp(MT_F32);
            size_t before = mtt_allocated(device);
            mti_fail_nth_alloc(n);
            refused = mt_lora_add(m, &(mt_lora_options){.rank = 2, .base = base}, NULL) != MT_OK;
            bool reached = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            mt_clear_error();
            if (refused) {
                assert_int_equal(mtt_allocated(device), before);
                assert_true(mt_requires_grad(weight(m, "fc")));
                assert_true(mt_requires_grad(mt_module_param(mt_module_find(m, "fc"), "bias")));
                assert_string_equal(mt_module_kind(mt_module_find(m, "proj")), "linear");
            }
            refused = refused || reached;
            mt_module_free(m);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_merged_model_computes_what_the_adapters_did),
        mtt_test(a_bf16_weight_is_merged_with_one_rounding),
        mtt_test(adapters_are_saved_and_loaded),
        mtt_test(a_rank_that_no_tensor_has_is_refused_before_adapters_are_made),
        mtt_test(any_allocation_may_fail),
        mtt_test(a_folder_is_as_peft_has_it_and_any_allocation_may_fail),
        mtt_test(adding_is_all_or_nothing),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
