/* models.c: any model, small. */
#include "models.h"
#include "nn/model.h"

int64_t mtt_pick(uint64_t *seed, int64_t lo, int64_t hi)
{
    return (int64_t)mtt_draw(seed, (double)lo, (double)hi + 1);
}
bool mtt_toss(uint64_t *seed) { return mtt_pick(seed, 0, 1) == 1; }

static void draw_dimensions(uint64_t *seed, mt_model_config *c)
{
    static const int64_t divisors[] = {1, 2, 1, 4};
    c->heads = mtt_pick(seed, 1, 4);
    c->kv_heads = mtt_toss(seed) ? 0 : divisors[c->heads - 1];
    if (mtt_toss(seed)) {
        c->head_dim = 2 * mtt_pick(seed, 1, 9);
        c->hidden = mtt_pick(seed, 1, 70);
    } else {
        c->hidden = c->heads * 2 * mtt_pick(seed, 1, 20);
    }
    if (mtt_toss(seed)) c->ffn = mtt_pick(seed, 1, 99);
    if (!mti_is_whole(c->kind)) return;
    c->layers = mtt_pick(seed, 1, 5);
    c->vocab = mtt_pick(seed, 3, 80);
    c->context = 40;
    if (c->kind == MT_MODEL_BERT) c->token_types = mtt_pick(seed, 0, 3);
    if (c->kind != MT_MODEL_LLAMA) c->position_offset = mtt_pick(seed, 0, 2);
    c->branch_dropout = mtt_pick(seed, 0, 3) == 0;
    uint64_t apart = *seed;
    if (c->kind == MT_MODEL_BERT) c->pooled = mtt_toss(&apart);
}

static void draw_ops(uint64_t *seed, mt_op_choices *ops)
{
    ops->swiglu = (mt_op_form)mtt_pick(seed, 0, 1);
    ops->rms_norm = (mt_op_form)mtt_pick(seed, 0, 1);
    ops->gelu_tanh = (mt_op_form)mtt_pick(seed, 0, 1);
    ops->rope = (mt_op_form)mtt_pick(seed, 0, 1);
    ops->softmax = (mt_op_precision)mtt_pick(seed, 0, 1);
    ops->kv_groups = (mt_kv_groups)mtt_pick(seed, 0, 1);
    ops->window_mask = (mt_window_mask)mtt_pick(seed, 0, 1);
    ops->loss = (mt_loss_form)mtt_pick(seed, 0, MT_LOSS_FORM_COUNT - 1);
}

static void draw_latent(uint64_t *seed, mt_model_config *c)
{
    c->joint_products = false;
    c->qkv_bias = c->proj_bias = false;
    c->qk_norm = MT_QK_NORM_NONE;
    c->kv_heads = c->heads;
    c->kv_rank = mtt_pick(seed, 1, 40);
    c->q_rank = mtt_pick(seed, 0, 1) * mtt_pick(seed, 1, 40);
    c->rope_dim = 2 * mtt_pick(seed, 1, 4);
    c->head_dim = c->rope_dim + mtt_pick(seed, 1, 8);
    c->value_dim = mtt_pick(seed, 1, 16);
    c->rope_order = (mt_rope_order)mtt_pick(seed, 0, MT_ROPE_ORDER_COUNT - 1);
}

static void draw_experts(uint64_t *seed, mt_model_config *c)
{
    const int64_t groups = mtt_pick(seed, 1, 3);
    if (c->mlp == MT_MLP_GATED) c->mlp = MT_MLP_SWIGLU;
    c->joint_products = false;
    c->experts = groups * mtt_pick(seed, 2, 4);
    c->experts_per_token = mtt_pick(seed, 1, 2);
    c->ops.expert_form = (mt_expert_form)mtt_pick(seed, 0, MT_EXPERTS_FORM_COUNT - 1);
    if (c->kind == MT_MODEL_GPT) {
        c->router = mtt_toss(seed) ? MT_ROUTER_CHOSEN : MT_ROUTER_SOFTMAX;
        return;
    }
    c->shared_experts = mtt_pick(seed, 0, 2);
    c->dense_layers = mtt_pick(seed, 0, 2);
    c->dense_ffn = c->dense_layers ? mtt_pick(seed, 1, 60) : 0;
    c->expert_groups = mtt_pick(seed, 0, 1) * groups;
    c->expert_topk_groups = c->expert_groups ? mtt_pick(seed, 1, groups) : 0;
    c->router = (mt_router)mtt_pick(seed, 0, 1);
    c->wide_router = mtt_toss(seed);
    c->norm_topk = mtt_toss(seed);
    uint64_t apart = *seed;
    if (c->router == MT_ROUTER_SOFTMAX && mtt_toss(&apart))
        c->balance_loss = 0.1, c->balance_by_layer = mtt_toss(&apart);
    if (mtt_pick(seed, 0, 2)) return;
    c->router = MT_ROUTER_CHOSEN, c->mlp = MT_MLP_CLAMPED;
    c->expert_groups = c->expert_topk_groups = c->shared_experts = 0;
    c->dense_layers = c->dense_ffn = 0;
    c->wide_router = c->norm_topk = false;
    c->ops.expert_form = MT_EXPERTS_GROUPED;
}

mt_model_config mtt_draw_model(uint64_t *seed)
{
    static const mt_dtype dtypes[] = {MT_F32, MT_BF16, MT_F16, MT_F64};
    mt_model_config c = {.kind = (mt_model_kind)mtt_pick(seed, 0, MT_MODEL_KIND_COUNT - 1)};
    bool llama = c.kind == MT_MODEL_LLAMA;
    bool part = c.kind == MT_MODEL_BLOCK || c.kind == MT_MODEL_ATTENTION;
    draw_dimensions(seed, &c);
    c.act = (mt_act)mtt_pick(seed, 0, MT_ACT_COUNT - 1);
    if (c.kind != MT_MODEL_BERT && mtt_toss(seed))
        c.mlp = mtt_toss(seed) ? MT_MLP_GATED : MT_MLP_SWIGLU;
    bool kinked = c.act == MT_ACT_RELU || c.act == MT_ACT_LEAKY_RELU;
    c.inplace = kinked && !llama && c.mlp == MT_MLP_PLAIN && mtt_toss(seed);
    if (c.kind == MT_MODEL_MLP) {
        int act = (int)mtt_pick(seed, 0, MT_ACT_COUNT); /* 0: none */
        c.has_out_act = act > 0;
        if (act) c.out_act = (mt_act)(act - 1);
    }
    c.norm = (mt_norm_place)mtt_pick(seed, 0, MT_NORM_PLACE_COUNT - 1);
    if (llama && c.norm == MT_NORM_POST) c.norm = MT_NORM_PRE;
    c.norm_kind = (mt_norm_kind)mtt_pick(seed, 0, MT_NORM_KIND_COUNT - 1);
    if (part && mtt_toss(seed)) c.rope_theta = 1000;
    c.joint_products = c.mlp != MT_MLP_GATED && mtt_toss(seed);
    if (llama && mtt_toss(seed)) c.scaled_embedding = true, c.logit_cap = 30;
    if (llama && mtt_toss(seed)) c.local_theta = 10, c.local_period = 2;
    if (llama && mtt_toss(seed)) c.window = mtt_pick(seed, 1, 40);
    if (!c.joint_products && (llama || c.rope_theta > 0))
        c.qk_norm = (mt_qk_norm)mtt_pick(seed, 0, MT_QK_NORM_COUNT - 1);
    c.dropout = mtt_toss(seed) ? 0.25 : 0;
    c.attention = mtt_toss(seed) ? MT_ATTENTION_MATH : MT_ATTENTION_FLASH;
    if (c.attention == MT_ATTENTION_MATH && mtt_toss(seed)) c.attention_cap = 50;
    if (llama && c.attention_cap == 0 && mtt_toss(seed)) {
        c.sinks = true;
        if (mtt_toss(seed))
            c.yarn_factor = 2, c.yarn_context = 8, c.yarn_fast = 4, c.yarn_slow = 1,
            c.yarn_scale = 1;
    }
    c.proj_bias = mtt_toss(seed);
    c.causal = part && mtt_toss(seed);
    c.untied = c.kind == MT_MODEL_GPT && mtt_toss(seed);
    c.tied = llama && mtt_toss(seed);
    c.no_bias = mtt_toss(seed);
    c.qkv_bias = mtt_toss(seed);
    c.dtype = dtypes[mtt_pick(seed, 0, 3)];
    if (mtt_toss(seed)) draw_ops(seed, &c.ops);
    const bool gpt = c.kind == MT_MODEL_GPT;
    if ((llama || gpt) && !c.sinks && mtt_pick(seed, 0, 3) == 0) draw_latent(seed, &c);
    const int64_t width = c.head_dim ? c.head_dim : c.hidden / c.heads;
    if (!c.kv_rank && (llama || c.rope_theta > 0) && width > 2 && mtt_toss(seed))
        c.rope_dim = 2 * mtt_pick(seed, 1, (width - 1) / 2);
    if ((llama || gpt) && mtt_pick(seed, 0, 3) == 0) draw_experts(seed, &c);
    if (c.sinks) c.ops.softmax = MT_PRECISION_NATIVE;
    bool refused = c.kind == MT_MODEL_BERT || c.logit_cap > 0;
    if (refused && mti_loss_row_of(c.ops.loss)->takes_head) c.ops.loss = MT_LOSS_NATIVE;
    if ((c.kind == MT_MODEL_GPT || llama) && mtt_pick(seed, 0, 3) == 0)
        c.mtp_layers = mtt_pick(seed, 1, 2);
    if (mti_loss_row_of(c.ops.loss)->held && (c.balance_loss > 0 || c.mtp_layers))
        c.ops.loss = MT_LOSS_NATIVE;
    uint64_t apart = *seed;
    if (gpt && mtt_toss(&apart)) {
        c.rope_theta = 1000, c.position_offset = 0;
        if (!c.kv_rank && width > 2 && mtt_toss(&apart))
            c.rope_dim = 2 * mtt_pick(&apart, 1, (width - 1) / 2);
    }
    if (c.joint_products && (!c.kv_heads || c.kv_heads == c.heads))
        c.qkv_by_head = mtt_toss(&apart);
    if (llama && !c.kv_rank && !c.joint_products && mtt_toss(&apart))
        c.unturned_period = mtt_pick(&apart, 1, 3);
    return c;
}
