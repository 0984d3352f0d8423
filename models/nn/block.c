/* block.c: attention and MLP around a residual stream: [b,s,d] -> [b,s,d]. */
#include "nn/model.h"
#include "memtape/ops.h"

/* out(f(in(x))), `in` and `out` norms or NULL */
static mt_tensor *branch(mt_module *self, const char *in, const char *f, const char *out,
                         mt_tensor *x)
{
    mt_tensor *h = in ? mt_forward_child(self, in, x) : mt_retain(x);
    const mt_checkpoint_options *norm =
        h && in ? mti_module_checkpoint(mt_module_child(self, in), NULL) : NULL;
    mt_set(&h, mt_forward_child(self, f, h));
    if (norm && norm->discard_outputs) mt_pop_saved_hooks();
    if (out) mt_set(&h, mt_forward_child(self, out, h));
    return h;
}

/* x + branch(x); x is taken over, so that only the tape and the sum hold it */
static mt_tensor *add_branch(mt_module *self, const char *in, const char *f, const char *out,
                             mt_tensor *x)
{
    mt_tensor *h = branch(self, in, f, out, x);
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
    return add_branch(self, "ln_2", "mlp", NULL,
                      add_branch(self, "ln_1", "attn", NULL, mt_retain(x)));
}

static mt_tensor *post_block_forward(mt_module *self, mt_tensor *x)
{
    return post_norm(self, "ln_2", "mlp", post_norm(self, "ln_1", "attn", mt_retain(x)));
}

static mt_tensor *after_block_forward(mt_module *self, mt_tensor *x)
{
    return add_branch(self, NULL, "mlp", "ln_2",
                      add_branch(self, NULL, "attn", "ln_1", mt_retain(x)));
}

static mt_tensor *around_block_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *h = add_branch(self, "ln_1", "attn", "ln_1_out", mt_retain(x));
    return add_branch(self, "ln_2", "mlp", "ln_2_out", h);
}

/* The branches are summed first. */
static mt_tensor *parallel_block_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *a = branch(self, "ln_1", "attn", NULL, x);
    mt_tensor *h = a ? branch(self, "ln_2", "mlp", NULL, x) : NULL;
    mt_set(&h, mt_add(h, a));
    mt_release(a);
    mt_set(&h, mt_add(h, x));
    return h;
}

bool mti_norms_before(const mt_module *m)
{
    return mti_module_runs(m, pre_block_forward) || mti_module_runs(m, around_block_forward) ||
           mti_module_runs(m, parallel_block_forward);
}

mt_module *mt_block_new(mt_device *device, const mt_model_config *config)
{
    mt_model_config c;
    if (!mti_config_resolve(config, MT_MODEL_BLOCK, &c)) return NULL;
    static mt_forward_fn *const forwards[MT_NORM_PLACE_COUNT] = {
        [MT_NORM_PRE] = pre_block_forward,
        [MT_NORM_POST] = post_block_forward,
        [MT_NORM_AFTER] = after_block_forward,
        [MT_NORM_AROUND] = around_block_forward,
        [MT_NORM_PARALLEL] = parallel_block_forward};
    bool around = c.norm == MT_NORM_AROUND;
    mt_module *m = mt_module_new("block", forwards[c.norm], NULL, NULL);
    return mti_module_complete(m,
                               m && mti_add_norm(m, "ln_1", device, &c) &&
                                   mt_module_add_child(m, "attn", mt_attention_new(device, &c)) &&
                                   (!around || mti_add_norm(m, "ln_1_out", device, &c)) &&
                                   mti_add_norm(m, "ln_2", device, &c) &&
                                   mt_module_add_child(m, "mlp", mt_mlp_new(device, &c)) &&
                                   (!around || mti_add_norm(m, "ln_2_out", device, &c)));
}
