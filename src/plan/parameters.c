/* parameters.c: the number of parameters. */
#include <stdio.h>
#include "nn/model.h"
#include "plan/plan.h"

/* ---- one block: attention [h -> q + 2k, q -> h], MLP [h -> f -> h], two norms ---- */

static bool attends(const mti_dims *s) { return mti_attends(s->config.kind); }
static bool feeds(const mti_dims *s) { return mti_feeds(s->config.kind); }
static bool is_linear(const mti_dims *s) { return s->config.kind == MT_MODEL_LINEAR; }
static bool gated(const mti_dims *s) { return s->config.mlp != MT_MLP_PLAIN; }

int64_t mti_product_elements(const mti_dims *s, mti_product product)
{
    int64_t h = s->config.hidden, f = s->config.ffn;
    switch (product) {
    case MTI_PRODUCT_QKV: return h * (s->q + 2 * s->k);
    case MTI_PRODUCT_KV: return h * s->k;
    case MTI_PRODUCT_GATE_UP: return h * 2 * f;
    case MTI_PRODUCT_WIDEN:
    case MTI_PRODUCT_DOWN: return h * f;
    default: return h * s->q;
    }
}

int64_t mti_block_matrices(const mti_dims *s)
{
    mti_product products[MTI_PRODUCTS];
    int64_t sum = 0;
    for (int i = mti_layer_products(&s->config, products); i--;)
        sum += mti_product_elements(s, products[i]);
    return sum;
}

/* Of a norm over n. */
static int64_t norm_parameters(const mti_dims *s, int64_t n)
{
    bool bias = s->config.norm_kind == MT_NORM_LAYER && !s->config.no_bias;
    return n * (bias ? 2 : 1);
}

static int64_t qk_norm_parameters(const mti_dims *s)
{
    switch (s->config.qk_norm) {
    case MT_QK_NORM_HEAD: return norm_parameters(s, 2 * s->config.head_dim);
    case MT_QK_NORM_WIDTH: return norm_parameters(s, s->q + s->k);
    default: return 0;
    }
}

static int64_t block_vectors(const mti_dims *s)
{
    const mt_model_config *c = &s->config;
    int64_t h = c->hidden, in = s->q + 2 * s->k, f = (gated(s) ? 2 : 1) * c->ffn;
    int64_t attention = (c->no_bias && !c->qkv_bias ? 0 : in) + (c->no_bias ? 0 : h);
    int64_t mlp = c->no_bias ? 0 : f + h;
    if (is_linear(s)) return c->no_bias ? 0 : c->ffn;
    int64_t n_norms = c->norm == MT_NORM_AROUND ? 4 : 2;
    int64_t norms = attends(s) && feeds(s) ? n_norms * norm_parameters(s, h) : 0;
    return (attends(s) ? attention + qk_norm_parameters(s) : 0) + (feeds(s) ? mlp : 0) + norms;
}

int64_t mti_block_parameters(const mti_dims *s) { return mti_block_matrices(s) + block_vectors(s); }

static int64_t layers_have(const mti_dims *s)
{
    return mti_dims_layers(s) * mti_block_parameters(s);
}

/* ---- around a whole model's blocks ---- */

static bool add_ends(mt_plan_formula *out, const mti_dims *s)
{
    const mt_model_config *c = &s->config;
    int64_t h = c->hidden, norm = norm_parameters(s, h);
    bool bert = c->kind == MT_MODEL_BERT;
    if (!mti_is_whole(c->kind)) return true;
    const int64_t positions = c->kind == MT_MODEL_LLAMA ? 0 : c->context + c->position_offset;
    return mti_add_row(out, positions * h, "learned positions: a vector for each of %lld",
                       (long long)positions) &&
           mti_add_row(out, bert ? c->token_types * h : 0, "a vector for each type of token") &&
           mti_add_row(out, bert ? norm : 0, "the embeddings' norm") &&
           mti_add_row(out, c->norm != MT_NORM_POST ? norm : 0, "the norm after the last layer") &&
           mti_add_row(out, bert ? h * h + (c->no_bias ? 0 : h) + norm + c->vocab : 0,
                       "the head's product, norm and V biases") &&
           mti_add_row(out, c->untied ? c->vocab * h : 0,
                       "a head of its own, vh: not the embedding's matrix once more");
}

/* value, and the textbook's L(12h^2 + 13h) + vh */
static bool count(const mt_plan_run *run, mt_plan_formula *out, mti_dims *s)
{
    static const char *const texts[MT_MODEL_KIND_COUNT] = {
        [MT_MODEL_BLOCK] = "12h^2 + 13h",
        [MT_MODEL_ATTENTION] = "4h^2 + 4h",
        [MT_MODEL_MLP] = "8h^2 + 5h",
        [MT_MODEL_LINEAR] = "hf + f",
    };
    mti_memory_options memory;
    if (!mti_run_dims(s, &memory, run, out)) return false;
    s->memory = NULL;
    bool whole = mti_is_whole(s->config.kind);
    *out = (mt_plan_formula){
        .name = "parameters",
        .unit = "parameters",
        .source = "4h^2 + 4h of attention, 8h^2 + 5h of the MLP, 4h of two layer norms; vh, the "
                  "embedding, is the head's matrix, too (Radford et al. 2019)"};
    snprintf(out->text, sizeof out->text, "%s",
             whole ? "L(12h^2 + 13h) + vh" : texts[s->config.kind]);
    if (!mti_derive_formula(out, s, layers_have)) return false;
    int64_t embedding = whole ? s->config.vocab * s->config.hidden : 0;
    out->value += embedding;
    out->expected += embedding;
    return add_ends(out, s);
}

mt_status mt_plan_parameters(const mt_plan_run *run, mt_plan_formula *out)
{
    mti_dims s;
    return count(run, out, &s) ? MT_OK : mt_last_status();
}

mt_status mt_plan_parameters_in_brief(const mt_plan_run *run, mt_plan_formula *out)
{
    mt_plan_formula full;
    mti_dims s;
    if (!out) return mti_fail(MT_ERR_ARGUMENT, "plan: the result is NULL");
    if (!count(run, &full, &s)) return mt_last_status();
    int64_t h = s.config.hidden, layers = mti_dims_layers(&s);
    bool whole = mti_is_whole(s.config.kind);
    if (!whole && s.config.kind != MT_MODEL_BLOCK)
        return mti_fail(MT_ERR_ARGUMENT, "plan: 12h^2 is a block's; %s is not one",
                        mt_model_kind_name(s.config.kind));
    int64_t brief = 12 * layers * h * h;
    *out = (mt_plan_formula){.name = "parameters in brief",
                             .unit = "parameters",
                             .source = "the matrices of the textbook's block, without the rest",
                             .value = brief,
                             .expected = brief};
    snprintf(out->text, sizeof out->text, "%s", whole ? "12Lh^2" : "12h^2");
    bool ok = mti_add_row(out, 13 * layers * h, "biases and layer norms, 13h a layer") &&
              mti_add_row(out, whole ? s.config.vocab * h : 0, "the embedding, vh");
    for (int i = 0; ok && i < full.n_rows; i++)
        ok = mti_add_row(out, full.rows[i].amount, "%s", full.rows[i].text);
    return ok ? MT_OK : mt_last_status();
}
