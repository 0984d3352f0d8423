/* rank_module.c: one part of one rank as a module: the model's blocks, made narrower, with
 * collectives. */
#include <stdio.h>
#include <string.h>
#include "collectives/collectives.h"
#include "nn/lora.h"
#include "parallel/parallel.h"

static mt_tensor *rank_forward(mt_module *self, mt_tensor *x);

static const mti_model_shard *model_shard_of(const mt_module *m)
{
    return mti_module_runs(m, rank_forward) ? mt_module_user(m) : NULL;
}

/* The last product has the scope's name that it has in the whole models. */
static const char *product_name(const mti_model_shard *s)
{
    return s->whole.kind == MT_MODEL_BERT ? "decoder" : "lm_head";
}

/* ---- forward ---- */

/* The rows that `name`, a child that looks only at the length and where it begins, has for this
 * rank's tokens. */
static mt_tensor *rows(mt_module *self, const char *name, mt_tensor *tokens)
{
    const mti_model_shard *s = mt_module_user(self);
    int64_t own = mt_shape(tokens)[1], length = mti_shard_of_sequence(s, own * s->parallel.context);
    int64_t *start = mti_positions_start(mt_module_child(self, name));
    if (start) *start = s->parallel.context_rank * own;
    if (start && s->parallel.sequence) *start += s->parallel.tensor_rank * length;
    MT_AUTO mt_tensor *some = mt_slice(tokens, 1, 0, length);
    return mt_forward_child(self, name, some);
}

/* The tokens, `ahead` places ahead, as are learned positions. */
static mt_tensor *embed(mt_module *self, mt_tensor *tokens, int64_t ahead)
{
    const mti_model_shard *s = mt_module_user(self);
    if (!mti_check_tokens("rank", tokens)) return NULL;
    int64_t seq = mt_shape(tokens)[1] * s->parallel.context;
    if (!mti_check_length("rank", s, seq)) return NULL;
    static const char *const names[] = {"tte", "wpe"};
    mt_tensor *h = mt_forward_child(self, "wte", tokens);
    for (int i = 0; i < 2; i++) {
        if (!h || !mt_module_child(self, names[i])) continue;
        MT_AUTO mt_tensor *some = rows(self, names[i], tokens);
        if (some && ahead) mt_set(&some, mti_shift(some, 0, ahead, 0));
        mt_set(&h, some ? mt_add(h, some) : NULL);
    }
    h = mti_scale_embedding(&s->whole, h);
    if (h && mt_module_child(self, "ln")) mt_set(&h, mt_forward_child(self, "ln", h));
    mt_set(&h, mt_forward_child(self, "drop", h));
    return h;
}

/* ---- the loss ---- */

static mt_tensor *loss_shard(const mti_model_shard *s, mt_tensor *logits, mt_tensor *target,
                             const mti_entropy_options *options)
{
    const mt_group group = mti_tensor_group(&s->parallel);
    return mti_cross_entropy_shard(logits, target, MT_IGNORE, s->vocab, &group, options);
}

mt_tensor *mti_rank_loss(const mti_model_shard *s, mt_tensor *logits, mt_tensor *target)
{
    const mt_model_config *c = &s->whole;
    const mti_loss_row *row = mti_loss_row_of(c->ops.loss);
    const mti_entropy_options options = {.keep_logits = row->keeps_logits, .apart = row->apart};
    bool wide = row->wide && mt_dtype_size(c->dtype) == 2;
    if (s->parallel.tensor == 1) return mt_model_loss(c, logits, target);
    MT_AUTO mt_tensor *x = wide ? mt_cast(logits, MT_F32) : mt_retain(logits);
    return x ? loss_shard(s, x, target, &options) : NULL;
}

static mt_tensor *head_forward(mt_module *self, mt_tensor *h)
{
    const mti_model_shard *s = mt_module_user(self);
    return mti_cap_logits(&s->whole, mt_forward_child(self, product_name(s), h));
}

static mt_tensor *sum_of_losses(const mt_module *self, mt_tensor *logits, mt_tensor *target)
{
    const mti_entropy_options summed = {.keep_logits = true, .sum = true};
    return loss_shard(mt_module_user(self), logits, target, &summed);
}

static mt_tensor *chunked_loss(mt_module *self, mt_tensor *h)
{
    const mti_model_shard *s = mt_module_user(self);
    return mti_chunked_loss(self, h, s->target, head_forward, sum_of_losses);
}

/* The loss of the rows h, which are borrowed. */
static mt_tensor *loss_of(mt_module *self, mt_tensor *h, mt_tensor *target)
{
    mti_model_shard *s = mt_module_user(self);
    mt_tensor *outer = s->target;
    const mt_loss_form form = s->whole.ops.loss;
    const bool chunked = mti_loss_row_of(form)->chunked;
    if (mti_loss_row_of(form)->fused) return mti_fused_head(self, product_name(s), form, h, target);
    s->target = target; /* for chunked_loss */
    mt_tensor *y = mti_run_entered(self, chunked ? chunked_loss : head_forward, &s->parallel, h);
    if (y && !chunked) mt_set(&y, mti_rank_loss(s, y, target));
    s->target = outer;
    return y;
}

bool mti_sum_loads(const void *user, mt_tensor *loads)
{
    const mt_group group = mti_data_group(user), tensor = mti_tensor_group(user);
    return (group.ranks == 1 || mti_collective_run(loads, MTI_ALL_REDUCE, &group)) &&
           (!mti_folds_experts(user) || mti_collective_run(loads, MTI_ALL_REDUCE, &tensor));
}

/* Ranks that share the layers add up the gradients of what all of them have of their routers: each
 * has its part of the same loss. */
static mt_tensor *share_loss(const void *user, mt_tensor *loss)
{
    const mt_group group = mti_tensor_group(user);
    if (group.ranks == 1) return mt_retain(loss);
    mt_tensor *y = mt_mul_scalar(loss, 1 / (double)group.ranks);
    mt_set(&y, mt_all_reduce(y, &group));
    return y;
}

mt_tensor *mti_rank_forward_loss(mt_module *rank, mt_tensor *input, mt_tensor *tokens,
                                 mt_tensor *target)
{
    mti_model_shard *s = mt_module_user(rank);
    const int64_t shards = mti_folds_experts(&s->parallel) ? s->parallel.tensor : 1;
    const mti_balance_ranks ranks = {shards * mti_data_group(&s->parallel).ranks, mti_sum_loads,
                                     share_loss, &s->parallel};
    const bool balanced = s->whole.balance_loss > 0;
    mti_router_logits logits = {0};
    s->target = target, s->tokens = tokens;
    if (balanced) mti_share_router_logits(rank, &logits);
    mt_tensor *loss = mt_forward(rank, input);
    if (balanced) mti_share_router_logits(rank, NULL);
    s->target = s->tokens = NULL;
    if (!logits.n) return loss;
    if (!s->last) mt_set(&loss, mt_sum_all(loss)); /* 0: what stands for that which was sent */
    return mti_add_balance(&s->whole, loss, &logits, &ranks);
}

/* ---- forward ---- */

static mt_tensor *rank_forward(mt_module *self, mt_tensor *x)
{
    static const char *const ends[] = {"ln_f", "head"};
    const mti_model_shard *s = mt_module_user(self);
    mt_group stages = mti_stages(&s->parallel);
    mt_tensor *h = s->first ? embed(self, x, 0) : mt_recv(x, &stages);
    h = mti_run_turned(self, h, s->from, s->to);
    if (!s->last) {
        mt_set(&h, mt_send(h, &stages));
        return h;
    }
    if (s->whole.pooled) {
        mt_set(&h, mt_forward_child(self, "pooler", h));
        return h;
    }
    for (int i = 0; i < 2; i++)
        if (h && mt_module_child(self, ends[i])) mt_set(&h, mt_forward_child(self, ends[i], h));
    if (h && s->target && mti_looks_ahead(self, &s->whole))
        return mti_loss_ahead(
            self, &s->whole, h,
            &(mti_ahead){s->tokens, s->target, embed, loss_of, mti_context_group(&s->parallel)});
    mt_set(&h, s->target ? loss_of(self, h, s->target)
                         : mti_run_entered(self, head_forward, &s->parallel, h));
    return h;
}

mt_tensor *mt_rank_wire(const mt_module *rank, mt_device *device, int64_t batch, int64_t seq)
{
    if (!mti_given(rank, "rank_wire", "the rank") || !mti_given(device, "rank_wire", "the device"))
        return NULL;
    const mti_model_shard *s = model_shard_of(rank);
    if (!s) return mti_fail_null(MT_ERR_ARGUMENT, "rank_wire: the module is not a rank");
    if (batch < 1)
        return mti_fail_null(MT_ERR_ARGUMENT, "rank_wire: %lld sequences; need at least 1",
                             (long long)batch);
    if (!mti_check_length("rank_wire", s, seq)) return NULL;
    int64_t length = mti_shard_of_sequence(s, seq);
    mt_tensor *one = mt_zeros(device, s->local.dtype, MT_SHAPE(1, 1, 1));
    if (one && mt_set_requires_grad(one, true) != MT_OK) mt_set(&one, NULL);
    mt_set(&one, mt_expand(one, MT_SHAPE(batch, length, s->local.hidden)));
    return one;
}

/* ---- making: a block ---- */

/* Lets attention gather keys and values of all positions. */
static void shard_positions(mt_module *attn, const mt_parallel *parallel)
{
    mti_heads *heads = mti_heads_of(mt_module_child(attn, "heads"));
    if (heads && parallel->context > 1) heads->context = mti_context_group(parallel);
}

/* Lets the part of a layer take its input from all ranks, and sums its output over them. */
static bool shard_layer(mt_module *part, const char *output, const mt_parallel *parallel)
{
    return mti_enter_ranks(part, parallel) && mti_sum_over_ranks(part, output, parallel);
}

/* The same of attention. Of one with latents the products with heads take their inputs. */
static bool shard_attention(mt_module *attn, const mt_parallel *parallel)
{
    mti_heads *heads = mti_heads_of(mt_module_child(attn, "heads"));
    if (!heads || !heads->kv_rank) return shard_layer(attn, "proj", parallel);
    if (parallel->tensor > 1) {
        heads->enter = mti_enter;
        heads->ranks = mti_tensor_group(parallel), heads->sequence = parallel->sequence;
    }
    return mti_sum_over_ranks(attn, "proj", parallel);
}

/* The same of an MLP or, in its place, of experts: they sum what all of them give. */
static bool shard_mlp(mt_module *mlp, const mt_parallel *parallel)
{
    mti_experts *e = mti_experts_of(mlp);
    if (!e) return shard_layer(mlp, mt_module_child(mlp, "down") ? "down" : "proj", parallel);
    mt_module *shared = mt_module_child(mlp, "shared");
    e->ranks = mti_expert_group(parallel);
    if (mti_folds_experts(parallel)) return !shared || shard_layer(shared, "down", parallel);
    e->sharing = mti_tensor_group(parallel);
    e->sequence = parallel->sequence;
    return (!shared || mti_sum_over_ranks(shared, "down", parallel)) &&
           mti_enter_ranks(mlp, parallel);
}

/* path: of the block in the model; "": it is the model. */
static mt_module *make_block(mt_device *device, const mti_model_shard *s, int64_t layer,
                             const char *path, const mt_lora_options *lora)
{
    const mt_model_config own = mti_layer_config(&s->local, layer);
    mt_module *block = mt_block_new(device, &own);
    mt_module *attn = mt_module_child(block, "attn"), *mlp = mt_module_child(block, "mlp");
    if (attn) shard_positions(attn, &s->parallel);
    return mti_module_complete(block, block && (!lora || mti_lora_add_part(block, path, lora)) &&
                                          shard_attention(attn, &s->parallel) &&
                                          shard_mlp(mlp, &s->parallel));
}

/* ---- making: what comes before the layers and after them ---- */

/* A bert's types are all 0 here: their row, for whatever tokens. */
static mt_tensor *type_forward(mt_module *self, mt_tensor *tokens)
{
    (void)tokens;
    return mt_slice(mt_module_param(self, "weight"), 0, 0, 1);
}

static mt_module *types_new(mt_device *device, const mt_model_config *c)
{
    mt_module *m = mt_module_new("types", type_forward, NULL, NULL);
    return mti_module_complete(
        m, m && mt_module_add_param(m, "weight",
                                    mt_normal(device, c->dtype, MT_SHAPE(c->token_types, c->hidden),
                                              0, MTI_INIT_STD)));
}

static bool add_embeddings(mt_module *m, mt_device *device, const mti_model_shard *s)
{
    const mt_model_config *c = &s->local;
    bool bert = c->kind == MT_MODEL_BERT;
    return mti_add_embedding(m, "wte", device, c, c->vocab) && mti_shard_embedding(m, "wte", s) &&
           (!mti_learns_positions(c) ||
            mt_module_add_child(m, "wpe", mti_positions_new(device, c))) &&
           (!bert || (mt_module_add_child(m, "tte", types_new(device, c)) &&
                      mti_add_norm(m, "ln", device, c))) &&
           mti_add_embedding_dropout(m, c);
}

/* The product with the embedding's weight gets no adapter, as in the whole model. */
static mt_tensor *tied_forward(mt_module *self, mt_tensor *x)
{
    return mt_linear(x, mt_module_param(self, "weight"), mt_module_param(self, "bias"));
}

/* weight is taken over. */
static mt_module *tied_new(mt_device *device, const mt_model_config *c, mt_tensor *weight)
{
    mt_module *m = mt_module_new(MTI_TIED, tied_forward, NULL, NULL);
    if (!m) mt_release(weight);
    return mti_module_complete(
        m, m && mt_module_add_param(m, "weight", weight) &&
               (c->kind != MT_MODEL_BERT ||
                mt_module_add_param(m, "bias", mt_zeros(device, c->dtype, MT_SHAPE(c->vocab)))));
}

/* If tied, the head's weight is that of the embedding, *shared, or on another rank than the
 * embedding a copy of it; else *shared is NULL. */
static bool add_head(mt_module *m, mt_device *device, const mti_model_shard *s, mt_tensor **shared)
{
    const mt_model_config *c = &s->local;
    if (c->pooled) return mt_module_add_child(m, "pooler", mti_pooler_new(device, c)) != NULL;
    if (c->kind == MT_MODEL_BERT && !mt_module_add_child(m, "head", mti_bert_head_new(device, c)))
        return false;
    if (c->norm != MT_NORM_POST && !mti_add_norm(m, "ln_f", device, c)) return false;
    if (c->untied)
        return mt_module_add_child(
            m, product_name(s),
            mt_linear_new(device, c->dtype, c->hidden, c->vocab, false, MTI_INIT_STD));
    *shared = mt_module_param(mt_module_child(m, "wte"), "weight");
    mt_tensor *weight =
        *shared ? mt_retain(*shared)
                : mt_normal(device, c->dtype, MT_SHAPE(c->vocab, c->hidden), 0, MTI_INIT_STD);
    return mt_module_add_child(m, product_name(s), weight ? tied_new(device, c, weight) : NULL);
}

/* ---- making a part ---- */

static bool add_layers(mt_module *m, mt_device *device, const mti_model_shard *s,
                       const mt_lora_options *lora)
{
    char name[32];
    for (int64_t i = s->from; i < s->to; i++) {
        snprintf(name, sizeof name, "h.%lld", (long long)i);
        if (!mt_module_add_child(m, name, make_block(device, s, i, name, lora))) return false;
    }
    return true;
}

/* The projection of each is whole on all ranks that share it. */
static bool add_mtp(mt_module *m, mt_device *device, const mti_model_shard *s,
                    const mt_lora_options *lora)
{
    char name[MTI_LAYER_NAME], path[MTI_LAYER_NAME + 8];
    bool ok = true;
    for (int64_t k = 0; ok && k < s->local.mtp_layers; k++) {
        snprintf(path, sizeof path, "%s.block", mti_mtp_name(name, k));
        mt_module *child = mti_add_mtp_module(m, k, device, &s->local);
        ok = child && mt_module_add_child(child, "block",
                                          make_block(device, s, s->whole.layers, path, lora));
    }
    return ok;
}

/* s is taken over. */
static mt_module *make(mt_device *device, mti_model_shard *s, const mt_lora_options *lora,
                       mt_tensor **shared)
{
    *shared = NULL;
    if (s->whole.kind == MT_MODEL_BLOCK) {
        mt_module *block = make_block(device, s, s->from, "", lora);
        mti_free(s);
        return block;
    }
    mt_module *m = mt_module_new(mt_model_kind_name(s->whole.kind), rank_forward, s, mti_free);
    return mti_module_complete(
        m, m && (!(s->first || mti_copies_embedding(s)) || add_embeddings(m, device, s)) &&
               add_layers(m, device, s, lora) &&
               (!s->last || (add_head(m, device, s, shared) && add_mtp(m, device, s, lora))) &&
               (!lora || mti_lora_add_part(m, "", lora))); /* beside layers; freezes the rest */
}

/* Makes the module whole on a separate device, so that it is not counted; then replaces each
 * parameter by a shard on the sharder's. */
static mt_module *make_in_shards(mti_model_shard *s, const mt_lora_options *lora,
                                 mti_sharder *sharder)
{
    mt_device *separate = mt_device_open("meta");
    const bool keeps = sharder->policy.keep_root;
    mt_module *m = separate ? make(separate, s, lora, &sharder->shared) : NULL;
    if (!separate) mti_free(s);
    sharder->units = m ? mti_units_new(sharder->device, sharder->parallel) : NULL;
    if (sharder->units && keeps) sharder->unit = mti_units_add(sharder->units, MTI_UNIT_ROOT, m);
    m = mti_module_complete(m, sharder->units && (sharder->unit || !keeps) &&
                                   mti_shard_params(m, sharder));
    if (m) mti_module_mark_shards(m);
    mt_device_release(separate);
    return m;
}

/* Whether the ranks can reach each other where they have to. */
static bool check_reach(mt_device *device, const mt_parallel *h)
{
    const mt_group data = mti_data_group(h);
    bool several = h->tensor > 1 || data.ranks > 1 || h->pipeline > 1;
    if (!mt_device_has_data(device) || !several) return true;
    if ((h->tensor > 1 && !h->tensor_comm) || (h->context > 1 && !h->context_comm) ||
        (data.ranks > 1 && !data.comm) || (h->pipeline > 1 && !h->pipeline_comm) ||
        (mti_is_end(h) && !h->ends_comm) ||
        (h->replicas > 1 && !(h->shard_comm && h->replica_comm)) ||
        (h->reshard > 1 && !h->reshard_comm) ||
        (mti_divides_experts(h) && !(h->expert_comm && h->expert_data_comm)))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "rank: %lld x %lld x %lld ranks on %s without a comm; need their "
                             "comms (mt_parallel_place), or meta, where no data has to move",
                             (long long)h->tensor, (long long)data.ranks, (long long)h->pipeline,
                             mt_device_kind(device));
    return true;
}

/* What ranks compute with adapters is what one process would. */
static bool check_adapters(mt_device *device, const mt_parallel *h, const mt_lora_options *lora)
{
    bool several = h->tensor > 1 || mti_data_group(h).ranks > 1 || h->pipeline > 1;
    if (!lora || !mt_device_has_data(device) || !several) return true;
    if (lora->dropout > 0)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "rank: adapters with dropout %g among several ranks on %s: their "
                             "masks would not be those of one process; need dropout 0, or meta",
                             lora->dropout, mt_device_kind(device));
    return lora->base == MT_LORA_KEEP || (h->tensor == 1 && h->expert == 1) ||
           mti_fail_bool(
               MT_ERR_UNSUPPORTED,
               "rank: weights in 4 bits among %lld tensor ranks, %lld expert ranks on %s: a "
               "shard of a matrix has other blocks than the whole, and so other codes; "
               "need tensor 1, expert 1, weights that are not quantised, or meta",
               (long long)h->tensor, (long long)h->expert, mt_device_kind(device));
}

/* A mask of attention's weights is drawn row by row, each as long as the keys that its query can
 * see; one process draws rows of all keys. */
static bool check_masks(const mt_device *device, const mti_model_shard *s)
{
    return s->parallel.context == 1 || s->whole.dropout == 0 || !mt_device_has_data(device) ||
           mti_fail_bool(
               MT_ERR_UNSUPPORTED,
               "rank: dropout %g among %lld ranks with other positions on %s: their masks "
               "of attention's weights would not be those of one process; need dropout 0, "
               "context 1, or meta",
               s->whole.dropout, (long long)s->parallel.context, mt_device_kind(device));
}

/* Files and first values are those of a model whose parameters have one type. */
static bool check_shards(const mt_device *device, const mt_parallel *h)
{
    if (h->host_shards && mt_device_has_data(device))
        return mti_fail_bool(MT_ERR_UNSUPPORTED, "rank: shards in host memory on %s; need meta",
                             mt_device_kind(device));
    return !(h->fsdp & MT_FSDP_F32_SHARDS) || !mt_device_has_data(device) ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "rank: f32 shards on %s: a rank's weights are drawn, saved and read in "
                         "the config's dtype; need meta, or no f32 shards",
                         mt_device_kind(device));
}

static bool check_shards_fit(bool shards, const mt_lora_options *lora)
{
    if (shards && lora && lora->on_weights)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "rank: adapters on weights, of which zero 3 leaves a rank shards; "
                             "need adapters on products, or zero 0 to 2");
    return !shards || !lora || lora->base == MT_LORA_KEEP ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "rank: ZeRO 3 gathers floats, and weights in 4 bits are codes; need "
                         "stage 0 to 2, or weights that are not quantised");
}

mt_module *mti_rank_new(mt_device *device, const mt_model_config *config,
                        const mt_parallel *parallel, int64_t part, const mt_lora_options *lora,
                        mti_units **units)
{
    mti_model_shard made;
    if (units) *units = NULL;
    if (!mti_given(device, "rank_new", "the device")) return NULL;
    if (!mti_model_shard_make(&made, config, parallel, part)) return NULL;
    const mt_parallel *h = &made.parallel;
    const int64_t replicas = mti_data_group(h).ranks;
    bool shards = h->zero == 3 && (replicas > 1 || h->fsdp), shared = h->tensor > 1 || replicas > 1;
    if (!check_reach(device, h) || !check_adapters(device, h, lora) || !check_shards(device, h) ||
        !check_masks(device, &made) || !check_shards_fit(shards, lora))
        return NULL;
    mti_model_shard *s = mti_malloc(sizeof *s);
    if (!s) return NULL;
    *s = made;
    mt_tensor *tied;
    mti_sharder sharder = {.device = device, .parallel = h, .policy = mti_shard_policy_of(h)};
    uint64_t seed, offset;
    mt_rng_get(device, &seed, &offset);
    mt_module *m = shards ? make_in_shards(s, lora, &sharder) : make(device, s, lora, &tied);
    if (mt_device_has_data(device) && (shards || shared || h->pipeline > 1 || lora))
        m = mti_module_complete(m, m && mti_rank_draw(m, &made, sharder.units, lora, seed, offset));
    /* Without data, too: a mask that is a part cannot be drawn again alone, so it is kept. */
    if (shared) m = mti_module_complete(m, m && mti_shard_draws(m, &made.parallel));
    if (units && m)
        *units = sharder.units;
    else
        mti_units_release(sharder.units);
    return m;
}

mt_module *mt_rank_new(mt_device *device, const mt_model_config *config,
                       const mt_parallel *parallel, int64_t part)
{
    return mti_rank_new(device, config, parallel, part, NULL, NULL);
}
