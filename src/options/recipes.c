/* recipes.c: --recipe NAME, a bundle of plain options.
 *
 * hf: what the eager code of Hugging Face's Transformers 5.23 keeps, beside Transformers itself in
 * tests/parity/transformers_parity.py. The files that the rows follow are named in
 * docs/parity-transformers.md. liger: the same with what Liger-Kernel replaces. The others: what a
 * data-parallel rank of a training stack holds; the sources are in docs/recipes.md. */
#include <string.h>
#include "options/rows.h"
#include "nn/model.h"

typedef struct recipe_row {
    unsigned recipes; /* that set the option */
    mti_option option;
    const char *value;                      /* NULL: a flag */
    bool (*fits)(const mt_model_config *c); /* c: resolved; NULL: where the option has an effect */
} recipe_row;

static bool is_causal_and_narrow(const mt_model_config *c)
{
    return c->kind != MT_MODEL_BERT && mt_dtype_size(c->dtype) == 2;
}
static bool is_uncapped(const mt_model_config *c)
{
    return c->kind == MT_MODEL_LLAMA && c->logit_cap == 0;
}
static bool has_swiglu(const mt_model_config *c) { return c->mlp == MT_MLP_SWIGLU; }
static bool has_rope(const mt_model_config *c) { return c->rope_theta > 0; }
static bool has_tanh(const mt_model_config *c)
{
    return c->act == MT_ACT_GELU_TANH && c->mlp != MT_MLP_SWIGLU && !c->fused_gelu;
}
static bool is_llama(const mt_model_config *c) { return c->kind == MT_MODEL_LLAMA; }
static bool has_math(const mt_model_config *c) { return c->attention == MT_ATTENTION_MATH; }

#define R(recipe) (1u << MTI_RECIPE_##recipe)
#define DEEPSPEED (R(ZERO1) | R(ZERO2) | R(ZERO3))
#define OF_RANKS  (R(DDP) | DEEPSPEED | R(FSDP2) | R(MEGATRON))
/* fsdp2 in a pipeline: parameters are gathered for a whole step, and gradients are scattered after
 * its last microbatch, so that nothing but the optimizer's is in shards. */
#define FSDP2_STAGE (1u << MTI_RECIPE_COUNT)

/* In the order in which they are shown. A row's `fits` sees what the rows above it set; of several
 * rows of an option the first that fits is set. */
static const recipe_row rows[] = {
    {R(HF), MTI_O_LOSS, "f32", is_causal_and_narrow},
    {R(HF), MTI_O_SWIGLU, "unfused", has_swiglu},
    {R(HF), MTI_O_RMS_NORM, "unfused", NULL},
    {R(HF), MTI_O_GELU_TANH, "unfused", has_tanh},
    {R(HF), MTI_O_ROPE, "unfused", has_rope},
    {R(LIGER), MTI_O_LOSS, "fused", is_uncapped},
    {R(LIGER), MTI_O_SWIGLU, "fused", has_swiglu},
    {R(LIGER), MTI_O_RMS_NORM, "fused", NULL},
    {R(LIGER), MTI_O_ROPE, "fused", has_rope},
    {R(HF) | R(LIGER), MTI_O_SOFTMAX, "f32", is_llama},
    {R(HF) | R(LIGER), MTI_O_KV_GROUPS, "repeated", has_math},

    {R(DDP), MTI_O_DTYPE, "f32", NULL},
    {DEEPSPEED | R(FSDP2) | FSDP2_STAGE | R(MEGATRON), MTI_O_DTYPE, "bf16", NULL},
    {FSDP2_STAGE | R(MEGATRON), MTI_O_F32_GRADIENTS, NULL, NULL},
    {OF_RANKS | FSDP2_STAGE, MTI_O_OPTIMIZER, "adamw", NULL},
    {DEEPSPEED | FSDP2_STAGE | R(MEGATRON), MTI_O_MASTER, NULL, NULL},
    {R(ZERO1) | FSDP2_STAGE | R(MEGATRON), MTI_O_ZERO, "1", NULL},
    {R(ZERO2), MTI_O_ZERO, "2", NULL},
    {R(ZERO3) | R(FSDP2), MTI_O_ZERO, "3", NULL},
    {R(FSDP2), MTI_O_FSDP, "pytorch", NULL},
    {R(FSDP2), MTI_O_FSDP, "ahead+f32-reduce", NULL}, /* no root is kept with --pp or adapters */
    {R(FSDP2), MTI_O_FSDP, "ahead+keep-root", NULL},  /* an f32 model */
    {R(FSDP2), MTI_O_FSDP, "ahead", NULL},
};

/* The recipe's bit. What is given about shards of parameters asks for them. */
static unsigned chosen(const mti_options *o)
{
    bool stage = o->recipe == MTI_RECIPE_FSDP2 && o->verb != MTI_FIT &&
                 o->workload.parallel.pipeline > 1 && !o->given[MTI_O_ZERO] &&
                 !o->given[MTI_O_FSDP];
    return stage ? FSDP2_STAGE : 1u << o->recipe;
}

/* Whether the row's option can be set: it was not given, and has an effect beside those given. A
 * value in the model's config is not asked. */
static bool applies(const recipe_row *row, const mti_options *o, unsigned recipe)
{
    const mti_option_row *r = &mti_option_rows[row->option];
    mt_model_config resolved;
    mti_options with = *o;
    if (!(row->recipes & recipe) || mti_is_chosen(o, r->id)) return false;
    if (!mti_option_read(&with, r, row->value)) return false;
    with.given[r->id] = false;
    if (!mti_has_effect(&with, r)) return false;
    return !row->fits || (mt_model_config_resolve(&o->workload.config, &resolved) == MT_OK &&
                          row->fits(&resolved));
}

static const char *name_of(mti_recipe recipe)
{
    return mti_option_rows[MTI_O_RECIPE].choice->names[recipe];
}

/* The verbs that take a recipe's value of the option. Those of --fsdp have f32 shards. */
static unsigned verbs_of(const mti_option_row *r)
{
    return r->id == MTI_O_FSDP ? r->verbs & ~(1u << MTI_TRAIN) : r->verbs;
}

/* Whether the verb takes all that the recipe may set. */
static bool check_verb(mti_options *o)
{
    const recipe_row *missing = NULL;
    unsigned all = OF_RANKS >> o->recipe & 1 ? mti_option_rows[MTI_O_ZERO].verbs : ~0u;
    char verbs[MTI_VERBS_TEXT];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!(rows[i].recipes & chosen(o))) continue;
        const unsigned takes = verbs_of(&mti_option_rows[rows[i].option]);
        if (!missing && !(takes >> o->verb & 1)) missing = &rows[i];
        all &= takes;
    }
    mti_verbs_text(all, verbs);
    if (!missing && !(all >> o->verb & 1))
        return mti_options_refuse(o,
                                  "--recipe %s: is of ranks that share a batch, which %s does "
                                  "not have; it is for %s",
                                  name_of(o->recipe), mti_verb_get(o->verb)->name, verbs);
    return !missing ||
           mti_options_refuse(o, "--recipe %s: sets --%s%s%s, which %s does not take; it is for %s",
                              name_of(o->recipe), mti_option_rows[missing->option].name,
                              missing->value ? " " : "", missing->value ? missing->value : "",
                              mti_verb_get(o->verb)->name, verbs);
}

static bool set(mti_options *o, const recipe_row *row)
{
    const mti_option_row *r = &mti_option_rows[row->option];
    char *text = o->workload.recipe_options;
    const size_t size = sizeof o->workload.recipe_options, n = strlen(text);
    if (!mti_option_read(o, r, row->value)) return false;
    o->given[r->id] = false;
    o->by_recipe[r->id] = true;
    mti_options_override(&o->workload.config, o);
    snprintf(text + n, size - n, "%s--%s%s%s", n ? " " : "", r->name, row->value ? " " : "",
             row->value ? row->value : "");
    return true;
}

bool mti_recipe_apply(mti_options *o)
{
    mti_workload *w = &o->workload;
    const mt_model_kind kind = w->config.kind;
    w->recipe = o->recipe ? name_of(o->recipe) : NULL;
    *w->recipe_options = 0;
    memset(o->by_recipe, 0, sizeof o->by_recipe);
    w->own_ops = w->config.ops;
    if (!o->recipe || !mti_is_whole(kind)) return true; /* of other models it is refused */
    if (!check_verb(o)) return false;
    if (o->recipe == MTI_RECIPE_LIGER && kind != MT_MODEL_LLAMA)
        return mti_options_refuse(o,
                                  "--recipe liger: Liger-Kernel replaces parts of LLaMA and its "
                                  "kin, and this is a %s; give a llama",
                                  mt_model_kind_name(kind));
    const unsigned recipe = chosen(o); /* not that of what the recipe sets */
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (applies(&rows[i], o, recipe) && !set(o, &rows[i])) return false;
    return !(OF_RANKS >> o->recipe & 1) || w->parallel.data > 1 || w->parallel.context > 1 ||
           o->verb == MTI_FIT ||
           mti_options_refuse(
               o,
               "--recipe %s needs --dp or --cp of 2 or more: it shows one of the ranks that "
               "share a batch",
               w->recipe);
}
