/* recipes.c: --recipe NAME, bundles of plain options; recipes.def has their rows. */
#include <string.h>
#include "options/option_table.h"
#include "nn/model.h"

/* ---- when a row holds ---- */

#define WHEN(name, test)                                                                           \
    static bool name(const mti_options *o, const mt_model_config *c)                               \
    {                                                                                              \
        (void)o, (void)c;                                                                          \
        return test;                                                                               \
    }
WHEN(always, true)
WHEN(is_causal, c->kind != MT_MODEL_BERT)
WHEN(is_causal_and_narrow, c->kind != MT_MODEL_BERT && mt_dtype_size(c->dtype) == 2)
WHEN(is_uncapped, c->kind == MT_MODEL_LLAMA && c->logit_cap == 0)
WHEN(is_llama, c->kind == MT_MODEL_LLAMA)
WHEN(adapts_weights, c->experts && !mti_expert_form_of(c->ops.expert_form)->alone &&
                         o->workload.memory.lora_dropout <= 0 && o->workload.parallel.zero < 3)
WHEN(is_gpt, c->kind == MT_MODEL_GPT)
WHEN(has_wide_softmax,
     (c->kind == MT_MODEL_LLAMA ||
      (is_gpt(o, c) && (c->position_offset /* OPT */ || !mti_learns_positions(c)))) &&
         !c->sinks)
WHEN(has_own_act, c->mlp == MT_MLP_SWIGLU || c->mlp == MT_MLP_PLAIN)
WHEN(has_swiglu, c->mlp == MT_MLP_SWIGLU)
WHEN(has_rope, c->rope_theta > 0)
WHEN(has_tanh, c->act == MT_ACT_GELU_TANH && c->mlp != MT_MLP_SWIGLU && !c->fused_gelu)
WHEN(has_sinks, c->sinks)
WHEN(has_math, c->attention == MT_ATTENTION_MATH)
WHEN(has_groups, c->kv_heads && c->kv_heads != c->heads)
WHEN(has_codes, o->workload.memory.qlora)
/* On CUDA ranks that train sum gradients after backward. */
WHEN(sums_in_buckets, o->verb != MTI_TRAIN || !strcmp(o->workload.device.kind, "cpu"))
WHEN(shares_batch, mti_shares_batch(o))
WHEN(shares_layers, o->workload.parallel.tensor > 1)
WHEN(is_alone, mti_is_alone(o))
WHEN(has_own_loss, c->balance_loss <= 0 && !c->mtp_layers)
WHEN(is_searched, o->verb == MTI_FIT)
WHEN(gives_foreach, o->recipe &(MTI_RECIPE_PEFT | MTI_RECIPE_LLAMAFACTORY))
WHEN(has_own_buckets, !(o->recipe & MTI_RECIPE_LLAMAFACTORY))
/* What is given about shards of parameters asks for them. */
WHEN(is_staged, o->verb != MTI_FIT && o->workload.parallel.pipeline > 1 &&
                    !mti_is_given(o, MTI_O_ZERO) && !mti_is_given(o, MTI_O_FSDP))
WHEN(is_unstaged, !is_staged(o, c))
#undef WHEN

/* ---- the table ---- */

static const mti_recipe_entry entries[] = {
#define RECIPE(id, name, group, doc)                                                               \
    {MTI_RECIPE_##id, MTI_RECIPES_##group, name, NULL, doc, MTI_OPTION_COUNT, NULL},
#define ROW(recipe, option, value, when, source)                                                   \
    {MTI_RECIPE_##recipe, 0, NULL, value, source, MTI_O_##option, when},
#include "options/recipes.def"
#undef RECIPE
#undef ROW
};
#define N_ENTRIES (sizeof entries / sizeof *entries)

const mti_recipe_entry *mti_recipe_entry_at(size_t i) { return i < N_ENTRIES ? &entries[i] : NULL; }

const char *mti_recipe_group_text(mti_recipe_group g)
{
    static const char *const texts[MTI_RECIPES_GROUPS] = {
        [MTI_RECIPES_OPS] = "what the ops of a block are",
        [MTI_RECIPES_TRAINER] = "how a program trains",
        [MTI_RECIPES_RANKS] = "what ranks share",
        [MTI_RECIPES_KERNELS] = "which ops are fused"};
    return texts[g];
}

static const char *name_of(unsigned bits, char buf[MTI_VALUE_TEXT])
{
    const mti_options o = {.recipe = bits};
    return mti_option_text(&o, &mti_option_rows[MTI_O_RECIPE], buf);
}

/* "--dtype bf16", or of a key "swiglu=unfused" */
static const char *option_text(const mti_recipe_entry *row, char buf[MTI_VALUE_TEXT])
{
    const mti_option_row *r = &mti_option_rows[row->option];
    const char *between = !row->value ? "" : r->key ? "=" : " ";
    snprintf(buf, MTI_VALUE_TEXT, "%s%s%s%s", r->key ? "" : "--", r->name, between,
             row->value ? row->value : "");
    return buf;
}

/* ---- checks ---- */

/* Those chosen that are of the group. */
static unsigned of_group(const mti_options *o, mti_recipe_group g)
{
    unsigned bits = 0;
    for (size_t i = 0; i < N_ENTRIES; i++)
        if (entries[i].name && entries[i].group == g) bits |= o->recipe & entries[i].recipe;
    return bits;
}

/* Recipes of one group set the same options. */
static bool check_groups(mti_options *o)
{
    char name[MTI_VALUE_TEXT], given[MTI_VALUE_TEXT];
    for (int g = 0; g < MTI_RECIPES_GROUPS; g++) {
        const unsigned bits = of_group(o, (mti_recipe_group)g);
        if (bits & (bits - 1))
            return mti_options_refuse(o, "--recipe %s: of %s each says %s; give one of the two",
                                      name_of(o->recipe, given), name_of(bits, name),
                                      mti_recipe_group_text((mti_recipe_group)g));
    }
    return true;
}

/* The verbs that take the row's value; train has no f32 shards of a 16-bit model. */
static unsigned verbs_of(const mti_recipe_entry *row)
{
    const mti_option_row *r = &mti_option_rows[row->option];
    mti_options with = {.recipe = 0};
    if (r->id == MTI_O_FSDP) mti_option_read(&with, r, row->value);
    const bool wide = with.workload.parallel.fsdp & MT_FSDP_F32_SHARDS;
    return r->verbs & ~(wide ? 1u << MTI_TRAIN : 0);
}

static bool refuse_row(mti_options *o, const mti_recipe_entry *row)
{
    char name[MTI_VALUE_TEXT], option[MTI_VALUE_TEXT], verbs[MTI_VERBS_TEXT];
    return mti_options_refuse(o, "--recipe %s: sets %s, which %s does not take; it is for %s",
                              name_of(o->recipe, name), option_text(row, option),
                              mti_verb_get(o->verb)->name, mti_verbs_text(verbs_of(row), verbs));
}

/* Whether the verb takes all that the recipe of ranks may set. */
static bool check_ranks(mti_options *o, unsigned recipe)
{
    const unsigned all = mti_option_rows[MTI_O_ZERO].verbs;
    char name[MTI_VALUE_TEXT], verbs[MTI_VERBS_TEXT];
    for (size_t i = 0; i < N_ENTRIES; i++) {
        const mti_recipe_entry *row = &entries[i];
        if (row->recipe == recipe && !row->name && !(verbs_of(row) >> o->verb & 1) &&
            row->when(o, &o->workload.config))
            return refuse_row(o, row);
    }
    if (recipe && !(all >> o->verb & 1))
        return mti_options_refuse(o,
                                  "--recipe %s: is of ranks that share a batch, which %s does "
                                  "not have; it is for %s",
                                  name_of(recipe, name), mti_verb_get(o->verb)->name,
                                  mti_verbs_text(all, verbs));
    return true;
}

static bool check_recipes(mti_options *o)
{
    const mt_model_kind kind = o->workload.config.kind;
    char name[MTI_VALUE_TEXT];
    if (!mti_is_whole(kind))
        return mti_options_refuse(o,
                                  "--recipe %s: does not apply to %s; it is for gpt, bert, llama",
                                  name_of(o->recipe, name), mt_model_kind_name(kind));
    if (o->verb == MTI_SERVE)
        return mti_options_refuse(
            o,
            "--recipe %s: is how a stack trains, and serve does not; it takes "
            "keys alone, plain:rope=unfused",
            name_of(o->recipe, name));
    if ((o->recipe & MTI_RECIPE_LIGER) && kind != MT_MODEL_LLAMA)
        return mti_options_refuse(o,
                                  "--recipe liger: Liger-Kernel replaces parts of LLaMA and its "
                                  "kin, and this is a %s; give a llama",
                                  mt_model_kind_name(kind));
    return check_groups(o) && check_ranks(o, of_group(o, MTI_RECIPES_RANKS));
}

/* ---- setting options ---- */

/* Whether the row's option can be set: it was not given, and has an effect beside those given. A
 * value in the model's config is not asked: one that is refused is not left out in silence. */
static bool applies(const mti_recipe_entry *row, const mti_options *o)
{
    const mti_option_row *r = &mti_option_rows[row->option];
    mt_model_config resolved;
    mti_options with = *o;
    if (o->chosen[r->id] || !mti_option_read(&with, r, row->value)) return false;
    with.chosen[r->id] = MTI_BY_NOBODY;
    with.workload.config = o->workload.config;
    return mti_has_effect(&with, r) &&
           mt_model_config_resolve(&o->workload.config, &resolved) == MT_OK &&
           row->when(o, &resolved);
}

/* What recipes set, as one would type it: options, and keys after a colon. */
typedef struct recipe_text {
    char options[sizeof((mti_workload *)0)->recipe_options];
    char keys[sizeof((mti_workload *)0)->recipe_options];
} recipe_text;

static bool set(mti_options *o, const mti_recipe_entry *row, recipe_text *text)
{
    const mti_option_row *r = &mti_option_rows[row->option];
    char option[MTI_VALUE_TEXT];
    if (!(verbs_of(row) >> o->verb & 1)) return refuse_row(o, row);
    if (!mti_option_read(o, r, row->value)) return false;
    o->chosen[r->id] = MTI_BY_RECIPE;
    char *to = r->key ? text->keys : text->options;
    mti_append(to, sizeof text->keys, "%s%s",
               !*to     ? ""
               : r->key ? ","
                        : " ",
               option_text(row, option));
    return true;
}

/* The row, with f16 for bf16 on a GPU that multiplies none. */
static mti_recipe_entry row_for(const mti_options *o, const mti_recipe_entry *row)
{
    mti_recipe_entry r = *row;
    if (o->in_f16 && r.value && !strcmp(r.value, "bf16")) r.value = "f16";
    return r;
}

/* Sets what the recipes say of --dtype, on which other rows depend, or of all else; the last recipe
 * first. */
static bool set_rows(mti_options *o, bool dtype, recipe_text *text)
{
    for (int i = MTI_RECIPE_COUNT; i-- > 0;) {
        const unsigned recipe = o->recipe & 1u << i;
        for (size_t k = 0; recipe && k < N_ENTRIES; k++) {
            const mti_recipe_entry row = row_for(o, &entries[k]);
            if (row.recipe == recipe && !row.name && (row.option == MTI_O_DTYPE) == dtype &&
                applies(&row, o) && !set(o, &row, text))
                return false;
        }
    }
    return true;
}

bool mti_recipe_apply(mti_options *o)
{
    mti_workload *w = &o->workload;
    const unsigned ranks = of_group(o, MTI_RECIPES_RANKS);
    char name[MTI_VALUE_TEXT];
    recipe_text text = {"", ""};
    snprintf(w->recipe, sizeof w->recipe, "%s", o->recipe ? name_of(o->recipe, name) : "");
    *w->recipe_options = 0;
    for (int id = 0; id < MTI_OPTION_COUNT; id++)
        if (o->chosen[id] == MTI_BY_RECIPE) o->chosen[id] = MTI_BY_NOBODY;
    w->own_ops = w->config.ops;
    if (!o->recipe) return true;
    if (!check_recipes(o) || !set_rows(o, true, &text) || !set_rows(o, false, &text)) return false;
    mti_format(w->recipe_options, sizeof w->recipe_options, "%s%s%s%s", text.options,
               *text.options && *text.keys ? " " : "", *text.keys ? "--recipe plain:" : "",
               text.keys);
    return !ranks || mti_shares_batch(o) || mti_is_alone(o) ||
           mti_options_refuse(
               o,
               "--recipe %s needs --dp or --cp of 2 or more beside what is given: it shows one of "
               "the ranks that share a batch",
               name_of(ranks, name));
}
