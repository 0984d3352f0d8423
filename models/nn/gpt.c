/* gpt.c: i64 tokens [b,s] -> logits [b,s,v], with learned positions (Radford et al. 2019), or
 * rotary ones (Black et al. 2022). */
#include "nn/model.h"
#include "memtape/ops.h"

static mt_tensor *gpt_forward(mt_module *self, mt_tensor *tokens)
{
    const mti_model *model = mt_module_user(self);
    if (!mti_check_tokens("gpt", tokens) || !mti_check_context("gpt", &model->config, tokens))
        return NULL;
    mt_tensor *h = mti_embed(self, tokens, 0);
    return mti_logits(self, mti_run_turned(self, h, 0, model->config.layers));
}

mt_module *mti_gpt_make(mt_device *device, const mt_model_config *config,
                        const mti_each_layer *each)
{
    mt_model_config c;
    if (!mti_config_resolve(config, MT_MODEL_GPT, &c)) return NULL;
    mt_module *m = mti_model_new("gpt", gpt_forward, &c);
    return mti_module_complete(
        m, m && mti_add_tokens(m, device, &c) &&
               (!mti_learns_positions(&c) ||
                mt_module_add_child(m, "wpe", mti_positions_new(device, &c))) &&
               mti_add_embedding_dropout(m, &c) && mti_add_layers(m, device, &c, each) &&
               (c.norm == MT_NORM_POST || mti_add_norm(m, "ln_f", device, &c)) &&
               (!c.untied || mt_module_add_child(m, "lm_head",
                                                 mt_linear_new(device, c.dtype, c.hidden, c.vocab,
                                                               false, MTI_INIT_STD))) &&
               mti_add_mtp(m, device, &c, each));
}
