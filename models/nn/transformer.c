/* transformer.c: what whole models share: layers, head, positions.
 *
 * A tensor held by a local variable cannot be freed. So a forward reuses one variable (mt_set) and
 * releases each tensor once it has been used; the tape holds what it needs. */
#include <math.h>
#include <string.h>
#include "nn/model.h"
#include "memtape/ops.h"

/* ---- layers ---- */

static const char *layer_name(char name[MTI_LAYER_NAME], int64_t i)
{
    char *at = name + MTI_LAYER_NAME - 1; /* snprintf takes as long as an op without data */
    *at = '\0';
    do *--at = (char)('0' + i % 10);
    while (i /= 10);
    *--at = '.', *--at = 'h';
    return at;
}

bool mti_is_local(const mt_model_config *c, int64_t i)
{
    const int64_t period = c->local_period;
    if (!period) return true;
    return c->local_layers ? c->local_layers >> i % period & 1 : (i + 1) % period != 0;
}

int64_t mti_local_layers(const mt_model_config *c, int64_t from, int64_t to)
{
    int64_t n = 0;
    for (int64_t i = from; i < to; i++) n += mti_is_local(c, i);
    return n;
}

mt_model_config mti_layer_config(const mt_model_config *c, int64_t i)
{
    mt_model_config own = *c;
    if (i >= c->layers && mti_is_whole(c->kind)) i = c->layers - 1;
    const bool local = mti_is_local(c, i);
    if (c->local_theta > 0 && local) {
        own.rope_theta = c->local_theta;
        own.yarn_factor = own.yarn_fast = own.yarn_slow = own.yarn_scale = 0;
        own.yarn_context = 0;
    }
    if (!local) own.window = 0;
    own.unturned_period = !mti_is_turned(c, i);
    if (i < c->dense_layers) mti_make_dense(&own);
    return own;
}

bool mti_add_layers(mt_module *m, mt_device *device, const mt_model_config *c,
                    const mti_each_layer *each)
{
    char name[MTI_LAYER_NAME];
    for (int64_t i = 0; i < c->layers; i++) {
        const mt_model_config own = mti_layer_config(c, i);
        mt_module *layer = mt_module_add_child(m, layer_name(name, i), mt_block_new(device, &own));
        if (!layer || (each && !each->fn(each->user, layer))) return false;
    }
    return true;
}

bool mti_add_mtp(mt_module *m, mt_device *device, const mt_model_config *c,
                 const mti_each_layer *each)
{
    const mt_model_config own = mti_layer_config(c, c->layers);
    for (int64_t k = 0; k < c->mtp_layers; k++) {
        mt_module *child = mti_add_mtp_module(m, k, device, c);
        if (!child || !mt_module_add_child(child, "block", mt_block_new(device, &own)) ||
            (each && !each->fn(each->user, child)))
            return false;
    }
    return true;
}

mt_module *mti_layer(const mt_module *m, int64_t i)
{
    char name[MTI_LAYER_NAME];
    return mt_module_child(m, layer_name(name, i));
}

mt_tensor *mti_run_each(mt_module *m, mt_tensor *x, int64_t from, int64_t to)
{
    char name[MTI_LAYER_NAME];
    for (int64_t i = from; x && i < to; i++)
        mt_set(&x, mt_forward_child(m, layer_name(name, i), x));
    return x;
}

/* ---- whole models ---- */

/* mti_model_of tells whole models from other modules by this function. */
static void free_model(void *user) { mti_free(user); }

mt_module *mti_model_new(const char *kind, mt_forward_fn *forward, const mt_model_config *c)
{
    mti_model *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    *user = (mti_model){.config = *c};
    return mt_module_new(kind, forward, user, free_model);
}

mti_model *mti_model_of(const mt_module *m)
{
    return mti_module_owns(m, free_model) ? mt_module_user(m) : NULL;
}

const mt_model_config *mt_model_config_of(const mt_module *m)
{
    const mti_model *model = mti_model_of(m);
    return model ? &model->config : NULL;
}

bool mti_check_tokens(const char *caller, const mt_tensor *tokens)
{
    if (mt_rank(tokens) == 2 && mt_dtype_of(tokens) == MT_I64) return true;
    char text[MTI_SHAPE_TEXT];
    return mti_fail_bool(MT_ERR_ARGUMENT, "%s: the tokens are %s %s; need i64 [b,s]", caller,
                         mt_dtype_name(mt_dtype_of(tokens)),
                         mti_shape_text(text, mt_rank(tokens), mt_shape(tokens)));
}

bool mti_check_context(const char *caller, const mt_model_config *c, const mt_tensor *tokens)
{
    const int64_t s = mt_shape(tokens)[1];
    return mti_learns_positions(c) || s <= c->context ||
           mti_fail_bool(MT_ERR_ARGUMENT, "%s: %lld tokens in a row; the context is %lld", caller,
                         (long long)s, (long long)c->context);
}

mt_tensor *mti_tied_head(mt_module *m, const char *name, mt_tensor *x, mt_tensor *bias)
{
    if (!x || mt_scope_push(name) != MT_OK) return NULL;
    mt_tensor *y = mt_linear(x, mt_module_param(mt_module_child(m, "wte"), "weight"), bias);
    mt_scope_pop();
    return y;
}

/* x to as many bits as the dtype has. */
static double rounded(double x, mt_dtype dtype)
{
    int exponent, bits = dtype == MT_BF16 ? 8 : dtype == MT_F16 ? 11 : dtype == MT_F32 ? 24 : 53;
    double m = frexp(x, &exponent);
    return ldexp(rint(ldexp(m, bits)), exponent - bits);
}

mt_tensor *mti_embed(mt_module *m, mt_tensor *tokens, int64_t ahead)
{
    const mti_model *model = mt_module_user(m);
    const bool learned = mt_module_child(m, "wpe") != NULL;
    mt_tensor *position = learned ? mt_forward_child(m, "wpe", tokens) : NULL; /* [s,d] */
    if (ahead && position) mt_set(&position, mti_shift(position, 0, ahead, 0));
    mt_tensor *h = position || !learned ? mt_forward_child(m, "wte", tokens) : NULL;
    if (learned) mt_set(&h, mt_add(h, position)); /* [b,s,d] + [s,d] */
    mt_release(position);
    h = mti_scale_embedding(&model->config, h);
    mt_set(&h, mt_forward_child(m, "drop", h));
    return h;
}

mt_tensor *mti_scale_embedding(const mt_model_config *c, mt_tensor *h)
{
    if (c->scaled_embedding)
        mt_set(&h, mt_mul_scalar(h, rounded(sqrt((double)c->hidden), c->dtype)));
    return h;
}

mt_tensor *mti_cap_logits(const mt_model_config *c, mt_tensor *y)
{
    if (c->logit_cap == 0 || !y) return y;
    if (mt_scope_push("logit_cap") != MT_OK) {
        mt_release(y);
        return NULL;
    }
    mt_set(&y, mt_mul_scalar(y, 1 / c->logit_cap));
    mt_set(&y, mt_tanh(y));
    mt_set(&y, mt_mul_scalar(y, c->logit_cap));
    mt_scope_pop();
    return y;
}

/* The loss of what the head would make of h. */
static mt_tensor *fused_loss(mt_module *m, mt_tensor *h, mt_tensor *target)
{
    const mti_model *model = mt_module_user(m);
    const mt_module *head = mt_module_child(m, "lm_head");
    mt_tensor *w = mt_module_param(head ? head : mt_module_child(m, "wte"), "weight");
    if (head && strcmp(mt_module_kind(head), "linear") != 0)
        return mti_fail_null(MT_ERR_UNSUPPORTED, "loss %s: lm_head is a %s; need a plain linear",
                             mti_choice_name(&mti_loss_forms, (int)model->config.ops.loss),
                             mt_module_kind(head));
    bool named = mt_scope_push("lm_head") == MT_OK;
    mt_tensor *y = named ? mti_fused_loss(model->config.ops.loss, h, w, target) : NULL;
    if (named) mt_scope_pop();
    return y;
}

/* The logits of the rows h, which are borrowed. */
static mt_tensor *head_forward(mt_module *m, mt_tensor *h)
{
    const mti_model *model = mt_module_user(m);
    mt_tensor *y = mt_module_child(m, "lm_head") ? mt_forward_child(m, "lm_head", h)
                                                 : mti_tied_head(m, "lm_head", h, NULL);
    return mti_cap_logits(&model->config, y);
}

static mt_tensor *sum_of_losses(const mt_module *m, mt_tensor *logits, mt_tensor *target)
{
    const mt_cross_entropy_options summed = {.keep_logits = true, .sum = true};
    (void)m;
    return mt_cross_entropy_with(logits, target, MT_IGNORE, &summed);
}

/* The loss of the rows h, which are borrowed. */
static mt_tensor *loss_of(mt_module *m, mt_tensor *h, mt_tensor *target)
{
    const mti_model *model = mt_module_user(m);
    const mti_loss_row *row = mti_loss_row_of(model->config.ops.loss);
    if (row->fused) return fused_loss(m, h, target);
    if (row->chunked) return mti_chunked_loss(m, h, target, head_forward, sum_of_losses);
    mt_tensor *y = head_forward(m, h);
    if (y) mt_set(&y, mt_model_loss(&model->config, y, target));
    return y;
}

bool mti_looks_ahead(const mt_module *m, const mt_model_config *c)
{
    return c->mtp_layers && mt_module_training(m);
}

mt_tensor *mti_logits(mt_module *m, mt_tensor *h)
{
    const mti_model *model = mt_module_user(m);
    if (h && model->last) mt_set(&h, mt_slice(h, 1, mt_shape(h)[1] - 1, 1));
    if (mt_module_child(m, "ln_f")) mt_set(&h, mt_forward_child(m, "ln_f", h));
    if (h && model->tokens)
        return mti_loss_ahead(m, &model->config, h,
                              &(mti_ahead){model->tokens, model->target, mti_embed, loss_of});
    mt_set(&h, !h ? NULL : model->target ? loss_of(m, h, model->target) : head_forward(m, h));
    return h;
}

mt_tensor *mt_model_forward_loss(mt_module *m, mt_tensor *tokens, mt_tensor *target)
{
    mti_model *model = m ? mti_model_of(m) : NULL;
    if (!mti_given(m, "model_forward_loss", "the model") ||
        !mti_given(tokens, "model_forward_loss", "the tokens") ||
        !mti_given(target, "model_forward_loss", "the target"))
        return NULL;
    if (!model || !mti_has_head(&model->config))
        return mti_fail_null(MT_ERR_ARGUMENT,
                             "model_forward_loss: %s makes no logits; need a gpt, bert or llama "
                             "with a head",
                             mt_module_kind(m));
    if (mti_looks_ahead(m, &model->config)) model->tokens = tokens;
    if (model->tokens || mti_loss_row_of(model->config.ops.loss)->takes_head)
        model->target = target;
    const bool balanced = model->config.balance_loss > 0;
    mti_router_logits logits = {0};
    if (balanced) mti_share_router_logits(m, &logits);
    mt_tensor *y = mt_forward(m, tokens);
    if (balanced) mti_share_router_logits(m, NULL);
    if (!model->target) mt_set(&y, mt_model_loss(&model->config, y, target));
    model->target = model->tokens = NULL;
    return balanced ? mti_add_balance(&model->config, y, &logits, NULL) : y;
}

/* ---- learned positions ---- */

typedef struct positions {
    int64_t start;  /* of the first token */
    int64_t offset; /* the row of position 0 */
    const mti_texts *texts;
} positions;

static mt_tensor *rows_of(mt_module *self, int64_t start, int64_t s)
{
    mt_tensor *table = mt_module_param(self, "weight");
    const positions *at = mt_module_user(self);
    int64_t context = mt_shape(table)[0] - at->offset;
    if (start + s <= context) return mt_slice(table, 0, at->offset + start, s);
    return mti_fail_null(MT_ERR_ARGUMENT, "positions: %lld tokens in a row; the context is %lld",
                         (long long)(start + s), (long long)context);
}

/* [b,s,d], 0 where there is padding */
static mt_tensor *rows_of_texts(mt_module *self, const mti_texts *texts, const int64_t shape[2])
{
    const mt_tensor *table = mt_module_param(self, "weight");
    const int64_t d = mt_shape(table)[1];
    mt_tensor *y =
        mt_zeros(mt_device_of(table), mt_dtype_of(table), MT_SHAPE(shape[0], shape[1], d));
    for (int64_t i = 0; y && i < shape[0]; i++) {
        const int64_t n = texts->lengths[i];
        MT_AUTO mt_tensor *place = mti_text_at(y, i, n);
        MT_AUTO mt_tensor *rows = place ? rows_of(self, texts->starts[i], n) : NULL;
        mt_set(&rows, rows ? mt_reshape(rows, MT_SHAPE(1, n, d)) : NULL);
        if (!rows || mt_copy(place, rows) != MT_OK) mt_set(&y, NULL);
    }
    return y;
}

/* Only the length of the tokens counts. */
static mt_tensor *positions_forward(mt_module *self, mt_tensor *tokens)
{
    const positions *at = mt_module_user(self);
    if (at->texts) return rows_of_texts(self, at->texts, mt_shape(tokens));
    return rows_of(self, at->start, mt_shape(tokens)[mt_rank(tokens) - 1]);
}

mt_module *mti_positions_new(mt_device *device, const mt_model_config *c)
{
    positions *user = mti_malloc(sizeof *user);
    if (!user) return NULL;
    *user = (positions){.offset = c->position_offset};
    mt_module *m = mt_module_new("positions", positions_forward, user, mti_free);
    const int64_t rows = c->context + c->position_offset;
    return mti_module_complete(
        m, m && mt_module_add_param(
                    m, "weight",
                    mt_normal(device, c->dtype, MT_SHAPE(rows, c->hidden), 0, MTI_INIT_STD)));
}

int64_t *mti_positions_start(const mt_module *m)
{
    positions *user = mti_module_runs(m, positions_forward) ? mt_module_user(m) : NULL;
    return user ? &user->start : NULL;
}

void mti_positions_set_texts(const mt_module *m, const mti_texts *texts)
{
    positions *user = mti_module_runs(m, positions_forward) ? mt_module_user(m) : NULL;
    if (user) user->texts = texts;
}
