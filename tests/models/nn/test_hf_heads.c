/* Hugging Face's config.json: which head a model has, by its architecture and its tied weights. */
#include <stdio.h>
#include <string.h>
#include "mtt.h"

static char notes[MT_HF_NOTES];

static const char *const families[][2] = {{"gpt2", "GPT2LMHeadModel"},
                                          {"opt", "OPTForCausalLM"},
                                          {"llama", "LlamaForCausalLM"},
                                          {"mistral", "MistralForCausalLM"},
                                          {"qwen2", "Qwen2ForCausalLM"},
                                          {"qwen3", "Qwen3ForCausalLM"},
                                          {"olmo2", "Olmo2ForCausalLM"},
                                          {"olmo3", "Olmo3ForCausalLM"},
                                          {"phi3", "Phi3ForCausalLM"},
                                          {"gemma", "GemmaForCausalLM"},
                                          {"gemma2", "Gemma2ForCausalLM"},
                                          {"gemma3_text", "Gemma3ForCausalLM"},
                                          {"bert", "BertForMaskedLM"},
                                          {"roberta", "RobertaForMaskedLM"},
                                          {"xlm-roberta", "XLMRobertaForMaskedLM"}};
enum { FAMILIES = sizeof families / sizeof *families, FIRST_MASKED = 12 };

/* Reads a small model of family i, with `keys` besides; type false: without "model_type". */
static mt_status read_small(int i, bool type, const char *keys, mt_model_config *c)
{
    char text[1024], model_type[64];
    const bool gpt2 = i == 0, masked = i >= FIRST_MASKED;
    snprintf(model_type, sizeof model_type, "\"model_type\":\"%s\",", families[i][0]);
    snprintf(text, sizeof text, "{%s%s%s,\"vocab_size\":9,\"pad_token_id\":0}",
             type ? model_type : "", keys,
             gpt2     ? ",\"n_embd\":8,\"n_layer\":1,\"n_head\":2,\"n_positions\":4"
             : masked ? ",\"hidden_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
                        "\"intermediate_size\":8,\"max_position_embeddings\":8"
             : i == 1 ? ",\"hidden_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
                        "\"ffn_dim\":8,\"max_position_embeddings\":8"
                      : ",\"hidden_size\":8,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
                        "\"num_key_value_heads\":2,\"head_dim\":4,\"intermediate_size\":8,"
                        "\"max_position_embeddings\":8");
    return mt_model_config_from_hf(text, c, notes, sizeof notes);
}

/* "BertModel" of "BertForMaskedLM" */
static bool is_body(const char *name, const char *class)
{
    const size_t n = (size_t)(strstr(class, "For") - class);
    return !strncmp(name, class, n) && !strcmp(name + n, "Model");
}

static void an_architecture_with_another_head_or_none_is_refused_by_name(void **state)
{
    (void)state;
    static const char *const ends[] = {"Model",
                                       "TextModel",
                                       "ForCausalLM",
                                       "ForMaskedLM",
                                       "LMHeadModel",
                                       "ForPreTraining",
                                       "Layer",
                                       "RewardModel",
                                       "ForTokenClassification",
                                       "PreTrainedModel",
                                       "",
                                       "DoubleHeadsModel",
                                       "ForSequenceClassification",
                                       "ForConditionalGeneration",
                                       "ForRewardModel",
                                       "ForCausalLMEagle3"};
    mt_model_config c;
    char keys[256], name[64];
    for (int i = 0; i < FAMILIES; i++)
        for (size_t j = 0; j < FAMILIES * (sizeof ends / sizeof *ends); j++) {
            const char *class = families[j % FAMILIES][1], *end = ends[j / FAMILIES];
            int begins = (int)(strstr(class, strcmp(class, families[0][1]) ? "For" : "LM") - class);
            snprintf(name, sizeof name, "%.*s%s", begins, class, end);
            snprintf(keys, sizeof keys, "\"architectures\":[\"%s\"]", name);
            const bool pooled = i >= FIRST_MASKED && is_body(name, families[i][1]);
            bool taken = read_small(i, true, keys, &c) == MT_OK;
            if (taken != (pooled || !strcmp(name, families[i][1])))
                fail_msg("%s: %s was %s", families[i][0], name, taken ? "taken" : mt_last_error());
            if (!taken) mtt_failed(MT_ERR_UNSUPPORTED, name, families[i][1]);
            if (taken) assert_int_equal(c.pooled, pooled);
        }
}

static void an_architecture_is_recognised_by_its_class_alone(void **state)
{
    (void)state;
    mt_model_config c, named;
    char keys[256];
    for (int i = 0; i < FAMILIES; i++) {
        snprintf(keys, sizeof keys, "\"architectures\":[\"%s\"]", families[i][1]);
        mtt_ok(read_small(i, true, keys, &named));
        mtt_ok(read_small(i, false, keys, &c));
        char text[2][MT_MODEL_CONFIG_TEXT];
        mtt_ok(mt_model_config_to_json(&c, text[0], sizeof *text));
        mtt_ok(mt_model_config_to_json(&named, text[1], sizeof *text));
        assert_string_equal(text[0], text[1]);
        mtt_ok(read_small(i, true, "\"architectures\":null", &c));
        assert_false(c.pooled);
    }
    assert_int_not_equal(read_small(0, false, "\"architectures\":[\"GPT2Model\"]", &c), MT_OK);
    mtt_failed(MT_ERR_UNSUPPORTED, "\"GPT2Model\"", "GPT2LMHeadModel");
    assert_int_not_equal(read_small(1, true, "\"architectures\":[\"LlamaForCausalLM\",7]", &c),
                         MT_OK);
    mtt_failed(MT_ERR_FORMAT, "\"architectures\"", "7");
}

static void a_head_is_tied_or_not_as_the_file_says(void **state)
{
    (void)state;
    mt_device *meta = mt_device_open("meta");
    for (int i = 0; i < FAMILIES; i++) {
        uint64_t n[2];
        mt_model_config c;
        for (int tied = 0; tied < 2; tied++) {
            mt_status status = read_small(
                i, true, tied ? "\"tie_word_embeddings\":true" : "\"tie_word_embeddings\":false",
                &c);
            if (i >= FIRST_MASKED && !tied) {
                assert_int_equal(status, MT_ERR_FORMAT);
                mtt_failed(MT_ERR_FORMAT, "\"tie_word_embeddings\" is false");
                break;
            }
            mtt_ok(status);
            mt_module *m = mt_model_new(meta, &c);
            assert_non_null(m);
            mtt_ok(mt_module_size(m, &n[tied], NULL));
            mt_module_free(m);
        }
        if (i < FIRST_MASKED) assert_int_equal(n[0] - n[1], 8 * 9);
    }
    mt_device_release(meta);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_architecture_with_another_head_or_none_is_refused_by_name),
        cmocka_unit_test(an_architecture_is_recognised_by_its_class_alone),
        cmocka_unit_test(a_head_is_tied_or_not_as_the_file_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
