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
                 {"phi-4-mini", 3836021760},
                 {"distilgpt2", 81912576},
                 {"bert-base-cased", 108340804},
                 {"bert-large-cased", 333610308},
                 {"bert-base-multilingual-cased", 177974523},
                 {"bert-base-chinese", 102290312},
                 {"roberta-base", 124697433},
                 {"roberta-large", 355412057},
                 {"distilroberta-base", 82170201},
                 {"xlm-roberta-base", 278295186},
                 {"xlm-roberta-large", 560142482},
                 {"codellama-70b", 68976910336},
                 {"codestral-22b", 22247282688},
                 {"mistral-large-123b", 122610069504},
                 {"ministral-8b", 8019808256},
                 {"mixtral-8x22b", 140630071296},
                 {"deepseek-v2", 235741434880},
                 {"olmo-2-1b", 1484916736},
                 {"olmo-2-7b", 7298617344},
                 {"olmo-2-13b", 13716198400},
                 {"olmo-2-32b", 32234279936},
                 {"olmo-3-32b", 32233522176},
                 {"yi-6b", 6061035520},
                 {"yi-9b", 8829407232},
                 {"yi-34b", 34388917248},
                 {"falcon3-1b", 1669408768},
                 {"falcon3-3b", 3227655168},
                 {"falcon3-7b", 7455550464},
                 {"falcon3-10b", 10305653760},
                 {"deepseek-coder-1.3b", 1346471936},
                 {"deepseek-coder-6.7b", 6740512768},
                 {"deepseek-coder-33b", 33342991360},
                 {"deepseek-llm-7b", 6910365696},
                 {"deepseek-llm-67b", 67425001472},
                 {"open-llama-3b", 3426473600},
                 {"solar-10.7b", 10731524096},
                 {"gemma-3-270m", 268098176},
                 {"opt-125m", 125239296},
                 {"opt-66b", 65719701504}};
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
