/* bert.c: a masked language model: i64 tokens [b,s] -> logits [b,s,v], or, pooled, -> [b,d] (Devlin
 * et al. 2018). */
#include "nn/model.h"
#include "base/philox.h"
#include "memtape/ops.h"

/* ---- embeddings: token + position + type ---- */

/* tokens [b,s] or [2,b,s] -> *ids [b,s] and *types [b,s], NULL if all types are 0; the caller
 * releases both. */
static bool take_input(mt_tensor *tokens, mt_tensor **ids, mt_tensor **types)
{
    *ids = *types = NULL;
    if (mt_dtype_of(tokens) == MT_I64 && mt_rank(tokens) == 2)
        return (*ids = mt_retain(tokens)) != NULL;
    if (mt_dtype_of(tokens) != MT_I64 || mt_rank(tokens) != 3 || mt_shape(tokens)[0] != 2) {
        char text[MTI_SHAPE_TEXT];
        return mti_fail_bool(
            MT_ERR_ARGUMENT,
            "bert: the tokens are %s %s; need i64 [b,s], or [2,b,s]: tokens, then their types",
            mt_dtype_name(mt_dtype_of(tokens)),
            mti_shape_text(text, mt_rank(tokens), mt_shape(tokens)));
    }
    mt_tensor **part[2] = {ids, types};
    for (int i = 0; i < 2; i++) {
        *part[i] = mt_slice(tokens, 0, i, 1);
        mt_set(part[i], mt_reshape(*part[i], 2, mt_shape(tokens) + 1));
    }
    if (*ids && *types) return true;
    mt_release(*ids);
    mt_release(*types);
    return false;
}

/* If all types are 0, their row [1,d] is broadcast, and the tape keeps no indices. */
static mt_tensor *type_rows(mt_module *self, mt_tensor *types)
{
    if (types) return mt_forward_child(self, "tte", types);
    return mt_slice(mt_module_param(mt_module_child(self, "tte"), "weight"), 0, 0, 1);
}

static mt_tensor *embed(mt_module *self, mt_tensor *tokens)
{
    mt_tensor *ids, *types;
    if (!take_input(tokens, &ids, &types)) return NULL;
    mt_tensor *position = mt_forward_child(self, "wpe", ids);
    mt_tensor *type = position ? type_rows(self, types) : NULL;
    mt_tensor *h = type ? mt_forward_child(self, "wte", ids) : NULL;
    mt_set(&h, mt_add(h, type));
    mt_set(&h, mt_add(h, position));
    mt_release(type);
    mt_release(position);
    mt_release(types);
    mt_release(ids);
    mt_set(&h, mt_forward_child(self, "ln", h));
    mt_set(&h, mt_forward_child(self, "drop", h));
    return h;
}

/* ---- head: [..,d] -> [..,d]; the tied product follows ---- */

static mt_tensor *head_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *h = mt_forward_child(self, "dense", x);
    mt_set(&h, mt_forward_child(self, "act", h));
    mt_set(&h, mt_forward_child(self, "ln", h));
    return h;
}

mt_module *mti_bert_head_new(mt_device *device, const mt_model_config *c)
{
    mt_module *m = mt_module_new("head", head_forward, NULL, NULL);
    return mti_module_complete(
        m, m &&
               mt_module_add_child(m, "dense",
                                   mt_linear_new(device, c->dtype, c->hidden, c->hidden,
                                                 !c->no_bias, MTI_INIT_STD)) &&
               mti_add_activation(m, "act", c, false) && mti_add_norm(m, "ln", device, c));
}

static mt_module *head_new(mt_device *device, const mt_model_config *c)
{
    mt_module *m = mti_bert_head_new(device, c);
    return mti_module_complete(
        m, m && mt_module_add_param(m, "bias", mt_zeros(device, c->dtype, MT_SHAPE(c->vocab))));
}

/* ---- pooler: [b,s,d] -> [b,d], of the first token's row ---- */

static mt_tensor *pooler_forward(mt_module *self, mt_tensor *x)
{
    const int64_t *shape = mt_shape(x);
    mt_tensor *h = mt_slice(x, 1, 0, 1);
    mt_set(&h, mt_reshape(h, MT_SHAPE(shape[0], shape[2])));
    mt_set(&h, mt_forward_child(self, "dense", h));
    mt_set(&h, mt_forward_child(self, "act", h));
    return h;
}

mt_module *mti_pooler_new(mt_device *device, const mt_model_config *c)
{
    const mt_model_config tanh_of = {.act = MT_ACT_TANH};
    mt_module *m = mt_module_new("pooler", pooler_forward, NULL, NULL);
    return mti_module_complete(
        m, m &&
               mt_module_add_child(m, "dense",
                                   mt_linear_new(device, c->dtype, c->hidden, c->hidden,
                                                 !c->no_bias, MTI_INIT_STD)) &&
               mti_add_activation(m, "act", &tanh_of, false));
}

/* ---- the whole ---- */

/* From the layers' output h, taken over. */
static mt_tensor *output_of(mt_module *self, mt_tensor *h)
{
    mt_module *pooler = mt_module_child(self, "pooler");
    mt_set(&h, mt_forward_child(self, pooler ? "pooler" : "head", h));
    if (!pooler)
        mt_set(&h, mti_tied_head(self, "decoder", h,
                                 mt_module_param(mt_module_child(self, "head"), "bias")));
    return h;
}

static mt_tensor *bert_forward(mt_module *self, mt_tensor *tokens)
{
    return output_of(self, mt_bert_hidden(self, tokens));
}

static bool is_bert(const mt_module *m, const char *caller)
{
    return mti_given(m, caller, "the module") &&
           (mti_module_runs(m, bert_forward) ||
            mti_fail_bool(MT_ERR_ARGUMENT, "%s: the module is not a bert", caller));
}

mt_tensor *mt_bert_hidden(mt_module *m, mt_tensor *tokens)
{
    if (!mti_given(tokens, "bert_hidden", "the tokens") || !is_bert(m, "bert_hidden")) return NULL;
    const mti_model *model = mt_module_user(m);
    return mti_run_layers(m, embed(m, tokens), 0, model->config.layers);
}

mt_tensor *mt_bert_output(mt_module *m, mt_tensor *hidden)
{
    if (!mti_given(hidden, "bert_output", "the rows") || !is_bert(m, "bert_output")) return NULL;
    const mti_model *model = mt_module_user(m);
    if (mt_rank(hidden) != 3 || mt_shape(hidden)[2] != model->config.hidden) {
        char text[MTI_SHAPE_TEXT];
        return mti_fail_null(MT_ERR_ARGUMENT, "bert_output: the rows are %s; need [b,s,%lld]",
                             mti_shape_text(text, mt_rank(hidden), mt_shape(hidden)),
                             (long long)model->config.hidden);
    }
    return output_of(m, mt_retain(hidden));
}

mt_module *mti_bert_make(mt_device *device, const mt_model_config *config,
                         const mti_each_layer *each)
{
    mt_model_config c;
    if (!mti_given(device, "bert_new", "the device")) return NULL;
    if (!mti_config_resolve(config, MT_MODEL_BERT, &c)) return NULL;
    mt_module *m = mti_model_new("bert", bert_forward, &c);
    return mti_module_complete(
        m, m && mti_add_tokens(m, device, &c) &&
               mt_module_add_child(m, "wpe", mti_positions_new(device, &c)) &&
               mti_add_embedding(m, "tte", device, &c, c.token_types) &&
               mti_add_norm(m, "ln", device, &c) && mti_add_embedding_dropout(m, &c) &&
               mti_add_layers(m, device, &c, each) &&
               (c.pooled ? mt_module_add_child(m, "pooler", mti_pooler_new(device, &c))
                         : mt_module_add_child(m, "head", head_new(device, &c))));
}

/* ---- tokens to predict ---- */

mt_status mt_mask_tokens(const mt_model_config *config, uint64_t seed, size_t n,
                         const int64_t *tokens, int64_t *input, int64_t *target)
{
    mt_model_config c;
    if (n && (!tokens || !input || !target))
        return mti_fail(MT_ERR_ARGUMENT, "mask_tokens: an argument is NULL");
    if (!mti_config_resolve(config, MT_MODEL_BERT, &c)) return mt_last_status();
    for (size_t i = 0; i < n; i++) {
        mti_u32x4 r = mti_philox(seed, i);
        int64_t token = tokens[i];
        bool chosen = mti_u32_to_unit(r.v[0]) < 0.15f;
        double draw = (double)mti_u32_to_unit(r.v[1]);
        target[i] = chosen ? token : MT_IGNORE;
        input[i] = !chosen || draw >= 0.9 ? token
                   : draw < 0.8           ? c.mask_token
                                : (int64_t)(((uint64_t)r.v[2] << 32 | r.v[3]) % (uint64_t)c.vocab);
    }
    return MT_OK;
}
