/* kinds.c: a model of any kind. */
#include "nn/model.h"

static mt_module *linear_new(mt_device *device, const mt_model_config *config)
{
    mt_model_config c;
    return mti_config_resolve(config, MT_MODEL_LINEAR, &c)
               ? mti_linear_new(device, &c, c.hidden, c.ffn, MTI_INIT_STD)
               : NULL;
}

mt_module *mti_model_make(mt_device *device, const mt_model_config *config,
                          const mti_each_layer *each)
{
    if (mt_model_config_check(config) != MT_OK) return NULL;
    switch (config->kind) {
    case MT_MODEL_GPT: return mti_gpt_make(device, config, each);
    case MT_MODEL_BLOCK: return mt_block_new(device, config);
    case MT_MODEL_ATTENTION: return mt_attention_new(device, config);
    case MT_MODEL_MLP: return mt_mlp_new(device, config);
    case MT_MODEL_BERT: return mti_bert_make(device, config, each);
    case MT_MODEL_LLAMA: return mti_llama_make(device, config, each);
    case MT_MODEL_LINEAR: return linear_new(device, config);
    case MT_MODEL_KIND_COUNT: break;
    }
    return NULL;
}

mt_module *mt_model_new(mt_device *device, const mt_model_config *config)
{
    return mti_model_make(device, config, NULL);
}
