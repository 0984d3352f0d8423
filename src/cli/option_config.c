/* option_config.c: from options to a model configuration. */
#include <string.h>
#include "cli/option_rows.h"
#include "nn/model.h"

/* Defaults that let everything be seen at a glance. */
static const mt_model_config small_model = {.kind = MT_MODEL_GPT,
                                            .hidden = 64,
                                            .layers = 2,
                                            .vocab = 256,
                                            .act = MT_ACT_GELU,
                                            .dtype = MT_F32};

static int64_t default_heads(int64_t hidden)
{
    return hidden % 4 == 0 ? 4 : hidden % 2 == 0 ? 2 : 1;
}

/* Every tensor's bytes must be countable: the largest products, each checked. */
static bool sizes_fit(mti_options *o)
{
    const mt_model_config *c = &o->config;
    size_t e = mt_dtype_size(c->dtype), d = (size_t)c->hidden, tokens;
    size_t f = c->ffn ? (size_t)c->ffn : 4 * d, widest = f > 3 * d ? f : 3 * d;
    bool whole = mti_is_whole(c->kind), math = c->attention == MT_ATTENTION_MATH;
    const size_t heads = c->heads > 0 ? (size_t)c->heads : 1;
    bool ok = mti_mul_size((size_t)o->batch, (size_t)o->seq, &tokens);
    const size_t products[][4] = {
        {tokens, widest, e, 2},
        {tokens, whole ? (size_t)c->vocab : 1, e, 2},
        {widest, d, e, whole && c->layers ? (size_t)c->layers : 1},
        {whole ? (size_t)c->vocab : 1, d, e, 2},
        {tokens, math ? (size_t)o->seq : 1, math ? heads : 1, e},
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
        (long long)o->batch, (long long)o->seq, (long long)c->hidden,
        whole ? ", --layers or --vocab" : "");
}

bool mti_options_config(mti_options *o, const mt_model_config *base)
{
    mt_model_config c = *base;
    const bool *given = o->given;
    if (given[MTI_O_HIDDEN]) {
        if (c.hidden != o->hidden) c.heads = 0; /* the base's heads went with its width */
        c.hidden = o->hidden;
    }
    if (given[MTI_O_HEADS]) c.heads = o->heads;
    if (given[MTI_O_KV_HEADS]) c.kv_heads = o->kv_heads;
    if (given[MTI_O_LAYERS]) c.layers = o->layers;
    if (given[MTI_O_VOCAB]) c.vocab = o->vocab;
    if (given[MTI_O_FFN]) c.ffn = o->ffn;
    if (given[MTI_O_ACT]) c.act = o->act;
    if (given[MTI_O_INPLACE]) c.inplace = o->inplace;
    if (given[MTI_O_NORM]) c.norm = o->norm;
    if (given[MTI_O_NORM_KIND]) c.norm_kind = o->norm_kind;
    if (given[MTI_O_DROPOUT]) c.dropout = o->dropout;
    if (given[MTI_O_ATTENTION]) c.attention = o->attention;
    if (given[MTI_O_CAUSAL]) c.causal = o->causal;
    if (given[MTI_O_DTYPE]) c.dtype = o->dtype;
    bool attends = c.kind != MT_MODEL_MLP, whole = mti_is_whole(c.kind);
    if (attends && c.heads == 0) c.heads = default_heads(c.hidden);
    if (whole && c.kind != MT_MODEL_BERT) c.causal = true;
    if (whole && c.context == 0) c.context = o->seq;
    o->config = c;
    if (!mti_check_used(o) || !sizes_fit(o)) return false;
    if (whole && o->seq > c.context)
        return mti_options_refuse(o, "--seq %lld is longer than the model's context, %lld",
                                  (long long)o->seq, (long long)c.context);
    if (attends && c.hidden % c.heads)
        return mti_options_refuse(
            o, "--hidden %lld is not a multiple of --heads %lld; the heads share it evenly",
            (long long)c.hidden, (long long)c.heads);
    if (c.inplace && c.act != MT_ACT_RELU && c.act != MT_ACT_LEAKY_RELU)
        return mti_options_refuse(
            o,
            "--inplace: %s needs its input again in backward; only relu and leaky_relu "
            "can overwrite it",
            mt_act_name(c.act));
    if (mt_model_config_check(&c) == MT_OK) return mti_check_spending(o) && mti_check_rank(o);
    mti_options_refuse(o, "%.1000s", mt_last_error());
    mt_clear_error();
    return false;
}

bool mti_is_model_path(const char *name)
{
    size_t n = strlen(name);
    return strchr(name, '/') || (n > 5 && !strcmp(name + n - 5, ".json"));
}

static bool from_file(mti_options *o, const char *path, mt_model_config *base)
{
    if (mt_model_config_from_hf_file(path, base, o->notes, sizeof o->notes) == MT_OK) return true;
    mti_options_refuse(o, "MODEL: %.900s", mt_last_error());
    mt_clear_error();
    return false;
}

/* MODEL is a kind, a preset or the path of a config.json. */
static bool base_model(mti_options *o, const char *name, mt_model_config *base)
{
    *base = small_model;
    *o->notes = 0;
    if (o->verb != MTI_TRAIN && mti_is_model_path(name)) return from_file(o, name, base);
    if (o->verb != MTI_TRAIN && mt_model_kind_parse(name, &base->kind) == MT_OK) {
        if (!mti_is_whole(base->kind)) base->layers = base->vocab = 0;
        return true;
    }
    mt_clear_error();
    if (mt_model_preset(name, base) == MT_OK) {
        o->preset = name;
        return true;
    }
    mt_clear_error();
    char list[512] = "";
    for (int k = 0; o->verb != MTI_TRAIN && k < MT_MODEL_KIND_COUNT; k++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s, ",
                 mt_model_kind_name((mt_model_kind)k));
    for (size_t i = 0; mt_model_preset_name(i); i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                 mt_model_preset_name(i));
    return mti_options_refuse(o, "%s: \"%.80s\" is no good; give %sone of %s",
                              o->verb == MTI_TRAIN ? "--preset" : "MODEL", name,
                              o->verb == MTI_TRAIN ? "" : "a path to a config.json or ", list);
}

/* What is still missing once all options are read. */
bool mti_options_complete(mti_options *o)
{
    if (!mti_check_values(o)) return false;
    if (o->verb == MTI_GENERATE && !o->model_file)
        return mti_options_refuse(
            o, "--model is missing; give a file that `memtape train --save` wrote");
    if (o->verb == MTI_TRAIN && o->data.n == 0)
        return mti_options_refuse(o, "--data is missing; give a file to learn from");
    if (mti_verb_builds(o->verb) && *mti_verb_get(o->verb)->args && !o->model)
        return mti_options_refuse(
            o, "MODEL is missing; give mlp, attention, block, gpt, a preset or a path "
               "to a config.json");
    if (o->verb == MTI_TRAIN && o->from && o->resume)
        return mti_options_refuse(o, "--from and --resume: each says what model it is; give one of "
                                     "them");
    if (o->verb == MTI_TRAIN && (o->resume || o->from)) /* the model is in the file */
        return mti_check_used_so_far(o);
    if (!mti_verb_builds(o->verb)) return mti_check_used(o);
    mt_model_config base;
    if (o->verb != MTI_TRAIN) o->preset = NULL; /* left by an earlier model of a sweep */
    const char *name = o->verb != MTI_TRAIN ? o->model : o->preset ? o->preset : "tiny";
    if (!base_model(o, name, &base)) return false;
    if (o->verb == MTI_TRAIN) {
        if (base.kind == MT_MODEL_BERT)
            return mti_options_refuse(
                o,
                "--preset: \"%.80s\" guesses what is masked, not what follows; give a gpt or a "
                "llama",
                name);
        base.vocab = 256; /* bytes */
        if (!o->given[MTI_O_SEQ]) o->seq = base.context;
        base.context = o->seq;
    }
    if (o->verb == MTI_PLAN) mti_plan_defaults(o, &base);
    return mti_options_config(o, &base) && (o->verb != MTI_PLAN || mti_check_plan(o));
}
