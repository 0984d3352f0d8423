/* shape.c: a model's dimensions, and the steps from the textbook's transformer to them. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "nn/model_fields.h"
#include "parallel/parallel.h"
#include "plan/plan.h"

/* Products such as 34 L b s h must stay below 2^63. */
#define MOST 9.0e18

static bool countable(const mti_dims *s)
{
    const mt_model_config *c = &s->config;
    double t = (double)s->batch * (double)s->seq, layers = (double)mti_dims_layers(s);
    double h = (double)c->hidden, f = (double)c->ffn, q = (double)s->q, v = (double)c->vocab;
    double kept = 64 * layers * t * (h + f + q + (double)c->heads * (double)s->seq) + 32 * t * v;
    double matrices = layers * (3 * h * f + 4 * h * (q + h)) + 2 * v * h;
    double work = 8 * matrices * t + 32 * layers * t * (double)s->seq * q;
    return (kept < MOST && work < MOST) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "plan: %lld x %lld tokens of this model are more than can be counted "
                         "in 63 bits",
                         (long long)s->batch, (long long)s->seq);
}

bool mti_dims_make(mti_dims *s, const mt_model_config *config, int64_t batch, int64_t seq,
                   const mti_memory_options *memory)
{
    *s = (mti_dims){.batch = batch, .seq = seq, .memory = memory};
    if (mt_model_config_resolve(config, &s->config) != MT_OK) return false;
    if (batch < 1 || seq < 1)
        return mti_fail_bool(MT_ERR_ARGUMENT, "plan: batch %lld, seq %lld; need at least 1 of each",
                             (long long)batch, (long long)seq);
    s->q = s->config.heads * s->config.head_dim;
    s->k = s->config.kv_heads * s->config.head_dim;
    if (!countable(s)) return false;
    s->tokens = batch * seq;
    return true;
}

unsigned mti_dims_again(const mti_dims *s)
{
    if (!s->memory) return 0;
    const char *preset = s->memory->checkpoint;
    return preset && !strcmp(preset, "selective") ? MT_RECOMPUTE_CORE_ATTN : s->memory->recompute;
}

const char *mti_dims_checkpoint(const mti_dims *s)
{
    return s->memory ? s->memory->checkpoint : NULL;
}

/* How many different rotary angles layers from, from + 1, ..., to - 1 have; cf. mti_layer_config.
 */
static int64_t thetas_of(const mt_model_config *c, int64_t from, int64_t to)
{
    const bool local =
        mti_is_whole(c->kind) && c->local_theta > 0 && c->local_theta != c->rope_theta;
    bool found[2] = {false, false};
    for (int64_t i = from; i < to; i++)
        if (mti_is_turned(c, i)) found[local && mti_is_local(c, i)] = true;
    return found[0] + found[1];
}

int64_t mti_dims_ahead(const mti_dims *s)
{
    if (!mti_is_whole(s->config.kind)) return 0;
    return s->config.mtp_layers * (s->rank ? s->rank->last : 1);
}

/* Those of mti_dims_ahead, if the last layer is such. */
static int64_t ahead_if(const mti_dims *s, bool is_such) { return is_such ? mti_dims_ahead(s) : 0; }

static bool ends_dense(const mt_model_config *c) { return c->dense_layers >= c->layers; }

static bool ends_local(const mt_model_config *c) { return mti_is_local(c, c->layers - 1); }

int64_t mti_dims_windows(const mti_dims *s)
{
    const mt_model_config *c = &s->config;
    if (!c->window) return 0;
    return (s->rank                 ? s->rank->local
            : mti_is_whole(c->kind) ? mti_local_layers(c, 0, c->layers)
                                    : mti_dims_layers(s)) +
           ahead_if(s, ends_local(c));
}

/* How many of layers from .. to - 1 have no experts, of a whole model whose others do. */
static int64_t dense_of(const mt_model_config *c, int64_t from, int64_t to)
{
    const int64_t end = c->dense_layers < to ? c->dense_layers : to;
    return mti_is_whole(c->kind) && end > from ? end - from : 0;
}

int64_t mti_dims_dense(const mti_dims *s)
{
    return (s->rank ? s->rank->dense : dense_of(&s->config, 0, s->config.layers)) +
           ahead_if(s, ends_dense(&s->config));
}

static int64_t dense_windows_of(const mt_model_config *c, int64_t from, int64_t to)
{
    return c->window ? mti_local_layers(c, from, from + dense_of(c, from, to)) : 0;
}

int64_t mti_dims_dense_windows(const mti_dims *s)
{
    const mt_model_config *c = &s->config;
    return (s->rank ? s->rank->dense_local : dense_windows_of(c, 0, c->layers)) +
           ahead_if(s, c->window && ends_dense(c) && ends_local(c));
}

int64_t mti_sum_layers(const mti_dims *s, mti_cost_fn *fn)
{
    const int64_t dense = mti_dims_dense(s);
    mti_dims without = *s;
    mti_make_dense(&without.config);
    return (mti_dims_layers(s) - dense) * fn(s) + (dense ? dense * fn(&without) : 0);
}

int64_t mti_dims_thetas(const mti_dims *s)
{
    return (s->rank ? s->rank->thetas : thetas_of(&s->config, 0, s->config.layers)) +
           (ahead_if(s, mti_is_turned(&s->config, s->config.layers - 1))
                ? s->rank ? s->rank->last : 1
                : 0);
}

/* Checkpoints of a part with this many layers. */
static int64_t groups_of(const mti_dims *s, int64_t layers)
{
    const char *text = mti_dims_checkpoint(s);
    mti_preset preset;
    if (!layers || !text || !mti_is_whole(s->config.kind) || !mti_preset_parse(text, &preset))
        return layers;
    return (layers - 1) / mti_preset_group(&preset, layers) + 1;
}

bool mti_rank_dims_make(mti_rank_dims *r, mti_dims *s, const mt_parallel *parallel)
{
    const mt_model_config *config = &s->config;
    mti_model_shard shard;
    *r = (mti_rank_dims){0};
    if (!mti_model_shard_make(&shard, config, parallel, 0)) return false;
    const mt_parallel *h = &shard.parallel;
    const mti_schedule schedule = mti_schedule_of(h);
    *r = (mti_rank_dims){.tensor = h->tensor,
                         .sequence = h->sequence ? h->tensor : 1,
                         .context = h->context,
                         .expert = h->expert,
                         .folds = mti_folds_experts(h) ? h->tensor : 1,
                         .seen = mti_shards_seen(&shard),
                         .masks_in_parts = h->tensor > 1 || mti_data_group(h).ranks > 1};
    for (int64_t k = 0; k < schedule.ahead; k++) {
        if (!mti_model_shard_make(&shard, config, parallel,
                                  mti_schedule_at(&schedule, k, false).part))
            return false;
        r->first += shard.first;
        r->last += shard.last;
        r->layers += shard.to - shard.from;
        r->groups += groups_of(s, shard.to - shard.from);
        r->thetas += thetas_of(config, shard.from, shard.to);
        r->local += mti_local_layers(config, shard.from, shard.to);
        r->dense += dense_of(config, shard.from, shard.to);
        r->dense_local += dense_windows_of(config, shard.from, shard.to);
    }
    s->rank = r;
    s->seq /= r->context;
    s->tokens = s->batch * s->seq;
    return true;
}

int64_t mti_dims_layers(const mti_dims *s)
{
    const mti_rank_dims *r = s->rank;
    if (r) return r->layers + mti_dims_ahead(s);
    return mti_is_whole(s->config.kind) ? s->config.layers + mti_dims_ahead(s) : 1;
}

int64_t mti_dims_groups(const mti_dims *s)
{
    const int64_t ahead = mti_dims_ahead(s); /* each by itself */
    return ahead + (s->rank ? s->rank->groups : groups_of(s, mti_dims_layers(s) - ahead));
}

bool mti_run_dims(mti_dims *s, mti_memory_options *memory, const mt_plan_run *run,
                  mt_plan_formula *out)
{
    if (!run || !out)
        return mti_fail_bool(MT_ERR_ARGUMENT, "plan: the %s is NULL", run ? "result" : "run");
    *out = (mt_plan_formula){0};
    mti_preset preset = {MTI_PRESET_NONE};
    if (run->checkpoint && !mti_preset_parse(run->checkpoint, &preset))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "plan: checkpoint: unknown \"%.40s\"; choose none, full, selective, "
                             "ops, every=K or sqrt",
                             run->checkpoint);
    if (run->parameters < 0 || run->parameters > 1000000000000000)
        return mti_fail_bool(MT_ERR_ARGUMENT, "plan: %lld parameters; need 0 to 10^15",
                             (long long)run->parameters);
    *memory =
        (mti_memory_options){.checkpoint = preset.form == MTI_PRESET_NONE ? NULL : run->checkpoint,
                             .recompute = run->recompute};
    return mti_dims_make(s, run->config, run->batch, run->seq, memory);
}

/* ---- from the textbook's dimensions to others, choice by choice ---- */

/* What Korthikanti et al. 2022 and 12h^2 + 13h assume. */
static mti_dims textbook(const mti_dims *s)
{
    mti_dims t = *s;
    mt_model_config *c = &t.config;
    t.memory = NULL;
    t.q = t.k = c->hidden;
    if (c->kind != MT_MODEL_LINEAR) c->ffn = 4 * c->hidden;
    c->mlp = MT_MLP_PLAIN;
    c->experts = c->experts_per_token = 0;
    c->norm_topk = c->expert_padding = false;
    c->expert_capacity = 0;
    c->dense_layers = c->shared_experts = c->mtp_layers = 0;
    c->kv_rank = 0;
    c->act = MT_ACT_GELU;
    c->inplace = c->no_bias = c->qkv_bias = c->proj_bias = c->joint_products = false;
    c->sinks = false;
    c->router = MT_ROUTER_SOFTMAX;
    c->has_out_act = false;
    c->norm = MT_NORM_PRE;
    c->norm_kind = MT_NORM_LAYER;
    c->rope_theta = 0;
    c->qk_norm = MT_QK_NORM_NONE;
    c->attention = MT_ATTENTION_MATH;
    c->attention_cap = 0;
    c->window = 0;
    c->dropout = 0.1;
    c->branch_dropout = false;
    c->dtype = MT_BF16;
    c->ops = (mt_op_choices){0};
    return t;
}

static void take_q(mti_dims *at, const mti_dims *to)
{
    at->k += to->q - at->q;
    at->q = to->q;
}
static void take_k(mti_dims *at, const mti_dims *to) { at->k = to->k; }
static void take_swiglu(mti_dims *at, const mti_dims *to)
{
    at->config.mlp = to->config.mlp == MT_MLP_PLAIN ? MT_MLP_PLAIN : MT_MLP_SWIGLU;
}
static void take_experts(mti_dims *at, const mti_dims *to)
{
    at->config.experts = to->config.experts;
    at->config.experts_per_token = to->config.experts_per_token;
    at->config.norm_topk = to->config.norm_topk;
    at->config.router = to->config.router;
}
static void take_latent(mti_dims *at, const mti_dims *to)
{
    at->config.kv_rank = to->config.kv_rank;
    at->config.ops.kv_groups = MT_KV_SHARED;
}
static void take_post_norm(mti_dims *at, const mti_dims *to)
{
    at->config.norm = to->config.norm == MT_NORM_POST ? MT_NORM_POST : MT_NORM_PRE;
}
static void take_memory(mti_dims *at, const mti_dims *to) { at->memory = to->memory; }

/* A choice takes fields, or what the function takes. */
static const struct choice {
    const char *text, *fields[2];
    void (*take)(mti_dims *at, const mti_dims *to);
} choices[] = {
    {"heads whose joint width is not h", {NULL}, take_q},
    {"grouped-query attention: fewer heads of keys and values", {NULL}, take_k},
    {"an MLP that is not 4h wide", {"ffn"}},
    {"swiglu: a gate beside the MLP's first product", {NULL}, take_swiglu},
    {"experts: MLPs of which each token takes some, and a router", {NULL}, take_experts},
    {"shared experts, which every token meets", {"shared_experts"}},
    {"first layers without experts", {"dense_layers"}},
    {"an activation other than GELU: one that knows its slope by its output shares it",
     {"act", "inplace"}},
    {"a gate whose activation and product are an op each", {"mlp"}},
    {"an activation of the MLP's output", {"out_act"}},
    {"RMS norms: neither bias nor mean", {"norm_kind"}},
    {"no biases, or only those of q, k and v", {"no_bias", "qkv_bias"}},
    {"a bias of attention's projection", {"proj_bias"}},
    {"norms after the sums", {NULL}, take_post_norm},
    {"norms of what attention and MLP give", {"norm"}},
    {"rotary positions: q, k and v apart", {"rope_theta"}},
    {"one product for q, k and v, of which only v is used again", {"joint_products"}},
    {"norms of q and k", {"qk_norm"}},
    {"latent attention: products of latents, which are kept, and their norms", {NULL}, take_latent},
    {"flash attention: no b a s s of weights, masks and dropped weights", {"attention"}},
    {"sliding windows: queries see fewer keys", {"window"}},
    {"sinks: a logit of each head in the softmax's sum", {"sinks"}},
    {"soft capping of the scores: their tanh", {"attention_cap"}},
    {"dropout after attention and MLP alone", {"branch_dropout"}},
    {"no dropout: no masks, and no weights that it changed", {"dropout"}},
    {"floats of another size than 2 bytes", {"dtype"}},
    {"unfused swiglu: silu(gate) besides", {"swiglu"}},
    {"unfused RMS norms: their input in f32, and the normalised rows", {"rms_norm"}},
    {"unfused gelu_tanh: three tensors besides its input", {"gelu_tanh"}},
    {"softmax in f32: weights in 4 bytes, and again in 2", {"softmax"}},
    {"experts in another order of ops", {"expert_form"}},
    {"experts with a bound on their rows", {"expert_capacity", "expert_padding"}},
    {"keys and values repeated for each head", {"kv_groups"}},
    {"masks of windows, and what they have repeated", {"window_mask"}},
    {"layers of predictions ahead", {"mtp_layers"}},
    {"checkpoints: what they hold, less what they make again", {NULL}, take_memory},
};

bool mti_add_row(mt_plan_formula *formula, int64_t amount, const char *fmt, ...)
{
    if (!amount) return true;
    if (formula->n_rows == MT_PLAN_MAX_ROWS)
        return mti_fail_bool(MT_ERR_INTERNAL, "plan: more than %d rows of %s", MT_PLAN_MAX_ROWS,
                             formula->name);
    mt_plan_row *row = &formula->rows[formula->n_rows++];
    row->amount = amount;
    va_list args;
    va_start(args, fmt);
    mti_vformat(row->text, sizeof row->text, fmt, args);
    va_end(args);
    formula->expected += amount;
    return true;
}

static void take(const struct choice *choice, mti_dims *at, const mti_dims *to)
{
    if (choice->take) choice->take(at, to);
    for (int i = 0; i < 2 && choice->fields[i]; i++)
        mti_model_field_copy(mti_model_field_named(choice->fields[i]), &at->config, &to->config);
}

bool mti_derive_formula(mt_plan_formula *formula, const mti_dims *s, mti_cost_fn *cost)
{
    mti_dims at = textbook(s);
    int64_t before = cost(&at);
    formula->value = formula->expected = before;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        take(&choices[i], &at, s);
        int64_t now = cost(&at);
        if (!mti_add_row(formula, now - before, "%s", choices[i].text)) return false;
        before = now;
    }
    return true;
}
