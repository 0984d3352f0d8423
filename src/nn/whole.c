/* whole.c: what whole models have in common: their layers, their ends, their positions.
 *
 * What a forward keeps in a local is kept out of the allocator's reach, so each name is replaced
 * as soon as its tensor has been used (mt_set); what the tape needs, the tape holds. */
#include <stdio.h>
#include "nn/model.h"
#include "memtape/ops.h"

/* ---- layers ---- */

#define LAYER_NAME 32
static const char *layer_name(char name[LAYER_NAME], int64_t i)
{
    snprintf(name, LAYER_NAME, "h.%lld", (long long)i);
    return name;
}

bool mti_add_layers(mt_module *m, mt_device *device, const mt_model_config *c,
                    const mti_each_layer *each)
{
    char name[LAYER_NAME];
    for (int64_t i = 0; i < c->layers; i++) {
        mt_module *layer = mt_module_add_child(m, layer_name(name, i), mt_block_new(device, c));
        if (!layer || (each && !each->fn(each->user, layer))) return false;
    }
    return true;
}

mt_module *mti_layer(const mt_module *m, int64_t i)
{
    char name[LAYER_NAME];
    return mt_module_child(m, layer_name(name, i));
}

mt_tensor *mti_run_each(mt_module *m, mt_tensor *x, int64_t from, int64_t to)
{
    char name[LAYER_NAME];
    for (int64_t i = from; x && i < to; i++)
        mt_set(&x, mt_forward_child(m, layer_name(name, i), x));
    return x;
}

/* ---- whole models ---- */

/* A function of its own: it tells a whole model from other modules. */
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

bool mti_check_tokens(const char *who, const mt_tensor *tokens)
{
    if (mt_rank(tokens) == 2 && mt_dtype_of(tokens) == MT_I64) return true;
    char text[MTI_SHAPE_TEXT];
    return mti_fail_bool(MT_ERR_ARGUMENT, "%s: the tokens are %s %s; need i64 [b,s]", who,
                         mt_dtype_name(mt_dtype_of(tokens)),
                         mti_shape_text(text, mt_rank(tokens), mt_shape(tokens)));
}

mt_tensor *mti_wanted_rows(const mti_model *model, mt_tensor *x)
{
    if (x && model->last) mt_set(&x, mt_slice(x, 1, mt_shape(x)[1] - 1, 1));
    return x;
}

mt_tensor *mti_tied_head(mt_module *m, const char *name, mt_tensor *x, mt_tensor *bias)
{
    if (!x || mt_scope_push(name) != MT_OK) return NULL;
    mt_tensor *y = mt_linear(x, mt_module_param(mt_module_child(m, "wte"), "weight"), bias);
    mt_scope_pop();
    return y;
}

/* ---- learned positions ---- */

/* Its input is the token ids, of which only the length counts. */
static mt_tensor *positions_forward(mt_module *self, mt_tensor *tokens)
{
    mt_tensor *table = mt_module_param(self, "weight");
    int64_t s = mt_shape(tokens)[mt_rank(tokens) - 1];
    int64_t start = *(const int64_t *)mt_module_user(self), context = mt_shape(table)[0];
    if (start + s <= context) return mt_slice(table, 0, start, s);
    return mti_fail_null(MT_ERR_ARGUMENT, "positions: %lld tokens in a row; the context is %lld",
                         (long long)(start + s), (long long)context);
}

mt_module *mti_positions_new(mt_device *device, const mt_model_config *c)
{
    int64_t *start = mti_calloc(1, sizeof *start);
    mt_module *m = start ? mt_module_new("positions", positions_forward, start, mti_free) : NULL;
    return mti_module_complete(
        m, m && mt_module_add_param(
                    m, "weight",
                    mt_normal(device, c->dtype, MT_SHAPE(c->context, c->hidden), 0, MTI_INIT_STD)));
}

int64_t *mti_positions_start(const mt_module *m)
{
    return mti_module_runs(m, positions_forward) ? mt_module_user(m) : NULL;
}
