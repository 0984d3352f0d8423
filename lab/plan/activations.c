/* activations.c: what a forward pass keeps, by a formula of the model's dimensions. */
#include <stdio.h>
#include <string.h>
#include "memtape/ops.h"
#include "nn/model.h"
#include "plan/builder.h"

static bool unfused_norms(const builder *b)
{
    return b->c->norm_kind != MT_NORM_LAYER && b->c->ops.rms_norm == MT_OP_UNFUSED;
}

/* An unfused norm keeps its normalised rows; Gemma's multiplies in f32. */
static void add_quotient(builder *b, letters product)
{
    const char *what = "normalised rows, for the norm's product with its weight";
    (b->c->norm_kind == MT_NORM_RMS_ONE ? mti_keep_wide : mti_keep)(b, product, FLOATS, what);
}

/* The input of a norm, and what an unfused one keeps besides. */
static void add_norm(builder *b, letters product, nature input, const char *what)
{
    if (!unfused_norms(b)) {
        mti_keep(b, product, input, what);
        return;
    }
    mti_keep_wide(b, product, b->e == 2 ? FLOATS : input, what);
    add_quotient(b, product);
}

static void add_roots(builder *b, int64_t rows)
{
    mti_keep_floats(b, "RMS norms: root mean square of each row", rows, mti_statistic_size(b));
}

/* 1 + w of n, which is no parameter; an unfused norm makes it in f32. */
static void add_weight(builder *b, int64_t n)
{
    int64_t bytes, e = b->e;
    if (b->c->norm_kind != MT_NORM_RMS_ONE) return;
    if (unfused_norms(b)) b->e = mti_statistic_size(b);
    mti_kept_as(b, FLOATS, n, &bytes);
    b->e = e;
    if (bytes) mti_keep_beside(b, "RMS norms: 1 + weight", bytes, true);
}

/* Adds what one norm over rows of n keeps besides its input. */
static void add_statistics_of(builder *b, int64_t rows, int64_t n)
{
    int64_t bytes = rows * mti_statistic_size(b);
    add_weight(b, n);
    if (unfused_norms(b)) {
        add_roots(b, rows);
    } else if (b->c->norm_kind != MT_NORM_LAYER) {
        mti_keep_beside(b, "RMS norms: rstd of each row", bytes, false);
    } else {
        mti_keep_beside(b, "layer norms: mean and rstd of each row", bytes, false);
        mti_keep_beside(b, "layer norms: mean and rstd of each row", bytes, false);
    }
}

static void add_norm_statistics(builder *b)
{
    int64_t rows = b->s->tokens / (b->s->rank ? b->s->rank->sequence : 1);
    add_statistics_of(b, rows, b->c->hidden);
}

static void add_flash_statistics(builder *b)
{
    int64_t rows = b->s->tokens * b->c->heads / (b->s->rank ? b->s->rank->tensor : 1);
    mti_keep_beside(b, "flash attention: log-sum-exp of each row", rows * mti_statistic_size(b),
                    false);
    mti_keep_beside(b, "flash attention: RNG state (seed, offset)", 2 * (int64_t)sizeof(int64_t),
                    false);
}

/* Queries, keys and values side by side in one storage. */
static void add_qkv(builder *b, const char *what)
{
    int64_t bytes;
    double each = mti_kept_as(b, FLOATS, b->value[BSQ] + 2 * b->value[BSK], &bytes);
    if (bytes == 0) return;
    mti_formula_term *term = mti_add_term(b, bytes, what);
    double q = each, k = 2 * each;
    letters of_q = mti_in_terms_of_h(b, BSQ, &q), of_k = mti_in_terms_of_h(b, BSK, &k);
    b->sum[of_q] += q;
    b->sum[of_k] += k;
    if (of_q == of_k)
        mti_write_term(b, term->text, sizeof term->text, "", q + k, b->letter, of_q);
    else
        mti_format(term->text, sizeof term->text, "%g%s(%s + 2%s)", each, b->letter,
                   mti_spelling(b, of_q), mti_spelling(b, of_k));
}

/* ---- what is kept, term by term ---- */

static bool preset_is(const builder *b, const char *preset)
{
    return b->memory && b->memory->checkpoint && !strcmp(b->memory->checkpoint, preset);
}

static void add_qk_norms(builder *b)
{
    const mt_model_config *c = b->c;
    bool by_head = c->qk_norm == MT_QK_NORM_HEAD;
    int64_t rows = b->s->tokens, t = b->s->rank ? b->s->rank->tensor : 1;
    add_norm(b, BSQ, FLOATS, "q: input of its norm");
    add_statistics_of(b, by_head ? rows * c->heads / t : rows, by_head ? c->head_dim : b->s->q);
    add_norm(b, BSK, FLOATS, "k: input of its norm");
    add_statistics_of(b, by_head ? rows * c->kv_heads / t : rows, by_head ? c->head_dim : b->s->k);
}

/* Attention weights, of math attention. */
static void add_weights(builder *b, bool drop)
{
    if (b->c->sinks) {
        mti_keep_sink_weights(b);
        if (drop) mti_keep(b, ABSS, MASK, "mask of the attention weights' dropout");
        if (drop) mti_keep(b, ABSS, FLOATS, "what dropout left of them, for the product with v");
        return;
    }
    bool cast = b->e == 2 && b->c->ops.softmax == MT_PRECISION_F32;
    (cast ? mti_keep_wide : mti_keep)(b, ABSS, FLOATS,
                                      "attention weights: softmax keeps its output");
    if (drop) mti_keep(b, ABSS, MASK, "mask of the attention weights' dropout");
    if (drop)
        mti_keep(b, ABSS, FLOATS, "what dropout left of them, for the product with v");
    else if (cast)
        mti_keep(b, ABSS, FLOATS, "the same in 2-byte floats, for the product with v");
}

/* The products before a latent attention's core, and its norms. */
static void add_latents(builder *b, nature input)
{
    const mt_model_config *c = b->c;
    const int64_t rows = b->s->tokens / (b->s->rank ? b->s->rank->sequence : 1);
    mti_keep(b, BSH, input, "input of the products that make latents");
    if (c->q_rank) {
        add_norm(b, BSC, FLOATS, "latent of q: input of its norm");
        add_statistics_of(b, rows, c->q_rank);
        mti_keep(b, BSC, FLOATS, "latent of q, for its product");
    }
    /* as a view of what the product made, unless it is cast */
    const char *latent = "latent of k and v beside the part of k that is turned: input of its norm";
    if (unfused_norms(b) && b->e == 2)
        mti_keep_wide(b, BSR, FLOATS, "latent of k and v, for its norm");
    else
        mti_keep(b, BSRP, FLOATS, latent);
    if (unfused_norms(b)) add_quotient(b, BSR);
    add_statistics_of(b, rows, c->kv_rank);
    mti_keep(b, BSR, FLOATS, "latent of k and v, for its product");
}

static void add_latent_attention(builder *b, nature input)
{
    const bool drop = b->c->dropout > 0, masks = mti_inner_dropout(b->c) > 0,
               math = b->c->attention == MT_ATTENTION_MATH;
    const int64_t heads = b->c->heads / (b->s->rank ? b->s->rank->tensor : 1);
    const int64_t shards = b->s->rank ? b->s->rank->seen : 1;
    const bool repeated = b->c->ops.kv_groups == MT_KV_REPEATED && b->s->seq * shards > 1 &&
                          mti_copies_heads(b->s->batch, heads, heads);
    const int64_t seen = repeated ? shards : 1; /* of all shards a copy */
    const bool up = mti_again(b, MT_RECOMPUTE_MLA_UP_PROJ);
    const bool core = !mti_again(b, MT_RECOMPUTE_CORE_ATTN);
    add_latents(b, input);
    if (up && b->s->rank && b->s->rank->sequence > 1)
        mti_keep_floats(b, "the turned part of k, of all shards", b->s->tokens * b->c->rope_dim,
                        b->e);
    else if (up && unfused_norms(b) && b->e == 2)
        mti_keep(b, BSRP, FLOATS, "the part of k that is turned, beside its latent");
    if (preset_is(b, "selective")) {
        mti_keep(b, BSQ, FLOATS, "q: input of the checkpoint");
        mti_keep(b, BSW, FLOATS, "k and v: input of the checkpoint");
        mti_keep_floats(b, "the turned part of k: input of the checkpoint",
                        b->s->tokens * b->c->rope_dim, b->e);
    } else {
        const bool copied = repeated && core;
        const nature made = up ? NOT_KEPT : FLOATS;
        mti_keep(b, BSQ, made, "q, turned in part");
        mti_keep_several(b, core ? seen : 1, BSQ, copied && seen > 1 ? FLOATS : made,
                         "k, with the turned part for each head");
        if (copied)
            mti_keep_several(b, seen, BSO, FLOATS, "v, a copy");
        else
            mti_keep(b, BSW, made, "v, beside k without its turned part");
    }
    if (core) {
        if (!math) add_flash_statistics(b);
        if (math && b->c->attention_cap > 0)
            mti_keep(b, ABSS, FLOATS, "tanh of the scores: soft capping");
        if (math) add_weights(b, masks);
    }
    if (core) mti_keep_window_masks(b);
    mti_keep(b, BSO, FLOATS, "merged heads: input of the projection");
    if (drop) mti_keep(b, BSH, MASK, "mask of the dropout after the projection");
}

static void add_attention(builder *b, nature input)
{
    if (b->c->kv_rank) {
        add_latent_attention(b, input);
        return;
    }
    bool drop = b->c->dropout > 0, masks = mti_inner_dropout(b->c) > 0,
         math = b->c->attention == MT_ATTENTION_MATH;
    bool core = !mti_again(b, MT_RECOMPUTE_CORE_ATTN), rope = b->c->rope_theta > 0;
    bool apart = rope && !b->c->joint_products;
    const int64_t width = b->c->head_dim * (b->s->rank ? b->s->rank->tensor : 1);
    int64_t seen = b->s->rank ? b->s->rank->seen : 1;
    const bool together = b->c->qkv_by_head && b->s->seq * seen == 1; /* heads follow each other */
    bool repeated = core && b->c->ops.kv_groups == MT_KV_REPEATED && !together &&
                    mti_copies_heads(b->s->batch, b->s->k / width, b->s->q / width);
    mti_keep(b, BSH, input,
             apart ? "input of the q, k and v products" : "input of the qkv product");
    if (!apart && !(rope && repeated))
        add_qkv(b, core ? "q, k and v" : "q, k and v: input of the checkpoint");
    if (b->c->qk_norm) add_qk_norms(b);
    if (apart || (rope && core))
        mti_keep(b, BSQ, FLOATS, core ? "q, turned" : "q: input of the checkpoint");
    if (!repeated && (apart || (rope && core)))
        mti_keep(b, BSK, FLOATS, core ? "k, turned" : "k: input of the checkpoint");
    if (!repeated && apart) mti_keep(b, BSK, FLOATS, core ? "v" : "v: input of the checkpoint");
    if (repeated) mti_keep_several(b, seen, BSQ, FLOATS, "k, repeated for each head");
    if (repeated) mti_keep_several(b, seen, BSQ, FLOATS, "v, repeated for each head");
    if (!math && core) add_flash_statistics(b);
    if (math && core && b->c->attention_cap > 0)
        mti_keep(b, ABSS, FLOATS, "tanh of the scores: soft capping");
    if (math && core) add_weights(b, masks);
    if (core) mti_keep_window_masks(b);
    mti_keep(b, BSQ, FLOATS,
             math || !core ? "merged heads: input of the projection"
                           : "merged heads: flash keeps its output, the projection its input");
    if (drop) mti_keep(b, BSH, MASK, "mask of the dropout after the projection");
}

/* An activation whose output nothing keeps besides. */
static void add_lone_activation(builder *b, mt_act act, const char *input, const char *output)
{
    mti_keep(b, BSH, mti_is_kinked(act) ? SIGNED : FLOATS,
             mti_keeps_output(act, false) ? output : input);
}

static void add_mlp(builder *b, nature input)
{
    bool shared = mti_keeps_output(b->c->act, b->c->inplace);
    mti_keep(b, BSH, input, "input of the MLP's first product");
    if (mti_again(b, MT_RECOMPUTE_MLP)) return;
    if (b->c->mlp == MT_MLP_SWIGLU) {
        if (b->c->joint_products) {
            mti_keep_several(b, 2, BSF, FLOATS, "gate and up, side by side");
        } else {
            mti_keep(b, BSF, FLOATS, "gate");
            mti_keep(b, BSF, FLOATS, "up");
        }
        if (b->c->ops.swiglu == MT_OP_UNFUSED)
            mti_keep(b, BSF, FLOATS, "silu(gate), for its product with up");
        mti_keep(b, BSF, FLOATS, "silu(gate) up: input of the MLP's last product");
    } else if (b->c->mlp == MT_MLP_GATED) {
        mti_keep_activation(b, BSF, false, "gate: input of the activation", "the activated gate");
        mti_keep(b, BSF, FLOATS, "up");
        mti_keep(b, BSF, FLOATS, "their product: input of the MLP's last product");
    } else {
        mti_keep_activation(b, BSF, b->c->inplace, "input of the activation",
                            shared ? "output of the activation: input of the second product, too"
                                   : "input of the MLP's second product");
    }
    if (b->c->dropout > 0) mti_keep(b, BSH, MASK, "mask of the dropout after the MLP");
    if (b->c->has_out_act)
        add_lone_activation(b, b->c->out_act, "input of the last activation",
                            "output of the last activation");
}

/* Cosines and sines of an unfused rope, once for all layers of a forward. */
static void add_tables(builder *b)
{
    int64_t bytes;
    /* latent attention turns the keys' part outside of a checkpoint of its core */
    const bool again =
        mti_again(b, b->c->kv_rank ? MT_RECOMPUTE_MLA_UP_PROJ : MT_RECOMPUTE_CORE_ATTN);
    if (b->c->rope_theta == 0 || b->c->ops.rope == MT_OP_FUSED || again ||
        (mti_dims_checkpoint(b->s) && !preset_is(b, "selective")))
        return;
    const bool joint = b->c->rope_order == MT_ROPE_COMPLEX;
    const int64_t e = b->e, width = b->c->rope_dim ? b->c->rope_dim : b->c->head_dim;
    if (joint) b->e = mti_statistic_size(b);
    mti_kept_as(b, FLOATS, b->s->seq * width / (b->c->sinks ? 2 : 1), &bytes);
    b->e = e;
    bytes *= (joint ? 1 : 2) * mti_dims_thetas(b->s);
    if (bytes) mti_keep_beside(b, "rotary positions: tables of cosines and sines", bytes, true);
}

static void add_layer(builder *b)
{
    mt_model_kind kind = b->c->kind;
    bool block = mti_attends(kind) && mti_feeds(kind);
    /* The first op of a part keeps the caller's input. */
    nature first = mti_is_whole(kind) ? FLOATS : INPUT;
    bool around = b->c->norm == MT_NORM_AROUND, parallel = b->c->norm == MT_NORM_PARALLEL,
         pre = b->c->norm == MT_NORM_PRE || around || parallel;
    const bool norms = !mti_again(b, MT_RECOMPUTE_LAYERNORM);
    const nature normed = norms ? FLOATS : NOT_KEPT;
    if (block)
        (norms ? add_norm : mti_keep)(b, BSH, pre ? first : FLOATS, "input of the first norm");
    if (block)
        (norms ? add_norm : mti_keep)(b, BSH, parallel ? NOT_KEPT : FLOATS, /* the first's, too */
                                      "input of the second norm");
    if (block && norms) add_norm_statistics(b), add_norm_statistics(b);
    if (block && around) add_norm(b, BSH, FLOATS, "attention's output: input of its norm");
    if (block && around) add_norm(b, BSH, FLOATS, "the MLP's output: input of its norm");
    if (block && around) add_norm_statistics(b), add_norm_statistics(b);
    if (kind == MT_MODEL_LINEAR) mti_keep(b, BSH, first, "input of the product");
    if (mti_attends(kind)) add_attention(b, block && pre ? normed : first);
    if (mti_feeds(kind)) (b->c->experts ? mti_keep_experts : add_mlp)(b, block ? normed : first);
}

/* The output of a product on a rank that has some rows of its weight: whole, to be summed. */
static void add_partial_sum(builder *b, const char *what)
{
    int64_t sequence = b->s->rank ? b->s->rank->sequence : 1;
    mti_keep_several(b, sequence, BSH, FLOATS, what);
}

static void add_result(builder *b, mti_product product)
{
    switch (product) {
    case MTI_PRODUCT_QKV: add_qkv(b, "q, k and v, before they are turned"); break;
    case MTI_PRODUCT_Q: mti_keep(b, BSQ, FLOATS, "q, before it is turned"); break;
    case MTI_PRODUCT_KV: mti_keep(b, BSK, FLOATS, "v"); break;
    case MTI_PRODUCT_PROJ: add_partial_sum(b, "output of attention's projection"); break;
    case MTI_PRODUCT_WIDEN: mti_keep(b, BSF, FLOATS, "output of the MLP's first product"); break;
    case MTI_PRODUCT_GATE_UP:
        mti_keep_several(b, 2, BSF, FLOATS, "gate and up, side by side");
        break;
    case MTI_PRODUCT_DOWN: add_partial_sum(b, "output of the MLP's last product"); break;
    case MTI_PRODUCT_ROUTER:
        mti_keep_floats(b, "router: logits",
                        b->s->tokens / (b->s->rank ? b->s->rank->folds : 1) * b->c->experts,
                        b->c->wide_router ? mti_statistic_size(b) : b->e);
        break;
    case MTI_PRODUCT_Q_A: mti_keep(b, BSC, FLOATS, "latent of q"); break;
    case MTI_PRODUCT_Q_B: mti_keep(b, BSQ, FLOATS, "q, before it is turned"); break;
    case MTI_PRODUCT_KV_A: mti_keep(b, BSRP, FLOATS, "latent of k and v"); break;
    case MTI_PRODUCT_KV_B: mti_keep(b, BSW, FLOATS, "k and v"); break;
    case MTI_PRODUCT_SHARED: mti_keep(b, BSX, FLOATS, "shared experts: gate, or up"); break;
    case MTI_PRODUCT_SHARED_DOWN: add_partial_sum(b, "shared experts: output"); break;
    case MTI_PRODUCT_EXPERT_FIRST:
    case MTI_PRODUCT_EXPERT_DOWN: {
        const bool down = product == MTI_PRODUCT_EXPERT_DOWN;
        b->by_expert = true;
        mti_keep_several(b, down || b->c->mlp == MT_MLP_PLAIN ? 1 : 2, down ? BSNH : BSF, FLOATS,
                         "outputs of the experts' products");
        b->by_expert = false;
    }
    }
}

/* What mt_policy_ops keeps of a layer. */
static void add_kept_results(builder *b)
{
    mti_product products[MTI_PRODUCTS];
    const mti_rank_dims *rank = b->s->rank;
    int n = mti_layer_products(b->c, products);
    for (int i = 0; i < n; i++)
        if (mti_product_is_kept(b->c, products, i)) add_result(b, products[i]);
    if (mti_attends(b->c->kind)) {
        mti_keep(b, b->c->kv_rank ? BSO : BSQ, FLOATS, "attention's output");
        if (b->c->attention == MT_ATTENTION_FLASH) add_flash_statistics(b);
    }
    if (rank && rank->sequence > 1)
        for (int i = 0; i < n; i++)
            if (products[i] == MTI_PRODUCT_PROJ || products[i] == MTI_PRODUCT_DOWN ||
                (products[i] == MTI_PRODUCT_EXPERT_DOWN && rank->folds == 1) ||
                products[i] == MTI_PRODUCT_SHARED_DOWN)
                mti_keep(b, BSH, FLOATS, "this rank's shard of the ranks' sum of a product");
}

/* Appends the sums, as "L(...)" if `layers` is "L", and resets them. */
static void write_sums(builder *b, const char *layers);
static void set_values(builder *b);

/* What add() makes of each layer, the ones without experts first: their number is D. */
static void add_each(builder *b, void (*add)(builder *b))
{
    const mt_model_config *c = b->c;
    const int64_t layers = mti_dims_layers(b->s), dense = mti_dims_dense(b->s);
    mt_model_config without = *c;
    mti_make_dense(&without);
    if (dense) {
        b->c = &without, b->times = dense, b->letter = "D";
        set_values(b);
        add(b);
        write_sums(b, b->letter);
        b->c = c;
        set_values(b);
    }
    b->times = layers - dense;
    b->letter = mti_is_whole(c->kind) || layers > 1 ? "L" : "";
    if (b->times) add(b);
}

static void add_checkpoint(builder *b)
{
    mti_keep(b, BSH, mti_is_whole(b->c->kind) ? FLOATS : INPUT, "input of each checkpoint");
    if (preset_is(b, "ops")) add_kept_results(b);
}

/* All layers, or the inputs of their checkpoints. */
static void add_layers(builder *b)
{
    const int64_t layers = mti_dims_layers(b->s), groups = mti_dims_groups(b->s);
    if (!mti_dims_checkpoint(b->s) || preset_is(b, "selective")) {
        add_each(b, add_layer);
    } else if (groups == layers) {
        add_each(b, add_checkpoint);
    } else {
        b->f->n_groups = b->times = groups;
        b->letter = "N";
        mti_keep(b, BSH, FLOATS, "input of each group of blocks");
    }
}

/* A bert's head: an activation, never in place, and a norm of its output. */
static void add_head_activation(builder *b)
{
    const char *input = "input of the head's activation";
    if (unfused_norms(b) && b->e == 2) {
        add_lone_activation(b, b->c->act, input, "output of the head's activation");
        mti_keep_gelu_parts(b, BSH);
        add_norm(b, BSH, FLOATS, "input of the head's norm");
        return;
    }
    mti_keep_activation(b, BSH, false, input, "input of the head's norm");
    if (unfused_norms(b)) add_quotient(b, BSH);
}

/* held: the tokens, by the caller. */
static void add_embedded(builder *b, bool held)
{
    mti_keep_beside(b, "embeddings: token indices", b->s->tokens * (int64_t)sizeof(int64_t), held);
    if (mti_inner_dropout(b->c) > 0)
        mti_keep(b, BSH, MASK, "mask of the dropout on the embeddings");
}

/* What a whole model keeps outside of its blocks: before the first ... */
static void add_embeddings(builder *b)
{
    bool bert = b->c->kind == MT_MODEL_BERT;
    add_embedded(b, true);
    if (bert) add_norm(b, BSH, FLOATS, "input of the embeddings' norm");
    if (bert) add_norm_statistics(b);
}

/* ... and after the last. */
static void add_pooler(builder *b)
{
    mti_keep(b, BSH, FLOATS, "input of the pooler, which takes a row of each sequence");
    mti_keep_floats(b, "output of the pooler's tanh", b->s->batch * b->c->hidden, b->e);
}

static void add_head(builder *b)
{
    const mt_loss_form loss = b->c->ops.loss;
    const int64_t rows = b->s->tokens * mti_statistic_size(b);
    bool bert = b->c->kind == MT_MODEL_BERT, apart = mti_loss_row_of(loss)->apart;
    /* ranks that share the logits have one op for the loss */
    bool unfused = apart && !(b->s->rank && b->s->rank->tensor > 1);
    if (bert) mti_keep(b, BSH, FLOATS, "input of the head's first product");
    if (bert) add_head_activation(b);
    if (bert) add_norm_statistics(b);
    if (b->c->norm != MT_NORM_POST) add_norm(b, BSH, FLOATS, "input of the last norm");
    if (b->c->norm != MT_NORM_POST) add_norm_statistics(b);
    bool early = mti_loss_row_of(loss)->early;
    mti_keep(b, BSH, early ? STATISTICS : FLOATS,
             early ? "gradient of the head's input" : "input of the head");
    if (b->c->logit_cap > 0) mti_keep(b, BSV, FLOATS, "tanh of the logits: soft capping");
    if (loss == MT_LOSS_FUSED)
        mti_keep_beside(b, "fused loss: log-sum-exp of each row", rows, false);
    else if (early)
        mti_keep_beside(b, "gradient of the head's matrix", b->c->vocab * b->c->hidden * b->e,
                        false);
    else if (loss == MT_LOSS_CHUNKED)
        mti_keep_chunks(b);
    else if (loss == MT_LOSS_LSE) {
        mti_keep(b, BSV, FLOATS, "logits, for the loss");
        mti_keep_beside(b, "cross-entropy: log-sum-exp of each row", rows, false);
    } else {
        bool wide = loss == MT_LOSS_F32 || apart;
        (wide ? mti_keep_wide : mti_keep)(b, BSV, unfused ? FLOATS : STATISTICS,
                                          "log-probabilities, for the loss");
    }
    if (unfused) mti_keep_beside(b, "unfused loss: which targets are ignored", b->s->tokens, false);
    if (unfused || loss == MT_LOSS_CHUNKED)
        mti_keep_beside(b, "loss: how many targets are counted", mti_statistic_size(b), false);
    const int64_t ahead = mti_dims_ahead(b->s); /* whose targets the caller does not hold */
    if (early) return;
    b->times -= ahead;
    mti_keep_beside(b, "cross-entropy: targets", 8 * b->s->tokens, !unfused);
    b->times = ahead;
    mti_keep_beside(b, "cross-entropy: targets", 8 * b->s->tokens, false);
}

/* What a prediction ahead has before its layer: nn/mtp.c. The head before keeps the same rows,
 * unless it keeps a gradient in their place, or rows of all ranks. */
static void add_ahead(builder *b)
{
    const mt_loss_form loss = b->c->ops.loss;
    const bool gathered = loss == MT_LOSS_CHUNKED && b->s->rank && b->s->rank->sequence > 1;
    const bool wide = unfused_norms(b) && b->e == 2;
    add_embedded(b, false);
    add_norm(b, BSH, FLOATS, "predictions ahead: input of the embedding's norm");
    if (wide || gathered || mti_loss_row_of(loss)->early)
        (wide ? mti_keep_wide : mti_keep)(b, BSH, FLOATS, "predictions ahead: input of their norm");
    if (unfused_norms(b)) add_quotient(b, BSH);
    add_norm_statistics(b), add_norm_statistics(b);
    mti_keep_several(b, 2, BSH, FLOATS, "predictions ahead: input of their first product");
}

/* ---- the formula as text ---- */

static void write_sums(builder *b, const char *layers)
{
    char *text = b->f->text, sums[MT_PLAN_TEXT / 2] = "";
    for (int p = 0; p < N_LETTERS; p++) {
        size_t n = strlen(sums);
        if (b->sum[p] > 0)
            mti_write_term(b, sums + n, sizeof sums - n, n ? " + " : "", b->sum[p], "", (letters)p);
        b->sum[p] = 0;
    }
    size_t n = strlen(text);
    if (!*sums) return;
    snprintf(text + n, sizeof b->f->text - n, *layers ? "%s%s(%s)" : "%s%s%s", n ? " + " : "",
             layers, sums);
}

/* The products of dimensions; of a rank, its share of them. s: its positions. */
static void set_values(builder *b)
{
    static const mti_rank_dims alone = {.tensor = 1, .sequence = 1, .seen = 1};
    const mti_dims *s = b->s;
    const mti_rank_dims *rank = s->rank ? s->rank : &alone;
    const mt_model_config *c = b->c;
    const int64_t t = rank->tensor, bsh = s->tokens * c->hidden;
    const int64_t folds = s->rank ? s->rank->folds : 1;
    const int64_t rows = c->experts ? folds * mti_rows_of_experts(c, s->tokens / folds) : s->tokens;
    const int64_t shards = s->tokens / rank->sequence;
    const int64_t values[N_LETTERS] = {[BSH] = bsh / rank->sequence,
                                       [BSH_T] = bsh / t,
                                       [BSH_WHOLE] = bsh,
                                       [BSQ] = s->tokens * s->q / t,
                                       [BSK] = s->tokens * s->k / t,
                                       [BSF] = rows * c->ffn / t,
                                       [ABSS] = c->heads * s->tokens * s->seq * rank->seen / t,
                                       [BSV] = s->tokens * ((c->vocab + t - 1) / t),
                                       [BSNH] = rows * c->hidden / folds,
                                       [BSO] = s->tokens * c->heads * c->value_dim / t,
                                       [BSC] = shards * c->q_rank,
                                       [BSR] = shards * c->kv_rank,
                                       [BSRP] = shards * (c->kv_rank + c->rope_dim),
                                       [BSW] = s->tokens * mti_latent_width(c) / t,
                                       [BSX] = s->tokens * c->shared_experts * c->ffn / t};
    memcpy(b->value, values, sizeof values);
}

/* The ends of a whole model, where there are any; `letter` stands for more than one. */
static void add_end(builder *b, void (*end)(builder *b), int64_t times, const char *letter)
{
    b->times = times;
    b->letter = times == 1 ? "" : letter;
    if (times) end(b);
}

void mti_formula_build(mti_formula *f, const mti_dims *s)
{
    const mt_model_config *c = &s->config;
    const mti_rank_dims *rank = s->rank;
    const int64_t e = (int64_t)mt_dtype_size(c->dtype);
    builder b = {.f = f, .s = s, .c = c, .memory = s->memory, .e = e};
    *f = (mti_formula){.known = true};
    set_values(&b);
    add_layers(&b);
    f->n_layer_terms = f->n_terms;
    write_sums(&b, b.letter);
    if (rank) f->n_layers = mti_dims_layers(s), f->n_first = rank->first, f->n_last = rank->last;
    if (mti_is_whole(c->kind)) {
        int64_t first = rank ? rank->first : 1, last = rank ? rank->last : 1;
        add_end(&b, add_embeddings, first, "E");
        const int64_t ahead = mti_dims_ahead(s);
        if (first != last || ahead) write_sums(&b, b.letter);
        add_end(&b, add_ahead, ahead, "P");
        if (ahead) write_sums(&b, b.letter);
        add_end(&b, c->pooled ? add_pooler : add_head, last + ahead, "H");
        write_sums(&b, b.letter);
        f->n_ahead = ahead;
        if (last || c->balance_by_layer) mti_keep_balance(&b);
    }
    b.times = 1;
    if (mti_attends(c->kind)) add_tables(&b);
    if (!*f->text) strcpy(f->text, "0");
}
