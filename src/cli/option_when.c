/* option_when.c: when an option has an effect. Its row names models and conditions; if one does not
 * hold the option would be ignored, so it is refused. */
#include <string.h>
#include "cli/option_rows.h"

/* ---- conditions ---- */

static const mti_option rank_options[] = {MTI_O_TP,         MTI_O_SP,    MTI_O_PP,
                                          MTI_O_INTERLEAVE, MTI_O_STAGE, MTI_O_MICROBATCHES,
                                          MTI_O_CP,         MTI_O_DP,    MTI_O_ZERO};

bool mti_is_rank(const mti_options *o)
{
    if (o->verb == MTI_FIT) return false; /* it has many */
    for (size_t i = 0; i < sizeof rank_options / sizeof *rank_options; i++)
        if (o->given[rank_options[i]]) return true;
    return false;
}

static bool alone(const mti_options *o) { return !mti_is_rank(o); }
static bool ranks_train(const mti_options *o) { return o->verb != MTI_TRAIN || mti_is_rank(o); }
static bool one_forward(const mti_options *o)
{
    const mt_parallel *h = &o->workload.parallel;
    return h->pipeline <= 1 && h->microbatches <= 1;
}

/* Whether some ranks have the same parameters. */
static bool replicas(const mti_options *o)
{
    return o->workload.parallel.data > 1 || o->workload.parallel.context > 1;
}

static bool one_backward(const mti_options *o)
{
    bool whole = o->zero < 1 || !replicas(o);
    return one_forward(o) && whole && o->workload.memory.loss_scale == 0;
}
static bool floats(const mti_options *o) { return o->zero < 3 || !replicas(o); }
static bool shared_layers(const mti_options *o) { return o->workload.parallel.tensor > 1; }
static bool staged(const mti_options *o)
{
    return o->verb == MTI_FIT || o->workload.parallel.pipeline > 1;
}
static bool other_data(const mti_options *o) { return o->verb == MTI_FIT || replicas(o); }
static bool pieces(const mti_options *o) { return o->zero == 3; }
static bool shards(const mti_options *o) { return o->workload.parallel.f32_shards; }
static bool keeps_root(const mti_options *o)
{
    const int64_t stages = o->workload.parallel.pipeline; /* 0: a fit tries several */
    return (stages == 1 || (!stages && o->verb != MTI_FIT)) && !o->workload.memory.lora_rank;
}
static bool blocks(const mti_options *o)
{
    const mt_parallel *h = &o->workload.parallel;
    const bool one_stage = h->pipeline == 1 || (!h->pipeline && o->verb != MTI_FIT);
    return h->gather != MT_GATHER_MODULE && one_stage;
}
static bool sums(const mti_options *o) { return o->zero < 2; }
static bool no_budget(const mti_options *o) { return !o->workload.budget; }
static bool budget(const mti_options *o) { return o->verb != MTI_PLAN || o->workload.budget; }
static bool adapters(const mti_options *o) { return o->workload.memory.lora_rank; }
static bool codes(const mti_options *o) { return o->workload.memory.qlora; }
static bool saves(const mti_options *o) { return o->save; }
static bool held_out(const mti_options *o) { return o->val_fraction > 0; }
static bool tokens(const mti_options *o)
{
    return o->verb == MTI_FIT || o->given[MTI_O_TRAIN_TOKENS];
}
static bool rate(const mti_options *o) { return o->verb == MTI_FIT || o->given[MTI_O_FLOPS_RATE]; }
static bool expr(const mti_options *o) { return o->expression.text; }
static bool no_steps(const mti_options *o) { return !o->given[MTI_O_STEPS]; }
static bool no_file(const mti_options *o) { return !o->train.from && !o->resume; }
static bool warm(const mti_options *o) { return o->temperature > 0; }
static bool choice(const mti_options *o) { return o->top_k != 1; }
static bool draws(const mti_options *o) { return strcmp(o->workload.device.kind, "meta") != 0; }
static bool compared(const mti_options *o) { return o->verb != MTI_SWEEP || draws(o); }
static bool scaled(const mti_options *o) { return o->verb == MTI_PROFILE || draws(o); }
static bool captures(const mti_options *o)
{
    return !strncmp(o->workload.device.kind, "cuda", 4); /* and its simulator */
}
static bool pretends(const mti_options *o) { return !draws(o); }
static bool threads(const mti_options *o) { return draws(o) || o->workload.device.scratch_of_cpu; }

static bool steps(const mti_options *o)
{
    return o->verb == MTI_TRAIN || o->workload.optimizer != MTI_OPT_NONE;
}

/* A plan shows no peak; there the option changes only what fits. */
static bool peak(const mti_options *o)
{
    return o->verb != MTI_PLAN || o->workload.device.capacity || o->workload.budget;
}

static bool expands(const mti_options *o) { return o->workload.device.expandable; }
static bool rms(const mti_options *o)
{
    mt_model_config c;
    return mt_model_config_resolve(&o->workload.config, &c) == MT_OK &&
           c.norm_kind != MT_NORM_LAYER;
}
static bool gelu_tanh(const mti_options *o) { return o->workload.config.act == MT_ACT_GELU_TANH; }
static bool math(const mti_options *o) { return o->workload.config.attention == MT_ATTENTION_MATH; }
static bool narrow(const mti_options *o) { return mt_dtype_size(o->workload.config.dtype) == 2; }
static bool grouped(const mti_options *o) { return mti_repeats_heads(&o->workload.config); }

bool mti_wants_text(const mti_options *o)
{
    return !o->quiet && !(o->json && !strcmp(o->json, "-"));
}

static const struct condition {
    bool (*holds)(const mti_options *o);
    const char *refusal; /* follows the option's name */
} conditions[MTI_CONDITION_COUNT] = {
    [MTI_IF_RANKED] = {mti_is_rank, " needs --tp, --pp, --cp or --dp: there is only one rank"},
    [MTI_IF_RANKS_TRAIN] = {ranks_train,
                            " needs --tp, --pp, --cp or --dp: it is the memory of ranks that "
                            "train together"},
    [MTI_IF_ALONE] =
        {alone, ": is of the whole model, and --tp, --pp, --cp, --dp ask for one rank's part"},
    [MTI_IF_ONE_FORWARD] = {one_forward,
                            ": the search is over steps of one forward and one backward; --pp and "
                            "--microbatches of 2 or more have several in flight"},
    [MTI_IF_ONE_BACKWARD] = {one_backward,
                             ": every backward is a step of whole gradients as they come; not with "
                             "--pp or --microbatches of 2 or more, --zero or --loss-scale"},
    [MTI_IF_FLOATS] = {floats, ": --zero 3 gathers floats, and weights in 4 bits are codes"},
    [MTI_IF_SHARED_LAYERS] = {shared_layers, " needs --tp of 2 or more, ranks that share a layer"},
    [MTI_IF_STAGED] = {staged,
                       " needs --pp of 2 or more; with one stage there is nothing to choose"},
    [MTI_IF_OTHER_DATA] = {other_data,
                           " needs --dp or --cp of 2 or more, ranks to split states among"},
    [MTI_IF_PIECES] = {pieces, " needs --zero 3, which leaves a rank pieces of the parameters"},
    [MTI_IF_SHARDS] = {shards, " needs --f32-shards: else the ranks sum gradients in their type"},
    [MTI_IF_KEEPS_ROOT] = {keeps_root, ": stages of --pp have several forwards in flight (a fit "
                                       "needs --pp 1), and what --lora-rank freezes "
                                       "gets no gradient to be let go after"},
    [MTI_IF_BLOCKS] = {blocks, " needs --gather block or ahead, and no stages: those of --pp have "
                               "several forwards in flight (a fit needs --pp 1)"},
    [MTI_IF_SUMS] = {sums, ": with --zero 2 and 3 each gradient is summed once it is complete"},
    [MTI_IF_NO_BUDGET] = {no_budget, ": --budget chooses what to recompute; it excludes "
                                     "--checkpoint, --offload and --compress"},
    [MTI_IF_BUDGETED] = {budget, " needs --budget: it draws what budgets cost"},
    [MTI_IF_STEPS] = {steps, " needs --optimizer "
#define OPTIMIZER(id, name, ...) name ", "
#include "nn/optimizers.def"
#undef OPTIMIZER
                             "not none"},
    [MTI_IF_ADAPTERS] = {adapters, " needs --lora-rank: without it there are no adapters"},
    [MTI_IF_CODES] = {codes, " needs --qlora: without it no weight has scales"},
    [MTI_IF_SAVES] = {saves, " needs --save, which names the file"},
    [MTI_IF_HELD_OUT] = {held_out, ": with --val-fraction 0 no text is held out"},
    [MTI_IF_TOKENS] = {tokens, " needs --tokens, for the time that training takes"},
    [MTI_IF_RATE] = {rate, " needs --flops-rate, for the time that training takes"},
    [MTI_IF_NO_STEPS] = {no_steps, ": --steps sets the length already; give one of the two"},
    [MTI_IF_NO_FILE] = {no_file,
                        ": the file of --from or --resume defines the model already; give one of "
                        "the three"},
    [MTI_IF_WARM] = {warm, ": with --temperature 0 the likeliest byte is always taken"},
    [MTI_IF_CHOICE] = {choice, ": with --top-k 1 the likeliest byte is always taken"},
    [MTI_IF_DRAWS] = {draws, ": no random number is drawn on meta; it is for --device cpu or cuda"},
    [MTI_IF_LEARNS] = {draws, ": nothing is learnt on --device meta, whose tensors have no values"},
    [MTI_IF_COMPARED] =
        {compared,
         ": on meta no step is timed and no gradient compared; it is for --device cpu or cuda"},
    [MTI_IF_SCALED] = {scaled, ": meta has no values to scale; it is for --device cpu or cuda"},
    [MTI_IF_THREADS] = {threads, ": nothing runs on meta; it is for --device cpu or cuda, or with "
                                 "--scratch cpu"},
    [MTI_IF_PRETENDS] = {pretends,
                         ": kernels that run have their own scratch memory counted; it is for "
                         "--device meta"},
    [MTI_IF_EXPR] = {expr, " needs --expr, an expression that names tensors"},
    [MTI_IF_RMS] = {rms, " needs --norm-kind rmsnorm: no other norm has the choice"},
    [MTI_IF_TANH] = {gelu_tanh, " needs --act gelu_tanh: no other activation has the choice"},
    [MTI_IF_MATH] = {math, " needs --attention math: flash attention makes neither weights nor "
                           "copies"},
    [MTI_IF_NARROW] = {narrow,
                       " needs --dtype bf16 or f16: in wider types, and under --amp, it is f32 "
                       "or more anyway"},
    [MTI_IF_GROUPED] = {grouped, " needs --kv-heads below --heads: only those are repeated"},
    [MTI_IF_TEXT] = {mti_wants_text, ": with --quiet or --json - there is no text to add to"},
    [MTI_IF_CUDA] = {captures, ": there are no launches to capture; it is for --device cuda"},
    [MTI_IF_EXPANDS] = {expands, " needs --expandable-segments: other segments grow by what is "
                                 "asked for"},
    [MTI_IF_PEAK] = {peak, " needs --capacity or --budget: it changes only what fits"},
};

/* In a sweep these need not hold in every row: each row has a device and ranks of its own. */
#define OF_A_ROW                                                                                   \
    (UINT64_C(1) << MTI_IF_DRAWS | UINT64_C(1) << MTI_IF_COMPARED | UINT64_C(1) << MTI_IF_SCALED | \
     UINT64_C(1) << MTI_IF_THREADS | UINT64_C(1) << MTI_IF_SHARED_LAYERS |                         \
     UINT64_C(1) << MTI_IF_OTHER_DATA | UINT64_C(1) << MTI_IF_PIECES |                             \
     UINT64_C(1) << MTI_IF_SHARDS | UINT64_C(1) << MTI_IF_KEEPS_ROOT |                             \
     UINT64_C(1) << MTI_IF_BLOCKS | UINT64_C(1) << MTI_IF_EXPANDS)

/* The first of `those` that the row names and that does not hold; NULL: none. */
static const char *refusal_of(const mti_options *o, const mti_option_row *r, uint64_t mask)
{
    for (int c = 0; c < MTI_CONDITION_COUNT; c++)
        if (r->when & mask & UINT64_C(1) << c && !conditions[c].holds(o))
            return conditions[c].refusal;
    return NULL;
}

/* ---- checks ---- */

static bool check_model(mti_options *o, const mti_option_row *r)
{
    char fit[64] = "";
    if (r->models & 1u << o->workload.config.kind) return true;
    for (int k = 0; k < MT_MODEL_KIND_COUNT; k++)
        if (r->models & 1u << k)
            snprintf(fit + strlen(fit), sizeof fit - strlen(fit), "%s%s", *fit ? ", " : "",
                     mt_model_kind_name((mt_model_kind)k));
    return mti_options_refuse(o, "--%s: does not apply to %s; it is for %s", r->name,
                              mt_model_kind_name(o->workload.config.kind), fit);
}

/* Checks every option that was given; its models only if the model is known. */
static bool check(mti_options *o, uint64_t mask, bool with_model)
{
    for (size_t i = 0; i < mti_n_option_rows; i++) {
        const mti_option_row *r = &mti_option_rows[i];
        if (!o->given[r->id]) continue;
        if (with_model && !check_model(o, r)) return false;
        const char *reason = refusal_of(o, r, mask);
        if (reason) return mti_options_refuse(o, "--%s%s", r->name, reason);
    }
    return true;
}

bool mti_check_condition(mti_options *o, mti_option option, mti_condition condition)
{
    if (conditions[condition].holds(o)) return true;
    size_t i = 0;
    while (mti_option_rows[i].id != option) i++;
    return mti_options_refuse(o, "--%s%s", mti_option_rows[i].name, conditions[condition].refusal);
}

bool mti_check_used(mti_options *o)
{
    return check(o, o->verb == MTI_SWEEP ? ~OF_A_ROW : UINT64_MAX, mti_verb_builds(o->verb));
}

/* Conditions that do not depend on the model of a file. */
#define OF_THE_COMMAND                                                                             \
    (UINT64_C(1) << MTI_IF_LEARNS | UINT64_C(1) << MTI_IF_DRAWS | UINT64_C(1) << MTI_IF_THREADS |  \
     UINT64_C(1) << MTI_IF_SAVES | UINT64_C(1) << MTI_IF_NO_FILE |                                 \
     UINT64_C(1) << MTI_IF_SHARED_LAYERS | UINT64_C(1) << MTI_IF_OTHER_DATA |                      \
     UINT64_C(1) << MTI_IF_RANKS_TRAIN | UINT64_C(1) << MTI_IF_STAGED)

bool mti_check_used_so_far(mti_options *o) { return check(o, OF_THE_COMMAND, false); }

/* Refuses an option that --over sets in every row anyway. */
static bool check_over(mti_options *o, const mti_option_row *r)
{
    size_t n = strlen(r->name);
    for (size_t k = 0; o->given[r->id] && k < o->over.n; k++)
        if (!strncmp(o->over.at[k], r->name, n) && o->over.at[k][n] == '=')
            return mti_options_refuse(o, "--%s: --over %.60s gives it in every row", r->name,
                                      o->over.at[k]);
    return true;
}

bool mti_check_used_in_rows(mti_options *o, const mti_sweep_rows *rows)
{
    for (size_t i = 0; i < mti_n_option_rows; i++) {
        const mti_option_row *r = &mti_option_rows[i];
        const char *reason = NULL;
        bool used = false;
        if (!check_over(o, r)) return false;
        for (size_t k = 0; k < rows->n && !used; k++) {
            const mti_options *row = &rows->at[k].options;
            const char *why = row->given[r->id] ? refusal_of(row, r, OF_A_ROW) : NULL;
            used = row->given[r->id] && !why;
            if (why) reason = why;
        }
        if (reason && !used) return mti_options_refuse(o, "--%s%s", r->name, reason);
    }
    return true;
}
