/* Presets have the published numbers of parameters. */
#include "mtt.h"

static void presets_have_the_published_numbers_of_parameters(void **state)
{
    (void)state;
    static const struct {
        const char *preset;
        uint64_t n;
    } cases[] = {{"gpt2", 124439808},
                 {"gpt2-medium", 354823168},
                 {"gpt2-large", 774030080},
                 {"gpt2-xl", 1557611200},
                 {"gpt3-175b", 174604259328},
                 {"llama-7b", 6738415616},
                 {"llama-13b", 13015864320},
                 {"llama-33b", 32528943616},
                 {"llama-65b", 65285660672},
                 {"llama-3.1-8b", 8030261248},
                 {"llama-3.1-70b", 70553706496},
                 {"bert-base", 109514298},
                 {"bert-large", 335174458},
                 {"smollm2-135m", 134515008},
                 {"smollm2-360m", 361821120},
                 {"smollm2-1.7b", 1711376384},
                 {"codellama-7b", 6738546688},
                 {"codellama-34b", 33743970304},
                 {"llama-3.1-405b", 405853388800},
                 {"mistral-nemo-12b", 12247782400},
                 {"qwen3-coder-480b-a35b", 480154875392},
                 {"phi-3.5-mini", 3821079552},
                 {"phi-4-mini", 3836021760}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        mt_model_config c;
        uint64_t n;
        mtt_ok(mt_model_preset(cases[i].preset, &c));
        mtt_ok(mt_model_config_params(&c, &n));
        if (n != cases[i].n)
            fail_msg("%s: %llu parameters, not %llu", cases[i].preset, (unsigned long long)n,
                     (unsigned long long)cases[i].n);
    }
}

/* BertModel of Hugging Face has 109,482,240 parameters with its pooler, which has the size of the
 * head's dense layer, and 108,891,648 without it. */
static void bert_base_has_the_parameters_of_bert_model(void **state)
{
    (void)state;
    mt_model_config c;
    uint64_t n, d = 768, v = 30522, dense = d * d + d;
    mtt_ok(mt_model_preset("bert-base", &c));
    mtt_ok(mt_model_config_params(&c, &n));
    assert_int_equal(n - (dense + 2 * d + v), 108891648);
    c.pooled = true;
    mtt_ok(mt_model_config_params(&c, &n));
    assert_int_equal(n, 109482240);
}

/* LLaMA-1, written out: 2 v d + L (4 d^2 + 3 d f + 2 d) + d. */
static void llamas_follow_their_layer_formula(void **state)
{
    (void)state;
    static const uint64_t sizes[][3] = {/* L, d, f */
                                        {32, 4096, 11008},
                                        {40, 5120, 13824},
                                        {60, 6656, 17920},
                                        {80, 8192, 22016}};
    static const char *const names[] = {"llama-7b", "llama-13b", "llama-33b", "llama-65b"};
    for (size_t i = 0; i < 4; i++) {
        mt_model_config c, r;
        uint64_t n, l = sizes[i][0], d = sizes[i][1], f = sizes[i][2];
        mtt_ok(mt_model_preset(names[i], &c));
        mtt_ok(mt_model_config_resolve(&c, &r));
        assert_int_equal(r.ffn, f);
        assert_int_equal(r.head_dim, 128);
        mtt_ok(mt_model_config_params(&c, &n));
        assert_int_equal(n, 2 * 32000 * d + l * (4 * d * d + 3 * d * f + 2 * d) + d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presets_have_the_published_numbers_of_parameters),
        cmocka_unit_test(bert_base_has_the_parameters_of_bert_model),
        cmocka_unit_test(llamas_follow_their_layer_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
