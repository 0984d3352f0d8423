/* block.c: attention and MLP around a residual stream: [b,s,d] -> [b,s,d]. */
#include "nn/model.h"
#include "memtape/ops.h"

/* x + f(norm(x)); x is taken over, so that only the tape and the sum hold it */
static mt_tensor *pre_norm(mt_module *self, const char *norm, const char *f, mt_tensor *x)
{
    mt_tensor *h = mt_forward_child(self, norm, x);
    mt_set(&h, mt_forward_child(self, f, h));
    mt_set(&h, mt_add(x, h));
    mt_release(x);
    return h;
}

/* norm(x + f(x)); x is taken over */
static mt_tensor *post_norm(mt_module *self, const char *norm, const char *f, mt_tensor *x)
{
    mt_tensor *h = mt_forward_child(self, f, x);
    mt_set(&h, mt_add(x, h));
    mt_release(x);
    mt_set(&h, mt_forward_child(self, norm, h));
    return h;
}

static mt_tensor *pre_block_forward(mt_module *self, mt_tensor *x)
{
    return pre_norm(self, "ln_2", "mlp", pre_norm(self, "ln_1", "attn", mt_retain(x)));
}

static mt_tensor *post_block_forward(mt_module *self, mt_tensor *x)
{
    return post_norm(self, "ln_2", "mlp", post_norm(self, "ln_1", "attn", mt_retain(x)));
}

mt_module *mt_block_new(mt_device *device, const mt_model_config *config)
{
    mt_model_config c;
    if (!mti_config_resolve(config, MT_MODEL_BLOCK, &c)) return NULL;
    mt_module *m = mt_module_new(
        "block", c.norm == MT_NORM_PRE ? pre_block_forward : post_block_forward, NULL, NULL);
    return mti_module_complete(m,
                               m && mti_add_norm(m, "ln_1", device, &c) &&
                                   mt_module_add_child(m, "attn", mt_attention_new(device, &c)) &&
                                   mti_add_norm(m, "ln_2", device, &c) &&
                                   mt_module_add_child(m, "mlp", mt_mlp_new(device, &c)));
}
