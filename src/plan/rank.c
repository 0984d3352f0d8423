/* rank.c: what one rank of several has and keeps, by formula. */
#include <stdio.h>
#include "nn/model.h"
#include "parallel/parallel.h"
#include "plan/plan.h"

/* ---- parameters ---- */

/* Of the layers of a part, as tensor parallelism divides them. */
static bool count_layers(const mti_share *share, int64_t *n)
{
    mti_dims s;
    mt_model_config layer = share->local;
    layer.kind = MT_MODEL_BLOCK;
    if (!mti_dims_make(&s, &layer, 1, 1, NULL)) return false;
    *n += (share->to - share->from) * mti_block_parameters(&s);
    return true;
}

static int64_t norm_of(const mt_model_config *c)
{
    return c->hidden * (c->norm_kind == MT_NORM_LAYER && !c->no_bias ? 2 : 1);
}

static bool add_embeddings(mt_plan_formula *out, const mti_share *share)
{
    const mt_model_config *c = &share->local;
    bool bert = c->kind == MT_MODEL_BERT;
    return mti_add_row(out, c->vocab * c->hidden, "the embedding's share: %lld rows",
                       (long long)c->vocab) &&
           mti_add_row(out, c->kind == MT_MODEL_LLAMA ? 0 : c->context * c->hidden,
                       "learned positions: a vector for each of %lld", (long long)c->context) &&
           mti_add_row(out, bert ? c->token_types * c->hidden + norm_of(c) : 0,
                       "a vector for each type of token, and the embeddings' norm");
}

static bool add_head(mt_plan_formula *out, const mti_share *share)
{
    const mt_model_config *c = &share->local;
    int64_t h = c->hidden;
    bool tied = c->kind == MT_MODEL_LLAMA ? c->tied : !c->untied;
    int64_t before = h * h + (c->no_bias ? 0 : h) + norm_of(c) + c->vocab;
    return mti_add_row(out, c->norm == MT_NORM_PRE ? norm_of(c) : 0,
                       "the norm after the last layer") &&
           mti_add_row(out, c->kind == MT_MODEL_BERT ? before : 0,
                       "the head's product and norm, and its share of V biases") &&
           mti_add_row(out, tied && share->first ? 0 : c->vocab * h,
                       tied ? "the head: a copy of the embedding, which another stage has"
                            : "the head's share: not the embedding's matrix once more");
}

bool mti_plan_rank_parameters(mt_plan_formula *out, const mt_model_config *config,
                              const mt_parallel *parallel)
{
    mti_share share;
    int64_t layers = 0, parts = 1;
    *out = (mt_plan_formula){.name = "parameters",
                             .unit = "parameters",
                             .source = "of each layer the matrices and their columns' biases / t, "
                                       "the other biases and two norms whole (Shoeybi et al. "
                                       "2019)"};
    for (int64_t i = 0; i < parts; i++) {
        if (!mti_share_make(&share, config, parallel, i)) return false;
        parts = share.parallel.interleave;
        layers += share.to - share.from;
        if (!count_layers(&share, &out->value)) return false;
    }
    out->expected = out->value;
    snprintf(out->text, sizeof out->text, "a rank's share of %lld layer%s", (long long)layers,
             layers == 1 ? "" : "s");
    if (!mti_is_whole(share.whole.kind)) return true;
    for (int64_t i = 0; i < parts; i++)
        if (!mti_share_make(&share, config, parallel, i) ||
            (share.first && !add_embeddings(out, &share)) || (share.last && !add_head(out, &share)))
            return false;
    return true;
}

/* ---- what it keeps ---- */

bool mti_plan_rank_activations(mt_plan_formula *out, const mt_model_config *config,
                               const mt_parallel *parallel, int64_t batch, int64_t seq,
                               const mti_memory_options *memory)
{
    mti_formula f;
    if (!mti_formula_make(&f, config, batch, seq, memory, parallel, 0)) return false;
    *out = (mt_plan_formula){.name = "activations",
                             .unit = "bytes",
                             .source = "Korthikanti et al. 2022, table 2, over the parts of the "
                                       "model in flight",
                             .value = f.bytes,
                             .expected = f.bytes};
    snprintf(out->text, sizeof out->text, "%.95s", f.text);
    for (int i = 0; i < f.n_residual; i++)
        if (!mti_add_row(out, f.residual[i].bytes, "%s", f.residual[i].text)) return false;
    return true;
}
