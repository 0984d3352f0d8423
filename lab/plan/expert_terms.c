/* expert_terms.c: what a mixture of experts keeps, by a formula: nn/experts.c, op by op. */
#include "plan/builder.h"

void mti_keep_experts(builder *b, nature input)
{
    const int64_t folds = b->s->rank ? b->s->rank->folds : 1; /* ranks with other tokens here */
    const int64_t tokens = b->s->tokens / folds, n = tokens * b->c->experts_per_token;
    const int64_t rows = mti_rows_of_experts(b->c, tokens);
    const mt_expert_form form = b->c->ops.expert_form;
    const bool loop = mti_expert_form_of(form)->alone;
    const bool scored = mti_expert_form_of(form)->as_scored;
    const bool wide = b->c->wide_router && b->e == 2;
    const bool narrow = b->c->router == MT_ROUTER_SIGMOID && !b->c->wide_router && !scored;
    const int64_t size = narrow ? b->e : mti_statistic_size(b);
    if (mti_again(b, MT_RECOMPUTE_MOE)) {
        mti_keep(b, BSH, input, "input of the router and the experts");
        return;
    }
    if (wide) {
        const bool of_all = b->s->rank && b->s->rank->sequence > folds;
        mti_keep_wide(b, of_all ? BSH_WHOLE : BSH, FLOATS, "input of the router's product, in f32");
        mti_keep_floats(b, "router: its matrix in f32", b->c->experts * b->c->hidden,
                        mti_statistic_size(b));
    }
    if (!wide || b->c->shared_experts)
        mti_keep(b, BSH, input,
                 wide ? "input of the shared experts" : "input of the router's product");
    const bool gated = b->c->mlp != MT_MLP_PLAIN, weighted = form == MT_EXPERTS_MEGATRON;
    const bool chosen = b->c->router == MT_ROUTER_CHOSEN, clamped = b->c->mlp == MT_MLP_CLAMPED;
    if (chosen)
        mti_keep_floats(b, "router: weights of the chosen", n,
                        scored ? mti_statistic_size(b) : b->e);
    else
        mti_keep_floats(b, "router: probabilities", tokens * b->c->experts, size);
    if (b->c->expert_groups && b->c->router == MT_ROUTER_SOFTMAX)
        mti_keep_beside(b, "router: experts of other groups", tokens * b->c->experts, false);
    if (b->c->norm_topk) {
        mti_keep_floats(b, "router: the chosen probabilities", n, size);
        mti_keep_floats(b, "router: their sums", tokens, size);
    }
    /* chosen experts; rows, order, inverse, or both lists of one expert, which are inputs, or
     * tokens and order; those of biases */
    for (int i = 0; i < (form == MT_EXPERTS_GROUPED ? 4 : 3) + clamped; i++)
        mti_keep_beside(b, "experts: lists of indices", (i ? rows : n) * (int64_t)sizeof(int64_t),
                        i && loop);
    const int64_t ranks = b->s->rank ? b->s->rank->expert : 1;
    const int64_t counts = loop ? 0 : ranks > 1 ? 2 : 1; /* sent; received */
    for (int64_t i = 0; i < counts; i++)
        mti_keep_beside(b, "experts: rows of each", b->c->experts * (int64_t)sizeof(int32_t),
                        false);
    if (ranks > 1)
        mti_keep_beside(b, "experts: rows of each, from all ranks",
                        b->c->experts / ranks * (int64_t)sizeof(int32_t), false);
    b->by_expert = loop;
    mti_keep_floats(b, "experts: weights of their rows", rows,
                    scored ? mti_statistic_size(b) : b->e);
    if (form == MT_EXPERTS_TORCHTITAN_BEFORE)
        mti_keep_floats(b, "input of the experts, for its product with their weights",
                        n * b->c->hidden, mti_statistic_size(b));
    mti_keep(b, BSNH, FLOATS, "input of the experts, a row for each of a token's");
    const nature active = mti_again(b, MT_RECOMPUTE_MOE_ACT) ? NOT_KEPT : FLOATS;
    if (!gated && active == NOT_KEPT)
        mti_keep(b, BSF, FLOATS, "input of the activation");
    else if (!gated)
        mti_keep_activation(b, BSF, b->c->inplace, "input of the activation",
                            weighted
                                ? "output of the activation, for its product with their weights"
                                : "input of the experts' last product");
    else
        mti_keep_several(b, 2, BSF, FLOATS, "gate and up, side by side");
    if (clamped) {
        mti_keep_several(b, 2, BSF, active, "the clamped gate, and its sigmoid");
        mti_keep_several(b, 2, BSF, active, "their product, and up + 1");
    } else if (gated && b->c->ops.swiglu == MT_OP_UNFUSED && !weighted)
        mti_keep(b, BSF, active, "silu(gate), for its product with up");
    if (gated || weighted)
        mti_keep(b, BSF, active,
                 clamped || !gated
                     ? "the weighted or gated rows: input of the experts' last product"
                     : "silu(gate) up: input of the experts' last product");
    if (form == MT_EXPERTS_TORCHTITAN)
        mti_keep_floats(b, "output of the experts, for its product with their weights",
                        n * b->c->hidden, mti_statistic_size(b));
    else if (!scored)
        mti_keep(b, BSNH, FLOATS, "output of the experts, for its product with their weights");
    if (loop) mti_keep(b, BSNH, SIGNED, "that product, for its sum by token"); /* none is read */
    b->by_expert = false;
    if (b->c->shared_experts && !mti_again(b, MT_RECOMPUTE_SHARED_EXPERTS)) {
        for (int i = 0; i < 2; i++) mti_keep(b, BSX, FLOATS, "shared experts: gate, and up");
        if (b->c->ops.swiglu == MT_OP_UNFUSED)
            mti_keep(b, BSX, FLOATS, "shared experts: silu(gate), for its product with up");
        mti_keep(b, BSX, FLOATS, "shared experts: silu(gate) up, for their last product");
    }
    if (b->c->dropout > 0) mti_keep(b, BSH, MASK, "mask of the dropout after the experts");
}

void mti_keep_balance(builder *b)
{
    const int64_t layers = mti_dims_layers(b->s) - mti_dims_dense(b->s);
    if (!(b->c->balance_loss > 0) || !layers) return;
    b->times = layers; /* of all forwards in flight */
    mti_keep_floats(b, "balance of experts: probabilities of all layers",
                    b->s->tokens / (b->s->rank ? b->s->rank->folds : 1) * b->c->experts,
                    b->c->wide_router && b->e == 2 ? 4 : b->e);
    if (!b->c->balance_by_layer) b->times = 1;
    mti_keep_beside(b, "balance of experts: shares of tokens", 4 * b->c->experts, false);
}
