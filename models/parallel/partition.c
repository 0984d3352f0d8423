/* partition.c: the shard of a model that one rank has. */
#include <inttypes.h>
#include <stdio.h>
#include "parallel/parallel.h"

const mti_choice mti_gather_units = {"gather", MTI_NAMES("module", "block", "ahead")};
/* Their numbers are those of MT_RESHARD_..., negated. */
const mti_choice mti_reshards = {"reshard", MTI_NAMES("default", "always", "never")};
const mti_choice mti_bucket_forms = {"buckets", MTI_NAMES("none", "copied", "views")};
const mti_choice mti_reduce_times = {"reduce", MTI_NAMES("backward", "after")};

mti_shard_policy mti_shard_policy_of(const mt_parallel *p)
{
    const unsigned f = p->fsdp;
    const bool ends = f & (MT_FSDP_KEEP_LAST | MT_FSDP_GROUP_ENDS);
    return (mti_shard_policy){.gather = !(f & MT_FSDP_BLOCK)                   ? MTI_GATHER_MODULE
                                        : (f & MT_FSDP_AHEAD) == MT_FSDP_AHEAD ? MTI_GATHER_AHEAD
                                                                               : MTI_GATHER_BLOCK,
                              .keep_root = f & MT_FSDP_KEEP_ROOT,
                              .keep_last = f & MT_FSDP_KEEP_LAST,
                              .group_ends = f & MT_FSDP_GROUP_ENDS,
                              .f32_shards = f & MT_FSDP_F32_SHARDS,
                              .f32_reduce = (f & MT_FSDP_F32_REDUCE) == MT_FSDP_F32_REDUCE,
                              .reduce_last = f & MT_FSDP_REDUCE_LAST,
                              .stay = p->reshard == MT_RESHARD_NEVER,
                              .last_stays = p->reshard == MT_RESHARD_DEFAULT && ends,
                              .of_stage = p->pipeline > 1,
                              .most_summed = (size_t)p->reduce_inputs};
}

const char *mti_reshard_text(int64_t reshard, char *buf, size_t n_bytes)
{
    if (reshard <= 0) return mti_choice_name(&mti_reshards, (int)-reshard);
    snprintf(buf, n_bytes, "%" PRId64, reshard);
    return buf;
}

#define MOST_RANKS ((int64_t)1 << 20)

static bool in_range(const char *field, int64_t value, int64_t least, int64_t most)
{
    return (value >= least && value <= most) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "parallel: %s is %" PRId64 "; need %" PRId64 " to %" PRId64, field, value,
                         least, most);
}

static bool divides(const char *field, int64_t parts, const char *what, int64_t value)
{
    return value % parts == 0 ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "parallel: %s is %" PRId64 "; need a divisor of %s, %" PRId64, field,
                         parts, what, value);
}

mt_parallel mti_filled_in(const mt_parallel *parallel)
{
    mt_parallel h = *parallel;
    int64_t *const ones[] = {&h.tensor, &h.pipeline, &h.interleave,    &h.context,
                             &h.data,   &h.replicas, &h.reduce_inputs, &h.expert};
    for (size_t i = 0; i < sizeof ones / sizeof *ones; i++)
        if (!*ones[i]) *ones[i] = 1;
    if (!h.microbatches) h.microbatches = h.pipeline;
    if (!h.expert_tensor) h.expert_tensor = h.tensor;
    return h;
}

static bool check_ranges(const mt_parallel *h)
{
    return in_range("tensor", h->tensor, 1, MOST_RANKS) &&
           in_range("pipeline", h->pipeline, 1, MOST_RANKS) &&
           in_range("interleave", h->interleave, 1, MOST_RANKS) &&
           in_range("first_layers", h->first_layers, 0, h->pipeline > 1 ? MOST_RANKS : 0) &&
           in_range("last_layers", h->last_layers, 0, h->pipeline > 1 ? MOST_RANKS : 0) &&
           in_range("context", h->context, 1, MOST_RANKS) &&
           in_range("data", h->data, 1, MOST_RANKS) && in_range("zero", h->zero, 0, 3) &&
           in_range("stage", h->stage, 0, h->pipeline - 1) &&
           in_range("tensor_rank", h->tensor_rank, 0, h->tensor - 1) &&
           in_range("context_rank", h->context_rank, 0, h->context - 1) &&
           in_range("data_rank", h->data_rank, 0, h->data - 1) &&
           in_range("microbatches", h->microbatches, 1, MOST_RANKS) &&
           in_range("replicas", h->replicas, 1, MOST_RANKS) &&
           in_range("expert", h->expert, 1, MOST_RANKS) &&
           in_range("reduce_inputs", h->reduce_inputs, 1, MOST_RANKS) &&
           in_range("reshard", h->reshard, MT_RESHARD_NEVER, MOST_RANKS);
}

/* Among the ranks with other data or positions. */
static bool check_groups(const mt_parallel *h)
{
    const int64_t all = mti_data_group(h).ranks;
    if (!divides("replicas", h->replicas, "data times context", all)) return false;
    if (h->replicas > 1 && h->zero != 3)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "parallel: %" PRId64 " replicas of shards with ZeRO stage %" PRId64
                             ", which "
                             "keeps whole parameters; need stage 3",
                             h->replicas, h->zero);
    if (!divides("expert", h->expert,
                 mti_folds_experts(h) ? "the ranks with other tokens" : "the ranks with other data",
                 mti_token_group(h).ranks))
        return false;
    if (mti_divides_experts(h) && h->reshard > 1)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "parallel: reshard is %" PRId64 ", and expert %" PRId64
                             ": experts are let go whole; need reshard default, always or never",
                             h->reshard, h->expert);
    return h->reshard < 2 ||
           divides("reshard", h->reshard, "the ranks with other shards", mti_shard_group(h).ranks);
}

/* Whether a comm, if there is one, is the group's. */
static bool check_comm(const char *field, const mt_group *group)
{
    mt_group is = mt_comm_group(group->comm);
    return !group->comm || (is.ranks == group->ranks && is.rank == group->rank) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "parallel: %s is rank %" PRId64 " of %" PRId64 "; need %" PRId64
                         " of %" PRId64,
                         field, is.rank, is.ranks, group->rank, group->ranks);
}

static bool check_comms(const mt_parallel *h)
{
    const mt_group tensor = mti_tensor_group(h), context = mti_context_group(h),
                   data = mti_data_group(h), stages = mti_stages(h), ends = mti_ends(h),
                   shards = mti_shard_group(h), replicas = mti_replica_group(h),
                   few = mti_reshard_group(h), experts = mti_expert_group(h),
                   same = mti_expert_data_group(h);
    return check_comm("tensor_comm", &tensor) && check_comm("context_comm", &context) &&
           check_comm("data_comm", &data) && check_comm("pipeline_comm", &stages) &&
           check_comm("ends_comm", &ends) && check_comm("shard_comm", &shards) &&
           check_comm("replica_comm", &replicas) && check_comm("reshard_comm", &few) &&
           check_comm("expert_comm", &experts) && check_comm("expert_data_comm", &same);
}

static int64_t layers_of(const mt_model_config *c) { return mti_is_whole(c->kind) ? c->layers : 1; }

/* Whether the ranks' linears can be of that form. */
static bool check_linear(const mt_parallel *h, const mt_model_config *c)
{
    const int64_t block = mti_linear_block(c->ops.linear), t = h->tensor;
    const int64_t attention = c->heads * c->head_dim, narrow = c->kv_heads * c->head_dim;
    const char *need = NULL;
    if (h->sequence && mti_linear_keeps_codes(c->ops.linear))
        need = "torchao-float8 or torchao-mxfp8 where ranks split the sequence (sp)";
    else if (h->zero >= 3 && h->data * h->context > 1 && c->ops.linear == MT_LINEAR_TE_DELAYED)
        need = "te-current where parameters are shards (zero 3)";
    else if (c->heads * c->value_dim % (t * block) || attention % (t * block) ||
             narrow % (t * block) || c->ffn % (t * block))
        need = "a form whose blocks cover the ranks' shards";
    return !need ||
           mti_fail_bool(MT_ERR_UNSUPPORTED, "parallel: the config's linear is %s; need %s",
                         mti_choice_name(&mti_linear_forms, (int)c->ops.linear), need);
}

/* Whether the ranks can predict ahead: learned positions are shifted where they are. */
static bool check_ahead(const mt_parallel *h, const mt_model_config *c)
{
    const bool cut = h->context > 1 || (h->sequence && h->tensor > 1);
    return !c->mtp_layers || !mti_learns_positions(c) || !cut ||
           mti_fail_bool(MT_ERR_UNSUPPORTED,
                         "parallel: context is %" PRId64 ", sequence %d, and the config a gpt with "
                         "mtp_layers %" PRId64 ": predictions ahead need the learned positions of "
                         "the next tokens; need context 1, sequence 0, or a llama",
                         h->context, h->sequence, c->mtp_layers);
}

/* Whether nothing is there that ranks do not cut, or cannot divide as experts. */
static bool check_cut(const mt_parallel *h, const mt_model_config *c)
{
    if (h->expert_tensor != h->tensor && (h->expert_tensor != 1 || !c->experts || !h->sequence))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "parallel: expert_tensor is %" PRId64 " and tensor %" PRId64
                             "; need tensor or, with experts and sequence, 1",
                             h->expert_tensor, h->tensor);
    if (h->expert > 1 && !c->experts)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "parallel: expert is %" PRId64 ", and the config has no experts; need "
                             "1",
                             h->expert);
    if (!divides("expert", h->expert, "experts", c->experts)) return false;
    if (h->expert > 1 && mti_expert_form_of(c->ops.expert_form)->alone)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "parallel: expert is %" PRId64 ", and expert_form is loop: one expert "
                             "after the other, all of them here; need another form",
                             h->expert);
    if (h->zero == 3 && c->experts && mti_expert_form_of(c->ops.expert_form)->alone)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "parallel: zero is 3, and expert_form is loop: a rank gathers for "
                             "each expert that its tokens take, another rank for others; need "
                             "zero 2 or less, or another form");
    if (c->balance_loss > 0 && !c->balance_by_layer && h->pipeline > 1)
        return mti_fail_bool(
            MT_ERR_UNSUPPORTED,
            "parallel: pipeline is %" PRId64 ", and the config has balance_loss, "
            "which is of all layers together: need pipeline 1, balance_by_layer, or "
            "balance_loss 0",
            h->pipeline);
    return true;
}

/* Part nth of the model: layers *from .. *to - 1. */
static void cut_layers(const mt_parallel *h, const mt_model_config *c, int64_t nth, int64_t *from,
                       int64_t *to)
{
    const bool first = h->first_layers > 0, last = h->last_layers > 0;
    const int64_t all = layers_of(c), parts = h->pipeline * h->interleave;
    const int64_t end = last ? all - h->last_layers + c->mtp_layers : all;
    const int64_t others = parts - first - last, k = nth - first, left = end - h->first_layers;
    const int64_t n = others ? left / others : 0, more = others ? left % others : 0;
    *from = k < 0 ? 0 : k < others ? h->first_layers + k * n + (k < more ? k : more) : end;
    *to = k < 0 ? h->first_layers : k < others ? *from + n + (k < more) : all;
}

/* Whether each part has a layer. */
static bool check_parts(const mt_parallel *h, const mt_model_config *c)
{
    const int64_t parts = h->pipeline * h->interleave, all = layers_of(c);
    int64_t begin = 0, from, to;
    bool ok = true;
    for (int64_t i = 0; ok && i < parts && i <= all; i++) {
        cut_layers(h, c, i, &from, &to);
        ok = from == begin && to >= from && to - from + (i == parts - 1 ? c->mtp_layers : 0) > 0;
        begin = to;
    }
    return (ok && begin == all) ||
           mti_fail_bool(MT_ERR_ARGUMENT,
                         "parallel: pipeline times interleave is %" PRId64 ", first_layers %" PRId64
                         ", last_layers %" PRId64 ", and layers, %" PRId64
                         "; need a layer for each part, and a part for each layer",
                         parts, h->first_layers, h->last_layers, all);
}

static bool check_model(const mt_parallel *h, const mt_model_config *c)
{
    if (!mti_is_whole(c->kind) && c->kind != MT_MODEL_BLOCK)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "parallel: the model is a %s; ranks are made of block, gpt, bert and "
                             "llama",
                             mt_model_kind_name(c->kind));
    if (c->pooled && (h->context > 1 || (h->sequence && h->tensor > 1)))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "parallel: context is %" PRId64 ", sequence %d, and the model is a "
                             "pooled bert: the first token of a sequence is on one rank alone; "
                             "need context 1 without sequence, or a head",
                             h->context, h->sequence);
    if (h->tensor > 1 && c->qk_norm == MT_QK_NORM_WIDTH)
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "parallel: tensor is %" PRId64 "; the model's norms of q and k need "
                             "all heads on one rank",
                             h->tensor);
    if (h->interleave > 1 && h->pipeline == 1)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "parallel: interleave is %" PRId64 " in a pipeline "
                             "of 1; need 2 stages or more",
                             h->interleave);
    if (h->interleave > 1 && !divides("pipeline", h->pipeline, "microbatches", h->microbatches))
        return false;
    const mti_loss_row *loss = mti_loss_row_of(c->ops.loss);
    if (h->tensor > 1 && (loss->fused || loss->shifted))
        return mti_fail_bool(MT_ERR_UNSUPPORTED,
                             "parallel: tensor is %" PRId64
                             " and the config's loss is %s; a rank has its own "
                             "shard of the logits: need native, f32, lse, chunked, unfused or held",
                             h->tensor, mti_choice_name(&mti_loss_forms, (int)c->ops.loss));
    if (c->ops.linear && !check_linear(h, c)) return false;
    if (!check_cut(h, c) || !check_ahead(h, c)) return false;
    if (!check_parts(h, c)) return false;
    const bool folds = mti_folds_experts(h);
    return divides("tensor", h->tensor, "heads", c->heads) &&
           divides("tensor", h->tensor, "kv_heads", c->kv_heads) &&
           divides("tensor", h->tensor, "ffn", folds ? c->shared_experts * c->ffn : c->ffn) &&
           divides("tensor", h->tensor, "dense_ffn", c->dense_ffn);
}

/* What is asked for of ZeRO 3, and whether it can be. */
static bool check_policy(const mt_parallel *h, const mt_model_config *c)
{
    const mti_shard_policy p = mti_shard_policy_of(h);
    const bool whole = mti_is_whole(c->kind), blocks = p.gather != MTI_GATHER_MODULE,
               one = !p.of_stage, ends = whole && c->untied && !p.keep_root && !p.keep_last;
    const struct {
        bool given, can;
        const char *what, *need;
    } rows[] = {
        {h->fsdp, h->zero == 3, "fsdp", "zero 3, which leaves a rank shards of parameters"},
        {h->host_shards, h->zero == 3, "host_shards", "zero 3, which leaves a rank such shards"},
        {h->reshard, blocks, "reshard", "blocks that are gathered whole"},
        {h->reshard > 1, one, "reshard", "pipeline 1: stages have several forwards in flight"},
        {h->reduce_inputs > 1, blocks, "reduce_inputs", "blocks that are gathered whole"},
        {p.reduce_last, blocks, "MT_FSDP_REDUCE_LAST", "blocks that are gathered whole"},
        {p.keep_last, blocks && one, "MT_FSDP_KEEP_LAST",
         "blocks that are gathered whole, and pipeline 1"},
        {p.keep_root, whole && one, "MT_FSDP_KEEP_ROOT", "a gpt, bert or llama, and pipeline 1"},
        {p.group_ends, ends && blocks && one, "MT_FSDP_GROUP_ENDS",
         "a gpt, bert or llama whose head has a separate weight, blocks that are gathered whole, "
         "pipeline 1, and neither the root nor the last block kept beside them"},
        {p.f32_shards, mt_dtype_size(c->dtype) == 2, "MT_FSDP_F32_SHARDS",
         "a model in bf16 or f16"}};
    if (!in_range("fsdp", h->fsdp, 0, 2 * MT_FSDP_REDUCE_LAST - 1)) return false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].given && !rows[i].can)
            return mti_fail_bool(MT_ERR_ARGUMENT,
                                 "parallel: fsdp is %u, zero %" PRId64 ", reshard %" PRId64
                                 ", reduce_inputs %" PRId64 ", pipeline %" PRId64
                                 ", the model a%s %s in %s; %s needs %s",
                                 h->fsdp, h->zero, h->reshard, h->reduce_inputs, h->pipeline,
                                 c->untied ? "n untied" : "", mt_model_kind_name(c->kind),
                                 mt_dtype_name(c->dtype), rows[i].what, rows[i].need);
    return true;
}

static bool check_buckets(const mt_parallel *h)
{
    if ((h->reduce_bucket || h->sub_group) && !h->zero)
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "parallel: reduce_bucket is %" PRId64 ", sub_group %" PRId64
                             " without ZeRO; need stage 1, 2 or 3",
                             h->reduce_bucket, h->sub_group);
    return in_range("reduce_bucket", h->reduce_bucket, 0, (int64_t)1 << 40) &&
           in_range("sub_group", h->sub_group, 0, (int64_t)1 << 40) &&
           in_range("buckets", h->buckets, MT_BUCKETS_NONE, MT_BUCKETS_VIEWS) &&
           (!h->buckets || (!h->zero && h->reduce == MT_REDUCE_IN_BACKWARD) ||
            mti_fail_bool(MT_ERR_ARGUMENT,
                          "parallel: buckets of gradients with ZeRO stage %" PRId64
                          " and reduce %s; need "
                          "stage 0, and sums in backward",
                          h->zero, mti_choice_name(&mti_reduce_times, (int)h->reduce)));
}

bool mti_model_shard_make(mti_model_shard *s, const mt_model_config *config,
                          const mt_parallel *parallel, int64_t part)
{
    static const mt_parallel alone;
    *s = (mti_model_shard){.parallel = mti_filled_in(parallel ? parallel : &alone)};
    mt_parallel *h = &s->parallel;
    if (mt_model_config_resolve(config, &s->whole) != MT_OK || !check_ranges(h) ||
        !check_groups(h) || !check_comms(h) || !check_model(h, &s->whole) ||
        !check_policy(h, &s->whole) ||
        !in_range("reduce", h->reduce, MT_REDUCE_IN_BACKWARD, MT_REDUCE_AFTER) ||
        !check_buckets(h) || !in_range("part", part, 0, h->interleave - 1))
        return false;
    int64_t t = h->tensor, nth = part * h->pipeline + h->stage;
    s->vocab = s->whole.vocab;
    s->whole.vocab = (s->whole.vocab + t - 1) / t * t;
    cut_layers(h, &s->whole, nth, &s->from, &s->to);
    s->first = nth == 0, s->last = nth == h->pipeline * h->interleave - 1;
    s->local = s->whole;
    s->local.heads /= t;
    s->local.kv_heads /= t;
    if (mti_folds_experts(h))
        s->local.shared_ranks = t;
    else
        s->local.ffn /= t;
    s->local.dense_ffn /= t;
    s->local.vocab /= t;
    if (h->expert > 1) s->local.expert_ranks = h->expert;
    return true;
}

bool mti_check_length(const char *who, const mti_model_shard *s, int64_t seq)
{
    int64_t cut = s->parallel.context * (s->parallel.sequence ? s->parallel.tensor : 1);
    if (seq < 1 || (mti_is_whole(s->whole.kind) && seq > s->whole.context))
        return mti_fail_bool(MT_ERR_ARGUMENT,
                             "%s: %" PRId64 " tokens in a row; need 1 to the context, %" PRId64,
                             who, seq, s->whole.context);
    return seq % cut == 0 || mti_fail_bool(MT_ERR_ARGUMENT,
                                           "%s: %" PRId64 " tokens in a row are cut among %" PRId64
                                           " ranks; need a multiple",
                                           who, seq, cut);
}

int64_t mti_shard_of_sequence(const mti_model_shard *s, int64_t seq)
{
    return seq / s->parallel.context / (s->parallel.sequence ? s->parallel.tensor : 1);
}

int64_t mti_shards_seen(const mti_model_shard *s)
{
    return s->whole.causal ? s->parallel.context_rank + 1 : s->parallel.context;
}

mt_status mt_parallel_check(const mt_parallel *parallel, const mt_model_config *config)
{
    mti_model_shard s;
    return mti_model_shard_make(&s, config, parallel, 0) ? MT_OK : mt_last_status();
}
