/* count.c: the products of a layer, and the number of parameters. */
#include <string.h>
#include "nn/model.h"

int mti_layer_products(const mt_model_config *c, mti_product products[MTI_PRODUCTS])
{
    int n = 0;
    bool joint = c->joint_products || c->rope_theta == 0;
    if (c->kind == MT_MODEL_LINEAR) products[n++] = MTI_PRODUCT_WIDEN;
    if (mti_attends(c->kind) && c->kv_rank) {
        products[n++] = c->q_rank ? MTI_PRODUCT_Q_A : MTI_PRODUCT_Q;
        if (c->q_rank) products[n++] = MTI_PRODUCT_Q_B;
        products[n++] = MTI_PRODUCT_KV_A;
        products[n++] = MTI_PRODUCT_KV_B;
        products[n++] = MTI_PRODUCT_PROJ;
    } else if (mti_attends(c->kind)) {
        products[n++] = joint ? MTI_PRODUCT_QKV : MTI_PRODUCT_Q;
        if (!joint) products[n++] = MTI_PRODUCT_KV;
        if (!joint) products[n++] = MTI_PRODUCT_KV;
        products[n++] = MTI_PRODUCT_PROJ;
    }
    if (mti_feeds(c->kind) && c->experts) {
        products[n++] = MTI_PRODUCT_ROUTER;
        products[n++] = MTI_PRODUCT_EXPERT_FIRST;
        products[n++] = MTI_PRODUCT_EXPERT_DOWN;
        if (c->shared_experts) products[n++] = MTI_PRODUCT_SHARED;
        if (c->shared_experts) products[n++] = MTI_PRODUCT_SHARED;
        if (c->shared_experts) products[n++] = MTI_PRODUCT_SHARED_DOWN;
    } else if (mti_feeds(c->kind)) {
        bool gated = c->mlp != MT_MLP_PLAIN;
        products[n++] = gated && c->joint_products ? MTI_PRODUCT_GATE_UP : MTI_PRODUCT_WIDEN;
        if (gated && !c->joint_products) products[n++] = MTI_PRODUCT_WIDEN;
        products[n++] = MTI_PRODUCT_DOWN;
    }
    return n;
}

static bool is_of_experts(mti_product product)
{
    return product == MTI_PRODUCT_EXPERT_FIRST || product == MTI_PRODUCT_EXPERT_DOWN;
}

bool mti_product_is_kept(const mt_model_config *c, const mti_product *products, int i)
{
    const bool loop = mti_expert_form_of(c->ops.expert_form)->alone; /* two for each expert */
    int before = 0; /* linears: other experts have other products */
    for (int k = 0; k < i; k++) before += loop || !is_of_experts(products[k]);
    return before % 2 == 0 && (loop || !is_of_experts(products[i]));
}

int64_t mti_experts_here(const mt_model_config *c)
{
    return c->expert_ranks ? c->experts / c->expert_ranks : c->experts;
}

int64_t mti_shared_width(const mt_model_config *c)
{
    return c->shared_experts * c->ffn / (c->shared_ranks ? c->shared_ranks : 1);
}

int64_t mti_product_copies(const mt_model_config *c, mti_product product, int64_t *taken)
{
    const bool experts = is_of_experts(product);
    *taken = experts ? c->experts_per_token : 1;
    return experts ? mti_experts_here(c) : 1;
}

static uint64_t inputs(const mt_model_config *c, int64_t q, mti_product product)
{
    const bool down = product == MTI_PRODUCT_DOWN || product == MTI_PRODUCT_EXPERT_DOWN;
    switch (product) {
    case MTI_PRODUCT_PROJ: return (uint64_t)(c->kv_rank ? c->heads * c->value_dim : q);
    case MTI_PRODUCT_Q_B: return (uint64_t)c->q_rank;
    case MTI_PRODUCT_KV_B: return (uint64_t)c->kv_rank;
    case MTI_PRODUCT_SHARED_DOWN: return (uint64_t)mti_shared_width(c);
    default: return (uint64_t)(down ? c->ffn : c->hidden);
    }
}

static uint64_t outputs(const mt_model_config *c, int64_t q, int64_t k, mti_product product)
{
    switch (product) {
    case MTI_PRODUCT_QKV: return (uint64_t)(q + 2 * k);
    case MTI_PRODUCT_Q:
    case MTI_PRODUCT_Q_B: return (uint64_t)q;
    case MTI_PRODUCT_Q_A: return (uint64_t)c->q_rank;
    case MTI_PRODUCT_KV_A: return (uint64_t)(c->kv_rank + c->rope_dim);
    case MTI_PRODUCT_KV_B: return (uint64_t)mti_latent_width(c);
    case MTI_PRODUCT_SHARED: return (uint64_t)mti_shared_width(c);
    case MTI_PRODUCT_KV: return (uint64_t)k;
    case MTI_PRODUCT_WIDEN: return (uint64_t)c->ffn;
    case MTI_PRODUCT_EXPERT_FIRST:
        if (c->mlp == MT_MLP_PLAIN) return (uint64_t)c->ffn; /* fall through */
    case MTI_PRODUCT_GATE_UP: return 2 * (uint64_t)c->ffn;
    case MTI_PRODUCT_ROUTER: return (uint64_t)c->experts;
    default: return (uint64_t)c->hidden;
    }
}

uint64_t mti_product_size(const mt_model_config *c, int64_t q, int64_t k, mti_product product)
{
    return inputs(c, q, product) * outputs(c, q, k, product);
}

static uint64_t norm_size(const mt_model_config *c, int64_t n)
{
    return (uint64_t)n * (c->norm_kind == MT_NORM_LAYER && !c->no_bias ? 2 : 1);
}

int64_t mti_latent_width(const mt_model_config *c)
{
    return c->heads * (c->head_dim - c->rope_dim + c->value_dim);
}

static bool has_bias(const mt_model_config *c, mti_product product)
{
    const bool expert = product == MTI_PRODUCT_EXPERT_FIRST || product == MTI_PRODUCT_EXPERT_DOWN;
    if (expert) return c->mlp == MT_MLP_CLAMPED;
    if (product == MTI_PRODUCT_ROUTER)
        return c->router == MT_ROUTER_CHOSEN && c->mlp == MT_MLP_CLAMPED;
    return !c->no_bias || (c->qkv_bias && product <= MTI_PRODUCT_KV) ||
           (c->proj_bias && product == MTI_PRODUCT_PROJ);
}

uint64_t mti_layer_size(const mt_model_config *c, int64_t q, int64_t k)
{
    mti_product products[MTI_PRODUCTS];
    uint64_t size = 0;
    for (int i = mti_layer_products(c, products); i--;) {
        int64_t taken, copies = mti_product_copies(c, products[i], &taken);
        size += (uint64_t)copies * mti_product_size(c, q, k, products[i]);
        if (has_bias(c, products[i])) size += (uint64_t)copies * outputs(c, q, k, products[i]);
    }
    if (mti_attends(c->kind) && c->kv_rank) size += norm_size(c, c->kv_rank + c->q_rank);
    if (mti_attends(c->kind) && c->sinks) size += (uint64_t)c->heads;
    if (mti_attends(c->kind) && c->qk_norm)
        size += norm_size(c, c->qk_norm == MT_QK_NORM_WIDTH ? q + k : 2 * c->head_dim);
    if (mti_attends(c->kind) && mti_feeds(c->kind))
        size += (c->norm == MT_NORM_AROUND ? 4 : 2) * norm_size(c, c->hidden);
    return size;
}

void mti_end_sizes(mti_end_size ends[MTI_ENDS], const mt_model_config *c, bool first, bool last)
{
    const bool bert = c->kind == MT_MODEL_BERT, whole = mti_is_whole(c->kind);
    /* on another rank than the embedding predictions ahead have a copy of it, or a tied head */
    const bool ahead = !first && last && c->mtp_layers, copy = mti_ties_head(c) && !first && !ahead;
    const uint64_t h = (uint64_t)c->hidden, v = (uint64_t)c->vocab, norm = norm_size(c, c->hidden);
    const uint64_t positions = (uint64_t)(c->context + c->position_offset) * h;
    const uint64_t dense = h * h + (c->no_bias ? 0 : h);
    const uint64_t joined = 2 * h * h + (c->norm == MT_NORM_POST ? 2 : 3) * norm;
    first = (first || ahead) && whole, last = last && whole;
    const mti_end_size all[MTI_ENDS] = {
        {ahead ? "a copy of the embedding, which another stage has, for predictions ahead"
               : "the embedding: a vector for each token",
         first ? v * h : 0},
        {"learned positions: a vector for each", first && mti_learns_positions(c) ? positions : 0},
        {"a vector for each type of token", first && bert ? (uint64_t)c->token_types * h : 0},
        {"the embeddings' norm", first && bert ? norm : 0},
        {"the norm after the last layer", last && c->norm != MT_NORM_POST ? norm : 0},
        {c->pooled ? "the pooler's product"
                   : "the head's product, norm and biases, one for each token",
         !last || !bert ? 0
         : c->pooled    ? dense
                        : dense + norm + v},
        {copy ? "the head: a copy of the embedding, which another stage has"
              : "a separate head, vh: not the embedding's matrix once more",
         last && (copy || c->untied) ? v * h : 0},
        {"predictions ahead: a product 2h -> h and norms for each, beside their layers",
         last ? (uint64_t)c->mtp_layers * joined : 0},
    };
    memcpy(ends, all, sizeof all);
}

/* With those of predictions ahead. */
static int64_t layers_of(const mt_model_config *c)
{
    return mti_is_whole(c->kind) ? c->layers + c->mtp_layers : 1;
}

static int64_t dense_layers(const mt_model_config *c)
{
    if (!mti_is_whole(c->kind)) return 0;
    return c->dense_layers < c->layers ? c->dense_layers : layers_of(c);
}

mt_status mt_model_config_params(const mt_model_config *config, uint64_t *n)
{
    mt_model_config c;
    mti_end_size ends[MTI_ENDS];
    if (!n) return mti_fail(MT_ERR_ARGUMENT, "config: the count is NULL");
    mt_status status = mt_model_config_resolve(config, &c);
    if (status != MT_OK) return status;
    const int64_t q = c.heads * c.head_dim, k = c.kv_heads * c.head_dim, dense = dense_layers(&c);
    mt_model_config without = c;
    mti_make_dense(&without);
    *n = (uint64_t)(layers_of(&c) - dense) * mti_layer_size(&c, q, k);
    if (dense) *n += (uint64_t)dense * mti_layer_size(&without, q, k);
    mti_end_sizes(ends, &c, true, true);
    for (int i = 0; i < MTI_ENDS; i++) *n += ends[i].n;
    return MT_OK;
}

mt_status mt_model_config_active_params(const mt_model_config *config, uint64_t *n)
{
    mt_model_config c;
    mt_status status = mt_model_config_params(config, n);
    if (status == MT_OK) status = mt_model_config_resolve(config, &c);
    if (status != MT_OK || !c.experts) return status;
    const uint64_t idle = (uint64_t)(c.experts - c.experts_per_token);
    const uint64_t biases = c.mlp == MT_MLP_CLAMPED ? 2 * (uint64_t)c.ffn + (uint64_t)c.hidden : 0;
    *n -= (uint64_t)(layers_of(&c) - dense_layers(&c)) * idle *
          (mti_product_size(&c, 0, 0, MTI_PRODUCT_EXPERT_FIRST) +
           mti_product_size(&c, 0, 0, MTI_PRODUCT_EXPERT_DOWN) + biases);
    return MT_OK;
}
