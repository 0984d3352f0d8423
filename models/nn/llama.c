/* llama.c: i64 tokens [b,s] -> logits [b,s,v], with rotary positions (Touvron et al. 2023). */
#include "nn/model.h"
#include "memtape/ops.h"

static mt_tensor *llama_forward(mt_module *self, mt_tensor *tokens)
{
    const mti_model *model = mt_module_user(self);
    if (!mti_check_tokens("llama", tokens) || !mti_check_context("llama", &model->config, tokens))
        return NULL;
    mt_tensor *h = mti_embed(self, tokens, 0);
    return mti_logits(self, mti_run_turned(self, h, 0, model->config.layers));
}

mt_module *mti_llama_make(mt_device *device, const mt_model_config *config,
                          const mti_each_layer *each)
{
    mt_model_config c;
    if (!mti_config_resolve(config, MT_MODEL_LLAMA, &c)) return NULL;
    mt_module *m = mti_model_new("llama", llama_forward, &c);
    return mti_module_complete(
        m, m && mti_add_tokens(m, device, &c) && mti_add_embedding_dropout(m, &c) &&
               mti_add_layers(m, device, &c, each) && mti_add_norm(m, "ln_f", device, &c) &&
               (c.tied || mt_module_add_child(m, "lm_head",
                                              mt_linear_new(device, c.dtype, c.hidden, c.vocab,
                                                            !c.no_bias, MTI_INIT_STD))) &&
               mti_add_mtp(m, device, &c, each));
}
