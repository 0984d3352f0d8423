/* complete.c: from options to a model configuration. */
#include <string.h>
#include <unistd.h>
#include "options/option_table.h"
#include "files/files.h"
#include "nn/model.h"

/* The default model of lessons: small enough for a profile that can be read at a glance. */
static const mt_model_config small_model = {.kind = MT_MODEL_GPT,
                                            .hidden = 64,
                                            .layers = 2,
                                            .vocab = 256,
                                            .act = MT_ACT_GELU,
                                            .dtype = MT_F32};

/* Models with names, and all that plan, fit and serve take, are measured as large models are
 * trained, on meta, except for what is given. Ranks that mpirun has started have a device. */
static void default_as_trained(mti_options *o, mt_model_config *base)
{
    mti_workload *w = &o->workload;
    if (!mti_is_given(o, MTI_O_DEVICE) && !o->world) w->device.kind = "meta";
    if (!mti_is_given(o, MTI_O_BATCH)) w->batch = 1;
    if (!mti_is_given(o, MTI_O_SEQ) && base->context) w->seq = mti_usual_seq(base);
    if (!mti_is_given(o, MTI_O_DTYPE) && !w->memory.amp) base->dtype = MT_BF16;
    if (!mti_is_given(o, MTI_O_OPTIMIZER) && mti_takes(o->verb, &mti_option_rows[MTI_O_OPTIMIZER]))
        w->optimizer = MTI_OPT_DEFAULT;
}

void mti_option_defaults(mti_options *o, const mti_verb_rules *rules)
{
    *o = (mti_options){
        .rules = rules,
        .verb = rules->verb,
        .program = "memtape",
        .workload = {.config = small_model, .batch = 2, .seq = 32, .seed = 1, .device.kind = "cpu"},
        .train = {.settings = {.lr = 1e-3, .weight_decay = 0.1, .clip = 1, .accumulate = 1},
                  .val_fraction = 0.1,
                  .seconds = 60},
        .generate = {.temperature = 0.8, .top_p = 1, .repetition_penalty = 1, .tokens = 256},
        .plan = {.utilisation = 1, .devices = 1},
        .serve = {.at_once = 8192}};
    if (mti_runs_on_meta(rules->verb) && rules->verb != MTI_COMPARE)
        default_as_trained(o, &o->workload.config);
    if (rules->defaults) rules->defaults(o);
}

static int64_t default_heads(int64_t hidden)
{
    return hidden % 4 == 0 ? 4 : hidden % 2 == 0 ? 2 : 1;
}

/* Whether the bytes of the largest tensors can be counted. */
static bool sizes_fit(mti_options *o)
{
    const mt_model_config *c = &o->workload.config;
    size_t e = mt_dtype_size(c->dtype), d = (size_t)c->hidden, tokens;
    size_t f = c->ffn ? (size_t)c->ffn : 4 * d, widest = f > 3 * d ? f : 3 * d;
    bool whole = mti_is_whole(c->kind), math = c->attention == MT_ATTENTION_MATH;
    const size_t heads = c->heads > 0 ? (size_t)c->heads : 1;
    bool ok = mti_mul_size((size_t)o->workload.batch, (size_t)o->workload.seq, &tokens);
    const size_t products[][4] = {
        {tokens, widest, e, 2},
        {tokens, whole ? (size_t)c->vocab : 1, e, 2},
        {widest, d, e, whole && c->layers ? (size_t)c->layers : 1},
        {whole ? (size_t)c->vocab : 1, d, e, 2},
        {tokens, math ? (size_t)o->workload.seq : 1, math ? heads : 1, e},
    };
    for (size_t i = 0; ok && i < sizeof products / sizeof *products; i++) {
        size_t total = 1;
        for (int j = 0; ok && j < 4; j++) ok = mti_mul_size(total, products[i][j], &total);
        ok = ok && total <= PTRDIFF_MAX / 16;
    }
    if (ok) return true;
    return mti_options_refuse(
        o,
        "the sizes overflow: batch %lld x seq %lld x hidden %lld is more than this machine "
        "can count bytes of; lower --batch, --seq, --hidden%s",
        (long long)o->workload.batch, (long long)o->workload.seq, (long long)c->hidden,
        whole ? ", --layers or --vocab" : "");
}

/* An optimizer that nobody chose steps 16-bit parameters in f32 copies. */
static void default_masters(mti_options *o)
{
    mti_workload *w = &o->workload;
    if (o->verb != MTI_TRAIN && w->optimizer != MTI_OPT_NONE &&
        !(w->parallel.fsdp & MT_FSDP_F32_SHARDS) && !o->chosen[MTI_O_OPTIMIZER] &&
        !o->chosen[MTI_O_MASTER])
        w->memory.master = mt_dtype_size(w->config.dtype) == 2;
}

/* In training rotary positions go on past the context that a model was made for. */
static bool pass_context(mti_options *o)
{
    mt_model_config *c = &o->workload.config;
    const long long seq = o->workload.seq, context = c->context;
    if (c->kind != MT_MODEL_LLAMA || o->verb == MTI_SERVE)
        return mti_options_refuse(o,
                                  "--seq %lld is longer than the model's context, %lld; "
                                  "MODEL:context=%lld makes it longer",
                                  seq, context, seq);
    mti_append(o->notes, sizeof o->notes,
               "--seq %lld is longer than the context that the model was made for, %lld\n", seq,
               context);
    c->context = seq;
    return true;
}

bool mti_options_config(mti_options *o, const mt_model_config *base)
{
    mt_model_config c = *base;
    if (mti_is_given(o, MTI_O_HIDDEN) && c.hidden != o->workload.config.hidden)
        c.heads = 0; /* chosen for the base's width */
    mti_options_override(&c, o);
    bool attends = mti_attends(c.kind), whole = mti_is_whole(c.kind);
    if (attends && c.heads == 0) c.heads = default_heads(c.hidden);
    if (whole && c.kind != MT_MODEL_BERT) c.causal = true;
    if (whole && c.context == 0) c.context = o->workload.seq;
    o->workload.config = c;
    if (!mti_recipe_apply(o) || !mti_check_used(o) || !sizes_fit(o)) return false;
    default_masters(o);
    c = o->workload.config;
    if (whole && o->workload.seq > c.context && !pass_context(o)) return false;
    c.context = o->workload.config.context;
    if (mt_model_config_check(&c) != MT_OK) return mti_options_refuse_as(o, "");
    const mt_lora_options lora = mti_adapters_of(&o->workload.memory);
    if (lora.rank && !mti_lora_check(&c, &lora)) return mti_options_refuse_as(o, "--lora-targets");
    return mti_check_rank(o) && (!o->rules->check || o->rules->check(o));
}

bool mti_is_model_path(const char *name)
{
    size_t n = strlen(name);
    if (strchr(name, '/') ||
        (n > 5 && (!strcmp(name + n - 5, ".json") || !strcmp(name + n - 5, ".gguf"))))
        return true;
    mt_model_config named;
    bool known =
        mt_model_kind_parse(name, &named.kind) == MT_OK || mt_model_preset(name, &named) == MT_OK;
    mt_clear_error();
    return !known && mti_is_folder(name);
}

/* A linear takes rows, one for each of the batch. */
#define SEQ 32
static int64_t default_seq(mt_model_kind kind) { return kind == MT_MODEL_LINEAR ? 1 : SEQ; }

#define MOST_MODELS 256

static bool refuse_model(mti_options *o, const char *name)
{
    const char *names[MOST_MODELS];
    char kinds[160] = "", near[200];
    const bool any = o->verb != MTI_TRAIN;
    int n = 0;
    for (int k = 0; any && k < MT_MODEL_KIND_COUNT; k++) {
        names[n++] = mt_model_kind_name((mt_model_kind)k);
        mti_append(kinds, sizeof kinds, "%s%s", k ? ", " : "", names[k]);
    }
    for (size_t i = 0; mt_model_preset_name(i) && n < MOST_MODELS; i++)
        names[n++] = mt_model_preset_name(i);
    *near = 0;
    if (any) mti_presets_near(near, sizeof near, name);
    if (!*near) mti_meant(near, sizeof near, names, n, name);
    return mti_options_refuse(
        o, "%s: unknown \"%.80s\"%s%s%s give %s%sa preset such as %s (docs/models.md has all)%s",
        any ? "MODEL" : "--preset", name, *near ? ", did you mean " : "", near, *near ? "?" : ";",
        kinds, any ? ", " : "",
        any ? "gpt2, llama-3.1-8b, qwen2.5-7b, mistral-7b, gemma-3-4b, phi-4"
            : "tiny, small, medium",
        any ? ", or the path of a config.json or of its folder; of another module of PyTorch's: "
              "memtape.torch.profile (docs/modules.md)"
            : "");
}

/* MODEL is a kind, a preset or the path of a config.json or of its folder. */
static bool base_model(mti_options *o, const char *name, mt_model_config *base)
{
    *base = small_model;
    *o->notes = 0;
    bool in_fewer_bits = false;
    const char *meant = o->verb != MTI_TRAIN ? mti_preset_meant(name, &in_fewer_bits) : NULL;
    if (o->verb != MTI_TRAIN && mti_is_model_path(name)) {
        if (mt_model_config_from_hf_file(name, base, o->notes, sizeof o->notes) == MT_OK)
            return true;
        if (!meant || !access(name, F_OK)) return mti_options_refuse_as(o, "MODEL");
    }
    mt_clear_error();
    if (meant && mt_model_preset(meant, base) == MT_OK) {
        if (strcmp(meant, name) != 0)
            mti_format(o->notes, sizeof o->notes, "%.80s is taken for this preset%s\n", name,
                       in_fewer_bits
                           ? ", with weights of the model's type: --qlora "
                             "trains beside linears in 4 bits (--recipe plain:codes-file as "
                             "from such a file), `serve --weights int8` or, of 4 bits, nf4-double "
                             "generates"
                           : "");
        if (mti_is_more_than_text(name))
            mti_append(o->notes, sizeof o->notes,
                       "%.80s: the text model alone; what sees pictures is not counted\n", name);
        if (o->workload.name) o->workload.name = meant;
        o->workload.preset = meant;
        return true;
    }
    if (o->verb != MTI_TRAIN && mt_model_kind_parse(name, &base->kind) == MT_OK) {
        if (!mti_is_whole(base->kind)) base->layers = base->vocab = 0;
        return true;
    }
    mt_clear_error();
    if (mt_model_preset(name, base) == MT_OK) {
        o->workload.preset = name;
        return true;
    }
    mt_clear_error();
    return refuse_model(o, name);
}

/* Whether a file defines the model, or there is none. */
static bool takes_no_model(const mti_options *o)
{
    return o->expression.text || o->train.resume || o->train.settings.from || o->compare.report;
}

/* Gives --qlora the usual rank where none is given; a row of a sweep may have left it out again. */
static bool default_rank(mti_options *o)
{
    mti_workload *w = &o->workload;
    if (!mti_is_given(o, MTI_O_LORA_RANK) && w->usual_rank) w->memory.lora_rank = 0;
    w->usual_rank = w->memory.qlora && !w->memory.lora_rank;
    if (!w->usual_rank) return true;
    const bool ok = mti_option_read(o, &mti_option_rows[MTI_O_LORA_RANK], MTI_USUAL_RANK);
    o->chosen[MTI_O_LORA_RANK] = MTI_BY_NOBODY;
    return ok;
}

bool mti_options_complete(mti_options *o)
{
    const mti_verb_rules *rules = o->rules;
    mt_model_config base;
    bool named = *mti_verb_get(o->verb)->args != 0;
    if (rules->check_words && !rules->check_words(o)) return false;
    if (named && !o->workload.name && !takes_no_model(o))
        return mti_options_refuse(
            o,
            "MODEL is missing; give linear, mlp, attention, block, gpt, a preset or a "
            "path to a config.json or its folder%s",
            o->verb == MTI_EXPLAIN ? "; or --expr" : "");
    if (!default_rank(o) || !mti_rank_defaults(o)) return false;
    if (takes_no_model(o)) return mti_check_used_so_far(o);
    if (!mti_verb_builds(o->verb)) return mti_check_used(o);
    if (named) o->workload.preset = NULL; /* an earlier row of a sweep may have set it */
    if (!base_model(o, named ? o->workload.name : o->workload.preset, &base)) return false;
    if (mti_is_given(o, MTI_O_CONTEXT)) base.context = o->workload.config.context;
    if (!mti_is_given(o, MTI_O_SEQ)) o->workload.seq = default_seq(base.kind);
    if ((mti_runs_on_meta(o->verb) && o->verb != MTI_COMPARE) ||
        (base.context && o->verb != MTI_TRAIN))
        default_as_trained(o, &base);
    const bool ok = (!rules->complete || rules->complete(o, &base)) && mti_options_config(o, &base);
    if (ok) mti_find_left_out(o);
    return ok;
}
