/* parameters.c: the number of parameters. */
#include <stdio.h>
#include "nn/model.h"
#include "parallel/parallel.h"
#include "plan/plan.h"

/* ---- one block: attention [h -> q + 2k, q -> h], MLP [h -> f -> h], two norms ---- */

int64_t mti_block_matrices(const mti_dims *s)
{
    mti_product products[MTI_PRODUCTS];
    int64_t sum = 0;
    for (int i = mti_layer_products(&s->config, products); i--;) {
        int64_t taken;
        mti_product_copies(&s->config, products[i], &taken);
        sum += taken * (int64_t)mti_product_size(&s->config, s->q, s->k, products[i]);
    }
    return sum;
}

static int64_t block_parameters(const mti_dims *s)
{
    return (int64_t)mti_layer_size(&s->config, s->q, s->k);
}

static int64_t layers_have(const mti_dims *s) { return mti_sum_layers(s, block_parameters); }

/* ---- around a whole model's blocks ---- */

/* from: 0, or 1 where the embedding is counted already. */
static bool add_ends(mt_plan_formula *out, const mt_model_config *c, bool first, bool last,
                     int from)
{
    mti_end_size ends[MTI_ENDS];
    mti_end_sizes(ends, c, first, last);
    for (int i = from; i < MTI_ENDS; i++)
        if (!mti_add_row(out, (int64_t)ends[i].n, "%s", ends[i].what)) return false;
    return true;
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
    return add_ends(out, &s->config, true, true, 1);
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
    int64_t h = s.config.hidden, layers = mti_dims_layers(&s) - mti_dims_ahead(&s);
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

/* ---- one rank of several ---- */

bool mti_plan_rank_parameters(mt_plan_formula *out, const mt_model_config *config,
                              const mt_parallel *parallel)
{
    mti_dims s;
    mti_model_shard shard;
    int64_t layers = 0, parts = 1;
    *out = (mt_plan_formula){.name = "parameters",
                             .unit = "parameters",
                             .source = "of each layer the matrices and their columns' biases / t, "
                                       "the other biases and two norms whole (Shoeybi et al. "
                                       "2019)"};
    if (!mti_dims_make(&s, config, 1, 1, NULL)) return false;
    for (int64_t i = 0; i < parts; i++) {
        if (!mti_model_shard_make(&shard, config, parallel, i)) return false;
        const mt_model_config *c = &shard.local;
        const int64_t q = c->heads * c->head_dim, k = c->kv_heads * c->head_dim;
        parts = shard.parallel.interleave;
        layers += shard.to - shard.from;
        const int64_t ahead = shard.last ? c->mtp_layers : 0;
        for (int64_t layer = shard.from; layer < shard.to + ahead; layer++) {
            const mt_model_config own = mti_layer_config(c, layer);
            out->value += (int64_t)mti_layer_size(&own, q, k);
        }
    }
    out->expected = out->value;
    snprintf(out->text, sizeof out->text, "a rank's share of %lld layer%s", (long long)layers,
             layers == 1 ? "" : "s");
    for (int64_t i = 0; i < parts; i++)
        if (!mti_model_shard_make(&shard, config, parallel, i) ||
            !add_ends(out, &shard.local, shard.first, shard.last, 0))
            return false;
    return true;
}
