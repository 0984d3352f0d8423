/* rank.c: one part of one rank as a module: the model's blocks, made narrower, with collectives. */
#include <stdio.h>
#include "memtape/ops.h"
#include "parallel/parallel.h"

static mt_tensor *rank_forward(mt_module *self, mt_tensor *x);

static const mti_share *share_of(const mt_module *m)
{
    return mti_module_runs(m, rank_forward) ? mt_module_user(m) : NULL;
}

/* ---- forward ---- */

/* Rows of the learned positions for this rank's tokens. */
static mt_tensor *positions(mt_module *self, const mti_share *s, mt_tensor *tokens)
{
    int64_t seq = mt_shape(tokens)[1],
            length = s->parallel.sequence ? seq / s->parallel.tensor : seq;
    MT_AUTO mt_tensor *some = mt_slice(tokens, 1, 0, length);
    return mt_forward_child(self, "wpe", some);
}

static mt_tensor *embed(mt_module *self, const mti_share *s, mt_tensor *tokens)
{
    if (!mti_check_tokens("rank", tokens) || !mti_check_length("rank", s, mt_shape(tokens)[1]) ||
        !mti_check_window("rank", &s->whole, mt_shape(tokens)[1], mt_device_of(tokens)))
        return NULL;
    mt_tensor *h = mt_forward_child(self, "wte", tokens);
    if (h && mt_module_child(self, "wpe")) {
        MT_AUTO mt_tensor *position = positions(self, s, tokens);
        mt_set(&h, mt_add(h, position));
    }
    h = mti_scale_embedding(&s->whole, h);
    mt_set(&h, mt_forward_child(self, "drop", h));
    return h;
}

static mt_tensor *rank_forward(mt_module *self, mt_tensor *x)
{
    const mti_share *s = mt_module_user(self);
    char name[32];
    mt_tensor *h = s->first ? embed(self, s, x) : mt_recv(x, s->parallel.pipeline);
    mti_rope_tables tables = {0};
    mti_share_rope_tables(self, &tables);
    for (int64_t i = s->from; h && i < s->to; i++) {
        snprintf(name, sizeof name, "h.%lld", (long long)i);
        mt_set(&h, mt_forward_child(self, name, h));
    }
    mti_share_rope_tables(self, NULL);
    mti_rope_tables_free(&tables);
    if (!s->last) {
        mt_set(&h, mt_send(h, s->parallel.pipeline));
        return h;
    }
    if (mt_module_child(self, "ln_f")) mt_set(&h, mt_forward_child(self, "ln_f", h));
    mt_set(&h, mti_run_entered(mt_module_child(self, "lm_head"), mt_forward, &s->parallel, h));
    return mti_cap_logits(&s->whole, h);
}

mt_tensor *mt_rank_wire(const mt_module *rank, mt_device *device, int64_t batch, int64_t seq)
{
    if (!mti_given(rank, "rank_wire", "the rank") || !mti_given(device, "rank_wire", "the device"))
        return NULL;
    const mti_share *s = share_of(rank);
    if (!s) return mti_fail_null(MT_ERR_ARGUMENT, "rank_wire: the module is not a rank");
    if (batch < 1)
        return mti_fail_null(MT_ERR_ARGUMENT, "rank_wire: %lld sequences; need at least 1",
                             (long long)batch);
    if (!mti_check_length("rank_wire", s, seq)) return NULL;
    int64_t length = s->parallel.sequence ? seq / s->parallel.tensor : seq;
    mt_tensor *one = mt_zeros(device, s->local.dtype, MT_SHAPE(1, 1, 1));
    if (one && mt_set_requires_grad(one, true) != MT_OK) mt_set(&one, NULL);
    mt_set(&one, mt_expand(one, MT_SHAPE(batch, length, s->local.hidden)));
    return one;
}

/* ---- making ---- */

static bool add_block(mt_module *m, mt_device *device, const mti_share *s, int64_t layer)
{
    char name[32];
    snprintf(name, sizeof name, "h.%lld", (long long)layer);
    const mt_model_config own = mti_layer_config(&s->local, layer);
    mt_module *block = mt_module_add_child(m, name, mt_block_new(device, &own));
    mt_module *attn = mt_module_child(block, "attn"), *mlp = mt_module_child(block, "mlp");
    return block && mti_enter_ranks(attn, &s->parallel) &&
           mti_sum_over_ranks(attn, "proj", &s->parallel) && mti_enter_ranks(mlp, &s->parallel) &&
           mti_sum_over_ranks(mlp, mt_module_child(mlp, "down") ? "down" : "proj", &s->parallel);
}

static bool add_embeddings(mt_module *m, mt_device *device, const mti_share *s)
{
    const mt_model_config *c = &s->local;
    return mti_add_embedding(m, "wte", device, c, c->vocab) &&
           mti_share_embedding(m, "wte", &s->parallel) &&
           (c->kind != MT_MODEL_GPT ||
            mt_module_add_child(m, "wpe", mti_positions_new(device, c))) &&
           mti_add_dropout(m, c);
}

/* If tied to an embedding on this rank, the head uses its weight, *shared; else *shared is NULL. */
static bool add_head(mt_module *m, mt_device *device, const mti_share *s, mt_tensor **shared)
{
    const mt_model_config *c = &s->local;
    bool tied = c->kind == MT_MODEL_LLAMA ? c->tied : !c->untied;
    *shared = tied ? mt_module_param(mt_module_child(m, "wte"), "weight") : NULL;
    return (c->norm == MT_NORM_POST || mti_add_norm(m, "ln_f", device, c)) &&
           mt_module_add_child(
               m, "lm_head",
               *shared ? mti_linear_of(mt_retain(*shared))
                       : mt_linear_new(device, c->dtype, c->hidden, c->vocab, false, MTI_INIT_STD));
}

static mt_module *make(mt_device *device, mti_share *s, mt_tensor **shared)
{
    mt_module *m = mt_module_new(mt_model_kind_name(s->whole.kind), rank_forward, s, mti_free);
    bool ok = m && (!s->first || add_embeddings(m, device, s));
    for (int64_t i = s->from; ok && i < s->to; i++) ok = add_block(m, device, s, i);
    return mti_module_complete(m, ok && (!s->last || add_head(m, device, s, shared)));
}

/* Makes the module whole on a separate device, so that it is not counted; then replaces each
 * parameter by a piece on `device`. */
static mt_module *make_in_pieces(mt_device *device, mti_share *s)
{
    mti_cutter cutter = {.device = device, .dp = s->parallel.data};
    mt_device *separate = mt_device_open("meta");
    mt_module *m = separate ? make(separate, s, &cutter.shared) : NULL;
    if (!separate) mti_free(s);
    m = mti_module_complete(m, m && mti_cut_params(m, &cutter));
    mt_device_release(separate);
    return m;
}

mt_module *mt_rank_new(mt_device *device, const mt_model_config *config,
                       const mt_parallel *parallel, int64_t part)
{
    mti_share made;
    if (!mti_given(device, "rank_new", "the device")) return NULL;
    if (!mti_share_make(&made, config, parallel, part)) return NULL;
    const mt_parallel *h = &made.parallel;
    if (mt_device_has_data(device) && (h->tensor > 1 || h->pipeline > 1 || h->data > 1))
        return mti_fail_null(MT_ERR_UNSUPPORTED,
                             "rank: %lld x %lld x %lld ranks on %s; need 1, or meta, where no data "
                             "has to move",
                             (long long)h->tensor, (long long)h->pipeline, (long long)h->data,
                             mt_device_kind(device));
    mti_share *s = mti_malloc(sizeof *s);
    if (!s) return NULL;
    *s = made;
    mt_tensor *shared;
    return h->zero == 3 && h->data > 1 ? make_in_pieces(device, s) : make(device, s, &shared);
}
