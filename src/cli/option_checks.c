/* option_checks.c: options that depend on each other. */
#include <math.h>
#include <stddef.h>
#include <string.h>
#include "cli/launch.h"
#include "cli/option_rows.h"
#include "measure/memory_hooks.h"
#include "nn/model.h"

bool mti_check_device(mti_options *o)
{
    static const char *const needed[MTI_VERB_COUNT] = {
        [MTI_DEMO] = "learns", [MTI_GENERATE] = "writes text", [MTI_AUDIT] = "compares gradients"};
    return !needed[o->verb] || strcmp(o->workload.device.kind, "meta") != 0 ||
           mti_options_refuse(o,
                              "--device meta: %s %s, and tensors there have no values; give cpu or "
                              "cuda",
                              mti_verb_get(o->verb)->name, needed[o->verb]);
}

bool mti_check_memory(mti_options *o)
{
    char list[MTI_OPTIMIZER_LIST];
    const mti_memory_options *s = &o->workload.memory;
    const char *dtype = mt_dtype_name(o->workload.config.dtype);
    mti_preset preset = {MTI_PRESET_NONE};
    bool grouped = s->checkpoint && mti_preset_parse(s->checkpoint, &preset) &&
                   preset.form == MTI_PRESET_GROUPS;
    if (grouped && !mti_is_whole(o->workload.config.kind))
        return mti_options_refuse(o,
                                  "--checkpoint %.20s: groups the layers of a gpt, bert or llama, "
                                  "and %s has none",
                                  s->checkpoint, mt_model_kind_name(o->workload.config.kind));
    if (!mti_attends(o->workload.config.kind) && s->checkpoint &&
        !strcmp(s->checkpoint, "selective"))
        return mti_options_refuse(
            o, "--checkpoint selective: %s has no attention to recompute; give none or full",
            mt_model_kind_name(o->workload.config.kind));
    const mt_loss_form loss = o->workload.config.ops.loss;
    if (loss == MT_LOSS_F32 && mt_dtype_size(o->workload.config.dtype) != 2)
        return mti_options_refuse(o, "--loss f32 needs --dtype bf16 or f16: in wider types, and "
                                     "under --amp, it is f32 or more anyway");
    const mt_lora_options lora = mti_adapters_of(s);
    if (loss == MT_LOSS_FUSED && s->lora_rank && mti_lora_wants(&lora, "lm_head"))
        return mti_options_refuse(o, "--loss fused: --lora-rank gives the head an adapter, and its "
                                     "product is one with the loss here; give native, f32 or lse, "
                                     "or other --lora-targets");
    if (preset.form == MTI_PRESET_OPS && o->workload.config.inplace &&
        o->workload.config.mlp == MT_MLP_PLAIN)
        return mti_options_refuse(o,
                                  "--checkpoint ops: keeps the result of the MLP's first product, "
                                  "which an activation with --inplace changes");
    if (o->verb == MTI_TRAIN && o->workload.optimizer == MTI_OPT_NONE)
        return mti_options_refuse(o, "--optimizer none: nothing would be learnt; give %s",
                                  mti_optimizer_list(list, false));
    if (o->verb == MTI_TRAIN && s->lora_rank && !o->train.from && !o->resume)
        return mti_options_refuse(
            o, "--lora-rank needs --from: adapters are trained beside trained weights");
    if (s->lora_rank && !mti_lora_check(&o->workload.config, &lora))
        return mti_options_refuse_as(o, "--lora-targets");
    if (s->amp && o->workload.config.dtype != MT_F32)
        return mti_options_refuse(o, "--amp: the parameters are %s; it needs --dtype f32", dtype);
    if (s->master && mt_dtype_size(o->workload.config.dtype) != 2)
        return mti_options_refuse(
            o, "--master-weights: the parameters are %s; they need --dtype bf16 or f16", dtype);
    if (o->workload.parallel.f32_shards && (s->master || s->f32_gradients))
        return mti_options_refuse(o, "--%s: with --f32-shards parameters and gradients are f32",
                                  s->master ? "master-weights" : "f32-gradients");
    if (s->f32_gradients && mt_dtype_size(o->workload.config.dtype) != 2)
        return mti_options_refuse(
            o, "--f32-gradients: the parameters are %s; they need --dtype bf16 or f16", dtype);
    return true;
}

/* ---- an expression ---- */

bool mti_check_expression(mti_options *o)
{
    static const mti_option taken[] = {MTI_O_EXPR,     MTI_O_SHAPES,  MTI_O_NO_GRAD,
                                       MTI_O_WEIGHTS,  MTI_O_DTYPE,   MTI_O_DEVICE,
                                       MTI_O_CAPACITY, MTI_O_THREADS, MTI_O_QUIET};
    if (o->workload.name)
        return mti_options_refuse(o, "--expr: MODEL is \"%.80s\" already; give one of them",
                                  o->workload.name);
    for (int id = 0; id < MTI_OPTION_COUNT; id++) {
        bool fits = !o->given[id];
        for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
            fits = fits || taken[i] == (mti_option)id;
        if (!fits)
            return mti_options_refuse(o, "--%s: is for a MODEL, and --expr has none",
                                      mti_option_row_of((mti_option)id)->name);
    }
    return true;
}

/* ---- a plan ---- */

bool mti_check_plan(mti_options *o)
{
    const mti_plan_options *p = &o->plan;
    if (p->recompute && o->given[MTI_O_CHECKPOINT])
        return mti_options_refuse(
            o, "--recompute is --checkpoint full; give one of --recompute and --checkpoint");
    if (p->utilisation == 0)
        return mti_options_refuse(o, "--utilisation: 0 is not a number above 0, up to 1");
    if (p->parameters != floor(p->parameters))
        return mti_options_refuse(o, "--params: %g is not a whole number", p->parameters);
    if (o->given[MTI_O_KV] && p->kv > o->workload.config.context - o->workload.seq)
        return mti_options_refuse(
            o, "--kv %lld: with --seq %lld that is longer than the model's context, %lld",
            (long long)p->kv, (long long)o->workload.seq, (long long)o->workload.config.context);
    return true;
}

/* ---- serving ---- */

bool mti_check_serve(mti_options *o)
{
    mt_model_kind kind = o->workload.config.kind;
    if (kind != MT_MODEL_GPT && kind != MT_MODEL_LLAMA)
        return mti_options_refuse(o,
                                  "MODEL: a %s does not generate from left to right; give a gpt, a "
                                  "llama, a preset or a path to a config.json of one",
                                  mt_model_kind_name(kind));
    if (!o->given[MTI_O_GPU] && !o->given[MTI_O_CAPACITY])
        return mti_options_refuse(o, "--gpu is missing; give a kind, such as h100, or --capacity");
    if (o->given[MTI_O_GPUS_FILE] && (!o->given[MTI_O_GPU] || o->given[MTI_O_CAPACITY]))
        return mti_options_refuse(
            o, "--gpus-file %s",
            o->given[MTI_O_GPU] ? "and --capacity: each says how much memory there is; give one"
                                : "needs --gpu, which of its kinds");
    return o->kv_cache != MTI_KV_NONE ||
           mti_options_refuse(o, "--kv-cache none: every token would be made from the whole text; "
                                 "give preallocated, growing, 8bit or paged");
}

/* ---- one rank of several ---- */

/* In train a microbatch is one of the batches whose gradients a step sums. */
static bool name_accumulated(mti_options *o)
{
    if (o->verb != MTI_TRAIN || !o->given[MTI_O_MICROBATCHES]) return true;
    const int64_t n = o->workload.parallel.microbatches;
    if (o->given[MTI_O_ACCUMULATE])
        return mti_options_refuse(o,
                                  "--microbatches %lld and --accumulate %lld: in train they are "
                                  "the same number; give one of the two",
                                  (long long)n, (long long)o->train.accumulate);
    o->train.accumulate = n;
    o->given[MTI_O_ACCUMULATE] = true;
    return true;
}

bool mti_rank_defaults(mti_options *o)
{
    o->workload.ranked = mti_is_rank(o);
    if (o->workload.ranked && !o->given[MTI_O_OPTIMIZER]) o->workload.optimizer = MTI_OPT_DEFAULT;
    return name_accumulated(o);
}

static int64_t at_least_1(int64_t n) { return n ? n : 1; }

static bool count_ranks(mti_options *o, int64_t *of_a_stage, int64_t *all)
{
    const mt_parallel *h = &o->workload.parallel;
    return (!__builtin_mul_overflow(at_least_1(h->tensor), at_least_1(h->context), of_a_stage) &&
            !__builtin_mul_overflow(*of_a_stage, at_least_1(h->data), of_a_stage) &&
            !__builtin_mul_overflow(*of_a_stage, at_least_1(h->pipeline), all)) ||
           mti_options_refuse(o, "--tp, --cp, --dp, --pp: more ranks than can be counted");
}

/* --rank says which stage and which piece, too; other ranks differ in nothing that is measured.
 * The last piece's rank needs most: its queries see all keys. */
static bool place_rank(mti_options *o)
{
    mt_parallel *h = &o->workload.parallel;
    int64_t of_a_stage = 0, all = 0;
    if (o->given[MTI_O_RANK] && o->given[MTI_O_STAGE])
        return mti_options_refuse(o, "--rank: --stage is given, too; give one of the two");
    const int64_t t = at_least_1(h->tensor), c = at_least_1(h->context);
    if (!count_ranks(o, &of_a_stage, &all)) return false;
    o->workload.rank = o->given[MTI_O_RANK] ? o->rank : h->stage * of_a_stage + (c - 1) * t;
    if (o->workload.rank >= all && o->given[MTI_O_RANK])
        return mti_options_refuse(o, "--rank %lld: there are %lld ranks; need 0 to %lld",
                                  (long long)o->rank, (long long)all, (long long)all - 1);
    if (o->given[MTI_O_RANK]) h->stage = o->rank / of_a_stage;
    h->context_rank = o->workload.rank / t % c;
    return true;
}

bool mti_check_factored(mti_options *o)
{
    const mt_parallel *h = &o->workload.parallel;
    bool pieces = o->zero > 0 && (o->verb == MTI_FIT || h->data > 1 || h->context > 1);
    return !pieces || !mti_optimizer_takes_matrices(o->workload.optimizer) ||
           mti_options_refuse(o,
                              "--optimizer %s: --zero leaves a rank flat pieces of its matrices, "
                              "which have no rows and columns to factor; give --zero 0, or "
                              "another optimizer",
                              mti_optimizer_name(o->workload.optimizer));
}

/* One process cannot be several ranks, but tells how to start them. */
static bool refuse_one_process(mti_options *o)
{
    static const struct {
        mti_option id;
        size_t at;
    } counts[] = {{MTI_O_TP, offsetof(mt_parallel, tensor)},
                  {MTI_O_PP, offsetof(mt_parallel, pipeline)},
                  {MTI_O_CP, offsetof(mt_parallel, context)},
                  {MTI_O_DP, offsetof(mt_parallel, data)}};
    char words[96] = "";
    int64_t of_a_stage = 0, all = 0;
    if (!count_ranks(o, &of_a_stage, &all)) return false;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const char *field = (const char *)&o->workload.parallel + counts[i].at;
        size_t n = strlen(words);
        if (o->given[counts[i].id])
            snprintf(words + n, sizeof words - n, " --%s %lld",
                     mti_option_row_of(counts[i].id)->name, (long long)*(const int64_t *)field);
    }
    if (all == 1)
        return mti_options_refuse(o, "--tp, --pp, --cp, --dp: they divide training among 2 ranks "
                                     "or more, and ask for 1; leave them out, and --microbatches "
                                     "is --accumulate");
    return mti_options_refuse(o,
                              "--tp, --pp, --cp, --dp: training takes all ranks at once; start "
                              "them with: mpirun -n %lld memtape train%s ...",
                              (long long)all, words);
}

/* What ranks cannot do yet when they train, and why. */
static bool check_training_ranks(mti_options *o)
{
    static const struct {
        mti_option id;
        const char *reason;
    } refused[] = {
        {MTI_O_BUDGET, "each rank would search by itself, and ranks that recompute other parts "
                       "than others would wait for them; give --checkpoint"},
        {MTI_O_GRAPH, "what ranks exchange cannot be captured"},
        {MTI_O_SNAPSHOT, "is of one device, and each rank has its own"},
        {MTI_O_LIVE, "shows one device, and each rank has its own"},
    };
    const mti_workload *w = &o->workload;
    int64_t d = at_least_1(w->parallel.data);
    char list[MTI_OPTIMIZER_LIST];
    if (mti_launch_get().ranks == 1) return refuse_one_process(o);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (o->given[refused[i].id])
            return mti_options_refuse(o, "--%s, among ranks: %s",
                                      mti_option_row_of(refused[i].id)->name, refused[i].reason);
    if (!mti_optimizer_is_elementwise(w->optimizer))
        return mti_options_refuse(o,
                                  "--optimizer %s, among ranks: a part of a matrix has other "
                                  "rows, columns and blocks than the whole, so its steps would be "
                                  "others; give %s",
                                  mti_optimizer_name(w->optimizer), mti_optimizer_list(list, true));
    if (w->parallel.context > 1 && w->config.dropout > 0 && strcmp(w->device.kind, "meta") != 0)
        return mti_options_refuse(o,
                                  "--cp %lld with --dropout %g: the masks of attention's weights "
                                  "would not be those of one process; give --dropout 0",
                                  (long long)w->parallel.context, w->config.dropout);
    if (w->memory.qlora && w->parallel.tensor > 1)
        return mti_options_refuse(o,
                                  "--qlora, among ranks of --tp: weights in 4 bits have a scale "
                                  "for each 64 values in a row, and a part of a matrix has other "
                                  "rows than the whole; give --dp, --cp or --pp");
    return w->batch % d == 0 ||
           mti_options_refuse(o, "--batch %lld is divided among --dp %lld; need a multiple",
                              (long long)w->batch, (long long)d);
}

/* Of a profile: what is of one rank, and what large models are trained with. */
static bool check_profiled_rank(mti_options *o)
{
    mti_workload *w = &o->workload;
    bool together = o->verb == MTI_PROFILE && mti_launch_get().ranks > 1;
    if (strcmp(w->device.kind, "meta") != 0 && !together)
        return mti_options_refuse(
            o,
            "--tp, --sp, --pp, --microbatches, --cp, --dp and --zero show one rank of several; "
            "give --device meta, which needs no other rank, or to profile start all of them with "
            "mpirun");
    static const mti_option alone[] = {MTI_O_RANK, MTI_O_STAGE, MTI_O_HTML,
                                       MTI_O_SVG,  MTI_O_TRACE, MTI_O_INFERENCE};
    for (size_t i = 0; together && i < sizeof alone / sizeof *alone; i++)
        if (o->given[alone[i]])
            return mti_options_refuse(o, "--%s: is of one rank, and mpirun has started several",
                                      mti_option_row_of(alone[i])->name);
    if (!o->given[MTI_O_OPTIMIZER] && !o->by_recipe[MTI_O_OPTIMIZER])
        w->memory.master = mt_dtype_size(w->config.dtype) == 2 && !w->parallel.f32_shards;
    return true;
}

/* A sequence is cut in equal pieces. */
static bool check_pieces(mti_options *o)
{
    const mti_workload *w = &o->workload;
    int64_t t = at_least_1(w->parallel.tensor), c = at_least_1(w->parallel.context);
    if (w->seq % c)
        return mti_options_refuse(o, "--cp: --seq %lld is cut among --cp %lld; need a multiple",
                                  (long long)w->seq, (long long)c);
    if (w->parallel.sequence && w->seq / c % t)
        return mti_options_refuse(o, "--sp: --seq %lld is cut among --tp %lld; need a multiple",
                                  (long long)(w->seq / c), (long long)t);
    return true;
}

/* Of a row of a sweep, whose options may come from the rest of the command. */
static bool check_shards(mti_options *o)
{
    const mt_parallel *h = &o->workload.parallel;
    if ((h->f32_shards || h->keep_root || h->gather != MT_GATHER_MODULE) && h->zero != 3)
        return mti_options_refuse(o,
                                  "--%s needs --zero 3, which leaves a rank pieces of the "
                                  "parameters; --zero is %d",
                                  h->f32_shards  ? "f32-shards"
                                  : h->keep_root ? "keep-root"
                                                 : "gather",
                                  h->zero);
    if (h->keep_last && !mti_check_condition(o, MTI_O_KEEP_LAST, MTI_IF_BLOCKS)) return false;
    return !h->keep_root || h->pipeline <= 1 ||
           mti_options_refuse(o, "--keep-root: stages of --pp have several forwards in flight");
}

bool mti_check_rank(mti_options *o)
{
    mti_workload *w = &o->workload;
    const mt_loss_form form = w->config.ops.loss;
    const char *loss = mti_choice_name(&mti_loss_forms, (int)form);
    if (mti_is_rank(o) && mti_loss_takes_head(form))
        return mti_options_refuse(o,
                                  "--loss %s: one rank of several makes its own part of the "
                                  "logits; give native, f32, lse or unfused",
                                  loss);
    if (mti_is_rank(o) && (form == MT_LOSS_LSE || form == MT_LOSS_UNFUSED) &&
        w->parallel.tensor > 1)
        return mti_options_refuse(o,
                                  "--loss %s: ranks of --tp have a part of the logits each; "
                                  "give native or f32",
                                  loss);
    if (!w->ranked) return true;
    if (!(o->verb == MTI_TRAIN ? check_training_ranks(o) : check_profiled_rank(o))) return false;
    w->parallel.zero = (int)o->zero;
    if (o->verb == MTI_TRAIN) w->parallel.microbatches = o->train.accumulate;
    if (!mti_check_factored(o) || !check_shards(o) || !check_pieces(o) ||
        (o->verb != MTI_TRAIN && !place_rank(o)))
        return false;
    return mt_parallel_check(&w->parallel, &w->config) == MT_OK || mti_options_refuse_as(o, "");
}
