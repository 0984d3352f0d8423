/* Serving: the bytes of weights and cache are those of their formulas, the parts sum to the peak,
 * and the most sequences are those that trying every number finds. */
#include <string.h>
#include "fit/serve.h"
#include "mtt.h"

#define SMALL .hidden = 64, .heads = 4, .layers = 2, .vocab = 96, .context = 64

static const mt_model_config models[] = {
    {SMALL, .kind = MT_MODEL_GPT, .dtype = MT_F32},
    {SMALL, .kind = MT_MODEL_LLAMA, .kv_heads = 2, .dtype = MT_BF16},
    {SMALL, .kind = MT_MODEL_LLAMA, .window = 9, .local_period = 2, .dtype = MT_BF16},
    {SMALL, .kind = MT_MODEL_LLAMA, .tied = true, .attention = MT_ATTENTION_MATH, .dtype = MT_F16},
};
static const mt_quant formats[] = {{.format = MT_QUANT_INT8},
                                   {.format = MT_QUANT_NF4},
                                   {.format = MT_QUANT_NF4, .double_scales = true}};
#define N(array) (sizeof(array) / sizeof *(array))
enum { FORMS = 1 + N(formats) };

static const mt_quant *form_of(size_t i) { return i ? &formats[i - 1] : NULL; }

/* Whether the tensor is the weight of a layer's linear. */
static bool is_quantised(const mt_named_tensor *p)
{
    return !strncmp(p->name, "h.", 2) && mt_rank(p->tensor) == 2;
}

/* Bytes of all parameters, by formula. */
static size_t weights_of(const mt_model_config *c, const mt_quant *format)
{
    const mt_named_tensor *list;
    size_t n, total = 0;
    mt_device *meta = mt_device_open("meta");
    mt_module *m = mt_model_new(meta, c);
    mtt_ok(mt_module_params(m, &list, &n));
    for (size_t i = 0; i < n; i++)
        total += format && is_quantised(&list[i])
                     ? mt_quantized_bytes(format, mt_numel(list[i].tensor))
                     : (size_t)mt_numel(list[i].tensor) * mt_dtype_size(c->dtype);
    mt_module_free(m);
    mt_device_release(meta);
    return total;
}

static void bytes_are_those_of_the_formulas(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m++)
        for (size_t f = 0; f < FORMS; f++)
            for (int c = 0; c < MT_KV_FORM_COUNT; c++) {
                mt_serve_need need;
                const mt_serve_options options = {.config = &models[m],
                                                  .weights = form_of(f),
                                                  .cache = (mt_kv_form)c,
                                                  .positions = 37,
                                                  .at_once = 30};
                mtt_ok(mt_serve_measure(&options, 3, 0, &need));
                assert_int_equal(need.weights, weights_of(&models[m], form_of(f)));
                assert_int_equal(need.cache, mt_kv_bytes(&models[m], (mt_kv_form)c, 3, 37));
                assert_int_equal(need.forwards, 4); /* of 36 positions, 10 of each at once */
                assert_int_equal(need.sequences, 3);
                assert_int_equal(need.positions, 37);
                size_t sum = 0;
                for (int k = 0; k < MT_CATEGORY_COUNT; k++) sum += need.by_category[k];
                assert_int_equal(sum, need.peak);
                assert_true(need.peak >= need.weights + need.cache);
                assert_true(need.reserved >= need.peak);
            }
}

static bool fits(const mt_serve_options *options, int64_t n, size_t capacity, mt_serve_need *need)
{
    if (mt_serve_measure(options, n, capacity, need) == MT_OK) return true;
    assert_int_equal(mt_last_status(), MT_ERR_MEMORY);
    mt_clear_error();
    return false;
}

static void so_many_fit_and_one_more_does_not(void **state)
{
    (void)state;
    for (size_t m = 0; m < N(models); m++)
        for (size_t f = 0; f < FORMS; f += 2)
            for (int c = 0; c < MT_KV_FORM_COUNT; c++) {
                const mt_serve_options options = {
                    .config = &models[m], .weights = form_of(f), .cache = (mt_kv_form)c};
                const size_t capacities[] = {(size_t)2 << 20, (size_t)4 << 20, (size_t)9 << 20};
                for (size_t i = 0; i < N(capacities); i++) {
                    mt_serve_need most, again;
                    mtt_ok(mt_serve_most(&options, capacities[i], &most));
                    int64_t n = most.sequences;
                    assert_int_equal(most.positions, 64); /* the context */
                    assert_false(fits(&options, n + 1, capacities[i], &again));
                    if (!n) continue;
                    assert_true(most.reserved <= capacities[i]);
                    assert_true(fits(&options, n, capacities[i], &again));
                    again.none_above = most.none_above;
                    assert_memory_equal(&most, &again, sizeof most);
                }
            }
}

static void count_done(void *user, size_t n_done, size_t i)
{
    size_t *seen = user;
    assert_int_equal(n_done, ++*seen);
    assert_in_range(i, 0, MT_KV_FORM_COUNT - 1);
}

static void many_at_once_are_what_each_is_alone(void **state)
{
    (void)state;
    const size_t capacity = (size_t)4 << 20;
    for (size_t f = 0; f < FORMS; f++) {
        mt_serve_options options[MT_KV_FORM_COUNT];
        mt_serve_need alone, many[MT_KV_FORM_COUNT];
        size_t seen = 0;
        const size_t n = f % 2 ? MT_KV_PAGED : MT_KV_FORM_COUNT; /* a paged cache has one thread */
        for (size_t c = 0; c < MT_KV_FORM_COUNT; c++)
            options[c] = (mt_serve_options){
                .config = &models[0], .weights = form_of(f), .cache = (mt_kv_form)c};
        assert_true(mti_serve_most_of_many(options, n, capacity, many, count_done, &seen));
        assert_int_equal(seen, n);
        for (size_t c = 0; c < n; c++) {
            mtt_ok(mt_serve_most(&options[c], capacity, &alone));
            assert_memory_equal(&many[c], &alone, sizeof alone);
        }
        options[n - 1].positions = -1;
        assert_false(mti_serve_most_of_many(options, n, capacity, many, NULL, NULL));
        assert_non_null(strstr(mt_last_error(), "-1 positions"));
        mt_clear_error();
    }
}

/* Tries every number far beyond the one above which none shall fit. */
static int64_t find_largest(const mt_serve_options *o, size_t capacity, int64_t ceiling)
{
    mt_serve_need need;
    int64_t largest = 0;
    for (int64_t n = 1; n < ceiling * 3 / 2 + 20; n++)
        if (fits(o, n, capacity, &need)) largest = n;
    return largest;
}

static void the_exact_number_is_the_largest_and_others_say_up_to_where_they_looked(void **state)
{
    (void)state;
    int n_less = 0, n_closed = 0;
    for (size_t m = 0; m < N(models); m += 2)
        for (int c = 0; c < MT_KV_FORM_COUNT; c++)
            for (int64_t at_once = 50; at_once <= 800; at_once *= 4) {
                const size_t capacity = (size_t)3 << 20;
                mt_serve_options options = {.config = &models[m],
                                            .weights = form_of((size_t)c),
                                            .cache = (mt_kv_form)c,
                                            .positions = 20,
                                            .at_once = at_once};
                mt_serve_need found, exact;
                mtt_ok(mt_serve_most(&options, capacity, &found));
                options.exact = true;
                mtt_ok(mt_serve_most(&options, capacity, &exact));
                int64_t largest = find_largest(&options, capacity, found.none_above);
                assert_int_equal(exact.sequences, largest);
                assert_int_equal(exact.none_above, largest);
                assert_in_range(largest, found.sequences, found.none_above);
                n_less += found.sequences < largest;
                n_closed += found.sequences == found.none_above;
            }
    assert_true(n_less > 0 && n_closed > 0);
}

/* What a run of all layers takes; serve leaves out those that would repeat what others took. */
static mt_serve_need of_all_layers(const mt_serve_options *o, int64_t sequences)
{
    mt_mem_stats stats;
    mt_device *meta = mt_device_open("meta");
    mt_module *m = o->weights ? mt_model_new_quantized(meta, o->config, o->weights)
                              : mt_model_new(meta, o->config);
    mt_kv_cache *cache = mt_kv_cache_new(m, o->cache, sequences, o->positions);
    mt_module_set_training(m, false);
    const int64_t prompt = o->positions - 1, share = o->at_once / sequences;
    for (int64_t done = 0, n; done < o->positions; done += n) {
        n = done >= prompt ? 1 : prompt - done < share ? prompt - done : share;
        mt_tensor *tokens = mt_zeros(meta, MT_I64, MT_SHAPE(sequences, n));
        mt_release(mt_next_logits(m, cache, tokens)), mt_release(tokens);
    }
    mt_mem_get_stats(meta, &stats);
    mt_serve_need need = {.cache = mt_kv_cache_bytes(cache, NULL),
                          .peak = (size_t)stats.allocated.peak,
                          .reserved = (size_t)stats.reserved.peak};
    memcpy(need.by_category, stats.at_peak, sizeof need.by_category);
    mt_kv_cache_free(cache);
    mt_module_free(m);
    mt_device_release(meta);
    return need;
}

#define DEEP .hidden = 64, .heads = 4, .layers = 13, .vocab = 96, .context = 64, .dtype = MT_BF16

static void layers_that_repeat_others_change_nothing(void **state)
{
    static const mt_model_config deep[] = {
        {DEEP, .kind = MT_MODEL_GPT, .attention = MT_ATTENTION_MATH},
        {DEEP, .kind = MT_MODEL_LLAMA, .window = 8, .local_period = 3,
         .attention = MT_ATTENTION_MATH},
        {DEEP, .kind = MT_MODEL_LLAMA, .experts = 4, .experts_per_token = 2, .dense_layers = 2}};
    (void)state;
    for (size_t m = 0; m < N(deep); m++)
        for (size_t f = 0; f < FORMS; f += 2)
            for (int c = 0; c < MT_KV_FORM_COUNT; c++)
                for (int64_t at_once = 6; at_once < 300; at_once *= 7) {
                    mt_serve_need need;
                    const mt_serve_options options = {.config = &deep[m],
                                                      .weights = form_of(f),
                                                      .cache = (mt_kv_form)c,
                                                      .positions = 61,
                                                      .at_once = at_once};
                    const mt_serve_need all = of_all_layers(&options, 3);
                    mtt_ok(mt_serve_measure(&options, 3, 0, &need));
                    assert_int_equal(need.cache, all.cache);
                    assert_int_equal(need.peak, all.peak);
                    assert_int_equal(need.reserved, all.reserved);
                    assert_memory_equal(need.by_category, all.by_category, sizeof all.by_category);
                }
}

static void too_small_a_capacity_says_what_one_needs(void **state)
{
    (void)state;
    mt_serve_need most, one;
    const mt_serve_options options = {.config = &models[0]};
    mtt_ok(mt_serve_most(&options, 1000, &most));
    assert_int_equal(most.sequences, 0);
    mtt_ok(mt_serve_measure(&options, 1, 0, &one));
    assert_int_equal(most.peak, one.peak);
    assert_int_equal(most.cache, one.cache);
}

static void expect(mt_status status, const char *text)
{
    assert_int_equal(status, MT_ERR_ARGUMENT);
    if (!strstr(mt_last_error(), text)) fail_msg("\"%s\" in: %s", text, mt_last_error());
    mt_clear_error();
}

static void bad_options_are_refused(void **state)
{
    (void)state;
    mt_serve_need need;
    const mt_model_config *gpt = &models[0];
    mt_model_config bert = models[0];
    bert.kind = MT_MODEL_BERT;
    const mt_quant odd = {.format = MT_QUANT_NF4, .block = 7};
    expect(mt_serve_measure(&(mt_serve_options){.config = &bert}, 1, 0, &need), "left to right");
    expect(mt_serve_measure(&(mt_serve_options){.config = gpt}, 0, 0, &need), "0 sequences");
    expect(mt_serve_measure(&(mt_serve_options){.config = gpt, .positions = 65}, 1, 0, &need),
           "64");
    expect(mt_serve_measure(&(mt_serve_options){.config = gpt, .at_once = -1}, 1, 0, &need), "-1");
    expect(mt_serve_measure(&(mt_serve_options){.config = gpt, .weights = &odd}, 1, 0, &need), "7");
    expect(mt_serve_most(&(mt_serve_options){.config = gpt}, 0, &need), "capacity");
    expect(mt_serve_most(NULL, 1, &need), "options");
    expect(mt_serve_most(&(mt_serve_options){0}, 1, &need), "config");
    expect(mt_serve_most(&(mt_serve_options){.config = gpt}, 1, NULL), "result");
    expect(
        mt_serve_measure(&(mt_serve_options){.config = gpt, .cache = (mt_kv_form)9}, 1, 0, &need),
        "form 9");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_the_formulas),
        cmocka_unit_test(so_many_fit_and_one_more_does_not),
        cmocka_unit_test(the_exact_number_is_the_largest_and_others_say_up_to_where_they_looked),
        cmocka_unit_test(many_at_once_are_what_each_is_alone),
        cmocka_unit_test(layers_that_repeat_others_change_nothing),
        cmocka_unit_test(too_small_a_capacity_says_what_one_needs),
        cmocka_unit_test(bad_options_are_refused),
    };
    return cmocka_run_group_tests_name("serving", tests, NULL, NULL);
}
