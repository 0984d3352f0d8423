/* models.c: MLP, attention, block, GPT.
 *
 * What a forward keeps in a local is kept out of the allocator's reach, so each name is replaced
 * as soon as its tensor has been used (mt_set); what the tape needs, the tape holds. Letters: b
 * batch, s sequence, d hidden, a heads, h = d/a, v vocabulary. */
#include <math.h>
#include <stdio.h>
#include "nn/nn.h"
#include "memtape/ops.h"

#define INIT_STD 0.02

/* The config with every "0: ..." filled in. */
static bool resolve(const mt_model_config *config, mt_model_kind kind, mt_model_config *c)
{
    if (!config) return mti_fail_bool(MT_ERR_ARGUMENT, "config: is NULL");
    *c = *config;
    c->kind = kind; /* the parts of a gpt are made from the gpt's config */
    if (mt_model_config_check(c) != MT_OK) return false;
    if (!c->heads) c->heads = 1;
    if (!c->layers) c->layers = 1;
    if (!c->ffn) c->ffn = 4 * c->hidden;
    if (kind == MT_MODEL_GPT) c->causal = true;
    return true;
}

static mt_module *add_linear(mt_module *m, const char *name, mt_device *device,
                             const mt_model_config *c, int64_t in, int64_t out, double std)
{
    return mt_module_add_child(m, name, mt_linear_new(device, c->dtype, in, out, !c->no_bias, std));
}

static mt_module *add_norm(mt_module *m, const char *name, mt_device *device,
                           const mt_model_config *c)
{
    return mt_module_add_child(
        m, name, mt_layer_norm_new(device, c->dtype, c->hidden, !c->no_bias, c->norm_eps));
}

static mt_module *add_dropout(mt_module *m, const mt_model_config *c)
{
    return mt_module_add_child(m, "drop", mt_dropout_new(c->dropout));
}

/* Projections into the residual stream: 2 per layer add up there. */
static double residual_std(const mt_model_config *c)
{
    return INIT_STD / sqrt(2 * (double)c->layers);
}

/* ---- mlp: [..,d] -> [..,f] -> [..,d] ---- */

static mt_tensor *mlp_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *h = mt_forward_child(self, "fc", x);
    mt_set(&h, mt_forward_child(self, "act", h));
    mt_set(&h, mt_forward_child(self, "proj", h));
    mt_set(&h, mt_forward_child(self, "drop", h));
    return h;
}

mt_module *mt_mlp_new(mt_device *device, const mt_model_config *config)
{
    mt_model_config c;
    if (!resolve(config, MT_MODEL_MLP, &c)) return NULL;
    mt_module *m = mt_module_new("mlp", mlp_forward, NULL, NULL);
    return mti_module_complete(
        m, m && add_linear(m, "fc", device, &c, c.hidden, c.ffn, INIT_STD) &&
               mt_module_add_child(m, "act", mt_activation_new(c.act, c.inplace)) &&
               add_linear(m, "proj", device, &c, c.ffn, c.hidden, residual_std(&c)) &&
               add_dropout(m, &c));
}

/* ---- attention: [b,s,d] -> [b,s,d] ---- */

/* The core is a module of its own, "heads", so that the ledger tells its tensors from the
 * projections' and hooks can be put around it. */
typedef struct heads {
    int64_t n;
    mt_attention_form form;
    bool causal;
    double dropout;
} heads;

/* [b,s,d] -> [b,a,s,h], a view */
static mt_tensor *split_heads(mt_tensor *x, int64_t n)
{
    if (!x) return NULL;
    const int64_t *shape = mt_shape(x);
    mt_tensor *y = mt_reshape(x, MT_SHAPE(shape[0], shape[1], n, shape[2] / n));
    mt_set(&y, mt_transpose(y, 1, 2));
    return y;
}

/* [b,a,s,h] -> [b,s,d]: a view of what flash made, a copy of what math made */
static mt_tensor *merge_heads(mt_tensor *x)
{
    if (!x) return NULL;
    const int64_t *shape = mt_shape(x);
    int64_t b = shape[0], a = shape[1], s = shape[2], h = shape[3];
    mt_tensor *y = mt_transpose(x, 1, 2);
    mt_set(&y, mt_reshape(y, MT_SHAPE(b, s, a * h)));
    return y;
}

/* [b,s,3d] -> [b,s,d] */
static mt_tensor *heads_forward(mt_module *self, mt_tensor *qkv)
{
    const heads *at = mt_module_user(self);
    if (mt_rank(qkv) != 3 || mt_shape(qkv)[2] % (3 * at->n)) {
        char text[MTI_SHAPE_TEXT];
        return mti_fail_null(MT_ERR_ARGUMENT, "attention: q, k, v are %s; need [b,s,3d]",
                             mti_shape_text(text, mt_rank(qkv), mt_shape(qkv)));
    }
    int64_t d = mt_shape(qkv)[2] / 3;
    mt_tensor *part[3] = {NULL, NULL, NULL};
    if (mt_split(qkv, 2, 3, (const int64_t[]){d, d, d}, part) != MT_OK) return NULL;
    for (int i = 0; i < 3; i++) mt_set(&part[i], split_heads(part[i], at->n));
    double p = mt_module_training(self) ? at->dropout : 0;
    mt_tensor *y = at->form == MT_ATTENTION_FLASH
                       ? mt_flash_attention(part[0], part[1], part[2], 0, at->causal, p)
                       : mt_math_attention(part[0], part[1], part[2], 0, at->causal, p);
    for (int i = 0; i < 3; i++) mt_release(part[i]);
    mt_set(&y, merge_heads(y));
    return y;
}

static mt_module *heads_new(const mt_model_config *c)
{
    heads *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    *user = (heads){c->heads, c->attention, c->causal, c->dropout};
    return mt_module_new("heads", heads_forward, user, mti_free);
}

static mt_tensor *attention_forward(mt_module *self, mt_tensor *x)
{
    mt_tensor *h = mt_forward_child(self, "qkv", x);
    mt_set(&h, mt_forward_child(self, "heads", h));
    mt_set(&h, mt_forward_child(self, "proj", h));
    mt_set(&h, mt_forward_child(self, "drop", h));
    return h;
}

mt_module *mt_attention_new(mt_device *device, const mt_model_config *config)
{
    mt_model_config c;
    if (!resolve(config, MT_MODEL_ATTENTION, &c)) return NULL;
    mt_module *m = mt_module_new("attention", attention_forward, NULL, NULL);
    return mti_module_complete(
        m, m && add_linear(m, "qkv", device, &c, c.hidden, 3 * c.hidden, INIT_STD) &&
               mt_module_add_child(m, "heads", heads_new(&c)) &&
               add_linear(m, "proj", device, &c, c.hidden, c.hidden, residual_std(&c)) &&
               add_dropout(m, &c));
}

/* ---- block: [b,s,d] -> [b,s,d] ---- */

/* x + f(norm(x)); x is taken over: nobody but the tape and the sum needs it any more */
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
    if (!resolve(config, MT_MODEL_BLOCK, &c)) return NULL;
    mt_module *m = mt_module_new(
        "block", c.norm == MT_NORM_PRE ? pre_block_forward : post_block_forward, NULL, NULL);
    return mti_module_complete(m,
                               m && add_norm(m, "ln_1", device, &c) &&
                                   mt_module_add_child(m, "attn", mt_attention_new(device, &c)) &&
                                   add_norm(m, "ln_2", device, &c) &&
                                   mt_module_add_child(m, "mlp", mt_mlp_new(device, &c)));
}

/* ---- gpt: i64 tokens [b,s] -> logits [b,s,v] ---- */

typedef struct gpt {
    int64_t layers, context;
} gpt;

/* Learned positions 0 .. s-1 [s,d]: the first rows of a table, a view. Its input is the token ids,
 * of which only the length counts. */
static mt_tensor *positions_forward(mt_module *self, mt_tensor *tokens)
{
    mt_tensor *table = mt_module_param(self, "weight");
    int64_t s = mt_shape(tokens)[1];
    if (s <= mt_shape(table)[0]) return mt_slice(table, 0, 0, s);
    return mti_fail_null(MT_ERR_ARGUMENT, "gpt: %lld tokens in a row; the context is %lld",
                         (long long)s, (long long)mt_shape(table)[0]);
}

static mt_module *positions_new(mt_device *device, const mt_model_config *c)
{
    mt_module *m = mt_module_new("positions", positions_forward, NULL, NULL);
    return mti_module_complete(
        m, m && mt_module_add_param(
                    m, "weight",
                    mt_normal(device, c->dtype, MT_SHAPE(c->context, c->hidden), 0, INIT_STD)));
}

/* x w^T with the token embedding as w, under a name of its own in the ledger */
static mt_tensor *tied_head(mt_module *self, mt_tensor *x)
{
    if (!x || mt_scope_push("lm_head") != MT_OK) return NULL;
    mt_tensor *y = mt_linear(x, mt_module_param(mt_module_child(self, "wte"), "weight"), NULL);
    mt_scope_pop();
    return y;
}

static mt_tensor *gpt_forward(mt_module *self, mt_tensor *tokens)
{
    const gpt *g = mt_module_user(self);
    if (mt_rank(tokens) != 2 || mt_dtype_of(tokens) != MT_I64) {
        char text[MTI_SHAPE_TEXT];
        return mti_fail_null(MT_ERR_ARGUMENT, "gpt: the tokens are %s %s; need i64 [b,s]",
                             mt_dtype_name(mt_dtype_of(tokens)),
                             mti_shape_text(text, mt_rank(tokens), mt_shape(tokens)));
    }
    mt_tensor *position = mt_forward_child(self, "wpe", tokens);
    mt_tensor *h = position ? mt_forward_child(self, "wte", tokens) : NULL;
    mt_set(&h, mt_add(h, position)); /* [b,s,d] + [s,d] */
    mt_release(position);
    mt_set(&h, mt_forward_child(self, "drop", h));
    for (int64_t i = 0; h && i < g->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "h.%lld", (long long)i);
        mt_set(&h, mt_forward_child(self, name, h));
    }
    if (mt_module_child(self, "ln_f")) mt_set(&h, mt_forward_child(self, "ln_f", h));
    mt_set(&h, mt_module_child(self, "lm_head") ? mt_forward_child(self, "lm_head", h)
                                                : tied_head(self, h));
    return h;
}

static bool add_blocks(mt_module *m, mt_device *device, const mt_model_config *c)
{
    for (int64_t i = 0; i < c->layers; i++) {
        char name[32];
        snprintf(name, sizeof name, "h.%lld", (long long)i);
        if (!mt_module_add_child(m, name, mt_block_new(device, c))) return false;
    }
    return true;
}

mt_module *mt_gpt_new(mt_device *device, const mt_model_config *config)
{
    mt_model_config c;
    gpt *user;
    if (!resolve(config, MT_MODEL_GPT, &c) || !(user = mti_malloc(sizeof *user))) return NULL;
    *user = (gpt){c.layers, c.context};
    mt_module *m = mt_module_new("gpt", gpt_forward, user, mti_free);
    return mti_module_complete(
        m, m &&
               mt_module_add_child(
                   m, "wte", mt_embedding_new(device, c.dtype, c.vocab, c.hidden, INIT_STD)) &&
               mt_module_add_child(m, "wpe", positions_new(device, &c)) && add_dropout(m, &c) &&
               add_blocks(m, device, &c) &&
               (c.norm == MT_NORM_POST || add_norm(m, "ln_f", device, &c)) &&
               (!c.untied || mt_module_add_child(m, "lm_head",
                                                 mt_linear_new(device, c.dtype, c.hidden, c.vocab,
                                                               false, INIT_STD))));
}

mt_module *mt_model_new(mt_device *device, const mt_model_config *config)
{
    if (mt_model_config_check(config) != MT_OK) return NULL;
    switch (config->kind) {
    case MT_MODEL_GPT: return mt_gpt_new(device, config);
    case MT_MODEL_BLOCK: return mt_block_new(device, config);
    case MT_MODEL_ATTENTION: return mt_attention_new(device, config);
    case MT_MODEL_MLP: return mt_mlp_new(device, config);
    case MT_MODEL_KIND_COUNT: break;
    }
    return NULL;
}
