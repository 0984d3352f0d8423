/* A model made with adapters equals one that gets them later, and is never in memory as a whole in
 * the dtype from which it is quantised to NF4. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "adapters.h"
#include "base/base.h"
#include "nn/lora.h"
#include "parallel/parallel.h"

static const mt_model_config models[] = {
    {.kind = MT_MODEL_GPT, .hidden = 64, .heads = 2, .layers = 3, .vocab = 9, .context = 8},
    {.kind = MT_MODEL_GPT,
     .hidden = 64,
     .heads = 2,
     .layers = 3,
     .vocab = 70,
     .context = 8,
     .untied = true,
     .dtype = MT_BF16},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 64,
     .heads = 4,
     .kv_heads = 2,
     .ffn = 96,
     .layers = 3,
     .vocab = 70,
     .context = 8},
    {.kind = MT_MODEL_BERT, .hidden = 64, .heads = 2, .layers = 3, .vocab = 70, .context = 8},
    {.kind = MT_MODEL_LLAMA,
     .hidden = 64,
     .heads = 2,
     .ffn = 32,
     .layers = 2,
     .vocab = 70,
     .context = 8,
     .experts = 3,
     .experts_per_token = 2},
    {.kind = MT_MODEL_BLOCK, .hidden = 64, .heads = 2},
    {.kind = MT_MODEL_MLP, .hidden = 64},
};
enum { N_MODELS = sizeof models / sizeof *models };

static mt_module *make(const mt_model_config *c, const mt_lora_options *o, bool at_once)
{
    mt_seed(device, 17);
    mt_module *m = at_once ? mt_lora_model_new(device, c, o) : mt_model_new(device, c);
    if (!m) fail_msg("%s", mt_last_error());
    if (!at_once) mtt_ok(mt_lora_add(m, o, NULL));
    return m;
}

static void assert_same(mt_module *a, mt_module *b)
{
    const mt_named_tensor *list[2];
    size_t n[2];
    mtt_ok(mt_module_params(a, &list[0], &n[0]));
    mtt_ok(mt_module_params(b, &list[1], &n[1]));
    assert_int_equal(n[0], n[1]);
    for (size_t i = 0; i < n[0]; i++) {
        mt_tensor *x = list[0][i].tensor, *y = list[1][i].tensor;
        assert_string_equal(list[0][i].name, list[1][i].name);
        assert_int_equal(mt_dtype_of(x), mt_dtype_of(y));
        assert_int_equal(mt_requires_grad(x), mt_requires_grad(y));
        assert_int_equal(mt_numel(x), mt_numel(y));
        assert_true(!mt_device_has_data(device) || mtt_same_bits(x, y));
    }
}

static void a_model_made_with_adapters_equals_one_that_gets_them_later(void **state)
{
    (void)state;
    static const char *const patterns[][2] = {{NULL}, {"*.proj", "*proj"}, {"h.1.*", "*.qkv"}};
    size_t n = 0;
    for (int i = 0; i < N_MODELS; i++)
        for (mt_lora_base base = 0; base < MT_LORA_BASE_COUNT; base++)
            for (size_t k = 0; k < 3; k++) {
                if (k && models[i].kind != MT_MODEL_GPT && models[i].kind != MT_MODEL_BERT)
                    continue;
                const mt_lora_options o = {.rank = 2,
                                           .alpha = 8,
                                           .dropout = 0.1,
                                           .n_targets = k ? 2 : 0,
                                           .targets = patterns[k],
                                           .base = base};
                uint64_t seed[2], offset[2];
                mt_module *later = make(&models[i], &o, false);
                mt_rng_get(device, &seed[0], &offset[0]);
                mt_module *at_once = make(&models[i], &o, true);
                mt_rng_get(device, &seed[1], &offset[1]);
                assert_same(later, at_once);
                assert_int_equal(seed[0], seed[1]);
                assert_int_equal(offset[0], offset[1]); /* the next draws are the same, too */
                mt_module_free(later);
                mt_module_free(at_once);
                n++;
            }
    assert_int_equal(n, MT_LORA_BASE_COUNT * (3 * 3 + 4));
}

/* On meta: the peak while the model is made, minus the model's own bytes. */
static size_t bytes_above_the_model(const mt_model_config *c, const mt_lora_options *o,
                                    bool at_once)
{
    mt_device *cpu = device;
    mt_mem_stats stats;
    device = mt_device_open("meta");
    mt_module *m = make(c, o, at_once);
    mt_mem_get_stats(device, &stats);
    mt_module_free(m);
    mt_device_release(device);
    device = cpu;
    return stats.allocated.peak - stats.allocated.current;
}

/* LLaMA 3.1 8B: 16 GB in bf16, 6.1 in NF4 with embedding and head in bf16. They come last, when
 * everything else is NF4; then A is drawn of each adapter, the largest that of the MLP's last
 * product. */
static void eight_billion_parameters_are_quantised_in_the_memory_of_the_model(void **state)
{
    (void)state;
    mt_model_config c;
    mtt_ok(mt_model_preset("llama-3.1-8b", &c));
    c.dtype = MT_BF16;
    const mt_lora_options o = {.rank = 16, .base = MT_LORA_NF4};
    assert_int_equal(bytes_above_the_model(&c, &o, true), 2ll * o.rank * c.ffn);
    assert_true(bytes_above_the_model(&c, &o, false) > 9ll << 30);
}

/* On meta, as if a file had the codes: the same tensors in the end, and never more. */
static void a_model_from_codes_takes_nothing_but_itself(void **state)
{
    (void)state;
    mt_device *cpu = device;
    for (int i = 0; i < N_MODELS; i++)
        for (mt_lora_base base = MT_LORA_NF4; base < MT_LORA_BASE_COUNT; base++) {
            mt_lora_options o = {.rank = 2, .base = base, .f32_adapters = true};
            device = mt_device_open("meta");
            mt_module *made = make(&models[i], &o, true);
            o.from_codes = true;
            assert_int_equal(bytes_above_the_model(&models[i], &o, true), 0);
            mt_module *read = make(&models[i], &o, true);
            assert_same(made, read);
            mt_module_free(made), mt_module_free(read);
            mt_device_release(device);
            device = cpu;
            assert_null(mt_lora_model_new(device, &models[i], &o));
            mtt_failed(MT_ERR_UNSUPPORTED, "from_codes on", mt_device_kind(device));
        }
}

static void names_of_linears_are_the_ends_of_their_paths(void **state)
{
    (void)state;
    mti_lora_targets t;
    assert_true(mti_lora_targets_parse(&t, "q+mlp.down,lm_head"));
    assert_string_equal(t.text, "q+mlp.down,lm_head");
    const char *const patterns[] = {"*.q", "*.mlp.down", "*.lm_head"};
    assert_int_equal(t.n, 3);
    for (size_t i = 0; i < t.n; i++) assert_string_equal(t.patterns[i], patterns[i]);
    const mt_lora_options o = {.rank = 2, .n_targets = t.n, .targets = t.patterns};
    assert_true(mti_lora_wants(&o, "h.0.attn.q") && mti_lora_wants(&o, "q"));
    assert_true(mti_lora_wants(&o, "lm_head") && mti_lora_wants(&o, "h.7.mlp.down"));
    assert_false(mti_lora_wants(&o, "h.0.attn.qkv") || mti_lora_wants(&o, "down"));
    assert_true(mti_lora_check(&models[2], &o));
    assert_false(mti_lora_check(&models[0], &o));
    mtt_failed(MT_ERR_ARGUMENT, "fits none of the 12 linears");
    assert_true(mti_lora_targets_parse(&t, "all"));
    assert_true(!t.text && !t.n);
    const char *const bad[] = {"", ",", "q,", "+q", "q,,v"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_false(mti_lora_targets_parse(&t, bad[i]));
        mtt_failed(MT_ERR_ARGUMENT, "names of linears");
    }
}

/* The adapters of all stages and tensor ranks together are those of the whole model; all else is
 * frozen. */
static void ranks_adapt_the_linears_that_the_whole_model_would(void **state)
{
    (void)state;
    const char *const targets[] = {"*.attn.v", "*.down", "*.lm_head"};
    const mt_lora_options o = {.rank = 2, .n_targets = 3, .targets = targets};
    mt_model_config c = models[2];
    c.layers = 4, c.untied = true;
    mt_device *meta = mt_device_open("meta");
    for (int64_t stage = 0; stage < 2; stage++) {
        const mt_parallel h = {.tensor = 2, .pipeline = 2, .stage = stage};
        mt_module *m = mti_rank_new(meta, &c, &h, 0, &o, NULL);
        const mt_named_tensor *list;
        size_t n, n_a = 0, n_trained = 0;
        mtt_ok(mt_module_params(m, &list, &n));
        for (size_t i = 0; i < n; i++) {
            bool a = strstr(list[i].name, "lora_A") != NULL;
            bool adapter = a || strstr(list[i].name, "lora_B");
            assert_int_equal(mt_requires_grad(list[i].tensor), adapter);
            n_a += a, n_trained += adapter;
        }
        assert_int_equal(n_a, 2 * 2 + (stage == 1)); /* v and down of two layers, and the head */
        assert_int_equal(n_trained, 2 * n_a);
        mt_module_free(m);
    }
    mt_device_release(meta);
}

/* ---- a mixture's experts ---- */

static mt_tensor *run(mt_module *m, mt_tensor *x)
{
    mt_seed(device, 5);
    return mtt_made(mt_forward(m, x));
}

static void assert_near(mt_tensor *x, mt_tensor *y, double tolerance)
{
    const int64_t n = mt_numel(x);
    assert_int_equal(mt_numel(y), n);
    double *a = mtt_doubles(x), *b = mtt_doubles(y), far = 0, size = 0;
    for (int64_t i = 0; i < n; i++)
        far = fmax(far, fabs(a[i] - b[i])), size = fmax(size, fabs(b[i]));
    assert_true(size > 0 && far <= tolerance * size);
    free(a), free(b);
}

static mt_tensor *gradient(mt_module *m, mt_tensor *x, const char *path)
{
    MT_AUTO mt_tensor *y = run(m, x);
    mt_set(&y, mt_mul(y, y));
    mt_set(&y, mt_mean_all(y));
    mtt_ok(mt_module_zero_grad(m));
    mtt_ok(mt_backward(y));
    return mtt_made(mt_retain(mt_grad(weight(m, path))));
}

/* Beside an expert's product, added to its weight, merged, and from a file: the same model. NF4:
 * beside codes. */
static void experts_get_adapters_of_their_own(void **state)
{
    (void)state;
    const char *const targets[] = {"*.experts_gate_up", "*.experts_down"};
    const char *const a = "h.0.mlp.experts_gate_up.lora_A", *const b =
                                                                "h.1.mlp.experts_down.lora_B";
    const mt_lora_options grouped = {.rank = 2, .alpha = 3, .n_targets = 2, .targets = targets};
    mt_lora_options whole = grouped, nf4 = grouped;
    whole.on_weights = true, nf4.base = MT_LORA_NF4;
    int64_t ids[16];
    for (int64_t i = 0; i < 16; i++) ids[i] = i * 7 % 70;
    MT_AUTO mt_tensor *x = mtt_made(mt_from_data(device, MT_I64, MT_SHAPE(2, 8), ids, sizeof ids));
    mt_module *plain = make(&models[4], &grouped, false), *m = make(&models[4], &grouped, true),
              *sums = make(&models[4], &whole, true), *codes = make(&models[4], &nf4, true);
    assert_memory_equal(mt_shape(weight(m, a)), ((int64_t[]){3, 2, 64}), 3 * sizeof(int64_t));
    assert_memory_equal(mt_shape(weight(m, b)), ((int64_t[]){3, 64, 2}), 3 * sizeof(int64_t));
    mt_module *const all[] = {m, sums, codes};
    MT_AUTO mt_tensor *before = run(plain, x);
    for (size_t i = 0; i < 3; i++) {
        MT_AUTO mt_tensor *fresh = run(all[i], x); /* B is 0 */
        if (i < 2) assert_near(fresh, before, 1e-6);
        const mt_named_tensor *list;
        size_t n;
        mtt_ok(mt_module_params(all[i], &list, &n));
        for (size_t k = 0; k < n; k++) {
            if (!strstr(list[k].name, "lora_B")) continue;
            MT_AUTO mt_tensor *values = mtt_random(device, MT_F32, mt_rank(list[k].tensor),
                                                   mt_shape(list[k].tensor), k, -0.3, 0.3);
            mtt_ok(mt_copy(list[k].tensor, values));
        }
    }
    MT_AUTO mt_tensor *y = run(m, x), *at_weights = run(sums, x), *over_codes = run(codes, x);
    assert_near(at_weights, y, 1e-5);
    for (int i = 0; i < 2; i++) {
        MT_AUTO mt_tensor *one = gradient(m, x, i ? b : a), *other = gradient(sums, x, i ? b : a);
        assert_near(one, other, 1e-5);
        MT_AUTO mt_tensor *of_codes = gradient(codes, x, i ? b : a); /* dequantised once more */
        assert_true(mt_numel(of_codes) == mt_numel(one));
    }
    char path[MTT_PATH];
    mtt_temporary_file(path);
    mtt_ok(mt_lora_save(path, m));
    for (mt_expert_form form = 0; form < MT_EXPERTS_FORM_COUNT; form++) {
        if (form == MT_EXPERTS_TORCHTITAN_BEFORE) continue; /* other values */
        mt_model_config c = models[4];
        c.ops.expert_form = form;
        mt_module *other = make(&c, &grouped, true);
        mtt_ok(mt_lora_load(path, other));
        MT_AUTO mt_tensor *same = run(other, x), *one = gradient(other, x, b),
                          *as_grouped = gradient(m, x, b);
        assert_near(same, y, 1e-5);
        assert_near(one, as_grouped, 1e-5);
        mt_module_free(other);
    }
    mtt_ok(mt_lora_load(path, plain));
    MT_AUTO mt_tensor *loaded = run(plain, x);
    assert_true(mtt_same_bits(loaded, y));
    mt_tensor *const merged[] = {y, at_weights, over_codes};
    for (size_t i = 0; i < 3; i++) {
        mtt_ok(mt_lora_merge(all[i]));
        assert_string_equal(mt_module_kind(mt_module_find(all[i], "h.0.mlp.experts_down")),
                            "grouped_linear");
        MT_AUTO mt_tensor *after = run(all[i], x);
        assert_near(after, merged[i], 1e-5);
        mt_module_free(all[i]);
    }
    mt_module_free(plain);
}

static void every_refused_allocation_leaves_nothing(void **state)
{
    (void)state;
    mtt_ok(mt_device_set_threads(device, 1)); /* the model is too small for several threads */
    for (mt_lora_base base = 0; base < MT_LORA_BASE_COUNT; base++) {
        const char *target = "*.fc";
        const mt_lora_options o = {.rank = 2, .base = base, .n_targets = 1, .targets = &target};
        const bool mixture = base == MT_LORA_NF4;
        mt_model_config c = models[mixture ? 4 : 1];
        c.hidden = 16, c.layers = 2;
        if (mixture) target = "*.experts_down";
        bool refused = true;
        size_t before = mtt_allocated(device);
        for (uint64_t n = 1; refused; n = mtt_next_refusal(n)) {
            mti_fail_nth_alloc(n);
            mt_module *m = mt_lora_model_new(device, &c, &o);
            bool reached = mti_alloc_count() >= n;
            mti_fail_nth_alloc(0);
            refused = reached;
            if (!m) {
                assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
                assert_int_equal(mtt_allocated(device), before);
            }
            mt_clear_error();
            mt_module_free(m);
        }
    }
}

static void what_lora_add_refuses_is_refused(void **state)
{
    (void)state;
    const mt_lora_options bad[] = {
        {.rank = 0},
        {.rank = 1, .dropout = 1},
        {.rank = 1, .base = MT_LORA_BASE_COUNT},
        {.rank = 1, .n_targets = 1},
        {.rank = 1, .dropout = 0.1, .on_weights = true},
        {.rank = 1, .n_targets = 2, .targets = (const char *[]){"*.fc", "*.nothing"}},
        {.rank = 1, .n_targets = 1, .targets = (const char *[]){NULL}},
    };
    size_t before = mtt_allocated(device);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(mt_lora_model_new(device, &models[0], &bad[i]));
        mtt_failed(MT_ERR_ARGUMENT, "lora_add");
    }
    assert_null(mt_lora_model_new(device, &models[0], &bad[5]));
    mtt_failed(MT_ERR_ARGUMENT,
               "\"*.nothing\" fits none of the 12 linears (\"h.0.attn.qkv\", ...)");
    assert_null(mt_lora_model_new(device, &models[0], NULL));
    mtt_failed(MT_ERR_ARGUMENT, "options are NULL");
    assert_null(
        mt_lora_model_new(device, &(mt_model_config){.hidden = -1}, &(mt_lora_options){.rank = 1}));
    mtt_failed(MT_ERR_ARGUMENT, "hidden");
    assert_int_equal(mtt_allocated(device), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        mtt_test(a_model_made_with_adapters_equals_one_that_gets_them_later),
        mtt_test(eight_billion_parameters_are_quantised_in_the_memory_of_the_model),
        mtt_test(a_model_from_codes_takes_nothing_but_itself),
        mtt_test(names_of_linears_are_the_ends_of_their_paths),
        mtt_test(ranks_adapt_the_linears_that_the_whole_model_would),
        mtt_test(experts_get_adapters_of_their_own),
        mtt_test(every_refused_allocation_leaves_nothing),
        mtt_test(what_lora_add_refuses_is_refused),
    };
    return cmocka_run_group_tests(tests, mtt_open_device, mtt_close_device);
}
